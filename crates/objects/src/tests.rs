use super::*;
use api::TrainingJob;
use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec};
use plan::{self, Delivery, OperatorInfo, Upkeep, is_reserved};
use proptest::prelude::*;
use protocol::attempt::RestartHistory;
use protocol::proof::AnswerKey;
use protocol::role::RoleName;
use serde_json::{Value, json};
use std::num::NonZeroU16;

mod roles;

fn runtime() -> OperatorInfo {
    OperatorInfo {
        agent_image: "registry.example/trainingjob-operator:1".to_owned(),
        agent_image_pull_policy: Some("IfNotPresent".to_owned()),
        delivery: Delivery::Init,
        restart_rules: true,
        default_ttl_seconds: None,
        own_namespace: None,
    }
}

fn resolved(name: &str, spec: &Value) -> Result<Plan, plan::Refusals> {
    plan::resolve(&job_of(name, spec), &runtime()).accepted().cloned().map_err(Clone::clone)
}

fn job_of(name: &str, spec: &Value) -> TrainingJob {
    let mut job = TrainingJob::new(name, serde_json::from_value(spec.clone()).unwrap());
    job.metadata.namespace = Some("ml-training".to_owned());
    job.metadata.uid = Some("6f1f4d1e-0000-4000-8000-000000000001".to_owned());
    job
}

fn plan_of(name: &str, spec: &Value) -> Plan {
    resolved(name, spec).unwrap_or_else(|refusals| panic!("{refusals}"))
}

fn built(plan: &Plan, number: u32) -> Objects {
    objects(plan, Incarnation { number, attempt: number }, &GangPast::default())
}

/// A job with these fields besides the ones it must have, as its pods are.
fn template_of(fields: &Value) -> PodTemplateSpec {
    let mut spec = json!({ "model": "m", "dataset": "d", "numWorkers": 2, "gpusPerWorker": 0 });
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    built(&plan_of("x", &spec), 1).jobs.remove(0).spec.unwrap().template
}

fn pod_of(fields: &Value) -> PodSpec {
    template_of(fields).spec.unwrap()
}

fn training(pod: &PodSpec) -> &Container {
    &pod.containers[0]
}

/// Every variable, of the container and of those that the agent sets.
fn variables(container: &Container) -> Vec<(&str, &str)> {
    let of_container =
        container.env.iter().flatten().map(|v| (v.name.as_str(), v.value.as_deref().unwrap_or("(from)")));
    let of_agent = agent_args(container).iter().filter_map(|arg| arg.strip_prefix("--env=")?.split_once('='));
    of_container.chain(of_agent).collect()
}

fn env<'a>(container: &'a Container, name: &str) -> Vec<&'a str> {
    variables(container).into_iter().filter(|(found, _)| *found == name).map(|(_, value)| value).collect()
}

/// What belongs to the agent, and not to its program.
fn agent_args(container: &Container) -> &[String] {
    let args = container.args.as_deref().unwrap();
    &args[..args.iter().position(|arg| arg == "--").unwrap()]
}

fn snapshot(name: &str, spec: &Value, attempt: u32) {
    let Objects { service, config, claim, mut jobs } = built(&plan_of(name, spec), attempt);
    let job = jobs.remove(0);
    insta::assert_json_snapshot!(name, json!({ "service": service, "config": config, "claim": claim, "job": job }));
}

#[test]
fn a_simple_job() {
    snapshot("simple", &json!({ "model": "cnn", "dataset": "mnist", "numWorkers": 1, "gpusPerWorker": 0 }), 1);
}

#[test]
fn distributed_job_with_checkpoint_claim() {
    let spec = json!({
        "model": "bert-base",
        "dataset": "wiki text",
        "numWorkers": 2,
        "gpusPerWorker": 2,
        "framework": "pytorch",
        "image": "pytorch/pytorch:2.1.0-cuda11.8-cudnn8-runtime",
        "resources": { "requests": { "memory": "32Gi", "cpu": "8" }, "limits": { "memory": "64Gi", "cpu": "16" } },
        "hyperparameters": { "learningRate": 0.00005, "batchSize": 16, "epochs": 3, "additionalParams": { "cost": "5$" } },
        "checkpoint": { "frequency": 1, "storage": { "type": "pvc", "size": "50Gi", "storageClassName": "nfs" } },
    });
    snapshot("bert-distributed", &spec, 1);
}

#[test]
fn job_with_most_options_in_second_attempt() {
    let spec = json!({
        "model": "resnet152",
        "dataset": "imagenet",
        "numWorkers": 8,
        "gpusPerWorker": 4,
        "image": "nvcr.io/nvidia/pytorch:23.10-py3",
        "command": ["python", "-m", "torch.distributed.run"],
        "args": ["--nproc_per_node=4", "train.py", "--lr=$(HYPERPARAM_LEARNING_RATE)"],
        "env": [
            { "name": "NCCL_DEBUG", "value": "INFO" },
            { "name": "TOKEN", "valueFrom": { "secretKeyRef": { "name": "hf", "key": "token" } } },
        ],
        "envFrom": [{ "configMapRef": { "name": "more" } }],
        "resources": {
            "requests": { "memory": "128Gi", "cpu": "32", "nvidia.com/gpu": "4" },
            "limits": { "memory": "256Gi", "cpu": "64", "nvidia.com/gpu": "4" },
        },
        "workingDir": "/workspace",
        "serviceAccountName": "trainer",
        "imagePullSecrets": [{ "name": "nvcr" }],
        "hyperparameters": {
            "learningRate": 0.0001, "batchSize": 128, "epochs": 100, "optimizer": "adamw", "warmupSteps": 1000,
            "gradientAccumulationSteps": 4, "mixedPrecision": true,
            "additionalParams": { "weight_decay": "0.01", "label_smoothing": "0.1" },
        },
        "checkpoint": { "storage": { "type": "pvc", "deletePolicy": "Delete" } },
        "scheduling": {
            "priority": "high-priority",
            "queue": "research",
            "nodeSelector": { "node-type": "gpu-large" },
            "affinity": { "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [{
                "labelSelector": { "matchLabels": { "training-job": "advanced-training" } },
                "topologyKey": "kubernetes.io/hostname",
            }] } },
            "tolerations": [{ "key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule" }],
            "topologyKey": "topology.kubernetes.io/zone",
            "schedulerName": "packing",
        },
        "networking": { "rdmaEnabled": true, "rdmaResource": "rdma/rdma_shared_device_a", "interface": "eth0" },
        "podTemplate": {
            "metadata": { "labels": { "team": "vision" }, "annotations": { "sidecar.istio.io/inject": "false" } },
            "spec": {
                "nodeSelector": { "disk": "fast" },
                "terminationGracePeriodSeconds": 300,
                "initContainers": [{ "name": "logs", "image": "busybox", "restartPolicy": "Always" }],
                "containers": [{ "name": "training", "securityContext": { "capabilities": { "add": ["SYS_PTRACE"] } } }],
            },
        },
    });
    snapshot("advanced-training", &spec, 2);
}

/// A program that finds `RANK` takes itself for one of several. `$(NAME)` still stands for what the agent withholds.
#[test]
fn group_variables_are_withheld_unless_program_expects_them() {
    const GROUP: &[&str] = &["--withhold=RANK,WORLD_SIZE,MASTER_ADDR,MASTER_PORT,PET_MASTER_PORT"];
    const TORCHRUN: &[&str] = &["--withhold=PET_MASTER_PORT"];
    const NOTHING: &[&str] = &[];
    let none = |workers: u32, more: Value| {
        let mut spec = json!({
            "model": "m", "dataset": "d", "numWorkers": workers, "gpusPerWorker": 0, "image": "i", "command": ["a"],
        });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        spec
    };
    let checkpoint = json!({ "storage": { "type": "pvc" } });
    let elastic = json!({ "framework": "none", "elastic": { "maxWorkers": 4 }, "checkpoint": checkpoint });
    for (workers, more, expected) in [
        (1, json!({ "framework": "none" }), GROUP),
        (2, json!({ "framework": "none" }), TORCHRUN),
        (1, json!({ "framework": "none", "roles": [{ "name": "actor" }] }), TORCHRUN),
        (1, elastic, TORCHRUN),
        (1, json!({ "framework": "pytorch" }), NOTHING),
        (2, json!({ "framework": "pytorch" }), NOTHING),
        (1, json!({ "framework": "jax" }), GROUP),
        (2, json!({ "framework": "jax" }), GROUP),
        (2, json!({ "framework": "tensorflow" }), GROUP),
        (2, json!({ "framework": "paddle" }), GROUP),
        (2, json!({ "framework": "mxnet", "roles": [{ "name": "server" }] }), GROUP),
        (2, json!({ "framework": "xgboost" }), TORCHRUN),
        (2, json!({ "framework": "mpi" }), TORCHRUN),
    ] {
        let jobs = built(&plan_of("x", &none(workers, more.clone())), 1).jobs;
        for job in jobs {
            let pod = job.spec.unwrap().template.spec.unwrap();
            let args = agent_args(training(&pod)).iter().map(String::as_str);
            let withheld: Vec<&str> = args.filter(|arg| arg.starts_with("--withhold")).collect();
            assert_eq!(withheld, expected, "{workers} {more}");
            assert_eq!(env(training(&pod), "LOCAL_RANK").len(), 0);
        }
    }
}

