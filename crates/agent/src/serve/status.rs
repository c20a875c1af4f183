//! Assembles the status for each request.

use crate::checkpoints::CheckpointManager;
use crate::progress::objective::ObjectiveTracker;
use crate::run::view::CurrentRun;
use crate::serve::gpu::Gpus;
use crate::serve::usage::Meter;
use crate::variables::variable;
use parking_lot::Mutex;
use protocol::agent_status::AgentStatus;
use protocol::gang::GangStatus;
use protocol::inputs::FetchProgress;
use protocol::proof::AnswerKey;
use protocol::report::{Phase, Report, VERSION};
use protocol::result::PublishProgress;
use protocol::role::RoleName;
use std::sync::Arc;

/// The status of an agent that fetches or publishes, while no program runs.
pub(crate) fn of_transfer(fetches: Vec<FetchProgress>, publishes: Option<PublishProgress>) -> AgentStatus {
    AgentStatus {
        training_job: variable("TRAINING_JOB_NAME"),
        pod_uid: variable("POD_UID"),
        report: Report { version: VERSION, ..Report::default() },
        agent_usage: exposition::usage::of_self(),
        fetches,
        publishes,
        ..AgentStatus::default()
    }
}

/// The sources of the status: facts about the container, and what is known of the current run.
pub struct StatusSource {
    training_job: Option<String>,
    role: Option<String>,
    worker: Option<u32>,
    pod_uid: Option<String>,
    answer_key: Option<AnswerKey>,
    run: Arc<CurrentRun>,
    manager: Option<Arc<CheckpointManager>>,
    objective: Option<Arc<ObjectiveTracker>>,
    gang: Arc<Mutex<Option<GangStatus>>>,
    /// Whether the agent leads its gang. Then an answer without the gang's state would mean that there is no gang.
    leads: bool,
    gpus: Gpus,
    meter: Meter,
}

impl StatusSource {
    /// Reads the identity of this container from its environment.
    pub fn new(
        answer_key: Option<AnswerKey>,
        run: Arc<CurrentRun>,
        manager: Option<Arc<CheckpointManager>>,
        objective: Option<Arc<ObjectiveTracker>>,
        gang: Arc<Mutex<Option<GangStatus>>>,
        in_gang: bool,
        gpus: Gpus,
    ) -> Self {
        let role = variable("TRAININGJOB_ROLE").filter(|role| role != RoleName::WORKER.as_str());
        let worker = variable("NODE_RANK").and_then(|rank| rank.parse().ok());
        Self {
            training_job: variable("TRAINING_JOB_NAME"),
            leads: in_gang && role.is_none() && worker.unwrap_or(0) == 0,
            role,
            worker,
            pod_uid: variable("POD_UID"),
            answer_key,
            run,
            manager,
            objective,
            gang,
            gpus,
            meter: Meter::default(),
        }
    }

    /// Whether the gang's state is not known yet. A leader that has just started has none for a moment, and the
    /// operator must not conclude from it that the gang is gone.
    pub fn awaits_gang(&self) -> bool {
        self.leads && self.gang.lock().is_none()
    }

    /// The key by which an answer is proven.
    pub fn answer_key(&self) -> Option<&AnswerKey> {
        self.answer_key.as_ref()
    }

    /// The status now. Before the first run it says only that the program does not run yet.
    pub fn status(&self) -> AgentStatus {
        let (gpus, lost_gpus) = self.gpus.now();
        let of_container = AgentStatus {
            training_job: self.training_job.clone(),
            role: self.role.clone(),
            worker: self.worker,
            pod_uid: self.pod_uid.clone(),
            usage: self.meter.program(),
            agent_usage: exposition::usage::of_self(),
            gpus,
            lost_gpus,
            gang: self.gang.lock().clone(),
            checkpoints: self.manager.as_ref().and_then(|manager| manager.status()),
            objective: self.objective.as_ref().map(|objective| objective.records()),
            ..AgentStatus::default()
        };
        let Some(run) = self.run.get() else {
            return AgentStatus { report: Report { version: VERSION, ..Report::default() }, ..of_container };
        };
        let (mut report, progress, histories) = run.observations.snapshot();
        let has_failed = report.phase == Phase::Exited && report.exit_code != Some(0);
        let cause = (has_failed || report.exception.is_some()).then(|| report.summary()).flatten();
        // Any client that can reach the port may read the status, and a program may print anything.
        report.stderr_tail.clear();
        AgentStatus {
            cause,
            report,
            percent: progress.percent(),
            progress,
            stall: run.observations.stall(),
            histories,
            unparsed_lines: run.output.dropped_lines(),
            ..of_container
        }
    }
}
