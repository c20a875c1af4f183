//! The link `best` in a folder of checkpoints: a stable path to the best checkpoint, for use after the training.
//!
//! It is there only while no program of the job runs. A program that writes to a path of that name would write through the
//! link, into the checkpoint. An entry of that name with another origin is never touched.

use crate::folder::{Folder, is_link};
use nix::errno::Errno;
use nix::fcntl::readlinkat;
use nix::unistd::{UnlinkatFlags, symlinkat, unlinkat};
use std::io;

/// Name of the link.
pub const BEST: &str = "best";
/// The target of our link begins with this, so that it differs from a link that a program has made.
const OURS: &str = "./";

/// Makes the link lead to the checkpoint at `path` below `root`. False if another entry has its name.
///
/// # Errors
/// If the volume takes no links, or fails.
pub fn link_best(root: &Folder, path: &str) -> io::Result<bool> {
    let target = format!("{OURS}{path}");
    match own_target(root)? {
        Some(known) if known == target => return Ok(true),
        // The link is deleted and recreated. A replacement could remove what a program puts there meanwhile.
        Some(_) => unlinkat(root, BEST, UnlinkatFlags::NoRemoveDir)?,
        None => {}
    }
    match symlinkat(target.as_str(), root, BEST) {
        Ok(()) => Ok(true),
        Err(Errno::EEXIST) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Removes the link, if it is there and ours.
///
/// # Errors
/// If the volume fails.
pub fn unlink_best(root: &Folder) -> io::Result<()> {
    if own_target(root)?.is_some() {
        unlinkat(root, BEST, UnlinkatFlags::NoRemoveDir)?;
    }
    Ok(())
}

/// Where our link leads, if it is there.
fn own_target(root: &Folder) -> io::Result<Option<String>> {
    let is_link = match root.stat(BEST) {
        Ok(stat) => is_link(&stat),
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => return Err(error),
    };
    if !is_link {
        return Ok(None);
    }
    let target = readlinkat(root, BEST)?.into_string().ok();
    Ok(target.filter(|target| target.starts_with(OURS)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Room;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    fn target(room: &Room) -> Option<PathBuf> {
        fs::read_link(room.path(BEST)).ok()
    }

    #[test]
    fn best_link_follows_the_best_checkpoint_until_unlinked() {
        let room = Room::new();
        fs::create_dir_all(room.path("sft/step-2")).unwrap();
        fs::write(room.path("epoch=1.ckpt"), "weights").unwrap();
        let root = Folder::root(&room.path(".")).unwrap();
        unlink_best(&root).unwrap();
        for path in ["sft/step-2", "epoch=1.ckpt", "epoch=1.ckpt"] {
            assert!(link_best(&root, path).unwrap());
            assert_eq!(target(&room), Some(PathBuf::from(format!("./{path}"))));
        }
        assert_eq!(fs::read(room.path(BEST)).unwrap(), b"weights");
        unlink_best(&root).unwrap();
        assert_eq!(target(&room), None);
        assert!(room.path("epoch=1.ckpt").exists(), "what it led to stays");
    }

    #[test]
    fn foreign_best_entry_is_not_replaced() {
        let room = Room::new();
        fs::create_dir_all(room.path("step-1")).unwrap();
        let root = Folder::root(&room.path(".")).unwrap();
        let stays = |what: &str| {
            assert!(!link_best(&root, "step-1").unwrap(), "{what}");
            unlink_best(&root).unwrap();
            assert!(room.path(BEST).symlink_metadata().is_ok(), "{what}");
        };
        for theirs in ["step-1", "/elsewhere/step-1", "../step-1", ".hidden/step-1"] {
            symlink(theirs, room.path(BEST)).unwrap();
            stays(theirs);
            fs::remove_file(room.path(BEST)).unwrap();
        }
        fs::write(room.path(BEST), "a file").unwrap();
        stays("a file");
        fs::remove_file(room.path(BEST)).unwrap();
        fs::create_dir(room.path(BEST)).unwrap();
        stays("a folder");
    }
}
