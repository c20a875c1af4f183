//! The TensorBoard beside a job: made when the job's program first runs, and brought back when it is deleted.
//!
//! Nothing of it holds up or fails a training. It comes after the workers, since a volume is bound where its first pod
//! goes; where only one node can mount the volume it is stopped whenever the worker is, which may have to move; and what
//! goes wrong is told and tried again later.

use super::apply::Created;
use super::error::{Error, call};
use super::{Context, Resolved};
use crate::api::{State, TrainingJob, TrainingJobStatus};
use crate::build::{self, Board, labels};
use crate::lifecycle;
use crate::observe;
use crate::plan::{BoardPlan, TensorBoard};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};
use serde_json::json;
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// How long the watch may take to show what was written.
const ANSWER: Duration = Duration::from_secs(5);
/// Between two tries of what failed.
const AGAIN: Duration = Duration::from_secs(60);

/// Every TensorBoard's objects, as the watches show them.
#[derive(Default)]
pub(super) struct Boards {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// By the UID of the TrainingJob.
    seen: HashMap<String, Seen>,
    /// What a watch that starts again has listed so far.
    listing: [Option<HashSet<String>>; 2],
    /// Deployments have been listed once: before that nothing is missing.
    ready: bool,
}

#[derive(Default, Clone)]
struct Seen {
    parts: [Option<Part>; 2],
    /// Nothing is tried before then.
    wait: Option<Instant>,
    /// What was told last.
    told: Option<String>,
}

#[derive(Clone, PartialEq)]
struct Part {
    uid: String,
    replicas: Option<i32>,
}

const DEPLOYMENT: usize = 0;
const SERVICE: usize = 1;

impl Boards {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Files an event of the watch of Deployments.
    pub(super) fn deployment(&self, event: &Event<Deployment>) {
        self.file(DEPLOYMENT, event, |deployment| deployment.spec.as_ref()?.replicas);
        self.lock().ready |= matches!(event, Event::InitDone);
    }

    /// Files an event of the watch of Services; true if it is nobody else's.
    pub(super) fn service(&self, event: &Event<Service>) -> bool {
        let ours = match event {
            Event::Init | Event::InitDone => None,
            Event::InitApply(service) | Event::Apply(service) | Event::Delete(service) => {
                Some(service.labels().get(labels::COMPONENT).is_some_and(|v| v == labels::TENSORBOARD))
            }
        };
        if ours != Some(false) {
            self.file(SERVICE, event, |_| None);
        }
        ours == Some(true)
    }

    fn file<K: Resource<DynamicType = ()>>(&self, part: usize, event: &Event<K>, replicas: impl Fn(&K) -> Option<i32>) {
        let mut inner = self.lock();
        match event {
            Event::Init => inner.listing[part] = Some(HashSet::new()),
            Event::InitDone => {
                let listed = inner.listing[part].take().unwrap_or_default();
                for (_, seen) in inner.seen.iter_mut().filter(|(job, _)| !listed.contains(*job)) {
                    seen.parts[part] = None;
                }
            }
            Event::InitApply(object) | Event::Apply(object) => {
                let Some(owner) = observe::owner(object.meta()) else { return };
                if let Some(listing) = &mut inner.listing[part] {
                    listing.insert(owner.uid.clone());
                }
                let found = Part { uid: object.uid().unwrap_or_default(), replicas: replicas(object) };
                inner.seen.entry(owner.uid.clone()).or_default().parts[part] = Some(found);
            }
            Event::Delete(object) => {
                let Some(owner) = observe::owner(object.meta()) else { return };
                let Some(seen) = inner.seen.get_mut(&owner.uid) else { return };
                seen.parts[part].take_if(|part| Some(&part.uid) == object.meta().uid.as_ref());
                seen.wait = None;
                if seen.parts.iter().all(Option::is_none) {
                    inner.seen.remove(&owner.uid);
                }
            }
        }
    }

    /// A TrainingJob that exists no more.
    pub(super) fn forget(&self, uid: &str) {
        self.lock().seen.remove(uid);
    }

