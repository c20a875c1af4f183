//! Gangs that restart in place: real pods, a real kubelet, and tests/programs/gang.py instead of torchrun.
//!
//! The time of each restart is printed. docs/failures.md has the figures for torchrun, whose ranks have torch to
//! import.

use super::training::{Target, Training};
use super::wait::eventually;
use super::world::{Job, SOON, condition, index, training, world};
use api::State::{Completed, Running};
use api::{TrainingJob, TrainingJobStatus};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job as KubernetesJob;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use lifecycle::goodput;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::Write;
use std::time::{Duration, Instant};
use testkit::process::Signal;

const WORKERS: u32 = 4;

/// gang.py stands in for torchrun in the tests of gangs. The same ranks under both do the same and suffer the same.
#[tokio::test]
async fn test_launcher_behaves_like_torchrun() {
    let Some(world) = world() else { return };
    let space = world.space("launchers", json!({})).await;
    let fields = json!({ "command": ["python3", "/programs/launchers.py"], "numWorkers": 1 });
    let job = space.submit("launchers", fields).await;
    job.state(Completed).await;
    let facts: Value = eventually("the facts in its log", SOON, async || {
        let log = space.logs(&job.workers()[&0].name_any());
        log.split(|byte| *byte == b'\n').rev().find_map(|line| serde_json::from_slice(line).ok())
    })
    .await;
    let torchrun = facts["torchrun"].as_object().unwrap();
    for (scenario, expected) in torchrun {
        assert_eq!(&facts["gang.py"][scenario], expected, "{scenario}");
    }
    let exits: Vec<_> = torchrun.values().map(|facts| facts["exit"].as_i64().unwrap()).collect();
    assert_eq!(exits.iter().filter(|code| **code == 1).count(), 4, "of the scenarios one succeeds: {torchrun:?}");
    let ranks = torchrun.values().flat_map(|facts| facts["ranks"].as_array().unwrap());
    assert_eq!(ranks.filter(|rank| rank["own session"] == true && rank["left"] == false).count(), 10, "{torchrun:?}");
    space.end().await;
}

/// A fault of a gang's processes, and how the status names it.
struct Fault {
    what: &'static str,
    target: Target,
    signal: Signal,
    /// The worker that is named as the first cause.
    worker: u32,
    /// The reason, where it is one of more than this fault.
    reason: &'static str,
}

const FAULTS: [Fault; 5] = [
    Fault { what: "SIGKILL of a rank", target: Target::Rank(1), signal: Signal::KILL, worker: 1, reason: "Signal" },
    Fault { what: "SIGTERM of a rank", target: Target::Rank(3), signal: Signal::TERM, worker: 3, reason: "ExitCode" },
    Fault {
        what: "SIGKILL of an agent (PID 1)",
        target: Target::Agent(2),
        signal: Signal::KILL,
        worker: 2,
        reason: "Signal",
    },
    Fault {
        what: "SIGKILL of the leader's agent",
        target: Target::Agent(0),
        signal: Signal::KILL,
        worker: 0,
        reason: "Signal",
    },
    Fault {
        what: "SIGKILL of every process of a container",
        target: Target::Container(3),
        signal: Signal::KILL,
        worker: 3,
        reason: "Signal",
    },
];
/// tests/agents/gang.rs proves in seconds what takes a timeout of 30 s here.
const STOP: Fault = Fault {
    what: "SIGSTOP of a rank, with hang.timeoutSeconds: 30",
    target: Target::Rank(2),
    signal: Signal::STOP,
    worker: 2,
    reason: "Hang",
};

