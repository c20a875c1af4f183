//! Orbax's checkpoints of JAX programs: a folder that is named by its step, with a folder for each item.
//!
//! An item that is a tree of arrays has `_METADATA` (the tree), and the arrays in Zarr, either as files or within an
//! OCDBT database (`manifest.ocdbt`). An item is written under another name and renamed, then the step is; newer
//! versions, and all on object stores, leave `commit_success.txt`.
//!
//! Detectable damage: OCDBT's manifest and nodes have checksums, and with them the descriptions of the arrays. The
//! chunks of arrays have none. They are unpacked by the library that a restore would use, and have to have the right
//! length; nothing else is checked. A flipped bit in a chunk often changes only numbers. Neither Orbax nor this module
//! detects that, but only a checksum that was taken when the checkpoint was new. The same holds for names within the
//! JSON files. So a whole checkpoint is Complete and not Valid.

mod json;
mod ocdbt;
mod tree;
mod zarr;
mod zstd_frame;

#[cfg(test)]
mod tests;

use crate::files::Files;
use crate::formats::source::{Fault, Source, judged};
use crate::formats::{Claim, Listing, Rules};
use crate::found::{Depth, Format, Judgement, Verdict};
use ocdbt::Value as Place;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Read};
use tree::{Kind, Leaf};
use zarr::{Array, Packing};

/// Orbax's checkpoints.
pub const RULES: Rules = Rules { format: Format::Orbax, claim, judge };

const TEMPORARY: &str = ".orbax-checkpoint-tmp";
const STEP: &str = "_CHECKPOINT_METADATA";
const TREE: &str = "_METADATA";
const MANIFEST: &str = "manifest.ocdbt";
/// What each process has written, before it is merged.
const PART: &str = "ocdbt.process_";
const COMMITTED: &str = "commit_success.txt";
/// Maximum length of a JSON file, in bytes. Parsed it may take sixteen times that.
const JSON: u64 = 32 << 20;
/// Maximum length of the table at the end of a shard, in bytes.
const TABLE: u64 = 64 << 20;

fn claim(listing: &Listing) -> Vec<Claim> {
    let marks = [STEP, TREE, MANIFEST, COMMITTED];
    let ours = listing.name.contains(TEMPORARY) || marks.iter().any(|mark| listing.has_file(mark));
    if ours && !listing.name.is_empty() { vec![Claim::Folder] } else { Vec::new() }
}

/// The number at the end of the folder's name.
fn step(name: &str) -> Option<u64> {
    let name = name.rsplit('/').next()?;
    let name = name.split_once(TEMPORARY).map_or(name, |(name, _)| name);
    let digits = name.len() - name.trim_end_matches(|letter: char| letter.is_ascii_digit()).len();
    let (prefix, number) = name.split_at(name.len() - digits);
    // `params2` is no step.
    (prefix.is_empty() || prefix.ends_with(['_', '-', '.', '='])).then(|| number.parse().ok()).flatten()
}

fn judge(name: &str, files: &dyn Files, depth: Depth) -> io::Result<Judgement> {
    let mut judgement =
        Judgement::complete("damage could be unseen: Orbax has no checksum of its *.json and of what is in its arrays");
    judgement.step = step(name);
    match look(name, files, depth, &mut judgement.metrics) {
        Ok(()) => Ok(judgement),
        Err(fault) => {
            let verdict: Verdict = judged(Err(fault))?.verdict;
            Ok(Judgement { verdict, ..judgement })
        }
    }
}

