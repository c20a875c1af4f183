//! The layer between an operator and the API server. It counts requests, ends the operator at a chosen one, shows it
//! the world as it was, and knows how far its watches are.

use super::agents::Agents;
use super::witness::Kind;
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use kube::Client;
use kube::client::Body;
use protocol::proof::PROOF_HEADER;
use serde::Deserialize;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// A point in the stream of write requests. The first write has number 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Point {
    /// The operator ends, and the request is never sent.
    Before(usize),
    /// The request is sent and done, and the operator ends without its answer.
    After(usize),
}

impl Point {
    pub fn write(self) -> usize {
        match self {
            Self::Before(write) | Self::After(write) => write,
        }
    }
}

/// An earlier state of the world. Watches begin as it was then, and report nothing that came after.
#[derive(Clone, Debug)]
pub struct Past {
    /// etcd's revision.
    pub revision: String,
    /// The kinds that are shown as they were.
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
    /// The agents that answer for the pods.
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
    /// Requests other than watches that have no answer yet.
    under_way: usize,
    /// The version of each kind up to which a watch has brought everything.
    watched: HashMap<Kind, u64>,
}

type Answer = Response<UnsyncBoxBody<Bytes, kube::Error>>;

/// A request under way. It is over when this is dropped, as when its caller stops waiting.
struct UnderWay<'a>(&'a Wire);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut log = self.0.log();
        log.under_way -= 1;
        log.last = Instant::now();
    }
}

impl Wire {
    pub fn new(upstream: Client, namespace: &str, instructions: Instructions) -> Arc<Self> {
        Arc::new(Self {
            upstream,
            namespace: namespace.to_owned(),
            instructions,
            log: Mutex::new(Log {
                sent: Vec::new(),
                writes: 0,
                noted: None,
                last: Instant::now(),
                under_way: 0,
                watched: HashMap::new(),
            }),
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

    /// From here on nothing passes. The operator is dead, whatever of it still moves.
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

    /// Ends the past. Lists are current again, and watches catch up.
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

    /// The time for which no request except watches has been under way.
    pub fn idle(&self) -> Duration {
        let log = self.log();
        if log.under_way == 0 { log.last.elapsed() } else { Duration::ZERO }
    }

    /// Whether a watch has brought everything of this kind up to this version.
    pub fn has_brought(&self, kind: Kind, version: u64) -> bool {
        self.log().watched.get(&kind).is_some_and(|watched| *watched >= version)
    }

    async fn pass(self: Arc<Self>, request: Request<Body>) -> Result<Answer, kube::Error> {
        let watched = collection(&request).filter(|_| is_watch(&request)).map(|kind| (kind, begin(&request)));
        let (head, body) = self.answer(request).await?.into_parts();
        let Some((kind, begin)) = watched.filter(|_| head.status.is_success()) else {
            return Ok(Response::from_parts(head, body.boxed_unsync()));
        };
        // Earlier versions were in the list from which the watch continues.
        self.brought(kind, begin);
        let mut rest = Vec::new();
        let body = body.map_frame(move |frame| {
            if let Some(data) = frame.data_ref() {
                rest.extend_from_slice(data);
                while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = rest.drain(..=end).collect();
                    self.brought(kind, version(&line));
                }
            }
            frame
        });
        Ok(Response::from_parts(head, body.boxed_unsync()))
    }

    fn brought(&self, kind: Kind, version: Option<u64>) {
        let mut log = self.log();
        let watched = log.watched.entry(kind).or_default();
        *watched = version.unwrap_or_default().max(*watched);
    }

    async fn answer(&self, mut request: Request<Body>) -> Result<Response<Body>, kube::Error> {
        if self.has_ended() {
            return std::future::pending().await;
        }
        if let Some(agents) = &self.instructions.agents
            && request.uri().path().ends_with("/proxy/status")
        {
            let answer = match agents.answer(request.uri()) {
                Some((proof, body)) => Response::builder().header(PROOF_HEADER, proof).body(Body::from(body)),
                None => Response::builder().status(503).body(Body::from(Vec::new())),
            };
            return Ok(answer.expect("a plain answer"));
        }
        let watch = is_watch(&request);
        let write = self.note(&request, watch);
        let _under_way = (!watch).then(|| {
            self.log().under_way += 1;
            UnderWay(self)
        });
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
            && (watch || is_of_a_watch(&request))
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
        answer
    }

    /// Records the request. Returns its number if it is a write.
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

/// The version after which a watch begins.
fn begin(request: &Request<Body>) -> Option<u64> {
    request.uri().query()?.split('&').find_map(|pair| pair.strip_prefix("resourceVersion=")?.parse().ok())
}

/// The version in a line of a watch.
fn version(line: &[u8]) -> Option<u64> {
    #[derive(Deserialize)]
    struct Event {
        object: Object,
    }
    #[derive(Deserialize)]
    struct Object {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        resource_version: String,
    }
    serde_json::from_slice::<Event>(line).ok()?.object.metadata.resource_version.parse().ok()
}

/// Whether a request is a write. Events are sent beside the work, and no state depends on them.
fn is_write(request: &Request<Body>) -> bool {
    !matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS)
        && !request.uri().path().ends_with("/events")
}

/// Whether a list begins a watch: those are read page by page. Any other list is a fresh read, by which the operator
/// distinguishes an object that is gone from one that a watch has not shown yet. An API server does not answer it from
/// the past.
fn is_of_a_watch(list: &Request<Body>) -> bool {
    list.uri().query().is_some_and(|query| query.split('&').any(|pair| pair.starts_with("limit=")))
}

/// The kind that this request lists completely.
fn collection(request: &Request<Body>) -> Option<Kind> {
    match request.uri().path().rsplit('/').next()? {
        _ if *request.method() != Method::GET => None,
        "trainingjobs" => Some(Kind::TrainingJob),
        "tuningjobs" => Some(Kind::TuningJob),
        "jobs" => Some(Kind::Job),
        "pods" => Some(Kind::Pod),
        "services" => Some(Kind::Service),
        "configmaps" => Some(Kind::ConfigMap),
        "persistentvolumeclaims" => Some(Kind::PersistentVolumeClaim),
        _ => None,
    }
}
