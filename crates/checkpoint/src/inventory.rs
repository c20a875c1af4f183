//! What checkpoints there are below a root, and which of them are good.

use crate::budget::Budget;
use crate::files::{Files, Member, ReadSeek};
use crate::folder::{DEPTH, Folder, OnVolume, Stamp};
use crate::formats::{Claim, FORMATS, Listing, Rules, named};
use crate::found::{Depth, Format, FoundCheckpoint, Judgement, Verdict};
use crate::ledger::{self, Entry, Ledger, OURS, RootClaim, UsedWish};
use crate::series::{Series, saves};
use crate::wording::shown;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A checkpoint unchanged for this long is not being written. A fault in it then counts as damage, and every byte may
/// be read.
const QUIET: SignedDuration = SignedDuration::from_secs(5);
/// An incomplete checkpoint that has not changed for this long no longer has a writer.
const GRACE: SignedDuration = SignedDuration::from_mins(10);
/// Folders that a scan skips: this crate's own, the file system's, and file server snapshots, which repeat every file.
const NOT_OURS: &[&str] = &[OURS, "lost+found", ".snapshot", ".snapshots", ".zfs"];
/// Maximum difference between the file system's clock and the local clock.
const CLOCK: SignedDuration = SignedDuration::from_mins(1);
/// Interval at which a job records that it uses the root.
const HEARTBEAT: SignedDuration = SignedDuration::from_mins(1);
/// Maximum number of other checkpoints that one checkpoint may require, and the maximum length of their paths.
const NEEDS: usize = 16;
const LONGEST_NEED: usize = 4096;
/// Extensions of files that a program writes beside a checkpoint with the same number. A data set's shards have other
/// names.
const COMPANIONS: [&str; 12] =
    ["pt", "pth", "bin", "pkl", "json", "safetensors", "npz", "npy", "yaml", "yml", "txt", "ckpt"];
/// Maximum number of files beside the checkpoints of one folder that are copied with them.
const BESIDE: usize = 1000;
/// Maximum number of notes that one scan reports.
const NOTES: usize = 50;

/// Lifecycle stage of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// Writing has ended, and the verdict applies.
    Written,
    /// Being written.
    Writing,
    /// Incomplete, and its writer has died.
    Abandoned,
    /// The scan could not read it. Its verdict gives only the reason.
    Unread,
}

/// A checkpoint on the volume, with what the ledger records of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KnownCheckpoint {
    /// What it is.
    #[serde(flatten)]
    pub found: FoundCheckpoint,
    /// Its lifecycle stage.
    pub stage: Stage,
    /// Whether this job, and no other, has written it.
    pub own: bool,
    /// Time since which it was seen unchanged, by the caller's clock.
    pub since: Timestamp,
    /// Attempts that resumed from it and failed before their first progress.
    pub failed_starts: u32,
    /// CRC32C of each of its members, in their order, if every byte was once read and found good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crc32c: Option<Vec<u32>>,
}

impl KnownCheckpoint {
    /// Whether it has been unchanged for so long that its writer has probably finished.
    #[must_use]
    pub fn is_quiet(&self, now: Timestamp) -> bool {
        is_past(self.since, QUIET, now)
    }

    /// Whether every byte was read and found good and no attempt has failed with it. Older checkpoints may then be
    /// deleted.
    #[must_use]
    pub fn is_proven(&self) -> bool {
        self.stage == Stage::Written
            && self.found.is_good()
            && self.found.depth == Depth::Content
            && self.failed_starts == 0
    }
}

/// Result of scanning a root.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// The checkpoints, the newest first.
    pub found: Vec<KnownCheckpoint>,
    /// Descriptions of what the scan could not read.
    pub notes: Vec<String>,
    /// Other jobs that use the root. If there are any, nothing is deleted.
    pub others: Vec<String>,
    /// Whether the other jobs that use the root could not be listed. The owner of new checkpoints is then unknown, and
    /// the ledger records nothing of this scan.
    pub unreported: bool,
    /// Whether the scan finished.
    pub whole: bool,
    /// Files that no format claims, by the folder in which they lie beside one of this job's own checkpoints. Examples
    /// are configurations, tokenizers and states of random numbers.
    pub beside: BTreeMap<String, Vec<Member>>,
}

impl Scan {
    /// Why the scan did not finish, if it did not. It may then have missed checkpoints.
    #[must_use]
    pub fn unlisted(&self) -> Option<String> {
        let of_the_folder = || self.notes.iter().find(|note| !note.starts_with(OURS)).or(self.notes.first());
        let unknown = || "the folder of checkpoints could not be read to its end".to_owned();
        (!self.whole).then(|| of_the_folder().cloned().unwrap_or_else(unknown))
    }

    /// Number of checkpoints whose verdict satisfies `is`.
    #[must_use]
    pub fn count(&self, is: impl Fn(&Verdict) -> bool) -> u32 {
        u32::try_from(self.found.iter().filter(|known| is(&known.found.verdict)).count()).unwrap_or(u32::MAX)
    }

    /// Indices of the checkpoints to read next, the newest first. They belong to the `most` newest good saves of each
    /// series, and some of their bytes have not been read yet.
    #[must_use]
    pub fn to_read(&self, most: usize, now: Timestamp) -> Vec<usize> {
        if self.unreported {
            return Vec::new();
        }
        // A program may save so often that its newest checkpoints are never quiet. The newest quiet ones then count
        // instead.
        let can_be = |known: &KnownCheckpoint| {
            known.found.is_good() && (known.found.depth == Depth::Content || known.is_quiet(now))
        };
        let all: Vec<(usize, &KnownCheckpoint)> = self.found.iter().enumerate().collect();
        let mut counts: BTreeMap<Series, usize> = BTreeMap::new();
        let mut next = Vec::new();
        for save in saves(&all, |(_, known)| &known.found) {
            // Checkpoints that others have written are neither copied nor deleted, so they all form one series.
            let is_own = save.items.iter().any(|(_, known)| known.own);
            let series = if is_own { save.series } else { BTreeSet::from([Series::default()]) };
            let is_one = |series: &Series| counts.get(series).is_none_or(|count| *count < most);
            if !save.items.iter().all(|(_, known)| can_be(known)) || !series.iter().any(is_one) {
                continue;
            }
            let unread = save.items.iter().filter(|(_, known)| known.found.depth == Depth::Structure);
            next.extend(unread.map(|(index, _)| *index));
            for series in series {
                *counts.entry(series).or_default() += 1;
            }
        }
        next
    }

    /// Collects the files beside this job's own checkpoints.
    fn see_beside(&mut self, root: &Folder, mut left: BTreeMap<String, Vec<String>>) {
        let own = self.found.iter().filter(|known| known.own && known.found.path != ".");
        let folders: BTreeSet<String> =
            own.map(|known| known.found.path.rsplit_once('/').map_or("", |(folder, _)| folder).to_owned()).collect();
        for folder in folders {
            let Some(names) = left.remove(&folder) else { continue };
            if names.len() > BESIDE {
                let count = names.len();
                self.note(format!("{}: {count} files lie beside the checkpoints and are not copied", place(&folder)));
                continue;
            }
            let Ok(at) = root.folder(if folder.is_empty() { "." } else { &folder }) else { continue };
            let members: Vec<Member> = names.iter().filter_map(|name| at.member(name).ok().flatten()).collect();
            if !members.is_empty() {
                self.beside.insert(folder, members);
            }
        }
    }

