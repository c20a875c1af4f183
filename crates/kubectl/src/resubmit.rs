//! `resubmit`: creates a job again with another spec, in its place or under another name.

use super::cluster::Cluster;
use super::code;
use super::run::{LETTERS, check_spec};
use super::set::Assignment;
use anyhow::{anyhow, bail};
use api::{State, TrainingJob};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams, PostParams};
use plan::labels::{RESTART_FROM, RESTART_REQUESTED};
use plan::names::code_name;
use protocol::code::{PARTS, part_key};
use serde_json::{Map, Value, json};

/// Annotations of one object that do not apply to another one.
const OF_OBJECT: [&str; 3] = ["kubectl.kubernetes.io/last-applied-configuration", RESTART_REQUESTED, RESTART_FROM];

/// Changes a job without running programs, or creates it again under another name. Returns what was done.
///
/// # Errors
/// If the job runs and no name was given, or the API server refuses the spec.
pub async fn resubmit(
    cluster: &Cluster,
    name: &str,
    other: Option<&str>,
    changes: &[Assignment],
) -> anyhow::Result<(String, String)> {
    let job = cluster.find(name).await?;
    let namespace = job.namespace().unwrap_or_default();
    let old = serde_json::to_value(&job.spec)?;
    let mut new = old.clone();
    for change in changes {
        change.apply(&mut new).map_err(|wrong| anyhow!(wrong))?;
    }
    check_spec(&new)?;
    let state = job.status.as_ref().and_then(|status| status.state);
    let has_started = job.status.as_ref().is_some_and(|status| status.start_time.is_some());
    match (state, other) {
        (_, Some(other)) => create(cluster, &job, other, new).await,
        (Some(State::Completed), None) => create(cluster, &job, &next_name(name), new).await,
        (Some(State::Failed), None) if changes.is_empty() => {
            bail!("{name} has failed; to restart it unchanged: kubectl trainingjob restart {name} -n {namespace}")
        }
        (Some(State::Failed), None) => {
            change(cluster, &job, &old, &new).await?;
            Ok((name.to_owned(), format!("{name} starts again with the changed spec and a new restart budget")))
        }
        (Some(State::Suspended), None) => {
            change(cluster, &job, &old, &new).await?;
            let resume = format!("kubectl trainingjob resume {name} -n {namespace}");
            Ok((name.to_owned(), format!("{name} is changed; to resume it: {resume}")))
        }
        (_, None) if !has_started => {
            change(cluster, &job, &old, &new).await?;
            Ok((name.to_owned(), format!("{name} is changed, and starts with the new spec")))
        }
        (_, None) => bail!(
            "{name} is running: stop it first (kubectl trainingjob stop {name} -n {namespace} --wait), or create another job with \
             --name"
        ),
    }
}

/// Changes the spec of this job, if the job is still as it was read.
async fn change(cluster: &Cluster, job: &TrainingJob, old: &Value, new: &Value) -> anyhow::Result<()> {
    let (name, namespace) = (job.name_any(), job.namespace().unwrap_or_default());
    let Some(spec) = difference(old, new) else { return Ok(()) };
    let metadata = json!({ "uid": job.uid() });
    let what = format!("change TrainingJob {name} in namespace {namespace}");
    let api = cluster.api::<TrainingJob>(&namespace);
    let patch = Patch::Merge(json!({ "metadata": metadata, "spec": spec }));
    cluster.ask(&what, api.patch(&name, &PatchParams::default(), &patch)).await.map(drop)
}

