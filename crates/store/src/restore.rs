//! Fetching a checkpoint: into a folder of ours beside its place, whole and checked, and only then where a program
//! looks.

use crate::backend::{Bucket, Object};
use crate::error::{StoreError, Trouble};
use crate::journal::Journal;
use crate::manifest::{Layout, Manifest};
use crate::transport::LEAST_DATA;
use crate::upload::blocking;
use crate::{FILES, PARTS, RANGE, Store, names};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use nix::sys::statvfs::statvfs;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, FileTimes, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// How often a range is asked for again after a failure, if next to nothing has come between.
const TRIES: u32 = 4;
/// How many prefixes above a URI are looked at for the manifest of a checkpoint below it.
const ANCESTORS: usize = 6;

/// A range of a file is on the disk.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    file: String,
    start: u64,
    size: u64,
    crc32c: u32,
}

/// A file to be fetched.
struct Wanted {
    /// Relative to where it all goes.
    path: String,
    key: String,
    size: u64,
    /// What it must have; of what was not put there by us nobody knows.
    crc32c: Option<u32>,
    tag: Option<String>,
}

/// Everything that is to be fetched, and where it lies until it is whole.
struct Fetch<'a> {
    store: &'a Store,
    bucket: &'a Bucket,
    folder: PathBuf,
    journal: Mutex<Journal>,
    journal_path: PathBuf,
    /// By file and start: size and CRC.
    known: HashMap<(String, u64), (u64, u32)>,
}

impl Store {
    /// Fetches a checkpoint to its path below `root`, which is returned: what a program is to be given.
    ///
    /// It is fetched into `root/.trainingjob/restore`, goes on where an earlier try was cut, and is checked by length
    /// and CRC-32C, file by file. Only when all of it is on the disk is it moved to its place, where it replaces what
    /// was there. A folder goes there in one step, files one by one. Folders of a root that are links are refused.
    ///
    /// # Errors
    /// [`Trouble::Corrupted`] if an object is not what was uploaded; [`Trouble::Local`] if the disk is full or fails.
    pub async fn restore(&self, manifest: &Manifest, root: &Path) -> Result<PathBuf, StoreError> {
        let manifest = &*self.whole(manifest).await?;
        self.restore_from(&self.bucket, manifest, root, &manifest.path).await
    }

