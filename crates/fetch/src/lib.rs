//! Models and data sets by URI, fetched once into a cache that many jobs share.
//!
//! An [`Address`] says where content is: on the Hugging Face hub, in an object store, or at an HTTPS URL with its hash.
//! [`fetch`] resolves it to a revision once and looks for that revision in the cache. If it is not there, one fetcher
//! fetches it and the others wait. Every file is verified by what its source gives: the hub's SHA-256 or git hash, the
//! URL's SHA-256, or length and tag of an object, whose SHA-256 is recorded.
//!
//! Memory for a million files: about 60 MB (33 bytes for each file's hash, and a set of hashes of the paths), besides
//! 1 MiB for each of at most 32 connections. The list of files is on the disk. Lists of more than 3,000,000 files
//! are refused.

#![cfg_attr(
    test,
    allow(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss,
        reason = "numbers of tests are small"
    )
)]

mod cache;
mod error;
mod evict;
mod hub;
mod lease;
mod listing;
mod names;
mod network;
mod objects;
mod progress;
mod reach;
mod source;
mod transfer;
mod watch;
mod web;
mod web_file;
mod written;

#[cfg(test)]
mod stand_in;
#[cfg(test)]
mod tests;

pub use address::{Address, ContentKind};
pub use cache::link;
pub use error::{FetchError, FetchErrorKind};
pub use evict::Limit;
pub use lease::LeaseTimes;
pub use network::NetworkTimeouts;
pub use progress::{Progress, Reading, Stage};
pub use reach::{Forbidden, Guard};

use cache::{Cache, Entry, EntryState};
use checkpoint::space::space;
use jiff::Timestamp;
use lease::Lease;
use listing::Listing;
use parking_lot::Mutex;
use serde::Serialize;
use sha2::{Digest, Sha256};
use source::Source;
use std::path::PathBuf;
use std::sync::Arc;
use transfer::{Job, Transfer};
use watch::Watch;

/// How content is fetched.
#[derive(Clone, Debug)]
pub struct Options {
    /// The cache's folder. It must exist.
    pub cache: PathBuf,
    /// A folder with a file for each credential, as a Secret is mounted: `HF_TOKEN`, `AWS_*`, `AZURE_*`, a key file of
    /// Google, `ca.crt`. Without it the hub is asked anonymously, and object stores with the pod's identity.
    pub credentials: Option<PathBuf>,
    /// The URL of the hub or of the object store. Without it the hub is at `HF_ENDPOINT` or at
    /// `https://huggingface.co`.
    pub endpoint: Option<String>,
    /// A file with CA certificates (PEM) that are trusted besides the system's.
    pub ca_bundle: Option<PathBuf>,
    /// The revision that an earlier fetch resolved. It takes precedence over that of the address. If it is in the
    /// cache, no request is sent.
    pub revision: Option<String>,
    /// Whether pickled weights of the hub's models are left out, and models that have no others are refused. Default
    /// true.
    pub safetensors_only: bool,
    /// Whether the hashes of what is in the cache are computed again, and not only sizes compared. Default false.
    pub verify: bool,
    /// How much the cache may hold. Entries that no job uses are removed for what is fetched. Default: no limit.
    pub limit: Option<Limit>,
    /// Timeouts and pauses for servers.
    pub patience: NetworkTimeouts,
    /// When one fetcher takes over from another.
    pub lease: LeaseTimes,
    /// Hosts that are not resolved, for tests.
    pub(crate) hosts: Vec<reach::HostEntry>,
}

impl Options {
    /// The defaults, for a cache at `cache`.
    #[must_use]
    pub fn new(cache: impl Into<PathBuf>) -> Self {
        Self {
            cache: cache.into(),
            credentials: None,
            endpoint: None,
            ca_bundle: None,
            revision: None,
            safetensors_only: true,
            verify: false,
            limit: None,
            patience: NetworkTimeouts::default(),
            lease: LeaseTimes::default(),
            hosts: Vec::new(),
        }
    }
}

/// Content that is in the cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Fetched {
    /// The canonical address.
    pub uri: String,
    /// The name of its folder in the cache.
    pub key: String,
    /// What the address was resolved to: a commit, a SHA-256 over a store's list, or the file's SHA-256.
    pub revision: String,
    /// The folder with the files, or the file if the address is of one.
    pub path: PathBuf,
    /// Bytes of all files.
    pub bytes: u64,
    /// How many files.
    pub files: u64,
    /// Bytes of files that this call got over the network. 0 if everything was there.
    pub from_network: u64,
    /// The fault of the previous entry, and where that entry is now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set_aside: Option<String>,
    /// Keys of the entries that were removed for it, as the cache has a limit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<String>,
}

