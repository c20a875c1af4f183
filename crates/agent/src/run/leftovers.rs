//! Removes what killed programs leave in their container and would affect the next one: shared memory and locks.
//!
//! This happens between two runs, when no process of the program is left to use the files.

use crate::panics::catch_parser_panic;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

/// The folder of POSIX shared memory.
const SHM: &str = "/dev/shm";
/// Folder to which files are moved first, because removing large ones may take longer than the loop may wait.
const TRASH: &str = ".trainingjob-trash";
/// A file that makes a build of PyTorch's extensions wait for another build, without limit.
const LOCK: &str = "lock";
/// Levels of folders below that of all extensions: one for each Python and CUDA, and one for each extension in it.
const DEPTH: u32 = 3;

/// What is removed between two runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Leftovers {
    /// All files of this user in `/dev/shm`, which belongs to this container alone.
    pub shm: bool,
    /// Lock files of PyTorch's extensions on the container's own file system.
    pub locks: bool,
}

impl Leftovers {
    /// Removes them as far as possible. What stays does no more harm than before.
    pub fn clear(self) {
        if self.shm {
            let _ = catch_parser_panic(|| empty(Path::new(SHM)));
        }
        if self.locks {
            let _ = catch_parser_panic(|| {
                extensions(&|name| std::env::var_os(name)).map(|folder| unlock(&folder, Path::new("/")))
            });
        }
    }
}

/// Removes this user's own files from a folder: moves them out of sight at once, and deletes them in another thread.
fn empty(folder: &Path) -> io::Result<Option<JoinHandle<io::Result<()>>>> {
    let own = nix::unistd::geteuid().as_raw();
    let is_own = |entry: &fs::DirEntry| entry.metadata().is_ok_and(|found| found.uid() == own);
    let entries: Vec<PathBuf> =
        fs::read_dir(folder)?.filter_map(Result::ok).filter(is_own).map(|entry| entry.path()).collect();
    if entries.is_empty() {
        return Ok(None);
    }
    let trash = folder.join(format!("{TRASH}-{:016x}", rand::random::<u64>()));
    fs::create_dir(&trash)?;
    for (number, entry) in entries.iter().enumerate() {
        let _ = fs::rename(entry, trash.join(number.to_string()));
    }
    std::thread::Builder::new().name("leftovers".to_owned()).spawn(move || fs::remove_dir_all(trash)).map(Some)
}

/// Where PyTorch builds extensions, as in `torch.utils.cpp_extension`.
fn extensions(variable: &dyn Fn(&str) -> Option<std::ffi::OsString>) -> Option<PathBuf> {
    let named = variable("TORCH_EXTENSIONS_DIR").map(PathBuf::from);
    let cache = || variable("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || variable("HOME").map(|home| PathBuf::from(home).join(".cache"));
    named.or_else(|| Some(cache().or_else(home)?.join("torch_extensions")))
}

/// Removes the lock files of extensions below a folder that is on the same file system as `root`. On any other, such as a
/// volume, another pod may be building.
fn unlock(folder: &Path, root: &Path) {
    let device = |path: &Path| fs::symlink_metadata(path).ok().map(|found| found.dev());
    if device(folder).is_none() || device(folder) != device(root) {
        return;
    }
    let mut folders = vec![(folder.to_owned(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().filter_map(Result::ok) {
            let Ok(found) = entry.metadata() else { continue };
            if found.is_dir() && depth < DEPTH && Some(found.dev()) == device(root) {
                folders.push((entry.path(), depth + 1));
            } else if found.is_file() && found.len() == 0 && entry.file_name() == OsStr::new(LOCK) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn shared_memory_is_emptied_without_following_links() {
        let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(elsewhere.path().join("kept"), "x").unwrap();
        for name in ["torch_57", "sem.mp-x", "nccl-abc"] {
            fs::write(folder.path().join(name), "x").unwrap();
        }
        fs::create_dir_all(folder.path().join("plasma/0")).unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), folder.path().join("link")).unwrap();
        empty(folder.path()).unwrap().unwrap().join().unwrap().unwrap();
        assert_eq!(names(folder.path()), [""; 0]);
        assert_eq!(names(elsewhere.path()), ["kept"]);
        assert!(empty(folder.path()).unwrap().is_none());
        assert!(empty(&folder.path().join("missing")).is_err());
    }

    #[test]
    fn only_extension_locks_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let fused = folder.path().join("py311_cu124/fused_adam");
        fs::create_dir_all(fused.join("deeper/than/that")).unwrap();
        for (file, content) in [
            ("lock", ""),
            ("fused_adam.so", ""),
            ("build.ninja.lock", ""),
            ("locks", ""),
            ("deeper/lock", "it has something in it"),
            ("deeper/than/that/lock", ""),
        ] {
            fs::write(fused.join(file), content).unwrap();
        }
        unlock(folder.path(), Path::new("/proc"));
        assert!(fused.join("lock").exists(), "of a volume nobody knows who else builds there");
        unlock(folder.path(), folder.path());
        assert_eq!(names(&fused), ["build.ninja.lock", "deeper", "fused_adam.so", "locks"]);
        assert!(fused.join("deeper/lock").exists() && fused.join("deeper/than/that/lock").exists());
        unlock(&folder.path().join("missing"), folder.path());
    }

    #[test]
    fn extensions_folder_is_resolved_like_pytorch() {
        let found = |known: &[(&str, &str)]| {
            let variable =
                |name: &str| known.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into());
            extensions(&variable).map(|path| path.display().to_string())
        };
        let (dir, cache, home) = (("TORCH_EXTENSIONS_DIR", "/x"), ("XDG_CACHE_HOME", "/c"), ("HOME", "/root"));
        assert_eq!(found(&[dir, cache, home]).as_deref(), Some("/x"));
        assert_eq!(found(&[cache, home]).as_deref(), Some("/c/torch_extensions"));
        assert_eq!(found(&[home]).as_deref(), Some("/root/.cache/torch_extensions"));
        assert_eq!(found(&[]), None);
    }
}
