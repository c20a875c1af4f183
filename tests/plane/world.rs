//! One control plane with simulated nodes for all tests of this program. Each test has a namespace of its own, in which
//! an operator works with only the rights of `deploy/namespaced`.

use api::{self, Condition, State, TrainingJob, TrainingJobStatus};
use futures::{StreamExt, future};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::client::ClientBuilder;
use kube::config::Kubeconfig;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Config, Resource, ResourceExt};
use objects::labels;
use plan::{AgentDelivery, OperatorInfo};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use testkit::cluster::{self, Cluster};
use testkit::evidence::Guard;
use testkit::order::assert_in_order;
use testkit::root;
use testkit::support::agents::operator_key;
use testkit::wait::{SOON, eventually};
use tokio::sync::{oneshot, watch};
use trainingjob_operator::controller::{self, AgentAccess, Options};
use trainingjob_operator::telemetry::Metrics;

/// The simulated kubelets ignore a pod with this annotation. The test sets its status.
pub const BY_HAND: &str = "simulated/by-hand";
/// A pod with this annotation succeeds after that time.
pub const DURATION: &str = "simulated/duration";

pub struct Plane {
    pub cluster: Cluster,
    audit: PathBuf,
    /// ServiceAccount, Roles and RoleBindings of `deploy/namespaced`.
    rights: Vec<Value>,
}

/// Whether the cluster has Kubernetes 1.34, without image volumes, and without restart rules of containers.
pub fn is_oldest() -> bool {
    std::env::var("TRAININGJOB_KUBERNETES").is_ok_and(|version| version == "1.34")
}

/// The one control plane of this program.
pub fn plane() -> &'static Plane {
    static PLANE: OnceLock<Plane> = OnceLock::new();
    PLANE.get_or_init(|| {
        let stages = testkit::scratch().join("stages.yaml");
        std::fs::write(&stages, self::stages()).unwrap();
        let flags =
            ["--control-only", "--simulated-nodes", "4", "--kcm-qps", "200", "--kcm-burst", "400", "--scheduler-qps"];
        let mut flags = [&flags[..], &["200", "--stages", stages.to_str().unwrap()]].concat();
        // Kubernetes 1.34 has MutatingAdmissionPolicies only as a beta that is off.
        let is_beta = is_oldest();
        if is_beta {
            flags.extend(["--runtime-config", "admissionregistration.k8s.io/v1beta1=true"]);
            flags.push("--apiserver-arg=--feature-gates=MutatingAdmissionPolicy=true");
        }
        let cluster = Cluster::up("converge", &flags);
        let audit = cluster.kubeconfig().parent().unwrap().join("log/audit.jsonl");
        assert!(audit.exists(), "{} is missing: these tests need a cluster of devcluster/cluster", audit.display());
        cluster.apply_crd(&crd());
        for kind in api::RuntimeKind::ALL {
            cluster.apply_crd(&api::runtime_crd(kind));
        }
        let version = if is_beta { "admissionregistration.k8s.io/v1beta1" } else { "admissionregistration.k8s.io/v1" };
        cluster.kubectl_with(&["apply", "-f", "-"], &REWRITES.replace("admissionregistration.k8s.io/v1", version));
        let rights = rendered(&cluster.kubectl(&["kustomize", &root("deploy/namespaced")]));
        Plane { cluster, audit, rights }
    })
}

/// In namespaces with the label `rewritten` the API server changes every write.
const REWRITES: &str = r#"
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: { name: rewritten }
spec:
  failurePolicy: Fail
  reinvocationPolicy: Never
  matchConstraints:
    namespaceSelector: { matchLabels: { rewritten: "true" } }
    resourceRules:
      - { apiGroups: [""], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [services, configmaps] }
  mutations:
    - patchType: ApplyConfiguration
      applyConfiguration:
        expression: 'Object{ metadata: Object.metadata{ labels: { "app": "rewritten" } } }'
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: { name: rewritten }
spec: { policyName: rewritten }
"#;

/// The CRD, in which `workingDir` may also be a number. It stands for an API server of another version, whose jobs we
/// can't read.
fn crd() -> Value {
    let mut crd = serde_json::to_value(api::crd()).unwrap();
    let spec = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let field = &mut spec["properties"]["workingDir"];
    assert_eq!(field["type"], "string");
    *field = json!({ "x-kubernetes-int-or-string": true });
    crd
}

