//! A decision under way, and what every rule may do to it.

use super::conditions::{condition, set_condition};
use super::verdict::{Action, Event, Input, Verdict};
use api::{ConditionType, Reason, TrainingJobStatus};
use jiff::Timestamp;
use observe::{Blocked, ChildKey, ChildKind, Children, ObservedJob, ObservedPod};
use plan::{Incarnation, Role};
use protocol::role::{Place, RoleName};
use std::collections::BTreeSet;
use std::time::Duration;

/// The numbers in a status. One of an older operator has only the attempt's, when both were one.
#[must_use]
pub fn incarnation(status: &TrainingJobStatus) -> Incarnation {
    let attempt = status.attempt.unwrap_or(Incarnation::FIRST.attempt);
    Incarnation { number: status.incarnation.unwrap_or(attempt), attempt }
}

/// Whether this incarnation has had a worker, or its attempt a failure. The workers' Job is the last that is made: pods of
/// other roles may wait for it to be.
pub(super) fn begun(status: &TrainingJobStatus, children: &Children, of: Incarnation) -> bool {
    children.pods.values().any(|p| p.role.is_worker() && p.incarnation == of.number)
        || status.restarts.iter().any(|r| r.attempt == of.attempt)
}

/// A decision under way: what it rests on, and what has come of it so far.
pub(super) struct Step<'a> {
    pub(super) input: &'a Input<'a>,
    pub(super) status: TrainingJobStatus,
    pub(super) verdict: Verdict,
}

impl<'a> Step<'a> {
    /// What the status can be completed by before anything is decided.
    pub(super) fn note_numbers(&mut self) {
        let known = incarnation(&self.status);
        let newest = self.jobs().max_by_key(|job| job.incarnation);
        let (seen, first) = newest.map_or((1, 1), |job| (job.incarnation, job.first_attempt));
        let attempt = if seen > known.number { known.attempt.max(first) } else { known.attempt };
        self.set_incarnation(Incarnation { number: known.number.max(seen), attempt });
        self.status.restart_count.get_or_insert(0);
        self.note_start();
        self.note_gang();
        self.note_agent();
        self.note_checkpoints();
    }

    pub(super) fn incarnation(&self) -> Incarnation {
        incarnation(&self.status)
    }

    pub(super) fn set_incarnation(&mut self, to: Incarnation) {
        self.status.incarnation = Some(to.number);
        self.status.attempt = Some(to.attempt);
    }

