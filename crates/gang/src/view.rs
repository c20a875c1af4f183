//! Where a gang is in its life, and who it waits for: for the status.

use super::message::{Choice, History, MemberId, Time};
use super::policy::Why;
use protocol::attempt::AttemptEnd;
use std::time::Duration;

/// Where the gang is in its life.
#[derive(Clone, Debug, Hash)]
pub enum Phase {
    /// Waits until all members are there and nothing of an earlier attempt lives.
    Gathering {
        /// The attempt that comes next; it may grow while members come that have seen more.
        attempt: u32,
        /// The back-off.
        not_before: Time,
        /// What it goes on from: asked for when all are there.
        choice: Chosen,
    },
    /// All members may run.
    Running {
        /// The attempt.
        attempt: u32,
        /// Where its ranks meet.
        port: u16,
        /// What it goes on from.
        choice: Choice,
        /// Since when.
        since: Time,
    },
    /// All members stop.
    Ending {
        /// The attempt.
        attempt: u32,
        /// What ended it.
        why: Why,
        /// Since when.
        since: Time,
        /// How long it ran.
        ran: Duration,
    },
    /// The history tells how the gang ended.
    Over {
        /// Since when.
        since: Time,
    },
}

/// What the next attempt goes on from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Chosen {
    /// Nobody has been asked: a member may still write.
    NotYet,
    /// The driver chooses.
    Asked,
    /// It has chosen.
    Choice(Choice),
}

/// Why a member keeps the gang from starting, or from going on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Its agent has not said hello yet.
    NeverSeen,
    /// Its agent can't be reached any more.
    Unreachable,
    /// Its agent was told to end.
    Leaving,
    /// Its processes are being stopped.
    Stopping,
    /// Its agent is there, and has not prepared for the attempt yet.
    Preparing,
    /// Processes of an earlier agent of this place may live for so long.
    Fenced(Duration),
}

/// How the gang stands.
#[derive(Debug)]
pub struct View<'a> {
    /// Where it is in its life.
    pub phase: &'a Phase,
    /// Its past.
    pub history: &'a History,
    /// The last attempt that did not end well, if this leader has judged it.
    pub judged: Option<&'a AttemptEnd>,
    /// Members of the attempt that runs or ends, or else of the next one.
    pub members: usize,
    /// Who is being waited for.
    pub missing: Vec<(&'a MemberId, Missing)>,
    /// How long the attempt waits for processes that an unknown member may have started under an earlier leader.
    pub quiet_in: Duration,
}
