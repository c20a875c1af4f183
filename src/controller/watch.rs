//! Watches: their events update the index, and wake the job that they belong to.

use super::{Context, status};
use api::Guarded;
use futures::channel::{mpsc, oneshot};
use futures::future::{self, BoxFuture, Either, Fuse, FusedFuture};
use futures::stream::{BoxStream, SelectAll};
use futures::{FutureExt, Stream, StreamExt};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource, ResourceExt};
use objects::labels;
use observe::{self, JobKey, SlimWorkload};
use serde::de::DeserializeOwned;
use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::hash::Hash;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tracing::{debug, warn};

/// Kinds of children that must be listed before anything is decided.
const KINDS: usize = 5;
/// Children change in crowds (a gang's pods, each several times). A job is woken once for all changes in this time.
const GATHER: Duration = Duration::from_millis(200);
/// One turn of the jobs with only routine news. A gang that starts passes through many states, and only the last of them
/// decides anything. What a job waits for is written once nothing has changed for one to two turns. Most gangs run before
/// then, which saves a write and an Event.
const TURN: Duration = Duration::from_secs(5);
/// A job whose news don't end is woken after this many turns, so that its counters show how its start advances.
const MOST_TURNS: u64 = 4;
/// Objects in one page of a list, which is in memory as a whole. Each may have 1.5 MiB, and more where JSON escapes its
/// texts.
const PAGE: u32 = 25;

pub(super) struct Watches {
    /// Feeds the index for as long as it is polled.
    pub children: BoxFuture<'static, ()>,
    /// TrainingJobs that changed.
    pub jobs: BoxStream<'static, Result<Guarded, watcher::Error>>,
    /// TrainingJobs by name.
    pub store: Store<Guarded>,
    /// Signals that a watch had to list again. What it missed may concern any job.
    pub relisted: mpsc::UnboundedReceiver<()>,
    /// Signals that every kind of child has been listed once.
    pub synced: oneshot::Receiver<()>,
}

/// News from a watch of children.
enum ChildChange {
    Touched(ObjectRef<Guarded>),
    /// Only the usual steps of a start.
    Routine(ObjectRef<Guarded>),
    /// This kind of child has been listed.
    Listed(&'static str),
}

pub(super) fn start(context: &Arc<Context>) -> Watches {
    let news: SelectAll<BoxStream<'static, ChildChange>> = futures::stream::select_all([
        children(context, |context, event| context.index.service(event), is_as_it_should_be),
        children(context, |context, event| context.index.config(event), is_as_it_should_be),
        children(context, |context, event| context.index.claim_event(event), |_, _| false),
        children(context, |context, event| context.index.job(event), |_, job| job.is_starting()),
        children(context, |context, event| context.index.pod(event), |context, pod| context.index.is_starting(pod)),
        children(context, |context, event| context.index.deployment(event), |_, _| false),
        workloads(context),
    ]);
    let (relist, relisted) = mpsc::unbounded();
    let (sync, synced) = oneshot::channel();
    let (reader, writer) = reflector::store();
    Watches {
        children: Box::pin(forward(context.clone(), news, relist.clone(), sync)),
        jobs: jobs(context, writer, relist),
        store: reader,
        relisted,
        synced,
    }
}

/// Jobs with only routine news. Each waits until there is none for a whole turn, but not for ever.
struct Routine<T> {
    turn: u64,
    /// The turns of the first and of the last news.
    waiting: HashMap<T, (u64, u64)>,
}

impl<T> Default for Routine<T> {
    fn default() -> Self {
        Self { turn: 0, waiting: HashMap::new() }
    }
}

impl<T: Eq + Hash> Routine<T> {
    fn insert(&mut self, job: T) {
        self.waiting.entry(job).or_insert((self.turn, self.turn)).1 = self.turn;
    }

