//! A plain Job, and the Job within a JobSet or a runtime.

use super::converted::ConvertedJob;
use super::fields::{ConvertError, Fields};
use super::gang;
use super::pod::{Pod, pod};

/// The host names of its pods, as they may stand in a command.
pub(super) const PODS: &str = "";

pub(super) fn convert(ours: &mut ConvertedJob, spec: Fields) -> Result<(), ConvertError> {
    let path = spec.at("parallelism");
    let (pods, pod) = job(ours, spec, &[], Some(6))?;
    ours.workers(&path, pods);
    gang::run(ours, &pod)?;
    gang::framework(ours, "pytorch");
    gang::processes(ours, None, pod.gpus);
    ours.notes
        .note("spec.framework", "is pytorch: the program finds MASTER_ADDR, RANK and the like, and needs none of them");
    Ok(())
}

/// Reads the spec of a Job: how many pods it has, and what they run. `limit` applies if the Job has no limit of its
/// own. `None` means that another object is responsible for restarts.
pub(super) fn job(
    ours: &mut ConvertedJob,
    mut spec: Fields,
    containers: &[&str],
    limit: Option<i64>,
) -> Result<(i64, Pod), ConvertError> {
    let indexed = spec.text("completionMode")?.is_some_and(|mode| mode == "Indexed");
    let (parallelism, completions) = (spec.number("parallelism")?, spec.number("completions")?);
    let pods = parallelism.unwrap_or(1);
    if pods == 0 {
        ours.notes.lost(spec.at("parallelism"), "of 0 holds all pods back: here it is 1, with suspend");
        ours.set("suspend", true);
    }
    match completions {
        Some(completions) if completions != pods => {
            let says = format!(
                "{completions} with parallelism {pods}: here all workers run at once and together, {pods} of them"
            );
            ours.notes.lost(spec.at("completions"), says);
        }
        _ if !indexed && pods > 1 => {
            let says = "pods that have no index take what there is to do from a queue: here they are one gang";
            ours.notes.lost(spec.at("completionMode"), says);
        }
        _ => {}
    }
    if let Some(limit) = limit {
        gang::lifetime(ours, &mut spec)?;
        let backoff = spec.number("backoffLimit")?.unwrap_or(limit);
        ours.set("failurePolicy.restartPolicy", if backoff > 0 { "OnFailure" } else { "Never" });
        gang::backoff(ours, &spec.at("backoffLimit"), Some(backoff));
    } else {
        for field in ["backoffLimit", "ttlSecondsAfterFinished"] {
            spec.take(field);
        }
        gang::lifetime(ours, &mut spec)?;
    }
    // The API server has filled these in.
    for field in ["selector", "manualSelector"] {
        spec.take(field);
    }
    let mut template = spec.object("template")?;
    let mut metadata = template.object("metadata")?;
    let mut labels = metadata.object("labels")?;
    for label in ["job-name", "controller-uid", "batch.kubernetes.io/job-name", "batch.kubernetes.io/controller-uid"] {
        labels.take(label);
    }
    metadata.put("labels", labels);
    template.put("metadata", metadata);
    if spec.clone().text("podReplacementPolicy")?.as_deref() == Some("TerminatingOrFailed") {
        spec.take("podReplacementPolicy");
    }
    for (field, says) in [
        ("podFailurePolicy", "has no place here: failurePolicy.rules says what follows from a failure"),
        ("backoffLimitPerIndex", "has no place here: one failed worker is a failed gang"),
        ("maxFailedIndexes", "has no place here: one failed worker is a failed gang"),
        ("successPolicy", "has no place here: all workers end the job"),
        ("podReplacementPolicy", "has no place here: the whole gang restarts"),
    ] {
        spec.lose(field, &mut ours.notes, says);
    }
    spec.left(&mut ours.notes);
    Ok((if pods == 0 { 1 } else { pods }, pod(template, containers, &mut ours.notes)?))
}
