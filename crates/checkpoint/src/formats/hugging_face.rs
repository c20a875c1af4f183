//! The Hugging Face Trainer: a folder `checkpoint-N`. Rank 0 writes `trainer_state.json` last; no barrier holds the other ranks, so their
//! states of random numbers and shards of the optimizer may come later still.
//!
//! | damage | at which depth it is seen |
//! |---|---|
//! | `trainer_state.json` missing or cut, `checkpoint-is-incomplete.txt` there | Structure: Incomplete |
//! | a file missing that another one calls for: a shard of the index, a rank below another one, the optimizer beside its scheduler | Structure: Incomplete |
//! | the highest ranks' states of random numbers missing | not seen: nothing records how many there were |
//! | weights cut | Structure: Corrupted, because `trainer_state.json` says that they are written |
//! | a bit in `optimizer.pt`, `scheduler.pt`, `rng_state*.pth`, `*.bin` | Content: CRC32 |
//! | a bit in `*.safetensors` | the header at Structure, a tensor not |
//! | a bit in `trainer_state.json` | a name, the form and the step at Structure; another number not |
//! | a bit in `config.json` | its form at Content; a word or a number not: a whole checkpoint is Complete and not Valid |
//! | a file of another step | `trainer_state.json`, and shards with other tensors; else not |

use super::fault::Fault;
use super::{Claim, Listing, Rules, dcp, deepspeed, json, named, safetensors, torch};
use crate::files::Files;
use crate::found::{Depth, Format, Judgement, Verdict};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// The Trainer's folders.
pub const RULES: Rules = Rules { format: Format::HuggingFace, claim, judge };

const STATE: &str = "trainer_state.json";
/// Left by a checkpoint that is written on a signal, until it is whole.
const UNFINISHED: &str = "checkpoint-is-incomplete.txt";
/// A tokenizer has some tens of megabytes; so has the history of a million steps.
const JSON_LIMIT: u64 = 256 << 20;
/// Fields that `trainer_state.json` has had in every version.
const REQUIRED: [&str; 4] = ["epoch", "global_step", "log_history", "max_steps"];
/// Its other fields.
const FIELDS: [&str; 16] = [
    "best_global_step",
    "best_metric",
    "best_model_checkpoint",
    "eval_steps",
    "is_hyper_param_search",
    "is_local_process_zero",
    "is_world_process_zero",
    "logging_steps",
    "num_input_tokens_seen",
    "num_train_epochs",
    "save_steps",
    "stateful_callbacks",
    "total_flos",
    "train_batch_size",
    "trial_name",
    "trial_params",
];

fn claim(listing: &Listing) -> Vec<Claim> {
    // Accelerate's scripts name their folders so too, and have no trainer_state.json.
    let is_accelerate = |name: &String| {
        name.starts_with("random_states_")
            || matches!(name.as_str(), "optimizer.bin" | "scheduler.bin" | "custom_checkpoint_0.pkl")
    };
    let is_named = named::number(&listing.name, "checkpoint-", "").is_some();
    let is_ours =
        listing.has_file(STATE) || listing.has_file("training_args.bin") || !listing.files.iter().any(is_accelerate);
    if is_named && is_ours { vec![Claim::Folder] } else { Vec::new() }
}

fn judge(name: &str, files: &dyn Files, depth: Depth) -> io::Result<Judgement> {
    if files.member(UNFINISHED).is_some() {
        return Ok(Judgement::incomplete(format!("{UNFINISHED} says that it is being written")));
    }
    if files.member(STATE).is_none() {
        return Ok(Judgement::incomplete(format!("{STATE} is missing, which is written last")));
    }
    let state = match State::read(files) {
        Ok(state) => state,
        Err(fault) => return fault.judge(STATE, false),
    };
    let mut judgement = Judgement {
        step: Some(state.step),
        epoch: state.epoch,
        metrics: state.metrics,
        needs: state.best,
        ..Judgement::valid()
    };
    if named::number(name, "checkpoint-", "").is_some_and(|step| step != state.step) {
        let why = format!("has global_step {}, but the folder is {name}", state.step);
        judgement.verdict = Judgement::corrupted(STATE, why).verdict;
        return Ok(judgement);
    }
    judgement.verdict = match missing(files) {
        Some(why) => Verdict::Incomplete { why },
        None => members(files, depth)?,
    };
    Ok(judgement)
}

