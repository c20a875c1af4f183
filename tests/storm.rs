//! A storm: many jobs on simulated nodes, whose programs fail, whose pods are evicted and deleted, whose nodes are lost
//! and whose operators are killed, at random and all the time. Then it is calm, and every job has to end as it should.
//!
//! `STORM_JOBS` and `STORM_SECONDS` make it longer; `STORM_SEED` has another run make the same choices. The seed is printed.

mod common;
mod support;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::operator::Operator;
use support::wire::Instructions;
use support::witness::{Kind, Space};
use support::{World, jobs_url, kubelet, outcome};

/// Each has an operator of its own.
const JOBS_OF_A_NAMESPACE: usize = 10;
/// After the storm: as long as the longest back-off, and what waits for it.
const CALM: Duration = Duration::from_secs(300);

/// What was done to one incarnation of a job.
#[derive(Clone, Copy, Debug, Default)]
struct Struck {
    failures: u32,
    disruptions: u32,
    /// Somebody deleted a pod: whether that counts is for the operator to say.
    deletions: u32,
    /// All of its programs ended well.
    completed: bool,
}

#[derive(Default)]
struct Ledger(BTreeMap<(String, i64), Struck>);

impl Ledger {
    fn of(&mut self, pod: &Value) -> &mut Struck {
        self.0.entry((job_of(pod), incarnation(pod))).or_default()
    }
}

fn job_of(pod: &Value) -> String {
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    name.split_once("-training-").map(|(job, _)| job.to_owned()).unwrap_or_default()
}

fn incarnation(object: &Value) -> i64 {
    let label = object["metadata"]["labels"]["ml.example.com/attempt"].as_str();
    label.and_then(|number| number.parse().ok()).unwrap_or_default()
}

fn runs(pod: &Value) -> bool {
    pod["status"]["phase"] == "Running" && pod["metadata"]["deletionTimestamp"].is_null()
}

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// A namespace, its operator, and what was done there.
struct Sea {
    name: String,
    jobs: BTreeMap<String, Plan>,
    operator: Option<Operator>,
    back: Instant,
    ledger: Ledger,
    kills: u32,
}

#[derive(Clone, Copy)]
struct Plan {
    workers: i64,
    backoff_limit: i64,
}

impl Sea {
    async fn new(world: &World, number: usize, jobs: usize, random: &mut StdRng) -> Self {
        let name = format!("storm-{number}");
        world.namespace(&name).await;
        let operator = Some(Operator::start(world, &name, Instructions::default()));
        let mut sea =
            Self { name, jobs: BTreeMap::new(), operator, back: Instant::now(), ledger: Ledger::default(), kills: 0 };
        for job in 0..jobs {
            let plan = Plan { workers: random.random_range(1..=4), backoff_limit: random.random_range(2..=12) };
            let name = format!("job-{job}");
            let spec = json!({
                "model": "m", "dataset": "d", "numWorkers": plan.workers, "gpusPerWorker": 0,
                "image": "training.test/training:1", "failurePolicy": { "backoffLimit": plan.backoff_limit },
            });
            let object = json!({
                "apiVersion": "ml.example.com/v1", "kind": "TrainingJob", "metadata": { "name": name }, "spec": spec,
            });
            world.send("POST", &jobs_url(&sea.name), &object).await.expect("the job is admitted");
            sea.jobs.insert(name, plan);
        }
        sea
    }

    fn pods(&self, world: &World) -> Vec<Value> {
        world.witness.read(&self.name, |space| space.of(Kind::Pod).filter(|pod| runs(pod)).cloned().collect())
    }

    /// Something happens.
    async fn blow(&mut self, world: &World, random: &mut StdRng) {
        let pods = self.pods(world);
        let Some(pod) = pods.choose(random) else { return };
        match random.random_range(0..100) {
            0..50 => {
                self.ledger.of(pod).failures += 1;
                kubelet::exit(&world.admin, pod, random.random_range(1..=255)).await;
            }
            50..65 => {
                self.ledger.of(pod).disruptions += 1;
                kubelet::try_to_evict(&world.admin, pod).await;
            }
            65..75 => {
                self.ledger.of(pod).deletions += 1;
                kubelet::delete(&world.admin, pod).await;
            }
            75..85 => {
                let node = pod["spec"]["nodeName"].clone();
                for pod in pods.iter().filter(|pod| pod["spec"]["nodeName"] == node) {
                    self.ledger.of(pod).disruptions += 1;
                    kubelet::lose(&world.admin, pod).await;
                }
            }
            85..93 => {
                if self.operator.take().is_some() {
                    self.kills += 1;
                    self.back = Instant::now() + Duration::from_millis(random.random_range(0..4000));
                }
            }
            _ => self.complete(world, &job_of(pod), &pods).await,
        }
    }

