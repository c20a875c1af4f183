//! Three agents and the connections between them, as the model sees them: comparable values, and steps.

use super::super::message::{MemberMessage, Message, Outcome, Status, Time};
use super::super::{Conn, Exit, Input};
use super::shift::Times;
use super::world::{Agent, Ending, Wish, World, seconds, worker};
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// The clock stands still at this time, which is longer than anything is remembered.
pub const NOW: Time = Time(8_000);

#[derive(Clone, Debug, Hash)]
#[allow(clippy::derived_hash_with_manual_eq)] // equality compares the hashes, so equal values have equal hashes
pub struct State {
    pub world: World,
    pub pipes: Vec<Arc<Pipe>>,
    pub faults: u32,
    /// An operator keeps the number of the last attempt, and replaces no living pod whose node has been silent for less
    /// than a lease. With two faults the gang must do without that.
    pub is_watched: bool,
}

/// A connection between a follower and a leader. `None` in transit is the connection's end.
#[derive(Clone, Debug, Hash)]
pub struct Pipe {
    pub conn: Conn,
    pub ends: [usize; 2],
    pub is_open: [bool; 2],
    /// The messages in transit to each end.
    pub inbound: [VecDeque<Option<Message>>; 2],
    /// The follower's last status, and which of its messages in transit have no news.
    pub reported: Option<Status>,
    pub beats: VecDeque<bool>,
    /// The leader's next message is lost.
    pub loses: bool,
}

impl State {
    pub fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.digest() == other.digest()
    }
}

pub const FOLLOWER: usize = 0;
pub const LEADER: usize = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Tick,
    Dial(usize),
    Deliver(Conn, usize),
    Choose(usize),
    Succeed(usize),
    Stopped(usize),
    Reboot(usize),
    Replace(usize),
    Heal(usize),
    Fault(Fault),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Fail(usize),
    Kill(usize),
    Cut(usize),
    Terminate(usize),
    Reset(Conn),
    Lose(Conn, usize),
    Repeat(Conn, usize),
    Restart(usize),
    Resize(usize, u32),
}

impl State {
    fn reaches(&self, i: usize) -> bool {
        !self.world.agents[i].is_cut
    }

    /// The messages that can be delivered now.
    pub fn deliverable(&self) -> impl Iterator<Item = (&Pipe, usize)> {
        let is_up = |pipe: &&Arc<Pipe>| pipe.ends.iter().all(|&i| self.reaches(i));
        self.pipes.iter().filter(is_up).flat_map(|pipe| {
            [FOLLOWER, LEADER].into_iter().filter(|&end| !pipe.inbound[end].is_empty()).map(move |end| (&**pipe, end))
        })
    }

    /// The leader that an agent can dial now, if it needs to.
    pub fn dialable(&self, i: usize) -> Option<usize> {
        let leader = self.world.leader()?;
        let agent = &self.world.agents[i];
        let is_free = !self.pipes.iter().any(|pipe| pipe.ends[FOLLOWER] == i && pipe.is_open[FOLLOWER]);
        let is_follower = agent.seat != 0 && !agent.has_dialed && self.world.lives(i) && !agent.gang.member.is_linked();
        (is_follower && is_free && self.reaches(i) && self.reaches(leader)).then_some(leader)
    }

    fn do_as_wished(&mut self, i: usize, wishes: Vec<Wish>) {
        for wish in wishes {
            match wish {
                Wish::Send(conn, message) => self.send(conn, i, Some(message)),
                Wish::Close(conn) => self.close(conn, i),
            }
        }
        if !self.world.lives(i) {
            self.close_all(i);
        }
    }

    fn send(&mut self, conn: Conn, from: usize, item: Option<Message>) {
        let is_cut = |i: usize| self.world.agents[i].is_cut;
        let Some(pipe) = self.pipes.iter_mut().find(|pipe| pipe.conn == conn) else { return };
        let is_full = pipe.ends.iter().any(|&i| is_cut(i));
        let pipe = Arc::make_mut(pipe);
        let to = if pipe.ends[FOLLOWER] == from { LEADER } else { FOLLOWER };
        if to == FOLLOWER && item.is_some() && std::mem::take(&mut pipe.loses) {
            return;
        }
        if pipe.is_open[1 - to] && pipe.is_open[to] && (item.is_none() || !is_full || pipe.inbound[to].len() < 2) {
            if to == LEADER {
                let status = match &item {
                    Some(Message::Up(MemberMessage::Status(_, status))) => Some(status),
                    Some(Message::Up(MemberMessage::Hello(_, hello))) => Some(&hello.status),
                    _ => None,
                };
                let is_first = pipe.reported.is_none();
                pipe.beats.push_back(!is_first && status.is_some() && pipe.reported.as_ref() == status);
                pipe.reported = status.cloned();
            }
            pipe.inbound[to].push_back(item);
        }
    }

    /// Delivers the messages whose order makes no difference to what happens later.
    pub fn settle(&mut self) {
        loop {
            let is_plain = |pipe: &Pipe, end| end == FOLLOWER || pipe.beats.front() == Some(&true);
            let found = self.deliverable().find(|(pipe, end)| is_plain(pipe, *end)).map(|(pipe, end)| (pipe.conn, end));
            let Some((conn, end)) = found else { return };
            self.deliver(conn, end, false);
        }
    }

