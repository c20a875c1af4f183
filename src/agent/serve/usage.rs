//! What processes use, from `/proc`.

use crate::agent::run::descendants;
use crate::protocol::usage::Usage;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Ticks a second in `/proc/PID/stat`: fixed in Linux' interface to programs.
const TICKS: f64 = 100.0;

/// Measures the program: all that descends from this process, and has.
#[derive(Debug, Default)]
pub struct Meter {
    /// Of a process whose parent doesn't wait for it the time is lost; a counter must not fall.
    highest: AtomicU64,
}

impl Meter {
    pub fn program(&self) -> Usage {
        let mut ticks = ticks("self").map_or(0, |ticks| ticks.of_children);
        let mut resident_bytes = 0;
        for pid in descendants::descendants_of_self() {
            let pid = pid.to_string();
            ticks += self::ticks(&pid).map_or(0, |ticks| ticks.own + ticks.of_children);
            resident_bytes += resident(&pid);
        }
        let ticks = self.highest.fetch_max(ticks, SeqCst).max(ticks);
        Usage { cpu_seconds: seconds(ticks), resident_bytes }
    }
}

/// What this process itself uses.
pub fn of_agent() -> Usage {
    Usage { cpu_seconds: seconds(ticks("self").map_or(0, |ticks| ticks.own)), resident_bytes: resident("self") }
}

fn seconds(ticks: u64) -> f64 {
    ticks as f64 / TICKS
}

struct Ticks {
    own: u64,
    /// Of ended children that were waited for.
    of_children: u64,
}

fn ticks(pid: &str) -> Option<Ticks> {
    parse_ticks(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)
}

fn parse_ticks(stat: &[u8]) -> Option<Ticks> {
    // Counted from the state, which follows the name: utime, stime, cutime, cstime.
    let fields: Vec<u64> = descendants::fields(stat)?.skip(11).take(4).map_while(|field| field.parse().ok()).collect();
    let &[user, system, of_children_user, of_children_system] = fields.as_slice() else { return None };
    Some(Ticks { own: user + system, of_children: of_children_user + of_children_system })
}

fn resident(pid: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    parse_resident(&status).unwrap_or(0)
}

fn parse_resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_proc_says() {
        let stat = b"42 (a) b) S 1 42 42 0 -1 4194560 100 200 3 4 150 50 7 3 20 0 1 0 100 1000000 250 1 1 1";
        let ticks = parse_ticks(stat).unwrap();
        assert_eq!((ticks.own, ticks.of_children), (200, 10));
        assert_eq!(parse_resident("Name:\tx\nVmRSS:\t    1234 kB\nThreads:\t1\n"), Some(1234 * 1024));
        assert!(parse_ticks(b"42 (a) S 1").is_none() && parse_resident("Name:\tkthreadd\n").is_none());
    }

    #[test]
    fn this_process() {
        let usage = of_agent();
        assert!(usage.resident_bytes > 100_000, "{usage:?}");
        assert!(Meter::default().program().cpu_seconds >= 0.0);
    }
}
