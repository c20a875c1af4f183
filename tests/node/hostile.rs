//! A folder of checkpoints in which a program has put content that is meant to harm its readers.

use super::behind;
use super::checkpoints::{checkpoint, logs};
use super::stores::Bucket;
use super::wait::eventually;
use super::world::{Job, SOON, Space, world};
use api::State::Completed;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use testkit::room::all_bytes;
use testkit::servers::BUCKET;

/// A checkpoint with more files than this is not looked at, so it replaces no other.
const MOST: u32 = 100_000;

/// The training completes, and its own checkpoints are found and rotated. Nothing is loaded, nothing outside of the
/// root is read or removed, no process waits for a FIFO, and no raw name reaches a terminal. FILES lie in one folder.
#[tokio::test]
#[ignore = "soak: as many files as FILES, in a real claim with a real backup; proved in make test by \
            agents::checkpoints::hostile_folder_does_not_disturb_training"]
async fn hostile_checkpoint_folder_does_not_disturb_the_job() {
    let Some(world) = world() else { return };
    let files: u32 = std::env::var("FILES").map_or(20_000, |files| files.parse().expect("FILES is a number"));
    let space = world.space("hostile", json!({})).await;
    let bucket = Bucket::open(&space).await;
    let fields = json!({
        "numWorkers": 1, "command": ["python3", "/programs/hostile.py"],
        "env": [{ "name": "FILES", "value": files.to_string() }],
        "volumes": [{ "name": "programs", "configMap": { "name": "programs" } }, { "name": "outside", "emptyDir": {} }],
        "volumeMounts": [
            { "name": "programs", "mountPath": "/programs" }, { "name": "outside", "mountPath": "/outside" },
        ],
        "checkpoint": {
            "storage": { "type": "pvc", "size": "1Gi" }, "retention": 2, "backup": bucket.backup("hostile"),
        },
    });
    let mut job = space.submit("hostile", fields).await;
    job.patient = SOON + SOON * (files / 200_000);

    // While it runs, its newest checkpoints are seen, and the damaged ones are named.
    job.until("two looks at its own checkpoints", |status| {
        status.checkpoint.as_ref().and_then(|reported| reported.latest_step).is_some_and(|step| step >= 12)
    })
    .await;
    let (reported, _) = job.condition("CheckpointsHealthy", "False", "CheckpointCorrupted").await;
    assert!(reported.message.contains("ugly") && reported.message.contains(".pt: "), "{}", reported.message);
    let listed = asked(&space, &["list"]).await;
    for words in ["ugly", "bomb.pt", "in s3://"] {
        assert!(listed.contains(words), "{words} is not in {listed}");
    }
    for words in ["step-9000", "pwned", "passwd"] {
        assert!(!listed.contains(words), "{words} is in {listed}");
    }
    let verified = asked(&space, &["verify"]).await;
    assert!(verified.contains("ugly") && verified.contains("Corrupted"), "{verified}");

    // The job ends, all is copied, and those of its own checkpoints are left that the rules keep.
    let root = behind(&space, "hostile-checkpoints").await;
    fs::write(root.join("enough"), "").unwrap();
    let status = job.state(Completed).await;
    assert_eq!((status.attempt, status.restart_count), (Some(1), Some(0)));
    let latest = checkpoint(&status).latest_step.unwrap();
    let path = format!("step-{latest}.pt");
    assert_eq!(checkpoint(&status).latest_path.as_deref(), Some(path.as_str()));
    let newest = [latest - 1, latest].map(|step| format!("step-{step}.pt"));
    let mut kept = BTreeSet::from([
        "all",
        "bomb.pt",
        "data",
        "enough",
        "etc",
        "old-bomb.pt",
        "packed-bomb.pt",
        "step-90001",
        "step-90002.pt",
        "step-90003.pt",
        "ugly\n\u{1b}[7mFAKE\u{1b}[0m\u{1b}]0;owned\u{7}\r",
        "ugly\n\u{1b}[7mFAKE\u{1b}[0m\u{1b}]0;owned\u{7}\r.pt",
    ]);
    // The folders are a series of their own, whose newest two stay.
    kept.extend(["step-2", "step-3"]);
    if files > MOST {
        kept.insert("step-1");
    }
    kept.extend(newest.iter().map(String::as_str));
    let kept: BTreeSet<String> = kept.into_iter().map(str::to_owned).collect();
    let is_done = async || (names(&root) == kept).then_some(());
    let done = tokio::time::timeout(SOON, eventually("what the rules keep", 2 * SOON, is_done)).await;
    if done.is_err() {
        let why = asked(&space, &["prune", "--dry-run"]).await;
        panic!("{:?} is left, not {kept:?}: {why}", names(&root));
    }
    let is_copied = |reported: Option<&str>| reported == Some(path.as_str());
    job.until("the last copy", |status| {
        is_copied(status.checkpoint.as_ref().and_then(|reported| reported.last_backup_path.as_deref()))
    })
    .await;
    let stored = bucket.server.object("hostile");
    assert!(all_bytes(&stored).windows(6).all(|six| six != b"SECRET"), "what lies outside is in {BUCKET}");

    // A later command asks another agent.
    assert!(asked(&space, &["list"]).await.contains(&path));
    assert!(asked(&space, &["verify"]).await.contains(&path));
    assert!(!root.join("pwned").exists(), "something was loaded");
    nothing_told_is_raw(&space, &job).await;
    space.end().await;
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    entries.filter(|name| !name.starts_with('.') && !name.contains('\u{fffd}')).collect()
}

/// The output of `kubectl trainingjob checkpoints hostile`, in which every line is the command's own.
async fn asked(space: &Space, args: &[&str]) -> String {
    let (_, text) = space.plugin(&[&["checkpoints", "hostile"], args].concat()).await;
    for line in text.lines() {
        assert!(!line.contains(char::is_control) && !line.starts_with("FAKE"), "{args:?}: {line:?} in {text}");
    }
    text
}

/// No text in the status, in an event or in the agent's output has characters that a terminal would act on.
async fn nothing_told_is_raw(space: &Space, job: &Job) {
    let read = |what: &[&str]| -> Value {
        let ns = space.name.as_str();
        serde_json::from_str(&space.world.cluster.kubectl(&[what, &["-n", ns, "-o", "json"]].concat())).unwrap()
    };
    is_plain(&read(&["get", "tj", &job.name])["status"]);
    for event in read(&["get", "events"])["items"].as_array().unwrap() {
        is_plain(&event["message"]);
    }
    for log in logs(space, job).await {
        log.lines().for_each(|line| is_plain(&json!(line)));
    }
}

fn is_plain(value: &Value) {
    match value {
        Value::String(text) => assert!(!text.contains(char::is_control), "{text:?}"),
        Value::Array(values) => values.iter().for_each(is_plain),
        Value::Object(fields) => fields.values().for_each(is_plain),
        _ => {}
    }
}