/// A missing file that an existing one requires.
fn missing(files: &dyn Files) -> Option<String> {
    let has = |path: &str| files.member(path).is_some();
    let below = |folder: &str| files.members().iter().any(|member| member.path.starts_with(folder));
    if below("global_step") && !has(deepspeed::LATEST) {
        return Some(format!("{} is missing, which names DeepSpeed's folder", deepspeed::LATEST));
    }
    let weights = |path: &str| {
        let file = path.rsplit_once('/').map_or(path, |(_, file)| file);
        matches!(file, "model.safetensors" | "pytorch_model.bin" | "adapter_model.safetensors" | "adapter_model.bin")
            || file.ends_with(".index.json")
            || file == "pytorch_model_fsdp.bin"
    };
    if !files.members().iter().any(|member| weights(&member.path))
        && !below("pytorch_model_fsdp_0/")
        && !below("global_step")
    {
        return Some("there are no weights".into());
    }
    if let Some(why) = safetensors::missing_shard(files) {
        return Some(why);
    }
    let ranks: BTreeSet<u64> =
        files.members().iter().filter_map(|member| named::number(&member.path, "rng_state_", ".pth")).collect();
    if let Some(gap) = (0..).zip(&ranks).find(|(expected, rank)| expected != *rank) {
        return Some(format!("rng_state_{}.pth is missing, and that of rank {} is there", gap.0, gap.1));
    }
    // With `save_only_model` there is none of the three.
    let optimizer = has("optimizer.pt") || has("optimizer.bin") || below("optimizer_") || below("global_step");
    let scheduler = has("scheduler.pt");
    let random = has("rng_state.pth") || !ranks.is_empty();
    let parts = [("an optimizer", optimizer), ("scheduler.pt", scheduler), ("rng_state.pth", random)];
    // DeepSpeed keeps the scheduler with the optimizer.
    let needed = |name: &str| !(name == "scheduler.pt" && below("global_step"));
    if parts.iter().any(|(_, there)| *there) {
        let first = parts.iter().find(|(name, there)| !there && needed(name));
        return first.map(|(name, _)| format!("there is no {name}, though it is no checkpoint of weights only"));
    }
    None
}

/// Checks each file according to its name.
fn members(files: &dyn Files, depth: Depth) -> io::Result<Verdict> {
    let mut folders = BTreeSet::new();
    let mut unseen = None;
    for member in files.members() {
        let path = member.path.as_str();
        if let Some((folder, _)) = path.split_once('/')
            && (folder.starts_with("global_step")
                || folder.starts_with("pytorch_model_fsdp_")
                || folder.starts_with("optimizer_"))
        {
            folders.insert(folder);
            continue;
        }
        // Files of other ranks may be written after trainer_state.json.
        let finished = !path.starts_with("rng_state_");
        let verdict = match look(files, path, depth) {
            Ok(None) => continue,
            Ok(Some(Verdict::Complete { why })) => {
                unseen = unseen.or(Some(why));
                continue;
            }
            Ok(Some(verdict)) => verdict,
            Err(fault) => fault.judge(path, finished)?.verdict,
        };
        return Ok(verdict);
    }
    for folder in folders {
        let below = format!("{folder}/");
        let judgement = match folder.starts_with("global_step") {
            true => deepspeed::judge_below(&below, files, depth)?,
            false => dcp::judge_below(&below, files, depth)?,
        };
        match judgement.verdict {
            Verdict::Valid => {}
            Verdict::Complete { why } => unseen = unseen.or(Some(why)),
            verdict => return Ok(verdict),
        }
    }
    // Their values can't be verified: a type or a size in config.json is whatever the program says.
    let why = unseen.unwrap_or_else(|| "damage could be unseen: its *.json have no checksum".to_owned());
    Ok(Verdict::Complete { why })
}

