//! Judges why an attempt ended, from all members' reports. The rules are those of [`failure`], as for the operator.

use crate::now;
use failure::{Container, Disruption, WorkerFacts, first_cause};
use gang::message::{MemberId, Outcome, RunEnd};
use gang::policy::{EndCause, EndedAttempt, MemberEnd, by_what_was_seen};
use jiff::Timestamp;
use protocol::attempt::AttemptEnd;
use protocol::gang::KILLED;
use protocol::report::Report;
use protocol::role::{ReplicaId, RoleName};

/// Why an attempt ended.
pub fn judge(ended: &EndedAttempt) -> AttemptEnd {
    let found = match &ended.why {
        EndCause::Ordered(_) | EndCause::Resized { .. } => None,
        _ => first(ended),
    };
    let end = found.unwrap_or_else(|| by_what_was_seen(ended));
    let reports = ended.members.values().filter_map(|member| report(member.end.as_ref()?));
    let step = reports.filter_map(|report| report.progress?.whole_step()).max();
    AttemptEnd { step, time: end.time.or_else(|| Some(now())), ..end }
}

/// Why an attempt of a worker without a gang ended, from its report.
pub fn alone(report: &Report) -> AttemptEnd {
    let worker = MemberId::new(RoleName::WORKER.as_str(), 0);
    let end = RunEnd { outcome: Outcome::Failed, report: report.to_message() };
    let members = [(worker.clone(), MemberEnd { end: Some(end), lost: false, leaving: None })].into();
    judge(&EndedAttempt { attempt: report.attempt, why: EndCause::Failed(worker), members })
}