    /// The Job of the workers, of whichever incarnation.
    pub(super) fn job(&self) -> Option<&'a ObservedJob> {
        self.input.children.job(RoleName::WORKER)
    }

    /// The Jobs of all roles, of whichever incarnation.
    pub(super) fn jobs(&self) -> impl Iterator<Item = &'a ObservedJob> + use<'a> {
        let children: &'a Children = self.input.children;
        children.jobs.values().map(|job| &**job)
    }

    /// The Jobs of all roles in this incarnation.
    pub(super) fn current_jobs(&self) -> impl Iterator<Item = &'a ObservedJob> + use<'a> {
        let number = self.incarnation().number;
        self.jobs().filter(move |job| job.incarnation == number)
    }

    /// Whether the Job of a role is gone while that of the workers is there, which is made after all the others.
    pub(super) fn lacks_job(&self) -> bool {
        let is_there = |role: &Role| self.current_jobs().any(|job| job.role == role.name);
        !self.input.plan.gang.roles.iter().all(is_there)
    }

    /// The Job of this incarnation that has failed, or is about to.
    pub(super) fn failed_job(&self) -> Option<&'a ObservedJob> {
        self.current_jobs().find(|job| job.failed.is_some())
    }

    /// The Job of this incarnation.
    pub(super) fn current_job(&self) -> Option<&'a ObservedJob> {
        self.job().filter(|job| job.incarnation == self.incarnation().number)
    }

    pub(super) fn begun(&self, of: Incarnation) -> bool {
        begun(&self.status, self.input.children, of)
    }

    /// Why the API server finds the Job invalid that follows from the spec.
    pub(super) fn job_is_invalid(&self) -> Option<String> {
        self.blocked_jobs().find(|blocked| blocked.reason == Reason::Invalid).map(|blocked| blocked.message.clone())
    }

    /// Why Jobs of the gang could not be made.
    pub(super) fn blocked_jobs(&self) -> impl Iterator<Item = &'a Blocked> + use<'a> {
        let children: &'a Children = self.input.children;
        let is_of_gang = |key: &ChildKey| key.kind == ChildKind::Job && *key != ChildKey::UPKEEP;
        children.blocked.iter().filter(move |(key, _)| is_of_gang(key)).map(|(_, blocked)| blocked)
    }

    /// Whether an attempt has run, or has ended before it did.
    pub(super) fn has_run(&self) -> bool {
        self.status.start_time.is_some() || !self.status.restarts.is_empty()
    }

    /// Pods of an incarnation, but for those that tell nothing of its gang.
    pub(super) fn all_pods(&self, of: Incarnation) -> Vec<&'a ObservedPod> {
        let input: &'a Input<'a> = self.input;
        // What a queue manager has stopped tells nothing of the gang that runs, or will. By their creation the two can't be
        // told: the Job controller makes the pods of a Job that is let go, and says only then since when it is.
        let stopped = |p: &ObservedPod| {
            let job = input.children.job(p.role).filter(|job| job.incarnation == of.number);
            let before = |resumed| p.deletion.is_some_and(|deletion| deletion <= resumed);
            job.is_some_and(|job| (job.suspended_by_queue && p.failed()) || job.resumed.is_some_and(before))
        };
        let pods = input.children.pods.values().map(|pod| &**pod);
        pods.filter(|p| p.incarnation == of.number && !stopped(p)).collect()
    }

    /// One pod for each place: of two the newer counts.
    pub(super) fn pods(&self, of: Incarnation) -> Vec<&'a ObservedPod> {
        let mut pods = self.all_pods(of);
        pods.sort_by(|a, b| (a.place(), b.created, a.gone, &b.uid).cmp(&(b.place(), a.created, b.gone, &a.uid)));
        pods.dedup_by_key(|p| p.place());
        pods
    }

    /// Places whose program has ended well, whether or not their pods are still there to show it.
    pub(super) fn done(&self, pods: &[&ObservedPod]) -> BTreeSet<Place> {
        let of_job = |job: &'a ObservedJob| job.completed.iter().map(|index| Place { role: job.role, index: *index });
        let completed = self.current_jobs().flat_map(of_job);
        completed.chain(pods.iter().filter(|pod| pod.succeeded()).map(|pod| pod.place())).collect()
    }

    /// Places that have a pod, or need none any more.
    pub(super) fn provided(&self, pods: &[&ObservedPod]) -> BTreeSet<Place> {
        self.done(pods).into_iter().chain(pods.iter().map(|pod| pod.place())).collect()
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

    /// Deletes the Job, and those of all other roles that were made with it, unless that is under way.
    pub(super) fn delete(&mut self, job: &ObservedJob) {
        for of_role in self.jobs().filter(|other| other.incarnation == job.incarnation) {
            self.delete_job(&of_role.name, &of_role.uid, of_role.deleting);
        }
    }

    /// Deletes what is left of a job that is over, unless that is under way.
    pub(super) fn end_job(&mut self, job: &ObservedJob) {
        if !job.deleting {
            self.verdict.actions.push(Action::EndJob { name: job.name.clone(), uid: job.uid.clone() });
        }
    }

    /// Deletes a Job of whatever kind, unless that is under way.
    pub(super) fn delete_job(&mut self, name: &str, uid: &str, deleting: bool) {
        let delete = Action::DeleteJob { name: name.to_owned(), uid: uid.to_owned() };
        if !deleting && !self.verdict.actions.contains(&delete) {
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

/// `1 worker`, `2 workers`; and of other roles `3 ps`.
pub(super) fn number_in(role: RoleName, n: u32) -> String {
    if role.is_worker() { number_of(n, "worker") } else { format!("{n} {role}") }
}

/// `1 worker`, `2 workers`.
pub(super) fn number_of(n: u32, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}
