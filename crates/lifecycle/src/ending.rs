//! How an attempt ends: what is recorded of it, because its pods are the only other evidence and vanish, and when it is
//! over.

use super::conditions::whole_second;
use super::phase::Phase;
use super::view::View;
use super::{first_cause, waiting};
use api::{AttemptEnd, Reason, TrainingJobStatus};
use failure::POD_DELETED;
use failure::restart::{Next, decide, ruled};
use jiff::Timestamp;
use observe::{Container, ObservedJob, ObservedPod};

/// Restarts kept in the status.
const RESTARTS_KEPT: usize = 10;
/// Seconds that the pods of other roles have to end by themselves after a Job has failed. Their last reports may say
/// more.
const LEFT_ALONE: i64 = 15;

/// A disruption from outside that hit the whole gang and no worker first.
pub(super) fn disruption_of_gang(reason: Reason, message: &str) -> AttemptEnd {
    AttemptEnd { disruption: true, ..AttemptEnd::new(0, reason, message) }
}

/// Records how an attempt ended, unless that is recorded already or is older than the restarts that are kept.
pub(super) fn add(restarts: &mut Vec<AttemptEnd>, new: AttemptEnd) {
    if let Err(at) = restarts.binary_search_by_key(&new.attempt, |known| known.attempt) {
        restarts.insert(at, new);
    }
    let surplus = restarts.len().saturating_sub(RESTARTS_KEPT);
    restarts.drain(..surplus);
}

/// Records how an attempt ended, in place of an earlier record of it.
pub(super) fn file(record: &mut TrainingJobStatus, end: AttemptEnd) {
    match record.restarts.iter_mut().find(|known| known.attempt == end.attempt) {
        Some(known) => *known = end,
        None => add(&mut record.restarts, end),
    }
}

/// Whether the pod was asked to stop, and nothing on it says why.
fn is_only_deleted(pod: &ObservedPod) -> bool {
    pod.deletion.is_some() && pod.disruption.is_none() && pod.pod_reason.is_none()
}

impl<'a> View<'a> {
    /// Limits a node's time to the span from the creation of the pods, by the API server's clock, until now. A clock
    /// that is behind would leave no back-off, and one that is ahead would give a time in the future.
    pub(super) fn by_our_clock(&self, time: Timestamp) -> Timestamp {
        let created = self.all_pods.iter().filter_map(|pod| pod.created).min();
        time.max(created.unwrap_or(time)).min(self.now())
    }

    /// How the present attempt ends if this is the cause. A later reconciliation may know better.
    pub(super) fn end_by(&self, cause: &AttemptEnd) -> AttemptEnd {
        let attempt = self.current.attempt;
        let resumed_from = self.record.checkpoint.as_ref().and_then(|checkpoint| checkpoint.resumed_from.clone());
        let cause = AttemptEnd { attempt, resumed_from, ..cause.clone() };
        let cause = ruled(&self.input.plan.policy.failure.restart, cause);
        let time = self.by_our_clock(cause.time.unwrap_or(self.now()));
        let ran_seconds = self.began().map_or(0, |start| super::view::seconds(start, time).max(0));
        let Some(known) = self.kept() else { return AttemptEnd { time: Some(time), ran_seconds, ..cause } };
        // The recorded end stands, with two exceptions. An earlier failure (or the same one, better known) was found,
        // or its pod still exists and was judged again among all the others.
        let place = known.replica_id();
        let same = place == cause.replica_id();
        let is_earlier = known.disruption || known.time.is_some_and(|known| known <= time);
        let stands = !same && is_earlier && !self.shows(known);
        // The deletion of pods is a consequence of what happened to them before, and of what an agent reported.
        let follows = cause.reason == Reason::PodDeleted && known.reason != Reason::PodDeleted;
        let is_given_up = known.reason == Reason::Unkillable;
        let is_known = known.disruption && !self.is_guess(known);
        if stands || (is_known && (follows || same && (!cause.disruption || is_given_up))) {
            return known.clone();
        }
        AttemptEnd { time: Some(time), ran_seconds: ran_seconds.max(known.ran_seconds), ..cause }
    }

    /// Whether a pod of that worker shows how it ended. A pod that was gone before its end was seen shows no failure of its
    /// program.
    pub(super) fn shows(&self, end: &AttemptEnd) -> bool {
        let is_failure = !end.disruption && end.reason != Reason::PodDeleted;
        let has_ended = |pod: &ObservedPod| pod.ended.is_some() || matches!(pod.training, Container::Terminated { .. });
        let shows = |pod: &ObservedPod| pod.disruption.is_some() || (pod.failed() && (has_ended(pod) || !is_failure));
        self.all_pods.iter().any(|pod| Some(pod.replica_id()) == end.replica_id() && shows(pod))
    }

    /// Whether the leader reported an eviction for a pod that was only asked to stop, by all that the pod itself says.
    fn is_guess(&self, known: &AttemptEnd) -> bool {
        let mut pods = self.pods.iter().filter(|pod| Some(pod.replica_id()) == known.replica_id());
        known.reason == Reason::Evicted && pods.any(|pod| is_only_deleted(pod))
    }

