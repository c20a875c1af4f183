//! What a job that does not run yet waits for, in the words of the component that makes it wait.

use api::Reason;
use jiff::{SignedDuration, Timestamp};
use observe::{ObjectEvent, ObservedPod, WaitingState};
use plan::Gang;

/// Time that a kubelet may need beyond a pod's grace period to report that it has ended.
const LATE: SignedDuration = SignedDuration::from_secs(15);

/// A reason in one CamelCase word and a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitReason {
    pub reason: Reason,
    pub message: String,
}

/// Why not every worker has a node. `pods` are the pods of this incarnation, and `missing` is the number of pods that
/// do not exist yet. With `gang` the message names the idle GPUs that the gang holds. `event` is from the Events of its
/// Job.
pub fn for_nodes(
    pods: &[&ObservedPod],
    missing: usize,
    gang: Option<&Gang>,
    event: Option<&ObjectEvent>,
) -> Option<WaitReason> {
    let desired = pods.len() + missing;
    let all = if gang.is_some_and(Gang::has_roles) { "members" } else { "workers" };
    let waiting: Vec<_> =
        pods.iter().filter(|p| p.is_alive()).filter_map(|p| Some((p, p.unschedulable.as_ref()?))).collect();
    if let Some((pod, words)) = waiting.iter().min_by_key(|(pod, words)| (only_follows(words), pod.replica_id())) {
        let others = match waiting.len() - 1 {
            0 => String::new(),
            n => format!(" (and {n} more of {desired} {all})"),
        };
        let reason = if words.reason == "SchedulingGated" { Reason::SchedulingGated } else { Reason::Unschedulable };
        let held = gang.map(|gang| held_meanwhile(pods, gang)).unwrap_or_default();
        return Some(WaitReason { reason, message: format!("{}{others}: {}{held}", pod.replica_id(), words.message) });
    }
    if let Some(event) = event.filter(|_| missing > 0) {
        let message = format!("{missing} of {desired} {all} have no pod: {}", event.message);
        return Some(WaitReason { reason: event.reason.clone(), message });
    }
    // No counts here: they change with every pod and stand in status.workers.
    let complete = missing == 0 && pods.iter().all(|p| p.node.is_some() || p.succeeded());
    (!complete).then(scheduling)
}

/// Whether a gang scheduler rejected this pod only because the other pods have no place.
fn only_follows(words: &WaitingState) -> bool {
    ["pod group is ", "optimistic rejection in PostFilter", "rejection in Unreserve", "cannot find enough sibling pods"]
        .iter()
        .any(|follows| words.message.contains(follows))
}

/// The GPUs that scheduled workers hold idle while others have no node.
fn held_meanwhile(pods: &[&ObservedPod], gang: &Gang) -> String {
    let placed: Vec<_> = pods.iter().filter(|pod| pod.is_alive() && pod.node.is_some()).collect();
    let gpus = placed.iter().filter_map(|pod| Some(u32::from(gang.role(pod.role)?.gpus))).fold(0, u32::saturating_add);
    let placed = placed.len();
    if gpus == 0 {
        return String::new();
    }
    let (workers, hold) = if placed == 1 { ("worker", "holds") } else { ("workers", "hold") };
    let held = format!("; {placed} scheduled {workers} {hold} {gpus} idle GPUs");
    if gang.group.is_some() {
        return held;
    }
    held + "; a queue (scheduling.queue) or a gang scheduler (scheduling.gang) prevents this"
}

/// For pods without any reported reason yet.
pub fn scheduling() -> WaitReason {
    WaitReason { reason: Reason::Scheduling, message: "waiting for pods and their nodes".into() }
}

/// Why not every worker with a node runs its program.
pub fn for_start(pods: &[&ObservedPod], event: Option<&ObjectEvent>) -> WaitReason {
    let killed = pods.iter().filter(|p| p.is_alive()).filter_map(|p| Some((p, p.killed.as_ref()?)));
    if let Some((pod, how)) = killed.min_by_key(|(pod, _)| pod.replica_id()) {
        let reason = Some(Reason::from(how.as_str())).filter(|reason| *reason == Reason::OomKilled);
        let how = if how.is_empty() { String::new() } else { format!(" ({how})") };
        let words = pod.waiting.as_ref().map(|waiting| waiting.message.as_str()).filter(|words| !words.is_empty());
        let words = words.map(|words| format!(": {words}")).unwrap_or_default();
        let message = format!("{}: its container was killed{how} and is started again{words}", pod.describe());
        return WaitReason { reason: reason.unwrap_or(Reason::Starting), message };
    }
    let stuck = pods.iter().filter(|p| p.is_alive()).filter_map(|p| Some((p, p.waiting.as_ref()?)));
    if let Some((pod, waiting)) = stuck.min_by_key(|(pod, _)| pod.replica_id()) {
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
        return WaitReason { reason, message: format!("{}: {words}", pod.describe()) };
    }
    let eventd = event.and_then(|event| Some((pods.iter().find(|pod| pod.uid == event.about)?, event)));
    if let Some((pod, event)) = eventd {
        return WaitReason { reason: event.reason.clone(), message: format!("{}: {}", pod.describe(), event.message) };
    }
    let held_up = pods.iter().filter(|p| p.is_alive()).filter_map(|p| Some((p, p.running_init.as_ref()?)));
    let message = match held_up.min_by_key(|(pod, _)| pod.replica_id()) {
        Some((pod, init)) => format!("{}: its init container {init} has not ended", pod.describe()),
        None => "images, volumes and programs are starting".into(),
    };
    WaitReason { reason: Reason::Starting, message }
}

/// When a pod that was asked to end is late.
pub fn late_at(pod: &ObservedPod) -> Option<Timestamp> {
    pod.end_by?.checked_add(LATE).ok()
}

/// What a stopping gang waits for, when a pod should have ended and no node has reported its end.
pub fn for_end(pods: &[&ObservedPod], now: Timestamp) -> Option<String> {
    let late = |pod: &&&ObservedPod| pod.is_alive() && late_at(pod).is_some_and(|at| at <= now);
    let pod = pods.iter().filter(late).min_by_key(|pod| pod.replica_id())?;
    Some(format!(
        "waiting for {}, whose grace is over: if its node is gone for good, delete the Node or taint it \
         node.kubernetes.io/out-of-service; else look at its kubelet",
        pod.describe()
    ))
}
