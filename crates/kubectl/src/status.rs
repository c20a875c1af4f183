//! One job on one screen.

use super::facts::{Facts, Worker, WorkerState};
use super::screen::{DisplayOptions, Part, Screen, Style, age, bar, count, number, padded, ranges, span};
use super::why::{Diagnosis, Health, style};
use api::{AttemptEnd, CheckpointStatus, Measurement, RestartPolicy, State, Workers};
use std::collections::BTreeMap;
use unicode_width::UnicodeWidthStr;

/// Maximum number of lines for workers, restarts and events. The rest is only counted.
const WORKER_LINES: usize = 16;
const RESTART_LINES: usize = 3;
const EVENT_LINES: usize = 6;

/// Renders the job as `kubectl trainingjob status` shows it.
#[must_use]
pub fn render(facts: &Facts, diagnosis: &Diagnosis, look: DisplayOptions) -> String {
    let mut screen = Screen::new(look);
    screen.line(&[(Style::Bold, &facts.name), (Style::Dim, &format!("  in namespace {}", facts.namespace))]);
    state(&mut screen, facts, diagnosis);
    attempt(&mut screen, facts);
    progress(&mut screen, facts, look);
    metrics(&mut screen, facts);
    workers(&mut screen, facts);
    checkpoints(&mut screen, facts);
    result(&mut screen, facts);
    restarts(&mut screen, facts);
    events(&mut screen, facts);
    for unread in &facts.unread {
        screen.long_field("Not read", Style::Bad, unread);
    }
    let is_well = matches!(diagnosis.verdict, Health::Running | Health::Completed);
    if !is_well || facts.condition_is("CheckpointsHealthy", false).is_some() {
        screen.gap();
        let command = format!("kubectl trainingjob why {} -n {}", facts.name, facts.namespace);
        screen.line(&[(Style::Dim, "What to do: "), (Style::Plain, &command)]);
    }
    screen.text()
}

fn state(screen: &mut Screen, facts: &Facts, diagnosis: &Diagnosis) {
    let status = &facts.status;
    let since = facts.since.map(|since| {
        let age = age(since, facts.time);
        match (&status.duration, facts.is_finished()) {
            (Some(took), true) => format!(" {age} ago, after {took}"),
            (None, true) => format!(" {age} ago"),
            _ => format!(" for {age}, since {since:.0}"),
        }
    });
    let mut parts: Vec<Part<'_>> = vec![(style(diagnosis.verdict), status.state.map_or("no state yet", State::as_str))];
    let since = since.unwrap_or_default();
    parts.push((Style::Plain, &since));
    if facts.deleting.is_some() {
        parts.push((Style::Bad, ", being deleted"));
    }
    if facts.is_behind() {
        parts.push((Style::Busy, ", the last change of its spec not seen yet"));
    }
    screen.field("State", &parts);
    let label = match diagnosis.verdict {
        Health::Failed | Health::Restarting => "Why",
        Health::Pending | Health::Starting | Health::Publishing | Health::Unnoticed => "Waits for",
        Health::Slow => return slow(screen, diagnosis),
        Health::Running | Health::Completed | Health::Suspended | Health::Deleting => return,
    };
    let words: Vec<&str> = [&diagnosis.reason, &diagnosis.message].into_iter().flatten().map(String::as_str).collect();
    let words = if words.is_empty() { diagnosis.says[0].clone() } else { words.join(": ") };
    screen.long_field(label, style(diagnosis.verdict), &words);
}

/// Shows why a job is slow. The first sentence of a diagnosis is its verdict, the second the evidence for it.
fn slow(screen: &mut Screen, diagnosis: &Diagnosis) {
    if let Some(why) = diagnosis.says.get(1) {
        screen.long_field("Slow", Style::Busy, why);
    }
}

fn attempt(screen: &mut Screen, facts: &Facts) {
    let status = &facts.status;
    let Some(attempt) = status.attempt else { return };
    let (restarts, disruptions) = (status.restart_count.unwrap_or(0), status.disruption_count.unwrap_or(0));
    let mut text = attempt.to_string();
    if restarts > 0 {
        text += &format!(", after {}", count(restarts.into(), "restart"));
    }
    if disruptions > 0 {
        let ignored = status.restarts.iter().any(|restart| restart.disruption && restart.rule.is_some());
        let why = if ignored { "evicted, preempted, lost or ignored by a rule" } else { "evicted, preempted or lost" };
        text += &format!(" ({disruptions} not counted: {why})");
    }
    if !facts.is_finished() {
        let policy = &facts.spec.failure_policy;
        let left = match policy.restart_policy() {
            RestartPolicy::Never => 0,
            RestartPolicy::OnFailure | RestartPolicy::Always => {
                u32::from(policy.backoff_limit()).saturating_sub(restarts.saturating_sub(disruptions))
            }
        };
        text += &format!("; {left} more allowed");
    }
    screen.field("Attempt", &[(Style::Plain, &text)]);
}

