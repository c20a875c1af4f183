//! Nodes that fall silent, and an API server that is away. The tests have a cluster of their own, in which a node
//! counts as lost after 20 s. Elsewhere a busy machine would lose nodes by that.

use super::training::{Target, Training};
use super::wait::eventually;
use super::world::{SOON, Space, World, condition, index, is_built, worker};
use api::TrainingJobStatus;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use std::fmt::Write as _;
use std::io::Write;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use testkit::process::Signal;
use tokio::sync::{Mutex, MutexGuard};

const WORKERS: u32 = 4;

/// The cluster, for one test at a time. None where it can't be made, or is not this program's to break.
pub async fn world() -> Option<(&'static World, MutexGuard<'static, ()>)> {
    static WORLD: OnceLock<World> = OnceLock::new();
    static TURN: Mutex<()> = Mutex::const_new(());
    if !is_built() {
        return None;
    }
    let turn = TURN.lock().await;
    let world = WORLD.get_or_init(|| World::up("lost", &["--kcm-arg=--node-monitor-grace-period=20s"]));
    if world.cluster.name().is_none() {
        testkit::skipped("TRAININGJOB_TEST_KUBECONFIG names a cluster whose nodes are not ours to kill");
        return None;
    }
    Some((world, turn))
}

/// The minimum time that something is away, from a variable in seconds. The soak run sets it.
fn at_least(variable: &str) -> Duration {
    Duration::from_secs(std::env::var(variable).ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(0))
}

/// At the same time, one machine is cut off and another one dies. The first comes back later with all its processes
/// alive, and its pods need no confirmation. An administrator confirms the loss of the second one by a taint, and its
/// pods need not wait as long. Other pods take over, and programs of two attempts never live at once.
#[tokio::test]
async fn lost_node_is_not_a_failure() {
    let Some((world, _turn)) = world().await else { return };
    let space = world.space("lost", json!({})).await;
    // After the operator was placed on node0.
    for node in ["1", "2"] {
        world.cluster.devcluster(&["node", "add", node]);
    }
    // The least that Kubernetes lets count, because its own 20 s are within it. The other is longer than any wait here.
    let (cut, lost) = tokio::join!(on_both(&space, "cut", "node1", 50), on_both(&space, "lost", "node2", 3600));
    let at = Instant::now();
    world.cluster.devcluster(&["node", "cut", "1"]);
    world.cluster.devcluster(&["node", "lose", "2"]);
    let waited_for = async { cut.survives(at, cut.is_told_of(at).await).await };
    let vouched_for = async {
        let reported = lost.is_told_of(at).await;
        vouch_for(&space, lost.node).await;
        lost.survives(at, reported).await;
    };
    tokio::join!(waited_for, vouched_for);

    // The replacements are at work meanwhile. With CUT_SECONDS, the node does not come back before that time.
    tokio::time::sleep(at_least("CUT_SECONDS").saturating_sub(at.elapsed())).await;
    world.cluster.devcluster(&["node", "mend", "1"]);
    eventually("what came back with the node to end", SOON, async || {
        let members = cut.gang.members();
        (!members.iter().any(|member| cut.gone.iter().any(|pod| pod.uid().as_ref() == Some(&member.pod)))).then_some(())
    })
    .await;
    for trial in [cut, lost] {
        trial.completes().await;
    }
    let nodes = Api::<Node>::all(space.client.clone());
    eventually("node1 to be ready again", SOON, async || is_ready(&nodes.get("node1").await.ok()?).then_some(())).await;
    space.end().await;
}

/// A gang with some workers on a node that goes.
struct Trial {
    gang: Training,
    node: &'static str,
    /// The pods on that node.
    gone: Vec<Pod>,
    saved: u32,
}

/// Starts a gang on node0 and this node.
async fn on_both(space: &Space, name: &str, node: &'static str, lost_seconds: u32) -> Trial {
    let host = "kubernetes.io/hostname";
    let affinity = json!({
        "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [{
            "matchExpressions": [{ "key": host, "operator": "In", "values": ["node0", node] }],
        }] } },
        "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [{ "weight": 100, "podAffinityTerm": {
            "topologyKey": host, "labelSelector": { "matchLabels": { "training-job": name } },
        } }] },
    });
    let fields = json!({
        "scheduling": { "affinity": affinity },
        "failurePolicy": { "backoffLimit": 100, "nodeLostSeconds": lost_seconds },
    });
    let gang = Training::submit(space, name, WORKERS, json!({}), fields).await;
    let met = gang.meets(1).await;
    let saved = gang.saves(met.from + 5).await;
    let is_there = |pod: &Pod| pod.spec.as_ref().unwrap().node_name.as_deref() == Some(node);
    let gone: Vec<_> = gang.workers().into_values().filter(is_there).collect();
    assert!(!gone.is_empty() && gone.len() < 4, "workers of {name} on both nodes");
    Trial { gang, node, gone, saved }
}

