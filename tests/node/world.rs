//! Clusters with real nodes and the operator installed in them.

use api::TrainingJob;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, ValidationDirective,
};
use kube::{Api, Client, Resource};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::{Deref, DerefMut};
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use testkit::cluster::{Cluster, tools};
use testkit::evidence::Guard;
pub use testkit::job::{condition, index, training, worker};
use testkit::wait::eventually;
use testkit::{binary, root};

pub const DEMO_IMAGE: &str = "localhost/trainingjob-demo:cpu";
/// Limit for everything that should be there within seconds. It is far longer than needed, because other tests keep the
/// machine busy.
pub const SOON: Duration = Duration::from_secs(300);

pub struct World {
    pub cluster: Cluster,
}

/// The cluster that the tests of this program share. None where its parts have not been built, with a line that says
/// so.
pub fn world() -> Option<&'static World> {
    static WORLD: OnceLock<World> = OnceLock::new();
    is_built().then(|| WORLD.get_or_init(|| World::up("node", &[])))
}

/// Whether clusters with real nodes can be started.
pub fn is_built() -> bool {
    let parts = ["TRAININGJOB_TEST_TOOLS", "TRAININGJOB_TEST_IMAGE", "TRAININGJOB_TEST_DEMO_IMAGE"];
    let missing = parts.iter().find(|name| std::env::var_os(name).is_none());
    if let Some(missing) = missing {
        testkit::skipped(&format!(
            "{missing} is not set: `make test` builds what tests on a real node need, and runs them"
        ));
    }
    missing.is_none()
}

impl World {
    /// A cluster of that name with a real node, the images and the operator.
    pub fn up(name: &str, flags: &[&str]) -> Self {
        let world = Self::without_operator(name, flags);
        if world.cluster.name().is_some() {
            world.cluster.kubectl(&["create", "namespace", "trainingjob-system"]);
            let named = format!("--from-literal={}=hf://{}", super::fine_tuning::NAME, super::fine_tuning::MODEL);
            let names = ["create", "configmap", "trainingjob-content-names", "-n", "trainingjob-system", &named];
            world.cluster.kubectl(&names);
            world.cluster.kubectl(&["apply", "-k", &root("deploy/dev")]);
            let rollout =
                ["rollout", "status", "deployment/trainingjob-operator", "-n", "trainingjob-system", "--timeout=180s"];
            world.cluster.kubectl(&rollout);
        }
        world
    }

    /// A cluster of that name with a real node and the images.
    pub fn without_operator(name: &str, flags: &[&str]) -> Self {
        let [operator, demo] = ["TRAININGJOB_TEST_IMAGE", "TRAININGJOB_TEST_DEMO_IMAGE"]
            .map(|name| std::env::var(name).expect("`is_built` has looked"));
        let flags: Vec<_> = ["--image", &demo, "--image", &operator].iter().chain(flags).copied().collect();
        Self { cluster: Cluster::up(name, &flags) }
    }

    /// A namespace of a test's own, with these labels and the programs of the tests as ConfigMap `programs`.
    pub async fn space(&'static self, test: &str, labels: Value) -> Space {
        let name = format!("{test}-{}", std::process::id());
        let namespace = json!({ "metadata": { "name": name, "labels": labels } });
        let namespaces = Api::<Namespace>::all(self.cluster.client().await);
        namespaces.create(&PostParams::default(), &parsed(namespace)).await.unwrap();
        self.space_in(&name).await
    }

