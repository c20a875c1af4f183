//! A result that is published before its job is completed.

use super::checkpoints::{delete_upkeep, upkeep};
use super::*;
use api::{Checkpoint, Storage};
use plan::Upkeep;
use protocol::agent_status::AgentStatus;
use protocol::report::{LaunchError, LaunchErrorKind};
use protocol::result::{Publication, PublishProgress, PublishStage, ResultRecord};
use std::time::Duration;

const CREATE: Action = Action::CreateUpkeep(Upkeep::Publish);

/// A job that runs and has an address as output.
fn world() -> World {
    let mut world = World::to_running();
    world.spec.output = Some("s3://results/x".to_owned());
    let storage: Option<Storage> = serde_json::from_value(json!({ "type": "pvc", "pvcName": "c" })).ok();
    world.spec.checkpoint = Checkpoint { storage, ..Checkpoint::default() };
    world
}

/// Both programs have exited with code 0, and the status says so.
fn succeeded() -> World {
    let mut world = world();
    world.second = 70;
    world.see(Some(job(1)), [ended(0, 1, 0, 60), ended(1, 1, 0, 60)]);
    let verdict = world.step();
    assert_eq!((verdict.actions, verdict.requeue), (vec![], Some(Duration::from_secs(1))), "nothing else may wake it");
    world
}

fn said(world: &mut World, ended: bool, report: Report) {
    world.children.upkeep = Some(upkeep(Upkeep::Publish, Some(ended)));
    world.children.upkeep_words = Some(("upkeep-1".into(), Report { version: 1, ..report }));
}

fn published() -> Report {
    let record = ResultRecord {
        version: 1,
        uri: "s3://results/x/x-uid".to_owned(),
        digest: "d".repeat(64),
        file_count: 2,
        bytes: 7,
        ..ResultRecord::default()
    };
    Report { published: Some(Publication { record, registered_version: Some("3".to_owned()) }), ..Report::default() }
}

fn refused(kind: LaunchErrorKind) -> Report {
    let message = "s3://results/x: 403 Forbidden; correct the Secret".to_owned();
    Report { error: Some(LaunchError { kind, message }), ..Report::default() }
}

#[test]
fn a_job_is_completed_once_its_result_is_published() {
    let mut world = succeeded();
    assert_eq!(world.status.state, Some(State::Running), "until then the state stays as it is");
    let (status, reason, message) = world.condition("ResultPublished");
    assert_eq!((status, reason), ("False", "Publishing"));
    assert!(message.contains("s3://results/x"), "{message}");
    assert_eq!(world.condition("Running").0, "False", "no program runs");
    assert_eq!(world.status.resources.as_ref().map_or(0, |held| held.allocated_gpus), 0, "no GPU is held");

    assert_eq!(world.step().actions, [Action::Ensure, CREATE]);
    world.children.upkeep = Some(upkeep(Upkeep::Publish, None));
    world.second = 500;
    assert_eq!(world.step().actions, []);
    assert!(world.condition("ResultPublished").2.contains("job/x-upkeep"));

    said(&mut world, true, published());
    let verdict = world.step();
    assert_eq!(verdict.actions, [delete_upkeep()]);
    assert_eq!(reasons(&verdict), ["ResultPublished", "Completed"]);
    assert_eq!((world.status.state, world.condition("ResultPublished").0), (Some(State::Completed), "True"));
    let result = world.status.result.clone().unwrap();
    assert_eq!((result.record.file_count, result.registered_version.as_deref()), (2, Some("3")));
    assert_eq!(result.record.origin.job.as_deref(), Some("x"), "the operator knows where it comes from");
    assert_eq!(
        world.status.goodput.as_deref(),
        Some("92%"),
        "of 65 s 60 were seen; those of the publication don't count"
    );
    assert_eq!(world.step().actions, [delete_upkeep()], "what is over stays over, and the Job goes");
}

/// A lost node or a deleted Job does not restart a training that has succeeded.
#[test]
fn succeeded_job_is_published_without_its_pods() {
    let mut world = succeeded();
    world.children.jobs.clear();
    world.children.pods.clear();
    assert_eq!(world.step().actions, [Action::Ensure, CREATE]);
    assert_eq!((world.status.state, world.status.attempt), (Some(State::Running), Some(1)));
    said(&mut world, true, published());
    world.step();
    assert_eq!(world.status.state, Some(State::Completed));
}

#[test]
fn suspension_does_not_delay_publication() {
    let mut world = succeeded();
    world.spec.suspend = true;
    assert_eq!(world.step().actions, [Action::Ensure, CREATE]);
}

/// A side-car has a moment to end. The volume may be one that only one node can mount.
#[test]
fn the_publication_waits_for_the_last_pod() {
    let mut world = world();
    world.second = 70;
    let beside = ObservedPod { ended: None, ..ended(1, 1, 0, 60) };
    world.see(Some(job(1)), [ended(0, 1, 0, 60), beside]);
    world.step();
    assert_eq!(world.step().actions, []);
    world.second = 101;
    let end = Action::EndJob { name: "x-training".into(), uid: "job-1".into() };
    assert_eq!(world.step().actions, [end], "then it is ended");
    world.see(Some(job(1)), [ended(1, 1, 0, 60)]);
    assert!(world.step().actions.contains(&CREATE));
}

