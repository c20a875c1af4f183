//! Which checkpoints may be deleted: the rules K of docs/checkpoints.md, in the order in which they decide.
//!
//! A checkpoint counts as *proven* when every byte of it was read and found good and no attempt has failed with it. A save
//! is deleted only if enough proven saves of its series supersede it ([`crate::series`]), and only as a whole.

use crate::found::Verdict;
use crate::inventory::{KnownCheckpoint, Stage, is_past};
use crate::series::{Save, Series, saves};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// How long the leftovers of a dead writer are kept.
const LEFTOVERS: SignedDuration = SignedDuration::from_hours(1);

/// Whether lower or higher values of a metric are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// Lower values are better.
    Min,
    /// Higher values are better.
    Max,
}

/// Which checkpoints are kept.
#[derive(Clone, Debug, Default)]
pub struct RetentionRules {
    /// How many of the newest proven saves of each series; 0 for all.
    pub retention: usize,
    /// The best by this metric, as the program names it, with or without `eval_` before it.
    pub best: Option<(String, Mode)>,
    /// The checkpoint that the run has resumed from, or is about to resume from.
    pub resumed_from: Option<String>,
    /// Paths of checkpoints that a store is still to get from here.
    pub to_copy: BTreeSet<String>,
    /// Whether other jobs use the root. If so, nothing is deleted.
    pub is_shared: bool,
}

/// A rule of docs/checkpoints.md that has decided about a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Rule {
    /// `retention` is 0.
    KeepAll,
    /// Other jobs use the folder.
    SharedFolder,
    /// Another job or a person has written it.
    NotOwn,
    /// Its position in the run is unknown.
    NoPosition,
    /// It is the root itself.
    Root,
    /// The run resumed from it.
    ResumedFrom,
    /// The best by `keepBest`.
    Best,
    /// The program itself will load it.
    Needed,
    /// The scan could not read it.
    Unread,
    /// It is being written.
    Writing,
    /// A store is still to get it.
    NotCopied,
    /// It is incomplete, but not for long.
    YoungLeftover,
    /// Nothing proven supersedes it.
    Newest,
    /// Fewer than `retention` proven saves supersede it.
    AmongNewest,
    /// Another file of its save stays.
    SameSave,
    /// Deleted: incomplete for an hour, and superseded.
    Leftover,
    /// Deleted: corrupted, and superseded by enough.
    Corrupted,
    /// Deleted: superseded by enough.
    Superseded,
}

impl Rule {
    /// Its id in docs/checkpoints.md.
    #[must_use]
    pub fn id(self) -> &'static str {
        match self {
            Self::KeepAll => "K1",
            Self::SharedFolder => "K2",
            Self::NotOwn => "K3",
            Self::NoPosition | Self::Root => "K4",
            Self::ResumedFrom => "K5",
            Self::Best => "K6",
            Self::Needed => "K7",
            Self::Unread | Self::Writing => "K8",
            Self::NotCopied => "K9",
            Self::YoungLeftover | Self::Leftover => "K10",
            Self::Newest => "K11",
            Self::AmongNewest | Self::Corrupted | Self::Superseded => "K12",
            Self::SameSave => "K13",
        }
    }

    /// The reason, for people.
    #[must_use]
    pub fn why(self) -> &'static str {
        match self {
            Self::KeepAll => "all are kept",
            Self::SharedFolder => "other jobs use the same folder",
            Self::NotOwn => "this job has not written it",
            Self::NoPosition => "it reports neither step nor epoch",
            Self::Root => "it is the root itself",
            Self::ResumedFrom => "the run resumed from it",
            Self::Best => "it is the best",
            Self::Needed => "the program will load it (its best or last checkpoint)",
            Self::Unread => "it could not be read",
            Self::Writing => "it is being written",
            Self::NotCopied => "it is not copied yet",
            Self::YoungLeftover => "it has been incomplete for less than an hour",
            Self::Newest => "no later checkpoint of its series is proven",
            Self::AmongNewest => "it is one of the newest of its series",
            Self::SameSave => "another file of the same save is kept",
            Self::Leftover => "it was left incomplete",
            Self::Corrupted => "it is corrupted, and enough later ones are proven",
            Self::Superseded => "enough later ones are proven",
        }
    }
}

