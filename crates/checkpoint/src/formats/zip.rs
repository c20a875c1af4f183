//! ZIP archives, read as strictly as the writers of checkpoints produce them.
//!
//! `torch.load` compares no checksum, and each reader tolerates other faults. So only the form that the writers produce
//! is accepted. Entries follow each other without a gap, and local headers agree with the central ones. There is one
//! disk, no comment, and nothing encrypted. (APPNOTE 4.3 has the records.)

use super::fault::Fault;
use crate::files::ReadSeek;
use flate2::read::DeflateDecoder;
use std::collections::BTreeMap;
use std::io::{Read, SeekFrom};
use std::ops::Range;

const LOCAL: u32 = 0x0403_4b50;
const CENTRAL: u32 = 0x0201_4b50;
const END: u32 = 0x0605_4b50;
const END64: u32 = 0x0606_4b50;
const LOCATOR64: u32 = 0x0706_4b50;
const DESCRIPTOR: u32 = 0x0807_4b50;
/// Sizes follow the data; names are UTF-8. No other flag is written.
const FLAGS: u16 = SIZES_FOLLOW | 0x0800;
const SIZES_FOLLOW: u16 = 0x0008;
/// Of the external attributes.
const DOS_FOLDER: u32 = 0x10;
/// The newest version of the format that is requested: ZIP64.
const VERSION: u16 = 45;
/// Maximum size of the directory, in bytes. It has room for half a million names, more than any checkpoint has.
const DIRECTORY_LIMIT: u64 = 32 << 20;
/// Deflate can't do better than 1032 to 1.
const DEFLATE_RATIO: u64 = 1032;

/// A file in an archive.
#[derive(Debug)]
pub struct Entry {
    /// With its folders.
    pub name: String,
    /// In bytes, unpacked.
    pub size: u64,
    packed: u64,
    crc: u32,
    deflated: bool,
    flags: u16,
    stamp: u32,
    /// From its local header to where the next one begins, in the archive's file.
    place: Range<u64>,
}

/// An archive whose directory has been read.
#[derive(Debug)]
pub struct Archive {
    entries: Vec<Entry>,
    by_name: BTreeMap<String, usize>,
}

/// Little-endian numbers, one after the other.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8], Fault> {
        let Some((head, rest)) = self.0.split_at_checked(count) else {
            return Fault::wrong("has a ZIP record that ends within a field");
        };
        self.0 = rest;
        Ok(head)
    }

    fn u16(&mut self) -> Result<u16, Fault> {
        Ok(u16::from_le_bytes(self.bytes(2)?.try_into().unwrap_or_default()))
    }

    fn u32(&mut self) -> Result<u32, Fault> {
        Ok(u32::from_le_bytes(self.bytes(4)?.try_into().unwrap_or_default()))
    }

    fn u64(&mut self) -> Result<u64, Fault> {
        Ok(u64::from_le_bytes(self.bytes(8)?.try_into().unwrap_or_default()))
    }
}

/// The ZIP64 extra field of a header, if it has one. `known` are the others that may be there.
fn zip64<'a>(mut extra: &'a [u8], known: &[u16]) -> Result<Option<&'a [u8]>, Fault> {
    let mut found = None;
    while !extra.is_empty() {
        let mut fields = Fields(extra);
        let (kind, length) = (fields.u16()?, fields.u16()?);
        let content = fields.bytes(length.into())?;
        match kind {
            1 if found.is_none() => found = Some(content),
            kind if known.contains(&kind) => {}
            kind => return Fault::wrong(format!("has a ZIP entry with an extra field {kind:#06x}")),
        }
        extra = fields.0;
    }
    Ok(found)
}

