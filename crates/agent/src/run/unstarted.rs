//! Reports of runs that never began.

use crate::now;
use protocol::report::{LaunchError, Phase, Report, VERSION};

/// The report of a run that a stop prevented. `attempt` is 0 if it is unknown.
pub fn never_started(attempt: u32, stopped_by: i32) -> Report {
    Report { stopped_by: Some(stopped_by), ..no_run(attempt) }
}

/// The report of a run that could not begin. `attempt` is 0 if it is unknown.
pub fn unstarted(attempt: u32, error: LaunchError) -> Report {
    Report { error: Some(error), ..no_run(attempt) }
}

fn no_run(attempt: u32) -> Report {
    let (version, now) = (VERSION, Some(now()));
    Report { version, attempt, phase: Phase::Exited, started_at: now, finished_at: now, ..Report::default() }
}
