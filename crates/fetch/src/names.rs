//! Names and paths that servers and people give, checked before a file is made of them.

use std::fmt::Write;

/// The longest part of a path, in bytes: what Linux file systems allow.
const LONGEST_PART: usize = 255;

/// Why a path can't be a file below a folder.
///
/// # Errors
/// The reason, to be put after the path.
pub(crate) fn check_path(path: &str) -> Result<(), String> {
    address::key::check(path)?;
    if path.split('/').any(|part| part.len() > LONGEST_PART) {
        return Err(format!("has a part of more than {LONGEST_PART} bytes"));
    }
    Ok(())
}

/// Lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The bytes of `2 * N` lower-case hexadecimal digits. `None` for any other text.
pub(crate) fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    let is_digit = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    if digits.len() != 2 * N || !digits.iter().all(is_digit) {
        return None;
    }
    let mut bytes = [0; N];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_paths_are_rejected() {
        let long = "x".repeat(256);
        for path in ["", "/etc/passwd", "a//b", "../a", "a/..", "a/./b", "a/", "a\0b", "a\nb", &long] {
            assert!(check_path(path).is_err(), "{path:?}");
        }
        for path in ["a", "a/b.c", "..a/b..", "a..b", "a b/ä", "~", "-", "...", ".git"] {
            assert!(check_path(path).is_ok(), "{path:?}");
        }
    }

    #[test]
    fn hex_requires_lower_case_and_exact_length() {
        assert_eq!(hex(&[0, 0xab, 0xff]), "00abff");
        assert_eq!(from_hex::<3>("00abff"), Some([0, 0xab, 0xff]));
        for text in ["00abf", "00abFF", "00abfg", "00abff00", "+0abff", "ä0abf"] {
            assert_eq!(from_hex::<3>(text), None, "{text}");
        }
    }
}
