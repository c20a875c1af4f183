//! One search on one screen, its trials as CSV, and its best trial as a TrainingJob.

use super::advice;
use super::convert::yaml;
use super::screen::{DisplayOptions, Screen, Style, age, bar, count, number, span};
use super::why::{Diagnosis, Health};
use api::{TrainingJob, TrialState, TrialStatus, TuningGoal, TuningJob, TuningJobStatus, TuningMethod, TuningState};
use jiff::Timestamp;
use kube::{Resource, ResourceExt};
use lifecycle::{condition, condition_is};
use serde::Serialize;
use serde_json::{Value, json};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use trials::Study;

/// Columns of the curve.
const CURVE: usize = 60;
/// Columns of a bar of importance.
const BAR: usize = 20;
/// Heights of the curve.
const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Columns that every CSV has. A hyperparameter with such a name gets the prefix `parameters.`.
const COLUMNS: [&str; 10] =
    ["trial", "job", "state", "value", "step", "gpuHours", "durationSeconds", "reason", "retries", "best"];

/// Order of the trials.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrialOrder {
    /// By number.
    #[default]
    Number,
    /// By value, the best first.
    Value,
}

/// A search at one moment: what `tune` shows, and the JSON of `-o json`.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Search {
    /// Time at which this was read.
    pub time: Timestamp,
    /// Namespace of the TuningJob.
    pub namespace: String,
    /// Name of the TuningJob.
    pub name: String,
    /// State of the search; absent until an operator has processed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<TuningState>,
    /// Time since which it is in this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Reason of the state, in one word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Message of the state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Metric by which trials are compared.
    pub metric: String,
    /// Whether lower or higher values are better.
    pub goal: TuningGoal,
    /// Method of the search.
    pub method: TuningMethod,
    /// Most trials that there will be.
    pub max_trials: u32,
    /// Trials at the same time.
    pub parallel_trials: u32,
    /// Trials that have not been suggested yet.
    pub remaining: u32,
    /// Trials that have not ended.
    pub running: u32,
    /// Trials with a result.
    pub succeeded: u32,
    /// Trials that early stopping ended.
    pub stopped: u32,
    /// Failed trials.
    pub failed: u32,
    /// GPU hours of all trials.
    pub gpu_hours: f64,
    /// Limit for the GPU hours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_hours_limit: Option<f64>,
    /// Estimated seconds to the end, from the durations of ended trials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimated_seconds_remaining: Option<i64>,
    /// Results of earlier searches with which this one began.
    pub earlier: usize,
    /// The earlier searches.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warm_start_from: Vec<String>,
    /// Names of the hyperparameters.
    pub parameters: Vec<String>,
    /// Number of the best trial.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best: Option<u32>,
    /// Best value so far after each ended trial, in the order of the ends.
    pub curve: Vec<Point>,
    /// Share of each hyperparameter in the differences between results, the largest first.
    pub importance: Vec<Importance>,
    /// Causes of failed trials.
    pub failures: Vec<Failures>,
    /// All trials.
    pub trials: Vec<Row>,
    #[serde(skip)]
    has_spec_suspend: bool,
}

/// One trial.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// Number of the trial.
    pub trial: u32,
    /// Name of its TrainingJob.
    pub job: String,
    /// State of the trial.
    pub state: TrialState,
    /// Its result, or its reading so far.
    #[serde(skip_serializing_if = "Option::is_none", with = "protocol::number::option")]
    pub value: Option<f64>,
    /// Step of that reading.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<i64>,
    /// Hyperparameters, in their own notation.
    pub parameters: BTreeMap<String, String>,
    /// GPU hours of the trial.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_hours: Option<f64>,
    /// Seconds from the start of its program to its end, or to now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_seconds: Option<i64>,
    /// Reason of a failure or an early end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Times that it was started again.
    pub retries: u32,
    /// Whether it is the best one.
    pub best: bool,
}

/// Best value after an end.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Trial that ended.
    pub trial: u32,
    /// Best value so far.
    pub best: f64,
}

/// Share of one hyperparameter.
#[derive(Serialize, Clone, Debug, PartialEq)]
pub struct Importance {
    /// The hyperparameter.
    pub parameter: String,
    /// Its share, from 0 to 1.
    pub share: f64,
}

