//! Failures seen on clusters.

use super::*;

fn queued(job: ObservedJob) -> ObservedJob {
    ObservedJob { suspended_by_queue: true, ..job }
}

/// A side-car that fails, or never ends, neither repeats a finished training nor keeps its GPUs.
#[test]
fn sidecar_does_not_decide_the_outcome() {
    let mut world = World::to_running();
    // The side-car of worker 0 has failed, and that of worker 1 continues.
    let done = |index, ended| ObservedPod { ended, ..super::ended(index, 1, 0, 20) };
    let failed = ObservedJob { failed: Some(("BackoffLimitExceeded".into(), "it has".into())), ..job(1) };
    world.second = 21;
    world.see(Some(failed), [done(0, Some(false)), done(1, None)]);
    world.step();
    assert_eq!(world.status.state, Some(State::Completed));
    assert_eq!((world.status.restart_count, world.status.workers.unwrap().succeeded), (Some(0), 2));

    let mut world = World::to_running();
    world.second = 21;
    world.see(Some(job(1)), [done(0, None), done(1, None)]);
    let verdict = world.step();
    assert_eq!(world.status.state, Some(State::Completed));
    assert_eq!(verdict.actions, [], "it may end by itself");
    assert!(verdict.requeue.is_some());
    world.second = 52;
    let delete = Action::EndJob { name: "x-training".into(), uid: "job-1".into() };
    assert_eq!(world.step().actions, [delete], "and must then be stopped");
    world.see(None, []);
    assert_eq!(world.step().actions, []);
}

/// The Job controller creates the pods of a resumed Job first, and only then reports when it was resumed.
#[test]
fn workers_created_before_job_reports_resumption_count() {
    let mut world = World::new();
    world.step();
    world.see(Some(queued(job(1))), []);
    world.step();
    assert_eq!(world.condition("Scheduled").1, "Queued");
    let resumed = ObservedJob { resumed: Some(at(8)), ..job(1) };
    let early = |index| ObservedPod { created: Some(at(3)), ..running(index, 1) };
    world.second = 9;
    world.see(Some(resumed.clone()), [early(0), early(1)]);
    world.step();
    assert_eq!(world.status.state, Some(State::Running));
    assert_eq!(world.status.workers.unwrap().active, 2);

    // Pods that were stopped before say nothing.
    let stopped = ObservedPod { uid: "old".into(), deletion: Some(at(7)), gone: true, ..early(0) };
    world.see(Some(resumed), [stopped]);
    world.step();
    assert_eq!((world.status.state, world.status.restarts.len()), (Some(State::Running), 0));
}

/// Workers that had ended before a queue stopped the others are not created again.
#[test]
fn resumed_gang_runs_without_already_ended_workers() {
    let mut world = World::to_running();
    let resumed = ObservedJob { resumed: Some(at(30)), completed: [1].into(), ..job(1) };
    world.children.pods.clear();
    world.second = 31;
    world.see(Some(resumed.clone()), [ObservedPod { created: Some(at(29)), ..running(0, 1) }]);
    world.step();
    assert_eq!(world.status.state, Some(State::Running));
    let workers = world.status.workers.unwrap();
    assert_eq!((workers.active, workers.succeeded, workers.pending), (1, 1, 0));
    world.see(Some(resumed), [ended(0, 1, 0, 40)]);
    world.second = 41;
    world.step();
    assert_eq!(world.status.state, Some(State::Completed));
}

#[test]
fn time_in_queue_does_not_count_as_active() {
    let mut world = World::to_running();
    world.spec.failure_policy.active_deadline_seconds = Some(60);
    world.second = 20;
    world.see(Some(queued(job(1))), []);
    world.children.pods.clear();
    world.step();
    assert_eq!(world.condition("Scheduled").1, "Queued");
    world.second = 500;
    world.step();
    assert_eq!(world.status.state, Some(State::Pending), "{:?}", world.status.failure_message);
    world.see(Some(ObservedJob { resumed: Some(at(500)), ..job(1) }), [0, 1].map(|index| running(index, 1)));
    world.second = 510;
    world.step();
    assert_eq!((world.status.state, world.status.suspended_seconds), (Some(State::Running), Some(490)));
    world.second = 555;
    world.step();
    assert_eq!(world.status.state, Some(State::Failed));
    assert!(world.status.failure_message.as_ref().unwrap().contains("activeDeadlineSeconds is 60"));
}

/// The operator does not wait forever for a pod that can't end, if no other gang follows.
#[test]
fn last_attempt_fails_job_although_a_pod_is_stuck() {
    let mut world = World::to_running();
    world.spec.failure_policy.backoff_limit = Some(0);
    world.second = 21;
    let failed = ObservedJob { failed: Some(("BackoffLimitExceeded".into(), "it has".into())), ..job(1) };
    let stuck = ObservedPod { deletion: Some(at(21)), end_by: Some(at(81)), ..running(0, 1) };
    world.see(Some(failed), [stuck, ended(1, 1, 1, 20)]);
    world.step();
    assert_eq!(world.status.state, Some(State::Running), "it has its grace");
    world.second = 97;
    world.step();
    assert_eq!(
        (world.status.state, world.status.failure_reason.clone()),
        (Some(State::Failed), Some(Reason::ExitCode))
    );
}

