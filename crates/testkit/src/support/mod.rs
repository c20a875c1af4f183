//! A real control plane on which operators run inside the test. Each of their requests passes through the test
//! ([`wire`]), every version of every object is seen ([`witness`]), and pods do what the test says ([`kubelet`]).

pub mod agents;
pub mod kubelet;
pub mod log;
pub mod operator;
pub mod outcome;
pub mod wire;
pub mod witness;

use crate::cluster::Cluster;
use api::{self, RuntimeKind, TrainingJob};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, Client, Config};
use log::Log;
use serde_json::Value;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::runtime::{self, Runtime};
use tokio::sync::{OnceCell, Semaphore, SemaphorePermit};
use witness::Witness;

/// The longest wait for anything. Many trials share few cores, which other programs keep busy too. A trial that can't
/// reach its end any more does not wait for it.
pub const DEADLINE: Duration = Duration::from_secs(240);

/// Trials wait most of their time. They share two cores and one API server.
const SIDE_BY_SIDE: usize = 40;

/// Runs a test on the runtime that all tests of this program share, as their world does.
pub fn run(test: impl Future<Output = ()>) {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    let runtime = || runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    RUNTIME.get_or_init(runtime).block_on(test);
}

/// A control plane with nodes, a kubelet and a witness.
pub struct World {
    pub config: Config,
    /// The client of the user, and of the kubelet.
    pub admin: Client,
    pub witness: Arc<Witness>,
    pub log: Log,
    trials: Semaphore,
    _cluster: Cluster,
}

impl World {
    /// The one world of this program. Its tests run by [`run`], because it lives on their runtime.
    pub async fn shared() -> Arc<Self> {
        static WORLD: OnceCell<Arc<World>> = OnceCell::const_new();
        WORLD.get_or_init(Self::start).await.clone()
    }

    async fn start() -> Arc<Self> {
        let log = Log::start();
        let stages = concat!(env!("CARGO_MANIFEST_DIR"), "/src/support/nodes.yaml");
        let cluster = Cluster::up(
            "wire",
            &[
                "--control-only",
                "--no-audit",
                "--simulated-nodes=4",
                &format!("--stages={stages}"),
                // Hundreds of jobs at once must not wait for a client's limit.
                "--kcm-qps=1000",
                "--kcm-burst=1000",
                "--scheduler-qps=1000",
            ],
        );
        let config = cluster.config().await;
        let admin = Client::try_from(config.clone()).expect("a client");
        apply_crd(&admin).await;
        let witness = Witness::start(&admin).await;
        kubelet::start(admin.clone(), &witness);
        Arc::new(Self { config, admin, witness, log, trials: Semaphore::new(SIDE_BY_SIDE), _cluster: cluster })
    }

    /// Waits for a place among the trials that run side by side, whichever test they belong to.
    pub async fn place(&self) -> SemaphorePermit<'_> {
        self.trials.acquire().await.expect("it is never closed")
    }

    /// Drops what was seen and logged in a namespace whose trial is over.
    pub fn forget(&self, namespace: &str) {
        self.witness.forget(namespace);
        self.log.forget(namespace);
    }

    /// A namespace in which pods can be made at once.
    pub async fn namespace(&self, name: &str) {
        let metadata = ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() };
        let namespace = Namespace { metadata, ..Namespace::default() };
        Api::all(self.admin.clone()).create(&PostParams::default(), &namespace).await.expect("a new namespace");
        let metadata = ObjectMeta { name: Some("default".into()), ..ObjectMeta::default() };
        let account = ServiceAccount { metadata, ..ServiceAccount::default() };
        let made = Api::namespaced(self.admin.clone(), name).create(&PostParams::default(), &account).await;
        assert!(made.as_ref().map_or_else(|error| error.to_string().contains("exists"), |_| true), "{made:?}");
    }

    pub fn jobs(&self, namespace: &str) -> Api<TrainingJob> {
        Api::namespaced(self.admin.clone(), namespace)
    }

    /// Sends JSON as a user's tool does. The error is the API server's message.
    ///
    /// # Errors
    /// What the API server answered.
    pub async fn send(&self, method: &str, url: &str, object: &Value) -> Result<Value, String> {
        let content = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let request = http::Request::builder().method(method).uri(url).header("content-type", content);
        let request = request.body(serde_json::to_vec(object).expect("JSON")).expect("a request");
        self.admin.request(request).await.map_err(|error| match error {
            kube::Error::Api(status) => status.message.clone(),
            other => format!("{method} {url}: {other}"),
        })
    }
}

/// Makes a template in a namespace.
#[allow(dead_code)] // not in every test binary
pub async fn runtime(world: &World, namespace: &str, name: &str, spec: &Value) {
    let url = format!("/apis/ml.example.com/v1/namespaces/{namespace}/{}", RuntimeKind::TrainingRuntime.plural());
    let kind = RuntimeKind::TrainingRuntime.as_str();
    let object = serde_json::json!({ "apiVersion": "ml.example.com/v1", "kind": kind, "metadata": { "name": name }, "spec": spec });
    let made = async || world.send("POST", &url, &object).await.ok();
    // A new kind is served a moment after it is established.
    crate::wait::eventually("a template to be made", DEADLINE, made).await;
}

/// Path of the TrainingJobs of a namespace.
pub fn jobs_url(namespace: &str) -> String {
    format!("/apis/ml.example.com/v1/namespaces/{namespace}/trainingjobs")
}

async fn apply_crd(client: &Client) {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in [api::crd(), api::tuning_crd()].into_iter().chain(RuntimeKind::ALL.map(api::runtime_crd)) {
        let name = crd.metadata.name.clone().expect("the CRD has a name");
        crds.patch(&name, &PatchParams::apply("test").force(), &Patch::Apply(&crd)).await.expect("the CRD is applied");
        let established = await_condition(crds.clone(), &name, conditions::is_crd_established());
        tokio::time::timeout(DEADLINE, established).await.expect("the CRD is established in time").expect("a CRD");
    }
    let jobs: Api<TrainingJob> = Api::all(client.clone());
    // A new kind is served a moment after it is established.
    let served = async {
        while jobs.list(&Default::default()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(DEADLINE, served).await.expect("TrainingJobs are served");
}
