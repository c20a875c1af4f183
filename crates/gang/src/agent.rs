//! One agent's whole part in its gang: its member, and the leader if that member leads.

use super::leader::{Leader, LeaderSetup};
use super::member::Member;
use super::message::{Choice, History, Incarnation, MemberId, Message, Outcome, RunEnd, Status, Time};
use super::view::{Phase, View};
use super::{Conn, Exit, Memory, Order, Timing};
use failure::restart::Policy;
use std::collections::{BTreeSet, VecDeque};

/// The identity and configuration of an agent.
#[derive(Clone, Debug, Hash)]
pub struct Setup {
    /// UID of the TrainingJob.
    pub job: String,
    /// The place that it holds.
    pub member: MemberId,
    /// The incarnation of the agent.
    pub incarnation: Incarnation,
    /// The durations of the protocol.
    pub timing: Timing,
    /// What an earlier agent of this pod left behind, and what the operator knows.
    pub memory: Memory,
    /// The leader's configuration, for the member that leads.
    pub leader: Option<LeaderSetup>,
}

/// An input from the driver.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// A connection to the leader is open, and the leader has proven that it has the job's secret.
    Dialed(Conn),
    /// A member has dialed, and has proven its identity.
    Accepted {
        /// Its connection.
        conn: Conn,
        /// The member that it claims to be.
        member: MemberId,
        /// UID of its pod.
        pod: String,
    },
    /// A message has arrived.
    Received(Conn, Message),
    /// A connection has ended, whichever side ended it.
    Closed(Conn),
    /// The checkpoint that the attempt resumes from, or the agent's report of why it could not be determined.
    Chosen(u32, Result<Choice, String>),
    /// The program of this attempt has failed, and its remaining processes are being ended.
    Failing(u32),
    /// None of this attempt's processes lives any more.
    Ended {
        /// The attempt.
        attempt: u32,
        /// How it ended.
        outcome: Outcome,
        /// The agent's own report.
        report: String,
    },
    /// Whether the program shows no sign of progress.
    Idle(bool),
    /// The agent has received this termination signal.
    Terminated(i32),
    /// Another attempt is requested, for this reason. Only the leader's agent acts on it.
    Restart(String),
    /// The members of the next attempt. Only the leader's agent acts on it.
    Resize(BTreeSet<MemberId>),
    /// The gang's history, as far as the operator knows it.
    History(History),
    /// Time has passed.
    Tick,
}

/// One agent's part in its gang.
#[derive(Clone, Debug, Hash)]
pub struct Gang {
    pub(super) member: Member,
    pub(super) leader: Option<Leader>,
    /// How the agent exits. The member has nothing more to do, but the leader may have.
    exit: Option<Exit>,
    exited: bool,
}

impl Gang {
    /// An agent that has just started.
    pub fn new(mut setup: Setup, now: Time) -> Self {
        let leader = setup.leader.take().map(|leader| Leader::new(leader, &setup, now));
        let member = Member::new(setup, now);
        Self { member, leader, exit: None, exited: false }
    }

    /// Takes in a member's beat without news for its leader, and returns whether it was one. [`Gang::step`] then need
    /// not process it. It takes as long in a gang of thousands as in a gang of two.
    pub fn hear(&mut self, now: Time, input: &Input) -> bool {
        match (input, &mut self.leader) {
            (Input::Received(conn, message), Some(leader)) if !self.exited => leader.hear(now, *conn, message),
            _ => false,
        }
    }

    /// Takes in an input, and returns the orders to carry out in sequence. `now` never decreases.
    pub fn step(&mut self, now: Time, input: Input) -> Vec<Order> {
        let mut out = Vec::new();
        if self.exited || self.hear(now, &input) {
            return out;
        }
        self.meet(now, &mut out);
        self.take(now, input, &mut out);
        let mut orders = Vec::new();
        // Leader and member of one agent exchange messages as others do, without a network. Each answers only what is
        // new to it, so that they soon fall silent. Anything left is sent at the next turn.
        for _ in 0..16 {
            self.member.settle(now, &mut out);
            if let Some(leader) = &mut self.leader {
                leader.settle(now, &mut out);
            }
            let mut here = VecDeque::new();
            for order in out.drain(..) {
                match order {
                    Order::Send { conn: Conn::LOCAL, message } => here.push_back(message),
                    Order::Close { conn: Conn::LOCAL, .. } => {
                        self.member.closed(now, Conn::LOCAL);
                        if let Some(leader) = &mut self.leader {
                            leader.closed(now, Conn::LOCAL);
                        }
                    }
                    Order::Exit(exit) => self.exit = Some(exit),
                    order => orders.push(order),
                }
            }
            if here.is_empty() {
                break;
            }
            for message in here {
                self.receive(now, Conn::LOCAL, message, &mut out);
            }
        }
        if let Some(exit) = self.exit.clone().filter(|exit| self.may_exit(exit, now)) {
            self.exited = true;
            orders.push(Order::Exit(exit));
        }
        orders
    }

