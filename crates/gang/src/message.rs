//! The messages between the leader and the members of a gang.
//!
//! Every message carries the sender's whole state. A lost, repeated or late message does no harm, because the next one
//! repeats it. Reports and choices are opaque here; only the agents read them.

use protocol::attempt::RestartHistory;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Add;
use std::time::Duration;

/// The version that a [`Hello`] reports. Any other version is refused.
pub const VERSION: u32 = 3;
/// Indexes of members are smaller than this. It is the largest number of workers that a job may have.
pub const MAX_PLACES: u32 = 4096;
/// Longest [`RunEnd::report`], in bytes.
pub const MAX_REPORT: usize = 4096;
/// Longest [`Choice::detail`], in bytes.
pub const MAX_DETAIL: usize = 4096;
/// Longest of every other text, in bytes.
pub const MAX_TEXT: usize = 768;

/// Milliseconds of a monotonic clock with an origin of its agent's choice. Times of two agents are never compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Time(pub u64);

impl Time {
    /// The time since `earlier`, or zero if that is not earlier.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0.saturating_add(millis(time)))
    }
}

/// Whole milliseconds, at most `u64::MAX`.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The start of a text, at most `most` bytes.
pub(crate) fn cut(mut text: String, most: usize) -> String {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or(0));
    text
}

/// A place in the gang, independent of the agent that holds it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MemberId {
    /// The role, such as `worker`.
    pub role: String,
    /// The index among the members of its role, from 0.
    pub index: u32,
}

impl MemberId {
    /// The member of this role and index.
    pub fn new(role: impl Into<String>, index: u32) -> Self {
        Self { role: role.into(), index }
    }
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.role, self.index)
    }
}

/// One lifetime of an agent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Incarnation {
    /// When the agent started, in milliseconds since 1970; larger for a later agent. If two pods hold the same place,
    /// the one with the larger number is the replacement, so this field is compared first.
    pub boot: u64,
    /// UID of its pod. The processes of an earlier agent in the same pod are dead, because a container restarts only
    /// after all its processes have ended.
    pub pod: String,
}

/// The timestamps that every message carries for the lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Beat {
    /// When the message was sent, by the sender's clock.
    pub at: Time,
    /// The largest `at` that the sender has received from the receiver on this connection. It shows the receiver, by
    /// its own clock, the age of its last message that arrived.
    pub echo: Option<Time>,
}

/// The checkpoint that an attempt resumes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Choice {
    /// Names the checkpoint; empty for a start without one. Different names mean different checkpoints.
    pub checkpoint: String,
    /// What the agents need to resume from it, in their own format. At most [`MAX_DETAIL`] bytes.
    pub detail: String,
}

/// How the processes of one member ended in an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Outcome {
    /// Every rank of the member exited 0 on its own.
    Succeeded,
    /// The program failed, or could not be started.
    Failed,
    /// It was stopped before it had ended.
    Stopped,
}

/// The end of a member's run. None of its processes lives any more.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RunEnd {
    /// How it ended.
    pub outcome: Outcome,
    /// The agent's own report, at most [`MAX_REPORT`] bytes.
    pub report: String,
}

/// The state of a member's last run.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RunState {
    /// Its program runs.
    Running,
    /// It is ending: it was stopped, or its program has failed and the remaining processes are being ended.
    Stopping,
    /// None of its processes lives.
    Ended(RunEnd),
}

/// A member's last run.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Run {
    /// The attempt that it belongs to.
    pub attempt: u32,
    /// How many members that attempt has.
    #[serde(default)]
    pub size: u32,
    /// The leader that started it.
    pub leader: Incarnation,
    /// Its state.
    pub state: RunState,
}

impl Run {
    /// Whether one of its processes may live.
    pub fn is_alive(&self) -> bool {
        !matches!(self.state, RunState::Ended(_))
    }
}

/// The state that a member reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Status {
    /// The largest attempt that it has heard of.
    pub seen: u32,
    /// It never again starts an attempt up to this one.
    pub closed: u32,
    /// Its last run.
    pub run: Option<Run>,
    /// The termination signal that its agent received.
    pub leaving: Option<i32>,
    /// It knows how the gang ended, and exits.
    pub over: bool,
    /// The program that it runs shows no sign of progress.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub idle: bool,
}

impl Status {
    /// Whether a process that it started may live.
    pub fn is_alive(&self) -> bool {
        self.run.as_ref().is_some_and(Run::is_alive)
    }
}

/// The first message of a member on a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Hello {
    /// The version of the protocol: [`VERSION`].
    pub version: u32,
    /// UID of the TrainingJob.
    pub job: String,
    /// The place that it holds.
    pub member: MemberId,
    /// The incarnation of its agent.
    pub incarnation: Incarnation,
    /// The gang's history, as far as the member knows it.
    pub history: History,
    /// The last leader that it heard of, and for how many milliseconds it has sent nothing to that leader.
    pub former: Option<(Incarnation, u64)>,
    /// The leader that started its last run has reported that none of its own processes lives any more.
    pub cleared: bool,
    /// Its status.
    pub status: Status,
}

