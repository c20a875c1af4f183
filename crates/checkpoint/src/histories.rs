//! Random histories of checkpoint folders, checked against the rules C, K, U of docs/checkpoints.md.
//!
//! Programs save into real folders; an inventory scans, proves, deletes, and chooses as the agent does. The oracle
//! knows the true order of writing, which the inventory never does. `HISTORIES=20000 cargo test -p checkpoint
//! histories` tries more histories; with `-- --nocapture` it prints how often each rule decided.

use crate::budget::Budget;
use crate::choose::{Candidate, Choice, Doubt, Query, SUSPECT, Start, Wish, choose};
use crate::folder::Folder;
use crate::formats::{Claim, Rules};
use crate::found::{Depth, Format, Judgement};
use crate::inventory::{Inventory, KnownCheckpoint, Scan};
use crate::keep::{self, RetentionDecision, RetentionRules, decide};
use crate::ledger;
use crate::remove::remove_save;
use crate::testing::as_nobody;
use jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// A format whose files say what they are: `step=5`, `epoch=2`, `needs=PATH`, `bad`, a line each.
const FORMATS: &[&Rules] = &[&ONE];
const ONE: Rules = Rules {
    format: Format::Torch,
    claim: |listing| {
        let names = listing.files.iter().filter(|name| name.ends_with(".one"));
        names.map(|name| Claim::Files { name: name.clone(), files: vec![name.clone()] }).collect()
    },
    judge: |name, files, depth| {
        let text = String::from_utf8(files.read(name, 1 << 16)?).map_err(std::io::Error::other)?;
        let line = |key: &str| text.lines().find_map(|line| line.strip_prefix(key));
        let judgement = match () {
            () if !text.ends_with("end\n") => Judgement::incomplete("it has no end"),
            () if depth == Depth::Content && line("bad").is_some() => Judgement::corrupted(name, "is bad"),
            () => Judgement::valid(),
        };
        Ok(Judgement {
            step: line("step=").and_then(|step| step.parse().ok()),
            epoch: line("epoch=").and_then(|epoch| epoch.parse().ok()),
            needs: line("needs=").map(str::to_owned).into_iter().collect(),
            ..judgement
        })
    },
};

/// Numbers from a seed: splitmix64.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, most: u64) -> u64 {
        self.next() % most
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// What the oracle knows of a file.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
struct Truth {
    /// Number of this write among all writes in this history.
    written: u64,
    /// Number of the scan that first saw it.
    seen: Option<u64>,
    folder: String,
    kind: &'static str,
    position: Option<u64>,
    is_epoch: bool,
    is_whole: bool,
    is_good: bool,
    /// Whether this job's program wrote it, without doubt.
    is_own: bool,
    /// Whether its writer or its time of writing is uncertain.
    is_doubtful: bool,
    /// Whether something was at this path before.
    is_rewritten: bool,
    /// Attempts that resumed from it and failed before real work.
    failed: u32,
    needs: Option<String>,
}

impl Truth {
    /// Whether it can be resumed from.
    fn is_usable(&self) -> bool {
        self.is_whole && self.is_good && self.failed < SUSPECT
    }

    /// The save that it belongs to: all files with one position in one folder.
    fn save(&self) -> Option<(&str, u64, bool)> {
        self.position.map(|at| (self.folder.as_str(), at, self.is_epoch))
    }

    fn series(&self) -> (&str, &str, bool) {
        (&self.folder, self.kind, self.is_epoch)
    }
}

fn is_checkpoint(path: &str) -> bool {
    path.ends_with(".one")
}

/// What the program does at present.
struct Phase {
    folder: &'static str,
    kinds: &'static [&'static str],
    is_epoch: bool,
    next: u64,
    by: u64,
}