    /// TrainingJobs that were deleted while nobody watched.
    pub(super) fn forget_all_but(&self, there: &HashSet<String>) {
        self.lock().seen.retain(|uid, _| there.contains(uid));
    }

    /// What is there, once that is known.
    fn seen(&self, uid: &str) -> Option<Seen> {
        let inner = self.lock();
        inner.ready.then(|| inner.seen.get(uid).cloned().unwrap_or_default())
    }

    fn update(&self, uid: &str, change: impl FnOnce(&mut Seen)) {
        change(self.lock().seen.entry(uid.to_owned()).or_default());
    }
}

/// What a pass has to do for a TensorBoard.
#[derive(Debug, PartialEq)]
struct Todo {
    deployment: bool,
    service: bool,
    /// Replicas, if they are others.
    scale: Option<i32>,
}

fn todo(planned: &BoardPlan, status: &TrainingJobStatus, seen: &Seen) -> Option<Todo> {
    let state = status.state?;
    if status.start_time.is_none() || state.is_finished() {
        return None;
    }
    let replicas = i32::from(!planned.one_node || state == State::Running);
    let [deployment, service] = &seen.parts;
    let todo = Todo {
        deployment: deployment.is_none() && replicas > 0,
        service: service.is_none(),
        // Of the others' replicas a person may make what they like.
        scale: deployment.as_ref().and_then(|d| (planned.one_node && d.replicas != Some(replicas)).then_some(replicas)),
    };
    (todo.deployment || todo.service || todo.scale.is_some()).then_some(todo)
}

impl Context {
    /// Makes what is missing of the job's TensorBoard, if it has one; when to look again.
    pub(super) async fn board(
        &self,
        job: &TrainingJob,
        uid: &str,
        resolved: &Resolved,
        status: &TrainingJobStatus,
        confirmed: &mut bool,
    ) -> Option<Duration> {
        let plan = resolved.plan.as_ref().ok()?;
        let planned = plan.monitoring.tensorboard.as_ref().and_then(TensorBoard::beside)?;
        let seen = self.boards.seen(uid)?;
        let todo = todo(planned, status, &seen)?;
        if let Some(left) = seen.wait.and_then(|wait| wait.checked_duration_since(Instant::now())) {
            return Some(left);
        }
        // Outdated, or no answer: the pass that follows comes here, too.
        self.confirm(job, confirmed).await.ok()?;
        let Board { deployment, service } = build::board(plan)?;
        let mut trouble = None;
        if todo.service {
            trouble = trouble.or(told(self.create(plan, uid, &service).await));
        }
        if todo.deployment {
            trouble = trouble.or(told(self.create(plan, uid, &deployment).await));
        }
        if let (Some(replicas), Some(part)) = (todo.scale, &seen.parts[DEPLOYMENT]) {
            trouble = trouble.or(self.scale(&deployment, &part.uid, replicas).await.err().and_then(unexpected));
        }
        let wait = if trouble.is_some() { AGAIN } else { ANSWER };
        if let Some(trouble) = trouble.as_ref().filter(|trouble| seen.told.as_ref() != Some(trouble)) {
            warn!("no TensorBoard: {trouble}");
            let note = format!("The job runs without its TensorBoard, which is tried again every minute: {trouble}");
            self.tell(job, None, vec![lifecycle::Event { warning: true, reason: "TensorBoardFailed", note }]);
        }
        self.boards.update(uid, |seen| {
            seen.wait = Some(Instant::now() + wait);
            seen.told = trouble;
        });
        Some(wait)
    }

    async fn scale(&self, deployment: &Deployment, uid: &str, replicas: i32) -> Result<(), Error> {
        let api = self.api::<Deployment>(&deployment.namespace().unwrap_or_default());
        let name = deployment.name_any();
        info!(name, replicas, "scaling TensorBoard");
        let patch = Patch::Merge(json!({ "metadata": { "uid": uid }, "spec": { "replicas": replicas } }));
        call("scale TensorBoard", api.patch(&name, &PatchParams::default(), &patch)).await.map(drop)
    }
}

