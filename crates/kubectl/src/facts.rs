//! What is known of a TrainingJob at one moment, for all commands and for the JSON of `-o json`.

use api::{Condition, RoleSpec, State, StorageType, TrainingJob, TrainingJobSpec, TrainingJobStatus, TuningJob};
use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use kube::{Resource, ResourceExt};
use lifecycle::{condition, condition_is};
use objects::names;
use observe::{Container, ObservedPod};
use protocol::role::RoleName;
use serde::Serialize;
use std::collections::BTreeSet;

/// What is known of a TrainingJob, its workers and its events.
#[derive(Serialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase")]
pub struct Facts {
    /// When this was read.
    pub time: Timestamp,
    /// The namespace of the job.
    pub namespace: String,
    /// The name of the job.
    pub name: String,
    /// When the job was created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<Timestamp>,
    /// When its deletion was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deleting: Option<Timestamp>,
    /// Since when the job is in its state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// The number of the spec's last change. The status describes the change `status.observedGeneration`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// The effective spec of the job.
    #[serde(skip)]
    pub spec: TrainingJobSpec,
    /// The status that the operator has written.
    pub status: TrainingJobStatus,
    /// The search that the job is a trial of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trial_of: Option<TrialOf>,
    /// The workers' pods, with those of earlier attempts that have yet to end.
    pub workers: Vec<Worker>,
    /// Where checkpoints go; it is absent if the job keeps none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoints: Option<String>,
    /// The last events of the job, its Job and its pods, oldest first.
    pub events: Vec<Event>,
    /// What could not be read, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<String>,
}

/// The search of a trial.
#[derive(Serialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TrialOf {
    /// Name of the TuningJob.
    pub tuning_job: String,
    /// Number of the trial, as its label has it.
    pub trial: String,
}

impl TrialOf {
    fn new(job: &TrainingJob) -> Option<Self> {
        let kind = <TuningJob as Resource>::kind(&());
        let mut owners = job.owner_references().iter();
        let owner = owners.find(|owner| owner.controller == Some(true) && owner.kind == kind)?;
        let trial = job.labels().get(trials::TRIAL).cloned().unwrap_or_default();
        Some(Self { tuning_job: owner.name.clone(), trial })
    }
}

/// A worker's pod.
#[derive(Serialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Worker {
    /// The role of the pod, unless it is a worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// The index of the worker, or of the pod among those of its role.
    #[serde(rename = "worker")]
    pub index: u32,
    /// The attempt that it belongs to.
    pub attempt: u32,
    /// The name of its pod.
    pub pod: String,
    /// Its node, once there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The state of the worker.
    pub state: WorkerState,
    /// The exit code of its program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// What it waits for, or its last words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// The state of a worker.
#[derive(Serialize, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkerState {
    /// Its program or pod failed.
    Failed,
    /// It waits for a node.
    #[default]
    Waiting,
    /// Images, volumes, start.
    Starting,
    /// It was asked to stop and has not ended yet.
    Stopping,
    /// It has ended after it was asked to stop.
    Stopped,
    /// Its program runs.
    Running,
    /// Its program succeeded.
    Succeeded,
}

impl WorkerState {
    /// Names the state in a sentence.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Waiting => "waiting for a node",
            Self::Starting => "starting",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
        }
    }
}

impl Worker {
    /// Returns the state of the worker in a pod.
    #[must_use]
    pub fn from_observed(pod: &ObservedPod) -> Self {
        let mut it = Self {
            role: Some(pod.role).filter(|role| !role.is_worker()).map(|role| role.to_string()),
            index: pod.index,
            attempt: pod.incarnation,
            pod: pod.name.clone(),
            node: pod.node.clone(),
            ..Self::default()
        };
        let words = |w: &observe::WaitingState| {
            if w.message.is_empty() { w.reason.clone() } else { format!("{}: {}", w.reason, w.message) }
        };
        let mut stopped = pod.deletion.is_some();
        if let Container::Terminated { exit_code, reason, report, message, .. } = &pod.training {
            let report = report.as_deref();
            stopped |= report.is_some_and(|r| r.stopped_by.is_some());
            it.exit_code = report.and_then(|r| r.exit_code).or(Some(*exit_code));
            let reported = report.map_or(message.clone(), protocol::report::Report::summary);
            let plain = matches!(reason.as_str(), "Error" | "Completed" | "");
            it.message = if plain { reported } else { Some(reason.clone()) }.filter(|_| !pod.succeeded());
        }
        it.state = if pod.succeeded() {
            WorkerState::Succeeded
        } else if pod.failed() {
            it.message = it.message.or_else(|| pod.pod_reason.as_deref().map(words));
            if stopped && pod.disruption.is_none() { WorkerState::Stopped } else { WorkerState::Failed }
        } else if stopped {
            WorkerState::Stopping
        } else if pod.runs() {
            WorkerState::Running
        } else if pod.node.is_some() {
            it.message = pod.waiting.as_deref().map(words);
            WorkerState::Starting
        } else {
            it.message = pod.unschedulable.as_ref().map(|w| w.message.clone());
            WorkerState::Waiting
        };
        if let Some(disruption) = pod.disruption.as_ref().filter(|_| it.state != WorkerState::Succeeded) {
            it.message = Some(format!("{}: {}", disruption.reason, disruption.message));
        }
        it
    }
}

