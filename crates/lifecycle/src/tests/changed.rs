//! A spec that changes while no program runs. Another attempt follows, made from the new spec.

use super::*;

impl World {
    fn change(&mut self, change: impl FnOnce(&mut TrainingJobSpec)) {
        change(&mut self.spec);
        self.generation += 1;
    }
}

fn numbers(world: &World) -> (Option<State>, Option<u32>, Option<u32>) {
    (world.status.state, world.status.attempt, world.status.incarnation)
}

fn deletes(verdict: &Decision) -> bool {
    verdict.actions.iter().any(|action| matches!(action, Action::DeleteJob { .. }))
}

fn creates(verdict: &Decision) -> bool {
    verdict.actions.iter().any(|action| matches!(action, Action::CreateJobs(..)))
}

#[test]
fn failed_job_restarts_with_changed_spec() {
    let mut world = World::to_running();
    world.spec.failure_policy.backoff_limit = Some(0);
    world.fail(1, 60);
    assert_eq!(world.status.state, Some(State::Failed));
    world.second = 100;
    assert!(world.step().actions.iter().all(|action| !action.makes()), "nothing has changed");
    // A field that may change at any time starts nothing.
    world.change(|spec| spec.ttl_seconds_after_finished = Some(10_000));
    world.step();
    assert_eq!(numbers(&world), (Some(State::Failed), Some(1), Some(1)));
    world.change(|spec| spec.image = Some("better".into()));
    let verdict = world.step();
    assert_eq!((numbers(&world), deletes(&verdict)), ((Some(State::Pending), Some(2), Some(2)), true));
    assert_eq!((world.status.restart_count, &world.status.failure_reason), (Some(0), &None), "with a new budget");
    assert_eq!(reasons(&verdict), ["RestartRequested"]);
    world.children = Children::default();
    assert!(creates(&world.step()));
    // The change counts only once, even if the job fails again before it has begun.
    world.see(Some(job(2)), [running(0, 2), running(1, 2)]);
    world.second = 200;
    world.step();
    world.fail(2, 300);
    assert_eq!(world.status.state, Some(State::Failed));
    world.second = 400;
    world.step();
    assert_eq!(world.status.state, Some(State::Failed));
    // A restart that was requested before the change does not restart the new attempt.
    world.asked = Some("one");
    world.change(|spec| spec.image = Some("best".into()));
    world.step();
    assert_eq!(world.status.asked_restart.as_ref().map(|asked| asked.request.as_str()), Some("one"));
}

#[test]
fn unstarted_job_is_recreated_with_changed_spec() {
    let mut world = World::new();
    world.step();
    let waits = |index| ObservedPod { training: Container::Waiting, ..running(index, 1) };
    world.see(Some(job(1)), [waits(0), waits(1)]);
    world.second = 10;
    world.step();
    assert_eq!(world.status.start_time, None, "it has not started: {:?}", world.status);
    world.change(|spec| spec.failure_policy.active_deadline_seconds = Some(1000));
    assert!(!deletes(&world.step()), "a mutable field");
    world.change(|spec| spec.image = Some("better".into()));
    let verdict = world.step();
    assert!(deletes(&verdict) && !creates(&verdict), "{verdict:?}");
    assert_eq!(reasons(&verdict)[0], "SpecChanged");
    assert_eq!(
        (world.status.attempt, world.status.incarnation, world.status.restart_count),
        (Some(2), Some(2), Some(0))
    );
    assert_eq!(world.step().events, [], "once");
    world.children = Children::default();
    assert!(creates(&world.step()));
}

#[test]
fn spec_change_stops_just_started_program_without_cost() {
    let mut world = World::to_running();
    world.change(|spec| spec.args = vec!["other".into()]);
    let verdict = world.step();
    assert!(deletes(&verdict));
    assert_eq!((world.status.restart_count, world.status.disruption_count.unwrap_or(0)), (Some(0), 0));
    assert!(world.status.restarts.is_empty());
}

#[test]
fn suspended_job_resumes_with_changed_spec_in_same_attempt() {
    let mut world = World::to_running();
    world.change(|spec| spec.suspend = true);
    world.step();
    world.children = Children::default();
    world.step();
    assert_eq!(numbers(&world), (Some(State::Suspended), Some(2), Some(2)));
    world.change(|spec| spec.image = Some("better".into()));
    world.step();
    world.change(|spec| spec.suspend = false);
    let verdict = world.step();
    assert!(creates(&verdict) && !reasons(&verdict).contains(&"SpecChanged"), "{verdict:?}");
    assert_eq!((world.status.attempt, world.status.incarnation), (Some(2), Some(2)));
}

#[test]
fn different_digest_of_same_generation_is_not_a_change() {
    // Another version computed the digest differently.
    let mut world = World::to_running();
    let known = world.status.attempt_spec.as_mut().unwrap();
    assert_eq!(known.generation, 1);
    known.digest = "of another version".into();
    assert!(!deletes(&world.step()));
    // A job of a version without a digest has not changed either.
    world.status.attempt_spec = None;
    world.change(|spec| spec.image = Some("better".into()));
    assert!(!deletes(&world.step()));
    assert_eq!(world.status.attempt_spec.as_ref().unwrap().generation, 2);
}
