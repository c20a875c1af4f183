//! Verification of checkpoints, and descriptions of them for the status.

use checkpoint::budget::Budget;
use checkpoint::choose::Doubt;
use checkpoint::found::{Depth, FoundCheckpoint, Verdict};
use checkpoint::inventory::{Inventory, KnownCheckpoint, Proofs, Scan};
use checkpoint::wording::shown;
use jiff::Timestamp;
use protocol::checkpoints::{CheckpointPolicy, GoodCheckpoint, Problem, ProblemKind};
use std::path::Path;
use std::{fs, io};
use store::StoreError;

/// Problems of this job's own checkpoints.
pub(super) fn bad_ones(scan: &Scan) -> Vec<Problem> {
    scan.found
        .iter()
        .filter(|known| known.own)
        .filter_map(|known| {
            let path = shown(&known.found.path);
            match &known.found.verdict {
                verdict @ Verdict::Corrupted { .. } => {
                    let message = format!("{path}: {}; no attempt resumes from it", describe(verdict));
                    Some(Problem { kind: ProblemKind::Corrupted, message })
                }
                verdict if verdict.is_good() && known.failed_starts > 1 => {
                    let failed = known.failed_starts;
                    let message =
                        format!("{path}: {failed} attempts that began with it failed before they did any work");
                    Some(Problem { kind: ProblemKind::Suspect, message })
                }
                _ => None,
            }
        })
        .collect()
}

/// How much of a checkpoint is read before an attempt resumes from it.
pub(super) fn depth(policy: &CheckpointPolicy) -> Depth {
    if policy.structure_only { Depth::Structure } else { Depth::Content }
}

fn verify(
    inventory: &mut Inventory,
    found: &FoundCheckpoint,
    depth: Depth,
    budget: &Budget,
) -> io::Result<KnownCheckpoint> {
    match depth {
        Depth::Structure => inventory.verify_structure(found, Timestamp::now(), budget),
        Depth::Content => inventory.verify(found, true, Timestamp::now(), budget),
    }
}

/// Verifies a checkpoint before an attempt resumes from it.
pub(super) fn verify_for_start(
    inventory: &mut Inventory,
    found: &FoundCheckpoint,
    depth: Depth,
    budget: &Budget,
) -> Result<FoundCheckpoint, Doubt> {
    match verify(inventory, found, depth, budget) {
        Ok(known) if known.found.is_good() => Ok(known.found),
        Ok(known) => Err(Doubt::Bad(describe(&known.found.verdict))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Doubt::Bad("it is gone".to_owned())),
        Err(error) => Err(Doubt::Unread(format!("it can't be read: {error}"))),
    }
}

pub(super) fn kept(found: &FoundCheckpoint, metric: Option<f64>) -> GoodCheckpoint {
    GoodCheckpoint {
        path: found.path.clone(),
        step: found.step,
        epoch: found.epoch,
        time: Some(found.modified),
        bytes: found.bytes,
        metric,
    }
}

pub(super) fn describe(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Valid => "good".to_owned(),
        Verdict::Complete { why } => format!("complete: {why}"),
        Verdict::Incomplete { why } => format!("incomplete: {why}"),
        Verdict::Corrupted { file, why } if file.is_empty() => format!("corrupted: {why}"),
        Verdict::Corrupted { file, why } => format!("corrupted: {}: {why}", shown(file)),
    }
}

pub(super) fn failing(error: &StoreError) -> Problem {
    Problem { kind: ProblemKind::CopyFailing, message: error.to_string() }
}

/// Verifies one checkpoint that a user named. A checkpoint in the proofs is not read again. Files beside it do not
/// matter.
pub(super) fn look_at(path: &Path, depth: Depth, proofs: &Proofs, budget: &Budget) -> Result<FoundCheckpoint, Doubt> {
    let bad = |why: &str| Err(Doubt::Bad(why.to_owned()));
    let (Some(parent), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return bad("it names no checkpoint");
    };
    let (folder, is_there) = match fs::symlink_metadata(path) {
        Ok(it) if it.is_symlink() => return bad("it is a symbolic link, which is never followed"),
        Ok(it) => (it.is_dir(), true),
        // The prefix of TensorFlow's files is no file itself.
        Err(error) if error.kind() == io::ErrorKind::NotFound => (false, false),
        Err(error) => return Err(Doubt::Unread(format!("it can't be read: {error}"))),
    };
    let mut inventory = Inventory::new(parent, "", "").with_proofs(proofs);
    let named = FoundCheckpoint { path: name.to_owned(), folder, ..FoundCheckpoint::nothing_at(name) };
    match verify(&mut inventory, &named, depth, budget) {
        Ok(known) if known.found.is_good() => Ok(known.found),
        Ok(known) => Err(Doubt::Bad(describe(&known.found.verdict))),
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Doubt::Unread(format!("it can't be read: {error}")))
        }
        Err(_) if !is_there => bad("there is no such file or folder"),
        Err(_) => {
            let nested = Inventory::new(path, "", "").scan(Timestamp::now(), None, budget).found;
            match nested.first().filter(|_| folder) {
                Some(known) => {
                    let within = shown(&format!("{name}/{}", known.found.path));
                    bad(&format!("it is no checkpoint itself; in it there is {within}"))
                }
                None => bad("no checkpoint of a known format is there"),
            }
        }
    }
}