/// Values that depend on the size come from the agent, and from what the operator writes.
#[test]
fn elastic_job_template_does_not_depend_on_size() {
    let elastic = |framework: &str, workers: u32| {
        json!({
            "model": "m", "dataset": "d", "numWorkers": workers, "gpusPerWorker": 2, "framework": framework,
            "elastic": { "maxWorkers": 8 }, "checkpoint": { "storage": { "type": "pvc" } },
        })
    };
    let built = |framework: &str, workers| built(&plan_of("x", &elastic(framework, workers)), 1);
    let template = |framework: &str, workers| built(framework, workers).jobs.remove(0).spec.unwrap().template;
    for (framework, variable, value) in [
        ("pytorch", "PET_NNODES", "$$(NNODES)"),
        ("jax", "JAX_NUM_PROCESSES", "$$(WORLD_SIZE)"),
        (
            "tensorflow",
            "TF_CONFIG",
            r#"{"cluster":{"worker":$$(TRAININGJOB_ADDRESSES)},"task":{"type":"worker","index":$(NODE_RANK)}}"#,
        ),
    ] {
        assert_eq!(template(framework, 1), template(framework, 8), "the same for each size");
        let pod = template(framework, 2).spec.unwrap();
        assert_eq!(env(training(&pod), variable), [value]);
        let baked = ["WORLD_SIZE", "NNODES", "NUM_WORKERS"].map(|name| env(training(&pod), name).len());
        assert_eq!(baked, [0; 3]);
    }
    let Objects { config, claim, mut jobs, .. } = built("pytorch", 1);
    assert_eq!(claim.unwrap().spec.unwrap().access_modes.unwrap(), ["ReadWriteMany"]);
    assert_eq!(jobs.remove(0).spec.unwrap().completions, Some(1));
    let setup =
        |config: &ConfigMap| -> Value { serde_json::from_str(&config.data.as_ref().unwrap()["gang.json"]).unwrap() };
    assert_eq!((&setup(&config)["workers"], &setup(&config)["largest"]), (&json!(1), &json!(1)));
    let mut alone = elastic("pytorch", 1);
    alone["elastic"]["maxWorkers"] = json!(1);
    let alone = plan_of("x", &alone);
    let args = super::gang::args(&alone, alone.gang.workers(), &GangPast::default());
    assert!(args.iter().any(|arg| arg.starts_with("--gang-key=")), "it may have others later");

    let mut job = TrainingJob::new("x", serde_json::from_value(elastic("pytorch", 4)).unwrap());
    job.metadata.uid = Some("6f1f4d1e-0000-4000-8000-000000000001".to_owned());
    let intent = |job: &TrainingJob| plan::resolve(job, &runtime()).plan.identity.intent;
    let before = intent(&job);
    let status = json!({ "elastic": { "workers": 3, "largest": 4, "told": 3, "selector": "" } });
    job.status = serde_json::from_value(status).unwrap();
    job.spec.num_workers = NonZeroU16::new(5);
    assert_eq!(intent(&job), before, "it may change");
    let plan = plan::resolve(&job, &runtime()).plan;
    let config = objects(&plan, Incarnation::FIRST, &GangPast::default()).config;
    assert_eq!((&setup(&config)["workers"], &setup(&config)["largest"]), (&json!(3), &json!(4)));
}

#[test]
fn job_with_model_and_data_on_claims() {
    let spec = json!({
        "model": "pvc://models-pvc/llama",
        "dataset": "pvc://datasets-pvc",
        "output": "pvc://outputs-pvc/runs/1",
        "numWorkers": 4,
        "args": ["/app/src/train_framework.py", "--model-local-dir", "$(MODEL)"],
        "checkpoint": { "storage": { "type": "nfs", "nfsServer": "nfs.example", "nfsPath": "/exports/checkpoints" } },
    });
    snapshot("train-llm", &spec, 1);
}

#[test]
fn a_tensorflow_job() {
    let spec = json!({
        "model": "resnet", "dataset": "cifar", "numWorkers": 3, "framework": "tensorflow",
        "checkpoint": { "enabled": false },
    });
    snapshot("keras", &spec, 1);
}

#[test]
fn jax_job_satisfies_restricted_pod_security() {
    let spec = json!({
        "model": "gpt", "dataset": "c4", "numWorkers": 2, "gpusPerWorker": 8, "framework": "jax",
        "checkpoint": { "storage": { "type": "pvc", "pvcName": "shared" } },
        "podTemplate": { "spec": {
            "securityContext": { "runAsNonRoot": true, "runAsUser": 1000, "fsGroup": 1000, "seccompProfile": { "type": "RuntimeDefault" } },
            "containers": [{ "name": "training", "securityContext": {
                "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] },
            } }],
        } },
    });
    snapshot("jax-restricted", &spec, 1);
}

#[test]
fn every_object_can_be_selected_and_traced_to_its_job() {
    let spec = json!({ "model": "m", "dataset": "d", "numWorkers": 2, "checkpoint": { "storage": { "type": "pvc" } } });
    let plan = plan_of("x", &spec);
    let Objects { service, config, claim, mut jobs } = built(&plan, 3);
    let job = jobs.remove(0);
    let claim = claim.unwrap();
    let pods = job.spec.clone().unwrap().template.metadata.unwrap();
    for metadata in [&service.metadata, &config.metadata, &claim.metadata, &job.metadata, &pods] {
        let found = metadata.labels.clone().unwrap();
        assert_eq!(found[labels::MANAGED_BY], labels::OPERATOR);
        assert_eq!(found[labels::UID], plan.identity.uid);
        assert_eq!((&*found[labels::TRAINING_JOB], &*found[labels::JOB_NAME]), ("x", "x"));
    }
    for metadata in [&service.metadata, &config.metadata, &job.metadata] {
        assert_eq!(metadata.owner_references, Some(vec![plan.identity.owner.clone()]));
        assert_eq!(metadata.annotations.as_ref().unwrap()[labels::INTENT], plan.identity.intent);
    }
    assert_eq!(claim.metadata.owner_references, None, "checkpoints outlive their job");
    let on_job = job.metadata.labels.unwrap();
    assert_eq!((&*on_job[labels::INCARNATION], &*on_job[labels::ROLE]), ("3", "worker"));
    assert_eq!(job.metadata.annotations.unwrap()[labels::INCARNATION], "3");
    assert_eq!(pods.labels.as_ref().unwrap()[labels::INCARNATION], "3");
    let mut selector = service.spec.unwrap().selector.unwrap();
    selector.remove(labels::COMPLETION_INDEX); // the Job controller's
    assert!(selector.iter().all(|(key, value)| pods.labels.as_ref().unwrap().get(key) == Some(value)));
    assert_eq!(format!("{}={}", labels::MANAGED_BY, labels::OPERATOR), labels::SELECTOR);
}

#[test]
fn host_names_setting_decides_pods_selected_by_service() {
    let index_of = |more: Value| {
        let mut spec = json!({ "model": "m", "dataset": "d", "numWorkers": 2, "image": "a.test/a:1" });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let service = built(&plan_of("x", &spec), 1).service;
        service.spec.unwrap().selector.unwrap().remove(labels::COMPLETION_INDEX)
    };
    for framework in ["pytorch", "jax", "xgboost", "paddle"] {
        assert_eq!(index_of(json!({ "framework": framework })).as_deref(), Some("0"), "{framework}");
        let all = json!({ "framework": framework, "networking": { "hostNames": "AllWorkers" } });
        assert_eq!(index_of(all), None, "{framework}");
    }
    assert_eq!(index_of(json!({ "framework": "tensorflow" })), None);
    assert_eq!(index_of(json!({ "framework": "none", "command": ["a"] })), None);
    let first = json!({ "framework": "none", "command": ["a"], "networking": { "hostNames": "FirstWorker" } });
    assert_eq!(index_of(first).as_deref(), Some("0"));
    assert_eq!(index_of(json!({ "framework": "none", "command": ["a"], "roles": [{ "name": "actor" }] })), None);
}

#[test]
fn incarnations_differ_only_in_their_numbers() {
    let plan = plan_of("x", &json!({ "model": "m", "dataset": "d", "numWorkers": 2 }));
    let (first, third) = (built(&plan, 1), built(&plan, 3));
    assert_eq!((&first.service, &first.config), (&third.service, &third.config));
    for (attempt, objects) in [("--attempt=1", first), ("--attempt=3", third)] {
        let expected = [
            "run",
            attempt,
            "--grace-seconds=45",
            "--gang=/etc/training-config/gang.json",
            "--gang-key=/etc/training-config/.gang/key",
            "--gang-state=/trainingjob/state",
            "--clear-shm",
            "--clear-locks",
            "--metrics-port=8080",
            "--answer-key=/etc/training-config/.gang/answers",
            "--hang-timeout=1800",
            "--hang-idle-timeout=3600",
            "--checkpoints=/etc/training-config/checkpoints.json",
            "--",
            "torchrun",
            "train.py",
        ];
        let pod = objects.jobs[0].spec.clone().unwrap().template.spec.unwrap();
        let args = training(&pod).args.iter().flatten().filter(|arg| !arg.starts_with("--env="));
        assert_eq!(args.collect::<Vec<_>>(), expected);
    }
}

#[test]
fn agents_receive_gang_setup_and_restart_history() {
    let spec = json!({
        "model": "m", "dataset": "d", "numWorkers": 3, "networking": { "masterPort": 3000 },
        "failurePolicy": { "restartPolicy": "Always", "backoffLimit": 7 },
    });
    let plan = plan_of("x", &spec);
    let restarts = RestartHistory { failures: 2, disruptions: 1, ..RestartHistory::default() };
    let past = GangPast { restarts, ..GangPast::default() };
    let objects = objects(&plan, Incarnation { number: 2, attempt: 5 }, &past);
    let setup = &objects.config.data.as_ref().unwrap()["gang.json"];
    assert_eq!(
        serde_json::from_str::<Value>(setup).unwrap(),
        json!({
            "uid": "6f1f4d1e-0000-4000-8000-000000000001", "workers": 3, "leader": "x-training-0.x-headless",
            "port": 3002, "masterPort": 3000, "restarts": "Always", "backoffLimit": 7,
        })
    );
    let annotations = objects.jobs[0].metadata.annotations.as_ref().unwrap();
    assert_eq!((&*annotations[labels::INCARNATION], &*annotations[labels::FIRST_ATTEMPT]), ("2", "5"));
    let pod = objects.jobs[0].spec.as_ref().unwrap().template.spec.as_ref().unwrap();
    let past = r#"--gang-past={"restarts":{"judged":0,"failures":2,"disruptions":1,"failuresInARow":0,"disruptionsInARow":0}}"#;
    let args = training(pod).args.clone().unwrap();
    assert!(args.contains(&"--attempt=5".to_owned()) && args.contains(&past.to_owned()), "{args:?}");
}

