//! The ConfigMap: the job in files, for programs that would rather read files.

use super::{metadata, names};
use crate::plan::{Plan, Source};
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

pub(super) fn config(plan: &Plan) -> ConfigMap {
    let hyperparameters: Map<String, Value> =
        plan.hyperparameters.iter().map(|h| (h.name.clone(), h.value.clone())).collect();
    let hyperparameters = Value::Object(hyperparameters).to_string();
    let data = [
        ("model", source(&plan.storage.model, super::pod::MODEL)),
        ("dataset", source(&plan.storage.dataset, super::pod::DATASET)),
        ("num_workers", plan.gang.size().to_string()),
        ("gpus_per_worker", plan.gang.leading().gpus.to_string()),
        ("framework", super::framework::name(plan.gang.rendezvous.framework).to_owned()),
        ("backend", super::environment::backend(plan.gang.rendezvous.backend).to_owned()),
        // The first attempt's: what holds for an attempt is only in its environment.
        ("master_port", plan.gang.rendezvous.master_port.to_string()),
        ("hyperparameters", hyperparameters.clone()),
        ("hyperparameters.json", hyperparameters),
    ];
    ConfigMap {
        metadata: metadata(plan, names::config_name(&plan.identity.name)),
        data: Some(data.into_iter().map(|(key, value)| (key.to_owned(), value)).collect::<BTreeMap<_, _>>()),
        ..ConfigMap::default()
    }
}

/// A name, or where its folder is mounted.
pub(super) fn source(source: &Source, mounted_at: &str) -> String {
    match source {
        Source::Name(name) => name.clone(),
        Source::Claim(_) => mounted_at.to_owned(),
    }
}