    fn note(&mut self, note: String) {
        if self.notes.len() < NOTES && !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }
}

/// The checkpoints below a root.
pub struct Inventory {
    root: PathBuf,
    uid: String,
    name: String,
    formats: &'static [&'static Rules],
    ledger: Ledger,
    is_saved: bool,
    /// Time of this job's last heartbeat, by the local clock.
    said: Option<Timestamp>,
    /// Whether the ledger had no record of this job at its first scan.
    was_new: bool,
    /// Whether this job uses the root or waits for it.
    turn: RootClaim,
    /// Time of the last scan that covered everything but `unseen`, by the local clock.
    looked: Option<Timestamp>,
    /// Folders that the last scan could not read, each with the time of the last scan that could.
    unseen: BTreeMap<String, Option<Timestamp>>,
    /// Checkpoints that this process has read itself.
    proofs: Option<Proofs>,
}

/// Circumstances in which a checkpoint is inspected.
struct Moment {
    now: Timestamp,
    attempt: Option<Timestamp>,
    /// New checkpoints written since then are this job's own; None if there can be none.
    own_since: Option<Timestamp>,
    /// Whether other jobs use the root.
    is_shared: bool,
    /// Whether a checkpoint with a valid structure is about to be read in full, so that its structure need not be
    /// checked again.
    is_read_next: bool,
    /// Whether every byte of an unknown checkpoint is read.
    reads_new: bool,
}

/// A checkpoint that a format has claimed.
#[derive(Clone)]
struct ClaimedCheckpoint {
    path: String,
    folder: bool,
    /// Names of the files, if the checkpoint is not a folder.
    names: Vec<String>,
    rules: &'static Rules,
}

impl Inventory {
    /// Inventory for the job with this UID and name, which begins to use the root with its first scan. Checkpoints that
    /// exist before are not its own. A caller that only reads passes an empty UID. Then nothing is written below the
    /// root, and no checkpoint counts as own.
    #[must_use]
    pub fn new(root: &Path, uid: &str, name: &str) -> Self {
        Self::with_formats(root, uid, name, FORMATS)
    }

