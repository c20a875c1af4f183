//! This agent's part in its gang: turns the orders of [`gang`] into connections, files and log lines.
//!
//! [`GangMember`] owns the state machine and its connections. The container's loop passes it events, asks it for input from
//! the other members, and applies its orders to the program.

pub(super) mod clock;
pub(super) mod judge;
mod memory;
mod net;

use crate::agent_log::AgentLog;
use crate::attempt::Workers;
use crate::checkpoints::choice::ResumeChoice;
use crate::open_files;
use crate::read_json;
use crate::remote::Shell;
use crate::serve::ports::listen;
use crate::variables::variable;
use crate::wake::Wake;
use clock::now;
use failure::restart::{INTERRUPTIONS, Policy};
use gang::frame::Secret;
use gang::message::{self, Finish, History, Incarnation, MAX_PLACES, MemberId, Outcome, RunState, Time};
use gang::{BlockReason, ChoiceState, Exit, Gang, Input, LeaderSetup, Memory, Order, Phase, Setup, Timing, View};
use jiff::Timestamp;
use memory::MemoryFolder;
use net::{Identity, Net, NetSetup};
use parking_lot::Mutex;
use protocol::attempt::{AttemptEnd, RestartHistory};
use protocol::gang::{self as wire, GangEnd, GangPast, GangPhase, GangSetup, GangStatus};
use protocol::report::Report;
use protocol::role::{ReplicaId, RoleName};
use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// Number of kinds of reasons to wait that are reported at once.
const MAX_KINDS: usize = 3;
/// Maximum number of inputs per turn, so that signals and the program's end do not wait for thousands of members.
const AT_ONCE: usize = 256;
/// Interval at which the leader checks whether another attempt was requested.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Reason for the end of an attempt in which no member failed.
const ASKED_FOR: &str = "a restart was asked for (annotation ml.example.com/restart-requested)";
/// How long the gang waits before the agent logs what it waits for.
const SAY_AFTER: Duration = Duration::from_secs(10);

/// Where an agent finds what it needs to take part in a gang.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The file with the [`GangSetup`].
    pub setup: PathBuf,
    /// The role of this member.
    pub role: RoleName,
    /// The file with the gang's key; a gang of one needs none.
    pub key: Option<PathBuf>,
    /// The folder that outlives this container. Without it the agent remembers nothing.
    pub state: Option<PathBuf>,
    /// History of the gang before these pods.
    pub past: GangPast,
    /// Number of the first attempt in these pods, from 1.
    pub first: u32,
}

/// Reads the key of a gang from the file of its Secret.
///
/// # Errors
/// If the file can't be read, or the key is too weak.
pub fn read_key(file: &Path) -> io::Result<Secret> {
    Secret::new(std::fs::read(file)?.trim_ascii()).map_err(io::Error::other)
}

/// What the loop of the container has to do.
#[expect(clippy::large_enum_variant, reason = "few are made, and the large one once for each attempt")]
#[derive(Clone, Debug, PartialEq)]
pub enum Task {
    /// Choose the checkpoint from which this attempt resumes.
    Choose {
        /// The attempt.
        attempt: u32,
    },
    /// Start the program.
    Start {
        /// The attempt.
        attempt: u32,
        /// Its workers, if their number may differ between attempts.
        workers: Option<Workers>,
        /// Port at which its ranks meet.
        port: u16,
        /// Checkpoint from which it resumes.
        choice: ResumeChoice,
        /// The remote shell, if one member of the gang starts the programs of the others.
        shell: Option<Box<Shell>>,
    },
    /// Stop the program.
    Stop {
        /// The attempt.
        attempt: u32,
        /// Time between SIGTERM and SIGKILL.
        grace: Duration,
    },
    /// Exit.
    Exit(Exit),
}

/// This agent's part in its gang.
pub struct GangMember {
    gang: Gang,
    setup_file: PathBuf,
    setup: GangSetup,
    boot: u64,
    /// The remote shell, without what changes from attempt to attempt.
    shell: Option<Shell>,
    place: Option<MemoryFolder>,
    net: Option<Net>,
    log: Arc<AgentLog>,
    leads: bool,
    /// The reported status of the gang, if this agent leads it.
    published_status: Arc<Mutex<Option<GangStatus>>>,
    ended: Vec<AttemptEnd>,
    /// Digest of the code of the last attempt.
    code: Option<String>,
    /// The last attempt that was judged.
    last: u32,
    /// How the attempts ended, up to the beginning of the last one.
    before: RestartHistory,
    waits: WaitReason,
    /// When this leader's gang began to stop, while it is stopping.
    stopping_since: Option<Timestamp>,
    /// When the leader last checked the setup for changes.
    looked: Time,
    /// When the gang has to be stepped again, even without new input.
    due: Option<Time>,
    /// There is news that has not been reported yet.
    has_news: bool,
    /// More input is waiting than one turn processes.
    has_more: bool,
}

