//! The part of the current run that is shared outside it.

use crate::observations::Observations;
use crate::output::queue::Queue;
use parking_lot::Mutex;
use std::sync::Arc;

/// The part of one run that clients and the program itself use.
pub struct RunView {
    /// The secret that the program needs to report to this run. The next run has another one.
    pub secret: String,
    pub observations: Arc<Observations>,
    /// The output that waits for its parser.
    pub output: Arc<Queue>,
}

/// The current run, or else the last one. It lives as long as the container, because the server does.
#[derive(Default)]
pub struct CurrentRun(Mutex<Option<Arc<RunView>>>);

impl CurrentRun {
    pub fn set(&self, run: Arc<RunView>) {
        *self.0.lock() = Some(run);
    }

    pub fn get(&self) -> Option<Arc<RunView>> {
        self.0.lock().clone()
    }

    /// The run that has this secret, while it is the current one.
    pub fn with_secret(&self, secret: &str) -> Option<Arc<RunView>> {
        self.get().filter(|run| run.secret == secret)
    }
}
