//! The HTTP client of a store: no wait is unlimited, and no transfer that makes progress is cut.
//!
//! A limit on a whole request would end slow transfers of large parts. A limit on reading alone would miss a peer that
//! accepts nothing. So both directions are watched for silence instead, and data also for a trickle. An answer that is
//! not data has a maximum length.

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::header::{CONTENT_LENGTH, HeaderMap, HeaderValue, RANGE, RETRY_AFTER};
use http_body_util::{BodyExt, StreamBody};
use jiff::Timestamp;
use object_store::ClientOptions;
use object_store::client::{
    ClientConfigKey, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse,
    HttpResponseBody, HttpService,
};
use reqwest::Client;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Maximum time for an answer after a request was sent whole. A store that assembles 10,000 parts needs minutes.
const TO_COMPLETE: Duration = Duration::from_secs(600);
/// The longest answer that is no range of an object, in bytes: a list of a thousand keys, a manifest.
pub(crate) const LONGEST_ANSWER: u64 = 32 * 1024 * 1024;
/// Minimum bytes of a range that have to arrive within the time for which a store may be silent.
pub const LEAST_DATA: u64 = 256 * 1024;
/// Maximum bytes kept of an error's body.
const ERROR_BODY: u64 = 16 * 1024;
/// How long to wait for a cloud's metadata server, which is nearby or does not exist.
const NEXT_DOOR: Duration = Duration::from_secs(2);

/// Chooses the cryptography provider for TLS, without which no HTTP client can be made.
pub fn choose_tls() {
    static PROVIDER: Once = Once::new();
    // Fails if another part of the program has chosen one, which serves as well.
    PROVIDER.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
}

/// Makes the clients of one store.
#[derive(Clone)]
pub(crate) struct Connector {
    pub connect: Duration,
    /// The longest time without a byte.
    pub silence: Duration,
    /// PEM: trusted besides those of the system.
    pub ca_bundle: Option<Vec<u8>>,
    /// Whether the store itself is spoken to without TLS.
    pub plain: bool,
    /// Whether uploads get a checksum in Google's form, so that the store refuses data that was damaged on the way.
    pub google_hash: bool,
    /// The longest pause that a busy store can request before a retry here. Zero if the caller retries; it finds the
    /// pause in the error.
    pub longest_pause: Duration,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("silence", &self.silence).finish_non_exhaustive()
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        choose_tls();
        let failed =
            |error: reqwest::Error| object_store::Error::Generic { store: "HTTP client", source: Box::new(error) };
        let http = options.get_config_value(&ClientConfigKey::AllowHttp).as_deref() == Some("true");
        // Only what is asked for credentials is allowed HTTP while the store is not.
        let connect = if http && !self.plain { NEXT_DOOR } else { self.connect };
        let base = || {
            Client::builder()
                .user_agent(concat!("trainingjob-operator/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(connect)
                .http1_only()
                .https_only(!http)
                .redirect(reqwest::redirect::Policy::none())
        };
        let mut certificates = Vec::new();
        if let Some(pem) = &self.ca_bundle {
            certificates = reqwest::Certificate::from_pem_bundle(pem).map_err(failed)?;
        }
        let client = match base().tls_certs_merge(certificates).build() {
            // An image without CA certificates can still be used with a server that speaks no TLS.
            Err(_) if http => base().tls_certs_only([]).build(),
            other => other,
        };
        let (silence, google_hash, longest_pause) = (self.silence, self.google_hash, self.longest_pause);
        Ok(HttpClient::new(MonitoredClient { client: client.map_err(failed)?, silence, google_hash, longest_pause }))
    }
}

#[derive(Debug)]
struct MonitoredClient {
    client: Client,
    silence: Duration,
    google_hash: bool,
    longest_pause: Duration,
}

fn silent(silence: Duration) -> HttpError {
    HttpError::new(
        HttpErrorKind::Timeout,
        io::Error::new(io::ErrorKind::TimedOut, format!("no byte for {} s", silence.as_secs_f32())),
    )
}

/// An answer is longer than [`LONGEST_ANSWER`].
#[derive(Debug)]
pub(crate) struct OverlongAnswer;

impl fmt::Display for OverlongAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an answer of more than {} MiB", LONGEST_ANSWER / 1024 / 1024)
    }
}

