//! TuningJobs: their passes, and what they want of their trials.
//!
//! A pass reads the TuningJob and the TrainingJobs of its trials, decides (`trials`), writes the status, and creates the trials
//! that are recorded and missing. The search itself takes up to half a second for each suggestion. It runs on a thread of its own,
//! one at a time, so that it delays no pass of another job.
//!
//! The operator never changes the spec of a trial. A trial's own pass reads here what its search wants of it ([`Wish`]).

use super::error::Error;
use super::pass::{CreateOutcome, Owner, Pass};
use super::watch::scoped;
use super::{Context, backoff};
use api::{EarlierTrial, Guarded, Reason, State, TrainingJob, TrialState, TuningJob, TuningJobStatus, Unreadable};
use futures::channel::mpsc;
use futures::{FutureExt, Stream, StreamExt};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::runtime::WatchStreamExt;
use kube::runtime::controller::{self, Controller};
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Resource, ResourceExt};
use observe::{Blocked, JobKey};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::future::{self, Future};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tracing::{Instrument, debug, info_span, warn};
use trials::{Decision, Input, ObservedTrial, Study, Wish};

/// TuningJobs in one page of a list. Each may have a megabyte.
const PAGE: u32 = 10;
/// Passes at one time. Most of a pass is the search, of which one runs at a time.
const CONCURRENCY: u16 = 4;
/// How long changes of readings and times alone wait until they are written.
const GATHER: Duration = Duration::from_secs(10);
/// When to try again what could not be created.
const AGAIN: Duration = Duration::from_secs(10);
/// When a trial looks again if its TuningJob has not been listed yet.
pub(super) const UNLISTED: Duration = Duration::from_secs(1);

type Ref = ObjectRef<Guarded<TuningJob>>;

impl Owner for TuningJob {}

/// What the operator knows of TuningJobs.
pub(super) struct Searches {
    store: Store<Guarded<TuningJob>>,
    /// Wakes a TuningJob.
    touch: mpsc::UnboundedSender<Ref>,
    known: Mutex<HashMap<JobKey, SearchMemory>>,
    /// Held while a search runs.
    thread: Semaphore,
    /// Whether all TuningJobs have been listed once, or there are none.
    is_listed: AtomicBool,
    /// Whether the API server has the kind.
    has_kind: AtomicBool,
}

/// What is remembered of one TuningJob.
#[derive(Default)]
struct SearchMemory {
    /// The last status that was written, with the version of the object that has it.
    written: Option<(u64, TuningJobStatus)>,
    /// When readings alone were written last.
    written_at: Option<Instant>,
    blocked: Option<(Reason, String)>,
    failures: u32,
}

/// What has to be polled for TuningJobs to be looked after.
pub(super) struct Streams {
    jobs: futures::stream::BoxStream<'static, Result<Guarded<TuningJob>, watcher::Error>>,
    touched: mpsc::UnboundedReceiver<Ref>,
}

impl Searches {
    pub(super) fn new() -> (Self, reflector::store::Writer<Guarded<TuningJob>>, mpsc::UnboundedReceiver<Ref>) {
        let (store, writer) = reflector::store();
        let (touch, touched) = mpsc::unbounded();
        let (thread, [is_listed, has_kind]) = (Semaphore::new(1), [false; 2].map(AtomicBool::new));
        (Self { store, touch, known: Mutex::default(), thread, is_listed, has_kind }, writer, touched)
    }

    /// All TuningJobs, as the watch has them.
    pub(super) fn store(&self) -> Store<Guarded<TuningJob>> {
        self.store.clone()
    }

    fn wake(&self, search: Ref) {
        // A receiver that is gone has stopped reconciling.
        let _ = self.touch.unbounded_send(search);
    }

    fn known<T>(&self, key: &JobKey, look: impl FnOnce(&mut SearchMemory) -> T) -> T {
        look(self.known.lock().entry(key.clone()).or_default())
    }
}

/// The TuningJob that a TrainingJob is a trial of, by its controlling owner.
fn search_of(trial: &impl Resource) -> Option<(Ref, String)> {
    let plan::SearchIdentity { name, uid } = plan::SearchIdentity::from_meta(trial.meta())?;
    let search = ObjectRef::new(&name).within(trial.meta().namespace.as_deref().unwrap_or_default());
    Some((search, uid))
}

