//! A storm of random faults, all the time. Many jobs run on simulated nodes. Their programs fail, their pods are
//! evicted and deleted, their nodes are lost and their operators are killed. A third of the jobs fetch their model and
//! publish their result, and the pods that do it fail and disappear as well. After the storm, every job has to end as
//! it should.
//!
//! `STORM_JOBS` and `STORM_SECONDS` make it longer. `STORM_SEED` selects the choices, which are always the same for the
//! same seed. `random` draws a seed. The seed is printed.

use protocol::gang::GangPhase;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use testkit::support::agents::{Agents, job_of, runs};
use testkit::support::operator::Operator;
use testkit::support::wire::Instructions;
use testkit::support::witness::{Kind, Space};
use testkit::support::{World, jobs_url, kubelet, outcome};

/// Each namespace has an operator of its own.
const JOBS_OF_A_NAMESPACE: usize = 10;
/// Number of times that a pod that moves a job's data fails or disappears. After more the operator waits for ten
/// minutes.
const FAULTS_OF_MOVES: u32 = 2;
/// Time after the storm: as long as the longest back-off, and what waits for it.
const CALM: Duration = Duration::from_secs(300);

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// Always the same choices, unless others are requested, so that a change is the cause of a red run.
fn seed() -> u64 {
    if std::env::var("STORM_SEED").is_ok_and(|seed| seed == "random") {
        rand::random_range(0..1_000_000)
    } else {
        variable("STORM_SEED", 1)
    }
}

/// A namespace, its operator, and what was done there.
struct Sea {
    name: String,
    jobs: BTreeMap<String, Plan>,
    /// How often a pod that moved the data of a job failed or disappeared.
    unmoved: BTreeMap<String, u32>,
    agents: Arc<Agents>,
    operator: Option<Operator>,
    back: Instant,
    /// Pods that did not end well or by themselves.
    gone: usize,
    kills: u32,
}

#[derive(Clone, Copy)]
struct Plan {
    workers: i64,
    backoff_limit: i64,
    moves_data: bool,
}

impl Sea {
    async fn new(world: &World, number: usize, jobs: usize, random: &mut StdRng) -> Self {
        let name = format!("storm-{number}");
        world.namespace(&name).await;
        let agents = Agents::new(&world.witness);
        let claims = format!("/api/v1/namespaces/{name}/persistentvolumeclaims");
        world.send("POST", &claims, &kubelet::cache_claim()).await.expect("a claim");
        let (plans, unmoved, back) = (BTreeMap::new(), BTreeMap::new(), Instant::now());
        let mut sea = Self { name, jobs: plans, unmoved, agents, operator: None, back, gone: 0, kills: 0 };
        sea.come_back(world);
        for job in 0..jobs {
            let (workers, backoff_limit) = (random.random_range(1..=4), random.random_range(2..=12));
            let plan = Plan { workers, backoff_limit, moves_data: job % 3 == 1 };
            let name = format!("job-{job}");
            let labels = json!({
                "storm/workers": plan.workers.to_string(), "storm/backoff-limit": plan.backoff_limit.to_string(),
            });
            let mut spec = json!({
                "model": "m", "dataset": "d", "numWorkers": plan.workers, "gpusPerWorker": 0,
                "image": "training.test/training:1", "failurePolicy": { "backoffLimit": plan.backoff_limit },
                "podTemplate": { "metadata": { "labels": labels } },
            });
            if plan.moves_data {
                spec.as_object_mut().unwrap().extend(kubelet::data_fields().as_object().unwrap().clone());
            }
            let object = json!({
                "apiVersion": "ml.example.com/v1", "kind": "TrainingJob", "metadata": { "name": name }, "spec": spec,
            });
            world.send("POST", &jobs_url(&sea.name), &object).await.expect("the job is admitted");
            sea.jobs.insert(name, plan);
        }
        sea
    }

    /// The running pods of the gangs, and the pods that move data.
    fn pods(&self, world: &World) -> (Vec<Value>, Vec<Value>) {
        let all: Vec<Value> =
            world.witness.read(&self.name, |space| space.of_kind(Kind::Pod).filter(|pod| runs(pod)).cloned().collect());
        all.into_iter().partition(|pod| !kubelet::moves_data(pod))
    }