    /// Corrects such a report about pods in whose places there are others by now.
    pub(super) fn without_guesses(&self, mut record: TrainingJobStatus) -> TrainingJobStatus {
        let is_replaced = |pod: &ObservedPod| self.pods.iter().all(|newest| newest.uid != pod.uid);
        for end in record.restarts.iter_mut().filter(|end| end.reason == Reason::Evicted) {
            let is_it = |pod: &ObservedPod| end.pod.as_ref() == Some(&pod.name);
            if self.all_pods.iter().any(|pod| is_it(pod) && is_only_deleted(pod) && is_replaced(pod)) {
                (end.reason, end.message) = (Reason::PodDeleted, POD_DELETED.to_owned());
            }
        }
        record
    }

    /// When the present attempt began. Its pods may have run earlier attempts, so it began after the last of those.
    fn began(&self) -> Option<Timestamp> {
        let earlier = self.record.restarts.iter().filter(|end| end.attempt < self.current.attempt);
        let before = earlier.filter_map(|end| end.time).max();
        let start = self.pods.iter().filter_map(|pod| pod.started()).min()?;
        Some(before.map_or(start, |end| start.max(end)))
    }

    /// The end of an attempt whose Job another client deleted, unless a worker failed before. Its pods were deleted with it.
    pub(super) fn end_by_deleted_job(&self) -> AttemptEnd {
        let known = self.kept().filter(|known| known.reason != Reason::PodDeleted).cloned();
        known.unwrap_or_else(|| {
            let message = "its Job was deleted, and not by the operator";
            self.without_end().end_by(&disruption_of_gang(Reason::JobDeleted, message))
        })
    }

