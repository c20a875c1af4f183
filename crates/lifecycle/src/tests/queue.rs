//! A gang of several roles in a queue. Its one Workload decides when its Jobs are suspended and resumed.

use super::*;
use api::{RoleSpec, Scheduling};
use observe::ObservedWorkload;

const PS: RoleName = RoleName::literal("ps");

fn world() -> World {
    let mut world = World::new();
    world.spec.framework = Some(api::Framework::None);
    world.spec.roles = vec![RoleSpec { name: "ps".into(), ..RoleSpec::default() }];
    world.spec.scheduling = Scheduling { queue: Some("team".into()), ..Scheduling::default() };
    world.spec.checkpoint.enabled = Some(false);
    world
}

fn workload() -> ObservedWorkload {
    ObservedWorkload { uid: "w".into(), name: "x-w".into(), ..ObservedWorkload::default() }
}

/// The Jobs of both roles, with this state of suspension.
fn jobs(world: &mut World, suspend: bool, taken_note: bool) {
    let of = |role: RoleName| {
        let name = if role.is_worker() { "x-training".into() } else { format!("x-{role}") };
        ObservedJob { role, name, suspend, suspended_by_queue: taken_note, uid: format!("{role}-1"), ..job(1) }
    };
    world.children.jobs = [PS, RoleName::WORKER].map(|role| (role, Box::new(of(role)))).into();
}

fn pods(world: &mut World, make: fn(u32, u32) -> ObservedPod) {
    let ps = make(0, 1);
    let ps = ObservedPod { role: PS, uid: format!("ps-{}", ps.uid), name: "x-ps-0-abcde".into(), ..ps };
    world.children.pods = [make(0, 1), make(1, 1), ps].map(|pod| (pod.uid.clone(), Box::new(pod))).into();
}

fn held(name: &str, role: &str) -> Action {
    Action::SuspendJob { name: name.into(), uid: format!("{role}-1") }
}

fn let_go(name: &str, role: RoleName) -> Action {
    Action::UnsuspendJob { name: name.into(), uid: format!("{role}-1"), role }
}

fn to_running() -> World {
    let mut world = world();
    world.step();
    jobs(&mut world, false, false);
    pods(&mut world, running);
    world.children.workload = Some(ObservedWorkload { admitted: true, reserved: true, pods_ready: true, ..workload() });
    world.second = 10;
    world.step();
    assert_eq!(world.status.state, Some(State::Running), "{:?}", world.status.conditions);
    world
}

/// The operator may die after each write. The next one finds what remains to be done.
#[test]
fn queued_gang_waits_and_starts_as_one() {
    let mut world = world();
    assert_eq!(world.step().actions, [Action::Ensure, create(1)]);
    jobs(&mut world, true, true);
    assert_eq!(world.step().actions, [Action::Ensure, Action::EnsureWorkload]);
    assert_eq!((world.status.state, world.condition("Scheduled").1), (Some(State::Pending), "Queued"));

    world.children.workload = Some(ObservedWorkload { words: "insufficient quota".into(), ..workload() });
    assert_eq!(world.step().actions, [Action::Ensure]);
    let (_, _, words) = world.condition("Scheduled");
    assert!(words.ends_with("until Kueue has room for all of them: insufficient quota"), "{words}");

    world.children.workload = Some(ObservedWorkload { admitted: true, reserved: true, ..workload() });
    let both = [let_go("x-ps", PS), let_go("x-training", RoleName::WORKER)];
    assert_eq!(world.step().actions[1..], both);
    // One of the two Jobs was resumed.
    world.children.jobs.get_mut(&PS).unwrap().suspend = false;
    assert_eq!(world.step().actions[1..], both[1..]);
    assert_eq!(world.status.state, Some(State::Pending));
    jobs(&mut world, false, false);
    pods(&mut world, running);
    let reported = world.step();
    assert_eq!(reported.actions, [Action::Ensure, Action::UpdateWorkload(GangState::Runs)]);
    assert_eq!(world.status.state, Some(State::Running));
}

