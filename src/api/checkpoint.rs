//! Where checkpoints are kept.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where the program keeps its checkpoints: `/checkpoints` in every worker, also in `CHECKPOINT_DIR`.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Checkpoint {
    /// Mounts `/checkpoints` and sets `CHECKPOINT_DIR`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Epochs between two checkpoints, handed to the program as `CHECKPOINT_FREQUENCY`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub frequency: Option<i32>,
    /// What is mounted at `/checkpoints`. Without it an emptyDir, whose content ends with the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,
}

/// A volume for checkpoints.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Storage {
    /// Kind of volume.
    #[serde(rename = "type")]
    pub type_: StorageType,
    /// `pvc`: an existing claim. Without it a claim `<job>-checkpoints` is made, and used again by the next job of that name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub pvc_name: Option<String>,
    /// `pvc` without `pvcName`: size of the claim. Default 10Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Quantity>,
    /// `pvc` without `pvcName`: its storage class. Default: the cluster's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub storage_class_name: Option<String>,
    /// `nfs`: host name or address of the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub nfs_server: Option<String>,
    /// `nfs`: absolute path exported by the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub nfs_path: Option<String>,
    /// Whether a claim made for the job is deleted with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "DeletePolicy")]
    pub delete_policy: Option<DeletePolicy>,
}

/// Kinds of volumes for checkpoints.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum StorageType {
    /// A PersistentVolumeClaim.
    Pvc,
    /// A path of an NFS server.
    Nfs,
}

/// What becomes of a claim when its job is deleted.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeletePolicy {
    /// The claim and its checkpoints stay.
    Retain,
    /// The claim is deleted with the job.
    Delete,
}
