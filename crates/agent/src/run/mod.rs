//! One run of the program, from its start to the last output of the last process that it leaves behind.
//!
//! [`Run`] owns everything that begins and ends with the run, so that the next one starts clean. It never blocks. The
//! container's loop asks it what it waits for, and passes events to it.

pub mod descendants;
pub mod expand;
pub mod launch;
pub mod leftovers;
mod survivors;
pub mod unstarted;
pub mod view;

use crate::agent_log::AgentLog;
use crate::attempt::Attempt;
use crate::channels::RunChannels;
use crate::checkpoints::CheckpointManager;
use crate::context::{AgentContext, Options};
use crate::environment;
use crate::failure::oom::OomKills;
use crate::hang::{HangWatch, LAST_LOOK};
use crate::message::MessageFile;
use crate::now;
use crate::observations::Observations;
use crate::output::forwarder::Forwarder;
use crate::output::parser::{Parser, Parsing};
use crate::output::queue::Queue;
use crate::panics::catch_parser_panic;
use crate::progress::objective::RunObjective;
use crate::progress::text::Text;
use crate::remote::Shell;
use crate::run::descendants::{
    continue_stopped, descendants_of_self, has_helper, has_unnoticed_failure, of_program, send, signal_descendants,
};
use crate::run::launch::Program;
use crate::run::view::{CurrentRun, RunView};
use crate::serve::gpu::Gpus;
use crate::signals::ReceivedSignal;
use crate::stacks;
use crate::variables::variable;
use gang::message::Outcome;
use jiff::Timestamp;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use protocol::progress::{Source, Update};
use protocol::progress_pattern::ProgressPatterns;
use protocol::report::{LaunchError, LaunchErrorKind, Phase, Report, Unkillable, VERSION};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};
use text::error_pattern::ErrorPattern;

/// Grace for processes that the program leaves behind when it ends.
const LEFTOVER_GRACE: Duration = Duration::from_secs(5);
/// How long SIGKILL is repeated. A process that waits for a dead file server can't die, and would keep the pod.
const KILL_FOR: Duration = Duration::from_secs(10);
/// How long the agent's GPU query must be the only process seen. One look may miss a process that is forked meanwhile.
const ALONE_FOR: Duration = Duration::from_millis(200);
/// Time for a launcher to notice that one of its ranks has failed. torchrun polls every 100 ms. A launcher that gets
/// SIGTERM earlier does not report the rank, which may have failed first in the whole gang.
const NOTICE: Duration = Duration::from_secs(1);
/// Time between two rounds of SIGKILL.
const KILL_AGAIN: Duration = Duration::from_millis(20);
/// Time between two rounds once SIGKILL has had no effect for long.
const KILL_SELDOM: Duration = Duration::from_secs(1);
/// How long a reader of the output, or of the agent's log, may take nothing at all after the end.
const DRAIN_IDLE: Duration = Duration::from_secs(10);
/// Time between two messages while the program keeps reporting.
const MESSAGE_EVERY: Duration = Duration::from_millis(500);

/// One run of the program.
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts; states of a run become an enum when it is written anew"
)]
pub struct Run {
    view: Arc<RunView>,
    channels: RunChannels,
    oom_kills: Option<OomKills>,
    gpus: Gpus,
    /// When a GPU ran out of memory, if the report has how full the GPU was before.
    gpu_memory_failed: Option<Timestamp>,
    grace: Duration,
    /// How long SIGKILL may have no effect before this pod is given up, if another attempt would follow in it.
    unkillable_after: Duration,
    fail_on_nan: bool,
    /// The program is `mpirun`, or starts it.
    is_mpi: bool,
    log: Arc<AgentLog>,
    manager: Option<Arc<CheckpointManager>>,
    /// Watches for a hang while the program runs.
    hang: Option<HangWatch>,
    /// SIGTERM that the program has not received yet.
    pending_stop: Option<PendingStop>,
    report: Report,
    /// When the message was last written.
    written: Instant,
    /// What the message lacks must be written at once.
    is_urgent: bool,
    /// An uncaught exception is about to end the program. Since when that is known or the program last printed
    /// something, and how much it had printed by then.
    raised: Option<(Instant, u64)>,
    /// `None` if the program could not be started.
    process: Option<Process>,
    stage: Stage,
    /// The readers of the output have taken all of it.
    is_heard: bool,
    /// The agent was asked to terminate, and its pod will end.
    is_leaving: bool,
    /// The agent has logged that processes outlive SIGKILL.
    is_stuck: bool,
    /// A stop from outside that came after the program's own end, and the deadline for the remaining work.
    late_stop: Option<(i32, Instant)>,
}

