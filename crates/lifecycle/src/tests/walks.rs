//! Random walks: what must hold for each decision, whatever is seen in whatever order.

mod calm;
mod moods;
mod world;

use crate::{Action, Decision, condition_is};
use api::{AttemptEnd, Reason, State, TrainingJobStatus};
use world::World;

/// Events that are published at each look while their cause lasts.
const REPEATED: [&str; 2] = ["NodeLost", "Unkillable"];

/// What must hold for each decision, whatever was seen.
fn check(world: &World, plan: &plan::Plan, verdict: &Decision) -> Result<(), String> {
    let (old, new) = (&world.status, &verdict.status);
    let is = |type_: &str| condition_is(&new.conditions, type_, true).is_some();
    let rule = |holds: bool, words: &str| if holds { Ok(()) } else { Err(words.to_owned()) };
    rule(old.attempt <= new.attempt && old.incarnation <= new.incarnation, "attempt and incarnation only grow")?;
    let is_asked = new.asked_restart != old.asked_restart;
    let ended = |status: &TrainingJobStatus| status.state.is_some_and(State::is_finished);
    rule(!ended(old) || old.state == new.state || is_asked, "what has ended stays so unless a restart is requested")?;
    let is_ending = new.restarts.iter().any(|end| Some(end.attempt) == new.attempt);
    let publishes = |status: &TrainingJobStatus| condition_is(&status.conditions, "ResultPublished", false).is_some();
    let is_over = is_ending || publishes(new);
    rule(new.state != Some(State::Running) || is("Running") || is_over, "a job in state Running has the condition")?;
    let has_result = new.result.is_some() || plan.storage.output.is_none();
    rule(new.state != Some(State::Completed) || has_result, "a job is completed once its result is published")?;
    rule(!publishes(old) || publishes(new) || new.result.is_some(), "a result is published before it is forgotten")?;
    rule(old.result.is_none() || old.result == new.result, "a result that is published stays")?;
    rule(new.state != Some(State::Completed) || is("Succeeded"), "a completed job has succeeded")?;
    rule(new.state != Some(State::Failed) || is("Failed"), "a failed job has failed")?;
    rule(!ended(new) || new.completion_time.is_some(), "an end has a time")?;
    let is_refused = !ended(old) && new.failure_reason == Some(Reason::InvalidSpec);
    rule(!is_refused || new.restarts.is_empty(), "a job that has run does not fail by a spec that is refused")?;
    let goes_on = ["Running", "Restarting", "Suspended"].iter().any(|type_| is(type_));
    rule(!ended(new) || !goes_on, "what has ended does not run, wait or rest")?;
    let attempts: Vec<u32> = new.restarts.iter().map(|end| end.attempt).collect();
    rule(new.restart_count >= old.restart_count || is_asked, "a restart stays counted until one is requested")?;
    rule(attempts.len() <= 10 && attempts.is_sorted_by(|a, b| a < b), "one end for each attempt, the last ten")?;
    for (at, action) in verdict.actions.iter().enumerate() {
        rule(!verdict.actions[..at].contains(action), "each action once")?;
        match action {
            Action::CreateJobs(incarnation, _) => {
                rule(!publishes(new) && new.result.is_none(), "what has succeeded does not run again")?;
                let is_old = |number: u32| number < incarnation.number;
                let lives = world.children.pods.values().any(|pod| is_old(pod.incarnation) && pod.is_alive());
                let is_there = world.children.jobs.values().any(|job| is_old(job.incarnation));
                rule(!lives && !is_there, "nothing of an earlier incarnation is left when the next one is made")?;
                rule(!world.refused, "no Job is made of a spec that is refused")?;
                rule(Some(incarnation.number) == new.incarnation, "the Jobs are those of the status")?;
            }
            Action::DeleteOwner => {
                rule(ended(new) && plan.policy.ttl_seconds.is_some(), "only the TTL deletes a job")?;
            }
            Action::ReleasePod { uid, force: true, .. } => {
                let pod = &world.children.pods[uid];
                let is_given_up =
                    |end: &AttemptEnd| end.reason == Reason::Unkillable && end.pod.as_ref() == Some(&pod.name);
                let reported = world.agent.as_ref().and_then(|agent| agent.status.gang.as_ref());
                let mut reported = reported.into_iter().flat_map(|gang| &gang.ended);
                let by_agent = reported.any(|end| end.reason == Reason::Unkillable);
                let filed = old.restarts.iter().chain(&new.restarts).any(is_given_up);
                let is_lost = pod.unreachable.is_some() || filed || by_agent;
                rule(is_lost, "a pod whose node answers is not deleted by force")?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// `WALK_STEPS` steps of walks that begin with `WALK_SEED`. After every `WALK_CALM_EVERY` steps it checks that the job
/// recovers.
#[test]
fn invariants_hold_on_random_walks() {
    let number = |name: &str, default: u64| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default);
    let (steps, seed, every) = (number("WALK_STEPS", 10_000), number("WALK_SEED", 1), number("WALK_CALM_EVERY", 50));
    let (mut taken, mut walk) = (0, 0);
    while taken < steps {
        walk += 1;
        let mut world = World::new(seed.wrapping_mul(1_000_003).wrapping_add(walk));
        for _ in 0..200 {
            world.change();
            let plan = world.plan();
            let decide = |status: &TrainingJobStatus| world.decide(&plan, status);
            let verdict = decide(&world.status);
            let stated = |wrong: &str| {
                let status = serde_json::to_string(&world.status).unwrap();
                format!("{wrong}: walk {walk} of seed {seed}, second {}, {verdict:?} from {status}", world.second)
            };
            check(&world, &plan, &verdict).unwrap_or_else(|wrong| panic!("{}", stated(&wrong)));
            let second = decide(&verdict.status);
            let third = decide(&second.status);
            assert!(second.status == third.status, "{}", stated("a decision on its own result comes to rest"));
            let news = third.events.iter().filter(|event| !REPEATED.contains(&event.reason)).count();
            assert_eq!(news, 0, "{}", stated(&format!("nothing is told twice, {:?}", third.events)));
            taken += 1;
            world.status = verdict.status;
            if world.acts(&verdict.actions) {
                break;
            }
            if taken % every == 0 {
                let stuck = |words| format!("a job comes out: walk {walk} of seed {seed}, after {taken}: {words}");
                world.clone().comes_out().unwrap_or_else(|words| panic!("{}", stuck(words)));
            }
        }
    }
}
