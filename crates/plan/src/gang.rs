//! The gang as a value: its roles, and how their processes find each other.

use super::ClaimPath;
use super::{Checkpoint, Source};
use api::{Backend, Framework, HostNames, Scheduling};
use k8s_openapi::api::core::v1::{
    EnvFromSource, EnvVar, LocalObjectReference, PodTemplateSpec, ResourceRequirements, Volume, VolumeMount,
};
use protocol::role::{Place, RoleName};

/// All pods that start, fail and restart together.
#[derive(Clone, Debug, PartialEq)]
pub struct Gang {
    /// The kinds of pods, the workers first; never empty.
    pub roles: Vec<Role>,
    /// How their processes find each other.
    pub rendezvous: Rendezvous,
    /// How many of the pods the gang is of, where that may change.
    pub elastic: Option<Elastic>,
    /// By what they are placed together or not at all; each for itself if there is none.
    pub group: Option<Group>,
    /// Whether a NetworkPolicy keeps other pods from all ports but that of the metrics.
    pub isolated: bool,
    /// Kueue's LocalQueue, where one Workload is of all roles. The Job of workers alone has its queue itself.
    pub queue: Option<String>,
}

/// The size of a gang that may change while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elastic {
    /// With fewer it does not run.
    pub min: u16,
    /// The most that there may be.
    pub max: u16,
    /// Seconds until it runs without those that find no room.
    pub wait_seconds: u32,
    /// Workers of the next attempt, as was decided last.
    pub workers: u16,
    /// The most that the attempts of these pods may have had.
    pub largest: u16,
}

impl Gang {
    /// The workers: the agent of the first one leads the gang.
    ///
    /// # Panics
    /// Never: [`super::resolve`] makes no gang without a role.
    #[must_use]
    #[expect(clippy::expect_used, reason = "the workers come first, and always")]
    pub fn workers(&self) -> &Role {
        self.roles.first().expect("a gang has a role")
    }

    /// Pods of all roles.
    #[must_use]
    pub fn size(&self) -> u16 {
        self.roles.iter().map(|role| role.replicas).fold(0, u16::saturating_add)
    }

    /// The role of this name.
    #[must_use]
    pub fn role(&self, name: RoleName) -> Option<&Role> {
        self.roles.iter().find(|role| role.name == name)
    }

    /// Whether there are others than workers.
    #[must_use]
    pub fn has_roles(&self) -> bool {
        self.roles.len() > 1
    }

    /// All pods that have to end well for the gang to have succeeded.
    pub fn deciding(&self) -> impl Iterator<Item = Place> {
        let of = |role: &Role| {
            let name = role.name;
            (0..role.completion.of(role.replicas).into()).map(move |index| Place { role: name, index })
        };
        self.roles.iter().flat_map(of)
    }

    /// The most workers that there may ever be.
    #[must_use]
    pub fn most_workers(&self) -> u16 {
        self.elastic.as_ref().map_or(self.workers().replicas, |elastic| elastic.max)
    }

    /// The fewest workers that it runs with.
    #[must_use]
    pub fn fewest_workers(&self) -> u16 {
        self.elastic.as_ref().map_or(self.workers().replicas, |elastic| elastic.min)
    }

    /// The fewest pods that it runs with.
    #[must_use]
    pub fn least(&self) -> u16 {
        self.elastic.as_ref().map_or(self.size(), |elastic| elastic.min)
    }
}

/// One kind of pod in a gang: one Indexed Job.
#[derive(Clone, Debug, PartialEq)]
pub struct Role {
    /// What it is called in labels and messages.
    pub name: RoleName,
    /// Pods of this role.
    pub replicas: u16,
    /// Processes of each pod.
    pub procs: u16,
    /// GPUs of each pod.
    pub gpus: u16,
    /// What each pod runs, and where.
    pub pod: Pod,
    /// What it has to do with the end of the gang.
    pub completion: Completion,
}

impl Role {
    /// Processes of all its pods.
    #[must_use]
    pub fn world_size(&self) -> u32 {
        u32::from(self.replicas) * u32::from(self.procs)
    }

    /// Its pods in a gang of so many workers, of which alone there may be more or fewer.
    #[must_use]
    pub fn pods(&self, workers: u16) -> u16 {
        if self.name.is_worker() { workers } else { self.replicas }
    }

    /// Whether its pods use their nodes' network, in which NetworkPolicies have no effect.
    #[must_use]
    pub fn has_host_network(&self) -> bool {
        self.pod.overlay.spec.as_ref().and_then(|spec| spec.host_network).unwrap_or(false)
    }
}

/// The PodGroup by which a scheduler places all pods of a gang or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Whose it is.
    pub kind: GroupKind,
}

/// Whose kind a PodGroup is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupKind {
    /// Volcano's.
    Volcano {
        /// Volcano's queue, where it isn't the default one.
        queue: Option<String>,
    },
    /// That of the coscheduling plugin.
    Coscheduling,
    /// Kubernetes' own.
    Native,
}

