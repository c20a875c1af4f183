//! Whether an attempt that failed speaks against the checkpoint that it began with: rule C7 of docs/checkpoints.md. Pure.

use jiff::SignedDuration;
use protocol::attempt::AttemptEnd;
use protocol::gang::KILLED;
use protocol::reason::Reason;

/// A program that ran this long has done real work, whether or not its output was understood.
const WORK: SignedDuration = SignedDuration::from_mins(5);

/// What an attempt has done.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    /// It has reported progress.
    pub progressed: bool,
    /// It has saved a checkpoint.
    pub saved: bool,
    /// How long it ran.
    pub ran: SignedDuration,
}

impl Work {
    /// Whether the checkpoint that the attempt began with has worked.
    pub(super) fn is_real(self) -> bool {
        self.progressed || self.saved || self.ran >= WORK
    }
}

/// Whether an attempt ended by a failure of the program's own, which a bad checkpoint may have caused. Networks, nodes, memory,
/// and images say nothing about a checkpoint; neither does SIGKILL, whose sender is unknown.
pub(super) fn is_own_failure(end: &AttemptEnd) -> bool {
    let is_own = matches!(end.reason, Reason::PythonException | Reason::ExitCode | Reason::Signal | Reason::NanLoss);
    is_own && !end.disruption && end.exit_code != Some(KILLED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_program_failures_count_against_a_checkpoint() {
        let is_own = |reason, disruption, code| {
            is_own_failure(&AttemptEnd { disruption, exit_code: Some(code), ..AttemptEnd::new(1, reason, "m") })
        };
        assert!(is_own(Reason::PythonException, false, 1) && is_own(Reason::ExitCode, false, 3));
        assert!(is_own(Reason::Signal, false, 139), "a segmentation fault");
        for reason in [Reason::NcclError, Reason::NcclTimeout, Reason::OomKilled, Reason::Hang, Reason::ImportError] {
            assert!(!is_own(reason, false, 1));
        }
        assert!(!is_own(Reason::Signal, false, KILLED));
        assert!(!is_own(Reason::ExitCode, true, 1), "a rule ignores it");
        assert!(!is_own(Reason::NodeLost, true, 1));
    }

    #[test]
    fn work_is_real_after_progress_a_save_or_five_minutes() {
        assert!(
            !Work::default().is_real() && !Work { ran: SignedDuration::from_secs(299), ..Work::default() }.is_real()
        );
        assert!(Work { progressed: true, ..Work::default() }.is_real());
        assert!(Work { saved: true, ..Work::default() }.is_real());
        assert!(Work { ran: WORK, ..Work::default() }.is_real(), "without a word that is understood");
    }
}