/// The kinds of names in one save. `final` has no position. Files that no format claims are saved with a checkpoint.
const KINDS: [&[&str]; 6] = [
    &["step-#.one"],
    &["G_#.one", "D_#.one"],
    &["model_#.one", "optimizer_#.one", "ema-step-#.one"],
    &["step-#.one", "final.one"],
    &["loss=0.3-#.one"],
    UNCLAIMED,
];
const UNCLAIMED: &[&str] = &["net_#.one", "net-optimizer_#.pt", "rng-state.pt"];
const UID: &str = "uid-1";
const WISH: &str = "s3://base/checkpoint-12000";
const FOLDERS: [&str; 5] = ["", "sft", "dpo", "fold1", "fold2"];

struct History {
    dice: Dice,
    root: tempfile::TempDir,
    truth: BTreeMap<String, Truth>,
    written: u64,
    phase: Phase,
    inventory: Inventory,
    now: Timestamp,
    keep: RetentionRules,
    /// `resumeFrom`, and whether an attempt has resumed from it.
    wish: Option<&'static str>,
    is_wish_used: bool,
    /// Whether the ledger that recorded this was lost.
    is_wish_forgotten: bool,
    /// Number of scans so far.
    looks: u64,
    /// The folder that can't be read at present; empty for the root.
    blocked: Option<String>,
    /// The checkpoint that the current attempt resumed from.
    begun: Option<String>,
    /// Time until which another job uses the root.
    other_until: Option<Timestamp>,
    decided: BTreeMap<&'static str, u64>,
    deleted: u64,
}

type Decided<'a> = Vec<Vec<(&'a KnownCheckpoint, RetentionDecision)>>;
type Rule = for<'a> fn(&'a [KnownCheckpoint], &RetentionRules, Timestamp) -> Decided<'a>;

