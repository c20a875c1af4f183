//! Paddle: what `paddle.distributed.launch` reads in place of its options. The launcher of rank 0 serves the others
//! only if `PADDLE_MASTER` has its own numeric address, which the agent finds out for each attempt.

use crate::environment::{MASTER_IP, MASTER_PORT, NNODES, backend, count, field, literal, var};
use api::Backend;
use k8s_openapi::api::core::v1::EnvVar;
use plan::{Plan, Role};

pub(super) fn env(plan: &Plan, role: &Role) -> Vec<EnvVar> {
    let mut env = vec![
        // Tells Paddle which address is its own.
        field("POD_IP", "status.podIP"),
        var("PADDLE_NNODES", count(plan, role.replicas, NNODES)),
        var("PADDLE_NPROC_PER_NODE", role.procs.to_string()),
        var("PADDLE_RANK", "$(NODE_RANK)"),
        var("PADDLE_JOB_ID", literal(&plan.identity.name)),
    ];
    // Paddle chooses NCCL by itself where there are GPUs, and knows no MPI.
    let chosen = plan.gang.rendezvous.backend;
    env.extend((chosen == Backend::Gloo).then(|| var("PADDLE_DISTRI_BACKEND", backend(chosen))));
    // A single worker needs no master, and would wait for one.
    if plan.gang.most_workers() > 1 {
        env.push(var("PADDLE_MASTER", format!("{MASTER_IP}:{MASTER_PORT}")));
    }
    env
}
