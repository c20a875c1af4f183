//! The status that the operator reports.

use super::{Inherited, Reason};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use protocol::attempt::{AttemptEnd, RestartHistory};
use protocol::objective::Objective;
use protocol::result::ResultRecord;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// Observed state of the job. Times are in whole seconds.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TrainingJobStatus {
    /// Generation of the spec that this status refers to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// State of the job: Pending, Initializing, Running, Completed, Failed or Suspended. A later version may add values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub state: Option<State>,
    /// Workers and pods of other roles whose program runs, of all that the job wants, for example 3/4.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<String>,
    /// What the job waits for or why it failed, in one CamelCase word. Absent while it runs, is suspended or is Completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// Conditions of the job, each with reason and message.
    /// The types are Accepted, Scheduled, Running, Restarting, Suspended, Stopping, Succeeded and Failed.
    /// Further types are AgentReady, LossFinite, LossImproving, ProgressStalled, CheckpointsHealthy, CheckpointsDurable,
    /// ResultPublished and TensorBoard.
    /// Only those that apply are present.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Values that the job inherits from its template and from the defaults, as recorded when it was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inherited: Option<Inherited>,
    /// Content that was fetched for the job.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub data: Vec<DataStatus>,
    /// Counts of the workers in this attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<Workers>,
    /// Counts of the pods of the other roles in this attempt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<RoleStatus>,
    /// Size of an elastic gang.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elastic: Option<ElasticStatus>,
    /// Number of the current attempt, from 1. It only increases. Each restart and each resume starts a new attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Number of the current Job and its pods, from 1. It only increases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<u32>,
    /// Number of restarts so far, after failures and after disruptions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_count: Option<u32>,
    /// Number of restarts that do not count against `backoffLimit`.
    /// They follow evictions, preemptions, node losses and failures that a rule ignores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disruption_count: Option<u32>,
    /// The last ten attempts that ended in a restart, and the one that is failing now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub restarts: Vec<AttemptEnd>,
    /// Summary of all ended attempts, from which the operator decides whether and when another attempt follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_history: Option<RestartHistory>,
    /// The last handled restart request, made with the annotation `ml.example.com/restart-requested`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_restart: Option<HandledRestart>,
    /// The spec with which the current attempt was made, by which the operator notices a change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt_spec: Option<AttemptSpec>,
    /// Code that the current attempt runs, verified by the agents of all its pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<CodeStatus>,
    /// Progress of the program, for example 45%.
    /// It is a percentage of the steps if their total is known, otherwise of the epochs.
    /// Before the first start it is for example "fetching 45%" while content is fetched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<String>,
    /// Epoch as the program counts it, rounded down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_epoch: Option<i64>,
    /// Total number of epochs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_epochs: Option<i64>,
    /// Step of the whole run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_step: Option<i64>,
    /// Total number of steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_steps: Option<i64>,
    /// Estimated seconds until the end, as reported by the program.
    /// If it reports none, they are extrapolated from the pace of this attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated_seconds_remaining: Option<i64>,
    /// Time of the program's last progress report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_progress_time: Option<Time>,
    /// Metrics of the program. Values that were never reported, are NaN or are infinite are absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<ProgramMetrics>,
    /// The lowest training loss of the current attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_loss: Option<BestLoss>,
    /// Readings of the metric that `monitoring.objective` names, over all attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objective: Option<Objective>,
    /// Checkpoints of the job, as last reported by the agent of the first worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointStatus>,
    /// The result that was published under the address of `output`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<ResultStatus>,
    /// Progress of the publication of the result, while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub publication: Option<PublicationProgress>,
    /// State of early stopping, across all attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub early_stopping: Option<EarlyStoppingStatus>,
    /// Cluster resources that the job holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<AllocatedResources>,
    /// Time at which a program of the job first started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// Time at which the job completed or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// Image of the agent in the job's newest pods. `kubectl trainingjob checkpoints` uses it while no worker runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_image: Option<String>,
    /// Time from `startTime` to `completionTime`, for example 1h2m3s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration: Option<String>,
    /// Seconds during which every worker's program ran, up to the last time that they stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running_seconds: Option<i64>,
    /// Seconds of `runningSeconds` whose work was lost: for each ended attempt, the time from its newest checkpoint to its end.
    /// An attempt without a checkpoint loses all of its time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_seconds: Option<i64>,
    /// Share of the job's time that became training, for example 93%; set once the job has ended.
    /// It is `runningSeconds` minus `lostSeconds`, divided by the time from `startTime` to `completionTime` without suspensions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goodput: Option<String>,
    /// Time at which the current suspension began. A wait in a queue or for a usable checkpoint also counts as one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended_at: Option<Time>,
    /// Seconds of earlier suspensions since `startTime`, waits in a queue or for a usable checkpoint included.
    /// They do not count against `activeDeadlineSeconds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended_seconds: Option<i64>,
    /// Reason for the job's failure, in one CamelCase word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_reason: Option<Reason>,
    /// Description of the job's failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_message: Option<String>,
}

