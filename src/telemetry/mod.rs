//! What can be seen of the operator: logs, metrics, health.

mod log;
mod metrics;
mod server;

pub use log::{LogFormat, init as init_log};
pub use metrics::{Metrics, Phase};
pub use server::serve;