    fn close(&mut self, conn: Conn, by: usize) {
        self.send(conn, by, None);
        let Some(pipe) = self.pipes.iter_mut().find(|pipe| pipe.conn == conn) else { return };
        let pipe = Arc::make_mut(pipe);
        let end = if pipe.ends[FOLLOWER] == by { FOLLOWER } else { LEADER };
        pipe.is_open[end] = false;
        pipe.inbound[end].clear();
        if end == LEADER {
            pipe.beats.clear();
        }
        self.pipes.retain(|pipe| pipe.is_open.contains(&true));
    }

    fn close_all(&mut self, i: usize) {
        let conns: Vec<_> = self.pipes.iter().filter(|pipe| pipe.ends.contains(&i)).map(|pipe| pipe.conn).collect();
        conns.into_iter().for_each(|conn| self.close(conn, i));
    }

    pub fn input(&mut self, i: usize, input: Input) {
        let wishes = self.world.act(i, NOW, NOW, input);
        self.do_as_wished(i, wishes);
    }

    fn dial(&mut self, i: usize) {
        let Some(leader) = self.dialable(i) else { return };
        let is_used = |n: u64| self.pipes.iter().any(|pipe| pipe.conn == Conn(n));
        let conn = Conn((1..9).map(|n| n * 8 + i as u64).find(|n| !is_used(*n)).unwrap_or(8));
        let (ends, is_open, inbound, beats) = ([i, leader], [true; 2], Default::default(), VecDeque::new());
        Arc::make_mut(&mut self.world.agents[i]).has_dialed = true;
        self.pipes.push(Arc::new(Pipe { conn, ends, is_open, inbound, reported: None, beats, loses: false }));
        self.pipes.sort_by_key(|pipe| pipe.conn);
        let agent = &self.world.agents[i];
        let (member, pod) = (worker(agent.seat), agent.incarnation.pod.clone());
        self.input(leader, Input::Accepted { conn, member, pod });
        self.input(i, Input::Dialed(conn));
    }

    fn deliver(&mut self, conn: Conn, end: usize, again: bool) {
        let Some(pipe) = self.pipes.iter_mut().find(|pipe| pipe.conn == conn) else { return };
        let pipe = Arc::make_mut(pipe);
        let i = pipe.ends[end];
        if end == LEADER && !again {
            pipe.beats.pop_front();
        }
        let item = if again { pipe.inbound[end].front().cloned() } else { pipe.inbound[end].pop_front() };
        match item {
            Some(Some(message)) => self.input(i, Input::Received(conn, message)),
            Some(None) => {
                pipe.is_open[end] = false;
                self.pipes.retain(|pipe| pipe.is_open.contains(&true));
                self.input(i, Input::Closed(conn));
            }
            None => {}
        }
    }

    fn end(&mut self, i: usize, outcome: Outcome) {
        let wishes = self.world.end(i, NOW, NOW, outcome);
        self.do_as_wished(i, wishes);
    }

    /// Whether the pod of a cut off agent may be replaced by now, though the agent lives.
    pub fn is_given_up(&self, i: usize) -> bool {
        let agent = &self.world.agents[i];
        agent.is_cut && (!self.is_watched || seconds(agent.cut_for) >= self.world.timing.lease)
    }

    /// Delivers everything that can be delivered, in one order. It stops after 200 messages.
    pub fn deliver_all(&mut self) {
        for _ in 0..200 {
            let Some((conn, end)) = self.deliverable().next().map(|(pipe, end)| (pipe.conn, end)) else { return };
            self.deliver(conn, end, false);
        }
    }

    /// Continues until all agents run, in one order.
    pub fn start(&mut self) {
        while (0..self.world.agents.len()).any(|i| self.world.agents[i].process.is_none()) {
            (0..self.world.agents.len()).for_each(|i| self.dial(i));
            self.deliver_all();
            self.take(Step::Choose(0));
            self.deliver_all();
        }
        for _ in 0..2 {
            self.tick();
            self.deliver_all();
        }
    }

    pub fn tick(&mut self) {
        let mut back = |time: &mut Time| time.0 = time.0.saturating_sub(1_000);
        for agent in &mut self.world.agents {
            let agent = Arc::make_mut(agent);
            agent.has_dialed = false;
            agent.gang.each(NOW, &mut back);
            if let Some(kill_at) = agent.process.as_mut().and_then(|process| process.kill_at.as_mut()) {
                back(kill_at);
            }
        }
        for pipe in &mut self.pipes {
            Arc::make_mut(pipe).inbound.iter_mut().flatten().flatten().for_each(|message| message.each(NOW, &mut back));
        }
        if self.is_watched {
            for agent in self.world.agents.iter_mut().filter(|agent| agent.is_cut) {
                let agent = Arc::make_mut(agent);
                agent.cut_for = (agent.cut_for + 1).min(self.world.timing.lease.as_secs());
            }
            // It asks worker 0 for its last attempt.
            let leaders = self.world.agents.iter().filter(|a| a.seat == 0 && !a.is_cut && a.end == Ending::Lives);
            self.world.known =
                leaders.map(|a| a.gang.memory().history.attempt).max().unwrap_or(0).max(self.world.known);
        }
        for i in 0..self.world.agents.len() {
            if self.world.kill_at(i).is_some_and(|at| at <= NOW) {
                self.end(i, Outcome::Stopped);
            }
            self.input(i, Input::Tick);
        }
    }

