//! The examples that run as shipped, by `kubectl apply -k`. The node has images with the names in their files. Their
//! content is made here: it is the demo's, or that of `devcluster/cluster images examples`, which prints its path for
//! TRAININGJOB_TEST_EXAMPLES_IMAGE.

use super::checkpoints::logs;
use super::stores::Bucket;
use super::world::{DEMO_IMAGE, Job, Space, World, world};
use api::State::{Completed, Running};
use api::{Reason, TrainingJobStatus};
use k8s_openapi::api::core::v1::Secret;
use serde_json::json;
use std::path::Path;
use testkit::root;
use testkit::servers::SECRET;

const EXAMPLES_IMAGE: &str = "localhost/trainingjob-examples:cpu";
/// The images that the files name.
const PYTHON: &str = "docker.io/library/python:3.13-slim";
const PYTORCH: &str = "docker.io/pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime";

/// Applies an example as its first lines say.
async fn apply(space: &Space, example: &str, job: &str) -> Job {
    let watched = space.watch(job).await;
    space.world.cluster.kubectl(&["apply", "-n", &space.name, "-k", &root(&format!("examples/{example}"))]);
    watched
}

/// Runs an example to its end, and returns the status and what worker 0 has printed.
async fn run(world: &'static World, example: &str, job: &str) -> (TrainingJobStatus, String) {
    let space = world.space(&example.replace("frameworks/", "example-"), json!({})).await;
    let job = apply(&space, example, job).await;
    let status = job.state(Completed).await;
    assert_eq!(status.progress.as_deref(), Some("100%"), "{example}: {status:?}");
    let printed = logs(&space, &job).await.remove(0);
    space.end().await;
    (status, printed)
}

/// The demo's image under the names of two public ones.
fn small(world: &World) {
    world.cluster.devcluster(&["tag", DEMO_IMAGE, PYTHON, PYTORCH]);
}

/// The examples' image under the same names. None where it was not made.
fn large() -> Option<&'static World> {
    let world = world()?;
    let Ok(image) = std::env::var("TRAININGJOB_TEST_EXAMPLES_IMAGE") else {
        testkit::skipped("TRAININGJOB_TEST_EXAMPLES_IMAGE is not set, `make soak` sets it");
        return None;
    };
    world.cluster.devcluster(&["import", &image]);
    world.cluster.devcluster(&["tag", EXAMPLES_IMAGE, PYTHON, PYTORCH]);
    Some(world)
}

#[tokio::test]
async fn hello() {
    let Some(world) = world() else { return };
    small(world);
    let (status, printed) = run(world, "hello", "hello").await;
    assert_eq!(status.restart_count.unwrap_or(0), 0);
    assert!(printed.contains("worker 0 of 2 is done"), "{printed}");
}

/// The workers go to spot nodes when there is one. The same job without them then resumes from what it saved.
#[tokio::test]
async fn spot_and_pytorch() {
    let Some(world) = world() else { return };
    small(world);
    let space = world.space("example-spot", json!({})).await;
    let job = apply(&space, "spot", "circles").await;
    job.until("to wait for a spot node", |status| status.reason == Some(Reason::Unschedulable)).await;
    world.cluster.kubectl(&["label", "node", "node0", "karpenter.sh/capacity-type=spot", "--overwrite"]);
    let status = job.state(Completed).await;
    assert_eq!((status.restart_count.unwrap_or(0), status.progress.as_deref()), (0, Some("100%")), "{status:?}");
    job.delete().await;

    let job = apply(&space, "frameworks/pytorch", "circles").await;
    let status = job.state(Completed).await;
    let resumed = status.checkpoint.as_ref().and_then(|reported| reported.resumed_from.clone());
    assert_eq!(resumed.as_deref(), Some("epoch-30.pt"), "{status:?}");
    let printed = logs(&space, &job).await.remove(0);
    assert!(printed.contains("rank 0 of 2: 30 of 30 epochs are done"), "{printed}");
    space.end().await;
}

#[tokio::test]
#[ignore = "soak: Hugging Face itself; proved in make test by node::presets and files::checkpoints"]
async fn hugging_face() {
    let Some(world) = large() else { return };
    let (status, printed) = run(world, "frameworks/hugging-face", "words").await;
    assert!(status.checkpoint.is_some_and(|reported| reported.latest_step.is_some()));
    assert!(printed.contains("trained to step 48"), "{printed}");
}

#[tokio::test]
#[ignore = "soak: Lightning itself; proved in make test by node::presets and files::checkpoints"]
async fn lightning() {
    let Some(world) = large() else { return };
    let (status, printed) = run(world, "frameworks/lightning", "waves").await;
    assert!(status.checkpoint.is_some_and(|reported| reported.latest_step.is_some()));
    assert!(printed.contains("trained to epoch 8"), "{printed}");
}

#[tokio::test]
#[ignore = "soak: DeepSpeed itself; proved in make test by files::checkpoints"]
async fn deepspeed() {
    let Some(world) = large() else { return };
    let (status, _) = run(world, "frameworks/deepspeed", "zero").await;
    assert!(status.checkpoint.is_some_and(|reported| reported.latest_step.is_some()));
}

#[tokio::test]
#[ignore = "soak: JAX itself; proved in make test by agents::workload"]
async fn jax() {
    let Some(world) = large() else { return };
    let (_, printed) = run(world, "frameworks/jax", "lines").await;
    assert!(printed.contains("weights [1.0, 2.0, 3.0, 4.0]"), "{printed}");
}

#[tokio::test]
#[ignore = "soak: scikit-learn itself; proved in make test by agents::agent::error_patterns_are_kept_with_their_lines"]
async fn scikit_learn() {
    let Some(world) = large() else { return };
    let (status, printed) = run(world, "frameworks/scikit-learn", "digits-svm").await;
    assert_eq!(status.objective.map(|readings| readings.count), Some(7));
    assert!(printed.contains("best accuracy 0.9"), "{printed}");
}

#[tokio::test]
#[ignore = "soak: Kueue beside real nodes; proved in make test by planes::queue"]
async fn kueue() {
    let Some(world) = large() else { return };
    world.cluster.devcluster(&["kueue"]);
    let (status, _) = run(world, "kueue", "circles").await;
    assert_eq!(status.restart_count.unwrap_or(0), 0);
}

#[tokio::test]
#[ignore = "soak: another bucket; proved in make test by node::stores::lost_volume_is_restored_from_the_backup"]
async fn s3_backup() {
    let Some(world) = large() else { return };
    let space = world.space("example-s3", json!({})).await;
    let bucket = Bucket::open(&space).await;
    let beside = bucket.server.object("x");
    let buckets = beside.parent().and_then(Path::parent).expect("a folder of buckets");
    std::fs::create_dir_all(buckets.join("ml-backups")).unwrap();
    space.create::<Secret>(bucket.data_keys("backup-credentials", SECRET)).await;
    let job = apply(&space, "s3-backup", "circles").await;
    job.state(Running).await;
    job.state(Completed).await;
    let is_copied = |status: &TrainingJobStatus| {
        status.checkpoint.as_ref().is_some_and(|reported| reported.last_backup_path.as_deref() == Some("epoch-30.pt"))
    };
    job.until("the last checkpoint to be copied", is_copied).await;
    assert!(buckets.join("ml-backups/circles/epoch-30.pt").is_file());
    space.end().await;
}
