//! Tensors in `*.safetensors`: one file, or shards with an index.
//!
//! There is no checksum. Only the manifest reveals a flipped bit in a tensor, in its name if no index repeats it, or in
//! a model's `config.json`. So a whole one is Complete and not Valid.
//!
//! | damage | at which depth it is seen |
//! |---|---|
//! | cut anywhere | Structure: Incomplete; Corrupted if something says that it is written |
//! | a bit in the header: a type, a shape, an offset | Structure: shapes, offsets and the file's length have to agree |
//! | a bit in a tensor's name | Structure where there is an index; else not seen |
//! | a shard of another step | Structure if it has other tensors than the index says; else not seen |
//! | a bit in a tensor | not seen |

use super::fault::Fault;
use super::{Claim, Listing, Rules, json, named};
use crate::files::Files;
use crate::found::{Depth, Format, Judgement};
use ::safetensors::tensor::Metadata;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};

/// Files of tensors.
pub const RULES: Rules = Rules { format: Format::Safetensors, claim, judge };

/// The library's own limit for a header.
const HEADER_LIMIT: u64 = 100_000_000;
/// An index has a line for each tensor.
const INDEX_LIMIT: u64 = 256 << 20;
const INDEX: &str = ".safetensors.index.json";

fn claim(listing: &Listing) -> Vec<Claim> {
    let visible = |name: &&String| !name.starts_with('.');
    let tensors: Vec<&String> =
        listing.files.iter().filter(visible).filter(|name| name.ends_with(".safetensors")).collect();
    let indices: Vec<&String> = listing.files.iter().filter(visible).filter(|name| name.ends_with(INDEX)).collect();
    // A model's own folder. One that has folders may be where a run puts all its checkpoints.
    let is_model = !indices.is_empty() || (listing.has_file("config.json") && !tensors.is_empty());
    if is_model && listing.folders.is_empty() && !listing.name.is_empty() {
        return vec![Claim::Folder];
    }
    let is_shard =
        |name: &str| name.rsplit_once("-of-").is_some_and(|(_, rest)| rest.starts_with(|c: char| c.is_ascii_digit()));
    let mut claims: Vec<Claim> = Vec::new();
    for index in indices {
        let stem = index.trim_end_matches(INDEX);
        let shards = tensors.iter().filter(|name| is_shard(name) && name.starts_with(stem));
        let files = shards.copied().chain([index]).cloned().collect();
        claims.push(Claim::Files { name: index.clone(), files });
    }
    let single = tensors.into_iter().filter(|name| !is_shard(name));
    claims.extend(single.map(|name| Claim::Files { name: name.clone(), files: vec![name.clone()] }));
    claims
}

fn judge(name: &str, files: &dyn Files, depth: Depth) -> io::Result<Judgement> {
    let paths: Vec<&str> = files.members().iter().map(|member| member.path.as_str()).collect();
    let mut seen = false;
    for path in paths {
        let result = if path.ends_with(INDEX) {
            check_index(files, path)
        } else if path.ends_with(".safetensors") {
            seen = true;
            check(files, path).map(|_| None)
        } else if path.ends_with(".json") && depth == Depth::Content {
            json::read::<IgnoredAny>(files, path, INDEX_LIMIT).map(|_| None)
        } else {
            continue;
        };
        match result {
            Ok(None) => {}
            Ok(Some(judgement)) => return Ok(judgement),
            Err(fault) => return fault.judge(path, false),
        }
    }
    if !seen {
        return Ok(Judgement::incomplete("there is no *.safetensors"));
    }
    if let Some(why) = missing_shard(files) {
        return Ok(Judgement::incomplete(why));
    }
    // transformers writes the index last, and reads no shards without it.
    let is_model = |path: &str| path.starts_with("model-00001-of-") && path.ends_with(".safetensors");
    let members = files.members();
    if members.iter().any(|member| is_model(&member.path)) && !members.iter().any(|member| member.path.ends_with(INDEX))
    {
        return Ok(Judgement::incomplete("there are shards, and no model.safetensors.index.json"));
    }
    Ok(Judgement {
        step: named::step(name),
        epoch: named::epoch(name),
        metrics: named::metrics(name),
        ..Judgement::complete("damage could be unseen: safetensors has no checksum")
    })
}

