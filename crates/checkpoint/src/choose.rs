//! Which checkpoint an attempt resumes from: the rules C1 to C6 of docs/checkpoints.md. Pure.

use crate::found::{FoundCheckpoint, Verdict};
use crate::inventory::{Inventory, KnownCheckpoint, Stage};
use crate::wording::shown;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;

/// A checkpoint with which that many attempts have failed before real work is suspect.
pub const SUSPECT: u32 = 2;

/// Where a checkpoint is. The volume is preferred.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Location {
    /// In a store, by the name or URI that people know it by.
    Store(String),
    /// On the volume.
    Volume,
}

/// A checkpoint that an attempt could resume from.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The checkpoint.
    pub found: FoundCheckpoint,
    /// Where it is.
    pub place: Location,
    /// Whether this job wrote it, and did so after it used `resumeFrom` if that is set.
    pub counts: bool,
    /// Whether a whole checkpoint once existed at this path, whatever it is now.
    pub was_whole: bool,
    /// Attempts that resumed from it and failed before real work.
    pub failed_starts: u32,
    /// Whether it could not be read, so that its verdict says nothing about it.
    pub unread: bool,
}

/// `resumeFrom`, as a wish that is used once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wish {
    /// The job has none.
    #[default]
    None,
    /// No attempt has resumed from it yet.
    Unused,
    /// An attempt has resumed from it. Checkpoints that the job wrote since take precedence over it.
    Used,
}

impl Wish {
    /// State of `resumeFrom` for the next attempt. If a folder is new, or its ledger was lost, the stores and the
    /// operator know what the job did before: `is_used_elsewhere`.
    #[must_use]
    pub fn known_to(inventory: &Inventory, resume_from: Option<&str>, is_used_elsewhere: bool) -> Self {
        match resume_from {
            None => Self::None,
            Some(from) if inventory.has_used(from) => Self::Used,
            Some(_) if inventory.is_new() && is_used_elsewhere => Self::Used,
            Some(_) => Self::Unused,
        }
    }
}

/// Why a checkpoint was not proven good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// It is bad, or it is not there.
    Bad(String),
    /// It could not be read: it may be good.
    Unread(String),
}

/// Inputs of a choice.
#[derive(Clone, Debug, Default)]
pub struct Query {
    /// All checkpoints on the volume and in the stores.
    pub candidates: Vec<Candidate>,
    /// `resumeFrom`.
    pub wish: Wish,
    /// Why a folder or a store could not be listed, if that failed. It may have checkpoints that are not among the
    /// candidates.
    pub unlisted: Option<String>,
    /// Whether the user lets the run begin at step 0 if none of its checkpoints can be used.
    pub may_start_over: bool,
}

/// A candidate that was not taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedCandidate {
    /// Relative to the root.
    pub path: String,
    /// Where it is.
    pub place: Location,
    /// Why not.
    pub why: String,
}

/// What an attempt begins with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Start {
    /// This checkpoint.
    From(Box<FoundCheckpoint>, Location),
    /// The checkpoint of `resumeFrom`.
    ResumeFrom,
    /// Step 0: there is no checkpoint, or the user lets the run start over.
    Scratch,
    /// Nothing yet: something that the choice depends on could not be read.
    Unread(String),
    /// Nothing: this job has checkpoints, and none of them can be used.
    NoneUsable(String),
}

/// What an attempt begins with, and why not with a newer checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// What it begins with.
    pub start: Start,
    /// Newer candidates, the newest first.
    pub passed: Vec<SkippedCandidate>,
}

impl Candidate {
    /// A candidate on the volume.
    #[must_use]
    pub fn on_volume(known: &KnownCheckpoint) -> Self {
        Self {
            found: known.found.clone(),
            place: Location::Volume,
            counts: known.own,
            was_whole: false,
            failed_starts: known.failed_starts,
            unread: known.stage == Stage::Unread,
        }
    }

    /// A candidate on the volume, for the job of this inventory.
    #[must_use]
    pub fn known_to(inventory: &Inventory, known: &KnownCheckpoint) -> Self {
        let path = &known.found.path;
        let counts = known.own || inventory.has_written(path);
        Self { counts, was_whole: inventory.was_whole(path), ..Self::on_volume(known) }
    }

    /// A candidate in a store. A checkpoint with a manifest there was good. `failed_starts` are those of the same
    /// checkpoint on the volume.
    #[must_use]
    pub fn in_store(found: FoundCheckpoint, store: &str, failed_starts: u32) -> Self {
        let place = Location::Store(store.to_owned());
        Self { found, place, counts: false, was_whole: true, failed_starts, unread: false }
    }

