//! Uncaught Python exceptions, as `sitecustomize.py` reports them.

use crate::error_pattern;
use crate::error_pattern::ErrorPattern;
use crate::origin::{FailureOrigin, origin_of};
use crate::start_of;
use crate::traceback::nested;
use jiff::Timestamp;
use regex::Regex;
use serde::{Deserialize, Serialize};
use std::sync::LazyLock;

/// An exception that ended a Python program or one of its threads.
///
/// The fields by which it is judged come before its class, because the end of a report may be cut off.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Exception {
    /// Rank of the process: RANK, the rank that an MPI gives it, else LOCAL_RANK.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u64>,
    /// Name of the thread, if it was not the main one. The program may have continued without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// Whether the process was the program itself, and not a process that the program had started. Absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_program: Option<bool>,
    /// When it was raised, to the millisecond.
    pub time: Timestamp,
    /// The class with its module, as in a traceback: `ValueError`, `torch.OutOfMemoryError`.
    #[serde(rename = "type")]
    pub class: String,
    /// File of the innermost frame that is in the user's code and not in a library.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// Where it was raised, if another process passed it on, for example `DataLoader worker process 0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub within: Option<String>,
    pub message: String,
}

/// A line that the hook printed.
#[derive(Debug, PartialEq)]
pub enum HookLine {
    /// A Python process that reports its exceptions has started.
    Hello,
    /// An exception has ended a Python process or one of its threads.
    Raised {
        /// The exception.
        exception: Box<Exception>,
        /// PID of the process that started this one.
        parent: Option<u32>,
        /// Whether Python itself called the hook and is ending. A program may also call the hook and continue.
        ends: bool,
    },
}

impl HookLine {
    /// Parses a line. Returns `None` for an exception that is no cause, such as torchrun's report of a failed rank.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a cast of a float saturates, and jiff refuses what is no time"
    )]
    pub fn parse(line: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct Line {
            #[serde(default)]
            hello: bool,
            seconds: f64,
            #[serde(default)]
            parent: Option<u32>,
            #[serde(default = "yes")]
            ends: bool,
            #[serde(flatten)]
            exception: Exception,
        }
        fn yes() -> bool {
            true
        }
        let Line { hello, seconds, parent, ends, exception } = serde_json::from_slice(line).ok()?;
        if hello {
            return Some(Self::Hello);
        }
        let name = exception.class.rsplit('.').next()?;
        let is_interrupt = ["", "ChildFailedError", "KeyboardInterrupt"].contains(&name);
        if is_interrupt || is_of_signal(&exception.class, &exception.message) {
            return None;
        }
        let time = Timestamp::from_millisecond((seconds * 1000.0) as i64).ok()?;
        let exception = Box::new(Exception { time, ..exception }.innermost());
        Some(Self::Raised { exception, parent, ends })
    }
}

/// Whether torchrun raised this because it got a signal, so that it says nothing that the signal does not say.
pub fn is_of_signal(class: &str, message: &str) -> bool {
    static MESSAGE: LazyLock<Regex> = LazyLock::new(|| crate::constant(r"^Process \d+ got signal: [\w.]+$"));
    class.rsplit('.').next() == Some("SignalException") && MESSAGE.is_match(message)
}

impl Exception {
    /// Returns the exception that another process raised, if this one only passes it on.
    fn innermost(mut self) -> Self {
        let Some(nested) = nested(&self.message) else {
            if let Some(message) = first_stating_line(&self.class, &self.message) {
                self.message = message;
            }
            return self;
        };
        let (class, message, within) = (nested.class.to_owned(), nested.message.to_owned(), nested.process);
        // MXNet raises these in C++, without a module in the class. The program's own call is more informative.
        let is_native = [".h", ".cc", ".cpp", ".cu", ".cuh"].iter().any(|end| nested.file.ends_with(end));
        if is_native {
            return Self { message, ..self };
        }
        (self.file, self.line) = (Some(nested.file.to_owned()), Some(nested.line));
        Self { class, within, message, ..self }
    }

    /// Truncates long fields, so that the exception takes this many bytes or little more in a report.
    pub fn fit(&mut self, room: usize) {
        self.class.truncate(start_of(&self.class, 100).len());
        self.message.truncate(start_of(&self.message, room).len());
        for (text, room) in [(&mut self.file, 120), (&mut self.thread, 40), (&mut self.within, 60)] {
            _ = text.as_mut().map(|text| text.truncate(start_of(text, room).len()));
        }
    }

    /// Whether it only reports that a child process has failed.
    pub fn is_of_child(&self) -> bool {
        self.class.rsplit('.').next() == Some("CalledProcessError")
    }

