//! Merge of a job's spec with the template that it was created with. The job's fields take precedence.

use super::{Refusals, parameters, template};
use api::{AppliedRuntime, NOT_IN_RUNTIMES, RuntimeParameter, TrainingJob, TrainingJobSpec};
use k8s_openapi::DeepMerge;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Objects that can't be merged field by field. The job's object replaces the template's.
const WHOLE: [&str; 2] = ["checkpoint.storage", "scheduling.affinity"];
/// Lists with named entries, in which the job's entries replace those of the template. Each row has the list, the field
/// with the name, and whether entries are merged field by field. In other lists the job's list replaces the template's.
const BY_NAME: [(&str, &str, bool); 6] = [
    ("env", "name", false),
    ("volumes", "name", false),
    ("volumeMounts", "mountPath", false),
    ("imagePullSecrets", "name", false),
    ("roles", "name", true),
    ("roles.env", "name", false),
];

/// Returns the job merged with its template. A job without a template is returned unchanged.
///
/// # Errors
/// If the template has an unknown field or a wrong type, has not been copied yet, or its parameters have no valid values.
pub fn with_runtime(job: &TrainingJob) -> Result<Cow<'_, TrainingJob>, String> {
    let Some(named) = &job.spec.runtime_ref else { return Ok(Cow::Borrowed(job)) };
    let inherited = job.status.as_ref().and_then(|status| status.inherited.as_ref());
    let Some(taken) = inherited.and_then(|inherited| inherited.runtime.as_ref()) else {
        return Err(format!("{} {} was not taken yet", named.kind().as_str(), named.name));
    };
    let spec = merged(&job.spec, taken)?;
    Ok(Cow::Owned(TrainingJob { spec, metadata: job.metadata.clone(), status: job.status.clone() }))
}

/// Returns the spec of a job merged with its template.
///
/// # Errors
/// In the same cases as [`with_runtime`].
pub fn merged(spec: &TrainingJobSpec, taken: &AppliedRuntime) -> Result<TrainingJobSpec, String> {
    let mut own = serde_json::to_value(spec).map_err(|error| error.to_string())?;
    let mut base = taken.spec.clone();
    if let Some(base) = base.as_object_mut() {
        base.retain(|field, _| !NOT_IN_RUNTIMES.contains(&field.as_str()));
    }
    let parameters = base.as_object_mut().and_then(|base| base.remove("parameters")).unwrap_or_else(|| json!([]));
    let parameters: Vec<RuntimeParameter> = serde_path_to_error::deserialize(parameters)
        .map_err(|error| format!("spec.parameters{}: {}", error.path(), error.inner()))?;
    let given = spec.runtime_ref.as_ref().map(|named| &named.parameters);
    parameters::expand(&mut base, &parameters, given.unwrap_or(&BTreeMap::new()))?;
    if let Some(own) = own.as_object_mut() {
        own.remove("runtimeRef");
    }
    let merged = merge("", &base, own);
    serde_path_to_error::deserialize(merged).map_err(|error| {
        format!("{} has what is no field of a TrainingJob: spec.{}: {}", taken.called(), error.path(), error.inner())
    })
}

/// Merges `base` into `own`, which takes precedence. `path` consists of field names only.
fn merge(path: &str, base: &Value, own: Value) -> Value {
    match (base, own) {
        (_, own) if WHOLE.contains(&path) => own,
        (base @ Value::Object(_), own @ Value::Object(_)) if path == "podTemplate" || path == "roles.podTemplate" => {
            pod_templates(base, own)
        }
        (Value::Object(base), Value::Object(own)) => Value::Object(objects(path, base, own)),
        (Value::Array(base), Value::Array(own)) => Value::Array(lists(path, base, own)),
        (_, own) => own,
    }
}

fn objects(path: &str, base: &Map<String, Value>, own: Map<String, Value>) -> Map<String, Value> {
    let mut all = base.clone();
    // Like an image's default arguments, the template's do not fit another command.
    if own.contains_key("command") && ["", "roles"].contains(&path) {
        all.remove("args");
    }
    for (key, value) in own {
        let path = format!("{path}.{key}");
        let value = match base.get(&key) {
            Some(base) => merge(path.trim_start_matches('.'), base, value),
            None => value,
        };
        all.insert(key, value);
    }
    all
}

fn lists(path: &str, base: &[Value], own: Vec<Value>) -> Vec<Value> {
    let Some((_, name, deep)) = BY_NAME.iter().find(|(list, ..)| *list == path) else { return own };
    let mut all = base.to_vec();
    for entry in own {
        match all.iter_mut().find(|known| known[name] == entry[name]) {
            Some(known) if *deep => *known = merge(path, &known.take(), entry),
            Some(known) => *known = entry,
            None => all.push(entry),
        }
    }
    all
}

