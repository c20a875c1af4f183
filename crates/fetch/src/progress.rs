//! How far a fetch is.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// What a fetch is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    /// Resolving the revision, and listing the files.
    #[default]
    Listing,
    /// Waiting for another fetcher of the same content.
    Waiting,
    /// Fetching files.
    Fetching,
    /// Checking what is in the cache.
    Checking,
}

/// How far a fetch is, for any number of readers. One is used for one fetch.
#[derive(Debug, Default)]
pub struct Progress {
    stage: AtomicU8,
    bytes: AtomicU64,
    network: AtomicU64,
    total: AtomicU64,
    files: AtomicU64,
    all_files: AtomicU64,
}

/// A reading of [`Progress`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// What is being done.
    pub stage: Stage,
    /// Bytes on the disk, those of earlier tries among them.
    pub bytes: u64,
    /// Bytes that arrived over the network in this call.
    pub network: u64,
    /// Bytes of all files. 0 until they are listed.
    pub total: u64,
    /// Files that are whole and verified.
    pub files: u64,
    /// All files. 0 until they are listed.
    pub all_files: u64,
}

impl Progress {
    /// How far it is now.
    #[must_use]
    pub fn now(&self) -> Reading {
        let read = |value: &AtomicU64| value.load(Ordering::Relaxed);
        let stage = match self.stage.load(Ordering::Relaxed) {
            stage if stage == Stage::Waiting as u8 => Stage::Waiting,
            stage if stage == Stage::Fetching as u8 => Stage::Fetching,
            stage if stage == Stage::Checking as u8 => Stage::Checking,
            _ => Stage::Listing,
        };
        let total = read(&self.total);
        // A file that is fetched twice counts once.
        let bytes = read(&self.bytes).min(total);
        let (network, files) = (read(&self.network), read(&self.files));
        Reading { stage, bytes, network, total, files, all_files: read(&self.all_files) }
    }

    pub(crate) fn enter(&self, stage: Stage) {
        self.stage.store(stage as u8, Ordering::Relaxed);
    }

    pub(crate) fn begin(&self, total: u64, files: u64) {
        for (value, now) in [(&self.bytes, 0), (&self.files, 0), (&self.total, total), (&self.all_files, files)] {
            value.store(now, Ordering::Relaxed);
        }
    }

    pub(crate) fn arrived(&self, bytes: u64) {
        self.network.fetch_add(bytes, Ordering::Relaxed);
        self.kept(bytes);
    }

    pub(crate) fn kept(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn lost(&self, bytes: u64) {
        let less = |now: u64| Some(now.saturating_sub(bytes));
        let _ = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    pub(crate) fn file(&self) {
        self.files.fetch_add(1, Ordering::Relaxed);
    }
}