/// Failed trials with one cause.
#[derive(Serialize, Clone, Debug, PartialEq)]
pub struct Failures {
    /// Cause, in one word.
    pub reason: String,
    /// Number of trials.
    pub trials: u32,
    /// First of these trials.
    pub example: u32,
    /// TrainingJob of that trial.
    pub job: String,
    /// Message of that trial.
    pub message: String,
}

impl Search {
    /// Reads a TuningJob.
    #[must_use]
    pub fn from_job(job: &TuningJob, time: Timestamp) -> Self {
        let (tuning, status) = (&job.spec.tuning, job.status.clone().unwrap_or_default());
        let study = Study::new(job).ok();
        let most = study.as_ref().map_or(tuning.max_trials, Study::most_trials);
        let suggested = u32::try_from(status.trials.len()).unwrap_or(u32::MAX);
        let best = status.best.as_ref().map(|best| best.trial);
        let trials = status.trials.iter().map(|trial| row(job, study.as_ref(), trial, best, time)).collect();
        let failures = status.failures.iter().map(|failures| Failures {
            reason: failures.reason.to_string(),
            trials: failures.trials,
            example: failures.example,
            job: name_of(job, &status, failures.example),
            message: failures.message.clone(),
        });
        let importance = study.as_ref().map(|study| study.importance(&status)).unwrap_or_default();
        let importance = importance.into_iter().map(|(parameter, share)| Importance { parameter, share }).collect();
        let decides = deciding(&status);
        let mut search = Self {
            time,
            namespace: job.namespace().unwrap_or_default(),
            name: job.name_any(),
            state: status.state,
            since: decides.map(|condition| condition.last_transition_time.0),
            reason: decides
                .map(|condition| condition.reason.clone())
                .or_else(|| status.reason.as_ref().map(ToString::to_string)),
            message: decides.map(|condition| condition.message.clone()).filter(|message| !message.is_empty()),
            metric: tuning.metric.name.clone(),
            goal: tuning.metric.goal,
            method: tuning.method(),
            max_trials: most,
            parallel_trials: tuning.parallel(),
            remaining: most.saturating_sub(suggested),
            running: status.running,
            succeeded: status.succeeded,
            stopped: status.stopped,
            failed: status.failed,
            gpu_hours: status.gpu_hours,
            gpu_hours_limit: tuning.gpu_hours,
            estimated_seconds_remaining: None,
            earlier: status.earlier.len(),
            warm_start_from: tuning.warm_start_from.clone(),
            parameters: status.parameters.clone(),
            best,
            curve: curve(study.as_ref(), &status),
            importance,
            failures: failures.collect(),
            trials,
            has_spec_suspend: job.spec.suspend,
        };
        search.estimated_seconds_remaining = seconds_left(&search);
        search
    }

