//! Jobs whose workers run tests/programs/gang.py, and what a test asks of them and does to them.

use crate::behind;
use crate::world::{Job, SOON, Space, merged};
use api::{State, TrainingJobStatus};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::time::Instant;
use testkit::job::index;
use testkit::process::{Process, Signal};
use testkit::training::{self, Folder};
use tokio::sync::OnceCell;

/// A job whose workers run gang.py.
pub struct Training {
    job: Job,
    folder: OnceCell<Folder>,
}

/// The meeting of an attempt's ranks.
#[derive(Clone, Copy)]
pub struct Met {
    pub at: Instant,
    /// The step from which they resume.
    pub from: u32,
}

/// A process of a worker.
#[derive(Clone, Debug)]
pub struct Member {
    pub process: Process,
    /// UID of its pod.
    pub pod: String,
    pub worker: u32,
    /// 0 for an agent.
    pub attempt: u32,
    pub is_agent: bool,
    /// The rank for which the launcher has started it.
    pub rank: Option<u32>,
}

/// What a signal can be sent to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    Rank(u32),
    /// The agent of a worker. It is PID 1, whose end ends its container.
    Agent(u32),
    /// Every process of a worker.
    Container(u32),
}

impl Target {
    fn matches(self, member: &Member) -> bool {
        match self {
            Self::Rank(rank) => member.rank == Some(rank),
            Self::Agent(worker) => member.is_agent && member.worker == worker,
            Self::Container(worker) => member.worker == worker,
        }
    }
}

impl Deref for Training {
    type Target = Job;

    fn deref(&self) -> &Job {
        &self.job
    }
}

impl Training {
    /// Workers that train until the test ends the training, and save to a claim. `env` is gang.py's, `fields` are the
    /// spec's.
    pub async fn submit(space: &Space, name: &str, workers: u32, env: Value, fields: Value) -> Self {
        let env: Vec<Value> =
            env.as_object().unwrap().iter().map(|(name, value)| json!({ "name": name, "value": value })).collect();
        let spec = json!({
            "command": ["python3", "/programs/gang.py"], "env": env, "numWorkers": workers,
            "checkpoint": { "storage": { "type": "pvc", "size": "1Gi" } }, "failurePolicy": { "backoffLimit": 100 },
        });
        Self { job: space.submit(name, merged(spec, &fields)).await, folder: OnceCell::new() }
    }

    /// A training that another program has created.
    pub async fn watch(space: &Space, name: &str) -> Self {
        Self { job: space.watch(name).await, folder: OnceCell::new() }
    }

    /// The folder in which it saves, once it has run.
    pub async fn folder(&self) -> &Folder {
        let claim = format!("{}-checkpoints", self.name);
        self.folder.get_or_init(|| async { Folder(behind(&self.space, &claim).await) }).await
    }

    /// Waits until the ranks of an attempt have met. The job must be in its first attempt or have been.
    pub async fn meets(&self, attempt: u32) -> Met {
        self.reaches(State::Running).await;
        let folder = self.folder().await;
        self.eventually(&format!("the ranks of attempt {attempt} to meet"), async || {
            let history = folder.history();
            if let Some(&(_, from)) = history.iter().find(|line| line.0 == attempt) {
                return Some(Met { at: Instant::now(), from });
            }
            if history.iter().any(|line| line.0 > attempt) {
                self.explain(&format!("the ranks of attempt {attempt} have not met: {history:?}"));
            }
            None
        })
        .await
    }

    /// Waits for a whole checkpoint of this step or a later one, judged by its content. Returns its step.
    pub async fn saves(&self, step: u32) -> u32 {
        let folder = self.folder().await;
        self.eventually(&format!("step {step} to be saved"), async || folder.saved_since(step)).await
    }

    /// Every running process of its workers.
    pub fn members(&self) -> Vec<Member> {
        let place = |pod: &Pod| Some((pod.uid()?, index(pod)?));
        let workers: BTreeMap<String, u32> = self.pods().iter().filter_map(place).collect();
        let member = |process: Process| {
            let number = |name: &str| process.variable(name).and_then(|text| text.parse().ok());
            let pod = process.variable("POD_UID")?.to_owned();
            Some(Member {
                worker: *workers.get(&pod)?,
                attempt: number("ATTEMPT").unwrap_or(0),
                is_agent: process.command.starts_with(b"/trainingjob/agent"),
                rank: number("LOCAL_RANK").and_then(|_| number("RANK")),
                pod,
                process,
            })
        };
        Process::with_variable("POD_UID").into_iter().filter_map(member).collect()
    }

    /// Waits until the programs of this attempt run in every worker, and no other program does. Returns when that was
    /// first seen.
    pub async fn runs(&self, attempt: u32, workers: u32) -> Instant {
        self.eventually(&format!("attempt {attempt} to run in {workers} workers"), async || {
            let programs = self.programs();
            let (own, others): (Vec<_>, Vec<_>) = programs.iter().partition(|member| member.attempt == attempt);
            let runs: BTreeSet<u32> = own.iter().map(|member| member.worker).collect();
            if runs != (0..workers).collect() {
                return None;
            }
            let at = Instant::now();
            // /proc is not read at one instant. Only a process that is still alive runs beside them.
            let strays: Vec<_> = others.into_iter().filter(|member| member.process.is_alive()).collect();
            if !strays.is_empty() {
                self.explain(&format!("two attempts at once: {strays:?}"));
            }
            Some(at)
        })
        .await
    }

    /// The same for the attempt that follows this one. A new leader skips a number that its predecessor may have given
    /// out.
    pub async fn runs_next(&self, last: u32, workers: u32) -> (u32, Instant) {
        let what = format!("an attempt after {last} to run");
        let next = self.eventually(&what, async || {
            let programs = self.programs();
            let newest = programs.iter().map(|member| member.attempt).max().filter(|&newest| newest > last)?;
            let runs: BTreeSet<u32> =
                programs.iter().filter(|member| member.attempt == newest).map(|member| member.worker).collect();
            (runs == (0..workers).collect()).then_some(newest)
        });
        let next = next.await;
        (next, self.runs(next, workers).await)
    }

    fn programs(&self) -> Vec<Member> {
        self.members().into_iter().filter(|member| !member.is_agent && member.attempt != 0).collect()
    }

    /// Sends a signal to the running processes of a target.
    pub fn strike(&self, target: Target, signal: Signal) {
        let struck = self.members().into_iter().filter(|member| target.matches(member));
        // An agent's children go with it.
        let struck = struck.filter(|member| member.process.send_signal(signal)).count();
        if struck == 0 {
            self.explain(&format!("nothing runs of {target:?}"));
        }
    }

    /// Ends the training, and waits until the job is Completed. Each of this many workers must have the weights of its
    /// number of steps.
    pub async fn completes(&self, workers: u32) -> TrainingJobStatus {
        self.folder().await.enough();
        let status = self.state(State::Completed).await;
        let pods = self.workers();
        let mut all = BTreeSet::new();
        for worker in 0..workers {
            let pod = pods[&worker].name_any();
            let (steps, weights) = testkit::wait::eventually(&format!("the end of {pod}'s log"), SOON, async || {
                let log = String::from_utf8_lossy(&self.space.logs(&pod)).into_owned();
                training::ended(&log).map(|(steps, weights)| (steps, weights.to_owned()))
            })
            .await;
            assert_eq!(weights, training::weights(steps), "of worker {worker} after {steps} steps");
            all.insert(steps);
        }
        assert_eq!(all.len(), 1, "all workers train as many steps, not {all:?}");
        status
    }
}
