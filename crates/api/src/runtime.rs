//! Templates for jobs: platform engineers write them once, and jobs refer to them.

use super::{GROUP, VERSION, schema};
use kube::core::ApiResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Kind of a template.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RuntimeKind {
    /// Template for the jobs of all namespaces.
    ClusterTrainingRuntime,
    /// Template for the jobs of its own namespace.
    TrainingRuntime,
}

impl RuntimeKind {
    /// Both kinds.
    pub const ALL: [Self; 2] = [Self::ClusterTrainingRuntime, Self::TrainingRuntime];

    /// The kind as written in manifests.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ClusterTrainingRuntime => "ClusterTrainingRuntime",
            Self::TrainingRuntime => "TrainingRuntime",
        }
    }

    /// API resource of the kind; its objects are read as `DynamicObject`s.
    #[must_use]
    pub fn resource(self) -> ApiResource {
        ApiResource {
            group: GROUP.to_owned(),
            version: VERSION.to_owned(),
            api_version: format!("{GROUP}/{VERSION}"),
            kind: self.as_str().to_owned(),
            plural: self.plural().to_owned(),
        }
    }

    /// Plural name of the API resource.
    #[must_use]
    pub const fn plural(self) -> &'static str {
        match self {
            Self::ClusterTrainingRuntime => "clustertrainingruntimes",
            Self::TrainingRuntime => "trainingruntimes",
        }
    }
}

/// Reference to the template that a job inherits from.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RuntimeRef {
    /// Kind of the template. A ClusterTrainingRuntime serves all namespaces; a TrainingRuntime serves its own namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "RuntimeKind")]
    pub kind: Option<RuntimeKind>,
    /// Name of the template.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Values of the template's parameters by name, at most 32. A parameter without a default requires one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub parameters: BTreeMap<String, String>,
}

/// Parameter of a template. Its value takes the place of `$<params.NAME>` in text of the template's spec.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RuntimeParameter {
    /// Name in `$<params.NAME>` and in `runtimeRef.parameters` of a job.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Purpose of the parameter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub description: Option<String>,
    /// Value for jobs that give none. Without it each job must give a value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub default: Option<String>,
    /// Allowed values, at most 64. Without it every text is allowed.
    #[serde(default, rename = "enum", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 1024)))]
    pub allowed: Vec<String>,
}

/// Checks of a [`RuntimeParameter`] by the API server: the CEL rule, and the message.
pub(super) const PARAMETER_RULES: [(&str, &str); 2] = [
    (
        "self.name.matches('^[A-Za-z][-_A-Za-z0-9]*$')",
        "the name of a parameter has another character than letters, digits, '-' and '_', or does not begin with a letter: \
         write a name such as gpu-type",
    ),
    (
        "!has(self.default) || !has(self.enum) || self.default in self.enum",
        "the default of a parameter is not in its enum: add it to enum, or choose another default",
    ),
];

/// Copy of the template, taken when the job was created.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct AppliedRuntime {
    /// Kind of the template.
    pub kind: RuntimeKind,
    /// Name of the template.
    pub name: String,
    /// UID of the template.
    pub uid: String,
    /// Generation of the template, which increases with each change to it.
    pub generation: i64,
    /// Spec of the template.
    #[schemars(schema_with = "schema::anything")]
    pub spec: Value,
}

impl AppliedRuntime {
    /// Copies the template from an object.
    #[must_use]
    pub fn from_object(kind: RuntimeKind, object: &Value) -> Self {
        let metadata = &object["metadata"];
        let text = |name: &str| metadata[name].as_str().unwrap_or_default().to_owned();
        Self {
            kind,
            name: text("name"),
            uid: text("uid"),
            generation: metadata["generation"].as_i64().unwrap_or_default(),
            spec: object.get("spec").filter(|spec| spec.is_object()).cloned().unwrap_or_else(|| json!({})),
        }
    }

    /// Kind and name for messages: `ClusterTrainingRuntime gpu`.
    #[must_use]
    pub fn called(&self) -> String {
        format!("{} {}", self.kind.as_str(), self.name)
    }
}