/// The stages of devcluster, without the pods that a test leads by hand.
fn stages() -> String {
    let stages = std::fs::read_to_string(root("devcluster/simulated/stages.yaml")).unwrap();
    let of_pods = "resourceRef: {apiGroup: v1, kind: Pod}\n  selector:\n    matchExpressions:\n";
    assert_eq!(stages.matches(of_pods).count(), 3, "the stages of devcluster have another form");
    let spare = format!("{of_pods}    - {{key: '.metadata.annotations[\"{BY_HAND}\"]', operator: DoesNotExist}}\n");
    stages.replace(of_pods, &spare)
}

/// The operator's rights, from the objects of an installation.
fn rendered(text: &str) -> Vec<Value> {
    let objects: Vec<Value> = text.split("\n---\n").map(|object| serde_saphyr::from_str(object).unwrap()).collect();
    let of_rights = ["ServiceAccount", "Role", "RoleBinding"];
    objects.into_iter().filter(|object| of_rights.contains(&object["kind"].as_str().unwrap())).collect()
}

impl Plane {
    /// A namespace with these labels, and a service account in it with the operator's rights there.
    pub async fn space(&'static self, test: &str, namespace_labels: Value) -> Space {
        let client = self.cluster.client().await;
        let name = format!("{test}-{}", std::process::id());
        let namespace = json!({ "metadata": { "name": name, "labels": namespace_labels } });
        Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &parsed(namespace)).await.unwrap();
        let guard = Arc::new(Guard::new(&self.cluster, &name, || "it runs in the test's process".to_owned()));
        let mut space = Space { plane: self, token: String::new(), client, name, _guard: guard };
        for object in &self.rights {
            // Here the operator has no namespace of its own.
            let name = format!("{:?}", space.name);
            let object =
                object.to_string().replace("\"ml-training\"", &name).replace("\"ml-training-operator\"", &name);
            space.create_any(parsed(serde_json::from_str(&object).unwrap())).await;
        }
        let accounts = space.api::<ServiceAccount>();
        let request = TokenRequest {
            spec: TokenRequestSpec { expiration_seconds: Some(3600), ..TokenRequestSpec::default() },
            ..TokenRequest::default()
        };
        let token = accounts.create_token_request("trainingjob-operator", &PostParams::default(), &request).await;
        space.token = token.unwrap().status.unwrap().token;
        // The controller manager creates it. Until then no pod is admitted.
        eventually("the default service account", SOON, async || accounts.get_opt("default").await.unwrap()).await;
        space
    }
}

/// A namespace.
#[derive(Clone)]
pub struct Space {
    pub plane: &'static Plane,
    pub client: Client,
    pub name: String,
    token: String,
    /// Writes down what is in the namespace if the test fails.
    _guard: Arc<Guard>,
}

/// An operator of this process.
pub struct Operator {
    pub metrics: Arc<Metrics>,
    stop: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<()>,
}

impl Operator {
    /// Ends the operator as a signal does.
    pub async fn end(self) {
        let _ = self.stop.send(());
        tokio::time::timeout(SOON, self.task).await.expect("the operator ends when it is told to").unwrap();
    }

    /// Waits until the operator has nothing to do, and will have nothing to do within that time.
    pub async fn idle(&self, within: Duration) {
        eventually("the operator to be idle", SOON, async || self.metrics.is_idle(within).then_some(())).await;
    }

    /// The value of the series with these labels, 0 if there is none.
    pub fn metric(&self, series: &str) -> f64 {
        self.metrics.render().lines().find_map(|l| l.strip_prefix(series)?.trim().parse().ok()).unwrap_or(0.0)
    }
}

/// A line of the API server's audit log.
#[derive(Debug, Clone)]
pub struct Request {
    pub verb: String,
    /// `trainingjobs/status`.
    pub resource: String,
    pub name: String,
    pub code: u64,
    /// Whether RBAC refused it.
    pub forbidden: bool,
    /// Seconds since 1970.
    pub at: f64,
}

