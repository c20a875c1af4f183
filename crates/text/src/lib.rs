//! What the output of programs says about their failures, and text made safe for users and for messages of bounded
//! size.
//!
//! [`error_pattern`] knows the lines in which libraries report what ends programs. [`exception`] and `traceback` parse
//! the exceptions of Python, [`crash`] the reports of other runtimes, and [`mpi`] those of launchers. [`stderr`] finds
//! the most informative line, and [`origin`] whether it reports another worker's failure. All of it is pure.
#![cfg_attr(
    test,
    allow(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss,
        reason = "numbers of tests are small"
    )
)]

pub mod crash;
pub mod error_pattern;
pub mod exception;
pub mod mpi;
pub mod origin;
pub mod signal;
pub mod stderr;
mod traceback;

/// Compiles a regular expression that is a constant of the code.
///
/// # Panics
/// If the pattern is invalid, which the first test that uses it shows.
#[must_use]
#[expect(clippy::expect_used, reason = "the one place for all of them")]
pub fn constant(pattern: &str) -> regex::Regex {
    regex::Regex::new(pattern).expect("a constant")
}

/// The same for bytes that need not be UTF-8.
///
/// # Panics
/// As [`constant`] does.
#[must_use]
#[expect(clippy::expect_used, reason = "the one place for all of them")]
pub fn constant_bytes(pattern: &str) -> regex::bytes::Regex {
    regex::bytes::Regex::new(pattern).expect("a constant")
}

/// Makes a name printable: no line breaks, no terminal control characters, no change of the text's direction.
#[must_use]
pub fn shown(name: &str) -> String {
    let is_harmful = |c: char| {
        c.is_control() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut text = String::with_capacity(name.len());
    for c in name.chars() {
        if is_harmful(c) { text.extend(c.escape_default()) } else { text.push(c) }
    }
    text
}

/// A text for an error: one line of at most 200 characters, as [`shown`].
#[must_use]
pub fn one_line(text: &str) -> String {
    let line = shown(&text.split_whitespace().collect::<Vec<_>>().join(" "));
    match line.char_indices().nth(200) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

/// Formats a number of bytes for users.
#[must_use]
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// `bytes` as text without escape sequences (colours, cursor movements, titles) and control characters.
pub fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\x1b' => skip_escape(&mut chars),
            '\t' => out.push(c),
            c if c.is_control() => {}
            c => out.push(c),
        }
    }
    out
}

/// Skips the rest of an escape sequence (ECMA-48): CSI up to its final byte, OSC up to BEL or ST, else one character.
fn skip_escape(chars: &mut std::str::Chars) {
    match chars.next() {
        Some('[') => {
            chars.find(|c| ('@'..='~').contains(c));
        }
        Some(']') => {
            while let Some(c) = chars.next() {
                if c == '\x07' {
                    break;
                }
                if c == '\x1b' {
                    chars.next();
                    break;
                }
            }
        }
        _ => {}
    }
}

/// Splits off the mark of the rank that PyTorch's excepthook (`[rank3]: `) or torchrun (`[default3]:`) prepends to
/// `line`. Returns the rank only from the first of these.
pub fn split_rank(line: &str) -> (Option<u64>, &str) {
    let split = |mark: &str| {
        let (number, rest) = line.strip_prefix(mark)?.split_once("]:")?;
        number.bytes().all(|b| b.is_ascii_digit()).then(|| (number, rest.strip_prefix(' ').unwrap_or(rest)))
    };
    match (split("[rank"), split("[default")) {
        (Some((rank, rest)), _) => (rank.parse().ok(), rest),
        (None, Some((_, rest))) => (None, rest),
        (None, None) => (None, line),
    }
}

/// The longest start of `text` that takes at most `room` bytes in JSON.
pub fn start_of(text: &str, room: usize) -> &str {
    let mut used = 0;
    let end = text.char_indices().find(|&(_, c)| {
        used += json_bytes(c);
        used > room
    });
    end.map_or(text, |(at, _)| &text[..at])
}

/// Bytes that `c` takes within a JSON string as `serde_json` writes it.
pub fn json_bytes(c: char) -> usize {
    match c {
        '"' | '\\' | '\n' | '\r' | '\t' | '\x08' | '\x0c' => 2,
        c if c < ' ' => 6,
        c => c.len_utf8(),
    }
}
