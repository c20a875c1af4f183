//! `plan`: the result of a job's spec, the origin of each value, and the objects that would be made. It makes none.

use super::convert::{comment, documents, yaml};
use anyhow::{anyhow, bail};
use api::{
    AppliedRuntime, Framework, GROUP, Inherited, ProcsKind, ProcsPerWorker, RoleSpec, RuntimeKind, RuntimeRef,
    TrainingJob, TrainingJobSpec, defaults,
};
use kube::ResourceExt;
use lifecycle::incarnation;
use plan::{self, CheckpointVolume, OperatorInfo, Plan, Planned, names};
use protocol::gang::GangPast;
use protocol::proof::OperatorKey;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// UID of a job that exists only as a file.
const NO_UID: &str = "00000000-0000-0000-0000-000000000000";
/// Placeholder where the operator writes its own image.
pub const AGENT_IMAGE: &str = "IMAGE-OF-THE-OPERATOR";

/// The result of planning a job.
#[derive(Debug, Serialize)]
pub struct Explanation {
    /// Namespace of the job.
    pub namespace: String,
    /// Name of the job.
    pub name: String,
    /// Every value, and where it came from.
    pub values: Vec<Origin>,
    /// Why no objects would be created. Empty if they would be.
    pub refusals: Vec<String>,
    /// The objects that would be created.
    pub objects: Vec<Value>,
}

/// A value and its origin.
#[derive(Debug, PartialEq, Serialize)]
pub struct Origin {
    /// A field of the spec, or the name of a derived value.
    pub field: String,
    /// Its value.
    pub value: Value,
    /// Where it came from.
    pub from: String,
}

/// The TrainingJobs in a file.
///
/// # Errors
/// If the file is not YAML, has no TrainingJob, or has one that can't be read.
pub fn jobs(text: &str, namespace: Option<&str>) -> anyhow::Result<Vec<TrainingJob>> {
    let mut jobs = Vec::new();
    let documents = documents(text)?;
    for document in &documents {
        let is_ours = document["kind"] == "TrainingJob"
            && document["apiVersion"].as_str().is_some_and(|version| version.starts_with(&format!("{GROUP}/")));
        if !is_ours {
            continue;
        }
        let mut job: TrainingJob = serde_path_to_error::deserialize(document.clone())
            .map_err(|error| anyhow!("{}: {}", error.path(), error.inner()))?;
        if job.metadata.namespace.is_none() {
            job.metadata.namespace = Some(namespace.unwrap_or("default").to_owned());
        }
        if let (None, Some(begin)) = (&job.metadata.name, &job.metadata.generate_name) {
            job.metadata.name = Some(format!("{begin}xxxxx"));
        }
        job.metadata.uid.get_or_insert(NO_UID.to_owned());
        jobs.push(job);
    }
    for job in &mut jobs {
        if let Some(named) = wants(job)
            && let Some(taken) = documents.iter().find_map(|document| runtime(document, job, &named))
        {
            take(job, &taken)?;
        }
    }
    if jobs.is_empty() {
        bail!("there is no TrainingJob of {GROUP} in it; `kubectl trainingjob convert` makes one of other kinds");
    }
    Ok(jobs)
}

/// Returns the template that this job names and has not taken yet.
#[must_use]
pub fn wants(job: &TrainingJob) -> Option<RuntimeRef> {
    let is_taken = job.status.as_ref().is_some_and(|status| status.inherited.is_some());
    job.spec.runtime_ref.clone().filter(|_| !is_taken)
}

/// Gives a job a template, as the operator would when it is created.
///
/// # Errors
/// If the template can't be applied to the job.
pub fn take(job: &mut TrainingJob, taken: &AppliedRuntime) -> anyhow::Result<()> {
    let inherited = plan::record(job, Some(taken), None).map_err(|why| anyhow!("{}: {why}", job.name_any()))?;
    job.status.get_or_insert_default().inherited = Some(inherited);
    Ok(())
}

