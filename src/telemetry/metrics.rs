//! Metrics, under the names of the requirements. Series of one job exist only while the job does: they are made from
//! the cache at each scrape. Counters and histograms carry the namespace at most.

use crate::api::{State, TrainingJob};
use crate::controller::Guarded;
use kube::ResourceExt;
use kube::runtime::reflector::Store;
use prometheus::{
    Encoder, GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How far the operator has come, for `/readyz`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not in the election yet.
    Starting,
    /// Another replica leads: this one is ready to take over.
    Standby,
    /// It leads and is reading what there is.
    Syncing,
    /// It leads.
    Leading,
}

/// All metrics of one operator.
pub struct Metrics {
    registry: Registry,
    reconciles: IntCounterVec,
    durations: HistogramVec,
    errors: IntCounterVec,
    watch_errors: IntCounterVec,
    created: IntCounterVec,
    completed: IntCounterVec,
    failed: IntCounterVec,
    restarts: IntCounterVec,
    leader: IntGauge,
    jobs: Mutex<(Phase, Option<Store<Guarded>>)>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Registers everything.
    #[must_use]
    pub fn new() -> Self {
        let registry = Registry::new();
        let counter = |name: &str, help: &str, labels: &[&str]| {
            let counter = IntCounterVec::new(Opts::new(name, help), labels).expect("names and labels are constants");
            registry.register(Box::new(counter.clone())).expect("each name is registered once");
            counter
        };
        let reconciles = counter(
            "trainingjob_reconciliation_total",
            "Reconciles, by result success or error.",
            &["namespace", "result"],
        );
        let errors = counter(
            "trainingjob_reconciliation_errors_total",
            "Failed reconciles, by kind of error.",
            &["namespace", "error_type"],
        );
        let watch_errors = counter("trainingjob_watch_errors_total", "Broken watches, by kind watched.", &["kind"]);
        let created = counter("trainingjob_created_total", "TrainingJobs seen for the first time.", &["namespace"]);
        let completed = counter(
            "trainingjob_completed_total",
            "TrainingJobs that ended, by result succeeded or failed.",
            &["namespace", "result"],
        );
        let failed =
            counter("trainingjob_failed_total", "TrainingJobs that failed, by first cause.", &["namespace", "reason"]);
        let restarts =
            counter("trainingjob_restarts_total", "Restarts of gangs, by first cause.", &["namespace", "reason"]);
        let buckets = vec![0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];
        let opts = HistogramOpts::new("trainingjob_reconciliation_duration_seconds", "Time of one reconcile.")
            .buckets(buckets);
        let durations = HistogramVec::new(opts, &["namespace"]).expect("names and labels are constants");
        registry.register(Box::new(durations.clone())).expect("each name is registered once");
        let leader =
            IntGauge::new("trainingjob_leader", "1 on the replica that acts.").expect("the name is a constant");
        registry.register(Box::new(leader.clone())).expect("each name is registered once");
        let build =
            IntGaugeVec::new(Opts::new("trainingjob_build_info", "1, with the version of the operator."), &["version"])
                .expect("names and labels are constants");
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        registry.register(Box::new(build)).expect("each name is registered once");
        Self {
            registry,
            reconciles,
            durations,
            errors,
            watch_errors,
            created,
            completed,
            failed,
            restarts,
            leader,
            jobs: Mutex::new((Phase::Starting, None)),
        }
    }

    pub(crate) fn reconciled(&self, namespace: &str, took: Duration, error: Option<&str>) {
        let result = if error.is_some() { "error" } else { "success" };
        self.reconciles.with_label_values(&[namespace, result]).inc();
        self.durations.with_label_values(&[namespace]).observe(took.as_secs_f64());
        if let Some(error) = error {
            self.errors.with_label_values(&[namespace, error]).inc();
        }
    }

    pub(crate) fn watch_failed(&self, kind: &str) {
        self.watch_errors.with_label_values(&[kind]).inc();
    }

