//! Code for all kinds that are converted to one gang: equal workers, and the roles beside them.

use super::command::{Launcher, started};
use super::converted::ConvertedJob;
use super::fields::{ConvertError, Fields};
use super::notes::Notes;
use super::pod::{Pod, pod};
use plan::is_gpu;
use plan::template::TRAINING;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// Pods of one kind.
#[derive(Clone, Debug)]
pub(super) struct Role {
    pub name: String,
    pub path: String,
    pub replicas: i64,
    pub restart_policy: Option<String>,
    /// What they run. `None` if the job does not say it.
    pub pod: Option<Pod>,
}

impl Role {
    /// Reads one of `xReplicaSpecs`. A role without pods counts as not written.
    pub fn read(
        specs: &mut Fields,
        name: &str,
        container: &str,
        notes: &mut Notes,
    ) -> Result<Option<Self>, ConvertError> {
        if !specs.has(name) {
            return Ok(None);
        }
        let mut spec = specs.object(name)?;
        let path = spec.path.clone();
        let replicas = spec.number("replicas")?.unwrap_or(1);
        let restart_policy = spec.text("restartPolicy")?;
        let pod = if spec.has("template") {
            Some(pod(spec.object("template")?, &[container], notes)?)
        } else {
            notes.lost(format!("{path}.template"), "is not written: what the pods run is not known");
            None
        };
        spec.left(notes);
        Ok((replicas > 0).then(|| Self { name: name.to_owned(), path, replicas, restart_policy, pod }))
    }
}

/// Pods that stay a role of their own beside the workers.
#[derive(Clone, Debug)]
pub(super) struct ExtraRole {
    /// Their name in the TrainingJob.
    pub name: String,
    /// The original role.
    pub role: Role,
    /// Whether the job is complete when they are.
    pub leads: bool,
}

impl ExtraRole {
    pub fn new(name: &str, role: Role) -> Self {
        Self { name: name.to_owned(), role, leads: false }
    }

    /// Reduces the role to one pod.
    pub fn one(&mut self, ours: &mut ConvertedJob) {
        if self.role.replicas != 1 {
            let says = format!("{} pods: the {} is one here", self.role.replicas, self.name);
            ours.notes.lost(format!("{}.replicas", self.role.path), says);
            self.role.replicas = 1;
        }
    }
}

/// Makes equal workers of all these roles. They run what the first role runs.
pub(super) fn equal(ours: &mut ConvertedJob, roles: &[Role]) -> Pod {
    let field = roles.first().map(|role| format!("{}.replicas", role.path)).unwrap_or_default();
    ours.workers(&field, roles.iter().fold(0, |all, role| all.saturating_add(role.replicas)));
    let mut known = roles.iter().filter_map(|role| Some((role, role.pod.as_ref()?)));
    let Some((first, pod)) = known.next() else { return Pod::default() };
    for (other, others) in known {
        let fields: BTreeSet<&String> = pod.fields.keys().chain(others.fields.keys()).collect();
        for field in fields {
            if pod.fields.get(field) != others.fields.get(field) {
                let says =
                    format!("{field} is not as in {}: all workers are equal here, and have that one's", first.name);
                ours.notes.lost(format!("{}.template", other.path), says);
            }
        }
    }
    pod.clone()
}

/// Writes the workers and the roles beside them into the spec. Differences that a role has no field for go into the
/// `podTemplate` of each. A role with its own `podTemplate` does not share that of the workers.
#[expect(clippy::expect_used, reason = "made as one a line before")]
pub(super) fn with_roles(ours: &mut ConvertedJob, mut workers: Pod, beside: &[ExtraRole]) -> Result<Pod, ConvertError> {
    let mut pods: Vec<Pod> = beside.iter().map(|beside| beside.role.pod.clone().unwrap_or_default()).collect();
    apart(&mut std::iter::once(&mut workers).chain(&mut pods).collect::<Vec<_>>());
    run(ours, &workers)?;
    for (beside, pod) in beside.iter().zip(&pods) {
        let role = role(ours, beside, pod, &workers)?;
        let roles = ours.spec.entry("roles").or_insert_with(|| json!([]));
        roles.as_array_mut().expect("it is one").push(Value::Object(role));
    }
    Ok(workers)
}

