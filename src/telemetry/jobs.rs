//! The series of the existing jobs, made from the cache at each scrape. They disappear with their job.
//!
//! They are written as text at once. A metrics library would build and discard about thirty objects a job at each
//! scrape.

use api::{
    Condition, ConditionType, DataProgress, DataStatus, Guarded, ProgramMetrics, Reason, State, TrainingJob,
    TrainingJobStatus,
};
use exposition::{Page, labels, seconds};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::runtime::reflector::Store;
use lifecycle::{condition_is, goodput, restart_history};
use observe::{AgentAnswer, Cell, Index, JobKey, ResolvedSpec};
use plan::Plan;
use protocol::agent_status::AgentStatus;
use protocol::gang::Restarts;
use protocol::progress::{ACCURACY, LOSS, Reading, THROUGHPUT};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const STATES: [State; 6] =
    [State::Pending, State::Initializing, State::Running, State::Completed, State::Failed, State::Suspended];

/// The series of all jobs.
pub(super) fn render(store: &Store<Guarded>, index: &Index) -> String {
    let (objects, none) = (store.state(), TrainingJobStatus::default());
    let mut totals: BTreeMap<(String, &str), u32> = BTreeMap::new();
    let mut jobs = Vec::new();
    for object in &objects {
        let Ok(object) = &object.0 else { continue };
        let job = Job::new(object, &none, index);
        *totals.entry((object.namespace().unwrap_or_default(), job.state.as_str())).or_default() += 1;
        jobs.push(job);
    }
    let mut page = Page::default();
    page.family("trainingjob_total", "gauge", "TrainingJobs, by state.");
    for ((namespace, state), count) in totals {
        page.sample(&labels(&[("namespace", &namespace), ("state", state)]), f64::from(count));
    }
    queue_depth(&jobs, &mut page);
    page.family("trainingjob_state", "gauge", "1 for the state that the job is in, 0 for the others.");
    for job in &jobs {
        for state in STATES {
            page.sample(&job.with(&[("state", state.as_str())]), f64::from(u8::from(job.state == state)));
        }
    }
    for (name, help, value) in GAUGES {
        page.family(name, "gauge", help);
        for job in &jobs {
            if let Some(value) = value(job) {
                page.sample(&job.labels, value);
            }
        }
    }
    for (name, kind, help, sample) in FAMILIES {
        page.family(name, kind, help);
        for job in &jobs {
            sample(job, &mut page);
        }
    }
    page.text()
}

/// Where a job waits before it holds nodes.
const QUEUE: &str = "queue";
const SCHEDULING: &str = "scheduling";

/// Waiting jobs, and their GPUs. A queue that an unfinished job names has a series even when it is empty, so that an
/// autoscaler reads 0.
fn queue_depth(jobs: &[Job], page: &mut Page) {
    let mut depth: BTreeMap<(&str, &str, &str), (u32, u32)> = BTreeMap::new();
    for job in jobs.iter().filter(|job| !job.state.is_finished()) {
        let Some(plan) = job.plan() else { continue };
        let queue = plan.gang.queue_name().unwrap_or_default();
        for place in [QUEUE, SCHEDULING] {
            let (waiting, gpus) = depth.entry((&job.namespace, queue, place)).or_default();
            if job.waits_in() == Some(place) {
                let held = job.status.resources.map_or(0, |held| held.allocated_gpus);
                *waiting += 1;
                *gpus = gpus.saturating_add(plan.gang.gpus().saturating_sub(held));
            }
        }
    }
    let series: Vec<_> = depth
        .into_iter()
        .map(|((namespace, queue, place), depth)| {
            (labels(&[("namespace", namespace), ("queue", queue), ("waits_for", place)]), depth)
        })
        .collect();
    page.family("trainingjob_queue_depth", "gauge", "TrainingJobs that wait in a queue, or for nodes outside of one.");
    series.iter().for_each(|(labels, (jobs, _))| page.sample(labels, f64::from(*jobs)));
    page.family("trainingjob_queue_depth_gpus", "gauge", "GPUs that those TrainingJobs wait for.");
    series.iter().for_each(|(labels, (_, gpus))| page.sample(labels, f64::from(*gpus)));
}

type Gauge = (&'static str, &'static str, fn(&Job) -> Option<f64>);

