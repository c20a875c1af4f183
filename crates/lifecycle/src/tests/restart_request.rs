//! Requested restarts.

use super::*;
use observe::ObservedUpkeep;
use serde_json::json;

fn handled(world: &World) -> Option<(&str, u32)> {
    world.status.asked_restart.as_ref().map(|asked| (asked.request.as_str(), asked.attempt))
}

#[test]
fn running_gang_receives_restart_request_once() {
    let mut world = World::to_running();
    world.asked = Some("one");
    let verdict = world.step();
    assert_eq!(reasons(&verdict), ["RestartRequested"]);
    assert_eq!(handled(&world), Some(("one", 2)));
    assert!(verdict.actions.contains(&Action::Ensure), "by the ConfigMap: {:?}", verdict.actions);
    assert_eq!((world.status.attempt, world.status.state), (Some(1), Some(State::Running)), "the leader ends it");
    assert!(world.step().events.is_empty());
    // The leader's restart costs no budget and has no back-off.
    let asked = AttemptEnd {
        disruption: true,
        time: Some(at(20)),
        ran_seconds: 10,
        ..AttemptEnd::new(1, Reason::Restarted, "a restart was asked for")
    };
    let gang = super::gang::gang(2, protocol::gang::GangPhase::Running, vec![asked]);
    world.second = 30;
    world.agent = Some(super::gang::leader(1, gang));
    world.step();
    assert_eq!((world.status.attempt, world.status.restart_count), (Some(2), Some(0)));
    assert_eq!((world.status.disruption_count, &world.status.restarts[0].reason), (None, &Reason::Restarted));
    let verdict = world.fail(1, 60);
    let restarts =
        protocol::attempt::RestartHistory { judged: 2, failures: 1, failures_in_a_row: 1, ..Default::default() };
    let past = GangPast { restarts, ..GangPast::default() };
    assert!(world.status.attempt == Some(3), "{:?}", verdict.events);
    world.see(None, []);
    world.children.pods.clear();
    world.second = 65;
    let verdict = world.step();
    assert!(verdict.actions.contains(&Action::CreateJobs(Incarnation { number: 2, attempt: 3 }, past)), "{verdict:?}");
}

#[test]
fn restart_request_is_satisfied_by_upcoming_start() {
    let mut world = World::new();
    world.asked = Some("copied with the rest of the file");
    assert_eq!(reasons(&world.step()), ["Created"]);
    assert_eq!(handled(&world), Some(("copied with the rest of the file", 1)));
    let mut world = World::to_running();
    world.spec.suspend = true;
    world.asked = Some("one");
    assert!(!reasons(&world.step()).contains(&"RestartRequested"));
    assert!(handled(&world).is_some());
}

#[test]
fn restart_request_gives_failed_job_a_new_budget() {
    let mut world = World::to_running();
    world.spec.failure_policy =
        serde_json::from_value(json!({ "backoffLimit": 0, "activeDeadlineSeconds": 100 })).unwrap();
    world.fail(1, 60);
    assert_eq!(world.status.state, Some(State::Failed));
    let why = world.status.failure_message.clone().unwrap();
    let failed = world.children.clone();
    world.second = 1000;
    world.asked = Some("one");
    let verdict = world.step();
    assert_eq!(reasons(&verdict), ["RestartRequested"]);
    assert_eq!(
        (world.status.state, world.status.attempt, world.status.incarnation),
        (Some(State::Pending), Some(2), Some(2))
    );
    assert_eq!((world.status.restart_count, &world.status.failure_reason), (Some(0), &None));
    assert_eq!((world.condition("Failed").0, &world.status.completion_time), ("False", &None));
    assert!(why.starts_with(&world.status.restarts[0].to_string()), "it can be read: {:?}", world.status.restarts);
    assert!(verdict.actions.iter().any(|action| matches!(action, Action::DeleteJob { .. })), "{verdict:?}");
    assert!(!verdict.actions.iter().any(|action| matches!(action, Action::CreateJobs(..))), "the old one goes first");
    // A second operator, or this one with its earlier observations, decides the same.
    world.children = failed;
    assert!(world.step().events.is_empty());
    world.children = Children::default();
    let verdict = world.step();
    assert!(makes_second(&verdict, [0, 0]), "no back-off, and nothing before it: {verdict:?}");
    // The time between the failure and the request does not count.
    world.see(Some(job(2)), [running(0, 2), running(1, 2)]);
    world.second = 1010;
    world.step();
    assert_eq!(world.status.state, Some(State::Running));
    world.second = 1040;
    world.step();
    assert_eq!(world.status.state, Some(State::Running), "{:?}", world.status.failure_message);
    world.fail(2, 1045);
    assert_eq!(world.status.state, Some(State::Failed), "backoffLimit is 0");
    assert_eq!(world.status.restarts.iter().map(|entry| entry.attempt).collect::<Vec<_>>(), [1, 2]);
    assert!(world.step().events.is_empty(), "what was heeded is not heeded again");
}