#[test]
fn refused_result_fails_job_and_restart_publishes_again() {
    let mut world = succeeded();
    world.step();
    said(&mut world, false, refused(LaunchErrorKind::ContentRefused));
    let verdict = world.step();
    assert_eq!((world.status.state, verdict.actions), (Some(State::Failed), vec![]), "the pods stay for their logs");
    assert_eq!(world.status.failure_reason, Some(Reason::PublishFailed));
    assert_eq!(world.condition("ResultPublished").1, "PublishFailed");
    // Data that exists nowhere else is not deleted.
    world.spec.ttl_seconds_after_finished = Some(1);
    world.second = 10_000;
    assert!(!world.step().actions.contains(&Action::DeleteOwner));

    world.asked = Some("again");
    let verdict = world.step();
    assert_eq!(verdict.actions, [delete_upkeep()]);
    assert_eq!(world.status.state, Some(State::Running));
    assert!(verdict.events[0].note.contains("published again"), "{:?}", verdict.events);
    world.children.upkeep = None;
    assert_eq!(world.step().actions, [Action::Ensure, CREATE], "the program does not run again");
    said(&mut world, true, published());
    // The new Job is younger than the request.
    if let Some(job) = &mut world.children.upkeep {
        job.created = Some(at(10_001));
    }
    world.step();
    assert_eq!(world.status.state, Some(State::Completed));
}

#[test]
fn unavailable_store_is_retried() {
    let mut world = succeeded();
    world.step();
    said(&mut world, false, refused(LaunchErrorKind::ContentUnavailable));
    let verdict = world.step();
    assert_eq!((world.status.state, reasons(&verdict)), (Some(State::Running), vec!["PublishFailed"]));
    let (status, reason, message) = world.condition("ResultPublished");
    assert_eq!((status, reason), ("False", "PublishFailed"));
    assert!(message.contains("403 Forbidden") && message.contains("tried again"), "{message}");
    world.second = 700;
    assert_eq!(world.step().actions, [delete_upkeep()]);
}

/// The final report of another Job says where the result is.
#[test]
fn publication_with_lost_final_report_is_repeated() {
    let mut world = succeeded();
    world.step();
    world.children.upkeep = Some(upkeep(Upkeep::Publish, Some(true)));
    assert_eq!(world.step().actions, [delete_upkeep()]);
    world.children.upkeep = None;
    assert_eq!(world.step().actions, [Action::Ensure, CREATE]);
}

/// The last checkpoint is copied after the publication, by another Job of the same name.
#[test]
fn checkpoints_are_copied_after_the_publication() {
    let mut world = succeeded();
    world.spec.checkpoint.backup = serde_json::from_value(json!({ "destination": "s3://copies/x" })).ok();
    world.status.checkpoint.get_or_insert_default().pending_backup = Some("step-9".to_owned());
    world.step();
    said(&mut world, true, published());
    world.step();
    assert_eq!(world.step().actions, [delete_upkeep()]);
    world.children.upkeep = None;
    assert!(world.step().actions.contains(&Action::CreateUpkeep(Upkeep::Copy)));
}

#[test]
fn publication_progress_is_appended_to_program_progress() {
    let mut world = succeeded();
    world.status.progress = Some("100%".to_owned());
    world.step();
    world.children.upkeep = Some(upkeep(Upkeep::Publish, None));
    let answer = |stage| {
        let (bytes, total_bytes, files, total_files) = (1 << 20, 3 << 20, 1, 3);
        let publishes = PublishProgress { stage, bytes, total_bytes, files, total_files, bytes_per_second: 1024 };
        let status = AgentStatus { publishes: Some(publishes), ..AgentStatus::default() };
        Some(AgentAnswer { status: status.into(), time: at(80), failing_since: None, remaining: None })
    };
    world.transfer = answer(PublishStage::Sending);
    assert_eq!(world.step().actions, []);
    let expected = "publishing the result under s3://results/x: 1.0 MiB of 3.0 MiB, 1 of 3 files, 1.0 KiB/s";
    assert_eq!(world.condition("ResultPublished").2, expected);
    assert_eq!(world.status.progress.as_deref(), Some("100%, publishing 33%"));
    let publication = world.status.publication.unwrap();
    assert_eq!((publication.bytes, publication.total_bytes, publication.total_files), (1 << 20, 3 << 20, 3));
    world.transfer = answer(PublishStage::Recording);
    world.step();
    assert_eq!(world.status.progress.as_deref(), Some("100%"));

    // No outdated progress is shown, whether the agent is silent or the result is published.
    world.transfer = None;
    world.step();
    assert_eq!((world.status.publication, world.status.progress.as_deref()), (None, Some("100%")));
    assert!(world.condition("ResultPublished").2.contains("kubectl logs job/x-upkeep"));
    world.transfer = answer(PublishStage::Sending);
    world.step();
    said(&mut world, true, published());
    world.transfer = None;
    world.step();
    assert_eq!((world.status.publication, world.status.progress.as_deref()), (None, Some("100%")));
}
