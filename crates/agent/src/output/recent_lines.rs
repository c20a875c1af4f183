//! The last lines of a stream, as a terminal would show them.

use crate::now;
use jiff::Timestamp;
use std::collections::VecDeque;
use text::printable;

/// Bytes of text that are kept. This is more than fits into a report, because torchrun's closing message alone fills
/// most of a report, and the line with the cause precedes it.
const KEEP: usize = 32 * 1024;
/// Bytes of one line that are kept. Of a longer line, the end is kept.
const LINE: usize = 4 * 1024;

/// A ring of the last lines of a stream, fed with chunks cut anywhere.
///
/// A carriage return puts the cursor back to the first column, so a progress bar is one line however often it is drawn.
/// Escape sequences and control characters are removed, and bytes that are not UTF-8 become U+FFFD.
#[derive(Debug, Default)]
pub struct RecentLines {
    lines: VecDeque<Line>,
    /// Bytes in `lines`, one more for each line.
    kept: usize,
    /// The text of the current line when the cursor last went back to its first column.
    shown: String,
    /// The bytes that were written since.
    written: Vec<u8>,
}

#[derive(Debug)]
struct Line {
    text: String,
    /// When the line ended.
    time: Timestamp,
}

impl RecentLines {
    /// Takes in the next chunk of the stream.
    pub fn push(&mut self, chunk: &[u8]) {
        for piece in chunk.split_inclusive(|&b| b == b'\n' || b == b'\r') {
            match piece.split_last() {
                Some((b'\n', text)) => {
                    self.write(text);
                    self.end_line();
                }
                Some((b'\r', text)) => {
                    self.write(text);
                    self.carriage_return();
                }
                _ => self.write(piece),
            }
        }
    }

    /// The kept lines, oldest first. Each ends with a newline, except an unfinished last one.
    pub fn text(&self) -> String {
        let mut text = String::with_capacity(self.kept);
        for line in &self.lines {
            text.push_str(&line.text);
            text.push('\n');
        }
        text.push_str(&overlay(&self.shown, &self.written));
        text
    }

    /// When the last line that shows `text` was written. This is now if the line has not ended.
    pub fn time_of(&self, text: &str) -> Option<Timestamp> {
        if overlay(&self.shown, &self.written).trim() == text {
            return Some(now());
        }
        self.lines.iter().rev().find(|line| line.text.contains(text)).map(|line| line.time)
    }

    fn write(&mut self, text: &[u8]) {
        self.written.extend_from_slice(&text[text.len().saturating_sub(LINE)..]);
        if self.written.len() > 2 * LINE {
            self.written.drain(..self.written.len() - LINE);
            self.shown.clear();
        }
    }

    fn carriage_return(&mut self) {
        if !self.written.is_empty() {
            self.shown = overlay(&self.shown, &self.written);
            self.written.clear();
        }
    }

    fn end_line(&mut self) {
        self.carriage_return();
        let line = std::mem::take(&mut self.shown);
        self.kept += line.len() + 1;
        self.lines.push_back(Line { text: line, time: now() });
        while self.kept > KEEP {
            let Some(oldest) = self.lines.pop_front() else { break };
            self.kept -= oldest.text.len() + 1;
        }
    }
}

/// The text of a line after `new` is written over `old` from the first column.
fn overlay(old: &str, new: &[u8]) -> String {
    let mut text = printable(new);
    // Some bars erase the line, or its end, to clear the rest of a longer bar.
    let erased = [&b"\x1b[K"[..], b"\x1b[0K", b"\x1b[2K"].iter().any(|code| contains(new, code));
    if !erased && !old.is_empty() {
        let columns = text.chars().count();
        text.extend(old.chars().skip(columns));
    }
    text.truncate(text.trim_end().len());
    text
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(chunks: &[&[u8]]) -> String {
        let mut lines = RecentLines::default();
        chunks.iter().for_each(|chunk| lines.push(chunk));
        lines.text()
    }

    #[test]
    fn lines_split_across_chunks_are_joined() {
        assert_eq!(shown(&[b"one\ntw", b"o\n\nthr", b"ee"]), "one\ntwo\n\nthree");
        assert_eq!(shown(&["gr\u{fc}n\n".as_bytes().split_at(3).0, "gr\u{fc}n\n".as_bytes().split_at(3).1]), "grün\n");
    }

    #[test]
    fn a_progress_bar_is_one_line() {
        assert_eq!(
            shown(&["start\n\r  0%|    |\r 50%|██  |\r100%|████|\nend\n".as_bytes()]),
            "start\n100%|████|\nend\n"
        );
        assert_eq!(shown(&[b"loading model\rdone", b"\r\nnext"]), "doneing model\nnext");
        assert_eq!(shown(&[b"loading model\r\x1b[Kdone\r\n"]), "done\n");
        assert_eq!(shown(&[b"a\r\nb\r\n"]), "a\nb\n");
    }

    #[test]
    fn escape_sequences_and_control_characters_are_removed() {
        assert_eq!(shown(&[b"\x1b[1;31mError\x1b[0m:\tx\0\x07\n"]), "Error:\tx\n");
        assert_eq!(shown(&[b"\x1b]0;title\x07a\x1b]0;title\x1b\\b\xff\n"]), "ab\u{fffd}\n");
    }

    #[test]
    fn only_the_end_of_the_output_is_kept() {
        let many: String = (0..100_000).map(|n| format!("line {n}\n")).collect();
        let text = shown(&[many.as_bytes()]);
        assert!(text.len() <= KEEP && text.len() > KEEP - 32);
        assert!(text.starts_with("line ") && text.ends_with("line 99999\n"));
        let endless = vec![b'x'; 10 << 20];
        assert!(shown(&endless.chunks(1000).collect::<Vec<_>>()).len() <= 2 * LINE);
        assert_eq!(shown(&[&endless, b"the end"]).split_at(LINE).1, "the end");
    }

    proptest! {
        #[test]
        fn recent_lines_do_not_depend_on_chunk_boundaries(bytes: Vec<u8>, size in 1usize..9) {
            prop_assert_eq!(shown(&[&bytes]), shown(&bytes.chunks(size).collect::<Vec<_>>()));
        }
    }
}
