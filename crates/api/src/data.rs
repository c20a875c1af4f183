//! Models and data sets that are fetched before the workers start, or that the program reads from their store.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Content besides `model` and `dataset` that the workers read.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Data {
    /// Name of the entry: 1 to 40 lower-case letters, digits and '-'. The names model and dataset are reserved.
    #[schemars(length(min = 1, max = 40), extend("pattern" = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Address of the content, as in `model`.
    #[schemars(length(min = 1, max = 1024))]
    pub uri: String,
    /// Absolute path in the workers where the content is mounted read-only. Required unless `access` is Stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub mount_path: Option<String>,
    /// Whether the content is fetched before the workers start, or read from its store by the program. Default: Fetch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Access")]
    pub access: Option<Access>,
    /// Environment variable that names the content to the program: its path in the workers, or its address with access Stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub env: Option<String>,
}

impl Data {
    /// Value of `access`, or its default.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access.unwrap_or_default()
    }
}

/// Way in which the program gets the content.
/// `Fetch` fetches it into the cache before the workers start.
/// `Stream` fetches nothing. The program gets the address, and the keys of `credentialsSecret` as environment variables.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// The content is fetched into the cache before the workers start.
    #[default]
    Fetch,
    /// The program reads the content from its store.
    Stream,
}

/// Folder where fetched content is kept. Jobs that name the same folder share what is in it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Cache {
    /// Name of an existing PersistentVolumeClaim that all workers can mount.
    /// Without it, a job of one worker keeps the content in a folder of its pod, which is fetched again in each new pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub pvc_name: Option<String>,
    /// Folder within the claim, which is created if it is missing. Default: the whole volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub path: Option<String>,
    /// Size limit of the content in the folder. With `pvcName`, content that no job uses is removed for content that would
    /// exceed it, the least recently used first. Without `pvcName` it is the size limit of the folder of the pod.
    /// Default: none with `pvcName`, 100Gi without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Quantity>,
}
