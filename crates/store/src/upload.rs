//! Uploading a checkpoint: first the files, in parts, then the manifest. Then the data that it replaces is removed.

use crate::error::{ErrorKind, StoreError};
use crate::journal::Journal;
use crate::manifest::{self, Layout, Manifest, StoredFile};
use crate::restore::{make_below, manifest_in};
use crate::sweep::Sending;
use crate::{FILES, PART, PARTS, Store, names};
use bytes::Bytes;
use checkpoint::files::Member;
use checkpoint::folder::Folder;
use checkpoint::found::{Depth, Format, FoundCheckpoint, Verdict};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::convert::Infallible;
use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of parts of an object in S3 and GCS, and nearly that in Azure.
const MOST_PARTS: u64 = 10_000;
/// Size of the slices in which payloads are handed over, so that their progress is visible.
const SLICE: usize = 256 * 1024;
/// Shorter payloads are left to the allocator.
const WORTH_KEEPING: usize = 4 * 1024 * 1024;

/// A line in the journal of an upload.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "did")]
enum JournalLine {
    /// First line: which content is uploaded, and where its keys go.
    Begin { version: u32, identity: String, generation: u32 },
    /// An object is about to be sent: it may be there, or may not.
    Sending { key: String },
    /// An object in parts was begun.
    Upload { key: String, id: String, part: u64 },
    /// A part of it is in the store.
    Part { id: String, index: u64, part: String, crc32c: u32 },
    /// An object is in the store.
    Stored { file: String, key: String, crc32c: u32 },
}

const VERSION: u32 = 1;
/// Where the journals of uploads are, below a volume's root.
const JOURNALS: &str = ".trainingjob/uploads";
/// How often the note of an upload is renewed.
const RENEW: SignedDuration = SignedDuration::from_hours(1);
/// How often a worker signals that it is sending.
const SIGN: Duration = Duration::from_secs(30);
/// Suffix of the round of a part that is still being sent.
const UNDER_WAY: &str = " (under way)";

/// State of one upload, from its journal.
#[derive(Default)]
struct Ledger {
    begun: Option<(String, u32)>,
    /// Key -> CRC, by file.
    stored: HashMap<String, (String, u32)>,
    /// Keys of objects that may be there.
    sending: HashSet<String>,
    /// By key: id and length of a part.
    uploads: HashMap<String, (String, u64)>,
    /// By id and index: the part's id and CRC.
    parts: HashMap<String, BTreeMap<u64, (String, u32)>>,
}

impl Ledger {
    /// A checkpoint with the files in the journal.
    fn found(&self, path: &str) -> FoundCheckpoint {
        let member = |path: &String| Member { path: path.clone(), size: 0, modified: 0 };
        let name = path.rsplit_once('/').map_or(path, |(_, name)| name).to_owned();
        let members: Vec<Member> = self.stored.keys().chain([&name]).map(member).collect();
        FoundCheckpoint { folder: false, members, ..FoundCheckpoint::nothing_at(path) }
    }

    fn from_lines(lines: Vec<JournalLine>) -> Self {
        let mut ledger = Self::default();
        for line in lines {
            match line {
                JournalLine::Begin { version, identity, generation } if version == VERSION => {
                    ledger.begun = Some((identity, generation));
                }
                JournalLine::Begin { .. } => {}
                JournalLine::Sending { key } => drop(ledger.sending.insert(key)),
                JournalLine::Upload { key, id, part } => {
                    ledger.uploads.insert(key, (id, part));
                }
                JournalLine::Part { id, index, part, crc32c } => {
                    ledger.parts.entry(id).or_default().insert(index, (part, crc32c));
                }
                JournalLine::Stored { file, key, crc32c } => {
                    ledger.uploads.remove(&key);
                    ledger.stored.insert(file, (key, crc32c));
                }
            }
        }
        ledger
    }
}

/// An upload that is under way.
struct Upload<'a> {
    store: &'a Store,
    base: Base,
    journal: Mutex<Journal>,
    journal_path: PathBuf,
    ledger: Mutex<Ledger>,
    /// Key of the note about this upload in the store.
    note: String,
    sending: tokio::sync::Mutex<Sending>,
}

/// Folder of a checkpoint's files, opened without following a link. It stays that folder whatever happens to its name.
#[derive(Clone)]
struct Base {
    folder: Arc<Folder>,
    path: PathBuf,
}

impl Base {
    fn open(root: &Path, path: &str) -> Result<Self, StoreError> {
        let at = root.join(path);
        let opened = Folder::root(root).and_then(|root| root.folder(if path.is_empty() { "." } else { path }));
        let folder = Arc::new(opened.map_err(|error| gone_or_local(&at, &error))?);
        Ok(Self { folder, path: at })
    }

