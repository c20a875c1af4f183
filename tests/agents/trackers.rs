//! Experiment trackers for real. The agent's binary runs programs in exactly the environment that a pod of such a spec
//! has. They record to a real MLflow server, to a real TensorBoard, and to Weights & Biases without its server. A
//! missing tracker harms no program.
//!
//! The packages come from PyPI once and are kept in the cache.

use api::TrainingJob;
use plan::{self, OperatorInfo, Plan};
use protocol::gang::GangPast;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;

use std::process::{Command, Output, Stdio};

use std::time::Duration;
use testkit::free_port;
use testkit::mlflow::{Group, MlflowServer, http, python};
use testkit::pod::as_the_kubelet_does;
use testkit::room::Room;
use testkit::wait::until;

/// The longest wait for anything. Servers written in Python start slowly on a busy machine.
const DEADLINE: Duration = Duration::from_secs(300);
/// The longest that a call may wait for an MLflow server that refuses. It retries twice, after a second or two each.
const FEW_SECONDS: f64 = 5.0;

// ---- MLflow

const TRAINS: &str = r#"
import mlflow
with mlflow.start_run():
    mlflow.log_param("lr", 0.1)
    for step in range(3):
        mlflow.log_metric("loss", 1 / (step + 1), step=step)
"#;

/// Writes the seconds that the program slept between requests of MLflow's client, which is all that it has to wait.
/// (How long it computes depends on the machine.)
const SLEEPS: &str = r#"
import atexit, threading, time
slept, real = [], time.sleep
def sleep(seconds):
    if threading.current_thread() is threading.main_thread():
        slept.append(seconds)
    real(seconds)
time.sleep = sleep
atexit.register(lambda: open("slept", "w").write(str(sum(slept))))
"#;

/// Continues when the server has died between two steps.
const OUTLIVES: &str = r#"
import mlflow, os, time
with mlflow.start_run():
    mlflow.log_metric("loss", 1, step=0)
    open("open", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.05)
    for step in range(1, 100):
        mlflow.log_metric("loss", 1 / step, step=step)
    mlflow.set_tag("done", "yes")
"#;

#[test]
fn mlflow_run_matches_the_attempt_and_survives_server_loss() {
    let room = Room::new("mlflow");
    let server = MlflowServer::start(&room);
    let spec = json!({ "monitoring": { "mlflowTrackingUri": server.uri(), "mlflowExperiment": "digits" } });
    let ended = room.train(&spec, 2, &[], TRAINS);
    assert!(ended.status.success(), "{}", text(&ended));

    let experiment = server.get("/api/2.0/mlflow/experiments/get-by-name?experiment_name=digits");
    let search = json!({ "experiment_ids": [experiment["experiment"]["experiment_id"]] });
    let found = server.post("/api/2.0/mlflow/runs/search", &search);
    let runs = found["runs"].as_array().unwrap_or_else(|| panic!("no runs: {found}"));
    assert_eq!(runs.len(), 1, "{found}");
    assert_eq!((&runs[0]["info"]["run_name"], &runs[0]["info"]["status"]), (&json!("x-attempt-2"), &json!("FINISHED")));
    let of = |list: &str| -> BTreeMap<String, Value> {
        let items = runs[0]["data"][list].as_array().cloned().unwrap_or_default();
        items
            .into_iter()
            .map(|item| (item["key"].as_str().unwrap_or_default().to_owned(), item["value"].clone()))
            .collect()
    };
    let tags = of("tags");
    for (tag, value) in [("training_job", "x"), ("namespace", "ml-training"), ("attempt", "2")] {
        assert_eq!(tags.get(tag), Some(&json!(value)), "{tags:?}");
    }
    assert_eq!(of("params")["lr"], "0.1");
    assert_eq!(of("metrics")["loss"], 1.0 / 3.0);

    // The runs of a search's trials stand below its own.
    for trial in 1..=2 {
        let plan = plan_of_trial(&spec, Some("search"));
        let ended = room.train_by(&plan, trial, &[], TRAINS);
        assert!(ended.status.success(), "{}", text(&ended));
    }
    let found = server.post("/api/2.0/mlflow/runs/search", &search);
    let tag = |run: &Value, name: &str| -> Option<String> {
        let tags = run["data"]["tags"].as_array()?;
        Some(tags.iter().find(|tag| tag["key"] == name)?["value"].as_str()?.to_owned())
    };
    let runs = found["runs"].as_array().unwrap();
    let parents: Vec<_> = runs.iter().filter(|run| tag(run, "tuning_job_run").is_some()).collect();
    assert_eq!((runs.len(), parents.len()), (4, 1), "{found}");
    assert_eq!(parents[0]["info"]["run_name"], "search");
    let id = parents[0]["info"]["run_id"].as_str().unwrap();
    let nested = runs.iter().filter(|run| tag(run, "mlflow.parentRunId").as_deref() == Some(id));
    assert_eq!(nested.count(), 2, "{found}");

    // The program still gets the error when the server refuses a request.
    let ended = room.train(&spec, 3, &[], "import mlflow\nmlflow.MlflowClient().get_run('0' * 32)\n");
    assert!(!ended.status.success() && text(&ended).contains("not found"), "{}", text(&ended));

    let ended = std::thread::scope(|scope| {
        let program = scope.spawn(|| room.train(&spec, 4, &[], OUTLIVES));
        until("the run to be open", DEADLINE, || room.path("open").exists().then_some(()));
        drop(server);
        fs::write(room.path("go"), "").unwrap();
        program.join().unwrap()
    });
    assert!(ended.status.success(), "{}", text(&ended));
    assert!(text(&ended).contains("nothing is recorded"), "{}", text(&ended));
}

