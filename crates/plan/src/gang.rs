//! The gang as a value: its roles, and the rendezvous of their processes.

use super::{Checkpoint, Fetching, Input, Output};
use api::{Backend, Framework, HostNames, Scheduling};
use k8s_openapi::api::core::v1::{
    EnvFromSource, EnvVar, LocalObjectReference, PodTemplateSpec, ResourceRequirements, Volume, VolumeMount,
};
use protocol::role::{ReplicaId, RoleName};

/// All pods that start, fail and restart together.
#[derive(Clone, Debug, PartialEq)]
pub struct Gang {
    /// The kinds of pods, the workers first; never empty.
    pub roles: Vec<Role>,
    /// Rendezvous of the gang's processes.
    pub rendezvous: Rendezvous,
    /// Size settings, if the size may change.
    pub elastic: Option<Elastic>,
    /// PodGroup that places all pods together or none. Without it each pod is placed separately.
    pub group: Option<Group>,
    /// Whether a NetworkPolicy closes all ports to other pods, except the metrics port.
    pub isolated: bool,
    /// Kueue LocalQueue of a Workload for all roles. In a gang of workers alone, the Job itself names the queue.
    pub queue: Option<String>,
}

/// Size of a gang that may change while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elastic {
    /// Minimum number of workers that the gang runs with.
    pub min: u16,
    /// Maximum number of workers.
    pub max: u16,
    /// Seconds to wait for unschedulable workers before the gang runs without them.
    pub wait_seconds: u32,
    /// Number of workers in the next attempt, as decided last.
    pub workers: u16,
    /// Maximum number of workers that attempts in these pods may have had.
    pub largest: u16,
}

impl Gang {
    /// The workers; the agent of the first one leads the gang.
    ///
    /// # Panics
    /// Never: [`super::resolve`] creates no gang without a role.
    #[must_use]
    #[expect(clippy::expect_used, reason = "the workers come first, and always")]
    pub fn workers(&self) -> &Role {
        self.roles.first().expect("a gang has a role")
    }

    /// The member that may report the training's progress where the first worker does not: a role that decides on the
    /// gang's end, such as a chief, or the last worker.
    #[must_use]
    pub fn other_reporter(&self) -> Option<ReplicaId> {
        let mut deciding =
            self.roles.iter().filter(|role| role.completion.required_pods(role.replicas) > 0).map(|role| role.name);
        if let Some(role) = deciding.find(|role| !role.is_worker()) {
            return Some(ReplicaId { role, index: 0 });
        }
        let replicas = self.workers().replicas;
        let workers = self.elastic.as_ref().map_or(replicas, |elastic| elastic.workers.min(replicas));
        (workers > 1).then(|| ReplicaId { role: RoleName::WORKER, index: u32::from(workers) - 1 })
    }

    /// Number of pods in all roles.
    #[must_use]
    pub fn size(&self) -> u16 {
        self.roles.iter().map(|role| role.replicas).fold(0, u16::saturating_add)
    }

    /// Number of GPUs of all pods.
    #[must_use]
    pub fn gpus(&self) -> u32 {
        let of_role = |role: &Role| u32::from(role.replicas) * u32::from(role.gpus);
        self.roles.iter().map(of_role).fold(0, u32::saturating_add)
    }

    /// Name of the queue of Kueue or Volcano in which the gang waits, if it has one.
    #[must_use]
    pub fn queue_name(&self) -> Option<&str> {
        let of_volcano = match self.group.as_ref().map(|group| &group.kind) {
            Some(GroupKind::Volcano { queue }) => queue.as_deref(),
            _ => None,
        };
        self.queue.as_deref().or(of_volcano).or(self.workers().pod.scheduling.queue.as_deref())
    }

    /// The role with this name.
    #[must_use]
    pub fn role(&self, name: RoleName) -> Option<&Role> {
        self.roles.iter().find(|role| role.name == name)
    }

    /// Whether there are roles besides the workers.
    #[must_use]
    pub fn has_roles(&self) -> bool {
        self.roles.len() > 1
    }

    /// All pods that must succeed for the gang to succeed.
    pub fn deciding(&self) -> impl Iterator<Item = ReplicaId> {
        let of = |role: &Role| {
            let name = role.name;
            (0..role.completion.required_pods(role.replicas).into()).map(move |index| ReplicaId { role: name, index })
        };
        self.roles.iter().flat_map(of)
    }

