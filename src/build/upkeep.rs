//! A short Job that looks after the checkpoints while no worker runs: the same agent, without GPUs.

use super::pod::{Mounts, TERMINATION_BY_FILE, little};
use super::{labels, metadata, names};
use crate::plan::storage::paths;
use crate::plan::{Plan, Upkeep};
use crate::protocol::checkpoints::POLICY_FILE;
use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{Affinity, Container, PodSecurityContext, PodSpec, PodTemplateSpec, SecurityContext};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Tries again after a failure, which Kubernetes spaces 10, 20, 40 s apart.
const TRIES_AGAIN: i32 = 3;
/// Seconds that an upload of the largest checkpoints may take.
const DEADLINE: i64 = 24 * 60 * 60;

/// The Job for a task; none for a job that keeps no checkpoints.
#[must_use]
pub fn upkeep(plan: &Plan, task: Upkeep) -> Option<Job> {
    let checkpoint = plan.storage.checkpoint.as_ref()?;
    let mut metadata = metadata(plan, names::upkeep_name(&plan.identity.name));
    let labels = labels::of_upkeep(plan, task);
    let pod = &plan.gang.leading().pod;
    let queue = pod.scheduling.queue.clone().map(|queue| (labels::QUEUE.to_owned(), queue));
    metadata.labels.get_or_insert_default().extend(labels.clone().into_iter().chain(queue));
    let overlay = pod.overlay.spec.clone().unwrap_or_default();
    let mounts = Mounts::of_upkeep(plan, checkpoint);
    let args = ["checkpoints", "upkeep", "--policy", &format!("{}/{POLICY_FILE}", paths::CONFIG), task.as_str()];
    let container = Container {
        name: labels::UPKEEP.to_owned(),
        image: Some(plan.runtime.agent_image.clone()),
        image_pull_policy: plan.runtime.agent_image_pull_policy.clone(),
        command: Some(vec!["/agent".to_owned()]),
        args: Some(args.map(str::to_owned).to_vec()),
        resources: Some(little("500m", "256Mi")),
        volume_mounts: Some(mounts.mounts),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            ..SecurityContext::default()
        }),
        termination_message_policy: Some(TERMINATION_BY_FILE.to_owned()),
        ..Container::default()
    };
    Some(Job {
        metadata,
        spec: Some(JobSpec {
            backoff_limit: Some(TRIES_AGAIN),
            active_deadline_seconds: Some(DEADLINE),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta { labels: Some(labels), ..ObjectMeta::default() }),
                spec: Some(PodSpec {
                    restart_policy: Some("Never".to_owned()),
                    containers: vec![container],
                    volumes: Some(mounts.volumes),
                    security_context: Some(overlay.security_context.unwrap_or_else(as_root)),
                    automount_service_account_token: Some(true),
                    enable_service_links: Some(false),
                    service_account_name: pod.service_account_name.clone(),
                    image_pull_secrets: (!pod.image_pull_secrets.is_empty()).then(|| pod.image_pull_secrets.clone()),
                    // A volume that is bound by its first user is then bound where the workers can go.
                    node_selector: (!pod.scheduling.node_selector.is_empty())
                        .then(|| pod.scheduling.node_selector.clone())
                        .or(overlay.node_selector),
                    affinity: pod.scheduling.affinity.clone().or(overlay.affinity).map(only_of_nodes),
                    tolerations: (!pod.scheduling.tolerations.is_empty()).then(|| pod.scheduling.tolerations.clone()),
                    ..PodSpec::default()
                }),
            },
            ..JobSpec::default()
        }),
        status: None,
    })
}

/// Where the workers must be, but not beside whom.
fn only_of_nodes(affinity: Affinity) -> Affinity {
    Affinity { node_affinity: affinity.node_affinity, ..Affinity::default() }
}

/// As whom the programs write nobody can tell where the spec doesn't: the image decides. Root reads it all.
fn as_root() -> PodSecurityContext {
    PodSecurityContext { run_as_user: Some(0), ..PodSecurityContext::default() }
}