    /// Fetches what lay beside the checkpoints of a folder, but for what is there. Gives the names of what was fetched.
    ///
    /// # Errors
    /// As [`Store::restore`].
    pub async fn restore_beside(&self, folder: &str, root: &Path) -> Result<Vec<String>, StoreError> {
        let path = beside(folder);
        self.space().await?;
        let Some(mut manifest) = self.manifest(&path).await? else { return Ok(Vec::new()) };
        let is_there = |file: &crate::Stored| root.join(folder).join(&file.path).symlink_metadata().is_ok();
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
            .map(|file| Wanted {
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

    /// Fetches what lies at this store's URI itself, whoever has put it there: a folder, or one object. It comes to
    /// `to` under the last name of the URI, and that path is returned.
    ///
    /// If it is a checkpoint that was uploaded by us (its manifest is looked for above it), it is checked as by
    /// [`Store::restore`]; else only the lengths are known. It is not there before it is whole.
    ///
    /// # Errors
    /// [`Trouble::NotFound`] if nothing is there, [`Trouble::Invalid`] with the key if one below it is no path of a
    /// file.
    pub async fn restore_prefix(&self, to: &Path) -> Result<PathBuf, StoreError> {
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
            // Who may only read below the prefix is denied this.
            let mut known = manifest_in(&bucket, path, None).await;
            let mut name = name.as_str();
            if let (Ok(None), Some((path, space))) = (&known, path.rsplit_once('~').filter(|it| names::is_space(it.1)))
            {
                known = manifest_in(&bucket, path, Some(space)).await;
                name = path.rsplit_once('/').map_or(path, |(_, name)| name);
            }
            if let Ok(Some(manifest)) = known {
                let fetched = match manifest.layout {
                    Layout::Folder => self.restore_from(&bucket, &manifest, to, name).await?,
                    Layout::Beside => {
                        self.restore_from(&bucket, &manifest, to, name).await?;
                        to.join(name)
                    }
                };
                return Ok(fetched);
            }
        }
        let above = self.bucket.at(prefix.rsplit_once('/').map_or("", |(above, _)| above));
        let (layout, objects) = match self.bucket.list("", true).await {
            Ok(objects) if !objects.is_empty() => (Layout::Folder, objects),
            Ok(_) | Err(StoreError { trouble: Trouble::NotFound, .. }) => match above.head(&name).await? {
                Some(object) => (Layout::Beside, vec![object]),
                None => {
                    let why = format!("{uri}: there is nothing: no object has this key or begins with it and a /");
                    return Err(StoreError::new(Trouble::NotFound, why));
                }
            },
            Err(error) => return Err(odd_key(error)),
        };
        let bucket = if layout == Layout::Folder { &self.bucket } else { &above };
        // What consoles make to show a folder has no content; a file below it shows the folder as well.
        let real = |object: &&Object| !(object.size == 0 && is_folder_of_another(object, &objects));
        let mut wanted = Vec::new();
        for object in objects.iter().filter(real) {
            if let Err(why) = names::check(&object.key) {
                let key = object.key.escape_debug();
                return Err(StoreError::invalid(format!(
                    "{uri}: the key {key} {why}, so it can't be a file: remove it"
                )));
            }
            let (path, key) = (object.key.clone(), object.key.clone());
            wanted.push(Wanted { path, key, size: object.size, crc32c: None, tag: object.tag.clone() });
        }
        let described =
            wanted.iter().map(|file| format!("{} {} {:?}", file.path, file.size, file.tag)).collect::<Vec<_>>();
        let content = names::digest(described.iter().map(String::as_str));
        let fetched = self.fetch(bucket, to, &name, &content, wanted).await?;
        place(to, &name, layout, fetched).await
    }

    /// What lies at this store's URI itself, whoever has put it there: how many files, and their bytes.
    ///
    /// # Errors
    /// [`Trouble::NotFound`] if nothing is there.
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
                Err(StoreError::new(Trouble::NotFound, why))
            }
        }
    }

    /// Reads all of a checkpoint in the store and compares it with its manifest, without keeping any of it.
    ///
    /// # Errors
    /// [`Trouble::Corrupted`] with the object that is not what was uploaded.
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
                    let (next, ()) =
                        stream_range(self, bucket, &file.key, start, size, None, |_, _| async { Ok(()) }).await?;
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

    /// Fetches all of it into a folder of ours, which is returned.
    async fn fetch(
        &self,
        bucket: &Bucket,
        root: &Path,
        to: &str,
        content: &str,
        wanted: Vec<Wanted>,
    ) -> Result<PathBuf, StoreError> {
        // One folder for each place; in it one for each content that is to go there.
        let place = root.join(names::OURS).join("restore").join(names::digest([to]));
        let folder = place.join(content);
        let journal_path = place.join(format!("{content}.jsonl"));
        let (open, total) = (journal_path.clone(), wanted.iter().map(|file| file.size).sum::<u64>());
        let (below, keep) = (folder.clone(), content.to_owned());
        let (journal, lines) = blocking(move || {
            let local = |error| StoreError::local(&place, &error);
            no_links(&place, 3)?;
            fs::create_dir_all(&place).map_err(local)?;
            for entry in fs::read_dir(&place).map_err(local)?.flatten() {
                let name = entry.file_name();
                if !name.to_string_lossy().starts_with(&keep) {
                    clear(&entry.path()).map_err(|error| StoreError::local(&entry.path(), &error))?;
                }
            }
            make_folder(&below)?;
            let opened = Journal::open::<Line>(&open).map_err(|error| StoreError::local(&open, &error))?;
            let done: u64 = opened.1.iter().map(|line| line.size).sum();
            has_room(&below, total.saturating_sub(done))?;
            Ok(opened)
        })
        .await?;
        let known = lines.into_iter().map(|line| ((line.file, line.start), (line.size, line.crc32c))).collect();
        let fetch = Fetch { store: self, bucket, folder, journal: Mutex::new(journal), journal_path, known };
        self.progress.begin(total, wanted.len() as u64);
        let all = stream::iter(&wanted).map(|file| fetch.file(file)).buffer_unordered(FILES);
        if let Err(error) = all.try_collect::<()>().await {
            if matches!(error.trouble, Trouble::Corrupted | Trouble::Changed) {
                // Nothing of it is gone on with.
                let (folder, journal) = (fetch.folder.clone(), fetch.journal_path.clone());
                drop(
                    blocking(move || {
                        drop(clear(&folder));
                        drop(fs::remove_file(journal));
                        Ok(())
                    })
                    .await,
                );
            }
            return Err(error);
        }
        Ok(fetch.folder)
    }
}

