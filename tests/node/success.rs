//! Trainings that would run for long end as soon as their `successPolicy` is met.

use crate::report;
use crate::world::{Job, condition, training, world};
use api::State::{Completed, Failed, Running};
use api::{Measurement, TrainingJobStatus};
use protocol::report::Report;
use serde_json::json;

/// The demo's own test covers the target accuracy.
#[tokio::test]
async fn job_without_improvement_is_completed_early() {
    let Some(world) = world() else { return };
    let space = world.space("success", json!({})).await;
    let fields = json!({
        "command": ["python3", "/programs/overfits.py"], "numWorkers": 1,
        "successPolicy": { "earlyStopping": { "patience": 5 } },
    });
    let job = space.submit("early", fields).await;
    let (status, message) = good_enough(&job, "EarlyStopped", 1).await;
    job.went_through(&[Running, Completed], &[Failed]);
    assert!(message.starts_with("eval_loss was 0.3 at best and has not got better in "), "{message}");
    let stands = status.early_stopping.unwrap();
    assert_eq!((stands.metric.as_str(), stands.best), ("eval_loss", 0.3));
    assert!(stands.evaluations_since_best >= 5, "{stands:?}");
    // SIGTERM ends the program, as it does programs that do not handle it, and that is no failure.
    let stated = end(&job, 1, 0).await;
    assert_eq!((stated.stopped_by, stated.signal), (Some(15), Some(15)));
    space.end().await;
}

/// No reading is lost, however fast the program evaluates and however soon it ends after its last evaluation.
#[tokio::test]
async fn objective_includes_every_reading() {
    let Some(world) = world() else { return };
    let space = world.space("objective", json!({})).await;
    let fields = |metric: &str| {
        let objective = json!({ "metric": metric, "rungs": { "minStep": 30, "factor": 5 } });
        json!({
            "command": ["python3", "/programs/evaluates.py"], "numWorkers": 1, "monitoring": { "objective": objective },
        })
    };
    let (read, unread) = (space.submit("read", fields("eval_loss")).await, space.submit("unread", fields("f1")).await);
    let status = read.state(Completed).await;
    let objective = status.objective.unwrap();
    assert_eq!((objective.metric.as_str(), objective.count), ("eval_loss", 2100), "1,000 and 1,100 readings");
    assert_eq!(objective.last, Some(Measurement { value: 0.5, step: Some(2000) }));
    assert_eq!(objective.best, Some(Measurement { value: 0.0, step: Some(1500) }));
    let rungs: Vec<_> = objective.rungs.iter().map(|rung| (rung.step, rung.value)).collect();
    assert_eq!(rungs, [(30, 1.47), (150, 1.35), (750, 0.75)], "those of the first attempt");
    let (is_well, screen) = space.plugin(&["status", "read"]).await;
    let line = "eval_loss: best 0 (step 1500), last 0.5 (step 2000), 2100 readings";
    assert!(is_well && screen.contains(line), "{screen}");

    let objective = unread.state(Completed).await.objective.unwrap();
    assert_eq!((objective.metric.as_str(), objective.count, objective.last), ("f1", 0, None));
    assert_eq!(objective.reported, ["eval_loss", "loss"]);
    space.end().await;
}

/// Waits for the job's end, which must have come for this reason in this attempt. Returns its last status, and why it
/// was good enough.
pub async fn good_enough(job: &Job, reason: &str, attempt: u32) -> (TrainingJobStatus, String) {
    let status = job.state(Completed).await;
    assert_eq!((status.attempt, status.restart_count, status.restarts.len()), (Some(attempt), Some(0), 0));
    assert!(status.failure_reason.is_none() && status.completion_time.is_some());
    for (type_, value) in [("Succeeded", "True"), ("Stopping", "False"), ("Running", "False")] {
        let stated = condition(&status, type_);
        assert_eq!((stated.status.as_str(), stated.reason.as_str()), (value, reason), "{type_}: {}", stated.message);
    }
    let message = condition(&status, "Succeeded").message.clone();
    (status, message)
}

/// The report of a worker's agent at its end.
pub async fn end(job: &Job, attempt: u32, worker: u32) -> Report {
    let ended = |pod: &_| Some(report(&training(pod)?.state?.terminated?.message));
    let pod = job.pod(attempt, worker, "to have ended", |pod| ended(pod).is_some()).await;
    ended(&pod).unwrap()
}
