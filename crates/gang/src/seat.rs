//! The leader's view of one member.

use super::message::{Beat, Incarnation, Outcome, RunState, Status, Time};
use super::policy::MemberEnd;
use super::{Conn, Timing};

/// A place in the gang.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Seat {
    /// The agent that holds it.
    pub holder: Option<Holder>,
    /// Until then processes of earlier holders may live.
    pub fence: Time,
    /// The last attempt in which all its ranks succeeded.
    pub succeeded: u32,
    /// The last attempt in which it was lost.
    pub lost: u32,
}

/// An agent that holds a place.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Holder {
    pub incarnation: Incarnation,
    pub link: Option<Link>,
    /// Since when there is no link.
    pub unlinked: Time,
    /// When its last message came: by a lease after that it has begun to stop by itself.
    pub received: Time,
    /// When the leader's last message was sent that it has heard.
    pub heard: Time,
    pub status: Status,
}

/// A connection to the holder.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Link {
    pub conn: Conn,
    /// The `at` of its last message.
    pub echo: Time,
    /// Whether it was told what all are to do now, and when.
    pub told: bool,
    pub sent: Time,
    /// It has told something new, and wants to know that it was heard.
    pub asks: bool,
}

impl Holder {
    /// It has sent a message. Whether that is no older than the last one, on a connection that is its own.
    pub fn beats(&mut self, now: Time, beat: Beat) -> bool {
        let Some(link) = self.link.as_mut().filter(|link| beat.at >= link.echo) else { return false };
        link.echo = beat.at;
        self.received = now;
        self.heard = self.heard.max(beat.echo.unwrap_or_default().min(now));
        true
    }

    /// Whether it is out of reach.
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

    /// How its run of this attempt ended, as far as it has.
    pub fn end(&self, attempt: u32) -> Option<&super::message::End> {
        match self.status.run.as_ref().filter(|run| run.attempt == attempt).map(|run| &run.state) {
            Some(RunState::Ended(end)) => Some(end),
            _ => None,
        }
    }
}

impl Seat {
    /// Takes in how the holder stands.
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

    /// Whether it is known how the place came out of the attempt that ended at `since`, and that by now nobody else can say more.
    pub fn is_settled(&self, attempt: u32, since: Time, now: Time, timing: &Timing) -> bool {
        match &self.holder {
            Some(holder) => holder.is_out_of(attempt) || now.since(holder.received.max(since)) >= timing.lease,
            None => now.since(since) >= timing.lease,
        }
    }

    /// How it came out of an attempt.
    pub fn came_out(&self, attempt: u32) -> MemberEnd {
        let holder = self.holder.as_ref();
        MemberEnd {
            end: holder.and_then(|holder| holder.end(attempt)).cloned(),
            lost: self.lost == attempt || holder.is_none_or(|holder| !holder.is_out_of(attempt)),
            leaving: holder.and_then(|holder| holder.status.leaving),
        }
    }
}
