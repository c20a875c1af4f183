//! Observations of the program beyond its process: its progress, its exceptions, and its libraries' error lines.

use crate::failure::exceptions::Exceptions;
use crate::now;
use crate::progress::history::MetricHistories;
use crate::progress::objective::RunObjective;
use crate::wake::{Changes, Wake};
use parking_lot::Mutex;
use protocol::hang::{Hang, Stall};
use protocol::metric_history::MetricHistory;
use protocol::progress::{LOSS, Progress, Source, Update};
use protocol::report::{LastProgress, Report};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use text::error_pattern;
use text::error_pattern::{ErrorMatch, ErrorPattern};
use text::exception::Exception;

/// Observations of one run. The threads that read the program's reports and those that publish them share it.
pub struct Observations {
    inner: Mutex<Inner>,
    /// Bytes that the program has printed.
    printed: AtomicU64,
    /// Whether the termination message lacks any of it.
    pub changes: Changes,
}

#[derive(Default)]
struct Inner {
    progress: Progress,
    histories: MetricHistories,
    objective: Option<RunObjective>,
    /// Whether the loss has been NaN or infinite, according to the source that was believed.
    loss_was_lost: bool,
    exceptions: Exceptions,
    python_tells: bool,
    error_patterns: Vec<ErrorMatch>,
    report: Report,
    stall: Option<Stall>,
    hang: Option<Hang>,
}

impl Observations {
    /// Starts without observations. Keeps every reading of the metrics `watch`, and records every reading of the
    /// `objective`.
    pub fn new(wake: Arc<Wake>, watch: &[String], objective: Option<RunObjective>) -> Self {
        let inner = Inner { histories: MetricHistories::new(watch), objective, ..Inner::default() };
        Self { inner: Mutex::new(inner), printed: AtomicU64::new(0), changes: Changes::new(wake) }
    }

