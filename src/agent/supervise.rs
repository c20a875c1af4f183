//! One run of the program, from start to the last process it leaves behind.

use crate::agent::channels::Channels;
use crate::agent::failure::oom::OomKills;
use crate::agent::message::MessageFile;
use crate::agent::now;
use crate::agent::observations::Observations;
use crate::agent::output::forwarder::Forwarder;
use crate::agent::output::parser::Parser;
use crate::agent::output::queue::Queue;
use crate::agent::run::descendants::{Reaped, descendants_of_self, reap, signal_descendants};
use crate::agent::run::expand::Variables;
use crate::agent::run::launch;
use crate::agent::run::launch::Program;
use crate::agent::wake::Wake;
use crate::protocol::error_pattern::ErrorPattern;
use crate::protocol::progress::{Source, Update};
use crate::protocol::progress_pattern::ProgressPatterns;
use crate::protocol::report::{LaunchError, LaunchErrorKind, Phase, Report, VERSION};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What is passed on to the program. The rest stays with the kernel: faults of the agent itself, and job control.
const FORWARDED: [Signal; 9] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGTERM,
    Signal::SIGCONT,
    Signal::SIGWINCH,
];
/// What processes get to end themselves that the program has left behind by its own end.
const LEFTOVER_GRACE: Duration = Duration::from_secs(5);
/// How long SIGKILL is repeated: a process that waits for a dead file server can't die, and would keep the pod.
const KILL_FOR: Duration = Duration::from_secs(10);
/// Between two rounds of SIGKILL.
const KILL_AGAIN: Duration = Duration::from_millis(20);
/// How long a reader of the output may take nothing at all after the end.
const DRAIN_IDLE: Duration = Duration::from_secs(10);
/// Between two messages while the program tells something.
const MESSAGE_EVERY: Duration = Duration::from_millis(500);

pub struct Options {
    /// The command and its arguments.
    pub argv: Vec<OsString>,
    pub attempt: Option<u32>,
    pub master_port: Option<u16>,
    /// Empty for a start from nothing.
    pub resume_from: String,
    /// Between a SIGTERM or SIGINT from outside and SIGKILL.
    pub grace: Duration,
    pub termination_log: PathBuf,
    /// Where `/status`, `/metrics` and `/healthz` are served; nowhere without one.
    pub metrics_port: Option<u16>,
    /// Regular expressions by which progress is read off the output, instead of the forms known by themselves.
    pub progress_patterns: Vec<String>,
    /// A loss that is NaN or infinite ends the program and is a failure.
    pub fail_on_nan: bool,
    /// Metrics whose every reading is kept for `/status`.
    pub watch_metrics: Vec<String>,
}

