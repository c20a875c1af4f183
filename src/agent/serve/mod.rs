//! What the agent tells over HTTP, and what the program may tell it.

mod bounded;
pub mod gpu;
mod metrics;
pub mod teller;
pub mod usage;

use crate::agent::observations::Observations;
use crate::agent::progress::json;
use crate::protocol::progress::Source;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use bounded::Bounded;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use teller::Teller;

/// Bytes of a message of the program's.
const MAX_BODY: usize = 256 * 1024;

/// Where the program may tell its progress: this machine alone can reach it, and who knows the secret.
pub struct Door {
    listener: TcpListener,
    secret: String,
}

impl Door {
    pub fn open(secret: &str) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, secret: secret.to_owned() })
    }

    pub fn url(&self) -> io::Result<String> {
        Ok(format!("http://{}/{}", self.listener.local_addr()?, self.secret))
    }
}

/// Opens `port` on all addresses, of both families where there are both.
pub fn listen(port: u16) -> io::Result<TcpListener> {
    let any = |ip: SocketAddr| TcpListener::bind(ip);
    let listener = any((Ipv6Addr::UNSPECIFIED, port).into()).or_else(|_| any((Ipv4Addr::UNSPECIFIED, port).into()))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Serves both in one thread until this process ends.
pub fn start(
    door: Option<Door>,
    public: Option<(TcpListener, Arc<Teller>)>,
    seen: Arc<Observations>,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("http".to_owned()).spawn(move || {
        runtime.block_on(async {
            if let Some(Door { listener, secret }) = door {
                let routes = Router::new()
                    .route(&format!("/{secret}"), post(progress))
                    .layer(DefaultBodyLimit::max(MAX_BODY))
                    .with_state(seen);
                serve(listener, routes);
            }
            if let Some((listener, teller)) = public {
                let routes = Router::new()
                    .route("/healthz", get(|| async { "ok\n" }))
                    .route("/status", get(status_json))
                    .route("/metrics", get(metrics_text))
                    .with_state(teller);
                serve(listener, routes);
            }
            std::future::pending::<()>().await;
        });
    })?;
    Ok(())
}

fn serve(listener: TcpListener, routes: Router) {
    if let Ok(listener) = tokio::net::TcpListener::from_std(listener) {
        tokio::spawn(async { axum::serve(Bounded::new(listener), routes).await });
    }
}

async fn status_json(State(teller): State<Arc<Teller>>) -> impl IntoResponse {
    let json = serde_json::to_string(&teller.status()).expect("a struct of numbers, strings and maps by name is JSON");
    ([(header::CONTENT_TYPE, "application/json")], json)
}

async fn metrics_text(State(teller): State<Arc<Teller>>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], metrics::render(&teller.status()))
}

/// The Kubeflow Trainer's protocol, whose clients want a 200.
async fn progress(State(seen): State<Arc<Observations>>, body: Bytes) -> (StatusCode, String) {
    match std::str::from_utf8(&body).map_err(|error| error.to_string()).and_then(json::parse) {
        Ok(update) => {
            seen.progress(Source::Post, &update, None);
            (StatusCode::OK, String::new())
        }
        Err(error) => (StatusCode::BAD_REQUEST, format!("the message tells no progress: {error}\n")),
    }
}
