//! Reports on checkpoints, and what happens to checkpoints while no worker runs.

use super::*;
use api::{Backup, RestartFrom, Storage, StorageType};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use observe::ObservedUpkeep;
use plan::Upkeep;
use protocol::checkpoints::{Checkpoints, GoodCheckpoint, Problem, ProblemKind};
use protocol::gang::GangPast;
use protocol::report::{LaunchError, LaunchErrorKind};

#[expect(clippy::unnecessary_wraps, reason = "fits where it is used")]
fn kept(path: &str, step: u64, second: i64) -> Option<GoodCheckpoint> {
    Some(GoodCheckpoint { path: path.into(), step: Some(step), time: Some(at(second)), ..GoodCheckpoint::default() })
}

fn decide_with(world: &mut World, checkpoints: Checkpoints) -> Decision {
    let mut status = AgentStatus { checkpoints: Some(checkpoints), ..AgentStatus::default() };
    status.report.attempt = world.status.attempt.unwrap_or(1);
    world.agent = Some(AgentAnswer { status: status.into(), time: at(10), failing_since: None, remaining: None });
    world.step()
}

pub(super) fn upkeep(task: Upkeep, ended: Option<bool>) -> ObservedUpkeep {
    let (uid, name) = ("upkeep-1".to_owned(), "x-upkeep".to_owned());
    ObservedUpkeep { uid, name, task: task.as_str().into(), created: Some(at(0)), deleting: false, ended }
}

pub(super) fn delete_upkeep() -> Action {
    Action::DeleteJob { name: "x-upkeep".into(), uid: "upkeep-1".into() }
}

fn on_a_claim() -> Option<Storage> {
    serde_json::from_value(serde_json::json!({ "type": "pvc", "pvcName": "c" })).ok()
}

fn backup() -> Option<Backup> {
    serde_json::from_value(serde_json::json!({ "destination": "s3://copies/x" })).ok()
}

#[test]
fn saved_checkpoint_is_reported_once() {
    let mut world = World::to_running();
    let first = Checkpoints { latest: kept("step-10", 10, 7), valid: 1, ..Checkpoints::default() };
    assert_eq!(reasons(&decide_with(&mut world, first.clone())), ["CheckpointSaved"]);
    assert_eq!(reasons(&decide_with(&mut world, first.clone())), Vec::<&str>::new());
    let status = world.status.checkpoint.clone().unwrap();
    assert_eq!(
        (status.latest_path.as_deref(), status.latest_step, status.checkpoint_count),
        (Some("step-10"), Some(10), Some(1))
    );
    assert_eq!(world.condition("CheckpointsHealthy").0, "True");

    let copied = Checkpoints { copied: kept("step-10", 10, 9), ..first };
    assert_eq!(reasons(&decide_with(&mut world, copied)), ["BackedUp"]);
    assert_eq!(world.status.checkpoint.as_ref().unwrap().last_backup_time.as_ref().unwrap().0, at(9));
}

#[test]
fn checkpoint_problem_sets_condition_and_emits_one_event() {
    let mut world = World::to_running();
    for (kind, reason, event) in [
        (ProblemKind::Corrupted, "CheckpointCorrupted", "CheckpointCorrupted"),
        (ProblemKind::NearlyFull, "NearlyFull", "VolumeNearlyFull"),
        (ProblemKind::CopyFailing, "BackupFailing", "BackupFailing"),
        (ProblemKind::Shared, "FolderShared", "FolderShared"),
    ] {
        let problem = Problem { kind, message: format!("{reason} in words") };
        let bad = Checkpoints { problems: vec![problem], ..Checkpoints::default() };
        assert_eq!(reasons(&decide_with(&mut world, bad.clone())), [event]);
        assert_eq!(reasons(&decide_with(&mut world, bad)), Vec::<&str>::new());
        let (status, said, _) = world.condition("CheckpointsHealthy");
        assert_eq!((status, said), ("False", reason));
    }
    decide_with(&mut world, Checkpoints::default());
    assert_eq!(world.condition("CheckpointsHealthy").0, "True");

    // Each bad checkpoint is reported, but only the first of a store's many answers.
    for (kind, events) in [(ProblemKind::Corrupted, 2), (ProblemKind::CopyFailing, 1)] {
        let mut count = 0;
        for message in ["one", "another"] {
            let problems = vec![Problem { kind, message: message.into() }];
            count += decide_with(&mut world, Checkpoints { problems, ..Checkpoints::default() }).events.len();
        }
        assert_eq!(count, events, "{kind:?}");
    }
}

