//! Trainings that would go on for long end as soon as their `successPolicy` is met.

use crate::checkpoints::logs;
use crate::world::{Job, condition, training, world};
use crate::{example, only_checkpoint, report};
use serde_json::json;
use trainingjob_operator::api::State::{Completed, Initializing, Pending, Running};
use trainingjob_operator::api::TrainingJobStatus;
use trainingjob_operator::protocol::report::Report;

#[tokio::test]
async fn a_job_that_is_good_enough_saves_and_is_completed() {
    let Some(world) = world() else { return };
    let space = world.space("success", json!({})).await;
    let mut example = example("demo");
    example["spec"]["hyperparameters"]["epochs"] = json!(100_000);
    // No checkpoint but the one that SIGTERM asks for.
    example["spec"]["checkpoint"]["frequency"] = json!(100_000);
    example["spec"]["successPolicy"] = json!({ "targetAccuracy": 0.95 });
    let mut accurate = space.apply(example).await;
    let mut early = space
        .submit(
            "early",
            json!({
                "command": ["python3", "/programs/overfits.py"], "numWorkers": 1,
                "successPolicy": { "earlyStopping": { "patience": 5 } },
            }),
        )
        .await;

    let (status, message) = good_enough(&mut accurate, "TargetAccuracyReached").await;
    assert!(message.starts_with("accuracy 0.9"), "{message}");
    assert!(message.ends_with(" reached successPolicy.targetAccuracy 0.95"), "{message}");
    assert!(status.metrics.unwrap().accuracy.is_some());
    for worker in 0..2 {
        let told = end(&mut accurate, worker).await;
        assert_eq!(
            (told.stopped_by, told.signal),
            (Some(15), None),
            "worker {worker} left in its grace, and was not killed: {:?}",
            logs(&space, &accurate).await
        );
    }
    let (saved, epoch) = only_checkpoint(&space).await;
    assert!(epoch < 100_000, "{saved}");

    let (status, message) = good_enough(&mut early, "EarlyStopped").await;
    assert!(message.starts_with("eval_loss was 0.3 at best and has not got better in "), "{message}");
    let stands = status.early_stopping.unwrap();
    assert_eq!((stands.metric.as_str(), stands.best), ("eval_loss", 0.3));
    assert!(stands.evaluations_since_best >= 5, "{stands:?}");
    // That SIGTERM ends the program, as it does those that know nothing of it, is no failure.
    let told = end(&mut early, 0).await;
    assert_eq!((told.stopped_by, told.signal), (Some(15), Some(15)));
    space.end().await;
}

/// Waits for the job's end, which must have come for this reason; its last status, and why it was good enough.
async fn good_enough(job: &mut Job, reason: &str) -> (TrainingJobStatus, String) {
    let status = job.state(Completed).await;
    assert_eq!(job.states(), [Pending, Initializing, Running, Completed]);
    assert_eq!((status.attempt, status.restart_count, status.restarts.len()), (Some(1), Some(0), 0));
    assert!(status.failure_reason.is_none() && status.completion_time.is_some());
    for (type_, value) in [("Succeeded", "True"), ("Stopping", "False"), ("Running", "False")] {
        let told = condition(&status, type_);
        assert_eq!((told.status.as_str(), told.reason.as_str()), (value, reason), "{type_}: {}", told.message);
    }
    let message = condition(&status, "Succeeded").message.clone();
    (status, message)
}

/// What the agent of a worker told at its end.
async fn end(job: &mut Job, worker: i32) -> Report {
    let ended = |pod: &_| Some(report(&training(pod)?.state?.terminated?.message));
    let pod = job.pod(1, worker, "to have ended", |pod| ended(pod).is_some()).await;
    ended(&pod).unwrap()
}
