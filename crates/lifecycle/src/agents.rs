//! What the agents tell of the programs, in a step of the life of a job.

use super::progress;
use super::step::Step;
use api::{ConditionType, Reason, State};
use jiff::SignedDuration;
use observe::{AgentAnswer, AgentPolls, Container};
use plan::Success;
use protocol::hang::Stall;
use protocol::progress::LOSS;
use text::error_pattern::ErrorPattern;

/// How long a program that reports may be silent before that is said.
const STALLED: SignedDuration = SignedDuration::from_mins(10);

impl Step<'_> {
    /// Takes in what the programs report, and how far they had come when they ended.
    pub(super) fn note_agent(&mut self) {
        let current = self.incarnation();
        // A queue that holds a Job and lets it go leaves its attempt the number: what the pods of before said is not of these.
        let resumed = self.current_job().and_then(|job| job.resumed);
        let is_of_these = |agent: &&AgentAnswer| resumed.is_none_or(|resumed| agent.time >= resumed);
        let agent = self.input.agent.filter(|agent| agent.is_of(current.attempt)).filter(is_of_these);
        if let Some(agent) = agent {
            progress::fold(&mut self.status, agent);
            self.note_loss(agent);
            self.note_silence(agent);
            self.note_stall(agent);
            if let Some(policy) = &self.input.plan.policy.success.early_stopping {
                let known = self.status.early_stopping.take();
                let (since, histories) = (agent.status.report.started_at, &agent.status.histories);
                self.status.early_stopping =
                    progress::evaluate(policy, known.as_ref(), current.attempt, since, histories);
            }
        }
        self.note_unheard();
        let pods = self.pods(current);
        let last_words = pods.iter().find_map(|pod| match &pod.training {
            Container::Terminated { report: Some(report), .. } => report.progress,
            _ => None,
        });
        if let Some(reached) = last_words {
            progress::fold_end(&mut self.status, &reached);
        }
    }

    fn note_loss(&mut self, agent: &AgentAnswer) {
        let was = self.was(ConditionType::LossFinite);
        let loss = agent.status.progress.metric(LOSS);
        match (loss_line(agent), loss.is_none_or(f64::is_finite)) {
            (Some(_), true) if was == Some(false) => {
                self.set(ConditionType::LossFinite, true, Reason::Recovered, "the loss is a number again");
            }
            (Some(line), false) if was != Some(false) => {
                let message = format!("the loss is not a number: {line}");
                self.set(ConditionType::LossFinite, false, Reason::NanLoss, &message);
                self.event(true, "LossNotFinite", message);
            }
            _ => {}
        }
    }

    /// The last values stay; that they are old is said.
    fn note_silence(&mut self, agent: &AgentAnswer) {
        let was = self.was(ConditionType::AgentReady);
        match agent.failing_since {
            Some(since) if self.input.now.duration_since(since) >= AgentPolls::SILENT => {
                let mut message =
                    format!("the agent has not answered since {since:.0}; progress and metrics are from before");
                if let Some(refusal) = self.input.agent_refusal {
                    message = format!("progress and metrics are from before {since:.0}: {refusal}");
                }
                self.set(ConditionType::AgentReady, false, Reason::Unreachable, &message);
            }
            None if was == Some(false) => {
                self.set(ConditionType::AgentReady, true, Reason::Answers, "the agent answers");
            }
            _ => {}
        }
    }

    /// An agent that runs and can't be asked at all, which is mostly a NetworkPolicy's doing, or is never believed.
    fn note_unheard(&mut self) {
        let is_silent = |since| self.input.now.duration_since(since) >= AgentPolls::SILENT;
        let since = self.input.agent_silent_since.filter(|since| is_silent(*since));
        let runs = self.status.state == Some(State::Running);
        let (Some(since), true, None) = (since, runs, self.input.agent) else { return };
        let Some(port) = self.input.plan.monitoring.metrics_port else { return };
        let judged = if self.input.plan.policy.success == Success::default() {
            ""
        } else {
            ", and nothing can be judged by successPolicy"
        };
        let mut message = format!(
            "the workers' agents have never answered on port {port} (asked since {since:.0}): no progress and no metrics are \
             seen{judged}; let the operator's pods reach that port (a NetworkPolicy may forbid it)"
        );
        if let Some(refusal) = self.input.agent_refusal {
            message = format!("no progress and no metrics are seen{judged}: {refusal}");
        }
        if self.was(ConditionType::AgentReady) != Some(false) {
            self.event(true, "AgentUnreachable", message.clone());
        }
        self.set(ConditionType::AgentReady, false, Reason::NeverAnswered, &message);
    }

    /// A program that told of its progress and goes on without a word: it may hang, or do something slow.
    fn note_stall(&mut self, agent: &AgentAnswer) {
        let was = self.was(ConditionType::ProgressStalled) == Some(true);
        let runs = self.status.state == Some(State::Running);
        if let Some(stall) = agent.status.stall.as_ref().filter(|_| runs && agent.failing_since.is_none()) {
            return self.suspect(agent, stall);
        }
        let Some(last) = agent.status.progress.last().map(|reading| reading.time) else { return };
        let silent = self.input.now.duration_since(last);
        if runs && silent >= STALLED && agent.failing_since.is_none() {
            let at = self.status.progress.as_ref().map(|progress| format!(" (at {progress})")).unwrap_or_default();
            let message = format!("the program has reported nothing since {last:.0}{at}: see its log, or its stacks");
            self.set(ConditionType::ProgressStalled, true, Reason::NoProgress, &message);
            if !was {
                self.event(true, "ProgressStalled", message);
            }
        } else if was {
            self.set(ConditionType::ProgressStalled, false, Reason::Progresses, "the program reports again");
        } else if runs {
            self.requeue((STALLED - silent).as_secs().max(1));
        }
    }

    /// The agent sees more: whether processes compute, print or are stopped. Two signs that agree are told anew.
    fn suspect(&mut self, agent: &AgentAnswer, stall: &Stall) {
        let role = agent.status.role.as_deref().unwrap_or("worker");
        let worker = agent.status.worker.map(|worker| format!("{role} {worker}"));
        let who: Vec<_> = worker.into_iter().chain(stall.rank.map(|rank| format!("rank {rank}"))).collect();
        let who = if who.is_empty() { String::new() } else { who.join(", ") + ": " };
        let reason = if stall.hangs { Reason::Hang } else { Reason::NoProgress };
        let message = format!("{who}{}", stall.message);
        let known = self.reason_of(ConditionType::ProgressStalled);
        let is_news = self.was(ConditionType::ProgressStalled) != Some(true) || known != Some(reason.clone());
        if is_news {
            self.event(true, "ProgressStalled", message.clone());
        }
        self.set(ConditionType::ProgressStalled, true, reason, &message);
    }
}

/// The line that first showed a loss that is no number.
fn loss_line(agent: &AgentAnswer) -> Option<&str> {
    let signs = &agent.status.report.error_patterns;
    signs.iter().find(|sign| sign.kind == ErrorPattern::NanLoss).map(|sign| sign.text.as_str())
}