    /// Whose failure it reports.
    pub fn origin(&self) -> FailureOrigin {
        origin_of(&format!("{}: {}", self.class, self.message))
    }

    fn first_line(&self) -> Option<&str> {
        self.message.lines().map(str::trim).find(|line| !line.is_empty())
    }

    /// Whether `line` is the line by which Python ended this traceback.
    pub fn is_in(&self, line: &str) -> bool {
        let Some((_, reported)) = line.split_once(&self.class) else { return false };
        let reported = reported.trim_start_matches(':').trim();
        let begins = |message: &str| reported.ends_with(':') && message.starts_with(reported);
        self.first_line().is_none_or(|message| reported.contains(message) || begins(message))
    }

    /// `[rank3]: ValueError: bad shape at train.py:88`, with the mark that PyTorch gives its lines.
    pub fn summary(&self) -> String {
        let rank = self.rank.map(|rank| format!("[rank{rank}]: ")).unwrap_or_default();
        format!("{rank}{}", self.text())
    }

    /// The same without the rank.
    pub fn text(&self) -> String {
        let message = self.first_line().map(|message| format!(": {message}")).unwrap_or_default();
        // NCCL's message names the cause in a later line. Its first line says only that NCCL failed.
        let last_error = self.message.split_once("Last error:\n").and_then(|(_, error)| error.lines().next());
        let last_error = last_error.map(|error| format!(" ({})", error.trim())).unwrap_or_default();
        let thread = self.thread.as_ref().map(|thread| format!(" in thread {thread}")).unwrap_or_default();
        let place = match (&self.file, self.line) {
            (Some(file), Some(line)) => format!(" at {file}:{line}"),
            (Some(file), None) => format!(" at {file}"),
            _ => String::new(),
        };
        let within = self.within.as_ref().map(|process| format!(" in {process}")).unwrap_or_default();
        format!("{}{message}{last_error}{thread}{within}{place}", self.class)
    }
}

/// Returns the message with the cause in its first line, if the first line says only that something failed.
fn first_stating_line(class: &str, message: &str) -> Option<String> {
    let (first, rest) = message.trim_start().split_once('\n')?;
    let cause = match class.rsplit('.').next()? {
        // XGBoost's collectives put the innermost cause last, before the addresses of the stack.
        "XGBoostError" if first.ends_with(':') => {
            let lines = rest.lines().take_while(|line| *line != "Stack trace:");
            lines.filter_map(|line| line.strip_prefix("- [")?.split_once("]: ")).last()?.1
        }
        // TensorFlow puts the cause after the origin of the graph's node, if it prints that origin.
        _ if class.starts_with("tensorflow.") && first == "Graph execution error:" => {
            let is_of_place = |line: &str| {
                let starts = ["Detected at node ", "Stack trace for op ", "<stack traces unavailable>"];
                line.starts_with([' ', '\t']) || starts.iter().any(|start| line.starts_with(start))
            };
            rest.lines().find(|line| !line.trim().is_empty() && !is_of_place(line))?
        }
        _ => return None,
    };
    Some(format!("{first} {}\n{rest}", cause.trim()))
}

/// The kind of failure that an exception reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExceptionKind {
    /// A module, or a name imported from it, is missing.
    Import,
    /// A source file is not valid Python.
    Syntax,
    /// A GPU ran out of memory.
    CudaOutOfMemory,
    /// A GPU or its link is broken.
    GpuHardware,
    /// A collective timed out.
    NcclTimeout,
    /// NCCL failed in another way.
    NcclError,
    /// The program stopped itself because its loss was NaN or infinite.
    NanLoss,
    Other,
}

