//! Lines in which libraries report what is about to end a program. They are evidence, not a verdict.

use crate::split_rank;
use jiff::{SignedDuration, Timestamp};
use regex::bytes::{Regex, RegexSet};
use serde::{Deserialize, Serialize};
use std::sync::LazyLock;

/// A program that ran longer than this after an error did not end because of that error.
pub const FOLLOWS: SignedDuration = SignedDuration::from_mins(5);

/// The kind of error that a line reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ErrorPattern {
    /// A collective timed out.
    NcclTimeout,
    /// NCCL failed in another way.
    NcclError,
    /// A GPU ran out of memory.
    CudaOutOfMemory,
    /// The loss is NaN or infinite.
    NanLoss,
    /// A GPU or its link is broken.
    GpuHardware,
    /// `mpirun` has lost its daemon on another worker. The `mpirun` of Open MPI 5 then still exits with 0.
    LostDaemon,
    /// The program hangs. No line reports that.
    Hang,
    /// A kind that only a newer agent knows.
    #[default]
    #[serde(other)]
    Other,
}

impl ErrorPattern {
    /// Number of kinds that an agent may find in lines.
    pub const COUNT: usize = 6;
}

/// The first line of the last series of one kind. Lines of a series follow each other within [`FOLLOWS`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ErrorMatch {
    /// When the agent read it, to the millisecond.
    pub time: Timestamp,
    /// When the agent read the last line, to the millisecond.
    pub last_time: Timestamp,
    /// The kind of error. The times come before it, because the end of a report may be cut off.
    pub kind: ErrorPattern,
    /// Number of lines of this kind.
    pub count: u64,
    /// The line.
    pub text: String,
}

impl ErrorMatch {
    /// Whether the last line came within `time` before `end`.
    pub fn is_within(&self, time: SignedDuration, end: Timestamp) -> bool {
        end.duration_since(self.time.max(self.last_time)) <= time
    }
}

/// Returns the rank that printed `line`, if known, and the line without the place in the source that logged it.
pub fn words(line: &str) -> (Option<u64>, &str) {
    let (rank, mut words) = split_rank(line.trim());
    while let Some((_, rest)) = words.strip_prefix('[').and_then(|words| words.split_once("] ")) {
        words = rest;
    }
    (rank, words)
}

/// Adds a line of this kind to `matches`. Returns whether it is the first one, or the first one for [`FOLLOWS`].
pub fn add(matches: &mut Vec<ErrorMatch>, kind: ErrorPattern, text: impl FnOnce() -> String, time: Timestamp) -> bool {
    if let Some(sign) = matches.iter_mut().find(|sign| sign.kind == kind) {
        let is_new = !sign.is_within(FOLLOWS, time);
        if is_new {
            (sign.time, sign.text) = (time, text());
        }
        (sign.last_time, sign.count) = (time, sign.count + 1);
        return is_new;
    }
    matches.push(ErrorMatch { kind, time, last_time: time, text: text(), count: 1 });
    true
}

/// Hardware errors as CUDA, HIP and NCCL quote them, and those of the driver in the kernel's log. Errors of the
/// program's kernels (an illegal address, an assertion) do not count. It comes before NCCL's errors, which quote it.
const HARDWARE: (ErrorPattern, &str) = (
    ErrorPattern::GpuHardware,
    r"(?x) (?:^|[:'(\]]\ ?|error\ ) uncorrectable\ (?:ECC\ error\ encountered|NVLink\ error\ detected\ during\ the\ execution) (?:['.\s)]|$)
    | \bCUDA_ERROR_(?:ECC|NVLINK)_UNCORRECTABLE\b | \bcudaError(?:ECC|Nvlink)Uncorrectable\b | \bhipErrorECCNotCorrectable\b
    | \bNVRM:\ Xid\ \(PCI:[0-9a-fA-F:.]+\):\ (?:48|61|62|64|74|79|92|94|95|119|120|140),
    | \bSXid\ \(PCI:[0-9a-fA-F:.]+\):\ \d+,\ Fatal\b
    | \bGPU\ is\ lost\.\s+Reboot\ the\ system\ to\ recover\ this\ GPU",
);

