//! As much of protocol buffers as the index of a checkpoint needs.

use crate::formats::source::{take, varint};

/// The value of a field.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Field<'a> {
    Varint(u64),
    Fixed32(u32),
    Fixed64,
    Bytes(&'a [u8]),
}

/// The fields of a message by number, in order; `None` if it is none.
pub(super) fn fields(mut bytes: &[u8]) -> Option<Vec<(u64, Field<'_>)>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let field = match tag & 7 {
            0 => Field::Varint(varint(&mut bytes)?),
            1 => take(&mut bytes, 8).map(|_| Field::Fixed64)?,
            2 => {
                let length = varint(&mut bytes)?;
                Field::Bytes(take(&mut bytes, length)?)
            }
            5 => Field::Fixed32(u32::from_le_bytes(take(&mut bytes, 4)?.try_into().ok()?)),
            _ => return None,
        };
        fields.push((tag >> 3, field));
    }
    Some(fields)
}

/// What the first entry of an index says of the whole.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) shards: u64,
    pub(super) big_endian: bool,
    /// The oldest reader that understands it; today's is 1.
    pub(super) min_consumer: u64,
}

impl Header {
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut header = Self::default();
        for field in fields(bytes)? {
            match field {
                (1, Field::Varint(shards)) => header.shards = shards,
                (2, Field::Varint(order)) => header.big_endian = order == 1,
                (3, Field::Bytes(version)) => {
                    for field in fields(version)? {
                        if let (2, Field::Varint(version)) = field {
                            header.min_consumer = version;
                        }
                    }
                }
                _ => {}
            }
        }
        Some(header)
    }
}

/// Where a tensor lies.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) dtype: u64,
    /// How many numbers or strings it has.
    pub(super) elements: u64,
    pub(super) scalar: bool,
    pub(super) shard: u64,
    pub(super) offset: u64,
    pub(super) size: u64,
    /// Masked, as in the file.
    pub(super) crc: u32,
    /// It has no bytes of its own: its slices are entries of their own.
    pub(super) sliced: bool,
}

impl Entry {
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut entry = Self { elements: 1, scalar: true, ..Self::default() };
        for field in fields(bytes)? {
            match field {
                (1, Field::Varint(dtype)) => entry.dtype = dtype,
                (2, Field::Bytes(shape)) => entry.take_shape(shape)?,
                (3, Field::Varint(shard)) => entry.shard = shard,
                (4, Field::Varint(offset)) => entry.offset = offset,
                (5, Field::Varint(size)) => entry.size = size,
                (6, Field::Fixed32(crc)) => entry.crc = crc,
                (7, Field::Bytes(_)) => entry.sliced = true,
                _ => {}
            }
        }
        Some(entry)
    }

    fn take_shape(&mut self, shape: &[u8]) -> Option<()> {
        for field in fields(shape)? {
            match field {
                (2, Field::Bytes(dimension)) => {
                    self.scalar = false;
                    self.elements = self.elements.checked_mul(size(dimension)?)?;
                }
                (3, Field::Varint(unknown_rank)) if unknown_rank != 0 => return None,
                _ => {}
            }
        }
        Some(())
    }
}

/// Of a dimension; -1, for one that is not known, is none that a tensor can have.
fn size(dimension: &[u8]) -> Option<u64> {
    let mut size = 0;
    for field in fields(dimension)? {
        if let (1, Field::Varint(given)) = field {
            size = given;
        }
    }
    i64::try_from(size).ok().map(i64::cast_unsigned)
}
