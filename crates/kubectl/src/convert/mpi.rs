//! Kubeflow's MPIJob. The first worker runs here what the launcher runs there.

use super::converted::ConvertedJob;
use super::fields::{ConvertError, Fields};
use super::kubeflow::{self, Kind};

const KIND: Kind = Kind { roles: "mpiReplicaSpecs", container: "mpi", port: "", restart: "Never" };

pub(super) fn convert(ours: &mut ConvertedJob, mut spec: Fields) -> Result<(), ConvertError> {
    let roles = kubeflow::roles(&KIND, &["Launcher", "Worker"], ours, &mut spec)?;
    let (mut launchers, mut workers): (Vec<_>, Vec<_>) = roles.into_iter().partition(|role| role.name == "Launcher");
    if workers.is_empty() {
        workers.append(&mut launchers);
    }
    let launched = launchers.into_iter().find_map(|role| role.pod).unwrap_or_default().fields;
    for worker in &mut workers {
        let pod = worker.pod.get_or_insert_default();
        for field in ["image", "command", "args", "env"] {
            pod.fields.extend(launched.get_key_value(field).map(|(field, value)| (field.clone(), value.clone())));
        }
    }
    kubeflow::workers(&KIND, ours, &workers)?;
    ours.set(
        "procsPerWorker",
        spec.take("slotsPerWorker").and_then(|slots| slots.as_i64()).unwrap_or(1).clamp(1, 1024),
    );
    ours.set("framework", "mpi");
    ours.set("networking.backend", "mpi");
    ours.notes.note(
        "spec.mpiReplicaSpecs.Launcher",
        "its command runs on the first worker; a pod of its own it has by a role launcher",
    );
    for field in
        ["sshAuthMountPath", "mpiImplementation", "launcherCreationPolicy", "runLauncherAsWorker", "mainContainer"]
    {
        spec.lose(field, &mut ours.notes, "has no place here: mpirun reaches the workers by their agents, and every MPI finds in its environment what it needs");
    }
    kubeflow::policy(ours, spec, &workers)
}
