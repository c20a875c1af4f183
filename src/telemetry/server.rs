//! `/metrics`, `/healthz`, `/readyz`. They have a thread of their own, because any client may ask, and the
//! operator's main thread has a lease to renew.

use super::{Metrics, Phase};
use axum::serve::Listener;
use axum::{Router, http::StatusCode, http::header::CONTENT_TYPE, routing::get};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::Sleep;

/// Concurrent connections. Beyond these the oldest is closed, so that slow readers can't block a probe.
const CONNECTIONS: usize = 64;
/// How long a connection may take, its answers included.
const LONGEST: Duration = Duration::from_secs(30);
/// How long the operator's own thread may do no work before it counts as unhealthy.
const STILL: Duration = Duration::from_secs(60);

/// Serves on a thread of its own until the process ends.
///
/// # Errors
/// If the thread can't be started.
pub fn serve_apart(listener: std::net::TcpListener, metrics: Arc<Metrics>) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let serving = move || {
        runtime.block_on(async move {
            let served = async { serve(TcpListener::from_std(listener)?, metrics).await };
            if let Err(error) = served.await {
                tracing::error!(%error, "metrics and probes are served no more");
            }
        });
    };
    std::thread::Builder::new().name("metrics".into()).spawn(serving).map(drop)
}

/// Serves until the process ends. A standby replica is ready, because a rollout would otherwise wait for ever for two
/// leaders.
///
/// # Errors
/// If the listener fails.
pub async fn serve(listener: TcpListener, metrics: Arc<Metrics>) -> io::Result<()> {
    let (alive, ready) = (metrics.clone(), metrics.clone());
    let healthz = move || async move {
        match alive.stands_still() {
            Some(still) if still > STILL => {
                (StatusCode::SERVICE_UNAVAILABLE, format!("the operator has done nothing for {} s\n", still.as_secs()))
            }
            _ => (StatusCode::OK, "ok\n".to_owned()),
        }
    };
    let readyz = move || async move {
        match ready.phase() {
            Phase::Standby => (StatusCode::OK, "ok: standby\n"),
            Phase::Leading => (StatusCode::OK, "ok: leading\n"),
            Phase::Starting => (StatusCode::SERVICE_UNAVAILABLE, "starting\n"),
            Phase::Syncing => (
                StatusCode::SERVICE_UNAVAILABLE,
                "leading, but the API server has not listed everything yet: is the CRD installed, may the service account list?\n",
            ),
        }
    };
    let page = move || async move { ([(CONTENT_TYPE, "text/plain; version=0.0.4")], metrics.page()) };
    let routes =
        Router::new().route("/healthz", get(healthz)).route("/readyz", get(readyz)).route("/metrics", get(page));
    axum::serve(BoundedListener { listener, open: VecDeque::new() }, routes).await
}

/// Accepts connections, a few at a time.
struct BoundedListener {
    listener: TcpListener,
    /// One for each connection, the oldest first. A connection ends when its sender is dropped.
    open: VecDeque<oneshot::Sender<()>>,
}

impl Listener for BoundedListener {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        // It waits where there are no descriptors left.
        let (stream, address) = Listener::accept(&mut self.listener).await;
        self.open.retain(|connection| !connection.is_closed());
        while self.open.len() >= CONNECTIONS {
            self.open.pop_front();
        }
        let (keep, kept) = oneshot::channel();
        self.open.push_back(keep);
        (Connection { stream, kept, longest: Box::pin(tokio::time::sleep(LONGEST)) }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that ends when its time is over, or when a newer one takes its place.
struct Connection {
    stream: TcpStream,
    kept: oneshot::Receiver<()>,
    longest: Pin<Box<Sleep>>,
}

impl Connection {
    /// Fails if the connection is over. The task of `context` is woken when that happens.
    fn go_on(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let is_over =
            self.longest.as_mut().poll(context).is_ready() || Pin::new(&mut self.kept).poll(context).is_ready();
        if is_over { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.go_on(context)?;
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        self.go_on(context)?;
        Pin::new(&mut self.stream).poll_write(context, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.go_on(context)?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_shutdown(context))?;
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn asked(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    /// Clients that ask and do not read, or connect and do not ask.
    #[tokio::test]
    async fn idle_clients_do_not_block_others() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        serve_apart(listener, Arc::new(Metrics::new())).unwrap();
        let mut silent = Vec::new();
        for number in 0..3 * CONNECTIONS {
            let mut stream = TcpStream::connect(address).await.unwrap();
            if number % 2 == 0 {
                stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
            }
            silent.push(stream);
        }
        assert!(asked(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        assert!(asked(address, "/metrics").await.contains("trainingjob_build_info"));
        // The oldest connections were closed, and the newest still work.
        let mut oldest = silent.remove(1);
        let closed = tokio::time::timeout(Duration::from_secs(10), oldest.read_to_end(&mut Vec::new())).await;
        assert!(closed.is_ok());
        let newest = silent.last_mut().unwrap();
        newest.write_all(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        newest.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    }

    #[tokio::test]
    async fn healthz_is_ok_after_a_recent_beat() {
        let metrics = Arc::new(Metrics::new());
        assert_eq!(metrics.stands_still(), None, "it has not begun");
        metrics.beat();
        assert!(metrics.stands_still().unwrap() < STILL);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, metrics));
        assert!(asked(address, "/healthz").await.starts_with("HTTP/1.1 200"));
    }
}
