//! Listing and removing the checkpoints of a store. A removal deletes the manifest first and the data afterwards.

use crate::error::{ErrorKind, StoreError};
use crate::manifest::{self, Manifest};
use crate::restore::manifest_in;
use crate::{FILES, Store, names};
use futures::{StreamExt, TryStreamExt, stream};
use std::borrow::Cow;
use std::collections::HashSet;

/// Maximum memory for all manifests of a listing, without their files, in bytes of JSON.
const LISTED: usize = 64 * 1024 * 1024;
/// Maximum number of unreadable manifests with a reported reason.
const UNREADABLE: usize = 100;

/// Content of a store.
#[derive(Debug, Default)]
pub struct Listing {
    /// Its checkpoints, the newest first, without their files: [`Store::restore`] and [`Store::remove`] read those.
    pub manifests: Vec<Manifest>,
    /// The first hundred manifests that can't be read or trusted. They hide no other.
    pub unreadable: Vec<StoreError>,
}

impl Store {
    /// Whether the store answers, accepts the credentials, has the bucket and lets its manifests be listed.
    ///
    /// # Errors
    /// What is wrong, with the remedy. Only an upload shows that nothing may be written.
    pub async fn check(&self) -> Result<(), StoreError> {
        self.bucket.list(address::key::OURS, false).await.map(drop)
    }

    /// The checkpoints in the store, the newest first. Only `.trainingjob/` is read.
    ///
    /// # Errors
    /// If the store can't be asked.
    pub async fn list(&self) -> Result<Listing, StoreError> {
        let objects = self.bucket.list(address::key::OURS, false).await?;
        let keys = objects.into_iter().map(|object| object.key).filter(|key| key.ends_with(".json")).collect();
        let mut listing = Listing::default();
        let mut memory = 0;
        let take = |read: Result<Manifest, StoreError>| {
            match read {
                Ok(manifest) => {
                    memory += manifest.to_json().len();
                    listing.manifests.push(manifest);
                }
                Err(error) if listing.unreadable.len() < UNREADABLE => listing.unreadable.push(error),
                Err(_) => {}
            }
            if memory <= LISTED {
                return Ok(());
            }
            let uri = self.destination.uri(address::key::OURS);
            let why = format!("{uri}: more than {LISTED} bytes of manifests, without their files");
            Err(StoreError::invalid(format!("{why}. Give each job a prefix of its own, or remove checkpoints")))
        };
        self.read_all(keys, Manifest::head, take).await?;
        listing.manifests.sort_by(|a, b| b.newer(a));
        Ok(listing)
    }

    /// Which of these keys belong to a checkpoint, or to files beside one. None if a manifest can't be read, because
    /// its keys are then unknown.
    pub(crate) async fn needed_of(&self, keys: &HashSet<String>) -> Result<Option<HashSet<String>>, StoreError> {
        let mut manifests = self.bucket.list(address::key::OURS, false).await?;
        manifests.extend(self.bucket.list(&format!("{}/beside", address::key::OURS), false).await?);
        let manifests = manifests.into_iter().map(|object| object.key).filter(|key| key.ends_with(".json")).collect();
        let (mut needed, mut is_known) = (HashSet::new(), true);
        let of_these = |manifest: Manifest| {
            let files = manifest.files.into_iter().map(|file| file.key);
            files.filter(|key| keys.contains(key)).collect::<Vec<_>>()
        };
        let take = |read: Result<Vec<String>, StoreError>| {
            match read {
                Ok(keys) => needed.extend(keys),
                Err(_) => is_known = false,
            }
            Ok(())
        };
        self.read_all(manifests, of_these, take).await?;
        Ok(is_known.then_some(needed))
    }

    /// The checkpoint at `path`, if the store has it. This writer's own takes precedence over that of the first writer.
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