impl std::error::Error for OverlongAnswer {}

/// A store is busy, and says when to retry.
#[derive(Debug)]
pub(crate) struct BusyAnswer {
    status: http::StatusCode,
    pub retry_after: Duration,
    body: String,
}

impl fmt::Display for BusyAnswer {
    /// As the client of the store writes its own errors, which are read for the status.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server returned non-2xx status code: {}: {}", self.status, self.body)
    }
}

impl std::error::Error for BusyAnswer {}

/// The pause that a busy store requests.
fn pause_of(status: http::StatusCode, headers: &HeaderMap) -> Option<Duration> {
    let is_busy = status.is_server_error() || matches!(status.as_u16(), 408 | 425 | 429);
    is_busy.then(|| retry_after(headers, Timestamp::now())).flatten()
}

/// How long an answer asks to wait: seconds, or a date; or the time to the end of a hub's window (`RateLimit: ..;t=9`).
pub fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    if let Some(value) = text(RETRY_AFTER.as_str()) {
        if let Ok(seconds) = value.parse() {
            return Some(Duration::from_secs(seconds));
        }
        let at = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(value).ok()?;
        return Some(Duration::try_from(at.duration_since(now)).unwrap_or(Duration::ZERO));
    }
    let seconds = text("ratelimit")?.split(';').find_map(|part| part.trim().strip_prefix("t="))?;
    seconds.parse().ok().map(Duration::from_secs)
}

/// How an answer's body is read.
#[derive(Clone, Copy)]
enum Reading {
    /// Body of an error. A longer one is cut.
    Error { left: u64 },
    /// Body of a success that is not data. A longer one is refused.
    Answer { left: u64 },
    /// Data of any length, with a minimum pace: the time waited and the bytes received since the last check.
    Data { waited: Duration, came: u64 },
}

impl Reading {
    /// Records the bytes received after a wait. Returns how many of them are read.
    fn take(&mut self, bytes: u64, after: Duration, silence: Duration) -> Result<u64, HttpError> {
        match self {
            Self::Error { left } => {
                let read = bytes.min(*left);
                *left -= read;
                Ok(read)
            }
            Self::Answer { left } => {
                *left = left.checked_sub(bytes).ok_or_else(|| HttpError::new(HttpErrorKind::Decode, OverlongAnswer))?;
                Ok(bytes)
            }
            Self::Data { waited, came } => {
                (*waited, *came) = (*waited + after, came.saturating_add(bytes));
                if *came >= LEAST_DATA {
                    (*waited, *came) = (Duration::ZERO, 0);
                } else if *waited > silence {
                    let why = format!("{came} bytes in {} s", waited.as_secs_f32());
                    return Err(HttpError::new(HttpErrorKind::Timeout, io::Error::new(io::ErrorKind::TimedOut, why)));
                }
                Ok(bytes)
            }
        }
    }
}

