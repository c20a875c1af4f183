//! verl and programs that follow it (FSDP): a folder `global_step_N`, with a folder for each trained model (`actor`,
//! `critic`). In it each rank writes files `model_world_size_W_rank_R.pt`, and `optim_` and `extra_state_` likewise.
//! The file beside the folder that names the latest one proves nothing.
//!
//! | damage | at which depth it is seen |
//! |---|---|
//! | a rank's file missing | Structure: Incomplete, because the names say how many there are |
//! | a file cut | Structure: Incomplete |
//! | a bit in `*.pt` | Content: CRC32 |
//! | `*.json` cut or empty | Structure |
//! | a bit in `*.json` | only if it is no JSON then |
//! | a rank's file of another step | not seen: nothing in it says which step it belongs to |

use super::{Claim, Listing, Rules, dcp, json, named, torch};
use crate::files::Files;
use crate::found::{Depth, Format, Judgement};
use serde::de::IgnoredAny;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// verl's folders.
pub const RULES: Rules = Rules { format: Format::Verl, claim, judge };

/// The model's files, without which there is no checkpoint.
const MODEL: &str = "model";
/// Longer ones, such as a tokenizer, are not read.
const JSON_LIMIT: u64 = 1 << 20;
const OF_JSON: &str = "damage could be unseen: its *.json have no checksum";

fn claim(listing: &Listing) -> Vec<Claim> {
    let is_model = |folder: &String| matches!(folder.as_str(), "actor" | "critic");
    let is_named = named::number(&listing.name, "global_step_", "").is_some() && listing.folders.iter().any(is_model);
    let has_ranks = listing.files.iter().any(|file| rank(file).is_some_and(|(kind, ..)| kind == MODEL));
    if is_named || has_ranks { vec![Claim::Folder] } else { Vec::new() }
}

/// Of `KIND_world_size_W_rank_R.pt`: the kind, W and R.
fn rank(file: &str) -> Option<(&str, u64, u64)> {
    let (kind, numbers) = file.strip_suffix(".pt")?.split_once("_world_size_")?;
    let (size, rank) = numbers.split_once("_rank_")?;
    Some((kind, named::number(size, "", "")?, named::number(rank, "", "")?))
}

fn judge(name: &str, files: &dyn Files, depth: Depth) -> io::Result<Judgement> {
    let mut ranks: BTreeMap<(&str, &str), BTreeMap<u64, BTreeSet<u64>>> = BTreeMap::new();
    let mut shards = BTreeSet::new();
    for member in files.members() {
        let (folder, file) = member.path.rsplit_once('/').unwrap_or(("", &member.path));
        if let Some((kind, size, rank)) = rank(file) {
            ranks.entry((folder, kind)).or_default().entry(size).or_default().insert(rank);
        } else if file == dcp::METADATA {
            shards.insert(&member.path[..member.path.len() - file.len()]);
        }
    }
    if shards.is_empty() && !ranks.keys().any(|(_, kind)| *kind == MODEL) {
        return Ok(Judgement::incomplete("there is no model_world_size_*_rank_*.pt"));
    }
    // Another number of ranks may have saved the same step before, and been cut.
    for ((folder, kind), sizes) in &ranks {
        let gaps = sizes.iter().map(|(size, ranks)| gap(*size, ranks).map(|missing| (*size, missing)));
        if let Some((size, missing)) = gaps.min().flatten() {
            let place = if folder.is_empty() { String::new() } else { format!("{folder}/") };
            return Ok(Judgement::incomplete(format!("there is no {place}{kind}_world_size_{size}_rank_{missing}.pt")));
        }
    }
    if let Some(empty) = files.members().iter().find(|member| member.size == 0) {
        return Ok(Judgement::incomplete(format!("{} is empty", empty.path)));
    }
    for below in shards {
        let judgement = dcp::judge_below(below, files, depth)?;
        if !judgement.verdict.is_good() {
            return Ok(judgement);
        }
    }
    let mut unseen = None;
    for member in files.members() {
        let path = member.path.as_str();
        let checked = match path.rsplit_once('.').map(|(_, kind)| kind) {
            Some("pt") => torch::check(files, path, depth).map(|saved| saved.unseen(path)),
            Some("json") if member.size <= JSON_LIMIT => {
                json::read::<IgnoredAny>(files, path, JSON_LIMIT).map(|_| Some(OF_JSON.to_owned()))
            }
            Some("json") => Ok(Some(OF_JSON.to_owned())),
            _ => Ok(None),
        };
        match checked {
            Ok(may_be) => unseen = unseen.or(may_be),
            Err(fault) => return fault.judge(path, false),
        }
    }
    Ok(Judgement { step: named::step(name), ..Judgement::valid() }.with_unseen(unseen))
}

/// A rank that is missing. The size comes from outside: one more than there are files is enough to know.
fn gap(size: u64, ranks: &BTreeSet<u64>) -> Option<u64> {
    (0..size).take(ranks.len() + 1).find(|rank| !ranks.contains(rank))
}
