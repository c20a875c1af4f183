//! Reads and writes below a folder without ever leaving it.
//!
//! Each name of a path is opened from the folder above and never through a link, so that nothing that a program puts
//! there leads outside. A FIFO is opened without waiting for its writer, and then refused.

use crate::budget::Budget;
use crate::files::{Files, Member, ReadSeek};
use nix::NixPath;
use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, PosixFadviseAdvice, openat, posix_fadvise, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, fsync, unlinkat};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

/// How deep a checkpoint may lie below its root.
pub(super) const DEPTH: usize = 8;
/// How deep a file may lie below its checkpoint. Tensor stores make a folder per parameter and dimension.
const MEMBER_DEPTH: usize = 16;
/// Maximum bytes requested at once, so that the budget is checked often.
const CHUNK: usize = 1 << 20;
/// Bytes added to a checksum at once when nothing else is done with them. They stay in the processor's cache.
const PIECE: u64 = 256 << 10;
/// Bytes that one of several threads sums up before it takes the next part.
const PART: u64 = 64 << 20;
/// Maximum number of threads that compute checksums. More gain little on one volume.
const THREADS: usize = 4;
/// Maximum gap that is read for the checksum although the reader skips it: the padding between a ZIP archive's entries.
const GAP: u64 = 1 << 20;
/// Bytes read when fewer are requested. Formats request a few bytes here and there, and one such read covers a small
/// file.
const AHEAD: usize = 32 << 10;

/// A folder that was opened.
#[derive(Debug)]
pub struct Folder(OwnedFd);

