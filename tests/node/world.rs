//! A cluster with a real node and the operator installed in it, and jobs that are watched from their first moment on.

use futures::{AsyncBufReadExt, StreamExt, TryStreamExt};
use harness::cluster::Cluster;
use harness::root;
use harness::wait::eventually;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, ListParams, LogParams, Patch, PatchParams, PostParams,
    ValidationDirective,
};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io::Write;
use std::sync::OnceLock;
use std::time::Duration;
use tokio::sync::watch;
use trainingjob_operator::api::{Condition, State, TrainingJob, TrainingJobStatus};

pub const DEMO_IMAGE: &str = "localhost/trainingjob-demo:cpu";
/// For everything that should be there within seconds. Far more than it takes: other tests keep the machine busy.
pub const SOON: Duration = Duration::from_secs(300);

pub struct World {
    pub cluster: Cluster,
}

/// The one cluster of this program; none, and a line that says so, where its parts have not been built.
pub fn world() -> Option<&'static World> {
    static WORLD: OnceLock<Option<World>> = OnceLock::new();
    let world = WORLD.get_or_init(|| {
        let parts = ["TRAININGJOB_TEST_TOOLS", "TRAININGJOB_TEST_IMAGE", "TRAININGJOB_TEST_DEMO_IMAGE"];
        if let Some(missing) = parts.iter().find(|name| std::env::var_os(name).is_none()) {
            let why = format!("{missing} is not set: `make test` builds what tests on a real node need, and runs them");
            assert!(!std::env::var("CI").is_ok_and(|ci| ci == "true"), "{why}");
            // Past the test harness, which keeps what is printed from whoever only sees that a test has passed.
            let _ = writeln!(std::io::stderr(), "tests on a real node are SKIPPED. {why}");
            return None;
        }
        Some(World::up("node", &["--kcm-arg=--node-monitor-grace-period=20s"]))
    });
    world.as_ref()
}

impl World {
    /// A cluster of that name with a real node, the images and the operator.
    pub fn up(name: &str, flags: &[&str]) -> Self {
        let [operator, demo] = ["TRAININGJOB_TEST_IMAGE", "TRAININGJOB_TEST_DEMO_IMAGE"]
            .map(|name| std::env::var(name).expect("`world` has looked"));
        let flags: Vec<_> = ["--image", &demo, "--image", &operator].iter().chain(flags).copied().collect();
        let world = Self { cluster: Cluster::up(name, &flags) };
        if world.cluster.name().is_some() {
            world.cluster.kubectl(&["create", "namespace", "ml-training"]);
            world.cluster.kubectl(&["apply", "-k", &root("deploy/dev")]);
            let rollout =
                ["rollout", "status", "deployment/trainingjob-operator", "-n", "ml-training", "--timeout=180s"];
            world.cluster.kubectl(&rollout);
        }
        world
    }

    /// A namespace of a test's own, with these labels and the programs of the tests as ConfigMap `programs`.
    pub async fn space(&'static self, test: &str, labels: Value) -> Space {
        let client = self.cluster.client().await;
        let name = format!("{test}-{}", std::process::id());
        let namespace = json!({ "metadata": { "name": name, "labels": labels } });
        Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &parsed(namespace)).await.unwrap();
        let folders = ["tests/node/programs", "tests/checkpoints/jobs", "tests/programs"]
            .map(|folder| std::fs::read_dir(root(folder)).unwrap());
        let programs: BTreeMap<String, String> = folders
            .into_iter()
            .flatten()
            .map(|file| file.unwrap().path())
            .map(|path| {
                (path.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read_to_string(&path).unwrap())
            })
            .collect();
        let space = Space { world: self, client, name };
        space.create::<ConfigMap>(json!({ "metadata": { "name": "programs" }, "data": programs })).await;
        // The controller manager makes it; until then no pod is admitted.
        let accounts = space.api::<k8s_openapi::api::core::v1::ServiceAccount>();
        eventually("the default service account", SOON, async || accounts.get_opt("default").await.unwrap()).await;
        space
    }
}

/// A namespace.
#[derive(Clone)]
pub struct Space {
    pub world: &'static World,
    pub client: Client,
    pub name: String,
}

