//! `podTemplate`: decoding, and checks that it can't break the gang.
//!
//! The schema can't validate it, because a typed pod template alone exceeds the size limit of a CRD. This module reports
//! wrong types, unknown fields and missing fields, all of them with their paths.

use super::{Refusals, environment, labels};
use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec};
use serde_json::{Map, Value};

/// Name of the container with the user's program.
pub const TRAINING: &str = "training";
/// Name of the init container that delivers the agent, if there is one.
pub const AGENT: &str = "agent";
/// The init container that fetches content, in the pod of a job without a cache.
pub const FETCH: &str = "trainingjob-fetch";

#[expect(clippy::expect_used, reason = "plain data of ours, which always has this form")]
/// Decodes and checks a template. `field` is its path, such as `spec.podTemplate`.
pub(super) fn resolve(field: &str, value: &Value, errors: &mut Refusals) -> PodTemplateSpec {
    let before = errors.0.len();
    wrong_types(field, value, &mut Vec::new(), errors);
    if errors.0.len() > before {
        return PodTemplateSpec::default();
    }
    let template: PodTemplateSpec = match serde_json::from_value(value.clone()) {
        Ok(template) => template,
        Err(error) => {
            errors.push(field, error.to_string());
            return PodTemplateSpec::default();
        }
    };
    let decoded = serde_json::to_value(&template).expect("a pod template is plain data");
    compare(field, field, value, &decoded, errors);
    if errors.is_full() {
        return template;
    }
    check_metadata(field, &template, errors);
    if let Some(pod) = &template.spec {
        check_pod(field, pod, errors);
        check_containers(field, pod, errors);
    }
    template
}

/// A step from a value to one within it.
#[derive(Clone)]
enum PathPart {
    Key(String),
    Index(usize),
}

/// Reports each innermost value that has the wrong type.
///
/// A decoder stops at its first error without the path. Each value is therefore decoded alone in an otherwise empty
/// template, in which missing fields decode to empty values.
fn wrong_types(field: &str, value: &Value, path: &mut Vec<PathPart>, errors: &mut Refusals) {
    let Err(error) = serde_json::from_value::<PodTemplateSpec>(alone(value, path)) else { return };
    let inner: Vec<(PathPart, &Value)> = match value {
        Value::Object(fields) => fields.iter().map(|(key, field)| (PathPart::Key(key.clone()), field)).collect(),
        Value::Array(items) => items.iter().enumerate().map(|(index, item)| (PathPart::Index(index), item)).collect(),
        _ => Vec::new(),
    };
    let empty = if value.is_array() { Value::Array(Vec::new()) } else { Value::Object(Map::new()) };
    if inner.is_empty() || serde_json::from_value::<PodTemplateSpec>(alone(&empty, path)).is_err() {
        errors.push(written(field, path), error.to_string());
        return;
    }
    for (step, value) in inner {
        if errors.is_full() {
            return;
        }
        path.push(step);
        wrong_types(field, value, path, errors);
        path.pop();
    }
}

/// A value that has `value` at `path` and nothing else.
fn alone(value: &Value, path: &[PathPart]) -> Value {
    path.iter().rev().fold(value.clone(), |inner, step| match step {
        PathPart::Key(key) => Value::Object(Map::from_iter([(key.clone(), inner)])),
        PathPart::Index(_) => Value::Array(vec![inner]),
    })
}

fn written(field: &str, path: &[PathPart]) -> String {
    path.iter().fold(field.to_owned(), |path, step| match step {
        PathPart::Key(key) => format!("{path}.{key}"),
        PathPart::Index(index) => format!("{path}[{index}]"),
    })
}

/// Reports the fields that decoding has dropped (unknown) or added (missing) at `path`. `field` is the path of the
/// template.
fn compare(field: &str, path: &str, given: &Value, decoded: &Value, errors: &mut Refusals) {
    match (given, decoded) {
        (Value::Object(given), Value::Object(decoded)) => {
            for (key, value) in given.iter().filter(|(_, value)| !value.is_null()) {
                if errors.is_full() {
                    return;
                }
                match decoded.get(key) {
                    Some(decoded) => compare(field, &format!("{path}.{key}"), value, decoded, errors),
                    None => errors.push(format!("{path}.{key}"), "unknown field: check its name and its indentation"),
                }
            }
            for key in decoded.keys() {
                let missing = given.get(key).is_none_or(Value::is_null);
                // A template laid over another one needs no containers.
                if missing && !(key == "containers" && path.strip_prefix(field) == Some(".spec")) {
                    errors.push(format!("{path}.{key}"), "is missing and has no default");
                }
            }
        }
        (Value::Array(given), Value::Array(decoded)) => {
            for (index, (given, decoded)) in given.iter().zip(decoded).enumerate() {
                compare(field, &format!("{path}[{index}]"), given, decoded, errors);
            }
        }
        _ => {}
    }
}

