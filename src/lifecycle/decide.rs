//! One step of the life of a job: what is seen becomes a status, and what is to be done about it.

use super::conditions::{condition, set_condition};
use super::stage::{Stage, stage};
use crate::api::{ConditionType, Reason, State, TrainingJobStatus};
use crate::observe::{AgentAnswer, ChildKey, Children, JobSeen, PodSeen};
use crate::plan::{Incarnation, Plan, Role, TensorBoard};
use jiff::Timestamp;
use std::collections::BTreeSet;
use std::time::Duration;

/// What a decision rests on.
pub struct Input<'a> {
    /// What is to be, as far as it can be told: of a job that is refused its sizes and policies.
    pub plan: &'a Plan,
    /// Why the spec can't run, if it can't.
    pub refused: Option<&'a str>,
    /// `metadata.generation`.
    pub generation: Option<i64>,
    /// The status as last known.
    pub status: &'a TrainingJobStatus,
    /// What was seen of its objects.
    pub children: &'a Children,
    /// What its agents answered last.
    pub agent: Option<&'a AgentAnswer>,
    /// Since when they don't answer, though they are asked; also if they never did.
    pub agent_silent_since: Option<Timestamp>,
    /// Now, in whole seconds.
    pub now: Timestamp,
}

/// What is to be done, in this order: the status is written, then the actions are taken, then the events are told.
#[derive(Debug, Default, PartialEq)]
pub struct Verdict {
    /// The status as it should be.
    pub status: TrainingJobStatus,
    /// What to do once that is written.
    pub actions: Vec<Action>,
    /// What to tell once that is done.
    pub events: Vec<Event>,
    /// UIDs of objects whose Events are to be read: what keeps them from starting stands nowhere else.
    pub read_events_of: Vec<String>,
    /// When to decide again if nothing is seen before.
    pub requeue: Option<Duration>,
}

/// A write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Make what is missing of Service, ConfigMap and claim, and put right what was changed.
    Ensure,
    /// Make the Jobs of this incarnation.
    CreateJobs(Incarnation),
    /// Delete this Job and its pods.
    DeleteJob {
        /// Its name.
        name: String,
        /// Its UID, the precondition.
        uid: String,
    },
    /// Delete the TrainingJob itself: its time after the end is over.
    DeleteOwner,
}

/// An Event on the TrainingJob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Warning, else Normal.
    pub warning: bool,
    /// One CamelCase word, past tense.
    pub reason: &'static str,
    /// A sentence with names.
    pub note: String,
}

/// Decides what a job is and what is to be done about it.
#[must_use]
pub fn decide(input: &Input<'_>) -> Verdict {
    let mut step = Step { input, status: input.status.clone(), verdict: Verdict::default() };
    step.run();
    let Step { status, mut verdict, .. } = step;
    verdict.status = status;
    verdict
}

/// Whether an incarnation has begun whose Job is not known, or only that of an earlier one: either it was deleted, or the
/// watch of Jobs is behind.
#[must_use]
pub fn misses_job(status: &TrainingJobStatus, children: &Children) -> bool {
    let current = incarnation(status);
    children.job(Role::WORKER).is_none_or(|job| job.incarnation < current.number)
        && !status.state.is_some_and(State::is_finished)
        && begun(status, children, current)
}

/// The numbers in a status. One of an older operator has only the attempt's, when both were one.
pub(super) fn incarnation(status: &TrainingJobStatus) -> Incarnation {
    let attempt = status.attempt.unwrap_or(Incarnation::FIRST.attempt);
    Incarnation { number: status.incarnation.unwrap_or(attempt), attempt }
}

/// Whether this incarnation has had a pod, or its attempt a failure.
fn begun(status: &TrainingJobStatus, children: &Children, of: Incarnation) -> bool {
    children.pods.values().any(|p| p.incarnation == of.number)
        || status.restarts.iter().any(|r| r.attempt == of.attempt)
}

/// A decision under way: what it rests on, and what has come of it so far.
pub(super) struct Step<'a> {
    pub(super) input: &'a Input<'a>,
    pub(super) status: TrainingJobStatus,
    pub(super) verdict: Verdict,
}

impl<'a> Step<'a> {
    fn run(&mut self) {
        self.status.observed_generation = self.input.generation;
        if self.status.state.is_some_and(State::is_finished) {
            return self.finished();
        }
        self.note_numbers();
        let stage = stage(self);
        if let Stage::Refused(reason) = stage {
            self.set(ConditionType::Accepted, false, Reason::InvalidSpec, &reason);
            self.fail(Reason::InvalidSpec, &reason);
            return self.count();
        }
        self.set(ConditionType::Accepted, true, Reason::Valid, "the spec can run");
        if self.input.refused.is_none() && self.input.plan.monitoring.tensorboard == Some(TensorBoard::NoStorage) {
            self.set(ConditionType::TensorBoard, false, Reason::NoStorage, TensorBoard::REMEDY);
        }
        if let Some(old) = self.job().filter(|job| job.incarnation < self.incarnation().number) {
            self.delete(old);
        }
        if matches!(stage, Stage::Running(_) | Stage::JobGone | Stage::Starting) {
            self.wake_at_deadline();
        }
        match stage {
            Stage::Refused(_) => {}
            Stage::Succeeded => self.succeed(),
            Stage::GoodEnough => self.stop(),
            Stage::Suspending => self.suspend(),
            Stage::PastDeadline { active, deadline } => self.past_deadline(active, deadline),
            Stage::Running(job) => self.running(job),
            Stage::JobGone => self.job_gone(),
            Stage::Starting => self.start(),
        }
        self.count();
    }

