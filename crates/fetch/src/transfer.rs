//! Fetching the files of a listing: large ones in ranges, many at a time, resumed where an earlier try ended.
//!
//! A journal beside the files has a line for each part that is on the disk, with its CRC-32C, and one for each file
//! that is whole, verified and synchronised. A part is believed only if the disk has the same CRC. A line that a crash
//! cut is passed over.
//!
//! Memory: 1 MiB for each of at most 32 connections, and 33 bytes for each file of the listing.

use crate::error::{FetchError, FetchErrorKind};
use crate::lease::Lease;
use crate::listing::{Check, Item, Listing};
use crate::names::{from_hex, hex};
use crate::network::{NetworkTimeouts, Retries};
use crate::progress::Progress;
use crate::source::Source;
use crate::web_file::Version;
use crate::written::{Hashes, Ranges, Target, crc_of};
use crate::{blocking, cache::StoredFile};
use checkpoint::folder::Folder;
use checkpoint::space::Space;
use checkpoint::wording;
use futures::{StreamExt, TryStreamExt, stream};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use text::one_line;
use tokio::sync::mpsc;

/// Maximum bytes of one request.
const RANGE: u64 = 64 * 1024 * 1024;
/// Bytes of a range after which the journal has a line. A fetcher that is killed loses at most that much.
const PART: u64 = 16 * 1024 * 1024;
/// Bytes that are written at once.
const BLOCK: usize = 1024 * 1024;
/// Files at a time.
const FILES: usize = 8;
/// Ranges of one file at a time.
const RANGES: usize = 4;
/// Files of the listing that are read ahead.
const AHEAD: usize = 64;
/// The journal's name.
pub(crate) const JOURNAL: &str = "journal.jsonl";

/// A line of the journal. Files are named by their number in the listing.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum JournalLine {
    /// The SHA-256 of the listing that the numbers are of.
    Listing(String),
    /// File, start, length and CRC-32C.
    Part(usize, u64, u64, u32),
    /// File and SHA-256.
    Done(usize, String),
    /// Nothing of this file is kept.
    Dropped(usize),
}

/// Parts of files that are on the disk: of each file start, length and CRC-32C.
type Parts = HashMap<usize, Vec<(u64, u64, u32)>>;

/// What earlier tries left.
struct EarlierTries {
    parts: Parts,
    results: Results,
}

impl EarlierTries {
    /// Nothing yet, for a listing of that many files.
    fn new(files: usize) -> Self {
        let results = Results { hashes: vec![[0; 32]; files], is_done: vec![false; files] };
        Self { parts: HashMap::new(), results }
    }

    fn take(&mut self, line: JournalLine) {
        match line {
            JournalLine::Part(file, ..) | JournalLine::Done(file, _) | JournalLine::Dropped(file)
                if file >= self.results.is_done.len() => {}
            JournalLine::Part(file, start, length, crc) => {
                self.parts.entry(file).or_default().push((start, length, crc));
            }
            JournalLine::Done(file, sha256) => {
                self.parts.remove(&file);
                if let Some(hash) = from_hex(&sha256) {
                    (self.results.hashes[file], self.results.is_done[file]) = (hash, true);
                }
            }
            JournalLine::Dropped(file) => {
                self.parts.remove(&file);
                self.results.is_done[file] = false;
            }
            JournalLine::Listing(_) => {}
        }
    }
}

type Result<T> = std::result::Result<T, FetchError>;

/// Why a range could not be fetched.
enum Stop {
    /// The server knows no ranges.
    NoRanges,
    Failed(FetchError),
}

impl From<FetchError> for Stop {
    fn from(error: FetchError) -> Self {
        Self::Failed(error)
    }
}

/// The hashes of the files that are whole.
struct Results {
    hashes: Vec<[u8; 32]>,
    is_done: Vec<bool>,
}

/// All files of a listing, and where they go.
pub(crate) struct Transfer<'a> {
    job: Job<'a>,
    data: Arc<Folder>,
    /// Where `data` is, for errors.
    place: PathBuf,
    journal: Arc<Mutex<File>>,
    parts: Mutex<Parts>,
    results: Mutex<Results>,
}

/// What a transfer is of.
pub(crate) struct Job<'a> {
    pub source: &'a Source,
    pub revision: &'a str,
    pub listing: &'a Listing,
    pub lease: &'a Arc<Lease>,
    pub patience: NetworkTimeouts,
    pub progress: &'a Progress,
}

