//! Which bytes of a file are on the disk, and the hashes of those from its start on.

use nix::libc;
use parking_lot::Mutex;
use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// What is read at once to hash it, in bytes.
const PIECE: usize = 1024 * 1024;
/// What one call writes, in bytes. A larger piece gets larger folios of the page cache, which took up to five times as
/// long to fill in a virtual machine that gives its free memory back (Linux 6.18).
const WRITE: usize = 32 * 1024;
/// After how many bytes a hasher beside the connections looks whether it is still wanted.
const TURN: u64 = 16 * 1024 * 1024;

/// Ranges that never overlap and never touch, by start.
#[derive(Debug, Default)]
pub(crate) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    pub fn add(&mut self, range: Range<u64>) {
        let Range { mut start, mut end } = range;
        if start >= end {
            return;
        }
        while let Some((&before, &before_end)) = self.0.range(..=end).next_back() {
            if before_end < start {
                break;
            }
            (start, end) = (start.min(before), end.max(before_end));
            self.0.remove(&before);
        }
        self.0.insert(start, end);
    }

    /// The end of what is there from 0 on without a gap.
    pub fn frontier(&self) -> u64 {
        self.0.get(&0).copied().unwrap_or(0)
    }

    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    /// What is missing of a file, in ranges that cross no multiple of `most`.
    pub fn missing(&self, size: u64, most: u64) -> Vec<Range<u64>> {
        let mut missing = Vec::new();
        let mut at = 0;
        for (start, end) in self.0.iter().map(|(start, end)| (*start, *end)).chain([(size, size)]) {
            while at < start.min(size) {
                let next = ((at / most + 1).saturating_mul(most)).min(start);
                missing.push(at..next);
                at = next;
            }
            at = at.max(end);
        }
        missing
    }
}

struct Hashing {
    /// How far the hashes are.
    at: u64,
    sha256: Sha256,
    git: Option<Sha1>,
}

impl Hashing {
    fn new(size: u64, git: bool) -> Self {
        let git = git.then(|| Sha1::new().chain_update(format!("blob {size}\0")));
        Self { at: 0, sha256: Sha256::new(), git }
    }

    fn update(&mut self, bytes: &[u8]) {
        self.sha256.update(bytes);
        if let Some(git) = &mut self.git {
            git.update(bytes);
        }
        self.at += bytes.len() as u64;
    }

    /// Hashes what the disk has up to `until`.
    fn catch_up(&mut self, file: &File, until: u64) -> io::Result<()> {
        let mut buffer = Vec::new();
        while self.at < until {
            buffer.resize(PIECE.min(usize::try_from(until - self.at).unwrap_or(PIECE)), 0);
            file.read_exact_at(&mut buffer, self.at)?;
            self.update(&buffer);
        }
        Ok(())
    }
}

/// The hashes of a whole file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hashes {
    pub sha256: [u8; 32],
    pub git: Option<[u8; 20]>,
}

/// A file that several connections write.
pub(crate) struct Target {
    file: File,
    size: u64,
    git: bool,
    ranges: Mutex<Ranges>,
    hashing: Mutex<Hashing>,
}

impl Target {
    /// `ranges` of the file are there already. `git` is whether the hash of git's blob is wanted.
    pub fn new(file: File, size: u64, git: bool, ranges: Ranges) -> Self {
        Self { file, size, git, ranges: Mutex::new(ranges), hashing: Mutex::new(Hashing::new(size, git)) }
    }

    /// What is missing, in ranges that cross no multiple of `most`.
    pub fn missing(&self, most: u64) -> Vec<Range<u64>> {
        self.ranges.lock().missing(self.size, most)
    }

    /// Writes bytes. Those that follow what is hashed are hashed at once, others by [`Self::catch_up`]. Returns whether
    /// bytes wait for a call of it.
    pub fn write(&self, at: u64, bytes: &[u8]) -> io::Result<bool> {
        let mut end = at;
        for piece in bytes.chunks(WRITE) {
            self.file.write_all_at(piece, end)?;
            end += piece.len() as u64;
        }
        let hashing = self.hashing.try_lock();
        let frontier = {
            let mut ranges = self.ranges.lock();
            ranges.add(at..end);
            ranges.frontier()
        };
        Ok(hashing.is_some_and(|mut hashing| {
            if hashing.at == at {
                hashing.update(bytes);
            }
            hashing.at < frontier
        }))
    }