#[test]
fn gang_key_and_answer_key_are_mounted_where_needed() {
    let of = |workers: u32, enabled: bool| {
        let monitoring = json!({ "enabled": enabled });
        plan_of(
            "x",
            &json!({ "model": "m", "dataset": "d", "numWorkers": workers, "gpusPerWorker": 0, "monitoring": monitoring }),
        )
    };
    let answers = AnswerKey::parse("3c".repeat(32).as_bytes()).unwrap();
    let (gang, asked) =
        ("--gang-key=/etc/training-config/.gang/key", "--answer-key=/etc/training-config/.gang/answers");
    for (plan, options) in [
        (of(2, true), vec![gang, asked]),
        (of(2, false), vec![gang]),
        (of(1, true), vec![asked]),
        (of(1, false), vec![]),
    ] {
        let secret = keys(&plan, &[0xa5; 32], &answers);
        assert_eq!(secret.is_some(), !options.is_empty());
        let pod = built(&plan, 1).jobs.remove(0).spec.unwrap().template.spec.unwrap();
        let args = training(&pod).args.clone().unwrap();
        let reported = args.iter().filter(|arg| arg.starts_with("--gang-key") || arg.starts_with("--answer-key"));
        assert_eq!(reported.collect::<Vec<_>>(), options);
        let sources = pod.volumes.unwrap().into_iter().filter_map(|volume| volume.projected?.sources);
        let mut mounted = sources.flatten().filter_map(|source| source.secret);
        let Some(secret) = secret else {
            assert_eq!(mounted.next(), None);
            continue;
        };
        assert_eq!(secret.metadata.owner_references.as_ref().unwrap()[0].kind, "TrainingJob");
        assert_eq!(secret.metadata.labels.as_ref().unwrap()[labels::UID], "6f1f4d1e-0000-4000-8000-000000000001");
        assert_eq!(secret.immutable, Some(true));
        let made = secret.data.unwrap().into_iter().map(|(file, text)| (file, String::from_utf8(text.0).unwrap()));
        let both = [("answers", "3c"), ("key", "a5")].map(|(file, byte)| (file.to_owned(), byte.repeat(32)));
        assert_eq!(made.collect::<Vec<_>>(), both, "what the pods need may change, and the Secret can't");
        let from = mounted.next().unwrap();
        assert_eq!((Some(from.name), mounted.next()), (secret.metadata.name, None));
        let paths = from.items.unwrap().into_iter().map(|item| (item.key, item.path));
        let files = options.iter().map(|option| option.rsplit('/').next().unwrap());
        assert!(paths.eq(files.map(|file| (file.to_owned(), format!(".gang/{file}")))));
    }
}

#[test]
fn isolated_gang_exposes_only_metrics_to_other_pods() {
    let of = |fields: Value| {
        let mut spec = json!({ "model": "m", "dataset": "d", "numWorkers": 2, "gpusPerWorker": 0 });
        spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        network_policy(&plan_of("x", &spec))
    };
    let policy = of(json!({})).unwrap();
    assert_eq!(policy.metadata.name.as_deref(), Some("x-isolation-6f1f4d1e"));
    assert_eq!(policy.metadata.owner_references.as_ref().unwrap()[0].kind, "TrainingJob");
    assert_eq!(policy.metadata.labels.as_ref().unwrap()[labels::UID], "6f1f4d1e-0000-4000-8000-000000000001");
    let pods = json!({ "matchLabels": {
        "app.kubernetes.io/managed-by": "trainingjob-operator", "ml.example.com/training-job-uid": "6f1f4d1e-0000-4000-8000-000000000001",
    } });
    let from_gang = json!({ "from": [{ "podSelector": pods }] });
    let metrics = |port: i32| json!({ "ports": [{ "protocol": "TCP", "port": port }] });
    assert_eq!(
        serde_json::to_value(policy.spec).unwrap(),
        json!({ "podSelector": pods, "policyTypes": ["Ingress"], "ingress": [from_gang, metrics(8080)] })
    );
    let ingress = |fields: Value| serde_json::to_value(of(fields).unwrap().spec.unwrap().ingress).unwrap();
    assert_eq!(ingress(json!({ "monitoring": { "metricsPort": 9000 } })), json!([from_gang, metrics(9000)]));
    assert_eq!(ingress(json!({ "monitoring": { "enabled": false } })), json!([from_gang]));
    assert_eq!(ingress(json!({ "networking": { "isolate": true } })), json!([from_gang, metrics(8080)]));
    assert!(of(json!({ "numWorkers": 1 })).is_some(), "a single worker has ports of its own");

    assert_eq!(of(json!({ "networking": { "isolate": false } })), None);
    let host = json!({ "spec": { "hostNetwork": true } });
    assert_eq!(of(json!({ "podTemplate": host })), None);
    let server = |fields: Value| json!({ "framework": "none", "image": "i", "command": ["a"], "roles": [fields] });
    assert!(of(server(json!({ "name": "server" }))).is_some());
    assert_eq!(of(server(json!({ "name": "server", "podTemplate": host }))), None, "it comes from its node's address");
}

/// A Service, a NetworkPolicy and affinities outlive an upgrade, and so do pods.
#[test]
fn each_selector_matches_exactly_its_pods() {
    let uid = "6f1f4d1e-0000-4000-8000-000000000001";
    let before_0_2 = |component: &str| -> BTreeMap<String, String> {
        let labels = [
            (labels::MANAGED_BY, labels::OPERATOR),
            ("app", "training-job"),
            ("training-job", "x"),
            ("component", component),
            (labels::UID, uid),
            ("ml.example.com/attempt", "1"),
        ];
        labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
    };
    let pods_of = |template: PodTemplateSpec| template.metadata.unwrap().labels.unwrap();
    for roles in [json!([]), json!([{ "name": "server" }])] {
        let spec = json!({
            "model": "m", "dataset": "d", "numWorkers": 2, "gpusPerWorker": 0, "framework": "none", "image": "i",
            "command": ["a"], "roles": roles, "output": "pvc://c", "monitoring": { "tensorboardEnabled": true },
            "checkpoint": { "storage": { "type": "pvc" } }, "networking": { "hostNames": "AllWorkers" },
        });
        let plan = plan_of("x", &spec);
        let mut gang: Vec<_> = [1, 2].iter().flat_map(|number| built(&plan, *number).jobs).collect();
        let errand = command_job(&plan, "x-checkpoints-1".into(), &[]).unwrap();
        let board = pods_of(board(&plan).unwrap().deployment.spec.unwrap().template);
        let mut others = vec![board, pods_of(errand.spec.unwrap().template)];
        let namesake = plan.identity.uid.replace('1', "2");
        let mut theirs = before_0_2("worker");
        theirs.insert(labels::UID.to_owned(), namesake);
        others.push(theirs);
        others.push([("app", "training-job"), ("training-job", "x")].map(|(k, v)| (k.to_owned(), v.to_owned())).into());
        let pods = gang.drain(..).map(|job| pods_of(job.spec.unwrap().template));
        let pods: Vec<_> = pods.chain([before_0_2("worker")]).collect();

        let policy = network_policy(&plan).unwrap().spec.unwrap().pod_selector.unwrap();
        assert_eq!(policy.match_expressions, None);
        let service = built(&plan, 1).service.spec.unwrap().selector.unwrap();
        let of_all = [policy.match_labels.unwrap(), service, labels::gang_selector(&plan)];
        let selects = |selector: &BTreeMap<String, String>, pod: &BTreeMap<String, String>| {
            selector.iter().all(|(key, value)| pod.get(key) == Some(value))
        };
        for selector in &of_all {
            assert!(pods.iter().all(|pod| selects(selector, pod)), "{selector:?} of {pods:?}");
            assert!(!others.iter().any(|pod| selects(selector, pod)), "{selector:?} of {others:?}");
            assert!(selector.keys().all(|key| key.contains('/')), "{selector:?}: others may use such a label");
        }
        let workers = labels::worker_selector(&plan);
        for pod in &pods {
            assert_eq!(selects(&workers, pod), pod["component"] == "worker", "{pod:?}");
            assert!(labels::incarnation(pod).is_some(), "{pod:?}");
        }
        others.push(pods_of(upkeep(&plan, plan::Upkeep::Copy).unwrap().spec.unwrap().template));
        assert!(!others.iter().any(|pod| selects(&workers, pod)), "{others:?}");
        assert!(others.iter().all(|pod| !pod.contains_key(labels::ROLE)), "only members of the gang have a role");
    }
}

#[test]
fn killed_agent_is_restarted_where_cluster_supports_it() {
    let mut plan = plan_of("x", &json!({ "model": "m", "dataset": "d", "numWorkers": 2 }));
    let rules = |plan: &Plan| {
        let pod = built(plan, 1).jobs.remove(0).spec.unwrap().template.spec.unwrap();
        let training = training(&pod);
        (training.restart_policy.clone(), serde_json::to_value(&training.restart_policy_rules).unwrap())
    };
    let rule = json!({ "action": "Restart", "exitCodes": { "operator": "In", "values": [137] } });
    assert_eq!(rules(&plan), (Some("Never".to_owned()), json!([rule])));
    plan.runtime.restart_rules = false;
    assert_eq!(rules(&plan), (None, Value::Null));
}

#[test]
fn agent_image_is_mounted_where_cluster_supports_it() {
    let mut plan = plan_of("x", &json!({ "model": "m", "dataset": "d", "numWorkers": 2 }));
    let pod = |plan: &Plan| built(plan, 1).jobs.remove(0).spec.unwrap().template.spec.unwrap();
    let copied = pod(&plan);
    plan.runtime.delivery = Delivery::Image;
    let mounted = pod(&plan);
    assert_eq!((copied.init_containers.map(|all| all.len()), mounted.init_containers.clone()), (Some(1), None));
    assert_eq!(copied.containers[0].command, mounted.containers[0].command);
    assert_eq!(copied.containers[0].args, mounted.containers[0].args);
    let of_agent = |pod: &PodSpec| {
        let volumes =
            pod.volumes.iter().flatten().filter(|v| ["trainingjob-agent", "trainingjob-state"].contains(&&*v.name));
        let mounts = training(pod).volume_mounts.iter().flatten().filter(|m| m.mount_path.starts_with("/trainingjob"));
        json!({ "volumes": volumes.collect::<Vec<_>>(), "mounts": mounts.collect::<Vec<_>>() })
    };
    assert_eq!(
        of_agent(&mounted),
        json!({
            "volumes": [
                {
                    "name": "trainingjob-agent",
                    "image": { "reference": "registry.example/trainingjob-operator:1", "pullPolicy": "IfNotPresent" },
                },
                { "name": "trainingjob-state", "emptyDir": {} },
            ],
            "mounts": [
                { "name": "trainingjob-agent", "mountPath": "/trainingjob", "readOnly": true },
                { "name": "trainingjob-state", "mountPath": "/trainingjob/state" },
            ],
        })
    );
}