    /// Maximum number of workers that the gang can ever have.
    #[must_use]
    pub fn most_workers(&self) -> u16 {
        self.elastic.as_ref().map_or(self.workers().replicas, |elastic| elastic.max)
    }

    /// Minimum number of workers that the gang runs with.
    #[must_use]
    pub fn fewest_workers(&self) -> u16 {
        self.elastic.as_ref().map_or(self.workers().replicas, |elastic| elastic.min)
    }

    /// Minimum number of pods that the gang runs with.
    #[must_use]
    pub fn least(&self) -> u16 {
        self.elastic.as_ref().map_or(self.size(), |elastic| elastic.min)
    }
}

/// One kind of pod in a gang, which is one Indexed Job.
#[derive(Clone, Debug, PartialEq)]
pub struct Role {
    /// Name in labels and messages.
    pub name: RoleName,
    /// Number of pods of this role.
    pub replicas: u16,
    /// Processes of each pod.
    pub procs: u16,
    /// GPUs of each pod.
    pub gpus: u16,
    /// Content and placement of each pod.
    pub pod: Pod,
    /// Effect of the role on the gang's completion.
    pub completion: Completion,
}

impl Role {
    /// Number of processes in all pods of the role.
    #[must_use]
    pub fn world_size(&self) -> u32 {
        u32::from(self.replicas) * u32::from(self.procs)
    }

    /// Number of its pods in a gang with this many workers. Only the number of workers can vary.
    #[must_use]
    pub fn pods(&self, workers: u16) -> u16 {
        if self.name.is_worker() { workers } else { self.replicas }
    }

    /// Whether its pods use the node's network, on which NetworkPolicies have no effect.
    #[must_use]
    pub fn has_host_network(&self) -> bool {
        self.pod.overlay.spec.as_ref().and_then(|spec| spec.host_network).unwrap_or(false)
    }
}

/// PodGroup by which a scheduler places all pods of a gang or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Name of the PodGroup.
    pub name: String,
    /// Kind of the PodGroup.
    pub kind: GroupKind,
}

/// Kinds of PodGroups, by their scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupKind {
    /// Volcano's PodGroup.
    Volcano {
        /// Volcano queue, unless it is the default one.
        queue: Option<String>,
    },
    /// The PodGroup of the coscheduling plugin.
    Coscheduling,
    /// The PodGroup of Kubernetes itself.
    Native,
}

/// Effect of a role on the gang's completion. The gang succeeds when all deciding roles have succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// Every program of the role must exit with code 0.
    EveryReplica,
    /// The first program of the role must exit with code 0. Its other programs are then stopped.
    First,
    /// The programs of the role are stopped when the deciding roles have succeeded.
    Ended,
}

impl Completion {
    /// Number of pods that must succeed out of `replicas`, the first ones by index.
    #[must_use]
    pub fn required_pods(self, replicas: u16) -> u16 {
        match self {
            Self::EveryReplica => replicas,
            Self::First => 1,
            Self::Ended => 0,
        }
    }
}

/// Content and placement of a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pod {
    /// Image of the container `training`.
    pub image: String,
    /// Command with its arguments, never empty.
    pub command: Vec<String>,
    /// Variables from the spec.
    pub env: Vec<EnvVar>,
    /// Sources of variables from the spec.
    pub env_from: Vec<EnvFromSource>,
    /// Requests and limits, including GPUs and RDMA devices.
    pub resources: ResourceRequirements,
    /// Working directory, unless it is the image's.
    pub working_dir: Option<String>,
    /// Volumes from the spec.
    pub volumes: Vec<Volume>,
    /// Volume mounts from the spec.
    pub volume_mounts: Vec<VolumeMount>,
    /// Secrets used to pull images.
    pub image_pull_secrets: Vec<LocalObjectReference>,
    /// Service account, unless it is the namespace's default.
    pub service_account_name: Option<String>,
    /// Placement, queueing and priority of the pod.
    pub scheduling: Scheduling,
    /// Grace period of the pod in seconds, including a hook before SIGTERM.
    pub grace_seconds: i64,
    /// Seconds from SIGTERM until the agent kills the remaining processes of the program.
    pub program_grace_seconds: i64,
    /// `podTemplate`, decoded and validated, as a patch for the operator's own template.
    pub overlay: PodTemplateSpec,
}

