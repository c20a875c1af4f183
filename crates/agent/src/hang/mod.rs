//! Watches whether the program makes progress, and reports why it may hang.
//!
//! A thread looks at intervals, and `rule` interprets the result. If two signs agree, the stacks of all processes are
//! read and logged, and become part of the evidence. The run decides whether the program is ended for it.

mod rule;

use crate::agent_log::AgentLog;
use crate::now;
use crate::observations::Observations;
use crate::panics::catch_parser_panic;
use crate::run::descendants::{descendants_of_self, of_program};
use crate::run::view::RunView;
use crate::serve::gpu::Gpus;
use crate::stacks;
use crate::variables::variable;
use exposition::usage::{own_ticks, seconds};
use parking_lot::{Condvar, Mutex};
use protocol::hang::{Hang, MAX_TEXT, Stall};
use protocol::progress::{Progress, Source};
use protocol::stacks::{ProcessState, StackLocation, Stacks};
use rule::{Gpu, Process, ProgramSample, ReportedPosition, Signs, Watch};
use std::collections::VecDeque;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant, UNIX_EPOCH};

/// Number of looks within the time after which a program counts as hanging.
const LOOKS: u32 = 12;
/// The longest time between two looks, and the shortest.
const LONGEST: Duration = Duration::from_secs(15);
const SHORTEST: Duration = Duration::from_millis(250);
/// How long the folder of checkpoints may take to answer. An unresponsive file server is no sign of life.
const FOLDER_PATIENCE: Duration = Duration::from_secs(5);
/// Maximum number of files that are looked at there.
const MAX_FILES: usize = 20_000;
/// The folder that the agents themselves write there.
const OURS: &str = ".trainingjob";
/// How long the end of an attempt may wait for stacks.
pub const LAST_LOOK: Duration = Duration::from_secs(6);

/// How a hanging program is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// It hangs if it makes no step for this time and a second sign agrees.
    pub timeout: Duration,
    /// It also hangs if it reports no steps, or none any more, and shows no sign of life for this time.
    pub idle_timeout: Duration,
    /// A hanging program is ended. Otherwise the agent only reports it.
    pub ends: bool,
}

/// Watches one run. Dropping this value ends the watch.
pub struct HangWatch {
    shared: Arc<Shared>,
    ends: bool,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// It looks as if it waits for others.
    is_quiet: AtomicBool,
    /// It reports no steps and shows no sign of life.
    is_idle: AtomicBool,
    /// So does all of its gang, as far as this agent knows. A worker that waits for another one does not hang.
    all_are_idle: AtomicBool,
    /// A last look was requested, and is not done yet.
    is_looking: AtomicBool,
}

#[derive(Default)]
struct State {
    is_over: bool,
    /// The attempt is ending, and the stacks are needed now.
    is_asked: bool,
}

impl HangWatch {
    /// Watches the run that has just been started. Unless it `is_alone`, the gang reports when all members are idle.
    ///
    /// # Errors
    /// If the kernel denies a thread.
    pub fn start(
        policy: Policy,
        is_alone: bool,
        run: &RunView,
        gpus: Gpus,
        log: &Arc<AgentLog>,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            is_quiet: AtomicBool::new(false),
            is_idle: AtomicBool::new(false),
            all_are_idle: AtomicBool::new(is_alone),
            is_looking: AtomicBool::new(false),
        });
        let mut watcher = Watcher {
            shared: Arc::clone(&shared),
            watch: Watch::new(policy.timeout, policy.idle_timeout),
            observations: Arc::clone(&run.observations),
            gpus,
            log: Arc::clone(log),
            folder: variable("CHECKPOINT_DIR").map(|path| Folder::new(PathBuf::from(path))),
            last_report: None,
            every: (policy.timeout.min(policy.idle_timeout) / LOOKS).clamp(SHORTEST, LONGEST),
            ends: policy.ends,
            is_final: false,
        };
        std::thread::Builder::new().name("hang".to_owned()).spawn(move || watcher.run())?;
        Ok(Self { shared, ends: policy.ends })
    }

    /// Whether a hanging program is to be ended.
    pub fn ends(&self) -> bool {
        self.ends
    }

    /// Whether the program reports no steps and shows no sign of life. The loop is woken when that changes.
    pub fn is_idle(&self) -> bool {
        self.shared.is_idle.load(SeqCst)
    }

    /// Notes whether all of its gang are idle. Only then is a member suspected for that.
    pub fn note_gang(&self, all_are_idle: bool) {
        self.shared.all_are_idle.store(all_are_idle, SeqCst);
    }

    /// Takes a last look at a program that may have been waiting, before it gets SIGTERM for an event elsewhere.
    /// Returns whether the look is under way.
    pub fn look_a_last_time(&self) -> bool {
        if self.shared.is_quiet.load(SeqCst) {
            self.shared.is_looking.store(true, SeqCst);
            self.shared.state.lock().is_asked = true;
            self.shared.changed.notify_all();
        }
        self.is_looking()
    }

    /// Whether the last look is under way. The loop is woken when it is done.
    pub fn is_looking(&self) -> bool {
        self.shared.is_looking.load(SeqCst)
    }
}

