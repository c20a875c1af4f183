//! Operators whose every request goes through the test's hands: ended at each write, driven through every change of every field, and
//! many jobs in a storm of faults.

mod crash;
mod fields;
mod storm;