fn look(name: &str, files: &dyn Files, depth: Depth, metrics: &mut BTreeMap<String, f64>) -> Result<(), Fault> {
    if name.contains(TEMPORARY) {
        return Err(Fault::Missing("it still has the name of one that is being written".into()));
    }
    if let Some(member) = files.members().iter().find(|member| member.path.contains(TEMPORARY)) {
        return Err(Fault::Missing(format!("{} is still being written", member.path)));
    }
    let mut source = Source::new(files);
    let mut items: Vec<(String, Option<String>)> = Vec::new();
    if files.member(STEP).is_some() {
        let step = read_json(&mut source, STEP)?;
        // Written last; then the folder gets its name.
        let open = step.get("init_timestamp_nsecs").is_some_and(Value::is_number)
            && step.get("commit_timestamp_nsecs").is_some_and(Value::is_null);
        if open && files.member(COMMITTED).is_none() {
            return Err(Fault::Missing(format!("{STEP} has no time at which it was committed")));
        }
        numbers(&step["metrics"], metrics);
        match &step["item_handlers"] {
            Value::Object(handlers) => {
                items.extend(
                    handlers.iter().map(|(item, handler)| (format!("{item}/"), handler.as_str().map(str::to_owned))),
                );
            }
            Value::String(handler) => items.push((String::new(), Some(handler.clone()))),
            Value::Null => {}
            _ => return Err(Fault::bad(STEP, "its item_handlers are no handlers")),
        }
    }
    // Items that are there but not named, as in checkpoints of older versions.
    for member in files.members() {
        let (folder, file) = member.path.split_at(member.path.rfind('/').map_or(0, |at| at + 1));
        let top = folder.matches('/').count() <= 1 && !folder.starts_with(PART);
        if top && matches!(file, TREE | MANIFEST) && !items.iter().any(|(item, _)| item == folder) {
            items.push((folder.to_owned(), None));
        }
    }
    if items.is_empty() {
        return Err(Fault::Missing("there is no item in it".into()));
    }
    for (item, handler) in items {
        let has = |file: &str| files.member(&format!("{item}{file}")).is_some();
        if !files.members().iter().any(|member| member.path.starts_with(&item)) {
            return Err(Fault::Missing(format!("there is nothing in {item}, which {STEP} names")));
        }
        let handler = handler.unwrap_or_default();
        let class = handler.rsplit('.').next().unwrap_or_default();
        if class.contains("Json") {
            // Its only file, by any name. The commit marker lies beside it.
            let ours = files.members().iter().filter_map(|member| member.path.strip_prefix(&item));
            let ours: Vec<_> = ours.filter(|file| !file.contains('/') && *file != COMMITTED).collect();
            if ours.is_empty() {
                return Err(Fault::Missing(format!("there is no file in {item}")));
            }
            for file in ours {
                let json = read_json(&mut source, &format!("{item}{file}"))?;
                if item == "metrics/" {
                    numbers(&json, metrics);
                }
            }
        }
        if has(TREE) || has(MANIFEST) || class.contains("PyTree") || class.contains("Standard") {
            pytree(&mut source, &item, depth)?;
        }
    }
    Ok(())
}

/// The numbers among the values. Values that are not numbers are skipped.
fn numbers(json: &Value, metrics: &mut BTreeMap<String, f64>) {
    for (name, value) in json.as_object().into_iter().flatten() {
        if let Some(value) = value.as_f64() {
            metrics.insert(name.clone(), value);
        }
    }
}

fn read_json(source: &mut Source<'_>, path: &str) -> Result<Value, Fault> {
    let Some(member) = source.member(path) else {
        return Err(Fault::Missing(format!("{path} is not there")));
    };
    let length = member.size;
    if length == 0 {
        return Err(Fault::Missing(format!("{path} is empty")));
    }
    let bytes = source.bytes(path, 0, length, JSON)?;
    json::parse(&bytes).map_err(|error| Fault::bad(path, format!("it is no JSON: {error}")))
}

/// An item that is a tree of arrays. `item` is empty or ends in `/`.
fn pytree(source: &mut Source<'_>, item: &str, depth: Depth) -> Result<(), Fault> {
    let path = format!("{item}{TREE}");
    let json = read_json(source, &path)?;
    let wrong = |why: &str| Fault::bad(&path, why.to_owned());
    let leaves = tree::leaves(&json).map_err(|why| Fault::bad(&path, why))?;
    let flag = |name: &str| match json.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(*flag)),
        Some(_) => Err(wrong("a flag in it is neither true nor false")),
    };
    let manifest = source.member(&format!("{item}{MANIFEST}")).is_some();
    // Written by each process, then merged into one by the first.
    let parts = source
        .files
        .members()
        .iter()
        .any(|member| member.path.strip_prefix(item).is_some_and(|path| path.starts_with(PART)));
    let database = flag("use_ocdbt")?.unwrap_or(manifest || parts);
    let second = !flag("use_zarr3")?.unwrap_or(false);
    let whole = flag("store_array_data_equal_to_fill_value")?.unwrap_or(false);
    tree::beside(source, item, &leaves)?;
    let entries = if database {
        let entries = ocdbt::read(source, item)?;
        if depth >= Depth::Content {
            // Orbax does not read them again once they are merged, but damage to them counts.
            for part in process_parts(source, item) {
                ocdbt::read(source, &part)?;
            }
        }
        entries
    } else {
        plain(source, item)
    };
    Item { path: item, leaves: &leaves, second, whole, depth }.check(source, entries)
}

