//! The operator is ended at every write request that it makes, and started again.
//!
//! The method is that of Sieve ("Automatic Reliability Testing for Cluster Management Controllers", OSDI 2022), which
//! tries three kinds of states that a controller must survive. Intermediate: it ended between two writes. Stale: it
//! acts on an outdated view. Unobserved: it never saw something that came and went. Every scenario of a job's life is
//! tried for every write k and both sides of it: the request is never sent, or it is done and the answer is lost. The
//! operator is ended there and started again at once, later, or at once but behind on its watches. In the end there
//! must be the same objects and the same status as after the undisturbed run. `outcome::invariants` must hold all the
//! way.
//!
//! By default, trials that would repeat others are left out. In most scenarios, the writes up to the first running gang
//! are those of [`Scenario::Complete`]. On either side of each write, the operator comes back in one way only.
//! `TRAININGJOB_CRASH_SEED`, which may be a commit's hash, sets the write at which the ways begin to take turns, so
//! that other commits try other pairs. `TRAININGJOB_CRASH=TEXT` runs those of all trials whose name contains TEXT,
//! `TRAININGJOB_CRASH=all` runs them all.

use futures::future::{self, Either};
use futures::{StreamExt, stream};
use kube::api::{DeleteParams, Patch, PatchParams};
use protocol::objective::{Objective, ObjectiveRule};
use protocol::report::Report;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use testkit::support::operator::Operator;
use testkit::support::outcome::{self, Outcome};
use testkit::support::wire::{Instructions, Past, Point};
use testkit::support::witness::{Kind, Space};
use testkit::support::{DEADLINE, World, jobs_url, kubelet, runtime};

/// Lives of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Scenario {
    /// Create, run, complete, with a claim for checkpoints.
    Complete,
    /// Suspend while it runs, resume, complete.
    Suspend,
    /// Created suspended, resumed, completed.
    Resume,
    /// A worker fails, the gang restarts, completes.
    Restart,
    /// Workers fail until the budget is spent.
    Budget,
    /// A worker is evicted, the gang restarts, completes.
    Evict,
    /// The deadline passes.
    Deadline,
    /// The job deletes itself after its end.
    Ttl,
    /// The owner deletes the job while it runs.
    Delete,
    /// The job is deleted while it runs, recreated under the same name at once, and completes.
    Again,
    /// The job gets another worker while it runs, and completes.
    Resize,
    /// The job has another role, whose pod fails. The gang restarts and completes.
    Roles,
    /// The job's model is fetched, and its result is published. It completes.
    Data,
    /// A search of two trials, of which the second fails.
    Search,
}

const SCENARIOS: [Scenario; 14] = [
    Scenario::Complete,
    Scenario::Suspend,
    Scenario::Resume,
    Scenario::Restart,
    Scenario::Budget,
    Scenario::Evict,
    Scenario::Deadline,
    Scenario::Ttl,
    Scenario::Delete,
    Scenario::Again,
    Scenario::Resize,
    Scenario::Roles,
    Scenario::Data,
    Scenario::Search,
];

/// How the operator comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Return {
    /// At once, with a fresh view.
    AtOnce,
    /// When everything that continues without it has settled.
    Later,
    /// At once. Until it has decided what to do, it sees these kinds as they were this many writes before its end.
    Behind(usize, View),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum View {
    All,
    Jobs,
    Children,
}

impl View {
    fn kinds(self) -> &'static [Kind] {
        use Kind::{ConfigMap, Job, PersistentVolumeClaim, Pod, Service, TrainingJob, TuningJob};
        match self {
            Self::All => &[TrainingJob, TuningJob, Job, Pod, Service, ConfigMap, PersistentVolumeClaim],
            Self::Jobs => &[TrainingJob, TuningJob],
            Self::Children => &[Job, Pod, Service, ConfigMap, PersistentVolumeClaim],
        }
    }
}

/// Stale views: their age in writes, and their kinds.
const BEHIND: [Return; 4] = [
    Return::Behind(0, View::All),
    Return::Behind(1, View::Jobs),
    Return::Behind(1, View::Children),
    Return::Behind(3, View::All),
];

/// How the operator comes back after its end at the k-th write.
#[derive(Clone, Copy)]
enum Ways {
    /// Every way on both sides of the write.
    All,
    /// One way on either side, in turns that begin here.
    Turns(usize),
}

