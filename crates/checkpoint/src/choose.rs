//! Which checkpoint an attempt goes on from.

use crate::found::{Found, Verdict};
use crate::inventory::{Known, Stage};
use crate::wording::shown;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;

/// A checkpoint with which that many attempts have failed before their first progress is suspected.
const SUSPECT: u32 = 2;

/// Where a checkpoint is. The volume is preferred.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Place {
    /// In a store, by the name or URI that people know it by.
    Store(String),
    /// On the volume.
    Volume,
}

/// One that could be gone on from.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// What it is.
    pub found: Found,
    /// Where it is.
    pub place: Place,
    /// Attempts that began with it and failed before their first progress.
    pub failed_starts: u32,
    /// Why it can't be told whether it is good, if it can't.
    pub unread: bool,
}

/// One that is not taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passed {
    /// Relative to the root.
    pub path: String,
    /// Where it is.
    pub place: Place,
    /// Why not.
    pub why: String,
}

/// What is gone on from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// None to begin anew.
    pub taken: Option<(Found, Place)>,
    /// Those that were newer, the newest first.
    pub passed: Vec<Passed>,
}

impl Candidate {
    /// One on the volume.
    #[must_use]
    pub fn on_volume(known: &Known) -> Self {
        Self {
            found: known.found.clone(),
            place: Place::Volume,
            failed_starts: known.failed_starts,
            unread: known.stage == Stage::Unread,
        }
    }

    /// One in a store: what has a manifest there was good. `failed_starts` are those of the same checkpoint on the volume.
    #[must_use]
    pub fn in_store(found: Found, store: &str, failed_starts: u32) -> Self {
        Self { found, place: Place::Store(store.to_owned()), failed_starts, unread: false }
    }

    /// As [`Found::newer`]; of the same step on the volume goes before in a store.
    fn better(&self, other: &Self) -> Ordering {
        let (ours, theirs) = (&self.found, &other.found);
        let epoch = |found: &Found| found.epoch.unwrap_or(f64::NEG_INFINITY);
        let is_told = |found: &Found| found.step.is_some() || found.epoch.is_some();
        let place = |it: &Self| is_told(&it.found).then_some(&it.place).cloned();
        (ours.step.cmp(&theirs.step))
            .then(epoch(ours).total_cmp(&epoch(theirs)))
            .then_with(|| place(self).cmp(&place(other)))
            .then(ours.modified.cmp(&theirs.modified))
            .then_with(|| self.place.cmp(&other.place))
            .then_with(|| ours.path.cmp(&theirs.path))
    }

    /// Why it can't be taken, as far as is known.
    fn fault(&self) -> Option<String> {
        match &self.found.verdict {
            Verdict::Incomplete { why } if self.unread => Some(why.clone()),
            Verdict::Incomplete { why } => Some(format!("it is incomplete: {why}")),
            Verdict::Corrupted { file, why } if file.is_empty() => Some(format!("it is corrupted: {why}")),
            Verdict::Corrupted { file, why } => Some(format!("it is corrupted: {}: {why}", shown(file))),
            Verdict::Valid | Verdict::Complete { .. } if self.failed_starts >= SUSPECT => {
                Some(format!("{} attempts that began with it failed before their first progress", self.failed_starts))
            }
            Verdict::Valid | Verdict::Complete { .. } => None,
        }
    }
}

/// The newest that is good. `proof` is asked about one after the other until it agrees to one: whoever can reads every byte
/// there ([`crate::inventory::Inventory::verify`]), and says in words why not.
pub fn choose(mut candidates: Vec<Candidate>, mut proof: impl FnMut(&Candidate) -> Result<(), String>) -> Choice {
    candidates.sort_by(|a, b| b.better(a));
    let mut passed = Vec::new();
    for candidate in candidates {
        match candidate.fault().map_or_else(|| proof(&candidate), Err) {
            Ok(()) => return Choice { taken: Some((candidate.found, candidate.place)), passed },
            Err(why) => passed.push(Passed { path: candidate.found.path, place: candidate.place, why }),
        }
    }
    Choice { taken: None, passed }
}

