//! The only place that writes to the API server.
//!
//! [`run`] watches, keeps the [`Index`] and reconciles; [`reconcile`] is one pass for one job. A pass creates objects
//! only after it has proven that its TrainingJob is current. The proof is a successful write of the status or a fresh
//! read. Otherwise an operator with delayed watches would restart a suspended job, or create objects for a deleted one.

mod apply;
mod ask;
mod cache;
mod compact_watches;
mod content_names;
mod delivery;
mod error;
mod events;
mod fair_queue;
mod operator_key;
mod pass;
mod pass_permit;
mod poll;
mod poll_schedule;
mod queue;
mod refused;
mod runtimes;
mod short_search;
mod status;
mod tensorboard;
mod tuning;
mod watch;

pub use ask::AgentAccess;
pub use ask::decode;
pub use compact_watches::compact_watches;
pub use content_names::ContentNames;
pub use error::Error;
pub use operator_key::{OPERATOR_KEY_SECRET, operator_key};

use crate::telemetry::Metrics;
use api::{Guarded, State, TrainingJob, TrainingJobStatus, Unreadable};
use fair_queue::FairQueue;
use futures::channel::mpsc;
use futures::future::{self, BoxFuture, Either};
use futures::{FutureExt, StreamExt};
use jiff::Timestamp;
use kube::runtime::controller::{self, Controller};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Client, Resource, ResourceExt};
use lifecycle::{self, Action, Decision, Input};
use observe::{Basis, Blocked, Cell, ChildKey, Children, Index, JobKey, ResolvedSpec, digest};
use parking_lot::Mutex;
use pass::Pass;
use plan::{self, AgentDelivery, OperatorInfo, Plan};
use protocol::proof::OperatorKey;
use protocol::role::RoleName;
use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tracing::{Instrument, debug, info, info_span, warn};

/// How the controller works.
#[derive(Clone)]
pub struct Options {
    /// The only namespace to watch; all of them if `None`.
    pub namespace: Option<String>,
    /// What the operator knows of itself.
    pub runtime: OperatorInfo,
    /// Concurrent reconciles. One namespace gets half of them, if the operator watches more than one.
    pub concurrency: u16,
    /// New jobs of one namespace that are started each second, after the first 128.
    pub new_jobs_per_second: u16,
    /// Name of this replica, in Events.
    pub identity: String,
    /// How the agents are asked for progress.
    pub agent_access: AgentAccess,
    /// The key from which the operator derives the keys by which agents prove their answers.
    pub operator_key: OperatorKey,
    /// How the agent is delivered into the workers' pods.
    pub agent_delivery: AgentDelivery,
    /// Addresses of models and data sets by name.
    pub content_names: ContentNames,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            namespace: None,
            runtime: OperatorInfo::default(),
            concurrency: 32,
            new_jobs_per_second: 10,
            identity: "trainingjob-operator".into(),
            agent_access: AgentAccess::Off,
            operator_key: OperatorKey::from_random(rand::random()),
            agent_delivery: AgentDelivery::Init,
            content_names: ContentNames::default(),
        }
    }
}

pub(crate) struct Context {
    client: Client,
    options: Options,
    /// How long the answer to a write may take.
    patience: Duration,
    index: Arc<Index>,
    /// All TrainingJobs, once they are watched.
    jobs: OnceLock<Store<Guarded>>,
    asker: ask::Asker,
    deliveries: delivery::Deliveries,
    event_reads: events::EventReads,
    publisher: events::Publisher,
    metrics: Arc<Metrics>,
    /// TuningJobs.
    searches: tuning::Searches,
    /// Notified when a gang is queued as a whole.
    queued: Notify,
    /// Wakes a TrainingJob.
    touch: mpsc::UnboundedSender<ObjectRef<Guarded>>,
    fair_queue: Mutex<FairQueue<ObjectRef<Guarded>>>,
    /// Notified when a pass has to wait for its turn.
    full: Notify,
}

impl Context {
    /// What the job's spec means. It is computed once for each generation, requested restart, and size.
    fn wanted(&self, job: &TrainingJob, key: &JobKey) -> Arc<ResolvedSpec> {
        let known = self.index.read(key, |cell| cell.wanted.clone()).flatten();
        let is_of = |known: &Arc<ResolvedSpec>| {
            let asked = &known.planned.plan.policy.restart_requested;
            known.generation == job.metadata.generation
                && *asked == plan::restart_requested(job)
                && is_from_same_checkpoint(&known.planned.plan, job)
                && known.basis == basis(job.status.as_ref())
        };
        known.filter(is_of).unwrap_or_else(|| {
            let wanted = Arc::new(wanted(job, &self.options.runtime));
            self.index.update_known(key, |cell| cell.wanted = Some(wanted.clone()));
            wanted
        })
    }