impl Context {
    /// Wakes the TuningJob of a trial that has changed, and the one that a TrainingJob has made.
    pub(super) fn wake_search(&self, job: &Guarded) {
        if let Some((search, _)) = search_of(job) {
            self.searches.wake(search);
        }
        if job.0.as_ref().is_ok_and(|job| job.spec.hyper_parameter_tuning_config.is_some()) {
            self.searches.wake(ObjectRef::new(&job.name_any()).within(job.namespace().as_deref().unwrap_or_default()));
        }
    }

    /// What the search wants of a trial; nothing of other TrainingJobs. `None` while TuningJobs have yet to be listed.
    pub(super) fn wish(&self, job: &TrainingJob) -> Option<Wish> {
        let Some((search, uid)) = search_of(job) else { return Some(Wish::default()) };
        let Some(found) = self.searches.store.get(&search) else {
            return self.has_listed_searches().then(Wish::default);
        };
        let found = found.0.as_ref().ok().filter(|found| found.metadata.uid.as_deref() == Some(&uid));
        Some(found.map(|found| trials::wish(found, self.is_suspended(found), job)).unwrap_or_default())
    }

    /// Whether all TuningJobs have been listed once.
    pub(super) fn has_listed_searches(&self) -> bool {
        self.searches.is_listed.load(Ordering::Relaxed)
    }

    /// Whether a search is suspended: by itself, or by the TrainingJob that made it.
    fn is_suspended(&self, search: &TuningJob) -> bool {
        search.spec.suspend
            || self.parent(search).is_some_and(|parent| parent.0.as_ref().is_ok_and(|job| job.spec.suspend))
    }

    /// The TuningJob that a TrainingJob has made.
    pub(super) fn own_search(&self, job: &TrainingJob) -> Option<Arc<Guarded<TuningJob>>> {
        let search = ObjectRef::new(&job.name_any()).within(job.namespace().as_deref().unwrap_or_default());
        let found = self.searches.store.get(&search)?;
        let is_owner = |owner: &OwnerReference| Some(&owner.uid) == job.metadata.uid.as_ref();
        found.owner_references().iter().any(is_owner).then_some(found)
    }

    fn parent(&self, search: &TuningJob) -> Option<Arc<Guarded>> {
        let mut owners = search.owner_references().iter();
        let owner = owners.find(|owner| owner.controller == Some(true) && owner.kind == TrainingJob::kind(&()))?;
        let parent = ObjectRef::new(&owner.name).within(search.namespace().as_deref().unwrap_or_default());
        self.jobs.get()?.get(&parent).filter(|parent| parent.uid().as_deref() == Some(&owner.uid))
    }
}

/// Watches TuningJobs. A cluster without the kind has none.
pub(super) fn watch(
    context: &Arc<Context>,
    writer: reflector::store::Writer<Guarded<TuningJob>>,
    touched: mpsc::UnboundedReceiver<Ref>,
) -> Streams {
    let config = watcher::Config::default().page_size(PAGE);
    let events = watcher(scoped::<Guarded<TuningJob>>(context), config).default_backoff().modify(|job| {
        if let Ok(job) = &mut job.0 {
            job.metadata.managed_fields = None;
        }
    });
    Streams { jobs: seen(context.clone(), reflector::reflector(writer, events)).boxed(), touched }
}

fn seen(
    context: Arc<Context>,
    events: impl Stream<Item = Result<Event<Guarded<TuningJob>>, watcher::Error>> + Send + 'static,
) -> impl Stream<Item = Result<Guarded<TuningJob>, watcher::Error>> + Send + 'static {
    events.filter_map(move |event| {
        let searches = &context.searches;
        let job = match event {
            Ok(Event::Init | Event::InitApply(_)) => None,
            Ok(Event::InitDone) => {
                searches.has_kind.store(true, Ordering::Relaxed);
                searches.is_listed.store(true, Ordering::Relaxed);
                // What was listed is in the store only now.
                searches.store.state().iter().for_each(|job| searches.wake(ObjectRef::from_obj(&**job)));
                None
            }
            Ok(Event::Apply(job)) => Some(Ok(job)),
            Ok(Event::Delete(job)) => {
                searches.known.lock().remove(&JobKey::from_meta(job.meta()));
                None
            }
            // Without the kind there is no TuningJob, and no trial waits for one.
            Err(watcher::Error::InitialListFailed(kube::Error::Api(status))) if status.code == 404 => {
                searches.is_listed.store(true, Ordering::Relaxed);
                debug!("the API server has no kind TuningJob, trying again");
                None
            }
            Err(error) => {
                warn!(kind = "TuningJob", %error, "watch broken, trying again");
                context.metrics.watch_failed("TuningJob");
                None
            }
        };
        future::ready(job)
    })
}

