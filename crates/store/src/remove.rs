//! Which checkpoints a store has, and taking one away: its manifest first, its data afterwards.

use crate::error::StoreError;
use crate::manifest::{self, Manifest};
use crate::restore::manifest_in;
use crate::{FILES, Store, names};
use futures::{StreamExt, TryStreamExt, stream};
use std::collections::HashSet;

/// What a store has.
#[derive(Debug, Default)]
pub struct Listing {
    /// Its checkpoints, the newest first.
    pub manifests: Vec<Manifest>,
    /// Manifests that can't be read or are not to be trusted. They hide no other.
    pub unreadable: Vec<StoreError>,
}

impl Store {
    /// Whether the store answers, knows who asks, has the bucket and lets its manifests be listed.
    ///
    /// # Errors
    /// What is wrong, with the remedy. That nothing may be written is told only by an upload.
    pub async fn check(&self) -> Result<(), StoreError> {
        self.bucket.list(names::OURS, false).await.map(drop)
    }

    /// The checkpoints in the store, the newest first. Only `.trainingjob/` is looked at.
    ///
    /// # Errors
    /// If the store can't be asked.
    pub async fn list(&self) -> Result<Listing, StoreError> {
        let objects = self.bucket.list(names::OURS, false).await?;
        let keys = objects.into_iter().map(|object| object.key).filter(|key| key.ends_with(".json")).collect();
        let mut listing = self.read_all(keys).await?;
        listing.manifests.retain(|manifest| !manifest.files.is_empty());
        listing.manifests.sort_by(|a, b| b.newer(a));
        Ok(listing)
    }

    /// The same, with what lies beside checkpoints.
    pub(crate) async fn list_all(&self) -> Result<Listing, StoreError> {
        let mut listing = self.list().await?;
        let beside = self.bucket.list(&format!("{}/beside", names::OURS), false).await?;
        let beside = self.read_all(beside.into_iter().map(|object| object.key).collect()).await?;
        listing.manifests.extend(beside.manifests);
        listing.unreadable.extend(beside.unreadable);
        Ok(listing)
    }

    /// The checkpoint at `path`, if the store has it: this writer's own before that of the first writer.
    ///
    /// # Errors
    /// If the store can't be asked, or its manifest can't be trusted.
    pub async fn manifest(&self, path: &str) -> Result<Option<Manifest>, StoreError> {
        let space = self.space.get().and_then(Option::as_deref);
        match manifest_in(&self.bucket, path, space).await? {
            None if space.is_some() => manifest_in(&self.bucket, path, None).await,
            found => Ok(found),
        }
    }

    /// The manifest of that key.
    pub(crate) async fn manifest_at(&self, key: &str) -> Result<Option<Manifest>, StoreError> {
        let Some(bytes) = self.bucket.get(key, manifest::LONGEST).await? else { return Ok(None) };
        Manifest::read(&self.destination.uri(key), &bytes).map(Some)
    }

    /// Takes a checkpoint away. A removal that is cut short is ended by [`Store::sweep`]; the checkpoint itself is gone
    /// with the first step.
    ///
    /// # Errors
    /// If the store can't be asked or refuses.
    pub async fn remove(&self, manifest: &Manifest) -> Result<(), StoreError> {
        self.bucket.put(&manifest.tombstone(), vec![manifest.to_json().into()]).await?;
        // Somebody may have replaced it since: then only the old data goes.
        let current = self.manifest_at(&manifest.own_key()).await?;
        let current = current.filter(|current| current.generation != manifest.generation);
        if current.is_none() {
            self.bucket.delete(&manifest.own_key()).await?;
        }
        self.bury(manifest, current.as_ref()).await
    }

    /// Removes the data of a checkpoint whose manifest is gone, but for what `current` has, and at last its tombstone.
    pub(crate) async fn bury(&self, dead: &Manifest, current: Option<&Manifest>) -> Result<(), StoreError> {
        let needed: HashSet<&str> =
            current.into_iter().flat_map(|manifest| manifest.files.iter().map(|file| file.key.as_str())).collect();
        stream::iter(dead.files.iter().filter(|file| !needed.contains(file.key.as_str())))
            .map(|file| self.bucket.delete(&file.key))
            .buffer_unordered(FILES)
            .try_collect::<()>()
            .await?;
        self.bucket.delete(&dead.tombstone()).await
    }

    /// The checkpoints whose data is being removed.
    pub(crate) async fn tombstones(&self) -> Result<Vec<Manifest>, StoreError> {
        let objects = self.bucket.list(&Manifest::graves(), false).await?;
        Ok(self.read_all(objects.into_iter().map(|object| object.key).collect()).await?.manifests)
    }

    /// The generations of `path` whose data is being removed, by their names alone.
    pub(crate) async fn dead_generations(&self, path: &str) -> Result<Vec<u32>, StoreError> {
        let objects = self.bucket.list(&Manifest::graves(), false).await?;
        let space = self.space().await?;
        let begin = format!("{}/{}~", Manifest::graves(), names::in_space(&names::escape(path), space));
        let of = |key: &str| key.strip_prefix(&begin)?.strip_suffix(".json")?.parse().ok();
        Ok(objects.iter().filter_map(|object| of(&object.key)).collect())
    }

    async fn read_all(&self, keys: Vec<String>) -> Result<Listing, StoreError> {
        let mut listing = Listing::default();
        let mut read = stream::iter(keys)
            .map(|key| async move {
                let uri = self.destination.uri(&key);
                match self.bucket.get(&key, manifest::LONGEST).await {
                    Ok(Some(bytes)) => Ok(Some(Manifest::read(&uri, &bytes).and_then(|manifest| {
                        if key == manifest.own_key() || key == manifest.tombstone() {
                            return Ok(manifest);
                        }
                        let path = manifest.path.escape_debug();
                        Err(StoreError::corrupted(format!("{uri}: it is of another checkpoint, {path}")))
                    }))),
                    // Gone since it was listed.
                    Ok(None) => Ok(None),
                    Err(error) if error.trouble == crate::Trouble::Corrupted => Ok(Some(Err(error))),
                    Err(error) => Err(error),
                }
            })
            .buffered(FILES);
        while let Some(manifest) = read.try_next().await? {
            match manifest {
                Some(Ok(manifest)) => listing.manifests.push(manifest),
                Some(Err(error)) => listing.unreadable.push(error),
                None => {}
            }
        }
        drop(read);
        Ok(listing)
    }
}