/// Returns the kind of failure that an exception of this class and message reports.
pub fn sort(class: &str, message: &str) -> ExceptionKind {
    static NO_NUMBER: LazyLock<Regex> =
        LazyLock::new(|| crate::constant(r"(?i)\b(?:nan|inf|infinity|infinite|non-?finite|not finite)\b"));
    match error_pattern::of_line(format!("{class}: {message}").as_bytes()) {
        Some(ErrorPattern::CudaOutOfMemory) => return ExceptionKind::CudaOutOfMemory,
        Some(ErrorPattern::GpuHardware) => return ExceptionKind::GpuHardware,
        Some(ErrorPattern::NcclTimeout) => return ExceptionKind::NcclTimeout,
        Some(ErrorPattern::NcclError) => return ExceptionKind::NcclError,
        _ => {}
    }
    match class.rsplit('.').next().unwrap_or(class) {
        "ImportError" | "ModuleNotFoundError" => ExceptionKind::Import,
        "SyntaxError" | "IndentationError" | "TabError" => ExceptionKind::Syntax,
        "OutOfMemoryError" if class.starts_with("torch") => ExceptionKind::CudaOutOfMemory, // of any other accelerator
        _ if message.to_lowercase().contains("loss") && NO_NUMBER.is_match(message) => ExceptionKind::NanLoss,
        _ => ExceptionKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &[u8]) -> Option<Exception> {
        match HookLine::parse(line)? {
            HookLine::Raised { exception, .. } => Some(*exception),
            HookLine::Hello => None,
        }
    }

    #[test]
    fn exception_hook_line_is_parsed() {
        let line = br#"{"type": "torch.OutOfMemoryError", "message": "CUDA out of memory.\nTried", "file": "train.py", "line": 88, "rank": 3, "thread": null, "seconds": 1763730000.1234}"#;
        let exception = parse(line).unwrap();
        assert_eq!(exception.summary(), "[rank3]: torch.OutOfMemoryError: CUDA out of memory. at train.py:88");
        assert_eq!(exception.time.to_string(), "2025-11-21T13:00:00.123Z");
        let nccl = br#"{"type": "E", "message": "NCCL error\nncclSystemError: x\nLast error:\nsocket: refused\n", "seconds": 1}"#;
        assert_eq!(parse(nccl).unwrap().summary(), "E: NCCL error (socket: refused)");
        let bare = br#"{"type": "Stop", "message": "", "seconds": 1, "thread": "Thread-1"}"#;
        assert_eq!(parse(bare).unwrap().summary(), "Stop in thread Thread-1");
    }

    #[test]
    fn torchruns_exception_at_a_signal_is_no_cause() {
        let parsed = |class: &str, message: &str| {
            parse(format!(r#"{{"type": "{class}", "message": "{message}", "seconds": 1}}"#).as_bytes())
        };
        for class in ["SignalException", "torch.distributed.elastic.multiprocessing.api.SignalException"] {
            assert_eq!(parsed(class, "Process 7 got signal: 15"), None);
        }
        for (class, message) in [
            ("SignalException", "Process 7 got signal: 15 and ignored it"),
            ("SignalException", "the worker got signal: 15"),
            ("mine.SignalException", "no signal"),
            ("SignalException", ""),
            ("mine.Signal", "Process 7 got signal: 15"),
        ] {
            assert!(parsed(class, message).is_some(), "{class}: {message}");
        }
    }

    #[test]
    fn exception_of_another_process_is_unwrapped() {
        let message = r#"Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n  File \"/a/train.py\", line 12, in get\n    x\nRuntimeError: CUDA error: out of memory\n"#;
        let line =
            format!(r#"{{"type": "RuntimeError", "message": "{message}", "file": "t.py", "line": 3, "seconds": 1}}"#);
        let exception = parse(line.as_bytes()).unwrap();
        assert_eq!(
            exception.summary(),
            "RuntimeError: CUDA error: out of memory in DataLoader worker process 0 at /a/train.py:12"
        );
        assert_eq!(sort(&exception.class, &exception.message), ExceptionKind::CudaOutOfMemory);
    }

    #[test]
    fn exceptions_are_sorted_by_class_and_message() {
        for (class, message, expected) in [
            ("ModuleNotFoundError", "No module named 'x'", ExceptionKind::Import),
            ("ImportError", "cannot import name 'x' from 'y'", ExceptionKind::Import),
            ("IndentationError", "unexpected indent (t.py, line 3)", ExceptionKind::Syntax),
            (
                "torch.OutOfMemoryError",
                "CUDA out of memory. Tried to allocate 2.00 GiB.",
                ExceptionKind::CudaOutOfMemory,
            ),
            ("torch.cuda.OutOfMemoryError", "XPU out of memory.", ExceptionKind::CudaOutOfMemory),
            ("RuntimeError", "CUDA error: out of memory\nCUDA kernel errors might be", ExceptionKind::CudaOutOfMemory),
            ("jaxlib._jax.XlaRuntimeError", "RESOURCE_EXHAUSTED: Out of memory while", ExceptionKind::CudaOutOfMemory),
            (
                "torch.distributed.DistBackendError",
                "NCCL error in: x.cpp:1, unhandled system error",
                ExceptionKind::NcclError,
            ),
            (
                "torch.DistBackendError",
                "[Rank 0] Watchdog caught collective operation timeout",
                ExceptionKind::NcclTimeout,
            ),
            (
                "torch.AcceleratorError",
                "CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be",
                ExceptionKind::GpuHardware,
            ),
            (
                "DistBackendError",
                "NCCL error in: x.cpp:1, unhandled cuda error\nLast error:\nCuda failure 'uncorrectable ECC error encountered'",
                ExceptionKind::GpuHardware,
            ),
            ("RuntimeError", "CUDA error: device-side assert triggered", ExceptionKind::Other),
            ("ValueError", "The loss returned in `training_step` is nan.", ExceptionKind::NanLoss),
            (
                "RuntimeError",
                "Function 'MseLossBackward0' returned nan values in its 0th output.",
                ExceptionKind::NanLoss,
            ),
            ("AssertionError", "loss is not finite", ExceptionKind::NanLoss),
            ("FloatingPointError", "overflow encountered in exp", ExceptionKind::Other),
            ("ValueError", "unknown loss info_nce", ExceptionKind::Other),
            ("MemoryError", "", ExceptionKind::Other),
        ] {
            assert_eq!(sort(class, message), expected, "{class}: {message}");
        }
    }

    fn raised(class: &str, message: &str) -> Exception {
        let line =
            serde_json::json!({ "type": class, "message": message, "file": "train.py", "line": 8, "seconds": 1 });
        parse(line.to_string().as_bytes()).unwrap()
    }

    /// Messages as XGBoost 3.4, TensorFlow 2.21 and MXNet 1.9 print them.
    #[test]
    fn cause_replaces_uninformative_first_message_line() {
        const GRAPH: &str = "tensorflow.python.framework.errors_impl.InvalidArgumentError";
        let ring = "[08:23:09] /workspace/src/collective/result.cc:83: [metric.cu:358|08:23:09]:\n\n\
                    - [allreduce.cc:135|08:23:09]: Ring Allreduce failed.\n\
                    - [socket.h:79|08:23:09]: Poll error condition:Success code:0\n\
                    Stack trace:\n  [bt] (0) libxgboost.so(+0x1) [0x2]\n";
        let graph = "Graph execution error:\n\nDetected at node f/GatherV2 defined at (most recent call last):\n  \
                     File \"train.py\", line 5, in <module>\n\n  File \"trainer.py\", line 399, in fit\n\n\
                     indices[0,1] = 11 is not in [0, 10)\n\t [[{{node f/GatherV2}}]] [Op:__inference_f_56]";
        let unknown = "Graph execution error:\n\nDetected at node f defined at (most recent call last):\n\
                       <stack traces unavailable>\nfailed to connect to all addresses";
        let native = "Traceback (most recent call last):\n  File \"../src/operator/tensor/./dot-inl.h\", line 1241\n\
                      MXNetError: Check failed: (3 vs. 4) : dot shape error: [2,3] X [4,5]";
        for (class, message, reported) in [
            (
                "xgboost._c_api.XGBoostError",
                ring,
                "[08:23:09] /workspace/src/collective/result.cc:83: [metric.cu:358|08:23:09]: Poll error condition:Success code:0",
            ),
            (GRAPH, graph, "Graph execution error: indices[0,1] = 11 is not in [0, 10)"),
            (GRAPH, unknown, "Graph execution error: failed to connect to all addresses"),
            ("mxnet.base.MXNetError", native, "Check failed: (3 vs. 4) : dot shape error: [2,3] X [4,5]"),
        ] {
            let exception = raised(class, message);
            assert_eq!(exception.text(), format!("{class}: {reported} at train.py:8"));
            if class != "mxnet.base.MXNetError" {
                assert!(exception.is_in(&format!("{class}: {}", message.lines().next().unwrap())));
            }
        }
        assert_eq!(raised(GRAPH, graph).origin(), FailureOrigin::Own);
        assert_eq!(raised("xgboost.core.XGBoostError", ring).origin(), FailureOrigin::Peer);
    }

    #[test]
    fn ordinary_exception_messages_are_unchanged() {
        for (class, message) in [
            (
                "xgboost.core.XGBoostError",
                "[08:35:59] data.cc:568: Check failed: valid: Label contains NaN.\nStack trace:\n  [bt]",
            ),
            ("xgboost.core.XGBoostError", "no such parameter:\nmax_dept"),
            ("ValueError", "bad rows:\n- [3]: no label"),
            ("tensorflow.python.framework.errors_impl.NotFoundError", "Graph not found:\nmodel.pb"),
            ("mylib.GraphError", "Graph execution error:\nno such node"),
            ("RuntimeError", "Error in the kernel:\n  File \"dot-inl.h\", line 1241"),
        ] {
            assert_eq!(raised(class, message).message, message);
        }
    }

    #[test]
    fn lines_without_a_cause_are_not_parsed() {
        for class in ["torch.distributed.elastic.multiprocessing.errors.ChildFailedError", "KeyboardInterrupt", ""] {
            let line = format!(r#"{{"type": "{class}", "message": "x", "seconds": 1}}"#);
            assert_eq!(parse(line.as_bytes()), None);
        }
        for line in ["", "{}", "x", r#"{"type": "E", "seconds": 1e300}"#] {
            assert_eq!(parse(line.as_bytes()), None, "{line}");
        }
    }
}
