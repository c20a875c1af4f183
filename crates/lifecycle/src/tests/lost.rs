//! Workers that go while their gang stays, step by step.

use super::gang::{gang, leader};
use super::*;
use protocol::gang::GangPhase;

fn evicted(index: u32, second: i64) -> ObservedPod {
    let disruption = Disruption {
        reason: "EvictionByEvictionAPI".into(),
        message: "Eviction API: evicting".into(),
        time: Some(at(second)),
    };
    ObservedPod { disruption: Some(Box::new(disruption)), ..asked_to_end(index, second) }
}

fn asked_to_end(index: u32, second: i64) -> ObservedPod {
    ObservedPod { deletion: Some(at(second)), end_by: Some(at(second + 60)), tracked: true, ..running(index, 1) }
}

fn silent(index: u32, second: i64) -> ObservedPod {
    ObservedPod { unreachable: Some(at(second)), tracked: true, ..running(index, 1) }
}

fn release(index: u32, force: bool) -> Action {
    Action::ReleasePod { name: format!("x-training-{index}-abcde"), uid: format!("pod-1-{index}"), force }
}

/// The leader's report of an attempt that ended because a member left.
fn left(worker: u32) -> AttemptEnd {
    AttemptEnd {
        worker: Some(worker),
        disruption: true,
        time: Some(at(21)),
        ran_seconds: 15,
        ..AttemptEnd::new(1, Reason::Evicted, "evicted (its pod was told to end)")
    }
}

fn led() -> World {
    let mut world = World::to_running();
    world.agent = Some(leader(1, gang(1, GangPhase::Running, vec![])));
    world.second = 20;
    world
}

#[test]
fn evicted_worker_is_replaced_individually() {
    for worker in 0..N {
        let mut world = led();
        world.see(Some(job(1)), [evicted(worker, 20)]);
        let verdict = world.step();
        assert_eq!(verdict.actions, [Action::Ensure, release(worker, false)]);
        let words = format!(
            "worker {worker} (pod x-training-{worker}-abcde, node node-{worker}): evicted (Eviction API: evicting)"
        );
        assert_eq!(world.condition("Restarting"), ("True", "Evicted", &*words));
        assert_eq!((world.status.state, world.status.attempt), (Some(State::Initializing), Some(1)));
        world.see(Some(job(1)), [ObservedPod { tracked: false, ..evicted(worker, 20) }]);
        assert_eq!(world.step().actions, [Action::Ensure], "once");

        world.agent = Some(leader(1, gang(1, GangPhase::Gathering, vec![left(worker)])));
        world.second = 25;
        world.see(Some(job(1)), [ObservedPod { gone: true, ..evicted(worker, 20) }]);
        assert_eq!(world.step().actions, [Action::Ensure], "the Job makes another one");
        assert_eq!(world.status.state, Some(State::Initializing));
        assert_eq!(world.condition("Restarting").2, words, "what stands on the pod goes before the leader's word");
        let new = ObservedPod { uid: "new".into(), created: Some(at(26)), ..running(worker, 1) };
        world.see(Some(job(1)), [ObservedPod { training: Container::Waiting, ..new.clone() }]);
        assert_eq!(world.step().actions, [Action::Ensure]);
        assert_eq!(world.status.state, Some(State::Initializing));

        world.second = 30;
        world.see(Some(job(1)), [new]);
        let mut again = leader(1, gang(2, GangPhase::Running, vec![left(worker)]));
        let mut expected = (*again.status).clone();
        // The leader has another pod if the leader's own pod went.
        expected.pod_uid = expected.pod_uid.map(|uid| if worker == 0 { "new".to_owned() } else { uid });
        again.status = expected.into();
        world.agent = Some(again);
        assert_eq!(reasons(&world.step()), ["Restarting", "Started"]);
        assert_eq!((world.status.state, world.status.attempt), (Some(State::Running), Some(2)));
        assert_eq!((world.status.incarnation, world.status.restart_count), (Some(1), Some(1)));
        assert_eq!(world.status.disruption_count, Some(1));
        assert_eq!((&world.status.restarts[0].reason, world.status.restarts[0].to_string()), (&Reason::Evicted, words));
        // A later failure is not attributed to the worker that went before.
        world.second = 40;
        let failed = ObservedJob { failed: Some(("BackoffLimitExceeded".into(), "it has".into())), ..job(1) };
        let other = 1 - worker;
        world.see(Some(failed), [ended(other, 1, 1, 40)]);
        world.step();
        assert_eq!(world.status.restarts[1].worker, Some(other));
    }
}

