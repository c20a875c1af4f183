//! The short form: a TrainingJob with `hyperParameterTuningConfig` runs no workers. It owns a TuningJob of its name, and its status
//! is that of the search.

use crate::trial::owned_by;
use api::ConditionType as C;
use api::{
    ObjectiveStatus, Reason, State, TrainingJob, TrainingJobStatus, TrialMetadata, TrialTemplate, Tuning, TuningJob,
    TuningJobSpec, TuningState,
};
use jiff::Timestamp;
use kube::ResourceExt;
use kube::core::ObjectMeta;
use lifecycle::{condition_is, set_condition};
use protocol::objective::Measurement;

/// The TuningJob of a TrainingJob with `hyperParameterTuningConfig`.
#[must_use]
pub fn own_search(job: &TrainingJob, tuning: &Tuning) -> TuningJob {
    let mut spec = job.spec.clone();
    (spec.hyper_parameter_tuning_config, spec.suspend, spec.ttl_seconds_after_finished) = (None, false, None);
    let metadata = TrialMetadata { labels: job.labels().clone(), ..TrialMetadata::default() };
    TuningJob {
        metadata: ObjectMeta {
            name: job.metadata.name.clone(),
            namespace: job.metadata.namespace.clone(),
            owner_references: owned_by(job),
            ..ObjectMeta::default()
        },
        spec: TuningJobSpec { tuning: tuning.clone(), template: TrialTemplate { metadata, spec }, suspend: false },
        status: None,
    }
}

/// The status of a TrainingJob with this search. `blocked` is the reason why the search can't be created, if any.
#[must_use]
pub fn status_of_search(
    job: &TrainingJob,
    search: Option<&TuningJob>,
    blocked: Option<&(Reason, String)>,
    now: Timestamp,
) -> TrainingJobStatus {
    let mut status = job.status.clone().unwrap_or_default();
    let generation = job.metadata.generation;
    status.observed_generation = generation;
    let of_search = search.and_then(|search| search.status.clone()).unwrap_or_default();
    status.state = Some(match of_search.state {
        None | Some(TuningState::Pending | TuningState::Unknown) => State::Pending,
        Some(TuningState::Running) => State::Running,
        Some(TuningState::Suspended) => State::Suspended,
        Some(TuningState::Completed) => State::Completed,
        Some(TuningState::Failed) => State::Failed,
    });
    if let Some((reason, message)) = blocked {
        set_condition(&mut status.conditions, C::Accepted, false, reason, message, generation, now);
        return status;
    }
    for type_ in [C::Accepted, C::Running, C::Suspended, C::Succeeded, C::Failed] {
        if let Some(condition) = lifecycle::condition(&of_search.conditions, type_) {
            let (is, reason) = (condition.status == "True", Reason::from(condition.reason.as_str()));
            set_condition(&mut status.conditions, type_, is, &reason, &condition.message, generation, now);
        }
    }
    let ended = of_search.succeeded + of_search.stopped + of_search.failed;
    let most = search.map_or(0, |search| search.spec.tuning.max_trials);
    if let Some(percent) = (ended * 100).checked_div(most) {
        status.progress = Some(format!("{}%", percent.min(100)));
    }
    if let Some(best) = &of_search.best {
        let best = Measurement { value: best.value, step: best.step };
        let metric = search.map(|search| search.spec.tuning.metric.name.clone()).unwrap_or_default();
        let count = u64::from(of_search.succeeded);
        status.objective = Some(ObjectiveStatus { metric, count, best: Some(best), ..ObjectiveStatus::default() });
    }
    status.start_time.clone_from(&of_search.start_time);
    status.completion_time.clone_from(&of_search.completion_time);
    let failed = condition_is(&of_search.conditions, C::Failed, true);
    status.failure_reason = failed.map(|failed| Reason::from(failed.reason.as_str()));
    status.failure_message = failed.map(|failed| failed.message.clone());
    status
}
