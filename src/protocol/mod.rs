//! What an agent tells the operator, and how both of them read what a program says.
//!
//! A worker's agent leaves a [`report`] in its container's termination message and answers questions with an
//! [`agent_status`]. Both are read by an operator that may be older or newer: fields are only ever added, unknown ones are
//! ignored. Beside these types stand the rules by which text becomes evidence ([`error_pattern`], [`exception`],
//! [`origin`], [`stderr`]) and progress ([`progress`], [`progress_pattern`], [`metric_history`]). All of it is pure.

pub mod agent_status;
pub mod checkpoints;
mod cut_json;
pub mod error_pattern;
pub mod exception;
pub mod failure_rules;
pub mod gang;
pub mod gpu;
pub mod hang;
pub mod metric_history;
pub mod mpi;
pub mod number;
pub mod origin;
pub mod progress;
pub mod progress_pattern;
pub mod report;
pub mod role;
pub mod stacks;
pub mod stderr;
pub mod text;
mod traceback;
pub mod usage;