/// Content of a folder. Entries that are neither regular files nor folders are left out, links among them.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Entries {
    /// Names of regular files, sorted.
    pub files: Vec<String>,
    /// Names of folders, sorted.
    pub folders: Vec<String>,
    /// Entries whose name is not UTF-8.
    pub unreadable: u64,
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Folder {
    /// Opens the folder below which everything else is read. Links on the way to it are followed, because the path
    /// comes from the job's creator.
    ///
    /// # Errors
    /// If it is not there, or is not a folder.
    pub fn root(path: &Path) -> io::Result<Self> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_NONBLOCK;
        Ok(Self(OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?.into()))
    }

    /// The folder at `path` below it; `.` is itself.
    ///
    /// # Errors
    /// If it is not there, or there is a link or a file on the way.
    pub fn folder(&self, path: &str) -> io::Result<Self> {
        if path == "." { self.child(".") } else { self.below(&names(path)?) }
    }

    /// The folder that `path` lies in, and its name there.
    ///
    /// # Errors
    /// As [`Folder::folder`]. `InvalidInput` if it does not lie below the root.
    pub(super) fn parent<'p>(&self, path: &'p str) -> io::Result<(Self, &'p str)> {
        let mut names = names(path)?;
        let name = names.pop().unwrap_or_default();
        Ok((self.below(&names)?, name))
    }

    /// The folder at the end of these names; itself without any.
    fn below(&self, names: &[&str]) -> io::Result<Self> {
        let (first, rest) = names.split_first().unwrap_or((&".", &[]));
        rest.iter().try_fold(self.child(*first)?, |folder, name| folder.child(*name))
    }

    /// Opens a regular file.
    ///
    /// # Errors
    /// If it is not there or anything else.
    pub fn file(&self, path: &str) -> io::Result<File> {
        let mut names = names(path)?;
        let name = names.pop().unwrap_or_default();
        let mut folder = None;
        for name in names {
            folder = Some(folder.as_ref().unwrap_or(self).child(name)?);
        }
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = File::from(openat(folder.as_ref().unwrap_or(self), name, flags, Mode::empty())?);
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{path} is no regular file")));
        }
        Ok(file)
    }

    /// The folder at `path` below it, after missing folders are created. An empty path gives the folder itself.
    ///
    /// # Errors
    /// If it can't be made, or there is a link or a file on the way: the latter is [`io::ErrorKind::NotADirectory`].
    pub fn make_all(&self, path: &str) -> io::Result<Self> {
        let names = if path.is_empty() { Vec::new() } else { names(path)? };
        names.into_iter().try_fold(self.child(".")?, |folder, name| folder.make(name))
    }

    /// Opens the regular file of that name for reading and writing; makes it if it is not there.
    ///
    /// # Errors
    /// If what is there is anything else.
    pub fn writable(&self, name: &str) -> io::Result<File> {
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = File::from(openat(self, one_name(name)?, flags, Mode::from_bits_truncate(0o666))?);
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name} is no regular file")));
        }
        Ok(file)
    }

    /// Moves the entry of that name, even if it is a link, to another folder and name, where it replaces a file.
    ///
    /// # Errors
    /// If it is not there, or can't be moved.
    pub fn rename(&self, name: &str, to: &Self, new: &str) -> io::Result<()> {
        Ok(renameat(self, one_name(name)?, to, one_name(new)?)?)
    }

    /// Removes the entry of that name: a file, a link itself, or a folder with all its content. A missing entry is no
    /// error.
    ///
    /// # Errors
    /// If something can't be removed.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        self.remove_raw(&CString::new(one_name(name)?)?)
    }

    fn remove_raw(&self, name: &CStr) -> io::Result<()> {
        match unlinkat(self, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => return Ok(()),
            // The error for a folder differs by file system.
            Err(Errno::EISDIR | Errno::EPERM) => {}
            Err(error) => return Err(error.into()),
        }
        let folder = self.child(name)?;
        for inner in folder.raw(usize::MAX)? {
            folder.remove_raw(&inner)?;
        }
        Ok(unlinkat(self, name, UnlinkatFlags::RemoveDir)?)
    }

    /// Removes the folder of that name if it is empty.
    ///
    /// # Errors
    /// If it is not there or not empty.
    pub fn remove_empty(&self, name: &str) -> io::Result<()> {
        Ok(unlinkat(self, one_name(name)?, UnlinkatFlags::RemoveDir)?)
    }

    /// The names of all that is in it, as far as they are text.
    ///
    /// # Errors
    /// If it can't be listed.
    pub fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.raw(usize::MAX)?.into_iter().filter_map(|name| name.into_string().ok()).collect())
    }

    /// Waits until the entries of it, and of all folders below it, are on the disk.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn sync_all(&self) -> io::Result<()> {
        for name in self.raw(usize::MAX)? {
            match self.child(name.as_c_str()) {
                Ok(folder) => folder.sync_all()?,
                Err(error) if error.kind() == io::ErrorKind::NotADirectory => {}
                Err(error) => return Err(error),
            }
        }
        self.sync()
    }

    /// Waits until its entries are on the disk.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn sync(&self) -> io::Result<()> {
        Ok(fsync(self)?)
    }

    /// The folder of that name, made if it is not there.
    ///
    /// # Errors
    /// If it can't be made, or what is there is no folder.
    pub fn make(&self, name: &str) -> io::Result<Self> {
        match self.child(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                match mkdirat(self, name, Mode::from_bits_truncate(0o777)) {
                    Ok(()) | Err(Errno::EEXIST) => self.child(name),
                    Err(error) => Err(error.into()),
                }
            }
            result => result,
        }
    }

    /// Metadata of the entry of that name, which may be a link.
    pub(super) fn stat(&self, name: &str) -> io::Result<FileStat> {
        Ok(fstatat(self, name, AtFlags::AT_SYMLINK_NOFOLLOW)?)
    }

    /// Its entries.
    ///
    /// # Errors
    /// [`io::ErrorKind::FileTooLarge`] if it has more than the budget allows for one folder; another kind if nothing is left of the
    /// budget.
    pub(super) fn list(&self, budget: &Budget) -> io::Result<Entries> {
        let mut entries = Entries::default();
        let limit = budget.entries_of_a_folder();
        let mut count = 0;
        let mut dir = Dir::from_fd(self.child(".")?.0)?;
        for entry in dir.iter() {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            budget.in_time()?;
            count += 1;
            if count > limit {
                return Err(budget.too_many());
            }
            let Ok(name) = name.to_str() else {
                entries.unreadable += 1;
                continue;
            };
            let kind = match entry.file_type() {
                Some(kind) => kind,
                None => match self.stat(name) {
                    Ok(stat) if is_file(&stat) => Type::File,
                    Ok(stat) if is_folder(&stat) => Type::Directory,
                    Ok(_) => continue,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    Err(error) => return Err(error),
                },
            };
            match kind {
                Type::File => entries.files.push(name.to_owned()),
                Type::Directory => entries.folders.push(name.to_owned()),
                _ => {}
            }
        }
        budget.list(count);
        entries.files.sort_unstable();
        entries.folders.sort_unstable();
        Ok(entries)
    }

    /// The first `limit` names in it, in any encoding and for any kind of entry.
    pub(super) fn raw(&self, limit: usize) -> io::Result<Vec<CString>> {
        let mut dir = Dir::from_fd(self.child(".")?.0)?;
        let names = dir.iter().map(|entry| Ok(entry?.file_name().to_owned()));
        names.filter(|name| !matches!(name, Ok(name) if matches!(name.to_bytes(), b"." | b".."))).take(limit).collect()
    }

    /// All regular files below it, sorted by path. Entries at its top level with a name in `but_not` are skipped.
    ///
    /// # Errors
    /// If any folder can't be listed, or lies too deep. Half a list is worse than none.
    pub(super) fn members(&self, budget: &Budget, but_not: &[&str]) -> io::Result<Vec<Member>> {
        let mut members = Vec::new();
        self.gather("", 0, budget, but_not, &mut members)?;
        members.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        Ok(members)
    }

    fn gather(&self, at: &str, depth: usize, budget: &Budget, not: &[&str], to: &mut Vec<Member>) -> io::Result<()> {
        let entries = self.list(budget)?;
        for name in entries.files.iter().filter(|name| !not.contains(&name.as_str())) {
            to.extend(self.member(name)?.map(|member| Member { path: format!("{at}{name}"), ..member }));
        }
        for name in entries.folders.iter().filter(|name| !not.contains(&name.as_str())) {
            if depth == MEMBER_DEPTH {
                return Err(io::Error::other(format!("{at}{name} is more than {MEMBER_DEPTH} folders deep")));
            }
            self.child(name.as_str())?.gather(&format!("{at}{name}/"), depth + 1, budget, &[], to)?;
        }
        Ok(())
    }

    /// The regular file of that name, if it (still) is there.
    pub(super) fn member(&self, name: &str) -> io::Result<Option<Member>> {
        match self.stat(name) {
            Ok(stat) if is_file(&stat) => {
                let size = u64::try_from(stat.st_size).unwrap_or_default();
                Ok(Some(Member { path: name.to_owned(), size, modified: modified(&stat) }))
            }
            Ok(_) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The folder of that one name.
    pub(super) fn child<N: ?Sized + NixPath>(&self, name: &N) -> io::Result<Self> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        Ok(Self(openat(self, name, flags, Mode::empty())?))
    }
}

