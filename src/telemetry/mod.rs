//! What can be seen of the operator: logs, metrics, health.

mod backlog;
mod jobs;
mod log;
mod metrics;
mod requests;
mod searches;
mod server;

pub use log::{LogFormat, init as init_log};
pub use metrics::{Metrics, Phase};
pub(crate) use requests::is_watch;
pub use requests::{CountingClient, count_requests};
pub use server::{serve, serve_apart};
