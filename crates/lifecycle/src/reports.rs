//! The agents' reports on the programs, as conditions.

use super::checkpoints;
use super::conditions::{ConditionChange, condition, condition_is};
use super::view::{View, seconds};
use api::{ConditionType, Reason, State};
use jiff::SignedDuration;
use observe::{AgentAnswer, AgentPolls};
use plan::Success;
use protocol::hang::Stall;
use protocol::progress::LOSS;
use text::error_pattern::ErrorPattern;

/// How long a program that reports progress may be silent before that is reported.
const STALLED: SignedDuration = SignedDuration::from_mins(10);

impl<'a> View<'a> {
    /// Conditions that follow from the agents' reports, whatever the phase.
    pub(super) fn reported_conditions(&self) -> Vec<ConditionChange> {
        let agent = self.agent_of_attempt();
        let of_agent =
            |read: fn(&Self, &'a AgentAnswer) -> Option<ConditionChange>| agent.and_then(|agent| read(self, agent));
        let report = self.checkpoint_report();
        let reported = [
            of_agent(Self::finite_loss),
            of_agent(Self::improving_loss),
            of_agent(Self::silence),
            of_agent(Self::stall),
            self.never_heard(),
            report.and_then(|report| checkpoints::health(&self.record.conditions, &report)),
        ];
        reported.into_iter().flatten().collect()
    }

    fn finite_loss(&self, agent: &AgentAnswer) -> Option<ConditionChange> {
        let was = self.condition_status(ConditionType::LossFinite);
        let loss = agent.status.progress.metric(LOSS);
        match (loss_line(agent)?, loss.is_none_or(f64::is_finite)) {
            (_, true) if was == Some(false) => Some(ConditionChange::set(
                ConditionType::LossFinite,
                true,
                Reason::Recovered,
                "the loss is a number again",
            )),
            (line, false) if was != Some(false) => {
                let message = format!("the loss is not a number: {line}");
                Some(ConditionChange::set(ConditionType::LossFinite, false, Reason::NanLoss, &message))
            }
            _ => None,
        }
    }

    /// A loss that was reported at later steps for this long, and never was lower than the best one. A wait within an
    /// attempt, for example in a queue, does not count.
    fn improving_loss(&self, agent: &AgentAnswer) -> Option<ConditionChange> {
        let (best, reading) = (self.record.best_loss.as_ref()?, agent.status.progress.metrics.get(LOSS)?);
        let runs_since =
            condition_is(&self.record.conditions, ConditionType::Running, true).map(|c| c.last_transition_time.0);
        let flat = runs_since.map_or(0, |since| seconds(best.time.0.max(since), reading.time));
        let has_moved = best.step.is_none_or(|step| self.record.current_step.is_some_and(|now| now > step));
        let limit = self.input.plan.monitoring.plateau_seconds.map(i64::from);
        let is_flat = limit.is_some_and(|limit| flat >= limit) && has_moved && reading.value.is_finite();
        let was = condition_is(&self.record.conditions, ConditionType::LossImproving, false);
        match was {
            None if is_flat && self.record.state == Some(State::Running) => {
                let at = best.step.map(|step| format!(" at step {step}")).unwrap_or_default();
                let message = format!(
                    "the loss has not been lower than {}{at} for {flat} s (monitoring.plateauSeconds is {})",
                    best.value,
                    limit.unwrap_or_default()
                );
                Some(ConditionChange::set(ConditionType::LossImproving, false, Reason::LossPlateau, &message))
            }
            Some(was) if limit.is_none() || best.time.0 >= was.last_transition_time.0 => {
                let message = format!("the best loss of this attempt is {}", best.value);
                Some(ConditionChange::set(ConditionType::LossImproving, true, Reason::Recovered, &message))
            }
            _ => None,
        }
    }

    /// The last values stay, and the condition says that they are old.
    fn silence(&self, agent: &AgentAnswer) -> Option<ConditionChange> {
        match agent.failing_since {
            Some(since) if self.now().duration_since(since) >= AgentPolls::SILENT => {
                let message = match self.input.agent_refusal {
                    Some(refusal) => format!("progress and metrics are from before {since:.0}: {refusal}"),
                    None => {
                        format!("the agent has not answered since {since:.0}; progress and metrics are from before")
                    }
                };
                Some(ConditionChange::set(ConditionType::AgentReady, false, Reason::Unreachable, &message))
            }
            None if self.condition_status(ConditionType::AgentReady) == Some(false) => {
                Some(ConditionChange::set(ConditionType::AgentReady, true, Reason::Answers, "the agent answers"))
            }
            _ => None,
        }
    }

    /// An agent that runs but can't be queried at all, usually because of a NetworkPolicy, or whose answers are always
    /// rejected.
    fn never_heard(&self) -> Option<ConditionChange> {
        let is_silent = |since: &_| self.now().duration_since(*since) >= AgentPolls::SILENT;
        let since = self.input.agent_silent_since.filter(is_silent)?;
        if self.record.state != Some(State::Running) || self.input.agent.is_some() {
            return None;
        }
        let port = self.input.plan.monitoring.metrics_port?;
        let judged = if self.input.plan.policy.success == Success::default() {
            ""
        } else {
            ", and nothing can be judged by successPolicy"
        };
        let message = match self.input.agent_refusal {
            Some(refusal) => format!("no progress and no metrics are seen{judged}: {refusal}"),
            None => format!(
                "the workers' agents have never answered on port {port} (asked since {since:.0}): no progress and no metrics \
                 are seen{judged}; let the operator's pods reach that port (a NetworkPolicy may forbid it)"
            ),
        };
        Some(ConditionChange::set(ConditionType::AgentReady, false, Reason::NeverAnswered, &message))
    }

    /// A program that has reported progress and now reports nothing. It may hang, or do something slow.
    fn stall(&self, agent: &AgentAnswer) -> Option<ConditionChange> {
        let runs = self.record.state == Some(State::Running);
        if let Some(stall) = agent.status.stall.as_ref().filter(|_| runs && agent.failing_since.is_none()) {
            return Some(suspected(agent, stall));
        }
        let last = agent.status.progress.last()?.time;
        if runs && self.now().duration_since(last) >= STALLED && agent.failing_since.is_none() {
            let at = self.record.progress.as_ref().map(|progress| format!(" (at {progress})")).unwrap_or_default();
            let message = format!("the program has reported nothing since {last:.0}{at}: see its log, or its stacks");
            return Some(ConditionChange::set(ConditionType::ProgressStalled, true, Reason::NoProgress, &message));
        }
        let was =
            condition(&self.record.conditions, ConditionType::ProgressStalled).is_some_and(|c| c.status == "True");
        was.then(|| {
            ConditionChange::set(ConditionType::ProgressStalled, false, Reason::Progresses, "the program reports again")
        })
    }

    /// Seconds until a reporting program has been silent for too long.
    pub(super) fn stalls_in(&self) -> Option<i64> {
        let agent = self.agent_of_attempt()?;
        let runs = self.record.state == Some(State::Running);
        let (last, is_stalled) =
            (agent.status.progress.last()?.time, self.condition_status(ConditionType::ProgressStalled));
        let is_seen = runs && agent.status.stall.is_some() && agent.failing_since.is_none();
        let silent = self.now().duration_since(last);
        let is_due = silent >= STALLED && agent.failing_since.is_none();
        (runs && !is_seen && !is_due && is_stalled != Some(true)).then(|| (STALLED - silent).as_secs().max(1))
    }
}

/// The agent knows more: whether processes compute, print or are stopped.
fn suspected(agent: &AgentAnswer, stall: &Stall) -> ConditionChange {
    let role = agent.status.role.as_deref().unwrap_or("worker");
    let worker = agent.status.worker.map(|worker| format!("{role} {worker}"));
    let who: Vec<_> = worker.into_iter().chain(stall.rank.map(|rank| format!("rank {rank}"))).collect();
    let who = if who.is_empty() { String::new() } else { who.join(", ") + ": " };
    let reason = if stall.hangs { Reason::Hang } else { Reason::NoProgress };
    ConditionChange::set(ConditionType::ProgressStalled, true, reason, &format!("{who}{}", stall.message))
}

/// The line that first showed a NaN or infinite loss.
fn loss_line(agent: &AgentAnswer) -> Option<&str> {
    let signs = &agent.status.report.error_patterns;
    signs.iter().find(|sign| sign.kind == ErrorPattern::NanLoss).map(|sign| sign.text.as_str())
}