    /// As [`Inventory::new`], with other formats.
    #[must_use]
    pub fn with_formats(root: &Path, uid: &str, name: &str, formats: &'static [&'static Rules]) -> Self {
        let (root, uid, name) = (root.to_owned(), uid.to_owned(), name.to_owned());
        Self {
            root,
            uid,
            name,
            formats,
            ledger: Ledger::default(),
            is_saved: true,
            said: None,
            was_new: false,
            turn: RootClaim::Holds,
            looked: None,
            unseen: BTreeMap::new(),
            proofs: None,
        }
    }

    /// Adds the checkpoints that this process has already read, so that they are not read again.
    #[must_use]
    pub fn with_proofs(mut self, proofs: &Proofs) -> Self {
        self.proofs = Some(proofs.clone());
        self
    }

    /// Lists the checkpoints and judges those that have changed by their structure. `attempt` is the start of this
    /// attempt: an older incomplete checkpoint has no writer. It never fails; the notes report what could not be read.
    pub fn scan(&mut self, now: Timestamp, attempt: Option<Timestamp>, budget: &Budget) -> Scan {
        self.scan_and(now, attempt, false, budget)
    }

    /// As [`Inventory::scan`], and reads every byte of each checkpoint with a good structure, even if it was read
    /// before. An unknown checkpoint is read only once for both.
    pub fn read(&mut self, now: Timestamp, budget: &Budget) -> Scan {
        self.scan_and(now, None, true, budget)
    }

    fn scan_and(&mut self, now: Timestamp, attempt: Option<Timestamp>, reads_all: bool, budget: &Budget) -> Scan {
        let mut scan = Scan { whole: true, ..Scan::default() };
        let root = match Folder::root(&self.root) {
            Ok(root) => root,
            Err(error) => {
                scan.whole = false;
                scan.note(format!("{}: {error}", shown(&self.root.to_string_lossy())));
                return scan;
            }
        };
        scan.notes.extend(self.ledger.refresh(&root));
        self.was_new |= self.said.is_none() && !self.ledger.book.jobs.contains_key(&self.uid);
        let began = self.arrive(&root, now, &mut scan);
        let before = scan.unreported.then(|| (self.ledger.book.clone(), self.is_saved));
        let is_alone = self.ledger.book.jobs.contains_key(&self.uid) && scan.others.is_empty();
        let moment = Moment {
            now,
            attempt,
            own_since: began.filter(|_| is_alone),
            is_shared: !scan.others.is_empty(),
            is_read_next: false,
            reads_new: reads_all,
        };

        budget.list_anew();
        let mut walk = Walk {
            formats: self.formats,
            budget,
            scan: &mut scan,
            claims: Vec::new(),
            paths: BTreeSet::new(),
            given_up: Vec::new(),
            left: BTreeMap::new(),
        };
        walk.look_below(&root);
        let Walk { claims, mut paths, given_up, left, .. } = walk;
        for (path, why) in &given_up {
            for claim in self.known_below(path) {
                if paths.insert(claim.path.clone()) {
                    scan.found.push(self.unread(&claim, now, why));
                }
            }
        }
        for claim in &claims {
            let is_new = !self.ledger.book.checkpoints.contains_key(&claim.path);
            budget.list_anew();
            let mut looked = self.look(&root, claim, &moment, budget);
            if reads_all && looked.is_err() {
                // It changed before the last byte was read. Checking only its structure is quick.
                looked = self.look(&root, claim, &moment, budget);
            }
            match looked {
                Ok(known) => {
                    let was_read = is_new && known.found.depth == Depth::Content;
                    let known = match reads_all && known.found.is_good() && !was_read {
                        true => self.verify(&known.found, true, now, budget).unwrap_or_else(|error| {
                            scan.note(unfinished(&known.found, &error));
                            known
                        }),
                        false => known,
                    };
                    scan.found.push(known);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {} // it is being deleted
                Err(error) => {
                    scan.whole &= budget.in_time().is_ok();
                    scan.note(format!("{}: could not be looked at: {error}", shown(&claim.path)));
                    scan.found.push(self.unread(claim, now, &error.to_string()));
                }
            }
        }
        scan.found.sort_by(|a, b| b.found.newer(&a.found));
        scan.see_beside(&root, left);

        if let Some(before) = before {
            (self.ledger.book, self.is_saved) = before;
        } else if scan.whole {
            // Checkpoints that are new to the next scan were written after those that this scan found. An incomplete
            // scan can't establish that.
            self.order_new(&mut scan);
            let seen_at = |path: &String| self.unseen.get(path).copied().unwrap_or(self.looked);
            self.unseen = given_up.iter().map(|(path, _)| (path.clone(), seen_at(path))).collect();
            self.looked = Some(now);
            let entries = self.ledger.book.checkpoints.len();
            self.ledger.book.checkpoints.retain(|path, _| paths.contains(path));
            self.is_saved &= entries == self.ledger.book.checkpoints.len();
            if !self.uid.is_empty() && !self.ledger.book.jobs.contains_key(&self.uid) {
                self.ledger.book.jobs.insert(self.uid.clone(), began.unwrap_or(now));
                self.is_saved = false;
            }
        }
        scan.notes.extend(self.save(&root));
        scan
    }

    /// Reads every byte of the checkpoints that [`Scan::to_read`] names, and puts the results into the scan. After the
    /// budget's time it begins no further checkpoint; a stop ends it at once.
    pub fn prove(&mut self, scan: &mut Scan, most: usize, now: Timestamp, budget: &Budget) {
        for index in scan.to_read(most, now) {
            if budget.in_time().is_err() {
                break;
            }
            match self.verify(&scan.found[index].found, false, now, budget) {
                Ok(known) => scan.found[index] = known,
                Err(error) => {
                    let note = unfinished(&scan.found[index].found, &error);
                    scan.note(note);
                }
            }
        }
    }

    /// Reads every byte of a checkpoint that a scan has found, unless it was read since its lengths and times of
    /// writing last changed. With `again` it is read in any case, as before a run resumes from it. That finds damage
    /// that left lengths and times unchanged. Checkpoints that this process has read itself
    /// ([`Inventory::with_proofs`]) are not read again.
    ///
    /// # Errors
    /// If it could not be read to its end, or changed meanwhile. The error does not mean that the checkpoint is bad.
    pub fn verify(
        &mut self,
        found: &FoundCheckpoint,
        again: bool,
        now: Timestamp,
        budget: &Budget,
    ) -> io::Result<KnownCheckpoint> {
        let (known, reading) = self.begin_reading(found, again, now, budget)?;
        match reading {
            Some(reading) => {
                let read = reading.read(budget)?;
                self.end_reading(read, now)
            }
            None => Ok(known),
        }
    }

    /// Judges a checkpoint by its structure, and by an earlier reading if its files have not changed since.
    ///
    /// # Errors
    /// If its files could not be listed.
    pub fn verify_structure(
        &mut self,
        found: &FoundCheckpoint,
        now: Timestamp,
        budget: &Budget,
    ) -> io::Result<KnownCheckpoint> {
        self.begin_reading(found, false, now, budget).map(|(known, _)| known)
    }

    /// First step of [`Inventory::verify`], for a caller that reads in another thread, so that scans continue
    /// meanwhile. Returns the known state, and what there is to read.
    ///
    /// # Errors
    /// If its files could not be listed.
    pub fn begin_reading(
        &mut self,
        found: &FoundCheckpoint,
        again: bool,
        now: Timestamp,
        budget: &Budget,
    ) -> io::Result<(KnownCheckpoint, Option<Reading>)> {
        let budget = &budget.without_deadline();
        let root = Folder::root(&self.root)?;
        let claim = self.claim_at(&root, found, budget)?;
        let moment =
            Moment { now, attempt: None, own_since: None, is_shared: false, is_read_next: true, reads_new: false };
        let known = self.look(&root, &claim, &moment, budget)?;
        self.save(&root);
        if !again && (known.found.depth == Depth::Content || !known.found.is_good()) {
            return Ok((known, None));
        }
        let members = known.found.members.clone();
        let sums = known.crc32c.clone().filter(|sums| sums.len() == members.len());
        let proofs = self.proofs.clone();
        Ok((known, Some(Reading { root: self.root.clone(), claim, members, sums, proofs })))
    }

    /// Last step of [`Inventory::verify`]: records what was read.
    ///
    /// # Errors
    /// If the checkpoint has changed meanwhile. Its state is then unknown.
    pub fn end_reading(&mut self, read: Read, now: Timestamp) -> io::Result<KnownCheckpoint> {
        let Read { claim, members, judgement, verdict, crc32c } = read;
        let entry = self.ledger.book.checkpoints.get_mut(&claim.path);
        let entry = entry.filter(|entry| entry.members == members).ok_or_else(changes)?;
        if let Some(judgement) = judgement {
            entry.learn(judgement);
        }
        entry.verdict = Some(verdict);
        entry.depth = Depth::Content;
        entry.settled = true;
        entry.crc32c = crc32c;
        if let (Some(now), Some(earlier)) = (&entry.crc32c, &entry.earlier) {
            match (*now == *earlier, entry.anew) {
                (true, _) => entry.order = entry.earliest,
                (false, Some(place)) => (entry.earliest, entry.order) = place,
                (false, None) => entry.earliest = entry.order,
            }
            (entry.earlier, entry.anew) = (None, None);
        }
        let known = known_checkpoint(&claim, entry, &self.uid, None, now);
        self.save_now();
        Ok(known)
    }

    /// Why a checkpoint is not whole. Its files `all` lie in the folders of several workers, this one's among them. For
    /// files of other workers only names and lengths are checked. Where a format would open one of those, the local
    /// files decide.
    ///
    /// # Errors
    /// If the local files could not be read.
    pub fn lacks(&self, found: &FoundCheckpoint, all: &[Member], budget: &Budget) -> io::Result<Option<String>> {
        let root = Folder::root(&self.root)?;
        let claim = self.claim_at(&root, found, budget)?;
        let files = PartlyLocalFiles { here: claim.open(&root, budget, false)?, all };
        match judge(&claim, &files, Depth::Structure) {
            Ok(Judgement { verdict: Verdict::Incomplete { why }, .. }) => Ok(Some(why)),
            Ok(Judgement { verdict: Verdict::Corrupted { file, why }, .. }) => Ok(Some(format!("{file}: {why}"))),
            Ok(_) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Records that an attempt that resumed from this checkpoint failed before its first progress. Returns how often
    /// that has happened since the checkpoint was written.
    pub fn failed_start(&mut self, path: &str) -> u32 {
        self.set_failed_starts(path, |count| count.saturating_add(1))
    }

    /// Records that an attempt that resumed from this checkpoint has made progress.
    pub fn good_start(&mut self, path: &str) {
        self.set_failed_starts(path, |_| 0);
    }

    /// Records that a run of this job resumes from this checkpoint, or begins without one.
    pub fn resume_from(&mut self, path: Option<&str>) {
        if self.uid.is_empty() || self.resumed_from() == path {
            return;
        }
        let resumed = &mut self.ledger.book.resumed;
        match path {
            Some(path) => _ = resumed.insert(self.uid.clone(), path.to_owned()),
            None => _ = resumed.remove(&self.uid),
        }
        self.save_now();
    }

    /// The checkpoint that this job's last run resumed from.
    #[must_use]
    pub fn resumed_from(&self) -> Option<&str> {
        self.ledger.book.resumed.get(&self.uid).map(String::as_str)
    }

    /// Orders checkpoints written from now on after `order`, which a store has given to one of its checkpoints. The
    /// ledger of a new volume knows nothing of checkpoints on another one.
    pub fn continue_after(&mut self, order: u64) {
        if order > self.ledger.book.looks {
            self.ledger.book.looks = order;
            self.is_saved = false;
        }
    }

    /// Makes this job wait until no other job uses the root, unless this job already uses it.
    pub fn await_turn(&mut self, now: Timestamp) {
        let holds = Folder::root(&self.root).is_ok_and(|root| ledger::holds(&root, &self.uid, now));
        (self.turn, self.said) = (if holds { RootClaim::Holds } else { RootClaim::Waits }, None);
    }

    /// Makes this job use the root. If other jobs came first, it returns their names, and this job keeps waiting.
    ///
    /// Each job records that it uses the root before it looks for others. So at most one of two simultaneous jobs
    /// proceeds.
    pub fn take_turn(&mut self, now: Timestamp) -> Vec<String> {
        let Ok(root) = Folder::root(&self.root) else { return Vec::new() };
        if self.turn == RootClaim::Holds {
            return Vec::new();
        }
        // If the root can't be written, this job can't announce itself to other jobs either.
        let _ = ledger::heartbeat(&root, &self.uid, &self.name, RootClaim::Holds, now);
        let others = ledger::others(&root, &self.uid, RootClaim::Holds, now).unwrap_or_default();
        match others.is_empty() {
            true => self.turn = RootClaim::Holds,
            false => _ = ledger::heartbeat(&root, &self.uid, &self.name, RootClaim::Waits, now),
        }
        others
    }

    /// Whether this job has used this `resumeFrom`.
    #[must_use]
    pub fn has_used(&self, wish: &str) -> bool {
        self.is_used_by(&self.uid, wish)
    }

    /// Whether the job with this UID has used this `resumeFrom`.
    #[must_use]
    pub fn is_used_by(&self, uid: &str, wish: &str) -> bool {
        match self.ledger.book.wishes.get(uid) {
            Some(used) => used.from == wish,
            // An older ledger does not record this. There the job's first attempt has used its `resumeFrom`.
            None if uid == self.uid && self.was_new => false,
            None => self.ledger.book.checkpoints.values().any(|entry| entry.owner == uid),
        }
    }

    /// Whether the job with this UID has written the checkpoint at this path, or rewritten it with the same names and
    /// sizes.
    #[must_use]
    pub fn is_written_by(&self, uid: &str, path: &str) -> bool {
        let entry = self.ledger.book.checkpoints.get(path);
        entry.is_some_and(|entry| !uid.is_empty() && (entry.owner == uid || entry.renewed_by == uid))
    }

    /// Whether this job has written the checkpoint at this path, or rewritten it with the same names and sizes.
    #[must_use]
    pub fn has_written(&self, path: &str) -> bool {
        self.is_written_by(&self.uid, path)
    }

    /// Records that this job resumes from no `resumeFrom`, so that one given later counts as unused.
    pub fn use_no_wish(&mut self) {
        let none = UsedWish { from: String::new(), look: 0 };
        if !self.uid.is_empty() && !self.ledger.book.wishes.contains_key(&self.uid) {
            self.ledger.book.wishes.insert(self.uid.clone(), none);
            self.save_now();
        }
    }

    /// Records that this job uses this `resumeFrom`: its earlier checkpoints no longer count.
    pub fn use_wish(&mut self, wish: &str) {
        if self.has_used(wish) {
            return;
        }
        let used = UsedWish { from: wish.to_owned(), look: self.ledger.book.looks };
        self.ledger.book.wishes.insert(self.uid.clone(), used);
        for entry in self.ledger.book.checkpoints.values_mut() {
            for of in [&mut entry.owner, &mut entry.renewed_by] {
                if *of == self.uid {
                    of.clear();
                }
            }
        }
        self.save_now();
    }

    /// Whether a checkpoint with this order was written after this job used its `resumeFrom`. Also true if it has used
    /// none.
    #[must_use]
    pub fn is_since_wish(&self, order: u64) -> bool {
        self.ledger.book.wishes.get(&self.uid).is_none_or(|used| order == 0 || order > used.look)
    }

    /// Whether a whole checkpoint once existed at this path.
    #[must_use]
    pub fn was_whole(&self, path: &str) -> bool {
        self.ledger.book.checkpoints.get(path).is_some_and(|entry| entry.was_whole)
    }

    /// Whether another job is known to have written the checkpoint at this path.
    #[must_use]
    pub fn is_others(&self, path: &str) -> bool {
        let entry = self.ledger.book.checkpoints.get(path);
        entry.is_some_and(|entry| !entry.owner.is_empty() && entry.owner != self.uid)
    }

    /// Whether the ledger had no record of this job at its first scan: the root is new to it, or its ledger was lost.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.was_new
    }

    /// Known checkpoints at or below a path that the scan could not read.
    fn known_below(&self, path: &str) -> Vec<ClaimedCheckpoint> {
        let known = self.ledger.book.checkpoints.iter().filter(|(known, _)| is_at_or_below(known, path));
        let claimed = |(path, entry): (&String, &Entry)| {
            let rules = *self.formats.iter().find(|rules| rules.format == entry.format)?;
            Some(ClaimedCheckpoint { path: path.clone(), folder: true, names: Vec::new(), rules })
        };
        known.filter_map(claimed).collect()
    }

    /// Records that the job no longer uses the root.
    ///
    /// # Errors
    /// If the root can't be written.
    pub fn leave(&self) -> io::Result<()> {
        ledger::leave(&Folder::root(&self.root)?, &self.uid)
    }

    fn set_failed_starts(&mut self, path: &str, next: impl Fn(u32) -> u32) -> u32 {
        let Some(entry) = self.ledger.book.checkpoints.get_mut(path) else { return 0 };
        let count = next(entry.failed_starts_of(&self.uid));
        if count != entry.failed_starts {
            entry.failed_starts = count;
            entry.failed_by.clone_from(&self.uid);
            self.save_now();
        }
        count
    }

    /// Writes this job's heartbeat and lists the other jobs. Returns the time since which new checkpoints may be this
    /// job's own; None if there can be none.
    fn arrive(&mut self, root: &Folder, now: Timestamp, scan: &mut Scan) -> Option<Timestamp> {
        if self.uid.is_empty() {
            return None;
        }
        let mut clock = now;
        if self.said.is_none_or(|said| said > now || is_past(said, HEARTBEAT, now)) {
            match ledger::heartbeat(root, &self.uid, &self.name, self.turn, now) {
                Ok(written) => (clock, self.said) = (written, Some(now)),
                Err(error) => scan
                    .note(format!("{OURS} can't be written, so what is learned of checkpoints is not kept: {error}")),
            }
        }
        scan.others = ledger::others(root, &self.uid, self.turn, now).unwrap_or_else(|error| {
            scan.note(format!("{OURS}/jobs: {error}"));
            scan.unreported = true;
            vec!["(jobs that can't be listed)".to_owned()]
        });
        let first = self.ledger.book.jobs.get(&self.uid).copied();
        // File times may have a resolution of whole seconds.
        first.or_else(|| Timestamp::from_second(clock.as_second()).ok())
    }

    /// Looks at one checkpoint, and judges it if it has changed.
    fn look(
        &mut self,
        root: &Folder,
        claim: &ClaimedCheckpoint,
        at: &Moment,
        budget: &Budget,
    ) -> io::Result<KnownCheckpoint> {
        let is_new = !self.ledger.book.checkpoints.contains_key(&claim.path);
        let reads = at.reads_new && is_new;
        let files = claim.open(root, budget, reads)?;
        let now = at.now;
        if let Some(entry) = self.ledger.book.checkpoints.get_mut(&claim.path).filter(|entry| entry.since > now) {
            (entry.since, self.is_saved) = (now, false); // a clock went back
        }
        let is_since = |time: i64| at.own_since.is_some_and(|since| i128::from(time) >= since.as_nanosecond());
        let is_anew = |all: &[Member]| !all.is_empty() && all.iter().all(|member| is_since(member.modified));
        let known = self.ledger.book.checkpoints.get(&claim.path);
        let is_same = known.is_some_and(|e| e.format == claim.rules.format && e.members == files.members());
        let is_known = |entry: &&Entry| match &entry.verdict {
            Some(verdict) if verdict.is_good() => entry.settled || at.is_read_next,
            Some(_) => entry.settled,
            None => false,
        };
        if let Some(entry) = known.filter(|entry| is_same && is_known(entry)) {
            return Ok(known_checkpoint(claim, entry, &self.uid, at.attempt, now));
        }

        // A checkpoint whose bytes are all good also has a good structure. For any other one the structure shows
        // whether it is still being written.
        let whole = if reads { read_whole(claim, &files).ok() } else { None };
        let (judgement, depth, crc32c) = match whole {
            Some((judgement, Some(sums))) => (Ok(judgement), Depth::Content, Some(sums)),
            _ => (judge(claim, &files, Depth::Structure), Depth::Structure, None),
        };
        let judgement = if claim.members(root, budget)? == files.members() {
            judgement.map_err(|error| io::Error::other(error.to_string())) // never NotFound, which would mean deleted
        } else {
            Err(changes())
        };
        let timed = self.looked_at(&claim.path).is_some_and(|looked| fits(files.members(), looked, now));
        let place = self.ledger.book.looks + 1;
        let mut entry = Entry::unjudged(claim.rules.format, files.members(), place, timed, now);
        entry.was_whole = known.is_some_and(|known| known.was_whole);
        match known {
            Some(known) if is_same => entry.carry_over(known),
            Some(known) if is_alike(&known.members, &entry.members) => {
                // Rewritten, or only touched: reading it shows which.
                entry.owner.clone_from(&known.owner);
                entry.earliest = known.earliest;
                entry.earlier = known.crc32c.clone().or_else(|| known.earlier.clone());
                entry.anew = known.anew;
                let is_renewed = is_anew(files.members());
                entry.renewed_by.clone_from(if is_renewed { &self.uid } else { &known.renewed_by });
            }
            // A checkpoint that this job has overwritten belongs to this job. If that is not certain, it keeps its
            // owner.
            Some(known) => {
                entry.owner.clone_from(if is_anew(files.members()) { &self.uid } else { &known.owner });
            }
            None => {
                // A checkpoint has no owner if it existed before, or if others could have written it. Separate files
                // belong to this job only together.
                let oldest = files.members().iter().map(|member| member.modified).min();
                let written = if claim.folder { files.modified()? } else { oldest.unwrap_or_default() };
                if is_since(written) {
                    entry.owner.clone_from(&self.uid);
                }
            }
        }
        // Another job that uses the root may have overwritten it.
        if known.is_some() && !is_same && at.is_shared {
            entry.owner.clear();
        }
        let result = judgement.map(|judgement| {
            (entry.depth, entry.crc32c) = (depth, crc32c);
            entry.settled = depth == Depth::Content || is_past(entry.since, QUIET, now);
            if judgement.verdict.is_good() {
                entry.whole = entry.whole.or(Some(now));
                entry.was_whole = true;
            }
            entry.learn(judgement);
            known_checkpoint(claim, &entry, &self.uid, at.attempt, now)
        });
        self.is_saved &= known == Some(&entry);
        self.ledger.book.checkpoints.insert(claim.path.clone(), entry);
        result
    }

    /// Time of the last scan that covered this path.
    fn looked_at(&self, path: &str) -> Option<Timestamp> {
        let unseen = self.unseen.iter().find(|(folder, _)| is_at_or_below(path, folder));
        unseen.map_or(self.looked, |(_, looked)| *looked)
    }

    /// Assigns places in the order of writing to new checkpoints. Files with times that fit when they were first seen
    /// are ordered by those times. Any other may have been written at any moment since the previous scan.
    fn order_new(&mut self, scan: &mut Scan) {
        let book = &mut self.ledger.book;
        let next = book.looks + 1;
        let new = book.checkpoints.values_mut().filter(|entry| entry.order >= next).collect::<Vec<_>>();
        if new.is_empty() {
            return;
        }
        let times: BTreeSet<Option<Timestamp>> =
            new.iter().filter(|entry| entry.timed).map(|entry| newest(&entry.members)).collect();
        let last = next + (times.len() as u64).saturating_sub(1);
        for entry in new {
            let at = times.iter().position(|time| *time == newest(&entry.members)).filter(|_| entry.timed);
            let (earliest, order) = at.map_or((next, last), |before| (next + before as u64, next + before as u64));
            if entry.earliest < next {
                // It was perhaps only touched. If it was rewritten, that may have happened at an earlier change.
                entry.order = last;
                entry.anew = Some((entry.anew.map_or(earliest, |(before, _)| before.min(earliest)), order));
            } else {
                (entry.earliest, entry.order) = (earliest, order);
            }
        }
        (book.looks, self.is_saved) = (last, false);
        for known in &mut scan.found {
            if let Some(entry) = book.checkpoints.get(&known.found.path) {
                (known.found.order, known.found.earliest) = (entry.order, entry.earliest);
            }
        }
        scan.found.sort_by(|a, b| b.found.newer(&a.found));
    }

    fn unread(&self, claim: &ClaimedCheckpoint, now: Timestamp, why: &str) -> KnownCheckpoint {
        let verdict = Verdict::Incomplete { why: format!("it could not be looked at: {why}") };
        let known = self
            .ledger
            .book
            .checkpoints
            .get(&claim.path)
            .map(|entry| known_checkpoint(claim, entry, &self.uid, None, now));
        match known {
            Some(known) => {
                KnownCheckpoint { found: FoundCheckpoint { verdict, ..known.found }, stage: Stage::Unread, ..known }
            }
            None => {
                let (folder, format) = (claim.folder, claim.rules.format);
                let found = FoundCheckpoint {
                    folder,
                    format,
                    modified: now,
                    verdict,
                    ..FoundCheckpoint::nothing_at(&claim.path)
                };
                KnownCheckpoint { found, stage: Stage::Unread, own: false, since: now, failed_starts: 0, crc32c: None }
            }
        }
    }

    /// The claim by which a checkpoint was found.
    fn claim_at(&self, root: &Folder, found: &FoundCheckpoint, budget: &Budget) -> io::Result<ClaimedCheckpoint> {
        let (listed, listed_path) = if found.folder {
            (root.folder(&found.path)?, found.path.as_str())
        } else {
            (root.parent(&found.path)?.0, found.path.rsplit_once('/').map_or("", |(parent, _)| parent))
        };
        let name = if listed_path == "." { "" } else { base(listed_path) };
        let listing = listing(&listed, name, listed_path.is_empty() || listed_path == ".", budget)?.0;
        let mut claims = claims(&listing, self.formats).into_iter();
        claims
            .find_map(|(claim, rules)| match claim {
                Claim::Folder if found.folder => {
                    Some(ClaimedCheckpoint { path: found.path.clone(), folder: true, names: Vec::new(), rules })
                }
                Claim::Files { name, files } if !found.folder && name == base(&found.path) => {
                    Some(ClaimedCheckpoint { path: found.path.clone(), folder: false, names: files, rules })
                }
                _ => None,
            })
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{} is no checkpoint", shown(&found.path))))
    }

    /// Writes what has just been recorded. If the root can't be written, the next scan tries again.
    fn save_now(&mut self) {
        self.is_saved = false;
        if let Ok(root) = Folder::root(&self.root) {
            self.save(&root);
        }
    }

    /// Saves the ledger. Returns the reason if that fails.
    fn save(&mut self, root: &Folder) -> Option<String> {
        if self.is_saved || self.uid.is_empty() {
            return None;
        }
        match self.ledger.save(root) {
            Ok(()) => {
                self.is_saved = true;
                None
            }
            Err(error) => Some(format!(
                "{OURS}/ledger.json can't be written, so what is learned of checkpoints is not kept: {error}"
            )),
        }
    }
}

impl Entry {
    /// An entry for a checkpoint first seen now, at this place in the order of writing.
    fn unjudged(format: Format, members: &[Member], place: u64, timed: bool, now: Timestamp) -> Self {
        Self {
            format,
            verdict: None,
            depth: Depth::Structure,
            settled: false,
            step: None,
            epoch: None,
            metrics: BTreeMap::new(),
            needs: Vec::new(),
            members: members.to_vec(),
            crc32c: None,
            since: now,
            order: place,
            earliest: place,
            timed,
            earlier: None,
            anew: None,
            whole: None,
            owner: String::new(),
            failed_starts: 0,
            failed_by: String::new(),
            was_whole: false,
            renewed_by: String::new(),
        }
    }

    /// Copies the values that hold while the files stay the same, whatever their verdict.
    fn carry_over(&mut self, known: &Self) {
        self.owner.clone_from(&known.owner);
        (self.since, self.whole, self.failed_starts) = (known.since, known.whole, known.failed_starts);
        self.failed_by.clone_from(&known.failed_by);
        (self.order, self.earliest) = (known.order, known.earliest);
        self.earlier.clone_from(&known.earlier);
        self.anew = known.anew;
        self.timed = known.timed;
        self.renewed_by.clone_from(&known.renewed_by);
    }

    /// Attempts of this job that resumed from it and failed before real work.
    fn failed_starts_of(&self, uid: &str) -> u32 {
        // Callers that only read, and older ledgers, have no UID.
        let is_of = uid.is_empty() || self.failed_by.is_empty() || self.failed_by == uid;
        if is_of { self.failed_starts } else { 0 }
    }

    /// Records the judgement of a format.
    fn learn(&mut self, judgement: Judgement) {
        self.step = judgement.step;
        // JSON has no NaN or infinity.
        self.epoch = judgement.epoch.filter(|epoch| epoch.is_finite());
        self.metrics = judgement.metrics.into_iter().filter(|(_, value)| value.is_finite()).collect();
        let needs = judgement.needs.into_iter().filter(|path| !path.is_empty() && path.len() <= LONGEST_NEED);
        self.needs = needs.take(NEEDS).collect();
        self.verdict = Some(judgement.verdict);
    }
}

/// A checkpoint whose bytes are to be read.
pub struct Reading {
    root: PathBuf,
    claim: ClaimedCheckpoint,
    members: Vec<Member>,
    /// CRC32C of each member from an earlier reading, if known.
    sums: Option<Vec<u32>>,
    proofs: Option<Proofs>,
}

/// A checkpoint whose bytes were read.
#[derive(Clone)]
pub struct Read {
    claim: ClaimedCheckpoint,
    members: Vec<Member>,
    judgement: Option<Judgement>,
    verdict: Verdict,
    crc32c: Option<Vec<u32>>,
}

/// Checkpoints that this process has read and found good, with the state of their files at that time. They are kept
/// only in memory: a restarted container, perhaps on another node, reads them again.
#[derive(Clone, Default)]
pub struct Proofs(Arc<Mutex<VecDeque<Proof>>>);

struct Proof {
    at: PathBuf,
    stamps: Vec<Stamp>,
    read: Read,
}

/// Number of checkpoints remembered. A run resumes from the newest one, or from a named one.
const PROOFS: usize = 16;
/// A file that changes twice within this time may show the same change time for both.
const TICK: Duration = Duration::from_millis(100);

impl Proofs {
    fn all(&self) -> MutexGuard<'_, VecDeque<Proof>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, at: &Path, claim: &ClaimedCheckpoint, members: &[Member], stamps: &[Stamp]) -> Option<Read> {
        let all = self.all();
        let proof = all.iter().find(|proof| proof.at == at)?;
        let is_same = proof.read.claim.rules.format == claim.rules.format
            && proof.read.members == members
            && proof.stamps == stamps;
        is_same.then(|| Read { claim: claim.clone(), ..proof.read.clone() })
    }

    fn remember(&self, at: PathBuf, stamps: Vec<Stamp>, read: Read) {
        let mut all = self.all();
        all.retain(|proof| proof.at != at);
        all.push_back(Proof { at, stamps, read });
        while all.len() > PROOFS {
            all.pop_front();
        }
    }
}