    /// Whether the other agents do not need this one any more.
    fn may_exit(&self, exit: &Exit, now: Time) -> bool {
        let Some(leader) = &self.leader else { return true };
        let is_reported = self.member.status().leaving.is_some();
        is_reported || matches!(exit, Exit::Signalled(_) | Exit::Displaced) || leader.is_finished(now)
    }

    /// Connects the member with the leader of the same agent.
    fn meet(&mut self, now: Time, out: &mut Vec<Order>) {
        let Some(leader) = &mut self.leader else { return };
        if !self.member.is_linked() {
            let (member, pod) = self.member.name();
            leader.connected(now, Conn::LOCAL, member, pod);
            self.member.connected(now, Conn::LOCAL, out);
        }
    }

    fn take(&mut self, now: Time, input: Input, out: &mut Vec<Order>) {
        match (input, &mut self.leader) {
            (Input::Dialed(conn), None) => self.member.connected(now, conn, out),
            (Input::Dialed(conn), Some(_)) | (Input::Accepted { conn, .. }, None) => {
                out.push(Order::Close { conn, why: "this agent does not talk to such a one".to_owned() });
            }
            (Input::Accepted { conn, member, pod }, Some(leader)) => leader.connected(now, conn, member, pod),
            (Input::Received(conn, message), _) => self.receive(now, conn, message, out),
            (Input::Closed(conn), Some(leader)) => leader.closed(now, conn),
            (Input::Closed(conn), None) => self.member.closed(now, conn),
            (Input::Chosen(attempt, chosen), Some(leader)) => leader.chosen(now, attempt, chosen),
            (Input::Restart(words), Some(leader)) => leader.restart(now, words),
            (Input::Resize(members), Some(leader)) => leader.setup.members = members,
            (Input::Chosen(..) | Input::Restart(_) | Input::Resize(_), None) | (Input::Tick, _) => {}
            (Input::Failing(attempt), _) => self.member.failing(now, attempt, out),
            (Input::Ended { attempt, outcome, report }, _) => {
                self.member.ended(now, attempt, RunEnd { outcome, report });
            }
            (Input::Idle(is_idle), _) => self.member.idle(is_idle),
            (Input::Terminated(signal), leader) => {
                self.member.terminated(now, signal, out);
                if let Some(leader) = leader {
                    leader.terminated(signal);
                }
            }
            (Input::History(history), leader) => {
                self.member.adopt_history(now, &history, out);
                if let Some(leader) = leader {
                    leader.learn(now, &history);
                }
            }
        }
    }

    fn receive(&mut self, now: Time, conn: Conn, message: Message, out: &mut Vec<Order>) {
        match (message, &mut self.leader) {
            (Message::Down(down), None) => self.member.received(now, conn, down, out),
            (Message::Down(down), Some(_)) if conn == Conn::LOCAL => self.member.received(now, conn, down, out),
            (Message::Up(up), Some(leader)) => leader.received(now, conn, up, out),
            (message, _) => {
                let why = match message {
                    Message::Up(_) => "it takes this agent for the leader",
                    Message::Down(_) => "it wants to lead the leader",
                };
                out.push(Order::Close { conn, why: why.to_owned() });
            }
        }
    }

    /// The latest time at which [`Gang::step`] has to be called with [`Input::Tick`].
    pub fn wake_at(&self, now: Time) -> Option<Time> {
        let leader = self.leader.as_ref().and_then(|leader| leader.wake_at(now));
        [leader, self.member.wake_at(now)].into_iter().flatten().min().filter(|_| !self.exited)
    }

    /// Sets the user's current policy. It applies to attempts that have not been judged yet.
    pub fn set_policy(&mut self, policy: Policy) {
        if let Some(leader) = &mut self.leader {
            leader.set_policy(policy);
        }
    }

    /// The gang's phase, as its leader sees it.
    pub fn phase(&self) -> Option<&Phase> {
        self.leader.as_ref().map(|leader| &leader.phase)
    }

    /// This member's status.
    pub fn status(&self) -> &Status {
        self.member.status()
    }

    /// The gang's state, as its leader sees it.
    pub fn view(&self, now: Time) -> Option<View<'_>> {
        self.leader.as_ref().map(|leader| leader.view(now))
    }

    /// Whether no program of the running attempt shows progress, as far as a leader knows.
    pub fn is_idle(&self) -> bool {
        self.leader.as_ref().is_some_and(Leader::is_idle)
    }

    /// The memory for a later agent of the same pod.
    pub fn memory(&self) -> Memory {
        self.member.memory()
    }
}
