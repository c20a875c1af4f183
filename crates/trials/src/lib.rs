//! The state machine of a TuningJob: its trials, their outcomes, and the next actions.
//!
//! No I/O and no clock: [`decide`] is a function of the TuningJob, of the observed trials, and of the time.
//!
//! - `study.rs` checks the declarations and turns them into what the crate `search` takes.
//! - `trial.rs` makes the TrainingJob of a trial, and reads what one has become.
//! - `decide.rs` records the ends of trials in their order, suggests further ones, and finds the state.
//!
//! The whole state of a search is the status. A trial is recorded there before its TrainingJob is created, and a recorded trial
//! never changes its values. Each suggestion knows exactly the ends that `after` counts, so that the same record gives the
//! same suggestions again.
#![cfg_attr(
    test,
    allow(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss,
        reason = "numbers of tests are small"
    )
)]

mod decide;
mod short;
mod study;
mod trial;

pub use decide::{Decision, Input, ObservedTrial, decide};
pub use short::{own_search, status_of_search};
pub use study::{Study, earlier};
pub use trial::{TRIAL, TUNING_JOB, Wish, best_job, first_trial, trial_job, trial_name, wish};

#[cfg(test)]
mod tests;
