//! Errors of a store, with the remedy for a person.

use crate::transport::{BusyAnswer, OverlongAnswer};
use address::AddressError;
use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

/// Kind of an error, which decides whether and how soon to retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ErrorKind {
    /// The destination, the endpoint or the credentials can't be used as they are written.
    Invalid,
    /// The store refuses this identity, or does not know it (HTTP 401, 403).
    Denied,
    /// There is no such bucket, or an object is gone that has to be there.
    NotFound,
    /// The store does not answer, answers too slowly, or has trouble of its own (HTTP 5xx, 429, time-outs).
    Unavailable,
    /// The store refuses the request (any other HTTP status).
    Refused,
    /// The program has written to the checkpoint meanwhile, or removed it. This need not be reported.
    Changed,
    /// Not all parts of a sharded checkpoint are there yet.
    Incomplete,
    /// The content of the store is not what was put there.
    Corrupted,
    /// An error of the local disk.
    Local,
}

/// An error of a store: a sentence for a person that names the URI or file, the HTTP status and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreError {
    /// What kind it is.
    pub trouble: ErrorKind,
    /// The HTTP status of the store's answer.
    pub status: Option<u16>,
    /// How long the store asks its clients to wait.
    pub retry_after: Option<Duration>,
    message: String,
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for StoreError {}

impl From<AddressError> for StoreError {
    fn from(error: AddressError) -> Self {
        Self::invalid(error.to_string())
    }
}

impl StoreError {
    pub fn new(trouble: ErrorKind, message: impl Into<String>) -> Self {
        Self { trouble, status: None, retry_after: None, message: message.into() }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    pub(crate) fn corrupted(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupted, message)
    }

    pub(crate) fn local(file: &Path, error: &io::Error) -> Self {
        Self::new(ErrorKind::Local, format!("{}: {error}", file.display()))
    }

    /// Whether the error may disappear by itself, so that it is worth retrying soon.
    ///
    /// For the other errors only a changed Secret, bucket or disk helps. They are retried too, but slowly.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        matches!(self.trouble, ErrorKind::Unavailable | ErrorKind::Changed | ErrorKind::Incomplete)
    }

    /// Error for what the store's client reports about an object or bucket at `uri`.
    pub(crate) fn of_store(uri: &str, error: &object_store::Error) -> Self {
        let text = whole(error);
        let status = status(&text).or(match error {
            object_store::Error::Unauthenticated { .. } => Some(401),
            object_store::Error::PermissionDenied { .. } => Some(403),
            object_store::Error::NotFound { .. } => Some(404),
            object_store::Error::Precondition { .. } => Some(412),
            _ => None,
        });
        let code = element(&text, "Code");
        let trouble = error_kind(error, status, code, &text);
        let reported = match (status, code) {
            (Some(status), Some(code)) => format!("HTTP {status} {code}"),
            (Some(status), None) => format!("HTTP {status}"),
            (None, _) => String::new(),
        };
        let detail = match element(&text, "Message") {
            Some(message) => message,
            // Before the body the text only describes the client's request.
            None if status.is_some() => text.split_once("status code: ").map_or("", |(_, rest)| after_colon(rest)),
            None => &text,
        };
        let detail = short(detail);
        let said = [reported.as_str(), &detail].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>();
        let remedy = match is_overlong(error) {
            true => "Check that the endpoint is that of the store",
            false => remedy(trouble, status, code, &text),
        };
        let retry_after = sources(error).find_map(<dyn std::error::Error>::downcast_ref::<BusyAnswer>);
        Self {
            trouble,
            status,
            retry_after: retry_after.map(|busy| busy.retry_after),
            message: format!("{uri}: {}. {remedy}", said.join(": ").trim_end_matches('.')),
        }
    }
}

/// Text of an error with all its sources, each included once.
fn whole(error: &object_store::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    for _ in 0..16 {
        let Some(inner) = source else { break };
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text.push_str(": ");
            text.push_str(&inner_text);
        }
        source = inner.source();
    }
    text
}

/// The client's error type is not public, its text is.
fn status(text: &str) -> Option<u16> {
    let digits = text.split_once("status code: ")?.1.get(..3)?;
    digits.parse().ok()
}

fn after_colon(text: &str) -> &str {
    let body = text.split_once(": ").map_or("", |(_, body)| body.trim());
    // A page for a browser has no useful message.
    if body.starts_with('<') { "" } else { body }
}

/// What stands in an element of the XML that S3, GCS and Azure answer with.
fn element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    let (value, _) = rest.split_once(&format!("</{name}>"))?;
    (!value.is_empty() && value.len() <= 400).then_some(value)
}

fn error_kind(error: &object_store::Error, status: Option<u16>, code: Option<&str>, text: &str) -> ErrorKind {
    // S3 answers 400 to a token that has expired or is malformed.
    let key = ["ExpiredToken", "InvalidToken", "InvalidAccessKeyId", "SignatureDoesNotMatch", "TokenRefreshRequired"];
    match status {
        _ if code.is_some_and(|code| key.contains(&code)) => ErrorKind::Denied,
        Some(400) if code.is_some_and(is_damage) => ErrorKind::Unavailable,
        Some(401 | 403) => ErrorKind::Denied,
        Some(404) => ErrorKind::NotFound,
        Some(412) => ErrorKind::Changed,
        Some(408 | 429 | 500..=599) if status != Some(501) => ErrorKind::Unavailable,
        Some(_) => ErrorKind::Refused,
        None => match error {
            object_store::Error::InvalidPath { .. } | object_store::Error::UnknownConfigurationKey { .. } => {
                ErrorKind::Invalid
            }
            object_store::Error::NotSupported { .. } | object_store::Error::NotImplemented { .. } => ErrorKind::Refused,
            _ if is_overlong(error) => ErrorKind::Refused,
            _ if text.contains("redirect without LOCATION") => ErrorKind::Invalid,
            _ if is_configuration(text) => ErrorKind::Invalid,
            _ => ErrorKind::Unavailable,
        },
    }
}