/// The choice in words, a line each.
#[must_use]
pub fn explain(choice: &Choice) -> Vec<String> {
    let at = |place: &Place| match place {
        Place::Volume => String::new(),
        Place::Store(store) => format!(" in {}", shown(store)),
    };
    let passed = choice.passed.iter();
    let mut lines: Vec<String> =
        passed.map(|it| format!("{}{}: passed over: {}", shown(&it.path), at(&it.place), shown(&it.why))).collect();
    lines.push(match &choice.taken {
        Some((found, place)) if lines.is_empty() => format!("{}{}: taken: the newest", shown(&found.path), at(place)),
        Some((found, place)) => format!("{}{}: taken: the newest that is good", shown(&found.path), at(place)),
        None if lines.is_empty() => "there is no checkpoint: the run begins anew".to_owned(),
        None => "no checkpoint is good: the run begins anew".to_owned(),
    });
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::found::{Depth, Format};
    use jiff::Timestamp;
    use proptest::prelude::*;

    fn found(step: Option<u64>, modified: i64) -> Found {
        Found {
            path: step.map_or_else(|| format!("model-{modified}"), |step| format!("checkpoint-{step}")),
            folder: true,
            format: Format::HuggingFace,
            step,
            epoch: None,
            metrics: Default::default(),
            bytes: 1,
            modified: Timestamp::from_second(modified).unwrap(),
            order: 0,
            earliest: 0,
            verdict: Verdict::Valid,
            depth: Depth::Structure,
            members: Vec::new(),
            needs: Vec::new(),
        }
    }

    fn volume(found: Found) -> Candidate {
        Candidate { found, place: Place::Volume, failed_starts: 0, unread: false }
    }

    fn bad(step: u64, verdict: Verdict) -> Candidate {
        volume(Found { verdict, ..found(Some(step), 0) })
    }

    #[test]
    fn the_newest_that_is_good_is_taken() {
        let missing = "model-00002-of-00003.safetensors is missing".to_owned();
        let choice = choose(
            vec![
                volume(found(Some(100), 0)),
                volume(found(None, 1_000_000)),
                bad(500, Verdict::Incomplete { why: missing }),
                bad(400, Verdict::Corrupted { file: "a\nb.pt".into(), why: "is cut short".into() }),
                Candidate { failed_starts: 2, ..volume(found(Some(300), 0)) },
                Candidate { failed_starts: 1, ..volume(found(Some(200), 0)) },
                volume(found(Some(250), 0)),
            ],
            |candidate| if candidate.found.step == Some(250) { Err("it has rotted".into()) } else { Ok(()) },
        );
        assert_eq!(
            explain(&choice),
            [
                "checkpoint-500: passed over: it is incomplete: model-00002-of-00003.safetensors is missing",
                "checkpoint-400: passed over: it is corrupted: a\\nb.pt: is cut short",
                "checkpoint-300: passed over: 2 attempts that began with it failed before their first progress",
                "checkpoint-250: passed over: it has rotted",
                "checkpoint-200: taken: the newest that is good",
            ]
        );
    }

    #[test]
    fn the_volume_goes_before_a_store() {
        let store = |found| Candidate::in_store(found, "s3://bucket", 0);
        let take = |candidates| choose(candidates, |_| Ok(())).taken.unwrap();
        let both = vec![store(found(Some(5), 9)), volume(found(Some(5), 1))];
        assert_eq!(take(both).1, Place::Volume);
        let newer = vec![store(found(Some(6), 1)), volume(found(Some(5), 9))];
        assert_eq!(take(newer).1, Place::Store("s3://bucket".into()));
        let newer = vec![store(found(None, 2)), volume(found(None, 1))];
        assert_eq!(take(newer).1, Place::Store("s3://bucket".into()));
        let choice =
            choose(vec![volume(found(Some(5), 1)), store(found(Some(5), 1))], |candidate| match candidate.place {
                Place::Volume => Err("it has rotted".into()),
                Place::Store(_) => Ok(()),
            });
        assert_eq!(explain(&choice)[1], "checkpoint-5 in s3://bucket: taken: the newest that is good");
    }

    #[test]
    fn without_a_good_one_a_run_begins_anew() {
        assert_eq!(explain(&choose(Vec::new(), |_| Ok(()))), ["there is no checkpoint: the run begins anew"]);
        let choice = choose(vec![volume(found(Some(5), 1))], |_| Err("it has rotted".into()));
        assert_eq!(explain(&choice)[1], "no checkpoint is good: the run begins anew");
    }

    proptest! {
        #[test]
        fn better_is_a_total_order(all in proptest::collection::vec((proptest::option::of(0..2u64), 0..2i64, 0..3u8), 3)) {
            let all: Vec<Candidate> = all.into_iter().map(|(step, time, place)| match place {
                0 => volume(found(step, time)),
                n => Candidate::in_store(found(step, time), &n.to_string(), 0),
            }).collect();
            prop_assert_eq!(all[0].better(&all[1]), all[1].better(&all[0]).reverse());
            if all[0].better(&all[1]).is_le() && all[1].better(&all[2]).is_le() {
                prop_assert!(all[0].better(&all[2]).is_le());
            }
        }
    }
}
