//! How many files a process may have open at once.
//!
//! Containers begin with a soft limit of 1,024 where containerd runs as a service of systemd; programs that use select(2) must
//! not have more. The agent that leads a gang has a connection to each member.

use nix::sys::resource::{Resource::RLIMIT_NOFILE, getrlimit, rlim_t, setrlimit};
use std::sync::OnceLock;

/// What the container was given, soft and hard, if the agent has taken more.
static GIVEN: OnceLock<(rlim_t, rlim_t)> = OnceLock::new();

/// Lets this process have as many as the container's hard limit allows. What it starts gets what the container was given, if it
/// calls [`give_back`].
///
/// # Errors
/// Only where the kernel denies what every process may do.
pub fn raise() -> nix::Result<()> {
    let (soft, hard) = getrlimit(RLIMIT_NOFILE)?;
    let _ = GIVEN.set((soft, hard));
    setrlimit(RLIMIT_NOFILE, hard, hard)
}

/// For a child, between fork and exec: one system call, and nothing is allocated.
///
/// # Errors
/// As [`raise`].
pub fn give_back() -> nix::Result<()> {
    GIVEN.get().map_or(Ok(()), |(soft, hard)| setrlimit(RLIMIT_NOFILE, *soft, *hard))
}