/// Time since the last change of any of the files. None if another clock puts that change in the future.
fn unchanged_for(stamps: &[Stamp]) -> Option<Duration> {
    let last = stamps.iter().map(Stamp::changed).max().unwrap_or_default();
    let now = i64::try_from(Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX);
    u64::try_from(now.saturating_sub(last)).ok().map(Duration::from_nanos)
}

fn is_settled(stamps: &[Stamp]) -> bool {
    unchanged_for(stamps).is_some_and(|time| time >= TICK)
}

/// Waits until another change would show a different change time.
fn settle(stamps: &[Stamp]) {
    if let Some(time) = unchanged_for(stamps) {
        std::thread::sleep(TICK.saturating_sub(time));
    }
}

impl Reading {
    /// The path of the checkpoint.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.claim.path
    }

    /// Reads every byte, without a time limit. It reads nothing if this process has done so and no byte has changed
    /// since.
    ///
    /// # Errors
    /// If it could not be read to its end, or changed meanwhile. The error does not mean that the checkpoint is bad.
    pub fn read(self, budget: &Budget) -> io::Result<Read> {
        let Self { root, claim, members, sums, proofs } = self;
        let budget = &budget.without_deadline();
        let at = root.join(&claim.path);
        let root = Folder::root(&root)?;
        let files = claim.with(members, &root, budget, true)?;
        let stamps = match &proofs {
            Some(proofs) => {
                let stamps = files.stamps()?;
                if let Some(read) = proofs.find(&at, &claim, files.members(), &stamps) {
                    return Ok(read);
                }
                settle(&stamps);
                stamps
            }
            None => Vec::new(),
        };
        let (judgement, verdict, crc32c) = match sums {
            Some(sums) => {
                // If the bytes are unchanged, checking the structure is enough.
                let verdict = match changed(&files, &sums)? {
                    Some(verdict) => verdict,
                    None => judge(&claim, &files, Depth::Structure)?.verdict,
                };
                (None, verdict, Some(sums))
            }
            None => {
                let (judgement, sums) = read_whole(&claim, &files)?;
                let verdict = judgement.verdict.clone();
                (Some(judgement), verdict, sums)
            }
        };
        let members = files.members().to_vec();
        if claim.members(&root, budget)? != members {
            return Err(changes());
        }
        let read = Read { claim, members, judgement, verdict, crc32c };
        if let Some(proofs) = proofs.filter(|_| read.verdict.is_good() && is_settled(&stamps))
            && files.stamps()? == stamps
        {
            proofs.remember(at, stamps, read.clone());
        }
        Ok(read)
    }
}