/// Confirms with a taint that a node is off, as an administrator does.
async fn vouch_for(space: &Space, node: &str) {
    let taint = json!({ "key": "node.kubernetes.io/out-of-service", "value": "dead", "effect": "NoExecute" });
    let patch = json!({ "spec": { "taints": [taint] } });
    let nodes = Api::<Node>::all(space.client.clone());
    nodes.patch(node, &PatchParams::default(), &Patch::Strategic(patch)).await.unwrap();
}

impl Trial {
    /// Waits until the gang trains on without the node.
    async fn survives(&self, at: Instant, reported: Duration) {
        let (attempt, executed) = self.gang.runs_next(1, WORKERS).await;
        let met = self.gang.meets(attempt).await;
        assert!(met.from >= self.saved, "resumed from {}, though step {} was whole", met.from, self.saved);
        self.gang.saves(met.from + 5).await;
        let [reported, executed, met] = [reported, executed - at, met.at - at].map(|time| time.as_secs_f64());
        let line = format!(
            "| {} is {}, with {} of 4 workers, leader among them: {} | told after {reported:.1} s | exec'ed {executed:.1} s \
             | met {met:.1} s |",
            self.node,
            self.gang.name,
            self.gone.len(),
            self.gone.iter().any(|pod| worker(pod) == 0),
        );
        let _ = writeln!(std::io::stderr(), "{line}");
    }

    /// Long before Kubernetes removes the pods, the status names the member for which the gang waits.
    async fn is_told_of(&self, at: Instant) -> Duration {
        let words = format!("node {}): its node has not answered since", self.node);
        let is_reported = |status: &TrainingJobStatus| condition(status, "Running").message.contains(&words);
        self.gang.until("the silence of the node to be told", is_reported).await;
        at.elapsed()
    }

    async fn completes(&self) {
        let status = self.gang.completes(WORKERS).await;
        assert_eq!((status.restart_count, status.disruption_count, status.incarnation), (Some(1), Some(1), Some(1)));
        let [restart] = &status.restarts[..] else { panic!("{:?}", status.restarts) };
        assert_eq!((restart.reason.as_str(), restart.disruption), ("NodeLost", true), "{} with {restart:?}", self.node);
        assert!(restart.to_string().contains(&format!("node {}", self.node)), "{}", restart.message);
        let workers = self.gang.pods().iter().filter(|pod| index(pod).is_some()).count();
        assert_eq!(workers, 4 + self.gone.len(), "nobody else's pod is made again");
    }
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
}

/// The API server is away while a gang loses a rank. The agents do not need it, and afterwards the status reports what
/// happened.
#[tokio::test]
async fn gang_restarts_without_the_api_server() {
    let Some((world, _turn)) = world().await else { return };
    let space = world.space("outage", json!({})).await;
    let gang = Training::submit(&space, "outage", WORKERS, json!({}), json!({})).await;
    let met = gang.meets(1).await;
    let saved = gang.saves(met.from + 5).await;

    let away = Away::begin(world);
    let at = Instant::now();
    gang.strike(Target::Rank(1), Signal::KILL);
    let executed = gang.runs(2, WORKERS).await;
    let met = gang.meets(2).await;
    assert!(met.from >= saved, "resumed from {}, though step {saved} was whole", met.from);
    let saved = gang.saves(met.from + 5).await;
    assert!(saved > met.from, "it trains on");
    tokio::time::sleep(at_least("AWAY_SECONDS").saturating_sub(at.elapsed())).await;
    drop(away);
    let mut line = String::new();
    let [away, executed, met] = [at.elapsed(), executed - at, met.at - at].map(|time| time.as_secs_f64());
    let _ =
        write!(line, "| a rank is killed while the API server is away for {away:.0} s | {executed:.1} | {met:.1} |");
    let _ = writeln!(std::io::stderr(), "{line}");

    gang.until("the second attempt to be told", |status| status.attempt == Some(2)).await;
    let status = gang.completes(WORKERS).await;
    assert_eq!((status.attempt, status.restart_count, status.incarnation), (Some(2), Some(1), Some(1)));
    let [restart] = &status.restarts[..] else { panic!("{:?}", status.restarts) };
    assert_eq!((restart.worker, restart.attempt, restart.disruption), (Some(1), 1, false), "{restart:?}");
    space.end().await;
}

/// The API server is stopped until this is dropped. A panic drops it, too, because the cluster's content is then looked
/// at.
struct Away(&'static World);

impl Away {
    fn begin(world: &'static World) -> Self {
        world.cluster.devcluster(&["apiserver", "stop"]);
        Self(world)
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Whatever this reports, the first panic is the one to read.
            let _ = std::panic::catch_unwind(|| self.0.cluster.devcluster(&["apiserver", "start"]));
        } else {
            self.0.cluster.devcluster(&["apiserver", "start"]);
        }
    }
}
