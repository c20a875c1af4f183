//! The first cause of a failed attempt.
//!
//! One worker fails first and the others follow: their collectives break, and the Job controller deletes their pods.
//! The root is the earliest failure that is not such an echo. Of two in the same second (Kubernetes' times have no
//! finer grain) a disruption goes before a program's failure, and a program's failure before a deletion.

use crate::observe::{Container, PodSeen};
use jiff::Timestamp;

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq)]
pub struct Cause {
    /// One CamelCase word, stable.
    pub reason: String,
    /// As a person would tell it.
    pub message: String,
    /// Index of the worker.
    pub worker: Option<i32>,
    /// Exit code of its program.
    pub exit_code: Option<i32>,
    /// The worker was evicted, preempted or its node lost.
    pub disruption: bool,
    /// Trying again can't help.
    pub permanent: bool,
    /// When.
    pub time: Option<Timestamp>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Disrupted,
    Failed,
    Deleted,
}

/// The root among all that failed; `None` while nothing has.
pub fn first_cause<'a>(pods: impl Iterator<Item = &'a PodSeen>) -> Option<Cause> {
    pods.filter_map(|pod| {
        let kind = kind(pod)?;
        let at = time(pod, kind);
        Some(((echo(pod, kind), at.unwrap_or(Timestamp::MAX), kind, pod.index), pod, kind))
    })
    .min_by_key(|(key, ..)| *key)
    .map(|(_, pod, kind)| tell(pod, kind))
}

fn kind(pod: &PodSeen) -> Option<Kind> {
    if pod.succeeded() {
        return None;
    }
    if pod.disruption.is_some() {
        return Some(Kind::Disrupted);
    }
    // A program that failed before anybody asked for the deletion of its pod failed by itself.
    let failed_first = match (&pod.training, pod.deletion) {
        (Container::Terminated { finished: Some(end), report, .. }, Some(asked)) => {
            *end <= asked && report.as_ref().is_none_or(|r| r.stopped_by.is_none())
        }
        (Container::Terminated { .. }, None) => true,
        (_, Some(_)) => false,
        (_, None) => pod.ended == Some(false),
    };
    if failed_first {
        Some(Kind::Failed)
    } else if pod.deletion.is_some() || pod.gone {
        Some(Kind::Deleted)
    } else {
        None
    }
}

fn time(pod: &PodSeen, kind: Kind) -> Option<Timestamp> {
    match kind {
        Kind::Disrupted => pod.disruption.as_ref().and_then(|d| d.time),
        Kind::Deleted => pod.deletion,
        Kind::Failed => match &pod.training {
            Container::Terminated { finished, .. } => *finished,
            _ => pod.created,
        },
    }
}

/// Stopped from outside without a word from Kubernetes why: something else came first, if anything did.
fn echo(pod: &PodSeen, kind: Kind) -> bool {
    kind == Kind::Failed
        && matches!(&pod.training, Container::Terminated { report: Some(report), .. } if report.stopped_by.is_some())
}

fn tell(pod: &PodSeen, kind: Kind) -> Cause {
    let (reason, what, exit_code, permanent) = match kind {
        Kind::Disrupted => disrupted(pod),
        Kind::Deleted => {
            ("PodDeleted".to_owned(), "its pod was deleted by somebody else than the operator".to_owned(), None, false)
        }
        Kind::Failed => failed(pod),
    };
    let node = pod.node.as_ref().map(|node| format!(", node {node}")).unwrap_or_default();
    Cause {
        reason,
        message: format!("worker {} (pod {}{node}): {what}", pod.index, pod.name),
        worker: Some(pod.index),
        exit_code,
        disruption: kind == Kind::Disrupted,
        permanent,
        time: time(pod, kind),
    }
}

type Told = (String, String, Option<i32>, bool);

/// Reasons of `DisruptionTarget`: Kubernetes documentation, "Pod disruption conditions".
fn disrupted(pod: &PodSeen) -> Told {
    let Some(disruption) = &pod.disruption else { return (String::new(), String::new(), None, false) };
    let reason = match disruption.reason.as_str() {
        "PreemptionByScheduler" => "Preempted",
        "DeletionByTaintManager" | "DeletionByPodGC" => "NodeLost",
        _ => "Evicted",
    };
    let words = if disruption.message.is_empty() { &disruption.reason } else { &disruption.message };
    (reason.to_owned(), words.clone(), None, false)
}

fn failed(pod: &PodSeen) -> Told {
    let Container::Terminated { exit_code, reason, report, message, .. } = &pod.training else {
        let (reason, words) = pod
            .pod_reason
            .as_ref()
            .map_or(("PodFailed", "its pod failed before its program started"), |w| (&w.reason, &w.message));
        return (reason.to_owned(), words.to_owned(), None, false);
    };
    let summary = report.as_ref().and_then(|r| r.summary());
    let with = |what: String| match summary.as_ref().or(message.as_ref()) {
        Some(line) => format!("{what}: {line}"),
        None => what,
    };
    let code = report.as_ref().and_then(|r| r.exit_code).unwrap_or(*exit_code);
    if reason == "OOMKilled" || report.as_ref().is_some_and(|r| r.oom_kills > 0) {
        let what = "killed for using more memory than resources.limits.memory allows; raise it or use less";
        return ("OOMKilled".into(), what.into(), Some(code), false);
    }
    if let Some(error) = report.as_ref().and_then(|r| r.error.as_ref()) {
        return ("CommandNotFound".into(), error.message.clone(), Some(code), true);
    }
    if let Some(signal) = report.as_ref().and_then(|r| r.signal) {
        return ("Signal".into(), with(format!("ended by signal {signal}")), Some(128 + signal), false);
    }
    if report.is_none() && *exit_code > 128 {
        return ("Signal".into(), with(format!("ended by signal {}", exit_code - 128)), Some(code), false);
    }
    ("ExitCode".into(), with(format!("exit code {code}")), Some(code), false)
}