    /// Runs `read` on a file, and checks before and after that the file is as it was found.
    fn read<T>(&self, member: &Member, read: impl FnOnce(&fs::File) -> io::Result<T>) -> Result<T, StoreError> {
        let path = self.path.join(&member.path);
        let gone = |error: io::Error| gone_or_local(&path, &error);
        let file = self.folder.file(&member.path).map_err(gone)?;
        same(&path, &file.metadata().map_err(gone)?, member)?;
        let read = read(&file).map_err(gone)?;
        same(&path, &file.metadata().map_err(gone)?, member)?;
        Ok(read)
    }
}

/// Error for a file. If the file is gone or is something else by now, the program has changed it.
fn gone_or_local(path: &Path, error: &io::Error) -> StoreError {
    let is_gone = matches!(
        error.kind(),
        io::ErrorKind::NotFound
            | io::ErrorKind::UnexpectedEof
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::InvalidInput
    );
    // A link in the place of a file.
    if is_gone || error.raw_os_error() == Some(nix::libc::ELOOP) {
        return StoreError::new(ErrorKind::Changed, format!("{}: {error}", path.display()));
    }
    StoreError::local(path, error)
}

/// Layout and folder of a checkpoint's files.
fn layout(root: &Path, found: &FoundCheckpoint) -> Result<(Layout, Base), StoreError> {
    if let Err(why) = manifest::check_path(&found.path) {
        return Err(StoreError::invalid(format!("{}: the checkpoint's path {why}", found.path.escape_debug())));
    }
    let folder = Folder::root(root).and_then(|root| root.folder(&found.path)).is_ok();
    // TensorFlow may write a folder of the same name as the prefix, for something else.
    let layout = if folder && found.format != Format::Tensorflow { Layout::Folder } else { Layout::Beside };
    for member in &found.members {
        let (name, path) = (member.path.escape_debug(), found.path.escape_debug());
        if let Err(why) = address::key::check(&member.path) {
            return Err(StoreError::invalid(format!(
                "{path}: the path of the file {name} {why}: no store can keep it"
            )));
        }
        if layout == Layout::Beside && member.path.contains('/') {
            return Err(StoreError::new(ErrorKind::Changed, format!("{path}: {name} is not beside it")));
        }
    }
    if found.members.is_empty() {
        return Err(StoreError::new(ErrorKind::Changed, format!("{}: it has no files", found.path.escape_debug())));
    }
    Ok((layout, Base::open(root, manifest::folder(&found.path, layout))?))
}

impl Store {
    /// Uploads the checkpoint `found` below `root`, unless the store has it.
    ///
    /// Data that an earlier try has put into the store is not sent again: its journal is below
    /// `root/.trainingjob/uploads`. The manifest is written last. If the store has other content at the same path, that
    /// stays whole until the manifest is replaced, and is then removed. The future may be dropped at any time.
    ///
    /// How uploaded data is verified: S3 checks the SHA-256 (or CRC-64) of each part on arrival, and Google's store its
    /// CRC-32C. Both refuse a damaged part. For all stores the sizes are checked after the last byte. Azure gets no
    /// checksums. There, [`Store::verify`] or a restore finds damage by the manifest's CRC-32C.
    ///
    /// # Errors
    /// [`ErrorKind::Changed`] if the program has touched the checkpoint meanwhile.
    pub async fn upload(&self, root: &Path, found: &FoundCheckpoint) -> Result<Manifest, StoreError> {
        let identity = manifest::identity(found);
        let (layout, base) = layout(root, found)?;
        let old = self.own_manifest(&found.path).await?;
        if let Some(old) = old.as_ref().filter(|old| old.identity == identity && same_files(old, found)) {
            self.forget(root, &found.path);
            return Ok(old.clone());
        }
        let (generation, files) = self.send(root, &base, found, layout, &identity, old.as_ref()).await?;
        let manifest = self.compose(found, layout, generation, identity, files);
        self.publish(&manifest, old.as_ref()).await?;
        self.forget(root, &found.path);
        self.forget_sending(found, &manifest.identity).await;
        Ok(manifest)
    }

    /// Uploads the files beside the checkpoints of a folder, unless the store has them: `members` of the folder below
    /// `root`. They are not a checkpoint, and belong to all checkpoints of that folder.
    ///
    /// # Errors
    /// As [`Store::upload`].
    pub async fn upload_beside(&self, root: &Path, folder: &str, members: &[Member]) -> Result<(), StoreError> {
        let newest = members.iter().map(|member| member.modified).max().unwrap_or_default();
        let found = FoundCheckpoint {
            folder: false,
            bytes: members.iter().map(|member| member.size).sum(),
            modified: Timestamp::from_nanosecond(i128::from(newest)).unwrap_or_default(),
            depth: Depth::Content,
            members: members.to_vec(),
            ..FoundCheckpoint::nothing_at(&crate::restore::beside(folder))
        };
        self.upload(root, &found).await.map(drop)
    }