pub(super) fn is_file(stat: &FileStat) -> bool {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFREG
}

pub(super) fn is_link(stat: &FileStat) -> bool {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFLNK
}

pub(super) fn is_folder(stat: &FileStat) -> bool {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR
}

fn modified(stat: &FileStat) -> i64 {
    stat.st_mtime.saturating_mul(1_000_000_000).saturating_add(stat.st_mtime_nsec)
}

/// A name that leads to an entry of the folder itself.
fn one_name(name: &str) -> io::Result<&str> {
    match names(name)?.as_slice() {
        [name] => Ok(name),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} is no name of an entry"))),
    }
}

/// The names of a path, all of which lead down.
fn names(path: &str) -> io::Result<Vec<&str>> {
    let names: Vec<&str> = path.split('/').collect();
    if names.iter().any(|name| matches!(*name, "" | "." | "..") || name.contains('\0')) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{path:?} is no path below the root")));
    }
    Ok(names)
}

/// The files of a checkpoint on the volume.
pub struct OnVolume<'a> {
    folder: Folder,
    members: Vec<Member>,
    budget: &'a Budget,
    /// For each file read so far: how many bytes were read from its beginning, and their CRC32C.
    sums: Option<Mutex<BTreeMap<String, Sum>>>,
}

/// Identity of a file, and the time of its last change. While these stay the same, so do its bytes. A program can set
/// the time of writing, but not the time of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    /// When it was last changed, in nanoseconds since 1970.
    pub(super) fn changed(&self) -> i64 {
        self.changed.0.saturating_mul(1_000_000_000).saturating_add(self.changed.1)
    }
}

