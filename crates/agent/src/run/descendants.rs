//! The processes below the agent: finding, ending and reaping them.

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpid};
use parking_lot::Mutex;
use procfs::process::Stat;
use std::collections::HashMap;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// Sends `signal` to every process that descends from this one, in any session or group.
///
/// A process started by `kubectl exec` is not a descendant and is spared. A process that is forked meanwhile may be
/// missed. A caller that wants none left repeats this until [`reap`] reports so.
pub fn signal_descendants(signal: Signal) {
    for process in descendants_of_self() {
        // A process that is gone needs no signal. One of another user will show as a child that stays.
        let _ = kill(Pid::from_raw(process.pid), signal);
    }
}

/// Continues every process that a signal has stopped, so that it handles the signals sent meanwhile.
pub fn continue_stopped() {
    for process in descendants_of_self().iter().filter(|process| process.state == 'T') {
        let _ = kill(Pid::from_raw(process.pid), Signal::SIGCONT);
    }
}

/// The agent's own process that queries the GPUs, as PID and start time.
static HELPER: Mutex<Option<(i32, u64)>> = Mutex::new(None);

/// Marks a process that the agent has just started as its own, not the program's. The agent does not wait for it.
pub fn mark_as_helper(pid: u32) {
    let pid = pid.cast_signed();
    // A helper that has ended by now is reaped, and its PID may soon belong to another process.
    let started = procfs::process::Process::new(pid).and_then(|process| process.stat()).map(|stat| stat.starttime);
    *HELPER.lock() = started.ok().map(|started| (pid, started));
}

/// Whether a helper of the agent is among these processes.
pub fn has_helper(processes: &[Stat]) -> bool {
    helper_among(processes).is_some()
}

fn helper_among(processes: &[Stat]) -> Option<i32> {
    let (pid, started) = (*HELPER.lock())?;
    processes.iter().any(|process| (process.pid, process.starttime) == (pid, started)).then_some(pid)
}

/// The `processes` that are no helper of the agent and do not descend from one.
pub fn of_program(processes: Vec<Stat>) -> Vec<Stat> {
    let Some(helper) = helper_among(&processes) else { return processes };
    let parents: Vec<(i32, i32)> = processes.iter().map(|process| (process.pid, process.ppid)).collect();
    let helpers = descendants(helper, &parents);
    processes.into_iter().filter(|process| process.pid != helper && !helpers.contains(&process.pid)).collect()
}

/// Whether `root`, or a descendant of it, has failed and its parent has not noticed that yet. A process whose exit
/// status the kernel hides from this process does not count.
pub fn has_unnoticed_failure(root: Pid) -> bool {
    let own = || procfs::process::Process::new(root.as_raw()).and_then(|process| process.stat()).ok();
    descendants_of(root).into_iter().chain(own()).any(|process| process.state == 'Z' && process.exit_code > Some(0))
}

/// Sends the signal of this number, which may be a real-time one, to one process. That fails only if it has just ended.
pub fn send(pid: Pid, signal: i32) {
    // SAFETY: it takes two numbers. nix's own names no real-time signals.
    unsafe { libc::kill(pid.as_raw(), signal) };
}

/// The result of [`reap`].
pub enum Reaped {
    Process(Pid, ExitStatus),
    /// Children are alive, and none has ended.
    NoneEnded,
    /// No child is left. A child subreaper without children has no descendant at all.
    NoneLeft,
}

/// Reaps one ended child, if there is one.
pub fn reap() -> Reaped {
    let mut status = 0;
    // SAFETY: waitpid writes one int, which outlives the call. nix's own waitpid refuses the statuses of processes
    // that real-time signals ended, after it has reaped them.
    match unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) } {
        0 => Reaped::NoneEnded,
        pid if pid > 0 => Reaped::Process(Pid::from_raw(pid), ExitStatus::from_raw(status)),
        _ if Errno::last() == Errno::EINTR => Reaped::NoneEnded,
        _ => Reaped::NoneLeft,
    }
}

/// Every process that descends from this one, parents before their children.
pub fn descendants_of_self() -> Vec<Stat> {
    descendants_of(getpid())
}

/// Every process that descends from another, parents before their children.
pub fn descendants_of(root: Pid) -> Vec<Stat> {
    let Ok(processes) = procfs::process::all_processes() else { return Vec::new() };
    // A process that has ended meanwhile can't be read, and does not count any more.
    let mut stats: HashMap<i32, Stat> =
        processes.filter_map(|process| process.ok()?.stat().ok()).map(|stat| (stat.pid, stat)).collect();
    let parents: Vec<(i32, i32)> = stats.values().map(|stat| (stat.pid, stat.ppid)).collect();
    descendants(root.as_raw(), &parents).into_iter().filter_map(|pid| stats.remove(&pid)).collect()
}

/// The `processes`, as PID and parent's PID, that descend from `root`, parents before their children.
fn descendants(root: i32, processes: &[(i32, i32)]) -> Vec<i32> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for &(pid, parent) in processes.iter().filter(|(pid, _)| *pid != root) {
        children.entry(parent).or_default().push(pid);
    }
    let mut found = children.remove(&root).unwrap_or_default();
    let mut next = 0;
    while next < found.len() {
        found.extend(children.remove(&found[next]).unwrap_or_default());
        next += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_descendants_are_listed() {
        let processes = [(1, 0), (10, 1), (11, 10), (12, 11), (13, 1), (20, 0), (21, 20), (2, 0)];
        assert_eq!(descendants(1, &processes), [10, 13, 11, 12]);
        assert_eq!(descendants(11, &processes), [12]);
        assert!(descendants(12, &processes).is_empty());
        assert_eq!(descendants(5, &[(5, 6), (6, 5)]), [6], "a torn view neither loops nor names the root");
    }
}
