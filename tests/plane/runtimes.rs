//! Templates: taken once, checked by the API server's own rules, and kept with the job.

use crate::world::{BY_HAND, Space, plane};
use api::State::{Pending, Running};
use api::{RuntimeKind, TrainingJob};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Container, PodSpec};
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use testkit::wait::{SOON, eventually};

const KIND: RuntimeKind = RuntimeKind::TrainingRuntime;

fn runtimes(space: &Space) -> Api<DynamicObject> {
    Api::namespaced_with(space.client.clone(), &space.name, &KIND.resource())
}

async fn create(space: &Space, name: &str, spec: Value) {
    let object =
        json!({ "apiVersion": "ml.example.com/v1", "kind": KIND.as_str(), "metadata": { "name": name }, "spec": spec });
    runtimes(space).create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
}

/// Sets the spec of the template.
async fn edit(space: &Space, name: &str, spec: Value) {
    let patch = Patch::Merge(json!({ "spec": spec }));
    runtimes(space).patch(name, &PatchParams::default(), &patch).await.unwrap();
}

/// A template as a cluster's platform engineers write it. The test sets the state of the pods.
fn template() -> Value {
    json!({
        "numWorkers": 3, "framework": "none", "image": "theirs:1", "command": ["train"], "args": ["--fast"], "checkpoint": { "enabled": false },
        "gpusPerWorker": 0, "env": [{ "name": "A", "value": "theirs" }, { "name": "B", "value": "theirs" }],
        "podTemplate": {
            "metadata": { "annotations": { BY_HAND: "" }, "labels": { "team": "platform" } },
            "spec": { "containers": [{ "name": "training", "tty": true }] },
        },
    })
}

/// A job that gives no more of its template than the name.
fn named(name: &str, more: Value) -> Value {
    let mut fields = json!({
        "runtimeRef": { "kind": "TrainingRuntime", "name": name }, "numWorkers": null, "gpusPerWorker": null, "framework": null,
        "image": null, "command": null, "checkpoint": null,
    });
    fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    fields
}

async fn pod(space: &Space, job: &str) -> (i32, PodSpec) {
    let made: Job = space.has(&format!("{job}-training")).await;
    let spec = made.spec.unwrap();
    (spec.completions.unwrap(), spec.template.spec.unwrap())
}

/// Deletes the Job of a TrainingJob and waits for the next one.
async fn made_again(space: &Space, job: &str) -> (i32, PodSpec) {
    let name = format!("{job}-training");
    let first: Job = space.has(&name).await;
    space.delete::<Job>(&name).await;
    let again = eventually("the Job to be made again", SOON, async || {
        space.remove_stopping(job).await;
        let job: Option<Job> = space.get(&name).await;
        job.filter(|job| job.metadata.uid != first.metadata.uid)
    });
    again.await;
    pod(space, job).await
}

fn training(pod: &PodSpec) -> &Container {
    pod.containers.iter().find(|container| container.name == "training").unwrap()
}

fn variable<'p>(pod: &'p PodSpec, name: &str) -> Option<&'p str> {
    training(pod).env.as_ref()?.iter().find(|variable| variable.name == name)?.value.as_deref()
}

#[tokio::test]
async fn job_keeps_the_template_it_started_with() {
    let space = plane().space("runtimes", json!({})).await;
    let operator = space.operator().await;
    create(&space, "theirs", template()).await;
    let own = json!({ "numWorkers": 2, "env": [{ "name": "B", "value": "mine" }] });
    let job = space.submit("x", named("theirs", own)).await;
    let (workers, made) = pod(&space, "x").await;
    assert_eq!((workers, training(&made).image.as_deref(), training(&made).tty), (2, Some("theirs:1"), Some(true)));
    assert_eq!((variable(&made, "A"), variable(&made, "B")), (Some("theirs"), Some("mine")));
    let status = job.until("the template to stand in the status", |status| status.inherited.is_some()).await;
    let taken = status.inherited.unwrap().runtime.unwrap();
    assert_eq!((taken.kind, taken.name.as_str(), taken.generation), (KIND, "theirs", 1));
    assert_eq!(taken.spec["image"], "theirs:1");

    // A change to the template, or its deletion, concerns later jobs. This holds with another operator that has not
    // seen it, too.
    edit(&space, "theirs", json!({ "image": "theirs:2", "numWorkers": 4 })).await;
    operator.end().await;
    let operator = space.operator().await;
    let later = space.submit("later", named("theirs", json!({}))).await;
    let (workers, made) = pod(&space, "later").await;
    assert_eq!((workers, training(&made).image.as_deref()), (4, Some("theirs:2")));
    let its_own = later.until("its own", |status| status.inherited.is_some()).await.inherited.unwrap();
    assert_eq!(its_own.runtime.unwrap().generation, 2);
    runtimes(&space).delete("theirs", &DeleteParams::default()).await.unwrap();
    let (workers, again) = made_again(&space, "x").await;
    assert_eq!((workers, training(&again).image.as_deref()), (2, Some("theirs:1")));
    job.delete().await;
    later.delete().await;
    space.end(operator).await;
}

