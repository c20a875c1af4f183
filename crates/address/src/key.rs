//! Paths of files below a prefix or a folder, which servers and people give.

/// The longest one, in bytes: what S3, GCS and Azure allow for a key.
pub const LONGEST: usize = 1024;
/// The folder below a prefix, and below a volume's root, that is the operator's.
pub const OURS: &str = ".trainingjob";

/// Whether a relative path has nothing in it that leads elsewhere.
///
/// # Errors
/// What is wrong, to be put after the path's name.
pub fn check(path: &str) -> Result<(), String> {
    if path.is_empty() {
        return Err("is empty".to_owned());
    }
    if path.len() > LONGEST {
        return Err(format!("has more than {LONGEST} bytes"));
    }
    if path.chars().any(char::is_control) {
        return Err("has a control character".to_owned());
    }
    for segment in path.split('/') {
        match segment {
            "" => return Err("is absolute or has an empty part (//)".to_owned()),
            "." | ".." => return Err(format!("has the part {segment}")),
            _ => {}
        }
    }
    Ok(())
}

/// Whether a text is this many lower-case hexadecimal digits.
#[must_use]
pub fn is_hex(text: &str, digits: usize) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.len() == digits && text.bytes().all(is_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_object_keys_are_rejected() {
        for path in ["", "/etc/passwd", "a//b", "../a", "a/..", "a/./b", "a/", "a\0b", "a\nb"] {
            assert!(check(path).is_err(), "{path:?}");
        }
        for path in ["a", "a/b.c", "..a/b..", "a..b", "a b/ä", "~", "-", "...", ".git"] {
            assert!(check(path).is_ok(), "{path:?}");
        }
    }

    #[test]
    fn is_hex_requires_lower_case_and_exact_length() {
        assert!(is_hex("00abff", 6));
        for text in ["00abf", "00abFF", "00abfg", "00abff00", "+0abff", "ä0abf"] {
            assert!(!is_hex(text, 6), "{text}");
        }
    }
}
