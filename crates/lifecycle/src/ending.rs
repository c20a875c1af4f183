//! How an attempt ends: what is filed of it, since the pods are the only other evidence and they go, and when it is over.

use super::conditions::whole_second;
use super::phase::Phase;
use super::view::View;
use super::{first_cause, waiting};
use api::{AttemptEnd, Reason, TrainingJobStatus};
use failure::restart::{Next, decide, ruled};
use jiff::Timestamp;
use observe::{ObservedJob, ObservedPod};

/// Restarts kept in the status.
const RESTARTS_KEPT: usize = 10;
/// Seconds that the pods of other roles have to end by themselves when a Job has failed: their last words may say more.
const LEFT_ALONE: i64 = 15;

/// What happened to the whole gang from outside, and to no one worker first.
pub(super) fn disruption_of_gang(reason: Reason, message: &str) -> AttemptEnd {
    AttemptEnd { disruption: true, ..AttemptEnd::new(0, reason, message) }
}

/// Files how an attempt ended, unless that is known, or was and is older than what is kept.
pub(super) fn add(restarts: &mut Vec<AttemptEnd>, new: AttemptEnd) {
    if let Err(at) = restarts.binary_search_by_key(&new.attempt, |known| known.attempt) {
        restarts.insert(at, new);
    }
    let surplus = restarts.len().saturating_sub(RESTARTS_KEPT);
    restarts.drain(..surplus);
}

/// Files how an attempt ended in place of what was filed of it.
pub(super) fn file(record: &mut TrainingJobStatus, end: AttemptEnd) {
    match record.restarts.iter_mut().find(|known| known.attempt == end.attempt) {
        Some(known) => *known = end,
        None => add(&mut record.restarts, end),
    }
}

impl<'a> View<'a> {
    /// Brings a node's time between the creation of the pods, which is the API server's, and now: a clock that is behind
    /// would leave no back-off, and one that is ahead would be in the future.
    pub(super) fn by_our_clock(&self, time: Timestamp) -> Timestamp {
        let created = self.all_pods.iter().filter_map(|pod| pod.created).min();
        time.max(created.unwrap_or(time)).min(self.now())
    }

    /// How the present attempt ends if this is the cause; a later look may know better.
    pub(super) fn end_by(&self, cause: &AttemptEnd) -> AttemptEnd {
        let attempt = self.current.attempt;
        let resumed_from = self.record.checkpoint.as_ref().and_then(|checkpoint| checkpoint.resumed_from.clone());
        let cause = AttemptEnd { attempt, resumed_from, ..cause.clone() };
        let cause = ruled(&self.input.plan.policy.failure.restart, cause);
        let time = self.by_our_clock(cause.time.unwrap_or(self.now()));
        let ran_seconds = self.began().map_or(0, |start| super::view::seconds(start, time).max(0));
        let Some(known) = self.kept() else { return AttemptEnd { time: Some(time), ran_seconds, ..cause } };
        // What was filed first stands, unless an earlier failure (or the same one, better known) comes to light, or its pod is
        // still at hand and was judged again among all the others.
        let place = known.place();
        let same = place == cause.place();
        let is_at_hand = |pod: &&ObservedPod| (pod.failed() || pod.disruption.is_some()) && Some(pod.place()) == place;
        let is_earlier = known.disruption || known.time.is_some_and(|known| known <= time);
        let stands = !same && is_earlier && !self.all_pods.iter().copied().any(|pod| is_at_hand(&pod));
        // That pods are deleted follows from what befell them, and from what an agent reported.
        let follows = cause.reason == Reason::PodDeleted && known.reason != Reason::PodDeleted;
        let is_given_up = known.reason == Reason::Unkillable;
        let is_known = known.disruption && !self.is_guess(known);
        if stands || (is_known && (follows || same && (!cause.disruption || is_given_up))) {
            return known.clone();
        }
        AttemptEnd { time: Some(time), ran_seconds: ran_seconds.max(known.ran_seconds), ..cause }
    }

    /// Whether the leader took a pod for evicted that was told to end, and nothing on the pod says so.
    fn is_guess(&self, known: &AttemptEnd) -> bool {
        let mut pods = self.pods.iter().filter(|pod| Some(pod.place()) == known.place());
        let is_only_deleted =
            |pod: &ObservedPod| pod.deletion.is_some() && pod.disruption.is_none() && pod.pod_reason.is_none();
        known.reason == Reason::Evicted && pods.any(|pod| is_only_deleted(pod))
    }

    /// When the present attempt began. Pods may have had attempts before: it began after the last of those.
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