/// The series of which a job has at most one. It has none where the value was never reported.
const GAUGES: [Gauge; 36] = [
    ("trainingjob_allocated_gpus", "GPUs that the job holds.", |job| {
        Some(job.status.resources.map_or(0.0, |r| r.allocated_gpus.into()))
    }),
    ("trainingjob_allocated_workers", "Workers whose program runs.", |job| {
        Some(job.status.workers.map_or(0.0, |w| w.active.into()))
    }),
    ("trainingjob_attempt", "Number of this attempt, from 1; restarts and resumes begin another one.", |job| {
        job.status.attempt.map(f64::from)
    }),
    ("trainingjob_job_restarts", "Restarts of the job so far, after failures and disruptions.", |job| {
        Some(job.status.restart_count.unwrap_or(0).into())
    }),
    ("trainingjob_job_disruptions", "Restarts of the job so far that were after disruptions.", |job| {
        Some(job.status.disruption_count.unwrap_or(0).into())
    }),
    ("trainingjob_restarts_counted", "Restarts that count against failurePolicy.backoffLimit.", |job| {
        job.restart_limit().map(|_| restart_history(job.status).failures.into())
    }),
    ("trainingjob_backoff_limit", "failurePolicy.backoffLimit of the job.", |job| job.restart_limit().map(f64::from)),
    (
        "trainingjob_elastic_workers",
        "Workers that run together in an elastic job, or will in the next attempt.",
        |job| job.elastic().map(|(workers, _)| workers.into()),
    ),
    ("trainingjob_elastic_workers_wanted", "Workers that an elastic job asks for: numWorkers.", |job| {
        job.elastic().map(|(_, wanted)| wanted.into())
    }),
    ("trainingjob_silent_nodes", "Nodes of the job's pods that do not answer.", |job| {
        job.plan().map(|_| job.silent_nodes as f64)
    }),
    (
        "trainingjob_hang_suspected",
        "1 while the condition ProgressStalled has the reason Hang, 0 if it has not.",
        |job| {
            let stalled = condition_is(&job.status.conditions, ConditionType::ProgressStalled, true);
            let hangs = stalled.is_some_and(|stalled| stalled.reason == Reason::Hang.as_str());
            job.runs().then(|| f64::from(u8::from(hangs)))
        },
    ),
    (
        "trainingjob_goodput_ratio",
        "Share of the time since the first start, without suspensions, in which the programs ran and their work was not lost.",
        |job| goodput(job.status, Timestamp::now()),
    ),
    ("trainingjob_agent_up", "1 if the agent of the running job answered when it was last asked, 0 if not.", |job| {
        job.up.filter(|_| job.runs()).map(|up| f64::from(u8::from(up)))
    }),
    (
        "trainingjob_progress_percent",
        "How far the program is: of steps if their total is known, else of epochs.",
        |job| {
            job.agent_or_status(
                |agent| agent.percent,
                |status| {
                    // While the result is published, that text follows the progress of the program.
                    status.progress.as_ref()?.split(',').next()?.trim_end_matches('%').parse().ok()
                },
            )
        },
    ),
    ("trainingjob_current_epoch", "Epoch that the program is in.", |job| {
        job.agent_or_status(|agent| value(agent.progress.epoch).map(f64::floor), |status| count(status.current_epoch))
    }),
    ("trainingjob_epochs", "Epochs in all.", |job| {
        job.agent_or_status(|agent| value(agent.progress.epochs), |status| count(status.total_epochs))
    }),
    ("trainingjob_step", "Step of the whole run.", |job| {
        job.agent_or_status(|agent| value(agent.progress.step), |status| count(status.current_step))
    }),
    ("trainingjob_steps", "Steps in all.", |job| {
        job.agent_or_status(|agent| value(agent.progress.steps), |status| count(status.total_steps))
    }),
    ("trainingjob_remaining_seconds", "Estimated seconds until the running program ends.", |job| {
        count(job.status.estimated_seconds_remaining).filter(|_| job.runs())
    }),
    ("trainingjob_loss", "Training loss as last reported; NaN if the program says so.", |job| {
        job.agent_or_status(|agent| agent.progress.metric(LOSS), measured(|m| m.loss))
    }),
    ("trainingjob_best_loss", "Lowest training loss of the attempt.", |job| {
        job.status.best_loss.as_ref().map(|best| best.value)
    }),
    ("trainingjob_loss_plateau", "1 while the condition LossImproving is False, 0 if it is not.", |job| {
        let flat = condition_is(&job.status.conditions, ConditionType::LossImproving, false).is_some();
        job.status.best_loss.as_ref().filter(|_| job.runs()).map(|_| f64::from(u8::from(flat)))
    }),
    ("trainingjob_accuracy", "Accuracy as last reported, as the program counts it.", |job| {
        job.agent_or_status(|agent| agent.progress.metric(ACCURACY), measured(|m| m.accuracy))
    }),
    ("trainingjob_throughput", "Samples, tokens or steps per second: what the program reports.", |job| {
        job.agent_or_status(|agent| agent.progress.metric(THROUGHPUT), measured(|m| m.throughput))
    }),
    ("trainingjob_min_throughput", "monitoring.minThroughput of the job.", |job| {
        job.plan()?.monitoring.min_throughput.filter(|_| job.runs())
    }),
    ("trainingjob_gpu_utilization_percent", "Mean over the GPUs of the worker that reports.", |job| {
        job.agent_or_status(AgentStatus::gpu_utilization, measured(|m| m.gpu_utilization)).filter(|_| job.runs())
    }),
    ("trainingjob_last_progress_timestamp_seconds", "When the program last reported anything.", |job| {
        job.agent_or_status(
            |agent| Some(seconds(agent.progress.last()?.time)),
            |status| status.last_progress_time.as_ref().map(|time| seconds(time.0)),
        )
    }),
    ("trainingjob_last_checkpoint_timestamp_seconds", "When the newest good checkpoint was written.", |job| {
        let time = |status: &TrainingJobStatus| {
            status.checkpoint.as_ref()?.last_checkpoint_time.as_ref().map(|t| seconds(t.0))
        };
        job.agent_or_status(|agent| Some(seconds(agent.checkpoints.as_ref()?.latest.as_ref()?.time?)), time)
    }),
    ("trainingjob_checkpoint_size_bytes", "Size of the newest good checkpoint.", |job| {
        job.agent_or_status(|agent| Some(agent.checkpoints.as_ref()?.latest.as_ref()?.bytes as f64), |_| None)
    }),
    (
        "trainingjob_last_backup_timestamp_seconds",
        "When the last copy of a checkpoint was whole, in the store where they are kept or in the backup.",
        |job| {
            let time = |status: &TrainingJobStatus| {
                status.checkpoint.as_ref()?.last_backup_time.as_ref().map(|t| seconds(t.0))
            };
            job.agent_or_status(|agent| Some(seconds(agent.checkpoints.as_ref()?.copied.as_ref()?.time?)), time)
        },
    ),
    ("trainingjob_backup_pending", "1 if a good checkpoint is not copied yet, 0 if all are.", |job| {
        let status = job.status.checkpoint.as_ref()?;
        let copies = status.last_backup_time.is_some() || status.pending_backup.is_some();
        copies.then(|| f64::from(u8::from(status.pending_backup.is_some())))
    }),
    ("trainingjob_fetch_bytes", "Bytes in the cache so far of the content that is being fetched.", |job| {
        job.fetch(|_, progress| progress.bytes)
    }),
    ("trainingjob_fetch_total_bytes", "Size of the content that is being fetched, as far as it is listed.", |job| {
        job.fetch(|data, _| data.bytes)
    }),
    ("trainingjob_publish_bytes", "Bytes of the result that were sent so far, while it is published.", |job| {
        job.status.publication.map(|publication| publication.bytes as f64)
    }),
    ("trainingjob_publish_total_bytes", "Size of the result, while it is published.", |job| {
        job.status.publication.map(|publication| publication.total_bytes as f64)
    }),
    (
        "trainingjob_early_stopping_evaluations_since_best",
        "Evaluations since the best value that were not better; early stopping ends the job at its patience.",
        |job| job.status.early_stopping.as_ref().map(|early| early.evaluations_since_best.into()),
    ),
];

