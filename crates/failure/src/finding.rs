//! What one worker's failure was.

use jiff::Timestamp;
use protocol::reason::Reason;
use text::origin::FailureOrigin;

/// The failure of one worker, as it would be told if it were the first one.
#[derive(Clone, Debug)]
pub struct Finding {
    pub reason: Reason,
    /// As a person would tell it, without who it was.
    pub what: String,
    /// Of the process that failed.
    pub rank: Option<u64>,
    /// Of the program, or the container.
    pub exit_code: Option<i32>,
    /// Trying again can't help.
    pub permanent: bool,
    /// Whose failure it tells of.
    pub origin: FailureOrigin,
    /// It tells why the program failed, and not only how it ended.
    pub tells_why: bool,
    /// It has an exit code, and not a word beside it.
    pub is_mute: bool,
    /// When it was told, if it was told with its time.
    pub time: Option<Timestamp>,
}

impl Finding {
    /// What says nothing but this.
    pub fn new(reason: Reason, what: impl Into<String>) -> Self {
        Self {
            reason,
            what: what.into(),
            rank: None,
            exit_code: None,
            permanent: false,
            origin: FailureOrigin::Own,
            tells_why: false,
            is_mute: false,
            time: None,
        }
    }

    /// Whether the node failed, and not the program: nothing that counts against the job.
    pub fn is_of_node(&self) -> bool {
        self.reason == Reason::GpuHardwareError
    }

    /// What says why.
    pub fn why(reason: Reason, what: impl Into<String>) -> Self {
        Self { tells_why: true, ..Self::new(reason, what) }
    }
}