/// Performs a strategic merge like the API server: containers, volumes and similar lists are merged by name.
#[expect(clippy::expect_used, reason = "plain data of ours, which always has this form")]
fn pod_templates(base: &Value, own: Value) -> Value {
    let (base_template, own_template) = (decoded(base), decoded(&own));
    match (base_template, own_template) {
        (Some(mut base), Some(own)) => {
            base.merge_from(own);
            serde_json::to_value(base).expect("a pod template is plain data")
        }
        // The check of the whole spec reports the errors in either.
        _ => merge("", base, own),
    }
}

/// The pod template, if all of it can be decoded.
fn decoded(value: &Value) -> Option<PodTemplateSpec> {
    let mut errors = Refusals::default();
    let template = template::resolve("podTemplate", value, &mut errors);
    errors.0.is_empty().then_some(template)
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::RuntimeKind;

    fn taken(spec: Value) -> AppliedRuntime {
        AppliedRuntime {
            kind: RuntimeKind::ClusterTrainingRuntime,
            name: "gpu".into(),
            uid: "u".into(),
            generation: 1,
            spec,
        }
    }

    #[expect(clippy::needless_pass_by_value, reason = "takes what its callers need no more")]
    fn spec(more: Value) -> TrainingJobSpec {
        let mut spec = json!({ "model": "m", "dataset": "d", "runtimeRef": { "name": "gpu" } });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(spec).unwrap()
    }

    fn merged_value(base: Value, own: Value) -> Value {
        serde_json::to_value(merged(&spec(own), &taken(base)).unwrap()).unwrap()
    }

    #[test]
    fn job_overrides_its_template() {
        let base = json!({
            "numWorkers": 4, "image": "base:1", "framework": "jax", "command": ["a"], "args": ["b"],
            "env": [{ "name": "A", "value": "1" }, { "name": "B", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } }],
            "resources": { "limits": { "cpu": "8", "memory": "8Gi" }, "requests": { "cpu": "4" } },
            "checkpoint": { "retention": 9, "storage": { "type": "s3", "bucket": "b" } },
            "scheduling": { "nodeSelector": { "a": "1" }, "tolerations": [{ "key": "x" }] },
            "roles": [{ "name": "ps", "replicas": 2, "args": ["p"], "env": [{ "name": "C", "value": "1" }] }],
        });
        let own = json!({
            "numWorkers": 2, "command": ["mine"],
            "env": [{ "name": "D", "value": "4" }, { "name": "B", "value": "2" }],
            "resources": { "limits": { "memory": "16Gi" } },
            "checkpoint": { "frequency": 3, "storage": { "type": "pvc", "size": "1Gi" } },
            "scheduling": { "nodeSelector": { "b": "2" }, "tolerations": [{ "key": "y" }] },
            "roles": [{ "name": "ps", "replicas": 3, "env": [{ "name": "C", "value": "2" }] }, { "name": "chief" }],
        });
        let all = merged_value(base, own);
        assert_eq!(
            (&all["numWorkers"], &all["image"], &all["framework"]),
            (&json!(2), &json!("base:1"), &json!("jax"))
        );
        assert_eq!(
            (&all["command"], all.get("args")),
            (&json!(["mine"]), None),
            "a command comes without others' args"
        );
        assert_eq!(
            all["env"],
            json!([{ "name": "A", "value": "1" }, { "name": "B", "value": "2" }, { "name": "D", "value": "4" }])
        );
        assert_eq!(all["resources"], json!({ "limits": { "cpu": "8", "memory": "16Gi" }, "requests": { "cpu": "4" } }));
        assert_eq!(
            all["checkpoint"],
            json!({ "retention": 9, "frequency": 3, "storage": { "type": "pvc", "size": "1Gi" } })
        );
        assert_eq!(
            all["scheduling"],
            json!({ "nodeSelector": { "a": "1", "b": "2" }, "tolerations": [{ "key": "y" }] })
        );
        assert_eq!(
            all["roles"],
            json!([{ "name": "ps", "replicas": 3, "args": ["p"], "env": [{ "name": "C", "value": "2" }] }, { "name": "chief" }])
        );
        assert_eq!((&all["model"], all.get("runtimeRef")), (&json!("m"), None));
    }

    #[test]
    fn template_may_name_model_and_dataset() {
        let base =
            json!({ "model": "pvc://models/base", "dataset": "pvc://data/base", "numWorkers": 1, "suspend": true });
        let own = json!({ "model": null, "dataset": "mine" });
        let all = merged_value(base, own);
        assert_eq!((&all["model"], &all["dataset"]), (&json!("pvc://models/base"), &json!("mine")));
        assert_eq!(all["suspend"], false, "whether a job is suspended is its own affair");
        let neither = merged_value(json!({ "numWorkers": 1 }), json!({ "model": null, "dataset": null }));
        assert_eq!((neither.get("model"), neither.get("dataset")), (None, None));
    }

    #[test]
    fn template_parameters_get_values_from_job() {
        let base = json!({
            "parameters": [{ "name": "team" }, { "name": "cpu", "default": "4" }],
            "image": "$<params.team>/train:1", "resources": { "limits": { "cpu": "$<params.cpu>" } },
            "podTemplate": { "metadata": { "labels": { "team": "$<params.team>" } } },
        });
        let with = |parameters: Value, more: Value| {
            let mut own = json!({ "runtimeRef": { "name": "gpu", "parameters": parameters } });
            own.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            merged(&spec(own), &taken(base.clone()))
        };
        let all = serde_json::to_value(with(json!({ "team": "vision" }), json!({})).unwrap()).unwrap();
        assert_eq!((&all["image"], &all["resources"]["limits"]["cpu"]), (&json!("vision/train:1"), &json!("4")));
        assert_eq!(all["podTemplate"]["metadata"]["labels"]["team"], "vision");
        let own = with(json!({ "team": "$<params.cpu>" }), json!({ "image": "$<params.cpu>" })).unwrap();
        assert_eq!(own.image.as_deref(), Some("$<params.cpu>"), "the job's own text has no placeholders");
        assert_eq!(
            with(json!({}), json!({})).unwrap_err(),
            "runtimeRef.parameters.team is missing and has no default: write its value"
        );
        let wrong = merged(&spec(json!({})), &taken(json!({ "parameters": { "a": 1 } }))).unwrap_err();
        assert!(wrong.starts_with("spec.parameters"), "{wrong}");
    }

    #[test]
    fn pod_templates_are_merged_by_name() {
        let base = json!({ "podTemplate": {
            "metadata": { "labels": { "team": "a", "tier": "x" } },
            "spec": {
                "hostIPC": true, "containers": [{ "name": "proxy", "image": "p:1" }, { "name": "training", "workingDir": "/a" }],
                "volumes": [{ "name": "shm", "emptyDir": { "medium": "Memory" } }],
            },
        } });
        let own = json!({ "podTemplate": {
            "metadata": { "labels": { "tier": "y" } },
            "spec": { "containers": [{ "name": "training", "tty": true }] },
        } });
        let all = &merged_value(base.clone(), own)["podTemplate"];
        assert_eq!(all["metadata"]["labels"], json!({ "team": "a", "tier": "y" }));
        assert_eq!(
            all["spec"]["containers"],
            json!([{ "name": "proxy", "image": "p:1" }, { "name": "training", "workingDir": "/a", "tty": true }])
        );
        assert_eq!((&all["spec"]["hostIPC"], all["spec"]["volumes"].as_array().map(Vec::len)), (&json!(true), Some(1)));
        // A wrong value stays, and is reported with its path.
        let wrong = json!({ "podTemplate": { "spec": { "dnsPolicy": 1 } } });
        let all =
            &merged_value(wrong.clone(), json!({ "podTemplate": { "spec": { "hostIPC": true } } }))["podTemplate"];
        assert_eq!(all["spec"], json!({ "dnsPolicy": 1, "hostIPC": true }));
        assert_eq!(merged_value(wrong, json!({}))["podTemplate"]["spec"]["dnsPolicy"], 1);
        assert_eq!(merged_value(base.clone(), json!({}))["podTemplate"], base["podTemplate"]);
    }

    #[test]
    fn unreadable_template_is_named() {
        let error = merged(&spec(json!({})), &taken(json!({ "numWorkers": "two" }))).unwrap_err();
        assert!(
            error.starts_with("ClusterTrainingRuntime gpu has what is no field of a TrainingJob: spec.numWorkers: ")
        );
        // Fields that a template may not have are ignored.
        let all = merged_value(json!({ "model": "x", "suspend": true, "numWorkers": 3 }), json!({}));
        assert_eq!((&all["model"], &all["suspend"]), (&json!("m"), &json!(false)));
    }

    #[test]
    fn job_without_template_is_unchanged() {
        let mut job = TrainingJob::new(
            "x",
            serde_json::from_value(json!({ "model": "m", "dataset": "d", "numWorkers": 1 })).unwrap(),
        );
        assert!(matches!(with_runtime(&job), Ok(Cow::Borrowed(_))));
        job.spec = spec(json!({}));
        assert_eq!(with_runtime(&job).unwrap_err(), "ClusterTrainingRuntime gpu was not taken yet");
    }
}