/// What the gang waits for.
#[derive(Default)]
struct WaitReason {
    words: String,
    since: Time,
    is_said: bool,
}

/// An error that a retry does not fix.
#[derive(Debug, thiserror::Error)]
#[error("can't take part in the gang: {what} {file}: {source}")]
pub struct GangError {
    what: &'static str,
    file: String,
    source: io::Error,
}

impl GangError {
    fn new(what: &'static str, file: &dyn ToString, source: io::Error) -> Self {
        Self { what, file: file.to_string(), source }
    }
}

impl GangMember {
    /// Joins the gang as this pod's agent.
    ///
    /// # Errors
    /// If the setup or the key can't be read, or the agent can't listen on the leader's port.
    pub fn join(
        options: &Options,
        grace: Duration,
        runtime: &Handle,
        wake: &Arc<Wake>,
        log: &Arc<AgentLog>,
        reported: &Arc<Mutex<Option<GangStatus>>>,
    ) -> Result<Self, GangError> {
        let setup: GangSetup = read_json(&options.setup)
            .map_err(|error| GangError::new("can't read --gang", &options.setup.display(), error))?;
        let index = variable("NODE_RANK").and_then(|rank| rank.parse().ok()).unwrap_or(0);
        let member = MemberId::new(options.role.as_str(), index);
        let pod = variable("POD_UID").unwrap_or_else(|| std::process::id().to_string());
        let place = options.state.clone().map(MemoryFolder::new);
        let before = place.as_ref().and_then(MemoryFolder::load);
        let since_1970 = u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(0);
        let boot = before.as_ref().map_or(since_1970, |(boot, _)| since_1970.max(boot + 1));
        let memory = remembered(options, before.map(|(_, memory)| memory));
        let leads = options.role.is_worker() && index == 0;
        let leader = leads.then(|| leader_setup(&setup));
        let key = options.key.clone().unwrap_or_default();
        let shell = shell_of(&setup, &key, &member, &pod);
        let mut net = None;
        if setup.workers > 1 || setup.largest.is_some() || !setup.roles.is_empty() {
            let secret =
                read_key(&key).map_err(|error| GangError::new("can't use --gang-key", &key.display(), error))?;
            let identity = Identity { secret, job: setup.uid.clone(), member: member.clone(), pod: pod.clone() };
            let shared = NetSetup { identity, wake: Arc::clone(wake), log: Arc::clone(log) };
            net = Some(network(runtime, &setup, leads, shared)?);
        }
        let before = memory.history.restarts.clone();
        let timing = timing(grace);
        let incarnation = Incarnation { boot, pod };
        let gang = Gang::new(Setup { job: setup.uid.clone(), member, incarnation, timing, memory, leader }, now());
        if options.role.is_worker() && index >= setup.workers.max(1) {
            let workers = setup.workers;
            log.say(format_args!(
                "the gang is of {workers} by now; this worker waits until it is of more than {index}"
            ));
        }
        Ok(Self {
            gang,
            setup_file: options.setup.clone(),
            setup,
            boot,
            shell,
            place,
            net,
            log: Arc::clone(log),
            leads,
            published_status: Arc::clone(reported),
            ended: Vec::new(),
            last: 0,
            before,
            waits: WaitReason::default(),
            code: None,
            stopping_since: None,
            looked: now(),
            due: Some(now()),
            has_news: true,
            has_more: false,
        })
    }

    /// File in which an agent with these options stores the final report of each run.
    pub fn report_file(options: &Options) -> Option<PathBuf> {
        options.state.clone().map(|folder| MemoryFolder::new(folder).report())
    }

    /// File for a second copy of each run's final report.
    pub fn report_copy(&self) -> Option<PathBuf> {
        self.place.as_ref().map(MemoryFolder::report)
    }

