//! JAX: where `jax.distributed.initialize` finds its coordinator, and what to hand it as `num_processes` and
//! `process_id`. A worker is one process that drives all its GPUs.

use crate::build::environment::{MASTER_PORT, var};
use crate::plan::Plan;
use k8s_openapi::api::core::v1::EnvVar;

pub(super) fn env(plan: &Plan) -> Vec<EnvVar> {
    vec![
        var("JAX_COORDINATOR_ADDRESS", format!("$(MASTER_ADDR):{MASTER_PORT}")),
        var("JAX_NUM_PROCESSES", plan.gang.world_size().to_string()),
        var("JAX_PROCESS_ID", "$(NODE_RANK)"),
    ]
}
