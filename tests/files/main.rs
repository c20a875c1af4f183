//! Tests that need no cluster and mostly compute: checkpoints, object stores, and the files of `deploy/`, `charts/` and
//! `docs/`.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test panics where anything is not as expected")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::needless_pass_by_value,
    clippy::too_many_lines,
    reason = "numbers of tests are small, their tables are long"
)]

mod chart;
mod checkpoints;
mod checkpoints_jax_tf;
mod crates;
mod deploy;
mod docs;
mod gitops;
mod store;
