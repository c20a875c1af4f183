//! A job and what is seen of it. Faults and the usual work of the controllers change it at random.

use super::moods::Mood;
use crate::{Action, Decision, Input, decide};
use api::{AttemptEnd, Reason, State, TrainingJob, TrainingJobSpec, TrainingJobStatus};
use jiff::Timestamp;
use observe::{
    AgentAnswer, Blocked, ChildKey, Children, Container, Disruption, ObjectEvent, ObservedJob, ObservedPod,
    ObservedUpkeep, ObservedWorkload, WaitingState,
};
use plan::OperatorInfo;
use protocol::agent_status::AgentStatus;
use protocol::checkpoints::{Checkpoints, GoodCheckpoint, Problem, ProblemKind};
use protocol::gang::{GangEnd, GangPhase, GangStatus};
use protocol::gpu::Gpu;
use protocol::hang::Stall;
use protocol::inputs::FetchedContent;
use protocol::metric_history::{MetricHistory, NumberedReading};
use protocol::progress::{Progress, Reading, Source};
use protocol::report::{LastProgress, LaunchError, LaunchErrorKind, Report};
use protocol::result::Publication;
use protocol::role::RoleName;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use text::error_pattern::{ErrorMatch, ErrorPattern};

#[derive(Clone)]
pub(super) struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    /// True once in `n`.
    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
    pub(super) fn pick<'t, T>(&mut self, all: &'t [T]) -> &'t T {
        &all[self.below(all.len() as u64) as usize]
    }
}

pub(super) fn fetched_model() -> FetchedContent {
    let (name, key, revision) = ("model".to_owned(), "key".to_owned(), "1".to_owned());
    FetchedContent { name, key, revision, ..FetchedContent::default() }
}

pub(super) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

/// The program of a pod ends.
pub(super) fn end_program(
    pod: &mut ObservedPod,
    started: Timestamp,
    finished: Timestamp,
    exit_code: i32,
    report: Option<Box<Report>>,
) {
    pod.ended = Some(exit_code == 0);
    pod.training = Container::Terminated {
        started: Some(started),
        finished: Some(finished),
        exit_code,
        reason: if exit_code == 0 { "Completed" } else { "Error" }.into(),
        report,
        message: None,
    };
}

#[derive(Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct World {
    pub(super) rng: Rng,
    pub(super) spec: TrainingJobSpec,
    pub(super) status: TrainingJobStatus,
    pub(super) children: Children,
    pub(super) agent: Option<AgentAnswer>,
    pub(super) silent_since: Option<Timestamp>,
    pub(super) refusal: bool,
    pub(super) held: bool,
    pub(super) stopped: bool,
    pub(super) refused: bool,
    pub(super) asked: u32,
    pub(super) second: i64,
    pods: u32,
    gone_for: BTreeMap<String, u32>,
    pub(super) mood: Mood,
}

