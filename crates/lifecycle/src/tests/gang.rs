//! The reports of a gang's leader, step by step.

use super::*;
use failure::restart::{INTERRUPTIONS, Policy};
use protocol::attempt::RestartHistory;
use protocol::gang::{GangEnd, GangPhase, GangStatus, Restarts};

/// The answer of worker 0 of incarnation `number`.
pub(super) fn leader(number: u32, gang: GangStatus) -> AgentAnswer {
    let mut status = AgentStatus { pod_uid: Some(format!("pod-{number}-0")), ..AgentStatus::default() };
    status.report.attempt = gang.attempt;
    status.gang = Some(gang);
    AgentAnswer { status: status.into(), time: at(10), failing_since: None, remaining: None }
}

pub(super) fn gang(attempt: u32, phase: GangPhase, ended: Vec<AttemptEnd>) -> GangStatus {
    let before = ended.iter().filter(|end| end.attempt < attempt);
    let restarts = history(&before.cloned().collect::<Vec<_>>());
    GangStatus { attempt, restarts, phase, ended, ..GangStatus::default() }
}

/// The history that a leader keeps of these ends, if its gang starts again each time.
pub(super) fn history(ended: &[AttemptEnd]) -> RestartHistory {
    let policy =
        Policy { restarts: Restarts::OnFailure, backoff_limit: 100, interruptions: INTERRUPTIONS, rules: Vec::new() };
    let mut history = RestartHistory::default();
    for end in ended {
        failure::restart::decide(&policy, &mut history, end);
    }
    history
}

pub(super) fn end(attempt: u32) -> AttemptEnd {
    AttemptEnd {
        worker: Some(1),
        rank: Some(3),
        exit_code: Some(1),
        time: Some(at(i64::from(attempt) * 20)),
        ran_seconds: 15,
        ..AttemptEnd::new(attempt, Reason::PythonException, "ValueError: bad")
    }
}

/// Any report of a leader, of any incarnation.
pub(super) fn any_leader() -> impl Strategy<Value = Option<AgentAnswer>> {
    let phases = [GangPhase::Gathering, GangPhase::Running, GangPhase::Stopping, GangPhase::Over];
    let reported = (1..3u32, 0..6u32, 0..4usize, proptest::collection::vec((0..6u32, any::<bool>()), 0..3));
    proptest::option::of(reported.prop_map(move |(number, attempt, phase, ended)| {
        let ended = ended.into_iter().map(|(attempt, disruption)| AttemptEnd { disruption, ..end(attempt) });
        leader(number, gang(attempt, phases[phase], ended.collect()))
    }))
}

/// A pod whose agent has left this final report.
fn left(index: u32, number: u32, second: i64, report: Report) -> ObservedPod {
    let mut pod = ended(index, number, 1, second);
    if let Container::Terminated { report: words, .. } = &mut pod.training {
        *words = Some(Box::new(Report { version: 1, ..report }));
    }
    pod
}

#[test]
fn attempt_ended_in_its_pods_is_recorded_and_next_one_reported() {
    let mut world = World::to_running();
    world.second = 25;
    let waits =
        GangStatus { waits_for: "waiting 1 s before attempt 2".into(), ..gang(1, GangPhase::Gathering, vec![end(1)]) };
    world.agent = Some(leader(1, waits));
    assert_eq!(reasons(&world.step()), [""; 0], "no other attempt has begun yet");
    assert_eq!(world.status.state, Some(State::Initializing));
    assert_eq!(world.condition("Running"), ("False", "Starting", "waiting 1 s before attempt 2"));
    let message = "worker 1 (pod x-training-1-abcde, node node-1), rank 3: ValueError: bad";
    assert_eq!(world.condition("Restarting"), ("True", "PythonException", message));
    let entry = world.status.restarts[0].clone();
    assert_eq!(
        (entry.attempt, entry.pod.as_deref(), entry.node.as_deref()),
        (1, Some("x-training-1-abcde"), Some("node-1"))
    );
    assert_eq!((entry.rank, entry.exit_code, entry.ran_seconds, entry.time), (Some(3), Some(1), 15, Some(at(20))));
    assert_eq!((world.status.attempt, world.status.restart_count), (Some(1), Some(0)));

    world.agent = Some(leader(1, gang(2, GangPhase::Running, vec![end(1)])));
    let verdict = world.step();
    assert_eq!(reasons(&verdict), ["Restarting", "Started"]);
    assert_eq!(verdict.events[0].note, format!("attempt 1 failed, attempt 2 follows: {message}"));
    assert_eq!(verdict.actions, [Action::Ensure], "nothing is made anew");
    assert_eq!((world.status.attempt, world.status.incarnation), (Some(2), Some(1)));
    assert_eq!((world.status.restart_count, world.status.state), (Some(1), Some(State::Running)));
    assert_eq!(world.condition("Restarting").0, "False");
    assert!(world.step().events.is_empty());
}

