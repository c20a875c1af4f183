//! MXNet's parameter server, ps-lite: workers and servers find each other by the scheduler. `import mxnet` is all that scheduler
//! and servers do.

use crate::environment::{MASTER_PORT, var};
use crate::names;
use k8s_openapi::api::core::v1::EnvVar;
use plan::roles::{SCHEDULER, SERVER};
use plan::{Plan, Role};

pub(super) fn env(plan: &Plan, role: &Role) -> Vec<EnvVar> {
    let servers = plan.gang.role(SERVER).map_or(0, |servers| servers.replicas);
    vec![
        var("DMLC_ROLE", role.name.as_str()),
        var("DMLC_PS_ROOT_URI", names::host(&plan.identity.name, SCHEDULER, 0)),
        var("DMLC_PS_ROOT_PORT", MASTER_PORT),
        var("DMLC_NUM_SERVER", servers.to_string()),
        var("DMLC_NUM_WORKER", plan.gang.workers().replicas.to_string()),
        // The scheduler then listens at all addresses, because its own name does not resolve yet.
        var("DMLC_USE_KUBERNETES", "1"),
    ]
}