impl Fetch<'_> {
    async fn file(&self, file: &Wanted) -> Result<(), StoreError> {
        let path = self.folder.join(&file.path);
        let (at, size) = (path.clone(), file.size);
        let open = blocking(move || {
            if let Some(folder) = at.parent() {
                make_folder(folder)?;
            }
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).custom_flags(nix::libc::O_NOFOLLOW);
            let open = options.open(&at).map_err(|error| StoreError::local(&at, &error))?;
            let length = open.metadata().map_err(|error| StoreError::local(&at, &error))?.len();
            if length > size {
                open.set_len(size).map_err(|error| StoreError::local(&at, &error))?;
            }
            Ok(open)
        })
        .await?;
        let open = std::sync::Arc::new(open);
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
        file: &Wanted,
        path: &Path,
        open: &std::sync::Arc<File>,
        start: u64,
        size: u64,
    ) -> Result<u32, StoreError> {
        if let Some((_, crc)) = self.known.get(&(file.path.clone(), start)).filter(|(known, _)| *known == size) {
            // It was written before a crash of who knows what: what the disk has is read again.
            let (file, expected) = (std::sync::Arc::clone(open), *crc);
            let kept = blocking(move || Ok(crc_of(&file, start, size).is_ok_and(|crc| crc == expected))).await?;
            if kept {
                self.store.progress.skip(size);
                return Ok(expected);
            }
        }
        let write = |at: u64, bytes: Bytes| {
            let (open, path) = (std::sync::Arc::clone(open), path.to_owned());
            blocking(move || open.write_all_at(&bytes, at).map_err(|error| StoreError::local(&path, &error)))
        };
        let (crc32c, ()) =
            stream_range(self.store, self.bucket, &file.key, start, size, file.tag.clone(), write).await?;
        let line = Line { file: file.path.clone(), start, size, crc32c };
        self.journal.lock().note(&line).map_err(|error| StoreError::local(&self.journal_path, &error))?;
        Ok(crc32c)
    }
}