    /// The same view with nothing filed of the present attempt.
    fn without_end(&self) -> View<'a> {
        let mut record = self.record.clone();
        record.restarts.retain(|end| end.attempt != self.current.attempt);
        View::new(self.input, record)
    }

    /// The same view with this filed.
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

    /// What follows from an attempt that is over.
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

    /// Whether a worker has failed, or the Job has.
    fn fails(&self) -> bool {
        // An eviction marks a pod first, and then deletes it.
        let is_marked = |pod: &ObservedPod| pod.disruption.is_some() && pod.deletion.is_none() && self.takes_in();
        let is_moved = |pod: &ObservedPod| pod.disruption.is_some() && !is_marked(pod) && !pod.succeeded();
        let fails = |pod: &ObservedPod| pod.failed() || is_moved(pod);
        let (members, _) = self.members();
        self.failed_job().is_some() || self.replaced() || members.iter().any(|pod| fails(pod))
    }

    /// A worker has failed: the cause is filed at once, for its pod may vanish, and judged when the whole gang has ended.
    pub(super) fn failing(&self) -> Option<Phase<'a>> {
        self.gang_job()?;
        let fails = if self.leaving().is_empty() {
            self.fails()
        } else {
            self.kept().is_some_and(|end| !self.may_restart(end))
        };
        fails.then(|| self.ending())
    }

    fn ending(&self) -> Phase<'a> {
        let pods = self.ending_pods();
        let alive = pods.iter().any(|pod| pod.is_alive());
        // Pods of that Job that seem to live have ended unseen: the watch of their Job was faster.
        let lives = |job: &ObservedJob| pods.iter().any(|pod| pod.is_alive() && pod.role == job.role);
        let lost = || self.failed_jobs().find(|job| !lives(job)).and_then(|job| self.pods_lost(job));
        let of_this_attempt = pods.iter().copied().filter(|pod| !self.is_judged(pod));
        let seen = first_cause(of_this_attempt);
        // The Job controller deletes the pods of a Job that a pod has failed which is not there any more.
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

    /// The pods whose end is that of the attempt. Those that were replaced have been judged.
    fn ending_pods(&self) -> Vec<&'a ObservedPod> {
        if self.takes_in() { self.pods.clone() } else { self.all_pods.clone() }
    }

    /// Another gang may not begin while anything of this one may run; the last one is not waited for that long.
    fn may_be_over(&self, pods: &[&ObservedPod]) -> bool {
        self.failed_job().is_some() || (!pods.is_empty() && pods.iter().all(|pod| pod.gone))
    }

    /// Seconds for which the pods of other roles are left alone when one Job has failed: their agents wait for members that
    /// don't come any more. None if all Jobs have failed.
    fn is_left_in(&self, end: &AttemptEnd) -> Option<i64> {
        let is_part = !self.jobs.iter().all(|job| job.failed.is_some());
        is_part.then(|| LEFT_ALONE - end.time.map_or(0, |time| self.since(time)))
    }

    /// Whether every pod that may still live should have ended, and no node says that it has.
    fn all_are_late(&self, pods: &[&ObservedPod]) -> bool {
        let mut alive = pods.iter().filter(|pod| pod.is_alive());
        alive.all(|pod| waiting::late_at(pod).is_some_and(|at| at <= self.now()))
    }

    /// Seconds until what is left of an attempt that ends is looked at again.
    pub(super) fn ends_in(&self, end: &AttemptEnd, follows: bool) -> Option<i64> {
        let pods = self.ending_pods();
        let alive = pods.iter().any(|pod| pod.is_alive());
        let waits = self.may_be_over(&pods) && alive;
        let late = || late_in(self, &pods).filter(|_| waits && !follows);
        let left = || self.is_left_in(end).filter(|left| waits && *left > 0);
        let next = || late_in(self, &self.all_pods).filter(|_| follows);
        [late(), left(), next()].into_iter().flatten().min()
    }

    /// Whether a pod that is gone went by the end of an attempt that is filed: another one may have taken its place since.
    fn is_judged(&self, pod: &ObservedPod) -> bool {
        let earlier = self.record.restarts.iter().filter(|end| end.attempt < self.current.attempt);
        let before = earlier.filter_map(|end| end.time).max();
        let went = || first_cause([pod]).and_then(|cause| cause.time).or(pod.deletion);
        pod.gone && before.zip(went()).is_some_and(|(before, went)| whole_second(went) <= before)
    }

    /// The Job made a new pod for a worker whose first one vanished without an end, and no gang is there to take it in.
    fn replaced(&self) -> bool {
        self.all_pods
            .iter()
            .filter(|old| old.gone && !old.succeeded() && self.was_wanted(old) && !self.is_judged(old))
            .any(|old| self.all_pods.iter().any(|p| p.place() == old.place() && p.uid != old.uid))
            && !self.takes_in()
    }

    /// This Job failed and no pod of it is left to say why. A pod whose program has failed stays: something outside has taken it, as
    /// an eviction or a lost node does.
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

    /// What keeps these pods from ending, once that has lasted longer than it may.
    pub(super) fn late(&self, pods: &[&ObservedPod]) -> Option<String> {
        waiting::for_end(pods, self.now())
    }
}

/// Seconds until one of these pods should have ended.
pub(super) fn late_in(view: &View<'_>, pods: &[&ObservedPod]) -> Option<i64> {
    let due = pods.iter().filter(|pod| pod.is_alive()).filter_map(|pod| waiting::late_at(pod));
    due.filter(|at| *at > view.now()).min().and_then(|at| view.until(at))
}
