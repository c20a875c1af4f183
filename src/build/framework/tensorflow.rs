//! TensorFlow: `TF_CONFIG` of a cluster whose workers are all equal (`MultiWorkerMirroredStrategy`).

use crate::build::environment::{ADDRESSES, MASTER_PORT, count, var};
use crate::build::names;
use crate::plan::Plan;
use k8s_openapi::api::core::v1::EnvVar;

pub(super) fn env(plan: &Plan) -> Vec<EnvVar> {
    let workers: Vec<String> = (0..plan.gang.workers().replicas)
        .map(|index| format!(r#""{}:{MASTER_PORT}""#, names::worker_host(&plan.identity.name, index)))
        .collect();
    let workers = count(plan, format!("[{}]", workers.join(",")), ADDRESSES);
    // Not by serde: the index is a reference that becomes a number.
    let config = format!(r#"{{"cluster":{{"worker":{workers}}},"task":{{"type":"worker","index":$(NODE_RANK)}}}}"#);
    vec![var("TF_CONFIG", config)]
}
