//! The program's progress, from all sources.

pub mod history;
pub mod json;
pub mod objective;
pub mod text;
pub mod trainer_state;
