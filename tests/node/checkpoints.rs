//! Checkpoints of real trainings by torchrun.

use super::world::{Job, SOON, Space, condition, merged, world};
use super::{folder, worker};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use trainingjob_operator::api::State::{Completed, Failed};
use trainingjob_operator::api::TrainingJobStatus;

/// Two workers that train by torchrun and save every fifth of 30 steps to a claim.
pub async fn submit(space: &Space, name: &str, env: Value, checkpoint: Value) -> Job {
    job(space, name, env, merged(json!({ "storage": { "type": "pvc", "size": "1Gi" } }), &checkpoint)).await
}

/// The same with all of `spec.checkpoint`.
pub async fn job(space: &Space, name: &str, env: Value, checkpoint: Value) -> Job {
    job_of(space, name, 2, env, json!({ "checkpoint": checkpoint })).await
}

/// The same with so many workers, and more of the spec.
pub async fn job_of(space: &Space, name: &str, workers: i32, env: Value, more: Value) -> Job {
    let all = json!({ "STEPS": "30", "SAVE_EVERY": "5", "ATOMIC": "0", "STEP_SECONDS": "0.05" });
    let all = merged(all, &env);
    let env: Vec<Value> =
        all.as_object().unwrap().iter().map(|(name, value)| json!({ "name": name, "value": value })).collect();
    let fields = json!({
        "command": ["torchrun", "/programs/train_ddp.py"], "env": env, "failurePolicy": { "backoffLimit": 100 },
        "numWorkers": workers,
    });
    space.submit(name, merged(fields, &more)).await
}

/// What each worker's last pod has said, in all attempts that it had, by its index.
pub async fn logs(space: &Space, job: &Job) -> Vec<String> {
    let last = last_pods(job);
    last.values().map(|pod| String::from_utf8_lossy(&space.logs(&pod.name_any())).into_owned()).collect()
}

/// The last pod of each worker.
pub fn last_pods(job: &Job) -> BTreeMap<i32, Pod> {
    let mut pods: Vec<_> = job.pods().into_iter().filter(|pod| worker(pod) >= 0).collect();
    pods.sort_by_key(|pod| (super::attempt(pod), pod.creation_timestamp().map(|time| time.0)));
    pods.into_iter().map(|pod| (worker(&pod), pod)).collect()
}

pub fn weights(log: &str) -> &str {
    log.lines().rev().find_map(|line| line.split_once("weights ")).expect("the program has said its weights").1
}

pub fn checkpoint(status: &TrainingJobStatus) -> &trainingjob_operator::api::CheckpointStatus {
    status.checkpoint.as_ref().expect("checkpoints are told of")
}

/// Killed in the middle of a save: the next attempt goes on from the newest whole one, in every worker, and ends with what an
/// undisturbed run ends with.
#[tokio::test]
async fn a_save_that_was_cut_is_passed_over() {
    let Some(world) = world() else { return };
    let space = world.space("cut", json!({})).await;
    let mut whole = submit(&space, "whole", json!({}), json!({})).await;
    let mut cut = submit(&space, "cut", json!({ "CUT_SAVE": "20", "CUT_ON": "1" }), json!({})).await;
    let undisturbed = whole.state(Completed).await;
    let status = cut.state(Completed).await;

    assert_eq!((status.attempt, status.restart_count), (Some(2), Some(1)));
    assert_eq!(checkpoint(&status).resumed_from.as_deref(), Some("step-15.pt"));
    assert_eq!(checkpoint(&undisturbed).resumed_from, None);
    for status in [&status, &undisturbed] {
        let told = checkpoint(status);
        assert_eq!((told.latest_path.as_deref(), told.latest_step), (Some("step-30.pt"), Some(30)));
    }
    let (first, second) = (logs(&space, &whole).await, logs(&space, &cut).await);
    assert_eq!((first.len(), second.len()), (2, 2));
    for log in &second {
        assert!(log.contains("resumed from /checkpoints/step-15.pt at step 15"), "{log}");
        assert_eq!(weights(log), weights(&first[0]));
    }
    assert_eq!(condition(&status, "CheckpointsHealthy").status, "True", "what was cut has been written again");
    space.end().await;
}

