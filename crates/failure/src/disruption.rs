//! What happened to a worker's pod, regardless of its program.

use super::facts::{Container, WaitingState, WorkerFacts};
use super::finding::Finding;
use protocol::reason::Reason;
use protocol::report::LaunchErrorKind;
use regex::Regex;
use std::sync::LazyLock;

/// A cause outside the program that removed the worker or kept it from running. No worker is to blame for it.
pub fn finding(worker: &WorkerFacts<'_>) -> Option<Finding> {
    by_condition(worker).or_else(|| by_node(worker)).or_else(|| by_survivors(worker)).or_else(|| by_storage(worker))
}

/// Reported by its agent, which could not end the program. Whatever that did before, its node can't run another
/// attempt.
fn by_survivors(worker: &WorkerFacts<'_>) -> Option<Finding> {
    let survivors = worker.report()?.unkillable.as_ref()?;
    Some(Finding { time: Some(survivors.time), ..Finding::new(Reason::Unkillable, survivors.text.clone()) })
}

/// Reported by its agent, which could not start the program: its data could not be read, or belongs to another job.
fn by_storage(worker: &WorkerFacts<'_>) -> Option<Finding> {
    let Container::Terminated { finished, report: Some(report), .. } = worker.training else { return None };
    let error = report.error.as_ref()?;
    let reason = match error.kind {
        LaunchErrorKind::StorageUnavailable => Reason::StorageUnavailable,
        LaunchErrorKind::FolderInUse => Reason::FolderShared,
        _ => return None,
    };
    Some(Finding { time: *finished, ..Finding::new(reason, error.message.clone()) })
}

/// The storage limit that the worker exceeded and for which its node stopped it. That is a failure of the worker
/// itself.
///
/// The kubelet evicts the pod for it, but sets no condition. The same would happen on any other node.
pub fn storage(worker: &WorkerFacts<'_>) -> Option<Finding> {
    let words = eviction(worker)?;
    let limit = exceeded(&words.message)?;
    Some(Finding::why(Reason::StorageExceeded, format!("{limit}; write less to it, or raise that limit")))
}

/// Reasons of `DisruptionTarget`: Kubernetes documentation, "Pod disruption conditions".
fn by_condition(worker: &WorkerFacts<'_>) -> Option<Finding> {
    let disruption = worker.disruption?;
    let (reason, what) = match disruption.reason.as_str() {
        "PreemptionByScheduler" => (Reason::Preempted, "preempted"),
        "NodeLost" | "DeletionByTaintManager" | "DeletionByPodGC" => (Reason::NodeLost, "its node is lost"),
        _ => (Reason::Evicted, "evicted"),
    };
    let words = if disruption.message.is_empty() { &disruption.reason } else { &disruption.message };
    Some(Finding { time: disruption.time, ..Finding::new(reason, format!("{what} ({words})")) })
}

/// The cause that the kubelet has written on the pod.
fn by_node(worker: &WorkerFacts<'_>) -> Option<Finding> {
    let words = worker.pod_reason.filter(|_| worker.ended == Some(false) && worker.failed_init.is_none())?;
    let has_started = !matches!(worker.training, Container::Waiting);
    let reported = format!("{}: {}", words.reason, words.message.trim());
    let reported = reported.trim_end_matches(": ");
    let finding = if !has_started && is_rejection(&words.reason) {
        Finding::new(Reason::NodeRejected, format!("its node would not run it ({reported})"))
    } else if words.reason == EVICTED && exceeded(&words.message).is_none() {
        Finding::new(Reason::Evicted, format!("evicted ({reported})"))
    } else {
        return None;
    };
    let finished = match worker.training {
        Container::Terminated { finished, .. } => *finished,
        _ => None,
    };
    Some(Finding { time: finished.or(worker.created), ..finding })
}

const EVICTED: &str = "Evicted";

fn eviction<'a>(worker: &WorkerFacts<'a>) -> Option<&'a WaitingState> {
    worker.pod_reason.filter(|words| words.reason == EVICTED && worker.ended == Some(false))
}

/// Whether a kubelet gives this reason when it does not admit a pod. It gives other reasons for evictions, and for pods
/// that no node would run, such as one with a forbidden sysctl.
fn is_rejection(reason: &str) -> bool {
    const REASONS: [&str; 13] = [
        "UnexpectedAdmissionError",
        "NodeAffinity",
        "NodeName",
        "NodePorts",
        "NodeUnschedulable",
        "NodeShutdown",
        "Shutdown",
        "Terminated",
        "Preempting",
        "TaintToleration",
        "TopologyAffinityError",
        "VolumeAttachmentLimitExceeded",
        "InvalidNodeInfo",
    ];
    // The name of a resource follows, as in OutOfcpu and OutOfnvidia.com/gpu.
    REASONS.contains(&reason) || reason.strip_prefix("OutOf").is_some_and(|resource| !resource.is_empty())
}

/// The limit that the kubelet's message names for an eviction: of an emptyDir, a container or the pod.
fn exceeded(words: &str) -> Option<String> {
    static LIMITS: LazyLock<[Regex; 3]> = LazyLock::new(|| {
        [
            r#"^Usage of EmptyDir volume "([^"]+)" exceeds the limit "([^"]+)""#,
            r#"^Container (\S+) exceeded its local ephemeral storage limit "([^"]+)""#,
            r"^Pod ephemeral local storage usage exceeds the (total limit) of containers (\S+?)\.(?:\s|$)",
        ]
        .map(text::constant)
    });
    let words = words.trim();
    let [dir, container, pod] = LIMITS.each_ref().map(|limit| Some(limit.captures(words)?.extract::<2>().1));
    if let Some([volume, limit]) = dir {
        return Some(format!("its emptyDir {volume} holds more than its sizeLimit of {limit}"));
    }
    if let Some([container, limit]) = container {
        return Some(format!(
            "its container {container} uses more storage of the node than resources.limits.ephemeral-storage allows, {limit}"
        ));
    }
    pod.map(|[_, limit]| {
        format!("it uses more storage of the node than resources.limits.ephemeral-storage of its containers allow, {limit} together")
    })
}
