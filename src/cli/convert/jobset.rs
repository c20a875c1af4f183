//! A JobSet of one Job.

use super::fields::{Bad, Fields};
use super::{gang, job, ours::Ours};

/// The host names of its pods, as they may stand in a command.
pub(super) const PODS: &str = "[a-z0-9-]+-[0-9]+-";

pub(super) fn convert(ours: &mut Ours, mut spec: Fields) -> Result<(), Bad> {
    let mut jobs = spec.objects("replicatedJobs")?.into_iter();
    let first = jobs.next().ok_or_else(|| Bad(format!("{} has no spec.replicatedJobs", ours.from)))?;
    for other in jobs {
        ours.notes.lost(other.path, "is a Job of another role: has no place here yet, left out");
    }
    let pod = replicated(ours, first, &[])?;
    gang::run(ours, &pod)?;
    ours.set("framework", "pytorch");
    gang::processes(ours, None, pod.gpus);
    let mut failures = spec.object("failurePolicy")?;
    let restarts = failures.number("maxRestarts")?.unwrap_or(0);
    ours.set("failurePolicy.restartPolicy", if restarts > 0 { "OnFailure" } else { "Never" });
    gang::backoff(ours, &failures.at("maxRestarts"), Some(restarts));
    if failures.text("restartStrategy")?.is_some() {
        ours.notes
            .note(failures.at("restartStrategy"), "is left out: the gang restarts in its pods where they are there");
    }
    failures.left(&mut ours.notes);
    if let Some(seconds) = spec.number("ttlSecondsAfterFinished")? {
        ours.seconds("ttlSecondsAfterFinished", &spec.at("ttlSecondsAfterFinished"), 0, seconds);
    }
    gang::suspend(ours, &mut spec)?;
    policies(ours, &mut spec)?;
    spec.left(&mut ours.notes);
    Ok(())
}

/// What says how several Jobs go together: nothing, where there is one.
pub(super) fn policies(ours: &mut Ours, spec: &mut Fields) -> Result<(), Bad> {
    let mut network = spec.object("network")?;
    for field in ["enableDNSHostnames", "publishNotReadyAddresses"] {
        network.take(field);
    }
    network.lose(
        "subdomain",
        &mut ours.notes,
        "has no place here: the workers' Service has the job's name and -headless",
    );
    network.left(&mut ours.notes);
    let mut success = spec.object("successPolicy")?;
    success.take("targetReplicatedJobs");
    if success.text("operator")?.is_some_and(|operator| operator == "Any") {
        ours.notes.note(success.at("operator"), "Any of one Job is that one");
    }
    success.left(&mut ours.notes);
    spec.take("startupPolicy");
    spec.lose("coordinator", &mut ours.notes, "has no place here: worker 0 leads, $(MASTER_ADDR)");
    gang::managed(ours, spec)
}

/// One entry of `replicatedJobs`.
pub(super) fn replicated(ours: &mut Ours, mut entry: Fields, containers: &[&str]) -> Result<super::pod::Pod, Bad> {
    entry.take("name");
    let replicas = entry.number("replicas")?.unwrap_or(1);
    if replicas != 1 {
        ours.notes
            .lost(entry.at("replicas"), format!("{replicas} Jobs of it: here they would be as many TrainingJobs"));
    }
    entry.lose("dependsOn", &mut ours.notes, "has no place here: a gang waits for no other Job");
    entry.take("groupName");
    let mut template = entry.object("template")?;
    let mut metadata = template.object("metadata")?;
    for list in ["labels", "annotations"] {
        let mut keys = metadata.object(list)?;
        ours.queue_label(&mut keys)?;
        keys.take(super::runtime::STEP);
        keys.left(&mut ours.notes);
    }
    metadata.take("creationTimestamp");
    metadata.left(&mut ours.notes);
    let spec = template.object("spec")?;
    template.left(&mut ours.notes);
    entry.left(&mut ours.notes);
    job::job(ours, spec, containers, None)
}
