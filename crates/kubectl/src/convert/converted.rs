//! The resulting TrainingJob, and how it is written.

use super::fields::{ConvertError, Fields, is_nothing};
use super::notes::Notes;
use api::{GROUP, TrainingJobSpec, VERSION};
use plan::{self, OperatorInfo, names};
use regex::Regex;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Map, Value, json};

/// The resulting TrainingJob, with its notes.
#[derive(Debug)]
pub(super) struct ConvertedJob {
    /// Kind and name of the original.
    pub from: String,
    pub name: String,
    /// What precedes the letters that the API server appends to a generated name: `-` or nothing.
    generated: Option<&'static str>,
    metadata: Map<String, Value>,
    pub spec: Map<String, Value>,
    pub notes: Notes,
    /// The namespace of Oracle Object Storage, if the user gives it.
    pub oci_namespace: Option<String>,
}

/// Annotations of the object as it was stored.
const STORED: [&str; 1] = ["kubectl.kubernetes.io/last-applied-configuration"];
/// Metadata that an API server adds.
const SERVER: [&str; 6] = ["uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink"];
const QUEUE: &str = plan::labels::QUEUE;
/// Number of letters that an API server adds to `generateName`.
const GENERATED: usize = 5;

impl ConvertedJob {
    /// Begins a TrainingJob with the name, labels and annotations of the original.
    pub fn new(kind: &str, theirs: &mut Fields) -> Result<Self, ConvertError> {
        let mut metadata = theirs.object("metadata")?;
        theirs.take("apiVersion");
        theirs.take("kind");
        theirs.take("status");
        let mut notes = Notes::default();
        let begin = metadata.text("generateName")?;
        let (written, generated) = match (metadata.text("name")?, begin) {
            (Some(name), _) => (name, None),
            (None, Some(begin)) => {
                notes.note(
                    "metadata.generateName",
                    "is kept: use kubectl create -f, because kubectl apply needs a name",
                );
                let stem = begin.trim_end_matches(['-', '.']);
                (stem.to_owned(), Some(if stem == begin { "" } else { "-" }))
            }
            (None, None) => return Err(ConvertError(format!("a {kind} without metadata.name can't be converted"))),
        };
        let name = usable(&written);
        if name != written {
            notes.lost("metadata.name", format!("{written:?} can't be part of host names: the job is called {name}"));
        }
        let (from, metadata_of_ours, spec) = (format!("{kind} {written}"), Map::new(), Map::new());
        let mut ours = Self { from, name, generated, metadata: metadata_of_ours, spec, notes, oci_namespace: None };
        if let Some(namespace) = metadata.take("namespace") {
            ours.metadata.insert("namespace".into(), namespace);
        }
        for list in ["labels", "annotations"] {
            let mut kept = metadata.object(list)?;
            STORED.iter().for_each(|key| drop(kept.take(key)));
            ours.queue_label(&mut kept)?;
            let kept = kept.rest();
            if !kept.is_empty() {
                ours.metadata.insert(list.into(), Value::Object(kept));
            }
        }
        SERVER.iter().for_each(|key| drop(metadata.take(key)));
        metadata.left(&mut ours.notes);
        Ok(ours)
    }

    /// Reads Kueue's labels.
    pub fn queue_label(&mut self, labels: &mut Fields) -> Result<(), ConvertError> {
        if let Some(queue) = labels.text(QUEUE)? {
            self.set("scheduling.queue", queue);
        }
        labels.lose(
            "kueue.x-k8s.io/priority-class",
            &mut self.notes,
            "has no field here: scheduling.priority names a PriorityClass",
        );
        Ok(())
    }

    /// Sets a field of the spec by its path.
    pub fn set(&mut self, path: &str, value: impl Into<Value>) {
        self.set_key(&path.split('.').collect::<Vec<_>>(), value);
    }

    /// Sets a field of the spec by the keys that lead to it.
    #[expect(clippy::expect_used, reason = "made as one a line before")]
    pub fn set_key(&mut self, path: &[&str], value: impl Into<Value>) {
        let Some((field, parents)) = path.split_last() else { return };
        let mut object = &mut self.spec;
        for step in parents {
            let inner = object.entry(*step).or_insert_with(|| json!({}));
            if !inner.is_object() {
                *inner = json!({});
            }
            object = inner.as_object_mut().expect("it is one");
        }
        object.insert((*field).to_owned(), value.into());
    }

    /// Returns the value of a field of the spec.
    pub fn get(&self, path: &str) -> Option<&Value> {
        let mut steps = path.split('.');
        let first = self.spec.get(steps.next()?)?;
        steps.try_fold(first, |value, step| value.get(step))
    }

    /// Returns the strings in a list of the spec.
    pub fn words(&self, field: &str) -> Vec<String> {
        let items = self.get(field).and_then(Value::as_array).into_iter().flatten();
        items.filter_map(Value::as_str).map(str::to_owned).collect()
    }

