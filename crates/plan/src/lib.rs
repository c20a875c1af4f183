//! What a TrainingJob means: the spec and what the operator knows of itself become a [`Plan`], or the reasons why not.
//!
//! Pure. [`resolve`] reads the spec once; nothing after it does. In a plan nothing that has a default is optional, every
//! name and quantity has been parsed, and [`objects`] can make objects of it without being able to fail.
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
pub mod labels;
mod monitoring;
pub mod names;
mod own_image;
mod placement;
mod policy;
pub mod quantity;
mod refusal;
mod resources;
pub mod roles;
mod source;
pub mod storage;
mod taken;
pub mod template;

pub use delivery::{AgentDelivery, Delivery, node_has_image_volumes, server_has_image_volumes};
pub use effective::{effective, record};
pub use environment::hosts_bytes;
pub use environment::is_reserved;
pub use gang::{Completion, Elastic, Gang, Group, GroupKind, Incarnation, Pod, Rendezvous, Role, Storage, Upkeep};
pub use hyperparameters::Hyperparameter;
pub use monitoring::{BoardPlan, BoardVolume, Mlflow, Monitoring, TensorBoard};
pub use names::{dns_label, dns_subdomain};
pub use own_image::{OwnImage, own_image};
pub use policy::{Failure, Policy, Success, restart_requested};
pub use refusal::{Refusal, Refusals};
pub use resources::{is_extended, is_gpu};
pub use source::{ClaimPath, Source};
pub use storage::{Checkpoint, CheckpointVolume};
pub use taken::{merged, with_runtime};

use api::{Framework, HostNames, TrainingJob, TrainingJobSpec, TrainingJobStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;
use protocol::checkpoints::CheckpointPolicy;
use protocol::role::RoleName;
use roles::PodInput;

/// What the operator knows of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Runtime {
    /// Image that holds `/agent` and what belongs to it, of the operator's own version.
    pub agent_image: String,
    /// Pull policy of that image. Without one the cluster's rule for the image's tag holds.
    pub agent_image_pull_policy: Option<String>,
    /// How the agent comes out of it into the workers' pods.
    pub delivery: Delivery,
    /// Whether the API server takes restart rules of containers, see [`Runtime::has_restart_rules`].
    pub restart_rules: bool,
    /// Seconds after its end at which a job is deleted that says none, if it is created from now on; never without one.
    pub default_ttl_seconds: Option<u32>,
    /// The namespace that the operator runs in: no job may be beside it, where its pods could use the operator's account.
    pub own_namespace: Option<String>,
}

impl Runtime {
    /// Whether an API server of this version takes restart rules of containers: those before 1.34 refuse a Job that has
    /// them. (Between that and 1.35 it drops them, unless they are switched on.)
    #[must_use]
    pub fn has_restart_rules(major: &str, minor: &str) -> bool {
        // Some providers write 34+.
        let number = |text: &str| text.trim_end_matches(|c: char| !c.is_ascii_digit()).parse::<u32>().ok();
        number(major).zip(number(minor)).is_some_and(|version| version >= (1, 34))
    }
}

/// All that is decided about a TrainingJob. Nothing after it reads the spec.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Whose plan it is.
    pub identity: Identity,
    /// The pods that start, fail and restart together.
    pub gang: Gang,
    /// What is to become of the job when something happens to it.
    pub policy: Policy,
    /// What outlives the pods, or comes from elsewhere.
    pub storage: Storage,
    /// Hyperparameters, in the order of their fields, the additional ones by name.
    pub hyperparameters: Vec<Hyperparameter>,
    /// How the job is watched, and where its program records what it does.
    pub monitoring: Monitoring,
    /// The agent that the workers are given.
    pub runtime: Runtime,
}

/// Whose plan it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Identity {
    /// Name of the TrainingJob; its objects' names follow from it, see [`names`].
    pub name: String,
    /// Namespace of the TrainingJob and of all its objects.
    pub namespace: String,
    /// UID of the TrainingJob.
    pub uid: String,
    /// The TrainingJob as the owner and controller of its objects.
    pub owner: OwnerReference,
    /// Hash of what the spec asks for: the same for the same wish, whatever the operator's version or agent, and for
    /// every attempt. What may change in a created job (suspend, TTL, the policies) is not part of it.
    pub intent: String,
}

/// A plan, and all that stands in the way of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// What is to be, as far as it can be told: its sizes and its policy hold whatever was refused.
    pub plan: Plan,
    /// Why no objects are made of it; none if they are.
    pub refusals: Refusals,
}

