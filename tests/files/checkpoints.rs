//! Checkpoints that the real libraries wrote, damaged in every way that happens. If the damage keeps the library from
//! loading a checkpoint, the verdict is never valid. An undamaged checkpoint is never called incomplete or corrupted.
//! It is called complete, and not valid, where unseen damage could keep it from loading.
//!
//! Short form: the small ones in `tests/fixtures/checkpoints`. Long form: `tests/checkpoints/make_torch.py FOLDER`
//! makes more. `CHECKPOINTS=FOLDER CHECKPOINTS_CASES=FILE DAMAGES=20000 cargo test --test files checkpoints::` damages
//! them and writes the damages and the verdicts. `tests/checkpoints/check_torch.py FOLDER FILE` does the same to files,
//! loads them, and compares.
//!
//! The long form over 29 checkpoints, with `DAMAGES=13500`. Each cell gives how many the library then loads as they
//! were / with other values / not at all. All 29 are called valid or complete while they are undamaged.
//!
//! | damage | valid | complete | incomplete | corrupted |
//! |---|---|---|---|---|
//! | cut | 0 / 0 / 0 | 0 / 0 / 0 | 44 / 0 / 2416 | 40 / 0 / 740 |
//! | one bit | 249 / 0 / 0 | 649 / 288 / 28 | 0 / 0 / 139 | 2657 / 163 / 3861 |
//! | zeros | 1 / 0 / 0 | 16 / 62 / 0 | 0 / 0 / 33 | 51 / 7 / 1427 |
//! | longer | 0 / 0 / 0 | 14 / 0 / 0 | 44 / 0 / 0 | 48 / 2 / 36 |
//! | missing | 0 / 0 / 0 | 8 / 4 / 0 | 1 / 22 / 37 | 0 / 0 / 0 |
//! | empty | 0 / 0 / 0 | 0 / 0 / 0 | 2 / 0 / 36 | 3 / 0 / 31 |
//! | of another step | 0 / 0 / 0 | 2 / 22 / 0 | 0 / 0 / 0 | 0 / 2 / 0 |
//! | **all 13185** | 250 / 0 / 0 | 689 / 376 / 28 | 91 / 22 / 2661 | 2799 / 174 / 6095 |
//!
//! 28 are complete and can't be loaded: 21 are of torch's form of before 1.6 or without checksums, and 7 of DCP.
//! `DAMAGES=80000` found two more in a `config.json` of the Trainer. All valid ones have a format with a checksum of
//! every byte, and the library loads them as they were.

use checkpoint::files::{Files, Member, ReadSeek};
use checkpoint::formats::{
    Claim, Listing, Rules, dcp, deepspeed, hugging_face, keras, lightning, marked, megatron, safetensors, torch, verl,
};
use checkpoint::found::{Depth, Verdict};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Cursor, Write as _};
use std::path::{Path, PathBuf};

/// By the name of the folder that contains their checkpoints.
const FORMATS: [(&str, &Rules); 10] = [
    ("torch", &torch::RULES),
    ("lightning", &lightning::RULES),
    ("safetensors", &safetensors::RULES),
    ("hugging-face", &hugging_face::RULES),
    ("dcp", &dcp::RULES),
    ("keras", &keras::RULES),
    ("deepspeed", &deepspeed::RULES),
    ("megatron", &megatron::RULES),
    ("verl", &verl::RULES),
    ("marked", &marked::RULES),
];

/// A checkpoint in memory.
#[derive(Clone)]
struct Held {
    format: &'static str,
    rules: &'static Rules,
    /// Its folder, relative to the folder of all.
    folder: String,
    name: String,
    /// The files that were claimed for it.
    contents: BTreeMap<String, Vec<u8>>,
    members: Vec<Member>,
}