impl Space {
    pub fn api<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.name)
    }

    /// A client with the rights of the operator, which watches as it does.
    pub async fn restricted(&self) -> Client {
        let kubeconfig = Kubeconfig::read_from(self.plane.cluster.kubeconfig()).unwrap();
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.unwrap();
        config.auth_info = serde_json::from_value(json!({ "token": self.token })).unwrap();
        ClientBuilder::try_from(config).unwrap().with_layer(&controller::compact_watches()).build()
    }

    /// Starts an operator for this namespace.
    pub async fn operator(&self) -> Operator {
        self.operator_of_version("localhost/trainingjob-operator:dev").await
    }

    /// Starts an operator whose agents come from this image.
    pub async fn operator_of_version(&self, agent_image: &str) -> Operator {
        self.operator_with(agent_image, Options::default()).await
    }

    /// Starts an operator that asks the agents at their pods' addresses.
    pub async fn operator_that_asks(&self) -> Operator {
        let options = Options { agent_access: AgentAccess::Direct, ..Options::default() };
        self.operator_with("localhost/trainingjob-operator:dev", options).await
    }

    /// Starts an operator with this delivery of its agents.
    pub async fn operator_that_delivers(&self, agent_delivery: AgentDelivery) -> Operator {
        let options = Options { agent_delivery, ..Options::default() };
        self.operator_with("localhost/trainingjob-operator:dev", options).await
    }

    /// Starts an operator that starts at most this many new jobs each second, after the first 128.
    pub async fn operator_that_begins(&self, new_jobs_per_second: u16) -> Operator {
        let options = Options { new_jobs_per_second, ..Options::default() };
        self.operator_with("localhost/trainingjob-operator:dev", options).await
    }

    async fn operator_with(&self, agent_image: &str, options: Options) -> Operator {
        let (stop, stopped) = oneshot::channel::<()>();
        let metrics = Arc::new(Metrics::new());
        let options = Options {
            namespace: Some(self.name.clone()),
            runtime: OperatorInfo { agent_image: agent_image.into(), restart_rules: true, ..OperatorInfo::default() },
            // Each operator of a test knows the keys that the ones before it have created.
            operator_key: operator_key(),
            ..options
        };
        let stopped = async move { stopped.await.unwrap_or(()) };
        let task = tokio::spawn(controller::run(self.restricted().await, options, metrics.clone(), Box::pin(stopped)));
        Operator { metrics, stop, task }
    }

    /// Starts an operator and waits until it has looked at that many TrainingJobs.
    pub async fn operator_that_looked_at(&self, jobs: u32) -> Operator {
        let operator = self.operator().await;
        let series = format!("trainingjob_reconciliation_total{{namespace=\"{}\",result=\"success\"}}", self.name);
        eventually("a first look at every job", SOON, async || {
            (operator.metric(&series) >= f64::from(jobs)).then_some(())
        })
        .await;
        operator
    }

    pub async fn create<K>(&self, object: Value) -> K
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned + Serialize + Clone + Debug,
    {
        self.api::<K>().create(&PostParams::default(), &parsed(object)).await.unwrap()
    }

    async fn create_any(&self, object: DynamicObject) {
        let types = object.types.clone().unwrap();
        let (group, version) = types.api_version.split_once('/').unwrap_or(("", &types.api_version));
        let resource = ApiResource::from_gvk(&kube::core::GroupVersionKind::gvk(group, version, &types.kind));
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &self.name, &resource);
        api.create(&PostParams::default(), &object).await.unwrap();
    }

    /// Creates a job of two workers, unless `fields` of the spec say otherwise, and watches it.
    pub async fn submit(&self, name: &str, fields: Value) -> Watched {
        let watched = Watched::new(self, name);
        self.create_any(parsed(cluster::job(name, &fields))).await;
        watched
    }

    pub async fn get<K>(&self, name: &str) -> Option<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned + Clone + Debug,
    {
        self.api::<K>().get_opt(name).await.unwrap()
    }

    /// Waits until the object is there.
    pub async fn has<K>(&self, name: &str) -> K
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned + Clone + Debug,
    {
        eventually(&format!("{} {name}", K::kind(&())), SOON, async || self.get::<K>(name).await).await
    }

    /// Waits until the object is as wanted.
    pub async fn until<K>(&self, name: &str, what: &str, wanted: impl Fn(&K) -> bool) -> K
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned + Clone + Debug,
    {
        let what = format!("{} {name}: {what}", K::kind(&()));
        eventually(&what, SOON, async || self.get::<K>(name).await.filter(|object| wanted(object))).await
    }

    pub async fn patch<K>(&self, name: &str, patch: Value) -> K
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned + Clone + Debug,
    {
        self.api::<K>().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap()
    }

    /// Deletes an object as `kubectl delete` does, without waiting.
    pub async fn delete<K>(&self, name: &str)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned + Clone + Debug,
    {
        self.delete_with::<K>(name, DeleteParams::background()).await;
    }

    pub async fn delete_with<K>(&self, name: &str, params: DeleteParams)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned + Clone + Debug,
    {
        self.api::<K>().delete(name, &params).await.unwrap();
    }

    /// The pods of a job, by worker.
    pub async fn pods(&self, job: &str) -> Vec<Pod> {
        let params = ListParams::default().labels(&format!("training-job={job}"));
        let mut pods = self.api::<Pod>().list(&params).await.unwrap().items;
        pods.sort_by_key(|pod| pod.labels().get("batch.kubernetes.io/job-completion-index").cloned());
        pods
    }

    /// Waits for this many pods of a job, all with a node.
    pub async fn placed(&self, job: &str, count: usize) -> Vec<Pod> {
        eventually(&format!("{count} pods of {job} with a node"), SOON, async || {
            let pods = self.pods(job).await;
            let placed = pods.iter().filter(|p| p.spec.as_ref().is_some_and(|s| s.node_name.is_some())).count();
            (placed == count && pods.len() == count).then_some(pods)
        })
        .await
    }

    /// Sets the status of a pod that is led by hand, as a kubelet would.
    pub async fn set_pod(&self, pod: &Pod, status: Value) {
        let patch = Patch::Merge(json!({ "status": status }));
        self.api::<Pod>().patch_status(&pod.name_any(), &PatchParams::default(), &patch).await.unwrap();
    }

    /// Removes the pods of a job that were asked to stop, as a kubelet does. Pods that are led by hand have no other. One
    /// stays even if it has ended, where it was asked to stop before.
    pub async fn remove_stopping(&self, job: &str) {
        for pod in self.pods(job).await.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some()) {
            // It may be gone since.
            let _ = self.api::<Pod>().delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await;
        }
    }

    /// Every request of the operator in the API server's audit log, without those of this process's other users.
    pub fn requests(&self) -> Vec<Request> {
        let user = format!("system:serviceaccount:{}:trainingjob-operator\"", self.name);
        let log = std::fs::read_to_string(&self.plane.audit).unwrap();
        let complete = |line: &&str| line.contains(&user) && line.contains(r#""stage":"Response"#);
        log.lines().filter(complete).filter_map(Request::parse).collect()
    }

    /// Requests without watches, and without the lists by which watches begin.
    pub fn acts(&self) -> Vec<Request> {
        let watching = |r: &Request| {
            r.verb == "watch" || (r.verb == "list" && r.resource != "events") || r.resource == "selfsubjectreviews"
        };
        self.requests().into_iter().filter(|request| !watching(request)).collect()
    }

    /// Writes to objects of this kind, such as `services`.
    pub fn writes(&self, resource: &str) -> Vec<Request> {
        self.acts().into_iter().filter(|r| r.resource == resource && r.verb != "get").collect()
    }

    /// Ends the last operator of this namespace, and then [closes](Self::close) it.
    pub async fn end(self, operator: Operator) {
        operator.end().await;
        self.close(&[]).await;
    }

    /// Every test ends with this check that only requests for these resources were forbidden. It then removes the
    /// namespace, to leave the machine to the other tests. After a failed test the namespace stays.
    pub async fn close(self, forbidden: &[&str]) {
        let is_known = |request: &Request| forbidden.contains(&request.resource.as_str());
        let refused: Vec<_> = self.requests().into_iter().filter(|r| r.forbidden && !is_known(r)).collect();
        assert!(refused.is_empty(), "the Role of deploy/ does not allow {refused:?}");
        Api::<Namespace>::all(self.client.clone()).delete(&self.name, &DeleteParams::default()).await.unwrap();
    }
}

