//! Agents with their processes, as far as the machine can observe them. The world carries out its orders and checks
//! them against the rules.

use super::super::message::{Choice, Finish, History, Incarnation, MemberId, Message, Outcome, Time};
use super::super::policy::by_what_was_seen;
use super::super::{Conn, Exit, Gang, Input, LeaderSetup, Memory, Order, Setup, Timing};
use failure::restart::Policy;
use protocol::attempt::RestartHistory;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// An agent in its pod.
#[derive(Clone, Debug, Hash)]
pub struct Agent {
    pub seat: u32,
    pub incarnation: Incarnation,
    pub gang: Gang,
    pub process: Option<Process>,
    pub choosing: Option<u32>,
    pub end: Ending,
    /// Nothing reaches it, and nothing leaves it.
    pub is_cut: bool,
    /// For how many seconds, as far as that matters.
    pub cut_for: u64,
    /// It has dialed since time last advanced.
    pub has_dialed: bool,
    /// Another pod holds its place now.
    pub is_replaced: bool,
}

/// How an agent's life ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    Lives,
    Killed,
    Exited(Exit),
}

/// The processes of one attempt in one agent.
#[derive(Clone, Debug, Hash)]
pub struct Process {
    pub attempt: u32,
    /// When it is killed, by the world's clock.
    pub kill_at: Option<Time>,
}

/// The last attempt that was started anywhere.
#[derive(Clone, Debug, Default, Hash)]
pub struct Attempt {
    pub number: u32,
    pub size: u32,
    pub port: u16,
    pub choice: Choice,
    /// The leader that began it.
    pub leader: Option<Incarnation>,
    pub seats: BTreeSet<u32>,
    pub succeeded: BTreeSet<u32>,
}

/// What an agent requests of the network.
#[derive(Debug)]
pub enum Wish {
    Send(Conn, Message),
    Close(Conn),
}

#[derive(Clone, Debug, Hash)]
pub struct World {
    pub agents: Vec<Arc<Agent>>,
    /// The number of places, whether or not members hold them.
    pub size: u32,
    /// The number of members that the operator wants in the next attempt, and the largest number that it ever wanted.
    pub members: u32,
    pub largest: u32,
    pub timing: Timing,
    pub attempt: Attempt,
    /// The outcome that an agent has reported to the operator by its exit.
    pub finish: Option<Finish>,
    /// The largest attempt that the operator knows from the last reports of agents that have ended.
    pub known: u32,
    pub boots: u64,
    /// The rule that was broken.
    pub broken: Option<String>,
    pub policy: Policy,
}

pub fn worker(index: u32) -> MemberId {
    MemberId::new("worker", index)
}

impl World {
    pub fn new(size: u32, timing: Timing, policy: Policy, now: Time) -> Self {
        let mut world = Self {
            agents: Vec::new(),
            size,
            members: size,
            largest: size,
            timing,
            attempt: Attempt::default(),
            finish: None,
            known: 0,
            boots: 0,
            broken: None,
            policy,
        };
        for seat in 0..size {
            world.create(seat, None, now);
        }
        world
    }

    /// Starts an agent in a new pod, or in the pod of a killed agent.
    pub fn create(&mut self, seat: u32, again: Option<usize>, now: Time) -> usize {
        self.boots += 1;
        let pod = again.map_or_else(|| format!("p{}", self.boots), |i| self.agents[i].incarnation.pod.clone());
        let incarnation = Incarnation { boot: self.boots, pod };
        let leader = (seat == 0).then(|| LeaderSetup {
            members: (0..self.members).map(worker).collect(),
            deciding: BTreeSet::new(),
            was_larger: self.largest > self.members,
            policy: self.policy.clone(),
            judge: by_what_was_seen,
            ports: (29500, 8),
        });
        // An agent that restarts in its own pod remembers nothing, and a new pod gets what the operator knows. If no
        // reachable agent knows the last attempt, the number must come from what the pod and the operator keep.
        let can_report = |agent: &Agent| agent.end == Ending::Lives && !agent.is_replaced && !agent.is_cut;
        let is_known = self.agents.iter().any(|agent| can_report(agent) && self.knows_last_attempt(agent));
        let known = match again {
            _ if !is_known => self.known.max(self.attempt.number),
            None => self.known,
            Some(_) => 0,
        };
        let history = History {
            finish: self.finish.clone(),
            attempt: known,
            restarts: RestartHistory { judged: known, ..RestartHistory::default() },
            ..History::default()
        };
        let setup = Setup {
            job: "job".to_owned(),
            member: worker(seat),
            incarnation: incarnation.clone(),
            timing: self.timing,
            memory: Memory { history, ..Memory::default() },
            leader,
        };
        let gang = Gang::new(setup, now);
        let (process, choosing, end) = (None, None, Ending::Lives);
        let agent = Agent {
            seat,
            incarnation,
            gang,
            process,
            choosing,
            end,
            is_cut: false,
            cut_for: 0,
            has_dialed: false,
            is_replaced: false,
        };
        match again {
            Some(i) => {
                self.agents[i] = Arc::new(agent);
                i
            }
            None => {
                for other in self.agents.iter_mut().filter(|other| other.seat == seat) {
                    Arc::make_mut(other).is_replaced = true;
                }
                self.agents.push(Arc::new(agent));
                self.agents.len() - 1
            }
        }
    }