    /// What the status can be completed by before anything is decided.
    fn note_numbers(&mut self) {
        let (known, seen) = (incarnation(&self.status), self.job().map_or(1, |job| job.incarnation));
        let ahead = (seen - known.number).max(0);
        self.set_incarnation(Incarnation { number: known.number + ahead, attempt: known.attempt + ahead });
        self.status.restart_count.get_or_insert(0);
        self.note_start();
        self.note_agent();
    }

    pub(super) fn incarnation(&self) -> Incarnation {
        incarnation(&self.status)
    }

    pub(super) fn set_incarnation(&mut self, to: Incarnation) {
        self.status.incarnation = Some(to.number);
        self.status.attempt = Some(to.attempt);
    }

    /// The Job of the leading role, of whichever incarnation.
    pub(super) fn job(&self) -> Option<&'a JobSeen> {
        self.input.children.job(Role::WORKER)
    }

    /// The Job of this incarnation.
    pub(super) fn current_job(&self) -> Option<&'a JobSeen> {
        self.job().filter(|job| job.incarnation == self.incarnation().number)
    }

    pub(super) fn begun(&self, of: Incarnation) -> bool {
        begun(&self.status, self.input.children, of)
    }

    /// Why the spec can't run: by our own rules, or because the API server finds the Job invalid that follows from it.
    pub(super) fn invalid(&self) -> Option<String> {
        let job = self.input.children.blocked.get(&ChildKey::job(Role::WORKER));
        let job = job.filter(|blocked| blocked.reason == Reason::Invalid);
        self.input.refused.map(str::to_owned).or_else(|| job.map(|blocked| blocked.message.clone()))
    }

    /// Pods of an incarnation, but for those that tell nothing of its gang.
    pub(super) fn all_pods(&self, of: Incarnation) -> Vec<&'a PodSeen> {
        let input: &'a Input<'a> = self.input;
        let job = self.job().filter(|job| job.incarnation == of.number);
        // What a queue manager has stopped tells nothing of the gang that runs, or will. By their creation the two can't be
        // told: the Job controller makes the pods of a Job that is let go, and says only then since when it is.
        let stopped = |p: &PodSeen| {
            let before = |resumed| p.deletion.is_some_and(|deletion| deletion <= resumed);
            job.is_some_and(|job| (job.suspended_by_queue && p.failed()) || job.resumed.is_some_and(before))
        };
        input.children.pods.values().filter(|p| p.incarnation == of.number && !stopped(p)).collect()
    }

    /// One pod for each index: of two the newer counts.
    pub(super) fn pods(&self, of: Incarnation) -> Vec<&'a PodSeen> {
        let mut pods = self.all_pods(of);
        pods.sort_by(|a, b| (a.index, b.gone, b.created, &b.uid).cmp(&(b.index, a.gone, a.created, &a.uid)));
        pods.dedup_by_key(|p| p.index);
        pods
    }

    /// Indexes whose program has ended well, whether or not their pods are still there to show it.
    pub(super) fn done(&self, pods: &[&PodSeen]) -> BTreeSet<i32> {
        let completed = self.current_job().into_iter().flat_map(|job| job.completed.iter().copied());
        completed.chain(pods.iter().filter(|pod| pod.succeeded()).map(|pod| pod.index)).collect()
    }

    /// Workers that have a pod, or need none any more.
    pub(super) fn provided(&self, pods: &[&PodSeen]) -> usize {
        self.done(pods).into_iter().chain(pods.iter().map(|pod| pod.index)).collect::<BTreeSet<_>>().len()
    }

    pub(super) fn set(&mut self, type_: ConditionType, status: bool, reason: impl Into<Reason>, message: &str) {
        let (generation, now) = (self.input.generation, self.input.now);
        set_condition(&mut self.status.conditions, type_, status, &reason.into(), message, generation, now);
    }

    /// Sets a condition to False if it is True.
    pub(super) fn clear(&mut self, type_: ConditionType, reason: impl Into<Reason>) {
        if self.was(type_) == Some(true) {
            self.set(type_, false, reason, "");
        }
    }

    /// Sets a condition to False for good, if it was ever set: the same end, whatever was seen on the way.
    pub(super) fn close(&mut self, type_: ConditionType, reason: impl Into<Reason>) {
        if self.was(type_).is_some() {
            self.set(type_, false, reason, "");
        }
    }

    /// Deletes the Job, unless that is under way.
    pub(super) fn delete(&mut self, job: &JobSeen) {
        let delete = Action::DeleteJob { name: job.name.clone(), uid: job.uid.clone() };
        if !job.deleting && !self.verdict.actions.contains(&delete) {
            self.verdict.actions.push(delete);
        }
    }

    /// Whether the condition of this type is True; none if it was never set.
    pub(super) fn was(&self, type_: ConditionType) -> Option<bool> {
        condition(&self.status.conditions, type_).map(|c| c.status == "True")
    }

    /// The reason of the condition of this type, if it was ever set.
    pub(super) fn reason_of(&self, type_: ConditionType) -> Option<Reason> {
        condition(&self.status.conditions, type_).map(|c| Reason::from(c.reason.as_str()))
    }

    pub(super) fn event(&mut self, warning: bool, reason: &'static str, note: String) {
        self.verdict.events.push(Event { warning, reason, note });
    }

    pub(super) fn requeue(&mut self, seconds: i64) {
        let after = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        self.verdict.requeue = Some(self.verdict.requeue.map_or(after, |old| old.min(after)));
    }
}

pub(super) fn seconds(from: Timestamp, to: Timestamp) -> i64 {
    to.duration_since(from).as_secs()
}

/// `1 worker`, `2 workers`.
pub(super) fn number_of(n: i32, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}
