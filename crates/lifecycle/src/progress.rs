//! Folds the agents' reports into the status, and decides whether the job is good enough. Pure.

use super::conditions::whole_second;
use api::{BestLoss, EarlyStopping, EarlyStoppingStatus, LOSSES, Mode, ProgramMetrics, Reason, TrainingJobStatus};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use observe::AgentAnswer;
use plan::Success;
use protocol::agent_status::AgentStatus as Agent;
use protocol::metric_history::{MetricHistory, NumberedReading};
use protocol::progress::{ACCURACY, LEARNING_RATE, LOSS, Reading, THROUGHPUT};
use protocol::report::LastProgress;
use std::collections::BTreeMap;

/// Share by which a loss must be lower than the best one to count as an improvement.
const IMPROVEMENT: f64 = 0.001;
/// Metrics of a program's own names in a status, at most.
const MAX_METRICS: usize = 100;

/// Adds what a running program reports. Values that it never reported stay unchanged.
pub fn fold(mut status: TrainingJobStatus, answer: &AgentAnswer) -> TrainingJobStatus {
    let agent: &Agent = &answer.status;
    let progress = &agent.progress;
    let value = |reading: Option<Reading>| reading.map(|reading| reading.value);
    let reached = LastProgress {
        epoch: value(progress.epoch),
        epochs: value(progress.epochs),
        step: value(progress.step),
        steps: value(progress.steps),
        percent: agent.percent,
        loss: None,
        time: progress.last().map(|reading| reading.time),
    };
    count(&mut status, &reached);
    let is_over = agent.percent.is_some_and(|percent| percent >= 100.0);
    let eta = value(progress.eta_seconds).and_then(whole).or(answer.remaining).filter(|_| !is_over);
    status.estimated_seconds_remaining = eta;
    let mut metrics = status.metrics.take().unwrap_or_default();
    for (name, reading) in &progress.metrics {
        set(&mut metrics, name, reading.value);
    }
    if let Some(mean) = agent.gpu_utilization() {
        metrics.gpu_utilization = finite(mean);
    }
    status.metrics = Some(metrics).filter(|metrics| *metrics != ProgramMetrics::default());
    status
}

/// Adds the final progress of a program that has ended, which the last query may have missed.
pub fn fold_end(mut status: TrainingJobStatus, reached: &LastProgress) -> TrainingJobStatus {
    status.estimated_seconds_remaining = None;
    let known = status.last_progress_time.as_ref().map(|time| time.0);
    if reached.time.is_none_or(|time| known.is_some_and(|known| whole_second(time) < known)) {
        return status;
    }
    count(&mut status, reached);
    if let Some(loss) = reached.loss {
        let mut metrics = status.metrics.take().unwrap_or_default();
        set(&mut metrics, LOSS, loss);
        status.metrics = Some(metrics).filter(|metrics| *metrics != ProgramMetrics::default());
    }
    status
}

/// Once nothing runs, GPUs are idle and no time remains.
pub fn end(mut status: TrainingJobStatus) -> TrainingJobStatus {
    status.estimated_seconds_remaining = None;
    if let Some(metrics) = &mut status.metrics {
        metrics.gpu_utilization = None;
    }
    status.metrics.take_if(|metrics| *metrics == ProgramMetrics::default());
    status
}

fn count(status: &mut TrainingJobStatus, reached: &LastProgress) {
    // An epoch of 2.4 is within the third one: 2 are done.
    let known = |field: &mut Option<i64>, value: Option<f64>| *field = value.and_then(whole).or(*field);
    known(&mut status.current_epoch, reached.epoch);
    known(&mut status.total_epochs, reached.epochs);
    known(&mut status.current_step, reached.step);
    known(&mut status.total_steps, reached.steps);
    if let Some(percent) = reached.percent.and_then(whole) {
        status.progress = Some(format!("{percent}%"));
    }
    if let Some(time) = reached.time {
        status.last_progress_time = Some(Time(whole_second(time)));
    }
}