/// SIGTERM that the program has not received yet.
#[derive(Clone, Copy)]
struct PendingStop {
    /// The latest time of the signal. The program's stacks are read before.
    by: Instant,
    /// The earliest time, if the program may be about to end by itself.
    not_before: Option<Instant>,
    /// The gang is stopping. After the signal, the program's end is not its own failure.
    is_of_gang: bool,
}

impl PendingStop {
    fn at_once() -> Self {
        Self { by: Instant::now(), not_before: None, is_of_gang: false }
    }
}

/// The program's process, and what goes with it.
struct Process {
    pid: Pid,
    ended: Option<ExitStatus>,
    /// No descendant of the process is left.
    none_left: bool,
    /// Since when the agent's own GPU query is the only process seen.
    alone_since: Option<Instant>,
    /// SIGKILL time of remaining processes. Set by an outside signal, a NaN or infinite loss, and the program's end.
    kill_at: Option<Instant>,
    killing_since: Option<Instant>,
    forwarder: Forwarder,
    parsing: Parsing,
}

/// What the run waits for.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// The end of the program and of all processes that it leaves behind.
    Running,
    /// The readers of the last output. Nothing is lost as long as they take any. The wait is bounded, because a process
    /// that is no descendant, and so lives on, may hold the pipe.
    Forwarding { passed: u64, give_up_at: Instant },
    /// The parser, which ends soon because its queue is bounded.
    Parsing,
    /// The checkpoint manager, which looks at the program's last checkpoints and copies those that would be lost.
    Keeping { give_up_at: Instant },
    /// The agent's log.
    Speaking { give_up_at: Instant },
    /// Nothing more.
    Over,
}

/// What the loop does next for a run.
#[derive(Clone, Copy, Debug)]
pub enum Next {
    /// Advance the run again on the next event, at the latest at `until`.
    Turn { until: Option<Instant> },
    /// The run is over.
    Over,
}

impl Run {
    /// Starts the program, unless there is an obstacle. If it can't be started, the report says why, and the run is
    /// over soon.
    ///
    /// # Errors
    /// Only if the kernel denies a thread.
    pub fn start(
        context: &AgentContext,
        attempt: &Attempt,
        obstacle: Option<LaunchError>,
        message: &mut MessageFile,
        current: &CurrentRun,
    ) -> io::Result<Self> {
        let options = &context.options;
        // Before the first file of this run exists.
        options.leftovers.clear();
        let view = Arc::new(RunView {
            secret: format!("{:032x}", rand::random::<u128>()),
            observations: Arc::new(Observations::new(
                Arc::clone(&context.wake),
                &options.watch_metrics,
                context.objective.clone().map(|objective| RunObjective::new(objective, attempt.number.unwrap_or(0))),
            )),
            output: Arc::new(Queue::default()),
        });
        let mut run = Self {
            channels: context.channels.open(&view),
            oom_kills: OomKills::start(),
            gpus: context.gpus.clone(),
            gpu_memory_failed: None,
            grace: options.grace,
            unkillable_after: options.unkillable_after,
            fail_on_nan: options.fail_on_nan,
            is_mpi: attempt.shell.is_some(),
            log: Arc::clone(&context.log),
            manager: context.manager.clone(),
            hang: None,
            pending_stop: None,
            report: Report {
                version: VERSION,
                attempt: attempt.number.unwrap_or(0),
                started_at: Some(now()),
                gang: attempt.gang.clone(),
                ..Report::default()
            },
            is_leaving: false,
            is_stuck: false,
            written: Instant::now(),
            is_urgent: false,
            raised: None,
            process: None,
            stage: Stage::Running,
            is_heard: true,
            late_stop: None,
            view: Arc::clone(&view),
        };
        run.write_message(message);
        current.set(view);
        let launched = match obstacle {
            Some(obstacle) => Err(obstacle),
            None => run.launch(context, attempt)?,
        };
        match launched {
            Ok(process) => {
                run.process = Some(process);
                let is_alone = attempt.gang.is_none();
                let watch = |policy| HangWatch::start(policy, is_alone, &run.view, context.gpus.clone(), &run.log);
                run.hang = options.hang.map(watch).transpose()?;
                run.report.phase = Phase::Running;
            }
            Err(error) => {
                run.log.say(&error.message);
                (run.report.phase, run.report.finished_at, run.report.error) =
                    (Phase::Exited, Some(now()), Some(error));
                run.stage = Stage::speaking();
            }
        }
        run.write_message(message);
        Ok(run)
    }