    /// This writer's checkpoint at `path`.
    async fn own_manifest(&self, path: &str) -> Result<Option<Manifest>, StoreError> {
        let space = self.space().await?;
        manifest_in(&self.bucket, path, space).await
    }

    /// Uploads this worker's files of a sharded checkpoint, where each worker has its own volume. `found` has the local
    /// files. All workers are given the same `round`, which names this very content (step and attempt). Files that were
    /// sent in another round and have not changed are not sent again. During the upload a signal is written to the key
    /// of the part ([`Store::signs`]).
    ///
    /// # Errors
    /// As [`Store::upload`].
    pub async fn upload_part(
        &self,
        root: &Path,
        found: &FoundCheckpoint,
        worker: u32,
        round: &str,
    ) -> Result<(), StoreError> {
        if found.members.is_empty() {
            // This worker has no files, and records that. The others would wait for it otherwise.
            self.space().await?;
            let part = self.compose(found, Layout::Folder, 0, round.to_owned(), Vec::new());
            return self.put_part(&part, worker).await;
        }
        let (layout, base) = layout(root, found)?;
        let old = self.own_manifest(&found.path).await?;
        if old.as_ref().is_some_and(|old| old.identity == round) {
            self.forget(root, &found.path);
            return Ok(());
        }
        let identity = manifest::identity(found);
        if let Some(part) = self.part(&found.path, worker).await?
            && same_files(&part, found)
            && old.as_ref().is_none_or(|old| old.generation < part.generation)
            && !self.dead_generations(&found.path).await?.contains(&part.generation)
            && self.confirm(&found.path, &part.files).await.is_ok()
        {
            // It was sent in another round.
            let part = self.compose(found, part.layout, part.generation, round.to_owned(), part.files);
            return self.put_part(&part, worker).await;
        }
        let (generation, files) = {
            let sent = self.send(root, &base, found, layout, &identity, old.as_ref());
            tokio::select! {
                sent = sent => sent?,
                never = self.give_signs(found, round, worker) => match never {},
            }
        };
        let part = self.compose(found, layout, generation, round.to_owned(), files);
        self.put_part(&part, worker).await?;
        self.forget(root, &found.path);
        self.forget_sending(found, &identity).await;
        Ok(())
    }

    async fn put_part(&self, part: &Manifest, worker: u32) -> Result<(), StoreError> {
        self.put_manifest(&Manifest::part_key(&part.path, part.space.as_deref(), worker), part).await
    }

    /// The part that a worker has put there, in any round.
    async fn part(&self, path: &str, worker: u32) -> Result<Option<Manifest>, StoreError> {
        let key = Manifest::part_key(path, self.space().await?, worker);
        let Some(bytes) = self.bucket.get(&key, manifest::LONGEST).await? else { return Ok(None) };
        Ok(Manifest::read_part(&self.destination.uri(&key), &bytes).ok().filter(|part| part.path == path))
    }

    /// Writes a signal during the upload, each time that bytes were sent.
    async fn give_signs(&self, found: &FoundCheckpoint, round: &str, worker: u32) -> Infallible {
        let mut before = self.progress.now();
        loop {
            tokio::time::sleep(SIGN).await;
            let now = self.progress.now();
            if (now.bytes, now.files) != (before.bytes, before.files) {
                let sign = self.compose(found, Layout::Folder, 0, format!("{round}{UNDER_WAY}"), Vec::new());
                drop(self.put_part(&sign, worker).await);
            }
            before = now;
        }
    }

    /// Signals of the workers in a round. They differ as long as any worker sends or has sent something.
    ///
    /// # Errors
    /// If the store can't be asked.
    pub async fn signs(&self, path: &str, workers: u32, round: &str) -> Result<Vec<(u32, Timestamp)>, StoreError> {
        let all = stream::iter(0..workers).map(|worker| async move {
            let part = self.part(path, worker).await?;
            let is_of_round =
                |part: &Manifest| part.identity.strip_suffix(UNDER_WAY).unwrap_or(&part.identity) == round;
            Ok::<_, StoreError>(part.filter(is_of_round).map(|part| (worker, part.stored)))
        });
        let all: Vec<_> = all.buffered(FILES).try_collect().await?;
        Ok(all.into_iter().flatten().collect())
    }

