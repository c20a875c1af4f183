//! A pod as the operator keeps it: only what decisions need (a pod of the API is over forty times larger).

use failure::{Container, Disruption, FailedInit, WaitingState, WorkerFacts};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod, PodCondition, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use objects::labels;
use plan::template::{AGENT, FETCH, TRAINING};
use protocol::gang::KILLED;
use protocol::inputs::FetchedContent;
use protocol::report::Report;
use protocol::role::{ReplicaId, RoleName};
use serde::{Deserialize, Serialize};

/// The part of a pod that the watch decodes.
#[derive(kube::Resource, Serialize, Deserialize, Clone, Debug, Default)]
#[resource(inherit = Pod)]
pub struct SlimPod {
    /// Name, UID, labels.
    #[serde(deserialize_with = "super::slim::metadata")]
    pub metadata: ObjectMeta,
    /// Where it runs.
    #[serde(default)]
    pub spec: SlimPodSpec,
    /// Its status.
    #[serde(default, deserialize_with = "super::slim::pod_status")]
    pub status: PodStatus,
}

/// The part of a pod's spec that the watch decodes.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase")]
pub struct SlimPodSpec {
    /// The node, once there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Its containers, and whether its node restarts them.
    #[serde(default)]
    pub containers: Vec<SlimContainer>,
}

/// The part of a container that the watch decodes.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase")]
pub struct SlimContainer {
    /// Its name.
    pub name: String,
    /// Whether its node restarts it after some ends, where the API server supports that.
    #[serde(default, rename = "restartPolicyRules", skip_serializing, deserialize_with = "super::slim::is_set")]
    pub has_restart_rules: bool,
}

/// What the index keeps of a worker's pod. Fields that few pods have are boxed, because there are thousands of pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedPod {
    /// UID of the pod.
    pub uid: String,
    /// Name of the pod.
    pub name: String,
    /// Its role.
    pub role: RoleName,
    /// Its index, among those of its role.
    pub index: u32,
    /// Number of the incarnation that it belongs to.
    pub incarnation: u32,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// The node, once there is one.
    pub node: Option<String>,
    /// Its address, once it has one.
    pub ip: Option<String>,
    /// When it got its node.
    pub scheduled_at: Option<Timestamp>,
    /// Why it has no node: the scheduler's reason and message.
    pub unschedulable: Option<Box<WaitingState>>,
    /// It has ended: `Some(true)` if it succeeded.
    pub ended: Option<bool>,
    /// Reason and message of the pod itself, when it failed without its container (such as `UnexpectedAdmissionError`).
    pub pod_reason: Option<Box<WaitingState>>,
    /// The disruption from outside that takes it away.
    pub disruption: Option<Box<Disruption>>,
    /// Since when its node is unreachable, according to the node controller. What its containers do is unknown.
    pub unreachable: Option<Timestamp>,
    /// When its deletion was requested.
    pub deletion: Option<Timestamp>,
    /// When its grace period ends.
    pub end_by: Option<Timestamp>,
    /// Its Job counts it when it ends.
    pub tracked: bool,
    /// The size of an elastic gang that its node was last notified of.
    pub gang_size: Option<u16>,
    /// It no longer exists.
    pub gone: bool,
    /// The container `training`.
    pub training: Container,
    /// When its node last killed the container `training` for lack of memory and restarted it.
    pub out_of_memory: Option<Timestamp>,
    /// Why the container `training` was killed (`OOMKilled`) that its node restarts in this pod. It counts as waiting.
    pub killed: Option<String>,
    /// What keeps the containers from starting, whichever it is.
    pub waiting: Option<Box<WaitingState>>,
    /// The init container that failed, and so keeps the program from starting.
    pub failed_init: Option<Box<FailedInit>>,
    /// What its init container has fetched.
    pub fetched: Vec<FetchedContent>,
    /// Its init container fetches at present.
    pub fetches: bool,
    /// The user's init container that runs at present, and that the program waits for.
    pub running_init: Option<String>,
    /// Name of the container with a service mesh's proxy, if one was injected.
    pub mesh: Option<&'static str>,
}

/// Names of the proxies of service meshes: Istio, Linkerd, Kuma, Consul.
const PROXIES: [&str; 4] = ["istio-proxy", "linkerd-proxy", "kuma-sidecar", "consul-dataplane"];