/// Reads exactly `length` bytes at `at`.
fn read_at(file: &mut dyn ReadSeek, at: u64, length: u64) -> Result<Vec<u8>, Fault> {
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Where the central directory is, relative to the archive's start, and how many entries it has.
struct Directory {
    at: u64,
    size: u64,
    count: u64,
}

fn directory(file: &mut dyn ReadSeek, window: &Range<u64>) -> Result<Directory, Fault> {
    let length = window.end.saturating_sub(window.start);
    let tail = length.min(22 + 20 + 56);
    if length == 0 {
        return Fault::cut("is empty");
    }
    let bytes = read_at(file, window.end - tail, tail)?;
    let record = |before: usize, length: usize| {
        let start = bytes.len().checked_sub(before)?;
        bytes.get(start..start + length).map(Fields)
    };
    let Some(mut end) = record(22, 22) else { return Fault::cut("has no ZIP end record") };
    if end.u32()? != END {
        return Fault::cut("has no ZIP end record");
    }
    let disks = (end.u16()?, end.u16()?);
    let (here, count) = (end.u16()?, end.u16()?);
    let (size, at) = (end.u32()?, end.u32()?);
    let comment = end.u16()?;
    if disks != (0, 0) || here != count || comment != 0 {
        return Fault::wrong("has a ZIP end record that names several disks or a comment");
    }
    let mut directory = Directory { at: at.into(), size: size.into(), count: count.into() };
    let mut ends = length - 22;
    if let Some(mut locator) = record(42, 20)
        && locator.u32()? == LOCATOR64
    {
        let (disk, record_at, disks) = (locator.u32()?, locator.u64()?, locator.u32()?);
        let Some(mut end) = record(98, 56) else { return Fault::wrong("has no ZIP64 end record") };
        ends = length - 98;
        if disk != 0 || disks != 1 || record_at != ends || end.u32()? != END64 || end.u64()? != 44 {
            return Fault::wrong("has a ZIP64 end record that is elsewhere than its locator says");
        }
        let (_made_by, version, disk, disk_of_directory) = (end.u16()?, end.u16()?, end.u32()?, end.u32()?);
        let (here, count, size, at) = (end.u64()?, end.u64()?, end.u64()?, end.u64()?);
        let same = |short: u64, most: u64, long: u64| short == long || (short == most && long >= most);
        if version > VERSION || disk != 0 || disk_of_directory != 0 || here != count {
            return Fault::wrong("has a ZIP64 end record that names several disks");
        }
        if !same(directory.count, 0xffff, count)
            || !same(directory.size, 0xffff_ffff, size)
            || !same(directory.at, 0xffff_ffff, at)
        {
            return Fault::wrong("has two ZIP end records that disagree");
        }
        directory = Directory { at, size, count };
    }
    if directory.at.checked_add(directory.size) != Some(ends) || directory.count > directory.size / 46 {
        return Fault::wrong("has a ZIP directory that does not end where its end record begins");
    }
    if directory.size > DIRECTORY_LIMIT {
        return Fault::wrong("has a ZIP directory larger than any checkpoint's");
    }
    Ok(directory)
}

impl Archive {
    /// Reads the directory of the archive that fills `window` of a file. Local headers are read with what they belong to.
    ///
    /// # Errors
    /// [`Fault::Cut`] if it has no end record.
    pub fn open(file: &mut dyn ReadSeek, window: Range<u64>) -> Result<Self, Fault> {
        let directory = directory(file, &window)?;
        let bytes = read_at(file, window.start + directory.at, directory.size)?;
        let mut fields = Fields(&bytes);
        let mut entries: Vec<Entry> = Vec::new();
        let mut by_name = BTreeMap::new();
        for index in 0..directory.count {
            let entry = Entry::read(&mut fields, window.start)?;
            // The header of one ends the one before: they are written in the order of the directory.
            if let Some(before) = entries.last_mut() {
                before.place.end = entry.place.start;
            }
            if by_name.insert(entry.name.clone(), index as usize).is_some() {
                return Fault::wrong(format!("has two ZIP entries {:?}", entry.name));
            }
            entries.push(entry);
        }
        if !fields.0.is_empty() {
            return Fault::wrong("has a ZIP directory with more than its entries");
        }
        if let Some(last) = entries.last_mut() {
            last.place.end = window.start + directory.at;
        }
        let archive = Self { entries, by_name };
        let starts = archive.entries.first().map_or(directory.at, |entry| entry.place.start - window.start);
        if starts != 0 {
            return Fault::wrong("has bytes before its first ZIP entry");
        }
        for entry in &archive.entries {
            let least = 30 + entry.name.len() as u64 + entry.descriptor().0;
            let room = entry.place.end.checked_sub(entry.place.start).and_then(|room| room.checked_sub(least));
            // A local header has an extra field of 64 KiB at most, and a descriptor may be of the longer kind.
            if room.and_then(|room| room.checked_sub(entry.packed)).is_none_or(|over| over > 0xffff + 8) {
                return Fault::wrong(format!("has a ZIP entry {:?} that does not fit before the next", entry.name));
            }
        }
        Ok(archive)
    }

    /// All entries, in the order in which they are written.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The entry of that name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Entry> {
        self.by_name.get(name).map(|&index| &self.entries[index])
    }

    /// Whether entries have their CRC32. Without, as `torch.serialization.set_crc32_options(False)` writes it, all are zero.
    #[must_use]
    pub fn has_checksums(&self) -> bool {
        self.entries.iter().all(|entry| entry.size == 0) || self.entries.iter().any(|entry| entry.crc != 0)
    }

    /// Reads an entry and its header, gives its bytes piece by piece, and compares what the header and the directory say of it.
    ///
    /// # Errors
    /// If the entry is not what its header says.
    pub fn stream(&self, file: &mut dyn ReadSeek, entry: &Entry, mut piece: impl FnMut(&[u8])) -> Result<(), Fault> {
        let wrong = |what: &str| Fault::wrong(format!("has a ZIP entry {:?} {what}", entry.name));
        let data = entry.data(file)?;
        file.seek(SeekFrom::Start(data))?;
        let mut crc = crc32fast::Hasher::new();
        let mut size = 0;
        let mut buffer = vec![0; entry.size.clamp(1 << 9, 128 << 10) as usize];
        let mut packed = file.take(entry.packed);
        let mut pull = |from: &mut dyn Read| -> Result<(), Fault> {
            loop {
                let count = match from.read(&mut buffer) {
                    Ok(count) => count,
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                    // What the decoder says of bytes that are no deflate stream.
                    Err(error)
                        if matches!(
                            error.kind(),
                            std::io::ErrorKind::InvalidInput | std::io::ErrorKind::InvalidData
                        ) =>
                    {
                        return Fault::wrong(format!("has a ZIP entry {:?} that can't be unpacked", entry.name));
                    }
                    Err(error) => return Err(error.into()),
                };
                size += count as u64;
                if count == 0 || size > entry.size {
                    return Ok(());
                }
                crc.update(&buffer[..count]);
                piece(&buffer[..count]);
            }
        };
        if entry.deflated {
            let mut decoder = DeflateDecoder::new(packed);
            pull(&mut decoder)?;
            if decoder.total_in() != entry.packed {
                return wrong("that is followed by something else");
            }
        } else {
            pull(&mut packed)?;
        }
        if size != entry.size {
            return wrong("that has another length than the directory says");
        }
        if self.has_checksums() && crc.finalize() != entry.crc {
            return wrong("whose checksum is wrong");
        }
        Ok(())
    }

    /// Reads a small entry whole.
    ///
    /// # Errors
    /// As [`Archive::stream`]; also if it has more than `limit` bytes.
    pub fn read(&self, file: &mut dyn ReadSeek, entry: &Entry, limit: u64) -> Result<Vec<u8>, Fault> {
        if entry.size > limit {
            return Fault::wrong(format!("has a ZIP entry {:?} of more than {limit} bytes", entry.name));
        }
        let mut bytes = Vec::new();
        self.stream(file, entry, |piece| bytes.extend_from_slice(piece))?;
        Ok(bytes)
    }
}

