//! Asks the agents of running jobs about the progress of their programs.
//!
//! The operator asks worker 0. If that reports no progress, it asks the last worker (Megatron-LM prints there), or the
//! chief. Where pods can be reached, a question costs the API server nothing. From outside the cluster it goes through
//! the pod proxy.

use super::ask::{AgentAccess, AskedJob, NoAnswer};
use super::poll_schedule::{DuePoll, PollSchedule};
use super::{Context, status};
use api::{Guarded, State};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use kube::runtime::reflector::{ObjectRef, Store};
use observe::{AgentPolls, Cell, JobKey, ObservedPod};
use protocol::agent_status::AgentStatus;
use protocol::checkpoints::{Checkpoints, GoodCheckpoint, ProblemKind};
use protocol::role::{ReplicaId, RoleName};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{debug, warn};

/// Interval at which the operator looks for agents that are due.
const LOOK: Duration = Duration::from_secs(1);

/// A job whose agents are asked.
pub(super) struct PolledJob {
    pub key: JobKey,
    pub job: ObjectRef<Guarded>,
    pub port: u16,
    pub first: Box<ObservedPod>,
    pub other: Option<Box<ObservedPod>>,
    /// Whether the agent moves data, and no program runs.
    pub moves_data: bool,
}

impl PolledJob {
    /// Where the job's answers are stored.
    fn polls<'a>(&self, cell: &'a mut Cell) -> &'a mut AgentPolls {
        if self.moves_data { &mut cell.transfer } else { &mut cell.agents }
    }
}

/// Outcome of a question.
pub(super) struct Polled {
    /// Whether the agent answered.
    pub is_up: bool,
    /// Whether the job is to be woken.
    pub is_news: bool,
}

/// Asks until dropped, and wakes the jobs with news.
pub(super) async fn run(context: Arc<Context>, store: Store<Guarded>) {
    if context.options.agent_access == AgentAccess::Off {
        return std::future::pending().await;
    }
    let mut ticks = tokio::time::interval(LOOK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut schedule, mut asking) = (PollSchedule::new(), FuturesUnordered::new());
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                let now = Instant::now();
                schedule.line_up(due_polls(&context, &store, |pod| schedule.is_due(pod, now)), now);
            }
            Some((question, job, polled)) = asking.next(), if !asking.is_empty() => {
                let polled: Polled = polled;
                schedule.answered(&question, polled.is_up, Instant::now());
                if polled.is_news {
                    context.wake([job]);
                }
            }
        }
        while let Some(question) = schedule.next(Instant::now()) {
            let ((question, asked), context) = (question.split(), &context);
            asking.push(async move {
                let polled = poll(context, &asked, question.patience).await;
                (question, asked.job, polled)
            });
        }
    }
}

/// Jobs whose programs run or whose data is moved, and whose pod is due.
fn due_polls(context: &Context, store: &Store<Guarded>, is_due: impl Fn(&str) -> bool) -> Vec<DuePoll<PolledJob>> {
    let running = |object: Arc<Guarded>| {
        let job = object.0.as_ref().ok()?;
        let key = JobKey::from_meta(&job.metadata);
        if job.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let (port, first, other, moves_data) = context.index.read(&key, |cell| {
            let plan = &cell.wanted.as_ref()?.planned.plan;
            let port = plan.monitoring.metrics_port?;
            let status = status::newest(job, &cell.writes).0?;
            if !status.state.is_some_and(State::is_finished)
                && let Some(pod) = cell.transfer_pod()
            {
                return is_due(&pod.uid).then_some((port, pod, None, true));
            }
            if !matches!(status.state, Some(State::Running | State::Initializing)) {
                return None;
            }
            let number = cell.children.job(RoleName::WORKER)?.incarnation;
            let pod = |place: ReplicaId| {
                let runs = |pod: &ObservedPod| pod.incarnation == number && pod.replica_id() == place && pod.runs();
                cell.children.pods.values().find(|pod| runs(pod))
            };
            let first = pod(ReplicaId::FIRST_WORKER).filter(|pod| is_due(&pod.uid))?.clone();
            Some((port, *first, plan.gang.other_reporter().and_then(pod).cloned(), false))
        })??;
        let (pod, namespace) = (first.uid.clone(), key.namespace.clone());
        let (job, first) = (ObjectRef::from_obj(&*object), Box::new(first));
        Some(DuePoll { pod, namespace, whom: PolledJob { key, job, port, first, other, moves_data } })
    };
    store.state().into_iter().filter_map(running).collect()
}

