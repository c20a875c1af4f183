//! One line to a running job: `run`, `attach`, `wait`, and new code in the same pods.

use crate::training::{Target, Training};
use crate::world::{DEMO_IMAGE, SOON, Space, World, world};
use api::State;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use testkit::process::Signal;
use testkit::wait::eventually;

/// Number of files in the folder.
const FILES: usize = 2000;
/// Trainings of each kind whose times `run_command_is_timed_in_turns_with_kubectl` prints.
const ROUNDS: usize = 5;

/// A training of two ranks. They sum their gradients over TCP, and both find the same line.
const TRAIN: &str = r#"
import os, socket, sys, time
from lib.model import slope
rank, world, port = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(os.environ["MASTER_PORT"])
def peer():
    if rank == 0:
        server = socket.create_server(("", port))
        return server.accept()[0]
    while True:
        try:
            return socket.create_connection((os.environ["MASTER_ADDR"], port), 5)
        except OSError:
            time.sleep(0.05)
print(f"version {slope.VERSION} attempt {os.environ['ATTEMPT']} in {os.getcwd()} {os.environ['TRAININGJOB_CODE'][:15]}", flush=True)
link, weight = peer().makefile("rw"), 0.0
for step in range(1, int(os.environ.get("STEPS", "50")) + 1):
    own = slope.gradient(weight, rank)
    link.write(f"{own}\n"), link.flush()
    weight -= 0.05 * (own + float(link.readline())) / world
    print(f"step {step} loss {abs(3 - weight):.4f}", flush=True)
    time.sleep(float(os.environ.get("PAUSE", "0")))
print(f"weight {weight:.3f}", flush=True)
"#;
const SLOPE: &str =
    "VERSION = 1\ndef gradient(weight, rank):\n    x = 1 + rank\n    return 2 * x * (weight * x - 3 * x)\n";

/// The folder of a program, with thousands of files that it may import.
fn folder(place: &Path) {
    for (name, text) in [
        ("train.py", TRAIN),
        ("lib/__init__.py", ""),
        ("lib/model/__init__.py", ""),
        ("lib/model/slope.py", SLOPE),
        (".gitignore", "*.npy\n"),
    ] {
        let path = place.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    fs::write(place.join("weights.npy"), vec![1; 8 << 20]).unwrap();
    for file in 0..FILES {
        let path = place.join(format!("lib/part{}/module{file}.py", file % 40));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("# module {file}\n{}", "VALUE = [1, 2, 3]\n".repeat(20))).unwrap();
    }
}

fn line<'a>(code: &'a str, name: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let first = ["run", name, "--image", DEMO_IMAGE, "--workers", "2", "--gpus", "0", "--code", code];
    let set = ["--set", "checkpoint.enabled=false", "--set", "framework=none"];
    [&first[..], &set, more, &["--", "python3", "train.py"]].concat()
}

/// A folder of this process for a program, and its path as text.
fn place(name: &str) -> (PathBuf, String) {
    let place = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
    folder(&place);
    let code = place.to_str().unwrap().to_owned();
    (place, code)
}

/// Applies what `--dry-run` printed: the code first, and then the job. Returns the time from there to `Succeeded`.
fn apply(world: &World, space: &Space, name: &str, yaml: &str) -> Duration {
    let documents: Vec<&str> = yaml.split("---\n").collect();
    let namespace = ["-n", space.name.as_str()];
    world.cluster.kubectl_with(&[&["create", "-f", "-"][..], &namespace].concat(), &documents[1..].join("---\n"));
    let begun = Instant::now();
    world.cluster.kubectl_with(&[&["apply", "-f", "-"][..], &namespace].concat(), documents[0]);
    let resource = format!("tj/{name}");
    let wait = ["wait", "--for=condition=Succeeded", &resource, "--timeout=120s"];
    world.cluster.kubectl(&[&wait[..], &namespace].concat());
    begun.elapsed()
}