/// A message from a member to its leader.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MemberMessage {
    /// The first message, with the member's identity.
    Hello(Beat, Box<Hello>),
    /// Any later message, with the member's status.
    Status(Beat, Status),
}

/// What the leader orders every member to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Directive {
    /// Stop the running program, and wait for this attempt.
    Prepare {
        /// The next attempt, if nothing intervenes.
        attempt: u32,
    },
    /// Start the program.
    Start {
        /// The attempt.
        attempt: u32,
        /// How many members it has.
        size: u32,
        /// The port where its ranks rendezvous.
        port: u16,
        /// The checkpoint to resume from.
        choice: Choice,
    },
    /// Stop the program.
    Stop {
        /// The attempt that has ended.
        attempt: u32,
        /// Milliseconds between SIGTERM and SIGKILL.
        grace: u64,
    },
    /// The gang has ended: exit as [`Command::history`] says.
    Exit,
}

/// The leader's command to every member.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Command {
    /// The agent that leads.
    pub leader: Incarnation,
    /// The order.
    pub directive: Directive,
    /// The gang's history, for the next leader.
    pub history: History,
    /// The leader is leaving, and no process of its own member lives any more.
    pub clear: bool,
}

/// A message from the leader to a member.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LeaderMessage {
    /// The leader's command.
    Command(Beat, Box<Command>),
    /// The member does not belong to this gang, and why. The connection is closed.
    Refused(String),
    /// A later agent holds the member's place. The connection is closed.
    Displaced,
}

/// Any message.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Message {
    /// From a member to the leader.
    Up(MemberMessage),
    /// From the leader to a member.
    Down(LeaderMessage),
}

/// How the gang ended. It is final.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Finish {
    /// Every rank of every member succeeded.
    Succeeded,
    /// No further attempt is made. Says why the last one ended and why none follows, in at most [`MAX_TEXT`] bytes.
    Failed(String),
}

/// What outlives the leader. Every member keeps a copy, and the operator keeps one that may be older.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct History {
    /// The largest attempt that was started, or that ended before its start.
    pub attempt: u32,
    /// The rendezvous port of the last attempt; 0 before the first one.
    pub port: u16,
    /// How the attempts have ended so far.
    pub restarts: RestartHistory,
    /// The checkpoint that the last attempt resumed from.
    pub checkpoint: String,
    /// How the gang ended.
    pub finish: Option<Finish>,
}

impl History {
    /// Whether this one was written after `other`.
    pub fn is_newer_than(&self, other: &Self) -> bool {
        let order = |h: &Self| (h.finish.is_some(), h.attempt, h.restarts.judged);
        order(self) > order(other)
    }
}

impl Message {
    /// Checks a well-formed, signed message for texts that are too long.
    ///
    /// # Errors
    /// Names the field that is too long.
    pub fn check(&self) -> Result<(), &'static str> {
        let (history, run, more) = match self {
            Self::Up(MemberMessage::Hello(_, hello)) => (Some(&hello.history), hello.status.run.as_ref(), {
                let former = hello.former.as_ref().map_or("", |(leader, _)| leader.pod.as_str());
                vec![("hello", [&hello.job, &hello.member.role, &hello.incarnation.pod, former].map(str::len))]
            }),
            Self::Up(MemberMessage::Status(_, status)) => (None, status.run.as_ref(), vec![]),
            Self::Down(LeaderMessage::Command(_, command)) => {
                let mut texts = vec![("leader", [command.leader.pod.len(), 0, 0, 0])];
                if let Directive::Start { choice, .. } = &command.directive {
                    if choice.detail.len() > MAX_DETAIL {
                        return Err("the choice of the checkpoint is too long");
                    }
                    texts.push(("checkpoint", [choice.checkpoint.len(), 0, 0, 0]));
                }
                (Some(&command.history), None, texts)
            }
            Self::Down(LeaderMessage::Displaced) => (None, None, vec![]),
            Self::Down(LeaderMessage::Refused(why)) => (None, None, vec![("refusal", [why.len(), 0, 0, 0])]),
        };
        if let Some(Run { state: RunState::Ended(end), .. }) = run
            && end.report.len() > MAX_REPORT
        {
            return Err("the report is too long");
        }
        let leader = run.map_or(0, |run| run.leader.pod.len());
        let past = history.map_or([0; 4], |history| {
            let repeated = history.restarts.repeated.as_ref().map_or(0, |r| r.reason.len().max(r.checkpoint.len()));
            let stopped = history.restarts.stopped.as_ref().map_or(0, String::len);
            let failed = match &history.finish {
                Some(Finish::Failed(why)) => why.len(),
                _ => 0,
            };
            [history.checkpoint.len(), repeated, stopped, failed]
        });
        let lengths = more.into_iter().chain([("history", past), ("run", [leader, 0, 0, 0])]);
        lengths
            .into_iter()
            .find(|(_, lengths)| lengths.iter().any(|l| *l > MAX_TEXT))
            .map_or(Ok(()), |(what, _)| Err(what))
    }
}
