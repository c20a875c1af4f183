//! Decodes only what is kept. Otherwise half of the operator's work would be to decode data that it discards.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, PodCondition, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;

/// All but unused fields and `managedFields`, which is a tree of every field of the object.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    owner_references: Option<Vec<OwnerReference>>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
    finalizers: Option<Vec<String>>,
}

/// For a field `metadata` that is only read.
pub fn metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let meta = Meta::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: meta.name,
        namespace: meta.namespace,
        uid: meta.uid,
        resource_version: meta.resource_version,
        labels: meta.labels,
        annotations: meta.annotations,
        owner_references: meta.owner_references,
        creation_timestamp: meta.creation_timestamp,
        deletion_timestamp: meta.deletion_timestamp,
        deletion_grace_period_seconds: meta.deletion_grace_period_seconds,
        finalizers: meta.finalizers,
        ..ObjectMeta::default()
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::struct_field_names, reason = "as Kubernetes calls it")]
struct Pod {
    phase: Option<String>,
    reason: Option<String>,
    message: Option<String>,
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    conditions: Option<Vec<PodCondition>>,
    init_container_statuses: Option<Vec<Container>>,
    container_statuses: Option<Vec<Container>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Container {
    name: String,
    state: Option<ContainerState>,
    last_state: Option<ContainerState>,
}

impl From<Container> for ContainerStatus {
    fn from(Container { name, state, last_state }: Container) -> Self {
        Self { name, state, last_state, ..Self::default() }
    }
}

/// For a field `status` of a pod that is only read.
pub fn pod_status<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PodStatus, D::Error> {
    let pod = Pod::deserialize(deserializer)?;
    let containers =
        |containers: Option<Vec<Container>>| containers.map(|all| all.into_iter().map(ContainerStatus::from).collect());
    Ok(PodStatus {
        phase: pod.phase,
        reason: pod.reason,
        message: pod.message,
        pod_ip: pod.pod_ip,
        conditions: pod.conditions,
        init_container_statuses: containers(pod.init_container_statuses),
        container_statuses: containers(pod.container_statuses),
        ..PodStatus::default()
    })
}

/// For a field of which only the presence is read.
pub fn is_set<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Option::<IgnoredAny>::deserialize(deserializer).map(|value| value.is_some())
}

/// Whether the pods of a template name their PodGroup.
pub fn has_group<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    #[derive(Deserialize)]
    struct Template {
        #[serde(default)]
        spec: Spec,
    }
    #[derive(Default, Deserialize)]
    struct Spec {
        #[serde(default, rename = "schedulingGroup", deserialize_with = "is_set")]
        has_group: bool,
    }
    Template::deserialize(deserializer).map(|template| template.spec.has_group)
}

#[cfg(test)]
mod tests {
    use crate::SlimPod;
    use serde_json::json;

    #[test]
    fn slim_pod_decodes_needed_fields_and_skips_others() {
        let pod = json!({
            "metadata": {
                "name": "x-training-0-abcde", "namespace": "a", "uid": "u", "resourceVersion": "7", "generation": 1,
                "labels": { "ml.example.com/incarnation": "2", "batch.kubernetes.io/job-completion-index": "0" },
                "ownerReferences": [{ "apiVersion": "batch/v1", "kind": "Job", "name": "x-training", "uid": "j" }],
                "creationTimestamp": "2030-01-02T03:04:05Z", "deletionTimestamp": "2030-01-02T03:05:05Z",
                "deletionGracePeriodSeconds": 30, "managedFields": [{ "fieldsV1": { "f:metadata": {} } }],
            },
            "spec": { "nodeName": "n", "containers": [{ "name": "training" }] },
            "status": {
                "phase": "Running", "hostIP": "10.0.0.1", "podIP": "10.0.0.2",
                "conditions": [{ "type": "PodScheduled", "status": "True", "lastTransitionTime": "2030-01-02T03:04:06Z" }],
                "containerStatuses": [{
                    "name": "training", "ready": true, "restartCount": 0, "image": "i", "imageID": "i",
                    "state": { "running": { "startedAt": "2030-01-02T03:04:07Z" } },
                }],
            },
        });
        let pod: SlimPod = serde_json::from_value(pod).unwrap();
        assert_eq!(pod.metadata.managed_fields, None);
        let seen = pod.seen(false).unwrap();
        assert_eq!((seen.index, seen.incarnation, seen.node.as_deref()), (0, 2, Some("n")));
        assert!(seen.runs());
        assert_eq!(seen.ip.as_deref(), Some("10.0.0.2"));
        let times = [seen.created, seen.scheduled_at, seen.started(), seen.deletion, seen.end_by];
        assert_eq!(
            times.map(|time| time.unwrap().to_string()),
            [5, 6, 7, 35, 65].map(|s| format!("2030-01-02T03:{:02}:{:02}Z", 4 + s / 60, s % 60)),
        );
        assert!(serde_json::from_value::<SlimPod>(json!({ "metadata": { "name": "x" } })).is_ok());
    }

    /// The node controller's conditions on a pod of an unreachable node, and similar ones.
    #[test]
    fn pod_on_unreachable_node_is_detected() {
        let unreachable = |phase: &str, ready: (&str, &str), containers: &str| {
            let at = "2030-01-02T03:04:06Z";
            let pod = json!({
                "metadata": {
                    "name": "x", "uid": "u",
                    "labels": { "ml.example.com/incarnation": "1", "batch.kubernetes.io/job-completion-index": "0" },
                },
                "status": { "phase": phase, "conditions": [
                    { "type": "Ready", "status": ready.0, "reason": ready.1, "lastTransitionTime": at },
                    { "type": "ContainersReady", "status": containers, "lastTransitionTime": at },
                ] },
            });
            serde_json::from_value::<SlimPod>(pod).unwrap().seen(false).unwrap().unreachable.is_some()
        };
        assert!(unreachable("Running", ("False", ""), "True"));
        for (phase, ready, containers) in [
            ("Running", ("True", ""), "True"),
            ("Running", ("False", "ContainersNotReady"), "False"),
            ("Running", ("False", "ReadinessGatesNotReady"), "True"),
            ("Succeeded", ("False", "PodCompleted"), "False"),
            ("Pending", ("False", ""), "True"),
        ] {
            assert!(!unreachable(phase, ready, containers), "{phase} {ready:?} {containers}");
        }
    }

    #[test]
    fn deleted_pod_on_unreachable_node_counts_as_lost() {
        let at = "2030-01-02T03:04:06Z";
        let pod = json!({
            "metadata": {
                "name": "x", "uid": "u", "finalizers": ["others", "batch.kubernetes.io/job-tracking"],
                "labels": { "ml.example.com/incarnation": "1", "batch.kubernetes.io/job-completion-index": "0" },
            },
            "status": { "phase": "Running", "conditions": [
                { "type": "Ready", "status": "False", "lastTransitionTime": at },
                { "type": "ContainersReady", "status": "True", "lastTransitionTime": at },
            ] },
        });
        let pod = serde_json::from_value::<SlimPod>(pod).unwrap();
        let (seen, gone) = (pod.seen(false).unwrap(), pod.seen(true).unwrap());
        assert_eq!((seen.tracked, seen.disruption), (true, None));
        let lost = gone.disruption.unwrap();
        assert_eq!((&*lost.reason, &*lost.message), ("NodeLost", "it has not answered since 2030-01-02T03:04:06Z"));
    }
}
