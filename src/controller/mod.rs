//! The only place that writes to the API server.
//!
//! [`run`] watches, keeps the [`Index`] and reconciles; [`reconcile`] is one pass for one job. Objects are created only
//! by a pass that has just proven, by a successful write of the status or by a fresh read, that it does not act on an
//! outdated TrainingJob: without that an operator behind on its watches would start a suspended job again, or make
//! objects for one that is deleted.

mod apply;
mod error;
mod events;
mod poll;
mod status;
mod tensorboard;
mod watch;

pub use error::Error;
pub use poll::AgentAccess;

use crate::api::{Guarded, TrainingJob};
use crate::build;
use crate::lifecycle::{self, Action, Input, Verdict};
use crate::observe::{ChildKind, Family, Index, Polled, digest};
use crate::plan::{self, Plan, Runtime};
use crate::telemetry::Metrics;
use futures::FutureExt;
use futures::future::{self, Either};
use jiff::Timestamp;
use kube::runtime::controller::{self, Controller};
use kube::{Api, Client, ResourceExt};
use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tracing::{Instrument, debug, info, info_span, warn};

/// How the controller works.
#[derive(Clone)]
pub struct Options {
    /// The only namespace to look at; all of them if `None`.
    pub namespace: Option<String>,
    /// What the operator knows of itself.
    pub runtime: Runtime,
    /// Reconciles at one time.
    pub concurrency: u16,
    /// Name of this replica, in Events.
    pub identity: String,
    /// How the agents are asked for progress.
    pub agent_access: AgentAccess,
}

impl Default for Options {
    fn default() -> Self {
        let runtime = Runtime { agent_image: String::new(), agent_image_pull_policy: None };
        Self {
            namespace: None,
            runtime,
            concurrency: 32,
            identity: "trainingjob-operator".into(),
            agent_access: AgentAccess::Off,
        }
    }
}

pub(crate) struct Context {
    client: Client,
    options: Options,
    index: Index,
    boards: tensorboard::Boards,
    plans: Mutex<HashMap<String, Arc<Resolved>>>,
    polled: Arc<Polled>,
    poller: poll::Poller,
    metrics: Arc<Metrics>,
}

/// What one generation of a spec means: it is the same at every pass.
struct Resolved {
    generation: Option<i64>,
    plan: Result<Plan, String>,
    /// Digest of the Service as it should be.
    service: u64,
    /// Digest of the ConfigMap as it should be.
    config: u64,
}

impl Resolved {
    fn of(job: &TrainingJob, runtime: &Runtime) -> Self {
        let plan = plan::resolve(job, runtime).map_err(|refusals| refusals.to_string());
        let objects = plan.as_ref().ok().map(|plan| build::objects(plan, 1));
        let digests = objects.map_or((0, 0), |o| (digest::service(&o.service), digest::config(&o.config)));
        Self { generation: job.metadata.generation, plan, service: digests.0, config: digests.1 }
    }
}

impl Resolved {
    fn has_blind_board(&self) -> bool {
        self.plan.as_ref().is_ok_and(|plan| plan.monitoring.tensorboard == Some(plan::TensorBoard::NoStorage))
    }
}

impl Context {
    fn resolved(&self, job: &TrainingJob, uid: &str) -> Arc<Resolved> {
        let known = self.plans().get(uid).filter(|known| known.generation == job.metadata.generation).cloned();
        known.unwrap_or_else(|| {
            let resolved = Arc::new(Resolved::of(job, &self.options.runtime));
            self.plans().insert(uid.to_owned(), resolved.clone());
            resolved
        })
    }

    fn plans(&self) -> MutexGuard<'_, HashMap<String, Arc<Resolved>>> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A TrainingJob that exists no more.
    fn forget(&self, uid: &str) {
        self.index.forget(uid);
        self.boards.forget(uid);
        self.plans().remove(uid);
        self.polled.forget(uid);
        self.metrics.forget(uid);
    }

    /// TrainingJobs that were deleted while nobody watched.
    fn forget_all_but(&self, there: &HashSet<String>) {
        self.index.forget_all_but(there);
        self.boards.forget_all_but(there);
        self.plans().retain(|uid, _| there.contains(uid));
        self.polled.retain(there);
        self.metrics.retain(there);
    }

    fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }
}

/// Runs until `stop` is done; then no new reconcile starts and those under way end. Dropping the future ends them at once.
pub async fn run(
    client: Client,
    options: Options,
    metrics: Arc<Metrics>,
    stop: impl Future<Output = ()> + Send + Sync + 'static,
) {
    let context = Arc::new(Context {
        client,
        options,
        index: Index::default(),
        boards: tensorboard::Boards::default(),
        plans: Mutex::default(),
        polled: Arc::default(),
        poller: poll::Poller::new(),
        metrics: metrics.clone(),
    });
    let watch::Watches { children, jobs, store, touch, touched, relisted, synced } = watch::start(&context);
    let polling = poll::run(context.clone(), store.clone(), touch);
    metrics.observe(store.clone(), context.polled.clone());
    let stop = stop.shared();
    let reconciling = async {
        // The watches end only with this future.
        let Either::Left((Ok(()), _)) = future::select(synced, stop.clone()).await else { return };
        metrics.set_leading(true);
        info!("watching TrainingJobs");
        let config = controller::Config::default().concurrency(context.options.concurrency);
        let results = Controller::for_stream(jobs, store)
            .with_config(config)
            .reconcile_on(touched)
            .reconcile_all_on(relisted)
            .graceful_shutdown_on(stop)
            .run(reconcile, error_policy, context.clone());
        futures::StreamExt::for_each(results, |result| async {
            if let Err(error) = result {
                debug!(%error, "reconcile");
            }
        })
        .await;
    };
    let watching = future::join(children, polling);
    future::select(std::pin::pin!(watching), std::pin::pin!(reconciling)).await;
    metrics.set_leading(false);
}

