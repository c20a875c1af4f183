mod admit;
mod agent;
pub mod frame;
mod leader;
mod member;
pub mod message;
pub mod policy;
mod seat;
mod view;

#[cfg(test)]
mod tests;

pub use agent::{Gang, Input, Setup};
pub use leader::LeaderSetup;
pub use view::{Chosen, Missing, Phase, View};

use message::{Cause, Choice, History, Message, Run};
use std::time::Duration;

/// A connection, as the driver numbers them: never the same number twice. 0 is the gang's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Conn(pub u64);

impl Conn {
    /// Between leader and member of one agent.
    pub(crate) const LOCAL: Self = Self(0);
}

/// How long things may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timing {
    /// Between two messages, if there is nothing new.
    pub beat: Duration,
    /// Who has not been heard for so long is lost, and whoever has not been heard stops what it runs.
    pub lease: Duration,
    /// Who has lost its connection for so long is lost too.
    pub reconnect: Duration,
    /// Between SIGTERM and SIGKILL where nothing is left to be saved: after a failure, or when the lease is over.
    pub short_grace: Duration,
    /// The same where the program may save: the agent is told to end, or somebody wants another attempt.
    pub grace: Duration,
    /// From SIGKILL until no process lives, and what clocks differ by during a lease.
    pub margin: Duration,
    /// How long a leader waits for those who have not heard how the gang ended.
    pub linger: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            beat: Duration::from_secs(2),
            lease: Duration::from_secs(10),
            reconnect: Duration::from_secs(1),
            short_grace: Duration::from_secs(5),
            grace: Duration::from_secs(45),
            margin: Duration::from_secs(1),
            linger: Duration::from_secs(60),
        }
    }
}

impl Timing {
    /// From the last message that was heard of a member until none of its processes can live.
    pub fn fence(&self) -> Duration {
        self.lease + self.short_grace + self.margin
    }
}

/// What an agent remembers over its own end: for one that starts again in the same pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Memory {
    /// The gang's past; of the operator's copy and the agent's own the newer one.
    pub history: History,
    /// The largest attempt heard of.
    pub seen: u32,
    /// What ran last, if that is known.
    pub run: Option<Run>,
}

/// How an agent ends.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Exit {
    /// The gang has succeeded: 0.
    Succeeded,
    /// The gang has failed: not 0, with the cause.
    Failed(Cause),
    /// Told to end by this signal before the gang had ended: 128 + n.
    Signalled(i32),
    /// A later agent holds this place, in another pod: this one is of no use any more, and its pod is being deleted. Not 0.
    Displaced,
}

/// What the driver has to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Send a message. It may be dropped if the connection takes nothing: the next one tells the same.
    Send {
        /// To whom.
        conn: Conn,
        /// What.
        message: Message,
    },
    /// Close a connection: nothing more will be sent, and what still comes of it is ignored.
    Close {
        /// Which one.
        conn: Conn,
        /// For the log.
        why: String,
    },
    /// Choose the checkpoint for this attempt, and answer by [`Input::Chosen`]. An older choosing is of no use any more.
    Choose {
        /// The attempt.
        attempt: u32,
    },
    /// Start the program, and answer by [`Input::Ended`] when no process of it lives any more.
    Start {
        /// The attempt.
        attempt: u32,
        /// Where its ranks meet.
        port: u16,
        /// What it goes on from.
        choice: Choice,
    },
    /// SIGTERM to the program now, SIGKILL to every process of it after the grace. Told again, a shorter grace holds.
    Stop {
        /// The attempt.
        attempt: u32,
        /// Counted from now.
        grace: Duration,
    },
    /// Send what is still to be sent, for a second at most, and exit.
    Exit(Exit),
}