/// Between the mark and the deletion there is no failure, even if a drain has deleted another pod already.
#[test]
fn eviction_mark_in_led_gang_waits_for_pod_deletion() {
    let marked = |index| ObservedPod { deletion: None, end_by: None, ..evicted(index, 20) };
    let mut world = led();
    world.see(Some(job(1)), [marked(1)]);
    assert_eq!(world.step().actions, [Action::Ensure]);
    assert_eq!((world.status.state, world.status.restarts.len()), (Some(State::Running), 0));
    world.see(Some(job(1)), [evicted(0, 20)]);
    assert_eq!(world.step().actions, [Action::Ensure, release(0, false)]);
    let mut alone = World::to_running();
    alone.second = 20;
    alone.see(Some(job(1)), [marked(1)]);
    alone.step();
    assert_eq!(alone.condition("Restarting").1, "Evicted", "where no gang takes in another pod it is told at once");
}

/// A `kubectl delete pod` by another client. For the gang that is a disruption, and its reason stays `PodDeleted`.
#[test]
fn deleted_worker_is_replaced_individually() {
    let mut world = led();
    world.see(Some(job(1)), [asked_to_end(1, 20)]);
    assert_eq!(world.step().actions, [Action::Ensure, release(1, false)]);
    assert_eq!(world.condition("Restarting").1, "PodDeleted");
    assert!(world.status.restarts[0].disruption, "the leader counts it so");
}

/// The leader knows that a pod was asked to stop, but not the sender. The pod itself shows that it was no eviction.
#[test]
fn deleted_pod_is_not_an_eviction_despite_leader_report() {
    for (deleted, expected, disruptions) in
        [(asked_to_end as fn(u32, i64) -> ObservedPod, "PodDeleted", None), (evicted, "Evicted", Some(1))]
    {
        let mut world = led();
        world.see(Some(job(1)), [deleted(0, 20), deleted(1, 20)]);
        world.agent = Some(leader(1, gang(1, GangPhase::Stopping, vec![left(0)])));
        world.step();
        world.second = 25;
        world.agent = None;
        let failed = ObservedJob { failed: Some(("BackoffLimitExceeded".into(), String::new())), ..job(1) };
        let end = |index| {
            let ObservedPod { ended, training, .. } = ended(index, 1, 143, 22);
            ObservedPod { ended, training, ..deleted(index, 20) }
        };
        world.see(Some(failed), [end(0), end(1)]);
        world.step();
        assert_eq!((world.status.restarts[0].reason.as_str(), world.status.disruption_count), (expected, disruptions));
    }
}

/// The leader may be heard before the deletion is seen, and the new pod be seen together with the deletion.
#[test]
fn deleted_pod_whose_successor_is_there_is_not_an_eviction() {
    for (deleted, expected) in [(asked_to_end as fn(u32, i64) -> ObservedPod, "PodDeleted"), (evicted, "Evicted")] {
        for reported_first in [true, false] {
            let mut world = led();
            if reported_first {
                world.agent = Some(leader(1, gang(1, GangPhase::Gathering, vec![left(1)])));
                world.step();
                assert_eq!(world.status.restarts[0].reason, Reason::Evicted, "nothing else is known by then");
            }
            world.second = 30;
            let gone = ObservedPod { gone: true, tracked: false, ..deleted(1, 20) };
            let new = running(1, 1);
            let new = ObservedPod { uid: "new".into(), name: "x-training-1-new".into(), created: Some(at(26)), ..new };
            world.see(Some(job(1)), [gone, new]);
            world.agent = Some(leader(1, gang(2, GangPhase::Running, vec![left(1)])));
            world.step();
            let AttemptEnd { reason, pod, disruption, .. } = &world.status.restarts[0];
            assert_eq!((reason.as_str(), pod.as_deref()), (expected, Some("x-training-1-abcde")), "{reported_first}");
            assert!(*disruption && world.status.disruption_count == Some(1), "the leader counts it so");
        }
    }
}

/// Another client has enlarged the Job for a while. The Job controller deletes the pods that are too many.
#[test]
fn pod_beyond_the_size_of_its_role_is_no_loss() {
    for mut world in [led(), World::to_running()] {
        world.second = 20;
        for pod in [running(N, 1), asked_to_end(N, 20), ObservedPod { gone: true, ..asked_to_end(N, 20) }] {
            let released: &[Action] = if pod.deletion.is_some() && !pod.gone { &[release(N, false)] } else { &[] };
            world.see(Some(job(1)), [pod]);
            assert_eq!(world.step().actions, [&[Action::Ensure], released].concat(), "it must not fail the Job");
            assert_eq!((world.status.state, world.status.restarts.len()), (Some(State::Running), 0));
        }
    }
}

