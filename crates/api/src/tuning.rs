//! Hyperparameter search: the TuningJob, whose trials are TrainingJobs.

use super::{Condition, Reason, TrainingJobSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The most trials of a search.
pub const MAX_TRIALS: u32 = 1000;

/// Desired state of a hyperparameter search. Each trial is a TrainingJob named NAME-N.
/// After creation, only `maxTrials`, `parallelTrials`, `maxFailedTrials`, `gpuHours` and `suspend` may change.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "ml.example.com",
    version = "v1",
    kind = "TuningJob",
    plural = "tuningjobs",
    shortname = "tuj",
    category = "all",
    namespaced,
    status = "TuningJobStatus",
    derive = "PartialEq",
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "Trials", type_ = "string", json_path = ".status.progress"),
    printcolumn(name = "Running", type_ = "integer", json_path = ".status.running"),
    printcolumn(name = "Failed", type_ = "integer", json_path = ".status.failed"),
    printcolumn(name = "Best", type_ = "string", json_path = ".status.best.value"),
    printcolumn(name = "Best-Trial", type_ = "string", json_path = ".status.best.name"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Metric", type_ = "string", json_path = ".spec.metric.name", priority = 1),
    printcolumn(name = "Method", type_ = "string", json_path = ".spec.method", priority = 1),
    printcolumn(name = "GPU-Hours", type_ = "number", json_path = ".status.gpuHours", priority = 1),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.reason", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::duplicated_attributes, reason = "each printcolumn has its own priority")]
pub struct TuningJobSpec {
    /// What is searched, and how.
    #[serde(flatten)]
    pub tuning: Tuning,

    /// The TrainingJob of each trial, before its hyperparameters are set.
    pub template: TrialTemplate,

    /// Whether the search is suspended. True suspends the running trials and starts no further ones.
    /// False continues. May be changed at any time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspend: bool,
}

/// The TrainingJob of each trial.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TrialTemplate {
    /// Labels and annotations of the trials.
    #[serde(default, skip_serializing_if = "TrialMetadata::is_empty")]
    pub metadata: TrialMetadata,
    /// Spec of the trials, as in a TrainingJob. It is validated when the TuningJob is accepted.
    /// Each trial has its own checkpoints and results.
    pub spec: TrainingJobSpec,
}

/// Labels and annotations.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TrialMetadata {
    /// Labels, at most 64.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub labels: BTreeMap<String, String>,
    /// Annotations, at most 64.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub annotations: BTreeMap<String, String>,
}

impl TrialMetadata {
    fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.annotations.is_empty()
    }
}

/// Settings of a hyperparameter search.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Tuning {
    /// Method of the search. `grid` tries all combinations, `random` draws each trial independently.
    /// `bayes` learns from the results so far. Default: bayes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "TuningMethod")]
    pub method: Option<TuningMethod>,
    /// Model of method `bayes`. `auto` is a Gaussian process (`gp`) up to 20 parameters and 200 results, otherwise a Parzen
    /// estimator (`tpe`). Default: auto.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "TuningAlgorithm")]
    pub algorithm: Option<TuningAlgorithm>,
    /// Metric by which trials are compared, as the program reports it.
    pub metric: TuningMetric,
    /// Hyperparameters to search, by name, at most 100. The program gets them as `spec.hyperparameters` of the trial.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 100))]
    pub parameters: BTreeMap<String, TuningParameter>,
    /// Number of trials, 1 to 1000. May be changed; raising it continues a finished search.
    #[schemars(range(min = 1, max = 1000))]
    pub max_trials: u32,
    /// Number of trials at the same time, 1 to 100. May be changed at any time. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u32", range(min = 1, max = 100))]
    pub parallel_trials: Option<u32>,
    /// Number of failed trials at which the search fails, from 1. May be changed at any time.
    /// Default: half of `maxTrials`, but at least 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u32", range(min = 1, max = 1000))]
    pub max_failed_trials: Option<u32>,
    /// Seed of the search, from 0. The same seed and the same order of results give the same trials.
    /// Default: derived from the UID of the TuningJob.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64", range(min = 0))]
    pub seed: Option<i64>,
    /// Criterion for ending bad trials before their end. Without it, every trial runs to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub early_stopping: Option<TrialStopping>,
    /// Limit for the GPU hours of all trials, above 0. No trial is started once the limit is reached; running ones continue.
    /// May be changed at any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_hours: Option<f64>,
    /// Names of earlier TuningJobs of this namespace whose results the search begins with, at most 8.
    /// They need the same parameters and the same metric.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(min = 1, max = 253)))]
    pub warm_start_from: Vec<String>,
}

impl Tuning {
    /// Method of the search.
    #[must_use]
    pub fn method(&self) -> TuningMethod {
        self.method.unwrap_or_default()
    }