/// Returns the merge patch from one value to the other, or `None` if they are equal.
fn difference(old: &Value, new: &Value) -> Option<Value> {
    let (Value::Object(old), Value::Object(new)) = (old, new) else { return (old != new).then(|| new.clone()) };
    let mut patch = Map::new();
    for (field, value) in new {
        let change = old.get(field).map_or_else(|| Some(value.clone()), |old| difference(old, value));
        patch.extend(change.map(|change| (field.clone(), change)));
    }
    patch.extend(old.keys().filter(|field| !new.contains_key(*field)).map(|field| (field.clone(), Value::Null)));
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// Creates the job under another name, with its code.
async fn create(cluster: &Cluster, job: &TrainingJob, name: &str, spec: Value) -> anyhow::Result<(String, String)> {
    let namespace = job.namespace().unwrap_or_default();
    let archive = if spec.get("code").is_some() { Some(archive(cluster, job).await?) } else { None };
    let mut copy = TrainingJob::new(name, serde_json::from_value(spec)?);
    copy.spec.suspend = false;
    copy.metadata.namespace = Some(namespace.clone());
    copy.metadata.labels.clone_from(&job.metadata.labels);
    let annotations = job.annotations().iter().filter(|(key, _)| !OF_OBJECT.contains(&key.as_str()));
    copy.metadata.annotations = Some(annotations.map(|(key, value)| (key.clone(), value.clone())).collect());
    let what = format!("create TrainingJob {name} in namespace {namespace}");
    let api = cluster.api::<TrainingJob>(&namespace);
    let created = cluster.ask(&what, api.create(&PostParams::default(), &copy)).await?;
    if let (Some(archive), Some(code)) = (archive, &copy.spec.code) {
        let digest = code.digest.clone();
        let packed = code::Packed { archive, digest, files: 0, skipped: Vec::new() };
        code::send(cluster, &created, &packed).await?;
    }
    let follow = format!("kubectl trainingjob attach {name} -n {namespace}");
    Ok((name.to_owned(), format!("{name} is created from {}; to follow it: {follow}", job.name_any())))
}

/// Reads the archive of a job's code.
async fn archive(cluster: &Cluster, job: &TrainingJob) -> anyhow::Result<Vec<u8>> {
    let (name, namespace) = (job.name_any(), job.namespace().unwrap_or_default());
    let api = cluster.api::<ConfigMap>(&namespace);
    let mut archive = Vec::new();
    for part in 0..PARTS {
        let map = code_name(&name, part);
        let what = format!("get ConfigMap {map} in namespace {namespace}");
        let found = cluster.ask(&what, api.get_opt(&map)).await?;
        let bytes = found.and_then(|found| found.binary_data?.remove(&part_key(part)));
        match bytes {
            Some(bytes) => archive.extend(bytes.0),
            None if part == 0 => {
                bail!("ConfigMap {map} with the code of {name} is gone: create the job with run --code")
            }
            None => break,
        }
    }
    Ok(archive)
}

/// Returns another name for a job of this name.
fn next_name(name: &str) -> String {
    let letter = |_: u32| char::from(LETTERS[rand::random_range(0..LETTERS.len())]);
    let suffix: String = (0..5).map(letter).collect();
    // A name that was made in this way has room for another suffix.
    let stem: String = name.chars().take(40).collect();
    format!("{}-{suffix}", stem.trim_end_matches('-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patch_contains_only_differences() {
        let old = json!({ "image": "a", "args": ["x"], "checkpoint": { "retention": 3, "frequency": 1 }, "env": [] });
        assert_eq!(difference(&old, &old), None);
        let mut new = old.clone();
        new["image"] = json!("b");
        new["args"] = json!(["x", "y"]);
        new["checkpoint"] = json!({ "retention": 3 });
        new["resources"] = json!({ "limits": { "memory": "8Gi" } });
        new.as_object_mut().unwrap().remove("env");
        let expected = json!({
            "image": "b", "args": ["x", "y"], "checkpoint": { "frequency": null }, "env": null,
            "resources": { "limits": { "memory": "8Gi" } },
        });
        assert_eq!(difference(&old, &new), Some(expected));
    }

    #[test]
    fn next_name_is_valid_and_different() {
        for name in ["bert", &"a".repeat(63)] {
            let other = next_name(name);
            assert!(plan::names::dns_label(&other) && other != name, "{other}");
        }
    }
}
