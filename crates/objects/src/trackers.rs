//! What MLflow, Weights & Biases and TensorBoard read in a program's environment.
//!
//! A run is an attempt. The agent, which knows the attempt, completes the run's name.

use super::environment::{literal, var};
use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, SecretKeySelector};
use plan::Plan;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Number of this attempt, in a value; see [`super::environment::MASTER_PORT`].
const ATTEMPT: &str = "$$(ATTEMPT)";

/// Keys of `trackerSecret` that become variables of the same name.
const SECRETS: [&str; 4] =
    ["WANDB_API_KEY", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"];

pub(super) fn env(plan: &Plan) -> Vec<EnvVar> {
    let monitoring = &plan.monitoring;
    let run = format!("{}-attempt-{ATTEMPT}", plan.identity.name);
    let mut env = Vec::new();
    if let Some(mlflow) = &monitoring.mlflow {
        // MLflow takes the tags of a new run from MLFLOW_RUN_CONTEXT, and its name is one of them. MLFLOW_RUN_NAME is
        // for programs that name their run themselves.
        let mut tags: Map<String, Value> = mlflow_tags(&plan.identity.labels).collect();
        tags.insert("mlflow.runName".to_owned(), json!(run));
        tags.insert("training_job".to_owned(), json!(plan.identity.name));
        tags.insert("namespace".to_owned(), json!(plan.identity.namespace));
        tags.insert("attempt".to_owned(), json!(ATTEMPT));
        if let Some(search) = &plan.identity.search {
            // The agent's tracking store creates the run of the search, which is the parent of its trials' runs.
            tags.insert("tuning_job".to_owned(), json!(search.name));
            tags.insert("tuning_job_uid".to_owned(), json!(search.uid));
        }
        env.extend([
            var("MLFLOW_TRACKING_URI", literal(&mlflow.uri)),
            var("MLFLOW_EXPERIMENT_NAME", literal(&mlflow.experiment)),
            var("MLFLOW_RUN_NAME", &run),
            var("MLFLOW_RUN_CONTEXT", Value::Object(tags).to_string()),
            // By default each call waits for minutes for a server that is gone, with GPUs idle. The agent's tracking
            // store decides what the program gets then, see agent/python/trackers.
            var("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2"),
            var("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "1"),
            var("MLFLOW_HTTP_REQUEST_TIMEOUT", "20"),
        ]);
    }
    if let Some(project) = &monitoring.wandb_project {
        env.extend([
            var("WANDB_PROJECT", literal(project)),
            var("WANDB_NAME", &run),
            // Groups the attempts of a job, and the trials of a search.
            var("WANDB_RUN_GROUP", plan.identity.search.as_ref().map_or(&plan.identity.name, |search| &search.name)),
            var("WANDB_TAGS", wandb_tags(plan)),
            // By default the end of a program waits for ever for its last upload.
            var("WANDB_FINISH_TIMEOUT", "300"),
        ]);
    }
    if let Some(secret) = &monitoring.tracker_secret {
        env.extend(SECRETS.map(|key| from_secret(secret, key)));
    }
    if let Some(board) = monitoring.tensorboard.as_ref().and_then(plan::TensorBoard::board_beside_job) {
        env.push(var("TENSORBOARD_LOG_DIR", board.log_dir()));
        // Hugging Face's Trainer uses this name.
        env.push(var("TENSORBOARD_LOGGING_DIR", board.log_dir()));
    }
    env
}

/// The user's labels as tags of a run, except those that MLflow would refuse, or that have a meaning to it or to the
/// agent.
fn mlflow_tags(labels: &BTreeMap<String, String>) -> impl Iterator<Item = (String, Value)> {
    const LONGEST_KEY: usize = 250;
    let is_free = |key: &str| !key.starts_with("mlflow.") && !key.starts_with("tuning_job") && key.len() <= LONGEST_KEY;
    labels.iter().filter(move |(key, _)| is_free(key)).map(|(key, value)| (key.clone(), json!(value)))
}

/// W&B refuses a run with a longer tag.
const LONGEST_WANDB_TAG: usize = 64;

fn wandb_tags(plan: &Plan) -> String {
    let own = plan.identity.labels.iter().map(|(key, value)| format!("{key}={value}"));
    let own = own.filter(|tag| tag.len() <= LONGEST_WANDB_TAG);
    let of_job = [plan.identity.name.clone(), plan.identity.namespace.clone(), format!("attempt-{ATTEMPT}")];
    of_job.into_iter().chain(own).collect::<Vec<_>>().join(",")
}

/// The key is optional, because most users have one tracker.
fn from_secret(secret: &str, key: &str) -> EnvVar {
    let selector = SecretKeySelector { name: secret.to_owned(), key: key.to_owned(), optional: Some(true) };
    EnvVar {
        name: key.to_owned(),
        value: None,
        value_from: Some(EnvVarSource { secret_key_ref: Some(selector), ..EnvVarSource::default() }),
    }
}
