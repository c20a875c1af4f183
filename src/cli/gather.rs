//! Reads what the commands tell.

use super::cluster::Cluster;
use super::facts::{Event, Facts, Worker, last_events};
use crate::api::TrainingJob;
use crate::build::labels;
use crate::lifecycle::whole_second;
use crate::observe::{PodSeen, SlimPod};
use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use std::time::{Duration, Instant};

/// Events kept of a job.
const EVENTS: usize = 20;
/// Pages of 500 events of a namespace that are read at most.
const PAGES: usize = 20;
/// How long events that were read serve, while nothing else has changed.
const EVENTS_SERVE: Duration = Duration::from_secs(15);

/// Reads one job, again and again.
pub struct Gatherer {
    cluster: Cluster,
    events: Option<(Instant, String, Result<Vec<Event>, String>)>,
}

impl Gatherer {
    /// Of jobs in this cluster.
    #[must_use]
    pub fn new(cluster: Cluster) -> Self {
        Self { cluster, events: None }
    }

    /// Everything about the job of this name. What only a part of the rights allows is told as far as it goes.
    ///
    /// # Errors
    /// If the job itself can't be read.
    pub async fn facts(&mut self, name: &str) -> anyhow::Result<Facts> {
        let job = self.cluster.find(name).await?;
        let mut facts = Facts::of(&job, now());
        match pods(&self.cluster, &job).await {
            Ok(pods) => facts.workers = workers(&pods, facts.status.attempt.unwrap_or(1)),
            Err(error) => facts.unread.push(format!("{error:#}")),
        }
        match self.events(&job).await {
            Ok(events) => facts.events = events,
            Err(error) => facts.unread.push(error),
        }
        Ok(facts)
    }

    /// The API server reads all Events of the namespace for each question, whatever is asked: so one serves a while.
    async fn events(&mut self, job: &TrainingJob) -> Result<Vec<Event>, String> {
        let version = job.resource_version().unwrap_or_default();
        match &self.events {
            Some((read, of, events)) if *of == version && read.elapsed() < EVENTS_SERVE => return events.clone(),
            _ => {}
        }
        let namespace = job.namespace().unwrap_or_default();
        // The Events of the core API are the same ones, and the role `view` allows them alone.
        let api: Api<core::Event> = self.cluster.api(&namespace);
        let what = format!("list Events in namespace {namespace}");
        let events = self.cluster.pages(&what, &api, PAGES).await.map_err(|error| format!("{error:#}"));
        let events = events.map(|events| last(&events, job));
        self.events = Some((Instant::now(), version, events.clone()));
        events
    }
}

/// Of all Events the last of this job, oldest first.
fn last(events: &[core::Event], job: &TrainingJob) -> Vec<Event> {
    let (name, uid) = (job.name_any(), job.uid());
    let created = job.metadata.creation_timestamp.as_ref().map(|t| t.0);
    let mut events: Vec<Event> = events.iter().filter_map(|event| Event::of(event, &name, uid.as_deref())).collect();
    // An earlier job of this name had a Job and pods of the same names.
    events.retain(|event| created.is_none_or(|created| event.time >= created));
    last_events(events, EVENTS)
}

/// The job's pods, of all attempts.
///
/// # Errors
/// If they can't be listed.
pub async fn pods(cluster: &Cluster, job: &TrainingJob) -> anyhow::Result<Vec<PodSeen>> {
    let namespace = job.namespace().unwrap_or_default();
    let api: Api<SlimPod> = cluster.api(&namespace);
    let params = ListParams::default().labels(&selector(job));
    let list = cluster.ask(&format!("list pods in namespace {namespace}"), api.list(&params)).await?;
    Ok(list.items.iter().filter_map(|pod| pod.seen(false)).collect())
}

/// Selects the job's pods.
#[must_use]
pub fn selector(job: &TrainingJob) -> String {
    format!("{}={}", labels::UID, job.uid().unwrap_or_default())
}

/// The workers of this attempt, and those of earlier ones that have not ended yet.
fn workers(pods: &[PodSeen], attempt: i32) -> Vec<Worker> {
    let shown = pods.iter().filter(|pod| pod.incarnation >= attempt || pod.is_alive());
    let mut workers: Vec<Worker> = shown.map(Worker::of).collect();
    workers.sort_by_key(|worker| (worker.attempt, worker.rank));
    workers
}

/// The time, as the status tells it.
#[must_use]
pub fn now() -> Timestamp {
    whole_second(Timestamp::now())
}
