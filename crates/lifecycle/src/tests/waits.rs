//! What a job waits for before its Jobs exist. Each wait is named, and has an end.

use super::roles::{CHIEF, deleted, job_of, of_role, see, world as with_roles};
use super::*;
use api::{Backup, Checkpoint, CheckpointStatus, Storage};
use plan::Upkeep;

fn denied(reason: Reason) -> Blocked {
    Blocked { reason, message: "policy p says no".into() }
}

/// A job that is to start within a minute, after its first step.
fn starting(spec: TrainingJobSpec) -> World {
    let mut world = World { spec, ..World::new() };
    world.spec.failure_policy.start_deadline_seconds = Some(60);
    world.step();
    world
}

fn failure(world: &World) -> Option<(String, String)> {
    let reason = world.status.failure_reason.clone()?;
    Some((reason.to_string(), world.status.failure_message.clone()?))
}

#[test]
fn job_blocked_until_start_deadline_fails_with_reason() {
    for (key, reason) in [
        (ChildKey::job(RoleName::WORKER), Reason::Denied),
        (ChildKey::SERVICE, Reason::NameTaken),
        (ChildKey::POD_GROUP, Reason::GangSchedulerMissing),
        (ChildKey::job(RoleName::WORKER), Reason::ApiTimeout),
    ] {
        let mut world = starting(spec());
        world.children.blocked.insert(key, denied(reason.clone()));
        world.second = 59;
        let waits = world.step();
        assert_eq!((world.status.state, waits.requeue.map(|wait| wait.as_secs())), (Some(State::Pending), Some(1)));
        world.second = 60;
        assert_eq!(world.step().actions, [], "nothing more is made");
        let (failed_for, message) = failure(&world).unwrap();
        assert_eq!(failed_for, reason.as_str());
        let end = "policy p says no (not every worker ran within 60 s; failurePolicy.startDeadlineSeconds is 60)";
        assert!(message.ends_with(end), "{message}");
    }
}

#[test]
fn job_without_start_deadline_waits_while_blocked() {
    let mut world = World::new();
    world.step();
    world.children.blocked.insert(ChildKey::job(RoleName::WORKER), denied(Reason::Denied));
    world.second = 1_000_000;
    assert_eq!(world.step().actions, [Action::Ensure, create(1)]);
    assert_eq!((world.status.state, world.condition("Scheduled").1), (Some(State::Pending), "Denied"));
}

#[test]
fn start_deadline_excludes_time_suspended_or_refused() {
    let mut world = starting(spec());
    world.spec.suspend = true;
    world.second = 50;
    world.step();
    world.spec.suspend = false;
    world.second = 1000;
    world.step();
    world.second = 1059;
    world.step();
    assert_eq!(failure(&world), None, "it was suspended");

    world.refused = Some("numWorkers".into());
    world.step();
    world.refused = None;
    world.second = 2000;
    world.step();
    world.second = 2059;
    world.step();
    assert_eq!(failure(&world), None, "its spec could not run");

    world.second = 2060;
    world.step();
    assert_eq!(failure(&world).unwrap().0, "Scheduling");
    world.asked = Some("again");
    world.second = 5000;
    world.step();
    world.second = 5059;
    world.step();
    assert_eq!((failure(&world), world.status.state), (None, Some(State::Pending)), "it was asked to start again");
    world.second = 5060;
    world.step();
    assert_eq!(failure(&world).unwrap().0, "Scheduling");
}

/// The pods of the old spec may take longer to end than is left of their time.
#[test]
fn start_deadline_counts_anew_for_a_changed_spec() {
    let mut world = starting(spec());
    world.see(Some(job(1)), [pod(0, 1), pod(1, 1)]);
    world.second = 50;
    world.step();
    (world.spec.image, world.generation) = (Some("better".into()), world.generation + 1);
    world.step();
    assert_eq!(world.status.attempt, Some(2));
    world.see(Some(ObservedJob { deleting: true, ..job(1) }), [pod(0, 1), pod(1, 1)]);
    world.second = 70;
    world.step();
    world.see(None, []);
    world.children.pods.clear();
    world.second = 109;
    world.step();
    assert_eq!((failure(&world), world.status.state), (None, Some(State::Pending)));
    world.second = 110;
    world.step();
    assert_eq!(failure(&world).unwrap().0, "Scheduling");
}

