//! The CRD: the derived schema, made small and complete enough to apply.

use super::TrainingJob;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use schemars::{Schema, SchemaGenerator, json_schema};

/// The CustomResourceDefinition as it is applied.
#[must_use]
pub fn crd() -> CustomResourceDefinition {
    TrainingJob::crd()
}

/// An object whose fields the API server keeps without a schema: [`crate::plan`] checks it.
pub(super) fn free_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}
