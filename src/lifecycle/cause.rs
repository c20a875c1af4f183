//! The first cause of a failed attempt.
//!
//! One worker fails first and the others follow: their collectives break, and the Job controller deletes their pods.
//! The root is the earliest failure that is not such an echo. Kubernetes' times are whole seconds: within one a
//! disruption goes before a program's failure, a program's failure before a deletion, and of two programs the agents'
//! milliseconds decide.

use crate::agent::cause::{is_echo, is_own_exception};
use crate::agent::report::{Phase, Report};
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

/// How much an end looks like the first one, best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// By itself, or by a hand from outside when nobody had failed.
    First,
    /// Told to stop while it was failing by itself: a peer that it took along was faster to end.
    Caught,
    /// It lost a peer.
    Echo,
    /// Told to stop because another one had failed.
    Stopped,
}

/// How a worker ended.
struct End<'a> {
    pod: &'a PodSeen,
    kind: Kind,
}

/// The root among all that failed; `None` while nothing has.
pub fn first_cause<'a>(pods: impl Iterator<Item = &'a PodSeen>) -> Option<Cause> {
    let ends: Vec<End<'_>> = pods.filter_map(|pod| Some(End { pod, kind: kind(pod)? })).collect();
    let ranked = ends.iter().map(|end| (end, end.rank(&ends)));
    let order = |(end, rank): &(&End<'_>, Rank)| {
        let second = end.second().unwrap_or(Timestamp::MAX);
        (*rank, second, end.kind, end.moment().unwrap_or(second), end.pod.index)
    };
    ranked.min_by_key(order).map(|(end, rank)| end.tell(rank))
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

impl End<'_> {
    fn report(&self) -> Option<&Report> {
        match &self.pod.training {
            Container::Terminated { report, .. } => report.as_deref(),
            _ => None,
        }
    }

    /// As Kubernetes tells it.
    fn second(&self) -> Option<Timestamp> {
        match self.kind {
            Kind::Disrupted => self.pod.disruption.as_ref().and_then(|d| d.time),
            Kind::Deleted => self.pod.deletion,
            Kind::Failed => match &self.pod.training {
                Container::Terminated { finished, .. } => *finished,
                _ => self.pod.created,
            },
        }
    }

    /// When its program ended, to the millisecond if its agent has told.
    fn moment(&self) -> Option<Timestamp> {
        self.report().and_then(|report| report.finished_at).or_else(|| self.second())
    }

    fn rank(&self, all: &[End<'_>]) -> Rank {
        let summary = self.report().and_then(Report::summary).unwrap_or_default();
        let stopped = || if is_own_exception(&summary) { Rank::Caught } else { Rank::Stopped };
        match self.kind {
            Kind::Disrupted => Rank::First,
            Kind::Failed if self.report().is_some_and(|report| report.stopped_by.is_some()) => stopped(),
            Kind::Failed if is_echo(&summary) && failed(self.pod).0 == "ExitCode" => Rank::Echo,
            Kind::Failed => Rank::First,
            Kind::Deleted => {
                let mut others = all.iter().filter(|other| other.kind != Kind::Deleted);
                let first = others.all(|other| self.second() < other.second() || self.moment() < other.moment());
                if first { Rank::First } else { stopped() }
            }
        }
    }

    fn tell(&self, rank: Rank) -> Cause {
        let (reason, what, exit_code, permanent) = match self.kind {
            Kind::Disrupted => disrupted(self.pod),
            Kind::Deleted if rank != Rank::Caught => {
                let what = "its pod was deleted, and not by the operator";
                ("PodDeleted".to_owned(), what.to_owned(), None, false)
            }
            Kind::Deleted | Kind::Failed => failed(self.pod),
        };
        let pod = self.pod;
        Cause {
            reason,
            message: format!("{}: {what}", pod.describe()),
            worker: Some(pod.index),
            exit_code,
            disruption: self.kind == Kind::Disrupted,
            permanent,
            time: self.second(),
        }
    }
}

type Told = (String, String, Option<i32>, bool);

/// Reasons of `DisruptionTarget`: Kubernetes documentation, "Pod disruption conditions".
fn disrupted(pod: &PodSeen) -> Told {
    let Some(disruption) = &pod.disruption else { return (String::new(), String::new(), None, false) };
    let (reason, what) = match disruption.reason.as_str() {
        "PreemptionByScheduler" => ("Preempted", "preempted"),
        "DeletionByTaintManager" | "DeletionByPodGC" => ("NodeLost", "its node is lost"),
        _ => ("Evicted", "evicted"),
    };
    let words = if disruption.message.is_empty() { &disruption.reason } else { &disruption.message };
    (reason.to_owned(), format!("{what} ({words})"), None, false)
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
    if reason == "StartError" {
        let what = message.as_deref().unwrap_or("the node tells no reason");
        return ("ContainerConfig".into(), format!("its container can't be started: {what}"), None, false);
    }
    let code = report.as_ref().and_then(|r| r.exit_code).unwrap_or(*exit_code);
    if reason == "OOMKilled" || report.as_ref().is_some_and(|r| r.oom_kills > 0) {
        let what = "killed for using more memory than resources.limits.memory allows; raise it or use less";
        return ("OOMKilled".into(), what.into(), Some(code), false);
    }
    if let Some(error) = report.as_ref().and_then(|r| r.error.as_ref()) {
        return ("CommandNotFound".into(), error.message.clone(), Some(code), true);
    }
    // An agent that could not tell of the program's end was killed with it.
    let killed = report.as_ref().is_none_or(|r| r.phase != Phase::Exited) && *exit_code > 128;
    if let Some(signal) = report.as_ref().and_then(|r| r.signal).or(killed.then(|| exit_code - 128)) {
        return ("Signal".into(), with(format!("ended by {}", signal_name(signal))), Some(128 + signal), false);
    }
    ("ExitCode".into(), with(format!("exit code {code}")), Some(code), false)
}

fn signal_name(signal: i32) -> String {
    nix::sys::signal::Signal::try_from(signal).map_or_else(|_| format!("signal {signal}"), |s| s.as_str().to_owned())
}
