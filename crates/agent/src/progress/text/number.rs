//! Numbers as programs print them.

use regex::Captures;

/// Constant regular expressions, each compiled when it is first needed.
macro_rules! regexes {
    ($($name:ident = $($part:expr),+;)*) => {
        $(static $name: std::sync::LazyLock<regex::Regex> =
            std::sync::LazyLock::new(|| ::text::constant(concat!($($part),+)));)*
    };
}

/// The regular expression of a number as programs print it; it ends where [`ends_number`] says so.
///
/// [`ends_number`]: super::number::ends_number
macro_rules! number {
    () => {
        "[-+]?(?:(?:[0-9]+[.]?[0-9]*|[.][0-9]+)(?:[eE][-+]?[0-9]+)?|(?i:nan|inf(?:inity)?))"
    };
}

/// The number that `text` is.
pub(super) fn parse(text: &str) -> Option<f64> {
    text.trim().parse().ok()
}

/// The number that group `index` of `found` is, if it took part.
pub(super) fn group(found: &Captures, index: usize) -> Option<f64> {
    parse(found.get(index)?.as_str())
}

/// Whether a number may stand before `after`: not one with a unit, nor part of a name, a date or a version.
pub(super) fn ends_number(after: &str) -> bool {
    let mut rest = after.chars();
    match rest.next() {
        None => true,
        Some('.' | ':') => rest.next().is_none_or(char::is_whitespace),
        Some(c) => c.is_whitespace() || matches!(c, ',' | ';' | '|' | ')' | ']' | '}' | '\'' | '"' | '%'),
    }
}