    /// The gang's part of the final report of the attempt that begins.
    pub fn counts(&self) -> GangEnd {
        GangEnd { restarts: self.before.clone(), ..GangEnd::default() }
    }

    /// Processes the input from the other members, and what is due by now.
    pub fn turn(&mut self) -> Vec<Task> {
        let mut tasks = self.follow_orders();
        self.has_more = true;
        for _ in 0..AT_ONCE {
            let Some(input) = self.net.as_mut().and_then(Net::next) else {
                self.has_more = false;
                break;
            };
            if !self.gang.hear(now(), &input) {
                tasks.extend(self.step(input));
            }
        }
        if self.due.is_some_and(|due| now() >= due) {
            tasks.extend(self.step(Input::Tick));
        }
        // Once per turn, because the status looks at every member.
        if self.has_news {
            self.publish_status();
        }
        tasks
    }

    /// Passes on the checkpoint that the leader's agent has chosen for the attempt, or its report of why it could not.
    pub fn chosen(&mut self, attempt: u32, choice: Result<&ResumeChoice, &Report>) -> Vec<Task> {
        let code = self.code();
        let chosen = choice.map_err(Report::to_message).map(|choice| message::Choice {
            checkpoint: choice.path.clone(),
            detail: serde_json::to_string(&ResumeChoice { code, ..choice.clone() }).unwrap_or_default(),
        });
        self.take(Input::Chosen(attempt, chosen))
    }

    /// Digest of the code that an attempt would run if it began now.
    fn code(&self) -> Option<String> {
        self.setup.code.as_ref()?;
        let setup = read_json::<GangSetup>(&self.setup_file).ok();
        setup.and_then(|setup| setup.code).or_else(|| self.setup.code.clone())
    }

    /// This agent has verified and unpacked the code of its attempt.
    pub fn has_code(&mut self, digest: Option<String>) {
        self.code = digest;
        self.has_news = true;
    }

    /// Notes that the program has failed, and that the agent is ending the processes it left behind.
    pub fn failing(&mut self, attempt: u32) -> Vec<Task> {
        self.take(Input::Failing(attempt))
    }

    /// Notes whether the program reports no steps and shows no sign of life.
    pub fn idle(&mut self, is_idle: bool) -> Vec<Task> {
        if self.gang.status().idle == is_idle { Vec::new() } else { self.take(Input::Idle(is_idle)) }
    }

    /// Whether all members of the running attempt are idle, as far as a leader knows.
    pub fn is_idle(&self) -> bool {
        self.gang.is_idle()
    }

    /// Notes that no process of the attempt is left.
    pub fn ended(&mut self, attempt: u32, outcome: Outcome, report: &Report) -> Vec<Task> {
        self.take(Input::Ended { attempt, outcome, report: report.to_message() })
    }

    /// Notes that a signal asked the agent to terminate.
    pub fn terminated(&mut self, signal: i32) -> Vec<Task> {
        self.take(Input::Terminated(signal))
    }

    /// The latest time at which [`GangMember::turn`] has to be called.
    pub fn wake_at(&self) -> Option<Instant> {
        let now = now();
        let due = if self.has_more { Some(now) } else { self.due };
        due.map(|at| Instant::now() + at.since(now))
    }

    /// Closes all connections once the queued messages are sent, and opens no new ones.
    pub fn close(&self) {
        if let Some(net) = &self.net {
            net.close_all();
        }
    }

    /// Whether all connections are closed.
    pub fn is_closed(&self) -> bool {
        self.net.as_ref().is_none_or(Net::has_closed_all)
    }

    /// The final report of the run of an earlier agent of this pod.
    pub fn last_words(&self) -> Option<Report> {
        match &self.gang.status().run.as_ref()?.state {
            RunState::Ended(end) => Report::parse(&end.report),
            _ => None,
        }
    }

    /// The gang's part of this agent's final report.
    pub fn end(&self) -> GangEnd {
        let history = &self.gang.memory().history;
        // There is little room, and the rest of the report says how the last attempt ended for this member.
        let is_own = |ended: &AttemptEnd| ended.replica_id() == Some(ReplicaId::FIRST_WORKER);
        let reported = self.ended.iter().filter(|ended| ended.attempt < history.attempt || !is_own(ended));
        let ended = reported.clone().skip(reported.count().saturating_sub(wire::LAST_RESTARTS)).cloned().collect();
        GangEnd { ended, restarts: published(history, &self.before) }
    }

