//! Fetching a checkpoint. It goes to a folder of this crate first, and only when it is whole and checked to the place
//! where a program looks.

use crate::backend::{Bucket, Object};
use crate::error::{ErrorKind, StoreError};
use crate::journal::Journal;
use crate::manifest::{Layout, Manifest};
use crate::transport::LEAST_DATA;
use crate::upload::blocking;
use crate::{FILES, PARTS, RANGE, Store, names};
use bytes::Bytes;
use checkpoint::folder::Folder;
use checkpoint::space::{Space, space};
use futures::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{self, File, FileTimes};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// How often a range is requested again after a failure, if almost nothing has arrived in between.
const TRIES: u32 = 4;
/// Folder below a root for fetched data that is not whole yet.
const RESTORE: &str = ".trainingjob/restore";
/// Number of prefixes above a URI that are searched for the manifest of a checkpoint below it.
const ANCESTORS: usize = 6;

/// Note that a range of a file is on the disk.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct JournalLine {
    file: String,
    start: u64,
    size: u64,
    crc32c: u32,
}

/// A file to be fetched.
struct RemoteFile {
    /// Relative to the destination.
    path: String,
    key: String,
    size: u64,
    /// The CRC that it must have. None if the file was not uploaded by this crate.
    crc32c: Option<u32>,
    tag: Option<String>,
}

/// Folders of fetched data that is not whole yet. They are open, so that nothing is written or removed elsewhere,
/// whatever a program does to their names.
#[derive(Clone)]
struct PartialFetch {
    /// The folder of all places.
    places: Arc<Folder>,
    /// The folder of the data for one place.
    place: Arc<Folder>,
    place_name: String,
    /// The folder of the data that is fetched now.
    folder: Arc<Folder>,
    /// Its name in `place`.
    name: String,
    /// Its path, for people.
    path: PathBuf,
}

impl PartialFetch {
    fn journal(&self) -> String {
        format!("{}.jsonl", self.name)
    }
}

/// A fetch in progress.
struct Fetch<'a> {
    store: &'a Store,
    bucket: &'a Bucket,
    to: PartialFetch,
    journal: Mutex<Journal>,
    journal_path: PathBuf,
    /// Size and CRC of each range on the disk, by file and start.
    known: HashMap<(String, u64), (u64, u32)>,
}

impl Store {
    /// Fetches a checkpoint to its path below `root`, and returns that path for the program.
    ///
    /// The fetch goes into `root/.trainingjob/restore` and continues where an earlier try was cut. It checks length and
    /// CRC-32C file by file. Only when everything is on the disk is it moved to its place, where it replaces what was
    /// there. A folder is moved in one step, files one by one. Folders of a root that are links are refused.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupted`] if an object is not what was uploaded; [`ErrorKind::Local`] if the disk is full or fails.
    pub async fn restore(&self, manifest: &Manifest, root: &Path) -> Result<PathBuf, StoreError> {
        let manifest = &*self.whole(manifest).await?;
        self.restore_from(&self.bucket, manifest, root, &manifest.path).await
    }

    /// Fetches a checkpoint, and the files beside the checkpoints of its folder, for a program that resumes from it.
    ///
    /// # Errors
    /// As [`Store::restore`].
    pub async fn restore_with_beside(&self, manifest: &Manifest, root: &Path) -> Result<(), StoreError> {
        self.restore(manifest, root).await?;
        let folder = manifest.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        self.restore_beside(folder, root).await.map(drop)
    }

    /// Fetches the files beside the checkpoints of a folder, except those that exist. Returns the names of the fetched
    /// files.
    ///
    /// # Errors
    /// As [`Store::restore`].
    pub async fn restore_beside(&self, folder: &str, root: &Path) -> Result<Vec<String>, StoreError> {
        let path = beside(folder);
        self.space().await?;
        let Some(mut manifest) = self.manifest(&path).await? else { return Ok(Vec::new()) };
        let is_there = |file: &crate::StoredFile| root.join(folder).join(&file.path).symlink_metadata().is_ok();
        manifest.files.retain(|file| !is_there(file));
        if manifest.files.is_empty() {
            return Ok(Vec::new());
        }
        self.restore(&manifest, root).await?;
        Ok(manifest.files.into_iter().map(|file| file.path).collect())
    }