impl<'a> Transfer<'a> {
    /// Resumes or begins it in the folder `work`.
    ///
    /// # Errors
    /// [`FetchErrorKind::Local`] if the volume has too little space.
    pub async fn open(job: Job<'a>, work: &Arc<Folder>, place: PathBuf) -> Result<Self> {
        let (digest, total) = (hex(&job.listing.digest), job.listing.total);
        let files = usize::try_from(job.listing.lines).unwrap_or(usize::MAX);
        let (work, at) = (Arc::clone(work), place.clone());
        let (data, journal, known) = blocking(move || {
            let failed = |error: io::Error| FetchError::local(&at, &error);
            let (journal, known) = match open_journal(&work, &digest, files).map_err(failed)? {
                Some(found) => found,
                None => {
                    work.remove(crate::cache::DATA).map_err(failed)?;
                    (new_journal(&work, &digest).map_err(failed)?, EarlierTries::new(files))
                }
            };
            let data = work.make(crate::cache::DATA).map_err(failed)?;
            Ok((data, journal, known))
        })
        .await?;
        job.progress.begin(total.bytes, total.files);
        Ok(Self {
            job,
            data: Arc::new(data),
            place: place.join(crate::cache::DATA),
            journal: Arc::new(Mutex::new(journal)),
            parts: Mutex::new(known.parts),
            results: Mutex::new(known.results),
        })
    }

    /// Bytes that earlier tries left, as far as the journal says.
    fn left(&self) -> Result<u64> {
        let items = self.job.listing.items().map_err(|error| self.failed("", &error))?;
        let (results, parts) = (self.results.lock(), self.parts.lock());
        let mut bytes = 0;
        for item in items {
            let (index, item) = item.map_err(|error| self.failed("", &error))?;
            bytes += match results.is_done.get(index) {
                Some(true) => item.size,
                _ => parts.get(&index).into_iter().flatten().map(|(_, length, _)| length).sum(),
            };
        }
        Ok(bytes)
    }

    /// Fetches everything that is missing.
    ///
    /// # Errors
    /// The error of the first file that could not be fetched. The others stay for the next try.
    pub async fn run(&self, space: Option<Space>) -> Result<()> {
        let total = self.job.listing.total;
        check_space(&self.place, space, total.bytes.saturating_sub(self.left()?), total.files)?;
        let (send, receive) = mpsc::channel(AHEAD);
        let items = self.job.listing.items().map_err(|error| self.failed("", &error))?;
        // It ends with the last item, or with its reader.
        let reading = tokio::task::spawn_blocking(move || {
            let mut items = items;
            let _ = items.try_for_each(|item| send.blocking_send(item).map_err(drop));
        });
        let items = stream::unfold(receive, |mut receive| async move { Some((receive.recv().await?, receive)) });
        let fetched = items
            .map(|item| async move {
                let (index, item) = item.map_err(|error| self.failed("", &error))?;
                self.file(index, &item).await
            })
            .buffer_unordered(FILES)
            .try_collect::<()>()
            .await;
        drop(reading.await);
        fetched
    }

    /// The files with their hashes, once all are whole.
    pub fn stored(&self) -> Result<impl Iterator<Item = io::Result<StoredFile>> + use<>> {
        let items = self.job.listing.items().map_err(|error| self.failed("", &error))?;
        let hashes = std::mem::take(&mut self.results.lock().hashes);
        Ok(items.map(move |item| {
            let (index, item) = item?;
            Ok(StoredFile { path: item.path, size: item.size, sha256: hex(&hashes[index]) })
        }))
    }

    fn failed(&self, path: &str, error: &io::Error) -> FetchError {
        FetchError::local(&self.place.join(path), error)
    }

    fn name(&self, item: &Item) -> String {
        let uri = self.job.source.uri();
        if uri.contains(&item.path) { uri.to_owned() } else { format!("{uri} ({})", one_line(&item.path)) }
    }

    fn note(&self, line: &JournalLine) -> Result<()> {
        let noted = serde_json::to_vec(line).map_err(io::Error::from).and_then(|mut text| {
            text.push(b'\n');
            self.journal.lock().write_all(&text)
        });
        noted.map_err(|error| self.failed(JOURNAL, &error))
    }

