//! Gangs whose size changes.

use super::gang::{gang, leader};
use super::*;
use protocol::gang::{GangPhase, GangStatus};
use serde_json::json;
use std::num::NonZeroU16;

fn size(world: &World) -> (u16, u16, bool) {
    let elastic = world.status.elastic.as_ref().unwrap();
    (elastic.workers, elastic.largest, elastic.since.is_some())
}

fn job_of(pods: u16) -> ObservedJob {
    ObservedJob { parallelism: Some(pods.into()), ..job(1) }
}

fn scale(pods: u16) -> Action {
    Action::ScaleJob { name: "x-training".into(), uid: "job-1".into(), pods }
}

fn nudge(size: u16) -> Action {
    Action::NudgePod { name: "x-training-0-abcde".into(), uid: "pod-1-0".into(), size }
}

/// The leader, whose node has received this size.
fn knows(size: u16) -> ObservedPod {
    ObservedPod { gang_size: Some(size), ..running(0, 1) }
}

fn answer(attempt: u32, workers: u32, phase: GangPhase) -> AgentAnswer {
    let resized = |attempt| AttemptEnd {
        disruption: true,
        time: Some(at(20)),
        ran_seconds: 10,
        ..AttemptEnd::new(attempt, Reason::Resized, "the gang goes on with others")
    };
    let gang = gang(attempt, phase, (1..attempt).map(resized).collect());
    leader(1, GangStatus { workers, ..gang })
}

fn answered_at(second: i64, answer: AgentAnswer) -> AgentAnswer {
    AgentAnswer { time: at(second), ..answer }
}

fn unplaced(index: u32) -> ObservedPod {
    let words = WaitingState { reason: "Unschedulable".into(), message: "0/3 nodes are available".into() };
    ObservedPod { unschedulable: Some(Box::new(words)), ..pod(index, 1) }
}

fn elastic(workers: u16) -> World {
    let mut world = World::new();
    world.spec.num_workers = NonZeroU16::new(workers);
    world.spec.elastic = Some(serde_json::from_value(json!({ "minWorkers": 2, "maxWorkers": 8 })).unwrap());
    world.step();
    world
}

/// A gang that runs with all of its workers.
fn runs(workers: u16) -> World {
    let mut world = elastic(workers);
    world.see(Some(job_of(workers)), (0..workers.into()).map(|index| running(index, 1)));
    world.agent = Some(answer(1, workers.into(), GangPhase::Running));
    world.second = 10;
    world.step();
    assert_eq!((world.status.state, size(&world)), (Some(State::Running), (workers, workers, false)));
    world
}

#[test]
fn gang_grows_when_all_new_workers_run() {
    let mut world = runs(2);
    world.spec.num_workers = NonZeroU16::new(4);
    let verdict = world.step();
    assert_eq!((verdict.actions, verdict.events), (vec![Action::Ensure, scale(4)], vec![]));
    world.see(Some(job_of(4)), [running(2, 1), placed(3, 1)]);
    assert_eq!(world.step().actions, [Action::Ensure]);
    assert_eq!((world.status.state, size(&world).0), (Some(State::Running), 2), "it is not disturbed meanwhile");
    world.see(Some(job_of(4)), [running(3, 1)]);
    let verdict = world.step();
    assert_eq!((reasons(&verdict), size(&world)), (vec!["Resized"], (4, 4, false)));
    assert_eq!(verdict.events[0].note, "from 2 workers to 4: all 4 workers are there");
    assert!(!verdict.actions.contains(&nudge(4)), "nobody can read it yet");
    assert_eq!(world.step().actions, [Action::Ensure, nudge(4)]);
    assert_eq!(world.step().actions, [Action::Ensure, nudge(4)], "until it is seen: nobody may have done it");
    world.see(Some(job_of(4)), [knows(4)]);
    assert_eq!(world.step().actions, [Action::Ensure]);
    world.agent = Some(answer(2, 4, GangPhase::Running));
    world.second = 30;
    let verdict = world.step();
    assert!(reasons(&verdict).contains(&"Restarting") && verdict.events.iter().all(|event| !event.warning));
    assert_eq!((world.status.attempt, world.status.restart_count), (Some(2), Some(0)));
    assert_eq!(world.status.restarts[0].reason, Reason::Resized);
}

