//! Whether a line reports the failure of its own process or that of a peer.

use crate::error_pattern::{self, ErrorPattern};
use crate::mpi;
use regex::Regex;
use std::sync::LazyLock;

/// Whose failure a line reports, the most informative origin first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureOrigin {
    /// The process that printed the line.
    Own,
    /// A group of processes that wait for each other. Any of them may have failed.
    Gang,
    /// A peer that is gone.
    Peer,
}

/// Determines whose failure `line` reports.
///
/// Any program that uses a network may lose its peer: a download, a database. Only a peer of the gang is meant.
pub fn origin_of(line: &str) -> FailureOrigin {
    // The kernel, gloo and gRPC print these. The line must be from a library by which the ranks of a gang talk.
    const GONE: [&str; 5] = [
        "connection closed by peer",
        "connection reset by peer",
        "broken pipe",
        "socket closed",
        "failed to connect to all addresses",
    ];
    // Only NCCL, PyTorch's store, TensorFlow's coordination service and XGBoost's collectives print these.
    const GANGS_GONE: [&str; 8] = [
        "remote process exit",
        "connection was likely closed",
        "failed to recv, got 0 bytes",
        "tasks are unhealthy (stopped sending heartbeats)",
        "error reported from /job:",
        "ring allreduce failed",
        "ring allgather failed",
        "the other end is likely closed",
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
        () if mpi::is_lost(line) || has(&GANGS_GONE) || (has(&GONE) && speaks_for_a_gang(&lower)) => {
            FailureOrigin::Peer
        }
        () if has(&WAITED) || is_nccls() => FailureOrigin::Gang,
        () => FailureOrigin::Own,
    }
}

/// Whether a line, in lower case, is from a library by which ranks communicate. These are gloo, NCCL, MPI, UCC,
/// PyTorch's stores and process groups, TensorFlow's collectives and its workers, JAX's runtime and its coordination
/// service.
fn speaks_for_a_gang(line: &str) -> bool {
    static NAMES: LazyLock<Regex> = LazyLock::new(|| {
        crate::constant(
            r"(?x) \b (?: gloo | nccl | rccl | mpi | ucc | c10d | torch\.distributed | dist(?:backend|store|network)error
            | tcpstore | processgroup\w* | socketimpl | collective(?:s|\ ops|ops)? | workerservice
            | (?:xla|jax)runtimeerror | coordination\ ?service | horovod\w* ) \b | /job:\w+/(?:replica|task): | /gloo/ | nccl[a-z]*error | sendbytes | recvvalue",
        )
    });
    NAMES.is_match(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_origin_is_own_peer_or_gang() {
        for (line, expected) in [
            ("ValueError: bad", FailureOrigin::Own),
            ("torch.OutOfMemoryError: CUDA out of memory.", FailureOrigin::Own),
            ("jaxlib._jax.XlaRuntimeError: UNAVAILABLE: Socket closed", FailureOrigin::Peer),
            (
                "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:4711",
                FailureOrigin::Peer,
            ),
            (
                "RuntimeError: [../third_party/gloo/gloo/transport/tcp/buffer.cc:72] Read error [10.0.0.1]:4711: Connection reset by peer",
                FailureOrigin::Peer,
            ),
            (
                "xgboost.core.XGBoostError: [05:17:13] /workspace/src/collective/result.cc:83: [histogram.h:197|05:17:13]:\n\n\
                 - [allgather.cc:50|05:17:13]: Ring allgather failed, current iteration:0\n\
                 - [socket.h:79|05:17:13]: Invalid socket output. Broken pipe",
                FailureOrigin::Peer,
            ),
            (
                "xgboost.core.XGBoostError: [05:12:25] /workspace/src/collective/result.cc:83: [tracker.cc:132|05:12:25]:\n\n\
                 - [socket.h:79|05:12:25]: Failed to bind socket. system error:Address already in use",
                FailureOrigin::Own,
            ),
            (
                "xgboost._c_api.XGBoostError: [08:23:09] /workspace/src/collective/result.cc:83: [elementwise_metric.cu:358|08:23:09]:\n\n\
                 - [allreduce.cc:135|08:23:09]: Ring Allreduce failed.\n\
                 - [allreduce.cc:101|08:23:09]: Ring scatter reduce failed, current iteration:0\n\
                 - [socket.h:79|08:23:09]: Poll error condition:Success code:0",
                FailureOrigin::Peer,
            ),
            (
                "xgboost.core.XGBoostError: [07:57:59] /workspace/src/collective/result.cc:83: [coll_c_api.cc:46|07:57:59]:\n\n\
                 - [broadcast.cc:68|07:57:59]: broadcast failed.\n\
                 - [loop.cc:101|07:57:59]: Encountered EOF. The other end is likely closed.",
                FailureOrigin::Peer,
            ),
            (
                "tensorflow.python.framework.errors_impl.UnavailableError: Graph execution error:\n\n\
                 Collective ops is aborted by: Error reported from /job:worker/task:1: The following tasks are unhealthy \
                 (stopped sending heartbeats):\n/job:worker/replica:0/task:1\nThe tasks have crashed.",
                FailureOrigin::Peer,
            ),
            (
                "tensorflow.python.framework.errors_impl.UnavailableError: Graph execution error:\n\n\
                 failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:22467: Failed to connect to remote \
                 host: Connection refused\nAdditional GRPC error information from remote target \
                 /job:ps/replica:0/task:0/device:CPU:0 while calling /tensorflow.eager.EagerService/RunComponentFunction:",
                FailureOrigin::Peer,
            ),
            (
                "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed.",
                FailureOrigin::Peer,
            ),
            (
                "[W1 TCPStore.cpp:115] [c10d] sendBytes failed on SocketImpl(fd=4, addr=[a]:1, remote=[b]:2): Broken pipe",
                FailureOrigin::Peer,
            ),
            (
                "tensorflow.python.framework.errors_impl.UnavailableError: Collective ops is aborted by: Connection reset by peer",
                FailureOrigin::Peer,
            ),
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

    #[test]
    fn lost_peer_outside_gang_is_own_failure() {
        for line in [
            "ConnectionResetError: [Errno 104] Connection reset by peer",
            "BrokenPipeError: [Errno 32] Broken pipe",
            "requests.exceptions.ConnectionError: ('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))",
            "psycopg2.OperationalError: could not receive data from server: Connection reset by peer",
            "botocore.exceptions.EndpointConnectionError: Could not connect to \"https://b.s3.amazonaws.com\": Connection reset by peer",
            "grpc._channel._InactiveRpcError: <_InactiveRpcError of RPC that terminated with: details = \"Socket closed\">",
            "tensorflow.python.framework.errors_impl.UnavailableError: Error executing an HTTP request: Connection reset by peer",
            "redis.exceptions.ConnectionError: Error while reading from features:6379 : (104, 'Connection reset by peer')",
            "RuntimeError: compiling failed: Broken pipe",
            "RuntimeError: the feature store: failed to connect to all addresses; last error: UNAVAILABLE",
            "ValueError: a ring of allreduce failed to build: 3 nodes, 4 edges",
            "xgboost.core.XGBoostError: [08:35:59] /workspace/src/data/data.cc:568: Check failed: valid: Label contains NaN",
            "tensorflow.python.framework.errors_impl.InvalidArgumentError: Graph execution error: indices[0,1] = 11 is not in [0, 10)",
            "RuntimeError: 2 tasks are unhealthy, see the report",
            "OSError: /mnt/job:12/data: Broken pipe",
        ] {
            assert_eq!(origin_of(line), FailureOrigin::Own, "{line}");
        }
    }
}
