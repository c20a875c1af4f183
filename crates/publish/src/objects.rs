//! Publishing into an object store: files first, the record last.

use crate::content::{Content, Item, changed};
use crate::error::{PublishError, PublishErrorKind};
use crate::ledger::Ledger;
use crate::progress::{Progress, Stage};
use crate::read::{FilePart, Reader, sha256};
use crate::record;
use crate::{Published, blocking};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use protocol::result::{LONGEST_RECORD, Origin, RECORD_NAME, RecordFile, ResultRecord};
use std::collections::{HashMap, HashSet};
use store::{ErrorKind, PayloadMemory, Store, StoreError, part_length};
use text::one_line;

/// Files up to this length are sent in one request, in bytes.
const PART: u64 = 16 * 1024 * 1024;
/// Files at a time.
const FILES: usize = 8;
/// Parts of one file at a time.
const PARTS: usize = 4;
/// How often files that change are sent again.
const ROUNDS: usize = 5;

/// A folder of an object store in which a result is published.
pub(crate) struct Objects<'a> {
    pub store: Store,
    /// How people write the folder.
    pub uri: String,
    pub name: &'a str,
    pub origin: &'a Origin,
    pub content: Content,
    pub ledger: Ledger,
    pub progress: &'a Progress,
    pub room: PayloadMemory,
}

type Result<T> = std::result::Result<T, PublishError>;

