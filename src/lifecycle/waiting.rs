//! What a job that does not run yet waits for, in the words of whoever makes it wait.

use crate::observe::{Note, PodSeen};
use jiff::{SignedDuration, Timestamp};

/// What a kubelet may need beyond a pod's grace to say that it has ended.
pub const LATE: SignedDuration = SignedDuration::from_secs(15);

/// The reason while nobody has said why a worker has no node yet.
pub const SCHEDULING: &str = "Scheduling";

/// A reason in one CamelCase word and a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Why {
    pub reason: String,
    pub message: String,
}

/// Why not every worker has a node. `pods` are those of this attempt, `note` what the Events of their Job say.
pub fn for_nodes(pods: &[&PodSeen], desired: usize, note: Option<&Note>) -> Option<Why> {
    let waiting: Vec<_> =
        pods.iter().filter(|p| p.is_alive()).filter_map(|p| Some((p, p.unschedulable.as_ref()?))).collect();
    if let Some((pod, words)) = waiting.iter().min_by_key(|(pod, _)| pod.index) {
        let others = match waiting.len() - 1 {
            0 => String::new(),
            n => format!(" (and {n} more of {desired} workers)"),
        };
        let reason = if words.reason == "SchedulingGated" { "SchedulingGated" } else { "Unschedulable" };
        return Some(Why {
            reason: reason.into(),
            message: format!("worker {}{others}: {}", pod.index, words.message),
        });
    }
    if let Some(note) = note.filter(|_| pods.len() < desired) {
        let message = format!("{} of {desired} workers have no pod: {}", desired - pods.len(), note.message);
        return Some(Why { reason: note.reason.clone(), message });
    }
    // No counts here: they change with every pod and stand in status.workers.
    let complete = pods.len() >= desired && pods.iter().all(|p| p.node.is_some());
    (!complete).then(scheduling)
}

/// Nobody has said why yet.
pub fn scheduling() -> Why {
    Why { reason: SCHEDULING.into(), message: "waiting for pods and their nodes".into() }
}

/// Why not every worker with a node runs its program.
pub fn for_start(pods: &[&PodSeen], note: Option<&Note>) -> Why {
    let stuck = pods.iter().filter(|p| p.is_alive()).filter_map(|p| Some((p, p.waiting.as_ref()?)));
    if let Some((pod, waiting)) = stuck.min_by_key(|(pod, _)| pod.index) {
        let reason = match waiting.reason.as_str() {
            "ErrImagePull"
            | "ImagePullBackOff"
            | "InvalidImageName"
            | "ErrImageNeverPull"
            | "RegistryUnavailable"
            | "ImageInspectError" => "ImagePull",
            "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" => "ContainerConfig",
            other => other,
        };
        let words = if waiting.message.is_empty() { &waiting.reason } else { &waiting.message };
        return Why { reason: reason.into(), message: format!("{}: {words}", pod.describe()) };
    }
    let noted = note.and_then(|note| Some((pods.iter().find(|pod| pod.uid == note.about)?, note)));
    if let Some((pod, note)) = noted {
        return Why { reason: note.reason.clone(), message: format!("{}: {}", pod.describe(), note.message) };
    }
    Why { reason: "Starting".into(), message: "images, volumes and programs are starting".into() }
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