    /// Takes in `update` from `source`. `line` is the line of the output that it was read from, if there is one.
    pub fn progress(&self, source: Source, update: &Update, line: Option<&str>) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let mut changed = inner.progress.merge(update, source, now());
        // Targets and early stopping depend on the watched metrics.
        let is_sure = update.is_sure(source);
        if is_sure {
            inner.histories.read(update, source, &inner.progress);
        }
        if let Some(objective) = &mut inner.objective {
            changed |= is_sure && objective.read(update, source, &inner.progress);
            objective.note(&inner.progress);
        }
        let was_lost_before = inner.loss_was_lost;
        // A checkpoint describes the past, possibly that of an earlier attempt.
        if let Some(loss) = update.lost().filter(|_| is_sure && source != Source::Checkpoint) {
            let at = inner.progress.step.map(|step| format!(" at step {}", step.value)).unwrap_or_default();
            let text = || line.map_or_else(|| format!("{LOSS}: {loss}{at}"), str::to_owned);
            changed |= error_pattern::add(&mut inner.error_patterns, ErrorPattern::NanLoss, text, now());
            // Only if this source is the one that is believed.
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

    /// Whether the loss has been NaN or infinite at any time.
    pub fn loss_was_lost(&self) -> bool {
        self.inner.lock().loss_was_lost
    }

    /// Takes in `line`, which a library has printed about an error that ends programs.
    pub fn error_pattern(&self, kind: ErrorPattern, line: &str) {
        let text = || match error_pattern::words(line) {
            (Some(rank), words) => format!("[rank{rank}]: {words}"),
            (None, words) => words.to_owned(),
        };
        error_pattern::add(&mut self.inner.lock().error_patterns, kind, text, now());
        self.changes.change();
    }

    /// Whether a library has printed an error of this kind.
    pub fn has_reported(&self, kind: ErrorPattern) -> bool {
        self.inner.lock().error_patterns.iter().any(|known| known.kind == kind)
    }

    /// Takes in an exception of the program's Python that nothing caught.
    pub fn exception(&self, exception: Exception) {
        self.inner.lock().exceptions.add(exception);
        self.changes.change();
    }

    /// Whether an exception that nothing caught is about to end the program itself.
    pub fn program_has_raised(&self) -> bool {
        self.inner.lock().exceptions.has_end()
    }

    /// A Python of the program has said that it reports its exceptions.
    pub fn python_tells(&self) {
        self.inner.lock().python_tells = true;
    }

    /// The program has printed `bytes` more bytes.
    pub fn prints(&self, bytes: usize) {
        self.printed.fetch_add(bytes as u64, SeqCst);
    }

    /// Bytes that the program has printed.
    pub fn printed(&self) -> u64 {
        self.printed.load(SeqCst)
    }

    /// Sets why the program may hang now, and the findings about the hang.
    pub fn hangs(&self, stall: Option<Stall>, hang: Option<Hang>) {
        let mut inner = self.inner.lock();
        (inner.stall, inner.hang) = (stall, hang);
        drop(inner);
        self.changes.change();
        self.changes.wake();
    }

    /// Why the program may hang, while there is reason to think so.
    pub fn stall(&self) -> Option<Stall> {
        self.inner.lock().stall.clone()
    }

    /// Whether two signs agree that it hangs.
    pub fn is_hanging(&self) -> bool {
        self.inner.lock().stall.as_ref().is_some_and(|stall| stall.hangs)
    }

    /// The current progress.
    pub fn progress_now(&self) -> Progress {
        self.inner.lock().progress.clone()
    }

    /// The total number of steps, if it was reported.
    pub fn steps(&self) -> Option<f64> {
        self.inner.lock().progress.steps.map(|steps| steps.value)
    }

    /// Adds the observations to `report`, and keeps a copy of it for requests.
    pub fn complete(&self, report: &mut Report) {
        let mut inner = self.inner.lock();
        report.python_tells = inner.python_tells;
        report.exception = inner.exceptions.first().cloned();
        report.error_patterns.clone_from(&inner.error_patterns);
        report.progress = LastProgress::from_progress(&inner.progress);
        report.hang.clone_from(&inner.hang);
        inner.report.clone_from(report);
    }

    /// The last report, the progress in full, and every reading of the metrics that are watched.
    pub fn snapshot(&self) -> (Report, Progress, BTreeMap<String, MetricHistory>) {
        let inner = self.inner.lock();
        (inner.report.clone(), inner.progress.clone(), inner.histories.watched())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::text::Text;
    use protocol::progress_pattern::ProgressPatterns;

    /// Whether the loss counts as lost, how many readings decisions may use, and whether the loss is shown.
    fn observed(source: Source, update: Option<Update>) -> (bool, u64, bool) {
        let observations = Observations::new(Arc::new(Wake::new().unwrap()), &[LOSS.to_owned()], None);
        if let Some(update) = update {
            observations.progress(source, &update, None);
        }
        let (_, progress, watched) = observations.snapshot();
        let has_sign = !observations.inner.lock().error_patterns.is_empty();
        assert_eq!(has_sign, observations.loss_was_lost());
        (observations.loss_was_lost(), watched[LOSS].count, progress.metric(LOSS).is_some())
    }

    #[test]
    fn printed_loss_is_decisive_only_with_an_epoch_or_step() {
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
    fn loss_from_post_file_or_pattern_is_always_decisive() {
        let lost = || Update { metrics: [(LOSS.to_owned(), f64::NAN)].into(), ..Update::default() };
        assert_eq!(observed(Source::Post, Some(lost())), (true, 1, true));
        assert_eq!(observed(Source::File, Some(lost())), (true, 1, true));
        let pattern = ProgressPatterns::new(&["L=(?P<loss>.*)".to_owned()]).unwrap();
        assert_eq!(observed(Source::Output, pattern.line(b"L=nan")), (true, 1, true));
    }
}