    async fn restore_from(
        &self,
        bucket: &Bucket,
        manifest: &Manifest,
        root: &Path,
        to: &str,
    ) -> Result<PathBuf, StoreError> {
        let wanted = manifest
            .files
            .iter()
            .map(|file| RemoteFile {
                path: file.path.clone(),
                key: file.key.clone(),
                size: file.size,
                crc32c: Some(file.crc32c),
                tag: None,
            })
            .collect::<Vec<_>>();
        let content = [manifest.identity.as_str(), &manifest.stored.to_string(), &manifest.generation.to_string()];
        let content = names::digest(content);
        let fetched = self.fetch(bucket, root, to, &content, wanted).await?;
        keep_times(&fetched, manifest).await?;
        place(root, to, manifest.layout, fetched).await
    }

    /// Fetches the content at this store's URI itself, from any writer: a folder, or one object. It goes to `folder`
    /// below `root` (to the root itself if `folder` is empty), under the last name of the URI. Returns that path.
    ///
    /// A checkpoint that this crate uploaded (its manifest is searched for above it) is checked as by
    /// [`Store::restore`]. For other content only the lengths are known. The result does not appear before it is whole.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if nothing is there, [`ErrorKind::Invalid`] with the key if a key below it can't be a file's
    /// path.
    pub async fn restore_prefix(&self, root: &Path, folder: &str) -> Result<PathBuf, StoreError> {
        let below = |name: &str| if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") };
        let uri = self.destination.to_string();
        let prefix = self.destination.prefix.clone();
        let name = match prefix.rsplit('/').next() {
            Some(name) if !name.is_empty() => name.to_owned(),
            _ => {
                return Err(StoreError::invalid(format!(
                    "{uri}: a whole bucket is no checkpoint: name a prefix in it"
                )));
            }
        };
        for (at, _) in prefix.rmatch_indices('/').chain([(0, "")]).take(ANCESTORS) {
            let (above, path) = (&prefix[..at], prefix[at..].trim_start_matches('/'));
            if above.is_empty() && matches!(self.bucket.backend, crate::backend::Backend::Folder(_)) {
                break;
            }
            let bucket = self.bucket.at(above);
            // An identity that may read only below the prefix is denied this.
            let mut known = manifest_in(&bucket, path, None).await;
            let mut name = name.as_str();
            if let (Ok(None), Some((path, space))) = (&known, path.rsplit_once('~').filter(|it| names::is_space(it.1)))
            {
                known = manifest_in(&bucket, path, Some(space)).await;
                name = path.rsplit_once('/').map_or(path, |(_, name)| name);
            }
            if let Ok(Some(manifest)) = known {
                return self.restore_from(&bucket, &manifest, root, &below(name)).await;
            }
        }
        let above = self.bucket.at(prefix.rsplit_once('/').map_or("", |(above, _)| above));
        let (layout, objects) = match self.bucket.list("", true).await {
            Ok(objects) if !objects.is_empty() => (Layout::Folder, objects),
            Ok(_) | Err(StoreError { trouble: ErrorKind::NotFound, .. }) => match above.head(&name).await? {
                Some(object) => (Layout::Beside, vec![object]),
                None => {
                    let why = format!("{uri}: there is nothing: no object has this key or begins with it and a /");
                    return Err(StoreError::new(ErrorKind::NotFound, why));
                }
            },
            Err(error) => return Err(odd_key(error)),
        };
        let bucket = if layout == Layout::Folder { &self.bucket } else { &above };
        // Consoles create an empty object to show a folder. A file below it shows the folder as well.
        let real = |object: &&Object| !(object.size == 0 && is_folder_of_another(object, &objects));
        let mut wanted = Vec::new();
        for object in objects.iter().filter(real) {
            if let Err(why) = address::key::check(&object.key) {
                let key = object.key.escape_debug();
                return Err(StoreError::invalid(format!(
                    "{uri}: the key {key} {why}, so it can't be a file: remove it"
                )));
            }
            let (path, key) = (object.key.clone(), object.key.clone());
            wanted.push(RemoteFile { path, key, size: object.size, crc32c: None, tag: object.tag.clone() });
        }
        let described =
            wanted.iter().map(|file| format!("{} {} {:?}", file.path, file.size, file.tag)).collect::<Vec<_>>();
        let content = names::digest(described.iter().map(String::as_str));
        let to = below(&name);
        let fetched = self.fetch(bucket, root, &to, &content, wanted).await?;
        place(root, &to, layout, fetched).await
    }

