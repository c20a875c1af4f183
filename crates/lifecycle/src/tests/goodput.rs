//! The share of a job's time that became training.

use super::*;
use api::CheckpointStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

fn saved(world: &mut World, second: i64) {
    let checkpoint = CheckpointStatus { last_checkpoint_time: Some(Time(at(second))), ..CheckpointStatus::default() };
    world.status.checkpoint = Some(checkpoint);
}

/// Programs start at 5. The operator sees all of them run at 10, and worker 1 fails at 100.
#[test]
fn time_since_last_checkpoint_is_lost() {
    for (checkpoint, lost) in [(None, 95), (Some(70), 30), (Some(2), 95), (Some(105), 0)] {
        let mut world = World::to_running();
        if let Some(second) = checkpoint {
            saved(&mut world, second);
        }
        world.fail(1, 100);
        let (ran, gone) = (world.status.running_seconds, world.status.lost_seconds);
        assert_eq!((ran, gone.unwrap_or(0)), (Some(90), lost), "{checkpoint:?}");
        assert_eq!(world.status.goodput, None, "it has not ended");
        world.step();
        assert_eq!((world.status.running_seconds, world.status.lost_seconds), (ran, gone), "counted once");
    }
}

#[test]
fn ended_job_reports_its_goodput() {
    let mut world = World::to_running();
    saved(&mut world, 80);
    world.fail(1, 100);
    world.see(None, []);
    world.children.pods.clear();
    world.second = 105;
    world.step();
    let later = |index| ObservedPod { training: Container::Running { since: Some(at(110)) }, ..running(index, 2) };
    world.see(Some(job(2)), [later(0), later(1)]);
    world.second = 115;
    world.step();
    assert_eq!(world.status.state, Some(State::Running));
    assert_eq!(goodput(&world.status, at(205)).map(|share| (share * 200.0).round()), Some(160.0));
    world.see(Some(ObservedJob { complete: true, ..job(2) }), [ended(0, 2, 0, 205), ended(1, 2, 0, 205)]);
    world.second = 205;
    world.step();
    // Attempt 1 ran 90 s, of which 20 s are lost, and attempt 2 ran 90 s, in 200 s.
    assert_eq!((world.status.running_seconds, world.status.lost_seconds), (Some(180), Some(20)));
    assert_eq!(world.status.goodput.as_deref(), Some("80%"));
    let before = world.status.clone();
    world.second = 500;
    world.step();
    assert_eq!(world.status, before);
}

#[test]
fn failed_job_loses_unsaved_time() {
    let mut world = World::to_running();
    world.spec.failure_policy.backoff_limit = Some(0);
    saved(&mut world, 55);
    world.fail(1, 105);
    assert_eq!((world.status.state, world.status.lost_seconds), (Some(State::Failed), Some(50)));
    assert_eq!(world.status.goodput.as_deref(), Some("45%"));
    // The lost time does not count again when the job restarts.
    world.asked = Some("one");
    world.second = 1105;
    world.step();
    assert_eq!((world.status.lost_seconds, world.status.goodput.as_deref()), (Some(50), None));
    assert_eq!(goodput(&world.status, at(5000)).map(|share| (share * 100.0).round()), Some(45.0), "nobody's time");
}
