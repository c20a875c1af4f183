//! Gangs of up to 64 members, random faults and a network that loses, repeats, delays and reorders. Each seed is one
//! run.
//!
//! Clocks differ in their origin and their speed. Nodes are cut off for long and return with their processes alive.
//! Some are replaced meanwhile, and agents lose their memory. Then the faults stop, and each gang must end.

use super::super::message::{Finish, Message, Outcome, Time};
use super::super::{Conn, Exit, Input, Timing};
use super::world::{Ending, Random, Wish, World, worker};
use failure::restart::Policy;
use protocol::gang::Restarts;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;

/// Faults occur until this time, in milliseconds.
const CALM: u64 = 240_000;
/// How long a node is silent before its pods are replaced. It is longer than the lease, as `nodeLostSeconds` is.
const LOST: u64 = 20_000;
/// All must be over by this time.
const END: u64 = 900_000;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Tick(usize),
    Dial(usize),
    /// A message for one end of a connection, or none for the connection's end.
    Deliver(Conn, usize, Option<usize>),
    Choose(usize),
    /// The end of the attempt's process, if that still runs.
    End(usize, u32, bool),
    Fault,
    Heal(usize),
    /// A new pod starts, or an agent restarts in its own pod.
    Come(usize, bool),
    /// The kubelet learns that a pod is not wanted any more.
    Remove(usize),
    Operator,
}

