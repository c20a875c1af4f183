//! Progress metrics, TensorBoard and experiment trackers of a job.

use super::Mode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Progress metrics, TensorBoard and experiment trackers of the job.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Monitoring {
    /// Whether each worker serves `/metrics` and `/status`, from which the operator reads the job's progress.
    /// If false, the status has no progress and no metrics, and `successPolicy` is rejected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Port of each worker for `/metrics` and `/status`, 1024 to 65535.
    /// Choose another port if the program listens on this one.
    /// It must differ from `networking.masterPort` and the port after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1024, max = 65535))]
    pub metrics_port: Option<u16>,
    /// Custom parsing of progress in the program's output, for output in a format of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<ProgressForms>,
    /// Address of an MLflow tracking server, passed to the program as `MLFLOW_TRACKING_URI`.
    /// Each run is named `<job>-attempt-<number>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048))]
    pub mlflow_tracking_uri: Option<String>,
    /// Experiment on the MLflow server (`MLFLOW_EXPERIMENT_NAME`), up to 500 characters. Requires `mlflowTrackingUri`.
    /// Default: the job's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 500))]
    pub mlflow_experiment: Option<String>,
    /// Registered model on the MLflow server that gets a version for the published result, up to 256 characters.
    /// It is created if it is missing. Requires `mlflowTrackingUri`, and an address in `output`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub mlflow_registered_model: Option<String>,
    /// Weights & Biases project (`WANDB_PROJECT`), up to 128 characters. Each run is named `<job>-attempt-<number>`.
    /// The API key comes from `trackerSecret`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub wandb_project: Option<String>,
    /// Name of a Secret with the trackers' credentials, which become environment variables of the program.
    /// Its optional keys are WANDB_API_KEY, MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD and MLFLOW_TRACKING_TOKEN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub tracker_secret: Option<String>,
    /// Whether a TensorBoard with a Service `<job>-tensorboard` shows the folder `TENSORBOARD_LOG_DIR`.
    /// Requires `checkpoint.storage` of type pvc or nfs, or `output`. The job's name may then have at most 51 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tensorboard_enabled: Option<bool>,
    /// Image of the TensorBoard, with the command `tensorboard`. Default: tensorflow/tensorflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub tensorboard_image: Option<String>,
    /// Throughput below which the alert TrainingJobThroughputLow fires after 10 minutes, more than 0.
    /// Its unit is that of `status.metrics.throughput`, which the program reports. It may change at any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_throughput: Option<f64>,
    /// Seconds in which a running program must report a lower loss, 0 or at least 60. 0 never checks.
    /// Otherwise the condition LossImproving becomes False. It may change at any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plateau_seconds: Option<u32>,
    /// Metric by which this job is compared with others. `status.objective` has its readings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objective: Option<Objective>,
}

/// Metric by which a job is compared with others.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Objective {
    /// Name of the metric, as the program reports it, up to 100 characters.
    #[schemars(length(min = 1, max = 100))]
    pub metric: String,
    /// Whether lower (`min`, as for a loss) or higher (`max`, as for an accuracy) values are better.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Mode")]
    pub mode: Option<Mode>,
    /// Steps at which a reading is recorded for a comparison of unfinished jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rungs: Option<Rungs>,
}

/// Steps at which a reading of the objective is recorded: `minStep`, `minStep * factor`, `minStep * factor * factor` and so on.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Rungs {
    /// Step of the first rung, from 1.
    #[schemars(range(min = 1))]
    pub min_step: i64,
    /// Ratio of each rung's step to the one before, from 2.
    #[schemars(range(min = 2))]
    pub factor: i64,
}

/// Custom parsing of progress in the program's output.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ProgressForms {
    /// Regular expressions with named groups, used instead of the built-in log formats.
    /// At most 16 patterns of up to 1024 characters; each is tried on every line.
    /// The groups epoch, epochs, step, steps, loss, accuracy, lr and throughput have a fixed meaning.
    /// Any other name becomes a metric of that name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 1024)))]
    pub patterns: Vec<String>,
}
