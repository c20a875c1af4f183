//! What is known of a job at one moment: the observed state of its objects, and its record. Nothing here changes
//! anything.

use super::conditions::condition;
use super::decision::Input;
use api::{AttemptEnd, ConditionType, Reason, TrainingJobStatus};
use jiff::Timestamp;
use observe::{Blocked, ChildKey, ChildKind, Children, ObservedJob, ObservedPod};
use plan::{Incarnation, Role};
use protocol::attempt::RestartHistory;
use protocol::gang::{GangPhase, GangStatus};
use protocol::role::{ReplicaId, RoleName};
use std::collections::BTreeSet;

/// The numbers in a status. An older operator wrote only the attempt's number, because both were the same.
#[must_use]
pub fn incarnation(status: &TrainingJobStatus) -> Incarnation {
    let attempt = status.attempt.unwrap_or(Incarnation::FIRST.attempt);
    Incarnation { number: status.incarnation.unwrap_or(attempt), attempt }
}

/// Whether this incarnation has had a worker, or its attempt a failure. The workers' Job is made last, so pods of other
/// roles may exist before it. The number of workers in the status counts too, because an operator that starts may see
/// no pod yet.
pub(super) fn has_begun(status: &TrainingJobStatus, children: &Children, of: Incarnation) -> bool {
    status.workers.is_some_and(|workers| workers.active > 0)
        || children.pods.values().any(|p| p.role.is_worker() && p.incarnation == of.number)
        || status.restarts.iter().any(|r| r.attempt == of.attempt)
}

/// What is known of a job at one moment.
pub(super) struct View<'a> {
    /// The observed state.
    pub(super) input: &'a Input<'a>,
    /// The status, with all observations added.
    pub(super) record: TrainingJobStatus,
    /// The incarnation and attempt of the record.
    pub(super) current: Incarnation,
    /// The Jobs of this incarnation.
    pub(super) jobs: Vec<&'a ObservedJob>,
    /// The pods of this incarnation, without those that a queue manager has stopped.
    pub(super) all_pods: Vec<&'a ObservedPod>,
    /// The newest of these pods for each place.
    pub(super) pods: Vec<&'a ObservedPod>,
    /// Places whose program has exited with code 0, whether or not their pods still exist.
    pub(super) done: BTreeSet<ReplicaId>,
    /// The last report of the gang's leader, if its pod is of this incarnation.
    pub(super) gang: Option<&'a GangStatus>,
    /// Why an elastic gang gets another size in this reconciliation.
    pub(super) resized: Option<String>,
}

impl<'a> View<'a> {
    pub(super) fn new(input: &'a Input<'a>, record: TrainingJobStatus) -> Self {
        let current = incarnation(&record);
        let number = current.number;
        let jobs: Vec<_> =
            input.children.jobs.values().map(|job| &**job).filter(|job| job.incarnation == number).collect();
        let all_pods = pods_of(input.children, number);
        let pods = newest(&all_pods);
        let gang = input.agent.and_then(|agent| {
            let uid = agent.status.pod_uid.as_ref()?;
            agent.status.gang.as_ref().filter(|_| all_pods.iter().any(|pod| pod.uid == *uid))
        });
        let mut view =
            View { input, record, current, jobs, all_pods, pods, done: BTreeSet::new(), gang, resized: None };
        view.done = view.done_among(&view.pods);
        view
    }

    /// The same observations with another record of the same incarnation.
    pub(super) fn with(self, record: TrainingJobStatus) -> Self {
        View { current: incarnation(&record), record, ..self }
    }

    /// The same observations after this change of the record.
    pub(super) fn after(self, change: fn(&Self, TrainingJobStatus) -> TrainingJobStatus) -> Self {
        let record = change(&self, self.record.clone());
        self.with(record)
    }

    pub(super) fn now(&self) -> Timestamp {
        self.input.now
    }

