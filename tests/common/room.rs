//! A place for what a test writes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A directory of one test, removed at its end; after a failed test it stays.
pub struct Room(pub PathBuf);

impl Room {
    pub fn new(test: &str) -> Self {
        let name = format!("{}-{test}-{}", env!("CARGO_CRATE_NAME"), std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// An agent with what belongs to it, as the init container installs it.
    pub fn installed(&self) -> PathBuf {
        let agent = self.path("installed/agent");
        fs::create_dir_all(agent.parent().unwrap()).unwrap();
        let mut install = Command::new(env!("CARGO_BIN_EXE_agent"));
        assert!(install.arg("install").arg("--to").arg(&agent).status().unwrap().success());
        agent
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}