    /// Some of the pods that move data succeed, and some fail or disappear.
    async fn move_data(&mut self, world: &World, pods: &[Value], random: &mut StdRng) {
        for pod in pods {
            let faults = self.unmoved.entry(job_of(pod)).or_default();
            match random.random_range(0..100) {
                0..10 if *faults < FAULTS_OF_MOVES => {
                    *faults += 1;
                    kubelet::exit(&world.admin, pod, 1).await;
                }
                10..20 if *faults < FAULTS_OF_MOVES => {
                    *faults += 1;
                    kubelet::delete(&world.admin, pod).await;
                }
                20..50 => kubelet::has_moved_data(&world.admin, pod).await,
                _ => {}
            }
        }
    }

    /// Lets the agents look at each other.
    fn look(&self, pods: &[Value]) {
        pods.iter().for_each(|pod| drop(self.agents.look(pod)));
    }

    /// Makes something happen.
    async fn blow(&mut self, world: &World, random: &mut StdRng) {
        let (pods, movers) = self.pods(world);
        self.look(&pods);
        self.move_data(world, &movers, random).await;
        let Some(pod) = pods.choose(random) else { return };
        match random.random_range(0..100) {
            0..40 => self.agents.fail(&world.admin, pod, random.random_range(1..=136)).await,
            40..55 => {
                self.gone += 1;
                kubelet::try_to_evict(&world.admin, pod).await;
            }
            55..70 => {
                self.gone += 1;
                kubelet::delete(&world.admin, pod).await;
            }
            70..80 => {
                let node = pod["spec"]["nodeName"].clone();
                for pod in pods.iter().filter(|pod| pod["spec"]["nodeName"] == node) {
                    self.gone += 1;
                    kubelet::lose(&world.admin, pod).await;
                }
            }
            80..90 => {
                if self.operator.take().is_some() {
                    self.kills += 1;
                    self.back = Instant::now() + Duration::from_millis(random.random_range(0..4000));
                }
            }
            _ => _ = self.agents.complete(&world.admin, pod).await,
        }
        let (pods, _) = self.pods(world);
        self.look(&pods);
    }

    fn come_back(&mut self, world: &World) {
        if self.operator.is_none() && Instant::now() >= self.back {
            let instructions = Instructions { agents: Some(self.agents.clone()), ..Instructions::default() };
            self.operator = Some(Operator::start(world, &self.name, instructions));
        }
    }

    fn unfinished(&self, world: &World) -> Vec<String> {
        let is_over = |job: &&Value| ["Completed", "Failed"].iter().any(|state| job["status"]["state"] == *state);
        let name = |job: &Value| job["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        world
            .witness
            .read(&self.name, |space| space.of_kind(Kind::TrainingJob).filter(|job| !is_over(job)).map(name).collect())
    }

    /// Everything that is not as it should be.
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
            if restarts != attempt - 1 {
                says(format!("{restarts} restarts in {attempt} attempts"));
            }
            if failures > plan.backoff_limit {
                says(format!("{failures} restarts with a backoffLimit of {}", plan.backoff_limit));
            }
            // The history that its last gang knows is true.
            let Some((number, gang)) = self.agents.last(name) else {
                says("no gang of it ever ran".to_owned());
                continue;
            };
            let reported = json!([status["incarnation"], attempt, failures, disruptions]);
            let known = json!([number, gang.attempt, gang.restarts.failures, gang.restarts.disruptions]);
            if reported != known && status["incarnation"].as_i64() == Some(number) {
                says(format!("incarnation, attempt, failures and disruptions are {known}, and it tells {reported}"));
            }
            let ended_well = gang.phase == GangPhase::Over
                && gang.ended.last().is_none_or(|end| i64::from(end.attempt) < i64::from(gang.attempt));
            match status["state"].as_str() {
                Some("Completed") if !ended_well => says("it is Completed, and its programs were not".to_owned()),
                Some("Completed") if plan.moves_data && status["result"].is_null() => {
                    says("it is Completed, and its result is not published".to_owned());
                }
                Some("Completed") => {}
                // The tenth interruption in a row leads to no restart any more.
                Some("Failed") if failures == plan.backoff_limit || disruptions >= 9 => {}
                _ => says(format!("it should not be as it is: {status}")),
            }
            let jobs: Vec<_> = space.of_kind(Kind::Job).filter(|job| owner(job) == Some(name)).collect();
            if jobs.len() > 1 {
                let metadata: Vec<_> = jobs.iter().map(|job| &job["metadata"]).collect();
                says(format!("{} Jobs are left: {}", jobs.len(), json!(metadata)));
            }
            if let Err(broken) = outcome::invariants(&alone(space, name), true) {
                says(broken);
            }
        }
        let living = space.of_kind(Kind::Pod).filter(|pod| runs(pod)).map(|pod| pod["metadata"]["name"].to_string());
        wrong.extend(living.map(|pod| format!("{}: pod {pod} still runs", self.name)));
        let known: BTreeSet<&str> = self.jobs.keys().map(String::as_str).collect();
        for kind in [Kind::Job, Kind::Service, Kind::ConfigMap, Kind::NetworkPolicy] {
            let is_orphan = |object: &&Value| owner(object).is_some_and(|owner| !known.contains(owner));
            let orphans = space.of_kind(kind).filter(is_orphan).map(|object| object["metadata"]["name"].to_string());
            wrong.extend(orphans.map(|name| format!("{}: {kind:?} {name} is orphaned", self.name)));
        }
        wrong
    }
}

