//! Kubeflow's XGBoostJob.

use super::fields::{Bad, Fields};
use super::kubeflow::{self, Kind};
use super::{gang, ours::Ours};
use serde_json::Value;

const KIND: Kind = Kind { roles: "xgbReplicaSpecs", container: "xgboost", port: "xgboostjob-port", restart: "Never" };

pub(super) fn convert(ours: &mut Ours, mut spec: Fields) -> Result<(), Bad> {
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
