//! Where and when workers run.

use k8s_openapi::api::core::v1::{Affinity, Toleration};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Where and when the workers run.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Scheduling {
    /// Name of a PriorityClass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority: Option<String>,
    /// Name of a Kueue LocalQueue: Kueue then decides when the job starts. With `gang: volcano` it is Volcano's queue instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub queue: Option<String>,
    /// Labels that a node must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub node_selector: BTreeMap<String, String>,
    /// Affinity, as in a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Taints that the workers tolerate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub tolerations: Vec<Toleration>,
    /// Key of a node label, such as `topology.kubernetes.io/zone`: workers are placed together on nodes with the same value where possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317))]
    pub topology_key: Option<String>,
    /// Name of the scheduler. Default: the cluster's, or that of `gang`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub scheduler_name: Option<String>,
    /// Who places all workers together or none, by a PodGroup that is made for the job: `volcano`, `coscheduling` (the scheduler-plugins) or `native` (Kubernetes 1.36 with the feature gates GenericWorkload and GangScheduling).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "GangScheduler")]
    pub gang: Option<GangScheduler>,
}

/// Who places the workers of a gang together.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum GangScheduler {
    /// Nobody: each worker for itself.
    None,
    /// Volcano.
    Volcano,
    /// The coscheduling plugin of scheduler-plugins.
    Coscheduling,
    /// Kubernetes' own scheduler.
    Native,
}
