//! The user's rules for certain failures, when the operator judges them.

use super::*;
use serde_json::{Value, json};

fn with(rules: Value, policy: Value) -> World {
    let mut policy = policy;
    policy["rules"] = rules;
    let mut world = World::to_running();
    world.spec.failure_policy = serde_json::from_value(policy).unwrap();
    world
}

#[test]
fn ignored_failure_spends_no_budget() {
    let rules = json!([{ "exitCodes": [1], "action": "Ignore" }]);
    let mut world = with(rules, json!({ "backoffLimit": 0 }));
    let verdict = world.fail(1, 60);
    let entry = &world.status.restarts[0];
    assert_eq!((entry.rule, entry.disruption, entry.permanent), (Some(1), true, false));
    assert!(entry.to_string().ends_with("(rule 1 of failurePolicy.rules: Ignore)"), "{entry}");
    assert_eq!((world.status.attempt, world.status.restart_count), (Some(2), Some(1)));
    assert_eq!(world.status.disruption_count, Some(1));
    let note = &verdict.events.iter().find(|event| event.reason == "Restarting").unwrap().note;
    assert!(note.starts_with("attempt 1 failed, attempt 2 follows") && note.contains("Ignore"), "{note}");
    // A decision is neither made nor reported twice.
    assert_eq!(world.step().events.len(), 0);
    assert_eq!(world.status.restarts.len(), 1);
}

#[test]
fn fail_rule_ends_job_regardless_of_budget() {
    let rules = json!([{ "reasons": ["OOMKilled"], "action": "Ignore" }, { "exitCodes": [1], "action": "Fail" }]);
    let mut world = with(rules, json!({ "restartPolicy": "Always" }));
    world.fail(1, 60);
    assert_eq!((world.status.state, world.status.attempt), (Some(State::Failed), Some(1)));
    let message = world.status.failure_message.as_ref().unwrap();
    assert!(message.ends_with("(rule 2 of failurePolicy.rules: Fail)"), "{message}");
    assert!(world.condition("Failed").2.contains("rule 2 of failurePolicy.rules: Fail"));
}

#[test]
fn restart_rule_retries_permanent_failure() {
    let rules = json!([{ "reasons": ["CommandNotFound"], "action": "Restart" }]);
    for (limit, attempt, state) in [(1, 2, State::Initializing), (0, 1, State::Failed)] {
        let mut world = with(rules.clone(), json!({ "backoffLimit": limit }));
        let end = AttemptEnd {
            permanent: true,
            time: Some(at(60)),
            ran_seconds: 55,
            ..AttemptEnd::new(1, Reason::CommandNotFound, "no such command")
        };
        let ruled = failure::restart::ruled(&plan_of(&world).policy.failure.restart, end);
        assert_eq!((ruled.permanent, ruled.disruption, ruled.rule), (false, false, Some(1)));
        world.status.restarts = vec![ruled];
        world.children.pods.clear();
        world.see(Some(ObservedJob { failed: Some(("BackoffLimitExceeded".into(), String::new())), ..job(1) }), []);
        world.second = 61;
        world.step();
        assert_eq!((world.status.attempt, world.status.state), (Some(attempt), Some(state)), "{:?}", world.status);
    }
}

/// By then the leader has decided, and later findings of the operator do not change its decision.
#[test]
fn leader_decision_is_not_overridden_by_operator() {
    let rules = json!([{ "reasons": ["PythonException"], "action": "Fail" }]);
    let mut world = with(rules, json!({}));
    let ended = AttemptEnd { rule: Some(3), disruption: true, ..super::gang::end(1) };
    world.second = 90;
    world.agent = Some(super::gang::leader(1, super::gang::gang(2, protocol::gang::GangPhase::Running, vec![ended])));
    let verdict = world.step();
    assert_eq!((world.status.state, world.status.restarts[0].rule), (Some(State::Running), Some(3)));
    assert!(verdict.events[0].note.starts_with("attempt 1 failed"), "{:?}", verdict.events);
}

fn plan_of(world: &World) -> plan::Plan {
    plan::resolve(&TrainingJob::new("x", world.spec.clone()), &OperatorInfo::default()).plan
}
