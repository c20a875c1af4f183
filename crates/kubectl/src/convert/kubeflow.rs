//! Code that the kinds of kubeflow.org/v1 share.

use super::converted::ConvertedJob;
use super::fields::{ConvertError, Fields};
use super::gang::{self, ExtraRole, Role};
use serde_json::Value;

/// One of its kinds.
pub(super) struct Kind {
    /// The field with the roles.
    pub roles: &'static str,
    /// The container of the program.
    pub container: &'static str,
    /// The name of the port at which the workers meet.
    pub port: &'static str,
    /// The restart policy if none is written.
    pub restart: &'static str,
}

/// Reads the roles of these names, in their order. Reports that all others have no place here.
pub(super) fn roles(
    kind: &Kind,
    names: &[&str],
    ours: &mut ConvertedJob,
    spec: &mut Fields,
) -> Result<Vec<Role>, ConvertError> {
    let mut specs = spec.object(kind.roles)?;
    if specs.is_empty() {
        return Err(ConvertError(format!("{} has no {}", ours.from, specs.path)));
    }
    let mut roles = Vec::new();
    for name in names {
        roles.extend(Role::read(&mut specs, name, kind.container, &mut ours.notes)?);
    }
    for name in specs.clone().rest().keys() {
        let mut role = specs.object(name)?;
        let pods = role.number("replicas")?.unwrap_or(1);
        if pods > 0 {
            let pods = if pods == 1 { "one pod".to_owned() } else { format!("{pods} pods") };
            let says = format!("{pods} of another role than the workers: has no place here, left out");
            ours.notes.lost(role.path, says);
        }
    }
    Ok(roles)
}

/// Makes equal workers of the roles, with their restart policy. Returns the pod that they run.
pub(super) fn workers(kind: &Kind, ours: &mut ConvertedJob, roles: &[Role]) -> Result<super::pod::Pod, ConvertError> {
    gang(kind, ours, roles, &[])
}

/// Like [`workers`], with other roles beside them.
pub(super) fn gang(
    kind: &Kind,
    ours: &mut ConvertedJob,
    workers: &[Role],
    beside: &[ExtraRole],
) -> Result<super::pod::Pod, ConvertError> {
    let pod = gang::equal(ours, workers);
    let pod = gang::with_roles(ours, pod, beside)?;
    gang::port(ours, &pod, kind.port);
    let roles: Vec<&Role> = workers.iter().chain(beside.iter().map(|beside| &beside.role)).collect();
    let policies: Vec<&str> = roles.iter().map(|role| role.restart_policy.as_deref().unwrap_or(kind.restart)).collect();
    let policy = policies.first().copied().unwrap_or(kind.restart);
    let field = roles.first().map(|role| format!("{}.restartPolicy", role.path)).unwrap_or_default();
    for (role, other) in roles.iter().zip(&policies) {
        if *other != policy {
            let says = format!("is {other}, and {policy} for {}: the gang has one, {policy}", roles[0].name);
            ours.notes.lost(format!("{}.restartPolicy", role.path), says);
        }
    }
    gang::restarts(ours, &field, policy);
    Ok(pod)
}

/// Converts `runPolicy` and the rest of the spec.
pub(super) fn policy(ours: &mut ConvertedJob, mut spec: Fields, roles: &[Role]) -> Result<(), ConvertError> {
    let mut policy = spec.object("runPolicy")?;
    gang::lifetime(ours, &mut policy)?;
    let limit = policy.number("backoffLimit")?;
    if ours.get("failurePolicy.restartPolicy").is_some_and(|is| is == "Never") {
        ours.set("failurePolicy.backoffLimit", limit.unwrap_or(0).clamp(0, 1000));
    } else if ours.get("failurePolicy.backoffLimit").is_none() || limit.is_some() {
        gang::backoff(ours, &policy.at("backoffLimit"), limit);
    }
    match policy.text("cleanPodPolicy")?.as_deref() {
        // No program runs any more when the job is complete.
        None | Some("None" | "Running") => {}
        Some(other) => {
            let says = format!(
                "{other} deletes the pods at the end: here they stay until the job goes (ttlSecondsAfterFinished)"
            );
            ours.notes.lost(policy.at("cleanPodPolicy"), says);
        }
    }
    scheduling(ours, policy.object("schedulingPolicy")?, roles)?;
    policy.left(&mut ours.notes);
    spec.left(&mut ours.notes);
    Ok(())
}

fn scheduling(ours: &mut ConvertedJob, mut policy: Fields, roles: &[Role]) -> Result<(), ConvertError> {
    if policy.is_empty() {
        return Ok(());
    }
    let is_volcano = ours.get("scheduling.schedulerName").is_some_and(|name| name == "volcano");
    if is_volcano {
        ours.set("scheduling.gang", "volcano");
        ours.spec["scheduling"].as_object_mut().map(|scheduling| scheduling.remove("schedulerName"));
    } else {
        ours.notes.lost(
            policy.path.clone(),
            "its operator decides which scheduler places the pods together: write scheduling.gang: volcano, coscheduling or native",
        );
    }
    if let Some(priority) = policy.text("priorityClass")? {
        ours.set("scheduling.priority", priority);
    }
    if let Some(queue) = policy.text("queue")? {
        if is_volcano {
            ours.set("scheduling.queue", queue);
        } else {
            ours.notes.lost(policy.at("queue"), "is Volcano's: scheduling.queue with scheduling.gang: volcano");
        }
    }
    let all = roles.iter().fold(0, |all: i64, role| all.saturating_add(role.replicas));
    if let Some(least) = policy.take("minAvailable").filter(|least| least.as_i64() != Some(all)) {
        let least = match least {
            Value::String(text) => text,
            other => other.to_string(),
        };
        let says =
            format!("{least} of {all}: here all pods are placed or none; elastic.minWorkers lets it run with fewer");
        ours.notes.lost(policy.at("minAvailable"), says);
    }
    policy.lose("minResources", &mut ours.notes, "are counted from the workers' own resources here");
    policy.lose(
        "scheduleTimeoutSeconds",
        &mut ours.notes,
        "has no place here: startDeadlineSeconds ends a job that does not start",
    );
    policy.left(&mut ours.notes);
    Ok(())
}

/// The host names of its pods, as they may stand in a command.
pub(super) const PODS: &str = "(?:master|worker|chief|ps|evaluator|launcher|scheduler|server)-";
