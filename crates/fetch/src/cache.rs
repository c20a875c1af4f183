//! A folder of contents that many fetchers share, also on network file systems without locks.
//!
//! `CACHE/KEY/` has the files in `data/`. `files.jsonl` has a line of path, size and SHA-256 for each. `entry.json`
//! describes the content, with the hash of `files.jsonl`. KEY is the first 32 hexadecimal digits of a SHA-256 over the
//! address and the resolved revision. An entry is made in `CACHE/.fetching`, is on the disk before its `entry.json` is,
//! and appears under its name by one rename. A damaged entry is renamed into `CACHE/.damaged`, under a unique name.
//!
//! [Leases](crate::lease) decide which fetcher makes an entry.

use crate::error::FetchError;
use crate::lease::{Lease, LeaseTimes, unique};
use crate::names::{check_path, hex};
use crate::transfer::JOURNAL;
use checkpoint::folder::Folder;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::thread;

/// The file that makes an entry whole.
pub(crate) const MARKER: &str = "entry.json";
const FILES: &str = "files.jsonl";
pub(crate) const DATA: &str = "data";
const DAMAGED: &str = ".damaged";
/// Maximum length of a marker, in bytes.
const LONGEST_MARKER: u64 = 64 * 1024;
/// The version of the entry's form.
const VERSION: u32 = 1;
/// Files that are hashed at a time.
const THREADS: usize = 4;

/// A file of an entry: a line of `files.jsonl`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredFile {
    pub path: String,
    pub size: u64,
    pub sha256: String,
}

/// What an entry is: `entry.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Entry {
    pub version: u32,
    pub address: String,
    pub revision: String,
    pub files: u64,
    pub bytes: u64,
    /// SHA-256 of `files.jsonl`.
    pub files_sha256: String,
    /// The name of the one file, if the address is of a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    pub fetched: Timestamp,
    /// The holder of the lease under which it was made.
    pub fetcher: String,
}

/// State of a key.
#[derive(Debug)]
pub(crate) enum EntryState {
    Whole(Entry),
    Missing,
    /// What is wrong, and the marker that it was found with.
    Damaged {
        why: String,
        marker: Option<Vec<u8>>,
    },
}

/// A cache, opened. Clones are of the same one.
#[derive(Clone)]
pub(crate) struct Cache {
    pub path: PathBuf,
    pub root: Arc<Folder>,
    pub fetching: Arc<Folder>,
    pub times: LeaseTimes,
}

type Result<T> = std::result::Result<T, FetchError>;

