//! The operator: watches TrainingJobs and runs each as a gang of workers.
//!
//! A job flows through [`api`], [`plan`], [`objects`], [`controller`] (what is missing is made), [`observe`], [`lifecycle`] and
//! [`controller`] again (the status is written). `ARCHITECTURE.md` has all crates and what may depend on what.
// Each pass has its own, which is moved when it starts.
#![cfg_attr(not(test), warn(clippy::large_futures))]
#![cfg_attr(
    test,
    allow(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss,
        reason = "numbers of tests are small"
    )
)]

pub mod controller;
pub mod telemetry;