impl Files for Held {
    fn members(&self) -> &[Member] {
        &self.members
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn ReadSeek + '_>> {
        match self.contents.get(path) {
            Some(bytes) => Ok(Box::new(Cursor::new(bytes))),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

impl Held {
    fn list(&mut self) {
        let member =
            |(path, bytes): (&String, &Vec<u8>)| Member { path: path.clone(), size: bytes.len() as u64, modified: 0 };
        self.members = self.contents.iter().map(member).collect();
    }

    fn judge(&self, depth: Depth) -> Verdict {
        (self.rules.judge)(&self.name, self, depth).expect("memory can be read").verdict
    }
}

/// All files below a folder.
fn read_below(folder: &Path, prefix: &str, contents: &mut BTreeMap<String, Vec<u8>>) {
    for entry in std::fs::read_dir(folder).expect("the folder is there").flatten() {
        let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
        match entry.path().is_dir() {
            true => read_below(&entry.path(), &format!("{path}/"), contents),
            false => drop(contents.insert(path, std::fs::read(entry.path()).expect("the file can be read"))),
        }
    }
}

fn listing(folder: &Path) -> Listing {
    let mut listing = Listing { name: folder.file_name().unwrap().to_string_lossy().into(), ..Listing::default() };
    for entry in std::fs::read_dir(folder).expect("the folder is there").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().is_dir() { listing.folders.push(name) } else { listing.files.push(name) }
    }
    listing.files.sort();
    listing.folders.sort();
    listing
}

/// All checkpoints of a folder `FORMAT/VARIANT[/CHECKPOINT]`.
fn find(root: &Path) -> Vec<Held> {
    let mut found = Vec::new();
    for (format, rules) in FORMATS {
        let Ok(variants) = std::fs::read_dir(root.join(format)) else { continue };
        let variants: Vec<PathBuf> = variants.flatten().map(|entry| entry.path()).collect();
        let below = variants.iter().flat_map(|variant| {
            listing(variant).folders.into_iter().map(|name| variant.join(name)).collect::<Vec<_>>()
        });
        for folder in variants.iter().cloned().chain(below) {
            for claim in (rules.claim)(&listing(&folder)) {
                let mut contents = BTreeMap::new();
                read_below(&folder, "", &mut contents);
                let name = match claim {
                    Claim::Folder => folder.file_name().unwrap().to_string_lossy().into_owned(),
                    Claim::Files { name, files } => {
                        contents.retain(|path, _| files.contains(path));
                        name
                    }
                };
                let relative = folder.strip_prefix(root).unwrap().to_string_lossy().into_owned();
                let mut held = Held { format, rules, folder: relative, name, contents, members: Vec::new() };
                held.list();
                found.push(held);
            }
        }
    }
    found.sort_by(|ours, theirs| {
        (ours.format, &ours.folder, &ours.name).cmp(&(theirs.format, &theirs.folder, &theirs.name))
    });
    found
}

/// A damage to one file.
#[derive(Clone)]
enum Damage {
    Cut(usize),
    Flip(usize, u8),
    /// Only zeros from there on, as after a crash of the node.
    Zeros(usize, usize),
    Longer(usize),
    Missing,
    Empty,
    /// The same file of another checkpoint.
    Other(String),
}

impl Damage {
    fn kind(&self) -> &'static str {
        match self {
            Self::Cut(_) => "cut",
            Self::Flip(..) => "one bit",
            Self::Zeros(..) => "zeros",
            Self::Longer(_) => "longer",
            Self::Missing => "missing",
            Self::Empty => "empty",
            Self::Other(_) => "of another step",
        }
    }

    fn json(&self) -> String {
        match self {
            Self::Cut(at) => format!(r#""cut",{at}"#),
            Self::Flip(at, bit) => format!(r#""flip",{at},{bit}"#),
            Self::Zeros(at, count) => format!(r#""zeros",{at},{count}"#),
            Self::Longer(by) => format!(r#""longer",{by}"#),
            Self::Missing => r#""missing""#.into(),
            Self::Empty => r#""empty""#.into(),
            Self::Other(folder) => format!(r#""other",{folder:?}"#),
        }
    }
}

/// Reproducible numbers (splitmix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit.max(1) as u64) as usize
    }
}

/// The bytes that describe the others: headers of ZIPs and of safetensors, and all of a text or of a pickle by itself.
fn structure(path: &str, bytes: &[u8]) -> Vec<usize> {
    let mut places = Vec::new();
    if path.ends_with(".json") || path.ends_with(".metadata") || bytes.starts_with(b"\x80\x02") {
        return (0..bytes.len()).collect();
    }
    if path.ends_with(".safetensors") {
        let header = bytes.get(..8).map_or(0, |length| u64::from_le_bytes(length.try_into().unwrap()) as usize);
        return (0..bytes.len().min(8 + header)).collect();
    }
    for at in 0..bytes.len().saturating_sub(4) {
        let length = match &bytes[at..at + 4] {
            b"PK\x03\x04" => 30 + usize::from(u16::from_le_bytes([bytes[at + 26], bytes[at + 27]])) + 4,
            b"PK\x01\x02" => 46 + usize::from(u16::from_le_bytes([bytes[at + 28], bytes[at + 29]])),
            b"PK\x05\x06" => 22,
            b"PK\x06\x06" => 56,
            b"PK\x06\x07" => 20,
            b"PK\x07\x08" => 16,
            _ => continue,
        };
        places.extend(at..(at + length).min(bytes.len()));
    }
    places
}

/// `count` damages of a checkpoint, spread over its files. Damages to whole files are always among them.
fn damages(held: &Held, all: &[Held], count: usize, dice: &mut Dice) -> Vec<(String, Damage)> {
    let mut chosen = Vec::new();
    let others: Vec<&Held> = all
        .iter()
        .filter(|other| {
            other.folder != held.folder && Path::new(&other.folder).parent() == Path::new(&held.folder).parent()
        })
        .collect();
    for (path, bytes) in &held.contents {
        let mut add = |damage: Damage| chosen.push((path.clone(), damage));
        let share = count / held.contents.len().max(1);
        add(Damage::Missing);
        if !bytes.is_empty() {
            add(Damage::Empty);
        }
        add(Damage::Longer(1));
        add(Damage::Longer(512));
        for other in &others {
            if other.contents.get(path).is_some_and(|theirs| theirs != bytes) {
                add(Damage::Other(other.folder.clone()));
            }
        }
        if bytes.len() < 2 {
            continue;
        }
        let places = structure(path, bytes);
        let starts: Vec<usize> =
            places.iter().copied().filter(|at| *at > 0 && bytes[*at..].starts_with(b"PK")).collect();
        for _ in 0..share / 8 {
            add(Damage::Cut(1 + dice.below(bytes.len() - 1)));
            match starts.is_empty() {
                true => add(Damage::Cut(bytes.len() - 1 - dice.below(bytes.len().min(64) - 1))),
                false => add(Damage::Cut(starts[dice.below(starts.len())])),
            }
            let at = dice.below(bytes.len());
            let length = 1 + dice.below(bytes.len() - at);
            if bytes[at..at + length].iter().any(|byte| *byte != 0) {
                add(Damage::Zeros(at, length));
            }
            add(Damage::Flip(dice.below(bytes.len()), dice.below(8) as u8));
        }
        // All of the structure if it fits, else a part of it.
        let flips = share / 2;
        let bits = places.len() * 8;
        for index in 0..flips.min(bits) {
            let bit = if bits <= flips { index } else { dice.below(bits) };
            add(Damage::Flip(places[bit / 8], (bit % 8) as u8));
        }
    }
    chosen
}

fn damaged(held: &Held, path: &str, damage: &Damage, all: &[Held]) -> Held {
    let mut damaged = held.clone();
    let bytes = damaged.contents.get_mut(path).expect("it has the file");
    match damage {
        Damage::Cut(at) => bytes.truncate(*at),
        Damage::Flip(at, bit) => bytes[*at] ^= 1 << bit,
        Damage::Zeros(at, count) => bytes[*at..at + count].fill(0),
        Damage::Longer(by) => bytes.resize(bytes.len() + by, 0),
        Damage::Missing => drop(damaged.contents.remove(path)),
        Damage::Empty => bytes.clear(),
        Damage::Other(folder) => {
            let other = all.iter().find(|other| other.folder == *folder).expect("it is among them");
            bytes.clone_from(&other.contents[path]);
        }
    }
    damaged.list();
    damaged
}

fn word(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Valid => "valid",
        Verdict::Complete { .. } => "complete",
        Verdict::Incomplete { .. } => "incomplete",
        Verdict::Corrupted { .. } => "corrupted",
    }
}

/// The verdict on a whole checkpoint: valid only where no unseen damage could keep the library from loading it.
fn whole(held: &Held) -> &'static str {
    let is_old = |(path, bytes): (&String, &Vec<u8>)| path.ends_with(".pt") && bytes.starts_with(b"\x80\x02");
    // The content of a marked folder, or of a config.json, is unknown.
    let has_no_checksums = matches!(held.format, "marked" | "safetensors" | "hugging-face" | "verl")
        || held.folder.ends_with("unchecked")
        || held.contents.keys().any(|path| path.ends_with(".metadata"))
        || held.contents.iter().any(is_old);
    if has_no_checksums { "complete" } else { "valid" }
}

/// Whether a damage may go unseen in the short form, which has no library to ask. In these files nothing else confirms
/// a tensor, a name or a number.
fn may_be_unseen(held: &Held, path: &str, damage: &Damage) -> bool {
    let file = path.rsplit('/').next().unwrap_or(path);
    let kind = file.rsplit('.').next().unwrap_or_default();
    match damage {
        // Only files of a known form are looked at.
        _ if held.format == "marked" => true,
        // A file that the program does not need, or that can't be counted.
        Damage::Missing => {
            file.ends_with("config.json")
                || file == "training_args.bin"
                || file == "data.pt"
                || file.starts_with("rng_state_")
                || file.contains("_rank_")
        }
        // The end of the last line.
        Damage::Cut(at) if kind == "json" => held.contents[path][*at..].iter().all(u8::is_ascii_whitespace),
        Damage::Empty | Damage::Cut(_) => false,
        // Zeros, and padding.
        Damage::Longer(_) => matches!(kind, "distcp" | "json"),
        Damage::Zeros(..) | Damage::Flip(..) => {
            matches!(kind, "safetensors" | "json" | "metadata")
                || held.folder.contains("legacy-")
                || held.folder.ends_with("unchecked")
                || held.contents[path].len() < 600_000 && is_unread(&held.contents[path], damage)
        }
        Damage::Other(_) => true,
    }
}

/// The parts that no reader of a ZIP reads: the creator of an entry, its attributes, and padding.
fn is_unread(bytes: &[u8], damage: &Damage) -> bool {
    let mut unread = vec![false; bytes.len()];
    let mut mark = |from: usize, count: usize| unread[from..from + count].fill(true);
    for at in 0..bytes.len().saturating_sub(22) {
        match &bytes[at..at + 4] {
            b"PK\x03\x04" => {
                mark(at + 4, 2);
                // With that flag, checksums and lengths follow the data.
                if bytes[at + 6] & 8 != 0 {
                    mark(at + 14, 12);
                }
                let name = usize::from(u16::from_le_bytes([bytes[at + 26], bytes[at + 27]]));
                let extra = usize::from(u16::from_le_bytes([bytes[at + 28], bytes[at + 29]]));
                if extra > 4 {
                    mark(at + 30 + name + 4, extra - 4);
                }
            }
            b"PK\x01\x02" => {
                mark(at + 4, 4);
                mark(at + 36, 6);
            }
            b"PK\x06\x06" => mark(at + 12, 4),
            _ => {}
        }
    }
    match damage {
        Damage::Flip(at, _) => unread[*at],
        Damage::Zeros(at, count) => (*at..at + count).all(|at| unread[at] || bytes[at] == 0),
        _ => false,
    }
}

#[test]
fn damaged_checkpoint_is_never_valid_and_whole_one_is_always_good() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/checkpoints");
    let root = std::env::var_os("CHECKPOINTS").map_or(fixtures, PathBuf::from);
    let count = std::env::var("DAMAGES").ok().map_or(600, |count| count.parse().expect("DAMAGES is a number"));
    let mut cases =
        std::env::var_os("CHECKPOINTS_CASES").map(|path| std::fs::File::create(path).expect("it can be written"));
    let all = find(&root);
    assert!(all.len() > 8, "only {} checkpoints below {}", all.len(), root.display());
    let mut dice = Dice(7);
    let mut table: BTreeMap<(&str, &str), [usize; 4]> = BTreeMap::new();
    let mut wrong = Vec::new();
    for held in &all {
        for depth in [Depth::Structure, Depth::Content] {
            let verdict = held.judge(depth);
            if word(&verdict) != whole(held) {
                wrong.push(format!("{}/{} is whole, and at {depth:?} called {verdict:?}", held.folder, held.name));
            }
        }
        let mine: Vec<_> = damages(held, &all, count / all.len(), &mut dice);
        for (path, damage) in mine {
            let damaged = damaged(held, &path, &damage, &all);
            let verdict = damaged.judge(Depth::Content);
            let index = ["valid", "complete", "incomplete", "corrupted"]
                .iter()
                .position(|name| *name == word(&verdict))
                .unwrap();
            table.entry((damage.kind(), held.format)).or_default()[index] += 1;
            // A verdict that needs no reading of everything is the same at both depths.
            if verdict.is_good() && damaged.judge(Depth::Structure) != verdict {
                wrong.push(format!("{}/{path}: Structure sees more than Content", held.folder));
            }
            // A checkpoint that may have unseen damage is called so at any depth.
            if verdict == Verdict::Valid && whole(held) != "valid" && !matches!(damage, Damage::Missing) {
                wrong.push(format!("{}/{path}: {} called valid, not complete", held.folder, damage.json()));
            }
            if let Some(cases) = &mut cases {
                let (format, folder, name) = (held.format, &held.folder, &held.name);
                let reported = word(&verdict);
                writeln!(cases, "[{format:?},{folder:?},{name:?},{path:?},{reported:?},{}]", damage.json()).unwrap();
            } else if verdict.is_good() && !may_be_unseen(held, &path, &damage) {
                wrong.push(format!("{}/{path}: {} called {}", held.folder, damage.json(), word(&verdict)));
            }
        }
    }
    let mut text =
        String::from("| damage | format | valid | complete | incomplete | corrupted |\n|---|---|---|---|---|---|\n");
    for ((kind, format), [valid, complete, incomplete, corrupted]) in &table {
        writeln!(text, "| {kind} | {format} | {valid} | {complete} | {incomplete} | {corrupted} |").unwrap();
    }
    println!("{} checkpoints, {} damages\n{text}", all.len(), table.values().flatten().sum::<usize>());
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong[..wrong.len().min(40)].join("\n"));
}

