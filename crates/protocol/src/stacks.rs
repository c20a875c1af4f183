//! Snapshot of a worker's processes: the call stacks of Python processes, and the kernel's state of every process. There is
//! no I/O.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;
use text::{printable, start_of};

/// Socket on which an agent serves stacks to the user of its container, within the agent's state folder.
pub const SOCKET: &str = "agent.sock";
/// Maximum number of processes in a snapshot.
pub const MAX_PROCESSES: usize = 64;
/// Maximum number of threads per process.
pub const MAX_THREADS: usize = 32;
/// Maximum number of frames per thread; the innermost ones are kept.
pub const MAX_FRAMES: usize = 64;
/// Maximum number of frames in total, so that a response stays below one megabyte.
pub const MAX_FRAMES_IN_ALL: usize = 2500;
/// Maximum bytes of a name, a path or a command.
const MAX_TEXT: usize = 120;

/// Snapshot of one worker's processes at one time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Stacks {
    /// Index of the worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<u32>,
    /// UID of its pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// Time of the snapshot.
    pub time: Timestamp,
    /// The processes, with the main process of each rank first.
    pub processes: Vec<ProcessStacks>,
    /// Number of processes left out for lack of room or time.
    pub left_out: usize,
}

/// One process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProcessStacks {
    /// Process ID within the container.
    pub pid: i32,
    /// The rank whose main process this is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u64>,
    /// Beginning of the command line.
    pub command: String,
    /// State according to the scheduler.
    pub state: ProcessState,
    /// Kernel function in which the main thread waits, if the kernel reports it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kernel: String,
    /// Version of Python; empty if the process runs no Python or its version can't be read.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub python: String,
    /// Python threads, the main one first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub threads: Vec<ThreadStack>,
    /// Reason for missing stacks, if the process runs Python.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub problem: String,
}

/// One Python thread.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ThreadStack {
    /// Name that the program gave the thread.
    pub name: String,
    /// Whether this is the process's first thread.
    pub is_main: bool,
    /// Frames, the innermost first.
    pub frames: Vec<Frame>,
}

/// One call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Frame {
    /// Name of the function.
    pub function: String,
    /// Source file of the function.
    pub file: String,
    /// Line being executed.
    pub line: i32,
}

/// State of a process's main thread, according to the scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProcessState {
    /// The thread computes.
    Running,
    /// The thread waits and can receive signals.
    Asleep,
    /// The thread waits for a disk, a file server or a driver, and can't receive signals.
    Blocked,
    /// A signal has stopped the thread.
    Stopped,
    /// A debugger has stopped the thread.
    Traced,
    /// The thread has ended.
    Ended,
    /// A state reported by a newer agent.
    #[default]
    #[serde(other)]
    Unknown,
}

impl ProcessState {
    /// Parses the state letter in `/proc/PID/stat`.
    #[must_use]
    pub fn from_letter(letter: char) -> Self {
        match letter {
            'R' => Self::Running,
            'S' | 'I' => Self::Asleep,
            'D' => Self::Blocked,
            'T' => Self::Stopped,
            't' => Self::Traced,
            'Z' | 'X' | 'x' => Self::Ended,
            _ => Self::Unknown,
        }
    }
}

impl fmt::Display for ProcessState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Running => "running",
            Self::Asleep => "asleep",
            Self::Blocked => "blocked in the kernel",
            Self::Stopped => "stopped (SIGSTOP)",
            Self::Traced => "stopped by a debugger",
            Self::Ended => "ended",
            Self::Unknown => "in an unknown state",
        })
    }
}

/// Location of a rank, which shows whether the others wait for it. The most suspicious location comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum StackLocation {
    /// A signal has stopped the rank.
    Stopped,
    /// The rank is outside of communication with other ranks.
    Elsewhere,
    /// The rank communicates with other ranks, or in a call that may wait for them.
    Collective,
    /// The location is unknown. Also stands for unknown values of a newer agent (serde requires it last).
    #[default]
    #[serde(other)]
    Unknown,
}