impl Ways {
    fn trials(self, scenario: Scenario, k: usize) -> Vec<Trial> {
        let [before, after] = [Point::Before(k), Point::After(k)];
        let all = [Return::AtOnce, Return::Later].into_iter().chain(BEHIND);
        let points: Vec<_> = match self {
            Self::All => {
                [before, after].into_iter().flat_map(|point| all.clone().map(move |way| (point, way))).collect()
            }
            Self::Turns(first) => {
                // Absence is the same on both sides.
                let turn = first + k;
                let behind = |turn: usize| BEHIND[turn % BEHIND.len()];
                let of_before = [Return::AtOnce, behind(turn / 2)][turn % 2];
                let of_after = [Return::AtOnce, Return::Later, behind(turn / 3)][turn % 3];
                vec![(before, of_before), (after, of_after)]
            }
        };
        points.into_iter().map(|point| Trial { scenario, point: Some(point) }).collect()
    }
}

/// A number, or the beginning of a commit's hash.
fn seed() -> usize {
    let text = std::env::var("TRAININGJOB_CRASH_SEED").unwrap_or_default();
    let hash = || usize::from_str_radix(text.get(..8)?, 16).ok();
    text.parse().ok().or_else(hash).unwrap_or(0)
}

/// One run of a scenario. Without a point, it is the undisturbed one.
#[derive(Clone, Copy, Debug)]
struct Trial {
    scenario: Scenario,
    point: Option<(Point, Return)>,
}

impl Trial {
    /// Also the name of its namespace.
    fn name(&self) -> String {
        let scenario = format!("{:?}", self.scenario).to_lowercase();
        let Some((point, back)) = self.point else { return format!("undisturbed-{scenario}") };
        let (side, write) = match point {
            Point::Before(write) => ("before", write),
            Point::After(write) => ("after", write),
        };
        let back = match back {
            Return::AtOnce => "at-once".to_owned(),
            Return::Later => "later".to_owned(),
            Return::Behind(writes, view) => format!("behind-{writes}-{}", format!("{view:?}").to_lowercase()),
        };
        format!("{scenario}-{side}-{write}-{back}")
    }
}

struct Ended {
    outcome: Outcome,
    /// The first write that this scenario does not share with others.
    first: usize,
    /// Number of writes of the first operator.
    writes: usize,
    /// Whether the operator reached its point.
    reached: bool,
}

#[test]
fn operator_crash_at_any_write_leads_to_the_same_outcome() {
    testkit::support::run(all_trials());
}

async fn all_trials() {
    let started = Instant::now();
    let only = std::env::var("TRAININGJOB_CRASH").unwrap_or_default();
    let everything = !only.is_empty();
    let ways = if everything { Ways::All } else { Ways::Turns(seed()) };
    println!("TRAININGJOB_CRASH_SEED={}", seed());
    let only = if only == "all" { String::new() } else { only };
    let world = World::shared().await;
    let named = |scenario: &Scenario| only.starts_with(&format!("{scenario:?}").to_lowercase());
    let mut wanted = SCENARIOS.to_vec();
    if wanted.iter().any(named) {
        wanted.retain(named);
    }
    let undisturbed: Vec<Trial> = wanted.iter().map(|scenario| Trial { scenario: *scenario, point: None }).collect();
    let mut expected = BTreeMap::new();
    for (trial, ended) in run_all(&world, &undisturbed, &BTreeMap::new()).await {
        let ended = ended.unwrap_or_else(|wrong| panic!("{} undisturbed: {wrong}", trial.name()));
        expected.insert(trial.scenario, ended);
    }
    println!("undisturbed runs: {:.0} s", started.elapsed().as_secs_f64());

    let trials: Vec<Trial> = wanted
        .iter()
        .flat_map(|scenario| {
            let first = if everything { 1 } else { expected[scenario].first };
            (first..=expected[scenario].writes).flat_map(|k| ways.trials(*scenario, k))
        })
        .filter(|trial| only.is_empty() || trial.name().contains(&only))
        .collect();
    let results = run_all(&world, &trials, &expected).await;

    let (mut missed, mut wrong) = (Vec::new(), Vec::new());
    let mut tried: BTreeMap<Scenario, usize> = BTreeMap::new();
    for (trial, result) in &results {
        match result {
            Ok(ended) if !ended.reached => missed.push(trial.name()),
            Ok(_) => *tried.entry(trial.scenario).or_default() += 1,
            Err(why) => wrong.push(format!("{}: {why}", trial.name())),
        }
    }
    for (scenario, tried) in &tried {
        println!("{scenario:?}: {} writes, {tried} points", expected[scenario].writes);
    }
    println!(
        "{} points in {:.0} s; {} were not reached{}",
        tried.values().sum::<usize>(),
        started.elapsed().as_secs_f64(),
        missed.len(),
        missed.iter().fold(String::new(), |mut text, name| {
            let _ = write!(text, " {name}");
            text
        }),
    );
    assert!(wrong.is_empty(), "{} of {} trials failed:\n{}", wrong.len(), results.len(), wrong.join("\n"));
}

