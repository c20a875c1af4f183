//! What processes use.

use serde::{Deserialize, Serialize};

/// CPU time and memory of a process, or of several together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Usage {
    /// CPU seconds so far, of user and kernel.
    pub cpu_seconds: f64,
    /// Bytes in memory now; what processes share is counted for each.
    pub resident_bytes: u64,
}