    /// Number of trials at the same time.
    #[must_use]
    pub fn parallel(&self) -> u32 {
        self.parallel_trials.unwrap_or(1)
    }

    /// Number of failed trials at which the search fails.
    #[must_use]
    pub fn failures_allowed(&self) -> u32 {
        self.max_failed_trials.unwrap_or((self.max_trials / 2).max(3))
    }
}

/// Method of a search.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum TuningMethod {
    /// All combinations.
    Grid,
    /// Independent trials.
    Random,
    /// A model of the results.
    #[default]
    Bayes,
}

/// Model of method `bayes`.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum TuningAlgorithm {
    /// By the number of parameters and results.
    #[default]
    Auto,
    /// Gaussian process.
    Gp,
    /// Tree-structured Parzen estimator.
    Tpe,
}

/// Metric of a search.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TuningMetric {
    /// Name of the metric, as the program reports it, up to 100 characters.
    #[schemars(length(min = 1, max = 100))]
    pub name: String,
    /// Whether lower (`minimize`) or higher (`maximize`) values are better.
    pub goal: TuningGoal,
    /// Which reading is a trial's result: the `best` or the `last` one. Default: best.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "MetricStrategy")]
    pub strategy: Option<MetricStrategy>,
}

/// Direction of a search.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum TuningGoal {
    /// Lower values are better.
    Minimize,
    /// Higher values are better.
    Maximize,
}

/// Which reading is a trial's result.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum MetricStrategy {
    /// The best one.
    #[default]
    Best,
    /// The last one.
    Last,
}

/// One hyperparameter of a search.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TuningParameter {
    /// Type of the values. `categorical` is a list without an order.
    #[serde(rename = "type")]
    pub kind: ParameterKind,
    /// Lowest value of an `int` or `double`, included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    /// Highest value of an `int` or `double`, included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
    /// Distance between neighbouring values, counted from `min`, above 0. Default: 1 for `int`, none for `double`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<f64>,
    /// `log` for values whose ratio counts, such as learning rates. It needs a `min` above 0. Default: linear.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ParameterScale")]
    pub scale: Option<ParameterScale>,
    /// All values of an `int` or `double`, instead of `min` and `max`, at most 1000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    pub values: Vec<f64>,
    /// All values of a `categorical`, at most 1000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000), inner(length(min = 1, max = 1024)))]
    pub choices: Vec<String>,
    /// Condition under which the parameter exists. Trials that do not meet it run without the parameter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<ParameterCondition>,
}

/// Type of a hyperparameter.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum ParameterKind {
    /// Whole numbers.
    Int,
    /// Numbers.
    Double,
    /// A list without an order.
    Categorical,
}

/// Scale of a hyperparameter.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum ParameterScale {
    /// Equal differences weigh the same.
    #[default]
    Linear,
    /// Equal ratios weigh the same.
    Log,
}

/// Condition on another hyperparameter of the same search.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ParameterCondition {
    /// Name of the other hyperparameter.
    #[schemars(length(min = 1, max = 128))]
    pub parameter: String,
    /// Its values with which this one exists, 1 to 100. Fractions are written as text.
    #[schemars(length(min = 1, max = 100))]
    pub values: Vec<IntOrString>,
}

/// Criterion for ending bad trials early.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TrialStopping {
    /// Method: `asha` is asynchronous successive halving.
    /// At the steps `minStep`, `minStep` x `factor` and so on, the best `1/factor` of the trials continue.
    /// Default: asha.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "StoppingMethod")]
    pub method: Option<StoppingMethod>,
    /// Step before which no trial is stopped, from 1.
    #[schemars(range(min = 1))]
    pub min_step: i64,
    /// One of this number of trials continues at each comparison, from 2. Default: 4.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64", range(min = 2, max = 1000))]
    pub factor: Option<i64>,
}

impl TrialStopping {
    /// One of this number of trials continues at each comparison.
    #[must_use]
    pub fn factor(&self) -> i64 {
        self.factor.unwrap_or(4)
    }
}

/// Method of early stopping.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum StoppingMethod {
    /// Asynchronous successive halving.
    #[default]
    Asha,
}

/// Observed state of the search.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TuningJobStatus {
    /// Generation of the spec that this status refers to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// State of the search: Pending, Running, Suspended, Completed or Failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub state: Option<TuningState>,
    /// Reason of the state, in one CamelCase word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// Conditions of the search, of the types Accepted, Running, Suspended, Succeeded and Failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Ended trials and all trials, for example 12/24.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<String>,
    /// Number of trials that have not ended.
    #[serde(default)]
    pub running: u32,
    /// Number of trials with a result.
    #[serde(default)]
    pub succeeded: u32,
    /// Number of trials that early stopping ended.
    #[serde(default)]
    pub stopped: u32,
    /// Number of failed trials.
    #[serde(default)]
    pub failed: u32,
    /// Seed of the search.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<i64>,
    /// The best trial so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<BestTrial>,
    /// Causes of the failed trials, the most frequent one first, at most ten.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<TrialFailures>,
    /// GPU hours of all trials so far.
    #[serde(default)]
    pub gpu_hours: f64,
    /// Time at which the search started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// Time at which the search ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// Names of the hyperparameters, in the order of `trials[].values`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parameters: Vec<String>,
    /// All trials, in the order in which they were suggested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trials: Vec<TrialStatus>,
    /// Results of earlier searches with which this one began.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<EarlierTrial>,
    /// Readings at the steps of early stopping: for each step, the trials in the order in which they reached it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rungs: Vec<Vec<TrialReading>>,
}

