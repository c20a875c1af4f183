//! XGBoost: the address of its collectives' tracker, this worker's task and the number of workers. XGBoost reads none
//! of it by itself (2.1 and newer have no `getenv`). The program of task 0 starts the tracker, and each hands these to
//! `CommunicatorContext`.

use crate::environment::{MASTER_PORT, NNODES, count, field, var};
use crate::names;
use k8s_openapi::api::core::v1::EnvVar;
use plan::Plan;

pub(super) fn env(plan: &Plan) -> Vec<EnvVar> {
    vec![
        // The address at which the tracker listens.
        field("POD_IP", "status.podIP"),
        var("DMLC_TRACKER_URI", names::worker_host(&plan.identity.name, 0)),
        var("DMLC_TRACKER_PORT", MASTER_PORT),
        var("DMLC_TASK_ID", "$(NODE_RANK)"),
        var("DMLC_NUM_WORKER", count(plan, plan.gang.workers().replicas, NNODES)),
    ]
}