/// Missing shards of `NAME-00001-of-00002.safetensors`, if only an index could name them and there is none.
pub fn missing_shard(files: &dyn Files) -> Option<String> {
    let mut sets: BTreeMap<(&str, u64), BTreeSet<u64>> = BTreeMap::new();
    for member in files.members() {
        let Some((stem, of)) = member.path.rsplit_once("-of-") else { continue };
        let Some((stem, number)) = stem.rsplit_once('-') else { continue };
        let (Some(number), Some(count)) = (
            named::number(number, "", ""),
            named::number(of, "", ".safetensors").or_else(|| named::number(of, "", ".bin")),
        ) else {
            continue;
        };
        sets.entry((stem, count)).or_default().insert(number);
    }
    for ((stem, count), numbers) in sets {
        if numbers.len() as u64 != count || numbers.first() != Some(&1) {
            return Some(format!("{stem} has {} of {count} shards", numbers.len()));
        }
    }
    None
}

/// Reads a header as the library does, and compares it with the file's length. Returns the names of its tensors and the
/// metadata.
///
/// # Errors
/// [`Fault::Cut`] if the file ends before its header or its last tensor.
pub fn check(files: &dyn Files, path: &str) -> Result<Metadata, Fault> {
    let Some(size) = files.member(path).map(|member| member.size) else { return Fault::cut("is missing") };
    let mut file = files.open(path)?;
    if size < 8 {
        return Fault::cut("ends within its header's length");
    }
    let mut length = [0; 8];
    file.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > HEADER_LIMIT {
        return Fault::wrong("has a header that is longer than safetensors allows");
    }
    if 8 + length > size {
        return Fault::cut("ends within its header");
    }
    let mut header = vec![0; length as usize];
    file.read_exact(&mut header)?;
    let Ok(text) = std::str::from_utf8(&header) else { return Fault::wrong("has a header that is no text") };
    if !text.starts_with('{') {
        return Fault::wrong("has a header that does not begin with {");
    }
    let metadata: Metadata = match serde_json::from_str(text) {
        Ok(metadata) => metadata,
        Err(error) => return Fault::wrong(format!("has a header that safetensors refuses: {error}")),
    };
    let end = (metadata.data_len() as u64).saturating_add(8 + length);
    match end.cmp(&size) {
        std::cmp::Ordering::Equal => Ok(metadata),
        std::cmp::Ordering::Greater => Fault::cut("ends before its last tensor does"),
        std::cmp::Ordering::Less => Fault::wrong("is longer than its tensors"),
    }
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Whether every shard of an index is there and has the tensors that the index says: a judgement if not.
///
/// # Errors
/// If the index is no index.
pub fn check_index(files: &dyn Files, path: &str) -> Result<Option<Judgement>, Fault> {
    let index: Index = json::read(files, path, INDEX_LIMIT)?;
    let folder = path.rsplit_once('/').map_or(String::new(), |(folder, _)| format!("{folder}/"));
    let mut shards: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (tensor, shard) in &index.weight_map {
        shards.entry(shard).or_default().insert(tensor);
    }
    for (shard, tensors) in shards {
        let place = format!("{folder}{shard}");
        if files.member(&place).is_none() {
            return Ok(Some(Judgement::incomplete(format!("{place} is missing, which {path} names"))));
        }
        if !shard.ends_with(".safetensors") {
            continue;
        }
        let metadata = match check(files, &place) {
            Ok(metadata) => metadata,
            Err(Fault::Io(error)) => return Err(error.into()),
            // The caller checks each shard itself, and reports what is wrong.
            Err(_) => continue,
        };
        let found: BTreeSet<String> = metadata.tensors().into_keys().collect();
        if let Some(tensor) = tensors.iter().find(|tensor| !found.contains(**tensor)) {
            return Ok(Some(Judgement::corrupted(place, format!("has no tensor {tensor:?}, which {path} says"))));
        }
        if let Some(tensor) = found.iter().find(|tensor| !tensors.contains(tensor.as_str())) {
            return Ok(Some(Judgement::corrupted(place, format!("has a tensor {tensor:?} that {path} does not name"))));
        }
    }
    Ok(None)
}