impl Stacks {
    /// Applies the limits of this version to counts and texts, whichever program wrote the snapshot.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        let mut frames = MAX_FRAMES_IN_ALL;
        self.left_out = self.left_out.saturating_add(self.processes.len().saturating_sub(MAX_PROCESSES));
        self.processes.truncate(MAX_PROCESSES);
        for process in &mut self.processes {
            for text in [&mut process.command, &mut process.kernel, &mut process.python, &mut process.problem] {
                *text = short(text);
            }
            process.threads.truncate(MAX_THREADS);
            for thread in &mut process.threads {
                thread.name = short(&thread.name);
                thread.frames.truncate(MAX_FRAMES.min(frames));
                frames -= thread.frames.len();
                for frame in &mut thread.frames {
                    (frame.function, frame.file) = (short(&frame.function), short_path(&frame.file));
                }
            }
        }
        self
    }

    /// The main process of each rank.
    pub fn ranks(&self) -> impl Iterator<Item = &ProcessStacks> {
        self.processes.iter().filter(|process| process.rank.is_some())
    }

    /// The process of the rank that the others seem to wait for; otherwise the process of any rank.
    #[must_use]
    pub fn blamed(&self) -> Option<&ProcessStacks> {
        self.ranks().min_by_key(|process| process.location())
    }

    /// The snapshot as lines for users.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.processes.iter().flat_map(ProcessStacks::lines).collect();
        if self.left_out > 0 {
            lines.push(format!("{} more processes, which are not shown", self.left_out));
        }
        lines
    }

    /// Location of the main thread of each rank, in at most `room` bytes.
    #[must_use]
    pub fn summary(&self, room: usize) -> String {
        let mut places: Vec<(String, Vec<u64>)> = Vec::new();
        for process in self.ranks() {
            let (Some(rank), Some(place)) = (process.rank, process.describe_location()) else { continue };
            match places.iter_mut().find(|(known, _)| *known == place) {
                Some((_, ranks)) => ranks.push(rank),
                None => places.push((place, vec![rank])),
            }
        }
        let mut summary = String::new();
        for (at, (place, ranks)) in places.iter().enumerate() {
            let numbers = ranks.iter().take(8).map(u64::to_string).collect::<Vec<_>>().join(", ");
            let who = match ranks.len() {
                1 => format!("rank {numbers} is"),
                2..=8 => format!("ranks {numbers} are"),
                more => format!("ranks {numbers} and {} more are", more - 8),
            };
            let part = format!("{}{who} {place}", if at == 0 { "" } else { "; " });
            if summary.len() + part.len() > room {
                break;
            }
            summary += &part;
        }
        summary
    }
}

impl ProcessStacks {
    /// Stack of the main thread.
    #[must_use]
    pub fn main(&self) -> Option<&ThreadStack> {
        self.threads.iter().find(|thread| thread.is_main && !thread.frames.is_empty())
    }

    /// Location of the process, which shows whether others wait for it.
    #[must_use]
    pub fn location(&self) -> StackLocation {
        match (self.state, self.main().and_then(|main| main.frames.first())) {
            (ProcessState::Stopped, _) => StackLocation::Stopped,
            (_, None) => StackLocation::Unknown,
            (_, Some(frame)) if frame.waits_for_others() => StackLocation::Collective,
            (_, Some(_)) => StackLocation::Elsewhere,
        }
    }

    /// The innermost call of the main thread, and its caller in the program's own code.
    fn describe_location(&self) -> Option<String> {
        let frames = &self.main()?.frames;
        let inner = frames.first()?;
        let caller = frames.iter().find(|frame| !frame.is_of_library()).filter(|caller| *caller != inner);
        let caller = caller.map(|caller| format!(", called from {caller}")).unwrap_or_default();
        Some(format!("in {inner}{caller}"))
    }

