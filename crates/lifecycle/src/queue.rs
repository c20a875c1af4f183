//! A gang of several roles in a queue of Kueue. One Workload covers all its Jobs. The operator suspends and resumes
//! them as Kueue does with a single Job, and a suspended Job has the same consequences in both cases.

use super::decision::{Action, GangState};
use super::effects::Effects;
use super::view::View;
use api::State;
use observe::{ObservedJob, ObservedWorkload};

impl<'a> View<'a> {
    /// The Workload, unless it is being deleted.
    fn workload(&self) -> Option<&'a ObservedWorkload> {
        self.input.children.workload.as_ref().filter(|workload| !workload.deleting)
    }

    /// A Job that a queue holds.
    pub(super) fn held(&self) -> Option<&'a ObservedJob> {
        let by_queue = || self.jobs.iter().copied().find(|job| job.suspended_by_queue);
        by_queue().or_else(|| self.gang_job().filter(|_| self.waits_in_queue()))
    }

    /// Whether the Workload of all Jobs is not admitted or does not exist yet.
    fn waits_in_queue(&self) -> bool {
        let in_queue = self.input.plan.gang.queue.is_some();
        in_queue && self.workload().map_or_else(|| !self.may_be_admitted(), |workload| !workload.admitted)
    }

    /// Before the first list of Workloads, an unknown Workload may exist and have admitted the Jobs that run.
    fn may_be_admitted(&self) -> bool {
        self.input.children.workloads_unlisted && self.jobs.iter().any(|job| !job.suspend)
    }

    /// Suspends and resumes the Jobs according to the Workload.
    pub(super) fn follow_queue(&self) -> Effects {
        let hold =
            || self.running_jobs().map(|job| Action::SuspendJob { name: job.name.clone(), uid: job.uid.clone() });
        match self.workload() {
            _ if self.input.plan.gang.queue.is_none() => Effects::default(),
            None if self.may_be_admitted() => Effects::default(),
            None if self.input.children.workloads_unlisted => Effects::from_actions([Action::EnsureWorkload]),
            None => Effects::from_actions([Action::EnsureWorkload].into_iter().chain(hold())),
            Some(workload) if workload.admitted => {
                let held = self.jobs.iter().filter(|job| job.suspend && !job.deleting);
                let name = |job: &ObservedJob| (job.name.clone(), job.uid.clone(), job.role);
                Effects::from_actions(held.map(|job| name(job)).map(|(name, uid, role)| Action::UnsuspendJob {
                    name,
                    uid,
                    role,
                }))
            }
            Some(workload) => {
                // The reserved quota is given back when no pod uses it any more.
                let mut pods = self.input.children.pods.values();
                let is_used = self.running_jobs().next().is_some() || pods.any(|pod| pod.is_alive() && !pod.gone);
                let gives_back = workload.evicted && workload.reserved && !is_used;
                Effects::from_actions(hold().chain(gives_back.then_some(Action::UpdateWorkload(GangState::Left))))
            }
        }
    }

    /// The Jobs that are neither held nor over.
    fn running_jobs(&self) -> impl Iterator<Item = &'a ObservedJob> {
        let is_over = |job: &ObservedJob| job.complete || job.failed.is_some();
        self.jobs.iter().copied().filter(move |job| !job.suspend && !job.deleting && !is_over(job))
    }

    /// Why the job waits, in Kueue's words if there are any.
    pub(super) fn words_of_queue(&self) -> String {
        let words = self.workload().map(|workload| workload.words.as_str()).filter(|words| !words.is_empty());
        match (words, self.input.plan.gang.queue.is_some()) {
            (Some(words), true) => format!("the Jobs are suspended until Kueue has room for all of them: {words}"),
            (None, true) => "the Jobs are suspended until Kueue has room for all of them".to_owned(),
            _ => "the Job is suspended, as a queue manager does until there is room for it".to_owned(),
        }
    }

    /// The report to Kueue when every program runs.
    pub(super) fn news_of_start(&self) -> Option<Action> {
        let is_news = self.workload().is_some_and(|workload| workload.admitted && !workload.pods_ready);
        is_news.then_some(Action::UpdateWorkload(GangState::Runs))
    }

    /// The report to Kueue when the job is over.
    pub(super) fn news_of_end(&self) -> Option<Action> {
        let succeeded = self.record.state != Some(State::Failed);
        let is_news = self.workload().is_some_and(|workload| !workload.finished);
        is_news.then_some(Action::UpdateWorkload(GangState::Ended { succeeded }))
    }

    /// A suspended job requests no resources until it is resumed.
    pub(super) fn leaves_queue(&self) -> Option<Action> {
        let workload = self.workload()?;
        Some(Action::DeleteWorkload { name: workload.name.clone(), uid: workload.uid.clone() })
    }
}
