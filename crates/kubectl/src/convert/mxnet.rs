//! Kubeflow's MXJob.

use super::converted::ConvertedJob;
use super::fields::{ConvertError, Fields};
use super::gang::{self, ExtraRole};
use super::kubeflow::{self, Kind};

const KIND: Kind = Kind { roles: "mxReplicaSpecs", container: "mxnet", port: "mxjob-port", restart: "Never" };

pub(super) fn convert(ours: &mut ConvertedJob, mut spec: Fields) -> Result<(), ConvertError> {
    let roles = kubeflow::roles(&KIND, &["Worker", "Server", "Scheduler"], ours, &mut spec)?;
    let (workers, beside): (Vec<_>, Vec<_>) = roles.iter().cloned().partition(|role| role.name == "Worker");
    let has_servers = beside.iter().any(|role| role.name == "Server");
    let mut beside: Vec<ExtraRole> =
        beside.into_iter().map(|role| ExtraRole::new(&role.name.to_ascii_lowercase(), role)).collect();
    beside.iter_mut().filter(|beside| beside.name == "scheduler").for_each(|beside| beside.one(ours));
    if has_servers && !workers.is_empty() {
        kubeflow::gang(&KIND, ours, &workers, &beside)?;
        gang::framework(ours, "mxnet");
        if let Some(scheduler) = beside.iter().find(|beside| beside.name == "scheduler") {
            let says = "does not decide: the job is complete when all workers are, and what still runs is ended then";
            ours.notes.note(scheduler.role.path.clone(), says);
        }
    } else {
        kubeflow::workers(&KIND, ours, &workers)?;
        gang::framework(ours, "none");
        ours.hold("spec.mxReplicaSpecs", "has no Worker or no Server, and framework mxnet needs both");
    }
    // The name that its programs use.
    ours.add_env("DMLC_WORKER_ID", "$(NODE_RANK)");
    if spec.text("jobMode")?.is_some_and(|mode| mode != "MXTrain" && !mode.is_empty()) {
        ours.hold("spec.jobMode", "is a tuning of TVM's, which has no place here");
    }
    kubeflow::policy(ours, spec, &roles)
}
