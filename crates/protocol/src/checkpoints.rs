//! Checkpoints, as the operator and the agents speak of them.

use crate::number;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// What an agent is to do with the checkpoints of its job: the file [`POLICY_FILE`] of the job's ConfigMap, which is read
/// anew before each look at the checkpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CheckpointPolicy {
    /// UID of the TrainingJob: what another job has written to the same folder is not this one's.
    pub uid: String,
    /// Name of the TrainingJob, for those who share the folder.
    pub job: String,
    /// Workers of the gang.
    pub workers: u32,
    /// Port on which the others ask the first worker's agent what to go on from.
    pub port: u16,
    /// Seconds between two looks at the folder; 0 for what the agent thinks best.
    #[serde(skip_serializing_if = "is_zero")]
    pub look_seconds: u64,
    /// Seconds to wait for a folder or a store that can't be read, before the attempt fails; 0 for the agent's default.
    #[serde(skip_serializing_if = "is_zero")]
    pub patience_seconds: u64,
    /// Every worker sees the same folder: one of them takes care of it. Else each has its own.
    pub shared: bool,
    /// Newest good checkpoints that are kept.
    pub retention: u32,
    /// The metric by which the best one is kept, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_best: Option<BestBy>,
    /// The checkpoint that the job begins with, used once: a path, or a place in an object store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resume_from: Option<String>,
    /// The run may begin at step 0 where it has checkpoints and none of them can be used.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub may_start_over: bool,
    /// Before an attempt resumes from a checkpoint its structure is verified, and not every byte.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub structure_only: bool,
    /// Where the job's checkpoints are kept, if that is an object store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<StorePlace>,
    /// Where they are copied to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup: Option<BackupPolicy>,
}

impl CheckpointPolicy {
    /// The number of newest good saves that are kept, to count with; 0 if all are.
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

/// Which checkpoint is the best.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BestBy {
    /// Name of the metric, as the checkpoint has it.
    pub metric: String,
    /// The greatest is the best, else the least.
    pub max: bool,
}

/// A place in an object store, and how it is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorePlace {
    /// s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX.
    pub uri: String,
    /// Address of the server, where it is not the vendor's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Region of an S3 bucket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Name of the storage account of an Azure container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub azure_account: Option<String>,
    /// Folder with the credentials, a file each. Without one the pod's identity counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials: Option<String>,
}

/// Copies in another store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackupPolicy {
    /// Where to.
    pub place: StorePlace,
    /// Seconds between two copies at least.
    pub interval_seconds: u64,
}

/// A checkpoint that is known to be good.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Kept {
    /// What a program is given: below the folder of checkpoints, without its name.
    pub path: String,
    /// Steps done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// Epochs done.
    #[serde(with = "number::option", skip_serializing_if = "Option::is_none")]
    pub epoch: Option<f64>,
    /// When it was written; of a copy, when it was whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Timestamp>,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its value of the metric by which the best is kept.
    #[serde(with = "number::option", skip_serializing_if = "Option::is_none")]
    pub metric: Option<f64>,
}

/// What an agent tells of the checkpoints that it takes care of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Checkpoints {
    /// The newest good one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest: Option<Kept>,
    /// The best good one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best: Option<Kept>,
    /// The one that this run resumed from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resumed_from: Option<Kept>,
    /// When an attempt first resumed from `resumeFrom`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wish_used: Option<Timestamp>,
    /// Good ones, of which no damage would be unseen.
    pub valid: u32,
    /// Good ones of which damage may be unseen, for their format has no checksum of all that is needed to load them.
    pub complete: u32,
    /// Those that are being written, or were never finished.
    pub incomplete: u32,
    /// Those that can't be gone on from.
    pub corrupted: u32,
    /// Deleted since the agent started.
    pub deleted: u64,
    /// Free on the volume, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    /// Size of the volume, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<u64>,
    /// The last copy that is whole: in the store where checkpoints are kept, or in the backup.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copied: Option<Kept>,
    /// The newest good one that has yet to be copied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_copy: Option<String>,
    /// What a person should look at, the worst first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<Problem>,
}

/// Something with the checkpoints that a person should look at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Problem {
    /// What kind.
    pub kind: ProblemKind,
    /// A sentence with names and the remedy.
    pub message: String,
}

/// Kinds of problems with checkpoints, the worst first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ProblemKind {
    /// One that can't be gone on from.
    Corrupted,
    /// The volume will soon be full.
    NearlyFull,
    /// They can't be copied.
    CopyFailing,
    /// The folder can't be read or written.
    Unreadable,
    /// Another job writes to the same folder.
    Shared,
    /// Passed over, since a run that went on from it failed before it made progress.
    Suspect,
    /// What a newer agent may tell.
    #[default]
    #[serde(other)]
    Unknown,
}

/// Bytes of a path and of a message in a termination message.
const SHORT: usize = 160;

impl Checkpoints {
    /// How many there are of each verdict, by its name.
    #[must_use]
    pub fn by_verdict(&self) -> [(&'static str, u32); 4] {
        [
            ("Valid", self.valid),
            ("Complete", self.complete),
            ("Incomplete", self.incomplete),
            ("Corrupted", self.corrupted),
        ]
    }

    /// What has to be known once the pod is gone, in few bytes.
    #[must_use]
    pub fn last_words(&self) -> Self {
        let cut = |text: &str| text::start_of(text, SHORT).to_owned();
        let kept = |kept: &Option<Kept>| kept.clone().map(|kept| Kept { path: cut(&kept.path), ..kept });
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
