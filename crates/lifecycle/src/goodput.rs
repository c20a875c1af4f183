//! How much of a job's time has become training: the seconds in which its programs ran, less those whose work was lost.
//!
//! What an attempt that ended has lost is the time since its newest checkpoint, and all of its time where it left none. That
//! is what can be known of any program: how much of an attempt is its imports and its loading nobody tells.

use super::conditions::condition_is;
use super::step::{Step, incarnation, seconds};
use api::{AttemptEnd, ConditionType, State, TrainingJobStatus};
use jiff::Timestamp;

impl Step<'_> {
    /// Counts what this step has brought to an end. A step on its own result counts nothing.
    pub(super) fn count_time(&mut self) {
        let old = self.input.status;
        if old.state.is_some_and(State::is_finished) {
            return;
        }
        let (first, next) = (incarnation(old).attempt, self.incarnation().attempt);
        let has_failed = self.status.state == Some(State::Failed);
        let is_over = |entry: &&AttemptEnd| entry.attempt >= first && (entry.attempt < next || has_failed);
        let ended: Vec<&AttemptEnd> = self.status.restarts.iter().filter(is_over).collect();
        let lost: i64 = ended.iter().map(|entry| lost_seconds(&self.status, entry)).sum();
        let failed_at = ended.last().and_then(|entry| entry.time);
        if lost > 0 {
            self.status.lost_seconds = Some(self.status.lost_seconds.unwrap_or(0) + lost);
        }
        if let Some(since) = runs_since(old).filter(|_| runs_since(&self.status).is_none()) {
            // It may have failed a while before anybody looked.
            let until = failed_at.or_else(|| self.kept(incarnation(old))?.time).filter(|at| *at >= since);
            let ran = seconds(since, until.unwrap_or(self.input.now).min(self.input.now)).max(0);
            self.status.running_seconds = Some(self.status.running_seconds.unwrap_or(0) + ran);
        }
        if self.status.state.is_some_and(State::is_finished) {
            let share = goodput(&self.status, self.input.now);
            self.status.goodput = share.map(|share| format!("{:.0}%", share * 100.0));
        }
    }
}

/// The share of the job's time since its first start that has become training, from 0 to 1; time suspended does not count.
#[must_use]
pub fn goodput(status: &TrainingJobStatus, now: Timestamp) -> Option<f64> {
    let start = status.start_time.as_ref()?.0;
    let ends = [&status.completion_time, &status.suspended_at].into_iter().flatten().map(|time| time.0).min();
    let end = ends.unwrap_or(now);
    let all = seconds(start, end) - status.suspended_seconds.unwrap_or(0);
    let runs = runs_since(status).filter(|_| status.completion_time.is_none()).map_or(0, |since| seconds(since, now));
    let ran = status.running_seconds.unwrap_or(0) + runs.max(0);
    let good = ran - status.lost_seconds.unwrap_or(0);
    (all > 0).then(|| (good as f64 / all as f64).clamp(0.0, 1.0))
}

/// Since when all programs run.
fn runs_since(status: &TrainingJobStatus) -> Option<Timestamp> {
    condition_is(&status.conditions, ConditionType::Running, true).map(|running| running.last_transition_time.0)
}

/// Seconds of this attempt's work that no checkpoint has kept.
fn lost_seconds(status: &TrainingJobStatus, ended: &AttemptEnd) -> i64 {
    let kept = status.checkpoint.as_ref().and_then(|checkpoint| checkpoint.last_checkpoint_time.as_ref());
    kept.zip(ended.time)
        .map_or(ended.ran_seconds, |(kept, end)| seconds(kept.0, end).clamp(0, ended.ran_seconds.max(0)))
}
