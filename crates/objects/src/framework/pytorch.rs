//! PyTorch: torchrun reads its options from `PET_*`, so that a bare `torchrun train.py` works. The agent sets
//! `PET_MASTER_PORT`.

use crate::environment::{NNODES, count, var};
use crate::names;
use k8s_openapi::api::core::v1::EnvVar;
use plan::{Plan, Role};

pub(super) fn env(plan: &Plan, role: &Role) -> Vec<EnvVar> {
    vec![
        var("PET_NNODES", count(plan, role.replicas, NNODES)),
        var("PET_NPROC_PER_NODE", role.procs.to_string()),
        var("PET_NODE_RANK", "$(NODE_RANK)"),
        var("PET_MASTER_ADDR", names::worker_host(&plan.identity.name, 0)),
        // Static, because the operator controls membership and restarts. torchrun's own recovery hangs where two would
        // decide.
        var("PET_RDZV_BACKEND", "static"),
        var("PET_MAX_RESTARTS", "0"),
    ]
}
