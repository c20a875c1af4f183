//! What is known of the program beyond its process: how far it has come, what it raised, what its libraries said.

use crate::agent::failure::exceptions::Exceptions;
use crate::agent::now;
use crate::agent::progress::history::MetricHistories;
use crate::agent::wake::{Changes, Wake};
use crate::protocol::error_pattern;
use crate::protocol::error_pattern::{ErrorMatch, ErrorPattern};
use crate::protocol::exception::Exception;
use crate::protocol::metric_history::MetricHistory;
use crate::protocol::progress::{LOSS, Progress, Source, Update};
use crate::protocol::report::{Reached, Report};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What was observed in one run. The threads that read and those that tell share it.
pub struct Observations {
    inner: Mutex<Inner>,
    /// Whether the message lacks any of it.
    pub changes: Changes,
}

#[derive(Default)]
struct Inner {
    progress: Progress,
    histories: MetricHistories,
    /// The loss was once NaN or infinite, and whoever said so was believed.
    loss_was_lost: bool,
    exceptions: Exceptions,
    error_patterns: Vec<ErrorMatch>,
    report: Report,
}

impl Observations {
    /// Nothing is known yet. Of the metrics `watch` every reading will be kept.
    pub fn new(wake: Arc<Wake>, watch: &[String]) -> Self {
        let inner = Inner { histories: MetricHistories::new(watch), ..Inner::default() };
        Self { inner: Mutex::new(inner), changes: Changes::new(wake) }
    }

    /// `source` has said `update`, in `line` if it was read off the output.
    pub fn progress(&self, source: Source, update: &Update, line: Option<&str>) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let mut changed = inner.progress.merge(update, source, now());
        inner.histories.read(update, source, &inner.progress);
        let was_lost_before = inner.loss_was_lost;
        // A checkpoint tells of what was, be it in an attempt before.
        if let Some(loss) = update.lost().filter(|_| source != Source::Checkpoint) {
            let at = inner.progress.step.map(|step| format!(" at step {}", step.value)).unwrap_or_default();
            let text = || line.map_or_else(|| format!("{LOSS}: {loss}{at}"), str::to_owned);
            changed |= error_pattern::add(&mut inner.error_patterns, ErrorPattern::NanLoss, text, now());
            // If it is believed.
            inner.loss_was_lost |= inner.progress.metrics.get(LOSS).is_some_and(|known| known.source == source);
        }
        let is_newly_lost = inner.loss_was_lost && !was_lost_before;
        drop(guard);
        if changed {
            self.changes.change();
        }
        if is_newly_lost {
            self.changes.wake();
        }
    }

    /// Whether the loss was ever NaN or infinite.
    pub fn loss_was_lost(&self) -> bool {
        self.inner.lock().loss_was_lost
    }

    /// A library has printed `line`, which tells of what ends programs.
    pub fn error_pattern(&self, kind: ErrorPattern, line: &str) {
        let text = || match error_pattern::words(line) {
            (Some(rank), words) => format!("[rank{rank}]: {words}"),
            (None, words) => words.to_owned(),
        };
        error_pattern::add(&mut self.inner.lock().error_patterns, kind, text, now());
        self.changes.change();
    }

    /// The program's Python has raised what nothing caught.
    pub fn exception(&self, exception: Exception) {
        self.inner.lock().exceptions.add(exception);
        self.changes.change();
    }

    /// Steps in all, if anybody has said how many there are.
    pub fn steps(&self) -> Option<f64> {
        self.inner.lock().progress.steps.map(|steps| steps.value)
    }

    /// Adds to `report` what is known here, and keeps it for whoever asks.
    pub fn complete(&self, report: &mut Report) {
        let mut inner = self.inner.lock();
        report.exception = inner.exceptions.first().cloned();
        report.error_patterns.clone_from(&inner.error_patterns);
        report.progress = Reached::of(&inner.progress);
        inner.report.clone_from(report);
    }

    /// The last report, the progress in full, and every reading of the metrics that are watched.
    pub fn snapshot(&self) -> (Report, Progress, BTreeMap<String, MetricHistory>) {
        let inner = self.inner.lock();
        (inner.report.clone(), inner.progress.clone(), inner.histories.watched())
    }
}
