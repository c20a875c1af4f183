//! Values of spec fields, with defaults applied. All readers of the spec use these accessors.

use crate::{
    Backend, Backup, Checkpoint, DeletePolicy, Elastic, FailurePolicy, Framework, GangScheduler, Hang, HangAction,
    KeepBest, Mode, Monitoring, NanPolicy, Networking, Objective, ProcsPerWorker, RestartPolicy, RuntimeKind,
    RuntimeRef, Scheduling, Storage, TrainingJobSpec, defaults,
};
use serde_json::{Value, json};
use std::num::{NonZeroU16, NonZeroU32};

impl TrainingJobSpec {
    /// Number of workers. It is 0 if neither the job nor its template sets it, and then no objects are created.
    #[must_use]
    pub fn num_workers(&self) -> u16 {
        self.num_workers.map_or(0, NonZeroU16::get)
    }

    /// GPUs of each worker.
    #[must_use]
    pub fn gpus_per_worker(&self) -> u16 {
        self.gpus_per_worker.unwrap_or(defaults::GPUS_PER_WORKER)
    }

    /// Processes per worker, as requested.
    #[must_use]
    pub fn procs_per_worker(&self) -> ProcsPerWorker {
        self.procs_per_worker.clone().unwrap_or(defaults::PROCS_PER_WORKER)
    }

    /// Whether pickled weights of the hub's models are left out.
    #[must_use]
    pub fn safetensors_only(&self) -> bool {
        self.safetensors_only.unwrap_or(defaults::SAFETENSORS_ONLY)
    }

    /// Framework of the program.
    #[must_use]
    pub fn framework(&self) -> Framework {
        self.framework.unwrap_or(defaults::FRAMEWORK)
    }
}

impl RuntimeRef {
    /// Kind of the template.
    #[must_use]
    pub fn kind(&self) -> RuntimeKind {
        self.kind.unwrap_or(defaults::RUNTIME_KIND)
    }
}

impl Elastic {
    /// Minimum number of workers that the gang runs with.
    #[must_use]
    pub fn min_workers(&self) -> u16 {
        self.min_workers.unwrap_or(defaults::MIN_WORKERS)
    }

    /// Seconds to wait for unschedulable workers before the gang runs without them.
    #[must_use]
    pub fn wait_seconds(&self) -> u32 {
        self.wait_seconds.unwrap_or(defaults::WAIT_SECONDS)
    }
}

impl Checkpoint {
    /// Whether the job has a folder for checkpoints.
    #[must_use]
    pub fn enabled(&self) -> bool {
        self.enabled.unwrap_or(defaults::CHECKPOINT_ENABLED)
    }

    /// Epochs between two checkpoints.
    #[must_use]
    pub fn frequency(&self) -> u32 {
        self.frequency.unwrap_or(defaults::CHECKPOINT_FREQUENCY)
    }

    /// Number of newest good checkpoints to keep.
    #[must_use]
    pub fn retention(&self) -> NonZeroU32 {
        self.retention.unwrap_or(defaults::CHECKPOINT_RETENTION)
    }
}

impl KeepBest {
    /// Whether lower or higher values are better.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode.unwrap_or(defaults::KEEP_BEST_MODE)
    }
}

impl Backup {
    /// Minimum number of seconds between two backups.
    #[must_use]
    pub fn interval_seconds(&self) -> u32 {
        self.interval_seconds.unwrap_or(defaults::BACKUP_INTERVAL_SECONDS)
    }
}

impl Storage {
    /// Whether the claim created for the job is deleted with it.
    #[must_use]
    pub fn delete_policy(&self) -> DeletePolicy {
        self.delete_policy.unwrap_or(defaults::DELETE_POLICY)
    }
}

impl Monitoring {
    /// Whether the workers serve their progress.
    #[must_use]
    pub fn enabled(&self) -> bool {
        self.enabled.unwrap_or(defaults::MONITORING_ENABLED)
    }

    /// Port of each worker's metrics.
    #[must_use]
    pub fn metrics_port(&self) -> u16 {
        self.metrics_port.unwrap_or(defaults::METRICS_PORT)
    }

    /// Seconds in which the loss must improve; 0 never checks.
    #[must_use]
    pub fn plateau_seconds(&self) -> u32 {
        self.plateau_seconds.unwrap_or(defaults::PLATEAU_SECONDS)
    }

    /// Whether a TensorBoard is requested.
    #[must_use]
    pub fn tensorboard_enabled(&self) -> bool {
        self.tensorboard_enabled.unwrap_or(defaults::TENSORBOARD_ENABLED)
    }
}