impl SlimPod {
    /// Extracts the part of a pod that is kept. `None` if the pod is not a worker of ours.
    #[must_use]
    pub fn seen(&self, gone: bool) -> Option<ObservedPod> {
        let meta = &self.metadata;
        let labels = meta.labels.as_ref()?;
        let annotations = meta.annotations.as_ref();
        let index = labels
            .get(labels::COMPLETION_INDEX)
            .or_else(|| annotations?.get(labels::COMPLETION_INDEX))?
            .parse()
            .ok()?;
        let incarnation = labels::incarnation(labels)?;
        let status = &self.status;
        let scheduled = condition(status, "PodScheduled");
        let ended = match status.phase.as_deref() {
            Some("Succeeded") => Some(true),
            Some("Failed") => Some(false),
            _ => None,
        };
        let grace = meta.deletion_grace_period_seconds.unwrap_or(0);
        // A pod that has ended, or is being deleted, restarts no container.
        let killed = if ended.is_none() && meta.deletion_timestamp.is_none() { self.killed() } else { None };
        let statuses =
            || status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten());
        let pod = ObservedPod {
            uid: meta.uid.clone()?,
            name: meta.name.clone()?,
            role: super::role(meta)?,
            index,
            incarnation,
            created: meta.creation_timestamp.as_ref().map(|t| t.0),
            node: self.spec.node_name.clone(),
            ip: status.pod_ip.clone(),
            scheduled_at: scheduled
                .filter(|c| c.status == "True")
                .and_then(|c| c.last_transition_time.as_ref())
                .map(|t| t.0),
            unschedulable: scheduled.filter(|c| c.status == "False").map(|c| {
                let reason = c.reason.clone().unwrap_or_default();
                Box::new(WaitingState { reason, message: c.message.clone().unwrap_or_default() })
            }),
            ended,
            pod_reason: status
                .reason
                .clone()
                .map(|reason| Box::new(WaitingState { reason, message: status.message.clone().unwrap_or_default() })),
            disruption: disruption(status).map(Box::new),
            unreachable: unreachable(status),
            deletion: meta
                .deletion_timestamp
                .as_ref()
                .map(|t| t.0.checked_sub(jiff::SignedDuration::from_secs(grace)).unwrap_or(t.0)),
            end_by: meta.deletion_timestamp.as_ref().map(|t| t.0),
            tracked: meta.finalizers.iter().flatten().any(|finalizer| finalizer == JOB_TRACKING),
            gang_size: annotations.and_then(|all| all.get(labels::GANG_SIZE)?.parse().ok()),
            gone,
            out_of_memory: last_end(status).filter(|end| end.reason.as_deref() == Some(OOM_KILLED)).and_then(finished),
            training: if killed.is_some() { Container::Waiting } else { training(status) },
            killed,
            failed_init: failed_init(status).map(Box::new),
            fetched: fetched(status),
            fetches: fetches(status),
            running_init: running_init(status),
            mesh: PROXIES.into_iter().find(|proxy| statuses().any(|container| container.name == *proxy)),
            waiting: statuses().find_map(|s| {
                let waiting = s.state.as_ref()?.waiting.as_ref()?;
                let reason = waiting.reason.clone()?;
                (!matches!(reason.as_str(), "PodInitializing" | "ContainerCreating"))
                    .then(|| Box::new(WaitingState { reason, message: waiting.message.clone().unwrap_or_default() }))
            }),
        };
        let disruption = pod.disruption.clone().or_else(|| pod.lost().filter(|_| gone).map(Box::new));
        Some(ObservedPod { disruption, ..pod })
    }
}

impl SlimPod {
    /// Why the container `training` was killed that its node is about to restart.
    fn killed(&self) -> Option<String> {
        let is_training = |container: &&SlimContainer| container.name == TRAINING;
        let comes_back = self.spec.containers.iter().find(is_training)?.has_restart_rules;
        let status = training_status(&self.status)?;
        let state = status.state.as_ref()?;
        let end = match (&state.terminated, &state.waiting) {
            (Some(end), _) if end.exit_code == KILLED => end,
            (None, Some(_)) => status.last_state.as_ref()?.terminated.as_ref()?,
            _ => return None,
        };
        comes_back.then(|| end.reason.clone().unwrap_or_default())
    }

