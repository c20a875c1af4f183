//! Putting this executable, and what goes with it, where the `training` container finds it.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Directory beside the executable that goes first on a program's PYTHONPATH.
const PYTHON: &str = "python";
const HOOK: &str = "sitecustomize.py";

/// Copies the running executable to `to`, mode 0755, with [`PYTHON`] beside it, and replaces what is there at once.
///
/// Only the directory of `to` is written to: everything else may be read-only.
pub fn install(to: &Path) -> Result<(), InstallError> {
    let failed = |source| InstallError { to: to.display().to_string(), source };
    let (Some(_), Some(directory)) = (to.file_name(), to.parent()) else {
        return Err(failed(io::ErrorKind::IsADirectory.into()));
    };
    let python = directory.join(PYTHON);
    put(to, 0o755, |temporary| fs::copy("/proc/self/exe", temporary).map(drop))
        .and_then(|()| fs::create_dir_all(&python))
        .and_then(|()| fs::set_permissions(&python, fs::Permissions::from_mode(0o755)))
        .and_then(|()| {
            put(&python.join(HOOK), 0o644, |temporary| fs::write(temporary, include_str!("python/sitecustomize.py")))
        })
        .map_err(failed)
}

/// The directory for PYTHONPATH beside the running executable, if it was installed with one.
pub fn python() -> Option<PathBuf> {
    let directory = std::env::current_exe().ok()?.parent()?.join(PYTHON);
    directory.join(HOOK).is_file().then_some(directory)
}

/// Makes `to` by `write`, or leaves it as it is.
fn put(to: &Path, mode: u32, write: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let mut temporary = to.as_os_str().to_owned();
    temporary.push(".tmp");
    let temporary = PathBuf::from(temporary);
    let written = write(&temporary)
        .and_then(|()| fs::set_permissions(&temporary, fs::Permissions::from_mode(mode)))
        .and_then(|()| fs::rename(&temporary, to));
    if written.is_err() {
        // The error that counts is the first one.
        let _ = fs::remove_file(&temporary);
    }
    written
}

#[derive(Debug, thiserror::Error)]
#[error(
    "can't install to {to}: {source}; --to must name a file in a volume (an emptyDir) that user {} may write to",
    nix::unistd::geteuid()
)]
pub struct InstallError {
    to: String,
    source: io::Error,
}