/// A Job that a queue holds has no deadline, nor has one that another client made smaller. If it is deleted, as the
/// second one's message suggests, the next Job has all its time.
#[test]
fn start_deadline_counts_anew_after_a_job_that_could_not_start() {
    let queued = ObservedJob { suspended_by_queue: true, ..job(1) };
    let shrunk = ObservedJob { parallelism: Some(1), ..job(1) };
    for (held, reason) in [(queued, "Queued"), (shrunk, "Parallelism")] {
        let mut world = starting(spec());
        world.see(Some(held), []);
        world.second = 20;
        world.step();
        world.second = 1000;
        world.step();
        assert_eq!((world.condition("Scheduled").1, failure(&world)), (reason, None));
        world.see(None, []);
        world.second = 1010;
        world.step();
        world.second = 1069;
        world.step();
        assert_eq!(failure(&world), None, "{reason}");
        world.second = 1070;
        world.step();
        assert_eq!(failure(&world).unwrap().0, "Scheduling", "{reason}");
    }
}

#[test]
fn start_deadline_of_restart_counts_from_end_of_back_off() {
    let mut world = World::to_running();
    world.spec.failure_policy.start_deadline_seconds = Some(60);
    world.fail(1, 100);
    world.see(None, []);
    world.children.pods.clear();
    world.children.blocked.insert(ChildKey::job(RoleName::WORKER), denied(Reason::QuotaExceeded));
    world.second = 110;
    world.step();
    world.second = 160;
    world.step();
    assert_eq!(failure(&world), None);
    world.second = 170;
    world.step();
    assert_eq!(failure(&world).unwrap().0, "QuotaExceeded");
}

/// Its pods would hold nodes for a gang that may never be complete.
#[test]
fn jobs_of_other_roles_are_deleted_if_one_role_is_blocked() {
    let mut world = with_roles();
    world.step();
    see(&mut world, [job_of(CHIEF, 1)], [of_role(CHIEF, running(0, 1))]);
    world.second = 59;
    assert_eq!(world.step().actions, [Action::Ensure, create(1)]);
    world.children.blocked.insert(ChildKey::job(RoleName::WORKER), denied(Reason::Denied));
    let waits = world.step();
    assert_eq!((deleted(&waits), waits.requeue.map(|wait| wait.as_secs())), (vec![], Some(1)));
    world.second = 60;
    let gives_up = world.step();
    assert_eq!(deleted(&gives_up), ["x-chief"]);
    assert!(!gives_up.actions.iter().any(|action| matches!(action, Action::CreateJobs(..))), "{:?}", gives_up.actions);
    assert_eq!(
        (world.status.attempt, world.status.incarnation, world.condition("Scheduled").1),
        (Some(1), Some(2), "Denied")
    );

    // The end of its pods is no failure.
    see(&mut world, [], [of_role(CHIEF, ObservedPod { deletion: Some(at(60)), ..running(0, 1) })]);
    world.step();
    let why = "waiting for the last pods of Jobs that were given up to end, x-chief-0-abcde among them";
    assert_eq!(world.condition("Scheduled"), ("False", "OldPods", why));
    see(&mut world, [], [of_role(CHIEF, ObservedPod { deletion: Some(at(60)), gone: true, ..ended(0, 1, 143, 61) })]);
    let again = Action::CreateJobs(Incarnation { number: 2, attempt: 1 }, GangPast::default());
    assert_eq!(world.step().actions, [Action::Ensure, again]);
    assert_eq!((world.status.restarts.len(), world.status.restart_count), (0, Some(0)));
}

