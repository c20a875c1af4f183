//! A container that runs its program as often as its gang wants.

use crate::attempt::Attempt;
use crate::checkpoints::CheckpointManager;
use crate::checkpoints::choice::ResumeChoice;
use crate::code::Unpacking;
use crate::container::Container;
use crate::context::AgentContext;
use crate::gang::{GangMember, Task};
use crate::run::unstarted::{never_started, unstarted};
use crate::run::{Next, Run, launch};
use gang::Exit;
use gang::message::Outcome;
use protocol::gang::{GangEnd, KILLED};
use protocol::report::{LaunchError, LaunchErrorKind, Report};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the last messages may take at the end.
const FAREWELL: Duration = Duration::from_secs(1);
/// How long a member whose pod is given up stays. The leader's status has to be requested in this time, because the
/// kernel does not let the container end before the processes that can't be killed.
const GIVEN_UP: Duration = Duration::from_secs(10);
/// How long a member that is asked to stop stays at least. The operator removes its pod from the Job's count before it
/// ends, so that no other pod has to be recreated.
const LEAVE: Duration = Duration::from_secs(2);

/// One member of a gang, for as long as its container lives.
pub struct Member<'a> {
    container: &'a mut Container,
    gang: GangMember,
    manager: Option<Arc<CheckpointManager>>,
    doing: Activity,
    tasks: VecDeque<Task>,
    /// The last words of the last run, and the exit code of its program.
    last: Option<(Report, i32)>,
    /// When this agent reported to the gang that it was asked to stop, or that it gives its pod up.
    reported_at: Option<Instant>,
    /// Whether this agent gives its pod up.
    is_unkillable: bool,
}

/// The current activity of a member.
enum Activity {
    Nothing,
    /// Chooses the checkpoint that this attempt resumes from.
    Choosing(u32),
    /// Unpacks the code of its attempt.
    Unpacking(Box<Attempt>, Box<ResumeChoice>, Unpacking),
    /// Fetches the checkpoint that its attempt resumes from.
    Fetching(Box<Attempt>),
    Running {
        attempt: u32,
        run: Box<Run>,
        /// Whether the gang knows that the program has failed.
        is_reported: bool,
    },
}

impl<'a> Member<'a> {
    /// Makes `container` a member of the gang of `gang`.
    pub fn new(gang: GangMember, container: &'a mut Container) -> Self {
        // If the kernel has killed an earlier container, nothing but its last words is left.
        let last = gang.last_words().map(|report| (report, 0));
        let manager = container.context().manager.clone();
        let tasks = VecDeque::new();
        Self {
            container,
            gang,
            manager,
            doing: Activity::Nothing,
            tasks,
            last,
            reported_at: None,
            is_unkillable: false,
        }
    }

    /// Does what the gang wants until the gang has ended, or this agent has to end. Returns the agent's exit code.
    ///
    /// # Errors
    /// Only where the kernel denies what every process may have.
    pub fn run(mut self) -> io::Result<i32> {
        let exit = loop {
            let until = self.look()?;
            if let Some(exit) = self.work()? {
                break exit;
            }
            if !self.tasks.is_empty() {
                continue;
            }
            let until = until.into_iter().chain(self.gang.wake_at()).min();
            let run = match &mut self.doing {
                Activity::Running { run, .. } => Some(&mut **run),
                _ => None,
            };
            self.container.turn(run, until)?;
        };
        self.leave(exit)
    }

