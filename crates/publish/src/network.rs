//! HTTP for the hub and for MLflow: no wait is without a limit, and no token goes to another host.

use crate::error::{PublishError, PublishErrorKind};
use bytes::Bytes;
use fetch::{Forbidden, Guard};
use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use http::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, HeaderMap, HeaderValue, LOCATION};
use http::{Method, StatusCode};
use jiff::Timestamp;
use parking_lot::Mutex;
use reqwest::{Body, Client, Url};
use std::error::Error as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use text::one_line;
use tokio::time::sleep;

/// How many redirects a GET follows.
const REDIRECTS: usize = 5;
/// Maximum sum of points of the failures without progress between them.
const POINTS: u32 = 8;
/// Points of a stall. It lasts as long as the limit, so that the second one in a row is the last.
const STALL: u32 = 4;
/// Points of a connection that failed or was cut.
const CUT: u32 = 2;
/// Points of an answer such as 429 or 503.
const BUSY: u32 = 1;
/// Payloads are handed over in slices, which show whether they move.
const SLICE: usize = 256 * 1024;

/// Timeouts for servers, and pauses between tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkTimeouts {
    /// Timeout for a connection. Default 10 s.
    pub connect: Duration,
    /// Timeout for the next byte, in either direction. Default 60 s.
    pub silence: Duration,
    /// Timeout for the answer to a request that is much work, such as a commit. Default 600 s.
    pub answer: Duration,
    /// The pause before the second try, which doubles with each further one. Default 0.5 s.
    pub back_off: Duration,
    /// The longest pause, whatever the server asks for. Default 300 s.
    pub longest_pause: Duration,
}

impl Default for NetworkTimeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            silence: Duration::from_secs(60),
            answer: Duration::from_secs(600),
            back_off: Duration::from_millis(500),
            longest_pause: Duration::from_secs(300),
        }
    }
}

/// The tries of one request.
pub(crate) struct Retries {
    left: u32,
    failures: u32,
    patience: NetworkTimeouts,
}

type Result<T> = std::result::Result<T, PublishError>;

impl Retries {
    pub fn new(patience: NetworkTimeouts) -> Self {
        Self { left: POINTS, failures: 0, patience }
    }

    /// How long to wait before the next try.
    ///
    /// # Errors
    /// The failure itself if another try can't fix it, or if there were too many.
    fn pause(&mut self, failure: PublishError) -> Result<Duration> {
        if failure.kind != PublishErrorKind::Unavailable {
            return Err(failure);
        }
        let cost = match failure.status {
            _ if failure.stalled => STALL,
            None => CUT,
            Some(_) => BUSY,
        };
        self.left = self.left.saturating_sub(cost);
        if self.left == 0 {
            return Err(failure);
        }
        let back_off = self.patience.back_off.saturating_mul(1 << self.failures.min(16));
        self.failures += 1;
        Ok(failure.retry_after.unwrap_or(back_off).min(self.patience.longest_pause))
    }

    /// Waits before the next try.
    ///
    /// # Errors
    /// As [`Retries::pause`].
    pub async fn wait(&mut self, failure: PublishError) -> Result<()> {
        sleep(self.pause(failure)?).await;
        Ok(())
    }
}

/// A body of a request.
pub(crate) enum Payload {
    Empty,
    Whole(Bytes),
    /// A length, and what has it together.
    Stream(u64, BoxStream<'static, Result<Bytes>>),
}

/// A request.
pub(crate) struct Ask<'a> {
    pub method: Method,
    pub url: &'a Url,
    pub headers: HeaderMap,
    /// Goes only to the host of `url`.
    pub token: Option<&'a HeaderValue>,
    pub payload: Payload,
    /// Whether the answer may take as long as [`NetworkTimeouts::answer`].
    pub is_slow: bool,
    /// The longest answer, in bytes.
    pub limit: usize,
}

/// An answer with its body.
pub(crate) struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

/// The client of one endpoint.
#[derive(Clone)]
pub(crate) struct Network {
    client: Client,
    guard: Guard,
    pub patience: NetworkTimeouts,
}

