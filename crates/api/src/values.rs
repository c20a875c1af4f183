//! What a field that is not written means. Whoever reads the spec asks here.

use crate::{
    Backend, Backup, Checkpoint, DeletePolicy, Elastic, FailurePolicy, Framework, GangScheduler, Hang, HangAction,
    KeepBest, Mode, Monitoring, NanPolicy, Networking, ProcsPerWorker, RestartPolicy, RuntimeKind, RuntimeRef,
    Scheduling, Storage, TrainingJobSpec, defaults,
};
use serde_json::{Value, json};
use std::num::{NonZeroU16, NonZeroU32};

impl TrainingJobSpec {
    /// Workers of the gang; none where neither the job nor its template says it, and then nothing is made.
    #[must_use]
    pub fn num_workers(&self) -> u16 {
        self.num_workers.map_or(0, NonZeroU16::get)
    }

    /// GPUs of each worker.
    #[must_use]
    pub fn gpus_per_worker(&self) -> u16 {
        self.gpus_per_worker.unwrap_or(defaults::GPUS_PER_WORKER)
    }

    /// Processes per worker, as they are asked for.
    #[must_use]
    pub fn procs_per_worker(&self) -> ProcsPerWorker {
        self.procs_per_worker.clone().unwrap_or(defaults::PROCS_PER_WORKER)
    }

    /// Framework of the program.
    #[must_use]
    pub fn framework(&self) -> Framework {
        self.framework.unwrap_or(defaults::FRAMEWORK)
    }
}

impl RuntimeRef {
    /// Which kind it is of.
    #[must_use]
    pub fn kind(&self) -> RuntimeKind {
        self.kind.unwrap_or(defaults::RUNTIME_KIND)
    }
}

impl Elastic {
    /// With fewer workers the gang does not run.
    #[must_use]
    pub fn min_workers(&self) -> u16 {
        self.min_workers.unwrap_or(defaults::MIN_WORKERS)
    }

    /// Seconds until it runs without those that find no room.
    #[must_use]
    pub fn wait_seconds(&self) -> u32 {
        self.wait_seconds.unwrap_or(defaults::WAIT_SECONDS)
    }
}

impl Checkpoint {
    /// Whether there is a place for checkpoints.
    #[must_use]
    pub fn enabled(&self) -> bool {
        self.enabled.unwrap_or(defaults::CHECKPOINT_ENABLED)
    }

    /// Epochs between two checkpoints.
    #[must_use]
    pub fn frequency(&self) -> u32 {
        self.frequency.unwrap_or(defaults::CHECKPOINT_FREQUENCY)
    }

    /// Newest good checkpoints that are kept.
    #[must_use]
    pub fn retention(&self) -> NonZeroU32 {
        self.retention.unwrap_or(defaults::CHECKPOINT_RETENTION)
    }
}

impl KeepBest {
    /// Which way is better.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode.unwrap_or(defaults::KEEP_BEST_MODE)
    }
}

impl Backup {
    /// Seconds between two copies.
    #[must_use]
    pub fn interval_seconds(&self) -> u32 {
        self.interval_seconds.unwrap_or(defaults::BACKUP_INTERVAL_SECONDS)
    }
}

impl Storage {
    /// What becomes of a claim that is made for the job.
    #[must_use]
    pub fn delete_policy(&self) -> DeletePolicy {
        self.delete_policy.unwrap_or(defaults::DELETE_POLICY)
    }
}

impl Monitoring {
    /// Whether the job is watched.
    #[must_use]
    pub fn enabled(&self) -> bool {
        self.enabled.unwrap_or(defaults::MONITORING_ENABLED)
    }

    /// Port of each worker's metrics.
    #[must_use]
    pub fn metrics_port(&self) -> u16 {
        self.metrics_port.unwrap_or(defaults::METRICS_PORT)
    }

    /// Whether a TensorBoard is asked for.
    #[must_use]
    pub fn tensorboard_enabled(&self) -> bool {
        self.tensorboard_enabled.unwrap_or(defaults::TENSORBOARD_ENABLED)
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

    /// Whether other pods may connect to the job's pods only on their metrics port.
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
    /// When the gang is restarted.
    #[must_use]
    pub fn restart_policy(&self) -> RestartPolicy {
        self.restart_policy.unwrap_or(defaults::RESTART_POLICY)
    }

    /// Restarts after failures before the job has failed.
    #[must_use]
    pub fn backoff_limit(&self) -> u16 {
        self.backoff_limit.unwrap_or(defaults::BACKOFF_LIMIT)
    }

    /// Seconds from a node's last sign of life until its worker is replaced.
    #[must_use]
    pub fn node_lost_seconds(&self) -> u32 {
        self.node_lost_seconds.unwrap_or(defaults::NODE_LOST_SECONDS)
    }

    /// What happens when the loss is NaN or infinite.
    #[must_use]
    pub fn nan_policy(&self) -> NanPolicy {
        self.nan_policy.unwrap_or(defaults::NAN_POLICY)
    }
}

impl Hang {
    /// Seconds without a step after which a program may hang.
    #[must_use]
    pub fn timeout_seconds(&self) -> u32 {
        self.timeout_seconds.unwrap_or(defaults::HANG_TIMEOUT_SECONDS)
    }

    /// Seconds without any sign of life after which a program that reports no steps may hang.
    #[must_use]
    pub fn idle_timeout_seconds(&self) -> u32 {
        self.idle_timeout_seconds.unwrap_or(defaults::HANG_IDLE_TIMEOUT_SECONDS)
    }

    /// What is done about that.
    #[must_use]
    pub fn action(&self) -> HangAction {
        self.action.unwrap_or(defaults::HANG_ACTION)
    }
}

impl Scheduling {
    /// Who places the workers together.
    #[must_use]
    pub fn gang(&self) -> GangScheduler {
        self.gang.unwrap_or(defaults::GANG)
    }
}

/// All defaults as they are today for a spec that says this, as a part of a spec: what is recorded when a job is created.
///
/// `spec` is what the job and its template write. Of what is there or not as a whole the defaults are among them, too.
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

/// Writes into a spec what of `defaults`, a part of a spec, it leaves open.
///
/// An object that is there or not as a whole is not made, and with a command of its own a spec has no default arguments.
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
