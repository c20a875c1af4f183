//! The termination message: an agent's last report to the operator, as JSON of at most [`MAX_BYTES`].

use crate::checkpoints::Checkpoints;
use crate::cut_json::complete;
use crate::gang::GangEnd;
use crate::hang::{self, Hang};
use crate::inputs::FetchedContent;
use crate::number;
use crate::objective::{self, Objective};
use crate::progress::{LOSS, Progress};
use crate::result::Publication;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use text::error_pattern::{ErrorMatch, ErrorPattern, FOLLOWS};
use text::exception::{Exception, ExceptionKind, sort};
use text::mpi;
use text::origin::FailureOrigin;
use text::signal::of_exit_code;
use text::stderr::{cause_line, exception, has_traceback, stated_cause};
use text::{json_bytes, start_of};

/// Maximum bytes of a report. The kubelet keeps the last 4096 bytes of one container's termination message. It keeps 12,288
/// bytes for all containers of a pod together, the first bytes of each in equal shares. A report of this size fits beside
/// those of five other containers, init containers included.
pub const MAX_BYTES: usize = 2048;
/// Version of the format. Readers accept any version, because fields are only added.
pub const VERSION: u32 = 1;

/// An agent's knowledge about its program.
///
/// The operator that reads it may be older or newer than the agent. It ignores unknown fields and uses defaults for missing
/// ones. The most important fields come first, because the end may be truncated. The fields used to judge an exception or a
/// launch error precede it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Report {
    /// [`VERSION`] of the agent that wrote the report; 0 marks an invalid report.
    pub version: u32,
    /// The gang's attempt that this run belongs to, from 1; 0 if unknown.
    pub attempt: u32,
    pub phase: Phase,
    /// Whether the agent was killed with its container. A later agent of the same pod then repeats what the killed one had
    /// stored.
    #[serde(skip_serializing_if = "is_false")]
    pub killed: bool,
    /// The program's own exit code (0-255), even if the agent exits with another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that ended the program, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// The signal that requested the agent to stop (usually SIGTERM), if it arrived before the program's end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped_by: Option<i32>,
    /// Time at which the program got that signal, to the millisecond.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped_at: Option<Timestamp>,
    /// The error for which the agent stopped the program, or did not count its exit as success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_for: Option<ErrorPattern>,
    /// Processes that survived SIGKILL, so that this pod can't run another program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unkillable: Option<Unkillable>,
    /// Description of the hang, if the last check of the program found signs of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hang: Option<Hang>,
    /// Time at which the program ended or failed to start, to the millisecond.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// Number of processes in this container that the kernel's OOM killer has killed since the agent started.
    pub oom_kills: u64,
    /// Time of the last increase of that number, to the millisecond.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_time: Option<Timestamp>,
    /// The container's memory, once a process was killed for lack of memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// The fullest GPU at the last reading before a GPU ran out of memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_memory: Option<GpuMemory>,
    /// Whether a Python process of the program reports its uncaught exceptions. Exceptions it does not report were caught,
    /// whatever stderr shows.
    #[serde(skip_serializing_if = "is_false")]
    pub python_tells: bool,
    /// Final state of the gang.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gang: Option<GangEnd>,
    /// Final progress of the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<LastProgress>,
    /// Final state of the checkpoints, if this agent manages them; usually the first worker's does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoints: Option<Checkpoints>,
    /// Readings of the objective in all runs of this agent.
    #[serde(with = "objective::compact", skip_serializing_if = "Option::is_none")]
    pub objective: Option<Objective>,
    /// Content that an agent without a program has fetched.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fetched: Vec<FetchedContent>,
    /// Result that an agent without a program has published.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published: Option<Publication>,
    /// Reason for a failed start of the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<LaunchError>,
    /// Uncaught Python exception: the first one in the last chain of exceptions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exception: Option<Exception>,
    /// Log lines of libraries about fatal errors, one of each kind.
    #[serde(rename = "signs", skip_serializing_if = "Vec::is_empty")]
    pub error_patterns: Vec<ErrorMatch>,
    /// Time of the most informative line, to the millisecond.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line_time: Option<Timestamp>,
    /// The most informative line, if [`Report::stderr_tail`] was cut so that it lacks the line or suggests another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headline: Option<String>,
    /// Time at which the agent started, to the millisecond.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// The last lines of stderr, as a terminal would show them.
    pub stderr_tail: String,
}

/// Maximum bytes of the text of an [`Unkillable`].
pub const MAX_UNKILLABLE: usize = 240;

/// Processes that SIGKILL did not end in time.
///
/// The time precedes the text, because the end of a report may be truncated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Unkillable {
    /// Time at which the agent gave up on them.
    pub time: Timestamp,
    /// The first process and its state, in at most [`MAX_UNKILLABLE`] bytes.
    pub text: String,
}

