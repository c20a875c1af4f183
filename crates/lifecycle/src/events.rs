//! The Events of a reconciliation: the changes of the job's status.

use super::conditions::{condition, condition_is};
use super::decision::Event;
use super::phase::{Phase, Silence};
use super::view::{View, incarnation, number_in};
use api::ConditionType as C;
use api::{CheckpointStatus, Reason, State, TrainingJobStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use plan::Gang;

/// The Events for the change from the status `old` in this phase.
pub(super) fn events(
    view: &View<'_>,
    phase: &Phase<'_>,
    old: &TrainingJobStatus,
    new: &TrainingJobStatus,
) -> Vec<Event> {
    let look = Transition { view, phase, old, new, attempt: incarnation(new).attempt };
    [look.of_reports(), look.of_attempts(), look.of_gang(), look.of_life()].concat()
}

/// One reconciliation of a job: its view, its phase, and its status before and after.
struct Transition<'l, 'a> {
    view: &'l View<'a>,
    phase: &'l Phase<'a>,
    old: &'l TrainingJobStatus,
    new: &'l TrainingJobStatus,
    /// The attempt after the reconciliation.
    attempt: u32,
}

fn normal(reason: &'static str, note: impl Into<String>) -> Event {
    Event { warning: false, reason, note: note.into() }
}

fn warning(reason: &'static str, note: impl Into<String>) -> Event {
    Event { warning: true, reason, note: note.into() }
}

impl Transition<'_, '_> {
    /// The condition, if it has changed to this status.
    fn becomes(&self, type_: C, status: bool) -> Option<&Condition> {
        let was = condition_is(&self.old.conditions, type_, status).is_some();
        condition_is(&self.new.conditions, type_, status).filter(|_| !was)
    }

    fn of_reports(&self) -> Vec<Event> {
        let loss = self.becomes(C::LossFinite, false);
        let plateau = self.becomes(C::LossImproving, false);
        let unheard = self.becomes(C::AgentReady, false);
        let unheard = unheard.filter(|ready| ready.reason == Reason::NeverAnswered.as_str());
        let stalled = condition_is(&self.new.conditions, C::ProgressStalled, true);
        let before = condition_is(&self.old.conditions, C::ProgressStalled, true);
        let stalled = stalled.filter(|new| before.is_none_or(|old| old.reason != new.reason));
        let reports = [
            (loss, "LossNotFinite"),
            (plateau, "LossPlateau"),
            (unheard, "AgentUnreachable"),
            (stalled, "ProgressStalled"),
        ];
        let reports = reports.into_iter().filter_map(|(reported, reason)| Some(warning(reason, &*reported?.message)));
        reports.chain(checkpoint_events(self.view, self.old, self.new)).chain(self.checkpoint_problem()).collect()
    }

    /// A new problem with the checkpoints. Another bad checkpoint is news, but a store's message about itself changes
    /// all the time.
    fn checkpoint_problem(&self) -> Option<Event> {
        let problem = condition_is(&self.new.conditions, C::CheckpointsHealthy, false)?;
        let reason = Reason::from(problem.reason.as_str());
        let is_of_one = matches!(reason, Reason::CheckpointCorrupted | Reason::Suspect);
        let known = condition_is(&self.old.conditions, C::CheckpointsHealthy, false);
        let is_same =
            |known: &Condition| known.reason == problem.reason && (!is_of_one || known.message == problem.message);
        let event = match reason {
            _ if known.is_some_and(is_same) => return None,
            Reason::CheckpointCorrupted => "CheckpointCorrupted",
            Reason::NearlyFull => "VolumeNearlyFull",
            Reason::BackupFailing => "BackupFailing",
            Reason::FolderShared => "FolderShared",
            Reason::Suspect => "CheckpointSuspect",
            _ => "CheckpointsUnusable",
        };
        Some(warning(event, &*problem.message))
    }

    /// Attempts that ended or were requested.
    fn of_attempts(&self) -> Vec<Event> {
        let (attempt, current) = (self.attempt, self.view.current.attempt);
        let asked = self.new.asked_restart.as_ref().filter(|_| self.new.asked_restart != self.old.asked_restart);
        let request = match (self.phase, asked.map(|asked| asked.attempt)) {
            (Phase::StartingAgain { .. }, _) => {
                let note = match self.view.unpublished_since() {
                    Some(_) => "the result is published again, as was asked for".to_owned(),
                    None => format!("attempt {attempt} starts, as was asked for, with a new budget"),
                };
                return vec![normal("RestartRequested", note)];
            }
            (Phase::Changed, _) => {
                let note = format!(
                    "the spec has changed: attempt {current} ends, and attempt {attempt} starts with the new spec"
                );
                return vec![normal("SpecChanged", note)];
            }
            (Phase::Over, Some(_)) => {
                let note =
                    "a restart was asked for, and the job is done: create it again under another name to repeat it";
                Some(warning("RestartIgnored", note))
            }
            (_, Some(next)) if next > current => Some(normal(
                "RestartRequested",
                format!(
                    "attempt {current} ends and another one begins in the same pods, as was asked for, once the workers \
                     know of it"
                ),
            )),
            _ => None,
        };
        let before = incarnation(self.old).attempt;
        let ended = || self.new.restarts.iter().filter(|end| (before..attempt).contains(&end.attempt));
        let restarts = ended().map(|end| {
            let next = ended().map(|next| next.attempt).find(|next| *next > end.attempt).unwrap_or(attempt);
            let how = if end.was_interrupted() { "was interrupted" } else { "failed" };
            let note = format!("attempt {} {how}, attempt {next} follows: {end}", end.attempt);
            Event { warning: end.reason != Reason::Resized, reason: "Restarting", note }
        });
        request.into_iter().chain(restarts).collect()
    }

    /// Nodes, sizes and programs of the gang.
    fn of_gang(&self) -> Vec<Event> {
        let (view, phase) = (self.view, self.phase.until().unwrap_or(self.phase));
        let is_active =
            !matches!(phase, Phase::Over | Phase::StartingAgain { .. } | Phase::Changed | Phase::Refused { .. });
        let given_up = view.given_up().filter(|(.., left)| is_active && *left <= 0);
        let mut events: Vec<Event> = given_up.map(|(_, end, _)| warning("Unkillable", end.to_string())).collect();
        events.extend(view.resized.as_ref().map(|resized| {
            let sizes = self.new.elastic.as_ref().zip(self.old.elastic.as_ref());
            let warning = sizes.is_some_and(|(new, old)| new.workers < old.workers);
            Event { warning, reason: "Resized", note: resized.clone() }
        }));
        let has_losses = !view.leaving_pods().is_empty();
        if let Phase::Unreachable { silence, .. } = phase {
            let known = if has_losses { view.kept().map(|end| end.reason.clone()) } else { view.reason_of(C::Running) };
            let running = condition(&self.new.conditions, C::Running).filter(|_| known != Some(Reason::NodeLost));
            events.extend(running.map(|running| warning("NodeSilent", &*running.message)));
            let lost = if let Silence::Lost(lost) = silence { lost.as_slice() } else { &[] };
            let causes = lost.iter().filter_map(|pod| View::cause_of_loss(pod));
            events.extend(causes.map(|cause| warning("NodeLost", cause.to_string())));
        }
        let starts = matches!(phase, Phase::Running) && (view.record.state != Some(State::Running) || has_losses);
        // Every running worker has a node. An elastic gang reports why some workers have none.
        let says_more = || view.input.plan.gang.elastic.is_some();
        let scheduled = self.becomes(C::Scheduled, true).filter(|_| phase.has_nodes() && (!starts || says_more()));
        events.extend(scheduled.map(|scheduled| normal("Scheduled", &*scheduled.message)));
        let started = || normal("Started", format!("every worker runs (attempt {})", view.current.attempt));
        events.extend(starts.then(started));
        events
    }

    /// Changes of the job as a whole.
    fn of_life(&self) -> Vec<Event> {
        let (view, new) = (self.view, self.new);
        let is_first = !view.has_run() && view.input.status.agent_image.is_none();
        let created = (is_first && matches!(self.phase, Phase::Creating)).then(|| {
            let gang = &view.input.plan.gang;
            let jobs = if gang.has_roles() { "Jobs" } else { "Job" };
            normal("Created", format!("{jobs}, Service and ConfigMap for {}", members(gang)))
        });
        let resumed = self.becomes(C::Suspended, false).filter(|c| c.reason == Reason::Resumed.as_str());
        let was_suspended = condition_is(&self.old.conditions, C::Suspended, true).is_some();
        let resumed = resumed.filter(|_| was_suspended);
        let resumed = resumed.map(|_| normal("Resumed", format!("attempt {} starts", self.attempt)));
        let enough = self.becomes(C::Stopping, true);
        let enough = enough.map(|c| normal("GoodEnough", format!("the workers are stopped: {}", c.message)));
        let publishes = self.becomes(C::ResultPublished, false).map(|c| normal("Publishing", &*c.message));
        let published = self.becomes(C::ResultPublished, true).map(|c| normal("ResultPublished", &*c.message));
        let failing = condition_is(&new.conditions, C::ResultPublished, false)
            .filter(|c| c.reason == Reason::PublishFailed.as_str() && new.state == Some(State::Running));
        let before = condition(&self.old.conditions, C::ResultPublished);
        let failing = failing.filter(|c| before.is_none_or(|before| before.reason != c.reason));
        let failing = failing.map(|c| warning("PublishFailed", &*c.message));
        let state = match new.state.filter(|_| new.state != self.old.state) {
            Some(State::Suspended) => Some(normal("Suspended", "no worker runs; checkpoints stay")),
            Some(State::Completed) => {
                let message = condition(&new.conditions, C::Succeeded).map_or("", |succeeded| &succeeded.message);
                let took = new.duration.as_deref().unwrap_or("unknown time");
                Some(normal("Completed", format!("{message}, after {took}")))
            }
            Some(State::Failed) => {
                let reason = new.failure_reason.as_ref().map_or("", |reason| reason.as_str());
                let message = new.failure_message.as_deref().unwrap_or_default();
                Some(warning("Failed", format!("{reason}: {message}")))
            }
            _ => None,
        };
        [created, resumed, enough, publishes, failing, published, state].into_iter().flatten().collect()
    }
}

fn checkpoint_events(view: &View<'_>, old: &TrainingJobStatus, new: &TrainingJobStatus) -> Vec<Event> {
    let none = CheckpointStatus::default();
    let (old, new) = (old.checkpoint.as_ref().unwrap_or(&none), new.checkpoint.as_ref().unwrap_or(&none));
    let mut events = Vec::new();
    let at = |step: Option<String>| step.map(|step| format!(" (step {step})")).unwrap_or_default();
    if let Some(resumed) = new.resumed_from.as_ref().filter(|_| new.resumed_from != old.resumed_from) {
        let step = view.checkpoint_report().and_then(|report| report.resumed_from?.step).map(|step| step.to_string());
        events.push(normal(
            "ResumedFrom",
            format!("attempt {} resumes from {resumed}{}", view.current.attempt, at(step)),
        ));
    }
    let is_newer = new.latest_path != old.latest_path || new.latest_step != old.latest_step;
    if let Some(path) = new.latest_path.as_ref().filter(|_| is_newer) {
        let at = at(new.latest_step.map(|step| step.to_string()));
        events.push(normal("CheckpointSaved", format!("{path}{at} is whole and good")));
    }
    if let Some(path) = new.last_backup_path.as_ref().filter(|_| new.last_backup_path != old.last_backup_path) {
        events.push(normal("BackedUp", format!("{path} is copied, and can be restored")));
    }
    events
}

/// The members of a gang: `2 workers`, `2 workers, 1 chief, 3 ps`.
fn members(gang: &Gang) -> String {
    gang.roles.iter().map(|role| number_in(role.name, role.replicas.into())).collect::<Vec<_>>().join(", ")
}