fn progress(screen: &mut Screen, facts: &Facts, look: DisplayOptions) {
    let status = &facts.status;
    let of = |what: &str, now: Option<i64>, all: Option<i64>| match (now, all) {
        (Some(now), Some(all)) => Some(format!("{what} {now}/{all}")),
        (Some(now), None) => Some(format!("{what} {now}")),
        (None, _) => None,
    };
    let counts = [
        of("epoch", status.current_epoch, status.total_epochs),
        of("step", status.current_step, status.total_steps),
        status.estimated_seconds_remaining.filter(|_| !facts.is_finished()).map(|left| format!("{} left", span(left))),
    ];
    let counts = counts.into_iter().flatten().collect::<Vec<_>>().join("  ");
    let bar = facts.percent().map(|percent| bar(percent, if look.width.unwrap_or(100) < 80 { 12 } else { 24 }));
    let share = status.progress.clone().map(|share| format!(" {share}  ")).unwrap_or_default();
    match bar {
        Some(bar) => screen.field("Progress", &[(Style::Good, &bar), (Style::Bold, &share), (Style::Plain, &counts)]),
        None if !counts.is_empty() => screen.field("Progress", &[(Style::Plain, &counts)]),
        None if facts.status.state == Some(State::Running) => screen.field("Progress", &[(Style::Dim, "not reported")]),
        None => return,
    }
    if let Some(last) = status.last_progress_time.as_ref().filter(|_| status.state == Some(State::Running)) {
        screen.field("", &[(Style::Dim, &format!("reported {} ago", age(last.0, facts.time)))]);
    }
}

fn metrics(screen: &mut Screen, facts: &Facts) {
    if let Some(metrics) = &facts.status.metrics {
        let named = [
            ("loss", metrics.loss, ""),
            ("accuracy", metrics.accuracy, ""),
            ("learning rate", metrics.learning_rate, ""),
            ("throughput", metrics.throughput, "/s"),
            ("GPU use", metrics.gpu_utilization, " %"),
        ];
        let named = named.into_iter().filter_map(|(name, value, unit)| Some((name, value?, unit)));
        let others = metrics.custom_metrics.iter().map(|(name, value)| (name.as_str(), *value, ""));
        let all: Vec<_> =
            named.chain(others).map(|(name, value, unit)| format!("{name} {}{unit}", number(value))).collect();
        let mut label = "Metrics";
        for four in all.chunks(4) {
            screen.field(label, &[(Style::Plain, &four.join("  "))]);
            label = "";
        }
    }
    if let Some(objective) = &facts.status.objective {
        let at = |reading: &Measurement| {
            let step = reading.step.map(|step| format!(" (step {step})")).unwrap_or_default();
            format!("{}{step}", number(reading.value))
        };
        let readings = count(i64::try_from(objective.count).unwrap_or(i64::MAX), "reading");
        let known = match (&objective.best, &objective.last) {
            (Some(best), Some(last)) => format!("best {}, last {}, {readings}", at(best), at(last)),
            (None, Some(last)) => format!("last {}, {readings}", at(last)),
            _ => "no reading".to_owned(),
        };
        screen.field("Objective", &[(Style::Plain, &format!("{}: {known}", objective.metric))]);
    }
    if let Some(early) = &facts.status.early_stopping {
        let since = count(early.evaluations_since_best.into(), "evaluation");
        let text = format!("{}: best {}, {since} since then", early.metric, number(early.best));
        screen.field("Early stop", &[(Style::Plain, &text)]);
    }
}

