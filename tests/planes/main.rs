//! Tests that each need a control plane of their own kind: with gang scheduling, with several operators, with
//! Prometheus, with Kueue.
//!
//! They wait most of the time, so they should run side by side. Four threads start all planes at once: tests start in
//! the order of their names, and the many tests of `queue` come last.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test panics where anything is not as expected")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::needless_pass_by_value,
    clippy::too_many_lines,
    reason = "numbers of tests are small, their tables are long"
)]

mod gang_scheduling;
mod leader;
mod monitoring;
mod queue;
