//! How much of a job's time became training: the seconds in which its programs ran, minus those whose work was lost.
//!
//! An attempt that ended has lost the time since its newest checkpoint, or all of its time if it left none. No more is
//! known, because programs do not report how much of an attempt they spend on imports and loading.

use super::conditions::condition_is;
use super::view::{incarnation, seconds};
use api::{AttemptEnd, ConditionType, State, TrainingJobStatus};
use jiff::Timestamp;

/// Adds the time that has ended with this reconciliation. A reconciliation of its own result adds nothing.
pub(super) fn with_time(old: &TrainingJobStatus, mut status: TrainingJobStatus, now: Timestamp) -> TrainingJobStatus {
    if old.state.is_some_and(State::is_finished) {
        return status;
    }
    let (first, next) = (incarnation(old).attempt, incarnation(&status).attempt);
    let has_failed = status.state == Some(State::Failed);
    let is_over = |entry: &&AttemptEnd| entry.attempt >= first && (entry.attempt < next || has_failed);
    let ended = || status.restarts.iter().filter(is_over);
    let lost: i64 = ended().map(|entry| lost_seconds(&status, entry)).sum();
    let ended_at = || {
        let of_first = || status.restarts.iter().find(|entry| entry.attempt == first)?.time;
        ended().next_back().and_then(|entry| entry.time).or_else(of_first)
    };
    // It may have failed some time before this reconciliation.
    let ran = runs_since(old).filter(|_| runs_since(&status).is_none()).map(|since| {
        let until = ended_at().filter(|at| *at >= since);
        seconds(since, until.unwrap_or(now).min(now)).max(0)
    });
    if lost > 0 {
        status.lost_seconds = Some(status.lost_seconds.unwrap_or(0) + lost);
    }
    if let Some(ran) = ran {
        status.running_seconds = Some(status.running_seconds.unwrap_or(0) + ran);
    }
    if status.state.is_some_and(State::is_finished) {
        status.goodput = goodput(&status, now).map(|share| format!("{:.0}%", share * 100.0));
    }
    status
}

/// The share of the job's time since its first start that became training, from 0 to 1. Suspended time does not count.
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

/// The time since which all programs run.
fn runs_since(status: &TrainingJobStatus) -> Option<Timestamp> {
    condition_is(&status.conditions, ConditionType::Running, true).map(|running| running.last_transition_time.0)
}

/// Seconds of this attempt's work that are in no checkpoint.
fn lost_seconds(status: &TrainingJobStatus, ended: &AttemptEnd) -> i64 {
    let kept = status.checkpoint.as_ref().and_then(|checkpoint| checkpoint.last_checkpoint_time.as_ref());
    kept.zip(ended.time)
        .map_or(ended.ran_seconds, |(kept, end)| seconds(kept.0, end).clamp(0, ended.ran_seconds.max(0)))
}
