//! No framework: where roles find each other. A program derives everything else from that.

use crate::environment::{hosts, var};
use k8s_openapi::api::core::v1::EnvVar;
use plan::Plan;

pub(super) fn env(plan: &Plan) -> Vec<EnvVar> {
    if !plan.gang.has_roles() {
        return Vec::new();
    }
    let of_role = |role: &plan::Role| format!(r#""{}":{}"#, role.name, hosts(plan, role, ""));
    let roles: Vec<_> = plan.gang.roles.iter().map(of_role).collect();
    vec![var("TRAININGJOB_CLUSTER", format!("{{{}}}", roles.join(",")))]
}
