//! TensorFlow: `TF_CONFIG` of a cluster of equal workers (`MultiWorkerMirroredStrategy`), or of a chief with workers
//! and parameter servers. The evaluator is only in its own `TF_CONFIG`, where it needs a place. In the others the chief
//! would wait for it.

use crate::environment::{ADDRESSES, MASTER_PORT, count, hosts, var};
use k8s_openapi::api::core::v1::EnvVar;
use plan::roles::EVALUATOR;
use plan::{Plan, Role};

pub(super) fn env(plan: &Plan, role: &Role) -> Vec<EnvVar> {
    let is_known = |other: &&Role| (other.name == EVALUATOR) == (role.name == EVALUATOR);
    let of_role = |other: &Role| {
        let hosts = hosts(plan, other, &format!(":{MASTER_PORT}"));
        let hosts = if other.name.is_worker() { count(plan, hosts, ADDRESSES) } else { hosts };
        format!(r#""{}":{hosts}"#, other.name)
    };
    let cluster: Vec<_> = plan.gang.roles.iter().filter(is_known).map(of_role).collect();
    // Not by serde, because the index is a reference that becomes a number.
    let (cluster, task) = (cluster.join(","), role.name);
    let config = format!(r#"{{"cluster":{{{cluster}}},"task":{{"type":"{task}","index":$(NODE_RANK)}}}}"#);
    vec![var("TF_CONFIG", config)]
}