/// An evicted pod may be gone before any client saw it. The Job's failure then shows that there was a disruption, but
/// not which. What must stay is that it does not count.
fn without_lost_words(outcome: &Outcome) -> Outcome {
    let mut outcome = outcome.clone();
    for (_, job) in outcome.left.iter_mut().filter(|(key, _)| key.starts_with("TrainingJob")) {
        // A kind that no process here watches.
        if let Some(runtime) = job["status"]["inherited"].get_mut("runtime") {
            runtime["uid"] = Value::Null;
        }
        for restart in job["status"]["restarts"].as_array_mut().into_iter().flatten() {
            if restart["reason"] == "Evicted" || restart["reason"] == "PodsLost" {
                assert_eq!(restart["disruption"], true);
                for words in ["reason", "message", "worker", "rank", "pod", "node"] {
                    restart[words] = Value::Null;
                }
            }
        }
    }
    outcome
}

/// Runs trials side by side, each until it reaches the undisturbed end of its scenario, if that is known. An error is
/// reported with what the trial's operators sent and logged.
async fn run_all(
    world: &Arc<World>,
    trials: &[Trial],
    expected: &BTreeMap<Scenario, Ended>,
) -> Vec<(Trial, Result<Ended, String>)> {
    let done = AtomicUsize::new(0);
    stream::iter(trials.iter().copied())
        .map(|trial| {
            let done = &done;
            async move {
                let _place = world.place().await;
                let life = Life::new(world, trial).await;
                let result = life.run(expected.get(&trial.scenario).map(|ended| &ended.outcome)).await;
                let result = result.map_err(|wrong| format!("{wrong}{}", life.chronicle()));
                world.forget(&life.namespace);
                let done = done.fetch_add(1, Ordering::Relaxed) + 1;
                if let Err(wrong) = &result {
                    eprintln!("{done}/{}: {}: {wrong}", trials.len(), trial.name());
                } else if done.is_multiple_of(50) {
                    eprintln!("{done}/{}", trials.len());
                }
                (trial, result)
            }
        })
        .buffer_unordered(trials.len().max(1))
        .collect()
        .await
}

/// The TrainingJob of every trial.
const NAME: &str = "x";
/// Longer than any of the cluster's own pauses: the Job controller gathers for a second.
const REST: Duration = Duration::from_millis(1500);

fn is_over(status: &Value) -> bool {
    status["state"] == "Completed" || status["state"] == "Failed"
}

/// One trial under way.
struct Life<'a> {
    world: &'a World,
    trial: Trial,
    namespace: String,
    /// No operator runs, and none starts before everything else is quiet.
    away: AtomicBool,
    operators: Mutex<Vec<Arc<Operator>>>,
    /// See [`Ended::first`].
    first: AtomicUsize,
}

impl<'a> Life<'a> {
    async fn new(world: &'a World, trial: Trial) -> Self {
        let namespace = trial.name();
        world.namespace(&namespace).await;
        if trial.scenario == Scenario::Roles {
            runtime(world, &namespace, "theirs", &json!({ "framework": "none" })).await;
        }
        if trial.scenario == Scenario::Data {
            let url = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims");
            world.send("POST", &url, &kubelet::cache_claim()).await.expect("a claim");
        }
        let (away, operators, first) = (AtomicBool::new(false), Mutex::default(), AtomicUsize::default());
        Self { world, trial, namespace, away, operators, first }
    }