fn held(format: &str, folder: &str) -> Held {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/checkpoints");
    let mut all = find(&fixtures).into_iter();
    all.find(|held| held.format == format && held.folder.ends_with(folder)).expect("it is among them")
}

#[test]
fn step_epoch_and_metrics_are_read_from_checkpoints() {
    let reported = [
        ("torch", "full", Some(7), Some(1.0)),
        ("lightning", "fit", Some(8), Some(2.0)),
        ("hugging-face", "checkpoint-4", Some(4), Some(1.0)),
        ("dcp", "step_9", Some(9), None),
        ("keras", "one", None, Some(1.0)),
        ("deepspeed", "global_step10", Some(10), None),
        ("megatron", "iter_0000030", Some(30), None),
        ("megatron", "iter_0000040", Some(40), None),
        ("verl", "global_step_20", Some(20), None),
        ("marked", "step-5", Some(5), None),
    ];
    for (format, folder, step, epoch) in reported {
        let held = held(format, folder);
        let judgement = (held.rules.judge)(&held.name, &held, Depth::Structure).unwrap();
        assert_eq!((judgement.step, judgement.epoch), (step, epoch), "{folder}");
    }
    let held = held("hugging-face", "checkpoint-4");
    let metrics = (held.rules.judge)(&held.name, &held, Depth::Structure).unwrap().metrics;
    let names: Vec<&str> = metrics.keys().map(String::as_str).collect();
    let evaluated = ["eval_loss", "eval_runtime", "eval_samples_per_second", "eval_steps_per_second"];
    assert_eq!(names, [&["best_metric"], &evaluated[..], &["loss"]].concat());
    assert_eq!(metrics["best_metric"], metrics["eval_loss"]);
}