type Family = (&'static str, &'static str, &'static str, fn(&Job, &mut Page));

/// The series of which a job has several, or one with labels of its own, and the only counter.
const FAMILIES: [Family; 8] = [
    ("trainingjob_checkpoints", "gauge", "Checkpoints, by what they are worth.", |job, page| {
        for (verdict, count) in job.checkpoints().into_iter().flatten() {
            page.sample(&job.with(&[("verdict", verdict)]), count);
        }
    }),
    (
        "trainingjob_checkpoints_healthy",
        "gauge",
        "1 if nothing is wrong with the checkpoints, 0 if something is.",
        |job, page| {
            let conditions = &job.status.conditions;
            if let Some(healthy) = conditions.iter().find(|c| c.type_ == ConditionType::CheckpointsHealthy.as_str()) {
                let value = f64::from(u8::from(healthy.status == "True"));
                page.sample(&job.with(&[("reason", healthy.reason.as_str())]), value);
            }
        },
    ),
    (
        "trainingjob_result_published",
        "gauge",
        "1 if the result is published under the address of output, 0 if it is not yet.",
        |job, page| {
            let conditions = &job.status.conditions;
            if let Some(published) = conditions.iter().find(|c| c.type_ == ConditionType::ResultPublished.as_str()) {
                let value = f64::from(u8::from(published.status == "True"));
                page.sample(&job.with(&[("reason", published.reason.as_str())]), value);
            }
        },
    ),
    (
        "trainingjob_checkpoint_deleted_total",
        "counter",
        "Checkpoints that were deleted since the agent of this attempt started.",
        |job, page| {
            if let Some(deleted) =
                job.agent_or_status(|agent| Some(agent.checkpoints.as_ref()?.deleted as f64), |_| None)
            {
                page.sample(&job.labels, deleted);
            }
        },
    ),
    ("trainingjob_duration_seconds", "gauge", "Seconds from the start to the end, or to now.", |job, page| {
        if let Some(seconds) = job.duration() {
            page.sample(&job.with(&[("state", job.state.as_str())]), seconds);
        }
    }),
    (
        "trainingjob_waiting",
        "gauge",
        "1, with the condition and the reason for which the job does not run yet.",
        |job, page| {
            if let Some(Condition { type_, reason, .. }) = job.waits_for() {
                page.sample(&job.with(&[("condition", type_), ("reason", reason)]), 1.0);
            }
        },
    ),
    ("trainingjob_failure_timestamp_seconds", "gauge", "When the job failed, with the first cause.", |job, page| {
        if let (State::Failed, Some(reason), Some(Time(at))) =
            (job.state, &job.status.failure_reason, &job.status.completion_time)
        {
            page.sample(&job.with(&[("reason", reason.as_str())]), seconds(*at));
        }
    }),
    (
        "trainingjob_early_stopping_best",
        "gauge",
        "Best value so far of the metric that early stopping watches.",
        |job, page| {
            if let Some(early) = &job.status.early_stopping {
                page.sample(&job.with(&[("metric", &early.metric)]), early.best);
            }
        },
    ),
];

/// A job at the time of the scrape.
struct Job<'a> {
    namespace: String,
    labels: String,
    state: State,
    status: &'a TrainingJobStatus,
    /// The last answer of the agent, if it is of this attempt.
    answer: Option<AgentAnswer>,
    up: Option<bool>,
    /// What its spec means. An ended job has none.
    wanted: Option<Arc<ResolvedSpec>>,
    silent_nodes: usize,
}