/// Content that was fetched for the job. It is the same for every attempt.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct DataStatus {
    /// model, dataset, or the name of an entry of `data`.
    pub name: String,
    /// Address of the content.
    pub uri: String,
    /// Revision to which the address was resolved when the content was first fetched.
    /// It is the commit of a repository of the hub, or else a SHA-256. Empty until the content is complete in the cache.
    pub revision: String,
    /// Name of the content's folder in the cache. Empty until the content is complete in the cache.
    pub key: String,
    /// Number of files; 0 until they are listed.
    #[serde(default)]
    pub files: i64,
    /// Size of all files in bytes; 0 until they are listed.
    #[serde(default)]
    pub bytes: i64,
    /// Bytes that this job fetched over the network; 0 if the content was in the cache.
    /// A fetch is added when it is complete.
    #[serde(default)]
    pub fetched_bytes: i64,
    /// Progress of the fetch, while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<DataProgress>,
    /// Incarnation for whose pods the content was last found complete in the cache.
    #[serde(default)]
    pub incarnation: u32,
}

impl DataStatus {
    /// Whether the content was complete in the cache once, so that its revision is known.
    #[must_use]
    pub fn is_resolved(&self) -> bool {
        !self.key.is_empty()
    }
}

/// Progress of a fetch.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct DataProgress {
    /// Files that are complete and verified, of `files`.
    pub files: i64,
    /// Bytes in the cache so far, of `bytes`. Bytes of earlier tries are included.
    pub bytes: i64,
    /// Bytes that arrive over the network per second.
    pub bytes_per_second: i64,
}

/// Progress of a publication.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PublicationProgress {
    /// Files that were sent, of `totalFiles`. Files of earlier tries are included.
    pub files: i64,
    /// Number of files; 0 until they are listed.
    pub total_files: i64,
    /// Bytes that were sent, of `totalBytes`. Bytes of earlier tries are included.
    pub bytes: i64,
    /// Size of all files in bytes; 0 until they are listed.
    pub total_bytes: i64,
    /// Bytes that are sent over the network per second.
    pub bytes_per_second: i64,
}

/// The published result of the job.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ResultStatus {
    /// Its record, as in the file `trainingjob-result.json` beside the result.
    #[serde(flatten)]
    pub record: ResultRecord,
    /// Version that it became of `monitoring.mlflowRegisteredModel`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registered_version: Option<String>,
}

/// State of a job.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// The job is accepted. Its objects or pods do not all exist, or a pod waits for a node.
    Pending,
    /// Every pod has a node and is starting. The job also has this state between two attempts.
    Initializing,
    /// Every worker's program runs or has succeeded.
    Running,
    /// The job succeeded: its programs exited with code 0, or the success policy was met.
    Completed,
    /// The job failed and does not run again unless a restart is requested.
    Failed,
    /// The job is suspended and no pod runs.
    Suspended,
    /// A value from a newer operator.
    /// This version never writes it, and makes no assumption about whether the job has ended.
    #[serde(other)]
    Unknown,
}

impl State {
    /// Whether the job has ended. Completed is final, and Failed lasts until a restart is requested.
    #[must_use]
    pub fn is_finished(self) -> bool {
        matches!(self, Self::Completed | Self::Failed)
    }

    /// The state as written in the status.
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

/// Counts of the pods of one role besides the workers.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
pub struct RoleStatus {
    /// Name of the role.
    pub name: String,
    /// Counts of its pods by state.
    #[serde(flatten)]
    pub count: Workers,
}

/// Counts of the workers in this attempt, by the state of their pods.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Workers {
    /// Desired number of pods: `numWorkers`, or the `replicas` of another role.
    pub desired: u32,
    /// Pods whose program runs.
    pub active: u32,
    /// Pods whose program exited with code 0.
    pub succeeded: u32,
    /// Pods that failed, or whose program failed.
    pub failed: u32,
    /// Pods that do not exist yet, wait for a node, or are starting.
    pub pending: u32,
}

/// Size of an elastic gang.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ElasticStatus {
    /// Number of workers that run together in this attempt or the next one, the first ones by index.
    /// It is less than `numWorkers` while not all workers can be scheduled.
    pub workers: u16,
    /// Largest value of `workers` since the current pods were created.
    pub largest: u16,
    /// Time of the last change of `workers`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed: Option<Time>,
    /// Time since which a change of size has been pending. The operator makes the change after `waitSeconds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// Label selector of the workers' pods, for an autoscaler.
    pub selector: String,
}

