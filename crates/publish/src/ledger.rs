//! Journal of what earlier tries of a publication have done, on the local disk.

use crate::content::{Item, Stamp};
use crate::error::PublishError;
use checkpoint::folder::Folder;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::Journal;

const VERSION: u32 = 1;

/// A line of the journal.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "did")]
enum JournalLine {
    /// First line: what is published where.
    Begin { version: u32, uri: String },
    /// The hash of a file is known.
    Hashed { path: String, stamp: Stamp, sha256: String },
    /// An object in parts was begun.
    Upload { path: String, stamp: Stamp, id: String, part: u64 },
    /// A part of it is in the store.
    Part { id: String, index: u64, part: String, crc32c: u32 },
    /// A file is in the store.
    Sent { path: String, stamp: Stamp, sha256: String },
}

/// An upload in parts that was begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Upload {
    pub id: String,
    /// How long its parts are, in bytes.
    pub part: u64,
    stamp: Stamp,
}

/// By index: the part's id and CRC-32C.
pub(crate) type Parts = BTreeMap<u64, (String, u32)>;

#[derive(Default)]
struct LedgerState {
    hashes: HashMap<String, (Stamp, String)>,
    sent: HashMap<String, (Stamp, String)>,
    uploads: HashMap<String, Upload>,
    parts: HashMap<String, Parts>,
}

impl LedgerState {
    fn take(&mut self, line: JournalLine) {
        match line {
            JournalLine::Begin { .. } => {}
            JournalLine::Hashed { path, stamp, sha256 } => drop(self.hashes.insert(path, (stamp, sha256))),
            JournalLine::Upload { path, stamp, id, part } => {
                drop(self.uploads.insert(path, Upload { id, part, stamp }));
            }
            JournalLine::Part { id, index, part, crc32c } => {
                self.parts.entry(id).or_default().insert(index, (part, crc32c));
            }
            JournalLine::Sent { path, stamp, sha256 } => {
                if let Some(upload) = self.uploads.remove(&path) {
                    self.parts.remove(&upload.id);
                }
                self.sent.insert(path, (stamp, sha256));
            }
        }
    }
}

/// State of a publication, in memory and on the disk.
pub(crate) struct Ledger {
    journal: Mutex<Option<Journal>>,
    known: Mutex<LedgerState>,
    place: PathBuf,
}

type Result<T> = std::result::Result<T, PublishError>;

impl Ledger {
    /// Opens the journal of the publication of `from` at `uri`, in the folder `at`, which is made.
    pub fn open(at: &Path, uri: &str) -> Result<Self> {
        let name = format!("{}.jsonl", &crate::record::hex(&Sha256::digest(uri))[..16]);
        let place = at.join(&name);
        let failed = |error: io::Error| PublishError::local(&place, &error);
        fs::create_dir_all(at).map_err(failed)?;
        let folder = Arc::new(Folder::root(at).map_err(failed)?);
        let (mut journal, lines) = Journal::open::<JournalLine>(&folder, &name).map_err(failed)?;
        let mut known = LedgerState::default();
        let is_ours =
            |line: &JournalLine| matches!(line, JournalLine::Begin { version: VERSION, uri: found } if found == uri);
        if lines.first().is_some_and(is_ours) {
            lines.into_iter().for_each(|line| known.take(line));
        } else {
            journal.clear().map_err(failed)?;
            journal.note(&JournalLine::Begin { version: VERSION, uri: uri.to_owned() }).map_err(failed)?;
        }
        Ok(Self { journal: Mutex::new(Some(journal)), known: Mutex::new(known), place })
    }

    fn note(&self, line: JournalLine) -> Result<()> {
        if let Some(journal) = &mut *self.journal.lock() {
            journal.note(&line).map_err(|error| PublishError::local(&self.place, &error))?;
        }
        self.known.lock().take(line);
        Ok(())
    }

    /// The SHA-256 of a file, if it is known of the file as it is.
    pub fn hash(&self, item: &Item) -> Option<String> {
        let known = self.known.lock();
        let find = |from: &HashMap<String, (Stamp, String)>| {
            from.get(&item.path)
                .filter(|(stamp, _)| item.stamp.is_same_content(stamp))
                .map(|(_, sha256)| sha256.clone())
        };
        find(&known.sent).or_else(|| find(&known.hashes))
    }

    /// The SHA-256 of a file that is in the store as it is.
    pub fn sent(&self, item: &Item) -> Option<String> {
        let known = self.known.lock();
        known
            .sent
            .get(&item.path)
            .filter(|(stamp, _)| item.stamp.is_same_content(stamp))
            .map(|(_, sha256)| sha256.clone())
    }

    /// Whether a file of that path was sent, as it is now or as it was.
    pub fn has_sent(&self, path: &str) -> bool {
        let known = self.known.lock();
        known.sent.contains_key(path) || known.uploads.contains_key(path)
    }

    /// The upload in parts that was begun for a file, and the parts that are in the store. `true` if it is of the file
    /// as it is.
    pub fn upload(&self, item: &Item) -> Option<(Upload, Parts, bool)> {
        let known = self.known.lock();
        let upload = known.uploads.get(&item.path)?.clone();
        let parts = known.parts.get(&upload.id).cloned().unwrap_or_default();
        let is_same = item.stamp.is_same_content(&upload.stamp);
        Some((upload, parts, is_same))
    }

    pub fn note_hash(&self, item: &Item, sha256: &str) -> Result<()> {
        self.note(JournalLine::Hashed { path: item.path.clone(), stamp: item.stamp, sha256: sha256.to_owned() })
    }

    pub fn note_sent(&self, item: &Item, sha256: &str) -> Result<()> {
        self.note(JournalLine::Sent { path: item.path.clone(), stamp: item.stamp, sha256: sha256.to_owned() })
    }

    pub fn note_upload(&self, item: &Item, id: &str, part: u64) -> Result<()> {
        self.note(JournalLine::Upload { path: item.path.clone(), stamp: item.stamp, id: id.to_owned(), part })
    }

    pub fn note_part(&self, id: &str, index: u64, part: &str, crc32c: u32) -> Result<()> {
        self.note(JournalLine::Part { id: id.to_owned(), index, part: part.to_owned(), crc32c })
    }

    /// Removes the journal once the publication is complete. A journal that stays has nothing new for the next call.
    pub fn remove(&self) {
        if let Some(journal) = self.journal.lock().take() {
            drop(journal.remove());
        }
    }
}
