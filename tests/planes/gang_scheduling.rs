//! Two gangs that would starve each other. Placed one by one, they do. Each gang scheduler places one of them whole and
//! the other after it.

use api::{self, Condition, State, TrainingJob};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use plan::OperatorInfo;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use testkit::cluster::{Cluster, job};
use testkit::wait::{SOON, eventually};
use tokio::task::JoinHandle;
use trainingjob_operator::controller::{self, Options};
use trainingjob_operator::telemetry::Metrics;

const NAMESPACE: &str = "gangs";
const GPUS: usize = 8;
const NODES: [&str; 2] = ["sim-0", "sim-1"];
const WORKERS: usize = 6;

const DROPS_GROUPS: &str = r#"
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: { name: drops-groups }
spec:
  failurePolicy: Fail
  reinvocationPolicy: Never
  matchConstraints:
    resourceRules: [{ apiGroups: [batch], apiVersions: [v1], operations: [CREATE], resources: [jobs] }]
  matchConditions: [{ name: one, expression: "object.metadata.name == 'dropped-training'" }]
  mutations:
    - patchType: JSONPatch
      jsonPatch: { expression: '[JSONPatch{ op: "remove", path: "/spec/template/spec/schedulingGroup" }]' }
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: { name: drops-groups }
spec: { policyName: drops-groups }
"#;

/// Gangs of `WORKERS` pods with a GPU each: workers alone, and workers beside another role.
fn gangs() -> [Value; 2] {
    let role = json!({ "name": "actor", "replicas": WORKERS - 2, "gpusPerReplica": 1 });
    [
        json!({ "numWorkers": WORKERS }),
        json!({ "numWorkers": 2, "framework": "none", "image": "trainer.test/any:1", "roles": [role] }),
    ]
}

/// Kubernetes' own scheduler, without gangs and with them, behind its feature gates.
#[tokio::test]
async fn native_gang_scheduling_keeps_two_gangs_from_starving() {
    let gates = "--feature-gates=GenericWorkload=true,GangScheduling=true";
    let world = World::new("native", &[gates, "--runtime-config=scheduling.k8s.io/v1alpha2=true"]).await;
    world.both_hold_what_the_other_one_lacks().await;
    world.one_is_placed_whole_and_the_other_follows("native", "Insufficient nvidia.com/gpu").await;
    world.pods_whose_group_is_dropped_are_placed_one_by_one().await;
}

#[tokio::test]
#[ignore = "soak: gangs placed by Volcano; its objects are proved in make test by plane::group"]
async fn volcano_places_one_of_two_gangs_whole() {
    let world = World::with_scheduler("volcano").await;
    world
        .one_is_placed_whole_and_the_other_follows("volcano", "pod group is not ready, 6 Pending, 6 minAvailable")
        .await;
}

#[tokio::test]
#[ignore = "soak: gangs placed by the coscheduling plugin; gangs by Kubernetes' own scheduler are in make test"]
async fn coscheduling_places_one_of_two_gangs_whole() {
    let world = World::with_scheduler("coscheduling").await;
    world.one_is_placed_whole_and_the_other_follows("coscheduling", "Insufficient nvidia.com/gpu").await;
}

/// A control plane with eight GPUs on two simulated nodes, and the operator.
struct World {
    cluster: Cluster,
    client: Client,
    jobs: Api<TrainingJob>,
    operator: JoinHandle<()>,
}

impl World {
    async fn new(name: &str, flags: &[&str]) -> Self {
        let nodes = ["--control-only", "--no-audit", "--simulated-nodes=2", "--gpus=4"];
        let cluster = Cluster::up(&format!("gangs-{name}"), &[&nodes, flags].concat());
        let client = cluster.client().await;
        cluster.apply_crd(&api::crd());
        let namespace: Namespace = serde_json::from_value(json!({ "metadata": { "name": NAMESPACE } })).unwrap();
        Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
        let runtime = OperatorInfo { agent_image: "agent.test/agent:1".into(), ..OperatorInfo::default() };
        let options = Options { namespace: Some(NAMESPACE.into()), runtime, ..Options::default() };
        let running =
            controller::run(client.clone(), options, Arc::new(Metrics::new()), Box::pin(std::future::pending()));
        let operator = tokio::spawn(running);
        let jobs = Api::namespaced(client.clone(), NAMESPACE);
        Self { cluster, client, jobs, operator }
    }

