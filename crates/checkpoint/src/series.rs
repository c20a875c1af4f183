//! Which checkpoints were saved together, which saves follow each other, and in which order they were written.
//!
//! Choosing, keeping, copying, and deleting all go by this module. It is pure.
//!
//! - A *save* is all files that a program wrote at one step (or epoch) into one folder: `G_300.pth` and `D_300.pth`.
//! - A *series* is a folder and a kind of name: `run/step_#.pt`. A save belongs to the series of each of its files.
//! - *Order of writing* is the order in which the ledger first saw each content ([`FoundCheckpoint::order`]). Times of files say no
//!   more than which of those that one look saw first came first, and only where they lie between that look and the one
//!   before: restored, copied, and skewed files have any time.
//! - One save *supersedes* another of the same series if it was written later **and** has a higher step. Where the two
//!   disagree, the steps have begun again, and neither save replaces the other.

use crate::found::FoundCheckpoint;
use regex::Regex;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

#[expect(clippy::expect_used, reason = "a constant")]
static NUMBER: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?").expect("the pattern is right"));

/// A folder and a kind of name, such as `run/step#.pt`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Series(String);

impl Series {
    /// The series of a checkpoint. Numbers in its own name count the saves; those in the names of its folders do not,
    /// unless only a folder names the step (`step_300/model.pt`).
    #[must_use]
    pub fn of_checkpoint(found: &FoundCheckpoint) -> Self {
        let (folder, name) = split(&found.path);
        let is_reported = crate::formats::named::step(name).is_some() || crate::formats::named::epoch(name).is_some();
        let counts =
            |part: &str| !is_reported && found.step.is_some() && crate::formats::named::step(part) == found.step;
        let folder: Vec<String> =
            folder.split('/').map(|part| if counts(part) { kind(part) } else { part.to_owned() }).collect();
        Self(format!("{}/{}", folder.join("/"), kind(name)))
    }
}

/// A name with `#` in place of each number.
fn kind(name: &str) -> String {
    NUMBER.replace_all(name, "#").into_owned()
}

/// The folder of a path, empty for the root, and its last name.
fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// How far a run was: optimizer steps, or epochs where no step is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Position {
    /// Epochs done.
    Epoch(f64),
    /// Optimizer steps done.
    Step(u64),
}

impl Position {
    /// The position that a checkpoint reports, if it reports one.
    #[must_use]
    pub fn of_checkpoint(found: &FoundCheckpoint) -> Option<Self> {
        found.step.map(Self::Step).or_else(|| found.epoch.filter(|epoch| epoch.is_finite()).map(Self::Epoch))
    }

    /// Whether this position is farther. A step and an epoch cannot be compared.
    #[must_use]
    pub fn is_past(self, other: Self) -> bool {
        match (self, other) {
            (Self::Step(ours), Self::Step(theirs)) => ours > theirs,
            (Self::Epoch(ours), Self::Epoch(theirs)) => ours > theirs,
            _ => false,
        }
    }

    /// Whether one of the whole numbers in a name is this position.
    fn is_in(self, name: &str) -> bool {
        let numbers = NUMBER.find_iter(name).filter_map(|number| number.as_str().trim_start_matches('-').parse().ok());
        numbers.into_iter().any(|number: u64| match self {
            Self::Step(step) => number == step,
            Self::Epoch(epoch) => number as f64 == epoch,
        })
    }

    fn number(self) -> f64 {
        match self {
            Self::Epoch(epoch) => epoch,
            Self::Step(step) => step as f64,
        }
    }

    fn key(self) -> (u8, u64) {
        match self {
            Self::Epoch(epoch) => (0, epoch.to_bits()),
            Self::Step(step) => (1, step),
        }
    }
}

/// The checkpoints that a program saved together.
#[derive(Clone, Debug)]
pub struct Save<'a, T> {
    /// Its checkpoints, by path.
    pub items: Vec<&'a T>,
    /// How far the run was. None for a checkpoint that reports neither step nor epoch: it is a save of its own.
    pub position: Option<Position>,
    /// The series of its checkpoints.
    pub series: BTreeSet<Series>,
    order: u64,
    earliest: u64,
}