/// When something moved last, in either direction.
#[derive(Clone)]
struct Movement(Arc<(Mutex<Instant>, AtomicBool)>);

impl Movement {
    fn new() -> Self {
        Self(Arc::new((Mutex::new(Instant::now()), AtomicBool::new(false))))
    }

    fn note(&self) {
        *self.0.0.lock() = Instant::now();
    }

    /// The whole body was handed over.
    fn is_sent(&self) {
        self.0.1.store(true, Ordering::Relaxed);
        self.note();
    }

    /// Returns once nothing has moved for too long: for how long.
    async fn stop(&self, silence: Duration, answer: Duration) -> Duration {
        loop {
            let limit = if self.0.1.load(Ordering::Relaxed) { answer } else { silence };
            let idle = self.0.0.lock().elapsed();
            if idle >= limit {
                return limit;
            }
            // The limit may grow meanwhile, and never shrinks below the silence.
            sleep(limit.saturating_sub(idle).min(silence)).await;
        }
    }
}

impl Network {
    /// A client for `endpoint`. `certificates` (PEM) are trusted besides the system's.
    pub fn new(endpoint: &Url, certificates: Option<&[u8]>, patience: NetworkTimeouts) -> Result<Self> {
        store::choose_tls();
        let failed = |error: reqwest::Error| {
            let place = place(endpoint);
            PublishError::refused(format!("{place}: the HTTP client can't be made ({error}); check the CA bundle"))
        };
        let guard = Guard::from_endpoint(endpoint);
        let base = || {
            Client::builder()
                .user_agent(concat!("trainingjob-operator/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(patience.connect)
                .http1_only()
                .redirect(reqwest::redirect::Policy::none())
                .dns_resolver(Arc::new(guard.clone()))
        };
        let own = match certificates {
            Some(pem) => reqwest::Certificate::from_pem_bundle(pem).map_err(failed)?,
            None => Vec::new(),
        };
        let client = match base().tls_certs_merge(own).build() {
            // An image without CA certificates still reaches a server that needs none.
            Err(_) if endpoint.scheme() == "http" => base().tls_certs_only([]).build(),
            other => other,
        };
        Ok(Self { client: client.map_err(failed)?, guard, patience })
    }

    /// Sends one request. Any status is an answer.
    ///
    /// # Errors
    /// [`PublishErrorKind::Unavailable`] if the server can't be reached, or if nothing moves for too long.
    pub async fn send(&self, ask: Ask<'_>) -> Result<Answer> {
        let movement = Movement::new();
        let answer = if ask.is_slow { self.patience.answer } else { self.patience.silence };
        let url = ask.url.clone();
        tokio::select! {
            answer = self.exchange(ask, &movement) => answer,
            waited = movement.stop(self.patience.silence, answer) => Err(PublishError::stall(format!(
                "{}: no byte for {} s; check that the server can be reached from this pod", place(&url), waited.as_secs_f32()
            ))),
        }
    }

    async fn exchange(&self, ask: Ask<'_>, movement: &Movement) -> Result<Answer> {
        let Ask { method, url, headers, token, payload, limit, .. } = ask;
        let mut request = self.client.request(method, url.clone()).headers(headers);
        request = request.header(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, token.clone());
        }
        let failure = Arc::new(Mutex::new(None));
        let (length, pieces) = match payload {
            Payload::Empty => (None, stream::empty().boxed()),
            Payload::Whole(bytes) => (Some(bytes.len() as u64), stream::iter([Ok(bytes)]).boxed()),
            Payload::Stream(length, pieces) => (Some(length), pieces),
        };
        match length {
            None => movement.is_sent(),
            Some(0) => {
                movement.is_sent();
                request = request.header(CONTENT_LENGTH, 0).body(Bytes::new());
            }
            Some(length) => {
                let body = watched(pieces, length, movement.clone(), Arc::clone(&failure));
                request = request.header(CONTENT_LENGTH, length).body(Body::wrap_stream(body));
            }
        }
        let sent = request.send().await;
        // That a file could not be read is the cause of a request that was cut.
        if let Some(failure) = failure.lock().take() {
            return Err(failure);
        }
        let mut response = sent.map_err(|error| lost(url, error))?;
        movement.is_sent();
        let (status, headers) = (response.status(), response.headers().clone());
        let mut body = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(|error| lost(url, error))? {
            movement.note();
            if piece.len() > limit - body.len() {
                let place = place(url);
                return Err(PublishError::refused(format!(
                    "{place}: an answer of more than {limit} bytes; check the endpoint"
                )));
            }
            body.extend_from_slice(&piece);
        }
        Ok(Answer { status: status.as_u16(), headers, body })
    }

    /// Sends one GET and follows its redirects. The token goes only to the host of `url`.
    pub async fn get(&self, url: &Url, token: Option<&HeaderValue>, limit: usize) -> Result<Answer> {
        let mut at = url.clone();
        for _ in 0..=REDIRECTS {
            let answer = self
                .send(Ask {
                    method: Method::GET,
                    url: &at,
                    headers: HeaderMap::new(),
                    token: token.filter(|_| at.origin() == url.origin()),
                    payload: Payload::Empty,
                    is_slow: false,
                    limit,
                })
                .await?;
            let status = StatusCode::from_u16(answer.status).unwrap_or_default();
            if !status.is_redirection() {
                return Ok(answer);
            }
            let location = answer.headers.get(LOCATION).and_then(|value| value.to_str().ok());
            let target = location.and_then(|location| at.join(location).ok());
            let Some(target) = target else {
                return Err(PublishError::refused(format!("{}: a redirect to no URL; check the endpoint", place(&at))));
            };
            self.check_target(&at, &target)?;
            at = target;
        }
        Err(PublishError::refused(format!("{}: more than {REDIRECTS} redirects; check the endpoint", place(url))))
    }
}

impl Network {
    /// Whether what a server names is followed: at an address that lies no further inwards than the endpoint, and from
    /// https only by https.
    pub fn check_target(&self, from: &Url, target: &Url) -> Result<()> {
        check_text(from, target)?;
        self.guard.permits(target).map_err(|why| leads_wrong(from, target, &why.to_string()))
    }
}

fn leads_wrong(from: &Url, target: &Url, why: &str) -> PublishError {
    let host = one_line(target.host_str().unwrap_or_default());
    PublishError::refused(format!("{}: it leads to {host}, and {why}; check the endpoint", place(from)))
}

fn check_text(from: &Url, target: &Url) -> Result<()> {
    let wrong = |why: &str| Err(leads_wrong(from, target, why));
    match (from.scheme(), target.scheme()) {
        (_, "https") | ("http", "http") => {}
        (_, "http") => return wrong("from https to http"),
        _ => return wrong("not by HTTP"),
    }
    if !target.username().is_empty() || target.password().is_some() {
        return wrong("with user information");
    }
    Ok(())
}

/// A body of `length` bytes in slices, which notes that it moves, and why it ends early.
fn watched(
    pieces: BoxStream<'static, Result<Bytes>>,
    length: u64,
    movement: Movement,
    failure: Arc<Mutex<Option<PublishError>>>,
) -> impl futures::Stream<Item = std::io::Result<Bytes>> + Send + 'static {
    let slices = pieces.flat_map(|piece| match piece {
        Ok(bytes) => {
            let length = bytes.len();
            let slice = move |at: usize| Ok(bytes.slice(at..(at + SLICE).min(bytes.len())));
            stream::iter((0..length).step_by(SLICE).map(slice)).boxed()
        }
        Err(error) => stream::iter([Err(error)]).boxed(),
    });
    let mut left = length;
    slices.map(move |piece| {
        let bytes = piece.map_err(|error| {
            let text = error.to_string();
            failure.lock().get_or_insert(error);
            std::io::Error::other(text)
        })?;
        left = left.saturating_sub(bytes.len() as u64);
        // After the last byte the client does not ask for more.
        if left == 0 {
            movement.is_sent();
        } else {
            movement.note();
        }
        Ok(bytes)
    })
}

