//! Completes interrupted work, and removes data that no writer will continue.
//!
//! Before a checkpoint is sent, a note in `.trainingjob/sending/` has its keys, and the uploads in parts that were
//! begun. The note is removed when the manifest is there. If a note is a day old, its pod is gone, and its journal too.

use crate::error::{ErrorKind, StoreError};
use crate::manifest::Manifest;
use crate::upload::if_allowed;
use crate::{FILES, Store, manifest, names};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};

/// A running upload renews its note more often than this.
const LOST: SignedDuration = SignedDuration::from_hours(24);

/// Note of an upload.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Sending {
    pub path: String,
    pub time: Timestamp,
    pub keys: Vec<String>,
    /// Uploads in parts that were begun: id by key.
    pub uploads: BTreeMap<String, String>,
}

impl Sending {
    fn folder() -> String {
        format!("{}/sending", address::key::OURS)
    }

    /// Key of the note of that content at `path`.
    pub fn key(writer: &str, path: &str, identity: &str) -> String {
        format!("{}/{}.json", Self::folder(), names::digest([writer, path, identity]))
    }
}

impl Store {
    /// Completes interrupted removals, and removes the leftovers of uploads with pods that have been gone for a day.
    /// One process of a store at a time is to call it, now and then.
    ///
    /// # Errors
    /// If the store can't be asked or refuses.
    pub async fn sweep(&self) -> Result<(), StoreError> {
        self.sweep_as_of(Timestamp::now()).await
    }

    /// The same at another time.
    ///
    /// # Errors
    /// As [`Store::sweep`].
    pub async fn sweep_as_of(&self, now: Timestamp) -> Result<(), StoreError> {
        for key in self.tombstones().await? {
            let Some(Ok(dead)) = self.listed(&key).await? else { continue };
            let current = self.manifest_at(&dead.own_key()).await?;
            if current.as_ref().is_some_and(|current| current.generation == dead.generation) {
                // It was to be replaced or removed, but was not, so it still exists.
                self.bucket.delete(&dead.tombstone()).await?;
            } else {
                self.remove_data(&dead, current.as_ref()).await?;
            }
        }
        self.sweep_lost(now).await
    }

    async fn sweep_lost(&self, now: Timestamp) -> Result<(), StoreError> {
        let notes = self.bucket.list(&Sending::folder(), false).await?;
        let parts = self.bucket.list(&Manifest::parts(), true).await?;
        if notes.is_empty() && parts.is_empty() {
            return Ok(());
        }
        let is_lost = |time: Timestamp| now.duration_since(time) >= LOST;
        let mut needed: HashSet<String> = HashSet::new();
        let mut lost: Vec<(String, Sending)> = Vec::new();
        for note in notes {
            let Some(bytes) = self.bucket.get(&note.key, manifest::LONGEST).await? else { continue };
            match serde_json::from_slice::<Sending>(&bytes) {
                Ok(sending) if is_lost(sending.time) => lost.push((note.key, sending)),
                Ok(sending) => needed.extend(sending.keys),
                Err(_) => {}
            }
        }
        for part in parts {
            let Some(bytes) = self.bucket.get(&part.key, manifest::LONGEST).await? else { continue };
            let Ok(read) = Manifest::read_part(&self.destination.uri(&part.key), &bytes) else { continue };
            let keys = read.files.iter().map(|file| file.key.clone());
            if is_lost(read.stored) {
                let (path, time) = (read.path.clone(), read.stored);
                lost.push((part.key, Sending { path, time, keys: keys.collect(), uploads: BTreeMap::new() }));
            } else {
                needed.extend(keys);
            }
        }
        if lost.is_empty() {
            return Ok(());
        }
        let keys = lost.iter().flat_map(|(_, sending)| sending.keys.iter().cloned()).collect();
        let Some(of_checkpoints) = self.needed_of(&keys).await? else { return Ok(()) };
        needed.extend(of_checkpoints);
        for (note, sending) in lost {
            for (key, id) in &sending.uploads {
                match self.bucket.abort(key, id).await {
                    Err(error) if matches!(error.trouble, ErrorKind::NotFound) => {}
                    other => if_allowed(other)?,
                }
            }
            let keys = sending.keys.iter().filter(|key| !needed.contains(*key) && manifest::check_path(key).is_ok());
            stream::iter(keys)
                .map(|key| async move { if_allowed(self.bucket.delete(key).await) })
                .buffer_unordered(FILES)
                .try_collect::<()>()
                .await?;
            if_allowed(self.bucket.delete(&note).await)?;
        }
        Ok(())
    }
}
