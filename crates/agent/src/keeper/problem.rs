//! What a store answers, as the keeper takes it.

use checkpoint::inventory::{Known, Stage};
use protocol::report::{LaunchError, LaunchErrorKind};
use store::{Manifest, StoreError};

/// What can't be gone on without, and whether it may heal by itself.
pub(super) fn failed(error: &StoreError) -> LaunchError {
    let kind = if error.is_temporary() { LaunchErrorKind::LaunchFailed } else { LaunchErrorKind::CheckpointUnusable };
    LaunchError { kind, message: error.to_string() }
}

/// A checkpoint in a store, as one on a volume is known.
pub(super) fn in_store(manifest: &Manifest, uid: &str) -> Known {
    Known {
        found: manifest.found(),
        stage: Stage::Written,
        own: manifest.writer == uid,
        since: manifest.stored,
        failed_starts: 0,
        crc32c: None,
    }
}
