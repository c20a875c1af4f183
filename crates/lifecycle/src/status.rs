//! The status that follows from a phase. Only this module writes the state, the conditions and the records of ends.

use super::conditions::{ConditionChange, condition, condition_is};
use super::elastic::EVERY_WORKER_HAS_A_NODE;
use super::ending::file;
use super::phase::{Phase, Preparation, Publication, Silence};
use super::publishing::words_on_result;
use super::view::{View, number_in, seconds};
use super::waiting::{self, WaitReason};
use super::{checkpoints, fetch, history, progress, record, upkeep};
use api::{AttemptEnd, ConditionType, Reason, State, TrainingJobStatus};
use jiff::SignedDuration;
use jiff::fmt::friendly::{Designator, Spacing, SpanPrinter};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use observe::{ChildKey, ObservedPod};
use plan::{Checkpoint, Incarnation, TensorBoard, Upkeep};
use protocol::attempt::RestartHistory;

/// The status of a job in this phase.
pub(super) fn status(view: &View<'_>, phase: &Phase<'_>) -> TrainingJobStatus {
    let mut writing = Writing { view, status: view.record.clone() };
    match phase {
        Phase::Over => writing.over(),
        Phase::StartingAgain { .. } | Phase::Changed => writing.phase(phase),
        _ => {
            writing.apply(&view.reported_conditions());
            writing.accepted(phase);
            writing.phase(phase);
        }
    }
    writing.status.attempt_spec = view.with_spec(&writing.status, matches!(phase, Phase::Over));
    writing.status
}

/// The conditions of a job in this phase.
pub(super) fn conditions(view: &View<'_>, phase: &Phase<'_>) -> Vec<Condition> {
    let mut writing = Writing { view, status: view.record.clone() };
    writing.phase(phase);
    writing.status.conditions
}

/// Whether the job is between a failed attempt and the start of the next one.
pub(super) fn after_restart(record: &TrainingJobStatus) -> bool {
    let attempt = super::incarnation(record).attempt;
    record.restarts.last().is_some_and(|last| last.attempt == attempt - 1)
        && condition_is(&record.conditions, ConditionType::Restarting, true).is_some()
}

const PROGRAMS_HAVE_ENDED: &str = "every worker's program has ended";

/// A status that is being written.
struct Writing<'v, 'a> {
    view: &'v View<'a>,
    status: TrainingJobStatus,
}

use ConditionType as C;

impl Writing<'_, '_> {
    fn set(&mut self, type_: ConditionType, status: bool, reason: impl Into<Reason>, message: &str) {
        self.apply(&[ConditionChange::set(type_, status, reason.into(), message)]);
    }

    fn apply(&mut self, reported: &[ConditionChange]) {
        let input = self.view.input;
        reported.iter().for_each(|reported| reported.write(&mut self.status.conditions, input.generation, input.now));
    }

    fn clear<const N: usize>(&mut self, types: [ConditionType; N], reason: &Reason) {
        self.apply(&types.map(|type_| ConditionChange::clear(type_, reason.clone())));
    }

    fn close<const N: usize>(&mut self, types: [ConditionType; N], reason: &Reason) {
        self.apply(&types.map(|type_| ConditionChange::close(type_, reason.clone())));
    }

    /// Moves to another incarnation, of which nothing is counted yet.
    fn go_to(&mut self, incarnation: Incarnation) {
        self.status.workers = None;
        (self.status.incarnation, self.status.attempt) = (Some(incarnation.number), Some(incarnation.attempt));
    }

    /// A requested stop is no failure.
    fn drop_end(&mut self) {
        let attempt = self.view.current.attempt;
        self.status.restarts.retain(|end| end.attempt != attempt);
    }