    /// Number of files and their bytes at this store's URI itself, from any writer.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if nothing is there.
    pub async fn look(&self) -> Result<(usize, u64), StoreError> {
        let objects = self.bucket.list("", true).await?;
        if !objects.is_empty() {
            return Ok((objects.len(), objects.iter().map(|object| object.size).sum()));
        }
        let prefix = &self.destination.prefix;
        let (above, name) = prefix.rsplit_once('/').unwrap_or(("", prefix));
        match self.bucket.at(above).head(name).await? {
            Some(object) => Ok((1, object.size)),
            None => {
                let uri = &self.destination;
                let why = format!("{uri}: there is nothing: no object has this key or begins with it and a /");
                Err(StoreError::new(ErrorKind::NotFound, why))
            }
        }
    }

    /// Reads all of a checkpoint in the store and compares it with its manifest, without keeping any of it.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupted`] with the object that is not what was uploaded.
    pub async fn verify(&self, manifest: &Manifest) -> Result<(), StoreError> {
        let manifest = &*self.whole(manifest).await?;
        self.progress.begin(manifest.bytes, manifest.files.len() as u64);
        let bucket = &self.bucket;
        stream::iter(&manifest.files)
            .map(|file| async move {
                let mut crc = 0;
                let mut start = 0;
                while start < file.size {
                    let size = RANGE.min(file.size - start);
                    let range = Range { key: &file.key, start, size, tag: None };
                    let next = stream_range(self, bucket, range, |_, _| async { Ok(()) }).await?;
                    crc = crc32c::crc32c_combine(crc, next, size as usize);
                    start += size;
                }
                self.progress.file();
                match bucket.head(&file.key).await? {
                    Some(object) if object.size == file.size && crc == file.crc32c => Ok(()),
                    _ => Err(damaged(self, bucket, &file.key, file.crc32c, crc)),
                }
            })
            .buffer_unordered(PARTS)
            .try_collect()
            .await
    }

    /// Fetches everything into a folder of this crate, which is returned.
    async fn fetch(
        &self,
        bucket: &Bucket,
        root: &Path,
        to: &str,
        content: &str,
        wanted: Vec<RemoteFile>,
    ) -> Result<PartialFetch, StoreError> {
        // One folder for each place; in it one for each content that is to go there.
        let (place_name, name) = (names::digest([to]), content.to_owned());
        let path = root.join(RESTORE).join(&place_name).join(&name);
        let journal_path = path.with_extension("jsonl");
        let (root, at, total) = (root.to_owned(), path.clone(), wanted.iter().map(|file| file.size).sum::<u64>());
        let (to, journal, lines) = blocking(move || {
            let local = |error| StoreError::local(&at, &error);
            fs::create_dir_all(&root).map_err(local)?;
            let places = Arc::new(make_below(&root, RESTORE)?);
            let place = Arc::new(places.make(&place_name).map_err(|error| link_or_local(&at, &error))?);
            for other in place.names().map_err(local)?.iter().filter(|other| !other.starts_with(&name)) {
                place.remove(other).map_err(local)?;
            }
            let folder = Arc::new(place.make(&name).map_err(|error| link_or_local(&at, &error))?);
            let to = PartialFetch { places, place, place_name, folder, name, path: at.clone() };
            let (journal, lines) = Journal::open::<JournalLine>(&to.place, &to.journal()).map_err(local)?;
            let done: u64 = lines.iter().map(|line| line.size).sum();
            has_room(&at, &to.folder, total.saturating_sub(done))?;
            Ok((to, journal, lines))
        })
        .await?;
        let known = lines.into_iter().map(|line| ((line.file, line.start), (line.size, line.crc32c))).collect();
        let fetch = Fetch { store: self, bucket, to, journal: Mutex::new(journal), journal_path, known };
        self.progress.begin(total, wanted.len() as u64);
        let all = stream::iter(&wanted).map(|file| fetch.file(file)).buffer_unordered(FILES);
        if let Err(error) = all.try_collect::<()>().await {
            if matches!(error.trouble, ErrorKind::Corrupted | ErrorKind::Changed) {
                // A later try uses nothing of it.
                let to = fetch.to.clone();
                drop(
                    blocking(move || {
                        drop(to.place.remove(&to.name));
                        drop(to.place.remove(&to.journal()));
                        Ok(())
                    })
                    .await,
                );
            }
            return Err(error);
        }
        Ok(fetch.to)
    }
}

