//! HTTP for the hub and the web: no wait is without a limit, and no redirect leads where it must not.

use crate::error::{FetchError, FetchErrorKind, is_stall};
use crate::reach::{Forbidden, Guard, HostEntry};
use crate::watch::Watch;
use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, AUTHORIZATION, HeaderMap, HeaderValue, LOCATION};
use jiff::Timestamp;
use reqwest::{Client, Response, Url};
use std::error::Error as _;
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::LEAST_DATA;
use text::one_line;
use tokio::time::{sleep, timeout};

/// How many redirects one request follows.
const REDIRECTS: usize = 5;
/// Maximum sum of points of the failures without progress between them.
const POINTS: u32 = 8;
/// Points of a stall. It lasts as long as the limit, so that the second one in a row is the last.
const STALL: u32 = 4;
/// Points of a connection that failed or was cut.
const CUT: u32 = 2;
/// Points of an answer such as 429 or 503.
const BUSY: u32 = 1;

/// Timeouts for servers, and pauses between tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkTimeouts {
    /// Timeout for a connection. Default 10 s.
    pub connect: Duration,
    /// Timeout for the next byte. It is also the time in which at least `least_data` has to arrive. Default 60 s.
    pub silence: Duration,
    /// Minimum amount of data, in bytes. A slower answer is a stall, and a try with fewer bytes counts as one without
    /// progress. Default 256 KiB.
    pub least_data: u64,
    /// The pause before the second try, which doubles with each further one. Default 0.5 s.
    pub back_off: Duration,
    /// The longest pause, whatever `Retry-After` says. Default 300 s.
    pub longest_pause: Duration,
}

impl Default for NetworkTimeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            silence: Duration::from_secs(60),
            least_data: LEAST_DATA,
            back_off: Duration::from_millis(500),
            longest_pause: Duration::from_secs(300),
        }
    }
}

/// The tries of one request or range.
pub(crate) struct Retries {
    left: u32,
    failures: u32,
    patience: NetworkTimeouts,
}

impl Retries {
    pub fn new(patience: NetworkTimeouts) -> Self {
        Self { left: POINTS, failures: 0, patience }
    }

