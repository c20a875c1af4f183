//! The agent's HTTP servers: status and metrics for clients, and progress reports from the program.

mod bounded;
pub mod gpu;
pub mod local;
mod metrics;
pub mod ports;
pub mod status;
pub mod usage;

use crate::checkpoints::{CheckpointManager, choice};
use crate::progress::json;
use crate::run::view::CurrentRun;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use bounded::Bounded;
use ports::{listen, listen_locally};
use protocol::agent_status::AgentStatus;
use protocol::progress::Source;
use protocol::proof::{AnswerKey, Nonce, PROOF_HEADER};
use status::StatusSource;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use tokio::runtime::Handle;

/// Highest number of bytes in a message of the program.
const MAX_BODY: usize = 256 * 1024;

/// Serves for as long as the container lives, whichever run is the current one.
pub struct Server {
    /// The runtime, for other work beside the serving.
    pub runtime: Handle,
    /// The URL where the program may post, reachable only from this machine. The secret of the run has to be appended.
    pub local_url: Option<String>,
}

impl Server {
    /// Serves `source` on `public` to clients from outside, and another port to the program, in one thread.
    ///
    /// # Errors
    /// Where the kernel denies a thread, or what it takes to wait for several things.
    pub fn start(
        public: Option<TcpListener>,
        source: StatusSource,
        run: &Arc<CurrentRun>,
        manager: Option<&Arc<CheckpointManager>>,
    ) -> io::Result<Self> {
        // Without a port for metrics, the other workers still have to ask which checkpoints are put into the store.
        let port = manager.filter(|_| public.is_none()).and_then(|manager| manager.port());
        let only_gang = port.and_then(|port| listen(port).ok());
        let manager = manager.cloned();
        let local = listen_locally().ok();
        let local_url =
            local.as_ref().and_then(|listener| listener.local_addr().ok()).map(|address| format!("http://{address}"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let run = Arc::clone(run);
        std::thread::Builder::new().name("http".to_owned()).spawn(move || {
            runtime.block_on(async {
                if let Some(listener) = local {
                    let routes = Router::new()
                        .route("/{secret}", post(progress))
                        .layer(DefaultBodyLimit::max(MAX_BODY))
                        .with_state(run);
                    serve(listener, routes);
                }
                if let (Some(listener), Some(manager)) = (only_gang, manager.clone()) {
                    serve(listener, of_gang(manager));
                }
                if let Some(listener) = public {
                    let gang = manager.map(of_gang);
                    let routes = Router::new()
                        .route("/healthz", get(|| async { "ok\n" }))
                        .route("/status", get(status_json))
                        .route("/metrics", get(metrics_text))
                        .with_state(Arc::new(source));
                    serve(listener, gang.unwrap_or_default().merge(routes));
                }
                std::future::pending::<()>().await;
            });
        })?;
        Ok(Self { runtime: handle, local_url })
    }
}

fn serve(listener: TcpListener, routes: Router) {
    if let Ok(listener) = tokio::net::TcpListener::from_std(listener) {
        tokio::spawn(async { axum::serve(Bounded::new(listener), routes).await });
    }
}

#[expect(clippy::expect_used, reason = "plain data of ours, which always has this form")]
async fn status_json(State(source): State<Arc<StatusSource>>, RawQuery(query): RawQuery) -> impl IntoResponse {
    if source.awaits_gang() {
        let words = "the gang's state is not known yet: ask again\n".to_owned();
        return (StatusCode::SERVICE_UNAVAILABLE, [(header::CONTENT_TYPE, "text/plain")], None, words);
    }
    let json = serde_json::to_string(&source.status()).expect("a struct of numbers, strings and maps by name is JSON");
    let proof = proof(query.as_deref(), source.answer_key(), &json);
    (StatusCode::OK, [(header::CONTENT_TYPE, "application/json")], proof, json)
}

/// The header that proves an answer to a request with a nonce. Requests of users have no nonce.
fn proof(query: Option<&str>, key: Option<&AnswerKey>, body: &str) -> Option<[(&'static str, String); 1]> {
    let nonce = query.and_then(Nonce::in_query);
    nonce.zip(key).map(|(nonce, key)| [(PROOF_HEADER, key.prove(nonce, body.as_bytes()))])
}

/// Serves the status of an agent that moves data, in the runtime of the caller.
pub(crate) fn serve_transfer(
    listener: TcpListener,
    status: impl Fn() -> AgentStatus + Send + Sync + 'static,
    key: Option<AnswerKey>,
) {
    let status = Arc::new(status);
    let answer = async move |RawQuery(query): RawQuery| {
        let json = serde_json::to_string(&status()).unwrap_or_default();
        let proof = proof(query.as_deref(), key.as_ref(), &json);
        ([(header::CONTENT_TYPE, "application/json")], proof, json)
    };
    serve(listener, Router::new().route("/status", get(answer)));
}

/// Serves the requests of the other workers, which believe only answers that are proven to be for them.
fn of_gang(manager: Arc<CheckpointManager>) -> Router {
    let rounds = |State(manager): State<Arc<CheckpointManager>>, headers: HeaderMap| async move {
        let nonce = headers.get(choice::NONCE).map(HeaderValue::as_bytes).filter(|nonce| choice::is_nonce(nonce));
        match nonce.and_then(|nonce| manager.proven_rounds(nonce)) {
            Some(answer) => (StatusCode::OK, answer),
            None => (StatusCode::BAD_REQUEST, b"only workers of the gang are answered\n".to_vec()),
        }
    };
    Router::new().route(choice::ROUNDS, get(rounds)).with_state(manager)
}

async fn metrics_text(State(source): State<Arc<StatusSource>>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], metrics::render(&source.status()))
}

/// The Kubeflow Trainer's protocol, whose clients want a 200. The secret of the current run is required, so that a
/// process that has outlived its run can't report progress.
async fn progress(State(run): State<Arc<CurrentRun>>, Path(secret): Path<String>, body: Bytes) -> (StatusCode, String) {
    let Some(run) = run.with_secret(&secret) else { return (StatusCode::NOT_FOUND, String::new()) };
    match std::str::from_utf8(&body).map_err(|error| error.to_string()).and_then(json::parse) {
        Ok(update) => {
            run.observations.progress(Source::Post, &update, None);
            (StatusCode::OK, String::new())
        }
        Err(error) => (StatusCode::BAD_REQUEST, format!("the message tells no progress: {error}\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpu::Gpus;
    use parking_lot::Mutex;
    use protocol::gang::GangStatus;

    /// An answer without the gang's state would mean "no gang" to the operator while the leader starts.
    #[tokio::test]
    async fn leader_status_is_unavailable_before_the_gang_status() {
        let gang = Arc::new(Mutex::new(None));
        let ask = async |in_gang| {
            let source =
                StatusSource::new(None, Arc::default(), None, None, Arc::clone(&gang), in_gang, Gpus::default());
            status_json(State(Arc::new(source)), RawQuery(None)).await.into_response().status()
        };
        assert_eq!((ask(true).await, ask(false).await), (StatusCode::SERVICE_UNAVAILABLE, StatusCode::OK));
        *gang.lock() = Some(GangStatus::default());
        assert_eq!(ask(true).await, StatusCode::OK);
    }
}
