//! Everything that lives as long as the container: PID 1 with its signals, the server, the termination message.
//!
//! [`Container`] has the only loop of the agent, which goes on during and between runs of the program. Each turn takes
//! in all pending signals. A stop from outside holds for the container, so that no run begins after it.

use crate::agent_log::AgentLog;
use crate::attempt::Attempt;
use crate::channels::Channels;
use crate::checkpoints::CheckpointManager;
use crate::context::{AgentContext, Options};
use crate::gang::GangMember;
use crate::message::MessageFile;
use crate::panics::log_panics;
use crate::progress::objective::ObjectiveTracker;
use crate::run::descendants::{Reaped, reap};
use crate::run::unstarted::{never_started, unstarted};
use crate::run::view::CurrentRun;
use crate::run::{Next, Run};
use crate::serve::gpu::Gpus;
use crate::serve::ports::listen;
use crate::serve::status::StatusSource;
use crate::serve::{Server, local};
use crate::signals::Signals;
use crate::wake::Wake;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use protocol::objective::ObjectiveRule;
use protocol::proof::AnswerKey;
use protocol::report::{LaunchError, LaunchErrorKind};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a program's start may be delayed so that the agent's own log lines precede the program's output.
const WORDS_FIRST: Duration = Duration::from_secs(1);

/// The agent in its container. Of one run, it keeps only the message until the next run begins.
pub struct Container {
    context: AgentContext,
    signals: Signals,
    message: MessageFile,
    current: Arc<CurrentRun>,
    /// This agent's part in its gang, until the gang runs.
    gang_member: Option<GangMember>,
    /// The signal that asked the container to stop.
    stopped_by: Option<i32>,
}

impl Container {
    /// Makes this process the reaper of orphaned processes, and opens everything that serves every run.
    ///
    /// It has to be called by the process's first thread, before there are others.
    ///
    /// # Errors
    /// Only where the kernel denies what every process may have: a signalfd, an eventfd, a thread.
    pub fn open(options: Options) -> io::Result<Self> {
        // Before any child can end.
        nix::sys::prctl::set_child_subreaper(true)?;
        let signals = Signals::take_over()?;
        let wake = Arc::new(Wake::new()?);
        let log = AgentLog::new(Arc::clone(&wake));
        log_panics(&log);
        let mut message = MessageFile::open(&options.termination_log, Arc::clone(&log))?;
        let port = options.metrics_port.filter(|&port| port != 0);
        let public = port.and_then(|port| {
            let unseen = |error| {
                log.say(format_args!(
                    "can't serve --metrics-port {port}: {error}; the progress of the program can't be read"
                ));
            };
            listen(port).map_err(unseen).ok()
        });
        let fail = |message: &mut MessageFile, error: String| {
            message.write(&unstarted(0, LaunchError { kind: LaunchErrorKind::LaunchFailed, message: error.clone() }));
            io::Error::other(error)
        };
        let answer_key = options.answer_key.as_deref().map(read_answer_key).transpose();
        let answer_key = answer_key.map_err(|error| fail(&mut message, error))?;
        let current = Arc::new(CurrentRun::default());
        let of_gang = options.gang.as_ref();
        let manager = options
            .checkpoints
            .as_deref()
            .and_then(|policy| CheckpointManager::new(policy, of_gang, &current, &wake, &log));
        let reported = Arc::default();
        let kept = of_gang.and_then(GangMember::report_file);
        let track = |rule: &ObjectiveRule| Arc::new(ObjectiveTracker::new(rule.clone(), kept.as_deref()));
        let objective = options.objective.as_ref().map(track);
        if let Some(objective) = &objective {
            message.include(Arc::clone(objective));
        }
        // GPUs are only watched if there is a use for the figures.
        let gpus = if public.is_some() || options.hang.is_some() { Gpus::watch() } else { Gpus::default() };
        let in_gang = options.gang.is_some();
        let (run, gang, asked) = (Arc::clone(&current), Arc::clone(&reported), gpus.clone());
        let source = StatusSource::new(answer_key, run, manager.clone(), objective.clone(), gang, in_gang, asked);
        let server = Server::start(public, source, &current, manager.as_ref())?;
        if let Some(state) = &options.state
            && let Err(error) = local::serve(&server.runtime, state, manager.clone())
        {
            log.say(format_args!(
                "can't answer `agent stacks` and `agent checkpoints backup` in {}: {error}",
                state.display()
            ));
        }
        let join = |gang| GangMember::join(gang, options.grace, &server.runtime, &wake, &log, &reported);
        let gang_member = options.gang.as_ref().map(join).transpose();
        let gang_member = gang_member.map_err(|error| fail(&mut message, error.to_string()))?;
        if let Some(copy) = gang_member.as_ref().and_then(GangMember::report_copy) {
            message.copy_to(copy);
        }
        let channels = Channels::new(server.runtime, server.local_url);
        let context =
            AgentContext { options, manager, signal_mask: signals.mask_before, channels, gpus, objective, wake, log };
        Ok(Self { context, signals, message, current, gang_member, stopped_by: None })
    }