/// Returns the template in a document, if it is the one that the job names.
fn runtime(document: &Value, job: &TrainingJob, named: &RuntimeRef) -> Option<AppliedRuntime> {
    let kind = named.kind();
    let metadata = &document["metadata"];
    let place = metadata["namespace"].as_str().or(job.metadata.namespace.as_deref());
    let is_there = kind == RuntimeKind::ClusterTrainingRuntime || place == job.metadata.namespace.as_deref();
    (document["kind"] == kind.as_str() && metadata["name"] == named.name.as_str() && is_there)
        .then(|| AppliedRuntime::from_object(kind, document))
}

/// Plans a job. `restart_rules` says whether the API server supports restart rules of containers.
#[must_use]
pub fn explain(job: &TrainingJob, restart_rules: bool) -> Explanation {
    let runtime = OperatorInfo { agent_image: AGENT_IMAGE.to_owned(), restart_rules, ..OperatorInfo::default() };
    let planned = plan::resolve(job, &runtime);
    let whole = plan::with_runtime(job);
    let spec = &whole.as_deref().unwrap_or(job).spec;
    let inherited = job.status.as_ref().and_then(|status| status.inherited.as_ref());
    let mut values = spec_values(spec, &job.spec, inherited);
    values.extend(worked_out(spec, &planned.plan));
    Explanation {
        namespace: job.namespace().unwrap_or_default(),
        name: job.name_any(),
        values,
        refusals: planned.refusals.0.iter().map(ToString::to_string).collect(),
        objects: objects(job, &planned),
    }
}

/// Returns the objects that would be created, in the order of their creation.
fn objects(job: &TrainingJob, planned: &Planned) -> Vec<Value> {
    let Ok(plan) = planned.accepted() else { return Vec::new() };
    let status = job.status.clone().unwrap_or_default();
    let made = objects::objects(plan, incarnation(&status), &GangPast::default());
    let mut objects = vec![value(&made.service), value(&made.config)];
    objects.extend(made.claim.as_ref().map(value));
    let unknown = OperatorKey::from_random([0; 32]).job_key(&plan.identity.uid);
    objects.extend(objects::keys(plan, &[0; 32], &unknown).iter().map(|secret| {
        let mut secret = value(secret);
        // Only the operator can create the data.
        secret.as_object_mut().map(|secret| secret.remove("data"));
        secret
    }));
    objects.extend(objects::network_policy(plan).as_ref().map(value));
    objects.extend(objects::pod_group(plan).map(|group| match group {
        objects::PodGroup::Volcano(group) => value(&group),
        objects::PodGroup::Coscheduling(group) => value(&group),
        objects::PodGroup::Native(group) => value(&group),
    }));
    let as_posted = |job| objects::with_group(plan, job).map_or_else(|| value(job), |whole| value(&whole));
    objects.extend(made.jobs.iter().map(as_posted));
    if let Some(board) = objects::board(plan) {
        objects.extend([value(&board.deployment), value(&board.service)]);
    }
    objects
}

#[expect(clippy::expect_used, reason = "plain data of ours, which always has this form")]
fn value(object: &impl Serialize) -> Value {
    serde_json::to_value(object).expect("an object is plain data")
}

/// Objects of the spec that count as one value.
const WHOLE: [&str; 6] = [
    "podTemplate",
    "resources.requests",
    "resources.limits",
    "scheduling.affinity",
    "scheduling.nodeSelector",
    "hyperparameters.additionalParams",
];

