//! The state machine: what a job is, and what is to be done about it, as a function of what was seen.
//!
//! No I/O and no clock of its own: [`decide`] is a function of its arguments, so that every rule of the life of a job
//! is tested as such. Of the spec it reads only what may change while the job runs, and the failure policy.

mod conditions;
mod decide;
mod progress;
mod told;
mod waiting;

pub use crate::cause::{Cause, first_cause};
pub use conditions::{condition, condition_is, set_condition, whole_second};
pub use decide::{Action, Event, Input, Look, Verdict, decide, misses_job};

#[cfg(test)]
mod tests;
