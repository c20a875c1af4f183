//! What can go wrong with a write, and what follows.

/// A failed reconcile.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused or could not be reached.
    #[error("{what}: {source}")]
    Api {
        /// What was asked.
        what: &'static str,
        /// The answer.
        source: Box<kube::Error>,
    },
    /// No answer within the time.
    #[error("{0}: the API server gave no answer within 10 s")]
    Timeout(&'static str),
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
            Self::Timeout(_) => "timeout",
            Self::Outdated => "outdated",
            Self::NoUid => "invalid",
        }
    }

    /// Part of normal work: somebody else was quicker.
    #[must_use]
    pub fn is_expected(&self) -> bool {
        matches!(self.label(), "conflict" | "outdated")
    }
}

/// Waits for one answer of the API server, for a bounded time.
pub(super) async fn call<T>(
    what: &'static str,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Error> {
    match tokio::time::timeout(std::time::Duration::from_secs(10), request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(source)) => Err(Error::Api { what, source: Box::new(source) }),
        Err(_) => Err(Error::Timeout(what)),
    }
}

/// The answer to a change of what may be there no more, which is None then.
pub(super) fn unless_gone<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Err(error) if is_gone(&error) => Ok(None),
        answer => answer.map(Some),
    }
}

/// Whether what was to be patched is there no more, or its name is another's by now: that has another UID, which can't be changed.
fn is_gone(error: &Error) -> bool {
    refusal(error).is_some_and(|status| {
        let causes = status.details.iter().flat_map(|details| &details.causes);
        let is_another = causes.into_iter().any(|cause| cause.field == "metadata.uid");
        status.is_not_found() || status.is_conflict() || is_another
    })
}

/// The API server's refusal, if that is what the error is.
pub(super) fn refusal(error: &Error) -> Option<&kube::core::Status> {
    match error {
        Error::Api { source, .. } => match source.as_ref() {
            kube::Error::Api(status) => Some(status),
            _ => None,
        },
        _ => None,
    }
}