    /// Whether the next leader chooses a larger number than the last attempt's because of this agent. An agent that has
    /// prepared for that number with another leader, which did not know the attempt, does not know it either.
    fn knows_last_attempt(&self, agent: &Agent) -> bool {
        let Memory { history, seen, run } = agent.gang.memory();
        let last = self.attempt.number;
        let has_run = run.is_some_and(|run| run.attempt >= last);
        let has_prepared = || agent.gang.member.last_leader() == self.attempt.leader.as_ref();
        history.attempt >= last || has_run || seen > last || (seen == last && has_prepared())
    }

    pub fn lives(&self, i: usize) -> bool {
        self.agents[i].end == Ending::Lives
    }

    /// The agent that the name of worker 0 resolves to.
    pub fn leader(&self) -> Option<usize> {
        self.agents.iter().rposition(|agent| agent.seat == 0).filter(|&i| self.lives(i))
    }

    /// Kills an agent and its processes at once.
    pub fn kill(&mut self, i: usize) {
        let agent = Arc::make_mut(&mut self.agents[i]);
        self.known = self.known.max(agent.gang.memory().history.attempt);
        (agent.end, agent.process, agent.choosing) = (Ending::Killed, None, None);
    }

    /// Passes an input to an agent and carries out its orders. `now` is the world's clock, `local` the agent's.
    pub fn act(&mut self, i: usize, now: Time, local: Time, input: Input) -> Vec<Wish> {
        if !self.lives(i) {
            return Vec::new();
        }
        let agent = Arc::make_mut(&mut self.agents[i]);
        let mut wishes = Vec::new();
        for order in agent.gang.step(local, input) {
            match order {
                Order::Send { conn, message } => {
                    if let Err(what) = message.check() {
                        self.broken = Some(format!("a message has too long a text in {what}"));
                    }
                    wishes.push(Wish::Send(conn, message));
                }
                Order::Close { conn, .. } => wishes.push(Wish::Close(conn)),
                order => self.carry_out(i, now, order),
            }
        }
        wishes
    }

    fn carry_out(&mut self, i: usize, now: Time, order: Order) {
        let agent = Arc::make_mut(&mut self.agents[i]);
        match order {
            Order::Send { .. } | Order::Close { .. } => {}
            Order::Choose { attempt } => agent.choosing = Some(attempt),
            Order::Start { attempt, size, port, choice } => {
                if agent.process.is_some() {
                    self.broken = Some(format!("agent {i} starts attempt {attempt} while it still runs another"));
                }
                agent.process = Some(Process { attempt, kill_at: None });
                self.started(i, [attempt, size], port, choice);
            }
            Order::Stop { attempt, grace } => {
                if let Some(process) = agent.process.as_mut().filter(|process| process.attempt == attempt) {
                    process.kill_at = Some(process.kill_at.unwrap_or(Time(u64::MAX)).min(now + grace));
                }
            }
            Order::Exit(exit) => {
                if agent.process.is_some() {
                    self.broken = Some(format!("agent {i} leaves its processes behind"));
                }
                if exit == Exit::Succeeded && (0..self.attempt.size).any(|seat| !self.attempt.succeeded.contains(&seat))
                {
                    self.broken = Some(format!("agent {i} reports success, but only of {:?}", self.attempt.succeeded));
                }
                let (seat, goes_early) =
                    (agent.seat, agent.is_cut || agent.is_replaced || agent.gang.status().leaving.is_some());
                // A spare may be connected to another leader.
                let size = self.attempt.size;
                let is_member = |agent: &Agent| agent.seat != 0 && agent.seat < size;
                let listens =
                    |agent: &Agent| agent.end == Ending::Lives && is_member(agent) && agent.gang.member.is_linked();
                let knows = |agent: &Agent| agent.gang.memory().history.finish.is_some();
                if seat == 0
                    && !goes_early
                    && matches!(exit, Exit::Succeeded | Exit::Failed(_))
                    && self
                        .agents
                        .iter()
                        .any(|agent| !agent.is_cut && !agent.is_replaced && listens(agent) && !knows(agent))
                {
                    self.broken = Some(format!("leader {i} goes before all know the end"));
                }
                match &exit {
                    Exit::Succeeded => self.finish = Some(Finish::Succeeded),
                    Exit::Failed(cause) => {
                        if self.finish == Some(Finish::Succeeded) {
                            self.broken = Some(format!("agent {i} reports a failure after a success"));
                        }
                        self.finish = Some(Finish::Failed(cause.clone()));
                    }
                    Exit::Signalled(_) | Exit::Displaced => {}
                }
                let agent = Arc::make_mut(&mut self.agents[i]);
                self.known = self.known.max(agent.gang.memory().history.attempt);
                (agent.end, agent.choosing) = (Ending::Exited(exit), None);
            }
        }
    }

