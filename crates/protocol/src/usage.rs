//! Resource usage of processes.

use serde::{Deserialize, Serialize};

/// CPU time and memory of one process, or of several together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Usage {
    /// CPU seconds so far, in user and kernel mode.
    pub cpu_seconds: f64,
    /// Bytes in memory now; shared memory is counted for each process.
    pub resident_bytes: u64,
}
