//! What an agent stores for the next one of its pod. An agent that is killed with its container restarts in the pod.

use crate::install::replace;
use crate::{now, read_json};
use gang::Memory;
use gang::message::{Outcome, RunEnd, RunState};
use nix::libc::SIGKILL;
use protocol::report::Report;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;

/// Name of the file with the agent's memory.
const MEMORY: &str = "gang.json";
/// Name of the file with the final report of the last run, as in the container's termination message.
const REPORT: &str = "report.json";

/// The folder for these files. It lives as long as the pod.
pub struct MemoryFolder(PathBuf);

/// Content of the memory file.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct StoredMemory {
    /// Start time of the agent that wrote the file. The next agent's is later, whatever the clock says.
    boot: u64,
    memory: Memory,
}

impl MemoryFolder {
    /// Uses this folder.
    pub fn new(folder: PathBuf) -> Self {
        Self(folder)
    }

    /// File for the final report of a run.
    pub fn report(&self) -> PathBuf {
        self.0.join(REPORT)
    }

    /// Loads what the previous agent stored, if there was one: its start time and its memory.
    ///
    /// Its run ended with it. That is a failure, and the stored report gives the details.
    pub fn load(&self) -> Option<(u64, Memory)> {
        let StoredMemory { boot, mut memory } = read_json(&self.0.join(MEMORY)).ok()?;
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
            // A run that was being stopped has not failed by being killed.
            let outcome = if report.stopped_by.is_some() { Outcome::Stopped } else { Outcome::Failed };
            run.state = RunState::Ended(RunEnd { outcome, report: report.to_message() });
        }
        Some((boot, memory))
    }

    /// Stores what is known now.
    ///
    /// # Errors
    /// If the folder can't be written to.
    pub fn save(&self, boot: u64, memory: &Memory) -> io::Result<()> {
        let kept = StoredMemory { boot, memory: memory.clone() };
        replace(&self.0.join(MEMORY), &serde_json::to_vec(&kept).map_err(io::Error::from)?)
    }
}
