//! All jobs in a table.

use super::facts::Facts;
use super::screen::{DisplayOptions, Screen, Style, count, number, span};
use super::why::{Diagnosis, style};
use api::State;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// A job on one line.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// The namespace of the job.
    pub namespace: String,
    /// The name of the job.
    pub name: String,
    /// Its state. It is absent until an operator has noticed the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// Number of workers with a running program.
    pub active: u32,
    /// Number of workers that there should be.
    pub desired: u32,
    /// How far it is, for example 45%.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<String>,
    /// The epoch that it is in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_epoch: Option<i64>,
    /// Number of epochs in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_epochs: Option<i64>,
    /// Its training loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Number of GPUs that it holds.
    #[serde(rename = "allocatedGPUs")]
    pub allocated_gpus: u32,
    /// Utilization of its GPUs, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_utilization: Option<f64>,
    /// Number of seconds that remain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimated_seconds_remaining: Option<i64>,
    /// Number of its restarts.
    pub restart_count: u32,
    /// What it waits for, or why it failed, in one word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The Kueue LocalQueue of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Seconds since it was created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_seconds: Option<i64>,
    #[serde(skip)]
    style: Style,
}

impl Row {
    /// Returns the row of a job.
    #[must_use]
    pub fn from_facts(facts: &Facts) -> Self {
        let (status, diagnosis) = (&facts.status, Diagnosis::from_facts(facts));
        let metrics = status.metrics.clone().unwrap_or_default();
        let running = status.state == Some(State::Running);
        Self {
            namespace: facts.namespace.clone(),
            name: facts.name.clone(),
            state: status.state,
            active: status.workers.map_or(0, |w| w.active),
            desired: facts.spec.num_workers().into(),
            progress: status.progress.clone(),
            current_epoch: status.current_epoch,
            total_epochs: status.total_epochs,
            loss: metrics.loss,
            allocated_gpus: status.resources.map_or(0, |r| r.allocated_gpus),
            gpu_utilization: metrics.gpu_utilization.filter(|_| running),
            estimated_seconds_remaining: status.estimated_seconds_remaining.filter(|_| running),
            restart_count: status.restart_count.unwrap_or(0),
            reason: diagnosis.reason,
            queue: facts.spec.scheduling.queue.clone(),
            age_seconds: facts.created.map(|created| facts.time.duration_since(created).as_secs()),
            style: style(diagnosis.verdict),
        }
    }
}

/// Which jobs are shown, and in which order.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Filter {
    /// Only jobs with these labels, as in kubectl: team=vision.
    #[arg(short = 'l', long, value_name = "LABELS")]
    pub selector: Option<String>,
    /// Only jobs in these states: running, or pending,failed.
    #[arg(long, value_delimiter = ',', value_parser = state)]
    pub state: Vec<State>,
    /// Only jobs in this Kueue LocalQueue.
    #[arg(long)]
    pub queue: Option<String>,
    /// The order.
    #[arg(long, value_enum, default_value_t)]
    pub sort: Order,
}

impl Filter {
    /// Whether it leaves out any jobs.
    pub fn leaves_out(&self) -> bool {
        self.selector.is_some() || !self.state.is_empty() || self.queue.is_some()
    }
}

/// An order of jobs.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Those that hold something first, those that have ended last.
    #[default]
    State,
    /// By namespace and name.
    Name,
    /// The newest first.
    Age,
    /// Those with most GPUs first.
    Gpus,
    /// Those with most restarts first.
    Restarts,
}

fn state(text: &str) -> Result<State, String> {
    let all = [State::Pending, State::Initializing, State::Running, State::Completed, State::Failed, State::Suspended];
    let known = all.into_iter().find(|state| state.as_str().eq_ignore_ascii_case(text));
    known.ok_or_else(|| format!("write some of {}", all.map(State::as_str).join(", ")))
}