impl Request {
    fn parse(line: &str) -> Option<Self> {
        let line: Value = serde_json::from_str(line).ok()?; // the last line may be half written
        let object = &line["objectRef"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut resource = text(&object["resource"]);
        if let Some(sub) = object["subresource"].as_str() {
            resource = format!("{resource}/{sub}");
        }
        Some(Self {
            verb: text(&line["verb"]),
            resource,
            name: text(&object["name"]),
            code: line["responseStatus"]["code"].as_u64().unwrap_or(0),
            forbidden: line["annotations"]["authorization.k8s.io/decision"] == "forbid",
            at: line["requestReceivedTimestamp"].as_str()?.parse::<jiff::Timestamp>().ok()?.as_millisecond() as f64
                / 1000.0,
        })
    }
}

/// A TrainingJob and every status that it had.
pub struct Watched {
    pub space: Space,
    pub name: String,
    seen: watch::Receiver<Vec<TrainingJobStatus>>,
}

impl Watched {
    fn new(space: &Space, name: &str) -> Self {
        let (reported, seen) = watch::channel(Vec::new());
        let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let jobs = watcher(space.api::<TrainingJob>(), config).default_backoff().applied_objects();
        tokio::spawn(jobs.for_each(move |job| {
            if let Some(status) = job.ok().and_then(|job| job.status) {
                reported.send_if_modified(|all: &mut Vec<_>| {
                    let new = all.last() != Some(&status);
                    all.extend(new.then_some(status));
                    new
                });
            }
            future::ready(())
        }));
        Self { space: space.clone(), name: name.to_owned(), seen }
    }

