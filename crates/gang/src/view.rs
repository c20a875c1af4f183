//! The gang's phase and the members that it waits for, as the status reports them.

use super::message::{Choice, History, MemberId, Time};
use super::policy::EndCause;
use protocol::attempt::AttemptEnd;
use std::time::Duration;

/// The phase that the gang is in.
#[derive(Clone, Debug, Hash)]
pub enum Phase {
    /// Waits until all members are present and no process of an earlier attempt lives.
    Gathering {
        /// The next attempt. It may grow when members join that have seen a larger number.
        attempt: u32,
        /// The end of the back-off.
        not_before: Time,
        /// The checkpoint to resume from, chosen once all members are present.
        choice: ChoiceState,
    },
    /// All members may run.
    Running {
        /// The attempt.
        attempt: u32,
        /// The port where its ranks rendezvous.
        port: u16,
        /// The checkpoint that it resumes from.
        choice: Choice,
        /// When the phase began.
        since: Time,
    },
    /// All members stop.
    Ending {
        /// The attempt.
        attempt: u32,
        /// What ended it.
        why: EndCause,
        /// When the phase began.
        since: Time,
        /// How long it ran.
        ran: Duration,
    },
    /// The gang has ended, and its history says how.
    Over {
        /// When the phase began.
        since: Time,
    },
}

/// The checkpoint choice for the next attempt.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ChoiceState {
    /// The choice has not been requested yet, because a member may still write.
    NotYet,
    /// The driver is choosing.
    Asked,
    /// The driver has chosen.
    Choice(Choice),
}

/// Why a member keeps the gang from starting or continuing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockReason {
    /// Its agent has not said hello yet.
    NeverSeen,
    /// Its agent is not reachable any more.
    Unreachable,
    /// Its agent is being terminated.
    Leaving,
    /// Its processes are being stopped.
    Stopping,
    /// Its agent is connected, and has not prepared for the attempt yet.
    Preparing,
    /// Processes of an earlier agent in this place may live for this long.
    Fenced(Duration),
}

/// The state of the gang.
#[derive(Debug)]
pub struct View<'a> {
    /// The phase that it is in.
    pub phase: &'a Phase,
    /// Its history.
    pub history: &'a History,
    /// The last attempt that did not succeed, if this leader has judged it.
    pub judged: Option<&'a AttemptEnd>,
    /// The number of members of the attempt that runs or ends, or else of the next one.
    pub members: usize,
    /// The members that the gang waits for.
    pub missing: Vec<(&'a MemberId, BlockReason)>,
    /// How long the attempt waits for processes that an unknown member may have started under an earlier leader.
    pub quiet_in: Duration,
}