    /// Whether the search has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.state.is_some_and(TuningState::is_finished)
    }

    /// Sorts the trials in this order. Trials without a value are last.
    pub fn sort(&mut self, sort: TrialOrder) {
        if sort == TrialOrder::Number {
            return;
        }
        let goal = self.goal;
        self.trials.sort_by(|one, other| match (one.value.and_then(finite), other.value.and_then(finite)) {
            (Some(one), Some(other)) if goal == TuningGoal::Minimize => one.total_cmp(&other),
            (Some(one), Some(other)) => other.total_cmp(&one),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => Ordering::Equal,
        });
    }

    fn ended(&self) -> u32 {
        self.succeeded + self.stopped + self.failed
    }

    fn best_row(&self) -> Option<&Row> {
        self.trials.iter().find(|row| row.best)
    }

    /// Diagnosis of the search, as `why` shows it.
    #[must_use]
    pub fn diagnosis(&self) -> Diagnosis {
        let (name, namespace) = (&self.name, &self.namespace);
        let been = self.since.map_or_else(String::new, |since| format!(" for {}", age(since, self.time)));
        let (verdict, first) = match self.state {
            None => (Health::Unnoticed, format!("No operator has processed TuningJob {name} yet.")),
            Some(TuningState::Pending) => (Health::Pending, format!("TuningJob {name} has not been accepted{been}.")),
            Some(TuningState::Running) => (Health::Running, format!("TuningJob {name} has been Running{been}.")),
            Some(TuningState::Suspended) => (Health::Suspended, format!("TuningJob {name} has been Suspended{been}.")),
            Some(TuningState::Completed) => (Health::Completed, format!("TuningJob {name} has been Completed{been}.")),
            Some(TuningState::Failed) => (Health::Failed, format!("TuningJob {name} has been Failed{been}.")),
            Some(TuningState::Unknown) => (
                Health::Pending,
                format!("TuningJob {name} is in a state that this version of the plugin does not know."),
            ),
        };
        let is_blocked = verdict == Health::Running && self.reason.as_deref() != Some("Running");
        let verdict = if is_blocked { Health::Slow } else { verdict };
        let mut says = vec![first];
        if let Some(message) = &self.message {
            let reason = self.reason.as_deref().unwrap_or_default();
            says.push(sentence(&format!("{reason}: {message}")));
        }
        says.push(format!(
            "{} of {} have ended{}.",
            self.ended(),
            count(self.max_trials.into(), "trial"),
            self.not_ended()
        ));
        if let Some(failures) = self.failures.first() {
            says.push(sentence(&format!(
                "{} with {}, first trial {}: {}",
                failed(failures.trials),
                failures.reason,
                failures.example,
                failures.message
            )));
        }
        let names = advice::Names { namespace, job: name, pod: None, node: None };
        let mut what = Vec::new();
        let reason = self.reason.as_deref().unwrap_or_default();
        match (verdict, reason) {
            (Health::Unnoticed, _) => what.push(format!(
                "Check that the operator runs (kubectl get pods -n trainingjob-system), knows TuningJobs, and watches \
                 namespace {namespace}."
            )),
            (Health::Pending, "InvalidSpec") => what.push(format!(
                "Correct the fields that the message names, delete the TuningJob (kubectl delete tuj {name} -n {namespace}) \
                 and apply it again."
            )),
            (Health::Suspended, _) if self.has_spec_suspend => {
                what.push(format!("To resume the search: kubectl trainingjob resume tuningjob/{name} -n {namespace}"));
            }
            (Health::Suspended, _) => what.push(format!(
                "The TrainingJob {name}, which owns the search, is suspended. To resume it: kubectl trainingjob resume {name} \
                 -n {namespace}"
            )),
            (Health::Completed, "GpuHoursUsed") | (Health::Pending | Health::Slow, _) => {
                what.extend(advice::advice(reason, names));
            }
            (Health::Failed, _) => what.extend(advice::advice("TrialsFailed", names)),
            _ => {}
        }
        if let Some(failures) = self.failures.first().filter(|_| verdict != Health::Pending) {
            what.push(format!("To see why a trial failed: kubectl trainingjob why {} -n {namespace}", failures.job));
        }
        if self.state.is_some_and(TuningState::is_finished) && self.best.is_some() {
            what.push(format!("To see the best trial: kubectl trainingjob best {name} -n {namespace}"));
        } else if !self.trials.is_empty() {
            what.push(format!("To see all trials: kubectl trainingjob tune {name} -n {namespace}"));
        }
        Diagnosis { verdict, reason: self.reason.clone(), message: self.message.clone(), says, advice: what }
    }

    fn not_ended(&self) -> String {
        if self.running > 0 { format!(", and {} have not ended", self.running) } else { String::new() }
    }
}

/// The condition that the state follows from.
fn deciding(status: &TuningJobStatus) -> Option<&api::Condition> {
    use api::ConditionType as Type;
    let conditions = &status.conditions;
    let type_ = match status.state? {
        TuningState::Pending | TuningState::Unknown => return condition_is(conditions, Type::Accepted, false),
        TuningState::Running => Type::Running,
        TuningState::Suspended => Type::Suspended,
        TuningState::Completed => Type::Succeeded,
        TuningState::Failed => Type::Failed,
    };
    condition(conditions, type_)
}

fn row(job: &TuningJob, study: Option<&Study<'_>>, trial: &TrialStatus, best: Option<u32>, now: Timestamp) -> Row {
    let start = trial.start_time.as_ref().map(|time| time.0);
    let end = trial.end_time.as_ref().map_or(now, |time| time.0);
    Row {
        trial: trial.trial,
        job: trials::trial_name(&job.name_any(), trial.trial, trial.retries),
        state: trial.state,
        value: trial.value,
        step: trial.step,
        parameters: study.map(|study| study.texts(&trial.values)).unwrap_or_default(),
        gpu_hours: trial.gpu_hours,
        duration_seconds: start.map(|start| end.duration_since(start).as_secs().max(0)),
        reason: trial.reason.as_ref().map(ToString::to_string),
        retries: trial.retries.unwrap_or_default(),
        best: best == Some(trial.trial),
    }
}