/// Pods that are stopped for that are no failures, and the reserved quota is given back when no pod uses it.
#[test]
fn preempted_gang_stops_as_one_and_spends_no_budget() {
    let mut world = to_running();
    let evicted = ObservedWorkload { evicted: true, reserved: true, words: "preempted".into(), ..workload() };
    world.children.workload = Some(evicted);
    assert_eq!(world.step().actions, [Action::Ensure, held("x-ps", "ps"), held("x-training", "worker")]);
    assert_eq!(world.condition("Scheduled").1, "Queued");
    jobs(&mut world, true, true);
    assert_eq!(world.step().actions, [Action::Ensure], "their pods still use it");
    pods(&mut world, |index, attempt| ended(index, attempt, 143, 20));
    world.children.pods.values_mut().for_each(|pod| pod.gone = true);
    assert_eq!(world.step().actions, [Action::Ensure, Action::UpdateWorkload(GangState::Left)]);
    assert_eq!((world.status.restart_count, world.status.restarts.len()), (Some(0), 0));
    world.children.workload = Some(workload());
    assert_eq!(world.step().actions, [Action::Ensure]);
}

/// A deleted Workload is created again, and no Job runs without one.
#[test]
fn jobs_are_held_without_a_workload() {
    let mut world = to_running();
    world.children.workload = None;
    let actions = world.step().actions;
    assert_eq!(actions[1..], [Action::EnsureWorkload, held("x-ps", "ps"), held("x-training", "worker")]);
}

/// A new leader reconciles before it has listed the Workloads, whose watch begins with the first gang that needs one.
#[test]
fn gang_keeps_running_until_workloads_are_listed() {
    let mut world = to_running();
    world.children.workload = None;
    world.children.workloads_unlisted = true;
    let before = world.status.clone();
    assert_eq!(world.step().actions, [Action::Ensure]);
    assert_eq!(world.status, before);

    // Jobs that are suspended already stay so, and the Workload is ensured. That reveals a missing Kueue.
    jobs(&mut world, true, true);
    assert_eq!(world.step().actions, [Action::Ensure, Action::EnsureWorkload]);

    jobs(&mut world, false, false);
    world.children.workloads_unlisted = false;
    assert_eq!(world.step().actions[1..], [Action::EnsureWorkload, held("x-ps", "ps"), held("x-training", "worker")]);
}

#[test]
fn workload_is_finished_at_end_and_deleted_on_suspension() {
    let mut world = to_running();
    pods(&mut world, |index, attempt| ended(index, attempt, 0, 20));
    world.step();
    assert_eq!(world.status.state, Some(State::Completed));
    let reported = Action::UpdateWorkload(GangState::Ended { succeeded: true });
    assert!(world.step().actions.contains(&reported));
    world.children.workload = Some(ObservedWorkload { finished: true, ..workload() });
    assert!(!world.step().actions.contains(&reported));

    let mut world = to_running();
    world.spec.suspend = true;
    assert!(world.step().actions.iter().all(|action| !matches!(action, Action::DeleteWorkload { .. })));
    (world.children.jobs, world.children.pods) = Default::default();
    let leave = Action::DeleteWorkload { name: "x-w".into(), uid: "w".into() };
    assert!(world.step().actions.contains(&leave));
    assert_eq!(world.status.state, Some(State::Suspended));
}

/// Kueue itself suspends and resumes a gang that consists of workers alone.
#[test]
fn gang_of_workers_only_has_no_workload() {
    let mut world = world();
    world.spec.roles.clear();
    assert_eq!(world.plan().gang.queue, None);
    assert_eq!(world.plan().gang.workers().pod.scheduling.queue.as_deref(), Some("team"));
    world.spec.roles = vec![RoleSpec { name: "ps".into(), ..RoleSpec::default() }];
    assert_eq!(world.plan().gang.queue.as_deref(), Some("team"));
    assert!(world.plan().gang.roles.iter().all(|role| role.pod.scheduling.queue.is_none()));
    world.spec.scheduling.gang = Some(api::GangScheduler::Volcano);
    assert_eq!(world.plan().gang.queue, None);
}
