//! A folder for a test, and two formats that are easily written. A folder `step-N` is whole with `.complete`, and a
//! prefix `shards-N` with `shards-N.index`. A file that begins with `bad` is found corrupted when every byte is read,
//! and an empty file at once.

use crate::files::Files;
use crate::formats::{Claim, Listing, Rules};
use crate::found::{Depth, Format, Judgement};
use nix::sys::signal::{Signal, raise};
use std::cell::RefCell;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicI64, Ordering};

/// A folder that is removed with the test.
pub struct Room(tempfile::TempDir);

impl Room {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn path(&self, path: &str) -> PathBuf {
        assert!(!path.starts_with('/'), "{path} is outside of the room");
        self.0.path().join(path)
    }

    pub fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// A checkpoint that is whole.
    pub fn save(&self, path: &str) {
        self.write(&format!("{path}/model"), path);
        self.write(&format!("{path}/deep/er"), "more");
        self.write(&format!("{path}/.complete"), "");
    }
}

static STEPS_LEFT: AtomicI64 = AtomicI64::new(i64::MAX);

/// An instant at which a process can be killed.
pub fn step() {
    if STEPS_LEFT.fetch_sub(1, Ordering::Relaxed) == 0 {
        raise(Signal::SIGKILL).unwrap();
    }
}

/// Runs an ignored test in a process of its own, and kills it by SIGKILL after that many steps. True if it finished
/// before.
pub fn killed_after(steps: u64, room: &Room, test: &str) -> bool {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "--ignored", test.split_once("::").unwrap().1]).stdout(Stdio::null());
    child.env("KILLED_IN", room.path("")).env("KILLED_AFTER", steps.to_string());
    let status = child.status().unwrap();
    assert!(status.success() || status.signal() == Some(9), "{status}");
    status.success()
}

/// The room, in a process of `killed_after`. None if the test was started by hand.
pub fn to_be_killed() -> Option<PathBuf> {
    let room = std::env::var_os("KILLED_IN")?;
    STEPS_LEFT.store(std::env::var("KILLED_AFTER").ok()?.parse().ok()?, Ordering::Relaxed);
    Some(room.into())
}

/// Drops root's file access for the calling thread only, which has to end with the test.
pub fn as_nobody() {
    if nix::unistd::geteuid().is_root() {
        nix::unistd::setfsuid(nix::unistd::Uid::from_raw(65534));
    }
}

pub const FORMATS: &[&Rules] = &[&STEPS, &SHARDS];

const STEPS: Rules = Rules {
    format: Format::Marked,
    claim: |listing| {
        let is_one = listing.name.starts_with("step-") || listing.has_file(".complete");
        if is_one { vec![Claim::Folder] } else { Vec::new() }
    },
    judge: |name, files, depth| judge(name, files, depth, ".complete"),
};

const SHARDS: Rules = Rules {
    format: Format::Tensorflow,
    claim: |listing: &Listing| {
        let mut names: Vec<&str> = listing
            .files
            .iter()
            .filter(|f| f.starts_with("shards-"))
            .filter_map(|f| Some(f.split_once('.')?.0))
            .collect();
        names.dedup();
        let files = |name: &str| {
            listing
                .files
                .iter()
                .filter(|file| file.split_once('.').is_some_and(|(it, _)| it == name))
                .cloned()
                .collect()
        };
        names.into_iter().map(|name| Claim::Files { name: name.to_owned(), files: files(name) }).collect()
    },
    judge: |name, files, depth| judge(name, files, depth, &format!("{name}.index")),
};

thread_local! {
    /// What a program does while a checkpoint of its is judged.
    pub static MEANWHILE: RefCell<Option<Box<dyn Fn()>>> = const { RefCell::new(None) };
}

fn judge(name: &str, files: &dyn Files, depth: Depth, last: &str) -> io::Result<Judgement> {
    let step = name.split_once('-').and_then(|(_, step)| step.parse().ok());
    let mut metrics = std::collections::BTreeMap::new();
    if files.member("loss").is_some() {
        let text = String::from_utf8(files.read("loss", 100)?).map_err(io::Error::other)?;
        metrics.insert("loss".to_owned(), text.trim().parse().map_err(io::Error::other)?);
    }
    assert!(files.member("panic").is_none(), "a format that panics");
    let verdict = verdict(files, depth, last)?;
    MEANWHILE.with_borrow(|meanwhile| meanwhile.iter().for_each(|act| act()));
    Ok(Judgement { step, metrics, ..verdict })
}

fn verdict(files: &dyn Files, depth: Depth, last: &str) -> io::Result<Judgement> {
    if files.member(last).is_none() {
        return Ok(Judgement::incomplete(format!("{last} is missing")));
    }
    for member in files.members() {
        if member.size == 0 && member.path != last {
            return Ok(Judgement::corrupted(&member.path, "is empty"));
        }
        if depth == Depth::Content && files.read(&member.path, 1 << 20)?.starts_with(b"bad") {
            return Ok(Judgement::corrupted(&member.path, "is bad"));
        }
    }
    Ok(Judgement::valid())
}
