//! Content that is fetched before the workers start.

use super::checkpoints::{delete_upkeep, upkeep};
use super::*;
use api::{Cache, DataStatus};
use plan::Upkeep;
use protocol::inputs::{FetchProgress, FetchStage, FetchedContent};
use protocol::report::{LaunchError, LaunchErrorKind};
use std::num::NonZeroU16;

fn fetched(name: &str, key: &str) -> FetchedContent {
    let (key, revision) = (key.to_owned(), "0123".to_owned());
    FetchedContent { name: name.to_owned(), key, revision, files: 2, bytes: 7, fetched_bytes: 7 }
}

fn with_model(world: &mut World, cache: bool) {
    world.spec.model = Some("hf://org/model".to_owned());
    world.spec.cache = cache.then(|| Cache { pvc_name: Some("cache".to_owned()), ..Cache::default() });
}

#[test]
fn no_gpu_is_held_until_the_content_is_fetched() {
    let mut world = World::new();
    with_model(&mut world, true);
    assert_eq!(world.step().actions, [Action::Ensure, Action::CreateUpkeep(Upkeep::Fetch)]);
    world.children.upkeep = Some(upkeep(Upkeep::Fetch, None));
    assert_eq!(world.step().actions, []);
    let (status, reason, message) = world.condition("Scheduled");
    assert_eq!((status, reason), ("False", "Fetching"));
    assert!(message.contains("hf://org/model@main"), "{message}");
    // The pod's final report may be seen after its Job's end.
    world.children.upkeep = Some(upkeep(Upkeep::Fetch, Some(true)));
    let words = Report { version: 1, fetched: vec![fetched("model", "key")], ..Report::default() };
    world.children.upkeep_words = Some(("upkeep-1".into(), words));
    assert_eq!(world.step().actions, [delete_upkeep()]);
    let data = world.status.data.clone();
    assert_eq!(data.len(), 1, "{data:?}");
    assert_eq!((data[0].uri.as_str(), data[0].revision.as_str()), ("hf://org/model@main", "0123"));
    assert_eq!((data[0].key.as_str(), data[0].fetched_bytes, data[0].incarnation), ("key", 7, 1));
    world.children.upkeep = None;
    assert_eq!(world.step().actions, [Action::Ensure, create(1)]);
}

/// Whatever happened to the cache since, the next pods find the same revision in it.
#[test]
fn content_is_rechecked_before_new_pods_are_created() {
    let mut world = World::new();
    with_model(&mut world, true);
    world.status.data = vec![DataStatus {
        name: "model".to_owned(),
        uri: "hf://org/model@main".to_owned(),
        revision: "0123".to_owned(),
        key: "key".to_owned(),
        incarnation: 1,
        ..DataStatus::default()
    }];
    world.status.incarnation = Some(2);
    world.status.attempt = Some(2);
    assert_eq!(world.step().actions, [Action::Ensure, Action::CreateUpkeep(Upkeep::Fetch)]);
    world.status.data[0].incarnation = 2;
    assert_eq!(world.step().actions, [Action::Ensure, create(2)]);
}

#[test]
fn refused_content_fails_job_and_unavailable_content_is_retried() {
    for (kind, state) in
        [(LaunchErrorKind::ContentRefused, State::Failed), (LaunchErrorKind::ContentUnavailable, State::Pending)]
    {
        let mut world = World::new();
        with_model(&mut world, true);
        world.step();
        world.children.upkeep = Some(upkeep(Upkeep::Fetch, Some(false)));
        let error = LaunchError { kind, message: "hf://org/model@main: accept its licence".into() };
        let words = Report { version: 1, error: Some(error), ..Report::default() };
        world.children.upkeep_words = Some(("upkeep-1".into(), words));
        let verdict = world.step();
        assert_eq!((verdict.actions.len(), world.status.state), (0, Some(state)), "{kind:?}");
        let failed = world.status.failure_reason.clone();
        match state {
            State::Failed => assert_eq!(failed, Some(Reason::FetchFailed)),
            _ => assert_eq!(
                world.condition("Scheduled"),
                ("False", "FetchFailed", "hf://org/model@main: accept its licence")
            ),
        }
    }
}

/// The Job is created again, and finds all content in the cache.
#[test]
fn fetch_with_lost_final_report_is_repeated() {
    let mut world = World::new();
    with_model(&mut world, true);
    world.step();
    world.children.upkeep = Some(upkeep(Upkeep::Fetch, Some(true)));
    assert_eq!(world.step().actions, [delete_upkeep()]);
    world.children.upkeep = None;
    assert_eq!(world.step().actions, [Action::Ensure, Action::CreateUpkeep(Upkeep::Fetch)]);
}

#[test]
fn single_worker_fetches_in_its_own_pod() {
    let mut world = World::new();
    with_model(&mut world, false);
    world.spec.num_workers = NonZeroU16::new(1);
    assert_eq!(world.step().actions, [Action::Ensure, create(1)]);
    let pod = ObservedPod { fetched: vec![fetched("model", "key")], ..running(0, 1) };
    world.see(Some(job(1)), [pod]);
    world.step();
    assert_eq!(world.status.data[0].revision, "0123");
}

fn answer(fetches: Vec<FetchProgress>) -> AgentAnswer {
    let status = AgentStatus { fetches, ..AgentStatus::default() };
    AgentAnswer { status: status.into(), time: at(10), failing_since: None, remaining: None }
}