    /// Seconds from this time until now.
    pub(super) fn since(&self, time: Timestamp) -> i64 {
        seconds(time, self.input.now)
    }

    /// Seconds from now until this time, at least one; `None` if it is not in the future.
    pub(super) fn until(&self, time: Timestamp) -> Option<i64> {
        (time > self.input.now).then(|| seconds(self.input.now, time).max(1))
    }

    /// The Jobs of all roles and of any incarnation.
    pub(super) fn any_jobs(&self) -> impl Iterator<Item = &'a ObservedJob> + use<'a> {
        let children: &'a Children = self.input.children;
        children.jobs.values().map(|job| &**job)
    }

    /// The workers' Job of this incarnation.
    pub(super) fn worker_job(&self) -> Option<&'a ObservedJob> {
        self.jobs.iter().copied().find(|job| job.role.is_worker())
    }

    /// The workers' Job of this incarnation, if the Jobs of all other roles exist too.
    pub(super) fn gang_job(&self) -> Option<&'a ObservedJob> {
        let is_there = |role: &Role| self.jobs.iter().any(|job| job.role == role.name);
        self.worker_job().filter(|_| self.input.plan.gang.roles.iter().all(is_there))
    }

    /// Whether this incarnation has begun and one of its Jobs is gone.
    pub(super) fn has_lost_job(&self) -> bool {
        match self.worker_job() {
            Some(_) => self.gang_job().is_none(),
            None => self.has_begun(),
        }
    }

    /// The Jobs of this incarnation that have failed or are about to fail.
    pub(super) fn failed_jobs(&self) -> impl Iterator<Item = &'a ObservedJob> + use<'a, '_> {
        self.jobs.iter().copied().filter(|job| job.failed.is_some())
    }

    /// The first failed Job.
    pub(super) fn failed_job(&self) -> Option<&'a ObservedJob> {
        self.failed_jobs().next()
    }

    pub(super) fn has_begun(&self) -> bool {
        has_begun(&self.record, self.input.children, self.current)
    }

    /// Whether an attempt has run, or has ended before it could.
    pub(super) fn has_run(&self) -> bool {
        self.record.start_time.is_some() || !self.record.restarts.is_empty()
    }

    /// Why the API server finds the Job of this spec invalid.
    pub(super) fn invalid_job(&self) -> Option<String> {
        self.blocked_jobs().find(|blocked| blocked.reason == Reason::Invalid).map(|blocked| blocked.message.clone())
    }

    /// Why Jobs of the gang could not be created.
    pub(super) fn blocked_jobs(&self) -> impl Iterator<Item = &'a Blocked> + use<'a> {
        let children: &'a Children = self.input.children;
        let is_of_gang = |key: &ChildKey| key.kind == ChildKind::Job && *key != ChildKey::UPKEEP;
        children.blocked.iter().filter(move |(key, _)| is_of_gang(key)).map(|(_, blocked)| blocked)
    }

    /// The places of these pods that are done, and the places that the Jobs report as done.
    pub(super) fn done_among(&self, pods: &[&ObservedPod]) -> BTreeSet<ReplicaId> {
        let of_job =
            |job: &'a ObservedJob| job.completed.iter().map(|index| ReplicaId { role: job.role, index: *index });
        let completed = self.jobs.iter().copied().flat_map(of_job);
        completed.chain(pods.iter().filter(|pod| pod.succeeded()).map(|pod| pod.replica_id())).collect()
    }

    /// Whether the condition of this type is True; `None` if it does not exist.
    pub(super) fn condition_status(&self, type_: ConditionType) -> Option<bool> {
        condition(&self.record.conditions, type_).map(|c| c.status == "True")
    }

    /// The reason of the condition of this type, if it exists.
    pub(super) fn reason_of(&self, type_: ConditionType) -> Option<Reason> {
        condition(&self.record.conditions, type_).map(|c| Reason::from(c.reason.as_str()))
    }

    /// The recorded end of the present attempt, if it fails.
    pub(super) fn kept(&self) -> Option<&AttemptEnd> {
        self.record.restarts.iter().find(|end| end.attempt == self.current.attempt)
    }

    /// The sum of all known ends of attempts.
    pub(super) fn history(&self) -> RestartHistory {
        super::history::restart_history(&self.record)
    }

    /// The first attempt that counts. A person requesting a restart has examined the attempts before it.
    pub(super) fn first_that_counts(&self) -> u32 {
        self.record.asked_restart.as_ref().map_or(0, |asked| asked.attempt)
    }

    /// Whether the agent that was queried last still answers.
    pub(super) fn agent_answers(&self) -> bool {
        self.input.agent.is_some_and(|agent| agent.failing_since.is_none())
    }

    /// Whether the leader reports that all programs run, as on a node where only the kubelet is silent.
    pub(super) fn programs_run(&self) -> bool {
        self.agent_answers() && self.gang.is_some_and(|gang| gang.phase == GangPhase::Running)
    }

    /// Whether the leader has judged how the last attempt ended, and gathers the gang for the next one. What happens to
    /// the pods now is no part of that end.
    pub(super) fn is_between_attempts(&self) -> bool {
        self.gang.is_some_and(|gang| {
            gang.phase == GangPhase::Gathering && gang.ended.iter().any(|end| end.attempt == self.current.attempt)
        })
    }
}

