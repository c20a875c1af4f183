//! The few kinds of requests to a store, with errors for people. Keys are relative to the prefix.

use crate::error::{ErrorKind, StoreError};
use crate::folder::{Entry, Folder};
use crate::payload_memory::PayloadMemory;
use crate::read::RangeRead;
use address::{Destination, Scheme};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path as Key;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;

/// Bytes that are read at once from a file in a folder.
const SLICE: u64 = 1024 * 1024;
/// Maximum number of objects in a list.
const MOST: usize = 1_000_000;
/// Maximum memory of a list, in bytes.
const LISTED: usize = 96 * 1024 * 1024;
/// Maximum number of pages in a list. All stores return a thousand keys in one, and now and then a page without any.
const PAGES: usize = 4_000;

/// An open store.
#[derive(Clone)]
pub(crate) enum Backend {
    Cloud {
        objects: Arc<dyn ObjectStore>,
        parts: Arc<dyn MultipartStore>,
        pages: Arc<dyn PaginatedListStore>,
        /// Timeout for a list with all its pages, or for any other complete answer that is not object data.
        answer: Duration,
    },
    Folder(Folder),
}

/// An object in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its key, relative to the prefix of the destination. Empty for the object whose key is the prefix itself.
    pub key: String,
    /// Its length in bytes.
    pub size: u64,
    /// Differs if the content does.
    pub tag: Option<String>,
}

/// One page of a list.
#[derive(Debug, Default)]
pub struct Page {
    /// The objects in the store's order, which is that of their keys' bytes in S3, GCS and Azure.
    pub objects: Vec<Object>,
    /// Common prefixes, if the list is of one level.
    pub(crate) folders: usize,
    /// Token for the next page. `None` after the last page.
    pub next: Option<String>,
}

impl From<Entry> for Object {
    fn from((key, size, tag): Entry) -> Self {
        Self { key, size, tag: Some(tag) }
    }
}

/// What lies below a prefix.
#[derive(Clone)]
pub(crate) struct Bucket {
    pub destination: Destination,
    pub backend: Backend,
    /// Memory for data that is read and sent.
    pub room: PayloadMemory,
}

/// A tag without its quotes, which Azure leaves out in lists.
fn bare_tag(tag: &str) -> &str {
    tag.trim_start_matches("W/").trim_matches('"')
}

/// The bytes of a small object, with their share of the memory.
struct Small {
    bytes: Vec<u8>,
    _room: Option<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for Small {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

type Result<T> = std::result::Result<T, StoreError>;

impl Bucket {
    fn key(&self, relative: &str) -> Result<Key> {
        let key = self.destination.key(relative);
        Key::parse(&key).map_err(|error| StoreError::invalid(format!("{}: {error}", self.destination.uri(relative))))
    }

    /// Whether there can be an object at this key.
    pub fn check_key(&self, relative: &str) -> Result<()> {
        let key = self.destination.key(relative);
        if key.len() > address::key::LONGEST && self.destination.scheme != Scheme::File {
            let (uri, most) = (self.destination.uri(relative), address::key::LONGEST);
            return Err(StoreError::invalid(format!("{uri}: the key has {} bytes, and can have {most}", key.len())));
        }
        self.key(relative).map(drop)
    }

    fn failed(&self, relative: &str, error: &object_store::Error) -> StoreError {
        StoreError::of_store(&self.destination.uri(relative), error)
    }

    /// Limits the total time for a result, even if the store keeps answering.
    async fn in_time<T>(&self, relative: &str, time: Duration, work: impl Future<Output = Result<T>>) -> Result<T> {
        let late = |_| {
            let (uri, time) = (self.destination.uri(relative), time.as_secs_f32());
            let remedy = "Check that the endpoint can be reached from this pod; it will be tried again";
            Err(StoreError::new(ErrorKind::Unavailable, format!("{uri}: no whole answer within {time} s. {remedy}")))
        };
        tokio::time::timeout(time, work).await.unwrap_or_else(late)
    }

    /// Runs work on a folder in a thread of its own, because a file server may take any time for it.
    async fn in_folder<T: Send + 'static>(
        &self,
        relative: &str,
        folder: &Folder,
        work: impl FnOnce(&Folder) -> io::Result<T> + Send + 'static,
    ) -> Result<T> {
        let folder = folder.clone();
        let done = tokio::task::spawn_blocking(move || work(&folder)).await;
        done.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(|error| {
            let trouble = match error.kind() {
                io::ErrorKind::NotFound => ErrorKind::NotFound,
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ErrorKind::Denied,
                io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => ErrorKind::Invalid,
                io::ErrorKind::UnexpectedEof => ErrorKind::Changed,
                _ => ErrorKind::Unavailable,
            };
            StoreError::new(trouble, format!("{}: {error}", self.destination.uri(relative)))
        })
    }

    pub async fn put(&self, relative: &str, slices: Vec<Bytes>) -> Result<()> {
        match &self.backend {
            Backend::Cloud { objects, .. } => {
                let key = self.key(relative)?;
                objects
                    .put(&key, PutPayload::from_iter(slices))
                    .await
                    .map_err(|error| self.failed(relative, &error))?;
                Ok(())
            }
            Backend::Folder(folder) => {
                let key = relative.to_owned();
                self.in_folder(relative, folder, move |folder| folder.put(&key, &slices)).await
            }
        }
    }

    /// Writes an object unless it exists. Returns whether this call wrote it.
    pub async fn create(&self, relative: &str, bytes: Bytes) -> Result<bool> {
        match &self.backend {
            Backend::Cloud { objects, .. } => {
                let key = self.key(relative)?;
                let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
                match objects.put_opts(&key, PutPayload::from_bytes(bytes), options).await {
                    Ok(_) => Ok(true),
                    Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
                        Ok(false)
                    }
                    Err(error) => Err(self.failed(relative, &error)),
                }
            }
            Backend::Folder(folder) => {
                let key = relative.to_owned();
                self.in_folder(relative, folder, move |folder| folder.create(&key, &bytes)).await
            }
        }
    }

