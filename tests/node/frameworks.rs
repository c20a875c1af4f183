//! The frameworks themselves, by the examples of `examples/frameworks`. Each trains to its end, continues when a pod is
//! killed, and fails with its own cause.
//!
//! `devcluster/cluster images small-frameworks` and `large-frameworks` make their images and print the paths for
//! `TRAININGJOB_TEST_SMALL_FRAMEWORKS_IMAGE` and `TRAININGJOB_TEST_LARGE_FRAMEWORKS_IMAGE`.

use super::checkpoints::checkpoint;
use super::world::{Job, SOON, Space, merged, world};
use super::{folder, wait::eventually, worker};
use api::State::{Completed, Failed, Running};
use api::TrainingJobStatus;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use std::fs;
use testkit::{root, skipped};

/// One way to train with a framework.
struct Mode {
    /// Its folder in `examples/frameworks`.
    example: &'static str,
    image: &'static str,
    /// Fields that differ from the example.
    fields: Value,
    /// Role and index of the pod that is killed.
    killed: (&'static str, u32),
    /// Role and index of the program that raises.
    raises: (&'static str, u32),
    /// What the leading worker prints at the end.
    ends_with: &'static str,
}

#[tokio::test]
#[ignore = "soak: XGBoost itself; proved in make test by agents::pods and node::roles, what their programs print by lib agent::progress"]
async fn xgboost() {
    // The worker with the tracker is killed.
    try_all("xgboost", &xgboost_of("small")).await;
}

#[tokio::test]
#[ignore = "soak: the newest XGBoost itself; proved in make test by agents::pods and node::roles, what their programs print by lib agent::progress"]
async fn newest_xgboost() {
    try_all("newest-xgboost", &xgboost_of("large")).await;
}

fn xgboost_of(image: &'static str) -> Mode {
    Mode {
        example: "xgboost",
        image,
        fields: json!({}),
        killed: ("worker", 0),
        raises: ("worker", 1),
        ends_with: "worker 0: a model of 60 rounds",
    }
}

/// By themselves, all others would wait for ever when the gang has lost a worker.
#[tokio::test]
#[ignore = "soak: MXNet itself; proved in make test by agents::pods and node::roles, what their programs print by lib agent::progress"]
async fn mxnet_with_servers() {
    let mode = Mode {
        example: "mxnet",
        image: "small",
        fields: json!({}),
        killed: ("worker", 1),
        raises: ("worker", 1),
        ends_with: "Epoch[5] Train-",
    };
    try_all("mxnet", &mode).await;
}

/// `MultiWorkerMirroredStrategy`.
#[tokio::test]
#[ignore = "soak: TensorFlow itself; proved in make test by agents::pods and node::roles, what their programs print by lib agent::progress"]
async fn tensorflow_with_equal_workers() {
    let mode = tensorflow_of("tensorflow", json!({}), ("worker", 1), ("worker", 1));
    try_all("tensorflow", &mode).await;
}

#[tokio::test]
#[ignore = "soak: TensorFlow with a chief and an evaluator itself; proved in make test by agents::pods and node::roles, what their programs print by lib agent::progress"]
async fn tensorflow_with_a_chief_and_an_evaluator() {
    let roles = json!({ "numWorkers": 1, "roles": [{ "name": "chief" }, { "name": "evaluator" }] });
    let mode = tensorflow_of("tensorflow", roles, ("worker", 0), ("evaluator", 0));
    try_all("tensorflow-evaluator", &mode).await;
}

#[tokio::test]
#[ignore = "soak: TensorFlow with parameter servers itself; proved in make test by agents::pods and node::roles, what their programs print by lib agent::progress"]
async fn tensorflow_with_parameter_servers() {
    let mode = tensorflow_of("tensorflow-ps", json!({}), ("ps", 0), ("chief", 0));
    try_all("tensorflow-ps", &mode).await;
}

fn tensorflow_of(
    example: &'static str,
    fields: Value,
    killed: (&'static str, u32),
    raises: (&'static str, u32),
) -> Mode {
    Mode { example, image: "large", fields, killed, raises, ends_with: "Epoch 12/12" }
}

#[tokio::test]
#[ignore = "soak: Paddle itself; proved in make test by agents::pods and node::roles, what their programs print by lib agent::progress"]
async fn paddle_with_its_launcher() {
    let mode = Mode {
        example: "paddle",
        image: "large",
        fields: json!({}),
        killed: ("worker", 1),
        raises: ("worker", 1),
        ends_with: "epoch: 8/8, step: 300/300",
    };
    try_all("paddle", &mode).await;
}

async fn try_all(name: &str, mode: &Mode) {
    let Some(world) = world() else { return };
    let variable = format!("TRAININGJOB_TEST_{}_FRAMEWORKS_IMAGE", mode.image.to_uppercase());
    let Ok(archive) = std::env::var(&variable) else {
        return skipped(&format!("{name}: {variable} is not set, `make soak` sets it"));
    };
    world.cluster.devcluster(&["import", &archive]);
    let space = world.space(&format!("framework-{name}"), json!({})).await;
    mode.completes(&space, "whole").await;
    mode.outlives_a_pod(&space, "killed").await;
    mode.names_its_cause(&space, "raises").await;
    space.end().await;
}

impl Mode {
    async fn completes(&self, space: &Space, name: &str) {
        let job = self.submit(space, name, &[], json!({})).await;
        let status = job.state(Completed).await;
        assert_eq!(status.restarts, [], "{name}");
        let log = self.leaders_log(&job);
        assert!(log.contains(self.ends_with), "{name}: {:?} is not in\n{log}", self.ends_with);
        let step = status.current_epoch.or(status.current_step);
        assert!(
            step.is_some_and(|step| step > 0) && status.metrics.is_some(),
            "{name}: its progress is seen: {status:?}"
        );
        println!("{} {name}: {}", self.example, outcome(&status));
        job.delete().await;
        space.no_pod_is_left().await;
    }

    /// A pod is deleted and its processes get SIGKILL at once, when there is a checkpoint to resume from.
    async fn outlives_a_pod(&self, space: &Space, name: &str) {
        let job = self.submit(space, name, &[], json!({})).await;
        job.state(Running).await;
        let claim = format!("{name}-checkpoints");
        let saved = eventually("a checkpoint", SOON, async || {
            let files = folder(space, &claim).await;
            files
                .filter(|(_, path)| path.join(".complete").exists() || path.extension().is_some_and(|e| e == "index"))
                .filter_map(|(name, _)| step(&name))
                .max()
        })
        .await;
        let pod = self.pod(&job, self.killed).name_any();
        space.api::<Pod>().delete(&pod, &DeleteParams::default().grace_period(0)).await.unwrap();
        let status = job.state(Completed).await;
        let restarts: Vec<_> = status.restarts.iter().map(|restart| (restart.role.as_str(), restart.worker)).collect();
        assert_eq!(restarts, [(self.killed.0, Some(self.killed.1))], "{name}: {:?}", status.restarts);
        // A later checkpoint may have been written before the pod was gone.
        let resumed = checkpoint(&status).resumed_from.as_deref().and_then(step);
        assert!(resumed >= Some(saved), "{name}: step {saved} was saved, and {:?}", status.checkpoint);
        let log = self.leaders_log(&job);
        assert!(log.contains(self.ends_with), "{name}: {:?} is not in\n{log}", self.ends_with);
        println!("{} {name}: {}: {}", self.example, outcome(&status), status.restarts[0]);
        job.delete().await;
        space.no_pod_is_left().await;
    }

    async fn names_its_cause(&self, space: &Space, name: &str) {
        let (role, index) = self.raises;
        let env = json!([{ "name": "RAISES", "value": format!("{role} {index}") }]);
        let fields = json!({ "env": env, "failurePolicy": { "backoffLimit": 0 } });
        let job = self.submit(space, name, &["/programs/fails_within.py"], fields).await;
        let status = job.state(Failed).await;
        let message = status.failure_message.clone().unwrap_or_default();
        assert!(message.contains("ValueError: label 11 is not one of the 10 classes"), "{name}: {message}");
        assert!(message.contains(&format!("{role} {index} (pod ")), "{name}: {message}");
        println!("{} {name}: {}: {message}", self.example, outcome(&status));
        job.delete().await;
        space.no_pod_is_left().await;
    }

    /// The example as it is, with `before` in front of its program, in an image that has the framework.
    async fn submit(&self, space: &Space, name: &str, before: &[&str], fields: Value) -> Job {
        let folder = format!("examples/frameworks/{}", self.example);
        let mut job: Value =
            serde_saphyr::from_str(&fs::read_to_string(root(&format!("{folder}/job.yaml"))).unwrap()).unwrap();
        let program = fs::read_to_string(root(&format!("{folder}/train.py"))).unwrap();
        let programs = job["metadata"]["name"].as_str().unwrap().to_owned();
        if space.api::<ConfigMap>().get_opt(&programs).await.unwrap().is_none() {
            let map = json!({ "metadata": { "name": programs }, "data": { "train.py": program } });
            space.create::<ConfigMap>(map).await;
        }
        let (_, command) = job["spec"]["command"][2].as_str().unwrap().split_once("&& exec ").unwrap();
        let mut command: Vec<String> = command.split(' ').map(str::to_owned).collect();
        let own = command.pop().unwrap();
        command.extend(before.iter().map(|&word| word.to_owned()));
        command.push(own);
        let spec = merged(job["spec"].take(), &self.fields);
        let mut spec = merged(spec, &fields);
        spec["image"] = json!(format!("localhost/trainingjob-frameworks:{}", self.image));
        spec["command"] = json!(command);
        let volume = json!({ "name": "programs", "configMap": { "name": "programs" } });
        spec["volumes"].as_array_mut().unwrap().push(volume);
        spec["volumeMounts"].as_array_mut().unwrap().push(json!({ "name": "programs", "mountPath": "/programs" }));
        space.apply(json!({ "metadata": { "name": name }, "spec": spec })).await
    }

    /// The newest pod of a place.
    #[expect(clippy::unused_self, reason = "called as others are")]
    fn pod(&self, job: &Job, (role, index): (&str, u32)) -> Pod {
        let is = |pod: &&Pod| pod.labels().get("component").is_some_and(|own| own == role) && worker(pod) == index;
        let pods = job.pods();
        let newest = pods.iter().filter(is).max_by_key(|pod| pod.creation_timestamp().map(|time| time.0));
        newest.unwrap_or_else(|| job.explain(&format!("it has no {role} {index}"))).clone()
    }

    fn leaders_log(&self, job: &Job) -> String {
        let has_chief = job.pods().iter().any(|pod| pod.labels().get("component").is_some_and(|own| own == "chief"));
        let leader = self.pod(job, (if has_chief { "chief" } else { "worker" }, 0));
        String::from_utf8_lossy(&job.space.logs(&leader.name_any())).into_owned()
    }
}

/// The step in a checkpoint's name: its last number.
fn step(name: &str) -> Option<u64> {
    name.split(|c: char| !c.is_ascii_digit()).rfind(|digits| !digits.is_empty())?.parse().ok()
}

/// The outcome of a trial, for docs/jobs.md.
fn outcome(status: &TrainingJobStatus) -> String {
    format!(
        "attempt {:?}, duration {:?}, epoch {:?} step {:?}, resumed from {:?}",
        status.attempt,
        status.duration,
        status.current_epoch,
        status.current_step,
        status.checkpoint.as_ref().and_then(|checkpoint| checkpoint.resumed_from.clone())
    )
}
