//! Megatron-LM: a folder `iter_NNNNNNN`, with either a folder `mp_rank_TT[_PPP]` for each rank, or DCP's shards with
//! `common.pt` and `metadata.json`. A file beside the folder says that it is whole; within the folder the files are
//! counted.
//!
//! | damage | at which depth it is seen |
//! |---|---|
//! | a rank's folder missing | Structure: Incomplete, if a higher rank's is there or the arguments in the pickle say how many there are |
//! | a file cut, in the old form | Structure: Incomplete |
//! | `common.pt`, `metadata.json` or `.metadata` missing | Structure: Incomplete |
//! | a bit in `*.pt` | Content: CRC32 |
//! | a bit in DCP's files | as in [`super::dcp`] |
//! | a rank's file of another step | Structure: it contains its iteration |

use super::fault::Fault;
use super::pickle::{Id, Pickle};
use super::{Claim, Listing, Rules, dcp, json, named, torch};
use crate::files::Files;
use crate::found::{Depth, Format, Judgement};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::io;

/// Megatron-LM's folders.
pub const RULES: Rules = Rules { format: Format::Megatron, claim, judge };

const COMMON: &str = "common.pt";
const METADATA: &str = "metadata.json";
const JSON_LIMIT: u64 = 1 << 20;

fn claim(listing: &Listing) -> Vec<Claim> {
    let rank = |name: &String| name.starts_with("mp_rank_");
    let named = named::number(&listing.name, "iter_", "").is_some();
    let ours = named || (listing.name == "release" && (listing.folders.iter().any(rank) || listing.has_file(COMMON)));
    if ours { vec![Claim::Folder] } else { Vec::new() }
}

fn judge(name: &str, files: &dyn Files, depth: Depth) -> io::Result<Judgement> {
    let step = named::number(name, "iter_", "");
    let legacy = files.members().iter().any(|member| member.path.starts_with("mp_rank_"));
    let judgement = if legacy { ranks(step, files, depth)? } else { distributed(step, files, depth)? };
    Ok(Judgement { step: step.or(judgement.step), ..judgement })
}

/// The iteration in a state, and its numbers of ranks: tensor parallel, pipeline parallel.
fn iteration_and_ranks(pickle: &Pickle) -> (Option<u64>, Option<(u64, u64)>) {
    let get = |id: Id, key: &str| pickle.count(pickle.get(id, key)?);
    let arguments = || {
        // argparse's Namespace: an object with its attributes as its state.
        let arguments = pickle.get(pickle.root(), "args")?;
        let state = pickle.object(arguments).and_then(|object| object.state).unwrap_or(arguments);
        Some((get(state, "tensor_model_parallel_size")?, get(state, "pipeline_model_parallel_size")?))
    };
    (get(pickle.root(), "iteration"), arguments())
}

fn ranks(step: Option<u64>, files: &dyn Files, depth: Depth) -> io::Result<Judgement> {
    let mut ranks = BTreeSet::new();
    let mut expected = None;
    let mut unseen = None;
    for member in files.members() {
        let path = member.path.as_str();
        let Some((folder, file)) = path.split_once('/') else { continue };
        let Some(numbers) = folder.strip_prefix("mp_rank_") else { continue };
        let (tensor, pipeline) = numbers.split_once('_').unwrap_or((numbers, "0"));
        let (Some(tensor), Some(pipeline)) = (named::number(tensor, "", ""), named::number(pipeline, "", "")) else {
            continue;
        };
        if !file.ends_with(".pt") {
            continue;
        }
        let saved = match torch::check(files, path, depth) {
            Ok(saved) => saved,
            Err(fault) => return fault.judge(path, false),
        };
        unseen = unseen.or_else(|| saved.unseen(path));
        if !matches!(file, "model_optim_rng.pt" | "model_rng.pt") {
            continue;
        }
        ranks.insert((tensor, pipeline));
        let Some(pickle) = saved.pickle else { continue };
        let (iteration, sizes) = iteration_and_ranks(&pickle);
        if iteration.is_some() && step.is_some() && iteration != step {
            return Ok(Judgement::corrupted(path, "is of another iteration than its folder"));
        }
        expected = sizes.or(expected);
    }
    let most = ranks.iter().fold((0, 0), |most, rank| (most.0.max(rank.0 + 1), most.1.max(rank.1 + 1)));
    let (tensor, pipeline) = expected.unwrap_or(most);
    // The counts come from outside: one more than there are files is enough to know that one is missing.
    let all = (0..tensor).flat_map(|tensor| (0..pipeline).map(move |pipeline| (tensor, pipeline)));
    if let Some((tensor, pipeline)) = all.take(ranks.len() + 1).find(|rank| !ranks.contains(rank)) {
        return Ok(Judgement::incomplete(format!(
            "there is no model of tensor rank {tensor}, pipeline rank {pipeline}"
        )));
    }
    Ok(Judgement::valid().with_unseen(unseen))
}

fn distributed(step: Option<u64>, files: &dyn Files, depth: Depth) -> io::Result<Judgement> {
    for path in [METADATA, COMMON] {
        if files.member(path).is_none() {
            return Ok(Judgement::incomplete(format!("{path} is missing")));
        }
    }
    if let Err(fault) = backend(files) {
        return fault.judge(METADATA, false);
    }
    match torch::check(files, COMMON, depth) {
        Ok(saved) => {
            let iteration = saved.pickle.and_then(|pickle| iteration_and_ranks(&pickle).0);
            if iteration.is_some() && step.is_some() && iteration != step {
                return Ok(Judgement::corrupted(COMMON, "is of another iteration than its folder"));
            }
        }
        Err(fault) => return fault.judge(COMMON, false),
    }
    dcp::judge_below("", files, depth)
}

/// Which form the shards have. Only torch's is known.
fn backend(files: &dyn Files) -> Result<(), Fault> {
    let metadata: Map<String, Value> = json::read(files, METADATA, JSON_LIMIT)?;
    let known = ["sharded_backend", "sharded_backend_version", "common_backend", "common_backend_version"];
    if metadata.keys().any(|name| named::is_damaged(name, &known)) {
        return Fault::wrong("has a name that is damaged");
    }
    match metadata.get("sharded_backend").and_then(Value::as_str) {
        Some("torch_dist") => Ok(()),
        other => Fault::wrong(format!("names the form {other:?}, and only torch_dist is known")),
    }
}