    /// How long to wait before the next try.
    ///
    /// # Errors
    /// The failure itself if another try can't fix it, or if there were too many since the last progress.
    pub fn pause(&mut self, failure: FetchError, has_progress: bool) -> Result<Duration, FetchError> {
        if failure.kind != FetchErrorKind::Unavailable {
            return Err(failure);
        }
        if has_progress {
            (self.left, self.failures) = (POINTS, 0);
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
    pub async fn wait(&mut self, failure: FetchError, has_progress: bool) -> Result<(), FetchError> {
        sleep(self.pause(failure, has_progress)?).await;
        Ok(())
    }
}

/// The client of one endpoint.
#[derive(Clone)]
pub(crate) struct Network {
    client: Client,
    guard: Guard,
    pub patience: NetworkTimeouts,
    watch: Arc<Watch>,
}

/// An answer, after its redirects.
pub(crate) struct Answer {
    pub response: Response,
    /// Where it is from.
    pub url: Url,
}

impl Network {
    /// A client for `endpoint` and what it redirects to. `certificates` (PEM) are trusted besides the system's.
    pub fn new(
        endpoint: &Url,
        certificates: Option<&[u8]>,
        patience: NetworkTimeouts,
        watch: Arc<Watch>,
        hosts: Vec<HostEntry>,
    ) -> Result<Self, FetchError> {
        store::choose_tls();
        let failed = |error: reqwest::Error| {
            FetchError::refused(format!("{endpoint}: the HTTP client can't be made ({error}); check the CA bundle"))
        };
        let guard = Guard::new(endpoint, hosts);
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
        Ok(Self { client: client.map_err(failed)?, guard, patience, watch })
    }

    /// Sends one GET and follows its redirects. `headers` go to every host, `token` only to that of `url`.
    ///
    /// # Errors [`FetchErrorKind::Unavailable`] if the server can't be reached or sends no header in time, [`FetchErrorKind::Refused`] for
    /// a redirect that must not be followed. Any status but a redirect's is an answer.
    pub async fn get(&self, url: &Url, headers: &HeaderMap, token: Option<&HeaderValue>) -> Result<Answer, FetchError> {
        let begin = Instant::now();
        let mut at = url.clone();
        for _ in 0..=REDIRECTS {
            let mut request = self.client.get(at.clone()).headers(headers.clone());
            request = request.header(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            if let Some(token) = token.filter(|_| at.origin() == url.origin()) {
                request = request.header(AUTHORIZATION, token.clone());
            }
            // All hops together: a chain of slow ones is as slow as one that is silent.
            let left = self.patience.silence.saturating_sub(begin.elapsed());
            let sent = self.watch.wait(timeout(left, request.send())).await;
            let response = sent.map_err(|_| silent(&at, self.patience.silence))?.map_err(|error| lost(&at, error))?;
            if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok(Answer { response, url: at });
            }
            at = self.target(&at, response.headers().get(LOCATION))?;
        }
        Err(FetchError::refused(format!("{}: more than {REDIRECTS} redirects; check the endpoint", place(url))))
    }

    /// Where a redirect leads.
    fn target(&self, from: &Url, location: Option<&HeaderValue>) -> Result<Url, FetchError> {
        let place = place(from);
        let target = location.and_then(|value| from.join(value.to_str().ok()?).ok());
        let Some(target) = target else {
            return Err(FetchError::refused(format!("{place}: a redirect to no URL; check the endpoint")));
        };
        let host = one_line(target.host_str().unwrap_or_default());
        let wrong = |why: String| {
            FetchError::refused(format!("{place}: it redirects to {host}, and {why}; check the endpoint"))
        };
        match (from.scheme(), target.scheme()) {
            (_, "https") | ("http", "http") => {}
            (_, "http") => return Err(wrong("from https to http".to_owned())),
            (_, other) => return Err(wrong(format!("{} is no scheme of the web", one_line(other)))),
        }
        if !target.username().is_empty() || target.password().is_some() {
            return Err(wrong("it has user information".to_owned()));
        }
        self.guard.permits(&target).map_err(|why| wrong(why.to_string()))?;
        Ok(target)
    }

    /// The body of an answer.
    pub fn pieces(&self, answer: Answer) -> BodyStream {
        let (Answer { response, url }, watch) = (answer, Arc::clone(&self.watch));
        BodyStream { response, url, patience: self.patience, watch, waited: Duration::ZERO, arrived: 0 }
    }

    /// Reads an answer that has at most `limit` bytes.
    pub async fn read(&self, answer: Answer, limit: usize) -> Result<Vec<u8>, FetchError> {
        let place = place(&answer.url);
        let mut pieces = self.pieces(answer);
        let mut read = Vec::new();
        while let Some(piece) = pieces.next().await? {
            if piece.len() > limit - read.len() {
                let limit = limit / 1024;
                return Err(FetchError::refused(format!(
                    "{place}: an answer of more than {limit} KiB; check the endpoint"
                )));
            }
            read.extend_from_slice(&piece);
        }
        Ok(read)
    }
}

/// The body of an answer, in pieces as they arrive.
pub(crate) struct BodyStream {
    response: Response,
    url: Url,
    patience: NetworkTimeouts,
    watch: Arc<Watch>,
    /// The time waited and the bytes received since the last check.
    waited: Duration,
    arrived: u64,
}

impl BodyStream {
    /// The next piece. `None` at the end.
    ///
    /// # Errors
    /// [`FetchErrorKind::Unavailable`] if the connection was cut, if no byte arrived in time, or too few.
    pub async fn next(&mut self) -> Result<Option<Bytes>, FetchError> {
        let begin = Instant::now();
        let read = self.watch.wait(timeout(self.patience.silence, self.response.chunk())).await;
        let piece = read.map_err(|_| silent(&self.url, self.patience.silence))?.map_err(|e| lost(&self.url, e))?;
        let Some(piece) = piece else { return Ok(None) };
        self.waited += begin.elapsed();
        self.arrived += piece.len() as u64;
        if self.arrived >= self.patience.least_data {
            (self.waited, self.arrived) = (Duration::ZERO, 0);
        } else if self.waited > self.patience.silence {
            let (place, bytes, seconds) = (place(&self.url), self.arrived, self.waited.as_secs_f32());
            return Err(FetchError::stall(format!(
                "{place}: only {bytes} bytes in {seconds:.1} s; check that the server can be reached fast enough"
            )));
        }
        Ok(Some(piece))
    }
}

/// A URL as an error shows it: without the query, which may have a signature.
pub(crate) fn place(url: &Url) -> String {
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    one_line(&format!("{}://{}{port}{}", url.scheme(), url.host_str().unwrap_or_default(), url.path()))
}

fn silent(url: &Url, silence: Duration) -> FetchError {
    let (place, seconds) = (place(url), silence.as_secs_f32());
    FetchError::stall(format!("{place}: no byte for {seconds} s; check that the server can be reached from this pod"))
}

/// A request that failed below HTTP, or a body that was cut.
fn lost(url: &Url, error: reqwest::Error) -> FetchError {
    let place = place(url);
    let is_timeout = error.is_timeout();
    let error = error.without_url();
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        if inner.is::<Forbidden>() {
            return FetchError::refused(format!("{place}: {inner}; check the endpoint, which redirects there"));
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
    let failure = FetchError::unavailable(format!("{place}: {text}; {remedy}"));
    FetchError { stalled: is_timeout || is_stall(&text), ..failure }
}

/// The failure that a status means for the requested `what`. The caller has the remedies for the statuses of gates and
/// missing files.
pub(crate) fn refusal(what: &str, status: u16, headers: &HeaderMap, remedy: &str) -> FetchError {
    let failure = |kind, remedy: &str| FetchError::new(kind, format!("{what}: HTTP {status}; {remedy}"));
    let failure = match status {
        401 | 403 | 407 => failure(FetchErrorKind::Denied, remedy),
        404 | 410 => failure(FetchErrorKind::NotFound, remedy),
        408 | 425 | 429 | 500 | 502..=504 | 520..=530 => {
            failure(FetchErrorKind::Unavailable, "the server is overloaded or failing; try again later")
        }
        _ => {
            failure(FetchErrorKind::Refused, "the server does not accept this request; check the URI and the endpoint")
        }
    };
    FetchError { retry_after: store::retry_after(headers, Timestamp::now()), ..failure.with_status(status) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_end_without_progress_and_continue_with_it() {
        let patience = NetworkTimeouts { back_off: Duration::from_millis(1), ..NetworkTimeouts::default() };
        let count = |failure: &FetchError, has_progress| {
            let mut tries = Retries::new(patience);
            (0..100).take_while(|_| tries.pause(failure.clone(), has_progress).is_ok()).count() + 1
        };
        let busy = FetchError::unavailable("x").with_status(503);
        assert_eq!(count(&FetchError::stall("x"), false), 2, "two stalls last less than three limits");
        assert_eq!(count(&FetchError::unavailable("x"), false), 4);
        assert_eq!(count(&busy, false), 8);
        assert_eq!(count(&FetchError::new(FetchErrorKind::NotFound, "x"), true), 1);
        assert_eq!(count(&busy, true), 101);
    }

    #[test]
    fn retry_pauses_double_and_respect_retry_after_within_bounds() {
        let patience = NetworkTimeouts { longest_pause: Duration::from_secs(9), ..NetworkTimeouts::default() };
        let mut tries = Retries::new(patience);
        let busy = FetchError::unavailable("x").with_status(503);
        let mut pause = |retry_after| tries.pause(FetchError { retry_after, ..busy.clone() }, false).unwrap();
        assert_eq!(pause(None), Duration::from_millis(500));
        assert_eq!(pause(None), Duration::from_secs(1));
        assert_eq!(pause(Some(Duration::from_secs(7))), Duration::from_secs(7));
        assert_eq!(pause(Some(Duration::from_secs(7000))), Duration::from_secs(9));
    }

    #[test]
    fn redirects_never_leave_https() {
        let url = |text: &str| Url::parse(text).unwrap();
        let network =
            Network::new(&url("https://hub.example"), None, NetworkTimeouts::default(), Arc::default(), Vec::new())
                .unwrap();
        let leads = |from: &str, to: &'static str| network.target(&url(from), Some(&HeaderValue::from_static(to)));
        assert_eq!(leads("https://hub.example/a/b", "../c").unwrap().as_str(), "https://hub.example/c");
        assert_eq!(leads("https://hub.example/a", "//cdn.example/c").unwrap().as_str(), "https://cdn.example/c");
        assert_eq!(leads("http://hub.example/a", "https://hub.example/b").unwrap().as_str(), "https://hub.example/b");
        let error = leads("https://hub.example/a?secret", "http://hub.example/a").unwrap_err().to_string();
        assert!(error.contains("from https to http") && !error.contains("secret"), "{error}");
        assert!(network.target(&url("https://hub.example/a"), None).is_err());
    }
}
