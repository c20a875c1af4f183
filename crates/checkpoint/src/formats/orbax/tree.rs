//! The tree of arrays that an item is, and the small files beside it that have to agree with it.
//!
//! None of them has a checksum. The values that Orbax needs have to be there, and values that are stored twice have to
//! agree.

use super::{JSON, read_json};
use crate::formats::source::{Fault, Source};
use serde_json::Value;
use std::collections::HashSet;

/// What a leaf of the tree is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Array,
    Text,
    /// Empty, or of a type that a program has added: where it is kept is not known.
    Other,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Leaf {
    /// As its array is called.
    pub(super) name: String,
    pub(super) kind: Kind,
}

/// The leaves of a tree, from `_METADATA`.
pub(super) fn leaves(json: &Value) -> Result<Vec<Leaf>, String> {
    const TYPES: [&str; 9] =
        ["jax.Array", "np.ndarray", "scalar", "string", "None", "Dict", "List", "Tuple", "NamedTuple"];
    let tree = json.get("tree_metadata").and_then(Value::as_object).ok_or("it has no tree_metadata")?;
    let mut leaves = Vec::new();
    for (path, leaf) in tree {
        let lacks = |what: &str| format!("{path} has no {what}");
        let keys = leaf.get("key_metadata").and_then(Value::as_array).ok_or_else(|| lacks("key_metadata"))?;
        let parts = keys.iter().map(|key| {
            if !matches!(key.get("key_type").and_then(Value::as_u64), Some(1 | 2)) {
                return Err(lacks("key_type that is known"));
            }
            match key.get("key") {
                Some(Value::String(key)) => Ok(key.clone()),
                Some(Value::Number(key)) => Ok(key.to_string()),
                _ => Err(lacks("key")),
            }
        });
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        // The same again, as Python shows it; but for letters that it shows otherwise.
        let plain =
            |part: &String| part.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'\'' && byte != b'\\');
        let shown: Vec<String> = parts.iter().map(|part| format!("'{part}'")).collect();
        let shown = format!("({}{})", shown.join(", "), if shown.len() == 1 { "," } else { "" });
        if parts.iter().all(plain) && *path != shown {
            return Err(format!("{path} is also called {shown}"));
        }
        let value = leaf.get("value_metadata").ok_or_else(|| lacks("value_metadata"))?;
        let kind = value.get("value_type").and_then(Value::as_str).ok_or_else(|| lacks("value_type"))?;
        let skipped =
            value.get("skip_deserialize").and_then(Value::as_bool).ok_or_else(|| lacks("skip_deserialize"))?;
        if let Some(meant) = TYPES.iter().find(|known| one_bit_off(kind, known)) {
            return Err(format!("{path} is of type {kind:?}, one bit off {meant:?}"));
        }
        let kind = match kind {
            _ if skipped => Kind::Other,
            "jax.Array" | "np.ndarray" | "scalar" => Kind::Array,
            "string" => Kind::Text,
            _ => Kind::Other,
        };
        leaves.push(Leaf { name: parts.join("."), kind });
    }
    Ok(leaves)
}

/// An unknown name may belong to a newer version. A name that is a single bit away from a known one is damage.
fn one_bit_off(name: &str, known: &str) -> bool {
    let flips = name.bytes().zip(known.bytes()).map(|(left, right)| (left ^ right).count_ones());
    name.len() == known.len() && flips.sum::<u32>() == 1
}

/// The files beside a tree: where arrays were, texts, and how arrays were written.
pub(super) fn beside(source: &mut Source<'_>, item: &str, leaves: &[Leaf]) -> Result<(), Fault> {
    let names: HashSet<&str> = leaves.iter().map(|leaf| leaf.name.as_str()).collect();
    let path = format!("{item}_sharding");
    // Some programs write none; then it can be restored only into a tree that is given. With thousands of devices it is
    // long.
    if source.member(&path).is_some_and(|member| member.size <= JSON) {
        let encoded: HashSet<String> = names.iter().map(|name| base64(name.as_bytes())).collect();
        let json = read_json(source, &path)?;
        for (name, value) in json.as_object().ok_or_else(|| Fault::bad(&path, "it is no object"))? {
            if !encoded.contains(name) {
                return Err(Fault::bad(&path, format!("{name:?} stands for no array of the tree")));
            }
            let value = value.as_str().ok_or_else(|| Fault::bad(&path, format!("{name:?} is no text")))?;
            sharding(value).map_err(|why| Fault::bad(&path, format!("{value:?}: {why}")))?;
        }
    }
    let path = format!("{item}_strings.json");
    let texts = || leaves.iter().filter(|leaf| leaf.kind == Kind::Text);
    if texts().next().is_some() || source.member(&path).is_some() {
        let json = read_json(source, &path)?;
        if let Some(missing) = texts().find(|leaf| !json.get(&leaf.name).is_some_and(Value::is_string)) {
            return Err(Fault::bad(&path, format!("it has no text {:?}", missing.name)));
        }
    }
    let folder = format!("{item}array_metadatas/");
    let ours = source.files.members().iter().filter(|member| member.path.starts_with(&folder));
    let paths: Vec<String> = ours.map(|member| member.path.clone()).collect();
    for path in paths {
        let json = read_json(source, &path)?;
        let arrays = json.get("array_metadatas").and_then(Value::as_array);
        for array in arrays.ok_or_else(|| Fault::bad(&path, "it has no array_metadatas"))? {
            let text = |name| array.get("array_metadata")?.get(name)?.as_str();
            let shape = |name| array.get("array_metadata")?.get(name)?.as_array();
            let whole = text("param_name").is_some_and(|name| names.contains(name))
                && shape("write_shape").map(Vec::len) == shape("chunk_shape").map(Vec::len)
                && shape("write_shape").is_some();
            if !whole {
                return Err(Fault::bad(&path, format!("it describes no array of the tree: {array}")));
            }
        }
    }
    Ok(())
}

/// Whether that is a description of where an array was.
pub(super) fn sharding(text: &str) -> Result<(), String> {
    const TYPES: [&str; 3] = ["SingleDeviceSharding", "NamedSharding", "PositionalSharding"];
    let json: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let kind = json.get("sharding_type").and_then(Value::as_str).ok_or("it has no sharding_type")?;
    if TYPES.iter().any(|known| one_bit_off(kind, known)) {
        return Err(format!("{kind:?} is no sharding_type"));
    }
    let needed: &[&str] = match kind {
        "SingleDeviceSharding" => &["device_str"],
        "NamedSharding" => &["shape", "axis_names", "partition_spec"],
        _ => &[],
    };
    needed
        .iter()
        .find(|name| json.get(**name).is_none_or(Value::is_null))
        .map_or(Ok(()), |name| Err(format!("it has no {name}")))
}

/// As Orbax writes the names of arrays: in the alphabet for URLs.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for part in bytes.chunks(3) {
        let bits = part.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - part.len()));
        for digit in 0..4 {
            let index = (bits >> (18 - 6 * digit)) & 63;
            text.push(if digit > part.len() { '=' } else { DIGITS[index as usize].into() });
        }
    }
    text
}