    /// Checks the rules that hold whenever an attempt starts anywhere.
    fn started(&mut self, i: usize, [number, size]: [u32; 2], port: u16, choice: Choice) {
        let seat = self.agents[i].seat;
        let others = self.agents.iter().enumerate().filter(|(j, _)| *j != i);
        for (j, process) in others.filter_map(|(j, agent)| Some((j, agent.process.as_ref()?))) {
            if process.attempt != number {
                let other = process.attempt;
                self.broken = Some(format!("agent {i} starts attempt {number} while agent {j} still runs {other}"));
            }
            if self.agents[j].seat == seat {
                self.broken = Some(format!("worker {seat} runs attempt {number} twice, in {i} and {j}"));
            }
        }
        if seat >= size {
            self.broken = Some(format!("worker {seat} starts attempt {number}, which has {size} members"));
        }
        let last = &mut self.attempt;
        match number.cmp(&last.number) {
            Ordering::Less => {
                self.broken = Some(format!("agent {i} starts attempt {number} after attempt {}", last.number));
            }
            Ordering::Equal => {
                if (size, port, &choice) != (last.size, last.port, &last.choice) {
                    self.broken = Some(format!("agent {i} has {choice:?} for attempt {number}, others have {last:?}"));
                }
                if !last.seats.insert(seat) {
                    self.broken = Some(format!("worker {seat} starts attempt {number} again"));
                }
            }
            Ordering::Greater => {
                if port == last.port {
                    self.broken = Some(format!("attempt {number} has the port of attempt {}", last.number));
                }
                let leader = self.agents[i].gang.member.last_leader().cloned();
                let (seats, succeeded) = (BTreeSet::from([seat]), BTreeSet::new());
                *last = Attempt { number, size, port, choice, leader, seats, succeeded };
            }
        }
    }

    /// Sets the wanted number of members. The leader learns of it when it reads the change.
    pub fn resize(&mut self, members: u32) {
        self.members = members.min(self.size);
        self.largest = self.largest.max(self.members);
    }

    /// The members that the operator wants.
    pub fn wanted(&self) -> Input {
        Input::Resize((0..self.members).map(worker).collect())
    }

    /// Completes the checkpoint choice that was ordered.
    pub fn choose(&mut self, i: usize, now: Time, local: Time) -> Vec<Wish> {
        let agent = Arc::make_mut(&mut self.agents[i]);
        let Some(attempt) = agent.choosing.take() else { return Vec::new() };
        // No two choices find the same checkpoint.
        let checkpoint = format!("{}/{attempt}", agent.incarnation.boot);
        self.act(i, now, local, Input::Chosen(attempt, Ok(Choice { checkpoint, detail: String::new() })))
    }

    /// The processes of an agent have ended.
    pub fn end(&mut self, i: usize, now: Time, local: Time, outcome: Outcome) -> Vec<Wish> {
        let agent = Arc::make_mut(&mut self.agents[i]);
        let Some(process) = agent.process.take() else { return Vec::new() };
        let seat = agent.seat;
        if outcome == Outcome::Succeeded && process.kill_at.is_none() && process.attempt == self.attempt.number {
            self.attempt.succeeded.insert(seat);
        }
        self.act(i, now, local, Input::Ended { attempt: process.attempt, outcome, report: String::new() })
    }

    /// When the processes of an agent are killed.
    pub fn kill_at(&self, i: usize) -> Option<Time> {
        self.agents[i].process.as_ref().and_then(|process| process.kill_at)
    }

    /// Whether nothing more will happen: the last agent of each place has reported the same outcome.
    pub fn is_over(&self) -> bool {
        let last = |seat| self.agents.iter().rfind(|agent| agent.seat == seat);
        let is_end = |exit: &Exit| {
            let ends = (exit, &self.finish);
            matches!(ends, (Exit::Succeeded, Some(Finish::Succeeded)) | (Exit::Failed(_), Some(Finish::Failed(_))))
        };
        (0..self.size).all(|seat| last(seat).is_some_and(|a| matches!(&a.end, Ending::Exited(exit) if is_end(exit))))
    }

    pub fn published_history(&self) -> Option<History> {
        Some(History { finish: Some(self.finish.clone()?), ..History::default() })
    }
}

pub fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Pseudo-random numbers, the same for the same seed.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }
}