    /// The complete manifest, for one that may come from a listing and then has no files.
    pub(crate) async fn whole<'m>(&self, manifest: &'m Manifest) -> Result<Cow<'m, Manifest>, StoreError> {
        if !manifest.files.is_empty() {
            return Ok(Cow::Borrowed(manifest));
        }
        let key = manifest.own_key();
        let uri = self.destination.uri(&key);
        match self.manifest_at(&key).await? {
            Some(whole) if whole.clone().head() == *manifest => Ok(Cow::Owned(whole)),
            Some(_) => Err(StoreError::new(ErrorKind::Changed, format!("{uri}: it was replaced meanwhile"))),
            None => Err(StoreError::new(ErrorKind::NotFound, format!("{uri}: it was removed meanwhile"))),
        }
    }

    /// The manifest of that key.
    pub(crate) async fn manifest_at(&self, key: &str) -> Result<Option<Manifest>, StoreError> {
        let Some(bytes) = self.bucket.get(key, manifest::LONGEST).await? else { return Ok(None) };
        Manifest::read(&self.destination.uri(key), &bytes).map(Some)
    }

    /// Removes a checkpoint. [`Store::sweep`] completes a removal that is interrupted. The checkpoint itself is gone
    /// with the first step.
    ///
    /// # Errors
    /// If the store can't be asked or refuses.
    pub async fn remove(&self, manifest: &Manifest) -> Result<(), StoreError> {
        let manifest = &*self.whole(manifest).await?;
        self.put_manifest(&manifest.tombstone(), manifest).await?;
        // It may have been replaced since. Then only the old data is removed.
        let current = self.manifest_at(&manifest.own_key()).await?;
        let current = current.filter(|current| current.generation != manifest.generation);
        if current.is_none() {
            self.bucket.delete(&manifest.own_key()).await?;
        }
        self.remove_data(manifest, current.as_ref()).await
    }

    /// Removes the data of a checkpoint whose manifest is gone, except the files of `current`, and at last its
    /// tombstone.
    pub(crate) async fn remove_data(&self, dead: &Manifest, current: Option<&Manifest>) -> Result<(), StoreError> {
        let needed: HashSet<&str> =
            current.into_iter().flat_map(|manifest| manifest.files.iter().map(|file| file.key.as_str())).collect();
        stream::iter(dead.files.iter().filter(|file| !needed.contains(file.key.as_str())))
            .map(|file| self.bucket.delete(&file.key))
            .buffer_unordered(FILES)
            .try_collect::<()>()
            .await?;
        self.bucket.delete(&dead.tombstone()).await
    }

    /// The keys of the checkpoints whose data is being removed.
    pub(crate) async fn tombstones(&self) -> Result<Vec<String>, StoreError> {
        Ok(self.bucket.list(&Manifest::tombstone_folder(), false).await?.into_iter().map(|object| object.key).collect())
    }

    /// The generations of `path` with data that is being removed, by the names of tombstones alone.
    pub(crate) async fn dead_generations(&self, path: &str) -> Result<Vec<u32>, StoreError> {
        let objects = self.bucket.list(&Manifest::tombstone_folder(), false).await?;
        let space = self.space().await?;
        let begin = format!("{}/{}~", Manifest::tombstone_folder(), names::in_space(&names::escape(path), space));
        let of = |key: &str| key.strip_prefix(&begin)?.strip_suffix(".json")?.parse().ok();
        Ok(objects.iter().filter_map(|object| of(&object.key)).collect())
    }

    /// Reads the manifests of these keys, several at once, and passes on what `keep` leaves of each. So all of them
    /// need not fit into memory.
    async fn read_all<T>(
        &self,
        keys: Vec<String>,
        keep: impl Fn(Manifest) -> T,
        mut take: impl FnMut(Result<T, StoreError>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let keep = &keep;
        let mut read = stream::iter(keys)
            .map(|key| async move { Ok::<_, StoreError>(self.listed(&key).await?.map(|read| read.map(keep))) })
            .buffered(FILES);
        while let Some(manifest) = read.try_next().await? {
            manifest.map_or(Ok(()), &mut take)?;
        }
        Ok(())
    }

    /// The manifest at a listed key. None if it is gone since, and an inner error if it can't be trusted.
    pub(crate) async fn listed(&self, key: &str) -> Result<Option<Result<Manifest, StoreError>>, StoreError> {
        let uri = self.destination.uri(key);
        match self.bucket.get(key, manifest::LONGEST).await {
            Ok(Some(bytes)) => Ok(Some(Manifest::read(&uri, &bytes).and_then(|manifest| {
                if key == manifest.own_key() || key == manifest.tombstone() {
                    return Ok(manifest);
                }
                let path = manifest.path.escape_debug();
                Err(StoreError::corrupted(format!("{uri}: it is of another checkpoint, {path}")))
            }))),
            Ok(None) => Ok(None),
            Err(error) if error.trouble == ErrorKind::Corrupted => Ok(Some(Err(error))),
            Err(error) => Err(error),
        }
    }
}