#[test]
fn surplus_workers_are_removed_once_no_attempt_needs_them() {
    let mut world = runs(4);
    world.spec.num_workers = NonZeroU16::new(2);
    let verdict = world.step();
    assert_eq!((reasons(&verdict), size(&world)), (vec!["Resized"], (2, 4, false)));
    assert_eq!((verdict.actions, verdict.requeue), (vec![Action::Ensure], Some(std::time::Duration::from_secs(1))));
    assert_eq!(world.step().actions, [Action::Ensure, nudge(2)]);
    world.see(Some(job_of(4)), [knows(2)]);
    world.agent = Some(answer(1, 4, GangPhase::Stopping));
    assert_eq!(world.step().actions, [Action::Ensure]);
    world.agent = Some(answered_at(30, answer(2, 2, GangPhase::Running)));
    assert_eq!(world.step().actions, [Action::Ensure, scale(2)]);
    // These workers end, and neither the Job nor the gang has failed because of that.
    let going = |index| ObservedPod { deletion: Some(at(40)), tracked: true, ..running(index, 1) };
    world.see(Some(job_of(2)), [going(2), going(3)]);
    let verdict = world.step();
    let release = |index: u32| Action::ReleasePod {
        name: format!("x-training-{index}-abcde"),
        uid: format!("pod-1-{index}"),
        force: false,
    };
    assert_eq!(verdict.actions, [Action::Ensure, release(2), release(3)]);
    let gone = |index| ObservedPod { gone: true, ended: Some(false), ..going(index) };
    world.see(Some(job_of(2)), [gone(2), gone(3)]);
    assert_eq!(world.step().actions, [Action::Ensure]);
    assert_eq!((world.status.state, world.status.workers.unwrap().desired), (Some(State::Running), 2));
    world.second = 60;
    world.see(Some(job_of(2)), [ended(0, 1, 0, 59), ended(1, 1, 0, 59)]);
    world.step();
    assert_eq!((world.status.state, world.status.workers.unwrap().succeeded), (Some(State::Completed), 2));
}

/// The leader's last report may be older than the attempt that runs now.
#[test]
fn surplus_workers_stay_until_leader_confirms_new_size() {
    for (old, phase) in [(4, GangPhase::Gathering), (1, GangPhase::Running), (1, GangPhase::Gathering)] {
        let mut world = runs(4);
        world.spec.num_workers = NonZeroU16::new(1);
        world.spec.elastic = Some(serde_json::from_value(json!({ "minWorkers": 1, "maxWorkers": 8 })).unwrap());
        world.agent = Some(answer(1, old, phase));
        world.step();
        world.second = 11;
        assert!(!world.step().actions.contains(&scale(1)), "{phase:?} with {old}, before");
        // The leader does not know of the new size yet.
        world.agent = Some(answered_at(11, answer(1, 4, phase)));
        assert!(!world.step().actions.contains(&scale(1)), "{phase:?} with four");
        world.agent = Some(answered_at(11, answer(1, 1, phase)));
        assert!(world.step().actions.contains(&scale(1)), "{phase:?} with one");
    }
}

/// The API server does not know the bounds of a template.
#[test]
fn size_out_of_bounds_is_ignored() {
    let mut world = runs(2);
    world.spec.num_workers = NonZeroU16::new(100);
    world.refused = Some("spec.numWorkers is 100".into());
    let verdict = world.step();
    assert_eq!((verdict.actions, size(&world)), (vec![Action::Ensure], (2, 2, false)));
    assert_eq!(
        (world.status.state, world.condition("Accepted").1),
        (Some(State::Running), "InvalidSpec"),
        "what runs goes on"
    );
    world.spec.num_workers = NonZeroU16::new(4);
    world.refused = None;
    assert_eq!(world.step().actions, [Action::Ensure, scale(4)]);
}

/// No agent can be queried.
#[test]
fn surplus_workers_are_removed_after_timeout_without_agent() {
    let mut world = runs(4);
    world.agent = None;
    world.spec.num_workers = NonZeroU16::new(2);
    world.step();
    let verdict = world.step();
    assert_eq!((verdict.requeue, size(&world).0), (Some(std::time::Duration::from_secs(180)), 2));
    world.second = 189;
    assert!(!world.step().actions.contains(&scale(2)));
    world.second = 190;
    assert!(world.step().actions.contains(&scale(2)));
}

#[test]
fn gang_runs_without_unschedulable_workers_and_adds_them_later() {
    let mut world = elastic(4);
    world.see(Some(job_of(4)), [running(0, 1), running(1, 1), running(2, 1), unplaced(3)]);
    world.second = 10;
    let verdict = world.step();
    assert_eq!((verdict.requeue, size(&world)), (Some(std::time::Duration::from_secs(60)), (4, 4, true)));
    assert_eq!(world.condition("Scheduled").1, "Unschedulable");
    world.second = 69;
    world.step();
    assert_eq!(size(&world), (4, 4, true));
    world.second = 70;
    let verdict = world.step();
    assert_eq!((reasons(&verdict)[0], size(&world)), ("Resized", (3, 4, false)));
    assert!(
        verdict.events[0].warning && verdict.events[0].note.starts_with("from 4 workers to 3: only 3 of 4 workers")
    );
    world.agent = Some(answer(1, 3, GangPhase::Running));
    world.step();
    assert_eq!(world.status.state, Some(State::Running));
    let words = "the gang is of 3 of 4 workers by now, each of which has a node; worker 3: 0/3 nodes are available";
    assert_eq!(world.condition("Scheduled"), ("True", "Scheduled", words));
    assert_eq!(world.status.workers.unwrap().pending, 1);
    // Room becomes free.
    world.see(Some(job_of(4)), [running(3, 1)]);
    assert_eq!((reasons(&world.step()), size(&world)), (vec!["Resized"], (4, 4, false)));
}