/// The TrainingJob to which an object belongs.
fn owner(object: &Value) -> Option<&str> {
    object["metadata"]["ownerReferences"][0]["name"].as_str()
}

/// Everything that was seen of one job and its children, without other jobs.
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

#[test]
fn every_job_ends_correctly_after_a_storm() {
    testkit::support::run(storm());
}

async fn storm() {
    let seed = seed();
    let (jobs, length) = (variable("STORM_JOBS", 20), Duration::from_secs(variable("STORM_SECONDS", 15)));
    println!("STORM_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let world: Arc<World> = World::shared().await;
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
            let (jobs, (pods, movers)) = (sea.unfinished(&world), sea.pods(&world));
            sea.look(&pods);
            for pod in &movers {
                kubelet::has_moved_data(&world.admin, pod).await;
            }
            for pod in jobs.iter().filter_map(|job| pods.iter().find(|pod| job_of(pod) == *job)) {
                sea.agents.complete(&world.admin, pod).await;
            }
            sea.look(&sea.pods(&world).0);
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
        // An object that the operator deletes goes when the garbage collector has processed it.
        let at_rest = |space: &Space| {
            let goes = |object: &Arc<Value>| !object["metadata"]["deletionTimestamp"].is_null();
            (!space.of_kind(Kind::Pod).any(runs) && !space.now.values().any(goes)).then_some(())
        };
        sea.operator.as_ref().expect("all came back").idle().await.unwrap();
        world.witness.until(&sea.name, "no pod to run, and all that was deleted to be gone", at_rest).await.unwrap();
        sea.operator.as_ref().expect("all came back").idle().await.unwrap();
        wrong.extend(world.witness.read(&sea.name, |space| sea.wrong(space)));
    }
    let first_pods: i64 = seas.iter().flat_map(|sea| sea.jobs.values()).map(|plan| plan.workers).sum();
    let first_pods = usize::try_from(first_pods).unwrap();
    let attempts: usize = seas
        .iter()
        .map(|sea| {
            world.witness.read(&sea.name, |space| {
                space.of_kind(Kind::TrainingJob).filter_map(|job| job["status"]["attempt"].as_u64()).sum::<u64>()
            })
        })
        .map(|attempts| usize::try_from(attempts).unwrap_or(0))
        .sum();
    println!(
        "{jobs} jobs, {faults} faults in {:.0} s, {} kills of operators, {attempts} attempts; {} pods made again for {} that \
         went, and of those that moved data {} failed or went; all at an end {:.0} s later",
        (calm - began).as_secs_f64(),
        seas.iter().map(|sea| sea.kills).sum::<u32>(),
        seas.iter().map(|sea| world.witness.read(&sea.name, |space| space.ever(Kind::Pod))).sum::<usize>() - first_pods,
        seas.iter().map(|sea| sea.gone).sum::<usize>(),
        seas.iter().flat_map(|sea| sea.unmoved.values()).sum::<u32>(),
        calm.elapsed().as_secs_f64()
    );
    assert!(wrong.is_empty(), "STORM_SEED={seed}: {} things are wrong:\n{}", wrong.len(), wrong.join("\n"));
}