/// What a role has to do with the end of its gang, which has succeeded when all have that decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// Every one of its programs has to exit with code 0.
    EveryReplica,
    /// The program of the first one has to exit with code 0; those of the others are ended then.
    First,
    /// Its programs are ended when the others are done.
    Ended,
}

impl Completion {
    /// How many of so many pods have to end well: the first ones.
    #[must_use]
    pub fn of(self, replicas: u16) -> u16 {
        match self {
            Self::EveryReplica => replicas,
            Self::First => 1,
            Self::Ended => 0,
        }
    }
}

/// What a pod runs, and where.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pod {
    /// Image of the container `training`.
    pub image: String,
    /// Command with its arguments, never empty.
    pub command: Vec<String>,
    /// The spec's own variables.
    pub env: Vec<EnvVar>,
    /// The spec's own sources of variables.
    pub env_from: Vec<EnvFromSource>,
    /// Requests and limits, GPUs and RDMA devices included.
    pub resources: ResourceRequirements,
    /// Working directory, where it isn't the image's.
    pub working_dir: Option<String>,
    /// The spec's own volumes.
    pub volumes: Vec<Volume>,
    /// The spec's own mounts.
    pub volume_mounts: Vec<VolumeMount>,
    /// Secrets with which images are pulled.
    pub image_pull_secrets: Vec<LocalObjectReference>,
    /// Service account, where it isn't the namespace's default.
    pub service_account_name: Option<String>,
    /// Where and when it runs.
    pub scheduling: Scheduling,
    /// Seconds that the pod has to stop, a hook before SIGTERM included.
    pub grace_seconds: i64,
    /// Seconds from SIGTERM until the agent kills what is left of the program.
    pub program_grace_seconds: i64,
    /// `podTemplate`, decoded and checked: laid over the operator's own template.
    pub overlay: PodTemplateSpec,
}

/// How the processes of a gang find each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendezvous {
    /// Which environment the programs expect.
    pub framework: Framework,
    /// Collective communication backend.
    pub backend: Backend,
    /// Where the ranks meet, here and at the next port in turns, so that no straggler of one attempt joins the next.
    pub master_port: u16,
    /// Where the agent of the first worker listens for the others. Two ports after `master_port`, or one more if the agents
    /// serve their metrics there; where that is beyond the last port, as far before it.
    pub gang_port: u16,
    /// Where the agents listen that start what `mpirun` wants: the next port that nobody else has. None of other frameworks.
    pub mpi_port: Option<u16>,
    /// Network interface, where the spec names one.
    pub interface: Option<String>,
    /// Which pods have a host name.
    pub host_names: HostNames,
    /// Whether the pods have an RDMA device (it is among their resources).
    pub rdma: bool,
}

impl Rendezvous {
    /// A port that neither the ranks nor the agents' metrics have.
    pub(super) fn gang_port(master: u16, metrics: u16) -> u16 {
        near(master, &[2, 3, -2, -3], &[metrics])
    }

    /// A port that neither the ranks, the agents nor their metrics have.
    pub(super) fn mpi_port(master: u16, gang: u16, metrics: u16) -> u16 {
        near(master, &[3, 4, -2, -3, -4], &[gang, metrics])
    }
}

/// The first port at one of these distances that there is and nobody has. There is always one: with n ports taken, n + 1 of the
/// distances are to ports that exist.
fn near(port: u16, distances: &[i16], taken: &[u16]) -> u16 {
    let mut ports = distances.iter().filter_map(|distance| port.checked_add_signed(*distance));
    ports.find(|port| !taken.contains(port)).unwrap_or(port)
}

/// What outlives the pods, or comes from elsewhere.
#[derive(Clone, Debug, PartialEq)]
pub struct Storage {
    /// Model to train.
    pub model: Source,
    /// Dataset to train on.
    pub dataset: Source,
    /// Where results go.
    pub output: Option<ClaimPath>,
    /// Where checkpoints are kept; none when checkpoints are switched off.
    pub checkpoint: Option<Checkpoint>,
}

/// What is to be done about the checkpoints while no worker runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Upkeep {
    /// Find out whether the job can go on from `checkpoint.resumeFrom`, before any GPU is held.
    Check,
    /// Copy what is not yet copied.
    Copy,
}

impl Upkeep {
    /// As the agent is told.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Copy => "copy",
        }
    }
}

/// Numbers of one Job with its pods, and of the run of the program that they begin with.
///
/// They are equal as long as no attempt has begun in pods that had another one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incarnation {
    /// Number of the Job and its pods, from 1: the label [`super::labels::INCARNATION`].
    pub number: u32,
    /// Number of the program's attempt, from 1: what people are told, and what the rendezvous goes by.
    pub attempt: u32,
}

impl Incarnation {
    /// Of a job that has never run.
    pub const FIRST: Self = Self { number: 1, attempt: 1 };

    /// New pods, which begin with a new attempt.
    #[must_use]
    pub fn next(self) -> Self {
        Self { number: self.number.saturating_add(1), attempt: self.attempt.saturating_add(1) }
    }
}
