//! What is known of the program beyond its process: how far it has come, what it raised, what its libraries said.

use super::exception::{Exception, Exceptions};
use super::now;
use super::progress::{LOSS, Progress, Source, Update};
use super::report::{Reached, Report};
use super::signs::{self, Sign, SignKind};
use super::wake::Wake;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Shared by the threads that read and those that tell.
pub struct Seen {
    inner: Mutex<Inner>,
    wake: Arc<Wake>,
}

#[derive(Default)]
struct Inner {
    progress: Progress,
    exceptions: Exceptions,
    signs: Vec<Sign>,
    report: Report,
}

impl Seen {
    pub fn new(wake: Arc<Wake>) -> Self {
        Self { inner: Mutex::default(), wake }
    }

    /// `source` has told `update`, in a line of output if there is one.
    pub fn progress(&self, source: Source, update: &Update, line: Option<&str>) {
        let mut inner = self.lock();
        let mut changed = inner.progress.merge(update, source, now());
        if let Some(loss) = update.lost() {
            let at = inner.progress.step.map(|step| format!(" at step {}", step.value)).unwrap_or_default();
            let text = || line.map_or_else(|| format!("{LOSS}: {loss}{at}"), str::to_owned);
            changed |= signs::add(&mut inner.signs, SignKind::NanLoss, text, now());
        }
        drop(inner);
        if changed {
            self.wake.change();
        }
    }

    pub fn sign(&self, kind: SignKind, line: &str) {
        signs::add(&mut self.lock().signs, kind, || line.to_owned(), now());
        self.wake.change();
    }

    pub fn exception(&self, exception: Exception) {
        self.lock().exceptions.add(exception);
        self.wake.change();
    }

    /// Steps in all, if anybody has told.
    pub fn steps(&self) -> Option<f64> {
        self.lock().progress.steps.map(|steps| steps.value)
    }

    /// Adds to `report` what is known here, and keeps it for whoever asks.
    pub fn complete(&self, report: &mut Report) {
        let mut inner = self.lock();
        report.exception = inner.exceptions.first().cloned();
        report.signs.clone_from(&inner.signs);
        report.progress = Reached::of(&inner.progress);
        inner.report.clone_from(report);
    }

    /// The last report, and the progress in full.
    pub fn now(&self) -> (Report, Progress) {
        let inner = self.lock();
        (inner.report.clone(), inner.progress.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
