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
        // Targets and early stopping rest on those that are watched.
        if update.is_sure(source) {
            inner.watches.read(update, source, &inner.progress);
        }
        let was_lost = inner.is_lost;
        // A checkpoint tells of what was, be it in an attempt before.
        if let Some(loss) = update.lost().filter(|_| update.is_sure(source) && source != Source::Checkpoint) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::progress::text::Text;
    use crate::protocol::progress_pattern::ProgressPatterns;

    /// Whether the loss counts as lost, how many readings of it there are to decide by, and whether it is shown.
    fn observed(source: Source, update: Option<Update>) -> (bool, u64, bool) {
        let observations = Observations::new(Arc::new(Wake::new().unwrap()), &[LOSS.to_owned()]);
        if let Some(update) = update {
            observations.progress(source, &update, None);
        }
        let (_, progress, watched) = observations.now();
        let has_sign = !observations.lock().error_patterns.is_empty();
        assert_eq!(has_sign, observations.is_lost());
        (observations.is_lost(), watched[LOSS].count, progress.metric(LOSS).is_some())
    }

    #[test]
    fn decisions_rest_on_the_loss_of_an_epoch_or_a_step() {
        let printed = |line: &str| observed(Source::Output, Text::new(None).line(line.as_bytes()));
        for line in ["Epoch 1/9 loss: nan", "step 3 loss: inf", "{'loss': nan, 'epoch': 0.5}"] {
            assert_eq!(printed(line), (true, 1, true), "{line}");
        }
        for line in ["loss: inf", "best: loss: inf", "no data yet | loss=nan", "{'loss': nan}", r#"{"loss": NaN}"#] {
            assert_eq!(printed(line), (false, 0, true), "{line}");
        }
        for line in ["best loss: inf", "Epoch 1/9 best loss: inf", "step 0: initial loss: nan"] {
            assert_eq!(printed(line), (false, 0, false), "{line}");
        }
    }

    #[test]
    fn whoever_tells_by_other_means_or_by_a_pattern_means_it() {
        let lost = || Update { metrics: [(LOSS.to_owned(), f64::NAN)].into(), ..Update::default() };
        assert_eq!(observed(Source::Post, Some(lost())), (true, 1, true));
        assert_eq!(observed(Source::File, Some(lost())), (true, 1, true));
        let pattern = ProgressPatterns::new(&["L=(?P<loss>.*)".to_owned()]).unwrap();
        assert_eq!(observed(Source::Output, pattern.line(b"L=nan")), (true, 1, true));
    }
}
