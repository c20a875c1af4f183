//! What ended an attempt, as its leader sees it. [`failure::restart`] decides what follows.

use super::message::{Choice, History, MemberId, Outcome, RunEnd};
use protocol::attempt::AttemptEnd;
use protocol::reason::Reason;
use protocol::role::RoleName;
use std::collections::BTreeMap;

/// What ended an attempt, as the leader saw it first. It need not be the cause, because a lost node shows later than
/// the failures that it causes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum EndCause {
    /// A member's program failed, or its agent stopped it on its own.
    Failed(MemberId),
    /// A member fell silent, or returned without its memory.
    Lost(MemberId),
    /// A member's agent received this termination signal.
    Left(MemberId, i32),
    /// The leader was lost, and its successor found the attempt begun.
    LeaderLost,
    /// Another attempt was requested, with this message.
    Ordered(String),
    /// The next attempt has a different set of members.
    Resized {
        /// The number of members of this attempt.
        from: usize,
        /// The number of members of the next one.
        to: usize,
    },
    /// The checkpoint to resume from could not be determined. Holds the leader's report.
    Unchosen(String),
}

/// How an attempt ended for one member.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MemberEnd {
    /// How its processes ended. None for a member that was lost or had started nothing.
    pub end: Option<RunEnd>,
    /// It was lost: it fell silent, or its agent returned without its memory.
    pub lost: bool,
    /// The termination signal that its agent received.
    pub leaving: Option<i32>,
}

/// An attempt that has ended, with everything that it can be judged by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EndedAttempt {
    /// Its number.
    pub attempt: u32,
    /// What ended it.
    pub why: EndCause,
    /// How it ended for each member.
    pub members: BTreeMap<MemberId, MemberEnd>,
}

/// A function that judges an attempt. It must be pure and fast.
pub type Judge = fn(&EndedAttempt) -> AttemptEnd;

/// Begins an attempt with its checkpoint and its rendezvous port. Each number has its own port, so that stragglers of
/// the previous attempt do not meet this one. That holds even if a lost leader began that attempt unseen.
#[expect(clippy::cast_possible_truncation, reason = "less than the number of ports")]
pub(crate) fn begin(history: &mut History, attempt: u32, choice: &Choice, (first, count): (u16, u16)) {
    let count = u32::from(count.max(2));
    let port = |number: u32| first.saturating_add((number.wrapping_sub(1) % count) as u16);
    let port = if port(attempt) == history.port { port(attempt.wrapping_add(1)) } else { port(attempt) };
    (history.attempt, history.port) = (attempt, port);
    history.checkpoint.clone_from(&choice.checkpoint);
}

/// Judges an attempt by what ended it and how it ended for its members, without reading the reports.
pub fn by_what_was_seen(ended: &EndedAttempt) -> AttemptEnd {
    let gone = ended.members.iter().find(|(_, member)| member.lost || member.leaving.is_some());
    let failed = ended.members.iter().find(|(_, m)| m.end.as_ref().is_some_and(|end| end.outcome == Outcome::Failed));
    let new = |reason, message| AttemptEnd::new(ended.attempt, reason, message);
    let of = |member: &MemberId, end: AttemptEnd| AttemptEnd {
        role: RoleName::parse(&member.role).unwrap_or_default(),
        worker: Some(member.index),
        ..end
    };
    let disrupted = |end: AttemptEnd| AttemptEnd { disruption: true, ..end };
    let lost = || disrupted(new(Reason::NodeLost, "its agent has fallen silent".to_owned()));
    match (&ended.why, gone, failed) {
        (EndCause::Ordered(words), ..) => disrupted(new(Reason::Restarted, words.clone())),
        (EndCause::Resized { from, to }, ..) => {
            let workers = if *to == 1 { "worker" } else { "workers" };
            disrupted(new(Reason::Resized, format!("the gang goes on with {to} {workers} instead of {from}")))
        }
        (EndCause::Unchosen(report), ..) => new(Reason::CheckpointCorrupted, report.clone()),
        (_, Some((member, end)), _) => match end.leaving {
            Some(signal) => {
                let message = format!("its agent was asked to end by signal {signal}");
                of(member, disrupted(new(Reason::Disrupted, message)))
            }
            None => of(member, lost()),
        },
        (EndCause::Lost(member), ..) => of(member, lost()),
        (EndCause::LeaderLost, ..) => disrupted(new(Reason::NodeLost, "the leader was lost".to_owned())),
        (_, _, Some((member, _))) => of(member, new(Reason::ExitCode, "its program failed".to_owned())),
        (EndCause::Failed(member) | EndCause::Left(member, _), ..) => {
            of(member, disrupted(new(Reason::Disrupted, "it stopped".to_owned())))
        }
    }
}