#[test]
fn no_pod_of_ending_gang_is_replaced() {
    let releases = |world: &mut World| {
        let releases = |action: &&Action| matches!(action, Action::ReleasePod { .. });
        world.step().actions.iter().filter(releases).count()
    };
    let check = |what: &str, change: &dyn Fn(&mut World)| {
        let mut world = led();
        world.see(Some(job(1)), [evicted(1, 20)]);
        change(&mut world);
        assert_eq!(releases(&mut world), 0, "{what}");
    };
    check("nobody tells that a gang is there", &|world| world.agent = None);
    check("it has ended", &|world| world.agent = Some(leader(1, gang(1, GangPhase::Over, vec![]))));
    check("the Job fails", &|world| {
        let failed = ObservedJob { failed: Some(("BackoffLimitExceeded".into(), "it has".into())), ..job(1) };
        world.see(Some(failed), []);
    });
    check("another worker has failed by itself", &|world| world.see(Some(job(1)), [ended(0, 1, 1, 19)]));
    check("all go", &|world| world.see(Some(job(1)), [evicted(0, 20)]));
    check("no other attempt follows", &|world| {
        world.spec.failure_policy.restart_policy = Some(RestartPolicy::Never);
    });
    check("it is suspended", &|world| world.spec.suspend = true);
    check("all others have come since", &|world| {
        let gone = ObservedPod { gone: true, ..evicted(0, 15) };
        let new = ObservedPod { uid: "new".into(), created: Some(at(16)), ..running(0, 1) };
        let gone_too = ObservedPod { uid: "old".into(), gone: true, ..evicted(1, 16) };
        let newest = ObservedPod { created: Some(at(17)), ..evicted(1, 20) };
        world.see(Some(job(1)), [gone, new, gone_too, newest]);
    });
}

#[test]
fn worker_on_silent_node_is_released_after_node_lost_seconds() {
    let mut world = led();
    world.spec.failure_policy.node_lost_seconds = Some(90);
    world.agent = Some(leader(1, gang(1, GangPhase::Gathering, vec![])));
    world.second = 60;
    world.see(Some(job(1)), [silent(1, 50)]);
    let verdict = world.step();
    assert_eq!(reasons(&verdict), ["NodeSilent"]);
    assert_eq!(verdict.actions, [Action::Ensure]);
    assert_eq!(verdict.requeue, Some(std::time::Duration::from_secs(30)));
    assert!(world.condition("Running").2.contains("within 90 s of its last sign of life"));
    world.second = 90;
    let verdict = world.step();
    assert_eq!(reasons(&verdict), ["NodeLost"]);
    assert_eq!(verdict.actions, [Action::Ensure, release(1, true)]);
    let entry = &world.status.restarts[0];
    assert_eq!((&entry.reason, entry.worker, entry.disruption), (&Reason::NodeLost, Some(1), true));
    assert!(entry.to_string().contains("node node-1): its node is lost (it has not answered since"), "{entry}");
    // Its pod is gone, and no other.
    world.second = 91;
    let since =
        Disruption { reason: "NodeLost".into(), message: "it has not answered since then".into(), time: Some(at(50)) };
    let gone = ObservedPod { gone: true, deletion: Some(at(90)), disruption: Some(Box::new(since)), ..silent(1, 50) };
    world.see(Some(job(1)), [gone]);
    assert_eq!(world.step().actions, [Action::Ensure]);
    assert_eq!(world.condition("Restarting").1, "NodeLost");
}

/// The kubelet of a node may be silent while the programs on it continue.
#[test]
fn worker_connected_to_gang_is_not_lost() {
    let mut world = led();
    world.second = 500;
    world.see(Some(job(1)), [silent(1, 50)]);
    let verdict = world.step();
    assert_eq!(reasons(&verdict), ["NodeSilent"]);
    assert_eq!(verdict.actions, [Action::Ensure]);
    assert_eq!(world.status.state, Some(State::Running));
    assert_eq!((world.condition("Running").0, world.condition("Running").1), ("True", "NodeLost"));
    assert_eq!(reasons(&world.step()), [""; 0], "once");
    world.see(Some(job(1)), [running(1, 1)]);
    world.step();
    assert_eq!(world.condition("Running").1, "Running");
}