    fn accepted(&mut self, phase: &Phase<'_>) {
        let input = self.view.input;
        match (phase, input.refused) {
            (Phase::Refused { why }, _) => return self.set(C::Accepted, false, Reason::InvalidSpec, why),
            (_, None) => self.set(C::Accepted, true, Reason::Valid, "the spec can run"),
            (_, Some(why)) => {
                let why = format!("{why}; what runs goes on, and the next attempt starts when the spec is corrected");
                self.set(C::Accepted, false, Reason::InvalidSpec, &why);
            }
        }
        if input.refused.is_some() {
            return;
        }
        if input.plan.monitoring.tensorboard == Some(TensorBoard::NoStorage) {
            self.set(C::TensorBoard, false, Reason::NoStorage, TensorBoard::REMEDY);
        }
        if input.plan.storage.checkpoint.as_ref().is_some_and(Checkpoint::is_lost_with_pod) {
            self.set(C::CheckpointsDurable, false, Reason::CheckpointsInEmptyDir, Checkpoint::IN_EMPTY_DIR);
        }
    }

    fn phase(&mut self, phase: &Phase<'_>) {
        if let Some(until) = phase.until() {
            self.phase(until);
        }
        match phase {
            Phase::StartingAgain { request } => self.starting_again(request),
            Phase::Changed => self.changed(),
            Phase::Completed { reason, message, published } => {
                if let Some((_, published)) = published {
                    let result = self.view.result(published);
                    self.set(C::ResultPublished, true, Reason::Published, &words_on_result(&result));
                    self.status.result = Some(result);
                    self.take_up_again();
                }
                self.completed(reason, message);
            }
            Phase::Publishing { work } => self.publishing(work),
            Phase::StoppingEarly { reason, message, .. } => {
                self.set(C::Stopping, true, reason.clone(), message);
                let stopping = "the job is good enough: its workers are stopping, with their grace period".to_owned();
                let late = self.view.overdue_message(&self.view.all_pods).unwrap_or(stopping);
                self.set(C::Running, true, Reason::Stopping, &late);
            }
            Phase::Suspending { message } => {
                self.suspended();
                // An attempt may have failed before, and its last workers are stopping.
                if self.status.state == Some(State::Running)
                    && condition_is(&self.status.conditions, C::Running, false).is_some()
                {
                    self.status.state = Some(State::Initializing);
                }
                self.set(C::Suspended, false, Reason::Suspending, message);
            }
            Phase::Suspended => self.resting(),
            Phase::Failed { reason, message, judged, .. } => {
                if let Some((end, history)) = judged {
                    self.judged(end, history, phase.until().is_none());
                }
                self.failed(reason, message);
            }
            Phase::Refused { why } => self.failed(&Reason::InvalidSpec, why),
            Phase::AwaitingSpec { why } => {
                if self.status.state != Some(State::Suspended) {
                    self.status.state = Some(State::Pending);
                }
                let (name, attempt) = (&self.view.input.plan.identity.name, self.view.current.attempt);
                let why = format!(
                    "attempt {attempt} starts when the spec is corrected (kubectl edit trainingjob {name}): {why}"
                );
                self.set(C::Scheduled, false, Reason::InvalidSpec, &why);
            }
            Phase::Restarting { end, history, .. } => {
                self.judged(end, history, phase.until().is_none());
                self.go_to(self.view.current.next());
                self.status.state = Some(State::Initializing);
                self.set(C::Restarting, true, end.reason.clone(), &end.to_string());
            }
            Phase::LosingJob { end: Some(end), follows } => self.ending(end, *follows, None),
            Phase::Ending { end: Some(end), follows } => {
                self.ending(end, *follows, self.view.overdue_message(&self.view.all_pods));
            }
            Phase::Over | Phase::LosingJob { end: None, .. } | Phase::Ending { end: None, .. } => {}
            Phase::Queued { job } => {
                self.drop_end();
                if self.view.current.attempt > job.first_attempt {
                    // Its template can't be changed, so its new pods would count their attempts and budgets from the
                    // beginning.
                    self.go_to(self.view.current.next());
                }
                self.set_aside();
                self.status.state = Some(State::Pending);
                self.set(C::Scheduled, false, Reason::Queued, &self.view.words_of_queue());
                if self.view.input.children.blocked.contains_key(&ChildKey::WORKLOAD) {
                    self.blocked();
                }
                self.clear([C::Running, C::Restarting], &Reason::Queued);
            }
            Phase::Shrunk { role, wanted, pods } => {
                self.drop_end();
                self.status.state = Some(State::Pending);
                let gang = number_in(*role, (*wanted).into());
                let message = format!(
                    "another client changed the Job's parallelism to {pods}; this job needs {gang}. Set it back, or delete the \
                     Job, which is then recreated"
                );
                self.set(C::Scheduled, false, Reason::Parallelism, &message);
                self.clear([C::Running, C::Restarting], &Reason::Parallelism);
            }
            Phase::Replacing => self.lost(),
            Phase::Unscheduled { .. }
            | Phase::Unreachable { .. }
            | Phase::Gathering { .. }
            | Phase::Starting { .. }
            | Phase::Running => self.gang(phase),
            Phase::AwaitingCheckpoint { .. }
            | Phase::AwaitingOldPods { .. }
            | Phase::BackingOff { .. }
            | Phase::Preparing(_)
            | Phase::GivingUpRoles
            | Phase::Creating => self.start(phase),
        }
    }

