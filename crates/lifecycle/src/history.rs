//! The sum of the ends of all attempts.

use api::TrainingJobStatus;
use protocol::attempt::RestartHistory;

/// The recorded history. An operator older than the history has recorded only counts.
#[must_use]
pub fn restart_history(record: &TrainingJobStatus) -> RestartHistory {
    let count = |count: Option<u32>| count.filter(|count| *count > 0);
    let counted = || match (count(record.restart_count), count(record.disruption_count).unwrap_or(0)) {
        (None, _) => RestartHistory::default(),
        (Some(restarts), disruptions) => RestartHistory {
            judged: super::incarnation(record).attempt.saturating_sub(1),
            failures: restarts.saturating_sub(disruptions),
            disruptions,
            ..RestartHistory::default()
        },
    };
    record.restart_history.clone().unwrap_or_else(counted)
}

/// The record with this history and its counts.
pub(super) fn with(record: TrainingJobStatus, history: RestartHistory) -> TrainingJobStatus {
    TrainingJobStatus {
        restart_count: Some(restarts(&history)),
        disruption_count: Some(history.disruptions).filter(|count| *count > 0),
        restart_history: Some(history),
        ..record
    }
}

/// The record with this history, if it includes more ends. A history with fewer restarts lacks some: the pods of a Job
/// that was suspended and resumed unobserved count from 1 again. Of that one only the verdict is taken.
pub(super) fn with_newer(record: TrainingJobStatus, history: &RestartHistory) -> TrainingJobStatus {
    let known = restart_history(&record);
    if !history.is_newer_than(&known) {
        return record;
    }
    if restarts(history) >= restarts(&known) {
        return with(record, history.clone());
    }
    let stopped = history.stopped.clone().or_else(|| known.stopped.clone());
    with(record, RestartHistory { stopped, ..known })
}

/// Number of restarts, whatever their cause.
fn restarts(history: &RestartHistory) -> u32 {
    history.failures.saturating_add(history.disruptions)
}
