//! How far a publication is.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Listing the files of the folder.
    Listing,
    /// Computing hashes.
    Hashing,
    /// Sending files.
    Sending,
    /// Comparing what the server has with what was sent.
    Verifying,
    /// Writing the record, or the commit.
    Recording,
}

const STAGES: [Stage; 5] = [Stage::Listing, Stage::Hashing, Stage::Sending, Stage::Verifying, Stage::Recording];

/// How far a publication is. It is shared with the reader of its progress.
#[derive(Debug, Default)]
pub struct Progress {
    stage: AtomicU8,
    bytes: AtomicU64,
    sent: AtomicU64,
    total: AtomicU64,
    files: AtomicU64,
    all_files: AtomicU64,
}

/// A reading of [`Progress`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// What is being done.
    pub stage: Stage,
    /// Bytes that the server has, in this stage and from earlier tries.
    pub bytes: u64,
    /// Bytes that went over the network in this call.
    pub sent: u64,
    /// Bytes of all files.
    pub total: u64,
    /// Files that are done.
    pub files: u64,
    /// All files.
    pub all_files: u64,
}

impl Progress {
    /// How far it is now.
    #[must_use]
    pub fn now(&self) -> Reading {
        let read = |value: &AtomicU64| value.load(Ordering::Relaxed);
        let stage = STAGES.get(usize::from(self.stage.load(Ordering::Relaxed))).copied().unwrap_or(Stage::Listing);
        let total = read(&self.total);
        // A file that is sent twice counts once.
        let (bytes, all_files) = (read(&self.bytes).min(total), read(&self.all_files));
        Reading { stage, bytes, sent: read(&self.sent), total, files: read(&self.files).min(all_files), all_files }
    }

    pub(crate) fn enter(&self, stage: Stage) {
        self.stage.store(stage as u8, Ordering::Relaxed);
    }

    pub(crate) fn begin(&self, stage: Stage, total: u64, files: u64) {
        for (value, now) in [(&self.bytes, 0), (&self.files, 0), (&self.total, total), (&self.all_files, files)] {
            value.store(now, Ordering::Relaxed);
        }
        self.enter(stage);
    }

    pub(crate) fn sent(&self, bytes: u64) {
        self.sent.fetch_add(bytes, Ordering::Relaxed);
        self.kept(bytes);
    }

    pub(crate) fn kept(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn file(&self) {
        self.files.fetch_add(1, Ordering::Relaxed);
    }
}