impl History {
    fn new(seed: u64) -> Result<Self, String> {
        let mut dice = Dice(seed);
        let shm = Path::new("/dev/shm");
        let root = if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() }.unwrap();
        let keep =
            RetentionRules { retention: [0, 1, 1, 2, 2, 3, 3, 3][dice.below(8) as usize], ..RetentionRules::default() };
        let phase = Self::phase(&mut dice);
        let mut history = Self {
            inventory: Inventory::with_formats(root.path(), UID, "llama", FORMATS),
            wish: dice.one_in(3).then_some(WISH),
            is_wish_used: false,
            is_wish_forgotten: false,
            looks: 0,
            blocked: None,
            begun: None,
            dice,
            root,
            truth: BTreeMap::new(),
            written: 0,
            phase,
            now: Timestamp::now(),
            keep,
            other_until: None,
            decided: BTreeMap::new(),
            deleted: 0,
        };
        if history.dice.one_in(3) {
            // An earlier job had left before this one started (C8).
            history.now -= SignedDuration::from_secs(60);
            for _ in 0..3 {
                history.save(false, false);
            }
            history.now = Timestamp::now();
            history.truth.values_mut().for_each(|truth| truth.is_own = false);
        }
        history.scan();
        // An attempt may end before its agent has chosen, with its pods or without.
        while history.dice.one_in(3) {
            history.reopen();
        }
        history.attempt()?;
        Ok(history)
    }

    /// New pods, or a new agent.
    fn reopen(&mut self) {
        self.inventory = Inventory::with_formats(self.root.path(), UID, "llama", FORMATS);
        self.scan();
    }

    fn phase(dice: &mut Dice) -> Phase {
        let kinds = dice.pick(&KINDS);
        let folder = if kinds == UNCLAIMED { "vae" } else { dice.pick(&FOLDERS) };
        let is_epoch = dice.one_in(3) && !kinds[0].contains("step") && kinds.len() < 3;
        Phase { folder, kinds, is_epoch, next: 1 + dice.below(9), by: 1 + dice.below(3) }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    /// The program saves. It may die between two files, or in one.
    fn save(&mut self, dies: bool, is_bad: bool) {
        self.begun = None; // what follows is no failure before real work
        let Phase { folder, kinds, is_epoch, next, by } = self.phase;
        self.phase.next = next + by;
        let dies_at = if dies { self.dice.below(kinds.len() as u64) as usize } else { usize::MAX };
        for (index, kind) in kinds.iter().enumerate() {
            let name = kind.replace('#', &next.to_string());
            let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
            let position = kind.contains('#').then_some(next);
            // It requires one of its existing checkpoints: its best one.
            let is_near = |path: &&String| path.starts_with(folder) && is_checkpoint(path);
            let all: Vec<&String> = self.truth.keys().filter(is_near).collect();
            let needs = if all.is_empty() { None } else { Some(self.dice.pick(&all).clone()) };
            let needs = needs.filter(|_| is_checkpoint(&path) && self.dice.one_in(6));
            let mut text =
                position.map_or(String::new(), |at| format!("{}={at}\n", if is_epoch { "epoch" } else { "step" }));
            text += &needs.iter().map(|path| format!("needs=/checkpoints/{path}\n")).collect::<String>();
            text += if is_bad && index == 0 { "bad\n" } else { "" };
            text += &format!("{}\n", self.written);
            let is_whole = index < dies_at;
            if !is_whole && !is_checkpoint(&path) {
                break;
            }
            text += if is_whole { "end\n" } else { "" };
            fs::create_dir_all(self.path(folder)).unwrap();
            fs::write(self.path(&path), text).unwrap();
            self.written += 1;
            let time = SystemTime::from(self.now) + Duration::from_millis(self.written);
            File::options().write(true).open(self.path(&path)).unwrap().set_modified(time).unwrap();
            let is_own = self.other_until.is_none();
            let truth = Truth {
                written: self.written,
                seen: None,
                folder: folder.to_owned(),
                kind,
                position,
                is_epoch,
                is_whole,
                is_good: !(is_bad && index == 0),
                is_own,
                is_doubtful: !is_own,
                is_rewritten: self.truth.contains_key(&path),
                failed: 0,
                needs,
            };
            self.truth.insert(path, truth);
            if !is_whole {
                break;
            }
        }
    }

    /// Sets a wrong time, as if the file was copied, restored, or written on a node with a wrong clock.
    fn skew(&mut self) {
        let Some(path) = self.any() else { return };
        let seconds = self.dice.below(4_000_000);
        let time = if self.dice.one_in(2) {
            SystemTime::now() - Duration::from_secs(seconds)
        } else {
            SystemTime::now() + Duration::from_secs(seconds)
        };
        File::options().write(true).open(self.path(&path)).unwrap().set_modified(time).unwrap();
        self.truth.entry(path).and_modify(|truth| truth.is_doubtful = true);
    }

    fn any(&mut self) -> Option<String> {
        let all: Vec<&String> = self.truth.keys().filter(|path| is_checkpoint(path)).collect();
        if all.is_empty() { None } else { Some(self.dice.pick(&all).clone()) }
    }

    /// A person copies a checkpoint to a name that the program does not use.
    fn copy(&mut self) {
        let Some(path) = self.any() else { return };
        let name = path.rsplit_once('/').map_or(path.as_str(), |(_, name)| name);
        let folder = format!("saved-{}-{}", self.written, self.dice.below(1_000_000));
        let to = format!("{folder}/{name}");
        fs::create_dir_all(self.path(&to).parent().unwrap()).unwrap();
        fs::copy(self.path(&path), self.path(&to)).unwrap();
        let copy =
            Truth { folder, seen: None, is_own: false, is_doubtful: true, failed: 0, ..self.truth[&path].clone() };
        self.truth.insert(to, copy);
    }

    /// Makes a folder unreadable until `unblock` is called.
    fn block(&mut self, folder: &str) {
        fs::set_permissions(self.path(folder), Permissions::from_mode(0o000)).unwrap();
        self.blocked = Some(folder.to_owned());
    }

    fn unblock(&mut self) -> Option<String> {
        let folder = self.blocked.take()?;
        fs::set_permissions(self.path(&folder), Permissions::from_mode(0o755)).unwrap();
        Some(folder)
    }

    fn scan(&mut self) -> Scan {
        self.now += SignedDuration::from_secs(20);
        if self.other_until.is_some() {
            let root = Folder::root(self.root.path()).unwrap();
            ledger::heartbeat(&root, "uid-2", "other", ledger::RootClaim::Holds, self.now).unwrap();
        }
        let scan = self.inventory.scan(self.now, None, &Budget::default());
        if self.other_until.take_if(|until| *until <= self.now).is_some() {
            ledger::leave(&Folder::root(self.root.path()).unwrap(), "uid-2").unwrap();
        }
        self.looks += 1;
        let is_hidden =
            |path: &str| self.blocked.as_ref().is_some_and(|folder| folder.is_empty() || path.starts_with(folder));
        for (_, truth) in self.truth.iter_mut().filter(|(path, _)| !is_hidden(path)) {
            truth.seen = truth.seen.or(Some(self.looks));
        }
        scan
    }

    fn count(&mut self, rule: &'static str) {
        *self.decided.entry(rule).or_default() += 1;
    }

    /// An attempt begins: the agent chooses what it resumes from, as soon as it may.
    fn attempt(&mut self) -> Result<(), String> {
        loop {
            self.inventory.await_turn(self.now);
            let is_shared = self.other_until.is_some();
            let scan = self.scan();
            let mut others = scan.others.clone();
            if others.is_empty() {
                others = self.inventory.take_turn(self.now);
            }
            // The root that can't be read names no other jobs either.
            let is_hidden = self.blocked.as_deref() == Some("");
            match (is_shared, others.is_empty()) {
                (true, true) if !is_hidden => return Err("C8: the attempt begins while another job is there".into()),
                (false, false) => return Err(format!("C8: waits for {others:?}, which is not there")),
                (_, true) => return self.resume(&scan),
                (_, false) => self.count("C8"),
            }
        }
    }

    fn resume(&mut self, scan: &Scan) -> Result<(), String> {
        let wish = Wish::known_to(&self.inventory, self.wish, self.is_wish_used);
        let candidates = scan.found.iter().map(|known| Candidate::known_to(&self.inventory, known)).collect();
        let query = Query { candidates, wish, unlisted: scan.unlisted(), may_start_over: false };
        let (inventory, now) = (&mut self.inventory, self.now);
        let choice =
            choose(query, |candidate| match inventory.verify(&candidate.found, true, now, &Budget::default()) {
                Ok(known) if known.found.is_good() => Ok(()),
                Ok(known) => Err(Doubt::Bad(format!("{:?}", known.found.verdict))),
                Err(error) => Err(Doubt::Unread(error.to_string())),
            });
        let blocked = self.unblock();
        self.judge_choice(&choice, blocked.as_deref()).map_err(|why| format!("{why}: {choice:?}"))?;
        if self.wish.is_none() {
            self.inventory.use_no_wish();
        }
        if choice.passed.iter().any(|passed| passed.why.contains("suspect")) {
            self.count("C7");
        }
        match choice.start {
            Start::From(found, _) => {
                self.count(if choice.passed.is_empty() { "C3" } else { "C4" });
                self.keep.resumed_from = Some(found.path.clone());
                if self.dice.one_in(2) {
                    self.phase.next = found.step.unwrap_or(self.phase.next) + self.phase.by;
                }
                self.begun = Some(found.path);
            }
            Start::ResumeFrom => {
                self.count(if self.is_wish_used { "C2" } else { "C1" });
                let is_remembered = self.inventory.has_used(WISH);
                self.inventory.use_wish(WISH);
                // Earlier checkpoints no longer count. Without the ledger nothing records which those are.
                let is_doubtful = self.is_wish_used;
                for truth in self.truth.values_mut().filter(|_| !is_remembered) {
                    // Checkpoints that no scan has seen yet will count as written since.
                    truth.is_own &= truth.seen.is_none();
                    truth.is_doubtful = is_doubtful;
                }
                (self.is_wish_used, self.is_wish_forgotten, self.begun) = (true, false, None);
            }
            Start::Scratch => self.begun = None,
            Start::Unread(_) => self.count("C5"),
            Start::NoneUsable(_) => {
                self.count("C6");
                self.begun = None;
            }
        }
        Ok(())
    }

    /// Checks a choice against the rules C.
    fn judge_choice(&self, choice: &Choice, blocked: Option<&str>) -> Result<(), String> {
        let checkpoints = || self.truth.iter().filter(|(path, _)| is_checkpoint(path)).map(|(_, truth)| truth);
        // A save has no owner if it still has another job's files because the program died before it wrote them.
        let others: BTreeSet<_> = self.truth.values().filter(|truth| !truth.is_own).filter_map(Truth::save).collect();
        let is_mixed = |truth: &Truth| truth.save().is_some_and(|save| others.contains(&save));
        let is_own = |truth: &&Truth| truth.is_own && !truth.is_doubtful && truth.seen.is_some() && !is_mixed(truth);
        let own = || checkpoints().filter(is_own);
        let has_own = own().any(|truth| truth.is_whole);
        // A file rewritten with the same length looks as if it was only touched. That is no sign of an attempt.
        let has_written = own().any(|truth| truth.is_whole && !(self.is_wish_forgotten && truth.is_rewritten));
        let is_doubtful = checkpoints().any(|truth| truth.is_doubtful);
        let usable = || own().filter(|truth| truth.is_usable());
        // Checkpoints that report a position take precedence over those that report none.
        let newest = usable().max_by_key(|truth| (truth.position.is_some(), truth.seen));
        let is_wished = self.wish.is_some() && !self.is_wish_used;
        let is_after = |truth: &Truth, other: &Truth| (truth.seen, truth.written) > (other.seen, other.written);
        let is_hidden = |truth: &Truth| blocked.is_some_and(|folder| folder.is_empty() || truth.folder == folder);
        if !matches!(choice.start, Start::Unread(_)) {
            if blocked == Some("") {
                return Err("C5: the folder can't be read".into());
            }
            if let Some(newest) = newest.filter(|newest| newest.seen.is_some() && is_hidden(newest))
                && !is_wished
                && !is_doubtful
                // A later checkpoint that shares only its number with another job's may be this job's own (K3).
                && !matches!(&choice.start, Start::From(found, _) if is_after(&self.truth[&found.path], newest))
            {
                return Err(format!("C5: the newest can't be read: {newest:?}"));
            }
        }
        match &choice.start {
            Start::Unread(_) if blocked.is_none() => Err("C5: all can be read".into()),
            Start::ResumeFrom if !is_wished && (self.wish.is_none() || has_written && blocked.is_none()) => {
                Err("C2: resumes from resumeFrom again".into())
            }
            Start::Unread(_) | Start::ResumeFrom => Ok(()),
            _ if is_wished => Err("C1: no attempt has resumed from resumeFrom".into()),
            Start::Scratch if self.wish.is_some() => Err("C1: resumeFrom is forgotten".into()),
            Start::Scratch if has_own => Err("C6: the job has checkpoints".into()),
            Start::Scratch if blocked.is_none() && checkpoints().any(Truth::is_usable) => {
                Err("C3: there is a good one".into())
            }
            Start::NoneUsable(_) if newest.is_some() => Err(format!("C6: {newest:?} can be used")),
            Start::Scratch | Start::NoneUsable(_) => Ok(()),
            Start::From(found, _) => {
                let chosen = &self.truth[&found.path];
                if !(chosen.is_whole && chosen.is_good) {
                    return Err("C4: it is bad".into());
                }
                if chosen.failed >= SUSPECT && !chosen.is_doubtful {
                    return Err("C7: it is suspect".into());
                }
                if self.wish.is_some() && !chosen.is_own && !is_doubtful {
                    return Err("C2: what came before resumeFrom does not come back".into());
                }
                if !chosen.is_own && !chosen.is_doubtful && has_own {
                    return Err("C2, C3: the job has one of its own".into());
                }
                // Of the checkpoints that one scan saw first, one rewritten with the same length counts as the last.
                let is_later = |other: &Truth| {
                    let is_past = other.series() == chosen.series() && other.position > chosen.position;
                    other.seen > chosen.seen
                        || other.seen == chosen.seen
                            && !chosen.is_rewritten
                            && is_past
                            && other.written > chosen.written
                };
                match usable().find(|other| other.position.is_some() && is_later(other) && !is_hidden(other)) {
                    Some(later) if chosen.is_own && !chosen.is_doubtful => Err(format!("C3: {later:?} is newer")),
                    _ => Ok(()),
                }
            }
        }
    }

    /// Checks that unclaimed files beside a checkpoint are copied with it.
    fn judge_beside(&self, scan: &Scan) -> Result<(), String> {
        for known in scan.found.iter().filter(|known| known.own && known.found.is_good()) {
            let Some(truth) = self.truth.get(&known.found.path).filter(|truth| truth.is_own) else { continue };
            let beside = self.truth.iter().filter(|(path, other)| !is_checkpoint(path) && other.folder == truth.folder);
            for (path, other) in beside {
                let name = path.rsplit_once('/').map_or(path.as_str(), |(_, name)| name);
                let is_in = |members: &[crate::files::Member]| members.iter().any(|member| member.path == name);
                let is_copied = match other.position {
                    Some(_) if other.save() != truth.save() => true,
                    Some(_) => is_in(&known.found.members),
                    None => scan.beside.get(&truth.folder).is_some_and(|members| is_in(members)),
                };
                if !is_copied {
                    let rule = if other.position.is_some() { "U2" } else { "U3" };
                    return Err(format!("{rule}: {path} is not copied with {}", known.found.path));
                }
            }
        }
        Ok(())
    }

    /// Scans, proves, and deletes, and compares the result with the oracle.
    fn look(&mut self, rule: Rule) -> Result<(), String> {
        let mut scan = self.scan();
        if !self.dice.one_in(4) {
            self.inventory.prove(&mut scan, self.keep.retention + 1, self.now, &Budget::default());
        }
        if self.blocked.is_none() {
            self.judge_beside(&scan)?;
        }
        let keep = RetentionRules { is_shared: !scan.others.is_empty(), ..self.keep.clone() };
        let before = self.truth.clone();
        for save in rule(&scan.found, &keep, self.now) {
            for (_, fate) in &save {
                let (RetentionDecision::Keep(rule) | RetentionDecision::Delete(rule)) = fate;
                self.count(rule.id());
            }
            if save.iter().all(|(_, fate)| matches!(fate, RetentionDecision::Delete(_))) {
                let root = Folder::root(self.root.path()).unwrap();
                let files: Vec<_> = save.iter().map(|(known, _)| &known.found).collect();
                remove_save(&root, &files, &Budget::default()).unwrap();
            }
        }
        self.unblock();
        let gone: Vec<String> = before.keys().filter(|path| !self.path(path).exists()).cloned().collect();
        self.truth.retain(|path, _| !gone.contains(path));
        self.deleted += gone.len() as u64;
        self.judge(&before, &gone, &keep)
    }

    /// Checks what was deleted against the rules.
    fn judge(&self, before: &BTreeMap<String, Truth>, gone: &[String], keep: &RetentionRules) -> Result<(), String> {
        if !gone.is_empty() && (keep.retention == 0 || keep.is_shared) {
            return Err(format!("K1, K2: {gone:?} of all"));
        }
        let mut saves: BTreeMap<_, Vec<&str>> = BTreeMap::new();
        for (path, truth) in before {
            if let Some(key) = truth.save() {
                saves.entry(key).or_default().push(path);
            }
        }
        for path in gone {
            let truth = &before[path];
            let Some(position) = truth.position else { return Err(format!("K4: {path} has no position")) };
            // The ledger does not record files beside a checkpoint. Only their times show whether they are this job's.
            if !truth.is_own && (is_checkpoint(path) || !truth.is_doubtful) {
                return Err(format!("K3: {path} is not own"));
            }
            if self.keep.resumed_from.as_ref() == Some(path) {
                return Err(format!("K5: {path}"));
            }
            // Later and farther, of the same series, whole and good, with all that was saved with it.
            let is_whole = |other: &Truth| {
                saves[&other.save().unwrap()]
                    .iter()
                    .all(|path| before[*path].is_whole && before[*path].is_good && before[*path].is_own)
            };
            let supersedes = |other: &&Truth| {
                other.series() == truth.series()
                    && other.position.is_some_and(|at| at > position)
                    && other.written > truth.written
                    && is_whole(other)
            };
            let count = before.values().filter(supersedes).count();
            let needed = if truth.is_whole { keep.retention } else { 1 };
            // Files that no format claims are deleted with their checkpoint.
            if count < needed && is_checkpoint(path) {
                return Err(format!("K11, K12: {count} later ones of {path}: {truth:?}"));
            }
            if let Some(left) = saves[&truth.save().unwrap()].iter().find(|other| self.truth.contains_key(**other)) {
                return Err(format!("K13: {path} is gone, and {left} of the same save is left"));
            }
        }
        // Checkpoints that the newest of each series requires still exist.
        for truth in before.values().filter(|truth| truth.is_own && truth.is_whole && truth.is_good) {
            let is_newest = before.values().all(|other| {
                (&other.folder, other.kind) != (&truth.folder, truth.kind) || other.written <= truth.written
            });
            if let Some(needed) = truth.needs.as_ref().filter(|needed| is_newest && gone.contains(needed)) {
                return Err(format!("K7: {needed}"));
            }
        }
        Ok(())
    }

    fn step(&mut self, rule: Rule) -> Result<(), String> {
        match self.dice.below(30) {
            0..=11 => {
                let (dies, is_bad) = (self.dice.one_in(12), self.dice.one_in(15));
                self.save(dies, is_bad);
            }
            // Another stage, fold, or run: its steps begin again.
            12 | 13 => self.phase = Self::phase(&mut self.dice),
            // The program ignores the checkpoint, or resumes from an older one, in the same folder.
            14 => self.phase.next = 1 + self.dice.below(self.phase.next),
            15 => {
                let resumed = self.any();
                self.keep.resumed_from = resumed;
            }
            16 => self.skew(),
            17 => self.copy(),
            18 if self.dice.one_in(2) => {
                self.other_until = Some(self.now + SignedDuration::from_secs(30));
                // The next scan can't determine which of the two jobs wrote it.
                self.truth.values_mut().for_each(|truth| truth.is_doubtful |= truth.seen.is_none());
                self.scan();
            }
            // The agent begins again, with its ledger or without.
            19 => {
                if self.dice.one_in(3) {
                    let _ = fs::remove_file(self.path(".trainingjob/ledger.json"));
                    let lose = |truth: &mut Truth| (truth.is_own, truth.is_doubtful, truth.failed) = (false, true, 0);
                    self.truth.values_mut().for_each(lose);
                    self.is_wish_forgotten = self.is_wish_used;
                }
                self.reopen();
            }
            20 => self.now += SignedDuration::from_hours(2),
            // Another attempt, in the same pods or in new ones: after a failure, a suspension, a preemption by a queue.
            21 | 22 => self.attempt()?,
            23 | 24 => {
                self.reopen();
                self.attempt()?;
            }
            25 => {
                let folders: BTreeSet<String> = self.truth.values().map(|truth| truth.folder.clone()).collect();
                let folders: Vec<&String> = folders.iter().collect();
                if self.other_until.is_none() && !folders.is_empty() {
                    let folder = self.dice.pick(&folders).clone();
                    self.block(&folder);
                    if self.dice.one_in(2) && !folder.is_empty() {
                        return self.look(rule);
                    }
                    self.attempt()?;
                }
            }
            // The attempt fails before real work, and is tried again.
            26 | 27 => {
                if let Some(path) = self.begun.take() {
                    self.inventory.failed_start(&path);
                    self.truth.entry(path).and_modify(|truth| truth.failed += 1);
                    self.attempt()?;
                }
            }
            28 => {
                if let Some(path) = self.begun.take() {
                    self.inventory.good_start(&path);
                    self.truth.entry(path).and_modify(|truth| truth.failed = 0);
                }
            }
            _ => {}
        }
        if self.dice.one_in(3) { Ok(()) } else { self.look(rule) }
    }
}