#[test]
fn no_gpu_is_held_until_initial_checkpoint_is_checked() {
    let mut world = World::new();
    world.spec.checkpoint.storage = on_a_claim();
    world.spec.checkpoint.resume_from = Some("run-1/step-10".into());
    let verdict = world.step();
    assert_eq!(verdict.actions, [Action::Ensure, Action::CreateUpkeep(Upkeep::Check)]);
    world.children.upkeep = Some(upkeep(Upkeep::Check, None));
    assert_eq!(world.step().actions, []);
    assert!(world.condition("Scheduled").0 == "False");
    world.children.upkeep = Some(upkeep(Upkeep::Check, Some(true)));
    assert_eq!(world.step().actions, [delete_upkeep()]);
    // The Job may hold the volume until its pod is gone.
    assert_eq!(world.step().actions, [delete_upkeep()]);
    world.children.upkeep = None;
    assert_eq!(world.step().actions, [Action::Ensure, create(1)]);
}

#[test]
fn bad_initial_checkpoint_fails_job_with_its_message() {
    let mut world = World::new();
    world.spec.checkpoint.resume_from = Some("s3://b/step-10".into());
    world.step();
    world.children.upkeep = Some(upkeep(Upkeep::Check, Some(false)));
    let error = LaunchError { kind: LaunchErrorKind::CheckpointUnusable, message: "step-10: w.pt is cut off".into() };
    let words = Report { version: 1, error: Some(error), ..Report::default() };
    world.children.upkeep_words = Some(("upkeep-1".into(), words));
    let verdict = world.step();
    assert_eq!((verdict.actions.len(), world.status.state), (0, Some(State::Failed)));
    assert_eq!(world.status.failure_reason, Some(Reason::CheckpointCorrupted));
    assert_eq!(world.status.failure_message.as_deref(), Some("step-10: w.pt is cut off"));
}

#[test]
fn uncheckable_checkpoint_path_is_left_to_workers() {
    for from in ["/data/step-10", "step-10"] {
        let mut world = World::new();
        world.spec.checkpoint.resume_from = Some(from.into());
        assert_eq!(world.step().actions, [Action::Ensure, create(1)], "{from}");
    }
}

#[test]
fn pending_backup_is_copied_after_job_ends() {
    let mut world = World::to_running();
    world.spec.checkpoint.storage = on_a_claim();
    world.spec.checkpoint.backup = backup();
    world.spec.ttl_seconds_after_finished = Some(0);
    let pending =
        Checkpoints { latest: kept("step-10", 10, 7), to_copy: Some("step-10".into()), ..Checkpoints::default() };
    decide_with(&mut world, pending.clone());
    world.see(Some(job(1)), [ended(0, 1, 0, 20), ended(1, 1, 0, 20)]);
    world.step();
    assert_eq!(world.status.state, Some(State::Completed));
    world.second = 40;
    assert_eq!(world.step().actions, [Action::Ensure, Action::CreateUpkeep(Upkeep::Copy)], "and not deleted");
    world.children.upkeep = Some(upkeep(Upkeep::Copy, None));
    assert_eq!(world.step().actions, []);
    let done = Checkpoints { copied: kept("step-10", 10, 45), to_copy: None, ..pending };
    let words = Report { version: 1, checkpoints: Some(done), ..Report::default() };
    world.children.upkeep_words = Some(("upkeep-1".into(), words));
    world.children.upkeep = Some(upkeep(Upkeep::Copy, Some(true)));
    let verdict = world.step();
    assert_eq!(verdict.actions, [delete_upkeep(), Action::DeleteOwner]);
    assert_eq!(reasons(&verdict), ["BackedUp"]);
    let status = world.status.checkpoint.clone().unwrap();
    assert_eq!((status.pending_backup, status.last_backup_path.as_deref()), (None, Some("step-10")));
}

/// If a job ended while no operator ran, nothing wakes the next one.
#[test]
fn ended_job_is_requeued_for_pending_backup() {
    for to_copy in [Some("step-10".to_owned()), None] {
        let mut world = World::to_running();
        world.spec.checkpoint.storage = on_a_claim();
        world.spec.checkpoint.backup = backup();
        decide_with(&mut world, Checkpoints { to_copy: to_copy.clone(), ..Checkpoints::default() });
        world.see(Some(ObservedJob { complete: true, ..job(1) }), [ended(0, 1, 0, 20), ended(1, 1, 0, 20)]);
        let verdict = world.step();
        assert_eq!(world.status.state, Some(State::Completed));
        assert_eq!(verdict.requeue.is_some(), to_copy.is_some(), "{:?}", verdict.requeue);
        let expected =
            if to_copy.is_some() { vec![Action::Ensure, Action::CreateUpkeep(Upkeep::Copy)] } else { vec![] };
        assert_eq!(world.step().actions, expected);
    }
}

