//! Installs this executable and its files where the `training` container finds them.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Directory beside the executable that goes first on a program's PYTHONPATH.
const PYTHON: &str = "python";
const HOOK: &str = "sitecustomize.py";
/// Directory beside the executable in which the agents of the pod, one after the other, keep the state of their gang.
const STATE: &str = "state";
/// The files in [`PYTHON`]. [`HOOK`] is the last one, so its presence shows that all are there.
const FILES: [(&str, &str); 5] = [
    ("trackers/trainingjob_mlflow.py", include_str!("python/trackers/trainingjob_mlflow.py")),
    ("trackers/trainingjob_wandb.py", include_str!("python/trackers/trainingjob_wandb.py")),
    (
        "trackers/trainingjob_trackers-1.dist-info/METADATA",
        include_str!("python/trackers/trainingjob_trackers-1.dist-info/METADATA"),
    ),
    (
        "trackers/trainingjob_trackers-1.dist-info/entry_points.txt",
        include_str!("python/trackers/trainingjob_trackers-1.dist-info/entry_points.txt"),
    ),
    (HOOK, include_str!("python/sitecustomize.py")),
];

/// Copies the running executable to `to`, mode 0755, with [`PYTHON`] beside it, and replaces existing files atomically.
///
/// Only the directory of `to` is written to: everything else may be read-only.
///
/// # Errors
/// Where the place can't be written to.
pub fn install(to: &Path) -> Result<(), InstallError> {
    let failed = |source| InstallError { to: to.display().to_string(), source };
    let (Some(_), Some(directory)) = (to.file_name(), to.parent()) else {
        return Err(failed(io::ErrorKind::IsADirectory.into()));
    };
    let python = directory.join(PYTHON);
    put(to, 0o755, |temporary| fs::copy("/proc/self/exe", temporary).map(drop))
        .and_then(|()| FILES.iter().try_for_each(|(name, content)| put_in(&python, name, content)))
        .and_then(|()| for_all(&directory.join(STATE)))
        .map_err(failed)
}

/// Makes a file below `folder`, and the folders on the way to it, readable for every user.
fn put_in(folder: &Path, name: &str, content: &str) -> io::Result<()> {
    let file = folder.join(name);
    let mut folders: Vec<&Path> = file.ancestors().skip(1).take_while(|path| path.starts_with(folder)).collect();
    folders.reverse();
    for folder in folders {
        fs::create_dir_all(folder)?;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    }
    replace(&file, content.as_bytes())
}

/// Makes a folder in which every user can keep files of their own.
fn for_all(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o1777))
}

/// The directory for PYTHONPATH beside the running executable, if it was installed with one.
pub fn python() -> Option<PathBuf> {
    let directory = std::env::current_exe().ok()?.parent()?.join(PYTHON);
    directory.join(HOOK).is_file().then_some(directory)
}

/// Replaces a file that every user may read. The replacement is atomic: a reader finds the old file or the new one.
///
/// # Errors
/// Where the file can't be written. Then it is left as it was.
pub(super) fn replace(file: &Path, content: &[u8]) -> io::Result<()> {
    put(file, 0o644, |temporary| fs::write(temporary, content))
}

/// Makes `to` with `write`, or leaves it as it is.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn all_python_files_are_installed() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(PYTHON);
        let (mut found, mut folders) = (BTreeSet::new(), vec![root.clone()]);
        while let Some(folder) = folders.pop() {
            for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                if path.is_dir() && !path.ends_with("__pycache__") {
                    folders.push(path);
                } else if path.is_file() {
                    found.insert(path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned());
                }
            }
        }
        assert_eq!(found, FILES.iter().map(|(name, _)| (*name).to_owned()).collect());
    }
}
