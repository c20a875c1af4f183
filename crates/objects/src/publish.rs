//! Publishes results by a Job, after the programs have succeeded.

use super::fetch::{progress_args, progress_env, request_arg, transfer};
use super::pod::{Mounts, little};
use super::upkeep::{AgentJob, as_root};
use k8s_openapi::api::batch::v1::Job;
use plan::storage::paths;
use plan::{Output, Plan, Publishing, Upkeep};
use protocol::result::{PublishRequest, RegisterRequest};

/// The Job that publishes the result. `None` if none is published.
pub(super) fn job(plan: &Plan) -> Option<Job> {
    let publishing = plan.storage.output.as_ref().and_then(Output::publishing)?;
    let parts = AgentJob {
        mounts: Mounts::of_publishing(plan, publishing),
        args: [vec!["outputs".to_owned(), request_arg(&request(plan, publishing))], progress_args(plan)].concat(),
        env: progress_env(plan),
        // Like a fetch: without a GPU, and without a deadline.
        queue: false,
        deadline: None,
        resources: little("1", "512Mi"),
        user: as_root(),
    };
    Some(transfer(plan, Upkeep::Publish, parts))
}

fn request(plan: &Plan, publishing: &Publishing) -> PublishRequest {
    let tracker = plan.monitoring.tracker_secret.as_ref();
    let register = publishing.register.as_ref().map(|register| RegisterRequest {
        mlflow: register.mlflow.clone(),
        model: register.model.clone(),
        credentials: tracker.map(|_| paths::TRACKER_CREDENTIALS.to_owned()),
    });
    PublishRequest {
        from: paths::OUTPUT.to_owned(),
        uri: publishing.uri.clone(),
        name: publishing.name.clone(),
        credentials: plan.storage.credentials_secret.as_ref().map(|_| paths::DATA_CREDENTIALS.to_owned()),
        register,
        origin: publishing.origin.clone(),
    }
}
