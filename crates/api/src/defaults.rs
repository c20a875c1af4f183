//! What holds where a job says nothing.
//!
//! The schema has none of these: what the API server fills in can't be told from what a person wrote, and then nothing
//! could stand between a job and its defaults. [`plan`] applies those that were recorded when the job was created, the
//! descriptions of the fields tell those of today, and the rules of the CRD read a field that is not written as its default.

use super::{
    Backend, DeletePolicy, Framework, GangScheduler, HangAction, HostNames, IfNoneUsable, Mode, NanPolicy, ProcsKind,
    ProcsPerWorker, RestartPolicy, RuntimeKind, Verify,
};
use serde_json::{Value, json};
use std::num::NonZeroU32;

/// Makes of each row a constant, and of all of them [`all`].
macro_rules! defaults {
    ($($path:literal, $name:ident: $type:ty = $value:expr;)*) => {
        $(
            #[doc = concat!("Default of `", $path, "`.")]
            pub const $name: $type = $value;
        )*

        /// All that are the same for every job, each with its field's path from the spec, as in `networking.masterPort`.
        ///
        /// They are recorded in a job's status when it is created ([`super::Inherited`]), and another default concerns later jobs.
        /// For a job whose record has no word about a field, since the field is newer, the default of today holds: what is added
        /// must mean by default what the operator did before.
        #[must_use]
        pub fn all() -> [(&'static str, Value); [$($path),*].len()] {
            [$(($path, json!($name))),*]
        }
    };
}

defaults! {
    "runtimeRef.kind", RUNTIME_KIND: RuntimeKind = RuntimeKind::ClusterTrainingRuntime;
    "gpusPerWorker", GPUS_PER_WORKER: u16 = 1;
    "procsPerWorker", PROCS_PER_WORKER: ProcsPerWorker = ProcsPerWorker::Kind(ProcsKind::Auto);
    "framework", FRAMEWORK: Framework = Framework::Pytorch;
    "checkpoint.enabled", CHECKPOINT_ENABLED: bool = true;
    "checkpoint.frequency", CHECKPOINT_FREQUENCY: u32 = 5;
    "checkpoint.retention", CHECKPOINT_RETENTION: NonZeroU32 = NonZeroU32::MIN.saturating_add(2);
    "checkpoint.keepBest.mode", KEEP_BEST_MODE: Mode = Mode::Min;
    "checkpoint.ifNoneUsable", IF_NONE_USABLE: IfNoneUsable = IfNoneUsable::Wait;
    "checkpoint.verify", VERIFY: Verify = Verify::Full;
    "checkpoint.backup.intervalSeconds", BACKUP_INTERVAL_SECONDS: u32 = 1800;
    "checkpoint.storage.deletePolicy", DELETE_POLICY: DeletePolicy = DeletePolicy::Retain;
    "monitoring.enabled", MONITORING_ENABLED: bool = true;
    "monitoring.metricsPort", METRICS_PORT: u16 = 8080;
    "monitoring.tensorboardEnabled", TENSORBOARD_ENABLED: bool = false;
    "networking.backend", BACKEND: Backend = Backend::Nccl;
    "networking.masterPort", MASTER_PORT: u16 = 29500;
    "networking.isolate", ISOLATE: bool = true;
    "networking.rdmaEnabled", RDMA_ENABLED: bool = false;
    "failurePolicy.restartPolicy", RESTART_POLICY: RestartPolicy = RestartPolicy::OnFailure;
    "failurePolicy.backoffLimit", BACKOFF_LIMIT: u16 = 3;
    "failurePolicy.nodeLostSeconds", NODE_LOST_SECONDS: u32 = 60;
    "failurePolicy.nanPolicy", NAN_POLICY: NanPolicy = NanPolicy::Report;
    "failurePolicy.hang.timeoutSeconds", HANG_TIMEOUT_SECONDS: u32 = 1800;
    "failurePolicy.hang.idleTimeoutSeconds", HANG_IDLE_TIMEOUT_SECONDS: u32 = 3600;
    "failurePolicy.hang.action", HANG_ACTION: HangAction = HangAction::Report;
    "elastic.minWorkers", MIN_WORKERS: u16 = 1;
    "elastic.waitSeconds", WAIT_SECONDS: u32 = 60;
    "scheduling.gang", GANG: GangScheduler = GangScheduler::None;
}

/// Default of `checkpoint.storage.size`.
pub const STORAGE_SIZE: &str = "10Gi";
/// Default of `monitoring.tensorboardImage`; pinned, as those of the frameworks are.
pub const TENSORBOARD_IMAGE: &str = "tensorflow/tensorflow:2.19.0";

/// Default of `image`: public ones, pinned, so that a job does not change when a tag moves. Empty where there is none, and the
/// API server wants one in the spec.
#[must_use]
pub const fn image(framework: Framework) -> &'static str {
    match framework {
        Framework::Pytorch => "pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime",
        Framework::Tensorflow => "tensorflow/tensorflow:2.19.0-gpu",
        Framework::Jax => "nvcr.io/nvidia/jax:26.04-py3",
        Framework::Xgboost | Framework::Paddle | Framework::Mxnet | Framework::Mpi | Framework::None => "",
    }
}

