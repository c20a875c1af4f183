//! Types of the API: the spec that users write ([`TrainingJobSpec`]) and the status that they read ([`TrainingJobStatus`]).
//!
//! Each concept has a file. There is no I/O and no client here. The API server checks what it can by schema and CEL, see
//! `rules.rs`. The crate `plan` decides what only the operator can see.
#![cfg_attr(
    test,
    allow(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss,
        reason = "numbers of tests are small"
    )
)]

mod checkpoint;
mod code;
mod condition_type;
mod container;
mod data;
pub mod defaults;
mod elastic;
mod failure;
mod guarded;
mod hyperparameters;
mod inherited;
mod monitoring;
mod networking;
mod place;
mod roles;
mod rules;
mod runtime;
mod scheduling;
mod schema;
#[allow(clippy::duplicated_attributes)] // printcolumns repeat their keys
mod spec;
mod status;
mod success;
#[allow(clippy::duplicated_attributes)] // printcolumns repeat their keys
mod tuning;
mod tuning_rules;
mod values;

pub use checkpoint::{Backup, Checkpoint, DeletePolicy, IfNoneUsable, KeepBest, Storage, StorageType, Verify};
pub use code::Code;
pub use condition_type::ConditionType;
pub use container::{Framework, ProcsKind, ProcsPerWorker, Resources};
pub use data::{Access, Cache, Data};
pub use elastic::Elastic;
pub use failure::{FailurePolicy, FailureRule, Hang, HangAction, NanPolicy, RestartPolicy, RuleAction};
pub use guarded::{Guarded, Unreadable};
pub use hyperparameters::Hyperparameters;
pub use inherited::{Inherited, RecordedDefaults};
pub use monitoring::{Monitoring, Objective, ProgressForms, Rungs};
pub use networking::{Backend, HostNames, Networking};
pub use protocol::attempt::{AttemptEnd, RestartHistory};
pub use protocol::objective::{Measurement, Objective as ObjectiveStatus, RungReading};
pub use protocol::reason::Reason;
pub use roles::RoleSpec;
pub use rules::{
    CHANGEABLE, CHANGEABLE_WITHIN, MUTABLE, MUTABLE_WITHIN, RESERVED_ENV, RESERVED_ENV_PREFIXES, RESERVED_KEY_PREFIXES,
    RESERVED_KEYS, RULES, Rule, SCHEMA_REFUSALS, SchemaRefusal, completed_message, immutable, immutable_message,
    is_changeable, running_message,
};
pub use runtime::{AppliedRuntime, RuntimeKind, RuntimeParameter, RuntimeRef};
pub use scheduling::{GangScheduler, Scheduling};
pub use schema::{NOT_IN_RUNTIMES, NOT_IN_TRIALS, crd, runtime_crd, tuning_crd};
pub use spec::{TrainingJob, TrainingJobSpec};
pub use status::{
    AllocatedResources, AttemptSpec, BestCheckpoint, BestLoss, CheckpointStatus, CodeStatus, Condition, DataProgress,
    DataStatus, EarlyStoppingStatus, ElasticStatus, HandledRestart, ProgramMetrics, PublicationProgress, RestartFrom,
    ResultStatus, RoleStatus, State, TrainingJobStatus, Workers,
};
pub use success::{EarlyStopping, LOSSES, Mode, SuccessPolicy};
pub use tuning::{
    BestTrial, EarlierTrial, MAX_TRIALS, MetricStrategy, ParameterCondition, ParameterKind, ParameterScale,
    StoppingMethod, TrialFailures, TrialMetadata, TrialReading, TrialState, TrialStatus, TrialStopping, TrialTemplate,
    Tuning, TuningAlgorithm, TuningGoal, TuningJob, TuningJobSpec, TuningJobStatus, TuningMethod, TuningMetric,
    TuningParameter, TuningState,
};
pub use tuning_rules::{TUNING_JOB_RULES, TUNING_RULES};
pub use values::{defaults_of, fill};

/// API group of all kinds of this project.
pub const GROUP: &str = "ml.example.com";
/// API version served and stored.
pub const VERSION: &str = "v1";