/// Any end in a pod, or a user's request, starts the programs again in the existing pods, from the newest checkpoint.
/// All pods are recreated only when the Job is deleted.
#[tokio::test]
async fn processes_restart_in_existing_pods() {
    let Some(world) = world() else { return };
    let space = world.space("in-place", json!({})).await;
    let gang = Training::submit(&space, "in-place", WORKERS, json!({}), json!({})).await;
    let mut from = gang.meets(1).await.from;
    let mut table = String::from("| what | exec'ed everywhere, s | all ranks meet, s |\n|---|---|---|\n");
    let mut row = |what: &str, at: Instant, executed: Instant, met: Instant| {
        let [executed, met] = [executed, met].map(|time| (time - at).as_secs_f64());
        let _ = writeln!(table, "| {what} | {executed:.1} | {met:.1} |");
    };
    for (attempt, fault) in (2..).zip(&FAULTS) {
        let saved = gang.saves(from + 5).await;
        let at = Instant::now();
        gang.strike(fault.target, fault.signal);
        let executed = gang.runs(attempt, WORKERS).await;
        let met = gang.meets(attempt).await;
        assert!(met.from >= saved, "{}: resumed from {}, though step {saved} was whole", fault.what, met.from);
        row(fault.what, at, executed, met.at);
        from = met.from;
        // A report that the operator has not requested yet is lost with the leader's agent, which the next fault may
        // strike.
        gang.until(&format!("attempt {attempt} in the status"), |status| status.attempt == Some(attempt)).await;
    }
    let restarts = |pods: &[Pod]| pods.iter().filter_map(|pod| Some(training(pod)?.restart_count)).sum::<i32>();
    gang.eventually("three containers to have come back", async || (restarts(&gang.pods()) == 3).then_some(())).await;
    assert_eq!(pods_ever(&gang), 4, "no pod was made again");

    let saved = gang.saves(from + 5).await;
    let at = Instant::now();
    ask_for_restart(&gang).await;
    let executed = gang.runs(7, WORKERS).await;
    let met = gang.meets(7).await;
    assert!(met.from >= saved, "resumed from {}, though step {saved} was whole", met.from);
    row("a restart is asked for", at, executed, met.at);
    assert_eq!(pods_ever(&gang), 4, "no pod was made again");
    // When all pods go, nothing is left of an attempt that ended before the operator heard of it.
    gang.until("attempt 7 in the status", |status| status.attempt == Some(7)).await;

    // The operator acts where no gang is left.
    let saved = gang.saves(met.from + 5).await;
    let at = Instant::now();
    let name = format!("{}-training", gang.name);
    space.api::<KubernetesJob>().delete(&name, &DeleteParams::background()).await.unwrap();
    let (attempt, executed) = gang.runs_next(7, WORKERS).await;
    let met = gang.meets(attempt).await;
    assert!(met.from >= saved, "resumed from {}, though step {saved} was whole", met.from);
    row("its Job is deleted: all pods are made again", at, executed, met.at);
    gang.saves(met.from + 5).await;
    let status = gang.completes(WORKERS).await;
    let _ = writeln!(std::io::stderr(), "{table}");

    // The requested restart is no failure.
    assert_eq!((status.attempt, status.restart_count, status.incarnation), (Some(attempt), Some(6), Some(2)));
    for (fault, restart) in FAULTS.iter().zip(&status.restarts) {
        // A peer may fail by the closed connection before the launcher reports the rank that SIGTERM ended. The peer is
        // then named.
        if fault.signal != Signal::TERM {
            let named = (restart.worker, restart.reason.as_str(), restart.disruption);
            assert_eq!(named, (Some(fault.worker), fault.reason, false), "{}: {restart:?}", fault.what);
        }
        assert!(restart.pod.is_some() && restart.node.is_some(), "{restart:?}");
    }
    assert_eq!(status.restarts[FAULTS.len()].reason.as_str(), "Restarted");
    let goodput: f64 =
        status.goodput.as_deref().and_then(|text| text.trim_end_matches(['%', ' ']).parse().ok()).unwrap();
    assert!((1.0..=100.0).contains(&goodput), "{goodput} %");
    space.end().await;
}