/// Part of a file that one thread sums up.
struct FileSlice<'m> {
    member: &'m Member,
    bytes: Range<u64>,
    crc32c: OnceLock<u32>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    bytes: u64,
    crc32c: u32,
}

impl<'a> OnVolume<'a> {
    /// The files `members` (sorted by path) of `folder`. With `sums`, checksums are computed as the files are read.
    pub(super) fn new(folder: Folder, members: Vec<Member>, budget: &'a Budget, sums: bool) -> Self {
        Self { folder, members, budget, sums: sums.then(Default::default) }
    }

    /// When the last of its files was written, or the folder if it has no files, in nanoseconds since 1970.
    pub(super) fn modified(&self) -> io::Result<i64> {
        match self.members.iter().map(|member| member.modified).max() {
            Some(newest) => Ok(newest),
            None => Ok(modified(&fstat(&self.folder)?)),
        }
    }

    /// The CRC32C of each file, in their order. Bytes that were not read before are read now, large files in parts.
    /// Several threads read unless the budget limits the rate.
    ///
    /// # Errors
    /// If one can't be read, or is not as long as it was.
    pub(super) fn crc32c(&self) -> io::Result<Vec<u32>> {
        let known = self.sums.as_ref().map(|sums| sums.lock().unwrap_or_else(PoisonError::into_inner).clone());
        let known: Vec<Sum> = self
            .members
            .iter()
            .map(|member| known.as_ref().and_then(|sums| sums.get(&member.path)).copied().unwrap_or_default())
            .collect();
        let mut parts = Vec::new();
        for (member, sum) in self.members.iter().zip(&known) {
            let mut at = sum.bytes;
            while at < member.size {
                let end = member.size.min(at.saturating_add(PART));
                parts.push(FileSlice { member, bytes: at..end, crc32c: OnceLock::new() });
                at = end;
            }
        }
        self.sum_up(&parts)?;
        let mut parts = parts.into_iter().peekable();
        let mut sums = Vec::with_capacity(self.members.len());
        for (member, sum) in self.members.iter().zip(known) {
            let mut sum = sum;
            while let Some(part) = parts.next_if(|part| std::ptr::eq(part.member, member)) {
                let length = part.bytes.end - part.bytes.start;
                let crc32c = part.crc32c.into_inner().unwrap_or_default();
                sum.crc32c = crc32c::crc32c_combine(sum.crc32c, crc32c, length as usize);
                sum.bytes = part.bytes.end;
            }
            if sum.bytes != member.size {
                return Err(changes(&member.path));
            }
            sums.push(sum.crc32c);
        }
        Ok(sums)
    }

    /// Sums up all parts. The first error ends all threads.
    fn sum_up(&self, parts: &[FileSlice<'_>]) -> io::Result<()> {
        let threads = match self.budget.is_paced() {
            true => 1,
            false => thread::available_parallelism().map_or(1, usize::from).min(THREADS).min(parts.len()),
        };
        let next = AtomicUsize::new(0);
        let work = || -> io::Result<()> {
            while let Some(part) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
                let sum = self.sum_part(part);
                if sum.is_err() {
                    next.store(parts.len(), Ordering::Relaxed);
                }
                let _ = part.crc32c.set(sum?);
            }
            Ok(())
        };
        thread::scope(|scope| {
            let begin = |_| thread::Builder::new().name("reader".to_owned()).spawn_scoped(scope, work).ok();
            let others: Vec<_> = (1..threads).filter_map(begin).collect();
            let ours = work();
            let failed = || Err(io::Error::other("the reader failed"));
            others.into_iter().fold(ours, |all, other| all.and(other.join().unwrap_or_else(|_| failed())))
        })
    }