    /// Hashes what is there from the start on, from the page cache, unless another thread does, and as long as it
    /// `is_wanted`. What cannot be read is left to [`Self::finish`].
    pub fn catch_up(&self, is_wanted: impl Fn() -> bool) {
        while is_wanted()
            && let Some(mut hashing) = self.hashing.try_lock()
        {
            let frontier = self.ranges.lock().frontier();
            let until = frontier.min(hashing.at.saturating_add(TURN));
            if hashing.at >= until || hashing.catch_up(&self.file, until).is_err() {
                return;
            }
        }
    }

    /// Has the kernel begin to bring bytes to the disk, so that [`Self::finish`] waits for less. Waits itself where a disk
    /// has too much to do; not all file systems can.
    pub fn begin_to_sync(&self, range: Range<u64>) {
        let (Ok(start), Ok(length)) = (range.start.try_into(), (range.end - range.start).try_into()) else { return };
        // SAFETY: the descriptor is open, and no memory is handed over.
        unsafe { libc::sync_file_range(self.file.as_raw_fd(), start, length, libc::SYNC_FILE_RANGE_WRITE) };
    }

    /// Starts over with an empty file.
    pub fn clear(&self) -> io::Result<()> {
        let (mut hashing, mut ranges) = (self.hashing.lock(), self.ranges.lock());
        *ranges = Ranges::default();
        *hashing = Hashing::new(self.size, self.git);
        self.file.set_len(0)
    }

    /// Waits until the whole file is on the disk, and gives its hashes.
    pub fn finish(&self) -> io::Result<Hashes> {
        let mut hashing = self.hashing.lock();
        hashing.catch_up(&self.file, self.size)?;
        if self.file.metadata()?.len() != self.size {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        self.file.sync_all()?;
        let git = hashing.git.clone().map(|git| git.finalize().into());
        Ok(Hashes { sha256: hashing.sha256.clone().finalize().into(), git })
    }
}

/// CRC-32C of a range of a file.
pub(crate) fn crc_of(file: &File, range: Range<u64>) -> io::Result<u32> {
    let (mut at, mut crc, mut buffer) = (range.start, 0, Vec::new());
    while at < range.end {
        buffer.resize(PIECE.min(usize::try_from(range.end - at).unwrap_or(PIECE)), 0);
        file.read_exact_at(&mut buffer, at)?;
        crc = crc32c::crc32c_append(crc, &buffer);
        at += buffer.len() as u64;
    }
    Ok(crc)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_merge_and_gaps_are_split_into_parts() {
        let mut ranges = Ranges::default();
        assert_eq!(ranges.missing(10, 4), [0..4, 4..8, 8..10]);
        assert_eq!(ranges.missing(0, 4), []);
        ranges.add(6..8);
        ranges.add(2..4);
        assert_eq!((ranges.frontier(), ranges.bytes()), (0, 4));
        assert_eq!(ranges.missing(10, 4), [0..2, 4..6, 8..10]);
        ranges.add(3..7);
        assert_eq!(ranges.missing(10, 100), [0..2, 8..10]);
        ranges.add(0..2);
        assert_eq!((ranges.frontier(), ranges.0.len()), (8, 1));
        ranges.add(5..5);
        ranges.add(8..20);
        assert_eq!(ranges.missing(10, 4), []);
    }

    #[test]
    fn pieces_written_in_any_order_are_hashed_once() {
        let bytes: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
        let size = bytes.len() as u64;
        let target = Target::new(tempfile::tempfile().unwrap(), size, true, Ranges::default());
        let pieces: Vec<(usize, &[u8])> = bytes.chunks(7_000).enumerate().collect();
        for step in [2, 3, 5] {
            for (index, piece) in pieces.iter().filter(|(index, _)| index % 30 % step == 0) {
                if target.write(*index as u64 * 7_000, piece).unwrap() {
                    target.catch_up(|| false);
                    assert!(target.hashing.lock().at < target.ranges.lock().frontier(), "it is not wanted");
                    target.catch_up(|| true);
                }
                assert_eq!(target.hashing.lock().at, target.ranges.lock().frontier());
            }
        }
        for range in target.missing(7_000) {
            let range = usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap();
            target.write(range.start as u64, &bytes[range]).unwrap();
        }
        let expected = Hashes {
            sha256: Sha256::digest(&bytes).into(),
            git: Some(Sha1::new().chain_update(format!("blob {size}\0")).chain_update(&bytes).finalize().into()),
        };
        assert_eq!(target.finish().unwrap(), expected);
        target.clear().unwrap();
        assert!(target.finish().is_err(), "an empty file is not whole");
    }
}
