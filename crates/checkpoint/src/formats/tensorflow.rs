//! TensorFlow's checkpoints: `PREFIX.index`, and `PREFIX.data-00000-of-00001` and so on.
//!
//! `tf.train.Checkpoint`, `CheckpointManager` and `tf.train.Saver` write these, and Keras 2 if it saves weights only.
//! The index is written last, when all data is in place. It is a sorted table with a checksum for each block, and has
//! the place, length and checksum of each tensor. So a flipped bit is detected anywhere but in the 30 or so unused
//! bytes of the table's end record. Bytes of a data file that belong to no tensor (alignment, or appended bytes) are
//! not checked.
//!
//! The file `checkpoint` beside them names the latest one. It belongs to no checkpoint, and a program that resumes by a
//! path does not read it.

mod proto;
mod table;
#[cfg(test)]
mod tests;

use crate::files::Files;
use crate::formats::source::{Fault, Source, judged};
use crate::formats::{Claim, Listing, Rules};
use crate::found::{Depth, Format, Judgement};
use proto::{Entry, Header};
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read};

/// TensorFlow's checkpoints.
pub const RULES: Rules = Rules { format: Format::Tensorflow, claim, judge };

/// Maximum number of tensors, and of bytes in their names. An index with more is rejected.
const TENSORS: usize = 4 << 20;
const NAMES: usize = 256 << 20;
const INDEX: &str = ".index";
const GRAPH: &str = ".meta";
const TEMPORARY: &str = ".tempstate";
const STRING: u64 = 7;
const VARIANT: u64 = 21;

/// The prefix that a file's name begins with, if it is one of a checkpoint's.
fn prefix(name: &str) -> Option<&str> {
    // Written under such a name first, where files can be renamed.
    let name = name.rfind(TEMPORARY).map_or(name, |at| &name[..at]);
    // A graph is what `tf.train.Saver` leaves beside each.
    if let Some(prefix) = name.strip_suffix(INDEX).or_else(|| name.strip_suffix(GRAPH)) {
        return Some(prefix);
    }
    let (prefix, shard) = name.rsplit_once(".data-")?;
    let (shard, of) = shard.split_once("-of-")?;
    let digits = |text: &str| text.len() >= 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    (digits(shard) && digits(of)).then_some(prefix)
}

fn claim(listing: &Listing) -> Vec<Claim> {
    let mut claims: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for file in &listing.files {
        if let Some(prefix) = prefix(file).filter(|prefix| !prefix.is_empty()) {
            claims.entry(prefix).or_default().push(file.clone());
        }
    }
    // An index or a graph alone may belong to any program. Those of a SavedModel are part of it, and it is no
    // checkpoint.
    let ours = |prefix: &str, files: &[String]| {
        files.iter().any(|file| file.contains(".data-")) && !(prefix == "variables" && listing.name == "variables")
    };
    claims
        .into_iter()
        .filter(|(prefix, files)| ours(prefix, files))
        .map(|(prefix, files)| Claim::Files { name: prefix.to_owned(), files })
        .collect()
}

/// The bytes of one element; `None` for types with varying lengths, and for types that are not known yet.
fn width(dtype: u64) -> Option<u64> {
    match dtype {
        4 | 6 | 10 | 11 | 12 | 24..=32 => Some(1),
        5 | 14..=17 | 19 => Some(2),
        1 | 3 | 13 | 22 => Some(4),
        2 | 8 | 9 | 23 => Some(8),
        18 => Some(16),
        _ => None,
    }
}

struct Tensor {
    name: String,
    entry: Entry,
}

fn judge(name: &str, files: &dyn Files, depth: Depth) -> io::Result<Judgement> {
    let mut judgement = Judgement::valid();
    judgement.step = name.rsplit_once('-').and_then(|(_, step)| step.parse().ok());
    match look(name, files, depth, &mut judgement) {
        Ok(()) => Ok(judgement),
        Err(fault) => {
            let verdict = judged(Err(fault))?.verdict;
            Ok(Judgement { verdict, ..judgement })
        }
    }
}