    /// Whether none of its containers runs any more.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.status.phase.as_deref(), Some("Succeeded" | "Failed"))
    }

    /// The final report of the agent that looked after the checkpoints, if it has ended.
    pub(super) fn upkeep_words(&self) -> Option<Report> {
        let mut states = self.status.container_statuses.iter().flatten().filter_map(|c| c.state.as_ref());
        states.find_map(|state| Report::parse(state.terminated.as_ref()?.message.as_deref()?))
    }
}

/// Finalizer of the Job controller, which removes it from an ended pod once it has counted the pod.
pub const JOB_TRACKING: &str = "batch.kubernetes.io/job-tracking";
/// A kubelet's reason for the end of a container.
const OOM_KILLED: &str = "OOMKilled";

/// Since when the pod's node is unreachable. The node controller then changes nothing but the readiness of its pods. A
/// kubelet also changes that of their containers, unless the pod's own readiness gates are not met.
fn unreachable(status: &PodStatus) -> Option<Timestamp> {
    const GATES: &str = "ReadinessGatesNotReady";
    let containers_are_ready = condition(status, "ContainersReady").is_some_and(|c| c.status == "True");
    let unready = condition(status, "Ready").filter(|c| c.status == "False" && c.reason.as_deref() != Some(GATES));
    let runs = status.phase.as_deref() == Some("Running");
    unready.filter(|_| runs && containers_are_ready)?.last_transition_time.as_ref().map(|time| time.0)
}

fn disruption(status: &PodStatus) -> Option<Disruption> {
    condition(status, "DisruptionTarget").filter(|c| c.status == "True").map(|c| Disruption {
        reason: c.reason.clone().unwrap_or_default(),
        message: c.message.clone().unwrap_or_default(),
        time: c.last_transition_time.as_ref().map(|t| t.0),
    })
}

fn condition<'a>(status: &'a PodStatus, type_: &str) -> Option<&'a k8s_openapi::api::core::v1::PodCondition> {
    status.conditions.iter().flatten().find(|c| c.type_ == type_)
}

fn training_status(status: &PodStatus) -> Option<&ContainerStatus> {
    status.container_statuses.iter().flatten().find(|c| c.name == TRAINING)
}

/// How the container `training` ended before it was restarted.
fn last_end(status: &PodStatus) -> Option<&ContainerStateTerminated> {
    training_status(status)?.last_state.as_ref()?.terminated.as_ref()
}

fn finished(end: &ContainerStateTerminated) -> Option<Timestamp> {
    end.finished_at.as_ref().map(|time| time.0)
}

fn training(status: &PodStatus) -> Container {
    let Some(state) = training_status(status).and_then(|c| c.state.as_ref()) else { return Container::Waiting };
    if let Some(end) = &state.terminated {
        let report = end.message.as_deref().and_then(Report::parse).map(Box::new);
        // The program ended with the previous container, as the agent of this one has reported.
        let before = last_end(status).filter(|_| report.as_ref().is_some_and(|report| report.killed));
        let reason = before.unwrap_or(end).reason.clone();
        return Container::Terminated {
            // The kubelet writes 1970 if the container never started.
            started: end.started_at.as_ref().map(|t| t.0).filter(|t| *t > Timestamp::UNIX_EPOCH),
            finished: end.finished_at.as_ref().map(|t| t.0),
            exit_code: end.exit_code,
            reason: reason.unwrap_or_default(),
            message: if report.is_some() { None } else { end.message.clone() },
            report,
        };
    }
    match &state.running {
        Some(run) => Container::Running { since: run.started_at.as_ref().map(|t| t.0) },
        None => Container::Waiting,
    }
}

/// In a pod that restarts no container, the init container that fails first is the last one to run.
fn failed_init(status: &PodStatus) -> Option<FailedInit> {
    let has_failed = |state: &&ContainerStateTerminated| state.exit_code != 0;
    status.init_container_statuses.iter().flatten().find_map(|container| {
        let end = container.state.as_ref()?.terminated.as_ref().filter(has_failed)?;
        Some(FailedInit {
            name: container.name.clone(),
            exit_code: end.exit_code,
            reason: end.reason.clone().unwrap_or_default(),
            message: end.message.clone(),
            finished: end.finished_at.as_ref().map(|t| t.0),
        })
    })
}

