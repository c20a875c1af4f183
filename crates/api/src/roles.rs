//! Roles: kinds of pods besides the workers.

use super::{Resources, schema};
use k8s_openapi::api::core::v1::EnvVar;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Pods that start, fail and restart together with the workers.
/// Settings that a role omits are inherited from the workers, except for GPUs.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RoleSpec {
    /// Name of the role: 1 to 15 lower-case letters and digits, beginning with a letter.
    /// Its Job is named NAME-ROLE, and its pods have the host names NAME-ROLE-INDEX.NAME-headless.
    /// The names worker, training, upkeep, checkpoints and tensorboard are reserved.
    #[schemars(length(min = 1, max = 15), extend("pattern" = "^[a-z][a-z0-9]*$"))]
    pub name: String,
    /// Number of pods of this role, 1 to 4096.
    /// Only 1 is allowed for chief, evaluator, scheduler and launcher unless framework is none. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4096))]
    pub replicas: Option<u16>,
    /// Whether the role decides on the job's completion.
    /// The job completes when all programs of such roles have exited with code 0; all other programs are then stopped.
    /// If no role sets it, the chief of tensorflow decides, otherwise the workers.
    /// With mpi the pod that runs mpirun always decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<bool>,
    /// Container image. Default: the workers' image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub image: Option<String>,
    /// Command of the role. With it, the job's `args` are not inherited. Default: the workers' command.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    pub command: Vec<String>,
    /// Arguments of the command. Default: the workers' arguments if `command` is not set either.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    pub args: Vec<String>,
    /// Environment variables, at most 1024. They take precedence over the job's variables of the same name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Vec<EnvVar>,
    /// GPUs of each pod, 0 to 16. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 16))]
    pub gpus_per_replica: Option<u16>,
    /// Resource requests and limits of each pod, which replace the workers'.
    /// Default: the workers' resources without their GPUs.
    #[serde(default, skip_serializing_if = "Resources::is_empty")]
    pub resources: Resources,
    /// Pod template of the role, which replaces the workers' `podTemplate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::pod_template")]
    pub pod_template: Option<serde_json::Value>,
}

impl RoleSpec {
    /// Number of pods of this role.
    #[must_use]
    pub fn replicas(&self) -> u16 {
        self.replicas.unwrap_or(1)
    }
}
