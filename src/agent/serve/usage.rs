//! What processes use, from `/proc`.

use crate::agent::run::descendants::descendants_of_self;
use crate::protocol::usage::Usage;
use procfs::process::{Process, Stat};
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

/// What this process itself uses.
pub fn of_agent() -> Usage {
    let of = |stat: Stat| Usage { cpu_seconds: seconds(own_ticks(&stat)), resident_bytes: resident(&stat) };
    stat_of_self().map(of).unwrap_or_default()
}

fn stat_of_self() -> Option<Stat> {
    Process::myself().ok()?.stat().ok()
}

fn own_ticks(stat: &Stat) -> u64 {
    stat.utime + stat.stime
}

/// Of ended children that were waited for.
fn ticks_of_children(stat: &Stat) -> u64 {
    (stat.cutime + stat.cstime).cast_unsigned()
}

fn seconds(ticks: u64) -> f64 {
    ticks as f64 / procfs::ticks_per_second() as f64
}

fn resident(stat: &Stat) -> u64 {
    stat.rss * procfs::page_size()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process() {
        let usage = of_agent();
        assert!(usage.resident_bytes > 100_000, "{usage:?}");
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let resident = line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024;
        assert!(usage.resident_bytes / 2 < resident && resident < usage.resident_bytes * 2, "{usage:?} {resident}");
        assert!(Meter::default().program().cpu_seconds >= 0.0);
    }
}
