//! `kubectl trainingjob` beside real pods: what it asks their agents, and what it finds in their logs.

use crate::training::Training;
use crate::world::{Space, world};
use serde_json::json;

async fn says(space: &Space, args: &[&str]) -> String {
    let (is_well, text) = space.plugin(args).await;
    assert!(is_well, "{args:?}: {text}");
    text
}

#[tokio::test]
async fn the_plugin_answers_of_a_job_that_trains_and_of_one_that_has_ended() {
    let Some(world) = world() else { return };
    let space = world.space("plugin", json!({})).await;
    let checkpoint = json!({ "storage": { "type": "pvc", "size": "1Gi" }, "retention": 10_000 });
    let job = Training::submit(&space, "asked", 2, json!({}), json!({ "checkpoint": checkpoint })).await;
    job.meets(1).await;
    let saved = job.saves(1).await;

    let image = job.status().agent_image.unwrap();
    let (_, text) = space.plugin(&["check", "--ports", "--image", &image]).await;
    assert!(text.contains("ports: a pod reaches another one on 29500 and 50000 ("), "{text}");

    let stacks = says(&space, &["stacks", "asked"]).await;
    for worker in 0..2 {
        assert!(stacks.contains(&format!("worker {worker} (pod asked-training-{worker}-")), "{stacks}");
    }
    assert!(stacks.contains("main thread") && stacks.contains("gang.py:"), "{stacks}");
    let one: serde_json::Value =
        serde_json::from_str(&says(&space, &["stacks", "asked", "--worker", "1", "-o", "json"]).await).unwrap();
    assert_eq!(one["workers"].as_array().unwrap().len(), 1);
    let pod = job.workers()[&1].metadata.uid.clone().unwrap();
    assert_eq!(one["workers"][0]["stacks"]["podUid"], *pod);

    let listed = says(&space, &["checkpoints", "asked"]).await;
    assert!(listed.contains(&format!("step-{saved}")), "{listed}");
    let verified = says(&space, &["checkpoints", "asked", "verify"]).await;
    assert!(verified.contains("Valid") || verified.contains("Complete"), "{verified}");
    let pruned = says(&space, &["checkpoints", "asked", "prune", "--dry-run"]).await;
    assert!(!pruned.contains("deleted"), "{pruned}");
    let why = says(&space, &["why", "asked"]).await;
    assert!(why.contains("Running"), "{why}");

    // In the same pods, from an older checkpoint than the newest.
    job.saves(saved + 1).await;
    let (is_well, text) = space.plugin(&["restart", "asked", "--from", "step-0"]).await;
    assert!(!is_well && text.contains("the job has no checkpoint step-0; it has "), "{text}");
    let older = format!("step-{saved}.safetensors");
    let text = says(&space, &["restart", "asked", "--from", &older]).await;
    assert!(text.contains(&format!("the next attempt resumes from /checkpoints/{older}")), "{text}");
    assert_eq!(job.meets(2).await.from, saved);
    assert_eq!(job.workers()[&1].metadata.uid.clone().unwrap(), pod);

    job.completes(2).await;
    let log = says(&space, &["logs", "asked", "--worker", "1"]).await;
    assert!(testkit::training::ended(&log).is_some(), "{log}");
    let why = says(&space, &["why", "asked"]).await;
    assert!(why.contains("Completed"), "{why}");
    let (is_well, text) = space.plugin(&["stacks", "asked"]).await;
    assert!(!is_well && text.contains("no worker of asked runs now"), "{text}");
    // The volume is still there: a Job of its own looks at it.
    let listed = says(&space, &["checkpoints", "asked"]).await;
    assert!(listed.contains("step-"), "{listed}");
    space.end().await;
}