/// A URL as an error shows it: without the query, which may have a signature.
pub(crate) fn place(url: &Url) -> String {
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    one_line(&format!("{}://{}{port}{}", url.scheme(), url.host_str().unwrap_or_default(), url.path()))
}

/// A request that failed below HTTP, or an answer that was cut.
fn lost(url: &Url, error: reqwest::Error) -> PublishError {
    let place = place(url);
    let stalled = error.is_timeout();
    let error = error.without_url();
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        if inner.is::<Forbidden>() {
            return PublishError::refused(format!("{place}: {inner}; check the endpoint, which leads there"));
        }
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        source = inner.source();
    }
    let text = one_line(&text);
    let remedy = match text.contains("certificate") || text.contains("UnknownIssuer") {
        true => "name the CA of the server as the CA bundle, or as ca.crt in the credentials",
        false => "check that the server can be reached from this pod",
    };
    PublishError { stalled, ..PublishError::unavailable(format!("{place}: {text}; {remedy}")) }
}

/// The failure that a status means, for `what` was asked for. `remedy` is that of 401, 403 and 404.
pub(crate) fn refusal(what: &str, answer: &Answer, detail: &str, remedy: &str) -> PublishError {
    let status = answer.status;
    let detail = if detail.is_empty() { String::new() } else { format!(": {}", one_line(detail)) };
    let failure = |kind, remedy: &str| PublishError::new(kind, format!("{what}: HTTP {status}{detail}; {remedy}"));
    let failure = match status {
        401 | 403 | 407 => failure(PublishErrorKind::Denied, remedy),
        404 | 410 => failure(PublishErrorKind::NotFound, remedy),
        408 | 425 | 429 | 500 | 502..=504 | 520..=530 => {
            failure(PublishErrorKind::Unavailable, "the server is overloaded or failing; try again later")
        }
        409 | 412 => failure(PublishErrorKind::Changed, "another client changed it meanwhile; try again"),
        _ => failure(PublishErrorKind::Refused, "the server does not accept this request; correct what it names"),
    };
    PublishError { status: Some(status), retry_after: store::retry_after(&answer.headers, Timestamp::now()), ..failure }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_are_bounded_and_respect_server_delay() {
        let patience = NetworkTimeouts { longest_pause: Duration::from_secs(9), ..NetworkTimeouts::default() };
        let count = |failure: &PublishError| {
            let mut tries = Retries::new(patience);
            (0..100).take_while(|_| tries.pause(failure.clone()).is_ok()).count() + 1
        };
        let busy = PublishError { status: Some(503), ..PublishError::unavailable("x") };
        assert_eq!(count(&PublishError::stall("x")), 2);
        assert_eq!(count(&PublishError::unavailable("x")), 4);
        assert_eq!(count(&busy), 8);
        assert_eq!(count(&PublishError::refused("x")), 1);
        let mut tries = Retries::new(patience);
        let mut pause = |retry_after| tries.pause(PublishError { retry_after, ..busy.clone() }).unwrap();
        assert_eq!(pause(None), Duration::from_millis(500));
        assert_eq!(pause(None), Duration::from_secs(1));
        assert_eq!(pause(Some(Duration::from_secs(7))), Duration::from_secs(7));
        assert_eq!(pause(Some(Duration::from_secs(7000))), Duration::from_secs(9));
    }

    #[test]
    fn redirects_to_internal_or_downgraded_urls_are_refused() {
        let url = |text: &str| Url::parse(text).unwrap();
        let leads = |from: &str, to: &str| {
            let network = Network::new(&url(from), None, NetworkTimeouts::default()).unwrap();
            network.check_target(&url(from), &url(to)).is_ok()
        };
        assert!(leads("https://hub.example/a", "https://cdn.example/b"));
        assert!(leads("http://127.0.0.1:1/a", "http://127.0.0.1:2/b"));
        assert!(!leads("https://hub.example/a", "http://169.254.169.254/b"));
        assert!(!leads("https://hub.example/a", "file:///etc/passwd"));
        assert!(!leads("https://hub.example/a", "https://169.254.169.254/b"), "a metadata service");
        assert!(!leads("https://hub.example/a", "https://10.0.0.1/b"));
        assert!(!leads("http://127.0.0.1:1/a", "http://169.254.169.254/b"));
        assert!(!leads("https://hub.example/a", "https://user:secret@cdn.example/b"));
    }
}