#[test]
fn gang_below_min_workers_waits() {
    let mut world = elastic(4);
    world.see(Some(job_of(4)), [running(0, 1), unplaced(1), unplaced(2), unplaced(3)]);
    for second in [10, 100, 1000] {
        world.second = second;
        assert_eq!(world.step().actions, [Action::Ensure]);
        assert_eq!((world.status.state, size(&world)), (Some(State::Pending), (4, 4, false)));
    }
}

/// Worker 1 finds no room and worker 3 has some.
#[test]
fn last_worker_makes_room_for_lower_index() {
    let mut world = elastic(4);
    world.see(Some(job_of(4)), [running(0, 1), unplaced(1), running(2, 1), running(3, 1)]);
    world.second = 10;
    world.step();
    world.second = 70;
    let verdict = world.step();
    assert_eq!((size(&world).0, &verdict.actions[..]), (3, &[Action::Ensure, scale(3)][..]));
    world.children.pods.clear();
    world.see(Some(job_of(3)), [running(0, 1), unplaced(1), running(2, 1)]);
    assert!(!world.step().actions.iter().any(|action| matches!(action, Action::ScaleJob { .. })));
    world.see(Some(job_of(3)), [running(1, 1)]);
    assert!(world.step().actions.contains(&scale(4)), "the fourth waits for room");
    assert_eq!(size(&world), (3, 4, false));
}

/// Worker 0 finds no room, so no worker leads yet, and the pod of worker 3 goes to make room. That is no loss, neither
/// while another pod waits in its place nor when that pod is taken in.
#[test]
fn pod_removed_to_make_room_is_not_a_loss_without_leader() {
    let mut world = elastic(4);
    world.see(Some(job_of(4)), [unplaced(0), running(1, 1), running(2, 1), running(3, 1)]);
    world.second = 10;
    world.step();
    world.second = 70;
    assert!(world.step().actions.contains(&scale(3)));
    world.second = 72;
    let gone = ObservedPod { gone: true, deletion: Some(at(71)), ..running(3, 1) };
    world.see(Some(job_of(4)), [gone, ObservedPod { uid: "another".into(), created: Some(at(72)), ..unplaced(3) }]);
    world.step();
    assert_eq!((size(&world).0, world.status.restart_count, world.status.attempt), (3, Some(0), Some(1)));
    world.second = 80;
    world.see(
        Some(job_of(4)),
        [running(0, 1), ObservedPod { uid: "another".into(), created: Some(at(72)), ..running(3, 1) }],
    );
    world.step();
    assert_eq!((size(&world).0, world.status.restart_count, world.status.attempt), (4, Some(0), Some(1)));
}

/// The last answer of a lost leader says that the gang runs, and no agent is queried while a worker has no node.
#[test]
fn stale_answer_does_not_prevent_shrinking() {
    for lost in [0, 3] {
        let mut world = runs(4);
        world.children.pods.retain(|_, pod| pod.index != lost);
        let again = ObservedPod { uid: "again".into(), created: Some(at(20)), ..unplaced(lost) };
        world.see(Some(job_of(4)), [again]);
        world.second = 20;
        world.step();
        world.second = 80;
        assert!(world.step().actions.contains(&scale(3)) == (lost == 0));
        assert_eq!(size(&world), (3, 4, false), "without worker {lost}");
    }
}

#[test]
fn gang_grows_partially_after_a_while() {
    let mut world = runs(2);
    world.spec.num_workers = NonZeroU16::new(4);
    world.see(Some(job_of(4)), [running(2, 1), unplaced(3)]);
    world.step();
    assert_eq!(size(&world), (2, 2, true));
    world.second = 70;
    world.step();
    assert_eq!(size(&world), (3, 3, false));
}

#[test]
fn succeeded_gang_completes_without_pending_workers() {
    let mut world = runs(2);
    world.spec.num_workers = NonZeroU16::new(3);
    world.see(Some(job_of(3)), [unplaced(2)]);
    world.step();
    world.see(Some(job_of(3)), [ended(0, 1, 0, 50), ended(1, 1, 0, 50)]);
    world.second = 51;
    world.step();
    assert_eq!(world.status.state, Some(State::Completed));
    assert_eq!(world.step().actions, [scale(2)]);
}

