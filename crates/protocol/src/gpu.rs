//! Readings of a GPU from `nvidia-smi`.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Readings of one GPU. Unsupported values are absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Gpu {
    pub index: u32,
    pub uuid: String,
    pub utilization_percent: Option<f64>,
    pub memory_used_bytes: Option<f64>,
    pub memory_total_bytes: Option<f64>,
    pub power_watts: Option<f64>,
    pub temperature_celsius: Option<f64>,
    /// Time of the reading.
    pub time: Timestamp,
}
