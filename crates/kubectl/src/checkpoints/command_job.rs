//! The agent in its own Job, which is deleted at the end of the command that created it.

use super::{Signals, Streams};
use crate::cluster::Cluster;
use crate::logs::{Reader, Source};
use crate::screen::span;
use anyhow::{Context as _, bail};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, Event, Pod};
use kube::api::{DeleteParams, ListParams, LogParams, PostParams, Preconditions};
use kube::{Api, ResourceExt};
use objects::labels;
use protocol::role::ReplicaId;
use std::time::{Duration, Instant};

/// Interval between two looks at the Job.
const AGAIN: Duration = Duration::from_millis(500);
/// Number of looks between two reads of its events. The API server reads all events of the namespace for each.
const EVENTS: u32 = 8;
/// How long a pod's log may be unreachable.
const SILENT: Duration = Duration::from_secs(30);
/// Beginning of the agent's errors. A pod's log contains both of its streams.
const ERROR: &[u8] = b"agent: ";

/// Creates the Job, shows what its agent prints and returns its exit code. The Job is deleted in any case.
pub(super) async fn run(
    cluster: &Cluster,
    job: &Job,
    patience: Duration,
    streams: &mut Streams<'_>,
) -> anyhow::Result<u8> {
    let (name, namespace) = (job.name_any(), job.namespace().unwrap_or_default());
    let jobs: Api<Job> = cluster.api(&namespace);
    let what = format!("create Job {name} in namespace {namespace}");
    // From here on a signal must not end the program before it has tidied up.
    let mut signals = Signals::new()?;
    let made = cluster.ask(&what, jobs.create(&PostParams::default(), job)).await?;
    streams.remark(&format!("no worker can be asked, so the agent runs in Job {name}"));
    let uid = made.uid().unwrap_or_default();
    let errand = CommandJob { cluster, namespace: &namespace, name: &name, uid: &uid };
    let done = tokio::select! {
        done = errand.follow(patience, streams) => done,
        code = signals.next() => Ok(code),
    };
    let sure = Preconditions { uid: Some(uid.clone()), resource_version: None };
    let params = DeleteParams::background().preconditions(sure);
    let what = format!("delete Job {name} in namespace {namespace}");
    let deleted = async {
        match jobs.delete(&name, &params).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            answer => answer.map(drop),
        }
    };
    if let Err(error) = cluster.ask(&what, deleted).await {
        streams.remark(&format!("{error:#}. It goes by itself five minutes after it has ended"));
    }
    done
}

/// A Job that was created for one command.
struct CommandJob<'a> {
    cluster: &'a Cluster,
    namespace: &'a str,
    name: &'a str,
    uid: &'a str,
}