impl Space {
    pub fn api<K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.name)
    }

    pub async fn create<K>(&self, object: Value)
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + serde::de::DeserializeOwned
            + serde::Serialize
            + Clone
            + Debug,
    {
        self.api::<K>().create(&PostParams::default(), &parsed(object)).await.unwrap();
    }

    /// A job of two small workers that run `fields.command` in the demo's image, unless `fields` say otherwise.
    pub async fn submit(&self, name: &str, fields: Value) -> Job {
        let spec = json!({
            "model": "none", "dataset": "none", "numWorkers": 2, "gpusPerWorker": 0, "image": DEMO_IMAGE,
            "networking": { "backend": "gloo" }, "checkpoint": { "enabled": false },
            "volumes": [{ "name": "programs", "configMap": { "name": "programs" } }],
            "volumeMounts": [{ "name": "programs", "mountPath": "/programs" }],
        });
        self.apply(json!({ "metadata": { "name": name }, "spec": merged(spec, &fields) })).await
    }

    /// Creates a TrainingJob as it stands, and watches it.
    pub async fn apply(&self, mut job: Value) -> Job {
        job["apiVersion"] = json!("ml.example.com/v1");
        job["kind"] = json!("TrainingJob");
        job["metadata"]["namespace"] = json!(self.name);
        let name = job["metadata"]["name"].as_str().unwrap().to_owned();
        let watched = Job::watch(self, &name);
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &self.name, &ApiResource::erase::<TrainingJob>(&()));
        let params = PatchParams { field_validation: Some(ValidationDirective::Strict), ..PatchParams::apply("tests") };
        api.patch(&name, &params, &Patch::Apply(job)).await.unwrap();
        watched
    }

    pub async fn pods(&self) -> Vec<Pod> {
        self.api::<Pod>().list(&ListParams::default()).await.unwrap().items
    }

    pub async fn no_pod_is_left(&self) {
        eventually("all pods to be gone", SOON, async || self.pods().await.is_empty().then_some(())).await;
    }

    /// What a pod's program has printed, as `kubectl logs` shows it.
    pub fn logs(&self, pod: &str) -> Vec<u8> {
        self.world.cluster.try_kubectl(&["logs", pod, "-n", &self.name, "-c", "training"], "").unwrap()
    }

    /// Removes the namespace with all that is in it, to leave the machine to the other tests. After a failed test it stays.
    pub async fn end(self) {
        Api::<Namespace>::all(self.client.clone()).delete(&self.name, &DeleteParams::default()).await.unwrap();
    }
}

/// A TrainingJob, everything that its status ever said, and the last that was seen of each of its pods.
pub struct Job {
    pub space: Space,
    pub name: String,
    statuses: watch::Receiver<Vec<TrainingJobStatus>>,
    pods: watch::Receiver<BTreeMap<String, Pod>>,
    /// How long what should come may take.
    pub patient: Duration,
}

impl Job {
    fn watch(space: &Space, name: &str) -> Self {
        let (told, statuses) = watch::channel(Vec::new());
        let jobs =
            watcher(space.api::<TrainingJob>(), watcher::Config::default().fields(&format!("metadata.name={name}")));
        // Whatever breaks a watch, it begins again.
        tokio::spawn(jobs.default_backoff().applied_objects().for_each(move |job| {
            if let Some(status) = job.ok().and_then(|job| job.status) {
                told.send_if_modified(|statuses: &mut Vec<_>| {
                    let new = statuses.last() != Some(&status);
                    statuses.extend(new.then_some(status));
                    new
                });
            }
            futures::future::ready(())
        }));
        let (seen, pods) = watch::channel(BTreeMap::new());
        let workers = watcher(space.api::<Pod>(), watcher::Config::default().labels(&format!("training-job={name}")));
        tokio::spawn(workers.default_backoff().touched_objects().for_each(move |pod| {
            if let Ok(pod) = pod {
                seen.send_modify(|pods: &mut BTreeMap<_, _>| drop(pods.insert(pod.uid().unwrap(), pod)));
            }
            futures::future::ready(())
        }));
        Self { space: space.clone(), name: name.to_owned(), statuses, pods, patient: SOON }
    }

    /// Waits until the status is as wanted.
    pub async fn until(&mut self, what: &str, wanted: impl Fn(&TrainingJobStatus) -> bool) -> TrainingJobStatus {
        let mut statuses = self.statuses.clone();
        let found = statuses.wait_for(|all| all.last().is_some_and(&wanted));
        match tokio::time::timeout(self.patient, found).await {
            Ok(all) => all.expect("the watch goes on").last().unwrap().clone(),
            Err(_) => self.explain(&format!("waited {:?} for {what}", self.patient)),
        }
    }

    /// Waits for a state; Failed or Completed instead ends the test at once.
    pub async fn state(&mut self, state: State) -> TrainingJobStatus {
        let status = self
            .until(state.as_str(), |status| status.state.is_some_and(|now| now == state || now.is_finished()))
            .await;
        if status.state != Some(state) {
            self.explain(&format!("it is not {} but {:?}", state.as_str(), status.state));
        }
        status
    }

    /// Waits for a condition with this status and reason.
    pub async fn condition(&mut self, type_: &str, value: &str, reason: &str) -> (Condition, TrainingJobStatus) {
        let is = |c: &&Condition| c.type_ == type_ && c.status == value && c.reason == reason;
        let status = self
            .until(&format!("condition {type_}={value} {reason}"), |status| status.conditions.iter().any(|c| is(&c)))
            .await;
        (status.conditions.iter().find(is).unwrap().clone(), status)
    }

    /// Whether it is Completed or Failed.
    pub fn has_ended(&self) -> bool {
        self.statuses.borrow().last().and_then(|status| status.state).is_some_and(State::is_finished)
    }

