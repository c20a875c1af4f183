//! What the agents of one job answered when they were last asked.

use jiff::{SignedDuration, Timestamp};
use protocol::agent_status::AgentStatus;
use std::sync::Arc;

/// Percent of the whole that must pass after the first look before a pace is known.
const SOME_PROGRESS: f64 = 0.5;
/// Seconds that must pass after the first look before a pace is known.
const SOME_TIME: f64 = 10.0;

/// The last good answer of a job's agent.
#[derive(Debug, Clone)]
pub struct AgentAnswer {
    /// What it said.
    pub status: Arc<AgentStatus>,
    /// When it came.
    pub time: Timestamp,
    /// Since when no further answer has come.
    pub failing_since: Option<Timestamp>,
    /// Seconds that remain at the pace seen so far. The program's own estimate takes precedence.
    pub remaining: Option<i64>,
}

impl AgentAnswer {
    /// Whether it is about this attempt. The answer of the previous one may still be stored.
    #[must_use]
    pub fn is_of(&self, attempt: u32) -> bool {
        self.status.report.attempt == attempt
    }
}

/// The last answer of a job's agents, and the state of the questions to them.
#[derive(Clone, Debug, Default)]
pub struct AgentPolls {
    answer: Option<(Arc<AgentStatus>, Timestamp)>,
    silence: Option<Silence>,
    first: Option<PaceBaseline>,
}

/// A pod whose agent does not answer.
#[derive(Clone, Debug)]
struct Silence {
    pod: String,
    since: Timestamp,
    /// Why its last answer was refused, if one came.
    refusal: Option<String>,
    /// Whether this has been logged.
    is_logged: bool,
}

/// The point from which the pace is measured.
#[derive(Clone, Copy, Debug)]
struct PaceBaseline {
    /// The program: its attempt, and when its agent began.
    program: (u32, Option<Timestamp>),
    since: Timestamp,
    percent: f64,
}

impl PaceBaseline {
    /// Seconds that the rest takes at the pace so far.
    fn remaining(&self, percent: f64, time: Timestamp) -> Option<i64> {
        let (done, took) = (percent - self.percent, time.duration_since(self.since).as_secs_f64());
        #[allow(clippy::cast_possible_truncation)] // the value is in range
        let rest = || ((100.0 - percent) / done * took).round().min(1e12) as i64;
        (done >= SOME_PROGRESS && took >= SOME_TIME).then(rest)
    }
}

impl AgentPolls {
    /// How long an agent may be silent before that is reported, because single questions may fail.
    pub const SILENT: SignedDuration = SignedDuration::from_secs(30);

    /// Records an answer of the agent.
    pub fn answered(&mut self, status: AgentStatus) {
        let now = Timestamp::now();
        if let Some(percent) = status.percent {
            let program = (status.report.attempt, status.report.started_at);
            // Another program resumes at another point.
            self.first = self.first.filter(|first| first.program == program && percent >= first.percent);
            self.first.get_or_insert(PaceBaseline { program, since: now, percent });
        }
        self.answer = Some((Arc::new(status), now));
        self.silence = None;
    }

    /// Records that the agent in the pod with this UID gave no answer, or that its answer was refused for this reason.
    pub fn failed(&mut self, pod: &str, refusal: Option<String>) {
        let before = self.silence.take().filter(|silence| silence.pod == pod);
        let (since, reported) =
            before.map_or_else(|| (Timestamp::now(), false), |silence| (silence.since, silence.is_logged));
        self.silence = Some(Silence { pod: pod.to_owned(), since, refusal, is_logged: reported });
    }

    /// Whether to log that an agent is silent, which is once it has been silent for long. An agent whose program has
    /// just ended is silent for a moment.
    pub fn needs_logging(&mut self) -> bool {
        let Some(silence) = self.silence.as_mut().filter(|silence| !silence.is_logged) else { return false };
        silence.is_logged = Timestamp::now().duration_since(silence.since) >= Self::SILENT;
        silence.is_logged
    }