    /// Forgets a TrainingJob that no longer exists.
    fn forget(&self, key: &JobKey) {
        self.index.forget(key);
        self.metrics.forget(&key.uid);
    }

    /// Forgets all other TrainingJobs, which were deleted while the watch was interrupted.
    fn forget_all_but(&self, there: &HashSet<JobKey>) {
        self.index.forget_all_but(there);
        self.metrics.retain(&there.iter().map(|key| key.uid.clone()).collect());
    }

    fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }
}

/// Whether the plan has the checkpoint of the job's last restart request.
fn is_from_same_checkpoint(plan: &plan::Plan, job: &TrainingJob) -> bool {
    let planned = plan.storage.checkpoint.as_ref().map(|checkpoint| checkpoint.policy.request.clone());
    planned.is_none_or(|request| request == plan::restart_from(job).map(|restart| restart.request))
}

/// What the plan depends on besides the spec.
fn basis(status: Option<&TrainingJobStatus>) -> Basis {
    let Some(status) = status else { return Basis::default() };
    Basis {
        size: status.elastic.as_ref().map(|elastic| (elastic.workers, elastic.largest)),
        data: plan::resolved(status),
        publishes: lifecycle::publishes(status),
    }
}

fn wanted(job: &TrainingJob, runtime: &OperatorInfo) -> ResolvedSpec {
    let planned = plan::resolve(job, runtime);
    let refused = planned.accepted().err().map(ToString::to_string);
    let digests = |plan: &Plan| (digest::service(&objects::service(plan)), digest::config(&objects::config(plan)));
    let (service, config) = planned.accepted().map_or((0, 0), digests);
    let basis = basis(job.status.as_ref());
    ResolvedSpec { generation: job.metadata.generation, basis, planned, refused, service, config }
}

/// How long an operator that shuts down waits for its last Events; shorter than a standby waits for its lease.
const LAST_EVENTS: Duration = Duration::from_secs(3);

/// Divisor: one namespace may have half of all reconciles at a time.
const HALF: u16 = 2;

/// Runs until `stop` is done. Then no new reconcile starts, and those under way finish. Dropping the future ends them
/// at once.
///
/// The futures are boxed so that the operator is compiled here, and not again in every program that runs it.
pub fn run(
    client: Client,
    options: Options,
    metrics: Arc<Metrics>,
    stop: BoxFuture<'static, ()>,
) -> BoxFuture<'static, ()> {
    Box::pin(run_until(client, options, metrics, stop))
}

async fn run_until(client: Client, options: Options, metrics: Arc<Metrics>, stop: BoxFuture<'static, ()>) {
    let (touch, touched) = mpsc::unbounded();
    // With one namespace there is no other to delay.
    let places = if options.namespace.is_some() { options.concurrency } else { options.concurrency / HALF };
    let fair_queue = FairQueue::new(places.into(), options.new_jobs_per_second);
    let (searches, writer, searches_touched) = tuning::Searches::new();
    let context = Arc::new(Context {
        client,
        searches,
        deliveries: delivery::Deliveries::new(options.agent_delivery),
        options,
        patience: error::WRITE,
        index: Arc::default(),
        jobs: OnceLock::new(),
        asker: ask::Asker::new(),
        event_reads: events::EventReads::new(),
        publisher: events::Publisher::new(Duration::from_secs(1)),
        metrics: metrics.clone(),
        queued: Notify::new(),
        touch,
        fair_queue: Mutex::new(fair_queue),
        full: Notify::new(),
    });
    let watch::Watches { children, jobs, store, relisted, synced } = watch::start(&context);
    let _ = context.jobs.set(store.clone());
    let searches = tuning::watch(&context, writer, searches_touched);
    let polling = poll::run(context.clone(), store.clone());
    metrics.observe(store.clone(), context.index.clone());
    metrics.observe_searches(context.searches.store());
    let stop = stop.shared();
    let searches_stop = stop.clone();
    let reconciling = async {
        // The watches end only with this future.
        let Either::Left((Ok(()), _)) = future::select(synced, stop.clone()).await else { return };
        metrics.set_leading(true);
        info!("watching TrainingJobs");
        let (known, there, exists) = (context.clone(), store.clone(), store.clone());
        let config = controller::Config::default().concurrency(context.options.concurrency);
        let results = Controller::for_stream(jobs, store)
            .with_config(config)
            .reconcile_on(touched)
            .reconcile_all_on(relisted.inspect(move |()| {
                let backlog = known.metrics.backlog();
                backlog.retain(|job| there.get(job).is_some());
                backlog.changed(there.state().iter().map(|job| ObjectRef::from_obj(&**job)));
            }))
            .graceful_shutdown_on(stop)
            .run(reconcile, error_policy, context.clone());
        let log = |error: controller::Error<Error, _>| {
            debug!(%error, "reconcile");
            // The job is gone, so the changes of its children need no reconcile.
            let controller::Error::ObjectNotFound(job) = error else { return };
            let job = ObjectRef::new(&job.name).within(job.namespace.as_deref().unwrap_or_default());
            if exists.get(&job).is_none() {
                context.metrics.backlog().taken(&job);
            }
        };
        let each = |result: Result<_, _>| {
            if let Err(error) = result {
                log(error);
            }
            future::ready(())
        };
        let searching = tuning::run(context.clone(), searches, searches_stop);
        future::join(results.for_each(each), searching).await;
    };
    let publishing = context.clone();
    // A task of its own: the many changes of pods do not wake everything else. It ends with this future.
    let mut indexing = JoinSet::new();
    indexing.spawn(children);
    let indexing = async {
        if let Some(Err(error)) = indexing.join_next().await
            && error.is_panic()
        {
            std::panic::resume_unwind(error.into_panic());
        }
    };
    let watching = future::join3(indexing, polling, context.look_at_turns());
    future::select(std::pin::pin!(watching), std::pin::pin!(reconciling)).await;
    publishing.publisher.finish(LAST_EVENTS).await;
    metrics.set_leading(false);
}

