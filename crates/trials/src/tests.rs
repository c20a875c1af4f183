//! Searches in a small world: trials are TrainingJobs whose results and durations follow from their hyperparameters.
#![allow(
    clippy::items_after_statements,
    clippy::needless_pass_by_value,
    reason = "fates and specs stand beside their use"
)]

use super::*;
use api::{
    ConditionType, ObjectiveStatus, Reason, State, TrainingJob, TrainingJobStatus, TrialState, TuningJob,
    TuningJobStatus, TuningState,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use lifecycle::set_condition;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A cluster with one search.
struct World {
    job: TuningJob,
    trials: BTreeMap<String, TrainingJob>,
    /// Seconds since the beginning.
    now: i64,
    events: Vec<String>,
    /// The fate of a trial.
    fate: fn(&TrainingJob) -> Fate,
    blocked: Option<(Reason, String)>,
}

/// What becomes of a trial.
struct Fate {
    /// Seconds from its start to its end.
    lasts: i64,
    end: End,
    /// Readings at the steps 1, 2, 3 and so on, one each second.
    readings: Vec<f64>,
}

enum End {
    Completes,
    Fails(Reason, &'static str),
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn search(tuning: Value) -> TuningJob {
    let mut spec = json!({
        "maxTrials": 12, "parallelTrials": 3, "metric": { "name": "loss", "goal": "minimize" }, "seed": 7,
        "parameters": {
            "learning_rate": { "type": "double", "min": 0.0001, "max": 0.1, "scale": "log" },
            "width": { "type": "int", "values": [16, 32, 64] },
            "act": { "type": "categorical", "choices": ["relu", "tanh"] },
        },
        "template": { "spec": { "numWorkers": 2, "image": "train" } },
    });
    for (field, value) in tuning.as_object().unwrap() {
        spec[field] = value.clone();
    }
    let metadata = json!({ "name": "s", "namespace": "ml", "uid": "1234", "generation": 1 });
    serde_json::from_value(json!({
        "apiVersion": "ml.example.com/v1", "kind": "TuningJob", "metadata": metadata, "spec": spec,
    }))
    .unwrap()
}

fn parameter(trial: &TrainingJob, name: &str) -> f64 {
    let set = trial.spec.hyperparameters.as_ref().unwrap();
    match name {
        "learning_rate" => set.learning_rate.unwrap(),
        _ => set.additional_params[name].parse().unwrap(),
    }
}

/// Best near a learning rate of 0.01 and a width of 32; durations that mix the order of the ends.
fn ordinary(trial: &TrainingJob) -> Fate {
    let lr = parameter(trial, "learning_rate");
    let loss = (lr.log10() + 2.0).powi(2) + (parameter(trial, "width") - 32.0).abs() / 100.0;
    let lasts = 5 + (lr * 1e7) as i64 % 17;
    Fate { lasts, end: End::Completes, readings: (1..=lasts).map(|step| loss + 1.0 / step as f64).collect() }
}

impl World {
    fn new(tuning: Value, fate: fn(&TrainingJob) -> Fate) -> Self {
        Self { job: search(tuning), trials: BTreeMap::new(), now: 0, events: Vec::new(), fate, blocked: None }
    }

    fn status(&self) -> TuningJobStatus {
        self.job.status.clone().unwrap_or_default()
    }

    fn verdict(&self) -> Decision {
        self.verdict_checked(Some(Ok(Vec::new())))
    }

    fn verdict_checked(&self, checked: Option<Result<Vec<api::EarlierTrial>, (Reason, String)>>) -> Decision {
        let status = self.status();
        let rows = status.trials.iter().filter(|row| !row.state.is_ended());
        let seen = rows.filter_map(|row| {
            let job = self.trials.get(&trial_name("s", row.trial, row.retries))?;
            Some((row.trial, ObservedTrial { job, gpus: 4 }))
        });
        decide(&Input {
            job: &self.job,
            suspend: self.job.spec.suspend,
            checked,
            trials: seen.collect(),
            blocked: self.blocked.clone(),
            now: at(self.now),
        })
    }

    fn write(&mut self, verdict: &Decision) {
        let json = serde_json::to_value(&verdict.status).unwrap();
        self.job.status = Some(serde_json::from_value(json).unwrap());
        self.events.extend(verdict.events.iter().map(|event| event.reason.to_owned()));
    }

    fn create(&mut self, verdict: &Decision) {
        for trial in &verdict.create {
            let mut trial = trial.clone();
            let start_time = Some(Time(at(self.now)));
            trial.status = Some(TrainingJobStatus { state: Some(State::Running), start_time, ..Default::default() });
            self.trials.entry(trial.name_any()).or_insert(trial);
        }
    }

    /// A pass of the operator.
    fn pass(&mut self) {
        let verdict = self.verdict();
        self.write(&verdict);
        self.create(&verdict);
    }

    /// One second of all trials.
    fn live(&mut self) {
        self.now += 1;
        let (now, fate, search) = (self.now, self.fate, self.job.clone());
        let runs = |trial: &&mut TrainingJob| !trial.status.as_ref().unwrap().state.is_some_and(State::is_finished);
        for trial in self.trials.values_mut().filter(runs) {
            let wish = wish(&search, search.spec.suspend, trial);
            let Fate { lasts, end, readings } = fate(trial);
            let status = trial.status.as_mut().unwrap();
            let age = now - (status.start_time.as_ref().unwrap().0.as_second() - at(0).as_second());
            let seen = &readings[..readings.len().min(usize::try_from(age).unwrap())];
            status.objective = Some(objective(seen, trial.spec.monitoring.objective.as_ref().unwrap()));
            let conditions = &mut status.conditions;
            let mut finish = |state, type_, reason: &Reason, message: &str| {
                (status.state, status.completion_time) = (Some(state), Some(Time(at(now))));
                set_condition(conditions, type_, true, reason, message, None, at(now));
            };
            if let Some(why) = wish.stop {
                finish(State::Completed, ConditionType::Succeeded, &Reason::StoppedBySearch, &why);
            } else if age >= lasts {
                match end {
                    End::Completes => finish(State::Completed, ConditionType::Succeeded, &Reason::Completed, ""),
                    End::Fails(reason, message) => {
                        finish(State::Failed, ConditionType::Failed, &reason, message);
                        status.failure_reason = Some(reason);
                    }
                }
            }
        }
    }

    fn run(&mut self) {
        for _ in 0..1000 {
            self.pass();
            if self.status().state.is_some_and(TuningState::is_finished) {
                return;
            }
            self.live();
        }
        panic!("the search does not end: {:#?}", self.status());
    }

    /// The values that a user sees of each trial.
    fn table(&self) -> Vec<String> {
        let row = |row: &api::TrialStatus| {
            format!(
                "{} {:?} {:?} end {:?} after {} {:?}",
                row.trial, row.values, row.state, row.end, row.after, row.value
            )
        };
        self.status().trials.iter().map(row).collect()
    }

    fn states(&self) -> Vec<&'static str> {
        self.status().trials.iter().map(|row| row.state.as_str()).collect()
    }
}

fn objective(readings: &[f64], of: &api::Objective) -> ObjectiveStatus {
    let measured = |(at, value): (usize, &f64)| json!({ "value": value, "step": at + 1 });
    let best = readings.iter().enumerate().filter(|(_, value)| !value.is_nan()).min_by(|a, b| a.1.total_cmp(b.1));
    let mut rungs = Vec::new();
    if let Some(declared) = of.rungs {
        let mut step = declared.min_step;
        while let Some(value) = usize::try_from(step - 1).ok().and_then(|at| readings.get(at)) {
            rungs.push(json!({ "step": step, "value": value }));
            step *= declared.factor;
        }
    }
    let mut objective = json!({ "metric": of.metric, "count": readings.len(), "rungs": rungs });
    if let Some(best) = best {
        objective["best"] = measured(best);
    }
    if let Some(last) = readings.iter().enumerate().next_back().filter(|(_, value)| !value.is_nan()) {
        objective["last"] = measured(last);
    }
    serde_json::from_value(objective).unwrap()
}

#[test]
fn search_runs_its_trials_and_finds_the_best() {
    let mut world = World::new(json!({}), ordinary);
    world.run();
    let status = world.status();
    assert_eq!((status.state, status.succeeded, status.failed), (Some(TuningState::Completed), 12, 0));
    assert_eq!(status.progress.as_deref(), Some("12/12"));
    let best = status.best.unwrap();
    let values = status.trials.iter().map(|row| row.value.unwrap());
    assert_eq!(best.value, values.fold(f64::INFINITY, f64::min));
    assert_eq!(best.parameters.keys().collect::<Vec<_>>(), ["act", "learning_rate", "width"]);
    let trial = &world.trials[&best.name];
    assert_eq!(
        trial.spec.hyperparameters.as_ref().unwrap().learning_rate.unwrap().to_string(),
        best.parameters["learning_rate"]
    );
    assert_eq!(trial.labels()[TUNING_JOB], "s");
    assert_eq!(world.events.first().map(String::as_str), Some("SearchStarted"));
    assert!(world.events.iter().any(|event| event == "NewBest"));
    assert_eq!(world.events.last().map(String::as_str), Some("Completed"));
    // 4 GPUs for the seconds of each trial.
    let seconds: i64 = world.trials.values().map(|trial| (world.fate)(trial).lasts).sum();
    assert!((status.gpu_hours - seconds as f64 * 4.0 / 3600.0).abs() < 0.01, "{}", status.gpu_hours);
    // Never more than three at a time.
    let mut changes: Vec<(Timestamp, i32)> = Vec::new();
    for row in &status.trials {
        changes.push((row.start_time.as_ref().unwrap().0, 1));
        changes.push((row.end_time.as_ref().unwrap().0, -1));
    }
    changes.sort();
    let most = changes.iter().scan(0, |running, (_, change)| {
        *running += change;
        Some(*running)
    });
    assert_eq!(most.max(), Some(3));
}

#[test]
fn best_trial_becomes_a_standalone_job() {
    let metadata = json!({ "labels": { "team": "a" }, "annotations": { "note": "b" } });
    let spec = json!({
        "numWorkers": 2, "image": "train", "output": "pvc://results/s", "ttlSecondsAfterFinished": 5,
        "hyperparameters": { "epochs": 3 }, "checkpoint": { "storage": { "type": "s3", "bucket": "b", "prefix": "runs" } },
    });
    let tuning = json!({ "maxTrials": 25, "template": { "metadata": metadata, "spec": spec } });
    let mut world = World::new(tuning, ordinary);
    let none = best_job(&Study::new(&world.job).unwrap(), &world.job);
    assert_eq!(none, None);
    world.run();
    let study = Study::new(&world.job).unwrap();
    let best = world.status().best.unwrap();
    let job = best_job(&study, &world.job).unwrap();
    assert_eq!(job.name_any(), "s-best");
    assert_eq!(job.metadata.owner_references, None);
    assert_eq!(job.status, None);
    assert_eq!(job.labels().keys().collect::<Vec<_>>(), ["team"]);
    assert_eq!(job.annotations().keys().collect::<Vec<_>>(), ["note"]);
    let set = job.spec.hyperparameters.clone().unwrap();
    assert_eq!(set, world.trials[&best.name].spec.hyperparameters.clone().unwrap());
    assert_eq!(set.epochs, Some(3));
    assert_eq!(job.spec.monitoring.objective, None);
    assert_eq!(job.spec.ttl_seconds_after_finished, Some(5));
    assert_eq!(job.spec.output.as_deref(), Some("pvc://results/s/s-best"));
    assert_eq!(job.spec.checkpoint.storage.unwrap().prefix.as_deref(), Some("runs/s-best"));
    // A search that concentrates near the best learning rate learns little about it.
    let mut spread = World::new(json!({ "maxTrials": 60, "method": "random" }), ordinary);
    spread.run();
    let shares = Study::new(&spread.job).unwrap().importance(&spread.status());
    assert_eq!(shares.first().map(|(name, _)| name.as_str()), Some("learning_rate"), "{shares:?}");
}

#[test]
fn grid_size_limits_number_of_trials() {
    let parameters = json!({ "width": { "type": "int", "values": [16, 32, 64] } });
    let grid = search(json!({ "method": "grid", "parameters": parameters }));
    assert_eq!(Study::new(&grid).unwrap().most_trials(), 3);
    assert_eq!(Study::new(&search(json!({}))).unwrap().most_trials(), 12);
}

#[test]
fn recorded_trials_reproduce_the_suggestions() {
    let mut world = World::new(json!({ "maxTrials": 25, "parallelTrials": 4 }), ordinary);
    world.run();
    let status = world.status();
    let study = Study::new(&world.job).unwrap();
    for (at, row) in status.trials.iter().enumerate() {
        assert_eq!(study.suggestion(&status, at).unwrap(), row.values, "trial {}", row.trial);
    }
    assert!(status.trials.windows(2).all(|pair| pair[0].after <= pair[1].after));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Killed before the status is written, before trials are created, or between two of them.
    #[test]
    fn killed_operator_produces_same_result_table(kills in prop::collection::vec(0_u8..6, 80)) {
        let mut undisturbed = World::new(json!({}), ordinary);
        undisturbed.run();
        let mut world = World::new(json!({}), ordinary);
        let mut kills = kills.into_iter();
        for _ in 0..1000 {
            // Time passes only after a whole pass.
            loop {
                let mut verdict = world.verdict();
                match kills.next() {
                    Some(0) => {}
                    Some(1) => world.write(&verdict),
                    Some(2) => {
                        world.write(&verdict);
                        verdict.create.truncate(1);
                        world.create(&verdict);
                    }
                    _ => {
                        world.write(&verdict);
                        world.create(&verdict);
                        break;
                    }
                }
            }
            if world.status().state.is_some_and(TuningState::is_finished) {
                break;
            }
            world.live();
        }
        prop_assert_eq!(world.table(), undisturbed.table());
    }
}

/// The operator was away while several trials ended.
#[test]
fn trials_that_end_together_are_counted_one_by_one() {
    let mut undisturbed = World::new(json!({ "parallelTrials": 4 }), slow);
    undisturbed.run();
    fn slow(trial: &TrainingJob) -> Fate {
        let fate = ordinary(trial);
        Fate { lasts: 100 + fate.lasts, ..fate }
    }
    let mut world = World::new(json!({ "parallelTrials": 4 }), slow);
    world.pass();
    (0..200).for_each(|_| world.live());
    world.pass();
    let after: Vec<u32> = world.status().trials.iter().map(|row| row.after).collect();
    assert_eq!(after, [0, 0, 0, 0, 1, 2, 3, 4]);
    let of_first_eight =
        |world: &World| world.status().trials.iter().take(8).map(|row| row.values.clone()).collect::<Vec<_>>();
    assert_eq!(of_first_eight(&world), of_first_eight(&undisturbed));
}

#[test]
fn a_trial_is_recorded_before_it_is_created() {
    let mut world = World::new(json!({}), ordinary);
    let verdict = world.verdict();
    assert_eq!(verdict.create.len(), 3);
    assert_eq!(verdict.status.trials.len(), 3);
    world.write(&verdict);
    // The same again: nothing was created, and nothing new is suggested.
    let again = world.verdict();
    assert_eq!(again.status, world.status());
    assert_eq!(again.create, verdict.create);
}

#[test]
fn deleted_trial_is_recreated() {
    let mut world = World::new(json!({}), ordinary);
    world.pass();
    let deleted = world.trials.remove("s-2").unwrap();
    let verdict = world.verdict();
    assert_eq!(verdict.create.len(), 1);
    assert_eq!((verdict.create[0].name_any(), &verdict.create[0].spec), ("s-2".to_owned(), &deleted.spec));
    // Recorded trials need no job.
    world.run();
    world.trials.clear();
    assert_eq!(world.verdict().create, []);
}

#[test]
fn failed_trials_are_counted_and_quoted() {
    fn fails_with_tanh(trial: &TrainingJob) -> Fate {
        let is_tanh = trial.spec.hyperparameters.as_ref().unwrap().additional_params["act"] == "tanh";
        let end = if is_tanh { End::Fails(Reason::CudaOutOfMemory, "worker 0: out of memory") } else { End::Completes };
        Fate { end, ..ordinary(trial) }
    }
    let mut world = World::new(json!({ "maxTrials": 24, "maxFailedTrials": 24 }), fails_with_tanh);
    world.run();
    let status = world.status();
    assert_eq!(status.state, Some(TuningState::Completed));
    assert_eq!(status.succeeded + status.failed, 24);
    assert!(status.failed >= 3 && status.succeeded > status.failed, "{} failed", status.failed);
    let [failures] = &status.failures[..] else { panic!("{:?}", status.failures) };
    assert_eq!((failures.reason.clone(), failures.trials), (Reason::CudaOutOfMemory, status.failed));
    assert_eq!(failures.message, "worker 0: out of memory");

    let mut world = World::new(json!({ "maxFailedTrials": 3 }), |trial| Fate {
        end: End::Fails(Reason::PythonException, "ValueError: no such file"),
        ..ordinary(trial)
    });
    world.run();
    let status = world.status();
    assert_eq!((status.state, status.reason), (Some(TuningState::Failed), Some(Reason::TrialsFailed)));
    let failed = status.conditions.iter().find(|condition| condition.type_ == "Failed").unwrap();
    assert!(
        failed.message.contains("maxFailedTrials is 3") && failed.message.contains("no such file"),
        "{}",
        failed.message
    );
    assert!(status.trials.len() <= 5, "{:?}", world.states());
    // A higher limit continues.
    world.job.spec.tuning.max_failed_trials = Some(12);
    world.fate = ordinary;
    world.run();
    assert_eq!(world.status().state, Some(TuningState::Completed));
    assert_eq!(world.status().completion_time.map(|time| time.0), Some(at(world.now)));
}

#[test]
fn failures_not_caused_by_hyperparameters_are_retried() {
    fn on_bad_nodes(trial: &TrainingJob) -> Fate {
        let end = match trial.name_any().as_str() {
            "s-2" | "s-2-r1" => End::Fails(Reason::NodeLost, "node a is gone"),
            name if name.starts_with("s-3") => End::Fails(Reason::Evicted, "no room"),
            _ => End::Completes,
        };
        Fate { end, ..ordinary(trial) }
    }
    let mut world = World::new(json!({}), on_bad_nodes);
    world.run();
    let status = world.status();
    let row = |trial: usize| &status.trials[trial - 1];
    assert_eq!((row(2).state, row(2).retries), (TrialState::Succeeded, Some(2)));
    assert!(world.trials.contains_key("s-2-r2"));
    assert_eq!(
        (row(3).state, row(3).retries, row(3).reason.clone()),
        (TrialState::Failed, Some(3), Some(Reason::Evicted))
    );
    assert_eq!(world.events.iter().filter(|event| *event == "TrialRetried").count(), 5);
}

#[test]
fn nan_is_a_result_and_missing_reading_is_a_failure() {
    fn odd(trial: &TrainingJob) -> Fate {
        let fate = ordinary(trial);
        match trial.name_any().as_str() {
            "s-1" => Fate { readings: vec![f64::NAN; 3], ..fate },
            "s-2" => Fate { end: End::Fails(Reason::NanLoss, "loss is NaN"), ..fate },
            "s-3" => Fate { readings: Vec::new(), ..fate },
            _ => fate,
        }
    }
    let mut world = World::new(json!({}), odd);
    world.run();
    let status = world.status();
    let row = |trial: usize| &status.trials[trial - 1];
    assert!(row(1).state == TrialState::Succeeded && row(1).value.unwrap().is_nan());
    assert!(row(2).state == TrialState::Succeeded && row(2).value.unwrap().is_nan());
    assert_eq!((row(3).state, row(3).reason.clone()), (TrialState::Failed, Some(Reason::MetricMissing)));
    assert!(status.failures[0].message.starts_with("the program never reported loss; it reported no metric at all"));
    assert!(status.best.unwrap().value.is_finite());
}

#[test]
fn early_stopping_ends_bad_trials_and_keeps_good_ones() {
    let long = |trial: &TrainingJob| Fate {
        lasts: 32,
        readings: (1..=32).map(|step| *ordinary(trial).readings.last().unwrap() + 1.0 / f64::from(step)).collect(),
        end: End::Completes,
    };
    let tuning = json!({ "maxTrials": 24, "earlyStopping": { "minStep": 2, "factor": 2 } });
    let mut world = World::new(tuning, long);
    world.run();
    let status = world.status();
    assert!(status.stopped >= 6 && status.succeeded >= 2, "{:?}", world.states());
    assert_eq!(status.stopped + status.succeeded, 24);
    for row in status.trials.iter().filter(|row| row.state == TrialState::Stopped) {
        assert_eq!(row.reason, Some(Reason::EarlyStopped));
        assert!(row.step < Some(32) && row.value.is_some(), "{row:?}");
        let trial = &world.trials[&format!("s-{}", row.trial)];
        let succeeded = trial.status.as_ref().unwrap().conditions.iter().find(|c| c.type_ == "Succeeded").unwrap();
        assert!(succeeded.message.starts_with("loss ranked "), "{}", succeeded.message);
    }
    // The rungs reach 2, 4, 8, 16 and 32.
    assert_eq!(status.rungs.len(), 5);
    assert_eq!(status.rungs[0].len(), 24);
    let best = status.best.unwrap();
    let undisturbed = status.trials.iter().map(|row| row.value.unwrap()).fold(f64::INFINITY, f64::min);
    assert_eq!(best.value, undisturbed);
}

#[test]
fn suspended_search_starts_no_trials() {
    let mut world = World::new(json!({}), ordinary);
    world.pass();
    world.job.spec.suspend = true;
    world.trials.remove("s-1");
    let verdict = world.verdict();
    assert_eq!((verdict.status.state, verdict.create.len()), (Some(TuningState::Suspended), 0));
    world.write(&verdict);
    let of_first = wish(&world.job, true, &world.trials["s-2"]);
    assert!(of_first.held.is_some_and(|held| held.contains("TuningJob s")) && of_first.stop.is_none());
    world.job.spec.suspend = false;
    assert_eq!(world.verdict().create.len(), 1);
    world.run();
    assert_eq!(world.status().succeeded, 12);
}

#[test]
fn raised_max_trials_continue_a_finished_search() {
    let mut world = World::new(json!({}), ordinary);
    world.run();
    let table = world.table();
    world.job.spec.tuning.max_trials = 20;
    world.run();
    assert_eq!(world.table()[..12], table[..]);
    assert_eq!(world.status().trials.len(), 20);
    // Fewer cause no harm.
    world.job.spec.tuning.max_trials = 5;
    world.pass();
    assert_eq!(world.status().state, Some(TuningState::Completed));
    assert_eq!(world.status().trials.len(), 20);
}

#[test]
fn gpu_hour_budget_ends_the_search() {
    let mut world = World::new(json!({ "gpuHours": 0.05 }), ordinary);
    world.run();
    let status = world.status();
    assert_eq!((status.state, status.reason), (Some(TuningState::Completed), Some(Reason::GpuHoursUsed)));
    assert!(status.gpu_hours >= 0.05 && status.trials.len() < 12, "{} {}", status.gpu_hours, status.trials.len());
    world.job.spec.tuning.gpu_hours = None;
    world.run();
    assert_eq!(world.status().trials.len(), 12);
}

#[test]
fn grid_search_ends_with_its_last_point() {
    let tuning = json!({ "method": "grid", "parameters": {
        "learning_rate": { "type": "double", "values": [0.001, 0.01] },
        "width": { "type": "int", "values": [16, 32, 64] },
    }});
    let mut world = World::new(tuning, ordinary);
    world.run();
    let status = world.status();
    assert_eq!((status.state, status.succeeded), (Some(TuningState::Completed), 6));
    let succeeded = status.conditions.iter().find(|condition| condition.type_ == "Succeeded").unwrap();
    assert!(succeeded.message.starts_with("the grid has no further point: 6 trials"), "{}", succeeded.message);
}

#[test]
fn invalid_declarations_are_refused_by_field() {
    let refused = |tuning: Value| {
        let world = World::new(tuning, ordinary);
        let status = world.verdict().status;
        assert_eq!((status.state, status.trials.len()), (Some(TuningState::Pending), 0));
        let accepted = status.conditions.iter().find(|condition| condition.type_ == "Accepted").unwrap();
        assert_eq!(accepted.status, "False");
        accepted.message.clone()
    };
    let lr = json!({ "type": "double", "min": 0.1, "max": 1 });
    let cases = [
        (json!({ "parameters": { "lr": lr, "l_r": lr } }), "parameters.lr: it is the same hyperparameter as l_r"),
        (
            json!({ "template": { "spec": { "numWorkers": 1, "hyperparameters": { "learningRate": 0.1 } } } }),
            "template.spec.hyperparameters.learningRate: parameters.learning_rate gives each trial its own value",
        ),
        (
            json!({ "template": { "spec": { "numWorkers": 1, "monitoring": { "enabled": false } } } }),
            "template.spec.monitoring.enabled: without it",
        ),
        (
            json!({ "template": { "spec": { "numWorkers": 1, "checkpoint": { "storage": { "type": "pvc", "pvcName": "c" } } } } }),
            "template.spec.checkpoint.storage.pvcName: all trials would write into one folder",
        ),
        (
            json!({ "parameters": { "lr": { "type": "double", "min": 0.1, "max": 1, "when": { "parameter": "no", "values": ["a"] } } } }),
            "parameters.lr.when",
        ),
    ];
    for (tuning, words) in cases {
        let message = refused(tuning);
        assert!(message.contains(words), "{message}");
    }
    let world = World::new(json!({}), ordinary);
    assert!(world.verdict_checked(None).needs_check);
    let why = Some(Err((Reason::RuntimeNotFound, "there is no TrainingRuntime gpu".to_owned())));
    let status = world.verdict_checked(why).status;
    assert_eq!((status.reason, status.state), (Some(Reason::RuntimeNotFound), Some(TuningState::Pending)));
}

#[test]
fn conditional_hyperparameters_are_left_out() {
    let tuning = json!({ "method": "random", "maxTrials": 30, "parameters": {
        "learning_rate": { "type": "double", "min": 0.001, "max": 0.1 },
        "width": { "type": "int", "values": [16, 32] },
        "act": { "type": "categorical", "choices": ["relu", "16"] },
        "slope": { "type": "double", "min": 0.1, "max": 0.2, "when": { "parameter": "act", "values": [16] } },
        "rows": { "type": "int", "min": 1, "max": 9, "when": { "parameter": "width", "values": [32] } },
    }});
    let mut world = World::new(tuning, ordinary);
    world.run();
    let (mut with, mut without) = (0, 0);
    for trial in world.trials.values() {
        let set = &trial.spec.hyperparameters.as_ref().unwrap().additional_params;
        assert_eq!(set.contains_key("slope"), set["act"] == "16");
        assert_eq!(set.contains_key("rows"), set["width"] == "32");
        *(if set.contains_key("slope") { &mut with } else { &mut without }) += 1;
    }
    assert!(with > 3 && without > 3, "{with} {without}");
}

#[test]
fn trials_have_their_own_output_and_checkpoints() {
    let tuning = json!({ "maxTrials": 2, "template": { "metadata": { "labels": { "team": "a" } }, "spec": {
        "numWorkers": 1, "output": "pvc://results/runs", "ttlSecondsAfterFinished": 1,
        "checkpoint": { "storage": { "type": "s3", "s3Bucket": "bucket", "prefix": "team/x" } },
    }}});
    let mut world = World::new(tuning, ordinary);
    world.pass();
    let trial = &world.trials["s-2"];
    assert_eq!(trial.spec.output.as_deref(), Some("pvc://results/runs/s-2"));
    assert_eq!(trial.spec.checkpoint.storage.as_ref().unwrap().prefix.as_deref(), Some("team/x/s-2"));
    assert_eq!(trial.spec.ttl_seconds_after_finished, Some(300));
    assert_eq!((trial.labels()["team"].as_str(), trial.labels()[TRIAL].as_str()), ("a", "2"));
    let objective = trial.spec.monitoring.objective.as_ref().unwrap();
    assert_eq!((objective.metric.as_str(), objective.mode), ("loss", Some(api::Mode::Min)));
}

#[test]
fn warm_start_takes_earlier_results_within_space() {
    let mut first = World::new(json!({ "maxTrials": 15 }), ordinary);
    first.run();
    let mut second = World::new(json!({ "maxTrials": 3, "warmStartFrom": ["first"] }), ordinary);
    let earlier = {
        let study = Study::new(&second.job).unwrap();
        earlier(&study, &[("first".to_owned(), Some(&first.job))]).unwrap()
    };
    assert_eq!(earlier.len(), 15);
    let verdict = second.verdict_checked(Some(Ok(earlier)));
    second.write(&verdict);
    second.create(&verdict);
    second.run();
    // It begins where the first one ended, not with evenly spread trials.
    let best = |world: &World| world.status().best.unwrap().value;
    let begins = World::new(json!({ "maxTrials": 3 }), ordinary);
    let mut begins = begins;
    begins.run();
    assert!(best(&second) < best(&begins), "{} {}", best(&second), best(&begins));
    let study = Study::new(&second.job).unwrap();
    let missing = super::earlier(&study, &[("gone".to_owned(), None)]).unwrap_err();
    assert!(missing.contains("there is no TuningJob gone"), "{missing}");
}

#[test]
fn largest_search_fits_into_its_status() {
    let parameters: serde_json::Map<String, Value> = (0..20)
        .map(|at| {
            let name = format!("p{at:0>62}");
            assert_eq!(name.len(), 63);
            (name, json!({ "type": "double", "min": 1e-9, "max": 0.1, "scale": "log" }))
        })
        .collect();
    fn fate(trial: &TrainingJob) -> Fate {
        let value = trial.spec.hyperparameters.as_ref().unwrap().additional_params.values().next().unwrap();
        let value: f64 = value.parse().unwrap();
        Fate { lasts: 4, end: End::Completes, readings: (1..=4).map(|step| value / f64::from(step) / 3.0).collect() }
    }
    let tuning = json!({
        "method": "random", "maxTrials": 1000, "parallelTrials": 100, "parameters": parameters,
        "earlyStopping": { "minStep": 1, "factor": 2 },
    });
    let mut world = World::new(tuning, fate);
    world.run();
    let size = serde_json::to_string(&world.status()).unwrap().len();
    assert!(size < 700_000, "{size} bytes");
    // The operator must be able to read it again.
    let text = serde_json::to_string(&world.job).unwrap();
    assert!(serde_json::from_str::<api::Guarded<TuningJob>>(&text).unwrap().0.is_ok());
}
