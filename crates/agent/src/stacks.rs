//! Reads the call stacks of the program's processes, from outside and without stopping them.
//!
//! py-spy reads Python's stacks from the memory of the processes, which a parent of the same user may do. It needs
//! nothing in the image. A separate thread reads them, because a process that waits for a dead file server may block
//! its reader.

use crate::now;
use crate::panics::catch_parser_panic;
use crate::run::descendants::{descendants_of_self, of_program};
use crate::variables::variable;
use procfs::process::Stat;
use protocol::stacks::{
    Frame, MAX_FRAMES, MAX_PROCESSES, MAX_THREADS, ProcessStacks, ProcessState, Stacks, ThreadStack,
};
use py_spy::config::LockingStrategy;
use py_spy::{Config, PythonSpy, StackTrace};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Time limit of the reading, however many processes there are.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Highest number of bytes that are read of a process's environment or command line.
const MAX_READ: u64 = 256 * 1024;
/// Interval between attempts to read memory that changes meanwhile.
const AGAIN: Duration = Duration::from_millis(10);
/// Number of attempts.
const TRIES: u32 = 3;

/// Whether a thread is reading, or is blocked in a reading.
static IS_READING: AtomicBool = AtomicBool::new(false);

/// The data that is read of one process.
struct Read1 {
    pid: i32,
    rank: Option<Rank>,
    is_python: bool,
    stack: Option<Result<(String, Vec<ThreadStack>), String>>,
}

/// The rank of a process according to its environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rank {
    number: u64,
    /// Whether a launcher has set it, for each process separately.
    is_of_launcher: bool,
}

/// Reads the stacks of every process that descends from this one, as far as the time allows.
pub fn take() -> Stacks {
    let stats = of_program(descendants_of_self());
    let mut read: HashMap<i32, Read1> = HashMap::new();
    let is_free = !IS_READING.swap(true, SeqCst);
    if is_free {
        read_in_time(&stats, &mut read);
    }
    let parents: BTreeMap<i32, i32> = stats.iter().map(|stat| (stat.pid, stat.ppid)).collect();
    let reported: BTreeMap<i32, (Option<Rank>, bool)> =
        read.iter().map(|(pid, process)| (*pid, (process.rank, process.is_python))).collect();
    let ranks = main_processes(&parents, &reported);
    let mut processes: Vec<ProcessStacks> = stats
        .iter()
        .map(|stat| {
            let (stack, problem) = match read.remove(&stat.pid).map(|read| read.stack) {
                Some(Some(Ok(stack))) => (Some(stack), String::new()),
                Some(Some(Err(problem))) => (None, problem),
                Some(None) => (None, String::new()),
                None if is_free => (None, "there was no time to look".to_owned()),
                None => (None, "an earlier look at it has not come back".to_owned()),
            };
            let (python, threads) = stack.unwrap_or_default();
            ProcessStacks {
                pid: stat.pid,
                rank: ranks.get(&stat.pid).copied(),
                command: command_of(stat),
                state: ProcessState::from_letter(stat.state),
                kernel: waits_in(stat.pid),
                python,
                threads,
                problem,
            }
        })
        .collect();
    processes.sort_by_key(|process| (process.rank.is_none(), process.rank, process.pid));
    let stacks = Stacks {
        worker: variable("NODE_RANK").and_then(|rank| rank.parse().ok()),
        pod_uid: variable("POD_UID"),
        time: now(),
        processes,
        left_out: 0,
    };
    stacks.bounded()
}

/// The rank that a launcher has given to a process.
pub fn rank_of(pid: i32) -> Option<u64> {
    rank(&environment(pid)).filter(|rank| rank.is_of_launcher).map(|rank| rank.number)
}

