//! Expands `$(NAME)` for the variables that only the agent knows: it was given them, or they differ between attempts.
//!
//! The kubelet expands everything else before the agent starts. It leaves a reference alone if its name is not in the
//! pod's spec. The rules are those of Kubernetes (`k8s.io/kubernetes/third_party/forked/golang/expansion`). Right
//! before `(NAME)`, each pair of dollars stands for one dollar, and an odd one left over makes it a reference.

use std::collections::BTreeMap;

/// Variables by name. Names outside of this map are never touched.
pub type Variables = BTreeMap<&'static str, String>;

/// Expands references to `variables` in `input`. Every other byte stays as it is.
///
/// `$(MASTER_PORT)` becomes the value, `$$(MASTER_PORT)` the literal `$(MASTER_PORT)`. The function takes bytes,
/// because neither arguments nor values of the environment need to be UTF-8.
pub fn expand(input: &[u8], variables: &Variables) -> Vec<u8> {
    let mut out = Vec::with_capacity(input.len());
    let mut rest = input;
    while let Some(start) = rest.iter().position(|&b| b == b'$') {
        out.extend_from_slice(&rest[..start]);
        rest = &rest[start..];
        let dollars = rest.iter().take_while(|&&b| b == b'$').count();
        let (run, after) = rest.split_at(dollars);
        rest = after;
        match reference(after, variables) {
            None => out.extend_from_slice(run),
            Some((value, length)) => {
                out.extend(std::iter::repeat_n(b'$', dollars / 2));
                let text = if dollars % 2 == 1 { value.as_bytes() } else { &after[..length] };
                out.extend_from_slice(text);
                rest = &after[length..];
            }
        }
    }
    out.extend_from_slice(rest);
    out
}

/// The value that `(NAME)` at the start of `text` stands for, and the length of that `(NAME)`.
fn reference<'v>(text: &[u8], variables: &'v Variables) -> Option<(&'v str, usize)> {
    let inner = text.strip_prefix(b"(")?;
    let end = inner.iter().position(|&b| b == b')')?;
    let name = std::str::from_utf8(&inner[..end]).ok()?;
    Some((variables.get(name)?, end + 2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn expanded(input: &str) -> String {
        let variables =
            Variables::from([("MASTER_PORT", "29501".to_owned()), ("RESUME_FROM_CHECKPOINT", String::new())]);
        String::from_utf8(expand(input.as_bytes(), &variables)).unwrap()
    }

    #[test]
    fn references_are_replaced_by_values() {
        assert_eq!(expanded("host:$(MASTER_PORT)"), "host:29501");
        assert_eq!(expanded("$(MASTER_PORT)$(MASTER_PORT)"), "2950129501");
        assert_eq!(expanded("--resume=$(RESUME_FROM_CHECKPOINT)"), "--resume=");
    }

    #[test]
    fn dollars_escape_in_pairs() {
        assert_eq!(expanded("$$(MASTER_PORT)"), "$(MASTER_PORT)");
        assert_eq!(expanded("$$$(MASTER_PORT)"), "$29501");
        assert_eq!(expanded("$$$$(MASTER_PORT)"), "$$(MASTER_PORT)");
    }

    #[test]
    fn other_text_is_left_unchanged() {
        for text in [
            "",
            "$",
            "$$",
            "$$$HOME",
            "$(",
            "$(MASTER_PORT",
            "$(OTHER)",
            "$$(OTHER)",
            "${MASTER_PORT}",
            "$(date)",
            "$()",
        ] {
            assert_eq!(expanded(text), text);
        }
        assert_eq!(expanded("$(OTHER $(MASTER_PORT))"), "$(OTHER 29501)");
    }

    #[test]
    fn a_value_is_not_expanded_again() {
        let variables =
            Variables::from([("RESUME_FROM_CHECKPOINT", "/c/$(MASTER_PORT)".into()), ("MASTER_PORT", "1".into())]);
        assert_eq!(expand(b"$(RESUME_FROM_CHECKPOINT)", &variables), b"/c/$(MASTER_PORT)");
    }

    proptest! {
        #[test]
        fn input_is_unchanged_without_variables(input: Vec<u8>) {
            prop_assert_eq!(expand(&input, &Variables::new()), input);
        }
    }
}