    /// Makes one checkpoint from the parts that `workers` workers have uploaded in this `round`. `found` describes the
    /// whole, and the files are the workers'. `lacks` says why all of them together are not a whole checkpoint.
    ///
    /// # Errors
    /// [`ErrorKind::Incomplete`] with the workers whose part is missing yet; [`ErrorKind::Changed`] with what `lacks` says;
    /// [`ErrorKind::Corrupted`] if two of them have different files of one name.
    pub async fn finish(
        &self,
        found: &FoundCheckpoint,
        workers: u32,
        round: &str,
        lacks: impl Fn(&[Member]) -> Option<String>,
    ) -> Result<Manifest, StoreError> {
        let old = self.own_manifest(&found.path).await?;
        if let Some(old) = old.as_ref().filter(|old| old.identity == round) {
            return Ok(old.clone());
        }
        let mut parts: Vec<Option<Manifest>> = Vec::new();
        let mut read = stream::iter(0..workers)
            .map(|worker| async move {
                let part = self.part(&found.path, worker).await?;
                Ok::<_, StoreError>(part.filter(|part| part.identity == round))
            })
            .buffered(FILES);
        let mut bytes = 0;
        while let Some(part) = read.try_next().await? {
            bytes += part.as_ref().map_or(0, |part| part.to_json().len() as u64);
            if bytes > manifest::LONGEST {
                let uri = self.destination.uri(&found.path);
                let why = "together the workers have more files than a manifest can have";
                return Err(StoreError::new(ErrorKind::Refused, format!("{uri}: {why}")));
            }
            parts.push(part);
        }
        drop(read);
        let missing: Vec<_> = (0..workers).filter(|worker| parts[*worker as usize].is_none()).collect();
        if !missing.is_empty() {
            let names = missing.iter().take(8).map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let path = self.destination.uri(&found.path);
            let message =
                format!("{path}: {} of {workers} workers have not uploaded their files: {names}", missing.len());
            return Err(StoreError::new(ErrorKind::Incomplete, message));
        }
        let mut files: BTreeMap<String, StoredFile> = BTreeMap::new();
        let mut generation = 0;
        let mut layout = Layout::Folder;
        for part in parts.into_iter().flatten() {
            generation = generation.max(part.generation);
            if !part.files.is_empty() {
                layout = part.layout;
            }
            for file in part.files {
                if let Some(other) = files.get(&file.path)
                    && (other.size, other.crc32c) != (file.size, file.crc32c)
                {
                    let path = self.destination.uri(&found.path);
                    return Err(StoreError::corrupted(format!(
                        "{path}: two workers have different files {}",
                        file.path
                    )));
                }
                files.insert(file.path.clone(), file);
            }
        }
        let files: Vec<StoredFile> = files.into_values().collect();
        let member = |file: &StoredFile| Member { path: file.path.clone(), size: file.size, modified: 0 };
        if let Some(why) = lacks(&files.iter().map(member).collect::<Vec<_>>()) {
            return Err(StoreError::new(ErrorKind::Changed, format!("{}: {why}", self.destination.uri(&found.path))));
        }
        self.confirm(&found.path, &files).await?;
        let manifest = self.compose(found, layout, generation, round.to_owned(), files);
        self.publish(&manifest, old.as_ref()).await?;
        let space = self.space().await?;
        let parts = stream::iter(0..workers).map(|worker| Manifest::part_key(&found.path, space, worker));
        parts
            .map(|key| async move { if_allowed(self.bucket.delete(&key).await) })
            .buffered(FILES)
            .try_collect::<()>()
            .await?;
        Ok(manifest)
    }

