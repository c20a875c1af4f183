//! A place for what a test writes.

use super::{binary, root};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A directory of one test, removed at its end; after a failed test it stays.
pub struct Room(pub PathBuf);

impl Room {
    pub fn new(test: &str) -> Self {
        let name = format!("{test}-{}", std::process::id());
        let path = PathBuf::from(root("target/tmp")).join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path.canonicalize().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// An agent with what belongs to it, as the init container installs it.
    pub fn installed(&self) -> PathBuf {
        let agent = self.path("installed/agent");
        fs::create_dir_all(agent.parent().unwrap()).unwrap();
        let mut install = Command::new(binary("agent"));
        assert!(install.arg("install").arg("--to").arg(&agent).status().unwrap().success());
        agent
    }
}

impl AsRef<Path> for Room {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<OsStr> for Room {
    fn as_ref(&self) -> &OsStr {
        self.0.as_os_str()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}