fn name_of(job: &TuningJob, status: &TuningJobStatus, number: u32) -> String {
    let retries = status.trials.iter().find(|trial| trial.trial == number).and_then(|trial| trial.retries);
    trials::trial_name(&job.name_any(), number, retries)
}

fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

/// The best value so far after each end, from the first result on.
fn curve(study: Option<&Study<'_>>, status: &TuningJobStatus) -> Vec<Point> {
    let Some(study) = study else { return Vec::new() };
    let mut ended: Vec<&TrialStatus> = status.trials.iter().filter(|trial| trial.end.is_some()).collect();
    ended.sort_by_key(|trial| trial.end);
    let mut best: Option<f64> = None;
    let point = |trial: &TrialStatus| {
        let value = trial.value.filter(|value| trial.state == TrialState::Succeeded && value.is_finite());
        if let Some(value) = value.filter(|value| best.is_none_or(|best| study.is_better(*value, best))) {
            best = Some(value);
        }
        best.map(|best| Point { trial: trial.trial, best })
    };
    ended.into_iter().filter_map(point).collect()
}

/// Returns the seconds until all trials have ended, if further trials last as long as the ended ones.
#[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "seconds and counts of trials")]
fn seconds_left(search: &Search) -> Option<i64> {
    if search.is_finished() || search.has_spec_suspend {
        return None;
    }
    let ended: Vec<&Row> = search.trials.iter().filter(|row| row.state.is_ended()).collect();
    let durations: Vec<i64> = ended.iter().filter_map(|row| row.duration_seconds).collect();
    if durations.is_empty() {
        return None;
    }
    let mean = durations.iter().sum::<i64>() as f64 / durations.len() as f64;
    let rest = |row: &Row| (mean - row.duration_seconds.unwrap_or(0) as f64).max(0.0);
    let running: Vec<f64> = search.trials.iter().filter(|row| !row.state.is_ended()).map(rest).collect();
    let mut to_start = f64::from(search.remaining);
    // The limit that the GPU hours set.
    let hours = ended.iter().filter_map(|row| row.gpu_hours).sum::<f64>() / ended.len() as f64;
    if let Some(limit) = search.gpu_hours_limit.filter(|_| hours > 0.0) {
        to_start = to_start.min(((limit - search.gpu_hours) / hours).max(0.0).ceil());
    }
    let longest = running.iter().copied().fold(0.0, f64::max);
    let work = running.iter().sum::<f64>() + to_start * mean;
    Some((work / f64::from(search.parallel_trials)).max(longest).ceil() as i64)
}

/// Renders the search as `kubectl trainingjob tune` shows it.
#[must_use]
pub fn render(search: &Search, look: DisplayOptions) -> String {
    let mut screen = Screen::new(look);
    screen.line(&[(Style::Bold, &search.name), (Style::Dim, &format!("  in namespace {}", search.namespace))]);
    heading(&mut screen, search);
    best_and_curve(&mut screen, search, look);
    importance(&mut screen, search);
    failures(&mut screen, search);
    table(&mut screen, search);
    let command = |verb: &str| format!("kubectl trainingjob {verb} {} -n {}", search.name, search.namespace);
    let next = match search.state {
        Some(TuningState::Completed) if search.best.is_some() => command("best"),
        Some(TuningState::Running | TuningState::Completed) => return screen.text(),
        _ => command("why"),
    };
    screen.gap();
    screen.line(&[(Style::Dim, "What to do: "), (Style::Plain, &next)]);
    screen.text()
}

