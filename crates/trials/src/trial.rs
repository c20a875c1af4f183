//! One trial: the TrainingJob that runs it, and the outcome of this job.

use crate::study::{self, Study, normal};
use api::{
    ConditionType, Mode, Objective, Reason, Rungs, State, TrainingJob, TrialState, TrialStatus, TuningGoal, TuningJob,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::core::ObjectMeta;
use kube::{Resource, ResourceExt};
use lifecycle::condition_is;
use search::Value;
use std::collections::BTreeMap;

/// Label of a trial with the name of its TuningJob.
pub const TUNING_JOB: &str = "ml.example.com/tuning-job";
/// Label of a trial with its number.
pub const TRIAL: &str = "ml.example.com/trial";
/// Maximum number of retries of a trial after failures that its hyperparameters did not cause.
const RETRIES: u32 = 3;
/// Minimum seconds for which an ended trial is kept, so that its result can be recorded.
const STAYS: u32 = 300;

/// Name of a trial's TrainingJob.
#[must_use]
pub fn trial_name(search: &str, trial: u32, retries: Option<u32>) -> String {
    match retries {
        None | Some(0) => format!("{search}-{trial}"),
        Some(retries) => format!("{search}-{trial}-r{retries}"),
    }
}

/// The TrainingJob of a recorded trial. The same record always gives the same job.
#[must_use]
pub fn trial_job(study: &Study<'_>, job: &TuningJob, trial: &TrialStatus) -> TrainingJob {
    let mut found = job_with(study, job, trial, trial_name(&job.name_any(), trial.trial, trial.retries));
    let labels = found.metadata.labels.get_or_insert_default();
    labels.insert(TUNING_JOB.to_owned(), job.name_any());
    labels.insert(TRIAL.to_owned(), trial.trial.to_string());
    let stopping = study.tuning.early_stopping;
    found.spec.monitoring.objective = Some(Objective {
        metric: study.tuning.metric.name.clone(),
        mode: Some(match study.tuning.metric.goal {
            TuningGoal::Minimize => Mode::Min,
            TuningGoal::Maximize => Mode::Max,
        }),
        rungs: stopping.map(|stopping| Rungs { min_step: stopping.min_step, factor: stopping.factor() }),
    });
    let ttl = &mut found.spec.ttl_seconds_after_finished;
    *ttl = ttl.map(|seconds| seconds.max(STAYS));
    found.metadata.owner_references = owned_by(job);
    found
}

/// Owner references of an object that this one controls, as those of a job's own objects.
pub(crate) fn owned_by(owner: &impl Resource<DynamicType = ()>) -> Option<Vec<OwnerReference>> {
    let owner = owner.controller_owner_ref(&())?;
    Some(vec![OwnerReference { block_owner_deletion: Some(true), ..owner }])
}

/// A TrainingJob that runs the template with the best hyperparameters so far, and belongs to no search. Its name is NAME-best.
/// None without a best trial.
#[must_use]
pub fn best_job(study: &Study<'_>, job: &TuningJob) -> Option<TrainingJob> {
    let status = job.status.as_ref()?;
    let best = status.best.as_ref()?.trial;
    let trial = status.trials.iter().find(|trial| trial.trial == best)?;
    Some(job_with(study, job, trial, format!("{}-best", job.name_any())))
}

/// The template as a job of this name, with the hyperparameters of a trial.
fn job_with(study: &Study<'_>, job: &TuningJob, trial: &TrialStatus, name: String) -> TrainingJob {
    let template = &job.spec.template;
    let mut spec = template.spec.clone();
    let hyperparameters = spec.hyperparameters.get_or_insert_default();
    for (name, value) in study.decode(&trial.values) {
        set(hyperparameters, &name, &value);
    }
    // Results and checkpoints of jobs from one template must be separate.
    if let Some(output) = spec.output.as_mut().filter(|output| output.starts_with("pvc://")) {
        *output = format!("{}/{name}", output.trim_end_matches('/'));
    }
    let storage = spec.checkpoint.storage.as_mut();
    if let Some(prefix) = storage.and_then(|storage| storage.prefix.as_mut()) {
        *prefix = format!("{}/{name}", prefix.trim_end_matches('/'));
    }
    let some = |map: &BTreeMap<String, String>| Some(map.clone()).filter(|map| !map.is_empty());
    TrainingJob {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: job.namespace(),
            labels: some(&template.metadata.labels),
            annotations: some(&template.metadata.annotations),
            ..ObjectMeta::default()
        },
        spec,
        status: None,
    }
}

