//! One control plane with simulated nodes and Kueue for all tests of this program. Each test has a namespace with a
//! queue of its own, in which the operator's program works.

use api::{self, Condition, State, TrainingJob, TrainingJobStatus};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret, ServiceAccount};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use objects::names;
use protocol::proof::KEY_FILE;
use serde_json::{Value, json};
use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use testkit::cluster::{self, Cluster};
use testkit::room::Room;
use testkit::support::witness::{Kind, Witness};
use testkit::wait::{SOON, eventually, until};
use testkit::{ask, free_port};

/// A pod with this annotation succeeds after that time.
const DURATION: &str = "simulated/duration";
const QUEUE: &str = "queue";

/// The nodes on which every queue has its quota, and the priority class that precedes all others.
const ALL_QUEUES: &str = "
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: { name: any-node }
spec: { nodeLabels: { type: simulated } }
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: WorkloadPriorityClass
metadata: { name: urgent }
value: 1000
description: before everybody else
";

fn plane() -> &'static Cluster {
    static PLANE: OnceLock<Cluster> = OnceLock::new();
    PLANE.get_or_init(|| {
        let cluster =
            Cluster::up("kueue", &["--control-only", "--no-audit", "--simulated-nodes", "4", "--gpus", "200"]);
        if cluster.name().is_some() {
            cluster.devcluster(&["kueue"]);
        }
        cluster.apply_crd(&api::crd());
        cluster.apply_crd(&api::tuning_crd());
        // Before this the API server keeps no history of a new kind, and a watch that began earlier would break off
        // once.
        remembers_jobs(&cluster);
        cluster.kubectl_with(&["apply", "-f", "-"], ALL_QUEUES);
        cluster
    })
}

/// Lists TrainingJobs from the API server's history, which the API server keeps only from now on.
fn remembers_jobs(cluster: &Cluster) {
    let all = "/apis/ml.example.com/v1/trainingjobs?resourceVersion=0";
    until("TrainingJobs to be served", SOON, || cluster.try_kubectl(&["get", "--raw", all], "").ok());
}

/// A namespace, its queue and its operator.
pub struct Space {
    pub name: String,
    client: Client,
    witness: Arc<Witness>,
    room: Room,
    operator: Operator,
}

/// A TrainingJob that goes through a queue.
pub struct Queued<'a> {
    pub space: &'a Space,
    name: String,
    workers: usize,
}

