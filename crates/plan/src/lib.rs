//! Resolution of a TrainingJob: the spec and the operator's own settings become a [`Plan`], or the reasons for rejecting
//! the job.
//!
//! There is no I/O. [`resolve`] is the only reader of the spec. In a plan nothing that has a default is optional, and every
//! name and quantity has been parsed. The crate `objects` can therefore create objects from it without failing.
#![cfg_attr(
    test,
    allow(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss,
        reason = "numbers of tests are small"
    )
)]

mod delivery;
mod effective;
mod environment;
mod gang;
mod grace;
mod hyperparameters;
mod inputs;
pub mod labels;
mod monitoring;
pub mod names;
mod output;
mod own_image;
mod parameters;
mod placement;
mod policy;
pub mod quantity;
mod refusal;
mod resources;
pub mod roles;
pub mod storage;
pub mod template;
mod template_merge;

pub use delivery::{AgentDelivery, Delivery, node_has_image_volumes, server_has_image_volumes};
pub use effective::{effective, record};
pub use environment::hosts_bytes;
pub use environment::is_reserved;
pub use gang::{Completion, Elastic, Gang, Group, GroupKind, Incarnation, Pod, Rendezvous, Role, Storage, Upkeep};
pub use hyperparameters::Hyperparameter;
pub use inputs::{CacheVolume, ClaimPath, Fetching, Input, Source, resolved};
pub use monitoring::{BoardPlan, BoardVolume, Mlflow, Monitoring, TensorBoard};
pub use names::{dns_label, dns_subdomain};
pub use output::{Output, Publishing, Registering};
pub use own_image::{OwnImage, own_image};
pub use policy::{Failure, Policy, RestoredEnd, Success, ended, restart_requested};
pub use refusal::{Refusal, Refusals};
pub use resources::{is_extended, is_gpu};
pub use storage::{Checkpoint, CheckpointVolume, restart_from};
pub use template_merge::{merged, with_runtime};

use api::{Framework, HostNames, TrainingJob, TrainingJobSpec, TrainingJobStatus, TuningJob};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use protocol::checkpoints::CheckpointPolicy;
use protocol::role::RoleName;
use roles::PodInput;
use std::collections::BTreeMap;

/// The operator's own settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OperatorInfo {
    /// Image with `/agent` and its files, in the operator's own version.
    pub agent_image: String,
    /// Pull policy of that image. Without it the cluster's rule for the image's tag applies.
    pub agent_image_pull_policy: Option<String>,
    /// Delivery of the agent from that image into the workers' pods.
    pub delivery: Delivery,
    /// Whether the API server accepts restart rules of containers, see [`OperatorInfo::has_restart_rules`].
    pub restart_rules: bool,
    /// Default of `ttlSecondsAfterFinished` for new jobs; `None` keeps them forever.
    pub default_ttl_seconds: Option<u32>,
    /// Namespace of the operator. Jobs are rejected in it, because their pods could use the operator's service account.
    pub own_namespace: Option<String>,
}

impl OperatorInfo {
    /// Whether an API server of this version accepts restart rules of containers. Versions before 1.34 reject a Job that
    /// has them. Versions from 1.34 to 1.35 drop them unless they are enabled.
    #[must_use]
    pub fn has_restart_rules(major: &str, minor: &str) -> bool {
        // Some providers write 34+.
        let number = |text: &str| text.trim_end_matches(|c: char| !c.is_ascii_digit()).parse::<u32>().ok();
        number(major).zip(number(minor)).is_some_and(|version| version >= (1, 34))
    }
}

/// All decisions about a TrainingJob. No later stage reads the spec.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Identity of the job.
    pub identity: Identity,
    /// The pods that start, fail and restart together.
    pub gang: Gang,
    /// Reactions to events during the job's life.
    pub policy: Policy,
    /// Data that outlives the pods or exists before them.
    pub storage: Storage,
    /// Hyperparameters in the order of their fields, followed by the additional ones by name.
    pub hyperparameters: Vec<Hyperparameter>,
    /// Progress metrics, TensorBoard and experiment trackers of the job.
    pub monitoring: Monitoring,
    /// Settings for the workers' agent.
    pub runtime: OperatorInfo,
}

