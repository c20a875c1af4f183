//! One look at a search: which trials have ended, which actions follow, and its state.

use crate::study::Study;
use crate::trial::{self, TrialJobState};
use api::{
    BestTrial, ConditionType, EarlierTrial, Reason, TrainingJob, TrialFailures, TrialReading, TrialState, TrialStatus,
    TuningJob, TuningJobStatus, TuningMethod, TuningState,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use lifecycle::{Event, condition_is, set_condition};
use search::asha::{Reading, Rungs};
use std::collections::BTreeMap;
use std::time::Duration;

/// Maximum number of reasons for failures in a status.
const FAILURES: usize = 10;
/// Maximum characters of the message of a failure.
const MESSAGE: usize = 500;
/// Interval at which GPU hours are counted while trials run.
const COUNTING: Duration = Duration::from_secs(30);

/// The basis of a decision.
pub struct Input<'a> {
    /// The TuningJob, with the newest status.
    pub job: &'a TuningJob,
    /// Whether the search is suspended, by itself or by the TrainingJob that owns it.
    pub suspend: bool,
    /// The result of checking the template and `warmStartFrom`, once it is known. It is the results to begin with, or a
    /// reason and a message.
    pub checked: Option<Result<Vec<EarlierTrial>, (Reason, String)>>,
    /// TrainingJobs of the trials that have not ended, by number.
    pub trials: BTreeMap<u32, ObservedTrial<'a>>,
    /// Why a trial can't be created, if that is so.
    pub blocked: Option<(Reason, String)>,
    /// The current time, in whole seconds.
    pub now: Timestamp,
}

/// A trial's TrainingJob.
#[derive(Clone, Copy)]
pub struct ObservedTrial<'a> {
    /// The job.
    pub job: &'a TrainingJob,
    /// Its GPUs.
    pub gpus: u32,
}

/// The decision.
#[derive(Debug, Default, PartialEq)]
pub struct Decision {
    /// The status as it should be.
    pub status: TuningJobStatus,
    /// Whether the template and `warmStartFrom` have to be checked first.
    pub needs_check: bool,
    /// Trials to create once the status is written.
    pub create: Vec<TrainingJob>,
    /// Events to publish once the status is written.
    pub events: Vec<Event>,
    /// When to look again if no change is seen before.
    pub requeue: Option<Duration>,
}

/// Decides what follows from a look at a search. It takes up to half a second for each suggestion.
#[must_use]
pub fn decide(input: &Input<'_>) -> Decision {
    let mut status = input.job.status.clone().unwrap_or_default();
    status.observed_generation = input.job.metadata.generation;
    let study = match Study::new(input.job) {
        Ok(study) => study,
        Err(why) => return refused(input, status, &Reason::InvalidSpec, &why),
    };
    if condition_is(&status.conditions, ConditionType::Accepted, true).is_none() {
        match &input.checked {
            None => return Decision { status, needs_check: true, ..Decision::default() },
            Some(Err((reason, why))) => return refused(input, status, reason, why),
            Some(Ok(earlier)) => {
                status.earlier.clone_from(earlier);
                status.seed = Some(study.seed());
                status.parameters = study.names().to_vec();
                status.start_time = Some(Time(input.now));
                let generation = input.job.metadata.generation;
                let (conditions, now) = (&mut status.conditions, input.now);
                set_condition(conditions, ConditionType::Accepted, true, &Reason::Valid, "", generation, now);
            }
        }
    }
    let rungs = rungs(&status.rungs).unwrap_or_default();
    let mut look = SearchPass { input, study: &study, status, rungs, events: Vec::new() };
    look.record();
    look.stop_early();
    look.summarize();
    let is_failing = look.is_failing();
    if is_failing {
        look.stop_all();
    } else if !input.suspend {
        look.suggest();
    }
    look.summarize();
    look.stand(is_failing);
    look.finish()
}