/// Programs that were cut off together may still run, and write.
#[test]
fn no_worker_is_released_when_all_are_silent() {
    let mut world = led();
    world.agent = None;
    world.second = 500;
    world.see(Some(job(1)), [silent(0, 50), silent(1, 50)]);
    assert_eq!(world.step().actions, [Action::Ensure]);
    assert!(world.condition("Running").2.contains("out-of-service"));
    // A pod that never had a peer is not given up either: a new pod beside them proves nothing.
    let new = ObservedPod { uid: "new".into(), created: Some(at(400)), ..placed(0, 1) };
    world.see(Some(job(1)), [ObservedPod { gone: true, deletion: Some(at(300)), ..silent(0, 50) }, new]);
    assert!(!world.step().actions.contains(&release(1, true)));
}

/// The conditions of a lost node's pods say why the pods went, even if a later look shows only their deletion.
#[test]
fn pod_deletion_does_not_hide_node_loss() {
    for worker in 0..N {
        let mut world = led();
        world.second = 500;
        world.agent = Some(leader(1, gang(1, GangPhase::Gathering, vec![])));
        world.see(Some(job(1)), [silent(1, 50)]);
        assert!(world.step().actions.contains(&release(1, true)));
        assert_eq!(world.status.restarts[0].reason, Reason::NodeLost);
        // The same pod, or another pod of that node.
        let gone = ObservedPod { gone: worker == 1, ..asked_to_end(worker, 500) };
        world.see(Some(job(1)), [running(1, 1), gone]);
        world.step();
        assert_eq!(world.status.restarts[0].reason, Reason::NodeLost, "worker {worker}");
    }
}

/// Whatever the job does meanwhile, the wait for a pod that was asked to end on a lost node would never end.
#[test]
fn lost_node_does_not_block_suspension() {
    let mut world = led();
    world.second = 70;
    let stuck = ObservedPod { deletion: Some(at(20)), tracked: false, ..silent(1, 50) };
    world.see(Some(job(1)), [stuck, asked_to_end(0, 20)]);
    world.spec.suspend = true;
    world.agent = None;
    assert!(world.step().actions.contains(&release(1, true)));
}

/// The kernel does not let a container end before the processes in it, so its node would never report an end.
#[test]
fn pod_given_up_by_its_agent_is_replaced() {
    for worker in 0..N {
        let mut world = led();
        let what = "process 57 (python3, state D) outlived SIGKILL for 120 s";
        let expected =
            AttemptEnd { reason: Reason::Unkillable, message: what.to_owned(), exit_code: Some(1), ..left(worker) };
        world.agent = Some(leader(1, gang(1, GangPhase::Gathering, vec![expected])));
        world.second = 25;
        assert_eq!(world.step().actions, [Action::Ensure], "it may end by itself");
        let words = format!("worker {worker} (pod x-training-{worker}-abcde, node node-{worker}): {what}");
        assert_eq!(world.condition("Restarting"), ("True", "Unkillable", &*words));
        world.second = 51;
        let verdict = world.step();
        assert_eq!(verdict.actions, [release(worker, true), Action::Ensure]);
        assert_eq!((reasons(&verdict), &verdict.events[0].note), (vec!["Unkillable"], &words));
        world.see(Some(job(1)), [ObservedPod { gone: true, deletion: Some(at(51)), ..running(worker, 1) }]);
        world.second = 52;
        assert_eq!(world.step().actions, [Action::Ensure], "the Job makes another one");
        assert_eq!(world.condition("Restarting"), ("True", "Unkillable", &*words), "that stays why");
        let entry = &world.status.restarts[0];
        assert!(entry.disruption && entry.node.as_deref() == Some(&*format!("node-{worker}")), "{entry:?}");
    }
}

/// This holds even if no other worker is left to take the new one in.
#[test]
fn abandoned_gang_is_recreated_in_new_pods() {
    let mut world = led();
    let expected = AttemptEnd { reason: Reason::Unkillable, message: "process 57".into(), ..left(0) };
    world.agent = Some(leader(1, gang(1, GangPhase::Gathering, vec![expected])));
    world.second = 25;
    world.step();
    world.second = 60;
    let gone = |index| ObservedPod { gone: true, deletion: Some(at(51)), ..running(index, 1) };
    world.see(Some(job(1)), [gone(0), gone(1)]);
    world.step();
    assert_eq!((world.status.incarnation, world.status.restarts[0].reason.as_str()), (Some(2), "Unkillable"));
    assert_eq!(world.status.disruption_count, Some(1));
}
