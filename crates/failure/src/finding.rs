//! Description of one worker's failure.

use jiff::Timestamp;
use protocol::reason::Reason;
use text::origin::FailureOrigin;

/// The failure of one worker, as it is reported if it was the first one.
#[derive(Clone, Debug)]
pub struct Finding {
    pub reason: Reason,
    /// Text for users, which does not name the worker.
    pub what: String,
    /// Rank of the process that failed.
    pub rank: Option<u64>,
    /// Exit code of the program or the container.
    pub exit_code: Option<i32>,
    /// A retry can't help.
    pub permanent: bool,
    /// Whether the worker itself, the gang or a peer failed.
    pub origin: FailureOrigin,
    /// It says why the program failed, not only how it ended.
    pub names_cause: bool,
    /// There is an exit code but no message.
    pub is_mute: bool,
    /// Time of the failure, if it was reported with one.
    pub time: Option<Timestamp>,
}

impl Finding {
    /// A finding with this reason and text only.
    pub fn new(reason: Reason, what: impl Into<String>) -> Self {
        Self {
            reason,
            what: what.into(),
            rank: None,
            exit_code: None,
            permanent: false,
            origin: FailureOrigin::Own,
            names_cause: false,
            is_mute: false,
            time: None,
        }
    }

    /// Whether the node failed and not the program. Such a failure does not count against the job.
    pub fn is_of_node(&self) -> bool {
        self.reason == Reason::GpuHardwareError
    }

    /// A finding that says why the program failed.
    pub fn why(reason: Reason, what: impl Into<String>) -> Self {
        Self { names_cause: true, ..Self::new(reason, what) }
    }
}