impl Drop for HangWatch {
    fn drop(&mut self) {
        self.shared.state.lock().is_over = true;
        self.shared.changed.notify_all();
    }
}

/// The watching thread.
struct Watcher {
    shared: Arc<Shared>,
    watch: Watch,
    observations: Arc<Observations>,
    gpus: Gpus,
    log: Arc<AgentLog>,
    folder: Option<Folder>,
    /// The last report: whether two signs agreed, and which processes were stopped.
    last_report: Option<(bool, Vec<i32>)>,
    every: Duration,
    ends: bool,
    /// The program is being ended. The finding stays, whatever the program does then.
    is_final: bool,
}

impl Watcher {
    fn run(&mut self) {
        let mut last = Instant::now();
        loop {
            let is_asked = {
                let mut state = self.shared.state.lock();
                if !state.is_over && !state.is_asked {
                    let _ = self.shared.changed.wait_for(&mut state, self.every);
                }
                if state.is_over {
                    return;
                }
                std::mem::take(&mut state.is_asked)
            };
            let since = last.elapsed();
            last = Instant::now();
            // Time in which the machine stood still was not observed.
            let look = catch_parser_panic(|| self.look(since.min(self.every * 2)));
            if let Some(look) = look {
                let mut signs = self.watch.take_in(&look);
                let is_idle = signs.idle.is_some();
                if self.shared.is_idle.swap(is_idle, SeqCst) != is_idle {
                    self.observations.changes.wake();
                }
                signs.idle.take_if(|_| !self.shared.all_are_idle.load(SeqCst));
                self.shared.is_quiet.store(self.watch.is_quiet(), SeqCst);
                if is_asked {
                    catch_parser_panic(|| self.look_a_last_time(&signs));
                } else {
                    catch_parser_panic(|| self.report(&signs));
                }
            }
            if is_asked {
                self.shared.is_looking.store(false, SeqCst);
                self.observations.changes.wake();
            }
        }
    }

    fn look(&mut self, since: Duration) -> ProgramSample {
        let progress = self.observations.progress_now();
        let processes = of_program(descendants_of_self());
        let processes = processes.iter().map(|stat| Process {
            pid: stat.pid,
            started: stat.starttime,
            cpu: seconds(own_ticks(stat)),
            moved: bytes_moved(stat.pid),
            is_stopped: ProcessState::from_letter(stat.state) == ProcessState::Stopped,
        });
        let (gpus, _) = self.gpus.now();
        let gpus = gpus.iter().map(|gpu| Gpu {
            index: gpu.index,
            reading: gpu.time.as_millisecond(),
            utilization: gpu.utilization_percent,
            power: gpu.power_watts,
        });
        ProgramSample {
            since,
            at: at(&progress),
            is_over: progress.percent().is_some_and(|percent| percent >= 100.0),
            printed: self.observations.printed(),
            saved: self.folder.as_mut().filter(|_| self.watch.may_stall()).and_then(Folder::last_written),
            processes: processes.collect(),
            gpus: gpus.collect(),
        }
    }

