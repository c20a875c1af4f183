//! Fetches content: by a Job before the gang, or by an init container of its only worker.

use super::environment::{field, literal, var};
use super::pod::{Mounts, NOBODY, TERMINATION_BY_FILE, little, restricted};
use super::upkeep::{AgentJob, agent_job};
use super::{gang, labels, metadata, names};
use api::DataStatus;
use k8s_openapi::api::batch::v1::{
    Job, JobSpec, PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyRule,
};
use k8s_openapi::api::core::v1::{Container, EnvVar, PodSecurityContext};
use plan::storage::paths;
use plan::template::FETCH;
use plan::{CacheVolume, Fetching, Input, Plan, Source, Upkeep};
use protocol::gang::LISTEN_ADDRESS;
use protocol::inputs::{CacheLimit, CacheUses, DATA, FetchItem, FetchRequest};
use serde::Serialize;

/// Retries after a failure that is not final. Kubernetes spaces them 10, 20, 40 s apart.
const TRIES_AGAIN: i32 = 3;
/// Exit code of an agent after a failure that no retry can fix.
const FINAL: i32 = 2;
/// Folder of the links by which a pod mounts content whose key is not known when the pod is made.
const LINKS: &str = "links";

/// The Job that fetches the content into the cache. `None` if nothing is fetched by a Job.
///
/// `uses` is what jobs use of the cache. Without it nothing is removed from a full cache.
#[must_use]
pub fn fetch_job(plan: &Plan, uses: Option<CacheUses>) -> Option<Job> {
    let request = request(plan, uses)?;
    if request.links.is_some() {
        return None;
    }
    let parts = AgentJob {
        mounts: Mounts::of_fetch(plan),
        args: args(plan, &request),
        env: env(plan),
        // It needs no GPU, so it waits in no queue for GPUs. A file of many GB may take days.
        queue: false,
        deadline: None,
        resources: little("1", "512Mi"),
        user: as_nobody(),
    };
    Some(transfer(plan, Upkeep::Fetch, parts))
}

/// A Job that moves data over a network. It ends at once if no retry can help.
pub(super) fn transfer(plan: &Plan, task: Upkeep, parts: AgentJob) -> Job {
    let mut metadata = metadata(plan, names::upkeep_name(&plan.identity.name));
    let labels = labels::of_upkeep(plan, task);
    metadata.labels.get_or_insert_default().extend(labels.clone());
    let is_final =
        PodFailurePolicyOnExitCodesRequirement { container_name: None, operator: "In".to_owned(), values: vec![FINAL] };
    let rule = PodFailurePolicyRule {
        action: "FailJob".to_owned(),
        on_exit_codes: Some(is_final),
        ..PodFailurePolicyRule::default()
    };
    let spec = JobSpec {
        backoff_limit: Some(TRIES_AGAIN),
        pod_failure_policy: Some(PodFailurePolicy { rules: vec![rule] }),
        ..JobSpec::default()
    };
    agent_job(plan, metadata, labels, parts, spec)
}

/// The init container that fetches the content. `None` if nothing is fetched by one.
pub(super) fn init_container(plan: &Plan) -> Option<Container> {
    let request = request(plan, None).filter(|request| request.links.is_some())?;
    Some(Container {
        name: FETCH.to_owned(),
        image: Some(plan.runtime.agent_image.clone()),
        image_pull_policy: plan.runtime.agent_image_pull_policy.clone(),
        command: Some(vec!["/agent".to_owned()]),
        args: Some(args(plan, &request)),
        env: Some(env(plan)).filter(|env| !env.is_empty()),
        resources: Some(little("1", "512Mi")),
        volume_mounts: Some(Mounts::of_fetch(plan).mounts),
        termination_message_policy: Some(TERMINATION_BY_FILE.to_owned()),
        security_context: Some(restricted()),
        ..Container::default()
    })
}

