//! What lies between an operator and the API server: it counts requests, ends the operator at the one it is told, and
//! shows it the world as it was.

use super::agents::Agents;
use super::witness::Kind;
use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Where in the stream of write requests something happens; the first has number 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Point {
    /// The operator ends, the request is never sent.
    Before(usize),
    /// The request is sent and done, the operator ends without its answer.
    After(usize),
}

impl Point {
    pub fn write(self) -> usize {
        match self {
            Self::Before(write) | Self::After(write) => write,
        }
    }
}

/// An earlier state of the world. Lists are answered as they were then, and watches tell nothing of what came after.
#[derive(Clone, Debug)]
pub struct Past {
    /// etcd's revision.
    pub revision: String,
    /// Whose past it is.
    pub kinds: &'static [Kind],
}

/// A request as it was sent.
#[derive(Clone, Debug)]
pub struct Sent {
    pub write: Option<usize>,
    pub text: String,
}

#[derive(Default)]
pub struct Instructions {
    pub end: Option<Point>,
    /// The number of the write before which the revision is noted.
    pub note: Option<usize>,
    pub past: Option<Past>,
    /// Who answers for the pods.
    pub agents: Option<Arc<Agents>>,
}

pub struct Wire {
    upstream: Client,
    namespace: String,
    instructions: Instructions,
    log: Mutex<Log>,
    ended: watch::Sender<bool>,
    present: watch::Sender<bool>,
}

struct Log {
    sent: Vec<Sent>,
    writes: usize,
    noted: Option<String>,
    /// When a request other than a watch was sent or answered.
    last: Instant,
}

impl Wire {
    pub fn new(upstream: Client, namespace: &str, instructions: Instructions) -> Arc<Self> {
        Arc::new(Self {
            upstream,
            namespace: namespace.to_owned(),
            instructions,
            log: Mutex::new(Log { sent: Vec::new(), writes: 0, noted: None, last: Instant::now() }),
            ended: watch::Sender::default(),
            present: watch::Sender::default(),
        })
    }

    /// The operator's client.
    pub fn client(self: &Arc<Self>) -> Client {
        let wire = self.clone();
        let service = tower::service_fn(move |request| {
            let wire = wire.clone();
            async move { wire.pass(request).await }
        });
        Client::new(service, &self.namespace)
    }

    pub fn has_agents(&self) -> bool {
        self.instructions.agents.is_some()
    }

    /// From here on nothing passes: the operator is dead, whatever of it still moves.
    pub fn end(&self) {
        self.ended.send_replace(true);
    }

    /// Waits until the operator has been ended at its point.
    pub async fn ended(&self) {
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }

    pub fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// The past is over: lists are true again, and watches catch up.
    pub fn catch_up(&self) {
        self.present.send_replace(true);
    }

    pub fn sent(&self) -> Vec<Sent> {
        self.log().sent.clone()
    }

    pub fn writes(&self) -> usize {
        self.log().writes
    }

    /// The revision before the write that was to be noted.
    pub fn noted(&self) -> Option<String> {
        self.log().noted.clone()
    }

    /// For how long no request but watches has passed.
    pub fn idle(&self) -> Duration {
        self.log().last.elapsed()
    }

    async fn pass(&self, mut request: Request<Body>) -> Result<Response<Body>, kube::Error> {
        if self.has_ended() {
            return std::future::pending().await;
        }
        if let Some(agents) = &self.instructions.agents
            && request.uri().path().ends_with("/proxy/status")
        {
            let answer = agents.answer(request.uri().path());
            let status = if answer.is_some() { 200 } else { 503 };
            let answer = Response::builder().status(status).body(Body::from(answer.unwrap_or_default()));
            return Ok(answer.expect("a plain answer"));
        }
        let watch = is_watch(&request);
        let write = self.note(&request, watch);
        if write.is_some() && write == self.instructions.note {
            let revision = self.revision().await?;
            self.log().noted = Some(revision);
        }
        if write.map(Point::Before).is_some_and(|point| Some(point) == self.instructions.end) {
            self.end();
            return std::future::pending().await;
        }
        if let Some(past) = &self.instructions.past
            && let Some(kind) = collection(&request)
            && past.kinds.contains(&kind)
            && !*self.present.borrow()
        {
            if watch {
                let _ = self.present.subscribe().wait_for(|present| *present).await;
            } else {
                let query = format!("resourceVersion={}&resourceVersionMatch=Exact", past.revision);
                let uri = request.uri();
                let join = if uri.query().is_some() { '&' } else { '?' };
                *request.uri_mut() = format!("{uri}{join}{query}").parse().expect("a URI with a longer query");
            }
        }
        let answer = self.upstream.send(request).await;
        if write.map(Point::After).is_some_and(|point| Some(point) == self.instructions.end) {
            self.end();
            return std::future::pending().await;
        }
        if !watch {
            self.log().last = Instant::now();
        }
        answer
    }

    /// Notes the request; its number if it is a write.
    fn note(&self, request: &Request<Body>, watch: bool) -> Option<usize> {
        let mut log = self.log();
        if watch {
            return None;
        }
        log.last = Instant::now();
        let write = is_write(request).then(|| {
            log.writes += 1;
            log.writes
        });
        let text = format!("{} {}", request.method(), request.uri());
        log.sent.push(Sent { write, text });
        write
    }

    async fn revision(&self) -> Result<String, kube::Error> {
        let url = format!("/api/v1/namespaces/{}/configmaps?limit=1", self.namespace);
        let list: Value = self.upstream.request(Request::get(url).body(Vec::new()).expect("a request")).await?;
        Ok(list["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned())
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_watch(request: &Request<Body>) -> bool {
    request.uri().query().is_some_and(|query| query.split('&').any(|pair| pair == "watch=true"))
}

/// Events are told beside the work, and a lost one is none of its state.
fn is_write(request: &Request<Body>) -> bool {
    !matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS)
        && !request.uri().path().ends_with("/events")
}

/// The kind of which this request reads all.
fn collection(request: &Request<Body>) -> Option<Kind> {
    match request.uri().path().rsplit('/').next()? {
        _ if *request.method() != Method::GET => None,
        "trainingjobs" => Some(Kind::TrainingJob),
        "jobs" => Some(Kind::Job),
        "pods" => Some(Kind::Pod),
        "services" => Some(Kind::Service),
        "configmaps" => Some(Kind::ConfigMap),
        "persistentvolumeclaims" => Some(Kind::PersistentVolumeClaim),
        _ => None,
    }
}
