//! The leader's view of one member.

use super::message::{Beat, Incarnation, Outcome, RunState, Status, Time};
use super::policy::MemberEnd;
use super::{Conn, Timing};

/// A place in the gang.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Seat {
    /// The agent that holds it.
    pub holder: Option<Holder>,
    /// Processes of earlier holders may live until then.
    pub fence: Time,
    /// The last attempt in which all ranks of the place succeeded.
    pub succeeded: u32,
    /// The last attempt in which it was lost.
    pub lost: u32,
}

/// An agent that holds a place.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Holder {
    pub incarnation: Incarnation,
    pub link: Option<Link>,
    /// The time since which there has been no link.
    pub unlinked: Time,
    /// When its last message arrived. A lease later, the holder has begun to stop on its own.
    pub received: Time,
    /// When the leader sent the last message that the holder has received.
    pub heard: Time,
    pub status: Status,
}

/// A connection to the holder.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Link {
    pub conn: Conn,
    /// The `at` of its last message.
    pub echo: Time,
    /// Whether the current command was sent on it, and when the last message was.
    pub is_commanded: bool,
    pub sent: Time,
    /// The holder has reported something new, and waits for the confirmation.
    pub asks: bool,
}

impl Holder {
    /// Records a message of the holder. Returns whether it is no older than the last one, on the holder's own
    /// connection.
    pub fn beats(&mut self, now: Time, beat: Beat) -> bool {
        let Some(link) = self.link.as_mut().filter(|link| beat.at >= link.echo) else { return false };
        link.echo = beat.at;
        self.received = now;
        self.heard = self.heard.max(beat.echo.unwrap_or_default().min(now));
        true
    }

    /// Whether it is unreachable.
    pub fn is_gone(&self, now: Time, timing: &Timing) -> bool {
        now.since(self.heard) >= timing.lease || (self.link.is_none() && now.since(self.unlinked) >= timing.reconnect)
    }

    /// Whether it can't run an attempt up to this one, now or later.
    pub fn is_out_of(&self, attempt: u32) -> bool {
        self.status.closed >= attempt && !self.status.is_alive()
    }

    /// Whether it has prepared for this attempt and can start it.
    pub fn is_ready(&self, attempt: u32, now: Time, timing: &Timing) -> bool {
        let status = &self.status;
        status.seen == attempt
            && !status.is_alive()
            && status.leaving.is_none()
            && self.link.is_some()
            && !self.is_gone(now, timing)
    }

    /// How its run of this attempt ended, if it has ended.
    pub fn end(&self, attempt: u32) -> Option<&super::message::RunEnd> {
        match self.status.run.as_ref().filter(|run| run.attempt == attempt).map(|run| &run.state) {
            Some(RunState::Ended(end)) => Some(end),
            _ => None,
        }
    }
}

impl Seat {
    /// Updates the seat from the holder's status.
    pub fn note(&mut self) {
        let Some(holder) = &self.holder else { return };
        if let Some(run) = &holder.status.run
            && holder.end(run.attempt).is_some_and(|end| end.outcome == Outcome::Succeeded)
        {
            self.succeeded = self.succeeded.max(run.attempt);
        }
    }

    /// Another agent takes the place. `attempt` is the last one that was started.
    pub fn displace(&mut self, by: &Incarnation, attempt: u32, timing: &Timing) {
        let Some(old) = self.holder.take() else { return };
        if self.succeeded < attempt {
            self.lost = attempt;
        }
        if old.incarnation.pod != by.pod && !old.is_out_of(attempt) {
            self.fence = self.fence.max(old.received + timing.fence());
        }
    }

    /// Whether the result of this place in the attempt that ended at `since` is known, and no other agent can add to
    /// it.
    pub fn is_settled(&self, attempt: u32, since: Time, now: Time, timing: &Timing) -> bool {
        match &self.holder {
            Some(holder) => holder.is_out_of(attempt) || now.since(holder.received.max(since)) >= timing.lease,
            None => now.since(since) >= timing.lease,
        }
    }

    /// How an attempt ended for this place.
    pub fn came_out(&self, attempt: u32) -> MemberEnd {
        let holder = self.holder.as_ref();
        MemberEnd {
            end: holder.and_then(|holder| holder.end(attempt)).cloned(),
            lost: self.lost == attempt || holder.is_none_or(|holder| !holder.is_out_of(attempt)),
            leaving: holder.and_then(|holder| holder.status.leaving),
        }
    }
}