/// Runs the command until it and all its descendants have ended; returns the agent's exit code.
///
/// That is the program's own, or 128 + n if signal n ended it. A program told to stop from outside that exits 0 gives
/// 128 + n too: a pod that is evicted and exits 0 would count as finished, and never be replaced. Where a loss that is no
/// number is a failure, a program that exits 0 after one gives 1.
///
/// # Errors
/// Only where the kernel denies what every process may have: a signalfd, an eventfd, a thread.
pub fn run(options: &Options) -> io::Result<i32> {
    // Before anything can end: what nobody else adopts comes here, where it is found and reaped.
    nix::sys::prctl::set_child_subreaper(true)?;
    let mut watched = SigSet::from_iter(FORWARDED);
    watched.add(Signal::SIGCHLD);
    // Blocked in every thread, and so kept for the signalfd from the first moment on. For PID 1 it is what makes the
    // kernel deliver them at all.
    let mask = watched.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let signals = SignalFd::with_flags(&watched, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;

    let mut report = Report {
        version: VERSION,
        attempt: options.attempt.unwrap_or(0),
        started_at: Some(now()),
        ..Report::default()
    };
    let oom_kills = OomKills::start();
    let mut message = MessageFile::open(&options.termination_log);
    message.write(&report);

    let wake = Arc::new(Wake::new()?);
    let seen = Arc::new(Observations::new(Arc::clone(&wake), &options.watch_metrics));
    let queue = Arc::new(Queue::default());
    let ways = Channels::open(&seen, &queue, options.metrics_port);
    seen.complete(&mut report);
    let mut program = Program::new(&options.argv, std::env::vars_os(), &variables(options));
    ways.add_to(&mut program.env);
    let started = patterns(options).and_then(|patterns| Ok((patterns, program.start(mask)?)));
    let (patterns, started) = match started {
        Ok(started) => started,
        Err(error) => {
            eprintln!("agent: {}", error.message);
            let code = launch::exit_code(error.kind);
            (report.phase, report.finished_at, report.error) = (Phase::Exited, Some(now()), Some(error));
            message.write(&report);
            return Ok(code);
        }
    };
    report.phase = Phase::Running;
    let pump = Forwarder::start(started.stdout, started.stderr, &wake, &queue)?;
    let epochs = std::env::var("HYPERPARAM_EPOCHS").ok().and_then(|epochs| epochs.parse().ok());
    seen.progress(Source::Environment, &Update { epochs, ..Update::default() }, None);
    let reader = Parser::new(patterns, epochs, Arc::clone(&seen)).start(Arc::clone(&queue))?;
    let mut supervisor = Supervisor {
        grace: options.grace,
        fail_on_nan: options.fail_on_nan,
        signals,
        wake,
        pump,
        queue,
        reader: Some(reader),
        ways,
        seen,
        oom_kills,
        message,
        report,
        written: Instant::now(),
        program: started.pid,
        ended: None,
        kill_at: None,
        killing_since: None,
    };
    supervisor.write_message();
    supervisor.until_none_is_left()?;
    supervisor.drain()?;
    supervisor.judge_loss();
    supervisor.write_message();
    Ok(supervisor.exit_code())
}

fn patterns(options: &Options) -> Result<ProgressPatterns, LaunchError> {
    ProgressPatterns::new(&options.progress_patterns)
        .map_err(|message| LaunchError { kind: LaunchErrorKind::InvalidOption, message: format!("--{message}") })
}

/// What changes from attempt to attempt, for the program's environment and for `$(NAME)`.
fn variables(options: &Options) -> Variables {
    let mut variables = Variables::from([("RESUME_FROM_CHECKPOINT", options.resume_from.clone())]);
    if let Some(attempt) = options.attempt {
        variables.insert("ATTEMPT", attempt.to_string());
    }
    if let Some(port) = options.master_port {
        variables.insert("MASTER_PORT", port.to_string());
        variables.insert("PET_MASTER_PORT", port.to_string());
    }
    variables
}

struct Supervisor {
    grace: Duration,
    fail_on_nan: bool,
    signals: SignalFd,
    wake: Arc<Wake>,
    pump: Forwarder,
    queue: Arc<Queue>,
    reader: Option<JoinHandle<()>>,
    ways: Channels,
    seen: Arc<Observations>,
    oom_kills: Option<OomKills>,
    message: MessageFile,
    report: Report,
    /// When the message was last written.
    written: Instant,
    program: Pid,
    ended: Option<ExitStatus>,
    /// When whoever still lives gets SIGKILL: set by a signal from outside, a lost loss, and the program's end.
    kill_at: Option<Instant>,
    killing_since: Option<Instant>,
}

impl Supervisor {
    fn until_none_is_left(&mut self) -> io::Result<()> {
        while self.reap_ended() {
            if self.killing_since.is_some_and(|since| since.elapsed() > KILL_FOR) {
                let left = descendants_of_self().len();
                eprintln!(
                    "agent: {left} processes are still there {KILL_FOR:?} after SIGKILL (waiting in \
                     the kernel for a disk or file server, or of another user); giving up on them"
                );
                return Ok(());
            }
            self.end_if_lost();
            let now = Instant::now();
            let mut next = None;
            if self.kill_at.is_some_and(|at| at <= now) {
                self.killing_since.get_or_insert(now);
                signal_descendants(Signal::SIGKILL);
                next = Some(now + KILL_AGAIN);
            } else if let Some(at) = self.kill_at {
                next = Some(at);
            }
            if self.wake.has_changed() {
                let due = self.written + MESSAGE_EVERY;
                if due <= now {
                    self.write_message();
                } else {
                    next = Some(next.map_or(due, |next| next.min(due)));
                }
            }
            self.wait(next)?;
            self.take_signals()?;
        }
        Ok(())
    }

    /// Reaps what has ended; whether there is any child left.
    fn reap_ended(&mut self) -> bool {
        loop {
            match reap() {
                Reaped::NoneEnded => return true,
                Reaped::NoneLeft => return false,
                Reaped::Process(pid, status) if pid == self.program && self.ended.is_none() => self.on_end(status),
                Reaped::Process(..) => {}
            }
        }
    }

    fn on_end(&mut self, status: ExitStatus) {
        self.ended = Some(status);
        self.report.phase = Phase::Exited;
        self.report.finished_at = Some(now());
        (self.report.exit_code, self.report.signal) = (status.code(), status.signal());
        self.ways.read(&self.seen);
        self.write_message();
        // A shell dies of the SIGTERM that its python never hears of. Told to stop, those left have the rest of the
        // grace to save; else they have no business any more.
        signal_descendants(Signal::SIGTERM);
        let soon = Instant::now() + LEFTOVER_GRACE.min(self.grace);
        self.kill_at.get_or_insert(soon);
    }

    /// Ends the program if its loss is no number any more and that is a failure, the way a signal from outside would.
    fn end_if_lost(&mut self) {
        if self.ended.is_none() && self.fails_by_loss() {
            self.report.ended_for = Some(ErrorPattern::NanLoss);
            self.kill_at = Some(Instant::now() + self.grace);
            self.write_message();
            // Fails only if it has just ended.
            let _ = kill(self.program, Signal::SIGTERM);
        }
    }

    /// A program may end before its last words are read, and think that all is well.
    fn judge_loss(&mut self) {
        if self.ended.is_some_and(|status| status.success()) && self.fails_by_loss() {
            self.report.ended_for = Some(ErrorPattern::NanLoss);
        }
        // Where the program's own words still wait for their reader, these would too.
        if self.report.ended_for.is_some() && self.pump.has_ended() {
            eprintln!("agent: the loss is NaN or infinite, and failurePolicy.nanPolicy is Fail");
        }
    }

    fn fails_by_loss(&self) -> bool {
        let is_told = self.report.stopped_by.is_some() || self.report.ended_for.is_some();
        self.fail_on_nan && !is_told && self.seen.is_lost()
    }

    fn take_signals(&mut self) -> io::Result<()> {
        while let Some(info) = self.signals.read_signal()? {
            let Ok(signal) = Signal::try_from(info.ssi_signo.cast_signed()) else { continue };
            // Once the program has ended only SIGCHLD matters: the rest is being ended already. Until it is reaped,
            // which happens elsewhere, its PID is nobody else's.
            if signal == Signal::SIGCHLD || self.ended.is_some() {
                continue;
            }
            if matches!(signal, Signal::SIGTERM | Signal::SIGINT) && self.report.stopped_by.is_none() {
                self.report.stopped_by = Some(signal as i32);
                self.kill_at.get_or_insert(Instant::now() + self.grace);
                self.write_message();
            }
            // Fails only if it has just ended.
            let _ = kill(self.program, signal);
        }
        Ok(())
    }

    /// Sleeps until a signal, news of the program, or `until`.
    fn wait(&self, until: Option<Instant>) -> io::Result<()> {
        let timeout = until.map_or(PollTimeout::NONE, |until| {
            // Rounded up: a millisecond early would spin until it is over.
            let millis = until.saturating_duration_since(Instant::now()).as_micros().div_ceil(1000);
            PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
        });
        let mut fds =
            [PollFd::new(self.signals.as_fd(), PollFlags::POLLIN), PollFd::new(self.wake.fd(), PollFlags::POLLIN)];
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        self.wake.clear();
        Ok(())
    }

    /// Waits until the last words have been passed on and read. As long as their reader takes any, nothing is lost; not
    /// for ever, since a process that is no descendant (and so lives on) may have been handed the pipe.
    fn drain(&mut self) -> io::Result<()> {
        let mut passed = self.pump.passed();
        let mut give_up_at = Instant::now() + DRAIN_IDLE;
        while !self.pump.has_ended() {
            self.wait(Some(give_up_at))?;
            while self.signals.read_signal()?.is_some() {}
            if self.pump.passed() > passed {
                passed = self.pump.passed();
                give_up_at = Instant::now() + DRAIN_IDLE;
            } else if Instant::now() >= give_up_at {
                break;
            }
        }
        self.queue.close();
        if let Some(reader) = self.reader.take() {
            // It ends soon, for what waits is bounded; that it could fail harms nothing but its own findings.
            let _ = reader.join();
        }
        self.ways.read(&self.seen);
        Ok(())
    }

    fn write_message(&mut self) {
        self.wake.take_change();
        self.seen.complete(&mut self.report);
        self.pump.recent_lines(|lines| self.report.read_stderr(lines.text(), |line| lines.time_of(line)));
        let oom_kills = self.oom_kills.as_ref().map_or(0, OomKills::since_start);
        if oom_kills > self.report.oom_kills {
            (self.report.oom_kills, self.report.oom_time) = (oom_kills, Some(now()));
            self.report.memory = self.oom_kills.as_ref().map(OomKills::memory);
        }
        self.message.write(&self.report);
        self.written = Instant::now();
    }

    fn exit_code(&self) -> i32 {
        let Some(status) = self.ended else { return 128 + Signal::SIGKILL as i32 };
        match (status.code(), status.signal(), self.report.stopped_by) {
            (Some(0), ..) if self.report.ended_for.is_some() => 1,
            (Some(0), _, Some(stop)) => 128 + stop,
            (Some(code), ..) => code,
            (None, Some(signal), _) => 128 + signal,
            (None, None, _) => unreachable!("waitpid was not asked for stopped processes"),
        }
    }
}
