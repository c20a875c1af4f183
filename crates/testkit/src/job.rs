//! A TrainingJob that is watched from before its submission, on any cluster.
//!
//! Every status and every pod is kept, so that a test that looks late still finds what has passed. A wait ends when its
//! job ends, not at its deadline, because an ended job does not change any more.

use crate::evidence;
use crate::wait::{BETWEEN_LOOKS, SOON};
use api::{Condition, State, TrainingJob, TrainingJobStatus};
use futures::{AsyncBufReadExt, Stream, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::api::{DeleteParams, LogParams, Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use objects::labels;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// The last reports of a job and its pods arrive within this time after the job's end.
const AFTER_THE_END: Duration = Duration::from_secs(10);

/// A TrainingJob.
pub struct Job {
    pub name: String,
    pub namespace: String,
    client: Client,
    seen: watch::Receiver<Seen>,
    /// How long a wait may last while the job continues.
    pub patient: Duration,
}

/// Everything that was seen of a job.
#[derive(Default)]
pub struct Seen {
    /// Each status that differs from the one before it, and when it was seen.
    pub statuses: Vec<(Timestamp, TrainingJobStatus)>,
    /// Each pod that the job ever had, as it was last seen, by UID.
    pub pods: BTreeMap<String, Pod>,
    /// When the job was Completed, Failed or deleted.
    ended: Option<Instant>,
    is_deleted: bool,
    /// How many of the two watches have begun.
    watches: usize,
}

impl Seen {
    /// The last status.
    pub fn status(&self) -> Option<&TrainingJobStatus> {
        self.statuses.last().map(|(_, status)| status)
    }

    fn note_status(&mut self, status: TrainingJobStatus) {
        if self.status() != Some(&status) {
            if status.state.is_some_and(State::is_finished) {
                self.ended.get_or_insert_with(Instant::now);
            }
            self.statuses.push((Timestamp::now(), status));
        }
    }

    /// The history of the status, one line a change.
    pub fn history(&self) -> String {
        let mut text = String::new();
        let mut before = Vec::new();
        for (time, status) in &self.statuses {
            let conditions = status.conditions.iter().map(|c| {
                let line = format!("{}={} {}: {}", c.type_, c.status, c.reason, c.message);
                line.replace('\n', " ")
            });
            let conditions: Vec<String> = conditions.collect();
            let new: Vec<&String> = conditions.iter().filter(|line| !before.contains(*line)).collect();
            let _ = writeln!(
                text,
                "{time:.3}\t{}\tattempt {}, restarts {}, disruptions {}\t{new:?}",
                status.state.map_or("-", State::as_str),
                status.attempt.unwrap_or(0),
                status.restart_count.unwrap_or(0),
                status.disruption_count.unwrap_or(0),
            );
            before = conditions;
        }
        if self.is_deleted {
            text += "the job is deleted\n";
        }
        text
    }
}

impl Job {
    /// Begins to watch a job, which may not exist yet.
    pub async fn watch(client: &Client, namespace: &str, name: &str) -> Self {
        let (sender, mut seen) = watch::channel(Seen::default());
        let sender = Arc::new(sender);
        let jobs: Api<TrainingJob> = Api::namespaced(client.clone(), namespace);
        let jobs = watcher(jobs, watcher::Config::default().fields(&format!("metadata.name={name}")));
        tokio::spawn(follow(jobs, sender.clone(), |seen, job: TrainingJob, is_deleted| {
            if let Some(status) = job.status {
                seen.note_status(status);
            }
            seen.is_deleted = is_deleted;
            if is_deleted {
                seen.ended.get_or_insert_with(Instant::now);
            }
        }));
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let pods = watcher(pods, watcher::Config::default().labels(&format!("training-job={name}")));
        tokio::spawn(follow(pods, sender, |seen, pod: Pod, _| {
            seen.pods.insert(pod.uid().expect("every pod has a UID"), pod);
        }));
        let begun = seen.wait_for(|seen| seen.watches == 2);
        drop(tokio::time::timeout(SOON, begun).await.expect("the watches of a job begin").expect("its watches go on"));
        Self { name: name.to_owned(), namespace: namespace.to_owned(), client: client.clone(), seen, patient: SOON }
    }

    /// A receiver of the same history, also after this value is gone.
    pub fn seen(&self) -> watch::Receiver<Seen> {
        self.seen.clone()
    }

    fn api<K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    // ---- waiting

    /// Waits until there is something to find in all that was seen of this job.
    pub async fn find<T>(&self, what: &str, mut find: impl FnMut(&Seen) -> Option<T>) -> T {
        let mut seen = self.seen.clone();
        let (begun, had_ended) = (Instant::now(), self.has_ended());
        loop {
            let ended = {
                let now = seen.borrow_and_update();
                if let Some(found) = find(&now) {
                    return found;
                }
                now.ended
            };
            let end = self.end_of_wait(begun, had_ended, ended);
            match tokio::time::timeout_at(end, seen.changed()).await {
                Ok(changed) => changed.expect("the watches go on"),
                Err(_) => self.explain(&self.waited(begun, what)),
            }
        }
    }

    /// Looks repeatedly until there is something to find, anywhere.
    pub async fn eventually<T>(&self, what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
        let (begun, had_ended) = (Instant::now(), self.has_ended());
        loop {
            // Read before the look, so that a job is looked at once more after its end.
            let ended = self.seen.borrow().ended;
            if let Some(found) = look().await {
                return found;
            }
            if Instant::now() > self.end_of_wait(begun, had_ended, ended) {
                self.explain(&self.waited(begun, what));
            }
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
    }

    fn waited(&self, begun: Instant, what: &str) -> String {
        let end = match &*self.seen.borrow() {
            Seen { is_deleted: true, .. } => ", and the job was deleted",
            Seen { ended: Some(_), .. } => ", and the job has ended",
            _ => "",
        };
        format!("waited {:.1} s for {what}{end}", begun.elapsed().as_secs_f64())
    }

    /// A wait that began before its job had ended ends soon after it.
    fn end_of_wait(&self, begun: Instant, had_ended: bool, ended: Option<Instant>) -> Instant {
        let deadline = begun + self.patient;
        let after_end = ended.filter(|_| !had_ended).map(|ended| ended + AFTER_THE_END);
        after_end.map_or(deadline, |end| end.min(deadline))
    }

    /// Waits until the status is as wanted.
    pub async fn until(&self, what: &str, wanted: impl Fn(&TrainingJobStatus) -> bool) -> TrainingJobStatus {
        self.find(what, |seen| seen.status().filter(|status| wanted(status)).cloned()).await
    }

    /// Waits until this is the state. Completed or Failed instead ends the test at once.
    pub async fn state(&self, state: State) -> TrainingJobStatus {
        self.in_state(state, |seen| seen.status().filter(|status| status.state == Some(state)).cloned()).await
    }

    /// Waits until this state is reached or has been, if only for a moment. Returns the first status with it.
    pub async fn reaches(&self, state: State) -> TrainingJobStatus {
        let with_it = |seen: &Seen| seen.statuses.iter().map(|(_, s)| s).find(|s| s.state == Some(state)).cloned();
        self.in_state(state, with_it).await
    }

    async fn in_state(&self, state: State, find: impl Fn(&Seen) -> Option<TrainingJobStatus>) -> TrainingJobStatus {
        let found = self.find(state.as_str(), |seen| match find(seen) {
            Some(status) => Some(Some(status)),
            None if seen.ended.is_some() => Some(None),
            None => None,
        });
        found.await.unwrap_or_else(|| self.explain(&format!("it never was {}", state.as_str())))
    }

    /// Waits for a condition with this status and reason.
    pub async fn condition(&self, type_: &str, value: &str, reason: &str) -> (Condition, TrainingJobStatus) {
        let is = |c: &&Condition| c.type_ == type_ && c.status == value && c.reason == reason;
        self.find(&format!("condition {type_}={value} {reason}"), |seen| {
            let status = seen.status()?;
            Some((status.conditions.iter().find(is)?.clone(), status.clone()))
        })
        .await
    }

    /// Waits until a pod of a worker is as wanted.
    pub async fn pod(&self, attempt: u32, worker: u32, what: &str, wanted: impl Fn(&Pod) -> bool) -> Pod {
        let is = |pod: &&Pod| self::attempt(pod) == attempt && index(pod) == Some(worker) && wanted(pod);
        let what = format!("worker {worker} of attempt {attempt} {what}");
        self.find(&what, |seen| seen.pods.values().find(is).cloned()).await
    }

    /// Waits until the program of a worker has printed this, in this container of its pod or in one before it.
    pub async fn says(&self, attempt: u32, worker: u32, words: &str) {
        let started = |pod: &Pod| training(pod).is_some_and(|c| c.state.is_some_and(|s| s.waiting.is_none()));
        let pod = self.pod(attempt, worker, "to have started", started).await.name_any();
        let pods = self.api::<Pod>();
        let follow = LogParams { container: Some("training".into()), follow: true, ..LogParams::default() };
        self.eventually(&format!("{pod} to say {words:?}"), async || {
            // The log ends with the container, and there is none while the next one starts.
            let mut lines = pods.log_stream(&pod, &follow).await.ok()?.lines();
            let said = async {
                while let Some(Ok(line)) = lines.next().await {
                    if line.contains(words) {
                        return Some(());
                    }
                }
                None
            };
            tokio::time::timeout(self.patient, said).await.ok()?
        })
        .await;
    }

    // ---- what was seen

    /// Whether the job is Completed, Failed or deleted.
    pub fn has_ended(&self) -> bool {
        self.seen.borrow().ended.is_some()
    }

    /// The last status.
    pub fn status(&self) -> TrainingJobStatus {
        self.seen.borrow().status().cloned().unwrap_or_default()
    }

    /// Every status.
    pub fn statuses(&self) -> Vec<TrainingJobStatus> {
        self.seen.borrow().statuses.iter().map(|(_, status)| status.clone()).collect()
    }

    /// The states that the job went through.
    pub fn states(&self) -> Vec<State> {
        let mut states: Vec<_> = self.seen.borrow().statuses.iter().filter_map(|(_, status)| status.state).collect();
        states.dedup();
        states
    }

    /// Asserts that it went through these states in this order. Other states may lie between, except `never`. A watch
    /// may miss a state that lasts a moment, and sees one that lasts longer than expected.
    pub fn went_through(&self, expected: &[State], never: &[State]) {
        let states = self.states();
        let mut rest = states.iter();
        let in_order = expected.iter().all(|state| rest.any(|seen| seen == state));
        let is_clean = !states.iter().any(|state| never.contains(state));
        if !in_order || !is_clean {
            self.explain(&format!("it went through {states:?}, not {expected:?} without {never:?}"));
        }
    }

    /// The first status with this state.
    pub fn first(&self, state: State) -> TrainingJobStatus {
        let found = self.statuses().into_iter().find(|status| status.state == Some(state));
        found.unwrap_or_else(|| self.explain(&format!("it never was {}", state.as_str())))
    }

    /// Every pod that the job ever had, as it was last seen, by attempt and worker.
    pub fn pods(&self) -> Vec<Pod> {
        let mut pods: Vec<Pod> = self.seen.borrow().pods.values().cloned().collect();
        pods.sort_by_key(|pod| (attempt(pod), index(pod), pod.creation_timestamp().map(|time| time.0)));
        pods
    }

    /// The last pod of each worker.
    pub fn workers(&self) -> BTreeMap<u32, Pod> {
        self.pods().into_iter().filter_map(|pod| Some((index(&pod)?, pod))).collect()
    }

    // ---- what a person does

    /// Changes the spec.
    pub async fn patch(&self, spec: Value) {
        let patch = Patch::Merge(serde_json::json!({ "spec": spec }));
        self.api::<TrainingJob>()
            .patch(&self.name, &PatchParams::default(), &patch)
            .await
            .expect("the API server agrees");
    }

    pub async fn delete(&self) {
        self.api::<TrainingJob>().delete(&self.name, &DeleteParams::default()).await.expect("it is there");
        self.find("the end of the object", |seen| seen.is_deleted.then_some(())).await;
    }

    /// Ends the test. The namespace's [`evidence::Guard`] writes the evidence.
    pub fn explain(&self, what: &str) -> ! {
        let status = self.status();
        let mut failure = String::new();
        if let Some(reason) = &status.failure_reason {
            let _ = write!(failure, "\n{reason}: {}", status.failure_message.as_deref().unwrap_or_default());
        }
        let folder = evidence::folder(&self.namespace);
        panic!("{}: {what}\nstates: {:?}{failure}\nevidence: {}", self.name, self.states(), folder.display());
    }
}

/// Records every version of every object of a watch. Whatever breaks the watch, it starts again.
async fn follow<K>(
    events: impl Stream<Item = Result<watcher::Event<K>, watcher::Error>>,
    seen: Arc<watch::Sender<Seen>>,
    note: fn(&mut Seen, K, bool),
) {
    let mut events = pin!(events.default_backoff());
    let mut is_first = true;
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => {
                seen.send_modify(|seen| note(seen, object, false));
            }
            Ok(watcher::Event::Delete(object)) => seen.send_modify(|seen| note(seen, object, true)),
            Ok(watcher::Event::InitDone) if std::mem::take(&mut is_first) => {
                seen.send_modify(|seen| seen.watches += 1);
            }
            _ => {}
        }
    }
}

/// The index of a pod's worker. The pod must have one.
pub fn worker(pod: &Pod) -> u32 {
    index(pod).expect("a pod of an Indexed Job has an index")
}

/// The index of a pod of an Indexed Job. None for another pod.
pub fn index(pod: &Pod) -> Option<u32> {
    pod.labels().get("batch.kubernetes.io/job-completion-index")?.parse().ok()
}

/// The incarnation of a pod's gang. 0 for a pod that looks after checkpoints.
pub fn attempt(pod: &Pod) -> u32 {
    labels::incarnation(pod.labels()).unwrap_or(0)
}

/// The status of the container `training`.
pub fn training(pod: &Pod) -> Option<ContainerStatus> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    statuses.iter().find(|status| status.name == "training").cloned()
}

/// The condition of this type, which must be there.
pub fn condition<'a>(status: &'a TrainingJobStatus, type_: &str) -> &'a Condition {
    let found = status.conditions.iter().find(|condition| condition.type_ == type_);
    found.unwrap_or_else(|| panic!("no condition {type_} in {:?}", status.conditions))
}