/// The same applies to a job that failed without an attempt. Its failure is recorded.
#[test]
fn restart_request_retries_refused_spec_and_records_refusal() {
    let mut world = World::new();
    world.refused = Some("spec.model: is empty".into());
    world.step();
    assert_eq!(world.status.state, Some(State::Failed));
    world.refused = None;
    world.asked = Some("one");
    let verdict = world.step();
    assert!(makes_second(&verdict, [0, 0]), "{verdict:?}");
    assert_eq!(world.status.restarts[0].reason, Reason::InvalidSpec);
    assert_eq!(world.condition("Accepted").0, "True");
}

#[test]
fn restart_request_for_completed_job_is_ignored() {
    let mut world = World::to_running();
    world.see(Some(ObservedJob { complete: true, ..job(1) }), [ended(0, 1, 0, 60), ended(1, 1, 0, 60)]);
    world.second = 61;
    world.step();
    assert_eq!(world.status.state, Some(State::Completed));
    world.asked = Some("one");
    let before = world.status.clone();
    assert_eq!(reasons(&world.step()), ["RestartIgnored"]);
    assert_eq!(handled(&world), Some(("one", 1)));
    world.status.asked_restart = None;
    assert_eq!(world.status, before);
}

/// A restored job that had ended creates nothing, whatever was requested before. A new request restarts a failed job.
#[test]
fn restored_ended_job_stays_ended() {
    let ended = |state: &str, reason: &str| {
        json!({ "state": state, "reason": reason, "message": "exit code 1", "time": at(5) }).to_string()
    };
    for (state, reason) in [(State::Completed, "Completed"), (State::Failed, "ExitCode")] {
        let mut world = World::new();
        world.asked = Some("before");
        world.ended = Some(ended(state.as_str(), reason));
        let verdict = world.step();
        assert!(verdict.actions.is_empty(), "{verdict:?}");
        assert_eq!(world.status.state, Some(state));
        assert_eq!(world.status.completion_time.as_ref().unwrap().0, at(5));
        assert_eq!(world.status.conditions.iter().filter(|c| c.status == "True").count(), 1);
        let before = world.status.clone();
        assert!(world.step().actions.is_empty());
        assert_eq!(world.status, before);
        world.asked = Some("now");
        world.step();
        let expected = if state == State::Failed { State::Pending } else { state };
        assert_eq!(world.status.state, Some(expected));
    }
}

/// The job may still fail or continue. A request made meanwhile waits until that is decided.
#[test]
fn restart_request_waits_until_failure_is_judged() {
    let mut world = World::to_running();
    world.spec.failure_policy = serde_json::from_value(json!({ "backoffLimit": 0 })).unwrap();
    world.asked = Some("one");
    world.fail(1, 60);
    assert_eq!((world.status.state, handled(&world)), (Some(State::Failed), None));
    world.step();
    assert_eq!((world.status.state, handled(&world)), (Some(State::Pending), Some(("one", 2))));
}

#[test]
fn restart_request_rechecks_the_checkpoint() {
    let mut world = World::new();
    let checkpoint = json!({ "resumeFrom": "/checkpoints/a", "storage": { "type": "pvc", "pvcName": "c" } });
    world.spec.checkpoint = serde_json::from_value(checkpoint).unwrap();
    let check = |second, ended| ObservedUpkeep {
        uid: format!("upkeep-{second}"),
        name: "x-upkeep".into(),
        task: "check".into(),
        created: Some(at(second)),
        ended,
        ..ObservedUpkeep::default()
    };
    world.step();
    world.status.state = Some(State::Failed);
    world.status.failure_reason = Some(Reason::CheckpointCorrupted);
    world.children.upkeep = Some(check(0, Some(false)));
    (world.second, world.asked) = (50, Some("one"));
    let verdict = world.step();
    assert!(verdict.actions.iter().any(|action| matches!(action, Action::DeleteJob { .. })), "{verdict:?}");
    assert_eq!(world.status.state, Some(State::Pending), "by what was looked at before nothing is judged");
    world.children.upkeep = None;
    assert!(world.step().actions.contains(&Action::CreateUpkeep(plan::Upkeep::Check)));
    world.children.upkeep = Some(check(60, Some(true)));
    world.step();
    assert_eq!(world.status.checkpoint.as_ref().unwrap().resume_checked, Some(true));
}
