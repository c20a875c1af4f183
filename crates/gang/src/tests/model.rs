//! Every interleaving of three members and two faults.
//!
//! One step of time is a second. Everything that can be delivered is delivered within the step in which it was sent. A
//! longer delay is a fault: a member is cut off, and its pending messages arrive late or not at all. How long a choice,
//! a program or a pod's return takes is left open.
//!
//! Two indistinguishable orders count as one. The leader's messages arrive at once. The leader cannot know yet what a
//! member does while a message is in transit, so that may as well have happened before. A member's message without news
//! arrives at once too.

use super::super::Exit;
use super::super::message::Finish;
use super::super::{Input, Timing};
use super::state::{FOLLOWER, Fault, NOW, State, Step};
use super::world::{Ending, Random, World, seconds};
use failure::restart::{INTERRUPTIONS, Policy};
use protocol::gang::Restarts;
use stateright::{Checker, Model, Property};

const SUCCEEDS: &str = "a gang succeeds";
const FAILS: &str = "a gang fails";

/// The model that is explored.
struct Gangs {
    faults: u32,
    /// One of this many states is followed to its end.
    sample: u64,
    /// The first attempt runs already.
    runs: bool,
}

/// Three agents at their start, or when the first attempt runs.
pub fn three(faults: u32, runs: bool) -> State {
    let timing = Timing {
        beat: seconds(1),
        lease: seconds(3),
        reconnect: seconds(1),
        farewell: seconds(1),
        short_grace: seconds(1),
        grace: seconds(2),
        margin: seconds(0),
        linger: seconds(3),
    };
    let policy =
        Policy { restarts: Restarts::OnFailure, backoff_limit: 1, interruptions: INTERRUPTIONS, rules: Vec::new() };
    let world = World::new(3, timing, policy, NOW);
    let mut state = State { world, pipes: Vec::new(), faults, is_watched: faults > 2 };
    (0..3).for_each(|i| state.input(i, Input::Tick));
    if runs {
        state.start();
    }
    state
}

impl Model for Gangs {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![three(self.faults, self.runs)]
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
            let goes = match &agent.end {
                Ending::Lives => state.is_given_up(i),
                Ending::Killed | Ending::Exited(Exit::Signalled(_) | Exit::Displaced) => true,
                Ending::Exited(Exit::Succeeded | Exit::Failed(_)) => false,
            };
            if goes && !agent.is_replaced {
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
                // Never down to one member: no other member could know that it has stopped.
                fault(Fault::Resize(i, if state.world.members == 3 { 2 } else { 3 }));
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
        let failed =
            |_: &Self, state: &State| matches!(&state.world.finish, Some(Finish::Failed(_))) && state.world.is_over();
        let succeeded =
            |_: &Self, state: &State| state.world.finish == Some(Finish::Succeeded) && state.world.is_over();
        vec![
            Property::always("the rules hold", |_, state: &State| state.world.broken.is_none()),
            Property::always("it comes to an end when faults stop", converges),
            Property::sometimes(SUCCEEDS, succeeded),
            Property::sometimes(FAILS, failed),
        ]
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|number| number.parse().ok())
}

fn check(model: Gangs, most: usize) {
    let faults = model.faults;
    let checker = model.checker().threads(1).target_state_count(most).spawn_dfs().join();
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    println!("{faults} faults: {states} states, {} transitions, depth {depth}", checker.state_count());
    let mut discoveries = checker.discoveries();
    let succeeds = discoveries.remove(SUCCEEDS).is_some();
    discoveries.remove(FAILS);
    assert!(succeeds || most < usize::MAX, "no gang ever succeeds, so the model is wrong");
    if let Some((name, path)) = discoveries.into_iter().next() {
        let last = path.last_state();
        let why = last.world.broken.clone().or_else(|| last.converges().err());
        let steps: Vec<_> = path.clone().into_actions();
        panic!("broken: {name}: {why:?}\nafter {steps:?}");
    }
}

/// Takes seconds by default. `TRAININGJOB_MODEL_FAULTS` asks for all interleavings of that many faults once the first
/// attempt runs, or from the very start with `TRAININGJOB_MODEL_START`. The test gives up at
/// `TRAININGJOB_MODEL_STATES`.
#[test]
fn no_interleaving_breaks_invariants() {
    let Some(faults) = number("TRAININGJOB_MODEL_FAULTS") else {
        check(Gangs { faults: 0, sample: 1, runs: false }, usize::MAX);
        check(Gangs { faults: 1, sample: 64, runs: true }, 60_000);
        return;
    };
    let sample = number("TRAININGJOB_MODEL_SAMPLE").unwrap_or(100);
    let runs = std::env::var_os("TRAININGJOB_MODEL_START").is_none();
    let most = number("TRAININGJOB_MODEL_STATES").map_or(usize::MAX, |most| most as usize);
    check(Gangs { faults: faults as u32, sample, runs }, most);
}

/// Random walks go deeper than all interleavings can.
#[test]
fn no_random_walk_breaks_invariants() {
    let first = number("TRAININGJOB_WALK_SEED");
    let walks = if first.is_some() { 1 } else { number("TRAININGJOB_WALKS").unwrap_or(200) };
    let (first, faults) = (first.unwrap_or(1), number("TRAININGJOB_WALK_FAULTS").unwrap_or(3) as u32);
    let mut most = (0, 0);
    for seed in first..first + walks {
        let model = Gangs { faults, sample: 1, runs: false };
        let mut random = Random(seed);
        let mut state = model.init_states().remove(0);
        let mut taken = vec![];
        for _ in 0..1000 {
            let mut steps = vec![];
            model.actions(&state, &mut steps);
            // Faults are rare, because otherwise they would all occur at once.
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
            let broken = if random.below(20) == 0 { broken.or_else(|| state.converges().err()) } else { broken };
            assert!(broken.is_none(), "TRAININGJOB_WALK_SEED={seed} breaks a rule: {broken:?} after {taken:?}");
        }
        most = (most.0.max(state.world.attempt.number), most.1.max(state.world.boots));
    }
    println!("{walks} walks: at most {} attempts and {} agents", most.0, most.1);
}
