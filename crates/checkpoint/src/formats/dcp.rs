//! `torch.distributed.checkpoint`: a folder with `.metadata`, a pickle that says what lies where in `__R_N.distcp`. The coordinator renames
//! `.metadata` to its place when all ranks have written.
//!
//! | damage | at which depth it is seen |
//! |---|---|
//! | `.metadata` missing | Structure: Incomplete |
//! | a `.distcp` missing | Structure: Incomplete |
//! | a `.distcp` cut | Structure: Corrupted, because `.metadata` says that it is written |
//! | a bit in `.metadata` | Structure or Content, with the exceptions below |
//! | a bit in a `.distcp` | Content: each entry is what `torch.save` writes, with its CRC32 |
//! | a `.distcp` of another step, or an old `.metadata` | Content where lengths or shapes differ, else not |
//!
//! The three lists of `.metadata` and the files' own records have to agree. Not seen are bits in names of entries where
//! each is written once (one process, no dictionary within the dictionary), and in numbers that no reader uses. Because
//! `.metadata` has no checksum, a whole checkpoint is Complete and not Valid.

use super::fault::Fault;
use super::pickle::{self, Id, Object, Pickle, Value};
use super::torch::{self, Storage};
use super::{Claim, Listing, Rules, named};
use crate::files::Files;
use crate::found::{Depth, Format, Judgement};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// DCP's folders.
pub const RULES: Rules = Rules { format: Format::Dcp, claim, judge };

pub(super) const METADATA: &str = ".metadata";
/// Maximum memory for data copied out of `.metadata`, in bytes: about 200,000 parts of tensors.
const COPIED: usize = 64 << 20;
/// Modules that have had the classes of `.metadata`, by version.
const METADATA_MODULES: [&str; 2] =
    ["torch.distributed.checkpoint.metadata", "torch.distributed._shard.sharded_tensor.metadata"];

/// Whether a file is named as a shard: `__0_0.distcp`.
pub fn is_shard(name: &str) -> bool {
    name.strip_prefix("__").and_then(|name| name.strip_suffix(".distcp")).is_some()
}

fn claim(listing: &Listing) -> Vec<Claim> {
    let ours = listing.has_file(METADATA)
        || listing.has_file(".metadata.tmp")
        || listing.files.iter().any(|name| is_shard(name));
    if ours { vec![Claim::Folder] } else { Vec::new() }
}

fn judge(name: &str, files: &dyn Files, depth: Depth) -> io::Result<Judgement> {
    let judgement = judge_below("", files, depth)?;
    Ok(Judgement { step: named::step(name), epoch: named::epoch(name), ..judgement })
}

/// Judges what lies in a folder of a checkpoint: `below` is empty, or ends with `/`.
///
/// # Errors
/// If files could not be read.
pub fn judge_below(below: &str, files: &dyn Files, depth: Depth) -> io::Result<Judgement> {
    let at = format!("{below}{METADATA}");
    if files.member(&at).is_none() {
        return Ok(Judgement::incomplete(format!("{at} is missing, which is written last")));
    }
    let metadata = match read(files, &at) {
        Ok(metadata) => metadata,
        Err(fault) if fault.is_too_large() => {
            return Ok(Judgement::complete(format!(
                "damage could be unseen: {at} is larger than what is read, and so are its shards unknown"
            )));
        }
        Err(fault) => return fault.judge(&at, true),
    };
    if let Some(judgement) = shards(below, files, &metadata.stored) {
        return Ok(judgement);
    }
    for (path, of_file) in metadata.by_file() {
        if depth < Depth::Content {
            break;
        }
        let path = format!("{below}{path}");
        let mut file = files.open(&path)?;
        for stored in of_file {
            let saved = match torch::check_window(&mut *file, stored.at..stored.at + stored.length, depth) {
                Ok(saved) => saved,
                Err(fault) => return fault.judge(&path, true),
            };
            if let Some(why) = saved.pickle.and_then(|pickle| metadata.disagrees(stored, &pickle)) {
                return Ok(Judgement::corrupted(path, why));
            }
        }
    }
    // Lightning keeps the rest beside it, Megatron-LM too.
    for name in ["meta.pt", "common.pt"] {
        let path = format!("{below}{name}");
        if files.member(&path).is_some()
            && let Err(fault) = torch::check(files, &path, depth)
        {
            return fault.judge(&path, true);
        }
    }
    Ok(Judgement::complete(format!(
        "damage could be unseen: {at}, by which everything in it is found, has no checksum"
    )))
}

