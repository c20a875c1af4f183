//! How a worker ended, if nothing says why: its containers, its signal, its exit code.

use super::facts::{Container, FailedInit, WorkerFacts};
use super::finding::Finding;
use protocol::reason::Reason;
use protocol::report::{LaunchError, LaunchErrorKind, Phase, Report};
use std::borrow::Cow;
use text::origin::{FailureOrigin, origin_of};
use text::signal::{SIGABRT, SIGKILL};
use text::stderr::{first_rank, is_usage_error};

/// How the worker ended.
pub fn finding(worker: &WorkerFacts<'_>) -> Finding {
    let Container::Terminated { exit_code, reason, report, message, .. } = worker.training else {
        return before_start(worker);
    };
    let words = || message.as_deref().filter(|words| !words.trim().is_empty()).unwrap_or("the node tells no reason");
    let report = report.as_deref();
    let code = report.and_then(|report| report.exit_code).unwrap_or(*exit_code);
    match reason.as_str() {
        "StartError" => {
            return Finding::new(Reason::ContainerConfig, format!("its container can't be started: {}", words()));
        }
        // The node came back without the container.
        "ContainerStatusUnknown" => {
            return Finding { exit_code: Some(code), ..Finding::new(Reason::ContainerStatusUnknown, words()) };
        }
        _ => {}
    }
    let finding = match report.and_then(|report| report.error.as_ref()) {
        Some(error) => unstarted(error),
        None => ended(worker, *exit_code, report, message.as_deref()),
    };
    Finding { exit_code: finding.exit_code.or(Some(code)), ..finding }
}

/// Whether the program failed at its first start. A typo should not cost further gangs, but a program that has worked
/// before fails for another reason.
pub fn is_start(worker: &WorkerFacts<'_>, report: &Report) -> bool {
    worker.attempt == 1 && report.progress.is_none()
}

/// Names the signal. For SIGKILL it adds the usual cause, because the kernel leaves no other message.
pub fn ended_by(signal: i32) -> String {
    let name = signal_name(signal);
    if signal == SIGKILL {
        return format!(
            "ended by {name} (sender unknown, usually the kernel's OOM killer): raise resources.limits.memory, or use \
             less memory"
        );
    }
    format!("ended by {name}")
}

fn before_start(worker: &WorkerFacts<'_>) -> Finding {
    match (worker.failed_init, worker.pod_reason) {
        (Some(init), _) => init_container(init),
        (None, Some(words)) => Finding::new(Reason::from(words.reason.as_str()), words.message.clone()),
        (None, None) => Finding::new(Reason::PodFailed, "its pod failed before its program started"),
    }
}

fn init_container(init: &FailedInit) -> Finding {
    let error = init.message.as_deref().and_then(Report::parse).and_then(|report| report.error);
    if let Some(LaunchError { kind, message }) = error
        && [LaunchErrorKind::ContentRefused, LaunchErrorKind::ContentUnavailable].contains(&kind)
    {
        let permanent = kind == LaunchErrorKind::ContentRefused;
        return Finding { time: init.finished, permanent, ..Finding::new(Reason::FetchFailed, message) };
    }
    let how = match init.exit_code {
        _ if init.reason == "OOMKilled" => "was killed for using more memory than its limit allows".to_owned(),
        code if code > 128 => format!("was {}", ended_by(code - 128)),
        code => format!("failed with exit code {code}"),
    };
    // Every container that did not exit with 0 has the reason `Error`.
    let reason = Some(init.reason.as_str()).filter(|reason| !["", "Error", "OOMKilled"].contains(reason));
    let words = init.message.as_deref().and_then(last_line).or(reason);
    let what = with(format!("its init container {} {how}", init.name), words);
    Finding { exit_code: Some(init.exit_code), time: init.finished, ..Finding::new(Reason::InitContainer, what) }
}

