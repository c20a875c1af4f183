//! The roles of a gang: the workers, those that the spec adds, and which of them decide.

use super::resources::without_gpus;
use super::{Completion, Refusals, Role, Storage};
use api::{Framework, ProcsPerWorker, RoleSpec, TrainingJobSpec};
use k8s_openapi::api::core::v1::EnvVar;
use protocol::role::RoleName;

/// The role of TensorFlow that leads where there is one.
pub(crate) const CHIEF: RoleName = RoleName::literal("chief");
/// TensorFlow's evaluator, of which no other role knows.
pub const EVALUATOR: RoleName = RoleName::literal("evaluator");

/// Where `mpirun` runs, if it is not on the first worker.
pub(crate) const LAUNCHER: RoleName = RoleName::literal("launcher");

/// MXNet's servers, which hold the parameters.
pub const SERVER: RoleName = RoleName::literal("server");
/// MXNet's scheduler, by which its processes find each other.
pub const SCHEDULER: RoleName = RoleName::literal("scheduler");

/// All roles, the workers first.
pub(super) fn resolve(spec: &TrainingJobSpec, storage: &Storage, no: &mut Refusals) -> Vec<Role> {
    let mut roles = vec![super::role(spec, RoleName::WORKER, spec.num_workers(), storage, no)];
    let has_scheduler = spec.roles.iter().any(|of| of.name == SCHEDULER.as_str());
    let scheduler = RoleSpec { name: SCHEDULER.to_string(), ..RoleSpec::default() };
    let added = (spec.framework() == Framework::Mxnet && !has_scheduler).then_some(&scheduler);
    for (index, of) in spec.roles.iter().chain(added).enumerate() {
        let path = format!("spec.roles[{index}]");
        let Some(name) = RoleName::parse(&of.name).filter(|name| roles.iter().all(|known| known.name != *name)) else {
            no.push(
                format!("{path}.name"),
                "is no name of a role, or is there twice: use lower-case letters and digits",
            );
            continue;
        };
        let mut own = Refusals::default();
        roles.push(super::role(&of_role(spec, of), name, of.replicas(), storage, &mut own));
        tell(of, &path, own, no);
    }
    for role in &mut roles {
        role.completion = match decides(spec, role.name) {
            // The first one runs mpirun, and the others what that starts.
            true if spec.framework() == Framework::Mpi => Completion::First,
            true => Completion::EveryReplica,
            false => Completion::Ended,
        };
    }
    roles
}

/// Whether the gang has succeeded only when this role has.
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

/// The spec as it would describe a role's pods if they were the workers.
fn of_role(spec: &TrainingJobSpec, of: &RoleSpec) -> TrainingJobSpec {
    let (command, args) = match (of.command.is_empty(), of.args.is_empty()) {
        (false, _) => (of.command.clone(), of.args.clone()),
        (true, false) => (spec.command.clone(), of.args.clone()),
        (true, true) => (spec.command.clone(), spec.args.clone()),
    };
    let is_new = |variable: &&EnvVar| of.env.iter().all(|own| own.name != variable.name);
    let gpus = of.gpus_per_replica.unwrap_or(0);
    let mut networking = spec.networking.clone();
    if gpus == 0 {
        // Devices of the network are where the GPUs are.
        networking.rdma_enabled = None;
    }
    TrainingJobSpec {
        image: of.image.clone().or_else(|| spec.image.clone()),
        command,
        args,
        env: spec.env.iter().filter(is_new).chain(&of.env).cloned().collect(),
        gpus_per_worker: Some(gpus),
        procs_per_worker: Some(ProcsPerWorker::Number(1)),
        resources: if of.resources.is_empty() { without_gpus(&spec.resources, gpus) } else { of.resources.clone() },
        pod_template: of.pod_template.clone().or_else(|| spec.pod_template.clone()),
        networking,
        ..spec.clone()
    }
}

/// Tells what is wrong with a role in its own fields: what it has from the workers has been told of them.
fn tell(of: &RoleSpec, path: &str, own: Refusals, no: &mut Refusals) {
    let written = [
        ("spec.env", !of.env.is_empty()),
        ("spec.resources", !of.resources.is_empty()),
        ("spec.gpusPerWorker", of.gpus_per_replica.is_some() || !of.resources.is_empty()),
        ("spec.podTemplate", of.pod_template.is_some()),
    ];
    let of_role = |text: &str| {
        let named = text.replace("spec.gpusPerWorker", &format!("{path}.gpusPerReplica"));
        let fields = written.iter().filter(|(_, written)| *written);
        fields.fold(named, |text, (field, _)| text.replace(field, &format!("{path}{}", &field["spec".len()..])))
    };
    for refusal in own.0 {
        if written.iter().any(|(field, written)| *written && refusal.field.starts_with(field)) {
            no.push(of_role(&refusal.field), of_role(&refusal.message));
        }
    }
}
