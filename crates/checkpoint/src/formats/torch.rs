//! What `torch.save` writes: a ZIP archive with a pickle `data.pkl`, and each tensor's bytes as `data/KEY`.
//!
//! | damage | at which depth it is seen |
//! |---|---|
//! | cut anywhere: no end record | Structure: Incomplete, because it looks so while it is written |
//! | a bit in the directory or the end records | Structure |
//! | a bit in a header, the pickle, a tensor | Content: CRC32 |
//! | a tensor that the pickle names is missing or has another length | Structure |
//! | a bit anywhere, where the program has switched checksums off, or wrote the format of before torch 1.6 | only if lengths, torch's own names or the pickle's form suffer: a whole one is Complete and not Valid |
//! | the whole file of another step | not seen: nothing in it says which step it belongs to |

use super::fault::Fault;
use super::pickle::{self, Pickle, Value};
use super::zip::Archive;
use super::{Claim, Listing, Rules, named};
use crate::files::{Files, ReadSeek};
use crate::found::{Depth, Format, Judgement};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, SeekFrom};
use std::ops::Range;

/// `torch.save`'s files.
pub const RULES: Rules = Rules { format: Format::Torch, claim, judge };

/// A pickle is read at [`Depth::Structure`] up to this length.
const SHORT_PICKLE: u64 = 16 << 20;

/// Beginnings of names of files that are part of a checkpoint, and not one by themselves.
const PARTS: [&str; 12] = [
    "rng_state",
    "optimizer",
    "scheduler",
    "scaler",
    "training_args",
    "random_states",
    "model_optim_rng",
    "distrib_optim",
    "meta.pt",
    "common.pt",
    "zero_pp_rank_",
    "pytorch_model-",
];
/// Any program may use `.bin`, so only the usual names of weights count.
const WEIGHTS: [&str; 5] = ["pytorch_model", "adapter_model", "model", "checkpoint", "ckpt"];

fn claim(listing: &Listing) -> Vec<Claim> {
    let is_one = |name: &&String| {
        // Old scripts use this name, PyTorch's ImageNet example among them. The file is no TAR archive.
        let renamed = name.strip_suffix(".tar").filter(|name| name.ends_with(".pth") || name.ends_with(".pt"));
        let known = match renamed.unwrap_or(name).rsplit_once('.') {
            Some((_, "pt" | "pth")) => !name.ends_with("_states.pt"),
            Some((stem, "bin")) => WEIGHTS.iter().any(|weights| stem.starts_with(weights)),
            _ => false,
        };
        known && !name.starts_with('.') && !PARTS.iter().any(|part| name.starts_with(part))
    };
    let single = listing.files.iter().filter(is_one);
    single.map(|name| Claim::Files { name: name.clone(), files: vec![name.clone()] }).collect()
}

fn judge(name: &str, files: &dyn Files, depth: Depth) -> io::Result<Judgement> {
    let saved = match check(files, name, depth) {
        Ok(saved) => saved,
        Err(fault) => return fault.judge(name, false),
    };
    let number = |key: &str| {
        let pickle = saved.pickle.as_ref()?;
        pickle.count(pickle.get(pickle.root(), key)?)
    };
    Ok(Judgement {
        step: ["global_step", "step", "iteration", "iter"]
            .iter()
            .find_map(|key| number(key))
            .or_else(|| named::step(name)),
        epoch: number("epoch").map(|epoch| epoch as f64).or_else(|| named::epoch(name)),
        metrics: named::metrics(name),
        ..Judgement::valid()
    }
    .with_unseen(saved.unseen(name)))
}

/// Result of reading a file of `torch.save`.
pub struct TorchFile {
    /// Its `data.pkl`, if it was read.
    pub pickle: Option<Pickle>,
    /// Why it has no checksums, if it has none.
    unchecked: Option<&'static str>,
}

impl TorchFile {
    /// Why damage to it may be undetected, if it may. `path` is its own.
    #[must_use]
    pub fn unseen(&self, path: &str) -> Option<String> {
        self.unchecked.map(|why| format!("damage could be unseen: {path} {why}"))
    }
}

const OLD: &str = "has the form of before torch 1.6, which has no checksums";
const SWITCHED_OFF: &str = "was written with its checksums switched off";