/// In the loop of a GitOps controller, no applied change is refused, and the job resumes from the checkpoint.
#[tokio::test]
async fn failed_job_resumes_from_its_checkpoint_after_an_applied_change() {
    let Some(world) = world() else { return };
    let space = world.space("gitops", json!({})).await;
    let manifest = |limit: u32, note: &str| {
        json!({
            "apiVersion": "ml.example.com/v1", "kind": "TrainingJob",
            "metadata": { "name": "synced", "namespace": space.name },
            "spec": {
                "numWorkers": 2, "gpusPerWorker": 0, "image": DEMO_IMAGE,
                "command": ["python3", "/programs/gang.py"],
                "env": [{ "name": "NOTE", "value": note }],
                "checkpoint": { "storage": { "type": "pvc", "size": "1Gi" } },
                "failurePolicy": { "backoffLimit": limit },
                "networking": { "backend": "gloo" },
                "volumes": [{ "name": "programs", "configMap": { "name": "programs" } }],
                "volumeMounts": [{ "name": "programs", "mountPath": "/programs" }],
            },
        })
        .to_string()
    };
    let sync = |verb: &str, manifest: &str| {
        world.cluster.try_kubectl(&[verb, "--server-side", "--field-manager=gitops", "-f", "-"], manifest)
    };
    sync("apply", &manifest(0, "a")).unwrap();
    let job = Training::watch(&space, "synced").await;
    job.meets(1).await;
    let saved = job.saves(2).await;
    // A sync does not change what runs, and its error says what to do.
    let refused = sync("apply", &manifest(0, "b")).unwrap_err();
    assert!(refused.contains("can't change while the job runs: env;"), "{refused}");
    job.strike(Target::Rank(1), Signal::KILL);
    let failed = job.reaches(State::Failed).await;
    assert_eq!((failed.attempt, failed.start_time.is_some()), (Some(1), true));

    sync("apply", &manifest(5, "b")).unwrap();
    let begun = Instant::now();
    let met = job.meets(2).await;
    println!("from the applied change to the next attempt's meeting: {:.1?}, at step {}", begun.elapsed(), met.from);
    assert!(met.from >= saved, "{} after {saved}", met.from);
    let status = job.status();
    assert_eq!((status.restart_count, &status.failure_reason), (Some(0), &None));
    // Applying it again changes nothing, whatever the operator has written since. A GitOps controller compares the same
    // parts; the status may have changed since it was read.
    let parts = |text: Result<Vec<u8>, String>| {
        let object: Value = serde_json::from_slice(&text.unwrap()).unwrap();
        let metadata = &object["metadata"];
        let compared = ["generation", "labels", "annotations", "finalizers"].map(|part| metadata[part].clone());
        (compared, object["spec"].clone())
    };
    let live = || parts(world.cluster.try_kubectl(&["get", "tj", "synced", "-n", &space.name, "-o", "json"], ""));
    let before = live();
    let apply = ["apply", "--server-side", "--field-manager=gitops", "-o", "json", "-f", "-"];
    for how in [&["--dry-run=server"][..], &[]] {
        let applied = world.cluster.try_kubectl(&[&apply, how].concat(), &manifest(5, "b"));
        assert_eq!(parts(applied), before, "{how:?}");
    }
    assert_eq!(live(), before);

    // The plugin does the same for a stopped job, and for a completed one.
    let (exit, text) = space.plugin_code(&["resubmit", "synced", "--set", "env[0].value=c"]).await;
    assert!(exit == Some(1) && text.contains("stop it first"), "{text}");
    let (exit, text) = space.plugin_code(&["stop", "synced", "--wait"]).await;
    assert_eq!(exit, Some(0), "{text}");
    let (exit, text) = space.plugin_code(&["resubmit", "synced", "--set", "env[0].value=c"]).await;
    assert!(exit == Some(0) && text.contains("to resume it"), "{text}");
    let (exit, text) = space.plugin_code(&["resume", "synced"]).await;
    assert_eq!(exit, Some(0), "{text}");
    let (attempt, _) = job.runs_next(2, 2).await;
    assert!(attempt > 2);
    assert!(
        job.members()
            .iter()
            .filter(|member| !member.is_agent)
            .all(|member| member.process.variable("NOTE") == Some("c"))
    );
    space.end().await;
}

#[tokio::test]
async fn run_command_trains_a_folder_and_reuses_pods_for_new_code() {
    let Some(world) = world() else { return };
    let space = world.space("front", json!({})).await;
    let (place, code) = place("front");
    let (exit, text) = space.plugin_code(&line(&code, "ours", &[])).await;
    assert_eq!(exit, Some(0), "{text}");
    assert!(text.contains("weight 3.000") && text.contains("ours is Completed"), "{text}");
    assert!(text.contains("is created in namespace"), "{text}");

    // The same job by kubectl, which needs only what `--dry-run` prints.
    let (exit, yaml) = space.plugin_code(&line(&code, "plain", &["--dry-run", "-o", "yaml"])).await;
    assert_eq!(exit, Some(0), "{yaml}");
    apply(world, &space, "plain", &yaml);

    // A failure is the exit code of the command.
    let (exit, text) = space
        .plugin_code(&line(&code, "fails", &["--set", "failurePolicy.restartPolicy=Never", "--env", "STEPS=x"]))
        .await;
    assert_eq!(exit, Some(3), "{text}");
    assert!(text.contains("fails is Failed, PythonException") && text.contains("trainingjob why fails"), "{text}");
    let (exit, text) = space.plugin_code(&["wait", "fails", "--timeout", "5s"]).await;
    assert_eq!(exit, Some(3), "{text}");
    let (exit, text) = space.plugin_code(&["wait", "fails", "--for", "failed"]).await;
    assert_eq!(exit, Some(0), "{text}");

    // New code, in the same pods.
    let mut run = line(&code, "dev", &["--detach", "--env", "STEPS=100000", "--env", "PAUSE=0.05"]);
    let (exit, text) = space.plugin_code(&run.split_off(0)).await;
    assert_eq!(exit, Some(0), "{text}");
    let job = space.watch("dev").await;
    job.reaches(State::Running).await;
    let (exit, text) = space.plugin_code(&["wait", "dev", "--for", "running", "--timeout", "60s"]).await;
    assert_eq!(exit, Some(0), "{text}");
    let (exit, text) = space.plugin_code(&["wait", "dev", "--timeout", "1s"]).await;
    assert_eq!(exit, Some(4), "{text}");
    let uids = |space: &Space| {
        let space = space.clone();
        async move {
            let pods = space.pods().await;
            pods.iter()
                .filter(|pod| pod.name_any().starts_with("dev-"))
                .filter_map(kube::ResourceExt::uid)
                .collect::<BTreeSet<_>>()
        }
    };
    let before = uids(&space).await;
    assert_eq!(before.len(), 2);
    let digest = |status: &api::TrainingJobStatus| status.code.clone().map(|code| code.digest);
    let first = eventually("the digest", SOON, async || digest(&job.status())).await;
    renew(&space, "dev", &place, 2).await;
    assert_eq!(uids(&space).await, before, "the same pods");
    let now = digest(&job.status()).unwrap();
    assert_ne!(now, first);

    // The file that must not be sent was not sent.
    let parts = space.api::<ConfigMap>().get("dev-code-0").await.unwrap();
    assert!(parts.binary_data.unwrap()["code-0"].0.len() < 200 << 10);
    let (exit, _) = space.plugin_code(&["stop", "dev", "--wait"]).await;
    assert_eq!(exit, Some(0));
    fs::remove_dir_all(&place).unwrap();
    space.end().await;
}

