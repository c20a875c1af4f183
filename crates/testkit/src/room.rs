//! A place for the files of a test.

use super::{binary, scratch};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory of one test, removed at its end. After a failed test it stays.
pub struct Room(pub PathBuf);

impl Room {
    /// A new directory each time, whatever the name.
    pub fn new(test: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let path = scratch().join(format!("{test}-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        // A failed test of an earlier process of this number may have left it.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A folder in it, created if it does not exist.
    pub fn folder(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(&path).unwrap();
        path
    }

    /// An installed agent with its files, as the init container installs it.
    pub fn installed(&self) -> PathBuf {
        let agent = self.folder("installed").join("agent");
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

/// The bytes of all files below a folder, one after the other.
pub fn all_bytes(folder: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            true => bytes.extend(all_bytes(&entry.path())),
            false => bytes.extend(fs::read(entry.path()).unwrap()),
        }
    }
    bytes
}
