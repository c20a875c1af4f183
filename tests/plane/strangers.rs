//! Objects that have the names that a job needs, and do not belong to it.

use crate::world::{DURATION, Space, plane};
use api::State::{Completed, Pending, Running, Suspended};
use api::TrainingJob;
use futures::future::join_all;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Service};
use kube::api::{DeleteParams, PropagationPolicy};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use testkit::wait::{SOON, eventually};

#[tokio::test]
async fn foreign_objects_are_left_alone_and_named() {
    let space = plane().space("strangers", json!({})).await;
    let operator = space.operator().await;
    let port = json!([{ "port": 1 }]);
    let pod = json!({ "restartPolicy": "Never", "containers": [{ "name": "x", "image": "x" }] });
    let claim = json!({ "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } });
    tokio::join!(
        stranger::<Service>(&space, "a", "Service", "headless", json!({ "spec": { "ports": port } })),
        stranger::<ConfigMap>(&space, "b", "ConfigMap", "config", json!({ "data": { "theirs": "1" } })),
        stranger::<PersistentVolumeClaim>(
            &space,
            "c",
            "PersistentVolumeClaim",
            "checkpoints",
            json!({ "spec": claim })
        ),
        stranger::<Job>(
            &space,
            "d",
            "Job",
            "training",
            json!({ "spec": { "suspend": true, "template": { "spec": pod } } })
        ),
    );
    space.end(operator).await;
}

/// The job names the object in its way, touches nothing, and continues by itself when the way is free.
async fn stranger<K>(space: &Space, name: &str, kind: &str, suffix: &str, mut object: Value)
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + serde::de::DeserializeOwned
        + serde::Serialize
        + Clone
        + std::fmt::Debug,
{
    let taken = format!("{name}-{suffix}");
    object["metadata"] = json!({ "name": taken });
    let theirs = space.create::<K>(object).await;
    let job = space.submit(name, json!({ "checkpoint": { "storage": { "type": "pvc", "size": "1Gi" } } })).await;
    let why = job.condition("Scheduled", "False", "NameTaken").await;
    assert_eq!(
        why.message,
        format!(
            "{kind}: {taken} exists and is not this TrainingJob's; delete it, or create the TrainingJob under another name"
        )
    );
    assert!(job.described().contains(&why.message));
    assert_eq!(job.status().state, Some(Pending));
    let still = space.has::<K>(&taken).await;
    assert_eq!(still.meta().uid, theirs.meta().uid);
    assert_eq!((still.labels(), still.owner_references()), (theirs.labels(), theirs.owner_references()));
    if kind != "Job" {
        assert!(space.get::<Job>(&format!("{name}-training")).await.is_none(), "the Job is the last to be made");
    }
    space.delete::<K>(&taken).await;
    job.state(Running).await;
}

/// A job is deleted and recreated under its name at once. The new job waits until the objects of the first are gone.
#[tokio::test]
async fn job_waits_for_objects_of_its_predecessor() {
    let space = plane().space("again", json!({})).await;
    let operator = space.operator().await;
    let cascades = [("back", PropagationPolicy::Background), ("fore", PropagationPolicy::Foreground)];
    join_all(cascades.map(async |(name, cascade)| {
        let storage = json!({ "type": "pvc", "size": "1Gi", "deletePolicy": "Delete" });
        let spec = json!({ "checkpoint": { "storage": storage } });
        let job = space.submit(name, spec.clone()).await;
        job.state(Running).await;
        let (first, claim) =
            (job.job().await, space.has::<PersistentVolumeClaim>(&format!("{name}-checkpoints")).await);
        let params = DeleteParams { propagation_policy: Some(cascade), ..DeleteParams::default() };
        space.delete_with::<TrainingJob>(name, params).await;
        eventually("the name to be free", SOON, async || space.get::<TrainingJob>(name).await.is_none().then_some(()))
            .await;

        let job = space.submit(name, spec).await;
        let uid = space.has::<TrainingJob>(name).await.uid().unwrap();
        let running = |s: &api::TrainingJobStatus| s.state == Some(Running) && s.workers.is_some_and(|w| w.active == 2);
        job.until("the second to run", running).await;
        assert_ne!(job.job().await.uid(), first.uid());
        assert_eq!(job.status().restart_count, Some(0), "what was left of the first is no failure of the second");
        let again = space.has::<PersistentVolumeClaim>(&format!("{name}-checkpoints")).await;
        assert!(
            again.uid() != claim.uid() && again.metadata.deletion_timestamp.is_none(),
            "a claim that goes serves nobody"
        );
        for meta in [
            job.job().await.metadata,
            space.has::<Service>(&format!("{name}-headless")).await.metadata,
            space.has::<ConfigMap>(&format!("{name}-config")).await.metadata,
            again.metadata,
        ] {
            assert_eq!(meta.owner_references.unwrap()[0].uid, uid);
        }
    }))
    .await;
    space.end(operator).await;
}

/// Objects that a predecessor left with `--cascade=orphan` have no owner. Users decide what becomes of them.
#[tokio::test]
async fn orphans_of_a_predecessor_are_named() {
    let space = plane().space("left", json!({})).await;
    let operator = space.operator().await;
    let job = space.submit("x", json!({})).await;
    job.state(Running).await;
    let orphan = DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..DeleteParams::default() };
    space.delete_with::<TrainingJob>("x", orphan).await;
    eventually("the name to be free", SOON, async || space.get::<TrainingJob>("x").await.is_none().then_some(())).await;
    let job = space.submit("x", json!({})).await;
    for (kind, name) in [("Service", "x-headless"), ("ConfigMap", "x-config"), ("Job", "x-training")] {
        let left = format!("{kind}: {name} is left over from an earlier TrainingJob of this name; delete it");
        // Its pods still run, and would write to the same checkpoints.
        let runs = format!("if its Job was left over: kubectl delete job {name} -n {}; ", space.name);
        let says = |message: &str| if kind == "Job" { message.contains(&runs) } else { message == left };
        job.until(&left, |s| s.conditions.iter().any(|c| c.type_ == "Scheduled" && says(&c.message))).await;
        match kind {
            "Service" => space.delete::<Service>(name).await,
            "ConfigMap" => space.delete::<ConfigMap>(name).await,
            _ => space.delete::<Job>(name).await,
        }
    }
    job.state(Running).await;
    space.end(operator).await;
}

/// A claim without an owner that carries our label holds the checkpoints of an earlier job of this name.
#[tokio::test]
async fn kept_claim_is_reused() {
    let space = plane().space("kept", json!({})).await;
    let operator = space.operator().await;
    let spec = json!({ "checkpoint": { "storage": { "type": "pvc", "size": "1Gi" } } });
    let job = space.submit("x", spec.clone()).await;
    job.state(Running).await;
    let claim = space.has::<PersistentVolumeClaim>("x-checkpoints").await;
    job.delete().await;
    eventually("its objects to be collected", SOON, async || {
        (space.get::<Job>("x-training").await.is_none() && space.pods("x").await.is_empty()).then_some(())
    })
    .await;
    let job = space.submit("x", spec).await;
    job.state(Running).await;
    let again = space.has::<PersistentVolumeClaim>("x-checkpoints").await;
    assert_eq!(again.uid(), claim.uid());
    let claims = space.writes("persistentvolumeclaims");
    // A late watch makes the operator try again, and the API server refuses that.
    assert_eq!(claims.iter().filter(|write| write.code != 409).count(), 1, "{claims:?}");
    space.end(operator).await;
}

/// Objects with our labels that are not ours neither complete a job nor fail it. One is a copy in its own namespace,
/// the other a copy in another one, as a restored backup makes it.
#[tokio::test]
async fn copied_labels_do_not_affect_a_job() {
    let space = plane().space("copies", json!({})).await;
    let elsewhere = plane().space("copied", json!({})).await;
    let operator = space.operator().await;
    let job = space.submit("x", json!({})).await;
    job.state(Running).await;
    let template = json!({
        "metadata": { "labels": space.pods("x").await[0].labels(), "annotations": { DURATION: "1s" } },
        "spec": { "restartPolicy": "Never", "containers": [{ "name": "training", "image": "none" }] },
    });
    let mut template = template;
    let labels = template["metadata"]["labels"].as_object_mut().unwrap();
    labels
        .retain(|name, _| !name.starts_with("batch.kubernetes.io/") && name != "job-name" && name != "controller-uid");
    for space in [&space, &elsewhere] {
        let metadata = json!({ "name": "copy", "labels": job.job().await.labels() });
        let spec = json!({ "completionMode": "Indexed", "completions": 2, "parallelism": 2, "template": template });
        space.create::<Job>(json!({ "metadata": metadata, "spec": spec })).await;
        let complete =
            |copy: &Job| copy.status.as_ref().is_some_and(|s| s.succeeded == Some(2) && s.completion_time.is_some());
        space.until::<Job>("copy", "to complete", complete).await;
        // Any reaction to the copy would come before the reaction to this change.
        job.set(json!({ "suspend": true })).await;
        job.state(Suspended).await;
        job.set(json!({ "suspend": false })).await;
        job.state(Running).await;
    }
    assert!(!job.states().contains(&Completed), "{:?}", job.states());
    assert_eq!(job.status().restart_count, Some(0));
    plane().cluster.kubectl(&["delete", "namespace", &elsewhere.name, "--wait=false"]);
    space.end(operator).await;
}