#[test]
fn formats_claim_folders_by_name_and_content() {
    let listing = |name: &str, files: &[&str], folders: &[&str]| {
        let sorted = |names: &[&str]| {
            let mut names: Vec<String> = names.iter().map(ToString::to_string).collect();
            names.sort();
            names
        };
        Listing { name: name.into(), files: sorted(files), folders: sorted(folders) }
    };
    let claims =
        |rules: &Rules, name: &str, files: &[&str], folders: &[&str]| (rules.claim)(&listing(name, files, folders));
    let one = |name: &str| Claim::Files { name: name.into(), files: vec![name.into()] };
    let parts = ["optimizer.pt", "rng_state_0.pth", "training_args.bin", "tokens.bin", ".a.pt", "x_optim_states.pt"];
    assert_eq!(claims(&torch::RULES, "run", &parts, &[]), []);
    assert_eq!(claims(&torch::RULES, "", &["a.pt", "b.pth", "model.bin", "c.txt"], &[]).len(), 3);
    assert_eq!(claims(&lightning::RULES, "", &["last.ckpt", "a.ckpt.tmp"], &[]), [one("last.ckpt")]);
    assert_eq!(claims(&lightning::RULES, "last.ckpt", &["latest"], &["checkpoint"]), [Claim::Folder]);
    assert_eq!(claims(&hugging_face::RULES, "checkpoint-10", &[], &[]), [Claim::Folder]);
    assert_eq!(claims(&hugging_face::RULES, "checkpoint-10", &["optimizer.bin", "random_states_0.pkl"], &[]), []);
    assert_eq!(claims(&hugging_face::RULES, "tmp-checkpoint-10", &["trainer_state.json"], &[]), []);
    assert_eq!(claims(&dcp::RULES, "x", &["__0_0.distcp"], &[]), [Claim::Folder]);
    assert_eq!(claims(&dcp::RULES, "x", &["a.distcp"], &[]), []);
    assert_eq!(claims(&deepspeed::RULES, "global_step5", &[], &[]), [Claim::Folder]);
    assert_eq!(claims(&megatron::RULES, "iter_0000001", &[], &[]), [Claim::Folder]);
    assert_eq!(claims(&verl::RULES, "global_step_20", &[], &["actor"]), [Claim::Folder]);
    assert_eq!(claims(&verl::RULES, "actor", &["model_world_size_8_rank_3.pt"], &[]), [Claim::Folder]);
    for (name, files, folders) in [
        ("global_step_20", &["notes.txt"][..], &["logs"][..]),
        ("global_step_x", &[], &["actor"]),
        ("a", &["optim_world_size_8_rank_3.pt", "model_world_size_8.pt", "model_world_size_a_rank_0.pt"], &[]),
        ("a", &["model_world_size_8_rank_3.pt.tmp", "model_rank_3.pt"], &[]),
    ] {
        assert_eq!(claims(&verl::RULES, name, files, folders), [], "{name} {files:?}");
    }
    assert_eq!(claims(&megatron::RULES, "release", &["notes.txt"], &[]), []);
    assert_eq!(claims(&keras::RULES, "", &["a.keras"], &[]), [one("a.keras")]);
    assert_eq!(claims(&marked::RULES, "a", &[".complete"], &[]), [Claim::Folder]);
    let model = ["config.json", "model.safetensors"];
    assert_eq!(claims(&safetensors::RULES, "final", &model, &[]), [Claim::Folder]);
    // The last weights are files in the folder where a run keeps all its checkpoints.
    assert_eq!(claims(&safetensors::RULES, "out", &model, &["checkpoint-4"]), [one("model.safetensors")]);
    let sharded =
        ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"];
    let all = sharded.map(String::from).to_vec();
    assert_eq!(
        claims(&safetensors::RULES, "out", &sharded, &["checkpoint-4"]),
        [Claim::Files { name: sharded[2].into(), files: all }]
    );
}