/// Fields that a role has only from the workers, with their place in a template. Fields in one row move together.
const SHARED: [&[(&str, &str)]; 9] = [
    &[("volumes", "volumes"), ("volumeMounts", "training.volumeMounts")],
    &[("envFrom", "training.envFrom")],
    &[("workingDir", "training.workingDir")],
    &[("imagePullSecrets", "imagePullSecrets")],
    &[("serviceAccountName", "serviceAccountName")],
    &[("scheduling.priority", "priorityClassName")],
    &[("scheduling.nodeSelector", "nodeSelector"), ("scheduling.tolerations", "tolerations")],
    &[("scheduling.affinity", "affinity")],
    &[("scheduling.schedulerName", "schedulerName")],
];

/// Moves the fields in which these pods differ into their templates.
fn apart(pods: &mut [&mut Pod]) {
    for together in SHARED {
        let is_common = |(field, _): &(&str, &str)| {
            pods.windows(2).all(|two| two[0].fields.get(*field) == two[1].fields.get(*field))
        };
        if together.iter().all(is_common) {
            continue;
        }
        for pod in &mut *pods {
            for (field, place) in together {
                if let Some(value) = pod.fields.remove(*field) {
                    into_template(pod, place, value);
                }
            }
        }
    }
}

fn into_template(pod: &mut Pod, place: &str, value: Value) {
    let template = pod.fields.entry("podTemplate").or_insert_with(|| json!({}));
    let Some(field) = place.strip_prefix("training.") else {
        template["spec"][place] = value;
        return;
    };
    let containers = &mut template["spec"]["containers"];
    if containers[0]["name"] != TRAINING {
        let mut all = vec![json!({ "name": TRAINING })];
        all.extend(containers.as_array().cloned().unwrap_or_default());
        *containers = Value::Array(all);
    }
    containers[0][field] = value;
}

/// Converts one entry of `roles`. Fields that it does not set are as for the workers.
fn role(
    ours: &mut ConvertedJob,
    beside: &ExtraRole,
    pod: &Pod,
    workers: &Pod,
) -> Result<Map<String, Value>, ConvertError> {
    const MOST: i64 = 4096;
    let (path, replicas) = (&beside.role.path, beside.role.replicas);
    count_gpus(pod)?;
    let mut own = Map::from_iter([("name".to_owned(), json!(beside.name))]);
    if !(1..=MOST).contains(&replicas) {
        ours.notes.lost(format!("{path}.replicas"), format!("{replicas} pods are not between 1 and {MOST}"));
    }
    own.extend((replicas != 1).then(|| ("replicas".to_owned(), json!(replicas.clamp(1, MOST)))));
    own.extend(beside.leads.then(|| ("leader".to_owned(), json!(true))));
    let field = |name: &str| pod.fields.get(name).cloned();
    match field("image") {
        // The missing template has been reported already.
        None if beside.role.pod.is_none() => ours.set("suspend", true),
        None => ours.notes.lost(format!("{path}.template"), "has no image: the workers' would run"),
        image if image.as_ref() == workers.fields.get("image") => {}
        Some(image) => drop(own.insert("image".into(), image)),
    }
    let is_same = |name: &str| pod.fields.get(name) == workers.fields.get(name);
    if beside.role.pod.is_some() && field("command").is_none() {
        let why =
            "has no command, and what the image itself would start is not known here: the workers' program would run";
        ours.hold(&format!("{path}.template"), why);
    } else if !is_same("command") || !is_same("args") {
        own.extend(["command", "args"].iter().filter_map(|name| Some(((*name).to_owned(), field(name)?))));
    }
    let list = |pod: &Pod| pod.fields.get("env").and_then(Value::as_array).cloned().unwrap_or_default();
    let (theirs, of_workers) = (list(pod), list(workers));
    let inherited = of_workers.iter().filter(|variable| theirs.iter().all(|own| own["name"] != variable["name"]));
    let inherited: Vec<&str> = inherited.filter_map(|variable| variable["name"].as_str()).collect();
    if !inherited.is_empty() {
        let says = format!("has the variables of the workers, too, that it has not itself: {}", inherited.join(", "));
        ours.notes.note(format!("{path}.template"), says);
    }
    let env: Vec<Value> = theirs.into_iter().filter(|variable| !of_workers.contains(variable)).collect();
    own.extend((!env.is_empty()).then(|| ("env".to_owned(), Value::Array(env))));
    own.extend((pod.gpus > 0).then(|| ("gpusPerReplica".to_owned(), json!(pod.gpus))));
    let (resources, without_gpus) = (resources(pod, |_| true), resources(workers, |name| !is_gpu(name)));
    if resources.is_empty() && !without_gpus.is_empty() {
        // Otherwise the role would have the workers' resources.
        own.insert("resources".into(), json!({ "requests": { "cpu": "0" } }));
    } else if resources != without_gpus {
        own.insert("resources".into(), Value::Object(resources));
    }
    if !is_same("podTemplate") {
        own.insert("podTemplate".into(), field("podTemplate").unwrap_or_else(|| json!({})));
    }
    Ok(own)
}