impl ClaimedCheckpoint {
    fn open<'b>(&self, root: &Folder, budget: &'b Budget, sums: bool) -> io::Result<OnVolume<'b>> {
        self.with(self.members(root, budget)?, root, budget, sums)
    }

    fn with<'b>(
        &self,
        members: Vec<Member>,
        root: &Folder,
        budget: &'b Budget,
        sums: bool,
    ) -> io::Result<OnVolume<'b>> {
        let folder = if self.folder { root.folder(&self.path)? } else { root.parent(&self.path)?.0 };
        Ok(OnVolume::new(folder, members, budget, sums))
    }

    fn members(&self, root: &Folder, budget: &Budget) -> io::Result<Vec<Member>> {
        members(root, &self.path, if self.folder { None } else { Some(&self.names) }, budget)
    }
}

/// The files of a checkpoint: those in its folder, or those with these names beside `path`.
pub(super) fn members(root: &Folder, path: &str, names: Option<&[String]>, budget: &Budget) -> io::Result<Vec<Member>> {
    let Some(names) = names else {
        return root.folder(path)?.members(budget, if path == "." { NOT_OURS } else { &[] });
    };
    let folder = root.parent(path)?.0;
    let mut members = Vec::with_capacity(names.len());
    for name in names {
        budget.in_time()?;
        members.extend(folder.member(name)?);
    }
    members.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    if members.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Ok(members) }
}

