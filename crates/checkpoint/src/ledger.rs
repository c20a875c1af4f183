//! Record of a root's checkpoints, in `.trainingjob/ledger.json` below it, and of the jobs that share the root.
//!
//! It saves work, and records the owner of each checkpoint and the order of writing. It is never required. A root with
//! a missing or damaged ledger is scanned again. Checkpoints that exist by then belong to no job and stay.

use crate::budget::Budget;
use crate::files::Member;
use crate::folder::Folder;
use crate::found::{Depth, Format, Verdict};
use crate::step::step;
use jiff::{SignedDuration, Timestamp};
use nix::fcntl::{OFlag, openat, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::time::SystemTime;

/// Name of this crate's own folder below a root.
pub const OURS: &str = ".trainingjob";
pub(super) const TRASH: &str = "trash";
/// Suffix of a file that is not complete yet.
pub(super) const BESIDE: &str = ".tmp";
const LEDGER: &str = "ledger.json";
const JOBS: &str = "jobs";
const LIMIT: u64 = 64 << 20;
const VERSION: u32 = 1;
/// A job without a heartbeat for this long no longer uses the root.
const ALIVE: SignedDuration = SignedDuration::from_mins(5);
const FORGOTTEN: SignedDuration = SignedDuration::from_hours(24);
const HEARTBEAT_LIMIT: u64 = 4096;
/// As long as the name of a Kubernetes object.
const NAME_LIMIT: usize = 253;
/// Maximum number of jobs with a recorded first scan.
const JOBS_LIMIT: usize = 1000;

/// The ledger in memory.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub book: Book,
    /// The file that was last read or written: device, inode, length, time.
    stamp: Option<(u64, u64, u64, i64, i64)>,
}

/// Content of the ledger.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Book {
    /// Time of each job's first scan, by the file system's clock. Older checkpoints are not its own.
    pub jobs: BTreeMap<String, Timestamp>,
    /// Number of the last scan that found something new. It defines the order of writing, because file times do not.
    #[serde(default)]
    pub looks: u64,
    /// By UID: the `resumeFrom` that the job has used.
    #[serde(default)]
    pub wishes: BTreeMap<String, UsedWish>,
    /// By UID: the path of the checkpoint that the job's last run resumed from.
    #[serde(default)]
    pub resumed: BTreeMap<String, String>,
    pub checkpoints: BTreeMap<String, Entry>,
}

/// A `resumeFrom` that a job has used. Checkpoints that the job wrote since take precedence over it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct UsedWish {
    /// Its text.
    pub from: String,
    /// The last scan before. A later scan first saw the checkpoints that the job wrote since.
    pub look: u64,
}

/// Record of one checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub format: Format,
    /// None if it could not be read.
    pub verdict: Option<Verdict>,
    pub depth: Depth,
    /// Whether its files no longer changed when it was judged.
    pub settled: bool,
    pub step: Option<u64>,
    pub epoch: Option<f64>,
    pub metrics: BTreeMap<String, f64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<String>,
    pub members: Vec<Member>,
    /// CRC32C of each member, in their order, if every byte was once read and found good.
    pub crc32c: Option<Vec<u32>>,
    /// When these members were first seen.
    pub since: Timestamp,
    /// Number of the scan that first saw them; 0 in a ledger from before scans were counted.
    #[serde(default)]
    pub order: u64,
    /// The earliest possible place in that order.
    #[serde(default)]
    pub earliest: u64,
    /// Whether its time fits when it was first seen. Then the time orders it among the checkpoints that the same scan
    /// first saw.
    #[serde(default)]
    pub timed: bool,
    /// CRC32C of each member before only its times changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub earlier: Option<Vec<u32>>,
    /// The earliest and the last possible place in the order of writing, if these bytes differ from the earlier ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anew: Option<(u64, u64)>,
    /// When it was first seen whole.
    pub whole: Option<Timestamp>,
    /// UID of the job that saw it appear; empty if it existed before, or if several jobs could have written it.
    pub owner: String,
    /// Attempts that resumed from it and failed before real work.
    pub failed_starts: u32,
    /// UID of the job that made those attempts. Another job has another program.
    #[serde(default)]
    pub failed_by: String,
    /// Whether a whole checkpoint once existed at this path, whatever was written there since.
    #[serde(default)]
    pub was_whole: bool,
    /// UID of the job that was the only user when its files were last rewritten or touched with the same names and
    /// sizes. That job may resume from it as its own, but does not delete it as its own.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub renewed_by: String,
}

