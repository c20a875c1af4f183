//! Asks the agents of running jobs how far their programs are.
//!
//! Worker 0 is asked, and the last one where worker 0 has nothing to tell (Megatron-LM prints there). A question takes
//! nothing from the API server where pods can be reached; from outside the cluster it goes through its pod proxy.

use super::{Context, status};
use crate::api::{Guarded, State};
use crate::observe::{JobKey, PodSeen};
use crate::plan::Role;
use crate::protocol::agent_status::AgentStatus;
use futures::StreamExt;
use futures::channel::mpsc;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use kube::runtime::reflector::{ObjectRef, Store};
use std::sync::Arc;
use std::time::Duration;
use tracing::{debug, warn};

/// How often a running job is asked.
const EVERY: Duration = Duration::from_secs(5);
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(3);
/// Bytes of an answer: a hundred metrics and their last readings are a tenth of it.
const MAX_ANSWER: usize = 1024 * 1024;
/// Questions at one time.
const SIDE_BY_SIDE: usize = 32;

/// How the operator reaches the agents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum AgentAccess {
    /// By the pods' addresses: in a cluster.
    Direct,
    /// Through the API server: from outside.
    Proxy,
    /// Not at all: no progress is shown.
    #[default]
    Off,
}

pub(super) struct Poller {
    client: Client<HttpConnector, Empty<bytes::Bytes>>,
}

/// Who is asked.
struct Asked {
    key: JobKey,
    job: ObjectRef<Guarded>,
    port: i32,
    first: PodSeen,
    last: Option<PodSeen>,
}

impl Poller {
    pub fn new() -> Self {
        // An agent ends a connection after a minute.
        let mut client = Client::builder(TokioExecutor::new());
        client.pool_idle_timeout(Duration::from_secs(30)).pool_max_idle_per_host(1);
        Self { client: client.build(HttpConnector::new()) }
    }

    async fn ask(&self, context: &Context, namespace: &str, pod: &PodSeen, port: i32) -> Result<AgentStatus, String> {
        let answer = match context.options.agent_access {
            AgentAccess::Off => return Err("not asked".into()),
            AgentAccess::Direct => {
                let ip = pod.ip.as_deref().ok_or("the pod has no address")?;
                let ip = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
                let uri = format!("http://{ip}:{port}/status").parse().map_err(|e| format!("{ip}: {e}"))?;
                let answer = self.client.get(uri).await.map_err(|error| error.to_string())?;
                if !answer.status().is_success() {
                    return Err(format!("HTTP {}", answer.status()));
                }
                let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
                body.map_err(|error| error.to_string())?.to_bytes().to_vec()
            }
            AgentAccess::Proxy => {
                let uri = format!("/api/v1/namespaces/{namespace}/pods/{}:{port}/proxy/status", pod.name);
                let request = http::Request::get(uri).body(Vec::new()).map_err(|error| error.to_string())?;
                context.client.request_text(request).await.map_err(|error| error.to_string())?.into_bytes()
            }
        };
        serde_json::from_slice(&answer).map_err(|error| format!("its answer can't be read: {error}"))
    }
}

/// Asks until dropped, and wakes the jobs of which there is news.
pub(super) async fn run(
    context: Arc<Context>,
    store: Store<Guarded>,
    touch: mpsc::UnboundedSender<ObjectRef<Guarded>>,
) {
    if context.options.agent_access == AgentAccess::Off {
        return std::future::pending().await;
    }
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let asked = whom(&context, &store);
        futures::stream::iter(asked)
            .for_each_concurrent(SIDE_BY_SIDE, |asked| {
                let (context, touch) = (&context, &touch);
                async move {
                    if poll(context, &asked).await {
                        let _ = touch.unbounded_send(asked.job); // nobody reconciles any more
                    }
                }
            })
            .await;
    }
}

/// Jobs whose programs run.
fn whom(context: &Context, store: &Store<Guarded>) -> Vec<Asked> {
    let running = |object: Arc<Guarded>| {
        let job = object.0.as_ref().ok()?;
        let key = JobKey::of(&job.metadata);
        if job.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let (port, first, last) = context.index.read(&key, |cell| {
            let plan = &cell.wanted.as_ref()?.planned.plan;
            let port = plan.monitoring.metrics_port?;
            let status = status::newest(job, &cell.writes).0?;
            if !matches!(status.state, Some(State::Running | State::Initializing)) {
                return None;
            }
            let number = cell.children.job(Role::WORKER)?.incarnation;
            let pod = |index: i32| {
                let runs = |pod: &&PodSeen| pod.incarnation == number && pod.index == index && pod.runs();
                cell.children.pods.values().find(runs).cloned()
            };
            let workers = plan.gang.leading().replicas;
            Some((port, pod(0)?, (workers > 1).then(|| pod(workers - 1)).flatten()))
        })??;
        Some(Asked { key, job: ObjectRef::from_obj(&*object), port, first, last })
    };
    store.state().into_iter().filter_map(running).collect()
}

/// Asks one job; true if that brought news.
async fn poll(context: &Context, asked: &Asked) -> bool {
    let namespace = asked.job.namespace.clone().unwrap_or_default();
    let ask = async |pod: &PodSeen| {
        let asking = context.poller.ask(context, &namespace, pod, asked.port);
        tokio::time::timeout(PATIENCE, asking).await.unwrap_or_else(|_| Err("no answer in time".into()))
    };
    let before = context.index.read(&asked.key, |cell| cell.agents.answer()).flatten();
    let answer = match (ask(&asked.first).await, &asked.last) {
        (Ok(status), Some(last)) if status.progress.last().is_none() => {
            Ok(ask(last).await.ok().filter(|other| other.progress.last().is_some()).unwrap_or(status))
        }
        (answer, _) => answer,
    };
    let status = match answer {
        Ok(status) => status,
        Err(error) => {
            let up = context.index.read(&asked.key, |cell| cell.agents.is_up()).flatten();
            let (pod, is_first) = (&asked.first.name, up != Some(false));
            if is_first {
                warn!(namespace, pod, error, "the agent does not answer");
            } else {
                debug!(namespace, pod, error, "the agent does not answer");
            }
            context.index.update_known(&asked.key, |cell| cell.agents.failed());
            return before.is_some();
        }
    };
    let is_news = before.is_none_or(|before| {
        let old = &before.status;
        before.failing_since.is_some()
            || old.progress != status.progress
            || old.watched != status.watched
            || old.report.error_patterns != status.report.error_patterns
    });
    context.index.update_known(&asked.key, |cell| cell.agents.answered(status));
    is_news
}
