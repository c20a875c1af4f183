//! Incidents as an on-call engineer meets them: what is typed, what is seen, and how many seconds after the cause it is
//! seen.
//!
//! The printed table is in docs/incidents.md. INCIDENT, a part of a title, selects incidents. In place of failures that
//! need a GPU, the program prints what the libraries have printed.

use super::world::{Space, World, is_built};
use serde_json::{Value, json};
use std::io::Write;
use std::time::{Duration, Instant};

/// A cause that is not shown after this time counts as not found.
const LIMIT: Duration = Duration::from_secs(240);

/// An incident, and what has to be seen of it.
struct Incident {
    title: &'static str,
    name: &'static str,
    fields: Value,
    /// The arguments of `kubectl trainingjob`, in which NAME is the job.
    typed: &'static [&'static str],
    /// Words of the cause, all of which are seen.
    seen: &'static [&'static str],
}

fn shell(script: &str) -> Value {
    json!(["sh", "-c", script])
}

fn python(program: &str) -> Value {
    json!(["python3", "-c", program])
}

fn incidents() -> Vec<Incident> {
    let one = |fields: Value| super::world::merged(json!({ "numWorkers": 1 }), &fields);
    let fails = |how: &str| json!(["python3", "/programs/failures.py", how]);
    let saves = "import os, signal, torch\nfolder = os.environ['CHECKPOINT_DIR']\n\
                 torch.save({'step': 10, 'weights': torch.ones(10000)}, f'{folder}/step-10.pt')\n\
                 whole = open(f'{folder}/step-10.pt', 'rb').read()\n\
                 open(f'{folder}/step-20.pt', 'wb').write(whole[:len(whole) // 2])\n\
                 print('step 20/100 loss 0.5', flush=True)\nsignal.pause()";
    let raises = "print('step 3 loss 0.5', flush=True)\nraise ValueError('row 812 of the data has no label')";
    vec![
        Incident {
            title: "1 Pending, no GPUs",
            name: "no-gpus",
            fields: json!({ "gpusPerWorker": 8 }),
            typed: &["why", "NAME"],
            seen: &["nvidia.com/gpu", "gpusPerWorker: 0"],
        },
        Incident {
            title: "2 an image that cannot be pulled",
            name: "image",
            fields: one(json!({ "image": "localhost/no-such-image:1" })),
            typed: &["why", "NAME"],
            seen: &["ImagePull", "localhost/no-such-image:1"],
        },
        Incident {
            title: "3 killed for lack of memory",
            name: "memory",
            fields: one(json!({
                "command": python("data = bytearray(256 << 20)\nprint(len(data))"), "failurePolicy": { "restartPolicy": "Never" },
                "resources": { "limits": { "memory": "128Mi" } },
            })),
            typed: &["why", "NAME"],
            seen: &["OOMKilled", "128Mi"],
        },
        Incident {
            title: "4 CUDA out of memory (recorded output)",
            name: "cuda",
            fields: json!({ "command": fails("cuda_out_of_memory"), "failurePolicy": { "restartPolicy": "Never" } }),
            typed: &["why", "NAME"],
            seen: &["CudaOutOfMemory", "rank 1"],
        },
        Incident {
            title: "5 a loss that is NaN",
            name: "nan",
            fields: one(json!({ "command": fails("nan"), "failurePolicy": { "restartPolicy": "Never" } })),
            typed: &["why", "NAME"],
            seen: &["Epoch 2/9 loss: nan"],
        },
        Incident {
            title: "6 a damaged checkpoint",
            name: "damaged",
            fields: one(json!({
                "command": python(saves), "checkpoint": { "storage": { "type": "pvc", "size": "1Gi" } },
            })),
            typed: &["checkpoints", "NAME", "verify"],
            seen: &["step-20.pt", "step-10.pt"],
        },
        Incident {
            title: "7 an error of NCCL (recorded output)",
            name: "nccl",
            fields: json!({ "command": fails("nccl_error"), "failurePolicy": { "restartPolicy": "Never" } }),
            typed: &["why", "NAME"],
            seen: &["NcclError", "10.0.0.7"],
        },
        Incident {
            title: "8 a rank that hangs in a barrier",
            name: "barrier",
            fields: json!({
                "command": ["torchrun", "/programs/stalls.py"], "env": [{ "name": "FAULT", "value": "absent" }],
            }),
            typed: &["stacks", "NAME"],
            seen: &["/programs/stalls.py:21)", "/programs/stalls.py:24)"],
        },
        Incident {
            title: "9 a program that does not exit",
            name: "stays",
            fields: one(json!({ "command": shell("echo 'step 10/10 loss 0.1'; sleep 10000") })),
            typed: &["why", "NAME"],
            seen: &["All steps were done", "has not exited"],
        },
        Incident {
            title: "11 workers that do not meet",
            name: "apart",
            fields: json!({
                "command": shell("echo step 1; sleep 100"),
                "podTemplate": { "spec": { "initContainers": [{
                    "name": "slow-disk", "image": super::world::DEMO_IMAGE,
                    "command": ["sh", "-c", "test $JOB_COMPLETION_INDEX = 0 || sleep 10000"],
                }] } },
            }),
            typed: &["why", "NAME"],
            seen: &["worker 1", "slow-disk"],
        },
        Incident {
            title: "12 checkpoints that are lost with their pods",
            name: "not-saved",
            fields: one(json!({ "command": shell("echo step 1; sleep 10000"), "checkpoint": { "enabled": true } })),
            typed: &["why", "NAME"],
            seen: &["emptyDir", "checkpoint.storage"],
        },
        Incident {
            title: "5b a loss that no longer falls",
            name: "flat",
            fields: one(json!({
                "command": shell("step=0; while sleep 1; do step=$((step + 1)); echo \"step $step/1000 loss 0.5\"; done"),
                "monitoring": { "plateauSeconds": 60 },
            })),
            typed: &["why", "NAME"],
            seen: &["the loss has not been lower than 0.5", "plateauSeconds is 60"],
        },
        Incident {
            title: "13 three failures at one step",
            name: "again",
            fields: one(json!({ "command": python(raises), "failurePolicy": { "backoffLimit": 5 } })),
            typed: &["why", "NAME"],
            seen: &["row 812 of the data has no label", "3"],
        },
    ]
}

