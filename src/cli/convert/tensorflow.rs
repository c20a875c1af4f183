//! Kubeflow's TFJob.

use super::fields::{Bad, Fields};
use super::kubeflow::{self, Kind};
use super::ours::Ours;

const KIND: Kind = Kind { roles: "tfReplicaSpecs", container: "tensorflow", port: "tfjob-port", restart: "Never" };

pub(super) fn convert(ours: &mut Ours, mut spec: Fields) -> Result<(), Bad> {
    let roles = kubeflow::roles(&KIND, &["Chief", "Master", "Worker"], ours, &mut spec)?;
    kubeflow::workers(&KIND, ours, &roles)?;
    ours.set("framework", "tensorflow");
    if let Some(chief) = roles.iter().find(|role| role.name != "Worker") {
        ours.notes.lost(
            chief.path.clone(),
            "is worker 0, and TF_CONFIG has no chief: a program that looks for it must look for worker 0, too, and all \
             workers end the job, not it alone",
        );
    }
    if ours.notes.0.iter().any(|note| note.field.ends_with(".PS")) {
        ours.hold("spec.tfReplicaSpecs.PS", "parameter servers are needed by the workers");
    }
    match spec.text("successPolicy")?.as_deref() {
        Some("AllWorkers") => {}
        None | Some("") => ours
            .notes
            .note("spec.successPolicy", "the job is complete when all workers are, not worker 0 or the chief alone"),
        Some(other) => {
            ours.notes.lost("spec.successPolicy", format!("{other} has no place here: all workers end the job"));
        }
    }
    if spec.clone().flag("enableDynamicWorker")? == Some(false) {
        spec.take("enableDynamicWorker");
    }
    spec.lose("enableDynamicWorker", &mut ours.notes, "has no place here: elastic lets the number of workers change");
    kubeflow::policy(ours, spec, &roles)
}