fn look(name: &str, files: &dyn Files, depth: Depth, judgement: &mut Judgement) -> Result<(), Fault> {
    let part = |text: &str| {
        text.split_once("-of-").is_some_and(|(part, of)| part.parse::<u32>().is_ok() && of.parse::<u32>().is_ok())
    };
    if name.rsplit('/').next().and_then(|name| name.strip_prefix("part-")).is_some_and(part) {
        return Err(Fault::Missing("it is one process's part of a checkpoint that was not put together".into()));
    }
    let path = format!("{name}{INDEX}");
    let Some(index) = files.member(&path) else {
        return Err(Fault::Missing(format!("{path}, which is written last, is not there")));
    };
    let mut source = Source::new(files);
    let mut header = None;
    let mut tensors = Vec::new();
    let mut names = 0;
    table::read(&mut source, &path, index.size, |key, value| {
        if header.is_none() {
            let parsed = key.is_empty().then(|| Header::parse(value)).flatten();
            header = Some(parsed.ok_or_else(|| Fault::bad(&path, "its first entry is no header"))?);
            return Ok(());
        }
        let name = String::from_utf8_lossy(key).into_owned();
        names += name.len();
        if names > NAMES || tensors.len() >= TENSORS {
            return Err(Fault::bad(&path, "it has more tensors than is believed"));
        }
        let entry =
            Entry::parse(value).ok_or_else(|| Fault::bad(&path, format!("the entry of {name:?} can't be read")))?;
        tensors.push(Tensor { name, entry });
        Ok(())
    })?;
    let header = header.ok_or_else(|| Fault::bad(&path, "it is empty"))?;
    if header.min_consumer > 1 {
        return Err(Fault::bad(&path, format!("it needs a reader of version {}, and 1 is known", header.min_consumer)));
    }
    tensors.retain(|tensor| !tensor.entry.sliced);
    let shard = |entry: &Entry| format!("{name}.data-{:05}-of-{:05}", entry.shard, header.shards);
    for Tensor { name, entry } in &tensors {
        if entry.shard >= header.shards {
            return Err(Fault::bad(
                &path,
                format!("{name:?} is said to be in shard {} of {}", entry.shard, header.shards),
            ));
        }
        if let Some(width) = width(entry.dtype)
            && entry.elements.checked_mul(width) != Some(entry.size)
        {
            return Err(Fault::bad(&path, format!("{name:?} can't have {} bytes", entry.size)));
        }
        source.check(&shard(entry), entry.offset, entry.size)?;
    }
    numbers(&mut source, &tensors, shard, header.big_endian, judgement)?;
    if depth < Depth::Content {
        return Ok(());
    }
    tensors.sort_by_key(|tensor| (tensor.entry.shard, tensor.entry.offset));
    for Tensor { name, entry } in &tensors {
        let path = shard(entry);
        let bytes = source.range(&path, entry.offset, entry.size)?;
        let crc = match entry.dtype {
            STRING => strings(bytes, entry.elements, header.big_endian)?,
            VARIANT => variants(bytes, entry.elements)?,
            _ => Some(checksum(bytes, entry.size, 0)?.1),
        };
        if crc != Some(table::unmask(entry.crc)) {
            return Err(Fault::bad(
                &path,
                format!("the bytes of {name:?} (at {}) are not those that were written", entry.offset),
            ));
        }
    }
    Ok(())
}

/// Step and epoch, if the program keeps them in variables. By default, `-N` at the end of the name counts the saves.
/// The program or its optimiser counts the steps.
fn numbers(
    source: &mut Source<'_>,
    tensors: &[Tensor],
    shard: impl Fn(&Entry) -> String,
    big_endian: bool,
    judgement: &mut Judgement,
) -> Result<(), Fault> {
    let find = |names: &[&str]| {
        let rank = |tensor: &Tensor| {
            let path = tensor.name.strip_suffix("/.ATTRIBUTES/VARIABLE_VALUE").unwrap_or(&tensor.name);
            let depth = path.split('/').count();
            let last = path.rsplit('/').next()?;
            // A variable farther down belongs to a layer.
            (depth <= 3).then_some(())?;
            Some((names.iter().position(|name| *name == last)?, depth))
        };
        let whole = |entry: &Entry| entry.scalar && matches!(entry.dtype, 3 | 9 | 22 | 23);
        tensors
            .iter()
            .filter(|tensor| whole(&tensor.entry))
            .filter_map(|tensor| Some((rank(tensor)?, &tensor.entry)))
            .min_by_key(|(rank, _)| *rank)
    };
    let mut value = |entry: &Entry| -> Result<Option<u64>, Fault> {
        let mut bytes = source.bytes(&shard(entry), entry.offset, entry.size, 8)?;
        if big_endian {
            bytes.reverse();
        }
        bytes.resize(8, 0);
        // No program counts this far, and a negative value is no count.
        Ok(bytes.try_into().ok().map(u64::from_le_bytes).filter(|value| *value < 1 << 62))
    };
    if let Some((_, entry)) = find(&["global_step", "step", "iterations", "_iterations", "iter"]) {
        judgement.step = value(entry)?.or(judgement.step);
    }
    if let Some((_, entry)) = find(&["epoch"]) {
        judgement.epoch = value(entry)?.map(|epoch| epoch as f64);
    }
    Ok(())
}