    /// The job is suspended, by itself or with its search, and no worker runs.
    fn resting(&mut self) {
        self.suspended();
        self.copying();
        self.status.state = Some(State::Suspended);
        self.set_aside();
        let own = "spec.suspend is true; set it to false to go on";
        self.set(C::Suspended, true, Reason::Suspended, self.view.input.held.unwrap_or(own));
        self.clear([C::Scheduled, C::Running, C::Restarting], &Reason::Suspended);
    }

    /// The job has ended earlier. Only its checkpoints may still be copied.
    fn over(&mut self) {
        if let Some(request) = self.view.requested_restart() {
            let handled = super::restart_request::handled_restart(self.view, request, self.view.current.attempt);
            self.status.asked_restart = Some(handled);
        }
        let is_copying = self.copying();
        if self.view.ttl_left().is_some_and(|left| left <= 0)
            && !is_copying
            && let Some(message) = upkeep::words_on_uncopied(self.view, &self.status)
        {
            self.set(C::CheckpointsHealthy, false, Reason::BackupFailing, &message);
        }
    }

    /// The Jobs of the old spec end, and their end costs nothing of the budget.
    fn changed(&mut self) {
        self.drop_end();
        self.go_to(self.view.current.next());
        self.status.state = Some(State::Pending);
        self.close([C::Scheduled], &Reason::Restarted);
        self.clear([C::Running, C::Restarting], &Reason::Restarted);
    }

    fn starting_again(&mut self, request: &str) {
        self.status = record::started_again(self.view, request.to_owned());
        self.set(C::Failed, false, Reason::Restarted, "a restart was asked for");
        self.close([C::Scheduled, C::Suspended], &Reason::Restarted);
    }

    /// Copies of checkpoints after the end. True while they are under way.
    fn copying(&mut self) -> bool {
        let copying = upkeep::copying(self.view);
        if let Some(report) = &copying.report {
            let health = checkpoints::health(&self.status.conditions, report);
            self.apply(&health.into_iter().collect::<Vec<_>>());
        }
        self.status.checkpoint = copying.checkpoint;
        if let Some(message) = &copying.blocked {
            self.set(C::CheckpointsHealthy, false, Reason::BackupFailing, message);
        }
        copying.is_under_way
    }

    fn completed(&mut self, reason: &Reason, message: &str) {
        if !self.view.has_succeeded() {
            self.drop_end();
        }
        self.status.state = Some(State::Completed);
        self.end();
        // The workers may have had nodes unobserved.
        self.set(C::Scheduled, true, Reason::Scheduled, EVERY_WORKER_HAS_A_NODE);
        self.set(C::Running, false, reason.clone(), PROGRAMS_HAVE_ENDED);
        self.set(C::Succeeded, true, reason.clone(), message);
        self.close([C::Restarting, C::Stopping, C::ProgressStalled], reason);
        self.clear([C::Suspended], reason);
    }