/// Metrics of the program, as last reported.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ProgramMetrics {
    /// Training loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Accuracy on the program's own scale, a share or a percentage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// Learning rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learning_rate: Option<f64>,
    /// Samples, tokens or steps per second, depending on what the program reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throughput: Option<f64>,
    /// Mean utilization of the GPUs of the worker that reports, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_utilization: Option<f64>,
    /// Other metrics, by the program's own names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub custom_metrics: BTreeMap<String, f64>,
}

/// Checkpoints of the job. Paths below `/checkpoints` are relative to it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointStatus {
    /// Path of the newest good checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latest_path: Option<String>,
    /// Number of epochs completed in the newest checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latest_epoch: Option<i64>,
    /// Number of steps completed in the newest checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latest_step: Option<i64>,
    /// Time at which the newest checkpoint was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_checkpoint_time: Option<Time>,
    /// Number of good checkpoints, valid and complete ones together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_count: Option<i32>,
    /// Number of complete checkpoints among the good ones.
    /// Their format has no checksum for everything that loading needs, so damage may go undetected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complete_count: Option<i32>,
    /// Number of corrupted checkpoints, which can't be resumed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub corrupted_count: Option<i32>,
    /// The best checkpoint by `keepBest`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<BestCheckpoint>,
    /// Time at which the last copy was completed, in the object store for checkpoints or in the backup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_backup_time: Option<Time>,
    /// Path of the last checkpoint copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_backup_path: Option<String>,
    /// Path of the newest good checkpoint that has not been copied yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_backup: Option<String>,
    /// Path of the checkpoint that this attempt resumed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed_from: Option<String>,
    /// Time at which an attempt first resumed from `resumeFrom`. Checkpoints that the job saves afterwards take its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_from_used: Option<Time>,
    /// The checkpoint that `kubectl trainingjob restart NAME --from CHECKPOINT` named last. It takes precedence over `resumeFrom`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_from: Option<RestartFrom>,
    /// True once `resumeFrom` has been verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_checked: Option<bool>,
}

/// A checkpoint from which a restart was requested.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RestartFrom {
    /// Path or address of the checkpoint.
    pub path: String,
    /// Unique value of the request.
    pub request: String,
    /// Time at which an attempt first resumed from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<Time>,
}

/// The best checkpoint.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct BestCheckpoint {
    /// Path of the checkpoint.
    pub path: String,
    /// Value of the metric in the checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// Number of steps completed in the checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<i64>,
}

/// The lowest training loss of an attempt. Improvements of less than 0.1 % are not counted.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct BestLoss {
    /// Value of the loss.
    pub value: f64,
    /// Time at which the program reported it.
    pub time: Time,
    /// Step of the whole run at that time, if the program reports steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<i64>,
    /// Number of the attempt.
    pub attempt: u32,
}

/// State of early stopping.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct EarlyStoppingStatus {
    /// Name of the observed metric.
    pub metric: String,
    /// Best value of the metric so far.
    pub best: f64,
    /// Number of evaluations since the best one that did not improve on it by more than `minDelta`.
    pub evaluations_since_best: i32,
    /// Attempt of the last evaluation.
    #[serde(default)]
    pub attempt: u32,
    /// Start time of the program that made the last evaluation.
    /// A queue manager may stop and restart the program within an attempt, and evaluations are counted from 1 each time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program_started: Option<Time>,
    /// Number of the last evaluation within that attempt.
    #[serde(default)]
    pub evaluations: i64,
    /// Step of the last evaluation, if the program reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<i64>,
}

/// A restart request that has been handled and is not acted on again.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct HandledRestart {
    /// Value of the annotation.
    pub request: String,
    /// Time at which the operator handled the request.
    pub time: Time,
    /// First attempt that follows from the request. Earlier failures do not delay the attempts after it.
    pub attempt: u32,
}

/// The spec of an attempt.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct AttemptSpec {
    /// Generation of the spec.
    pub generation: i64,
    /// Digest of the fields that can't change while the job runs.
    pub digest: String,
    /// Digest of the code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
}

/// Code of an attempt.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct CodeStatus {
    /// Digest of the archive.
    pub digest: String,
    /// First attempt that runs this archive.
    pub attempt: u32,
}

/// Cluster resources that the job holds.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct AllocatedResources {
    /// GPUs of the pods that have a node.
    #[serde(rename = "allocatedGPUs")]
    pub allocated_gpus: u32,
    /// Number of nodes on which the job's pods run.
    pub allocated_nodes: u32,
}
