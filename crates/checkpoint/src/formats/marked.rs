//! Any other folder that has a file `.complete`, which its program writes last.
//!
//! Files of a known form (safetensors, `torch.save`) are checked. Other files only have to be present, so that only the
//! manifest reveals damage to them.

use super::fault::Fault;
use super::{Claim, Listing, Rules, named, safetensors, torch};
use crate::files::{Files, Member};
use crate::found::{Depth, Format, Judgement};
use std::io::{self, Read};

/// Folders with a mark.
pub const RULES: Rules = Rules { format: Format::Marked, claim, judge };

/// The mark.
const MARK: &str = ".complete";

fn claim(listing: &Listing) -> Vec<Claim> {
    if listing.has_file(MARK) { vec![Claim::Folder] } else { Vec::new() }
}

fn judge(name: &str, files: &dyn Files, depth: Depth) -> io::Result<Judgement> {
    if files.member(MARK).is_none() {
        return Ok(Judgement::incomplete(format!("{MARK} is missing")));
    }
    if files.members().iter().all(|member| member.path == MARK) {
        return Ok(Judgement::incomplete(format!("there is nothing but {MARK}")));
    }
    for member in files.members() {
        if let Err(fault) = check(files, member, depth) {
            return fault.judge(&member.path, true);
        }
    }
    let why =
        format!("damage could be unseen: only {MARK} says that all is written, and the form of its files is not known");
    Ok(Judgement { step: named::step(name), epoch: named::epoch(name), ..Judgement::complete(why) })
}

/// Checks a file according to its name.
fn check(files: &dyn Files, member: &Member, depth: Depth) -> Result<(), Fault> {
    let (_, kind) = member.path.rsplit_once('.').unwrap_or_default();
    match kind {
        "safetensors" => drop(safetensors::check(files, &member.path)?),
        "pt" | "pth" | "ckpt" | "bin" => {
            // Other things have such names too.
            let mut head = [0; 4];
            let mut file = files.open(&member.path)?;
            if member.size >= 4 {
                file.read_exact(&mut head)?;
            }
            drop(file);
            if &head == b"PK\x03\x04" {
                torch::check(files, &member.path, depth)?;
            }
        }
        _ => {}
    }
    Ok(())
}
