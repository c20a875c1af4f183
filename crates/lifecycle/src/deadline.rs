//! How long a job may take.

use super::conditions::condition_is;
use super::step::{Step, seconds};
use super::waiting::Why;
use api::{ConditionType, Reason};
use jiff::Timestamp;
use observe::ObservedJob;

impl Step<'_> {
    /// For how many seconds the job has been active, and for how many it may be, once it has begun.
    pub(super) fn active_of_deadline(&self) -> Option<(i64, i64)> {
        let deadline = self.input.plan.policy.failure.active_deadline_seconds?;
        let start = self.status.start_time.as_ref()?;
        let until = self.status.suspended_at.as_ref().map_or(self.input.now, |t| t.0);
        Some((seconds(start.0, until) - self.status.suspended_seconds.unwrap_or(0), deadline.into()))
    }

    /// Looks again when the deadline will have come.
    pub(super) fn wake_at_deadline(&mut self) {
        if let Some((active, deadline)) = self.active_of_deadline() {
            self.requeue(deadline - active);
        }
    }

    pub(super) fn past_deadline(&mut self, active: i64, deadline: i64) {
        for job in self.jobs() {
            self.delete(job);
        }
        let message = format!("ran for {active} s; failurePolicy.activeDeadlineSeconds is {deadline}");
        self.fail(Reason::DeadlineExceeded, &message);
    }

    /// Whether this attempt has taken too long to start since its Job was made: the job fails with what it waits for.
    pub(super) fn past_start(&mut self, job: &ObservedJob, why: &Why) -> bool {
        // In pods that had an attempt before, the time of this one begins when it may start.
        self.fails_to_start(job.created.max(job.resumed).max(self.next_from()), why)
    }

    /// Whether this attempt has waited too long for its Job to be made: the job fails with the reason.
    pub(super) fn past_start_without_job(&mut self) -> bool {
        let Some(scheduled) = condition_is(&self.status.conditions, ConditionType::Scheduled, false) else {
            return false;
        };
        let why = Why { reason: Reason::from(scheduled.reason.as_str()), message: scheduled.message.clone() };
        self.fails_to_start(Some(scheduled.last_transition_time.0).max(self.next_from()), &why)
    }

    fn fails_to_start(&mut self, since: Option<Timestamp>, why: &Why) -> bool {
        let (Some(deadline), Some(since)) = (self.input.plan.policy.failure.start_deadline_seconds, since) else {
            return false;
        };
        let left = i64::from(deadline) - seconds(since, self.input.now);
        if left > 0 {
            self.requeue(left);
            return false;
        }
        self.verdict.actions.retain(|action| !action.makes());
        for job in self.jobs() {
            self.delete(job);
        }
        let late = format!(
            "not every worker ran within {} s; failurePolicy.startDeadlineSeconds is {deadline}",
            seconds(since, self.input.now)
        );
        self.fail(why.reason.clone(), &format!("{} ({late})", why.message));
        true
    }
}
