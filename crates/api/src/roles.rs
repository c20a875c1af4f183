//! Kinds of pods besides the workers.

use super::{Resources, schema};
use k8s_openapi::api::core::v1::EnvVar;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// They start, fail and restart with the workers. What a role does not say is as for these, but it has no GPUs.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RoleSpec {
    /// Lower-case letters and digits. Its Job is NAME-ROLE, its pods have the host names NAME-ROLE-INDEX.NAME-headless.
    #[schemars(length(min = 1, max = 15), extend("pattern" = "^[a-z][a-z0-9]*$"))]
    pub name: String,
    /// Pods of this role; 1 if it is not written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4096))]
    pub replicas: Option<u16>,
    /// The job is completed when all programs have exited with code 0 of the roles that say so; the rest is ended then. If none says so: the chief of tensorflow, else all workers. In mpi it is always where mpirun runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<bool>,
    /// Container image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub image: Option<String>,
    /// Command; with it the job's args don't count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    pub command: Vec<String>,
    /// Arguments of the command.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    pub args: Vec<String>,
    /// Environment variables, over those of the job.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Vec<EnvVar>,
    /// GPUs of each pod; 0 if it is not written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 16))]
    pub gpus_per_replica: Option<u16>,
    /// Requests and limits of each pod, instead of the workers'.
    #[serde(default, skip_serializing_if = "Resources::is_empty")]
    pub resources: Resources,
    /// A pod template, instead of the workers'.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::pod_template")]
    pub pod_template: Option<serde_json::Value>,
}

impl RoleSpec {
    /// Pods of this role.
    #[must_use]
    pub fn replicas(&self) -> u16 {
        self.replicas.unwrap_or(1)
    }
}