#[allow(clippy::cast_possible_truncation)] // the value is in range
pub(super) fn whole(value: f64) -> Option<i64> {
    (value.is_finite() && value.abs() < 1e15).then_some(value.floor() as i64)
}

/// JSON can't represent other values. Six digits are enough for readers.
pub(super) fn finite(value: f64) -> Option<f64> {
    value.is_finite().then(|| format!("{value:.5e}").parse().unwrap_or(value))
}

fn set(metrics: &mut ProgramMetrics, name: &str, value: f64) {
    let value = finite(value);
    let custom = &mut metrics.custom_metrics;
    match name {
        LOSS => metrics.loss = value,
        ACCURACY => metrics.accuracy = value,
        LEARNING_RATE => metrics.learning_rate = value,
        THROUGHPUT => metrics.throughput = value,
        _ => match value {
            // Names may change from answer to answer; the status must not grow with them.
            Some(value) if custom.len() < MAX_METRICS || custom.contains_key(name) => {
                _ = custom.insert(name.to_owned(), value);
            }
            Some(_) => {}
            None => _ = custom.remove(name),
        },
    }
}

/// Why the job is good enough: a reason in one CamelCase word, and a message.
pub fn success(policy: &Success, status: &TrainingJobStatus, agent: &AgentAnswer) -> Option<(Reason, String)> {
    let histories = &agent.status.histories;
    // Any of the readings counts, because the program may have continued since.
    let reached = |name: &str, is_enough: &dyn Fn(&NumberedReading) -> bool| {
        let reading = histories.get(name)?.recent.iter().find(|reading| is_enough(reading))?;
        let at = reading.step.and_then(whole).map(|step| format!(" at step {step}")).unwrap_or_default();
        // In the program's own unit.
        let percent = finite(reading.value * 100.0).filter(|_| reading.is_percentage);
        Some((percent.map_or(reading.value.to_string(), |percent| format!("{percent}%")), at))
    };
    if let Some(target) = policy.target_accuracy
        && let Some((value, at)) = reached(ACCURACY, &|reading| reading.reaches(target))
    {
        let message = format!("accuracy {value} reached successPolicy.targetAccuracy {target}{at}");
        return Some((Reason::TargetAccuracyReached, message));
    }
    if let Some(target) = policy.target_loss
        && let Some((value, at)) = reached(LOSS, &|reading| reading.value <= target)
    {
        return Some((
            Reason::TargetLossReached,
            format!("loss {value} reached successPolicy.targetLoss {target}{at}"),
        ));
    }
    let stopping = policy.early_stopping.as_ref()?;
    let stands = status.early_stopping.as_ref()?;
    (stands.evaluations_since_best >= stopping.patience).then(|| {
        let message = format!(
            "{} was {} at best and has not got better in {} evaluations (successPolicy.earlyStopping)",
            stands.metric, stands.best, stands.evaluations_since_best
        );
        (Reason::EarlyStopped, message)
    })
}

/// The best loss of this attempt after one more reading, which was taken at this step.
pub fn best_loss(
    known: Option<BestLoss>,
    attempt: u32,
    step: Option<i64>,
    reading: Option<&Reading>,
) -> Option<BestLoss> {
    let Some((value, time)) = reading.and_then(|reading| Some((finite(reading.value)?, reading.time))) else {
        return known;
    };
    let is_best = known
        .as_ref()
        .is_none_or(|best| best.attempt != attempt || value < best.value - best.value.abs() * IMPROVEMENT);
    if is_best { Some(BestLoss { value, time: Time(whole_second(time)), step, attempt }) } else { known }
}

