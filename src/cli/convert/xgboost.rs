//! Kubeflow's XGBoostJob, for whose framework there is none here yet.

use super::fields::{Bad, Fields};
use super::kubeflow::{self, Kind};
use super::ours::Ours;

const KIND: Kind = Kind { roles: "xgbReplicaSpecs", container: "xgboost", port: "xgboostjob-port", restart: "Never" };

pub(super) fn convert(ours: &mut Ours, mut spec: Fields) -> Result<(), Bad> {
    let roles = kubeflow::roles(&KIND, &["Master", "Worker"], ours, &mut spec)?;
    kubeflow::workers(&KIND, ours, &roles);
    ours.set("framework", "pytorch");
    ours.set("procsPerWorker", 1);
    ours.notes.lost(
        "kind",
        "there is no framework xgboost here yet: as one of pytorch the program finds MASTER_ADDR, MASTER_PORT, WORLD_SIZE and \
         RANK as before, but no WORKER_ADDRS and no WORKER_PORT",
    );
    kubeflow::policy(ours, spec, &roles)
}
