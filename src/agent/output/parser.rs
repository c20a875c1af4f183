//! Reads the program's output for progress and signs, at leisure.

use crate::agent::observations::Observations;
use crate::agent::output::lines::Lines;
use crate::agent::output::queue::{Next, Queue};
use crate::agent::progress::text::Text;
use crate::protocol::error_pattern;
use crate::protocol::progress::{Source, Update};
use crate::protocol::progress_pattern::ProgressPatterns;
use crate::protocol::text::printable;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// For each second of work it rests that many: it takes at most a twentieth of a core, however much is printed.
const REST: u32 = 19;
/// The longest rest, for a piece that took long only since others had the processor.
const MAX_REST: Duration = Duration::from_millis(200);
/// A line that has begun is looked at when nothing has come for so long: the next bar may be minutes away.
const SILENCE: Duration = Duration::from_secs(1);

/// What is done with each line.
pub struct Parser {
    text: Text,
    /// The user's own; the forms known by themselves are not looked for where there are any.
    patterns: ProgressPatterns,
    seen: Arc<Observations>,
}

impl Parser {
    pub fn new(patterns: ProgressPatterns, epochs: Option<f64>, seen: Arc<Observations>) -> Self {
        Self { text: Text::new(epochs), patterns, seen }
    }

    /// Reads in a thread of its own until `queue` is closed, and then what is left of it without a rest.
    pub fn start(mut self, queue: Arc<Queue>) -> io::Result<JoinHandle<()>> {
        std::thread::Builder::new().name("parser".to_owned()).spawn(move || {
            let mut streams = [Lines::default(), Lines::default()];
            loop {
                let wait = if streams.iter().any(Lines::has_begun) { SILENCE } else { Duration::MAX };
                let next = queue.next(wait);
                let started = Instant::now();
                if let Next::Piece { stream, bytes, gap } = next {
                    let lines = &mut streams[stream as usize];
                    if gap {
                        lines.skip();
                    }
                    self.text.expect_steps(self.seen.steps());
                    lines.push(&bytes, |line| self.line(line));
                    queue.rest((started.elapsed() * REST).min(MAX_REST));
                    continue;
                }
                for lines in streams.iter_mut().filter(|lines| lines.has_begun()) {
                    self.line(lines.look());
                }
                if next == Next::End {
                    return;
                }
            }
        })
    }

    fn line(&mut self, line: &[u8]) {
        if let Some(kind) = error_pattern::of_line(line) {
            self.seen.sign(kind, printable(line).trim());
        }
        let update: Option<Update> =
            if self.patterns.is_empty() { self.text.line(line) } else { self.patterns.line(line) };
        if let Some(update) = update {
            self.seen.progress(Source::Output, &update, Some(printable(line).trim()));
        }
    }
}