    /// Sets the number of workers.
    pub fn workers(&mut self, field: &str, number: i64) {
        const MOST: i64 = 4096;
        if !(1..=MOST).contains(&number) {
            self.notes.lost(field, format!("{number} workers are not between 1 and {MOST}"));
        }
        self.set("numWorkers", number.clamp(1, MOST));
    }

    /// Sets a number of seconds, if it is at least `least`.
    pub fn seconds(&mut self, to: &str, field: &str, least: i64, seconds: i64) {
        if (least..=i64::from(i32::MAX)).contains(&seconds) {
            self.set(to, seconds);
        } else {
            self.notes.lost(field, format!("{seconds} is not between {least} and {}: left out", i32::MAX));
        }
    }

    /// Adds a variable, unless the job has it.
    pub fn add_env(&mut self, name: &str, value: &str) {
        let env = self.spec.entry("env").or_insert_with(|| json!([]));
        if let Some(env) = env.as_array_mut().filter(|env| env.iter().all(|variable| variable["name"] != name)) {
            env.push(json!({ "name": name, "value": value }));
        }
    }

    /// Returns the host name of a worker. A job that refers to it needs a fixed name.
    pub fn host(&mut self, index: i64) -> String {
        if self.generated.take().is_some() {
            self.notes.0.retain(|note| note.field != "metadata.generateName");
            let says = format!("is no name, and the spec has host names: the job is called {}", self.name);
            self.notes.lost("metadata.generateName", says);
        }
        self.shorten();
        names::worker_host(&self.name, u32::try_from(index).unwrap_or(u32::MAX))
    }

    /// Suspends the job, which must not start as it is.
    pub fn hold(&mut self, field: &str, why: &str) {
        self.set("suspend", true);
        self.notes.lost(field, format!("{why}; the job is suspended, and would not do what this one did"));
    }

    /// Fills in fields that every TrainingJob needs, and validates the result.
    pub fn finish(&mut self, answers: &super::Answers) -> Result<(), ConvertError> {
        for (field, answer) in [("model", &answers.model), ("dataset", &answers.dataset)] {
            if let Some(answer) = answer {
                self.set(field, answer.as_str());
            }
        }
        // A result is on the volume of the checkpoints before it is published.
        if self.get("checkpoint.storage").is_none() {
            self.set("checkpoint.enabled", false);
            self.notes.note(
                "spec.checkpoint",
                "is switched off: the program keeps its checkpoints where it did. With checkpoint.storage the operator \
                 would keep, check and resume them",
            );
        }
        self.shorten();
        self.spec.retain(|_, value| !is_nothing(value));
        let spec: TrainingJobSpec =
            serde_path_to_error::deserialize(Value::Object(self.spec.clone())).map_err(|error| {
                ConvertError(format!("{} can't be converted: spec.{}: {}", self.from, error.path(), error.inner()))
            })?;
        self.look(spec);
        Ok(())
    }

    /// Shortens the name, because it is part of the pods' host names.
    fn shorten(&mut self) {
        let most = self.get("elastic.maxWorkers").or(self.get("numWorkers")).and_then(Value::as_i64).unwrap_or(1);
        let digits = |pods: i64| (pods - 1).max(0).to_string().len();
        let of_role = |role: &Value| {
            let name = role["name"].as_str().map_or(0, str::len);
            61usize.saturating_sub(name + digits(role["replicas"].as_i64().unwrap_or(1)))
        };
        let roles = self.get("roles").and_then(Value::as_array).into_iter().flatten();
        let longest = roles.map(of_role).fold(53 - digits(most), usize::min);
        let longest = longest.saturating_sub(self.generated.map_or(0, |dash| dash.len() + GENERATED));
        if self.name.len() > longest {
            self.name.truncate(longest);
            self.name.truncate(self.name.trim_end_matches('-').len());
            let says = format!("is too long for the pods' host names: the job is called {}", self.name);
            self.notes.lost("metadata.name", says);
        }
    }

    /// Reports what the operator would reject.
    fn look(&mut self, spec: TrainingJobSpec) {
        let mut job = api::TrainingJob::new(&self.name, spec);
        job.metadata.uid = Some("00000000-0000-0000-0000-000000000000".into());
        for refusal in plan::resolve(&job, &OperatorInfo::default()).refusals.0 {
            self.notes.lost(refusal.field.clone(), format!("would be refused: {}", refusal.message));
        }
    }