/// Reads the processes until the time is over. A thread that is blocked keeps `IS_READING` set.
fn read_in_time(stats: &[Stat], read: &mut HashMap<i32, Read1>) {
    let until = Instant::now() + PATIENCE;
    let pids: Vec<i32> = stats.iter().map(|stat| stat.pid).collect();
    let (sender, receiver) = channel();
    let work = move || {
        let mut processes: Vec<(i32, Option<Rank>, bool)> =
            pids.iter().map(|pid| (*pid, rank(&environment(*pid)), is_python(*pid))).collect();
        // Processes of ranks first, and parents before their children.
        processes.sort_by_key(|(_, rank, is_python)| (!is_python, !rank.is_some_and(|rank| rank.is_of_launcher)));
        for (at, (pid, rank, is_python)) in processes.into_iter().enumerate() {
            if Instant::now() >= until {
                break;
            }
            let stack = (is_python && at < MAX_PROCESSES).then(|| {
                catch_parser_panic(|| stack_of(pid))
                    .unwrap_or_else(|| Err("its memory is not as that of a Python".to_owned()))
            });
            if sender.send(Read1 { pid, rank, is_python, stack }).is_err() {
                break;
            }
        }
        IS_READING.store(false, SeqCst);
    };
    if std::thread::Builder::new().name("stacks".to_owned()).spawn(work).is_err() {
        IS_READING.store(false, SeqCst);
        return;
    }
    loop {
        match receiver.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(process) => _ = read.insert(process.pid, process),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// The main process of each rank: the topmost Python that has this rank, else the topmost process. If a launcher gives
/// each process its rank, the launcher itself has none.
fn main_processes(parents: &BTreeMap<i32, i32>, reported: &BTreeMap<i32, (Option<Rank>, bool)>) -> BTreeMap<i32, u64> {
    let has_launcher = reported.values().any(|(rank, _)| rank.is_some_and(|rank| rank.is_of_launcher));
    let rank_of = |pid: i32| {
        let (rank, _) = reported.get(&pid)?;
        rank.filter(|rank| rank.is_of_launcher == has_launcher).map(|rank| rank.number)
    };
    let depth = |pid: i32| std::iter::successors(Some(pid), |pid| parents.get(pid).copied()).take(64).count();
    let mut first: BTreeMap<u64, (bool, usize, i32)> = BTreeMap::new();
    for pid in parents.keys() {
        let (Some(rank), Some((_, is_python))) = (rank_of(*pid), reported.get(pid)) else { continue };
        let order = (!is_python, depth(*pid), *pid);
        first.entry(rank).and_modify(|known| *known = order.min(*known)).or_insert(order);
    }
    first.into_iter().map(|(rank, (.., pid))| (pid, rank)).collect()
}

/// Every variable of a process, as it was started.
fn environment(pid: i32) -> Vec<u8> {
    read_file(&format!("/proc/{pid}/environ"))
}

/// The rank in a process's environment.
fn rank(environment: &[u8]) -> Option<Rank> {
    let variable = |name: &str| {
        let of = |entry: &&[u8]| entry.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.starts_with(b"="));
        let entry = environment.split(|byte| *byte == 0).find(of)?;
        std::str::from_utf8(&entry[name.len() + 1..]).ok()?.parse::<u64>().ok()
    };
    let is_of_launcher = variable("LOCAL_RANK").is_some();
    let number = ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "NODE_RANK"].into_iter().find_map(variable)?;
    Some(Rank { number, is_of_launcher })
}

/// Whether the process maps Python, as its program or as a library.
fn is_python(pid: i32) -> bool {
    let maps = read_file(&format!("/proc/{pid}/maps"));
    maps.split(|byte| *byte == b'\n').any(|line| {
        let file = line.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        line.contains(&b'/') && (file.starts_with(b"python") || file.starts_with(b"libpython"))
    })
}

/// The kernel function in which the main thread of a process waits, if the agent may see it. Usually only the superuser
/// may.
pub fn waits_in(pid: i32) -> String {
    let wchan = String::from_utf8_lossy(&read_file(&format!("/proc/{pid}/wchan"))).trim().to_owned();
    if wchan == "0" { String::new() } else { wchan }
}

fn command_of(stat: &Stat) -> String {
    let line = read_file(&format!("/proc/{}/cmdline", stat.pid));
    let line = line.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    let line = line.map(String::from_utf8_lossy).collect::<Vec<_>>().join(" ");
    if line.is_empty() { format!("[{}]", stat.comm) } else { line }
}

fn read_file(path: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(path) {
        // The bytes that were read before an error are still useful.
        let _ = file.take(MAX_READ).read_to_end(&mut bytes);
    }
    bytes
}