fn workers(screen: &mut Screen, facts: &Facts) {
    let status = &facts.status;
    let mut text = counted(&status.workers.unwrap_or_default(), facts.spec.num_workers().into());
    for role in &status.roles {
        text += &format!("; {}: {}", role.name, counted(&role.count, role.count.desired));
    }
    if let Some(held) = status.resources.filter(|held| held.allocated_nodes > 0) {
        text += &format!(", on {}", count(held.allocated_nodes.into(), "node"));
        if held.allocated_gpus > 0 {
            text += &format!(" with {}", count(held.allocated_gpus.into(), "GPU"));
        }
    }
    screen.field("Workers", &[(Style::Plain, &text)]);
    let groups = groups(facts);
    let room = if groups.len() > WORKER_LINES { WORKER_LINES - 1 } else { groups.len() };
    let nodes = groups.iter().take(room).map(|(group, _)| group.node.width()).max().unwrap_or(0).min(32);
    for (group, indices) in groups.iter().take(room) {
        let (node, style) = (format!("  {}  ", padded(&group.node, nodes)), style_of(group.state));
        let state = format!("  {}", group.state.as_str());
        let note = group.note.as_ref().map(|note| format!("  {note}")).unwrap_or_default();
        let role = group.role.as_ref().map(|role| format!("{role} ")).unwrap_or_default();
        let indices = padded(&format!("{role}{}", ranges(indices)), 7);
        screen.line(&[(Style::Plain, &node), (Style::Bold, &indices), (style, &state), (Style::Dim, &note)]);
    }
    if let rest @ 1.. = groups.len() - room {
        screen.line(&[(Style::Dim, &format!("  and {rest} more; -o json has them all"))]);
    }
    if !facts.is_finished() && status.state.is_some_and(|state| state != State::Suspended) && facts.unread.is_empty() {
        let missing = facts.without_pod();
        if !missing.is_empty() {
            screen.line(&[
                (Style::Plain, &format!("  {}  ", padded("no pod yet", nodes))),
                (Style::Bold, &ranges(&missing)),
            ]);
        }
    }
}

/// Returns how many of all pods run, wait and have ended.
fn counted(counts: &Workers, all: u32) -> String {
    let parts = [
        (counts.active, "running"),
        (counts.pending, "waiting or starting"),
        (counts.succeeded, "ended well"),
        (counts.failed, "failed"),
    ];
    let parts: Vec<String> = parts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
    if parts.is_empty() { format!("none of {all}") } else { format!("{} of {all}", parts.join(", ")) }
}

/// What the workers on one line have in common. Workers in trouble come first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Group {
    role: Option<String>,
    state: WorkerState,
    node: String,
    note: Option<String>,
}