/// Identity of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Identity {
    /// Name of the TrainingJob, from which the names of its objects are derived, see [`names`].
    pub name: String,
    /// Namespace of the TrainingJob and of all its objects.
    pub namespace: String,
    /// UID of the TrainingJob.
    pub uid: String,
    /// The TrainingJob as the owner and controller of its objects.
    pub owner: OwnerReference,
    /// Hash of the requested settings. It is independent of the operator's version, the agent and the attempt. It excludes
    /// the mutable fields (suspend, TTL, the policies).
    pub intent: String,
    /// Hash of the settings that can't change while the job runs.
    pub fixed: String,
    /// The search that the job is a trial of.
    pub search: Option<SearchIdentity>,
    /// The user's labels for every object and pod of the job. The functions of [`labels`] include them.
    pub labels: BTreeMap<String, String>,
    /// The user's annotations for every object and pod of the job.
    pub annotations: BTreeMap<String, String>,
}

/// The search that a job is a trial of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchIdentity {
    /// Name of the TuningJob.
    pub name: String,
    /// UID of the TuningJob.
    pub uid: String,
}

impl SearchIdentity {
    /// The search that an object with this metadata is a trial of, by its controlling owner.
    #[must_use]
    pub fn from_meta(meta: &ObjectMeta) -> Option<Self> {
        let mut owners = meta.owner_references.iter().flatten();
        let owner = owners.find(|owner| owner.controller == Some(true) && owner.kind == TuningJob::kind(&()))?;
        Some(Self { name: owner.name.clone(), uid: owner.uid.clone() })
    }
}

/// A plan, and the reasons against creating objects from it.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// The plan, as complete as possible. Its sizes and its policy are valid even if the job is rejected.
    pub plan: Plan,
    /// Reasons for creating no objects; empty if the job is accepted.
    pub refusals: Refusals,
}

impl Planned {
    /// Returns the plan if objects may be created from it.
    ///
    /// # Errors
    /// All reasons for which the job can't run, not only the first.
    pub fn accepted(&self) -> Result<&Plan, &Refusals> {
        if self.refusals.0.is_empty() { Ok(&self.plan) } else { Err(&self.refusals) }
    }
}