#[derive(Serialize, Deserialize)]
struct Header {
    version: u32,
    crc32c: u32,
}

#[derive(Serialize, Deserialize)]
struct Heartbeat {
    name: String,
    time: Timestamp,
    /// Whether the job waits until it may use the root.
    #[serde(default)]
    waits: bool,
}

/// Relation of a job to a root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RootClaim {
    /// It uses the root.
    #[default]
    Holds,
    /// It waits until no other job uses the root. Among waiting jobs, the one with the smallest UID is next.
    Waits,
}

impl Ledger {
    /// Merges what another process has written since. Returns the fault of the file, if it has one; the file is then
    /// not used.
    pub fn refresh(&mut self, root: &Folder) -> Option<String> {
        let file = match root.folder(OURS).and_then(|ours| ours.file(LEDGER)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => return Some(format!("{OURS}/{LEDGER} is not used: {error}")),
        };
        let stamp = stamp(&file).ok();
        if stamp.is_some() && stamp == self.stamp {
            return None;
        }
        self.stamp = stamp;
        match read(file) {
            Ok(book) => {
                self.merge(book);
                None
            }
            Err(error) => {
                Some(format!("{OURS}/{LEDGER} is not used, and the checkpoints are looked at again: {error}"))
            }
        }
    }

    /// The entries in the file came first, so they decide the owner of a checkpoint.
    fn merge(&mut self, book: Book) {
        for (uid, time) in book.jobs {
            self.book.jobs.insert(uid, time);
        }
        self.book.looks = self.book.looks.max(book.looks);
        self.book.wishes.extend(book.wishes);
        self.book.resumed.extend(book.resumed);
        for (path, theirs) in book.checkpoints {
            match self.book.checkpoints.get_mut(&path) {
                Some(ours) => {
                    ours.owner = theirs.owner;
                    ours.failed_starts = ours.failed_starts.max(theirs.failed_starts);
                    if ours.members == theirs.members {
                        (ours.order, ours.earliest, ours.anew) = (theirs.order, theirs.earliest, theirs.anew);
                    }
                }
                None => {
                    self.book.checkpoints.insert(path, theirs);
                }
            }
        }
    }

    /// Writes the ledger to a temporary file and renames that, so that a whole one always exists.
    ///
    /// # Errors
    /// If the root can't be written or is full. The old ledger then still exists.
    pub fn save(&mut self, root: &Folder) -> io::Result<()> {
        while self.book.jobs.len() > JOBS_LIMIT {
            let Some(oldest) = self.book.jobs.iter().min_by_key(|(_, time)| **time).map(|(uid, _)| uid.clone()) else {
                break;
            };
            self.book.jobs.remove(&oldest);
            self.book.wishes.remove(&oldest);
            self.book.resumed.remove(&oldest);
        }
        let body = serde_json::to_vec(&self.book)?;
        let mut text = serde_json::to_vec(&Header { version: VERSION, crc32c: crc32c::crc32c(&body) })?;
        text.push(b'\n');
        text.extend_from_slice(&body);
        if text.len() as u64 > LIMIT {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it would have more than {LIMIT} bytes")));
        }
        let ours = root.make(OURS)?;
        self.stamp = Some(replace(&ours, &ours, LEDGER, &text)?);
        Ok(())
    }
}

/// Writes a file of that name into `folder`, completely or not at all. What a kill leaves of it lies in the trash.
fn replace(ours: &Folder, folder: &Folder, name: &str, bytes: &[u8]) -> io::Result<(u64, u64, u64, i64, i64)> {
    let trash = ours.make(TRASH)?;
    let beside = unique() + BESIDE;
    let mut file = create(&trash, &beside)?;
    step();
    let (first, rest) = bytes.split_at(bytes.len() / 2);
    let mut put = || {
        file.write_all(first)?;
        step();
        file.write_all(rest)?;
        file.sync_all()?;
        step();
        renameat(&trash, beside.as_str(), folder, name)?;
        step();
        stamp(&file)
    };
    let written = put();
    if written.is_err() {
        let _ = unlinkat(&trash, beside.as_str(), UnlinkatFlags::NoRemoveDir);
    }
    written
}

/// A new file.
pub(super) fn create(folder: &Folder, name: &str) -> io::Result<File> {
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    Ok(File::from(openat(folder, name, flags, Mode::from_bits_truncate(0o666))?))
}

