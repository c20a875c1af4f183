//! When a job is good enough.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// When the job is good enough: its workers are then stopped with their grace period, in which the program may save, and the job is Completed.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SuccessPolicy {
    /// Stops when the program reports this accuracy or a higher one; as the program counts it, a share or a percentage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_accuracy: Option<f64>,
    /// Stops when the program reports this training loss or a lower one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_loss: Option<f64>,
    /// Stops when a metric no longer gets better.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub early_stopping: Option<EarlyStopping>,
    /// Short for `earlyStopping` with this `patience` and nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub early_stopping_patience: Option<i32>,
}

impl SuccessPolicy {
    /// Early stopping as it is wanted, in whichever form it is written.
    #[must_use]
    pub fn early_stopping(&self) -> Option<EarlyStopping> {
        let short = |patience| EarlyStopping { metric: None, mode: Mode::Min, patience, min_delta: 0.0 };
        self.early_stopping.clone().or_else(|| self.early_stopping_patience.map(short))
    }
}

/// Ends a training that no longer gets better.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct EarlyStopping {
    /// Metric that is watched, by the program's name for it. Default: the first that is reported of eval_loss, val_loss, validation_loss, valid_loss and loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 100))]
    pub metric: Option<String>,
    /// Which way is better: `min` for a loss, `max` for an accuracy.
    #[serde(default)]
    pub mode: Mode,
    /// Evaluations in a row that are no better than the best one before the job stops; an evaluation is one report of the metric.
    #[schemars(range(min = 1))]
    pub patience: i32,
    /// How much better than the best an evaluation must be to count as better.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub min_delta: f64,
}

/// Metrics that early stopping watches when none is named: the first of these that is reported.
pub const LOSSES: [&str; 5] = ["eval_loss", "val_loss", "validation_loss", "valid_loss", "loss"];

/// Which way is better.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Down.
    #[default]
    Min,
    /// Up.
    Max,
}
