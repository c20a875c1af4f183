//! Gangs that restart where they are: real pods, a real kubelet, torchrun.
//!
//! How long each restart took is printed: docs/failures.md has what was seen.

use super::checkpoints::{job_of, logs, weights};
use super::world::{Job, SOON, Space, training, world};
use super::{folder, wait::eventually};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::time::Instant;
use trainingjob_operator::api::State::{Completed, Running};
use trainingjob_operator::api::TrainingJob;

const WORKERS: i32 = 4;

/// A process of a worker.
#[derive(Debug)]
struct Process {
    pid: Pid,
    worker: i32,
    attempt: i32,
    is_agent: bool,
    /// Which the launcher has started for it, and which reports it.
    rank: Option<i32>,
}

/// Every process of a job's workers, as their node sees them.
fn processes(job: &Job) -> Vec<Process> {
    let uids: BTreeMap<String, i32> = job.pods().iter().map(|pod| (pod.uid().unwrap(), super::worker(pod))).collect();
    let of_entry = |entry: fs::DirEntry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let environment = fs::read(entry.path().join("environ")).ok()?;
        let variables: BTreeMap<&str, &str> = environment
            .split(|byte| *byte == 0)
            .filter_map(|variable| std::str::from_utf8(variable).ok()?.split_once('='))
            .collect();
        let command = fs::read(entry.path().join("cmdline")).ok()?;
        Some(Process {
            pid: Pid::from_raw(pid),
            worker: *uids.get(*variables.get("POD_UID")?)?,
            attempt: variables.get("ATTEMPT").and_then(|attempt| attempt.parse().ok()).unwrap_or(0),
            is_agent: command.starts_with(b"/trainingjob/agent"),
            rank: variables.get("LOCAL_RANK").and(variables.get("RANK")).and_then(|rank| rank.parse().ok()),
        })
    };
    fs::read_dir("/proc").unwrap().filter_map(|entry| of_entry(entry.ok()?)).collect()
}

/// When a program of this attempt runs in every worker.
async fn executed_everywhere(job: &Job, attempt: i32) -> Instant {
    eventually(&format!("attempt {attempt} in every worker"), SOON, async || {
        let all = processes(job);
        let runs = |worker| all.iter().any(|p| p.worker == worker && p.attempt == attempt && !p.is_agent);
        let strays: Vec<_> = all.iter().filter(|p| !p.is_agent && p.attempt != attempt && p.attempt != 0).collect();
        let is_everywhere = (0..WORKERS).all(runs);
        assert!(!is_everywhere || strays.is_empty(), "two attempts at once: {strays:?}");
        is_everywhere.then(Instant::now)
    })
    .await
}

/// The lines of a file in the job's claim: attempt, and the step that it has gone on from.
async fn history(job: &Job) -> Vec<(i32, u32)> {
    let claim = format!("{}-checkpoints", job.name);
    let Some((_, file)) = folder(&job.space, &claim).await.find(|file| file.0 == "history") else { return Vec::new() };
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = |line: &str| line.split_once(' ').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    text.lines().filter_map(line).collect()
}

/// When all ranks of an attempt have met, and what it has gone on from.
async fn stepping(job: &Job, attempt: i32) -> (Instant, u32) {
    eventually(&format!("the ranks of attempt {attempt} to meet"), SOON, async || {
        let found = history(job).await.into_iter().find(|line| line.0 == attempt);
        found.map(|line| (Instant::now(), line.1))
    })
    .await
}

/// What is done to a gang.
struct Fault {
    what: &'static str,
    strikes: fn(&Process) -> bool,
    /// The worker that is named as the first cause.
    worker: i32,
}

const FAULTS: [Fault; 5] = [
    Fault { what: "SIGKILL of a rank", strikes: |p| p.rank == Some(1), worker: 1 },
    Fault { what: "SIGTERM of a rank, which exits for it", strikes: |p| p.rank == Some(3), worker: 3 },
    Fault { what: "SIGKILL of an agent (PID 1)", strikes: |p| p.worker == 2 && p.is_agent, worker: 2 },
    Fault { what: "SIGKILL of the leader's agent", strikes: |p| p.worker == 0 && p.is_agent, worker: 0 },
    Fault { what: "SIGKILL of every process of a container", strikes: |p| p.worker == 3, worker: 3 },
];