    /// How the last attempt ended, if this agent leads and the attempt did not end well.
    pub fn last_ended(&self) -> Option<&AttemptEnd> {
        self.ended.last().filter(|ended| ended.attempt == self.gang.memory().history.restarts.judged)
    }

    /// Whether there are more members than this one.
    pub fn has_others(&self) -> bool {
        self.net.is_some()
    }

    /// Address of the first worker. For a member that does not lead, where it last reached it.
    pub fn first_worker(&self) -> Option<IpAddr> {
        if self.leads { variable("POD_IP")?.parse().ok() } else { self.net.as_ref()?.leader() }
    }

    /// Whether this agent leads.
    pub fn leads(&self) -> bool {
        self.leads
    }

    fn take(&mut self, input: Input) -> Vec<Task> {
        let mut tasks = self.follow_orders();
        tasks.extend(self.step(input));
        self.publish_status();
        tasks
    }

    fn step(&mut self, input: Input) -> Vec<Task> {
        let now = now();
        let orders = self.gang.step(now, input);
        (self.due, self.has_news) = (self.gang.wake_at(now), true);
        let mut tasks = Vec::new();
        for order in orders {
            match order {
                Order::Send { conn, message } => {
                    if let Some(net) = &self.net {
                        net.send(conn, message);
                    }
                }
                Order::Close { conn, .. } => {
                    if let Some(net) = &self.net {
                        net.close(conn);
                    }
                }
                Order::Choose { attempt } => tasks.push(Task::Choose { attempt }),
                Order::Start { attempt, size, port, choice } => {
                    self.before = self.gang.memory().history.restarts;
                    self.remember();
                    let choice: ResumeChoice = serde_json::from_str(&choice.detail).unwrap_or_default();
                    self.code = None;
                    let workers = self.setup.largest.map(|_| self.workers(size, port));
                    let shell = self.shell(attempt, size).map(Box::new);
                    tasks.push(Task::Start { attempt, workers, port, choice, shell });
                }
                Order::Stop { attempt, grace } => tasks.push(Task::Stop { attempt, grace }),
                Order::Exit(exit) => {
                    self.remember();
                    tasks.push(Task::Exit(exit));
                }
            }
        }
        tasks
    }

    /// Stores what this agent knows for the next agent of this pod.
    fn remember(&mut self) {
        let Some(place) = &self.place else { return };
        if let Err(error) = place.save(self.boot, &self.gang.memory()) {
            self.log.say(format_args!(
                "can't write to the folder of --gang-state: {error}; an agent that is killed will not know what it ran"
            ));
            self.place = None;
        }
    }

    /// Applies changes to the setup since this agent started: a policy for attempts that are not judged yet, another
    /// size, or a restart request. The start has already fulfilled earlier requests.
    fn follow_orders(&mut self) -> Vec<Task> {
        let (now, mut tasks) = (now(), Vec::new());
        let is_ending = matches!(self.gang.phase(), Some(Phase::Ending { .. }));
        if !self.leads || (!is_ending && now.since(self.looked) < LOOK_EVERY) {
            return tasks;
        }
        self.looked = now;
        let Ok(setup) = read_json::<GangSetup>(&self.setup_file) else { return tasks };
        if is_ending {
            self.gang.set_policy(policy(&setup));
        }
        if self.setup.largest.is_some() && setup.largest.is_some() && setup.workers != self.setup.workers {
            self.log.say(format_args!("the gang is to be of {} instead of {}", setup.workers, self.setup.workers));
            self.setup.workers = setup.workers;
            tasks.extend(self.step(Input::Resize(members(&setup))));
        }
        if setup.restart_requested.is_some() && setup.restart_requested != self.setup.restart_requested {
            self.log.say("a restart was asked for");
            self.setup.restart_requested = setup.restart_requested;
            tasks.extend(self.step(Input::Restart(ASKED_FOR.to_owned())));
        }
        tasks
    }

    /// The workers of an attempt, and the addresses of their ranks.
    fn workers(&self, count: u32, port: u16) -> Workers {
        let addresses: Vec<_> = (0..count).map(|index| format!("{}:{port}", self.setup.host(index))).collect();
        Workers { count, addresses: serde_json::to_string(&addresses).unwrap_or_default() }
    }