/// Pods of an incarnation, without those that say nothing about its gang.
pub(super) fn pods_of(children: &Children, number: u32) -> Vec<&ObservedPod> {
    // A pod that a queue manager has stopped says nothing about the gang that runs or will run. Creation times don't
    // separate the two. The Job controller creates the pods of a resumed Job first, and only then reports the time at
    // which it was resumed.
    let is_stopped = |pod: &ObservedPod| {
        let job = children.job(pod.role).filter(|job| job.incarnation == number);
        let before = |resumed| pod.deletion.is_some_and(|deletion| deletion <= resumed);
        job.is_some_and(|job| (job.suspended_by_queue && pod.failed()) || job.resumed.is_some_and(before))
    };
    let all = || children.pods.values().map(|pod| &**pod).filter(|pod| pod.incarnation == number);
    // The pod succeeded and vanished while the watch was broken. The Job reports that its place is done.
    let ended_unseen = |pod: &ObservedPod| {
        let job = children.job(pod.role).filter(|job| job.incarnation == number && job.completed.contains(&pod.index));
        let is_last = || !all().any(|other| other.replica_id() == pod.replica_id() && other.created > pod.created);
        job.is_some() && is_last()
    };
    let is_lost = |pod: &ObservedPod| pod.gone && !pod.succeeded();
    all().filter(|pod| !(is_stopped(pod) || is_lost(pod) && ended_unseen(pod))).collect()
}

/// The newest pod of each place, in the order of their places.
fn newest<'p>(pods: &[&'p ObservedPod]) -> Vec<&'p ObservedPod> {
    let mut pods = pods.to_vec();
    pods.sort_by(|a, b| (a.replica_id(), b.created, a.gone, &b.uid).cmp(&(b.replica_id(), a.created, b.gone, &a.uid)));
    pods.dedup_by_key(|pod| pod.replica_id());
    pods
}

/// The place of this worker.
pub(super) fn worker(index: u16) -> ReplicaId {
    ReplicaId { role: RoleName::WORKER, index: index.into() }
}

pub(super) fn seconds(from: Timestamp, to: Timestamp) -> i64 {
    to.duration_since(from).as_secs()
}

/// `1 worker`, `2 workers`, and `3 ps` for another role.
pub(super) fn number_in(role: RoleName, n: u32) -> String {
    if role.is_worker() { number_of(n, "worker") } else { format!("{n} {role}") }
}

/// `1 worker`, `2 workers`.
pub(super) fn number_of(n: u32, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}
