//! `convert`: converts training jobs of other projects to TrainingJobs.
//!
//! Pure: text in, text out. Each kind has its own file, which takes every field that it knows out of the object
//! ([`fields`]). Fields left over have no place here and are reported. All kinds share [`pod`] and [`gang`].

mod command;
mod converted;
mod fields;
mod gang;
mod jax;
mod job;
mod jobset;
mod kubeflow;
mod mpi;
mod mxnet;
mod notes;
mod ome;
mod paddle;
mod place;
mod pod;
mod pytorch;
mod runtime;
mod tensorflow;
mod trainjob;
mod xgboost;

pub use fields::ConvertError;
pub use notes::{Note, Notes};

pub(super) use converted::comment;

use converted::ConvertedJob;
use fields::Fields;
use serde::Serialize;
use serde_json::Value;

/// Placeholder for a name that a TrainingJob requires and the original does not have.
pub(super) const UNNAMED: &str = "unnamed";

/// Values from the user that the original does not have.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    /// Our field `model`.
    pub model: Option<String>,
    /// Our field `dataset`.
    pub dataset: Option<String>,
    /// The namespace of Oracle Object Storage, in which `oci://BUCKET/PATH` of OME is.
    pub oci_namespace: Option<String>,
}

/// The result of converting a file.
#[derive(Debug)]
pub struct Converted {
    /// YAML with comments.
    pub text: String,
    /// Whether a converted job differs in meaning from its original.
    pub lost: bool,
    /// Each TrainingJob with its notes.
    pub jobs: Vec<(Value, Notes)>,
}

/// Converts all jobs in a file to TrainingJobs.
///
/// # Errors
/// If the file is not YAML, has no job of a known kind, or has a job that can't be read.
///
/// # Panics
/// Never, because the result is plain data.
#[expect(clippy::expect_used, reason = "plain data of ours, which always has this form")]
pub fn convert(text: &str, answers: &Answers) -> Result<Converted, ConvertError> {
    let mut objects = Vec::new();
    for document in documents(text)? {
        flatten(document, &mut objects)?;
    }
    let (runtimes, objects): (Vec<Fields>, Vec<Fields>) =
        objects.into_iter().partition(|object| BESIDE.contains(&kind_and_name(object).1.as_str()));
    let mut converted = Converted { text: String::new(), lost: false, jobs: Vec::new() };
    let mut beside = String::new();
    for object in objects {
        let (version, kind) = kind_and_name(&object);
        let Some(ours) = convert_object(&version, &kind, object.clone(), &runtimes, answers)? else {
            let name = object.clone().object("metadata")?.text("name")?.unwrap_or_default();
            let what = comment(&format!("{kind} {name} ({version})"));
            beside.push_str(&format!("# {what} is no job: it stays as it is, and is not written here.\n"));
            continue;
        };
        if !converted.text.is_empty() {
            converted.text.push_str("---\n");
        }
        converted.text.push_str(&ours.written());
        converted.lost |= ours.notes.any_lost();
        let document = serde_json::to_value(ours.document()).expect("an object is plain data");
        converted.jobs.push((document, ours.notes));
    }
    if converted.jobs.is_empty() {
        return Err(ConvertError(format!(
            "there is no job in it that can be converted: {} are known",
            KINDS.map(|(group, kind, _)| format!("{kind} of {group}")).join(", ")
        )));
    }
    converted.text.insert_str(0, &beside);
    Ok(converted)
}

/// Kinds that jobs refer to, and that may be in the same file.
const BESIDE: [&str; 4] = ["ClusterTrainingRuntime", "TrainingRuntime", "ClusterBaseModel", "BaseModel"];

/// Converts the spec of one kind.
type Convert = fn(&mut ConvertedJob, Fields, &[Fields]) -> Result<(), ConvertError>;

/// The known kinds, by the group of their API.
const KINDS: [(&str, &str, Convert); 11] = [
    ("ome.io", "TrainingJob", ome::convert),
    ("trainer.kubeflow.org", "TrainJob", trainjob::convert),
    ("kubeflow.org", "PyTorchJob", |ours, spec, _| pytorch::convert(ours, spec)),
    ("kubeflow.org", "TFJob", |ours, spec, _| tensorflow::convert(ours, spec)),
    ("kubeflow.org", "MPIJob", |ours, spec, _| mpi::convert(ours, spec)),
    ("kubeflow.org", "XGBoostJob", |ours, spec, _| xgboost::convert(ours, spec)),
    ("kubeflow.org", "PaddleJob", |ours, spec, _| paddle::convert(ours, spec)),
    ("kubeflow.org", "JAXJob", |ours, spec, _| jax::convert(ours, spec)),
    ("kubeflow.org", "MXJob", |ours, spec, _| mxnet::convert(ours, spec)),
    ("batch", "Job", |ours, spec, _| job::convert(ours, spec)),
    ("jobset.x-k8s.io", "JobSet", |ours, spec, _| jobset::convert(ours, spec)),
];

/// Converts one object. Returns `None` if it is not a job.
fn convert_object(
    version: &str,
    kind: &str,
    mut object: Fields,
    runtimes: &[Fields],
    answers: &Answers,
) -> Result<Option<ConvertedJob>, ConvertError> {
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let Some((_, _, convert)) = KINDS.iter().find(|(of, is, _)| (*of, *is) == (group, kind)) else { return Ok(None) };
    let mut ours = ConvertedJob::new(kind, &mut object)?;
    ours.oci_namespace.clone_from(&answers.oci_namespace);
    let old = object.clone().object("metadata")?.text("name")?.unwrap_or_else(|| ours.name.clone());
    let spec = object.object("spec")?;
    object.left(&mut ours.notes);
    convert(&mut ours, spec, runtimes)
        .map_err(|ConvertError(wrong)| ConvertError(format!("{}: {wrong}", ours.from)))?;
    let pods = match group {
        "kubeflow.org" => kubeflow::PODS,
        "batch" => job::PODS,
        _ => jobset::PODS,
    };
    ours.old_names(&old, pods);
    ours.finish(answers)?;
    Ok(Some(ours))
}

/// Returns API version and kind.
fn kind_and_name(object: &Fields) -> (String, String) {
    let mut object = object.clone();
    let mut text = |key| object.text(key).ok().flatten().unwrap_or_default();
    (text("apiVersion"), text("kind"))
}

/// Adds the items of a list, or the object itself.
fn flatten(value: Value, into: &mut Vec<Fields>) -> Result<(), ConvertError> {
    let mut object = Fields::new("", value)?;
    if object.has("items") && kind_and_name(&object).1.ends_with("List") {
        for item in object.list("items")? {
            flatten(item, into)?;
        }
    } else if !object.is_empty() {
        into.push(object);
    }
    Ok(())
}

/// Parses the documents of a file.
pub(super) fn documents(text: &str) -> Result<Vec<Value>, ConvertError> {
    serde_saphyr::from_multiple(text).map_err(|error| ConvertError(format!("this is no YAML: {error}")))
}

/// Formats an object as YAML.
#[expect(clippy::expect_used, reason = "plain data of ours, which always has this form")]
pub(super) fn yaml(value: &impl Serialize) -> String {
    serde_saphyr::to_string(value).expect("plain data is YAML")
}

#[cfg(test)]
mod tests;