    fn launch(&self, context: &AgentContext, attempt: &Attempt) -> io::Result<Result<Process, LaunchError>> {
        let options = &context.options;
        let state = options.gang.as_ref().and_then(|gang| gang.state.as_deref());
        let served = match attempt.shell.as_deref().map(|shell| prepare(shell, state)).transpose() {
            Ok(served) => served.flatten(),
            Err(error) => return Ok(Err(error)),
        };
        let more = options.resume_args.iter().filter(|_| !attempt.resume_from.is_empty());
        let argv = served.unwrap_or_else(|| options.argv.iter().chain(more).cloned().collect());
        let variables = environment::for_attempt(attempt);
        let of_program = environment::of_program(&variables, &options.withheld);
        if let Some(folder) = state
            && let Err(error) = environment::leave(folder, &of_program)
        {
            self.log.say(format_args!("can't leave the variables for a shell in {}: {error}", folder.display()));
        }
        let mut program = Program::new(&argv, std::env::vars_os(), &variables, of_program);
        self.channels.add_to(&mut program.env);
        let started =
            patterns(&context.options).and_then(|patterns| Ok((patterns, program.start(context.signal_mask)?)));
        let (patterns, started) = match started {
            Ok(started) => started,
            Err(error) => return Ok(Err(error)),
        };
        let epochs = variable("HYPERPARAM_EPOCHS").and_then(|epochs| epochs.parse().ok());
        let observations = &self.view.observations;
        observations.progress(Source::Environment, &Update { epochs, ..Update::default() }, None);
        let options = &context.options;
        let objective = options.objective.iter().map(|objective| objective.metric.as_str());
        let text = Text::new(epochs).naming(options.watch_metrics.iter().map(String::as_str).chain(objective));
        Ok(Ok(Process {
            pid: started.pid,
            ended: None,
            none_left: false,
            alone_since: None,
            kill_at: None,
            killing_since: None,
            forwarder: Forwarder::start(started.stdout, started.stderr, &self.view)?,
            parsing: Parser::new(patterns, text, Arc::clone(observations)).start(&self.view)?,
        }))
    }

    /// Does what can be done by now, and returns what to wait for.
    pub fn advance(&mut self, message: &mut MessageFile) -> Next {
        loop {
            let step = match self.stage {
                Stage::Running => self.watch(message),
                Stage::Forwarding { passed, give_up_at } => self.forward(passed, give_up_at),
                Stage::Parsing => self.parse(message),
                Stage::Keeping { give_up_at } => self.keep(message, give_up_at),
                Stage::Speaking { give_up_at } => self.speak(give_up_at),
                Stage::Over => return Next::Over,
            };
            match step {
                StageOutcome::Stay { until } => return Next::Turn { until },
                StageOutcome::Go(stage) => self.stage = stage,
            }
        }
    }

