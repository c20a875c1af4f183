//! The agent, which runs as PID 1 of every worker's `training` container.
//!
//! Two lifetimes are separate. `container` lives as long as the container: the signals, the one loop that serves them,
//! the server, the termination message. `run` lives as long as one run of the program: its process, its folder with its
//! secret, its report.
//!
//! Other modules have their own threads. `output` forwards and parses the program's output. `channels` are the ways by
//! which a program can report (an address, files, the exceptions of its Python). `serve` answers requests. They meet in
//! the run's `observations`. The formats of their reports to the operator, and the rules by which text becomes
//! evidence, are in [`protocol`].
#![cfg_attr(
    test,
    allow(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss,
        reason = "numbers of tests are small"
    )
)]

mod agent_log;
pub mod attempt;
mod channels;
pub mod checkpoints;
mod code;
pub mod container;
pub mod context;
pub mod environment;
mod failure;
pub mod fetch;
pub mod gang;
pub mod hang;
pub mod inputs;
pub mod install;
mod member;
mod message;
mod observations;
mod open_files;
pub mod output;
pub mod outputs;
mod panics;
mod places;
pub mod ports;
pub mod progress;
pub mod publish;
pub mod remote;
mod run;
pub mod serve;
mod signals;
mod stacks;
mod start;
pub mod variables;
mod wake;
mod writer;

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use std::io;
use std::path::Path;

/// Reads a JSON file of the operator.
fn read_json<T: DeserializeOwned>(file: &Path) -> io::Result<T> {
    serde_json::from_slice(&std::fs::read(file)?).map_err(io::Error::from)
}

/// Now, to the millisecond.
fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now)
}
