//! The gang: members that run one program together, coordinated by their agents.
//!
//! A restart replaces the processes, not the pods. This crate is the protocol as a pure state machine ([`Gang::step`]):
//! messages and the time go in, orders come out. It has no socket, no clock and no random number.
//!
//! # The protocol
//! - A member is named by its role and index. One member leads, and the followers dial it for as long as they live. A
//!   dialing agent first proves that it has the job's secret ([`frame`]). Its hello then reports its identity, its last
//!   run and the history that it knows.
//! - **Every message carries the sender's whole state** and is repeated every [`Timing::beat`]. A lost, repeated or
//!   late message therefore does no harm. A connection that is restored within [`Timing::reconnect`] costs nothing.
//! - **Attempts.** The leader sends `Prepare{k}` to all connected agents. A member that has prepared for k runs
//!   nothing, never again starts an attempt up to k-1, and reports k to every later leader. Once all have prepared and
//!   no earlier process can live (see below), the leader has the checkpoint chosen. It then sends
//!   `Start{k, port, choice}`. k is larger than any number that an agent has seen.
//! - **The end of an attempt** is the first failure, lost member, leaving member or external order: `Stop{k}` goes to
//!   all. Once each member has stopped or is lost, the leader judges the attempt ([`policy`]) by all reports. It waits
//!   because a lost node shows later than the failures that it causes. `Prepare{k+1}` and the back-off follow, or
//!   `Exit`.
//! - **The history** (attempts, budgets, consecutive failures, outcome) travels with every command, so any member can
//!   report it to the next leader. That leader finds an attempt begun and judges it: a lost leader is a disruption.
//! - **Success**: all members have reported that all their ranks exited 0, or all deciding members have
//!   ([`LeaderSetup::deciding`]), such as a chief. The programs of the others are then ended. `Exit` goes to all, and a
//!   member that receives it exits 0. The leader exits last, once each member has confirmed or has been gone for
//!   [`Timing::linger`]. A member that has succeeded waits for `Exit`, because it cannot know whether the others have
//!   succeeded. The two generals' problem remains: if a leader dies after all others are gone, or gives up on one, some
//!   agents never receive `Exit`. A pod that exited 0 proves the success, so the operator reports it to them
//!   ([`Input::History`], [`Memory::history`]).
//! - **Termination**: a member that receives a signal from outside reports it to its leader, ends its processes and
//!   exits 128+n. It never exits 0 unless the gang had succeeded.
//! - An agent that returns without its memory, or in another pod, displaces the earlier one ([`message::Incarnation`]
//!   has an order). If the displaced agent returns from a lost node, the leader informs it and it exits.
//!
//! # What is guaranteed
//! *No process of attempt k+1 starts anywhere while a process of attempt k lives anywhere*, lost nodes included. Leases
//! ensure this:
//! - A member stops its program once [`Timing::lease`] has passed since it sent the last message that the leader
//!   received. It also stops after [`Timing::reconnect`] without a connection. No process lives [`Timing::fence`] after
//!   that message.
//! - A leader ends its attempt once a lease has passed since it sent the last message that a member received. If
//!   another pod has taken a place, the place is free once the fence has passed since the old holder's last message. It
//!   is free at once if the old holder had reported that it has stopped. An agent that restarts in the same pod needs
//!   no fence, because the container's processes are dead.
//! - A new leader asks each member for how long it has sent nothing to an earlier leader. A lease and a fence after
//!   that, everything that an earlier leader started has stopped. The new leader need not wait if each place's agent
//!   reports on the last attempt itself.
//!
//! *Attempt numbers only grow*, and *each attempt has one checkpoint*, as long as any reachable agent knows the last
//! attempt. If all agents forget at once (each one killed, or cut off), the number must come from what the pod or the
//! operator keeps: [`Memory`].
//!
//! A new leader relies on at least one of its members having belonged to the last leader. Suppose that two living pods
//! hold each follower's place. Two gangs run if all old pods gather around a new leader and all new pods still have the
//! old leader. That takes as many lost nodes as there are followers, all of which return before their deleted pods are
//! ended. It also takes a leader's pod that is force-deleted before a lease has passed. Therefore a living pod must not
//! be force-deleted before its node has been silent for longer than the lease.
//!
//! The guarantees rest on clocks that run equally fast during a lease, to within [`Timing::margin`], and on agents that
//! are not stopped themselves. If a machine freezes as a whole and thaws, its processes live until its agent's next
//! turn. The driver's clock must count while the machine sleeps (`CLOCK_BOOTTIME`). A process that SIGKILL does not end
//! counts as alive: the driver must not report [`Input::Ended`] before it is gone. If that takes too long, the agent
//! gives up its pod. It first reports [`Input::Terminated`], so that nothing more starts there, and then
//! [`Input::Ended`]. The remaining processes have had SIGKILL by then and execute nothing more, except that a kernel
//! call they wait in may still complete.
//!
//! # How to drive it
//! One thread of the agent owns the [`Gang`]: the one whose loop handles signals and children. It calls [`Gang::step`]
//! with each input and carries out the orders in sequence, without waiting. It sleeps until the next input or
//! [`Gang::wake_at`]. At that time it calls with [`Input::Tick`] even if other input has arrived. The reason is that
//! inputs without news ([`Gang::hear`]) do not do what time has made due. It reads `now` right before each call. The
//! tasks of the agent's tokio runtime own the sockets:
//! - A follower's task dials while there is no connection, at once and then with jitter up to a second. Each connection
//!   has a [`frame::Channel`], which is proven before any of its data reaches the loop ([`Input::Dialed`],
//!   [`Input::Accepted`]).
//! - The task passes on [`frame::Event::Message`] through a bounded queue that wakes the loop, and [`Input::Closed`]
//!   once, last.
//! - It sends from its own queue. [`Order::Send`] only fills that queue; if it is full the message is dropped.
//! - It closes the connection when [`frame::Channel::deadline`] has passed, at the first error, and on
//!   [`Order::Close`].
//!
//! The leader's task limits the number of unproven connections. Before [`Order::Start`] the driver writes
//! [`Gang::memory`] where the pod's next agent finds it.
//!
//! # Another size
//! The set of members may change between attempts ([`Input::Resize`]). A running attempt with other members is ended in
//! order, which counts as nothing. Any other agent that connects is a spare. A spare receives the same messages as the
//! members, except the order to start. So it has prepared when it becomes a member, and it exits with the rest. If a
//! spare ran as a member of an earlier attempt, the next attempt does not start while those processes may live. A new
//! leader knows nothing of places that are no longer members'. With [`LeaderSetup::was_larger`] it waits until all
//! members of the last attempt have reported that it has stopped, or a lease and a fence have passed. Two leaders at
//! once (see above) need fewer followers for two gangs after the gang has become smaller. A gang of one member needs
//! none.
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
pub use view::{BlockReason, ChoiceState, Phase, View};