fn heading(screen: &mut Screen, search: &Search) {
    let state = search.state.map_or("not processed by an operator yet", TuningState::as_str);
    let style = super::why::style(search.diagnosis().verdict);
    let since = search.since.map(|since| format!(" for {}", age(since, search.time))).unwrap_or_default();
    screen.field("State", &[(style, state), (Style::Plain, &since)]);
    let is_plain = search.state == Some(TuningState::Running) && search.reason.as_deref() == Some("Running");
    if let Some(message) = search.message.as_ref().filter(|_| !is_plain) {
        let reason = search.reason.as_deref().unwrap_or_default();
        screen.long_field("Why", style, &format!("{reason}: {message}"));
    }
    let goal = match search.goal {
        TuningGoal::Minimize => "lower is better",
        TuningGoal::Maximize => "higher is better",
    };
    screen.field("Metric", &[(Style::Bold, &search.metric), (Style::Dim, &format!("  ({goal})"))]);
    let counts = [
        (search.succeeded, "succeeded"),
        (search.running, "running or starting"),
        (search.stopped, "stopped early"),
        (search.failed, "failed"),
        (search.remaining, "to follow"),
    ];
    let counts: Vec<String> = counts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
    let all = format!("{} of {} ended: ", search.ended(), search.max_trials);
    screen.field("Trials", &[(Style::Bold, &all), (Style::Plain, &counts.join(", "))]);
    let at_once = match search.parallel_trials {
        1 => "one at a time".to_owned(),
        parallel => format!("up to {parallel} at a time"),
    };
    screen.field("Parallel", &[(Style::Plain, &at_once)]);
    if search.gpu_hours > 0.0 || search.gpu_hours_limit.is_some() {
        let limit = search.gpu_hours_limit.map(|limit| format!(" of {}", number(limit))).unwrap_or_default();
        screen.field("GPU hours", &[(Style::Plain, &format!("{}{limit}", number(search.gpu_hours)))]);
    }
    if let Some(left) = search.estimated_seconds_remaining {
        let note = "  (from the durations of the ended trials)";
        screen.field("Time left", &[(Style::Plain, &format!("about {}", span(left))), (Style::Dim, note)]);
    }
    if !search.warm_start_from.is_empty() {
        let of = search.warm_start_from.join(", ");
        let text = format!("{} of {of}", count(i64::try_from(search.earlier).unwrap_or(i64::MAX), "earlier result"));
        screen.field("Warm start", &[(Style::Plain, &text)]);
    }
}

fn best_and_curve(screen: &mut Screen, search: &Search, look: DisplayOptions) {
    let Some(best) = search.best_row() else { return };
    let step = best.step.map(|step| format!(" at step {step}")).unwrap_or_default();
    let value = best.value.map(number).unwrap_or_default();
    let of = format!("{step}, trial {} ({})", best.trial, best.job);
    screen.field("Best", &[(Style::Good, &value), (Style::Plain, &of)]);
    let room = look.width.unwrap_or(usize::MAX).saturating_sub(40).clamp(10, CURVE);
    if let (Some(first), Some(last)) = (search.curve.first(), search.curve.last())
        && search.curve.len() > 1
    {
        let line = sparkline(&search.curve.iter().map(|point| point.best).collect::<Vec<_>>(), room);
        let (first, last) = (format!("{} ", number(first.best)), format!(" {}", number(last.best)));
        screen.field("Best so far", &[(Style::Plain, &first), (Style::Good, &line), (Style::Plain, &last)]);
    }
}

/// Draws values on one line with at most this many columns.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "columns")]
fn sparkline(values: &[f64], columns: usize) -> String {
    let (low, high) = values
        .iter()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(*value), high.max(*value)));
    let columns = columns.min(values.len());
    let height = |value: f64| {
        let share = if high > low { (value - low) / (high - low) } else { 0.0 };
        HEIGHTS[((share * (HEIGHTS.len() - 1) as f64).round() as usize).min(HEIGHTS.len() - 1)]
    };
    // The last value of each column, so that the end of the line is the best.
    (1..=columns).map(|column| height(values[column * values.len() / columns - 1])).collect()
}

fn importance(screen: &mut Screen, search: &Search) {
    if search.importance.is_empty() {
        return;
    }
    screen.line(&[(Style::Dim, "Importance of the hyperparameters")]);
    let width = search.importance.iter().map(|one| one.parameter.chars().count()).max().unwrap_or(0).min(40);
    for Importance { parameter, share } in &search.importance {
        let name = super::screen::padded(&super::screen::shortened(parameter, width), width);
        let text = format!("  {name}  {} {:>3.0} %", bar(share * 100.0, BAR), share * 100.0);
        screen.line(&[(Style::Plain, &text)]);
    }
}