/// Whether each shard is there, as long as it has to be.
fn shards(below: &str, files: &dyn Files, stored: &[ShardEntry]) -> Option<Judgement> {
    let mut lengths: BTreeMap<&str, u64> = BTreeMap::new();
    for stored in stored {
        let end = lengths.entry(&stored.path).or_default();
        *end = (*end).max(stored.at + stored.length);
    }
    for (path, end) in lengths {
        let path = format!("{below}{path}");
        match files.member(&path) {
            None => return Some(Judgement::incomplete(format!("{path} is missing, which {METADATA} names"))),
            Some(member) if member.size < end => {
                let why = format!("has {} bytes, and {METADATA} says {end}", member.size);
                return Some(Judgement::corrupted(path, why));
            }
            Some(_) => {}
        }
    }
    None
}

/// A tensor of the whole checkpoint.
struct Tensor {
    dtype: String,
    /// Where each of its parts begins, and how large it is.
    parts: BTreeMap<Vec<u64>, Vec<u64>>,
}

/// An entry of a shard.
struct ShardEntry {
    name: String,
    /// Where in the tensor it begins; none if it is no tensor.
    offsets: Option<Vec<u64>>,
    path: String,
    at: u64,
    length: u64,
    /// Whether it lies there as `torch.save` writes it, and not packed by the program.
    plain: bool,
}

struct Metadata {
    tensors: BTreeMap<String, Tensor>,
    stored: Vec<ShardEntry>,
}

impl Metadata {
    /// The entries that can be checked, by file and in order.
    fn by_file(&self) -> BTreeMap<&str, Vec<&ShardEntry>> {
        let mut files: BTreeMap<&str, Vec<&ShardEntry>> = BTreeMap::new();
        for stored in self.stored.iter().filter(|stored| stored.plain) {
            files.entry(&stored.path).or_default().push(stored);
        }
        for of_file in files.values_mut() {
            of_file.sort_by_key(|stored| stored.at);
        }
        files
    }

    /// How an entry's own record differs from its record in `.metadata`, if it does.
    fn disagrees(&self, stored: &ShardEntry, pickle: &Pickle) -> Option<String> {
        let tensor = self.tensors.get(&stored.name)?;
        let sizes = tensor.parts.get(stored.offsets.as_ref()?)?;
        let reported = SavedTensor::read(pickle, pickle.root())?;
        if reported.sizes != *sizes {
            return Some(format!(
                "has {:?} with the shape {:?}, and {METADATA} says {sizes:?}",
                stored.name, reported.sizes
            ));
        }
        let dtype = reported.dtype.filter(|dtype| !dtype.is_empty() && *dtype != tensor.dtype)?;
        Some(format!("has {:?} of {dtype}, and {METADATA} says {}", stored.name, tensor.dtype))
    }
}

/// A tensor as a pickle of torch makes it again.
struct SavedTensor {
    sizes: Vec<u64>,
    dtype: Option<String>,
}

impl SavedTensor {
    fn read(pickle: &Pickle, id: Id) -> Option<Self> {
        let object = pickle.object(id)?;
        let arguments = pickle.tuple(object.arguments)?;
        match pickle.global(object.callable)? {
            ("torch._utils", "_rebuild_tensor_v2") => {
                let storage = Storage::read(pickle, *arguments.first()?)?;
                let dtype = storage.kind().map(|(dtype, _)| dtype.to_string());
                Some(Self { sizes: numbers(pickle, *arguments.get(2)?)?, dtype })
            }
            ("torch._utils", "_rebuild_tensor_v3") => {
                let dtype = pickle.global(*arguments.get(6)?)?.1.to_string();
                Some(Self { sizes: numbers(pickle, *arguments.get(2)?)?, dtype: Some(dtype) })
            }
            ("torch._utils", "_rebuild_parameter") => {
                let inner = pickle.object(*arguments.first()?)?;
                // There is only one level: a parameter of a parameter does not occur.
                let arguments = pickle.tuple(inner.arguments)?;
                let storage = Storage::read(pickle, *arguments.first()?)?;
                let dtype = storage.kind().map(|(dtype, _)| dtype.to_string());
                Some(Self { sizes: numbers(pickle, *arguments.get(2)?)?, dtype })
            }
            _ => None,
        }
    }
}

