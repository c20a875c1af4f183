//! The whole path on a real node: kubelet, containerd, torchrun, and the operator installed as its users would.
//!
//! What it needs is built by `make test`. One cluster serves all tests, each in a namespace of its own; it ends with
//! this program. With TRAININGJOB_TEST_KUBECONFIG another cluster serves, in which the operator already runs.

mod checkpoints;
mod delivery;
mod documents;
mod failures;
mod frameworks;
mod gang;
mod hostile;
mod lost;
mod mpi;
mod presets;
mod roles;
mod stores;
mod success;
mod trainers;
mod training;
mod world;

use harness::wait::eventually;
use harness::{root, wait};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::EvictParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use trainingjob_operator::api::State::{Completed, Failed, Initializing, Pending, Running, Suspended};
use trainingjob_operator::protocol::report::Report;
use world::{SOON, Space, attempt, condition, training, worker, world};

// ---- training

#[tokio::test]
async fn the_demo_trains_to_completed() {
    let Some(world) = world() else { return };
    let space = world.space("demo", json!({})).await;
    let mut example = example("demo");
    example["spec"]["hyperparameters"]["epochs"] = json!(4);
    let mut job = space.apply(example).await;
    let status = job.state(Completed).await;

    assert_eq!(job.states(), [Pending, Initializing, Running, Completed]);
    assert_eq!(status.restart_count, Some(0));
    // Each when it is true: a worker without a node does not initialize, one that pulls its image does not run.
    for pod in job.pods() {
        let conditions = pod.status.as_ref().unwrap().conditions.as_ref().unwrap();
        let placed = conditions.iter().find(|condition| condition.type_ == "PodScheduled").unwrap();
        let initializing = job.first(Initializing);
        assert!(
            condition(&initializing, "Scheduled").last_transition_time >= placed.last_transition_time.clone().unwrap()
        );
        let ended = training(&pod).unwrap().state.unwrap().terminated.unwrap();
        assert!(condition(&job.first(Running), "Running").last_transition_time >= ended.started_at.unwrap());
    }
    let workers = status.workers.unwrap();
    assert_eq!((workers.desired, workers.succeeded, workers.active, workers.failed), (2, 2, 0, 0));
    assert!(status.start_time.is_some() && status.completion_time.is_some() && status.duration.is_some());
    for rank in 0..2 {
        let pod = &job.pods()[rank];
        let log = String::from_utf8(space.logs(&pod.name_any())).unwrap();
        for epoch in 1..=4 {
            let line = format!("[rank {rank}/2] Epoch {epoch}/4 loss: ");
            assert!(log.contains(&line), "{line:?} is not in the log of worker {rank}:\n{log}");
        }
    }
    let mut saved: Vec<String> = folder(&space, "digits-checkpoints").await.map(|file| file.0).collect();
    saved.sort();
    assert_eq!(saved, ["checkpoint-2.pt", "checkpoint-4.pt"]);
    space.end().await;
}

#[tokio::test]
async fn restricted_namespaces() {
    let Some(world) = world() else { return };
    let space = world.space("restricted", json!({ "pod-security.kubernetes.io/enforce": "restricted" })).await;
    let mut admitted = example("restricted");
    admitted["spec"]["image"] = json!(world::DEMO_IMAGE);
    admitted["spec"]["hyperparameters"] = json!({ "epochs": 1 });
    let mut refused = admitted.clone();
    refused["metadata"]["name"] = json!("mnist-refused");
    refused["spec"].as_object_mut().unwrap().remove("podTemplate");
    let (mut admitted, mut refused) = (space.apply(admitted).await, space.apply(refused).await);

    let (told, status) = refused.condition("Scheduled", "False", "PodSecurity").await;
    assert_eq!(status.state, Some(Pending));
    let words = r#"violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false"#;
    assert!(told.message.contains(words), "{}", told.message);
    assert!(told.message.starts_with("2 of 2 workers have no pod: "), "{}", told.message);

    admitted.state(Completed).await;
    space.end().await;
}

#[tokio::test]
async fn logs_are_what_the_program_wrote() {
    // 50 MB, as fast as Python can write them.
    const BYTES: u32 = 2_500_000;
    const TIMES: usize = 20;
    let Some(world) = world() else { return };
    let space = world.space("bytes", json!({})).await;
    let mut job = space
        .submit(
            "bytes",
            json!({
                "command": ["python3", "/programs/bytes.py"],
                "env": [{ "name": "BYTES", "value": BYTES.to_string() }, { "name": "TIMES", "value": TIMES.to_string() }],
            }),
        )
        .await;
    job.state(Completed).await;
    let random = (0..BYTES).step_by(32).flat_map(|at: u32| sha256(at.to_string().as_bytes()));
    let mut wrote: Vec<u8> = Vec::new();
    for byte in random {
        if byte == b'\n' {
            wrote.pop_if(|last| *last == b'\r');
        }
        wrote.push(byte);
    }
    let wrote = wrote.repeat(TIMES);
    for pod in job.pods() {
        let shown = space.logs(&pod.name_any());
        let differs = shown.iter().zip(&wrote).position(|(a, b)| a != b);
        assert!(
            shown == wrote,
            "worker {}: {} of {} bytes, the first difference at {differs:?}",
            worker(&pod),
            shown.len(),
            wrote.len()
        );
    }
    space.end().await;
}

