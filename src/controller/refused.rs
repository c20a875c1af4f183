//! Which party refused a write, according to the API server's answer.
//!
//! The phrases of policies and webhooks are searched at the beginning only, where the API server puts them. Later parts
//! contain values of fields, in which a person may have written anything.

use api::Reason;
use kube::core::Status;
use observe::Blocked;

/// The refusal of the API server or of an admission plugin or webhook; `None` for a failure of the API server itself.
pub(super) fn blocked(status: &Status) -> Option<Blocked> {
    let message = status.message.as_str();
    let reason = if status.code == 500 && webhook_failed(message) {
        Reason::WebhookFailed
    } else if webhook_denied(message) || policy_denied(message) {
        Reason::Denied
    } else if status.is_forbidden() {
        if quota_exceeded(message) { Reason::QuotaExceeded } else { Reason::Forbidden }
    } else if status.is_invalid() {
        // The API server's own validation names the fields.
        if names_field(status) { Reason::Invalid } else { Reason::Denied }
    } else {
        return None;
    };
    Some(Blocked { reason, message: message.to_owned() })
}

/// Whether the API server does not know the kind. In any other 404 it names the missing object.
pub(super) fn kind_is_unknown(status: &Status) -> bool {
    status.code == 404 && status.details.as_ref().is_none_or(|details| details.name.is_empty())
}

/// A required webhook gave no answer: `Internal error occurred: failed calling webhook "x": ...`.
fn webhook_failed(message: &str) -> bool {
    message.starts_with("Internal error occurred: failed calling webhook \"")
}

/// `admission webhook "x" denied the request: ...`, whatever the code.
fn webhook_denied(message: &str) -> bool {
    let rest = message.strip_prefix("admission webhook \"").and_then(|rest| rest.split_once('"'));
    rest.is_some_and(|(_, rest)| rest.starts_with(" denied the request"))
}

/// `jobs.batch "x" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: ...`, whatever the code.
fn policy_denied(message: &str) -> bool {
    let words = words_of_admission(message).unwrap_or(message);
    let policy = words.split_once(" '").filter(|(kind, _)| kind.ends_with("AdmissionPolicy") && !kind.contains(' '));
    let binding = policy.and_then(|(_, rest)| rest.split_once("' with binding '"));
    let rest = binding.and_then(|(_, rest)| rest.split_once('\''));
    rest.is_some_and(|(_, rest)| rest.starts_with(" denied request"))
}

fn quota_exceeded(message: &str) -> bool {
    words_of_admission(message).is_some_and(|words| words.starts_with("exceeded quota"))
}

/// What an admission plugin says after `jobs.batch "x" is forbidden: `.
fn words_of_admission(message: &str) -> Option<&str> {
    let (kind, rest) = message.split_once(" \"")?;
    let (_, rest) = rest.split_once('"')?;
    rest.strip_prefix(" is forbidden: ").filter(|_| !kind.contains(' '))
}

fn names_field(status: &Status) -> bool {
    status.details.iter().flat_map(|details| &details.causes).any(|cause| !cause.field.is_empty())
}
