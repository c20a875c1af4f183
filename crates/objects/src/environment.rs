//! What a worker's program finds in its environment.
//!
//! Variables with a value are arguments of the agent (`--env`), which sets them, so that an object of thousands of pods
//! stays small. Only values that the kubelet takes from elsewhere are variables of the container. The kubelet expands
//! `$(NAME)` of those, in arguments too. The agent sets what differs between attempts, and expands what refers to that
//! ([`MASTER_PORT`]).

use super::{framework, names, pod, trackers};
use api::{Backend, Framework};
use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector};
use plan::storage::paths;
use plan::template::TRAINING;
use plan::{Plan, Role, Source};
use protocol::gang::LISTEN_ADDRESS;
use std::collections::BTreeSet;

/// Port of this attempt's rendezvous, in a value. The kubelet turns two dollars into one, and doesn't take the variable
/// from a user's Service or ConfigMap that happens to have it.
pub(super) const MASTER_PORT: &str = "$$(MASTER_PORT)";

/// Numeric address of the first worker in this attempt, in a value.
pub(super) const MASTER_IP: &str = "$$(MASTER_IP)";
/// The network interface that has the pod's address, in a value.
pub(super) const POD_INTERFACE: &str = "$$(POD_INTERFACE)";
/// Workers of this attempt of an elastic gang, in a value.
pub(super) const NNODES: &str = "$$(NNODES)";
/// Processes of this attempt of an elastic gang, in a value.
pub(super) const WORLD_SIZE: &str = "$$(WORLD_SIZE)";
/// A JSON array of the workers of this attempt of an elastic gang, each with the port of its rendezvous.
pub(super) const ADDRESSES: &str = "$$(TRAININGJOB_ADDRESSES)";

/// The variables of a worker: ours, except those that the user has set in the spec or in `podTemplate`.
pub(super) struct Environment {
    /// Ours that are set on the container.
    container: Vec<EnvVar>,
    /// Ours that the agent sets: names and values.
    agent: Vec<(String, String)>,
    /// Variables that the agent withholds from its program.
    withheld: Option<&'static str>,
}

impl Environment {
    pub(super) fn for_role(plan: &Plan, role: &Role) -> Self {
        let mut all = gang(plan, role);
        all.extend(framework::env(plan, role));
        all.extend(job(plan));
        all.extend(network(plan));
        // On the node's network, a port at all addresses is also open at those by which the node serves others.
        all.extend(role.has_host_network().then(|| field(LISTEN_ADDRESS, "status.podIP")));
        all.extend(trackers::env(plan));
        let overlay = role.pod.overlay.spec.iter().flat_map(|pod| &pod.containers);
        let overlay =
            overlay.filter(|container| container.name == TRAINING).flat_map(|container| container.env.iter().flatten());
        let users: BTreeSet<&str> = role.pod.env.iter().chain(overlay).map(|theirs| theirs.name.as_str()).collect();
        let (mut container, mut agent) = (Vec::new(), Vec::new());
        for ours in all.into_iter().filter(|ours| !users.contains(ours.name.as_str())) {
            match ours.value {
                Some(value) => agent.push((ours.name, value)),
                None => container.push(ours),
            }
        }
        Self { container, agent, withheld: framework::withheld(plan) }
    }

    /// Variables of the container `training`: ours, then the spec's.
    pub(super) fn of_container(&self, role: &Role) -> Vec<EnvVar> {
        self.container.iter().chain(&role.pod.env).cloned().collect()
    }

    /// As arguments of the agent.
    pub(super) fn args(&self) -> impl Iterator<Item = String> {
        let set = self.agent.iter().map(|(name, value)| format!("--env={name}={value}"));
        set.chain(self.withheld.map(|names| format!("--withhold={names}")))
    }

