//! What the agents tell of the programs, in a step of the life of a job.

use super::decide::Step;
use super::progress;
use crate::api::{State, SuccessPolicy};
use crate::observe::{Container, JobSeen, Seen};
use crate::protocol::error_pattern::ErrorPattern;
use crate::protocol::progress::LOSS;
use jiff::SignedDuration;

/// How long an agent may be silent before the status says so: some polls may fail.
const SILENT: SignedDuration = SignedDuration::from_secs(30);
/// How long a program that reports may be silent before that is said.
const STALLED: SignedDuration = SignedDuration::from_mins(10);

impl Step<'_> {
    /// Takes in what the programs report, and how far they had come when they ended.
    pub(super) fn note_progress(&mut self, attempt: i32) {
        if let Some(told) = self.input.told.filter(|told| told.is_of(attempt)) {
            progress::fold(&mut self.status, told);
            self.note_loss(told);
            self.note_silence(told);
            self.note_stall(told);
            let policy = self.input.spec.success_policy.as_ref().and_then(SuccessPolicy::early_stopping);
            if let Some(policy) = policy {
                let known = self.status.early_stopping.take();
                let watched = &told.status.watched;
                self.status.early_stopping = progress::evaluate(&policy, known.as_ref(), attempt, watched);
            }
        }
        let pods = self.pods(attempt);
        let last_words = pods.iter().find_map(|pod| match &pod.training {
            Container::Terminated { report: Some(report), .. } => report.progress,
            _ => None,
        });
        if let Some(reached) = last_words {
            progress::fold_end(&mut self.status, &reached);
        }
    }

    fn note_loss(&mut self, told: &Seen) {
        let was = self.was("LossFinite");
        let loss = told.status.progress.metric(LOSS);
        match (lost(told), loss.is_none_or(f64::is_finite)) {
            (Some(_), true) if was == Some(false) => {
                self.set("LossFinite", true, "Recovered", "the loss is a number again");
            }
            (Some(line), false) if was != Some(false) => {
                let message = format!("the loss is not a number: {line}");
                self.set("LossFinite", false, "NaNLoss", &message);
                self.event(true, "LossNotFinite", message);
            }
            _ => {}
        }
    }

    /// The last values stay; that they are old is said.
    fn note_silence(&mut self, told: &Seen) {
        let was = self.was("AgentReady");
        match told.failing_since {
            Some(since) if self.input.now.duration_since(since) >= SILENT => {
                let message =
                    format!("the agent has not answered since {since:.0}; progress and metrics are from before");
                self.set("AgentReady", false, "Unreachable", &message);
            }
            None if was == Some(false) => self.set("AgentReady", true, "Answers", "the agent answers"),
            _ => {}
        }
    }

    /// A program that told of its progress and goes on without a word: it may hang, or do something slow.
    fn note_stall(&mut self, told: &Seen) {
        let was = self.was("ProgressStalled") == Some(true);
        let Some(last) = told.status.progress.last().map(|reading| reading.time) else { return };
        let silent = self.input.now.duration_since(last);
        let runs = self.status.state == Some(State::Running);
        if runs && silent >= STALLED && told.failing_since.is_none() {
            let at = self.status.progress.as_ref().map(|progress| format!(" (at {progress})")).unwrap_or_default();
            let message = format!("the program has reported nothing since {last:.0}{at}: see its log, or its stacks");
            self.set("ProgressStalled", true, "NoProgress", &message);
            if !was {
                self.event(true, "ProgressStalled", message);
            }
        } else if was {
            self.set("ProgressStalled", false, "Progresses", "the program reports again");
        } else if runs {
            self.requeue((STALLED - silent).as_secs().max(1));
        }
    }

    pub(super) fn judge_success(&mut self, job: &JobSeen) {
        let (Some(policy), Some(told)) = (&self.input.spec.success_policy, self.input.told) else { return };
        if !told.is_of(job.attempt) {
            return;
        }
        if let Some((reason, message)) = progress::success(policy, &self.status, told) {
            self.set("Stopping", true, reason, &message);
            self.event(false, "GoodEnough", format!("the workers are stopped: {message}"));
            self.stop(Some(job));
        }
    }
}

/// The line that first showed a loss that is no number.
fn lost(told: &Seen) -> Option<&str> {
    let signs = &told.status.report.error_patterns;
    signs.iter().find(|sign| sign.kind == ErrorPattern::NanLoss).map(|sign| sign.text.as_str())
}