/// What the agent's own init container has fetched.
fn fetched(status: &PodStatus) -> Vec<FetchedContent> {
    let mut states = status.init_container_statuses.iter().flatten().filter(|container| container.name == FETCH);
    let report = states.find_map(|container| {
        let end = container.state.as_ref()?.terminated.as_ref().filter(|end| end.exit_code == 0)?;
        Report::parse(end.message.as_deref()?)
    });
    report.map(|report| report.fetched).unwrap_or_default()
}

/// Whether the agent's own init container fetches at present.
fn fetches(status: &PodStatus) -> bool {
    let fetching = status.init_container_statuses.iter().flatten().find(|container| container.name == FETCH);
    fetching.and_then(|container| container.state.as_ref()).is_some_and(|state| state.running.is_some())
}

/// Sidecars keep running once a pod is initialized. The agent's own init containers are reported otherwise.
fn running_init(status: &PodStatus) -> Option<String> {
    let is_waited_for = |condition: &PodCondition| condition.type_ == "Initialized" && condition.status == "False";
    status.conditions.iter().flatten().find(|condition| is_waited_for(condition))?;
    let runs = |container: &&ContainerStatus| container.state.as_ref().is_some_and(|state| state.running.is_some());
    let mut running = status.init_container_statuses.iter().flatten().filter(runs);
    running.rfind(|container| ![FETCH, AGENT].contains(&&*container.name)).map(|container| container.name.clone())
}

impl<'a> From<&'a ObservedPod> for WorkerFacts<'a> {
    fn from(pod: &'a ObservedPod) -> Self {
        WorkerFacts {
            role: pod.role,
            index: pod.index,
            pod: &pod.name,
            node: pod.node.as_deref(),
            attempt: pod.attempt(),
            created: pod.created,
            deletion: pod.deletion,
            gone: pod.gone,
            ended: pod.ended,
            pod_reason: pod.pod_reason.as_deref(),
            disruption: pod.disruption.as_deref(),
            failed_init: pod.failed_init.as_deref(),
            training: &pod.training,
        }
    }
}

impl ObservedPod {
    /// The report that its agent left, if it has ended.
    #[must_use]
    pub fn report(&self) -> Option<&Report> {
        match &self.training {
            Container::Terminated { report, .. } => report.as_deref(),
            _ => None,
        }
    }

    /// The last attempt that it ran, as far as its agent has reported.
    fn attempt(&self) -> u32 {
        let reported = self.report().map(|report| report.attempt).filter(|attempt| *attempt > 0);
        reported.unwrap_or(self.incarnation)
    }

    /// Its disruption if it is given up because its node is unreachable.
    #[must_use]
    pub fn lost(&self) -> Option<Disruption> {
        let since = self.unreachable?;
        let message = format!("it has not answered since {since:.0}");
        Some(Disruption { reason: "NodeLost".to_owned(), message, time: Some(since) })
    }