fn numbers(pickle: &Pickle, id: Id) -> Option<Vec<u64>> {
    pickle.tuple(id)?.iter().map(|id| pickle.count(*id)).collect()
}

fn read(files: &dyn Files, path: &str) -> Result<Metadata, Fault> {
    let bytes = files.read(path, pickle::LIMIT)?;
    if bytes.is_empty() {
        return Fault::cut("is empty");
    }
    Reader { pickle: &Pickle::whole(bytes)?, copied: Cell::new(0) }.metadata()
}

/// Reads `.metadata` as torch would. Every value has to be one that torch writes there.
struct Reader<'a> {
    pickle: &'a Pickle,
    /// Bytes of what was copied out of the pickle.
    copied: Cell<usize>,
}

const STRANGE: &str = "is a pickle, but not of what torch.distributed.checkpoint writes";

impl<'a> Reader<'a> {
    fn metadata(&self) -> Result<Metadata, Fault> {
        for (module, name) in self.pickle.globals() {
            if named::is_damaged(module, &MODULES) || named::is_damaged(name, &NAMES) {
                return Fault::wrong(format!("names {module}.{name}, which is damaged"));
            }
        }
        let root = self.fields(
            self.pickle.root(),
            "Metadata",
            &["state_dict_metadata", "storage_data"],
            &["planner_data", "storage_meta", "version", "mcore_data", "flat_mapping", "all_local_plans"],
        )?;
        let mut tensors = BTreeMap::new();
        let mut others = BTreeSet::new();
        for (name, described) in self.items(root["state_dict_metadata"])? {
            let name = self.text(*name)?.to_string();
            if name.contains(char::is_control) {
                return Fault::wrong(format!("has {name:?}, which is no name"));
            }
            let object = self.object(*described)?;
            match self.class(object)? {
                "TensorStorageMetadata" => {
                    let tensor = self.tensor(&name, *described)?;
                    tensors.insert(name, tensor);
                }
                "BytesStorageMetadata" => {
                    others.insert(name);
                }
                class => return Fault::wrong(format!("has {name:?} of an unknown kind {class}")),
            }
        }
        self.names(root.get("planner_data").copied(), &tensors, &others)?;
        let stored = self.stored(root["storage_data"])?;
        agree(&tensors, &others, &stored)?;
        if let Some(meta) =
            root.get("storage_meta").copied().filter(|id| !matches!(self.pickle.value(*id), Value::None))
        {
            self.fields(meta, "StorageMeta", &[], &["checkpoint_id", "save_id", "load_id", "modules"])?;
        }
        Ok(Metadata { tensors, stored })
    }

    fn tensor(&self, name: &str, id: Id) -> Result<Tensor, Fault> {
        let fields = self.fields(id, "TensorStorageMetadata", &["properties", "size", "chunks"], &[])?;
        let size = self.size(fields["size"])?;
        let Some(chunks) = self.pickle.list(fields["chunks"]) else { return Fault::wrong(STRANGE) };
        let mut parts = BTreeMap::new();
        let mut volume = Some(0_u64);
        for chunk in chunks {
            let fields = self.fields(*chunk, "ChunkStorageMetadata", &["offsets", "sizes"], &[])?;
            let (offsets, sizes) = (self.size(fields["offsets"])?, self.size(fields["sizes"])?);
            let ends = offsets.iter().zip(&sizes).map(|(offset, size)| offset.checked_add(*size));
            let inside = ends.zip(&size).all(|(end, size)| end.is_some_and(|end| end <= *size));
            if offsets.len() != size.len() || sizes.len() != size.len() || !inside {
                return Fault::wrong(format!("has a part of {name:?} that is not within it"));
            }
            volume = volume.zip(product(&sizes)).and_then(|(volume, part)| volume.checked_add(part));
            // If a tensor has fewer rows than ranks, some ranks have nothing of it, all at its end.
            let empty = sizes.contains(&0);
            if parts.insert(offsets, sizes).is_some() && !empty {
                return Fault::wrong(format!("has a part of {name:?} twice"));
            }
        }
        // A tensor is saved in parts. Nothing of it is missing or there twice.
        if volume.is_none() || volume != product(&size) {
            return Fault::wrong(format!("has parts of {name:?} that don't make up the whole"));
        }
        Ok(Tensor { dtype: self.dtype(fields["properties"])?, parts })
    }

