//! What is filed of each attempt that fails: the pods are the only other evidence, and they go.

use super::Cause;
use super::step::{Step, seconds};
use api::{Reason, Restart};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use observe::ObservedPod;
use plan::Incarnation;
use protocol::role::{Place, RoleName};

/// Restarts kept in the status.
const RESTARTS_KEPT: usize = 10;

impl Step<'_> {
    /// What is filed of this attempt, if it fails.
    pub(super) fn kept(&self, of: Incarnation) -> Option<&Restart> {
        self.status.restarts.iter().find(|r| r.attempt == of.attempt)
    }

    /// Files the cause of the attempt that is failing; a later look may know better.
    pub(super) fn keep(&mut self, of: Incarnation, cause: &Cause) -> Restart {
        let cause = &cause.clone().ruled(&self.input.plan.policy.failure.rules);
        let time = self.by_our_clock(of, cause.time.unwrap_or(self.input.now));
        // Pods may have had attempts before: this one began after the last of those.
        let before = self.status.restarts.iter().filter(|r| r.attempt < of.attempt).map(|r| r.time.0).max();
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
            let place = place(known);
            let same = place == cause.place();
            if !same && !judged.contains(&place) && (known.disruption || known.time.0 <= time) {
                return known.clone();
            }
            if same && known.disruption && !cause.disruption {
                return known.clone();
            }
            let ran_seconds = ran_seconds.max(known.ran_seconds);
            *known = entry(of.attempt, cause, time, ran_seconds);
            return known.clone();
        }
        let new = entry(of.attempt, cause, time, ran_seconds);
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
    pub(super) fn keep_job_deleted(&mut self, of: Incarnation) -> Restart {
        let known = self.kept(of).filter(|known| known.reason != Reason::PodDeleted).cloned();
        known.unwrap_or_else(|| {
            self.drop_running_failure(of);
            let message = "its Job was deleted, and not by the operator";
            self.keep(of, &cause_of_gang(Reason::JobDeleted, message.to_owned(), true, None))
        })
    }

    /// A stop that was asked for is no failure.
    pub(super) fn drop_running_failure(&mut self, of: Incarnation) {
        self.status.restarts.retain(|r| r.attempt != of.attempt);
    }
}

/// The place in the gang that is filed as the one that failed first.
#[must_use]
pub fn place(entry: &Restart) -> Option<Place> {
    let role = entry.role.as_deref().map_or(Some(RoleName::WORKER), RoleName::parse)?;
    entry.worker.map(|index| Place { role, index })
}

/// What befell the whole gang, and no one worker first.
pub(super) fn cause_of_gang(reason: Reason, message: String, disruption: bool, time: Option<Timestamp>) -> Cause {
    Cause {
        reason,
        message,
        role: RoleName::WORKER,
        worker: None,
        pod: None,
        node: None,
        rank: None,
        exit_code: None,
        disruption,
        permanent: false,
        rule: None,
        time,
    }
}

/// Files how an attempt ended, unless that is known, or was and is older than what is kept.
pub(super) fn add(restarts: &mut Vec<Restart>, new: Restart) {
    if let Err(at) = restarts.binary_search_by_key(&new.attempt, |known| known.attempt) {
        restarts.insert(at, new);
    }
    let surplus = restarts.len().saturating_sub(RESTARTS_KEPT);
    restarts.drain(..surplus);
}

pub(super) fn entry(attempt: i32, cause: &Cause, time: Timestamp, ran_seconds: i64) -> Restart {
    Restart {
        attempt,
        time: Time(time),
        reason: cause.reason.clone(),
        message: cause.message.clone(),
        role: Some(cause.role).filter(|role| !role.is_worker()).map(|role| role.to_string()),
        worker: cause.worker,
        pod: cause.pod.clone(),
        node: cause.node.clone(),
        rank: cause.rank.and_then(|rank| i32::try_from(rank).ok()),
        exit_code: cause.exit_code,
        disruption: cause.disruption,
        permanent: cause.permanent,
        rule: cause.rule.and_then(|rule| i32::try_from(rule).ok()),
        ran_seconds,
    }
}