/// Checks a file of `torch.save`.
///
/// # Errors
/// [`Fault::Cut`] if it has no end record, or is empty.
pub fn check(files: &dyn Files, path: &str, depth: Depth) -> Result<TorchFile, Fault> {
    let Some(size) = files.member(path).map(|member| member.size) else { return Fault::cut("is missing") };
    let mut file = files.open(path)?;
    check_window(&mut *file, 0..size, depth)
}

/// Checks what `torch.save` has written into `window` of a file.
///
/// # Errors
/// As [`check`].
pub fn check_window(file: &mut dyn ReadSeek, window: Range<u64>, depth: Depth) -> Result<TorchFile, Fault> {
    if window.is_empty() {
        return Fault::cut("is empty");
    }
    // A ZIP begins with its first entry, and any other file with a pickle.
    let mut head = [0; 4];
    let known = head.len().min((window.end - window.start) as usize);
    file.seek(SeekFrom::Start(window.start))?;
    file.read_exact(&mut head[..known])?;
    if head[0] == 0x80 && head[1] == 2 {
        return old(file, window);
    }
    if !b"PK\x03\x04".starts_with(&head[..known]) {
        return Fault::wrong("is not what torch.save writes");
    }
    let archive = Archive::open(file, window)?;
    let first = archive.entries().first().map_or("", |entry| entry.name.as_str());
    let Some((top, _)) = first.split_once('/') else { return Fault::wrong("is a ZIP archive, but not torch.save's") };
    let top = format!("{top}/");
    if archive.entries().iter().any(|entry| !entry.name.starts_with(&top)) {
        return Fault::wrong("is a ZIP archive with more than one folder, and so not torch.save's");
    }
    let part = |name: &str| archive.find(&format!("{top}{name}"));
    let (Some(data), Some(_)) = (part("data.pkl"), part("version")) else {
        return Fault::wrong("is a ZIP archive without data.pkl and version, and so not torch.save's");
    };
    let unchecked = (!archive.has_checksums()).then_some(SWITCHED_OFF);
    if depth == Depth::Content {
        for entry in archive.entries().iter().filter(|entry| entry.name != data.name) {
            archive.stream(file, entry, |_| {})?;
        }
    }
    let limit = if depth == Depth::Content { pickle::LIMIT } else { SHORT_PICKLE };
    if data.size > limit {
        if depth == Depth::Content {
            archive.stream(file, data, |_| {})?;
        }
        return Ok(TorchFile { pickle: None, unchecked });
    }
    let pickle = match inside(Pickle::whole(archive.read(file, data, limit)?), "data.pkl") {
        // Its checksum is right; nothing else can be checked.
        Err(fault) if fault.is_too_large() => return Ok(TorchFile { pickle: None, unchecked }),
        other => other?,
    };
    // TorchScript keeps its tensors by other rules.
    if part("constants.pkl").is_none() {
        for storage in &pickle.persistent {
            let Some(storage) = Storage::read(&pickle, *storage) else { continue };
            let Some(entry) = part(&format!("data/{}", storage.key)) else {
                return Fault::wrong(format!("has no data/{}, which its pickle names", storage.key));
            };
            if storage.bytes().is_some_and(|bytes| bytes != entry.size) {
                return Fault::wrong(format!("has a data/{} of another length than its pickle says", storage.key));
            }
        }
    }
    Ok(TorchFile { pickle: Some(pickle), unchecked })
}

/// A fault of a pickle within a file: what is cut there stays so.
fn inside<T>(result: Result<T, Fault>, part: &str) -> Result<T, Fault> {
    result.map_err(|fault| match fault {
        Fault::Cut(why) | Fault::Wrong(why) => Fault::Wrong(format!("has a {part} that {why}")),
        Fault::Io(error) => Fault::Io(error),
    })
}

/// A storage as a pickle names it: `('storage', class, key, device, elements)`.
pub struct Storage<'a> {
    /// Its name in the archive.
    pub key: &'a str,
    /// `FloatStorage`.
    pub class: &'a str,
    /// `cpu`, `cuda:0`.
    location: &'a str,
    elements: u64,
}