    /// `TensorProperties`: type, layout, gradient, memory format, pinned, and in newer versions strides.
    fn dtype(&self, id: Id) -> Result<String, Fault> {
        let object = self.object(id)?;
        let state = object.state.and_then(|state| self.pickle.tuple(state));
        let Some([dtype, layout, gradient, format, pinned, strides @ ..]) = state else { return Fault::wrong(STRANGE) };
        let is_bool = |id: &Id| matches!(self.pickle.value(*id), Value::Bool(_));
        let Some(("torch", dtype)) = self.pickle.global(*dtype) else { return Fault::wrong(STRANGE) };
        let layout = match self.pickle.object(*layout) {
            Some(layout) => {
                self.pickle.global(layout.callable) == Some(("torch.serialization", "_get_layout")) && {
                    let name = self.pickle.tuple(layout.arguments).and_then(|names| self.pickle.text(*names.first()?));
                    name.is_some_and(|name| {
                        matches!(name.strip_prefix("torch."), Some("strided" | "jagged" | "_mkldnn"))
                            || name.starts_with("torch.sparse_")
                                && !named::is_damaged(name, &LAYOUTS)
                                && LAYOUTS.contains(&name)
                    })
                }
            }
            None => false,
        };
        let format = self.pickle.object(*format).is_some_and(|format| {
            let class = self.pickle.global(format.callable);
            class.is_some_and(|(module, name)| {
                METADATA_MODULES.contains(&module) && matches!(name, "_MEM_FORMAT_ENCODING" | "MEM_FORMAT_ENCODING")
            }) && matches!(numbers(self.pickle, format.arguments).as_deref(), Some([0..=2]))
        });
        let strides = match strides {
            [] => true,
            [strides] => matches!(self.pickle.value(*strides), Value::None) || numbers(self.pickle, *strides).is_some(),
            _ => false,
        };
        if self.class(object)? != "TensorProperties"
            || !self.is_empty(object)
            || !DTYPES.contains(&dtype)
            || !layout
            || !is_bool(gradient)
            || !format
            || !is_bool(pinned)
            || !strides
        {
            return Fault::wrong(STRANGE);
        }
        Ok(dtype.to_string())
    }

    /// The names as the program had them: paths of dictionaries and lists, joined by dots.
    fn names(
        &self,
        planner: Option<Id>,
        tensors: &BTreeMap<String, Tensor>,
        others: &BTreeSet<String>,
    ) -> Result<(), Fault> {
        let Some(planner) = planner else { return Ok(()) };
        // Other planners may store anything. Torch's own stores a dictionary of tuples.
        let Value::Dict(items) = self.pickle.value(planner) else { return Ok(()) };
        let mut reported = BTreeSet::new();
        for (name, path) in items {
            let name = self.text(*name)?;
            let Some(path) = self.pickle.tuple(*path) else { return Fault::wrong(STRANGE) };
            let parts: Option<Vec<String>> = path
                .iter()
                .map(|part| {
                    let number = || self.pickle.int(*part).map(|number| number.to_string());
                    self.pickle.text(*part).map(ToString::to_string).or_else(number)
                })
                .collect();
            if parts.is_none_or(|parts| parts.join(".") != name) {
                return Fault::wrong(format!("has {name:?} with another path than its name"));
            }
            reported.insert(name);
        }
        let is_reported = |name: &String| reported.contains(name.as_str());
        if reported.len() != tensors.len() + others.len()
            || !tensors.keys().all(is_reported)
            || !others.iter().all(is_reported)
        {
            return Fault::wrong("has two lists of names that differ");
        }
        Ok(())
    }