/// Rendezvous of a gang's processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendezvous {
    /// Framework whose environment the programs expect.
    pub framework: Framework,
    /// Collective communication backend.
    pub backend: Backend,
    /// Port of the rendezvous. Attempts alternate between it and the next port, so that stragglers of one attempt can't
    /// join the next.
    pub master_port: u16,
    /// Port of the first worker's agent for the other agents. It is two ports after `master_port`, or three if the agents
    /// serve their metrics there. Beyond the last port, it is as far before `master_port`.
    pub gang_port: u16,
    /// Port of the agents that start processes for `mpirun`, the next free one. `None` for other frameworks.
    pub mpi_port: Option<u16>,
    /// Network interface, if the spec names one.
    pub interface: Option<String>,
    /// Pods that have a host name.
    pub host_names: HostNames,
    /// Whether the pods have an RDMA device, which is among their resources.
    pub rdma: bool,
}

impl Rendezvous {
    /// A port used neither by the ranks nor by the agents' metrics.
    pub(super) fn gang_port(master: u16, metrics: u16) -> u16 {
        near(master, &[2, 3, -2, -3], &[metrics])
    }

    /// A port used neither by the ranks, nor by the agents, nor by their metrics.
    pub(super) fn mpi_port(master: u16, gang: u16, metrics: u16) -> u16 {
        near(master, &[3, 4, -2, -3, -4], &[gang, metrics])
    }
}

/// Returns the first valid and free port at one of these distances. There is always one: with n ports taken, n + 1 of the
/// distances lead to valid ports.
fn near(port: u16, distances: &[i16], taken: &[u16]) -> u16 {
    let mut ports = distances.iter().filter_map(|distance| port.checked_add_signed(*distance));
    ports.find(|port| !taken.contains(port)).unwrap_or(port)
}

/// Data that outlives the pods or exists before them.
#[derive(Clone, Debug, PartialEq)]
pub struct Storage {
    /// Content that the workers read: model, dataset, and further data.
    pub inputs: Vec<Input>,
    /// How content is fetched, if any is.
    pub fetching: Option<Fetching>,
    /// Secret with the credentials for the addresses of `inputs`.
    pub credentials_secret: Option<String>,
    /// Where the program writes its results.
    pub output: Option<Output>,
    /// Checkpoint storage; `None` if checkpoints are disabled.
    pub checkpoint: Option<Checkpoint>,
    /// Digest of the archive with the program's code, if it is delivered to the pods.
    pub code: Option<String>,
}

impl Storage {
    /// Whether an upkeep Job may precede or follow the workers.
    #[must_use]
    pub fn has_upkeep(&self) -> bool {
        let of_checkpoints = |it: &Checkpoint| it.policy.backup.is_some() || it.policy.resume_from.is_some();
        self.fetching.as_ref().is_some_and(Fetching::has_job) || self.checkpoint.as_ref().is_some_and(of_checkpoints)
    }
}

/// Work on the job's data while no worker runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Upkeep {
    /// Verify that the job can resume from `checkpoint.resumeFrom`, before it holds any GPU.
    Check,
    /// Copy the checkpoints that have not been copied yet.
    Copy,
    /// Fetch the content that the workers read into the cache, before they hold any GPU.
    Fetch,
    /// Publish the result, after the programs have succeeded.
    Publish,
}

impl Upkeep {
    /// The task as an argument of the agent.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Copy => "copy",
            Self::Fetch => "fetch",
            Self::Publish => "publish",
        }
    }
}

/// Numbers of one Job with its pods, and of the attempt with which they begin.
///
/// They are equal until an attempt begins in pods that had another one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incarnation {
    /// Number of the Job and its pods, from 1, in the label [`super::labels::INCARNATION`].
    pub number: u32,
    /// Number of the program's attempt, from 1. Users see it, and the rendezvous depends on it.
    pub attempt: u32,
}

impl Incarnation {
    /// Numbers of a job that has never run.
    pub const FIRST: Self = Self { number: 1, attempt: 1 };

    /// Numbers for new pods, which begin with a new attempt.
    #[must_use]
    pub fn next(self) -> Self {
        Self { number: self.number.saturating_add(1), attempt: self.attempt.saturating_add(1) }
    }
}
