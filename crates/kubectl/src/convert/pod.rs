//! A pod template. Fields that the spec has go there, and the rest into `podTemplate`.

use super::fields::{ConvertError, Fields, is_nothing};
use super::notes::Notes;
use plan::labels;
use plan::quantity::Amount;
use plan::storage::{VOLUME_PREFIX, paths};
use plan::template::{AGENT, TRAINING};
use plan::{is_extended, is_gpu, is_reserved};
use serde_json::{Map, Value, json};

/// A pod template as fields of a TrainingJob.
#[derive(Clone, Debug, Default)]
pub(super) struct Pod {
    /// Fields of the TrainingJob's spec, by their path.
    pub fields: Map<String, Value>,
    /// The pod's own restart policy.
    pub restart_policy: Option<String>,
    /// Ports of the container, with their names.
    pub ports: Vec<(Option<String>, i64)>,
    /// GPUs of the container.
    pub gpus: i64,
}

impl Pod {
    /// Counts the GPUs of every vendor, by the limits.
    pub fn count_gpus(&mut self) {
        let limits = self.fields.get("resources.limits").and_then(Value::as_object).into_iter().flatten();
        let counts = limits.filter(|(name, _)| is_gpu(name)).filter_map(|(_, amount)| Amount::parse(amount.as_str()?));
        self.gpus = counts.map(|amount| i64::try_from(amount.floor()).unwrap_or(0)).sum();
    }
}

/// Fields that a worker's pod must not have, with the reason.
const REFUSED: [(&str, &str); 6] = [
    ("hostname", "is how the workers find each other, and set by the operator"),
    ("hostnameOverride", "is how the workers find each other, and set by the operator"),
    ("subdomain", "is how the workers find each other, and set by the operator"),
    ("activeDeadlineSeconds", "would end single workers: failurePolicy.activeDeadlineSeconds ends the job"),
    ("ephemeralContainers", "can't be in a template"),
    ("resources", "of a whole pod have no field here: resources are those of the container"),
];

/// Fields of the container that the agent sets.
const AGENTS: [&str; 4] = ["terminationMessagePath", "terminationMessagePolicy", "restartPolicy", "restartPolicyRules"];

/// Values that an API server fills in for these.
const TOLD_BY_THE_SERVER: [(&str, &str); 2] =
    [("terminationMessagePath", "/dev/termination-log"), ("terminationMessagePolicy", "File")];

/// Reads a template whose program runs in the container of one of these names, or in the only one.
pub(super) fn pod(mut template: Fields, names: &[&str], notes: &mut Notes) -> Result<Pod, ConvertError> {
    let mut pod = Pod::default();
    let mut overlay = Map::new();
    metadata(template.object("metadata")?, &mut overlay, notes)?;
    let mut spec = template.object("spec")?;
    template.left(notes);

    let mut containers = spec.objects("containers")?;
    let named = |container: &Fields| container.clone().text("name").ok().flatten();
    let at = containers.iter().position(|c| named(c).is_some_and(|name| names.contains(&name.as_str()))).unwrap_or(0);
    let mut over = Map::new();
    if at < containers.len() {
        over = container(containers.remove(at), &mut pod, notes)?;
    }
    let mut rest: Vec<Value> = containers.into_iter().map(|c| renamed(c, notes)).collect();
    if !over.is_empty() {
        over.insert("name".into(), json!(TRAINING));
        rest.insert(0, Value::Object(over));
    }
    let mut below = Map::new();
    if !rest.is_empty() {
        below.insert("containers".into(), Value::Array(rest));
    }
    let init = spec.objects("initContainers")?;
    if !init.is_empty() {
        let init = init.into_iter().map(|container| renamed(container, notes)).collect();
        below.insert("initContainers".into(), Value::Array(init));
    }

    for (theirs, ours) in [
        ("volumes", "volumes"),
        ("imagePullSecrets", "imagePullSecrets"),
        ("serviceAccount", "serviceAccountName"),
        ("serviceAccountName", "serviceAccountName"),
        ("priorityClassName", "scheduling.priority"),
        ("nodeSelector", "scheduling.nodeSelector"),
        ("affinity", "scheduling.affinity"),
        ("tolerations", "scheduling.tolerations"),
        ("schedulerName", "scheduling.schedulerName"),
    ] {
        if let Some(value) = spec.take(theirs).filter(|value| !is_nothing(value) && value != "default-scheduler") {
            pod.fields.insert(ours.into(), value);
        }
    }
    pod.restart_policy = spec.text("restartPolicy")?;
    for (field, why) in REFUSED {
        spec.lose(field, notes, why);
    }
    below.extend(spec.rest());
    if !below.is_empty() {
        overlay.insert("spec".into(), Value::Object(below));
    }
    if !overlay.is_empty() {
        pod.fields.insert("podTemplate".into(), Value::Object(overlay));
    }
    volumes(&mut pod.fields, notes);
    Ok(pod)
}

