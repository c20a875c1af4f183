//! Computes again what tests/programs/gang.py computes, and has the files by which a test leads it.

use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

const BATCH: u32 = 8;

/// The weights after this many steps, whatever happened to the training: `weights(k)` of gang.py.
pub fn weights(steps: u32) -> String {
    // The weights of all steps so far, because many tests ask for many of them.
    static WEIGHTS: Mutex<Vec<[u8; 32]>> = Mutex::new(Vec::new());
    let mut weights = WEIGHTS.lock().unwrap_or_else(PoisonError::into_inner);
    if weights.is_empty() {
        weights.push([0; 32]);
    }
    for step in u32::try_from(weights.len()).expect("few steps")..=steps {
        let total = (0..BATCH).fold(0_u64, |sum, i| sum.wrapping_add(sample(step, i)));
        let mut sha = Sha256::new();
        sha.update(weights.last().expect("it begins with one"));
        sha.update(total.to_le_bytes());
        weights.push(sha.finalize().into());
    }
    hex(&weights[steps as usize])
}

fn sample(step: u32, i: u32) -> u64 {
    let hash: [u8; 32] = Sha256::digest(format!("{step} {i}")).into();
    u64::from_le_bytes(hash[..8].try_into().expect("8 bytes"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The steps that a program has trained and its last weights, from its log.
pub fn ended(log: &str) -> Option<(u32, &str)> {
    let last = |before: &str| log.lines().rev().find_map(|line| line.split_once(before)).map(|(_, after)| after);
    Some((last("trained ")?.strip_suffix(" steps")?.parse().ok()?, last("weights ")?))
}

/// The step of a checkpoint of gang.py, if the file is whole and has the weights of that step.
pub fn whole(file: &Path) -> Option<u32> {
    let data = fs::read(file).ok()?;
    let length = usize::try_from(u64::from_le_bytes(data.get(..8)?.try_into().ok()?)).ok()?;
    let header: serde_json::Value = serde_json::from_slice(data.get(8..8 + length)?).ok()?;
    let step: u32 = header["__metadata__"]["step"].as_str()?.parse().ok()?;
    let size = usize::try_from(header["ballast"]["data_offsets"][1].as_u64()?).ok()?;
    let tensors = &data[8 + length..];
    (tensors.len() == size && hex(&tensors[..32]) == weights(step)).then_some(step)
}

/// The folder in which a training saves.
#[derive(Clone, Debug)]
pub struct Folder(pub PathBuf);

impl Folder {
    /// The step of the newest whole checkpoint, if it is this or a later one.
    pub fn saved_since(&self, step: u32) -> Option<u32> {
        let files = fs::read_dir(&self.0).ok()?.flatten().map(|entry| entry.path());
        let named = |path: &Path| {
            path.file_name()?.to_str()?.rsplit_once("step-")?.1.strip_suffix(".safetensors")?.parse().ok()
        };
        let mut files: Vec<(u32, PathBuf)> = files.filter_map(|path| Some((named(&path)?, path))).collect();
        files.sort();
        files.into_iter().rev().take_while(|(named, _)| *named >= step).find_map(|(_, path)| whole(&path))
    }

    /// The number of each attempt whose ranks have met, and the step from which it has resumed.
    pub fn history(&self) -> Vec<(u32, u32)> {
        let text = fs::read_to_string(self.0.join(".history")).unwrap_or_default();
        let line = |line: &str| line.split_once(' ').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        text.lines().filter_map(line).collect()
    }

    /// Ends the training after its current step.
    pub fn enough(&self) {
        fs::write(self.0.join(".enough"), "").expect("the folder can be written to");
    }

    /// Stops the next save of this attempt in its middle.
    pub fn hold(&self, attempt: u32) {
        let (new, name) = (self.0.join(".hold.new"), self.0.join(".hold"));
        fs::write(&new, attempt.to_string())
            .and_then(|()| fs::rename(new, name))
            .expect("the folder can be written to");
    }

    /// The step of the save in which this attempt is held.
    pub fn held(&self, attempt: u32) -> Option<u32> {
        let text = fs::read_to_string(self.0.join(".held")).ok()?;
        let (held, step) = text.trim_end().split_once(' ')?;
        (held == attempt.to_string()).then(|| step.parse().ok())?
    }
}
