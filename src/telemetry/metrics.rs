//! Metrics, under the names of the requirements. Counters and histograms have at most the label `namespace`, unless the
//! operator is configured for more: a label with the names of jobs outlives them. The series of single jobs are in
//! [`jobs`].

use super::backlog::Backlog;
use super::{jobs, searches};
use api::{ConditionType, Framework, Guarded, Reason, State, TrainingJob, TrainingJobStatus, TuningJob};
use bytes::Bytes;
use exposition::Page;
use exposition::usage::of_self;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::reflector::{ObjectRef, Store};
use lifecycle::condition_is;
use observe::Index;
use prometheus::core::Collector;
use prometheus::proto::{Metric, MetricFamily};
use prometheus::{
    Encoder, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};
use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How far the operator has come, for `/readyz`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not in the election yet.
    Starting,
    /// Another replica leads, and this one is ready to take over.
    Standby,
    /// It leads, and is reading the existing objects.
    Syncing,
    /// It leads.
    Leading,
}

/// Seconds that a machine's work takes.
const QUICK: [f64; 13] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];
/// Seconds of waiting for pods, from an idle cluster to a queue of a day.
const SLOW: [f64; 15] =
    [1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 10_800.0, 28_800.0, 86_400.0];
/// Seconds of a training, from a minute to four weeks.
const LONG: [f64; 15] = [
    60.0,
    300.0,
    900.0,
    1800.0,
    3600.0,
    7200.0,
    14_400.0,
    28_800.0,
    57_600.0,
    86_400.0,
    172_800.0,
    345_600.0,
    604_800.0,
    1_209_600.0,
    2_419_200.0,
];

/// How long the series of a namespace stay after its last TrainingJob.
const KEPT: Duration = Duration::from_secs(3600);
/// How old a served page may be.
const FRESH: Duration = Duration::from_secs(1);

/// A reason as a label. A reason that this version doesn't know may be any text, and each would be a series for ever.
fn word(reason: &Reason) -> &str {
    if matches!(reason, Reason::Other(_)) { "Other" } else { reason.as_str() }
}

/// All metrics of one operator.
pub struct Metrics {
    registry: Registry,
    /// Whether the metrics of reconciles have the job's name.
    per_job: bool,
    reconciles: IntCounterVec,
    durations: HistogramVec,
    errors: IntCounterVec,
    in_flight: IntGauge,
    waiting: IntGauge,
    backlog: Backlog,
    requests: IntCounterVec,
    request_durations: HistogramVec,
    watch_errors: IntCounterVec,
    created: IntCounterVec,
    completed: IntCounterVec,
    failed: IntCounterVec,
    finished: HistogramVec,
    restarts: IntCounterVec,
    queued: HistogramVec,
    restarted_after: HistogramVec,
    leader: IntGauge,
    jobs: Mutex<(Phase, Option<Jobs>)>,
    searches: Mutex<Option<Store<Guarded<TuningJob>>>>,
    lives: Mutex<HashMap<String, JobHistory>>,
    /// Namespaces that have series and no TrainingJob, and since when.
    empty_namespaces: Mutex<HashMap<String, Instant>>,
    /// When the operator's own thread was last at work.
    beat: Mutex<Option<Instant>>,
    /// The last page, and when it was made.
    page: Mutex<Option<(Instant, Bytes)>>,
}

/// Where the series of living jobs come from.
type Jobs = (Store<Guarded>, Arc<Index>);

