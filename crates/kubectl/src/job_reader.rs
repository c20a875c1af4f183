//! Reads the facts that the commands show.

use super::cluster::Cluster;
use super::facts::{Event, Facts, Worker, last_events};
use api::{TrainingJob, TrainingJobStatus};
use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use lifecycle::{incarnation, whole_second};
use objects::labels;
use observe::{ObservedPod, SlimPod};
use plan::{self, Incarnation, OperatorInfo};
use std::time::{Duration, Instant};

/// How many events are kept of a job.
const EVENTS: usize = 20;
/// How many pages of 500 events of a namespace are read at most.
const PAGES: usize = 20;
/// How long events are used again while nothing else has changed.
const EVENTS_SERVE: Duration = Duration::from_secs(15);

/// Reads one job repeatedly.
pub struct JobReader {
    cluster: Cluster,
    events: Option<EventsRead>,
}

/// The events of a job that were read at one time, while it had this version.
struct EventsRead {
    at: Instant,
    version: String,
    events: Result<Vec<Event>, String>,
}

impl JobReader {
    /// Reads jobs of this cluster.
    #[must_use]
    pub fn new(cluster: Cluster) -> Self {
        Self { cluster, events: None }
    }

    /// Reads everything about the job of this name. What the reader's rights don't cover is listed as not read.
    ///
    /// # Errors
    /// If the job itself can't be read.
    pub async fn facts(&mut self, name: &str) -> anyhow::Result<Facts> {
        let job = self.cluster.find(name).await?;
        let mut facts = Facts::from_job(&job, now());
        match pods(&self.cluster, &job).await {
            Ok(pods) => facts.workers = workers(&pods, &facts.status),
            Err(error) => facts.unread.push(format!("{error:#}")),
        }
        match self.events(&job).await {
            Ok(events) => facts.events = events,
            Err(error) => facts.unread.push(error),
        }
        Ok(facts)
    }

    /// Reads the job's events. The API server reads all Events of the namespace for every request, whatever its filter.
    /// Therefore one answer is used for a while.
    async fn events(&mut self, job: &TrainingJob) -> Result<Vec<Event>, String> {
        let version = job.resource_version().unwrap_or_default();
        match &self.events {
            Some(read) if read.version == version && read.at.elapsed() < EVENTS_SERVE => return read.events.clone(),
            _ => {}
        }
        let namespace = job.namespace().unwrap_or_default();
        // The core API has the same Events, and the role `view` allows only these.
        let api: Api<core::Event> = self.cluster.api(&namespace);
        let what = format!("list Events in namespace {namespace}");
        let events = self.cluster.pages(&what, &api, PAGES).await.map_err(|error| format!("{error:#}"));
        let events = events.map(|events| events_of(&events, job));
        self.events = Some(EventsRead { at: Instant::now(), version, events: events.clone() });
        events
    }
}

/// Chooses the last Events of this job, oldest first.
fn events_of(events: &[core::Event], job: &TrainingJob) -> Vec<Event> {
    let (name, uid) = (job.name_any(), job.uid());
    let created = job.metadata.creation_timestamp.as_ref().map(|t| t.0);
    let roles: Vec<_> =
        plan::resolve(job, &OperatorInfo::default()).plan.gang.roles.iter().map(|role| role.name).collect();
    let of = |event| Event::from_event(event, &name, uid.as_deref(), &roles);
    let mut events: Vec<Event> = events.iter().filter_map(of).collect();
    // An earlier job of this name had a Job and pods of the same names.
    events.retain(|event| created.is_none_or(|created| event.time >= created));
    last_events(events, EVENTS)
}

/// Lists the job's pods, of all attempts.
///
/// # Errors
/// If they can't be listed.
pub async fn pods(cluster: &Cluster, job: &TrainingJob) -> anyhow::Result<Vec<ObservedPod>> {
    let namespace = job.namespace().unwrap_or_default();
    let api: Api<SlimPod> = cluster.api(&namespace);
    let params = ListParams::default().labels(&selector(job));
    let list = cluster.ask(&format!("list pods in namespace {namespace}"), api.list(&params)).await?;
    Ok(list.items.iter().filter_map(|pod| pod.seen(false)).collect())
}

/// Returns the label selector of the job's pods.
#[must_use]
pub fn selector(job: &TrainingJob) -> String {
    format!("{}={}", labels::UID, job.uid().unwrap_or_default())
}

/// Returns the workers of this attempt, and those of earlier attempts that have not ended yet.
fn workers(pods: &[ObservedPod], status: &TrainingJobStatus) -> Vec<Worker> {
    let current = incarnation(status);
    let shown = pods.iter().filter(|pod| pod.incarnation >= current.number || pod.is_alive());
    // The last attempt of a pod counts.
    let of = |pod| {
        let worker = Worker::from_observed(pod);
        Worker { attempt: last_attempt(pod, current), ..worker }
    };
    let mut workers: Vec<Worker> = shown.map(of).collect();
    workers.sort_by(|a, b| (a.attempt, &a.role, a.index).cmp(&(b.attempt, &b.role, b.index)));
    workers
}

/// Returns the last attempt of a pod, as far as the status shows it. For a pod of an incarnation before the last one it
/// is the latest possible attempt.
#[must_use]
pub fn last_attempt(pod: &ObservedPod, current: Incarnation) -> u32 {
    current.attempt.saturating_sub(current.number.saturating_sub(pod.incarnation)).max(1)
}

/// Returns the time in whole seconds, as in the status.
#[must_use]
pub fn now() -> Timestamp {
    whole_second(Timestamp::now())
}