    /// The same in a namespace that exists.
    pub async fn space_in(&'static self, name: &str) -> Space {
        let (client, name) = (self.cluster.client().await, name.to_owned());
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
        let operator = || {
            let logs =
                ["logs", "-n", "trainingjob-system", "deployment/trainingjob-operator", "--all-pods", "--tail=-1"];
            let text = self.cluster.try_kubectl(&[&logs[..], &["--request-timeout=10s"]].concat(), "");
            text.map_or_else(|error| error, |text| String::from_utf8_lossy(&text).into_owned())
        };
        let guard = Arc::new(Guard::new(&self.cluster, &name, operator));
        let space = Space { world: self, client, name, guard };
        space.create::<ConfigMap>(json!({ "metadata": { "name": "programs" }, "data": programs })).await;
        // The controller manager creates it. Until then no pod is admitted.
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
    guard: Arc<Guard>,
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
        let mut watched = testkit::job::Job::watch(&self.client, &self.name, &name).await;
        watched.patient = SOON;
        self.guard.add(&watched);
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &self.name, &ApiResource::erase::<TrainingJob>(&()));
        let params = PatchParams { field_validation: Some(ValidationDirective::Strict), ..PatchParams::apply("tests") };
        api.patch(&name, &params, &Patch::Apply(job)).await.unwrap();
        Job { space: self.clone(), watched }
    }

    pub async fn pods(&self) -> Vec<Pod> {
        self.api::<Pod>().list(&ListParams::default()).await.unwrap().items
    }

    pub async fn no_pod_is_left(&self) {
        eventually("all pods to be gone", SOON, async || self.pods().await.is_empty().then_some(())).await;
    }

    /// What a pod's program has printed, as `kubectl logs` shows it, without the lines of the agent. There are some if the
    /// gang takes long to form.
    pub fn logs(&self, pod: &str) -> Vec<u8> {
        let args = ["logs", pod, "-n", &self.name, "-c", "training"];
        let begun = Instant::now();
        loop {
            match self.world.cluster.try_kubectl(&args, "") {
                Ok(log) => {
                    let lines = log.split_inclusive(|byte| *byte == b'\n');
                    return lines.filter(|line| !line.starts_with(b"agent: ")).collect::<Vec<_>>().concat();
                }
                // A container that is just starting again has none for a moment.
                Err(_) if begun.elapsed() < Duration::from_secs(30) => std::thread::sleep(Duration::from_millis(200)),
                Err(error) => panic!("no log of {pod}: {error}"),
            }
        }
    }

    /// `kubectl trainingjob` in this namespace, which is named before what belongs to a program.
    pub fn plugin_command(&self, args: &[&str]) -> Command {
        let mut args = args.to_vec();
        let end = args.iter().position(|arg| *arg == "--").unwrap_or(args.len());
        args.splice(end..end, ["-n", &self.name]);
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(binary("kubectl-trainingjob"));
        command.args(args).env("KUBECONFIG", self.world.cluster.kubeconfig()).stdin(Stdio::null());
        command.env("PATH", format!("{}:{path}", tools().display()));
        command
    }

    /// What `kubectl trainingjob` prints here, to both of its outputs, and whether it exits with 0.
    pub async fn plugin(&self, args: &[&str]) -> (bool, String) {
        let (code, text) = self.plugin_code(args).await;
        (code == Some(0), text)
    }

    /// The same with its exit code.
    pub async fn plugin_code(&self, args: &[&str]) -> (Option<i32>, String) {
        let mut command = self.plugin_command(args);
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
        (output.status.code(), text)
    }

    /// Watches a TrainingJob that another program creates or has created.
    pub async fn watch(&self, name: &str) -> Job {
        let mut watched = testkit::job::Job::watch(&self.client, &self.name, name).await;
        watched.patient = SOON;
        self.guard.add(&watched);
        Job { space: self.clone(), watched }
    }

    /// Removes the namespace with all that is in it, to leave the machine to the other tests.
    pub async fn end(self) {
        Api::<Namespace>::all(self.client.clone()).delete(&self.name, &DeleteParams::default()).await.unwrap();
    }
}

/// A TrainingJob in its namespace.
pub struct Job {
    pub space: Space,
    watched: testkit::job::Job,
}

impl Deref for Job {
    type Target = testkit::job::Job;

    fn deref(&self) -> &Self::Target {
        &self.watched
    }
}

impl DerefMut for Job {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.watched
    }
}

/// The fields of both. The other's take precedence.
pub fn merged(mut one: Value, other: &Value) -> Value {
    one.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
    one
}

fn parsed<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}