/// Brings the content of an address into the cache, unless it is there. `progress` shows how far it is.
///
/// The future may be dropped at any await. What was fetched stays, and the lease is given back once the last write has
/// ended, so that the next fetcher resumes at once. After a process was killed, the next fetcher resumes once the lease
/// has been silent for [`LeaseTimes::silence`].
///
/// # Errors
/// With the file or URI, what happened, and the remedy. [`FetchError::is_final`] tells whether another try is in vain.
pub async fn fetch(address: &Address, options: &Options, progress: &Progress) -> Result<Fetched, FetchError> {
    fetch_into(address, options, progress).await.map_err(|error| error.with_uri(&address.to_string()))
}

async fn fetch_into(address: &Address, options: &Options, progress: &Progress) -> Result<Fetched, FetchError> {
    let watch = Arc::new(Watch::new(options.patience));
    let work = fetch_watched(address, options, progress, Arc::clone(&watch));
    tokio::select! {
        result = work => result,
        error = watch.overdue() => Err(error),
    }
}

async fn fetch_watched(
    address: &Address,
    options: &Options,
    progress: &Progress,
    watch: Arc<Watch>,
) -> Result<Fetched, FetchError> {
    progress.enter(Stage::Listing);
    let (path, times) = (options.cache.clone(), options.lease);
    let cache = blocking(move || Cache::open(&path, times)).await?;
    let (address_too, options_too) = (address.clone(), options.clone());
    let source = blocking(move || Source::open(&address_too, &options_too, watch)).await?;
    let pinned = options.revision.as_deref();
    let mut listed = None;
    let revision = match source.revision(pinned).await? {
        Some(revision) => revision,
        None => {
            let (listing, revision) = list(&cache, &source, None, options).await?;
            listed = Some(listing);
            revision
        }
    };
    let fetch = Fetch {
        cache,
        source,
        address,
        revision,
        options,
        progress,
        set_aside: Mutex::default(),
        removed: Mutex::default(),
    };
    fetch.run(listed).await
}

/// One content on its way into the cache.
struct Fetch<'a> {
    cache: Cache,
    source: Source,
    address: &'a Address,
    revision: String,
    options: &'a Options,
    progress: &'a Progress,
    set_aside: Mutex<Option<String>>,
    removed: Mutex<Vec<String>>,
}

