//! Programs without knowledge of TrainingJob, each with its own library. Their progress is seen while they run.

use crate::world::{Job, Space, world};
use api::State::Running;
use api::TrainingJobStatus;
use serde_json::json;
use std::path::PathBuf;
use std::process::Command;
use testkit::{cache, root};

/// The libraries of these lists, on this machine, because its node is the only one.
pub fn packages(lists: &[&str]) -> PathBuf {
    let read = |list| std::fs::read(root(&format!("tests/node/packages/{list}.txt"))).expect("it is in the checkout");
    let texts: Vec<_> = lists.iter().map(read).collect();
    let digest: String = crate::sha256(&texts.concat())[..6].iter().map(|byte| format!("{byte:02x}")).collect();
    let folder = cache().join(format!("packages-{digest}"));
    let output = Command::new(root("tests/node/packages/install")).arg(&folder).args(lists).output().expect("bash");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    folder
}

/// More epochs than any of them completes before it is looked at.
const EPOCHS: i64 = 100_000;

async fn submit(space: &Space, name: &str, workers: u32, command: &[&str], list: Option<&str>) -> Job {
    let volumes = json!([
        { "name": "programs", "configMap": { "name": "programs" } },
        { "name": "packages", "hostPath": { "path": packages(&["transformers-keras", "lightning"]) } },
    ]);
    let mounts = json!([
        { "name": "programs", "mountPath": "/programs" },
        { "name": "packages", "mountPath": "/packages", "readOnly": true },
    ]);
    let mut fields = json!({
        "model": "mlp", "numWorkers": workers, "command": command, "volumes": volumes, "volumeMounts": mounts,
        "hyperparameters": { "epochs": EPOCHS }, "env": [{ "name": "EPOCHS", "value": EPOCHS.to_string() }],
    });
    if let Some(list) = list {
        let path = json!({ "name": "PYTHONPATH", "value": format!("/packages/{list}") });
        fields["env"].as_array_mut().unwrap().push(path);
    }
    space.submit(name, fields).await
}

#[tokio::test]
#[ignore = "soak: the libraries themselves; proved in make test by the recorded outputs of lib agent::progress and by \
            node::demo_resumes_after_suspension_and_completes_early"]
async fn unchanged_programs_report_their_progress() {
    let Some(world) = world() else { return };
    if world.cluster.name().is_none() {
        return testkit::skipped("the packages are on this machine, and its nodes are not");
    }
    let space = world.space("presets", json!({})).await;
    let train: &[&str] = &["torchrun", "/workspace/train.py"];
    let jobs = [
        ("hugging-face", 1, &["python3", "/programs/hugging_face.py"][..], Some("transformers-keras")),
        ("keras", 1, &["python3", "/programs/keras_fit.py"], Some("transformers-keras")),
        ("lightning", 1, &["python3", "/programs/lightning_fit.py"], Some("lightning")),
        ("torchrun", 2, train, None),
    ];
    for (name, workers, command, list) in jobs {
        let job = submit(&space, name, workers, command, list).await;
        let is_reported = |status: &TrainingJobStatus| {
            let loss = status.metrics.as_ref().and_then(|metrics| metrics.loss);
            let epochs = (status.current_epoch, status.total_epochs);
            status.state == Some(Running)
                && status.progress.is_some()
                && loss.is_some()
                && matches!(epochs, (Some(epoch), Some(EPOCHS)) if epoch >= 1)
        };
        job.until("progress, epoch and loss while it runs", is_reported).await;
        let row = world.cluster.kubectl(&["get", "tj", name, "-n", &space.name, "-o", "wide"]);
        print!("{row}");
        let cells: Vec<&str> = row.lines().last().unwrap().split_whitespace().collect();
        assert!(cells[1] == "Running" && cells[2].ends_with('%'), "{row}");
        assert!(cells[3].parse::<i64>().is_ok_and(|epoch| epoch >= 1), "{row}");
        assert!(row.lines().next().unwrap().contains("LOSS"), "{row}");
        job.delete().await;
    }
    space.end().await;
}
