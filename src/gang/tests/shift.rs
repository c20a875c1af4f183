//! Takes the same time off all that is remembered, so that a state that comes again is seen to be the same: the model's clock
//! stands still, and the past moves away.

use super::super::agent::Gang;
use super::super::message::{Beat, Down, Message, Time, Up};

/// Something that knows times.
pub trait Times {
    /// Shows each of them that still decides something.
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
            Self::Up(Up::Hello(beat, _) | Up::Status(beat, _)) | Self::Down(Down::Command(beat, _)) => {
                beat.each(now, f)
            }
            Self::Down(Down::Refused(_) | Down::Displaced) => {}
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
