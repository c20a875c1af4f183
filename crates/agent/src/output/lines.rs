//! Splits a stream of bytes into lines.

/// Highest number of bytes in a line. A longer line is not meant for people, and is skipped.
const MAX_LINE: usize = 64 * 1024;

/// Splits chunks, which may be cut anywhere, at newlines and at the carriage returns that redraw a progress bar.
#[derive(Debug, Default)]
pub struct Lines {
    /// The line that has begun.
    begun: Vec<u8>,
    /// Whether the rest of this line is skipped, because it is too long or its beginning is missing.
    skipping: bool,
    /// Whether a carriage return came before `begun`.
    is_redrawn: bool,
    /// How many bytes of `begun` were read as a bar.
    looked_at: usize,
}

impl Lines {
    /// Calls `on_line` for each line that `chunk` ends, without its end and never empty.
    pub fn push(&mut self, chunk: &[u8], mut on_line: impl FnMut(&[u8])) {
        let mut rest = chunk;
        while let Some(end) = rest.iter().position(|&b| b == b'\n' || b == b'\r') {
            let (line, after) = rest.split_at(end);
            rest = &after[1..];
            if !std::mem::take(&mut self.skipping) {
                if self.begun.is_empty() {
                    if !line.is_empty() && line.len() <= MAX_LINE {
                        on_line(line);
                    }
                } else if self.begun.len() + line.len() <= MAX_LINE {
                    self.begun.extend_from_slice(line);
                    on_line(&self.begun);
                }
            }
            self.begun.clear();
            self.looked_at = 0;
            self.is_redrawn = chunk[chunk.len() - rest.len() - 1] == b'\r';
        }
        if self.skipping || self.begun.len() + rest.len() > MAX_LINE {
            self.skip();
        } else {
            self.begun.extend_from_slice(rest);
        }
    }

    /// Something is missing before the next chunk.
    pub fn skip(&mut self) {
        self.skipping = true;
        self.begun = Vec::new();
        self.looked_at = 0;
    }

    /// The progress bar that has begun and is drawn to its end, unless it was returned before.
    ///
    /// tqdm begins each drawing with a carriage return, so a bar ends only when the next one is drawn, maybe minutes
    /// later. A line that has begun may be incomplete, because the program's buffer may have ended in the middle of a
    /// number. A line is a complete bar if it began after a carriage return and ends with tqdm's `]`, behind which no
    /// number can continue.
    pub fn drawn_bar(&mut self) -> Option<&[u8]> {
        if !self.has_drawn_bar() {
            return None;
        }
        self.looked_at = self.begun.len();
        Some(&self.begun)
    }

    /// Whether [`Lines::drawn_bar`] would return one.
    pub fn has_drawn_bar(&self) -> bool {
        // A shorter bar has blanks at its end, which cover the longer one before.
        let ends_as_bar = || self.begun.trim_ascii_end().ends_with(b"]");
        self.is_redrawn && self.begun.len() > self.looked_at && ends_as_bar()
    }

    /// The line that has begun, at the end of the stream.
    pub fn end(&mut self) -> Option<Vec<u8>> {
        let is_new = self.begun.len() > self.looked_at;
        self.looked_at = 0;
        let begun = std::mem::take(&mut self.begun);
        is_new.then_some(begun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lines(chunks: &[&[u8]]) -> Vec<String> {
        let mut found = Vec::new();
        let mut lines = Lines::default();
        for chunk in chunks {
            lines.push(chunk, |line| found.push(String::from_utf8_lossy(line).into_owned()));
        }
        found
    }

    #[test]
    fn newlines_and_carriage_returns_end_a_line() {
        assert_eq!(lines(&[b"\r 0%\r 50", b"%\r100%\r\nend\n\nno"]), [" 0%", " 50%", "100%", "end"]);
    }

    fn bar_in(text: &str) -> Option<String> {
        let mut lines = Lines::default();
        lines.push(text.as_bytes(), |_| ());
        lines.drawn_bar().map(|bar| String::from_utf8_lossy(bar).into_owned())
    }

    #[test]
    fn fully_drawn_bar_is_visible_before_its_line_ends() {
        const BAR: &str = " 50%|##  | 5/10 [00:01<00:01, 1.0it/s, loss=0.25]";
        assert_eq!(bar_in(&format!("\r{BAR}")).as_deref(), Some(BAR));
        assert_eq!(bar_in(&format!("a\r{BAR}   ")), Some(format!("{BAR}   ")));
        for cut in 1..BAR.len() - 1 {
            assert_eq!(bar_in(&format!("\r{}", &BAR[..cut])), None, "half a bar is no bar");
        }
        for harmless in ["loss: 0.0", "losses: [0.1, 0.0]", "[00:01] loss: 0.0]", "x\rloss: 0.0", "\r3/5 loss: 0.0"] {
            assert_eq!(bar_in(harmless), None, "{harmless}");
            assert_eq!(bar_in(&format!("\r{BAR}\n{harmless}")), None, "{harmless}");
        }
    }

    #[test]
    fn drawn_bar_is_seen_once_early_and_once_complete() {
        let mut lines = Lines::default();
        lines.push(b"a\r 50%]", |_| ());
        assert!(lines.has_drawn_bar());
        assert_eq!(lines.drawn_bar(), Some(&b" 50%]"[..]));
        assert!(!lines.has_drawn_bar() && lines.drawn_bar().is_none());
        lines.push(b"\r", |line| assert_eq!(line, b" 50%]"));
        lines.push(b"60]", |_| ());
        assert!(lines.has_drawn_bar());
        lines.skip();
        lines.push(b"%]\n", |_| panic!("its beginning is missing"));
        lines.push(b"b\n", |line| assert_eq!(line, b"b"));
    }

    #[test]
    fn end_of_stream_ends_the_last_line() {
        let mut lines = Lines::default();
        lines.push(b"a\nlast", |_| ());
        assert_eq!(lines.end(), Some(b"last".to_vec()));
        assert_eq!(lines.end(), None);
        lines.skip();
        lines.push(b"last", |_| ());
        assert_eq!(lines.end(), None, "its beginning is missing");
    }

    #[test]
    fn overlong_lines_are_skipped() {
        let long = vec![b'x'; MAX_LINE + 1];
        assert_eq!(lines(&[&long, b"\nnext\n"]), ["next"]);
        assert_eq!(lines(&[&long[2..], b"yyy", b"\nnext\n"]), ["next"]);
        assert_eq!(lines(&[&long[1..], b"\n"]).len(), 1);
        assert_eq!(lines(&[&[&long[..], b"\nnext\n"].concat()]), ["next"]);
    }

    proptest! {
        #[test]
        fn lines_do_not_depend_on_chunk_boundaries(bytes in "[a\r\n\u{fc}]{0,40}", size in 1usize..9) {
            prop_assert_eq!(lines(&[bytes.as_bytes()]), lines(&bytes.as_bytes().chunks(size).collect::<Vec<_>>()));
        }
    }
}
