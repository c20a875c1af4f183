//! Resource usage of processes, from `/proc`.

use crate::run::descendants::descendants_of_self;
use exposition::usage::{own_ticks, resident, seconds, stat_of_self, ticks_of_children};
use protocol::usage::Usage;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Measures the program: all present and former descendants of this process.
#[derive(Debug, Default)]
pub struct Meter {
    /// Highest CPU time so far. The time of a process is lost if its parent does not wait for it, but a counter must
    /// not fall.
    highest: AtomicU64,
}

impl Meter {
    /// The present and past usage of all processes of the program together.
    pub fn program(&self) -> Usage {
        let mut ticks = stat_of_self().as_ref().map_or(0, ticks_of_children);
        let mut resident_bytes = 0;
        for stat in descendants_of_self() {
            ticks += own_ticks(&stat) + ticks_of_children(&stat);
            resident_bytes += resident(&stat);
        }
        let ticks = self.highest.fetch_max(ticks, SeqCst).max(ticks);
        Usage { cpu_seconds: seconds(ticks), resident_bytes }
    }
}