/// An Event of Kubernetes about the job, its Job or one of its pods.
#[derive(Serialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// When it was last seen.
    pub time: Timestamp,
    /// Its type: Normal or Warning.
    #[serde(rename = "type")]
    pub type_: String,
    /// What happened, in one word.
    pub reason: String,
    /// The kind of the object: TrainingJob, Job or Pod.
    pub kind: String,
    /// The name of the object.
    pub object: String,
    /// What happened, in words.
    pub message: String,
    /// How often it was seen.
    pub count: i32,
    /// Number of similar events left out: of this reason, of other pods or earlier. All pods of a gang have the same.
    #[serde(skip_serializing_if = "is_zero")]
    pub alike: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(n: &usize) -> bool {
    *n == 0
}

impl Event {
    /// Reads an Event of the API that is about the job or one of its own; any other is `None`.
    #[must_use]
    pub fn from_event(event: &core::Event, job: &str, uid: Option<&str>, roles: &[RoleName]) -> Option<Self> {
        let about = &event.involved_object;
        let (kind, object) = (about.kind.as_deref()?, about.name.as_deref()?);
        let ours = match kind {
            "TrainingJob" => object == job && about.uid.as_deref() == uid,
            "Job" => roles.iter().any(|role| object == names::role_job_name(job, *role)),
            "Pod" => roles.iter().any(|role| is_member(object, job, *role)),
            _ => false,
        };
        let series = event.series.as_ref();
        let time = series
            .and_then(|s| s.last_observed_time.as_ref().map(|t| t.0))
            .or(event.last_timestamp.as_ref().map(|t| t.0))
            .or(event.event_time.as_ref().map(|t| t.0))
            .or(event.metadata.creation_timestamp.as_ref().map(|t| t.0))?;
        ours.then(|| Self {
            time,
            type_: event.type_.clone().unwrap_or_default(),
            reason: event.reason.clone().unwrap_or_default(),
            kind: kind.to_owned(),
            object: object.to_owned(),
            message: event.message.clone().unwrap_or_default(),
            count: series.and_then(|s| s.count).or(event.count).unwrap_or(1),
            alike: 0,
        })
    }
}

/// Whether a pod is `<job>-training-<index>-<random>`. Job `a` must not get the events of `a-training-0`'s pods.
fn is_member(pod: &str, job: &str, role: RoleName) -> bool {
    let rest = pod.strip_prefix(&names::role_job_name(job, role)).and_then(|rest| rest.strip_prefix('-'));
    rest.and_then(|rest| rest.split_once('-'))
        .is_some_and(|(index, random)| index.parse::<u32>().is_ok() && !random.contains('-'))
}

/// Chooses the last events, oldest first: all of the job itself, and the last one of each reason of its Job and pods.
#[must_use]
pub fn last_events(mut events: Vec<Event>, most: usize) -> Vec<Event> {
    events.sort_by_key(|event| event.time);
    let mut kept: Vec<Event> = Vec::new();
    for event in events.into_iter().rev() {
        let same = |known: &&mut Event| known.kind == event.kind && known.reason == event.reason;
        match kept.iter_mut().find(same).filter(|known| known.kind != "TrainingJob") {
            Some(known) => known.alike += 1,
            None => kept.push(event),
        }
    }
    kept.truncate(most);
    kept.reverse();
    kept
}

impl Facts {
    /// Returns what the TrainingJob alone says.
    #[must_use]
    pub fn from_job(job: &TrainingJob, time: Timestamp) -> Self {
        let status = job.status.clone().unwrap_or_default();
        let spec = &plan::effective(job).unwrap_or_else(|_| job.spec.clone());
        let created = job.metadata.creation_timestamp.as_ref().map(|t| t.0);
        Self {
            time,
            namespace: job.namespace().unwrap_or_default(),
            name: job.name_any(),
            created,
            deleting: job.metadata.deletion_timestamp.as_ref().map(|t| t.0),
            since: since(&status, created),
            generation: job.metadata.generation,
            spec: spec.clone(),
            checkpoints: checkpoints(spec, &job.namespace().unwrap_or_default(), &job.name_any()),
            status,
            trial_of: TrialOf::new(job),
            ..Self::default()
        }
    }

