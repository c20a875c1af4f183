//! The table that the index of a checkpoint is: sorted keys in blocks, each with its checksum (LevelDB's format).

use crate::formats::source::{Fault, Source, take, varint};

/// Maximum length of an index, in bytes.
const LIMIT: u64 = 256 << 20;
const FOOTER: u64 = 48;
const MAGIC: u64 = 0xdb47_7524_8b80_fb57;
/// A kind and a checksum.
const TRAILER: u64 = 5;

/// A stored checksum is masked, so that a checksum over bytes that contain checksums stays a good one.
pub(super) fn unmask(masked: u32) -> u32 {
    masked.wrapping_sub(0xa282_ead8).rotate_left(15)
}

/// Calls `visit` with each key and its value, in order. Every byte is checked.
pub(super) fn read(
    source: &mut Source<'_>,
    path: &str,
    size: u64,
    mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), Fault>,
) -> Result<(), Fault> {
    if size > LIMIT {
        return Err(Fault::bad(path, format!("has {size} bytes, and no index is as long")));
    }
    let end = |why: &str| Fault::Missing(format!("{path} {why}: it is being written, or was cut short"));
    let start = size.checked_sub(FOOTER).ok_or_else(|| end("has no room for its end record"))?;
    let footer = source.bytes(path, start, FOOTER, FOOTER)?;
    let (mut handles, magic) = footer.split_at(40);
    if magic != MAGIC.to_le_bytes() {
        return Err(end("has no end record"));
    }
    let mut handle = || Some((varint(&mut handles)?, varint(&mut handles)?));
    let (Some(meta), Some(index)) = (handle(), handle()) else {
        return Err(Fault::bad(path, "its end record is no such"));
    };
    // This block is not used, but it has a checksum as well.
    block(source, path, start, meta)?;
    let index = block(source, path, start, index)?;
    let mut last = None::<Vec<u8>>;
    entries(path, &index, |_, mut handle| {
        let (Some(offset), Some(length)) = (varint(&mut handle), varint(&mut handle)) else {
            return Err(Fault::bad(path, "the place of a block can't be read"));
        };
        let block = block(source, path, start, (offset, length))?;
        entries(path, &block, |key, value| {
            if last.as_deref().is_some_and(|last| last >= key) {
                return Err(Fault::bad(path, "its keys are not in order"));
            }
            last = Some(key.to_vec());
            visit(key, value)
        })
    })
}

fn block(source: &mut Source<'_>, path: &str, end: u64, (offset, length): (u64, u64)) -> Result<Vec<u8>, Fault> {
    let whole = length.checked_add(TRAILER).filter(|whole| offset.checked_add(*whole).is_some_and(|to| to <= end));
    let Some(whole) = whole else { return Err(Fault::bad(path, "a block is said to lie outside of it")) };
    let mut bytes = source.bytes(path, offset, whole, LIMIT)?;
    let stored = bytes.split_off(bytes.len() - 4);
    if unmask(u32::from_le_bytes(stored.try_into().unwrap_or_default())) != crc32c::crc32c(&bytes) {
        return Err(Fault::bad(path, format!("the checksum of the {length} bytes at {offset} is not theirs")));
    }
    match bytes.pop() {
        Some(0) => Ok(bytes),
        // TensorFlow has not written Snappy since 1.1.
        kind => {
            Err(Fault::bad(path, format!("the block at {offset} is compressed ({kind:?}), which is not read here")))
        }
    }
}

fn entries(path: &str, block: &[u8], mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), Fault>) -> Result<(), Fault> {
    let wrong = || Fault::bad(path, "a block of it can't be read");
    let (rest, restarts) = block.split_last_chunk::<4>().ok_or_else(wrong)?;
    let restarts = (u32::from_le_bytes(*restarts) as usize).checked_mul(4).ok_or_else(wrong)?;
    let mut rest = rest.get(..rest.len().checked_sub(restarts).ok_or_else(wrong)?).ok_or_else(wrong)?;
    let mut key = Vec::new();
    while !rest.is_empty() {
        let mut entry = || {
            let (shared, own, value) = (varint(&mut rest)?, varint(&mut rest)?, varint(&mut rest)?);
            Some((usize::try_from(shared).ok()?, take(&mut rest, own)?, take(&mut rest, value)?))
        };
        let (shared, own, value) = entry().filter(|(shared, ..)| *shared <= key.len()).ok_or_else(wrong)?;
        key.truncate(shared);
        key.extend_from_slice(own);
        visit(&key, value)?;
    }
    Ok(())
}
