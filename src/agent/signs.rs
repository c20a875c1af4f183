//! Lines by which libraries tell what is about to end a program, as evidence and not as a verdict.

use jiff::Timestamp;
use regex::bytes::{Regex, RegexSet};
use serde::{Deserialize, Serialize};
use std::sync::LazyLock;

/// What such a line is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum SignKind {
    /// A collective did not end in time.
    NcclTimeout,
    /// NCCL failed otherwise.
    NcclError,
    /// The memory of a GPU did not suffice.
    CudaOutOfMemory,
    /// The loss is NaN or infinite.
    NanLoss,
    /// What a newer agent may name.
    #[default]
    #[serde(other)]
    Other,
}

impl SignKind {
    /// How many kinds an agent knows.
    pub const COUNT: usize = 4;
}

/// The first line of its kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Sign {
    pub kind: SignKind,
    /// When the agent read it, to the millisecond.
    pub time: Timestamp,
    /// The line.
    pub text: String,
    /// How many lines of this kind there were.
    pub count: u64,
}

/// Files a line of this kind under `signs`; whether it is the first one.
pub fn add(signs: &mut Vec<Sign>, kind: SignKind, text: impl FnOnce() -> String, time: Timestamp) -> bool {
    if let Some(sign) = signs.iter_mut().find(|sign| sign.kind == kind) {
        sign.count += 1;
        return false;
    }
    signs.push(Sign { kind, time, text: text(), count: 1 });
    true
}

/// What `line` is a sign of, except for the loss, which takes reading.
pub fn of_line(line: &[u8]) -> Option<SignKind> {
    const KINDS: [(SignKind, &str); 3] = [
        // torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, which aborts the process after either.
        (
            SignKind::NcclTimeout,
            r"[Ww]atchdog caught collective operation timeout|ProcessGroupNCCL's watchdog got stuck|Some NCCL operations have failed or timed out",
        ),
        (
            SignKind::NcclError,
            r"NCCL [Ee]rror|\bnccl[A-Z][A-Za-z]+Error\b|NCCL communicator (?:encountered error|was aborted)",
        ),
        // PyTorch, the driver's API, JAX, TensorFlow.
        (
            SignKind::CudaOutOfMemory,
            r"(?:CUDA|HIP) out of memory|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY|CUBLAS_STATUS_ALLOC_FAILED|RESOURCE_EXHAUSTED: Out of memory|OOM when allocating tensor",
        ),
    ];
    // One search instead of three for nearly every line.
    static ANY: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"(?-u)NCCL|nccl|[Oo]ut of memory|OUT_OF_MEMORY|ALLOC_FAILED|OOM|atchdog").expect("a constant")
    });
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
    fn lines_of_each_kind() {
        use SignKind::{CudaOutOfMemory, NcclError, NcclTimeout};
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
    fn the_first_one_of_a_kind_is_kept() {
        let mut signs = Vec::new();
        let at = Timestamp::from_second;
        assert!(add(&mut signs, SignKind::NanLoss, || "a".to_owned(), at(1).unwrap()));
        assert!(!add(&mut signs, SignKind::NanLoss, || "b".to_owned(), at(2).unwrap()));
        assert!(add(&mut signs, SignKind::NcclError, || "c".to_owned(), at(3).unwrap()));
        assert_eq!(signs.iter().map(|sign| (sign.text.as_str(), sign.count)).collect::<Vec<_>>(), [("a", 2), ("c", 1)]);
    }
}
