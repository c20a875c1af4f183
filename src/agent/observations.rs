//! What is known of the program beyond its process: how far it has come, what it raised, what its libraries said.

use crate::agent::failure::exceptions::Exceptions;
use crate::agent::now;
use crate::agent::progress::history::MetricHistories;
use crate::agent::wake::Wake;
use crate::protocol::error_pattern;
use crate::protocol::error_pattern::{ErrorMatch, ErrorPattern};
use crate::protocol::exception::Exception;
use crate::protocol::metric_history::MetricHistory;
use crate::protocol::progress::{LOSS, Progress, Source, Update};
use crate::protocol::report::{Reached, Report};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Shared by the threads that read and those that tell.
pub struct Observations {
    inner: Mutex<Inner>,
    wake: Arc<Wake>,
}

#[derive(Default)]
struct Inner {
    progress: Progress,
    watches: MetricHistories,
    is_lost: bool,
    exceptions: Exceptions,
    python_tells: bool,
    error_patterns: Vec<ErrorMatch>,
    report: Report,
}

impl Observations {
    /// Keeps every reading of the metrics that are to be watched.
    pub fn new(wake: Arc<Wake>, watch: &[String]) -> Self {
        let inner = Inner { watches: MetricHistories::new(watch), ..Inner::default() };
        Self { inner: Mutex::new(inner), wake }
    }

    /// `source` has told `update`, in a line of output if there is one.
    pub fn progress(&self, source: Source, update: &Update, line: Option<&str>) {
        let mut guard = self.lock();
        let inner = &mut *guard;
        let mut changed = inner.progress.merge(update, source, now());
        inner.watches.read(update, source, &inner.progress);
        let was_lost = inner.is_lost;
        // A checkpoint tells of what was, be it in an attempt before.
        if let Some(loss) = update.lost().filter(|_| source != Source::Checkpoint) {
            let at = inner.progress.step.map(|step| format!(" at step {}", step.value)).unwrap_or_default();
            let text = || line.map_or_else(|| format!("{LOSS}: {loss}{at}"), str::to_owned);
            changed |= error_pattern::add(&mut inner.error_patterns, ErrorPattern::NanLoss, text, now());
            // If it is believed.
            inner.is_lost |= inner.progress.metrics.get(LOSS).is_some_and(|known| known.source == source);
        }
        let is_lost = inner.is_lost && !was_lost;
        drop(guard);
        if changed {
            self.wake.change();
        }
        if is_lost {
            // `change` leaves whoever is to write a message later asleep until then.
            self.wake.wake();
        }
    }

    /// Whether the loss was ever NaN or infinite.
    pub fn is_lost(&self) -> bool {
        self.lock().is_lost
    }

    pub fn sign(&self, kind: ErrorPattern, line: &str) {
        let text = || match error_pattern::words(line) {
            (Some(rank), words) => format!("[rank{rank}]: {words}"),
            (None, words) => words.to_owned(),
        };
        error_pattern::add(&mut self.lock().error_patterns, kind, text, now());
        self.wake.change();
    }

    pub fn exception(&self, exception: Exception) {
        self.lock().exceptions.add(exception);
        self.wake.change();
    }

    /// A Python of the program has said that it tells of its exceptions.
    pub fn python_tells(&self) {
        self.lock().python_tells = true;
    }

    /// Steps in all, if anybody has told.
    pub fn steps(&self) -> Option<f64> {
        self.lock().progress.steps.map(|steps| steps.value)
    }

    /// Adds to `report` what is known here, and keeps it for whoever asks.
    pub fn complete(&self, report: &mut Report) {
        let mut inner = self.lock();
        report.python_tells = inner.python_tells;
        report.exception = inner.exceptions.first().cloned();
        report.error_patterns.clone_from(&inner.error_patterns);
        report.progress = Reached::of(&inner.progress);
        inner.report.clone_from(report);
    }

    /// The last report, the progress in full, and the metrics that are watched.
    pub fn now(&self) -> (Report, Progress, BTreeMap<String, MetricHistory>) {
        let inner = self.lock();
        (inner.report.clone(), inner.progress.clone(), inner.watches.watched())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
