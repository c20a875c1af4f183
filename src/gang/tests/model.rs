//! Every interleaving of three members and two faults.
//!
//! A second is one step of time, and everything that can be delivered is delivered within the step in which it was sent. What
//! takes longer is a fault: a member is cut off, and what was on its way comes late, or not at all. How long a choice, a
//! program or a pod's return takes is open.
//!
//! Two orders that nobody can tell apart are one. The leader's messages arrive at once: what a member does by itself while one
//! is on its way, the leader can't know yet, so it may as well have done it before. A member's message that tells nothing
//! new arrives at once too.

use super::super::message::{Message, Outcome, Status, Time, Up};
use super::super::policy::{Policy, Restarts};
use super::super::{Conn, Input, Timing};
use super::shift::Times;
use super::world::{Ending, Random, Wish, World, seconds};
use stateright::{Checker, Model, Property};
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// The clock stands here, longer than anything is remembered.
const NOW: Time = Time(8_000);

#[derive(Clone, Debug, Hash)]
struct State {
    world: World,
    pipes: Vec<Arc<Pipe>>,
    faults: u32,
    is_watched: bool,
}

/// A connection between a follower and a leader. `None` on its way is its end.
#[derive(Clone, Debug, Hash)]
struct Pipe {
    conn: Conn,
    ends: [usize; 2],
    is_open: [bool; 2],
    /// To each end.
    inbound: [VecDeque<Option<Message>>; 2],
    /// What the follower has said last, and how many of its messages are no news.
    told: Option<Status>,
    beats: VecDeque<bool>,
    /// The next message of the leader gets lost.
    loses: bool,
}