impl CommandJob<'_> {
    async fn follow(&self, patience: Duration, streams: &mut Streams<'_>) -> anyhow::Result<u8> {
        let pod = self.started(patience, streams).await?;
        self.log(&pod, streams).await?;
        let ended = self.ended(&pod).await?;
        let reason = ended.reason.as_deref().unwrap_or_default();
        if !["", "Completed", "Error"].contains(&reason) {
            streams.remark(&format!("the agent ended by {reason}"));
        }
        Ok(u8::try_from(ended.exit_code).unwrap_or(1))
    }

    /// Waits until the agent runs or has run, and prints what it is waiting for.
    async fn started(&self, patience: Duration, streams: &mut Streams<'_>) -> anyhow::Result<Pod> {
        let begun = Instant::now();
        let mut events = Vec::new();
        let mut said = String::new();
        for look in 1.. {
            let (job, pod) = (self.job().await?, self.pod().await?);
            if let Some(pod) = pod.as_ref().filter(|pod| matches!(agent(pod), Agent::Runs | Agent::Ended(_))) {
                return Ok(pod.clone());
            }
            if let Some(why) = failed(&job, pod.as_ref()) {
                bail!("Job {} has failed before its agent ran: {why}", self.name);
            }
            if look % EVENTS == 0 {
                events = self.events(pod.as_ref()).await;
            }
            let waits = waits_for(&job, pod.as_ref(), &events);
            // The first moments need no message.
            if waits != said && look > 2 {
                streams.remark(&format!("waiting {waits}"));
                said.clone_from(&waits);
            }
            if begun.elapsed() >= patience {
                bail!(
                    "the agent did not start within {}: Job {} was waiting {waits}. --timeout gives it longer",
                    span(i64::try_from(patience.as_secs()).unwrap_or(i64::MAX)),
                    self.name
                );
            }
            tokio::time::sleep(AGAIN).await;
        }
        unreachable!("it looks until it returns")
    }

    /// Shows the log to its end, even if the connection breaks.
    async fn log(&self, pod: &Pod, streams: &mut Streams<'_>) -> anyhow::Result<()> {
        let api: Api<Pod> = self.cluster.api(self.namespace);
        let source = Source {
            pod: pod.name_any(),
            uid: pod.uid().unwrap_or_default(),
            attempt: 0,
            place: ReplicaId::FIRST_WORKER,
        };
        let mut last: Option<Timestamp> = None;
        let mut silent = Instant::now();
        loop {
            let since_time = last.and_then(|last| Timestamp::from_second(last.as_second() - 1).ok());
            let container = Some(labels::UPKEEP.to_owned());
            let params = LogParams { container, follow: true, timestamps: true, since_time, ..LogParams::default() };
            let opened = Reader::open(&api, &source, &params, last).await;
            let refused = match opened {
                Ok(mut reader) => {
                    while let Ok(Some(line)) = reader.next().await {
                        let to = if line.text.starts_with(ERROR) { &mut streams.err } else { &mut streams.out };
                        to.write_all(&line.text)?;
                        to.write_all(b"\n")?;
                        to.flush()?;
                    }
                    last = reader.last();
                    silent = Instant::now();
                    None
                }
                Err(error) => Some(error),
            };
            let has_ended = match self.pod().await? {
                Some(pod) => !matches!(agent(&pod), Agent::Runs),
                None => bail!("the pod of Job {} was deleted before its agent had ended: try again", self.name),
            };
            match refused {
                None if has_ended => return Ok(()),
                Some(error) if has_ended || is_final(&error) || silent.elapsed() >= SILENT => {
                    return Err(self.cluster.explain(&format!("read the log of pod {}", source.pod), &error));
                }
                _ => {}
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Waits until the end of the agent is known.
    async fn ended(&self, pod: &Pod) -> anyhow::Result<ContainerStateTerminated> {
        loop {
            let now = self.pod().await?;
            match now.as_ref().map(agent) {
                Some(Agent::Ended(ended)) => return Ok(*ended),
                Some(Agent::Lost(why)) => bail!("pod {} was lost before its agent had ended: {why}", pod.name_any()),
                Some(Agent::Waits | Agent::Runs) => tokio::time::sleep(AGAIN).await,
                None => bail!("pod {} was deleted before it was known how its agent ended: try again", pod.name_any()),
            }
        }
    }

    async fn job(&self) -> anyhow::Result<Job> {
        let what = format!("get Job {} in namespace {}", self.name, self.namespace);
        let job = self.cluster.ask(&what, self.cluster.api::<Job>(self.namespace).get_opt(self.name)).await?;
        job.with_context(|| format!("Job {} is gone: another client deleted it", self.name))
    }

    async fn pod(&self) -> anyhow::Result<Option<Pod>> {
        let of_job = ListParams::default().labels(&format!("batch.kubernetes.io/controller-uid={}", self.uid));
        let what = format!("list pods in namespace {}", self.namespace);
        let pods = self.cluster.ask(&what, self.cluster.api::<Pod>(self.namespace).list(&of_job)).await?;
        Ok(pods.items.into_iter().next())
    }

    /// Reads the events of the pod, else of the Job. Returns none where that is not allowed.
    async fn events(&self, pod: Option<&Pod>) -> Vec<Event> {
        let uid = pod.and_then(ResourceExt::uid).unwrap_or_else(|| self.uid.to_owned());
        let of_it = ListParams::default().fields(&format!("involvedObject.uid={uid}"));
        let what = format!("list Events in namespace {}", self.namespace);
        let events = self.cluster.ask(&what, self.cluster.api::<Event>(self.namespace).list(&of_it)).await;
        events.map(|events| events.items).unwrap_or_default()
    }
}

/// The state of the agent in a pod.
enum Agent {
    Waits,
    Runs,
    Ended(Box<ContainerStateTerminated>),
    /// The pod has failed, and the end of its agent is unknown.
    Lost(String),
}

fn agent(pod: &Pod) -> Agent {
    match state(pod) {
        Some(ContainerState { terminated: Some(ended), .. }) => Agent::Ended(Box::new(ended.clone())),
        _ if phase(pod) == "Failed" => Agent::Lost(words_of(pod)),
        Some(ContainerState { running: Some(_), .. }) => Agent::Runs,
        _ => Agent::Waits,
    }
}

fn state(pod: &Pod) -> Option<&ContainerState> {
    pod.status.as_ref()?.container_statuses.iter().flatten().next()?.state.as_ref()
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Returns why a pod failed, in the words of its status.
fn words_of(pod: &Pod) -> String {
    let status = pod.status.as_ref();
    let reason = status.and_then(|status| status.reason.as_deref());
    said(reason.unwrap_or("it failed"), status.and_then(|status| status.message.as_deref()))
}

/// Returns whether another try would be refused, too.
fn is_final(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if [401, 403].contains(&status.code))
}

/// Returns why the Job is over although no agent ran.
fn failed(job: &Job, pod: Option<&Pod>) -> Option<String> {
    if let Some(pod) = pod.filter(|pod| phase(pod) == "Failed") {
        return Some(words_of(pod));
    }
    let conditions = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut failed = conditions.filter(|c| c.type_ == "Failed" && c.status == "True");
    failed.next().map(|c| said(c.reason.as_deref().unwrap_or("Failed"), c.message.as_deref()))
}

fn said(reason: &str, message: Option<&str>) -> String {
    match message.filter(|message| !message.is_empty()) {
        Some(message) => format!("{reason}: {message}"),
        None => reason.to_owned(),
    }
}

/// Names what an agent that does not run yet is waiting for.
pub(super) fn waits_for(job: &Job, pod: Option<&Pod>, events: &[Event]) -> String {
    let warning = last_of(events, "Warning").map(|event| (event, said_by(event)));
    let Some(pod) = pod else {
        let queue = job.labels().get(labels::QUEUE);
        return match (job.spec.as_ref().and_then(|spec| spec.suspend), queue, warning) {
            (Some(true), Some(queue), _) => format!("for quota in the queue {queue}: kubectl get workloads"),
            (Some(true), None, _) => "for its Job, which another client has suspended".into(),
            (_, _, Some((_, words))) => format!("for its pod to be made: {words}"),
            _ => "for its pod to be made".into(),
        };
    };
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut unplaced = conditions.filter(|c| c.type_ == "PodScheduled" && c.status == "False");
    if let Some(unplaced) = unplaced.next() {
        let reason = unplaced.reason.as_deref().unwrap_or("no node yet");
        return format!("for a node: {}", said(reason, unplaced.message.as_deref()));
    }
    let waiting = state(pod).and_then(|state| state.waiting.as_ref());
    let reason = waiting.and_then(|waiting| waiting.reason.as_deref()).unwrap_or_default();
    if !["", "ContainerCreating", "PodInitializing"].contains(&reason) {
        return format!("for its container: {}", said(reason, waiting.and_then(|waiting| waiting.message.as_deref())));
    }
    let pulls = events.iter().any(|event| event.reason.as_deref() == Some("Pulling"));
    match warning {
        Some((event, words)) if OF_VOLUMES.contains(&event.reason.as_deref().unwrap_or_default()) => {
            format!("for its volume: {words}")
        }
        Some((_, words)) => format!("to start: {words}"),
        None if pulls => "for its image, which is being pulled".into(),
        None if pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_none()) => "for a node".into(),
        None => "for its volume and its image".into(),
    }
}

/// Reasons of events about a volume.
const OF_VOLUMES: [&str; 3] = ["FailedMount", "FailedAttachVolume", "FailedMapVolume"];

fn last_of<'a>(events: &'a [Event], type_: &str) -> Option<&'a Event> {
    let time = |event: &&Event| {
        let time = event.last_timestamp.as_ref().map(|time| time.0);
        time.or(event.event_time.as_ref().map(|time| time.0))
    };
    events.iter().filter(|event| event.type_.as_deref() == Some(type_)).max_by_key(time)
}

fn said_by(event: &Event) -> String {
    said(event.reason.as_deref().unwrap_or_default(), event.message.as_deref())
}