    fn stored(&self, id: Id) -> Result<Vec<ShardEntry>, Fault> {
        let mut stored = Vec::new();
        for (index, place) in self.items(id)? {
            let index = self.fields(*index, "MetadataIndex", &["fqn"], &["offset", "index"])?;
            let offsets = match index.get("offset").copied() {
                Some(offset) if !matches!(self.pickle.value(offset), Value::None) => Some(self.size(offset)?),
                _ => None,
            };
            let hint = index.get("index").is_none_or(|hint| {
                matches!(self.pickle.value(*hint), Value::None) || self.pickle.count(*hint).is_some()
            });
            let place = self.fields(
                *place,
                "_StorageInfo",
                &["relative_path", "offset", "length"],
                &["transform_descriptors"],
            )?;
            let (Some(at), Some(length)) = (self.pickle.count(place["offset"]), self.pickle.count(place["length"]))
            else {
                return Fault::wrong(STRANGE);
            };
            let packed =
                place.get("transform_descriptors").filter(|id| !matches!(self.pickle.value(**id), Value::None));
            if packed.is_some_and(|id| self.pickle.list(*id).is_none() && self.pickle.tuple(*id).is_none()) {
                return Fault::wrong(STRANGE);
            }
            if at.checked_add(length).is_none() || !hint {
                return Fault::wrong(STRANGE);
            }
            let (name, path) = (self.text(index["fqn"])?, self.text(place["relative_path"])?);
            self.copy(size_of::<ShardEntry>() + name.len() + path.len())?;
            let (name, path, plain) = (name.to_string(), path.to_string(), packed.is_none());
            stored.push(ShardEntry { name, offsets, path, at, length, plain });
        }
        Ok(stored)
    }

    /// The state of an object of that class. It has these fields, and others only if their names are not damaged ones.
    fn fields(
        &self,
        id: Id,
        class: &str,
        required: &[&'static str],
        optional: &[&'static str],
    ) -> Result<BTreeMap<&'a str, Id>, Fault> {
        let object = self.object(id)?;
        let state = object.state.and_then(|state| self.pickle.items(state)).unwrap_or_default();
        if self.class(object)? != class || !self.is_empty(object) {
            return Fault::wrong(STRANGE);
        }
        let known: Vec<&str> = required.iter().chain(optional).copied().collect();
        let mut fields = BTreeMap::new();
        for (name, value) in state {
            let name = self.text(*name)?;
            if !known.contains(&name) && named::is_damaged(name, &known) {
                return Fault::wrong(format!("has {name:?}, a name that is damaged"));
            }
            fields.insert(name, *value);
        }
        match required.iter().find(|name| !fields.contains_key(*name)) {
            Some(name) => Fault::wrong(format!("has no {name} where it has to be")),
            None => Ok(fields),
        }
    }

    fn object(&self, id: Id) -> Result<&'a Object, Fault> {
        self.pickle.object(id).map_or_else(|| Fault::wrong(STRANGE), Ok)
    }

