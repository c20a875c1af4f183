//! One control plane for all of these tests: what becomes of a TrainingJob whatever users and other controllers do to
//! its objects, and what `kubectl trainingjob` shows of it.
//!
//! etcd, API server, controller manager and scheduler are real, the kubelets simulated. The operator runs in this
//! process, with the rights of `deploy/namespaced`.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test panics where anything is not as expected")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::needless_pass_by_value,
    clippy::too_many_lines,
    reason = "numbers of tests are small, their tables are long"
)]

mod children;
mod cli;
mod compact;
mod delivery;
mod gang;
mod group;
mod life;
mod reports;
mod roles;
mod runtimes;
mod strangers;
mod takeover;
mod tensorboard;
mod waiting;
mod world;