/// Nothing listens there from the beginning.
#[test]
fn program_survives_without_an_mlflow_server() {
    let room = Room::new("no-mlflow");
    let spec = json!({ "monitoring": { "mlflowTrackingUri": format!("http://127.0.0.1:{}", free_port()) } });
    let ended = room.train(&spec, 1, &[], &format!("{SLEEPS}{TRAINS}"));
    assert!(ended.status.success(), "{}", text(&ended));
    // Each request may make the program wait, and each pause after it is twice as long.
    let said = text(&ended);
    let pauses = said.split("nothing is recorded for ").skip(1).filter_map(|rest| rest.split(' ').next()?.parse().ok());
    let pauses: Vec<u32> = pauses.collect();
    assert!(!pauses.is_empty(), "{said}");
    assert!(pauses.iter().eq([10, 20, 40, 80, 160, 320].iter().take(pauses.len())), "{pauses:?}: {said}");
    let slept: f64 = fs::read_to_string(room.path("slept")).unwrap().parse().unwrap();
    assert!(slept > 0.0 && slept <= FEW_SECONDS * pauses.len() as f64, "{slept} s for {} questions", pauses.len());
}

// ---- Weights & Biases

#[test]
fn wandb_run_matches_the_attempt_even_without_a_server() {
    let room = Room::new("wandb");
    let spec = json!({
        "monitoring": { "wandbProject": "digits", "trackerSecret": "keys" },
        "env": [{ "name": "WANDB_BASE_URL", "value": format!("http://127.0.0.1:{}", free_port()) }],
    });
    let program = r#"
import json, os, wandb
run = wandb.init()
run.log({"loss": 0.5})
with open("seen", "w") as file:
    json.dump([run.project, run.name, run.group, sorted(run.tags), os.environ["WANDB_API_KEY"]], file)
run.finish()
"#;
    let key = "0123456789".repeat(4);
    let ended = room.train(&spec, 3, &[("WANDB_API_KEY", &key)], program);
    assert!(ended.status.success(), "{}", text(&ended));
    assert!(text(&ended).contains("can't be reached"), "{}", text(&ended));
    let seen: Value = serde_json::from_slice(&fs::read(room.path("seen")).unwrap()).unwrap();
    assert_eq!(seen, json!(["digits", "x-attempt-3", "x", ["attempt-3", "ml-training", "x"], key]));
}

// ---- TensorBoard

#[test]
fn tensorboard_shows_the_programs_scalars() {
    let room = Room::new("tensorboard");
    let spec = json!({ "monitoring": { "tensorboardEnabled": true }, "checkpoint": { "storage": { "type": "pvc" } } });
    let program = r#"
import os
from tensorboardX import SummaryWriter
with SummaryWriter(os.environ["TENSORBOARD_LOG_DIR"]) as writer:
    for step in range(3):
        writer.add_scalar("loss", 1 / (step + 1), step)
"#;
    let ended = room.train(&spec, 1, &[], program);
    assert!(ended.status.success(), "{}", text(&ended));

    let deployment = objects::board(&plan(&spec)).unwrap().deployment;
    let container = deployment.spec.unwrap().template.spec.unwrap().containers.remove(0);
    assert_eq!(container.command.unwrap(), ["tensorboard"]);
    let (port, volume) = (free_port(), room.path("checkpoints"));
    // The volume is mounted at /logs, and the port may be taken here.
    let volume = format!("{}/", volume.display());
    let args = container.args.unwrap();
    let args = args.iter().map(|arg| arg.replace("/logs/", &volume).replace("6006", &port.to_string()));
    let tensorboard = Command::new(python().join("bin/tensorboard"))
        .args(args)
        .env("HOME", &room.0)
        .stdout(Stdio::null())
        .stderr(fs::File::create(room.path("tensorboard.log")).unwrap())
        .process_group(0)
        .spawn();
    let _tensorboard = Group(tensorboard.unwrap());
    let points = until("the scalar at TensorBoard", DEADLINE, || {
        let answer = http(port, "GET", "/data/plugin/scalars/scalars?run=.&tag=loss", None)?;
        answer.as_array().filter(|points| points.len() == 3).cloned()
    });
    let values: Vec<(i64, f64)> =
        points.iter().map(|point| (point[1].as_i64().unwrap(), point[2].as_f64().unwrap())).collect();
    assert_eq!(values[0], (0, 1.0));
    assert_eq!(values[1], (1, 0.5));
}