/// No pod is made again, whatever ends in it, and the weights are those of an undisturbed run.
#[tokio::test]
async fn processes_are_started_again_in_the_pods_that_exist() {
    let Some(world) = world() else { return };
    let space = world.space("in-place", json!({})).await;
    let env = |seconds: &str| json!({ "STEPS": "60", "STEP_SECONDS": seconds, "HISTORY": "/checkpoints/history" });
    let whole = json!({ "storage": { "type": "pvc", "size": "1Gi" } });
    let mut undisturbed = submit_four(&space, "whole", env("0"), &whole).await;
    undisturbed.state(Completed).await;
    let expected = logs(&space, &undisturbed).await;

    let mut job = submit_four(&space, "in-place", env("0.5"), &whole).await;
    job.patient = SOON * 4;
    let mut table = String::from("| what | exec'ed everywhere, s | all ranks meet, s |\n|---|---|---|\n");
    job.state(Running).await;
    let (_, mut from) = stepping(&job, 1).await;
    for (attempt, fault) in (1..).zip(&FAULTS) {
        // The next attempt is to have something newer to go on from.
        let newer = format!("step-{}.pt", from + 5);
        eventually(&format!("{newer} of attempt {attempt}"), SOON, async || {
            folder(&space, "in-place-checkpoints").await.any(|file| file.0 == newer).then_some(())
        })
        .await;
        let struck: Vec<_> = processes(&job).into_iter().filter(|p| (fault.strikes)(p)).collect();
        assert!(!struck.is_empty(), "{}", fault.what);
        let signal = if fault.what.starts_with("SIGTERM") { Signal::SIGTERM } else { Signal::SIGKILL };
        let at = Instant::now();
        for process in struck {
            // With an agent those after it are gone already.
            let _ = kill(process.pid, signal);
        }
        let executed = executed_everywhere(&job, attempt + 1).await - at;
        let (met, next) = stepping(&job, attempt + 1).await;
        assert!(next >= from + 5, "{}: gone on from {next}, though step {} was whole", fault.what, from + 5);
        from = next;
        table += &format!("| {} | {:.1} | {:.1} |\n", fault.what, executed.as_secs_f64(), (met - at).as_secs_f64());
    }
    let status = job.state(Completed).await;
    let _ = writeln!(std::io::stderr(), "{table}");

    let pods: Vec<Pod> = job.pods().into_iter().filter(|pod| super::worker(pod) >= 0).collect();
    assert_eq!(pods.len(), 4, "no pod was made again");
    let restarts: i32 = pods.iter().filter_map(|pod| Some(training(pod)?.restart_count)).sum();
    assert_eq!(restarts, 3, "containers that were killed came back");
    assert_eq!((status.attempt, status.restart_count), (Some(6), Some(5)));
    assert_eq!(status.incarnation, Some(1));
    for (fault, restart) in FAULTS.iter().zip(&status.restarts) {
        assert_eq!((restart.worker, restart.disruption), (Some(fault.worker), false), "{}: {restart:?}", fault.what);
        assert!(restart.pod.is_some() && restart.node.is_some(), "{restart:?}");
    }
    for log in logs(&space, &job).await {
        assert_eq!(weights(&log), weights(&expected[0]));
    }
    space.end().await;
}

/// The plugin asks, the operator tells the leader, and all start again where they are, from what they have saved.
#[tokio::test]
async fn a_restart_that_is_asked_for_happens_in_the_pods_that_exist() {
    let Some(world) = world() else { return };
    let space = world.space("asked", json!({})).await;
    let env = json!({ "STEPS": "60", "STEP_SECONDS": "0.5", "HISTORY": "/checkpoints/history" });
    let whole = json!({ "storage": { "type": "pvc", "size": "1Gi" } });
    let mut job = submit_four(&space, "asked", env, &whole).await;
    job.patient = SOON * 4;
    job.state(Running).await;
    let (_, from) = stepping(&job, 1).await;
    let newer = format!("step-{}.pt", from + 5);
    eventually(&newer, SOON, async || {
        folder(&space, "asked-checkpoints").await.any(|file| file.0 == newer).then_some(())
    })
    .await;
    let at = Instant::now();
    let annotations = json!({ "ml.example.com/restart-requested": "once" });
    let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
    space.api::<TrainingJob>().patch("asked", &PatchParams::default(), &patch).await.unwrap();
    // As the plugin does it: a pod that changes has its files brought up to date at once.
    let first = job.pods().into_iter().find(|pod| super::worker(pod) == 0).unwrap();
    eventually("the ConfigMap to tell", SOON, async || {
        let config = space.api::<ConfigMap>().get("asked-config").await.unwrap();
        config.data?.get("gang.json")?.contains(r#""restartRequested":"once""#).then_some(())
    })
    .await;
    let look = Patch::Merge(json!({ "metadata": { "annotations": { "ml.example.com/look-again": "once" } } }));
    space.api::<Pod>().patch(&first.name_any(), &PatchParams::default(), &look).await.unwrap();
    executed_everywhere(&job, 2).await;
    let (met, next) = stepping(&job, 2).await;
    let _ = writeln!(std::io::stderr(), "asked for a restart: all ranks meet after {:.1} s", (met - at).as_secs_f64());
    assert!(next >= from + 5, "gone on from {next}, though step {} was whole", from + 5);
    let status = job.state(Completed).await;
    assert_eq!((status.attempt, status.incarnation, status.restart_count), (Some(2), Some(1), Some(0)));
    assert_eq!(status.restarts.len(), 1);
    assert_eq!(status.restarts[0].reason.as_str(), "Restarted");
    assert!(status.goodput.is_some());
    space.end().await;
}

/// Four workers that train by torchrun.
async fn submit_four(space: &Space, name: &str, env: Value, checkpoint: &Value) -> Job {
    job_of(space, name, WORKERS, env, checkpoint.clone()).await
}
