//! Paddle: what `paddle.distributed.launch` reads in place of its options. The launcher of rank 0 serves the others only where
//! `PADDLE_MASTER` has its very own address, by number: the agent finds that out for each attempt.

use crate::environment::{MASTER_IP, MASTER_PORT, NNODES, backend, count, field, literal, var};
use api::Backend;
use k8s_openapi::api::core::v1::EnvVar;
use plan::{Plan, Role};

pub(super) fn env(plan: &Plan, role: &Role) -> Vec<EnvVar> {
    let mut env = vec![
        // Which of its addresses is its own.
        field("POD_IP", "status.podIP"),
        var("PADDLE_NNODES", count(plan, role.replicas, NNODES)),
        var("PADDLE_NPROC_PER_NODE", role.procs.to_string()),
        var("PADDLE_RANK", "$(NODE_RANK)"),
        var("PADDLE_JOB_ID", literal(&plan.identity.name)),
    ];
    // It chooses NCCL by itself where there are GPUs, and knows no MPI.
    let chosen = plan.gang.rendezvous.backend;
    env.extend((chosen == Backend::Gloo).then(|| var("PADDLE_DISTRI_BACKEND", backend(chosen))));
    // Alone it needs no master, and would wait for one.
    if plan.gang.most_workers() > 1 {
        env.push(var("PADDLE_MASTER", format!("{MASTER_IP}:{MASTER_PORT}")));
    }
    env
}
