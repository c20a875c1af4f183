//! Subtracts the same time from everything that is remembered, so that a recurring state is recognized. The model's
//! clock stands still, and the past moves away.

use super::super::agent::Gang;
use super::super::leader::Leader;
use super::super::message::{Beat, LeaderMessage, MemberMessage, Message, Time};
use super::super::view::Phase;

/// A value that contains times.
pub trait Times {
    /// Passes each time that still affects a decision to `f`.
    fn each(&mut self, now: Time, f: &mut dyn FnMut(&mut Time));
}

impl Times for Beat {
    fn each(&mut self, _: Time, f: &mut dyn FnMut(&mut Time)) {
        f(&mut self.at);
        self.echo.iter_mut().for_each(f);
    }
}

impl Times for Message {
    fn each(&mut self, now: Time, f: &mut dyn FnMut(&mut Time)) {
        match self {
            Self::Up(MemberMessage::Hello(beat, _) | MemberMessage::Status(beat, _))
            | Self::Down(LeaderMessage::Command(beat, _)) => {
                beat.each(now, f);
            }
            Self::Down(LeaderMessage::Refused(_) | LeaderMessage::Displaced) => {}
        }
    }
}

impl Times for Gang {
    fn each(&mut self, now: Time, f: &mut dyn FnMut(&mut Time)) {
        self.member.each(now, f);
        if let Some(leader) = &mut self.leader {
            leader.each(now, f);
        }
    }
}

impl Times for Leader {
    fn each(&mut self, now: Time, f: &mut dyn FnMut(&mut Time)) {
        // Forgets values that do not affect decisions any more.
        self.judged = None;
        let mut future = |time: &mut Time| {
            *time = if *time <= now { Time::default() } else { *time };
            f(time);
        };
        future(&mut self.quiet_at);
        self.seats.values_mut().for_each(|seat| future(&mut seat.fence));
        match &mut self.phase {
            Phase::Gathering { not_before, .. } => future(not_before),
            Phase::Running { since, .. } => *since = now,
            Phase::Ending { since, .. } | Phase::Over { since } => f(since),
        }
        self.strangers.values_mut().for_each(|(_, _, since)| f(since));
        for holder in self.seats.values_mut().filter_map(|seat| seat.holder.as_mut()) {
            if let Some(link) = &mut holder.link {
                [&mut link.echo, &mut link.sent].into_iter().for_each(&mut *f);
                holder.unlinked = Time::default();
            }
            [&mut holder.unlinked, &mut holder.received, &mut holder.heard].into_iter().for_each(&mut *f);
        }
    }
}
