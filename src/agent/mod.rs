//! The supervisor that runs as PID 1 of every worker's `training` container.
//!
//! [`supervise`] starts the command, forwards signals, ends every process that the command leaves behind and keeps
//! the termination message. Beside it, in threads of their own: `output` passes on what the program prints and looks
//! through it, `channels` opens the ways by which a program can tell something (an address, files, the exceptions of its
//! Python), and `serve` answers those who ask. They meet in `observations`. What they tell the operator, and the rules by
//! which text becomes evidence, are in [`crate::protocol`].

mod channels;
mod failure;
pub mod install;
mod message;
mod observations;
mod output;
mod progress;
mod run;
pub mod serve;
pub mod supervise;
mod wake;

use jiff::Timestamp;

/// Now, to the millisecond.
fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now)
}