    /// Runs `work` on a file's target on a thread that may wait for the disk. The lease is held until it has ended, also
    /// if the fetch is dropped meanwhile, so that no write follows the next holder's.
    async fn on_disk<T: Send + 'static>(
        &self,
        item: &Item,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Result<T> {
        let (path, lease) = (self.place.join(&item.path), Arc::clone(self.job.lease));
        blocking(move || {
            let done = work().map_err(|error| FetchError::local(&path, &error));
            drop(lease);
            done
        })
        .await
    }

    async fn file(&self, index: usize, item: &Item) -> Result<()> {
        if self.results.lock().is_done[index] {
            let (data, path, size) = (Arc::clone(&self.data), item.path.clone(), item.size);
            let is_there = move || Ok(data.file(&path).and_then(|file| file.metadata()).is_ok_and(|m| m.len() == size));
            if self.on_disk(item, is_there).await? {
                self.job.progress.kept(item.size);
                self.job.progress.file();
                return Ok(());
            }
            self.results.lock().is_done[index] = false;
        }
        let (target, kept) = self.target(index, item).await?;
        self.job.progress.kept(kept);
        let mut may_repeat = kept > 0;
        loop {
            let version = Mutex::new(None);
            let filled = match self.fill(index, item, &target, &version).await {
                Err(Stop::NoRanges) => self.fill_from_start(item, &target).await,
                Err(Stop::Failed(error)) => Err(error),
                Ok(()) => Ok(()),
            };
            let hashes = match filled {
                Ok(()) => {
                    let target = Arc::clone(&target);
                    self.on_disk(item, move || target.finish()).await?
                }
                Err(error) => {
                    if matches!(error.kind, FetchErrorKind::Changed | FetchErrorKind::Corrupted) {
                        self.drop_file(index, item, &target).await?;
                    }
                    return Err(error);
                }
            };
            let Err(error) = self.verify(item, hashes) else {
                self.results.lock().hashes[index] = hashes.sha256;
                self.note(&JournalLine::Done(index, hex(&hashes.sha256)))?;
                self.job.progress.file();
                self.job.source.watch.completed();
                return Ok(());
            };
            self.drop_file(index, item, &target).await?;
            // What an earlier fetcher left may be at fault, and not the source.
            if !std::mem::take(&mut may_repeat) {
                return Err(error);
            }
        }
    }

    /// Opens a file, and determines which of its bytes are there. Also returns their number.
    async fn target(&self, index: usize, item: &Item) -> Result<(Arc<Target>, u64)> {
        let parts = self.parts.lock().remove(&index).unwrap_or_default();
        let (data, path, size) = (Arc::clone(&self.data), item.path.clone(), item.size);
        let git = matches!(item.check, Check::GitBlob(_));
        let opened = self
            .on_disk(item, move || {
                let (folder, name) = path.rsplit_once('/').unwrap_or(("", &path));
                let file = data.make_all(folder)?.writable(name)?;
                let length = file.metadata()?.len();
                if length > size {
                    file.set_len(size)?;
                }
                let mut ranges = Ranges::default();
                for (start, length, crc) in parts {
                    let Some(end) = start.checked_add(length).filter(|end| *end <= size) else { continue };
                    if crc_of(&file, start..end).is_ok_and(|found| found == crc) {
                        ranges.add(start..end);
                    }
                }
                let kept = ranges.bytes();
                Ok((Arc::new(Target::new(file, size, git, ranges)), kept))
            })
            .await;
        opened.map_err(|error| match error.kind {
            FetchErrorKind::Local if error.to_string().contains("in the place of") => FetchError::refused(format!(
                "{}: it is a file and a folder at once; name a prefix or path without it",
                self.name(item)
            )),
            _ => error,
        })
    }

    async fn drop_file(&self, index: usize, item: &Item, target: &Arc<Target>) -> Result<()> {
        self.job.progress.lost(item.size);
        self.note(&JournalLine::Dropped(index))?;
        let target = Arc::clone(target);
        self.on_disk(item, move || target.clear()).await
    }

    /// Fetches the ranges that are missing.
    async fn fill(
        &self,
        index: usize,
        item: &Item,
        target: &Arc<Target>,
        version: &Mutex<Option<Version>>,
    ) -> std::result::Result<(), Stop> {
        stream::iter(target.missing(RANGE))
            .map(|range| self.range(index, item, target, version, range))
            .buffer_unordered(RANGES)
            .try_collect()
            .await
    }

