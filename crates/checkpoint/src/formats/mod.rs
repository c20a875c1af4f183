//! One file per format: how it is recognised, and when it is whole.

pub mod dcp;
pub mod deepspeed;
mod fault;
pub mod hugging_face;
mod json;
pub mod keras;
pub mod lightning;
pub mod marked;
pub mod megatron;
pub(super) mod named;
pub mod orbax;
mod pickle;
pub mod safetensors;
mod source;
pub mod tensorflow;
pub mod torch;
pub mod verl;
mod zip;

use crate::files::Files;
use crate::found::{Depth, Format, Judgement};
use std::io;

/// A folder as it is listed, without what is in its folders.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// Its own name; empty for the root.
    pub name: String,
    /// Names of the regular files in it, sorted.
    pub files: Vec<String>,
    /// Names of the folders in it, sorted.
    pub folders: Vec<String>,
}

impl Listing {
    /// Whether it has that file.
    #[must_use]
    pub fn has_file(&self, name: &str) -> bool {
        self.files.binary_search_by(|file| file.as_str().cmp(name)).is_ok()
    }
}

/// A checkpoint that a format has recognised in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The folder itself, with everything below it.
    Folder,
    /// Some of its files: a single one, or those that begin with `name`.
    Files {
        /// What a program would be given: the file's name, or the prefix of their names.
        name: String,
        /// The files' names.
        files: Vec<String>,
    },
}

/// What is known of a format.
pub struct Rules {
    /// Which one.
    pub format: Format,
    /// The checkpoints of this format that a folder is, or that lie directly in it.
    pub claim: fn(&Listing) -> Vec<Claim>,
    /// Whether a checkpoint is whole. `name` is the folder's name, or the file's, or the prefix; the paths of `files` are
    /// relative to the folder (of a file or prefix: to the folder that it lies in).
    pub judge: fn(name: &str, files: &dyn Files, depth: Depth) -> io::Result<Judgement>,
}

/// All formats, in order of precedence. A folder belongs to the first format that claims it whole. In an unclaimed
/// folder a file belongs to the first format that claims it.
///
/// Formats that contain others come first. A Hugging Face checkpoint contains DeepSpeed's, DCP's or safetensors, and
/// Megatron-LM's contains DCP's.
pub const FORMATS: &[&Rules] = &[
    &megatron::RULES,
    &hugging_face::RULES,
    &deepspeed::RULES,
    &verl::RULES,
    &lightning::RULES,
    &orbax::RULES,
    &dcp::RULES,
    &tensorflow::RULES,
    &marked::RULES,
    &safetensors::RULES,
    &keras::RULES,
    &torch::RULES,
];
