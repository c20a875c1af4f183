//! Hyperparameters.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Hyperparameters of the program.
/// Each is passed as `HYPERPARAM_<NAME>` (upper snake case), and all of them in `hyperparameters.json`.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Hyperparameters {
    /// Learning rate, greater than 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learning_rate: Option<f64>,
    /// Examples per batch and process, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub batch_size: Option<i64>,
    /// Epochs to train, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub epochs: Option<i64>,
    /// Name of the optimizer, for example adamw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub optimizer: Option<String>,
    /// Warm-up steps, from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub warmup_steps: Option<i64>,
    /// Number of batches whose gradients are accumulated before each optimizer step, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub gradient_accumulation_steps: Option<i64>,
    /// Whether the program should use mixed precision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mixed_precision: Option<bool>,
    /// Further hyperparameters by name, at most 128.
    /// A name has up to 128 letters, digits, `_`, `-` and `.`; a value has up to 4096 characters.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 128))]
    pub additional_params: BTreeMap<String, String>,
}
