//! Object stores in which checkpoints are kept or backed up: S3 and what speaks its protocol, Google Cloud Storage,
//! Azure Blob Storage, and folders of other volumes.
//!
//! Below a prefix a checkpoint's files lie where people look for them, `PREFIX/PATH/FILE`, and `PREFIX/.trainingjob/`
//! has a manifest for each checkpoint. A checkpoint exists in a store only if its manifest does: it is written last and
//! removed first. New content at an old path goes to `PREFIX/PATH~N/FILE` and is complete before the manifest is
//! replaced, so that at no instant is there neither. Keys that are not ours are never looked at.
//!
//! Memory: at most 64 MiB of payloads and manifests at a time (or one part, of files over 640 GB, whose parts are longer); as much
//! may be kept for the next ones while a store is open; 1 MiB for each of at most 32 streams that are read; and about
//! 300 bytes for each file of the checkpoint. Every future may be dropped at any await: what was under way is gone on
//! with at the next call.
//!
//! Everything that waits for a disk does so on tokio's blocking threads. Nothing is spawned beyond the call but those.
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
mod read;
mod remove;
mod restore;
mod room;
mod sweep;
mod transport;
mod upload;
mod write;
mod writers;

pub use access::{Access, Checksum, Patience};
pub use address::{Destination, Scheme};
pub use backend::{Object, Page};
pub use error::{StoreError, Trouble};
pub use journal::Journal;
pub use manifest::{Layout, Manifest, Stored};
pub use read::RangeRead;
pub use remove::Listing;
pub use room::Room;
pub use transport::{LEAST_DATA, choose_tls, retry_after};
pub use upload::part_length;

use backend::Bucket;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::OnceCell;

/// Files up to this length are sent as one object, longer ones in parts of it (or longer parts, if they were over
/// 10,000).
const PART: u64 = 16 * 1024 * 1024;
/// What is fetched by one request: it is streamed to the disk, so it costs no memory.
const RANGE: u64 = 64 * 1024 * 1024;
/// Files at a time.
const FILES: usize = 8;
/// Parts or ranges of one file at a time.
const PARTS: usize = 4;

/// How far a transfer is. Shared with whoever wants to know.
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
    /// Bytes that were there already from an earlier one.
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

/// A place in a store where checkpoints are kept, opened with its credentials as they are now.
///
/// Static keys of a Secret are read when it is opened: open it anew for each transfer. A cloud's own identity renews
/// itself.
pub struct Store {
    destination: Destination,
    bucket: Bucket,
    patience: Patience,
    writer: String,
    progress: Arc<Progress>,
    pool: Arc<upload::Pool>,
    /// Of a writer who found others below the prefix; see `writers`.
    space: OnceCell<Option<String>>,
}

impl Store {
    /// Opens a place. Nothing is asked of the store yet: see [`Store::check`].
    ///
    /// # Errors
    /// [`Trouble::Invalid`] if the endpoint, the CA bundle or the credentials can't be used, [`Trouble::Local`] if a
    /// file with them can't be read.
    pub fn open(destination: &Destination, access: &Access, writer: &str) -> Result<Self, StoreError> {
        Ok(Self {
            destination: destination.clone(),
            bucket: Bucket {
                destination: destination.clone(),
                backend: access.open(destination)?,
                room: Room::default(),
            },
            patience: access.patience,
            writer: writer.to_owned(),
            progress: Arc::default(),
            pool: Arc::default(),
            space: OnceCell::new(),
        })
    }

    /// How far the transfer of this store is. Of several at a time the last that has begun.
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