#[test]
fn old_pods_that_delay_next_attempt_are_reported() {
    let mut world = World::to_running();
    world.fail(1, 100);
    let stays = ObservedPod { deletion: Some(at(100)), end_by: Some(at(130)), ..running(0, 1) };
    world.see(Some(ObservedJob { deleting: true, ..job(1) }), [stays]);
    world.second = 140;
    world.step();
    assert_ne!(world.condition("Scheduled").1, "OldPods", "it has yet to be late");
    world.second = 145;
    world.step();
    let (status, reason, message) = world.condition("Scheduled");
    assert_eq!((status, reason), ("False", "OldPods"));
    assert!(message.contains("whose grace is over"), "{message}");
}

#[test]
fn blocked_resume_from_check_reports_reason() {
    let mut world = World::new();
    world.spec.checkpoint = Checkpoint { resume_from: Some("s3://b/step-10".into()), ..Checkpoint::default() };
    world.step();
    assert_eq!(world.condition("Scheduled").1, "Waiting");
    world.children.blocked.insert(ChildKey::UPKEEP, denied(Reason::Denied));
    assert_eq!(world.step().actions, [Action::Ensure, Action::CreateUpkeep(Upkeep::Check)]);
    assert_eq!(world.condition("Scheduled"), ("False", "Denied", "Job: policy p says no"));
}

#[test]
fn blocked_final_backup_reports_reason() {
    for suspend in [false, true] {
        let mut world = World::new();
        let storage: Option<Storage> = serde_json::from_value(json!({ "type": "pvc", "pvcName": "c" })).ok();
        let backup: Option<Backup> = serde_json::from_value(json!({ "destination": "s3://copies/x" })).ok();
        world.spec.checkpoint = Checkpoint { storage, backup, ..Checkpoint::default() };
        world.step();
        world.see(Some(job(1)), [running(0, 1), running(1, 1)]);
        world.step();
        world.status.checkpoint =
            Some(CheckpointStatus { pending_backup: Some("step-10".into()), ..CheckpointStatus::default() });
        world.spec.suspend = suspend;
        if suspend {
            world.step();
            world.see(None, []);
            world.children.pods.clear();
        } else {
            world.see(Some(ObservedJob { complete: true, ..job(1) }), [ended(0, 1, 0, 20), ended(1, 1, 0, 20)]);
            world.step();
        }
        assert!(world.step().actions.contains(&Action::CreateUpkeep(Upkeep::Copy)));
        assert_ne!(world.condition("CheckpointsHealthy").0, "False");
        world.children.blocked.insert(ChildKey::UPKEEP, denied(Reason::Denied));
        world.step();
        let why = "step-10 is not copied to checkpoint.backup yet: Job x-upkeep can't be made: policy p says no";
        assert_eq!(world.condition("CheckpointsHealthy"), ("False", "BackupFailing", why));
    }
}

#[test]
fn status_has_ready_and_reason_for_kubectl_get() {
    let shown =
        |world: &World| (world.status.ready.clone(), world.status.reason.clone().map(|reason| reason.to_string()));
    let text = |ready: &str, reason: &str| (Some(ready.to_owned()), (!reason.is_empty()).then(|| reason.to_owned()));
    let mut world = World::new();
    world.step();
    assert_eq!(shown(&world), text("0/2", "Scheduling"));
    world.children.blocked.insert(ChildKey::job(RoleName::WORKER), denied(Reason::Denied));
    world.step();
    assert_eq!(shown(&world), text("0/2", "Denied"));
    let mut world = World::to_running();
    assert_eq!(shown(&world), text("2/2", ""));
    world.spec.failure_policy.backoff_limit = Some(0);
    world.fail(1, 60);
    let (ready, reason) = shown(&world);
    assert_eq!(
        (ready.as_deref(), reason),
        (Some("0/2"), world.status.failure_reason.as_ref().map(ToString::to_string))
    );
}
