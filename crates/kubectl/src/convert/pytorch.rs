//! Kubeflow's PyTorchJob.

use super::fields::{ConvertError, Fields};
use super::kubeflow::{self, Kind};
use super::{converted::ConvertedJob, gang};
use serde_json::Value;

const KIND: Kind =
    Kind { roles: "pytorchReplicaSpecs", container: "pytorch", port: "pytorchjob-port", restart: "OnFailure" };

pub(super) fn convert(ours: &mut ConvertedJob, mut spec: Fields) -> Result<(), ConvertError> {
    let roles = kubeflow::roles(&KIND, &["Master", "Worker"], ours, &mut spec)?;
    let pod = kubeflow::workers(&KIND, ours, &roles)?;
    gang::framework(ours, "pytorch");
    let mut asked = spec.take("nprocPerNode").map(|value| (spec.at("nprocPerNode"), value));
    let mut elastic = spec.object("elasticPolicy")?;
    if let Some(value) = elastic.take("nProcPerNode") {
        asked.get_or_insert((elastic.at("nProcPerNode"), value));
    }
    if !elastic.is_empty() {
        self::elastic(ours, elastic)?;
    }
    gang::processes(ours, asked, pod.gpus);
    if roles.iter().any(|role| role.name == "Master") && roles.len() > 1 {
        ours.notes.note(
            "spec.pytorchReplicaSpecs.Master",
            "is worker 0; the job is complete when all workers are, not it alone",
        );
    }
    kubeflow::policy(ours, spec, &roles)
}

fn elastic(ours: &mut ConvertedJob, mut policy: Fields) -> Result<(), ConvertError> {
    let workers = ours.get("numWorkers").and_then(Value::as_i64).unwrap_or(1);
    let (min, max) = (policy.number("minReplicas")?, policy.number("maxReplicas")?);
    if let Some((min, max)) = min.or(max).zip(max.or(min)) {
        if !(min..=max).contains(&workers) {
            let says = format!("{min} to {max} leaves out the {workers} workers that there are: widened");
            ours.notes.lost(policy.path.clone(), says);
        }
        ours.set("elastic.minWorkers", min.clamp(1, workers));
        ours.set("elastic.maxWorkers", max.clamp(workers, 4096));
        ours.notes.note(
            policy.path.clone(),
            "the operator ends the attempt and begins the next one at the new size, where torchrun did; the job is complete \
             when all of them are",
        );
    }
    if let Some(restarts) = policy.number("maxRestarts")? {
        ours.set("failurePolicy.backoffLimit", restarts.clamp(0, 1000));
    }
    for field in ["rdzvBackend", "rdzvPort", "rdzvHost", "rdzvId", "rdzvConf", "standalone"] {
        if policy.take(field).is_some() {
            ours.notes.note(policy.at(field), "is left out: the operator lets the workers meet");
        }
    }
    policy.lose(
        "metrics",
        &mut ours.notes,
        "made an autoscaler: write a HorizontalPodAutoscaler that scales the TrainingJob",
    );
    policy.left(&mut ours.notes);
    Ok(())
}