/// Folder of an input's content, from the root of the cache's volume.
pub(super) fn folder(fetching: &Fetching, input: &Input, fetched: Option<&DataStatus>) -> String {
    match (&fetching.cache, fetched) {
        (CacheVolume::Claim(place), Some(fetched)) => {
            let parts = [place.path.as_deref().unwrap_or_default(), &fetched.key, DATA];
            parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/")
        }
        _ => format!("{LINKS}/{}", input.name),
    }
}

/// A request to the agent as an argument of it.
#[expect(clippy::expect_used, reason = "plain data of ours, which always has this form")]
pub(super) fn request_arg(request: &impl Serialize) -> String {
    let request = serde_json::to_string(request).expect("a struct of strings and numbers is JSON");
    format!("--request={}", literal(&request))
}

fn args(plan: &Plan, request: &FetchRequest) -> Vec<String> {
    [vec!["inputs".to_owned(), request_arg(request)], progress_args(plan)].concat()
}

/// Arguments by which an agent that moves data serves its progress.
pub(super) fn progress_args(plan: &Plan) -> Vec<String> {
    let port = plan.monitoring.metrics_port.map(|port| format!("--metrics-port={port}"));
    port.into_iter().chain(gang::answer_arg(plan)).collect()
}

/// What such an agent reports about itself, so that the operator knows which job's progress it reads.
pub(super) fn progress_env(plan: &Plan) -> Vec<EnvVar> {
    if plan.monitoring.metrics_port.is_none() {
        return Vec::new();
    }
    vec![field("POD_UID", "metadata.uid"), var("TRAINING_JOB_NAME", literal(&plan.identity.name))]
}

fn env(plan: &Plan) -> Vec<EnvVar> {
    let mut env = progress_env(plan);
    if env.is_empty() {
        return env;
    }
    // An init container of a pod on the node's network listens at no other address of the node.
    let is_of_node = !has_job(plan) && plan.gang.workers().has_host_network();
    env.extend(is_of_node.then(|| field(LISTEN_ADDRESS, "status.podIP")));
    env
}

fn has_job(plan: &Plan) -> bool {
    plan.storage.fetching.as_ref().is_some_and(Fetching::has_job)
}

/// What is fetched. `None` if nothing is.
fn request(plan: &Plan, uses: Option<CacheUses>) -> Option<FetchRequest> {
    let storage = &plan.storage;
    let fetching = storage.fetching.as_ref()?;
    let below = match &fetching.cache {
        CacheVolume::Claim(place) => place.path.as_deref(),
        CacheVolume::EmptyDir { .. } => None,
    };
    let items = storage.inputs.iter().filter_map(|input| match &input.source {
        Source::Fetch { uri, fetched } => Some(FetchItem {
            name: input.name.clone(),
            uri: uri.clone(),
            revision: fetched.as_ref().map(|fetched| fetched.revision.clone()),
        }),
        _ => None,
    });
    Some(FetchRequest {
        cache: below.map_or_else(|| paths::CACHE.to_owned(), |below| format!("{}/{below}", paths::CACHE)),
        credentials: storage.credentials_secret.as_ref().map(|_| paths::DATA_CREDENTIALS.to_owned()),
        safetensors_only: fetching.safetensors_only,
        links: (!fetching.has_job()).then(|| format!("{}/{LINKS}", paths::CACHE)),
        limit: fetching.limit.map(|bytes| CacheLimit { bytes, uses }),
        items: items.collect(),
    })
}

/// It writes files that a server sends, and reads none that a program wrote.
fn as_nobody() -> PodSecurityContext {
    PodSecurityContext {
        run_as_non_root: Some(true),
        run_as_user: Some(NOBODY),
        run_as_group: Some(NOBODY),
        fs_group: Some(NOBODY),
        fs_group_change_policy: Some("OnRootMismatch".to_owned()),
        ..PodSecurityContext::default()
    }
}
