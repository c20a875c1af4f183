//! Defaults of the fields that a job does not set.
//!
//! The schema has none of these. Values that the API server fills in are indistinguishable from values that a user wrote.
//! Nothing, such as a template, could then take a place between a job and its defaults. The crate `plan` applies the
//! defaults recorded when the job was created. The descriptions of the fields state the current defaults. The rules of the
//! CRD read a field that is not set as its default.

use super::{
    Backend, DeletePolicy, Framework, GangScheduler, HangAction, HostNames, IfNoneUsable, Mode, NanPolicy, ProcsKind,
    ProcsPerWorker, RestartPolicy, RuntimeKind, Verify,
};
use serde_json::{Value, json};
use std::num::NonZeroU32;

/// Defines a constant for each row, and [`all`] for all of them.
macro_rules! defaults {
    ($($path:literal, $name:ident: $type:ty = $value:expr;)*) => {
        $(
            #[doc = concat!("Default of `", $path, "`.")]
            pub const $name: $type = $value;
        )*

        /// Defaults that are the same for every job, each with the field's path from the spec, such as
        /// `networking.masterPort`.
        ///
        /// They are recorded in a job's status when it is created ([`super::Inherited`]), so a changed default affects
        /// later jobs only. A field that is newer than a job's record has its current default. The default of a new field
        /// must therefore mean what the operator did before.
        #[must_use]
        pub fn all() -> [(&'static str, Value); [$($path),*].len()] {
            [$(($path, json!($name))),*]
        }
    };
}

defaults! {
    "runtimeRef.kind", RUNTIME_KIND: RuntimeKind = RuntimeKind::ClusterTrainingRuntime;
    "safetensorsOnly", SAFETENSORS_ONLY: bool = true;
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
    "monitoring.plateauSeconds", PLATEAU_SECONDS: u32 = 3600;
    "monitoring.objective.mode", OBJECTIVE_MODE: Mode = Mode::Min;
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
/// Default of `monitoring.tensorboardImage`, pinned like those of the frameworks.
pub const TENSORBOARD_IMAGE: &str = "tensorflow/tensorflow:2.19.0";

/// Default of `image`. The images are public and pinned, so that a job does not change when a tag moves. Empty if a
/// framework has no default; the API server then requires an image in the spec.
#[must_use]
pub const fn image(framework: Framework) -> &'static str {
    match framework {
        Framework::Pytorch => "pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime",
        Framework::Tensorflow => "tensorflow/tensorflow:2.19.0-gpu",
        Framework::Jax => "nvcr.io/nvidia/jax:26.04-py3",
        Framework::Xgboost | Framework::Paddle | Framework::Mxnet | Framework::Mpi | Framework::None => "",
    }
}

/// Command that runs if the spec sets none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launcher {
    /// Default of `command`.
    pub command: &'static [&'static str],
    /// Default of `args` if `command` is not set either.
    pub args: &'static [&'static str],
}

/// Defaults of `command` and `args`.
#[must_use]
pub const fn launcher(framework: Framework) -> Launcher {
    const TRAIN: &[&str] = &["train.py"];
    match framework {
        Framework::Pytorch => Launcher { command: &["torchrun"], args: TRAIN },
        Framework::Paddle => Launcher { command: &["python3", "-m", "paddle.distributed.launch"], args: TRAIN },
        // Without a number, MPICH's launcher starts one process, and Open MPI's starts one for each slot.
        Framework::Mpi => Launcher { command: &["mpirun", "-np", "$(WORLD_SIZE)"], args: &["python3", "train.py"] },
        Framework::Tensorflow | Framework::Jax | Framework::Xgboost | Framework::Mxnet | Framework::None => {
            Launcher { command: &["python3"], args: TRAIN }
        }
    }
}

/// Default of `networking.hostNames`: the pods that the framework finds by name. Frameworks whose ranks meet at the first
/// worker exchange their addresses there.
#[must_use]
pub const fn host_names(framework: Framework, has_roles: bool) -> HostNames {
    match framework {
        Framework::Pytorch | Framework::Jax | Framework::Xgboost | Framework::Paddle if !has_roles => {
            HostNames::FirstWorker
        }
        _ => HostNames::AllWorkers,
    }
}

/// Objects that are optional as a whole: if such an object is not set, nothing in it has a default. The fields of any other
/// object have their defaults even if the object is not set.
pub const THERE_OR_NOT: [&str; 6] =
    ["checkpoint.storage", "checkpoint.keepBest", "checkpoint.backup", "monitoring.objective", "elastic", "runtimeRef"];

/// Default of the field at a path from the spec.
#[must_use]
pub fn for_path(path: &str) -> Option<Value> {
    all().into_iter().find(|(field, _)| *field == path).map(|(_, default)| default)
}

/// Returns CEL for whether `path` is set below `root`, even if parts of the path are missing.
pub(super) fn is_written(root: &str, path: &str) -> String {
    let ends = path.match_indices('.').map(|(end, _)| end).chain([path.len()]);
    ends.map(|end| format!("has({root}.{})", &path[..end])).collect::<Vec<_>>().join(" && ")
}

/// Returns CEL for the value at `path` below `root`, or `default` if it is not set.
pub(super) fn written_or(root: &str, path: &str, default: &Value) -> String {
    let literal = default.as_str().map_or_else(|| default.to_string(), |text| format!("'{text}'"));
    format!("({} ? {root}.{path} : {literal})", is_written(root, path))
}
