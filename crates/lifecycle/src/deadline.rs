//! How long a job may take.

use super::step::{Step, seconds};
use super::waiting::Why;
use api::Reason;
use observe::ObservedJob;

impl Step<'_> {
    /// For how many seconds the job has been active, and for how many it may be, once it has begun.
    pub(super) fn active_of_deadline(&self) -> Option<(i64, i64)> {
        let deadline = self.input.plan.policy.failure.active_deadline_seconds?;
        let start = self.status.start_time.as_ref()?;
        let until = self.status.suspended_at.as_ref().map_or(self.input.now, |t| t.0);
        Some((seconds(start.0, until) - self.status.suspended_seconds.unwrap_or(0), deadline))
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

    /// Whether this attempt has taken too long to start: the job fails with what it waits for.
    pub(super) fn past_start(&mut self, job: &ObservedJob, why: &Why) -> bool {
        // In pods that had an attempt before, the time of this one begins when it may start.
        let since = job.created.max(job.resumed).max(self.next_from());
        let (Some(deadline), Some(since)) = (self.input.plan.policy.failure.start_deadline_seconds, since) else {
            return false;
        };
        let left = deadline - seconds(since, self.input.now);
        if left > 0 {
            self.requeue(left);
            return false;
        }
        self.delete(job);
        let late = format!(
            "not every worker ran within {} s; failurePolicy.startDeadlineSeconds is {deadline}",
            seconds(since, self.input.now)
        );
        self.fail(why.reason.clone(), &format!("{} ({late})", why.message));
        true
    }
}
