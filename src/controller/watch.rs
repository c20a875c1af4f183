//! Watches: what they bring goes into the index, and wakes the job that it belongs to.

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
use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::Hash;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tracing::{debug, warn};

/// Kinds of children without which nothing is decided.
const KINDS: usize = 5;
/// Children come in crowds (a gang's pods, each with several changes): a job is woken once for those of this time.
const GATHER: Duration = Duration::from_millis(200);
/// The same for what can wait: a gang that starts passes through many states, and only the last of them decides anything. A job
/// is woken by it after one to two of these times, and most gangs have started by then: one write less.
const GATHER_ROUTINE: Duration = Duration::from_secs(3);
/// Objects of one page of a list, which is in memory as a whole: each may be of 1.5 MiB, and more where JSON escapes its texts.
const PAGE: u32 = 25;

pub(super) struct Watches {
    /// Feeds the index for as long as it is polled.
    pub children: BoxFuture<'static, ()>,
    /// TrainingJobs that changed.
    pub jobs: BoxStream<'static, Result<Guarded, watcher::Error>>,
    /// TrainingJobs by name.
    pub store: Store<Guarded>,
    /// A watch had to list anew: what it missed may concern any job.
    pub relisted: mpsc::UnboundedReceiver<()>,
    /// Every kind of child has been listed once.
    pub synced: oneshot::Receiver<()>,
}

/// What a watch of children brought.
enum News {
    Touched(ObjectRef<Guarded>),
    /// Nothing but the usual steps of a start.
    Routine(ObjectRef<Guarded>),
    /// This kind of child.
    Listed(&'static str),
}

pub(super) fn start(context: &Arc<Context>) -> Watches {
    let news: SelectAll<BoxStream<'static, News>> = futures::stream::select_all([
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

/// Jobs with nothing but routine news. Each waits from one turn to the next but one.
struct Routine<T> {
    /// Of this turn, and of the one before.
    newer: HashSet<T>,
    older: HashSet<T>,
}

impl<T> Default for Routine<T> {
    fn default() -> Self {
        Self { newer: HashSet::new(), older: HashSet::new() }
    }
}

impl<T: Eq + Hash> Routine<T> {
    fn insert(&mut self, job: T) {
        if !self.older.contains(&job) {
            self.newer.insert(job);
        }
    }

    fn remove(&mut self, job: &T) {
        self.newer.remove(job);
        self.older.remove(job);
    }

    fn is_empty(&self) -> bool {
        self.newer.is_empty() && self.older.is_empty()
    }

    /// Those that have waited.
    fn turn(&mut self) -> HashSet<T> {
        std::mem::replace(&mut self.older, std::mem::take(&mut self.newer))
    }
}

async fn forward(
    context: Arc<Context>,
    mut news: SelectAll<BoxStream<'static, News>>,
    relist: mpsc::UnboundedSender<()>,
    sync: oneshot::Sender<()>,
) {
    let (mut listed, mut sync) = (HashSet::new(), Some(sync));
    let (mut touched, mut routine) = (HashSet::new(), Routine::default());
    let (mut gathering, mut gathering_routine) = (pin!(Fuse::terminated()), pin!(Fuse::terminated()));
    loop {
        let gathered = future::select(gathering.as_mut(), gathering_routine.as_mut());
        match future::select(news.next(), gathered).await {
            Either::Left((Some(News::Touched(job)), _)) => {
                context.metrics.backlog().changed([job.clone()]);
                routine.remove(&job);
                touched.insert(job);
                if gathering.is_terminated() {
                    gathering.set(tokio::time::sleep(GATHER).fuse());
                }
            }
            Either::Left((Some(News::Routine(job)), _)) => {
                if !touched.contains(&job) {
                    routine.insert(job);
                }
                if gathering_routine.is_terminated() {
                    gathering_routine.set(tokio::time::sleep(GATHER_ROUTINE).fuse());
                }
            }
            Either::Left((Some(News::Listed(kind)), _)) => {
                // A training waits for no TensorBoard: an operator without the right to see Deployments goes on. And most clusters
                // have no Kueue.
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
                    gathering_routine.set(tokio::time::sleep(GATHER_ROUTINE).fuse());
                }
            }
        }
    }
}

/// Begins when a gang stands in a queue as a whole: most clusters don't know the kind, and would be asked for it for ever.
fn workloads(context: &Arc<Context>) -> BoxStream<'static, News> {
    let context = context.clone();
    let begun = async move {
        context.queued.notified().await;
        children(&context, |context, event| context.index.workload(event), |_, _| false)
    };
    futures::stream::once(begun).flatten().boxed()
}

/// Whether nobody deletes a Service or ConfigMap, and nothing was changed in it that is to be put right.
fn is_as_it_should_be(context: &Context, object: &impl Resource) -> bool {
    object.meta().deletion_timestamp.is_none() && context.index.has_right_objects(object.meta())
}

/// What the watch of a kind brings. `is_routine` tells, once an object was filed, whether what follows from it can wait.
fn children<K>(
    context: &Arc<Context>,
    file: impl Fn(&Context, &Event<K>) + Send + 'static,
    is_routine: impl Fn(&Context, &K) -> bool + Send + 'static,
) -> BoxStream<'static, News>
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
                        Event::Apply(object) if is_routine(&context, object) => job_of(object).map(News::Routine),
                        Event::Apply(object) | Event::Delete(object) => job_of(object).map(News::Touched),
                        Event::InitDone => Some(News::Listed(std::any::type_name::<K>())),
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

/// The event of a child that can be decoded. The label may be on any object: one that can't be decoded is none of ours.
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

/// Whether the API server has no such kind, which somebody may yet install.
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

/// What changed of the TrainingJobs, as far as it is not the answer to a write of ours.
///
/// Those of a list are woken all together by `relist`, at its end: until then the store, from which a pass takes its job,
/// has the objects of before.
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
                let key = JobKey::of(job.meta());
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
                    let _ = relist.unbounded_send(()); // nobody reconciles any more
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
                    context.forget(&JobKey::of(job.meta()));
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

/// By name, not by UID: an object of a predecessor wakes the job that waits for its name.
fn job_of<K: Resource<DynamicType = ()>>(object: &K) -> Option<ObjectRef<Guarded>> {
    let owner = observe::owner(object.meta()).map(|owner| &owner.name);
    let name = owner.or_else(|| object.labels().get(labels::TRAINING_JOB))?;
    Some(ObjectRef::new(name).within(&object.namespace()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routine_news_waits_from_one_turn_to_the_next_but_one() {
        let mut routine = Routine::default();
        routine.insert("a");
        assert!(routine.turn().is_empty());
        routine.insert("a");
        routine.insert("b");
        routine.insert("c");
        routine.remove(&"c");
        assert_eq!(routine.turn(), HashSet::from(["a"]), "news meanwhile does not make it wait longer");
        routine.remove(&"b");
        assert!(routine.is_empty() && routine.turn().is_empty(), "what was woken by other news waits no more");
    }
}