    /// As [`FoundCheckpoint::newer`]. Of two with the same step that were written at once, the one on the volume comes first.
    fn better(&self, other: &Self) -> Ordering {
        let (ours, theirs) = (&self.found, &other.found);
        let epoch = |found: &FoundCheckpoint| found.epoch.unwrap_or(f64::NEG_INFINITY);
        let is_reported = |found: &FoundCheckpoint| found.step.is_some() || found.epoch.is_some();
        let place = |it: &Self| is_reported(&it.found).then_some(&it.place).cloned();
        (is_reported(ours).cmp(&is_reported(theirs)))
            .then(ours.order.cmp(&theirs.order))
            .then(ours.step.cmp(&theirs.step))
            .then(epoch(ours).total_cmp(&epoch(theirs)))
            .then_with(|| place(self).cmp(&place(other)))
            .then(ours.modified.cmp(&theirs.modified))
            .then_with(|| self.place.cmp(&other.place))
            .then_with(|| ours.path.cmp(&theirs.path))
    }

    /// Whether this is a checkpoint, and not the beginning of one that was never finished.
    fn is_checkpoint(&self) -> bool {
        let is_written = !matches!(self.found.verdict, Verdict::Incomplete { .. });
        is_written || self.unread || self.was_whole
    }

    /// Why it can't be taken, as far as is known without reading it.
    fn fault(&self) -> Option<Doubt> {
        let bad = |why: String| Some(Doubt::Bad(why));
        match &self.found.verdict {
            Verdict::Incomplete { why } if self.unread => Some(Doubt::Unread(why.clone())),
            Verdict::Incomplete { why } => bad(format!("it is incomplete: {why}")),
            Verdict::Corrupted { file, why } if file.is_empty() => bad(format!("it is corrupted: {why}")),
            Verdict::Corrupted { file, why } => bad(format!("it is corrupted: {}: {why}", shown(file))),
            Verdict::Valid | Verdict::Complete { .. } if self.failed_starts >= SUSPECT => {
                let failed = self.failed_starts;
                bad(format!("it is suspect: {failed} attempts that began with it failed before they did any work"))
            }
            Verdict::Valid | Verdict::Complete { .. } => None,
        }
    }
}

/// Chooses what an attempt begins with. It calls `proof` for one candidate after the other until one is accepted.
/// `proof` reads every byte of the candidate ([`crate::inventory::Inventory::verify`]).
pub fn choose(query: Query, mut proof: impl FnMut(&Candidate) -> Result<(), Doubt>) -> Choice {
    let Query { mut candidates, wish, unlisted, may_start_over } = query;
    let mut passed = Vec::new();
    let start = |start, passed| Choice { start, passed };
    if let Some(why) = unlisted {
        return start(Start::Unread(why), passed);
    }
    if wish == Wish::Unused {
        return start(Start::ResumeFrom, passed);
    }
    let has_own = candidates.iter().any(|candidate| candidate.counts && candidate.is_checkpoint());
    if wish == Wish::Used && !has_own {
        return start(Start::ResumeFrom, passed);
    }
    // Checkpoints of others serve only as this job's start. Once it has written its own, it resumes from those.
    candidates.retain(|candidate| candidate.counts || !has_own);
    candidates.sort_by(|a, b| b.better(a));
    for candidate in candidates {
        let why = match candidate.fault().map_or_else(|| proof(&candidate), Err) {
            Ok(()) => return start(Start::From(Box::new(candidate.found), candidate.place), passed),
            Err(Doubt::Unread(why)) => {
                let why = format!("{}: {why}", shown(&candidate.found.path));
                return start(Start::Unread(why), passed);
            }
            Err(Doubt::Bad(why)) => why,
        };
        passed.push(SkippedCandidate { path: candidate.found.path, place: candidate.place, why });
    }
    if !has_own || may_start_over {
        return start(Start::Scratch, passed);
    }
    let all: Vec<_> = passed.iter().map(|it| format!("{}: {}", shown(&it.path), it.why)).collect();
    start(Start::NoneUsable(all.join("; ")), passed)
}

