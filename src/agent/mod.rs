//! The supervisor that runs as PID 1 of every worker's `training` container.
//!
//! [`supervise`] starts the command, forwards signals, ends every process that the command leaves behind and keeps
//! the termination message. What it decides with is pure and lives apart from the I/O: `expand` (variables), `tail`
//! (the last lines of stderr), [`report`] (the message, which the operator reads with the same type), `cause` (the
//! line that tells why) and the parsers of `process` and `cgroup`.

pub(crate) mod cause;
mod cgroup;
mod expand;
pub mod install;
mod launch;
mod message;
mod process;
mod pump;
pub mod report;
pub mod supervise;
mod tail;
