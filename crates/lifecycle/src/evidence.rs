//! What is filed of each attempt that fails: the pods are the only other evidence, and they go.

use super::step::{Step, seconds};
use api::{AttemptEnd, Reason};
use failure::restart::ruled;
use jiff::Timestamp;
use observe::ObservedPod;
use plan::Incarnation;

/// Restarts kept in the status.
const RESTARTS_KEPT: usize = 10;

impl Step<'_> {
    /// What is filed of this attempt, if it fails.
    pub(super) fn kept(&self, of: Incarnation) -> Option<&AttemptEnd> {
        self.status.restarts.iter().find(|r| r.attempt == of.attempt)
    }

    /// Files the cause of the attempt that is failing; a later look may know better.
    pub(super) fn keep(&mut self, of: Incarnation, cause: &AttemptEnd) -> AttemptEnd {
        let resumed_from = self.status.checkpoint.as_ref().and_then(|checkpoint| checkpoint.resumed_from.clone());
        let cause = AttemptEnd { attempt: of.attempt, resumed_from, ..cause.clone() };
        let cause = ruled(&self.input.plan.policy.failure.restart, cause);
        let time = self.by_our_clock(of, cause.time.unwrap_or(self.input.now));
        // Pods may have had attempts before: this one began after the last of those.
        let before = self.status.restarts.iter().filter(|r| r.attempt < of.attempt).filter_map(|r| r.time).max();
        let started = self
            .pods(of)
            .iter()
            .filter_map(|p| p.started())
            .min()
            .map(|start| before.map_or(start, |end| start.max(end)));
        let ended = |p: &&ObservedPod| p.failed() || p.disruption.is_some();
        let judged: Vec<_> = self.all_pods(of).into_iter().filter(ended).map(|p| Some(p.place())).collect();
        let known = self.status.restarts.iter_mut().find(|r| r.attempt == of.attempt);
        let ran_seconds = started.map_or(0, |s| seconds(s, time).max(0));
        if let Some(known) = known {
            // What was filed first stands, unless an earlier failure (or the same one, better told) comes to light, or
            // its pod is still at hand and was judged again among all the others.
            let place = known.place();
            let same = place == cause.place();
            if !same && !judged.contains(&place) && (known.disruption || known.time.is_some_and(|known| known <= time))
            {
                return known.clone();
            }
            // That pods are deleted follows from what befell them, and from what an agent told.
            let follows = cause.reason == Reason::PodDeleted && known.reason != Reason::PodDeleted;
            let is_given_up = known.reason == Reason::Unkillable;
            if known.disruption && (follows || same && (!cause.disruption || is_given_up)) {
                return known.clone();
            }
            let ran_seconds = ran_seconds.max(known.ran_seconds);
            *known = AttemptEnd { time: Some(time), ran_seconds, ..cause };
            return known.clone();
        }
        let new = AttemptEnd { time: Some(time), ran_seconds, ..cause };
        add(&mut self.status.restarts, new.clone());
        new
    }

    /// Brings a node's time between the creation of its pods, which is the API server's, and now: a clock that is behind
    /// would leave no back-off, and one that is ahead would tell of the future.
    pub(super) fn by_our_clock(&self, of: Incarnation, time: Timestamp) -> Timestamp {
        let created = self.all_pods(of).iter().filter_map(|pod| pod.created).min();
        time.max(created.unwrap_or(time)).min(self.input.now)
    }

    /// Files that somebody deleted the Job, unless a worker failed before. Its pods were deleted with it.
    pub(super) fn keep_job_deleted(&mut self, of: Incarnation) -> AttemptEnd {
        let known = self.kept(of).filter(|known| known.reason != Reason::PodDeleted).cloned();
        known.unwrap_or_else(|| {
            self.drop_running_failure(of);
            let message = "its Job was deleted, and not by the operator";
            self.keep(of, &disruption_of_gang(Reason::JobDeleted, message))
        })
    }

    /// A stop that was asked for is no failure.
    pub(super) fn drop_running_failure(&mut self, of: Incarnation) {
        self.status.restarts.retain(|r| r.attempt != of.attempt);
    }
}

/// What befell the whole gang from outside, and no one worker first.
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