    /// The state stays unchanged until the result is published. This time does not count, because no GPU is held.
    fn publishing(&mut self, work: &Publication<'_>) {
        if !self.view.has_succeeded() {
            self.drop_end();
        }
        self.status.state = Some(State::Running);
        self.set_aside();
        self.set(C::Scheduled, true, Reason::Scheduled, EVERY_WORKER_HAS_A_NODE);
        self.set(C::Running, false, Reason::Publishing, PROGRAMS_HAVE_ENDED);
        self.close([C::Restarting, C::ProgressStalled], &Reason::Publishing);
        self.clear([C::Suspended], &Reason::Publishing);
        if let Some(WaitReason { reason, message }) = self.view.words_on_publication(work) {
            self.set(C::ResultPublished, false, reason, &message);
        }
    }

    fn failed(&mut self, reason: &Reason, message: &str) {
        if self.view.unpublished_since().is_some() {
            self.set(C::ResultPublished, false, reason.clone(), message);
            self.take_up_again();
        }
        self.status.state = Some(State::Failed);
        self.status.failure_reason = Some(reason.clone());
        self.status.failure_message = Some(message.to_owned());
        self.end();
        self.set(C::Failed, true, reason.clone(), message);
        self.close([C::Running, C::Restarting, C::ProgressStalled], &Reason::Failed);
        self.clear([C::Suspended], &Reason::Failed);
    }

    fn end(&mut self) {
        let now = self.view.now();
        self.status = progress::end(std::mem::take(&mut self.status));
        if let Some(elastic) = &mut self.status.elastic {
            elastic.since = None; // no worker waits for room any more
        }
        self.status.completion_time = Some(Time(now));
        self.status.duration = self.status.start_time.as_ref().map(|start| {
            let took = SignedDuration::from_secs(seconds(start.0, now).max(0));
            SpanPrinter::new().designator(Designator::Compact).spacing(Spacing::None).duration_to_string(&took)
        });
    }

    fn suspended(&mut self) {
        let resumes_as = self.view.after_suspension();
        if resumes_as != self.view.current {
            self.go_to(resumes_as);
            self.drop_end();
        }
    }

    /// Stops the time of a job that has begun, while it is suspended or in a queue.
    fn set_aside(&mut self) {
        if self.status.start_time.is_some() && self.status.suspended_at.is_none() {
            self.status.suspended_at = Some(Time(self.view.now()));
        }
    }

    /// Continues the time of the job.
    fn take_up_again(&mut self) {
        if let Some(since) = self.status.suspended_at.take() {
            let so_far = self.status.suspended_seconds.unwrap_or(0);
            self.status.suspended_seconds = Some(so_far + self.view.since(since.0));
        }
    }

    /// An attempt that ends while some of it may still run.
    fn ending(&mut self, end: &AttemptEnd, follows: bool, late: Option<String>) {
        file(&mut self.status, end.clone());
        self.set(C::Running, false, end.reason.clone(), &end.to_string());
        if follows {
            self.status.state = Some(State::Initializing);
            let message = late.map_or(end.to_string(), |late| format!("{end}; {late}"));
            self.set(C::Restarting, true, end.reason.clone(), &message);
        }
    }

    /// An attempt that is over.
    fn judged(&mut self, end: &AttemptEnd, history: &RestartHistory, stops_running: bool) {
        file(&mut self.status, end.clone());
        if stops_running {
            self.set(C::Running, false, end.reason.clone(), &end.to_string());
        }
        let scheduled = condition(&self.status.conditions, C::Scheduled);
        if end.exit_code.is_some() && scheduled.is_some_and(|scheduled| scheduled.reason == Reason::Scheduling.as_str())
        {
            // Programs have run unobserved.
            self.set(C::Scheduled, true, Reason::Scheduled, EVERY_WORKER_HAS_A_NODE);
        }
        self.status = history::with(std::mem::take(&mut self.status), history.clone());
    }

    /// Reports lost workers, if there are any.
    fn lost(&mut self) {
        let going = self.view.leaving_pods();
        let Some(first) = going.iter().min_by_key(|pod| pod.replica_id()) else { return };
        self.status.state = Some(State::Initializing);
        let end = self.view.kept().map(|end| (end.reason.clone(), end.to_string()));
        let is_reported = end.is_some();
        let replaced = || (Reason::Starting, format!("{}: another pod takes its place", first.describe()));
        let (reason, mut message) = end.unwrap_or_else(replaced);
        if let Some(late) = self.view.overdue_message(&self.view.all_pods) {
            message = format!("{message}; {late}");
        }
        self.set(C::Running, false, reason.clone(), &message);
        if is_reported {
            self.set(C::Restarting, true, reason, &message);
        }
    }