    /// Waits until all log lines so far are written, so that they precede the program's output, but not for long.
    pub(super) fn say_words(&mut self) -> io::Result<()> {
        let words_first = Instant::now() + WORDS_FIRST;
        while !self.context.log.all_said() && Instant::now() < words_first {
            self.turn(None, Some(words_first))?;
        }
        Ok(())
    }

    /// This agent's part in its gang, once.
    pub(super) fn take_party(&mut self) -> Option<GangMember> {
        self.gang_member.take()
    }

    /// Runs the command once, without a gang; returns the agent's exit code.
    pub(super) fn run_alone(&mut self, attempt: &Attempt) -> io::Result<i32> {
        if let Some(signal) = self.stopped_by {
            self.message.write(&never_started(attempt.number.unwrap_or(0), signal));
            return Ok(128 + signal);
        }
        let (attempt, obstacle) = match self.choose(attempt)? {
            Some(Ok(attempt)) => (attempt, None),
            Some(Err(obstacle)) => (attempt.clone(), Some(obstacle)),
            None => return Ok(128 + self.stopped_by.unwrap_or(Signal::SIGTERM as i32)),
        };
        let mut run = self.start(&attempt, obstacle)?;
        while let Next::Turn { until } = run.advance(&mut self.message) {
            self.turn(Some(&mut run), until)?;
        }
        Ok(run.exit_code())
    }

    /// Chooses the checkpoint that the run resumes from. Returns `None` if the container was asked to stop meanwhile.
    /// It may take long, because a checkpoint is read whole, or fetched, before it is used.
    fn choose(&mut self, attempt: &Attempt) -> io::Result<Option<Result<Attempt, LaunchError>>> {
        let Some(manager) = self.context.manager.clone() else { return Ok(Some(Ok(attempt.clone()))) };
        manager.begin(attempt.number.unwrap_or(0), None, None)?;
        loop {
            if let Some(signal) = self.stopped_by {
                self.message.write(&never_started(attempt.number.unwrap_or(0), signal));
                return Ok(None);
            }
            match manager.chosen() {
                None => self.turn(None, None)?,
                Some(Err(obstacle)) => return Ok(Some(Err(obstacle))),
                Some(Ok(choice)) => return Ok(Some(Ok(attempt.from(&choice)))),
            }
        }
    }

    /// Waits between two runs, for `time` or until the container is asked to stop. Returns the signal that asked for
    /// it.
    ///
    /// # Errors
    /// Only where the kernel denies what every process may have.
    pub fn wait(&mut self, time: Duration) -> io::Result<Option<i32>> {
        let until = Instant::now() + time;
        while self.stopped_by.is_none() && Instant::now() < until {
            self.turn(None, Some(until))?;
        }
        Ok(self.stopped_by)
    }

    /// The context of its runs.
    pub(super) fn context(&self) -> &AgentContext {
        &self.context
    }

    /// Its termination message.
    pub(super) fn message(&mut self) -> &mut MessageFile {
        &mut self.message
    }

    /// The signal that asked it to stop.
    pub(super) fn stopped_by(&self) -> Option<i32> {
        self.stopped_by
    }

    /// Starts the program, unless there is an obstacle.
    ///
    /// # Errors
    /// Only where the kernel denies a thread.
    pub(super) fn start(&mut self, attempt: &Attempt, obstacle: Option<LaunchError>) -> io::Result<Run> {
        Run::start(&self.context, attempt, obstacle, &mut self.message, &self.current)
    }

    /// One turn of the loop. Sleeps until a signal, news of the run, or `until`, then takes in what has come. While no
    /// program runs, every signal that does not stop the container is dropped.
    pub(super) fn turn(&mut self, mut run: Option<&mut Run>, until: Option<Instant>) -> io::Result<()> {
        self.sleep(until)?;
        while let Some(signal) = self.signals.next()? {
            if signal.is_stop() {
                self.stopped_by.get_or_insert(signal.number);
            }
            if let Some(run) = &mut run {
                run.on_signal(signal);
            }
        }
        loop {
            match reap() {
                Reaped::NoneEnded => return Ok(()),
                Reaped::NoneLeft => {
                    if let Some(run) = &mut run {
                        run.on_none_left();
                    }
                    return Ok(());
                }
                Reaped::Process(pid, status) => {
                    if let Some(run) = &mut run {
                        run.on_process_ended(pid, status);
                    }
                }
            }
        }
    }

    fn sleep(&self, until: Option<Instant>) -> io::Result<()> {
        let timeout = until.map_or(PollTimeout::NONE, |until| {
            // Rounded up, because waking a millisecond early would spin until the time is over.
            let millis = until.saturating_duration_since(Instant::now()).as_micros().div_ceil(1000);
            PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
        });
        let wake = &self.context.wake;
        let mut fds = [PollFd::new(self.signals.fd(), PollFlags::POLLIN), PollFd::new(wake.fd(), PollFlags::POLLIN)];
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        wake.clear();
        Ok(())
    }
}

/// Reads the key by which answers are proven.
pub(crate) fn read_answer_key(file: &Path) -> Result<AnswerKey, String> {
    let text = std::fs::read(file).map_err(|error| format!("can't read --answer-key {}: {error}", file.display()))?;
    AnswerKey::parse(&text)
        .ok_or_else(|| format!("can't use --answer-key {}: it needs 64 hexadecimal digits", file.display()))
}
