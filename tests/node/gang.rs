//! Gangs that restart where they are: real pods, a real kubelet, torchrun.
//!
//! How long each restart took is printed: docs/failures.md has what was seen.

use super::checkpoints::{job_of, last_pods, logs, weights};
use super::world::{Job, SOON, Space, World, condition, merged, training, world};
use super::{folder, wait::eventually};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job as KubernetesJob;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};
use trainingjob_operator::api::Reason;
use trainingjob_operator::api::State::{Completed, Running};
use trainingjob_operator::api::{TrainingJob, TrainingJobStatus};
use trainingjob_operator::lifecycle::goodput;

const WORKERS: i32 = 4;

/// A process of a worker.
#[derive(Debug)]
struct Process {
    pid: Pid,
    /// UID of its pod.
    pod: String,
    worker: i32,
    attempt: i32,
    is_agent: bool,
    /// Which the launcher has started for it, and which reports it.
    rank: Option<i32>,
}

/// Every process of a job's workers, as their node sees them.
fn processes(job: &Job) -> Vec<Process> {
    let uids: BTreeMap<String, i32> = job.pods().iter().map(|pod| (pod.uid().unwrap(), super::worker(pod))).collect();
    let of_entry = |entry: fs::DirEntry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let environment = fs::read(entry.path().join("environ")).ok()?;
        let variables: BTreeMap<&str, &str> = environment
            .split(|byte| *byte == 0)
            .filter_map(|variable| std::str::from_utf8(variable).ok()?.split_once('='))
            .collect();
        let command = fs::read(entry.path().join("cmdline")).ok()?;
        Some(Process {
            pid: Pid::from_raw(pid),
            pod: (*variables.get("POD_UID")?).to_owned(),
            worker: *uids.get(*variables.get("POD_UID")?)?,
            attempt: variables.get("ATTEMPT").and_then(|attempt| attempt.parse().ok()).unwrap_or(0),
            is_agent: command.starts_with(b"/trainingjob/agent"),
            rank: variables.get("LOCAL_RANK").and(variables.get("RANK")).and_then(|rank| rank.parse().ok()),
        })
    };
    fs::read_dir("/proc").unwrap().filter_map(|entry| of_entry(entry.ok()?)).collect()
}

/// When a program of this attempt runs in every worker.
async fn executed_everywhere(job: &Job, attempt: i32) -> Instant {
    eventually(&format!("attempt {attempt} in every worker"), SOON, async || {
        let all = processes(job);
        let runs = |worker| all.iter().any(|p| p.worker == worker && p.attempt == attempt && !p.is_agent);
        let strays: Vec<_> = all.iter().filter(|p| !p.is_agent && p.attempt != attempt && p.attempt != 0).collect();
        let is_everywhere = (0..WORKERS).all(runs);
        assert!(!is_everywhere || strays.is_empty(), "two attempts at once: {strays:?}");
        is_everywhere.then(Instant::now)
    })
    .await
}

/// The attempt after this one, when a program of it runs in every worker. A new leader passes over a number that its predecessor
/// may have given out.
async fn next_executed_everywhere(job: &Job, last: i32) -> (i32, Instant) {
    let next = eventually(&format!("an attempt after {last}"), SOON, async || {
        let all = processes(job);
        let is_everywhere = |attempt: &i32| {
            (0..WORKERS).all(|worker| all.iter().any(|p| p.worker == worker && p.attempt == *attempt && !p.is_agent))
        };
        all.iter().filter(|p| p.attempt > last).map(|p| p.attempt).find(is_everywhere)
    })
    .await;
    (next, executed_everywhere(job, next).await)
}

/// The lines of a file in the job's claim: attempt, and the step that it has gone on from.
async fn history(job: &Job) -> Vec<(i32, u32)> {
    let claim = format!("{}-checkpoints", job.name);
    let file = folder(&job.space, &claim).await.find(|file| file.0 == "history");
    file.map(|(_, file)| read_history(&file)).unwrap_or_default()
}

fn read_history(file: &Path) -> Vec<(i32, u32)> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = |line: &str| line.split_once(' ').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    text.lines().filter_map(line).collect()
}

