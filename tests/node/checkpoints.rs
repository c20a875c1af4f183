//! Checkpoints of real trainings by torchrun.

use super::training::Training;
use super::world::{Job, Space, condition, merged, world};
use super::{behind, environment, worker};
use api::State::{Completed, Failed};
use api::TrainingJobStatus;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use serde_json::{Value, json};
use std::fs;
use testkit::root;
use testkit::training::ended;

/// Two workers that train by torchrun and save every fifth of 30 steps to a claim.
pub async fn submit(space: &Space, name: &str, env: Value, checkpoint: Value) -> Job {
    job(space, name, env, merged(json!({ "storage": { "type": "pvc", "size": "1Gi" } }), &checkpoint)).await
}

/// The same with all of `spec.checkpoint`.
pub async fn job(space: &Space, name: &str, env: Value, checkpoint: Value) -> Job {
    job_of(space, name, 2, env, json!({ "checkpoint": checkpoint })).await
}

/// The same with this many workers, and more of the spec.
pub async fn job_of(space: &Space, name: &str, workers: u32, env: Value, more: Value) -> Job {
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

/// The output of each worker's last pod, in all attempts that it had, by its index.
pub async fn logs(space: &Space, job: &Job) -> Vec<String> {
    job.workers().values().map(|pod| String::from_utf8_lossy(&space.logs(&pod.name_any())).into_owned()).collect()
}

pub fn weights(log: &str) -> &str {
    log.lines().rev().find_map(|line| line.split_once("weights ")).expect("the program has said its weights").1
}

pub fn checkpoint(status: &TrainingJobStatus) -> &api::CheckpointStatus {
    status.checkpoint.as_ref().expect("checkpoints are told of")
}

/// Killed in the middle of a save by torch. The next attempt resumes from the newest whole checkpoint, in every worker,
/// and has the same result as an undisturbed run.
#[tokio::test]
async fn interrupted_save_is_skipped_on_resume() {
    let Some(world) = world() else { return };
    let space = world.space("cut", json!({})).await;
    // Both ranks run in one pod, because the weights depend only on their number.
    let together = json!({ "procsPerWorker": 2, "checkpoint": { "storage": { "type": "pvc", "size": "1Gi" } } });
    let whole = job_of(&space, "whole", 1, json!({ "STEP_SECONDS": "0" }), together).await;
    let cut = submit(&space, "cut", json!({ "CUT_SAVE": "20", "CUT_ON": "1" }), json!({})).await;
    let undisturbed = whole.state(Completed).await;
    let status = cut.state(Completed).await;

    assert_eq!((status.attempt, status.restart_count), (Some(2), Some(1)));
    assert_eq!(checkpoint(&status).resumed_from.as_deref(), Some("step-15.pt"));
    assert_eq!(checkpoint(&undisturbed).resumed_from, None);
    for status in [&status, &undisturbed] {
        let reported = checkpoint(status);
        assert_eq!((reported.latest_path.as_deref(), reported.latest_step), (Some("step-30.pt"), Some(30)));
    }
    let (first, second) = (logs(&space, &whole).await, logs(&space, &cut).await);
    assert_eq!((first.len(), second.len()), (1, 2));
    for log in &second {
        assert!(log.contains("resumed from /checkpoints/step-15.pt at step 15"), "{log}");
        assert_eq!(weights(log), weights(&first[0]));
    }
    assert_eq!(condition(&status, "CheckpointsHealthy").status, "True", "what was cut has been written again");
    space.end().await;
}

/// Killed in the middle of a save again and again, with half of the file under its own name. Each attempt resumes from
/// what the one before it had written completely, never from less. The result is that of an undisturbed run. There are
/// KILLS kills, in a few jobs.
#[tokio::test]
async fn kills_during_a_save_lose_nothing() {
    let Some(world) = world() else { return };
    let kills: u32 = std::env::var("KILLS").map_or(3, |kills| kills.parse().expect("KILLS is a number"));
    let space = world.space("kills", json!({})).await;
    let of_each = kills.div_ceil(kills.div_ceil(10));
    // The last attempt saves twice, too.
    let steps = 5 * (of_each + 2);
    let mut jobs = Vec::new();
    for number in 0..kills.div_ceil(of_each) {
        let env = json!({ "STEPS": steps.to_string(), "CUT_ATTEMPTS": of_each.to_string(), "ATOMIC": "0" });
        jobs.push(Training::submit(&space, &format!("cut-{number}"), 2, env, json!({})).await);
    }
    let last = of_each;
    for job in &jobs {
        let status = job.state(Completed).await;
        assert_eq!((status.attempt, status.restart_count), (Some(last + 1), Some(last)));
        let expected: Vec<(u32, u32)> = (0..=of_each).map(|before| (before + 1, 5 * before)).collect();
        assert_eq!(job.folder().await.history(), expected, "attempt, and the step that it resumed from");
        for log in logs(&space, job).await {
            assert_eq!(ended(&log), Some((steps, testkit::training::weights(steps).as_str())));
        }
    }
    space.end().await;
}

/// A checkpoint that can't be resumed from fails the job before any worker has a pod. A good one is given to every
/// worker.
#[tokio::test]
async fn bad_resume_checkpoint_fails_the_job_before_workers_start() {
    // The offset of a byte of a tensor in it.
    const DAMAGED: usize = 2700;
    let Some(world) = world() else { return };
    let space = world.space("bad-resume", json!({})).await;
    let claim = json!({
        "metadata": { "name": "given" },
        "spec": { "accessModes": ["ReadWriteMany"], "resources": { "requests": { "storage": "1Gi" } } },
    });
    space.create::<PersistentVolumeClaim>(claim).await;
    let folder = behind(&space, "given").await;
    let mut bytes = fs::read(root("tests/fixtures/checkpoints/torch/full/step-7.pt")).unwrap();
    fs::write(folder.join("step-7.pt"), &bytes).unwrap();
    bytes[DAMAGED] ^= 1;
    fs::write(folder.join("step-8.pt"), &bytes).unwrap();
    let from = |name: &str| {
        json!({
            "command": ["python3", "/programs/environment.py"],
            "checkpoint": { "storage": { "type": "pvc", "pvcName": "given" }, "resumeFrom": name },
        })
    };

    let bad = space.submit("bad", from("step-8.pt")).await;
    let status = bad.state(Failed).await;
    assert_eq!(status.failure_reason.as_ref().map(ToString::to_string).as_deref(), Some("CheckpointCorrupted"));
    let message = status.failure_message.unwrap();
    assert!(message.starts_with("checkpoint.resumeFrom /checkpoints/step-8.pt: corrupted: "), "{message}");
    let is_worker = |pod: &Pod| pod.labels().get("component").is_some_and(|component| component == "worker");
    assert!(!bad.pods().iter().any(is_worker), "no worker was ever made");

    let good = space.submit("good", from("step-7.pt")).await;
    let status = good.state(Completed).await;
    assert_eq!((status.attempt, checkpoint(&status).resumed_from.as_deref()), (Some(1), Some("step-7.pt")));
    for pod in good.workers().values() {
        let env = environment(&space, pod).await["env"].take();
        let resumed = (env["RESUME_FROM_CHECKPOINT"].as_str(), env["RESUME_FROM_STEP"].as_str());
        assert_eq!(resumed, (Some("/checkpoints/step-7.pt"), Some("7")), "worker {}", worker(pod));
    }
    space.end().await;
}
