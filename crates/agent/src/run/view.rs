//! What others see of the run that is under way.

use crate::observations::Observations;
use crate::output::queue::Queue;
use parking_lot::Mutex;
use std::sync::Arc;

/// What of one run those who ask and the program itself have to do with.
pub struct RunView {
    /// What the program must know to tell something of this run; the next one has another.
    pub secret: String,
    pub observations: Arc<Observations>,
    /// The output that waits for its parser.
    pub output: Arc<Queue>,
}

/// The run that is under way, or the last one that was. It lives as long as the container, since the server does.
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