impl HttpService for MonitoredClient {
    fn call<'s, 'f>(&'s self, request: HttpRequest) -> Pin<Box<dyn Future<Output = Answer> + Send + 'f>>
    where
        's: 'f,
        Self: 'f,
    {
        Box::pin(self.execute(request))
    }
}

type Answer = Result<HttpResponse, HttpError>;

impl MonitoredClient {
    async fn execute(&self, request: HttpRequest) -> Answer {
        let (parts, body) = request.into_parts();
        let url = reqwest::Url::parse(&parts.uri.to_string())
            .map_err(|error| HttpError::new(HttpErrorKind::Unknown, io::Error::other(error)))?;
        let patience = if parts.method == http::Method::POST { TO_COMPLETE.max(self.silence) } else { self.silence };
        let hashed = body.clone();
        let begin = Instant::now();
        // Milliseconds after the beginning at which the body was last asked for more, and u64::MAX once it is sent.
        let moved = Arc::new(AtomicU64::new(0));
        let length = body.content_length();
        let mut left = length;
        if length == 0 {
            moved.store(u64::MAX, Ordering::Relaxed);
        }
        let mark = Arc::clone(&moved);
        let body = body.map_frame(move |frame| {
            left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
            mark.store(if left == 0 { u64::MAX } else { begin.elapsed().as_millis() as u64 }, Ordering::Relaxed);
            frame
        });
        let is_put = parts.method == http::Method::PUT;
        let is_data = parts.method == http::Method::GET && parts.headers.contains_key(RANGE);
        let mut sent = reqwest::Request::new(parts.method, url);
        *sent.headers_mut() = parts.headers;
        if self.google_hash && is_put {
            sent.headers_mut().insert("x-goog-hash", google_hash(hashed).await?);
        }
        // A counted body does not report its length by itself, and S3 accepts none in chunks.
        if length > 0 {
            sent.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
            *sent.body_mut() = Some(reqwest::Body::wrap(body));
        }
        let answer = self.client.execute(sent);
        tokio::pin!(answer);
        let mut done_at = None;
        let answer = loop {
            let now = Instant::now();
            let deadline = match moved.load(Ordering::Relaxed) {
                u64::MAX => *done_at.get_or_insert(now) + patience,
                at => begin + Duration::from_millis(at) + self.silence,
            };
            if now >= deadline {
                return Err(silent(deadline - done_at.unwrap_or(deadline - self.silence)));
            }
            // Checked now and then, because nothing wakes this when the body moves.
            let nap = (deadline - now).min((self.silence / 8).max(Duration::from_millis(5)));
            tokio::select! {
                answer = &mut answer => break answer.map_err(of_client)?,
                () = sleep(nap) => {}
            }
        };
        let answer: http::Response<reqwest::Body> = answer.into();
        let (parts, body) = answer.into_parts();
        let reading = match parts.status.is_success() {
            false => Reading::Error { left: ERROR_BODY },
            true if is_data => Reading::Data { waited: Duration::ZERO, came: 0 },
            true => Reading::Answer { left: LONGEST_ANSWER },
        };
        let pause = pause_of(parts.status, &parts.headers);
        if let Some(pause) = pause {
            sleep(pause.min(self.longest_pause)).await;
        }
        let silence = self.silence;
        let read = stream::unfold(Some((body, reading)), move |state| async move {
            let (mut body, mut reading) = state?;
            if matches!(reading, Reading::Error { left: 0 }) {
                return None;
            }
            let begin = Instant::now();
            match timeout(silence, body.frame()).await {
                Err(_) => Some((Err(silent(silence)), None)),
                Ok(None) => None,
                Ok(Some(Err(error))) => Some((Err(of_client(error)), None)),
                Ok(Some(Ok(frame))) => {
                    let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
                    match reading.take(bytes, begin.elapsed(), silence) {
                        Ok(read) => {
                            let frame = frame.map_data(|data| data.slice(..read as usize));
                            Some((Ok(frame), Some((body, reading))))
                        }
                        Err(error) => Some((Err(error), None)),
                    }
                }
            }
        });
        let body = HttpResponseBody::new(StreamBody::new(read.fuse()));
        let body = match pause {
            Some(retry_after) => failing(parts.status, retry_after, body),
            None => body,
        };
        Ok(HttpResponse::from_parts(parts, body))
    }
}

/// A body that ends with an error that has the pause: the client of the store drops the headers of an answer.
fn failing(status: http::StatusCode, retry_after: Duration, body: HttpResponseBody) -> HttpResponseBody {
    let read = async move {
        let body = body.collect().await.map(|body| String::from_utf8_lossy(&body.to_bytes()).into_owned());
        let answer = BusyAnswer { status, retry_after, body: body.unwrap_or_default() };
        Err::<_, HttpError>(HttpError::new(HttpErrorKind::Decode, answer))
    };
    HttpResponseBody::new(StreamBody::new(stream::once(read)))
}

/// The CRC-32C of a whole body, which is in memory. The object store client has no way to send it.
async fn google_hash(mut body: HttpRequestBody) -> Result<HeaderValue, HttpError> {
    let mut crc32c = 0;
    while let Some(frame) = body.frame().await {
        crc32c = frame?.data_ref().map_or(crc32c, |data| crc32c::crc32c_append(crc32c, data));
    }
    let hash = format!("crc32c={}", base64(crc32c.to_be_bytes()));
    HeaderValue::try_from(hash).map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))
}

/// Base64 of a checksum.
fn base64([a, b, c, d]: [u8; 4]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits = u64::from_be_bytes([0, 0, a, b, c, d, 0, 0]);
    let letter = |at: u32| char::from(LETTERS[(bits >> (42 - 6 * at) & 63) as usize]);
    (0..6).map(letter).collect::<String>() + "=="
}