    /// Reports what is new.
    fn report(&mut self, signs: &Signs) {
        let new_report = signs.has_any().then(|| (signs.agree(), signs.stopped.clone()));
        if self.is_final || new_report == self.last_report {
            return;
        }
        let hung = self.last_report.as_ref().is_some_and(|(hangs, _)| *hangs);
        self.last_report = new_report;
        if !signs.has_any() {
            if hung {
                self.log.say("the program goes on");
            }
            self.observations.hangs(None, None);
        } else if signs.agree() {
            // Each reading of the stacks is reported once. A second process that stops changes little.
            let stacks = stacks::take();
            let hang = evidence(signs, self.watch.at(), &stacks);
            let what = if self.ends { "the program hangs, and is ended for it" } else { "the program may hang" };
            self.say(format_args!("{what}: {}", hang.text), &stacks);
            self.is_final = self.ends;
            let stall = Stall { hangs: true, time: hang.time, rank: hang.rank, message: hang.text.clone() };
            self.observations.hangs(Some(stall), Some(hang));
        } else {
            let stall = suspicion(signs, self.watch.at());
            self.log.say(&stall.message);
            self.observations.hangs(Some(stall), None);
        }
    }

    /// Reads this worker's part in the end of an attempt, which may be its fault.
    fn look_a_last_time(&mut self, signs: &Signs) {
        self.is_final = true;
        if self.last_report.as_ref().is_some_and(|(hangs, _)| *hangs) {
            return;
        }
        let stacks = stacks::take();
        let hang = evidence(signs, self.watch.at(), &stacks);
        if hang.text.is_empty() {
            return;
        }
        self.say(format_args!("the gang stops, and this worker was waiting: {}", hang.text), &stacks);
        self.observations.hangs(None, Some(hang));
    }

    fn say(&self, what: std::fmt::Arguments<'_>, stacks: &Stacks) {
        let lines = stacks.lines();
        self.log.say_lines(std::iter::once(what.to_string()).chain(lines.iter().map(|line| format!("stack: {line}"))));
    }
}

/// Bytes that a process has read and written so far, or 0 if that is unknown.
fn bytes_moved(pid: i32) -> u64 {
    let io = procfs::process::Process::new(pid).and_then(|process| process.io());
    io.map_or(0, |io| io.rchar.saturating_add(io.wchar))
}

fn at(progress: &Progress) -> Option<ReportedPosition> {
    let value = |reading: Option<protocol::progress::Reading>| {
        reading.filter(|reading| reading.source != Source::Environment).map(|reading| reading.value)
    };
    let at = ReportedPosition { epoch: value(progress.epoch), step: value(progress.step) };
    (at.epoch.is_some() || at.step.is_some()).then_some(at)
}

/// The evidence from two signs and the stacks.
fn evidence(signs: &Signs, at: Option<ReportedPosition>, stacks: &Stacks) -> Hang {
    let blamed = stacks.blamed();
    // If a launcher or a child of a rank is stopped, the rank itself is not.
    let stopped = stacks.processes.iter().filter(|process| process.state == ProcessState::Stopped);
    let stopped: Vec<(i32, Option<u64>)> = stopped.map(|process| (process.pid, process.rank)).collect();
    let place = match blamed {
        _ if !stopped.is_empty() => StackLocation::Stopped,
        Some(process) => process.location(),
        None => StackLocation::Unknown,
    };
    let rank = match (stopped.iter().find_map(|(_, rank)| *rank), blamed) {
        (Some(rank), _) => Some(rank),
        (None, Some(process)) if place != StackLocation::Stopped => process.rank,
        _ => None,
    };
    let pids: Vec<i32> = stopped.iter().map(|(pid, _)| *pid).collect();
    let mut text = describe(signs, at, &pids).join(", ");
    let whereabouts = stacks.summary(MAX_TEXT.saturating_sub(text.len() + 2));
    if !whereabouts.is_empty() {
        let _ = write!(text, "{}{whereabouts}", if text.is_empty() { "" } else { "; " });
    }
    Hang { place, rank, time: now(), text }
}

