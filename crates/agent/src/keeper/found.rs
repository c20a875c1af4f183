//! What was found of checkpoints: read whole, and in words for the status.

use checkpoint::budget::Budget;
use checkpoint::found::{Found, Verdict};
use checkpoint::inventory::{Inventory, Scan};
use checkpoint::wording::shown;
use jiff::Timestamp;
use protocol::checkpoints::{Kept, Problem, ProblemKind};
use std::path::Path;
use store::StoreError;

/// What is wrong with checkpoints of this job's own.
pub(super) fn bad_ones(scan: &Scan) -> Vec<Problem> {
    scan.found
        .iter()
        .filter(|known| known.own)
        .filter_map(|known| {
            let path = shown(&known.found.path);
            match &known.found.verdict {
                verdict @ Verdict::Corrupted { .. } => {
                    let message = format!("{path}: {}; it is not gone on from", describe(verdict));
                    Some(Problem { kind: ProblemKind::Corrupted, message })
                }
                verdict if verdict.is_good() && known.failed_starts > 1 => {
                    let failed = known.failed_starts;
                    let message =
                        format!("{path}: {failed} attempts that went on from it failed before their first progress");
                    Some(Problem { kind: ProblemKind::Suspect, message })
                }
                _ => None,
            }
        })
        .collect()
}

/// Reads every byte of a checkpoint that is to be gone on from. The error says why it can't be.
pub(super) fn read_whole(inventory: &mut Inventory, found: &Found, budget: &Budget) -> Result<Found, String> {
    match inventory.verify(found, true, Timestamp::now(), budget) {
        Ok(known) if known.found.is_good() => Ok(known.found),
        Ok(known) => Err(describe(&known.found.verdict)),
        Err(error) => Err(format!("it can't be read: {error}")),
    }
}

pub(super) fn kept(found: &Found, metric: Option<f64>) -> Kept {
    Kept {
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

/// Looks at one checkpoint, every byte of it.
pub(super) fn look_at(path: &Path) -> Result<Found, String> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Err("it names no checkpoint".to_owned());
    };
    let mut inventory = Inventory::new(parent, "", "");
    let budget = Budget::default();
    let scan = inventory.scan(Timestamp::now(), None, &budget);
    let Some(known) = scan.found.iter().find(|known| known.found.path == name) else {
        let nested = scan.found.iter().find(|known| known.found.path.starts_with(&format!("{name}/")));
        return Err(match nested {
            Some(known) => format!("it is no checkpoint itself; in it there is {}", shown(&known.found.path)),
            None if path.exists() => "no checkpoint of a known format is there".to_owned(),
            None => "there is no such file or folder".to_owned(),
        });
    };
    read_whole(&mut inventory, &known.found, &budget)
}