struct Simulation {
    seed: u64,
    random: Random,
    world: World,
    now: u64,
    events: BinaryHeap<std::cmp::Reverse<(u64, u64, Event)>>,
    count: u64,
    messages: Vec<Option<Message>>,
    conns: BTreeMap<Conn, [usize; 2]>,
    open: BTreeSet<(Conn, usize)>,
    /// How much faster a clock runs, in parts per million, and where it began.
    clocks: Vec<(i64, u64)>,
    ticks: Vec<Option<u64>>,
    kills: Vec<Option<Time>>,
    cut_since: Vec<u64>,
    faults: u64,
    is_reported: bool,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let size = [2, 3, 5, 8, 16, 64][random.below(6) as usize];
        let policy =
            Policy { restarts: Restarts::OnFailure, backoff_limit: 10_000, interruptions: 10_000, rules: Vec::new() };
        let mut world = World::new(0, Timing::default(), policy, Time(0));
        (world.size, world.members, world.largest) = (size, size, size);
        let mut simulation = Self {
            seed,
            random,
            world,
            now: 0,
            events: BinaryHeap::new(),
            count: 0,
            messages: Vec::new(),
            conns: BTreeMap::new(),
            open: BTreeSet::new(),
            clocks: Vec::new(),
            ticks: Vec::new(),
            kills: Vec::new(),
            cut_since: Vec::new(),
            faults: 0,
            is_reported: std::env::var_os("TRAININGJOB_GANG_SEED").is_some(),
        };
        (0..size).for_each(|seat| simulation.come(seat, None));
        simulation.at(1000, Event::Fault);
        simulation.at(5000, Event::Operator);
        simulation
    }

    fn at(&mut self, after: u64, event: Event) {
        self.count += 1;
        self.events.push(std::cmp::Reverse((self.now + after, self.count, event)));
    }

    fn below(&mut self, end: u64) -> u64 {
        self.random.below(end)
    }

    fn local(&self, i: usize) -> Time {
        let (drift, began) = self.clocks[i];
        Time(began + self.now + (self.now as i64 * drift / 1_000_000 + self.now as i64 / 100) as u64)
    }

    fn is_calm(&self) -> bool {
        self.now >= CALM
    }

    fn come(&mut self, seat: u32, again: Option<usize>) {
        // The clock of a new agent has its own origin, and its node's speed.
        let clock = (self.below(4001) as i64 - 2000, self.below(1_000_000));
        let i = again.unwrap_or(self.clocks.len());
        self.clocks.resize(self.clocks.len().max(i + 1), clock);
        self.ticks.resize(self.clocks.len(), None);
        self.kills.resize(self.clocks.len(), None);
        self.cut_since.resize(self.clocks.len(), 0);
        self.kills[i] = None;
        let local = self.local(i);
        let made = self.world.create(seat, again, local);
        assert_eq!(made, i);
        self.act(i, Input::Tick);
        let after = self.below(1500);
        self.at(after, Event::Dial(i));
    }

    fn act(&mut self, i: usize, input: Input) {
        let (now, local) = (Time(self.now), self.local(i));
        let before = self.world.agents[i].process.as_ref().map(|process| process.attempt);
        let wishes = self.world.act(i, now, local, input);
        self.after(i, before, wishes);
    }

    fn after(&mut self, i: usize, before: Option<u32>, wishes: Vec<Wish>) {
        for wish in wishes {
            match wish {
                Wish::Send(conn, message) => self.send(conn, i, Some(message)),
                Wish::Close(conn) => self.close(conn, i),
            }
        }
        let agent = &self.world.agents[i];
        if let Some(attempt) = agent.process.as_ref().map(|process| process.attempt)
            && before != Some(attempt)
        {
            let after = 5000 + self.below(20_000);
            self.at(after, Event::End(i, attempt, true));
        }
        let kill_at = self.world.kill_at(i);
        if let Some(at) = kill_at.filter(|_| kill_at != self.kills[i]) {
            // The last processes are dead a while after SIGKILL. Half of them need it.
            let left = at.0.saturating_sub(self.now);
            let after = if self.below(2) == 0 { left + self.below(400) } else { self.below(left + 1) };
            let attempt = self.world.agents[i].process.as_ref().map_or(0, |process| process.attempt);
            self.at(after, Event::End(i, attempt, false));
        }
        self.kills[i] = kill_at;
        if self.world.agents[i].choosing.is_some() {
            let after = self.below(3000);
            self.at(after, Event::Choose(i));
        }
        if let Ending::Exited(exit) = self.world.agents[i].end.clone() {
            self.hang_up(i);
            if matches!(exit, Exit::Signalled(_)) && !self.world.agents[i].is_replaced {
                let after = 1000 + self.below(20_000);
                self.at(after, Event::Come(i, false));
            }
        }
        let local = self.local(i);
        if self.world.lives(i)
            && let Some(wake) = self.world.agents[i].gang.wake_at(local)
        {
            let due = self.now + wake.since(local).as_millis() as u64 + 1;
            if self.ticks[i].is_none_or(|planned| planned > due || planned <= self.now) {
                self.ticks[i] = Some(due);
                let late = self.below(20);
                self.at(due - self.now + late, Event::Tick(i));
            }
        }
    }

    #[expect(clippy::needless_pass_by_value, reason = "takes what its callers need no more")]
    fn send(&mut self, conn: Conn, from: usize, message: Option<Message>) {
        let Some(&ends) = self.conns.get(&conn) else { return };
        let to = if ends[0] == from { ends[1] } else { ends[0] };
        if message.is_some() && ends.iter().any(|&i| self.world.agents[i].is_cut) && self.below(3) > 0 {
            return;
        }
        let (is_calm, luck) = (self.is_calm(), self.below(1000));
        let times = match luck {
            _ if is_calm || message.is_none() => 1,
            0..5 => 0,
            5..20 => 2,
            _ => 1,
        };
        for _ in 0..times {
            let slow = if !is_calm && self.below(200) == 0 { 15_000 } else { 5 };
            let after = 1 + self.below(slow);
            self.messages.push(message.clone());
            let index = message.as_ref().map(|_| self.messages.len() - 1);
            self.at(after, Event::Deliver(conn, to, index));
        }
    }

    fn close(&mut self, conn: Conn, by: usize) {
        if self.open.remove(&(conn, by)) {
            self.send(conn, by, None);
        }
    }

    fn hang_up(&mut self, i: usize) {
        let conns: Vec<_> = self.open.iter().filter(|(_, end)| *end == i).map(|(conn, _)| *conn).collect();
        conns.into_iter().for_each(|conn| self.close(conn, i));
    }

    fn dial(&mut self, i: usize) {
        if !self.world.lives(i) || self.world.agents[i].seat == 0 {
            return;
        }
        let again = 100 + self.below(900);
        self.at(again, Event::Dial(i));
        let is_free = !self.open.iter().any(|(_, end)| *end == i);
        let Some(leader) = self.world.leader().filter(|_| is_free) else { return };
        if self.world.agents[i].is_cut || self.world.agents[leader].is_cut || self.below(20) == 0 {
            return;
        }
        let conn = Conn(self.count + 1);
        self.conns.insert(conn, [i, leader]);
        self.open.extend([(conn, i), (conn, leader)]);
        let (member, pod) = (worker(self.world.agents[i].seat), self.world.agents[i].incarnation.pod.clone());
        self.act(leader, Input::Accepted { conn, member, pod });
        self.act(i, Input::Dialed(conn));
    }

    #[expect(clippy::needless_pass_by_value, reason = "takes what its callers need no more")]
    fn happen(&mut self, event: Event) {
        match event {
            Event::Tick(i) => self.act(i, Input::Tick),
            Event::Dial(i) => self.dial(i),
            Event::Deliver(conn, to, index) => {
                let is_cut = self.conns[&conn].iter().any(|&i| self.world.agents[i].is_cut);
                if is_cut {
                    // The message waits for the network, for as long as the connection exists.
                    let after = 500 + self.below(1000);
                    return self.at(after, Event::Deliver(conn, to, index));
                }
                match index {
                    Some(index) if self.open.contains(&(conn, to)) => {
                        if let Some(message) = self.messages[index].clone() {
                            self.act(to, Input::Received(conn, message));
                        }
                    }
                    Some(_) => {}
                    None => {
                        if self.open.remove(&(conn, to)) {
                            self.act(to, Input::Closed(conn));
                        }
                    }
                }
            }
            Event::Choose(i) => {
                let (now, local) = (Time(self.now), self.local(i));
                let before = self.world.agents[i].process.as_ref().map(|process| process.attempt);
                let wishes = self.world.choose(i, now, local);
                self.after(i, before, wishes);
            }
            Event::End(i, attempt, by_itself) => self.end(i, attempt, by_itself),
            Event::Fault if !self.is_calm() => {
                self.fault();
                let pause = [300, 3_000, 30_000, 60_000][self.below(4) as usize];
                let after = self.below(pause);
                self.at(after, Event::Fault);
            }
            Event::Fault => {}
            Event::Heal(i) => {
                Arc::make_mut(&mut self.world.agents[i]).is_cut = false;
                if self.world.agents[i].is_replaced {
                    let after = self.below(20_000);
                    self.at(after, Event::Remove(i));
                }
            }
            Event::Come(i, again) => {
                let agent = &self.world.agents[i];
                // The pod of a living agent is not replaced before its node is known to be lost.
                let is_lost = agent.is_cut && self.now >= self.cut_since[i] + LOST;
                let (seat, is_wanted) = (agent.seat, !agent.is_replaced && (!self.world.lives(i) || is_lost));
                if is_wanted {
                    self.come(seat, again.then_some(i));
                }
            }
            Event::Remove(i) => self.kill(i),
            Event::Operator => {
                let leaders = self.world.agents.iter().filter(|a| a.seat == 0 && !a.is_cut && a.end == Ending::Lives);
                self.world.known =
                    leaders.map(|a| a.gang.memory().history.attempt).max().unwrap_or(0).max(self.world.known);
                if let Some(history) = self.world.published_history().filter(|_| self.below(3) == 0) {
                    (0..self.world.agents.len()).for_each(|i| self.act(i, Input::History(history.clone())));
                }
                let wanted = self.world.wanted();
                (0..self.world.agents.len()).for_each(|i| self.act(i, wanted.clone()));
                self.at(5000, Event::Operator);
            }
        }
    }

    fn end(&mut self, i: usize, attempt: u32, by_itself: bool) {
        let Some(process) = self.world.agents[i].process.as_ref().filter(|process| process.attempt == attempt) else {
            return;
        };
        if by_itself && process.kill_at.is_some() {
            return;
        }
        let is_whole = (0..self.world.attempt.size).all(|seat| self.world.attempt.seats.contains(&seat));
        if by_itself && !(self.is_calm() && is_whole) && self.below(50) > 0 {
            // The program runs on for a while. Sometimes one member finishes while others do not.
            let after = 1000 + self.below(20_000);
            return self.at(after, Event::End(i, attempt, true));
        }
        let outcome = match by_itself {
            true => Outcome::Succeeded,
            // A stop may come too late, or be mistaken for a failure.
            false => [Outcome::Stopped, Outcome::Failed, Outcome::Succeeded][self.below(3) as usize],
        };
        let (now, local) = (Time(self.now), self.local(i));
        let wishes = self.world.end(i, now, local, outcome);
        self.after(i, Some(attempt), wishes);
    }

    fn kill(&mut self, i: usize) {
        if self.world.lives(i) {
            self.world.kill(i);
            self.hang_up(i);
        }
    }

    fn fault(&mut self) {
        self.faults += 1;
        let current: Vec<_> = (0..self.world.agents.len())
            .filter(|&i| self.world.lives(i) && !self.world.agents[i].is_replaced)
            .collect();
        let Some(&any) = current.get(self.below(current.len() as u64) as usize) else { return };
        // The leader is hit more often than by chance.
        let i = self.world.leader().filter(|_| self.below(5) == 0).unwrap_or(any);
        match self.below(10) {
            0 | 1 => {
                if let Some(attempt) = self.world.agents[i].process.as_ref().map(|process| process.attempt) {
                    let (now, local) = (Time(self.now), self.local(i));
                    let wishes = self.world.end(i, now, local, Outcome::Failed);
                    self.after(i, Some(attempt), wishes);
                }
            }
            2 => {
                let attempt = self.world.agents[i].process.as_ref().map_or(0, |process| process.attempt);
                self.act(i, Input::Failing(attempt));
            }
            3 | 4 => {
                self.kill(i);
                let (after, again) = (300 + self.below(20_000), self.below(2) == 0);
                self.at(after, Event::Come(i, again));
            }
            5 => {
                // Cuts off one node or several, for longer or shorter than a replacement takes.
                let many = if self.below(4) == 0 { self.below(current.len() as u64) } else { 0 };
                let time = [3_000, 12_000, 150_000][self.below(3) as usize];
                for i in current.into_iter().take(many as usize).chain([i]) {
                    if self.world.agents[i].is_cut {
                        continue;
                    }
                    Arc::make_mut(&mut self.world.agents[i]).is_cut = true;
                    self.cut_since[i] = self.now;
                    let (heal, replace) = (500 + self.below(time), LOST + self.below(60_000));
                    self.at(heal, Event::Heal(i));
                    self.at(replace, Event::Come(i, false));
                }
            }
            6 => self.act(i, Input::Terminated(15)),
            7 => {
                let conn = self.open.iter().find(|(_, end)| *end == i).map(|(conn, _)| *conn);
                if let Some(conn) = conn {
                    for end in self.conns[&conn] {
                        if self.open.remove(&(conn, end)) {
                            self.act(end, Input::Closed(conn));
                        }
                    }
                }
            }
            8 => self.act(i, Input::Restart("asked for".to_owned())),
            // Never down to one member: no other member could know that it has stopped.
            _ => {
                let members = 2 + self.below(u64::from(self.world.size) - 1);
                self.world.resize(u32::try_from(members).unwrap());
            }
        }
    }

    /// The state of the agents, for debugging one seed.
    fn sketch(&self) -> String {
        if !self.is_reported {
            return String::new();
        }
        let sketch = |(i, agent): (usize, &Arc<super::world::Agent>)| {
            let runs = agent.process.as_ref().map(|p| (p.attempt, p.kill_at.is_some()));
            let (cut, old) = (if agent.is_cut { " cut" } else { "" }, if agent.is_replaced { " old" } else { "" });
            let phase = agent.gang.view(Time(0)).map(|view| format!(" {:?}", view.phase)).unwrap_or_default();
            let (seat, boot, seen) = (agent.seat, agent.incarnation.boot, agent.gang.status().seen);
            format!(
                "[{i}: {seat}/{boot}{cut}{old} seen {seen} runs {runs:?}{}]",
                phase.split(['{', '(']).next().unwrap_or("")
            )
        };
        let living = self.world.agents.iter().enumerate().filter(|(i, _)| self.world.lives(*i)).map(sketch);
        living.collect::<Vec<_>>().join(" ")
    }

    /// Runs until all is over. Returns the number of attempts and faults, and whether the gang succeeded.
    fn run(mut self) -> (u32, u64, bool) {
        while let Some(std::cmp::Reverse((now, _, event))) = self.events.pop() {
            self.now = now;
            let before = self.sketch();
            self.happen(event.clone());
            if self.is_reported && before != self.sketch() {
                println!("{now:7} {event:?}: {}", self.sketch());
            }
            let (seed, size) = (self.seed, self.world.size);
            let again = format!("run it again with TRAININGJOB_GANG_SEED={seed}");
            if let Some(broken) = &self.world.broken {
                panic!("{size} members, {now} ms, {event:?}: {broken}; {again}");
            }
            if self.world.is_over() {
                return (self.world.attempt.number, self.faults, self.world.finish == Some(Finish::Succeeded));
            }
            if now > END {
                let leader = self.world.leader().map(|i| &self.world.agents[i].gang);
                let view = leader.and_then(|gang| gang.view(Time(0))).map(|view| format!("{view:?}"));
                panic!("{size} members come to no end: {view:?}; {again}");
            }
        }
        panic!("nothing happens any more; run it again with TRAININGJOB_GANG_SEED={}", self.seed)
    }
}

/// Takes seconds by default. `TRAININGJOB_GANG_SEEDS` sets the number of seeds. `TRAININGJOB_GANG_SEED` runs that seed
/// and prints what happens.
#[test]
fn no_simulated_seed_breaks_invariants() {
    let number = |name| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    let (first, seeds) = match number("TRAININGJOB_GANG_SEED") {
        Some(seed) => (seed, 1),
        None => (1, number("TRAININGJOB_GANG_SEEDS").unwrap_or(60)),
    };
    let (mut attempts, mut faults, mut succeeded) = (0, 0, 0);
    for seed in first..first + seeds {
        let (number, hits, success) = Simulation::new(seed).run();
        (attempts, faults, succeeded) = (attempts + u64::from(number), faults + hits, succeeded + u64::from(success));
    }
    println!("{seeds} seeds: {faults} faults, {attempts} attempts, {succeeded} gangs succeeded");
}
