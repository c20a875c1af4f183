//! Kubeflow's XGBoostJob, whose programs find what they look for with framework pytorch.

use super::fields::{Bad, Fields};
use super::kubeflow::{self, Kind};
use super::ours::Ours;
use serde_json::Value;

const KIND: Kind = Kind { roles: "xgbReplicaSpecs", container: "xgboost", port: "xgboostjob-port", restart: "Never" };

pub(super) fn convert(ours: &mut Ours, mut spec: Fields) -> Result<(), Bad> {
    let roles = kubeflow::roles(&KIND, &["Master", "Worker"], ours, &mut spec)?;
    kubeflow::workers(&KIND, ours, &roles)?;
    ours.set("framework", "pytorch");
    ours.set("procsPerWorker", 1);
    ours.notes.note(
        "kind",
        "is framework pytorch here: the program finds MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK as before",
    );
    let all = ours.get("numWorkers").and_then(Value::as_i64).unwrap_or(1);
    if all > 1 {
        let hosts: Vec<String> = (1..all).map(|index| ours.host(index)).collect();
        ours.add_env("WORKER_PORT", "$(MASTER_PORT)");
        ours.add_env("WORKER_ADDRS", &hosts.join(","));
    }
    kubeflow::policy(ours, spec, &roles)
}