/// Copies labels and annotations that may be set.
fn metadata(mut theirs: Fields, overlay: &mut Map<String, Value>, notes: &mut Notes) -> Result<(), ConvertError> {
    let mut metadata = Map::new();
    for list in ["labels", "annotations"] {
        let mut keys = theirs.object(list)?;
        let reserved: Vec<String> =
            keys.clone().rest().keys().filter(|key| labels::is_reserved(key)).cloned().collect();
        for key in reserved {
            keys.lose(&key, notes, "is set by the operator: select pods by training-job instead");
        }
        if !keys.is_empty() {
            metadata.insert(list.into(), Value::Object(keys.rest()));
        }
    }
    theirs.take("creationTimestamp");
    theirs.left(notes);
    if !metadata.is_empty() {
        overlay.insert("metadata".into(), Value::Object(metadata));
    }
    Ok(())
}

/// Converts the program's container. Fields that the spec does not have are left for `podTemplate`.
fn container(mut theirs: Fields, pod: &mut Pod, notes: &mut Notes) -> Result<Map<String, Value>, ConvertError> {
    theirs.take("name");
    for (field, ours) in [
        ("image", "image"),
        ("command", "command"),
        ("args", "args"),
        ("envFrom", "envFrom"),
        ("workingDir", "workingDir"),
        ("volumeMounts", "volumeMounts"),
    ] {
        if let Some(value) = theirs.take(field).filter(|value| !is_nothing(value)) {
            pod.fields.insert(ours.into(), value);
        }
    }
    let path = theirs.at("env");
    let env = env(&path, theirs.objects("env")?, notes)?;
    if !env.is_empty() {
        pod.fields.insert("env".into(), Value::Array(env));
    }
    let requirements = theirs.object("resources")?;
    resources(requirements, pod, notes)?;
    for (field, default) in TOLD_BY_THE_SERVER {
        if theirs.clone().text(field)?.as_deref() == Some(default) {
            theirs.take(field);
        }
    }
    for field in AGENTS {
        theirs.lose(field, notes, "is how the agent tells why a worker ended, and starts again");
    }
    for mut port in theirs.clone().objects("ports")? {
        if let Some(number) = port.number("containerPort")? {
            pod.ports.push((port.text("name")?, number));
        }
    }
    Ok(theirs.rest())
}

/// Converts variables. The last one of a name counts. Variables of the gang are the operator's.
fn env(path: &str, theirs: Vec<Fields>, notes: &mut Notes) -> Result<Vec<Value>, ConvertError> {
    let mut all: Vec<Value> = Vec::new();
    for mut variable in theirs {
        let whole = Value::Object(variable.clone().rest());
        let Some(name) = variable.text("name")? else {
            return Err(ConvertError(format!("{} has no name", variable.path)));
        };
        if is_reserved(&name) {
            let itself = whole["value"].as_str().is_some_and(|value| value == format!("$({name})"));
            let same = whole["valueFrom"]["fieldRef"]["fieldPath"].as_str().is_some_and(|field| is_ours(&name, field));
            let field = format!("{path}.{name}");
            if itself {
                notes.note(field, "stood for itself, and is set by the operator: left out");
            } else if same {
                notes.note(field, "is set by the operator to the same: left out");
            } else {
                notes.lost(field, "is set by the operator, for the whole gang: left out");
            }
            continue;
        }
        let before = all.len();
        all.retain(|other| other["name"] != whole["name"]);
        if all.len() < before {
            notes.note(format!("{path}.{name}"), "stood there twice: the last one counts");
        }
        all.push(whole);
    }
    Ok(all)
}