    /// The user's text, in which `$(NAME)` of what the agent sets is left to the agent. The kubelet turns two dollars
    /// into one, and takes nothing from a user's Secret or ConfigMap that happens to have that name.
    pub(super) fn left_to_agent(&self, text: &str) -> String {
        let mut parts = text.split('(');
        let mut left = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let is_ours = part.split_once(')').is_some_and(|(name, _)| self.agent.iter().any(|(ours, _)| ours == name));
            let dollars = left.len() - left.trim_end_matches('$').len();
            left.extend(std::iter::repeat_n('$', if is_ours { dollars } else { 0 }));
            left.push('(');
            left.push_str(part);
        }
        left
    }
}

/// Whether the program itself reads from a store.
pub(super) fn streams(plan: &Plan) -> bool {
    plan.storage.inputs.iter().any(|input| matches!(input.source, Source::Stream(_)))
}

/// Identity of this worker, and of the others.
fn gang(plan: &Plan, role: &Role) -> Vec<EnvVar> {
    // Each MPI process learns its rank from MPI. A pod may have several of them, and all of them are the workers'.
    let is_mpi = plan.gang.rendezvous.framework == Framework::Mpi;
    let counted = if is_mpi { plan.gang.workers() } else { role };
    let mut env = vec![
        field("POD_NAME", "metadata.name"),
        var("POD_NAMESPACE", literal(&plan.identity.namespace)),
        // It tells the operator which pod answers, because an address and a port may be another pod's by now.
        field("POD_UID", "metadata.uid"),
        field("NODE_NAME", "spec.nodeName"),
        field("NODE_RANK", "metadata.annotations['batch.kubernetes.io/job-completion-index']"),
    ];
    // For programs that run as one process per worker; torchrun gives each of its processes its own. Some of these and
    // the following are withheld from programs that expect none. There only the agent and `$(NAME)` know them.
    env.extend((!is_mpi).then(|| var("RANK", "$(NODE_RANK)")));
    env.push(var("MASTER_ADDR", names::host(&plan.identity.name, counted.name, 0)));
    if plan.gang.elastic.is_none() {
        env.extend([
            var("WORLD_SIZE", counted.world_size().to_string()),
            var("NNODES", counted.replicas.to_string()),
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
    format!("[{}]", (0..role.replicas.into()).map(host).collect::<Vec<_>>().join(","))
}

/// A count as the program gets it: a number, or the reference that the agent replaces.
#[expect(clippy::needless_pass_by_value, reason = "takes what its callers need no more")]
pub(super) fn count(plan: &Plan, number: impl ToString, elastic: &str) -> String {
    if plan.gang.elastic.is_some() { elastic.to_owned() } else { number.to_string() }
}

/// What to train, with what, and where to put the result.
fn job(plan: &Plan) -> Vec<EnvVar> {
    let mut env = vec![var("TRAINING_JOB_NAME", literal(&plan.identity.name))];
    let named = plan.storage.inputs.iter().filter_map(|input| Some((input.env.as_ref()?, input.value())));
    env.extend(named.map(|(name, value)| var(name, literal(&value))));
    if streams(plan) {
        let file = format!("{}/credentials.json", paths::DATA_CREDENTIALS);
        env.extend(plan.storage.credentials_secret.as_ref().map(|_| var("GOOGLE_APPLICATION_CREDENTIALS", file)));
    }
    if plan.storage.output.is_some() {
        env.push(var("OUTPUT_DIR", pod::OUTPUT));
    }
    if let Some(checkpoint) = &plan.storage.checkpoint {
        env.push(var("CHECKPOINT_DIR", pod::CHECKPOINTS));
        env.push(var("CHECKPOINT_FREQUENCY", checkpoint.frequency.to_string()));
    }
    env.extend(plan.hyperparameters.iter().map(|h| var(&h.variable, literal(&h.text()))));
    // Otherwise Python buffers its output, and a killed worker's last lines are lost.
    env.push(var("PYTHONUNBUFFERED", "1"));
    env
}

/// How the workers communicate.
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

/// As written in the spec.
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

/// Text that the kubelet passes on unchanged, because two dollars stand for one.
pub(super) fn literal(text: &str) -> String {
    text.replace('$', "$$")
}