    pub async fn head(&self, relative: &str) -> Result<Option<Object>> {
        match &self.backend {
            Backend::Cloud { objects, .. } => match objects.head(&self.key(relative)?).await {
                Ok(found) => Ok(Some(Object { key: relative.to_owned(), size: found.size, tag: found.e_tag })),
                Err(object_store::Error::NotFound { .. }) => Ok(None),
                Err(error) => Err(self.failed(relative, &error)),
            },
            Backend::Folder(folder) => {
                let key = relative.to_owned();
                Ok(self.in_folder(relative, folder, move |folder| folder.head(&key)).await?.map(Object::from))
            }
        }
    }

    /// The whole content of a small object, `None` if there is none.
    pub async fn get(&self, relative: &str, limit: u64) -> Result<Option<Bytes>> {
        let too_large = |size| {
            StoreError::corrupted(format!(
                "{}: {size} bytes, more than the {limit} that it can have",
                self.destination.uri(relative)
            ))
        };
        match &self.backend {
            Backend::Cloud { objects, answer, .. } => {
                let read = async {
                    let found = match objects.get(&self.key(relative)?).await {
                        Ok(found) => found,
                        Err(error @ object_store::Error::NotFound { .. }) => {
                            let error = self.failed(relative, &error);
                            // A missing bucket must be reported as an error; a missing object is an answer.
                            let codes = ["NoSuchBucket", "ContainerNotFound"];
                            let is_bucket = codes.iter().any(|code| error.to_string().contains(code));
                            return if is_bucket { Err(error) } else { Ok(None) };
                        }
                        Err(error) => return Err(self.failed(relative, &error)),
                    };
                    let size = found.meta.size;
                    if size > limit {
                        return Err(too_large(size));
                    }
                    // Many objects are read at once, and the decoded form of each takes as much memory as its bytes.
                    let room = self.room.take(size.saturating_mul(2)).await;
                    let mut small = Small { bytes: Vec::with_capacity(size as usize), _room: room };
                    let mut read = found.into_stream();
                    while let Some(chunk) = read.try_next().await.map_err(|error| self.failed(relative, &error))? {
                        small.bytes.extend_from_slice(&chunk);
                        if small.bytes.len() as u64 > size {
                            return Err(too_large(small.bytes.len() as u64));
                        }
                    }
                    Ok(Some(Bytes::from_owner(small)))
                };
                self.in_time(relative, *answer, read).await
            }
            Backend::Folder(folder) => {
                let Some(object) = self.head(relative).await? else { return Ok(None) };
                if object.size > limit {
                    return Err(too_large(object.size));
                }
                let (key, size) = (relative.to_owned(), object.size as usize);
                self.in_folder(relative, folder, move |folder| folder.read(&key, 0, size)).await.map(Some)
            }
        }
    }

