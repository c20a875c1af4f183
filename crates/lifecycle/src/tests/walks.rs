//! Random walks: what must hold for each decision, whatever is seen in whatever order.

use crate::{Action, Decision, Input, condition, condition_is, decide};
use api::{AttemptEnd, ConditionType, Reason, State, TrainingJob, TrainingJobSpec, TrainingJobStatus};
use jiff::Timestamp;
use observe::{
    AgentAnswer, Blocked, ChildKey, Children, Container, Disruption, ObjectEvent, ObservedJob, ObservedPod,
    ObservedUpkeep, ObservedWorkload, WaitingState,
};
use plan::OperatorInfo;
use protocol::agent_status::AgentStatus;
use protocol::checkpoints::{Checkpoints, GoodCheckpoint, Problem, ProblemKind};
use protocol::gang::{GangEnd, GangPhase, GangStatus};
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
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    /// True once in `n`.
    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
    fn pick<'t, T>(&mut self, all: &'t [T]) -> &'t T {
        &all[self.below(all.len() as u64) as usize]
    }
}

fn fetched_model() -> FetchedContent {
    let (name, key, revision) = ("model".to_owned(), "key".to_owned(), "1".to_owned());
    FetchedContent { name, key, revision, ..FetchedContent::default() }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

#[derive(Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct World {
    rng: Rng,
    spec: TrainingJobSpec,
    status: TrainingJobStatus,
    children: Children,
    agent: Option<AgentAnswer>,
    silent_since: Option<Timestamp>,
    refusal: bool,
    held: bool,
    stopped: bool,
    refused: bool,
    asked: u32,
    second: i64,
    pods: u32,
    gone_for: BTreeMap<String, u32>,
}

