//! Keras: a file `*.keras`, a ZIP archive with `metadata.json`, `config.json` and the weights.
//!
//! | damage | at which depth it is seen |
//! |---|---|
//! | cut anywhere | Structure: Incomplete |
//! | a bit in the directory or the end record | Structure |
//! | a bit in a header or in what is packed | Content: CRC32 |
//! | the whole file of another step | not seen |

use super::fault::Fault;
use super::zip::Archive;
use super::{Claim, Listing, Rules, json, named};
use crate::files::Files;
use crate::found::{Depth, Format, Judgement};
use serde::de::IgnoredAny;
use std::io::{self, Read};

/// Keras' files.
pub const RULES: Rules = Rules { format: Format::Keras, claim, judge };

/// A model's configuration has some kilobytes.
const JSON_LIMIT: u64 = 64 << 20;

fn claim(listing: &Listing) -> Vec<Claim> {
    let single = listing.files.iter().filter(|name| name.ends_with(".keras") && !name.starts_with('.'));
    single.map(|name| Claim::Files { name: name.clone(), files: vec![name.clone()] }).collect()
}

fn judge(name: &str, files: &dyn Files, depth: Depth) -> io::Result<Judgement> {
    match check(files, name, depth) {
        Ok(()) => Ok(Judgement {
            step: named::step(name),
            epoch: named::epoch(name),
            metrics: named::metrics(name),
            ..Judgement::valid()
        }),
        Err(fault) => fault.judge(name, false),
    }
}

fn check(files: &dyn Files, name: &str, depth: Depth) -> Result<(), Fault> {
    let Some(size) = files.member(name).map(|member| member.size) else { return Fault::cut("is missing") };
    let mut file = files.open(name)?;
    let mut head = [0; 4];
    let known = size.min(4) as usize;
    file.read_exact(&mut head[..known])?;
    if !b"PK\x03\x04".starts_with(&head[..known]) {
        return Fault::wrong("is not what Keras writes");
    }
    let archive = Archive::open(&mut *file, 0..size)?;
    for part in ["metadata.json", "config.json"] {
        let Some(entry) = archive.find(part) else { return Fault::wrong(format!("has no {part}")) };
        if depth == Depth::Content {
            let bytes = archive.read(&mut *file, entry, JSON_LIMIT)?;
            json::parse::<IgnoredAny>(bytes).or_else(|_| Fault::wrong(format!("has a {part} that is no JSON")))?;
        }
    }
    let weights = |name: &str| name.starts_with("model.weights.") || name.starts_with("model_");
    if !archive.entries().iter().any(|entry| weights(&entry.name)) {
        return Fault::wrong("has no weights");
    }
    if !archive.has_checksums() {
        return Fault::wrong("has no checksums, which Keras writes");
    }
    if depth == Depth::Content {
        for entry in archive.entries() {
            archive.stream(&mut *file, entry, |_| {})?;
        }
    }
    Ok(())
}
