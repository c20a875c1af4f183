//! OCDBT, the database that Orbax keeps arrays in: a manifest, and a tree of nodes in files beside it.
//!
//! Read after the description of the storage format in TensorStore's documentation. Manifest and nodes have a CRC-32C
//! each; values do not, unless they are kept within a node.

use super::zstd_frame;
use crate::formats::source::{Fault, Source, take, varint};
use std::rc::Rc;

/// Maximum length of the manifest and of a node, in bytes, packed or not. Orbax makes them of at most 100 MB.
const NODE: u64 = 128 << 20;
/// All nodes of a tree together.
const NODES: u64 = 4 << 30;
/// Keys and what lies within nodes, all together.
const MEMORY: usize = 512 << 20;
/// Of a key or path.
const LONGEST: u64 = 65_535;
/// Entries of a node, and files that it names; TensorStore reads none with more.
const ENTRIES: usize = 1 << 20;

/// Where the value of a key is.
pub(super) enum Value {
    Inline(Vec<u8>),
    At { file: Rc<str>, offset: u64, length: u64 },
}

/// A data file: what its nodes' own files are relative to, and its path.
#[derive(Clone)]
struct DataFile {
    base: Rc<str>,
    path: Rc<str>,
}

struct Node {
    file: DataFile,
    offset: u64,
    length: u64,
    height: u8,
    /// What all keys below begin with.
    prefix: Vec<u8>,
}

/// All keys and where their values are, in order. `folder` is empty or ends in `/`.
pub(super) fn read(source: &mut Source<'_>, folder: &str) -> Result<Vec<(String, Value)>, Fault> {
    let path = format!("{folder}manifest.ocdbt");
    let Some(member) = source.member(&path) else {
        return Err(Fault::Missing(format!("{path} is not there")));
    };
    let length = member.size;
    if length == 0 {
        return Err(Fault::Missing(format!("{path} is empty")));
    }
    let bytes = source.bytes(&path, 0, length, NODE)?;
    let body = envelope(&path, &bytes, 0x0cdb_3a2a)?;
    let root = manifest(&body, folder)
        .ok_or_else(|| Fault::bad(&path, "it can't be read, for all that its checksum is right"))?;
    let mut found = Vec::new();
    let mut nodes = root;
    let (mut read, mut memory) = (0_u64, 0);
    while let Some(node) = nodes.pop() {
        let path = node.file.path.to_string();
        read = read.saturating_add(node.length);
        if read > NODES {
            return Err(Fault::bad(&path, "the tree of its database is larger than is believed"));
        }
        let bytes = source.bytes(&path, node.offset, node.length, NODE)?;
        let body = envelope(&path, &bytes, 0x0cdb_20de)?;
        let from = found.len();
        let below = parse(&body, &node, &mut found)
            .ok_or_else(|| Fault::bad(&path, format!("its node at {} can't be read", node.offset)))?;
        memory += found[from..].iter().map(|(key, value)| size(key, value)).sum::<usize>();
        memory += below.iter().map(|node| node.prefix.len() + 128).sum::<usize>();
        if memory > MEMORY {
            return Err(Fault::bad(&path, "its database has more keys than is believed"));
        }
        nodes.extend(below.into_iter().rev());
    }
    Ok(found)
}

fn size(key: &str, value: &Value) -> usize {
    let own = match value {
        Value::Inline(bytes) => bytes.len(),
        Value::At { .. } => 0,
    };
    key.len() + own + 96
}

/// What is within the frame that manifest and nodes have: magic number, length, version, packing and checksum.
fn envelope(path: &str, bytes: &[u8], magic: u32) -> Result<Vec<u8>, Fault> {
    let parts = bytes.split_last_chunk::<4>().and_then(|(framed, crc)| {
        let mut rest = framed;
        let given = u32::from_be_bytes(take(&mut rest, 4)?.try_into().ok()?);
        let length = u64::from_le_bytes(take(&mut rest, 8)?.try_into().ok()?);
        Some((framed, u32::from_le_bytes(*crc), given, length, rest))
    });
    let Some((framed, crc, given, length, mut rest)) = parts else { return Err(Fault::bad(path, "it is cut short")) };
    if given != magic {
        return Err(Fault::bad(path, format!("there should be {magic:08x}, and there is {given:08x}")));
    }
    if length != bytes.len() as u64 {
        return Err(Fault::bad(path, format!("there are {} bytes, and {length} belong there", bytes.len())));
    }
    if crc32c::crc32c(framed) != crc {
        return Err(Fault::bad(path, format!("the checksum of {length} bytes is not theirs")));
    }
    match (varint(&mut rest), varint(&mut rest)) {
        (Some(0), Some(0)) => Ok(rest.to_vec()),
        (Some(0), Some(1)) => zstd_frame::unpack(rest, NODE).map_err(|why| Fault::bad(path, why)),
        (version, packing) => Err(Fault::bad(path, format!("version {version:?}, packing {packing:?} are not known"))),
    }
}

/// The root of the newest version, if it has one: a list of none or one. Older versions are not needed.
fn manifest(mut body: &[u8], folder: &str) -> Option<Vec<Node>> {
    let body = &mut body;
    take(body, 16)?;
    // Not a manifest by number, which Orbax does not ask for.
    (varint(body)? == 0).then_some(())?;
    let _inline = varint(body)?;
    let _node = varint(body)?;
    take(body, 1)?;
    if varint(body)? == 1 {
        take(body, 4)?;
    }
    let files = data_files(body, folder)?;
    let versions = usize::try_from(varint(body)?).ok().filter(|versions| (1..=body.len()).contains(versions))?;
    column(body, versions)?;
    let heights = take(body, versions as u64)?;
    let ids = column(body, versions)?;
    let offsets = column(body, versions)?;
    let lengths = column(body, versions)?;
    let last = versions - 1;
    if offsets[last] == u64::MAX && lengths[last] == u64::MAX {
        return Some(Vec::new());
    }
    let file = files.get(usize::try_from(ids[last]).ok()?)?.clone();
    Some(vec![Node { file, offset: offsets[last], length: lengths[last], height: heights[last], prefix: Vec::new() }])
}

