//! A gang with roles, which has a Job for each role and one lifecycle.

use super::gang::{gang, leader};
use super::*;
use api::RoleSpec;
use protocol::gang::GangPhase;

pub(super) const CHIEF: RoleName = RoleName::literal("chief");
const PS: RoleName = RoleName::literal("ps");

/// Two workers, a chief whose end decides, and two parameter servers.
pub(super) fn world() -> World {
    let mut world = World::new();
    let role = |name: &str, replicas| RoleSpec { name: name.into(), replicas: Some(replicas), ..RoleSpec::default() };
    world.spec.framework = Some(api::Framework::Tensorflow);
    world.spec.roles = vec![role("ps", 2), role("chief", 1)];
    world.spec.checkpoint.enabled = Some(false);
    world
}

pub(super) fn of_role(role: RoleName, pod: ObservedPod) -> ObservedPod {
    let name = format!("x-{role}-{}-abcde", pod.index);
    ObservedPod { role, uid: format!("{role}-{}", pod.uid), name, ..pod }
}

pub(super) fn job_of(role: RoleName, attempt: u32) -> ObservedJob {
    let name = if role.is_worker() { "x-training".into() } else { format!("x-{role}") };
    ObservedJob { role, uid: format!("{role}-{attempt}"), name, ..job(attempt) }
}

pub(super) fn see(
    world: &mut World,
    jobs: impl IntoIterator<Item = ObservedJob>,
    pods: impl IntoIterator<Item = ObservedPod>,
) {
    world.children.jobs = jobs.into_iter().map(|job| (job.role, Box::new(job))).collect();
    world.children.pods.extend(pods.into_iter().map(|pod| (pod.uid.clone(), Box::new(pod))));
}

fn jobs(attempt: u32) -> [ObservedJob; 3] {
    [CHIEF, PS, RoleName::WORKER].map(|role| job_of(role, attempt))
}

fn pods(make: fn(u32, u32) -> ObservedPod, attempt: u32) -> Vec<ObservedPod> {
    let others = [(CHIEF, 0), (PS, 0), (PS, 1)].map(|(role, index)| of_role(role, make(index, attempt)));
    [make(0, attempt), make(1, attempt)].into_iter().chain(others).collect()
}

fn to_running() -> World {
    let mut world = world();
    world.step();
    see(&mut world, jobs(1), pods(running, 1));
    world.second = 10;
    world.step();
    assert_eq!(world.status.state, Some(State::Running), "{:?}", world.status.conditions);
    world
}

/// The Jobs that are to be deleted.
pub(super) fn deleted(verdict: &Decision) -> Vec<&str> {
    let mut names = Vec::new();
    for action in &verdict.actions {
        if let Action::DeleteJob { name, .. } | Action::EndJob { name, .. } = action {
            names.push(name.as_str());
        }
    }
    names
}

#[test]
fn job_runs_when_all_roles_run() {
    let mut world = world();
    let first = world.step();
    assert_eq!(first.actions, [Action::Ensure, create(1)]);
    assert_eq!(first.events[0].note, "Jobs, Service and ConfigMap for 2 workers, 2 ps, 1 chief");

    // Jobs are created one after the other, the workers' Job last.
    see(&mut world, [job_of(CHIEF, 1)], [of_role(CHIEF, placed(0, 1))]);
    assert_eq!(world.step().actions, [Action::Ensure, create(1)], "what is missing is made, and nothing is lost");
    assert_eq!(world.status.state, Some(State::Pending));

    see(&mut world, jobs(1), [running(0, 1), running(1, 1), of_role(CHIEF, running(0, 1)), of_role(PS, running(0, 1))]);
    world.step();
    assert_eq!(world.status.state, Some(State::Pending), "a parameter server is missing");
    see(&mut world, jobs(1), [of_role(PS, placed(1, 1))]);
    world.step();
    assert_eq!(world.status.state, Some(State::Initializing));
    see(&mut world, jobs(1), [of_role(PS, running(1, 1))]);
    assert_eq!(reasons(&world.step()), ["Started"]);
    assert_eq!(world.status.workers.unwrap().active, 2);
    let roles: Vec<_> =
        world.status.roles.iter().map(|role| (role.name.as_str(), role.count.desired, role.count.active)).collect();
    assert_eq!(roles, [("ps", 2, 2), ("chief", 1, 1)]);
    assert_eq!(world.status.resources.unwrap().allocated_gpus, 8, "of the workers alone");
    assert!(world.step().events.is_empty());
}