    /// The class's name, if its module is one of those that have had it.
    fn class(&self, object: &Object) -> Result<&'a str, Fault> {
        match self.pickle.global(object.callable) {
            Some((module, name)) if METADATA_MODULES.contains(&module) => Ok(name),
            Some(("torch.distributed.checkpoint.filesystem", "_StorageInfo")) => Ok("_StorageInfo"),
            // Megatron-LM's own.
            Some((module, "MCoreMetadata")) if module.starts_with("megatron.") => Ok("Metadata"),
            _ => Fault::wrong(STRANGE),
        }
    }

    /// Whether an object is made without arguments, as all of these are.
    fn is_empty(&self, object: &Object) -> bool {
        self.pickle.tuple(object.arguments).is_some_and(<[Id]>::is_empty)
    }

    fn items(&self, id: Id) -> Result<&'a [(Id, Id)], Fault> {
        match self.pickle.value(id) {
            Value::Dict(items) => Ok(items),
            _ => Fault::wrong(STRANGE),
        }
    }

    fn text(&self, id: Id) -> Result<&'a str, Fault> {
        self.pickle.text(id).map_or_else(|| Fault::wrong(STRANGE), Ok)
    }

    /// Counts what is copied. In the pickle a name that a million entries share is there once.
    fn copy(&self, bytes: usize) -> Result<(), Fault> {
        self.copied.set(self.copied.get().saturating_add(bytes));
        if self.copied.get() > COPIED {
            return Err(pickle::too_large("a pickle with more entries than are read"));
        }
        Ok(())
    }

    /// A `torch.Size`.
    fn size(&self, id: Id) -> Result<Vec<u64>, Fault> {
        let object = self.object(id)?;
        let argument =
            self.pickle.tuple(object.arguments).filter(|arguments| arguments.len() == 1).map(|arguments| arguments[0]);
        let sizes = argument.and_then(|argument| numbers(self.pickle, argument));
        match (self.pickle.global(object.callable), sizes) {
            (Some(("torch", "Size")), Some(sizes)) => {
                self.copy(size_of::<Vec<u64>>() + size_of_val(&*sizes))?;
                Ok(sizes)
            }
            _ => Fault::wrong(STRANGE),
        }
    }
}

/// What of other modules is written into `.metadata`: the folder as it was given.
const MODULES: [&str; 2] = ["pathlib", "pathlib._local"];
const NAMES: [&str; 2] = ["PosixPath", "WindowsPath"];

const LAYOUTS: [&str; 5] =
    ["torch.sparse_coo", "torch.sparse_csr", "torch.sparse_csc", "torch.sparse_bsr", "torch.sparse_bsc"];

/// The types of torch's tensors.
const DTYPES: [&str; 46] = [
    "bfloat16",
    "bits16",
    "bits1x8",
    "bits2x4",
    "bits4x2",
    "bits8",
    "bool",
    "complex128",
    "complex32",
    "complex64",
    "float16",
    "float32",
    "float4_e2m1fn_x2",
    "float64",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "int1",
    "int16",
    "int2",
    "int3",
    "int32",
    "int4",
    "int5",
    "int6",
    "int64",
    "int7",
    "int8",
    "qint32",
    "qint8",
    "quint2x4",
    "quint4x2",
    "quint8",
    "uint1",
    "uint16",
    "uint2",
    "uint3",
    "uint32",
    "uint4",
    "uint5",
    "uint6",
    "uint64",
    "uint7",
    "uint8",
];

fn product(sizes: &[u64]) -> Option<u64> {
    sizes.iter().try_fold(1_u64, |product, size| product.checked_mul(*size))
}

/// Whether the described entries and the stored entries are the same.
fn agree(tensors: &BTreeMap<String, Tensor>, others: &BTreeSet<String>, stored: &[ShardEntry]) -> Result<(), Fault> {
    let mut places: BTreeMap<&str, Vec<(u64, u64)>> = BTreeMap::new();
    let mut there = BTreeSet::new();
    for stored in stored {
        let known = match &stored.offsets {
            Some(offsets) => tensors.get(&stored.name).is_some_and(|tensor| tensor.parts.contains_key(offsets)),
            None => others.contains(&stored.name),
        };
        if !known || !there.insert((stored.name.as_str(), stored.offsets.as_deref())) {
            return Fault::wrong(format!("says where {:?} lies, which it does not have so", stored.name));
        }
        places.entry(&stored.path).or_default().push((stored.at, stored.at + stored.length));
    }
    let parts: usize = tensors.values().map(|tensor| tensor.parts.len()).sum();
    if there.len() != parts + others.len() {
        return Fault::wrong("does not say of everything where it lies");
    }
    for (path, mut places) in places {
        places.sort_unstable();
        if places.windows(2).any(|pair| pair[0].1 > pair[1].0) {
            return Fault::wrong(format!("has two things at one place of {path}"));
        }
    }
    Ok(())
}
