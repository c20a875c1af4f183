//! Starts passes when it is their turn, as the [`FairQueue`] decides.

use super::fair_queue::{self, FairQueue, Kind};
use super::{Context, status};
use api::{Guarded, TrainingJob, TrainingJobStatus};
use kube::runtime::reflector::ObjectRef;
use observe::{Cell, JobKey};
use std::time::Instant;

/// A pass that may run. Dropping it wakes the jobs that are next.
pub(super) struct PassPermit<'a> {
    context: &'a Context,
    job: ObjectRef<Guarded>,
}

impl Drop for PassPermit<'_> {
    fn drop(&mut self) {
        let namespace = self.job.namespace.as_deref().unwrap_or_default();
        let mut fair_queue = self.context.fair_queue.lock();
        let called = fair_queue.leave(namespace, &self.job, Instant::now());
        self.context.call(called, &fair_queue);
    }
}

impl Context {
    /// Lets a pass begin. Returns `None` if it is not its turn; the job is woken when its turn has come.
    pub(super) fn permit(&self, object: &Guarded) -> Option<PassPermit<'_>> {
        let job = ObjectRef::from_obj(object);
        let kind = object.0.as_ref().map_or(Kind::Known, |job| self.kind(job));
        let namespace = job.namespace.as_deref().unwrap_or_default();
        let mut fair_queue = self.fair_queue.lock();
        if fair_queue.enter(namespace, &job, kind, Instant::now()) {
            return Some(PassPermit { context: self, job });
        }
        self.metrics.waiting(fair_queue.waiting());
        self.full.notify_one();
        None
    }

    /// Why the job needs a pass. Our own last write may be ahead of the watch. A deletion changes the generation, too, but
    /// never waits.
    fn kind(&self, job: &TrainingJob) -> Kind {
        let is_deleted = job.metadata.deletion_timestamp.is_some();
        let by_status = |status: Option<&TrainingJobStatus>| match status.filter(|status| status.state.is_some()) {
            None => Kind::New,
            Some(status) if !is_deleted && status.observed_generation < job.metadata.generation => Kind::Changed,
            Some(_) => Kind::Known,
        };
        let by_cell = |cell: &Cell| by_status(status::newest(job, &cell.writes).0);
        self.index.read(&JobKey::from_meta(&job.metadata), by_cell).unwrap_or_else(|| by_status(job.status.as_ref()))
    }

    pub(super) fn wake(&self, jobs: impl IntoIterator<Item = ObjectRef<Guarded>>) {
        for job in jobs {
            self.metrics.backlog().changed([job.clone()]);
            // A receiver that is gone has stopped reconciling.
            let _ = self.touch.unbounded_send(job);
        }
    }

    /// Removes a deleted job from its line.
    pub(super) fn forget_turn(&self, object: &Guarded) {
        let job = ObjectRef::from_obj(object);
        let mut fair_queue = self.fair_queue.lock();
        fair_queue.forget(job.namespace.as_deref().unwrap_or_default(), &job);
        self.metrics.waiting(fair_queue.waiting());
    }

    /// Empties the lines. The caller wakes all existing jobs.
    pub(super) fn forget_turns(&self) {
        self.fair_queue.lock().forget_lines();
        self.metrics.waiting(0);
    }

    /// Wakes the jobs whose turn has come.
    fn call(&self, jobs: Vec<ObjectRef<Guarded>>, fair_queue: &FairQueue<ObjectRef<Guarded>>) {
        if !jobs.is_empty() {
            self.metrics.waiting(fair_queue.waiting());
            self.wake(jobs);
        }
    }

    /// Calls the jobs whose turn comes with time.
    pub(super) async fn look_at_turns(&self) {
        loop {
            self.full.notified().await;
            loop {
                tokio::time::sleep(fair_queue::LOOK).await;
                let mut fair_queue = self.fair_queue.lock();
                let called = fair_queue.look(Instant::now());
                self.call(called, &fair_queue);
                if fair_queue.is_idle() {
                    break;
                }
            }
        }
    }
}