fn unstarted(error: &LaunchError) -> Finding {
    match error.kind {
        LaunchErrorKind::InvalidOption => {
            let words = error.message.strip_prefix("--progress-pattern ").unwrap_or(&error.message);
            let what = format!("monitoring.progress.patterns: {words}");
            Finding { permanent: true, ..Finding::new(Reason::InvalidSpec, what) }
        }
        LaunchErrorKind::CheckpointUnusable => {
            Finding { permanent: true, ..Finding::new(Reason::CheckpointCorrupted, error.message.clone()) }
        }
        LaunchErrorKind::NoUsableCheckpoint => {
            Finding { permanent: true, ..Finding::new(Reason::NoUsableCheckpoint, error.message.clone()) }
        }
        LaunchErrorKind::CodeUnavailable => Finding::new(Reason::CodeUnavailable, error.message.clone()),
        // The kernel may not refuse a retry, for example if it lacked memory.
        LaunchErrorKind::LaunchFailed => Finding::new(Reason::CommandNotFound, error.message.clone()),
        _ => Finding { permanent: true, ..Finding::new(Reason::CommandNotFound, error.message.clone()) },
    }
}

fn ended(worker: &WorkerFacts<'_>, exit_code: i32, report: Option<&Report>, message: Option<&str>) -> Finding {
    let code = report.and_then(|report| report.exit_code).unwrap_or(exit_code);
    let line = report.map_or_else(|| message.map(Cow::Borrowed), Report::last_words);
    let line = line.as_deref();
    // An agent that could not report the program's end was killed with it.
    let is_killed = report.is_none_or(|report| report.phase != Phase::Exited) && exit_code > 128;
    let signal = report.and_then(|report| report.signal);
    // A program in any language may print last that it lost its peer, and then abort.
    let last_word = line.filter(|_| report.is_some() && signal.is_none_or(|signal| signal == SIGABRT));
    let origin = last_word.map_or(FailureOrigin::Own, origin_of);
    let of_shell = report.filter(|_| signal.is_none() && !is_killed).and_then(Report::own_signal);
    let signal = signal.or(is_killed.then(|| exit_code - 128));
    let ended = match of_shell {
        Some(signal) => format!("{} (exit code {code})", ended_by(signal)),
        None => signal.map_or_else(|| format!("exit code {code}"), ended_by),
    };
    let signal = signal.or(of_shell);
    if let Some(stop) = report.and_then(|report| report.stopped_by) {
        let stop = signal_name(stop);
        let what = format!("asked to stop by {stop}, which Kubernetes did not send ({ended})");
        return Finding { origin, ..Finding::new(Reason::Signal, what) };
    }
    if let Some(signal) = signal {
        let what = with(ended, line.filter(|_| signal != SIGKILL));
        return Finding { origin, exit_code: Some(128 + signal), ..Finding::new(Reason::Signal, what) };
    }
    // torchrun's own exit code is always 1.
    let rank = report.and_then(|report| first_rank(&report.stderr_tail));
    let ranks_code = rank.map_or(code, |(_, code)| code);
    let is_usage = |line| report.is_some_and(|report| is_usage_error(&report.stderr_tail, line));
    let is_start = report.is_some_and(|report| is_start(worker, report));
    let permanent = is_start && ranks_code == 2 && line.is_some_and(is_usage);
    let line = line.filter(|line| rank.is_none() || !line.contains("exitcode"));
    let what = with(format!("exit code {ranks_code}"), line);
    let (rank, is_mute) = (rank.and_then(|(rank, _)| rank), line.is_none());
    Finding { rank, permanent, origin, is_mute, ..Finding::new(Reason::ExitCode, what) }
}

fn with(what: String, line: Option<&str>) -> String {
    match line {
        Some(line) => format!("{what}: {line}"),
        None => what,
    }
}

fn last_line(text: &str) -> Option<&str> {
    text.lines().map(str::trim).rfind(|line| !line.is_empty())
}

fn signal_name(signal: i32) -> String {
    text::signal::name(signal).map_or_else(|| format!("signal {signal}"), str::to_owned)
}