#[test]
fn agent_args_reflect_monitoring_and_failure_policy() {
    const ANSWER_KEY: &str = "--answer-key=/etc/training-config/.gang/answers";
    let args = |mut fields: Value| {
        fields["checkpoint"] = json!({ "enabled": false });
        let pod = pod_of(&fields);
        let args = agent_args(training(&pod)).iter().skip(8).filter(|arg| !arg.starts_with("--env="));
        args.cloned().collect::<Vec<_>>()
    };
    assert_eq!(
        args(json!({ "monitoring": { "enabled": false } })),
        ["--hang-timeout=1800", "--hang-idle-timeout=3600"]
    );
    let all = args(json!({
        "failurePolicy": { "nanPolicy": "Fail", "hang": { "timeoutSeconds": 60, "idleTimeoutSeconds": 900, "action": "Restart" } },
        "monitoring": { "metricsPort": 9000, "progress": { "patterns": [r"(?P<loss>\S+)$(x)", "(?P<a>.)"] } },
        "successPolicy": { "targetAccuracy": 0.9, "targetLoss": 0.1, "earlyStoppingPatience": 3 },
    }));
    let expected = [
        "--metrics-port=9000",
        ANSWER_KEY,
        r"--progress-pattern=(?P<loss>\S+)$$(x)",
        "--progress-pattern=(?P<a>.)",
        "--nan-policy=fail",
        "--hang-timeout=60",
        "--hang-idle-timeout=900",
        "--hang-policy=fail",
        "--watch-metric=accuracy",
        "--watch-metric=loss",
        "--watch-metric=eval_loss",
        "--watch-metric=val_loss",
        "--watch-metric=validation_loss",
        "--watch-metric=valid_loss",
    ];
    assert_eq!(all, expected);
    let stopping = json!({ "metric": "f1", "mode": "max", "patience": 1 });
    assert_eq!(
        args(json!({ "successPolicy": { "earlyStopping": stopping } })),
        ["--metrics-port=8080", ANSWER_KEY, "--hang-timeout=1800", "--hang-idle-timeout=3600", "--watch-metric=f1"]
    );
    let objective = |fields: Value| args(json!({ "monitoring": { "objective": fields } })).split_off(4);
    assert_eq!(objective(json!({ "metric": "$(f1)" })), ["--objective=$$(f1)"]);
    assert_eq!(
        objective(json!({ "metric": "f1", "mode": "max", "rungs": { "minStep": 100, "factor": 3 } })),
        ["--objective=f1", "--objective-mode=max", "--objective-rungs=100:3"]
    );
}

#[test]
fn prometheus_finds_the_agent() {
    let found = |fields: Value| {
        let template = template_of(&fields);
        let annotations = template.metadata.unwrap().annotations.unwrap();
        let ports = training(template.spec.as_ref().unwrap()).ports.clone().unwrap_or_default();
        let ports: Vec<_> =
            ports.into_iter().map(|port| (port.name.unwrap_or_default(), port.container_port)).collect();
        (annotations.get("prometheus.io/port").cloned(), ports)
    };
    let metrics = |port: i32| vec![("metrics".to_owned(), port)];
    assert_eq!(found(json!({})), (Some("8080".into()), metrics(8080)));
    assert_eq!(found(json!({ "monitoring": { "metricsPort": 9000 } })), (Some("9000".into()), metrics(9000)));
    assert_eq!(found(json!({ "monitoring": { "enabled": false } })), (None, vec![]));
    // Two workers on one node would want the same port of it.
    let host = json!({ "podTemplate": { "spec": { "hostNetwork": true } } });
    assert_eq!(found(host), (Some("8080".into()), vec![]));
}

#[test]
fn agent_in_host_network_listens_on_pod_address() {
    let source = |fields: Value| {
        let pod = pod_of(&fields);
        let variables = training(&pod).env.clone().unwrap_or_default();
        let found = variables.into_iter().find(|variable| variable.name == "TRAININGJOB_LISTEN_ADDRESS");
        found.map(|variable| variable.value_from.unwrap().field_ref.unwrap().field_path)
    };
    let host = json!({ "podTemplate": { "spec": { "hostNetwork": true } } });
    assert_eq!((source(host).as_deref(), source(json!({}))), (Some("status.podIP"), None));
}

#[test]
fn labels_and_annotations_reach_every_object() {
    let plan = plan_of(
        "x",
        &json!({
            "dataset": "hf://n/d", "cache": { "pvcName": "c" }, "numWorkers": 2, "output": "s3://results/o", "framework": "none", "image": "i",
            "roles": [{ "name": "actor" }], "scheduling": { "gang": "volcano", "schedulerName": "volcano" },
            "checkpoint": { "storage": { "type": "pvc" } }, "monitoring": { "tensorboardEnabled": true },
            "labels": { "team": "vision", "argocd.argoproj.io/instance": "app" },
            "annotations": { "example.com/cost": "7", "prometheus.io/scrape": "false", "argocd.argoproj.io/sync-options": "Prune=true" },
            "podTemplate": { "metadata": { "labels": { "team": "speech" } } },
        }),
    );
    let Objects { service, config, claim, jobs } = built(&plan, 1);
    let claim = claim.unwrap().metadata;
    let board = board(&plan).unwrap();
    let mut all =
        vec![service.metadata, config.metadata, claim.clone(), board.service.metadata, board.deployment.metadata];
    let mut pods = vec![board.deployment.spec.unwrap().template.metadata.unwrap()];
    let others = [Upkeep::Fetch, Upkeep::Copy, Upkeep::Publish].map(|task| upkeep(&plan, task).unwrap());
    let errand = command_job(&plan, "x-errand".to_owned(), &[]).unwrap();
    for job in jobs.into_iter().chain(others).chain([errand]) {
        all.push(job.metadata);
        pods.push(job.spec.unwrap().template.metadata.unwrap());
    }
    all.push(network_policy(&plan).unwrap().metadata);
    all.push(keys(&plan, &[0; 32], &AnswerKey::parse("3c".repeat(32).as_bytes()).unwrap()).unwrap().metadata);
    let Some(PodGroup::Volcano(group)) = pod_group(&plan) else { panic!("it has a group") };
    all.push(group.metadata);
    for meta in all.iter().chain(&pods) {
        let is_pod = pods.contains(meta) && !meta.labels.as_ref().unwrap().values().any(|value| value == "tensorboard");
        assert_eq!(meta.labels.as_ref().unwrap()["team"], if is_pod { "speech" } else { "vision" }, "{meta:?}");
        let annotations = meta.annotations.as_ref().unwrap();
        assert_eq!((&*annotations["example.com/cost"], &*annotations["prometheus.io/scrape"]), ("7", "false"));
    }
    // The claim stays when the job goes: whatever the labels say, it is no Application's.
    assert_eq!(claim.annotations.unwrap()["argocd.argoproj.io/sync-options"], "Prune=false");
    assert!(!claim.labels.unwrap().contains_key("argocd.argoproj.io/instance"));
    let mut refused = plan.clone();
    refused.identity.labels.insert(labels::MANAGED_BY.to_owned(), "me".to_owned());
    assert_eq!(labels::common(&refused), labels::common(&plan));
}

#[test]
fn backend_sets_variable_that_framework_reads() {
    let read = |framework: &str, backend: &str, gpus: u16, own: Value| {
        let networking = if backend.is_empty() { json!({}) } else { json!({ "backend": backend }) };
        let pod = pod_of(
            &json!({ "framework": framework, "image": "i", "networking": networking, "gpusPerWorker": gpus, "env": own }),
        );
        let names = ["PADDLE_DISTRI_BACKEND", "JAX_CPU_COLLECTIVES_IMPLEMENTATION"];
        let found =
            names.into_iter().flat_map(|name| env(training(&pod), name).into_iter().map(move |value| (name, value)));
        found.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
    };
    for (framework, backend, gpus, expected) in [
        ("paddle", "gloo", 0, "PADDLE_DISTRI_BACKEND=gloo"),
        ("paddle", "gloo", 1, "PADDLE_DISTRI_BACKEND=gloo"),
        ("paddle", "", 0, ""),
        ("paddle", "nccl", 1, ""),
        ("paddle", "mpi", 0, ""),
        ("jax", "gloo", 0, "JAX_CPU_COLLECTIVES_IMPLEMENTATION=gloo"),
        ("jax", "mpi", 0, "JAX_CPU_COLLECTIVES_IMPLEMENTATION=mpi"),
        ("jax", "mpi", 8, ""),
        ("jax", "", 0, ""),
        ("pytorch", "gloo", 0, ""),
        ("tensorflow", "gloo", 0, ""),
    ] {
        assert_eq!(read(framework, backend, gpus, json!([])), expected, "{framework} {backend} {gpus}");
    }
    let own = json!([{ "name": "PADDLE_DISTRI_BACKEND", "value": "xccl" }]);
    assert_eq!(read("paddle", "gloo", 0, own), "PADDLE_DISTRI_BACKEND=xccl");
}

#[test]
fn job_labels_become_tracker_run_tags() {
    let (long_value, long_key) = ("v".repeat(63), format!("{}.example/k", "d".repeat(243)));
    let pod = pod_of(&json!({
        "labels": { "team": "vision", "budget": long_value, long_key: "v", "mlflow.runName": "mine", "tuning_job_uid": "u", "attempt": "9" },
        "monitoring": { "mlflowTrackingUri": "http://mlflow.example:5000", "wandbProject": "p" },
    }));
    let tags: Value = serde_json::from_str(env(training(&pod), "MLFLOW_RUN_CONTEXT")[0]).unwrap();
    let expected = json!({ "mlflow.runName": "x-attempt-$$(ATTEMPT)", "training_job": "x", "namespace": "ml-training",
                           "attempt": "$$(ATTEMPT)", "team": "vision", "budget": long_value });
    assert_eq!(tags, expected);
    let tags = "x,ml-training,attempt-$$(ATTEMPT),attempt=9,mlflow.runName=mine,team=vision,tuning_job_uid=u";
    assert_eq!(env(training(&pod), "WANDB_TAGS"), [tags]);
}