/// Unreachable nodes of the job's pods.
fn silent_nodes(cell: &Cell) -> usize {
    let pods = cell.children.pods.values().filter(|pod| pod.is_alive() && pod.unreachable.is_some());
    pods.filter_map(|pod| pod.node.as_deref()).collect::<BTreeSet<_>>().len()
}

impl<'a> Job<'a> {
    fn new(object: &'a TrainingJob, none: &'a TrainingJobStatus, index: &Index) -> Self {
        let status = object.status.as_ref().unwrap_or(none);
        let key = JobKey::from_meta(&object.metadata);
        let seen = index
            .read(&key, |cell| (cell.agents.answer(), cell.agents.is_up(), cell.wanted.clone(), silent_nodes(cell)));
        let (answer, up, wanted, silent_nodes) = seen.unwrap_or_default();
        let namespace = object.namespace().unwrap_or_default();
        Self {
            labels: labels(&[("namespace", &namespace), ("training_job", &object.name_any())]),
            state: status.state.unwrap_or(State::Pending),
            status,
            answer: answer.filter(|answer| status.attempt.is_some_and(|attempt| answer.is_of(attempt))),
            up,
            wanted,
            silent_nodes,
            namespace,
        }
    }

    fn plan(&self) -> Option<&Plan> {
        self.wanted.as_ref().map(|wanted| &wanted.planned.plan)
    }

    /// `backoffLimit` of a job that has not ended and may restart.
    fn restart_limit(&self) -> Option<u32> {
        let policy = &self.plan()?.policy.failure.restart;
        (policy.restarts != Restarts::Never && !self.state.is_finished()).then_some(policy.backoff_limit)
    }

    /// How many workers a running elastic job has, and how many it asks for.
    fn elastic(&self) -> Option<(u16, u16)> {
        let elastic = self.status.elastic.as_ref().filter(|_| self.runs())?;
        Some((elastic.workers, self.plan()?.gang.workers().replicas))
    }