/// Returns requests and limits of the resources that `is_meant` selects.
fn resources(pod: &Pod, is_meant: impl Fn(&str) -> bool) -> Map<String, Value> {
    let of = |list: &str| {
        let amounts = pod.fields.get(&format!("resources.{list}")).and_then(Value::as_object);
        let meant = amounts.into_iter().flatten().filter(|(name, _)| is_meant(name));
        let meant: Map<String, Value> = meant.map(|(name, amount)| (name.clone(), amount.clone())).collect();
        (!meant.is_empty()).then(|| (list.to_owned(), Value::Object(meant)))
    };
    ["requests", "limits"].into_iter().filter_map(of).collect()
}

fn count_gpus(pod: &Pod) -> Result<(), ConvertError> {
    const MOST: i64 = 16;
    if pod.gpus > MOST {
        return Err(ConvertError(format!("{} GPUs of one pod are more than the {MOST} that it may have", pod.gpus)));
    }
    Ok(())
}

/// Writes the framework. A framework without a default image needs an image.
pub(super) fn framework(ours: &mut ConvertedJob, framework: &str) {
    ours.set("framework", framework);
    if ours.get("image").is_some() {
        return;
    }
    if ["pytorch", "tensorflow", "jax"].contains(&framework) {
        ours.notes.lost("spec.image", "is not written: the framework's default image would run");
    } else {
        ours.set("image", super::UNNAMED);
        ours.hold("spec.image", &format!("is not written, and there is none by default for {framework}"));
    }
}

/// Writes what a pod runs into the spec.
pub(super) fn run(ours: &mut ConvertedJob, pod: &Pod) -> Result<(), ConvertError> {
    count_gpus(pod)?;
    for (field, value) in &pod.fields {
        ours.set(field, value.clone());
    }
    ours.set("gpusPerWorker", pod.gpus);
    if ours.get("command").is_none() {
        let why = "is not written, and what the image itself would start is not known here: the framework's launcher would run";
        ours.hold("spec.command", why);
    }
    if pod.ports.iter().any(|(_, port)| *port == 8080) {
        ours.set("monitoring.metricsPort", 18080);
        ours.notes.note("spec.monitoring.metricsPort", "is not the default 8080, which the container has itself");
    }
    Ok(())
}

/// Sets the port of the rendezvous from the container's port of this name.
pub(super) fn port(ours: &mut ConvertedJob, pod: &Pod, name: &str) {
    let Some(port) = pod.ports.iter().find(|(is, _)| is.as_deref() == Some(name)).map(|(_, port)| *port) else {
        return;
    };
    if (1024..=65534).contains(&port) {
        ours.set("networking.masterPort", port);
    } else {
        ours.notes.note(format!("port {name}"), "is below 1024: the default of networking.masterPort counts");
    }
}

/// Sets the launcher's processes, for PyTorch and similar programs. `asked` is the value that the job itself gives.
pub(super) fn processes(ours: &mut ConvertedJob, asked: Option<(String, Value)>, gpus: i64) {
    let line: Vec<String> = ours.words("command").into_iter().chain(ours.words("args")).collect();
    let started = started(&line);
    // A shell script is in the command.
    let written_in = if ours.get("args").is_some() { "spec.args" } else { "spec.command" };
    for option in started.meeting() {
        ours.notes
            .lost(written_in, format!("{option} says where the workers meet, which is the operator's: remove it"));
    }
    let workers = ours.get("numWorkers").and_then(Value::as_i64).unwrap_or(1);
    if started.launcher == Launcher::Mpi && workers > 1 {
        ours.hold("spec.command", "starts the other workers by MPI, for which there is no framework here yet");
    }
    let of_launcher = started.procs().map(|procs| (written_in.to_owned(), json!(procs)));
    match of_launcher.or(asked) {
        Some((field, value)) => procs(ours, &field, &value, started.launcher, gpus),
        None if started.launcher == Launcher::Torch => procs(ours, "", &json!("auto"), started.launcher, gpus),
        None => alone(ours, gpus),
    }
}

/// Sets one process, for a program that starts no others. WORLD_SIZE counts it once, whatever GPUs it has.
fn alone(ours: &mut ConvertedJob, gpus: i64) {
    ours.set("procsPerWorker", 1);
    if gpus > 1 {
        ours.notes.note(
            "spec.procsPerWorker",
            "is 1, as WORLD_SIZE was counted: a program without a launcher is one process",
        );
    }
}

