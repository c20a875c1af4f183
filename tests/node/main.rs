//! The whole path on a real node: kubelet, containerd, torchrun, and the operator installed as its users would.
//!
//! `make test` builds what it needs. One cluster serves all tests, each in a namespace of its own, and ends with this
//! program. With TRAININGJOB_TEST_KUBECONFIG another cluster serves, in which the operator already runs.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test panics where anything is not as expected")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::needless_pass_by_value,
    clippy::too_many_lines,
    reason = "numbers of tests are small, their tables are long"
)]

mod alerts;
mod checkpoints;
mod data;
mod delivery;
mod documents;
mod examples;
mod failures;
mod fine_tuning;
mod frameworks;
mod front;
mod gang;
mod hostile;
mod incidents;
mod lost;
mod mpi;
mod plugin;
mod presets;
mod release;
mod results;
mod roles;
mod stalls;
mod stores;
mod success;
mod trainers;
mod training;
mod tuning;
mod upgrade;
mod world;

use api::State::{Completed, Failed, Running, Suspended};
use api::TrainingJobStatus;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::{Api, ResourceExt};
use protocol::report::Report;
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use testkit::wait::eventually;
use testkit::{root, wait};
use world::{SOON, Space, condition, training, worker, world};

/// More epochs than a training completes before it is ended.
const EPOCHS: u32 = 100_000;

// ---- training

/// The README's job under real torchrun. It is suspended, resumes from what it saved on SIGTERM, and completes as soon
/// as it is good enough.
#[tokio::test]
async fn demo_resumes_after_suspension_and_completes_early() {
    let Some(world) = world() else { return };
    let space = world.space("demo", json!({})).await;
    let mut example = example("demo");
    // Only its success policy ends it, and it saves only on SIGTERM.
    example["spec"]["hyperparameters"]["epochs"] = json!(EPOCHS);
    example["spec"]["checkpoint"]["frequency"] = json!(EPOCHS);
    let job = space.apply(example).await;
    let running = job.state(Running).await;
    assert_eq!(running.restart_count, Some(0));
    let started = |pod: &Pod| training(pod)?.state?.running?.started_at;
    for worker in 0..2 {
        let pod = job.pod(1, worker, "to run", |pod| started(pod).is_some()).await;
        let conditions = pod.status.as_ref().unwrap().conditions.as_ref().unwrap();
        let placed = conditions.iter().find(|condition| condition.type_ == "PodScheduled").unwrap();
        let placed = placed.last_transition_time.clone().unwrap();
        assert!(condition(&running, "Scheduled").last_transition_time >= placed, "worker {worker} had no node yet");
        let running = &condition(&running, "Running").last_transition_time;
        assert!(*running >= started(&pod).unwrap(), "worker {worker} had not started yet");
    }
    for rank in 0..2 {
        job.says(1, rank, &format!("[rank {rank}/2] Epoch 2/{EPOCHS} loss: ")).await;
    }

    job.patch(json!({ "suspend": true })).await;
    let status = job.state(Suspended).await;
    assert_eq!(space.pods().await.len(), 0, "Suspended means that no pod is left");
    assert_eq!((status.restart_count, status.restarts.len()), (Some(0), 0));
    let saved = saved_epochs(&space).await;
    let &[epoch] = &saved[..] else { panic!("one checkpoint, not those of {saved:?}") };
    assert!((2..EPOCHS).contains(&epoch), "saved epoch {epoch}");

    job.patch(json!({ "suspend": false, "successPolicy": { "targetAccuracy": 0.95 } })).await;
    job.says(2, 0, &format!("resumed from /checkpoints/checkpoint-{epoch}.pt, epoch {epoch} of {EPOCHS} done")).await;
    let (status, message) = success::good_enough(&job, "TargetAccuracyReached", 2).await;
    job.went_through(&[Running, Suspended, Running, Completed], &[Failed]);
    let reached = message.strip_prefix("accuracy ").and_then(|rest| rest.split_once(' '));
    let (accuracy, words) = reached.unwrap_or_else(|| panic!("{message}"));
    assert!(accuracy.parse::<f64>().is_ok_and(|accuracy| accuracy >= 0.95), "{message}");
    assert_eq!(words, "reached successPolicy.targetAccuracy 0.95", "{message}");
    assert!(status.metrics.as_ref().unwrap().accuracy.is_some());
    assert!(status.start_time.is_some() && status.completion_time.is_some() && status.duration.is_some());
    for worker in 0..2 {
        let reported = success::end(&job, 2, worker).await;
        // The process by which torchrun ends depends on where the SIGTERM finds it. SIGKILL was not needed.
        let left = reported.stopped_by == Some(15) && !reported.killed && reported.signal != Some(9);
        assert!(left, "worker {worker} left in its grace: {reported:?}");
    }
    assert!(saved_epochs(&space).await.iter().max() >= Some(&epoch));
    let (share, expected) = (goodput(&status), running_share(&job.statuses()));
    assert!(
        (share - expected).abs() <= 10.0,
        "{share} % of its time became training, and it ran in {expected:.0} % of it"
    );
    space.end().await;
}