/// A container's memory in bytes, according to its cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Memory {
    /// Memory limit; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Peak usage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak: Option<u64>,
    /// Part of the usage that is shared memory and files in memory, such as in `/dev/shm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared: Option<u64>,
}

/// Memory of a GPU, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuMemory {
    /// Index of the GPU in this container.
    pub index: u32,
    /// Used bytes.
    pub used: f64,
    /// Total bytes.
    pub total: f64,
    /// Time of the reading.
    pub time: Timestamp,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // as serde wants it
fn is_false(value: &bool) -> bool {
    !value
}

/// Phase of the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// The program does not run yet.
    #[default]
    Starting,
    /// The program has ended, or could not be started.
    Exited,
    /// The program runs. In a terminated container it means that the agent was killed with it. Also stands for unknown
    /// values of a newer agent (serde requires it last).
    #[serde(other)]
    Running,
}

/// The last known progress. Values that were never reported are absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LastProgress {
    #[serde(with = "number::option", skip_serializing_if = "Option::is_none")]
    pub epoch: Option<f64>,
    #[serde(with = "number::option", skip_serializing_if = "Option::is_none")]
    pub epochs: Option<f64>,
    #[serde(with = "number::option", skip_serializing_if = "Option::is_none")]
    pub step: Option<f64>,
    #[serde(with = "number::option", skip_serializing_if = "Option::is_none")]
    pub steps: Option<f64>,
    /// Percentage from 0 to 100.
    #[serde(with = "number::option", skip_serializing_if = "Option::is_none")]
    pub percent: Option<f64>,
    #[serde(with = "number::option", skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Time of the last report of progress, to the millisecond.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Timestamp>,
}

impl LastProgress {
    /// The step as a whole number.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "a step is a whole number, and none is so large")]
    pub fn whole_step(&self) -> Option<i64> {
        self.step.filter(|step| *step >= 0.0).map(|step| step as i64)
    }
}

impl LastProgress {
    /// Extracts the last progress; `None` if there was never a report.
    pub fn from_progress(progress: &Progress) -> Option<Self> {
        let last = progress.last()?;
        let [epoch, epochs, step, steps] =
            [progress.epoch, progress.epochs, progress.step, progress.steps].map(|reading| Some(reading?.value));
        let (percent, loss) = (progress.percent(), progress.metric(LOSS));
        Some(Self { epoch, epochs, step, steps, percent, loss, time: Some(last.time) })
    }
}

/// Reason for a failed start of a program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LaunchError {
    pub kind: LaunchErrorKind,
    /// The command, the places searched for it, and the remedy.
    pub message: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LaunchErrorKind {
    /// No such file in PATH or at the given path.
    CommandNotFound,
    /// A file without execute permission, or a directory.
    PermissionDenied,
    /// The file exists, but the interpreter of its first line or its dynamic loader does not.
    InterpreterNotFound,
    /// Not a program, or a program for another CPU architecture.
    NotExecutable,
    /// The checkpoint of `resumeFrom` is corrupted or missing.
    CheckpointUnusable,
    /// The checkpoints could not be read: a folder, a volume or a store.
    StorageUnavailable,
    /// Another job writes to the same folder.
    FolderInUse,
    /// The job has checkpoints, and none of them can be used.
    NoUsableCheckpoint,
    /// Content can't be fetched or published: another try fails in the same way.
    ContentRefused,
    /// Content could not be fetched or published for now.
    ContentUnavailable,
    /// The code did not reach the pod, or its archive is invalid.
    CodeUnavailable,
    /// An agent option is invalid, such as a malformed regular expression.
    InvalidOption,
    /// Any other error of the kernel, or a kind named by a newer agent.
    #[default]
    #[serde(other)]
    LaunchFailed,
}

impl Report {
    /// Parses the report in a container's termination message, even if its end is truncated. `None` if no agent wrote the
    /// message.
    pub fn parse(message: &str) -> Option<Self> {
        // serde would take an array for a struct too.
        let object = Some(message.trim()).filter(|message| message.starts_with('{'))?;
        let report = serde_json::from_str::<Self>(object).ok().or_else(|| Self::parse_cut(object));
        report.filter(|report| report.version > 0)
    }

    fn parse_cut(object: &str) -> Option<Self> {
        let mut report = serde_json::from_str::<Self>(&complete(object)?).ok()?;
        // The text was cut off before the message, the class or the line.
        report.error = report.error.filter(|error| !error.message.is_empty());
        report.exception = report.exception.filter(|exception| !exception.class.is_empty());
        report.error_patterns.retain(|known| !known.text.is_empty());
        report.hang = report.hang.filter(|hang| !hang.text.is_empty());
        report.unkillable = report.unkillable.filter(|left| !left.text.is_empty());
        Some(report)
    }

