//! Numbers as programs print them.

use regex::Captures;

/// Constant regular expressions, each compiled when it is first needed.
macro_rules! regexes {
    ($($name:ident = $($part:expr),+;)*) => {
        $(static $name: std::sync::LazyLock<regex::Regex> =
            std::sync::LazyLock::new(|| ::text::constant(concat!($($part),+)));)*
    };
}

/// The regular expression of a number as programs print it. [`ends_number`] decides where it ends.
///
/// [`ends_number`]: super::number::ends_number
macro_rules! number {
    () => {
        concat!(
            r"[-+]?(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+\b(?:[.][0-9]*)?",
            "|(?:[0-9]+[.]?[0-9]*|[.][0-9]+)(?:[eE][-+]?[0-9]+)?|(?i:nan|inf(?:inity)?))"
        )
    };
}

/// The regular expression of a count. [`ends_count`] decides where it ends.
///
/// [`ends_count`]: super::number::ends_count
macro_rules! count {
    () => {
        r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+\b|[0-9]+)"
    };
}

/// Parses `text` as a number, which may have commas between thousands.
pub(super) fn parse(text: &str) -> Option<f64> {
    let text = text.trim();
    if text.contains(',') { text.replace(',', "").parse().ok() } else { text.parse().ok() }
}

/// Parses group `index` of `found` as a number, if it took part in the match.
pub(super) fn group(found: &Captures, index: usize) -> Option<f64> {
    parse(found.get(index)?.as_str())
}

/// Whether a count may end before `after`. It must not be the start of a time, a date, a version, a path or a file
/// name.
pub(super) fn ends_count(after: &str) -> bool {
    let mut rest = after.chars();
    match rest.next() {
        None => true,
        Some('.' | ':' | '-' | ',') => rest.next().is_none_or(|c| !c.is_alphanumeric()),
        Some(c) => !c.is_alphanumeric() && !matches!(c, '_' | '/' | '\\'),
    }
}

/// Whether a number may end before `after`. It must not have a unit, or be part of a name, a date or a version.
pub(super) fn ends_number(after: &str) -> bool {
    let mut rest = after.chars();
    match rest.next() {
        None => true,
        Some('.' | ':') => rest.next().is_none_or(char::is_whitespace),
        Some(c) => c.is_whitespace() || matches!(c, ',' | ';' | '|' | ')' | ']' | '}' | '\'' | '"' | '%'),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_may_have_commas() {
        regexes! {
            ALL = "^(?:", number!(), ")$";
            COUNTS = "^(?:", count!(), ")$";
        }
        for (text, value) in [("1,000", 1e3), ("12,345,678", 12_345_678.0), ("100", 100.0), ("007", 7.0)] {
            assert!(ALL.is_match(text) && COUNTS.is_match(text), "{text}");
            assert_eq!(parse(text), Some(value), "{text}");
        }
        for (text, value) in [("1,234.5", 1234.5), ("-1,000.", -1e3), ("1e-5", 1e-5), (".5", 0.5)] {
            assert!(ALL.is_match(text) && !COUNTS.is_match(text), "{text}");
            assert_eq!(parse(text), Some(value), "{text}");
        }
        for text in ["1,00", "0,123", "1234,567", "1,0000", "1,000,00", "1,"] {
            assert!(!ALL.is_match(text) && !COUNTS.is_match(text), "{text}");
        }
    }

    #[test]
    fn count_must_be_followed_by_a_boundary() {
        for after in ["", " of", ": loss", "|", ")", "]", ", loss", ". Then", "- loss", "\tloss", ";"] {
            assert!(ends_count(after), "{after}");
        }
        for after in ["s", ".5", ":30", "-01", "-step", ".pt", "/model", "_a", "ms", "k", "\\x", ",5"] {
            assert!(!ends_count(after), "{after}");
        }
    }
}
