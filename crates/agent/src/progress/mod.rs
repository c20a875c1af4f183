//! How far the program has come, from everything that says so.

pub mod history;
pub mod json;
pub mod objective;
pub mod text;
pub mod trainer_state;
