//! The state machine, which maps what was observed to the state of a job and the actions to take.
//!
//! It has no I/O and no clock of its own. [`decide`] is a function of its arguments, so that every rule of a job's
//! lifecycle can be tested as such. Each decision passes through these steps:
//!
//! - `record.rs` adds the observations since the status was written.
//! - `view.rs` holds what is known then; nothing changes it.
//! - `phase.rs` lists the phases and finds the present one by the first rule that holds.
//! - `status.rs` turns the phase into state, conditions and records of ends.
//! - `effects.rs` turns it into actions and wake-ups, `events.rs` reports the changes of the status.
#![cfg_attr(
    test,
    allow(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss,
        reason = "numbers of tests are small"
    )
)]

mod checkpoints;
mod conditions;
mod count;
mod decide;
mod decision;
mod effects;
mod elastic;
mod ending;
mod events;
mod fetch;
mod gang;
mod goodput;
mod history;
mod lost;
mod phase;
mod progress;
mod publishing;
mod queue;
mod record;
mod reports;
mod restart_request;
mod spec_change;
mod start;
mod status;
mod upkeep;
mod view;
mod waiting;

pub use conditions::{condition, condition_is, set_condition, whole_second};
pub use decide::{decide, misses_job, misses_pods};
pub use decision::{Action, Decision, Event, GangState, Input};
pub use failure::first_cause;
pub use goodput::goodput;
pub use history::restart_history;
pub use publishing::publishes;
pub use view::incarnation;

#[cfg(test)]
mod tests;