/// What is to be said of one file; nothing if it is good.
fn look(files: &dyn Files, path: &str, depth: Depth) -> Result<Option<Verdict>, Fault> {
    let file = path.rsplit_once('/').map_or(path, |(_, file)| file);
    if file.ends_with(".index.json") {
        return Ok(safetensors::check_index(files, path)?.map(|judgement| judgement.verdict));
    }
    match file.rsplit_once('.') {
        Some((stem, "safetensors")) => {
            let metadata = safetensors::check(files, path)?;
            // transformers loads no weights that don't say whose they are.
            let framework = metadata.metadata().as_ref().and_then(|metadata| metadata.get("format"));
            let known = framework.is_some_and(|framework| matches!(framework.as_str(), "pt" | "tf" | "flax" | "mlx"));
            if stem.starts_with("model") && !known {
                return Fault::wrong("does not say which framework's tensors it has");
            }
        }
        Some((_, "pt" | "pth")) => return unproven(files, path, depth),
        Some((stem, "bin"))
            if ["pytorch_model", "adapter_model", "training_args", "optimizer", "scheduler"]
                .iter()
                .any(|known| stem.starts_with(known)) =>
        {
            return unproven(files, path, depth);
        }
        Some((_, "json")) if depth == Depth::Content && file != STATE => {
            json::read::<IgnoredAny>(files, path, JSON_LIMIT)?;
        }
        _ => {}
    }
    Ok(None)
}

fn unproven(files: &dyn Files, path: &str, depth: Depth) -> Result<Option<Verdict>, Fault> {
    Ok(torch::check(files, path, depth)?.unseen(path).map(|why| Verdict::Complete { why }))
}

/// The values of `trainer_state.json` that are used further.
struct State {
    step: u64,
    epoch: Option<f64>,
    metrics: BTreeMap<String, f64>,
    /// What `load_best_model_at_end` loads.
    best: Vec<String>,
}

/// The file itself.
#[derive(Deserialize)]
struct TrainerStateFile {
    epoch: Option<f64>,
    global_step: u64,
    log_history: History,
    best_metric: Option<f64>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// The last value of each metric: `eval_*` by step, and the loss.
#[derive(Default)]
struct History {
    evaluated: BTreeMap<String, f64>,
    /// The step of that evaluation.
    at: Option<u64>,
    loss: Option<f64>,
}

impl<'de> Deserialize<'de> for History {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = History;

            fn expecting(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
                formatter.write_str("a list of what was logged")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<History, A::Error> {
                let mut history = History::default();
                while let Some(entry) = entries.next_element::<Map<String, Value>>()? {
                    history.take(&entry);
                }
                Ok(history)
            }
        }
        deserializer.deserialize_seq(Entries)
    }
}

impl History {
    fn take(&mut self, entry: &Map<String, Value>) {
        self.loss = entry.get("loss").and_then(Value::as_f64).or(self.loss);
        let evaluated = entry.iter().filter(|(name, _)| name.starts_with("eval_"));
        let mut evaluated = evaluated.filter_map(|(name, value)| Some((name.clone(), value.as_f64()?))).peekable();
        if evaluated.peek().is_some() {
            let at = entry.get("step").and_then(Value::as_u64);
            if at != self.at {
                self.evaluated.clear();
            }
            self.at = at;
            self.evaluated.extend(evaluated);
        }
    }
}

impl State {
    fn read(files: &dyn Files) -> Result<Self, Fault> {
        let written: TrainerStateFile = json::read(files, STATE, JSON_LIMIT)?;
        let known: Vec<&str> = REQUIRED.into_iter().chain(FIELDS).collect();
        for name in written.others.keys() {
            if !known.contains(&name.as_str()) && named::is_damaged(name, &known) {
                return Fault::wrong(format!("has {name:?}, a name that is damaged"));
            }
        }
        if !written.others.contains_key("max_steps") {
            return Fault::wrong("has no max_steps");
        }
        // An evaluation of another step says nothing about this one's weights.
        let mut metrics = match written.log_history.at {
            Some(at) if at == written.global_step => written.log_history.evaluated,
            _ => BTreeMap::new(),
        };
        metrics.extend(written.log_history.loss.map(|loss| ("loss".to_string(), loss)));
        metrics.extend(written.best_metric.map(|best| ("best_metric".to_string(), best)));
        let best = written.others.get("best_model_checkpoint").and_then(Value::as_str);
        let best = best.map(str::to_owned).into_iter().collect();
        Ok(Self { step: written.global_step, epoch: written.epoch, metrics, best })
    }
}