    /// The bytes of a range that is not empty, if the object is still the one with `tag`.
    pub async fn range(&self, relative: &str, range: Range<u64>, tag: Option<String>) -> Result<RangeRead<'_>> {
        let changed = || {
            let uri = self.destination.uri(relative);
            StoreError::new(ErrorKind::Changed, format!("{uri}: it was changed meanwhile"))
        };
        match &self.backend {
            Backend::Cloud { objects, .. } => {
                let if_match = tag.clone();
                let options = GetOptions { range: Some(GetRange::Bounded(range)), if_match, ..GetOptions::default() };
                let found = objects.get_opts(&self.key(relative)?, options).await;
                let found = found.map_err(|error| self.failed(relative, &error))?;
                // Some servers do not know If-Match.
                if let (Some(tag), Some(found)) = (&tag, &found.meta.e_tag)
                    && bare_tag(tag) != bare_tag(found)
                {
                    return Err(changed());
                }
                let (uri, size) = (self.destination.uri(relative), found.meta.size);
                let bytes = found.into_stream().map_err(move |error| StoreError::of_store(&uri, &error)).boxed();
                Ok(RangeRead { size, bytes })
            }
            Backend::Folder(folder) => {
                let gone = || match tag {
                    Some(_) => changed(),
                    None => {
                        StoreError::new(ErrorKind::NotFound, format!("{}: it is gone", self.destination.uri(relative)))
                    }
                };
                let object = self.head(relative).await?.ok_or_else(gone)?;
                if tag.is_some() && object.tag != tag {
                    return Err(changed());
                }
                let key = relative.to_owned();
                let read = stream::try_unfold(range.start, move |at| {
                    let (key, end) = (key.clone(), range.end);
                    async move {
                        let length = SLICE.min(end - at);
                        if length == 0 {
                            return Ok(None);
                        }
                        let file = key.clone();
                        let read = move |folder: &Folder| folder.read(&file, at, length as usize);
                        Ok(Some((self.in_folder(&key, folder, read).await?, at + length)))
                    }
                });
                Ok(RangeRead { size: object.size, bytes: read.boxed() })
            }
        }
    }

    /// The objects directly below `relative`, or all of them; sorted by key.
    pub async fn list(&self, relative: &str, deep: bool) -> Result<Vec<Object>> {
        let mut found = match &self.backend {
            Backend::Cloud { pages, answer, .. } => {
                self.in_time(relative, *answer, self.list_pages(&**pages, relative, deep)).await?
            }
            Backend::Folder(folder) => {
                let below = relative.to_owned();
                let listed = self.in_folder(relative, folder, move |folder| folder.list(&below, deep, MOST)).await?;
                listed.into_iter().map(Object::from).collect()
            }
        };
        found.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(found)
    }

    /// All pages of a list. The library's own function has no limit. It would query a store forever that always answers
    /// with a next page.
    async fn list_pages(&self, store: &dyn PaginatedListStore, relative: &str, deep: bool) -> Result<Vec<Object>> {
        let uri = || self.destination.uri(relative);
        let (mut found, mut folders, mut memory, mut token) = (Vec::new(), 0, 0, None);
        for _ in 0..PAGES {
            let page = self.page(store, relative, deep, token).await?;
            folders += page.folders;
            for object in page.objects {
                memory += size_of::<Object>() + object.key.len() + object.tag.as_ref().map_or(0, String::len);
                found.push(object);
            }
            if found.len() + folders > MOST || memory > LISTED {
                let count = found.len() + folders;
                let why = format!("{}: more than {MOST} objects, or longer names ({count} are read)", uri());
                return Err(StoreError::invalid(format!("{why}. Name a prefix with fewer, or remove some")));
            }
            token = page.next;
            if token.is_none() {
                return Ok(found);
            }
        }
        let count = found.len();
        let why = format!("{}: the list has no end after {PAGES} pages with {count} objects", uri());
        Err(StoreError::new(ErrorKind::Refused, format!("{why}. Check that the endpoint is that of the store")))
    }

    /// One page of a list. The object with the key `relative` and a `/` is left out, because consoles create it to show
    /// a folder.
    async fn page(
        &self,
        store: &dyn PaginatedListStore,
        relative: &str,
        deep: bool,
        token: Option<String>,
    ) -> Result<Page> {
        let prefix = Some(self.key(relative)?.to_string()).filter(|prefix| !prefix.is_empty());
        let listed_below = prefix.as_ref().map(|prefix| format!("{prefix}/"));
        let options = PaginatedListOptions {
            delimiter: (!deep).then(|| "/".into()),
            page_token: token,
            ..PaginatedListOptions::default()
        };
        let page = store.list_paginated(listed_below.as_deref(), options).await;
        let page = page.map_err(|error| self.failed(relative, &error))?;
        let real = |object: &ObjectMeta| Some(object.location.as_ref()) != prefix.as_deref();
        let objects = page.result.objects.into_iter().filter(real).map(|object| self.relative(object));
        Ok(Page {
            objects: objects.collect::<Result<_>>()?,
            folders: page.result.common_prefixes.len(),
            next: page.page_token.filter(|token| !token.is_empty()),
        })
    }

    /// The next page of all objects below the prefix.
    pub async fn next_page(&self, token: Option<String>) -> Result<Page> {
        match &self.backend {
            Backend::Cloud { pages, answer, .. } => {
                self.in_time("", *answer, self.page(&**pages, "", true, token)).await
            }
            Backend::Folder(_) => Ok(Page { objects: self.list("", true).await?, ..Page::default() }),
        }
    }

    fn relative(&self, object: ObjectMeta) -> Result<Object> {
        let key = object.location.as_ref();
        let relative = match self.destination.prefix.as_str() {
            "" => Some(key),
            prefix => key.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('/')),
        };
        let Some(relative) = relative else {
            return Err(StoreError::corrupted(format!("{}: was answered with the key {key}", self.destination)));
        };
        Ok(Object { key: relative.to_owned(), size: object.size, tag: object.e_tag })
    }

    /// Removes an object. A missing one is no error.
    pub async fn delete(&self, relative: &str) -> Result<()> {
        match &self.backend {
            Backend::Cloud { objects, .. } => match objects.delete(&self.key(relative)?).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
                Err(error) => Err(self.failed(relative, &error)),
            },
            Backend::Folder(folder) => {
                let key = relative.to_owned();
                self.in_folder(relative, folder, move |folder| folder.delete(&key)).await
            }
        }
    }

    /// Begins an object that is sent in parts. Returns its upload's id.
    pub async fn begin(&self, relative: &str) -> Result<String> {
        match &self.backend {
            Backend::Cloud { parts, .. } => {
                parts.create_multipart(&self.key(relative)?).await.map_err(|error| self.failed(relative, &error))
            }
            Backend::Folder(folder) => {
                let key = relative.to_owned();
                self.in_folder(relative, folder, move |folder| folder.begin(&key)).await
            }
        }
    }

    /// Sends the part `index` (from 0), which begins at `offset`. Returns its id.
    pub async fn part(
        &self,
        relative: &str,
        id: &str,
        index: usize,
        offset: u64,
        slices: Vec<Bytes>,
    ) -> Result<String> {
        match &self.backend {
            Backend::Cloud { parts, .. } => {
                let sent =
                    parts.put_part(&self.key(relative)?, &id.to_owned(), index, PutPayload::from_iter(slices)).await;
                Ok(sent.map_err(|error| self.failed(relative, &error))?.content_id)
            }
            Backend::Folder(folder) => {
                let id = id.to_owned();
                self.in_folder(relative, folder, move |folder| folder.part(&id, offset, &slices)).await?;
                Ok(index.to_string())
            }
        }
    }

    /// Assembles the parts with these ids, in their order.
    pub async fn complete(&self, relative: &str, id: &str, ids: Vec<String>) -> Result<()> {
        match &self.backend {
            Backend::Cloud { parts, .. } => {
                let ids = ids.into_iter().map(|content_id| PartId { content_id }).collect();
                let done = parts.complete_multipart(&self.key(relative)?, &id.to_owned(), ids).await;
                done.map_err(|error| self.failed(relative, &error))?;
                Ok(())
            }
            Backend::Folder(folder) => {
                let (key, id) = (relative.to_owned(), id.to_owned());
                self.in_folder(relative, folder, move |folder| folder.complete(&key, &id)).await
            }
        }
    }

    /// Abandons an upload. A missing one is no error.
    pub async fn abort(&self, relative: &str, id: &str) -> Result<()> {
        match &self.backend {
            Backend::Cloud { parts, .. } => match parts.abort_multipart(&self.key(relative)?, &id.to_owned()).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
                Err(error) => Err(self.failed(relative, &error)),
            },
            Backend::Folder(folder) => {
                let id = id.to_owned();
                self.in_folder(relative, folder, move |folder| folder.abort(&id)).await
            }
        }
    }

    /// The same store below another prefix.
    pub fn at(&self, prefix: &str) -> Self {
        let destination = Destination { prefix: prefix.to_owned(), ..self.destination.clone() };
        let backend = match (&self.backend, destination.scheme) {
            (Backend::Folder(_), Scheme::File) => Backend::Folder(Folder { root: destination.folder() }),
            (other, _) => other.clone(),
        };
        Self { destination, backend, room: self.room.clone() }
    }
}