    /// Stores the last lines of stderr; `time_of` returns the time at which a line was written.
    ///
    /// A traceback followed by later output was caught and logged, if Python would have reported it otherwise. A panic
    /// followed by later output was survived. In both cases the last line becomes the headline.
    pub fn read_stderr(&mut self, tail: String, time_of: impl Fn(&str) -> Option<Timestamp>) {
        /// Output caused by one failure appears within this time.
        const AT_ONCE: SignedDuration = SignedDuration::from_secs(2);
        let timed = |line: &str| Some((line.to_owned(), time_of(line)?));
        let stated = stated_cause(&tail);
        let time = stated.as_ref().and_then(|stated| time_of(stated.line));
        let may_be_survived = stated.as_ref().is_some_and(|stated| {
            let is_exception = exception(&stated.text).is_some();
            if is_exception { self.python_tells } else { stated.is_report }
        });
        let after = stated.and_then(|stated| stated.after).and_then(timed);
        (self.line_time, self.headline) = (time, None);
        if let (Some(time), Some((last, last_time))) = (time, after)
            && may_be_survived
            && last_time.duration_since(time) > AT_ONCE
            // Only stderr shows what ranks of other workers raise. The other ranks continue until mpirun ends them.
            && mpi::first_process(&tail).is_none()
        {
            (self.headline, self.line_time) = (Some(last), Some(last_time));
        }
        self.stderr_tail = tail;
    }

    /// The most informative line: the reason for a failed start, else the fatal exception, else the most informative line
    /// of stderr.
    pub fn summary(&self) -> Option<String> {
        if let Some(error) = self.error.as_ref().filter(|error| !error.message.is_empty()) {
            return Some(error.message.clone());
        }
        if let Some(sign) = self.error_patterns.iter().find(|sign| Some(sign.kind) == self.ended_for) {
            return Some(sign.text.clone());
        }
        if let Some(hang) = self.hang.as_ref().filter(|_| self.ended_for == Some(ErrorPattern::Hang)) {
            return Some(hang.text.clone());
        }
        let line = || self.last_words().map(Cow::into_owned);
        match self.last_exception() {
            // stderr may report a peer that a signal ended, which could raise nothing.
            Some(echo) if echo.origin() == FailureOrigin::Peer => line().or_else(|| Some(echo.summary())),
            Some(exception) => Some(exception.summary()),
            None => line(),
        }
    }

