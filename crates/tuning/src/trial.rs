//! The program of one trial.

use anyhow::{Context, anyhow};
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Maximum characters of a program's output in a reason.
const MOST_QUOTED: usize = 80;

/// How a program ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ProgramEnd {
    Value(f64),
    Failed(String),
}

/// A running program. Dropping it ends the program and its descendants, unless it has ended already.
pub(crate) struct Child {
    /// The process group, until its leader is reaped. Its number belongs to no other process meanwhile.
    group: Arc<Mutex<Option<Pid>>>,
}

impl Child {
    /// Starts a program, and reports its end from another thread. Its stderr is this process's own.
    pub fn start(
        command: &[String],
        input: String,
        report: impl FnOnce(ProgramEnd) + Send + 'static,
    ) -> anyhow::Result<Self> {
        let mut builder = Command::new(&command[0]);
        builder.args(&command[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut child = builder.spawn().map_err(|error| {
            anyhow!("COMMAND: {} cannot be started ({error}); name a program on PATH, or its path", command[0])
        })?;
        let pid = Pid::from_raw(i32::try_from(child.id()).context("the PID is too large")?);
        let group = Arc::new(Mutex::new(Some(pid)));
        let shared = Arc::clone(&group);
        thread::spawn(move || {
            // A program may end before it has read its parameters.
            drop(child.stdin.take().map(|mut stdin| stdin.write_all(input.as_bytes())));
            let mut output = Vec::new();
            let read = child.stdout.take().map_or(Ok(0), |mut stdout| stdout.read_to_end(&mut output));
            // Reaped only under the lock, so that no other process can have the number when the group is ended.
            let _ = waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
            let mut group = shared.lock().unwrap_or_else(PoisonError::into_inner);
            let status = child.wait();
            *group = None;
            drop(group);
            report(match (status, read) {
                (Ok(status), Ok(_)) => ending(status, &String::from_utf8_lossy(&output)),
                (Err(error), _) | (_, Err(error)) => ProgramEnd::Failed(error.to_string()),
            });
        });
        Ok(Self { group })
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let group = self.group.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(group) = *group {
            // It has ended already, or it ends now.
            let _ = killpg(group, Signal::SIGKILL);
        }
    }
}

fn ending(status: ExitStatus, output: &str) -> ProgramEnd {
    if let Some(signal) = status.signal() {
        return ProgramEnd::Failed(format!("signal {signal}"));
    }
    if let Some(code) = status.code().filter(|code| *code != 0) {
        return ProgramEnd::Failed(format!("exit code {code}"));
    }
    let Some(last) = output.lines().map(str::trim).rfind(|line| !line.is_empty()) else {
        return ProgramEnd::Failed("printed no number".to_owned());
    };
    match last.parse() {
        Ok(value) => ProgramEnd::Value(value),
        Err(_) => {
            let quoted: String = last.chars().take(MOST_QUOTED).collect();
            ProgramEnd::Failed(format!("the last line is not a number: {quoted}"))
        }
    }
}
