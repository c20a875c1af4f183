//! After the end: nothing but clearing up.

use super::decide::{Action, Step, seconds};
use super::progress;
use crate::api::State;
use crate::observe::JobSeen;
use jiff::SignedDuration;
use jiff::fmt::friendly::{Designator, Spacing, SpanPrinter};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

impl Step<'_> {
    /// Nothing but clearing up happens after the end.
    pub(super) fn finished(&mut self) {
        let unfinished = |job: &&JobSeen| !job.complete && job.failed.is_none();
        let failed = self.status.state == Some(State::Failed);
        if let Some(job) = self.job().filter(unfinished).filter(|_| failed) {
            self.delete(job);
        }
        let (Some(ttl), Some(end)) = (self.input.plan.policy.ttl_seconds, &self.status.completion_time) else {
            return;
        };
        let left = i64::from(ttl) - seconds(end.0, self.input.now);
        if left <= 0 {
            self.verdict.actions.push(Action::DeleteOwner);
        } else {
            self.requeue(left);
        }
    }

    pub(super) fn end(&mut self) {
        let now = self.input.now;
        progress::end(&mut self.status);
        self.status.completion_time = Some(Time(now));
        if let Some(ttl) = self.input.plan.policy.ttl_seconds {
            self.requeue(i64::from(ttl)); // nothing else may wake a job that has ended
        }
        self.status.duration = self.status.start_time.as_ref().map(|start| {
            let took = SignedDuration::from_secs(seconds(start.0, now).max(0));
            SpanPrinter::new().designator(Designator::Compact).spacing(Spacing::None).duration_to_string(&took)
        });
    }
}