    async fn run(&self, expected: Option<&Outcome>) -> Result<Ended, String> {
        let end = self.trial.point.map(|(point, _)| point);
        let note = self.trial.point.and_then(|(point, back)| match back {
            Return::Behind(writes, _) => Some(point.write().saturating_sub(writes).max(1)),
            _ => None,
        });
        let first = self.start(Instructions { end, note, ..Instructions::default() });
        match future::select(pin!(self.live()), pin!(self.disturb(&first))).await {
            Either::Left((life, disturb)) => {
                life?;
                if first.wire.has_ended() {
                    disturb.await;
                }
            }
            Either::Right(((), live)) => live.await?,
        }
        let last = self.operators().last().cloned().expect("it was started");
        if expected.is_none() {
            self.world.witness.rest(&self.namespace, REST, |_| true).await;
        }
        let outcome = self.settled(&last, expected).await?;
        last.kill();
        self.world.witness.read(&self.namespace, |space| outcome::invariants(space, false))?;
        let reached = end.is_none() || first.wire.has_ended() && !Arc::ptr_eq(&first, &last);
        Ok(Ended { outcome, first: self.first.load(Ordering::Relaxed).max(1), writes: first.wire.writes(), reached })
    }

    /// Waits until the operator has nothing to do any more and the objects that are left are as expected.
    async fn settled(&self, operator: &Operator, expected: Option<&Outcome>) -> Result<Outcome, String> {
        let expected = expected.map(without_lost_words);
        let deadline = Instant::now() + DEADLINE;
        loop {
            operator.idle().await?;
            let outcome = self.world.witness.read(&self.namespace, |space| Outcome::from_space(&self.namespace, space));
            let Some(expected) = &expected else { return Ok(outcome) };
            let found = without_lost_words(&outcome);
            if *expected == found {
                return Ok(outcome);
            }
            if Instant::now() > deadline {
                let differences = expected.differences(&found);
                return Err(format!("the end differs from the undisturbed one:\n{differences}"));
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Waits for the first operator's end and starts the next one. Never returns if the first one does not end.
    async fn disturb(&self, first: &Operator) {
        first.wire.ended().await;
        first.kill();
        let mut past = None;
        match self.trial.point {
            Some((_, Return::Later)) => {
                self.away.store(true, Ordering::Relaxed);
                self.world.witness.ring(&self.namespace);
                let starting = |space: &Space| space.of_kind(Kind::Pod).any(|pod| pod["status"]["phase"] == "Pending");
                self.world.witness.rest(&self.namespace, REST, |space| !starting(space)).await;
                self.away.store(false, Ordering::Relaxed);
            }
            Some((_, Return::Behind(_, view))) => {
                past = first.wire.noted().map(|revision| Past { revision, kinds: view.kinds() });
            }
            Some((_, Return::AtOnce)) | None => {}
        }
        let next = self.start(Instructions { past, ..Instructions::default() });
        next.decided().await;
        next.wire.catch_up();
    }

    fn start(&self, instructions: Instructions) -> Arc<Operator> {
        let operator = Arc::new(Operator::start(self.world, &self.namespace, instructions));
        self.operators().push(operator.clone());
        operator
    }

    fn operators(&self) -> MutexGuard<'_, Vec<Arc<Operator>>> {
        self.operators.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The job's life: what its owner, its programs and its nodes do.
    async fn live(&self) -> Result<(), String> {
        use Scenario::{
            Again, Budget, Complete, Data, Deadline, Delete, Evict, Resize, Restart, Resume, Roles, Search, Suspend,
            Ttl,
        };
        self.create().await;
        match self.trial.scenario {
            Complete => self.complete(1).await?,
            Suspend => {
                self.runs(1).await?;
                self.suspend(true).await;
                self.reaches("Suspended").await?;
                self.suspend(false).await;
                self.complete(2).await?;
            }
            Resume => {
                self.reaches("Suspended").await?;
                self.suspend(false).await;
                self.complete(1).await?;
            }
            Restart => {
                self.runs(1).await?;
                self.exit(1, 1, 1).await?;
                self.complete(2).await?;
            }
            Budget => {
                self.runs(1).await?;
                self.exit(1, 1, 1).await?;
                self.runs(2).await?;
                self.exit(2, 0, 3).await?;
                self.reaches("Failed").await?;
            }
            Evict => {
                self.runs(1).await?;
                let pod = self.running(1, 1).await?;
                kubelet::evict(&self.world.admin, &pod).await;
                self.complete(2).await?;
            }
            Deadline => {
                self.runs(1).await?;
                self.reaches("Failed").await?;
            }
            Ttl => {
                self.runs(1).await?;
                for worker in 0..2 {
                    self.exit(1, worker, 0).await?;
                }
                return self.gone(|_| true).await;
            }
            Delete => {
                self.runs(1).await?;
                self.delete().await;
                return self.gone(|_| true).await;
            }
            Again => {
                self.runs(1).await?;
                let uid = self.uid();
                self.delete().await;
                self.create().await;
                self.gone(move |object| object.to_string().contains(&uid)).await?;
                self.complete(1).await?;
            }
            Resize => {
                self.runs(1).await?;
                self.change(json!({ "numWorkers": 3 })).await;
                self.until("the leader's node to hear of a gang of three", |space| {
                    let leader = &kubelet::running(space, 1, 0)?["metadata"]["annotations"];
                    (leader["ml.example.com/gang-size"] == "3").then_some(())
                })
                .await?;
                self.exit(1, 2, 0).await?;
                self.complete(1).await?;
            }
            Roles => {
                self.runs(1).await?;
                let workers = [self.running(1, 0).await?, self.running(1, 1).await?];
                self.exit_of("actor", 1, 0, 1).await?;
                // As their agents do. The first exit fails their Job, which deletes the other pod.
                for pod in &workers {
                    kubelet::exit(&self.world.admin, pod, 143).await;
                }
                self.complete(2).await?;
                self.exit_of("actor", 2, 0, 0).await?;
            }
            Data => match future::select(pin!(self.complete(1)), pin!(self.move_data())).await {
                Either::Left((completed, _)) => {
                    completed?;
                    let is_gone = |space: &Space| space.get(Kind::Job, "x-upkeep").is_none().then_some(());
                    self.until("the Job that published to be gone", is_gone).await?;
                }
                Either::Right((wrong, _)) => return wrong,
            },
            Search => {
                self.trial_ends(1, 0).await?;
                self.trial_ends(2, 1).await?;
                self.until("the end of the search", |space| {
                    (space.get(Kind::TuningJob, NAME)?["status"]["state"] == "Completed").then_some(())
                })
                .await?;
            }
        }
        self.at_an_end().await
    }

    /// The program of a trial reports its metric and ends.
    async fn trial_ends(&self, trial: u32, code: i32) -> Result<(), String> {
        let what = format!("trial {trial} to run");
        let (label, number) = ("ml.example.com/trial", trial.to_string());
        let name = format!("{NAME}-{trial}-training-");
        let pod = self.until(&what, |space| {
            let runs = |pod: &&Value| {
                pod["metadata"]["name"].as_str().is_some_and(|pod| pod.starts_with(&name))
                    && pod["status"]["phase"] == "Running"
            };
            let is_recorded =
                space.of_kind(Kind::TrainingJob).any(|job| job["metadata"]["labels"][label] == number.as_str());
            space.of_kind(Kind::Pod).find(runs).filter(|_| is_recorded).cloned()
        });
        let pod = pod.await?;
        if trial == 1 {
            let writes = self.operators().first().map_or(0, |operator| operator.wire.writes());
            let first = writes.saturating_sub(2).max(1);
            let _ = self.first.compare_exchange(0, first, Ordering::Relaxed, Ordering::Relaxed);
        }
        let rule = ObjectiveRule { metric: "loss".to_owned(), ..ObjectiveRule::default() };
        let mut objective = Objective::begin(None, 1_800_000_000_000);
        objective.record(&rule, 1, 0.5, Some(7));
        let report = Report { objective: Some(objective), ..Report::default() };
        let objective = serde_json::to_value(report).expect("JSON")["objective"].take();
        let tail = if code == 0 { "" } else { "ValueError: wrong\n" };
        let message = json!({
            "version": 1, "phase": "Exited", "exitCode": code, "stderrTail": tail,
            "objective": objective,
        });
        kubelet::end(&self.world.admin, &pod, code, &message).await;
        Ok(())
    }

    async fn complete(&self, attempt: u32) -> Result<(), String> {
        self.runs(attempt).await?;
        for worker in 0..2 {
            self.exit(attempt, worker, 0).await?;
        }
        self.reaches("Completed").await
    }

    // ---- the owner

    async fn create(&self) {
        let mut spec = json!({
            "model": "m", "dataset": "d", "numWorkers": 2, "gpusPerWorker": 0, "image": "training.test/training:1",
        });
        let more = match self.trial.scenario {
            Scenario::Complete | Scenario::Delete | Scenario::Again => {
                json!({ "checkpoint": { "storage": { "type": "pvc" } } })
            }
            Scenario::Resume => json!({ "suspend": true }),
            Scenario::Budget => json!({ "failurePolicy": { "backoffLimit": 1 } }),
            Scenario::Deadline => json!({ "failurePolicy": { "activeDeadlineSeconds": 10 } }),
            Scenario::Resize => json!({ "elastic": { "maxWorkers": 3 }, "checkpoint": { "enabled": false } }),
            Scenario::Roles => {
                let named = json!({ "kind": "TrainingRuntime", "name": "theirs" });
                json!({ "runtimeRef": named, "checkpoint": { "enabled": false }, "roles": [{ "name": "actor" }] })
            }
            Scenario::Ttl => json!({ "ttlSecondsAfterFinished": 1 }),
            Scenario::Data => kubelet::data_fields(),
            _ => json!({}),
        };
        spec.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        if self.trial.scenario == Scenario::Search {
            spec["failurePolicy"] = json!({ "backoffLimit": 0 });
            spec["numWorkers"] = json!(1);
            let search = json!({
                "apiVersion": "ml.example.com/v1", "kind": "TuningJob", "metadata": { "name": NAME }, "spec": {
                    "maxTrials": 2, "seed": 5, "metric": { "name": "loss", "goal": "minimize" }, "template": { "spec": spec },
                    "parameters": { "lr": { "type": "double", "min": 0.001, "max": 1, "scale": "log" } },
                },
            });
            let url = jobs_url(&self.namespace).replace("/trainingjobs", "/tuningjobs");
            self.world.send("POST", &url, &search).await.expect("the search is admitted");
            return;
        }
        let job = json!({
            "apiVersion": "ml.example.com/v1", "kind": "TrainingJob", "metadata": { "name": NAME }, "spec": spec,
        });
        self.world.send("POST", &jobs_url(&self.namespace), &job).await.expect("the job is admitted");
    }

    async fn suspend(&self, suspend: bool) {
        self.change(json!({ "suspend": suspend })).await;
    }

    async fn change(&self, spec: Value) {
        let patch = Patch::Merge(json!({ "spec": spec }));
        self.world.jobs(&self.namespace).patch(NAME, &PatchParams::default(), &patch).await.expect("this may change");
    }

    async fn delete(&self) {
        self.world.jobs(&self.namespace).delete(NAME, &DeleteParams::default()).await.expect("it can be deleted");
    }

    // ---- programs and nodes

    async fn exit(&self, attempt: u32, worker: u32, code: i32) -> Result<(), String> {
        let pod = self.running(attempt, worker).await?;
        kubelet::exit(&self.world.admin, &pod, code).await;
        Ok(())
    }

    async fn exit_of(&self, role: &str, attempt: u32, index: u32, code: i32) -> Result<(), String> {
        let what = format!("{role} {index} of attempt {attempt} to run");
        let pod = |space: &Space| kubelet::running_of(space, role, attempt, index).cloned();
        let pod = self.world.witness.until(&self.namespace, &what, pod).await?;
        kubelet::exit(&self.world.admin, &pod, code).await;
        Ok(())
    }

    /// Does what the agents that fetch and publish do, however often they are asked to. Ends only if no such pod is
    /// made for long.
    async fn move_data(&self) -> Result<(), String> {
        let mut done = BTreeSet::new();
        loop {
            let pod = self.until("a pod that moves data", |space| {
                let is_next = |pod: &&Value| {
                    kubelet::moves_data(pod)
                        && pod["status"]["phase"] == "Running"
                        && !done.contains(&pod["metadata"]["uid"].to_string())
                };
                space.of_kind(Kind::Pod).find(is_next).cloned()
            });
            let pod = pod.await?;
            done.insert(pod["metadata"]["uid"].to_string());
            kubelet::has_moved_data(&self.world.admin, &pod).await;
        }
    }

    async fn running(&self, attempt: u32, worker: u32) -> Result<Value, String> {
        let what = format!("worker {worker} of attempt {attempt} to run");
        let pod = |space: &Space| kubelet::running(space, attempt, worker).cloned();
        self.world.witness.until(&self.namespace, &what, pod).await
    }

    // ---- waiting

    async fn runs(&self, attempt: u32) -> Result<(), String> {
        self.all_run(attempt).await?;
        if attempt == 1 && !matches!(self.trial.scenario, Scenario::Complete | Scenario::Resume | Scenario::Data) {
            let writes = self.operators().first().map_or(0, |operator| operator.wire.writes());
            // Runs differ by a write or two up to here, and the last write is followed by something new. The first gang
            // of two jobs in a row is the one that counts.
            let first = writes.saturating_sub(2).max(1);
            let _ = self.first.compare_exchange(0, first, Ordering::Relaxed, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Every worker runs, and the status says so, unless no operator is there to write it.
    async fn all_run(&self, attempt: u32) -> Result<(), String> {
        let what = format!("attempt {attempt} to run");
        self.until(&what, |space| {
            let status = &space.get(Kind::TrainingJob, NAME)?["status"];
            if is_over(status) {
                return Some(Err(format!("it ended instead of running: {status}")));
            }
            let reported = status["state"] == "Running" && status["attempt"] == attempt;
            let has_actor = self.trial.scenario == Scenario::Roles;
            let run = (0..2).all(|worker| kubelet::running(space, attempt, worker).is_some())
                && (!has_actor || kubelet::running_of(space, "actor", attempt, 0).is_some());
            (run && (reported || self.away.load(Ordering::Relaxed))).then_some(Ok(()))
        })
        .await?
    }

    async fn reaches(&self, state: &str) -> Result<(), String> {
        self.until(state, |space| {
            let status = &space.get(Kind::TrainingJob, NAME)?["status"];
            let instead = || Err(format!("it ended otherwise than {state}: {status}"));
            if status["state"] == state { Some(Ok(())) } else { is_over(status).then(instead) }
        })
        .await?
    }

    /// Everything that the operator and the cluster clear up after an end.
    async fn at_an_end(&self) -> Result<(), String> {
        self.until("everything to be at an end", |space| {
            let ended = |job: &Value| {
                let conditions = job["status"]["conditions"].as_array();
                conditions.is_some_and(|all| all.iter().any(|c| c["type"] == "Complete" || c["type"] == "Failed"))
            };
            let stays = space.now.values().all(|object| object["metadata"]["deletionTimestamp"].is_null());
            let counted = space.of_kind(Kind::Pod).all(|pod| pod["metadata"]["finalizers"].is_null());
            (stays && counted && space.of_kind(Kind::Job).all(ended)).then_some(())
        })
        .await
    }

    /// The selected objects are gone, except the claim, which outlives the job, and the namespace's own objects.
    async fn gone(&self, selected: impl Fn(&Value) -> bool) -> Result<(), String> {
        self.until("everything of the deleted job to be gone", |space| {
            let stays = |kind: Kind, name: &str| kind == Kind::PersistentVolumeClaim || name == "kube-root-ca.crt";
            let mut left = space.now.iter().filter(|((kind, name), object)| !stays(*kind, name) && selected(object));
            left.next().is_none().then_some(())
        })
        .await
    }

    async fn until<T>(&self, what: &str, test: impl Fn(&Space) -> Option<T>) -> Result<T, String> {
        self.world.witness.until(&self.namespace, what, test).await
    }

    fn uid(&self) -> String {
        let uid = |space: &Space| space.get(Kind::TrainingJob, NAME).map(|job| job["metadata"]["uid"].clone());
        self.world.witness.read(&self.namespace, uid).and_then(|uid| Some(uid.as_str()?.to_owned())).unwrap_or_default()
    }

    /// What the operators sent and logged, for finding the cause of a failure.
    fn chronicle(&self) -> String {
        let mut text = String::from("\n");
        for (index, operator) in self.operators().iter().enumerate() {
            for sent in operator.wire.sent() {
                let write = sent.write.map(|write| write.to_string()).unwrap_or_default();
                let _ = writeln!(text, "  operator {} {write:>3} {}", index + 1, sent.text);
            }
        }
        for line in self.world.log.in_namespace(&self.namespace) {
            let _ = writeln!(text, "  {} {}", line.level, line.text);
        }
        text
    }
}
