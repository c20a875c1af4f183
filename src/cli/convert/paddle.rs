//! Kubeflow's PaddleJob, for whose framework there is none here yet.

use super::fields::{Bad, Fields};
use super::kubeflow::{self, Kind};
use super::ours::Ours;

const KIND: Kind = Kind { roles: "paddleReplicaSpecs", container: "paddle", port: "master", restart: "OnFailure" };

pub(super) fn convert(ours: &mut Ours, mut spec: Fields) -> Result<(), Bad> {
    let roles = kubeflow::roles(&KIND, &["Master", "Worker"], ours, &mut spec)?;
    kubeflow::workers(&KIND, ours, &roles)?;
    ours.set("framework", "pytorch");
    ours.set("procsPerWorker", 1);
    let many = ours.get("numWorkers").is_some_and(|workers| *workers != 1);
    let says = "there is no framework paddle here yet, and the workers would find no PADDLE_MASTER";
    if many {
        ours.hold("kind", says);
    } else {
        ours.notes.lost("kind", says);
    }
    spec.lose("elasticPolicy", &mut ours.notes, "is Paddle's own elastic training, which has no place here");
    kubeflow::policy(ours, spec, &roles)
}
