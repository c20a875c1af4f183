//! What an agent tells the operator, and what the operator tells it.
//!
//! A worker's agent leaves a [`report`] in its container's termination message and answers questions with an
//! [`agent_status`]. Both are read by an operator that may be older or newer: fields are only ever added, unknown ones are
//! ignored. Beside these types stand the rules that people write for what programs print ([`failure_rules`],
//! [`progress_pattern`]). All of it is pure.
#![cfg_attr(
    test,
    allow(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss,
        reason = "numbers of tests are small"
    )
)]

pub mod agent_status;
pub mod attempt;
pub mod checkpoints;
mod cut_json;
pub mod failure_rules;
pub mod gang;
pub mod gpu;
pub mod hang;
pub mod metric_history;
pub mod number;
pub mod progress;
pub mod progress_pattern;
pub mod proof;
pub mod reason;
pub mod report;
pub mod role;
pub mod stacks;
pub mod usage;
