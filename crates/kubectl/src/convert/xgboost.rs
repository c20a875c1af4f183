//! Kubeflow's XGBoostJob.

use super::fields::{ConvertError, Fields};
use super::kubeflow::{self, Kind};
use super::{converted::ConvertedJob, gang};
use serde_json::Value;

const KIND: Kind = Kind { roles: "xgbReplicaSpecs", container: "xgboost", port: "xgboostjob-port", restart: "Never" };

pub(super) fn convert(ours: &mut ConvertedJob, mut spec: Fields) -> Result<(), ConvertError> {
    let roles = kubeflow::roles(&KIND, &["Master", "Worker"], ours, &mut spec)?;
    kubeflow::workers(&KIND, ours, &roles)?;
    gang::framework(ours, "xgboost");
    if roles.iter().any(|role| role.name == "Master") && roles.len() > 1 {
        ours.notes.note(
            "spec.xgbReplicaSpecs.Master",
            "is worker 0, as its RANK was; the job is complete when all workers are, not it alone",
        );
    }
    let all = ours.get("numWorkers").and_then(Value::as_i64).unwrap_or(1);
    if all > 1 {
        let hosts: Vec<String> = (1..all).map(|index| ours.host(index)).collect();
        ours.add_env("WORKER_PORT", "$(MASTER_PORT)");
        ours.add_env("WORKER_ADDRS", &hosts.join(","));
    }
    kubeflow::policy(ours, spec, &roles)
}