/// What is done with a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "do", content = "why")]
pub enum RetentionDecision {
    /// It stays.
    Keep(Rule),
    /// It is deleted, with all files of its save.
    Delete(Rule),
}

/// The saves that are deleted, each with all its checkpoints.
#[must_use]
pub fn saves_to_delete<'a>(
    found: &'a [KnownCheckpoint],
    keep: &RetentionRules,
    now: Timestamp,
) -> Vec<Vec<&'a KnownCheckpoint>> {
    let decided = decide(found, keep, now).into_iter();
    let deleted = decided.filter(|save| save.iter().all(|(_, fate)| matches!(fate, RetentionDecision::Delete(_))));
    deleted.map(|save| save.into_iter().map(|(known, _)| known).collect()).collect()
}

/// The paths of the deleted checkpoints.
#[must_use]
pub fn to_delete(found: &[KnownCheckpoint], keep: &RetentionRules, now: Timestamp) -> Vec<String> {
    saves_to_delete(found, keep, now).into_iter().flatten().map(|known| known.found.path.clone()).collect()
}

/// What is done with each, and by which rule; the newest save first.
#[must_use]
pub fn decide_all<'a>(
    found: &'a [KnownCheckpoint],
    keep: &RetentionRules,
    now: Timestamp,
) -> Vec<(&'a KnownCheckpoint, RetentionDecision)> {
    decide(found, keep, now).into_iter().flatten().collect()
}

/// The same, save by save. If any checkpoint of a save stays, all of them stay.
pub(crate) fn decide<'a>(
    found: &'a [KnownCheckpoint],
    keep: &RetentionRules,
    now: Timestamp,
) -> Vec<Vec<(&'a KnownCheckpoint, RetentionDecision)>> {
    let saves = saves(found, |known| &known.found);
    let newest_first: Vec<&KnownCheckpoint> = saves.iter().flat_map(|save| save.items.iter().copied()).collect();
    let best = keep.best.as_ref().and_then(|(metric, mode)| best(&newest_first, metric, *mode));
    let mut proven: BTreeMap<&Series, Vec<&Save<'a, KnownCheckpoint>>> = BTreeMap::new();
    for save in saves.iter().filter(|save| is_proven(save)) {
        for series in &save.series {
            proven.entry(series).or_default().push(save);
        }
    }
    // How many proven saves of its series supersede each checkpoint; more than enough are not counted.
    let superseding = |save: &Save<'a, KnownCheckpoint>, known: &KnownCheckpoint| {
        let series = Series::of_checkpoint(&known.found);
        let all = proven.get(&series).into_iter().flatten();
        all.filter(|other| other.supersedes(save, &series)).take(keep.retention.max(1)).count()
    };
    let counted: Vec<Vec<usize>> =
        saves.iter().map(|save| save.items.iter().map(|known| superseding(save, known)).collect()).collect();
    let is_among_newest = |counts: &[usize]| counts.iter().any(|count| *count < keep.retention);
    let newest = saves.iter().zip(&counted).filter(|(_, counts)| is_among_newest(counts));
    let needed: Vec<&KnownCheckpoint> = newest.flat_map(|(save, _)| save.items.iter().copied()).collect();
    let needed = needed_paths(&needed, found);

    let context = Context { keep, best, needed, now };
    saves
        .iter()
        .zip(counted)
        .map(|(save, counts)| {
            let fates: Vec<RetentionDecision> =
                save.items.iter().zip(counts).map(|(known, count)| context.decide(save, known, count)).collect();
            let stays = fates.iter().any(|fate| matches!(fate, RetentionDecision::Keep(_)));
            let joint = |fate| {
                if stays && matches!(fate, RetentionDecision::Delete(_)) {
                    RetentionDecision::Keep(Rule::SameSave)
                } else {
                    fate
                }
            };
            save.items.iter().copied().zip(fates.into_iter().map(joint)).collect()
        })
        .collect()
}

/// By what is decided about one checkpoint.
struct Context<'a> {
    keep: &'a RetentionRules,
    best: Option<&'a str>,
    needed: BTreeSet<&'a str>,
    now: Timestamp,
}