async fn reconcile(object: Arc<Guarded>, context: Arc<Context>) -> Result<controller::Action, Error> {
    let Some(_turn) = context.permit(&object) else { return Ok(controller::Action::await_change()) };
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    let started = Instant::now();
    let (_in_flight, this) = (context.metrics.reconciling(), ObjectRef::from_obj(&*object));
    context.metrics.backlog().taken(&this);
    let span = info_span!("reconcile", %namespace, %name);
    let result = match &object.0 {
        Ok(job) if job.metadata.deletion_timestamp.is_some() => Ok(Requeue::default()),
        Ok(job) => match Unreadable::by_state(job) {
            None => Box::pin(reconcile_job(&context, job).instrument(span)).await,
            Some(newer) => context.unreadable(&newer).instrument(span).await.map(|()| Requeue::default()),
        },
        Err(invalid) => context.unreadable(invalid).instrument(span).await.map(|()| Requeue::default()),
    };
    context.metrics.reconciled(&object, started.elapsed(), result.as_ref().err().map(Error::label));
    // `error_policy` sets the wait after an error.
    let wait = result.as_ref().map_or(Some(Duration::ZERO), |requeue| requeue.0);
    wait.into_iter().for_each(|wait| context.metrics.backlog().due(this.clone(), wait));
    Ok(result?.0.map_or_else(controller::Action::await_change, controller::Action::requeue))
}

async fn reconcile_job(context: &Context, job: &TrainingJob) -> Result<Requeue, Error> {
    let Some(wish) = context.wish(job) else { return Ok(Requeue(Some(tuning::UNLISTED))) };
    let mut pass = Pass::over(context, job)?;
    if let Some(tuning) = &job.spec.hyper_parameter_tuning_config {
        return Box::pin(pass.search(tuning)).await;
    }
    let whole = match pass.inherited().await? {
        None => Cow::Borrowed(job),
        Some(Ok(inherited)) => {
            let mut whole = job.clone();
            whole.status.get_or_insert_default().inherited = Some(inherited.clone());
            pass.inherited = Some(inherited);
            Cow::Owned(whole)
        }
        Some(Err(waits)) => {
            pass.report_blocker(&waits).await?;
            return Ok(Requeue(Some(pass.look_again())));
        }
    };
    let mut requeue = Requeue::default();
    // The second round reports in the status how the writes of the first were answered.
    for _ in 0..2 {
        // The watch may have yet to show our last write, for example about fetched data.
        let newest = pass.current_status();
        let whole = match &whole.status {
            Some(status) if basis(Some(status)) == basis(Some(&newest)) => Cow::Borrowed(&*whole),
            status => {
                let inherited =
                    status.as_ref().and_then(|status| status.inherited.clone()).or(newest.inherited.clone());
                Cow::Owned(TrainingJob {
                    status: Some(TrainingJobStatus { inherited, ..newest.clone() }),
                    ..whole.clone().into_owned()
                })
            }
        };
        let wanted = context.wanted(&whole, &pass.key);
        if !pass.round(&wanted, newest, &wish, &mut requeue).await? {
            break;
        }
    }
    let again = context.index.update_known(&pass.key, |cell| {
        cell.failures = 0;
        if job.status.as_ref().and_then(|s| s.state).is_some_and(State::is_finished) {
            cell.children.pods.retain(|_, pod| !pod.gone);
            // The job may stay for months, and is rarely looked at.
            cell.wanted = None;
        }
        try_again(cell)
    });
    requeue.within(again.flatten());
    Ok(requeue)
}

