//! Reasons for rejecting a TrainingJob.

use std::fmt;

/// Maximum characters of all reasons together. A condition's message may have 32,768, but users read about a page.
const MAX_CHARS: usize = 8192;
/// Maximum characters of one reason.
const MAX_CHARS_EACH: usize = 1024;

/// Maximum number of reasons kept; they stay in memory as long as the job exists.
pub(super) const MAX: usize = 100;

/// One reason for rejecting a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The field, for example `spec.resources.limits.cpu`.
    pub field: String,
    /// The error and the remedy.
    pub message: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&short(&format!("{}: {}", self.field, self.message)))
    }
}

/// Truncates a text to [`MAX_CHARS_EACH`] characters.
fn short(text: &str) -> String {
    match text.char_indices().nth(MAX_CHARS_EACH) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// All reasons, in the order of the spec's fields. Its `Display` is the message of the condition `Accepted=False`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusals(pub Vec<Refusal>);

impl Refusals {
    pub(super) fn push(&mut self, field: impl Into<String>, message: impl Into<String>) {
        // A field's name may be a key of a user, with a megabyte of text.
        let refusal = Refusal { field: short(&field.into()), message: short(&message.into()) };
        // The values that roles have from the workers are checked for each role.
        if !self.is_full() && !self.0.contains(&refusal) {
            self.0.push(refusal);
        }
    }

    /// Whether no further reason is kept, so that checks can stop.
    pub(super) fn is_full(&self) -> bool {
        self.0.len() >= MAX
    }
}

impl fmt::Display for Refusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut chars = 0;
        for (index, refusal) in self.0.iter().enumerate() {
            let line = refusal.to_string();
            chars += line.chars().count();
            if index > 0 && chars > MAX_CHARS {
                let least = if self.is_full() { "at least " } else { "" };
                return write!(f, "; and {least}{} more", self.0.len() - index);
            }
            write!(f, "{}{line}", if index > 0 { "; " } else { "" })?;
        }
        if self.is_full() {
            f.write_str("; and maybe more")?;
        }
        Ok(())
    }
}

impl std::error::Error for Refusals {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_message_names_each_field_and_is_bounded() {
        let mut few = Refusals::default();
        few.push("spec.model", "is empty");
        few.push("spec.env[1].name", "is reserved");
        assert_eq!(few.to_string(), "spec.model: is empty; spec.env[1].name: is reserved");

        let mut many = Refusals::default();
        for index in 0..1000 {
            many.push(format!("spec.env[{index}]"), "ö".repeat(5000));
        }
        let message = many.to_string();
        assert_eq!(many.0.len(), MAX);
        assert!(message.chars().count() < 10_000, "{}", message.chars().count());
        assert!(
            message.ends_with("; and at least 92 more") || message.ends_with("; and at least 93 more"),
            "{}",
            &message[message.len() - 20..]
        );
    }
}
