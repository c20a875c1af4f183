//! Errors of folders and stores, as reasons why an attempt can't start.

use checkpoint::choose::Doubt;
use checkpoint::inventory::{KnownCheckpoint, Stage};
use protocol::report::{LaunchError, LaunchErrorKind};
use store::{ErrorKind, Manifest, StoreError};

/// A store error about a checkpoint that a user named. Only a bad or missing checkpoint is a permanent failure.
pub(super) fn failed(error: &StoreError) -> LaunchError {
    let kind = match is_about_content(error) || error.trouble == ErrorKind::Invalid {
        true => LaunchErrorKind::CheckpointUnusable,
        false => LaunchErrorKind::StorageUnavailable,
    };
    LaunchError { kind, message: error.to_string() }
}

/// Whether an error means that the checkpoint to fetch is bad, or that it could not be read.
pub(super) fn doubt(error: &StoreError) -> Doubt {
    let message = error.to_string();
    if is_about_content(error) { Doubt::Bad(message) } else { Doubt::Unread(message) }
}

fn is_about_content(error: &StoreError) -> bool {
    matches!(error.trouble, ErrorKind::NotFound | ErrorKind::Corrupted)
}

/// Why an attempt can't start from a checkpoint.
pub(super) fn refused(doubt: Doubt, of: &str) -> LaunchError {
    let (kind, why) = match doubt {
        Doubt::Bad(why) => (LaunchErrorKind::CheckpointUnusable, why),
        Doubt::Unread(why) => (LaunchErrorKind::StorageUnavailable, why),
    };
    LaunchError { kind, message: format!("{of}: {why}") }
}

/// A checkpoint in a store, in the form of one on a volume.
pub(super) fn in_store(manifest: &Manifest, uid: &str) -> KnownCheckpoint {
    KnownCheckpoint {
        found: manifest.found(),
        stage: Stage::Written,
        own: manifest.writer == uid,
        since: manifest.stored,
        failed_starts: 0,
        crc32c: None,
    }
}