/// How many bytes were read, and their checksum with those before.
fn checksum(bytes: impl Read, length: u64, before: u32) -> io::Result<(u64, u32)> {
    let mut bytes = bytes.take(length);
    let mut buffer = vec![0; length.clamp(1, 256 << 10) as usize];
    let (mut read, mut crc) = (0, before);
    loop {
        match bytes.read(&mut buffer) {
            Ok(0) => return Ok((read, crc)),
            Ok(more) => {
                read += more as u64;
                crc = crc32c::crc32c_append(crc, &buffer[..more]);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn varint(bytes: &mut impl BufRead) -> io::Result<Option<u64>> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let mut byte = [0];
        if bytes.read(&mut byte)? == 0 {
            return Ok(None);
        }
        value |= u64::from(byte[0] & 0x7f) << shift;
        if byte[0] < 0x80 {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

/// The checksum of strings: over their lengths as four bytes (eight for long ones), the lengths' own checksum, and the
/// bytes. In the file stand the lengths with seven bits a byte. `None` if they are not whole.
fn strings(bytes: impl Read, elements: u64, big_endian: bool) -> io::Result<Option<u32>> {
    let mut bytes = BufReader::new(bytes);
    if elements == 0 {
        return Ok(Some(0));
    }
    let (mut crc, mut total) = (0, 0_u64);
    for _ in 0..elements {
        let Some(length) = varint(&mut bytes)? else { return Ok(None) };
        let Some(sum) = total.checked_add(length) else { return Ok(None) };
        total = sum;
        crc = match u32::try_from(length) {
            Ok(length) if big_endian => crc32c::crc32c_append(crc, &length.to_be_bytes()),
            Ok(length) => crc32c::crc32c_append(crc, &length.to_le_bytes()),
            Err(_) if big_endian => crc32c::crc32c_append(crc, &length.to_be_bytes()),
            Err(_) => crc32c::crc32c_append(crc, &length.to_le_bytes()),
        };
    }
    let mut stored = Vec::with_capacity(4);
    bytes.by_ref().take(4).read_to_end(&mut stored)?;
    let Ok(raw) = <[u8; 4]>::try_from(stored) else { return Ok(None) };
    let masked = if big_endian { u32::from_be_bytes(raw) } else { u32::from_le_bytes(raw) };
    if table::unmask(masked) != crc {
        return Ok(None);
    }
    let (read, crc) = checksum(bytes, total, crc32c::crc32c_append(crc, &raw))?;
    Ok((read == total).then_some(crc))
}

/// The checksum of variants: of each its length as eight bytes, its bytes, and the checksum so far.
fn variants(bytes: impl Read, elements: u64) -> io::Result<Option<u32>> {
    let mut bytes = BufReader::new(bytes);
    let mut crc = 0;
    for _ in 0..elements {
        let Some(length) = varint(&mut bytes)? else { return Ok(None) };
        let (read, so_far) = checksum(&mut bytes, length, crc32c::crc32c_append(crc, &length.to_le_bytes()))?;
        let mut stored = Vec::with_capacity(4);
        bytes.by_ref().take(4).read_to_end(&mut stored)?;
        let Ok(raw) = <[u8; 4]>::try_from(stored) else { return Ok(None) };
        if read != length || table::unmask(u32::from_le_bytes(raw)) != so_far {
            return Ok(None);
        }
        crc = crc32c::crc32c_append(so_far, &raw);
    }
    Ok(Some(crc))
}
