//! A stream of bytes as lines.

/// Bytes of a line that is looked at; a longer one is none that a person reads.
const MAX_LINE: usize = 64 * 1024;

/// Splits what comes in chunks cut anywhere, at newlines and at the carriage returns by which a progress bar is redrawn.
#[derive(Debug, Default)]
pub struct Lines {
    /// The line that has begun.
    begun: Vec<u8>,
    /// The rest of this line is not looked at: it is too long, or its beginning is missing.
    skipping: bool,
    /// How much of `begun` was looked at.
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

    /// Whether more of the line that has begun is there than [`Lines::look`] has shown.
    pub fn has_begun(&self) -> bool {
        self.begun.len() > self.looked_at
    }

    /// The line that has begun: a bar is drawn long before the next one ends it.
    pub fn look(&mut self) -> &[u8] {
        self.looked_at = self.begun.len();
        &self.begun
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

    #[test]
    fn what_has_begun_can_be_seen() {
        let mut lines = Lines::default();
        lines.push(b"a\r 50%", |_| ());
        assert!(lines.has_begun());
        assert_eq!(lines.look(), b" 50%");
        assert!(!lines.has_begun());
        lines.push(b"\r", |line| assert_eq!(line, b" 50%"));
        lines.push(b"60", |_| ());
        assert!(lines.has_begun());
        lines.skip();
        lines.push(b"%\n", |_| panic!("its beginning is missing"));
        lines.push(b"b\n", |line| assert_eq!(line, b"b"));
    }

    #[test]
    fn long_lines_are_left_out() {
        let long = vec![b'x'; MAX_LINE + 1];
        assert_eq!(lines(&[&long, b"\nnext\n"]), ["next"]);
        assert_eq!(lines(&[&long[2..], b"yyy", b"\nnext\n"]), ["next"]);
        assert_eq!(lines(&[&long[1..], b"\n"]).len(), 1);
        assert_eq!(lines(&[&[&long[..], b"\nnext\n"].concat()]), ["next"]);
    }

    proptest! {
        #[test]
        fn chunks_make_no_difference(bytes in "[a\r\n\u{fc}]{0,40}", size in 1usize..9) {
            prop_assert_eq!(lines(&[bytes.as_bytes()]), lines(&bytes.as_bytes().chunks(size).collect::<Vec<_>>()));
        }
    }
}