/// Files of a checkpoint of which only some are on this volume.
struct PartlyLocalFiles<'a> {
    here: OnVolume<'a>,
    all: &'a [Member],
}

impl Files for PartlyLocalFiles<'_> {
    fn members(&self) -> &[Member] {
        self.all
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn ReadSeek + '_>> {
        match self.here.member(path) {
            Some(_) => self.here.open(path),
            None => Err(io::Error::new(io::ErrorKind::Unsupported, format!("{path} is another worker's"))),
        }
    }
}

/// A scan that descends level by level, so that a deep data set does not keep it from the folders beside it.
struct Walk<'s> {
    formats: &'static [&'static Rules],
    budget: &'s Budget,
    scan: &'s mut Scan,
    claims: Vec<ClaimedCheckpoint>,
    paths: BTreeSet<String>,
    /// Folders that could not be read, and why.
    given_up: Vec<(String, String)>,
    /// The files of each folder that no format claims.
    left: BTreeMap<String, Vec<String>>,
}

impl Walk<'_> {
    fn look_below(&mut self, root: &Folder) {
        let mut itself = None;
        let mut left = VecDeque::from([(String::new(), 0)]);
        while let Some((path, depth)) = left.pop_front() {
            if let Err(error) = self.budget.in_time() {
                self.gave_up(&path, &error);
                break;
            }
            match root.folder(if path.is_empty() { "." } else { &path }) {
                Ok(folder) => itself = self.look(&folder, &path, depth, &mut left).or(itself),
                Err(error) => self.gave_up(&path, &error),
            }
        }
        if let Some(rules) = itself.filter(|_| self.claims.is_empty()) {
            self.claim(ClaimedCheckpoint { path: ".".to_owned(), folder: true, names: Vec::new(), rules });
        }
    }

    /// Claims the checkpoints in a folder and queues its subfolders. Returns the format that claims the root itself.
    fn look(
        &mut self,
        folder: &Folder,
        path: &str,
        depth: usize,
        left: &mut VecDeque<(String, usize)>,
    ) -> Option<&'static Rules> {
        let is_root = path.is_empty();
        let (listing, unreadable) = match listing(folder, base(path), is_root, self.budget) {
            Ok(listing) => listing,
            Err(error) => {
                self.gave_up(path, &error);
                return None;
            }
        };
        if unreadable > 0 {
            let count = if unreadable == 1 { "1 name is".to_owned() } else { format!("{unreadable} names are") };
            self.scan.note(format!("{}: {count} not UTF-8, and passed over", place(path)));
        }
        let mut itself = None;
        let claims = claims(&listing, self.formats);
        let claimed = claims.iter().filter_map(|(claim, _)| match claim {
            Claim::Files { files, .. } => Some(files),
            Claim::Folder => None,
        });
        let claimed: BTreeSet<&String> = claimed.flatten().collect();
        let others = listing.files.iter().filter(|file| !file.starts_with('.') && !claimed.contains(file));
        let others: Vec<String> = others.cloned().collect();
        if !others.is_empty() {
            self.left.insert(path.to_owned(), others);
        }
        for (claim, rules) in claims {
            match claim {
                // A program that saves into the root itself also keeps other things there.
                Claim::Folder if is_root => itself = Some(rules),
                Claim::Folder => {
                    self.claim(ClaimedCheckpoint { path: path.to_owned(), folder: true, names: Vec::new(), rules });
                    return None;
                }
                Claim::Files { name, files } => {
                    self.claim(ClaimedCheckpoint { path: join(path, &name), folder: false, names: files, rules });
                }
            }
        }
        for name in &listing.folders {
            let path = join(path, name);
            if depth == DEPTH {
                self.scan.note(format!("{}: more than {DEPTH} folders deep, not looked into", shown(&path)));
            } else {
                left.push_back((path, depth + 1));
            }
        }
        itself
    }

    fn claim(&mut self, claim: ClaimedCheckpoint) {
        if self.paths.insert(claim.path.clone()) {
            self.claims.push(claim);
        } else {
            self.scan.note(format!(
                "{}: is both a folder and the beginning of files, one is passed over",
                shown(&claim.path)
            ));
        }
    }

    fn gave_up(&mut self, path: &str, error: &io::Error) {
        if error.kind() == io::ErrorKind::NotFound {
            return; // it is being deleted
        }
        if !path.is_empty() {
            self.given_up.push((path.to_owned(), error.to_string()));
        }
        // After an incomplete scan the ledger forgets nothing.
        self.scan.whole &= !path.is_empty() && !ends_all(error, self.budget);
        self.scan.note(format!("{}: not looked into: {error}", place(path)));
    }
}

