//! A training runtime, and the values with which a job of the Trainer or of OME overrides it.

use super::command::Launcher;
use super::converted::ConvertedJob;
use super::fields::{ConvertError, Fields};
use super::jobset::STEP;
use super::notes::Notes;
use super::pod::{self, Pod};
use super::{command, gang, jobset};
use serde_json::{Map, Value, json};

const CONTAINERS: [&str; 2] = ["node", "trainer"];

/// Makes the workers from the runtime, overridden by the job's `trainer`.
pub(super) fn workers(
    ours: &mut ConvertedJob,
    reference: &mut Fields,
    trainer: Fields,
    runtimes: &[Fields],
) -> Result<(), ConvertError> {
    let name = reference.text("name")?.unwrap_or_default();
    let kind = reference.text("kind")?.unwrap_or_else(|| "ClusterTrainingRuntime".to_owned());
    reference.take("apiGroup");
    reference.clone().left(&mut ours.notes);
    let found = runtimes.iter().find(|runtime| is_kind(runtime, &kind, &name));
    let mut runtime = match found {
        Some(runtime) => Runtime::read(ours, runtime.clone())?,
        None => {
            ours.notes.lost(
                reference.path.clone(),
                format!("{kind} {name} is not in this file, so that what it says is not known: put it there, too"),
            );
            ours.set("numWorkers", 1);
            Runtime { framework: "pytorch", ..Runtime::default() }
        }
    };
    let asked = over(ours, &mut runtime, trainer)?;
    gang::run(ours, &runtime.pod)?;
    gang::framework(ours, runtime.framework);
    if runtime.framework == "pytorch" {
        let line: Vec<String> = ours.words("command").into_iter().chain(ours.words("args")).collect();
        let mut asked = asked.or(runtime.procs);
        if ours.get("command").is_some() && command::started(&line).launcher == Launcher::None {
            // The original number is only for torchrun. Here WORLD_SIZE would count processes that never start.
            if let Some((field, procs)) = asked.take().filter(|(_, procs)| *procs != 1 && *procs != "1") {
                let says =
                    format!("{procs} is for torchrun, which the command does not start: each worker is one process");
                ours.notes.note(field, says);
            }
        }
        gang::processes(ours, asked, runtime.pod.gpus);
    } else if runtime.framework == "mpi" {
        mpi(ours, asked.or(runtime.procs));
    } else if let Some((field, procs)) = asked.filter(|(_, procs)| *procs != 1 && *procs != "1") {
        let says = format!("{procs}: a worker of {} is one process here, which has all GPUs", runtime.framework);
        ours.notes.lost(field, says);
    }
    // The default of a JobSet, unless the runtime sets another one.
    if ours.get("failurePolicy.backoffLimit").is_none() {
        ours.set("failurePolicy.restartPolicy", "Never");
        ours.set("failurePolicy.backoffLimit", 0);
        ours.notes.note("spec.failurePolicy", "a worker's failure ended the job there: a backoffLimit lets it go on");
    }
    Ok(())
}

/// Sets the processes of each worker to the number of slots that mpirun gives it.
fn mpi(ours: &mut ConvertedJob, asked: Option<(String, Value)>) {
    ours.set("networking.backend", "mpi");
    let Some((field, slots)) = asked else { return ours.set("procsPerWorker", 1) };
    let number = slots.as_i64().or_else(|| slots.as_str()?.parse().ok()).filter(|number| (1..=1024).contains(number));
    ours.set("procsPerWorker", number.unwrap_or(1));
    if number.is_none() {
        ours.notes.lost(field, format!("{slots} is not between 1 and 1024: mpirun gives each worker one slot"));
    }
}

fn is_kind(runtime: &Fields, kind: &str, name: &str) -> bool {
    let mut runtime = runtime.clone();
    let is_kind = runtime.text("kind").is_ok_and(|is| is.as_deref() == Some(kind));
    let named = runtime.object("metadata").and_then(|mut metadata| metadata.text("name"));
    is_kind && named.is_ok_and(|is| is.as_deref() == Some(name))
}

#[derive(Default)]
struct Runtime {
    pod: Pod,
    framework: &'static str,
    procs: Option<(String, Value)>,
}

