//! Histories of folders with checkpoints, made at random, and what the rules K of docs/checkpoints.md promise of each.
//!
//! Programs save into real folders; an inventory looks, proves, and deletes as the agent does. The oracle knows in which
//! order everything was really written, which the inventory never does. `HISTORIES=20000 cargo test -p checkpoint histories`
//! tries more of them; with `-- --nocapture` it prints how often each rule decided.

use crate::budget::Budget;
use crate::folder::Folder;
use crate::formats::{Claim, Rules};
use crate::found::{Depth, Format, Judgement};
use crate::inventory::{Inventory, Known, Scan};
use crate::keep::{Fate, Keep, fates, saves_to_delete};
use crate::ledger;
use crate::remove::remove_save;
use jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
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
    /// Which writing it was, of all in this history.
    written: u64,
    folder: &'static str,
    kind: &'static str,
    position: Option<u64>,
    is_epoch: bool,
    is_whole: bool,
    is_good: bool,
    /// This job's program wrote it, and nothing makes that doubtful.
    is_own: bool,
    needs: Option<String>,
}

/// What the program does at present.
struct Phase {
    folder: &'static str,
    kinds: &'static [&'static str],
    is_epoch: bool,
    next: u64,
    by: u64,
}

/// The kinds of names of one save. `final` has no position.
const KINDS: [&[&str]; 5] = [
    &["step-#.one"],
    &["G_#.one", "D_#.one"],
    &["model_#.one", "optimizer_#.one", "ema-step-#.one"],
    &["step-#.one", "final.one"],
    &["loss=0.3-#.one"],
];
const FOLDERS: [&str; 5] = ["", "sft", "dpo", "fold1", "fold2"];

struct History {
    dice: Dice,
    root: tempfile::TempDir,
    truth: BTreeMap<String, Truth>,
    written: u64,
    phase: Phase,
    inventory: Inventory,
    now: Timestamp,
    keep: Keep,
    /// Until when another job is there.
    other_until: Option<Timestamp>,
    decided: BTreeMap<&'static str, u64>,
    deleted: u64,
}

type Rule = fn(&[Known], &Keep, Timestamp) -> Vec<Vec<Known>>;

