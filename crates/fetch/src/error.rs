//! Why content could not be fetched, in words for a person.

use address::AddressError;
use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;
use store::{ErrorKind, StoreError};

/// What kind of failure it is. It decides whether another try can succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FetchErrorKind {
    /// The address, an option or the content itself is not accepted.
    Refused,
    /// The server refuses these credentials, or asks for some (HTTP 401, 403).
    Denied,
    /// The server has no such repository, revision, bucket or file (HTTP 404).
    NotFound,
    /// The content differs from its hash, length or listing.
    Corrupted,
    /// The server does not answer, is too slow, or reports a failure of its own (HTTP 408, 429, 5xx).
    Unavailable,
    /// The content changed while it was being fetched.
    Changed,
    /// The local disk is full or fails.
    Local,
    /// Another fetcher took over this content.
    Superseded,
}

/// A failed fetch: the file or URI, what happened, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchError {
    /// What kind it is.
    pub kind: FetchErrorKind,
    /// The HTTP status of the answer, if there was one.
    pub status: Option<u16>,
    /// How long the server asks its clients to wait.
    pub(crate) retry_after: Option<Duration>,
    /// Whether the server was silent or slow until the limit, or sent no HTTP, so that few tries are enough.
    pub(crate) stalled: bool,
    pub(crate) message: String,
}

impl fmt::Display for FetchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for FetchError {}

impl FetchError {
    /// An error of this kind. The message names what failed, what happened and the remedy.
    pub fn new(kind: FetchErrorKind, message: impl Into<String>) -> Self {
        Self { kind, status: None, retry_after: None, stalled: false, message: message.into() }
    }

    /// Something that is not accepted.
    pub fn refused(message: impl Into<String>) -> Self {
        Self::new(FetchErrorKind::Refused, message)
    }

    pub(crate) fn corrupted(message: impl Into<String>) -> Self {
        Self::new(FetchErrorKind::Corrupted, message)
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(FetchErrorKind::Unavailable, message)
    }

    pub(crate) fn stall(message: impl Into<String>) -> Self {
        Self { stalled: true, ..Self::unavailable(message) }
    }

    pub(crate) fn with_status(self, status: u16) -> Self {
        Self { status: Some(status), ..self }
    }

    pub(crate) fn local(path: &Path, error: &io::Error) -> Self {
        let path = path.display();
        let message = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                format!("{path}: {error}; free space on the volume of the cache, or enlarge it")
            }
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                format!("{path}: {error}; make the cache writable for this user (securityContext.fsGroup)")
            }
            io::ErrorKind::NotADirectory => {
                format!("{path}: a link or a file is in the place of a folder; remove it")
            }
            _ if error.raw_os_error() == Some(nix::libc::ELOOP) => {
                format!("{path}: a link is in the place of a file or folder; remove it")
            }
            _ => format!("{path}: {error}; check the volume of the cache"),
        };
        Self::new(FetchErrorKind::Local, message)
    }

    /// The same failure with another name of what failed.
    pub(crate) fn renamed(self, from: &str, to: &str) -> Self {
        Self { message: self.message.replace(from, to), ..self }
    }

    /// The same failure with the URI before it, unless it is named already.
    pub(crate) fn with_uri(self, uri: &str) -> Self {
        if self.message.contains(uri) {
            return self;
        }
        Self { message: format!("{uri}: {}", self.message), ..self }
    }

    /// Whether only a person can help: another try fails in the same way.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(
            self.kind,
            FetchErrorKind::Refused | FetchErrorKind::Denied | FetchErrorKind::NotFound | FetchErrorKind::Corrupted
        )
    }
}

/// Whether a failure below HTTP took as long as it may, or was no HTTP. The types of these errors are not public.
pub(crate) fn is_stall(text: &str) -> bool {
    ["no byte for", "no whole answer within", " bytes in ", "message head", "invalid HTTP"]
        .iter()
        .any(|part| text.contains(part))
}

impl From<AddressError> for FetchError {
    fn from(error: AddressError) -> Self {
        Self::refused(error.to_string())
    }
}

impl From<StoreError> for FetchError {
    fn from(error: StoreError) -> Self {
        let kind = match error.trouble {
            ErrorKind::Invalid | ErrorKind::Refused => FetchErrorKind::Refused,
            ErrorKind::Denied => FetchErrorKind::Denied,
            ErrorKind::NotFound => FetchErrorKind::NotFound,
            ErrorKind::Unavailable | ErrorKind::Incomplete => FetchErrorKind::Unavailable,
            ErrorKind::Changed => FetchErrorKind::Changed,
            ErrorKind::Corrupted => FetchErrorKind::Corrupted,
            ErrorKind::Local => FetchErrorKind::Local,
        };
        let message = error.to_string();
        let stalled = is_stall(&message);
        Self { status: error.status, retry_after: error.retry_after, stalled, ..Self::new(kind, message) }
    }
}