/// A unique name. The process ID alone is not unique, because all agents in containers have ID 1.
pub(super) fn unique() -> String {
    format!("{}-{:016x}", Timestamp::now().as_nanosecond(), RandomState::new().hash_one(std::process::id()))
}

fn stamp(file: &File) -> io::Result<(u64, u64, u64, i64, i64)> {
    let metadata = file.metadata()?;
    Ok((metadata.dev(), metadata.ino(), metadata.len(), metadata.mtime(), metadata.mtime_nsec()))
}

fn read(file: File) -> io::Result<Book> {
    let mut text = Vec::new();
    file.take(LIMIT + 1).read_to_end(&mut text)?;
    if text.len() as u64 > LIMIT {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {LIMIT} bytes")));
    }
    let end =
        text.iter().position(|byte| *byte == b'\n').ok_or_else(|| io::Error::other("its first line is missing"))?;
    let header: Header = serde_json::from_slice(&text[..end])?;
    if header.version != VERSION {
        return Err(io::Error::other(format!("it is of version {}, not {VERSION}", header.version)));
    }
    if header.crc32c != crc32c::crc32c(&text[end + 1..]) {
        return Err(io::Error::other("it is damaged"));
    }
    Ok(serde_json::from_slice(&text[end + 1..])?)
}

/// Records that a job uses the root, or waits for it. Returns the time by the file system's clock.
///
/// # Errors
/// If the root can't be written, or the UID is invalid.
pub fn heartbeat(root: &Folder, uid: &str, name: &str, turn: RootClaim, now: Timestamp) -> io::Result<Timestamp> {
    let file = heartbeat_file(uid)?;
    let ours = root.make(OURS)?;
    let beat = Heartbeat { name: name.to_owned(), time: now, waits: turn == RootClaim::Waits };
    let jobs = ours.make(JOBS)?;
    let written = replace(&ours, &jobs, &file, &serde_json::to_vec(&beat)?);
    if written.is_err() {
        // A full volume still accepts a new file time.
        let _ = jobs.file(&file).and_then(|file| file.set_modified(SystemTime::now()));
    }
    let (_, _, _, seconds, nanoseconds) = written?;
    Timestamp::new(seconds, i32::try_from(nanoseconds).unwrap_or_default()).map_err(io::Error::other)
}

