//! Where checkpoints are kept, how many, and which one a run goes on from.

use super::Mode;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;

/// Where the program keeps its checkpoints: `/checkpoints` in every worker, also in `CHECKPOINT_DIR`.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Checkpoint {
    /// Mounts `/checkpoints` and sets `CHECKPOINT_DIR`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Epochs between two checkpoints, handed to the program as `CHECKPOINT_FREQUENCY`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 2_147_483_647))]
    pub frequency: Option<u32>,
    /// What is mounted at `/checkpoints`. Without it an emptyDir, whose content ends with the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,
    /// Newest good checkpoints of this job that are kept; older ones are deleted. Never deleted are the best (`keepBest`), the
    /// one that was gone on from, one that is not backed up yet, and what this job has not written. May be changed while
    /// the job runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub retention: Option<NonZeroU32>,
    /// The best checkpoint by a metric stays, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_best: Option<KeepBest>,
    /// Checkpoint that the job begins with, used once: a path, below `/checkpoints` if it is not absolute, or s3://, gs:// or
    /// az:// with bucket and path. Every attempt resumes from it until the job has saved a checkpoint of its own; from then on
    /// from the newest good one that the job has saved since. Without it the first attempt resumes from the newest good
    /// checkpoint there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048))]
    pub resume_from: Option<String>,
    /// What follows where this job has checkpoints and none of them can be used. May be changed at any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_none_usable: Option<IfNoneUsable>,
    /// How much of a checkpoint is read before an attempt resumes from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<Verify>,
    /// Added to the command where there is a checkpoint to go on from, whose path $(RESUME_FROM_CHECKPOINT) stands for, as in
    /// `["--resume_from_checkpoint", "$(RESUME_FROM_CHECKPOINT)"]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 4096)))]
    pub resume_args: Vec<String>,
    /// Copies of good checkpoints in another store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<Backup>,
}

/// What follows where a job has checkpoints and none of them can be used.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IfNoneUsable {
    /// The job waits, without pods, until this field is changed or a restart is requested.
    #[default]
    Wait,
    /// The next attempt begins at step 0.
    StartOver,
}

/// How much of a checkpoint is read before an attempt resumes from it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// Every byte, unless this container has read it and no file has changed since.
    #[default]
    Full,
    /// Names, lengths, headers, indices and end records. Damage inside a file is not found before the program loads it.
    Structure,
}

/// Which checkpoint is the best.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct KeepBest {
    /// Name of the metric, as the checkpoint has it: eval_loss.
    #[schemars(length(min = 1, max = 253))]
    pub metric: String,
    /// Which way is better.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Mode")]
    pub mode: Option<Mode>,
}

/// Copies of checkpoints in another store. The training never waits for them.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Backup {
    /// Where to: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX.
    #[schemars(length(min = 1, max = 2048))]
    pub destination: String,
    /// Seconds between two copies at least; after the end the last one is copied in any case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 10, max = 604_800))]
    pub interval_seconds: Option<u32>,
    /// As in `storage`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub credentials_secret: Option<String>,
    /// As in `storage`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048))]
    pub endpoint: Option<String>,
    /// As in `storage`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub region: Option<String>,
    /// As in `storage`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 3, max = 24))]
    pub azure_account: Option<String>,
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
    /// `s3`: name of the bucket. /checkpoints is then a folder of each worker's own, whose good checkpoints are uploaded;
    /// before an attempt the newest is fetched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 3, max = 255))]
    pub s3_bucket: Option<String>,
    /// `gcs`: name of the bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 3, max = 222))]
    pub gcs_bucket: Option<String>,
    /// `azure`: name of the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 3, max = 63))]
    pub azure_container: Option<String>,
    /// `azure`: name of the storage account, unless the Secret has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 3, max = 24))]
    pub azure_account: Option<String>,
    /// `s3`, `gcs`, `azure`: beginning of the objects' names. Default: NAMESPACE/JOB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub prefix: Option<String>,
    /// Address of a server that speaks the store's protocol: http://minio.storage:9000. Default: the vendor's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048))]
    pub endpoint: Option<String>,
    /// `s3`: region of the bucket. Default: us-east-1, or AWS_REGION of the Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub region: Option<String>,
    /// Secret of this namespace with the store's credentials, a key each: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; a
    /// service account's key as credentials.json; AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY; also ca.crt for a
    /// server with a certificate of its own. Mounted as files. Without it the pod's identity counts (IRSA, workload
    /// identity).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub credentials_secret: Option<String>,
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
    /// A bucket of Amazon S3, or of a server that speaks its protocol.
    S3,
    /// A bucket of Google Cloud Storage.
    Gcs,
    /// A container of Azure Blob Storage.
    Azure,
}

/// What becomes of a claim when its job is deleted.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeletePolicy {
    /// The claim and its checkpoints stay.
    Retain,
    /// The claim is deleted with the job.
    Delete,
}