#[test]
fn trackers_get_attempt_name_and_secret_keys() {
    let pod = pod_of(&json!({
        "monitoring": {
            "mlflowTrackingUri": "http://mlflow.example:5000", "mlflowExperiment": "cost $(x)", "wandbProject": "p",
            "trackerSecret": "keys", "tensorboardEnabled": true,
        },
        "output": "pvc://out/runs",
        "env": [{ "name": "WANDB_NAME", "value": "mine" }, { "name": "WANDB_API_KEY", "value": "mine" }],
    }));
    let training = training(&pod);
    let one = |name: &str| env(training, name)[0].to_owned();
    assert_eq!(one("MLFLOW_TRACKING_URI"), "http://mlflow.example:5000");
    assert_eq!(one("MLFLOW_EXPERIMENT_NAME"), "cost $$(x)");
    assert_eq!(one("MLFLOW_RUN_NAME"), "x-attempt-$$(ATTEMPT)");
    let tags: Value = serde_json::from_str(&one("MLFLOW_RUN_CONTEXT")).unwrap();
    let expected = json!({ "mlflow.runName": "x-attempt-$$(ATTEMPT)", "training_job": "x", "namespace": "ml-training",
                           "attempt": "$$(ATTEMPT)" });
    assert_eq!(tags, expected);
    assert_eq!((one("WANDB_PROJECT"), one("WANDB_RUN_GROUP")), ("p".into(), "x".into()));
    assert_eq!(one("WANDB_TAGS"), "x,ml-training,attempt-$$(ATTEMPT)");
    assert_eq!((env(training, "WANDB_NAME"), env(training, "WANDB_API_KEY")), (vec!["mine"], vec!["mine"]));
    let password = training.env.iter().flatten().find(|v| v.name == "MLFLOW_TRACKING_PASSWORD").unwrap();
    let key = password.value_from.clone().unwrap().secret_key_ref.unwrap();
    assert_eq!((key.name.as_str(), key.key.as_str(), key.optional), ("keys", "MLFLOW_TRACKING_PASSWORD", Some(true)));
    for name in ["TENSORBOARD_LOG_DIR", "TENSORBOARD_LOGGING_DIR"] {
        assert_eq!(one(name), "/out/tensorboard");
    }

    let without = pod_of(&json!({}));
    let mut names = variables(self::training(&without)).into_iter().map(|(name, _)| name);
    let trackers = ["MLFLOW_", "WANDB_", "TENSORBOARD_"];
    assert_eq!(names.find(|name| trackers.iter().any(|t| name.starts_with(t))), None);
}

/// A spec with a TensorBoard and these fields.
fn board_of(fields: &Value) -> Option<Board> {
    let mut spec =
        json!({ "model": "m", "dataset": "d", "numWorkers": 2, "monitoring": { "tensorboardEnabled": true } });
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    board(&plan_of("x", &spec))
}

#[test]
fn tensorboard_deployment_and_service() {
    let fields = json!({ "output": "pvc://out/runs", "numWorkers": 1, "imagePullSecrets": [{ "name": "registry" }] });
    let Board { deployment, service } = board_of(&fields).unwrap();
    insta::assert_json_snapshot!("tensorboard", json!({ "deployment": deployment, "service": service }));
}

#[test]
fn tensorboard_mounts_volume_that_workers_write() {
    let volume = |fields: Value| {
        let pod = board_of(&fields).map(|board| board.deployment.spec.unwrap().template.spec.unwrap());
        pod.map(|pod| (serde_json::to_value(&pod.volumes.unwrap()[0]).unwrap(), pod.affinity.is_some()))
    };
    let claim = |name: &str| json!({ "name": "logs", "persistentVolumeClaim": { "claimName": name } });
    let storage = |storage: Value| json!({ "checkpoint": { "storage": storage } });
    assert_eq!(volume(storage(json!({ "type": "pvc" }))), Some((claim("x-checkpoints"), false)));
    let one = json!({ "numWorkers": 1, "checkpoint": { "storage": { "type": "pvc", "pvcName": "mine" } }, "output": "pvc://out" });
    assert_eq!(volume(one), Some((claim("mine"), true)), "beside the worker, since one node may hold the volume");
    let nfs = json!({ "type": "nfs", "nfsServer": "s", "nfsPath": "/p" });
    let mounted = json!({ "name": "logs", "nfs": { "server": "s", "path": "/p" } });
    assert_eq!(volume(json!({ "numWorkers": 1, "checkpoint": { "storage": nfs } })), Some((mounted, false)));
    assert_eq!(volume(json!({ "output": "pvc://out" })), Some((claim("out"), false)));
    let off = json!({ "output": "pvc://out", "checkpoint": { "enabled": false, "storage": { "type": "pvc" } } });
    assert_eq!(volume(off), Some((claim("out"), false)));
    assert_eq!(volume(json!({})), None);
}

/// MetricHistories and users find the workers by these labels. A TensorBoard is not a worker.
#[test]
fn tensorboard_is_not_labelled_as_worker() {
    let Board { deployment, service } = board_of(&json!({ "output": "pvc://out" })).unwrap();
    let spec = deployment.spec.unwrap();
    let pod = spec.template.metadata.unwrap().labels.unwrap();
    assert!(
        [labels::MANAGED_BY, labels::TRAINING_JOB, labels::ROLE].iter().all(|label| !pod.contains_key(*label)),
        "{pod:?}"
    );
    assert_eq!(spec.selector.match_labels.as_ref(), Some(&pod));
    assert_eq!(service.spec.unwrap().selector, Some(pod.clone()));
    let plan = plan_of("x", &json!({ "model": "m", "dataset": "d", "numWorkers": 2 }));
    assert!(labels::gang_selector(&plan).iter().any(|(key, value)| pod.get(key) != Some(value)));
}

#[test]
fn gang_variables_are_reserved_and_attempt_ones_not_in_pod() {
    let user = ["MODEL", "DATASET", "OUTPUT_DIR", "CHECKPOINT_FREQUENCY", "PYTHONUNBUFFERED"];
    for framework in ["pytorch", "tensorflow", "jax"] {
        let pod = pod_of(&json!({ "framework": framework, "output": "pvc://o" }));
        let names: Vec<&str> = variables(training(&pod)).into_iter().map(|(name, _)| name).collect();
        for name in &names {
            assert!(is_reserved(name) || user.contains(name) || name.starts_with("NCCL_"), "{name}");
        }
        for name in ["ATTEMPT", "MASTER_PORT", "PET_MASTER_PORT", "RESUME_FROM_CHECKPOINT"] {
            assert!(!names.contains(&name) && is_reserved(name), "{name}");
        }
    }
}

/// The kubelet expands what the container has, and would leave anything else as it is.
#[test]
fn container_env_has_only_kubelet_values_and_others_refer_to_it() {
    for framework in ["pytorch", "tensorflow", "jax"] {
        let pod = pod_of(&json!({ "framework": framework, "output": "pvc://o", "hyperparameters": { "epochs": 1 } }));
        let of_container: Vec<&str> = training(&pod).env.iter().flatten().map(|v| v.name.as_str()).collect();
        assert_eq!(of_container, ["POD_NAME", "POD_UID", "NODE_NAME", "NODE_RANK"]);
        for (name, value) in variables(training(&pod)) {
            let value = value.replace("$$", "");
            for reference in value.split("$(").skip(1) {
                let referred = reference.split(')').next().unwrap();
                assert!(of_container.contains(&referred), "{name} refers to {referred}");
            }
        }
    }
}

/// What the kubelet makes of a text, with the variables `known`.
fn by_kubelet(text: &str, known: &[(&str, &str)]) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
            match known.iter().find(|(known, _)| *known == name) {
                Some((_, value)) => out.push_str(value),
                None => out.push_str(&format!("$({name})")),
            }
            rest = after;
        } else {
            out.push('$');
        }
    }
    out + rest
}

#[test]
fn user_references_to_agent_variables_reach_agent() {
    let ours = "$(RANK)";
    for (text, agent_has) in [
        (ours, "$(RANK)"),
        ("--rank=$(RANK)/$(MODEL)", "--rank=$(RANK)/$(MODEL)"),
        // The kubelet would turn two dollars into one. Here the agent does so.
        ("$$(RANK)", "$$(RANK)"),
        ("$$$(RANK)", "$$$(RANK)"),
        ("$(POD_NAME)", "x-0"),
        ("$$(POD_NAME)", "$(POD_NAME)"),
        // The kubelet handles all other dollars and brackets as usual.
        ("$(date)", "$(date)"),
        ("$$(date)", "$(date)"),
        ("(RANK) ${RANK} $RANK $(RANK", "(RANK) ${RANK} $RANK $(RANK"),
        ("f(RANK)(MODEL)", "f(RANK)(MODEL)"),
        ("$(rank) $( RANK)", "$(rank) $( RANK)"),
        ("cost: 5$ (RANK)", "cost: 5$ (RANK)"),
    ] {
        let pod = pod_of(&json!({
            "command": ["run", text], "env": [{ "name": "OWN", "value": text }],
            "checkpoint": { "resumeArgs": [text], "storage": { "type": "pvc" } },
            "podTemplate": { "spec": { "containers": [
                { "name": "training", "env": [{ "name": "MORE", "value": text }] },
            ] } },
        }));
        let training = training(&pod);
        // As if a user's ConfigMap had brought a RANK.
        let expanded = |text: &str| by_kubelet(text, &[("POD_NAME", "x-0"), ("RANK", "theirs"), ("MODEL", "theirs")]);
        let resume = agent_args(training).iter().find_map(|arg| arg.strip_prefix("--resume-arg=")).unwrap();
        for found in
            [training.args.as_ref().unwrap().last().unwrap(), resume, env(training, "OWN")[0], env(training, "MORE")[0]]
        {
            assert_eq!(expanded(found), agent_has, "{text}");
        }
    }
    // The kubelet expands a name that the user has set.
    let pod = pod_of(&json!({ "args": ["$(MODEL)"], "env": [{ "name": "MODEL", "value": "mine" }] }));
    assert_eq!(training(&pod).args.as_ref().unwrap().last().unwrap(), "$(MODEL)");
}

#[test]
fn user_variable_replaces_operator_variable() {
    let pod = pod_of(&json!({
        "env": [{ "name": "MODEL", "value": "mine" }, { "name": "WHO", "value": "$(NODE_RANK)" }],
        "podTemplate": { "spec": { "containers": [{ "name": "training", "env": [
            { "name": "DATASET", "valueFrom": { "configMapKeyRef": { "name": "c", "key": "k" } } },
            { "name": "WHO", "value": "me" },
        ] }] } },
    }));
    let training = training(&pod);
    assert_eq!(env(training, "MODEL"), ["mine"]);
    assert_eq!(env(training, "DATASET"), ["(from)"]);
    assert_eq!(env(training, "WHO"), ["me"]);
    let of_agent: Vec<&str> = agent_args(training).iter().filter_map(|arg| arg.strip_prefix("--env=")).collect();
    assert!(of_agent.iter().all(|var| !var.starts_with("MODEL=") && !var.starts_with("DATASET=")), "{of_agent:?}");
}

#[test]
fn unset_model_and_dataset_set_no_variable() {
    let pod = pod_of(&json!({ "model": null, "dataset": null }));
    let none: Vec<&str> = Vec::new();
    assert_eq!((env(training(&pod), "MODEL"), env(training(&pod), "DATASET")), (none.clone(), none));
    let spec = json!({ "dataset": "d", "numWorkers": 1, "gpusPerWorker": 0 });
    let data = built(&plan_of("x", &spec), 1).config.data.unwrap();
    assert_eq!((data.get("model"), data.get("dataset").map(String::as_str)), (None, Some("d")));
}