/// When all ranks of an attempt have met, and what it has gone on from.
async fn stepping(job: &Job, attempt: i32) -> (Instant, u32) {
    let end = Instant::now() + SOON;
    loop {
        let lines = history(job).await;
        if let Some(line) = lines.iter().find(|line| line.0 == attempt) {
            return (Instant::now(), line.1);
        }
        if Instant::now() > end || lines.iter().any(|line| line.0 > attempt) {
            job.explain(&format!("waited for the ranks of attempt {attempt} to meet: {lines:?}"));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// What is done to a gang.
struct Fault {
    what: &'static str,
    strikes: fn(&Process) -> bool,
    /// The worker that is named as the first cause.
    worker: i32,
}

impl Fault {
    fn signal(&self) -> Signal {
        let signals = [Signal::SIGTERM, Signal::SIGSTOP];
        signals.into_iter().find(|signal| self.what.starts_with(signal.as_str())).unwrap_or(Signal::SIGKILL)
    }
}

const FAULTS: [Fault; 6] = [
    Fault { what: "SIGKILL of a rank", strikes: |p| p.rank == Some(1), worker: 1 },
    Fault { what: "SIGTERM of a rank, which exits for it", strikes: |p| p.rank == Some(3), worker: 3 },
    Fault { what: "SIGSTOP of a rank, with hang.timeoutSeconds: 30", strikes: |p| p.rank == Some(2), worker: 2 },
    Fault { what: "SIGKILL of an agent (PID 1)", strikes: |p| p.worker == 2 && p.is_agent, worker: 2 },
    Fault { what: "SIGKILL of the leader's agent", strikes: |p| p.worker == 0 && p.is_agent, worker: 0 },
    Fault { what: "SIGKILL of every process of a container", strikes: |p| p.worker == 3, worker: 3 },
];

/// No pod is made again, whatever ends in it, and the weights are those of an undisturbed run.
#[tokio::test]
async fn processes_are_started_again_in_the_pods_that_exist() {
    let Some(world) = world() else { return };
    let space = world.space("in-place", json!({})).await;
    let expected = undisturbed(&space).await;
    let (mut job, mut from) = begun(&space, "in-place", json!({})).await;
    let mut table = String::from("| what | exec'ed everywhere, s | all ranks meet, s |\n|---|---|---|\n");
    let mut killed = None;
    for (attempt, fault) in (1..).zip(&FAULTS) {
        // The next attempt is to have something newer to go on from.
        newer(&job, from + 5).await;
        let struck: Vec<_> = processes(&job).into_iter().filter(|p| (fault.strikes)(p)).collect();
        assert!(!struck.is_empty(), "{}", fault.what);
        let at = Instant::now();
        for process in struck {
            // With an agent those after it are gone already.
            let _ = kill(process.pid, fault.signal());
        }
        let executed = executed_everywhere(&job, attempt + 1).await - at;
        let (met, next) = stepping(&job, attempt + 1).await;
        assert!(next >= from + 5, "{}: gone on from {next}, though step {} was whole", fault.what, from + 5);
        from = next;
        let took = [executed, met - at].map(|time| time.as_secs_f64());
        killed.get_or_insert(took);
        table += &format!("| {} | {:.1} | {:.1} |\n", fault.what, took[0], took[1]);
    }
    let of_workers = || job.pods().into_iter().filter(|pod| super::worker(pod) >= 0);
    assert_eq!(of_workers().count(), 4, "no pod was made again");
    let restarts: i32 = of_workers().filter_map(|pod| Some(training(&pod)?.restart_count)).sum();
    assert_eq!(restarts, 3, "containers that were killed came back");

    // What the same costs where all pods are made again, as the operator does it where no gang is left.
    newer(&job, from + 5).await;
    let at = Instant::now();
    let name = format!("{}-training", job.name);
    space.api::<KubernetesJob>().delete(&name, &DeleteParams::background()).await.unwrap();
    let (attempt, executed) = next_executed_everywhere(&job, 7).await;
    let (met, _) = stepping(&job, attempt).await;
    let took = [executed - at, met - at].map(|time| time.as_secs_f64());
    table += &format!("| its Job is deleted: all pods are made again | {:.1} | {:.1} |\n", took[0], took[1]);
    let [executed, met] = [0, 1].map(|at| took[at] / killed.unwrap()[at]);
    table += &format!(
        "\nIn the pods that exist a killed rank is exec'ed {executed:.1} times and meets {met:.1} times as soon.\n"
    );
    let status = job.state(Completed).await;
    let _ = writeln!(std::io::stderr(), "{table}");

    assert_eq!((status.attempt, status.restart_count), (Some(attempt), Some(7)));
    assert_eq!(status.incarnation, Some(2));
    for (fault, restart) in FAULTS.iter().zip(&status.restarts) {
        assert_eq!((restart.worker, restart.disruption), (Some(fault.worker), false), "{}: {restart:?}", fault.what);
        assert!(restart.pod.is_some() && restart.node.is_some(), "{restart:?}");
        let hangs = fault.what.starts_with("SIGSTOP");
        assert_eq!(restart.reason == Reason::Hang, hangs, "{restart:?}");
        assert!(!hangs || (restart.rank == Some(2) && restart.message.contains("stopped (SIGSTOP)")), "{restart:?}");
    }
    for log in logs(&space, &job).await {
        assert_eq!(weights(&log), expected);
    }
    space.end().await;
}

/// One fault after another, which is what a bad week looks like. `GANG_STORM_SECONDS` says for how long; without it the faults of the
/// test above are the short form.
#[tokio::test]
async fn a_gang_trains_on_through_a_storm() {
    let Some(world) = world() else { return };
    let Some(seconds) = std::env::var("GANG_STORM_SECONDS").ok().and_then(|text| text.parse().ok()) else {
        return; // make soak sets it
    };
    let space = world.space("storm", json!({})).await;
    let mut job = submit_four(&space, "storm", merged(env("0.5"), &json!({ "STEPS": "1000000" })), json!({})).await;
    job.state(Running).await;
    let (length, began) = (Duration::from_secs(seconds), Instant::now());
    let (mut attempt, mut faults, mut from) = (1, 0_usize, stepping(&job, 1).await.1);
    while began.elapsed() < length {
        let fault = &FAULTS[faults % FAULTS.len()];
        newer(&job, from + 5).await;
        // One a minute.
        let due = Duration::from_secs(60) * u32::try_from(faults + 1).unwrap();
        tokio::time::sleep(due.saturating_sub(began.elapsed())).await;
        for process in processes(&job).into_iter().filter(|p| (fault.strikes)(p)) {
            let _ = kill(process.pid, fault.signal());
        }
        (attempt, _) = next_executed_everywhere(&job, attempt).await;
        let (_, next) = stepping(&job, attempt).await;
        assert!(next >= from + 5, "{}: gone on from {next}, though step {} was whole", fault.what, from + 5);
        (from, faults) = (next, faults + 1);
    }
    let told = |status: &TrainingJobStatus| status.attempt == Some(attempt) && status.state == Some(Running);
    let status = job.until("the last attempt", told).await;
    let goodput = 100.0 * goodput(&status, Timestamp::now()).unwrap();
    let pods = job.pods().iter().filter(|pod| super::worker(pod) >= 0).count();
    let _ = writeln!(std::io::stderr(), "{faults} faults in {length:?}: goodput {goodput:.0} %, {pods} pods ever");
    assert_eq!(pods, 4, "no pod was made again");
    space.end().await;
}

/// The plugin asks, the operator tells the leader, and all start again where they are, from what they have saved.
#[tokio::test]
async fn a_restart_that_is_asked_for_happens_in_the_pods_that_exist() {
    let Some(world) = world() else { return };
    let space = world.space("asked", json!({})).await;
    let (mut job, from) = begun(&space, "asked", json!({})).await;
    newer(&job, from + 5).await;
    let at = Instant::now();
    let annotations = json!({ "ml.example.com/restart-requested": "once" });
    let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
    space.api::<TrainingJob>().patch("asked", &PatchParams::default(), &patch).await.unwrap();
    // As the plugin does it: a pod that changes has its files brought up to date at once.
    let first = job.pods().into_iter().find(|pod| super::worker(pod) == 0).unwrap();
    eventually("the ConfigMap to tell", SOON, async || {
        let config = space.api::<ConfigMap>().get("asked-config").await.unwrap();
        config.data?.get("gang.json")?.contains(r#""restartRequested":"once""#).then_some(())
    })
    .await;
    let look = Patch::Merge(json!({ "metadata": { "annotations": { "ml.example.com/look-again": "once" } } }));
    space.api::<Pod>().patch(&first.name_any(), &PatchParams::default(), &look).await.unwrap();
    executed_everywhere(&job, 2).await;
    let (met, next) = stepping(&job, 2).await;
    let _ = writeln!(std::io::stderr(), "asked for a restart: all ranks meet after {:.1} s", (met - at).as_secs_f64());
    assert!(next >= from + 5, "gone on from {next}, though step {} was whole", from + 5);
    let status = job.state(Completed).await;
    assert_eq!((status.attempt, status.incarnation, status.restart_count), (Some(2), Some(1), Some(0)));
    assert_eq!(status.restarts.len(), 1);
    assert_eq!(status.restarts[0].reason.as_str(), "Restarted");
    assert!(status.goodput.is_some());
    space.end().await;
}

/// A worker whose pod goes is replaced, if the operator is fast enough without anybody else.
#[tokio::test]
async fn workers_that_go_are_replaced_alone() {
    let Some(world) = world() else { return };
    let space = world.space("replaced", json!({})).await;
    let expected = undisturbed(&space).await;
    let (mut job, mut from) = begun(&space, "replaced", json!({})).await;
    let mut table =
        String::from("| what | exec'ed everywhere, s | all ranks meet, s | pods made again |\n|---|---|---|---|\n");
    let faults =
        [("its leader's pod is deleted", 0), ("another pod is deleted", 2), ("a pod is evicted, as by a drain", 3)];
    let (mut attempt, mut pods_made) = (1, 4);
    for (what, worker) in faults {
        newer(&job, from + 5).await;
        let pod = last_pods(&job).remove(&worker).unwrap();
        let (pods, at) = (space.api::<Pod>(), Instant::now());
        if what.contains("evicted") {
            pods.evict(&pod.name_any(), &EvictParams::default()).await.unwrap();
        } else {
            pods.delete(&pod.name_any(), &DeleteParams::default()).await.unwrap();
        }
        let (again, executed) = next_executed_everywhere(&job, attempt).await;
        let (executed, (met, next)) = (executed - at, stepping(&job, again).await);
        attempt = again;
        assert!(next >= from + 5, "{what}: gone on from {next}, though step {} was whole", from + 5);
        from = next;
        let made = job.pods().iter().filter(|pod| super::worker(pod) >= 0).count();
        let (executed, met) = (executed.as_secs_f64(), (met - at).as_secs_f64());
        table +=
            &format!("| {what} | {executed:.1} | {met:.1} | {} |\n", made - std::mem::replace(&mut pods_made, made));
        eprintln!("{table}");
    }
    let status = job.state(Completed).await;
    let _ = writeln!(std::io::stderr(), "{table}");
    assert_eq!(pods_made, 4 + faults.len(), "{table}");
    assert_eq!((status.attempt, status.restart_count), (Some(attempt), Some(3)));
    for ((what, worker), restart) in faults.iter().zip(&status.restarts) {
        assert_eq!(restart.worker, Some(*worker), "{what}: {restart:?}");
        let reason = if what.contains("evicted") { "Evicted" } else { "PodDeleted" };
        assert_eq!(restart.reason.as_str(), reason, "{what}: {restart:?}");
    }
    for log in logs(&space, &job).await {
        assert_eq!(weights(&log), expected);
    }
    space.end().await;
}

/// A machine that is cut off and comes back with all its processes alive, and one that dies: nobody has to vouch for either, and
/// never do the programs of two attempts live at once.
#[tokio::test]
async fn a_lost_node_is_no_failure() {
    let Some(world) = world() else { return };
    if world.cluster.name().is_none() {
        return; // nobody's node is killed here but our own
    }
    let space = world.space("lost", json!({})).await;
    add_doomed_node(&space).await;
    let expected = undisturbed(&space).await;
    for (name, verb) in [("cut", "cut"), ("lost", "lose")] {
        let apart = json!({ "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [{
            "weight": 100,
            "podAffinityTerm": {
                "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": { "training-job": name } },
            },
        }] } });
        let scheduling = json!({ "affinity": apart, "tolerations": [{ "key": "doomed", "operator": "Exists" }] });
        let (mut job, from) = begun(&space, name, json!({ "scheduling": scheduling })).await;
        newer(&job, from + 5).await;
        let node = |pod: &Pod| pod.spec.as_ref().unwrap().node_name.clone().unwrap();
        let first = last_pods(&job);
        let there: Vec<_> = first.values().filter(|pod| node(pod) == "node1").collect();
        assert!(!there.is_empty() && there.len() < 4, "workers on both nodes");
        let at = Instant::now();
        world.cluster.devcluster(&["node", verb, "1"]);
        // Long before Kubernetes takes the pods away the status tells whom the gang waits for.
        job.until("the silence of the node to be told", |status| {
            condition(status, "Running").message.contains("node node1): its node has not answered since")
        })
        .await;
        let told = at.elapsed();
        let (again, executed) = next_executed_everywhere(&job, 1).await;
        let (executed, (met, next)) = (executed - at, stepping(&job, again).await);
        assert!(next >= from + 5, "gone on from {next}");
        let _ = writeln!(
            std::io::stderr(),
            "| a node is {name}, with {} of 4 workers, leader among them: {} | told after {:.1} s | exec'ed {:.1} s | met {:.1} s |",
            there.len(),
            there.iter().any(|pod| super::worker(pod) == 0),
            told.as_secs_f64(),
            executed.as_secs_f64(),
            (met - at).as_secs_f64()
        );
        if verb == "cut" {
            // While those who have taken their places are at work; with CUT_SECONDS not before so long a time.
            newer(&job, next + 10).await;
            let least = std::env::var("CUT_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(0);
            tokio::time::sleep(Duration::from_secs(least).saturating_sub(at.elapsed())).await;
            world.cluster.devcluster(&["node", "mend", "1"]);
            let old: Vec<_> = there.iter().map(|pod| pod.uid().unwrap()).collect();
            eventually("what came back with the node to end", SOON, async || {
                let all = processes(&job);
                (!all.iter().any(|process| old.contains(&process.pod))).then_some(())
            })
            .await;
        }
        let status = job.state(Completed).await;
        assert_eq!((status.attempt, status.restart_count, status.disruption_count), (Some(again), Some(1), Some(1)));
        assert_eq!(status.incarnation, Some(1));
        let [restart] = &status.restarts[..] else { panic!("{:?}", status.restarts) };
        assert_eq!((restart.reason.as_str(), restart.disruption), ("NodeLost", true));
        assert!(restart.message.contains("node node1"), "{}", restart.message);
        let pods = job.pods();
        let workers: Vec<_> = pods.iter().filter(|pod| super::worker(pod) >= 0).collect();
        assert_eq!(workers.len(), 4 + there.len(), "nobody else's pod is made again");
        for log in logs(&space, &job).await {
            assert_eq!(weights(&log), expected);
        }
        if verb == "cut" {
            let ready = Api::<Node>::all(space.client.clone());
            eventually("node1 to be ready again", SOON, async || {
                is_ready(&ready.get("node1").await.unwrap()).then_some(())
            })
            .await;
        }
    }
    space.end().await;
}

/// The API server is away while a gang loses a rank: the agents need it not, and afterwards the status tells the story.
#[tokio::test]
async fn a_gang_restarts_without_an_api_server() {
    if world().is_none_or(|world| world.cluster.name().is_none()) {
        return;
    }
    // Of its own, for nothing else would go on without one.
    let world: &'static World = Box::leak(Box::new(World::up("outage", &[])));
    let space = world.space("outage", json!({})).await;
    let expected = undisturbed(&space).await;
    let (mut job, from) = begun(&space, "outage", json!({})).await;
    newer(&job, from + 5).await;
    let history = folder(&space, "outage-checkpoints").await.find(|file| file.0 == "history").unwrap().1;

    world.cluster.devcluster(&["apiserver", "stop"]);
    let at = Instant::now();
    let rank = processes(&job).into_iter().find(|process| process.rank == Some(1)).unwrap();
    kill(rank.pid, Signal::SIGKILL).unwrap();
    let executed = executed_everywhere(&job, 2).await - at;
    let next = eventually("the ranks of attempt 2 to meet", SOON, async || {
        read_history(&history).into_iter().find(|line| line.0 == 2).map(|line| line.1)
    })
    .await;
    assert!(next >= from + 5, "gone on from {next}");
    let met = at.elapsed();
    // With AWAY_SECONDS it stays away so long.
    let least = std::env::var("AWAY_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(0);
    tokio::time::sleep(Duration::from_secs(least).saturating_sub(at.elapsed())).await;
    world.cluster.devcluster(&["apiserver", "start"]);
    let away = at.elapsed();
    let status = job.state(Completed).await;
    let _ = writeln!(
        std::io::stderr(),
        "| a rank is killed while the API server is away for {:.0} s | {:.1} | {:.1} |",
        away.as_secs_f64(),
        executed.as_secs_f64(),
        met.as_secs_f64()
    );
    assert_eq!((status.attempt, status.restart_count, status.incarnation), (Some(2), Some(1), Some(1)));
    let [restart] = &status.restarts[..] else { panic!("{:?}", status.restarts) };
    assert_eq!((restart.worker, restart.attempt, restart.disruption), (Some(1), 1, false), "{restart:?}");
    for log in logs(&space, &job).await {
        assert_eq!(weights(&log), expected);
    }
    world.cluster.devcluster(&["down"]);
}

/// More, then fewer: each time from the newest checkpoint, in the pods that exist, and nothing has failed.
#[tokio::test]
async fn a_gang_changes_its_size() {
    let Some(world) = world() else { return };
    let space = world.space("elastic", json!({})).await;
    let elastic = json!({ "numWorkers": 2, "elastic": { "maxWorkers": 4, "waitSeconds": 5 } });
    let mut job = submit_four(&space, "elastic", merged(env("0.5"), &json!({ "STEPS": "200" })), elastic).await;
    job.patient = SOON * 4;
    job.state(Running).await;
    let (_, mut from) = stepping(&job, 1).await;
    let mut table = String::from("| workers | all ranks meet, s |\n|---|---|\n");
    for (attempt, workers) in [(2, 4), (3, 1)] {
        newer(&job, from + 5).await;
        let (at, replicas) = (Instant::now(), Patch::Merge(json!({ "spec": { "replicas": workers } })));
        space.api::<TrainingJob>().patch_scale("elastic", &PatchParams::default(), &replicas).await.unwrap();
        let (met, next) = stepping(&job, attempt).await;
        assert!(next >= from + 5, "gone on from {next}, though step {} was whole", from + 5);
        from = next;
        table += &format!("| {workers} | {:.1} |\n", (met - at).as_secs_f64());
        runs_with(&job, attempt, workers).await;
    }
    let pods = space.api::<Pod>();
    eventually("the pods that are too many to go", SOON, async || {
        let pods = pods.list(&ListParams::default().labels("training-job=elastic")).await.unwrap().items;
        (pods.iter().filter(|pod| super::worker(pod) >= 0).count() == 1).then_some(())
    })
    .await;
    let status = job.state(Completed).await;
    let _ = writeln!(std::io::stderr(), "{table}");
    assert_eq!((status.attempt, status.incarnation, status.restart_count), (Some(3), Some(1), Some(0)));
    assert!(status.restarts.iter().all(|restart| restart.reason == Reason::Resized), "{:?}", status.restarts);
    assert_eq!(job.pods().iter().filter(|pod| super::worker(pod) >= 0).count(), 4, "no pod was made again");
    space.end().await;
}

/// Three of four find room, one of them only since the last one gives up its own, and begin without the fourth; when it finds
/// some they take it in.
#[tokio::test]
async fn a_gang_is_as_large_as_there_is_room_for() {
    let Some(world) = world() else { return };
    let space = world.space("room", json!({})).await;
    // The pods wait for a scheduler that is this test.
    let room = json!({
        "elastic": { "minWorkers": 2, "maxWorkers": 4, "waitSeconds": 5 }, "scheduling": { "schedulerName": "by-hand" },
    });
    let mut job = submit_four(&space, "room", merged(env("0.5"), &json!({ "STEPS": "120" })), room).await;
    job.patient = SOON * 4;
    let mut last = String::new();
    for worker in [1, 2, 3] {
        last = place(&mut job, worker, "").await;
    }
    eventually("the last one to give up its place", SOON, async || {
        let pod = space.api::<Pod>().get_opt(&last).await.unwrap();
        pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some()).then_some(())
    })
    .await;
    place(&mut job, 0, "").await;
    let status = job.until("to run with three", |status| status.state == Some(Running)).await;
    assert_eq!(status.elastic.as_ref().unwrap().workers, 3);
    assert!(condition(&status, "Scheduled").message.contains("3 of 4 workers"), "{:?}", status.conditions);
    let (_, from) = stepping(&job, 1).await;
    runs_with(&job, 1, 3).await;
    newer(&job, from + 5).await;
    place(&mut job, 3, &last).await;
    let (_, next) = stepping(&job, 2).await;
    assert!(next >= from + 5, "gone on from {next}");
    runs_with(&job, 2, 4).await;
    let status = job.state(Completed).await;
    assert_eq!((status.attempt, status.incarnation, status.restart_count), (Some(2), Some(1), Some(0)));
    assert_eq!(status.workers.unwrap().succeeded, 4);
    space.end().await;
}

/// Gives a worker's pod, another one than `but`, a node; its name.
async fn place(job: &mut Job, worker: i32, but: &str) -> String {
    let pod = job.pod(1, worker, "to be there", |pod| pod.name_any() != but).await.name_any();
    let nodes = Api::<Node>::all(job.space.client.clone()).list(&ListParams::default()).await.unwrap();
    let target = json!({ "apiVersion": "v1", "kind": "Node", "name": nodes.items[0].name_any() });
    let binding = json!({ "apiVersion": "v1", "kind": "Binding", "metadata": { "name": pod }, "target": target });
    job.space
        .api::<Pod>()
        .create_subresource::<_, Value>("binding", &pod, &PostParams::default(), &binding)
        .await
        .unwrap();
    pod
}

/// Waits until so many workers run the programs of this attempt, and nobody runs anything else.
async fn runs_with(job: &Job, attempt: i32, workers: i32) {
    eventually(&format!("attempt {attempt} with {workers} workers"), SOON, async || {
        let all = processes(job);
        let ranks = all.iter().filter(|process| process.rank.is_some());
        let runs: BTreeSet<_> = ranks.map(|process| (process.attempt, process.worker)).collect();
        (runs == (0..workers).map(|worker| (attempt, worker)).collect()).then_some(())
    })
    .await;
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
}

/// A second node, to which nothing of the other tests goes.
async fn add_doomed_node(space: &Space) {
    let nodes: Api<Node> = Api::all(space.client.clone());
    let taint = json!([{ "key": "doomed", "effect": "NoSchedule" }]);
    let cluster = &space.world.cluster;
    let add = std::thread::spawn(|| cluster.devcluster(&["node", "add", "1"]));
    // Before it is Ready.
    eventually("node1 to register", SOON, async || {
        let taints = nodes.get_opt("node1").await.unwrap()?.spec?.taints.unwrap_or_default();
        let mut taints = serde_json::to_value(taints).unwrap();
        taints.as_array_mut().unwrap().extend(taint.as_array().unwrap().clone());
        let patch = Patch::Merge(json!({ "spec": { "taints": taints } }));
        nodes.patch("node1", &PatchParams::default(), &patch).await.ok()
    })
    .await;
    eventually("node1 to be ready", SOON, async || add.is_finished().then_some(())).await;
    add.join().unwrap();
}

fn env(step_seconds: &str) -> Value {
    json!({ "STEPS": "80", "STEP_SECONDS": step_seconds, "HISTORY": "/checkpoints/history" })
}

/// The weights of a training that nothing befalls.
async fn undisturbed(space: &Space) -> String {
    let mut job = submit_four(space, "whole", env("0"), json!({})).await;
    job.patient = SOON * 4;
    job.state(Completed).await;
    weights(&logs(space, &job).await[0]).to_owned()
}

/// Waits for the checkpoint of a step.
async fn newer(job: &Job, step: u32) {
    let (file, claim) = (format!("step-{step}.pt"), format!("{}-checkpoints", job.name));
    eventually(&format!("{file} of {}", job.name), SOON, async || {
        folder(&job.space, &claim).await.any(|found| found.0 == file).then_some(())
    })
    .await;
}

/// Such a job whose ranks have met in its first attempt, and the step that this has begun with.
async fn begun(space: &Space, name: &str, more: Value) -> (Job, u32) {
    let mut job = submit_four(space, name, env("0.5"), more).await;
    job.patient = SOON * 4;
    job.state(Running).await;
    let (_, from) = stepping(&job, 1).await;
    (job, from)
}

/// Four workers that train by torchrun.
async fn submit_four(space: &Space, name: &str, env: Value, more: Value) -> Job {
    let hang = json!({ "timeoutSeconds": 30, "action": "Restart" });
    let fields = json!({
        "checkpoint": { "storage": { "type": "pvc", "size": "1Gi" } },
        "failurePolicy": { "backoffLimit": 100, "hang": hang },
    });
    let fields = merged(fields, &more);
    job_of(space, name, WORKERS, env, fields).await
}