    fn sum_part(&self, part: &FileSlice<'_>) -> io::Result<u32> {
        let file = self.file(&part.member.path)?;
        let mut buffer = vec![0; (part.bytes.end - part.bytes.start).min(PIECE) as usize];
        let (mut at, mut sum) = (part.bytes.start, 0);
        while at < part.bytes.end {
            let most = (part.bytes.end - at).min(PIECE) as usize;
            let read = match file.read_at(&mut buffer[..most], at) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            if read == 0 {
                return Err(changes(&part.member.path));
            }
            self.budget.read(read as u64)?;
            sum = crc32c::crc32c_append(sum, &buffer[..read]);
            at += read as u64;
        }
        self.is_read(&file);
        Ok(sum)
    }

    /// Drops the file from the page cache if the budget limits the rate, so that the training keeps its pages.
    fn is_read(&self, file: &File) {
        if self.budget.is_paced() {
            let _ = posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
        }
    }

    /// The stamp of each file, in their order. The files are opened, because a file server then reports their current
    /// state.
    ///
    /// # Errors
    /// If one can't be opened.
    pub(super) fn stamps(&self) -> io::Result<Vec<Stamp>> {
        let stamp = |member: &Member| {
            let it = self.file(&member.path)?.metadata()?;
            let (modified, changed) = ((it.mtime(), it.mtime_nsec()), (it.ctime(), it.ctime_nsec()));
            Ok(Stamp { device: it.dev(), inode: it.ino(), size: it.len(), modified, changed })
        };
        self.members.iter().map(stamp).collect()
    }

    fn file(&self, path: &str) -> io::Result<File> {
        self.folder.file(path).map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))
    }

    fn reader(&self, path: &str) -> io::Result<Reader<'_>> {
        let Some(member) = self.member(path) else {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("{path} is no file of the checkpoint")));
        };
        let file = self.file(path)?;
        let ahead = vec![0; member.size.min(AHEAD as u64) as usize];
        Ok(Reader { file, position: 0, ahead, has: 0..0, sum: Sum::default(), path: path.to_owned(), files: self })
    }
}

impl Files for OnVolume<'_> {
    fn members(&self) -> &[Member] {
        &self.members
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn ReadSeek + '_>> {
        Ok(Box::new(self.reader(path)?))
    }

    fn member(&self, path: &str) -> Option<&Member> {
        self.members.binary_search_by(|member| member.path.as_str().cmp(path)).ok().map(|at| &self.members[at])
    }
}

/// Reads within a budget, and computes a checksum as long as bytes are read in order.
struct Reader<'a> {
    file: File,
    position: u64,
    ahead: Vec<u8>,
    /// Which bytes of the file are in `ahead`, from its beginning on.
    has: Range<u64>,
    sum: Sum,
    path: String,
    files: &'a OnVolume<'a>,
}

impl Reader<'_> {
    /// Reads what is at `self.position`, within the budget, and adds it to the sum.
    fn fetch(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(CHUNK);
        if self.files.sums.is_none() {
            self.files.budget.in_time()?;
        }
        let read = self.file.read_at(&mut buffer[..most], self.position)?;
        self.files.budget.read(read as u64)?;
        if self.files.sums.is_some() {
            self.add(&buffer[..read])?;
        }
        Ok(read)
    }

    /// Adds the bytes read at `self.position` to the checksum, if they continue the bytes read before.
    fn add(&mut self, bytes: &[u8]) -> io::Result<()> {
        let missing = self.position.saturating_sub(self.sum.bytes);
        if bytes.is_empty() || missing > GAP {
            return Ok(());
        }
        if missing > 0 {
            let mut gap = vec![0; missing as usize];
            self.files.budget.read(missing)?;
            self.file.read_exact_at(&mut gap, self.sum.bytes)?;
            self.sum = Sum { bytes: self.position, crc32c: crc32c::crc32c_append(self.sum.crc32c, &gap) };
        }
        let old = usize::try_from(self.sum.bytes - self.position).unwrap_or(usize::MAX);
        if let Some(new) = bytes.get(old..) {
            self.sum.bytes += new.len() as u64;
            self.sum.crc32c = crc32c::crc32c_append(self.sum.crc32c, new);
        }
        Ok(())
    }
}