    /// Abandons an unfinished upload for `path`: removes its parts, which a cloud bills, and its objects.
    ///
    /// # Errors
    /// If the store can't be asked. The upload is then still noted, and the call can be repeated.
    pub async fn abandon(&self, root: &Path, path: &str) -> Result<(), StoreError> {
        let (journals, name) = (Arc::new(make_below(root, JOURNALS)?), self.journal(path));
        let at = root.join(JOURNALS).join(&name);
        if journals.file(&name).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return Ok(());
        }
        let current = self.own_manifest(path).await?;
        let local = |error| StoreError::local(&at, &error);
        let (open, lines) = Journal::open(&journals, &name).map_err(local)?;
        let ledger = Ledger::from_lines(lines);
        let space = self.space().await?.map(str::to_owned);
        // The files are no longer known, so any possible key of a file is accepted.
        let belongs = |key: &str| {
            manifest::check_path(key).is_ok() && key.starts_with(manifest::folder(path, Layout::Beside)) && {
                let found = ledger.found(path);
                [Layout::Folder, Layout::Beside].iter().any(|it| manifest::belongs(key, &found, *it, space.as_deref()))
            }
        };
        self.discard(&ledger, path, current.as_ref(), belongs).await?;
        open.remove().map_err(local)
    }

    /// Removes the note of an upload once its manifest is there. If that fails, `sweep` removes it.
    async fn forget_sending(&self, found: &FoundCheckpoint, identity: &str) {
        drop(self.bucket.delete(&Sending::key(&self.writer, &found.path, identity)).await);
    }

    /// The name of the journal of one checkpoint on its way to this very destination.
    fn journal(&self, path: &str) -> String {
        format!("{}.jsonl", names::digest([&self.destination.to_string(), path]))
    }

    fn forget(&self, root: &Path, path: &str) {
        // A journal that stays is read the next time. It then matches the content of the store.
        drop(Folder::root(root).and_then(|root| root.folder(JOURNALS)?.remove(&self.journal(path))));
    }

    fn compose(
        &self,
        found: &FoundCheckpoint,
        layout: Layout,
        generation: u32,
        identity: String,
        mut files: Vec<StoredFile>,
    ) -> Manifest {
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Manifest {
            version: 1,
            path: found.path.clone(),
            layout,
            generation,
            format: found.format,
            step: found.step,
            epoch: found.epoch.filter(|epoch| epoch.is_finite()),
            // JSON knows no NaN.
            metrics: found.metrics.clone().into_iter().filter(|(_, value)| value.is_finite()).collect(),
            needs: found.needs.clone(),
            unseen: match &found.verdict {
                Verdict::Complete { why } => Some(why.clone()),
                _ => None,
            },
            modified: found.modified,
            order: found.order,
            earliest: found.earliest,
            bytes: files.iter().map(|file| file.size).sum(),
            stored: Timestamp::now(),
            writer: self.writer.clone(),
            space: self.space.get().cloned().flatten(),
            identity,
            files,
        }
    }

    /// Writes a manifest, if it is short enough to be read again.
    pub(crate) async fn put_manifest(&self, key: &str, manifest: &Manifest) -> Result<(), StoreError> {
        let json = manifest.to_json();
        if json.len() as u64 > manifest::LONGEST {
            let (uri, files, most) = (self.destination.uri(key), manifest.files.len(), manifest::LONGEST);
            let why = format!("{uri}: its {files} files are too many: the manifest would have more than {most} bytes");
            return Err(StoreError::invalid(why));
        }
        self.bucket.put(key, vec![json.into()]).await
    }

    /// Writes the manifest, with which the checkpoint exists, and then removes what it replaces.
    async fn publish(&self, manifest: &Manifest, old: Option<&Manifest>) -> Result<(), StoreError> {
        let replaced =
            old.filter(|old| old.files.iter().any(|file| manifest.files.iter().all(|new| new.key != file.key)));
        if let Some(old) = replaced {
            self.put_manifest(&old.tombstone(), old).await?;
        }
        self.put_manifest(&manifest.own_key(), manifest).await?;
        if let Some(old) = replaced {
            // The new checkpoint exists, so leftovers of the old one are no failure of this upload. `sweep` removes
            // them later.
            drop(self.remove_data(old, Some(manifest)).await);
        }
        Ok(())
    }

    /// A generation with keys that no manifest and no tombstone has.
    async fn free_generation(&self, path: &str, old: Option<&Manifest>) -> Result<u32, StoreError> {
        // This is read after the manifest, because a removal writes the tombstone before it deletes the manifest.
        let dead = self.dead_generations(path).await?;
        let used = dead.into_iter().chain(old.map(|manifest| manifest.generation));
        Ok(used.map(|generation| generation.saturating_add(1)).max().unwrap_or(0))
    }

    /// Sends the files of `found`, and checks that they are there.
    async fn send(
        &self,
        root: &Path,
        base: &Base,
        found: &FoundCheckpoint,
        layout: Layout,
        identity: &str,
        old: Option<&Manifest>,
    ) -> Result<(u32, Vec<StoredFile>), StoreError> {
        let (journals, name) = (Arc::new(make_below(root, JOURNALS)?), self.journal(&found.path));
        let path = root.join(JOURNALS).join(&name);
        let local = |error| StoreError::local(&path, &error);
        let space = self.space().await?.map(str::to_owned);
        let space = space.as_deref();
        let (mut journal, lines) = Journal::open(&journals, &name).map_err(local)?;
        let mut ledger = Ledger::from_lines(lines);
        let known = ledger
            .begun
            .clone()
            .filter(|(of, generation)| of == identity && old.is_none_or(|old| old.generation < *generation));
        let generation = match known {
            Some((_, generation)) => generation,
            None => {
                let belongs = |key: &str| manifest::belongs(key, found, layout, space);
                self.discard(&ledger, &found.path, old, belongs).await?;
                journal.clear().map_err(local)?;
                ledger = Ledger::default();
                let generation = self.free_generation(&found.path, old).await?;
                let begin = JournalLine::Begin { version: VERSION, identity: identity.to_owned(), generation };
                journal.note(&begin).map_err(local)?;
                generation
            }
        };
        let key = |member: &Member| manifest::key(&found.path, layout, &member.path, generation, space);
        let sending = Sending {
            path: found.path.clone(),
            time: Timestamp::now(),
            keys: found.members.iter().map(key).collect(),
            uploads: ledger.uploads.iter().map(|(key, (id, _))| (key.clone(), id.clone())).collect(),
        };
        let note = Sending::key(&self.writer, &found.path, identity);
        self.progress.begin(found.members.iter().map(|member| member.size).sum(), found.members.len() as u64);
        let upload = Upload {
            store: self,
            base: base.clone(),
            journal: Mutex::new(journal),
            journal_path: path.clone(),
            ledger: Mutex::new(ledger),
            note,
            sending: tokio::sync::Mutex::new(sending),
        };
        let upload = &upload;
        upload.show(None).await?;
        let files = all(&found.members, FILES, |member| async move {
            let key = manifest::key(&found.path, layout, &member.path, generation, space);
            upload.file(member, key).await
        })
        .await?;
        if let Err(error) = self.confirm(&found.path, &files).await {
            if error.trouble == ErrorKind::Corrupted {
                // Objects that the journal has were removed. The next try sends everything.
                upload.journal.lock().clear().map_err(local)?;
            }
            return Err(error);
        }
        let (base, members) = (base.clone(), found.members.clone());
        blocking(move || members.iter().try_for_each(|member| base.read(member, |_| Ok(())))).await?;
        Ok((generation, files))
    }

    /// Whether the store has all these objects with their sizes.
    async fn confirm(&self, path: &str, files: &[StoredFile]) -> Result<(), StoreError> {
        // One answer lists a thousand objects. If the list can't be read because of other keys, each object is checked.
        let folder = files[0].key.rsplit_once('/').map_or("", |(folder, _)| folder);
        let together = files.len() > 4 && files.iter().all(|file| file.key.starts_with(&format!("{folder}/")));
        let listed = if together { self.bucket.list(folder, true).await.ok() } else { None };
        let sizes: Option<HashMap<String, u64>> =
            listed.map(|listed| listed.into_iter().map(|object| (object.key, object.size)).collect());
        let (bucket, sizes) = (&self.bucket, &sizes);
        stream::iter(files)
            .map(|file| async move {
                let size = match sizes {
                    Some(sizes) => sizes.get(&file.key).copied(),
                    None => bucket.head(&file.key).await?.map(|object| object.size),
                };
                if size == Some(file.size) {
                    return Ok(());
                }
                let has = size.map_or("is not there".to_owned(), |size| format!("has {size} bytes"));
                let uri = self.destination.uri(&file.key);
                Err(StoreError::corrupted(format!(
                    "{uri}: the store has taken {} bytes, and now the object {has}: of the checkpoint {path} no manifest \
                     was written",
                    file.size
                )))
            })
            .buffer_unordered(FILES)
            .try_collect()
            .await
    }

    /// Removes the leftovers of an upload that will not be continued. A journal lies on the volume, where others may
    /// write. So only keys that belong to the checkpoint are touched.
    async fn discard(
        &self,
        ledger: &Ledger,
        path: &str,
        current: Option<&Manifest>,
        belongs: impl Fn(&str) -> bool,
    ) -> Result<(), StoreError> {
        for (key, (id, _)) in ledger.uploads.iter().filter(|(key, _)| belongs(key)) {
            if_allowed(self.bucket.abort(key, id).await)?;
        }
        let needed: HashSet<&str> =
            current.into_iter().flat_map(|manifest| manifest.files.iter().map(|file| file.key.as_str())).collect();
        let sent = ledger.stored.values().map(|(key, _)| key).chain(&ledger.sending).chain(ledger.uploads.keys());
        let keys: HashSet<&String> = sent.filter(|key| belongs(key) && !needed.contains(key.as_str())).collect();
        stream::iter(keys)
            .map(|key| async move { if_allowed(self.bucket.delete(key).await) })
            .buffer_unordered(FILES)
            .try_collect::<()>()
            .await?;
        if let Some((identity, _)) = &ledger.begun {
            if_allowed(self.bucket.delete(&Sending::key(&self.writer, path, identity)).await)?;
        }
        Ok(())
    }
}

