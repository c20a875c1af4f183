//! One step of the life of a job: what is seen becomes a status, and what is to be done about it.

use super::stage::{Stage, stage};
use super::step::{Step, begun, incarnation};
use super::verdict::{Input, Verdict};
use api::{ConditionType, Reason, State, TrainingJobStatus};
use observe::Children;
use plan::{Plan, Role, TensorBoard};

/// Decides what a job is and what is to be done about it.
#[must_use]
pub fn decide(input: &Input<'_>) -> Verdict {
    let mut step = Step { input, status: input.status.clone(), verdict: Verdict::default() };
    step.run();
    step.count_time();
    let Step { status, mut verdict, .. } = step;
    verdict.status = status;
    verdict
}

/// Whether an incarnation has begun of which a Job is not known, or only that of an earlier one: either it was deleted, or
/// the watch of Jobs is behind.
#[must_use]
pub fn misses_job(plan: &Plan, status: &TrainingJobStatus, children: &Children) -> bool {
    let current = incarnation(status);
    let misses = |role: &Role| children.job(role.name).is_none_or(|job| job.incarnation < current.number);
    plan.gang.roles.iter().any(misses)
        && !status.state.is_some_and(State::is_finished)
        && begun(status, children, current)
}

impl Step<'_> {
    fn run(&mut self) {
        self.status.observed_generation = self.input.generation;
        // A job of an older operator names none. Any agent can tell of its checkpoints.
        self.status.agent_image.get_or_insert_with(|| self.input.plan.runtime.agent_image.clone());
        if self.status.state.is_some_and(State::is_finished) && !self.start_again() {
            return self.finished();
        }
        self.note_numbers();
        let stage = stage(self);
        self.heed_asked(&stage);
        if let Stage::Refused(reason) = stage {
            self.set(ConditionType::Accepted, false, Reason::InvalidSpec, &reason);
            self.fail(Reason::InvalidSpec, &reason);
            return self.count();
        }
        match self.input.refused {
            None => self.set(ConditionType::Accepted, true, Reason::Valid, "the spec can run"),
            Some(why) => {
                let why = format!("{why}; what runs goes on, and the next attempt starts when the spec is corrected");
                self.set(ConditionType::Accepted, false, Reason::InvalidSpec, &why);
            }
        }
        if self.input.refused.is_none() && self.input.plan.monitoring.tensorboard == Some(TensorBoard::NoStorage) {
            self.set(ConditionType::TensorBoard, false, Reason::NoStorage, TensorBoard::REMEDY);
        }
        let number = self.incarnation().number;
        for old in self.jobs().filter(|job| job.incarnation < number) {
            self.delete(old);
        }
        self.give_up_lost();
        self.give_up_unkillable();
        if matches!(stage, Stage::Running(_) | Stage::JobGone | Stage::Starting) {
            self.wake_at_deadline();
        }
        match stage {
            Stage::Refused(_) => {}
            Stage::Succeeded => self.succeed(),
            Stage::GoodEnough => self.stop(),
            Stage::Suspending => self.suspend(),
            Stage::PastDeadline { active, deadline } => self.past_deadline(active, deadline),
            Stage::Running(job) => self.running(job),
            Stage::JobGone => self.job_gone(),
            Stage::Starting => self.start(),
            Stage::Waiting(why) => self.wait_for_spec(&why),
        }
        self.count();
    }

    /// The next attempt waits for a spec that can run. A job that was suspended stays so.
    fn wait_for_spec(&mut self, why: &str) {
        if self.status.state != Some(State::Suspended) {
            self.status.state = Some(State::Pending);
        }
        let name = &self.input.plan.identity.name;
        let why = format!(
            "attempt {} starts when the spec is corrected (kubectl edit trainingjob {name}): {why}",
            self.incarnation().attempt
        );
        self.set(ConditionType::Scheduled, false, Reason::InvalidSpec, &why);
    }
}
