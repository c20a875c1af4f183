//! Goals that complete a job early.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Goals that complete the job early. When one is met, the workers are stopped and the job is Completed.
/// Their grace period lets the program save.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SuccessPolicy {
    /// Accuracy at or above which the job is stopped, greater than 0.
    /// Its scale is the program's own: a share or a percentage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_accuracy: Option<f64>,
    /// Training loss at or below which the job is stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_loss: Option<f64>,
    /// Criterion for stopping when a metric no longer improves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub early_stopping: Option<EarlyStopping>,
    /// Short form of `earlyStopping` with this `patience` and no other field, from 1.
    /// Not allowed together with `earlyStopping`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub early_stopping_patience: Option<i32>,
}

impl SuccessPolicy {
    /// The early stopping settings, in whichever of the two forms the spec has.
    #[must_use]
    pub fn early_stopping(&self) -> Option<EarlyStopping> {
        let short = |patience| EarlyStopping { metric: None, mode: Mode::Min, patience, min_delta: 0.0 };
        self.early_stopping.clone().or_else(|| self.early_stopping_patience.map(short))
    }
}

/// Criterion for stopping when a metric no longer improves.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct EarlyStopping {
    /// Name of the metric to observe, as the program reports it, up to 100 characters. Required with `mode: max`.
    /// Default: the first reported metric of eval_loss, val_loss, validation_loss, valid_loss and loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 100))]
    pub metric: Option<String>,
    /// Whether lower (`min`, as for a loss) or higher (`max`, as for an accuracy) values are better.
    #[serde(default)]
    pub mode: Mode,
    /// Number of consecutive evaluations without improvement after which the job is stopped, from 1.
    /// An evaluation is one report of the metric.
    #[schemars(range(min = 1))]
    pub patience: i32,
    /// Amount by which an evaluation must be better than the best one to count as an improvement, from 0.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub min_delta: f64,
}

/// Metrics that early stopping observes if none is named; the first reported one is used.
pub const LOSSES: [&str; 5] = ["eval_loss", "val_loss", "validation_loss", "valid_loss", "loss"];

/// Direction in which a metric improves.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Lower values are better.
    #[default]
    Min,
    /// Higher values are better.
    Max,
}
