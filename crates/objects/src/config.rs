//! The ConfigMap: the job in files, for programs that would rather read files.

use super::{metadata, names};
use k8s_openapi::api::core::v1::ConfigMap;
use plan::{Input, Plan};
use protocol::checkpoints::POLICY_FILE;
use protocol::gang::SETUP_FILE;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// What the program finds at `/etc/training-config`; the same for every incarnation.
#[must_use]
pub fn config(plan: &Plan) -> ConfigMap {
    let hyperparameters: Map<String, Value> =
        plan.hyperparameters.iter().map(|h| (h.name.clone(), h.value.clone())).collect();
    let hyperparameters = Value::Object(hyperparameters).to_string();
    let data = [
        ("num_workers", plan.gang.workers().replicas.to_string()),
        ("gpus_per_worker", plan.gang.workers().gpus.to_string()),
        ("framework", plan.gang.rendezvous.framework.as_str().to_owned()),
        ("backend", super::environment::backend(plan.gang.rendezvous.backend).to_owned()),
        // The port of the first attempt. Values of a single attempt are only in its environment.
        ("master_port", plan.gang.rendezvous.master_port.to_string()),
        ("hyperparameters", hyperparameters.clone()),
        ("hyperparameters.json", hyperparameters),
        (SETUP_FILE, super::gang::setup(plan)),
    ];
    let policy = checkpoints(plan).map(|policy| (POLICY_FILE, policy));
    let data: BTreeMap<_, _> =
        sources(plan).chain(data).chain(policy).map(|(key, value)| (key.to_owned(), value)).collect();
    ConfigMap {
        metadata: metadata(plan, names::config_name(&plan.identity.name)),
        data: Some(data),
        ..ConfigMap::default()
    }
}

/// The agents' policy for the checkpoints. It is here and not in the pods, because part of it may change while they
/// run.
#[expect(clippy::expect_used, reason = "plain data of ours, which always has this form")]
fn checkpoints(plan: &Plan) -> Option<String> {
    let policy = &plan.storage.checkpoint.as_ref()?.policy;
    Some(serde_json::to_string(policy).expect("a struct of strings and numbers is JSON"))
}

/// The model and the dataset as the program gets them, as far as the job names them.
fn sources(plan: &Plan) -> impl Iterator<Item = (&str, String)> {
    let named = |input: &&Input| ["model", "dataset"].contains(&input.name.as_str());
    plan.storage.inputs.iter().filter(named).map(|input| (input.name.as_str(), input.value()))
}