    /// All programs of a job end well, if all run.
    async fn complete(&mut self, world: &World, job: &str, pods: &[Value]) {
        let pods: Vec<_> = pods.iter().filter(|pod| job_of(pod) == job).collect();
        let newest = pods.iter().map(|pod| incarnation(pod)).max();
        let all = i64::try_from(pods.len()) == Ok(self.jobs[job].workers);
        if !all || pods.iter().any(|pod| Some(incarnation(pod)) != newest) {
            return;
        }
        for pod in pods {
            self.ledger.of(pod).completed = true;
            kubelet::exit(&world.admin, pod, 0).await;
        }
    }

    fn come_back(&mut self, world: &World) {
        if self.operator.is_none() && Instant::now() >= self.back {
            self.operator = Some(Operator::start(world, &self.name, Instructions::default()));
        }
    }

    fn unfinished(&self, world: &World) -> Vec<String> {
        let is_over = |job: &&Value| ["Completed", "Failed"].iter().any(|state| job["status"]["state"] == *state);
        let name = |job: &Value| job["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        world
            .witness
            .read(&self.name, |space| space.of(Kind::TrainingJob).filter(|job| !is_over(job)).map(name).collect())
    }

    /// What is not as it should be.
    fn wrong(&self, space: &Space) -> Vec<String> {
        let mut wrong = Vec::new();
        for (name, plan) in &self.jobs {
            let mut says = |what: String| wrong.push(format!("{}/{name}: {what}", self.name));
            let Some(job) = space.get(Kind::TrainingJob, name) else {
                says("it is gone".to_owned());
                continue;
            };
            let status = &job["status"];
            let [attempt, restarts, disruptions] =
                ["attempt", "restartCount", "disruptionCount"].map(|field| status[field].as_i64().unwrap_or_default());
            let failures = restarts - disruptions;
            // The last attempt has completed, or failed without being followed by another.
            if restarts != attempt - 1 {
                says(format!("{restarts} restarts in {attempt} attempts"));
            }
            let struck: Vec<_> = self.ledger.0.iter().filter(|((job, _), _)| job == name).collect();
            let followed = struck.iter().filter(|((_, of), _)| *of < attempt).map(|(_, struck)| **struck);
            let certain = |of: fn(&Struck) -> (u32, u32)| {
                followed.clone().filter(|struck| of(struck).0 > 0 && of(struck).1 == 0 && struck.deletions == 0).count()
            };
            let only_disrupted = i64::try_from(certain(|struck| (struck.disruptions, struck.failures))).unwrap_or(0);
            let only_failed = i64::try_from(certain(|struck| (struck.failures, struck.disruptions))).unwrap_or(0);
            if disruptions < only_disrupted || failures < only_failed {
                says(format!(
                    "{failures} failures and {disruptions} disruptions are counted; at least {only_failed} and \
                     {only_disrupted} attempts had nothing else: {struck:?}"
                ));
            }
            if failures > plan.backoff_limit {
                says(format!("{failures} restarts with a backoffLimit of {}", plan.backoff_limit));
            }
            let completed = struck.iter().any(|((_, of), struck)| *of == attempt && struck.completed);
            match status["state"].as_str() {
                Some("Completed") if !completed => says("it is Completed, and its programs were not".to_owned()),
                Some("Completed") => {}
                Some("Failed") if failures == plan.backoff_limit || disruptions >= 10 => {}
                _ => says(format!("it should not be as it is: {status}")),
            }
            let jobs: Vec<_> = space.of(Kind::Job).filter(|job| owner(job) == Some(name)).collect();
            if jobs.len() > 1 {
                says(format!("{} Jobs are left", jobs.len()));
            }
            if let Err(broken) = outcome::invariants(&alone(space, name)) {
                says(broken);
            }
        }
        let living = space.of(Kind::Pod).filter(|pod| runs(pod)).map(|pod| pod["metadata"]["name"].to_string());
        wrong.extend(living.map(|pod| format!("{}: pod {pod} still runs", self.name)));
        let known: BTreeSet<&str> = self.jobs.keys().map(String::as_str).collect();
        for kind in [Kind::Job, Kind::Service, Kind::ConfigMap] {
            let is_orphan = |object: &&Value| owner(object).is_some_and(|owner| !known.contains(owner));
            let orphans = space.of(kind).filter(is_orphan).map(|object| object["metadata"]["name"].to_string());
            wrong.extend(orphans.map(|name| format!("{}: {kind:?} {name} is orphaned", self.name)));
        }
        wrong
    }
}

/// The TrainingJob to which an object belongs.
fn owner(object: &Value) -> Option<&str> {
    object["metadata"]["ownerReferences"][0]["name"].as_str()
}

/// What was seen of one job and its children, as if there were no other.
fn alone(space: &Space, job: &str) -> Space {
    let is_its = |object: &Value| {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        name == job || name.strip_prefix(job).is_some_and(|rest| rest.starts_with('-'))
    };
    let mut alone = Space::default();
    alone.history = space.history.iter().filter(|seen| is_its(&seen.object)).cloned().collect();
    alone.now = space.now.iter().filter(|(_, object)| is_its(object)).map(|(k, v)| (k.clone(), v.clone())).collect();
    alone
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_job_ends_as_it_should_after_a_storm() {
    let seed = variable("STORM_SEED", std::process::id().into());
    let (jobs, length) = (variable("STORM_JOBS", 20), Duration::from_secs(variable("STORM_SECONDS", 30)));
    println!("STORM_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let world: Arc<World> = World::start("storm").await;
    let mut seas = Vec::new();
    let mut left = usize::try_from(jobs).unwrap();
    while left > 0 {
        let some = left.min(JOBS_OF_A_NAMESPACE);
        seas.push(Sea::new(&world, seas.len(), some, &mut random).await);
        left -= some;
    }
    let began = Instant::now();
    let mut faults = 0_u32;
    // About one fault a minute for each job, and no fewer than one a second.
    let pause = Duration::from_secs(60).div_f64(jobs as f64).min(Duration::from_secs(1));
    while began.elapsed() < length {
        let at = random.random_range(0..seas.len());
        seas[at].blow(&world, &mut random).await;
        faults += 1;
        for sea in &mut seas {
            sea.come_back(&world);
        }
        tokio::time::sleep(pause).await;
    }
    let calm = Instant::now();
    loop {
        let mut unfinished = Vec::new();
        for sea in &mut seas {
            sea.come_back(&world);
            let (jobs, pods) = (sea.unfinished(&world), sea.pods(&world));
            for job in &jobs {
                sea.complete(&world, job, &pods).await;
            }
            unfinished.extend(jobs.into_iter().map(|job| format!("{}/{job}", sea.name)));
        }
        if unfinished.is_empty() {
            break;
        }
        assert!(calm.elapsed() < CALM, "STORM_SEED={seed}: not at an end: {unfinished:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let mut wrong = Vec::new();
    for sea in &seas {
        sea.operator.as_ref().expect("all came back").quiet(Duration::from_secs(3)).await.unwrap();
        world.witness.rest(&sea.name, Duration::from_secs(2), |space| !space.of(Kind::Pod).any(runs)).await;
        wrong.extend(world.witness.read(&sea.name, |space| sea.wrong(space)));
    }
    let attempts: usize = seas
        .iter()
        .map(|sea| {
            world.witness.read(&sea.name, |space| {
                space.of(Kind::TrainingJob).filter_map(|job| job["status"]["attempt"].as_u64()).sum::<u64>()
            })
        })
        .map(|attempts| usize::try_from(attempts).unwrap_or(0))
        .sum();
    println!(
        "{jobs} jobs, {faults} faults in {:.0} s, {} kills of operators, {attempts} attempts, all at an end {:.0} s later",
        (calm - began).as_secs_f64(),
        seas.iter().map(|sea| sea.kills).sum::<u32>(),
        calm.elapsed().as_secs_f64()
    );
    assert!(wrong.is_empty(), "STORM_SEED={seed}: {} things are wrong:\n{}", wrong.len(), wrong.join("\n"));
}
