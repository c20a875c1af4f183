//! A gang that is placed as a whole.

use super::*;
use api::{GangScheduler, Scheduling};

fn unschedulable(index: u32, message: &str) -> ObservedPod {
    let words = WaitingState { reason: "Unschedulable".into(), message: message.into() };
    ObservedPod { unschedulable: Some(Box::new(words)), ..pod(index, 1) }
}

fn grouped() -> World {
    let mut world = World::new();
    world.spec.scheduling = Scheduling { gang: Some(GangScheduler::Native), ..Scheduling::default() };
    world.step();
    world
}

const WAITS: &str = "pod group is unschedulable, waiting for minCount pods from a gang to be scheduled, one or more plugins \
                     asked to wait and no plugin rejected pod";
const NO_GPU: &str = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.";

#[test]
fn unschedulable_pod_of_group_is_quoted() {
    let mut world = grouped();
    world.see(Some(job(1)), [unschedulable(0, WAITS), unschedulable(1, NO_GPU)]);
    world.step();
    let words = format!("worker 1 (and 1 more of 2 workers): {NO_GPU}");
    assert_eq!(world.condition("Scheduled"), ("False", "Unschedulable", &*words));
    world.see(Some(job(1)), [unschedulable(1, WAITS)]);
    world.step();
    assert!(world.condition("Scheduled").2.contains(WAITS), "what else: {:?}", world.condition("Scheduled"));
    let follows = "0/1 nodes are available: 1 optimistic rejection in PostFilter.";
    world.see(Some(job(1)), [unschedulable(0, follows), unschedulable(1, NO_GPU)]);
    world.step();
    assert_eq!(world.condition("Scheduled").2, words, "the coscheduling plugin's");
}

#[test]
fn gang_scheduler_is_recommended_if_none_is_set() {
    let held = |mut world: World| {
        world.see(Some(job(1)), [placed(0, 1), unschedulable(1, NO_GPU)]);
        world.step();
        world.condition("Scheduled").2.split_once("; ").unwrap().1.to_owned()
    };
    let mut alone = World::new();
    alone.step();
    assert_eq!(
        held(alone),
        "1 scheduled worker holds 4 idle GPUs; a queue (scheduling.queue) or a gang scheduler (scheduling.gang) \
         prevents this"
    );
    // A worker that is replaced while the others run.
    assert_eq!(held(grouped()), "1 scheduled worker holds 4 idle GPUs");
}

/// The group is not watched, and some schedulers say nothing about pods whose group is gone.
#[test]
fn pod_group_is_polled_while_a_worker_has_no_node() {
    let mut world = grouped();
    world.see(Some(job(1)), [placed(0, 1), pod(1, 1)]);
    let mut looks = Vec::new();
    for second in 0..1000 {
        world.second = second;
        if world.step().actions.contains(&Action::EnsureGroup) {
            looks.push(second);
            world.children.group_looked_at = Some(at(second));
        }
    }
    assert_eq!(looks, [15, 30, 60, 120, 240, 480, 720, 960]);
    // For another pod the interval starts again.
    let again = ObservedPod { uid: "again".into(), created: Some(at(1000)), ..pod(1, 1) };
    world.children.pods.remove("pod-1-1");
    world.see(Some(job(1)), [again]);
    (world.second, looks) = (1014, vec![]);
    assert!(!world.step().actions.contains(&Action::EnsureGroup));
    world.second = 1015;
    assert!(world.step().actions.contains(&Action::EnsureGroup), "{looks:?}");
}

#[test]
fn pod_group_is_not_polled_if_absent_or_fully_placed() {
    for (gang, second) in
        [(GangScheduler::None, placed(1, 1)), (GangScheduler::None, pod(1, 1)), (GangScheduler::Native, placed(1, 1))]
    {
        let mut world = World::new();
        world.spec.scheduling.gang = Some(gang);
        world.step();
        world.see(Some(job(1)), [placed(0, 1), second]);
        world.second = 500;
        assert_eq!(world.step().actions, [Action::Ensure], "{gang:?}");
    }
}

#[test]
fn pod_group_creation_failure_is_reported_and_retried() {
    let blocked =
        Blocked { reason: Reason::GangSchedulerMissing, message: "the API server has no PodGroup".to_owned() };
    let mut world = grouped();
    world.children.blocked.insert(ChildKey::POD_GROUP, blocked.clone());
    assert_eq!(world.step().actions, [Action::Ensure, create(1)]);
    let expected = ("False", "GangSchedulerMissing", "PodGroup: the API server has no PodGroup");
    assert_eq!((world.condition("Scheduled"), world.status.state), (expected, Some(State::Pending)));
    world.children.blocked.clear();
    world.see(Some(job(1)), [running(0, 1), running(1, 1)]);
    world.step();
    world.children.blocked.insert(ChildKey::POD_GROUP, blocked);
    assert_eq!(world.step().actions, [Action::Ensure, Action::EnsureGroup]);
    assert_eq!(world.status.state, Some(State::Running), "who runs needs it no more");
}