fn same_files(manifest: &Manifest, found: &FoundCheckpoint) -> bool {
    manifest.files.len() == found.members.len()
        && manifest.files.iter().zip(&found.members).all(|(file, member)| {
            file.path == member.path && file.size == member.size && file.modified == member.modified
        })
}

impl Upload<'_> {
    /// Notes in the store what is sent, and which upload in parts was begun, so that others remove it if this pod is
    /// lost.
    async fn show(&self, begun: Option<(&str, &str)>) -> Result<(), StoreError> {
        let mut sending = self.sending.lock().await;
        sending.time = Timestamp::now();
        sending.uploads.extend(begun.map(|(key, id)| (key.to_owned(), id.to_owned())));
        let text = serde_json::to_vec(&*sending).unwrap_or_default();
        self.store.bucket.put(&self.note, vec![text.into()]).await
    }

    /// Renews the note of a long upload.
    async fn renew(&self) -> Result<(), StoreError> {
        let is_old = Timestamp::now().duration_since(self.sending.lock().await.time) >= RENEW;
        if is_old { self.show(None).await } else { Ok(()) }
    }

    fn note(&self, line: &JournalLine) -> Result<(), StoreError> {
        self.journal.lock().note(line).map_err(|error| StoreError::local(&self.journal_path, &error))
    }

    async fn file(&self, member: &Member, key: String) -> Result<StoredFile, StoreError> {
        let known = self.ledger.lock().stored.get(&member.path).filter(|(at, _)| *at == key).map(|(_, crc)| *crc);
        let crc32c = match known {
            Some(crc32c) => {
                self.store.progress.skip(member.size);
                crc32c
            }
            None => {
                let sent =
                    if member.size <= PART { self.whole(member, &key).await } else { self.parts(member, &key).await };
                let crc32c = sent?;
                self.note(&JournalLine::Stored { file: member.path.clone(), key: key.clone(), crc32c })?;
                crc32c
            }
        };
        self.store.progress.file();
        Ok(StoredFile { path: member.path.clone(), size: member.size, crc32c, key, modified: member.modified })
    }

    async fn whole(&self, member: &Member, key: &str) -> Result<u32, StoreError> {
        let _room = self.store.bucket.room.take(member.size).await;
        let (bytes, crc32c) = self.read(member, 0, member.size).await?;
        self.note(&JournalLine::Sending { key: key.to_owned() })?;
        self.store.bucket.put(key, slices(&bytes)).await?;
        self.store.progress.sent(member.size);
        Ok(crc32c)
    }

    async fn parts(&self, member: &Member, key: &str) -> Result<u32, StoreError> {
        let known = self.ledger.lock().uploads.get(key).cloned();
        if let Some((id, length)) = known {
            match self.parts_of(member, key, &id, length).await {
                // A lifecycle rule of the bucket has removed the parts.
                Err(error) if is_over(&error) => drop(self.store.bucket.abort(key, &id).await),
                other => return other,
            }
        }
        let length = part_length(member.size);
        let id = self.store.bucket.begin(key).await?;
        self.note(&JournalLine::Upload { key: key.to_owned(), id: id.clone(), part: length })?;
        self.show(Some((key, &id))).await?;
        self.ledger.lock().uploads.insert(key.to_owned(), (id.clone(), length));
        self.parts_of(member, key, &id, length).await
    }

    async fn parts_of(&self, member: &Member, key: &str, id: &str, length: u64) -> Result<u32, StoreError> {
        let length = length.max(1);
        let known = self.ledger.lock().parts.get(id).cloned().unwrap_or_default();
        let known = &known;
        let sent = all(0..member.size.div_ceil(length), PARTS, |index| async move {
            let start = index * length;
            let size = length.min(member.size - start);
            if let Some((part, crc32c)) = known.get(&index) {
                self.store.progress.skip(size);
                return Ok((part.clone(), *crc32c, size));
            }
            let _room = self.store.bucket.room.take(size).await;
            let (bytes, crc32c) = self.read(member, start, size).await?;
            let part = self.store.bucket.part(key, id, index as usize, start, slices(&bytes)).await?;
            self.note(&JournalLine::Part { id: id.to_owned(), index, part: part.clone(), crc32c })?;
            self.renew().await?;
            self.store.progress.sent(size);
            Ok((part, crc32c, size))
        })
        .await?;
        let crc32c = sent.iter().fold(0, |crc, (_, next, size)| crc32c::crc32c_combine(crc, *next, *size as usize));
        let ids = sent.into_iter().map(|(part, _, _)| part).collect();
        match self.store.bucket.complete(key, id, ids).await {
            // The object was assembled, and the answer was lost.
            Err(error) if is_over(&error) => match self.store.bucket.head(key).await? {
                Some(object) if object.size == member.size => Ok(crc32c),
                _ => Err(error),
            },
            Err(error) => Err(error),
            Ok(()) => Ok(crc32c),
        }
    }

    /// Reads a range of a file that must be as it was found, on a thread that may wait for the disk.
    async fn read(&self, member: &Member, start: u64, size: u64) -> Result<(Bytes, u32), StoreError> {
        let (base, member, pool) = (self.base.clone(), member.clone(), Arc::clone(&self.store.pool));
        blocking(move || {
            let mut buffer = Buffer::from_pool(pool, size as usize);
            base.read(&member, |file| file.read_exact_at(&mut buffer.bytes, start))?;
            let crc32c = crc32c::crc32c(&buffer.bytes);
            Ok((Bytes::from_owner(buffer), crc32c))
        })
        .await
    }
}