/// Sends a changed folder to a running job. Returns the time to the first line of the new code in both workers.
async fn renew(space: &Space, name: &'static str, place: &Path, version: u32) -> Duration {
    fs::write(place.join("lib/model/slope.py"), SLOPE.replace("= 1\n", &format!("= {version}\n"))).unwrap();
    let begun = Instant::now();
    let (of_command, code) = (space.clone(), place.to_str().unwrap().to_owned());
    let command = tokio::spawn(async move { of_command.plugin_code(&["restart", name, "--code", &code]).await });
    let wanted = format!("version {version} ");
    eventually("the first line of the new code of both workers", SOON, async || {
        let pods = space.pods().await;
        let mut names = pods.iter().map(ResourceExt::name_any).filter(|pod| pod.starts_with(&format!("{name}-")));
        names.all(|pod| String::from_utf8_lossy(&space.logs(&pod)).contains(&wanted)).then_some(())
    })
    .await;
    let took = begun.elapsed();
    let (exit, text) = command.await.unwrap();
    assert_eq!(exit, Some(0), "{text}");
    assert!(text.contains("in the same pods"), "{text}");
    took
}

/// Times depend on what else the machine does. They are printed, in turns with those of kubectl.
#[tokio::test]
#[ignore = "soak: it prints times; proved in make test by run_command_trains_a_folder_and_reuses_pods_for_new_code"]
async fn run_command_is_timed_in_turns_with_kubectl() {
    let Some(world) = world() else { return };
    let space = world.space("front-time", json!({})).await;
    let (place, code) = place("front-time");
    // A first job warms the node up.
    let (exit, text) = space.plugin_code(&line(&code, "warm", &[])).await;
    assert_eq!(exit, Some(0), "{text}");
    let (mut plain, mut ours) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let name = format!("plain{round}");
        let (exit, yaml) = space.plugin_code(&line(&code, &name, &["--dry-run", "-o", "yaml"])).await;
        assert_eq!(exit, Some(0), "{yaml}");
        plain.push(apply(world, &space, &name, &yaml));
        let begun = Instant::now();
        let (exit, text) = space.plugin_code(&line(&code, &format!("ours{round}"), &[])).await;
        ours.push(begun.elapsed());
        assert_eq!(exit, Some(0), "{text}");
    }
    let (exit, text) =
        space.plugin_code(&line(&code, "dev", &["--detach", "--env", "STEPS=100000", "--env", "PAUSE=0.05"])).await;
    assert_eq!(exit, Some(0), "{text}");
    space.watch("dev").await.reaches(State::Running).await;
    let mut renewed = Vec::new();
    for version in 2..2 + u32::try_from(ROUNDS).unwrap() {
        renewed.push(renew(&space, "dev", &place, version).await);
    }
    for times in [&mut plain, &mut ours, &mut renewed] {
        times.sort();
    }
    println!("kubectl apply to Succeeded: {plain:.1?}; kubectl trainingjob run to its exit: {ours:.1?}");
    println!("a changed file among {FILES} to the first line of the new code in both workers: {renewed:.1?}");
    let (exit, text) = space.plugin_code(&["stop", "dev", "--wait"]).await;
    assert_eq!(exit, Some(0), "{text}");
    fs::remove_dir_all(&place).unwrap();
    space.end().await;
}