    pub(crate) fn created(&self, namespace: &str) {
        self.created.with_label_values(&[namespace]).inc();
    }

    pub(crate) fn completed(&self, namespace: &str) {
        self.completed.with_label_values(&[namespace, "succeeded"]).inc();
    }

    pub(crate) fn failed(&self, namespace: &str, reason: &str) {
        self.completed.with_label_values(&[namespace, "failed"]).inc();
        self.failed.with_label_values(&[namespace, reason]).inc();
    }

    pub(crate) fn restarted(&self, namespace: &str, reason: &str) {
        self.restarts.with_label_values(&[namespace, reason]).inc();
    }

    /// The cache from which the series of living jobs are made.
    pub(crate) fn observe(&self, store: Store<Guarded>) {
        *self.lock() = (Phase::Syncing, Some(store));
    }

    pub(crate) fn set_leading(&self, leading: bool) {
        self.leader.set(i64::from(leading));
        if leading {
            self.lock().0 = Phase::Leading;
        } else {
            *self.lock() = (Phase::Standby, None);
        }
    }

    /// Another replica leads, or nobody yet.
    pub fn standby(&self) {
        self.set_leading(false);
    }

    /// How far the operator has come.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.lock().0
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, (Phase, Option<Store<Guarded>>)> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All metrics in Prometheus' text format.
    #[must_use]
    pub fn render(&self) -> String {
        let mut families = self.registry.gather();
        if let Some(store) = &self.lock().1 {
            families.extend(of_jobs(store).gather());
        }
        let mut text = Vec::new();
        // Writing to memory fails only for a family without metrics, which `gather` leaves out.
        let _ = TextEncoder::new().encode(&families, &mut text);
        String::from_utf8(text).unwrap_or_default()
    }
}

fn of_jobs(store: &Store<Guarded>) -> Registry {
    let registry = Registry::new();
    let gauge = |name: &str, help: &str, labels: &[&str]| {
        let gauge = GaugeVec::new(Opts::new(name, help), labels).expect("names and labels are constants");
        registry.register(Box::new(gauge.clone())).expect("each name is registered once");
        gauge
    };
    let job = ["namespace", "training_job"];
    let total = gauge("trainingjob_total", "TrainingJobs, by state.", &["namespace", "state"]);
    let gpus = gauge("trainingjob_allocated_gpus", "GPUs that the job holds.", &job);
    let workers = gauge("trainingjob_allocated_workers", "Workers whose program runs.", &job);
    let durations = gauge(
        "trainingjob_duration_seconds",
        "Seconds from the start to the end, or to now.",
        &["namespace", "training_job", "state"],
    );
    let mut states: BTreeMap<(String, &str), u32> = BTreeMap::new();
    for object in store.state() {
        let Ok(object) = &object.0 else { continue };
        let state = object.status.as_ref().and_then(|s| s.state).map_or("Pending", State::as_str);
        let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
        *states.entry((namespace.clone(), state)).or_default() += 1;
        let labels = [namespace.as_str(), name.as_str()];
        let Some(status) = &object.status else { continue };
        gpus.with_label_values(&labels).set(status.resources.map_or(0.0, |r| f64::from(r.allocated_gpus)));
        workers.with_label_values(&labels).set(status.workers.map_or(0.0, |w| f64::from(w.active)));
        if let Some(seconds) = duration(object) {
            durations.with_label_values(&[labels[0], labels[1], state]).set(seconds);
        }
    }
    for ((namespace, state), count) in states {
        total.with_label_values(&[namespace.as_str(), state]).set(f64::from(count));
    }
    registry
}

fn duration(job: &TrainingJob) -> Option<f64> {
    let status = job.status.as_ref()?;
    let end = status.completion_time.as_ref().map_or_else(jiff::Timestamp::now, |t| t.0);
    Some(end.duration_since(status.start_time.as_ref()?.0).as_secs_f64().max(0.0))
}