/// The ranks' files are one save, by the number in their names. Another number of ranks may have saved the step before.
#[test]
fn verl_ranks_form_one_checkpoint() {
    let whole = held("verl", "global_step_20");
    let complete = whole.judge(Depth::Content);
    assert!(complete.is_good(), "{complete:?}");
    let with = |changes: &[(&str, Option<&str>)]| {
        let mut held = whole.clone();
        for (path, from) in changes {
            match from {
                Some(from) => drop(held.contents.insert((*path).into(), whole.contents[*from].clone())),
                None => drop(held.contents.remove(*path)),
            }
        }
        held.list();
        held.judge(Depth::Structure)
    };
    let lacks = |file: &str| Verdict::Incomplete { why: format!("there is no {file}") };
    let (first, second) = ("actor/model_world_size_2_rank_0.pt", "actor/model_world_size_2_rank_1.pt");
    assert_eq!(with(&[(second, None)]), lacks(second));
    assert_eq!(with(&[("actor/optim_world_size_2_rank_0.pt", None)]), lacks("actor/optim_world_size_2_rank_0.pt"));
    assert_eq!(with(&[("actor/model_world_size_3_rank_2.pt", Some(first))]), complete, "a size that is whole");
    let of_three = ["actor/model_world_size_3_rank_0.pt", "actor/model_world_size_3_rank_2.pt"];
    let three = of_three.map(|path| (path, Some(first)));
    let changes = [&three[..], &[(first, None), (second, None)]].concat();
    assert_eq!(with(&changes), lacks("actor/model_world_size_3_rank_1.pt"));
    assert_eq!(with(&[(first, None), (second, None)]), lacks("model_world_size_*_rank_*.pt"));
}