#[test]
fn job_completes_when_deciding_role_succeeds() {
    let mut world = to_running();
    world.second = 60;
    see(&mut world, jobs(1), [of_role(CHIEF, ended(0, 1, 0, 59))]);
    let done = world.step();
    assert_eq!((world.status.state, reasons(&done)), (Some(State::Completed), vec!["Completed"]));
    assert_eq!(world.condition("Succeeded").2, "every chief exited with code 0");
    assert!(deleted(&done).is_empty(), "the others' agents end them, and their logs stay");
    let rest = pods(|index, attempt| ended(index, attempt, 0, 63), 1);
    see(&mut world, jobs(1).map(|job| ObservedJob { complete: true, ..job }), rest);
    assert!(world.step().actions.is_empty());
}

/// An agent that does not hear how the gang ended holds its pod no longer than a side-car does.
#[test]
fn role_that_does_not_end_by_itself_is_deleted() {
    let mut world = to_running();
    world.second = 60;
    see(&mut world, jobs(1), [of_role(CHIEF, ended(0, 1, 0, 59)), ended(0, 1, 0, 60), ended(1, 1, 0, 60)]);
    world.step();
    world.second = 89;
    assert!(deleted(&world.step()).is_empty());
    world.second = 90;
    assert_eq!(deleted(&world.step()), ["x-ps"], "whose pods run on");
}

#[test]
fn failure_of_any_role_fails_the_gang() {
    let mut world = to_running();
    world.second = 20;
    let failed = ObservedJob { failed: Some(("BackoffLimitExceeded".into(), "it has".into())), ..job_of(PS, 1) };
    let all = [job_of(CHIEF, 1), failed, job_of(RoleName::WORKER, 1)];
    see(&mut world, all.clone(), [of_role(PS, ended(1, 1, 3, 20))]);
    let waits = world.step();
    let entry = &world.status.restarts[0];
    assert_eq!((entry.role, entry.worker, entry.exit_code), (PS, Some(1), Some(3)));
    assert_eq!(entry.to_string(), "ps 1 (pod x-ps-1-abcde, node node-1): exit code 3");
    assert!(deleted(&waits).is_empty() && waits.requeue.is_some(), "the others may end by themselves");
    world.second = 35;
    let verdict = world.step();
    assert_eq!((world.status.incarnation, world.status.restart_count), (Some(2), Some(1)));
    assert_eq!(deleted(&verdict), ["x-chief", "x-ps", "x-training"]);
    // Nothing is created while anything of earlier incarnations exists.
    see(&mut world, [ObservedJob { deleting: true, ..job_of(CHIEF, 1) }], []);
    world.children.pods.clear();
    world.second = 60;
    assert!(world.step().actions.is_empty());
    see(&mut world, [], []);
    assert!(makes_second(&world.step(), FAILED_ONCE));
}

#[test]
fn roles_that_fail_together_are_judged_together() {
    let mut world = to_running();
    world.second = 20;
    let failed =
        |job: ObservedJob| ObservedJob { failed: Some(("BackoffLimitExceeded".into(), "it has".into())), ..job };
    let echo = pods(|index, attempt| ended(index, attempt, 1, 21), 1);
    see(&mut world, jobs(1).map(failed), echo);
    let there = world.children.jobs.clone();
    see(&mut world, there.into_values().map(|job| *job), [of_role(CHIEF, ended(0, 1, 2, 20))]);
    world.step();
    let entry = &world.status.restarts[0];
    assert_eq!((entry.role, entry.worker, world.status.incarnation), (CHIEF, Some(0), Some(2)));
}

#[test]
fn deleted_role_job_counts_as_disruption() {
    let mut world = to_running();
    see(&mut world, [job_of(CHIEF, 1), job_of(RoleName::WORKER, 1)], []);
    world.second = 20;
    let verdict = world.step();
    assert_eq!(world.status.restarts[0].reason, Reason::JobDeleted);
    assert_eq!((world.status.incarnation, world.status.disruption_count), (Some(2), Some(1)));
    assert!(!verdict.actions.iter().any(|action| matches!(action, Action::CreateJobs(..))), "what is left goes first");
    assert_eq!(deleted(&world.step()), ["x-chief", "x-training"]);
}

#[test]
fn partially_created_gang_is_deleted_on_suspension() {
    let mut world = world();
    world.step();
    see(&mut world, [job_of(CHIEF, 1)], [of_role(CHIEF, placed(0, 1))]);
    world.spec.suspend = true;
    assert_eq!(deleted(&world.step()), ["x-chief"]);
    assert_eq!(world.status.incarnation, Some(2), "settled before it is deleted");
    see(&mut world, [], []);
    world.children.pods.clear();
    world.step();
    assert_eq!(world.status.state, Some(State::Suspended));
}