fn failures(screen: &mut Screen, search: &Search) {
    if search.failures.is_empty() {
        return;
    }
    screen.line(&[(Style::Dim, "Failures")]);
    for one in &search.failures {
        let text = format!("{} x {}, first trial {}: {}", one.trials, one.reason, one.example, one.message);
        screen.paragraph("  ", Style::Bad, &text);
        let command = format!("kubectl trainingjob why {} -n {}", one.job, search.namespace);
        screen.line(&[(Style::Plain, "    "), (Style::Dim, &command)]);
    }
}

fn table(screen: &mut Screen, search: &Search) {
    if search.trials.is_empty() {
        return;
    }
    screen.gap();
    let fixed = ["TRIAL", "STATE", "VALUE", "STEP"];
    let last = ["GPU-HOURS", "TIME", "REASON"];
    let parameters = search.parameters.iter().map(String::as_str);
    let headings: Vec<&str> = fixed.into_iter().chain(parameters).chain(last).collect();
    let plain = |text: Option<String>| (Style::Plain, text.unwrap_or_else(|| "-".to_owned()));
    let rows: Vec<Vec<(Style, String)>> = search
        .trials
        .iter()
        .map(|row| {
            let mark = if row.best { " *" } else { "" };
            let style = if row.best { Style::Bold } else { Style::Plain };
            let mut cells = vec![
                (style, format!("{}{mark}", row.trial)),
                (style_of(row.state), row.state.as_str().to_owned()),
                (style, row.value.map_or_else(|| "-".to_owned(), number)),
                plain(row.step.map(|step| step.to_string())),
            ];
            cells.extend(search.parameters.iter().map(|name| plain(row.parameters.get(name).cloned())));
            cells.push(plain(row.gpu_hours.map(number)));
            cells.push(plain(row.duration_seconds.map(span)));
            cells.push((style_of(row.state), row.reason.clone().unwrap_or_default()));
            cells
        })
        .collect();
    let flexible: Vec<usize> = (fixed.len()..fixed.len() + search.parameters.len()).rev().collect();
    screen.table(&headings, &rows, &flexible);
    if search.best.is_some() {
        screen.line(&[(Style::Dim, "* the best trial")]);
    }
}

fn style_of(state: TrialState) -> Style {
    match state {
        TrialState::Succeeded => Style::Good,
        TrialState::Failed => Style::Bad,
        TrialState::Stopped => Style::Dim,
        TrialState::Suggested | TrialState::Running | TrialState::Stopping => Style::Busy,
    }
}

/// The trials as CSV (RFC 4180): one row each, one column for each hyperparameter.
#[must_use]
pub fn csv(search: &Search) -> String {
    let heading =
        |name: &String| if COLUMNS.contains(&name.as_str()) { format!("parameters.{name}") } else { name.clone() };
    let mut lines = vec![
        COLUMNS[..5]
            .iter()
            .map(|name| (*name).to_owned())
            .chain(search.parameters.iter().map(heading))
            .chain(COLUMNS[5..].iter().map(|name| (*name).to_owned()))
            .collect::<Vec<String>>(),
    ];
    for row in &search.trials {
        let text = |value: Option<String>| value.unwrap_or_default();
        let mut cells = vec![
            row.trial.to_string(),
            row.job.clone(),
            row.state.as_str().to_owned(),
            text(row.value.map(|value| value.to_string())),
            text(row.step.map(|step| step.to_string())),
        ];
        cells.extend(search.parameters.iter().map(|name| text(row.parameters.get(name).cloned())));
        cells.extend([
            text(row.gpu_hours.map(|hours| hours.to_string())),
            text(row.duration_seconds.map(|seconds| seconds.to_string())),
            text(row.reason.clone()),
            row.retries.to_string(),
            row.best.to_string(),
        ]);
        lines.push(cells);
    }
    let quoted = |cell: &String| match cell.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.clone(),
    };
    lines.iter().map(|cells| cells.iter().map(quoted).collect::<Vec<_>>().join(",") + "\n").collect()
}

/// What `best -o json` prints.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Best {
    /// Namespace of the TuningJob.
    pub namespace: String,
    /// Name of the TuningJob.
    pub name: String,
    /// State of the search.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<TuningState>,
    /// Metric by which trials are compared.
    pub metric: String,
    /// Trials that have not ended or not been suggested yet.
    pub open: u32,
    /// The best trial.
    #[serde(flatten)]
    pub trial: Row,
}