/// Looks after TuningJobs until `stop` is done.
pub(super) async fn run(
    context: Arc<Context>,
    streams: Streams,
    stop: impl Future<Output = ()> + Send + Sync + 'static,
) {
    let Streams { jobs, touched } = streams;
    // A trial that has yet to be listed would count as deleted.
    if let Some(trials) = context.jobs.get() {
        let _ = trials.wait_until_ready().await; // an error means that nothing is listed any more
    }
    let stop = stop.shared();
    let work = Controller::for_stream(jobs, context.searches.store.clone())
        .with_config(controller::Config::default().concurrency(CONCURRENCY))
        .reconcile_on(touched)
        .graceful_shutdown_on(stop.clone())
        .run(reconcile, error_policy, context.clone())
        .for_each(|result| {
            if let Err(error) = result {
                debug!(%error, "reconcile of a TuningJob");
            }
            future::ready(())
        });
    // A controller whose kind was never listed has begun nothing, and would wait for the list.
    let never_begun = async {
        stop.await;
        if context.searches.has_kind.load(Ordering::Relaxed) {
            future::pending::<()>().await;
        }
    };
    futures::future::select(std::pin::pin!(work), std::pin::pin!(never_begun)).await;
}

async fn reconcile(object: Arc<Guarded<TuningJob>>, context: Arc<Context>) -> Result<controller::Action, Error> {
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    let span = info_span!("reconcile", %namespace, search = %name);
    let requeue = match &object.0 {
        Ok(job) if job.metadata.deletion_timestamp.is_some() => None,
        Ok(job) => Box::pin(look(&context, job).instrument(span)).await?,
        Err(unreadable) => {
            report_unreadable(&context, &object, unreadable);
            None
        }
    };
    context.searches.known(&JobKey::from_meta(object.meta()), |known| known.failures = 0);
    Ok(requeue.map_or_else(controller::Action::await_change, controller::Action::requeue))
}

#[expect(clippy::needless_pass_by_value, reason = "as kube calls it")]
fn error_policy(object: Arc<Guarded<TuningJob>>, error: &Error, context: Arc<Context>) -> controller::Action {
    let failures = context.searches.known(&JobKey::from_meta(object.meta()), |known| {
        known.failures = known.failures.saturating_add(1);
        known.failures
    });
    let (namespace, name, wait) = (object.namespace().unwrap_or_default(), object.name_any(), backoff(failures));
    if error.is_expected() {
        debug!(%namespace, %name, %error, ?wait, "trying again");
    } else {
        warn!(%namespace, %name, %error, ?wait, "reconcile of a TuningJob failed, trying again");
    }
    controller::Action::requeue(wait)
}

fn report_unreadable(context: &Context, object: &Guarded<TuningJob>, unreadable: &Unreadable) {
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    warn!(%namespace, %name, error = %unreadable, "a TuningJob that can't be read; its trials continue, and no further ones start");
    context.searches.known(&JobKey::from_meta(object.meta()), |known| known.blocked = None);
}

