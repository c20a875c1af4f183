//! The files through which the program and its Python report to the agent.

use crate::channels::file_follower::FileFollower;
use crate::observations::Observations;
use crate::panics::catch_parser_panic;
use crate::progress::json;
use parking_lot::Mutex;
use protocol::progress::Source;
use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use text::exception::{Exception, HookLine};

/// The directory of one run.
pub struct Folder {
    path: PathBuf,
    files: Mutex<Files>,
}

struct Files {
    progress: FileFollower,
    exceptions: FileFollower,
}

impl Folder {
    /// Creates it in memory if possible, else where temporary files go. `secret` makes its name unpredictable.
    pub fn make(secret: &str) -> io::Result<Self> {
        let mut result = Err(io::ErrorKind::NotFound.into());
        for parent in [PathBuf::from("/dev/shm"), std::env::temp_dir()] {
            result = Self::make_in(&parent, secret);
            if result.is_ok() {
                break;
            }
        }
        result
    }

    fn make_in(parent: &Path, secret: &str) -> io::Result<Self> {
        let path = parent.join(format!("trainingjob-{secret}"));
        // A program started by root may drop its privileges before it writes.
        let (of_directory, of_file) = if nix::unistd::geteuid().is_root() { (0o711, 0o666) } else { (0o700, 0o600) };
        DirBuilder::new().mode(of_directory).create(&path)?;
        let file = |name| path.join(name);
        let files =
            Files { progress: FileFollower::new(file("progress")), exceptions: FileFollower::new(file("exceptions")) };
        let folder = Self { files: Mutex::new(files), path: path.clone() };
        for (name, content) in [("progress", ""), ("exceptions", ""), ("token", secret)] {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path.join(name))?;
            file.write_all(content.as_bytes())?;
            file.set_permissions(Permissions::from_mode(of_file))?;
        }
        Ok(folder)
    }

    /// The file for progress.
    pub fn progress(&self) -> PathBuf {
        self.path.join("progress")
    }

    /// The file for exceptions of Python.
    pub fn exceptions(&self) -> PathBuf {
        self.path.join("exceptions")
    }

    /// A token file for clients that require one. The secret itself is in the address.
    pub fn token(&self) -> PathBuf {
        self.path.join("token")
    }

    /// Passes what is new to `observations`. A file that can't be read reports nothing, and an invalid line is skipped.
    pub fn read(&self, observations: &Observations) {
        let mut files = self.files.lock();
        let _ = files.progress.read(|line| on_progress(line, observations));
        let _ = files.exceptions.read(|line| on_exception(line, observations));
    }

    /// Does the same when no process writes any more. A last line then needs no newline.
    pub fn read_to_end(&self, observations: &Observations) {
        let mut files = self.files.lock();
        let _ = files.progress.read_to_end(|line| on_progress(line, observations));
        let _ = files.exceptions.read_to_end(|line| on_exception(line, observations));
    }

    /// Removes the folder. This is necessary at the end, because the folder may be in memory and would stay there.
    pub fn remove(&self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

fn on_progress(line: &[u8], observations: &Observations) {
    catch_parser_panic(|| {
        if let Ok(update) = json::parse(&String::from_utf8_lossy(line)) {
            observations.progress(Source::File, &update, None);
        }
    });
}

fn on_exception(line: &[u8], observations: &Observations) {
    catch_parser_panic(|| match HookLine::parse(line) {
        Some(HookLine::Hello) => observations.python_tells(),
        Some(HookLine::Raised { exception, parent, ends }) => {
            let by_program = parent.map(|parent| ends && parent == std::process::id());
            observations.exception(Exception { by_program, ..*exception });
        }
        None => {}
    });
}
