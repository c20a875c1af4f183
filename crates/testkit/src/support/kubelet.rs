//! The kubelet of every simulated node. A pod that has a node runs. A deleted pod ends as an agent ends it, and goes. A
//! program ends when the test says so.

use super::witness::{Kind, Witness};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, EvictParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

pub fn start(client: Client, witness: &Witness) {
    let mut pods = witness.pods();
    tokio::spawn(async move {
        let (mut started, mut stopped) = (HashSet::new(), HashSet::new());
        while let Some(pod) = pods.recv().await {
            let uid = pod["metadata"]["uid"].to_string();
            if pod["spec"]["nodeName"].is_null() {
                continue;
            }
            if !pod["metadata"]["deletionTimestamp"].is_null() {
                if stopped.insert(uid) {
                    tokio::spawn(stop(client.clone(), pod));
                }
            } else if pod["status"]["phase"] == "Pending" && started.insert(uid) {
                tokio::spawn(run(client.clone(), pod));
            }
        }
    });
}

async fn run(client: Client, pod: Arc<Value>) {
    let now = now();
    let conditions = ["Initialized", "Ready", "ContainersReady"]
        .map(|type_| json!({ "type": type_, "status": "True", "lastTransitionTime": now }));
    let status = json!({
        "phase": "Running",
        "startTime": now,
        "conditions": conditions,
        "containerStatuses": containers(&pod, true, &json!({ "running": { "startedAt": now } })),
    });
    report(&client, &pod, status).await;
}

/// Ends the program as SIGTERM does, and then removes the pod.
async fn stop(client: Client, pod: Arc<Value>) {
    if pod["status"]["phase"] == "Pending" || pod["status"]["phase"] == "Running" {
        let message = json!({ "version": 1, "phase": "Exited", "exitCode": 143, "stoppedBy": 15, "stderrTail": "" });
        end(&client, &pod, 143, &message).await;
    }
    let metadata = &pod["metadata"];
    let uid = metadata["uid"].as_str().map(str::to_owned);
    let parameters = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions { uid, resource_version: None }),
        ..DeleteParams::default()
    };
    // Another client may have been quicker. The pod is gone either way.
    let _ = api(&client, &pod).delete(metadata["name"].as_str().unwrap_or_default(), &parameters).await;
}

pub async fn end(client: &Client, pod: &Value, code: i32, message: &Value) {
    let started = &pod["status"]["startTime"];
    let reason = if code == 0 { "Completed" } else { "Error" };
    let state = json!({ "terminated": {
        "exitCode": code, "reason": reason, "message": message.to_string(), "startedAt": started, "finishedAt": now(),
    }});
    let now = now();
    let conditions = ["Ready", "ContainersReady"]
        .map(|type_| json!({ "type": type_, "status": "False", "reason": "PodCompleted", "lastTransitionTime": now }));
    let status = json!({
        "phase": if code == 0 { "Succeeded" } else { "Failed" },
        "conditions": conditions,
        "containerStatuses": containers(pod, false, &state),
    });
    report(client, pod, status).await;
}

/// A strategic patch, so that conditions of others (DisruptionTarget, PodScheduled) stay.
async fn report(client: &Client, pod: &Value, status: Value) {
    let patch = json!({ "metadata": { "uid": pod["metadata"]["uid"] }, "status": status });
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    let uid = pod["metadata"]["uid"].as_str().map(str::to_owned);
    let (api, patch) = (api(client, pod), Patch::Strategic(patch));
    // A busy API server may answer that other writers were faster. A kubelet tries again.
    while let Err(error) = api.patch_status(name, &PatchParams::default(), &patch).await {
        // A pod that has gone meanwhile needs no status.
        let there = api.get_opt(name).await.ok().is_none_or(|there| there.is_some_and(|there| there.uid() == uid));
        if !there {
            return;
        }
        eprintln!("kubelet: status of {name}: {error}; trying again");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn containers(pod: &Value, running: bool, state: &Value) -> Vec<Value> {
    let containers = pod["spec"]["containers"].as_array().cloned().unwrap_or_default();
    let status = |container: Value| {
        json!({
            "name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0,
            "ready": running, "started": running, "state": state,
        })
    };
    containers.into_iter().map(status).collect()
}

fn api(client: &Client, pod: &Value) -> Api<Pod> {
    Api::namespaced(client.clone(), pod["metadata"]["namespace"].as_str().unwrap_or_default())
}

fn now() -> String {
    format!("{:.0}", Timestamp::now())
}

/// The pod of a worker in a running attempt.
pub fn running(space: &super::witness::Space, attempt: u32, worker: u32) -> Option<&Value> {
    running_of(space, "worker", attempt, worker)
}

/// The pod of a role in a running attempt.
pub fn running_of<'a>(space: &'a super::witness::Space, role: &str, attempt: u32, index: u32) -> Option<&'a Value> {
    let (attempt, index) = (attempt.to_string(), index.to_string());
    space.of_kind(Kind::Pod).find(|pod| {
        let labels = &pod["metadata"]["labels"];
        labels["ml.example.com/incarnation"] == attempt
            && labels["component"] == role
            && labels["batch.kubernetes.io/job-completion-index"] == index
            && pod["status"]["phase"] == "Running"
            && pod["metadata"]["deletionTimestamp"].is_null()
    })
}