/// Reads a range in pieces and gives each to `sink` with its place in the object; goes on where a connection was cut.
async fn stream_range<F: Future<Output = Result<(), StoreError>>>(
    store: &Store,
    bucket: &Bucket,
    key: &str,
    start: u64,
    size: u64,
    tag: Option<String>,
    sink: impl Fn(u64, Bytes) -> F,
) -> Result<(u32, ()), StoreError> {
    let (mut at, end, mut crc, mut tries) = (start, start + size, 0, 0);
    while at < end {
        let before = at;
        let read = async {
            let mut pieces = bucket.range(key, at..end, tag.clone()).await?;
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
            Err(error) if error.trouble != Trouble::Unavailable => {
                let gone = matches!(error.trouble, Trouble::NotFound) || error.status == Some(416);
                return Err(if gone { missing(bucket, key, &error) } else { error });
            }
            result => {
                // Who sends a few bytes each time would be asked for ever.
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
    Ok((crc, ()))
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

/// Of a list that could not be read for one key the reason, which has the key in it.
fn odd_key(error: StoreError) -> StoreError {
    if error.trouble == Trouble::Invalid {
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

/// Moves what is whole to where it belongs.
/// Files are as old as what they are copies of: who compares a checkpoint with its copy goes by that.
async fn keep_times(fetched: &Path, manifest: &Manifest) -> Result<(), StoreError> {
    let times: Vec<_> = manifest.files.iter().map(|file| (fetched.join(&file.path), file.modified)).collect();
    blocking(move || {
        for (path, modified) in times {
            let time = SystemTime::UNIX_EPOCH + Duration::from_nanos(u64::try_from(modified).unwrap_or(0));
            let file = File::options().write(true).open(&path);
            let set = file.and_then(|file| file.set_times(FileTimes::new().set_modified(time)));
            set.map_err(|error| StoreError::local(&path, &error))?;
        }
        Ok(())
    })
    .await
}

async fn place(root: &Path, to: &str, layout: Layout, fetched: PathBuf) -> Result<PathBuf, StoreError> {
    let (root, target) = (root.to_owned(), root.join(to));
    let returned = target.clone();
    let parts: Vec<String> = to.split('/').map(str::to_owned).collect();
    blocking(move || {
        let mut parent = root.clone();
        for part in &parts[..parts.len() - 1] {
            parent.push(part);
            match fs::symlink_metadata(&parent) {
                Ok(found) if found.is_dir() => {}
                Ok(_) => {
                    let why = io::Error::other("a checkpoint can't be put below it: it is no folder, or a link");
                    return Err(StoreError::local(&parent, &why));
                }
                Err(_) => make_folder(&parent)?,
            }
        }
        sync_folders(&fetched)?;
        let local = |error| StoreError::local(&target, &error);
        let journal = fetched.with_extension("jsonl");
        match layout {
            Layout::Folder => {
                let old = fetched.with_extension("old");
                clear(&old).map_err(local)?;
                match fs::rename(&target, &old) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(local(error)),
                    _ => {}
                }
                fs::rename(&fetched, &target).map_err(local)?;
                sync(&parent)?;
                clear(&old).map_err(local)?;
            }
            Layout::Beside => {
                let mut names: Vec<_> =
                    fs::read_dir(&fetched).map_err(local)?.flatten().map(|entry| entry.file_name()).collect();
                // TensorFlow takes a checkpoint for whole when its index is there.
                names.sort_by_key(|name| (name.to_string_lossy().ends_with(".index"), name.clone()));
                for name in names {
                    let file = parent.join(&name);
                    fs::rename(fetched.join(&name), &file).map_err(|error| StoreError::local(&file, &error))?;
                }
                sync(&parent)?;
                clear(&fetched).map_err(local)?;
            }
        }
        drop(fs::remove_file(journal));
        drop(fetched.parent().map(fs::remove_dir));
        Ok(())
    })
    .await?;
    Ok(returned)
}

/// Refuses a place of which one of the last names is a link: what is removed there would be removed elsewhere.
pub(crate) fn no_links(place: &Path, names: usize) -> Result<(), StoreError> {
    for path in place.ancestors().take(names) {
        if fs::symlink_metadata(path).is_ok_and(|found| !found.is_dir()) {
            let why = io::Error::other("it is a link, or no folder: remove it");
            return Err(StoreError::local(path, &why));
        }
    }
    Ok(())
}

/// The path of what lies beside the checkpoints of a folder.
pub(crate) fn beside(folder: &str) -> String {
    let name = crate::manifest::BESIDE;
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}

fn make_folder(folder: &Path) -> Result<(), StoreError> {
    DirBuilder::new().recursive(true).mode(0o777).create(folder).map_err(|error| StoreError::local(folder, &error))
}

fn sync(folder: &Path) -> Result<(), StoreError> {
    File::open(folder).and_then(|open| open.sync_all()).map_err(|error| StoreError::local(folder, &error))
}

fn sync_folders(top: &Path) -> Result<(), StoreError> {
    let mut folders = vec![top.to_owned()];
    while let Some(folder) = folders.pop() {
        let local = |error| StoreError::local(&folder, &error);
        for entry in fs::read_dir(&folder).map_err(local)?.flatten() {
            if entry.file_type().map_err(local)?.is_dir() {
                folders.push(entry.path());
            }
        }
        sync(&folder)?;
    }
    Ok(())
}

/// Removes a file or a folder with all that is in it; that it is not there is as good. No link is followed.
fn clear(path: &Path) -> io::Result<()> {
    let done = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Better to be told before than after an hour.
fn has_room(folder: &Path, needed: u64) -> Result<(), StoreError> {
    let Ok(disk) = statvfs(folder) else { return Ok(()) };
    let free = disk.blocks_available().saturating_mul(disk.fragment_size());
    // Some file servers tell nothing, or 0.
    if free == 0 || needed <= free {
        return Ok(());
    }
    let mib = |bytes: u64| bytes.div_ceil(1024 * 1024);
    let why = format!("the checkpoint needs {} MiB, and the volume has {} MiB free", mib(needed), mib(free));
    Err(StoreError::local(folder, &io::Error::new(io::ErrorKind::StorageFull, why)))
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