// ---- a worker's pod, without Kubernetes

fn plan(fields: &Value) -> Plan {
    plan_of_trial(fields, None)
}

/// The plan, for a trial of this search if there is one.
fn plan_of_trial(fields: &Value, search: Option<&str>) -> Plan {
    let mut spec = json!({ "model": "m", "dataset": "d", "numWorkers": 1, "gpusPerWorker": 0, "command": ["python3", "train.py"] });
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let mut job = TrainingJob::new("x", serde_json::from_value(spec).unwrap());
    job.metadata.namespace = Some("ml-training".into());
    job.metadata.uid = Some("00000000-0000-4000-8000-000000000001".into());
    let owner = search.map(|name| {
        let owner = json!({
            "apiVersion": "ml.example.com/v1", "kind": "TuningJob", "name": name, "uid": "u-1", "controller": true,
        });
        vec![serde_json::from_value(owner).unwrap()]
    });
    job.metadata.owner_references = owner;
    // Other tests may run at the same time.
    job.spec.monitoring.metrics_port = Some(free_port());
    let runtime = OperatorInfo { agent_image: "agent:1".into(), ..OperatorInfo::default() };
    plan::resolve(&job, &runtime).accepted().cloned().unwrap_or_else(|refusals| panic!("{refusals}"))
}

/// The value of a field of the pod.
fn field(path: &str) -> String {
    let value = match path {
        "metadata.name" => "x-training-0-abcde",
        "metadata.uid" => "00000000-0000-4000-8000-000000000002",
        "metadata.namespace" => "ml-training",
        "spec.nodeName" => "node-1",
        "metadata.annotations['batch.kubernetes.io/job-completion-index']" => "0",
        other => panic!("{other}"),
    };
    value.to_owned()
}

trait Trains {
    /// Runs a program as worker 0 of a job with this spec, in this attempt.
    fn train(&self, spec: &Value, attempt: u32, secret: &[(&str, &str)], program: &str) -> Output {
        self.train_by(&plan(spec), attempt, secret, program)
    }

    fn train_by(&self, plan: &Plan, attempt: u32, secret: &[(&str, &str)], program: &str) -> Output;
}

impl Trains for Room {
    fn train_by(&self, plan: &Plan, attempt: u32, secret: &[(&str, &str)], program: &str) -> Output {
        fs::write(self.path("train.py"), program).unwrap();
        let incarnation = plan::Incarnation { number: attempt, attempt };
        let pod = objects::objects(plan, incarnation, &GangPast::default())
            .jobs
            .remove(0)
            .spec
            .unwrap()
            .template
            .spec
            .unwrap();
        let (mut env, mut args) = as_the_kubelet_does(&pod.containers[0], &field, secret);
        // It runs alone, without the gang and the Secrets that its pod would have.
        args.retain(|arg| !arg.starts_with("--gang") && !arg.starts_with("--answer-key"));
        args.insert(1, format!("--termination-log={}", self.path("message").display()));
        // Where the volume for checkpoints is mounted.
        let mounted = self.path("checkpoints").display().to_string();
        let of_agent = args.iter_mut().filter(|arg| arg.starts_with("--env="));
        env.values_mut().chain(of_agent).for_each(|value| *value = value.replace("/checkpoints", &mounted));
        let path = format!("{}/bin:{}", python().display(), std::env::var("PATH").unwrap());
        Command::new(self.installed())
            .args(args)
            .env_clear()
            .env("PATH", path)
            .env("HOME", &self.0)
            .envs(env)
            .current_dir(&self.0)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }
}

/// The exit status and the output of a program.
fn text(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{}\n{out}\n{err}", output.status)
}
