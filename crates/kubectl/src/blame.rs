//! Whether a node caused the failures of a job's attempts.

use api::AttemptEnd;
use std::collections::BTreeSet;

/// Reasons that point to the node: its memory, GPUs, links and kubelet.
const OF_NODES: [&str; 8] = [
    "Signal",
    "NcclError",
    "NcclTimeout",
    "NodeLost",
    "PodFailed",
    "ContainerStatusUnknown",
    "UnexpectedAdmissionError",
    "NodeRejected",
];

/// Messages of the CUDA runtime about a device that does not work. Its other errors are mostly the program's.
const OF_DEVICES: [&str; 8] = [
    "uncorrectable ECC error encountered",
    "uncorrectable NVLink error detected",
    "hardware stack error",
    "no CUDA-capable device is detected",
    "CUDA-capable device(s) is/are busy or unavailable",
    "all CUDA-capable devices are busy or unavailable",
    "system not yet initialized",
    "unknown error",
];

/// A node on which workers failed in ways that nodes cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blame<'a> {
    /// The name of the node.
    pub node: &'a str,
    /// How many of the failures are of that kind.
    pub failures: usize,
}

/// Returns the node that had every failure of a kind that nodes cause, if there were at least two.
///
/// If one of its workers has also failed on another node, in whatever way, no node is blamed.
#[must_use]
pub fn node_to_blame(restarts: &[AttemptEnd]) -> Option<Blame<'_>> {
    let failures: Vec<&AttemptEnd> = restarts.iter().filter(|restart| is_of_a_node(restart)).collect();
    let node = failures.first()?.node.as_deref()?;
    let is_there = |restart: &&AttemptEnd| restart.node.as_deref() == Some(node);
    if failures.len() < 2 || !failures.iter().all(is_there) {
        return None;
    }
    let workers: BTreeSet<_> = failures.iter().filter_map(|restart| restart.replica_id()).collect();
    let mut of_these =
        restarts.iter().filter(|restart| restart.replica_id().is_some_and(|place| workers.contains(&place)));
    of_these.all(|restart| is_there(&restart)).then_some(Blame { node, failures: failures.len() })
}

fn is_of_a_node(restart: &AttemptEnd) -> bool {
    let device = restart.message.split_once(": CUDA error: ").map_or("", |(_, error)| error);
    OF_NODES.contains(&restart.reason.as_str()) || OF_DEVICES.iter().any(|words| device.starts_with(words))
}
