//! What an agent leaves for the next one of its pod: an agent that the kernel kills with its container comes back in it.

use crate::install::replace;
use crate::{now, read_json};
use gang::Memory;
use gang::message::{End, Outcome, RunState};
use nix::libc::SIGKILL;
use protocol::report::Report;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;

/// In the folder: what is remembered.
const MEMORY: &str = "gang.json";
/// In the folder: the last words of the last run, as the container's termination message had them.
const REPORT: &str = "report.json";

/// The folder in which an agent leaves it. It lives as long as the pod.
pub struct Place(PathBuf);

/// What is in the file.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Kept {
    /// When the agent that wrote it had started: the next one is later, whatever the clock says.
    boot: u64,
    memory: Memory,
}

impl Place {
    /// In this folder.
    pub fn new(folder: PathBuf) -> Self {
        Self(folder)
    }

    /// Where the last words of a run go.
    pub fn report(&self) -> PathBuf {
        self.0.join(REPORT)
    }

    /// What the agent before has left, if there was one: when it had started, and what it knew.
    ///
    /// What it ran has ended with it: that is a failure, of which its last words tell more.
    pub fn load(&self) -> Option<(u64, Memory)> {
        let Kept { boot, mut memory } = read_json(&self.0.join(MEMORY)).ok()?;
        if let Some(run) = memory.run.as_mut().filter(|run| run.is_alive()) {
            let words = std::fs::read_to_string(self.report()).ok().and_then(|words| Report::parse(&words));
            let words = words.filter(|report| report.attempt == run.attempt).unwrap_or_default();
            let report = Report {
                attempt: run.attempt,
                version: words.version.max(1),
                killed: true,
                signal: Some(SIGKILL),
                finished_at: Some(words.finished_at.unwrap_or_else(now)),
                ..words
            };
            // One that was being stopped has not failed by being killed.
            let outcome = if report.stopped_by.is_some() { Outcome::Stopped } else { Outcome::Failed };
            run.state = RunState::Ended(End { outcome, report: report.to_message() });
        }
        Some((boot, memory))
    }

    /// Leaves what is known now.
    ///
    /// # Errors
    /// Where the folder can't be written to.
    pub fn save(&self, boot: u64, memory: &Memory) -> io::Result<()> {
        let kept = Kept { boot, memory: memory.clone() };
        replace(&self.0.join(MEMORY), &serde_json::to_vec(&kept).map_err(io::Error::from)?)
    }
}
