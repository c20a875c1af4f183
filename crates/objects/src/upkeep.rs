//! Short Jobs that look after a job's data while no worker runs: the same agent, without GPUs.

use super::pod::{Mounts, TERMINATION_BY_FILE, little};
use super::{environment, fetch, labels, metadata, names, publish};
use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{
    Affinity, Capabilities, Container, EnvVar, PodSecurityContext, PodSpec, PodTemplateSpec, ResourceRequirements,
    SeccompProfile, SecurityContext,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use plan::storage::paths;
use plan::template::TRAINING;
use plan::{Checkpoint, CheckpointVolume, Plan, Upkeep};
use protocol::checkpoints::POLICY_FILE;
use std::collections::BTreeMap;
use text::start_of;

/// Retries after a failure. Kubernetes spaces them 10, 20, 40 s apart.
const TRIES_AGAIN: i32 = 3;
/// Seconds that an upload of the largest checkpoints may take.
const DEADLINE: i64 = 24 * 60 * 60;
/// Seconds that an ended errand stays if its creator could not delete it.
const ERRAND_STAYS: i32 = 300;
/// The manager of an errand. It is not the operator, which ignores errands.
const PLUGIN: &str = "kubectl-trainingjob";
/// The purpose of an errand.
const ERRAND: &str = labels::CHECKPOINTS;

/// The Job for one of the operator's tasks. `None` if the job has nothing to do for it.
#[must_use]
pub fn upkeep(plan: &Plan, task: Upkeep) -> Option<Job> {
    match task {
        Upkeep::Fetch => fetch::fetch_job(plan, None),
        Upkeep::Publish => publish::job(plan),
        Upkeep::Check | Upkeep::Copy => look_after_checkpoints(plan, task),
    }
}

fn look_after_checkpoints(plan: &Plan, task: Upkeep) -> Option<Job> {
    let checkpoint = plan.storage.checkpoint.as_ref()?;
    let mut metadata = metadata(plan, names::upkeep_name(&plan.identity.name));
    let labels = labels::of_upkeep(plan, task);
    metadata.labels.get_or_insert_default().extend(labels.clone());
    let mut args = ["checkpoints", "upkeep", "--policy", &policy_path(), task.as_str()].map(str::to_owned).to_vec();
    // A claim without an earlier user would be bound to the place of this pod.
    let is_new = matches!(checkpoint.volume, CheckpointVolume::New { .. } | CheckpointVolume::EmptyDir);
    let from_store = checkpoint.policy.resume_from.as_deref().is_some_and(|from| from.contains("://"));
    let without_volume = task == Upkeep::Check && from_store && is_new;
    args.extend(without_volume.then(|| "--without-volume".to_owned()));
    let unmounted = Checkpoint { volume: CheckpointVolume::EmptyDir, ..checkpoint.clone() };
    let checkpoint = if without_volume { &unmounted } else { checkpoint };
    // A bad checkpoint stays bad. If a store is unreachable, the operator asks again.
    let tries_again = if task == Upkeep::Check { 0 } else { TRIES_AGAIN };
    let spec = JobSpec { backoff_limit: Some(tries_again), ..JobSpec::default() };
    Some(agent_job(plan, metadata, labels, of_checkpoints(plan, checkpoint, args), spec))
}

/// The Job for a user's request about the checkpoints, with these arguments for the agent. `None` if the job keeps no
/// checkpoints.
///
/// It ends with its TrainingJob, which is not its controller. Any client that may create Jobs may create it.
#[must_use]
pub fn command_job(plan: &Plan, name: String, args: &[String]) -> Option<Job> {
    let checkpoint = plan.storage.checkpoint.as_ref()?;
    let owner = OwnerReference { controller: None, block_owner_deletion: None, ..plan.identity.owner.clone() };
    let labels = [
        (labels::MANAGED_BY, PLUGIN),
        (labels::TRAINING_JOB, plan.identity.name.as_str()),
        (labels::JOB_NAME, plan.identity.name.as_str()),
        (labels::COMPONENT, ERRAND),
    ];
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let labels: BTreeMap<_, _> = plan.identity.labels.clone().into_iter().chain(labels).collect();
    let annotations = super::annotations(plan, []);
    let metadata = ObjectMeta {
        name: Some(name),
        namespace: Some(plan.identity.namespace.clone()),
        labels: Some(labels.clone()),
        annotations: (!annotations.is_empty()).then_some(annotations),
        owner_references: Some(vec![owner]),
        ..ObjectMeta::default()
    };
    let spec = JobSpec { backoff_limit: Some(0), ttl_seconds_after_finished: Some(ERRAND_STAYS), ..JobSpec::default() };
    let args = args.iter().map(|arg| environment::literal(arg)).collect();
    Some(agent_job(plan, metadata, labels, of_checkpoints(plan, checkpoint, args), spec))
}

/// Name of such a Job. It is also a label of its pods, so a long name of a TrainingJob is cut.
#[must_use]
pub fn errand_name(job: &str, random: &str) -> String {
    const LONGEST: usize = 63;
    let end = format!("-{ERRAND}-{random}");
    let start = start_of(job, LONGEST.saturating_sub(end.len())).trim_end_matches(['-', '.']);
    format!("{start}{end}")
}

/// Where an agent finds its policy for the checkpoints.
#[must_use]
pub fn policy_path() -> String {
    format!("{}/{POLICY_FILE}", paths::CONFIG)
}

/// The parts of a Job of the agent.
pub(super) struct AgentJob {
    /// Volumes, and where they are mounted.
    pub mounts: Mounts,
    /// Arguments of the agent.
    pub args: Vec<String>,
    /// Variables of the agent.
    pub env: Vec<EnvVar>,
    /// Whether it waits in the queue of the workers.
    pub queue: bool,
    /// Seconds that it may take.
    pub deadline: Option<i64>,
    /// Requests and limits.
    pub resources: ResourceRequirements,
    /// Its user, unless `podTemplate` sets that of the program.
    pub user: PodSecurityContext,
}

/// It has the checkpoints and the stores' credentials.
fn of_checkpoints(plan: &Plan, checkpoint: &Checkpoint, args: Vec<String>) -> AgentJob {
    AgentJob {
        mounts: Mounts::of_upkeep(plan, checkpoint),
        args,
        env: Vec::new(),
        queue: true,
        deadline: Some(DEADLINE),
        resources: little("500m", "256Mi"),
        user: as_root(),
    }
}

/// A Job of one pod that runs the agent.
pub(super) fn agent_job(
    plan: &Plan,
    mut metadata: ObjectMeta,
    labels: BTreeMap<String, String>,
    parts: AgentJob,
    spec: JobSpec,
) -> Job {
    let AgentJob { mounts, args, env, queue, deadline, resources, user } = parts;
    let pod = &plan.gang.workers().pod;
    let queue = pod.scheduling.queue.clone().filter(|_| queue).map(|queue| (labels::QUEUE.to_owned(), queue));
    metadata.labels.get_or_insert_default().extend(queue);
    let more = pod.overlay.metadata.clone().unwrap_or_default();
    let own = plan.identity.annotations.clone().into_iter();
    let annotations: BTreeMap<_, _> = own.chain(more.annotations.into_iter().flatten()).collect();
    let overlay = pod.overlay.spec.clone().unwrap_or_default();
    // As the program has it: another user may not read the program's files, and the namespace may require no less.
    let of_program = overlay.containers.iter().find(|container| container.name == TRAINING);
    let of_program = of_program.and_then(|container| container.security_context.clone());
    let has_user = of_program.as_ref().is_some_and(|it| it.run_as_user.is_some() || it.run_as_non_root == Some(true));
    let security_context = overlay.security_context.clone().or_else(|| (!has_user).then_some(user));
    let user = of_program.as_ref().and_then(|it| it.run_as_user);
    let is_root = user.or(security_context.as_ref().and_then(|it| it.run_as_user)) == Some(0);
    let container = Container {
        name: labels::UPKEEP.to_owned(),
        image: Some(plan.runtime.agent_image.clone()),
        image_pull_policy: plan.runtime.agent_image_pull_policy.clone(),
        command: Some(vec!["/agent".to_owned()]),
        args: Some(args),
        env: Some(env).filter(|env| !env.is_empty()),
        resources: Some(resources),
        volume_mounts: Some(mounts.mounts),
        security_context: Some(SecurityContext {
            privileged: None,
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            capabilities: Some(capabilities(is_root)),
            seccomp_profile: of_program.as_ref().and_then(|it| it.seccomp_profile.clone()).or_else(|| {
                // The pod's profile holds for the container, too.
                let of_pod = security_context.as_ref().is_some_and(|it| it.seccomp_profile.is_some());
                (!of_pod).then(|| SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None })
            }),
            ..of_program.clone().unwrap_or_default()
        }),
        termination_message_policy: Some(TERMINATION_BY_FILE.to_owned()),
        ..Container::default()
    };
    Job {
        metadata,
        spec: Some(JobSpec {
            active_deadline_seconds: deadline,
            template: PodTemplateSpec {
                // The workers' labels and annotations too, because a cloud's identity may depend on them.
                metadata: Some(ObjectMeta {
                    labels: Some(labels.into_iter().chain(more.labels.into_iter().flatten()).collect()),
                    annotations: Some(annotations).filter(|annotations| !annotations.is_empty()),
                    ..ObjectMeta::default()
                }),
                spec: Some(PodSpec {
                    restart_policy: Some("Never".to_owned()),
                    containers: vec![container],
                    volumes: Some(mounts.volumes),
                    security_context,
                    // It does not use the API server. A cloud's identity brings a token of its own.
                    automount_service_account_token: Some(false),
                    enable_service_links: Some(false),
                    service_account_name: pod.service_account_name.clone(),
                    image_pull_secrets: (!pod.image_pull_secrets.is_empty()).then(|| pod.image_pull_secrets.clone()),
                    // A volume that is bound by its first user is then bound where the workers can run.
                    node_selector: (!pod.scheduling.node_selector.is_empty())
                        .then(|| pod.scheduling.node_selector.clone())
                        .or(overlay.node_selector),
                    affinity: pod.scheduling.affinity.clone().or(overlay.affinity).map(only_of_nodes),
                    tolerations: (!pod.scheduling.tolerations.is_empty()).then(|| pod.scheduling.tolerations.clone()),
                    ..PodSpec::default()
                }),
            },
            ..spec
        }),
        status: None,
    }
}

/// The workers' node affinity, without their affinity to pods.
fn only_of_nodes(affinity: Affinity) -> Affinity {
    Affinity { node_affinity: affinity.node_affinity, ..Affinity::default() }
}

/// It reads files that a hostile program may have written. Only root needs capabilities, to read and keep what other
/// users wrote.
fn capabilities(is_root: bool) -> Capabilities {
    let add = is_root.then(|| ["DAC_OVERRIDE", "FOWNER"].map(str::to_owned).to_vec());
    Capabilities { add, drop: Some(vec!["ALL".to_owned()]) }
}

/// Root, which can read all files. The image decides on the programs' user unless the spec does.
pub(super) fn as_root() -> PodSecurityContext {
    PodSecurityContext { run_as_user: Some(0), ..PodSecurityContext::default() }
}