fn is_overlong(error: &object_store::Error) -> bool {
    sources(error).any(<dyn std::error::Error>::is::<OverlongAnswer>)
}

/// An error and its sources.
fn sources<'a>(error: &'a object_store::Error) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    let first: &'a (dyn std::error::Error + 'static) = error;
    std::iter::successors(Some(first), |error| error.source())
}

/// Whether a store found that the received data differs from its checksum.
fn is_damage(code: &str) -> bool {
    matches!(code, "BadDigest" | "XAmzContentSHA256Mismatch" | "XAmzContentChecksumMismatch")
}

fn is_configuration(text: &str) -> bool {
    [
        "builder error",
        "invalid private key",
        "private key",
        "Unable to decode service account",
        "Unable to open service",
    ]
    .iter()
    .any(|part| text.contains(part))
}

fn remedy(trouble: ErrorKind, status: Option<u16>, code: Option<&str>, text: &str) -> &'static str {
    match (trouble, code) {
        (ErrorKind::Denied, Some("RequestTimeTooSkewed")) => "Set the clock of this node right",
        (ErrorKind::Denied, Some("SignatureDoesNotMatch")) => {
            "The secret key does not belong to the key's name: put the right one into the Secret"
        }
        (ErrorKind::Denied, Some("InvalidAccessKeyId")) => {
            "The store does not know this key: put a valid one into the Secret"
        }
        (ErrorKind::Denied, Some("ExpiredToken" | "TokenRefreshRequired")) => {
            "The session token has run out: put a fresh one into the Secret"
        }
        (ErrorKind::Denied, _) => {
            "Give this identity the right to list, read, write and delete below the prefix, or name another Secret"
        }
        (ErrorKind::NotFound, Some("NoSuchBucket" | "ContainerNotFound")) => {
            "Create the bucket, or correct its name or the endpoint"
        }
        (ErrorKind::NotFound, _) => "Check the bucket's name, the prefix and the endpoint",
        (ErrorKind::Unavailable, _) if text.contains("certificate") || text.contains("UnknownIssuer") => {
            "The server's certificate is not trusted: give its CA as ca.crt in the Secret"
        }
        (ErrorKind::Unavailable, _)
            if text.contains("169.254.169.254") || text.contains("metadata.google.internal") =>
        {
            "There are no credentials: name a Secret, or give the service account an identity of the cloud"
        }
        (ErrorKind::Unavailable, Some(code)) if is_damage(code) => {
            "What was sent was damaged on its way, and refused; it will be sent again"
        }
        (ErrorKind::Unavailable, _) if status.is_some() => "It will be tried again",
        (ErrorKind::Unavailable, _) => "Check that the endpoint can be reached from this pod; it will be tried again",
        (ErrorKind::Changed, _) => "It was changed meanwhile",
        (ErrorKind::Invalid, _) if text.contains("redirect without LOCATION") => {
            "The bucket is in another region: set the region, or AWS_REGION in the Secret"
        }
        (ErrorKind::Invalid, _) if text.contains("CA certificates") => {
            "The image has no CA certificates: give them as ca.crt in the Secret, or install ca-certificates"
        }
        (ErrorKind::Invalid, _) => "Correct the destination or the Secret",
        _ if matches!(status, Some(301 | 302 | 307 | 308)) || code == Some("AuthorizationHeaderMalformed") => {
            "The bucket is in another region: set the region, or AWS_REGION in the Secret"
        }
        _ => "If the store does not know checksums, turn them off",
    }
}

/// One line that fits into a status.
fn short(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(300) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generic(text: &str) -> object_store::Error {
        object_store::Error::Generic { store: "S3", source: text.to_owned().into() }
    }

    #[test]
    fn http_status_decides_error_kind() {
        for (status, trouble, temporary) in [
            ("403 Forbidden", ErrorKind::Denied, false),
            ("401 Unauthorized", ErrorKind::Denied, false),
            ("404 Not Found", ErrorKind::NotFound, false),
            ("500 Internal Server Error", ErrorKind::Unavailable, true),
            ("503 Slow Down", ErrorKind::Unavailable, true),
            ("429 Too Many Requests", ErrorKind::Unavailable, true),
            ("501 Not Implemented", ErrorKind::Refused, false),
            ("400 Bad Request", ErrorKind::Refused, false),
        ] {
            let error = generic(&format!("Server returned non-2xx status code: {status}: <Error></Error>"));
            let reported = StoreError::of_store("s3://b/k", &error);
            assert_eq!(reported.trouble, trouble, "{status}: {reported}");
            assert_eq!(reported.is_temporary(), temporary, "{status}");
            assert_eq!(reported.status.unwrap().to_string(), status[..3]);
            assert!(reported.to_string().starts_with("s3://b/k: "), "{reported}");
        }
    }

    #[test]
    fn expired_token_is_a_denial_despite_status_400() {
        let error =
            generic("status code: 400 Bad Request: <Error><Code>ExpiredToken</Code><Message>gone</Message></Error>");
        let reported = StoreError::of_store("s3://b/k", &error);
        assert_eq!(reported.trouble, ErrorKind::Denied);
        assert_eq!(
            reported.to_string(),
            "s3://b/k: HTTP 400 ExpiredToken: gone. The session token has run out: put a fresh one into the Secret"
        );
    }

    #[test]
    fn long_store_error_is_truncated() {
        let reported = StoreError::of_store("s3://b/k", &generic(&"ä".repeat(5000)));
        assert!(reported.to_string().chars().count() < 500, "{reported}");
    }
}