impl Fetch<'_> {
    async fn file(&self, file: &RemoteFile) -> Result<(), StoreError> {
        let path = self.to.path.join(&file.path);
        let (at, below, size, top) = (path.clone(), file.path.clone(), file.size, Arc::clone(&self.to.folder));
        let open = blocking(move || {
            let (folder, name) = below.rsplit_once('/').unwrap_or(("", &below));
            let open = top.make_all(folder).and_then(|folder| folder.writable(name));
            let open = open.map_err(|error| link_or_local(&at, &error))?;
            let length = open.metadata().map_err(|error| StoreError::local(&at, &error))?.len();
            if length > size {
                open.set_len(size).map_err(|error| StoreError::local(&at, &error))?;
            }
            Ok(open)
        })
        .await?;
        let open = Arc::new(open);
        let ranges = (0..file.size.div_ceil(RANGE)).map(|index| index * RANGE);
        let (this, path, handle) = (self, &path, &open);
        let crcs: Vec<(u32, u64)> = stream::iter(ranges)
            .map(|start| async move {
                let size = RANGE.min(file.size - start);
                Ok::<_, StoreError>((this.range(file, path, handle, start, size).await?, size))
            })
            .buffered(PARTS)
            .try_collect()
            .await?;
        let crc = crcs.iter().fold(0, |crc, (next, size)| crc32c::crc32c_combine(crc, *next, *size as usize));
        if let Some(expected) = file.crc32c.filter(|expected| *expected != crc) {
            return Err(damaged(self.store, self.bucket, &file.key, expected, crc));
        }
        let (path, open) = (path.clone(), open);
        blocking(move || open.sync_all().map_err(|error| StoreError::local(&path, &error))).await?;
        self.store.progress.file();
        Ok(())
    }

    async fn range(
        &self,
        file: &RemoteFile,
        path: &Path,
        open: &Arc<File>,
        start: u64,
        size: u64,
    ) -> Result<u32, StoreError> {
        if let Some((_, crc)) = self.known.get(&(file.path.clone(), start)).filter(|(known, _)| *known == size) {
            // It may have been written before a crash, so the data on the disk is read again.
            let (file, expected) = (Arc::clone(open), *crc);
            let kept = blocking(move || Ok(crc_of(&file, start, size).is_ok_and(|crc| crc == expected))).await?;
            if kept {
                self.store.progress.skip(size);
                return Ok(expected);
            }
        }
        let write = |at: u64, bytes: Bytes| {
            let (open, path) = (Arc::clone(open), path.to_owned());
            blocking(move || open.write_all_at(&bytes, at).map_err(|error| StoreError::local(&path, &error)))
        };
        let range = Range { key: &file.key, start, size, tag: file.tag.clone() };
        let crc32c = stream_range(self.store, self.bucket, range, write).await?;
        let line = JournalLine { file: file.path.clone(), start, size, crc32c };
        self.journal.lock().note(&line).map_err(|error| StoreError::local(&self.journal_path, &error))?;
        Ok(crc32c)
    }
}

/// A part of an object.
struct Range<'a> {
    key: &'a str,
    start: u64,
    size: u64,
    /// The version that it has to have, if a certain one is required.
    tag: Option<String>,
}