/// Resolves `job` to a plan.
#[must_use]
pub fn resolve(job: &TrainingJob, runtime: &OperatorInfo) -> Planned {
    let mut errors = Refusals::default();
    let effective = effective::resolve(job, &mut errors);
    let spec = &effective.spec;

    let name = job.metadata.name.clone().unwrap_or_default();
    let uid = job.metadata.uid.clone().unwrap_or_default();
    let elastic = elastic(spec, job.status.as_ref(), &mut errors);
    let most = elastic.as_ref().map_or(spec.num_workers(), |elastic| elastic.max);
    names::check(&name, most, &mut errors);
    if job.metadata.namespace.is_some() && job.metadata.namespace == runtime.own_namespace {
        errors.push("metadata.namespace", "is the operator's own: create the job in another namespace");
    }
    if spec.num_workers.is_none() {
        errors.push("spec.numWorkers", "is missing: write it in the job, or in its template");
    }
    if uid.is_empty() {
        errors.push("metadata.uid", "is missing: only an object that the API server has stored can be run");
    }

    let pods = spec.roles.iter().map(|role| u32::from(role.replicas())).sum::<u32>() + u32::from(most);
    let (inputs, fetching) = inputs::resolve(spec, job.status.as_ref(), pods, &mut errors);
    let namespace = job.metadata.namespace.clone().unwrap_or_default();
    let of_job = CheckpointPolicy {
        uid: uid.clone(),
        job: name.clone(),
        workers: most.into(),
        port: monitoring::agent_port(spec),
        ..CheckpointPolicy::default()
    };
    let home = format!("{namespace}/{name}");
    let checkpoint = storage::resolve(&spec.checkpoint, of_job, storage::restart_from(job), &home, &mut errors);
    let credentials_secret = spec.credentials_secret.clone();
    let output = output::resolve(job, &effective, &inputs, &mut errors);
    let code = spec.code.as_ref().map(|code| code.digest.clone());
    let storage = Storage { inputs, fetching, credentials_secret, output, checkpoint, code };
    let policy = policy::resolve(job, spec, &mut errors);
    let monitoring = monitoring::resolve(&name, spec, &policy, &storage, &mut errors);
    let hyperparameters = hyperparameters::resolve(spec.hyperparameters.as_ref(), &mut errors);
    let mut roles = roles::resolve(spec, &storage, &mut errors);
    let queue = if roles.len() > 1 { placement::shared_queue(&mut roles) } else { None };
    for role in roles.iter().skip(1) {
        names::check_host(&name, role.name, role.replicas, &mut errors);
    }
    environment::check_hosts(spec.framework(), &name, most, &roles, &mut errors);
    let (master, agent) = (spec.networking.master_port(), monitoring.agent_port);
    let gang_port = Rendezvous::gang_port(master, agent);
    let is_mpi = spec.framework() == Framework::Mpi;
    let rendezvous = Rendezvous {
        framework: spec.framework(),
        backend: spec.networking.backend(),
        master_port: master,
        gang_port,
        mpi_port: is_mpi.then(|| Rendezvous::mpi_port(master, gang_port, agent)),
        interface: spec.networking.interface.clone(),
        host_names: spec.networking.host_names.unwrap_or(HostNames::AllWorkers),
        rdma: spec.networking.rdma_enabled(),
    };

    let owner = OwnerReference {
        api_version: TrainingJob::api_version(&()).into_owned(),
        kind: TrainingJob::kind(&()).into_owned(),
        name: name.clone(),
        uid: uid.clone(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    };
    let group = placement::group(&spec.scheduling, &name, &uid);
    // One role in the nodes' network is enough. Its addresses are the nodes', and the other roles would refuse them.
    let isolated = spec.networking.isolate() && !roles.iter().any(Role::has_host_network);
    let plan = Plan {
        identity: Identity {
            name,
            namespace,
            uid,
            owner,
            intent: effective.intent(),
            fixed: effective.fixed(),
            search: SearchIdentity::from_meta(&job.metadata),
            labels: spec.labels.clone(),
            annotations: spec.annotations.clone(),
        },
        gang: Gang { roles, rendezvous, elastic, group, isolated, queue },
        policy,
        storage,
        hyperparameters,
        monitoring,
        runtime: runtime.clone(),
    };
    Planned { plan, refusals: errors }
}

/// Resolves the size of an elastic gang. The last decision about it is in the status.
fn elastic(spec: &TrainingJobSpec, status: Option<&TrainingJobStatus>, errors: &mut Refusals) -> Option<Elastic> {
    let elastic = spec.elastic.as_ref()?;
    let (desired, min, max) = (spec.num_workers(), elastic.min_workers(), elastic.max_workers);
    // The API server has checked this for the job's own fields, but does not see the template's.
    if !(min..=max).contains(&desired) && spec.num_workers.is_some() {
        errors.push(
            "spec.numWorkers",
            format!(
                "is {desired}, outside elastic.minWorkers and elastic.maxWorkers: write a number from {min} to {max}"
            ),
        );
    }
    let decided = status.and_then(|status| status.elastic.as_ref());
    let workers = decided.map_or(desired, |decided| decided.workers);
    Some(Elastic {
        min,
        max,
        wait_seconds: elastic.wait_seconds(),
        workers,
        largest: decided.map_or(workers, |decided| decided.largest),
    })
}

/// Creates a role with this many pods from their description.
fn role(
    spec: &TrainingJobSpec,
    name: RoleName,
    replicas: u16,
    input: PodInput<'_>,
    storage: &Storage,
    errors: &mut Refusals,
) -> Role {
    let worker = resources::resolve(spec, &input, errors);
    environment::check(&input.own_env.field, input.own_env.value, errors);
    let template = &input.template.field;
    let overlay = input.template.value.map(|value| template::resolve(template, value, errors)).unwrap_or_default();
    placement::check(&spec.scheduling, template, &overlay, errors);
    let grace = grace::resolve(template, &overlay, errors);
    storage::check_volumes(spec, template, &overlay, storage, errors);
    Role {
        name,
        replicas,
        procs: worker.procs,
        gpus: worker.gpus,
        completion: Completion::EveryReplica,
        pod: Pod {
            image: input.image.cloned().unwrap_or_default(),
            command: input.command.iter().chain(input.args).cloned().collect(),
            env: input.env,
            env_from: spec.env_from.clone(),
            resources: worker.requirements,
            working_dir: spec.working_dir.clone(),
            volumes: spec.volumes.clone(),
            volume_mounts: spec.volume_mounts.clone(),
            image_pull_secrets: spec.image_pull_secrets.clone(),
            service_account_name: spec.service_account_name.clone(),
            scheduling: placement::of_pods(&spec.scheduling),
            grace_seconds: grace.pod,
            program_grace_seconds: grace.program,
            overlay,
        },
    }
}

#[cfg(test)]
mod tests;