    /// Reports host names and labels of the old pods in the converted spec.
    #[expect(clippy::expect_used, reason = "a constant")]
    pub fn old_names(&mut self, old: &str, pods: &str) {
        let host = Regex::new(&format!("(?:^|[^-.a-z0-9])({}-{pods}[0-9]+)(?:$|[^-a-z0-9])", regex::escape(old)));
        let host = host.expect("a name and a constant");
        let name = &self.generated.map_or_else(|| self.name.clone(), |dash| format!("{}{dash}XXXXX", self.name));
        let now = if self.get("roles").is_some() {
            format!("pod I of role R is now {name}-R-I.{name}-headless, worker I {name}-training-I.{name}-headless")
        } else {
            format!(
                "worker I is now {name}-training-I.{name}-headless (others than worker 0 need networking.hostNames: AllWorkers), \
                 and $(MASTER_ADDR) worker 0"
            )
        };
        let mut found = Vec::new();
        for field in ["command", "args", "env", "podTemplate", "scheduling", "roles"] {
            each_text(self.spec.get(field).unwrap_or(&Value::Null), &mut |text| {
                if let Some(old) = host.captures(text).and_then(|all| all.get(1)) {
                    let old = old.as_str();
                    found.push((field, format!("{old} was a pod's host name: {now}")));
                }
                if text.starts_with("training.kubeflow.org/") || text.starts_with("jobset.sigs.k8s.io/") {
                    found.push((
                        field,
                        format!("{text} is a label that the pods no longer have: theirs is training-job: {name}"),
                    ));
                }
            });
        }
        for (field, says) in found {
            self.notes.lost(format!("spec.{field}"), says);
        }
    }

    /// Formats it as YAML, after all of its notes.
    pub fn written(&self) -> String {
        let mut text = format!("# Converted from {}.\n", comment(&self.from));
        for note in &self.notes.0 {
            let mark = if note.lost { "LOST" } else { "note" };
            text.push_str(&format!("# {mark}  {}: {}\n", comment(&note.field), comment(&note.says)));
        }
        text + &super::yaml(&self.document())
    }

    /// Returns it as an object.
    pub fn document(&self) -> Ordered {
        let (key, name) = match self.generated {
            None => ("name", self.name.clone()),
            Some(dash) => ("generateName", format!("{}{dash}", self.name)),
        };
        let mut metadata = vec![(key.to_owned(), Node::Value(json!(name)))];
        let rest = ["namespace", "labels", "annotations"].iter().filter_map(|key| self.metadata.get_key_value(*key));
        metadata.extend(rest.map(|(key, value)| (key.clone(), Node::Value(value.clone()))));
        Ordered(vec![
            ("apiVersion".into(), Node::Value(json!(format!("{GROUP}/{VERSION}")))),
            ("kind".into(), Node::Value(json!("TrainingJob"))),
            ("metadata".into(), Node::Object(Ordered(metadata))),
            ("spec".into(), Node::Object(ordered(&self.spec))),
        ])
    }
}

/// The fields that users look for first.
const FIRST: [&str; 18] = [
    "name",
    "replicas",
    "leader",
    "model",
    "dataset",
    "cache",
    "credentialsSecret",
    "output",
    "numWorkers",
    "elastic",
    "gpusPerWorker",
    "gpusPerReplica",
    "procsPerWorker",
    "framework",
    "image",
    "command",
    "args",
    "roles",
];

fn ordered(spec: &Map<String, Value>) -> Ordered {
    let first = FIRST.iter().filter_map(|key| spec.get_key_value(*key));
    let rest = spec.iter().filter(|(key, _)| !FIRST.contains(&key.as_str()));
    let node = |key: &str, value: &Value| match value {
        Value::Array(roles) if key == "roles" => {
            Node::List(roles.iter().filter_map(Value::as_object).map(ordered).collect())
        }
        _ => Node::Value(value.clone()),
    };
    Ordered(first.chain(rest).map(|(key, value)| (key.clone(), node(key, value))).collect())
}

/// An object whose fields have an order.
pub(super) struct Ordered(Vec<(String, Node)>);

enum Node {
    Object(Ordered),
    List(Vec<Ordered>),
    Value(Value),
}

impl Serialize for Ordered {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, node) in &self.0 {
            match node {
                Node::Object(object) => map.serialize_entry(key, object)?,
                Node::List(objects) => map.serialize_entry(key, objects)?,
                Node::Value(value) => map.serialize_entry(key, value)?,
            }
        }
        map.end()
    }
}

/// Returns a name that can be part of host names.
fn usable(name: &str) -> String {
    let is_usable = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    if name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.ends_with(is_usable)
        && name.chars().all(|c| is_usable(c) || c == '-')
    {
        return name.to_owned();
    }
    let lower = name.to_ascii_lowercase();
    let parts: Vec<&str> = lower.split(|c| !is_usable(c)).filter(|part| !part.is_empty()).collect();
    let joined = parts.join("-");
    if joined.starts_with(|c: char| c.is_ascii_lowercase()) {
        joined
    } else {
        format!("job-{joined}").trim_end_matches('-').to_owned()
    }
}

/// Returns the text on one line, whatever its source.
pub(crate) fn comment(text: &str) -> String {
    let visible: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    visible.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Calls `look` for every text within a value, including the keys of objects.
fn each_text(value: &Value, look: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => look(text),
        Value::Array(items) => items.iter().for_each(|item| each_text(item, look)),
        Value::Object(map) => map.iter().for_each(|(key, value)| {
            look(key);
            each_text(value, look);
        }),
        _ => {}
    }
}