    /// Finds the condition of this type.
    #[must_use]
    pub fn condition(&self, type_: &str) -> Option<&Condition> {
        condition(&self.status.conditions, type_)
    }

    /// Finds the condition of this type if it has this status.
    #[must_use]
    pub fn condition_is(&self, type_: &str, status: bool) -> Option<&Condition> {
        condition_is(&self.status.conditions, type_, status)
    }

    /// Returns whether the operator has not yet seen the last change of the spec.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.status.state.is_some()
            && !self.is_finished()
            && self.status.observed_generation.is_some_and(|seen| self.generation.is_some_and(|now| seen < now))
    }

    /// Returns whether the job has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.status.state.is_some_and(State::is_finished)
    }

    /// Counts the GPUs that all pods together request.
    #[must_use]
    pub fn gpus(&self) -> u32 {
        let all = |pods: u16, each: u16| u32::from(pods) * u32::from(each);
        let of_role = |role: &RoleSpec| all(role.replicas(), role.gpus_per_replica.unwrap_or(0));
        let workers = all(self.spec.num_workers(), self.spec.gpus_per_worker());
        self.spec.roles.iter().map(of_role).fold(workers, u32::saturating_add)
    }

    /// Counts the workers of this attempt that have a node and have not ended.
    #[must_use]
    pub fn placed(&self) -> u32 {
        let attempt = self.status.attempt.unwrap_or(1);
        let has_place = |worker: &&Worker| {
            let is_alive = matches!(worker.state, WorkerState::Starting | WorkerState::Running);
            worker.role.is_none() && worker.attempt == attempt && worker.node.is_some() && is_alive
        };
        let seen = self.workers.iter().filter(has_place).count();
        // Users without the right to see pods get the GPUs from the status.
        let reported =
            self.status.resources.map_or(0, |held| held.allocated_gpus) / u32::from(self.spec.gpus_per_worker().max(1));
        if self.workers.is_empty() { reported } else { u32::try_from(seen).unwrap_or(u32::MAX) }
    }

    /// Returns the progress in percent.
    #[must_use]
    pub fn percent(&self) -> Option<f64> {
        self.status.progress.as_ref()?.split(',').next()?.trim_end_matches('%').trim().parse().ok()
    }

    /// Finds the workers of this attempt that have no pod, by their indices.
    #[must_use]
    pub fn without_pod(&self) -> Vec<u32> {
        let attempt = self.status.attempt.unwrap_or(1);
        let there: BTreeSet<u32> =
            self.workers.iter().filter(|w| w.role.is_none() && w.attempt == attempt).map(|w| w.index).collect();
        (0..self.spec.num_workers().into()).filter(|index| !there.contains(index)).collect()
    }
}

/// Finds since when a job is in its state, by the conditions that make the state.
fn since(status: &TrainingJobStatus, created: Option<Timestamp>) -> Option<Timestamp> {
    let at = |type_: &str, value: &str| {
        condition(&status.conditions, type_).filter(|c| c.status == value).map(|c| c.last_transition_time.0)
    };
    match status.state {
        None => created,
        Some(State::Pending) => at("Scheduled", "False").or(created),
        Some(State::Initializing) => at("Running", "False").max(at("Scheduled", "True")),
        Some(State::Running) => at("Running", "True"),
        Some(State::Suspended) => at("Suspended", "True"),
        Some(State::Completed | State::Failed) => status.completion_time.as_ref().map(|t| t.0),
        Some(State::Unknown) => None,
    }
}

/// Describes where checkpoints go.
fn checkpoints(spec: &TrainingJobSpec, namespace: &str, name: &str) -> Option<String> {
    let checkpoint = &spec.checkpoint;
    if !checkpoint.enabled() {
        return None;
    }
    let Some(storage) = &checkpoint.storage else {
        return Some("none that outlives a pod: /checkpoints is an emptyDir".into());
    };
    let bucket = |scheme: &str, bucket: &Option<String>| {
        let prefix = storage.prefix.clone().unwrap_or_else(|| format!("{namespace}/{name}"));
        format!("{scheme}://{}/{prefix}", bucket.as_deref().unwrap_or_default())
    };
    Some(match (storage.type_, &storage.pvc_name) {
        (StorageType::Pvc, Some(claim)) => format!("claim {claim} at /checkpoints"),
        (StorageType::Pvc, None) => format!("claim {} at /checkpoints", names::claim_name(name)),
        (StorageType::Nfs, _) => {
            let part = |part: &Option<String>| part.clone().unwrap_or_default();
            format!("nfs {}:{} at /checkpoints", part(&storage.nfs_server), part(&storage.nfs_path))
        }
        (StorageType::S3, _) => bucket("s3", &storage.s3_bucket),
        (StorageType::Gcs, _) => bucket("gs", &storage.gcs_bucket),
        (StorageType::Azure, _) => bucket("az", &storage.azure_container),
    })
}