/// On another node a worker waits that has no process of the gang to stop.
#[test]
fn standby_does_not_prove_that_lost_worker_stopped() {
    let mut world = runs(2);
    world.spec.num_workers = NonZeroU16::new(3);
    world.see(Some(job_of(3)), [running(2, 1)]);
    world.status.elastic.as_mut().unwrap().workers = 1;
    world.agent = Some(AgentAnswer { failing_since: Some(at(11)), ..answer(1, 1, GangPhase::Running) });
    world.spec.num_workers = NonZeroU16::new(1);
    world.see(Some(job_of(1)), [ObservedPod { unreachable: Some(at(20)), ..running(0, 1) }]);
    world.second = 500;
    let verdict = world.step();
    assert!(!verdict.actions.iter().any(|action| matches!(action, Action::ReleasePod { .. })), "{verdict:?}");
}

/// Its gang runs without waiting for it.
#[test]
fn standby_on_lost_node_is_replaced() {
    let mut world = runs(2);
    world.spec.num_workers = NonZeroU16::new(3);
    let lost = ObservedPod { unreachable: Some(at(20)), deletion: Some(at(30)), end_by: Some(at(90)), ..running(2, 1) };
    world.see(Some(job_of(3)), [lost]);
    world.second = 200;
    let force = Action::ReleasePod { name: "x-training-2-abcde".into(), uid: "pod-1-2".into(), force: true };
    assert!(world.step().actions.contains(&force));
    assert_eq!(world.status.state, Some(State::Running));
}

#[test]
fn new_incarnation_requests_full_size() {
    let mut world = elastic(4);
    world.see(Some(job_of(4)), [running(0, 1), running(1, 1), running(2, 1), unplaced(3)]);
    world.step();
    world.second = 70;
    world.step();
    assert_eq!(size(&world).0, 3);
    world.spec.suspend = true;
    world.step();
    assert_eq!(size(&world), (4, 4, false));
}

fn any_worker() -> impl Strategy<Value = ObservedPod> {
    let state = prop_oneof![
        Just(unplaced as fn(u32) -> ObservedPod),
        Just((|index| placed(index, 1)) as fn(u32) -> ObservedPod),
        Just((|index| running(index, 1)) as fn(u32) -> ObservedPod),
        Just((|index| ended(index, 1, 0, 20)) as fn(u32) -> ObservedPod),
        Just((|index| ended(index, 1, 143, 20)) as fn(u32) -> ObservedPod),
    ];
    let any = (0..6u32, state, any::<[bool; 4]>());
    any.prop_map(|(index, make, [gone, going, silent, tracked])| {
        let (deletion, unreachable) = (going.then(|| at(20)), silent.then(|| at(15)));
        ObservedPod { unreachable, deletion, tracked, gone, ..make(index) }
    })
}

fn any_answer() -> impl Strategy<Value = Option<AgentAnswer>> {
    let phases = [GangPhase::Gathering, GangPhase::Running, GangPhase::Stopping, GangPhase::Over];
    proptest::option::of(
        (1..4u32, 0..6u32, 0..4usize).prop_map(move |(attempt, n, phase)| answer(attempt, n, phases[phase])),
    )
}

proptest! {
    /// Whatever is seen, the gang is never larger than requested and never made smaller than its minimum. The Job is
    /// never larger than the request nor smaller than the gang. A decision repeated on its own result settles.
    #[test]
    fn no_observation_leads_to_invalid_gang_size(
        steps in proptest::collection::vec(
            (2..6u16, 1..6u16, proptest::collection::vec(any_worker(), 0..6), any_answer(), 0..100i64),
            1..12,
        )
    ) {
        let mut world = elastic(4);
        for (workers, pods, seen, agent, later) in steps {
            let before = size(&world).0;
            world.spec.num_workers = NonZeroU16::new(workers);
            world.agent = agent;
            world.second += later;
            world.children.pods.clear();
            world.see(Some(job_of(pods)), seen);
            let verdict = world.step();
            if world.status.state.is_some_and(State::is_finished) {
                break;
            }
            let (now, largest, _) = size(&world);
            prop_assert!(now >= 2 && now <= workers.max(before) && largest >= now, "{now} of {workers}, once {largest}");
            for action in &verdict.actions {
                if let Action::ScaleJob { pods: wanted, .. } = action {
                    prop_assert!(*wanted != pods && (now.min(workers)..=workers).contains(wanted), "{verdict:?}");
                }
            }
            world.step();
            let settled = world.step().status;
            prop_assert_eq!(&settled, &world.step().status);
        }
    }
}
