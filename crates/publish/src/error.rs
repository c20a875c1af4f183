//! Why a result could not be published, in words for a person.

use address::AddressError;
use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;
use store::{ErrorKind, StoreError};

/// What kind of failure it is. It decides whether another try can succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PublishErrorKind {
    /// The address, an option, a file's name or the folder itself is not accepted.
    Refused,
    /// The server refuses these credentials, or asks for some (HTTP 401, 403).
    Denied,
    /// The server has no such bucket, repository or registry (HTTP 404).
    NotFound,
    /// The server has other bytes than were sent.
    Corrupted,
    /// The server does not answer, is too slow, or reports a failure of its own (HTTP 408, 429, 5xx).
    Unavailable,
    /// The files, or the branch, changed while they were being published.
    Changed,
    /// The local disk is full or fails.
    Local,
}

/// A failed publication: the file or URI, what happened, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishError {
    /// What kind it is.
    pub kind: PublishErrorKind,
    /// The HTTP status of the answer, if there was one.
    pub status: Option<u16>,
    /// How long the server asks its clients to wait.
    pub(crate) retry_after: Option<Duration>,
    /// Whether the server was silent until the limit, so that few tries are enough.
    pub(crate) stalled: bool,
    pub(crate) message: String,
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for PublishError {}

impl PublishError {
    /// An error of this kind. The message names what failed, what happened and the remedy.
    pub fn new(kind: PublishErrorKind, message: impl Into<String>) -> Self {
        Self { kind, status: None, retry_after: None, stalled: false, message: message.into() }
    }

    /// Something that is not accepted.
    pub fn refused(message: impl Into<String>) -> Self {
        Self::new(PublishErrorKind::Refused, message)
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(PublishErrorKind::Unavailable, message)
    }

    pub(crate) fn stall(message: impl Into<String>) -> Self {
        Self { stalled: true, ..Self::unavailable(message) }
    }

    pub(crate) fn local(path: &Path, error: &io::Error) -> Self {
        let shown = text::shown(&path.display().to_string());
        let message = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                format!("{shown}: {error}; free space on the volume, or enlarge it")
            }
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                format!("{shown}: {error}; give this user the right (securityContext.fsGroup)")
            }
            _ => format!("{shown}: {error}; check the volume"),
        };
        Self::new(PublishErrorKind::Local, message)
    }

    /// The same failure with another name of what failed.
    pub(crate) fn renamed(self, from: &str, to: &str) -> Self {
        Self { message: self.message.replace(from, to), ..self }
    }

    /// Whether only a person can help: another try fails in the same way.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(self.kind, PublishErrorKind::Refused | PublishErrorKind::Denied | PublishErrorKind::NotFound)
    }
}

impl From<AddressError> for PublishError {
    fn from(error: AddressError) -> Self {
        Self::refused(error.to_string())
    }
}

impl From<StoreError> for PublishError {
    fn from(error: StoreError) -> Self {
        let kind = match error.trouble {
            ErrorKind::Invalid | ErrorKind::Refused => PublishErrorKind::Refused,
            ErrorKind::Denied => PublishErrorKind::Denied,
            ErrorKind::NotFound => PublishErrorKind::NotFound,
            ErrorKind::Unavailable | ErrorKind::Incomplete => PublishErrorKind::Unavailable,
            ErrorKind::Changed => PublishErrorKind::Changed,
            ErrorKind::Corrupted => PublishErrorKind::Corrupted,
            ErrorKind::Local => PublishErrorKind::Local,
        };
        Self { status: error.status, retry_after: error.retry_after, ..Self::new(kind, error.to_string()) }
    }
}