    /// Waits until the status is as wanted.
    pub async fn until(&self, what: &str, wanted: impl Fn(&TrainingJobStatus) -> bool) -> TrainingJobStatus {
        let mut seen = self.seen.clone();
        let found = seen.wait_for(|all| all.last().is_some_and(&wanted));
        match tokio::time::timeout(SOON, found).await {
            Ok(all) => all.expect("the watch goes on").last().unwrap().clone(),
            Err(_) => self.explain(&format!("waited {SOON:?} for {what}")),
        }
    }

    /// Waits for a state. Failed or Completed instead ends the test at once.
    pub async fn state(&self, state: State) -> TrainingJobStatus {
        let ended = |s: &TrainingJobStatus| s.state.is_some_and(|now| now == state || now.is_finished());
        let status = self.until(state.as_str(), ended).await;
        if status.state != Some(state) {
            self.explain(&format!("it is not {} but {:?}", state.as_str(), status.state));
        }
        status
    }

    /// Waits for a condition with this status and reason.
    pub async fn condition(&self, type_: &str, value: &str, reason: &str) -> Condition {
        let is = |c: &&Condition| c.type_ == type_ && c.status == value && c.reason == reason;
        let status =
            self.until(&format!("condition {type_}={value} {reason}"), |s| s.conditions.iter().any(|c| is(&c))).await;
        status.conditions.iter().find(is).unwrap().clone()
    }

    /// The last status seen.
    pub fn status(&self) -> TrainingJobStatus {
        self.seen.borrow().last().cloned().unwrap_or_default()
    }

    /// Every status seen.
    pub fn statuses(&self) -> Vec<TrainingJobStatus> {
        self.seen.borrow().clone()
    }

    /// The states that the job went through.
    pub fn states(&self) -> Vec<State> {
        let mut states: Vec<_> = self.seen.borrow().iter().filter_map(|status| status.state).collect();
        states.dedup();
        states
    }

    /// The job went through these states in this order, and never through those.
    pub fn went_through(&self, wanted: &[State], never: &[State]) {
        assert_in_order(&self.states(), wanted, never);
    }

    /// Changes the spec.
    pub async fn set(&self, spec: Value) {
        self.space.patch::<TrainingJob>(&self.name, json!({ "spec": spec })).await;
    }

    pub async fn delete(&self) {
        self.space.delete::<TrainingJob>(&self.name).await;
    }

    /// The Job.
    pub async fn job(&self) -> Job {
        self.space.has(&format!("{}-training", self.name)).await
    }

    /// What `kubectl describe` shows.
    pub fn described(&self) -> String {
        let args = ["describe", "tj", &self.name, "-n", &self.space.name];
        self.space.plane.cluster.kubectl(&args)
    }

    /// Ends the test with everything that a person would look at.
    pub fn explain(&self, what: &str) -> ! {
        let mut text = format!("{}: {what}\nstates: {:?}\n", self.name, self.states());
        let ns = self.space.name.as_str();
        for args in [
            &["get", "tj", &self.name, "-n", ns, "-o", "yaml"][..],
            &["get", "jobs,services,configmaps,networkpolicies,pods,pvc", "-n", ns, "-o", "wide"],
            &["get", "events", "-n", ns, "--sort-by=.metadata.creationTimestamp"],
        ] {
            text += &format!("---- kubectl {}\n{}\n", args.join(" "), self.space.plane.cluster.kubectl(args));
        }
        panic!("{text}");
    }
}

/// The UIDs of objects.
pub fn uids<K: Resource>(objects: &[K]) -> BTreeSet<String> {
    objects.iter().map(|object| object.meta().uid.clone().unwrap()).collect()
}

pub fn attempt(pod: &Pod) -> u32 {
    pod.labels()[labels::INCARNATION].parse().unwrap()
}

pub fn parsed<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}