/// Whether the error ended the whole scan and does not concern one folder only.
fn ends_all(error: &io::Error, budget: &Budget) -> bool {
    let is_the_folders = matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::FileTooLarge);
    budget.in_time().is_err() || !is_the_folders
}

fn listing(folder: &Folder, name: &str, is_root: bool, budget: &Budget) -> io::Result<(Listing, u64)> {
    let mut entries = folder.list(budget)?;
    let not = if is_root { NOT_OURS } else { &[OURS] };
    entries.folders.retain(|name| !not.contains(&name.as_str()));
    Ok((Listing { name: name.to_owned(), files: entries.files, folders: entries.folders }, entries.unreadable))
}

/// Claims of the formats on a folder. A claim on the folder itself takes precedence over claims on its files. Each file
/// belongs to the first format that claims it.
fn claims(listing: &Listing, formats: &'static [&'static Rules]) -> Vec<(Claim, &'static Rules)> {
    let folder = formats.iter().find(|rules| (rules.claim)(listing).contains(&Claim::Folder));
    let folder = folder.map(|rules| (Claim::Folder, *rules));
    let is_root = listing.name.is_empty();
    if let Some(folder) = folder.clone().filter(|_| !is_root) {
        return vec![folder];
    }
    let mut left = listing.clone();
    let mut all = Vec::new();
    for rules in formats {
        for claim in (rules.claim)(&left) {
            if let Claim::Files { files, .. } = &claim {
                let files: BTreeSet<&String> = files.iter().collect();
                left.files.retain(|file| !files.contains(file));
                all.push((claim, *rules));
            }
        }
    }
    let left = std::mem::take(&mut left.files);
    gather_companions(&mut all, left);
    all.extend(folder);
    all
}