impl Fetch<'_> {
    async fn run(&self, mut listed: Option<Listing>) -> Result<Fetched, FetchError> {
        let key = self.key();
        loop {
            self.progress.enter(Stage::Checking);
            let (known, why) = match self.look(&key, self.options.verify).await? {
                EntryState::Whole(entry) => return Ok(self.fetched(&key, entry)),
                EntryState::Missing => (None, String::new()),
                EntryState::Damaged { marker, why } => (marker, why),
            };
            self.progress.enter(Stage::Waiting);
            let Some(lease) = self.cache.acquire(&key, known.as_deref()).await? else { continue };
            let lease = Arc::new(lease);
            let work = self.under_lease(&key, known, &why, &lease, listed.take());
            let result = tokio::select! {
                result = work => result,
                error = lease.keep() => Err(error),
            };
            // The leftovers of a final failure are of no use to a next try.
            let forget = result.as_ref().err().is_some_and(FetchError::is_final);
            let released = blocking(move || lease.release(forget)).await;
            let entry = result?;
            if self.options.limit.is_some() {
                self.cache.forget_size(&key);
            }
            // Once the entry is there, no fetcher waits for a lease that stays.
            drop(released);
            return Ok(self.fetched(&key, entry));
        }
    }

    async fn look(&self, key: &str, verify: bool) -> Result<EntryState, FetchError> {
        let (cache, key) = (self.cache.clone(), key.to_owned());
        blocking(move || {
            // A use counts from before it is relied on.
            cache.touch(&key);
            cache.look(&key, verify)
        })
        .await
    }

    /// The part of a fetch that only one fetcher does at a time.
    async fn under_lease(
        &self,
        key: &str,
        known: Option<Vec<u8>>,
        why: &str,
        lease: &Arc<Lease>,
        listed: Option<Listing>,
    ) -> Result<Entry, FetchError> {
        match self.look(key, false).await? {
            // Another fetcher made it meanwhile. With the marker from before, its hashes are known to be
            // wrong.
            EntryState::Whole(entry) => {
                let (cache, key_too) = (self.cache.clone(), key.to_owned());
                if known.is_none() || blocking(move || cache.marker(&key_too)).await? != known {
                    return Ok(entry);
                }
                self.set_aside(key, why).await?;
            }
            EntryState::Damaged { why, .. } => self.set_aside(key, &why).await?,
            EntryState::Missing => {}
        }
        self.progress.enter(Stage::Listing);
        let listing = match listed {
            Some(listing) => listing,
            None => {
                let (listing, revision) = list(&self.cache, &self.source, Some(&self.revision), self.options).await?;
                self.check_revision(&revision)?;
                listing
            }
        };
        self.make_room(key, listing.total.bytes).await?;
        let (cache, name) = (self.cache.clone(), lease.work_name());
        let place = self.cache.path.join(".fetching").join(&name);
        let at = place.clone();
        let (work, space) = blocking(move || {
            let work = cache.fetching.make(&name).map_err(|error| FetchError::local(&at, &error))?;
            let space = space(&work).ok();
            Ok((Arc::new(work), space))
        })
        .await?;
        self.progress.enter(Stage::Fetching);
        let job = Job {
            source: &self.source,
            revision: &self.revision,
            listing: &listing,
            lease,
            patience: self.options.patience,
            progress: self.progress,
        };
        let transfer = Transfer::open(job, &work, place).await?;
        transfer.run(space).await?;
        let entry = Entry {
            version: 1,
            address: self.address.to_string(),
            revision: self.revision.clone(),
            files: listing.total.files,
            bytes: listing.total.bytes,
            files_sha256: String::new(),
            file: self.source.single_file(&listing),
            fetched: Timestamp::now(),
            fetcher: lease.holder().to_owned(),
        };
        let (files, lease) = (transfer.stored()?, Arc::clone(lease));
        blocking(move || lease.cache().publish(&lease, &work, entry, files)).await
    }

    /// Removes entries that no job uses, so that this content fits into the limit.
    async fn make_room(&self, key: &str, needed: u64) -> Result<(), FetchError> {
        let Some(limit) = self.options.limit.clone() else { return Ok(()) };
        let lease = loop {
            if let Some(lease) = self.cache.acquire(evict::LEASE, None).await? {
                break Arc::new(lease);
            }
        };
        let (cache, key) = (self.cache.clone(), key.to_owned());
        let removed = tokio::select! {
            removed = blocking(move || cache.make_room(&key, needed, &limit)) => removed,
            error = lease.keep() => Err(error),
        };
        // A lease that stays is taken over after a while.
        drop(blocking(move || lease.release(false)).await);
        self.removed.lock().extend(removed?);
        Ok(())
    }

    async fn set_aside(&self, key: &str, why: &str) -> Result<(), FetchError> {
        let (cache, key) = (self.cache.clone(), key.to_owned());
        let place = blocking(move || cache.set_aside(&key)).await?;
        *self.set_aside.lock() = Some(format!("{why}; moved to {}", place.display()));
        Ok(())
    }

    fn check_revision(&self, found: &str) -> Result<(), FetchError> {
        if found == self.revision {
            return Ok(());
        }
        Err(FetchError::refused(format!(
            "{}: its content is no longer that of revision {}; fetch it without --revision to take what is there now",
            self.source.uri(),
            text::one_line(&self.revision)
        )))
    }

    fn key(&self) -> String {
        let mut hash = Sha256::new();
        let variant = self.source.variant(self.options.safetensors_only);
        for part in [&self.address.without_revision(), &variant, &self.revision] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        names::hex(&hash.finalize()[..16])
    }

    fn fetched(&self, key: &str, entry: Entry) -> Fetched {
        let data = self.cache.data(key);
        Fetched {
            uri: self.address.to_string(),
            key: key.to_owned(),
            revision: self.revision.clone(),
            path: entry.file.map_or(data.clone(), |file| data.join(file)),
            bytes: entry.bytes,
            files: entry.files,
            from_network: self.progress.now().network,
            set_aside: self.set_aside.lock().clone(),
            removed: self.removed.lock().clone(),
        }
    }
}

/// The files of a source, on the disk of the cache; and their revision.
async fn list(
    cache: &Cache,
    source: &Source,
    revision: Option<&str>,
    options: &Options,
) -> Result<(Listing, String), FetchError> {
    let cache = cache.clone();
    let spool = blocking(move || cache.spool()).await?;
    source.list(revision, spool, options.safetensors_only).await
}

/// Runs work that may wait for a disk on a thread that may.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, FetchError> + Send + 'static,
) -> Result<T, FetchError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(FetchError::new(FetchErrorKind::Local, format!("{error}; report this as a bug"))))
}
