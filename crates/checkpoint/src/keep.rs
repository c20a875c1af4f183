//! Which checkpoints may go.
//!
//! What could be needed never goes. A checkpoint counts as *proven* when every byte of it was read and found good and no
//! attempt has failed with it; only what has enough proven ones after it goes.

use crate::found::{Found, Verdict};
use crate::inventory::{Known, Stage, is_past};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::BTreeSet;

/// How long the leftovers of a dead writer stay.
const LEFTOVERS: SignedDuration = SignedDuration::from_hours(1);

/// Which way a metric is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// Less is better.
    Min,
    /// More is better.
    Max,
}

/// What is kept.
#[derive(Clone, Debug, Default)]
pub struct Keep {
    /// How many of the newest proven ones; 0 for all.
    pub retention: usize,
    /// The best by this metric, as the program names it, with or without `eval_` before it.
    pub best: Option<(String, Mode)>,
    /// What the run has gone on from, or is about to.
    pub resumed_from: Option<String>,
    /// With a backup: the paths that it has. What it has not yet stays.
    pub backup: Option<BTreeSet<String>>,
    /// Whether other jobs use the root: then nothing goes.
    pub is_shared: bool,
}

/// What is done with a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "do", content = "why")]
pub enum Fate {
    /// It stays.
    Keep(&'static str),
    /// It goes.
    Delete(&'static str),
}

/// The paths of those that go.
#[must_use]
pub fn to_delete(found: &[Known], keep: &Keep, now: Timestamp) -> Vec<String> {
    let fates = fates(found, keep, now).into_iter();
    fates.filter(|(_, fate)| matches!(fate, Fate::Delete(_))).map(|(known, _)| known.found.path.clone()).collect()
}

/// What is done with each, and why; the newest first.
#[must_use]
pub fn fates<'a>(found: &'a [Known], keep: &Keep, now: Timestamp) -> Vec<(&'a Known, Fate)> {
    let mut sorted: Vec<&Known> = found.iter().collect();
    sorted.sort_by(|a, b| b.found.newer(&a.found));
    let best = keep.best.as_ref().and_then(|(metric, mode)| best(&sorted, metric, *mode));
    let mut proven = 0;
    let mut fates = Vec::with_capacity(sorted.len());
    for known in sorted {
        let fate = fate(known, keep, best, proven, now);
        proven += usize::from(counts(known));
        fates.push((known, fate));
    }
    fates
}

/// `proven` is how many proven ones are newer.
fn fate(known: &Known, keep: &Keep, best: Option<&str>, proven: usize, now: Timestamp) -> Fate {
    let found = &known.found;
    let path = Some(found.path.as_str());
    if keep.retention == 0 {
        return Fate::Keep("all are kept");
    }
    if keep.is_shared {
        return Fate::Keep("other jobs use the same folder");
    }
    if !known.own {
        return Fate::Keep("this job has not written it");
    }
    if !is_of_a_series(found) {
        return Fate::Keep("it tells neither step nor epoch");
    }
    if found.path == "." {
        return Fate::Keep("it is the root itself");
    }
    if keep.resumed_from.as_deref() == path {
        return Fate::Keep("the run goes on from it");
    }
    if best == path {
        return Fate::Keep("it is the best");
    }
    match (known.stage, &found.verdict) {
        (Stage::Unread, _) => Fate::Keep("it could not be looked at"),
        (Stage::Writing, _) => Fate::Keep("it is being written"),
        (Stage::Abandoned, _) | (Stage::Written, Verdict::Incomplete { .. }) => {
            if proven == 0 {
                Fate::Keep("nothing newer is proven")
            } else if !is_past(known.since, LEFTOVERS, now) || !is_past(found.modified, LEFTOVERS, now) {
                Fate::Keep("it is incomplete for less than an hour")
            } else {
                Fate::Delete("it was left incomplete")
            }
        }
        (Stage::Written, Verdict::Valid | Verdict::Complete { .. })
            if keep.backup.as_ref().is_some_and(|backup| !backup.contains(&found.path)) =>
        {
            Fate::Keep("it is not backed up yet")
        }
        (Stage::Written, _) if proven == 0 && !counts(known) => Fate::Keep("nothing newer is proven"),
        (Stage::Written, _) if proven < keep.retention => Fate::Keep("it is one of the newest"),
        (Stage::Written, Verdict::Corrupted { .. }) => {
            Fate::Delete("it is corrupted, and enough newer ones are proven")
        }
        (Stage::Written, Verdict::Valid | Verdict::Complete { .. }) => Fate::Delete("enough newer ones are proven"),
    }
}

/// Whether it is one of those that are counted.
fn counts(known: &Known) -> bool {
    known.own && known.is_proven() && is_of_a_series(&known.found)
}

/// What tells neither is perhaps the final model, or one that a program overwrites.
fn is_of_a_series(found: &Found) -> bool {
    found.step.is_some() || found.epoch.is_some()
}

/// The path of the best of this job's own good ones; of equals that of the newest.
fn best<'a>(newest_first: &[&'a Known], metric: &str, mode: Mode) -> Option<&'a str> {
    let value = |known: &Known| {
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
    use crate::found::{Depth, Format};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

    /// An own one, proven, long ago.
    fn known(step: u64) -> Known {
        let then = NOW - SignedDuration::from_hours(24) + SignedDuration::from_secs(step as i64);
        Known {
            found: Found {
                path: format!("step-{step}"),
                folder: true,
                format: Format::Marked,
                step: Some(step),
                epoch: None,
                metrics: BTreeMap::new(),
                bytes: 1,
                modified: then,
                order: 0,
                verdict: Verdict::Valid,
                depth: Depth::Content,
                members: Vec::new(),
            },
            stage: Stage::Written,
            own: true,
            since: then,
            failed_starts: 0,
            crc32c: None,
        }
    }

    fn with(step: u64, change: impl FnOnce(&mut Known)) -> Known {
        let mut known = known(step);
        change(&mut known);
        known
    }

    fn deleted(found: &[Known], keep: &Keep) -> Vec<String> {
        to_delete(found, keep, NOW)
    }

    fn newest(retention: usize) -> Keep {
        Keep { retention, ..Keep::default() }
    }

    #[test]
    fn the_newest_are_kept() {
        let found: Vec<Known> = (1..=5).map(known).collect();
        assert_eq!(deleted(&found, &newest(2)), ["step-3", "step-2", "step-1"]);
        assert_eq!(deleted(&found, &newest(5)), [""; 0]);
        assert_eq!(deleted(&found, &newest(0)), [""; 0]);
        assert_eq!(deleted(&found, &Keep { is_shared: true, ..newest(1) }), [""; 0]);
    }

    #[test]
    fn nothing_goes_for_one_that_is_not_proven() {
        let unproven: [fn(&mut Known); 4] = [
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
    fn what_is_corrupted_goes_with_those_beside_it() {
        let bad = |step| {
            with(step, |known| known.found.verdict = Verdict::Corrupted { file: String::new(), why: String::new() })
        };
        assert_eq!(deleted(&[known(1), bad(2), known(3)], &newest(2)), [""; 0]);
        assert_eq!(deleted(&[known(1), bad(2), known(3), known(4)], &newest(2)), ["step-2", "step-1"]);
        assert_eq!(deleted(&[bad(1), bad(2)], &newest(1)), [""; 0]);
    }

    #[test]
    fn leftovers_go_after_an_hour() {
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
    fn a_model_without_a_step_stays() {
        let last = with(1, |known| known.found.step = None);
        assert_eq!(deleted(&[last, known(2), known(3)], &newest(1)), ["step-2"]);
        let root = with(1, |known| known.found.path = ".".into());
        assert_eq!(deleted(&[root, known(2)], &newest(1)), [""; 0]);
    }

    #[test]
    fn the_best_is_kept() {
        let with_loss = |step, loss: f64| with(step, |known| _ = known.found.metrics.insert("eval_loss".into(), loss));
        let found = [with_loss(1, 0.3), with_loss(2, 0.1), with_loss(3, f64::NAN), with_loss(4, 0.2), known(5)];
        let best = |mode| Keep { best: Some(("loss".into(), mode)), ..newest(1) };
        assert_eq!(deleted(&found, &best(Mode::Min)), ["step-4", "step-3", "step-1"]);
        assert_eq!(deleted(&found, &best(Mode::Max)), ["step-4", "step-3", "step-2"]);
    }

    fn any_known() -> impl Strategy<Value = Known> {
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
        let parts = (0..8u64, prop::option::weighted(0.9, 0..8u64), verdict, own, deep, 0..3u32, loss, -7200..7200i64);
        parts.prop_map(|(id, step, (verdict, stage), own, deep, failed, loss, age)| {
            with(id, |known| {
                known.found.step = step;
                (known.found.verdict, known.stage, known.own) = (verdict, stage, own);
                known.found.depth = if deep { Depth::Content } else { Depth::Structure };
                known.failed_starts = failed.saturating_sub(1);
                known.since = NOW - SignedDuration::from_secs(age);
                known.found.modified = known.since;
                known.found.metrics.extend(loss.map(|loss| ("loss".to_owned(), loss)));
            })
        })
    }

    fn any_found() -> impl Strategy<Value = Vec<Known>> {
        proptest::collection::vec(any_known(), 0..12).prop_map(|found| {
            let by_path: BTreeMap<String, Known> = found.into_iter().map(|k| (k.found.path.clone(), k)).collect();
            by_path.into_values().collect()
        })
    }

    fn any_keep() -> impl Strategy<Value = Keep> {
        let best = prop::option::of(prop_oneof![Just(Mode::Min), Just(Mode::Max)]);
        let path = (0..8u64).prop_map(|id| format!("step-{id}"));
        let backup = prop::option::of(proptest::collection::btree_set(path.clone(), 0..8));
        (0..4usize, best, prop::option::of(path), backup, prop::bool::weighted(0.1)).prop_map(
            |(retention, best, resumed_from, backup, is_shared)| Keep {
                retention,
                best: best.map(|mode| ("loss".to_owned(), mode)),
                resumed_from,
                backup,
                is_shared,
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]
        #[test]
        fn what_could_be_needed_stays((found, shuffled) in any_found().prop_flat_map(|found| (Just(found.clone()), Just(found).prop_shuffle())), keep in any_keep()) {
            let gone = deleted(&found, &keep);
            prop_assert_eq!(&gone, &deleted(&shuffled, &keep), "the order matters");
            let left: Vec<Known> = found.iter().filter(|k| !gone.contains(&k.found.path)).cloned().collect();
            prop_assert_eq!(deleted(&left, &keep), [""; 0], "done again, it does more");
            if keep.is_shared || keep.retention == 0 {
                prop_assert_eq!(&gone, &[""; 0]);
            }
            let mut newest_first: Vec<&Known> = found.iter().collect();
            newest_first.sort_by(|a, b| b.found.newer(&a.found));
            let newest_proven = newest_first.iter().find(|k| k.own && k.is_proven() && k.found.step.is_some());
            for known in &found {
                let is_gone = gone.contains(&known.found.path);
                if known.own && known.found.is_good() && newest_proven.is_none_or(|newest| known.found.newer(&newest.found).is_ge()) {
                    prop_assert!(!is_gone, "as new as the newest proven one");
                }
                if !known.own || Some(&known.found.path) == keep.resumed_from.as_ref() || matches!(known.stage, Stage::Writing | Stage::Unread) {
                    prop_assert!(!is_gone, "not ours, in use, or unknown");
                }
                if known.found.is_good() && keep.backup.as_ref().is_some_and(|backup| !backup.contains(&known.found.path)) {
                    prop_assert!(!is_gone, "not backed up");
                }
                if known.found.step.is_none() {
                    prop_assert!(!is_gone, "without a step");
                }
            }
            if let Some((_, mode)) = &keep.best {
                let loss = |k: &&Known| k.found.metrics.get("loss").copied().filter(|loss| loss.is_finite());
                let values = |found: &[Known]| -> Vec<f64> {
                    found.iter().filter(|k| k.own && k.found.is_good()).filter_map(|k| loss(&k)).collect()
                };
                let best = |values: Vec<f64>| values.into_iter().reduce(|a, b| if *mode == Mode::Min { a.min(b) } else { a.max(b) });
                prop_assert_eq!(best(values(&found)), best(values(&left)), "the best is gone");
            }
            if !keep.is_shared && keep.retention > 0 && keep.best.is_none() && keep.backup.is_none() {
                let counted = |k: &&Known| k.own && k.is_proven() && k.found.step.is_some() && Some(&k.found.path) != keep.resumed_from.as_ref();
                prop_assert!(left.iter().filter(counted).count() <= keep.retention, "more than are to be kept");
            }
        }
    }
}