/// Adds unclaimed files with the same number to each checkpoint that consists of files. For example, `optimizer_100.pt`
/// is part of `model_100.pt`, and is copied, restored, and deleted with it.
fn gather_companions(all: &mut [(Claim, &'static Rules)], left: Vec<String>) {
    let mut by_number: BTreeMap<String, usize> = BTreeMap::new();
    for (index, (claim, _)) in all.iter().enumerate() {
        if let Claim::Files { name, .. } = claim
            && let Some(number) = last_number(name)
        {
            by_number.entry(number).or_insert(index);
        }
    }
    for file in left {
        let is_part = |(_, extension): (&str, &str)| COMPANIONS.contains(&extension) && !file.starts_with('.');
        let number = file.rsplit_once('.').filter(|it| is_part(*it)).and_then(|_| last_number(&file));
        let Some(index) = number.and_then(|number| by_number.get(&number)) else { continue };
        if let Claim::Files { files, .. } = &mut all[*index].0 {
            files.push(file);
        }
    }
}

/// The last separate number in a name, without leading zeros: `100` in `optimizer_100.pt`, none in `v2.pt`.
fn last_number(name: &str) -> Option<String> {
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    let mut last = None;
    for part in stem.split(['_', '-', '=', '.']) {
        if !part.is_empty() && part.len() <= 18 && part.bytes().all(|byte| byte.is_ascii_digit()) {
            last = part.parse::<u64>().ok();
        }
    }
    last.map(|number| number.to_string())
}

/// Judges a checkpoint. A panic in a format's reader becomes an error.
fn judge(claim: &ClaimedCheckpoint, files: &dyn Files, depth: Depth) -> io::Result<Judgement> {
    let name = if claim.path == "." { "" } else { base(&claim.path) };
    let judged = catch_unwind(AssertUnwindSafe(|| (claim.rules.judge)(name, files, depth))).unwrap_or_else(|_| {
        Err(io::Error::other(format!("the reader of {} checkpoints failed", claim.rules.format.as_str())))
    });
    // The name of a checkpoint that is not good gives its step and epoch, so that a report about skipping it can show
    // them.
    judged.map(|it| match it.verdict {
        Verdict::Valid | Verdict::Complete { .. } => it,
        _ => Judgement {
            step: it.step.or_else(|| named::step(name)),
            epoch: it.epoch.or_else(|| named::epoch(name)),
            ..it
        },
    })
}

/// Judges a checkpoint by every byte. If it is good, also returns the CRC32C of each file.
fn read_whole(claim: &ClaimedCheckpoint, files: &OnVolume<'_>) -> io::Result<(Judgement, Option<Vec<u32>>)> {
    let judgement = judge(claim, files, Depth::Content)?;
    let sums = if judgement.verdict.is_good() { Some(files.crc32c()?) } else { None };
    Ok((judgement, sums))
}

/// Verdict about the first file with bytes that differ from those once found good, if there is one.
fn changed(files: &OnVolume<'_>, sums: &[u32]) -> io::Result<Option<Verdict>> {
    for ((member, sum), now) in files.members().iter().zip(sums).zip(files.crc32c()?) {
        if now != *sum {
            return Ok(Some(Verdict::Corrupted {
                file: member.path.clone(),
                why: format!(
                    "its bytes are not those that were verified, though its length and time are \
                     (CRC32C {now:08x}, was {sum:08x})"
                ),
            }));
        }
    }
    Ok(None)
}

/// State of a checkpoint by its ledger entry, if its members exist.
fn known_checkpoint(
    claim: &ClaimedCheckpoint,
    entry: &Entry,
    uid: &str,
    attempt: Option<Timestamp>,
    now: Timestamp,
) -> KnownCheckpoint {
    let modified = newest(&entry.members).unwrap_or(entry.since);
    let is_old = is_past(modified, GRACE, now) || is_past(entry.since, GRACE, now);
    let (verdict, stage) = match &entry.verdict {
        None => (Verdict::Incomplete { why: "it was not looked at yet".to_owned() }, Stage::Unread),
        Some(Verdict::Incomplete { why }) => {
            let is_dead = is_old || attempt.is_some_and(|began| modified < began);
            let stage = if is_dead { Stage::Abandoned } else { Stage::Writing };
            (Verdict::Incomplete { why: why.clone() }, stage)
        }
        // A half-written file looks corrupted.
        Some(Verdict::Corrupted { file, why }) if !entry.settled && !is_old => {
            let why = if file.is_empty() { why.clone() } else { format!("{file}: {why}") };
            (Verdict::Incomplete { why }, Stage::Writing)
        }
        Some(verdict) => (verdict.clone(), Stage::Written),
    };
    KnownCheckpoint {
        found: FoundCheckpoint {
            path: claim.path.clone(),
            folder: claim.folder,
            format: claim.rules.format,
            step: entry.step,
            epoch: entry.epoch,
            metrics: entry.metrics.clone(),
            bytes: entry.members.iter().fold(0, |sum, member| sum.saturating_add(member.size)),
            modified,
            order: entry.order,
            earliest: entry.earliest,
            verdict,
            depth: entry.depth,
            members: entry.members.clone(),
            needs: entry.needs.clone(),
        },
        stage,
        own: !uid.is_empty() && entry.owner == uid,
        since: entry.since,
        failed_starts: entry.failed_starts_of(uid),
        crc32c: entry.crc32c.clone(),
    }
}

/// Whether newly seen files have times between the previous scan and now, allowing one minute of clock difference.
fn fits(members: &[Member], looked: Timestamp, now: Timestamp) -> bool {
    newest(members).is_some_and(|time| time >= looked - CLOCK && time <= now + CLOCK)
}

/// Whether only times differ.
fn is_alike(ours: &[Member], theirs: &[Member]) -> bool {
    let same = |(ours, theirs): (&Member, &Member)| (&ours.path, ours.size) == (&theirs.path, theirs.size);
    ours.len() == theirs.len() && ours.iter().zip(theirs).all(same)
}

/// Whether a path is that of this folder, or below it.
fn is_at_or_below(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn newest(members: &[Member]) -> Option<Timestamp> {
    let newest = members.iter().map(|member| member.modified).max()?;
    Timestamp::from_nanosecond(i128::from(newest)).ok()
}

/// Whether `time` lies at least `ago` before `now`.
pub(super) fn is_past(time: Timestamp, ago: SignedDuration, now: Timestamp) -> bool {
    now.duration_since(time) >= ago
}

fn unfinished(found: &FoundCheckpoint, error: &io::Error) -> String {
    format!("{}: could not be read to its end: {error}", shown(&found.path))
}

fn changes() -> io::Error {
    io::Error::other("it changes while it is looked at")
}

/// The last name of a path.
fn base(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") }
}

fn place(path: &str) -> String {
    if path.is_empty() { "the root".to_owned() } else { shown(path) }
}

#[cfg(test)]
mod tests;