/// The folders of the processes' own databases.
fn process_parts(source: &Source<'_>, item: &str) -> Vec<String> {
    let manifests = source.files.members().iter().filter_map(|member| {
        let part = member.path.strip_suffix(MANIFEST)?;
        let name = part.strip_prefix(item)?.strip_suffix('/')?;
        (name.starts_with(PART) && !name.contains('/')).then(|| part.to_owned())
    });
    manifests.collect()
}

/// Arrays that are files.
fn plain(source: &Source<'_>, item: &str) -> Vec<(String, Place)> {
    let files = source.files.members().iter().filter_map(|member| {
        let key = member.path.strip_prefix(item)?;
        let array = key.contains('/') && !key.starts_with("array_metadatas/") && !key.starts_with(PART);
        array.then(|| (key.to_owned(), Place::At { file: member.path.as_str().into(), offset: 0, length: member.size }))
    });
    files.collect()
}

/// Arrays by name, each with how many of its chunks are there.
type Arrays = HashMap<String, (Array, u64)>;

/// An item, as its tree describes it.
struct Item<'a> {
    /// Empty, or ends in `/`.
    path: &'a str,
    leaves: &'a [Leaf],
    /// Whether the arrays are of the second version of Zarr, else of the third.
    second: bool,
    /// Whether the writer said that it leaves no chunk out.
    whole: bool,
    depth: Depth,
}

impl Item<'_> {
    fn check(&self, source: &mut Source<'_>, entries: Vec<(String, Place)>) -> Result<(), Fault> {
        let (mut arrays, chunks) = self.read_descriptions(source, entries)?;
        self.check_named(&arrays)?;
        self.check_chunks(source, &mut arrays, chunks)?;
        self.check_all_there(&arrays)
    }

    /// The arrays, and all entries that describe none.
    fn read_descriptions(
        &self,
        source: &mut Source<'_>,
        entries: Vec<(String, Place)>,
    ) -> Result<(Arrays, Vec<(String, Place)>), Fault> {
        let mut arrays = Arrays::new();
        let mut chunks = Vec::new();
        for (key, place) in entries {
            let Some((name, is_second)) = description(&key) else {
                chunks.push((key, place));
                continue;
            };
            let (path, bytes) = match place {
                Place::Inline(bytes) => (format!("{}{MANIFEST}", self.path), bytes),
                Place::At { file, offset, length } => (file.to_string(), source.bytes(&file, offset, length, JSON)?),
            };
            let array = json::parse(&bytes).map_err(|error| error.to_string());
            let array = array.and_then(|json| if is_second { Array::v2(&json) } else { Array::v3(&json) });
            let wrong = |why| Fault::bad(path, format!("the description of the array {name:?} is wrong: {why}"));
            let array = array.map_err(wrong)?;
            if is_second == self.second {
                arrays.insert(name.to_owned(), (array, 0));
            }
        }
        Ok((arrays, chunks))
    }

    /// Whether the tree names each array, and each that it names is there.
    fn check_named(&self, arrays: &Arrays) -> Result<(), Fault> {
        let tree = format!("{}{TREE}", self.path);
        for Leaf { name, .. } in self.leaves.iter().filter(|leaf| leaf.kind == Kind::Array) {
            if !arrays.contains_key(name) {
                return Err(Fault::Missing(format!("the array {name:?}, which {tree} names, is not there")));
            }
        }
        let named: HashSet<&str> = self.leaves.iter().map(|leaf| leaf.name.as_str()).collect();
        match arrays.keys().filter(|array| !named.contains(array.as_str())).min() {
            Some(strange) => Err(Fault::bad(tree, format!("it does not name the array {strange:?}, which is there"))),
            None => Ok(()),
        }
    }

    /// Checks the chunks, and counts those of each array.
    fn check_chunks(
        &self,
        source: &mut Source<'_>,
        arrays: &mut Arrays,
        mut chunks: Vec<(String, Place)>,
    ) -> Result<(), Fault> {
        // Each data file from its beginning to its end.
        chunks.sort_by(|(_, left), (_, right)| position(left).cmp(&position(right)));
        for (key, place) in chunks {
            let Some((name, (array, seen))) = owner(&key, arrays) else { continue };
            if !array.has(&key[name.len() + 1..]) {
                continue;
            }
            *seen += 1;
            let (file, offset, length) = match &place {
                Place::Inline(bytes) => (None, 0, bytes.len() as u64),
                Place::At { file, offset, length } => (Some(&**file), *offset, *length),
            };
            let path = file.map_or_else(|| format!("{}{MANIFEST}", self.path), str::to_owned);
            if let Some(file) = file {
                source.check(file, offset, length)?;
                if length == 0 && array.bytes != Some(0) {
                    return Err(Fault::bad(path, format!("the chunk {key:?} is empty")));
                }
            }
            if self.depth >= Depth::Content {
                let mut chunk = Chunk { source, place: &place };
                let found = chunk.check(&array.packing, array.bytes, 0, length)?;
                found.map_err(|why| Fault::bad(path, format!("the chunk {key:?} (at {offset}) is wrong: {why}")))?;
            }
        }
        Ok(())
    }

    /// A chunk that is not there is read as zeros, unless the writer said that it leaves none out.
    fn check_all_there(&self, arrays: &Arrays) -> Result<(), Fault> {
        for (name, (array, seen)) in arrays {
            let chunks = array.chunks().map_err(|why| Fault::bad(format!("{}{TREE}", self.path), why))?;
            if self.whole && *seen < chunks {
                return Err(Fault::Missing(format!("the array {name:?} has {seen} of its {chunks} chunks")));
            }
        }
        Ok(())
    }
}