/// Returns the values in the spec or in the template, and the defaults of the others.
fn spec_values(spec: &TrainingJobSpec, own: &TrainingJobSpec, inherited: Option<&Inherited>) -> Vec<Origin> {
    let taken = inherited.and_then(|inherited| inherited.runtime.as_ref());
    let recorded = inherited.map(|inherited| inherited.defaults.value()).unwrap_or_default();
    let (mut written, own) = (value(spec), value(own));
    if let Some(named) = own.get("runtimeRef") {
        written["runtimeRef"] = named.clone();
    }
    let mut all = Vec::new();
    each(&written, "", &mut |field, value| {
        let of_job = own.pointer(&format!("/{}", field.replace('.', "/")));
        let from = match (taken, of_job) {
            // The API server fills it in.
            _ if field == "suspend" && *value == json!(false) => "default".to_owned(),
            (Some(taken), None) => taken.called(),
            (Some(taken), Some(of_job)) if of_job != value => format!("written, over {}", taken.called()),
            _ => "written".to_owned(),
        };
        all.push(Origin { field: field.to_owned(), value: value.clone(), from });
    });
    for (field, default) in defaults::all() {
        let parent = field.rsplit_once('.').map_or("", |(parent, _)| parent);
        let is_there = written.pointer(&format!("/{}", parent.replace('.', "/"))).is_some();
        if all.iter().all(|origin| origin.field != field) && (is_there || !defaults::THERE_OR_NOT.contains(&parent)) {
            let recorded = recorded.pointer(&format!("/{}", field.replace('.', "/")));
            let value = recorded.cloned().unwrap_or(default);
            all.push(Origin { field: field.to_owned(), value, from: "default".to_owned() });
        }
    }
    all.sort_by(|a, b| a.field.cmp(&b.field));
    all
}

/// Calls `report` for every value below, with its path.
fn each(value: &Value, path: &str, report: &mut impl FnMut(&str, &Value)) {
    let whole = Map::new();
    let fields = value.as_object().filter(|_| !WHOLE.contains(&path)).unwrap_or(&whole);
    if !value.is_object() || WHOLE.contains(&path) {
        report(path, value);
    }
    for (key, value) in fields {
        each(value, format!("{path}.{key}").trim_start_matches('.'), report);
    }
}

