//! Why a TrainingJob can't run.

use std::fmt;

/// Characters of all reasons together: a condition's message may have 32,768, a person reads a page.
const MAX_CHARS: usize = 8192;
/// Characters of one reason.
const MAX_CHARS_EACH: usize = 1024;

/// One reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The field, for example `spec.resources.limits.cpu`.
    pub field: String,
    /// What is wrong with it and what would be right.
    pub message: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = format!("{}: {}", self.field, self.message);
        match line.char_indices().nth(MAX_CHARS_EACH) {
            Some((end, _)) => write!(f, "{}...", &line[..end]),
            None => f.write_str(&line),
        }
    }
}

/// All the reasons, in the order of the spec's fields. Its `Display` is the message of the condition `Accepted=False`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusals(pub Vec<Refusal>);

impl Refusals {
    pub(super) fn push(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.0.push(Refusal { field: field.into(), message: message.into() });
    }
}

impl fmt::Display for Refusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut chars = 0;
        for (index, refusal) in self.0.iter().enumerate() {
            let line = refusal.to_string();
            chars += line.chars().count();
            if index > 0 && chars > MAX_CHARS {
                return write!(f, "; and {} more", self.0.len() - index);
            }
            write!(f, "{}{line}", if index > 0 { "; " } else { "" })?;
        }
        Ok(())
    }
}

impl std::error::Error for Refusals {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_each_field_and_stays_readable() {
        let mut few = Refusals::default();
        few.push("spec.model", "is empty");
        few.push("spec.env[1].name", "is reserved");
        assert_eq!(few.to_string(), "spec.model: is empty; spec.env[1].name: is reserved");

        let mut many = Refusals::default();
        for _ in 0..1000 {
            many.push("spec.podTemplate", "ö".repeat(5000));
        }
        let message = many.to_string();
        assert!(message.chars().count() < 10_000, "{}", message.chars().count());
        assert!(
            message.ends_with("; and 992 more") || message.ends_with("; and 993 more"),
            "{}",
            &message[message.len() - 20..]
        );
    }
}