/// State of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TuningState {
    /// Not accepted yet, or refused.
    Pending,
    /// Trials run or start.
    Running,
    /// Suspended by `suspend`.
    Suspended,
    /// All trials have ended.
    Completed,
    /// Too many trials failed.
    Failed,
    /// A state of a newer operator.
    #[serde(other)]
    Unknown,
}

impl TuningState {
    /// The state as written in the status.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Suspended => "Suspended",
            Self::Completed => "Completed",
            Self::Failed => "Failed",
            Self::Unknown => "Unknown",
        }
    }

    /// Whether the search has ended.
    #[must_use]
    pub fn is_finished(self) -> bool {
        matches!(self, Self::Completed | Self::Failed)
    }
}

/// One trial. Its TrainingJob is NAME-TRIAL, or NAME-TRIAL-rRETRIES after a retry.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TrialStatus {
    /// Number of the trial, from 1.
    pub trial: u32,
    /// Values of the hyperparameters, in the order of `parameters`. A choice is the index in `choices`, from 0.
    /// Null stands for a hyperparameter that the trial does not have.
    pub values: Vec<Option<serde_json::Number>>,
    /// State of the trial: Suggested, Running, Stopping, Succeeded, Stopped or Failed.
    #[schemars(with = "String")]
    pub state: TrialState,
    /// Number of ended trials that were known when the trial was suggested.
    pub after: u32,
    /// Rank of the trial's end among all ends, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<u32>,
    /// Result: the best or last reading of the metric, also while the trial runs.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "protocol::number::option")]
    #[schemars(schema_with = "reading")]
    pub value: Option<f64>,
    /// Step of that reading.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<i64>,
    /// Reason of a failure or an early end, in one CamelCase word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// Number of times that the trial was started again after a failure that its hyperparameters did not cause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    /// GPU hours of the trial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_hours: Option<f64>,
    /// Time at which the trial's program started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// Time at which the trial ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_time: Option<Time>,
}

/// State of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TrialState {
    /// Its hyperparameters are recorded; its program has not started.
    Suggested,
    /// Its program has started.
    Running,
    /// Early stopping has decided to end it.
    Stopping,
    /// It has a result.
    Succeeded,
    /// Early stopping ended it.
    Stopped,
    /// It failed.
    Failed,
}

impl TrialState {
    /// The state as written in the status.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Suggested => "Suggested",
            Self::Running => "Running",
            Self::Stopping => "Stopping",
            Self::Succeeded => "Succeeded",
            Self::Stopped => "Stopped",
            Self::Failed => "Failed",
        }
    }

    /// Whether the trial has ended.
    #[must_use]
    pub fn is_ended(self) -> bool {
        matches!(self, Self::Succeeded | Self::Stopped | Self::Failed)
    }
}

/// The best trial of a search.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct BestTrial {
    /// Number of the trial.
    pub trial: u32,
    /// Name of its TrainingJob.
    pub name: String,
    /// Its result.
    #[serde(with = "protocol::number")]
    #[schemars(schema_with = "reading")]
    pub value: f64,
    /// Step of the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<i64>,
    /// Its hyperparameters.
    pub parameters: BTreeMap<String, String>,
}

/// Failed trials with one cause.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TrialFailures {
    /// Cause, in one CamelCase word.
    pub reason: Reason,
    /// Number of trials.
    pub trials: u32,
    /// The first of these trials.
    pub example: u32,
    /// Message of that trial.
    pub message: String,
}

/// Result of an earlier search.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct EarlierTrial {
    /// Name of the TrainingJob.
    pub name: String,
    /// Values of the hyperparameters, as in `trials`.
    pub values: Vec<Option<serde_json::Number>>,
    /// Result; absent for a failed trial.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "protocol::number::option")]
    #[schemars(schema_with = "reading")]
    pub value: Option<f64>,
}

/// Reading of one trial at a step of early stopping.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TrialReading {
    /// Number of the trial.
    pub trial: u32,
    /// Value of the metric.
    #[serde(with = "protocol::number")]
    #[schemars(schema_with = "reading")]
    pub value: f64,
}

/// A number, or the text NaN, +Inf or -Inf.
fn reading(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "x-kubernetes-preserve-unknown-fields": true })
}