impl Entry {
    /// The next of a directory, in an archive that begins at `start`. Its place has no end yet.
    fn read(fields: &mut Fields, start: u64) -> Result<Self, Fault> {
        if fields.u32()? != CENTRAL {
            return Fault::wrong("has a ZIP directory that is no directory");
        }
        let (_made_by, version, flags, method) = (fields.u16()?, fields.u16()?, fields.u16()?, fields.u16()?);
        let (stamp, crc, packed, size) = (fields.u32()?, fields.u32()?, fields.u32()?, fields.u32()?);
        let (name, extra, comment) = (fields.u16()?, fields.u16()?, fields.u16()?);
        let (disk, _internal, external, at) = (fields.u16()?, fields.u16()?, fields.u32()?, fields.u32()?);
        let Ok(name) = std::str::from_utf8(fields.bytes(name.into())?) else {
            return Fault::wrong("has a ZIP entry whose name is no text");
        };
        let wrong = |what: &str| Fault::wrong(format!("has a ZIP entry {name:?} {what}"));
        let mut sizes = Fields(zip64(fields.bytes(extra.into())?, &[])?.unwrap_or_default());
        let mut whole = |short: u32| if short == u32::MAX { sizes.u64() } else { Ok(short.into()) };
        let (size, packed, at) = (whole(size)?, whole(packed)?, whole(at)?);
        if !sizes.0.is_empty() {
            return wrong("with two sizes");
        }
        if version > VERSION || flags & !FLAGS != 0 || comment != 0 || disk != 0 {
            return wrong("that is encrypted, or has other marks than a checkpoint's");
        }
        // torch's reader takes what has MS-DOS's mark of a folder for empty.
        if (external & DOS_FOLDER != 0) != name.ends_with('/') {
            return wrong("that is marked as a folder, or is one without the mark");
        }
        let deflated = match method {
            0 if packed == size => false,
            8 if size <= packed.saturating_mul(DEFLATE_RATIO) => true,
            _ => return wrong("that is packed in a way that no checkpoint is, or has wrong sizes"),
        };
        let Some(at) = start.checked_add(at) else { return wrong("behind the archive's end") };
        Ok(Self { name: name.into(), size, packed, crc, deflated, flags, stamp, place: at..at })
    }