use message::{Choice, History, Message, Run};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A connection, by the number that the driver gives it. No number is used twice, and 0 is the gang's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Conn(pub u64);

impl Conn {
    /// The connection between leader and member of one agent.
    pub(crate) const LOCAL: Self = Self(0);
}

/// The durations of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timing {
    /// The time between two messages if there is nothing new.
    pub beat: Duration,
    /// A member that has not been heard for this long is lost, and stops its own program.
    pub lease: Duration,
    /// A member without a connection for this long is lost too. Within the lease this only decides how soon a killed
    /// agent is missed. After a reset, the member has to look the leader's name up again.
    pub reconnect: Duration,
    /// How long a leaving agent waits for the confirmation that its leaving is known.
    pub farewell: Duration,
    /// The time between SIGTERM and SIGKILL where nothing is left to be saved: after a failure, or when the lease is
    /// over.
    pub short_grace: Duration,
    /// The same where the program may save: the agent is terminated, or another attempt is requested.
    pub grace: Duration,
    /// Covers the time from SIGKILL until no process lives, and the drift between clocks during a lease.
    pub margin: Duration,
    /// How long a leader waits for members that have not learned how the gang ended.
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
    /// The time from a member's last received message until none of its processes can live.
    pub fn fence(&self) -> Duration {
        self.lease + self.short_grace + self.margin
    }
}

/// What an agent remembers beyond its own end, for the next agent in the same pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// The gang's history: the newer of the operator's copy and the agent's own.
    pub history: History,
    /// The largest attempt that the agent has heard of.
    pub seen: u32,
    /// The last run, if known.
    pub run: Option<Run>,
}

/// How an agent ends.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Exit {
    /// The gang has succeeded: 0.
    Succeeded,
    /// The gang has failed: a nonzero exit code, with the cause.
    Failed(String),
    /// The agent received this signal before the gang had ended: 128 + n.
    Signalled(i32),
    /// A later agent in another pod holds this place. This agent is not needed any more, and its pod is being deleted.
    /// Not 0.
    Displaced,
}

/// What the driver has to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Send a message. It may be dropped if the connection accepts no data, because the next one carries the same
    /// state.
    Send {
        /// The connection to send it on.
        conn: Conn,
        /// The message.
        message: Message,
    },
    /// Close a connection. Nothing more is sent on it, and data that still arrives is ignored.
    Close {
        /// The connection.
        conn: Conn,
        /// The reason, for the log.
        why: String,
    },
    /// Choose the checkpoint for this attempt, and answer by [`Input::Chosen`]. It supersedes an earlier choice.
    Choose {
        /// The attempt.
        attempt: u32,
    },
    /// Start the program, and answer by [`Input::Ended`] when none of its processes lives any more.
    Start {
        /// The attempt.
        attempt: u32,
        /// How many members it has: those with the smallest indexes.
        size: u32,
        /// The port where its ranks rendezvous.
        port: u16,
        /// The checkpoint to resume from.
        choice: Choice,
    },
    /// Send SIGTERM to the program now, and SIGKILL to all its processes after the grace. A repeated order may shorten
    /// the grace.
    Stop {
        /// The attempt.
        attempt: u32,
        /// Counted from now.
        grace: Duration,
    },
    /// Send the pending messages, for a second at most, and exit.
    Exit(Exit),
}