impl Context<'_> {
    /// `superseding` is how many proven saves supersede it.
    fn decide(
        &self,
        save: &Save<'_, KnownCheckpoint>,
        known: &KnownCheckpoint,
        superseding: usize,
    ) -> RetentionDecision {
        let (found, path) = (&known.found, Some(known.found.path.as_str()));
        let is_old = |time| is_past(time, LEFTOVERS, self.now);
        let kept = [
            (self.keep.retention == 0, Rule::KeepAll),
            (self.keep.is_shared, Rule::SharedFolder),
            (!known.own, Rule::NotOwn),
            (save.position.is_none(), Rule::NoPosition),
            (found.path == ".", Rule::Root),
            (self.keep.resumed_from.as_deref() == path, Rule::ResumedFrom),
            (self.best == path, Rule::Best),
            (self.needed.contains(found.path.as_str()), Rule::Needed),
            (known.stage == Stage::Unread, Rule::Unread),
            (known.stage == Stage::Writing, Rule::Writing),
        ];
        if let Some((_, rule)) = kept.into_iter().find(|(is, _)| *is) {
            return RetentionDecision::Keep(rule);
        }
        let is_incomplete = known.stage == Stage::Abandoned || matches!(found.verdict, Verdict::Incomplete { .. });
        match superseding {
            _ if found.is_good() && self.keep.to_copy.contains(&found.path) => RetentionDecision::Keep(Rule::NotCopied),
            0 => RetentionDecision::Keep(Rule::Newest),
            _ if is_incomplete && !(is_old(known.since) && is_old(found.modified)) => {
                RetentionDecision::Keep(Rule::YoungLeftover)
            }
            _ if is_incomplete => RetentionDecision::Delete(Rule::Leftover),
            count if count < self.keep.retention => RetentionDecision::Keep(Rule::AmongNewest),
            _ if found.is_good() => RetentionDecision::Delete(Rule::Superseded),
            _ => RetentionDecision::Delete(Rule::Corrupted),
        }
    }
}

/// Whether a save is counted: all of it is this job's own, and proven.
fn is_proven(save: &Save<'_, KnownCheckpoint>) -> bool {
    save.position.is_some() && save.items.iter().all(|known| known.own && known.is_proven())
}

/// Which of `found` the programs that wrote `newest` will load again. They name a path as they see it: absolute, or
/// relative to their working directory.
fn needed_paths<'a>(newest: &[&KnownCheckpoint], found: &'a [KnownCheckpoint]) -> BTreeSet<&'a str> {
    let mut needed = BTreeSet::new();
    let names: BTreeSet<(&str, &str)> = newest
        .iter()
        .flat_map(|known| known.found.needs.iter().map(|path| (folder(&known.found.path), path.trim_end_matches('/'))))
        .collect();
    for (beside, path) in names {
        for known in found {
            let here = known.found.path.as_str();
            let is_below = path.strip_suffix(here).is_some_and(|rest| rest.is_empty() || rest.ends_with('/'));
            let is_beside = folder(here) == beside && base(here) == base(path);
            if is_below || is_beside {
                needed.insert(here);
            }
        }
    }
    needed
}

fn folder(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

fn base(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, base)| base)
}