/// What must be remembered of a job between two changes, by its UID.
#[derive(Default)]
struct JobHistory {
    has_run: bool,
    /// When the job first failed since all workers last ran. `ran_in` is the incarnation of that failure.
    down_since: Option<Timestamp>,
    ran_in: Option<u32>,
    /// Namespace, name and kinds of errors of its own series, if it has any.
    series: Option<(String, String, BTreeSet<&'static str>)>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

/// A reconcile under way. It ends when this is dropped.
pub(crate) struct InFlight(IntGauge);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Makes metrics and registers them.
struct Registrar(Registry);

#[expect(clippy::expect_used, reason = "names and labels are constants, each registered once")]
impl Registrar {
    fn counter(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        let counter = IntCounterVec::new(Opts::new(name, help), labels).expect("names and labels are constants");
        self.0.register(Box::new(counter.clone())).expect("each name is registered once");
        counter
    }

    fn histogram(&self, name: &str, help: &str, buckets: &[f64], labels: &[&str]) -> HistogramVec {
        let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        let histogram = HistogramVec::new(opts, labels).expect("names and labels are constants");
        self.0.register(Box::new(histogram.clone())).expect("each name is registered once");
        histogram
    }

    fn gauge(&self, name: &str, help: &str) -> IntGauge {
        let gauge = IntGauge::new(name, help).expect("the name is a constant");
        self.0.register(Box::new(gauge.clone())).expect("each name is registered once");
        gauge
    }

    fn build_info(&self) {
        let opts = Opts::new("trainingjob_build_info", "1, with the version of the operator.");
        let build = IntGaugeVec::new(opts, &["version"]).expect("names and labels are constants");
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        self.0.register(Box::new(build)).expect("each name is registered once");
    }
}

impl Metrics {
    /// Registers everything.
    #[must_use]
    pub fn new() -> Self {
        Self::with(false)
    }

    /// As [`Metrics::new`], with the job's name on the metrics of reconciles.
    #[must_use]
    pub fn per_job() -> Self {
        Self::with(true)
    }

    fn with(per_job: bool) -> Self {
        let new = Registrar(Registry::new());
        new.build_info();
        let of_job: &[&str] = if per_job { &["namespace", "training_job"] } else { &["namespace"] };
        Self {
            per_job,
            reconciles: new.counter(
                "trainingjob_reconciliation_total",
                "Reconciles, by result success or error.",
                &[of_job, &["result"]].concat(),
            ),
            durations: new.histogram(
                "trainingjob_reconciliation_duration_seconds",
                "Time of one reconcile.",
                &QUICK,
                of_job,
            ),
            errors: new.counter(
                "trainingjob_reconciliation_errors_total",
                "Failed reconciles, by kind of error.",
                &[of_job, &["error_type"]].concat(),
            ),
            in_flight: new.gauge("trainingjob_reconciliations_in_flight", "Reconciles that are under way."),
            waiting: new.gauge(
                "trainingjob_reconciliations_waiting",
                "TrainingJobs that wait for their turn, since their namespace has its share of reconciles or of new jobs.",
            ),
            backlog: Backlog::new(new.gauge(
                "trainingjob_reconciliations_pending",
                "TrainingJobs of which something changed that no reconcile has looked at yet.",
            )),
            requests: new.counter(
                "trainingjob_api_requests_total",
                "Requests to the API server, by the code of the answer; error without one, cancelled if not waited for.",
                &["verb", "resource", "code"],
            ),
            request_durations: new.histogram(
                "trainingjob_api_request_duration_seconds",
                "Time until the API server begins its answer.",
                &QUICK,
                &["verb", "resource"],
            ),
            watch_errors: new.counter("trainingjob_watch_errors_total", "Broken watches, by kind watched.", &["kind"]),
            created: new.counter(
                "trainingjob_created_total",
                "TrainingJobs seen for the first time.",
                &["namespace", "framework"],
            ),
            completed: new.counter(
                "trainingjob_completed_total",
                "TrainingJobs that ended, by result succeeded or failed.",
                &["namespace", "framework", "result"],
            ),
            failed: new.counter(
                "trainingjob_failed_total",
                "TrainingJobs that failed, by first cause.",
                &["namespace", "framework", "reason"],
            ),
            finished: new.histogram(
                "trainingjob_job_duration_seconds",
                "From the first start of a program of a TrainingJob to its end, by result succeeded or failed.",
                &LONG,
                &["namespace", "framework", "result"],
            ),
            restarts: new.counter(
                "trainingjob_restarts_total",
                "Restarts of gangs, by first cause.",
                &["namespace", "reason"],
            ),
            queued: new.histogram(
                "trainingjob_queue_seconds",
                "From the creation of a TrainingJob until all its workers run.",
                &SLOW,
                &["namespace"],
            ),
            restarted_after: new.histogram(
                "trainingjob_restart_duration_seconds",
                "From the first failure until all workers run again, in the same pods (in_place) or in new ones (recreated).",
                &SLOW,
                &["namespace", "how"],
            ),
            leader: new.gauge("trainingjob_leader", "1 on the replica that acts."),
            jobs: Mutex::new((Phase::Starting, None)),
            searches: Mutex::default(),
            lives: Mutex::default(),
            empty_namespaces: Mutex::default(),
            beat: Mutex::default(),
            page: Mutex::default(),
            registry: new.0,
        }
    }

    pub(crate) fn reconciling(&self) -> InFlight {
        self.in_flight.inc();
        InFlight(self.in_flight.clone())
    }

    pub(crate) fn backlog(&self) -> &Backlog {
        &self.backlog
    }

    /// Whether the operator has nothing to do: no reconcile is under way, no change waits for one, and no job is due within
    /// that time.
    #[must_use]
    pub fn is_idle(&self, within: Duration) -> bool {
        self.phase() == Phase::Leading && self.backlog.is_empty(within) && self.in_flight.get() == 0
    }

    /// Sets the number of jobs that wait for their turn.
    pub(crate) fn waiting(&self, jobs: usize) {
        self.waiting.set(i64::try_from(jobs).unwrap_or(i64::MAX));
    }

    pub(crate) fn reconciled(&self, object: &Guarded, took: Duration, error: Option<&'static str>) {
        let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
        let of_job = if self.per_job { vec![&*namespace, &*name] } else { vec![&*namespace] };
        let result = if error.is_some() { "error" } else { "success" };
        self.reconciles.with_label_values(&[&*of_job, &[result]].concat()).inc();
        self.durations.with_label_values(&of_job).observe(took.as_secs_f64());
        if let Some(error) = error {
            self.errors.with_label_values(&[&*of_job, &[error]].concat()).inc();
        }
        let (true, Some(uid)) = (self.per_job, object.uid()) else { return };
        let mut lives = self.histories();
        let life = lives.entry(uid.clone()).or_default();
        let (_, _, errors) = life.series.get_or_insert_with(|| (namespace.clone(), name.clone(), BTreeSet::default()));
        errors.extend(error);
        drop(lives);
        // The job was deleted while it was reconciled, and no later event reports that.
        let reference = ObjectRef::from_obj(object);
        let is_gone = |(store, _): &Jobs| store.get(&reference).is_none();
        if self.lock().1.as_ref().is_some_and(is_gone) {
            self.forget(&uid);
        }
    }

    pub(super) fn requested(&self, verb: &str, resource: &str, code: &str, took: Duration) {
        self.requests.with_label_values(&[verb, resource, code]).inc();
        self.request_durations.with_label_values(&[verb, resource]).observe(took.as_secs_f64());
    }

    pub(crate) fn watch_failed(&self, kind: &str) {
        self.watch_errors.with_label_values(&[kind]).inc();
    }

    pub(crate) fn created(&self, namespace: &str, framework: Framework) {
        self.created.with_label_values(&[namespace, framework.as_str()]).inc();
        // `rate` and `increase` miss the event with which a series begins.
        for result in ["succeeded", "failed"] {
            self.completed.with_label_values(&[namespace, framework.as_str(), result]);
            self.finished.with_label_values(&[namespace, framework.as_str(), result]);
        }
    }

    /// A TrainingJob has ended, with its status as it is now.
    pub(crate) fn ended(&self, namespace: &str, framework: Framework, status: &TrainingJobStatus) {
        let (has_failed, framework) = (status.state == Some(State::Failed), framework.as_str());
        let result = if has_failed { "failed" } else { "succeeded" };
        self.completed.with_label_values(&[namespace, framework, result]).inc();
        if has_failed {
            let reason = status.failure_reason.as_ref().map_or("", word);
            self.failed.with_label_values(&[namespace, framework, reason]).inc();
        }
        // A job that never started a program has no duration.
        if let (Some(start), Some(end)) = (&status.start_time, &status.completion_time) {
            let took = end.0.duration_since(start.0).as_secs_f64().max(0.0);
            self.finished.with_label_values(&[namespace, framework, result]).observe(took);
        }
    }

    pub(crate) fn restarted(&self, namespace: &str, reason: &Reason) {
        self.restarts.with_label_values(&[namespace, word(reason)]).inc();
    }

    /// Removes the series of namespaces that have had no TrainingJob for [`KEPT`]. Otherwise a namespace for each pull
    /// request would add series for ever. A scrape has read their last values by then.
    fn forget_namespaces(&self, there: &HashSet<String>, now: Instant) {
        let counters = [&self.reconciles, &self.errors, &self.created, &self.completed, &self.failed, &self.restarts];
        let histograms = [&self.durations, &self.finished, &self.queued, &self.restarted_after];
        let families = counters.iter().flat_map(|counter| counter.collect());
        let families: Vec<_> = families.chain(histograms.iter().flat_map(|histogram| histogram.collect())).collect();
        let labels = |family: &MetricFamily| -> Vec<HashMap<String, String>> {
            let of = |metric: &Metric| metric.get_label().iter().map(|l| (l.name().into(), l.value().into())).collect();
            family.get_metric().iter().map(of).collect()
        };
        let all: Vec<_> = families.iter().map(labels).collect();
        let mut empty = self.empty_namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        let known: HashSet<&String> = all.iter().flatten().filter_map(|labels| labels.get("namespace")).collect();
        empty.retain(|namespace, _| known.contains(namespace) && !there.contains(namespace));
        for namespace in known {
            if !there.contains(namespace) {
                empty.entry(namespace.clone()).or_insert(now);
            }
        }
        let is_over = |labels: &&HashMap<String, String>| {
            let since = labels.get("namespace").and_then(|namespace| empty.get(namespace));
            since.is_some_and(|since| now.saturating_duration_since(*since) >= KEPT)
        };
        for (at, series) in all.iter().enumerate() {
            for labels in series.iter().filter(is_over) {
                let labels: HashMap<_, _> =
                    labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
                // The error says that there is no such series.
                let _ = match counters.get(at) {
                    Some(counter) => counter.remove(&labels),
                    None => histograms[at - counters.len()].remove(&labels),
                };
            }
        }
    }

    /// Records that the operator's own thread is at work.
    pub fn beat(&self) {
        *self.beat.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// How long the operator's own thread has done nothing; `None` before it has begun.
    pub(super) fn stands_still(&self) -> Option<Duration> {
        self.beat.lock().unwrap_or_else(PoisonError::into_inner).map(|beat| beat.elapsed())
    }

    /// Measures how long a job waited, once that is over.
    pub(crate) fn changed(&self, job: &TrainingJob, old: &TrainingJobStatus, new: &TrainingJobStatus) {
        let Some(uid) = &job.metadata.uid else { return };
        let namespace = job.namespace().unwrap_or_default();
        // `rate` and `increase` miss the event with which a series begins.
        let queued = self.queued.with_label_values(&[&namespace]);
        let [in_place, recreated] =
            ["in_place", "recreated"].map(|how| self.restarted_after.with_label_values(&[&namespace, how]));
        let mut lives = self.histories();
        let life = lives.entry(uid.clone()).or_default();
        // The job may have started before this operator did.
        life.has_run |= old.state == Some(State::Running);
        let last_failed = |status: &TrainingJobStatus| status.restarts.last().map(|r| r.attempt);
        match last_failed(new).cmp(&last_failed(old)) {
            Ordering::Greater => {
                let at = new.restarts.last().and_then(|restart| restart.time);
                life.down_since = life.down_since.or(at);
                life.ran_in = life.ran_in.or(old.incarnation);
            }
            // It was no failure after all, because the workers were stopped.
            Ordering::Less => (life.down_since, life.ran_in) = (None, None),
            Ordering::Equal => {}
        }
        if new.state.is_none_or(|state| state.is_finished() || state == State::Suspended) {
            (life.down_since, life.ran_in) = (None, None);
        }
        // A gang that restarts in its pods may be faster than the operator's next look.
        let is_as_before = (old.state, old.attempt) == (new.state, new.attempt);
        if is_as_before || new.state != Some(State::Running) {
            return;
        }
        let (now, attempt) = (Timestamp::now(), new.attempt.unwrap_or(1));
        let resumed = condition_is(&new.conditions, ConditionType::Suspended, false);
        let resumed = resumed.map(|c| c.last_transition_time.0);
        // The operator may not have run when the job failed.
        let last = new.restarts.last().filter(|last| last.attempt == attempt - 1).and_then(|last| last.time);
        let failed = life.down_since.take().or(last.filter(|last| resumed.is_none_or(|resumed| resumed < *last)));
        let created = job.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let is_same = new.incarnation.is_some() && life.ran_in.take() == new.incarnation;
        let (histogram, since) = match failed {
            Some(failed) => (if is_same { in_place } else { recreated }, Some(failed)),
            // Later attempts have waited for other things too: for failures, or because they were suspended.
            None if attempt == 1 && !life.has_run => (queued, created.max(resumed)),
            None => return life.has_run = true,
        };
        life.has_run = true;
        if let Some(since) = since {
            histogram.observe(now.duration_since(since).as_secs_f64().max(0.0));
        }
    }

    /// Forgets a TrainingJob that no longer exists.
    pub(crate) fn forget(&self, uid: &str) {
        if let Some(life) = self.histories().remove(uid) {
            self.remove_series(&life);
        }
    }

    /// Forgets all other TrainingJobs.
    pub(crate) fn retain(&self, there: &HashSet<String>) {
        self.histories().retain(|uid, life| {
            let stays = there.contains(uid);
            if !stays {
                self.remove_series(life);
            }
            stays
        });
    }

    fn remove_series(&self, life: &JobHistory) {
        let Some((namespace, name, errors)) = &life.series else { return };
        // The error says that there is no such series.
        for result in ["success", "error"] {
            let _ = self.reconciles.remove_label_values(&[namespace, name, result]);
        }
        let _ = self.durations.remove_label_values(&[namespace, name]);
        for error in errors {
            let _ = self.errors.remove_label_values(&[namespace.as_str(), name, error]);
        }
    }

    /// The cache from which the series of living jobs are made, and what their agents answered.
    pub(crate) fn observe(&self, store: Store<Guarded>, index: Arc<Index>) {
        *self.lock() = (Phase::Syncing, Some((store, index)));
    }

    /// The cache from which the series of searches are made.
    pub(crate) fn observe_searches(&self, store: Store<Guarded<TuningJob>>) {
        *self.searches() = Some(store);
    }

    pub(crate) fn set_leading(&self, leading: bool) {
        self.leader.set(i64::from(leading));
        if leading {
            self.lock().0 = Phase::Leading;
        } else {
            *self.lock() = (Phase::Standby, None);
            *self.searches() = None;
            self.backlog.clear();
        }
    }

    /// Makes this replica a standby: another one leads, or none does yet.
    pub fn standby(&self) {
        self.set_leading(false);
    }

    /// How far the operator has come.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.lock().0
    }

    fn lock(&self) -> MutexGuard<'_, (Phase, Option<Jobs>)> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn searches(&self) -> MutexGuard<'_, Option<Store<Guarded<TuningJob>>>> {
        self.searches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn histories(&self) -> MutexGuard<'_, HashMap<String, JobHistory>> {
        self.lives.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All metrics in Prometheus' text format, at most a second old. Concurrent scrapes get the same bytes.
    pub(super) fn page(&self) -> Bytes {
        let mut page = self.page.lock().unwrap_or_else(PoisonError::into_inner);
        match &*page {
            Some((made, bytes)) if made.elapsed() < FRESH => bytes.clone(),
            _ => {
                let bytes = Bytes::from(self.render());
                *page = Some((Instant::now(), bytes.clone()));
                bytes
            }
        }
    }

    /// All metrics in Prometheus' text format.
    #[must_use]
    pub fn render(&self) -> String {
        let jobs = self.lock().1.clone();
        // A standby has counted nothing. A replica that has not listed everything yet knows no namespaces.
        if let (Phase::Leading, Some((store, _))) = (self.phase(), &jobs) {
            let there = store.state().iter().filter_map(|job| job.namespace()).collect();
            self.forget_namespaces(&there, Instant::now());
        }
        let mut text = Vec::new();
        // Writing to memory fails only for a family without metrics, which `gather` leaves out.
        let _ = TextEncoder::new().encode(&self.registry.gather(), &mut text);
        let mut text = String::from_utf8(text).unwrap_or_default();
        let own = of_self();
        let mut process = Page::default();
        process.family("process_cpu_seconds_total", "counter", "CPU time of the operator.");
        process.sample("", own.cpu_seconds);
        process.family("process_resident_memory_bytes", "gauge", "Memory of the operator.");
        process.sample("", own.resident_bytes as f64);
        text += &process.text();
        if let Some((store, index)) = jobs {
            text += &jobs::render(&store, &index);
        }
        let searches = self.searches().clone();
        if let Some(store) = searches {
            text += &searches::render(&store);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::SignedDuration;
    use kube::runtime::reflector;
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    /// So many seconds ago.
    fn ago(seconds: i64) -> Timestamp {
        Timestamp::now() - SignedDuration::from_secs(seconds)
    }

    fn job(name: &str) -> Value {
        json!({
            "apiVersion": "ml.example.com/v1", "kind": "TrainingJob",
            "metadata": { "name": name, "namespace": "ns", "uid": name, "creationTimestamp": ago(50) },
            "spec": { "model": "m", "dataset": "d", "numWorkers": 2, "gpusPerWorker": 1, "image": "i" },
        })
    }

    fn status(status: Value) -> TrainingJobStatus {
        serde_json::from_value(status).unwrap()
    }

    /// Drives a job through these statuses, and returns how many values each histogram has, with their sum.
    fn all_waits(statuses: &[Value]) -> [(u64, i64); 3] {
        let (metrics, job) = (Metrics::new(), serde_json::from_value(job("a")).unwrap());
        let mut old = TrainingJobStatus::default();
        for new in statuses {
            let new = status(new.clone());
            metrics.changed(&job, &old, &new);
            old = new;
        }
        let seen = |histogram: prometheus::Histogram| {
            (histogram.get_sample_count(), histogram.get_sample_sum().round() as i64)
        };
        let restarted = |how| seen(metrics.restarted_after.with_label_values(&["ns", how]));
        let ([in_place, recreated], queued) =
            ([restarted("in_place"), restarted("recreated")], seen(metrics.queued.with_label_values(&["ns"])));
        [queued, in_place, recreated]
    }

    fn waits(statuses: &[Value]) -> [(u64, i64); 2] {
        let [queued, in_place, recreated] = all_waits(statuses);
        [queued, (in_place.0 + recreated.0, in_place.1 + recreated.1)]
    }

    #[test]
    fn restart_waits_distinguish_same_pods_from_new_pods() {
        let at = |state: &str, attempt: u32, incarnation: u32, failed: bool| {
            let failure = json!({ "attempt": 1, "time": ago(30), "reason": "ExitCode", "message": "" });
            let restarts = if failed { vec![failure] } else { Vec::new() };
            json!({ "state": state, "attempt": attempt, "incarnation": incarnation, "restarts": restarts })
        };
        let run = at("Running", 1, 1, false);
        let quick = [run.clone(), at("Running", 2, 1, true)];
        assert_eq!(all_waits(&quick), [(1, 50), (1, 30), (0, 0)], "quicker than the operator looks");
        let waited = [run.clone(), at("Initializing", 1, 1, true), at("Running", 2, 1, true)];
        assert_eq!(all_waits(&waited), [(1, 50), (1, 30), (0, 0)]);
        let made = [run, at("Initializing", 1, 1, true), at("Initializing", 2, 2, true), at("Running", 2, 2, true)];
        assert_eq!(all_waits(&made), [(1, 50), (0, 0), (1, 30)]);
    }

    #[test]
    fn waits_are_measured_once() {
        let at = |state: &str, attempt: u32, failures: &[(i32, i64)]| {
            let failure = |(attempt, seconds): &(i32, i64)| json!({ "attempt": attempt, "time": ago(*seconds), "reason": "ExitCode", "message": "" });
            let failures: Vec<_> = failures.iter().map(failure).collect();
            json!({ "state": state, "attempt": attempt, "restarts": failures })
        };
        let run = at("Running", 1, &[]);
        assert_eq!(waits(&[at("Pending", 1, &[]), run.clone(), run.clone()]), [(1, 50), (0, 0)]);
        let held = [at("Pending", 1, &[]), run.clone(), at("Pending", 1, &[]), run.clone()];
        assert_eq!(waits(&held), [(1, 50), (0, 0)], "a queue manager stopped it and let it go on");
        let (metrics, job) = (Metrics::new(), serde_json::from_value(job("a")).unwrap());
        for (old, new) in [(&held[1], &held[2]), (&held[2], &held[3])] {
            metrics.changed(&job, &status(old.clone()), &status(new.clone()));
        }
        let queued = metrics.queued.with_label_values(&["ns"]);
        assert_eq!(queued.get_sample_count(), 0, "it ran before this operator did");
        let restart = [run.clone(), at("Initializing", 2, &[(1, 30)]), at("Running", 2, &[(1, 30)])];
        assert_eq!(waits(&restart), [(1, 50), (1, 30)]);
        let twice = [run.clone(), at("Initializing", 2, &[(1, 30)]), at("Initializing", 3, &[(1, 30), (2, 10)])];
        let ran = at("Running", 3, &[(1, 30), (2, 10)]);
        assert_eq!(
            waits(&[&twice[..], std::slice::from_ref(&ran)].concat()),
            [(1, 50), (1, 30)],
            "attempt 2 never ran"
        );
        assert_eq!(waits(&[twice[2].clone(), ran]), [(0, 0), (1, 10)], "this operator knows of the last failure alone");
        let dropped = [run.clone(), at("Running", 1, &[(1, 30)]), at("Pending", 1, &[]), run.clone()];
        assert_eq!(waits(&dropped), [(1, 50), (0, 0)], "it was no failure");
        let mut resumed = at("Running", 3, &[(1, 30)]);
        resumed["conditions"] = json!([{
            "type": "Suspended", "status": "False", "reason": "Resumed", "message": "", "lastTransitionTime": ago(5),
        }]);
        let suspended = [run, at("Initializing", 2, &[(1, 30)]), at("Suspended", 3, &[(1, 30)]), resumed.clone()];
        assert_eq!(waits(&suspended), [(1, 50), (0, 0)], "the suspension was no wait");
        resumed["attempt"] = 1.into();
        resumed["restarts"] = json!([]);
        assert_eq!(waits(&[at("Suspended", 1, &[]), resumed]), [(1, 5), (0, 0)], "nor was that before it");
    }

    #[test]
    fn only_started_jobs_have_a_duration() {
        let metrics = Metrics::new();
        let (start, end) = ("2026-01-02T03:04:05Z", "2026-01-02T04:04:05Z");
        let ended = |framework: Framework, of: Value| metrics.ended("ns", framework, &status(of));
        metrics.created("ns", Framework::Jax);
        ended(Framework::Jax, json!({ "state": "Completed", "startTime": start, "completionTime": end }));
        ended(Framework::None, json!({ "state": "Failed", "failureReason": "InvalidSpec", "completionTime": end }));
        let page = metrics.render();
        for line in [
            r#"trainingjob_job_duration_seconds_bucket{framework="jax",namespace="ns",result="succeeded",le="1800"} 0"#,
            r#"trainingjob_job_duration_seconds_bucket{framework="jax",namespace="ns",result="succeeded",le="3600"} 1"#,
            r#"trainingjob_job_duration_seconds_sum{framework="jax",namespace="ns",result="succeeded"} 3600"#,
            r#"trainingjob_job_duration_seconds_count{framework="jax",namespace="ns",result="failed"} 0"#,
            r#"trainingjob_completed_total{framework="none",namespace="ns",result="failed"} 1"#,
            r#"trainingjob_failed_total{framework="none",namespace="ns",reason="InvalidSpec"} 1"#,
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
        }
        assert!(!page.contains(r#"duration_seconds_count{framework="none""#), "{page}");
    }

    #[test]
    fn job_series_disappear_with_the_job() {
        let metrics = Metrics::per_job();
        let (store, mut writer) = reflector::store();
        metrics.observe(store, Arc::default());
        let object = |name: &str| -> Guarded { serde_json::from_value(job(name)).unwrap() };
        let took = Duration::from_millis(1);
        for name in ["a", "b", "c"] {
            writer.apply_watcher_event(&Event::Apply(object(name)));
            metrics.reconciled(&object(name), took, None);
            metrics.reconciled(&object(name), took, Some("timeout"));
        }
        let of = |name: &str| {
            let text = metrics.render();
            let own = |line: &&str| line.contains("_reconciliation_") && line.contains(&format!("=\"{name}\""));
            text.lines().filter(own).count()
        };
        // Three counters, and the histogram with its buckets.
        let all = 3 + QUICK.len() + 3;
        assert_eq!([of("a"), of("b"), of("c")], [all; 3]);
        metrics.forget("a");
        metrics.retain(&HashSet::from(["c".to_owned()]));
        assert_eq!([of("a"), of("b"), of("c")], [0, 0, all]);
        writer.apply_watcher_event(&Event::Delete(object("c")));
        metrics.forget("c");
        metrics.reconciled(&object("c"), took, None);
        assert_eq!(of("c"), 0, "a reconcile that ended after its job");

        let metrics = Metrics::new();
        metrics.reconciled(&object("a"), took, None);
        assert!(metrics.render().contains("trainingjob_reconciliation_total{namespace=\"ns\",result=\"success\"} 1"));
    }

    #[test]
    fn namespace_series_expire_an_hour_after_the_last_job() {
        let metrics = Metrics::new();
        let begun = Instant::now();
        let there = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<HashSet<_>>();
        for namespace in ["pr-1", "team"] {
            metrics.created(namespace, Framework::Jax);
            metrics.restarted(namespace, &Reason::NodeLost);
            metrics.ended(namespace, Framework::Jax, &status(json!({ "state": "Failed" })));
            metrics.queued.with_label_values(&[namespace]).observe(1.0);
        }
        let series = |namespace: &str| metrics.render().matches(&format!("namespace=\"{namespace}\"")).count();
        let (before, team) = (series("pr-1"), series("team"));
        assert!(before > 10);
        metrics.forget_namespaces(&there(&["team"]), begun);
        metrics.forget_namespaces(&there(&["team"]), begun + Duration::from_secs(3599));
        assert_eq!(series("pr-1"), before, "a scrape sees their last values");
        metrics.forget_namespaces(&there(&["team", "pr-1"]), begun + KEPT);
        metrics.forget_namespaces(&there(&["team"]), begun + KEPT);
        assert_eq!(series("pr-1"), before, "it has had one since");
        metrics.forget_namespaces(&there(&["team"]), begun + KEPT * 2);
        assert_eq!((series("pr-1"), series("team")), (0, team));
        assert!(metrics.empty_namespaces.lock().unwrap().len() <= 1);
    }

    #[test]
    fn metrics_page_is_rendered_once_a_second_and_shared() {
        let metrics = Metrics::new();
        let first = metrics.page();
        metrics.created("ns", Framework::Pytorch);
        for _ in 0..50 {
            assert_eq!(metrics.page().as_ptr(), first.as_ptr(), "the same bytes");
        }
        let made = Instant::now().checked_sub(FRESH).unwrap();
        metrics.page.lock().unwrap().as_mut().unwrap().0 = made;
        assert!(String::from_utf8_lossy(&metrics.page()).contains("trainingjob_created_total"));
    }

    #[test]
    fn gauge_counts_reconciles_in_flight() {
        let metrics = Metrics::new();
        let one = metrics.reconciling();
        let two = metrics.reconciling();
        assert!(metrics.render().contains("trainingjob_reconciliations_in_flight 2"));
        drop((one, two));
        assert!(metrics.render().contains("trainingjob_reconciliations_in_flight 0"));
    }
}