/// Runs one history. It counts how often each rule decided and how many files were deleted.
fn live(seed: u64, rule: Rule) -> Result<History, String> {
    let mut history = History::new(seed).map_err(|why| format!("history {seed}: {why}"))?;
    for _ in 0..25 {
        history.step(rule).map_err(|why| format!("history {seed}: {why}"))?;
    }
    Ok(history)
}

/// The former rule: keep the newest of the whole tree by step, file by file.
fn rule_by_steps<'a>(found: &'a [KnownCheckpoint], keep: &RetentionRules, _: Timestamp) -> Decided<'a> {
    let mut all: Vec<&KnownCheckpoint> = found.iter().filter(|known| known.own && known.found.step.is_some()).collect();
    all.sort_by_key(|known| std::cmp::Reverse(known.found.step));
    let mut proven = 0;
    let mut gone = Vec::new();
    for known in all {
        if keep.retention > 0 && !keep.is_shared && proven >= keep.retention && known.found.is_good() {
            gone.push(vec![(known, RetentionDecision::Delete(keep::Rule::Superseded))]);
        }
        proven += usize::from(known.is_proven());
    }
    gone
}

#[test]
fn no_history_loses_work() {
    let count = std::env::var("HISTORIES").map_or(2000, |count| count.parse().expect("HISTORIES is a number"));
    let threads: Vec<_> = (0..2)
        .map(|thread| {
            std::thread::spawn(move || {
                as_nobody(); // root reads any folder
                let mut decided: BTreeMap<&str, u64> = BTreeMap::new();
                let mut deleted = 0;
                for seed in (thread..count).step_by(2) {
                    let history = live(seed, decide).unwrap_or_else(|why| panic!("{why}"));
                    history.decided.into_iter().for_each(|(rule, count)| *decided.entry(rule).or_default() += count);
                    deleted += history.deleted;
                }
                (decided, deleted)
            })
        })
        .collect();
    let mut decided: BTreeMap<&str, u64> = BTreeMap::new();
    let mut deleted = 0;
    for thread in threads {
        let (theirs, gone) = thread.join().unwrap_or_else(|why| std::panic::resume_unwind(why));
        theirs.into_iter().for_each(|(rule, count)| *decided.entry(rule).or_default() += count);
        deleted += gone;
    }
    println!("{count} histories, {deleted} files deleted; decided by {decided:?}");
    let rules: BTreeSet<&str> = decided.keys().copied().collect();
    let expected = [
        "C1", "C2", "C3", "C4", "C5", "C6", "C7", "C8", "K1", "K2", "K3", "K4", "K5", "K7", "K8", "K10", "K11", "K12",
        "K13",
    ];
    assert!(expected.iter().all(|rule| rules.contains(rule)), "{rules:?}");
    assert!(deleted > count, "too little is deleted for a volume of any size");
}

/// The oracle is effective: it finds the fault of the former rule.
#[test]
fn oracle_detects_work_lost_by_the_step_rule() {
    as_nobody();
    let lost = (0..50).filter_map(|seed| live(seed, rule_by_steps).err()).count();
    assert!(lost > 10, "{lost} of 50");
}