/// One pass. Returns when to look again.
async fn look(context: &Arc<Context>, seen: &TuningJob) -> Result<Option<Duration>, Error> {
    let mut pass = Pass::over(context.as_ref(), seen)?;
    let mut job = seen.clone();
    // Our own last write may be ahead of the watch.
    let newer =
        |known: &mut SearchMemory| known.written.as_ref().filter(|(version, _)| *version > pass.version).cloned();
    if let Some((version, status)) = context.searches.known(&pass.key, newer) {
        (pass.version, job.status) = (version, Some(status));
    }
    let before = job.status.clone().unwrap_or_default();
    let job = Arc::new(job);
    let mut verdict = pass.decided(context, &job, None).await;
    if verdict.needs_check {
        let checked = Box::pin(pass.checked(&job)).await?;
        verdict = pass.decided(context, &job, Some(checked)).await;
    }
    let Decision { status, create, events, mut requeue, .. } = verdict;
    if !is_same(&before, &status) {
        let wait = match is_progress(&before, &status) {
            true => context.searches.known(&pass.key, |known| {
                known.written_at.map_or(Duration::ZERO, |at| GATHER.saturating_sub(at.elapsed()))
            }),
            false => Duration::ZERO,
        };
        if wait.is_zero() {
            pass.replace_status(&status).await?;
            context.searches.known(&pass.key, |known| {
                known.written_at = Some(Instant::now());
                known.written = Some((pass.version, status.clone()));
            });
            pass.publish_events(None, events);
        } else {
            requeue = Some(requeue.map_or(wait, |requeue| requeue.min(wait)));
        }
    }
    let was_blocked = context.searches.known(&pass.key, |known| known.blocked.clone());
    let mut blocked = None;
    for trial in create {
        pass.confirm().await?;
        if let CreateOutcome::Blocked(Blocked { reason, message }) = pass.create(&trial).await? {
            blocked = Some((reason, format!("trial {} can't be created: {message}", trial.name_any())));
            requeue = Some(AGAIN);
            break;
        }
    }
    if blocked != was_blocked {
        context.searches.known(&pass.key, |known| known.blocked = blocked);
        context.searches.wake(ObjectRef::from_obj(&Guarded(Ok(seen.clone()))));
    }
    context.wake_trials(&job, &status);
    // The TrainingJob that made the search reports its state.
    context.wake(context.parent(&job).map(|parent| ObjectRef::from_obj(&*parent)));
    Ok(requeue)
}

impl Context {
    /// Wakes the trials that have yet to do what their search wants.
    fn wake_trials(&self, job: &TuningJob, status: &TuningJobStatus) {
        let suspend = self.is_suspended(job);
        for row in status.trials.iter().filter(|row| !row.state.is_ended()) {
            let Some(trial) = self.trial(job, row) else { continue };
            let Ok(found) = &trial.0 else { continue };
            let state = found.status.as_ref().and_then(|status| status.state);
            let is_suspended = state == Some(State::Suspended);
            let differs = suspend != is_suspended && !found.spec.suspend && state.is_some();
            if row.state == TrialState::Stopping || differs {
                self.wake([ObjectRef::from_obj(&*trial)]);
            }
        }
    }

    /// The TrainingJob of a recorded trial.
    fn trial(&self, job: &TuningJob, row: &api::TrialStatus) -> Option<Arc<Guarded>> {
        let name = trials::trial_name(&job.name_any(), row.trial, row.retries);
        let trial = ObjectRef::new(&name).within(job.namespace().as_deref().unwrap_or_default());
        let found = self.jobs.get()?.get(&trial)?;
        search_of(&*found).filter(|(_, uid)| job.metadata.uid.as_ref() == Some(uid))?;
        Some(found)
    }
}

/// Whether only readings, times and counts of running trials differ.
fn is_progress(before: &TuningJobStatus, after: &TuningJobStatus) -> bool {
    let gist = |status: &TuningJobStatus| {
        let mut status = status.clone();
        status.gpu_hours = 0.0;
        for row in status.trials.iter_mut().filter(|row| !row.state.is_ended() && row.state != TrialState::Stopping) {
            (row.value, row.step, row.gpu_hours, row.start_time) = (None, None, None, None);
            row.state = TrialState::Suggested;
        }
        status
    };
    is_same(&gist(before), &gist(after))
}

/// Whether both serialize alike. NaN, which is a valid result, is not equal to itself.
fn is_same(one: &TuningJobStatus, other: &TuningJobStatus) -> bool {
    let text = |status: &TuningJobStatus| serde_json::to_string(status).ok();
    one == other || text(one) == text(other)
}

