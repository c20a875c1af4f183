//! What is known of one checkpoint.

use crate::files::Member;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Checkpoint format, named after the framework that writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// `torch.distributed.checkpoint`: a folder with `.metadata` and `__R_N.distcp`.
    Dcp,
    /// The Hugging Face Trainer: a folder `checkpoint-N` with `trainer_state.json`.
    HuggingFace,
    /// `torch.save`: a file, a ZIP archive with a pickle and its tensors.
    Torch,
    /// PyTorch Lightning: what `torch.save` writes, named `*.ckpt`.
    Lightning,
    /// DeepSpeed: a folder `global_stepN` with `*_model_states.pt`.
    DeepSpeed,
    /// verl: a folder `global_step_N` with `model_world_size_W_rank_R.pt` of each rank.
    Verl,
    /// Megatron-LM: a folder `iter_NNNNNNN`.
    Megatron,
    /// Orbax: a folder named by its step, or by a prefix and its step.
    Orbax,
    /// TensorFlow: `PREFIX-N.index` and its data.
    Tensorflow,
    /// Keras: a file `*.keras`.
    Keras,
    /// Tensors in `*.safetensors`, without the files of any other format.
    Safetensors,
    /// Any other folder that has a file `.complete`.
    Marked,
}

impl Format {
    /// Display name of the format.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Dcp => "PyTorch DCP",
            Self::HuggingFace => "Hugging Face",
            Self::Torch => "torch.save",
            Self::Lightning => "Lightning",
            Self::DeepSpeed => "DeepSpeed",
            Self::Verl => "verl",
            Self::Megatron => "Megatron-LM",
            Self::Orbax => "Orbax",
            Self::Tensorflow => "TensorFlow",
            Self::Keras => "Keras",
            Self::Safetensors => "safetensors",
            Self::Marked => "folder with .complete",
        }
    }
}

/// Whether a run can resume from a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is")]
pub enum Verdict {
    /// Something is missing: the checkpoint is still being written, or its writer died.
    Incomplete {
        /// What is missing.
        why: String,
    },
    /// Everything is written, and no fault was found at the depth of the check. Something that the library needs for
    /// loading has neither a checksum nor a redundant copy, so damage there may be undetected. A run resumes from it as
    /// from a valid checkpoint.
    Complete {
        /// Why damage may be undetected.
        why: String,
    },
    /// No fault was found at the depth of the check. Once every byte is read, no damage that prevents loading can be
    /// undetected.
    Valid,
    /// Everything seems to be written, but it can't be loaded or is not what was written.
    Corrupted {
        /// The file, relative to the checkpoint; empty for the checkpoint itself.
        file: String,
        /// What is wrong with it.
        why: String,
    },
}

impl Verdict {
    /// Whether no fault was found, so that a run may resume from it.
    #[must_use]
    pub fn is_good(&self) -> bool {
        matches!(self, Self::Valid | Self::Complete { .. })
    }
}

/// How thoroughly a checkpoint is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Depth {
    /// Names, lengths, headers, end records.
    Structure,
    /// Every byte.
    Content,
}

/// Result of checking a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// Whether it is good.
    pub verdict: Verdict,
    /// Optimiser steps done, over the whole run.
    pub step: Option<u64>,
    /// Epochs done, with the fraction where it is known.
    pub epoch: Option<f64>,
    /// What the program measured, by its own names (`eval_loss`).
    pub metrics: BTreeMap<String, f64>,
    /// Paths of other checkpoints that the program will load, as it names them: its best one, its last one.
    pub needs: Vec<String>,
}

impl Judgement {
    /// A judgement with only a verdict.
    #[must_use]
    pub fn from_verdict(verdict: Verdict) -> Self {
        Self { verdict, step: None, epoch: None, metrics: BTreeMap::new(), needs: Vec::new() }
    }

    /// No fault was found.
    #[must_use]
    pub fn valid() -> Self {
        Self::from_verdict(Verdict::Valid)
    }

    /// Everything is written, but damage may be undetected.
    #[must_use]
    pub fn complete(why: impl Into<String>) -> Self {
        Self::from_verdict(Verdict::Complete { why: why.into() })
    }

    /// Changes a valid verdict to [`Verdict::Complete`] if `unseen` says why damage may be undetected.
    #[must_use]
    pub fn with_unseen(mut self, unseen: Option<String>) -> Self {
        if let (Verdict::Valid, Some(why)) = (&self.verdict, unseen) {
            self.verdict = Verdict::Complete { why };
        }
        self
    }

    /// Something is missing.
    #[must_use]
    pub fn incomplete(why: impl Into<String>) -> Self {
        Self::from_verdict(Verdict::Incomplete { why: why.into() })
    }