    /// A gang with all its Jobs, none of them held by a queue, and no pod that has yet to go.
    fn gang(&mut self, phase: &Phase<'_>) {
        let view = self.view;
        self.lost();
        self.take_up_again();
        if let (true, Some(job)) = (phase.has_nodes(), view.gang_job()) {
            self.set(C::Scheduled, true, Reason::Scheduled, &view.placed(job, &view.members().1));
        }
        match phase {
            Phase::Unscheduled { why } => {
                let restarts = condition_is(&self.status.conditions, C::Restarting, true).is_some();
                let quiet = why.reason == Reason::Scheduling
                    && (after_restart(&self.status) || (view.can_readmit() && restarts));
                self.status.state = Some(if quiet { State::Initializing } else { State::Pending });
                self.set(C::Scheduled, false, why.reason.clone(), &why.message);
                self.clear([C::Running], &Reason::Waiting);
                self.blocked();
            }
            Phase::Unreachable { first, silence } => self.unreachable(first, silence),
            Phase::Gathering { why } => {
                self.status.state = Some(State::Initializing);
                let attempt = view.current.attempt;
                if let Some(last) = self.status.restarts.iter().find(|end| end.attempt == attempt).cloned() {
                    self.set(C::Restarting, true, last.reason.clone(), &last.to_string());
                }
                self.set(C::Running, false, why.reason.clone(), &why.message);
            }
            Phase::Starting { why } => {
                self.status.state = Some(State::Initializing);
                self.set(C::Running, false, why.reason.clone(), &why.message);
            }
            _ => {
                self.status.state = Some(State::Running);
                self.set(C::Running, true, Reason::Running, "every worker's program runs or has ended well");
                self.clear([C::Restarting], &Reason::Restarted);
            }
        }
    }

    fn unreachable(&mut self, first: &ObservedPod, silence: &Silence<'_>) {
        let since = first.unreachable.map_or_else(String::new, |since| format!(" since {since:.0}"));
        let limit = self.view.input.plan.policy.failure.node_lost_seconds;
        let what = match silence {
            Silence::ProgramsRun => "and its program runs on: the other workers hear it".to_owned(),
            Silence::Lost(_) => format!(
                "for longer than {limit} s (failurePolicy.nodeLostSeconds): its pod is deleted without the node's word, \
                 and another one takes its place"
            ),
            Silence::MayComeBack => format!(
                "and the gang can't go on without it. If it does not come back within {limit} s of its last sign of life \
                 (failurePolicy.nodeLostSeconds), another pod takes its place"
            ),
            Silence::MayRun => "and no other worker is heard that would have stopped with it: its program may still run. If \
                                the node is gone for good, delete the Node or taint it node.kubernetes.io/out-of-service, and \
                                another pod takes its place"
                .to_owned(),
        };
        let message = format!("{}: its node has not answered{since}, {what}", first.describe());
        let runs = matches!(silence, Silence::ProgramsRun);
        if let Silence::Lost(lost) = silence
            && let Some(end) = View::new(self.view.input, self.status.clone()).end_by_lost_nodes(lost)
        {
            file(&mut self.status, end);
        }
        self.status.state = Some(if runs { State::Running } else { State::Initializing });
        self.set(C::Running, runs, Reason::NodeLost, &message);
    }

    /// Reports children that could not be created.
    fn blocked(&mut self) {
        if let Some((key, blocked)) = self.view.input.children.blocked.iter().next() {
            let message = format!("{}: {}", key.kind.as_str(), blocked.message);
            self.set(C::Scheduled, false, blocked.reason.clone(), &message);
        } else if let Some(WaitReason { reason, message }) = self.view.first_words(&self.status) {
            self.set(C::Scheduled, false, reason, &message);
        }
    }