/// What every framework finds in each worker; `$(NAME)` in arguments; the config in files.
#[tokio::test]
async fn what_a_program_finds() {
    let Some(world) = world() else { return };
    let space = world.space("environment", json!({})).await;
    let fields = |framework: &str| {
        json!({
            "framework": framework, "command": ["python3", "/programs/environment.py"],
            "args": ["--lr=$(HYPERPARAM_LEARNING_RATE)", "$(MASTER_ADDR):$(MASTER_PORT)", "$$(RANK)", "$(NOT_SET)", "$(OWN)"],
            "env": [{ "name": "OWN", "value": "$(TRAINING_JOB_NAME)/$(ATTEMPT)" }],
            "networking": { "backend": "gloo", "masterPort": 23456 },
            "hyperparameters": { "learningRate": 0.01, "batchSize": 64, "additionalParams": { "label_smoothing": "0.1" } },
            "checkpoint": { "enabled": true, "frequency": 3 },
        })
    };
    let mut jobs = Vec::new();
    for framework in ["pytorch", "tensorflow", "jax"] {
        jobs.push((framework, space.submit(framework, fields(framework)).await));
    }
    for (framework, job) in &mut jobs {
        job.state(Completed).await;
        let pods = job.pods();
        assert_eq!(pods.iter().map(worker).collect::<Vec<_>>(), [0, 1]);
        for pod in pods {
            let found: Value = serde_json::from_slice(&space.logs(&pod.name_any())).unwrap();
            let (env, index) = (&found["env"], worker(&pod).to_string());
            let leader = format!("{framework}-training-0.{framework}-headless");
            let expected = [
                ("MASTER_ADDR", leader.as_str()),
                ("MASTER_PORT", "23456"),
                ("WORLD_SIZE", "2"),
                ("NNODES", "2"),
                ("NUM_WORKERS", "2"),
                ("NPROC_PER_NODE", "1"),
                ("GPUS_PER_WORKER", "0"),
                ("NODE_RANK", &index),
                ("RANK", &index),
                ("ATTEMPT", "1"),
                ("RESUME_FROM_CHECKPOINT", ""),
                ("NCCL_BACKEND", "gloo"),
                ("HYPERPARAM_LEARNING_RATE", "0.01"),
                ("HYPERPARAM_BATCH_SIZE", "64"),
                ("HYPERPARAM_LABEL_SMOOTHING", "0.1"),
                ("CHECKPOINT_DIR", "/checkpoints"),
                ("CHECKPOINT_FREQUENCY", "3"),
                ("MODEL", "none"),
                ("DATASET", "none"),
                ("TRAINING_JOB_NAME", framework),
                ("POD_NAME", &pod.name_any()),
                ("POD_NAMESPACE", &space.name),
                ("NODE_NAME", pod.spec.as_ref().unwrap().node_name.as_deref().unwrap()),
                ("OWN", &format!("{framework}/1")),
            ];
            for (name, value) in expected {
                assert_eq!(env[name], value, "{name} in worker {index} of {framework}");
            }
            let master = format!("{leader}:23456");
            assert_eq!(found["args"], json!(["--lr=0.01", master, "$(RANK)", "$(NOT_SET)", format!("{framework}/1")]));
            assert_eq!(found["config"]["framework"], *framework);
            let hyperparameters: Value =
                serde_json::from_str(found["config"]["hyperparameters.json"].as_str().unwrap()).unwrap();
            assert_eq!(hyperparameters["learningRate"], 0.01, "{hyperparameters}");
            match *framework {
                "pytorch" => {
                    let own = ["NNODES", "NPROC_PER_NODE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "MAX_RESTARTS"];
                    let found = own.map(|name| env[format!("PET_{name}")].as_str().unwrap_or("").to_owned());
                    assert_eq!(found, ["2", "1", &index, &leader, "23456", "0"]);
                }
                "tensorflow" => {
                    let config: Value = serde_json::from_str(env["TF_CONFIG"].as_str().unwrap()).unwrap();
                    let workers = [0, 1].map(|i| format!("{framework}-training-{i}.{framework}-headless:23456"));
                    let expected = json!({ "cluster": { "worker": workers }, "task": { "type": "worker", "index": worker(&pod) } });
                    assert_eq!(config, expected);
                }
                _ => {
                    let own = ["COORDINATOR_ADDRESS", "NUM_PROCESSES", "PROCESS_ID"];
                    let found = own.map(|name| env[format!("JAX_{name}")].as_str().unwrap_or("").to_owned());
                    assert_eq!(found, [&master, "2", &index]);
                }
            }
        }
    }
    space.end().await;
}

// ---- failures and restarts

#[tokio::test]
async fn an_evicted_worker_is_no_failure() {
    let Some(world) = world() else { return };
    let space = world.space("evicted", json!({})).await;
    let mut job = space
        .submit(
            "evicted",
            json!({
                "command": ["python3", "/programs/leaves.py"], "env": [{ "name": "WAIT_ON", "value": "1" }],
                "failurePolicy": { "backoffLimit": 0 },
            }),
        )
        .await;
    job.state(Running).await;
    job.says(1, 1, "attempt 1").await;
    let pod = job.pod(1, 1, "to be there", |_| true).await.name_any();
    space.api::<Pod>().evict(&pod, &EvictParams::default()).await.unwrap();
    let status = job.state(Completed).await;

    let evicted = job.pods().into_iter().find(|seen| seen.name_any() == pod).unwrap();
    let ended = training(&evicted).unwrap().state.unwrap().terminated.unwrap();
    assert_eq!((ended.exit_code, report(&ended.message).exit_code), (143, Some(0)), "of the pod, of the program");
    let [restart] = &status.restarts[..] else { panic!("{:?}", status.restarts) };
    assert_eq!(
        (restart.reason.as_str(), restart.worker, restart.attempt, restart.disruption),
        ("Evicted", Some(1), 1, true)
    );
    assert!(restart.message.contains(&pod), "{}", restart.message);
    assert_eq!((status.attempt, status.restart_count, status.disruption_count), (Some(2), Some(1), Some(1)));
    // The second attempt may be over before anybody has asked how it is.
    let states = job.states();
    assert!(states.starts_with(&[Pending, Initializing, Running, Initializing]), "{states:?}");
    assert_eq!(states.last(), Some(&Completed));
    space.end().await;
}

#[tokio::test]
async fn a_failed_rank_restarts_the_gang_and_is_named() {
    let Some(world) = world() else { return };
    let space = world.space("fails", json!({})).await;
    let once = json!({ "command": ["torchrun", "/programs/fails.py"], "env": [{ "name": "FAIL_ON", "value": "1" }] });
    let mut job = space.submit("once", once).await;
    let status = job.state(Completed).await;
    let [restart] = &status.restarts[..] else { panic!("{:?}", status.restarts) };
    let told = (restart.reason.as_str(), restart.worker, restart.exit_code, restart.disruption, restart.permanent);
    assert_eq!(told, ("PythonException", Some(1), Some(1), false, false), "{}", restart.message);
    assert!(restart.message.contains("ValueError: label 11 is not one of the 10 classes"), "{}", restart.message);
    assert_eq!((status.attempt, status.restart_count, status.disruption_count.unwrap_or(0)), (Some(2), Some(1), 0));
    job.says(1, 0, "rank 0 is done").await;
    space.end().await;
}

#[tokio::test]
async fn a_deadline_ends_the_job() {
    let Some(world) = world() else { return };
    let space = world.space("deadline", json!({})).await;
    let mut deadline = space
        .submit(
            "deadline",
            json!({
                "command": ["python3", "/programs/leaves.py"], "env": [{ "name": "WAIT_ON", "value": "1" }],
                "failurePolicy": { "activeDeadlineSeconds": 5 },
            }),
        )
        .await;
    let status = deadline.state(Failed).await;
    assert_eq!(status.failure_reason, Some("DeadlineExceeded".into()));
    let message = status.failure_message.unwrap();
    assert!(message.contains("failurePolicy.activeDeadlineSeconds is 5"), "{message}");
    deadline
        .pod(1, 0, "to be ended by SIGTERM", |pod| {
            let ended = training(pod).and_then(|c| c.state?.terminated);
            ended.is_some_and(|end| end.exit_code == 143 && report(&end.message).stopped_by == Some(15))
        })
        .await;
    eventually("the pods past their deadline to be gone", SOON, async || {
        let pods = space.pods().await;
        (!pods.iter().any(|pod| pod.name_any().starts_with("deadline-"))).then_some(())
    })
    .await;
    space.end().await;
}

// ---- stopping

#[tokio::test]
async fn a_suspended_job_saves_and_goes_on() {
    let Some(world) = world() else { return };
    let space = world.space("suspended", json!({})).await;
    let mut example = example("demo");
    // No checkpoint but the one that SIGTERM asks for.
    example["spec"]["checkpoint"]["frequency"] = json!(1000);
    example["spec"]["hyperparameters"]["epochs"] = json!(40);
    let mut job = space.apply(example).await;
    job.state(Running).await;
    job.says(1, 0, "] Epoch 2/40 ").await;
    job.patch(json!({ "suspend": true })).await;
    let status = job.state(Suspended).await;
    assert_eq!(space.pods().await.len(), 0, "Suspended means that no pod is left");
    assert_eq!((status.restart_count, status.restarts.len()), (Some(0), 0));
    let (saved, epoch) = only_checkpoint(&space).await;
    assert!((2..40).contains(&epoch), "{saved}");

    job.patch(json!({ "suspend": false })).await;
    job.says(2, 0, &format!("resumed from /checkpoints/{saved}, epoch {epoch} of 40 done")).await;
    let status = job.state(Completed).await;
    assert_eq!((status.attempt, status.restart_count), (Some(2), Some(0)));
    assert_eq!(job.states(), [Pending, Initializing, Running, Suspended, Pending, Initializing, Running, Completed]);
    space.end().await;
}

/// torchrun gives each rank a session of its own: whoever ends only torchrun leaves them running.
#[tokio::test]
async fn no_process_is_left_behind() {
    let Some(world) = world() else { return };
    let space = world.space("stubborn", json!({})).await;
    let marker = format!("--marker={}", space.name);
    let mut job = space
        .submit(
            "stubborn",
            json!({
                "command": ["torchrun", "/programs/stubborn.py", marker], "numWorkers": 1, "procsPerWorker": 2,
                "podTemplate": { "spec": { "terminationGracePeriodSeconds": 16 } },
            }),
        )
        .await;
    job.says(1, 0, "rank 0 is deaf").await;
    job.says(1, 0, "rank 1 is deaf").await;
    assert_eq!(processes(&marker).len(), 3, "torchrun and two ranks");
    job.delete().await;
    let pod = job
        .pod(1, 0, "to have ended", |pod| {
            training(pod).is_some_and(|c| c.state.is_some_and(|s| s.terminated.is_some()))
        })
        .await;
    let ended = training(&pod).unwrap().state.unwrap().terminated.unwrap();
    // In time, by its own doing, and told: at the end of the grace the kubelet kills the agent too, which leaves no word.
    let told = report(&ended.message);
    assert_eq!((told.stopped_by, told.signal, ended.exit_code), (Some(15), Some(9), 143));
    space.no_pod_is_left().await;
    assert_eq!(processes(&marker), Vec::<String>::new());
    space.end().await;
}

// ----

/// An example of the repository, as it stands.
fn example(name: &str) -> Value {
    let text = fs::read_to_string(root(&format!("examples/{name}.yaml"))).unwrap();
    serde_saphyr::from_str(&text).unwrap()
}

/// The one checkpoint of the demo's job, and its epoch.
async fn only_checkpoint(space: &Space) -> (String, u32) {
    let mut saved: Vec<String> = folder(space, "digits-checkpoints").await.map(|file| file.0).collect();
    assert_eq!(saved.len(), 1, "one checkpoint, not {saved:?}");
    let saved = saved.remove(0);
    let epoch = saved.strip_prefix("checkpoint-").unwrap().strip_suffix(".pt").unwrap().parse().unwrap();
    (saved, epoch)
}

/// The folder of this machine behind a claim.
async fn behind(space: &Space, claim: &str) -> PathBuf {
    let claim = space.api::<PersistentVolumeClaim>().get(claim).await.unwrap();
    let volume = claim.spec.unwrap().volume_name.unwrap();
    let volume = Api::<PersistentVolume>::all(space.client.clone()).get(&volume).await.unwrap();
    volume.spec.unwrap().host_path.expect("a folder of this machine").path.into()
}

/// The files in the folder behind a claim.
async fn folder(space: &Space, claim: &str) -> impl Iterator<Item = (String, PathBuf)> {
    fs::read_dir(behind(space, claim).await)
        .unwrap()
        .map(|file| file.unwrap())
        .map(|file| (file.file_name().into_string().unwrap(), file.path()))
        .filter(|(name, _)| !name.starts_with('.'))
}

/// The processes of this machine, those in containers too, that have this argument.
fn processes(argument: &str) -> Vec<String> {
    let commands = fs::read_dir("/proc").unwrap().filter_map(|entry| fs::read(entry.ok()?.path().join("cmdline")).ok());
    let commands = commands.map(|command| String::from_utf8_lossy(&command).replace('\0', " "));
    commands.filter(|command| command.contains(argument) && !command.contains("/agent")).collect()
}

fn report(message: &Option<String>) -> Report {
    Report::parse(message.as_deref().unwrap_or_default()).unwrap_or_default()
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    use sha2::Digest;
    sha2::Sha256::digest(bytes).into()
}