async fn reconcile(object: Arc<Guarded>, context: Arc<Context>) -> Result<controller::Action, Error> {
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    let started = Instant::now();
    let _in_flight = context.metrics.reconciling();
    let span = info_span!("reconcile", %namespace, %name);
    let result = match &object.0 {
        Ok(job) if job.metadata.deletion_timestamp.is_some() => Ok(controller::Action::await_change()),
        Ok(job) => context.reconcile(job).instrument(span).await,
        Err(invalid) => context.unreadable(invalid).instrument(span).await,
    };
    context.metrics.reconciled(&object, started.elapsed(), result.as_ref().err().map(Error::label));
    result
}

impl Context {
    async fn reconcile(&self, job: &TrainingJob) -> Result<controller::Action, Error> {
        let uid = job.uid().ok_or(Error::NoUid)?;
        let resolved = self.resolved(job, &uid);
        let mut confirmed = false;
        let mut requeue: Option<Duration> = None;
        // A second pass tells in the status what the first one's writes were answered.
        for _ in 0..2 {
            let mut family = self.index.family(&uid);
            let current = status::current(job, &family);
            if lifecycle::misses_job(&current.status, &family) && self.find_job(job, &uid).await? {
                family = self.index.family(&uid);
            }
            let refused = resolved.plan.as_ref().err().cloned();
            let told = self.polled.get(&uid);
            let now = lifecycle::whole_second(Timestamp::now());
            let Verdict { status, actions, events, look, requeue: again } = lifecycle::decide(&Input {
                spec: &job.spec,
                generation: job.metadata.generation,
                status: &current.status,
                refused,
                family: &family,
                blind_board: resolved.has_blind_board(),
                told: told.as_ref(),
                now,
            });
            requeue = [requeue, again].into_iter().flatten().min();
            match self.write_status(job, &uid, &current, &status).await? {
                status::Write::Same => {}
                status::Write::Later(wait) => requeue = Some(requeue.map_or(wait, |r| r.min(wait))),
                status::Write::Done => confirmed = true,
            }
            self.count(job, &current.status, &status);
            for action in &actions {
                self.act(job, &uid, &resolved, &family, action, &mut confirmed).await?;
            }
            self.tell(job, status.attempt, events);
            let board = self.board(job, &uid, &resolved, &status, &mut confirmed).await;
            requeue = [requeue, board].into_iter().flatten().min();
            let mut learnt = self.index.read(&uid, |f| f.blocked != family.blocked).unwrap_or(false);
            if !look.is_empty() {
                learnt |= self.look(job, &uid, &look).await?;
            }
            if self.index.read(&uid, |f| !f.blocked.is_empty()).unwrap_or(false) {
                let wait = Duration::from_secs(10);
                requeue = Some(requeue.map_or(wait, |r| r.min(wait)));
            }
            if !learnt {
                break;
            }
        }
        self.index.update_known(&uid, |family| {
            family.failures = 0;
            if job.status.as_ref().and_then(|s| s.state).is_some_and(crate::api::State::is_finished) {
                family.pods.retain(|_, pod| !pod.gone);
            }
        });
        Ok(requeue.map_or_else(controller::Action::await_change, controller::Action::requeue))
    }

    async fn act(
        &self,
        job: &TrainingJob,
        uid: &str,
        resolved: &Resolved,
        family: &Family,
        action: &Action,
        confirmed: &mut bool,
    ) -> Result<(), Error> {
        match action {
            Action::Ensure => match &resolved.plan {
                Ok(plan) => self.ensure(job, plan, resolved, uid, family, confirmed).await,
                Err(_) => Ok(()), // a job that an older operator accepted goes on with the children it has
            },
            Action::CreateJob(attempt) => {
                let Ok(plan) = &resolved.plan else { return Ok(()) };
                if self.index.read(uid, |f| f.blocked.keys().any(|kind| *kind != ChildKind::Job)).unwrap_or(false) {
                    return Ok(()); // the Service goes before the Job
                }
                self.confirm(job, confirmed).await?;
                self.create_job(plan, uid, *attempt).await
            }
            Action::DeleteJob { name, uid: job_uid } => self.delete_job(job, name, job_uid).await,
            Action::DeleteTrainingJob => self.delete_training_job(job, uid).await,
        }
    }
}

fn error_policy(object: Arc<Guarded>, error: &Error, context: Arc<Context>) -> controller::Action {
    let failures = object.uid().map_or(1, |uid| {
        context.index.update(&uid, |family| {
            family.failures = family.failures.saturating_add(1);
            family.failures
        })
    });
    let wait = backoff(failures);
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    if error.is_expected() {
        debug!(%namespace, %name, %error, ?wait, "trying again");
    } else {
        warn!(%namespace, %name, %error, ?wait, "reconcile failed, trying again");
    }
    controller::Action::requeue(wait)
}

/// 0.1 s doubling to a minute, each up to half as long again, so that many jobs don't return together.
fn backoff(failures: u32) -> Duration {
    let base = Duration::from_millis(100) * 2u32.saturating_pow(failures.saturating_sub(1).min(10));
    base.min(Duration::from_secs(60)).mul_f64(rand::random_range(1.0..1.5))
}
