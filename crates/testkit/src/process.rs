//! Processes of this machine, including those in containers, and signals that reach no process other than the intended
//! one.

pub use rustix::process::Signal;
use rustix::process::{Pid, PidfdFlags, kill_process, pidfd_open, pidfd_send_signal};
use std::collections::BTreeMap;
use std::fs;
use std::process::Child;

/// A process that has not ended.
#[derive(Clone, Debug)]
pub struct Process {
    pub pid: i32,
    /// Clock ticks from the machine's start to the process's. With the PID, they identify the process.
    pub start: u64,
    pub command: Vec<u8>,
    pub environment: BTreeMap<String, String>,
}

impl PartialEq for Process {
    fn eq(&self, other: &Self) -> bool {
        (self.pid, self.start) == (other.pid, other.start)
    }
}

impl Process {
    /// All that have this variable in their environment.
    pub fn with_variable(name: &str) -> Vec<Self> {
        let entries = fs::read_dir("/proc").expect("/proc can be read").flatten();
        entries.filter_map(|entry| Self::read(entry.file_name().to_str()?.parse().ok()?, name)).collect()
    }

    /// The process with this PID, if it has the variable. An ended process has none.
    fn read(pid: i32, variable: &str) -> Option<Self> {
        let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).ok();
        let has_it = |environment: &Vec<u8>| {
            let mut variables = environment.split(|byte| *byte == 0);
            variables.any(|one| one.strip_prefix(variable.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'=')))
        };
        let environment = read("environ").filter(has_it)?;
        let environment = environment.split(|byte| *byte == 0).filter_map(|variable| {
            let (name, value) = std::str::from_utf8(variable).ok()?.split_once('=')?;
            Some((name.to_owned(), value.to_owned()))
        });
        let environment = environment.collect();
        Some(Self { pid, start: start_of(pid)?, command: read("cmdline")?, environment })
    }

    pub fn variable(&self, name: &str) -> Option<&str> {
        self.environment.get(name).map(String::as_str)
    }

    /// Whether it has not ended.
    pub fn is_alive(&self) -> bool {
        start_of(self.pid) == Some(self.start)
    }

    /// Sends it a signal. False if it has ended by then. Another process that has its PID now gets nothing.
    pub fn send_signal(&self, signal: Signal) -> bool {
        // The descriptor still refers to that process, whatever becomes of its PID.
        let opened = Pid::from_raw(self.pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let opened = opened.filter(|_| self.is_alive());
        opened.is_some_and(|process| pidfd_send_signal(process, signal).is_ok())
    }
}

/// Sends a signal to a child that was not waited for, so that its PID is still its own.
///
/// # Panics
/// If the kernel refuses it.
pub fn send_signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).expect("a child can be struck");
}

/// Field 22 of /proc/PID/stat. None for a process that has ended and is only remembered.
fn start_of(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it may contain anything.
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    if matches!(fields.first(), Some(&("Z" | "X"))) {
        return None;
    }
    fields.get(19)?.parse().ok()
}
