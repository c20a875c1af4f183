//! What can go wrong with a write, and what follows.

use super::Context;
use std::time::Duration;

/// How long an answer to a read may take.
const READ: Duration = Duration::from_secs(10);
/// How long an answer to a write may take. This exceeds the timeout of an admission webhook, so that the API server can
/// report a webhook that does not answer, or proceed without it.
pub(super) const WRITE: Duration = Duration::from_secs(35);
/// The longest `timeoutSeconds` that the API takes for an admission webhook.
const WEBHOOK: Duration = Duration::from_secs(30);
const _: () = assert!(WRITE.as_secs() > WEBHOOK.as_secs());

/// A failed reconcile.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused or could not be reached.
    #[error("{what}: {source}")]
    Api {
        /// The request.
        what: &'static str,
        /// The answer.
        source: Box<kube::Error>,
    },
    /// No answer within the time.
    #[error("{what}: the API server gave no answer within {} s", patience.as_secs())]
    Timeout {
        /// The request.
        what: &'static str,
        /// How long the operator waited for the answer.
        patience: Duration,
    },
    /// The TrainingJob was changed or deleted since it was read; the watch brings the new one.
    #[error("the TrainingJob has changed since it was read")]
    Outdated,
    /// An object of the API without a UID.
    #[error("the TrainingJob has no UID")]
    NoUid,
}

impl Error {
    /// For the metric `trainingjob_reconciliation_errors_total`.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Api { source, .. } => match source.as_ref() {
                kube::Error::Api(status) if status.is_conflict() => "conflict",
                kube::Error::Api(status) if status.is_forbidden() => "forbidden",
                kube::Error::Api(_) => "api",
                _ => "connection",
            },
            Self::Timeout { .. } => "timeout",
            Self::Outdated => "outdated",
            Self::NoUid => "invalid",
        }
    }

    /// Whether no answer came in time, by our own clock or by the API server's.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::Timeout { .. }) || refusal(self).is_some_and(|status| status.code == 504)
    }

    /// Whether the error is part of normal work, because another client was quicker.
    #[must_use]
    pub fn is_expected(&self) -> bool {
        matches!(self.label(), "conflict" | "outdated")
    }
}

/// Waits for the answer to a read, for a bounded time.
pub(super) async fn call<T>(
    what: &'static str,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Error> {
    within(READ, what, request).await
}

impl Context {
    /// Waits for the answer to a write, which admission webhooks may delay.
    pub(super) async fn write<T>(
        &self,
        what: &'static str,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, Error> {
        within(self.patience, what, request).await
    }
}

async fn within<T>(
    patience: Duration,
    what: &'static str,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Error> {
    match tokio::time::timeout(patience, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(source)) => Err(Error::Api { what, source: Box::new(source) }),
        Err(_) => Err(Error::Timeout { what, patience }),
    }
}

/// The answer to a change of an object that may be gone; `None` if it is.
pub(super) fn unless_gone<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Err(error) if is_gone(&error) => Ok(None),
        answer => answer.map(Some),
    }
}

/// Whether the object to patch is gone, or another one has its name by now. That one has another UID, which can't be
/// changed.
fn is_gone(error: &Error) -> bool {
    refusal(error).is_some_and(|status| {
        let causes = status.details.iter().flat_map(|details| &details.causes);
        let is_another = causes.into_iter().any(|cause| cause.field == "metadata.uid");
        status.is_not_found() || status.is_conflict() || is_another
    })
}

/// The API server's refusal, if the error is one.
pub(super) fn refusal(error: &Error) -> Option<&kube::core::Status> {
    match error {
        Error::Api { source, .. } => match source.as_ref() {
            kube::Error::Api(status) => Some(status),
            _ => None,
        },
        _ => None,
    }
}
