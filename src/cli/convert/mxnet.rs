//! Kubeflow's MXJob, for whose framework there is none here yet.

use super::fields::{Bad, Fields};
use super::kubeflow::{self, Kind};
use super::ours::Ours;

const KIND: Kind = Kind { roles: "mxReplicaSpecs", container: "mxnet", port: "mxjob-port", restart: "Never" };

pub(super) fn convert(ours: &mut Ours, mut spec: Fields) -> Result<(), Bad> {
    let roles = kubeflow::roles(&KIND, &["Worker"], ours, &mut spec)?;
    kubeflow::workers(&KIND, ours, &roles)?;
    ours.set("framework", "pytorch");
    ours.set("procsPerWorker", 1);
    ours.hold("kind", "there is no framework mxnet here yet, and the workers would find no scheduler");
    spec.lose("jobMode", &mut ours.notes, "has no place here");
    kubeflow::policy(ours, spec, &roles)
}
