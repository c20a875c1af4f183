//! How much room the root's file system has.

use crate::folder::Folder;
use crate::wording::bytes;
use nix::sys::statvfs::fstatvfs;
use serde::{Deserialize, Serialize};
use std::io;

/// Space of a file system. `inodes` is 0 if it has no count of inodes (many have none).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Space {
    /// Bytes that the job may still write.
    pub free: u64,
    /// Bytes in all.
    pub total: u64,
    /// Files and folders that the job may still make.
    pub free_inodes: u64,
    /// Files and folders in all.
    pub inodes: u64,
}

/// The room below a root.
///
/// # Errors
/// If the file system does not report it.
pub fn space(root: &Folder) -> io::Result<Space> {
    let problem = fstatvfs(root)?;
    let unit = problem.fragment_size();
    Ok(Space {
        free: problem.blocks_available().saturating_mul(unit),
        total: problem.blocks().saturating_mul(unit),
        free_inodes: problem.files_available(),
        inodes: problem.files(),
    })
}

/// If more checkpoints than this still fit, there is enough space on any volume.
const PLENTY: u64 = 100;

/// A warning if the next checkpoint may not fit. That is so if less than 5 % of the volume is free (and not room for a
/// hundred). It is also so if less than 1.2 times the newest checkpoint is free; `checkpoint` is its size in bytes.
#[must_use]
pub fn nearly_full(space: &Space, checkpoint: Option<u64>) -> Option<String> {
    let Space { free, total, free_inodes, inodes } = *space;
    if inodes > 0 && free_inodes < inodes / 100 {
        return Some(format!("the volume is nearly full: {free_inodes} of {inodes} files can still be made"));
    }
    let size = checkpoint.unwrap_or(0);
    if total == 0 || free >= (total / 20).max(size.saturating_add(size / 5)) {
        return None;
    }
    if size > 0 && free / size >= PLENTY {
        return None;
    }
    let fit = match free.checked_div(size) {
        None => String::new(),
        Some(0) => format!(", and another checkpoint of {} does not fit", bytes(size)),
        Some(1) => format!(", and 1 more checkpoint of {} fits", bytes(size)),
        Some(count) => format!(", and {count} more checkpoints of {} fit", bytes(size)),
    };
    Some(format!("the volume is nearly full: {} of {} are free{fit}", bytes(free), bytes(total)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Room;

    const GIB: u64 = 1 << 30;

    #[test]
    fn nearly_full_volume_is_reported() {
        let with = |free: u64, total: u64| Space { free, total, free_inodes: 0, inodes: 0 };
        let full = |free, total, size| nearly_full(&with(free, total), size);
        assert_eq!(full(50 * GIB, 100 * GIB, Some(10 * GIB)), None);
        assert_eq!(full(12 * GIB, 100 * GIB, Some(10 * GIB)), None);
        let problem = full(11 * GIB, 100 * GIB, Some(10 * GIB)).unwrap();
        assert_eq!(
            problem,
            "the volume is nearly full: 11.0 GiB of 100.0 GiB are free, and 1 more checkpoint of 10.0 GiB fits"
        );
        let problem = full(9 * GIB, 100 * GIB, Some(10 * GIB)).unwrap();
        assert!(problem.ends_with("another checkpoint of 10.0 GiB does not fit"), "{problem}");
        assert_eq!(full(4 * GIB, 100 * GIB, Some(GIB / 100)), None, "400 more fit");
        let problem = full(4 * GIB, 100 * GIB, Some(GIB)).unwrap();
        assert!(problem.ends_with("4 more checkpoints of 1.0 GiB fit"), "{problem}");
        assert_eq!(full(4 * GIB, 100 * GIB, None).unwrap(), "the volume is nearly full: 4.0 GiB of 100.0 GiB are free");
        assert_eq!(full(0, 0, Some(1)), None, "a file system that tells nothing");
        assert!(full(0, 1, Some(u64::MAX)).is_some());
        let inodes = Space { free_inodes: 9, inodes: 1000, ..with(GIB, GIB) };
        assert_eq!(nearly_full(&inodes, None).unwrap(), "the volume is nearly full: 9 of 1000 files can still be made");
    }

    #[test]
    fn space_of_a_root_is_measured() {
        let room = Room::new();
        let space = space(&Folder::root(&room.path("")).unwrap()).unwrap();
        assert!(space.total > 0 && space.free <= space.total);
    }
}