/// Returns the kind of error that `line` reports. A NaN loss is not among them, because it requires parsing.
pub fn of_line(line: &[u8]) -> Option<ErrorPattern> {
    const KINDS: [(ErrorPattern, &str); 5] = [
        HARDWARE,
        // torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, which aborts the process after either.
        (
            ErrorPattern::NcclTimeout,
            r"[Ww]atchdog caught collective operation timeout|ProcessGroupNCCL's watchdog got stuck",
        ),
        (
            ErrorPattern::NcclError,
            r"NCCL [Ee]rror|Some NCCL operations have failed or timed out|\bnccl[A-Z][A-Za-z]+Error\b|NCCL communicator (?:encountered error|was aborted)",
        ),
        // PyTorch, the driver's API, JAX, TensorFlow.
        (
            ErrorPattern::CudaOutOfMemory,
            r"(?:CUDA|HIP) out of memory|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY|CUBLAS_STATUS_ALLOC_FAILED|RESOURCE_EXHAUSTED: Out of memory|OOM when allocating tensor",
        ),
        // Open MPI 4 and 5 print this as a paragraph of its own.
        (
            ErrorPattern::LostDaemon,
            r"^(?:ORTE|PRTE) has lost communication with a remote daemon\.$|^A daemon failed to report back after being spawned\. This could$",
        ),
    ];
    // One search instead of five for nearly every line.
    static ANY: LazyLock<Regex> = LazyLock::new(|| {
        crate::constant_bytes(
            r"(?-u)[Uu]ncorrectable|UNCORRECTABLE|NotCorrectable|Xid \(|GPU is lost|NCCL|nccl|[Oo]ut of memory|OUT_OF_MEMORY|ALLOC_FAILED|OOM|atchdog|RTE has lost|A daemon failed",
        )
    });
    #[expect(clippy::expect_used, reason = "a constant")]
    static EACH: LazyLock<RegexSet> =
        LazyLock::new(|| RegexSet::new(KINDS.map(|(_, pattern)| format!("(?-u){pattern}"))).expect("constants"));
    if !ANY.is_match(line) {
        return None;
    }
    EACH.matches(line).into_iter().next().map(|index| KINDS[index].0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_line_matches_its_pattern() {
        use ErrorPattern::{CudaOutOfMemory, LostDaemon, NcclError, NcclTimeout};
        for (line, kind) in [
            (
                "[rank3]:[E302 10:00:00.1 ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.",
                Some(NcclTimeout),
            ),
            (
                "[rank0]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2251, remote process exited or there was a network error",
                Some(NcclError),
            ),
            (
                "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
                Some(NcclError),
            ),
            ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", Some(CudaOutOfMemory)),
            ("RuntimeError: CUDA error: out of memory", Some(CudaOutOfMemory)),
            (
                "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate",
                Some(CudaOutOfMemory),
            ),
            ("PRTE has lost communication with a remote daemon.", Some(LostDaemon)),
            ("ORTE has lost communication with a remote daemon.", Some(LostDaemon)),
            ("A daemon failed to report back after being spawned. This could", Some(LostDaemon)),
            ("A daemon failed to report back after being spawned.", None),
            ("A daemon failed to report back after being spawned. This could be why", None),
            ("> A daemon failed to report back after being spawned. This could", None),
            ("A daemon failed to start", None),
            ("a daemon failed to report back after being spawned. This could", None),
            ("if PRTE has lost communication with a remote daemon.", None),
            ("PRTE has lost communication with a remote daemon, and tries again.", None),
            ("PRTE has lost communication with a remote daemon", None),
            ("the store has lost communication with a remote daemon.", None),
            ("PRTE has lost nothing", None),
            ("Warning: Environment variable NCCL_ASYNC_ERROR_HANDLING is deprecated", None),
            ("NCCL version 2.27.5+cuda12.9", None),
            ("worker-0:55:61 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>", None),
            ("Out of memory is not what this line is about", None),
            ("epoch 3 loss 0.1", None),
        ] {
            assert_eq!(of_line(line.as_bytes()), kind, "{line}");
        }
    }

    #[test]
    fn gpu_hardware_errors_differ_from_program_errors() {
        for line in [
            "RuntimeError: CUDA error: uncorrectable ECC error encountered",
            "torch.AcceleratorError: CUDA error: uncorrectable NVLink error detected during the execution",
            "[rank3]:[E1 ProcessGroupNCCL.cpp:1895] NCCL watchdog thread terminated with exception: CUDA error: uncorrectable ECC error encountered",
            "x:1:2 [0] enqueue.cc:99 NCCL WARN Cuda failure 'uncorrectable ECC error encountered'",
            "x:1:2 [0] enqueue.cc:99 NCCL WARN Cuda failure 214 'uncorrectable ECC error encountered'",
            "jaxlib.xla_extension.XlaRuntimeError: INTERNAL: CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error encountered",
            "cupy_backends.cuda.api.runtime.CUDARuntimeError: cudaErrorECCUncorrectable: uncorrectable ECC error encountered",
            "thrust::system_error: after synchronize: uncorrectable ECC error encountered",
            "HIP error 214: hipErrorECCNotCorrectable",
            "[ 12.3] NVRM: Xid (PCI:0000:3b:00): 79, pid=12, GPU has fallen off the bus.",
            "NVRM: Xid (PCI:0000:3b:00.0): 94, pid=12, name=python, Contained: SM (0x1).",
            "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Fatal, Link 32 egress non-posted PRIV error",
            "Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.  Reboot the system to recover this GPU",
        ] {
            assert_eq!(of_line(line.as_bytes()), Some(ErrorPattern::GpuHardware), "{line}");
        }
        for line in [
            "RuntimeError: CUDA error: device-side assert triggered",
            "RuntimeError: CUDA error: an illegal memory access was encountered",
            "RuntimeError: CUDA error: unspecified launch failure",
            "RuntimeError: CUDA error: no kernel image is available for execution on the device",
            "no uncorrectable ECC error encountered",
            "check: uncorrectable ECC error encountered: 0",
            "uncorrectable ECC errors: 0",
            "0 uncorrectable ECC error encountered in 3 h",
            "if uncorrectable ECC error encountered, stop",
            "uncorrectable NVLink error rate 0",
            "ECC is on, errors are correctable",
            "NVRM: Xid (PCI:0000:3b:00): 13, pid=12, Graphics Exception",
            "NVRM: Xid (PCI:0000:3b:00): 31, pid=12, Ch 8, MMU Fault",
            "NVRM: Xid (PCI:0000:3b:00): 43, pid=12, Ch 8",
            "NVRM: Xid (PCI:0000:3b:00): 63, pid=12, Row Remapper",
            "watching for NVRM: Xid (79)",
            "Xid 79 is what we look for",
            "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Non-fatal, Link 32",
            "NVLink bandwidth: 450 GB/s",
            "the GPU is lost. Reboot?",
        ] {
            assert_eq!(of_line(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn message_is_separated_from_its_log_prefix() {
        let line = "[rank3]:[E302 10:00:00.1 ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog caught it";
        assert_eq!(words(line), (Some(3), "Watchdog caught it"));
        assert_eq!(words("CUDA error: out of memory"), (None, "CUDA error: out of memory"));
        assert_eq!(words("[open"), (None, "[open"));
    }

    #[test]
    fn first_match_is_kept_until_a_long_gap() {
        let mut signs = Vec::new();
        let at = Timestamp::from_second;
        assert!(add(&mut signs, ErrorPattern::NanLoss, || "a".to_owned(), at(1).unwrap()));
        assert!(!add(&mut signs, ErrorPattern::NanLoss, || "b".to_owned(), at(2).unwrap()));
        assert!(add(&mut signs, ErrorPattern::NcclError, || "c".to_owned(), at(3).unwrap()));
        assert_eq!(signs.iter().map(|sign| (sign.text.as_str(), sign.count)).collect::<Vec<_>>(), [("a", 2), ("c", 1)]);
        assert!(add(&mut signs, ErrorPattern::NanLoss, || "d".to_owned(), at(1000).unwrap()));
        assert!(!add(&mut signs, ErrorPattern::NanLoss, || "e".to_owned(), at(1200).unwrap()));
        let sign = &signs[0];
        assert_eq!((sign.text.as_str(), sign.count, sign.last_time), ("d", 4, at(1200).unwrap()));
    }
}