    /// Handles a signal to the agent, and passes it on to the program.
    pub fn on_signal(&mut self, signal: ReceivedSignal) {
        self.is_leaving |= signal.is_stop();
        let Some(process) = &mut self.process else { return };
        if signal.is_stop() && process.ended.is_some() {
            self.late_stop.get_or_insert((signal.number, Instant::now() + self.grace));
        }
        // Once the program has ended, only its children are left, and these are being ended already. Its PID belongs to
        // no other process until it is reaped, which happens elsewhere.
        if signal.is_of_child() || process.ended.is_some() {
            return;
        }
        if signal.is_stop() && self.report.stopped_by.is_none() {
            (self.report.stopped_by, self.report.stopped_at) = (Some(signal.number), Some(now()));
            process.kill_at.get_or_insert(Instant::now() + self.grace);
            self.is_urgent = true;
        }
        send(process.pid, signal.number);
        if signal.is_stop() {
            continue_stopped();
        }
    }

    /// Stops the program with the gang: SIGTERM, unless it had one already, and SIGKILL after the grace for what is
    /// left. The grace may shorten an earlier one.
    pub fn stop(&mut self, grace: Duration) {
        let now = Instant::now();
        let Some((pid, has_ended)) = self.process.as_ref().map(|process| (process.pid, process.ended.is_some())) else {
            return;
        };
        if has_ended {
            self.need_not_wait();
        } else if !self.has_cause() {
            if let Some(hang) = &self.hang {
                hang.look_a_last_time();
            }
            let not_before = has_unnoticed_failure(pid).then(|| now + NOTICE.min(grace / 2));
            self.pending_stop = Some(PendingStop { by: now + LAST_LOOK.min(grace / 2), not_before, is_of_gang: true });
        }
        if let Some(process) = &mut self.process {
            process.kill_at = Some(process.kill_at.map_or(now + grace, |known| known.min(now + grace)));
        }
        self.send_sigterm();
    }

    /// Lets the work after the program's own end wait for the next attempt, unless none follows in this pod.
    fn need_not_wait(&mut self) {
        if !self.is_leaving {
            self.late_stop = Some((Signal::SIGTERM as i32, Instant::now()));
        }
    }

    /// Whether the program has failed by itself, even if its end is not reaped or reported yet.
    pub fn is_failing(&self) -> bool {
        let has_ended = self.process.as_ref().is_none_or(|process| process.ended.is_some());
        let has_failed = has_ended && self.exit_code() != 0;
        (has_failed || self.report.ended_for.is_some()) && self.report.stopped_by.is_none()
    }

    /// How the run ended, once it is over.
    pub fn outcome(&self) -> Outcome {
        match (self.exit_code(), self.report.stopped_by) {
            _ if self.is_unkillable() => Outcome::Failed,
            (_, Some(_)) => Outcome::Stopped,
            (0, None) => Outcome::Succeeded,
            _ => Outcome::Failed,
        }
    }

    /// Whether the program reports no steps and shows no sign of life.
    pub fn is_idle(&self) -> bool {
        self.hang.as_ref().is_some_and(HangWatch::is_idle)
    }

    /// Notes whether the whole gang is idle, as far as this agent knows.
    pub fn note_gang(&self, all_are_idle: bool) {
        if let Some(hang) = &self.hang {
            hang.note_gang(all_are_idle);
        }
    }

    /// Whether the run left processes that SIGKILL does not end, so that no other run may follow in this pod.
    pub fn is_unkillable(&self) -> bool {
        self.report.unkillable.is_some()
    }

    /// The run's final report.
    pub fn into_report(self) -> Report {
        self.report
    }

    /// Notes that a process has ended and was reaped: the program itself, or a process without another parent.
    pub fn on_process_ended(&mut self, pid: Pid, status: ExitStatus) {
        let Some(process) = self.process.as_mut().filter(|process| process.pid == pid && process.ended.is_none())
        else {
            return;
        };
        process.ended = Some(status);
        self.report.finished_at = Some(now());
        (self.report.exit_code, self.report.signal) = (status.code(), status.signal());
    }

