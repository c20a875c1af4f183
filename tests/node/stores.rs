//! Checkpoints that outlive their volume: jobs on a real node with an S3 server on this machine.

use super::checkpoints::{self, checkpoint, job, logs, submit};
use super::training::Training;
use super::world::{SOON, Space, merged, world};
use super::{behind, folder, wait::eventually};
use api::State::{Completed, Running};
use api::TrainingJobStatus;
use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Secret};
use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::File;
use std::net::{IpAddr, UdpSocket};
use testkit::servers::{BUCKET, Fault, KEY, Proxy, SECRET, Server};

/// An S3 server that pods reach by an address of this machine, behind a proxy that can break the traffic.
pub struct Bucket {
    pub server: Server,
    pub proxy: Proxy,
}

impl Bucket {
    pub async fn open(space: &Space) -> Self {
        let server = Server::s3();
        let proxy = Proxy::before_at(&server, host_address(space).await);
        let secret = json!({
            "metadata": { "name": "s3-keys" },
            "stringData": { "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET },
        });
        space.create::<Secret>(secret).await;
        Self { server, proxy }
    }

    /// The address at which pods reach it.
    pub fn url(&self) -> String {
        self.proxy.url()
    }

    /// A Secret for `credentialsSecret` that gives access to this bucket, with this secret key.
    pub fn data_keys(&self, name: &str, key: &str) -> Value {
        json!({
            "metadata": { "name": name },
            "stringData": {
                "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": key, "AWS_REGION": "us-east-1",
                "AWS_ENDPOINT_URL": self.url(),
            },
        })
    }

    /// The common fields of a store and of a backup.
    fn access(&self) -> Value {
        json!({ "endpoint": self.url(), "region": "us-east-1", "credentialsSecret": "s3-keys" })
    }

    /// `checkpoint.backup` below this prefix, as often as it can be.
    pub fn backup(&self, prefix: &str) -> Value {
        let mut backup = self.access();
        backup["destination"] = json!(format!("s3://{BUCKET}/{prefix}"));
        backup["intervalSeconds"] = json!(10);
        backup
    }

    /// The whole checkpoints in the bucket below this prefix: those with a manifest.
    fn manifests(&self, prefix: &str) -> BTreeSet<String> {
        let Ok(entries) = std::fs::read_dir(self.server.object(&format!("{prefix}/.trainingjob"))) else {
            return BTreeSet::new();
        };
        let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter_map(|name| Some(name.strip_suffix(".json")?.replace("=3D", "="))).collect()
    }
}

/// The address of this machine by which it reaches the cluster, and at which the cluster's pods reach it.
pub async fn host_address(space: &Space) -> IpAddr {
    let config = space.world.cluster.config().await;
    let server = config.cluster_url.authority().unwrap().as_str().to_owned();
    // Nothing is sent. The kernel only looks up the route.
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect(server).unwrap();
    socket.local_addr().unwrap().ip()
}

async fn kept(space: &Space, claim: &str) -> BTreeSet<u64> {
    let names: Vec<String> = folder(space, claim).await.map(|file| file.0).collect();
    names.iter().filter_map(|name| name.split_once("step=")?.1.split_once('-')?.0.parse().ok()).collect()
}

/// At each moment, the checkpoints that the rules name exist. When the claim is lost, the next job of that name resumes
/// from the bucket, on a new claim, and ends like an undisturbed job.
#[tokio::test]
async fn lost_volume_is_restored_from_the_backup() {
    const BEST: u64 = 40;
    let Some(world) = world() else { return };
    let space = world.space("lost-volume", json!({})).await;
    let bucket = Bucket::open(&space).await;
    let rules = json!({
        "retention": 3, "keepBest": { "metric": "val_loss", "mode": "min" }, "backup": bucket.backup("kept"),
    });
    let name = |step: u64| format!("epoch={step}-step={step}-val_loss={}.safetensors", step.abs_diff(BEST));
    let env = json!({ "BEST_AT": BEST.to_string() });
    let fields = json!({ "checkpoint": merged(json!({ "storage": { "type": "pvc", "size": "1Gi" } }), &rules) });
    let first = Training::submit(&space, "kept", 2, env.clone(), fields.clone()).await;
    first.state(Running).await;

    // A checkpoint that was seen once stays until the newer ones that the rules require exist.
    let mut seen = BTreeSet::new();
    let what = "three checkpoints to be newer than the best, and the first one to be gone";
    first
        .eventually(what, async || {
            let now = kept(&space, "kept-checkpoints").await;
            let lost: Vec<u64> = seen.difference(&now).copied().collect();
            seen.extend(&now);
            let newer = |step: u64| now.iter().filter(|&&other| other > step).count();
            assert!(lost.iter().all(|&step| step != BEST && newer(step) >= 3), "of {seen:?} there are {now:?}");
            (lost.contains(&5) && newer(BEST) >= 3).then_some(())
        })
        .await;
    let last = checkpoint(&first.completes(2).await).latest_step.unwrap().cast_unsigned();
    // The last step is saved, and every fifth.
    let before = (last - 1) / 5 * 5;
    let expected = BTreeSet::from([BEST, before - 5, before, last]);
    eventually("what the rules keep", SOON, async || {
        (kept(&space, "kept-checkpoints").await == expected).then_some(())
    })
    .await;
    let newest = name(last);
    let is_copied = |status: &TrainingJobStatus| {
        status.checkpoint.as_ref().is_some_and(|reported| reported.last_backup_path.as_ref() == Some(&newest))
    };
    let status = first.until("the newest to be copied", is_copied).await;
    let reported = checkpoint(&status);
    assert!(reported.last_backup_time.is_some());
    let best = reported.best.as_ref().map(|best| (best.path.clone(), best.value));
    assert_eq!(best, Some((name(BEST), Some(0.0))));
    assert!(bucket.manifests("kept").contains(&newest), "{:?}", bucket.manifests("kept"));

    // Another job reads the best one by the path that stays the same.
    let reads = json!({ "model": "pvc://kept-checkpoints/best", "command": ["sh", "-c", "sha256sum < $MODEL"] });
    let reader = space.submit("reader", merged(json!({ "numWorkers": 1 }), &reads)).await;
    reader.state(Completed).await;
    let read = logs(&space, &reader).await.concat();
    let path = behind(&space, "kept-checkpoints").await.join(name(BEST));
    let expected = std::process::Command::new("sha256sum").stdin(File::open(path).unwrap()).output().unwrap().stdout;
    assert_eq!(read, String::from_utf8_lossy(&expected));
    reader.delete().await;

    // The volume is lost.
    first.delete().await;
    eventually("all its pods to be gone", SOON, async || {
        let pods = space.pods().await;
        let of_job = |pod: &Pod| pod.labels().get("training-job").is_some_and(|job| job == "kept");
        (!pods.iter().any(of_job)).then_some(())
    })
    .await;
    let claims = space.api::<PersistentVolumeClaim>();
    claims.delete("kept-checkpoints", &DeleteParams::default()).await.unwrap();
    eventually("the claim to be gone", SOON, async || {
        claims.get_opt("kept-checkpoints").await.unwrap().is_none().then_some(())
    })
    .await;
    let second = Training::submit(&space, "kept", 2, env, fields).await;
    second.until("a save of its own", |status| latest(status) > Some(last.cast_signed())).await;

    // The job ends while the store is away. Its last save is copied when no worker exists any more.
    bucket.proxy.set(|_| Fault::Answer(503));
    let status = second.completes(2).await;
    assert_eq!((status.attempt, checkpoint(&status).resumed_from.as_ref()), (Some(1), Some(&newest)));
    for log in logs(&space, &second).await {
        assert!(log.contains(&format!("resumed from /checkpoints/{newest} at step {last}")), "{log}");
    }
    let upkeep = eventually("a Job that copies", SOON, async || {
        let job: Option<BatchJob> = space.api().get_opt("kept-upkeep").await.unwrap();
        job.filter(|job| job.status.as_ref().is_some_and(|status| status.active == Some(1)))
    });
    assert_eq!(upkeep.await.owner_references()[0].name, "kept");
    let newest = name(checkpoint(&second.status()).latest_step.unwrap().cast_unsigned());
    assert!(!bucket.manifests("kept").contains(&newest), "the store is away");
    // It retries for a minute. If it failed, another one would be made ten minutes later.
    bucket.proxy.set(|_| Fault::Pass);
    let is_copied = |status: &TrainingJobStatus| {
        status.checkpoint.as_ref().is_some_and(|reported| reported.last_backup_path.as_ref() == Some(&newest))
    };
    second.until("the newest to be copied after the end", is_copied).await;
    // Beside the checkpoints of the first job.
    let manifests = bucket.manifests("kept");
    assert!(manifests.iter().any(|name| name.starts_with(&newest)), "{manifests:?}");
    space.end().await;
}

/// Whatever the store does, the training continues, the status reports it, and the copies catch up.
#[tokio::test]
#[ignore = "soak: each fault with a real training; proved in make test by agents::checkpoints::failing_store_does_not_block_training"]
async fn backup_failures_do_not_block_training() {
    let Some(world) = world() else { return };
    let space = world.space("bad-store", json!({})).await;
    let bucket = Bucket::open(&space).await;
    let env = json!({ "STEPS": "100000", "SAVE_EVERY": "10", "STEP_SECONDS": "0.1" });
    let job = submit(&space, "bad-store", env, json!({ "retention": 2, "backup": bucket.backup("bad") })).await;
    job.until("a first copy", |status| last_backup(status).is_some()).await;

    let faults = [(Fault::Answer(500), "500"), (Fault::Answer(403), "403"), (Fault::Cut, "")];
    for (fault, words) in faults {
        bucket.proxy.set(move |_| fault);
        let (said, status) = job.condition("CheckpointsHealthy", "False", "BackupFailing").await;
        assert!(said.message.contains(words), "{fault:?}: {}", said.message);
        let (step, copied) = (latest(&status), last_backup(&status));
        job.until(&format!("training and saving with {fault:?}"), |status| latest(status) > step.map(|step| step + 50))
            .await;
        bucket.proxy.set(|_| Fault::Pass);
        job.condition("CheckpointsHealthy", "True", "CheckpointsGood").await;
        job.until(&format!("copies after {fault:?}"), |status| last_backup(status) > copied).await;
    }
    // A slow store is no failure.
    bucket.proxy.set(|_| Fault::Slow);
    let status = job.state(Running).await;
    let copied = last_backup(&status);
    let status = job.until("a copy to a slow store", |status| last_backup(status) > copied).await;
    assert_eq!((status.attempt, status.restart_count), (Some(1), Some(0)));
    job.delete().await;
    space.end().await;
}

fn latest(status: &TrainingJobStatus) -> Option<i64> {
    status.checkpoint.as_ref()?.latest_step
}

fn last_backup(status: &TrainingJobStatus) -> Option<jiff::Timestamp> {
    status.checkpoint.as_ref()?.last_backup_time.as_ref().map(|time| time.0)
}

/// Where each worker has a folder of its own, each puts its files into the bucket, and gets its own back in a new pod.
#[tokio::test]
#[ignore = "soak: torch's shards in real pods; proved in make test by agents::checkpoints::shards_of_all_workers_form_one_copy"]
async fn new_pods_fetch_their_own_shards_from_the_bucket() {
    let Some(world) = world() else { return };
    let space = world.space("shards", json!({})).await;
    let bucket = Bucket::open(&space).await;
    let storage = merged(json!({ "type": "s3", "s3Bucket": BUCKET, "prefix": "shards" }), &bucket.access());
    let env = json!({ "STEPS": "60", "SAVE_EVERY": "10", "FORMAT": "dcp" });
    let whole = submit(&space, "whole", env.clone(), json!({})).await;
    // The first attempt stays in its save of step 50 until it is ended, however long the copies take.
    let held = json!({ "CUT_SAVE": "50", "CUT_ON": "1", "CUT_BY": "hold" });
    let fails = job(&space, "fails", merged(env, &held), json!({ "storage": storage, "retention": 2 })).await;
    eventually("a checkpoint of all workers in the store", SOON, async || {
        bucket.manifests("shards").contains("step-40").then_some(())
    })
    .await;
    // A failed program is started again in place. New pods come only where one is lost.
    let lost = fails.pod(1, 1, "to be there", |_| true).await.name_any();
    space.api::<Pod>().delete(&lost, &DeleteParams::default()).await.unwrap();
    let status = fails.state(Completed).await;
    assert_eq!(status.attempt, Some(2));
    let from = checkpoint(&status).resumed_from.clone().expect("it has gone on");
    assert_eq!(from, "step-40");
    whole.state(Completed).await;
    let undisturbed = logs(&space, &whole).await;
    for log in logs(&space, &fails).await {
        assert!(log.contains(&format!("resumed from /checkpoints/{from} at step")), "{log}");
        assert_eq!(checkpoints::weights(&log), checkpoints::weights(&undisturbed[0]));
    }
    assert!(bucket.manifests("shards").contains("step-60"), "{:?}", bucket.manifests("shards"));
    space.end().await;
}
