//! PyTorch Lightning: a file of `torch.save` named `*.ckpt`, with a dictionary that has epoch and step. It is written
//! under another name and renamed where the file system can do that. So a cut file was cut by copying.
//!
//! Damage is seen as in [`super::torch`]. Strategies with shards write a folder `*.ckpt`, which is DCP's or DeepSpeed's.

use super::fault::Fault;
use super::pickle::{Id, Pickle};
use super::{Claim, Listing, Rules, deepspeed, named, torch};
use crate::files::Files;
use crate::found::{Depth, Format, Judgement};
use std::io;

/// Lightning's files.
pub const RULES: Rules = Rules { format: Format::Lightning, claim, judge };

fn claim(listing: &Listing) -> Vec<Claim> {
    // With DeepSpeed: a folder with `latest`, and the tag's folder, which Lightning calls `checkpoint`.
    if listing.name.ends_with(".ckpt") && listing.folders.iter().any(|folder| folder == "checkpoint") {
        return vec![Claim::Folder];
    }
    let single = listing.files.iter().filter(|name| name.ends_with(".ckpt") && !name.starts_with('.'));
    single.map(|name| Claim::Files { name: name.clone(), files: vec![name.clone()] }).collect()
}

fn judge(name: &str, files: &dyn Files, depth: Depth) -> io::Result<Judgement> {
    let mut judgement = if files.member(name).is_some() {
        match torch::check(files, name, depth) {
            Ok(saved) => judge_values(saved.pickle.as_ref()).with_unseen(saved.unseen(name)),
            Err(fault) => return fault.judge(name, false),
        }
    } else if files.members().iter().any(|member| member.path.starts_with("checkpoint/")) {
        if files.member(deepspeed::LATEST).is_none() {
            return Ok(Judgement::incomplete(format!(
                "{} is missing, which names DeepSpeed's folder",
                deepspeed::LATEST
            )));
        }
        deepspeed::judge_below("checkpoint/", files, depth)?
    } else {
        return Fault::Cut("is missing".into()).judge(name, false);
    };
    judgement.step = judgement.step.or_else(|| named::step(name));
    judgement.epoch = judgement.epoch.or_else(|| named::epoch(name));
    judgement.metrics.extend(named::metrics(name));
    Ok(judgement)
}

/// What `ckpt_path="best"` and `"last"` load: each `ModelCheckpoint` has its own.
fn needs(pickle: &Pickle, callbacks: Option<Id>) -> Vec<String> {
    let states = callbacks.and_then(|callbacks| pickle.items(callbacks)).unwrap_or_default();
    let paths = states
        .iter()
        .flat_map(|(_, state)| ["best_model_path", "last_model_path"].map(|key| pickle.text(pickle.get(*state, key)?)));
    paths.flatten().map(str::to_owned).collect()
}

/// Values of the dictionary.
fn judge_values(pickle: Option<&Pickle>) -> Judgement {
    let mut judgement = Judgement::valid();
    if let Some(pickle) = pickle {
        let at = |path: &[&str]| -> Option<Id> { path.iter().try_fold(pickle.root(), |id, key| pickle.get(id, key)) };
        let number = |path: &[&str]| pickle.count(at(path)?);
        // `epoch` is the number of the epoch in which it was saved; the loop counts the epochs that are done.
        let done = number(&["loops", "fit_loop", "epoch_progress", "total", "processed"]);
        judgement.epoch = done.or_else(|| number(&["epoch"])).map(|epoch| epoch as f64);
        judgement.step = number(&["global_step"]);
        judgement.needs = needs(pickle, at(&["callbacks"]));
    }
    judgement
}