    /// A job that is about to start, once nothing of earlier incarnations remains and it is known what it resumes from.
    fn start(&mut self, phase: &Phase<'_>) {
        let view = self.view;
        let waited_for = view.reason_of(C::Scheduled);
        // Until now the job, or this attempt, could not start.
        let could_not = [Reason::InvalidSpec, Reason::Restarted, Reason::Queued, Reason::Parallelism];
        if view.record.state == Some(State::Suspended)
            || waited_for.as_ref().is_some_and(|reason| could_not.contains(reason))
        {
            self.wait_from_now();
            let WaitReason { reason, message } = waiting::scheduling();
            self.set(C::Scheduled, false, reason, &message);
        }
        if view.record.state == Some(State::Suspended) {
            self.take_up_again();
            self.set(C::Suspended, false, Reason::Resumed, "the job is no longer suspended");
        }
        if after_restart(&self.status) {
            self.status.state = Some(State::Initializing);
        } else {
            self.status.state = Some(State::Pending);
            // The suspension was taken back before its workers had ended.
            self.clear([C::Running], &Reason::OldPods);
            let is_suspending = condition(&self.status.conditions, C::Suspended)
                .is_some_and(|suspended| suspended.reason == Reason::Suspending.as_str());
            if is_suspending {
                self.set(C::Suspended, false, Reason::Resumed, "the job is no longer suspended");
            }
        }
        self.blocked();
        if let Phase::AwaitingCheckpoint { message } = phase {
            self.set_aside();
            self.status.state = Some(State::Pending);
            self.set(C::Scheduled, false, Reason::NoUsableCheckpoint, message);
            return self.clear([C::Running], &Reason::NoUsableCheckpoint);
        }
        if waited_for == Some(Reason::NoUsableCheckpoint) {
            self.wait_from_now();
        }
        match phase {
            Phase::AwaitingOldPods { why: Some(why) } => self.set(C::Scheduled, false, Reason::OldPods, why),
            Phase::Preparing(preparation) => self.preparing(preparation),
            // With another number, the ends of their pods are no failures of the attempt, which has not begun.
            Phase::GivingUpRoles => {
                self.go_to(Incarnation { number: view.current.number.saturating_add(1), ..view.current });
            }
            Phase::Creating => self.status.agent_image = Some(view.input.plan.runtime.agent_image.clone()),
            _ => {}
        }
    }

    fn preparing(&mut self, preparation: &Preparation<'_>) {
        let plan = self.view.input.plan;
        let job = plan::names::upkeep_name(&plan.identity.name);
        let (reason, message) = match preparation {
            // Children that could not be created are reported instead.
            Preparation::Missing(task) | Preparation::UnderWay(task) if self.view.input.children.blocked.is_empty() => {
                match task {
                    Upkeep::Fetch => (Reason::Fetching, fetch::message(self.view, &job)),
                    Upkeep::Check | Upkeep::Copy | Upkeep::Publish => {
                        let message = format!(
                            "checking checkpoint.resumeFrom before the workers are made (Job {job}; kubectl describe job \
                             {job} if that takes long)"
                        );
                        (Reason::Waiting, message)
                    }
                }
            }
            Preparation::Checked(_) => {
                self.status.checkpoint.get_or_insert_default().resume_checked = Some(true);
                return;
            }
            Preparation::Fetched(_, contents) => {
                self.status = record::with_contents(self.view, std::mem::take(&mut self.status), contents);
                return self.wait_from_now();
            }
            Preparation::TriedAgain(_, why) => (why.reason.clone(), why.message.clone()),
            Preparation::GoingOn(job) => {
                let message = format!("waiting for the pods of Job {} to end, which looks after the data", job.name);
                (Reason::Waiting, message)
            }
            _ => return,
        };
        self.set(C::Scheduled, false, reason, &message);
    }

    /// Restarts the time for which nothing has been scheduled.
    fn wait_from_now(&mut self) {
        let is_scheduled = |condition: &&mut Condition| condition.type_ == C::Scheduled.as_str();
        if let Some(scheduled) = self.status.conditions.iter_mut().find(is_scheduled) {
            scheduled.last_transition_time = Time(self.view.now());
        }
    }
}
