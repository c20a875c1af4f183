//! How many workers a gang may be of.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The number of workers may change while the job runs: the attempt ends in order, and the gang goes on at its new size from the newest checkpoint.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Elastic {
    /// With fewer workers than these the gang does not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4096))]
    pub min_workers: Option<u16>,
    /// The most that `numWorkers` may become.
    #[schemars(range(min = 1, max = 4096))]
    pub max_workers: u16,
    /// Seconds for which some of the workers may find no room until the gang runs without them. When there is room for all, it grows at once; for some more, after as long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86_400))]
    pub wait_seconds: Option<u32>,
}