fn half(stage: FetchStage) -> FetchProgress {
    let name = "model".to_owned();
    FetchProgress {
        name,
        stage,
        bytes: 1 << 20,
        total_bytes: 2 << 20,
        files: 1,
        total_files: 3,
        bytes_per_second: 1024,
    }
}

#[test]
fn fetch_progress_is_reported_while_it_runs() {
    let mut world = World::new();
    with_model(&mut world, true);
    world.step();
    world.children.upkeep = Some(upkeep(Upkeep::Fetch, None));
    world.step();
    let without = world.condition("Scheduled").2.to_owned();
    world.transfer = Some(answer(vec![half(FetchStage::Fetching)]));
    assert_eq!(world.step().actions, []);
    assert_eq!(
        world.condition("Scheduled"),
        (
            "False",
            "Fetching",
            "fetching hf://org/model@main into the cache before the workers are made: 1.0 MiB of 2.0 MiB, 1 of 3 files, \
             1.0 KiB/s"
        )
    );
    let [data] = world.status.data.as_slice() else { panic!("{:?}", world.status.data) };
    assert_eq!((data.uri.as_str(), data.files, data.bytes), ("hf://org/model@main", 3, 2 << 20));
    assert_eq!((data.fetched_bytes, data.is_resolved()), (0, false));
    let progress = data.progress.unwrap();
    assert_eq!((progress.files, progress.bytes, progress.bytes_per_second), (1, 1 << 20, 1024));
    assert_eq!(world.status.progress.as_deref(), Some("fetching 50%"));

    world.transfer = Some(answer(vec![half(FetchStage::Waiting)]));
    world.step();
    let (.., message) = world.condition("Scheduled");
    assert_eq!(message, "waiting for another job's fetch of hf://org/model@main into the same cache");

    // The agent no longer answers, so its last report must not be shown as current.
    world.transfer = None;
    world.step();
    assert_eq!(world.condition("Scheduled").2, without);
    assert_eq!((world.status.data.len(), world.status.progress.as_deref()), (0, None));

    // The fetched bytes count once.
    world.transfer = Some(answer(vec![half(FetchStage::Fetching)]));
    world.step();
    world.children.upkeep = Some(upkeep(Upkeep::Fetch, Some(true)));
    let words = Report { version: 1, fetched: vec![fetched("model", "key")], ..Report::default() };
    world.children.upkeep_words = Some(("upkeep-1".into(), words));
    world.transfer = None;
    world.step();
    let data = &world.status.data[0];
    assert_eq!((data.fetched_bytes, data.progress, data.is_resolved()), (7, None, true));
    assert_eq!(world.status.progress, None);
}

/// Content that is looked for again in the cache keeps its revision.
#[test]
fn progress_of_later_fetch_keeps_the_revision() {
    let mut world = World::new();
    with_model(&mut world, true);
    let (uri, revision) = ("hf://org/model@main".to_owned(), "0123".to_owned());
    let known = DataStatus { name: "model".to_owned(), uri, revision, key: "key".to_owned(), ..DataStatus::default() };
    world.status.data = vec![known.clone()];
    world.children.upkeep = Some(upkeep(Upkeep::Fetch, None));
    world.transfer = Some(answer(vec![half(FetchStage::Checking)]));
    world.step();
    assert_eq!(world.condition("Scheduled").2, "checking hf://org/model@main in the cache before the workers are made");
    assert!(world.status.data[0].progress.is_some());
    world.transfer = None;
    world.step();
    assert_eq!(world.status.data, [known]);
}

#[test]
fn fetch_message_counts_complete_contents() {
    let mut world = World::new();
    with_model(&mut world, true);
    world.spec.dataset = Some("s3://bucket/set".to_owned());
    world.children.upkeep = Some(upkeep(Upkeep::Fetch, None));
    let second = FetchProgress { name: "dataset".to_owned(), stage: FetchStage::Listing, ..FetchProgress::default() };
    world.transfer = Some(answer(vec![half(FetchStage::Complete), second]));
    world.step();
    let (.., message) = world.condition("Scheduled");
    assert_eq!(
        message,
        "listing the files of s3://bucket/set, which are fetched before the workers are made (1 of 2 contents are complete)"
    );
    assert_eq!(world.status.data.len(), 2);
}

#[test]
fn single_worker_reports_fetch_progress() {
    let mut world = World::new();
    with_model(&mut world, false);
    world.spec.num_workers = NonZeroU16::new(1);
    world.step();
    world.see(Some(job(1)), [ObservedPod { fetches: true, ..placed(0, 1) }]);
    world.step();
    assert_eq!(world.condition("Running").1, "Starting");
    world.transfer = Some(answer(vec![half(FetchStage::Fetching)]));
    world.step();
    let (status, reason, message) = world.condition("Running");
    assert_eq!((status, reason), ("False", "Fetching"));
    assert!(message.contains("1 of 3 files"), "{message}");
    // Its init container has ended.
    world.see(Some(job(1)), [ObservedPod { fetched: vec![fetched("model", "key")], ..placed(0, 1) }]);
    world.step();
    assert_eq!(world.condition("Running").1, "Starting");
    assert_eq!(world.status.data[0].revision, "0123");
}
