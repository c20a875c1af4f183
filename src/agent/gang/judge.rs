//! Why an attempt ended, by the reports of all members: the rules are those of [`crate::cause`], as for the operator.

use crate::agent::now;
use crate::cause::{Cause as Found, Container, Disruption, WorkerFacts, first_cause};
use crate::gang::message::{Cause, End, Outcome};
use crate::gang::policy::{Counts, Ended, Judged, Judgement, MemberEnd, Why, by_what_was_seen};
use crate::protocol::gang::EndedAttempt;
use crate::protocol::report::Report;
use jiff::Timestamp;

/// What a container exits with that was killed, if its agent could not tell.
const KILLED: i32 = 137;

/// Judges an attempt that has ended.
pub fn judge(ended: &Ended) -> Judgement {
    let seen = by_what_was_seen(ended);
    let step = ended.members.values().filter_map(|member| step(&report(member.end.as_ref()?)?)).max();
    let found = match &ended.why {
        Why::Ordered(_) => None,
        _ => first(ended),
    };
    match found {
        Some(found) => Judgement {
            cause: Cause { reason: found.reason.as_str().to_owned(), message: found.message },
            counts: if found.disruption { Counts::Disruption } else { Counts::Failure },
            permanent: found.permanent,
            step,
        },
        None => Judgement { step, ..seen },
    }
}

/// What is told of it.
pub fn told(judged: &Judged) -> EndedAttempt {
    let Judged { ended, judgement, ran } = judged;
    let found = if judgement.counts == Counts::Nothing { None } else { first(ended) };
    EndedAttempt {
        attempt: ended.attempt,
        reason: judgement.cause.reason.clone(),
        message: judgement.cause.message.clone(),
        worker: found.as_ref().and_then(|found| found.worker),
        rank: found.as_ref().and_then(|found| found.rank),
        exit_code: found.as_ref().and_then(|found| found.exit_code),
        disruption: judgement.counts != Counts::Failure,
        permanent: judgement.permanent,
        time: found.as_ref().and_then(|found| found.time).or_else(|| Some(now())),
        ran_seconds: ran.as_secs(),
    }
}

/// The first cause, if anybody has failed or was lost: of a gang in which all were only told to stop nothing is to be found.
fn first(ended: &Ended) -> Option<Found> {
    let failed = |member: &MemberEnd| member.end.as_ref().is_some_and(|end| end.outcome == Outcome::Failed);
    let unchosen = match &ended.why {
        Why::Unchosen(report) => Some(Container::of(&End { outcome: Outcome::Failed, report: report.clone() })),
        _ => None,
    };
    let is_taken = |member: &MemberEnd| member.lost || member.leaving.is_some();
    if unchosen.is_none() && !ended.members.values().any(|member| failed(member) || is_taken(member)) {
        return None;
    }
    let facts: Vec<_> = ended
        .members
        .iter()
        .map(|(member, end)| {
            let index = i32::try_from(member.index).unwrap_or(i32::MAX);
            let container = match (&end.end, &unchosen) {
                (_, Some(unchosen)) if index == 0 => unchosen.clone(),
                (Some(end), _) => Container::of(end),
                (None, _) => Container::Waiting,
            };
            (index, container, disruption(end))
        })
        .collect();
    let attempt = i32::try_from(ended.attempt).unwrap_or(i32::MAX);
    first_cause(facts.iter().map(|(index, training, disruption)| WorkerFacts {
        index: *index,
        pod: "",
        node: None,
        attempt,
        created: None,
        deletion: None,
        gone: false,
        ended: match training {
            Container::Terminated { exit_code, .. } => Some(*exit_code == 0),
            _ => None,
        },
        pod_reason: None,
        disruption: disruption.as_ref(),
        failed_init: None,
        training,
    }))
}

/// What was done to a member from outside. One of whose end its own agent has told has not been lost, whatever it looked like.
fn disruption(member: &MemberEnd) -> Option<Disruption> {
    let disrupted = |reason: &str, message: &str| {
        Some(Disruption { reason: reason.to_owned(), message: message.to_owned(), time: None })
    };
    let failed = member.end.as_ref().is_some_and(|end| end.outcome == Outcome::Failed);
    match member.leaving {
        _ if failed => None,
        Some(_) => disrupted("EvictionByEvictionAPI", "its pod was told to end"),
        None if member.lost && member.end.is_none() => disrupted("DeletionByPodGC", "its agent has fallen silent"),
        None => None,
    }
}

trait OfEnd {
    fn of(end: &End) -> Self;
}

impl OfEnd for Container {
    /// How a container would have ended that ends with its program.
    fn of(end: &End) -> Self {
        let report = report(end);
        let code = match (&report, end.outcome) {
            (_, Outcome::Succeeded) => 0,
            (Some(report), _) => {
                let signal = report.signal.or(report.stopped_by).map(|signal| 128 + signal);
                report.exit_code.filter(|code| *code != 0).or(signal).unwrap_or(KILLED)
            }
            (None, _) => KILLED,
        };
        let finished = report.as_ref().and_then(|report| report.finished_at);
        let whole = finished.and_then(|time| Timestamp::from_second(time.as_second()).ok());
        Self::Terminated {
            started: report.as_ref().and_then(|report| report.started_at),
            finished: whole,
            exit_code: code,
            reason: String::new(),
            report: report.map(Box::new),
            message: None,
        }
    }
}

fn report(end: &End) -> Option<Report> {
    Report::parse(&end.report)
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a step is a whole number, and none is so large
fn step(report: &Report) -> Option<u64> {
    report.progress?.step.filter(|step| *step >= 0.0).map(|step| step as u64)
}
