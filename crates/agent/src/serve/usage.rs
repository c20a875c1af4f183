//! What processes use, from `/proc`.

use crate::run::descendants::descendants_of_self;
use exposition::usage::{own_ticks, resident, seconds, stat_of_self, ticks_of_children};
use protocol::usage::Usage;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Measures the program: all that descends from this process, and has.
#[derive(Debug, Default)]
pub struct Meter {
    /// Of a process whose parent doesn't wait for it the time is lost; a counter must not fall.
    highest: AtomicU64,
}

impl Meter {
    /// What all processes of the program use together now, and have used.
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