/// What runs where a spec has no command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launcher {
    /// Default of `command`.
    pub command: &'static [&'static str],
    /// Default of `args`, where there is no command either.
    pub args: &'static [&'static str],
}

/// Defaults of `command` and `args`.
#[must_use]
pub const fn launcher(framework: Framework) -> Launcher {
    const TRAIN: &[&str] = &["train.py"];
    match framework {
        Framework::Pytorch => Launcher { command: &["torchrun"], args: TRAIN },
        Framework::Paddle => Launcher { command: &["python3", "-m", "paddle.distributed.launch"], args: TRAIN },
        // MPICH's starts one process if it is not told how many, and Open MPI's one for each slot.
        Framework::Mpi => Launcher { command: &["mpirun", "-np", "$(WORLD_SIZE)"], args: &["python3", "train.py"] },
        Framework::Tensorflow | Framework::Jax | Framework::Xgboost | Framework::Mxnet | Framework::None => {
            Launcher { command: &["python3"], args: TRAIN }
        }
    }
}

/// Default of `networking.hostNames`: those that the framework finds by name. Where the ranks meet at the first worker, they
/// tell each other their addresses.
#[must_use]
pub const fn host_names(framework: Framework, has_roles: bool) -> HostNames {
    match framework {
        Framework::Pytorch | Framework::Jax | Framework::Xgboost | Framework::Paddle if !has_roles => {
            HostNames::FirstWorker
        }
        _ => HostNames::AllWorkers,
    }
}

/// Objects that are there or not as a whole: without one nothing in it has a default. Of any other one that is not written the
/// fields have theirs.
pub const THERE_OR_NOT: [&str; 5] =
    ["checkpoint.storage", "checkpoint.keepBest", "checkpoint.backup", "elastic", "runtimeRef"];

/// The default of the field at a path from the spec.
#[must_use]
pub fn of(path: &str) -> Option<Value> {
    all().into_iter().find(|(field, _)| *field == path).map(|(_, default)| default)
}

/// CEL that says whether `path` is written below `root`, whatever of the way to it is.
pub(super) fn is_written(root: &str, path: &str) -> String {
    let ends = path.match_indices('.').map(|(end, _)| end).chain([path.len()]);
    ends.map(|end| format!("has({root}.{})", &path[..end])).collect::<Vec<_>>().join(" && ")
}

/// CEL for what is written at `path` below `root`, or for `default`.
pub(super) fn written_or(root: &str, path: &str, default: &Value) -> String {
    let literal = default.as_str().map_or_else(|| default.to_string(), |text| format!("'{text}'"));
    format!("({} ? {root}.{path} : {literal})", is_written(root, path))
}
