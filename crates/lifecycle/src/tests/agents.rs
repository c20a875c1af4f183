//! The reports of the agents, step by step.

use super::*;
use protocol::hang::Stall;

fn answer(attempt: u32, change: impl FnOnce(&mut AgentStatus)) -> AgentAnswer {
    let mut status = AgentStatus::default();
    status.report.attempt = attempt;
    change(&mut status);
    AgentAnswer { status: status.into(), time: at(10), failing_since: None, remaining: None }
}

fn metric(name: &str, value: f64) -> impl FnOnce(&mut AgentStatus) {
    let name = name.to_owned();
    move |status| {
        let reading = Reading { value, time: at(9), source: Source::Output };
        status.progress.metrics.insert(name.clone(), reading);
        let recent = [NumberedReading { n: 1, value, ..NumberedReading::default() }].into();
        status.histories.insert(name, MetricHistory { count: 1, recent });
    }
}

#[test]
fn answer_of_another_attempt_is_ignored() {
    let mut world = World::to_running();
    world.agent = Some(answer(2, |status| status.percent = Some(50.0)));
    world.step();
    assert_eq!(world.status.progress, None);
    world.agent = Some(answer(1, |status| status.percent = Some(50.0)));
    world.step();
    assert_eq!(world.status.progress.as_deref(), Some("50%"));
}

#[test]
fn job_that_meets_success_policy_is_stopped_and_completed() {
    let mut world = World::to_running();
    world.spec.success_policy = Some(SuccessPolicy { target_accuracy: Some(0.9), ..SuccessPolicy::default() });
    world.agent = Some(answer(1, metric("accuracy", 0.95)));
    let verdict = world.step();
    assert!(verdict.actions.contains(&Action::DeleteJob { name: "x-training".into(), uid: "job-1".into() }));
    assert_eq!(reasons(&verdict), ["GoodEnough"]);
    assert_eq!(world.status.state, Some(State::Running), "its programs may still save");

    // Another operator, which has queried no agent, continues. The end of the workers is no failure.
    world.agent = None;
    world.second = 30;
    world.see(Some(ObservedJob { deleting: true, ..job(1) }), [ended(0, 1, 143, 29), running(1, 1)]);
    world.step();
    assert_eq!((world.status.state, world.status.restarts.len()), (Some(State::Running), 0));
    world.see(None, [0, 1].map(|index| ObservedPod { gone: true, ..ended(index, 1, 143, 31) }));
    assert_eq!(reasons(&world.step()), ["Completed"]);
    assert_eq!(world.status.state, Some(State::Completed));
    assert_eq!((world.status.attempt, world.status.restart_count), (Some(1), Some(0)));
    assert_eq!(world.condition("Succeeded").1, "TargetAccuracyReached");
    assert_eq!(world.status.failure_reason, None);
}

#[test]
fn nan_loss_is_reported_once() {
    let mut world = World::to_running();
    let lost = |value: f64| {
        let reading = metric("loss", value);
        answer(1, |status| {
            reading(status);
            let kind = ErrorPattern::NanLoss;
            let sign = ErrorMatch { kind, text: "epoch 3 loss nan".into(), ..Default::default() };
            status.report.error_patterns.push(sign);
        })
    };
    world.agent = Some(lost(f64::NAN));
    assert_eq!(reasons(&world.step()), ["LossNotFinite"]);
    assert_eq!(world.condition("LossFinite").1, "NaNLoss");
    assert!(world.step().events.is_empty());
    world.agent = Some(lost(0.5));
    world.step();
    assert_eq!(world.condition("LossFinite").1, "Recovered");
    assert_eq!(world.status.state, Some(State::Running), "nanPolicy is Report");
}