/// Buffers of long payloads that were sent. An allocator that has to find new ones all the time keeps twice as much.
pub(crate) type Pool = Mutex<Vec<Vec<u8>>>;

/// A payload; a long one goes back to the pool.
struct Buffer {
    bytes: Vec<u8>,
    pool: Arc<Pool>,
}

impl Buffer {
    fn from_pool(pool: Arc<Pool>, length: usize) -> Self {
        let kept = if length >= WORTH_KEEPING { pool.lock().pop() } else { None };
        let mut bytes = kept.unwrap_or_default();
        bytes.resize(length, 0);
        Self { bytes, pool }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if (WORTH_KEEPING..=PART as usize).contains(&self.bytes.capacity()) {
            let mut pool = self.pool.lock();
            if pool.len() < PARTS {
                pool.push(std::mem::take(&mut self.bytes));
            }
        }
    }
}

/// Whether the store does not know an upload (any more).
fn is_over(error: &StoreError) -> bool {
    matches!(error.trouble, ErrorKind::NotFound | ErrorKind::Refused)
}

/// Treats a refused deletion as success. The bucket's owner may forbid deletions; unneeded data then stays.
pub(crate) fn if_allowed(done: Result<(), StoreError>) -> Result<(), StoreError> {
    match done {
        Err(error) if matches!(error.trouble, ErrorKind::Denied | ErrorKind::Refused) => Ok(()),
        other => other,
    }
}