impl Cache {
    /// Opens the folder at `path`, which must exist, so that an unmounted volume is not filled.
    pub fn open(path: &Path, times: LeaseTimes) -> Result<Self> {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => FetchError::refused(format!(
                "{}: the cache's folder is not there; create it, or mount its volume there",
                path.display()
            )),
            _ => FetchError::local(path, &error),
        };
        let root = Folder::root(path).map_err(failed)?;
        let fetching = root.make(".fetching").map_err(failed)?;
        Ok(Self { path: path.to_owned(), root: Arc::new(root), fetching: Arc::new(fetching), times })
    }

    /// Where the files of a key are.
    pub fn data(&self, key: &str) -> PathBuf {
        self.path.join(key).join(DATA)
    }

    /// An empty file that is removed with its descriptor.
    pub fn spool(&self) -> Result<File> {
        let name = format!("list.{}", unique());
        let file = self.fetching.writable(&name);
        let file = file.and_then(|file| self.fetching.remove(&name).map(|()| file));
        file.map_err(|error| FetchError::local(&self.path.join(".fetching").join(&name), &error))
    }

    /// The bytes of the marker of a key. `None` if there is none.
    pub fn marker(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        let read = self.root.file(&format!("{key}/{MARKER}"));
        match read.and_then(|file| file.take(LONGEST_MARKER).read_to_end(&mut bytes)) {
            Ok(_) => Ok(Some(bytes)),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(FetchError::local(&self.path.join(key).join(MARKER), &error)),
        }
    }

    /// What the marker of a key says. `None` if there is none that can be read.
    pub fn entry(&self, key: &str) -> Option<Entry> {
        parse(&self.marker(key).ok()??)
    }

    /// State of a key. The sizes of all files are compared, and with `verify` their hashes too.
    pub fn look(&self, key: &str, verify: bool) -> Result<EntryState> {
        let folder = match self.root.folder(key) {
            Ok(folder) => folder,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(EntryState::Missing),
            Err(error) if is_missing(&error) => {
                return Ok(EntryState::Damaged { why: "it is no folder".to_owned(), marker: None });
            }
            Err(error) => return Err(FetchError::local(&self.path.join(key), &error)),
        };
        let Some(marker) = self.marker(key)? else {
            return Ok(EntryState::Damaged { why: format!("{MARKER} is missing"), marker: None });
        };
        let Some(entry) = parse(&marker) else {
            return Ok(EntryState::Damaged { why: format!("{MARKER} can't be read"), marker: Some(marker) });
        };
        match check(&folder, &entry, verify) {
            Ok(None) => Ok(EntryState::Whole(entry)),
            Ok(Some(why)) => Ok(EntryState::Damaged { why, marker: Some(marker) }),
            Err(error) => Err(FetchError::local(&self.data(key), &error)),
        }
    }

    /// Moves a damaged entry out of the way, and returns its new place. Only the holder of the key's lease may call it.
    pub fn set_aside(&self, key: &str) -> Result<PathBuf> {
        let name = format!("{key}.{}", unique());
        let place = self.path.join(DAMAGED).join(&name);
        let moved = self.root.make(DAMAGED).and_then(|damaged| self.root.rename(key, &damaged, &name));
        match moved {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(FetchError::local(&place, &error)),
            _ => Ok(place),
        }
    }

    /// Makes the files that a lease's holder has fetched the entry of its key. `files` are all in its `data`, and on
    /// the disk.
    pub fn publish(
        &self,
        lease: &Lease,
        work: &Folder,
        mut entry: Entry,
        files: impl Iterator<Item = io::Result<StoredFile>>,
    ) -> Result<Entry> {
        let place = self.path.join(lease.key());
        let failed = |error: io::Error| FetchError::local(&place, &error);
        entry.files_sha256 = write_files(work, files).map_err(failed)?;
        work.folder(DATA).and_then(|data| data.sync_all()).map_err(failed)?;
        work.remove(JOURNAL).map_err(failed)?;
        let bytes = serde_json::to_vec_pretty(&entry).map_err(|error| failed(error.into()))?;
        let temporary = format!("{MARKER}.new");
        work.remove(&temporary)
            .and_then(|()| work.writable(&temporary))
            .and_then(|mut file| file.write_all(&bytes).and_then(|()| file.sync_all()))
            .and_then(|()| work.rename(&temporary, work, MARKER))
            .and_then(|()| work.sync())
            .map_err(failed)?;
        lease.check()?;
        self.fetching.rename(&lease.work_name(), &self.root, lease.key()).map_err(failed)?;
        self.root.sync().map_err(failed)?;
        Ok(entry)
    }
}

fn parse(marker: &[u8]) -> Option<Entry> {
    serde_json::from_slice(marker).ok().filter(|entry: &Entry| entry.version == VERSION)
}

pub(crate) fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidInput)
        || error.raw_os_error() == Some(nix::libc::ELOOP)
}

/// Writes `files.jsonl`, and returns its SHA-256.
fn write_files(work: &Folder, files: impl Iterator<Item = io::Result<StoredFile>>) -> io::Result<String> {
    work.remove(FILES)?;
    let mut writer = BufWriter::new(work.writable(FILES)?);
    let mut digest = Sha256::new();
    for file in files {
        let mut line = serde_json::to_vec(&file?)?;
        line.push(b'\n');
        digest.update(&line);
        writer.write_all(&line)?;
    }
    writer.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
    Ok(hex(&digest.finalize()))
}