/// What kubelet reports for a container that does not run.
const WAIT_REASONS: [&str; 11] = [
    "ImagePullBackOff",
    "ErrImagePull",
    "InvalidImageName",
    "ErrImageNeverPull",
    "RegistryUnavailable",
    "ImageInspectError",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "ContainerCreating",
    "PodInitializing",
];
const REASONS: [&str; 9] =
    ["ExitCode", "no word", "Signal", "Signal", "Signal", "NodeLost", "Evicted", "Resized", "Unkillable"];

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = Rng(seed);
        let mut spec = json!({
            "model": "m",
            "dataset": "d",
            "framework": *rng.pick(&["pytorch", "tensorflow", "mpi"]),
            "numWorkers": 2 + rng.below(3),
            "gpusPerWorker": rng.below(3),
            "failurePolicy": { "backoffLimit": rng.below(4) },
        });
        if rng.one_in(3) {
            spec["roles"] = json!([{ "name": "chief", "replicas": 1 }, { "name": "ps", "replicas": 2 }]);
        } else if rng.one_in(2) {
            spec["framework"] = json!("pytorch");
            spec["elastic"] = json!({ "minWorkers": 1, "maxWorkers": 5, "waitSeconds": 30 });
        }
        if rng.one_in(3) {
            spec["scheduling"] = json!({ "queue": "q" });
        } else if rng.one_in(4) {
            spec["scheduling"] = json!({ "gang": "coscheduling" });
        }
        if rng.one_in(3) {
            spec["failurePolicy"]["startDeadlineSeconds"] = json!(60 + rng.below(400));
        }
        if rng.one_in(3) {
            spec["failurePolicy"]["activeDeadlineSeconds"] = json!(300 + rng.below(3000));
        }
        if rng.one_in(5) {
            spec["failurePolicy"]["restartPolicy"] = json!("Never");
        }
        if rng.one_in(2) {
            spec["failurePolicy"]["nodeLostSeconds"] = json!(60 + rng.below(100));
        }
        if rng.one_in(2) {
            spec["ttlSecondsAfterFinished"] = json!(rng.below(300));
        }
        if rng.one_in(2) {
            spec["checkpoint"] = json!({ "enabled": true, "storage": { "type": "pvc" } });
            if rng.one_in(3) {
                spec["checkpoint"]["resumeFrom"] = json!(*rng.pick(&["s3://b/x", "/checkpoints/x", "/other/x"]));
            }
            if rng.one_in(2) {
                spec["checkpoint"]["backup"] = json!({ "destination": "s3://b/y" });
            }
            if rng.one_in(2) {
                spec["output"] = json!("s3://bucket/results");
            }
        }
        if rng.one_in(4) {
            spec["model"] = json!("s3://bucket/model");
            spec["cache"] = json!({ "pvcName": "cache" });
        }
        if rng.one_in(3) {
            spec["successPolicy"] = json!({ "targetLoss": 0.1, "targetAccuracy": 0.9 });
        }
        if rng.one_in(4) {
            let (mode, patience) = (*rng.pick(&["min", "max"]), 1 + rng.below(2));
            spec["successPolicy"] = json!({ "earlyStopping": { "enabled": true, "patience": patience, "mode": mode } });
            if rng.one_in(2) {
                spec["successPolicy"]["earlyStopping"]["metric"] = json!("loss");
            }
        }
        if rng.one_in(6) {
            spec["monitoring"] = json!({ "tensorboardEnabled": true });
        } else if rng.one_in(8) {
            spec["monitoring"] = json!({ "enabled": false });
        }
        let mood = Mood::draw(&mut rng);
        mood.prepare(&mut rng, &mut spec);
        let spec: TrainingJobSpec = serde_json::from_value(spec).unwrap();
        let refused = rng.one_in(12);
        World {
            rng,
            spec,
            status: TrainingJobStatus::default(),
            children: Children::default(),
            agent: None,
            silent_since: None,
            refusal: false,
            held: false,
            stopped: false,
            refused,
            asked: 0,
            second: 100,
            pods: 0,
            gone_for: BTreeMap::new(),
            mood,
        }
    }

    pub(super) fn plan(&self) -> plan::Plan {
        let mut job = TrainingJob::new("x", self.spec.clone());
        let asked = (self.asked > 0).then(|| (plan::labels::RESTART_REQUESTED.to_owned(), self.asked.to_string()));
        job.metadata.annotations = Some(asked.into_iter().collect());
        job.status = Some(self.status.clone());
        let runtime = OperatorInfo { agent_image: "agent".into(), ..OperatorInfo::default() };
        plan::resolve(&job, &runtime).plan
    }

    pub(super) fn attempt(&self) -> u32 {
        self.status.attempt.unwrap_or(1)
    }

    pub(super) fn number(&self) -> u32 {
        self.status.incarnation.unwrap_or(1)
    }

    fn time(&mut self) -> Timestamp {
        let back = self.rng.below(30) as i64;
        at(self.second - back)
    }

    pub(super) fn any_job(&mut self) -> Option<RoleName> {
        let roles: Vec<RoleName> = self.children.jobs.keys().copied().collect();
        (!roles.is_empty()).then(|| *self.rng.pick(&roles))
    }

    pub(super) fn any_pod(&mut self) -> Option<String> {
        let uids: Vec<String> = self.children.pods.keys().cloned().collect();
        (!uids.is_empty()).then(|| self.rng.pick(&uids).clone())
    }

    pub(super) fn report(&mut self) -> Report {
        let (attempt, number) = (self.attempt(), self.number());
        let mut report = Report { attempt, ..Report::default() };
        if self.rng.one_in(3) {
            let ended = (1..attempt).map(|n| self.end(n)).collect();
            report.gang = Some(GangEnd { ended, restarts: self.history() });
        }
        if self.rng.one_in(3) {
            let step = Some(self.rng.below(100) as f64);
            report.progress =
                Some(LastProgress { step, loss: Some(0.5), time: Some(self.time()), ..LastProgress::default() });
        }
        if self.rng.one_in(3) {
            report.checkpoints = Some(self.checkpoints());
        }
        if self.rng.one_in(4) {
            report.stopped_by = Some(15);
        }
        if self.rng.one_in(4) {
            report.finished_at = Some(self.time());
        }
        if self.rng.one_in(30) {
            report.attempt = number;
        }
        if self.rng.one_in(8) {
            let kind = *self.rng.pick(&[
                LaunchErrorKind::ContentRefused,
                LaunchErrorKind::CheckpointUnusable,
                LaunchErrorKind::StorageUnavailable,
                LaunchErrorKind::NoUsableCheckpoint,
            ]);
            report.error = Some(LaunchError { kind, message: "it can't be read".into() });
        }
        report
    }

    fn history(&mut self) -> protocol::attempt::RestartHistory {
        let failures = self.rng.below(3) as u32;
        let judged = self.attempt().saturating_sub(self.rng.below(2) as u32);
        protocol::attempt::RestartHistory { judged, failures, disruptions: 1, ..Default::default() }
    }

    fn end(&mut self, attempt: u32) -> AttemptEnd {
        let reason = *self.rng.pick(&REASONS);
        let worker = Some(self.rng.below(4) as u32);
        let signal = reason == "Signal";
        AttemptEnd {
            time: if signal { Some(at(self.second)) } else { Some(self.time()) },
            worker,
            disruption: self.rng.one_in(2),
            exit_code: (signal || self.rng.one_in(2)).then_some(137),
            ran_seconds: self.rng.below(100) as i64,
            ..AttemptEnd::new(attempt, Reason::from(reason), "it ended")
        }
    }

    pub(super) fn checkpoints(&mut self) -> Checkpoints {
        let mut kept = |name: &str| {
            let step = self.rng.below(4);
            let time = self.rng.one_in(2).then(|| at(self.second));
            let metric = self.rng.one_in(2).then_some(0.5);
            self.rng.one_in(2).then(|| GoodCheckpoint {
                path: format!("/{name}/{step}"),
                step: Some(step),
                time,
                metric,
                ..GoodCheckpoint::default()
            })
        };
        let (latest, copied, resumed_from, best) = (kept("a"), kept("b"), kept("c"), kept("d"));
        let kind = *self.rng.pick(&[
            ProblemKind::Corrupted,
            ProblemKind::NearlyFull,
            ProblemKind::CopyFailing,
            ProblemKind::Shared,
            ProblemKind::Suspect,
            ProblemKind::Unreadable,
        ]);
        let message = format!("problem {}", self.rng.below(2));
        let problems = if self.rng.one_in(3) { vec![Problem { kind, message }] } else { vec![] };
        let to_copy = self.rng.one_in(2).then(|| "/a/1".to_owned());
        let wish_used = self.rng.one_in(5).then(|| self.time());
        Checkpoints { latest, best, copied, resumed_from, problems, to_copy, wish_used, ..Checkpoints::default() }
    }

    pub(super) fn answer(&mut self) -> AgentAnswer {
        let attempt = self.attempt() + u32::from(self.rng.one_in(6));
        let mut status = AgentStatus { report: Report { attempt, ..Report::default() }, ..AgentStatus::default() };
        let ours: Vec<String> = self
            .children
            .pods
            .values()
            .filter(|pod| !pod.gone && pod.incarnation == self.number())
            .map(|p| p.uid.clone())
            .collect();
        if !ours.is_empty() && !self.rng.one_in(20) {
            status.pod_uid = Some(self.rng.pick(&ours).clone());
        }
        if !self.rng.one_in(6) {
            let phase = *self.rng.pick(&[
                GangPhase::Running,
                GangPhase::Running,
                GangPhase::Running,
                GangPhase::Gathering,
                GangPhase::Stopping,
                GangPhase::Over,
            ]);
            let count = self.rng.below(3) as u32;
            let ended: Vec<_> = (attempt.saturating_sub(count).max(1)..attempt + u32::from(self.rng.one_in(3)))
                .map(|n| self.end(n))
                .collect();
            status.gang = Some(GangStatus {
                attempt,
                workers: self.rng.below(5) as u32,
                restarts: self.history(),
                phase,
                stopping_since: (phase == GangPhase::Stopping && !self.rng.one_in(8))
                    .then(|| at(self.second - self.rng.below(2500) as i64)),
                waits_for: if self.rng.one_in(2) { "worker 1".into() } else { String::new() },
                code: None,
                ended,
            });
        }
        if self.rng.one_in(3) {
            status.checkpoints = Some(self.checkpoints());
        }
        if self.rng.one_in(2) {
            let back = *self.rng.pick(&[0, 10, 590, 700]);
            let reading = |value| Some(Reading { value, time: at(self.second - back), source: Source::Output });
            let loss = *self.rng.pick(&[0.05, 0.5, 0.5, 0.9, f64::NAN]);
            status.percent = self.rng.one_in(2).then(|| *self.rng.pick(&[10.0, 100.0]));
            status.report.started_at = self.rng.one_in(2).then(|| at(100));
            let further = if self.rng.one_in(10) { 120 } else { 0 };
            let names = ["loss", "accuracy", "learningRate", "throughput", "f1"].map(str::to_owned);
            let names = names.into_iter().chain((0..further).map(|n| format!("metric-{n}")));
            status.progress = Progress {
                step: reading(self.rng.below(100) as f64),
                metrics: names.map(|name| (name, reading(loss).unwrap())).collect(),
                eta_seconds: if self.rng.one_in(2) { reading(9.0) } else { None },
                ..Progress::default()
            };
            let (n, step) = (self.rng.below(9) + 1, Some(self.rng.below(100) as f64));
            let recent = [NumberedReading { n, value: loss, step, is_percentage: n % 2 == 0 }].into();
            let history = MetricHistory { count: n, recent };
            status.histories = ["loss", "accuracy"].map(|name| (name.to_owned(), history.clone())).into();
            if self.mood == Mood::Success {
                let accuracy = status.histories.get_mut("accuracy").unwrap();
                accuracy.recent.iter_mut().for_each(|reading| reading.value = 0.95);
            }
        }
        if self.rng.one_in(4) {
            let utilization_percent = self.rng.one_in(2).then_some(50.0);
            status.gpus = vec![Gpu { utilization_percent, ..Gpu::default() }];
        }
        if self.rng.one_in(5) {
            let error = ErrorMatch { kind: ErrorPattern::NanLoss, text: "loss: nan".into(), ..ErrorMatch::default() };
            status.report.error_patterns = vec![error];
        }
        if self.rng.one_in(5) {
            status.worker = self.rng.one_in(2).then_some(1);
            status.stall = Some(Stall {
                hangs: self.rng.one_in(2),
                message: "it hangs".into(),
                rank: self.rng.one_in(2).then_some(3),
                ..Stall::default()
            });
        }
        let failing_since = self.rng.one_in(5).then(|| at(self.second - self.rng.below(200) as i64));
        AgentAnswer { status: Arc::new(status), time: self.time(), failing_since, remaining: None }
    }

    pub(super) fn make_pod(&mut self, role: RoleName, index: u32, number: u32) {
        self.pods += 1;
        let uid = format!("pod-{}", self.pods);
        let pod = ObservedPod {
            uid: uid.clone(),
            name: format!("x-{role}-{index}-{}", self.pods),
            role,
            index,
            incarnation: number,
            created: Some(at(self.second)),
            tracked: true,
            mesh: self.rng.one_in(8).then_some("istio-proxy"),
            ..ObservedPod::default()
        };
        self.children.pods.insert(uid, Box::new(pod));
    }

    /// The usual work of the controllers.
    fn controllers(&mut self) {
        let jobs: Vec<ObservedJob> = self.children.jobs.values().map(|job| (**job).clone()).collect();
        for job in jobs {
            if job.suspend || job.deleting || job.failed.is_some() || job.complete {
                continue;
            }
            let wanted = job.parallelism.unwrap_or(2).max(0) as u32;
            for index in 0..wanted {
                let has = self.children.pods.values().any(|pod| {
                    pod.role == job.role
                        && pod.index == index
                        && pod.incarnation == job.incarnation
                        && (!pod.gone && pod.ended != Some(false) || pod.ended == Some(true))
                });
                if !has && !self.rng.one_in(3) && !job.completed.contains(&index) {
                    self.make_pod(job.role, index, job.incarnation);
                }
            }
        }
        let (now, calm) = (self.second, !self.rng.one_in(8));
        for pod in self.children.pods.values_mut().filter(|_| calm) {
            if pod.gone || pod.ended.is_some() || pod.deletion.is_some() {
                continue;
            }
            if pod.node.is_none() {
                if self.rng.below(4) > 0 {
                    pod.node = Some(format!("node-{}", pod.index));
                    pod.scheduled_at = Some(at(now));
                    pod.unschedulable = None;
                }
            } else if !matches!(pod.training, Container::Running { .. }) && self.rng.below(4) > 0 {
                pod.training = Container::Running { since: Some(at(now)) };
                (pod.waiting, pod.killed) = (None, None);
            }
        }
        // Pods that were asked to end go.
        for pod in self.children.pods.values_mut() {
            if pod.deletion.is_some() && !pod.gone && self.rng.one_in(4) {
                pod.gone = true;
            }
        }
        let deleted: Vec<_> =
            self.children.jobs.iter().filter(|(_, job)| job.deleting).map(|(role, _)| *role).collect();
        for role in deleted {
            if self.rng.one_in(2) {
                let job = self.children.jobs.remove(&role).unwrap();
                for pod in self.children.pods.values_mut() {
                    if pod.role == role && pod.incarnation == job.incarnation && self.rng.below(5) > 0 {
                        pod.gone = true;
                        pod.deletion = pod.deletion.or(Some(at(self.second)));
                    }
                }
            }
        }
        if self.rng.one_in(4) {
            let old: Vec<_> = self.children.pods.values().filter(|pod| pod.gone).map(|pod| pod.uid.clone()).collect();
            for uid in old {
                let count = self.gone_for.entry(uid.clone()).or_default();
                *count += 1;
                if *count > 3 {
                    self.children.pods.remove(&uid);
                }
            }
        }
    }

    pub(super) fn act(&mut self, action: &Action) {
        match action {
            Action::CreateJobs(incarnation, _) => {
                let queue = self.spec.scheduling.queue.is_some();
                for role in &self.plan().gang.roles {
                    if self.rng.one_in(if role.name.is_worker() { 6 } else { 30 }) {
                        let blocked = Blocked { reason: Reason::Storage, ..Blocked::deleting("no") };
                        self.children.blocked.insert(ChildKey::job(role.name), blocked);
                        continue;
                    }
                    let old = self.children.jobs.get(&role.name);
                    if old.is_some_and(|job| job.incarnation >= incarnation.number) {
                        continue;
                    }
                    let job = ObservedJob {
                        uid: format!("job-{}-{}", role.name, incarnation.number),
                        name: format!("x-{}", role.name),
                        role: role.name,
                        incarnation: incarnation.number,
                        first_attempt: incarnation.attempt,
                        created: Some(at(self.second)),
                        taken_up: Some(at(self.second)),
                        parallelism: Some(role.replicas.into()),
                        suspend: queue,
                        suspended_by_queue: queue,
                        ..ObservedJob::default()
                    };
                    self.children.jobs.insert(role.name, Box::new(job));
                }
            }
            Action::DeleteJob { uid, .. } | Action::EndJob { uid, .. } => {
                if let Some(job) = self.children.jobs.values_mut().find(|job| job.uid == *uid) {
                    job.deleting = true;
                }
                if self.children.upkeep.as_ref().is_some_and(|job| job.uid == *uid) {
                    self.children.upkeep = None;
                }
            }
            Action::ReleasePod { uid, force, .. } => {
                if let Some(pod) = self.children.pods.get_mut(uid) {
                    pod.tracked = false;
                    if *force {
                        pod.gone = true;
                        pod.deletion = pod.deletion.or(Some(at(self.second)));
                    }
                }
            }
            Action::ScaleJob { uid, pods, .. } => {
                if let Some(job) = self.children.jobs.values_mut().find(|job| job.uid == *uid) {
                    job.parallelism = Some((*pods).into());
                }
            }
            Action::NudgePod { uid, size, .. } => {
                if let Some(pod) = self.children.pods.get_mut(uid) {
                    pod.gang_size = Some(*size);
                }
            }
            Action::CreateUpkeep(task) => {
                self.pods += 1;
                let uid = format!("upkeep-{}", self.pods);
                self.children.upkeep = Some(ObservedUpkeep {
                    uid,
                    name: "x-checkpoints".into(),
                    task: task.as_str().into(),
                    created: Some(at(self.second)),
                    ..ObservedUpkeep::default()
                });
            }
            Action::UnsuspendJob { uid, .. } => {
                if let Some(job) = self.children.jobs.values_mut().find(|job| job.uid == *uid) {
                    (job.suspend, job.suspended_by_queue) = (false, false);
                    job.resumed = Some(at(self.second));
                }
            }
            Action::SuspendJob { uid, .. } => {
                if let Some(job) = self.children.jobs.values_mut().find(|job| job.uid == *uid) {
                    (job.suspend, job.suspended_by_queue) = (true, true);
                }
            }
            Action::EnsureWorkload => {
                self.children.workload.get_or_insert_with(|| ObservedWorkload {
                    uid: "w".into(),
                    name: "w".into(),
                    ..ObservedWorkload::default()
                });
            }
            Action::EnsureGroup => self.children.group_looked_at = Some(at(self.second)),
            Action::DeleteWorkload { .. } => self.children.workload = None,
            _ => {}
        }
    }

    /// An unwanted event.
    fn fault(&mut self) {
        match self.rng.below(30) {
            0..=3 => {
                // A program ends.
                let Some(uid) = self.any_pod() else { return };
                let exit_code = *self.rng.pick(&[0, 0, 0, 1, 137]);
                let (report, finished) = (self.rng.one_in(2).then(|| Box::new(self.report())), self.time());
                let started = at(self.second - 20);
                end_program(self.children.pods.get_mut(&uid).unwrap(), started, finished, exit_code, report);
            }
            4 => {
                // All programs end.
                let exit_code = i32::from(self.rng.one_in(4));
                let report = self.rng.one_in(3).then(|| Box::new(self.report()));
                let (started, finished) = (at(self.second - 20), at(self.second));
                for pod in self.children.pods.values_mut().filter(|pod| !pod.gone) {
                    end_program(pod, started, finished, exit_code, report.clone());
                }
            }
            5 => {
                let Some(role) = self.any_job() else { return };
                let word = *self.rng.pick(&["BackoffLimitExceeded", "PodFailurePolicy"]);
                self.children.jobs.get_mut(&role).unwrap().failed = Some((word.into(), "it has".into()));
                let now = self.second;
                for pod in self.children.pods.values_mut().filter(|pod| !pod.gone) {
                    pod.deletion = pod.deletion.or(Some(at(now)));
                    pod.end_by = pod.end_by.or(Some(at(now + 60)));
                }
            }
            6 => {
                let Some(role) = self.any_job() else { return };
                let job = self.children.jobs.get_mut(&role).unwrap();
                if self.rng.one_in(2) {
                    job.complete = true;
                } else {
                    job.completed.insert(self.rng.below(3) as u32);
                }
            }
            7 => {
                let Some(role) = self.any_job() else { return };
                if self.rng.one_in(2) {
                    self.children.jobs.get_mut(&role).unwrap().deleting = true;
                } else {
                    self.children.jobs.remove(&role);
                }
            }
            kind => self.pod_fault(kind),
        }
    }

    /// An event that concerns a pod.
    fn pod_fault(&mut self, kind: u64) {
        match kind {
            8 | 9 => {
                let Some(uid) = self.any_pod() else { return };
                let now = self.second;
                let pod = self.children.pods.get_mut(&uid).unwrap();
                pod.deletion = pod.deletion.or(Some(at(now)));
                pod.end_by = Some(at(now + 30));
            }
            10 | 11 => {
                let Some(uid) = self.any_pod() else { return };
                let reason =
                    *self.rng.pick(&["PreemptionByScheduler", "EvictionByEvictionAPI", "DeletionByTaintManager"]);
                let now = self.second;
                let deleted = self.rng.one_in(2);
                let pod = self.children.pods.get_mut(&uid).unwrap();
                pod.disruption =
                    Some(Box::new(Disruption { reason: reason.into(), message: "moved".into(), time: Some(at(now)) }));
                if deleted {
                    pod.deletion = pod.deletion.or(Some(at(now)));
                    pod.end_by = Some(at(now + 30));
                }
            }
            12 => {
                let Some(uid) = self.any_pod() else { return };
                self.children.pods.get_mut(&uid).unwrap().gone = true;
            }
            13 | 14 => {
                let Some(uid) = self.any_pod() else { return };
                let back = self.rng.below(150) as i64;
                let now = self.second;
                let pod = self.children.pods.get_mut(&uid).unwrap();
                pod.unreachable = if pod.unreachable.is_some() { None } else { Some(at(now - back)) };
            }
            15 => {
                let Some(uid) = self.any_pod() else { return };
                let pod = self.children.pods.get_mut(&uid).unwrap();
                pod.training = Container::Waiting;
                let reason = *self.rng.pick(&WAIT_REASONS);
                let message = *self.rng.pick(&["no image", ""]);
                pod.waiting = Some(Box::new(WaitingState { reason: reason.into(), message: message.into() }));
                pod.killed = self.rng.one_in(2).then(|| (*self.rng.pick(&["OOMKilled", "Error", ""])).to_owned());
                pod.out_of_memory = self.rng.one_in(2).then(|| at(self.second));
            }
            16 => {
                let Some(uid) = self.any_pod() else { return };
                let pod = self.children.pods.get_mut(&uid).unwrap();
                if pod.ended.is_none() {
                    pod.node = None;
                    pod.training = Container::Waiting;
                    let reason = *self.rng.pick(&["Unschedulable", "SchedulingGated"]);
                    let waiting = WaitingState {
                        reason: reason.into(),
                        message: (*self.rng.pick(&["no node", "pod group is not ready"])).into(),
                    };
                    let has_no_node = |pod: &ObservedPod| pod.ended.is_none() && pod.node.is_none();
                    let all = self.rng.one_in(2);
                    let pods = self.children.pods.values_mut().filter(|pod| all && has_no_node(pod) || pod.uid == uid);
                    pods.for_each(|pod| pod.unschedulable = Some(Box::new(waiting.clone())));
                }
            }
            kind => self.other_fault(kind),
        }
    }

    /// An event that concerns another object.
    fn other_fault(&mut self, kind: u64) {
        match kind {
            17 => {
                let keys = [
                    ChildKey::job(RoleName::WORKER),
                    ChildKey::UPKEEP,
                    ChildKey::WORKLOAD,
                    ChildKey::POD_GROUP,
                    ChildKey::job(RoleName::WORKER),
                ];
                let key = *self.rng.pick(&keys);
                let reason = self.rng.pick(&[Reason::Invalid, Reason::from("QuotaExceeded"), Reason::Storage]).clone();
                self.children.blocked.insert(key, Blocked { reason, ..Blocked::deleting("no") });
            }
            18 => {
                let about = match (self.any_pod(), self.any_job()) {
                    (Some(pod), _) if self.rng.one_in(2) => pod,
                    (_, Some(role)) => self.children.jobs[&role].uid.clone(),
                    _ => return,
                };
                self.children.event =
                    Some(ObjectEvent { about, reason: Reason::from("FailedCreate"), message: "quota".into() });
                self.children.events_read_at = Some(self.time());
            }
            19 => {
                let Some(role) = self.any_job() else { return };
                let now = self.second;
                let job = self.children.jobs.get_mut(&role).unwrap();
                if job.suspend {
                    (job.suspend, job.suspended_by_queue, job.resumed) = (false, false, Some(at(now)));
                } else if self.rng.one_in(2) {
                    (job.suspend, job.suspended_by_queue) = (true, true);
                } else {
                    job.parallelism = Some(self.rng.below(5) as i32);
                }
            }
            20 => {
                let (admitted, evicted, reserved, finished) =
                    (self.rng.one_in(2), self.rng.one_in(2), self.rng.one_in(2), self.rng.one_in(4));
                let (deleting, ready) = (self.rng.one_in(8), self.rng.one_in(2));
                if let Some(workload) = &mut self.children.workload {
                    (workload.admitted, workload.evicted, workload.reserved) = (admitted, evicted, reserved);
                    (workload.finished, workload.deleting, workload.pods_ready) = (finished, deleting, ready);
                    workload.words = if ready { "no quota".into() } else { String::new() };
                }
            }
            21 => self.children.workloads_unlisted = self.rng.one_in(3),
            22 => self.refused = self.rng.one_in(2) && self.status.state.is_some() || self.rng.one_in(12),
            23 => {
                self.spec.suspend = self.rng.one_in(2);
                self.held = self.rng.one_in(4);
                self.stopped |= self.rng.one_in(12);
            }
            24 => self.asked += 1,
            25 => {
                self.silent_since = self.rng.one_in(2).then(|| at(self.second - self.rng.below(300) as i64));
                self.refusal = self.rng.one_in(2);
                if self.rng.one_in(2) {
                    self.agent = None;
                }
            }
            26 => {
                let ended = *self.rng.pick(&[None, Some(true), Some(true), Some(false)]);
                let mut report = self.report();
                if self.rng.one_in(2) {
                    report.checkpoints = Some(self.checkpoints());
                }
                if self.rng.below(4) > 0 {
                    let model = fetched_model();
                    report.fetched = vec![model];
                    report.published = Some(Publication::default());
                }
                let deleting = self.rng.one_in(8);
                if let Some(upkeep) = &mut self.children.upkeep {
                    (upkeep.ended, upkeep.deleting) = (ended, deleting);
                    self.children.upkeep_words = Some((upkeep.uid.clone(), report));
                }
            }
            27 => {
                // An attempt that could not use any checkpoint.
                let Some(last) = self.status.restarts.last_mut() else { return };
                last.reason = self.rng.pick(&[Reason::NoUsableCheckpoint, Reason::Unkillable]).clone();
                last.pod = self.children.pods.values().next().map(|pod| pod.name.clone());
            }
            28 => {
                if let Some(n) = std::num::NonZeroU16::new(1 + self.rng.below(5) as u16) {
                    self.spec.num_workers = if self.spec.elastic.is_some() { Some(n) } else { self.spec.num_workers };
                }
            }
            _ => self.agent = None,
        }
    }

    /// Moves on to the next moment.
    pub(super) fn change(&mut self) {
        if self.rng.one_in(3) {
            self.fault();
        }
        self.controllers();
        if self.rng.one_in(9) {
            self.children.blocked.clear();
        }
        if self.rng.one_in(5) {
            self.children.event = None;
        }
        let runs = self.children.pods.values().any(|pod| pod.runs());
        if runs && self.rng.one_in(if self.silent_since.is_some() { 12 } else { 2 }) {
            self.agent = Some(self.answer());
        }
        self.follow_mood();
        self.second += *self.rng.pick(self.mood.pauses());
    }

    /// Carries out most actions. Returns true at the end of a walk.
    pub(super) fn acts(&mut self, actions: &[Action]) -> bool {
        for action in actions {
            if !self.rng.one_in(10) {
                self.act(action);
            }
        }
        let has_ended = self.status.state.is_some_and(State::is_finished);
        if has_ended && self.rng.one_in(8) {
            self.asked += 1;
        }
        if self.rng.one_in(60) {
            // Written by an older operator.
            (self.status.restart_history, self.status.elastic) = (None, None);
        }
        if self.rng.one_in(300) {
            self.status = TrainingJobStatus::default(); // restored from a backup without its status
        }
        actions.contains(&Action::DeleteOwner) || (has_ended && self.rng.one_in(30))
    }

    pub(super) fn decide(&self, plan: &plan::Plan, status: &TrainingJobStatus) -> Decision {
        decide(&Input {
            plan,
            generation: Some(1),
            status,
            refused: self.refused.then_some("it is refused"),
            children: &self.children,
            agent: self.agent.as_ref(),
            agent_silent_since: self.silent_since,
            held: self.held.then_some("its search is suspended"),
            stop: self.stopped.then_some("its search stops it"),
            agent_refusal: self.refusal.then_some("not believed"),
            transfer: None,
            now: at(self.second),
        })
    }
}