/// When to retry the creation of blocked children: every ten seconds, and up to a minute where all are denied.
fn try_again(cell: &mut Cell) -> Option<Duration> {
    let blocked = &cell.children.blocked;
    let is_denied = !blocked.is_empty() && blocked.values().all(Blocked::is_denial);
    cell.denials = if is_denied { cell.denials.saturating_add(1) } else { 0 };
    (!blocked.is_empty()).then(|| Duration::from_secs((10 << cell.denials.saturating_sub(1).min(3)).min(60)))
}

/// When to reconcile again: the earliest of all requested times.
#[derive(Default)]
struct Requeue(Option<Duration>);

impl Requeue {
    fn within(&mut self, wait: impl Into<Option<Duration>>) {
        self.0 = [self.0, wait.into()].into_iter().flatten().min();
    }
}

impl Pass<'_, TrainingJob> {
    /// Observes, decides, writes the status, acts and publishes Events. Returns true if the round learnt something that
    /// the status has yet to report. `stored` is the newest status.
    async fn round(
        &mut self,
        wanted: &ResolvedSpec,
        stored: TrainingJobStatus,
        wish: &trials::Wish,
        requeue: &mut Requeue,
    ) -> Result<bool, Error> {
        let context = self.context;
        let mut children = context.index.children(&self.key);
        // Written with the first status of the job, before any child is created.
        let mut current = stored.clone();
        if let Some(inherited) = self.inherited.take_if(|_| current.inherited.is_none()) {
            if let Some(taken) = &inherited.runtime {
                let note = format!("the job begins with {}, generation {}", taken.called(), taken.generation);
                self.publish_events(None, vec![lifecycle::Event { warning: false, reason: "RuntimeTaken", note }]);
            }
            current.inherited = Some(inherited);
        }
        let plan = &wanted.planned.plan;
        if plan.gang.queue.is_some() {
            context.queued.notify_one();
        }
        if lifecycle::misses_job(plan, &current, &children) && self.find_jobs(plan).await? {
            children = context.index.children(&self.key);
        }
        if let Some(job) = lifecycle::misses_pods(&current, &children) {
            self.find_pods(job).await?;
            children = context.index.children(&self.key);
        }
        let agents = context.index.read(&self.key, |cell| {
            let refusal = cell.agents.refusal().map(str::to_owned);
            (cell.agents.answer(), cell.agents.silent_since(), refusal, cell.transfer_answer())
        });
        let (agent, agent_silent_since, agent_refusal, transfer) = agents.unwrap_or_default();
        let Decision { status, actions, events, read_events_of, requeue: again } = lifecycle::decide(&Input {
            plan,
            refused: wanted.refused.as_deref(),
            generation: self.owner.metadata.generation,
            status: &current,
            children: &children,
            agent: agent.as_ref(),
            agent_silent_since,
            agent_refusal: agent_refusal.as_deref(),
            held: wish.held.as_deref(),
            stop: wish.stop.as_deref(),
            transfer: transfer.as_ref(),
            now: lifecycle::whole_second(Timestamp::now()),
        });
        requeue.within(again);
        let (urgent, actions): (Vec<_>, Vec<_>) = actions.into_iter().partition(Action::is_urgent);
        // Any program may have sent an answer, and may send a new one to each question. What follows from answers alone
        // is throttled.
        let is_observation = urgent.is_empty() && actions.iter().all(|action| matches!(action, Action::Ensure));
        if is_observation && let Some(wait) = self.throttled(&stored, &status) {
            requeue.within(wait);
            return Ok(false);
        }
        let released = self.act(wanted, &children, &urgent).await;
        requeue.within(self.write_status(&stored, &status).await?);
        self.count(plan, &stored, &status);
        let acted = released.and(self.act(wanted, &children, &actions).await);
        // The status is written, so the events are true whatever the actions led to.
        self.publish_events(status.attempt, events);
        acted?;
        requeue.within(self.board(wanted, &status).await);
        let mut learnt = context.index.read(&self.key, |c| c.children.blocked != children.blocked).unwrap_or(false);
        if !read_events_of.is_empty() {
            learnt |= self.read_events(&read_events_of).await?;
        }
        Ok(learnt)
    }

    async fn act(&mut self, wanted: &ResolvedSpec, children: &Children, actions: &[Action]) -> Result<(), Error> {
        for action in actions {
            Box::pin(self.act_once(wanted, children, action)).await?;
        }
        Ok(())
    }

    async fn act_once(&mut self, wanted: &ResolvedSpec, children: &Children, action: &Action) -> Result<(), Error> {
        match action {
            Action::Ensure => match wanted.planned.accepted() {
                Ok(plan) => self.ensure(plan, wanted, children).await,
                Err(_) => Ok(()), // a job that an older operator accepted runs on with its existing children
            },
            Action::CreateJobs(incarnation, past) => {
                let Ok(plan) = wanted.planned.accepted() else { return Ok(()) };
                let is_blocked = |cell: &Cell| cell.children.blocked.keys().any(|key| key.kind.precedes_jobs());
                if self.context.index.read(&self.key, is_blocked).unwrap_or(false) {
                    return Ok(()); // the Service is created before the Job
                }
                // This may take a while, so it comes first: nothing is to come between the proof and the Job.
                let delivery = self.context.deliveries.now(&self.context.client).await;
                if self.awaits_predecessor(ChildKey::job(RoleName::WORKER)) {
                    return Ok(());
                }
                self.confirm().await?;
                self.confirm_no_upkeep(plan).await?;
                Box::pin(self.create_jobs(plan, *incarnation, past, delivery)).await
            }
            Action::EnsureGroup => {
                let Ok(plan) = wanted.planned.accepted() else { return Ok(()) };
                self.confirm().await?;
                self.ensure_group(plan).await.map(drop)
            }
            Action::EnsureWorkload => {
                let Ok(plan) = wanted.planned.accepted() else { return Ok(()) };
                self.confirm().await?;
                self.ensure_workload(plan).await
            }
            Action::UnsuspendJob { name, uid, role } => {
                let Ok(plan) = wanted.planned.accepted() else { return Ok(()) };
                let flavors = children.workload.as_ref().and_then(|workload| workload.flavors.get(role));
                self.confirm().await?;
                self.let_job_go(plan, name, uid, *role, &flavors.cloned().unwrap_or_default()).await
            }
            Action::SuspendJob { name, uid } => self.hold_job(name, uid).await,
            Action::UpdateWorkload(news) => self.update_workload(&wanted.planned.plan, *news).await,
            Action::DeleteWorkload { name, uid } => self.delete_workload(name, uid).await,
            Action::CreateUpkeep(task) => {
                let Ok(plan) = wanted.planned.accepted() else { return Ok(()) };
                if self.awaits_predecessor(ChildKey::UPKEEP) {
                    return Ok(());
                }
                self.confirm().await?;
                self.create_upkeep(plan, *task).await
            }
            Action::DeleteJob { name, uid } => self.delete_job(&wanted.planned.plan, name, uid).await,
            Action::EndJob { name, uid } => self.end_job(&wanted.planned.plan, name, uid).await,
            Action::ReleasePod { name, uid, force } => self.release_pod(name, uid, *force).await,
            Action::ScaleJob { name, uid, pods } => {
                self.confirm().await?;
                self.scale_job(name, uid, *pods).await
            }
            Action::NudgePod { name, uid, size } => self.hasten_pod(name, uid, *size).await,
            Action::DeleteOwner => {
                // A person may have changed the job since, for example its TTL. That has to be considered first.
                self.confirm().await?;
                self.delete_owner().await
            }
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "as kube calls it")]
fn error_policy(object: Arc<Guarded>, error: &Error, context: Arc<Context>) -> controller::Action {
    let mut failures = 1;
    context.index.update_known(&JobKey::from_meta(object.meta()), |cell| {
        cell.failures = cell.failures.saturating_add(1);
        failures = cell.failures;
    });
    let wait = backoff(failures);
    context.metrics.backlog().due(ObjectRef::from_obj(&*object), wait);
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    if error.is_expected() {
        debug!(%namespace, %name, %error, ?wait, "trying again");
    } else {
        warn!(%namespace, %name, %error, ?wait, "reconcile failed, trying again");
    }
    controller::Action::requeue(wait)
}

/// 0.1 s, doubled up to a minute, each up to half as long again, so that many jobs don't return together.
fn backoff(failures: u32) -> Duration {
    let base = Duration::from_millis(100) * 2u32.saturating_pow(failures.saturating_sub(1).min(10));
    base.min(Duration::from_secs(60)).mul_f64(rand::random_range(1.0..1.5))
}

#[cfg(test)]
mod tests;
