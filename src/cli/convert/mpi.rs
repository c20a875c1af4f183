//! Kubeflow's MPIJob: its launcher starts the ranks in the other pods, for which there is no framework here yet.

use super::fields::{Bad, Fields};
use super::kubeflow::{self, Kind};
use super::ours::Ours;

const KIND: Kind = Kind { roles: "mpiReplicaSpecs", container: "mpi", port: "", restart: "Never" };

pub(super) fn convert(ours: &mut Ours, mut spec: Fields) -> Result<(), Bad> {
    let roles = kubeflow::roles(&KIND, &["Launcher", "Worker"], ours, &mut spec)?;
    let (launchers, workers): (Vec<_>, Vec<_>) = roles.into_iter().partition(|role| role.name == "Launcher");
    kubeflow::workers(&KIND, ours, &workers);
    if let Some(pod) = launchers.first().and_then(|role| role.pod.as_ref()) {
        for field in ["image", "command", "args", "env"] {
            if let Some(value) = pod.fields.get(field) {
                ours.set(field, value.clone());
            }
        }
    }
    ours.set("procsPerWorker", spec.take("slotsPerWorker").and_then(|slots| slots.as_i64()).unwrap_or(1).clamp(1, 1024));
    ours.set("networking.backend", "mpi");
    ours.hold("spec.mpiReplicaSpecs.Launcher", "there is no framework mpi here yet: its command stands here, and would run in every worker");
    for field in ["sshAuthMountPath", "mpiImplementation", "launcherCreationPolicy", "runLauncherAsWorker", "mainContainer"] {
        spec.lose(field, &mut ours.notes, "has no place here: nothing starts ranks by a remote shell");
    }
    kubeflow::policy(ours, spec, &workers)
}
