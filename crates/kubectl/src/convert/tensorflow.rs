//! Kubeflow's TFJob.

use super::converted::ConvertedJob;
use super::fields::{ConvertError, Fields};
use super::gang::{self, ExtraRole, Role};
use super::kubeflow::{self, Kind};

const KIND: Kind = Kind { roles: "tfReplicaSpecs", container: "tensorflow", port: "tfjob-port", restart: "Never" };

pub(super) fn convert(ours: &mut ConvertedJob, mut spec: Fields) -> Result<(), ConvertError> {
    let roles = kubeflow::roles(&KIND, &["Chief", "Master", "Worker", "PS", "Evaluator"], ours, &mut spec)?;
    let (workers, beside) = gang(ours, &roles);
    kubeflow::gang(&KIND, ours, &workers, &beside)?;
    gang::framework(ours, "tensorflow");
    let chief = beside.iter().find(|beside| beside.name == "chief" && beside.role.name != "Worker");
    match spec.text("successPolicy")?.as_deref() {
        Some("AllWorkers" | "") | None if chief.is_some() => {
            let path = chief.map(|chief| chief.role.path.clone()).unwrap_or_default();
            let says = "decides as it did: the job is complete when it is, and the programs that still run are ended";
            ours.notes.note(path, says);
        }
        Some("AllWorkers") => {}
        None | Some("") => ours
            .notes
            .note("spec.successPolicy", "the job is complete when all workers are, not worker 0 or the chief alone"),
        Some(other) => {
            let says = format!("{other} has no place here: the chief ends the job, or all workers");
            ours.notes.lost("spec.successPolicy", says);
        }
    }
    if spec.clone().flag("enableDynamicWorker")? == Some(false) {
        spec.take("enableDynamicWorker");
    }
    spec.lose("enableDynamicWorker", &mut ours.notes, "has no place here: elastic lets the number of workers change");
    kubeflow::policy(ours, spec, &roles)
}

/// Splits the roles into the workers and the roles beside them.
fn gang(ours: &mut ConvertedJob, roles: &[Role]) -> (Vec<Role>, Vec<ExtraRole>) {
    let of = |name: &str| roles.iter().find(|role| role.name == name).cloned();
    let (mut worker, servers) = (of("Worker"), of("PS"));
    let mut chief = of("Chief").or_else(|| of("Master"));
    if let (Some(chief), Some(master)) = (of("Chief"), of("Master")) {
        ours.notes.lost(master.path, format!("is a second one beside {}: left out", chief.name));
    }
    match (&mut chief, &mut worker) {
        (Some(chief), Some(_)) if chief.name == "Master" => {
            ours.notes.lost(chief.path.clone(), "is the role chief here, and TF_CONFIG calls it so, too");
        }
        (Some(_), Some(_)) | (None, None) => {}
        (Some(_), None) => {
            worker = chief.take();
            let path = worker.as_ref().map(|worker| worker.path.clone()).unwrap_or_default();
            let says =
                "is worker 0, and TF_CONFIG has no chief: a program that looks for it must look for worker 0, too";
            ours.notes.lost(path, says);
        }
        (None, Some(worker)) => {
            if let Some(servers) = servers.as_ref().filter(|_| worker.replicas > 1) {
                chief = Some(Role { replicas: 1, ..worker.clone() });
                worker.replicas -= 1;
                let why =
                    "are led by a chief here, and there is none: the first worker is it, and TF_CONFIG calls it so";
                ours.hold(&servers.path, why);
            }
        }
    }
    let mut beside = Vec::new();
    match (servers, &chief) {
        (Some(servers), Some(_)) => beside.push(ExtraRole::new("ps", servers)),
        (Some(servers), None) => {
            ours.hold(&servers.path, "are led by a chief with workers beside it, and both are not there: left out");
        }
        (None, _) => {}
    }
    beside.extend(chief.map(|chief| ExtraRole::new("chief", chief)));
    if let Some(evaluator) = of("Evaluator") {
        let says = "is ended when the training is done: with leader: true at chief and evaluator its end is waited for";
        ours.notes.note(evaluator.path.clone(), says);
        beside.push(ExtraRole::new("evaluator", evaluator));
    }
    beside.sort_by_key(|beside| ["chief", "ps", "evaluator"].iter().position(|name| *name == beside.name));
    for one in beside.iter_mut().filter(|beside| beside.name != "ps") {
        one.one(ours);
    }
    (worker.into_iter().collect(), beside)
}
