//! An agent's reports on its program and its checkpoints become conditions and Events, at once and once.

use crate::gang::{Agent, runs};
use crate::world::{BY_HAND, Watched, plane};
use api::State::Running;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::ListParams;
use serde_json::{Value, json};
use testkit::wait::{SOON, eventually};

/// The answer of the leader in this pod: the gang runs, and these fields are added.
fn answer(pod: &Pod, more: Value) -> Value {
    let mut answer = json!({
        "trainingJob": "x", "worker": 0, "podUid": pod.uid(), "report": { "version": 1, "attempt": 1 },
        "gang": { "attempt": 1, "phase": "Running" },
    });
    answer.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    answer
}

/// The Warnings of a job with this reason, by their text.
async fn warnings(job: &Watched, reason: &str) -> Vec<String> {
    let events = job.space.api::<Event>().list(&ListParams::default()).await.unwrap().items;
    let is_it = |event: &Event| event.type_.as_deref() == Some("Warning") && event.reason.as_deref() == Some(reason);
    events.into_iter().filter(is_it).filter_map(|event| event.note).collect()
}

async fn warned(job: &Watched, reason: &str, note: &str) {
    let what = format!("the Event {reason}: {note}");
    eventually(&what, SOON, async || (warnings(job, reason).await == [note]).then_some(())).await;
}

/// With the action Report, a hang is only reported. The report comes while the program is silent, when the operator
/// hears of nothing else.
#[tokio::test]
async fn hung_program_is_reported_and_keeps_running() {
    let space = plane().space("hangs", json!({})).await;
    let (operator, agent) = (space.operator_that_asks().await, Agent::start(&space).await);
    let spec = json!({
        "podTemplate": { "metadata": { "annotations": { BY_HAND: "" } } }, "monitoring": { "metricsPort": agent.port },
        "failurePolicy": { "hang": { "action": "Report", "timeoutSeconds": 30 } },
    });
    let job = space.submit("x", spec).await;
    let pods = space.placed("x", 2).await;
    let loss = json!({ "value": 0.5, "time": Timestamp::now(), "source": "Output" });
    let progress = json!({ "progress": { "metrics": { "loss": loss } } });
    let with = |stall: Value| {
        let mut more = progress.clone();
        more["stall"] = stall;
        answer(&pods[0], more)
    };
    agent.answers(with(Value::Null));
    for pod in &pods {
        runs(&space, pod, 0).await;
    }
    job.state(Running).await;

    let found = "no step for 30 s after step 41, process 57 is stopped (SIGSTOP)";
    agent.answers(with(json!({ "hangs": true, "time": Timestamp::now(), "rank": 2, "message": found })));
    let note = format!("worker 0, rank 2: {found}");
    assert_eq!(job.condition("ProgressStalled", "True", "Hang").await.message, note);
    warned(&job, "ProgressStalled", &note).await;

    agent.answers(with(Value::Null));
    job.condition("ProgressStalled", "False", "Progresses").await;
    let status = job.status();
    assert_eq!((status.state, status.attempt, status.restart_count), (Some(Running), Some(1), Some(0)));
    assert_eq!(warnings(&job, "ProgressStalled").await, [note], "once");
    space.end(operator).await;
}

#[tokio::test]
async fn checkpoint_folder_problem_is_a_condition_until_fixed() {
    let space = plane().space("folder", json!({})).await;
    let (operator, agent) = (space.operator_that_asks().await, Agent::start(&space).await);
    let spec = json!({
        "podTemplate": { "metadata": { "annotations": { BY_HAND: "" } } }, "monitoring": { "metricsPort": agent.port },
        "checkpoint": { "storage": { "type": "pvc", "size": "1Gi" } },
    });
    let job = space.submit("x", spec).await;
    let pods = space.placed("x", 2).await;
    let with = |problems: Value| answer(&pods[0], json!({ "checkpoints": { "valid": 1, "problems": problems } }));
    agent.answers(with(json!([])));
    for pod in &pods {
        runs(&space, pod, 0).await;
    }
    job.state(Running).await;
    for (kind, reason, event) in
        [("NearlyFull", "NearlyFull", "VolumeNearlyFull"), ("Shared", "FolderShared", "FolderShared")]
    {
        let message = format!("{kind}, in the agent's words");
        agent.answers(with(json!([{ "kind": kind, "message": message }])));
        assert_eq!(job.condition("CheckpointsHealthy", "False", reason).await.message, message);
        warned(&job, event, &message).await;
    }
    agent.answers(with(json!([])));
    job.condition("CheckpointsHealthy", "True", "CheckpointsGood").await;
    assert_eq!(job.status().state, Some(Running));
    space.end(operator).await;
}