#[tokio::test]
async fn logs_equal_the_programs_output() {
    // 10 MB, as fast as Python can write them.
    const BYTES: u32 = 2_500_000;
    const TIMES: usize = 4;
    let Some(world) = world() else { return };
    let space = world.space("bytes", json!({})).await;
    let job = space
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

/// The variables, `$(NAME)` in arguments, and the config in files. The environments of other frameworks are tested with
/// agents alone (tests/agents), and in roles.rs where real pods are needed.
#[tokio::test]
async fn program_environment_is_set_in_real_pods() {
    let Some(world) = world() else { return };
    let space = world.space("environment", json!({})).await;
    let fields = json!({
        "command": ["python3", "/programs/environment.py"],
        "args": ["--lr=$(HYPERPARAM_LEARNING_RATE)", "$(MASTER_ADDR):$(MASTER_PORT)", "$$(RANK)", "$(NOT_SET)", "$(OWN)"],
        "env": [{ "name": "OWN", "value": "$(TRAINING_JOB_NAME)/$(ATTEMPT)" }],
        "networking": { "backend": "gloo", "masterPort": 23456 },
        "hyperparameters": { "learningRate": 0.01, "batchSize": 64, "additionalParams": { "label_smoothing": "0.1" } },
        "checkpoint": { "enabled": true, "frequency": 3 },
    });
    let job = space.submit("finds", fields).await;
    job.state(Completed).await;
    let pods = job.pods();
    assert_eq!(pods.iter().map(worker).collect::<Vec<_>>(), [0, 1]);
    for pod in pods {
        let found = environment(&space, &pod).await;
        let (env, index) = (&found["env"], worker(&pod).to_string());
        let leader = "finds-training-0.finds-headless";
        let expected = [
            ("MASTER_ADDR", leader),
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
            ("TRAINING_JOB_NAME", "finds"),
            ("POD_NAME", &pod.name_any()),
            ("POD_NAMESPACE", &space.name),
            ("NODE_NAME", pod.spec.as_ref().unwrap().node_name.as_deref().unwrap()),
            ("OWN", "finds/1"),
        ];
        for (name, value) in expected {
            assert_eq!(env[name], value, "{name} in worker {index}");
        }
        let own = ["NNODES", "NPROC_PER_NODE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "MAX_RESTARTS"];
        let own = own.map(|name| env[format!("PET_{name}")].as_str().unwrap_or_default().to_owned());
        assert_eq!(own, ["2", "1", &index, leader, "23456", "0"], "of torchrun");
        let master = format!("{leader}:23456");
        assert_eq!(found["args"], json!(["--lr=0.01", master, "$(RANK)", "$(NOT_SET)", "finds/1"]));
        assert_eq!(found["config"]["framework"], "pytorch");
        let hyperparameters = found["config"]["hyperparameters.json"].as_str().unwrap();
        let hyperparameters: Value = serde_json::from_str(hyperparameters).unwrap();
        assert_eq!(hyperparameters["learningRate"], 0.01, "{hyperparameters}");
    }
    space.end().await;
}

// ---- stopping

/// torchrun gives each rank a session of its own. A signal that ends only torchrun leaves the ranks running.
#[tokio::test]
#[ignore = "soak: deaf ranks of torchrun in a real pod; proved in make test by agents::agent::process_ignoring_sigterm_is_killed_after_the_grace"]
async fn no_process_outlives_a_deleted_job() {
    let Some(world) = world() else { return };
    let space = world.space("stubborn", json!({})).await;
    let marker = format!("--marker={}", space.name);
    let job = space
        .submit(
            "stubborn",
            json!({
                "command": ["torchrun", "/programs/stubborn.py", marker], "numWorkers": 1, "procsPerWorker": 2,
                "podTemplate": { "spec": { "terminationGracePeriodSeconds": 30 } },
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
    // The agent killed it in time and reported that. At the end of the grace the kubelet kills the agent too, which
    // leaves no report.
    let reported = report(&ended.message);
    assert_eq!((reported.stopped_by, reported.signal, ended.exit_code), (Some(15), Some(9), 143));
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

/// The epochs of the checkpoints of the demo's job, in order.
async fn saved_epochs(space: &Space) -> Vec<u32> {
    let epoch = |name: String| name.strip_prefix("checkpoint-")?.strip_suffix(".pt")?.parse().ok();
    let mut saved: Vec<u32> = folder(space, "digits-checkpoints").await.filter_map(|file| epoch(file.0)).collect();
    saved.sort_unstable();
    saved
}

/// `status.goodput` as a number.
fn goodput(status: &TrainingJobStatus) -> f64 {
    status.goodput.as_ref().and_then(|share| share.strip_suffix('%')?.parse().ok()).expect("a share in percent")
}

/// The percentage of its time, without the time in which it was suspended, that an ended job was Running.
fn running_share(history: &[TrainingJobStatus]) -> f64 {
    let last = history.last().unwrap();
    let begin = last.start_time.as_ref().unwrap().0;
    let end = last.completion_time.as_ref().unwrap().0;
    let active = (end - begin).get_seconds() - last.suspended_seconds.unwrap_or(0);
    // Each Running status gives the time since which the job runs.
    let since = |status: &TrainingJobStatus| {
        (status.state == Some(Running)).then(|| condition(status, "Running").last_transition_time.0)
    };
    let until = |status: &TrainingJobStatus| condition(status, "Running").last_transition_time.0;
    let mut ran = 0;
    for pair in history.windows(2) {
        if let (Some(since), None) = (since(&pair[0]), since(&pair[1])) {
            ran += (until(&pair[1]) - since).get_seconds();
        }
    }
    100.0 * ran as f64 / active as f64
}

/// The first line of JSON that `environment.py` has printed in this pod. It waits for a running program that has not
/// printed yet. A program that is ended before it prints has an empty log for ever.
async fn environment(space: &Space, pod: &Pod) -> Value {
    let pod = pod.name_any();
    eventually(&format!("the environment of {pod}"), SOON, async || {
        let log = space.logs(&pod);
        let mut lines = log.split_inclusive(|byte| *byte == b'\n');
        let line = lines.find(|line| line.starts_with(b"{") && line.ends_with(b"\n"))?;
        Some(serde_json::from_slice(line).unwrap())
    })
    .await
}

/// The folder of this machine behind a claim, once it exists.
async fn behind(space: &Space, claim: &str) -> PathBuf {
    let claims = space.api::<PersistentVolumeClaim>();
    let volume = eventually(&format!("a volume for {claim}"), SOON, async || {
        claims.get_opt(claim).await.unwrap()?.spec?.volume_name
    })
    .await;
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

/// The processes of this machine, including those in containers, that have this argument.
fn processes(argument: &str) -> Vec<String> {
    let commands = fs::read_dir("/proc").unwrap().filter_map(|entry| fs::read(entry.ok()?.path().join("cmdline")).ok());
    let commands = commands.map(|command| String::from_utf8_lossy(&command).replace('\0', " "));
    commands.filter(|command| command.contains(argument) && !command.contains("/agent")).collect()
}

#[expect(clippy::ref_option, reason = "a field of each side")]
fn report(message: &Option<String>) -> Report {
    Report::parse(message.as_deref().unwrap_or_default()).unwrap_or_default()
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    use sha2::Digest;
    sha2::Sha256::digest(bytes).into()
}