    /// The same view without the recorded end of the present attempt.
    fn without_end(&self) -> View<'a> {
        let mut record = self.record.clone();
        record.restarts.retain(|end| end.attempt != self.current.attempt);
        View::new(self.input, record)
    }

    /// The same view with this end recorded.
    pub(super) fn with_end(&self, end: AttemptEnd) -> View<'a> {
        let mut record = self.record.clone();
        file(&mut record, end);
        View::new(self.input, record)
    }

    /// Whether another attempt follows.
    pub(super) fn may_restart(&self, end: &AttemptEnd) -> bool {
        let policy = &self.input.plan.policy.failure.restart;
        !matches!(decide(policy, &mut self.history(), end), Next::Stop { .. })
    }

    /// What follows an attempt that is over.
    pub(super) fn judged(&self, end: AttemptEnd) -> Phase<'a> {
        let mut history = self.history();
        match decide(&self.input.plan.policy.failure.restart, &mut history, &end) {
            Next::Restart { .. } | Next::Wait => Phase::Restarting { until: None, end, history },
            Next::Stop { why } => {
                let (reason, message) = (end.reason.clone(), end.ends_job(&why));
                Phase::Failed { until: None, reason, message, judged: Some((end, history)) }
            }
        }
    }

    /// Whether a worker or the Job has failed.
    fn fails(&self) -> bool {
        // An eviction marks a pod first, and then deletes it.
        let is_marked = |pod: &ObservedPod| pod.disruption.is_some() && pod.deletion.is_none() && self.can_readmit();
        let is_moved = |pod: &ObservedPod| pod.disruption.is_some() && !is_marked(pod) && !pod.succeeded();
        let fails = |pod: &ObservedPod| pod.failed() || is_moved(pod);
        let (members, _) = self.members();
        self.failed_job().is_some() || self.replaced() || members.iter().any(|pod| fails(pod))
    }

    /// A worker has failed. The operator records the cause at once, because the pod may vanish, and judges it when the
    /// whole gang has ended.
    pub(super) fn failing(&self) -> Option<Phase<'a>> {
        self.gang_job()?;
        let fails = if self.leaving_pods().is_empty() {
            self.fails()
        } else {
            self.kept().is_some_and(|end| !self.may_restart(end))
        };
        fails.then(|| self.ending())
    }

    fn ending(&self) -> Phase<'a> {
        let pods = self.ending_pods();
        let alive = pods.iter().any(|pod| pod.is_alive());
        // Pods of that Job that seem alive have ended unseen, because the watch of Jobs was faster.
        let lives = |job: &ObservedJob| pods.iter().any(|pod| pod.is_alive() && pod.role == job.role);
        let lost = || self.failed_jobs().find(|job| !lives(job)).and_then(|job| self.pods_lost(job));
        let of_this_attempt = pods.iter().copied().filter(|pod| !self.is_judged(pod));
        let seen = first_cause(of_this_attempt);
        // The pod that failed the Job no longer exists, and the Job controller deletes the other pods of the Job.
        let follows = seen.as_ref().is_some_and(|seen| seen.reason == Reason::PodDeleted);
        let unseen = self.failed_jobs().next().filter(|_| follows && !self.missing(&self.pods).is_empty());
        let unseen = unseen.and_then(|job| self.pods_lost(job));
        let cause = unseen.or(seen).or_else(lost).filter(|_| !self.is_between_attempts());
        let end = cause.map(|cause| self.end_by(&cause)).or_else(|| self.kept().cloned());
        let Some(end) = end else { return Phase::Ending { end: None, follows: false } };
        let follows = self.may_restart(&end);
        let is_over = self.may_be_over(&pods)
            && (!alive
                || (!follows && self.all_are_late(&pods))
                || self.is_left_in(&end).is_some_and(|left| left <= 0));
        if is_over || self.replaced() { self.judged(end) } else { Phase::Ending { end: Some(end), follows } }
    }

    /// The pods whose end is that of the attempt. Replaced pods have been judged.
    fn ending_pods(&self) -> Vec<&'a ObservedPod> {
        if self.can_readmit() { self.pods.clone() } else { self.all_pods.clone() }
    }

    /// Another gang must not begin while anything of this one may run. The wait for the last gang is shorter.
    fn may_be_over(&self, pods: &[&ObservedPod]) -> bool {
        self.failed_job().is_some() || (!pods.is_empty() && pods.iter().all(|pod| pod.gone))
    }

    /// Seconds for which the pods of other roles are left alone after one Job has failed. Their agents wait for members
    /// that no longer come. `None` if all Jobs have failed.
    fn is_left_in(&self, end: &AttemptEnd) -> Option<i64> {
        let is_part = !self.jobs.iter().all(|job| job.failed.is_some());
        is_part.then(|| LEFT_ALONE - end.time.map_or(0, |time| self.since(time)))
    }

    /// Whether every pod that may still be alive should have ended, and no node has confirmed its end.
    fn all_are_late(&self, pods: &[&ObservedPod]) -> bool {
        let mut alive = pods.iter().filter(|pod| pod.is_alive());
        alive.all(|pod| waiting::late_at(pod).is_some_and(|at| at <= self.now()))
    }

    /// Seconds until the rest of an ending attempt is checked again.
    pub(super) fn ends_in(&self, end: &AttemptEnd, follows: bool) -> Option<i64> {
        let pods = self.ending_pods();
        let alive = pods.iter().any(|pod| pod.is_alive());
        let waits = self.may_be_over(&pods) && alive;
        let late = || late_in(self, &pods).filter(|_| waits && !follows);
        let left = || self.is_left_in(end).filter(|left| waits && *left > 0);
        let next = || late_in(self, &self.all_pods).filter(|_| follows);
        [late(), left(), next()].into_iter().flatten().min()
    }

    /// Whether a pod that is gone belongs to a recorded end of an earlier attempt. Another pod may have taken its place
    /// since.
    fn is_judged(&self, pod: &ObservedPod) -> bool {
        let earlier = self.record.restarts.iter().filter(|end| end.attempt < self.current.attempt);
        let before = earlier.filter_map(|end| end.time).max();
        let went = || first_cause([pod]).and_then(|cause| cause.time).or(pod.deletion);
        pod.gone && before.zip(went()).is_some_and(|(before, went)| whole_second(went) <= before)
    }

    /// The Job made a new pod for a worker whose first pod vanished without an end, and no gang exists to take it in.
    fn replaced(&self) -> bool {
        self.all_pods
            .iter()
            .filter(|old| old.gone && !old.succeeded() && self.was_wanted(old) && !self.is_judged(old))
            .any(|old| self.all_pods.iter().any(|p| p.replica_id() == old.replica_id() && p.uid != old.uid))
            && !self.can_readmit()
    }

    /// This Job failed and no pod of it is left to say why. A pod whose program failed would still exist. So something
    /// outside took the pods, such as an eviction or a lost node.
    fn pods_lost(&self, job: &ObservedJob) -> Option<AttemptEnd> {
        let (reason, message) = job.failed.as_ref()?;
        if self.kept().is_some() {
            return None;
        }
        let message = format!("its pods were gone before their last words were seen; the Job says {reason}: {message}");
        // Jobs of operators up to 0.2.0 have a pod failure policy, whose only rule is for disruptions.
        let reason = if reason == "PodFailurePolicy" { Reason::Disrupted } else { Reason::PodsLost };
        Some(AttemptEnd { time: Some(self.now()), ..disruption_of_gang(reason, &message) })
    }

    /// What keeps these pods from ending, once they are late.
    pub(super) fn overdue_message(&self, pods: &[&ObservedPod]) -> Option<String> {
        waiting::for_end(pods, self.now())
    }
}

/// Seconds until one of these pods should have ended.
pub(super) fn late_in(view: &View<'_>, pods: &[&ObservedPod]) -> Option<i64> {
    let due = pods.iter().filter(|pod| pod.is_alive()).filter_map(|pod| waiting::late_at(pod));
    due.filter(|at| *at > view.now()).min().and_then(|at| view.until(at))
}
