//! Reasons: machine-readable words for states, causes and events.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

macro_rules! reasons {
    (causes: $($cause:ident $(= $cause_word:literal)?),* $(,)?; others: $($name:ident $(= $word:literal)?),* $(,)?) => {
        /// Machine-readable reason, in one CamelCase word. The words are stable, because users alert on them.
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs)] // the words say what they mean, docs/operate.md has a table of them
        pub enum Reason {
            $($cause,)*
            $($name,)*
            /// A reason from another program, such as a kubelet, or from a newer operator.
            Other(String),
        }

        impl Reason {
            /// All reasons of this project.
            pub const ALL: &[Self] = &[$(Self::$cause,)* $(Self::$name),*];

            /// The reasons that the first cause of a failed attempt can have.
            pub const CAUSES: &[Self] = &[$(Self::$cause),*];

            /// The reason as written in the status.
            #[must_use]
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$cause => reasons!(@word $cause $(= $cause_word)?),)*
                    $(Self::$name => reasons!(@word $name $(= $word)?),)*
                    Self::Other(word) => word,
                }
            }
        }

        impl From<&str> for Reason {
            fn from(word: &str) -> Self {
                match word {
                    $(reasons!(@word $cause $(= $cause_word)?) => Self::$cause,)*
                    $(reasons!(@word $name $(= $word)?) => Self::$name,)*
                    other => Self::Other(other.to_owned()),
                }
            }
        }
    };
    (@word $name:ident = $word:literal) => { $word };
    (@word $name:ident) => { stringify!($name) };
}

reasons! {
    // Why an attempt failed.
    causes:
    OomKilled = "OOMKilled",
    CudaOutOfMemory,
    NcclError,
    NcclTimeout,
    GpuHardwareError,
    NanLoss = "NaNLoss",
    Hang,
    PythonException,
    ImportError,
    CommandNotFound,
    ExitCode,
    Signal,
    ContainerConfig,
    ContainerStatusUnknown,
    InitContainer,
    FetchFailed,
    CodeUnavailable,
    NodeRejected,
    PodFailed,
    PodDeleted,
    JobDeleted,
    PodsLost,
    Disrupted,
    Preempted,
    Evicted,
    StorageExceeded,
    NodeLost,
    Unkillable,
    CheckpointCorrupted,
    StorageUnavailable,
    NoUsableCheckpoint,
    FolderShared,
    ;
    others:

    // Why a job failed although none of its attempts did.
    DeadlineExceeded,
    InvalidSpec,
    PublishFailed,
    MetricMissing,
    TrialsFailed,
    GpuHoursUsed,

    // What a job waits for.
    Scheduling,
    SchedulingGated,
    Unschedulable,
    Queued,
    Parallelism,
    OldPods,
    PodSecurity,
    QuotaExceeded,
    PodsRefused,
    Storage,
    Network,
    ImagePull,
    Starting,
    Waiting,
    Fetching,
    Publishing,
    NameTaken,
    OldObject,
    Forbidden,
    Denied,
    WebhookFailed,
    ApiTimeout,
    GangSchedulerMissing,
    QueueManagerMissing,
    RuntimeNotFound,
    InvalidRuntime,
    Invalid,

    // States of a job.
    Valid,
    Unreadable,
    Scheduled,
    Running,
    Restarted,
    Resized,
    Suspending,
    Suspended,
    Resumed,
    Stopping,
    TargetAccuracyReached,
    TargetLossReached,
    EarlyStopped,
    StoppedBySearch,
    Completed,
    Published,
    Failed,

    // Reports of a job's agents and programs.
    Answers,
    Unreachable,
    NeverAnswered,
    Recovered,
    LossPlateau,
    NoProgress,
    Progresses,
    NoStorage,

    // States of the checkpoints.
    CheckpointsGood,
    CheckpointsInEmptyDir,
    NearlyFull,
    BackupFailing,
    FolderUnusable,
    Suspect,
}

impl From<String> for Reason {
    fn from(word: String) -> Self {
        match Self::from(word.as_str()) {
            Self::Other(_) => Self::Other(word),
            known => known,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl PartialEq<&str> for Reason {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Reason {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Reason {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Reason".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        String::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_round_trip_through_text() {
        for reason in Reason::ALL {
            assert_eq!(&Reason::from(reason.as_str()), reason);
        }
        assert_eq!(Reason::from("OOMKilled"), Reason::OomKilled);
        assert_eq!(Reason::from("ErrImagePull".to_owned()), Reason::Other("ErrImagePull".into()));
        assert_eq!(serde_json::to_string(&Reason::NanLoss).unwrap(), r#""NaNLoss""#);
    }
}
