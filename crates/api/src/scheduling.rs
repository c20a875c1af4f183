//! Placement, queueing and priority of workers.

use k8s_openapi::api::core::v1::{Affinity, Toleration};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Placement, queueing and priority of the workers.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Scheduling {
    /// Name of a PriorityClass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority: Option<String>,
    /// Name of a Kueue LocalQueue, up to 63 characters. Kueue then decides when the job starts.
    /// With `gang: volcano` it is the name of a Volcano queue instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub queue: Option<String>,
    /// Labels that a node must have, at most 64.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub node_selector: BTreeMap<String, String>,
    /// Affinity, as in a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Tolerations of the workers for node taints, at most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub tolerations: Vec<Toleration>,
    /// Key of a node label, such as `topology.kubernetes.io/zone`.
    /// The workers are placed on nodes with the same value if possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317))]
    pub topology_key: Option<String>,
    /// Name of the scheduler. Default: the scheduler of `gang`, otherwise the cluster's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub scheduler_name: Option<String>,
    /// Scheduler that places all workers together or none, using a PodGroup that the operator creates.
    /// The values are `volcano`, `coscheduling` (scheduler-plugins) and `native`.
    /// `native` requires Kubernetes 1.36 with the feature gates GenericWorkload and GangScheduling.
    /// With `none` each worker is placed separately.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "GangScheduler")]
    pub gang: Option<GangScheduler>,
}

/// Scheduler that places the workers of a gang together.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum GangScheduler {
    /// No gang scheduling: each worker is placed separately.
    None,
    /// Volcano.
    Volcano,
    /// The coscheduling plugin of scheduler-plugins.
    Coscheduling,
    /// The default Kubernetes scheduler.
    Native,
}