impl<T> Save<'_, T> {
    /// Whether this save is known to be written later.
    #[must_use]
    pub fn is_written_after(&self, other: &Self) -> bool {
        self.earliest > other.order
    }

    /// Whether this save replaces another one in a series: it was written later and is farther.
    #[must_use]
    pub fn supersedes(&self, other: &Self, series: &Series) -> bool {
        let is_past = matches!((self.position, other.position), (Some(ours), Some(theirs)) if ours.is_past(theirs));
        is_past && self.is_written_after(other) && self.series.contains(series) && other.series.contains(series)
    }
}

/// Groups checkpoints into saves, the newest first (by [`FoundCheckpoint::newer`]).
///
/// Checkpoints of one folder and one position are one save. So is a checkpoint without a position whose name has the
/// number of just one save beside it: a file that is corrupted, or that is still being written, reports nothing else.
pub fn saves<'a, T>(
    items: impl IntoIterator<Item = &'a T>,
    found: impl Fn(&T) -> &FoundCheckpoint,
) -> Vec<Save<'a, T>> {
    let mut saves: BTreeMap<(&str, (u8, u64)), Vec<&'a T>> = BTreeMap::new();
    let mut positions: BTreeMap<&str, Vec<Position>> = BTreeMap::new();
    let mut alone = Vec::new();
    // A checkpoint that is not good reports only what its name says. It is assigned after the good ones, to their
    // saves.
    let is_sure = |found: &FoundCheckpoint| found.is_good() && Position::of_checkpoint(found).is_some();
    let (sure, mut left): (Vec<&'a T>, Vec<&'a T>) = items.into_iter().partition(|item| is_sure(found(item)));
    left.sort_by(|a, b| found(a).path.cmp(&found(b).path));
    for item in sure.into_iter().chain(left) {
        let (folder, name) = split(path_of(item, &found));
        let position = Position::of_checkpoint(found(item));
        let has_save = position.is_some_and(|position| saves.contains_key(&(folder, position.key())));
        // A name may give a step where the content would give an epoch.
        let is_same = |other: &Position| position.is_none_or(|position| position.number() == other.number());
        let is_beside = |other: &&Position| other.is_in(name) && is_same(other);
        let mut beside = positions.get(folder).into_iter().flatten().filter(is_beside);
        let beside = beside.next().filter(|_| beside.next().is_none()).copied();
        match if has_save || is_sure(found(item)) { position } else { beside.or(position) } {
            Some(position) => {
                let save = saves.entry((folder, position.key())).or_default();
                if save.is_empty() {
                    positions.entry(folder).or_default().push(position);
                }
                save.push(item);
            }
            None => alone.push(vec![item]),
        }
    }
    let mut all: Vec<Save<'a, T>> = saves.into_values().chain(alone).map(|items| save(items, &found)).collect();
    let newest = |save: &Save<'a, T>| save.items.iter().map(|item| found(item)).max_by(|a, b| a.newer(b));
    all.sort_by(|a, b| match (newest(a), newest(b)) {
        (Some(a), Some(b)) => b.newer(a),
        _ => Ordering::Equal,
    });
    all
}

fn path_of<'a, T>(item: &'a T, found: &impl Fn(&T) -> &FoundCheckpoint) -> &'a str {
    &found(item).path
}