    async fn range(
        &self,
        index: usize,
        item: &Item,
        target: &Arc<Target>,
        version: &Mutex<Option<Version>>,
        range: Range<u64>,
    ) -> std::result::Result<(), Stop> {
        let mut block = Block::new(range.start, range.end);
        let mut tries = Retries::new(self.job.patience);
        while block.at() < range.end {
            let before = block.at();
            match self.piece(index, item, target, version, &mut block, range.end).await {
                Ok(()) => {}
                Err(Stop::NoRanges) => return Err(Stop::NoRanges),
                Err(Stop::Failed(error)) => {
                    tries.wait(error, block.at() - before >= self.job.patience.least_data).await?;
                }
            }
        }
        Ok(())
    }

    /// One request of a range, from where the last one ended.
    async fn piece(
        &self,
        index: usize,
        item: &Item,
        target: &Arc<Target>,
        version: &Mutex<Option<Version>>,
        block: &mut Block,
        end: u64,
    ) -> std::result::Result<(), Stop> {
        self.check_lease().await?;
        let known = version.lock().clone();
        let (opened, found) = self.job.source.open_range(self.job.revision, item, block.at()..end, known).await?;
        if opened.is_whole {
            return Err(Stop::NoRanges);
        }
        {
            let mut version = version.lock();
            if version.is_none() {
                *version = found;
            }
        }
        let mut pieces = opened.pieces;
        while let Some(piece) = pieces.next().await {
            let mut piece = &piece?[..];
            while !piece.is_empty() && block.at() < end {
                let taken = block.take(piece);
                self.arrived(taken as u64);
                piece = &piece[taken..];
                if block.is_full() {
                    self.write(index, item, target, block).await?;
                }
            }
            if block.at() >= end {
                // What a server sends beyond its promise is not read.
                return Ok(());
            }
        }
        let (name, at) = (self.name(item), block.at());
        Err(FetchError::unavailable(format!(
            "{name}: the connection ended after {at} of {} bytes; check the server",
            item.size
        ))
        .into())
    }

    /// Writes a block, and notes the part that it completes.
    async fn write(&self, index: usize, item: &Item, target: &Arc<Target>, block: &mut Block) -> Result<()> {
        let (start, bytes) = block.empty();
        let bytes = self.put(item, target, start, bytes).await?;
        let part = block.written(bytes);
        if let Some((start, length, crc)) = part.filter(|_| item.size > PART) {
            let part = Arc::clone(target);
            drop(tokio::task::spawn_blocking(move || part.begin_to_sync(start..start + length)));
            self.note(&JournalLine::Part(index, start, length, crc))?;
            self.check_lease().await?;
        }
        Ok(())
    }

    /// Writes bytes to their place, and gives them back. Bytes that wait to be hashed are hashed beside the
    /// connections.
    async fn put<B>(&self, item: &Item, target: &Arc<Target>, at: u64, bytes: B) -> Result<B>
    where
        B: AsRef<[u8]> + Send + 'static,
    {
        let writer = Arc::clone(target);
        let (bytes, is_behind) =
            self.on_disk(item, move || writer.write(at, bytes.as_ref()).map(|is_behind| (bytes, is_behind))).await?;
        if is_behind {
            let target = Arc::clone(target);
            // A fetch that is given up lets go of it.
            drop(tokio::task::spawn_blocking(move || target.catch_up(|| Arc::strong_count(&target) > 1)));
        }
        Ok(bytes)
    }

    /// Fetches a file from a server that knows no ranges, from the start each time.
    async fn fill_from_start(&self, item: &Item, target: &Arc<Target>) -> Result<()> {
        let mut tries = Retries::new(self.job.patience);
        let mut furthest = 0;
        loop {
            self.check_lease().await?;
            let emptied = Arc::clone(target);
            self.on_disk(item, move || emptied.clear()).await?;
            let mut at = 0;
            let error = match self.whole(item, target, &mut at).await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            self.job.progress.lost(at);
            let has_progress = at >= furthest + self.job.patience.least_data;
            furthest = furthest.max(at);
            tries.wait(error, has_progress).await?;
        }
    }

    async fn whole(&self, item: &Item, target: &Arc<Target>, at: &mut u64) -> Result<()> {
        let (opened, _) = self.job.source.open_range(self.job.revision, item, 0..item.size, None).await?;
        let mut pieces = opened.pieces;
        while *at < item.size {
            let Some(piece) = pieces.next().await else {
                let (name, size) = (self.name(item), item.size);
                return Err(FetchError::unavailable(format!(
                    "{name}: the connection ended after {at} of {size} bytes, and the server knows no ranges; \
                     use a server that does"
                )));
            };
            let piece = piece?;
            let length = piece.len().min(usize::try_from(item.size - *at).unwrap_or(usize::MAX));
            self.put(item, target, *at, piece.slice(..length)).await?;
            self.arrived(length as u64);
            *at += length as u64;
            self.check_lease().await?;
        }
        Ok(())
    }

