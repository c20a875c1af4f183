//! DeepSpeed: a folder `global_stepN`, in which each rank writes its files. The file `latest` beside the folder is no help: rank 0 writes
//! it before the others are done. So the files are counted.
//!
//! | damage | at which depth it is seen |
//! |---|---|
//! | a rank's file missing | Structure: Incomplete, if a higher rank's is there or the model's own state says how many there are |
//! | a file cut | Structure: Incomplete, because no record says that it is written |
//! | a bit anywhere | Content: CRC32 |
//! | a file of another step | Structure for the model's states, which contain their step; not for the optimizer's |

use super::pickle::Pickle;
use super::{Claim, Listing, Rules, named, torch};
use crate::files::Files;
use crate::found::{Depth, Format, Judgement};
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// DeepSpeed's folders.
pub const RULES: Rules = Rules { format: Format::DeepSpeed, claim, judge };

/// File beside the folder that names it.
pub const LATEST: &str = "latest";

fn claim(listing: &Listing) -> Vec<Claim> {
    let states = |name: &String| name.ends_with("_model_states.pt") || name.ends_with("_optim_states.pt");
    let ours = named::number(&listing.name, "global_step", "").is_some() || listing.files.iter().any(states);
    if ours { vec![Claim::Folder] } else { Vec::new() }
}

fn judge(name: &str, files: &dyn Files, depth: Depth) -> io::Result<Judgement> {
    let mut judgement = judge_below("", files, depth)?;
    judgement.step = named::step(name).or(judgement.step);
    Ok(judgement)
}

/// Kind of state in a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Model,
    Optimizer,
}

/// `[bf16_]zero_pp_rank_R_mp_rank_MM_optim_states.pt`: the kind, R where there is one, MM.
fn rank(file: &str) -> Option<(Kind, Option<u64>, u64)> {
    let (kind, stem) = match file.strip_suffix("_model_states.pt") {
        Some(stem) => (Kind::Model, stem),
        None => (Kind::Optimizer, file.strip_suffix("_optim_states.pt")?),
    };
    let stem = stem.strip_prefix("bf16_").or_else(|| stem.strip_prefix("fp16_")).unwrap_or(stem);
    match stem.strip_prefix("zero_pp_rank_") {
        Some(ranks) => {
            let (rank, model) = ranks.split_once("_mp_rank_")?;
            Some((kind, Some(named::number(rank, "", "")?), named::number(model, "", "")?))
        }
        None => Some((kind, None, named::number(stem, "mp_rank_", "")?)),
    }
}

/// Judges what lies in a folder of a checkpoint: `below` is empty, or ends with `/`.
///
/// # Errors
/// If files could not be read.
pub fn judge_below(below: &str, files: &dyn Files, depth: Depth) -> io::Result<Judgement> {
    let paths: Vec<(&str, &str)> = files
        .members()
        .iter()
        .filter_map(|member| Some((member.path.as_str(), member.path.strip_prefix(below)?)))
        .filter(|(_, file)| file.ends_with("_states.pt"))
        .collect();
    let mut ranks: BTreeMap<Kind, BTreeMap<u64, BTreeSet<u64>>> = BTreeMap::new();
    for (kind, rank, model) in paths.iter().filter_map(|(_, file)| rank(file)) {
        ranks.entry(kind).or_default().entry(model).or_default().extend(rank);
    }
    let pipeline = paths.iter().any(|(_, file)| file.starts_with("layer_"));
    if !ranks.contains_key(&Kind::Model) && !pipeline {
        return Ok(Judgement::incomplete("there is no *_model_states.pt"));
    }
    if let Some(why) = gap(&ranks) {
        return Ok(Judgement::incomplete(why));
    }
    let mut reported = ModelState::default();
    let mut unseen = None;
    for (path, file) in &paths {
        let saved = match torch::check(files, path, depth) {
            Ok(saved) => saved,
            Err(fault) => return fault.judge(path, false),
        };
        unseen = unseen.or_else(|| saved.unseen(path));
        if let (Some(pickle), Some((Kind::Model, ..))) = (saved.pickle, rank(file)) {
            let of_file = ModelState::read(&pickle);
            let folder = below.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
            let expected = reported.step.or_else(|| named::number(folder, "global_step", ""));
            if expected.is_some() && of_file.step.is_some() && expected != of_file.step {
                return Ok(Judgement::corrupted(*path, "is of another step than the others"));
            }
            reported = of_file;
        }
    }
    if let Some(why) = reported.missing(&ranks) {
        return Ok(Judgement::incomplete(why));
    }
    Ok(Judgement { step: reported.step, ..Judgement::valid() }.with_unseen(unseen))
}

/// A rank that is missing below one that is there.
fn gap(ranks: &BTreeMap<Kind, BTreeMap<u64, BTreeSet<u64>>>) -> Option<String> {
    for of_kind in ranks.values() {
        let most = of_kind.values().map(BTreeSet::len).max().unwrap_or(0);
        for (expected, (model, of_model)) in (0..).zip(of_kind) {
            if *model != expected {
                return Some(format!("there is no file of mp_rank {expected}, and there are some of {model}"));
            }
            if let Some((missing, _)) = (0..).zip(of_model).find(|(expected, rank)| expected != *rank) {
                return Some(format!("there is no file of rank {missing} of mp_rank {model}"));
            }
            if of_model.len() != most {
                return Some(format!("mp_rank {model} has {} files, and another {most}", of_model.len()));
            }
        }
    }
    None
}

/// Values in the model's state.
#[derive(Default)]
struct ModelState {
    step: Option<u64>,
    data_ranks: Option<u64>,
    model_ranks: Option<u64>,
    /// Whether the optimizer has files of its own.
    zero: bool,
}

impl ModelState {
    fn read(pickle: &Pickle) -> Self {
        let root = pickle.root();
        let number = |key: &str| pickle.count(pickle.get(root, key)?);
        let stage = || {
            let zero = pickle.get(pickle.get(root, "ds_config")?, "zero_optimization")?;
            pickle.count(pickle.get(zero, "stage")?)
        };
        Self {
            step: number("global_steps"),
            data_ranks: number("dp_world_size"),
            model_ranks: number("mp_world_size"),
            zero: stage().is_some_and(|stage| stage > 0),
        }
    }

    /// What is not there, of what is said to have been written.
    fn missing(&self, ranks: &BTreeMap<Kind, BTreeMap<u64, BTreeSet<u64>>>) -> Option<String> {
        if self.zero && !ranks.contains_key(&Kind::Optimizer) {
            return Some("there is no *_optim_states.pt".into());
        }
        for of_kind in ranks.values() {
            if let Some(expected) = self.model_ranks.filter(|expected| *expected != of_kind.len() as u64) {
                return Some(format!(
                    "there are files of {} mp_ranks, and {expected} were to be written",
                    of_kind.len()
                ));
            }
            let most = of_kind.values().map(BTreeSet::len).max().unwrap_or(0) as u64;
            if let Some(expected) = self.data_ranks.filter(|expected| most > 0 && *expected != most) {
                return Some(format!("there are files of {most} ranks, and {expected} were to be written"));
            }
        }
        None
    }
}