/// The choice in words, a line each.
#[must_use]
pub fn explain(choice: &Choice) -> Vec<String> {
    let at = |place: &Location| match place {
        Location::Volume => String::new(),
        Location::Store(store) => format!(" in {}", shown(store)),
    };
    let passed = choice.passed.iter();
    let mut lines: Vec<String> =
        passed.map(|it| format!("{}{}: passed over: {}", shown(&it.path), at(&it.place), shown(&it.why))).collect();
    lines.push(match &choice.start {
        Start::From(found, place) if lines.is_empty() => {
            format!("{}{}: taken: the newest", shown(&found.path), at(place))
        }
        Start::From(found, place) => format!("{}{}: taken: the newest that is good", shown(&found.path), at(place)),
        Start::ResumeFrom => "checkpoint.resumeFrom: taken: this job has saved no checkpoint since".to_owned(),
        Start::Scratch if lines.is_empty() => "there is no checkpoint: the run begins at step 0".to_owned(),
        Start::Scratch => "no checkpoint can be used: the run begins at step 0".to_owned(),
        Start::Unread(why) => format!("the attempt waits: {}", shown(why)),
        Start::NoneUsable(_) => {
            "no checkpoint of this job can be used: the job waits (checkpoint.ifNoneUsable)".to_owned()
        }
    });
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::found::Format;
    use jiff::Timestamp;
    use proptest::prelude::*;

    fn found(step: Option<u64>, modified: i64) -> FoundCheckpoint {
        let path = step.map_or_else(|| format!("model-{modified}"), |step| format!("checkpoint-{step}"));
        let modified = Timestamp::from_second(modified).unwrap();
        FoundCheckpoint { format: Format::HuggingFace, step, bytes: 1, modified, ..FoundCheckpoint::nothing_at(&path) }
    }

    /// A checkpoint that another job has left.
    fn volume(found: FoundCheckpoint) -> Candidate {
        Candidate { found, place: Location::Volume, counts: false, was_whole: false, failed_starts: 0, unread: false }
    }

    fn own(step: u64) -> Candidate {
        Candidate { counts: true, ..volume(found(Some(step), 0)) }
    }

    fn with(candidate: Candidate, verdict: Verdict) -> Candidate {
        Candidate { found: FoundCheckpoint { verdict, ..candidate.found.clone() }, ..candidate }
    }

    fn incomplete() -> Verdict {
        Verdict::Incomplete { why: "a.pt is missing".into() }
    }

    fn corrupted() -> Verdict {
        Verdict::Corrupted { file: "a\nb.pt".into(), why: "is cut short".into() }
    }

    fn suspect(candidate: Candidate) -> Candidate {
        Candidate { failed_starts: SUSPECT, ..candidate }
    }

    fn unread(candidate: Candidate) -> Candidate {
        Candidate { unread: true, ..with(candidate, Verdict::Incomplete { why: "Input/output error".into() }) }
    }

    fn among(candidates: Vec<Candidate>) -> Query {
        Query { candidates, ..Query::default() }
    }

    fn start(query: Query) -> Start {
        choose(query, |_| Ok(())).start
    }

    /// The step that is taken.
    #[expect(clippy::needless_pass_by_value, reason = "takes what its callers need no more")]
    fn step(query: Query) -> Option<u64> {
        match start(query.clone()) {
            Start::From(found, _) => found.step,
            other => panic!("{other:?} of {query:?}"),
        }
    }

    #[test]
    fn newest_good_checkpoint_is_chosen() {
        let choice = choose(
            among(vec![
                volume(found(Some(100), 0)),
                volume(found(None, 1_000_000)),
                with(volume(found(Some(500), 0)), incomplete()),
                with(volume(found(Some(400), 0)), corrupted()),
                suspect(volume(found(Some(300), 0))),
                Candidate { failed_starts: 1, ..volume(found(Some(200), 0)) },
                volume(found(Some(250), 0)),
            ]),
            |candidate| match candidate.found.step {
                Some(250) => Err(Doubt::Bad("it has rotted".into())),
                _ => Ok(()),
            },
        );
        assert_eq!(
            explain(&choice),
            [
                "checkpoint-500: passed over: it is incomplete: a.pt is missing",
                "checkpoint-400: passed over: it is corrupted: a\\nb.pt: is cut short",
                "checkpoint-300: passed over: it is suspect: 2 attempts that began with it failed before they did any work",
                "checkpoint-250: passed over: it has rotted",
                "checkpoint-200: taken: the newest that is good",
            ]
        );
    }

    #[test]
    fn last_written_checkpoint_is_the_newest() {
        let later = |step, order| {
            let own = own(step);
            Candidate { found: FoundCheckpoint { order, ..own.found.clone() }, ..own }
        };
        assert_eq!(step(among(vec![later(9000, 1), later(100, 2)])), Some(100), "the steps have begun again");
    }

    #[test]
    fn own_checkpoints_take_precedence_over_others() {
        assert_eq!(step(among(vec![volume(found(Some(9000), 0)), own(500)])), Some(500));
        assert_eq!(step(among(vec![volume(found(Some(9000), 0))])), Some(9000), "and without it they are taken");
        let begun = with(own(500), incomplete());
        assert_eq!(step(among(vec![volume(found(Some(400), 0)), begun])), Some(400), "one never finished is none");
    }

    #[test]
    fn unused_resume_from_takes_precedence() {
        let all = vec![own(6000), volume(found(Some(9000), 0))];
        let unused = Query { wish: Wish::Unused, ..among(all.clone()) };
        assert_eq!(start(unused), Start::ResumeFrom);
        assert_eq!(step(Query { wish: Wish::Used, ..among(all) }), Some(6000));
    }

    #[test]
    fn resume_from_applies_until_this_job_has_saved() {
        let used = |candidates| start(Query { wish: Wish::Used, ..among(candidates) });
        assert_eq!(used(Vec::new()), Start::ResumeFrom);
        assert_eq!(used(vec![volume(found(Some(9000), 0))]), Start::ResumeFrom, "others' never count");
        assert_eq!(used(vec![with(own(1), incomplete())]), Start::ResumeFrom);
    }

    #[test]
    fn unreadable_newest_checkpoint_is_waited_for() {
        let unlisted = Query { unlisted: Some("EIO".into()), ..among(vec![own(5)]) };
        for wish in [Wish::None, Wish::Unused, Wish::Used] {
            assert_eq!(start(Query { wish, ..unlisted.clone() }), Start::Unread("EIO".into()));
        }
        let newest = Start::Unread("checkpoint-6: Input/output error".into());
        assert_eq!(start(among(vec![own(5), unread(own(6))])), newest);
        assert_eq!(step(among(vec![own(5), unread(own(4))])), Some(5), "an older one does not matter");
        let all_bad = Query { may_start_over: true, ..among(vec![with(own(7), corrupted()), unread(own(6))]) };
        assert_eq!(start(all_bad), newest, "never a start from step 0");
        let in_proof = choose(among(vec![own(5), own(6)]), |it| match it.found.step {
            Some(6) => Err(Doubt::Unread("Input/output error".into())),
            _ => Ok(()),
        });
        assert_eq!(in_proof.start, newest);
    }

    #[test]
    fn job_with_only_bad_checkpoints_waits() {
        let was_whole = Candidate { was_whole: true, ..with(own(3), incomplete()) };
        for bad in [with(own(1), corrupted()), suspect(own(2)), was_whole] {
            let query = among(vec![bad.clone(), volume(found(Some(9), 0))]);
            let choice = choose(query.clone(), |_| Ok(()));
            assert!(matches!(&choice.start, Start::NoneUsable(why) if why.starts_with("checkpoint-")), "{choice:?}");
            assert!(matches!(start(Query { wish: Wish::Used, ..query.clone() }), Start::NoneUsable(_)));
            assert_eq!(start(Query { may_start_over: true, ..query }), Start::Scratch);
        }
    }

    #[test]
    fn run_without_checkpoints_starts_at_step_0() {
        assert_eq!(start(among(Vec::new())), Start::Scratch);
        assert_eq!(start(among(vec![with(own(5), incomplete())])), Start::Scratch, "its first save was cut off");
        assert_eq!(start(among(vec![with(volume(found(Some(5), 0)), corrupted())])), Start::Scratch);
        let words = |query| explain(&choose(query, |_| Ok(()))).pop().unwrap();
        assert_eq!(words(among(Vec::new())), "there is no checkpoint: the run begins at step 0");
    }

    #[test]
    fn volume_wins_over_a_store_unless_the_store_is_newer() {
        let store = |found| Candidate::in_store(found, "s3://bucket", 0);
        let take = |candidates| match start(among(candidates)) {
            Start::From(_, place) => place,
            other => panic!("{other:?}"),
        };
        let both = vec![store(found(Some(5), 9)), volume(found(Some(5), 1))];
        assert_eq!(take(both), Location::Volume);
        let newer = vec![store(found(Some(6), 1)), volume(found(Some(5), 9))];
        assert_eq!(take(newer), Location::Store("s3://bucket".into()));
        let newer = vec![store(found(None, 2)), volume(found(None, 1))];
        assert_eq!(take(newer), Location::Store("s3://bucket".into()));
        let both = among(vec![volume(found(Some(5), 1)), store(found(Some(5), 1))]);
        let choice = choose(both, |candidate| match candidate.place {
            Location::Volume => Err(Doubt::Bad("it has rotted".into())),
            Location::Store(_) => Ok(()),
        });
        assert_eq!(explain(&choice)[1], "checkpoint-5 in s3://bucket: taken: the newest that is good");
    }

    proptest! {
        #[test]
        fn better_is_a_total_order(all in proptest::collection::vec((proptest::option::of(0..2u64), 0..2i64, 0..3u8, 0..2u64), 3)) {
            let all: Vec<Candidate> = all.into_iter().map(|(step, time, place, order)| {
                let found = FoundCheckpoint { order, ..found(step, time) };
                match place {
                    0 => volume(found),
                    n => Candidate::in_store(found, &n.to_string(), 0),
                }
            }).collect();
            prop_assert_eq!(all[0].better(&all[1]), all[1].better(&all[0]).reverse());
            if all[0].better(&all[1]).is_le() && all[1].better(&all[2]).is_le() {
                prop_assert!(all[0].better(&all[2]).is_le());
            }
        }
    }
}
