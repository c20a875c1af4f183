use super::{RULES, claim, judge, prefix, table};
use crate::files::{Files, Member, ReadSeek};
use crate::formats::source::Source;
use crate::formats::{Claim, Listing};
use crate::found::{Depth, Format, Verdict};
use std::io::{self, Cursor};

struct File(Member, Vec<u8>);

impl Files for File {
    fn members(&self) -> &[Member] {
        std::slice::from_ref(&self.0)
    }

    fn open(&self, _path: &str) -> io::Result<Box<dyn ReadSeek + '_>> {
        Ok(Box::new(Cursor::new(&self.1)))
    }
}

fn file(path: &str, bytes: &[u8]) -> File {
    File(Member { path: path.into(), size: bytes.len() as u64, modified: 0 }, bytes.to_vec())
}

fn listing(name: &str, files: &[&str]) -> Listing {
    Listing { name: name.into(), files: files.iter().map(|file| (*file).to_owned()).collect(), folders: Vec::new() }
}

fn names(listing: &Listing) -> Vec<String> {
    let name = |claim| match claim {
        Claim::Files { name, files } => format!("{name}: {}", files.len()),
        Claim::Folder => "folder".into(),
    };
    claim(listing).into_iter().map(name).collect()
}

#[test]
fn files_with_one_prefix_form_one_checkpoint() {
    let files = [
        "checkpoint",
        "ckpt-1.data-00000-of-00002",
        "ckpt-1.data-00001-of-00002",
        "ckpt-1.index",
        "m.ckpt-9.data-00000-of-00001",
        "m.ckpt-9.meta",
    ];
    assert_eq!(names(&listing("run", &files)), ["ckpt-1: 3", "m.ckpt-9: 2"]);
    assert_eq!(RULES.format, Format::Tensorflow);
}

#[test]
fn foreign_files_are_not_claimed_as_checkpoints() {
    assert!(names(&listing("run", &["faiss.index", "graph.meta", "x.data-1-of-2", ".data-00000-of-00001"])).is_empty());
    // A SavedModel is no checkpoint.
    assert!(names(&listing("variables", &["variables.data-00000-of-00001", "variables.index"])).is_empty());
    assert_eq!(prefix("ckpt-1.index.tempstate123"), Some("ckpt-1"));
}

#[test]
fn partial_tensorflow_checkpoint_is_incomplete() {
    let incomplete = |name: &str, files: &File| {
        matches!(judge(name, files, Depth::Content).unwrap().verdict, Verdict::Incomplete { .. })
    };
    assert!(incomplete("ckpt-1", &file("ckpt-1.data-00000-of-00001", b"data")));
    assert!(incomplete("ckpt-1", &file("ckpt-1.index", b"")));
    assert!(incomplete("ckpt-1", &file("ckpt-1.index", &[0; 100])));
    assert!(incomplete("part-00000-of-00001", &file("part-00000-of-00001.index", b"")));
    assert_eq!(judge("ckpt-12", &file("ckpt-12.index", b""), Depth::Structure).unwrap().step, Some(12));
}

fn masked(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// A table with these blocks' contents, whose checksums are right: the last is the index, the one before it the other
/// one.
fn framed(blocks: &[Vec<u8>]) -> Vec<u8> {
    let (mut bytes, mut footer) = (Vec::new(), Vec::new());
    for (at, block) in blocks.iter().enumerate() {
        if at + 2 >= blocks.len() {
            footer.extend_from_slice(&varints(&[bytes.len() as u64, block.len() as u64]));
        }
        let mut block = block.clone();
        block.push(0);
        let crc = masked(&block);
        bytes.extend_from_slice(&block);
        bytes.extend_from_slice(&crc.to_le_bytes());
    }
    footer.resize(40, 0);
    bytes.extend_from_slice(&footer);
    bytes.extend_from_slice(&0xdb47_7524_8b80_fb57_u64.to_le_bytes());
    bytes
}

fn varints(numbers: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for number in numbers {
        let mut rest = *number;
        while rest >= 0x80 {
            bytes.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        bytes.push(rest as u8);
    }
    bytes
}

/// Entries that share nothing, and no places to start from.
fn block(entries: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (key, value) in entries {
        bytes.extend(varints(&[0, key.len() as u64, value.len() as u64]));
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(value);
    }
    bytes.extend([0; 4]);
    bytes
}

#[test]
fn a_table_is_read_in_order() {
    let data = block(&[(b"", b"header"), (b"a", b"1"), (b"b", b"2")]);
    let index = block(&[(b"b", &varints(&[0, data.len() as u64]))]);
    let bytes = framed(&[data, block(&[]), index]);
    let files = file("x.index", &bytes);
    let mut found = Vec::new();
    table::read(&mut Source::new(&files), "x.index", bytes.len() as u64, |key, value| {
        found.push((key.to_vec(), value.to_vec()));
        Ok(())
    })
    .unwrap();
    assert_eq!(found.len(), 3);
    assert_eq!(found[2], (b"b".to_vec(), b"2".to_vec()));
}

/// Checksums detect accidental damage, but not forged data.
#[test]
fn forged_table_with_valid_checksums_does_not_panic() {
    // A header; then a tensor of 2^40 strings, one of a negative size, one far outside of its file.
    let entries: [&[u8]; 4] = [
        &[8, 7, 18, 9, 18, 7, 8, 128, 128, 128, 128, 128, 32, 40, 4, 53, 0, 0, 0, 0],
        &[8, 1, 18, 13, 18, 11, 8, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1],
        &[8, 1, 18, 0, 32, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 40, 4],
        &[255; 30],
    ];
    for entry in entries {
        let data = block(&[(b"", &[8, 1]), (b"a", entry)]);
        let index = block(&[(b"a", &varints(&[0, data.len() as u64]))]);
        let bytes = framed(&[data.clone(), block(&[]), index.clone()]);
        let verdict = judge("x", &file("x.index", &bytes), Depth::Content).unwrap().verdict;
        assert_ne!(verdict, Verdict::Valid, "{entry:?}");
        // And each byte of the blocks as any other.
        for at in 0..data.len() {
            for byte in [0, 1, 0x7f, 0x80, 0xff] {
                let mut data = data.clone();
                data[at] = byte;
                let bytes = framed(&[data, block(&[]), index.clone()]);
                judge("x", &file("x.index", &bytes), Depth::Content).unwrap();
            }
        }
        for at in 0..index.len() {
            for byte in [0, 1, 0x7f, 0x80, 0xff] {
                let mut index = index.clone();
                index[at] = byte;
                judge("x", &file("x.index", &framed(&[data.clone(), block(&[]), index])), Depth::Content).unwrap();
            }
        }
    }
}