    fn arrived(&self, bytes: u64) {
        self.job.progress.arrived(bytes);
        self.job.source.watch.arrived(bytes);
    }

    async fn check_lease(&self) -> Result<()> {
        let lease = Arc::clone(self.job.lease);
        blocking(move || lease.check_now_and_then()).await
    }

    fn verify(&self, item: &Item, hashes: Hashes) -> Result<()> {
        let (what, expected, found) = match (&item.check, hashes.git) {
            (Check::Sha256(expected), _) => ("SHA-256", expected, hex(&hashes.sha256)),
            (Check::GitBlob(expected), Some(git)) => ("git SHA-1", expected, hex(&git)),
            _ => return Ok(()),
        };
        if *expected == found {
            return Ok(());
        }
        Err(FetchError::corrupted(format!(
            "{}: its {what} is {found}, and not {}; the file was replaced or damaged at its \
             source, or the hash is wrong",
            self.name(item),
            one_line(expected)
        )))
    }
}

/// Bytes of a range on their way to the disk.
struct Block {
    bytes: Vec<u8>,
    /// Where the next byte belongs.
    at: u64,
    end: u64,
    part: u64,
    crc: u32,
}

impl Block {
    fn new(start: u64, end: u64) -> Self {
        Self { bytes: Vec::new(), at: start, end, part: start, crc: 0 }
    }

    fn at(&self) -> u64 {
        self.at
    }

    /// The end of the part that the next byte belongs to.
    fn part_end(&self) -> u64 {
        (self.part / PART + 1).saturating_mul(PART).min(self.end)
    }

    /// Takes as many bytes as fit, and returns their number.
    fn take(&mut self, piece: &[u8]) -> usize {
        let room = (BLOCK - self.bytes.len()) as u64;
        let taken = room.min(self.part_end() - self.at).min(piece.len() as u64);
        let taken = usize::try_from(taken).unwrap_or(0);
        if self.bytes.capacity() == 0 {
            self.bytes.reserve_exact(usize::try_from(self.end - self.at).map_or(BLOCK, |left| left.min(BLOCK)));
        }
        self.bytes.extend_from_slice(&piece[..taken]);
        self.at += taken as u64;
        taken
    }

    fn is_full(&self) -> bool {
        self.bytes.len() >= BLOCK || self.at == self.part_end()
    }

    /// Gives its bytes away, and where they belong.
    fn empty(&mut self) -> (u64, Vec<u8>) {
        (self.at - self.bytes.len() as u64, std::mem::take(&mut self.bytes))
    }

    /// Takes the memory back. If the bytes complete a part, returns its start, length and CRC-32C.
    fn written(&mut self, mut bytes: Vec<u8>) -> Option<(u64, u64, u32)> {
        self.crc = crc32c::crc32c_append(self.crc, &bytes);
        bytes.clear();
        self.bytes = bytes;
        if self.at < self.part_end() {
            return None;
        }
        let part = (self.part, self.at - self.part, self.crc);
        (self.part, self.crc) = (self.at, 0);
        Some(part)
    }
}

/// Opens the journal of an earlier try, for a listing of that many files. `None` if there is none, or if it is of
/// another listing.
fn open_journal(work: &Folder, digest: &str, files: usize) -> io::Result<Option<(File, EarlierTries)>> {
    let mut file = match work.file(JOURNAL) {
        Ok(_) => work.writable(JOURNAL)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut known = EarlierTries::new(files);
    let mut is_first = true;
    let mut ends_whole = true;
    let mut lines = BufReader::new(&file);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line)? > 0 {
        ends_whole = line.ends_with(b"\n");
        let parsed = serde_json::from_slice(&line).ok().filter(|_| ends_whole);
        if std::mem::take(&mut is_first) && !matches!(&parsed, Some(JournalLine::Listing(found)) if found == digest) {
            return Ok(None);
        }
        if let Some(parsed) = parsed {
            known.take(parsed);
        }
        line.clear();
    }
    if is_first {
        return Ok(None);
    }
    append_only(&file)?;
    file.seek(SeekFrom::End(0))?;
    if !ends_whole {
        file.write_all(b"\n")?;
    }
    Ok(Some((file, known)))
}