/// The path of the best of this job's own good checkpoints. Among equals it is the newest.
fn best<'a>(newest_first: &[&'a KnownCheckpoint], metric: &str, mode: Mode) -> Option<&'a str> {
    let value = |known: &KnownCheckpoint| {
        let metrics = &known.found.metrics;
        let value = metrics.get(metric).or_else(|| metrics.get(&format!("eval_{metric}")))?;
        value.is_finite().then_some(*value)
    };
    let mut best: Option<(f64, &str)> = None;
    for known in newest_first.iter().filter(|known| known.own && known.found.is_good()) {
        let Some(value) = value(known) else { continue };
        let is_better = best.is_none_or(|(best, _)| match mode {
            Mode::Min => value.total_cmp(&best) == Ordering::Less,
            Mode::Max => value.total_cmp(&best) == Ordering::Greater,
        });
        if is_better {
            best = Some((value, &known.found.path));
        }
    }
    best.map(|(_, path)| path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::found::{Depth, Format, FoundCheckpoint};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

    /// A proven checkpoint of this job, written long ago.
    fn known(step: u64) -> KnownCheckpoint {
        let then = NOW - SignedDuration::from_hours(24) + SignedDuration::from_secs(step as i64);
        KnownCheckpoint {
            found: FoundCheckpoint {
                step: Some(step),
                bytes: 1,
                modified: then,
                order: step,
                earliest: u64::MAX,
                depth: Depth::Content,
                ..FoundCheckpoint::nothing_at(&format!("step-{step}"))
            },
            stage: Stage::Written,
            own: true,
            since: then,
            failed_starts: 0,
            crc32c: None,
        }
    }

    fn with(step: u64, change: impl FnOnce(&mut KnownCheckpoint)) -> KnownCheckpoint {
        let mut known = known(step);
        change(&mut known);
        known
    }

    fn deleted(found: &[KnownCheckpoint], keep: &RetentionRules) -> Vec<String> {
        to_delete(found, keep, NOW)
    }

    fn newest(retention: usize) -> RetentionRules {
        RetentionRules { retention, ..RetentionRules::default() }
    }

    #[test]
    fn newest_checkpoints_are_kept() {
        let found: Vec<KnownCheckpoint> = (1..=5).map(known).collect();
        assert_eq!(deleted(&found, &newest(2)), ["step-3", "step-2", "step-1"]);
        assert_eq!(deleted(&found, &newest(5)), [""; 0]);
        assert_eq!(deleted(&found, &newest(0)), [""; 0]);
        assert_eq!(deleted(&found, &RetentionRules { is_shared: true, ..newest(1) }), [""; 0]);
    }

    #[test]
    fn unproven_checkpoint_does_not_supersede_others() {
        let unproven: [fn(&mut KnownCheckpoint); 4] = [
            |known| known.found.depth = Depth::Structure,
            |known| known.failed_starts = 1,
            |known| known.found.verdict = Verdict::Corrupted { file: "model".into(), why: "is bad".into() },
            |known| known.stage = Stage::Writing,
        ];
        for change in unproven {
            let found = [known(1), with(2, change)];
            assert_eq!(deleted(&found, &newest(1)), [""; 0]);
            let found = [known(1), with(2, change), known(3)];
            assert!(deleted(&found, &newest(1)).contains(&"step-1".to_owned()));
        }
    }

    #[test]
    fn corrupted_checkpoint_is_deleted_once_superseded() {
        let bad = |step| {
            with(step, |known| known.found.verdict = Verdict::Corrupted { file: String::new(), why: String::new() })
        };
        assert_eq!(deleted(&[known(1), bad(2), known(3)], &newest(2)), [""; 0]);
        assert_eq!(deleted(&[known(1), bad(2), known(3), known(4)], &newest(2)), ["step-2", "step-1"]);
        assert_eq!(deleted(&[bad(1), bad(2)], &newest(1)), [""; 0]);
    }

    #[test]
    fn incomplete_leftovers_are_deleted_after_an_hour() {
        let left = |seconds: i64| {
            with(1, |known| {
                known.stage = Stage::Abandoned;
                known.found.verdict = Verdict::Incomplete { why: "x is missing".into() };
                known.since = NOW - SignedDuration::from_secs(seconds);
            })
        };
        assert_eq!(deleted(&[left(3600), known(2)], &newest(3)), ["step-1"]);
        assert_eq!(deleted(&[left(3599), known(2)], &newest(3)), [""; 0]);
        assert_eq!(deleted(&[left(-9999), known(2)], &newest(3)), [""; 0]);
        assert_eq!(deleted(&[left(9999)], &newest(3)), [""; 0]);
        let older = with(0, |known| known.found.verdict = Verdict::Valid);
        assert_eq!(deleted(&[older, left(9999)], &newest(3)), [""; 0]);
        let writing = with(1, |known| {
            known.stage = Stage::Writing;
            known.found.verdict = Verdict::Incomplete { why: "x is missing".into() };
        });
        assert_eq!(deleted(&[writing, known(2)], &newest(1)), [""; 0]);
    }

    #[test]
    fn checkpoint_without_a_step_is_kept() {
        let last = with(1, |known| known.found.step = None);
        assert_eq!(deleted(&[last, known(2), known(3)], &newest(1)), ["step-2"]);
        let root = with(1, |known| known.found.path = ".".into());
        assert_eq!(deleted(&[root, known(2)], &newest(1)), [""; 0]);
    }

    #[test]
    fn best_checkpoint_is_kept() {
        let with_loss = |step, loss: f64| with(step, |known| _ = known.found.metrics.insert("eval_loss".into(), loss));
        let found = [with_loss(1, 0.3), with_loss(2, 0.1), with_loss(3, f64::NAN), with_loss(4, 0.2), known(5)];
        let best = |mode| RetentionRules { best: Some(("loss".into(), mode)), ..newest(1) };
        assert_eq!(deleted(&found, &best(Mode::Min)), ["step-4", "step-3", "step-1"]);
        assert_eq!(deleted(&found, &best(Mode::Max)), ["step-4", "step-3", "step-2"]);
    }

    #[test]
    fn retention_applies_to_each_series() {
        let at = |path: &str, step: u64, order: u64| {
            with(step, |known| (known.found.path, known.found.order) = (path.to_owned(), order))
        };
        // A second stage begins its steps again, in a folder of its own.
        let mut all: Vec<KnownCheckpoint> = (1..=4).map(|n| at(&format!("sft/step-{n}000"), n * 1000, n)).collect();
        all.push(at("dpo/step-100", 100, 5));
        assert_eq!(deleted(&all, &newest(3)), ["sft/step-1000"]);
        all.extend((2..=4).map(|n| at(&format!("dpo/step-{n}00"), n * 100, 4 + n)));
        assert_eq!(deleted(&all, &newest(3)), ["dpo/step-100", "sft/step-1000"]);
        // Epochs beside steps.
        let mut all: Vec<KnownCheckpoint> = (1..=3).map(known).collect();
        let epoch = |known: &mut KnownCheckpoint| {
            (known.found.path, known.found.step) = ("epoch_12.pt".into(), None);
            (known.found.epoch, known.found.order) = (Some(12.0), 1);
        };
        all.push(with(9, epoch));
        assert_eq!(deleted(&all, &newest(1)), ["step-2", "step-1"]);
    }

    #[test]
    fn retention_keeps_both_runs_when_steps_restart() {
        let again = |step: u64, order: u64| with(step, |known| known.found.order = order);
        let mut all = vec![again(8000, 1), again(8500, 2), again(9000, 3)];
        all.extend([again(100, 4), again(200, 5), again(300, 6)]);
        assert_eq!(deleted(&all, &newest(2)), ["step-100", "step-8000"]);
        // The new run passes the old one: nothing of the old one is needed any more.
        all.extend([again(9500, 7), again(9600, 8)]);
        assert_eq!(
            deleted(&all, &newest(2)),
            ["step-300", "step-200", "step-100", "step-9000", "step-8500", "step-8000"]
        );
    }

    #[test]
    fn times_of_copied_files_do_not_cause_deletion() {
        let copied = |step: u64, hours: i64| {
            with(step, |known| {
                known.found.order = 1;
                known.found.modified = NOW - SignedDuration::from_hours(hours);
            })
        };
        assert_eq!(deleted(&[copied(1, 1), copied(2, 5), copied(3, 9)], &newest(1)), [""; 0]);
        assert_eq!(deleted(&[copied(1, 9), copied(2, 5), copied(3, 1)], &newest(1)), [""; 0]);
        let late = with(4, |known| known.found.modified = NOW - SignedDuration::from_hours(99));
        assert_eq!(deleted(&[copied(3, 1), late], &newest(1)), ["step-3"], "seen later, whatever its time");
    }

    #[test]
    fn files_of_one_save_are_kept_or_deleted_together() {
        let pair = |step: u64| ["D", "G"].map(|it| with(step, |known| known.found.path = format!("{it}_{step}.pth")));
        let mut all: Vec<KnownCheckpoint> = (1..=3).flat_map(pair).collect();
        assert_eq!(deleted(&all, &newest(2)), ["D_1.pth", "G_1.pth"]);
        // Half of the newest save is not proven yet, so that it supersedes nothing.
        all[5].found.depth = Depth::Structure;
        assert_eq!(deleted(&all, &newest(2)), [""; 0]);
        // One file of a save is not this job's own, or needed: the other stays with it.
        let mut all: Vec<KnownCheckpoint> = (1..=3).flat_map(pair).collect();
        all[0].own = false;
        assert_eq!(deleted(&all, &newest(1)), ["D_2.pth", "G_2.pth"]);
        let fates = decide_all(&all, &newest(1), NOW);
        let fate = |path: &str| fates.iter().find(|(known, _)| known.found.path == path).unwrap().1;
        assert_eq!(fate("G_1.pth"), RetentionDecision::Keep(Rule::SameSave));
        assert_eq!(fate("D_1.pth"), RetentionDecision::Keep(Rule::NotOwn));
    }

    #[test]
    fn checkpoints_referenced_by_kept_ones_are_kept() {
        let state = |step: u64, best: u64| {
            with(step, |known| {
                known.found.path = format!("out/checkpoint-{step}");
                known.found.needs = vec![format!("/checkpoints/out/checkpoint-{best}")];
            })
        };
        let mut all = [state(100, 100), state(200, 200), state(300, 200), state(400, 200)];
        assert_eq!(deleted(&all, &newest(1)), ["out/checkpoint-300", "out/checkpoint-100"]);
        // Relative to the working directory, or in another folder than the state.
        for known in &mut all[2..] {
            known.found.needs = vec!["./elsewhere/out/checkpoint-200".to_owned()];
        }
        assert_eq!(deleted(&all, &newest(1)), ["out/checkpoint-300", "out/checkpoint-100"]);
        all[1].found.path = "best/epoch=1.ckpt".into();
        all[3].found.needs = vec!["/checkpoints/best/epoch=1.ckpt".to_owned()];
        assert_eq!(deleted(&all, &newest(1)), ["out/checkpoint-300", "out/checkpoint-100"]);
    }

    /// Keras' `BackupAndRestore` of before Keras 3 has a manager of its own: `chief/ckpt-N`, and keeps the newest alone.
    #[test]
    fn keras_backup_is_kept() {
        let backup = |path: &str, step, order| {
            with(step, |known| {
                (known.found.path, known.found.order) = (path.to_owned(), order);
                known.found.format = Format::Tensorflow;
            })
        };
        let models = (1..=4).map(|n| backup(&format!("model-{n}.keras"), n * 1000, 10 + n));
        let mut all: Vec<KnownCheckpoint> = models.collect();
        all.push(backup("backup/chief/ckpt-2", 2, 1));
        assert_eq!(deleted(&all, &newest(1)), ["model-3.keras", "model-2.keras", "model-1.keras"]);
    }

    fn any_known() -> impl Strategy<Value = KnownCheckpoint> {
        let verdict = prop_oneof![
            2 => Just((Verdict::Valid, Stage::Written)),
            2 => Just((Verdict::Complete { why: "no checksum".into() }, Stage::Written)),
            1 => Just((Verdict::Corrupted { file: "f".into(), why: "w".into() }, Stage::Written)),
            1 => Just((Verdict::Incomplete { why: "w".into() }, Stage::Writing)),
            1 => Just((Verdict::Incomplete { why: "w".into() }, Stage::Abandoned)),
            1 => Just((Verdict::Incomplete { why: "w".into() }, Stage::Unread)),
        ];
        let loss = prop_oneof![Just(None), Just(Some(f64::NAN)), (0..4u8).prop_map(|loss| Some(f64::from(loss)))];
        let own = prop::bool::weighted(0.8);
        let deep = prop::bool::weighted(0.8);
        let step = (prop::option::weighted(0.9, 0..8u64), 0..4u64);
        let parts = (0..8u64, step, verdict, own, deep, 0..3u32, loss, -7200..7200i64);
        parts.prop_map(|(id, (step, order), (verdict, stage), own, deep, failed, loss, age)| {
            with(id, |known| {
                known.found.step = step;
                if step.is_none() {
                    known.found.path = format!("final-{}", ["a", "b", "c", "d", "e", "f", "g", "h"][id as usize]);
                }
                (known.found.verdict, known.stage, known.own) = (verdict, stage, own);
                known.found.depth = if deep { Depth::Content } else { Depth::Structure };
                known.failed_starts = failed.saturating_sub(1);
                known.since = NOW - SignedDuration::from_secs(age);
                known.found.modified = known.since;
                known.found.order = order;
                known.found.metrics.extend(loss.map(|loss| ("loss".to_owned(), loss)));
            })
        })
    }

    fn any_found() -> impl Strategy<Value = Vec<KnownCheckpoint>> {
        proptest::collection::vec(any_known(), 0..12).prop_map(|found| {
            let by_path: BTreeMap<String, KnownCheckpoint> =
                found.into_iter().map(|k| (k.found.path.clone(), k)).collect();
            by_path.into_values().collect()
        })
    }

    fn any_keep() -> impl Strategy<Value = RetentionRules> {
        let best = prop::option::of(prop_oneof![Just(Mode::Min), Just(Mode::Max)]);
        let path = (0..8u64).prop_map(|id| format!("step-{id}"));
        let to_copy = proptest::collection::btree_set(path.clone(), 0..8);
        (0..4usize, best, prop::option::of(path), to_copy, prop::bool::weighted(0.1)).prop_map(
            |(retention, best, resumed_from, to_copy, is_shared)| RetentionRules {
                retention,
                best: best.map(|mode| ("loss".to_owned(), mode)),
                resumed_from,
                to_copy,
                is_shared,
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]
        #[test]
        fn checkpoints_that_may_be_needed_are_never_deleted((found, shuffled) in any_found().prop_flat_map(|found| (Just(found.clone()), Just(found).prop_shuffle())), keep in any_keep()) {
            let gone = deleted(&found, &keep);
            prop_assert_eq!(&gone, &deleted(&shuffled, &keep), "the order matters");
            let left: Vec<KnownCheckpoint> = found.iter().filter(|k| !gone.contains(&k.found.path)).cloned().collect();
            prop_assert_eq!(deleted(&left, &keep), [""; 0], "done again, it does more");
            if keep.is_shared || keep.retention == 0 {
                prop_assert_eq!(&gone, &[""; 0]);
            }
            // The oracle's own words for "supersedes": one series, for all paths are step-#; a save is all of one step.
            let save = |step: u64| found.iter().filter(move |k| k.found.step == Some(step));
            let written = |step: u64| save(step).map(|k| k.found.order).max();
            let is_proven = |step: u64| save(step).all(|k| k.own && k.is_proven());
            let superseding = |step: u64| {
                let later = (step + 1..8).filter(|later| written(*later).is_some() && is_proven(*later));
                later.filter(|later| written(*later) > written(step)).count()
            };
            for known in &found {
                let is_gone = gone.contains(&known.found.path);
                let Some(step) = known.found.step else {
                    prop_assert!(!is_gone, "without a step");
                    continue;
                };
                let needed = if matches!(known.found.verdict, Verdict::Incomplete { .. }) { 1 } else { keep.retention };
                if is_gone {
                    prop_assert!(superseding(step) >= needed.max(1), "not superseded");
                    prop_assert!(save(step).all(|k| gone.contains(&k.found.path)), "half of a save is gone");
                }
                if !known.own || Some(&known.found.path) == keep.resumed_from.as_ref() || matches!(known.stage, Stage::Writing | Stage::Unread) {
                    prop_assert!(!is_gone, "not ours, in use, or unknown");
                }
                if known.found.is_good() && keep.to_copy.contains(&known.found.path) {
                    prop_assert!(!is_gone, "not copied yet");
                }
            }
            if let Some((_, mode)) = &keep.best {
                let loss = |k: &&KnownCheckpoint| k.found.metrics.get("loss").copied().filter(|loss| loss.is_finite());
                let values = |found: &[KnownCheckpoint]| -> Vec<f64> {
                    found.iter().filter(|k| k.own && k.found.is_good()).filter_map(|k| loss(&k)).collect()
                };
                let best = |values: Vec<f64>| values.into_iter().reduce(|a, b| if *mode == Mode::Min { a.min(b) } else { a.max(b) });
                prop_assert_eq!(best(values(&found)), best(values(&left)), "the best is gone");
            }
        }
    }
}