#[test]
fn dollar_references_in_text_are_escaped() {
    let pod = pod_of(&json!({ "model": "a$(b)$c" }));
    assert_eq!(env(training(&pod), "MODEL"), ["a$$(b)$$c"]);
}

#[test]
fn tf_config_length_matches_plan() {
    for workers in [1, 2, 10, 11, 1000] {
        let pod = pod_of(&json!({ "framework": "tensorflow", "numWorkers": workers }));
        let text =
            env(training(&pod), "TF_CONFIG")[0].replace("$$", "$").replace("$(NODE_RANK)", &(workers - 1).to_string());
        let expected = plan::hosts_bytes("x", [(RoleName::WORKER, workers)].into_iter());
        assert_eq!("--env=TF_CONFIG=".len() + text.len() + 1, expected);
        let parsed: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(parsed["cluster"]["worker"].as_array().unwrap().len(), usize::from(workers));
    }
}

#[test]
fn user_shared_memory_replaces_operator_volume() {
    for fields in [
        json!({ "volumes": [{ "name": "big", "emptyDir": {} }], "volumeMounts": [{ "name": "big", "mountPath": "/dev/shm/" }] }),
        json!({ "podTemplate": { "spec": {
            "volumes": [{ "name": "big", "emptyDir": {} }],
            "containers": [{ "name": "training", "volumeMounts": [{ "name": "big", "mountPath": "/dev/shm" }] }],
        } } }),
    ] {
        let pod = pod_of(&fields);
        assert!(pod.volumes.iter().flatten().all(|volume| volume.name != "trainingjob-shm"));
        let mounts: Vec<&str> = training(&pod)
            .volume_mounts
            .iter()
            .flatten()
            .filter(|mount| mount.mount_path.starts_with("/dev/shm"))
            .map(|mount| mount.name.as_str())
            .collect();
        assert_eq!(mounts, ["big"]);
        let clears = training(&pod).args.iter().flatten().any(|arg| arg == "--clear-shm");
        assert!(!clears, "it may be the node's");
    }
}

/// The program must not delete what another container may have put there.
#[test]
fn shared_memory_is_cleared_unless_another_container_mounts_it() {
    let clears = |containers: &str| {
        let mount = json!([{ "name": "trainingjob-shm", "mountPath": "/dev/shm" }]);
        let other = json!({ "name": "helper", "image": "i", "volumeMounts": mount });
        let mut spec = json!({ "containers": [{ "name": "training" }], "initContainers": [] });
        spec[containers].as_array_mut().unwrap().push(other);
        let pod = pod_of(&json!({ "podTemplate": { "spec": spec } }));
        training(&pod).args.iter().flatten().any(|arg| arg == "--clear-shm")
    };
    assert!(!clears("containers") && !clears("initContainers"));
    let args = training(&pod_of(&json!({}))).args.clone().unwrap();
    assert!(args.contains(&"--clear-shm".to_owned()) && args.contains(&"--clear-locks".to_owned()), "{args:?}");
}

#[test]
fn template_volume_replaces_spec_volume_entirely() {
    let pod = pod_of(&json!({
        "volumes": [{ "name": "scratch", "emptyDir": {} }],
        "podTemplate": { "spec": { "volumes": [{ "name": "scratch", "hostPath": { "path": "/scratch" } }] } },
    }));
    let volumes: Vec<_> = pod.volumes.iter().flatten().filter(|volume| volume.name == "scratch").collect();
    assert_eq!(volumes.len(), 1);
    assert!(volumes[0].empty_dir.is_none() && volumes[0].host_path.is_some());
}

#[test]
fn host_network_pod_uses_cluster_dns() {
    let policy = |spec: Value| pod_of(&json!({ "podTemplate": { "spec": spec } })).dns_policy;
    assert_eq!(policy(json!({ "hostNetwork": true })).as_deref(), Some("ClusterFirstWithHostNet"));
    assert_eq!(policy(json!({ "hostNetwork": true, "dnsPolicy": "None" })).as_deref(), Some("None"));
    assert_eq!(policy(json!({})), None);
}

#[test]
fn agent_grace_derives_from_pod_grace() {
    for (pod, agent) in [(60, 45), (120, 90), (1, 1), (0, 1)] {
        let pod = pod_of(&json!({ "podTemplate": { "spec": { "terminationGracePeriodSeconds": pod } } }));
        assert_eq!(training(&pod).args.as_ref().unwrap()[2], format!("--grace-seconds={agent}"));
    }
}

/// Kubernetes counts a pod's grace from before its hook runs, the agent its own from SIGTERM, which comes after.
#[test]
fn sleeping_hook_is_deducted_from_agent_grace() {
    for (hook, agent) in [
        (json!({ "sleep": { "seconds": 20 } }), 30),
        (json!({ "sleep": { "seconds": 59 } }), 1),
        (json!({ "sleep": { "seconds": 0 } }), 45),
        // How long these take is not known in advance.
        (json!({ "exec": { "command": ["sleep", "20"] } }), 45),
        (json!({ "httpGet": { "port": 80 } }), 45),
    ] {
        let containers = json!([{ "name": "training", "lifecycle": { "preStop": hook } }]);
        let pod = pod_of(&json!({ "podTemplate": { "spec": { "containers": containers } } }));
        assert_eq!(training(&pod).args.as_ref().unwrap()[2], format!("--grace-seconds={agent}"), "{hook}");
        assert_eq!(pod.termination_grace_period_seconds, Some(60));
    }
}

#[test]
fn topology_preference_is_added_to_template_affinity() {
    let pod = pod_of(&json!({
        "scheduling": { "topologyKey": "zone" },
        "podTemplate": { "spec": { "affinity": { "podAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [
            { "weight": 1, "podAffinityTerm": { "topologyKey": "rack" } },
        ] } } } },
    }));
    let terms =
        pod.affinity.unwrap().pod_affinity.unwrap().preferred_during_scheduling_ignored_during_execution.unwrap();
    let keys: Vec<&str> = terms.iter().map(|term| term.pod_affinity_term.topology_key.as_str()).collect();
    assert_eq!(keys, ["rack", "zone"]);
}

/// What no podTemplate may take from a worker.
fn holds_the_gang_together(template: &PodTemplateSpec) {
    let pod = template.spec.as_ref().unwrap();
    assert_eq!(pod.restart_policy.as_deref(), Some("Never"));
    assert_eq!(pod.subdomain.as_deref(), Some("x-headless"));
    assert_eq!(pod.hostname, None);
    let agent = &pod.init_containers.as_ref().unwrap()[0];
    assert_eq!(
        (agent.name.as_str(), agent.image.as_deref()),
        ("agent", Some("registry.example/trainingjob-operator:1"))
    );
    let training = training(pod);
    assert_eq!(training.name, "training");
    assert_eq!(training.command.as_deref().unwrap(), ["/trainingjob/agent"]);
    assert_eq!(training.args.as_ref().unwrap()[0], "run");
    for name in ["NODE_RANK", "RANK", "MASTER_ADDR", "WORLD_SIZE"] {
        assert_eq!(env(training, name).len(), 1, "{name}");
    }
    let mounts = training.volume_mounts.iter().flatten();
    assert_eq!(mounts.filter(|m| m.mount_path == "/trainingjob" && m.name == "trainingjob-agent").count(), 1);
    let mounts = training.volume_mounts.iter().flatten();
    assert_eq!(
        mounts.filter(|m| m.mount_path == "/trainingjob/state" && m.sub_path.as_deref() == Some("state")).count(),
        1
    );
    assert_eq!(training.restart_policy.as_deref(), Some("Never"));
    assert_eq!(training.restart_policy_rules.as_ref().map(Vec::len), Some(1));
    let volumes = pod.volumes.iter().flatten();
    assert_eq!(volumes.filter(|v| v.name == "trainingjob-agent" && v.empty_dir.is_some()).count(), 1);
    let labels = template.metadata.as_ref().unwrap().labels.as_ref().unwrap();
    assert_eq!(labels["training-job"], "x");
    assert_eq!(labels[labels::INCARNATION], "1");
}

/// Pieces of a pod template, by their position, and whether they are allowed.
fn pieces() -> Vec<(&'static str, Value, bool)> {
    let mine = json!([{ "name": "mine", "emptyDir": {} }]);
    let ours = json!([{ "name": "trainingjob-agent", "hostPath": { "path": "/" } }]);
    vec![
        ("/metadata", json!({ "labels": { "team": "vision" } }), true),
        ("/metadata", json!({ "labels": { "training-job": "y" } }), false),
        ("/metadata", json!({ "annotations": { "a": "b" } }), true),
        ("/spec", json!({ "restartPolicy": "Never" }), true),
        ("/spec", json!({ "restartPolicy": "OnFailure" }), false),
        ("/spec", json!({ "hostNetwork": true, "shareProcessNamespace": true, "enableServiceLinks": true }), true),
        ("/spec", json!({ "hostname": "h" }), false),
        ("/spec", json!({ "subdomain": "s" }), false),
        ("/spec", json!({ "volumes": mine }), true),
        ("/spec", json!({ "volumes": ours }), false),
        ("/spec", json!({ "initContainers": [{ "name": "fetch", "image": "i", "command": ["sh"] }] }), true),
        ("/spec", json!({ "initContainers": [{ "name": "agent", "image": "i" }] }), false),
        ("/spec/containers/0", json!({ "image": "other", "workingDir": "/w", "stdin": true }), true),
        ("/spec/containers/0", json!({ "securityContext": { "runAsUser": 0 } }), true),
        ("/spec/containers/0", json!({ "command": ["sh"] }), false),
        ("/spec/containers/0", json!({ "args": ["x"] }), false),
        ("/spec/containers/0", json!({ "env": [{ "name": "MODEL", "value": "m" }] }), true),
        ("/spec/containers/0", json!({ "env": [{ "name": "NODE_RANK", "value": "0" }] }), false),
        ("/spec/containers/0", json!({ "volumeMounts": [{ "name": "trainingjob-shm", "mountPath": "/shm" }] }), true),
        (
            "/spec/containers/0",
            json!({ "volumeMounts": [{ "name": "trainingjob-shm", "mountPath": "/trainingjob" }] }),
            false,
        ),
        ("/spec/containers/1", json!({ "command": ["sh"], "env": [{ "name": "RANK", "value": "0" }] }), true),
        ("/spec/containers/1", json!({ "image": "" }), false),
    ]
}