/// As the plugin does it: the request is in an annotation, and a changed pod has its files updated at once.
async fn ask_for_restart(gang: &Training) {
    let space = &gang.space;
    let patch = Patch::Merge(json!({ "metadata": { "annotations": { "ml.example.com/restart-requested": "once" } } }));
    space.api::<TrainingJob>().patch(&gang.name, &PatchParams::default(), &patch).await.unwrap();
    let config = format!("{}-config", gang.name);
    gang.eventually("the ConfigMap to say so", async || {
        let config = space.api::<ConfigMap>().get(&config).await.unwrap();
        config.data?.get("gang.json")?.contains(r#""restartRequested":"once""#).then_some(())
    })
    .await;
    let look = Patch::Merge(json!({ "metadata": { "annotations": { "ml.example.com/look-again": "once" } } }));
    let leader = gang.workers()[&0].name_any();
    space.api::<Pod>().patch(&leader, &PatchParams::default(), &look).await.unwrap();
}

/// The number of pods that its workers ever had.
fn pods_ever(job: &Job) -> usize {
    job.pods().iter().filter(|pod| index(pod).is_some()).count()
}

/// One fault after another, as in a bad week, for `GANG_STORM_SECONDS`.
#[tokio::test]
#[ignore = "soak: faults for 20 minutes; proved in make test by processes_restart_in_existing_pods"]
async fn gang_keeps_training_through_a_storm_of_faults() {
    let Some(world) = world() else { return };
    let seconds = std::env::var("GANG_STORM_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1200);
    let space = world.space("storm", json!({})).await;
    let hang = json!({ "timeoutSeconds": 30, "action": "Restart" });
    let fields = json!({ "failurePolicy": { "backoffLimit": 1000, "hang": hang } });
    let gang = Training::submit(&space, "storm", WORKERS, json!({ "STEP_SECONDS": "0.5" }), fields).await;
    let (length, began) = (Duration::from_secs(seconds), Instant::now());
    let (mut attempt, mut count, mut from) = (1, 0, gang.meets(1).await.from);
    for fault in FAULTS.iter().chain([&STOP]).cycle() {
        let saved = gang.saves(from + 5).await;
        // One a minute.
        let due = Duration::from_secs(60) * (count + 1);
        if due > length {
            break;
        }
        tokio::time::sleep(due.saturating_sub(began.elapsed())).await;
        gang.strike(fault.target, fault.signal);
        (attempt, _) = gang.runs_next(attempt, WORKERS).await;
        from = gang.meets(attempt).await.from;
        assert!(from >= saved, "{}: resumed from {from}, though step {saved} was whole", fault.what);
        count += 1;
    }
    let last = |status: &TrainingJobStatus| status.attempt == Some(attempt) && status.state == Some(Running);
    let status = gang.until("the last attempt", last).await;
    let goodput = 100.0 * goodput(&status, Timestamp::now()).unwrap();
    let _ = writeln!(std::io::stderr(), "{count} faults in {length:?}: goodput {goodput:.0} %");
    assert!(goodput > 50.0, "goodput {goodput:.0} %");
    assert_eq!(pods_ever(&gang), 4, "no pod was made again");
    gang.completes(WORKERS).await;
    space.end().await;
}

/// A worker whose pod goes is replaced, and no other pod is recreated.
#[tokio::test]
async fn deleted_or_evicted_worker_is_replaced_alone() {
    let Some(world) = world() else { return };
    let space = world.space("replaced", json!({})).await;
    let gang = Training::submit(&space, "replaced", WORKERS, json!({}), json!({})).await;
    let (mut attempt, mut from) = (1, gang.meets(1).await.from);
    let mut table = String::from("| what | exec'ed everywhere, s | all ranks meet, s |\n|---|---|---|\n");
    let faults = [
        ("its leader's pod is deleted", 0, "PodDeleted"),
        ("another pod is deleted", 2, "PodDeleted"),
        ("a pod is evicted, as by a drain", 3, "Evicted"),
    ];
    for (made, (what, worker, reason)) in (5..).zip(faults) {
        let saved = gang.saves(from + 5).await;
        let (pods, pod, at) = (space.api::<Pod>(), gang.workers()[&worker].name_any(), Instant::now());
        if reason == "Evicted" {
            pods.evict(&pod, &EvictParams::default()).await.unwrap();
        } else {
            pods.delete(&pod, &DeleteParams::default()).await.unwrap();
        }
        let executed;
        (attempt, executed) = gang.runs_next(attempt, WORKERS).await;
        let met = gang.meets(attempt).await;
        assert!(met.from >= saved, "{what}: resumed from {}, though step {saved} was whole", met.from);
        assert_eq!(pods_ever(&gang), made, "{what}: one pod is made again");
        let [executed, together] = [executed, met.at].map(|time| (time - at).as_secs_f64());
        let _ = writeln!(table, "| {what} | {executed:.1} | {together:.1} |");
        from = met.from;
        // The operator names one cause for everything that happens between two of its looks.
        gang.until(&format!("attempt {attempt} in the status"), |status| status.attempt == Some(attempt)).await;
    }
    let status = gang.completes(WORKERS).await;
    let _ = writeln!(std::io::stderr(), "{table}");
    assert_eq!((status.attempt, status.restart_count), (Some(attempt), Some(3)));
    let named: Vec<_> = status.restarts.iter().map(|restart| (restart.worker, restart.reason.as_str())).collect();
    assert_eq!(named, faults.map(|(_, worker, reason)| (Some(worker), reason)), "{:?}", status.restarts);
    space.end().await;
}

/// More workers, then fewer. Each time they resume from the newest checkpoint, in the existing pods, and nothing has
/// failed.
#[tokio::test]
async fn resized_gang_resumes_in_its_pods() {
    let Some(world) = world() else { return };
    let space = world.space("elastic", json!({})).await;
    let elastic = json!({ "elastic": { "maxWorkers": 4, "waitSeconds": 5 } });
    let gang = Training::submit(&space, "elastic", 2, json!({}), elastic).await;
    let mut from = gang.meets(1).await.from;
    let mut table = String::from("| workers | all ranks meet, s |\n|---|---|\n");
    for (attempt, workers) in [(2, 4), (3, 1)] {
        let saved = gang.saves(from + 5).await;
        let (at, replicas) = (Instant::now(), Patch::Merge(json!({ "spec": { "replicas": workers } })));
        space.api::<TrainingJob>().patch_scale("elastic", &PatchParams::default(), &replicas).await.unwrap();
        let met = gang.meets(attempt).await;
        assert!(met.from >= saved, "resumed from {}, though step {saved} was whole", met.from);
        gang.runs(attempt, workers).await;
        let _ = writeln!(table, "| {workers} | {:.1} |", (met.at - at).as_secs_f64());
        from = met.from;
    }
    let pods = space.api::<Pod>();
    gang.eventually("the pods that are too many to go", async || {
        let pods = pods.list(&ListParams::default().labels("training-job=elastic")).await.unwrap().items;
        (pods.iter().filter(|pod| index(pod).is_some()).count() == 1).then_some(())
    })
    .await;
    gang.saves(from + 5).await;
    let status = gang.completes(1).await;
    let _ = writeln!(std::io::stderr(), "{table}");
    assert_eq!((status.attempt, status.incarnation, status.restart_count), (Some(3), Some(1), Some(0)));
    let reasons: Vec<_> = status.restarts.iter().map(|restart| restart.reason.as_str()).collect();
    assert_eq!(reasons, ["Resized", "Resized"]);
    assert_eq!(pods_ever(&gang), 4, "no pod was made again");
    space.end().await;
}

/// Three of four find room, one of them only after the last one gives up its own. They begin without the fourth, and
/// take it in when it finds room.
#[tokio::test]
async fn gang_starts_with_the_workers_that_fit_and_grows_later() {
    let Some(world) = world() else { return };
    let space = world.space("room", json!({})).await;
    // The pods wait for a scheduler, which is this test.
    let fields = json!({
        "elastic": { "minWorkers": 2, "maxWorkers": 4, "waitSeconds": 5 }, "scheduling": { "schedulerName": "by-hand" },
    });
    let gang = Training::submit(&space, "room", 4, json!({}), fields).await;
    let mut last = String::new();
    for worker in [1, 2, 3] {
        last = place(&gang, worker, "").await;
    }
    gang.eventually("the last one to give up its place", async || {
        let pod = space.api::<Pod>().get_opt(&last).await.unwrap();
        pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some()).then_some(())
    })
    .await;
    place(&gang, 0, "").await;
    let status = gang.until("to run with three", |status| status.state == Some(Running)).await;
    assert_eq!(status.elastic.as_ref().unwrap().workers, 3);
    assert!(condition(&status, "Scheduled").message.contains("3 of 4 workers"), "{:?}", status.conditions);
    let met = gang.meets(1).await;
    gang.runs(1, 3).await;
    let saved = gang.saves(met.from + 5).await;
    place(&gang, 3, &last).await;
    let met = gang.meets(2).await;
    assert!(met.from >= saved, "resumed from {}, though step {saved} was whole", met.from);
    gang.runs(2, 4).await;
    let status = gang.completes(4).await;
    assert_eq!((status.attempt, status.incarnation, status.restart_count), (Some(2), Some(1), Some(0)));
    assert_eq!(status.workers.unwrap().succeeded, 4);
    space.end().await;
}

/// Gives a node to a worker's pod other than `but`. Returns the pod's name.
async fn place(job: &Job, worker: u32, but: &str) -> String {
    let pod = job.pod(1, worker, "to be there", |pod| pod.name_any() != but).await.name_any();
    let nodes = Api::<Node>::all(job.space.client.clone()).list(&ListParams::default()).await.unwrap();
    let target = json!({ "apiVersion": "v1", "kind": "Node", "name": nodes.items[0].name_any() });
    let binding = json!({ "apiVersion": "v1", "kind": "Binding", "metadata": { "name": pod }, "target": target });
    let pods = job.space.api::<Pod>();
    pods.create_subresource::<_, Value>("binding", &pod, &PostParams::default(), &binding).await.unwrap();
    pod
}
