//! Reads the program's output for progress and for libraries' error lines, without haste.

use crate::observations::Observations;
use crate::output::lines::Lines;
use crate::output::queue::{Next, Queue};
use crate::panics::catch_parser_panic;
use crate::progress::text::Text;
use crate::run::view::RunView;
use protocol::progress::{Source, Update};
use protocol::progress_pattern::ProgressPatterns;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};
use text::error_pattern;
use text::printable;

/// Seconds of rest for each second of work, so that it takes at most a twentieth of a core, however much is printed.
const REST: u32 = 19;
/// The longest rest, for a piece that took long only because others had the processor.
const MAX_REST: Duration = Duration::from_millis(200);
/// A bar that has begun is read after this time without output, because the next one may be minutes away.
const SILENCE: Duration = Duration::from_secs(1);

/// Reads each line for progress and errors.
pub struct Parser {
    text: Text,
    /// The user's own patterns. If there are any, the known forms are not looked for.
    patterns: ProgressPatterns,
    observations: Arc<Observations>,
}

impl Parser {
    /// A parser that reports to `observations` what `text` or the user's own patterns find.
    pub fn new(patterns: ProgressPatterns, text: Text, observations: Arc<Observations>) -> Self {
        Self { text, patterns, observations }
    }

    /// Reads the output of `run` in a separate thread until it is closed, and then the rest of it without pauses.
    ///
    /// # Errors
    /// Where the kernel denies a thread.
    pub fn start(mut self, run: &RunView) -> io::Result<Parsing> {
        let parsing = Parsing { has_ended: Arc::default() };
        let (output, ending) = (Arc::clone(&run.output), EndGuard(parsing.clone(), Arc::clone(&run.observations)));
        std::thread::Builder::new().name("parser".to_owned()).spawn(move || {
            let _ending = ending;
            read(&output, &mut self);
        })?;
        Ok(parsing)
    }
}

/// A parser at work.
#[derive(Clone)]
pub struct Parsing {
    has_ended: Arc<AtomicBool>,
}

impl Parsing {
    /// Whether all output has been read. The loop is woken when that becomes true.
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(SeqCst)
    }
}

/// Signals the parser's end, for any reason.
struct EndGuard(Parsing, Arc<Observations>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.has_ended.store(true, SeqCst);
        self.1.changes.wake();
    }
}

/// Takes in lines of output.
trait LineReader {
    /// Called before the lines of another piece of output.
    fn on_piece(&mut self) {}
    fn on_line(&mut self, line: &[u8]);
}

impl LineReader for Parser {
    fn on_piece(&mut self) {
        self.text.expect_steps(self.observations.steps());
    }

    fn on_line(&mut self, line: &[u8]) {
        if let Some(kind) = error_pattern::of_line(line) {
            self.observations.error_pattern(kind, printable(line).trim());
        }
        let update: Option<Update> =
            if self.patterns.is_empty() { self.text.line(line) } else { self.patterns.line(line) };
        if let Some(update) = update {
            self.observations.progress(Source::Output, &update, Some(printable(line).trim()));
        }
    }
}

/// Reads all of `output`. Skips a line at which the reader panics.
fn read(output: &Queue, reader: &mut impl LineReader) {
    let mut streams = [Lines::default(), Lines::default()];
    loop {
        let next = output.next(streams.iter().any(Lines::has_drawn_bar).then_some(SILENCE));
        let started = Instant::now();
        let mut on_line = |line: &[u8]| _ = catch_parser_panic(|| reader.on_line(line));
        match next {
            Next::Nothing => streams.iter_mut().filter_map(Lines::drawn_bar).for_each(on_line),
            Next::End => return streams.iter_mut().filter_map(Lines::end).for_each(|line| on_line(&line)),
            Next::Piece { stream, bytes, gap } => {
                let lines = &mut streams[stream as usize];
                if gap {
                    lines.skip();
                }
                catch_parser_panic(|| reader.on_piece());
                lines.push(&bytes, |line| _ = catch_parser_panic(|| reader.on_line(line)));
                output.rest((started.elapsed() * REST).min(MAX_REST));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::queue::Stream;

    /// Keeps the lines, and panics at some.
    struct Fragile(Vec<String>);

    impl LineReader for Fragile {
        fn on_line(&mut self, line: &[u8]) {
            assert_ne!(line, b"boom", "a panic that is meant to be seen in this test's output");
            self.0.push(String::from_utf8_lossy(line).into_owned());
        }
    }

    fn read_by_thread(pieces: &[&[u8]]) -> Vec<String> {
        let queue = Queue::default();
        pieces.iter().for_each(|piece| queue.push(Stream::Stdout, piece));
        queue.close();
        let mut reader = Fragile(Vec::new());
        read(&queue, &mut reader);
        reader.0
    }

    #[test]
    fn panic_loses_only_the_offending_line() {
        assert_eq!(read_by_thread(&[b"one\nboom\nthree\nboom"]), ["one", "three"]);
    }

    #[test]
    fn unterminated_last_line_is_parsed() {
        assert_eq!(read_by_thread(&[b"one\ntw", b"o"]), ["one", "two"]);
    }
}