    /// Notes that no process is left below the agent.
    pub fn on_none_left(&mut self) {
        if let Some(process) = &mut self.process {
            process.none_left = true;
        }
    }

    /// The agent's exit code for this run. The exit code of a whole container is derived from it.
    pub fn exit_code(&self) -> i32 {
        let Some(process) = &self.process else {
            return launch::exit_code(self.report.error.as_ref().map(|error| error.kind).unwrap_or_default());
        };
        let Some(status) = process.ended else { return 128 + Signal::SIGKILL as i32 };
        match (status.code(), status.signal(), self.report.stopped_by) {
            (Some(0), ..) if self.report.ended_for.is_some() || self.is_unkillable() => 1,
            (Some(0), _, Some(stop)) => 128 + stop,
            (Some(code), ..) => code,
            (None, Some(signal), _) => 128 + signal,
            (None, None, _) => unreachable!("waitpid was not asked for stopped processes"),
        }
    }

    /// Keeps the message up to date and ends the processes that have to end, until none is left.
    fn watch(&mut self, message: &mut MessageFile) -> StageOutcome {
        self.on_program_ended(message);
        self.end_if_lost();
        self.end_if_hanging();
        let ends_at = self.end_if_raised();
        let asked_at = self.send_sigterm();
        let look_at = self.look_for_survivors();
        let Some(process) = &self.process else { return StageOutcome::Go(Stage::speaking()) };
        let killing_for = process.killing_since.map_or(Duration::ZERO, |since| since.elapsed());
        let is_stuck = killing_for > KILL_FOR;
        // In a gang, another attempt must not begin beside them, so the pod ends. Otherwise it need not wait for them.
        if !process.none_left && self.may_be_followed() && killing_for > self.unkillable_after {
            self.give_up_pod(message);
        } else if !process.none_left && !self.may_be_followed() && is_stuck {
            self.log_survivors("giving up on them");
        } else if !process.none_left {
            if is_stuck && !self.is_stuck {
                self.log_survivors("the gang waits for them");
                self.is_stuck = true;
            }
            return self.stay(message, [asked_at, ends_at, look_at], is_stuck);
        }
        let passed = self.process.as_ref().map_or(0, |process| process.forwarder.passed());
        StageOutcome::Go(Stage::forwarding(passed))
    }

    /// Sends SIGKILL if that is due, and keeps the message up to date.
    fn stay(&mut self, message: &mut MessageFile, due: [Option<Instant>; 3], is_stuck: bool) -> StageOutcome {
        let Some(process) = &mut self.process else { return StageOutcome::Go(Stage::speaking()) };
        let now = Instant::now();
        let mut until = process.kill_at.into_iter().chain(due.into_iter().flatten()).min();
        if process.kill_at.is_some_and(|at| at <= now) {
            process.killing_since.get_or_insert(now);
            signal_descendants(Signal::SIGKILL);
            until = Some(now + if is_stuck { KILL_SELDOM } else { KILL_AGAIN });
        }
        if self.is_urgent || self.view.observations.changes.has_changed() {
            let due = self.written + MESSAGE_EVERY;
            if self.is_urgent || due <= now {
                self.write_message(message);
            } else {
                until = Some(until.map_or(due, |until| until.min(due)));
            }
        }
        StageOutcome::Stay { until }
    }

    /// Whether another attempt may follow in this pod.
    fn may_be_followed(&self) -> bool {
        self.report.gang.is_some() && !self.is_leaving
    }

    /// The agent's own GPU query may hang in the driver, and it is not a process of the program. The kernel reports
    /// only that no child is left at all. While the query lives, the agent therefore looks at the processes. Returns
    /// when to look again.
    fn look_for_survivors(&mut self) -> Option<Instant> {
        let process = self.process.as_mut().filter(|process| process.ended.is_some() && !process.none_left)?;
        let processes = descendants_of_self();
        if !has_helper(&processes) {
            process.alone_since = None;
            return None;
        }
        let now = Instant::now();
        process.alone_since = of_program(processes).is_empty().then(|| process.alone_since.unwrap_or(now));
        process.none_left = process.alone_since.is_some_and(|since| now.duration_since(since) >= ALONE_FOR);
        Some(now + KILL_AGAIN)
    }