    pub fn take(&mut self, step: Step) {
        match step {
            Step::Tick => self.tick(),
            Step::Dial(i) => self.dial(i),
            Step::Deliver(conn, end) => self.deliver(conn, end, false),
            Step::Choose(i) => {
                let wishes = self.world.choose(i, NOW, NOW);
                self.do_as_wished(i, wishes);
            }
            Step::Succeed(i) => self.end(i, Outcome::Succeeded),
            Step::Stopped(i) => self.end(i, Outcome::Stopped),
            Step::Reboot(i) => {
                let seat = self.world.agents[i].seat;
                self.world.create(seat, Some(i), NOW);
                self.input(i, Input::Tick);
            }
            Step::Replace(i) => {
                let seat = self.world.agents[i].seat;
                let new = self.world.create(seat, None, NOW);
                self.input(new, Input::Tick);
            }
            Step::Heal(i) => {
                let agent = Arc::make_mut(&mut self.world.agents[i]);
                (agent.is_cut, agent.cut_for) = (false, 0);
            }
            Step::Fault(fault) => {
                self.faults -= 1;
                self.suffer(fault);
            }
        }
    }

    pub fn suffer(&mut self, fault: Fault) {
        match fault {
            Fault::Fail(i) => self.end(i, Outcome::Failed),
            Fault::Kill(i) => {
                self.world.kill(i);
                self.close_all(i);
            }
            Fault::Cut(i) => Arc::make_mut(&mut self.world.agents[i]).is_cut = true,
            Fault::Terminate(i) => self.input(i, Input::Terminated(15)),
            Fault::Reset(conn) => {
                let Some(pipe) = self.pipes.iter_mut().find(|pipe| pipe.conn == conn) else { return };
                let pipe = Arc::make_mut(pipe);
                pipe.inbound = [VecDeque::from([None]), VecDeque::from([None])];
                pipe.beats = VecDeque::from([false]);
            }
            Fault::Lose(conn, end) => {
                let Some(pipe) = self.pipes.iter_mut().find(|pipe| pipe.conn == conn) else { return };
                let pipe = Arc::make_mut(pipe);
                if end == LEADER {
                    pipe.inbound[end].pop_front();
                    pipe.beats.pop_front();
                } else {
                    pipe.loses = true;
                }
            }
            Fault::Repeat(conn, end) => self.deliver(conn, end, true),
            Fault::Restart(i) => self.input(i, Input::Restart("asked for".to_owned())),
            Fault::Resize(i, members) => {
                self.world.resize(members);
                self.input(i, self.world.wanted());
            }
        }
    }

    /// Whether the gang ends if no further faults occur and everything else happens soon.
    pub fn converges(&self) -> Result<(), String> {
        let mut state = self.clone();
        for second in 0..60 {
            for i in 0..state.world.agents.len() {
                let agent = &state.world.agents[i];
                match &agent.end {
                    Ending::Lives if agent.is_replaced => state.suffer(Fault::Kill(i)),
                    Ending::Lives if agent.is_cut => state.take(Step::Heal(i)),
                    Ending::Killed if !agent.is_replaced => state.take(Step::Reboot(i)),
                    Ending::Exited(Exit::Signalled(_)) if !agent.is_replaced => state.take(Step::Replace(i)),
                    _ => {}
                }
            }
            for i in 0..state.world.agents.len() {
                state.dial(i);
                if state.world.agents[i].choosing.is_some() {
                    state.take(Step::Choose(i));
                }
                if state.world.kill_at(i).is_some() {
                    state.take(Step::Stopped(i));
                }
            }
            state.deliver_all();
            let number = state.world.attempt.number;
            let runs = |agent: &Arc<Agent>| agent.process.as_ref().map(|process| process.attempt);
            let living = state.world.agents.iter().filter(|agent| runs(agent) == Some(number));
            let done = state.world.attempt.succeeded.len();
            if living.count() + done == state.world.attempt.size as usize {
                (0..state.world.agents.len()).for_each(|i| state.take(Step::Succeed(i)));
            }
            // The operator passes the outcome that the first exited agent reported on to the others.
            if second > 40
                && let Some(history) = state.world.published_history()
            {
                (0..state.world.agents.len()).for_each(|i| state.input(i, Input::History(history.clone())));
            }
            state.tick();
            if let Some(broken) = &state.world.broken {
                return Err(broken.clone());
            }
            if state.world.is_over() {
                return Ok(());
            }
        }
        let leader = state.world.leader().map(|i| &state.world.agents[i].gang);
        Err(format!("it comes to no end: {:?}", leader.and_then(|gang| gang.view(NOW)).map(|view| format!("{view:?}"))))
    }
}