/// The stacks of a Python's threads and its version. The process runs meanwhile, so the stacks may be inconsistent.
fn stack_of(pid: i32) -> Result<(String, Vec<ThreadStack>), String> {
    let config = Config { blocking: LockingStrategy::NonBlocking, ..Config::default() };
    let mut problem = String::new();
    for attempt in 0..TRIES {
        if attempt > 0 {
            std::thread::sleep(AGAIN);
        }
        let read = PythonSpy::new(pid, &config).and_then(|mut spy| {
            let traces = spy.get_stack_traces()?;
            Ok((spy.version.to_string(), traces))
        });
        match read {
            Ok((version, traces)) => return Ok((version, threads(pid, traces))),
            Err(error) => problem = format!("{error:#}"),
        }
    }
    Err(problem)
}

fn threads(pid: i32, traces: Vec<StackTrace>) -> Vec<ThreadStack> {
    let id = u64::try_from(pid).ok();
    let knows_main = traces.iter().any(|trace| trace.os_thread_id == id);
    let count = traces.len();
    // Python's list begins with the newest.
    let mut threads: Vec<ThreadStack> = traces
        .into_iter()
        .enumerate()
        .map(|(at, trace)| ThreadStack {
            name: trace.thread_name.unwrap_or_else(|| format!("thread {}", trace.os_thread_id.unwrap_or_default())),
            is_main: if knows_main { trace.os_thread_id == id } else { at + 1 == count },
            frames: trace.frames.into_iter().take(MAX_FRAMES).map(frame).collect(),
        })
        .collect();
    threads.sort_by_key(|thread| !thread.is_main);
    threads.truncate(MAX_THREADS);
    threads
}

fn frame(frame: py_spy::Frame) -> Frame {
    Frame { function: frame.name, file: frame.filename, line: frame.line }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_is_read_from_the_environment() {
        let of = |variables: &[&str]| rank(variables.join("\0").as_bytes()).map(|r| (r.number, r.is_of_launcher));
        assert_eq!(of(&["PATH=/bin", "RANK=5", "LOCAL_RANK=1"]), Some((5, true)));
        assert_eq!(of(&["NODE_RANK=2", "RANK=2"]), Some((2, false)));
        assert_eq!(of(&["NODE_RANK=2"]), Some((2, false)));
        assert_eq!(of(&["NODE_RANK=2", "OMPI_COMM_WORLD_RANK=9"]), Some((9, false)));
        assert_eq!(of(&["PMI_RANK=9", "NODE_RANK=2"]), Some((9, false)));
        assert_eq!(of(&["RANKS=5", "MY_RANK=1", "RANK=x", "LOCAL_RANK=0"]), None);
        assert_eq!(of(&[]), None);
        assert_eq!(rank(&[0, 255, b'=', 0]), None);
    }

    #[test]
    fn main_process_of_each_rank_is_found() {
        let of = |number, is_of_launcher| Some(Rank { number, is_of_launcher });
        let parents = BTreeMap::from([(10, 1), (11, 10), (12, 10), (13, 11), (14, 1)]);
        let launched = BTreeMap::from([
            (10, (of(0, false), true)),
            (11, (of(4, true), true)),
            (12, (of(5, true), true)),
            (13, (of(4, true), true)),
            (14, (None, false)),
        ]);
        assert_eq!(main_processes(&parents, &launched), BTreeMap::from([(11, 4), (12, 5)]));
        let by_shell =
            BTreeMap::from([(10, (of(2, false), false)), (11, (of(2, false), true)), (13, (of(2, false), true))]);
        assert_eq!(main_processes(&parents, &by_shell), BTreeMap::from([(11, 2)]), "a shell has started it");
        let no_python = BTreeMap::from([(10, (of(2, false), false)), (11, (of(2, false), false))]);
        assert_eq!(main_processes(&parents, &no_python), BTreeMap::from([(10, 2)]));
        assert!(main_processes(&parents, &BTreeMap::new()).is_empty());
        let torn = BTreeMap::from([(5, 6), (6, 5)]);
        assert_eq!(main_processes(&torn, &BTreeMap::from([(5, (of(0, false), true))])), BTreeMap::from([(5, 0)]));
    }

    #[test]
    fn native_process_is_not_taken_for_python() {
        let pid = std::process::id().cast_signed();
        assert!(!is_python(pid));
        assert!(environment(0).is_empty() && command_of(&exposition::usage::stat_of_self().unwrap()).contains('/'));
    }
}