/// Records that a job no longer uses the root.
///
/// # Errors
/// If the root can't be written.
pub fn leave(root: &Folder, uid: &str) -> io::Result<()> {
    match unlinkat(root.folder(OURS)?.folder(JOBS)?, heartbeat_file(uid)?.as_str(), UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(nix::errno::Errno::ENOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Whether this job has recorded within five minutes that it uses the root.
#[must_use]
pub fn holds(root: &Folder, uid: &str, now: Timestamp) -> bool {
    let read = || read_heartbeat(&root.folder(OURS).ok()?.folder(JOBS).ok()?, &heartbeat_file(uid).ok()?);
    read().is_some_and(|beat| !beat.waits && now.duration_since(beat.time).abs() < ALIVE)
}

/// The names of the other jobs that have recorded within five minutes that they use the root. For a waiting job, this
/// includes the waiting jobs that come first.
///
/// # Errors
/// If the jobs can't be listed. There may then be others.
pub fn others(root: &Folder, uid: &str, turn: RootClaim, now: Timestamp) -> io::Result<Vec<String>> {
    let jobs = match root.folder(OURS).and_then(|ours| ours.folder(JOBS)) {
        Ok(jobs) => jobs,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let own = format!("{uid}.json");
    let mut names = Vec::new();
    for file in jobs.list(&Budget::default())?.files {
        if file == own {
            continue;
        }
        let Some(member) = jobs.member(&file)? else { continue };
        let touched = Timestamp::from_nanosecond(i128::from(member.modified)).unwrap_or(now);
        let theirs = file.strip_suffix(".json").unwrap_or(&file);
        let beat = read_heartbeat(&jobs, &file);
        let beat = beat.unwrap_or_else(|| Heartbeat { name: theirs.to_owned(), time: touched, waits: false });
        // A clock may be wrong either way.
        let age = now.duration_since(beat.time).abs().min(now.duration_since(touched).abs());
        let comes_first = !beat.waits || (turn == RootClaim::Waits && theirs < uid);
        if age < ALIVE && comes_first {
            names.push(beat.name);
        } else if age > FORGOTTEN {
            let _ = unlinkat(&jobs, file.as_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn read_heartbeat(jobs: &Folder, file: &str) -> Option<Heartbeat> {
    let mut text = Vec::new();
    jobs.file(file).ok()?.take(HEARTBEAT_LIMIT).read_to_end(&mut text).ok()?;
    let beat: Heartbeat = serde_json::from_slice(&text).ok()?;
    let name = beat.name.chars().filter(|c| !c.is_control()).take(NAME_LIMIT).collect();
    Some(Heartbeat { name, ..beat })
}

fn heartbeat_file(uid: &str) -> io::Result<String> {
    let is_uid =
        !uid.is_empty() && uid.len() <= NAME_LIMIT && uid.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    if is_uid {
        Ok(format!("{uid}.json"))
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{uid:?} is no UID")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Room, as_nobody};

    const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

    fn entry(owner: &str) -> Entry {
        Entry {
            format: Format::Marked,
            verdict: Some(Verdict::Valid),
            depth: Depth::Content,
            settled: true,
            step: Some(1),
            epoch: Some(0.1),
            metrics: BTreeMap::from([("loss".to_owned(), 0.3)]),
            members: vec![Member { path: "a\nb".into(), size: 1, modified: -5 }],
            crc32c: Some(vec![u32::MAX]),
            since: NOW,
            needs: vec!["/checkpoints/step-1".to_owned()],
            order: 7,
            earliest: 6,
            timed: true,
            earlier: Some(vec![1]),
            anew: Some((6, 7)),
            whole: None,
            owner: owner.to_owned(),
            failed_starts: 1,
            failed_by: owner.to_owned(),
            was_whole: false,
            renewed_by: String::new(),
        }
    }

    fn root(room: &Room) -> Folder {
        Folder::root(&room.path("")).unwrap()
    }

    #[test]
    fn saved_ledger_is_read_back() {
        let room = Room::new();
        let mut ledger = Ledger::default();
        ledger.book.checkpoints.insert("step-1".into(), entry("me"));
        ledger.save(&root(&room)).unwrap();
        let mut other = Ledger::default();
        assert_eq!(other.refresh(&root(&room)), None);
        assert_eq!(other.book, ledger.book);
        assert_eq!(root(&room).folder(".trainingjob/trash").unwrap().list(&Budget::default()).unwrap().files.len(), 0);
    }

    #[test]
    fn first_recorded_owner_keeps_the_checkpoint() {
        let room = Room::new();
        let (mut ours, mut theirs) = (Ledger::default(), Ledger::default());
        theirs.book.checkpoints.insert("step-1".into(), entry("them"));
        theirs.save(&root(&room)).unwrap();
        ours.book.checkpoints.insert("step-1".into(), entry("us"));
        ours.refresh(&root(&room));
        assert_eq!(ours.book.checkpoints["step-1"].owner, "them");
    }

    #[test]
    fn a_damaged_ledger_is_not_used() {
        let room = Room::new();
        let mut ledger = Ledger::default();
        ledger.book.checkpoints.insert("step-1".into(), entry("me"));
        ledger.save(&root(&room)).unwrap();
        let file = room.path(".trainingjob/ledger.json");
        let good = std::fs::read(&file).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            std::fs::write(&file, &bad).unwrap();
            let mut ledger = Ledger::default();
            assert!(ledger.refresh(&root(&room)).is_some(), "byte {at}");
            assert_eq!(ledger.book, Book::default());
        }
        for bad in ["", "\n", "{}\n{}", "null", &"[".repeat(100_000)] {
            std::fs::write(&file, bad).unwrap();
            assert!(Ledger::default().refresh(&root(&room)).is_some(), "{bad:.10}");
        }
        let header = format!("{{\"version\":1,\"crc32c\":{}}}\n", crc32c::crc32c(&vec![b'['; 100_000]));
        std::fs::write(&file, header + &"[".repeat(100_000)).unwrap();
        assert!(Ledger::default().refresh(&root(&room)).is_some());
        std::fs::File::create(&file).unwrap().set_len(1 << 40).unwrap();
        assert!(Ledger::default().refresh(&root(&room)).unwrap().contains("more than"));
        std::fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &file).unwrap();
        assert!(Ledger::default().refresh(&root(&room)).is_some());
        ledger.save(&root(&room)).unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), good);
    }

    #[test]
    fn failed_ledger_write_keeps_the_old_one() {
        std::thread::spawn(|| {
            as_nobody();
            let room = Room::new();
            let mut ledger = Ledger::default();
            ledger.save(&root(&room)).unwrap();
            let ours = room.path(".trainingjob");
            let set = |mode| {
                for path in [ours.join("trash"), ours.clone(), room.path("")] {
                    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
                }
            };
            set(0o500);
            ledger.book.checkpoints.insert("step-1".into(), entry("me"));
            let error = ledger.save(&root(&room)).unwrap_err();
            set(0o700);
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
            let mut old = Ledger::default();
            assert_eq!(old.refresh(&root(&room)), None);
            assert!(old.book.checkpoints.is_empty());
        })
        .join()
        .unwrap();
    }

    #[test]
    fn jobs_sharing_a_root_are_listed_for_five_minutes() {
        let room = Room::new();
        let root = root(&room);
        assert_eq!(others(&root, "a", RootClaim::Holds, NOW).unwrap(), Vec::<String>::new());
        heartbeat(&root, "a", "llama", RootClaim::Holds, NOW).unwrap();
        heartbeat(&root, "b", "bert\n\x1b[31m", RootClaim::Holds, NOW).unwrap();
        assert_eq!(others(&root, "a", RootClaim::Holds, NOW).unwrap(), ["bert[31m"]);
        assert_eq!(others(&root, "c", RootClaim::Holds, NOW).unwrap(), ["bert[31m", "llama"]);
        for minutes in [4, -4] {
            assert_eq!(
                others(&root, "a", RootClaim::Holds, NOW + SignedDuration::from_mins(minutes)).unwrap().len(),
                1
            );
        }
        for minutes in [5, -5] {
            assert_eq!(
                others(&root, "a", RootClaim::Holds, NOW + SignedDuration::from_mins(minutes)).unwrap().len(),
                0
            );
        }
        leave(&root, "b").unwrap();
        leave(&root, "b").unwrap();
        assert_eq!(others(&root, "a", RootClaim::Holds, NOW).unwrap().len(), 0);
        assert!(heartbeat(&root, "../b", "x", RootClaim::Holds, NOW).is_err());
        assert!(heartbeat(&root, "", "x", RootClaim::Holds, NOW).is_err());
    }

    /// Never two at once, and never none for ever.
    #[test]
    fn jobs_take_turns_holding_a_root() {
        let room = Room::new();
        let root = root(&room);
        let others = |uid: &str, turn| others(&root, uid, turn, NOW).unwrap();
        for uid in ["b", "a"] {
            heartbeat(&root, uid, uid, RootClaim::Waits, NOW).unwrap();
        }
        assert_eq!((others("a", RootClaim::Waits), others("b", RootClaim::Waits)), (vec![], vec!["a".to_owned()]));
        assert!(!holds(&root, "a", NOW));
        heartbeat(&root, "b", "b", RootClaim::Holds, NOW).unwrap();
        assert_eq!(others("a", RootClaim::Waits), ["b"], "who came first holds it");
        assert_eq!(others("b", RootClaim::Holds), Vec::<String>::new(), "those that wait write nothing");
        assert!(holds(&root, "b", NOW) && !holds(&root, "b", NOW + ALIVE));
        assert_eq!(super::others(&root, "a", RootClaim::Waits, NOW + ALIVE).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn heartbeat_on_a_full_volume_counts_by_file_time() {
        let room = Room::new();
        let root = root(&room);
        heartbeat(&root, "b", "bert", RootClaim::Holds, NOW).unwrap();
        let later = NOW + SignedDuration::from_hours(1);
        assert_eq!(others(&root, "a", RootClaim::Holds, later).unwrap().len(), 0);
        std::fs::File::open(room.path(".trainingjob/jobs/b.json")).unwrap().set_modified(later.into()).unwrap();
        assert_eq!(others(&root, "a", RootClaim::Holds, later).unwrap(), ["bert"]);
    }

    #[test]
    fn unreadable_heartbeat_counts_by_file_time() {
        let room = Room::new();
        room.write(".trainingjob/jobs/b.json", "{");
        let now = Timestamp::now();
        assert_eq!(others(&root(&room), "a", RootClaim::Holds, now).unwrap(), ["b"]);
        assert_eq!(others(&root(&room), "a", RootClaim::Holds, now + SignedDuration::from_hours(25)).unwrap().len(), 0);
        assert!(!room.path(".trainingjob/jobs/b.json").exists());
    }
}
