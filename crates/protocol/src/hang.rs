//! What tells that a program hangs.

use crate::stacks::Place;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Bytes of what is told of one hang.
pub const MAX_TEXT: usize = 700;

/// A worker whose program hangs, or whom the others wait for.
///
/// What it is judged by comes before its text, for the end of a report may be cut off.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Hang {
    /// Where the rank is that the others seem to wait for.
    pub place: Place,
    /// Which rank that is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u64>,
    /// When it was found.
    pub time: Timestamp,
    /// What was found, without who it was.
    pub text: String,
}

/// A program that gives reason to think that it hangs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Stall {
    /// Two signs agree. One alone is told, and nothing follows from it.
    pub hangs: bool,
    /// When this was found.
    pub time: Timestamp,
    /// The rank that it is about, as far as that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u64>,
    /// As a person would tell it, without the worker.
    pub message: String,
}
