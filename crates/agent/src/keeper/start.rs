//! Whether an attempt that failed speaks against the checkpoint that it began with: rule C7 of docs/checkpoints.md. Pure.

use jiff::SignedDuration;
use protocol::gang::KILLED;
use protocol::reason::Reason;

/// A program that ran this long has done real work, whether or not anybody understands its output.
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
    /// Whether the checkpoint that it began with has served.
    pub(super) fn is_real(self) -> bool {
        self.progressed || self.saved || self.ran >= WORK
    }
}

/// How an attempt ended.
#[derive(Clone, Debug)]
pub(super) struct End {
    /// The first cause.
    pub reason: Reason,
    /// It was nobody's fault.
    pub disruption: bool,
    /// Exit code of the program that failed first.
    pub exit_code: Option<i32>,
}

impl End {
    /// Whether it is a failure of the program's own, which a bad checkpoint may have caused. Networks, nodes, memory, and
    /// images say nothing about a checkpoint; neither does SIGKILL, whose sender is unknown.
    pub(super) fn is_own(&self) -> bool {
        let is_own =
            matches!(self.reason, Reason::PythonException | Reason::ExitCode | Reason::Signal | Reason::NanLoss);
        is_own && !self.disruption && self.exit_code != Some(KILLED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failures_of_the_programs_own_speak_against_a_checkpoint() {
        let is_own = |reason, disruption, code| End { reason, disruption, exit_code: Some(code) }.is_own();
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
    fn an_attempt_that_worked_speaks_for_its_checkpoint() {
        assert!(
            !Work::default().is_real() && !Work { ran: SignedDuration::from_secs(299), ..Work::default() }.is_real()
        );
        assert!(Work { progressed: true, ..Work::default() }.is_real());
        assert!(Work { saved: true, ..Work::default() }.is_real());
        assert!(Work { ran: WORK, ..Work::default() }.is_real(), "without a word that is understood");
    }
}