    /// The remote shell of an attempt.
    fn shell(&self, attempt: u32, size: u32) -> Option<Shell> {
        let count = self.setup.largest.map_or(self.setup.workers, |_| size);
        let hosts = (0..count).map(|index| self.setup.host(index)).collect();
        self.shell.as_ref().map(|shell| Shell { attempt, hosts, ..shell.clone() })
    }

    /// Updates the reported status of the gang, and logs what is new.
    fn publish_status(&mut self) {
        self.has_news = false;
        let now = now();
        let Some(view) = self.gang.view(now) else { return };
        let news = view.judged.filter(|judged| self.last < judged.attempt).cloned();
        let status = status(&view, &self.before);
        let (waits, phase) = (status.waits_for.clone(), status.phase);
        let awaits_others = view.missing.iter().any(|(_, missing)| *missing != BlockReason::Preparing);
        let is_said = awaits_others && phase == GangPhase::Gathering;
        if let Some(news) = news {
            let follows = match view.history.finish {
                None => "; the gang starts again",
                Some(_) => "",
            };
            self.log.say(format_args!("attempt {} has ended: {}: {news}{follows}", news.attempt, news.reason));
            self.last = news.attempt;
            self.ended.push(news);
            if self.ended.len() > wire::MAX_RESTARTS {
                self.ended.remove(0);
            }
        }
        // The program's own output comes first, and most waits are short.
        if self.waits.words != waits || !is_said {
            self.waits = WaitReason { words: waits, since: now, is_said: !is_said };
        } else if !self.waits.is_said && now.since(self.waits.since) >= SAY_AFTER {
            self.waits.is_said = true;
            self.log.say(format_args!("waiting for {waits}"));
        }
        let is_stopping = phase == GangPhase::Stopping;
        self.stopping_since = is_stopping.then(|| self.stopping_since.unwrap_or_else(crate::now));
        let (ended, stopping_since, code) = (self.ended.clone(), self.stopping_since, self.code.clone());
        let reported = GangStatus { ended, stopping_since, code, ..status };
        let mut known = self.published_status.lock();
        if known.as_ref() != Some(&reported) {
            *known = Some(reported);
        }
    }
}

/// How the attempts have ended, up to the beginning of the last one. The consequence of its end is certain only once
/// another attempt begins, or none will. A person may stop the job before then.
fn published(history: &History, before: &RestartHistory) -> RestartHistory {
    let has_failed = matches!(history.finish, Some(Finish::Failed(_)));
    if has_failed { history.restarts.clone() } else { before.clone() }
}

/// Status of the gang, without the attempts that have ended.
fn status(view: &View<'_>, before: &RestartHistory) -> GangStatus {
    let (phase, attempt) = match view.phase {
        Phase::Running { attempt, .. } => (GangPhase::Running, *attempt),
        Phase::Ending { attempt, .. } => (GangPhase::Stopping, *attempt),
        Phase::Gathering { .. } => (GangPhase::Gathering, view.history.attempt),
        Phase::Over { .. } => (GangPhase::Over, view.history.attempt),
    };
    GangStatus {
        attempt,
        workers: u32::try_from(view.members).unwrap_or(u32::MAX),
        restarts: published(view.history, before),
        phase,
        code: None,
        stopping_since: None,
        waits_for: if phase == GangPhase::Running { String::new() } else { waits_for(view) },
        ended: Vec::new(),
    }
}

