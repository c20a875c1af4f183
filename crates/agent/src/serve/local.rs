//! Requests that only the user of this container may make, over a socket in the agent's state folder.
//!
//! Stacks reveal how a program is made, and reading them takes processor time from it. A copy of the checkpoints loads
//! the volume and the network. So no port serves them.

use crate::checkpoints::{CheckpointManager, CopyStatus};
use crate::stacks;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use protocol::stacks::SOCKET;
use std::fs::{Permissions, remove_file, set_permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// How long stacks are reused, because each reading takes processor time from the program.
const STACKS_SERVE: Duration = Duration::from_secs(1);
/// How long an answer may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// Serves in the folder `state`.
///
/// # Errors
/// Where the socket can't be made there.
pub fn serve(runtime: &Handle, state: &Path, manager: Option<Arc<CheckpointManager>>) -> io::Result<()> {
    let path = state.join(SOCKET);
    // The socket of an agent that was killed.
    match remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    set_permissions(&path, Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    runtime.spawn(async {
        if let Ok(listener) = tokio::net::UnixListener::from_std(listener) {
            let _ = axum::serve(listener, of_stacks().merge(of_copies(manager))).await;
        }
    });
    Ok(())
}

/// Asks the agent that serves there for the stacks, as JSON.
///
/// # Errors
/// Where no agent serves, or it does not answer.
pub fn ask(state: &Path) -> io::Result<String> {
    request(state, "GET", "/stacks")
}

/// Has the agent that serves there copy its checkpoints now.
///
/// # Errors
/// As [`ask`]; `NotFound` where no agent serves.
pub fn hurry_copies(state: &Path) -> io::Result<()> {
    request(state, "POST", "/copies").map(drop)
}

/// Asks the agent that serves there for the status of its copies, by store.
///
/// # Errors
/// As [`ask`].
pub fn copy_statuses(state: &Path) -> io::Result<Vec<CopyStatus>> {
    Ok(serde_json::from_str(&request(state, "GET", "/copies")?)?)
}

fn request(state: &Path, method: &str, what: &str) -> io::Result<String> {
    let path = state.join(SOCKET);
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("can't ask the agent at {}: {error}", path.display()));
    let read = || {
        let mut stream = UnixStream::connect(&path)?;
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        // 1.0: the answer ends with the connection.
        let length = if method == "POST" { "Content-Length: 0\r\n" } else { "" };
        write!(stream, "{method} {what} HTTP/1.0\r\nHost: agent\r\n{length}\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = read().map_err(named)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    if head.split(' ').nth(1).is_some_and(|code| code.starts_with('2')) {
        return Ok(body.to_owned());
    }
    Err(named(io::Error::other(head.lines().next().unwrap_or("it says nothing").to_owned())))
}

/// The copies of the checkpoints; none without a checkpoint manager.
fn of_copies(manager: Option<Arc<CheckpointManager>>) -> Router {
    #[expect(clippy::expect_used, reason = "plain data of ours, which always has this form")]
    async fn statuses(State(manager): State<Arc<CheckpointManager>>) -> impl IntoResponse {
        let json = serde_json::to_vec(&manager.copy_statuses()).expect("a struct of numbers and strings is JSON");
        ([(header::CONTENT_TYPE, "application/json")], json)
    }
    async fn copy_now(State(manager): State<Arc<CheckpointManager>>) -> StatusCode {
        manager.hurry_copies();
        StatusCode::ACCEPTED
    }
    manager
        .map(|manager| Router::new().route("/copies", get(statuses).post(copy_now)).with_state(manager))
        .unwrap_or_default()
}

/// Serves the stacks of the processes. Only one reading runs at a time, and requests meanwhile get its result.
fn of_stacks() -> Router {
    type Last = tokio::sync::Mutex<Option<(Instant, Bytes)>>;
    #[expect(clippy::expect_used, reason = "plain data of ours, which always has this form")]
    async fn stacks(State(last): State<Arc<Last>>) -> impl IntoResponse {
        let mut last = last.lock().await;
        if last.as_ref().is_none_or(|(at, _)| at.elapsed() >= STACKS_SERVE) {
            let look = || serde_json::to_vec(&stacks::take()).expect("a struct of numbers and strings is JSON");
            let Ok(json) = tokio::task::spawn_blocking(look).await else {
                return (StatusCode::INTERNAL_SERVER_ERROR, [(header::CONTENT_TYPE, "text/plain")], Bytes::new());
            };
            *last = Some((Instant::now(), json.into()));
        }
        let json = last.as_ref().map(|(_, json)| json.clone()).unwrap_or_default();
        (StatusCode::OK, [(header::CONTENT_TYPE, "application/json")], json)
    }
    Router::new().route("/stacks", get(stacks)).with_state(Arc::<Last>::default())
}
