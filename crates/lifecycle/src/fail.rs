//! A gang that fails: the first cause is kept at once, and judged when all of it has ended.

use super::evidence::disruption_of_gang;
use super::step::{Step, seconds};
use super::{first_cause, waiting, whole_second};
use api::{AttemptEnd, ConditionType, Reason, State};
use failure::restart::{self, Next};
use observe::{ObservedJob, ObservedPod};
use plan::Incarnation;

/// Seconds that the pods of other roles have to end by themselves when a Job has failed: their last words may tell more.
const LEFT_ALONE: i64 = 15;

impl Step<'_> {
    /// A worker failed: the cause is kept at once, for its pod may vanish, and judged when the whole gang has ended.
    pub(super) fn failing(&mut self, job: &ObservedJob) {
        let current = self.incarnation();
        // Those that were replaced have been judged.
        let pods = if self.takes_in() { self.pods(current) } else { self.all_pods(current) };
        let alive = pods.iter().any(|pod| pod.is_alive());
        // Of pods that seem to live the watch has not told yet how they ended: their Job's was faster.
        let lost = || self.pods_lost().filter(|_| !alive);
        let of_this_attempt = pods.iter().copied().filter(|pod| !self.is_judged(pod));
        if let Some(cause) = first_cause(of_this_attempt).or_else(lost).filter(|_| !self.is_between_attempts()) {
            self.keep(current, &cause);
        }
        let Some(entry) = self.kept(current).cloned() else { return };
        self.set(ConditionType::Running, false, entry.reason.clone(), &entry.to_string());
        let follows = self.may_restart(&entry);
        // Another gang may not begin while anything of this one may run; for the last one nobody waits that long.
        let all_gone = !pods.is_empty() && pods.iter().all(|pod| pod.gone);
        let has_failed = self.failed_job().is_some();
        let over =
            (has_failed || all_gone) && (!alive || (!follows && self.all_are_late(&pods)) || self.is_left(&entry));
        if !over && !self.replaced() {
            if follows {
                self.status.state = Some(State::Initializing);
                let message = match self.late(current) {
                    Some(late) => format!("{entry}; {late}"),
                    None => entry.to_string(),
                };
                self.set(ConditionType::Restarting, true, entry.reason.clone(), &message);
            }
            return;
        }
        if self.judge(&entry) {
            self.delete(job);
        }
    }

    /// Whether a Job has failed, and those of other roles have long not followed: their agents wait for members that don't come
    /// any more.
    fn is_left(&mut self, entry: &AttemptEnd) -> bool {
        if self.current_jobs().all(|job| job.failed.is_some()) {
            return false;
        }
        let left = LEFT_ALONE - entry.time.map_or(0, |time| seconds(time, self.input.now));
        if left > 0 {
            self.requeue(left);
        }
        left <= 0
    }

    /// Whether a pod that is gone went by the end of an attempt that is filed: another one may have taken its place since.
    fn is_judged(&self, pod: &ObservedPod) -> bool {
        let current = self.incarnation().attempt;
        let before =
            self.status.restarts.iter().filter(|entry| entry.attempt < current).filter_map(|entry| entry.time).max();
        let went = || first_cause([pod]).and_then(|cause| cause.time).or(pod.deletion);
        pod.gone && before.zip(went()).is_some_and(|(before, went)| whole_second(went) <= before)
    }

    /// Whether every pod that may still live should have ended, and nobody says that it has.
    fn all_are_late(&mut self, pods: &[&ObservedPod]) -> bool {
        let now = self.input.now;
        let alive: Vec<_> = pods.iter().filter(|pod| pod.is_alive()).collect();
        if let Some(due) = alive.iter().filter_map(|pod| waiting::late_at(pod)).filter(|at| *at > now).min() {
            self.requeue(seconds(now, due).max(1));
        }
        alive.iter().all(|pod| waiting::late_at(pod).is_some_and(|at| at <= now))
    }

    /// The Job is being deleted by somebody else, and its pods go first.
    pub(super) fn losing_job(&mut self) {
        let current = self.incarnation();
        if !self.begun(current) {
            return;
        }
        let entry = self.keep_job_deleted(current);
        self.set(ConditionType::Running, false, entry.reason.clone(), &entry.to_string());
        if self.may_restart(&entry) {
            self.status.state = Some(State::Initializing);
            self.set(ConditionType::Restarting, true, entry.reason.clone(), &entry.to_string());
        }
    }

    /// It had begun and its Job is gone: what ran under it ends, so its return is another incarnation.
    pub(super) fn job_gone(&mut self) {
        let entry = self.keep_job_deleted(self.incarnation());
        self.set(ConditionType::Running, false, entry.reason.clone(), &entry.to_string());
        if self.judge(&entry) {
            self.start();
        }
    }

    /// An attempt is over: another one follows, or the job has failed.
    pub(super) fn judge(&mut self, entry: &AttemptEnd) -> bool {
        if entry.exit_code.is_some() && self.reason_of(ConditionType::Scheduled) == Some(Reason::Scheduling) {
            // Programs have run, and nobody was there to see it.
            self.set(ConditionType::Scheduled, true, Reason::Scheduled, "every worker has a node");
        }
        let mut history = self.history();
        let next = restart::decide(&self.input.plan.policy.failure.restart, &mut history, entry);
        self.set_history(history);
        match next {
            Next::Restart { .. } | Next::Wait => {
                self.restart(entry);
                true
            }
            Next::Stop { why } => {
                self.fail(entry.reason.clone(), &entry.ends_job(&why));
                false
            }
        }
    }

    fn restart(&mut self, entry: &AttemptEnd) {
        let next = self.incarnation().next();
        self.set_incarnation(next);
        self.status.state = Some(State::Initializing);
        self.set(ConditionType::Restarting, true, entry.reason.clone(), &entry.to_string());
        self.tell_restart(entry, next.attempt);
    }

    #[expect(clippy::needless_pass_by_value, reason = "takes what its callers need no more")]
    pub(super) fn fail(&mut self, reason: Reason, message: &str) {
        self.status.state = Some(State::Failed);
        self.status.failure_reason = Some(reason.clone());
        self.status.failure_message = Some(message.to_owned());
        self.end();
        self.set(ConditionType::Failed, true, reason.clone(), message);
        self.close(ConditionType::Running, Reason::Failed);
        self.close(ConditionType::Restarting, Reason::Failed);
        self.close(ConditionType::ProgressStalled, Reason::Failed);
        self.event(true, "Failed", format!("{reason}: {message}"));
    }

    /// Whether another attempt follows.
    pub(super) fn may_restart(&self, entry: &AttemptEnd) -> bool {
        let policy = &self.input.plan.policy.failure.restart;
        !matches!(restart::decide(policy, &mut self.history(), entry), Next::Stop { .. })
    }

    /// The Job made a new pod for a worker whose first one vanished without an end, and no gang is there to take it in.
    pub(super) fn replaced(&self) -> bool {
        let pods = self.all_pods(self.incarnation());
        pods.iter()
            .filter(|old| old.gone && !old.succeeded() && self.was_wanted(old) && !self.is_judged(old))
            .any(|old| pods.iter().any(|p| p.place() == old.place() && p.uid != old.uid))
            && !self.takes_in()
    }

    /// The Job failed and no pod is left to tell why. A pod whose program has failed stays: something outside has taken it, as
    /// an eviction or a lost node does.
    fn pods_lost(&self) -> Option<AttemptEnd> {
        let (reason, message) = self.failed_job()?.failed.as_ref()?;
        if self.kept(self.incarnation()).is_some() {
            return None;
        }
        let message = format!("its pods were gone before their last words were seen; the Job says {reason}: {message}");
        // Jobs of operators up to 0.2.0 have a pod failure policy, whose only rule is for disruptions.
        let reason = if reason == "PodFailurePolicy" { Reason::Disrupted } else { Reason::PodsLost };
        Some(AttemptEnd { time: Some(self.input.now), ..disruption_of_gang(reason, &message) })
    }

    /// What keeps an incarnation from ending, once that has lasted longer than it may.
    pub(super) fn late(&mut self, of: Incarnation) -> Option<String> {
        let (pods, now) = (self.all_pods(of), self.input.now);
        let alive = pods.iter().filter(|p| p.is_alive());
        let due = alive.filter_map(|pod| waiting::late_at(pod));
        if let Some(next) = due.filter(|at| *at > now).min() {
            self.requeue(seconds(now, next).max(1));
        }
        waiting::for_end(&pods, now)
    }
}