/// Returns the values that are derived from the spec.
fn worked_out(spec: &TrainingJobSpec, plan: &Plan) -> Vec<Origin> {
    let role = plan.gang.workers();
    let (name, framework) = (&plan.identity.name, word(&spec.framework()));
    let mut all = Vec::new();
    let mut report = |field: &str, value: Value, from: String| {
        all.push(Origin { field: field.to_owned(), value, from: format!("worked out from {from}") });
    };
    if spec.image.is_none() {
        report("image", json!(role.pod.image), format!("framework {framework}"));
    }
    if spec.command.is_empty() {
        let with = if spec.args.is_empty() { "with train.py, as there are no args" } else { "with args" };
        report("command and args", json!(role.pod.command), format!("framework {framework}: its launcher {with}"));
    }
    let procs = match spec.procs_per_worker() {
        ProcsPerWorker::Number(_) => None,
        ProcsPerWorker::Kind(ProcsKind::Auto)
            if !matches!(spec.framework(), Framework::Pytorch | Framework::Paddle | Framework::Mpi) =>
        {
            Some(format!("procsPerWorker auto: one process of {framework} has all GPUs"))
        }
        ProcsPerWorker::Kind(ProcsKind::Auto) => Some("procsPerWorker auto: the GPUs, else 1".to_owned()),
        ProcsPerWorker::Kind(ProcsKind::Gpu) => Some("procsPerWorker gpu: the GPUs".to_owned()),
        ProcsPerWorker::Kind(ProcsKind::Cpu) => Some("procsPerWorker cpu: resources.limits.cpu".to_owned()),
    };
    if let Some(procs) = procs {
        report("processes of each worker", json!(role.procs), procs);
    }
    if plan.gang.elastic.is_none() {
        report("WORLD_SIZE", json!(role.world_size()), "numWorkers and the processes of each worker".into());
    } else {
        report(
            "workers of the next attempt",
            json!(plan.gang.elastic.as_ref().map(|elastic| elastic.workers)),
            "numWorkers and the room that there is".into(),
        );
    }
    if value(&role.pod.resources) != value(&spec.resources) {
        report("resources", value(&role.pod.resources), "resources, gpusPerWorker and networking.rdmaResource".into());
    }
    report("MASTER_ADDR", json!(names::worker_host(name, 0)), "metadata.name: worker 0".into());
    report("port of the agents", json!(plan.gang.rendezvous.gang_port), "networking.masterPort".into());
    report("terminationGracePeriodSeconds", json!(role.pod.grace_seconds), "podTemplate, else the default".into());
    if let Some(checkpoint) = &plan.storage.checkpoint {
        let (volume, from) = match &checkpoint.volume {
            CheckpointVolume::EmptyDir => {
                ("an emptyDir, which ends with its pod".to_owned(), "checkpoint.storage: none that is mounted")
            }
            CheckpointVolume::Claim(claim) => (format!("claim {claim}"), "checkpoint.storage.pvcName"),
            CheckpointVolume::New { size, .. } => (
                format!("claim {}, {} if it is made", names::claim_name(name), size.0),
                "metadata.name and checkpoint.storage",
            ),
            CheckpointVolume::Nfs { server, path } => (format!("{server}:{path}"), "checkpoint.storage"),
        };
        report("/checkpoints", json!(volume), from.to_owned());
        if let Some(resume) =
            checkpoint.policy.resume_from.as_ref().filter(|from| spec.checkpoint.resume_from.as_ref() != Some(from))
        {
            report("checkpoint.resumeFrom", json!(resume), "checkpoint.resumeFrom, below /checkpoints".into());
        }
    }
    if let Some(mlflow) = plan.monitoring.mlflow.as_ref().filter(|_| spec.monitoring.mlflow_experiment.is_none()) {
        report("monitoring.mlflowExperiment", json!(mlflow.experiment), "metadata.name".into());
    }
    if let Some(group) = &plan.gang.group {
        report("PodGroup", json!(group.name), "scheduling.gang and metadata.name".into());
        let from = if plan.gang.has_roles() { "numWorkers and roles" } else { "numWorkers, or elastic.minWorkers" };
        report("pods that are placed together", json!(plan.gang.least()), from.into());
    }
    for role in plan.gang.roles.iter().filter(|role| !role.name.is_worker()) {
        of_role(name, spec, role, &mut report);
    }
    if plan.gang.has_roles() {
        let decides = |role: &&plan::Role| role.completion == plan::Completion::EveryReplica;
        let names: Vec<&str> = plan.gang.roles.iter().filter(decides).map(|role| role.name.as_str()).collect();
        let from = if spec.roles.iter().any(|role| role.leader == Some(true)) {
            "roles[].leader".to_owned()
        } else {
            format!("framework {framework}: no role sets leader: true")
        };
        report("roles that decide on success", json!(names.join(", ")), from);
    }
    for hyperparameter in &plan.hyperparameters {
        report(&hyperparameter.variable, json!(hyperparameter.text()), "hyperparameters".into());
    }
    all
}

/// Adds the values of a role. Values that the role does not set are from the workers.
fn of_role(job: &str, spec: &TrainingJobSpec, role: &plan::Role, report: &mut impl FnMut(&str, Value, String)) {
    let written = spec.roles.iter().find(|of| of.name == role.name.as_str());
    let own = |field: &str, is_own: bool, else_from: &str| match written {
        _ if !is_own => else_from.to_owned(),
        _ => format!("roles[].{field}"),
    };
    let is = |is_own: fn(&RoleSpec) -> bool| written.is_some_and(is_own);
    let name = role.name;
    let added =
        if written.is_none() { "the framework, which needs one" } else { "roles[].replicas: 1 if it is not written" };
    let mut report = |what: &str, value: Value, from: String| report(&format!("{name}: {what}"), value, from);
    report("pods", json!(role.replicas), own("replicas", is(|of| of.replicas.is_some()), added));
    report("image", json!(role.pod.image), own("image", is(|of| of.image.is_some()), "the workers' image"));
    let commands = is(|of| !of.command.is_empty() || !of.args.is_empty());
    report("command and args", json!(role.pod.command), own("command and args", commands, "the workers' program"));
    report(
        "GPUs",
        json!(role.gpus),
        own("gpusPerReplica", is(|of| of.gpus_per_replica.is_some()), "roles[].gpusPerReplica: none"),
    );
    let resources = own("resources", is(|of| !of.resources.is_empty()), "the workers' resources without their GPUs");
    report("resources", value(&role.pod.resources), resources);
    report("host of the first", json!(names::host(job, name, 0)), "metadata.name".into());
}