#[tokio::test]
#[ignore = "soak: minutes of waiting; proved in make test by node::failures, node::stalls and plane::waiting"]
async fn each_incident_is_shown_by_one_command() {
    if !is_built() {
        return;
    }
    // A cluster of its own, because its operator is broken at the end.
    let world: &'static World = Box::leak(Box::new(World::up("incidents", &[])));
    let space = world.space("incidents", json!({})).await;
    let mut rows = Vec::new();
    let only = std::env::var("INCIDENT").unwrap_or_default();
    for incident in incidents().into_iter().filter(|incident| incident.title.contains(&only)) {
        rows.push(meet(&space, incident).await);
    }
    rows.push(lost_node(&space).await);
    rows.push(broken_operator(&space).await);
    let head = "| incident | typed | seen | seconds |\n|---|---|---|---|";
    let _ = writeln!(std::io::stderr(), "{head}\n{}", rows.join("\n"));
    space.end().await;
}

/// Causes the incident, types the command until the cause is seen, and returns the row of the table.
async fn meet(space: &Space, incident: Incident) -> String {
    let begun = Instant::now();
    let job = space.submit(incident.name, incident.fields).await;
    let typed: Vec<&str> =
        incident.typed.iter().map(|&word| if word == "NAME" { incident.name } else { word }).collect();
    let row = shows(space, incident.title, &typed, incident.seen, begun).await;
    job.delete().await;
    space.no_pod_is_left().await;
    row
}

async fn shows(space: &Space, title: &str, typed: &[&str], seen: &[&str], begun: Instant) -> String {
    let mut last = String::new();
    while begun.elapsed() < LIMIT {
        last = space.plugin(typed).await.1;
        let line = last.replace('\n', " ").split_whitespace().collect::<Vec<_>>().join(" ");
        if seen.iter().all(|words| line.contains(words)) {
            let shown = last.lines().filter(|line| seen.iter().any(|words| line.contains(words)));
            let shown = shown.map(str::trim).collect::<Vec<_>>().join(" ").replace('|', "\\|");
            let typed = typed.join(" ");
            return format!("| {title} | `{typed}` | {shown} | {} |", begun.elapsed().as_secs());
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    panic!("{title}: {typed:?} does not show {seen:?} within {LIMIT:?}, but\n{last}");
}

/// A node that loses power. Its pod stays, because its processes are not known to have ended.
async fn lost_node(space: &Space) -> String {
    space.world.cluster.devcluster(&["node", "add", "1"]);
    let fields = json!({
        "numWorkers": 1, "command": shell("echo step 1; sleep 10000"),
        "scheduling": { "nodeSelector": { "kubernetes.io/hostname": "node1" } },
    });
    let job = space.submit("node", fields).await;
    job.state(api::State::Running).await;
    let begun = Instant::now();
    space.world.cluster.devcluster(&["node", "lose", "1"]);
    shows(space, "14 a lost node", &["why", "node"], &["node1", "its node has not answered"], begun).await
}

/// An operator that cannot start, because of a wrong setting.
async fn broken_operator(space: &Space) -> String {
    let set = ["set", "env", "deployment/trainingjob-operator", "-n", "trainingjob-system", "LOG_LEVEL=verbose=loud"];
    let begun = Instant::now();
    space.world.cluster.kubectl(&set);
    shows(space, "10 an operator that does not start", &["check"], &["LOG_LEVEL"], begun).await
}
