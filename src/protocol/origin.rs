//! Whose failure a line tells of: the one's who says it, or a peer's.

use crate::protocol::error_pattern::{self, ErrorPattern};

/// Whose failure a line tells of, the most telling first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureOrigin {
    /// The one's who says it.
    Own,
    /// Of those who wait for each other: it may have been any of them.
    Gang,
    /// A peer's, who has gone.
    Peer,
}

/// Whose failure `line` tells of.
pub fn origin_of(line: &str) -> FailureOrigin {
    // Gloo, the kernel, NCCL, PyTorch's store, gRPC.
    const GONE: [&str; 7] = [
        "connection closed by peer",
        "connection reset by peer",
        "broken pipe",
        "remote process exit",
        "connection was likely closed",
        "failed to recv, got 0 bytes",
        "socket closed",
    ];
    // Gloo, PyTorch's store.
    const WAITED: [&str; 5] = [
        "timed out waiting",
        "caused pair closure",
        "seconds waiting for clients",
        "client socket has timed out",
        "wait timeout after",
    ];
    let is_nccls =
        || matches!(error_pattern::of_line(line.as_bytes()), Some(ErrorPattern::NcclTimeout | ErrorPattern::NcclError));
    let lower = line.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|words| lower.contains(words));
    match () {
        () if has(&GONE) => FailureOrigin::Peer,
        () if has(&WAITED) || is_nccls() => FailureOrigin::Gang,
        () => FailureOrigin::Own,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_failure_it_is() {
        for (line, expected) in [
            ("ValueError: bad", FailureOrigin::Own),
            ("torch.OutOfMemoryError: CUDA out of memory.", FailureOrigin::Own),
            ("torch.Error: Socket closed", FailureOrigin::Peer),
            (
                "NCCL error in: NCCLUtils.hpp:268, remote process exited or there was a network error",
                FailureOrigin::Peer,
            ),
            ("NCCL error in: NCCLUtils.hpp:268, unhandled system error", FailureOrigin::Gang),
            ("[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)", FailureOrigin::Gang),
            (
                "torch.distributed.DistStoreError: Timed out after 301 seconds waiting for clients. 1/2",
                FailureOrigin::Gang,
            ),
            (
                "RuntimeError: The client socket has timed out after 60000ms while trying to connect",
                FailureOrigin::Gang,
            ),
        ] {
            assert_eq!(origin_of(line), expected, "{line}");
        }
    }
}