impl Space {
    /// Creates a queue with a quota of this many GPUs.
    pub async fn new(test: &str, gpus: usize) -> Self {
        let (cluster, name) = (plane(), format!("{test}-{}", std::process::id()));
        let client = cluster.client().await;
        let namespace = serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap();
        Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
        let local = json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue",
            "metadata": { "name": QUEUE, "namespace": name }, "spec": { "clusterQueue": name },
        });
        for object in [cluster_queue(&name, gpus), local] {
            cluster.kubectl_with(&["apply", "-f", "-"], &object.to_string());
        }
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &name);
        eventually("the default service account", SOON, async || accounts.get_opt("default").await.unwrap()).await;
        let (witness, room) = (Witness::start(&client).await, Room::new(test));
        let operator = Operator::start(&name, &room).await;
        Self { name, client, witness, room, operator }
    }

    /// Changes the quota.
    pub fn quota(&self, gpus: usize) {
        plane().kubectl_with(&["apply", "-f", "-"], &cluster_queue(&self.name, gpus).to_string());
    }

    /// Submits a job whose workers have a GPU each.
    pub async fn submit(&self, name: &str, workers: usize, fields: Value) -> Queued<'_> {
        let mut all = json!({ "numWorkers": workers, "gpusPerWorker": 1, "scheduling": { "queue": QUEUE } });
        all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let job = serde_json::from_value(cluster::job(name, &all)).unwrap();
        self.api::<TrainingJob>().create(&PostParams::default(), &job).await.unwrap();
        self.known(name, workers)
    }

    /// A job that was submitted before.
    pub fn known(&self, name: &str, workers: usize) -> Queued<'_> {
        Queued { space: self, name: name.to_owned(), workers }
    }

    /// A Job that takes precedence over all others and requests this many GPUs.
    pub async fn urgent_job(&self, gpus: usize) {
        let gpus = json!({ "nvidia.com/gpu": gpus.to_string() });
        let job = json!({
            "metadata": {
                "name": "urgent",
                "labels": { "kueue.x-k8s.io/queue-name": QUEUE, "kueue.x-k8s.io/priority-class": "urgent" },
            },
            "spec": { "template": { "spec": {
                "restartPolicy": "Never",
                "containers": [{ "name": "main", "image": "none", "resources": { "limits": gpus, "requests": gpus } }],
            } } },
        });
        self.api::<Job>().create(&PostParams::default(), &serde_json::from_value(job).unwrap()).await.unwrap();
        eventually("the urgent job to run", SOON, async || {
            let pods = self.pods(|pod| pod["metadata"]["labels"]["batch.kubernetes.io/job-name"] == "urgent");
            pods.iter().any(|pod| pod["status"]["phase"] == "Running").then_some(())
        })
        .await;
    }

    pub async fn end_urgent_job(&self) {
        self.api::<Job>().delete("urgent", &DeleteParams::background()).await.unwrap();
    }

    /// Ends the operator as a power failure does, and starts another one, which knows only what it reads.
    pub async fn replace_operator(&mut self) {
        self.operator = Operator::start(&self.name, &self.room).await;
    }

    /// The Workloads of TrainingJobs, as they are now.
    pub fn workloads(&self) -> Vec<Value> {
        let selector = "app.kubernetes.io/managed-by=trainingjob-operator";
        let text = plane().kubectl(&["get", "workloads", "-n", &self.name, "-l", selector, "-o", "json"]);
        let list: Value = serde_json::from_str(&text).unwrap();
        list["items"].as_array().cloned().unwrap_or_default()
    }

    /// The status of a condition of the only Workload of a TrainingJob.
    pub fn condition_of_workload(&self, type_: &str) -> String {
        let workloads = self.workloads();
        let conditions = workloads.iter().filter_map(|workload| workload["status"]["conditions"].as_array()).flatten();
        let mut status = conditions
            .filter(|condition| condition["type"] == type_)
            .map(|condition| text(&condition["status"]).to_owned());
        status.next().unwrap_or_default()
    }

    /// The path of a file of this test.
    pub fn file(&self, name: &str) -> String {
        self.room.path(name).display().to_string()
    }

    fn pods(&self, wanted: impl Fn(&Value) -> bool) -> Vec<Value> {
        self.witness.read(&self.name, |space| space.of_kind(Kind::Pod).filter(|pod| wanted(pod)).cloned().collect())
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.name)
    }

    /// Removes the namespace, to leave the machine to the other tests. After a failed test the namespace stays.
    pub async fn end(self) {
        drop(self.operator);
        Api::<Namespace>::all(self.client.clone()).delete(&self.name, &DeleteParams::default()).await.unwrap();
    }
}

fn cluster_queue(name: &str, gpus: usize) -> Value {
    let quota = |name: &str, quota: &str| json!({ "name": name, "nominalQuota": quota });
    let quotas = [quota("cpu", "1000"), quota("memory", "1000Gi"), quota("nvidia.com/gpu", &gpus.to_string())];
    json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": { "name": name },
        "spec": {
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": name } },
            "preemption": { "withinClusterQueue": "LowerPriority" },
            "resourceGroups": [{
                "coveredResources": quotas.each_ref().map(|quota| &quota["name"]),
                "flavors": [{ "name": "any-node", "resources": quotas }],
            }],
        },
    })
}