    /// The most informative line of stderr.
    pub fn line(&self) -> Option<Cow<'_, str>> {
        self.headline.as_deref().map(Cow::Borrowed).or_else(|| cause_line(&self.stderr_tail))
    }

    /// The exception, unless the program ran longer than [`FOLLOWS`] after it.
    pub fn last_exception(&self) -> Option<&Exception> {
        let is_last = |e: &&Exception| self.finished_at.is_none_or(|end| end.duration_since(e.time) <= FOLLOWS);
        self.exception.as_ref().filter(is_last)
    }

    /// Whether a process was killed for lack of memory, unless the program ran longer than [`FOLLOWS`] after that.
    pub fn ended_by_oom(&self) -> bool {
        let since = self.finished_at.zip(self.oom_time).map(|(end, oom)| end.duration_since(oom));
        self.oom_kills > 0 && since.is_none_or(|since| since <= FOLLOWS)
    }

    /// The signal that ended the program or, by its exit code, a child of its shell. `None` if the program was requested to
    /// stop.
    pub fn own_signal(&self) -> Option<i32> {
        let signal = self.signal.or_else(|| of_exit_code(self.exit_code?));
        signal.filter(|_| self.stopped_by.is_none() && self.ended_for.is_none())
    }

    /// The exception at the end of a Python traceback in stderr, if it can explain the end. It can't if a signal ended the
    /// program, or if the program ran on for long.
    pub fn last_traceback(&self) -> Option<Cow<'_, str>> {
        self.line().filter(|_| self.may_be_traceback() && self.own_signal().is_none() && !self.is_caught())
    }

    /// Whether the most informative line may be the end of a traceback. A headline has lost the text around it.
    fn may_be_traceback(&self) -> bool {
        self.headline.is_some() || has_traceback(&self.stderr_tail)
    }

    /// The most informative line of stderr, unless it belongs to an exception that did not end the program.
    pub fn last_words(&self) -> Option<Cow<'_, str>> {
        let is_of_other = |line: &Cow<'_, str>| {
            exception(line).is_some() && (self.is_caught() || (self.python_tells && self.own_signal().is_some()))
        };
        self.line().filter(|line| !is_of_other(line))
    }

    /// Whether the program ran on for long after its most informative line.
    fn is_caught(&self) -> bool {
        /// Time that a program may take to shut down, if its Python reports uncaught exceptions.
        const CLEARING_UP: SignedDuration = SignedDuration::from_mins(1);
        let longest = if self.python_tells { CLEARING_UP } else { FOLLOWS };
        let since = self.finished_at.zip(self.line_time).map(|(end, line)| end.duration_since(line));
        since.is_some_and(|since| since > longest)
    }

    /// Time at which a GPU first ran out of memory, according to any evidence.
    pub fn gpu_memory_failed(&self) -> Option<Timestamp> {
        let is_one = |raised: &&Exception| sort(&raised.class, &raised.message) == ExceptionKind::CudaOutOfMemory;
        let raised = self.exception.as_ref().filter(is_one).map(|raised| raised.time);
        let is_kind = |known: &&ErrorMatch| known.kind == ErrorPattern::CudaOutOfMemory;
        raised.into_iter().chain(self.error_patterns.iter().find(is_kind).map(|known| known.time)).min()
    }

    /// The sign of this kind, unless the program ran longer than [`FOLLOWS`] after its last occurrence.
    pub fn last_match(&self, kind: ErrorPattern) -> Option<&ErrorMatch> {
        let is_last =
            |sign: &&ErrorMatch| sign.kind == kind && self.finished_at.is_none_or(|end| sign.is_within(FOLLOWS, end));
        self.error_patterns.iter().find(is_last)
    }

    /// Formats the report as JSON of at most [`MAX_BYTES`], whatever it holds. The tail loses lines from its beginning, and
    /// long texts lose their end.
    ///
    /// If the most informative line would be lost (torchrun's closing lines are long), it becomes the headline. So it does
    /// if only the first line of its traceback would be lost, without which it is not an exception.
    pub fn to_message(&self) -> String {
        /// Minimum bytes for the last lines of stderr, which can show more than the facts extracted from them.
        const TAIL_BYTES: usize = 300;
        let headline = self.line().filter(|_| {
            let is_reported = self.last_exception().is_some_and(|raised| raised.origin() == FailureOrigin::Own);
            self.error.is_none() && !is_reported
        });
        let mut fitted = self.clone();
        fitted.checkpoints = self.checkpoints.as_ref().map(Checkpoints::last_words);
        fitted.objective = self.objective.as_ref().map(Objective::last_words);
        for room in &TextLimits::SIZES {
            fitted.fit_texts(self, room);
            fitted.headline = None;
            fitted.fit_tail(&self.stderr_tail);
            let tail = &fitted.stderr_tail;
            if headline != cause_line(tail) || self.may_be_traceback() != has_traceback(tail) {
                fitted.headline = headline.as_ref().map(|line| start_of(line, room.headline).to_owned());
                fitted.fit_tail(&self.stderr_tail);
            }
            let has_tail = fitted.stderr_tail.len() >= TAIL_BYTES.min(self.stderr_tail.len());
            if has_tail && fitted.to_json().len() <= MAX_BYTES {
                return fitted.to_json();
            }
        }
        fitted.drop_details();
        fitted.to_json()
    }

    /// Removes the parts that explain the cause least, one by one, until the report fits.
    fn drop_details(&mut self) {
        type Part = fn(&mut Report);
        const LEAST_FIRST: [Part; 15] = [
            |report| report.gang.iter_mut().for_each(|gang| gang.ended.clear()),
            |report| {
                // The checkpoint that has yet to be copied stays.
                if let Some(known) = &mut report.checkpoints {
                    (known.best, known.copied, known.resumed_from) = (None, None, None);
                    known.problems.clear();
                }
            },
            |report| report.hang = None,
            |report| report.error_patterns.truncate(1),
            |report| report.progress = None,
            |report| report.gpu_memory = None,
            |report| report.gang.iter_mut().for_each(|gang| gang.restarts.repeated = None),
            |report| report.headline.iter_mut().for_each(|line| line.truncate(start_of(line, 60).len())),
            |report| report.exception.iter_mut().for_each(|raised| (raised.thread, raised.within) = (None, None)),
            |report| report.error.iter_mut().for_each(|e| e.message.truncate(start_of(&e.message, 300).len())),
            |report| report.checkpoints.iter_mut().for_each(|known| known.latest = None),
            |report| report.objective.iter_mut().for_each(|objective| objective.reported.clear()),
            |report| report.objective.iter_mut().for_each(|objective| objective.keep_rungs(8)),
            |report| report.objective.iter_mut().for_each(|objective| objective.keep_rungs(2)),
            |report| report.objective.iter_mut().for_each(|objective| objective.keep_rungs(0)),
        ];
        for part in LEAST_FIRST {
            if self.to_json().len() <= MAX_BYTES {
                break;
            }
            part(self);
        }
    }

    fn fit_texts(&mut self, whole: &Self, room: &TextLimits) {
        self.error.clone_from(&whole.error);
        self.exception.clone_from(&whole.exception);
        self.error_patterns.clone_from(&whole.error_patterns);
        self.hang.clone_from(&whole.hang);
        self.gang.clone_from(&whole.gang);
        for end in self.gang.iter_mut().flat_map(|gang| &mut gang.ended) {
            end.message.truncate(start_of(&end.message, room.ended).len());
        }
        // Where there is no room for both, the exception is more informative.
        self.hang.take_if(|_| room.hang == 0);
        if let Some(hang) = &mut self.hang {
            hang.text.truncate(start_of(&hang.text, room.hang).len());
        }
        if let Some(error) = &mut self.error {
            error.message.truncate(start_of(&error.message, room.error).len());
            // A program that was never started has reported nothing.
            self.exception = None;
            self.hang = None;
            self.error_patterns.clear();
        }
        if let Some(exception) = &mut self.exception {
            exception.fit(room.exception);
        }
        // Where there is no room for both, the node's failure is more informative.
        let is_of_node = self.unkillable.is_some() && room.hang == 0;
        self.error_patterns.truncate(if is_of_node { 0 } else { ErrorPattern::COUNT });
        self.error_patterns.iter_mut().for_each(|known| known.text.truncate(start_of(&known.text, room.pattern).len()));
    }

    fn fit_tail(&mut self, tail: &str) {
        self.stderr_tail.clear();
        let room = MAX_BYTES.saturating_sub(self.to_json().len());
        end_of(tail, room).clone_into(&mut self.stderr_tail);
    }

    #[expect(clippy::expect_used, reason = "plain data of ours, which always has this form")]
    fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a struct of numbers, strings and timestamps is always JSON")
    }
}