fn groups(facts: &Facts) -> Vec<(Group, Vec<u32>)> {
    let mut groups: BTreeMap<Group, Vec<u32>> = BTreeMap::new();
    for worker in &facts.workers {
        let group = Group {
            role: worker.role.clone(),
            state: worker.state,
            node: worker.node.clone().unwrap_or_else(|| "no node".into()),
            note: note(worker, facts.status.attempt.unwrap_or(1)),
        };
        groups.entry(group).or_default().push(worker.index);
    }
    for indices in groups.values_mut() {
        indices.sort_unstable();
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    // The lines of a healthy gang are in the order of its workers.
    groups.sort_by(|(a, first), (b, second)| {
        let key =
            |group: &Group, indices: &[u32]| (group.state.min(WorkerState::Running), group.role.clone(), indices[0]);
        key(a, first).cmp(&key(b, second))
    });
    groups
}

fn note(worker: &Worker, attempt: u32) -> Option<String> {
    let old = (worker.attempt != attempt).then(|| format!("attempt {}", worker.attempt));
    let code = worker.exit_code.filter(|_| worker.state == WorkerState::Failed).map(|code| format!("exit code {code}"));
    let parts: Vec<String> = [old, code, worker.message.clone()].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn style_of(state: WorkerState) -> Style {
    match state {
        WorkerState::Failed => Style::Bad,
        WorkerState::Waiting | WorkerState::Starting | WorkerState::Stopping => Style::Busy,
        WorkerState::Stopped => Style::Dim,
        WorkerState::Running | WorkerState::Succeeded => Style::Good,
    }
}

/// Returns how many are good, and how many of them are only complete, so that damage may go undetected.
fn good(status: &CheckpointStatus) -> Option<String> {
    match (status.checkpoint_count?, status.complete_count) {
        (..=1, complete) => complete.map(|_| "complete".to_owned()),
        (count, Some(complete)) => Some(format!("{count} good ({complete} complete)")),
        (count, None) => Some(format!("{count} good in all")),
    }
}

/// Shows where checkpoints go, those that matter, and what is wrong with them.
fn checkpoints(screen: &mut Screen, facts: &Facts) {
    let place = facts.checkpoints.as_deref().unwrap_or("none: checkpoint.enabled is false");
    screen.field("Checkpoints", &[(Style::Plain, place)]);
    let now = facts.time;
    if let Some(status) = &facts.status.checkpoint {
        if let Some(path) = &status.latest_path {
            let parts = [
                status.latest_step.map(|step| format!("step {step}")),
                status.latest_epoch.map(|epoch| format!("epoch {epoch}")),
                status.last_checkpoint_time.as_ref().map(|time| format!("{} ago", age(time.0, now))),
                good(status),
                status.corrupted_count.map(|count| format!("{count} corrupted")),
            ];
            screen.field("", &[(Style::Plain, &format!("newest   {path}")), (Style::Dim, &in_brackets(&parts))]);
        }
        if let Some(best) = &status.best {
            let metric = facts.spec.checkpoint.keep_best.as_ref().map_or("value", |best| best.metric.as_str());
            let parts = [
                best.value.map(|value| format!("{metric} {}", number(value))),
                best.step.map(|step| format!("step {step}")),
            ];
            let text = format!("best     {}", best.path);
            screen.field("", &[(Style::Plain, &text), (Style::Dim, &in_brackets(&parts))]);
        }
        let copied = status.last_backup_path.as_deref();
        if copied.is_some() || status.pending_backup.is_some() {
            let parts = [
                status.last_backup_time.as_ref().map(|time| format!("{} ago", age(time.0, now))),
                status.pending_backup.as_ref().map(|path| format!("{path} has yet to be copied")),
            ];
            let text = format!("copied   {}", copied.unwrap_or("none"));
            screen.field("", &[(Style::Plain, &text), (Style::Dim, &in_brackets(&parts))]);
        }
        if let Some(path) = &status.resumed_from {
            screen.field("", &[(Style::Plain, &format!("resumed  from {path}"))]);
        }
    }
    if let Some(lost) = facts.condition_is("CheckpointsDurable", false).filter(|_| !facts.is_finished()) {
        screen.long_field("", Style::Busy, &lost.message);
    }
    if let Some(bad) = facts.condition_is("CheckpointsHealthy", false) {
        screen.long_field("", Style::Bad, &format!("{}: {}", bad.reason, bad.message));
    }
}

fn result(screen: &mut Screen, facts: &Facts) {
    if let Some(published) = facts.condition_is("ResultPublished", true) {
        screen.long_field("Result", Style::Good, &published.message);
    }
}

/// Joins the parts that exist: `  (a, b)`.
fn in_brackets(parts: &[Option<String>]) -> String {
    let parts: Vec<&str> = parts.iter().flatten().map(String::as_str).collect();
    if parts.is_empty() { String::new() } else { format!("  ({})", parts.join(", ")) }
}

fn restarts(screen: &mut Screen, facts: &Facts) {
    let all = &facts.status.restarts;
    let mut label = "Restarts";
    for restart in all.iter().rev().take(RESTART_LINES) {
        let head = format!(
            "attempt {} ended {} ago, after {}: ",
            restart.attempt,
            restart.time.map_or_else(|| "some time".to_owned(), |time| age(time, facts.time)),
            span(restart.ran_seconds)
        );
        let style = if restart.disruption { Style::Busy } else { Style::Bad };
        screen.field(
            label,
            &[
                (Style::Plain, &head),
                (style, restart.reason.as_str()),
                (Style::Plain, &format!(", {}", brief(restart))),
            ],
        );
        label = "";
    }
    if let rest @ 1.. = all.len().saturating_sub(RESTART_LINES) {
        screen.field("", &[(Style::Dim, &format!("and {rest} before; -o json has them all"))]);
    }
}

/// Describes an end without its pod and rank, which are too long for one line: `worker 3 (gpu-17): why`.
fn brief(end: &AttemptEnd) -> String {
    match (end.replica_id(), &end.node) {
        (Some(place), Some(node)) => format!("{place} ({node}): {}", end.message),
        (Some(place), None) => format!("{place}: {}", end.message),
        (None, _) => end.message.clone(),
    }
}

fn events(screen: &mut Screen, facts: &Facts) {
    if facts.events.is_empty() {
        return;
    }
    screen.line(&[(Style::Dim, "Last events")]);
    let last = &facts.events[facts.events.len().saturating_sub(EVENT_LINES)..];
    let width = last.iter().map(|event| event.reason.width()).max().unwrap_or(0);
    for event in last {
        let style = if event.type_ == "Warning" { Style::Bad } else { Style::Plain };
        let age = format!("  {:>6}  ", age(event.time, facts.time));
        let reason = padded(&event.reason, width) + "  ";
        let about = if event.kind == "TrainingJob" { String::new() } else { format!("{}: ", event.object) };
        let often = match (event.count, event.alike) {
            (..2, 0) => String::new(),
            (times, 0) => format!(" ({times} times)"),
            (_, alike) => format!(" (and {alike} more)"),
        };
        screen.line(&[
            (Style::Dim, &age),
            (style, &reason),
            (Style::Plain, &format!("{about}{}{often}", event.message)),
        ]);
    }
}