impl History {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let shm = Path::new("/dev/shm");
        let root = if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() }.unwrap();
        let keep = Keep { retention: [0, 1, 1, 2, 2, 3, 3, 3][dice.below(8) as usize], ..Keep::default() };
        let phase = Self::phase(&mut dice);
        let mut history = Self {
            inventory: Inventory::with_formats(root.path(), "uid-1", "llama", FORMATS),
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
            for _ in 0..3 {
                history.save(false, false);
            }
            history.truth.values_mut().for_each(|truth| truth.is_own = false);
        }
        history.scan();
        history
    }

    fn phase(dice: &mut Dice) -> Phase {
        let (folder, kinds) = (dice.pick(&FOLDERS), dice.pick(&KINDS));
        let is_epoch = dice.one_in(3) && !kinds[0].contains("step") && kinds.len() < 3;
        Phase { folder, kinds, is_epoch, next: 1 + dice.below(9), by: 1 + dice.below(3) }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    /// The program saves. It may die between two files, or in one.
    fn save(&mut self, dies: bool, is_bad: bool) {
        let Phase { folder, kinds, is_epoch, next, by } = self.phase;
        self.phase.next = next + by;
        let dies_at = if dies { self.dice.below(kinds.len() as u64) as usize } else { usize::MAX };
        for (index, kind) in kinds.iter().enumerate() {
            let name = kind.replace('#', &next.to_string());
            let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
            let position = kind.contains('#').then_some(next);
            // It calls for one of its own that is there: its best.
            let all: Vec<&String> = self.truth.keys().filter(|path| path.starts_with(folder)).collect();
            let needs = if all.is_empty() { None } else { Some(self.dice.pick(&all).clone()) };
            let needs = needs.filter(|_| self.dice.one_in(6));
            let mut text =
                position.map_or(String::new(), |at| format!("{}={at}\n", if is_epoch { "epoch" } else { "step" }));
            text += &needs.iter().map(|path| format!("needs=/checkpoints/{path}\n")).collect::<String>();
            text += if is_bad && index == 0 { "bad\n" } else { "" };
            text += &format!("{}\n", self.written);
            let is_whole = index < dies_at;
            text += if is_whole { "end\n" } else { "" };
            fs::create_dir_all(self.path(folder)).unwrap();
            fs::write(self.path(&path), text).unwrap();
            self.written += 1;
            let time = SystemTime::from(self.now) + Duration::from_millis(self.written);
            File::options().write(true).open(self.path(&path)).unwrap().set_modified(time).unwrap();
            let is_own = self.other_until.is_none();
            let truth = Truth {
                written: self.written,
                folder,
                kind,
                position,
                is_epoch,
                is_whole,
                is_good: !(is_bad && index == 0),
                is_own,
                needs,
            };
            self.truth.insert(path, truth);
            if !is_whole {
                break;
            }
        }
    }

    /// Copied, restored, or written on a node whose clock is wrong.
    fn skew(&mut self) {
        let Some(path) = self.any() else { return };
        let seconds = self.dice.below(4_000_000);
        let time = if self.dice.one_in(2) {
            SystemTime::now() - Duration::from_secs(seconds)
        } else {
            SystemTime::now() + Duration::from_secs(seconds)
        };
        File::options().write(true).open(self.path(&path)).unwrap().set_modified(time).unwrap();
    }

    fn any(&mut self) -> Option<String> {
        let all: Vec<&String> = self.truth.keys().collect();
        if all.is_empty() { None } else { Some(self.dice.pick(&all).clone()) }
    }

    /// A person copies a checkpoint to a name that the program does not use.
    fn copy(&mut self) {
        let Some(path) = self.any() else { return };
        let name = path.rsplit_once('/').map_or(path.as_str(), |(_, name)| name);
        let to = format!("saved-{}/{name}", self.written);
        fs::create_dir_all(self.path(&to).parent().unwrap()).unwrap();
        fs::copy(self.path(&path), self.path(&to)).unwrap();
    }

    fn scan(&mut self) -> Scan {
        self.now += SignedDuration::from_secs(20);
        if self.other_until.is_some() {
            let root = Folder::root(self.root.path()).unwrap();
            ledger::heartbeat(&root, "uid-2", "other", ledger::Turn::Holds, self.now).unwrap();
        }
        let scan = self.inventory.scan(self.now, None, &Budget::default());
        if self.other_until.take_if(|until| *until <= self.now).is_some() {
            ledger::leave(&Folder::root(self.root.path()).unwrap(), "uid-2").unwrap();
        }
        scan
    }

    /// Looks, proves, and deletes; the oracle watches.
    fn look(&mut self, rule: Rule) -> Result<(), String> {
        let mut scan = self.scan();
        if !self.dice.one_in(4) {
            self.inventory.prove(&mut scan, self.keep.retention + 1, self.now, &Budget::default());
        }
        let keep = Keep { is_shared: !scan.others.is_empty(), ..self.keep.clone() };
        for (_, fate) in fates(&scan.found, &keep, self.now) {
            let (Fate::Keep(rule) | Fate::Delete(rule)) = fate;
            *self.decided.entry(rule.id()).or_default() += 1;
        }
        let root = Folder::root(self.root.path()).unwrap();
        let before = self.truth.clone();
        for save in rule(&scan.found, &keep, self.now) {
            let files: Vec<_> = save.iter().map(|known| &known.found).collect();
            remove_save(&root, &files, &Budget::default()).unwrap();
        }
        let gone: Vec<String> = before.keys().filter(|path| !self.path(path).exists()).cloned().collect();
        self.truth.retain(|path, _| !gone.contains(path));
        self.deleted += gone.len() as u64;
        self.judge(&before, &gone, &keep)
    }

    /// What the rules promise.
    fn judge(&self, before: &BTreeMap<String, Truth>, gone: &[String], keep: &Keep) -> Result<(), String> {
        if !gone.is_empty() && (keep.retention == 0 || keep.is_shared) {
            return Err(format!("K1, K2: {gone:?} of all"));
        }
        // A save: what has one position in one folder.
        let key = |truth: &Truth| truth.position.map(|at| (truth.folder, at, truth.is_epoch));
        let mut saves: BTreeMap<_, Vec<&str>> = BTreeMap::new();
        for (path, truth) in before {
            if let Some(key) = key(truth) {
                saves.entry(key).or_default().push(path);
            }
        }
        for path in gone {
            let truth = &before[path];
            let Some(position) = truth.position else { return Err(format!("K4: {path} has no position")) };
            if !truth.is_own {
                return Err(format!("K3: {path} is not own"));
            }
            if self.keep.resumed_from.as_ref() == Some(path) {
                return Err(format!("K5: {path}"));
            }
            // Later and farther, of the same series, whole and good, with all that was saved with it.
            let is_whole = |other: &Truth| {
                saves[&key(other).unwrap()]
                    .iter()
                    .all(|path| before[*path].is_whole && before[*path].is_good && before[*path].is_own)
            };
            let supersedes = |other: &&Truth| {
                (other.folder, other.kind, other.is_epoch) == (truth.folder, truth.kind, truth.is_epoch)
                    && other.position.is_some_and(|at| at > position)
                    && other.written > truth.written
                    && is_whole(other)
            };
            let count = before.values().filter(supersedes).count();
            let needed = if truth.is_whole { keep.retention } else { 1 };
            if count < needed {
                return Err(format!("K11, K12: {count} later ones of {path}: {truth:?}"));
            }
            if let Some(left) = saves[&key(truth).unwrap()].iter().find(|other| self.truth.contains_key(**other)) {
                return Err(format!("K13: {path} is gone, and {left} of the same save is left"));
            }
        }
        // What the newest of each series calls for is there.
        for truth in before.values().filter(|truth| truth.is_own && truth.is_whole && truth.is_good) {
            let is_newest = before.values().all(|other| {
                (other.folder, other.kind) != (truth.folder, truth.kind) || other.written <= truth.written
            });
            if let Some(needed) = truth.needs.as_ref().filter(|needed| is_newest && gone.contains(needed)) {
                return Err(format!("K7: {needed}"));
            }
        }
        Ok(())
    }

    fn step(&mut self, rule: Rule) -> Result<(), String> {
        match self.dice.below(24) {
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
                self.scan();
            }
            // The agent begins again, with its ledger or without.
            19 => {
                if self.dice.one_in(3) {
                    let _ = fs::remove_file(self.path(".trainingjob/ledger.json"));
                    self.truth.values_mut().for_each(|truth| truth.is_own = false);
                }
                self.inventory = Inventory::with_formats(self.root.path(), "uid-1", "llama", FORMATS);
                self.scan();
            }
            20 => self.now += SignedDuration::from_hours(2),
            _ => {}
        }
        if self.dice.one_in(3) { Ok(()) } else { self.look(rule) }
    }
}

