//! What the leader and the members of a gang tell each other.
//!
//! Every message tells the whole of its sender's state, so that one that is lost, repeated or late harms nothing: the next
//! one says it again. Reports and choices are the agents' own business, and pass through here unread.

use protocol::attempt::RestartHistory;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Add;
use std::time::Duration;

/// What is told in a [`Hello`]; another one is refused.
pub const VERSION: u32 = 3;
/// Indexes of members are smaller than this: so many workers a job may have.
pub const MAX_PLACES: u32 = 4096;
/// Longest [`End::report`], in bytes.
pub const MAX_REPORT: usize = 4096;
/// Longest [`Choice::detail`], in bytes.
pub const MAX_DETAIL: usize = 4096;
/// Longest of all other texts, in bytes.
pub const MAX_TEXT: usize = 768;

/// Milliseconds of a clock that only goes forward, since whatever its agent likes. Two agents' times are never compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Time(pub u64);

impl Time {
    /// How long ago `earlier` was; nothing if it was not.
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

/// Whole milliseconds, at most as many as there is room for.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The start of a text that may be too long.
pub(crate) fn cut(mut text: String, most: usize) -> String {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or(0));
    text
}

/// A place in the gang, whoever holds it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MemberId {
    /// Such as `worker`.
    pub role: String,
    /// Among those of its role, from 0.
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

/// One life of an agent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Incarnation {
    /// Larger for a later agent: milliseconds since 1970 when it started. Of two pods that hold the same place the one with
    /// the larger number is the replacement, so it comes first in the order.
    pub boot: u64,
    /// UID of its pod. What an earlier agent of the same pod had started is dead: a container starts again only when all
    /// its processes have ended.
    pub pod: String,
}

/// What goes with every message, for the lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Beat {
    /// When it was sent, by the sender's clock.
    pub at: Time,
    /// The largest `at` that the sender has had from the receiver on this connection: the receiver learns how old its last
    /// message is that was heard, by its own clock.
    pub echo: Option<Time>,
}

/// What an attempt goes on from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Choice {
    /// Names the checkpoint; empty for a start from nothing. Another name is another checkpoint.
    pub checkpoint: String,
    /// Whatever the agents need to go on from it, as they write it. At most [`MAX_DETAIL`] bytes.
    pub detail: String,
}

/// How the processes of one member ended in an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Outcome {
    /// Every rank of the member exited 0 by itself.
    Succeeded,
    /// The program failed, or could not be started.
    Failed,
    /// It was told to stop before it had ended.
    Stopped,
}

/// The end of what a member ran. No process of it lives any more.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct End {
    /// How it ended.
    pub outcome: Outcome,
    /// The agent's own words about it, at most [`MAX_REPORT`] bytes.
    pub report: String,
}

/// What a member's last run is doing.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RunState {
    /// Its program runs.
    Running,
    /// It ends: told to, or its program has failed and what that left behind is being ended.
    Stopping,
    /// No process of it lives.
    Ended(End),
}

/// What a member ran last.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Run {
    /// The attempt that it belongs to.
    pub attempt: u32,
    /// How many members that attempt has.
    #[serde(default)]
    pub size: u32,
    /// The leader that started it.
    pub leader: Incarnation,
    /// What it does.
    pub state: RunState,
}

impl Run {
    /// Whether a process of it may live.
    pub fn is_alive(&self) -> bool {
        !matches!(self.state, RunState::Ended(_))
    }
}

/// How a member stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Status {
    /// The largest attempt that it has heard of.
    pub seen: u32,
    /// It starts no attempt up to this one any more.
    pub closed: u32,
    /// What it ran last.
    pub run: Option<Run>,
    /// The signal that told its agent to end.
    pub leaving: Option<i32>,
    /// It knows how the gang ended, and exits.
    pub over: bool,
    /// The program that it runs shows no sign that it goes on.
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
    /// Of the protocol: [`VERSION`].
    pub version: u32,
    /// UID of the TrainingJob.
    pub job: String,
    /// The place that it holds.
    pub member: MemberId,
    /// Which agent it is.
    pub incarnation: Incarnation,
    /// What it knows of the gang's past.
    pub history: History,
    /// The leader that it heard of last, and for how many milliseconds it has told that one nothing.
    pub former: Option<(Incarnation, u64)>,
    /// The leader that started its last run has said that no process of its own lives any more.
    pub cleared: bool,
    /// How it stands.
    pub status: Status,
}

