//! Trials, and what their search requires of them.

use super::*;

const WHY: &str = "loss ranked 4 of 5 at step 8 (earlyStopping of TuningJob s)";

#[test]
fn trial_stopped_by_its_search_completes() {
    let mut world = World::to_running();
    world.stop = Some(WHY);
    let verdict = world.step();
    assert_eq!(world.condition("Stopping"), ("True", "StoppedBySearch", WHY));
    let delete = Action::DeleteJob { name: "x-training".into(), uid: "job-1".into() };
    assert!(verdict.actions.contains(&delete), "{verdict:?}");
    // The state of its search no longer matters.
    world.stop = None;
    world.see(None, []);
    world.children.pods.clear();
    world.step();
    assert_eq!(world.status.state, Some(State::Completed));
    assert_eq!(world.condition("Succeeded"), ("True", "StoppedBySearch", WHY));
}

#[test]
fn search_stop_completes_unstarted_trial_at_once() {
    let mut world = World::new();
    world.stop = Some(WHY);
    world.step();
    world.step();
    assert_eq!(world.status.state, Some(State::Completed));
    assert_eq!(world.condition("Succeeded").1, "StoppedBySearch");
}

#[test]
fn trial_that_finished_by_itself_reports_completed() {
    let mut world = World::to_running();
    world.stop = Some(WHY);
    world.see(Some(job(1)), [ended(0, 1, 0, 60), ended(1, 1, 0, 60)]);
    world.second = 61;
    world.step();
    assert_eq!(world.condition("Succeeded").1, "Completed");
}

#[test]
fn trial_is_suspended_and_resumed_with_its_search() {
    let mut world = World::to_running();
    world.held = Some("its search, TuningJob s, is suspended");
    world.step();
    assert_eq!(world.condition("Suspended").1, "Suspending");
    world.see(None, []);
    world.children.pods.clear();
    world.step();
    assert_eq!(world.status.state, Some(State::Suspended));
    assert_eq!(world.condition("Suspended"), ("True", "Suspended", "its search, TuningJob s, is suspended"));
    world.held = None;
    let verdict = world.step();
    assert!(verdict.actions.contains(&create(2)), "{verdict:?}");
    assert_eq!(world.condition("Suspended").1, "Resumed");
}