    /// Reports news to the gang, and takes in its tasks. Returns when the run has to be looked at again.
    fn look(&mut self) -> io::Result<Option<Instant>> {
        if let Some(signal) = self.container.stopped_by().filter(|_| self.reported_at.is_none()) {
            self.reported_at = Some(Instant::now());
            self.tasks.extend(self.gang.terminated(signal));
        }
        self.tasks.extend(self.gang.turn());
        match std::mem::replace(&mut self.doing, Activity::Nothing) {
            Activity::Nothing => {}
            Activity::Choosing(attempt) => match self.manager.as_ref().and_then(|manager| manager.chosen()) {
                None => self.doing = Activity::Choosing(attempt),
                Some(Ok(choice)) => self.tasks.extend(self.gang.chosen(attempt, Ok(&choice))),
                Some(Err(obstacle)) => self.report_obstacle(attempt, obstacle),
            },
            Activity::Unpacking(attempt, choice, unpacking) => match unpacking.done() {
                None => self.doing = Activity::Unpacking(attempt, choice, unpacking),
                // The program starts in the folder of its code, and the search for the program does too.
                Some(Ok(folder)) => match std::env::set_current_dir(&folder) {
                    Ok(()) => {
                        self.gang.has_code(attempt.code.clone());
                        self.fetch(*attempt, *choice)?;
                    }
                    Err(error) => {
                        let message = format!("can't enter the folder of the code {}: {error}", folder.display());
                        self.start(&attempt, Some(LaunchError { kind: LaunchErrorKind::CodeUnavailable, message }))?;
                    }
                },
                Some(Err(obstacle)) => self.start(&attempt, Some(obstacle))?,
            },
            Activity::Fetching(attempt) => match self.manager.as_ref().and_then(|manager| manager.chosen()) {
                None => self.doing = Activity::Fetching(attempt),
                Some(fetched) => self.start(&attempt, fetched.err())?,
            },
            Activity::Running { attempt, mut run, is_reported } => {
                let next = run.advance(self.container.message());
                let is_failing = run.is_failing();
                if is_failing && !is_reported {
                    self.tasks.extend(self.gang.failing(attempt));
                }
                let is_reported = is_reported || is_failing;
                match next {
                    Next::Turn { until } => {
                        self.tasks.extend(self.gang.idle(run.is_idle()));
                        run.note_gang(self.gang.is_idle());
                        self.doing = Activity::Running { attempt, run, is_reported };
                        return Ok(until);
                    }
                    Next::Over => {
                        let (outcome, code) = (run.outcome(), run.exit_code());
                        self.is_unkillable = run.is_unkillable();
                        let report = run.into_report();
                        if self.is_unkillable && self.reported_at.is_none() {
                            // Before the end of the attempt is reported, so that a leader does not begin another
                            // attempt.
                            self.reported_at = Some(Instant::now());
                            self.tasks.extend(self.gang.terminated(nix::libc::SIGTERM));
                        }
                        self.tasks.extend(self.gang.ended(attempt, outcome, &report));
                        self.last = Some((report, code));
                    }
                }
            }
        }
        Ok(None)
    }

    /// Does what the gang wants. Returns how it ended, once it has.
    fn work(&mut self) -> io::Result<Option<Exit>> {
        while let Some(task) = self.tasks.pop_front() {
            match task {
                Task::Choose { attempt } => match self.manager.clone() {
                    Some(manager) => {
                        manager.begin(attempt, None, self.gang.last_ended())?;
                        self.doing = Activity::Choosing(attempt);
                    }
                    None => self.tasks.extend(self.gang.chosen(attempt, Ok(&ResumeChoice::default()))),
                },
                Task::Start { attempt, workers, port, choice, shell } => {
                    let attempt = Attempt {
                        number: Some(attempt),
                        master_port: Some(port),
                        master_ip: self.gang.first_worker(),
                        workers,
                        shell,
                        gang: Some(self.gang.counts()),
                        ..Attempt::default()
                    };
                    let attempt = attempt.from(&choice);
                    match self.unpack(&choice)? {
                        Some(unpacking) => {
                            self.doing = Activity::Unpacking(Box::new(attempt), Box::new(choice), unpacking);
                        }
                        None => self.fetch(attempt, choice)?,
                    }
                }
                Task::Stop { attempt, grace } => match &mut self.doing {
                    Activity::Running { attempt: running, run, .. } if *running == attempt => run.stop(grace),
                    Activity::Fetching(fetching) | Activity::Unpacking(fetching, ..)
                        if fetching.number == Some(attempt) =>
                    {
                        self.doing = Activity::Nothing;
                        let report = never_started(attempt, nix::libc::SIGTERM);
                        self.tasks.extend(self.gang.ended(attempt, Outcome::Stopped, &report));
                    }
                    _ => {}
                },
                Task::Exit(exit) => return Ok(Some(exit)),
            }
        }
        Ok(None)
    }

    /// Begins to unpack the code of an attempt, if it is delivered to the pods.
    fn unpack(&self, choice: &ResumeChoice) -> io::Result<Option<Unpacking>> {
        let AgentContext { options, wake, log, .. } = self.container.context();
        let (Some(digest), Some(parts), Some(state)) = (&choice.code, &options.code, &options.state) else {
            return Ok(None);
        };
        Unpacking::start(parts, state, digest, wake, log).map(Some)
    }