    /// Whether it may still run: it has neither ended nor gone.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        !self.gone && self.ended.is_none()
    }

    /// Whether it only takes the usual steps of a start.
    #[must_use]
    pub fn is_starting(&self) -> bool {
        let has_trouble = self.disruption.is_some() || self.unreachable.is_some() || self.unschedulable.is_some();
        let waits = self.waiting.is_some() || self.killed.is_some() || self.failed_init.is_some();
        self.is_alive() && self.deletion.is_none() && self.pod_reason.is_none() && !has_trouble && !waits
    }

    /// Its place in the gang.
    #[must_use]
    pub fn replica_id(&self) -> ReplicaId {
        WorkerFacts::from(self).replica_id()
    }

    /// Its description for users.
    #[must_use]
    pub fn describe(&self) -> String {
        self.replica_id().in_pod(Some(&self.name), self.node.as_deref())
    }

    /// Its program ended well.
    #[must_use]
    pub fn succeeded(&self) -> bool {
        WorkerFacts::from(self).succeeded()
    }

    /// It can no longer succeed.
    #[must_use]
    pub fn failed(&self) -> bool {
        !self.succeeded()
            && (self.ended == Some(false) || self.gone || matches!(self.training, Container::Terminated { .. }))
    }

    /// Its program runs.
    #[must_use]
    pub fn runs(&self) -> bool {
        matches!(self.training, Container::Running { .. }) && self.is_alive()
    }

    /// When its program started.
    #[must_use]
    pub fn started(&self) -> Option<Timestamp> {
        match &self.training {
            Container::Waiting => None,
            Container::Running { since } => *since,
            Container::Terminated { started, .. } => *started,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::Reason;
    use failure::first_cause;
    use serde_json::{Value, json};

    fn seen(status: &Value) -> ObservedPod {
        let labels = json!({ "ml.example.com/incarnation": "1", "batch.kubernetes.io/job-completion-index": "0" });
        let metadata =
            json!({ "name": "x", "uid": "u", "labels": labels, "creationTimestamp": "2030-01-02T03:04:05Z" });
        let pod = json!({ "metadata": metadata, "spec": { "nodeName": "n" }, "status": status });
        serde_json::from_value::<SlimPod>(pod).unwrap().seen(false).unwrap()
    }

    /// The restarted agent reports why the container before it ended, and the node knows more about that.
    #[test]
    fn cause_includes_kill_of_previous_container() {
        let report = |killed: bool| Report { version: 1, attempt: 1, killed, signal: Some(9), ..Report::default() };
        let cause = |killed: bool, reason: &str| {
            let message = report(killed).to_message();
            let end =
                json!({ "exitCode": 1, "reason": "Error", "message": message, "finishedAt": "2030-01-02T03:06:00Z" });
            let before = json!({ "exitCode": 137, "reason": reason, "finishedAt": "2030-01-02T03:05:00Z" });
            let container =
                json!({ "name": "training", "state": { "terminated": end }, "lastState": { "terminated": before } });
            let pod = seen(&json!({ "phase": "Failed", "containerStatuses": [container] }));
            (first_cause([&pod]).unwrap().reason, pod.out_of_memory.is_some())
        };
        assert_eq!(cause(true, "OOMKilled"), (Reason::OomKilled, true));
        assert_eq!(cause(true, "Error"), (Reason::Signal, false), "killed by somebody");
        assert_eq!(cause(false, "OOMKilled"), (Reason::Signal, true), "what followed is another failure");
    }

    /// Both as a container and, with newer meshes, as an init container that keeps running.
    #[test]
    fn mesh_proxy_container_is_detected() {
        let pod = |list: &str, name: &str| seen(&json!({ list: [{ "name": name }] })).mesh;
        assert_eq!(pod("containerStatuses", "istio-proxy"), Some("istio-proxy"));
        assert_eq!(pod("initContainerStatuses", "linkerd-proxy"), Some("linkerd-proxy"));
        for name in ["proxy", "training", "istio", "istio-init", "linkerd-proxy-injector"] {
            assert_eq!(pod("containerStatuses", name), None, "{name}");
        }
    }

    #[test]
    fn init_container_that_delays_program_is_named() {
        let pod = |initialized: &str, name: &str, state: &str| {
            seen(&json!({
                "conditions": [{ "type": "Initialized", "status": initialized }],
                "initContainerStatuses": [
                    { "name": "agent", "state": { "terminated": { "exitCode": 0 } } },
                    { "name": name, "state": { state: {} } },
                ],
            }))
            .running_init
        };
        assert_eq!(pod("False", "slow-disk", "running").as_deref(), Some("slow-disk"));
        assert_eq!(pod("True", "linkerd-proxy", "running"), None, "a sidecar stays");
        assert_eq!(pod("False", "slow-disk", "waiting"), None);
        for own in [AGENT, FETCH] {
            assert_eq!(pod("False", own, "running"), None, "{own}");
        }
    }

    /// As the kubelet leaves it: the program's own container waits for ever.
    #[test]
    fn failed_init_container_is_reported_with_its_message() {
        let ended = |code: i32, message: &str| json!({ "terminated": { "exitCode": code, "reason": "Error", "message": message, "finishedAt": "2030-01-02T03:05:00Z" } });
        let pod = seen(&json!({
            "phase": "Failed",
            "initContainerStatuses": [
                { "name": "agent", "state": ended(0, "") },
                { "name": "fetch", "state": ended(3, "no such bucket") },
                { "name": "later", "state": { "waiting": { "reason": "PodInitializing" } } },
            ],
            "containerStatuses": [{ "name": "training", "state": { "waiting": { "reason": "PodInitializing" } } }],
        }));
        let init = pod.failed_init.as_ref().unwrap();
        assert_eq!((init.name.as_str(), init.exit_code), ("fetch", 3));
        let cause = first_cause([&pod]).unwrap();
        assert_eq!(cause.time.unwrap().to_string(), "2030-01-02T03:05:00Z");
        assert_eq!(
            cause.to_string(),
            "worker 0 (pod x, node n): its init container fetch failed with exit code 3: no such bucket"
        );
    }

    /// In the order in which they occur: killed, in its back-off, running again. Then similar cases.
    #[test]
    fn container_killed_under_restart_rule_is_not_failed() {
        let end = |code: i32| json!({ "exitCode": code, "reason": "OOMKilled", "finishedAt": "2030-01-02T03:05:00Z" });
        let seen = |rules: bool, deleted: bool, phase: &str, state: Value, last: Value| {
            let labels = json!({ "ml.example.com/incarnation": "1", "batch.kubernetes.io/job-completion-index": "0" });
            let mut metadata = json!({ "name": "x", "uid": "u", "labels": labels });
            if deleted {
                metadata["deletionTimestamp"] = json!("2030-01-02T03:05:30Z");
            }
            let rule = json!([{ "action": "Restart", "exitCodes": { "operator": "In", "values": [137] } }]);
            let training = if rules {
                json!({ "name": "training", "restartPolicyRules": rule })
            } else {
                json!({ "name": "training" })
            };
            let status = json!({ "phase": phase, "containerStatuses": [{ "name": "training", "state": state, "lastState": last }] });
            let pod = json!({ "metadata": metadata, "spec": { "containers": [training] }, "status": status });
            let pod = serde_json::from_value::<SlimPod>(pod).unwrap().seen(false).unwrap();
            (pod.killed.clone(), pod.failed(), pod.runs())
        };
        let (ended, nothing) = (|code| json!({ "terminated": end(code) }), json!({}));
        let waiting = json!({ "waiting": { "reason": "CrashLoopBackOff", "message": "back-off 10s" } });
        let killed = (Some("OOMKilled".to_owned()), false, false);
        assert_eq!(seen(true, false, "Running", ended(137), nothing.clone()), killed);
        assert_eq!(seen(true, false, "Running", waiting.clone(), ended(137)), killed);
        let running = json!({ "running": { "startedAt": "2030-01-02T03:05:10Z" } });
        assert_eq!(seen(true, false, "Running", running, ended(137)), (None, false, true));
        let failed = (None, true, false);
        assert_eq!(
            seen(false, false, "Running", ended(137), nothing.clone()),
            failed,
            "an older server has dropped the rules"
        );
        assert_eq!(
            seen(true, false, "Failed", ended(137), nothing.clone()),
            failed,
            "an older kubelet does not know them"
        );
        assert_eq!(seen(true, true, "Running", ended(137), nothing.clone()), failed, "it was to end");
        assert_eq!(seen(true, false, "Running", ended(1), nothing.clone()), failed);
        assert_eq!(seen(true, false, "Pending", waiting, nothing), (None, false, false), "its first start");
    }

    #[test]
    fn pod_rejected_by_its_node_is_a_disruption() {
        let message =
            "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate, which is unexpected";
        let pod = seen(&json!({ "phase": "Failed", "reason": "UnexpectedAdmissionError", "message": message }));
        let cause = first_cause([&pod]).unwrap();
        assert_eq!((cause.reason, cause.disruption), (Reason::NodeRejected, true));
    }

    #[test]
    fn report_truncated_by_kubelet_is_still_read() {
        let whole = r#"{"version":1,"attempt":1,"phase":"Exited","exitCode":1,"exception":{"rank":3,"time":"2030-01-02T03:05:00Z","type":"ValueError","message":"bad shape of the imag"#;
        let end = json!({ "terminated": { "exitCode": 1, "reason": "Error", "message": whole, "finishedAt": "2030-01-02T03:05:00Z" } });
        let pod = seen(&json!({ "phase": "Failed", "containerStatuses": [{ "name": "training", "state": end }] }));
        let cause = first_cause([&pod]).unwrap();
        assert_eq!((&cause.reason, cause.rank), (&Reason::PythonException, Some(3)));
        assert!(cause.to_string().ends_with("rank 3: ValueError: bad shape of the imag"), "{cause}");
    }
}