/// The TrainingJob of the first trial, with which the template is validated.
#[must_use]
pub fn first_trial(study: &Study<'_>, job: &TuningJob) -> TrainingJob {
    let history = search::History::default();
    let parameters = search::suggest(&study.space, &study.settings, &history).ok().flatten().unwrap_or_default();
    trial_job(study, job, &row(1, study.encode(&parameters), 0))
}

/// The record of a new trial.
pub(crate) fn row(trial: u32, values: Vec<Option<serde_json::Number>>, after: u32) -> TrialStatus {
    TrialStatus {
        trial,
        values,
        state: TrialState::Suggested,
        after,
        end: None,
        value: None,
        step: None,
        reason: None,
        retries: None,
        gpu_hours: None,
        start_time: None,
        end_time: None,
    }
}

/// Sets one hyperparameter in the field of its name, or among the additional ones.
fn set(hyperparameters: &mut api::Hyperparameters, name: &str, value: &Value) {
    let whole = |value: &Value| match value {
        Value::Int(number) => Some(*number),
        Value::Text(text) => text.parse().ok(),
        _ => None,
    };
    let number = |value: &Value| value.number().or_else(|| value.to_string().parse().ok());
    let known = match normal(name).as_str() {
        "learningrate" => number(value).map(|value| hyperparameters.learning_rate = Some(value)),
        "batchsize" => whole(value).map(|value| hyperparameters.batch_size = Some(value)),
        "epochs" => whole(value).map(|value| hyperparameters.epochs = Some(value)),
        "warmupsteps" => whole(value).map(|value| hyperparameters.warmup_steps = Some(value)),
        "gradientaccumulationsteps" => {
            whole(value).map(|value| hyperparameters.gradient_accumulation_steps = Some(value))
        }
        "mixedprecision" => value.to_string().parse().ok().map(|value| hyperparameters.mixed_precision = Some(value)),
        "optimizer" => {
            hyperparameters.optimizer = Some(value.to_string());
            Some(())
        }
        _ => None,
    };
    if known.is_none() {
        hyperparameters.additional_params.insert(name.to_owned(), value.to_string());
    }
}

/// The state of a trial's TrainingJob.
pub(crate) enum TrialJobState {
    /// Its program has not started.
    Waiting,
    /// Its program has started.
    Running,
    /// It ended with a result, or was stopped by the search.
    Ended { state: TrialState, reason: Option<Reason> },
    /// It failed for a reason that its hyperparameters did not cause, and is retried.
    Retry { reason: Reason },
    /// It failed.
    Failed { reason: Reason, message: String },
}

/// Determines the state of a trial's TrainingJob. `retries` is the number of earlier retries of the trial.
pub(crate) fn trial_job_state(job: &TrainingJob, metric: &str, retries: u32) -> TrialJobState {
    let Some(status) = &job.status else { return TrialJobState::Waiting };
    let objective = status.objective.as_ref();
    let is_without_reading = objective.is_none_or(|objective| objective.count == 0);
    match status.state {
        Some(State::Completed) => {
            let succeeded = condition_is(&status.conditions, ConditionType::Succeeded, true);
            let is_stopped = succeeded.is_some_and(|succeeded| succeeded.reason == Reason::StoppedBySearch.as_str());
            if is_stopped {
                return TrialJobState::Ended { state: TrialState::Stopped, reason: None };
            }
            if is_without_reading {
                return TrialJobState::Failed { reason: Reason::MetricMissing, message: missing(status, metric) };
            }
            TrialJobState::Ended { state: TrialState::Succeeded, reason: None }
        }
        Some(State::Failed) => {
            let reason = status.failure_reason.clone().unwrap_or(Reason::Failed);
            // A NaN loss is the result of these hyperparameters.
            if reason == Reason::NanLoss {
                return TrialJobState::Ended { state: TrialState::Succeeded, reason: Some(reason) };
            }
            if is_disruption(&reason) && retries < RETRIES {
                return TrialJobState::Retry { reason };
            }
            let failed = condition_is(&status.conditions, ConditionType::Failed, true);
            let message = failed.map(|failed| failed.message.clone()).unwrap_or_default();
            TrialJobState::Failed { reason, message }
        }
        _ if status.start_time.is_some() => TrialJobState::Running,
        _ => TrialJobState::Waiting,
    }
}