/// The verdict on torch's old form with some bytes replaced.
fn old_with(was: &[u8], is: &[u8]) -> &'static str {
    let mut held = held("torch", "legacy-tiny");
    let bytes = held.contents.get_mut("old.pt").expect("it is in it");
    let at = bytes.windows(was.len()).position(|part| part == was).expect("they are in it");
    bytes.splice(at..at + was.len(), is.iter().copied());
    held.list();
    word(&held.judge(Depth::Content))
}

#[test]
fn damaged_legacy_torch_names_are_corrupted_but_custom_ones_are_not() {
    const CLASS: &[u8] = b"ccollections\nOrderedDict\n";
    let class = |name: &str| old_with(CLASS, format!("c{}\n", name.replace(' ', "\n")).as_bytes());
    let own = [
        "collections OrderedDict",
        "collections Counter",
        "collections defaultdict",
        "collection OrderedDict",
        "my.collections OrderedDict",
        "torch.util OrderedDict",
        "torch_utils _rebuild_tensor_w2",
        "torch._utils _rebuild_tensor",
        "torch._utils _rebuild_tensor_v3",
        "torch.nn.modules.linear Linear",
        "torch ShortStorage",
    ];
    for name in own {
        assert_eq!(class(name), "complete", "{name}");
    }
    let damaged = [
        "colldctions OrderedDict",
        "collections OrderedDicd",
        "collections orderedDict",
        "tkrch FloatStorage",
        "torch FloatSuorage",
        "torch._utkls _rebuild_tensor_v2",
        "torch._utils _rebuild_tensor_w2",
        "torch.storage UntypedStorafe",
        "numpy \0darray",
    ];
    for name in damaged {
        assert_eq!(class(name), "corrupted", "{name}");
    }
    for place in ["cpu", "mps", "xpu", "hpu", "npu", "ipu"] {
        assert_eq!(old_with(b"\x03\0\0\0cpu", format!("\x03\0\0\0{place}").as_bytes()), "complete", "{place}");
    }
    for place in ["gpu", "cpe", "cqu"] {
        assert_eq!(old_with(b"\x03\0\0\0cpu", format!("\x03\0\0\0{place}").as_bytes()), "corrupted", "{place}");
    }
}