    fn lines(&self) -> Vec<String> {
        let who = self.rank.map(|rank| format!("rank {rank}, ")).unwrap_or_default();
        let python = if self.python.is_empty() { String::new() } else { format!(", Python {}", self.python) };
        let kernel = if self.kernel.is_empty() { String::new() } else { format!(" in {}", self.kernel) };
        let mut lines = vec![format!("{who}process {}{python}, {}{kernel}: {}", self.pid, self.state, self.command)];
        if !self.problem.is_empty() {
            lines.push(format!("    no Python stack: {}", self.problem));
        }
        for thread in &self.threads {
            lines.push(format!("  {}", if thread.is_main { "main thread" } else { thread.name.as_str() }));
            lines.extend(thread.frames.iter().map(|frame| format!("    {frame}")));
        }
        lines
    }
}

impl Frame {
    /// Whether ranks communicate in this frame, or wait for pending work: while a rank is here, it waits for others.
    fn waits_for_others(&self) -> bool {
        const EXCHANGES: [&str; 12] = [
            "torch/distributed/",
            "torch/nn/parallel/distributed.py",
            "torch/autograd/graph.py",
            "torch/autograd/__init__.py",
            "torch/cuda/",
            "deepspeed/comm/",
            "horovod/",
            "mpi4py/",
            "jax/experimental/multihost_utils.py",
            "jax/_src/distributed.py",
            "tensorflow/python/distribute/",
            "tensorflow/python/eager/",
        ];
        let is_own_work = self.file.contains("torch/distributed/checkpoint/");
        !is_own_work && EXCHANGES.iter().any(|known| self.file.contains(known))
    }

    /// Whether the frame belongs to Python itself or to an installed package.
    fn is_of_library(&self) -> bool {
        let is_of_python = self.file.split('/').any(|part| part.starts_with("python3.")) || self.file.starts_with('<');
        is_of_python || ["site-packages/", "dist-packages/"].iter().any(|folder| self.file.contains(folder))
    }
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}:{})", self.function, readable(&self.file), self.line)
    }
}

/// The path without the installation folder of packages.
fn readable(file: &str) -> &str {
    for folder in ["site-packages/", "dist-packages/"] {
        if let Some((_, rest)) = file.rsplit_once(folder) {
            return rest;
        }
    }
    file
}

fn short(text: &str) -> String {
    let text = printable(text.as_bytes());
    start_of(&text, MAX_TEXT).to_owned()
}

/// Keeps the end of a path, which is more specific than its beginning.
fn short_path(path: &str) -> String {
    let path = printable(path.as_bytes());
    let start = path.len().saturating_sub(MAX_TEXT);
    let start = (start..=path.len()).find(|at| path.is_char_boundary(*at)).unwrap_or(path.len());
    start_of(&path[start..], MAX_TEXT).to_owned()
}

/// Stacks for the tests of this crate and others.
#[cfg(any(test, feature = "testing"))]
pub mod testing {
    use super::{Frame, ProcessStacks, ProcessState, ThreadStack};

    /// Creates a frame of a stack.
    #[must_use]
    pub fn frame(function: &str, file: &str, line: i32) -> Frame {
        Frame { function: function.into(), file: file.into(), line }
    }

