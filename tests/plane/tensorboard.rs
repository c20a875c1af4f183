//! The TensorBoard beside a job.

use crate::world::{parsed, plane, uids};
use api::State::{Pending, Running, Suspended};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{PersistentVolume, Pod, Service};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use testkit::wait::{SOON, eventually};

fn with_board(more: Value) -> Value {
    let mut fields = json!({
        "monitoring": { "tensorboardEnabled": true },
        "checkpoint": { "storage": { "type": "nfs", "nfsServer": "nfs.example", "nfsPath": "/p" } },
    });
    fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    fields
}

#[tokio::test]
async fn tensorboard_starts_and_ends_with_its_job() {
    let space = plane().space("board", json!({})).await;
    let operator = space.operator().await;

    // It does not start before the workers, because its volume would be bound where they can't go.
    let nowhere = json!({ "scheduling": { "nodeSelector": { "there": "nowhere" } } });
    let waits = space.submit("waits", with_board(nowhere)).await;
    waits.condition("Scheduled", "False", "Unschedulable").await;

    let job = space.submit("x", with_board(json!({}))).await;
    job.state(Running).await;
    let is_up = |d: &Deployment| d.status.as_ref().and_then(|s| s.ready_replicas) == Some(1);
    let deployment = space.until::<Deployment>("x-tensorboard", "its pod is ready", is_up).await;
    let service = space.has::<Service>("x-tensorboard").await;
    let workers = uids(&space.pods("x").await);
    assert_eq!(workers.len(), usize::try_from(job.status().workers.unwrap().desired).unwrap());
    assert_eq!(waits.states().last(), Some(&Pending));
    assert!(space.get::<Deployment>("waits-tensorboard").await.is_none());

    space.delete::<Deployment>("x-tensorboard").await;
    space.delete::<Service>("x-tensorboard").await;
    space.until::<Deployment>("x-tensorboard", "another one", |d| d.uid() != deployment.uid()).await;
    space.until::<Service>("x-tensorboard", "another one", |s| s.uid() != service.uid()).await;
    assert_eq!(uids(&space.pods("x").await), workers, "the workers never noticed");
    assert!(space.has::<Service>("x-headless").await.metadata.deletion_timestamp.is_none());

    job.delete().await;
    eventually("the TensorBoard to be gone", SOON, async || {
        let left = (space.get::<Deployment>("x-tensorboard").await, space.get::<Service>("x-tensorboard").await);
        (left.0.is_none() && left.1.is_none()).then_some(())
    })
    .await;
    space.end(operator).await;
}

/// Where only one node can mount the volume, the TensorBoard runs beside the worker and never in the way of the next
/// one. The namespace is as strict as there are.
#[tokio::test]
async fn tensorboard_releases_its_volume_on_suspend() {
    let space = plane().space("one-node", json!({ "pod-security.kubernetes.io/enforce": "restricted" })).await;
    let operator = space.operator().await;
    let volumes = Api::<PersistentVolume>::all(space.client.clone());
    let volume = json!({ "metadata": { "name": space.name }, "spec": {
        "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": space.name,
        "hostPath": { "path": "/nowhere" },
    } });
    volumes.create(&PostParams::default(), &parsed(volume)).await.unwrap();

    let context = json!({ "runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": { "type": "RuntimeDefault" } });
    let training = json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } });
    let template = json!({ "spec": {
        "securityContext": context, "containers": [{ "name": "training", "securityContext": training }],
    } });
    let storage = json!({ "storage": { "type": "pvc", "size": "1Gi", "storageClassName": space.name } });
    let fields = json!({ "numWorkers": 1, "checkpoint": storage, "podTemplate": template });
    let job = space.submit("x", with_board(fields)).await;
    job.state(Running).await;
    let up = |d: &Deployment| d.status.as_ref().and_then(|s| s.ready_replicas) == Some(1);
    let down = |d: &Deployment| d.status.as_ref().and_then(|s| s.replicas).unwrap_or(0) == 0;
    space.until::<Deployment>("x-tensorboard", "its pod is ready", up).await;
    let boards = ListParams::default().labels("component=tensorboard");
    let board = space.api::<Pod>().list(&boards).await.unwrap().items.remove(0);
    let node = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    assert_eq!(node(&board), node(&space.pods("x").await[0]));

    job.set(json!({ "suspend": true })).await;
    job.state(Suspended).await;
    space.until::<Deployment>("x-tensorboard", "no pod", down).await;
    job.set(json!({ "suspend": false })).await;
    job.until("the second attempt to run", |s| s.state == Some(Running) && s.attempt == Some(2)).await;
    space.until::<Deployment>("x-tensorboard", "its pod is ready again", up).await;
    volumes.delete(&space.name, &DeleteParams::default()).await.unwrap();
    space.end(operator).await;
}

#[tokio::test]
async fn failed_tensorboard_is_reported_and_the_job_runs() {
    let space = plane().space("no-board", json!({})).await;
    let operator = space.operator().await;
    let mine = json!({ "metadata": { "name": "x-tensorboard" }, "spec": { "ports": [{ "port": 80 }] } });
    let mine = space.create::<Service>(mine).await;
    let job = space.submit("x", with_board(json!({}))).await;
    job.state(Running).await;
    eventually("the event", SOON, async || job.described().contains("TensorBoardFailed").then_some(())).await;
    assert!(job.described().contains("x-tensorboard exists and is not this TrainingJob's"), "{}", job.described());
    space.has::<Deployment>("x-tensorboard").await;
    let still = space.has::<Service>("x-tensorboard").await;
    assert_eq!((still.uid(), still.resource_version()), (mine.uid(), mine.resource_version()));
    assert_eq!(job.status().state, Some(Running));
    space.end(operator).await;
}