/// Returns a word of the API.
fn word(of: &impl Serialize) -> String {
    value(of).as_str().unwrap_or_default().to_owned()
}

/// Renders YAML: the objects, after comments with all values.
#[must_use]
pub fn render(explanation: &Explanation) -> String {
    let mut text = format!("# TrainingJob {} in namespace {}\n#\n", explanation.name, explanation.namespace);
    let shown: Vec<(&str, String, &str)> = explanation
        .values
        .iter()
        .map(|origin| (origin.field.as_str(), shown(&origin.value), origin.from.as_str()))
        .collect();
    let wide = |column: fn(&(&str, String, &str)) -> usize, most: usize| {
        shown.iter().map(column).filter(|n| *n <= most).max().unwrap_or(0)
    };
    let (first, second) = (wide(|row| row.0.len(), 40), wide(|row| row.1.chars().count(), 48));
    for (field, value, from) in &shown {
        let _ = writeln!(text, "# {field:first$}  {value:second$}  {from}");
    }
    text.push_str("#\n");
    for refusal in &explanation.refusals {
        let _ = writeln!(text, "# refused: {}", comment(refusal));
    }
    if explanation.refusals.is_empty() {
        let _ = writeln!(
            text,
            "# The objects; {AGENT_IMAGE} is the operator's, which also chooses how its agent comes into the pods, and makes the Secrets' content."
        );
    } else {
        text.push_str("# No object is made: the job would be Failed, with the reason InvalidSpec.\n");
    }
    for object in &explanation.objects {
        text.push_str("---\n");
        text.push_str(&yaml(object));
    }
    text
}

