//! Another attempt that somebody asks for, by an annotation: of a job that runs, or of one that has failed.

use super::evidence;
use super::stage::Stage;
use super::step::Step;
use api::{AskedRestart, AttemptEnd, ConditionType, Reason, State};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use protocol::attempt::RestartHistory;

impl Step<'_> {
    /// A restart that was asked for, and that nobody has heeded yet.
    fn asked(&self) -> Option<String> {
        let asked = self.input.plan.policy.restart_requested.as_ref()?;
        let heeded = self.status.asked_restart.as_ref().map(|heeded| &heeded.request);
        (heeded != Some(asked)).then(|| asked.clone())
    }

    /// The first attempt that counts: whoever asks for a restart has looked at what was before.
    pub(super) fn first_that_counts(&self) -> u32 {
        self.status.asked_restart.as_ref().map_or(0, |asked| asked.attempt)
    }

    /// From now on it is not asked for any more; `attempt` is the first one that follows from it.
    fn heed(&mut self, request: String, attempt: u32) {
        self.status.asked_restart = Some(AskedRestart { request, time: Time(self.input.now), attempt });
    }

    /// Of a job that has not ended. The agent of worker 0 finds the request in the ConfigMap, and the gang starts again in its
    /// pods; whatever else comes next is another attempt anyway.
    pub(super) fn heed_asked(&mut self, stage: &Stage<'_>) {
        let Some(request) = self.asked() else { return };
        let current = self.incarnation();
        match stage {
            // Whether another attempt follows is not yet decided.
            Stage::JobGone => {}
            Stage::Running(job) if job.deleting || job.failed.is_some() => {}
            Stage::Running(_) if self.pods(current).iter().any(|pod| pod.runs()) => {
                let note = format!(
                    "attempt {} ends and another one begins in the same pods, as was asked for, once the workers know of it",
                    current.attempt
                );
                self.event(false, "RestartRequested", note);
                self.heed(request, current.attempt.saturating_add(1));
            }
            _ => self.heed(request, current.attempt),
        }
    }

    /// Of a job that has ended. True if it has begun again.
    pub(super) fn start_again(&mut self) -> bool {
        let Some(request) = self.asked() else { return false };
        if self.status.state != Some(State::Failed) {
            let note = "a restart was asked for, and the job is done: create it again under another name to repeat it";
            self.event(true, "RestartIgnored", note.to_owned());
            self.heed(request, self.incarnation().attempt);
            return false;
        }
        self.file_failure();
        let next = self.incarnation().next();
        self.set_incarnation(next);
        self.heed(request, next.attempt);
        // Its time between the two was nobody's.
        let ended = self.status.completion_time.take();
        self.status.suspended_at = self.status.start_time.as_ref().and(ended);
        self.status.duration = None;
        self.status.goodput = None;
        self.status.failure_reason = None;
        self.status.failure_message = None;
        let RestartHistory { step, .. } = self.history();
        self.set_history(RestartHistory { judged: next.attempt.saturating_sub(1), step, ..RestartHistory::default() });
        self.status.state = Some(State::Pending);
        self.set(ConditionType::Failed, false, Reason::Restarted, "a restart was asked for");
        self.close(ConditionType::Scheduled, Reason::Restarted);
        self.close(ConditionType::Suspended, Reason::Restarted);
        if let Some(upkeep) = &self.input.children.upkeep {
            self.delete_job(&upkeep.name, &upkeep.uid, upkeep.deleting);
        }
        let note = format!("attempt {} starts, as was asked for, with a new budget", next.attempt);
        self.event(false, "RestartRequested", note);
        true
    }

    /// Why the job had failed stays to be read, also where no attempt of it did.
    fn file_failure(&mut self) {
        let attempt = self.incarnation().attempt;
        let Some(reason) = self.status.failure_reason.clone() else { return };
        let message = self.status.failure_message.clone().unwrap_or_default();
        let time = self.status.completion_time.as_ref().map_or(self.input.now, |end| end.0);
        let end = AttemptEnd { time: Some(time), ..AttemptEnd::new(attempt, reason, message) };
        evidence::add(&mut self.status.restarts, end);
    }
}