    /// Creates the process of a rank, with one thread.
    ///
    /// # Panics
    /// If the rank does not fit into an `i32`.
    #[must_use]
    #[expect(clippy::unwrap_used, reason = "for tests")]
    pub fn rank(rank: u64, state: ProcessState, frames: &[(&str, &str, i32)]) -> ProcessStacks {
        let frames = frames.iter().map(|(function, file, line)| frame(function, file, *line)).collect();
        ProcessStacks {
            pid: 50 + i32::try_from(rank).unwrap(),
            rank: Some(rank),
            state,
            command: "python3 train.py".into(),
            threads: vec![ThreadStack { name: "MainThread".into(), is_main: true, frames }],
            ..ProcessStacks::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{frame, rank};
    use super::*;

    const REDUCES: [(&str, &str, i32); 3] = [
        ("all_reduce", "/usr/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 2806),
        ("wrapper", "/usr/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", 81),
        ("step", "/app/train.py", 41),
    ];

    #[test]
    fn process_that_others_wait_for_is_blamed() {
        use ProcessState::{Asleep, Running, Stopped};
        let blamed = |processes: Vec<ProcessStacks>| {
            Stacks { processes, ..Stacks::default() }
                .blamed()
                .map(|process| (process.rank.unwrap(), process.location()))
        };
        let reads = [("read", "/app/data.py", 7)];
        let all = vec![rank(0, Asleep, &REDUCES), rank(1, Asleep, &reads), rank(2, Running, &REDUCES)];
        assert_eq!(blamed(all.clone()), Some((1, StackLocation::Elsewhere)));
        let stopped = rank(3, Stopped, &REDUCES);
        assert_eq!(blamed([all.clone(), vec![stopped]].concat()), Some((3, StackLocation::Stopped)));
        assert_eq!(
            blamed(vec![rank(0, Asleep, &REDUCES), rank(1, Asleep, &REDUCES)]),
            Some((0, StackLocation::Collective))
        );
        assert_eq!(blamed(vec![rank(0, Asleep, &[])]), Some((0, StackLocation::Unknown)));
        assert_eq!(blamed(vec![]), None);
    }

    /// Files and functions with similar names that do not communicate.
    #[test]
    fn collective_lookalikes_do_not_wait_for_others() {
        for file in [
            "/app/torch_distributed.py",
            "/app/distributed.py",
            "/usr/lib/python3.11/site-packages/torch/distributed/checkpoint/filesystem.py",
            "/usr/lib/python3.11/site-packages/torch/utils/data/dataloader.py",
            "/app/cuda/all_reduce.py",
        ] {
            assert!(!frame("all_reduce", file, 1).waits_for_others(), "{file}");
        }
    }

    #[test]
    fn stack_summary_names_each_place_once() {
        use ProcessState::Asleep;
        let processes =
            vec![rank(0, Asleep, &REDUCES), rank(1, Asleep, &[("read", "/app/data.py", 7)]), rank(2, Asleep, &REDUCES)];
        let stacks = Stacks { processes, ..Stacks::default() };
        let all = "ranks 0, 2 are in all_reduce (torch/distributed/distributed_c10d.py:2806), called from step \
                   (/app/train.py:41); rank 1 is in read (/app/data.py:7)";
        assert_eq!(stacks.summary(400), all);
        assert_eq!(stacks.summary(all.len() - 1), all.split("; ").next().unwrap());
        assert_eq!(stacks.summary(3), "");
        let lines = stacks.lines();
        assert_eq!(lines[0], "rank 0, process 50, asleep: python3 train.py");
        assert_eq!((lines[1].as_str(), lines[4].as_str()), ("  main thread", "    step (/app/train.py:41)"));
    }

    #[test]
    fn stacks_from_untrusted_programs_are_bounded() {
        let frames = vec![frame(&"fffff\u{1b}[31m".repeat(50), &"/ü".repeat(100), -1); 65];
        let thread = ThreadStack { name: "n".repeat(500), is_main: false, frames };
        let process =
            ProcessStacks { command: "c\n".repeat(500), threads: vec![thread; 33], ..ProcessStacks::default() };
        let stacks = Stacks { processes: vec![process; 65], ..Stacks::default() }.bounded();
        assert_eq!((stacks.processes.len(), stacks.left_out), (MAX_PROCESSES, 1));
        let json = serde_json::to_string(&stacks).unwrap();
        assert!(json.len() < 1 << 20, "{}", json.len());
        assert!(!json.contains("\\u001b") && !json.contains("\\n"), "no control characters");
        assert_eq!(serde_json::from_str::<Stacks>(&json).unwrap(), stacks);
    }
}