impl Filter {
    /// Returns the rows that match, in their order.
    #[must_use]
    pub fn apply(&self, mut rows: Vec<Row>) -> Vec<Row> {
        rows.retain(|row| {
            (self.state.is_empty() || row.state.is_some_and(|state| self.state.contains(&state)))
                && (self.queue.is_none() || self.queue == row.queue)
        });
        sort(&mut rows);
        match self.sort {
            Order::State => {}
            Order::Name => rows.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name))),
            Order::Age => rows.sort_by_key(|row| row.age_seconds),
            Order::Gpus => rows.sort_by_key(|row| Reverse(row.allocated_gpus)),
            Order::Restarts => rows.sort_by_key(|row| Reverse(row.restart_count)),
        }
        rows
    }
}

/// Sorts rows. Jobs that hold something come first, and ended jobs last.
pub fn sort(rows: &mut [Row]) {
    let order = |state: Option<State>| match state {
        Some(State::Running) => 0,
        Some(State::Initializing) => 1,
        Some(State::Pending | State::Unknown) | None => 2,
        Some(State::Suspended) => 3,
        Some(State::Failed) => 4,
        Some(State::Completed) => 5,
    };
    rows.sort_by(|a, b| {
        let key = |row: &Row| (order(row.state), Reverse(row.allocated_gpus));
        key(a).cmp(&key(b)).then_with(|| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)))
    });
}

/// Renders the jobs as `kubectl trainingjob top` shows them, with the namespace if there are several.
#[must_use]
#[expect(clippy::cast_possible_wrap, reason = "numbers of jobs and pods")]
pub fn render(rows: &[Row], all_namespaces: bool, look: DisplayOptions) -> String {
    const HEADINGS: [&str; 14] = [
        "NAMESPACE",
        "NAME",
        "STATE",
        "WORKERS",
        "PROGRESS",
        "EPOCH",
        "LOSS",
        "GPUS",
        "GPU%",
        "LEFT",
        "RESTARTS",
        "AGE",
        "QUEUE",
        "REASON",
    ];
    let first = usize::from(!all_namespaces);
    let cells: Vec<Vec<(Style, String)>> = rows.iter().map(|row| cells(row).split_off(first)).collect();
    let mut screen = Screen::new(look);
    let flexible: &[usize] = if all_namespaces { &[1, 0] } else { &[0] };
    screen.table(&HEADINGS[first..], &cells, flexible);
    let mut states: BTreeMap<&str, i64> = BTreeMap::new();
    for row in rows {
        *states.entry(row.state.map_or("unnoticed", State::as_str)).or_default() += 1;
    }
    let states: Vec<String> = states.iter().map(|(state, n)| format!("{n} {state}")).collect();
    let gpus: i64 = rows.iter().map(|row| i64::from(row.allocated_gpus)).sum();
    let held = if gpus > 0 { format!("; {} held", count(gpus, "GPU")) } else { String::new() };
    screen.line(&[(Style::Dim, &format!("{}: {}{held}", count(rows.len() as i64, "job"), states.join(", ")))]);
    screen.text()
}

fn cells(row: &Row) -> Vec<(Style, String)> {
    let known = |text: Option<String>| (Style::Plain, text.unwrap_or_else(|| "-".into()));
    let epoch = row.current_epoch.map(|epoch| match row.total_epochs {
        Some(all) => format!("{epoch}/{all}"),
        None => epoch.to_string(),
    });
    let use_of_gpus = row.gpu_utilization.map(|gpu| format!("{gpu:.0}"));
    vec![
        (Style::Dim, row.namespace.clone()),
        (Style::Bold, row.name.clone()),
        (row.style, row.state.map_or("-", State::as_str).to_owned()),
        (Style::Plain, format!("{}/{}", row.active, row.desired)),
        known(row.progress.clone()),
        known(epoch),
        known(row.loss.map(number)),
        (Style::Plain, row.allocated_gpus.to_string()),
        known(use_of_gpus),
        known(row.estimated_seconds_remaining.map(span)),
        (Style::Plain, row.restart_count.to_string()),
        known(row.age_seconds.map(span)),
        known(row.queue.clone()),
        (row.style, row.reason.clone().unwrap_or_default()),
    ]
}