fn refused(input: &Input<'_>, mut status: TuningJobStatus, reason: &Reason, why: &str) -> Decision {
    let generation = input.job.metadata.generation;
    set_condition(&mut status.conditions, ConditionType::Accepted, false, reason, why, generation, input.now);
    if status.trials.is_empty() {
        status.state = Some(TuningState::Pending);
        status.reason = Some(reason.clone());
    }
    let was = input.job.status.as_ref().and_then(|status| {
        condition_is(&status.conditions, ConditionType::Accepted, false).map(|condition| condition.message.clone())
    });
    let is_news = was.as_deref() != Some(why);
    let event = is_news.then(|| Event { warning: true, reason: "Refused", note: why.to_owned() });
    // The template, the quota or the earlier search may appear later.
    let requeue = Some(Duration::from_secs(30));
    Decision { status, events: event.into_iter().collect(), requeue, ..Decision::default() }
}

struct SearchPass<'a> {
    input: &'a Input<'a>,
    study: &'a Study<'a>,
    status: TuningJobStatus,
    rungs: Rungs,
    events: Vec<Event>,
}

impl SearchPass<'_> {
    fn event(&mut self, warning: bool, reason: &'static str, note: String) {
        self.events.push(Event { warning, reason, note });
    }

    fn name(&self, trial: &TrialStatus) -> String {
        trial::trial_name(&self.input.job.name_any(), trial.trial, trial.retries)
    }

    /// Records the outcomes of trials, with the ends in the order of their times.
    fn record(&mut self) {
        let mut ended = Vec::new();
        for at in 0..self.status.trials.len() {
            let row = &self.status.trials[at];
            let seen = (!row.state.is_ended()).then(|| self.input.trials.get(&row.trial)).flatten().copied();
            let Some(seen) = seen else {
                // No TrainingJob is left to be stopped.
                if row.state == TrialState::Stopping {
                    ended.push((self.input.now, row.trial, at, TrialState::Stopped, None, String::new()));
                }
                continue;
            };
            self.measure(at, seen);
            let row = &mut self.status.trials[at];
            match trial::trial_job_state(seen.job, &self.study.tuning.metric.name, row.retries.unwrap_or_default()) {
                TrialJobState::Running if row.state == TrialState::Suggested => row.state = TrialState::Running,
                TrialJobState::Waiting | TrialJobState::Running => {}
                TrialJobState::Retry { reason } => {
                    let name = seen.job.name_any();
                    *row = TrialStatus {
                        retries: Some(row.retries.unwrap_or_default() + 1),
                        state: if row.state == TrialState::Stopping { row.state } else { TrialState::Suggested },
                        value: None,
                        step: None,
                        start_time: None,
                        ..row.clone()
                    };
                    let trial = row.trial;
                    let note = format!(
                        "trial {trial} starts again, because {name} failed with {reason}, which its hyperparameters did not cause"
                    );
                    self.event(true, "TrialRetried", note);
                }
                TrialJobState::Ended { state, reason } => {
                    let time = end_time(seen.job, self.input.now);
                    ended.push((time, row.trial, at, state, reason, String::new()));
                }
                TrialJobState::Failed { reason, message } => {
                    let time = end_time(seen.job, self.input.now);
                    ended.push((time, row.trial, at, TrialState::Failed, Some(reason), message));
                }
            }
        }
        ended.sort_by_key(|(time, trial, ..)| (*time, *trial));
        for (time, trial, at, state, reason, message) in ended {
            let end = Some(self.ends() + 1);
            let row = &mut self.status.trials[at];
            (row.end, row.end_time, row.state) = (end, Some(Time(time)), state);
            match (&reason, state) {
                // The reason of a stopped trial has been recorded already.
                (_, TrialState::Stopped) => {}
                _ => row.reason.clone_from(&reason),
            }
            if reason == Some(Reason::NanLoss) {
                row.value = Some(f64::NAN);
            }
            if state == TrialState::Failed {
                (row.value, row.step) = (None, None);
                let reason = reason.unwrap_or(Reason::Failed);
                let note = format!("trial {trial} failed with {reason}: {message}");
                self.event(true, "TrialFailed", note);
                self.failed(reason, trial, &message);
            }
        }
    }

    /// Records the readings and the times of a trial.
    fn measure(&mut self, at: usize, seen: ObservedTrial<'_>) {
        let (takes_last, asha) = (self.study.takes_last(), self.study.asha);
        let row = &mut self.status.trials[at];
        let Some(status) = &seen.job.status else { return };
        row.start_time.clone_from(&status.start_time);
        row.gpu_hours = trial::gpu_hours(seen.job, seen.gpus, self.input.now).or(row.gpu_hours);
        let Some(objective) = status.objective.as_ref().filter(|objective| objective.count > 0) else { return };
        let reading = if takes_last { objective.last } else { objective.best };
        // All readings were NaN. This is the result if no other reading follows.
        row.value = Some(reading.map_or(f64::NAN, |reading| reading.value));
        // The step of a stopped trial is that of its last reading, and of other trials that of the result.
        let of = if row.state == TrialState::Stopping { objective.last } else { reading };
        row.step = of.and_then(|reading| reading.step);
        if let Some(asha) = asha {
            let step = |step: i64| u64::try_from(step).unwrap_or_default();
            let readings: Vec<Reading> = objective
                .rungs
                .iter()
                .map(|reading| Reading { step: step(reading.step), value: reading.value })
                .collect();
            asha.record(&mut self.rungs, usize::try_from(row.trial).unwrap_or_default(), &readings);
        }
    }

    /// Decides which running trials are not worth continuing.
    fn stop_early(&mut self) {
        let Some(asha) = self.study.asha else { return };
        for at in 0..self.status.trials.len() {
            let row = &self.status.trials[at];
            if row.state != TrialState::Running {
                continue;
            }
            let number = usize::try_from(row.trial).unwrap_or_default();
            if let Some(stop) = asha.decide(self.study.settings.goal, &self.rungs, number) {
                let metric = &self.study.tuning.metric.name;
                let note = format!(
                    "trial {} is stopped early: {metric} ranked {} of {} at step {}",
                    row.trial, stop.rank, stop.of, stop.step
                );
                let row = &mut self.status.trials[at];
                (row.state, row.reason) = (TrialState::Stopping, Some(Reason::EarlyStopped));
                self.event(false, "TrialStopped", note);
            }
        }
    }

    /// Stops all running trials, because the search has failed.
    fn stop_all(&mut self) {
        for row in self.status.trials.iter_mut().filter(|row| !row.state.is_ended()) {
            if row.state != TrialState::Stopping {
                (row.state, row.reason) = (TrialState::Stopping, Some(Reason::TrialsFailed));
            }
        }
    }

    /// Fills the free places. A suggestion does not depend on whether several ends were seen together or one by one.
    fn suggest(&mut self) {
        let tuning = self.study.tuning;
        let (parallel, most) = (tuning.parallel(), tuning.max_trials);
        while self.status.running < parallel && self.count() < most && !self.is_out_of_budget() {
            let free = parallel - self.status.running;
            let last = self.status.trials.last().map_or(0, |trial| trial.after);
            let after = (self.ends() + 1).saturating_sub(free).max(last).min(self.ends());
            let history = self.study.history(&self.status.earlier, &self.status.trials, after);
            let suggested = search::suggest(&self.study.space, &self.study.settings, &history);
            // The space has been checked, and the record was made by the same rules.
            let Ok(Some(parameters)) = suggested else { return };
            self.status.trials.push(trial::row(self.count() + 1, self.study.encode(&parameters), after));
            self.status.running += 1;
        }
    }

    fn count(&self) -> u32 {
        u32::try_from(self.status.trials.len()).unwrap_or(u32::MAX)
    }

    fn ends(&self) -> u32 {
        u32::try_from(self.status.trials.iter().filter(|trial| trial.end.is_some()).count()).unwrap_or(u32::MAX)
    }

    fn is_failing(&self) -> bool {
        self.status.failed >= self.study.tuning.failures_allowed()
    }

    fn is_out_of_budget(&self) -> bool {
        self.study.tuning.gpu_hours.is_some_and(|limit| self.status.gpu_hours >= limit)
    }

    /// Whether a grid has no further point.
    fn is_exhausted(&self) -> bool {
        let most = self.status.trials.len() + 1;
        self.study.tuning.method() == TuningMethod::Grid
            && search::grid_size(&self.study.space, most).is_ok_and(|size| size < most)
    }

    fn failed(&mut self, reason: Reason, trial: u32, message: &str) {
        let message: String = message.chars().take(MESSAGE).collect();
        let failures = &mut self.status.failures;
        match failures.iter().position(|failures| failures.reason == reason) {
            Some(at) => failures[at].trials += 1,
            None if failures.len() < FAILURES => {
                failures.push(TrialFailures { reason, trials: 1, example: trial, message });
            }
            None => {}
        }
        failures.sort_by_key(|failures| std::cmp::Reverse(failures.trials));
    }

    /// Counts the trials, and finds the best one.
    fn summarize(&mut self) {
        let count = |test: fn(TrialState) -> bool| {
            u32::try_from(self.status.trials.iter().filter(|trial| test(trial.state)).count()).unwrap_or(u32::MAX)
        };
        let running = count(|state| !state.is_ended());
        let succeeded = count(|state| state == TrialState::Succeeded);
        let stopped = count(|state| state == TrialState::Stopped);
        let failed = count(|state| state == TrialState::Failed);
        let hours = self.status.trials.iter().filter_map(|trial| trial.gpu_hours).sum();
        let results = self.status.trials.iter().filter(|trial| trial.state == TrialState::Succeeded);
        let best = results.filter(|trial| trial.value.is_some_and(f64::is_finite)).reduce(|best, other| {
            let value = |trial: &TrialStatus| trial.value.unwrap_or(f64::NAN);
            if self.study.is_better(value(other), value(best)) { other } else { best }
        });
        let best = best.map(|trial| BestTrial {
            trial: trial.trial,
            name: self.name(trial),
            value: trial.value.unwrap_or(f64::NAN),
            step: trial.step,
            parameters: self.study.texts(&trial.values),
        });
        let status = &mut self.status;
        (status.running, status.succeeded, status.stopped, status.failed) = (running, succeeded, stopped, failed);
        status.gpu_hours = trial::rounded(hours);
        status.progress = Some(format!("{}/{}", succeeded + stopped + failed, self.study.tuning.max_trials));
        status.best = best;
    }

    /// Determines the state, with its reason and conditions.
    fn stand(&mut self, is_failing: bool) {
        let tuning = self.study.tuning;
        let is_idle = self.status.running == 0;
        let has_all = self.count() >= tuning.max_trials;
        let (budget, exhausted) = (self.is_out_of_budget(), self.is_exhausted());
        let metric = &tuning.metric.name;
        let best = self.status.best.as_ref();
        let best =
            best.map(|best| format!("; the best {metric} is {} of trial {} ({})", best.value, best.trial, best.name));
        let best = best.unwrap_or_default();
        let (trials, failed) = (self.count(), self.status.failed);
        let common =
            self.status.failures.first().map(|failure| {
                format!(", most often {} (trial {}: {})", failure.reason, failure.example, failure.message)
            });
        let common = common.unwrap_or_default();
        let is_over = is_idle && (has_all || budget || exhausted);
        let (state, reason, message) = if is_failing {
            let state = if is_idle { TuningState::Failed } else { TuningState::Running };
            let message = format!(
                "{failed} trials failed, and maxFailedTrials is {}{common}; correct the cause and raise maxFailedTrials to continue",
                tuning.failures_allowed()
            );
            (state, Reason::TrialsFailed, message)
        } else if is_over && self.status.succeeded + self.status.stopped == 0 {
            (TuningState::Failed, Reason::TrialsFailed, format!("none of the {trials} trials has a result{common}"))
        } else if is_over && budget && !has_all {
            let limit = tuning.gpu_hours.unwrap_or_default();
            let used = self.status.gpu_hours;
            let message =
                format!("{used} GPU hours were used, and gpuHours is {limit}{best}; raise gpuHours to continue");
            (TuningState::Completed, Reason::GpuHoursUsed, message)
        } else if is_over {
            let what = if exhausted && !has_all { "the grid has no further point" } else { "all trials have ended" };
            (
                TuningState::Completed,
                Reason::Completed,
                format!("{what}: {trials} trials, {failed} of them failed{best}"),
            )
        } else if self.input.suspend {
            let message = "suspend is true; set it to false to continue".to_owned();
            (TuningState::Suspended, Reason::Suspended, message)
        } else if let Some((reason, message)) = self.input.blocked.clone() {
            (TuningState::Running, reason, message)
        } else {
            (TuningState::Running, Reason::Running, format!("{} trials run or start", self.status.running))
        };
        self.status.state = Some(state);
        self.status.reason = Some(reason.clone());
        match (state.is_finished(), &self.status.completion_time) {
            (true, None) => self.status.completion_time = Some(Time(self.input.now)),
            (false, Some(_)) => self.status.completion_time = None,
            _ => {}
        }
        let (generation, now) = (self.input.job.metadata.generation, self.input.now);
        let conditions = &mut self.status.conditions;
        let mut set = |type_: ConditionType, is: bool, message: &str| {
            let was_there = conditions.iter().any(|condition| condition.type_ == type_.as_str());
            if is || was_there {
                set_condition(conditions, type_, is, &reason, if is { message } else { "" }, generation, now);
            }
        };
        // Numbers in the message of a lasting state would cause a write of the status at each change.
        let running = if reason == Reason::Running { "trials run or start" } else { &message };
        set(ConditionType::Running, state == TuningState::Running, running);
        set(ConditionType::Suspended, state == TuningState::Suspended, &message);
        set(ConditionType::Succeeded, state == TuningState::Completed, &message);
        set(ConditionType::Failed, state == TuningState::Failed, &message);
        self.set_state(state, &message);
    }

    /// Adds events for the changes of the search as a whole.
    fn set_state(&mut self, state: TuningState, message: &str) {
        let before = self.input.job.status.clone().unwrap_or_default();
        if let Some(best) =
            self.status.best.clone().filter(|best| before.best.as_ref().is_none_or(|was| was.trial != best.trial))
        {
            let values: Vec<_> = best.parameters.iter().map(|(name, value)| format!("{name}={value}")).collect();
            let metric = &self.study.tuning.metric.name;
            let note =
                format!("trial {} has the best {metric} so far: {} with {}", best.trial, best.value, values.join(", "));
            self.event(false, "NewBest", note);
        }
        if before.state == Some(state) {
            return;
        }
        match state {
            TuningState::Running => {
                self.event(false, "SearchStarted", format!("up to {} trials", self.study.tuning.max_trials));
            }
            TuningState::Suspended => self.event(false, "Suspended", message.to_owned()),
            TuningState::Completed => self.event(false, "Completed", message.to_owned()),
            TuningState::Failed => self.event(true, "Failed", message.to_owned()),
            TuningState::Pending | TuningState::Unknown => {}
        }
    }

    fn finish(mut self) -> Decision {
        if self.study.asha.is_some() {
            self.status.rungs = recorded(&self.rungs);
        }
        let starts = |row: &TrialStatus| matches!(row.state, TrialState::Suggested | TrialState::Running);
        let is_missing = |row: &&TrialStatus| starts(row) && !self.is_seen(row);
        let may_create = !self.input.suspend && !self.is_failing();
        let missing = self.status.trials.iter().filter(is_missing).filter(|_| may_create);
        let create = missing.map(|row| trial::trial_job(self.study, self.input.job, row)).collect();
        let requeue = (self.status.running > 0).then_some(COUNTING);
        Decision { status: self.status, needs_check: false, create, events: self.events, requeue }
    }

    /// Whether the TrainingJob of a recorded trial exists, under its present name.
    fn is_seen(&self, row: &TrialStatus) -> bool {
        let seen = self.input.trials.get(&row.trial);
        seen.is_some_and(|seen| seen.job.name_any() == self.name(row))
    }
}

fn end_time(job: &TrainingJob, now: Timestamp) -> Timestamp {
    let time = job.status.as_ref().and_then(|status| status.completion_time.as_ref());
    time.map_or(now, |time| time.0)
}

/// Converts the rungs of a status to the type of the crate `search`.
pub(crate) fn rungs(recorded: &[Vec<TrialReading>]) -> Option<Rungs> {
    serde_json::from_value(serde_json::to_value(recorded).ok()?).ok()
}

fn recorded(rungs: &Rungs) -> Vec<Vec<TrialReading>> {
    serde_json::to_value(rungs).ok().and_then(|rungs| serde_json::from_value(rungs).ok()).unwrap_or_default()
}