    /// A world with a scheduler that takes minutes to build. It works beside the cluster's own.
    async fn with_scheduler(name: &str) -> Self {
        let world = Self::new(name, &[]).await;
        world.cluster.devcluster(&["gangs", name]);
        world
    }

    async fn submit(&self, names: [&str; 2], gang: &str, of: &Value) {
        let mut fields = json!({ "scheduling": { "gang": gang } });
        fields.as_object_mut().unwrap().extend(of.as_object().unwrap().clone());
        for name in names {
            self.submit_one(name, &fields).await;
        }
    }

    async fn submit_one(&self, name: &str, of: &Value) {
        let mut fields = json!({ "gpusPerWorker": 1, "checkpoint": { "enabled": false } });
        fields.as_object_mut().unwrap().extend(of.as_object().unwrap().clone());
        let job = serde_json::from_value(job(name, &fields)).unwrap();
        self.jobs.create(&PostParams::default(), &job).await.unwrap();
    }

    /// The number of a job's pods that have a node.
    async fn placed(&self, job: &str) -> usize {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        let pods = pods.list(&ListParams::default().labels(&format!("training-job={job}"))).await.unwrap();
        pods.iter().filter(|pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some())).count()
    }

    async fn runs(&self, job: &str) -> bool {
        self.jobs.get(job).await.unwrap().status.and_then(|status| status.state) == Some(State::Running)
    }

    /// The job reports that it finds no nodes, in a message that contains `part`.
    async fn unschedulable(&self, job: &str, part: &str) -> String {
        let mut last = None;
        let what = format!("{job} says: {part}");
        eventually(&what, SOON, async || {
            let status = self.jobs.get(job).await.unwrap().status?;
            let scheduled = status.conditions.into_iter().find(|condition| condition.type_ == "Scheduled")?;
            if last.as_ref() != Some(&scheduled.message) {
                println!("{job}: Scheduled: {} {}: {}", scheduled.status, scheduled.reason, scheduled.message);
                last = Some(scheduled.message.clone());
            }
            (scheduled.reason == "Unschedulable").then_some(scheduled.message).filter(|words| words.contains(part))
        })
        .await
    }

    /// Two jobs without a gang: neither runs, and both report what would help. Both are gone in the end.
    async fn both_hold_what_the_other_one_lacks(&self) {
        let names = ["one", "two"];
        // The order of their pods is chance. So each job gets one node first, and the other node when it has filled
        // that one.
        let nodes: Api<Node> = Api::all(self.client.clone());
        let open = async |node: &str, names: &[&str]| {
            let labels: Map<String, Value> = names.iter().map(|name| (format!("open-to-{name}"), json!(""))).collect();
            let patch = Patch::Merge(json!({ "metadata": { "labels": labels } }));
            nodes.patch(node, &PatchParams::default(), &patch).await.unwrap();
        };
        for (node, name) in NODES.into_iter().zip(names) {
            open(node, &[name]).await;
            let there = json!({ "gang": "none", "nodeSelector": { format!("open-to-{name}"): "" } });
            self.submit_one(name, &json!({ "numWorkers": WORKERS, "scheduling": there })).await;
        }
        let half = GPUS / NODES.len();
        for name in names {
            eventually("half of the GPUs are held", SOON, async || (self.placed(name).await == half).then_some(()))
                .await;
        }
        for node in NODES {
            open(node, &names).await;
        }
        let remedy = format!(
            "; {half} scheduled workers hold {half} idle GPUs; a queue (scheduling.queue) or a gang scheduler (scheduling.gang) \
             prevents this"
        );
        for name in names {
            let words = self.unschedulable(name, &remedy).await;
            assert!(words.contains("Insufficient nvidia.com/gpu"), "{words}");
            assert!(!self.runs(name).await);
        }
        self.remove(&names).await;
    }

    async fn remove(&self, names: &[&str]) {
        for name in names {
            self.jobs.delete(name, &DeleteParams::foreground()).await.unwrap();
        }
        eventually("they and their pods are gone", SOON, async || {
            let mut placed = 0;
            for name in names {
                placed += self.placed(name).await;
            }
            (self.jobs.list(&ListParams::default()).await.unwrap().items.is_empty() && placed == 0).then_some(())
        })
        .await;
    }

    /// For gangs of workers alone, and of several roles.
    async fn one_is_placed_whole_and_the_other_follows(&self, gang: &str, words: &str) {
        for of in gangs() {
            println!("{of}");
            self.one_is_placed_whole(gang, words, &of).await;
        }
    }

    /// One of two gangs has all of its pods. The other one has none, and says so in these words of its scheduler. It
    /// follows when the first one is suspended. The first one then waits in its turn, and follows when the other is
    /// gone.
    async fn one_is_placed_whole(&self, gang: &str, words: &str, of: &Value) {
        self.submit(["one", "two"], gang, of).await;
        let (first, second) = eventually("one of them runs", SOON, async || {
            if self.runs("one").await {
                return Some(("one", "two"));
            }
            self.runs("two").await.then_some(("two", "one"))
        })
        .await;
        self.unschedulable(second, words).await;
        assert_eq!((self.placed(first).await, self.placed(second).await), (WORKERS, 0));

        self.suspend(first, true).await;
        eventually("the other one runs", SOON, async || self.runs(second).await.then_some(())).await;
        self.suspend(first, false).await;
        self.unschedulable(first, words).await;
        assert_eq!((self.placed(first).await, self.placed(second).await), (0, WORKERS));

        self.jobs.delete(second, &DeleteParams::background()).await.unwrap();
        eventually("the first one runs again", SOON, async || self.runs(first).await.then_some(())).await;
        assert_eq!(self.placed(first).await, WORKERS);
        self.remove(&[first]).await;
    }

    /// An API server that knows the group but not the field of pods drops that field silently, as this policy does.
    async fn pods_whose_group_is_dropped_are_placed_one_by_one(&self) {
        self.cluster.kubectl_with(&["apply", "-f", "-"], DROPS_GROUPS);
        let template = json!({
            "schedulingGroup": { "podGroupName": "any" }, "restartPolicy": "Never",
            "containers": [{ "name": "any", "image": "none" }],
        });
        let probe = json!({
            "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": "dropped-training", "namespace": NAMESPACE },
            "spec": { "template": { "spec": template } },
        });
        eventually("the policy to be in force", SOON, async || {
            let dry = ["create", "--dry-run=server", "-o", "json", "-f", "-"];
            let made = self.cluster.kubectl_with(&dry, &probe.to_string());
            (!made.contains("schedulingGroup")).then_some(())
        })
        .await;
        // More pods than there is room for: the placed ones are not the whole gang.
        self.submit_one("dropped", &json!({ "numWorkers": GPUS + 1, "scheduling": { "gang": "native" } })).await;
        eventually("all but one to be placed", SOON, async || (self.placed("dropped").await == GPUS).then_some(()))
            .await;
        let words = "the API server has dropped schedulingGroup from the pods, so that they are placed one by one";
        let events: Api<Event> = Api::namespaced(self.client.clone(), NAMESPACE);
        let warned = eventually("the Event PlacedOneByOne", SOON, async || {
            let events = events.list(&ListParams::default()).await.unwrap().items;
            events.into_iter().find(|event| event.reason.as_deref() == Some("PlacedOneByOne"))
        });
        let warned = warned.await;
        assert_eq!(warned.type_.as_deref(), Some("Warning"));
        assert!(warned.note.as_ref().is_some_and(|note| note.contains(words)), "{warned:?}");
        eventually("the condition to say so", SOON, async || {
            let conditions = self.jobs.get("dropped").await.unwrap().status?.conditions;
            let says = |c: &Condition| c.reason == "GangSchedulerMissing" && c.message.contains(words);
            conditions.iter().any(says).then_some(())
        })
        .await;
        self.remove(&["dropped"]).await;
    }

    async fn suspend(&self, job: &str, suspend: bool) {
        let patch = Patch::Merge(json!({ "spec": { "suspend": suspend } }));
        self.jobs.patch(job, &PatchParams::default(), &patch).await.unwrap();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.operator.abort();
    }
}
