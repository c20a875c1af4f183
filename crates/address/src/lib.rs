//! Addresses of models, data sets, results and checkpoints: what people write, what it means, and what is wrong with it.
//!
//! There is no I/O: the operator judges an address by these rules before anything of a job is made, and the agent follows
//! the same ones.

mod content;
mod destination;
pub mod key;

pub use content::{Address, ContentKind, HubAddress, ObjectsAddress, WebAddress, redacted};
pub use destination::{Destination, Scheme};

use std::fmt;

/// What is wrong with an address, and how it is written. Credentials are not repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressError(String);

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for AddressError {}
