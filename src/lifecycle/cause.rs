//! The first cause of a failed attempt.
//!
//! One worker fails first and the others follow: their collectives break, and the Job controller deletes their pods.
//! The root is the earliest failure that is not such an echo. Kubernetes' times are whole seconds: within one a
//! disruption goes before a program's failure, a program's failure before a deletion, and of two programs the agents'
//! milliseconds decide.

use super::conditions::whole_second;
use crate::api::Reason;
use crate::observe::{Container, PodSeen};
use crate::protocol::error_pattern::{ErrorMatch, ErrorPattern, words};
use crate::protocol::exception::{Exception, Sort, sort};
use crate::protocol::origin::{FailureOrigin, origin_of};
use crate::protocol::report::{LaunchError, LaunchErrorKind, Phase, Report};
use crate::protocol::stderr::{exception, first_rank, is_usage_error};
use crate::protocol::text::split_rank;
use jiff::{SignedDuration, Timestamp};
use nix::libc::{SIGABRT, SIGKILL, SIGTERM};

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq)]
pub struct Cause {
    /// One CamelCase word, stable.
    pub reason: Reason,
    /// As a person would tell it.
    pub message: String,
    /// Index of the worker.
    pub worker: Option<i32>,
    /// Name of its pod.
    pub pod: Option<String>,
    /// The node that it was on.
    pub node: Option<String>,
    /// Rank of the process that failed, as far as anybody has told.
    pub rank: Option<u64>,
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
    /// What they do together failed, such as a collective that timed out.
    Gang,
    /// It lost a peer.
    Echo,
    /// Told to stop because another one had failed.
    Stopped,
}

/// How a worker ended.
struct End<'a> {
    pod: &'a PodSeen,
    kind: Kind,
    evidence: Option<Evidence>,
}

/// What a program told of its failure before it ended.
struct Evidence {
    reason: &'static str,
    whose: FailureOrigin,
    what: String,
    /// Of the process that told it.
    rank: Option<u64>,
    /// When it was told, if it was told with its time.
    time: Option<Timestamp>,
    /// Of what does not come to pass in a program that has worked before.
    is_of_start: bool,
}

/// The root among all that failed; `None` while nothing has.
pub fn first_cause<'a>(pods: impl Iterator<Item = &'a PodSeen>) -> Option<Cause> {
    let pods: Vec<&PodSeen> = pods.collect();
    let progress = pods.iter().filter_map(|pod| report(pod)?.progress?.time).max();
    let end = |pod: &&'a PodSeen| Some(End { pod, kind: kind(pod)?, evidence: evidence(pod, progress) });
    let ends: Vec<End<'_>> = pods.iter().filter_map(end).collect();
    let ranked = ends.iter().map(|end| (end, end.rank(&ends)));
    let order = |(end, rank): &(&End<'_>, Rank)| {
        let second = end.second().unwrap_or(Timestamp::MAX);
        (*rank, second, end.kind, end.moment().unwrap_or(second), end.pod.index)
    };
    ranked.min_by_key(order).map(|(end, rank)| end.tell(rank))
}