fn new_journal(work: &Folder, digest: &str) -> io::Result<File> {
    work.remove(JOURNAL)?;
    let mut file = work.writable(JOURNAL)?;
    append_only(&file)?;
    let mut line = serde_json::to_vec(&JournalLine::Listing(digest.to_owned()))?;
    line.push(b'\n');
    file.write_all(&line)?;
    Ok(file)
}

fn append_only(file: &File) -> io::Result<()> {
    fcntl(file, FcntlArg::F_SETFL(OFlag::O_APPEND)).map_err(io::Error::from).map(drop)
}

/// Compares what is missing with what the volume has. Some file servers state nothing, or 0 for everything.
fn check_space(place: &std::path::Path, space: Option<Space>, bytes: u64, files: u64) -> Result<()> {
    let Some(Space { free, total, free_inodes, inodes }) = space else { return Ok(()) };
    let place = place.display();
    let full = |what: String| {
        FetchError::new(
            FetchErrorKind::Local,
            format!("{place}: {what}; free space on the volume of the cache, or enlarge it"),
        )
    };
    if (free > 0 || total > 0) && bytes > free {
        let (needed, free) = (wording::bytes(bytes), wording::bytes(free));
        return Err(full(format!("{needed} are missing, and the volume has {free} free")));
    }
    if inodes > 0 && files > free_inodes {
        return Err(full(format!("it has {files} files, and the volume can have {free_inodes} more")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn insufficient_space_or_inodes_are_reported() {
        let space = |free, free_inodes| Space { free, total: 100, free_inodes, inodes: 1000 };
        let check = |space, bytes, files| check_space(Path::new("/cache"), space, bytes, files);
        assert!(check(Some(space(10, 10)), 10, 10).is_ok());
        assert!(check(None, u64::MAX, u64::MAX).is_ok());
        assert!(check(Some(Space::default()), u64::MAX, u64::MAX).is_ok(), "a file server that states nothing");
        let error = check(Some(space(10 << 20, 10)), 20 << 20, 1).unwrap_err();
        assert_eq!((error.kind, error.is_final()), (FetchErrorKind::Local, false));
        assert!(error.to_string().contains("20.0 MiB are missing, and the volume has 10.0 MiB free"), "{error}");
        let error = check(Some(space(0, 10)), 1, 1).unwrap_err();
        assert!(error.to_string().contains("the volume has 0 B free"), "{error}");
        assert!(check(Some(space(10, 10)), 1, 11).unwrap_err().to_string().contains("11 files"));
    }

    #[test]
    fn blocks_end_at_part_and_range_boundaries() {
        let mut block = Block::new(PART - 10, PART + 5);
        assert_eq!(block.take(&[1; 100]), 10);
        assert!(block.is_full());
        let (at, bytes) = block.empty();
        assert_eq!((at, bytes.len()), (PART - 10, 10));
        assert_eq!(block.written(bytes), Some((PART - 10, 10, crc32c::crc32c(&[1; 10]))));
        assert_eq!(block.take(&[2; 3]), 3);
        assert!(!block.is_full());
        assert_eq!(block.take(&[2; 3]), 2);
        assert!(block.is_full());
        let (at, bytes) = block.empty();
        assert_eq!((at, block.written(bytes)), (PART, Some((PART, 5, crc32c::crc32c(&[2; 5])))));
    }

    #[test]
    fn torn_journal_keeps_its_complete_lines() {
        let room = tempfile::tempdir().unwrap();
        let work = Folder::root(room.path()).unwrap();
        assert!(open_journal(&work, "a", 2).unwrap().is_none());
        let mut journal = new_journal(&work, "a").unwrap();
        journal
            .write_all(b"{\"part\":[0,0,5,7]}\n{\"part\":[1,0,5,7]}\n\xff\n{\"dropped\":1}\n{\"part\":[0,5,")
            .unwrap();
        let (mut journal, known) = open_journal(&work, "a", 2).unwrap().unwrap();
        assert_eq!(known.parts, HashMap::from([(0, vec![(0, 5, 7)])]));
        journal.write_all(b"{\"part\":[0,9,1,7]}\n").unwrap();
        let (_, known) = open_journal(&work, "a", 2).unwrap().unwrap();
        assert_eq!(known.parts[&0], [(0, 5, 7), (9, 1, 7)]);
        assert!(open_journal(&work, "b", 2).unwrap().is_none(), "of another listing");
    }
}