impl Objective {
    /// Whether lower or higher values are better.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode.unwrap_or(defaults::OBJECTIVE_MODE)
    }
}

impl Networking {
    /// Collective communication backend.
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.backend.unwrap_or(defaults::BACKEND)
    }

    /// Port of the rendezvous of the first attempt.
    #[must_use]
    pub fn master_port(&self) -> u16 {
        self.master_port.unwrap_or(defaults::MASTER_PORT)
    }

    /// Whether other pods may reach the job's pods only on their metrics port.
    #[must_use]
    pub fn isolate(&self) -> bool {
        self.isolate.unwrap_or(defaults::ISOLATE)
    }

    /// Whether RDMA is used.
    #[must_use]
    pub fn rdma_enabled(&self) -> bool {
        self.rdma_enabled.unwrap_or(defaults::RDMA_ENABLED)
    }
}

impl FailurePolicy {
    /// Condition for restarts.
    #[must_use]
    pub fn restart_policy(&self) -> RestartPolicy {
        self.restart_policy.unwrap_or(defaults::RESTART_POLICY)
    }

    /// Number of restarts after failures before the job fails.
    #[must_use]
    pub fn backoff_limit(&self) -> u16 {
        self.backoff_limit.unwrap_or(defaults::BACKOFF_LIMIT)
    }

    /// Seconds that a node may be unreachable before its worker is replaced.
    #[must_use]
    pub fn node_lost_seconds(&self) -> u32 {
        self.node_lost_seconds.unwrap_or(defaults::NODE_LOST_SECONDS)
    }

    /// Handling of a loss that is NaN or infinite.
    #[must_use]
    pub fn nan_policy(&self) -> NanPolicy {
        self.nan_policy.unwrap_or(defaults::NAN_POLICY)
    }
}

impl Hang {
    /// Seconds without a step after which a program may be hung.
    #[must_use]
    pub fn timeout_seconds(&self) -> u32 {
        self.timeout_seconds.unwrap_or(defaults::HANG_TIMEOUT_SECONDS)
    }

    /// Seconds without any sign of life after which a program that reports no steps is considered hung.
    #[must_use]
    pub fn idle_timeout_seconds(&self) -> u32 {
        self.idle_timeout_seconds.unwrap_or(defaults::HANG_IDLE_TIMEOUT_SECONDS)
    }

    /// Reaction to a hung program.
    #[must_use]
    pub fn action(&self) -> HangAction {
        self.action.unwrap_or(defaults::HANG_ACTION)
    }
}

impl Scheduling {
    /// Scheduler that places the workers together.
    #[must_use]
    pub fn gang(&self) -> GangScheduler {
        self.gang.unwrap_or(defaults::GANG)
    }
}

/// Current defaults for a spec, as a partial spec; this is what is recorded when a job is created.
///
/// `spec` is the job merged with its template. The result includes the fields of objects that are optional as a whole.
#[must_use]
pub fn defaults_of(spec: &TrainingJobSpec) -> Value {
    let framework = spec.framework();
    let launcher = defaults::launcher(framework);
    let derived = [
        ("image", json!(defaults::image(framework))),
        ("command", json!(launcher.command)),
        ("args", json!(launcher.args)),
        ("networking.hostNames", json!(defaults::host_names(framework, !spec.roles.is_empty()))),
        ("monitoring.tensorboardImage", json!(defaults::TENSORBOARD_IMAGE)),
        ("checkpoint.storage.size", json!(defaults::STORAGE_SIZE)),
    ];
    let mut all = json!({});
    for (path, default) in defaults::all().into_iter().chain(derived) {
        let mut at = &mut all;
        for step in path.split('.') {
            at = &mut at[step];
        }
        *at = default;
    }
    all
}

/// Sets each field of a spec that is unset and has a value in `defaults`, a partial spec.
///
/// An object that is optional as a whole is not created. A spec with its own command gets no default arguments.
pub fn fill(spec: &mut Value, defaults: &Value) {
    fill_at("", spec, defaults);
}

fn fill_at(path: &str, spec: &mut Value, defaults: &Value) {
    let (Value::Object(spec), Value::Object(defaults)) = (spec, defaults) else { return };
    let has_command = path.is_empty() && spec.contains_key("command");
    for (key, default) in defaults.iter().filter(|(key, _)| !(has_command && *key == "args")) {
        let path = format!("{path}.{key}");
        let path = path.trim_start_matches('.');
        if !spec.contains_key(key) {
            if defaults::THERE_OR_NOT.contains(&path) {
                continue;
            }
            spec.insert(key.clone(), if default.is_object() { json!({}) } else { default.clone() });
        }
        fill_at(path, &mut spec[key.as_str()], default);
    }
}