fn report(pod: &PodSeen) -> Option<&Report> {
    match &pod.training {
        Container::Terminated { report, .. } => report.as_deref(),
        _ => None,
    }
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
    /// As Kubernetes tells it, unless the program has told that it failed earlier: it may take its time to end.
    fn second(&self) -> Option<Timestamp> {
        match self.kind {
            Kind::Disrupted => self.pod.disruption.as_ref().and_then(|d| d.time),
            Kind::Deleted => self.pod.deletion,
            Kind::Failed => match &self.pod.training {
                Container::Terminated { finished, .. } => {
                    let told = self.evidence.as_ref().and_then(|evidence| evidence.time).map(whole_second);
                    told.into_iter().chain(*finished).min()
                }
                _ => self.pod.created,
            },
        }
    }

    /// When its program ended, to the millisecond if its agent has told.
    fn ended(&self) -> Option<Timestamp> {
        report(self.pod).and_then(|report| report.finished_at).or_else(|| self.second())
    }

    /// When it failed, to the millisecond if its agent has told.
    fn moment(&self) -> Option<Timestamp> {
        self.evidence.as_ref().and_then(|evidence| evidence.time).or_else(|| self.ended())
    }

    fn rank(&self, all: &[End<'_>]) -> Rank {
        let told = self.evidence.as_ref().map(|evidence| evidence.whose);
        let stopped = || if told == Some(FailureOrigin::Own) { Rank::Caught } else { Rank::Stopped };
        // A program of any language may say last that it has lost its peer.
        let last_word = || report(self.pod).filter(|report| report.signal.is_none())?.line().map(origin_of);
        match self.kind {
            Kind::Disrupted => Rank::First,
            Kind::Failed if report(self.pod).is_some_and(|report| report.stopped_by.is_some()) => stopped(),
            Kind::Failed => match told.or_else(last_word) {
                None | Some(FailureOrigin::Own) => Rank::First,
                Some(FailureOrigin::Gang) => Rank::Gang,
                Some(FailureOrigin::Peer) => Rank::Echo,
            },
            Kind::Deleted => {
                let mut others = all.iter().filter(|other| other.kind != Kind::Deleted);
                let first = others.all(|other| self.second() < other.second() || self.ended() < other.ended());
                // It may have been deleted for that it had failed and did not end.
                let before = self.evidence.as_ref().is_some_and(|e| e.time.is_some() && e.time < self.pod.deletion);
                if first && !before { Rank::First } else { stopped() }
            }
        }
    }

    fn tell(&self, rank: Rank) -> Cause {
        let Told { reason, what, of_rank, exit_code, permanent } = match self.kind {
            Kind::Disrupted => disrupted(self.pod),
            Kind::Deleted if rank != Rank::Caught => {
                Told::new("PodDeleted", "its pod was deleted, and not by the operator")
            }
            Kind::Deleted | Kind::Failed => failed(self.pod, self.evidence.as_ref()),
        };
        let told_rank = of_rank;
        let of_rank = of_rank.map(|rank| format!(", rank {rank}")).unwrap_or_default();
        Cause {
            reason: reason.into(),
            message: format!("{}{of_rank}: {what}", self.pod.describe()),
            pod: Some(self.pod.name.clone()),
            node: self.pod.node.clone(),
            rank: told_rank,
            worker: Some(self.pod.index),
            exit_code,
            disruption: self.kind == Kind::Disrupted,
            permanent,
            time: self.second(),
        }
    }
}

// ---- what a worker has told

/// What counts most of what the agent has left. `progress` is when any worker last told how far it was.
fn evidence(pod: &PodSeen, progress: Option<Timestamp>) -> Option<Evidence> {
    let Container::Terminated { reason, report, .. } = &pod.training else { return None };
    let killed = || {
        let what = "killed for using more memory than resources.limits.memory allows; raise it or use less";
        Some(Evidence::new("OOMKilled", what.to_owned()))
    };
    if reason == "OOMKilled" {
        return killed();
    }
    let report = report.as_deref()?;
    if let Some(sign) = report.error_patterns.iter().find(|sign| Some(sign.kind) == report.ended_for) {
        let what = format!("its loss is NaN or infinite, and failurePolicy.nanPolicy is Fail: {}", sign.text);
        return Some(Evidence { time: Some(sign.time), ..Evidence::new("NaNLoss", what) });
    }
    if report.exit_code == Some(0) {
        return None; // it was told to stop, and that is all
    }
    if report.ended_by_oom() {
        return killed();
    }
    // Of one that was killed with its agent nobody knows whether what it told before was the end of it.
    if report.phase != Phase::Exited {
        return None;
    }
    let raised = report.exception.as_ref();
    let is_end = raised.is_some_and(|raised| is_end(pod, report, raised, progress));
    let exception = raised.filter(|_| is_end).map(|raised| Evidence {
        rank: raised.rank,
        time: Some(raised.time),
        ..Evidence::raised(&raised.class, &raised.message, raised.text())
    });
    // For programs whose Python does not tell. One that does and was not heard has said on stderr what it told.
    let is_heard = |line: &&str| raised.is_none_or(|raised| is_end || !raised.is_in(line));
    let line = report.line().filter(|_| report.has_traceback()).filter(is_heard).and_then(raised_in);
    let sign = |kind| report.last_match(kind).map(of_sign);
    let [timeout, error, memory] =
        [ErrorPattern::NcclTimeout, ErrorPattern::NcclError, ErrorPattern::CudaOutOfMemory].map(sign);
    // Of those that tell equally much the first one here is told.
    let told = [timeout, exception, line, memory, killed_rank(report), error];
    told.into_iter().flatten().min_by_key(|evidence| evidence.whose)
}

/// Whether an exception is why the program ended: it ended soon after, or nobody made progress any more, as when the
/// others wait for a rank that failed and can't end. What it raised when it was told to stop is not.
fn is_end(pod: &PodSeen, report: &Report, raised: &Exception, progress: Option<Timestamp>) -> bool {
    /// What was under way at that moment may still have been told.
    const UNDER_WAY: SignedDuration = SignedDuration::from_secs(30);
    const SECOND: SignedDuration = SignedDuration::from_secs(1);
    let stopped = pod.deletion.filter(|_| report.stopped_by.is_some());
    if stopped.is_some_and(|asked| raised.time.duration_since(asked) >= SECOND) {
        return false;
    }
    let was_last = || progress.is_some_and(|progress| progress.duration_since(raised.time) <= UNDER_WAY);
    report.last_exception().is_some() || (raised.thread.is_none() && was_last())
}

impl Evidence {
    fn new(reason: &'static str, what: String) -> Self {
        Self { reason, whose: FailureOrigin::Own, what, rank: None, time: None, is_of_start: false }
    }

    fn raised(class: &str, message: &str, what: String) -> Self {
        let reason = match sort(class, message) {
            Sort::CudaOutOfMemory => "CudaOutOfMemory",
            Sort::NcclTimeout => "NcclTimeout",
            Sort::NcclError => "NcclError",
            Sort::NanLoss => "NaNLoss",
            Sort::Import => "ImportError",
            Sort::Syntax | Sort::Other => "PythonException",
        };
        let is_of_start = matches!(sort(class, message), Sort::Import | Sort::Syntax);
        Self { whose: origin_of(&format!("{class}: {message}")), is_of_start, ..Self::new(reason, what) }
    }
}

fn raised_in(line: &str) -> Option<Evidence> {
    let (rank, class, message) = exception(line)?;
    Some(Evidence { rank, ..Evidence::raised(class, message, split_rank(line).1.to_owned()) })
}

fn of_sign(sign: &ErrorMatch) -> Evidence {
    let reason = match sign.kind {
        ErrorPattern::NcclTimeout => "NcclTimeout",
        ErrorPattern::CudaOutOfMemory => "CudaOutOfMemory",
        _ => "NcclError",
    };
    let (rank, words) = words(&sign.text);
    Evidence { whose: origin_of(&sign.text), rank, time: Some(sign.time), ..Evidence::new(reason, words.to_owned()) }
}

/// The rank that a signal ended, by the word of torchrun. An abort is how libraries end one that complains of others.
fn killed_rank(report: &Report) -> Option<Evidence> {
    let (rank, code) = first_rank(&report.stderr_tail).filter(|(_, code)| *code < 0 && *code != -SIGTERM)?;
    let whose = if code == -SIGABRT { FailureOrigin::Gang } else { FailureOrigin::Own };
    Some(Evidence { whose, rank: Some(rank), ..Evidence::new("Signal", ended_by(-code)) })
}

// ---- telling it

struct Told {
    reason: String,
    what: String,
    of_rank: Option<u64>,
    exit_code: Option<i32>,
    permanent: bool,
}

impl Told {
    fn new(reason: &str, what: impl Into<String>) -> Self {
        Self { reason: reason.to_owned(), what: what.into(), of_rank: None, exit_code: None, permanent: false }
    }
}

/// Reasons of `DisruptionTarget`: Kubernetes documentation, "Pod disruption conditions".
fn disrupted(pod: &PodSeen) -> Told {
    let Some(disruption) = &pod.disruption else { return Told::new("", "") };
    let (reason, what) = match disruption.reason.as_str() {
        "PreemptionByScheduler" => ("Preempted", "preempted"),
        "DeletionByTaintManager" | "DeletionByPodGC" => ("NodeLost", "its node is lost"),
        _ => ("Evicted", "evicted"),
    };
    let words = if disruption.message.is_empty() { &disruption.reason } else { &disruption.message };
    Told::new(reason, format!("{what} ({words})"))
}

fn failed(pod: &PodSeen, evidence: Option<&Evidence>) -> Told {
    let Container::Terminated { exit_code, reason, report, message, .. } = &pod.training else {
        return match &pod.pod_reason {
            Some(words) => Told::new(&words.reason, words.message.clone()),
            None => Told::new("PodFailed", "its pod failed before its program started"),
        };
    };
    let words = || message.as_deref().filter(|words| !words.trim().is_empty()).unwrap_or("the node tells no reason");
    let report = report.as_deref();
    let code = report.and_then(|report| report.exit_code).unwrap_or(*exit_code);
    let told = |reason: &str, what: String| Told { exit_code: Some(code), ..Told::new(reason, what) };
    // Nobody should pay for more gangs to learn of a typo; once it has worked it is something else.
    let is_start = pod.incarnation == 1 && report.is_some_and(|report| report.progress.is_none());
    if let Some(evidence) = evidence {
        let permanent = evidence.is_of_start && is_start;
        return Told { of_rank: evidence.rank, permanent, ..told(evidence.reason, evidence.what.clone()) };
    }
    match reason.as_str() {
        "StartError" => {
            return Told::new("ContainerConfig", format!("its container can't be started: {}", words()));
        }
        // Of a node that came back without it.
        "ContainerStatusUnknown" => return told(reason, words().to_owned()),
        _ => {}
    }
    if let Some(error) = report.and_then(|report| report.error.as_ref()) {
        return unstarted(error, &told);
    }
    let line = report.and_then(Report::line).or(message.as_deref());
    let with = |what: String, line: Option<&str>| match line {
        Some(line) => format!("{what}: {line}"),
        None => what,
    };
    // An agent that could not tell of the program's end was killed with it.
    let is_killed = report.is_none_or(|report| report.phase != Phase::Exited) && *exit_code > 128;
    let signal = report.and_then(|report| report.signal);
    let signal = signal.or(is_killed.then(|| exit_code - 128));
    let ended = signal.map_or_else(|| format!("exit code {code}"), ended_by);
    if let Some(stop) = report.and_then(|report| report.stopped_by) {
        let stop = signal_name(stop);
        return told("Signal", format!("told to stop by {stop}, and not by Kubernetes ({ended})"));
    }
    if let Some(signal) = signal {
        let line = line.filter(|_| signal != SIGKILL);
        return Told { exit_code: Some(128 + signal), ..told("Signal", with(ended, line)) };
    }
    // torchrun's own is always 1.
    let rank = report.and_then(|report| first_rank(&report.stderr_tail));
    let ranks_code = rank.map_or(code, |(_, code)| code);
    let is_usage = |line| report.is_some_and(|report| is_usage_error(&report.stderr_tail, line));
    let permanent = is_start && ranks_code == 2 && line.is_some_and(is_usage);
    let line = line.filter(|line| rank.is_none() || !line.contains("exitcode"));
    let what = with(format!("exit code {ranks_code}"), line);
    Told { of_rank: rank.map(|(rank, _)| rank), permanent, ..told("ExitCode", what) }
}

fn unstarted(error: &LaunchError, told: &impl Fn(&str, String) -> Told) -> Told {
    match error.kind {
        LaunchErrorKind::InvalidOption => {
            let words = error.message.strip_prefix("--progress-pattern ").unwrap_or(&error.message);
            Told { permanent: true, ..told("InvalidSpec", format!("monitoring.progress.patterns: {words}")) }
        }
        // What the kernel may not refuse another time, such as for lack of memory.
        LaunchErrorKind::LaunchFailed => told("CommandNotFound", error.message.clone()),
        _ => Told { permanent: true, ..told("CommandNotFound", error.message.clone()) },
    }
}

/// Of SIGKILL what it mostly means, for the kernel leaves no other word.
fn ended_by(signal: i32) -> String {
    let name = signal_name(signal);
    if signal == SIGKILL {
        return format!(
            "ended by {name}, and nobody says by whom; mostly the kernel does that for lack of memory: raise \
             resources.limits.memory, or use less"
        );
    }
    format!("ended by {name}")
}

fn signal_name(signal: i32) -> String {
    nix::sys::signal::Signal::try_from(signal).map_or_else(|_| format!("signal {signal}"), |s| s.as_str().to_owned())
}
