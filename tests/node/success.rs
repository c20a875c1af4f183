//! Trainings that would run for long end as soon as their `successPolicy` is met.

use crate::report;
use crate::world::{Job, condition, training, world};
use api::State::{Completed, Failed, Running};
use api::TrainingJobStatus;
use protocol::report::Report;
use serde_json::json;

/// The target accuracy is the demo's, in the test of that.
#[tokio::test]
async fn a_job_that_gets_no_better_is_completed() {
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
    // SIGTERM ends the program, as it does those that know nothing of it, and that is no failure.
    let told = end(&job, 1, 0).await;
    assert_eq!((told.stopped_by, told.signal), (Some(15), Some(15)));
    space.end().await;
}

/// Waits for the job's end, which must have come for this reason in this attempt; its last status, and why it was good enough.
pub async fn good_enough(job: &Job, reason: &str, attempt: u32) -> (TrainingJobStatus, String) {
    let status = job.state(Completed).await;
    assert_eq!((status.attempt, status.restart_count, status.restarts.len()), (Some(attempt), Some(0), 0));
    assert!(status.failure_reason.is_none() && status.completion_time.is_some());
    for (type_, value) in [("Succeeded", "True"), ("Stopping", "False"), ("Running", "False")] {
        let told = condition(&status, type_);
        assert_eq!((told.status.as_str(), told.reason.as_str()), (value, reason), "{type_}: {}", told.message);
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
