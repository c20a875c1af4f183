//! Reports of hung programs.

use crate::stacks::StackLocation;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Maximum bytes of the text of a hang.
pub const MAX_TEXT: usize = 700;

/// A worker whose program hangs, or for which the other workers wait.
///
/// The fields used for decisions precede the text, because the end of a report may be truncated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Hang {
    /// Location of the rank that the others seem to wait for.
    pub place: StackLocation,
    /// Number of that rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u64>,
    /// Time at which the hang was detected.
    pub time: Timestamp,
    /// Description of the hang, without the worker.
    pub text: String,
}

/// Evidence that a program may hang.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Stall {
    /// Whether two signs agree. A single sign is only reported.
    pub hangs: bool,
    /// Time at which the evidence was found.
    pub time: Timestamp,
    /// The affected rank, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u64>,
    /// Description for users, without the worker.
    pub message: String,
}