/// The report of a single sign.
fn suspicion(signs: &Signs, at: Option<ReportedPosition>) -> Stall {
    let rank = signs.stopped.iter().find_map(|pid| stacks::rank_of(*pid));
    let mut message = describe(signs, at, &signs.stopped).join(", ");
    if signs.stalled.is_some() {
        message += "; it still prints and computes, so that nothing follows from this";
    }
    Stall { hangs: false, time: now(), rank, message }
}

/// The signs as text.
fn describe(signs: &Signs, at: Option<ReportedPosition>, stopped: &[i32]) -> Vec<String> {
    let mut reported = Vec::new();
    if let Some(time) = signs.stalled {
        let seconds = time.as_secs();
        reported.push(match at {
            Some(ReportedPosition { step: Some(step), .. }) => format!("no step for {seconds} s after step {step}"),
            Some(ReportedPosition { epoch: Some(epoch), .. }) => {
                format!("no progress for {seconds} s after epoch {epoch}")
            }
            _ => format!("no progress for {seconds} s"),
        });
        if stopped.is_empty() {
            reported.extend(signs.is_silent.then(|| "no output for as long".to_owned()));
            reported.extend(signs.is_asleep.then(|| "all its processes are asleep".to_owned()));
            reported.extend(signs.gpus_are_flat.then(|| "its GPUs show always the same".to_owned()));
        }
    }
    if let Some(time) = signs.idle {
        let seconds = time.as_secs();
        reported
            .push(format!("no sign of life for {seconds} s (no step, no output, no use of CPU or GPU, no data moved)"));
    }
    if let Some((first, more)) = stopped.split_first() {
        reported.push(match more.len() {
            0 => format!("process {first} is stopped (SIGSTOP)"),
            more => format!("process {first} and {more} more are stopped (SIGSTOP)"),
        });
    }
    reported
}

/// The folder of checkpoints.
struct Folder {
    path: PathBuf,
    /// A look is under way, or can't return.
    is_busy: Arc<AtomicBool>,
}

impl Folder {
    fn new(path: PathBuf) -> Self {
        Self { path, is_busy: Arc::default() }
    }

    /// When a file in it was last written, in milliseconds since 1970. `None` if that is not known in time.
    fn last_written(&mut self) -> Option<u64> {
        if self.is_busy.swap(true, SeqCst) {
            return None;
        }
        let (path, is_busy) = (self.path.clone(), Arc::clone(&self.is_busy));
        let (sender, receiver) = channel();
        let look = move || {
            let newest = catch_parser_panic(|| newest_file(&path)).unwrap_or_default();
            is_busy.store(false, SeqCst);
            let _ = sender.send(newest);
        };
        if std::thread::Builder::new().name("folder".to_owned()).spawn(look).is_err() {
            self.is_busy.store(false, SeqCst);
            return None;
        }
        receiver.recv_timeout(FOLDER_PATIENCE).ok()
    }
}

