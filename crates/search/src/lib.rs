//! Search for hyperparameters: which values the next trial has, and which trials are stopped early.
//!
//! [`suggest`] and [`asha`] are pure functions. The same space, settings, seed and history give the same result in every
//! process and on every machine: random numbers are ChaCha8 and transcendental functions are `libm`'s.
//!
//! With parallel trials, the order of their ends decides what is known when the next one is suggested.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts of trials and of values, which are checked where they are read"
)]

pub mod asha;
pub mod history;
pub mod importance;
pub mod space;
pub mod value;

mod axis;
mod draw;
mod evidence;
mod failures;
mod gp;
mod grid;
mod minimize;
mod normal;
mod suggest;
mod tpe;

#[cfg(test)]
mod tests;

pub use history::{Goal, History, Outcome, Trial};
pub use importance::importance;
pub use space::{Condition, Parameter, ParameterType, Problem, Scale, Space};
pub use suggest::{Algorithm, Method, Settings, grid_size, suggest};
pub use value::{Parameters, Value};