impl Planned {
    /// The plan, if objects may be made of it.
    ///
    /// # Errors
    /// All the reasons for which the job can't run as it stands, not only the first.
    pub fn accepted(&self) -> Result<&Plan, &Refusals> {
        if self.refusals.0.is_empty() { Ok(&self.plan) } else { Err(&self.refusals) }
    }
}

/// Decides everything about `job`.
#[must_use]
pub fn resolve(job: &TrainingJob, runtime: &Runtime) -> Planned {
    let mut no = Refusals::default();
    let effective = effective::of(job, &mut no);
    let spec = &effective.spec;

    let name = job.metadata.name.clone().unwrap_or_default();
    let uid = job.metadata.uid.clone().unwrap_or_default();
    let elastic = elastic(spec, job.status.as_ref(), &mut no);
    let most = elastic.as_ref().map_or(spec.num_workers(), |elastic| elastic.max);
    names::check(&name, most, &mut no);
    if job.metadata.namespace.is_some() && job.metadata.namespace == runtime.own_namespace {
        no.push("metadata.namespace", "is the operator's own: create the job in another namespace");
    }
    if spec.num_workers.is_none() {
        no.push("spec.numWorkers", "is missing: write it in the job, or in its template");
    }
    if uid.is_empty() {
        no.push("metadata.uid", "is missing: only an object that the API server has stored can be run");
    }

    let model = Source::resolve("spec.model", &spec.model, &mut no);
    let dataset = Source::resolve("spec.dataset", &spec.dataset, &mut no);
    let output = spec.output.as_deref().and_then(|uri| ClaimPath::resolve("spec.output", uri, &mut no));
    let namespace = job.metadata.namespace.clone().unwrap_or_default();
    let of_job = CheckpointPolicy {
        uid: uid.clone(),
        job: name.clone(),
        workers: most.into(),
        port: monitoring::agent_port(spec),
        ..CheckpointPolicy::default()
    };
    let checkpoint = storage::resolve(&spec.checkpoint, of_job, &format!("{namespace}/{name}"), &mut no);
    let storage = Storage { model, dataset, output, checkpoint };
    let policy = policy::resolve(spec, restart_requested(job), &mut no);
    let monitoring = monitoring::resolve(&name, spec, &policy, &storage, &mut no);
    let hyperparameters = hyperparameters::resolve(spec.hyperparameters.as_ref(), &mut no);
    let mut roles = roles::resolve(spec, &storage, &mut no);
    let queue = if roles.len() > 1 { placement::shared_queue(&mut roles) } else { None };
    for role in roles.iter().skip(1) {
        names::check_host(&name, role.name, role.replicas, &mut no);
    }
    environment::check_hosts(spec.framework(), &name, most, &roles, &mut no);
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
    // One role in the network of the nodes is enough: its addresses are theirs, and the others would refuse them.
    let isolated = spec.networking.isolate() && !roles.iter().any(Role::has_host_network);
    let plan = Plan {
        identity: Identity { name, namespace, uid, owner, intent: effective.intent() },
        gang: Gang { roles, rendezvous, elastic, group, isolated, queue },
        policy,
        storage,
        hyperparameters,
        monitoring,
        runtime: runtime.clone(),
    };
    Planned { plan, refusals: no }
}

/// The size of a gang that may change: what was decided last stands in the status.
fn elastic(spec: &TrainingJobSpec, status: Option<&TrainingJobStatus>, no: &mut Refusals) -> Option<Elastic> {
    let elastic = spec.elastic.as_ref()?;
    let (desired, min, max) = (spec.num_workers(), elastic.min_workers(), elastic.max_workers);
    // The API server has asked this of what the job says itself, and can't see what its template says.
    if !(min..=max).contains(&desired) && spec.num_workers.is_some() {
        no.push(
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

/// A role of so many pods that are described so.
fn role(
    spec: &TrainingJobSpec,
    name: RoleName,
    replicas: u16,
    input: PodInput<'_>,
    storage: &Storage,
    no: &mut Refusals,
) -> Role {
    let worker = resources::resolve(spec, &input, no);
    environment::check(&input.own_env.field, input.own_env.value, no);
    let template = &input.template.field;
    let overlay = input.template.value.map(|value| template::resolve(template, value, no)).unwrap_or_default();
    placement::check(&spec.scheduling, template, &overlay, no);
    let grace = grace::resolve(template, &overlay, no);
    storage::check_volumes(spec, template, &overlay, storage, no);
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