/// What is wrong with the files of an entry.
fn check(folder: &Folder, entry: &Entry, verify: bool) -> io::Result<Option<String>> {
    let list = match folder.file(FILES) {
        Ok(list) => list,
        Err(error) if is_missing(&error) => return Ok(Some(format!("{FILES} is missing"))),
        Err(error) => return Err(error),
    };
    let (data, mut lines) = match folder.folder(DATA) {
        Ok(data) => (data, BufReader::new(list)),
        Err(error) if is_missing(&error) => return Ok(Some(format!("{DATA} is missing"))),
        Err(error) => return Err(error),
    };
    // The lines are read by one thread at a time, and the files by as many as there are.
    let mut digest = Sha256::new();
    let (mut files, mut bytes) = (0, 0_u64);
    let mut next = || -> io::Result<Option<StoredFile>> {
        let mut line = Vec::new();
        if lines.by_ref().take(LONGEST_MARKER).read_until(b'\n', &mut line)? == 0 {
            return Ok(None);
        }
        digest.update(&line);
        let stored: StoredFile = serde_json::from_slice(&line)?;
        files += 1;
        bytes = bytes.saturating_add(stored.size);
        Ok(Some(stored))
    };
    let wrong = if verify {
        check_in_parallel(&data, &mut next)?
    } else {
        let mut wrong = None;
        while let Some(stored) = next()? {
            wrong = check_file(&data, &stored, false)?;
            if wrong.is_some() {
                break;
            }
        }
        wrong
    };
    let is_listed = files == entry.files && bytes == entry.bytes && hex(&digest.finalize()) == entry.files_sha256;
    Ok(wrong.or_else(|| (!is_listed).then(|| format!("{FILES} is not the list that it was made with"))))
}

fn check_in_parallel(
    data: &Folder,
    next: &mut (dyn FnMut() -> io::Result<Option<StoredFile>> + Send),
) -> io::Result<Option<String>> {
    let next = Mutex::new(next);
    let work = || -> io::Result<Option<String>> {
        loop {
            let stored = (next.lock())()?;
            let Some(stored) = stored else { return Ok(None) };
            let wrong = check_file(data, &stored, true)?;
            if wrong.is_some() {
                return Ok(wrong);
            }
        }
    };
    let results = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread has panicked"))))
            .collect::<Vec<_>>()
    });
    let mut found = None;
    for result in results {
        found = found.or(result?);
    }
    Ok(found)
}

fn check_file(data: &Folder, stored: &StoredFile, verify: bool) -> io::Result<Option<String>> {
    let path = &stored.path;
    if let Err(why) = check_path(path) {
        return Ok(Some(format!("the path {path:?} {why}")));
    }
    let file = match data.file(path) {
        Ok(file) => file,
        Err(error) if is_missing(&error) => return Ok(Some(format!("the file {path} is missing"))),
        Err(error) => return Err(error),
    };
    let size = file.metadata()?.len();
    if size != stored.size {
        return Ok(Some(format!("the file {path} has {size} bytes, and not {}", stored.size)));
    }
    if verify && hex(&hash(&file)?) != stored.sha256 {
        return Ok(Some(format!("the file {path} has another SHA-256")));
    }
    Ok(None)
}

fn hash(mut file: &File) -> io::Result<[u8; 32]> {
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 1024 * 1024];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(digest.finalize().into()),
            read => digest.update(&buffer[..read]),
        }
    }
}

/// The way from a folder to `target`. Both are absolute.
fn relative(target: &Path, folder: &Path) -> PathBuf {
    let shared = target.components().zip(folder.components()).take_while(|(one, other)| one == other).count();
    let up = folder.components().skip(shared).map(|_| Component::ParentDir);
    up.chain(target.components().skip(shared)).collect()
}

/// Makes `link` a symbolic link to `target`, in place of a link that is there. It is relative, so that it leads to the same
/// place where their volume is mounted at another path.
///
/// # Errors
/// If it can't be made, or if something that is no link is in its place.
pub fn link(target: &Path, link: &Path) -> std::result::Result<(), FetchError> {
    if fs::symlink_metadata(link).is_ok_and(|found| !found.is_symlink()) {
        return Err(FetchError::refused(format!("{}: it is there and no link; remove it", link.display())));
    }
    // By the names without links: `..` leads from where a folder really is.
    let real = |path: &Path| fs::canonicalize(path).map_err(|error| FetchError::local(path, &error));
    let folder = link.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let target = relative(&real(target)?, &real(folder)?);
    let name = link.file_name().unwrap_or_default().to_string_lossy();
    let temporary = link.with_file_name(format!(".{name}.{}", unique()));
    let made = std::os::unix::fs::symlink(target, &temporary).and_then(|()| fs::rename(&temporary, link));
    made.map_err(|error| FetchError::local(link, &error))
}