proptest! {
    /// A later piece of the same field replaces an earlier one, so only what stands in the end counts.
    #[test]
    fn accepted_pod_template_never_breaks_gang(pieces in prop::sample::subsequence(pieces(), 0..=6).prop_shuffle()) {
        let helper = json!({ "name": "helper", "image": "i" });
        let mut template =
            json!({ "metadata": {}, "spec": { "containers": [{ "name": "training" }, helper], "initContainers": [] } });
        let mut allowed = std::collections::BTreeMap::new();
        for (place, fields, may) in pieces {
            for (key, value) in fields.as_object().unwrap() {
                template.pointer_mut(place).unwrap()[key] = value.clone();
                allowed.insert((place, key.clone()), may);
            }
        }
        let spec = json!({ "model": "m", "dataset": "d", "numWorkers": 2, "podTemplate": template });
        match resolved("x", &spec) {
            Ok(plan) => {
                prop_assert!(allowed.values().all(|may| *may), "accepted: {template}");
                holds_the_gang_together(&built(&plan, 1).jobs.remove(0).spec.unwrap().template);
            }
            Err(refusals) => {
                prop_assert_eq!(refusals.0.len(), allowed.values().filter(|may| !**may).count(), "{} {}", template, refusals);
            }
        }
    }
}

#[test]
fn job_with_checkpoints_in_bucket() {
    let spec = json!({
        "model": "m", "dataset": "d", "numWorkers": 2, "monitoring": { "enabled": false },
        "checkpoint": {
            "storage": { "type": "s3", "s3Bucket": "b", "endpoint": "http://minio:9000", "credentialsSecret": "keys" },
            "backup": { "destination": "gs://copies/x/", "credentialsSecret": "gcs" },
            "keepBest": { "metric": "eval_loss" },
            "resumeFrom": "run-1/checkpoint-5/",
            "verify": "Structure",
            "resumeArgs": ["--resume", "$(RESUME_FROM_CHECKPOINT)", "--lr", "$(HYPERPARAM_LEARNING_RATE)"],
        },
    });
    let plan = plan_of("x", &spec);
    let objects = built(&plan, 1);
    let policy = &objects.config.data.as_ref().unwrap()["checkpoints.json"];
    assert_eq!(
        serde_json::from_str::<Value>(policy).unwrap(),
        json!({
            "uid": "6f1f4d1e-0000-4000-8000-000000000001", "job": "x", "workers": 2, "port": 8080, "shared": false, "retention": 3,
            "keepBest": { "metric": "eval_loss", "max": false },
            "resumeFrom": "/checkpoints/run-1/checkpoint-5",
            "structureOnly": true,
            "store": { "uri": "s3://b/ml-training/x", "endpoint": "http://minio:9000", "credentials": "/etc/training-credentials/store" },
            "backup": {
                "place": { "uri": "gs://copies/x", "credentials": "/etc/training-credentials/backup" },
                "intervalSeconds": 1800,
            },
        })
    );
    let pod = pod_of(&spec);
    let args = training(&pod).args.clone().unwrap();
    let resume: Vec<_> = args.iter().filter_map(|arg| arg.strip_prefix("--resume-arg=")).collect();
    // The kubelet expands what it knows, and leaves the agent's variables alone.
    assert_eq!(resume, ["--resume", "$(RESUME_FROM_CHECKPOINT)", "--lr", "$(HYPERPARAM_LEARNING_RATE)"]);
    let secrets: Vec<_> = pod.volumes.iter().flatten().filter_map(|v| v.secret.as_ref()?.secret_name.clone()).collect();
    assert_eq!(secrets, ["keys", "gcs"]);
    assert!(variables(training(&pod)).iter().all(|(name, _)| !name.contains("KEY")), "nothing of them is a variable");
}

#[test]
fn checkpoint_upkeep_needs_no_gpu_and_only_its_folder() {
    let spec = json!({
        "model": "pvc://m", "dataset": "d", "numWorkers": 2, "gpusPerWorker": 8,
        "checkpoint": { "storage": { "type": "pvc" }, "backup": { "destination": "s3://copies/x" } },
        "scheduling": { "queue": "q", "nodeSelector": { "zone": "a" } },
    });
    let job = upkeep(&plan_of("x", &spec), plan::Upkeep::Copy).unwrap();
    insta::assert_json_snapshot!(job);
    let none = json!({ "model": "m", "dataset": "d", "numWorkers": 2, "checkpoint": { "enabled": false } });
    assert_eq!(upkeep(&plan_of("x", &none), plan::Upkeep::Copy), None);
}

#[test]
fn fetch_job_needs_no_gpu_no_queue_and_no_root() {
    let spec = json!({
        "model": "hf://org/model", "numWorkers": 2, "gpusPerWorker": 8, "credentialsSecret": "keys",
        "cache": { "pvcName": "cache", "path": "shared" },
        "data": [{ "name": "set", "uri": "s3://bucket/set", "mountPath": "/set" }],
        "scheduling": { "queue": "q", "nodeSelector": { "zone": "a" } },
    });
    insta::assert_json_snapshot!(upkeep(&plan_of("x", &spec), plan::Upkeep::Fetch).unwrap());
    let none = json!({ "model": "m", "dataset": "d", "numWorkers": 2 });
    assert_eq!(upkeep(&plan_of("x", &none), plan::Upkeep::Fetch), None);
}

fn mounts_of(pod: &PodSpec) -> Vec<(String, String, Option<String>)> {
    let mounts = training(pod).volume_mounts.iter().flatten();
    let ours = mounts.filter(|mount| mount.name == "trainingjob-cache" || mount.name.contains("data"));
    ours.map(|mount| (mount.name.clone(), mount.mount_path.clone(), mount.sub_path.clone())).collect()
}