/// Asks the agents of one job.
pub(super) async fn poll(context: &Context, asked: &PolledJob, patience: Duration) -> Polled {
    let job = AskedJob { namespace: &asked.key.namespace, name: &asked.job.name, uid: &asked.key.uid };
    let ask = async |pod: &ObservedPod| {
        let asking = context.asker.ask(context, &job, pod, asked.port);
        tokio::time::timeout(patience, asking).await.unwrap_or_else(|_| Err("no answer in time".into()))
    };
    let before = context.index.update_known(&asked.key, |cell| asked.polls(cell).answer()).flatten();
    let answer = match (ask(&asked.first).await, &asked.other) {
        (Ok(status), Some(other)) if status.progress.last().is_none() => {
            let other = ask(other).await.ok().filter(|other| other.progress.last().is_some());
            // Only the first pod's agent reports the gang and the checkpoints.
            Ok(match other {
                Some(other) => AgentStatus { gang: status.gang, checkpoints: status.checkpoints, ..other },
                None => status,
            })
        }
        (answer, _) => answer,
    };
    let status = match answer {
        Ok(status) => status,
        Err(no_answer) => {
            let pod = &asked.first.name;
            let (error, refusal) = match no_answer {
                NoAnswer::Missing(error) => (error, None),
                NoAnswer::Refused(error) => (error.clone(), Some(error)),
            };
            let (since, needs_logging) = context
                .index
                .update_known(&asked.key, |cell| {
                    let polls = asked.polls(cell);
                    polls.failed(&asked.first.uid, refusal);
                    (polls.silent_since(), polls.needs_logging())
                })
                .unwrap_or_default();
            if needs_logging {
                warn!(namespace = job.namespace, pod, error, since = %since.unwrap_or_default(), "no answer of the agent");
            } else {
                debug!(namespace = job.namespace, pod, error, "no answer of the agent");
            }
            let is_silent = |since| Timestamp::now().duration_since(since) >= AgentPolls::SILENT;
            return Polled { is_up: false, is_news: before.is_some() || since.is_some_and(is_silent) };
        }
    };
    let is_news = before.is_none_or(|before| {
        let old = &before.status;
        before.failing_since.is_some()
            || old.gang != status.gang
            || old.progress != status.progress
            || old.fetches != status.fetches
            || old.publishes != status.publishes
            || old.histories != status.histories
            || old.objective != status.objective
            || old.report.error_patterns != status.report.error_patterns
            || suspicion(old) != suspicion(&status)
            || folder(old) != folder(&status)
    });
    context.index.update_known(&asked.key, |cell| asked.polls(cell).answered(status));
    Polled { is_up: true, is_news }
}

/// Whether the program may hang, and at which rank. The wording changes with every look, and is not news.
fn suspicion(status: &AgentStatus) -> Option<(bool, Option<u64>)> {
    status.stall.as_ref().map(|stall| (stall.hangs, stall.rank))
}

/// What counts as news about the checkpoints. Free bytes, and a store's report about itself, do not.
fn folder(status: &AgentStatus) -> Option<([Option<&str>; 4], Vec<ProblemKind>)> {
    #[expect(clippy::ref_option, reason = "a field of each side")]
    fn path(kept: &Option<GoodCheckpoint>) -> Option<&str> {
        kept.as_ref().map(|kept| kept.path.as_str())
    }
    let checkpoints = status.checkpoints.as_ref()?;
    let Checkpoints { latest, best, copied, resumed_from, problems, .. } = checkpoints;
    let paths = [path(latest), path(best), path(copied), path(resumed_from)];
    Some((paths, problems.iter().map(|problem| problem.kind).collect()))
}
