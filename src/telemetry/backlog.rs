//! TrainingJobs that the operator has yet to reconcile, because something of them changed or because they are due.

use api::Guarded;
use kube::runtime::reflector::ObjectRef;
use parking_lot::Mutex;
use prometheus::IntGauge;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

type Job = ObjectRef<Guarded>;

/// Pending work. A reconcile takes its job from here when it begins, and reports at its end when it is due again.
pub(crate) struct Backlog {
    left: Mutex<PendingJobs>,
    pending: IntGauge,
}

#[derive(Default)]
struct PendingJobs {
    changed: HashSet<Job>,
    due: HashMap<Job, Instant>,
}

impl Backlog {
    pub(super) fn new(pending: IntGauge) -> Self {
        Self { left: Mutex::default(), pending }
    }

    /// Something of these jobs changed.
    pub fn changed(&self, jobs: impl IntoIterator<Item = Job>) {
        self.change(|left| left.changed.extend(jobs));
    }

    /// A reconcile of the job begins: it sees all that changed before.
    pub fn taken(&self, job: &Job) {
        self.change(|left| {
            left.changed.remove(job);
            left.due.remove(job);
        });
    }

    /// The job is reconciled again after that time, if nothing changes before.
    pub fn due(&self, job: Job, wait: Duration) {
        self.left.lock().due.insert(job, Instant::now() + wait);
    }

    /// Only these jobs exist.
    pub fn retain(&self, exists: impl Fn(&Job) -> bool) {
        self.change(|left| {
            left.changed.retain(&exists);
            left.due.retain(|job, _| exists(job));
        });
    }

    /// Whether no job has changed, and none is due within that time.
    pub(super) fn is_empty(&self, within: Duration) -> bool {
        let (left, end) = (self.left.lock(), Instant::now() + within);
        left.changed.is_empty() && left.due.values().all(|at| *at > end)
    }

    pub(super) fn clear(&self) {
        self.retain(|_| false);
    }

    fn change(&self, change: impl FnOnce(&mut PendingJobs)) {
        let mut left = self.left.lock();
        change(&mut left);
        self.pending.set(i64::try_from(left.changed.len()).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_is_in_backlog_until_reconcile_starts_and_again_when_due() {
        let pending = IntGauge::new("pending", "p").unwrap();
        let backlog = Backlog::new(pending.clone());
        let [one, other] = ["one", "other"].map(|name| Job::new(name).within("ns"));
        let soon = Duration::from_secs(60);
        assert!(backlog.is_empty(soon));
        backlog.changed([one.clone(), one.clone(), other.clone()]);
        assert_eq!((pending.get(), backlog.is_empty(Duration::ZERO)), (2, false));
        backlog.taken(&one);
        backlog.due(one.clone(), soon / 2);
        backlog.taken(&other);
        assert_eq!(pending.get(), 0);
        assert!(backlog.is_empty(Duration::ZERO) && !backlog.is_empty(soon));
        backlog.taken(&one);
        assert!(backlog.is_empty(soon), "a reconcile that has begun waits no more");
    }

    #[test]
    fn deleted_job_leaves_the_backlog() {
        let pending = IntGauge::new("pending", "p").unwrap();
        let backlog = Backlog::new(pending.clone());
        let [gone, stays] = ["gone", "stays"].map(|name| Job::new(name).within("ns"));
        backlog.changed([gone.clone(), stays.clone()]);
        backlog.due(gone.clone(), Duration::ZERO);
        backlog.retain(|job| *job != gone);
        assert_eq!(pending.get(), 1);
        backlog.taken(&stays);
        assert!(backlog.is_empty(Duration::ZERO));
    }
}