impl Runtime {
    fn read(ours: &mut ConvertedJob, mut runtime: Fields) -> Result<Self, ConvertError> {
        let mut spec = runtime.object("spec")?;
        "runtime.spec".clone_into(&mut spec.path);
        let mut policy = spec.object("mlPolicy")?;
        let nodes = policy.number("numNodes")?;
        let mut it = Self { framework: "pytorch", ..Self::default() };
        let mut torch = policy.object("torch")?;
        it.procs = torch.take("numProcPerNode").map(|procs| (torch.at("numProcPerNode"), procs));
        torch.left(&mut ours.notes);
        for framework in ["jax", "xgboost"] {
            if policy.has(framework) {
                policy.object(framework)?.left(&mut ours.notes);
                it.framework = framework;
            }
        }
        if policy.has("mpi") {
            let mut mpi = policy.object("mpi")?;
            it.framework = "mpi";
            it.procs = mpi.take("numProcPerNode").map(|procs| (mpi.at("numProcPerNode"), procs));
            // mpirun reaches the workers through their agents, and every MPI finds what it needs in its environment.
            for field in ["mpiImplementation", "sshAuthMountPath", "runLauncherAsNode"] {
                mpi.take(field);
            }
            mpi.left(&mut ours.notes);
        }
        if policy.take("flux").is_some() {
            ours.hold(&policy.at("flux"), "there is no framework flux here yet");
        }
        policy.left(&mut ours.notes);
        let mut group = spec.object("podGroupPolicy")?;
        for scheduler in ["coscheduling", "volcano"] {
            if group.has(scheduler) {
                ours.set("scheduling.gang", scheduler);
                let mut settings = group.object(scheduler)?;
                // The API server fills this in.
                if settings.clone().number("scheduleTimeoutSeconds")? == Some(60) {
                    settings.take("scheduleTimeoutSeconds");
                }
                settings.left(&mut ours.notes);
            }
        }
        group.left(&mut ours.notes);
        let mut template = spec.object("template")?;
        template.object("metadata")?.left(&mut ours.notes);
        let mut set = template.object("spec")?;
        template.left(&mut ours.notes);
        spec.left(&mut ours.notes);
        let mut trains = None;
        for entry in set.objects("replicatedJobs")? {
            if trains.is_none() && is_trainer(&entry) {
                trains = Some(entry);
            } else if it.framework == "mpi" {
                let says = "is a Job of MPI's other workers: all workers are as the one that runs mpirun";
                ours.notes.note(entry.path, says);
            } else {
                ours.notes.lost(
                    entry.path,
                    "is a Job beside the workers (data, a model, a launcher): has no place here, left out",
                );
            }
        }
        let Some(trains) = trains else {
            return Err(ConvertError(format!(
                "{}: the runtime has no Job that trains (label {STEP}: trainer)",
                ours.from
            )));
        };
        let trains = jobset::replicated(ours, trains, &CONTAINERS)?;
        ours.workers(&trains.path, trains.replicas);
        it.pod = trains.pod.unwrap_or_default();
        let mut failures = set.object("failurePolicy")?;
        if let Some(restarts) = failures.number("maxRestarts")?.filter(|restarts| *restarts > 0) {
            ours.set("failurePolicy.restartPolicy", "OnFailure");
            gang::backoff(ours, &failures.at("maxRestarts"), Some(restarts));
        }
        failures.left(&mut ours.notes);
        jobset::policies(ours, &mut set)?;
        set.left(&mut ours.notes);
        if let Some(nodes) = nodes {
            ours.workers("runtime.spec.mlPolicy.numNodes", nodes);
        }
        Ok(it)
    }
}

fn is_trainer(entry: &Fields) -> bool {
    let mut entry = entry.clone();
    let labels = entry.object("template").and_then(|mut template| template.object("metadata")?.object("labels"));
    let step = labels.and_then(|mut labels| labels.text(STEP)).ok().flatten();
    let name = entry.text("name").ok().flatten();
    step.map_or(name.is_some_and(|name| CONTAINERS.contains(&name.as_str())), |step| step == "trainer")
}

/// Overrides the runtime's pod with `trainer`, variables by name and resources by key. Returns its processes.
fn over(
    ours: &mut ConvertedJob,
    runtime: &mut Runtime,
    mut trainer: Fields,
) -> Result<Option<(String, Value)>, ConvertError> {
    let asked = trainer.take("numProcPerNode").map(|procs| (trainer.at("numProcPerNode"), procs));
    if let Some(nodes) = trainer.number("numNodes")? {
        ours.workers(&trainer.at("numNodes"), nodes);
    }
    let mut container = Map::new();
    for field in ["image", "command", "args", "env"] {
        container.extend(trainer.take(field).map(|value| (field.to_owned(), value)));
    }
    container.extend(trainer.take("resourcesPerNode").map(|value| ("resources".to_owned(), value)));
    let path = trainer.path.clone();
    trainer.left(&mut ours.notes);
    let template = json!({ "spec": { "containers": [container] } });
    let mut notes = Notes::default();
    let over = pod::pod(Fields::new(path, template)?, &[], &mut notes)?;
    for note in notes.0 {
        // The note names the field as it was written.
        let field = note.field.replacen(".spec.containers[0].resources", ".resourcesPerNode", 1);
        let field = field.replacen(".spec.containers[0]", "", 1);
        if note.lost { ours.notes.lost(field, note.says) } else { ours.notes.note(field, note.says) }
    }
    for (field, value) in over.fields {
        let merged = match (runtime.pod.fields.remove(&field), value) {
            (Some(Value::Object(mut below)), Value::Object(over)) => {
                below.extend(over);
                Value::Object(below)
            }
            (Some(Value::Array(mut below)), Value::Array(over)) if field == "env" => {
                below.retain(|variable| over.iter().all(|other| other["name"] != variable["name"]));
                below.extend(over);
                Value::Array(below)
            }
            (_, value) => value,
        };
        runtime.pod.fields.insert(field, merged);
    }
    runtime.pod.count_gpus();
    Ok(asked)
}
