//! Operators whose every request goes through the test's hands: ended at each write, driven through every change of every field, and
//! many jobs in a storm of faults.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test panics where anything is not as expected")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::needless_pass_by_value,
    clippy::too_many_lines,
    reason = "numbers of tests are small, their tables are long"
)]

mod crash;
mod fields;
mod storm;
