//! What a worker's program finds in its environment.
//!
//! The order matters: `$(NAME)` refers to a variable before it. What differs between attempts isn't here but set by the
//! agent, and what refers to that ([`MASTER_PORT`]) is expanded by the agent.

use super::config::source;
use super::{framework, names, pod, trackers};
use crate::api::Backend;
use crate::plan::{Plan, Role};
use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector};

/// Port of this attempt's rendezvous, in a value. Two dollars: the kubelet makes them one, and doesn't take the variable
/// from a Service or a ConfigMap of the user's that happens to have it.
pub(super) const MASTER_PORT: &str = "$$(MASTER_PORT)";

/// Address of the first worker in this attempt, by number, in a value.
pub(super) const MASTER_IP: &str = "$$(MASTER_IP)";
/// Workers of this attempt of an elastic gang, in a value.
pub(super) const NNODES: &str = "$$(NNODES)";
/// Processes of this attempt of an elastic gang, in a value.
pub(super) const WORLD_SIZE: &str = "$$(WORLD_SIZE)";
/// A JSON array of the workers of this attempt of an elastic gang, each with the port of its rendezvous.
pub(super) const ADDRESSES: &str = "$$(TRAININGJOB_ADDRESSES)";

/// The variables of the container `training`: ours, then the spec's, which replace ours of the same name.
pub(super) fn of(plan: &Plan, role: &Role) -> Vec<EnvVar> {
    let mut env = gang(plan, role);
    env.extend(framework::env(plan, role));
    env.extend(job(plan));
    env.extend(network(plan));
    env.extend(trackers::env(plan));
    env.retain(|ours| role.pod.env.iter().all(|theirs| theirs.name != ours.name));
    env.extend(role.pod.env.iter().cloned());
    env
}

/// Who this worker is and who the others are.
fn gang(plan: &Plan, role: &Role) -> Vec<EnvVar> {
    let mut env = vec![
        field("POD_NAME", "metadata.name"),
        field("POD_NAMESPACE", "metadata.namespace"),
        // By it the operator knows whose answer it gets: an address and a port may be another pod's by now.
        field("POD_UID", "metadata.uid"),
        field("NODE_NAME", "spec.nodeName"),
        field("NODE_RANK", "metadata.annotations['batch.kubernetes.io/job-completion-index']"),
        // For programs that run as one process per worker; torchrun gives each of its processes its own.
        var("RANK", "$(NODE_RANK)"),
        var("MASTER_ADDR", names::host(&plan.identity.name, role.name, 0)),
    ];
    if plan.gang.elastic.is_none() {
        env.extend([
            var("WORLD_SIZE", role.world_size().to_string()),
            var("NNODES", role.replicas.to_string()),
            var("NUM_WORKERS", plan.gang.workers().replicas.to_string()),
        ]);
    }
    env.extend(plan.gang.has_roles().then(|| var("TRAININGJOB_ROLE", role.name.as_str())));
    env.extend([var("GPUS_PER_WORKER", role.gpus.to_string()), var("NPROC_PER_NODE", role.procs.to_string())]);
    env
}

/// A JSON array of a role's hosts, each with `port` behind it.
pub(super) fn hosts(plan: &Plan, role: &Role, port: &str) -> String {
    let host = |index| format!(r#""{}{port}""#, names::host(&plan.identity.name, role.name, index));
    format!("[{}]", (0..role.replicas).map(host).collect::<Vec<_>>().join(","))
}

/// How many there are, as a program is told: a number, or what the agent puts in its place.
pub(super) fn count(plan: &Plan, number: impl ToString, elastic: &str) -> String {
    if plan.gang.elastic.is_some() { elastic.to_owned() } else { number.to_string() }
}

/// What to train, with what, and where to put it.
fn job(plan: &Plan) -> Vec<EnvVar> {
    let mut env = vec![
        var("TRAINING_JOB_NAME", literal(&plan.identity.name)),
        var("MODEL", literal(&source(&plan.storage.model, pod::MODEL))),
        var("DATASET", literal(&source(&plan.storage.dataset, pod::DATASET))),
    ];
    if plan.storage.output.is_some() {
        env.push(var("OUTPUT_DIR", pod::OUTPUT));
    }
    if let Some(checkpoint) = &plan.storage.checkpoint {
        env.push(var("CHECKPOINT_DIR", pod::CHECKPOINTS));
        env.push(var("CHECKPOINT_FREQUENCY", checkpoint.frequency.to_string()));
    }
    env.extend(plan.hyperparameters.iter().map(|h| var(&h.variable, literal(&h.text()))));
    // Else Python keeps what it prints until its buffer is full, and a killed worker's last words are lost.
    env.push(var("PYTHONUNBUFFERED", "1"));
    env
}

/// How the workers talk.
fn network(plan: &Plan) -> Vec<EnvVar> {
    let mut env = vec![var("NCCL_BACKEND", backend(plan.gang.rendezvous.backend)), var("NCCL_DEBUG", "WARN")];
    if let Some(interface) = &plan.gang.rendezvous.interface {
        env.push(var("NCCL_SOCKET_IFNAME", literal(interface)));
        env.push(var("GLOO_SOCKET_IFNAME", literal(interface)));
    }
    if plan.gang.rendezvous.rdma {
        env.push(var("NCCL_IB_DISABLE", "0"));
    }
    env
}

/// As it stands in the spec.
pub(super) fn backend(backend: Backend) -> &'static str {
    match backend {
        Backend::Nccl => "nccl",
        Backend::Gloo => "gloo",
        Backend::Mpi => "mpi",
    }
}

pub(super) fn var(name: &str, value: impl Into<String>) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(value.into()), value_from: None }
}

pub(super) fn field(name: &str, path: &str) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value: None,
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector { field_path: path.to_owned(), api_version: Some("v1".to_owned()) }),
            ..EnvVarSource::default()
        }),
    }
}

/// Text that the kubelet hands on as it is: two dollars stand for one.
pub(super) fn literal(text: &str) -> String {
    text.replace('$', "$$")
}