    /// Gives this pod up. Killed processes do not end, so it can run nothing any more, and its node is the reason.
    fn give_up_pod(&mut self, message: &mut MessageFile) {
        let left = of_program(descendants_of_self());
        let text = survivors::describe(&left, self.unkillable_after, stacks::waits_in);
        self.log.say(format_args!("{text}; this pod can run no other attempt, and ends"));
        self.report.unkillable = Some(Unkillable { time: now(), text });
        self.report.phase = Phase::Exited;
        self.report.finished_at.get_or_insert_with(now);
        self.write_message(message);
    }

    fn log_survivors(&self, what_follows: &str) {
        let left = of_program(descendants_of_self()).len();
        self.log.say(format_args!(
            "{left} processes are still there {KILL_FOR:?} after SIGKILL (waiting in the kernel for a disk or file server, or \
             of another user); {what_follows}"
        ));
    }

    /// Writes the program's end into the message, once, and sends SIGTERM to the processes that it leaves behind.
    fn on_program_ended(&mut self, message: &mut MessageFile) {
        let has_ended = self.process.as_ref().is_some_and(|process| process.ended.is_some());
        if !has_ended || self.report.phase == Phase::Exited {
            return;
        }
        self.report.phase = Phase::Exited;
        if self.is_stopping() {
            self.need_not_wait();
        }
        (self.hang, self.pending_stop) = (None, None);
        self.channels.read(&self.view.observations);
        self.write_message(message);
        // A shell dies of a SIGTERM that its Python child never receives. In a stop, the remaining processes have the
        // rest of the grace to save. Otherwise they have no work left.
        signal_descendants(Signal::SIGTERM);
        let soon = Instant::now() + LEFTOVER_GRACE.min(self.grace);
        if let Some(process) = &mut self.process {
            process.kill_at.get_or_insert(soon);
        }
    }

    /// Ends the program as a signal from outside would, if its loss is NaN or infinite and that is a failure.
    fn end_if_lost(&mut self) {
        if !self.fails_by_loss() {
            return;
        }
        if let Some(process) = self.process.as_mut().filter(|process| process.ended.is_none()) {
            process.kill_at = Some(Instant::now() + self.grace);
            self.report.ended_for = Some(ErrorPattern::NanLoss);
            self.is_urgent = true;
            send(process.pid, Signal::SIGTERM as i32);
        }
    }

    /// Ends the program as a signal from outside would, if it hangs and that is a failure.
    fn end_if_hanging(&mut self) {
        let ends = self.hang.as_ref().is_some_and(HangWatch::ends);
        if self.has_cause() || !ends || !self.view.observations.is_hanging() {
            return;
        }
        if let Some(process) = self.process.as_mut().filter(|process| process.ended.is_none()) {
            process.kill_at = Some(Instant::now() + self.grace);
            self.report.ended_for = Some(ErrorPattern::Hang);
            self.is_urgent = true;
            self.pending_stop = Some(PendingStop::at_once());
        }
    }

    /// Ends the program if an uncaught exception can't. MXNet waits at exit for workers that wait for it. The program
    /// gets the grace for that, counted from its last output. Returns when that is over.
    fn end_if_raised(&mut self) -> Option<Instant> {
        let process = self.process.as_mut().filter(|process| process.ended.is_none() && process.kill_at.is_none())?;
        if !self.view.observations.program_has_raised() {
            return None;
        }
        let (now, printed) = (Instant::now(), self.view.observations.printed());
        let (since, _) = *self.raised.take_if(|(_, before)| *before == printed).get_or_insert((now, printed));
        self.raised = Some((since, printed));
        let at = since + self.grace;
        if now < at {
            return Some(at);
        }
        process.kill_at = Some(now + self.grace);
        self.is_urgent = true;
        self.log.say("an exception has ended the program, but its process is still running: the agent stops it");
        self.pending_stop = Some(PendingStop::at_once());
        None
    }

