//! A JobSet of one or several Jobs. One Job becomes the workers, and each other one a role.

use super::fields::{ConvertError, Fields};
use super::gang::{self, ExtraRole, Role};
use super::{converted::ConvertedJob, job, trainjob};
use protocol::role::RoleName;
use serde_json::Value;

/// The label by which a runtime names the Job that trains.
pub(super) const STEP: &str = "trainer.kubeflow.org/trainjob-ancestor-step";

/// Maximum number of roles beside the workers.
const MOST_ROLES: usize = 7;

/// The host names of its pods, as they may stand in a command.
pub(super) const PODS: &str = "[a-z0-9-]+-[0-9]+-";

pub(super) fn convert(ours: &mut ConvertedJob, mut spec: Fields) -> Result<(), ConvertError> {
    let mut jobs = spec.objects("replicatedJobs")?;
    if jobs.is_empty() {
        return Err(ConvertError(format!("{} has no spec.replicatedJobs", ours.from)));
    }
    let trains = jobs.remove(workers(&jobs, &spec.clone().object("successPolicy")?.list("targetReplicatedJobs")?));
    jobs.insert(0, trains);
    if jobs.len() > 1 {
        jobs.iter().for_each(|job| order(ours, job));
    }
    let mut roles = Vec::new();
    for job in jobs {
        roles.push(replicated(ours, job, &[])?);
    }
    let workers = roles.remove(0);
    // Jobs without pods are left out.
    roles.retain(|role| role.replicas > 0);
    if roles.len() > MOST_ROLES {
        let says =
            format!("{} Jobs beside the workers are more than the {MOST_ROLES} roles that a job may have", roles.len());
        return Err(ConvertError(says));
    }
    let mut beside = extra_roles(ours, roles);
    if beside.is_empty() {
        ours.workers(&workers.path, workers.replicas);
        let pod = workers.pod.unwrap_or_default();
        gang::run(ours, &pod)?;
        gang::framework(ours, "pytorch");
        gang::processes(ours, None, pod.gpus);
    } else {
        success(ours, spec.object("successPolicy")?, &workers.name, &mut beside)?;
        ours.notes.note(workers.path.clone(), format!("{} are the workers here, the others roles", workers.name));
        ours.workers(&workers.path, workers.replicas);
        gang::with_roles(ours, workers.pod.unwrap_or_default(), &beside)?;
        // Only this framework has roles of any name.
        gang::framework(ours, "none");
        let startup = spec.object("startupPolicy")?.text("startupPolicyOrder")?;
        if startup.is_some_and(|order| order == "InOrder") {
            let says = "has no place here: all pods are made at once, and no program starts before all are there";
            ours.notes.lost(spec.at("startupPolicy"), says);
        }
    }
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

/// Picks the training Job: by its name, else the only one that decides on success, else the one with the most pods.
fn workers(jobs: &[Fields], deciding: &[Value]) -> usize {
    let name = |job: &Fields| job.clone().text("name").ok().flatten().unwrap_or_default();
    let pods = |job: &Fields| {
        let mut job = job.clone();
        let jobs = job.number("replicas").ok().flatten().unwrap_or(1);
        let spec = job.object("template").and_then(|mut template| template.object("spec"));
        let each = spec.and_then(|mut spec| spec.number("parallelism")).ok().flatten().unwrap_or(1);
        jobs.saturating_mul(each)
    };
    let named = jobs.iter().position(|job| ["worker", "workers"].contains(&name(job).as_str()));
    let decides = jobs.iter().position(|job| matches!(deciding, [one] if *one == name(job)));
    let first_of_the_most = jobs.iter().enumerate().rev().max_by_key(|(_, job)| pods(job)).map(|(at, _)| at);
    named.or(decides).or(first_of_the_most).unwrap_or(0)
}

/// Suspends a job in which one Job waits for the end of another. Such Jobs prepare something, and are not of a gang.
fn order(ours: &mut ConvertedJob, job: &Fields) {
    let waits = job.clone().objects("dependsOn").unwrap_or_default();
    let for_the_end = |mut on: Fields| on.text("status").ok().flatten().is_some_and(|status| status == "Complete");
    if waits.into_iter().any(for_the_end) {
        ours.hold(&job.at("dependsOn"), "waits for the end of another Job, and here all pods run at once");
    }
}

/// Converts the other Jobs, each with a name that a role may have.
fn extra_roles(ours: &mut ConvertedJob, roles: Vec<Role>) -> Vec<ExtraRole> {
    const TAKEN: [&str; 5] = ["worker", "training", "upkeep", "checkpoints", "tensorboard"];
    let mut all: Vec<ExtraRole> = Vec::new();
    for role in roles {
        let usable: String = role.name.chars().filter(|c| c.is_ascii_lowercase() || c.is_ascii_digit()).collect();
        let begin = usable.trim_start_matches(|c: char| c.is_ascii_digit());
        let begin: String =
            if begin.is_empty() { "role".into() } else { begin.chars().take(RoleName::LONGEST).collect() };
        let is_taken = |name: &str| TAKEN.contains(&name) || all.iter().any(|other| other.name == name);
        let numbered = |number: usize| {
            let number = number.to_string();
            format!("{}{number}", &begin[..begin.len().min(RoleName::LONGEST - number.len())])
        };
        let name = if is_taken(&begin) {
            (2..=all.len() + 2).map(numbered).find(|name| !is_taken(name)).unwrap_or_default()
        } else {
            begin.clone()
        };
        if name != role.name {
            ours.notes.note(role.path.clone(), format!("{} is the role {name} here", role.name));
        }
        all.push(ExtraRole::new(&name, role));
    }
    all
}

/// Sets which pods have to complete: the workers, or roles instead of them.
fn success(
    ours: &mut ConvertedJob,
    mut policy: Fields,
    workers: &str,
    beside: &mut [ExtraRole],
) -> Result<(), ConvertError> {
    let any = policy.text("operator")?.is_some_and(|operator| operator == "Any");
    let named: Vec<String> =
        policy.list("targetReplicatedJobs")?.iter().filter_map(|job| job.as_str().map(str::to_owned)).collect();
    let path = policy.path.clone();
    policy.left(&mut ours.notes);
    let counts = |job: &str| named.is_empty() || named.iter().any(|name| name == job);
    let those: Vec<String> =
        beside.iter().filter(|beside| counts(&beside.role.name)).map(|beside| beside.name.clone()).collect();
    let jobs = those.len() + usize::from(counts(workers));
    if any && jobs > 1 {
        let who = if counts(workers) { "the workers do".to_owned() } else { format!("all do of {}", those.join(", ")) };
        ours.notes.lost(path, format!("the job was complete when any of {jobs} Jobs was: here when {who}"));
    } else if counts(workers) && !those.is_empty() {
        let says = format!(
            "all of {jobs} Jobs had to complete: here the workers have to, and what still runs of {} is ended then",
            those.join(", ")
        );
        ours.notes.lost(path, says);
    }
    if !counts(workers) {
        beside.iter_mut().for_each(|beside| beside.leads = those.contains(&beside.name));
    }
    Ok(())
}

/// Reads how several Jobs belong together. With one Job this has no meaning.
pub(super) fn policies(ours: &mut ConvertedJob, spec: &mut Fields) -> Result<(), ConvertError> {
    let mut network = spec.object("network")?;
    for field in ["enableDNSHostnames", "publishNotReadyAddresses"] {
        network.take(field);
    }
    network.lose("subdomain", &mut ours.notes, "has no place here: the pods' Service has the job's name and -headless");
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

/// Converts one entry of `replicatedJobs` with all pods of all its Jobs.
pub(super) fn replicated(
    ours: &mut ConvertedJob,
    mut entry: Fields,
    containers: &[&str],
) -> Result<Role, ConvertError> {
    let (name, path) = (entry.text("name")?.unwrap_or_default(), entry.path.clone());
    let jobs = entry.number("replicas")?.unwrap_or(1);
    if jobs > 1 {
        let says = format!("{jobs} Jobs of it: here their pods are of one, with one index for all");
        ours.notes.lost(entry.at("replicas"), says);
    }
    entry.lose("dependsOn", &mut ours.notes, "has no place here: a gang waits for no other Job");
    entry.take("groupName");
    let mut template = entry.object("template")?;
    let mut metadata = template.object("metadata")?;
    let mut labels = metadata.object("labels")?;
    labels.take(STEP);
    metadata.put("labels", labels);
    trainjob::children(ours, &mut metadata)?;
    metadata.take("creationTimestamp");
    metadata.left(&mut ours.notes);
    let spec = template.object("spec")?;
    template.left(&mut ours.notes);
    entry.left(&mut ours.notes);
    let (pods, pod) = job::job(ours, spec, containers, None)?;
    Ok(Role { name, path, replicas: pods.saturating_mul(jobs), restart_policy: None, pod: Some(pod) })
}