impl<'a> Storage<'a> {
    /// Reads the name of a storage.
    #[must_use]
    pub fn read(pickle: &'a Pickle, id: pickle::Id) -> Option<Self> {
        let Value::Persistent(id) = pickle.value(id) else { return None };
        let [kind, class, key, location, elements, ..] = pickle.tuple(*id)? else { return None };
        if pickle.text(*kind) != Some("storage") {
            return None;
        }
        Some(Self {
            key: pickle.text(*key)?,
            class: pickle.global(*class)?.1,
            location: pickle.text(*location)?,
            elements: pickle.count(*elements)?,
        })
    }

    /// The type of its elements, and how many bytes one has, by the storage's class.
    #[must_use]
    pub fn kind(&self) -> Option<(&'static str, u64)> {
        Some(match self.class {
            "DoubleStorage" => ("float64", 8),
            "FloatStorage" => ("float32", 4),
            "HalfStorage" => ("float16", 2),
            "BFloat16Storage" => ("bfloat16", 2),
            "LongStorage" => ("int64", 8),
            "IntStorage" => ("int32", 4),
            "ShortStorage" => ("int16", 2),
            "CharStorage" => ("int8", 1),
            "ByteStorage" => ("uint8", 1),
            "BoolStorage" => ("bool", 1),
            "ComplexDoubleStorage" => ("complex128", 16),
            "ComplexFloatStorage" => ("complex64", 8),
            "UntypedStorage" => ("", 1),
            _ => return None,
        })
    }

    fn bytes(&self) -> Option<u64> {
        self.kind()?.1.checked_mul(self.elements)
    }
}

/// The format from before torch 1.6, which has no checksums. It begins with five pickles: a magic number, the protocol,
/// the machine, the object, and the storages' keys. Each storage follows with its number of elements and the elements.
/// Values that are stored twice have to agree; damage to others may be undetected.
fn old(file: &mut dyn ReadSeek, window: Range<u64>) -> Result<TorchFile, Fault> {
    const MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];
    const PROTOCOL: i64 = 1001;
    let reported = |pickle| Ok(TorchFile { pickle, unchecked: Some(OLD) });
    let length = window.end - window.start;
    let mut head = Vec::new();
    file.seek(SeekFrom::Start(window.start))?;
    (&mut *file).take(length.min(SHORT_PICKLE)).read_to_end(&mut head)?;
    let too_long = length > head.len() as u64;
    if head.get(4..14) != Some(&MAGIC) {
        // Any other pickle: nothing in it shows whether it is as it was written.
        return match Pickle::whole(head) {
            _ if too_long => reported(None),
            Err(fault) if fault.is_too_large() => reported(None),
            pickle => reported(Some(pickle?)),
        };
    }
    let mut at = 0;
    let mut pickles = Vec::new();
    for _ in 0..5 {
        match Pickle::first(head[at..].to_vec()) {
            Ok(pickle) => {
                at += pickle.length;
                pickles.push(pickle);
            }
            Err(Fault::Cut(_)) if too_long => return reported(None),
            Err(fault) if fault.is_too_large() => return reported(None),
            Err(fault) => return Err(fault),
        }
    }
    let (Some(keys), Some(object)) = (pickles.pop(), pickles.pop()) else {
        return Fault::cut("ends within its pickles");
    };
    if pickles.get(1).and_then(|protocol| protocol.int(protocol.root())) != Some(PROTOCOL) {
        return Fault::wrong("has another protocol than torch knows");
    }
    names_are_whole(&object)?;
    tensors_fit(&object)?;
    let storages: BTreeMap<&str, Storage> = object
        .persistent
        .iter()
        .filter_map(|id| Storage::read(&object, *id))
        .map(|storage| (storage.key, storage))
        .collect();
    let Some(keys) =
        keys.list(keys.root()).map(|list| list.iter().filter_map(|key| keys.text(*key)).collect::<Vec<_>>())
    else {
        return Fault::wrong("has no list of its tensors");
    };
    if keys.len() != storages.len() || keys.iter().collect::<BTreeSet<_>>().len() != keys.len() {
        return Fault::wrong("has other tensors than its pickle names");
    }
    let mut end = at as u64;
    for key in keys {
        let Some(storage) = storages.get(key) else {
            return Fault::wrong("has a tensor that its pickle does not name");
        };
        let Some(bytes) = storage.bytes() else { return reported(Some(object)) };
        let start = end;
        end = end.saturating_add(8).saturating_add(bytes);
        if end > length {
            return Fault::cut("ends within its tensors");
        }
        let mut count = [0; 8];
        file.seek(SeekFrom::Start(window.start + start))?;
        file.read_exact(&mut count)?;
        if u64::from_le_bytes(count) != storage.elements {
            return Fault::wrong("has a tensor of another length than its pickle says");
        }
    }
    if end < length { Fault::wrong("is longer than its tensors") } else { reported(Some(object)) }
}

