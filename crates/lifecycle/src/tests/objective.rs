//! Readings of the objective, from answers and final reports.

use super::*;
use api::{Measurement, Objective, ObjectiveStatus, Rungs};
use protocol::objective::{ObjectiveRule, RungSteps};
use std::sync::Arc;

fn rule() -> ObjectiveRule {
    ObjectiveRule { metric: "eval_loss".into(), max: false, rungs: Some(RungSteps { min_step: 10, factor: 2 }) }
}

fn world() -> World {
    let mut world = World::new();
    let rungs = Some(Rungs { min_step: 10, factor: 2 });
    world.spec.monitoring.objective = Some(Objective { metric: "eval_loss".into(), mode: None, rungs });
    world
}

fn to_running() -> World {
    let mut world = world();
    world.step();
    world.see(Some(job(1)), [running(0, 1), running(1, 1)]);
    world.step();
    assert_eq!(world.status.state, Some(State::Running));
    world
}

/// The record of an agent that started at `since` in this attempt.
fn records(since: i64, attempt: u32, readings: &[(f64, i64)]) -> ObjectiveStatus {
    let mut records = ObjectiveStatus::begin(None, since);
    readings.iter().for_each(|&(value, step)| records.record(&rule(), attempt, value, Some(step)));
    records
}

fn answer(attempt: u32, objective: ObjectiveStatus) -> AgentAnswer {
    let report = Report { version: 1, attempt, ..Report::default() };
    let status = AgentStatus { report, objective: Some(objective), ..AgentStatus::default() };
    AgentAnswer { status: Arc::new(status), time: at(10), failing_since: None, remaining: None }
}

/// A pod whose program ended with this code, with its agent's report.
fn left(index: u32, incarnation: u32, exit_code: i32, objective: Option<&ObjectiveStatus>) -> ObservedPod {
    let mut pod = ended(index, incarnation, exit_code, 20);
    if let Container::Terminated { report, .. } = &mut pod.training {
        let objective = objective.map(ObjectiveStatus::last_words);
        *report = Some(Box::new(Report { version: 1, attempt: incarnation, objective, ..Report::default() }));
    }
    pod
}

/// The count, the last and best readings, and the rungs.
type Recorded = (u64, Option<Measurement>, Option<Measurement>, Vec<(i64, f64)>);

fn recorded(world: &World) -> Recorded {
    let objective = world.status.objective.as_ref().unwrap();
    let rungs = objective.rungs.iter().map(|rung| (rung.step, rung.value)).collect();
    (objective.count, objective.last, objective.best, rungs)
}

#[expect(clippy::unnecessary_wraps, reason = "fits where it is used")]
fn reading(value: f64, step: i64) -> Option<Measurement> {
    Some(Measurement { value, step: Some(step) })
}

#[test]
fn final_report_adds_unpolled_readings() {
    let mut world = to_running();
    world.agent = Some(answer(1, records(1, 1, &[(5.0, 10)])));
    world.step();
    assert_eq!(recorded(&world), (1, reading(5.0, 10), reading(5.0, 10), vec![(10, 5.0)]));
    let all = records(1, 1, &[(5.0, 10), (3.0, 20), (4.0, 50)]);
    world.see(Some(job(1)), [left(0, 1, 0, Some(&all)), left(1, 1, 0, Some(&records(2, 1, &[(1.0, 10)])))]);
    world.step();
    assert_eq!(world.status.state, Some(State::Completed));
    assert_eq!(recorded(&world), (3, reading(4.0, 50), reading(3.0, 20), vec![(10, 5.0), (20, 3.0), (50, 4.0)]));
}

#[test]
fn objective_without_readings_has_count_zero() {
    let mut world = to_running();
    assert_eq!(recorded(&world), (0, None, None, vec![]));
    let mut records = ObjectiveStatus::begin(None, 1);
    records.note_reported(["loss".to_owned()].iter());
    world.see(Some(job(1)), [left(0, 1, 0, Some(&records)), left(1, 1, 0, None)]);
    world.step();
    assert_eq!(world.status.state, Some(State::Completed));
    let objective = world.status.objective.unwrap();
    assert_eq!((objective.metric.as_str(), objective.count), ("eval_loss", 0));
    assert_eq!(objective.reported, ["loss"]);
    assert_eq!(
        serde_json::to_value(&ObjectiveStatus { reported: Vec::new(), ..objective }).unwrap(),
        json!({ "metric": "eval_loss", "count": 0 })
    );
    let mut other = World::new();
    other.step();
    assert_eq!(other.status.objective, None);
}

#[test]
fn objective_falls_back_to_readings_of_another_member() {
    let silent = &ObjectiveStatus::begin(None, 1);
    let readings = &records(2, 1, &[(1.0, 10)]);
    let mut world = to_running();
    world.see(Some(job(1)), [running(0, 1), left(1, 1, 0, Some(readings))]);
    world.step();
    assert_eq!(recorded(&world).0, 0, "the first worker may still report it");
    world.see(Some(job(1)), [left(0, 1, 0, Some(silent)), left(1, 1, 0, Some(readings))]);
    world.step();
    assert_eq!(recorded(&world), (1, reading(1.0, 10), reading(1.0, 10), vec![(10, 1.0)]));
    // The other worker has answered before.
    let mut world = to_running();
    world.agent = Some(answer(1, records(2, 1, &[(2.0, 10)])));
    world.step();
    let more = records(2, 1, &[(2.0, 10), (1.0, 20)]);
    world.see(Some(job(1)), [running(0, 1), left(1, 1, 0, Some(&more))]);
    world.step();
    assert_eq!(recorded(&world).0, 2);
}

#[test]
fn readings_of_all_attempts_add_up() {
    let mut world = to_running();
    let first = records(1, 1, &[(5.0, 10), (3.0, 20)]);
    world.see(Some(job(1)), [left(0, 1, 1, Some(&first)), running(1, 1)]);
    world.step();
    assert_eq!(recorded(&world).0, 2);
    world.see(None, []);
    for _ in 0..3 {
        world.second += 60;
        world.step();
    }
    world.see(Some(job(2)), [running(0, 2), running(1, 2)]);
    // The program resumes from an earlier checkpoint, and its node's clock is behind.
    world.agent = Some(answer(2, records(0, 2, &[(6.0, 15), (4.0, 25), (3.5, 40)])));
    world.step();
    world.step();
    assert_eq!(world.status.attempt, Some(2));
    assert_eq!(recorded(&world), (5, reading(3.5, 40), reading(3.0, 20), vec![(10, 5.0), (20, 3.0), (40, 3.5)]));
}

/// The watch of Jobs may be ahead of the watch of pods.
#[test]
fn a_job_is_not_completed_before_its_last_reading_is_seen() {
    let mut world = to_running();
    let done = ObservedJob { complete: true, completed: [0, 1].into(), ..job(1) };
    world.see(Some(done.clone()), [running(0, 1), running(1, 1)]);
    world.step();
    assert_eq!(world.status.state, Some(State::Running));
    world.see(Some(done), [left(0, 1, 0, Some(&records(1, 1, &[(5.0, 10)]))), running(1, 1)]);
    world.step();
    assert_eq!((world.status.state, recorded(&world).0), (Some(State::Completed), 1));
    // The pod is gone, and its readings with it.
    let mut world = to_running();
    world.see(
        Some(ObservedJob { complete: true, completed: [0, 1].into(), ..job(1) }),
        [ObservedPod { gone: true, ..running(0, 1) }, running(1, 1)],
    );
    world.step();
    assert_eq!((world.status.state, recorded(&world).0), (Some(State::Completed), 0));
}