/// Of one history: by which rules what was decided how often, and how many files were deleted.
fn live(seed: u64, rule: Rule) -> Result<History, String> {
    let mut history = History::new(seed);
    for _ in 0..25 {
        history.step(rule).map_err(|why| format!("history {seed}: {why}"))?;
    }
    Ok(history)
}

fn rule_of_now(found: &[Known], keep: &Keep, now: Timestamp) -> Vec<Vec<Known>> {
    saves_to_delete(found, keep, now).into_iter().map(|save| save.into_iter().cloned().collect()).collect()
}

/// As it was: the newest of the whole tree by step, file by file.
fn rule_by_steps(found: &[Known], keep: &Keep, _: Timestamp) -> Vec<Vec<Known>> {
    let mut all: Vec<&Known> = found.iter().filter(|known| known.own && known.found.step.is_some()).collect();
    all.sort_by_key(|known| std::cmp::Reverse(known.found.step));
    let mut proven = 0;
    let mut gone = Vec::new();
    for known in all {
        if keep.retention > 0 && !keep.is_shared && proven >= keep.retention && known.found.is_good() {
            gone.push(vec![known.clone()]);
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
                let mut decided: BTreeMap<&str, u64> = BTreeMap::new();
                let mut deleted = 0;
                for seed in (thread..count).step_by(2) {
                    let history = live(seed, rule_of_now).unwrap_or_else(|why| panic!("{why}"));
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
    let expected = ["K1", "K2", "K3", "K4", "K5", "K7", "K8", "K10", "K11", "K12", "K13"];
    assert!(expected.iter().all(|rule| rules.contains(rule)), "{rules:?}");
    assert!(deleted > count, "too little is deleted for a volume of any size");
}

/// The oracle is no rubber stamp: it finds the rule out that was there before.
#[test]
fn the_rule_by_steps_is_found_out() {
    let lost = (0..50).filter_map(|seed| live(seed, rule_by_steps).err()).count();
    assert!(lost > 10, "{lost} of 50");
}