#[test]
fn loss_plateau_is_reported_until_loss_improves() {
    let mut world = World::to_running();
    let loss = |value: f64, second: i64, step: f64| {
        answer(1, |status| {
            let reading = |value: f64| Reading { value, time: at(second), source: Source::Output };
            status.progress.metrics.insert("loss".into(), reading(value));
            status.progress.step = Some(reading(step));
        })
    };
    let look = |world: &mut World, value: f64, second: i64, step: f64| {
        (world.second, world.agent) = (second, Some(loss(value, second, step)));
        let plateaus = reasons(&world.step()).iter().filter(|reason| **reason == "LossPlateau").count();
        let (status, reason, _) = world.condition("LossImproving");
        (status.to_owned(), reason.to_owned(), plateaus)
    };
    let begin = 100;
    assert_eq!(look(&mut world, 0.5, begin, 10.0).0, "");
    // Each reading is lower than the one before, and together they are an improvement.
    assert_eq!(look(&mut world, 0.4997, begin + 1000, 20.0).0, "");
    assert_eq!(look(&mut world, 0.4994, begin + 2000, 30.0).0, "");
    assert_eq!(world.status.best_loss.as_ref().unwrap().step, Some(30));
    assert_eq!(look(&mut world, 0.6, begin + 5000, 40.0).0, "");
    assert_eq!(look(&mut world, f64::NAN, begin + 6000, 50.0).0, "", "that is another condition");
    assert_eq!(look(&mut world, 0.6, begin + 6000, 30.0).0, "", "the step has not moved");
    // The next operator knows it from the status alone.
    assert_eq!(look(&mut world, 0.6, begin + 6000, 60.0), ("False".into(), "LossPlateau".into(), 1));
    let message = &world.status.conditions.iter().find(|c| c.type_ == "LossImproving").unwrap().message;
    assert_eq!(
        message,
        "the loss has not been lower than 0.4994 at step 30 for 4000 s (monitoring.plateauSeconds is 3600)"
    );
    assert_eq!(look(&mut world, 0.6, begin + 9000, 70.0), ("False".into(), "LossPlateau".into(), 0), "it is said once");
    assert_eq!(look(&mut world, 0.4, begin + 9500, 80.0), ("True".into(), "Recovered".into(), 0));
    assert_eq!(look(&mut world, 0.4, begin + 13_100, 90.0).0, "False", "an hour later");

    world.spec.monitoring.plateau_seconds = Some(0);
    assert_eq!(look(&mut world, 0.4, begin + 13_200, 95.0).0, "True", "it is not checked any more");
    world.spec.monitoring.plateau_seconds = Some(60);
    assert_eq!(look(&mut world, 0.4, begin + 13_300, 99.0).0, "False");
}

#[test]
fn unreachable_agent_is_reported_and_its_values_stay() {
    let mut world = World::to_running();
    let mut last = answer(1, |status| status.percent = Some(50.0));
    last.failing_since = Some(at(20));
    world.agent = Some(last.clone());
    world.second = 30;
    world.step();
    assert!(world.status.conditions.iter().all(|c| c.type_ != "AgentReady"), "some polls may fail");
    world.second = 50;
    world.step();
    assert_eq!(world.condition("AgentReady").1, "Unreachable");
    assert_eq!(world.status.progress.as_deref(), Some("50%"));
    last.failing_since = None;
    world.agent = Some(last);
    world.step();
    assert_eq!(world.condition("AgentReady").1, "Answers");
}

#[test]
fn answers_from_before_queue_suspension_are_ignored() {
    let mut world = World::to_running();
    world.agent = Some(answer(1, metric("loss", 0.5)));
    world.step();
    world.second = 20;
    let stopped = [0, 1].map(|index| ObservedPod { deletion: Some(at(20)), gone: true, ..running(index, 1) });
    world.see(Some(ObservedJob { suspended_by_queue: true, ..job(1) }), stopped);
    world.step();
    world.second = 10_000;
    let later = |index| ObservedPod { uid: format!("later-{index}"), created: Some(at(10_000)), ..running(index, 1) };
    world.see(Some(ObservedJob { resumed: Some(at(10_000)), ..job(1) }), [later(0), later(1)]);
    assert!(!reasons(&world.step()).contains(&"ProgressStalled"));
    world.agent = Some(AgentAnswer { failing_since: Some(at(30)), ..answer(1, metric("loss", 0.5)) });
    world.step();
    assert_eq!((world.condition("ProgressStalled").0, world.condition("AgentReady").0), ("", ""));
    world.agent = Some(AgentAnswer { time: at(10_000), ..answer(1, metric("loss", 0.5)) });
    assert!(reasons(&world.step()).contains(&"ProgressStalled"), "these say that they told nothing for hours");
}

