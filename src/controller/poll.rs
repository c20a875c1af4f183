//! Asks the agents of running jobs how far their programs are.
//!
//! Worker 0 is asked, and the last one where worker 0 has nothing to tell (Megatron-LM prints there). A question takes
//! nothing from the API server where pods can be reached; from outside the cluster it goes through its pod proxy.

use super::{Context, Guarded};
use crate::agent::serve::status::Status;
use crate::api::State;
use crate::lifecycle::Told;
use crate::observe::PodSeen;
use futures::StreamExt;
use futures::channel::mpsc;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::reflector::{ObjectRef, Store};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
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
/// A pace is known once this much of the whole has gone by since it was first looked at, in percent ...
const SOME_PROGRESS: f64 = 0.5;
/// ... and this long.
const SOME_TIME: i64 = 10;

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
    /// What an attempt had reached when it was first asked.
    first: Mutex<HashMap<String, Pace>>,
}

/// A point from which the pace is counted.
#[derive(Clone, Copy, Debug)]
struct Pace {
    attempt: u32,
    since: Timestamp,
    percent: f64,
}

impl Pace {
    /// Seconds that the rest takes at the pace so far.
    fn remaining(&self, percent: f64, time: Timestamp) -> Option<i64> {
        let (done, took) = (percent - self.percent, time.duration_since(self.since).as_secs_f64());
        #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)] // seconds
        let is_known = done >= SOME_PROGRESS && took >= SOME_TIME as f64;
        #[allow(clippy::cast_possible_truncation)]
        is_known.then(|| ((100.0 - percent) / done * took).round().min(1e12) as i64)
    }
}

/// Who is asked.
struct Asked {
    uid: String,
    job: ObjectRef<Guarded>,
    port: i32,
    first: PodSeen,
    last: Option<PodSeen>,
}

impl Poller {
    pub fn new() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(PATIENCE));
        // An agent ends a connection after a minute.
        let mut client = Client::builder(TokioExecutor::new());
        client.pool_idle_timeout(Duration::from_secs(30)).pool_max_idle_per_host(1);
        Self { client: client.build(connector), first: Mutex::default() }
    }

    async fn ask(&self, context: &Context, namespace: &str, pod: &PodSeen, port: i32) -> Result<Status, String> {
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

    fn forget(&self, there: &dyn Fn(&str) -> bool) {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).retain(|uid, _| there(uid));
    }

    /// What the agents of a job told last.
    pub fn told(&self, context: &Context, uid: &str) -> Option<Told> {
        let seen = context.polled.get(uid)?;
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).get(uid).copied();
        let first = first.filter(|first| first.attempt == seen.status.report.attempt);
        let remaining = first.and_then(|first| first.remaining(seen.status.percent?, seen.time));
        Some(Told { seen, remaining })
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
        let there: std::collections::HashSet<String> = asked.iter().map(|asked| asked.uid.clone()).collect();
        context.poller.forget(&|uid| there.contains(uid));
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
        let uid = job.uid()?;
        if !job.spec.monitoring.enabled || job.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let (state, attempt) = context.index.read(&uid, |family| {
            let status = family.written.as_ref().map(|(_, status)| status).or(job.status.as_ref());
            status.map(|status| (status.state, status.attempt.unwrap_or(1)))
        })??;
        if !matches!(state, Some(State::Running | State::Initializing)) {
            return None;
        }
        let pod = |index: i32| {
            let runs = |pod: &&PodSeen| pod.attempt == attempt && pod.index == index && pod.runs();
            context.index.read(&uid, |family| family.pods.values().find(runs).cloned()).flatten()
        };
        let last = (job.spec.num_workers > 1).then(|| pod(job.spec.num_workers - 1)).flatten();
        let first = pod(0)?;
        Some(Asked { uid, job: ObjectRef::from_obj(&*object), port: job.spec.monitoring.metrics_port, first, last })
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
    let before = context.polled.get(&asked.uid);
    let answer = match (ask(&asked.first).await, &asked.last) {
        (Ok(status), Some(last)) if status.progress.last().is_none() => ask(last)
            .await
            .ok()
            .filter(|other| other.progress.last().is_some())
            .or(Some(status))
            .ok_or_else(String::new),
        (answer, _) => answer,
    };
    let status = match answer {
        Ok(status) => status,
        Err(error) => {
            let (pod, is_first) = (&asked.first.name, context.polled.is_up(&asked.uid) != Some(false));
            if is_first {
                warn!(namespace, pod, error, "the agent does not answer");
            } else {
                debug!(namespace, pod, error, "the agent does not answer");
            }
            context.polled.failed(&asked.uid);
            return before.is_some();
        }
    };
    let is_news = before.is_none_or(|before| {
        let old = &before.status;
        before.failing_since.is_some()
            || old.progress != status.progress
            || old.watched != status.watched
            || old.report.signs != status.report.signs
    });
    if let Some(percent) = status.percent {
        let (attempt, since) = (status.report.attempt, Timestamp::now());
        let mut first = context.poller.first.lock().unwrap_or_else(PoisonError::into_inner);
        let pace = first.entry(asked.uid.clone()).or_insert(Pace { attempt, since, percent });
        // Another attempt goes on from somewhere else.
        if pace.attempt != attempt || percent < pace.percent {
            *pace = Pace { attempt, since, percent };
        }
    }
    context.polled.answered(&asked.uid, status);
    is_news
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_remains_is_told_once_the_pace_is_known() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let pace = Pace { attempt: 1, since: at(100), percent: 40.0 };
        assert_eq!(pace.remaining(40.1, at(160)), None, "hardly anything was done");
        assert_eq!(pace.remaining(50.0, at(105)), None, "too short");
        assert_eq!(pace.remaining(50.0, at(160)), Some(300), "ten percent took a minute, fifty are left");
        assert_eq!(pace.remaining(100.0, at(160)), Some(0));
    }
}