    /// `file` (relative to the checkpoint) is wrong.
    #[must_use]
    pub fn corrupted(file: impl Into<String>, why: impl Into<String>) -> Self {
        Self::from_verdict(Verdict::Corrupted { file: file.into(), why: why.into() })
    }
}

/// A checkpoint that was found below a root.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FoundCheckpoint {
    /// Relative to the root: the folder or file that a program would be given, or the prefix of its files.
    pub path: String,
    /// Whether it is a folder with everything below it; else it is a file, or the files that begin with `path`.
    #[serde(default)]
    pub folder: bool,
    /// Format in which it was written.
    pub format: Format,
    /// Optimiser steps done, over the whole run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// Epochs done, with the fraction where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<f64>,
    /// What the program measured, by its own names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, f64>,
    /// Bytes of all its files.
    pub bytes: u64,
    /// When the last of its files was written, by the file system's clock. This is not the order of writing, because
    /// copied and restored files may have any time.
    pub modified: Timestamp,
    /// Its place in the order of writing: the number of the scan that first saw this content. 0 if that is not known.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub order: u64,
    /// The earliest possible place. A file with only its time changed was perhaps not rewritten.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub earliest: u64,
    /// Whether it is good.
    pub verdict: Verdict,
    /// How thoroughly it was checked.
    pub depth: Depth,
    /// The files that it is made of, by path relative to the checkpoint (for a file or a prefix: to its folder).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<Member>,
    /// Paths of other checkpoints that the program will load, as it names them: its best one, its last one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

impl FoundCheckpoint {
    /// A folder of which only the path is known.
    #[must_use]
    pub fn nothing_at(path: &str) -> Self {
        Self {
            path: path.to_owned(),
            folder: true,
            format: Format::Marked,
            step: None,
            epoch: None,
            metrics: BTreeMap::new(),
            bytes: 0,
            modified: Timestamp::UNIX_EPOCH,
            order: 0,
            earliest: 0,
            verdict: Verdict::Valid,
            depth: Depth::Structure,
            members: Vec::new(),
            needs: Vec::new(),
        }
    }

    /// Whether a run may resume from it.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.verdict.is_good()
    }

    /// Total order in which newer checkpoints compare greater. It compares the order of writing, then step, epoch,
    /// time, and path. A checkpoint that reports neither step nor epoch is older than all that do, because it may be a
    /// final model.
    #[must_use]
    pub fn newer(&self, other: &Self) -> Ordering {
        self.age().newer(&other.age())
    }

    fn age(&self) -> Age<'_> {
        Age { order: self.order, step: self.step, epoch: self.epoch, modified: self.modified, path: &self.path }
    }
}

/// Values that decide which of two checkpoints is newer, wherever they are stored; see [`FoundCheckpoint::newer`].
pub struct Age<'a> {
    pub order: u64,
    pub step: Option<u64>,
    pub epoch: Option<f64>,
    pub modified: Timestamp,
    pub path: &'a str,
}

impl Age<'_> {
    /// Newer checkpoints compare greater.
    pub fn newer(&self, other: &Self) -> Ordering {
        let epoch = |age: &Self| age.epoch.unwrap_or(f64::NEG_INFINITY);
        let is_reported = |age: &Self| age.step.is_some() || age.epoch.is_some();
        (is_reported(self).cmp(&is_reported(other)))
            .then(self.order.cmp(&other.order))
            .then(self.step.cmp(&other.step))
            .then(epoch(self).total_cmp(&epoch(other)))
            .then(self.modified.cmp(&other.modified))
            .then_with(|| self.path.cmp(other.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_found() -> impl Strategy<Value = FoundCheckpoint> {
        let epoch = prop_oneof![Just(None), Just(Some(f64::NAN)), (0..3u8).prop_map(|epoch| Some(f64::from(epoch)))];
        (proptest::option::of(0..3u64), epoch, 0..3i64, "[ab]", 0..3u64).prop_map(|(step, epoch, time, path, order)| {
            FoundCheckpoint {
                step,
                epoch,
                modified: Timestamp::from_second(time).unwrap(),
                order,
                earliest: order,
                ..FoundCheckpoint::nothing_at(&path)
            }
        })
    }

    proptest! {
        #[test]
        fn newer_is_a_total_order(a in any_found(), b in any_found(), c in any_found()) {
            prop_assert_eq!(a.newer(&b), b.newer(&a).reverse());
            prop_assert_eq!(a.newer(&a), Ordering::Equal);
            if a.newer(&b).is_le() && b.newer(&c).is_le() {
                prop_assert!(a.newer(&c).is_le());
            }
        }
    }
}