/// What a member tells its leader.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Up {
    /// First of all who it is.
    Hello(Beat, Box<Hello>),
    /// Then how it stands.
    Status(Beat, Status),
}

/// What the leader wants of every member.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Directive {
    /// Stop what runs, and wait for this attempt.
    Prepare {
        /// The next attempt, if nothing gets in its way.
        attempt: u32,
    },
    /// Start the program.
    Start {
        /// The attempt.
        attempt: u32,
        /// How many members it has.
        size: u32,
        /// Where its ranks meet.
        port: u16,
        /// What it goes on from.
        choice: Choice,
    },
    /// Stop the program.
    Stop {
        /// The attempt that has ended.
        attempt: u32,
        /// Milliseconds between SIGTERM and SIGKILL.
        grace: u64,
    },
    /// The gang has come to its end: exit as [`Command::history`] tells.
    Exit,
}

/// What the leader tells every member.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Command {
    /// Who leads.
    pub leader: Incarnation,
    /// What is to be done.
    pub directive: Directive,
    /// The gang's past, for the next leader.
    pub history: History,
    /// The leader goes, and no process of its own member lives any more.
    pub clear: bool,
}

/// What the leader tells a member.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Down {
    /// What is to be done.
    Command(Beat, Box<Command>),
    /// The member is none of this gang's, and why. The connection is closed.
    Refused(String),
    /// A later agent holds the member's place. The connection is closed.
    Displaced,
}

/// Any message.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Message {
    /// From a member to the leader.
    Up(Up),
    /// From the leader to a member.
    Down(Down),
}

/// How the gang ended, once and for all.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Finish {
    /// Every rank of every member succeeded.
    Succeeded,
    /// No further attempt will be made: why the last one ended, and why none follows. At most [`MAX_TEXT`] bytes.
    Failed(String),
}

/// What outlives the leader: every member keeps a copy, and the operator one that may be older.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct History {
    /// The largest attempt that was started, or ended before it was.
    pub attempt: u32,
    /// Where the ranks of the last attempt met; 0 before the first one.
    pub port: u16,
    /// How the attempts have ended so far.
    pub restarts: RestartHistory,
    /// What the last attempt went on from.
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
    /// What is wrong with a message that was well formed and signed: a text that is longer than it may be.
    ///
    /// # Errors
    /// Names the field.
    pub fn check(&self) -> Result<(), &'static str> {
        let (history, run, more) = match self {
            Self::Up(Up::Hello(_, hello)) => (Some(&hello.history), hello.status.run.as_ref(), {
                let former = hello.former.as_ref().map_or("", |(leader, _)| leader.pod.as_str());
                vec![("hello", [&hello.job, &hello.member.role, &hello.incarnation.pod, former].map(str::len))]
            }),
            Self::Up(Up::Status(_, status)) => (None, status.run.as_ref(), vec![]),
            Self::Down(Down::Command(_, command)) => {
                let mut texts = vec![("leader", [command.leader.pod.len(), 0, 0, 0])];
                if let Directive::Start { choice, .. } = &command.directive {
                    if choice.detail.len() > MAX_DETAIL {
                        return Err("the choice of the checkpoint is too long");
                    }
                    texts.push(("checkpoint", [choice.checkpoint.len(), 0, 0, 0]));
                }
                (Some(&command.history), None, texts)
            }
            Self::Down(Down::Displaced) => (None, None, vec![]),
            Self::Down(Down::Refused(why)) => (None, None, vec![("refusal", [why.len(), 0, 0, 0])]),
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