/// What decides whether the client tries again by itself.
fn of_client(error: reqwest::Error) -> HttpError {
    let kind = if error.is_timeout() {
        HttpErrorKind::Timeout
    } else if error.is_connect() {
        HttpErrorKind::Connect
    } else if error.is_builder() {
        HttpErrorKind::Unknown
    } else {
        // A connection that ended in the middle. Every request to a store may be repeated.
        HttpErrorKind::Interrupted
    };
    HttpError::new(kind, error.without_url())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_data_is_accepted_but_trickling_is_not() {
        let (silence, second) = (Duration::from_secs(60), Duration::from_secs(1));
        let mut data = Reading::Data { waited: Duration::ZERO, came: 0 };
        for _ in 0..10_000 {
            assert_eq!(data.take(LEAST_DATA / 60 + 1, second, silence).unwrap(), LEAST_DATA / 60 + 1);
        }
        assert!((0..100).any(|_| data.take(1, second, silence).is_err()));
        let mut answer = Reading::Answer { left: LONGEST_ANSWER };
        assert_eq!(answer.take(LONGEST_ANSWER, second, silence).unwrap(), LONGEST_ANSWER);
        assert_eq!(
            answer.take(1, second, silence).unwrap_err().to_string(),
            "HTTP error: an answer of more than 32 MiB"
        );
        let mut error = Reading::Error { left: 10 };
        assert_eq!([8, 8, 8].map(|bytes| error.take(bytes, second, silence).unwrap()), [8, 2, 0]);
    }

    #[test]
    fn retry_delay_is_read_from_response_headers() {
        let now = "2026-10-21T07:28:00Z".parse().unwrap();
        let wait = |name: &'static str, value: &'static str| {
            let name = http::HeaderName::from_static(name);
            retry_after(&HeaderMap::from_iter([(name, HeaderValue::from_static(value))]), now)
        };
        assert_eq!(wait("retry-after", "7"), Some(Duration::from_secs(7)));
        assert_eq!(wait("retry-after", "Wed, 21 Oct 2026 07:28:05 GMT"), Some(Duration::from_secs(5)));
        assert_eq!(wait("retry-after", "Wed, 21 Oct 2026 07:27:05 GMT"), Some(Duration::ZERO));
        assert_eq!(wait("ratelimit", "\"api\";r=0;t=42"), Some(Duration::from_secs(42)));
        assert_eq!(wait("retry-after", "soon"), None);
        assert_eq!(wait("ratelimit", "\"api\";r=0"), None);
    }

    #[test]
    fn checksum_is_base64_encoded_as_google_expects() {
        for (bytes, text) in
            [([0, 0, 0, 0], "AAAAAA=="), ([0xff; 4], "/////w=="), ([0x4f, 0x7a, 0x1b, 0x9c], "T3obnA==")]
        {
            assert_eq!(base64(bytes), text);
        }
    }

    #[test]
    fn busy_store_is_retried_after_its_pause() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let empty = "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>";
            for (head, body) in [("503 x\r\nretry-after: 1", "<Error><Code>SlowDown</Code></Error>"), ("200 OK", empty)]
            {
                let (mut stream, _) = listener.accept().unwrap();
                let mut head_of_request = [0; 4096];
                let _ = io::Read::read(&mut stream, &mut head_of_request).unwrap();
                let length = body.len();
                let answer = format!("HTTP/1.1 {head}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}");
                io::Write::write_all(&mut stream, answer.as_bytes()).unwrap();
            }
        });
        let secret = tempfile::tempdir().unwrap();
        for (name, value) in [("AWS_SKIP_SIGNATURE", "true"), ("AWS_REGION", "x")] {
            std::fs::write(secret.path().join(name), value).unwrap();
        }
        let credentials = Some(secret.path().to_owned());
        let access = crate::Access { endpoint: Some(url), credentials, ..crate::Access::default() };
        let place = crate::Destination::parse("s3://bucket/x").unwrap();
        let store = crate::Store::open(&place, &access, "test").unwrap();
        let begin = std::time::Instant::now();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let page = runtime.block_on(store.page(None)).unwrap();
        assert!(page.objects.is_empty() && begin.elapsed() >= Duration::from_secs(1), "{:?}", begin.elapsed());
        server.join().unwrap();
    }
}