    /// The states that it went through.
    pub fn states(&self) -> Vec<State> {
        let mut states: Vec<_> = self.statuses.borrow().iter().filter_map(|status| status.state).collect();
        states.dedup();
        states
    }

    /// The status that was the first with this state.
    pub fn first(&self, state: State) -> TrainingJobStatus {
        self.statuses.borrow().iter().find(|status| status.state == Some(state)).unwrap().clone()
    }

    /// Every pod that it ever had, as it was last seen, by attempt and worker.
    pub fn pods(&self) -> Vec<Pod> {
        let mut pods: Vec<Pod> = self.pods.borrow().values().cloned().collect();
        pods.sort_by_key(|pod| (attempt(pod), worker(pod)));
        pods
    }

    /// Waits until the pod of a worker is as wanted.
    pub async fn pod(&mut self, attempt: i32, worker: i32, what: &str, wanted: impl Fn(&Pod) -> bool) -> Pod {
        let is = |pod: &&Pod| self::attempt(pod) == attempt && self::worker(pod) == worker && wanted(pod);
        let mut pods = self.pods.clone();
        let found = pods.wait_for(|all| all.values().any(|pod| is(&pod)));
        match tokio::time::timeout(SOON, found).await {
            Ok(all) => all.expect("the watch goes on").values().find(is).unwrap().clone(),
            Err(_) => self.explain(&format!("waited {SOON:?} for worker {worker} of attempt {attempt}: {what}")),
        }
    }

    /// Waits until the program of a worker has printed this.
    pub async fn says(&mut self, attempt: i32, worker: i32, words: &str) {
        let started = |pod: &Pod| training(pod).is_some_and(|c| c.state.is_some_and(|s| s.waiting.is_none()));
        let pod = self.pod(attempt, worker, "to have started", started).await.name_any();
        let params = LogParams { container: Some("training".into()), follow: true, ..LogParams::default() };
        let mut lines = self.space.api::<Pod>().log_stream(&pod, &params).await.unwrap().lines();
        let mut log = String::new();
        let said = async {
            while let Some(line) = lines.try_next().await.unwrap() {
                log += &format!("{line}\n");
                if line.contains(words) {
                    return true;
                }
            }
            false
        };
        if tokio::time::timeout(SOON, said).await != Ok(true) {
            self.explain(&format!("{pod} never says {words:?}:\n{log}"));
        }
    }

    pub async fn patch(&self, spec: Value) {
        let patch = Patch::Merge(json!({ "spec": spec }));
        self.space.api::<TrainingJob>().patch(&self.name, &PatchParams::default(), &patch).await.unwrap();
    }

    pub async fn delete(&self) {
        self.space.api::<TrainingJob>().delete(&self.name, &DeleteParams::default()).await.unwrap();
    }

    /// Ends the test with everything that a person would look at.
    pub fn explain(&self, what: &str) -> ! {
        let world = self.space.world;
        let mut text = format!("{}: {what}\nstates: {:?}\n", self.name, self.states());
        let ns = self.space.name.as_str();
        let logs = format!("training-job={}", self.name);
        for args in [
            &["get", "tj", &self.name, "-n", ns, "-o", "yaml"][..],
            &["get", "pods", "-n", ns, "-o", "wide"],
            &["get", "events", "-n", ns, "--sort-by=.metadata.creationTimestamp"],
            &["logs", "-n", ns, "-l", &logs, "--all-containers", "--prefix", "--tail=30"],
            &["logs", "-n", "ml-training", "deployment/trainingjob-operator", "--all-pods", "--tail=50"],
        ] {
            let output = world.cluster.try_kubectl(args, "");
            let output = output.map_or_else(|error| error, |out| String::from_utf8_lossy(&out).into_owned());
            text += &format!("---- kubectl {}\n{output}\n", args.join(" "));
        }
        panic!("{text}");
    }
}

/// The fields of both; where both have one, the other's.
pub fn merged(mut one: Value, other: &Value) -> Value {
    one.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
    one
}

pub fn worker(pod: &Pod) -> i32 {
    pod.labels().get("batch.kubernetes.io/job-completion-index").map_or(-1, |index| index.parse().unwrap())
}

/// The condition of this type, which must be there.
pub fn condition<'a>(status: &'a TrainingJobStatus, type_: &str) -> &'a Condition {
    status.conditions.iter().find(|condition| condition.type_ == type_).unwrap()
}

pub fn attempt(pod: &Pod) -> i32 {
    // One that looks after checkpoints is of none.
    pod.labels().get(trainingjob_operator::build::labels::INCARNATION).map_or(0, |number| number.parse().unwrap())
}

/// How the container `training` stands.
pub fn training(pod: &Pod) -> Option<k8s_openapi::api::core::v1::ContainerStatus> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    statuses.iter().find(|status| status.name == "training").cloned()
}

fn parsed<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}