    /// Since when the agent of the last asked pod has not answered, also if it never did.
    #[must_use]
    pub fn silent_since(&self) -> Option<Timestamp> {
        self.silence.as_ref().map(|silence| silence.since)
    }

    /// Why the last answer was refused, if that is why there is none.
    #[must_use]
    pub fn refusal(&self) -> Option<&str> {
        self.silence.as_ref()?.refusal.as_deref()
    }

    /// The last good answer; `None` if there never was one.
    #[must_use]
    pub fn answer(&self) -> Option<AgentAnswer> {
        let (status, time) = self.answer.clone()?;
        let remaining = self.first.zip(status.percent).and_then(|(first, percent)| first.remaining(percent, time));
        Some(AgentAnswer { status, time, failing_since: self.silent_since(), remaining })
    }

    /// Whether the agent answered when it was last asked; `None` if it never was.
    #[must_use]
    pub fn is_up(&self) -> Option<bool> {
        (self.answer.is_some() || self.silence.is_some()).then_some(self.silence.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::report::Report;

    #[test]
    fn last_agent_answer_survives_failed_polls() {
        let mut polls = AgentPolls::default();
        assert_eq!((polls.is_up(), polls.answer().is_some()), (None, false));
        polls.failed("a", None);
        assert_eq!((polls.is_up(), polls.answer().is_some()), (Some(false), false), "it never answered");
        assert!(polls.silent_since().is_some());
        polls.answered(AgentStatus { percent: Some(5.0), ..AgentStatus::default() });
        assert_eq!((polls.is_up(), polls.silent_since()), (Some(true), None));
        polls.failed("a", None);
        let first = polls.answer().unwrap();
        assert_eq!(polls.refusal(), None);
        polls.failed("a", Some("forged".into()));
        assert_eq!(polls.refusal(), Some("forged"));
        let second = polls.answer().unwrap();
        assert_eq!(second.status.percent, Some(5.0));
        assert!(first.failing_since.is_some() && first.failing_since == second.failing_since);
    }

    #[test]
    fn agent_silence_is_tracked_per_pod() {
        let mut polls = AgentPolls::default();
        polls.failed("a", None);
        let long_ago = Timestamp::UNIX_EPOCH;
        polls.silence.as_mut().unwrap().since = long_ago;
        polls.failed("a", None);
        assert_eq!(polls.silent_since(), Some(long_ago));
        assert_eq!([polls.needs_logging(), polls.needs_logging()], [true, false], "once");
        polls.failed("a", None);
        assert!(!polls.needs_logging());
        polls.failed("b", None);
        assert_ne!(polls.silent_since(), Some(long_ago));
        assert!(!polls.needs_logging(), "it may have just ended");
    }

    #[test]
    fn remaining_time_is_reported_once_pace_is_known() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let pace = PaceBaseline { program: (1, None), since: at(100), percent: 40.0 };
        assert_eq!(pace.remaining(40.1, at(160)), None, "hardly anything was done");
        assert_eq!(pace.remaining(50.0, at(105)), None, "too short");
        assert_eq!(pace.remaining(50.0, at(160)), Some(300), "ten percent took a minute, fifty are left");
        assert_eq!(pace.remaining(100.0, at(160)), Some(0));
    }

    #[test]
    fn pace_is_measured_per_program_run() {
        let mut polls = AgentPolls::default();
        let mut first_percent = |attempt, percent| {
            let report = Report { attempt, ..Report::default() };
            polls.answered(AgentStatus { report, percent: Some(percent), ..AgentStatus::default() });
            polls.first.map(|first| first.percent)
        };
        assert_eq!([first_percent(1, 10.0), first_percent(1, 20.0)], [Some(10.0), Some(10.0)]);
        assert_eq!([first_percent(2, 30.0), first_percent(2, 40.0)], [Some(30.0), Some(30.0)], "another attempt");
        assert_eq!(first_percent(2, 5.0), Some(5.0), "it began again");
    }
}