    fn remove(&mut self, job: &T) {
        self.waiting.remove(job);
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Begins the next turn, and returns the jobs that have waited long enough.
    fn turn(&mut self) -> impl Iterator<Item = T> {
        self.turn += 1;
        let is_due = |first: u64, last: u64| self.turn - last > 1 || self.turn - first >= MOST_TURNS;
        self.waiting.extract_if(move |_, (first, last)| is_due(*first, *last)).map(|(job, _)| job)
    }
}

async fn forward(
    context: Arc<Context>,
    mut news: SelectAll<BoxStream<'static, ChildChange>>,
    relist: mpsc::UnboundedSender<()>,
    sync: oneshot::Sender<()>,
) {
    let (mut listed, mut sync) = (HashSet::new(), Some(sync));
    let (mut touched, mut routine) = (HashSet::new(), Routine::default());
    let (mut gathering, mut gathering_routine) = (pin!(Fuse::terminated()), pin!(Fuse::terminated()));
    loop {
        let gathered = future::select(gathering.as_mut(), gathering_routine.as_mut());
        match future::select(news.next(), gathered).await {
            Either::Left((Some(ChildChange::Touched(job)), _)) => {
                context.metrics.backlog().changed([job.clone()]);
                routine.remove(&job);
                touched.insert(job);
                if gathering.is_terminated() {
                    gathering.set(tokio::time::sleep(GATHER).fuse());
                }
            }
            Either::Left((Some(ChildChange::Routine(job)), _)) => {
                if !touched.contains(&job) {
                    routine.insert(job);
                }
                if gathering_routine.is_terminated() {
                    gathering_routine.set(tokio::time::sleep(TURN).fuse());
                }
            }
            Either::Left((Some(ChildChange::Listed(kind)), _)) => {
                // Training doesn't wait for TensorBoard, so an operator without the right to see Deployments continues.
                // Most clusters have no Kueue.
                if ![std::any::type_name::<Deployment>(), std::any::type_name::<SlimWorkload>()].contains(&kind) {
                    listed.insert(kind);
                }
                if listed.len() < KINDS {
                    continue;
                }
                match sync.take() {
                    Some(sync) => drop(sync.send(())),
                    None => drop(relist.unbounded_send(())),
                }
            }
            Either::Left((None, _)) => return,
            Either::Right((Either::Left(_), _)) => context.wake(touched.drain()),
            Either::Right((Either::Right(_), _)) => {
                context.wake(routine.turn());
                if !routine.is_empty() {
                    gathering_routine.set(tokio::time::sleep(TURN).fuse());
                }
            }
        }
    }
}

/// Begins when a gang is queued as a whole. Most clusters don't know the kind, and would be asked for it for ever.
fn workloads(context: &Arc<Context>) -> BoxStream<'static, ChildChange> {
    let context = context.clone();
    let begun = async move {
        context.queued.notified().await;
        children(&context, |context, event| context.index.workload(event), |_, _| false)
    };
    futures::stream::once(begun).flatten().boxed()
}

/// Whether a Service or ConfigMap is not being deleted, and has no change that must be restored.
fn is_as_it_should_be(context: &Context, object: &impl Resource) -> bool {
    object.meta().deletion_timestamp.is_none() && context.index.has_right_objects(object.meta())
}

/// The events of a kind's watch. `is_routine` decides, once an object was stored, whether its consequences can wait.
fn children<K>(
    context: &Arc<Context>,
    file: impl Fn(&Context, &Event<K>) + Send + 'static,
    is_routine: impl Fn(&Context, &K) -> bool + Send + 'static,
) -> BoxStream<'static, ChildChange>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let api = scoped::<Guarded<K>>(context);
    let config = watcher::Config::default().labels(labels::SELECTOR).page_size(PAGE);
    let context = context.clone();
    watcher(api, config)
        .default_backoff()
        .filter_map(move |event| {
            let news = match event.map(readable) {
                Ok(None) => None,
                Ok(Some(event)) => {
                    file(&context, &event);
                    match &event {
                        Event::Apply(object) if is_routine(&context, object) => {
                            job_of(object).map(ChildChange::Routine)
                        }
                        Event::Apply(object) | Event::Delete(object) => job_of(object).map(ChildChange::Touched),
                        Event::InitDone => Some(ChildChange::Listed(std::any::type_name::<K>())),
                        Event::Init | Event::InitApply(_) => None,
                    }
                }
                Err(error) if is_unknown(&error) => {
                    debug!(kind = %K::kind(&()), %error, "the API server does not know it, trying again");
                    None
                }
                Err(error) => {
                    warn!(kind = %K::kind(&()), %error, "watch broken, trying again");
                    context.metrics.watch_failed(&K::kind(&()));
                    None
                }
            };
            future::ready(news)
        })
        .boxed()
}

/// The event of a child that can be decoded. Any object may have the label, so one that can't be decoded is not ours.
fn readable<K>(event: Event<Guarded<K>>) -> Option<Event<K>>
where
    K: Resource<DynamicType = ()>,
{
    let read = |object: Guarded<K>| match object.0 {
        Ok(object) => Some(object),
        Err(unreadable) => {
            let ObjectMeta { namespace, name, .. } = &unreadable.metadata;
            warn!(kind = %K::kind(&()), ?namespace, ?name, error = %unreadable, "skipping an object that can't be read");
            None
        }
    };
    Some(match event {
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
        Event::InitApply(object) => Event::InitApply(read(object)?),
        Event::Apply(object) => Event::Apply(read(object)?),
        Event::Delete(object) => Event::Delete(read(object)?),
    })
}

