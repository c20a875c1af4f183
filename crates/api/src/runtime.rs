//! Templates of jobs: what platform engineers write once, and jobs refer to.

use super::{GROUP, VERSION, schema};
use kube::core::ApiResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// A kind of template.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RuntimeKind {
    /// For the jobs of all namespaces.
    ClusterTrainingRuntime,
    /// For those of its own.
    TrainingRuntime,
}

impl RuntimeKind {
    /// Both.
    pub const ALL: [Self; 2] = [Self::ClusterTrainingRuntime, Self::TrainingRuntime];

    /// As it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ClusterTrainingRuntime => "ClusterTrainingRuntime",
            Self::TrainingRuntime => "TrainingRuntime",
        }
    }

    /// Its resource; objects of it are read as `DynamicObject`s.
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

    /// Name of its resource.
    #[must_use]
    pub const fn plural(self) -> &'static str {
        match self {
            Self::ClusterTrainingRuntime => "clustertrainingruntimes",
            Self::TrainingRuntime => "trainingruntimes",
        }
    }
}

/// The template that a job begins with.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RuntimeRef {
    /// ClusterTrainingRuntime, for all namespaces, or TrainingRuntime, of the job's own namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "RuntimeKind")]
    pub kind: Option<RuntimeKind>,
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// The template as it was when the job took it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TakenRuntime {
    /// Its kind.
    pub kind: RuntimeKind,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Its generation, which grows with each change of it.
    pub generation: i64,
    /// Its spec.
    #[schemars(schema_with = "schema::anything")]
    pub spec: Value,
}

impl TakenRuntime {
    /// The template that an object is.
    #[must_use]
    pub fn of(kind: RuntimeKind, object: &Value) -> Self {
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

    /// As people call it: `ClusterTrainingRuntime gpu`.
    #[must_use]
    pub fn called(&self) -> String {
        format!("{} {}", self.kind.as_str(), self.name)
    }
}
