//! Evidence of a failure that the agent gathers beside the program's output.

pub mod exceptions;
pub mod oom;
