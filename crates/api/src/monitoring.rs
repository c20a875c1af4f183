//! How a job is watched, and where its program records what it does.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the job is watched, and where its program records what it does.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Monitoring {
    /// Serves `/metrics` and `/status` of each worker, from which the job's progress comes. Without it the status has no progress and no metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Port of each worker for that; another one if the program itself listens on this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1024, max = 65535))]
    pub metrics_port: Option<u16>,
    /// How progress is read off what the program prints, where it prints it in a form of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<ProgressForms>,
    /// Address of an MLflow tracking server, handed to the program as `MLFLOW_TRACKING_URI`; the run is called `<job>-attempt-<number>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048))]
    pub mlflow_tracking_uri: Option<String>,
    /// Experiment at the MLflow server (`MLFLOW_EXPERIMENT_NAME`). Default: the job's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 500))]
    pub mlflow_experiment: Option<String>,
    /// Project at Weights & Biases (`WANDB_PROJECT`); the run is called `<job>-attempt-<number>`, its key comes from `trackerSecret`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub wandb_project: Option<String>,
    /// Name of a Secret whose keys WANDB_API_KEY, MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD and MLFLOW_TRACKING_TOKEN, as far as they are there, become variables of the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub tracker_secret: Option<String>,
    /// Runs a TensorBoard beside the job, with a Service `<job>-tensorboard`, over the folder `TENSORBOARD_LOG_DIR`. It needs `checkpoint.storage` or `output`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tensorboard_enabled: Option<bool>,
    /// Image with the command `tensorboard`. Default: tensorflow/tensorflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub tensorboard_image: Option<String>,
}

/// How progress is read off the output of a program.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ProgressForms {
    /// Regular expressions with named groups, each tried on every line, instead of the forms known by themselves: epoch, epochs, step, steps, loss, accuracy, lr, throughput; any other name is a metric of its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 1024)))]
    pub patterns: Vec<String>,
}