impl Objects<'_> {
    /// Sends what is not there yet, and writes the record.
    pub async fn publish(&self) -> Result<Published> {
        self.progress.enter(Stage::Listing);
        let items = self.list_items().await?;
        for item in &items {
            self.store.check_key(&item.path).map_err(|error| self.failed(error))?;
        }
        if let Some(record) = self.record().await? {
            return self.compare(record, &items).await;
        }
        let stored = self.list().await?;
        self.check_foreign(&stored, &items)?;
        let files = self.send_all(items, stored).await?;
        self.progress.enter(Stage::Verifying);
        let stored = self.list().await?;
        let stored = self.remove_old(stored, &files).await?;
        self.verify(&files, &stored)?;
        self.progress.enter(Stage::Recording);
        let record = record::new(self.uri.clone(), self.name, self.origin, files);
        self.write(&record).await?;
        self.ledger.remove();
        Ok(Published { record, sent: self.progress.now().sent, was_published: false })
    }

    async fn list_items(&self) -> Result<Vec<Item>> {
        let content = self.content.clone();
        blocking(move || content.list()).await
    }

    /// The error of the store, with the address as people wrote it.
    fn failed(&self, error: StoreError) -> PublishError {
        let canonical = self.store.destination().to_string();
        PublishError::from(error).renamed(&canonical, &self.uri)
    }

    fn place(&self, path: &str) -> String {
        format!("{}/{}", self.uri, one_line(path))
    }

    /// The record that is there.
    async fn record(&self) -> Result<Option<ResultRecord>> {
        let json = self.store.read_object(RECORD_NAME, LONGEST_RECORD).await.map_err(|error| self.failed(error))?;
        json.map(|json| record::parse(&self.place(RECORD_NAME), &json)).transpose()
    }

    /// Sizes by path of what is in the store.
    async fn list(&self) -> Result<HashMap<String, u64>> {
        let mut stored = HashMap::new();
        let mut token = None;
        loop {
            let page = self.store.page(token).await.map_err(|error| self.failed(error))?;
            stored.extend(page.objects.into_iter().map(|object| (object.key, object.size)));
            token = page.next;
            if token.is_none() {
                return Ok(stored);
            }
        }
    }

    /// Compares an existing result with this one. If they differ, this one is refused.
    async fn compare(&self, record: ResultRecord, items: &[Item]) -> Result<Published> {
        self.progress.begin(Stage::Hashing, items.iter().map(|item| item.stamp.size).sum(), items.len() as u64);
        let files: Vec<RecordFile> = stream::iter(items)
            .map(|item| async move {
                let sha256 = match self.ledger.hash(item) {
                    Some(sha256) => sha256,
                    None => {
                        let sha256 = sha256(&self.content, item, self.progress).await?;
                        self.ledger.note_hash(item, &sha256)?;
                        sha256
                    }
                };
                self.progress.file();
                Ok::<_, PublishError>(RecordFile { path: item.path.clone(), size: item.stamp.size, sha256 })
            })
            .buffered(FILES)
            .try_collect()
            .await?;
        let own = record::new(self.uri.clone(), self.name, self.origin, files);
        if own.digest != record.digest {
            return Err(self.is_taken(&record));
        }
        self.progress.enter(Stage::Verifying);
        // A result that has a record is never written to again.
        self.verify(&record.files, &self.list().await?).map_err(|error| match error.kind {
            PublishErrorKind::Corrupted => PublishError::refused(format!("{error}; publish under another name")),
            _ => error,
        })?;
        self.ledger.remove();
        Ok(Published { record, sent: 0, was_published: true })
    }

    fn is_taken(&self, record: &ResultRecord) -> PublishError {
        let (uri, digest, published) = (&self.uri, one_line(&record.digest), record.published);
        PublishError::refused(format!(
            "{uri}: it has another result since {published} (digest {digest}); publish under another name"
        ))
    }

    /// A folder in which others have put objects is not completed: a reader would take them for part of the result.
    fn check_foreign(&self, stored: &HashMap<String, u64>, items: &[Item]) -> Result<()> {
        let own: HashSet<&str> = items.iter().map(|item| item.path.as_str()).collect();
        let mut foreign: Vec<&String> =
            stored.keys().filter(|key| !own.contains(key.as_str()) && !self.ledger.has_sent(key)).collect();
        foreign.sort();
        match foreign.first() {
            None => Ok(()),
            Some(first) => Err(PublishError::refused(format!(
                "{}: there are {} objects that are not of this result, such as {}; remove them, or publish under \
                 another name",
                self.uri,
                foreign.len(),
                one_line(first)
            ))),
        }
    }

    /// Sends all files, and those that change meanwhile again.
    async fn send_all(&self, mut items: Vec<Item>, mut stored: HashMap<String, u64>) -> Result<Vec<RecordFile>> {
        for _ in 0..ROUNDS {
            self.progress.begin(Stage::Sending, items.iter().map(|item| item.stamp.size).sum(), items.len() as u64);
            let stored_now = &stored;
            let sent: Vec<Option<(Item, RecordFile)>> = stream::iter(&items)
                .map(|item| self.send(item, stored_now))
                .buffer_unordered(FILES)
                .try_collect()
                .await?;
            let now = self.list_items().await?;
            let sent: HashMap<&str, &(Item, RecordFile)> =
                sent.iter().flatten().map(|sent| (sent.0.path.as_str(), sent)).collect();
            let as_sent = |item: &Item| {
                sent.get(item.path.as_str()).filter(|(sent, _)| sent == item).map(|(_, file)| file.clone())
            };
            if let Some(files) = now.iter().map(as_sent).collect::<Option<Vec<_>>>() {
                return Ok(files);
            }
            for item in &now {
                self.store.check_key(&item.path).map_err(|error| self.failed(error))?;
            }
            items = now;
            stored = self.list().await?;
        }
        Err(PublishError::new(
            PublishErrorKind::Changed,
            format!("{}: its files still change after {ROUNDS} tries; stop the program that writes them", self.uri),
        ))
    }

    /// Sends one file, unless it is there. `None` if it is gone.
    async fn send(&self, item: &Item, stored: &HashMap<String, u64>) -> Result<Option<(Item, RecordFile)>> {
        let mut item = item.clone();
        for _ in 0..ROUNDS {
            let size = item.stamp.size;
            let known = self.ledger.sent(&item).filter(|_| stored.get(&item.path) == Some(&size));
            let sent = match known {
                Some(sha256) => {
                    self.progress.kept(size);
                    Ok(sha256)
                }
                None if size <= PART => self.send_whole(&item).await,
                None => self.send_parts(&item).await,
            };
            match sent {
                Ok(sha256) => {
                    self.progress.file();
                    let file = RecordFile { path: item.path.clone(), size, sha256 };
                    return Ok(Some((item, file)));
                }
                Err(error) if error.kind == PublishErrorKind::Changed => {
                    let (content, known) = (self.content.clone(), item.clone());
                    match blocking(move || Ok(content.again(&known))).await? {
                        Some(now) => item = now,
                        None => return Ok(None),
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Err(changed(&item))
    }

    async fn send_whole(&self, item: &Item) -> Result<String> {
        self.give_up_upload(item).await?;
        let reader = Reader::open(&self.content, item, PART).await?;
        let (part, reader) = reader.next(&self.room).await?;
        let bytes = part.as_ref().map_or_else(Bytes::new, |part| part.bytes.clone());
        self.store.write_object(&item.path, &bytes).await.map_err(|error| self.failed(error))?;
        self.progress.sent(item.stamp.size);
        let sha256 = reader.sha256();
        self.ledger.note_sent(item, &sha256)?;
        Ok(sha256)
    }

    /// Ends an upload in parts for an earlier state of the file.
    async fn give_up_upload(&self, item: &Item) -> Result<()> {
        match self.ledger.upload(item) {
            Some((upload, _, false)) => self.abort(&item.path, &upload.id).await,
            _ => Ok(()),
        }
    }

    /// An upload that can't be ended costs its owner the storage of its parts. That is no failure of the publication.
    async fn abort(&self, path: &str, id: &str) -> Result<()> {
        match self.store.abort_object(path, id).await {
            Err(error) if matches!(error.trouble, ErrorKind::Denied | ErrorKind::Refused) => Ok(()),
            other => other.map_err(|error| self.failed(error)),
        }
    }

    async fn send_parts(&self, item: &Item) -> Result<String> {
        match self.ledger.upload(item) {
            Some((upload, _, true)) => match self.send_upload(item, &upload.id, upload.part).await {
                // A lifecycle rule of the bucket has removed the parts.
                Err(error) if error.status == Some(404) => self.abort(&item.path, &upload.id).await?,
                other => return other,
            },
            _ => self.give_up_upload(item).await?,
        }
        let length = part_length(item.stamp.size);
        let id = self.store.begin_object(&item.path).await.map_err(|error| self.failed(error))?;
        self.ledger.note_upload(item, &id, length)?;
        self.send_upload(item, &id, length).await
    }

    /// Sends the parts of an upload that are not in the store. Each is read, for the hash of the whole.
    async fn send_upload(&self, item: &Item, id: &str, length: u64) -> Result<String> {
        let known = self.ledger.upload(item).map(|(_, parts, _)| parts).unwrap_or_default();
        let known = &known;
        let reader = Reader::open(&self.content, item, length).await?;
        let rest = Mutex::new(None);
        let parts = stream::try_unfold(Some(reader), |reader| {
            let rest = &rest;
            async move {
                let Some(reader) = reader else { return Ok(None) };
                match reader.next(&self.room).await? {
                    (Some(part), reader) => Ok(Some((part, Some(reader)))),
                    (None, reader) => {
                        *rest.lock() = Some(reader);
                        Ok(None)
                    }
                }
            }
        });
        let ids: Vec<String> =
            parts.map_ok(|part| self.send_part(item, id, part, known)).try_buffered(PARTS).try_collect().await?;
        let Some(reader) = rest.into_inner() else { return Err(changed(item)) };
        let sha256 = reader.sha256();
        match self.store.complete_object(&item.path, id, ids).await {
            Ok(()) => {}
            // An earlier request completed it, and its answer was lost.
            Err(error) if matches!(error.trouble, ErrorKind::NotFound | ErrorKind::Refused) => {
                let found = self.store.find_object(&item.path).await.map_err(|error| self.failed(error))?;
                if found.is_none_or(|object| object.size != item.stamp.size) {
                    return Err(self.failed(error));
                }
            }
            Err(error) => return Err(self.failed(error)),
        }
        self.ledger.note_sent(item, &sha256)?;
        Ok(sha256)
    }

    async fn send_part(&self, item: &Item, id: &str, part: FilePart, known: &crate::ledger::Parts) -> Result<String> {
        let size = part.bytes.len() as u64;
        if let Some((name, _)) = known.get(&part.index).filter(|(_, crc32c)| *crc32c == part.crc32c) {
            self.progress.kept(size);
            return Ok(name.clone());
        }
        let index = usize::try_from(part.index).unwrap_or(usize::MAX);
        let sent = self.store.write_part(&item.path, id, index, part.start, &part.bytes).await;
        let name = sent.map_err(|error| self.failed(error))?;
        self.ledger.note_part(id, part.index, &name, part.crc32c)?;
        self.progress.sent(size);
        drop(part.room);
        Ok(name)
    }

    /// Removes the objects of files that are gone since.
    async fn remove_old(&self, mut stored: HashMap<String, u64>, files: &[RecordFile]) -> Result<HashMap<String, u64>> {
        let own: HashSet<&str> = files.iter().map(|file| file.path.as_str()).collect();
        let old: Vec<String> = stored
            .keys()
            .filter(|key| !own.contains(key.as_str()) && key.as_str() != RECORD_NAME && self.ledger.has_sent(key))
            .cloned()
            .collect();
        for key in old {
            self.store.delete_object(&key).await.map_err(|error| self.failed(error))?;
            stored.remove(&key);
        }
        Ok(stored)
    }

    /// Whether the store has these files, and no others.
    fn verify(&self, files: &[RecordFile], stored: &HashMap<String, u64>) -> Result<()> {
        for file in files {
            let found = stored.get(&file.path);
            if found != Some(&file.size) {
                let has = found.map_or("no object".to_owned(), |size| format!("{size} bytes"));
                return Err(PublishError::new(
                    PublishErrorKind::Corrupted,
                    format!("{}: {} bytes were sent, and the store has {has}", self.place(&file.path), file.size),
                ));
            }
        }
        let own: HashSet<&str> = files.iter().map(|file| file.path.as_str()).collect();
        match stored.keys().find(|key| !own.contains(key.as_str()) && key.as_str() != RECORD_NAME) {
            None => Ok(()),
            Some(key) => Err(PublishError::refused(format!(
                "{}: it is not of this result; remove it, or publish under another name",
                self.place(key)
            ))),
        }
    }

    /// Writes the record, unless there is one.
    async fn write(&self, record: &ResultRecord) -> Result<()> {
        let json = Bytes::from(record.to_json());
        if json.len() as u64 > LONGEST_RECORD {
            let files = record.file_count;
            return Err(PublishError::refused(format!(
                "{}: its {files} files are too many for a record of {LONGEST_RECORD} bytes; pack them into archives",
                self.uri
            )));
        }
        let created = match self.store.create_object(RECORD_NAME, json.clone()).await {
            Err(error) if has_no_conditions(&error) => {
                if self.record().await?.is_none() {
                    self.store.write_object(RECORD_NAME, &json).await.map_err(|error| self.failed(error))?;
                }
                false
            }
            other => other.map_err(|error| self.failed(error))?,
        };
        if created {
            return Ok(());
        }
        // Also after a lost answer.
        match self.record().await? {
            Some(found) if found.digest == record.digest => Ok(()),
            Some(found) => Err(self.is_taken(&found)),
            None => Err(PublishError::new(
                PublishErrorKind::Unavailable,
                format!("{}: the store lost the record; try again", self.place(RECORD_NAME)),
            )),
        }
    }
}

/// Whether the store knows no conditional writes.
fn has_no_conditions(error: &StoreError) -> bool {
    error.status == Some(501) || (error.trouble == ErrorKind::Refused && error.to_string().contains("NotImplemented"))
}
