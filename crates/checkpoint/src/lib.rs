//! Checkpoints in a folder: which exist, which are good, which are kept, and which one a run resumes from.
//!
//! This crate knows the files that training frameworks write, and nothing of Kubernetes. It trusts nothing that a
//! program has written. It follows no links, opens only regular files, and checks every length before it allocates
//! memory. It reads a pickle as a list of opcodes and never executes it.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "sizes of files fit into usize, which has 64 bits (asserted below); lengths are checked before they are cast"
)]

const _: () = assert!(usize::BITS == 64);

pub mod best;
pub mod budget;
pub mod choose;
pub mod files;
pub mod folder;
pub mod formats;
pub mod found;
pub mod inventory;
pub mod keep;
pub mod ledger;
pub mod remove;
pub mod report;
pub mod series;
pub mod space;
mod step;

pub mod wording;

#[cfg(test)]
mod histories;
#[cfg(test)]
mod testing;