/// Counts the evaluations that the agent has seen since the last call. Steps that an earlier attempt had evaluated do
/// not count twice when a restarted program reports them again.
pub fn evaluate(
    policy: &EarlyStopping,
    known: Option<&EarlyStoppingStatus>,
    attempt: u32,
    program_started: Option<Timestamp>,
    histories: &BTreeMap<String, MetricHistory>,
) -> Option<EarlyStoppingStatus> {
    let is_there = |name: &&str| histories.get(*name).is_some_and(|history| history.count > 0);
    let chosen = match &policy.metric {
        Some(metric) => Some(metric.as_str()),
        // The metric from before stays, until one that takes precedence over it is reported.
        None => LOSSES.into_iter().find(|name| is_there(name) || known.is_some_and(|known| known.metric == *name)),
    };
    let Some((name, history)) = chosen.and_then(|name| Some((name, histories.get(name)?))) else {
        return known.cloned();
    };
    let program_started = program_started.map(|time| Time(whole_second(time)));
    let mut stands = known.filter(|known| known.metric == name).cloned();
    for reading in &history.recent {
        let step = reading.step.and_then(whole);
        if let Some(stands) = &stands {
            let is_same = stands.attempt == attempt && stands.program_started == program_started;
            let is_old = is_same && i64::try_from(reading.n).is_ok_and(|n| n <= stands.evaluations);
            let is_again = !is_same && step.is_some() && step <= stands.step;
            if is_old || is_again {
                continue;
            }
        }
        let better = |best: f64| match policy.mode {
            Mode::Min => reading.value < best - policy.min_delta,
            Mode::Max => reading.value > best + policy.min_delta,
        };
        let value = finite(reading.value);
        let last = stands.take();
        let (best, evaluations_since_best) = match (&last, value) {
            (Some(last), Some(value)) if better(last.best) => (value, 0),
            (Some(last), _) => (last.best, last.evaluations_since_best + 1),
            (None, Some(value)) => (value, 0),
            // NaN before there was a value to compare with.
            (None, None) => continue,
        };
        let evaluations = i64::try_from(reading.n).unwrap_or(i64::MAX);
        let (metric, step) = (name.to_owned(), step.or(last.and_then(|last| last.step)));
        stands = Some(EarlyStoppingStatus {
            metric,
            best,
            evaluations_since_best,
            attempt,
            program_started: program_started.clone(),
            evaluations,
            step,
        });
    }
    stands
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::progress::{Progress, Source};
    use protocol::report::Report;
    use std::sync::Arc;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    fn answer(agent: Agent) -> AgentAnswer {
        let report = Report { attempt: 1, ..agent.report.clone() };
        let status = Arc::new(Agent { report, ..agent });
        AgentAnswer { status, time: at(9), failing_since: None, remaining: Some(77) }
    }

    #[expect(clippy::unnecessary_wraps, reason = "fits where it is used")]
    fn reading(value: f64) -> Option<Reading> {
        Some(Reading { value, time: at(8), source: Source::Output })
    }

    fn watched(readings: &[(u64, f64, Option<f64>)]) -> MetricHistory {
        let recent =
            readings.iter().map(|&(n, value, step)| NumberedReading { n, value, step, is_percentage: false }).collect();
        MetricHistory { count: readings.last().map_or(0, |(n, _, _)| *n), recent }
    }

    #[test]
    fn best_loss_is_tracked_per_attempt() {
        let best =
            |known: Option<BestLoss>, attempt, value| best_loss(known, attempt, Some(1), reading(value).as_ref());
        let value = |best: &Option<BestLoss>| best.as_ref().map(|best| (best.attempt, best.value));
        assert_eq!(value(&best(None, 1, f64::NAN)), None);
        let first = best(None, 1, 2.0);
        assert_eq!(value(&first), Some((1, 2.0)));
        for (attempt, reading, expected) in [
            (1, 1.999, (1, 2.0)),
            (1, 1.9, (1, 1.9)),
            (1, f64::NEG_INFINITY, (1, 2.0)),
            (2, 3.0, (2, 3.0)),
            (2, f64::NAN, (1, 2.0)),
        ] {
            assert_eq!(value(&best(first.clone(), attempt, reading)), Some(expected), "{attempt} {reading}");
        }
        assert_eq!(best_loss(first.clone(), 2, None, None), first);
        let negative = best(None, 1, -1.0);
        assert_eq!(value(&best(negative.clone(), 1, -1.000_5)), Some((1, -1.0)));
        assert_eq!(value(&best(negative, 1, -1.1)), Some((1, -1.1)));
    }

    #[test]
    fn unreported_progress_is_absent_from_status() {
        let status = fold(TrainingJobStatus::default(), &answer(Agent::default()));
        let expected = TrainingJobStatus { estimated_seconds_remaining: Some(77), ..TrainingJobStatus::default() };
        assert_eq!(status, expected);
    }

    #[test]
    fn reported_progress_is_written_to_status() {
        let metrics = [(LOSS, 0.123_456_789), (ACCURACY, f64::NAN), ("eval_loss", 2.0)];
        let progress = Progress {
            epoch: reading(2.4),
            epochs: reading(10.0),
            step: reading(240.0),
            steps: reading(1000.0),
            metrics: metrics.map(|(name, value)| (name.to_owned(), reading(value).unwrap())).into(),
            ..Progress::default()
        };
        let agent = Agent { percent: Some(24.9), progress, ..Agent::default() };
        let mut status = fold(TrainingJobStatus::default(), &answer(agent));
        assert_eq!(status.progress.as_deref(), Some("24%"), "not before it is done");
        assert_eq!((status.current_epoch, status.total_epochs), (Some(2), Some(10)));
        assert_eq!((status.current_step, status.total_steps), (Some(240), Some(1000)));
        let metrics = status.metrics.clone().unwrap();
        assert_eq!((metrics.loss, metrics.accuracy), (Some(0.123_457), None), "NaN has no number in JSON");
        assert_eq!(metrics.custom_metrics["eval_loss"], 2.0);

        // Names that change from answer to answer don't pile up.
        for n in 0..300 {
            let metrics = [(format!("m{n}"), reading(1.0).unwrap())].into();
            let agent = Agent { progress: Progress { metrics, ..Progress::default() }, ..Agent::default() };
            status = fold(status, &answer(agent));
        }
        let custom = status.metrics.clone().unwrap().custom_metrics;
        assert_eq!((custom.len(), custom["eval_loss"]), (MAX_METRICS, 2.0));

        // The final report adds progress and removes none.
        let reached =
            LastProgress { step: Some(1000.0), percent: Some(100.0), time: Some(at(20)), ..LastProgress::default() };
        status = fold_end(status, &reached);
        assert_eq!((status.progress.as_deref(), status.current_step), (Some("100%"), Some(1000)));
        assert_eq!((status.current_epoch, status.estimated_seconds_remaining), (Some(2), None));
        status = fold_end(status, &LastProgress { step: Some(1.0), time: Some(at(3)), ..LastProgress::default() });
        assert_eq!(status.current_step, Some(1000), "older words");
    }

    #[test]
    fn target_accuracy_and_loss_are_detected() {
        let policy = |accuracy, loss| Success { target_accuracy: accuracy, target_loss: loss, ..Success::default() };
        let readings = |name: &str, values: &[f64]| {
            let readings: Vec<_> = (1..).zip(values).map(|(n, value)| (n, *value, Some(10.0 * n as f64))).collect();
            answer(Agent { histories: [(name.to_owned(), watched(&readings))].into(), ..Agent::default() })
        };
        let status = TrainingJobStatus::default();
        // A peak between two queries counts.
        let accuracy = readings(ACCURACY, &[0.5, 0.96, 0.94]);
        let (reason, message) = success(&policy(Some(0.95), None), &status, &accuracy).unwrap();
        assert_eq!(reason, Reason::TargetAccuracyReached);
        assert_eq!(message, "accuracy 0.96 reached successPolicy.targetAccuracy 0.95 at step 20");
        assert_eq!(success(&policy(Some(0.97), None), &status, &accuracy), None);
        // A program that prints "95.5%".
        let recent = [NumberedReading { n: 1, value: 0.955, step: None, is_percentage: true }].into();
        let history = MetricHistory { count: 1, recent };
        let percent = answer(Agent { histories: [(ACCURACY.to_owned(), history)].into(), ..Agent::default() });
        let (_, message) = success(&policy(Some(95.0), None), &status, &percent).unwrap();
        assert_eq!(message, "accuracy 95.5% reached successPolicy.targetAccuracy 95");
        assert!(success(&policy(Some(0.95), None), &status, &percent).is_some());
        for target in [96.0, 0.96] {
            assert_eq!(success(&policy(Some(target), None), &status, &percent), None, "{target}");
        }
        let loss = readings(LOSS, &[f64::NAN, 0.5]);
        assert_eq!(success(&policy(None, Some(0.5)), &status, &loss).unwrap().0, Reason::TargetLossReached);
        assert_eq!(success(&policy(None, Some(0.4)), &status, &loss), None);
    }

    #[test]
    fn evaluations_since_best_are_counted() {
        let policy = |mode, min_delta| EarlyStopping { metric: Some("m".into()), mode, patience: 2, min_delta };
        let count = |mode, min_delta, values: &[f64]| {
            let readings: Vec<_> = (1..).zip(values).map(|(n, value)| (n, *value, None)).collect();
            let stands =
                evaluate(&policy(mode, min_delta), None, 1, None, &[("m".to_owned(), watched(&readings))].into())
                    .unwrap();
            (stands.best, stands.evaluations_since_best)
        };
        assert_eq!(count(Mode::Min, 0.0, &[3.0, 2.0, 2.5, 2.0]), (2.0, 2));
        assert_eq!(count(Mode::Max, 0.0, &[3.0, 2.0, 4.0]), (4.0, 0));
        assert_eq!(count(Mode::Min, 0.5, &[3.0, 2.6, 2.4]), (2.4, 0), "of the best, not of the last");
        assert_eq!(count(Mode::Min, 0.0, &[f64::NAN, 3.0, f64::NAN, f64::INFINITY]), (3.0, 2));
    }

    /// No repeated query, no other operator and no restart of the gang counts an evaluation twice or forgets one.
    #[test]
    fn early_stopping_state_survives_restarts() {
        let policy = EarlyStopping { metric: None, mode: Mode::Min, patience: 9, min_delta: 0.0 };
        let see = |known: Option<&EarlyStoppingStatus>, attempt, name: &str, readings: &[(u64, f64, Option<f64>)]| {
            evaluate(&policy, known, attempt, None, &[(name.to_owned(), watched(readings))].into()).unwrap()
        };
        let first = [(1, 5.0, Some(10.0)), (2, 4.0, Some(20.0)), (3, 4.5, Some(30.0))];
        let one = see(None, 1, "eval_loss", &first);
        assert_eq!((one.best, one.evaluations_since_best, one.evaluations, one.step), (4.0, 1, 3, Some(30)));
        assert_eq!(see(Some(&one), 1, "eval_loss", &first), one);
        // The next attempt begins at step 20. It evaluates step 30 once more, then continues.
        let again = see(Some(&one), 2, "eval_loss", &[(1, 4.4, Some(30.0))]);
        assert_eq!(again, one);
        let on = see(Some(&again), 2, "eval_loss", &[(1, 4.4, Some(30.0)), (2, 4.2, Some(40.0))]);
        assert_eq!((on.best, on.evaluations_since_best, on.attempt, on.evaluations), (4.0, 2, 2, 2));
        // A queue stopped the program and resumed it. The program counts from 1 again.
        let let_go = |known: &EarlyStoppingStatus, second| {
            let readings = [(1, 4.3, Some(50.0)), (2, 4.3, Some(60.0))];
            let histories = [("eval_loss".to_owned(), watched(&readings))].into();
            evaluate(&policy, Some(known), 2, Some(at(second)), &histories).unwrap()
        };
        let resumed = let_go(&on, 100);
        assert_eq!((resumed.evaluations_since_best, resumed.evaluations, resumed.step), (4, 2, Some(60)));
        assert_eq!(let_go(&resumed, 100), resumed, "no look more counts them twice");
        // A training loss is watched only until an evaluation loss is reported.
        let loss = see(None, 1, "loss", &first);
        assert_eq!(see(Some(&loss), 1, "eval_loss", &[(1, 7.0, None)]).best, 7.0);
        assert_eq!(see(Some(&one), 1, "loss", &first), one);
    }
}
