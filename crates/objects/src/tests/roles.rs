//! The objects of a gang with roles.

use super::*;
use k8s_openapi::api::batch::v1::Job;
use observe::SlimJob;
use protocol::gang::GangSetup;

fn spec(framework: &str, more: &Value) -> Value {
    let mut spec = json!({
        "model": "m", "dataset": "d", "numWorkers": 2, "gpusPerWorker": 1, "framework": framework, "image": "trainer:1",
        "checkpoint": { "enabled": false },
    });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    spec
}

fn jobs(spec: &Value) -> Vec<(String, Job)> {
    let jobs = built(&plan_of("x", spec), 1).jobs.into_iter();
    jobs.map(|job| (job.metadata.name.clone().unwrap(), job)).collect()
}

fn pod(job: &Job) -> &PodTemplateSpec {
    &job.spec.as_ref().unwrap().template
}

fn variable(job: &Job, name: &str) -> String {
    env(training(pod(job).spec.as_ref().unwrap()), name).concat()
}

fn config(job: &Job, name: &str) -> Value {
    let text = variable(job, name).replace("$$(MASTER_PORT)", "1").replace("$(NODE_RANK)", "0");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn each_role_is_a_job_and_all_share_one_service() {
    let spec = spec("none", &json!({ "roles": [{ "name": "actor", "replicas": 3, "command": ["act"] }] }));
    let plan = plan_of("x", &spec);
    let objects = built(&plan, 2);
    let [workers, actors] = &objects.jobs[..] else { panic!("two Jobs") };
    assert_eq!(
        [workers, actors].map(|job| job.metadata.name.as_deref().unwrap()),
        ["x-training", "x-actor"],
        "the workers' name is as ever"
    );
    assert_eq!(actors.spec.as_ref().unwrap().completions, Some(3));
    let selector = objects.service.spec.unwrap().selector.unwrap();
    for (job, role) in [(workers, "worker"), (actors, "actor")] {
        let labels = pod(job).metadata.as_ref().unwrap().labels.as_ref().unwrap();
        assert_eq!(labels["component"], role);
        // The operator knows the role of a Job by its labels alone. A Job without the label is the workers'.
        let slim: SlimJob = serde_json::from_value(serde_json::to_value(job).unwrap()).unwrap();
        assert_eq!(slim.role().unwrap().as_str(), role);
        assert!(selector.iter().all(|(key, value)| labels.get(key) == Some(value)), "{role}");
        assert_eq!(variable(job, "TRAININGJOB_ROLE"), role);
        let cluster = config(job, "TRAININGJOB_CLUSTER");
        assert_eq!(cluster["actor"][2], "x-actor-2.x-headless");
        assert_eq!(cluster["worker"].as_array().unwrap().len(), 2);
    }
    let board = labels::of_board_pod(&plan);
    assert!(selector.iter().any(|(key, value)| board.get(key) != Some(value)), "a TensorBoard is no member");
    let args = training(pod(actors).spec.as_ref().unwrap()).args.clone().unwrap();
    assert!(
        args.contains(&"--role=actor".to_owned()) && args.ends_with(&["--".to_owned(), "act".to_owned()]),
        "{args:?}"
    );
    assert_eq!(
        ["MASTER_ADDR", "WORLD_SIZE", "NNODES", "NUM_WORKERS", "GPUS_PER_WORKER"].map(|name| variable(actors, name)),
        ["x-actor-0.x-headless", "3", "3", "2", "0"],
        "ranks are those of the role"
    );
}

#[test]
fn agents_know_members_that_decide_success() {
    let setup = |spec: &Value| -> GangSetup {
        let config = built(&plan_of("x", spec), 1).config.data.unwrap();
        serde_json::from_str(&config["gang.json"]).unwrap()
    };
    let numbers =
        |map: &BTreeMap<String, u32>| map.iter().map(|(k, n)| format!("{k} {n}")).collect::<Vec<_>>().join(", ");
    let roles = json!({ "roles": [{ "name": "chief" }, { "name": "ps", "replicas": 3 }, { "name": "evaluator" }] });
    let setup_of_tensorflow = setup(&spec("tensorflow", &roles));
    assert_eq!(numbers(&setup_of_tensorflow.roles), "chief 1, evaluator 1, ps 3");
    assert_eq!((setup_of_tensorflow.workers, numbers(&setup_of_tensorflow.success)), (2, "chief 1".into()));
    let workers = setup(&spec("none", &json!({ "roles": [{ "name": "a" }] })));
    assert_eq!(numbers(&workers.success), "worker 2");
    let alone = setup(&spec("none", &json!({})));
    assert_eq!((alone.roles.len(), alone.success.len()), (0, 0), "as for an agent of before");
}

#[test]
fn evaluator_and_other_roles_are_in_separate_clusters() {
    let roles = json!({ "roles": [{ "name": "chief" }, { "name": "ps", "replicas": 2 }, { "name": "evaluator" }] });
    let jobs: BTreeMap<_, _> = jobs(&spec("tensorflow", &roles)).into_iter().collect();
    let cluster = json!({
        "chief": ["x-chief-0.x-headless:1"], "ps": ["x-ps-0.x-headless:1", "x-ps-1.x-headless:1"],
        "worker": ["x-training-0.x-headless:1", "x-training-1.x-headless:1"],
    });
    for (job, role) in [("x-chief", "chief"), ("x-ps", "ps"), ("x-training", "worker")] {
        let expected = json!({ "cluster": cluster, "task": { "type": role, "index": 0 } });
        assert_eq!(config(&jobs[job], "TF_CONFIG"), expected);
    }
    let expected = json!({
        "cluster": { "evaluator": ["x-evaluator-0.x-headless:1"] }, "task": { "type": "evaluator", "index": 0 },
    });
    assert_eq!(config(&jobs["x-evaluator"], "TF_CONFIG"), expected);
}

#[test]
fn only_one_agent_manages_checkpoints() {
    let storage = json!({ "checkpoint": { "storage": { "type": "pvc" }, "resumeArgs": ["--again"] }, "roles": [{ "name": "a" }] });
    let jobs = jobs(&spec("none", &storage));
    let args = |job: &Job| training(pod(job).spec.as_ref().unwrap()).args.clone().unwrap().join(" ");
    assert!(args(&jobs[0].1).contains("--checkpoints=") && !args(&jobs[1].1).contains("--checkpoints="));
    assert!(jobs.iter().all(|(_, job)| args(job).contains("--resume-arg=--again")));
    assert!(jobs.iter().all(|(_, job)| variable(job, "CHECKPOINT_DIR") == "/checkpoints"));
}

#[test]
fn one_pod_group_covers_all_roles() {
    let roles = json!({
        "scheduling": { "gang": "volcano", "queue": "q" },
        "resources": { "requests": { "cpu": "2" } },
        "roles": [{ "name": "a", "replicas": 3, "resources": { "requests": { "cpu": "1" } } }],
    });
    let plan = plan_of("x", &spec("none", &roles));
    let Some(PodGroup::Volcano(group)) = pod_group(&plan) else { panic!("a group of Volcano's") };
    assert_eq!((group.spec.min_member, group.spec.min_resources["cpu"].0.as_str()), (5, "7"));
    let name = group.metadata.name.unwrap();
    for (job, role) in built(&plan, 1).jobs.into_iter().zip(["worker", "a"]) {
        let annotations = pod(&job).metadata.clone().unwrap().annotations.unwrap();
        assert_eq!(annotations[labels::VOLCANO_GROUP], name);
        // Volcano distinguishes the roles by this.
        assert_eq!(annotations[labels::VOLCANO_TASK], role);
        assert!(!job.metadata.labels.unwrap().contains_key(labels::QUEUE));
    }

    let grouped = |kind: &str| {
        plan_of("x", &spec("none", &json!({ "scheduling": { "gang": kind }, "roles": [{ "name": "a" }] })))
    };
    let plan = grouped("coscheduling");
    let Some(PodGroup::Coscheduling(group)) = pod_group(&plan) else { panic!("a group of that plugin") };
    assert_eq!(group.spec.min_member, 3);
    for job in built(&plan, 1).jobs {
        let labels = pod(&job).metadata.clone().unwrap().labels.unwrap();
        assert_eq!(Some(&labels[labels::COSCHEDULING_GROUP]), group.metadata.name.as_ref());
    }
    let plan = grouped("native");
    let Some(PodGroup::Native(group)) = pod_group(&plan) else { panic!("a group of Kubernetes") };
    assert_eq!(group.spec.scheduling_policy.gang.unwrap().min_count, 3);
    for job in built(&plan, 1).jobs {
        let posted = as_posted(&plan, &job);
        let named = &posted["spec"]["template"]["spec"]["schedulingGroup"]["podGroupName"];
        assert_eq!(named.as_str(), group.metadata.name.as_deref());
    }
}

/// As the frameworks' own sources read them.
#[test]
fn each_framework_gets_its_own_role_variables() {
    let of =
        |framework: &str, more: Value| -> BTreeMap<String, Job> { jobs(&spec(framework, &more)).into_iter().collect() };
    let variables = |job: &Job, names: &[&str]| names.iter().map(|name| variable(job, name)).collect::<Vec<_>>();
    let names = ["DMLC_TRACKER_URI", "DMLC_TRACKER_PORT", "DMLC_TASK_ID", "DMLC_NUM_WORKER"];
    let xgboost = of("xgboost", json!({ "numWorkers": 3 }));
    assert_eq!(
        variables(&xgboost["x-training"], &names),
        ["x-training-0.x-headless", "$$(MASTER_PORT)", "$(NODE_RANK)", "3"]
    );

    let names = ["PADDLE_MASTER", "PADDLE_NNODES", "PADDLE_RANK", "PADDLE_NPROC_PER_NODE", "PADDLE_JOB_ID", "POD_IP"];
    let paddle = of("paddle", json!({ "gpusPerWorker": 4 }));
    assert_eq!(
        variables(&paddle["x-training"], &names),
        ["$$(MASTER_IP):$$(MASTER_PORT)", "2", "$(NODE_RANK)", "4", "x", "(from)"]
    );
    let alone = of("paddle", json!({ "numWorkers": 1 }));
    assert_eq!(variables(&alone["x-training"], &names[..2]), ["", "1"], "who is alone waits for no master");
    let args = training(pod(&paddle["x-training"]).spec.as_ref().unwrap()).args.clone().unwrap().join(" ");
    assert!(args.ends_with("-- python3 -m paddle.distributed.launch train.py"), "{args}");

    let names = ["DMLC_ROLE", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "DMLC_NUM_SERVER", "DMLC_NUM_WORKER"];
    let mxnet = of("mxnet", json!({ "roles": [{ "name": "server", "replicas": 3 }] }));
    for (job, role) in [("x-training", "worker"), ("x-server", "server"), ("x-scheduler", "scheduler")] {
        let expected = [role, "x-scheduler-0.x-headless", "$$(MASTER_PORT)", "3", "2"];
        assert_eq!(variables(&mxnet[job], &names), expected);
        assert_eq!(variable(&mxnet[job], "DMLC_USE_KUBERNETES"), "1");
    }
    let names = [
        "OMPI_MCA_plm_rsh_agent",
        "PRTE_MCA_prte_default_hostfile",
        "HYDRA_LAUNCHER_EXEC",
        "I_MPI_HYDRA_HOST_FILE",
        "HYDRA_IFACE",
        "WORLD_SIZE",
        "NNODES",
        "MASTER_ADDR",
        "RANK",
        "POD_IP",
    ];
    let mpi = of("mpi", json!({ "gpusPerWorker": 4, "args": ["python3", "a.py"], "roles": [{ "name": "launcher" }] }));
    for job in ["x-training", "x-launcher"] {
        let file = |name: &str| format!("/trainingjob/state/remote/{name}");
        let expected = [&*file("rsh"), &file("hostfile"), &file("rsh"), &file("hosts"), "$$(POD_INTERFACE)"];
        let gang = ["8", "2", "x-training-0.x-headless", "", "(from)"];
        assert_eq!(variables(&mpi[job], &names), [expected, gang].concat(), "{job}");
        let args = training(pod(&mpi[job]).spec.as_ref().unwrap()).args.clone().unwrap().join(" ");
        assert!(args.ends_with("-- mpirun -np $$(WORLD_SIZE) python3 a.py"), "{args}");
    }
    assert_eq!(variable(&mpi["x-training"], "I_MPI_PERHOST"), "4");
    let own = of("mpi", json!({ "env": [{ "name": "HYDRA_LAUNCHER", "value": "slurm" }] }));
    assert_eq!(variable(&own["x-training"], "HYDRA_LAUNCHER"), "slurm", "what a person says goes before it");
    let plain = of("mpi", json!({}));
    let args = training(pod(&plain["x-training"]).spec.as_ref().unwrap()).args.clone().unwrap().join(" ");
    assert!(args.ends_with("-- mpirun -np $$(WORLD_SIZE) python3 train.py"), "{args}");

    let own = of("mxnet", json!({ "roles": [{ "name": "server" }, { "name": "scheduler", "image": "small:1" }] }));
    assert_eq!(own.len(), 3, "a scheduler that is written is not added");
}

/// What the agents get: which member runs mpirun, and where the others serve it.
#[test]
fn agents_know_member_that_runs_mpirun() {
    let setup = |framework: &str, more: Value| -> GangSetup {
        let objects = built(&plan_of("x", &spec(framework, &more)), 1);
        serde_json::from_str(&objects.config.data.unwrap()["gang.json"]).unwrap()
    };
    let alone = setup("mpi", json!({ "procsPerWorker": 3 }));
    assert_eq!(alone.success, BTreeMap::from([("worker".to_owned(), 1)]));
    let mpi = alone.mpi.unwrap();
    assert_eq!((mpi.slots, mpi.port), (3, alone.port + 1));
    let launched = setup("mpi", json!({ "roles": [{ "name": "launcher" }] }));
    assert_eq!(launched.success, BTreeMap::from([("launcher".to_owned(), 1)]));
    let elastic = setup("mpi", json!({ "elastic": { "maxWorkers": 4 } }));
    assert_eq!(elastic.success, BTreeMap::from([("worker".to_owned(), 1)]));
    let other = setup("pytorch", json!({}));
    assert_eq!((other.mpi, other.success.len()), (None, 0));
}