#[expect(clippy::expect_used, reason = "plain data of ours, which always has this form")]
fn check_metadata(field: &str, template: &PodTemplateSpec, errors: &mut Refusals) {
    let Some(metadata) = &template.metadata else { return };
    for (list, keys) in [("labels", &metadata.labels), ("annotations", &metadata.annotations)] {
        for key in keys.iter().flatten().map(|(key, _)| key) {
            if labels::is_reserved(key) {
                errors.push(format!("{field}.metadata.{list}.{key}"), "is set by the operator: remove it");
            }
        }
    }
    let rest = serde_json::to_value(metadata).expect("metadata is plain data");
    for key in rest.as_object().into_iter().flat_map(Map::keys) {
        if key != "labels" && key != "annotations" {
            errors.push(format!("{field}.metadata.{key}"), "can't be set for workers: only labels and annotations can");
        }
    }
}

fn check_pod(field: &str, pod: &PodSpec, errors: &mut Refusals) {
    let mut refuse = |name: &str, wrong: bool, why: &str| {
        if wrong {
            errors.push(format!("{field}.spec.{name}"), why);
        }
    };
    refuse(
        "restartPolicy",
        pod.restart_policy.as_deref().is_some_and(|policy| policy != "Never"),
        "must be Never, since a worker that comes back alone can't join its gang: use spec.failurePolicy",
    );
    refuse("hostname", pod.hostname.is_some(), "is how the workers find each other: remove it");
    refuse("hostnameOverride", pod.hostname_override.is_some(), "is how the workers find each other: remove it");
    refuse("subdomain", pod.subdomain.is_some(), "is how the workers find each other: remove it");
    refuse(
        "activeDeadlineSeconds",
        pod.active_deadline_seconds.is_some(),
        "would end single workers: use spec.failurePolicy.activeDeadlineSeconds",
    );
    refuse("ephemeralContainers", pod.ephemeral_containers.is_some(), "can't be in a template: use kubectl debug");
    refuse(
        "resources",
        pod.resources.is_some(),
        "can't be set for the whole pod: use spec.resources, from which GPUs and processes are counted",
    );
    refuse("os", pod.os.as_ref().is_some_and(|os| os.name != "linux"), "must be linux: the agent runs nowhere else");
}

fn check_containers(field: &str, pod: &PodSpec, errors: &mut Refusals) {
    for (index, container) in pod.containers.iter().enumerate() {
        let path = format!("{field}.spec.containers[{index}]");
        if container.name == TRAINING {
            check_training(&path, container, errors);
        } else {
            check_image(&path, container, errors);
        }
        check_twice(&path, &pod.containers, index, errors);
    }
    let init = pod.init_containers.as_deref().unwrap_or_default();
    for (index, container) in init.iter().enumerate() {
        let path = format!("{field}.spec.initContainers[{index}]");
        if [AGENT, FETCH, TRAINING].contains(&container.name.as_str()) {
            errors.push(
                format!("{path}.name"),
                format!("{:?} is the operator's own: give it another name", container.name),
            );
        }
        check_image(&path, container, errors);
        check_twice(&path, init, index, errors);
    }
}

fn check_training(path: &str, training: &Container, errors: &mut Refusals) {
    let mut refuse = |field: &str, wrong: bool, why: &str| {
        if wrong {
            errors.push(format!("{path}.{field}"), why);
        }
    };
    refuse("command", training.command.is_some(), "would start the program without its agent: use spec.command");
    refuse("args", training.args.is_some(), "would start the program without its agent: use spec.args");
    let counted = training.resources.as_ref().is_some_and(|r| r.requests.is_some() || r.limits.is_some());
    refuse("resources", counted, "use spec.resources, from which GPUs and processes are counted");
    let rules = "is how an agent that was killed comes back to its gang: use spec.failurePolicy";
    refuse("restartPolicy", training.restart_policy.is_some(), rules);
    refuse("restartPolicyRules", training.restart_policy_rules.is_some(), rules);
    let message = "is how the agent tells why a worker ended: remove it";
    refuse("terminationMessagePath", training.termination_message_path.is_some(), message);
    refuse("terminationMessagePolicy", training.termination_message_policy.is_some(), message);
    environment::check(&format!("{path}.env"), training.env.as_deref().unwrap_or_default(), errors);
}

fn check_image(path: &str, container: &Container, errors: &mut Refusals) {
    if container.image.as_deref().unwrap_or_default().is_empty() {
        errors.push(format!("{path}.image"), "is missing and has no default");
    }
}

fn check_twice(path: &str, containers: &[Container], index: usize, errors: &mut Refusals) {
    let name = &containers[index].name;
    if containers[..index].iter().any(|earlier| earlier.name == *name) && !name.is_empty() {
        errors.push(format!("{path}.name"), format!("{name:?} stands here twice: write it as one container"));
    }
}
