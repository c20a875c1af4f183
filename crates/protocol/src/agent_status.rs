//! Status of one worker's agent, as the operator reads it.

use crate::checkpoints::Checkpoints;
use crate::gang::GangStatus;
use crate::gpu::Gpu;
use crate::hang::Stall;
use crate::inputs::FetchProgress;
use crate::metric_history::MetricHistory;
use crate::number;
use crate::objective::Objective;
use crate::progress::Progress;
use crate::report::Report;
use crate::result::PublishProgress;
use crate::usage::Usage;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The response of `/status`. The reader may be older or newer: it ignores unknown fields and uses defaults for missing
/// ones.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentStatus {
    /// Name of the job, as in the program's `TRAINING_JOB_NAME`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub training_job: Option<String>,
    /// The pod's role, unless it is a worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Index of the worker, or of the pod within its role, as in the program's `NODE_RANK`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<u32>,
    /// UID of the pod, as in the program's `POD_UID`. The operator needs it because pods with host networking share ports,
    /// so another pod's agent may answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// Current content of the termination message, without the lines of stderr.
    pub report: Report,
    /// Reason for the failure in one line, once the program has failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    pub progress: Progress,
    /// Evidence of a hang, while there is any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall: Option<Stall>,
    /// Progress from 0 to 100: of steps if their total is known, else of epochs, else as reported.
    #[serde(with = "number::option", skip_serializing_if = "Option::is_none")]
    pub percent: Option<f64>,
    /// All readings of the metrics named by `--watch-metric`, by that name.
    #[serde(rename = "watched", skip_serializing_if = "BTreeMap::is_empty")]
    pub histories: BTreeMap<String, MetricHistory>,
    /// Readings of the objective in all runs of this agent, if the job has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objective: Option<Objective>,
    /// State of the gang, if this agent leads it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gang: Option<GangStatus>,
    /// The checkpoints, if this agent manages them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoints: Option<Checkpoints>,
    /// Contents that the agent of a fetch has fetched so far, the current one last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fetches: Vec<FetchProgress>,
    /// Progress of the publication, if this is the agent of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub publishes: Option<PublishProgress>,
    /// Lines of output that were forwarded without parsing, because they arrived faster than the agent can parse.
    pub unparsed_lines: u64,
    /// Usage of all processes of the program together.
    pub usage: Usage,
    /// Usage of the agent.
    pub agent_usage: Usage,
    /// The GPUs that are present.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<Gpu>,
    /// GPUs that `nvidia-smi` no longer lists, with their last readings.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost_gpus: Vec<Gpu>,
}

impl AgentStatus {
    /// Mean utilization of the worker's GPUs in percent, if any GPU reports one.
    #[must_use]
    pub fn gpu_utilization(&self) -> Option<f64> {
        let used: Vec<f64> = self.gpus.iter().filter_map(|gpu| gpu.utilization_percent).collect();
        #[allow(clippy::cast_precision_loss)] // a machine has a handful
        (!used.is_empty()).then(|| used.iter().sum::<f64>() / used.len() as f64)
    }
}
