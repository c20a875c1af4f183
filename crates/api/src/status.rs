//! What the operator tells.

use super::{Inherited, Reason};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use protocol::attempt::{AttemptEnd, RestartHistory};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// What the operator knows about the job. Times are in whole seconds.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TrainingJobStatus {
    /// Generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Where the job stands: Pending, Initializing, Running, Completed, Failed or Suspended. A later version may add values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub state: Option<State>,
    /// Accepted, Scheduled, Running, Restarting, Suspended, Stopping, Succeeded, Failed, AgentReady, LossFinite, ProgressStalled, CheckpointsHealthy, TensorBoard: those that apply, each with reason and message.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// What the job has from its template and from the defaults, as they were when it was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inherited: Option<Inherited>,
    /// The workers of this attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<Workers>,
    /// The pods of the other roles of this attempt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<RoleStatus>,
    /// The size of an elastic gang.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elastic: Option<ElasticStatus>,
    /// Number of this attempt, from 1; it only grows. A restart and a resume are new attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Number of the Job and pods that run it, from 1; it only grows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<u32>,
    /// Restarts so far, of both kinds: after failures and after disruptions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_count: Option<u32>,
    /// Restarts that don't count against `backoffLimit`: after evictions, preemptions and lost nodes, and what a rule ignores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disruption_count: Option<u32>,
    /// The last ten attempts that ended in a restart, and the one that is failing now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub restarts: Vec<AttemptEnd>,
    /// What the ends of all attempts add up to: by this it is decided whether another attempt follows, and when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_history: Option<RestartHistory>,
    /// The last restart that somebody asked for by the annotation `ml.example.com/restart-requested`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_restart: Option<AskedRestart>,
    /// How far the program is, in percent of its steps if their total is known, else of its epochs, for example 45%.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<String>,
    /// Epoch that the program is in, as it counts them; without the fraction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_epoch: Option<i64>,
    /// Epochs in all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_epochs: Option<i64>,
    /// Step of the whole run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_step: Option<i64>,
    /// Steps in all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_steps: Option<i64>,
    /// Seconds that remain: as the program reports them, else at the pace of this attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated_seconds_remaining: Option<i64>,
    /// When the program last reported anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_progress_time: Option<Time>,
    /// What the program measures. Values that it never reported are absent; so is one that is NaN or infinite.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<ProgramMetrics>,
    /// The job's checkpoints, as the agent of the first worker last told of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointStatus>,
    /// How early stopping stands, over all attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub early_stopping: Option<EarlyStoppingStatus>,
    /// What the job holds in the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<AllocatedResources>,
    /// When the first worker's program started for the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When the job completed or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// Image of the agent in the job's newest pods, by which `kubectl trainingjob checkpoints` asks while no worker runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_image: Option<String>,
    /// From `startTime` to `completionTime`, for example 1h2m3s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration: Option<String>,
    /// Seconds in which every worker's program ran, up to the last time that they stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running_seconds: Option<i64>,
    /// Seconds of them whose work was lost: from the newest checkpoint of an attempt to its failure; all of an attempt that left none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_seconds: Option<i64>,
    /// Once the job has ended: `runningSeconds` less `lostSeconds`, as a share of the time from `startTime` to `completionTime` without suspensions, for example 93%.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goodput: Option<String>,
    /// When the running suspension began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended_at: Option<Time>,
    /// Seconds of earlier suspensions since `startTime`; they don't count for the deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended_seconds: Option<i64>,
    /// Why the job failed, in one CamelCase word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_reason: Option<Reason>,
    /// Why the job failed, as a person would tell it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_message: Option<String>,
}

/// Where a job stands.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Accepted; its objects or its pods are not all there, or a pod waits for a node.
    Pending,
    /// Every pod has a node; images, volumes, start. Also between two attempts.
    Initializing,
    /// Every worker's program runs or has ended well.
    Running,
    /// Every worker's program ended well.
    Completed,
    /// It won't run any more.
    Failed,
    /// Asked to stop; no pod runs.
    Suspended,
    /// A value of a newer operator. This version never writes it, and does not guess whether the job is over.
    #[serde(other)]
    Unknown,
}

impl State {
    /// Completed is for ever, and Failed until somebody asks for a restart.
    #[must_use]
    pub fn is_finished(self) -> bool {
        matches!(self, Self::Completed | Self::Failed)
    }