#[test]
fn workers_mount_only_fetched_content_of_cache() {
    let mut job = job_of(
        "x",
        &json!({
            "model": "hf://org/model", "numWorkers": 2, "gpusPerWorker": 0, "credentialsSecret": "hub-token",
            "cache": { "pvcName": "cache", "path": "shared" },
            "data": [{ "name": "image", "uri": "oci://registry.test/a:1", "mountPath": "/image" }],
        }),
    );
    job.status = serde_json::from_value(json!({
        "data": [{ "name": "model", "uri": "hf://org/model@main", "revision": "0123", "key": "key" }],
    }))
    .unwrap();
    let plan = plan::resolve(&job, &runtime()).accepted().unwrap().clone();
    let pod = built(&plan, 1).jobs[0].spec.clone().unwrap().template.spec.unwrap();
    let mount = |name: &str, path: &str, sub: Option<&str>| (name.to_owned(), path.to_owned(), sub.map(str::to_owned));
    assert_eq!(
        mounts_of(&pod),
        [
            mount("trainingjob-cache", "/models", Some("shared/key/data")),
            mount("trainingjob-data-image", "/image", None),
        ]
    );
    assert!(!serde_json::to_string(&pod).unwrap().contains("hub-token"), "no worker has the credentials");
    let request = upkeep(&plan, plan::Upkeep::Fetch).unwrap().spec.unwrap().template.spec.unwrap();
    let args = request.containers[0].args.clone().unwrap().concat();
    assert!(args.contains(r#""revision":"0123""#), "what was resolved before is fetched again: {args}");
}

#[test]
fn single_worker_fetches_in_init_container() {
    let spec = json!({ "model": "hf://org/model", "numWorkers": 1, "gpusPerWorker": 0, "credentialsSecret": "keys" });
    let pod = pod_of(&spec);
    assert_eq!(
        mounts_of(&pod),
        [("trainingjob-cache".to_owned(), "/models".to_owned(), Some("links/model".to_owned()))]
    );
    let fetch = pod.init_containers.unwrap().into_iter().find(|init| init.name == "trainingjob-fetch").unwrap();
    let paths: Vec<_> = fetch.volume_mounts.iter().flatten().map(|mount| mount.mount_path.clone()).collect();
    assert_eq!(paths, ["/cache", "/etc/training-credentials/data", "/etc/training-config/.gang"]);
    assert!(fetch.args.iter().flatten().any(|arg| arg == "--metrics-port=8080"), "{:?}", fetch.args);
    let keys = pod.volumes.iter().flatten().find(|volume| volume.name == "trainingjob-answers").unwrap();
    let items = keys.secret.as_ref().unwrap().items.clone().unwrap();
    assert_eq!(items.iter().map(|item| item.key.as_str()).collect::<Vec<_>>(), ["answers"], "no key of the gang");
    let cache = pod.volumes.unwrap().into_iter().find(|volume| volume.name == "trainingjob-cache").unwrap();
    assert_eq!(cache.empty_dir.unwrap().size_limit.unwrap().0, (100_u64 << 30).to_string());
}

#[test]
fn shared_cache_limit_reaches_fetch_job() {
    let spec = |cache: serde_json::Value| json!({ "model": "hf://org/model", "numWorkers": 1, "gpusPerWorker": 0, "cache": cache });
    let request = |job: Job| {
        let args = job.spec.unwrap().template.spec.unwrap().containers[0].args.clone().unwrap();
        serde_json::from_str::<serde_json::Value>(args[1].strip_prefix("--request=").unwrap()).unwrap()
    };
    let limited = plan_of("x", &spec(json!({ "pvcName": "cache", "limit": "1Ki" })));
    let uses =
        protocol::inputs::CacheUses { jobs: [("key".to_owned(), "other".to_owned())].into(), ..Default::default() };
    let found = request(fetch_job(&limited, Some(uses)).unwrap());
    assert_eq!((&found["limit"]["bytes"], &found["limit"]["uses"]["jobs"]), (&json!(1024), &json!({ "key": "other" })));
    let unknown = request(fetch_job(&limited, None).unwrap());
    assert!(unknown["limit"]["uses"].is_null());
    let unlimited = request(fetch_job(&plan_of("x", &spec(json!({ "pvcName": "cache" }))), None).unwrap());
    assert!(unlimited["limit"].is_null());
    // Without a claim it is the size of a folder of the pod.
    assert_eq!(fetch_job(&plan_of("x", &spec(json!({ "limit": "1Ki" }))), None), None);
}

#[test]
fn network_policy_allows_operator_to_reach_fetch() {
    let spec =
        json!({ "model": "hf://org/model", "numWorkers": 2, "gpusPerWorker": 0, "cache": { "pvcName": "cache" } });
    let plan = plan_of("x", &spec);
    let policy = network_policy(&plan).unwrap().spec.unwrap();
    let labels = upkeep(&plan, plan::Upkeep::Fetch).unwrap().spec.unwrap().template.metadata.unwrap().labels.unwrap();
    let selector = policy.pod_selector.unwrap().match_labels.unwrap();
    assert!(selector.iter().all(|(key, value)| labels.get(key) == Some(value)), "{selector:?} of {labels:?}");
    let open = policy.ingress.into_iter().flatten().filter(|rule| rule.from.is_none());
    let ports: Vec<_> = open.flat_map(|rule| rule.ports.unwrap()).filter_map(|port| port.port).collect();
    assert_eq!(ports, [k8s_openapi::apimachinery::pkg::util::intstr::IntOrString::Int(8080)]);
}

#[test]
fn fetch_without_monitoring_serves_no_metrics() {
    let spec = json!({
        "model": "hf://org/model", "numWorkers": 2, "gpusPerWorker": 0, "cache": { "pvcName": "cache" },
        "monitoring": { "enabled": false },
    });
    let job = upkeep(&plan_of("x", &spec), plan::Upkeep::Fetch).unwrap();
    let pod = job.spec.unwrap().template.spec.unwrap();
    let container = &pod.containers[0];
    assert_eq!(container.args.as_ref().unwrap().len(), 2, "the command and its request: {:?}", container.args);
    assert!(container.env.is_none() && pod.volumes.unwrap().len() == 1);
}

#[test]
fn streaming_program_gets_address_and_credentials() {
    let data = json!([{ "name": "set", "uri": "s3://bucket/set", "access": "Stream", "env": "DATASET" }]);
    let pod = pod_of(&json!({ "numWorkers": 2, "gpusPerWorker": 0, "credentialsSecret": "keys", "data": data }));
    let args = training(&pod).args.clone().unwrap();
    assert!(args.contains(&"--env=DATASET=s3://bucket/set".to_owned()), "{args:?}");
    let secret = training(&pod).env_from.clone().unwrap().remove(0).secret_ref.unwrap().name;
    assert_eq!(secret, "keys");
    assert!(pod.init_containers.iter().flatten().all(|init| init.name != "trainingjob-fetch"));
}

/// Argo CD deletes an object that has the label, no owner and no place in git, because it takes it for an
/// application's.
#[test]
fn retained_claim_is_not_pruned_by_argo_cd() {
    const INSTANCE: &str = "app.kubernetes.io/instance";
    const ARGO_CD: &str = "argocd.argoproj.io/sync-options";
    let claim = |policy: &str| {
        let storage = json!({ "type": "pvc", "deletePolicy": policy });
        let spec = json!({ "model": "m", "dataset": "d", "numWorkers": 2, "checkpoint": { "storage": storage } });
        built(&plan_of("x", &spec), 1).claim.unwrap().metadata
    };
    let kept = claim("Retain");
    assert!(kept.owner_references.is_none());
    assert!(!kept.labels.unwrap().contains_key(INSTANCE));
    assert_eq!(kept.annotations.unwrap()[ARGO_CD], "Prune=false");
    let own = claim("Delete");
    assert!(own.owner_references.is_some() && own.annotations.is_none());
    assert_eq!(own.labels.unwrap()[INSTANCE], "x");
}

/// It parses what a hostile program may have written.
#[test]
fn checkpoint_upkeep_has_no_token_and_few_capabilities() {
    let pod = |fields: Value| {
        let mut spec = json!({
            "model": "m", "dataset": "d", "numWorkers": 2, "serviceAccountName": "team",
            "checkpoint": { "storage": { "type": "pvc" } },
        });
        spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let job = upkeep(&plan_of("x", &spec), plan::Upkeep::Copy).unwrap();
        serde_json::to_value(job.spec.unwrap().template.spec.unwrap()).unwrap()
    };
    let root = pod(json!({}));
    assert_eq!((&root["automountServiceAccountToken"], &root["serviceAccountName"]), (&json!(false), &json!("team")));
    let context = &root["containers"][0]["securityContext"];
    assert_eq!(context["capabilities"], json!({ "add": ["DAC_OVERRIDE", "FOWNER"], "drop": ["ALL"] }));
    assert_eq!(context["seccompProfile"], json!({ "type": "RuntimeDefault" }));

    let template = |pod: Value, container: Value| {
        let training = json!({ "name": "training", "securityContext": container });
        json!({ "podTemplate": { "spec": { "securityContext": pod, "containers": [training] } } })
    };
    let localhost = json!({ "type": "Localhost", "localhostProfile": "p.json" });
    let all = json!({ "capabilities": { "add": ["SYS_ADMIN"] }, "privileged": true, "runAsUser": 1000 });
    for (of_pod, of_container) in [
        (json!({ "runAsUser": 1000 }), json!({})),
        (json!({ "runAsUser": 0 }), all),
        (json!({ "runAsNonRoot": true }), json!({ "runAsNonRoot": true })),
    ] {
        let user = pod(template(of_pod.clone(), of_container));
        let context = &user["containers"][0]["securityContext"];
        assert_eq!(context["capabilities"], json!({ "drop": ["ALL"] }), "{of_pod}");
        assert_eq!((&context["privileged"], &context["allowPrivilegeEscalation"]), (&Value::Null, &json!(false)));
    }
    let own = pod(template(json!({ "seccompProfile": localhost }), json!({})));
    assert!(own["containers"][0]["securityContext"].get("seccompProfile").is_none());
    assert_eq!(own["securityContext"]["seccompProfile"], localhost);
    let own = pod(template(json!({}), json!({ "seccompProfile": localhost })));
    assert_eq!(own["containers"][0]["securityContext"]["seccompProfile"], localhost);
}

/// A gang that is placed as a whole: its PodGroup, and how its pods refer to it.
fn grouped(scheduling: &Value) -> Value {
    let spec = json!({
        "model": "m", "dataset": "d", "numWorkers": 3, "gpusPerWorker": 2, "scheduling": scheduling,
        "resources": { "requests": { "cpu": "1500m" }, "limits": { "cpu": "2", "memory": "8Gi" } },
        "podTemplate": { "spec": {
            "initContainers": [
                { "name": "fetch", "image": "i", "resources": { "requests": { "memory": "10Gi" } } },
                { "name": "logs", "image": "i", "restartPolicy": "Always", "resources": { "requests": { "cpu": "100m" } } },
            ],
            "containers": [{ "name": "side", "image": "i", "resources": { "limits": { "cpu": "250m", "memory": "1Gi" } } }],
        } },
    });
    let plan = plan_of("x", &spec);
    let job = as_posted(&plan, &built(&plan, 2).jobs[0]);
    let template = &job["spec"]["template"];
    let group = match pod_group(&plan).unwrap() {
        PodGroup::Volcano(group) => serde_json::to_value(group),
        PodGroup::Coscheduling(group) => serde_json::to_value(group),
        PodGroup::Native(group) => serde_json::to_value(group),
    };
    let mut group = group.unwrap();
    let owners = group["metadata"]["ownerReferences"].take();
    assert_eq!(owners[0]["kind"], "TrainingJob");
    assert_eq!(group["metadata"]["namespace"], "ml-training");
    json!({
        "apiVersion": group["apiVersion"], "kind": group["kind"], "name": group["metadata"]["name"], "spec": group["spec"],
        "queue": job["metadata"]["labels"].get(labels::QUEUE),
        "annotation": template["metadata"]["annotations"].get(labels::VOLCANO_GROUP),
        "label": template["metadata"]["labels"].get(labels::COSCHEDULING_GROUP),
        "schedulerName": template["spec"].get("schedulerName"),
        "schedulingGroup": template["spec"].get("schedulingGroup"),
    })
}

#[test]
fn volcano_gang_builds_volcano_pod_group() {
    // The most that a pod needs at a time: 10Gi before its containers, of which the two have 9Gi.
    assert_eq!(
        grouped(&json!({ "gang": "volcano", "queue": "research", "priority": "high" })),
        json!({
            "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "name": "x-6f1f4d1e",
            "spec": {
                "minMember": 3, "queue": "research", "priorityClassName": "high",
                "minResources": { "cpu": "5550m", "memory": "32212254720", "nvidia.com/gpu": "6" },
            },
            "queue": null, "annotation": "x-6f1f4d1e", "label": null, "schedulerName": "volcano", "schedulingGroup": null,
        })
    );
}

#[test]
fn coscheduling_gang_builds_plugin_pod_group() {
    assert_eq!(
        grouped(&json!({ "gang": "coscheduling", "queue": "research" })),
        json!({
            "apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup", "name": "x-6f1f4d1e",
            "spec": { "minMember": 3 },
            "queue": "research", "annotation": null, "label": "x-6f1f4d1e",
            "schedulerName": "scheduler-plugins-scheduler", "schedulingGroup": null,
        })
    );
    assert_eq!(grouped(&json!({ "gang": "coscheduling", "schedulerName": "mine" }))["schedulerName"], "mine");
}

#[test]
fn native_gang_builds_kubernetes_pod_group() {
    assert_eq!(
        grouped(&json!({ "gang": "native" })),
        json!({
            "apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "name": "x-6f1f4d1e",
            "spec": { "schedulingPolicy": { "gang": { "minCount": 3 } } },
            "queue": null, "annotation": null, "label": null, "schedulerName": null,
            "schedulingGroup": { "podGroupName": "x-6f1f4d1e" },
        })
    );
}

/// A gang that may run smaller is placed as soon as there is room for the smallest.
#[test]
fn pod_group_of_elastic_gang_requires_min_workers() {
    let spec = json!({
        "model": "m", "dataset": "d", "numWorkers": 3, "scheduling": { "gang": "volcano" },
        "elastic": { "minWorkers": 2, "maxWorkers": 4 }, "checkpoint": { "enabled": false },
        "resources": { "requests": { "cpu": "2" } },
    });
    let Some(PodGroup::Volcano(group)) = pod_group(&plan_of("x", &spec)) else { panic!("no group") };
    assert_eq!((group.spec.min_member, &group.spec.min_resources["cpu"].0[..]), (2, "4"));
}

/// A Job as it is posted.
fn as_posted(plan: &Plan, job: &Job) -> Value {
    with_group(plan, job).map_or_else(|| serde_json::to_value(job), serde_json::to_value).unwrap()
}

#[test]
fn group_is_all_that_is_added_to_a_job() {
    let spec = |scheduling: Value| json!({ "model": "m", "dataset": "d", "numWorkers": 2, "scheduling": scheduling });
    let plan = plan_of("x", &spec(json!({})));
    assert!(with_group(&plan, &built(&plan, 1).jobs[0]).is_none() && pod_group(&plan).is_none());
    let plan = plan_of("x", &spec(json!({ "gang": "native" })));
    let job = built(&plan, 1).jobs.remove(0);
    let mut whole = as_posted(&plan, &job);
    let added = whole["spec"]["template"]["spec"].as_object_mut().unwrap().remove("schedulingGroup");
    assert!(added.is_some());
    assert_eq!(whole, serde_json::to_value(&job).unwrap());
}