/// What torch itself writes into the pickle of a state: module and names.
const GLOBALS: [(&str, &[&str]); 4] = [
    ("collections", &["OrderedDict"]),
    (
        "torch",
        &[
            "BFloat16Storage",
            "BoolStorage",
            "ByteStorage",
            "CharStorage",
            "ComplexDoubleStorage",
            "ComplexFloatStorage",
            "DoubleStorage",
            "FloatStorage",
            "HalfStorage",
            "IntStorage",
            "LongStorage",
            "ShortStorage",
            "Size",
        ],
    ),
    (
        "torch._utils",
        &[
            "_rebuild_parameter",
            "_rebuild_parameter_with_state",
            "_rebuild_qtensor",
            "_rebuild_sparse_tensor",
            "_rebuild_tensor",
            "_rebuild_tensor_v2",
            "_rebuild_tensor_v3",
        ],
    ),
    ("torch.storage", &["TypedStorage", "UntypedStorage"]),
];

/// Whether no name differs by just one bit from a name that torch writes. Other names are the program's own.
fn names_are_whole(pickle: &Pickle) -> Result<(), Fault> {
    for (module, name) in pickle.globals() {
        let damaged = match GLOBALS.iter().find(|(known, _)| *known == module) {
            Some((_, names)) => !names.contains(&name) && named::is_damaged(name, names),
            None => named::is_damaged(module, &GLOBALS.map(|(known, _)| known)),
        };
        if damaged || name.contains(char::is_control) {
            return Fault::wrong(format!("names {module}.{name}, which is damaged"));
        }
    }
    Ok(())
}

/// Whether every tensor that torch would make lies within its storage.
fn tensors_fit(pickle: &Pickle) -> Result<(), Fault> {
    const STRANGE: &str = "has a tensor that is not within its storage";
    for object in pickle.objects() {
        if pickle.global(object.callable) != Some(("torch._utils", "_rebuild_tensor_v2")) {
            continue;
        }
        let Some([storage, offset, sizes, strides, ..]) = pickle.tuple(object.arguments) else {
            return Fault::wrong(STRANGE);
        };
        let numbers = |id| pickle.tuple(id)?.iter().map(|id| pickle.count(*id)).collect::<Option<Vec<u64>>>();
        let (Some(storage), Some(offset), Some(sizes), Some(strides)) =
            (Storage::read(pickle, *storage), pickle.count(*offset), numbers(*sizes), numbers(*strides))
        else {
            return Fault::wrong(STRANGE);
        };
        if named::is_damaged(storage.location, &["cpu"]) {
            return Fault::wrong(format!("has a tensor at {:?}, which is no place", storage.location));
        }
        let last = sizes.iter().zip(&strides).try_fold(offset, |at, (size, stride)| {
            size.saturating_sub(1).checked_mul(*stride).and_then(|step| at.checked_add(step))
        });
        let is_within = sizes.contains(&0) || last.is_some_and(|last| last < storage.elements);
        if sizes.len() != strides.len() || !is_within {
            return Fault::wrong(STRANGE);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn torch_files_are_claimed_by_name() {
        let claims = |name: &str| {
            let files = vec![name.to_owned()];
            !claim(&Listing { name: "checkpoints".to_owned(), files, folders: Vec::new() }).is_empty()
        };
        for name in ["a.pt", "a.pth", "checkpoint.pth.tar", "last.pth.tar", "a.pt.tar", "model.bin"] {
            assert!(claims(name), "{name}");
        }
        for name in [
            "a.tar",
            "a.pth.tar.gz",
            "a.ptx.tar",
            "pth.tar",
            ".a.pth.tar",
            "optimizer.pth.tar",
            "labels.bin",
            "a.pth.tar.tmp",
        ] {
            assert!(!claims(name), "{name}");
        }
    }
}