fn save<'a, T>(mut items: Vec<&'a T>, found: &impl Fn(&T) -> &FoundCheckpoint) -> Save<'a, T> {
    items.sort_by(|a, b| found(a).path.cmp(&found(b).path));
    let all = || items.iter().map(|item| found(item));
    Save {
        position: all().find_map(Position::of_checkpoint),
        series: all().map(Series::of_checkpoint).collect(),
        order: all().map(|found| found.order).max().unwrap_or_default(),
        earliest: all().map(|found| found.earliest.min(found.order)).min().unwrap_or_default(),
        items,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::found::{Depth, Format};
    use jiff::Timestamp;

    fn found(path: &str, step: Option<u64>, order: u64, modified: i64) -> FoundCheckpoint {
        FoundCheckpoint {
            folder: false,
            format: Format::Torch,
            step,
            bytes: 1,
            modified: Timestamp::from_second(modified).unwrap(),
            order,
            earliest: order,
            depth: Depth::Content,
            ..FoundCheckpoint::nothing_at(path)
        }
    }

    fn grouped(all: &[FoundCheckpoint]) -> Vec<Vec<&str>> {
        let saves = saves(all, |found| found);
        saves.iter().map(|save| save.items.iter().map(|found| found.path.as_str()).collect()).collect()
    }

    #[test]
    fn series_is_a_folder_and_a_name_pattern() {
        let kind = |path: &str, step| Series::of_checkpoint(&found(path, step, 1, 0)).0;
        for (path, step, expected) in [
            ("step-300.pt", Some(300), "/step#.pt"),
            ("run/G_300.pth", Some(300), "run/G_#.pth"),
            ("epoch=1-step=8-val_loss=-0.30.ckpt", Some(8), "/epoch=#-step=#-val_loss=#.ckpt"),
            ("fold1/step-1.pt", Some(1), "fold1/step#.pt"),
            ("1/step-1.pt", Some(1), "1/step#.pt"),
            ("run/step_300/model.pt", Some(300), "run/step_#/model.pt"),
            ("run_7/model.pt", Some(7), "run_7/model.pt"),
            ("300", Some(300), "/#"),
        ] {
            assert_eq!(kind(path, step), expected, "{path}");
        }
    }

    #[test]
    fn files_of_one_step_and_folder_are_one_save() {
        let all = [
            found("G_100.pth", Some(100), 1, 0),
            found("D_100.pth", Some(100), 1, 0),
            found("G_200.pth", Some(200), 2, 0),
            found("D_200.pth", None, 3, 0),
            found("other/G_100.pth", Some(100), 2, 0),
            found("final.pt", None, 9, 9),
        ];
        let expected: [&[&str]; 4] =
            [&["D_200.pth", "G_200.pth"], &["other/G_100.pth"], &["D_100.pth", "G_100.pth"], &["final.pt"]];
        assert_eq!(grouped(&all), expected);
        let twice = [found("a-1-2.pt", None, 1, 0), found("x-1.pt", Some(1), 1, 0), found("x-2.pt", Some(2), 1, 0)];
        assert_eq!(grouped(&twice).len(), 3, "the number of two saves says nothing");
    }

    #[test]
    fn save_supersedes_older_saves_with_a_lower_step() {
        let is_superseded = |old: FoundCheckpoint, new: FoundCheckpoint| {
            let all = [old, new];
            let saves = saves(&all, |found| found);
            let (newer, older) = (&saves[0], &saves[1]);
            let (a, b) = if std::ptr::eq(newer.items[0], &raw const all[1]) { (newer, older) } else { (older, newer) };
            b.series.iter().all(|series| a.supersedes(b, series))
        };
        let at = |step, order, modified| found(&format!("step-{step}"), Some(step), order, modified);
        assert!(is_superseded(at(1, 1, 9), at(2, 2, 0)), "times do not matter if the looks differ");
        assert!(!is_superseded(at(1, 1, 0), at(2, 1, 9)), "one look saw both first, and times say nothing");
        assert!(!is_superseded(at(9, 1, 0), at(2, 2, 9)), "the steps have begun again");
        assert!(!is_superseded(at(1, 2, 0), at(2, 1, 9)), "the one with the higher step was there before");
        let epoch = FoundCheckpoint { step: None, epoch: Some(1.0), ..at(1, 1, 0) };
        assert!(!is_superseded(epoch.clone(), at(2, 2, 0)), "an epoch is no step");
        assert!(is_superseded(epoch, FoundCheckpoint { step: None, epoch: Some(1.5), ..at(2, 2, 0) }));
        let elsewhere = FoundCheckpoint { path: "stage1/step-1".into(), ..at(1, 1, 0) };
        assert!(!is_superseded(elsewhere, at(2, 2, 0)));
    }
}
