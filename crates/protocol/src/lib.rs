//! Messages between agents and the operator.
//!
//! A worker's agent leaves a [`report`] in its container's termination message and answers requests with an
//! [`agent_status`]. An agent that fetches [`inputs`] or publishes a [`result`] leaves a report as well. The operator that
//! reads them may be older or newer. Fields are therefore only added, and unknown fields are ignored. The crate also
//! contains the patterns that users write for program output ([`failure_rules`], [`progress_pattern`]). There is no I/O.
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
pub mod code;
mod cut_json;
pub mod failure_rules;
pub mod gang;
pub mod gpu;
pub mod hang;
pub mod inputs;
pub mod metric_history;
pub mod number;
pub mod objective;
pub mod progress;
pub mod progress_pattern;
pub mod proof;
pub mod reason;
pub mod report;
pub mod result;
pub mod role;
pub mod stacks;
pub mod usage;
