//! After the end: nothing but clearing up.

use super::progress;
use super::step::{Step, seconds};
use super::verdict::Action;
use api::State;
use jiff::SignedDuration;
use jiff::fmt::friendly::{Designator, Spacing, SpanPrinter};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use observe::ObservedJob;

/// Seconds that containers beside the programs have to end once all programs have ended well.
const SIDE_CARS: i64 = 30;

impl Step<'_> {
    /// Nothing but clearing up happens after the end.
    pub(super) fn finished(&mut self) {
        self.tell_queue_of_end();
        let unfinished = |job: &&ObservedJob| !job.complete && job.failed.is_none();
        for job in self.jobs().filter(unfinished) {
            match self.status.state {
                Some(State::Failed) => self.end_job(job),
                _ => {
                    self.complete_without(job);
                    self.end_side_cars(job);
                }
            }
        }
        let is_copying = self.copy_after_end();
        let (Some(ttl), Some(end)) = (self.input.plan.policy.ttl_seconds, &self.status.completion_time) else {
            return;
        };
        let left = i64::from(ttl) - seconds(end.0, self.input.now);
        if left <= 0 && is_copying {
            // Its ConfigMap and its claim may go with it.
            self.requeue(60);
        } else if left <= 0 && self.is_uncopied() {
            self.tell_uncopied();
            self.requeue(60);
        } else if left <= 0 {
            self.verdict.actions.push(Action::DeleteOwner);
        } else {
            self.requeue(left);
        }
    }

    /// The programs are done. What else is in their pods has a moment to end by itself, since with the pods their logs go;
    /// then it must not hold GPUs any longer.
    fn end_side_cars(&mut self, job: &ObservedJob) {
        let since = self.status.completion_time.as_ref().map_or(self.input.now, |end| end.0);
        let left = SIDE_CARS - seconds(since, self.input.now);
        let lives = self.pods(self.incarnation()).iter().any(|pod| pod.role == job.role && pod.is_alive());
        if lives && left <= 0 {
            self.end_job(job);
        } else if left > 0 {
            self.requeue(left);
        }
    }

    pub(super) fn end(&mut self) {
        let now = self.input.now;
        progress::end(&mut self.status);
        if let Some(elastic) = &mut self.status.elastic {
            elastic.since = None; // nobody waits for room any more
        }
        self.status.completion_time = Some(Time(now));
        // Nothing else may wake a job that has ended.
        if let Some(ttl) = self.input.plan.policy.ttl_seconds {
            self.requeue(i64::from(ttl));
        }
        if self.jobs().any(|job| !job.complete && !job.deleting) {
            self.requeue(SIDE_CARS);
        }
        self.status.duration = self.status.start_time.as_ref().map(|start| {
            let took = SignedDuration::from_secs(seconds(start.0, now).max(0));
            SpanPrinter::new().designator(Designator::Compact).spacing(Spacing::None).duration_to_string(&took)
        });
    }
}