/// Reads a range in pieces, and passes each to `sink` with its place in the object. Continues where a connection was
/// cut. Returns the checksum of all pieces.
async fn stream_range<F: Future<Output = Result<(), StoreError>>>(
    store: &Store,
    bucket: &Bucket,
    Range { key, start, size, tag }: Range<'_>,
    sink: impl Fn(u64, Bytes) -> F,
) -> Result<u32, StoreError> {
    let (mut at, end, mut crc, mut tries) = (start, start + size, 0, 0);
    while at < end {
        let before = at;
        let read = async {
            let mut pieces = bucket.range(key, at..end, tag.clone()).await?.bytes;
            while let Some(piece) = pieces.try_next().await? {
                let length = piece.len() as u64;
                if length > end - at {
                    return Err(StoreError::corrupted(format!(
                        "{}: more bytes than asked for",
                        bucket.destination.uri(key)
                    )));
                }
                crc = crc32c::crc32c_append(crc, &piece);
                sink(at, piece).await?;
                at += length;
                store.progress.sent(length);
            }
            Ok(())
        };
        match read.await {
            Ok(()) if at == end => break,
            Err(error) if error.trouble != ErrorKind::Unavailable => {
                let gone = matches!(error.trouble, ErrorKind::NotFound) || error.status == Some(416);
                return Err(if gone { missing(bucket, key, &error) } else { error });
            }
            result => {
                // A store that sends a few bytes each time would be asked forever.
                tries = if at - before >= LEAST_DATA { 0 } else { tries + 1 };
                if tries >= TRIES {
                    return Err(result.err().unwrap_or_else(|| {
                        let uri = bucket.destination.uri(key);
                        StoreError::corrupted(format!("{uri}: it ends after {at} bytes, where {end} were expected"))
                    }));
                }
                let pause = Duration::from_millis(100 << tries).min(store.patience.retry_for);
                tokio::time::sleep(pause).await;
            }
        }
    }
    Ok(crc)
}

fn missing(bucket: &Bucket, key: &str, error: &StoreError) -> StoreError {
    let uri = bucket.destination.uri(key);
    StoreError::corrupted(format!(
        "{uri}: an object that the checkpoint needs is gone or shorter than it was ({error})"
    ))
}

fn damaged(store: &Store, bucket: &Bucket, key: &str, expected: u32, crc: u32) -> StoreError {
    debug_assert_eq!(store.destination.scheme, bucket.destination.scheme);
    let uri = bucket.destination.uri(key);
    StoreError::corrupted(format!(
        "{uri}: its content is not what was uploaded (CRC-32C {crc:08x} and not {expected:08x})"
    ))
}

/// Adds the remedy to the error of a list that one key makes unreadable. The error has the key in it.
fn odd_key(error: StoreError) -> StoreError {
    if error.trouble == ErrorKind::Invalid {
        StoreError::invalid(format!(
            "{error}. A key below the prefix can't be a file: remove it, or name a prefix without it"
        ))
    } else {
        error
    }
}

fn is_folder_of_another(object: &Object, all: &[Object]) -> bool {
    object.key.is_empty() || {
        let below = format!("{}/", object.key);
        let at = all.partition_point(|other| other.key.as_str() < below.as_str());
        all.get(at).is_some_and(|other| other.key.starts_with(&below))
    }
}

pub(crate) async fn manifest_in(
    bucket: &Bucket,
    path: &str,
    space: Option<&str>,
) -> Result<Option<Manifest>, StoreError> {
    let key = Manifest::key_of(path, space);
    let Some(bytes) = bucket.get(&key, crate::manifest::LONGEST).await? else { return Ok(None) };
    let uri = bucket.destination.uri(&key);
    let manifest = Manifest::read(&uri, &bytes)?;
    if manifest.path != path {
        return Err(StoreError::corrupted(format!(
            "{uri}: it is of another checkpoint, {}",
            manifest.path.escape_debug()
        )));
    }
    Ok(Some(manifest))
}