#[test]
fn redundant_values_of_legacy_torch_must_agree() {
    // In order: the tensor's shape, stride and offset, its elements in the pickle and then before its bytes, its key in
    // the list, and the protocol.
    assert_eq!(old_with(b"K\0K\x01\x85", b"K\0K\x02\x85"), "corrupted");
    assert_eq!(old_with(b"K\0K\x01\x85", b"K\x01K\x01\x85"), "corrupted");
    assert_eq!(old_with(b"K\0K\x01\x85", b"K\0N\x85"), "corrupted");
    assert_eq!(old_with(b"q\x06K\x01N", b"q\x06K\x02N"), "incomplete");
    assert_eq!(old_with(b"a.\x01\0", b"a.\x21\0"), "corrupted");
    assert_eq!(old_with(b"q\x01a.", b"q\x01ah\x01a."), "corrupted");
    assert_eq!(old_with(b"\x80\x02M\xe9\x03.", b"\x80\x02M\xe8\x03."), "corrupted");
    // No program would write this, but torch reads it: an empty view of a tensor of one element.
    assert_eq!(old_with(b"K\0K\x01\x85", b"K\x05K\0\x85"), "complete");
}

#[test]
fn verdict_explains_why_damage_may_be_undetected() {
    let reported = [
        ("torch", "legacy-full", "old.pt has the form of before torch 1.6, which has no checksums"),
        ("torch", "unchecked", "unchecked.pt was written with its checksums switched off"),
        ("dcp", "step_9", ".metadata, by which everything in it is found, has no checksum"),
        ("megatron", "iter_0000040", ".metadata, by which everything in it is found, has no checksum"),
        ("hugging-face", "checkpoint-4", "its *.json have no checksum"),
        ("safetensors", "odd", "safetensors has no checksum"),
        ("marked", "step-5", "only .complete says that all is written, and the form of its files is not known"),
    ];
    for (format, folder, why) in reported {
        for depth in [Depth::Structure, Depth::Content] {
            let expected = Verdict::Complete { why: format!("damage could be unseen: {why}") };
            assert_eq!(held(format, folder).judge(depth), expected, "{folder}");
        }
    }
}