    /// Where an accepted job waits that does not have all of its nodes.
    fn waits_in(&self) -> Option<&'static str> {
        let is_pending = self.state == State::Pending
            && condition_is(&self.status.conditions, ConditionType::Accepted, false).is_none();
        let queued = condition_is(&self.status.conditions, ConditionType::Scheduled, false)
            .is_some_and(|scheduled| scheduled.reason == Reason::Queued.as_str());
        is_pending.then_some(if queued { QUEUE } else { SCHEDULING })
    }

    fn runs(&self) -> bool {
        self.state == State::Running
    }

    /// While the job runs, the agent knows more than the status, whose writes are spaced out. Afterwards the status
    /// takes precedence, and the agent's value counts for what a status can't hold, such as a loss of NaN.
    fn agent_or_status(
        &self,
        by_agent: impl Fn(&AgentStatus) -> Option<f64>,
        by_status: impl Fn(&TrainingJobStatus) -> Option<f64>,
    ) -> Option<f64> {
        let (agent, status) = (self.answer.as_ref().and_then(|seen| by_agent(&seen.status)), by_status(self.status));
        if self.runs() { agent.or(status) } else { status.or(agent) }
    }

    /// A sum over the contents that are being fetched; `None` without any.
    fn fetch(&self, of: impl Fn(&DataStatus, &DataProgress) -> i64) -> Option<f64> {
        let fetched: Vec<_> =
            self.status.data.iter().filter_map(|data| Some(of(data, data.progress.as_ref()?))).collect();
        (!fetched.is_empty()).then(|| fetched.into_iter().fold(0, i64::saturating_add) as f64)
    }

    /// Counts by verdict: from the agent while the job runs, afterwards from the status.
    fn checkpoints(&self) -> Option<[(&'static str, f64); 4]> {
        let reported = self.answer.as_ref().filter(|_| self.runs()).and_then(|seen| seen.status.checkpoints.as_ref());
        if let Some(reported) = reported {
            return Some(reported.by_verdict().map(|(verdict, count)| (verdict, f64::from(count))));
        }
        let status = self.status.checkpoint.as_ref()?;
        let count = |count: Option<i32>| f64::from(count.unwrap_or(0));
        let complete = count(status.complete_count);
        Some([
            ("Valid", (count(status.checkpoint_count) - complete).max(0.0)),
            ("Complete", complete),
            ("Incomplete", 0.0),
            ("Corrupted", count(status.corrupted_count)),
        ])
    }

    fn duration(&self) -> Option<f64> {
        let end = self.status.completion_time.as_ref().map_or_else(Timestamp::now, |time| time.0);
        Some(end.duration_since(self.status.start_time.as_ref()?.0).as_secs_f64().max(0.0))
    }

    /// Why a job that is to run does not run.
    fn waits_for(&self) -> Option<&'a Condition> {
        let of_type = |type_| condition_is(&self.status.conditions, type_, false);
        let waits = matches!(self.state, State::Pending | State::Initializing);
        let [scheduled, running, accepted] =
            [ConditionType::Scheduled, ConditionType::Running, ConditionType::Accepted].map(of_type);
        // A job that waits for its template has no other condition yet.
        scheduled.or(running).or(accepted).filter(|_| waits)
    }

    fn with(&self, more: &[(&str, &str)]) -> String {
        format!("{},{}", self.labels, labels(more))
    }
}

fn value(reading: Option<Reading>) -> Option<f64> {
    reading.map(|reading| reading.value)
}

fn count(number: Option<i64>) -> Option<f64> {
    number.map(|number| number as f64)
}

