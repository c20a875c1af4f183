//! Storage, retention and backup of checkpoints, and the choice of the checkpoint to resume from.

use super::Mode;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;

/// Checkpoints of the program, kept at `/checkpoints` in every worker. The variable `CHECKPOINT_DIR` has that path.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Checkpoint {
    /// Whether `/checkpoints` is mounted and `CHECKPOINT_DIR` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Epochs between two checkpoints, from 1, passed to the program as `CHECKPOINT_FREQUENCY`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 2_147_483_647))]
    pub frequency: Option<u32>,
    /// Volume or object store for `/checkpoints`. Without it `/checkpoints` is an emptyDir, which is deleted with its pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,
    /// Number of newest good checkpoints of this job to keep in each series, 1 to 10000. Older ones are deleted.
    /// The best checkpoint (`keepBest`) and the one this run resumed from are never deleted.
    /// Checkpoints not yet backed up and files this job did not write are never deleted either.
    /// May be changed while the job runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub retention: Option<NonZeroU32>,
    /// Metric by which the best checkpoint is kept, in addition to `retention`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_best: Option<KeepBest>,
    /// Initial checkpoint of the job, used once.
    /// It is a path (relative paths are below `/checkpoints`) or an s3://, gs:// or az:// address with bucket and path.
    /// Every attempt resumes from it until the job has saved a checkpoint of its own.
    /// From then on attempts resume from the newest good checkpoint that the job has saved since.
    /// Without this field the first attempt resumes from the newest good checkpoint that exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048))]
    pub resume_from: Option<String>,
    /// Behavior if this job has checkpoints and none of them can be used.
    /// `Wait` keeps the job waiting without pods until this field changes or a restart is requested.
    /// `StartOver` begins the next attempt at step 0. May be changed at any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_none_usable: Option<IfNoneUsable>,
    /// Extent of the verification before an attempt resumes from a checkpoint.
    /// `Full` reads every byte, unless this container has read it before and no file has changed since.
    /// `Structure` reads names, lengths, headers, indices and end records.
    /// Damage inside a file is then found only when the program loads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<Verify>,
    /// Arguments appended to the command when resuming, at most 64.
    /// `$(RESUME_FROM_CHECKPOINT)` expands to the checkpoint's path.
    /// Example: `["--resume_from_checkpoint", "$(RESUME_FROM_CHECKPOINT)"]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 4096)))]
    pub resume_args: Vec<String>,
    /// Backup of good checkpoints to an object store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<Backup>,
}

/// Behavior if a job has checkpoints and none of them can be used.
/// `Wait` keeps the job waiting without pods until this field changes or a restart is requested.
/// `StartOver` begins the next attempt at step 0. May be changed at any time.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IfNoneUsable {
    /// The job waits without pods until this field changes or a restart is requested.
    #[default]
    Wait,
    /// The next attempt begins at step 0.
    StartOver,
}

/// Extent of the verification before an attempt resumes from a checkpoint.
/// `Full` reads every byte, unless this container has read it before and no file has changed since.
/// `Structure` reads names, lengths, headers, indices and end records.
/// Damage inside a file is then found only when the program loads it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// Every byte, unless this container has read it before and no file has changed since.
    #[default]
    Full,
    /// Names, lengths, headers, indices and end records. Damage inside a file is found only when the program loads it.
    Structure,
}

/// Metric by which the best checkpoint is chosen.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct KeepBest {
    /// Name of the metric as the checkpoint stores it, for example eval_loss.
    #[schemars(length(min = 1, max = 253))]
    pub metric: String,
    /// Whether lower (`min`) or higher (`max`) values are better.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Mode")]
    pub mode: Option<Mode>,
}

/// Backup of checkpoints to an object store. Training never waits for it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Backup {
    /// Destination: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX.
    #[schemars(length(min = 1, max = 2048))]
    pub destination: String,
    /// Minimum number of seconds between two backups, 10 to 604800.
    /// The last checkpoint is always backed up after the job's end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 10, max = 604_800))]
    pub interval_seconds: Option<u32>,
    /// Secret of this namespace with the credentials of the backup store.
    /// Its keys are those of `storage.credentialsSecret`. Without it the pod's identity is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub credentials_secret: Option<String>,
    /// Address of a server that implements the backup store's protocol, as in `storage`. Default: the vendor's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048))]
    pub endpoint: Option<String>,
    /// Region of an S3 bucket. Default: us-east-1, or AWS_REGION of the Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub region: Option<String>,
    /// Name of the storage account of an Azure container, unless the Secret has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 3, max = 24))]
    pub azure_account: Option<String>,
}

/// Volume or object store for checkpoints.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Storage {
    /// Kind of the storage. It determines which of the other fields apply.
    #[serde(rename = "type")]
    pub type_: StorageType,
    /// `pvc`: name of an existing claim. Without it the operator creates a claim `<job>-checkpoints`.
    /// The next job of that name uses it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub pvc_name: Option<String>,
    /// `pvc` without `pvcName`: size of the claim, greater than 0. Default: 10Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Quantity>,
    /// `pvc` without `pvcName`: storage class of the claim. Default: the cluster's default class.
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
    /// `s3`: name of the bucket.
    /// `/checkpoints` is then a separate folder of each worker, and good checkpoints are uploaded from it.
    /// The newest one is downloaded before an attempt.
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
    /// `s3`, `gcs`, `azure`: prefix of the object names. Default: NAMESPACE/JOB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub prefix: Option<String>,
    /// `s3`, `gcs`, `azure`: address of a server that implements the store's protocol, such as http://minio.storage:9000.
    /// Default: the vendor's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048))]
    pub endpoint: Option<String>,
    /// `s3`: region of the bucket. Default: us-east-1, or AWS_REGION of the Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub region: Option<String>,
    /// `s3`, `gcs`, `azure`: Secret of this namespace with the store's credentials, mounted as files.
    /// Its keys for `s3` are AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.
    /// Its key for `gcs` is credentials.json, a service account key.
    /// Its keys for `azure` are AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY.
    /// A server with a certificate of its own also needs the key ca.crt.
    /// Without the Secret the pod's identity is used (IRSA, workload identity).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub credentials_secret: Option<String>,
    /// `pvc` without `pvcName`: whether the claim created for the job is kept (`Retain`) or deleted (`Delete`) with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "DeletePolicy")]
    pub delete_policy: Option<DeletePolicy>,
}

/// Kinds of storage for checkpoints.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum StorageType {
    /// A PersistentVolumeClaim.
    Pvc,
    /// A path on an NFS server.
    Nfs,
    /// A bucket of Amazon S3, or of a server that implements its protocol.
    S3,
    /// A bucket of Google Cloud Storage.
    Gcs,
    /// A container of Azure Blob Storage.
    Azure,
}

/// Fate of the claim when its job is deleted.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeletePolicy {
    /// The claim and its checkpoints are kept.
    Retain,
    /// The claim is deleted with the job.
    Delete,
}