impl Best {
    /// The best trial of a search.
    ///
    /// # Errors
    /// If it has none yet.
    pub fn from_search(search: &Search) -> anyhow::Result<Self> {
        let Some(trial) = search.best_row() else {
            anyhow::bail!(
                "{} has no best trial: {} of {} have ended, {} of them with a result; to see them: kubectl trainingjob tune {} \
                 -n {}",
                search.name,
                search.ended(),
                count(search.max_trials.into(), "trial"),
                search.succeeded,
                search.name,
                search.namespace
            );
        };
        Ok(Self {
            namespace: search.namespace.clone(),
            name: search.name.clone(),
            state: search.state,
            metric: search.metric.clone(),
            open: if search.is_finished() { 0 } else { search.running + search.remaining },
            trial: trial.clone(),
        })
    }

    /// Renders the best trial as `kubectl trainingjob best` shows it.
    #[must_use]
    pub fn render(&self, look: DisplayOptions) -> String {
        let mut screen = Screen::new(look);
        let (name, namespace, row) = (&self.name, &self.namespace, &self.trial);
        screen.line(&[(Style::Bold, name), (Style::Dim, &format!("  in namespace {namespace}"))]);
        screen
            .field("Best trial", &[(Style::Bold, &row.trial.to_string()), (Style::Plain, &format!(" ({})", row.job))]);
        let step = row.step.map(|step| format!(" at step {step}")).unwrap_or_default();
        let value = row.value.map(number).unwrap_or_default();
        screen.field(
            "Value",
            &[(Style::Plain, &format!("{} ", self.metric)), (Style::Good, &value), (Style::Plain, &step)],
        );
        if self.open > 0 {
            let text = format!("so far: {} have not ended", count(self.open.into(), "trial"));
            screen.field("", &[(Style::Busy, &text)]);
        }
        screen.line(&[(Style::Dim, "Hyperparameters")]);
        let width = row.parameters.keys().map(|name| name.chars().count()).max().unwrap_or(0);
        for (name, value) in &row.parameters {
            screen.line(&[(Style::Plain, &format!("  {name:width$}  ")), (Style::Bold, value)]);
        }
        screen.gap();
        screen.line(&[(Style::Dim, "To run it as a job of its own:")]);
        let command = format!("kubectl trainingjob best {name} -n {namespace} -o yaml | kubectl apply -f -");
        screen.line(&[(Style::Plain, "  "), (Style::Plain, &command)]);
        screen.text()
    }
}

/// A TrainingJob with the best hyperparameters, for `kubectl apply`.
///
/// # Errors
/// If the search has no best trial, or can't be read.
pub fn manifest(job: &TuningJob, time: Timestamp) -> anyhow::Result<String> {
    let best = Best::from_search(&Search::from_job(job, time))?;
    let study = Study::new(job).map_err(|why| anyhow::anyhow!("TuningJob {} can't be read: {why}", best.name))?;
    let found = trials::best_job(&study, job);
    let found = found
        .ok_or_else(|| anyhow::anyhow!("the status of TuningJob {} has no trial {}", best.name, best.trial.trial))?;
    let metadata = &found.metadata;
    let mut of_metadata = json!({ "name": metadata.name, "namespace": metadata.namespace });
    for (field, map) in [("labels", &metadata.labels), ("annotations", &metadata.annotations)] {
        if let Some(map) = map {
            of_metadata[field] = json!(map);
        }
    }
    let document: Value = json!({
        "apiVersion": TrainingJob::api_version(&()), "kind": TrainingJob::kind(&()),
        "metadata": of_metadata, "spec": found.spec,
    });
    let value = best.trial.value.map(number).unwrap_or_default();
    Ok(format!(
        "# Hyperparameters of trial {} of TuningJob {}: {} {value}\n{}",
        best.trial.trial,
        best.name,
        best.metric,
        yaml(&document)
    ))
}

fn failed(trials: u32) -> String {
    if trials == 1 { "1 trial failed".to_owned() } else { format!("{trials} trials failed") }
}

fn sentence(words: &str) -> String {
    let words = words.trim_end();
    if words.ends_with(['.', '!', '?']) { words.to_owned() } else { format!("{words}.") }
}

#[cfg(test)]
mod tests;