    /// Sends SIGTERM to the program once its stacks are read. Returns when that has to be done, if it is not done yet.
    fn send_sigterm(&mut self) -> Option<Instant> {
        let (stop, process) = (self.pending_stop?, self.process.as_ref().filter(|process| process.ended.is_none())?);
        let is_looking = self.hang.as_ref().is_some_and(HangWatch::is_looking);
        let at = is_looking.then_some(stop.by).max(stop.not_before);
        if at.is_some_and(|at| Instant::now() < at) {
            return at;
        }
        self.pending_stop = None;
        if stop.is_of_gang && self.report.stopped_by.is_none() {
            (self.report.stopped_by, self.report.stopped_at) = (Some(Signal::SIGTERM as i32), Some(now()));
            self.is_urgent = true;
        }
        send(process.pid, Signal::SIGTERM as i32);
        // A stopped process handles nothing but SIGKILL.
        continue_stopped();
        None
    }

    fn forward(&mut self, passed: u64, give_up_at: Instant) -> StageOutcome {
        let Some(process) = &self.process else { return StageOutcome::Go(Stage::speaking()) };
        let so_far = process.forwarder.passed();
        let is_idle = so_far <= passed;
        if process.forwarder.has_ended() || (is_idle && Instant::now() >= give_up_at) {
            self.view.output.close();
            StageOutcome::Go(Stage::Parsing)
        } else if is_idle {
            StageOutcome::Stay { until: Some(give_up_at) }
        } else {
            StageOutcome::Go(Stage::forwarding(so_far))
        }
    }

    fn parse(&mut self, message: &mut MessageFile) -> StageOutcome {
        let Some(process) = &self.process else { return StageOutcome::Go(Stage::speaking()) };
        if !process.parsing.has_ended() {
            return StageOutcome::Stay { until: None };
        }
        let is_heard = process.forwarder.has_ended();
        self.channels.read_to_end(&self.view.observations);
        self.judge_success();
        self.write_message(message);
        self.is_heard = is_heard;
        if let Some(manager) = &self.manager {
            let goes_on = self.may_be_followed() && self.outcome() != Outcome::Succeeded;
            let room = if goes_on { manager.end_attempt() } else { manager.look_a_last_time() };
            // In a stop, there is no more time than the pod has.
            let room = if self.report.stopped_by.is_some() { room.min(self.grace) } else { room };
            return StageOutcome::Go(Stage::Keeping { give_up_at: Instant::now() + room });
        }
        self.close()
    }

    fn keep(&mut self, message: &mut MessageFile, give_up_at: Instant) -> StageOutcome {
        if self.view.observations.changes.has_changed() {
            self.write_message(message);
        }
        let Some(manager) = &self.manager else { return self.close() };
        let has_settled = manager.has_settled();
        let until = match self.late_stop {
            Some((_, at)) => at.min(give_up_at),
            None => give_up_at,
        };
        if !has_settled && Instant::now() < until {
            return StageOutcome::Stay { until: Some(until) };
        }
        // A pod that exits 0 is complete, and no other pod would finish its work.
        let is_undone = self.exit_code() == 0 && !has_settled && manager.is_only_copy();
        if let Some((signal, _)) = self.late_stop.filter(|_| is_undone) {
            self.report.stopped_by.get_or_insert(signal);
        }
        self.write_message(message);
        self.close()
    }

    fn close(&self) -> StageOutcome {
        if !self.is_heard {
            // If the program's own output still waits for its reader, the agent's log would wait too.
            return StageOutcome::Go(Stage::Over);
        }
        if self.report.ended_for == Some(ErrorPattern::NanLoss) {
            self.log.say("the loss is NaN or infinite, and failurePolicy.nanPolicy is Fail");
        }
        StageOutcome::Go(Stage::speaking())
    }

