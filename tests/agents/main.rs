//! Agents as plain processes: one alone, gangs of them, and the programs that they start.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test panics where anything is not as expected")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::needless_pass_by_value,
    clippy::too_many_lines,
    reason = "numbers of tests are small, their tables are long"
)]

mod agent;
mod checkpoints;
mod failing;
mod gang;
mod mpi;
mod pods;
mod trackers;
mod workload;