    /// Fetches the checkpoint that an attempt resumes from, if the first worker has chosen it, and then starts the
    /// program.
    fn fetch(&mut self, attempt: Attempt, choice: ResumeChoice) -> io::Result<()> {
        match self.manager.clone().filter(|_| !self.gang.leads()) {
            Some(manager) => {
                manager.begin(attempt.number.unwrap_or(0), Some(choice), None)?;
                self.doing = Activity::Fetching(Box::new(attempt));
                Ok(())
            }
            None => self.start(&attempt, None),
        }
    }

    fn start(&mut self, attempt: &Attempt, obstacle: Option<LaunchError>) -> io::Result<()> {
        let run = Box::new(self.container.start(attempt, obstacle)?);
        self.doing = Activity::Running { attempt: attempt.number.unwrap_or(0), run, is_reported: false };
        Ok(())
    }

    /// The attempt can't begin.
    fn report_obstacle(&mut self, attempt: u32, obstacle: LaunchError) {
        let code = launch::exit_code(obstacle.kind);
        self.container.context().log.say(&obstacle.message);
        let report = unstarted(attempt, obstacle);
        self.tasks.extend(self.gang.chosen(attempt, Err(&report)));
        self.last = Some((report, code));
    }

    /// Does the remaining work, and writes the last words.
    #[expect(clippy::needless_pass_by_value, reason = "takes what its callers need no more")]
    fn leave(mut self, exit: Exit) -> io::Result<i32> {
        if exit == Exit::Displaced {
            self.container.context().log.say("a later pod holds this worker's place; this one ends");
        }
        let end = self.gang.end();
        let attempt = self.last.as_ref().map(|(report, _)| report.attempt);
        if let Some(attempt) = attempt.filter(|_| matches!(exit, Exit::Failed(_))) {
            self.write_last(&end);
            self.save(attempt)?;
        }
        self.gang.close();
        let until = Instant::now() + FAREWELL;
        if let Some(manager) = &self.manager {
            manager.leave_folder();
        }
        let has_left =
            |manager: &Option<Arc<CheckpointManager>>| manager.as_ref().is_none_or(|manager| manager.has_left());
        while !(self.gang.is_closed() && self.container.context().log.all_said() && has_left(&self.manager))
            && Instant::now() < until
        {
            self.container.turn(None, Some(until))?;
        }
        let stays = match exit {
            Exit::Signalled(_) if self.is_unkillable => Some(GIVEN_UP),
            Exit::Signalled(_) if self.gang.has_others() => Some(LEAVE),
            _ => None,
        };
        let stays = self.reported_at.zip(stays).map(|(reported, stays)| reported + stays);
        while let Some(until) = stays.filter(|until| Instant::now() < *until) {
            self.container.turn(None, Some(until))?;
        }
        let code = self.last.as_ref().map_or(0, |(_, code)| *code);
        if let Exit::Signalled(signal) = exit
            && self.last.is_none()
        {
            self.last = Some((never_started(0, signal), 0));
        }
        self.write_last(&end);
        Ok(match exit {
            Exit::Succeeded => 0,
            Exit::Signalled(signal) if code == 0 || code == KILLED => 128 + signal,
            // The exit code of a killed container would let it be restarted for ever.
            _ if code == 0 || code == KILLED => 1,
            _ => code,
        })
    }

    fn write_last(&mut self, end: &GangEnd) {
        if let Some((report, _)) = &mut self.last {
            report.gang = Some(end.clone());
            report.checkpoints =
                self.manager.as_ref().and_then(|manager| manager.status()).or(report.checkpoints.take());
            self.container.message().write(report);
        }
    }

    /// Copies files that would be lost with the pod. If the agent is asked to stop, it has no more time than the pod.
    fn save(&mut self, attempt: u32) -> io::Result<()> {
        let Some(manager) = self.manager.clone().filter(|manager| manager.is_only_copy()) else { return Ok(()) };
        manager.finish(attempt)?;
        let mut until = None;
        while !manager.has_settled() && until.is_none_or(|until| Instant::now() < until) {
            if self.container.stopped_by().is_some() && until.is_none() {
                until = Some(Instant::now() + self.container.context().options.grace);
            }
            self.container.turn(None, until)?;
        }
        Ok(())
    }
}