    /// As it stands in the status.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Initializing => "Initializing",
            Self::Running => "Running",
            Self::Completed => "Completed",
            Self::Failed => "Failed",
            Self::Suspended => "Suspended",
            Self::Unknown => "Unknown",
        }
    }
}

/// Pods of a role besides the workers.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
pub struct RoleStatus {
    /// Name of the role.
    pub name: String,
    /// How many of them there are, and how they stand.
    #[serde(flatten)]
    pub count: Workers,
}

/// Workers of the attempt, counted by their pods.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Workers {
    /// `numWorkers`, or of another role its `replicas`.
    pub desired: u32,
    /// Whose program runs.
    pub active: u32,
    /// Whose program exited 0.
    pub succeeded: u32,
    /// Whose program or pod failed.
    pub failed: u32,
    /// Not there yet, waiting for a node, or starting.
    pub pending: u32,
}

/// The size of an elastic gang.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ElasticStatus {
    /// Workers that run together, in this attempt or the next one: the first ones by their index. Fewer than `numWorkers` while not all of them find room.
    pub workers: u16,
    /// The most that it was since its pods were made.
    pub largest: u16,
    /// When `workers` changed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed: Option<Time>,
    /// Since when fewer workers find room, or more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// Selects the workers' pods, for an autoscaler.
    pub selector: String,
}

/// What the program measures, as it last reported it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ProgramMetrics {
    /// Training loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Accuracy, as the program counts it: a share or a percentage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// Learning rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learning_rate: Option<f64>,
    /// Samples, tokens or steps per second: whatever the program reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throughput: Option<f64>,
    /// Mean over the GPUs of the worker that reports, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_utilization: Option<f64>,
    /// All others, by the program's own names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub custom_metrics: BTreeMap<String, f64>,
}

/// The job's checkpoints. Paths are below `/checkpoints`.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointStatus {
    /// The newest good one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latest_path: Option<String>,
    /// Epochs that the newest one has behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latest_epoch: Option<i64>,
    /// Steps that the newest one has behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latest_step: Option<i64>,
    /// When the newest one was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_checkpoint_time: Option<Time>,
    /// Good ones: valid, and complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_count: Option<i32>,
    /// Of them those that are complete: damage may be unseen, for their format has no checksum of all that loading needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complete_count: Option<i32>,
    /// Those that can't be gone on from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub corrupted_count: Option<i32>,
    /// The best by `keepBest`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<BestCheckpoint>,
    /// When the last copy was whole: in the object store where checkpoints are kept, or in the backup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_backup_time: Option<Time>,
    /// The checkpoint of that copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_backup_path: Option<String>,
    /// The newest good one that is not copied yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_backup: Option<String>,
    /// The one that this attempt resumed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed_from: Option<String>,
    /// When an attempt first resumed from `resumeFrom`. What the job saves from then on takes its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_from_used: Option<Time>,
    /// True once `resumeFrom` was found to be good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_checked: Option<bool>,
}

/// The best checkpoint.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct BestCheckpoint {
    /// Which one.
    pub path: String,
    /// Its value of the metric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// Steps that it has behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<i64>,
}

/// How early stopping stands.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct EarlyStoppingStatus {
    /// Name of the metric that is watched.
    pub metric: String,
    /// Its best value so far.
    pub best: f64,
    /// Evaluations since then that were not better by more than `minDelta`.
    pub evaluations_since_best: i32,
    /// Attempt of the last evaluation.
    #[serde(default)]
    pub attempt: u32,
    /// When the program of the last evaluation was started. A queue manager may stop it and start it again within an
    /// attempt, and each counts its evaluations from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program_started: Option<Time>,
    /// Number of the last evaluation, in that attempt.
    #[serde(default)]
    pub evaluations: i64,
    /// Step of the last evaluation, if the program tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<i64>,
}

/// A restart that somebody asked for, and that was heeded: it is not done again.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct AskedRestart {
    /// Value of the annotation.
    pub request: String,
    /// When it was heeded.
    pub time: Time,
    /// The first attempt that follows from it: what failed before is no reason to wait longer between attempts.
    pub attempt: u32,
}

/// What the job holds in the cluster.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct AllocatedResources {
    /// GPUs of the workers that have a node.
    #[serde(rename = "allocatedGPUs")]
    pub allocated_gpus: u32,
    /// Nodes on which its workers are.
    pub allocated_nodes: u32,
}