    /// How long the record behind the data may be.
    fn descriptor(&self) -> (u64, u64) {
        if self.flags & SIZES_FOLLOW == 0 { (0, 0) } else { (16, 24) }
    }

    /// Where its data begins, if its local header agrees with the directory and its data ends where the next entry begins.
    fn data(&self, file: &mut dyn ReadSeek) -> Result<u64, Fault> {
        let wrong = |what: &str| Fault::wrong(format!("has a ZIP entry {:?} {what}", self.name));
        let head = read_at(file, self.place.start, 30)?;
        let mut fields = Fields(&head);
        let (signature, version, flags, method) = (fields.u32()?, fields.u16()?, fields.u16()?, fields.u16()?);
        let (stamp, crc, packed, size) = (fields.u32()?, fields.u32()?, fields.u32()?, fields.u32()?);
        let (name, extra) = (fields.u16()?, fields.u16()?);
        if signature != LOCAL
            || version > VERSION
            || flags != self.flags
            || (method == 8) != self.deflated
            || method & !8 != 0
            || stamp != self.stamp
            || usize::from(name) != self.name.len()
        {
            return wrong("whose header is not what the directory says");
        }
        let rest = read_at(file, self.place.start + 30, u64::from(name) + u64::from(extra))?;
        let (name, extra) = rest.split_at(name.into());
        if name != self.name.as_bytes() {
            return wrong("whose header has another name");
        }
        // torch pads with a field "FB", so that the data is aligned.
        let mut sizes = Fields(zip64(extra, &[u16::from_le_bytes(*b"FB")])?.unwrap_or_default());
        let mut whole =
            |short: u32| if short == u32::MAX && !sizes.0.is_empty() { sizes.u64() } else { Ok(short.into()) };
        let (size, packed) = (whole(size)?, whole(packed)?);
        let follow = self.flags & SIZES_FOLLOW != 0;
        let agrees = |here: u64, there: u64| here == there || (follow && here == 0);
        if !agrees(size, self.size) || !agrees(packed, self.packed) || !agrees(crc.into(), self.crc.into()) {
            return wrong("whose header has other sizes or another checksum than the directory");
        }
        let data = self.place.start + 30 + rest.len() as u64;
        let over = data.checked_add(self.packed).and_then(|end| self.place.end.checked_sub(end));
        let (short, long) = self.descriptor();
        let Some(over) = over.filter(|&over| over == short || over == long) else {
            return wrong("that does not end where the next begins");
        };
        if follow {
            let bytes = read_at(file, self.place.end - over, over)?;
            let mut fields = Fields(&bytes);
            let (signature, crc) = (fields.u32()?, fields.u32()?);
            let (packed, size) = match over == long {
                true => (fields.u64()?, fields.u64()?),
                false => (fields.u32()?.into(), fields.u32()?.into()),
            };
            if signature != DESCRIPTOR || crc != self.crc || packed != self.packed || size != self.size {
                return wrong("whose end is not what the directory says");
            }
        }
        Ok(data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Cursor, Write};

    /// A ZIP archive as Python's `zipfile` writes it, with entries stored or deflated.
    fn archive(entries: &[(&str, &[u8], bool)]) -> Vec<u8> {
        let (mut bytes, mut directory) = (Vec::new(), Vec::new());
        for (name, data, deflate) in entries {
            let packed = match deflate {
                true => {
                    let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
                    encoder.write_all(data).unwrap();
                    encoder.finish().unwrap()
                }
                false => data.to_vec(),
            };
            let mut common = Vec::new();
            for field in [20_u16, 0, if *deflate { 8 } else { 0 }, 0, 33] {
                common.extend(field.to_le_bytes());
            }
            for field in [crc32fast::hash(data), packed.len() as u32, data.len() as u32, name.len() as u32] {
                common.extend(field.to_le_bytes());
            }
            directory.extend(CENTRAL.to_le_bytes());
            directory.extend(788_u16.to_le_bytes());
            directory.extend(&common);
            directory.extend([0; 10]);
            directory.extend((bytes.len() as u32).to_le_bytes());
            directory.extend(name.as_bytes());
            bytes.extend(LOCAL.to_le_bytes());
            bytes.extend(common);
            bytes.extend(name.as_bytes());
            bytes.extend(packed);
        }
        let at = bytes.len() as u32;
        bytes.extend(&directory);
        bytes.extend(END.to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend((entries.len() as u16).to_le_bytes().repeat(2));
        bytes.extend((directory.len() as u32).to_le_bytes());
        bytes.extend(at.to_le_bytes());
        bytes.extend([0; 2]);
        bytes
    }

    fn check(bytes: &[u8]) -> Result<Vec<Vec<u8>>, Fault> {
        let mut file = Cursor::new(bytes);
        let archive = Archive::open(&mut file, 0..bytes.len() as u64)?;
        archive.entries().iter().map(|entry| archive.read(&mut file, entry, 1 << 20)).collect()
    }

    #[test]
    fn stored_and_deflated_entries_are_read() {
        let bytes = archive(&[("a", b"stored", false), ("b/c", &[7; 5000], true), ("empty", b"", false)]);
        assert_eq!(check(&bytes).unwrap(), [b"stored".to_vec(), vec![7; 5000], Vec::new()]);
        assert!(check(&archive(&[])).unwrap().is_empty());
        // Longer than what is read at once.
        let long = vec![7; 300_000];
        assert_eq!(check(&archive(&[("a", &long, false), ("b", &long, true)])).unwrap(), [&*long, &long]);
    }

    #[test]
    fn archive_is_read_from_a_window_of_a_file() {
        let bytes = archive(&[("a", b"stored", false)]);
        let file = [&b"before"[..], &bytes, b"behind"].concat();
        let mut file = Cursor::new(file);
        let archive = Archive::open(&mut file, 6..6 + bytes.len() as u64).unwrap();
        assert_eq!(archive.read(&mut file, archive.find("a").unwrap(), 10).unwrap(), b"stored");
        assert!(Archive::open(&mut file, 5..6 + bytes.len() as u64).is_err());
    }

    #[test]
    fn truncation_and_relevant_bit_flips_are_detected() {
        let bytes = archive(&[("a", b"stored", false), ("b/c", b"deflated deflated", true)]);
        for length in 0..bytes.len() {
            assert!(matches!(check(&bytes[..length]), Err(Fault::Cut(_))), "{length}");
        }
        let whole = check(&bytes).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            // The creator and the attributes do not matter.
            if let Ok(read) = check(&damaged) {
                assert_eq!(read, whole, "bit {bit}");
            }
        }
    }

    #[test]
    fn false_zip_size_claims_are_rejected() {
        // A deflate stream that gives more than it says, and one that says more than deflate can give.
        let mut bomb = archive(&[("a", &vec![0; 1 << 20], true)]);
        let at = bomb.windows(4).position(|window| window == CENTRAL.to_le_bytes()).unwrap();
        for size in [10_u32, u32::MAX - 1] {
            bomb[at + 24..at + 28].copy_from_slice(&size.to_le_bytes());
            bomb[22..26].copy_from_slice(&size.to_le_bytes());
            assert!(matches!(check(&bomb), Err(Fault::Wrong(_))));
        }
        // An end record with 65535 entries and nothing else.
        let mut none = archive(&[]);
        none[8..12].fill(0xff);
        assert!(matches!(check(&none), Err(Fault::Wrong(_))));
    }
}
