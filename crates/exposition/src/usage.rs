//! What processes use, from `/proc`.

use procfs::process::{Process, Stat};
use protocol::usage::Usage;

/// What this process itself uses.
pub fn of_self() -> Usage {
    let of = |stat: Stat| Usage { cpu_seconds: seconds(own_ticks(&stat)), resident_bytes: resident(&stat) };
    stat_of_self().map(of).unwrap_or_default()
}

/// This process in `/proc`.
pub fn stat_of_self() -> Option<Stat> {
    Process::myself().ok()?.stat().ok()
}

/// CPU time of the process itself.
pub fn own_ticks(stat: &Stat) -> u64 {
    stat.utime + stat.stime
}

/// CPU time of ended children that were waited for.
pub fn ticks_of_children(stat: &Stat) -> u64 {
    (stat.cutime + stat.cstime).cast_unsigned()
}

/// CPU time in seconds.
pub fn seconds(ticks: u64) -> f64 {
    ticks as f64 / procfs::ticks_per_second() as f64
}

/// Memory in bytes.
pub fn resident(stat: &Stat) -> u64 {
    stat.rss * procfs::page_size()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_usage_matches_proc_status() {
        let usage = of_self();
        assert!(usage.resident_bytes > 100_000, "{usage:?}");
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let resident = line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024;
        assert!(usage.resident_bytes / 2 < resident && resident < usage.resident_bytes * 2, "{usage:?} {resident}");
    }
}