/// As after an upgrade to an operator that has other defaults.
#[tokio::test]
async fn job_keeps_its_recorded_defaults() {
    let space = plane().space("defaults", json!({})).await;
    let operator = space.operator().await;
    let by_hand = json!({ "metadata": { "annotations": { BY_HAND: "" } } });
    let fields =
        json!({ "image": null, "command": null, "args": null, "framework": "pytorch", "podTemplate": by_hand });
    let job = space.submit("x", fields).await;
    let image = |pod: &PodSpec| training(pod).image.clone();
    let (_, made) = pod(&space, "x").await;
    assert_eq!(image(&made).as_deref(), Some(api::defaults::image(api::Framework::Pytorch)));
    let status = job.until("the defaults to be recorded", |status| status.inherited.is_some()).await;
    let defaults = status.inherited.unwrap().defaults.value();
    assert_eq!((&defaults["image"], &defaults["failurePolicy"]["backoffLimit"]), (&json!(image(&made)), &json!(3)));
    operator.end().await;

    let theirs = json!({ "image": "theirs:1", "command": ["theirs"], "failurePolicy": { "backoffLimit": 7 } });
    let patch = json!({ "status": { "inherited": { "defaults": theirs } } });
    let jobs: Api<TrainingJob> = Api::namespaced(space.client.clone(), &space.name);
    jobs.patch_status("x", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    let operator = space.operator().await;
    let (_, again) = made_again(&space, "x").await;
    assert_eq!(image(&again).as_deref(), Some("theirs:1"));
    let is_reported =
        |config: &ConfigMap| config.data.iter().flatten().any(|(_, text)| text.contains(r#""backoffLimit":7"#));
    space.until::<ConfigMap>("x-config", "the agents to be told the recorded limit", is_reported).await;
    job.delete().await;
    space.end(operator).await;
}

#[tokio::test]
async fn job_waits_for_a_runnable_template() {
    let space = plane().space("runtimes-wait", json!({})).await;
    let operator = space.operator().await;
    let job = space.submit("x", named("missing", json!({}))).await;
    let condition = job.condition("Accepted", "False", "RuntimeNotFound").await;
    let place = format!("there is no TrainingRuntime missing in namespace {}: create it", space.name);
    assert!(condition.message.starts_with(&place), "{}", condition.message);
    assert_eq!(job.status().state, Some(Pending));
    // The rules are those of the CRD, in the API server's words, and those that only the operator has.
    let mut spec = template();
    spec["env"] = json!([{ "name": "MASTER_ADDR", "value": "x" }]);
    create(&space, "missing", spec).await;
    let condition = job.condition("Accepted", "False", "InvalidRuntime").await;
    let says = |words: &str| assert!(condition.message.contains(words), "{words}: {}", condition.message);
    says("with TrainingRuntime missing (generation 1) can't run: spec.env[0]");
    says("MASTER_ADDR");
    edit(&space, "missing", json!({ "env": null, "podTemplate": { "spec": { "dnsPolicy": 1 } } })).await;
    job.until("the other words", |status| {
        let accepted = status.conditions.iter().find(|condition| condition.type_ == "Accepted");
        accepted.is_some_and(|is| {
            is.message.contains("spec.podTemplate.spec.dnsPolicy") && is.message.contains("generation 2")
        })
    })
    .await;
    assert_eq!(space.get::<Job>("x-training").await, None);
    let no_longer = json!({ "spec": { "dnsPolicy": null } });
    edit(&space, "missing", json!({ "podTemplate": no_longer, "parameters": [{ "name": "team" }] })).await;
    job.until("the parameter without a value", |status| {
        let accepted = status.conditions.iter().find(|condition| condition.type_ == "Accepted");
        accepted.is_some_and(|is| is.message.contains("runtimeRef.parameters.team is missing and has no default"))
    })
    .await;
    let parameters = json!([{ "name": "team", "default": "vision" }]);
    edit(&space, "missing", json!({ "parameters": parameters, "labels": { "team": "$<params.team>" } })).await;
    let labelled =
        |job: &Job| job.metadata.labels.iter().flatten().any(|(key, value)| key == "team" && value == "vision");
    space.until::<Job>("x-training", "the label by the parameter", labelled).await;
    let (workers, _) = pod(&space, "x").await;
    assert_eq!(workers, 3);
    job.condition("Accepted", "True", "Valid").await;
    assert_ne!(job.status().state, Some(Running), "its pods are led by hand");
    job.delete().await;
    space.end(operator).await;
}

/// An operator of one namespace has no right to the cluster's templates.
#[tokio::test]
async fn template_without_read_access_is_reported() {
    let space = plane().space("runtimes-denied", json!({})).await;
    let operator = space.operator().await;
    let mut fields = named("any", json!({}));
    fields["runtimeRef"] = json!({ "name": "any" });
    let job = space.submit("y", fields).await;
    let condition = job.condition("Accepted", "False", "RuntimeNotFound").await;
    assert!(condition.message.starts_with("this operator works in one namespace"), "{}", condition.message);
    assert!(condition.message.contains("with a TrainingRuntime of this namespace"), "{}", condition.message);
    job.delete().await;
    operator.end().await;
    space.close(&["clustertrainingruntimes"]).await;
}
