//! JAX: where `jax.distributed.initialize` finds its coordinator, and what to hand it as `num_processes` and
//! `process_id`. A worker is one process that drives all its GPUs. Without GPUs, JAX reads which collectives it uses.

use crate::environment::{MASTER_PORT, WORLD_SIZE, backend, count, var};
use crate::names;
use api::Backend;
use k8s_openapi::api::core::v1::EnvVar;
use plan::Plan;

pub(super) fn env(plan: &Plan) -> Vec<EnvVar> {
    let coordinator = names::worker_host(&plan.identity.name, 0);
    let mut env = vec![
        var("JAX_COORDINATOR_ADDRESS", format!("{coordinator}:{MASTER_PORT}")),
        var("JAX_NUM_PROCESSES", count(plan, plan.gang.workers().world_size(), WORLD_SIZE)),
        var("JAX_PROCESS_ID", "$(NODE_RANK)"),
    ];
    // With GPUs, JAX uses NCCL. For the CPU beside them it would load an MPI that its image may lack.
    let chosen = plan.gang.rendezvous.backend;
    if plan.gang.workers().gpus == 0 && chosen != Backend::Nccl {
        env.push(var("JAX_CPU_COLLECTIVES_IMPLEMENTATION", backend(chosen)));
    }
    env
}