/// The restarted agent knows that it was killed, and its node knows the reason.
#[test]
fn oom_kill_is_recognized_from_pod_status() {
    let killed = AttemptEnd {
        reason: Reason::Signal,
        message: "ended by SIGKILL, and nobody says by whom".into(),
        exit_code: Some(137),
        rank: None,
        ..end(1)
    };
    for (seconds_before, reason) in [(3, Reason::OomKilled), (200, Reason::OomKilled), (-60, Reason::Signal)] {
        let mut world = World::to_running();
        world.second = 90;
        let pod = world.children.pods.values_mut().find(|pod| pod.index == 1).unwrap();
        pod.out_of_memory = Some(at(20 - seconds_before));
        world.agent = Some(leader(1, gang(2, GangPhase::Running, vec![killed.clone()])));
        world.step();
        let entry = &world.status.restarts[0];
        assert_eq!((&entry.reason, entry.worker, entry.attempt), (&reason, Some(1), 1), "{}", entry.message);
    }
}

#[test]
fn unobserved_attempts_are_all_reported() {
    let mut world = World::to_running();
    world.second = 90;
    let disrupted = AttemptEnd { disruption: true, reason: "not a word!".into(), worker: None, ..end(2) };
    let all = vec![end(1), disrupted, end(3)];
    world.agent = Some(leader(1, gang(4, GangPhase::Running, all.clone())));
    assert_eq!(reasons(&world.step()), ["Restarting", "Restarting", "Restarting", "Started"]);
    assert_eq!(world.status.restarts.iter().map(|entry| entry.attempt).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!((world.status.restart_count, world.status.disruption_count), (Some(3), Some(1)));
    assert_eq!(world.status.restarts[1].reason, Reason::Failed, "what the API would not take");
    // The oldest of the kept ends are dropped, and don't come back.
    world.agent = Some(leader(1, gang(12, GangPhase::Running, (3..12).map(end).collect())));
    assert_eq!(world.step().events.len(), 9);
    world.agent = Some(leader(1, gang(13, GangPhase::Running, (1..13).map(end).collect())));
    assert_eq!(reasons(&world.step()), ["Restarting", "Started"]);
    assert_eq!(
        world.status.restarts.iter().map(|entry| entry.attempt).collect::<Vec<_>>(),
        (3..13).collect::<Vec<_>>()
    );
}

/// The pods of a Job that a queue manager suspended and resumed unobserved count their attempts from 1 again.
#[test]
fn restarts_that_a_leader_lacks_stay_counted() {
    let mut world = World::to_running();
    world.second = 50;
    world.agent = Some(leader(1, gang(3, GangPhase::Running, vec![end(1), end(2)])));
    world.step();
    assert_eq!(world.status.restart_count, Some(2));
    world.second = 90;
    let resized = AttemptEnd { reason: Reason::Resized, ..end(1) };
    let disrupted = AttemptEnd { disruption: true, ..end(3) };
    world.agent = Some(leader(1, gang(4, GangPhase::Running, vec![resized, disrupted])));
    for _ in 0..2 {
        world.step();
        assert_eq!((world.status.restart_count, world.status.disruption_count), (Some(3), Some(1)));
    }
    let restarts = RestartHistory { judged: 4, stopped: Some("ExitCode".into()), ..RestartHistory::default() };
    world.agent = Some(leader(1, GangStatus { restarts, ..gang(4, GangPhase::Over, vec![end(4)]) }));
    world.step();
    let history = world.status.restart_history.as_ref().unwrap();
    assert_eq!((history.failures, history.disruptions, history.stopped.as_deref()), (2, 1, Some("ExitCode")));
}

#[test]
fn forming_gang_is_not_running_yet() {
    let mut world = World::to_running();
    world.spec.failure_policy.start_deadline_seconds = Some(60);
    world.spec.failure_policy.backoff_limit = Some(100);
    world.second = 59;
    let waits = leader(1, GangStatus { waits_for: "waiting for worker 1".into(), ..GangStatus::default() });
    world.agent = Some(waits);
    world.second = 14;
    world.step();
    assert_eq!(world.status.state, Some(State::Running), "the pods have just been started");
    world.second = 59;
    world.step();
    assert_eq!(world.status.state, Some(State::Initializing));
    assert_eq!(world.condition("Running"), ("False", "Starting", "waiting for worker 1"));
    // The member that it waits for never appears.
    let mut late = World { status: world.status.clone(), ..World::to_running() };
    late.spec.failure_policy.start_deadline_seconds = Some(60);
    (late.agent, late.second) = (world.agent.clone(), 60);
    late.step();
    assert_eq!((late.status.state, late.status.failure_reason), (Some(State::Failed), Some(Reason::Starting)));
    // In pods that ran before, the deadline counts from the start of the attempt.
    world.agent = Some(leader(1, gang(4, GangPhase::Gathering, (1..5).map(end).collect())));
    world.second = 80 + 4 + 59;
    world.step();
    assert_eq!(world.status.state, Some(State::Initializing));
    world.second += 1;
    world.step();
    assert_eq!(world.status.state, Some(State::Failed));
}

#[test]
fn new_incarnation_after_lost_pods_knows_earlier_attempts() {
    let mut world = World::to_running();
    world.second = 50;
    world.agent = Some(leader(1, gang(2, GangPhase::Running, vec![end(1)])));
    world.step();
    let lost = Disruption { reason: "EvictionByEvictionAPI".into(), message: "evicted".into(), time: Some(at(50)) };
    let failed = ObservedJob { failed: Some(("BackoffLimitExceeded".into(), "x".into())), ..job(1) };
    let report = Report {
        attempt: 2,
        stopped_by: Some(15),
        gang: Some(GangEnd { restarts: history(&[end(1)]), ..GangEnd::default() }),
        ..Report::default()
    };
    world.second = 55;
    world.see(
        Some(failed),
        [ObservedPod { disruption: Some(Box::new(lost)), ..ended(1, 1, 143, 50) }, left(0, 1, 52, report)],
    );
    assert_eq!(reasons(&world.step()), ["Restarting"]);
    assert_eq!((world.status.attempt, world.status.incarnation), (Some(3), Some(2)));
    assert_eq!((world.status.restart_count, world.status.disruption_count), (Some(2), Some(1)));
    assert_eq!(
        world.status.restarts.iter().map(|entry| (entry.attempt, entry.disruption)).collect::<Vec<_>>(),
        [(1, false), (2, true)]
    );

    assert_eq!(world.status.restarts[1].ran_seconds, 30, "since the end of the attempt before, not since its pods");

    // The old leader's last report does not apply to the new leader.
    world.see(None, []);
    world.children.pods.clear();
    let restarts = RestartHistory { disruptions: 1, disruptions_in_a_row: 1, judged: 2, ..history(&[end(1)]) };
    let past = GangPast { restarts: restarts.clone(), ..GangPast::default() };
    let next = Incarnation { number: 2, attempt: 3 };
    assert_eq!(world.step().actions, [Action::Ensure, Action::CreateJobs(next, past)]);
    world.see(Some(ObservedJob { first_attempt: 3, ..job(2) }), [running(0, 2), running(1, 2)]);
    world.agent = Some(leader(1, gang(3, GangPhase::Stopping, vec![end(1), end(3)])));
    world.step();
    assert_eq!((world.status.state, world.status.restarts.len()), (Some(State::Running), 2));
    world.agent = Some(leader(2, GangStatus { restarts, ..gang(3, GangPhase::Running, vec![]) }));
    world.step();
    assert_eq!(
        (world.status.attempt, world.status.restart_count, world.status.state),
        (Some(3), Some(2), Some(State::Running))
    );
}

/// Pods that were replaced one by one stay known, and the gang that took others in is lost with all of its pods.
#[test]
fn replaced_pod_is_not_the_cause_of_a_later_attempts_end() {
    let mut world = World::to_running();
    world.second = 20;
    let loss = |second| Disruption {
        reason: "DeletionByPodGC".into(),
        message: "PodGC: node no longer exists".into(),
        time: Some(at(second)),
    };
    let lost = |index, uid: &str, second| ObservedPod {
        name: format!("x-training-{index}-{uid}"),
        uid: uid.into(),
        disruption: Some(Box::new(loss(second))),
        deletion: Some(at(second)),
        gone: true,
        ..running(index, 1)
    };
    let resized = AttemptEnd { disruption: true, time: Some(at(20)), ..end(1) };
    world.agent = Some(leader(1, gang(2, GangPhase::Running, vec![resized])));
    world.see(Some(job(1)), [lost(1, "first", 20), ObservedPod { uid: "second".into(), ..running(1, 1) }]);
    world.children.pods.retain(|_, pod| pod.uid != "pod-1-1");
    world.step();
    assert_eq!((world.status.attempt, world.status.restarts.len()), (Some(2), 1));
    world.second = 45;
    world.agent = None;
    let failed = ObservedJob { failed: Some(("BackoffLimitExceeded".into(), "x".into())), ..job(1) };
    world.see(Some(failed), [lost(0, "pod-1-0", 41), lost(1, "second", 40)]);
    assert_eq!(reasons(&world.step()), ["Restarting"]);
    let reported = world.status.restarts.iter().map(|entry| (entry.attempt, entry.pod.as_deref(), entry.time));
    assert_eq!(reported.max(), Some((2, Some("x-training-1-second"), Some(at(40)))));
}

#[test]
fn attempt_ended_in_its_pods_is_judged_once() {
    let mut world = World::to_running();
    world.second = 25;
    world.agent = Some(leader(1, gang(1, GangPhase::Gathering, vec![end(1)])));
    world.step();
    // Before the next attempt begins, a node fails, and all pods go with it.
    let lost = Disruption { reason: "DeletionByTaintManager".into(), message: "gone".into(), time: Some(at(24)) };
    let failed = ObservedJob { failed: Some(("BackoffLimitExceeded".into(), "x".into())), ..job(1) };
    let report = Report { attempt: 1, stopped_by: Some(15), gang: Some(GangEnd::default()), ..Report::default() };
    let pods = [ObservedPod { disruption: Some(Box::new(lost)), ..ended(0, 1, 143, 24) }, left(1, 1, 24, report)];
    world.see(Some(failed), pods);
    assert_eq!(reasons(&world.step()), ["Restarting"]);
    assert_eq!(
        (world.status.attempt, world.status.restart_count, world.status.disruption_count),
        (Some(2), Some(1), None)
    );
    assert_eq!((world.status.restarts.len(), world.status.restarts[0].reason.as_str()), (1, "PythonException"));
}

#[test]
fn leader_decides_on_further_attempts() {
    let restarts = RestartHistory {
        judged: 4,
        failures: 2,
        disruptions: 1,
        stopped: Some("3 times in a row at step 7".to_owned()),
        ..RestartHistory::default()
    };
    let report = |attempt| Report {
        attempt,
        exit_code: Some(1),
        gang: Some(GangEnd { restarts: restarts.clone(), ..GangEnd::default() }),
        ..Report::default()
    };
    let before =
        GangEnd { restarts: RestartHistory { judged: 3, stopped: None, ..restarts.clone() }, ..GangEnd::default() };
    let over = ObservedJob { failed: Some(("BackoffLimitExceeded".into(), "x".into())), ..job(1) };
    let mut world = World::to_running();
    world.second = 100;
    world.see(Some(over.clone()), [0, 1].map(|index| left(index, 1, 99, report(4))));
    world.step(); // no agent was queried before
    assert_eq!(world.status.state, Some(State::Failed));
    assert_eq!(world.status.failure_reason, Some(Reason::ExitCode), "the first cause");
    let message = world.status.failure_message.clone().unwrap();
    assert!(message.ends_with("exit code 1 (3 times in a row at step 7)"), "{message}");
    assert_eq!(
        (world.status.attempt, world.status.restart_count, world.status.disruption_count),
        (Some(4), Some(3), Some(1))
    );
    assert_eq!(world.status.restarts.last().map(|entry| entry.attempt), Some(4));

    // The operator judges an attempt that no leader has judged by the same rules.
    let mut world = World::to_running();
    world.spec.failure_policy.backoff_limit = Some(2);
    world.second = 100;
    world.see(Some(over), [0, 1].map(|index| left(index, 1, 99, Report { gang: Some(before.clone()), ..report(4) })));
    world.step();
    let message = world.status.failure_message.clone().unwrap();
    assert!(message.ends_with("exit code 1 (after 2 restarts; failurePolicy.backoffLimit is 2)"), "{message}");
}

/// If a gang ends within the seconds between two queries, its leader's final report contains its past.
#[test]
fn unpolled_restart_is_reported_from_final_report() {
    let report = |gang| Report { attempt: 2, exit_code: Some(0), gang: Some(gang), ..Report::default() };
    let counts = GangEnd { restarts: history(&[end(1)]), ..GangEnd::default() };
    let leads = GangEnd { ended: vec![end(1)], ..counts.clone() };
    let mut world = World::to_running();
    world.second = 100;
    let done = |index, gang| ObservedPod { ended: Some(true), ..left(index, 1, 99, report(gang)) };
    world.see(Some(ObservedJob { complete: true, ..job(1) }), [done(0, leads), done(1, counts)]);
    let verdict = world.step();
    let events = reasons(&verdict);
    assert_eq!(events.iter().filter(|reason| **reason == "Restarting").count(), 1, "{events:?}");
    let [restart] = &world.status.restarts[..] else { panic!("{:?}", world.status.restarts) };
    assert_eq!((restart.attempt, restart.disruption), (1, false));
    assert_eq!((world.status.attempt, world.status.restart_count), (Some(2), Some(1)));
    assert_eq!(world.status.state, Some(State::Completed));
}

/// While no operator ran, worker 1 failed first and worker 0 because of it. The Job controller has deleted the pod of
/// worker 1 since then.
#[test]
fn leader_names_failed_worker_whose_pod_is_gone() {
    let over = ObservedJob { failed: Some(("BackoffLimitExceeded".into(), "x".into())), ..job(1) };
    let first = AttemptEnd { time: Some(at(98)), ..end(1) };
    let gone = ObservedPod { deletion: Some(at(99)), gone: true, ..running(1, 1) };
    let stopping = ObservedPod { gone: false, ..gone.clone() };
    let seen = left(1, 1, 97, Report { attempt: 1, exit_code: Some(1), ..Report::default() });
    let guessed = AttemptEnd { disruption: true, ..first.clone() };
    for (case, reported, other, expected) in [
        ("no pod", &first, None, (Some(1), "PythonException")),
        ("end unseen", &first, Some(gone.clone()), (Some(1), "PythonException")),
        ("not ended", &first, Some(stopping), (Some(1), "PythonException")),
        ("end seen", &first, Some(seen), (Some(1), "ExitCode")),
        ("guess", &guessed, Some(gone), (Some(0), "ExitCode")),
    ] {
        let gang = Some(GangEnd { ended: vec![reported.clone()], ..GangEnd::default() });
        let report = Report { attempt: 1, exit_code: Some(1), gang, ..Report::default() };
        let mut world = World::to_running();
        world.second = 100;
        world.see(Some(over.clone()), [left(0, 1, 99, report)].into_iter().chain(other));
        world.step();
        let [end] = &world.status.restarts[..] else { panic!("{case}: {:?}", world.status.restarts) };
        assert_eq!((end.worker, end.reason.as_str()), expected, "{case}");
    }
}

#[test]
fn restarted_container_is_not_a_failure() {
    let mut world = World::to_running();
    world.spec.failure_policy.start_deadline_seconds = Some(60);
    let back_off = WaitingState { reason: "CrashLoopBackOff".into(), message: "back-off 10s".into() };
    let killed = ObservedPod { killed: Some("OOMKilled".into()), waiting: Some(Box::new(back_off)), ..placed(1, 1) };
    world.second = 5000;
    world.see(Some(job(1)), [killed]);
    assert_eq!(world.step().actions, [Action::Ensure]);
    assert_eq!((world.status.state, world.status.restarts.len()), (Some(State::Initializing), 0));
    let words = "worker 1 (pod x-training-1-abcde, node node-1): its container was killed (OOMKilled) and is started again: back-off 10s";
    assert_eq!(world.condition("Running"), ("False", "OOMKilled", words));
    world.see(Some(job(1)), [running(1, 1)]);
    world.step();
    assert_eq!(world.status.state, Some(State::Running));
}

#[test]
fn preempted_job_with_earlier_attempts_is_recreated() {
    let mut world = World::to_running();
    world.second = 50;
    world.agent = Some(leader(1, gang(2, GangPhase::Running, vec![end(1)])));
    world.step();
    world.see(Some(ObservedJob { suspended_by_queue: true, ..job(1) }), []);
    let verdict = world.step();
    assert!(
        verdict.actions.contains(&Action::DeleteJob { name: "x-training".into(), uid: "job-1".into() }),
        "{verdict:?}"
    );
    assert_eq!((world.status.state, world.status.restart_count), (Some(State::Pending), Some(1)));
    world.see(None, []);
    world.children.pods.clear();
    let past = GangPast { restarts: history(&[end(1)]), ..GangPast::default() };
    let next = Incarnation { number: 2, attempt: 3 };
    assert_eq!(world.step().actions, [Action::Ensure, Action::CreateJobs(next, past)]);
}

#[test]
fn huge_attempt_numbers_do_not_overflow() {
    let mut world = World::to_running();
    let huge = GangStatus {
        restarts: RestartHistory {
            judged: u32::MAX,
            failures: u32::MAX,
            disruptions: u32::MAX,
            ..RestartHistory::default()
        },
        ..gang(u32::MAX, GangPhase::Running, vec![end(u32::MAX)])
    };
    world.agent = Some(leader(1, huge));
    world.step();
    world.see(
        Some(ObservedJob { failed: Some((String::new(), String::new())), ..job(1) }),
        [0, 1].map(|index| ended(index, 1, 1, 20)),
    );
    world.second = 20;
    world.step();
    assert_eq!((world.status.attempt, world.status.restart_count), (Some(u32::MAX), Some(u32::MAX)));
}

/// An agent ends within its deadlines whatever it runs. The wait for an agent that does not must end too.
#[test]
fn gang_that_does_not_stop_is_recreated() {
    let mut world = World::to_running();
    let stops = GangStatus {
        waits_for: "worker 1, which is stopping".into(),
        stopping_since: Some(at(30)),
        ..gang(1, GangPhase::Stopping, vec![])
    };
    world.agent = Some(leader(1, stops));
    world.second = 40;
    let verdict = world.step();
    assert_eq!((world.condition("Running").1, verdict.actions.len()), ("Stopping", 1));
    assert!(verdict.requeue.is_some_and(|after| after.as_secs() > 600), "{:?}", verdict.requeue);
    world.second = 30 + 60 + 900;
    let verdict = world.step();
    assert!(verdict.actions.iter().any(|action| matches!(action, Action::DeleteJob { .. })), "{verdict:?}");
    let entry = &world.status.restarts[0];
    assert_eq!((&entry.reason, entry.disruption, world.status.incarnation), (&Reason::Unkillable, true, Some(2)));
    assert!(entry.message.contains("worker 1, which is stopping"), "{}", entry.message);
}

/// Nothing else would explain why running workers don't find each other.
#[test]
fn mesh_proxy_is_named_when_gang_does_not_form() {
    let mut world = World::to_running();
    let waits =
        || GangStatus { waits_for: "worker 1, which has not come yet".into(), ..gang(0, GangPhase::Gathering, vec![]) };
    world.agent = Some(leader(1, waits()));
    world.second = 200;
    world.step();
    assert_eq!(world.condition("Running").2, "worker 1, which has not come yet");
    world.children.pods.values_mut().for_each(|pod| pod.mesh = Some("istio-proxy"));
    world.second = 40;
    world.step();
    assert_eq!(world.condition("Running").2, "worker 1, which has not come yet", "not yet");
    world.second = 200;
    world.step();
    let words = world.condition("Running").2;
    assert!(words.contains("(istio-proxy)") && words.contains("Service meshes"), "{words}");
}
