//! All that one worker's agent tells, as the operator reads it.

use crate::checkpoints::Checkpoints;
use crate::gang::GangStatus;
use crate::gpu::Gpu;
use crate::hang::Stall;
use crate::metric_history::MetricHistory;
use crate::number;
use crate::progress::Progress;
use crate::report::Report;
use crate::usage::Usage;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The answer of `/status`. A reader may be older or newer: unknown fields are ignored, missing ones have their default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentStatus {
    /// Name of the job, as the program has it in `TRAINING_JOB_NAME`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub training_job: Option<String>,
    /// The pod's role, where it is no worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Index of the worker, or of the pod among those of its role, as the program has it in `NODE_RANK`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<u32>,
    /// UID of the pod, as the program has it in `POD_UID`: where pods share their node's network, another one's agent may
    /// be the one who answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// What the termination message would say now, but for the lines of stderr.
    pub report: Report,
    /// Why it failed, in a line, once it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    pub progress: Progress,
    /// Why the program may hang, while there is reason to think so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall: Option<Stall>,
    /// 0 to 100: of steps if their total is known, else of epochs, else as reported.
    #[serde(with = "number::option", skip_serializing_if = "Option::is_none")]
    pub percent: Option<f64>,
    /// Every reading of the metrics that were asked for by `--watch-metric`, by that name.
    #[serde(rename = "watched", skip_serializing_if = "BTreeMap::is_empty")]
    pub histories: BTreeMap<String, MetricHistory>,
    /// How the gang stands, if this agent leads it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gang: Option<GangStatus>,
    /// The checkpoints, if this agent takes care of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoints: Option<Checkpoints>,
    /// Lines of output that were passed on but not looked at, since they came faster than they can be parsed.
    pub unparsed_lines: u64,
    /// What the program uses, all its processes together.
    pub usage: Usage,
    /// What the agent uses.
    pub agent_usage: Usage,
    /// The GPUs that are there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<Gpu>,
    /// GPUs that were there and that `nvidia-smi` does not tell of any more, as it last told of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost_gpus: Vec<Gpu>,
}

impl AgentStatus {
    /// Mean over the worker's GPUs in percent, if any was told.
    #[must_use]
    pub fn gpu_utilization(&self) -> Option<f64> {
        let used: Vec<f64> = self.gpus.iter().filter_map(|gpu| gpu.utilization_percent).collect();
        #[allow(clippy::cast_precision_loss)] // a machine has a handful
        (!used.is_empty()).then(|| used.iter().sum::<f64>() / used.len() as f64)
    }
}