/// The first cause, if a member failed or was lost. There is none if all members were only stopped.
fn first(ended: &EndedAttempt) -> Option<AttemptEnd> {
    let failed = |member: &MemberEnd| member.end.as_ref().is_some_and(|end| end.outcome == Outcome::Failed);
    let unchosen = match &ended.why {
        EndCause::Unchosen(report) => Some(terminated(&RunEnd { outcome: Outcome::Failed, report: report.clone() })),
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
            let role = RoleName::parse(&member.role).unwrap_or_default();
            let place = ReplicaId { role, index: member.index };
            let container = match (&end.end, &unchosen) {
                (_, Some(unchosen)) if place == ReplicaId::FIRST_WORKER => unchosen.clone(),
                (Some(end), _) => terminated(end),
                (None, _) => Container::Waiting,
            };
            (place, container, disruption(end))
        })
        .collect();
    first_cause(facts.iter().map(|(place, training, disruption)| WorkerFacts {
        role: place.role,
        index: place.index,
        pod: "",
        node: None,
        attempt: ended.attempt,
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

/// What was done to a member from outside. A member whose agent reported its end was not lost, whatever it seemed.
fn disruption(member: &MemberEnd) -> Option<Disruption> {
    let disrupted = |reason: &str, message: &str| {
        Some(Disruption { reason: reason.to_owned(), message: message.to_owned(), time: None })
    };
    let failed = member.end.as_ref().is_some_and(|end| end.outcome == Outcome::Failed);
    match member.leaving {
        _ if failed => None,
        Some(_) => disrupted("EvictionByEvictionAPI", "its pod was asked to terminate"),
        None if member.lost && member.end.is_none() => disrupted("DeletionByPodGC", "its agent has fallen silent"),
        None => None,
    }
}

/// How a container would have ended, if it had ended with its program.
fn terminated(end: &RunEnd) -> Container {
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
    Container::Terminated {
        started: report.as_ref().and_then(|report| report.started_at),
        finished: whole,
        exit_code: code,
        reason: String::new(),
        report: report.map(Box::new),
        message: None,
    }
}

fn report(end: &RunEnd) -> Option<Report> {
    Report::parse(&end.report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::attempt::Class;
    use protocol::report::{LastProgress, Phase};
    use std::collections::BTreeMap;

    fn ended(why: EndCause, members: impl IntoIterator<Item = MemberEnd>) -> EndedAttempt {
        let worker = |index: usize| MemberId::new("worker", u32::try_from(index).unwrap());
        let members: BTreeMap<_, _> = members.into_iter().enumerate().map(|(i, end)| (worker(i), end)).collect();
        EndedAttempt { attempt: 2, why, members }
    }

    fn end(outcome: Outcome, report: &Report) -> MemberEnd {
        let report = Report { version: 1, attempt: 2, phase: Phase::Exited, ..report.clone() };
        MemberEnd { end: Some(RunEnd { outcome, report: report.to_message() }), lost: false, leaving: None }
    }

    fn stopped(step: f64) -> MemberEnd {
        let progress = Some(LastProgress { step: Some(step), ..LastProgress::default() });
        end(Outcome::Stopped, &Report { signal: Some(15), stopped_by: Some(15), progress, ..Report::default() })
    }

    fn failed(code: i32, words: &str) -> MemberEnd {
        let report = Report { exit_code: Some(code), stderr_tail: words.to_owned(), ..Report::default() };
        end(Outcome::Failed, &report)
    }

    fn silent() -> MemberEnd {
        MemberEnd { end: None, lost: true, leaving: None }
    }

    fn first_worker() -> MemberId {
        MemberId::new("worker", 0)
    }

    #[test]
    fn failed_worker_is_named_rather_than_stopped_ones() {
        let ended =
            ended(EndCause::Failed(first_worker()), [stopped(7.0), failed(3, "ValueError: boom\n"), stopped(9.0)]);
        let judged = judge(&ended);
        assert_eq!((judged.reason.as_str(), judged.class()), ("ExitCode", Class::Failure));
        assert!(judged.to_string().starts_with("worker 1: exit code 3"), "{judged:?}");
        assert_eq!((judged.attempt, judged.worker, judged.exit_code, judged.step), (2, Some(1), Some(3), Some(9)));
    }

    #[test]
    fn lost_node_takes_precedence_over_peer_errors() {
        let echo = "RuntimeError: Connection closed by peer [10.0.0.7]:4242\n";
        let judged = judge(&ended(EndCause::Failed(first_worker()), [failed(1, echo), silent()]));
        assert_eq!((judged.reason.as_str(), judged.class()), ("NodeLost", Class::Disruption), "{judged:?}");
        assert!(judged.message.contains("fallen silent"), "{judged:?}");
    }

    #[test]
    fn evicted_worker_is_not_a_program_failure() {
        let leaving = MemberEnd { leaving: Some(15), ..stopped(1.0) };
        let judged = judge(&ended(EndCause::Left(first_worker(), 15), [stopped(1.0), leaving]));
        assert_eq!((judged.reason.as_str(), judged.class()), ("Evicted", Class::Disruption));
        // A member that failed before it was asked to terminate has failed.
        let failed = MemberEnd { leaving: Some(15), ..failed(1, "OSError: no space\n") };
        assert_eq!(judge(&ended(EndCause::Left(first_worker(), 15), [stopped(1.0), failed])).class(), Class::Failure);
    }

    #[test]
    fn killed_agent_counts_as_a_failure_of_its_worker() {
        let report = Report { version: 1, attempt: 2, phase: Phase::Running, ..Report::default() };
        let end = RunEnd { outcome: Outcome::Failed, report: report.to_message() };
        let killed = MemberEnd { end: Some(end), lost: true, leaving: None };
        let judged = judge(&ended(EndCause::Lost(first_worker()), [stopped(1.0), killed]));
        assert_eq!((judged.reason.as_str(), judged.class()), ("Signal", Class::Failure));
        assert!(judged.message.contains("ended by SIGKILL"), "{judged:?}");
    }

    /// The first member to report is one that waits. The member that it waits for may report no steps at all.
    #[test]
    fn hung_gang_names_the_culprit_rank() {
        use protocol::hang::Hang;
        use protocol::stacks::StackLocation;
        use text::error_pattern::ErrorPattern;
        let hang = |place, rank, text: &str| {
            Some(Hang { place, rank: Some(rank), time: Timestamp::from_second(50).unwrap(), text: text.to_owned() })
        };
        let reports = |place| {
            let hang = hang(place, 0, "no step for 30 s after step 41, no output for as long");
            let report = Report { signal: Some(15), ended_for: Some(ErrorPattern::Hang), hang, ..Report::default() };
            end(Outcome::Failed, &report)
        };
        let reported = |hang| {
            let report = Report { signal: Some(15), stopped_by: Some(15), hang, ..Report::default() };
            end(Outcome::Stopped, &report)
        };
        let judged = |members: [MemberEnd; 3]| {
            let judged = judge(&ended(EndCause::Failed(first_worker()), members));
            assert_eq!((judged.reason.as_str(), judged.class(), judged.permanent), ("Hang", Class::Failure, false));
            judged.to_string()
        };
        let halted = || reported(hang(StackLocation::Stopped, 2, "process 57 is stopped (SIGSTOP)"));
        let waits = || reported(hang(StackLocation::Collective, 1, "rank 1 is in all_reduce"));
        let of_2 = "worker 2, rank 2: process 57 is stopped (SIGSTOP)";
        assert_eq!(judged([reports(StackLocation::Collective), waits(), halted()]), of_2);
        assert_eq!(judged([reports(StackLocation::Unknown), waits(), halted()]), of_2);
        let elsewhere = || reported(hang(StackLocation::Elsewhere, 2, "rank 2 is in read (/app/data.py:7)"));
        let of_2 = "worker 2, rank 2: rank 2 is in read (/app/data.py:7)";
        assert_eq!(judged([reports(StackLocation::Collective), waits(), elsewhere()]), of_2);
        assert!(
            judged([reports(StackLocation::Collective), waits(), waits()])
                .starts_with("worker 0, rank 0: no step for 30 s")
        );
        assert!(
            judged([reports(StackLocation::Elsewhere), waits(), stopped(1.0)]).starts_with("worker 0, rank 0: no step")
        );
        assert_eq!(
            judged([reports(StackLocation::Elsewhere), elsewhere(), halted()]),
            "worker 2, rank 2: process 57 is stopped (SIGSTOP)"
        );
        assert!(
            judged([reports(StackLocation::Elsewhere), waits(), elsewhere()]).starts_with("worker 0, rank 0: no step")
        );
        assert!(
            judged([reports(StackLocation::Stopped), waits(), elsewhere()]).starts_with("worker 0, rank 0: no step")
        );
    }

    /// What a program says because it is stopped is no cause, as torchrun's own exception or one of a signal's handler.
    #[test]
    fn stopped_program_that_raises_is_not_the_cause() {
        let hang = protocol::hang::Hang {
            place: protocol::stacks::StackLocation::Elsewhere,
            rank: Some(1),
            time: Timestamp::from_second(50).unwrap(),
            text: "rank 1 is in <module> (/app/train.py:21)".to_owned(),
        };
        let torchrun = "W1130 20:01:02.432000 12 torch/distributed/elastic/agent/server/api.py:719] Received 15 death \
                        signal, shutting down workers\nTraceback (most recent call last):\n  File \"/usr/bin/torchrun\", \
                        line 33, in <module>\ntorch.distributed.elastic.multiprocessing.api.SignalException: Process 12 \
                        got signal: 15\n";
        let by_torchrun = Report {
            exit_code: Some(1),
            stopped_by: Some(15),
            hang: Some(hang),
            stderr_tail: torchrun.to_owned(),
            ..Report::default()
        };
        let waits = Report {
            signal: Some(15),
            ended_for: Some(text::error_pattern::ErrorPattern::Hang),
            hang: Some(protocol::hang::Hang {
                place: protocol::stacks::StackLocation::Collective,
                ..by_torchrun.hang.clone().unwrap()
            }),
            ..Report::default()
        };
        let members = [end(Outcome::Failed, &waits), end(Outcome::Stopped, &by_torchrun)];
        let judged = judge(&ended(EndCause::Failed(first_worker()), members));
        assert_eq!((judged.reason.as_str(), judged.worker), ("Hang", Some(1)), "{judged:?}");

        let raises_at = |millisecond| {
            let time = Timestamp::from_millisecond(millisecond).unwrap();
            let message = "asked to stop".to_owned();
            let raised =
                text::exception::Exception { time, class: "Preempted".to_owned(), message, ..Default::default() };
            Report {
                exit_code: Some(1),
                stopped_by: Some(15),
                stopped_at: Some(Timestamp::from_millisecond(50_000).unwrap()),
                stderr_tail: "Traceback (most recent call last):\n  x\nPreempted: asked to stop\n".to_owned(),
                python_tells: true,
                exception: Some(raised),
                ..Report::default()
            }
        };
        let timeout = "RuntimeError: [gloo/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation\n";
        let judged = |millisecond| {
            let members = [failed(1, timeout), end(Outcome::Stopped, &raises_at(millisecond))];
            judge(&ended(EndCause::Failed(first_worker()), members)).worker
        };
        assert_eq!((judged(49_999), judged(50_020)), (Some(1), Some(0)));
    }

    #[test]
    fn requested_stop_is_not_a_failure() {
        let judged = judge(&ended(EndCause::Ordered("by a person".to_owned()), [stopped(1.0), failed(1, "")]));
        assert_eq!((judged.class(), judged.message.as_str()), (Class::Requested, "by a person"));
        let judged = judge(&ended(EndCause::LeaderLost, [stopped(1.0), stopped(1.0)]));
        assert_eq!(judged.class(), Class::Disruption, "a leader that forgot how it ended");
    }

    #[test]
    fn unusable_checkpoint_is_a_permanent_failure() {
        use protocol::report::{LaunchError, LaunchErrorKind};
        let error =
            LaunchError { kind: LaunchErrorKind::CheckpointUnusable, message: "resumeFrom: no such".to_owned() };
        let report = Report { version: 1, phase: Phase::Exited, error: Some(error), ..Report::default() };
        let nothing = MemberEnd { end: None, lost: false, leaving: None };
        let judged = judge(&ended(EndCause::Unchosen(report.to_message()), [nothing.clone(), nothing]));
        assert_eq!((judged.reason.as_str(), judged.permanent), ("CheckpointCorrupted", true), "{judged:?}");
    }

    /// Text that no agent wrote is no reason to panic or to stop.
    #[test]
    fn malformed_report_is_tolerated() {
        for words in ["", "null", "[]", "{}", "{\"version\":1", "\u{0}"] {
            let end = RunEnd { outcome: Outcome::Failed, report: words.to_owned() };
            let judged = judge(&ended(
                EndCause::Failed(first_worker()),
                [MemberEnd { end: Some(end), lost: false, leaving: None }],
            ));
            assert_eq!(judged.class(), Class::Failure, "{words}: {judged:?}");
        }
    }
}