/// A refused answer needs another remedy than a missing answer.
#[test]
fn refused_agent_answer_is_reported_with_reason() {
    let mut world = World::to_running();
    world.agent_refusal = Some("its proof is wrong");
    world.agent_silent_since = Some(at(10));
    world.second = 40;
    let verdict = world.step();
    let (status, reason, message) = world.condition("AgentReady");
    assert_eq!((status, reason), ("False", "NeverAnswered"));
    assert_eq!(message, "no progress and no metrics are seen: its proof is wrong");
    assert_eq!(verdict.events.iter().map(|event| event.reason).collect::<Vec<_>>(), ["AgentUnreachable"]);

    let mut world = World::to_running();
    world.agent = Some(AgentAnswer { failing_since: Some(at(10)), ..answer(1, |_| {}) });
    world.agent_refusal = Some("its proof is wrong");
    world.second = 40;
    world.step();
    let (status, reason, message) = world.condition("AgentReady");
    assert_eq!((status, reason), ("False", "Unreachable"));
    assert!(message.ends_with(": its proof is wrong"), "{message}");
}

#[test]
fn stalled_progress_is_reported_once() {
    let mut world = World::to_running();
    world.agent = Some(answer(1, metric("loss", 0.5)));
    assert_eq!(world.step().requeue, Some(std::time::Duration::from_secs(599)));
    world.second = 609;
    assert_eq!(reasons(&world.step()), ["ProgressStalled"]);
    world.second = 700;
    assert!(world.step().events.is_empty(), "once");
    world.agent = Some(answer(1, |status| {
        metric("loss", 0.4)(status);
        status.progress.metrics.get_mut("loss").unwrap().time = at(690);
    }));
    world.step();
    assert_eq!(world.condition("ProgressStalled").1, "Progresses");
}

#[test]
fn suspected_hang_is_reported_until_next_step() {
    let mut world = World::to_running();
    let suspected = |hangs: bool, message: &str| {
        let stall = Stall { hangs, time: at(9), rank: hangs.then_some(2), message: message.to_owned() };
        answer(1, |status| {
            metric("loss", 0.5)(status);
            (status.worker, status.stall) = (Some(0), Some(stall));
        })
    };
    world.agent = Some(suspected(false, "process 57 is stopped (SIGSTOP)"));
    assert_eq!(reasons(&world.step()), ["ProgressStalled"]);
    assert_eq!(world.condition("ProgressStalled").1, "NoProgress");
    world.agent = Some(suspected(true, "no step for 30 s after step 41, process 57 is stopped (SIGSTOP)"));
    assert_eq!(reasons(&world.step()), ["ProgressStalled"], "two signs agree");
    let (is_stalled, reason, message) = world.condition("ProgressStalled");
    assert_eq!((is_stalled, reason), ("True", "Hang"));
    assert!(message.starts_with("worker 0, rank 2: no step for 30 s after step 41, process 57"), "{message}");
    world.second = 20;
    assert!(world.step().events.is_empty(), "once");
    assert_eq!(world.status.state, Some(State::Running));
    world.agent = Some(answer(1, metric("loss", 0.4)));
    assert!(world.step().events.is_empty());
    assert_eq!(world.condition("ProgressStalled").1, "Progresses");
}

/// After the deadline the failure says what the job waited for, in the same words as before.
#[test]
fn start_deadline_failure_includes_wait_reason() {
    let mut world = World::new();
    world.spec.failure_policy.start_deadline_seconds = Some(60);
    world.step();
    let words = WaitingState { reason: "Unschedulable".into(), message: "0/3 nodes are available".into() };
    world.see(
        Some(job(1)),
        [0, 1].map(|index| ObservedPod { unschedulable: Some(Box::new(words.clone())), ..pod(index, 1) }),
    );
    world.second = 20;
    assert_eq!(world.step().requeue, Some(std::time::Duration::from_secs(40)));
    world.second = 60;
    let verdict = world.step();
    assert_eq!(world.status.state, Some(State::Failed));
    assert_eq!(world.status.failure_reason, Some(Reason::Unschedulable));
    assert_eq!(
        world.status.failure_message.as_deref(),
        Some(
            "worker 0 (and 1 more of 2 workers): 0/3 nodes are available (not every worker ran within 60 s; \
             failurePolicy.startDeadlineSeconds is 60)"
        )
    );
    assert!(verdict.actions.contains(&Action::DeleteJob { name: "x-training".into(), uid: "job-1".into() }));

    // The deadline applies to each attempt, until its programs run.
    let mut world = World::to_running();
    world.spec.failure_policy.start_deadline_seconds = Some(60);
    world.second = 1000;
    world.step();
    assert_eq!(world.status.state, Some(State::Running));
}
