//! The gang: members that run one program together, held together by their agents.
//!
//! What restarts is the process, in the pods that exist. This room is the protocol as a pure machine: what has come and what
//! time it is go in, orders come out ([`Gang::step`]). No socket, no clock, no random number.
//!
//! # The protocol
//! - Members are named by role and index. One of them leads; followers dial it for as long as they live. Who connects proves that
//!   it has the job's secret ([`frame`]), then says hello: who it is, what it has run, what it knows of the gang's past.
//! - **Every message tells all of its sender's state** and is repeated every [`Timing::beat`]. So one that is lost, repeated or
//!   late harms nothing, and a connection that is lost and comes back within [`Timing::reconnect`] costs nothing.
//! - **Attempts.** `Prepare{k}` goes to whoever is there. A member that has prepared for k runs nothing, starts nothing up to
//!   k-1 any more, and will tell every later leader of k. When all have prepared, and nothing of before can live (see below),
//!   the leader has the checkpoint chosen, then tells `Start{k, port, choice}`. k is larger than whatever anybody has seen.
//! - **The end of an attempt** is the first failure, loss, leaver or order from outside: `Stop{k}` to all. When each has stopped or
//!   is lost, the attempt is judged ([`policy`]) by all reports, for a lost node shows later than the failures that it causes.
//!   Then `Prepare{k+1}` and the back-off, or `Exit`.
//! - **The past** (attempts, budgets, failures in a row, how it ended) goes along with every command, so any member can tell it
//!   to the next leader, who finds an attempt begun and judges it: a leader that is lost is a disruption.
//! - **Success**: all members have told that all their ranks exited 0, or all that decide ([`LeaderSetup::deciding`]), such as a
//!   chief: then what the others run is ended. `Exit` goes to all; who has heard it exits 0, and the leader
//!   goes last: when each has said that it knows, or has been gone for [`Timing::linger`]. Who has succeeded but has not heard
//!   so waits, for it can't know whether the others have. What is left of the two generals: a leader that dies when all the
//!   others are gone, or who has given up on one, leaves agents that will never hear. A pod that has exited 0 proves the
//!   success, so the operator tells them ([`Input::Told`], [`Memory::history`]).
//! - **Told to end** from outside, a member tells its leader, ends its processes and exits 128+n. Unless the gang had succeeded
//!   it never exits 0.
//! - An agent that comes back without its memory, or in another pod, displaces the one before ([`message::Incarnation`] has an
//!   order). The displaced one, should it come back from a lost node, is told so and exits.
//!
//! # What is guaranteed
//! *No process of attempt k+1 starts anywhere while one of attempt k lives anywhere*, lost nodes included, by leases:
//! - A member stops what it runs when its last message that the leader has heard was sent [`Timing::lease`] ago, or it has had
//!   no connection for [`Timing::reconnect`]: no process lives [`Timing::fence`] after that message was sent.
//! - A leader ends its attempt when its last message that a member has heard was sent a lease ago. It counts a place that
//!   another pod has taken as free only when the fence has passed since the old holder's last message, unless that one had said
//!   that it has stopped. An agent that starts again in the same pod needs no fence: the container's processes are dead.
//! - A new leader asks each member for how long it has told an earlier leader nothing. A lease and a fence after that whatever any
//!   earlier leader had started has stopped. It need not wait if each place's agent tells of the last attempt itself.
//!
//! *Attempts only grow*, and *each has one checkpoint*, as long as anybody within reach has heard of the last attempt. Where
//! all forget at once (each agent killed, or cut off) the number has to come from what is kept in the pod or by the operator:
//! [`Memory`].
//!
//! A new leader counts on one of its members at least being the last leader's own. If each follower's place is held by two
//! living pods, all of the old ones gather around a new leader, and all of the new ones still have the old leader, then two
//! gangs run: it takes as many lost nodes as there are followers that come back before their deleted pods are ended, and a
//! leader's pod that is deleted by force before a lease has passed. Therefore nobody may delete a living pod by force before
//! its node has been silent for longer than the lease.
//!
//! It rests on clocks that run equally fast during a lease, to within [`Timing::margin`], and on agents that are not
//! stopped themselves: a machine that is frozen as a whole and thaws has its processes alive until its agent's next turn.
//! The driver's clock has to count while the machine sleeps (`CLOCK_BOOTTIME`). A process that SIGKILL does not end is a process
//! that lives: the driver must not tell [`Input::Ended`] before it is gone. If that lasts too long, the agent gives its pod up: it
//! tells [`Input::Terminated`] first, so that nothing more begins there, and then [`Input::Ended`]. What is left has had SIGKILL
//! by then and runs nothing more; at most a call of the kernel that it waits in still comes to its end.
//!
//! # How to drive it
//! One thread of the agent owns the [`Gang`], the one that has the loop with signals and children. It calls [`Gang::step`] with each
//! input and does what is ordered, in order, without waiting; it sleeps until the next input or [`Gang::wake_at`]. When that
//! time has come it calls with [`Input::Tick`], whatever else has come: inputs that tell nothing new ([`Gang::hear`]) do not do
//! what time has made due. `now` is taken right before each call. The tasks of the agent's tokio runtime own the sockets:
//! - a follower's task dials as long as there is no connection, at once, then with jitter up to a second; each connection has a
//!   [`frame::Channel`], which is proven before anything of it reaches the loop ([`Input::Dialed`], [`Input::Accepted`]);
//! - it hands on [`frame::Event::Message`] through a bounded queue that wakes the loop, and [`Input::Closed`] once, last;
//! - it sends from a queue of its own. [`Order::Send`] only fills that queue; if it is full the message is dropped;
//! - it closes when [`frame::Channel::deadline`] has passed, at the first error, and by [`Order::Close`].
//!
//! The leader's task bounds how many unproven connections there are. Before [`Order::Start`] the driver writes
//! [`Gang::memory`] where the next agent of the pod finds it.
//!
//! # Another size
//! Who the members are may change from one attempt to the next ([`Input::Resize`]): an attempt that runs with others is ended in
//! order, which counts as nothing. Whoever else comes is a spare. It hears the same as the members, but for the order to start:
//! so it has prepared when it becomes a member, and exits with the rest. What a spare has run as a member of an earlier attempt
//! keeps the next one from starting as long as it may live. A new leader knows nothing of places that are no members any more,
//! where [`LeaderSetup::was_larger`]: it waits until all members of the last attempt have told that it has stopped, or a lease
//! and a fence have passed. What two leaders that live at once need for two gangs (see above) a gang that has become smaller
//! has sooner, for it needs fewer followers, and one of a single member none.
#![cfg_attr(
    test,
    allow(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss,
        reason = "numbers of tests are small"
    )
)]

mod admit;
mod agent;
pub mod frame;
mod leader;
mod member;
pub mod message;
pub mod policy;
pub mod remote;
mod seat;
mod view;

#[cfg(test)]
mod tests;

pub use agent::{Gang, Input, Setup};
pub use leader::LeaderSetup;
pub use view::{Chosen, Missing, Phase, View};

use message::{Choice, History, Message, Run};
use serde::{Deserialize, Serialize};
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
    /// Who has lost its connection for so long is lost too. Within the lease that only decides how soon an agent is missed that was
    /// killed; a connection that is reset needs a name to be looked up again.
    pub reconnect: Duration,
    /// How long a leaver waits until it is known that it goes.
    pub farewell: Duration,
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
            reconnect: Duration::from_secs(4),
            farewell: Duration::from_secs(1),
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
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
    Failed(String),
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
        /// How many members it has: those of the smallest indexes.
        size: u32,
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
