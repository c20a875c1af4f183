//! Roles of a gang: the workers, the roles of the spec, and the roles that decide on completion.

use super::resources::without_gpus;
use super::{Completion, Refusals, Role, Storage};
use api::{Framework, ProcsPerWorker, Resources, RoleSpec, TrainingJobSpec};
use k8s_openapi::api::core::v1::EnvVar;
use protocol::role::RoleName;
use serde_json::Value;
use std::borrow::Cow;

/// TensorFlow's chief, which leads if the role exists.
pub(crate) const CHIEF: RoleName = RoleName::literal("chief");
/// TensorFlow's evaluator, which the other roles do not know.
pub const EVALUATOR: RoleName = RoleName::literal("evaluator");

/// The role that runs `mpirun`, unless the first worker does.
pub(crate) const LAUNCHER: RoleName = RoleName::literal("launcher");

/// MXNet's servers, which hold the parameters.
pub const SERVER: RoleName = RoleName::literal("server");
/// MXNet's scheduler, through which its processes find each other.
pub const SCHEDULER: RoleName = RoleName::literal("scheduler");

/// Resolves all roles, the workers first.
pub(super) fn resolve(spec: &TrainingJobSpec, storage: &Storage, errors: &mut Refusals) -> Vec<Role> {
    let workers = PodInput::of_workers(spec);
    let mut roles = vec![super::role(spec, RoleName::WORKER, spec.num_workers(), workers, storage, errors)];
    let has_scheduler = spec.roles.iter().any(|of| of.name == SCHEDULER.as_str());
    let scheduler = RoleSpec { name: SCHEDULER.to_string(), ..RoleSpec::default() };
    let added = (spec.framework() == Framework::Mxnet && !has_scheduler).then_some(&scheduler);
    for (index, of) in spec.roles.iter().chain(added).enumerate() {
        let path = format!("spec.roles[{index}]");
        let Some(name) = RoleName::parse(&of.name).filter(|name| roles.iter().all(|known| known.name != *name)) else {
            errors.push(
                format!("{path}.name"),
                "is no name of a role, or is there twice: use lower-case letters and digits",
            );
            continue;
        };
        let input = PodInput::of_role(spec, of, &path);
        roles.push(super::role(spec, name, of.replicas(), input, storage, errors));
    }
    for role in &mut roles {
        role.completion = match decides(spec, role.name) {
            // The first one runs mpirun, and the others run the processes that it starts.
            true if spec.framework() == Framework::Mpi => Completion::First,
            true => Completion::EveryReplica,
            false => Completion::Ended,
        };
    }
    roles
}

/// Whether the gang's success requires this role's success.
fn decides(spec: &TrainingJobSpec, role: RoleName) -> bool {
    if spec.framework() == Framework::Mpi {
        let has_launcher = spec.roles.iter().any(|of| of.name == LAUNCHER.as_str());
        return role == if has_launcher { LAUNCHER } else { RoleName::WORKER };
    }
    let leads = |of: &&RoleSpec| of.leader == Some(true);
    let mut leaders = spec.roles.iter().filter(leads).peekable();
    if leaders.peek().is_some() {
        return leaders.any(|leader| leader.name == role.as_str());
    }
    let has_chief = spec.framework() == Framework::Tensorflow && spec.roles.iter().any(|of| of.name == CHIEF.as_str());
    role == if has_chief { CHIEF } else { RoleName::WORKER }
}

/// A value, with the path of the field that sets it.
pub(super) struct FieldValue<T> {
    pub field: String,
    pub value: T,
}

/// Description of a role's pods: the role's own fields, or the workers' fields where the role sets none.
pub(super) struct PodInput<'s> {
    pub image: Option<&'s String>,
    pub command: &'s [String],
    pub args: &'s [String],
    /// All variables.
    pub env: Vec<EnvVar>,
    /// The variables set by the role or the workers itself.
    pub own_env: FieldValue<&'s [EnvVar]>,
    pub resources: FieldValue<Cow<'s, Resources>>,
    pub gpus: FieldValue<u16>,
    pub procs: ProcsPerWorker,
    pub template: FieldValue<Option<&'s Value>>,
    /// Whether the pods have an RDMA device.
    pub rdma: bool,
}

impl<'s> PodInput<'s> {
    fn of_workers(spec: &'s TrainingJobSpec) -> Self {
        let at = |field: &str| format!("spec.{field}");
        Self {
            image: spec.image.as_ref(),
            command: &spec.command,
            args: &spec.args,
            env: spec.env.clone(),
            own_env: FieldValue { field: at("env"), value: &spec.env },
            resources: FieldValue { field: at("resources"), value: Cow::Borrowed(&spec.resources) },
            gpus: FieldValue { field: at("gpusPerWorker"), value: spec.gpus_per_worker() },
            procs: spec.procs_per_worker(),
            template: FieldValue { field: at("podTemplate"), value: spec.pod_template.as_ref() },
            rdma: spec.networking.rdma_enabled(),
        }
    }

    /// Describes a role. `path` is its path, such as `spec.roles[0]`.
    fn of_role(spec: &'s TrainingJobSpec, of: &'s RoleSpec, path: &str) -> Self {
        let (at, workers) = (|field: &str| format!("{path}.{field}"), Self::of_workers(spec));
        let gpus = of.gpus_per_replica.unwrap_or(0);
        let is_new = |variable: &&EnvVar| of.env.iter().all(|own| own.name != variable.name);
        Self {
            image: of.image.as_ref().or(workers.image),
            command: if of.command.is_empty() { workers.command } else { &of.command },
            // An image's default arguments do not fit another command.
            args: if of.command.is_empty() && of.args.is_empty() { workers.args } else { &of.args },
            env: spec.env.iter().filter(is_new).chain(&of.env).cloned().collect(),
            own_env: FieldValue { field: at("env"), value: &of.env },
            resources: if of.resources.is_empty() {
                FieldValue { value: Cow::Owned(without_gpus(&spec.resources, gpus)), ..workers.resources }
            } else {
                FieldValue { field: at("resources"), value: Cow::Borrowed(&of.resources) }
            },
            gpus: FieldValue { field: at("gpusPerReplica"), value: gpus },
            procs: ProcsPerWorker::Number(1),
            template: match &of.pod_template {
                Some(template) => FieldValue { field: at("podTemplate"), value: Some(template) },
                None => workers.template,
            },
            // The devices are where the GPUs are.
            rdma: workers.rdma && gpus > 0,
        }
    }
}