/// Maximum bytes of the texts.
struct TextLimits {
    error: usize,
    hang: usize,
    exception: usize,
    pattern: usize,
    headline: usize,
    /// Bytes for each ended attempt of the gang.
    ended: usize,
}

impl TextLimits {
    /// The first entry that leaves enough room is used. The last one always leaves some.
    const SIZES: [Self; 3] = [
        Self { error: 1000, hang: hang::MAX_TEXT, exception: 400, pattern: 240, headline: 500, ended: 700 },
        Self { error: 1000, hang: 400, exception: 300, pattern: 120, headline: 300, ended: 300 },
        Self { error: 1000, hang: 0, exception: 120, pattern: 30, headline: 120, ended: 80 },
    ];
}

/// The longest end of `text` that takes at most `room` bytes in JSON, in whole lines if one fits.
fn end_of(text: &str, room: usize) -> &str {
    let mut used = 0;
    let mut start = text.len();
    for (at, c) in text.char_indices().rev() {
        used += json_bytes(c);
        if used > room {
            let cut = &text[start..];
            let (first, rest) = cut.split_once('\n').unwrap_or((cut, ""));
            let at_line = text[..start].ends_with('\n');
            return if at_line || rest.is_empty() || first.len() > cut.len() / 2 { cut } else { rest };
        }
        start = at;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attempt::{AttemptEnd, RepeatedFailure, RestartHistory};
    use crate::checkpoints::{GoodCheckpoint, Problem, ProblemKind};
    use crate::objective::{AgentCount, MAX_RUNGS, Measurement, RungReading};
    use crate::reason::Reason;
    use crate::stacks::StackLocation;
    use proptest::prelude::*;

    fn report(stderr: &[u8]) -> Report {
        let at = |second: i64| Some(Timestamp::from_millisecond(second * 1000 + 7).unwrap());
        Report {
            version: VERSION,
            phase: Phase::Exited,
            started_at: at(1_800_000_000),
            finished_at: at(1_800_000_060),
            exit_code: Some(1),
            stderr_tail: String::from_utf8_lossy(stderr).into_owned(),
            ..Report::default()
        }
    }

    #[test]
    fn report_wire_format_is_stable() {
        let message = report(b"RuntimeError: boom\n").to_message();
        assert_eq!(
            message,
            r#"{"version":1,"attempt":0,"phase":"Exited","exitCode":1,"finishedAt":"2027-01-15T08:01:00.007Z","oomKills":0,"startedAt":"2027-01-15T08:00:00.007Z","stderrTail":"RuntimeError: boom\n"}"#
        );
        assert_eq!(Report::parse(&message), Some(report(b"RuntimeError: boom\n")));
    }

    #[test]
    fn newer_report_is_read_and_other_text_is_not() {
        let newer =
            r#"{"version":2,"phase":"Barrier","gang":{"size":3},"error":{"kind":"Cosmic","message":"m","x":1}}"#;
        let parsed = Report::parse(newer).unwrap();
        assert_eq!((parsed.version, parsed.phase), (2, Phase::Running));
        assert_eq!(parsed.error.unwrap().kind, LaunchErrorKind::LaunchFailed);
        for other in ["", "Error: x", "{}", r#"{"message":{"message":"torchelastic"}}"#, "[1]", "null"] {
            assert_eq!(Report::parse(other), None, "{other}");
        }
    }

    #[test]
    fn report_keeps_whole_stderr_lines_if_possible() {
        let lines: String = (0..1000).map(|n| format!("line {n}\n")).collect();
        let message = report(lines.as_bytes()).to_message();
        assert!(message.len() <= MAX_BYTES && message.len() > MAX_BYTES - 20, "{}", message.len());
        let tail = Report::parse(&message).unwrap().stderr_tail;
        assert!(tail.starts_with("line ") && tail.ends_with("line 999\n"));
        let endless = report(&vec![b'"'; 100_000]).to_message();
        assert!(endless.len() <= MAX_BYTES && endless.len() > MAX_BYTES - 20, "{}", endless.len());
    }

    #[test]
    fn cause_line_survives_long_trailing_output() {
        let text = format!("ValueError: the cause\n{}", "some warning of a library\n".repeat(500));
        let parsed = Report::parse(&report(text.as_bytes()).to_message()).unwrap();
        assert_eq!(parsed.headline.as_deref(), Some("ValueError: the cause"));
        assert_eq!(parsed.summary().as_deref(), Some("ValueError: the cause"));
        assert_eq!(Report::parse(&parsed.to_message()), Some(parsed), "fitting a fitted report changes nothing");
    }

    #[test]
    fn traceback_followed_by_later_output_was_caught() {
        let caught = "Traceback (most recent call last):\n  x\nModuleNotFoundError: No module named 'fast'\n";
        let time = |seconds: i64| Timestamp::from_second(1_800_000_000 + seconds).ok();
        let read = |tail: &str, python_tells: bool, seconds: i64| {
            let mut report = Report { python_tells, ..report(b"") };
            report.read_stderr(tail.to_owned(), |line| if line.contains("Error") { time(0) } else { time(seconds) });
            (report.line().unwrap().into_owned(), report.line_time)
        };
        let raised = || ("ModuleNotFoundError: No module named 'fast'".to_owned(), time(0));
        assert_eq!(read(&format!("{caught}no images\n"), true, 30), ("no images".to_owned(), time(30)));
        assert_eq!(read(&format!("{caught}no images\n"), false, 30), raised(), "its Python does not tell");
        for after in ["", "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n"] {
            assert_eq!(read(&format!("{caught}{after}"), true, 1), raised(), "{after}");
        }
        for later in [
            "wandb: Synced 5 files\n",
            "[rank1]: Exception ignored\n",
            "W1 10:00:00 torch/distributed/elastic/api.py:1] Sending process 21 closing signal SIGTERM\n",
        ] {
            assert_eq!(read(&format!("{caught}{later}"), true, 30), raised(), "{later}");
        }
    }

    #[test]
    fn panic_followed_by_later_output_was_survived() {
        let panic = "thread 'loader' panicked at src/a.rs:1:2:\nbad image\nnote: run with `RUST_BACKTRACE=1`\n";
        let time = |seconds: i64| Timestamp::from_second(1_800_000_000 + seconds).ok();
        let read = |tail: &str, seconds: i64| {
            let mut report = report(b"");
            report.read_stderr(tail.to_owned(), |line| if line.contains("panicked") { time(0) } else { time(seconds) });
            assert_eq!(Report::parse(&report.to_message()).unwrap().line(), report.line());
            (report.line().unwrap().into_owned(), report.line_time)
        };
        let panicked = || ("thread 'loader' panicked at src/a.rs:1:2: bad image".to_owned(), time(0));
        assert_eq!(read(panic, 30), panicked(), "the rest of it may take its time");
        assert_eq!(read(&format!("{panic}no images\n"), 1), panicked());
        assert_eq!(read(&format!("{panic}no images\n"), 30), ("no images".to_owned(), time(30)));
    }

    #[test]
    fn shell_exit_code_reveals_signal() {
        let signal = |code| Report { exit_code: Some(code), ..report(b"") }.own_signal();
        assert_eq!([139, 134, 1, 128, 255].map(signal), [Some(11), Some(6), None, None, None]);
        let stopped = Report { exit_code: Some(143), stopped_by: Some(15), ..report(b"") };
        assert_eq!(stopped.own_signal(), None);
    }

    /// Output as shown by DeepSpeed's launcher, which is a Python program itself.
    #[test]
    fn rank_exception_under_mpirun_is_not_treated_as_caught() {
        const RULER: &str = "--------------------------------------------------------------------------";
        let raised = "[rank3]: Traceback (most recent call last):\n[rank3]:   File \"t.py\", line 16, in <module>\n\
                      [rank3]: ValueError: label 11\n";
        let stated = format!(
            "{RULER}\nMPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD\n  Proc: [[17647,1],3]\n  Errorcode: 1\n{RULER}\n"
        );
        let others = "frame #42: _start + 0x21\n[rank2]: Traceback (most recent call last):\n\
                      [rank2]: torch.distributed.DistNetworkError: Broken pipe\n";
        let closing = format!(
            "{RULER}\nprterun has exited due to process rank 3 with PID 42 on node x calling\n\"abort\".\n{RULER}\n"
        );
        let time = |line: &str| Timestamp::from_second(1_800_000_000 + i64::from(!line.contains("label 11")) * 5).ok();
        let mut report = Report { python_tells: true, ..report(b"") };
        report.read_stderr(format!("{raised}{stated}{others}{closing}"), time);
        assert_eq!(report.line().as_deref(), Some("[rank3]: ValueError: label 11"));
        report.read_stderr(format!("{raised}{others}"), time);
        assert_eq!(report.line().as_deref(), Some("frame #42: _start + 0x21"), "without mpirun's word it was caught");
    }

    #[test]
    fn exception_stays_one_where_its_traceback_is_cut() {
        let frames = |count: usize| "[rank3]:   File \"/programs/train.py\", line 17, in main\n".repeat(count);
        for count in 0..120 {
            let mut report = report(b"");
            let traceback = format!("[rank3]: Traceback (most recent call last):\n{}", frames(count));
            report.read_stderr(format!("{traceback}[rank3]: ValueError: label 11\n{}", "x\n".repeat(20)), |_| None);
            let read = Report::parse(&report.to_message()).unwrap();
            assert_eq!(read.last_traceback().as_deref(), Some("[rank3]: ValueError: label 11"), "{count} frames");
        }
    }

    #[test]
    fn launch_error_is_the_summary() {
        let error = LaunchError { kind: LaunchErrorKind::CommandNotFound, message: "no train".into() };
        assert_eq!(Report { error: Some(error), ..report(b"x\n") }.summary().as_deref(), Some("no train"));
        assert_eq!(report(b"").summary(), None);
    }

    #[test]
    fn exception_is_the_summary_if_it_ended_the_program() {
        let raised = |second: i64| {
            let time = Timestamp::from_millisecond(second * 1000).unwrap();
            let exception =
                Exception { class: "ValueError".into(), message: "bad".into(), time, ..Exception::default() };
            Report { exception: Some(exception), ..report(b"OSError: the tail\n") }
        };
        assert_eq!(raised(1_800_000_055).summary().as_deref(), Some("ValueError: bad"));
        assert_eq!(raised(1_799_990_000).summary().as_deref(), Some("OSError: the tail"), "it went on for hours");
        let mut echo = raised(1_800_000_055);
        echo.exception.as_mut().unwrap().message = "gloo: Connection reset by peer".to_owned();
        assert_eq!(echo.summary().as_deref(), Some("OSError: the tail"));
        echo.stderr_tail.clear();
        assert_eq!(echo.summary().as_deref(), Some("ValueError: gloo: Connection reset by peer"));
        let running = Report { finished_at: None, ..raised(1_799_990_000) };
        assert_eq!(running.summary().as_deref(), Some("ValueError: bad"));
        assert_eq!(Report::parse(&running.to_message()), Some(running));
    }

    #[test]
    fn error_patterns_count_only_if_program_ended_soon_after() {
        let sign = |second: i64, kind| {
            let time = Timestamp::from_second(second).unwrap();
            ErrorMatch { kind, time, last_time: time, text: "Epoch 2 loss: nan".into(), count: 1 }
        };
        let signs =
            vec![sign(1_799_990_000, ErrorPattern::CudaOutOfMemory), sign(1_800_000_055, ErrorPattern::NanLoss)];
        let mut report = Report { error_patterns: signs, ..report(b"KeyError: 1\n") };
        assert_eq!(report.last_match(ErrorPattern::CudaOutOfMemory), None);
        assert!(report.last_match(ErrorPattern::NanLoss).is_some());
        assert_eq!(report.summary().as_deref(), Some("KeyError: 1"), "evidence, and no verdict");
        report.error_patterns[0].last_time = Timestamp::from_second(1_800_000_000).unwrap();
        assert!(report.last_match(ErrorPattern::CudaOutOfMemory).is_some());
        report.ended_for = Some(ErrorPattern::NanLoss);
        assert_eq!(report.summary().as_deref(), Some("Epoch 2 loss: nan"));
        assert!(report.to_message().contains(r#""endedFor":"NanLoss""#));
    }

    #[test]
    fn report_keeps_rungs_longer_than_stderr() {
        let rungs = |number: i64| (0..number).map(|n| RungReading { step: 1 << n, value: 0.5 }).collect::<Vec<_>>();
        let objective = Objective { count: 40, rungs: rungs(40), ..Objective::default() };
        let with = |stderr: &[u8]| {
            let message = Report { objective: Some(objective.clone()), ..report(stderr) }.to_message();
            Report::parse(&message).unwrap().objective.unwrap()
        };
        for stderr in [&b"KeyError: 1\n"[..], &[b'x'; 9000]] {
            let read = with(stderr);
            assert_eq!((read.left_out, &read.rungs[..]), (16, &rungs(40)[16..]), "the last ones");
        }
    }

    #[test]
    fn report_carries_progress_reached() {
        let reached =
            LastProgress { epoch: Some(1.5), step: Some(300.0), loss: Some(f64::INFINITY), ..LastProgress::default() };
        let message = Report { progress: Some(reached), ..report(b"") }.to_message();
        assert!(message.contains(r#""progress":{"epoch":1.5,"step":300,"loss":"+Inf"}"#), "{message}");
        assert_eq!(Report::parse(&message).unwrap().progress, Some(reached));
        assert_eq!(LastProgress::from_progress(&Progress::default()), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn any_stderr_fits_into_report(bytes in prop::collection::vec(any::<u8>(), 0..20_000)) {
            let message = report(&bytes).to_message();
            prop_assert!(message.len() <= MAX_BYTES);
            prop_assert!(Report::parse(&message).is_some());
        }

        #[test]
        fn any_text_fits_into_report(texts in prop::collection::vec("(?s).{0,5000}", 8), number: f64) {
            let [tail, error, headline, class, message, file, thread, sign] = texts.try_into().unwrap();
            let error = Some(LaunchError { kind: LaunchErrorKind::LaunchFailed, message: error });
            let (line, rank) = (Some(u64::MAX), Some(u64::MAX));
            let (file, thread, time) = (Some(file), Some(thread), Timestamp::MAX);
            let within = file.clone();
            let by_program = Some(false);
            let exception = Exception { rank, thread, by_program, time, class, file, line, within, message };
            let hang = Some(Hang { place: StackLocation::Elsewhere, rank, time, text: sign.clone() });
            let sign = ErrorMatch { kind: ErrorPattern::CudaOutOfMemory, time, last_time: time, text: sign, count: u64::MAX };
            let n = Some(number);
            let kept = || Some(GoodCheckpoint { path: "p".repeat(900), step: Some(u64::MAX), epoch: n, time: Some(time), bytes: u64::MAX, metric: n });
            let problem = Problem { kind: ProblemKind::CopyFailing, message: "m".repeat(900) };
            let checkpoints = Checkpoints {
                latest: kept(),
                best: kept(),
                resumed_from: kept(),
                copied: kept(),
                to_copy: Some("p".repeat(900)),
                problems: vec![problem; 3],
                ..Checkpoints::default()
            };
            let end = AttemptEnd { time: Some(time), worker: Some(u32::MAX), ..AttemptEnd::new(u32::MAX, Reason::CudaOutOfMemory, "x".repeat(768)) };
            let repeated = RepeatedFailure { reason: "CudaOutOfMemory".to_owned(), step: i64::MAX, checkpoint: "p".repeat(160), times: 3 };
            let restarts = RestartHistory { repeated: Some(repeated), stopped: Some("s".repeat(160)), ..RestartHistory::default() };
            let gang = GangEnd { restarts, ended: vec![end; 3] };
            let progress = LastProgress { epoch: n, epochs: n, step: n, steps: n, percent: n, loss: n, time: Some(time) };
            let reading = Measurement { value: f64::MIN_POSITIVE, step: Some(i64::MAX) };
            let rung = RungReading { step: i64::MAX, value: -f64::MIN_POSITIVE };
            let objective = Objective {
                count: u64::MAX,
                last: Some(reading),
                best: Some(reading),
                rungs: vec![rung; MAX_RUNGS],
                agents: vec![AgentCount { since: i64::MIN, attempt: u32::MAX, count: u64::MAX }; 3],
                ..Objective::default()
            };
            let full = Report {
                error,
                objective: Some(objective),
                headline: Some(headline),
                stderr_tail: tail,
                oom_kills: u64::MAX,
                oom_time: Some(time),
                gpu_memory: Some(GpuMemory { index: u32::MAX, used: f64::MAX, total: f64::MIN_POSITIVE, time }),
                exception: Some(exception),
                error_patterns: vec![sign; 9],
                ended_for: Some(ErrorPattern::CudaOutOfMemory),
                hang,
                unkillable: Some(Unkillable { time, text: "x".repeat(MAX_UNKILLABLE) }),
                progress: Some(progress),
                gang: Some(gang),
                checkpoints: Some(checkpoints),
                ..report(b"")
            };
            for full in [Report { exception: None, ..full.clone() }, Report { error: None, ..full.clone() }, full] {
                let message = full.to_message();
                prop_assert!(message.len() <= MAX_BYTES, "{} bytes", message.len());
                let read = Report::parse(&message).unwrap();
                // In any case the cause is kept, and the checkpoint that has yet to be copied.
                prop_assert_eq!(read.error.is_some(), full.error.is_some());
                prop_assert!(read.exception.is_some() || read.error.is_some());
                prop_assert!(read.checkpoints.unwrap().to_copy.is_some());
                let objective = read.objective.unwrap();
                prop_assert_eq!((objective.last, objective.best, objective.count), (Some(reading), Some(reading), u64::MAX));
            }
        }
    }
}