/// Whether the operator sets this variable to that field of the pod, too.
fn is_ours(name: &str, field: &str) -> bool {
    [
        ("POD_NAME", "metadata.name"),
        ("POD_NAMESPACE", "metadata.namespace"),
        ("POD_UID", "metadata.uid"),
        ("NODE_NAME", "spec.nodeName"),
    ]
    .contains(&(name, field))
}

/// Formats requests and limits as text, with devices in both, and counts the GPUs.
fn resources(mut theirs: Fields, pod: &mut Pod, notes: &mut Notes) -> Result<(), ConvertError> {
    let limits_path = theirs.at("limits");
    let requests = amounts(theirs.object("requests")?)?;
    let mut limits = amounts(theirs.object("limits")?)?;
    theirs.left(notes);
    for (name, amount) in &requests {
        if is_extended(name) && !limits.contains_key(name) {
            notes.note(format!("{limits_path}.{name}"), "is as the request: a device can't be shared");
            limits.insert(name.clone(), amount.clone());
        }
    }
    for (list, amounts) in [("requests", requests), ("limits", limits)] {
        if !amounts.is_empty() {
            pod.fields.insert(format!("resources.{list}"), Value::Object(amounts));
        }
    }
    pod.count_gpus();
    Ok(())
}

fn amounts(theirs: Fields) -> Result<Map<String, Value>, ConvertError> {
    let path = theirs.path.clone();
    let text = |(name, amount): (String, Value)| match amount {
        Value::String(text) => Ok((name, json!(text))),
        Value::Number(number) => Ok((name, json!(number.to_string()))),
        _ => Err(ConvertError(format!("{path}.{name} is no quantity"))),
    };
    theirs.rest().into_iter().map(text).collect()
}

/// Renames a container beside the program's that has the name of one of ours.
fn renamed(theirs: Fields, notes: &mut Notes) -> Value {
    let path = theirs.at("name");
    let mut container = theirs.rest();
    let name = container.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    if name == TRAINING || name == AGENT {
        notes.note(path, format!("{name} is the operator's own: the container is called {name}-2"));
        container.insert("name".into(), json!(format!("{name}-2")));
    }
    Value::Object(container)
}

/// Leaves out volumes and mounts that conflict with the operator's.
fn volumes(fields: &mut Map<String, Value>, notes: &mut Notes) {
    let mut known: Vec<Value> = Vec::new();
    if let Some(Value::Array(volumes)) = fields.get_mut("volumes") {
        volumes.retain(|volume| {
            let name = volume["name"].as_str().unwrap_or_default();
            let is_ours = name.starts_with(VOLUME_PREFIX);
            if is_ours {
                let says =
                    format!("{name} is the operator's, as all that begin with {VOLUME_PREFIX}: left out, rename it");
                notes.lost("spec.volumes", says);
            }
            !is_ours
        });
        known = volumes.iter().map(|volume| volume["name"].clone()).collect();
    }
    if let Some(Value::Array(mounts)) = fields.get_mut("volumeMounts") {
        mounts.retain(|mount| {
            let path = mount["mountPath"].as_str().unwrap_or_default();
            let is_ours = [paths::AGENT, paths::CONFIG]
                .iter()
                .any(|ours| path.strip_prefix(ours).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')));
            if is_ours {
                notes.lost("spec.volumeMounts", format!("{path} is the operator's: left out, choose another path"));
            } else if !known.contains(&mount["name"]) {
                notes.lost("spec.volumeMounts", format!("{path} is of a volume that is not there: left out"));
                return false;
            }
            !is_ours
        });
    }
}
