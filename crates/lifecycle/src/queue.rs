//! A gang of several roles in a queue of Kueue's. One Workload is of all its Jobs, which the operator holds back and lets go as
//! Kueue does with a Job of its own: what follows from a Job that is held back is the same whoever does it.

use super::step::Step;
use super::verdict::{Action, News};
use api::State;
use observe::ObservedWorkload;

impl Step<'_> {
    /// The Workload, unless it is about to be gone.
    fn workload(&self) -> Option<&ObservedWorkload> {
        self.input.children.workload.as_ref().filter(|workload| !workload.deleting)
    }

    /// Has the Jobs be as the Workload says; true if it holds the gang back.
    pub(super) fn queue(&mut self) -> bool {
        if self.input.plan.gang.queue.is_none() {
            return false;
        }
        let Some(workload) = self.workload().cloned() else {
            // Before the first list of Workloads one that is not known may well exist, and admit what runs.
            let is_known = !self.input.children.workloads_unlisted;
            if !is_known && self.current_jobs().any(|job| !job.suspend) {
                return false;
            }
            self.verdict.actions.push(Action::EnsureWorkload);
            if is_known {
                self.hold_jobs();
            }
            return true;
        };
        if workload.admitted {
            for job in self.current_jobs().filter(|job| job.suspend && !job.deleting) {
                let (name, uid) = (job.name.clone(), job.uid.clone());
                self.verdict.actions.push(Action::LetJobGo { name, uid, role: job.role });
            }
            return false;
        }
        let held = !self.hold_jobs();
        // What it holds is given back when nothing uses it any more.
        let mut pods = self.input.children.pods.values();
        if workload.evicted && workload.reserved && held && !pods.any(|pod| pod.is_alive() && !pod.gone) {
            self.verdict.actions.push(Action::TellWorkload(News::Left));
        }
        true
    }

    /// Holds back all Jobs that are not; true if there are any.
    fn hold_jobs(&mut self) -> bool {
        let is_over = |job: &observe::ObservedJob| job.complete || job.failed.is_some();
        let jobs: Vec<_> = self.current_jobs().filter(|job| !job.suspend && !job.deleting && !is_over(job)).collect();
        for job in &jobs {
            self.verdict.actions.push(Action::HoldJob { name: job.name.clone(), uid: job.uid.clone() });
        }
        !jobs.is_empty()
    }

    /// Why it waits, in Kueue's words where there are any.
    pub(super) fn words_of_queue(&self) -> String {
        let words = self.workload().map(|workload| workload.words.as_str()).filter(|words| !words.is_empty());
        match (words, self.input.plan.gang.queue.is_some()) {
            (Some(words), true) => format!("the Jobs are suspended until Kueue has room for all of them: {words}"),
            (None, true) => "the Jobs are suspended until Kueue has room for all of them".to_owned(),
            _ => "the Job is suspended, as a queue manager does until there is room for it".to_owned(),
        }
    }

    /// Every program runs.
    pub(super) fn tell_queue_of_start(&mut self) {
        if self.workload().is_some_and(|workload| workload.admitted && !workload.pods_ready) {
            self.verdict.actions.push(Action::TellWorkload(News::Runs));
        }
    }

    /// The job is over.
    pub(super) fn tell_queue_of_end(&mut self) {
        if self.workload().is_some_and(|workload| !workload.finished) {
            let succeeded = self.status.state == Some(State::Completed);
            self.verdict.actions.push(Action::TellWorkload(News::Ended { succeeded }));
        }
    }

    /// The job is suspended: it asks for nothing until it is resumed.
    pub(super) fn leave_queue(&mut self) {
        if let Some(workload) = self.workload() {
            let leave = Action::DeleteWorkload { name: workload.name.clone(), uid: workload.uid.clone() };
            self.verdict.actions.push(leave);
        }
    }
}
