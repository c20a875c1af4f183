//! The state machine: what a job is, and what is to be done about it, as a function of what was seen.
//!
//! No I/O and no clock of its own: [`decide`] is a function of its arguments, so that every rule of the life of a job
//! is tested as such. One rule of the life of a job is one file; [`decide`] tells where a job is ([`stage`](stage)) and goes
//! through the rule of that.
#![cfg_attr(
    test,
    allow(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss,
        reason = "numbers of tests are small"
    )
)]

mod agents;
mod asked;
mod checkpoints;
mod conditions;
mod count;
mod deadline;
mod decide;
mod elastic;
mod end;
mod evidence;
mod fail;
mod gang;
mod goodput;
mod lost;
mod progress;
mod queue;
mod run;
mod stage;
mod start;
mod step;
mod success;
mod suspend;
mod upkeep;
mod verdict;
mod waiting;

pub use conditions::{condition, condition_is, set_condition, whole_second};
pub use decide::{decide, misses_job};
pub use failure::first_cause;
pub use goodput::goodput;
pub use step::incarnation;
pub use verdict::{Action, Event, Input, News, Verdict};

#[cfg(test)]
mod tests;