fn measured(of: fn(&ProgramMetrics) -> Option<f64>) -> impl Fn(&TrainingJobStatus) -> Option<f64> {
    move |status| status.metrics.as_ref().and_then(of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::runtime::reflector;
    use kube::runtime::watcher::Event;
    use observe::{Basis, ObservedPod};
    use protocol::gpu::Gpu;
    use protocol::progress::{Progress, Source, Update};
    use protocol::report::Report;
    use serde_json::{Value, json};

    fn object(n: usize) -> Value {
        json!({
            "apiVersion": "ml.example.com/v1", "kind": "TrainingJob",
            "metadata": { "name": format!("j{n}"), "namespace": "ns", "uid": format!("u{n}") },
            "spec": { "model": "m", "dataset": "d", "numWorkers": 2, "gpusPerWorker": 1, "image": "i" },
        })
    }

    /// Records the plan of a job whose spec has these additional fields.
    fn planned(index: &Index, n: usize, fields: &Value) {
        let mut object = object(n);
        object["spec"].as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let planned = plan::resolve(&serde_json::from_value(object).unwrap(), &plan::OperatorInfo::default());
        let wanted =
            ResolvedSpec { generation: None, basis: Basis::default(), planned, refused: None, service: 0, config: 0 };
        index.update(&key(&format!("u{n}")), |cell| cell.wanted = Some(Arc::new(wanted)));
    }

    fn store(jobs: Vec<Value>) -> Store<Guarded> {
        let (store, mut writer) = reflector::store();
        for (n, job) in jobs.into_iter().enumerate() {
            let mut object = object(n);
            object["status"] = job;
            writer.apply_watcher_event(&Event::Apply(serde_json::from_value(object).unwrap()));
        }
        store
    }

    fn answer(attempt: u32, values: &[(&str, f64)]) -> AgentStatus {
        let (mut update, mut progress) = (Update::default(), Progress::default());
        values.iter().for_each(|&(name, value)| update.set(name, value));
        progress.merge(&update, Source::Post, Timestamp::from_millisecond(1500).unwrap());
        let gpu = |percent| Gpu { utilization_percent: percent, ..Gpu::default() };
        AgentStatus {
            report: Report { attempt, ..Report::default() },
            percent: progress.percent(),
            progress,
            gpus: vec![gpu(Some(40.0)), gpu(None), gpu(Some(60.0))],
            ..AgentStatus::default()
        }
    }

    fn key(uid: &str) -> JobKey {
        JobKey { namespace: "ns".into(), uid: uid.into() }
    }

    fn answered(index: &Index, uid: &str, status: AgentStatus) {
        index.update(&key(uid), |cell| cell.agents.answered(status));
    }

    fn failed(index: &Index, uid: &str) {
        index.update(&key(uid), |cell| cell.agents.failed("pod", None));
    }

    fn page(jobs: Vec<Value>, index: &Index) -> String {
        render(&store(jobs), index)
    }

    fn has(page: &str, lines: &[&str]) {
        for line in lines {
            assert!(page.lines().any(|found| found == *line), "{line} is not in\n{page}");
        }
    }

    #[test]
    fn agent_values_override_status_while_job_runs() {
        let index = Index::default();
        answered(&index, "u0", answer(2, &[("step", 30.0), ("steps", 60.0), ("epoch", 1.7), ("loss", f64::NAN)]));
        let status = json!({
            "state": "Running", "attempt": 2, "restartCount": 1, "progress": "45%", "currentStep": 27, "totalSteps": 60,
            "currentEpoch": 1, "metrics": { "loss": 0.5, "accuracy": 0.25, "gpuUtilization": 10.0 },
            "earlyStopping": { "metric": "eval \"x\"", "best": 0.125, "evaluationsSinceBest": 2 },
        });
        let page = page(vec![status], &index);
        has(
            &page,
            &[
                "# TYPE trainingjob_state gauge",
                "trainingjob_total{namespace=\"ns\",state=\"Running\"} 1",
                "trainingjob_state{namespace=\"ns\",training_job=\"j0\",state=\"Running\"} 1",
                "trainingjob_state{namespace=\"ns\",training_job=\"j0\",state=\"Failed\"} 0",
                "trainingjob_progress_percent{namespace=\"ns\",training_job=\"j0\"} 50",
                "trainingjob_step{namespace=\"ns\",training_job=\"j0\"} 30",
                "trainingjob_current_epoch{namespace=\"ns\",training_job=\"j0\"} 1",
                "trainingjob_loss{namespace=\"ns\",training_job=\"j0\"} NaN",
                "trainingjob_accuracy{namespace=\"ns\",training_job=\"j0\"} 0.25",
                "trainingjob_gpu_utilization_percent{namespace=\"ns\",training_job=\"j0\"} 50",
                "trainingjob_last_progress_timestamp_seconds{namespace=\"ns\",training_job=\"j0\"} 1.5",
                "trainingjob_agent_up{namespace=\"ns\",training_job=\"j0\"} 1",
                "trainingjob_job_restarts{namespace=\"ns\",training_job=\"j0\"} 1",
                "trainingjob_early_stopping_best{namespace=\"ns\",training_job=\"j0\",metric=\"eval \\\"x\\\"\"} 0.125",
                "trainingjob_early_stopping_evaluations_since_best{namespace=\"ns\",training_job=\"j0\"} 2",
            ],
        );
        for absent in [
            "trainingjob_fetch",
            "throughput",
            "remaining_seconds",
            "trainingjob_epochs",
            "waiting",
            "failure_timestamp",
        ] {
            assert!(!page.contains(absent), "{absent} was never reported, and is in\n{page}");
        }
    }

    #[test]
    fn status_takes_precedence_once_job_has_ended() {
        let index = Index::default();
        answered(&index, "u0", answer(1, &[("step", 58.0), ("steps", 60.0), ("loss", f64::INFINITY)]));
        failed(&index, "u0");
        let status = json!({
            "state": "Completed", "attempt": 1, "progress": "100%", "startTime": "2026-01-02T03:04:05Z",
            "completionTime": "2026-01-02T03:05:05Z", "metrics": { "accuracy": 0.9 },
            "runningSeconds": 50, "lostSeconds": 5,
        });
        let page = page(vec![status], &index);
        has(
            &page,
            &[
                "trainingjob_progress_percent{namespace=\"ns\",training_job=\"j0\"} 100",
                "trainingjob_step{namespace=\"ns\",training_job=\"j0\"} 58",
                "trainingjob_loss{namespace=\"ns\",training_job=\"j0\"} +Inf",
                "trainingjob_duration_seconds{namespace=\"ns\",training_job=\"j0\",state=\"Completed\"} 60",
                "trainingjob_goodput_ratio{namespace=\"ns\",training_job=\"j0\"} 0.75",
            ],
        );
        for absent in ["agent_up", "gpu_utilization"] {
            assert!(!page.contains(absent), "{absent} of a job that has ended is in\n{page}");
        }
    }

    #[test]
    fn answer_of_an_earlier_attempt_is_ignored() {
        let index = Index::default();
        answered(&index, "u0", answer(1, &[("step", 58.0), ("steps", 60.0)]));
        failed(&index, "u1");
        let statuses = vec![json!({ "state": "Running", "attempt": 2 }), json!({ "state": "Running", "attempt": 1 })];
        let page = page(statuses, &index);
        has(&page, &["trainingjob_agent_up{namespace=\"ns\",training_job=\"j1\"} 0"]);
        assert!(!page.contains("trainingjob_step"), "{page}");
    }

    #[test]
    fn metrics_include_waiting_and_failure_reasons() {
        let condition = |type_: &str, reason: &str| json!({ "type": type_, "status": "False", "reason": reason, "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z" });
        let statuses = vec![
            json!({ "state": "Pending", "conditions": [condition("Scheduled", "QuotaExceeded")] }),
            json!({ "state": "Initializing", "conditions": [condition("Running", "ImagePull")] }),
            json!({ "state": "Failed", "failureReason": "OOMKilled", "completionTime": "1970-01-01T00:01:00Z",
                    "conditions": [condition("Running", "Failed"), condition("CheckpointsHealthy", "BackupFailing")] }),
            json!({ "state": "Pending", "data": [
                { "name": "a", "uri": "", "revision": "", "key": "", "bytes": 10, "progress": { "files": 1, "bytes": 4, "bytesPerSecond": 1 } },
                { "name": "b", "uri": "", "revision": "", "key": "", "bytes": 5, "progress": { "files": 1, "bytes": 5, "bytesPerSecond": 0 } },
                { "name": "c", "uri": "", "revision": "r", "key": "k", "bytes": 7 },
            ] }),
            json!({ "state": "Pending", "conditions": [condition("Accepted", "RuntimeNotFound")] }),
            json!({ "state": "Running", "conditions": [condition("Accepted", "InvalidSpec"), condition("ResultPublished", "PublishFailed")] }),
        ];
        let page = page(statuses, &Index::default());
        has(
            &page,
            &[
                "trainingjob_total{namespace=\"ns\",state=\"Pending\"} 3",
                "trainingjob_fetch_bytes{namespace=\"ns\",training_job=\"j3\"} 9",
                "trainingjob_fetch_total_bytes{namespace=\"ns\",training_job=\"j3\"} 15",
                "trainingjob_waiting{namespace=\"ns\",training_job=\"j0\",condition=\"Scheduled\",reason=\"QuotaExceeded\"} 1",
                "trainingjob_waiting{namespace=\"ns\",training_job=\"j1\",condition=\"Running\",reason=\"ImagePull\"} 1",
                "trainingjob_waiting{namespace=\"ns\",training_job=\"j4\",condition=\"Accepted\",reason=\"RuntimeNotFound\"} 1",
                "trainingjob_failure_timestamp_seconds{namespace=\"ns\",training_job=\"j2\",reason=\"OOMKilled\"} 60",
                "trainingjob_checkpoints_healthy{namespace=\"ns\",training_job=\"j2\",reason=\"BackupFailing\"} 0",
                "trainingjob_result_published{namespace=\"ns\",training_job=\"j5\",reason=\"PublishFailed\"} 0",
            ],
        );
        assert_eq!(page.matches("trainingjob_waiting{").count(), 3, "{page}");
    }

    #[test]
    fn waiting_jobs_are_counted_by_queue() {
        let index = Index::default();
        let scheduled = |reason: &str| json!([{ "type": "Scheduled", "status": "False", "reason": reason, "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z" }]);
        let queue = |more: Value| {
            let mut fields = json!({ "scheduling": { "queue": "gpu" } });
            fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            fields
        };
        let roles = json!({ "framework": "none", "roles": [{ "name": "store", "replicas": 3, "gpusPerReplica": 2 }],
                            "checkpoint": { "enabled": false } });
        let refused = json!([{ "type": "Accepted", "status": "False", "reason": "InvalidSpec", "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z" }]);
        let jobs = [
            (queue(json!({})), json!({ "state": "Pending", "conditions": scheduled("Queued") })),
            (queue(roles), json!({ "state": "Pending", "conditions": scheduled("Queued") })),
            (queue(json!({})), json!({ "state": "Running" })),
            (
                json!({}),
                json!({ "state": "Pending", "conditions": scheduled("Unschedulable"),
                        "resources": { "allocatedGPUs": 1, "allocatedNodes": 1 } }),
            ),
            (json!({}), json!({ "state": "Suspended" })),
            (json!({}), json!({ "state": "Pending", "conditions": refused })),
            (json!({ "scheduling": { "queue": "old" } }), json!({ "state": "Completed" })),
        ];
        let (specs, statuses): (Vec<_>, Vec<_>) = jobs.into_iter().unzip();
        specs.iter().enumerate().for_each(|(n, spec)| planned(&index, n, spec));
        let page = page(statuses, &index);
        has(
            &page,
            &[
                "trainingjob_queue_depth{namespace=\"ns\",queue=\"gpu\",waits_for=\"queue\"} 2",
                "trainingjob_queue_depth{namespace=\"ns\",queue=\"gpu\",waits_for=\"scheduling\"} 0",
                "trainingjob_queue_depth{namespace=\"ns\",queue=\"\",waits_for=\"scheduling\"} 1",
                "trainingjob_queue_depth_gpus{namespace=\"ns\",queue=\"gpu\",waits_for=\"queue\"} 10",
                "trainingjob_queue_depth_gpus{namespace=\"ns\",queue=\"\",waits_for=\"scheduling\"} 1",
            ],
        );
        assert_eq!(page.matches("trainingjob_queue_depth{").count(), 4, "{page}");
    }

    #[test]
    fn metrics_include_job_limits_and_current_values() {
        let index = Index::default();
        let elastic = json!({ "numWorkers": 4, "elastic": { "maxWorkers": 6 }, "checkpoint": { "enabled": false },
                              "monitoring": { "minThroughput": 7.5 } });
        planned(&index, 0, &elastic);
        planned(&index, 1, &json!({ "failurePolicy": { "restartPolicy": "Never" } }));
        let pod = |uid: &str, node: &str, ended: Option<bool>, silent: bool| ObservedPod {
            uid: uid.into(),
            node: Some(node.into()),
            ended,
            unreachable: silent.then_some(Timestamp::UNIX_EPOCH),
            ..ObservedPod::default()
        };
        index.update(&key("u0"), |cell| {
            for pod in [
                pod("a", "n1", None, true),
                pod("b", "n1", None, true),
                pod("c", "n2", None, false),
                pod("d", "n3", Some(false), true),
            ] {
                cell.children.pods.insert(pod.uid.clone(), Box::new(pod));
            }
        });
        let best = json!({ "value": 0.25, "time": "2026-01-02T03:04:05Z", "step": 7, "attempt": 1 });
        let flat = json!([{ "type": "LossImproving", "status": "False", "reason": "LossPlateau", "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z" }]);
        let hang = json!([{ "type": "ProgressStalled", "status": "True", "reason": "Hang", "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z" }]);
        let statuses = vec![
            json!({ "state": "Running", "restartCount": 5, "disruptionCount": 3, "conditions": hang,
                    "elastic": { "workers": 3, "largest": 4, "selector": "" } }),
            json!({ "state": "Running", "bestLoss": best, "conditions": flat }),
        ];
        let page = page(statuses, &index);
        has(
            &page,
            &[
                "trainingjob_best_loss{namespace=\"ns\",training_job=\"j1\"} 0.25",
                "trainingjob_loss_plateau{namespace=\"ns\",training_job=\"j1\"} 1",
                "trainingjob_restarts_counted{namespace=\"ns\",training_job=\"j0\"} 2",
                "trainingjob_backoff_limit{namespace=\"ns\",training_job=\"j0\"} 3",
                "trainingjob_min_throughput{namespace=\"ns\",training_job=\"j0\"} 7.5",
                "trainingjob_elastic_workers{namespace=\"ns\",training_job=\"j0\"} 3",
                "trainingjob_elastic_workers_wanted{namespace=\"ns\",training_job=\"j0\"} 4",
                "trainingjob_silent_nodes{namespace=\"ns\",training_job=\"j0\"} 1",
                "trainingjob_silent_nodes{namespace=\"ns\",training_job=\"j1\"} 0",
                "trainingjob_hang_suspected{namespace=\"ns\",training_job=\"j0\"} 1",
                "trainingjob_hang_suspected{namespace=\"ns\",training_job=\"j1\"} 0",
            ],
        );
        for absent in ["backoff_limit", "restarts_counted", "elastic_workers", "min_throughput"] {
            let series = format!("{absent}{{namespace=\"ns\",training_job=\"j1\"");
            assert!(!page.contains(&series), "{absent} of a job that has none is in\n{page}");
        }
    }
}
