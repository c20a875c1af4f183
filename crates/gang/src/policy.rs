//! What ended an attempt, as its leader sees it. What follows from it is decided by [`failure::restart`].

use super::message::{Choice, End, History, MemberId, Outcome};
use protocol::attempt::AttemptEnd;
use protocol::reason::Reason;
use protocol::role::RoleName;
use std::collections::BTreeMap;

/// What ended an attempt, as the leader saw it first. It need not be the cause: a lost node shows later than the failures
/// that follow from it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// A member's program failed, or its agent stopped it by itself.
    Failed(MemberId),
    /// A member fell silent, or came back without memory.
    Lost(MemberId),
    /// A member's agent was told to end by this signal.
    Left(MemberId, i32),
    /// The leader was lost: its successor found the attempt begun.
    LeaderLost,
    /// Somebody asked for another attempt, with these words.
    Ordered(String),
    /// The next attempt has other members, so many instead of so many.
    Resized {
        /// Members of this attempt.
        from: usize,
        /// Members of the next one.
        to: usize,
    },
    /// What it should go on from could not be told: the leader's report.
    Unchosen(String),
}

/// How one member came out of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MemberEnd {
    /// How its processes ended; none for a member that was lost, or had started none.
    pub end: Option<End>,
    /// It was lost: silent, or its agent came back without memory.
    pub lost: bool,
    /// The signal that told its agent to end.
    pub leaving: Option<i32>,
}

/// An attempt that has ended: all that there is to judge by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ended {
    /// Its number.
    pub attempt: u32,
    /// What ended it.
    pub why: Why,
    /// How each member came out of it.
    pub members: BTreeMap<MemberId, MemberEnd>,
}

/// Judges an attempt. It has to be pure, and quick.
pub type Judge = fn(&Ended) -> AttemptEnd;

/// An attempt begins: what it goes on from, and where its ranks meet. Each number has its port, so that a straggler of the
/// attempt before, even of one that a lost leader has begun unseen, does not meet this one.
#[expect(clippy::cast_possible_truncation, reason = "less than the number of ports")]
pub(crate) fn begin(history: &mut History, attempt: u32, choice: &Choice, (first, count): (u16, u16)) {
    let count = u32::from(count.max(2));
    let port = |number: u32| first.saturating_add((number.wrapping_sub(1) % count) as u16);
    let port = if port(attempt) == history.port { port(attempt.wrapping_add(1)) } else { port(attempt) };
    (history.attempt, history.port) = (attempt, port);
    history.checkpoint.clone_from(&choice.checkpoint);
}

/// The end of an attempt by what ended it and how its members came out of it, without a look at the reports.
pub fn by_what_was_seen(ended: &Ended) -> AttemptEnd {
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
        (Why::Ordered(words), ..) => disrupted(new(Reason::Restarted, words.clone())),
        (Why::Resized { from, to }, ..) => {
            let workers = if *to == 1 { "worker" } else { "workers" };
            disrupted(new(Reason::Resized, format!("the gang goes on with {to} {workers} instead of {from}")))
        }
        (Why::Unchosen(report), ..) => new(Reason::CheckpointCorrupted, report.clone()),
        (_, Some((member, end)), _) => match end.leaving {
            Some(signal) => {
                let message = format!("its agent was asked to end by signal {signal}");
                of(member, disrupted(new(Reason::Disrupted, message)))
            }
            None => of(member, lost()),
        },
        (Why::Lost(member), ..) => of(member, lost()),
        (Why::LeaderLost, ..) => disrupted(new(Reason::NodeLost, "the leader was lost".to_owned())),
        (_, _, Some((member, _))) => of(member, new(Reason::ExitCode, "its program failed".to_owned())),
        (Why::Failed(member) | Why::Left(member, _), ..) => {
            of(member, disrupted(new(Reason::Disrupted, "it stopped".to_owned())))
        }
    }
}