/// The members that the gang waits for. Only the first of each kind is named.
fn waits_for(view: &View<'_>) -> String {
    let words = |missing: &BlockReason| match missing {
        BlockReason::NeverSeen => Some("has not come yet"),
        BlockReason::Unreachable => Some("can't be reached"),
        BlockReason::Leaving => Some("is terminating"),
        BlockReason::Stopping => Some("is stopping"),
        BlockReason::Fenced(_) => Some("may still run in the pod before"),
        // The member is present, and will be ready soon.
        BlockReason::Preparing => None,
    };
    let mut reported: Vec<(&'static str, String, usize)> = Vec::new();
    for (member, missing) in &view.missing {
        let Some(words) = words(missing) else { continue };
        match reported.iter_mut().find(|(known, ..)| *known == words) {
            Some((.., count)) => *count += 1,
            None => reported.push((words, member.to_string(), 1)),
        }
    }
    let reported = reported.into_iter().take(MAX_KINDS).map(|(words, first, count)| match count {
        1 => format!("{first}, which {words}"),
        more => format!("{first} and {} more, which {}", more - 1, plural(words)),
    });
    let reported = reported.collect::<Vec<_>>().join("; ");
    match view.phase {
        _ if !reported.is_empty() => reported,
        Phase::Gathering { choice: ChoiceState::Asked, .. } => {
            "the checkpoint to resume from, which is being verified".to_owned()
        }
        Phase::Gathering { choice: ChoiceState::Choice(_), .. } => {
            "the back-off between failures that follow each other quickly".to_owned()
        }
        _ if !view.quiet_in.is_zero() => {
            "the time after which nothing of an earlier attempt can run any more".to_owned()
        }
        _ => reported,
    }
}

fn plural(words: &str) -> String {
    words.replacen("has ", "have ", 1).replacen("was ", "were ", 1).replacen("is ", "are ", 1)
}

/// What the operator or this pod's last agent knows, whichever is newer.
fn remembered(options: &Options, before: Option<Memory>) -> Memory {
    let last = options.first.saturating_sub(1);
    // Attempts that ended before these pods have been judged.
    let restarts = RestartHistory { judged: last, ..options.past.restarts.clone() };
    let reported = History { attempt: last, restarts, ..History::default() };
    let mut memory = before.unwrap_or_default();
    if reported.is_newer_than(&memory.history) {
        memory.history = reported;
    }
    memory
}

fn leader_setup(setup: &GangSetup) -> LeaderSetup {
    LeaderSetup {
        members: members(setup),
        deciding: deciding(setup),
        was_larger: setup.largest.is_some_and(|largest| largest > setup.workers),
        policy: policy(setup),
        judge: judge::judge,
        ports: (setup.master_port, 2),
    }
}

/// The remote shell, if the gang has one.
fn shell_of(setup: &GangSetup, key: &Path, member: &MemberId, pod: &str) -> Option<Shell> {
    setup.mpi.as_ref().map(|mpi| Shell {
        job: setup.uid.clone(),
        key: key.to_owned(),
        port: mpi.port,
        slots: mpi.slots,
        role: member.role.clone(),
        index: member.index,
        pod: pod.to_owned(),
        serves: !deciding(setup).contains(member),
        ..Shell::default()
    })
}

/// The leader's agent listens, and every other agent dials it.
fn network(runtime: &Handle, setup: &GangSetup, leads: bool, shared: NetSetup) -> Result<Net, GangError> {
    if !leads {
        return Ok(Net::follow(runtime, setup.leader.clone(), setup.port, shared));
    }
    if let Err(error) = open_files::raise() {
        shared.log.say(format_args!("can't have more files open, which a gang of a thousand needs: {error}"));
    }
    listen(setup.port)
        .and_then(|listener| Net::lead(runtime, listener, shared))
        .map_err(|error| cannot_listen(setup.port, error))
}

/// With `hostNetwork`, the first workers of two jobs on one node use the same port.
fn cannot_listen(port: u16, error: io::Error) -> GangError {
    let advice = match error.kind() {
        ErrorKind::AddrInUse => {
            " (another process of the node has it, such as a job with hostNetwork: set another networking.masterPort, by \
             which this port is chosen)"
        }
        _ => "",
    };
    GangError::new("can't listen on its", &format!("port {port}{advice}"), error)
}

fn members(setup: &GangSetup) -> BTreeSet<MemberId> {
    let workers = (RoleName::WORKER.as_str(), setup.workers.max(1));
    let others = setup.roles.iter().map(|(role, replicas)| (role.as_str(), *replicas));
    others.chain([workers]).flat_map(|(role, replicas)| of_role(role, replicas)).collect()
}

/// The members whose success makes the gang succeed.
fn deciding(setup: &GangSetup) -> BTreeSet<MemberId> {
    setup.success.iter().flat_map(|(role, count)| of_role(role, *count)).collect()
}

/// The first `count` members of a role.
fn of_role(role: &str, count: u32) -> impl Iterator<Item = MemberId> {
    (0..count.min(MAX_PLACES)).map(move |index| MemberId::new(role, index))
}

fn policy(setup: &GangSetup) -> Policy {
    let GangSetup { restarts, backoff_limit, rules, .. } = setup.clone();
    Policy { restarts, backoff_limit, interruptions: INTERRUPTIONS, rules }
}

fn timing(grace: Duration) -> Timing {
    let usual = Timing::default();
    Timing { grace, short_grace: usual.short_grace.min(grace), ..usual }
}