/// Formats a value on one line.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) if *text == comment(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "takes what its callers need no more")]
    fn job(spec: Value) -> TrainingJob {
        let mut fields = json!({ "model": "resnet50", "dataset": "cifar10", "numWorkers": 2 });
        fields.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let job = json!({ "apiVersion": "ml.example.com/v1", "kind": "TrainingJob", "metadata": { "name": "x" }, "spec": fields });
        jobs(&job.to_string(), Some("team")).unwrap().remove(0)
    }

    fn from(explanation: &Explanation, field: &str) -> Vec<(Value, String)> {
        explanation
            .values
            .iter()
            .filter(|origin| origin.field == field)
            .map(|o| (o.value.clone(), o.from.clone()))
            .collect()
    }

    #[test]
    fn plan_summary_is_rendered() {
        let spec = json!({
            "gpusPerWorker": 4, "checkpoint": { "storage": { "type": "pvc", "size": "50Gi" } },
            "hyperparameters": { "learningRate": 0.1 }, "scheduling": { "gang": "coscheduling" },
        });
        // The objects have tests of their own.
        insta::assert_snapshot!(render(&explain(&job(spec), true)).split("---\n").next().unwrap());
    }

    /// What a role has from the workers, what it has itself, and which role decides.
    #[test]
    fn plan_shows_each_role() {
        let spec = json!({
            "framework": "tensorflow", "image": "i", "gpusPerWorker": 1, "checkpoint": { "enabled": false },
            "roles": [{ "name": "chief" }, { "name": "ps", "replicas": 2, "image": "p", "command": ["c"] }],
        });
        let explanation = explain(&job(spec), true);
        assert_eq!(explanation.refusals, Vec::<String>::new());
        assert_eq!(from(&explanation, "ps: pods"), [(json!(2), "worked out from roles[].replicas".into())]);
        assert_eq!(from(&explanation, "chief: pods")[0].0, 1);
        assert_eq!(from(&explanation, "ps: image"), [(json!("p"), "worked out from roles[].image".into())]);
        assert_eq!(from(&explanation, "chief: image"), [(json!("i"), "worked out from the workers' image".into())]);
        assert_eq!(from(&explanation, "ps: command and args")[0].0, json!(["c"]));
        assert_eq!(from(&explanation, "chief: GPUs")[0].0, 0);
        assert_eq!(from(&explanation, "ps: host of the first")[0].0, "x-ps-0.x-headless");
        assert_eq!(from(&explanation, "roles that decide on success")[0].0, "chief");
        let jobs = explanation.objects.iter().filter(|object| object["kind"] == "Job");
        assert_eq!(jobs.count(), 3);
        assert_eq!(from(&explain(&job(json!({})), true), "roles that decide on success"), []);
        let mxnet = json!({ "framework": "mxnet", "image": "i", "checkpoint": { "enabled": false }, "roles": [{ "name": "server" }] });
        let scheduler = from(&explain(&job(mxnet), true), "scheduler: pods");
        assert_eq!(scheduler, [(json!(1), "worked out from the framework, which needs one".into())]);
    }

    #[test]
    fn plan_shows_source_of_each_value() {
        let explanation = explain(&job(json!({ "gpusPerWorker": 4, "failurePolicy": { "backoffLimit": 3 } })), true);
        assert_eq!(from(&explanation, "gpusPerWorker"), [(json!(4), "written".into())]);
        // It equals the default, but is written in the spec.
        assert_eq!(from(&explanation, "failurePolicy.backoffLimit"), [(json!(3), "written".into())]);
        assert_eq!(from(&explanation, "failurePolicy.restartPolicy"), [(json!("OnFailure"), "default".into())]);
        assert_eq!(from(&explanation, "suspend"), [(json!(false), "default".into())]);
        assert_eq!(from(&explanation, "WORLD_SIZE")[0].0, 8);
        // Absent objects have no defaults.
        assert_eq!(from(&explanation, "elastic.minWorkers"), []);
        let explanation =
            explain(&job(json!({ "elastic": { "maxWorkers": 4 }, "checkpoint": { "enabled": false } })), true);
        assert_eq!(from(&explanation, "elastic.minWorkers"), [(json!(1), "default".into())]);
        assert_eq!(from(&explanation, "WORLD_SIZE"), []);
    }

    /// The plan lists all fields that a job may have.
    #[test]
    fn plan_lists_every_default() {
        let spec = json!({
            "elastic": { "maxWorkers": 4 }, "runtimeRef": { "name": "gpu" },
            "checkpoint": { "storage": { "type": "pvc" }, "keepBest": { "metric": "loss" }, "backup": { "destination": "s3://b/p" } },
            "monitoring": { "objective": { "metric": "loss" } },
        });
        let explanation = explain(&job(spec), true);
        for (field, default) in defaults::all() {
            assert_eq!(from(&explanation, field), [(default, "default".into())], "{field}");
        }
    }

    #[test]
    fn plan_renders_objects_that_operator_creates() {
        let job = job(
            json!({ "monitoring": { "tensorboardEnabled": true }, "output": "pvc://c/x", "scheduling": { "gang": "native" } }),
        );
        let explanation = explain(&job, true);
        let kinds: Vec<&str> = explanation.objects.iter().filter_map(|object| object["kind"].as_str()).collect();
        assert_eq!(
            kinds,
            ["Service", "ConfigMap", "Secret", "NetworkPolicy", "PodGroup", "Job", "Deployment", "Service"]
        );
        assert!(explanation.objects.iter().all(|object| object["apiVersion"].is_string()));
        assert_eq!(explanation.objects[2].get("data"), None, "a key that is not random must not be used");
        let text = render(&explanation);
        let read = documents(&text).unwrap().into_iter().filter(|document| !document.is_null()).collect::<Vec<_>>();
        assert_eq!(read, explanation.objects);
    }

    /// The plan says for each value whether it is from the job or from its template, which may be in the same file.
    #[test]
    fn plan_marks_values_from_runtime_template() {
        let file = "apiVersion: ml.example.com/v1\nkind: ClusterTrainingRuntime\nmetadata: {name: gpu}\nspec: {image: \"theirs:1\", numWorkers: 3, resources: {limits: {cpu: 8, memory: 8Gi}}}\n---\n\
                    apiVersion: ml.example.com/v1\nkind: TrainingJob\nmetadata: {name: x}\nspec: {model: m, dataset: d, gpusPerWorker: 0, runtimeRef: {name: gpu}, resources: {limits: {cpu: 4}}}\n";
        let job = jobs(file, Some("team")).unwrap().remove(0);
        assert_eq!(wants(&job), None);
        let explanation = explain(&job, true);
        assert_eq!(explanation.refusals, Vec::<String>::new());
        assert_eq!(from(&explanation, "image"), [(json!("theirs:1"), "ClusterTrainingRuntime gpu".into())]);
        assert_eq!(from(&explanation, "numWorkers"), [(json!(3), "ClusterTrainingRuntime gpu".into())]);
        let limits = json!({ "cpu": "4", "memory": "8Gi" });
        assert_eq!(
            from(&explanation, "resources.limits"),
            [(limits, "written, over ClusterTrainingRuntime gpu".into())]
        );
        assert_eq!(from(&explanation, "model"), [(json!("m"), "written".into())]);
        assert_eq!(from(&explanation, "runtimeRef.name"), [(json!("gpu"), "written".into())]);
        assert_eq!(explanation.objects.last().unwrap()["spec"]["completions"], 3);
        // The template's text has parameters, and the job gives their values.
        let with = file
            .replace("theirs:1", "$<params.team>:1")
            .replace("spec: {image", "spec: {parameters: [{name: team}], image");
        let unset = jobs(&with, Some("team")).unwrap_err().to_string();
        assert!(unset.contains("runtimeRef.parameters.team is missing and has no default"), "{unset}");
        let set = with.replace("{name: gpu}, resources", "{name: gpu, parameters: {team: vision}}, resources");
        let set = explain(&jobs(&set, Some("team")).unwrap().remove(0), true);
        assert_eq!(set.refusals, Vec::<String>::new());
        assert_eq!(from(&set, "image"), [(json!("vision:1"), "ClusterTrainingRuntime gpu".into())]);
        // A template that is not in the file is still to be found.
        let job = jobs(&file.replace("{name: gpu}, resources", "{name: other}, resources"), None).unwrap().remove(0);
        assert_eq!(wants(&job).unwrap().name, "other");
    }

    #[test]
    fn refused_spec_renders_no_objects() {
        let explanation =
            explain(&job(json!({ "podTemplate": { "spec": { "hostname": "x", "dnsPolicy": 1 } } })), true);
        assert_eq!(explanation.objects, Vec::<Value>::new());
        assert!(render(&explanation).contains("\n# refused: spec.podTemplate.spec.dnsPolicy"));
    }

    #[test]
    fn file_without_valid_job_is_refused_with_reason() {
        let wrong = jobs("apiVersion: ome.io/v1beta1\nkind: TrainingJob\nmetadata: {name: x}\n", None).unwrap_err();
        assert!(wrong.to_string().contains("kubectl trainingjob convert"), "{wrong}");
        let wrong = "apiVersion: ml.example.com/v1\nkind: TrainingJob\nspec: {model: m, dataset: d, numWorkers: two}\n";
        assert!(jobs(wrong, None).unwrap_err().to_string().starts_with("spec.numWorkers: "));
    }
}