/// The array whose description that key is, and whether it is one of the second version of Zarr.
fn description(key: &str) -> Option<(&str, bool)> {
    let (name, file) = key.rsplit_once('/')?;
    match file {
        ".zarray" => Some((name, true)),
        "zarr.json" => Some((name, false)),
        _ => None,
    }
}

fn owner<'a>(key: &'a str, arrays: &'a mut Arrays) -> Option<(&'a str, &'a mut (Array, u64))> {
    let name = key.rmatch_indices('/').map(|(at, _)| &key[..at]).find(|name| arrays.contains_key(*name))?;
    Some((name, arrays.get_mut(name)?))
}

fn position(place: &Place) -> (Option<&str>, u64) {
    match place {
        Place::Inline(_) => (None, 0),
        Place::At { file, offset, .. } => (Some(file), *offset),
    }
}

/// Where a chunk is, to be read in parts.
struct Chunk<'s, 'f> {
    source: &'s mut Source<'f>,
    place: &'s Place,
}

impl Chunk<'_, '_> {
    fn read(&mut self, offset: u64, length: u64) -> Result<Box<dyn Read + '_>, Fault> {
        match self.place {
            Place::Inline(bytes) => {
                let part = bytes.get(offset as usize..).unwrap_or_default();
                Ok(Box::new(part.take(length)))
            }
            Place::At { file, offset: start, .. } => {
                Ok(Box::new(self.source.range(file, start.saturating_add(offset), length)?))
            }
        }
    }

    /// Whether `length` bytes at `offset` of it are what `expected` bytes were packed into.
    fn check(
        &mut self,
        packing: &Packing,
        expected: Option<u64>,
        offset: u64,
        length: u64,
    ) -> Result<Result<(), String>, Fault> {
        let Some(expected) = expected else { return Ok(Ok(())) };
        let counted = |found: u64| {
            if found == expected { Ok(()) } else { Err(format!("it has {found} bytes and not {expected}")) }
        };
        match packing {
            Packing::Other => Ok(Ok(())),
            Packing::Raw => Ok(counted(length)),
            Packing::Zstd => Ok(zstd_frame::each(self.read(offset, length)?, expected, |_| {})?.and_then(counted)),
            Packing::Sharded { chunks, bytes, inner } => {
                let table = chunks
                    .checked_mul(16)
                    .and_then(|table| table.checked_add(4))
                    .filter(|table| *table <= TABLE.min(length));
                let Some(table) = table else { return Ok(Err("it has no room for its table".into())) };
                let mut places = Vec::new();
                self.read(offset + length - table, table)?.read_to_end(&mut places)?;
                let Some((places, crc)) = places.split_last_chunk::<4>() else {
                    return Ok(Err("it has no table".into()));
                };
                if crc32c::crc32c(places) != u32::from_le_bytes(*crc) {
                    return Ok(Err("the checksum of its table is not its".into()));
                }
                for place in places.chunks_exact(16) {
                    let (at, size) = place.split_at(8);
                    let number = |bytes: &[u8]| bytes.try_into().map_or(u64::MAX, u64::from_le_bytes);
                    let (at, size) = (number(at), number(size));
                    // Left out, as it is all zeros.
                    if (at, size) == (u64::MAX, u64::MAX) {
                        continue;
                    }
                    if at.checked_add(size).is_none_or(|end| end > length) {
                        return Ok(Err("its table names places outside of it".into()));
                    }
                    if let Err(why) = self.check(inner, Some(*bytes), offset + at, size)? {
                        return Ok(Err(why));
                    }
                }
                Ok(Ok(()))
            }
        }
    }
}
