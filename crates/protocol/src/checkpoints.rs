//! Checkpoint settings and reports exchanged between the operator and the agents.

use crate::number;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Checkpoint settings of an agent, from the file [`POLICY_FILE`] of the job's ConfigMap. The agent reads the file before
/// each scan of the checkpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CheckpointPolicy {
    /// UID of the TrainingJob, which distinguishes its files from those of other jobs in the same folder.
    pub uid: String,
    /// Name of the TrainingJob, for messages to other jobs that share the folder.
    pub job: String,
    /// Number of workers in the gang.
    pub workers: u32,
    /// Port on which the other agents ask the first worker's agent for the checkpoint to resume from.
    pub port: u16,
    /// Seconds between two scans of the folder; 0 for the agent's default.
    #[serde(skip_serializing_if = "is_zero")]
    pub look_seconds: u64,
    /// Seconds to wait for an unreadable folder or store before the attempt fails; 0 for the agent's default.
    #[serde(skip_serializing_if = "is_zero")]
    pub patience_seconds: u64,
    /// Whether all workers share one folder, which a single agent then manages. Otherwise each worker has a separate
    /// folder.
    pub shared: bool,
    /// Number of newest good checkpoints to keep; 0 keeps all.
    pub retention: u32,
    /// Metric by which the best checkpoint is kept, in addition to `retention`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_best: Option<BestBy>,
    /// Initial checkpoint of the job, used once: a path, or a location in an object store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resume_from: Option<String>,
    /// Restart request that named [`CheckpointPolicy::resume_from`]. Without it that is the field of the spec.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// Whether the run may begin at step 0 if it has checkpoints and none of them can be used.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub may_start_over: bool,
    /// Whether only the structure of a checkpoint, and not every byte, is verified before an attempt resumes from it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub structure_only: bool,
    /// Object store that holds the job's checkpoints, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<StorePlace>,
    /// Backup of the checkpoints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup: Option<BackupPolicy>,
}

impl CheckpointPolicy {
    /// The text that records that an attempt has resumed from [`CheckpointPolicy::resume_from`].
    #[must_use]
    pub fn wish(&self) -> Option<&str> {
        self.request.as_deref().or(self.resume_from.as_deref())
    }

    /// Number of newest good saves to keep, as a count; 0 keeps all.
    #[must_use]
    pub fn retention(&self) -> usize {
        usize::try_from(self.retention).unwrap_or(usize::MAX)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// Name of the policy's file in the ConfigMap.
pub const POLICY_FILE: &str = "checkpoints.json";

/// Metric by which the best checkpoint is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BestBy {
    /// Name of the metric, as the checkpoint stores it.
    pub metric: String,
    /// Whether the largest value is the best, rather than the smallest.
    pub max: bool,
}

/// Location in an object store, with access settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorePlace {
    /// s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX.
    pub uri: String,
    /// Address of the server, unless it is the vendor's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Region of an S3 bucket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Name of the storage account of an Azure container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub azure_account: Option<String>,
    /// Folder with the credentials, one file each. Without it the pod's identity is used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials: Option<String>,
}

/// Backup to another store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackupPolicy {
    /// Destination of the backup.
    pub place: StorePlace,
    /// Minimum number of seconds between two backups.
    pub interval_seconds: u64,
}

/// A checkpoint known to be good.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GoodCheckpoint {
    /// Path as passed to a program, relative to the folder of checkpoints.
    pub path: String,
    /// Number of steps completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// Number of epochs completed.
    #[serde(with = "number::option", skip_serializing_if = "Option::is_none")]
    pub epoch: Option<f64>,
    /// Time at which the checkpoint was written or, for a copy, completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Timestamp>,
    /// Size in bytes.
    pub bytes: u64,
    /// Value of the metric by which the best checkpoint is kept.
    #[serde(with = "number::option", skip_serializing_if = "Option::is_none")]
    pub metric: Option<f64>,
}

/// An agent's report about the checkpoints that it manages.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Checkpoints {
    /// The newest good checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest: Option<GoodCheckpoint>,
    /// The best good checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best: Option<GoodCheckpoint>,
    /// The checkpoint that this run resumed from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resumed_from: Option<GoodCheckpoint>,
    /// Time at which an attempt first resumed from `resumeFrom`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wish_used: Option<Timestamp>,
    /// The restart request to which `wish_used` belongs, rather than to the field of the spec.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// Number of valid checkpoints: good, and any damage would be detected.
    pub valid: u32,
    /// Number of complete checkpoints: good, but damage may go undetected. Their format has no checksum for everything that
    /// loading needs.
    pub complete: u32,
    /// Number of checkpoints that are being written or were never finished.
    pub incomplete: u32,
    /// Number of corrupted checkpoints, which can't be resumed from.
    pub corrupted: u32,
    /// Number of checkpoints deleted since the agent started.
    pub deleted: u64,
    /// Free bytes on the volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    /// Size of the volume in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<u64>,
    /// The last completed copy, in the store for checkpoints or in the backup.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copied: Option<GoodCheckpoint>,
    /// The newest good checkpoint that has not been copied yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_copy: Option<String>,
    /// Problems that need a user's attention, the worst first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<Problem>,
}

/// A problem with the checkpoints that needs a user's attention.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Problem {
    /// Kind of the problem.
    pub kind: ProblemKind,
    /// A sentence with names and the remedy.
    pub message: String,
}

/// Kinds of problems with checkpoints, the worst first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ProblemKind {
    /// A checkpoint is corrupted and can't be resumed from.
    Corrupted,
    /// The volume is almost full.
    NearlyFull,
    /// Copying fails.
    CopyFailing,
    /// The folder can't be read or written.
    Unreadable,
    /// Another job writes to the same folder.
    Shared,
    /// A checkpoint is skipped, because runs that resumed from it failed before they made progress.
    Suspect,
    /// A kind reported by a newer agent.
    #[default]
    #[serde(other)]
    Unknown,
}

/// Maximum bytes of a path or a message within a termination message.
const SHORT: usize = 160;

impl Checkpoints {
    /// Number of checkpoints by the name of their verdict.
    #[must_use]
    pub fn by_verdict(&self) -> [(&'static str, u32); 4] {
        [
            ("Valid", self.valid),
            ("Complete", self.complete),
            ("Incomplete", self.incomplete),
            ("Corrupted", self.corrupted),
        ]
    }

    /// Returns the part that must be known after the pod is gone, in few bytes.
    #[must_use]
    pub fn last_words(&self) -> Self {
        let cut = |text: &str| text::start_of(text, SHORT).to_owned();
        let kept =
            |kept: &Option<GoodCheckpoint>| kept.clone().map(|kept| GoodCheckpoint { path: cut(&kept.path), ..kept });
        Self {
            latest: kept(&self.latest),
            best: kept(&self.best),
            resumed_from: kept(&self.resumed_from),
            copied: kept(&self.copied),
            to_copy: self.to_copy.as_deref().map(cut),
            problems: self
                .problems
                .first()
                .map(|worst| Problem { kind: worst.kind, message: cut(&worst.message) })
                .into_iter()
                .collect(),
            ..self.clone()
        }
    }
}
