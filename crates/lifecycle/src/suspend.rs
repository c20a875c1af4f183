//! A job that is to stop and to be kept.

use super::step::{Step, seconds};
use super::verdict::Action;
use api::{ConditionType, Reason, State};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

impl Step<'_> {
    /// Ends what runs; once nothing does the job is suspended.
    pub(super) fn suspend(&mut self) {
        self.reset_size();
        let (job, current, incarnation) = (self.jobs().next(), self.current_jobs().next(), self.incarnation());
        if current.is_some() || self.begun(incarnation) {
            // A new number makes this Job an old one: that it goes is settled before it is deleted.
            self.set_incarnation(incarnation.next());
            self.drop_running_failure(incarnation);
        }
        if let Some(job) = current {
            self.delete(job);
        }
        let left = self.left_of_earlier_incarnations();
        if job.is_some() || left.is_some() {
            let late = job.and_then(|_| self.late(incarnation));
            let left = left.filter(|_| job.is_none());
            let stopping = "the workers are stopping, with their grace period";
            let message = late.or(left).unwrap_or_else(|| stopping.into());
            self.set(ConditionType::Suspended, false, Reason::Suspending, &message);
            return;
        }
        if self.status.state != Some(State::Suspended) {
            self.event(false, "Suspended", "no worker runs; checkpoints stay".into());
        }
        self.copy_after_end();
        self.leave_queue();
        // What a job that ran before has is what one that is suspended from the start gets.
        self.verdict.actions.push(Action::Ensure);
        self.status.state = Some(State::Suspended);
        self.set_aside();
        let why = "spec.suspend is true; set it to false to go on";
        self.set(ConditionType::Suspended, true, Reason::Suspended, why);
        self.clear(ConditionType::Scheduled, Reason::Suspended);
        self.clear(ConditionType::Running, Reason::Suspended);
        self.clear(ConditionType::Restarting, Reason::Suspended);
    }

    /// From now on no time of its own goes by for a job that has begun: neither while it is suspended nor in a queue.
    pub(super) fn set_aside(&mut self) {
        if self.status.start_time.is_some() && self.status.suspended_at.is_none() {
            self.status.suspended_at = Some(Time(self.input.now));
        }
    }

    /// From now on its time goes on.
    pub(super) fn take_up_again(&mut self) {
        if let Some(since) = self.status.suspended_at.take() {
            let so_far = self.status.suspended_seconds.unwrap_or(0);
            self.status.suspended_seconds = Some(so_far + seconds(since.0, self.input.now));
        }
    }
}