/// Ends the worker's program.
pub async fn exit(client: &Client, pod: &Value, code: i32) {
    let tail = if code == 0 { "" } else { "ValueError: the loss is not a number\n" };
    let message = json!({ "version": 1, "phase": "Exited", "exitCode": code, "stderrTail": tail });
    end(client, pod, code, &message).await;
}

/// Whether this pod fetches data, or publishes a result.
pub fn moves_data(pod: &Value) -> bool {
    pod["metadata"]["labels"]["component"] == "upkeep"
}

/// Reports that the agent of a pod that fetches or publishes has done it.
pub async fn has_moved_data(client: &Client, pod: &Value) {
    let mut words = json!({ "version": 1, "phase": "Exited" });
    if pod["metadata"]["labels"]["ml.example.com/task"] == "fetch" {
        words["fetched"] = json!([{ "name": "model", "key": "k", "revision": "r", "files": 1, "bytes": 2 }]);
    } else {
        words["published"] = json!({ "record": {
            "version": 1, "uri": "s3://bucket/results/x", "name": "x", "digest": "d", "fileCount": 1, "bytes": 2,
            "published": "2026-11-26T20:00:00Z",
        } });
    }
    end(client, pod, 0, &words).await;
}

/// A claim for the cache of what is fetched.
pub fn cache_claim() -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "cache" },
        "spec": { "accessModes": ["ReadWriteMany"], "resources": { "requests": { "storage": "1Gi" } } },
    })
}

/// The fields of a job whose model is fetched into that cache, and whose result is published.
pub fn data_fields() -> Value {
    json!({
        "model": "s3://bucket/model", "cache": { "pvcName": "cache" }, "output": "s3://bucket/results",
        "checkpoint": { "storage": { "type": "pvc" } },
    })
}

/// Evicts a pod, as `kubectl drain` does.
pub async fn evict(client: &Client, pod: &Value) {
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    api(client, pod).evict(name, &EvictParams::default()).await.expect("no budget protects it");
}

/// Evicts a pod that may be gone by now.
pub async fn try_to_evict(client: &Client, pod: &Value) {
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    let _ = api(client, pod).evict(name, &EvictParams::default()).await;
}

/// Deletes a pod, as `kubectl delete pod` does.
pub async fn delete(client: &Client, pod: &Value) {
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    let _ = api(client, pod).delete(name, &DeleteParams::default()).await;
}

/// The pod's node is gone. The pod garbage collector marks the pod, sets it to failed, and deletes it without
/// confirmation.
pub async fn lose(client: &Client, pod: &Value) {
    let condition = json!({
        "type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC", "message": "PodGC: node no longer exists",
        "lastTransitionTime": now(),
    });
    report(client, pod, json!({ "phase": "Failed", "conditions": [condition] })).await;
    let metadata = &pod["metadata"];
    let preconditions = Preconditions { uid: metadata["uid"].as_str().map(str::to_owned), resource_version: None };
    let at_once =
        DeleteParams { grace_period_seconds: Some(0), preconditions: Some(preconditions), ..DeleteParams::default() };
    let _ = api(client, pod).delete(metadata["name"].as_str().unwrap_or_default(), &at_once).await;
}