impl Pass<'_, TuningJob> {
    /// Decides on a thread of its own, beside the thread of all passes.
    async fn decided(
        &self,
        context: &Arc<Context>,
        job: &Arc<TuningJob>,
        checked: Option<Result<Vec<EarlierTrial>, (Reason, String)>>,
    ) -> Decision {
        let rows = job.status.iter().flat_map(|status| &status.trials).filter(|row| !row.state.is_ended());
        let seen: Vec<(u32, Arc<Guarded>, u32)> = rows
            .filter_map(|row| {
                let trial = context.trial(job, row)?;
                let gpus = trial.0.as_ref().map_or(0, |found| context.gpus(found));
                Some((row.trial, trial, gpus))
            })
            .collect();
        let (job, suspend) = (job.clone(), context.is_suspended(job));
        let blocked = context.searches.known(&self.key, |known| known.blocked.clone());
        let Ok(_turn) = context.searches.thread.acquire().await else { return Decision::default() };
        let decide = move || {
            let trials: BTreeMap<u32, ObservedTrial<'_>> = seen
                .iter()
                .filter_map(|(number, trial, gpus)| {
                    Some((*number, ObservedTrial { job: trial.0.as_ref().ok()?, gpus: *gpus }))
                })
                .collect();
            let now = lifecycle::whole_second(Timestamp::now());
            trials::decide(&Input { job: &job, suspend, checked, trials, blocked, now })
        };
        match tokio::task::spawn_blocking(decide).await {
            Ok(verdict) => verdict,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    /// Tries the first trial, and reads the searches of `warmStartFrom`.
    async fn checked(&self, job: &TuningJob) -> Result<Result<Vec<EarlierTrial>, (Reason, String)>, Error> {
        let study = match Study::new(job) {
            Ok(study) => study,
            Err(why) => return Ok(Err((Reason::InvalidSpec, why))),
        };
        let sources: Vec<_> =
            study.tuning.warm_start_from.iter().map(|name| (name.clone(), self.source(name))).collect();
        let sources: Vec<_> = sources
            .iter()
            .map(|(name, source)| (name.clone(), source.as_ref().and_then(|source| source.0.as_ref().ok())))
            .collect();
        let earlier = match trials::earlier(&study, &sources) {
            Ok(earlier) => earlier,
            Err(why) => return Ok(Err((Reason::InvalidSpec, why))),
        };
        let mut trial = trials::first_trial(&study, job);
        // It stands for a job that is stored.
        trial.metadata.uid.clone_from(&job.metadata.uid);
        let why = self.try_trial(&trial).await?;
        Ok(match why {
            Some((reason, why)) => Err((reason, format!("the template can't run: {why}"))),
            None => Ok(earlier),
        })
    }

    fn source(&self, name: &str) -> Option<Arc<Guarded<TuningJob>>> {
        self.context.searches.store.get(&ObjectRef::new(name).within(&self.key.namespace))
    }

    /// Why a trial could not run, by the rules of the API server and of the operator.
    async fn try_trial(&self, trial: &TrainingJob) -> Result<Option<(Reason, String)>, Error> {
        if let Some(Blocked { reason, message }) = self.try_to_create(trial).await? {
            return Ok(Some((reason, message)));
        }
        let mut trial = trial.clone();
        match Pass::over(self.context, &trial)?.inherited().await? {
            Some(Err(waits)) => return Ok(Some(waits.into_parts())),
            Some(Ok(inherited)) => trial.status.get_or_insert_default().inherited = Some(inherited),
            None => {}
        }
        let planned = plan::resolve(&trial, &self.context.options.runtime);
        Ok(planned.accepted().err().map(|refusals| (Reason::InvalidSpec, refusals.to_string())))
    }
}

impl Context {
    /// GPUs of a job's pods.
    fn gpus(&self, job: &TrainingJob) -> u32 {
        let wanted = self.wanted(job, &JobKey::from_meta(&job.metadata));
        let roles = wanted.planned.plan.gang.roles.iter();
        roles.map(|role| u32::from(role.replicas) * u32::from(role.gpus)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn status(trials: &serde_json::Value) -> TuningJobStatus {
        serde_json::from_value(json!({ "trials": trials })).unwrap()
    }

    #[test]
    fn readings_alone_are_progress_but_results_are_not() {
        let row =
            |state: &str, value: &str| json!({ "trial": 1, "values": [1], "state": state, "after": 0, "value": value });
        let one = |state, value| status(&json!([row(state, value)]));
        assert!(is_same(&one("Running", "NaN"), &one("Running", "NaN")));
        assert!(!is_same(&one("Running", "NaN"), &one("Running", "1")));
        assert!(is_progress(&one("Running", "NaN"), &one("Running", "1")));
        assert!(is_progress(&one("Suggested", "NaN"), &one("Running", "1")));
        assert!(!is_progress(&one("Running", "1"), &one("Stopping", "1")));
        assert!(!is_progress(&one("Running", "1"), &one("Succeeded", "1")));
        assert!(!is_progress(&one("Running", "1"), &status(&json!([row("Running", "1"), row("Suggested", "NaN")]))));
    }
}