impl Queued<'_> {
    /// The last status seen.
    pub fn status(&self) -> TrainingJobStatus {
        self.statuses().pop().unwrap_or_default()
    }

    /// Every status seen.
    fn statuses(&self) -> Vec<TrainingJobStatus> {
        let is_it = |object: &Value| object["metadata"]["name"] == self.name.as_str() && !object["status"].is_null();
        self.space.witness.read(&self.space.name, |space| {
            let versions = space.history.iter().filter(|seen| seen.kind == Kind::TrainingJob && is_it(&seen.object));
            versions.map(|seen| serde_json::from_value(seen.object["status"].clone()).unwrap()).collect()
        })
    }

    /// The states that the job went through, except the moment between having its nodes and running.
    pub fn states(&self) -> Vec<State> {
        let mut states: Vec<_> = self.statuses().into_iter().filter_map(|status| status.state).collect();
        states.retain(|state| *state != State::Initializing);
        states.dedup();
        states
    }

    /// Waits until the status is as wanted.
    pub async fn until(&self, what: &str, wanted: impl Fn(&TrainingJobStatus) -> bool) -> TrainingJobStatus {
        let found = tokio::time::timeout(SOON, async {
            loop {
                let status = self.status();
                if wanted(&status) {
                    return status;
                }
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        });
        found.await.unwrap_or_else(|_| self.explain(&format!("waited {SOON:?} for {what}")))
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

    /// Waits until the queue holds the job back: no worker exists, and none has failed.
    pub async fn is_queued(&self) {
        let scheduled = |status: &TrainingJobStatus| {
            let is_it = |condition: &&Condition| condition.type_ == "Scheduled";
            status.conditions.iter().find(is_it).map(|c| (c.status.clone(), c.reason.clone()))
        };
        let status =
            self.until("the queue", |status| scheduled(status) == Some(("False".into(), "Queued".into()))).await;
        assert_eq!(status.state, Some(State::Pending));
        eventually("its workers to be gone", SOON, async || {
            let alive = |pod: &Value| pod["status"]["phase"] != "Succeeded";
            self.workers().into_iter().all(|pod| !alive(&pod)).then_some(())
        })
        .await;
        self.has_not_failed();
    }

    /// Waits until this many workers have succeeded, and every other worker runs and is counted.
    pub async fn runs(&self, succeeded: u32) -> TrainingJobStatus {
        let all = u32::try_from(self.workers).unwrap();
        let counts = |status: &TrainingJobStatus| {
            status
                .workers
                .as_ref()
                .is_some_and(|w| (w.active, w.succeeded, w.failed) == (all - succeeded, succeeded, 0))
        };
        let what = format!("{} workers to run", all - succeeded);
        let runs_or_ended = |status: &TrainingJobStatus| {
            status.state.is_some_and(State::is_finished) || (status.state == Some(State::Running) && counts(status))
        };
        let status = self.until(&what, runs_or_ended).await;
        if status.state != Some(State::Running) {
            self.explain(&format!("it is not Running but {:?}", status.state));
        }
        // The watch of pods may be behind that of the status, and then there would be no pod to end.
        let counts = status.roles.iter().map(|role| role.count).chain(status.workers);
        let active: usize = counts.map(|workers| workers.active as usize).sum();
        eventually("the pods that run to be seen", SOON, async || {
            let runs = |pod: &&Value| pod["status"]["phase"] == "Running";
            (self.workers().iter().filter(runs).count() >= active).then_some(())
        })
        .await;
        self.has_not_failed();
        status
    }

    /// Lets its programs succeed.
    pub async fn complete(&self) -> TrainingJobStatus {
        for worker in 0..self.workers {
            self.end_worker(worker).await;
        }
        let status = self.state(State::Completed).await;
        self.has_not_failed();
        assert_eq!(status.attempt, Some(1));
        status
    }

    pub fn has_not_failed(&self) {
        let status = self.status();
        let counts = (status.restart_count, status.disruption_count.unwrap_or(0), status.restarts.len());
        assert_eq!(counts, (Some(0), 0, 0), "{:#?}", status.restarts);
    }

    /// Lets the program of a worker succeed, unless it already has.
    pub async fn end_worker(&self, worker: usize) {
        let patch = Patch::Merge(json!({ "metadata": { "annotations": { DURATION: "0s" } } }));
        for pod in self.workers().into_iter().filter(|pod| index(pod) == worker) {
            let name = pod["metadata"]["name"].as_str().unwrap();
            self.space.api::<Pod>().patch(name, &PatchParams::default(), &patch).await.unwrap();
        }
    }

    /// Deletes a worker's pod, as a collector of old pods does.
    pub async fn collect_worker(&self, worker: usize) {
        for pod in self.workers().into_iter().filter(|pod| index(pod) == worker) {
            let name = pod["metadata"]["name"].as_str().unwrap();
            self.space.api::<Pod>().delete(name, &DeleteParams::default()).await.unwrap();
        }
    }

    /// Changes the spec, and waits until the operator has acted on it.
    pub async fn set(&self, spec: Value) -> TrainingJobStatus {
        let patch = Patch::Merge(json!({ "spec": spec }));
        let jobs = self.space.api::<TrainingJob>();
        let generation = jobs.patch(&self.name, &PatchParams::default(), &patch).await.unwrap().metadata.generation;
        self.until("the operator to see the change", |status| status.observed_generation >= generation).await
    }

    /// The pods of its workers.
    fn workers(&self) -> Vec<Value> {
        self.space.pods(|pod| pod["metadata"]["labels"]["training-job"] == self.name.as_str())
    }

    /// The node selectors of its pods.
    pub fn nodes_wanted(&self) -> Vec<Value> {
        self.workers().into_iter().map(|pod| pod["spec"]["nodeSelector"].clone()).collect()
    }

    /// Runs the program of worker 0 as its kubelet would, by an agent on this machine, which is the address of its pod.
    /// It runs alone, because the other workers are simulated.
    pub async fn start_program(&self) -> Program {
        let pod = eventually("worker 0 to run", SOON, async || {
            let runs = |pod: &Value| index(pod) == 0 && pod["status"]["phase"] == "Running";
            self.workers().into_iter().find(runs)
        })
        .await;
        let container = &pod["spec"]["containers"][0];
        let uid = pod["metadata"]["uid"].as_str().unwrap();
        let args = container["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap());
        let env = container["env"].as_array().unwrap().iter().filter_map(|variable| {
            let value = match variable["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
                Some(path) => field(&pod, path),
                None => variable["value"].as_str().map(str::to_owned),
            };
            Some((variable["name"].as_str()?.to_owned(), value?))
        });
        let log = fs::File::create(self.space.file(&format!("{uid}.log"))).unwrap();
        let mut args: Vec<_> = args.filter(|arg| !arg.starts_with("--gang")).map(str::to_owned).collect();
        args.insert(1, format!("--termination-log={}", self.space.file(uid)));
        let key = self.space.file(&format!("{uid}.answers"));
        let uid_of_job = self.space.api::<TrainingJob>().get(&self.name).await.unwrap().metadata.uid.unwrap();
        let secret = self.space.api::<Secret>().get(&names::keys_name(&self.name, &uid_of_job)).await.unwrap();
        fs::write(&key, &secret.data.unwrap()[KEY_FILE].0).unwrap();
        for arg in args.iter_mut().filter(|arg| arg.starts_with("--answer-key=")) {
            *arg = format!("--answer-key={key}");
        }
        let mut agent = Command::new(testkit::binary("agent"));
        agent
            .args(args)
            .env_clear()
            .env("PATH", std::env::var("PATH").unwrap())
            .envs(env)
            .current_dir(&self.space.room.0);
        agent.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        Program(agent.spawn().unwrap())
    }

    /// Ends the test with everything that a person would look at, and with the order of events.
    pub fn explain(&self, what: &str) -> ! {
        let mut text = format!("{}: {what}\nstates: {:?}\n", self.name, self.states());
        let ns = self.space.name.as_str();
        for args in [
            &["get", "tj", &self.name, "-n", ns, "-o", "yaml"][..],
            &["get", "jobs,workloads,pods", "-n", ns, "-o", "wide"],
            &["get", "events", "-n", ns, "--sort-by=.metadata.creationTimestamp"],
        ] {
            text += &format!("---- kubectl {}\n{}\n", args.join(" "), plane().kubectl(args));
        }
        panic!("{text}---- as it happened\n{}", self.space.story());
    }
}

impl Space {
    /// All clients' writes to Jobs, and the writes that create, bind and delete pods, in their order.
    pub fn story(&self) -> String {
        self.witness.read(&self.name, |space| {
            let mut all: Vec<_> = space.history.iter().filter(|s| matches!(s.kind, Kind::Job | Kind::Pod)).collect();
            all.sort_by_key(|seen| seen.version);
            let lines = all.iter().map(|seen| {
                let (object, meta) = (&seen.object, &seen.object["metadata"]);
                let what = match seen.kind {
                    Kind::Job => {
                        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
                        let reported = conditions.iter().map(|c| {
                            format!("{}={} at {}", text(&c["type"]), text(&c["status"]), text(&c["lastTransitionTime"]))
                        });
                        let reported: Vec<_> = reported.collect();
                        format!(
                            "suspend={} active={} completed={:?} {reported:?}",
                            object["spec"]["suspend"],
                            object["status"]["active"],
                            text(&object["status"]["completedIndexes"])
                        )
                    }
                    _ => format!(
                        "{} created {} deletion {}",
                        text(&object["status"]["phase"]),
                        text(&meta["creationTimestamp"]),
                        text(&meta["deletionTimestamp"])
                    ),
                };
                let gone = if seen.gone { " GONE" } else { "" };
                format!("{} {:?} {}{gone} {what}\n", seen.version, seen.kind, text(&meta["name"]))
            });
            lines.collect()
        })
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn index(pod: &Value) -> usize {
    text(&pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]).parse().unwrap()
}

/// The value of a pod's field under a path such as `metadata.annotations['a/b']`.
fn field(pod: &Value, path: &str) -> Option<String> {
    let (path, key) = match path.split_once("['") {
        Some((path, key)) => (path, Some(key.trim_end_matches("']"))),
        None => (path, None),
    };
    let mut value = path.split('.').fold(pod, |value, part| &value[part]);
    if let Some(key) = key {
        value = &value[key];
    }
    value.as_str().map(str::to_owned)
}

/// An agent with the program of a worker.
pub struct Program(Child);

impl Drop for Program {
    /// Ends the agent as a kubelet does when its pod is deleted.
    fn drop(&mut self) {
        end(&mut self.0);
    }
}

struct Operator(Child);

impl Operator {
    async fn start(namespace: &str, room: &Room) -> Self {
        let port = free_port();
        let log = fs::OpenOptions::new().create(true).append(true).open(room.path("operator.log")).unwrap();
        let operator = Command::new(testkit::binary("operator"))
            .args(["--namespace", namespace, "--no-leader-election", "--agent-access", "direct"])
            .args(["--lease-namespace", namespace])
            .args(["--metrics-address", &format!("127.0.0.1:{port}")])
            .env("KUBECONFIG", plane().kubeconfig())
            .env_remove("KUBERNETES_SERVICE_HOST")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let operator = Self(operator);
        eventually("the operator to serve its health", SOON, async || ask(port, "GET", "/healthz", "")).await;
        operator
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends a signal that an agent passes on to its program, which has a second to end.
fn end(agent: &mut Child) {
    use nix::sys::signal::{Signal, kill};
    let _ = kill(nix::unistd::Pid::from_raw(agent.id().cast_signed()), Signal::SIGTERM);
    let _ = agent.wait();
}