impl State {
    fn digest(&self) -> u64 {
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

const FOLLOWER: usize = 0;
const LEADER: usize = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
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
enum Fault {
    Fail(usize),
    Kill(usize),
    Cut(usize),
    Terminate(usize),
    Reset(Conn),
    Lose(Conn, usize),
    Repeat(Conn, usize),
    Restart(usize),
}

impl State {
    fn reaches(&self, i: usize) -> bool {
        !self.world.agents[i].is_cut
    }

    /// What can be delivered now.
    fn deliverable(&self) -> impl Iterator<Item = (&Pipe, usize)> {
        let is_up = |pipe: &&Arc<Pipe>| pipe.ends.iter().all(|&i| self.reaches(i));
        self.pipes.iter().filter(is_up).flat_map(|pipe| {
            [FOLLOWER, LEADER].into_iter().filter(|&end| !pipe.inbound[end].is_empty()).map(move |end| (&**pipe, end))
        })
    }

    /// The leader that an agent can dial now, if it has to.
    fn dialable(&self, i: usize) -> Option<usize> {
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
                    Some(Message::Up(Up::Status(_, status))) => Some(status),
                    Some(Message::Up(Up::Hello(_, hello))) => Some(&hello.status),
                    _ => None,
                };
                let is_first = pipe.told.is_none();
                pipe.beats.push_back(!is_first && status.is_some() && pipe.told.as_ref() == status);
                pipe.told = status.cloned();
            }
            pipe.inbound[to].push_back(item);
        }
    }

    /// What nobody can tell from what happens later anyway.
    fn settle(&mut self) {
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

    fn input(&mut self, i: usize, input: Input) {
        let wishes = self.world.act(i, NOW, NOW, input);
        self.do_as_wished(i, wishes);
    }

    fn dial(&mut self, i: usize) {
        let Some(leader) = self.dialable(i) else { return };
        let is_used = |n: u64| self.pipes.iter().any(|pipe| pipe.conn == Conn(n));
        let conn = Conn((1..).map(|n| n * 8 + i as u64).find(|n| !is_used(*n)).unwrap_or(8));
        let (ends, is_open, inbound, beats) = ([i, leader], [true; 2], Default::default(), VecDeque::new());
        Arc::make_mut(&mut self.world.agents[i]).has_dialed = true;
        self.pipes.push(Arc::new(Pipe { conn, ends, is_open, inbound, told: None, beats, loses: false }));
        self.pipes.sort_by_key(|pipe| pipe.conn);
        let agent = &self.world.agents[i];
        let (member, pod) = (super::world::worker(agent.seat), agent.incarnation.pod.clone());
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

    /// Delivers all that can be, in one order, unless there is no end of it.
    fn deliver_all(&mut self) {
        for _ in 0..200 {
            let Some((conn, end)) = self.deliverable().next().map(|(pipe, end)| (pipe.conn, end)) else { return };
            self.deliver(conn, end, false);
        }
    }

    /// Goes on until all run, in one order.
    fn start(&mut self) {
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

    fn tick(&mut self) {
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
        // The operator asks worker 0 how far it is. Two faults have to be borne without.
        if self.is_watched {
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

    fn take(&mut self, step: Step) {
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
            Step::Heal(i) => Arc::make_mut(&mut self.world.agents[i]).is_cut = false,
            Step::Fault(fault) => {
                self.faults -= 1;
                self.suffer(fault);
            }
        }
    }

    fn suffer(&mut self, fault: Fault) {
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
        }
    }

    /// Without further faults and with everything that happens happening soon: does it come to an end?
    fn converges(&self) -> Result<(), String> {
        let mut state = self.clone();
        for second in 0..60 {
            for i in 0..state.world.agents.len() {
                let agent = &state.world.agents[i];
                match &agent.end {
                    Ending::Lives if agent.is_replaced => state.suffer(Fault::Kill(i)),
                    Ending::Lives if agent.is_cut => state.take(Step::Heal(i)),
                    Ending::Killed if !agent.is_replaced => state.take(Step::Reboot(i)),
                    Ending::Exited(exit) if !agent.is_replaced => {
                        if let super::super::Exit::Signalled(_) = exit {
                            state.take(Step::Replace(i));
                        }
                    }
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
            let runs = |agent: &Arc<super::world::Agent>| agent.process.as_ref().map(|process| process.attempt);
            let living = state.world.agents.iter().filter(|agent| runs(agent) == Some(number));
            let done = state.world.attempt.succeeded.len();
            if living.count() + done == state.world.size as usize {
                (0..state.world.agents.len()).for_each(|i| state.take(Step::Succeed(i)));
            }
            // The operator tells the others what the first one to exit has told.
            if second > 40
                && let Some(history) = state.world.told()
            {
                (0..state.world.agents.len()).for_each(|i| state.input(i, Input::Told(history.clone())));
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

/// What is explored.
struct Gangs {
    faults: u32,
    /// Of so many states one is followed to its end.
    sample: u64,
    /// The first attempt runs already.
    runs: bool,
}

impl Model for Gangs {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let timing = Timing {
            beat: seconds(1),
            lease: seconds(3),
            reconnect: seconds(1),
            short_grace: seconds(1),
            grace: seconds(2),
            margin: seconds(0),
            linger: seconds(3),
        };
        let policy = Policy { restarts: Restarts::OnFailure, failures: 1, disruptions: None };
        let world = World::new(3, timing, policy, NOW);
        let mut state = State { world, pipes: Vec::new(), faults: self.faults, is_watched: self.faults > 2 };
        (0..3).for_each(|i| state.input(i, Input::Tick));
        if self.runs {
            state.start();
        }
        vec![state]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.world.broken.is_some() || state.world.is_over() {
            return;
        }
        let agents = || state.world.agents.iter().enumerate();
        let deliverable: Vec<_> = state.deliverable().map(|(pipe, end)| (pipe.conn, end)).collect();
        let dials: Vec<_> = agents().map(|(i, _)| i).filter(|&i| state.dialable(i).is_some()).collect();
        if deliverable.is_empty() && dials.is_empty() {
            steps.push(Step::Tick);
        }
        steps.extend(dials.into_iter().map(Step::Dial));
        steps.extend(deliverable.iter().map(|&(conn, end)| Step::Deliver(conn, end)));
        for (i, agent) in agents() {
            steps.extend(agent.choosing.map(|_| Step::Choose(i)));
            match &agent.process {
                Some(process) if process.kill_at.is_some() => steps.push(Step::Stopped(i)),
                Some(_) => steps.push(Step::Succeed(i)),
                None => {}
            }
            let can_be_replaced = !agent.is_replaced && (agent.is_cut || agent.end != Ending::Lives);
            if can_be_replaced
                && !matches!(&agent.end, Ending::Exited(exit) if state.world.finish.is_some() && !matches!(exit, super::super::Exit::Signalled(_)))
            {
                steps.push(Step::Replace(i));
            }
            if agent.end == Ending::Killed && !agent.is_replaced {
                steps.push(Step::Reboot(i));
            }
            if agent.is_cut {
                steps.push(Step::Heal(i));
            }
        }
        if state.faults == 0 {
            return;
        }
        let mut fault = |fault| steps.push(Step::Fault(fault));
        for (i, agent) in agents().filter(|(i, _)| state.world.lives(*i)) {
            fault(Fault::Kill(i));
            if agent.gang.status().leaving.is_none() {
                fault(Fault::Terminate(i));
            }
            if !agent.is_cut {
                fault(Fault::Cut(i));
            }
            if agent.process.as_ref().is_some_and(|process| process.kill_at.is_none()) {
                fault(Fault::Fail(i));
            }
            if agent.seat == 0 {
                fault(Fault::Restart(i));
            }
        }
        for (conn, end) in deliverable {
            fault(Fault::Lose(conn, end));
            fault(Fault::Repeat(conn, end));
        }
        state.pipes.iter().for_each(|pipe| fault(Fault::Reset(pipe.conn)));
        state.pipes.iter().for_each(|pipe| fault(Fault::Lose(pipe.conn, FOLLOWER)));
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = state.clone();
        next.take(step);
        next.settle();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let converges =
            |model: &Self, state: &State| !state.digest().is_multiple_of(model.sample) || state.converges().is_ok();
        let failed = |_: &Self, state: &State| {
            matches!(&state.world.finish, Some(super::super::message::Finish::Failed(_))) && state.world.is_over()
        };
        let succeeded = |_: &Self, state: &State| {
            state.world.finish == Some(super::super::message::Finish::Succeeded) && state.world.is_over()
        };
        vec![
            Property::always("the rules hold", |_, state: &State| state.world.broken.is_none()),
            Property::always("it comes to an end when faults stop", converges),
            Property::sometimes("a gang succeeds", succeeded),
            Property::sometimes("a gang fails", failed),
        ]
    }
}

fn check(model: Gangs, most: usize) -> usize {
    let faults = model.faults;
    let checker = model.checker().threads(1).target_state_count(most).spawn_dfs().join();
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    println!("{faults} faults: {states} states, {} transitions, depth {depth}", checker.state_count());
    for (name, path) in checker.discoveries() {
        if name.starts_with("a gang") {
            continue;
        }
        let last = path.last_state();
        let why = last.world.broken.clone().or_else(|| last.converges().err());
        let steps: Vec<_> = path.clone().into_actions();
        panic!("broken: {name}: {why:?}\nafter {steps:?}");
    }
    states
}

#[test]
fn no_interleaving_breaks_the_rules() {
    let set = std::env::var("TRAININGJOB_MODEL_FAULTS").ok().and_then(|faults| faults.parse().ok());
    match set {
        Some(faults) => {
            let sample = std::env::var("TRAININGJOB_MODEL_SAMPLE").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
            let most = std::env::var("TRAININGJOB_MODEL_STATES").ok().and_then(|n| n.parse().ok());
            let runs = std::env::var_os("TRAININGJOB_MODEL_RUNS").is_some();
            check(Gangs { faults, sample, runs }, most.unwrap_or(usize::MAX));
        }
        None => {
            check(Gangs { faults: 0, sample: 1, runs: false }, usize::MAX);
            check(Gangs { faults: 1, sample: 16, runs: true }, 200_000);
        }
    }
}

/// Random walks go deeper than all interleavings can.
#[test]
fn no_walk_breaks_the_rules() {
    let number = |name: &str, default| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default);
    let walks: u64 = number("TRAININGJOB_MODEL_WALKS", 200);
    let first: u64 = number("TRAININGJOB_MODEL_SEED", 1);
    let faults = number("TRAININGJOB_MODEL_FAULTS", 3) as u32;
    let mut most = (0, 0);
    for seed in first..first + walks {
        let model = Gangs { faults, sample: 1, runs: false };
        let mut random = Random(seed);
        let mut state = model.init_states().remove(0);
        let mut taken = vec![];
        for _ in 0..1000 {
            let mut steps = vec![];
            model.actions(&state, &mut steps);
            // Faults are rare, or they would all come at once.
            steps.retain(|step| match step {
                Step::Fault(_) => random.below(150) == 0,
                Step::Succeed(_) => random.below(30) == 0,
                _ => true,
            });
            if steps.is_empty() {
                let mut steps = vec![];
                model.actions(&state, &mut steps);
                if steps.is_empty() {
                    break;
                }
                continue;
            }
            let step = steps[random.below(steps.len() as u64) as usize];
            taken.push(step);
            state.take(step);
            state.settle();
            let broken = state.world.broken.clone();
            let broken = broken.or_else(|| state.converges().err().filter(|_| random.below(20) == 0));
            assert!(broken.is_none(), "TRAININGJOB_MODEL_SEED={seed} breaks a rule: {broken:?} after {taken:?}");
        }
        most = (most.0.max(state.world.attempt.number), most.1.max(state.world.boots));
    }
    println!("{walks} walks: at most {} attempts and {} agents", most.0, most.1);
}
