//! A job that is done, or good enough.

use super::conditions::condition_is;
use super::progress;
use super::step::Step;
use api::{ConditionType, Reason, State};
use plan::Completion;
use protocol::role::Place;

impl Step<'_> {
    pub(super) fn succeed(&mut self) {
        match self.stopping() {
            // They ended by themselves meanwhile.
            Some((reason, message)) => self.complete(&reason, &message),
            None => {
                let roles = self.input.plan.gang.roles.iter();
                let deciding = roles.filter_map(|role| match role.completion {
                    Completion::EveryReplica => Some(format!("every {}", role.name)),
                    Completion::First => Some(format!("{} 0", role.name)),
                    Completion::Ended => None,
                });
                let deciding = deciding.collect::<Vec<_>>().join(" and ");
                self.complete(&Reason::Completed, &format!("{deciding} exited with code 0"));
            }
        }
    }

    pub(super) fn complete(&mut self, reason: &Reason, message: &str) {
        self.status.state = Some(State::Completed);
        self.end();
        // Nobody may have been there to see it.
        self.set(ConditionType::Scheduled, true, Reason::Scheduled, "every worker has a node");
        self.set(ConditionType::Running, false, reason.clone(), "every worker's program has ended");
        self.set(ConditionType::Succeeded, true, reason.clone(), message);
        self.close(ConditionType::Restarting, reason.clone());
        self.close(ConditionType::Stopping, reason.clone());
        self.close(ConditionType::ProgressStalled, reason.clone());
        let took = self.status.duration.clone().unwrap_or_else(|| "unknown time".into());
        self.event(false, "Completed", format!("{message}, after {took}"));
    }

    /// What successPolicy wanted has come: since then the gang is being stopped, whatever happens to it.
    pub(super) fn stopping(&self) -> Option<(Reason, String)> {
        let stopping = condition_is(&self.status.conditions, ConditionType::Stopping, true)?;
        Some((Reason::from(stopping.reason.as_str()), stopping.message.clone()))
    }

    /// The workers end, with their grace period, and the job is completed when the last one has.
    pub(super) fn stop(&mut self) {
        let (job, current) = (self.current_jobs().next(), self.incarnation());
        if let Some(job) = job {
            self.delete(job);
        }
        let late = self.late(current);
        if job.is_some() || self.all_pods(current).iter().any(|pod| pod.is_alive()) {
            let stopping = "the job is good enough: its workers are stopping, with their grace period";
            self.set(ConditionType::Running, true, Reason::Stopping, late.as_deref().unwrap_or(stopping));
            return;
        }
        self.drop_running_failure(current);
        if let Some((reason, message)) = self.stopping() {
            self.complete(&reason, &message);
        }
    }

    /// Every program ended well that decides. The Job says so itself only with its next sync, up to a second later; and of a pod with
    /// side-cars that fail, or never end, it would say something else.
    pub(super) fn all_succeeded(&self) -> bool {
        let done = self.done(&self.pods(self.incarnation()));
        if self.input.plan.gang.elastic.is_some() {
            // Of which size it was only the agents know. They exit 0 when all programs have, and the first worker's last.
            return done.contains(&Place::FIRST_WORKER);
        }
        self.input.plan.gang.deciding().all(|place| done.contains(&place))
    }

    /// Stops the gang once the agents tell of what the success policy wants.
    pub(super) fn judge_success(&mut self) {
        let current = self.incarnation();
        let Some(agent) = self.input.agent.filter(|agent| agent.is_of(current.attempt)) else { return };
        if let Some((reason, message)) = progress::success(&self.input.plan.policy.success, &self.status, agent) {
            self.set(ConditionType::Stopping, true, reason, &message);
            self.event(false, "GoodEnough", format!("the workers are stopped: {message}"));
            self.stop();
        }
    }
}