impl Read for Reader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = if !self.has.contains(&self.position) && buffer.len() >= self.ahead.len() {
            self.fetch(buffer)?
        } else {
            if !self.has.contains(&self.position) {
                self.has = 0..0;
                let mut ahead = std::mem::take(&mut self.ahead);
                let read = self.fetch(&mut ahead);
                self.ahead = ahead;
                self.has = self.position..self.position + read? as u64;
            }
            let from = (self.position - self.has.start) as usize;
            let there = &self.ahead[from..(self.has.end - self.has.start) as usize];
            let read = there.len().min(buffer.len());
            buffer[..read].copy_from_slice(&there[..read]);
            read
        };
        self.position += read as u64;
        Ok(read)
    }
}

impl Seek for Reader<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.position = match to {
            SeekFrom::Start(position) => position,
            SeekFrom::Current(by) => self.position.checked_add_signed(by).ok_or(io::ErrorKind::InvalidInput)?,
            SeekFrom::End(_) => self.file.seek(to)?,
        };
        Ok(self.position)
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        let Some(sums) = &self.files.sums else { return };
        let mut sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
        let best = sums.entry(self.path.clone()).or_default();
        if self.sum.bytes > best.bytes {
            *best = self.sum;
        }
        drop(sums);
        self.files.is_read(&self.file);
    }
}

