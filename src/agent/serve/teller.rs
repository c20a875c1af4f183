//! Puts the status together for whoever asks.

use crate::agent::observations::Observations;
use crate::agent::output::queue::Queue;
use crate::agent::serve::gpu::Gpus;
use crate::agent::serve::usage::{Meter, of_agent};
use crate::protocol::agent_status::AgentStatus;
use crate::protocol::report::Phase;
use std::sync::Arc;

/// Puts the status together for whoever asks.
pub struct Teller {
    pub training_job: Option<String>,
    pub worker: Option<u32>,
    pub seen: Arc<Observations>,
    pub queue: Arc<Queue>,
    pub gpus: Gpus,
    pub meter: Meter,
}

impl Teller {
    pub fn status(&self) -> AgentStatus {
        let (mut report, progress, watched) = self.seen.now();
        let has_failed = report.phase == Phase::Exited && report.exit_code != Some(0);
        let cause = (has_failed || report.exception.is_some()).then(|| report.summary()).flatten();
        // Whoever can reach the port may read what is said here, and a program may print anything.
        report.stderr_tail.clear();
        AgentStatus {
            pod_uid: None,
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