/// A node's clock that is behind does not remove the back-off, and one that is ahead does not lengthen it.
#[test]
fn node_clock_skew_does_not_change_back_off() {
    for skew in [-4000, 4000] {
        let mut world = World::to_running();
        world.see(Some(job(1)), [0, 1].map(|index| ObservedPod { created: Some(at(12)), ..running(index, 1) }));
        world.second = 20;
        let failed = ObservedJob { failed: Some(("BackoffLimitExceeded".into(), "it has".into())), ..job(1) };
        let pods = [0, 1].map(|index| ObservedPod { created: Some(at(19)), ..ended(index, 1, 1, 20 + skew) });
        world.see(Some(failed), pods);
        world.step();
        assert_eq!(world.status.attempt, Some(2));
        let time = world.status.restarts[0].time.unwrap();
        assert!(time >= at(19) && time <= at(20), "{time}");
        world.see(None, []);
        world.children.pods.clear();
        // As after the second quick failure: the back-off is a second.
        let history = world.status.restart_history.as_mut().unwrap();
        (history.failures, history.failures_in_a_row) = (2, 2);
        world.second = 20;
        let wait = world.step();
        assert!(!wait.actions.iter().any(|action| matches!(action, Action::CreateJobs(..))) || time == at(19));
        world.second = 21;
        assert!(makes_second(&world.step(), [2, 0]));
    }
}

/// A job that drives itself away is not restarted endlessly, nor without a pause.
#[test]
fn repeated_disruptions_back_off_and_finally_fail_job() {
    let mut world = World::to_running();
    let mut waits = Vec::new();
    for attempt in 1.. {
        let evicted = |index| ObservedPod {
            created: Some(at(world.second)),
            disruption: Some(Box::new(Disruption {
                reason: "EvictionByEvictionAPI".into(),
                message: "evicted".into(),
                time: Some(at(world.second)),
            })),
            ..ended(index, attempt, 143, world.second)
        };
        let failed = ObservedJob { failed: Some(("BackoffLimitExceeded".into(), "it has".into())), ..job(attempt) };
        let pods = [0, 1].map(evicted);
        world.see(Some(failed), pods);
        world.step();
        if world.status.state == Some(State::Failed) {
            break;
        }
        let ended_at = world.second;
        world.see(None, []);
        world.children.pods.clear();
        let restarts = protocol::attempt::RestartHistory {
            judged: attempt,
            disruptions: attempt,
            disruptions_in_a_row: attempt,
            ..Default::default()
        };
        let past = GangPast { restarts, ..GangPast::default() };
        while !world.step().actions.contains(&create_after(attempt + 1, past.clone())) {
            world.second += 1;
            assert!(world.second < ended_at + 400);
        }
        waits.push(world.second - ended_at);
        world.see(Some(job(attempt + 1)), []);
    }
    assert_eq!(waits, [0, 1, 2, 4, 8, 16, 32, 64, 128]);
    assert_eq!(world.status.failure_reason, Some(Reason::Evicted));
    let message = world.status.failure_message.unwrap();
    assert!(message.contains("10 interruptions in a row"), "{message}");
}

#[test]
fn scheduled_condition_reports_idle_gpus_of_half_placed_gang() {
    let mut world = World::new();
    world.step();
    let words = WaitingState { reason: "Unschedulable".into(), message: "0/3 nodes are available".into() };
    world.see(Some(job(1)), [placed(0, 1), ObservedPod { unschedulable: Some(Box::new(words.clone())), ..pod(1, 1) }]);
    world.step();
    let message = world.condition("Scheduled").2.to_owned();
    assert!(message.contains("; 1 scheduled worker holds 4 idle GPUs"), "{message}");
    world.spec.gpus_per_worker = Some(0);
    world.step();
    assert_eq!(world.condition("Scheduled").2, "worker 1: 0/3 nodes are available");
}

#[test]
fn agent_that_never_answered_is_reported_once() {
    let mut world = World::to_running();
    world.spec.success_policy = Some(SuccessPolicy { target_loss: Some(0.1), ..SuccessPolicy::default() });
    world.agent_silent_since = Some(at(10));
    world.second = 39;
    world.step();
    assert_eq!(world.condition("AgentReady"), ("", "", ""), "some polls may fail");
    world.second = 40;
    let verdict = world.step();
    let (status, reason, message) = world.condition("AgentReady");
    assert_eq!((status, reason), ("False", "NeverAnswered"));
    assert!(message.contains("port 8080") && message.contains("successPolicy"), "{message}");
    assert_eq!(verdict.events.len(), 1);
    assert_eq!(world.step().events, [], "once");
}

/// A silent node is reported long before Kubernetes takes its pods away. It may come back.
#[test]
fn silent_node_is_reported_once() {
    let mut world = World::to_running();
    world.second = 55;
    world.see(Some(job(1)), [ObservedPod { unreachable: Some(at(50)), ..running(1, 1) }]);
    let verdict = world.step();
    assert_eq!(world.status.state, Some(State::Initializing));
    let (status, reason, message) = world.condition("Running");
    assert_eq!((status, reason), ("False", "NodeLost"));
    assert!(
        message.starts_with("worker 1 (pod x-training-1-abcde, node node-1): its node has not answered"),
        "{message}"
    );
    assert_eq!(verdict.events.iter().map(|event| event.reason).collect::<Vec<_>>(), ["NodeSilent"]);
    assert!(world.step().events.is_empty(), "once");
    world.second = 90;
    world.see(Some(job(1)), [running(1, 1)]);
    world.step();
    assert_eq!((world.status.state, world.status.restart_count), (Some(State::Running), Some(0)));
}
