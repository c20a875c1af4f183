//! Facts about one worker. The operator reads them from the worker's pod, an agent from its own container.

use jiff::Timestamp;
use protocol::report::Report;
use protocol::role::{ReplicaId, RoleName};

/// One worker of the attempt, with the facts that may explain its failure.
#[derive(Clone, Copy, Debug)]
pub struct WorkerFacts<'a> {
    /// Its role.
    pub role: RoleName,
    /// Its index, among those of its role.
    pub index: u32,
    /// Name of the pod; empty where that is not known.
    pub pod: &'a str,
    /// Name of the node, once the pod has one.
    pub node: Option<&'a str>,
    /// The attempt that it belongs to, from 1.
    pub attempt: u32,
    /// When its pod was created.
    pub created: Option<Timestamp>,
    /// When the deletion of its pod was requested.
    pub deletion: Option<Timestamp>,
    /// Its pod no longer exists.
    pub gone: bool,
    /// Whether its pod succeeded; `None` until the pod has ended.
    pub ended: Option<bool>,
    /// Why its pod failed, if not because of its containers: the kubelet's reason and message.
    pub pod_reason: Option<&'a WaitingState>,
    /// The disruption from outside that removed it.
    pub disruption: Option<&'a Disruption>,
    /// An init container that failed, and kept the program from starting.
    pub failed_init: Option<&'a FailedInit>,
    /// The container `training`.
    pub training: &'a Container,
}

/// A reason in one word, and the message of the component that gave it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitingState {
    /// For example `ErrImagePull`.
    pub reason: String,
    /// May be empty.
    pub message: String,
}

/// The condition `DisruptionTarget` of a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Disruption {
    /// `EvictionByEvictionAPI`, `PreemptionByScheduler`, `DeletionByTaintManager`, `DeletionByPodGC`, `TerminationByKubelet`.
    pub reason: String,
    /// Kubernetes' message.
    pub message: String,
    /// Time of the disruption.
    pub time: Option<Timestamp>,
}

/// An init container that failed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FailedInit {
    /// Name of the container.
    pub name: String,
    /// Its exit code.
    pub exit_code: i32,
    /// Kubernetes' reason, such as `OOMKilled` or `Error`.
    pub reason: String,
    /// Its termination message, if it left one.
    pub message: Option<String>,
    /// When it ended.
    pub finished: Option<Timestamp>,
}

/// State of the container `training`.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Container {
    /// Not started.
    #[default]
    Waiting,
    /// Its program runs.
    Running {
        /// Since when.
        since: Option<Timestamp>,
    },
    /// It has ended.
    Terminated {
        /// When it started.
        started: Option<Timestamp>,
        /// When it ended.
        finished: Option<Timestamp>,
        /// Exit code of the container.
        exit_code: i32,
        /// Kubernetes' reason, such as `OOMKilled` or `Error`.
        reason: String,
        /// What its agent left, or whatever stands in the termination message.
        report: Option<Box<Report>>,
        /// The termination message, when no agent wrote it.
        message: Option<String>,
    },
}

impl<'a> WorkerFacts<'a> {
    /// Report of its agent.
    #[must_use]
    pub fn report(&self) -> Option<&'a Report> {
        match self.training {
            Container::Terminated { report, .. } => report.as_deref(),
            _ => None,
        }
    }

    /// Whether its program succeeded.
    #[must_use]
    pub fn succeeded(&self) -> bool {
        self.ended == Some(true) || matches!(self.training, Container::Terminated { exit_code: 0, .. })
    }

    /// Its place in the gang.
    #[must_use]
    pub fn replica_id(&self) -> ReplicaId {
        ReplicaId { role: self.role, index: self.index }
    }
}