fn missing(status: &api::TrainingJobStatus, metric: &str) -> String {
    let reported = status.objective.as_ref().map(|objective| objective.reported.join(", ")).unwrap_or_default();
    let reported = match reported.is_empty() {
        true => "it reported no metric at all".to_owned(),
        false => format!("it reported {reported}"),
    };
    format!(
        "the program never reported {metric}; {reported}. Set metric.name to a reported one, or have the program print {metric} \
         together with its step or epoch"
    )
}

/// Whether a failure comes from nodes, other clients or storage, and not from the program.
fn is_disruption(reason: &Reason) -> bool {
    matches!(
        reason,
        Reason::Disrupted
            | Reason::Preempted
            | Reason::Evicted
            | Reason::NodeLost
            | Reason::NodeRejected
            | Reason::PodsLost
            | Reason::PodDeleted
            | Reason::JobDeleted
            | Reason::GpuHardwareError
            | Reason::StorageUnavailable
            | Reason::Unkillable
            | Reason::ContainerStatusUnknown
    )
}

/// GPU hours of a trial until now.
#[expect(clippy::cast_precision_loss, reason = "seconds of a job")]
pub(crate) fn gpu_hours(job: &TrainingJob, gpus: u32, now: Timestamp) -> Option<f64> {
    let status = job.status.as_ref()?;
    let start = status.start_time.as_ref()?.0;
    let ends = [&status.completion_time, &status.suspended_at].into_iter().flatten().map(|time| time.0).min();
    let seconds = ends.unwrap_or(now).duration_since(start).as_secs() - status.suspended_seconds.unwrap_or(0);
    Some(rounded(seconds.max(0) as f64 * f64::from(gpus) / 3600.0))
}

/// The fourth digit after the point is a third of a second.
pub(crate) fn rounded(hours: f64) -> f64 {
    (hours * 10_000.0).round() / 10_000.0
}

/// What a search requests of one of its trials.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// Why the trial is suspended with its search, if it is.
    pub held: Option<String>,
    /// Why the trial has to be stopped, if it has.
    pub stop: Option<String>,
}

/// Returns what a search requests of this trial. `is_suspended` is whether the search is suspended.
#[must_use]
pub fn wish(search: &TuningJob, is_suspended: bool, trial: &TrainingJob) -> Wish {
    let number: Option<u32> = trial.labels().get(TRIAL).and_then(|number| number.parse().ok());
    let rows = search.status.iter().flat_map(|status| &status.trials);
    let row = number.and_then(|number| rows.into_iter().find(|row| row.trial == number));
    let row = row.filter(|row| trial_name(&search.name_any(), row.trial, row.retries) == trial.name_any());
    let stop = row
        .filter(|row| matches!(row.state, TrialState::Stopping | TrialState::Stopped))
        .map(|row| why_stopped(search, row));
    let name = search.name_any();
    let held =
        is_suspended.then(|| format!("its search, TuningJob {name}, is suspended; resume the search to continue"));
    Wish { held, stop }
}

fn why_stopped(search: &TuningJob, row: &TrialStatus) -> String {
    let name = search.name_any();
    let rank = || {
        let rungs = crate::decide::rungs(&search.status.as_ref()?.rungs)?;
        let tuning = &search.spec.tuning;
        study::asha(tuning)?.decide(study::goal(tuning), &rungs, usize::try_from(row.trial).ok()?)
    };
    match (&row.reason, rank()) {
        (Some(Reason::EarlyStopped), Some(stop)) => format!(
            "{} ranked {} of {} at step {} (earlyStopping of TuningJob {name})",
            search.spec.tuning.metric.name, stop.rank, stop.of, stop.step
        ),
        _ => format!("TuningJob {name} has ended"),
    }
}
