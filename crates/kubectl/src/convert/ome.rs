//! OME's TrainingJob.

use super::converted::ConvertedJob;
use super::fields::{ConvertError, Fields};
use super::{gang, place, runtime, trainjob};

pub(super) fn convert(ours: &mut ConvertedJob, mut spec: Fields, runtimes: &[Fields]) -> Result<(), ConvertError> {
    let mut reference = spec.object("runtimeRef")?;
    let trainer = spec.object("trainer")?;
    runtime::workers(ours, &mut reference, trainer, runtimes)?;

    let mut model = spec.object("modelConfig")?;
    if let Some(input) = model.text("inputModel")? {
        base_model(ours, &model.at("inputModel"), &input, runtimes)?;
    }
    let mut out = model.object("outputModel")?;
    if let Some(uri) = out.text("storageUri")? {
        let field = out.at("storageUri");
        let uri = oracle(ours, &field, &uri);
        place::output(ours, &field, &uri);
    }
    secret(ours, &mut out)?;
    parameters(ours, &mut out, "OUTPUT")?;
    out.left(&mut ours.notes);
    model.left(&mut ours.notes);

    let mut datasets = spec.object("datasets")?;
    if let Some(uri) = datasets.text("storageUri")? {
        let field = datasets.at("storageUri");
        let uri = oracle(ours, &field, &uri);
        place::source(ours, &field, "dataset", &uri);
    }
    secret(ours, &mut datasets)?;
    parameters(ours, &mut datasets, "DATASET")?;
    datasets.left(&mut ours.notes);

    // The block has the same form in a TrainingJob, word for word.
    if let Some(tuning) = spec.take("hyperParameterTuningConfig") {
        let field = spec.at("hyperParameterTuningConfig");
        if tuning
            .get("parameters")
            .is_none_or(|parameters| parameters.as_object().is_none_or(serde_json::Map::is_empty))
        {
            let note = "has no parameters to search, so every trial would be the same: the job trains once. With some it would be a \
search: add this block to the result with them";
            ours.notes.note(field, note);
        } else {
            let note = "the job starts no workers: it is a search, whose trials are TrainingJobs (kubectl trainingjob tune NAME)";
            ours.notes.note(field, note);
            ours.set("hyperParameterTuningConfig", tuning);
        }
    }
    spec.lose("compartmentID", &mut ours.notes, "has no place here");
    trainjob::children(ours, &mut spec)?;
    gang::suspend(ours, &mut spec)?;
    spec.left(&mut ours.notes);
    Ok(())
}

/// Sets the address of a BaseModel that is in the file, or else its name.
fn base_model(ours: &mut ConvertedJob, field: &str, name: &str, beside: &[Fields]) -> Result<(), ConvertError> {
    let found = beside.iter().find(|object| {
        let mut object = (*object).clone();
        let is_model = object.text("kind").is_ok_and(|kind| kind.is_some_and(|kind| kind.ends_with("BaseModel")));
        let named = object.object("metadata").and_then(|mut metadata| metadata.text("name"));
        is_model && named.is_ok_and(|is| is.as_deref() == Some(name))
    });
    let Some(found) = found else {
        let says = format!(
            "{name} is a BaseModel, and not in this file: an administrator adds {name} with the address of the model to the \
             operator's list of names, or the program gets the name in MODEL"
        );
        ours.notes.note(field, says);
        place::source(ours, field, "model", name);
        return Ok(());
    };
    let mut spec = found.clone().object("spec")?;
    let mut storage = spec.object("storage")?;
    for other in spec.rest().keys() {
        ours.notes.note(format!("{name}.spec.{other}"), "describes the model, which the program reads by itself");
    }
    storage.path = format!("{name}.spec.storage");
    let Some(uri) = storage.text("storageUri")? else {
        return Err(ConvertError(format!("the BaseModel {name} has no spec.storage.storageUri")));
    };
    let uri = oracle(ours, field, &uri);
    place::source(ours, field, "model", &uri);
    secret(ours, &mut storage)?;
    parameters(ours, &mut storage, "MODEL")?;
    if storage.take("path").is_some() {
        ours.notes.note(storage.at("path"), "is a folder of each node: here the model is in the cache");
    }
    storage.left(&mut ours.notes);
    Ok(())
}

/// Returns Oracle's address with its namespace. In OME `oci://` is never a registry.
fn oracle(ours: &mut ConvertedJob, field: &str, uri: &str) -> String {
    let Some(rest) = uri.strip_prefix("oci://").filter(|rest| !rest.starts_with("n/")) else { return uri.to_owned() };
    let Some(namespace) = &ours.oci_namespace else {
        ours.notes.note(field, "is in Oracle Object Storage: name the namespace by --oci-namespace");
        return uri.to_owned();
    };
    // Both forms are in use: with the namespace first, and without.
    let below = rest.strip_prefix(&format!("{namespace}/")).unwrap_or(rest);
    let (bucket, path) = below.split_once('/').unwrap_or((below, ""));
    format!("oci://n/{namespace}/b/{bucket}/o/{path}")
}

fn secret(ours: &mut ConvertedJob, storage: &mut Fields) -> Result<(), ConvertError> {
    for key in ["storageKey", "key"] {
        if let Some(secret) = storage.text(key)? {
            place::credentials(ours, &storage.at(key), &secret);
        }
    }
    Ok(())
}

/// Converts the parameters of a storage. The region is the client's, and the others are variables of the program.
fn parameters(ours: &mut ConvertedJob, storage: &mut Fields, of: &str) -> Result<(), ConvertError> {
    let parameters = storage.object("parameters")?;
    for (name, value) in parameters.clone().rest() {
        let field = parameters.at(&name);
        let Some(value) = value.as_str().map(str::to_owned).or_else(|| value.as_i64().map(|n| n.to_string())) else {
            ours.notes.lost(field, "is no text");
            continue;
        };
        if name == "region" {
            ours.notes.note(field, format!("put it into the Secret of the credentials: AWS_REGION: {value}"));
            continue;
        }
        let word: String =
            name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect();
        let variable = format!("{of}_{word}");
        ours.add_env(&variable, &value);
        ours.notes.note(field, format!("is the variable {variable} of the program"));
    }
    Ok(())
}