/// Killed in the middle of a save again and again: each attempt goes on from what the one before it had wholly written, never
/// from less, and the end is what an undisturbed run ends with. KILLS of them, in a few jobs.
#[tokio::test]
async fn kills_in_a_save_lose_nothing() {
    let Some(world) = world() else { return };
    let kills: usize = std::env::var("KILLS").map_or(4, |kills| kills.parse().expect("KILLS is a number"));
    let space = world.space("kills", json!({})).await;
    let jobs = kills.min(5).div_ceil(2);
    let of_each = kills.div_ceil(jobs);
    let steps = 5 * (of_each + 2);
    let env = |cuts: usize| {
        json!({ "STEPS": steps.to_string(), "CUT_ATTEMPTS": cuts.to_string(), "STEP_SECONDS": "0",
                "HISTORY": "/checkpoints/history" })
    };
    let mut whole = submit(&space, "whole", env(0), json!({})).await;
    let mut cut = Vec::new();
    for number in 0..jobs {
        cut.push(submit(&space, &format!("cut-{number}"), env(of_each), json!({})).await);
    }
    whole.state(Completed).await;
    let undisturbed = logs(&space, &whole).await;
    let last = i32::try_from(of_each).unwrap() + 1;
    for job in &mut cut {
        job.patient = SOON * u32::try_from(of_each).unwrap();
        let status = job.state(Completed).await;
        assert_eq!((status.attempt, status.restart_count), (Some(last), Some(last - 1)));
        let claim = format!("{}-checkpoints", job.name);
        let history = folder(&space, &claim).await.find(|file| file.0 == "history").unwrap().1;
        let expected: String = (0..=of_each).map(|before| format!("{} {}\n", before + 1, 5 * before)).collect();
        assert_eq!(std::fs::read_to_string(history).unwrap(), expected, "attempt, and the step that it went on from");
        for log in logs(&space, job).await {
            assert_eq!(weights(&log), weights(&undisturbed[0]));
        }
    }
    space.end().await;
}

/// What is kept is what `retention` says, and what was there before is nobody's to delete.
#[tokio::test]
async fn the_newest_are_kept() {
    let Some(world) = world() else { return };
    let space = world.space("kept", json!({})).await;
    let env = json!({ "STEPS": "100", "STEP_SECONDS": "0.4" });
    let mut job = submit(&space, "kept", env, json!({ "retention": 2 })).await;
    let status = job.state(Completed).await;
    let mut left: Vec<String> = folder(&space, "kept-checkpoints").await.map(|file| file.0).collect();
    left.sort();
    // Between two looks some more may be there.
    assert!(left.len() < 16 && left.contains(&"step-100.pt".to_owned()), "{left:?}");
    assert_eq!(checkpoint(&status).latest_step, Some(100));
    space.end().await;
}

/// A checkpoint that can't be gone on from fails the job before any worker has a pod.
#[tokio::test]
async fn a_bad_checkpoint_to_begin_with_is_named() {
    let Some(world) = world() else { return };
    let space = world.space("bad-resume", json!({})).await;
    let mut first = submit(&space, "first", json!({}), json!({ "retention": 10 })).await;
    first.state(Completed).await;
    let claim = json!({ "storage": { "type": "pvc", "pvcName": "first-checkpoints" } });
    let with = |from: &str| {
        let mut checkpoint = claim.clone();
        checkpoint["resumeFrom"] = json!(from);
        checkpoint
    };
    let path = folder(&space, "first-checkpoints").await.find(|file| file.0 == "step-20.pt").unwrap().1;
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes).unwrap();

    let mut bad = submit(&space, "bad", json!({}), with("step-20.pt")).await;
    let status = bad.state(Failed).await;
    assert_eq!(status.failure_reason.as_ref().map(ToString::to_string).as_deref(), Some("CheckpointCorrupted"));
    let message = status.failure_message.unwrap();
    assert!(message.starts_with("checkpoint.resumeFrom /checkpoints/step-20.pt: corrupted: "), "{message}");
    let is_worker = |pod: &Pod| pod.labels().get("component").is_some_and(|component| component == "worker");
    assert!(!bad.pods().iter().any(is_worker), "no worker was ever made");

    let mut good = submit(&space, "good", json!({ "STEPS": "40" }), with("step-10.pt")).await;
    let status = good.state(Completed).await;
    assert_eq!(status.attempt, Some(1));
    for log in logs(&space, &good).await {
        assert!(log.contains("resumed from /checkpoints/step-10.pt at step 10"), "{log}");
    }
    space.end().await;
}