    fn speak(&self, give_up_at: Instant) -> StageOutcome {
        if self.log.all_said() || Instant::now() >= give_up_at {
            return StageOutcome::Go(Stage::Over);
        }
        StageOutcome::Stay { until: Some(give_up_at) }
    }

    /// A program may end with success before its last output is read. `mpirun` of Open MPI 5 gives up and exits 0 when
    /// it has lost a worker.
    fn judge_success(&mut self) {
        let was_well =
            self.process.as_ref().is_some_and(|process| process.ended.is_some_and(|status| status.success()));
        if was_well && self.fails_by_loss() {
            self.report.ended_for = Some(ErrorPattern::NanLoss);
        }
        if was_well && !self.has_cause() && self.is_mpi && self.view.observations.has_reported(ErrorPattern::LostDaemon)
        {
            self.report.ended_for = Some(ErrorPattern::LostDaemon);
        }
    }

    /// Whether the gang is stopping, and the program has not received SIGTERM for that yet.
    fn is_stopping(&self) -> bool {
        self.pending_stop.is_some_and(|stop| stop.is_of_gang)
    }

    /// Whether the cause of the program's end is already known.
    fn has_cause(&self) -> bool {
        self.is_stopping() || self.report.stopped_by.is_some() || self.report.ended_for.is_some()
    }

    fn fails_by_loss(&self) -> bool {
        self.fail_on_nan && !self.has_cause() && self.view.observations.loss_was_lost()
    }

    fn write_message(&mut self, message: &mut MessageFile) {
        self.is_urgent = false;
        self.view.observations.changes.take_change();
        self.view.observations.complete(&mut self.report);
        if let Some(process) = &self.process {
            let report = &mut self.report;
            catch_parser_panic(|| {
                process.forwarder.recent_lines(|lines| report.read_stderr(lines.text(), |line| lines.time_of(line)));
            });
        }
        let oom_kills = self.oom_kills.as_ref().map_or(0, OomKills::since_start);
        if oom_kills > self.report.oom_kills {
            (self.report.oom_kills, self.report.oom_time) = (oom_kills, Some(now()));
            self.report.memory = self.oom_kills.as_ref().map(OomKills::memory);
        }
        let failed = self.report.gpu_memory_failed();
        if failed != self.gpu_memory_failed {
            self.gpu_memory_failed = failed;
            self.report.gpu_memory = failed.and_then(|time| self.gpus.fullest_before(time));
        }
        self.report.checkpoints = self.manager.as_ref().and_then(|manager| manager.status());
        message.write(&self.report);
        self.written = Instant::now();
    }
}

impl Stage {
    fn forwarding(passed: u64) -> Self {
        Self::Forwarding { passed, give_up_at: Instant::now() + DRAIN_IDLE }
    }

    fn speaking() -> Self {
        Self::Speaking { give_up_at: Instant::now() + DRAIN_IDLE }
    }
}

/// The result of looking at a stage.
enum StageOutcome {
    Stay { until: Option<Instant> },
    Go(Stage),
}

/// Prepares a remote shell. For a member that serves it, returns the command that replaces the job's program.
fn prepare(shell: &Shell, state: Option<&Path>) -> Result<Option<Vec<OsString>>, LaunchError> {
    let failed = |error: io::Error| LaunchError {
        kind: LaunchErrorKind::LaunchFailed,
        message: format!("can't leave what mpirun needs in the folder of --gang-state: {error}"),
    };
    let folder = shell.prepare(state.unwrap_or(Path::new("."))).map_err(failed)?;
    let agent = std::env::current_exe().map_err(failed)?;
    Ok(shell.serves.then(|| vec![agent.into(), "serve".into(), folder.into()]))
}

fn patterns(options: &Options) -> Result<ProgressPatterns, LaunchError> {
    ProgressPatterns::new(&options.progress_patterns)
        .map_err(|message| LaunchError { kind: LaunchErrorKind::InvalidOption, message: format!("--{message}") })
}
