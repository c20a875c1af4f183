//! The limit of open files of a process.
//!
//! Containers begin with a soft limit of 1,024 if containerd runs as a systemd service. Programs that use select(2)
//! must not have more. The agent that leads a gang has a connection to each member.

use nix::sys::resource::{Resource::RLIMIT_NOFILE, getrlimit, rlim_t, setrlimit};
use std::sync::OnceLock;

/// The container's original limits, soft and hard, if the agent has raised its own.
static GIVEN: OnceLock<(rlim_t, rlim_t)> = OnceLock::new();

/// Raises this process's limit to the container's hard limit. A child that calls [`give_back`] gets the original
/// limits.
///
/// # Errors
/// Only where the kernel denies what every process may do.
pub fn raise() -> nix::Result<()> {
    let (soft, hard) = getrlimit(RLIMIT_NOFILE)?;
    let _ = GIVEN.set((soft, hard));
    setrlimit(RLIMIT_NOFILE, hard, hard)
}

/// Restores the original limits in a child, between fork and exec. It makes one system call and allocates nothing.
///
/// # Errors
/// As [`raise`].
pub fn give_back() -> nix::Result<()> {
    GIVEN.get().map_or(Ok(()), |(soft, hard)| setrlimit(RLIMIT_NOFILE, *soft, *hard))
}