/// How long the parts of a file of `size` bytes are: 16 MiB, or longer if there were more than 10,000 of them.
#[must_use]
pub fn part_length(size: u64) -> u64 {
    let needed = size.div_ceil(MOST_PARTS);
    // Whole MiB, which some servers want.
    PART.max(needed.next_multiple_of(1024 * 1024))
}

pub(crate) fn slices(bytes: &Bytes) -> Vec<Bytes> {
    (0..bytes.len()).step_by(SLICE).map(|at| bytes.slice(at..(at + SLICE).min(bytes.len()))).collect()
}

/// Runs `work` on all items, several at once, and returns the results in their order. After a failure it begins no
/// other item, and waits for those in progress. A request that is not waited for may be executed after later ones.
async fn all<I: IntoIterator, T, F: Future<Output = Result<T, StoreError>>>(
    items: I,
    at_once: usize,
    work: impl Fn(I::Item) -> F,
) -> Result<Vec<T>, StoreError> {
    let failed = Mutex::new(None);
    let (work, first) = (&work, &failed);
    let mut done: Vec<(usize, T)> = stream::iter(items)
        .enumerate()
        .map(|(index, item)| async move {
            if first.lock().is_some() {
                return None;
            }
            match work(item).await {
                Ok(value) => Some((index, value)),
                Err(error) => {
                    first.lock().get_or_insert(error);
                    None
                }
            }
        })
        .buffer_unordered(at_once)
        .filter_map(|done| async { done })
        .collect()
        .await;
    if let Some(error) = failed.into_inner() {
        return Err(error);
    }
    done.sort_by_key(|(index, _)| *index);
    Ok(done.into_iter().map(|(_, value)| value).collect())
}

/// Runs work that may wait for a disk.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => {
            Err(StoreError::new(ErrorKind::Local, format!("a thread that reads or writes files has failed: {error}")))
        }
    }
}

fn same(path: &Path, now: &fs::Metadata, member: &Member) -> Result<(), StoreError> {
    let modified = now.mtime().saturating_mul(1_000_000_000).saturating_add(now.mtime_nsec());
    if now.is_file() && now.len() == member.size && modified == member.modified {
        return Ok(());
    }
    Err(StoreError::new(ErrorKind::Changed, format!("{}: it was written to meanwhile", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_upload_parts_is_bounded() {
        const TIB: u64 = 1 << 40;
        for size in [PART + 1, 100 * PART, 10_000 * PART, 10_000 * PART + 1, TIB, 5 * TIB] {
            let length = part_length(size);
            assert!(size.div_ceil(length) <= MOST_PARTS, "{size}");
            assert_eq!(length % (1024 * 1024), 0);
        }
        assert_eq!(part_length(100 * PART), PART);
    }

    #[test]
    fn slices_concatenate_to_the_whole() {
        let bytes = Bytes::from((0..SLICE * 2 + 7).map(|at| at as u8).collect::<Vec<_>>());
        assert_eq!(slices(&bytes).concat(), bytes);
        assert!(slices(&Bytes::new()).is_empty());
    }
}