/// When the newest file below `root` was written, in milliseconds since 1970, or 0 if there is none. Folders don't
/// count, because deletions are not the program's work. Files of the agents don't count either.
fn newest_file(root: &Path) -> u64 {
    let mut folders = VecDeque::from([root.to_path_buf()]);
    let (mut newest, mut left) = (0, MAX_FILES);
    while let Some(folder) = folders.pop_front() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries.filter_map(Result::ok) {
            if left == 0 {
                return newest;
            }
            left -= 1;
            // Links are not followed.
            let Ok(found) = entry.metadata() else { continue };
            if found.is_dir() && entry.file_name() != OURS {
                folders.push_back(entry.path());
            } else if found.is_file() {
                let written = found.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
                newest = newest.max(written.map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(0)));
            }
        }
    }
    newest
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::stacks::testing::rank;

    const REDUCES: [(&str, &str, i32); 2] =
        [("all_reduce", "/x/site-packages/torch/distributed/distributed_c10d.py", 2806), ("step", "/app/train.py", 41)];

    fn signs() -> Signs {
        Signs { stalled: Some(Duration::from_secs(30)), is_silent: true, is_asleep: true, ..Signs::default() }
    }

    const AT: Option<ReportedPosition> = Some(ReportedPosition { epoch: None, step: Some(41.0) });

    #[test]
    fn evidence_names_the_stopped_rank() {
        let processes = vec![
            rank(2, ProcessState::Stopped, &[("step", "/app/train.py", 41)]),
            rank(3, ProcessState::Asleep, &REDUCES),
        ];
        let hang = evidence(&signs(), AT, &Stacks { processes, ..Stacks::default() });
        assert_eq!((hang.place, hang.rank), (StackLocation::Stopped, Some(2)));
        assert_eq!(
            hang.text,
            "no step for 30 s after step 41, process 52 is stopped (SIGSTOP); rank 2 is in step (/app/train.py:41); rank 3 \
             is in all_reduce (torch/distributed/distributed_c10d.py:2806), called from step (/app/train.py:41)"
        );
    }

    #[test]
    fn evidence_names_the_collective_a_rank_waits_in() {
        let processes = vec![rank(0, ProcessState::Asleep, &REDUCES)];
        let hang = evidence(&signs(), AT, &Stacks { processes, ..Stacks::default() });
        assert_eq!((hang.place, hang.rank), (StackLocation::Collective, Some(0)));
        let start = "no step for 30 s after step 41, no output for as long, all its processes are asleep; rank 0 is in";
        assert!(hang.text.starts_with(start), "{}", hang.text);
        let many = (0..200).map(|n| rank(n, ProcessState::Asleep, &[("f", &"x".repeat(100), n as i32)])).collect();
        let hang = evidence(&signs(), AT, &Stacks { processes: many, ..Stacks::default() });
        assert!(hang.text.len() <= MAX_TEXT, "{}", hang.text.len());
        let nothing = evidence(&Signs::default(), None, &Stacks::default());
        assert_eq!((nothing.place, nothing.rank, nothing.text.as_str()), (StackLocation::Unknown, None, ""));
    }

    #[test]
    fn evidence_describes_an_idle_program() {
        let idle = Signs { idle: Some(Duration::from_secs(3600)), is_silent: true, ..Signs::default() };
        let text = evidence(&idle, None, &Stacks::default()).text;
        assert!(text.starts_with("no sign of life for 3600 s (no step, no output, "), "{text}");
    }

    #[test]
    fn suspicion_describes_a_single_sign() {
        let stopped = Signs { stopped: vec![1_999_999_999, 1_999_999_998], ..Signs::default() };
        assert_eq!(suspicion(&stopped, AT).message, "process 1999999999 and 1 more are stopped (SIGSTOP)");
        let stalled = Signs { stalled: Some(Duration::from_secs(60)), ..Signs::default() };
        let words = suspicion(&stalled, Some(ReportedPosition { epoch: Some(2.5), step: None })).message;
        assert!(words.starts_with("no progress for 60 s after epoch 2.5; it still prints"), "{words}");
    }

    #[test]
    fn last_write_ignores_the_agents_own_files() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(newest_file(folder.path()), 0);
        std::fs::create_dir_all(folder.path().join(OURS)).unwrap();
        std::fs::write(folder.path().join(OURS).join("ledger.json"), "x").unwrap();
        assert_eq!(newest_file(folder.path()), 0);
        std::fs::create_dir_all(folder.path().join("step-1")).unwrap();
        std::fs::write(folder.path().join("step-1/model.pt"), "x").unwrap();
        assert!(newest_file(folder.path()) > 0);
        assert!(Folder::new(folder.path().to_owned()).last_written().is_some_and(|time| time > 0));
        assert_eq!(newest_file(&folder.path().join("missing")), 0);
    }
}