/// Whether the API server does not have this kind, which may be installed later.
fn is_unknown(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.code == 404)
}

fn jobs(
    context: &Arc<Context>,
    writer: reflector::store::Writer<Guarded>,
    relist: mpsc::UnboundedSender<()>,
) -> BoxStream<'static, Result<Guarded, watcher::Error>> {
    let config = watcher::Config::default().page_size(PAGE);
    let events = watcher(scoped::<Guarded>(context), config).default_backoff().modify(|job: &mut Guarded| {
        if let Ok(job) = &mut job.0 {
            job.metadata.managed_fields = None;
        }
    });
    woken(context.clone(), writer, relist, events)
}

/// Changes of TrainingJobs, except the echoes of our own writes.
///
/// The jobs of a list are woken together by `relist`, at its end. Until then the store, from which a pass takes its
/// job, has the old objects.
pub(super) fn woken(
    context: Arc<Context>,
    writer: reflector::store::Writer<Guarded>,
    relist: mpsc::UnboundedSender<()>,
    events: impl Stream<Item = Result<Event<Guarded>, watcher::Error>> + Send + 'static,
) -> BoxStream<'static, Result<Guarded, watcher::Error>> {
    let mut listed = HashSet::new();
    reflector::reflector(writer, events)
        .filter_map(move |event| {
            let met = |job: &Guarded| {
                let key = JobKey::from_meta(job.meta());
                let is_echo = context.index.update(&key, |cell| {
                    cell.meet(&job.name_any());
                    status::is_echo(job, &cell.writes)
                });
                (key, is_echo)
            };
            let job = match event {
                Ok(Event::Init) => {
                    listed.clear();
                    None
                }
                Ok(Event::InitApply(job)) => {
                    listed.insert(met(&job).0);
                    context.wake_search(&job);
                    None
                }
                Ok(Event::InitDone) => {
                    context.forget_all_but(&std::mem::take(&mut listed));
                    context.forget_turns();
                    let _ = relist.unbounded_send(()); // fails only when reconciling has ended
                    None
                }
                Ok(Event::Apply(job)) => {
                    context.wake_search(&job);
                    (!met(&job).1).then(|| {
                        context.metrics.backlog().changed([ObjectRef::from_obj(&job)]);
                        Ok(job)
                    })
                }
                Ok(Event::Delete(job)) => {
                    context.wake_search(&job);
                    context.forget(&JobKey::from_meta(job.meta()));
                    context.forget_turn(&job);
                    context.metrics.backlog().taken(&ObjectRef::from_obj(&job));
                    None
                }
                Err(error) => {
                    warn!(kind = "TrainingJob", %error, "watch broken, trying again");
                    context.metrics.watch_failed("TrainingJob");
                    Some(Err(error))
                }
            };
            future::ready(job)
        })
        .boxed()
}

pub(super) fn scoped<K>(context: &Context) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    match &context.options.namespace {
        Some(namespace) => Api::namespaced(context.client.clone(), namespace),
        None => Api::all(context.client.clone()),
    }
}

/// By name, not by UID, because an object of a predecessor wakes the job that waits for its name.
fn job_of<K: Resource<DynamicType = ()>>(object: &K) -> Option<ObjectRef<Guarded>> {
    let owner = observe::owner(object.meta()).map(|owner| &owner.name);
    let name = owner.or_else(|| object.labels().get(labels::TRAINING_JOB))?;
    Some(ObjectRef::new(name).within(&object.namespace()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_is_woken_after_a_turn_without_routine_news() {
        let mut routine = Routine::default();
        let mut turn = |news: &[&'static str], others: &[&'static str]| -> Vec<_> {
            news.iter().for_each(|job| routine.insert(*job));
            others.iter().for_each(|job| routine.remove(job));
            routine.turn().collect()
        };
        assert_eq!(turn(&["a", "b", "c"], &["c"]), [""; 0]);
        assert_eq!(turn(&["b"], &[]), ["a"]);
        assert_eq!(turn(&[], &[]), ["b"], "it had news in the second turn");
        assert_eq!(turn(&["a", "a"], &["a"]), [""; 0], "what was woken by other news waits no more");
        assert_eq!(turn(&[], &[]), [""; 0]);
        let woken = (0..12).filter(|_| !turn(&["a"], &[]).is_empty()).collect::<Vec<_>>();
        assert_eq!(woken, [3, 7, 11], "news that do not end are seen in every fourth turn");
    }
}