#[test]
fn failed_backup_is_retried_later() {
    let mut world = World::to_running();
    world.spec.checkpoint.storage = on_a_claim();
    world.spec.checkpoint.backup = backup();
    decide_with(&mut world, Checkpoints { to_copy: Some("step-10".into()), ..Checkpoints::default() });
    world.see(Some(job(1)), [ended(0, 1, 0, 20), ended(1, 1, 0, 20)]);
    world.step();
    world.children.upkeep = Some(upkeep(Upkeep::Copy, Some(false)));
    world.second = 100;
    let verdict = world.step();
    assert_eq!((verdict.actions.len(), verdict.requeue.is_some()), (0, true));
    world.second = 600;
    assert_eq!(world.step().actions, [delete_upkeep()]);
}

#[test]
fn resumed_job_does_not_share_volume_with_upkeep() {
    let mut world = World::new();
    world.spec.checkpoint.storage = on_a_claim();
    world.spec.checkpoint.backup = backup();
    world.spec.suspend = true;
    world.step();
    world.children.upkeep = Some(upkeep(Upkeep::Copy, None));
    world.spec.suspend = false;
    assert_eq!(world.step().actions, [delete_upkeep()]);
    world.children.upkeep = None;
    assert_eq!(world.step().actions, [Action::Ensure, create(1)]);
    assert!(matches!(world.spec.checkpoint.storage.as_ref().unwrap().type_, StorageType::Pvc));
}

/// Loses all pods, and returns the data that the next pods are given.
fn past_of_new_pods(world: &mut World) -> GangPast {
    world.see(None, []);
    world.step();
    world.children.pods.clear();
    let past = (0..3).find_map(|_| {
        world.second += 100;
        world.step().actions.into_iter().find_map(|action| match action {
            Action::CreateJobs(_, past) => Some(past),
            _ => None,
        })
    });
    past.expect("new pods")
}

/// New pods are given what the first ones knew.
#[test]
fn new_pods_know_that_resume_from_was_used() {
    let mut world = World::to_running();
    decide_with(&mut world, Checkpoints { wish_used: Some(at(7)), ..Checkpoints::default() });
    assert_eq!(world.status.checkpoint.as_ref().unwrap().resume_from_used.as_ref().unwrap().0, at(7));
    decide_with(&mut world, Checkpoints { wish_used: Some(at(90)), ..Checkpoints::default() });
    assert_eq!(past_of_new_pods(&mut world).wish_used, Some(at(7)), "the first time counts");
}

/// The record stays when the annotation is lost, and new pods know of this request and no other.
#[test]
fn a_requested_checkpoint_is_recorded_and_used_once() {
    let mut world = World::to_running();
    world.spec.checkpoint.enabled = Some(true);
    decide_with(&mut world, Checkpoints { wish_used: Some(at(7)), ..Checkpoints::default() });
    world.from = Some("one step-5");
    world.step();
    let recorded = |world: &World| world.status.checkpoint.clone().unwrap().restart_from.unwrap();
    let path = "/checkpoints/step-5".to_owned();
    assert_eq!(recorded(&world), RestartFrom { path, request: "one".into(), used: None });
    world.from = None;
    let policy = world.plan().storage.checkpoint.unwrap().policy;
    assert_eq!((policy.request.as_deref(), policy.resume_from.as_deref()), (Some("one"), Some("/checkpoints/step-5")));
    decide_with(&mut world, Checkpoints { wish_used: Some(at(7)), ..Checkpoints::default() });
    assert_eq!(recorded(&world).used, None, "that was another wish");
    for second in [20, 30] {
        decide_with(
            &mut world,
            Checkpoints { wish_used: Some(at(second)), request: Some("one".into()), ..Checkpoints::default() },
        );
    }
    assert_eq!(recorded(&world).used, Some(Time(at(20))));
    let past = past_of_new_pods(&mut world);
    assert_eq!((past.wish_used, past.request.as_deref()), (Some(at(20)), Some("one")));
}

