//! What a job that does not run yet waits for, in the words of whoever makes it wait.

use crate::api::Reason;
use crate::observe::{ObjectEvent, PodSeen};
use jiff::{SignedDuration, Timestamp};

/// What a kubelet may need beyond a pod's grace to say that it has ended.
pub const LATE: SignedDuration = SignedDuration::from_secs(15);

/// A reason in one CamelCase word and a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Why {
    pub reason: Reason,
    pub message: String,
}

/// Why not every worker has a node. `pods` are those of this attempt, `event` what the Events of their Job say.
pub fn for_nodes(pods: &[&PodSeen], desired: usize, event: Option<&ObjectEvent>) -> Option<Why> {
    let waiting: Vec<_> =
        pods.iter().filter(|p| p.is_alive()).filter_map(|p| Some((p, p.unschedulable.as_ref()?))).collect();
    if let Some((pod, words)) = waiting.iter().min_by_key(|(pod, _)| pod.index) {
        let others = match waiting.len() - 1 {
            0 => String::new(),
            n => format!(" (and {n} more of {desired} workers)"),
        };
        let reason = if words.reason == "SchedulingGated" { Reason::SchedulingGated } else { Reason::Unschedulable };
        return Some(Why { reason, message: format!("worker {}{others}: {}", pod.index, words.message) });
    }
    if let Some(event) = event.filter(|_| pods.len() < desired) {
        let message = format!("{} of {desired} workers have no pod: {}", desired - pods.len(), event.message);
        return Some(Why { reason: event.reason.clone(), message });
    }
    // No counts here: they change with every pod and stand in status.workers.
    let complete = pods.len() >= desired && pods.iter().all(|p| p.node.is_some());
    (!complete).then(scheduling)
}

/// Nobody has said why yet.
pub fn scheduling() -> Why {
    Why { reason: Reason::Scheduling, message: "waiting for pods and their nodes".into() }
}

/// Why not every worker with a node runs its program.
pub fn for_start(pods: &[&PodSeen], event: Option<&ObjectEvent>) -> Why {
    let stuck = pods.iter().filter(|p| p.is_alive()).filter_map(|p| Some((p, p.waiting.as_ref()?)));
    if let Some((pod, waiting)) = stuck.min_by_key(|(pod, _)| pod.index) {
        let reason = match waiting.reason.as_str() {
            "ErrImagePull"
            | "ImagePullBackOff"
            | "InvalidImageName"
            | "ErrImageNeverPull"
            | "RegistryUnavailable"
            | "ImageInspectError" => Reason::ImagePull,
            "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" => Reason::ContainerConfig,
            other => Reason::from(other),
        };
        let words = if waiting.message.is_empty() { &waiting.reason } else { &waiting.message };
        return Why { reason, message: format!("{}: {words}", pod.describe()) };
    }
    let eventd = event.and_then(|event| Some((pods.iter().find(|pod| pod.uid == event.about)?, event)));
    if let Some((pod, event)) = eventd {
        return Why { reason: event.reason.clone(), message: format!("{}: {}", pod.describe(), event.message) };
    }
    Why { reason: Reason::Starting, message: "images, volumes and programs are starting".into() }
}

/// What a gang that stops waits for, when a pod should have ended and nobody says that it has.
pub fn for_end(pods: &[&PodSeen], now: Timestamp) -> Option<String> {
    let late = |pod: &&&PodSeen| pod.is_alive() && pod.end_by.is_some_and(|end| end <= now - LATE);
    let pod = pods.iter().filter(late).min_by_key(|pod| pod.index)?;
    Some(format!(
        "waiting for {}, whose grace is over: if its node is gone for good, delete the Node or taint it \
         node.kubernetes.io/out-of-service; else look at its kubelet",
        pod.describe()
    ))
}