fn column(body: &mut &[u8], entries: usize) -> Option<Vec<u64>> {
    // Each has at least a byte.
    (entries <= body.len().min(ENTRIES)).then_some(())?;
    (0..entries).map(|_| varint(body)).collect()
}

/// A table of files, whose paths are relative to `folder`.
fn data_files(body: &mut &[u8], folder: &str) -> Option<Vec<DataFile>> {
    let count = usize::try_from(varint(body)?).ok()?;
    if count == 0 {
        return Some(Vec::new());
    }
    let shared = column(body, count - 1)?;
    let own = column(body, count)?;
    let bases = column(body, count)?;
    let mut files = Vec::<DataFile>::new();
    let mut total = 0;
    let mut path = Vec::new();
    for at in 0..count {
        let shared = at.checked_sub(1).map_or(Some(0), |before| usize::try_from(shared[before]).ok())?;
        (shared <= path.len()).then_some(())?;
        path.truncate(shared);
        path.extend_from_slice(take(body, own[at])?);
        (path.len() as u64 <= LONGEST).then_some(())?;
        let text = str::from_utf8(&path).ok()?;
        let own_base = text.get(..usize::try_from(bases[at]).ok()?)?;
        let base = match files.last() {
            Some(last) if last.base.strip_prefix(folder) == Some(own_base) => last.base.clone(),
            _ => format!("{folder}{own_base}").into(),
        };
        // Paths that share their beginning take little room in a node, and more here.
        total += folder.len() + path.len();
        (total <= MEMORY).then_some(())?;
        files.push(DataFile { base, path: format!("{folder}{text}").into() });
    }
    Some(files)
}

/// The nodes below a node, or its keys and their values.
fn parse(mut body: &[u8], node: &Node, found: &mut Vec<(String, Value)>) -> Option<Vec<Node>> {
    let body = &mut body;
    (take(body, 1)? == [node.height]).then_some(())?;
    let files = data_files(body, &node.file.base)?;
    let count = usize::try_from(varint(body)?).ok().filter(|count| *count > 0)?;
    let shared = column(body, count - 1)?;
    let own = column(body, count)?;
    let common = if node.height > 0 { column(body, count)? } else { Vec::new() };
    let mut keys = Vec::<Vec<u8>>::new();
    let mut total = 0;
    for (at, own) in own.into_iter().enumerate() {
        let before = keys.last().map_or(&[][..], |key| key.as_slice());
        let shared = at.checked_sub(1).map_or(Some(0), |before| usize::try_from(shared[before]).ok())?;
        let mut key = before.get(..shared)?.to_vec();
        key.extend_from_slice(take(body, own)?);
        total += key.len();
        (key.len() as u64 <= LONGEST && total <= MEMORY && (at == 0 || before < key.as_slice())).then_some(())?;
        keys.push(key);
    }
    let file = |id: u64| files.get(usize::try_from(id).ok()?).cloned();
    if node.height > 0 {
        let (ids, offsets, lengths) = (column(body, count)?, column(body, count)?, column(body, count)?);
        for _statistic in 0..3 {
            column(body, count)?;
        }
        body.is_empty().then_some(())?;
        return (0..count)
            .map(|at| {
                let mut prefix = node.prefix.clone();
                prefix.extend_from_slice(keys[at].get(..usize::try_from(common[at]).ok()?)?);
                Some(Node {
                    file: file(ids[at])?,
                    offset: offsets[at],
                    length: lengths[at],
                    height: node.height - 1,
                    prefix,
                })
            })
            .collect();
    }
    let lengths = column(body, count)?;
    let kinds = column(body, count)?;
    kinds.iter().all(|kind| *kind < 2).then_some(())?;
    let elsewhere = kinds.iter().filter(|kind| **kind == 1).count();
    let ids = column(body, elsewhere)?;
    let offsets = column(body, elsewhere)?;
    let mut next = 0;
    for at in 0..count {
        let mut key = node.prefix.clone();
        key.append(&mut keys[at]);
        let value = if kinds[at] == 1 {
            next += 1;
            Value::At { file: file(ids[next - 1])?.path, offset: offsets[next - 1], length: lengths[at] }
        } else {
            Value::Inline(take(body, lengths[at])?.to_vec())
        };
        found.push((String::from_utf8(key).ok()?, value));
    }
    body.is_empty().then(Vec::new)
}

/// Reads these as the contents of a manifest and two nodes. Returns whether there is a root, the number of keys, and
/// the number of nodes.
#[cfg(test)]
pub(super) fn probe(root: &[u8], leaf: &[u8], inner: &[u8]) -> (bool, usize, usize) {
    let file = DataFile { base: "x/".into(), path: "x/y".into() };
    let node = |height| Node { file: file.clone(), offset: 0, length: 0, height, prefix: b"p".to_vec() };
    let mut found = Vec::new();
    parse(leaf, &node(0), &mut found);
    let below = parse(inner, &node(1), &mut Vec::new());
    (manifest(root, "x/").is_some_and(|root| root.len() == 1), found.len(), below.map_or(0, |below| below.len()))
}