fn changes(path: &str) -> io::Error {
    io::Error::other(format!("{path} changes while it is read"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Room;
    use nix::unistd::mkfifo;
    use proptest::prelude::*;
    use std::io::Write;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64};

    #[test]
    fn links_and_paths_cannot_leave_the_root() {
        let room = Room::new();
        let (inside, outside) = (room.path("inside"), room.path("outside"));
        room.write("outside/secret", "secret");
        room.write("inside/file", "file");
        symlink(&outside, inside.join("link")).unwrap();
        symlink(outside.join("secret"), inside.join("secret")).unwrap();
        let root = Folder::root(&inside).unwrap();
        for path in
            ["../outside/secret", "link/secret", "secret", "/etc/passwd", "", ".", "..", "file/", "a\0b", "file/x"]
        {
            assert!(root.file(path).is_err(), "{path:?}");
        }
        assert!(root.folder("link").is_err());
        assert!(root.folder("..").is_err());
        let members = root.members(&Budget::default(), &[]).unwrap();
        assert_eq!(members.iter().map(|member| member.path.as_str()).collect::<Vec<_>>(), ["file"]);
    }

    #[test]
    fn nothing_outside_the_root_is_written_or_removed() {
        let room = Room::new();
        let (inside, outside) = (room.path("inside"), room.path("outside"));
        room.write("outside/kept", "kept");
        room.write("inside/a/b/file", "file");
        symlink(&outside, inside.join("link")).unwrap();
        symlink(&outside, inside.join("a/link")).unwrap();
        symlink(outside.join("kept"), inside.join("file-link")).unwrap();
        let root = Folder::root(&inside).unwrap();
        for path in ["link", "link/x", "a/link/x", "../x", "a/b/file/x", "file-link/x"] {
            assert!(root.make_all(path).is_err(), "{path}");
        }
        assert_eq!(root.make_all("link/x").unwrap_err().kind(), io::ErrorKind::NotADirectory);
        for name in ["file-link", "link", "../new", "a/new", "", ".."] {
            assert!(root.writable(name).is_err(), "{name:?}");
            assert!(name.contains("link") || root.remove(name).is_err(), "{name:?}");
        }
        root.writable("new").unwrap().write_all(b"new").unwrap();
        root.rename("new", &root.make_all("c/d").unwrap(), "moved").unwrap();
        assert_eq!(std::fs::read(inside.join("c/d/moved")).unwrap(), b"new");
        root.sync_all().unwrap();
        assert!(root.remove_empty("a").is_err());
        for name in ["a", "link", "file-link", "c", "nothing"] {
            root.remove(name).unwrap();
        }
        assert_eq!(root.names().unwrap(), [""; 0]);
        assert_eq!(std::fs::read(outside.join("kept")).unwrap(), b"kept");
    }

    #[test]
    fn only_regular_files_are_opened() {
        let room = Room::new();
        mkfifo(&room.path("fifo"), Mode::from_bits_truncate(0o600)).unwrap();
        let _listener = UnixListener::bind(room.path("socket")).unwrap();
        room.write("line\nbreak", "x");
        std::fs::write(room.path("").join(std::ffi::OsStr::from_bytes(b"\xff")), "x").unwrap();
        let root = Folder::root(&room.path("")).unwrap();
        assert!(root.file("fifo").is_err());
        assert!(root.file("socket").is_err());
        let entries = root.list(&Budget::default()).unwrap();
        assert_eq!(entries, Entries { files: vec!["line\nbreak".into()], folders: vec![], unreadable: 1 });
        assert!(Folder::root(&room.path("fifo")).is_err());
    }

    #[test]
    fn partial_listing_is_an_error() {
        let room = Room::new();
        room.write(&format!("{}file", "d/".repeat(MEMBER_DEPTH)), "x");
        let root = Folder::root(&room.path("")).unwrap();
        assert_eq!(root.members(&Budget::default(), &[]).unwrap().len(), 1);
        room.write(&format!("{}file", "d/".repeat(MEMBER_DEPTH + 1)), "x");
        assert!(root.members(&Budget::default(), &[]).unwrap_err().to_string().contains("folders deep"));
    }

    /// A large file in parts, beside small ones, by several threads or by one that is slow.
    #[test]
    fn checksums_by_part_match_whole_files() {
        let room = Room::new();
        let large: Vec<u8> = (0..PART * 2 + 5).map(|at| (at % 251) as u8).collect();
        room.write("a", "small");
        room.write("c", "");
        std::fs::write(room.path("b"), &large).unwrap();
        let sums = [crc32c::crc32c(b"small"), crc32c::crc32c(&large), 0];
        let total = Arc::new(AtomicU64::new(0));
        for budget in [Budget::default(), Budget::default().bytes_per_second(u64::MAX)] {
            let budget = budget.counted_by(Arc::clone(&total));
            let root = Folder::root(&room.path("")).unwrap();
            let members = root.members(&budget, &[]).unwrap();
            assert_eq!(OnVolume::new(root, members, &budget, true).crc32c().unwrap(), sums);
        }
        assert_eq!(total.load(Ordering::Relaxed), 2 * (large.len() as u64 + 5), "every byte once");
        let root = Folder::root(&room.path("")).unwrap();
        let stop = Arc::new(AtomicBool::new(true));
        let budget = Budget::default();
        let members = root.members(&budget, &[]).unwrap();
        let budget = budget.stopped_by(stop);
        assert!(OnVolume::new(root, members, &budget, true).crc32c().is_err(), "a thread that stops ends all");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn checksum_covers_the_file_regardless_of_reads(bytes in proptest::collection::vec(any::<u8>(), 0..3000), reads in proptest::collection::vec((0..3000u64, 0..500usize), 0..8)) {
            let room = Room::new();
            std::fs::File::create(room.path("file")).unwrap().write_all(&bytes).unwrap();
            let root = Folder::root(&room.path("")).unwrap();
            let budget = Budget::default();
            let members = root.members(&budget, &[]).unwrap();
            let files = OnVolume::new(root, members, &budget, true);
            let mut reader = files.open("file").unwrap();
            for (at, length) in reads {
                reader.seek(SeekFrom::Start(at)).unwrap();
                let mut read = Vec::new();
                reader.by_ref().take(length as u64).read_to_end(&mut read).unwrap();
                let at = (at as usize).min(bytes.len());
                prop_assert_eq!(&read, &bytes[at..(at + length).min(bytes.len())]);
            }
            drop(reader);
            prop_assert_eq!(files.crc32c().unwrap(), [crc32c::crc32c(&bytes)]);
        }
    }
}