/// The same holds within a checkpoint of another format.
#[test]
fn one_file_without_checksums_prevents_a_valid_verdict() {
    let old = held("torch", "legacy-tiny").contents["old.pt"].clone();
    for (format, folder, path) in [
        ("deepspeed", "global_step10", "zero_pp_rank_0_mp_rank_00_optim_states.pt"),
        ("megatron", "iter_0000030", "mp_rank_00/model_optim_rng.pt"),
        ("lightning", "fit", ""),
    ] {
        let mut held = held(format, folder);
        let path = if path.is_empty() { held.name.clone() } else { path.to_owned() };
        assert_eq!(held.judge(Depth::Content), Verdict::Valid, "{folder}");
        assert!(held.contents.insert(path.clone(), old.clone()).is_some(), "{path}");
        held.list();
        assert_eq!(word(&held.judge(Depth::Content)), "complete", "{folder}/{path}");
    }
}

/// The checkpoints that `load_best_model_at_end` and `ckpt_path="best"` load are known by their own files.
#[test]
fn best_checkpoint_of_the_trainer_is_recognized() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/checkpoints");
    let needs = |rules: &Rules, name: &str, folder: &Path| {
        let mut held = Held {
            format: "",
            rules: FORMATS[0].1,
            folder: String::new(),
            name: name.to_owned(),
            contents: BTreeMap::new(),
            members: Vec::new(),
        };
        read_below(folder, "", &mut held.contents);
        held.list();
        (rules.judge)(name, &held, Depth::Structure).expect("memory can be read").needs
    };
    let trainer = needs(&hugging_face::RULES, "checkpoint-4", &fixtures.join("hugging-face/sharded/checkpoint-4"));
    assert_eq!(trainer, ["/checkpoints/hugging-face/plain/checkpoint-4"]);
    let lightning = needs(&lightning::RULES, "epoch=1-step=8.ckpt", &fixtures.join("lightning/fit"));
    assert!(lightning.iter().any(|path| path.ends_with("epoch=1-step=8.ckpt")), "{lightning:?}");
}