/// A job without a usable checkpoint waits without pods and spends no budget, until the user decides.
#[test]
fn job_without_usable_checkpoint_waits_for_user_decision() {
    let words = || {
        let message = "none of this job's checkpoints can be used: step-1: it is corrupted".to_owned();
        let error = Some(LaunchError { kind: LaunchErrorKind::NoUsableCheckpoint, message });
        // The leader has judged the attempt: its gang ends, and the job does not.
        let restarts = protocol::attempt::RestartHistory { judged: 1, disruptions: 1, ..Default::default() };
        let gang = Some(protocol::gang::GangEnd { restarts, ..Default::default() });
        let report = Report { version: 1, exit_code: Some(126), error, gang, ..Report::default() };
        let mut pod = ended(0, 1, 126, 20);
        if let Container::Terminated { report: last, .. } = &mut pod.training {
            *last = Some(Box::new(report));
        }
        [pod, ended(1, 1, 143, 21)]
    };
    for by_restart in [false, true] {
        let mut world = World::to_running();
        let failed = ObservedJob { failed: Some(("BackoffLimitExceeded".into(), "m".into())), ..job(1) };
        world.see(Some(failed), words());
        world.step();
        world.see(None, []);
        let verdict = world.step();
        assert!(!verdict.actions.iter().any(|action| matches!(action, Action::CreateJobs(..))), "{verdict:?}");
        assert_eq!(world.status.state, Some(State::Pending), "{:?}", world.status.failure_message);
        let (status, reason, message) = world.condition("Scheduled");
        assert_eq!((status, reason), ("False", "NoUsableCheckpoint"));
        assert!(message.contains("step-1: it is corrupted"), "{message}");
        world.second = 100_000;
        assert_eq!(world.step().actions, []);
        match by_restart {
            true => world.asked = Some("repaired"),
            false => world.spec.checkpoint.if_none_usable = Some(api::IfNoneUsable::StartOver),
        }
        let verdict = world.step();
        let makes = |action: &Action| matches!(action, Action::CreateJobs(Incarnation { attempt: 2, .. }, past) if past.restarts.failures == 0);
        assert!(verdict.actions.iter().any(makes), "{verdict:?} {:?}", world.status);
    }
}

/// Controller finding 6: a checkpoint that is not copied is not deleted, however the copy fails.
#[test]
fn ttl_waits_for_failing_backup() {
    let mut world = World::to_running();
    world.spec.checkpoint.storage = on_a_claim();
    world.spec.checkpoint.backup = backup();
    world.spec.ttl_seconds_after_finished = Some(0);
    decide_with(&mut world, Checkpoints { to_copy: Some("step-10".into()), ..Checkpoints::default() });
    world.see(Some(job(1)), [ended(0, 1, 0, 20), ended(1, 1, 0, 20)]);
    world.step();
    world.children.upkeep = Some(upkeep(Upkeep::Copy, Some(false)));
    let error = LaunchError { kind: LaunchErrorKind::StorageUnavailable, message: "s3://copies: HTTP 503".into() };
    world.children.upkeep_words =
        Some(("upkeep-1".into(), Report { version: 1, error: Some(error), ..Report::default() }));
    world.second = 100;
    let verdict = world.step();
    assert_eq!((verdict.actions.len(), verdict.requeue.is_some()), (0, true));
    let (status, reason, message) = world.condition("CheckpointsHealthy");
    assert_eq!((status, reason), ("False", "BackupFailing"));
    assert!(message.contains("step-10") && message.contains("503") && message.contains("ttlSeconds"), "{message}");
    // A spec that has since been refused causes no copies and no deletions.
    world.refused = Some("by a newer operator".into());
    world.second = 5000;
    assert_eq!(world.step().actions, []);
}

/// The warning appears before any GPU is used, and only if no copy outlives the pod.
#[test]
fn checkpoints_in_empty_dir_set_condition_from_the_start() {
    let reported = |checkpoint: serde_json::Value| {
        let mut world = World::new();
        world.spec.checkpoint = serde_json::from_value(checkpoint).unwrap();
        world.step();
        let first = world.status.clone();
        world.step();
        assert_eq!(world.status, first, "it is written once");
        let (status, reason, _) = world.condition("CheckpointsDurable");
        (status.to_owned(), reason.to_owned())
    };
    let lost = ("False".to_owned(), "CheckpointsInEmptyDir".to_owned());
    let absent = (String::new(), String::new());
    for (checkpoint, expected) in [
        (json!({}), &lost),
        (json!({ "enabled": false }), &absent),
        (json!({ "storage": { "type": "pvc" } }), &absent),
        (json!({ "storage": { "type": "nfs", "nfsServer": "s", "nfsPath": "/a" } }), &absent),
        (json!({ "storage": { "type": "s3", "s3Bucket": "bucket" } }), &absent),
        (json!({ "backup": { "destination": "s3://bucket/a" } }), &absent),
    ] {
        assert_eq!(&reported(checkpoint.clone()), expected, "{checkpoint}");
    }
}
