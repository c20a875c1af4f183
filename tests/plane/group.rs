//! A gang that is placed as a whole, where its scheduler is installed late and its PodGroup is deleted.

use crate::world::plane;
use api::State::{Pending, Running};
use kube::ResourceExt;
use objects::VolcanoPodGroup;
use serde_json::json;
use testkit::cluster::pod_groups;

#[tokio::test]
async fn gang_waits_for_its_scheduler_and_keeps_its_group() {
    let space = plane().space("group", json!({})).await;
    let operator = space.operator().await;
    // Volcano's own scheduler does not run here. This test is about the objects.
    let grouped = |nodes: serde_json::Value| {
        json!({ "scheduling": {
            "gang": "volcano", "queue": "research", "schedulerName": "default-scheduler", "nodeSelector": nodes,
        } })
    };
    let job = space.submit("x", grouped(json!({}))).await;
    let why = job.condition("Scheduled", "False", "GangSchedulerMissing").await.message;
    assert!(why.starts_with("PodGroup: the API server has no PodGroup of scheduling.volcano.sh/v1beta1"), "{why}");
    assert_eq!((job.states(), space.pods("x").await.len()), (vec![Pending], 0));

    // The kind is installed.
    let kind = pod_groups("scheduling.volcano.sh", "v1beta1").to_string();
    plane().cluster.kubectl_with(&["apply", "-f", "-"], &kind);
    job.state(Running).await;
    let pods = space.placed("x", 2).await;
    let name = &pods[0].annotations()["scheduling.k8s.io/group-name"];
    let group = space.has::<VolcanoPodGroup>(name).await;
    assert_eq!((group.spec.min_member, group.spec.queue.as_deref()), (2, Some("research")));
    assert!(!job.job().await.labels().contains_key("kueue.x-k8s.io/queue-name"));

    // The deleted group of a job that waits for nodes is recreated. A running job needs none.
    let waits = space.submit("waits", grouped(json!({ "there": "nowhere" }))).await;
    waits.condition("Scheduled", "False", "Unschedulable").await;
    let of_waiting = space.pods("waits").await[0].annotations()["scheduling.k8s.io/group-name"].clone();
    let first = space.has::<VolcanoPodGroup>(&of_waiting).await;
    space.delete::<VolcanoPodGroup>(&of_waiting).await;
    space.until::<VolcanoPodGroup>(&of_waiting, "another one", |group| group.uid() != first.uid()).await;
    assert_eq!(job.states().last(), Some(&Running));
    space.end(operator).await;
}
