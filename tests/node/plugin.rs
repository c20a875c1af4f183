//! `kubectl trainingjob` beside real pods: what it asks their agents, and what it finds in their logs.

use crate::training::Training;
use crate::world::{SOON, Space, world};
use kube::ResourceExt;
use serde_json::json;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use testkit::process::{Signal, send_signal};
use testkit::wait::eventually;

async fn says(space: &Space, args: &[&str]) -> String {
    let (is_well, text) = space.plugin(args).await;
    assert!(is_well, "{args:?}: {text}");
    text
}

/// Uses a command, files and a port of the named worker.
async fn reaches_into_a_worker(space: &Space) {
    let (exit, text) = space
        .plugin_code(&[
            "exec",
            "asked",
            "-w",
            "1",
            "--",
            "sh",
            "-c",
            "echo $NODE_RANK of $NNODES at $MASTER_ADDR; exit 7",
        ])
        .await;
    assert_eq!(exit, Some(7), "{text}");
    assert!(text.starts_with("1 of 2 at asked-"), "{text}");
    assert_eq!(says(space, &["shell", "asked"]).await, "");

    let place = tempfile::tempdir().unwrap();
    let [ours, theirs] = ["ours", "theirs"].map(|name| place.path().join(name).to_str().unwrap().to_owned());
    fs::write(&ours, "a note").unwrap();
    says(space, &["cp", "asked", "-w", "1", &ours, ":/tmp/note"]).await;
    says(space, &["cp", "asked", "-w", "1", ":/tmp/note", &theirs]).await;
    assert_eq!(fs::read_to_string(&theirs).unwrap(), "a note");
    let (is_well, text) = space.plugin(&["exec", "asked", "--", "cat", "/tmp/note"]).await;
    assert!(!is_well && text.contains("No such file"), "worker 0 got it, too: {text}");

    let mut forward =
        space.plugin_command(&["port-forward", "asked", "-w", "1", ":8080"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(forward.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let port =
        line.strip_prefix("Forwarding from 127.0.0.1:").and_then(|rest| rest.split(' ').next()).unwrap_or_default();
    let port: u16 = port.parse().unwrap_or_else(|_| panic!("{line}"));
    let mut connection = TcpStream::connect(("127.0.0.1", port)).unwrap();
    connection.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut metrics = String::new();
    connection.read_to_string(&mut metrics).unwrap();
    assert!(metrics.starts_with("HTTP/1.0 200") && metrics.contains("trainingjob_"), "{metrics}");
    end(&mut forward, Signal::TERM);
    let is_closed = async || TcpStream::connect(("127.0.0.1", port)).is_err().then_some(());
    eventually("kubectl to end with the plugin", SOON, is_closed).await;
}

/// Ends a command by a signal, and returns its exit code.
fn end(command: &mut Child, signal: Signal) -> Option<i32> {
    send_signal(command, signal);
    command.wait().unwrap().code()
}

/// The two pods of `check --ports` are gone after Ctrl-C.
async fn leaves_no_pods_of_a_check(space: &Space, image: &str) {
    let pods = async || -> usize {
        space.pods().await.iter().filter(|pod| pod.name_any().starts_with("trainingjob-ports-")).count()
    };
    let check = ["check", "--ports", "--image", image];
    let mut check = space.plugin_command(&check).stdout(Stdio::null()).spawn().unwrap();
    eventually("a pod of the check", SOON, async || (pods().await > 0).then_some(())).await;
    assert_eq!(end(&mut check, Signal::INT), Some(130));
    eventually("no pod of the check", SOON, async || (pods().await == 0).then_some(())).await;
}

#[tokio::test]
async fn plugin_answers_for_running_and_ended_jobs() {
    let Some(world) = world() else { return };
    let space = world.space("plugin", json!({})).await;
    let checkpoint = json!({ "storage": { "type": "pvc", "size": "1Gi" }, "retention": 10_000 });
    let job = Training::submit(&space, "asked", 2, json!({}), json!({ "checkpoint": checkpoint })).await;
    job.meets(1).await;
    let saved = job.saves(1).await;

    let image = job.status().agent_image.unwrap();
    let (_, text) = space.plugin(&["check", "--ports", "--image", &image]).await;
    assert!(text.contains("ports: a pod reaches another one on 29500 and 50000 ("), "{text}");

    leaves_no_pods_of_a_check(&space, &image).await;
    reaches_into_a_worker(&space).await;

    let stacks = says(&space, &["stacks", "asked"]).await;
    for worker in 0..2 {
        assert!(stacks.contains(&format!("worker {worker} (pod asked-training-{worker}-")), "{stacks}");
    }
    assert!(stacks.contains("main thread") && stacks.contains("gang.py:"), "{stacks}");
    let one: serde_json::Value =
        serde_json::from_str(&says(&space, &["stacks", "asked", "--worker", "1", "-o", "json"]).await).unwrap();
    assert_eq!(one["workers"].as_array().unwrap().len(), 1);
    let pod = job.workers()[&1].metadata.uid.clone().unwrap();
    assert_eq!(one["workers"][0]["stacks"]["podUid"], *pod);

    let listed = says(&space, &["checkpoints", "asked"]).await;
    assert!(listed.contains(&format!("step-{saved}")), "{listed}");
    let verified = says(&space, &["checkpoints", "asked", "verify"]).await;
    assert!(verified.contains("Valid") || verified.contains("Complete"), "{verified}");
    let pruned = says(&space, &["checkpoints", "asked", "prune", "--dry-run"]).await;
    assert!(!pruned.contains("deleted"), "{pruned}");
    let why = says(&space, &["why", "asked"]).await;
    assert!(why.contains("Running"), "{why}");

    // In the same pods, from a checkpoint older than the newest.
    job.saves(saved + 1).await;
    let (is_well, text) = space.plugin(&["restart", "asked", "--from", "step-0"]).await;
    assert!(!is_well && text.contains("the job has no checkpoint step-0; it has "), "{text}");
    let older = format!("step-{saved}.safetensors");
    let text = says(&space, &["restart", "asked", "--from", &older]).await;
    assert!(text.contains(&format!("the next attempt resumes from /checkpoints/{older}")), "{text}");
    assert_eq!(job.meets(2).await.from, saved);
    assert_eq!(job.workers()[&1].metadata.uid.clone().unwrap(), pod);

    job.completes(2).await;
    let log = says(&space, &["logs", "asked", "--worker", "1"]).await;
    assert!(testkit::training::ended(&log).is_some(), "{log}");
    let why = says(&space, &["why", "asked"]).await;
    assert!(why.contains("Completed"), "{why}");
    let (is_well, text) = space.plugin(&["stacks", "asked"]).await;
    assert!(!is_well && text.contains("no worker of asked runs now"), "{text}");
    // The volume still exists, and a separate Job looks at it.
    let listed = says(&space, &["checkpoints", "asked"]).await;
    assert!(listed.contains("step-"), "{listed}");
    space.end().await;
}