/// What is to be told of a try to make an object.
fn told<K>(made: Result<Created<K>, Error>) -> Option<String> {
    match made {
        Ok(Created::Made(_) | Created::Found(_)) => None,
        Ok(Created::Blocked(blocked)) => Some(blocked.message),
        Err(error) => unexpected(error),
    }
}

fn unexpected(error: Error) -> Option<String> {
    (!error.is_expected()).then(|| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{BoardVolume, ClaimPath};
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};

    fn planned(one_node: bool) -> BoardPlan {
        let volume = BoardVolume::Claim(ClaimPath { claim: "c".into(), path: None });
        BoardPlan { image: "i".into(), volume, mounted_at: "/checkpoints", one_node }
    }

    fn status(state: State, started: bool) -> TrainingJobStatus {
        let start_time = started.then_some(Time(Timestamp::UNIX_EPOCH));
        TrainingJobStatus { state: Some(state), start_time, ..TrainingJobStatus::default() }
    }

    fn there(replicas: i32) -> Seen {
        let part = |replicas| Some(Part { uid: "u".into(), replicas });
        Seen { parts: [part(Some(replicas)), part(None)], ..Seen::default() }
    }

    #[test]
    fn it_comes_after_the_workers_and_stays() {
        let missing = Seen::default();
        let both = Some(Todo { deployment: true, service: true, scale: None });
        for (state, started, expected) in [
            (State::Pending, false, None),
            (State::Initializing, false, None),
            (State::Suspended, false, None),
            (State::Running, true, both),
            (State::Completed, true, None),
        ] {
            assert_eq!(todo(&planned(false), &status(state, started), &missing), expected, "{state:?}");
        }
        for replicas in [0, 1] {
            assert_eq!(todo(&planned(false), &status(State::Running, true), &there(replicas)), None);
            assert_eq!(todo(&planned(false), &status(State::Initializing, true), &there(replicas)), None);
        }
    }

    /// The next attempt's worker may be on another node, and could not mount a volume that TensorBoard holds.
    #[test]
    fn it_gives_back_a_volume_of_one_node() {
        let scale =
            |state, replicas| todo(&planned(true), &status(state, true), &there(replicas)).and_then(|t| t.scale);
        assert_eq!(scale(State::Running, 1), None);
        for state in [State::Initializing, State::Pending, State::Suspended] {
            assert_eq!((scale(state, 1), scale(state, 0)), (Some(0), None));
        }
        assert_eq!(scale(State::Running, 0), Some(1));
        assert_eq!((scale(State::Completed, 1), scale(State::Failed, 0)), (None, None));
    }

    #[test]
    fn the_headless_service_is_not_its() {
        let boards = Boards::default();
        let service = |component: &str, name: &str| Service {
            metadata: ObjectMeta {
                name: Some(name.into()),
                uid: Some(name.into()),
                labels: Some([(labels::COMPONENT.to_owned(), component.to_owned())].into()),
                owner_references: Some(vec![OwnerReference {
                    api_version: "ml.example.com/v1".into(),
                    kind: "TrainingJob".into(),
                    name: "x".into(),
                    uid: "job".into(),
                    ..OwnerReference::default()
                }]),
                ..ObjectMeta::default()
            },
            ..Service::default()
        };
        assert!(boards.seen("job").is_none(), "not before Deployments were listed");
        boards.deployment(&Event::Init);
        boards.deployment(&Event::InitDone);
        assert!(!boards.service(&Event::Init), "everybody's");
        assert!(!boards.service(&Event::InitApply(service("", "x-headless"))));
        assert!(boards.service(&Event::InitApply(service("tensorboard", "x-tensorboard"))));
        assert!(!boards.service(&Event::InitDone));
        assert!(boards.seen("job").unwrap().parts[SERVICE].is_some());
        assert!(boards.service(&Event::Delete(service("tensorboard", "x-tensorboard"))));
        assert!(boards.seen("job").unwrap().parts[SERVICE].is_none());
        assert!(boards.lock().seen.is_empty());
    }
}