/// Gives the files the times of the originals, by which a checkpoint is compared with its copy.
async fn keep_times(fetched: &PartialFetch, manifest: &Manifest) -> Result<(), StoreError> {
    let (fetched, files) = (fetched.clone(), manifest.files.clone());
    blocking(move || {
        for file in files {
            let time = SystemTime::UNIX_EPOCH + Duration::from_nanos(u64::try_from(file.modified).unwrap_or(0));
            let open = fetched.folder.file(&file.path);
            let set = open.and_then(|open| open.set_times(FileTimes::new().set_modified(time)));
            set.map_err(|error| StoreError::local(&fetched.path.join(&file.path), &error))?;
        }
        Ok(())
    })
    .await
}

/// Moves whole data to its place.
async fn place(root: &Path, to: &str, layout: Layout, fetched: PartialFetch) -> Result<PathBuf, StoreError> {
    let (root, to) = (root.to_owned(), to.to_owned());
    blocking(move || {
        let target = root.join(&to);
        let local = |error| StoreError::local(&target, &error);
        let (above, last) = to.rsplit_once('/').unwrap_or(("", &to));
        let parent = make_below(&root, above)?;
        fetched.folder.sync_all().map_err(local)?;
        let (place, name) = (&fetched.place, fetched.name.as_str());
        match layout {
            Layout::Folder => {
                let old = format!("{name}.old");
                place.remove(&old).map_err(local)?;
                match parent.rename(last, place, &old) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(local(error)),
                    _ => {}
                }
                place.rename(name, &parent, last).map_err(local)?;
                parent.sync().map_err(local)?;
                place.remove(&old).map_err(local)?;
            }
            Layout::Beside => {
                let mut files = fetched.folder.names().map_err(local)?;
                // TensorFlow considers a checkpoint whole when its index exists.
                files.sort_by_key(|file| (file.ends_with(".index"), file.clone()));
                for file in files {
                    fetched.folder.rename(&file, &parent, &file).map_err(local)?;
                }
                parent.sync().map_err(local)?;
                place.remove(name).map_err(local)?;
            }
        }
        drop(place.remove(&fetched.journal()));
        drop(fetched.places.remove_empty(&fetched.place_name));
        Ok(target)
    })
    .await
}

/// The folder at `path` below a root, after missing folders are created. Links on the way to the root are followed,
/// because its path comes from the job's creator. No link below the root is followed.
pub(crate) fn make_below(root: &Path, path: &str) -> Result<Folder, StoreError> {
    let made = Folder::root(root).and_then(|root| root.make_all(path));
    made.map_err(|error| link_or_local(&root.join(path), &error))
}

fn link_or_local(path: &Path, error: &io::Error) -> StoreError {
    if error.kind() == io::ErrorKind::NotADirectory || error.raw_os_error() == Some(nix::libc::ELOOP) {
        return StoreError::local(
            path,
            &io::Error::other("there is a link, or no folder, on the way to it: remove that"),
        );
    }
    StoreError::local(path, error)
}

/// The path of the files beside the checkpoints of a folder.
pub(crate) fn beside(folder: &str) -> String {
    let name = crate::manifest::BESIDE;
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}

/// Fails early if the volume has too little space. That is better than a failure after an hour.
fn has_room(path: &Path, folder: &Folder, needed: u64) -> Result<(), StoreError> {
    let Ok(Space { free, .. }) = space(folder) else { return Ok(()) };
    // Some file servers report nothing, or 0.
    if free == 0 || needed <= free {
        return Ok(());
    }
    let mib = |bytes: u64| bytes.div_ceil(1024 * 1024);
    let why = format!("the checkpoint needs {} MiB, and the volume has {} MiB free", mib(needed), mib(free));
    Err(StoreError::local(path, &io::Error::new(io::ErrorKind::StorageFull, why)))
}

fn crc_of(file: &File, start: u64, size: u64) -> io::Result<u32> {
    let mut buffer = vec![0; 256 * 1024];
    let (mut at, end, mut crc) = (start, start + size, 0);
    while at < end {
        let most = (end - at).min(buffer.len() as u64) as usize;
        let length = file.read_at(&mut buffer[..most], at)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        crc = crc32c::crc32c_append(crc, &buffer[..length]);
        at += length as u64;
    }
    Ok(crc)
}
