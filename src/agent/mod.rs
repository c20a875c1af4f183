//! The supervisor that runs as PID 1 of every worker's `training` container.
//!
//! [`supervise`] starts the command, forwards signals, ends every process that the command leaves behind and keeps
//! the termination message. Beside it, in threads of their own: `pump` passes the output on, `reader` looks through
//! what of it waits in `queue`, `listen` opens the ways by which a program can tell something (an address, files, the
//! exceptions of its Python), and `serve` answers those who ask. They meet in `seen`.
//!
//! What is decided with is pure and lives apart from the I/O: [`progress`] (how far it has come), [`signs`] and
//! [`exception`] (evidence), `expand` (variables), `lines` and `tail` (text), [`report`] (the message, which the operator
//! reads with the same type), `cause` (the line that tells why) and the parsers of `process` and `cgroup`.

pub(crate) mod cause;
mod cgroup;
mod checkpoint;
pub mod exception;
mod expand;
mod folder;
mod follow;
pub mod gpu;
pub mod install;
mod launch;
mod lines;
mod listen;
mod message;
mod process;
pub mod progress;
mod pump;
mod queue;
mod reader;
pub mod report;
mod seen;
pub mod serve;
pub mod signs;
pub mod supervise;
mod tail;
pub mod usage;
mod wake;

use jiff::Timestamp;

/// Now, to the millisecond.
fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now)
}
