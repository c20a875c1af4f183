//! Object stores in which checkpoints are kept or backed up: S3 and what speaks its protocol, Google Cloud Storage,
//! Azure Blob Storage, and folders of other volumes.
//!
//! Below a prefix a checkpoint's files lie where people look for them, `PREFIX/PATH/FILE`, and `PREFIX/.trainingjob/`
//! has a manifest for each checkpoint. A checkpoint exists in a store only if its manifest does. The manifest is
//! written last and removed first. New content at an old path goes to `PREFIX/PATH~N/FILE` and is complete before the
//! manifest is replaced. So the old or the new content exists at any instant. This crate never reads keys that are not
//! its own.
//!
//! Memory: at most 64 MiB of payloads and manifests at a time (or one part, of files over 640 GB, whose parts are
//! longer). As much may be kept for the next ones while a store is open. Each of at most 32 streams that are read takes
//! 1 MiB, and each file of the checkpoint about 300 bytes. Every future may be dropped at any await. The next call
//! continues what was in progress.
//!
//! Everything that waits for a disk does so on tokio's blocking threads. Nothing else is spawned beyond the call.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "sizes of files fit into usize, which has 64 bits (asserted below); lengths are checked before they are cast"
)]

const _: () = assert!(usize::BITS == 64);

mod access;
mod backend;
mod error;
mod folder;
mod journal;
pub mod manifest;
mod names;
mod payload_memory;
mod read;
mod remove;
mod restore;
mod sweep;
mod transport;
mod upload;
mod write;
mod writers;

pub use access::{Access, Checksum, NetworkTimeouts};
pub use address::{Destination, Scheme};
pub use backend::{Object, Page};
pub use error::{ErrorKind, StoreError};
pub use journal::Journal;
pub use manifest::{Layout, Manifest, StoredFile};
pub use payload_memory::PayloadMemory;
pub use read::RangeRead;
pub use remove::Listing;
pub use transport::{LEAST_DATA, choose_tls, retry_after};
pub use upload::part_length;

use backend::Bucket;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::OnceCell;

/// Files up to this length are sent as one object, longer ones in parts of this length. If there were over 10,000
/// parts, they are longer.
const PART: u64 = 16 * 1024 * 1024;
/// Bytes that one request fetches. They are streamed to the disk, so they cost no memory.
const RANGE: u64 = 64 * 1024 * 1024;
/// Files at a time.
const FILES: usize = 8;
/// Parts or ranges of one file at a time.
const PARTS: usize = 4;

/// Progress of a transfer, shared with its observers.
#[derive(Debug, Default)]
pub struct Progress {
    bytes: AtomicU64,
    skipped: AtomicU64,
    total: AtomicU64,
    files: AtomicU64,
    all_files: AtomicU64,
}

/// A reading of [`Progress`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transferred {
    /// Bytes that went over the network in this call.
    pub bytes: u64,
    /// Bytes that an earlier call had already transferred.
    pub skipped: u64,
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
    pub fn now(&self) -> Transferred {
        let read = |value: &AtomicU64| value.load(Ordering::Relaxed);
        Transferred {
            bytes: read(&self.bytes),
            skipped: read(&self.skipped),
            total: read(&self.total),
            files: read(&self.files),
            all_files: read(&self.all_files),
        }
    }

    fn begin(&self, total: u64, files: u64) {
        for (value, now) in
            [(&self.bytes, 0), (&self.skipped, 0), (&self.files, 0), (&self.total, total), (&self.all_files, files)]
        {
            value.store(now, Ordering::Relaxed);
        }
    }

    fn sent(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn skip(&self, bytes: u64) {
        self.skipped.fetch_add(bytes, Ordering::Relaxed);
    }

    fn file(&self) {
        self.files.fetch_add(1, Ordering::Relaxed);
    }
}

/// A place in a store where checkpoints are kept, opened with its current credentials.
///
/// A Secret's static keys are read when the store is opened, so open it again for each transfer. A cloud's own identity
/// renews itself.
pub struct Store {
    destination: Destination,
    bucket: Bucket,
    patience: NetworkTimeouts,
    writer: String,
    progress: Arc<Progress>,
    pool: Arc<upload::Pool>,
    /// Space of this writer, if it found other writers below the prefix; see `writers`.
    space: OnceCell<Option<String>>,
}

impl Store {
    /// Opens a place. This sends no request to the store yet: see [`Store::check`].
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the endpoint, the CA bundle or the credentials can't be used, [`ErrorKind::Local`] if a
    /// file with them can't be read.
    pub fn open(destination: &Destination, access: &Access, writer: &str) -> Result<Self, StoreError> {
        Ok(Self {
            destination: destination.clone(),
            bucket: Bucket {
                destination: destination.clone(),
                backend: access.open(destination)?,
                room: PayloadMemory::default(),
            },
            patience: access.patience,
            writer: writer.to_owned(),
            progress: Arc::default(),
            pool: Arc::default(),
            space: OnceCell::new(),
        })
    }

    /// Progress of this store's transfer. Of several at a time, it is that of the last one begun.
    #[must_use]
    pub fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.progress)
    }

    /// Which place it is.
    #[must_use]
    pub fn destination(&self) -> &Destination {
        &self.destination
    }
}
