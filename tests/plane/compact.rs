//! Watches in Protobuf bring what watches in JSON bring.

use crate::world::{Space, is_oldest, plane};
use futures::TryStreamExt;
use http::Response;
use http::header::CONTENT_TYPE;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, WatchEvent, WatchParams};
use kube::client::ClientBuilder;
use kube::{Api, Client, Resource};
use observe::{SlimJob, SlimPod};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fmt::Debug;
use std::sync::mpsc;
use testkit::wait::SOON;
use tower::util::MapResponseLayer;
use trainingjob_operator::controller;

#[tokio::test]
async fn changes_are_the_same_in_protobuf_and_in_json() {
    let space = plane().space("compact", json!({})).await;
    let since = space.api::<Pod>().list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let owner = json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u", "controller": true });
    let rules = json!([{ "action": "Restart", "exitCodes": { "operator": "In", "values": [77] } }]);
    let pod = space.create::<Pod>(json!({
        "metadata": { "name": "p", "labels": { "a": "", "b": "c" }, "annotations": { "d": "\u{1f600}\n\"" }, "ownerReferences": [owner] },
        "spec": {
            "nodeName": "none", "restartPolicy": "Never", "terminationGracePeriodSeconds": 7,
            "tolerations": [{ "operator": "Exists" }],
            "containers": [
                { "name": "training", "image": "i", "restartPolicy": "Never", "restartPolicyRules": rules },
                { "name": "other", "image": "i" },
            ],
        },
    })).await;
    // A text that is empty, a time that is not set, the first second of 1970, and an exit code of 0.
    let ended = json!({ "exitCode": 0, "signal": 9, "reason": "Completed", "message": "", "startedAt": "1970-01-01T00:00:00Z", "finishedAt": null });
    space.set_pod(&pod, json!({
        "phase": "Running", "reason": "R", "message": "\u{e9}", "podIP": "10.1.2.3", "podIPs": [{ "ip": "10.1.2.3" }],
        "conditions": [
            { "type": "Ready", "status": "False", "reason": "", "lastTransitionTime": "2030-01-02T03:04:05Z" },
            { "type": "PodScheduled", "status": "True", "message": "m", "lastTransitionTime": null },
        ],
        "initContainerStatuses": [container("first", &json!({ "terminated": ended }), &json!({}))],
        "containerStatuses": [
            container("training", &json!({ "running": { "startedAt": "2030-01-02T03:04:06Z" } }), &json!({ "terminated": ended })),
            container("other", &json!({ "waiting": { "reason": "ImagePullBackOff", "message": "no such image" } }), &json!({})),
        ],
    })).await;
    for how in [DeleteParams::default(), DeleteParams::default().grace_period(0)] {
        space.api::<Pod>().delete("p", &how).await.unwrap();
    }
    let template =
        json!({ "spec": { "restartPolicy": "Never", "containers": [{ "name": "training", "image": "i" }] } });
    space.create::<Job>(json!({
        "metadata": { "name": "j" },
        "spec": { "suspend": true, "parallelism": 0, "completions": 3, "completionMode": "Indexed", "template": template },
    })).await;
    space.until::<Job>("j", "suspended", |job| job.status.as_ref().is_some_and(|s| s.conditions.is_some())).await;
    space.patch::<Job>("j", json!({ "spec": { "suspend": false } })).await;
    space.until::<Job>("j", "started", |job| job.status.as_ref().is_some_and(|s| s.start_time.is_some())).await;
    space.api::<Job>().delete("j", &DeleteParams::background()).await.unwrap();

    let of_pod = same_changes::<SlimPod>(&space, &since).await;
    let reported = of_pod.iter().find(|pod| pod.contains("phase: Some(\n            \"Running\"")).expect("a status");
    for part in ["has_restart_rules: true", "1970-01-01", "ImagePullBackOff", "\u{e9}", "10.1.2.3"] {
        assert!(reported.contains(part) || is_oldest() && part.starts_with("has_restart"), "{part}: {reported}");
    }
    let of_job = same_changes::<SlimJob>(&space, &since).await;
    assert!(of_job.iter().any(|job| job.contains("type_: \"Suspended\"")), "{of_job:#?}");
}

/// A container's part of a pod's status.
fn container(name: &str, state: &Value, last_state: &Value) -> Value {
    json!({
        "name": name, "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state, "lastState": last_state,
    })
}

/// The changes of a kind until its object is deleted. A client in JSON and one with the operator's layer read the same.
async fn same_changes<K>(space: &Space, since: &str) -> Vec<String>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned + Clone + Debug,
{
    let (report, types) = mpsc::channel();
    let reported = MapResponseLayer::new(move |answer: Response<_>| {
        report.send(answer.headers()[CONTENT_TYPE].clone()).unwrap();
        answer
    });
    let compact = ClientBuilder::try_from(space.plane.cluster.config().await).unwrap().with_layer(&reported);
    let compact = compact.with_layer(&controller::compact_watches()).build();
    let json = changes::<K>(space.client.clone(), space, since).await;
    let protobuf = changes::<K>(compact, space, since).await;
    assert_eq!(types.try_iter().collect::<Vec<_>>(), ["application/vnd.kubernetes.protobuf;stream=watch"]);
    assert_eq!(protobuf.len(), json.len());
    for (protobuf, json) in protobuf.iter().zip(&json) {
        assert!(protobuf == json, "{protobuf}\nand in JSON {json}");
    }
    json
}

async fn changes<K>(client: Client, space: &Space, since: &str) -> Vec<String>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned + Clone + Debug,
{
    let api = Api::<K>::namespaced(client, &space.name);
    let mut events = Box::pin(api.watch(&WatchParams::default(), since).await.unwrap());
    let mut seen = Vec::new();
    let until_deleted = async {
        while let Some(event) = events.try_next().await.unwrap() {
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => seen.push(format!("{object:#?}")),
                WatchEvent::Deleted(object) => return seen.push(format!("{object:#?}")),
                WatchEvent::Bookmark(_) => {}
                WatchEvent::Error(status) => panic!("{status:?}"),
            }
        }
    };
    tokio::time::timeout(SOON, until_deleted).await.expect("the object was deleted");
    seen
}