fn procs(ours: &mut ConvertedJob, field: &str, value: &Value, launcher: Launcher, gpus: i64) {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match text.as_str() {
        // The original counts `auto` as 1 for WORLD_SIZE.
        "auto" | "gpu" | "cpu" if launcher == Launcher::None => alone(ours, gpus),
        "auto" => {
            ours.set("procsPerWorker", "auto");
            if gpus == 0 {
                let says = "auto was one process for each CPU where there is no GPU, and is one process here";
                ours.notes.lost(if field.is_empty() { "spec.procsPerWorker" } else { field }, says);
            }
        }
        "gpu" if gpus > 0 => ours.set("procsPerWorker", "gpu"),
        "cpu" if ours.get("resources.limits").is_some_and(|limits| limits.get("cpu").is_some()) => {
            ours.set("procsPerWorker", "cpu");
        }
        "gpu" | "cpu" => {
            ours.set("procsPerWorker", 1);
            ours.notes.lost(field, format!("{text} is not known: the resources have no limit for it"));
        }
        _ => match text.parse::<i64>() {
            Ok(number) if (1..=1024).contains(&number) => ours.set("procsPerWorker", number),
            _ => {
                ours.set("procsPerWorker", 1);
                ours.notes.lost(field, format!("{text} is not a number of processes"));
            }
        },
    }
}

/// Sets the restart policy of the gang. The original restarts one container, and the operator all workers together.
pub(super) fn restarts(ours: &mut ConvertedJob, field: &str, policy: &str) {
    let ours_is = match policy {
        "Always" | "OnFailure" | "Never" => policy,
        "ExitCode" => {
            ours.notes.lost(
                field,
                "ExitCode restarts after the exit codes from 128 on alone: here it is OnFailure, and failurePolicy.rules \
                 with exitCodes and the action Fail say which ones end the job",
            );
            "OnFailure"
        }
        _ => {
            ours.notes.lost(field, format!("{policy} is no restart policy"));
            "OnFailure"
        }
    };
    ours.set("failurePolicy.restartPolicy", ours_is);
}

/// Sets the maximum number of restarts.
pub(super) fn backoff(ours: &mut ConvertedJob, field: &str, limit: Option<i64>) {
    const MOST: i64 = 1000;
    if limit.is_none_or(|limit| limit > MOST) {
        let says = format!(
            "{}: here it is {MOST}, the most",
            if limit.is_none() { "not written has no limit" } else { "is more" }
        );
        ours.notes.note(field, says);
    }
    ours.set("failurePolicy.backoffLimit", limit.unwrap_or(MOST).clamp(0, MOST));
}

/// Converts fields that have the same meaning in several kinds.
pub(super) fn lifetime(ours: &mut ConvertedJob, theirs: &mut Fields) -> Result<(), ConvertError> {
    if let Some(seconds) = theirs.number("activeDeadlineSeconds")? {
        ours.seconds("failurePolicy.activeDeadlineSeconds", &theirs.at("activeDeadlineSeconds"), 1, seconds);
        ours.notes
            .note(theirs.at("activeDeadlineSeconds"), "keeps counting after a suspension; there it started again");
    }
    if let Some(seconds) = theirs.number("ttlSecondsAfterFinished")? {
        ours.seconds("ttlSecondsAfterFinished", &theirs.at("ttlSecondsAfterFinished"), 0, seconds);
    }
    suspend(ours, theirs)?;
    managed(ours, theirs)
}

/// Reports a controller that is not one of the defaults.
pub(super) fn managed(ours: &mut ConvertedJob, theirs: &mut Fields) -> Result<(), ConvertError> {
    const DEFAULTS: [&str; 4] = [
        "kubeflow.org/training-operator",
        "trainer.kubeflow.org/trainjob-controller",
        "jobset.sigs.k8s.io/jobset-controller",
        "kubernetes.io/job-controller",
    ];
    if let Some(other) = theirs.text("managedBy")?.filter(|by| !DEFAULTS.contains(&by.as_str())) {
        let says = format!("{other} has no place here: the operator runs every TrainingJob");
        ours.notes.lost(theirs.at("managedBy"), says);
    }
    Ok(())
}

/// Copies whether the job is suspended.
pub(super) fn suspend(ours: &mut ConvertedJob, theirs: &mut Fields) -> Result<(), ConvertError> {
    if theirs.flag("suspend")? == Some(true) {
        ours.set("suspend", true);
    }
    Ok(())
}
