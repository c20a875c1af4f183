//! Where a gang is in its life, and who it waits for: for the status.

use super::leader::Leader;
use super::message::{Choice, History, MemberId, Status, Time};
use super::policy::{Judged, Why};
use super::seat::Seat;
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
    pub judged: Option<&'a Judged>,
    /// Members of the attempt that runs or ends, or else of the next one.
    pub members: usize,
    /// Who is being waited for.
    pub missing: Vec<(&'a MemberId, Missing)>,
    /// How long the attempt waits for processes that an unknown member may have started under an earlier leader.
    pub quiet_in: Duration,
}

impl Leader {
    /// How the gang stands.
    pub fn view(&self, now: Time) -> View<'_> {
        let missing = |(member, seat)| {
            let is_member = self.members.contains(member);
            Some((member, if is_member { self.missing(seat, now) } else { self.holds_up(seat, now) }?))
        };
        let quiet_in = if self.is_quiet(now) { Duration::ZERO } else { self.quiet_at.since(now) };
        View {
            phase: &self.phase,
            history: &self.history,
            judged: self.judged.as_ref(),
            members: self.members.len(),
            missing: self.seats.iter().filter_map(missing).collect(),
            quiet_in,
        }
    }

    /// What of a spare keeps the next attempt from starting.
    fn holds_up(&self, seat: &Seat, now: Time) -> Option<Missing> {
        if !matches!(self.phase, Phase::Gathering { .. }) || self.is_clear(seat, now) {
            return None;
        }
        Some(if now < seat.fence { Missing::Fenced(seat.fence.since(now)) } else { Missing::Stopping })
    }

    fn missing(&self, seat: &Seat, now: Time) -> Option<Missing> {
        let Some(holder) = &seat.holder else { return Some(Missing::NeverSeen) };
        let Status { seen, leaving, .. } = holder.status;
        if leaving.is_some() {
            return Some(Missing::Leaving);
        }
        match &self.phase {
            Phase::Over { .. } => (!holder.status.over).then_some(Missing::Unreachable),
            Phase::Running { attempt, .. } if seat.succeeded == *attempt => None,
            _ if holder.is_gone(now, &self.timing) => Some(Missing::Unreachable),
            Phase::Running { .. } => None,
            Phase::Ending { attempt, .. } => (!holder.is_out_of(*attempt)).then_some(Missing::Stopping),
            Phase::Gathering { .. } if holder.status.is_alive() => Some(Missing::Stopping),
            Phase::Gathering { attempt, .. } if seen != *attempt => Some(Missing::Preparing),
            Phase::Gathering { .. } => (now < seat.fence).then(|| Missing::Fenced(seat.fence.since(now))),
        }
    }
}
