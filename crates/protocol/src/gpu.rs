//! A GPU as `nvidia-smi` tells of it.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// One GPU. What it doesn't support is absent.
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
    /// When it was measured.
    pub time: Timestamp,
}
