//! Bounds of an elastic gang.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Bounds for changing the number of workers while the job runs.
/// On a change the attempt stops in order, and the gang resumes at its new size from the newest checkpoint.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Elastic {
    /// Minimum number of workers that the gang runs with, 1 to 4096. It must not exceed `numWorkers`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4096))]
    pub min_workers: Option<u16>,
    /// Maximum of `numWorkers`, 1 to 4096.
    #[schemars(range(min = 1, max = 4096))]
    pub max_workers: u16,
    /// Seconds to wait for unschedulable workers before the gang runs without them, 1 to 86400.
    /// The gang grows immediately once all workers are running.
    /// If only some more are running, it grows after the same delay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86_400))]
    pub wait_seconds: Option<u32>,
}
