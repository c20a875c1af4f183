//! All that one worker's agent tells, as the operator reads it.

use super::super::gpu::{Gpu, Gpus};
use super::super::progress::watched::Watched;
use super::super::progress::{Progress, number};
use super::super::queue::Queue;
use super::super::report::{Phase, Report};
use super::super::seen::Seen;
use super::super::usage::{Meter, Usage, of_agent};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The answer of `/status`. A reader may be older or newer: unknown fields are ignored, missing ones have their default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// Name of the job, as the program has it in `TRAINING_JOB_NAME`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub training_job: Option<String>,
    /// Index of the worker, as the program has it in `NODE_RANK`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<u32>,
    /// What the termination message would say now, but for the lines of stderr.
    pub report: Report,
    /// Why it failed, in a line, once it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    pub progress: Progress,
    /// 0 to 100: of steps if their total is known, else of epochs, else as reported.
    #[serde(with = "number::option", skip_serializing_if = "Option::is_none")]
    pub percent: Option<f64>,
    /// Every reading of the metrics that were asked for by `--watch-metric`, by that name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub watched: BTreeMap<String, Watched>,
    /// Lines of output that were passed on but not looked at, since they came faster than they can be parsed.
    pub unparsed_lines: u64,
    /// What the program uses, all its processes together.
    pub usage: Usage,
    /// What the agent uses.
    pub agent_usage: Usage,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<Gpu>,
}

impl Status {
    /// Mean over the worker's GPUs in percent, if any was told.
    #[must_use]
    pub fn gpu_utilization(&self) -> Option<f64> {
        let used: Vec<f64> = self.gpus.iter().filter_map(|gpu| gpu.utilization_percent).collect();
        #[allow(clippy::cast_precision_loss)] // a machine has a handful
        (!used.is_empty()).then(|| used.iter().sum::<f64>() / used.len() as f64)
    }
}

/// Puts the status together for whoever asks.
pub struct Teller {
    pub training_job: Option<String>,
    pub worker: Option<u32>,
    pub seen: Arc<Seen>,
    pub queue: Arc<Queue>,
    pub gpus: Gpus,
    pub meter: Meter,
}

impl Teller {
    pub fn status(&self) -> Status {
        let (mut report, progress, watched) = self.seen.now();
        let has_failed = report.phase == Phase::Exited && report.exit_code != Some(0);
        let cause = (has_failed || report.exception.is_some()).then(|| report.summary()).flatten();
        // Whoever can reach the port may read what is said here, and a program may print anything.
        report.stderr_tail.clear();
        Status {
            training_job: self.training_job.clone(),
            worker: self.worker,
            cause,
            report,
            percent: progress.percent(),
            progress,
            watched,
            unparsed_lines: self.queue.dropped_lines(),
            usage: self.meter.program(),
            agent_usage: of_agent(),
            gpus: self.gpus.last(),
        }
    }
}