const REASONS: [&str; 9] =
    ["ExitCode", "no word", "Signal", "Signal", "Signal", "NodeLost", "Evicted", "Resized", "Unkillable"];

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng(seed);
        let mut spec = json!({
            "model": "m",
            "dataset": "d",
            "framework": if rng.one_in(2) { "pytorch" } else { "tensorflow" },
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
                spec["checkpoint"]["resumeFrom"] = json!("s3://b/x");
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
            spec["tensorboard"] = json!({ "enabled": true });
        }
        let spec: TrainingJobSpec = serde_json::from_value(spec).unwrap();
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
            refused: false,
            asked: 0,
            second: 100,
            pods: 0,
            gone_for: BTreeMap::new(),
        }
    }

    fn plan(&self) -> plan::Plan {
        let mut job = TrainingJob::new("x", self.spec.clone());
        let asked = (self.asked > 0).then(|| (plan::labels::RESTART_REQUESTED.to_owned(), self.asked.to_string()));
        job.metadata.annotations = Some(asked.into_iter().collect());
        job.status = Some(self.status.clone());
        let runtime = OperatorInfo { agent_image: "agent".into(), ..OperatorInfo::default() };
        plan::resolve(&job, &runtime).plan
    }

    fn attempt(&self) -> u32 {
        self.status.attempt.unwrap_or(1)
    }

    fn number(&self) -> u32 {
        self.status.incarnation.unwrap_or(1)
    }

    fn time(&mut self) -> Timestamp {
        let back = self.rng.below(30) as i64;
        at(self.second - back)
    }

    fn any_job(&mut self) -> Option<RoleName> {
        let roles: Vec<RoleName> = self.children.jobs.keys().copied().collect();
        (!roles.is_empty()).then(|| *self.rng.pick(&roles))
    }

    fn any_pod(&mut self) -> Option<String> {
        let uids: Vec<String> = self.children.pods.keys().cloned().collect();
        (!uids.is_empty()).then(|| self.rng.pick(&uids).clone())
    }

    fn report(&mut self) -> Report {
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

    fn checkpoints(&mut self) -> Checkpoints {
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

    fn answer(&mut self) -> AgentAnswer {
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
            status.progress = Progress {
                step: reading(self.rng.below(100) as f64),
                metrics: ["loss", "accuracy", "learning_rate", "throughput", "f1"]
                    .map(|name| (name.to_owned(), reading(loss).unwrap()))
                    .into(),
                eta_seconds: if self.rng.one_in(2) { reading(9.0) } else { None },
                ..Progress::default()
            };
            let (n, step) = (self.rng.below(9) + 1, Some(self.rng.below(100) as f64));
            let recent = [NumberedReading { n, value: loss, step, is_percentage: false }].into();
            let history = MetricHistory { count: n, recent };
            status.histories = ["loss", "accuracy"].map(|name| (name.to_owned(), history.clone())).into();
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

    fn make_pod(&mut self, role: RoleName, index: u32, number: u32) {
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

    fn act(&mut self, action: &Action) {
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
                let pod = self.children.pods.get_mut(&uid).unwrap();
                pod.ended = Some(exit_code == 0);
                pod.training = Container::Terminated {
                    started: Some(at(self.second - 20)),
                    finished: Some(finished),
                    exit_code,
                    reason: "Error".into(),
                    report,
                    message: None,
                };
            }
            4 => {
                // All programs end.
                let exit_code = i32::from(self.rng.one_in(4));
                let report = self.rng.one_in(3).then(|| Box::new(self.report()));
                let finished = at(self.second);
                for pod in self.children.pods.values_mut().filter(|pod| !pod.gone) {
                    pod.ended = Some(exit_code == 0);
                    pod.training = Container::Terminated {
                        started: Some(at(self.second - 20)),
                        finished: Some(finished),
                        exit_code,
                        reason: "Error".into(),
                        report: report.clone(),
                        message: None,
                    };
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
                let waiting = WaitingState { reason: "ImagePullBackOff".into(), message: "no image".into() };
                pod.waiting = Some(Box::new(waiting));
                pod.killed = self.rng.one_in(2).then(|| "OOMKilled".to_owned());
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
                    pod.unschedulable = Some(Box::new(waiting));
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
}

/// Events that are published at each look while their cause lasts.
const REPEATED: [&str; 2] = ["NodeLost", "Unkillable"];

impl World {
    /// Moves on to the next moment.
    fn change(&mut self) {
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
        self.second += *self.rng.pick(&[0, 1, 5, 15, 30, 60, 100, 600, 700]);
    }

    /// Carries out most actions. Returns true at the end of a walk.
    fn acts(&mut self, actions: &[Action]) -> bool {
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
            self.status.restart_history = None; // written by an older operator
        }
        actions.contains(&Action::DeleteOwner) || (has_ended && self.rng.one_in(30))
    }
}

/// Looks within which a job must recover from any fault, half a minute each: more than an hour.
const CALM: u32 = 150;

/// The course of events without further faults.
impl World {
    /// Whatever happened to the job, it runs again, ends, or waits for a person.
    fn comes_out(mut self) -> Result<(), String> {
        (self.refused, self.held, self.stopped, self.refusal) = (false, false, false, false);
        self.spec.suspend = false;
        self.children.workloads_unlisted = false;
        self.children.event = None;
        let is_heard = self.rng.one_in(2);
        (self.agent, self.silent_since) = (None, None);
        let mut actions = Vec::new();
        for _ in 0..CALM {
            self.children.blocked.clear();
            self.nodes_and_queue_are_well();
            self.jobs_as_kubernetes_does();
            self.agent = self.leader().filter(|_| is_heard);
            self.second += 30;
            let plan = self.plan();
            let verdict = self.decide(&plan, &self.status);
            self.status = verdict.status;
            actions = verdict.actions;
            for action in &actions {
                self.act(action);
            }
            let runs = condition_is(&self.status.conditions, ConditionType::Running, true).is_some();
            let waits = condition(&self.status.conditions, ConditionType::Scheduled);
            let for_person = waits.is_some_and(|waits| waits.reason == Reason::NoUsableCheckpoint.as_str());
            let is_over = self.status.state.is_some_and(State::is_finished);
            if is_over || for_person || (self.status.state == Some(State::Running) && runs) {
                return Ok(());
            }
        }
        let (jobs, upkeep): (Vec<_>, _) = (self.children.jobs.values().collect(), &self.children.upkeep);
        let pods: Vec<_> = self.children.pods.values().collect();
        Err(format!("heard: {is_heard}, {actions:?}, {:?}, {upkeep:?}, jobs {jobs:?}, pods {pods:?}", self.status))
    }

    fn nodes_and_queue_are_well(&mut self) {
        let now = at(self.second);
        self.children.workload.take_if(|workload| workload.deleting);
        if let Some(workload) = &mut self.children.workload {
            (workload.admitted, workload.reserved, workload.evicted, workload.finished) = (true, true, false, false);
        }
        self.children.upkeep.take_if(|upkeep| upkeep.deleting);
        if let Some(upkeep) = &mut self.children.upkeep {
            upkeep.ended = Some(true);
            let model = fetched_model();
            let published = Some(Publication::default());
            let report = Report { fetched: vec![model], published, ..Report::default() };
            self.children.upkeep_words = Some((upkeep.uid.clone(), report));
        }
        let jobs: BTreeMap<RoleName, u32> =
            self.children.jobs.values().map(|job| (job.role, job.incarnation)).collect();
        for pod in self.children.pods.values_mut() {
            pod.unreachable = None;
            // Pods marked for disruption go, and so do pods without a Job.
            let is_orphan = jobs.get(&pod.role) != Some(&pod.incarnation);
            if pod.is_alive() && (pod.disruption.is_some() || is_orphan) {
                pod.deletion = pod.deletion.or(Some(now));
            }
            if pod.deletion.is_some() {
                pod.gone = true;
            } else if pod.is_alive() {
                pod.node.get_or_insert_with(|| "node".into());
                pod.scheduled_at.get_or_insert(now);
                (pod.unschedulable, pod.waiting, pod.killed) = (None, None, None);
                if !pod.runs() {
                    pod.training = Container::Running { since: Some(now) };
                }
            }
        }
    }

    /// One sync of each Job: `backoffLimit` is 0, and a pod without the finalizer does not count.
    fn jobs_as_kubernetes_does(&mut self) {
        let (has_workload, gang) = (self.children.workload.is_some(), self.plan().gang);
        let roles: Vec<RoleName> = self.children.jobs.keys().copied().collect();
        for role in roles {
            let job = self.children.jobs.get_mut(&role).unwrap();
            let number = job.incarnation;
            if job.deleting {
                self.children.jobs.remove(&role);
                continue;
            }
            let replicas = gang.role(role).map_or(0, |role| role.replicas);
            if gang.elastic.is_none() {
                job.parallelism = Some(replicas.into());
            }
            if job.suspend && !has_workload {
                (job.suspend, job.suspended_by_queue, job.resumed) = (false, false, Some(at(self.second)));
            }
            if job.complete {
                job.completed.extend(0..replicas.into());
            }
            // The watch of pods finally shows what the Job has seen.
            let (is_complete, completed) = (job.complete, job.completed.clone());
            let of_job = self.children.pods.values_mut().filter(|pod| pod.role == role && pod.incarnation == number);
            for pod in of_job.filter(|pod| !pod.gone && (is_complete || completed.contains(&pod.index))) {
                pod.ended = Some(true);
                pod.training = Container::Terminated {
                    started: Some(at(self.second)),
                    finished: Some(at(self.second)),
                    exit_code: 0,
                    reason: "Completed".into(),
                    report: None,
                    message: None,
                };
            }
            if job.suspend || job.complete {
                continue;
            }
            let wanted = job.parallelism.unwrap_or(2).max(0) as u32;
            let mut missing = Vec::new();
            for index in (0..wanted).filter(|index| !job.completed.contains(index)).collect::<Vec<_>>() {
                let of_place = |pod: &&ObservedPod| pod.role == role && pod.incarnation == number && pod.index == index;
                let pods = self.children.pods.values().map(|pod| &**pod);
                let newest = pods.filter(of_place).max_by_key(|pod| (pod.created, !pod.gone));
                match newest {
                    Some(pod) if pod.ended == Some(true) => _ = job.completed.insert(index),
                    Some(pod) if pod.is_alive() => {}
                    // Pods that went while the Job was suspended do not count.
                    Some(pod) if pod.tracked && pod.deletion.is_none_or(|at| Some(at) > job.resumed) => {
                        job.failed.get_or_insert_with(|| ("BackoffLimitExceeded".into(), "it has".into()));
                    }
                    _ => missing.push(index),
                }
            }
            job.complete = job.failed.is_none() && (0..wanted).all(|index| job.completed.contains(&index));
            if job.failed.is_some() {
                let alive = self.children.pods.values_mut().filter(|pod| pod.role == role && pod.incarnation == number);
                alive.for_each(|pod| pod.deletion = pod.deletion.or(Some(at(self.second))));
            } else {
                missing.into_iter().for_each(|index| self.make_pod(role, index, number));
            }
        }
    }

    /// A leader whose gang runs once all members do.
    fn leader(&self) -> Option<AgentAnswer> {
        let ours = || self.children.pods.values().filter(|pod| pod.incarnation == self.number() && pod.runs());
        let pod_uid = ours().map(|pod| pod.uid.clone()).min();
        pod_uid.as_ref()?;
        let gang = self.plan().gang;
        let size = self.status.elastic.as_ref().map_or(gang.workers().replicas, |elastic| elastic.workers);
        let wanted: u32 = gang.roles.iter().map(|role| u32::from(role.pods(size))).sum();
        let done: usize = self.children.jobs.values().map(|job| job.completed.len()).sum();
        let phase = if ours().count() + done >= wanted as usize { GangPhase::Running } else { GangPhase::Gathering };
        let attempt = self.attempt();
        let gang = GangStatus { attempt, phase, workers: wanted, ..GangStatus::default() };
        let report = Report { attempt, ..Report::default() };
        let status = AgentStatus { pod_uid, gang: Some(gang), report, ..AgentStatus::default() };
        Some(AgentAnswer { status: Arc::new(status), time: at(self.second), failing_since: None, remaining: None })
    }

    fn decide(&self, plan: &plan::Plan, status: &TrainingJobStatus) -> Decision {
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

/// What must hold for each decision, whatever was seen.
fn check(world: &World, plan: &plan::Plan, verdict: &Decision) -> Result<(), String> {
    let (old, new) = (&world.status, &verdict.status);
    let is = |type_: &str| condition_is(&new.conditions, type_, true).is_some();
    let rule = |holds: bool, words: &str| if holds { Ok(()) } else { Err(words.to_owned()) };
    rule(old.attempt <= new.attempt && old.incarnation <= new.incarnation, "attempt and incarnation only grow")?;
    let ended = |status: &TrainingJobStatus| status.state.is_some_and(State::is_finished);
    rule(
        !ended(old) || old.state == new.state || new.asked_restart != old.asked_restart,
        "what has ended stays so unless a restart is requested",
    )?;
    let is_ending = new.restarts.iter().any(|end| Some(end.attempt) == new.attempt);
    let publishes = |status: &TrainingJobStatus| condition_is(&status.conditions, "ResultPublished", false).is_some();
    let is_over = is_ending || publishes(new);
    rule(new.state != Some(State::Running) || is("Running") || is_over, "a job in state Running has the condition")?;
    let has_result = new.result.is_some() || plan.storage.output.is_none();
    rule(new.state != Some(State::Completed) || has_result, "a job is completed once its result is published")?;
    rule(!publishes(old) || publishes(new) || new.result.is_some(), "a result is published before it is forgotten")?;
    rule(old.result.is_none() || old.result == new.result, "a result that is published stays")?;
    rule(new.state != Some(State::Completed) || is("Succeeded"), "a completed job has succeeded")?;
    rule(new.state != Some(State::Failed) || is("Failed"), "a failed job has failed")?;
    rule(!ended(new) || new.completion_time.is_some(), "an end has a time")?;
    let goes_on = ["Running", "Restarting", "Suspended"].iter().any(|type_| is(type_));
    rule(!ended(new) || !goes_on, "what has ended does not run, wait or rest")?;
    let attempts: Vec<u32> = new.restarts.iter().map(|end| end.attempt).collect();
    rule(attempts.len() <= 10 && attempts.is_sorted_by(|a, b| a < b), "one end for each attempt, the last ten")?;
    for (at, action) in verdict.actions.iter().enumerate() {
        rule(!verdict.actions[..at].contains(action), "each action once")?;
        match action {
            Action::CreateJobs(incarnation, _) => {
                rule(!publishes(new) && new.result.is_none(), "what has succeeded does not run again")?;
                let is_old = |number: u32| number < incarnation.number;
                let lives = world.children.pods.values().any(|pod| is_old(pod.incarnation) && pod.is_alive());
                let is_there = world.children.jobs.values().any(|job| is_old(job.incarnation));
                rule(!lives && !is_there, "nothing of an earlier incarnation is left when the next one is made")?;
                rule(!world.refused, "no Job is made of a spec that is refused")?;
                rule(Some(incarnation.number) == new.incarnation, "the Jobs are those of the status")?;
            }
            Action::DeleteOwner => {
                rule(ended(new) && plan.policy.ttl_seconds.is_some(), "only the TTL deletes a job")?;
            }
            Action::ReleasePod { uid, force: true, .. } => {
                let pod = &world.children.pods[uid];
                let is_given_up =
                    |end: &AttemptEnd| end.reason == Reason::Unkillable && end.pod.as_ref() == Some(&pod.name);
                let reported = world.agent.as_ref().and_then(|agent| agent.status.gang.as_ref());
                let mut reported = reported.into_iter().flat_map(|gang| &gang.ended);
                let by_agent = reported.any(|end| end.reason == Reason::Unkillable);
                let filed = old.restarts.iter().chain(&new.restarts).any(is_given_up);
                let is_lost = pod.unreachable.is_some() || filed || by_agent;
                rule(is_lost, "a pod whose node answers is not deleted by force")?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// `WALK_STEPS` steps of walks that begin with `WALK_SEED`. After every `WALK_CALM_EVERY` steps it checks that the job
/// recovers.
#[test]
fn invariants_hold_on_random_walks() {
    let number = |name: &str, default: u64| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default);
    let (steps, seed, every) = (number("WALK_STEPS", 10_000), number("WALK_SEED", 1), number("WALK_CALM_EVERY", 50));
    let (mut taken, mut walk) = (0, 0);
    while taken < steps {
        walk += 1;
        let mut world = World::new(seed.wrapping_mul(1_000_003).wrapping_add(walk));
        for _ in 0..200 {
            world.change();
            let plan = world.plan();
            let decide = |status: &TrainingJobStatus| world.decide(&plan, status);
            let verdict = decide(&world.status);
            let stated = |wrong: &str| {
                let status = serde_json::to_string(&world.status).unwrap();
                format!("{wrong}: walk {walk} of seed {seed}, second {}, {verdict:?} from {status}", world.second)
            };
            check(&world, &plan, &verdict).unwrap_or_else(|wrong| panic!("{}", stated(&wrong)));
            let second = decide(&verdict.status);
            let third = decide(&second.status);
            assert!(second.status == third.status, "{}", stated("a decision on its own result comes to rest"));
            let news = third.events.iter().filter(|event| !REPEATED.contains(&event.reason)).count();
            assert_eq!(news, 0, "{}", stated(&format!("nothing is told twice, {:?}", third.events)));
            taken += 1;
            world.status = verdict.status;
            if world.acts(&verdict.actions) {
                break;
            }
            if taken % every == 0 {
                let stuck = |words| format!("a job comes out: walk {walk} of seed {seed}, after {taken}: {words}");
                world.clone().comes_out().unwrap_or_else(|words| panic!("{}", stuck(words)));
            }
        }
    }
}
