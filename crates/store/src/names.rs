//! Names of checkpoints, files and keys, all of which were written by others.

use sha2::{Digest, Sha256};

/// A path as one segment of a key, readable and unambiguous: `/` is `=2F`.
pub(crate) fn escape(path: &str) -> String {
    let mut name = String::with_capacity(path.len() + 8);
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"._-".contains(&byte) {
            name.push(char::from(byte));
        } else {
            name.push_str(&format!("={byte:02X}"));
        }
    }
    name
}

/// Whether a path looks like `PATH~N`, and so like a later generation.
fn has_generation(path: &str) -> bool {
    path.rsplit_once('~').is_some_and(|(_, n)| !n.is_empty() && n.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Where the `generation`th content at `path` lies: the path itself for the first, `PATH~N` for what came later.
///
/// A program's own `x~1` never collides with the second content of its `x`.
pub(crate) fn of_generation(path: &str, generation: u32) -> String {
    if generation == 0 && !has_generation(path) { path.to_owned() } else { format!("{path}~{generation}") }
}

/// A path or name in the space of a writer.
pub(crate) fn in_space(path: &str, space: Option<&str>) -> String {
    space.map_or_else(|| path.to_owned(), |space| format!("{path}~{space}"))
}

/// Whether this names a space: eight hexadecimal digits.
pub(crate) fn is_space(space: &str) -> bool {
    space.len() == 8 && space.bytes().all(|byte| byte.is_ascii_hexdigit() && !byte.is_ascii_uppercase())
}

/// Sixteen hexadecimal digits that differ for different texts.
pub(crate) fn digest<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let mut hash = Sha256::new();
    for text in texts {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn manifest_names_of_paths_are_unique() {
        let paths = ["a/b", "a=2Fb", "a_b", "a-b", "a b", "ä", "a.b"];
        assert_eq!(paths.iter().map(|path| escape(path)).collect::<BTreeSet<_>>().len(), paths.len());
        assert_eq!(escape("runs/checkpoint-500"), "runs=2Fcheckpoint-500");
    }

    #[test]
    fn object_keys_of_generations_are_unique() {
        let all = ["x", "x~1", "x~1~1", "x~", "x~a"].iter().flat_map(|path| (0..3).map(|n| of_generation(path, n)));
        assert_eq!(all.collect::<BTreeSet<_>>().len(), 15);
        assert_eq!(of_generation("last.ckpt", 0), "last.ckpt");
        assert_eq!(of_generation("last.ckpt", 2), "last.ckpt~2");
    }
}
