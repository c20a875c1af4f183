//! Output to a terminal: only text and colours, whatever a pod printed.

use std::io::{self, IsTerminal, Write};

/// Maximum bytes of a line that are kept until its end arrives.
const MAX_LINE: usize = 64 * 1024;
/// Ends all colours.
const RESET: &str = "\x1b[0m";

/// An output. Only harmless lines go to a terminal. Everything goes to a file or a pipe as it is.
pub struct Terminal<W: Write> {
    inner: W,
    is_tty: bool,
    /// The beginning of a line.
    line: Vec<u8>,
}

/// Standard output.
pub fn stdout() -> Terminal<io::Stdout> {
    Terminal::new(io::stdout(), io::stdout().is_terminal())
}

/// Standard error.
pub fn stderr() -> Terminal<anstream::Stderr> {
    Terminal::new(anstream::stderr(), io::stderr().is_terminal())
}

impl<W: Write> Terminal<W> {
    /// Over what may be a terminal.
    pub fn new(inner: W, is_tty: bool) -> Self {
        Self { inner, is_tty, line: Vec::new() }
    }

    fn end_line(&mut self, rest: &[u8], end: &[u8]) -> io::Result<()> {
        let mut line = std::mem::take(&mut self.line);
        line.extend_from_slice(rest);
        self.inner.write_all(harmless(&String::from_utf8_lossy(&line)).as_bytes())?;
        self.inner.write_all(end)
    }
}

impl<W: Write> Write for Terminal<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.is_tty {
            return self.inner.write(bytes);
        }
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.end_line(&rest[..end], b"\n")?;
            rest = &rest[end + 1..];
        }
        self.line.extend_from_slice(rest);
        if self.line.len() > MAX_LINE {
            self.end_line(b"", b"")?;
        }
        Ok(bytes.len())
    }

    /// An unfinished line is kept until its end arrives, because a cut may be within a letter.
    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<W: Write> Drop for Terminal<W> {
    fn drop(&mut self) {
        if !self.line.is_empty() {
            // A closed output is no reason to fail.
            let _ = self.end_line(b"", b"").and_then(|()| self.inner.flush());
        }
    }
}

/// Returns the line without sequences that move the cursor, fill the clipboard, name the window or turn the direction
/// of the text. Colours stay, and end with the line.
pub fn harmless(line: &str) -> String {
    let (mut kept, mut rest, mut is_coloured) = (String::with_capacity(line.len()), line, false);
    while let Some(letter) = rest.chars().next() {
        if let Some(colour) = colour(rest) {
            kept.push_str(colour);
            is_coloured = colour != RESET;
            rest = &rest[colour.len()..];
            continue;
        }
        match letter {
            '\t' => kept.push(letter),
            letter if letter.is_control() => kept.push('\u{fffd}'),
            '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {}
            letter => kept.push(letter),
        }
        rest = &rest[letter.len_utf8()..];
    }
    if is_coloured {
        kept.push_str(RESET);
    }
    kept
}

/// Returns the sequence for a colour or another rendition with which the text begins, such as `\x1b[1;31m`.
fn colour(text: &str) -> Option<&str> {
    let numbers = text.strip_prefix("\x1b[")?;
    let length = numbers.find(|c: char| !(c.is_ascii_digit() || c == ';' || c == ':'))?;
    (length <= 32 && numbers[length..].starts_with('m')).then(|| &text[..="\x1b[".len() + length])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(is_terminal: bool, pieces: &[&[u8]]) -> String {
        let mut bytes = Vec::new();
        let mut terminal = Terminal::new(&mut bytes, is_terminal);
        for piece in pieces {
            terminal.write_all(piece).unwrap();
            terminal.flush().unwrap();
        }
        drop(terminal);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    #[test]
    fn only_text_and_colours_reach_a_terminal() {
        for (printed, shown) in [
            ("HTTP 500: \x1b]52;c;aGk=\x07\n", "HTTP 500: \u{fffd}]52;c;aGk=\u{fffd}\n"),
            ("\x1b]0;title\x1b\\\n", "\u{fffd}]0;title\u{fffd}\\\n"),
            ("\x1b[2J\x1b[H\rgone\x08\x7f\n", "\u{fffd}[2J\u{fffd}[H\u{fffd}gone\u{fffd}\u{fffd}\n"),
            ("\u{9b}31mC1\u{85}\n", "\u{fffd}31mC1\u{fffd}\n"),
            ("a\u{202e}txt.exe\u{2066}\u{200f}\n", "atxt.exe\n"),
            ("\x1b[1;31mred\x1b[0m\tplain\n", "\x1b[1;31mred\x1b[0m\tplain\n"),
            ("\x1b[31mred\nplain\n", "\x1b[31mred\x1b[0m\nplain\n"),
            ("\x1b[38;2;1;2;3mtrue\x1b[m\n", "\x1b[38;2;1;2;3mtrue\x1b[m\x1b[0m\n"),
            ("\x1b[", "\u{fffd}["),
            ("日本語 ü without an end", "日本語 ü without an end"),
        ] {
            assert_eq!(written(true, &[printed.as_bytes()]), shown, "{printed:?}");
            // However it comes.
            let pieces: Vec<_> = printed.as_bytes().chunks(1).collect();
            assert_eq!(written(true, &pieces), shown, "{printed:?}");
            assert_eq!(written(false, &pieces), printed, "a file has it all");
        }
        assert_eq!(written(true, &[b"\xff\x9b2J\n"]), "\u{fffd}\u{fffd}2J\n");
        let endless = vec![b'x'; 3 * MAX_LINE];
        assert_eq!(written(true, &[&endless]).len(), endless.len());
    }
}