#[test]
fn leader_reports_failure_in_any_role() {
    let mut world = to_running();
    let reported = AttemptEnd {
        role: PS,
        worker: Some(0),
        time: Some(at(20)),
        ..AttemptEnd::new(1, Reason::PythonException, "ValueError: bad")
    };
    world.second = 21;
    world.agent = Some(leader(1, gang(2, GangPhase::Running, vec![reported])));
    world.step();
    let entry = &world.status.restarts[0];
    assert_eq!((entry.role, entry.pod.as_deref()), (PS, Some("x-ps-0-abcde")));
    assert_eq!(entry.to_string(), "ps 0 (pod x-ps-0-abcde, node node-0): ValueError: bad");
    assert_eq!((world.status.attempt, world.status.state), (Some(2), Some(State::Running)));
}

#[test]
fn role_pod_is_replaced_while_its_gang_stays() {
    let mut world = to_running();
    world.agent = Some(leader(1, gang(1, GangPhase::Gathering, vec![])));
    world.second = 20;
    let going = ObservedPod { deletion: Some(at(20)), end_by: Some(at(80)), tracked: true, ..running(1, 1) };
    let going = of_role(PS, going);
    see(&mut world, jobs(1), [going.clone()]);
    let verdict = world.step();
    let release = Action::ReleasePod { name: going.name.clone(), uid: going.uid.clone(), force: false };
    assert!(verdict.actions.contains(&release), "{:?}", verdict.actions);
    assert!(deleted(&verdict).is_empty());
    see(&mut world, jobs(1), [ObservedPod { gone: true, ..going.clone() }]);
    world.step();
    assert_eq!(world.condition("Scheduled").1, "Scheduling");
    let again = ObservedPod { uid: "again".into(), created: Some(at(25)), ..of_role(PS, running(1, 1)) };
    see(&mut world, jobs(1), [again]);
    world.agent = Some(leader(1, gang(2, GangPhase::Running, vec![])));
    world.second = 30;
    world.step();
    assert_eq!((world.status.state, world.status.incarnation), (Some(State::Running), Some(1)));
}

/// The operator was too late to remove a pod from the count, and a failed Job creates no more pods.
#[test]
fn no_pod_of_failed_role_job_is_replaced() {
    let mut world = to_running();
    world.agent = Some(leader(1, gang(1, GangPhase::Gathering, vec![])));
    world.second = 20;
    let failed = || {
        let why = Some(("BackoffLimitExceeded".to_owned(), String::new()));
        jobs(1).map(|job| ObservedJob { failed: why.clone().filter(|_| job.role == PS), ..job })
    };
    let going =
        |index, gone| of_role(PS, ObservedPod { deletion: Some(at(20)), gone, tracked: true, ..running(index, 1) });
    see(&mut world, failed(), [going(0, false), going(1, false)]);
    let verdict = world.step();
    let releases = verdict.actions.iter().any(|action| matches!(action, Action::ReleasePod { .. }));
    assert!(!releases, "{:?}", verdict.actions);
    world.second = 30;
    see(&mut world, failed(), [going(0, true), going(1, true)]);
    world.step();
    assert_eq!(world.condition("Restarting").0, "True");
    world.second = 100;
    let verdict = world.step();
    assert_eq!(world.status.attempt, Some(2), "{:?}", world.status.conditions);
    assert_eq!(deleted(&verdict), ["x-chief", "x-ps", "x-training"]);
}

/// The pods of the other roles stay alive, and do not say why.
#[test]
fn failed_role_without_pods_counts_as_pods_lost() {
    let mut world = to_running();
    world.children.pods.retain(|_, pod| pod.role != PS);
    let failed = jobs(1).map(|job| match job.role == PS {
        true => ObservedJob { failed: Some(("BackoffLimitExceeded".into(), String::new())), ..job },
        false => job,
    });
    world.second = 20;
    see(&mut world, failed.clone(), []);
    world.step();
    assert_eq!(world.condition("Restarting"), ("True", "PodsLost", world.condition("Restarting").2));
    world.second = 100;
    let verdict = world.step();
    assert_eq!((world.status.attempt, world.status.disruption_count), (Some(2), Some(1)));
    assert_eq!(deleted(&verdict), ["x-chief", "x-ps", "x-training"]);
}

#[test]
fn missing_role_job_is_detected() {
    let mut world = to_running();
    assert!(!misses_job(&world.plan(), &world.status, &world.children));
    see(&mut world, [job_of(CHIEF, 1), job_of(RoleName::WORKER, 1)], []);
    assert!(misses_job(&world.plan(), &world.status, &world.children));
}

#[test]
fn job_scaled_down_by_another_client_is_reported() {
    let mut world = to_running();
    see(&mut world, jobs(1).map(|job| ObservedJob { parallelism: Some(1), ..job }), []);
    world.step();
    assert!(world.condition("Scheduled").2.contains("this job needs 2 ps"), "{:?}", world.condition("Scheduled"));
}
