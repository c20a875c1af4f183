//! JAX: where `jax.distributed.initialize` finds its coordinator, and what to hand it as `num_processes` and
//! `process_id`. A worker is one process that drives all its GPUs.

use crate::environment::{MASTER_PORT, WORLD_SIZE, count, var};
use crate::names;
use k8s_openapi::api::core::v1::EnvVar;
use plan::Plan;

pub(super) fn env(plan: &Plan) -> Vec<EnvVar> {
    let coordinator = names::worker_host(&plan.identity.name, 0);
    vec![
        var("JAX_COORDINATOR_ADDRESS", format!("{coordinator}:{MASTER_PORT}")),
        var("JAX_NUM_PROCESSES", count(plan, plan.gang.workers().world_size(), WORLD_SIZE)),
        var("JAX_PROCESS_ID", "$(NODE_RANK)"),
    ]
}
