//! The TensorBoard beside a job: a Deployment and its Service.

use super::{labels, metadata, names};
use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, DeploymentStrategy};
use k8s_openapi::api::core::v1::{
    Affinity, Capabilities, Container, ContainerPort, EmptyDirVolumeSource, EnvVar, HTTPGetAction, NFSVolumeSource,
    PersistentVolumeClaimVolumeSource, PodAffinity, PodAffinityTerm, PodSecurityContext, PodSpec, PodTemplateSpec,
    Probe, ResourceRequirements, SeccompProfile, SecurityContext, Service, ServicePort, ServiceSpec, Volume,
    VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use plan::{BoardPlan, BoardVolume, Plan};
use std::collections::BTreeMap;

/// The port on which users reach it.
const PORT: i32 = 6006;
/// Any user but root.
const NOBODY: i64 = 65532;
/// The volume, as TensorBoard sees it.
const LOGS: &str = "/logs";

/// The objects of a TensorBoard.
#[derive(Clone, Debug, PartialEq)]
pub struct Board {
    /// Runs it.
    pub deployment: Deployment,
    /// Gives it a name.
    pub service: Service,
}

/// The TensorBoard of a plan that has one.
#[must_use]
pub fn board(plan: &Plan) -> Option<Board> {
    let board = plan.monitoring.tensorboard.as_ref()?.board_beside_job()?;
    Some(Board { deployment: deployment(plan, board), service: service(plan) })
}

fn service(plan: &Plan) -> Service {
    Service {
        metadata: of_board(plan),
        spec: Some(ServiceSpec {
            selector: Some(labels::of_board_pod(plan)),
            ports: Some(vec![ServicePort {
                name: Some("http".to_owned()),
                port: PORT,
                target_port: Some(IntOrString::Int(PORT)),
                protocol: Some("TCP".to_owned()),
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

fn of_board(plan: &Plan) -> ObjectMeta {
    ObjectMeta { labels: Some(labels::of_board(plan)), ..metadata(plan, names::tensorboard_name(&plan.identity.name)) }
}

/// Its own labels select it, and take precedence.
fn of_board_pod(plan: &Plan) -> ObjectMeta {
    let annotations = super::annotations(plan, []);
    ObjectMeta {
        labels: Some(plan.identity.labels.clone().into_iter().chain(labels::of_board_pod(plan)).collect()),
        annotations: (!annotations.is_empty()).then_some(annotations),
        ..ObjectMeta::default()
    }
}

fn deployment(plan: &Plan, board: &BoardPlan) -> Deployment {
    Deployment {
        metadata: of_board(plan),
        spec: Some(DeploymentSpec {
            replicas: Some(1),
            selector: LabelSelector { match_labels: Some(labels::of_board_pod(plan)), match_expressions: None },
            // Never two of them on one volume.
            strategy: Some(DeploymentStrategy { type_: Some("Recreate".to_owned()), rolling_update: None }),
            template: PodTemplateSpec { metadata: Some(of_board_pod(plan)), spec: Some(pod(plan, board)) },
            ..DeploymentSpec::default()
        }),
        status: None,
    }
}

/// Conforms to Pod Security `restricted`.
fn pod(plan: &Plan, board: &BoardPlan) -> PodSpec {
    let scratch = EmptyDirVolumeSource { size_limit: Some(Quantity("1Gi".to_owned())), medium: None };
    PodSpec {
        containers: vec![container(board)],
        volumes: Some(vec![
            logs(board),
            Volume { name: "tmp".to_owned(), empty_dir: Some(scratch), ..Volume::default() },
        ]),
        image_pull_secrets: (!plan.gang.workers().pod.image_pull_secrets.is_empty())
            .then(|| plan.gang.workers().pod.image_pull_secrets.clone()),
        // It runs where the workers may run, and with a volume of one node on that node.
        tolerations: (!plan.gang.workers().pod.scheduling.tolerations.is_empty())
            .then(|| plan.gang.workers().pod.scheduling.tolerations.clone()),
        affinity: board.one_node.then(|| beside_the_worker(plan)),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        // It has nothing to save, and a volume of one node may be needed elsewhere.
        termination_grace_period_seconds: Some(2),
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            run_as_user: Some(NOBODY),
            run_as_group: Some(NOBODY),
            seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None }),
            ..PodSecurityContext::default()
        }),
        ..PodSpec::default()
    }
}

fn container(board: &BoardPlan) -> Container {
    let quantities = |cpu: &str, memory: &str| -> Option<BTreeMap<String, Quantity>> {
        Some([("cpu", cpu), ("memory", memory)].map(|(name, much)| (name.to_owned(), Quantity(much.to_owned()))).into())
    };
    let mount = |name: &str, path: &str, read_only: bool| VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    };
    let sub_path = match &board.volume {
        BoardVolume::Claim(claim) => claim.path.clone(),
        BoardVolume::Nfs { .. } => None,
    };
    Container {
        name: labels::TENSORBOARD.to_owned(),
        image: Some(board.image.clone()),
        command: Some(vec!["tensorboard".to_owned()]),
        args: Some(arguments()),
        // For its own files, and its libraries' caches.
        env: Some(vec![EnvVar { name: "HOME".to_owned(), value: Some("/tmp".to_owned()), value_from: None }]),
        ports: Some(vec![ContainerPort {
            name: Some("http".to_owned()),
            container_port: PORT,
            protocol: Some("TCP".to_owned()),
            ..ContainerPort::default()
        }]),
        readiness_probe: Some(Probe {
            http_get: Some(HTTPGetAction {
                path: Some("/".to_owned()),
                port: IntOrString::Int(PORT),
                ..HTTPGetAction::default()
            }),
            period_seconds: Some(5),
            timeout_seconds: Some(5),
            ..Probe::default()
        }),
        resources: Some(ResourceRequirements {
            requests: quantities("50m", "512Mi"),
            limits: quantities("1", "2Gi"),
            ..ResourceRequirements::default()
        }),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
            ..SecurityContext::default()
        }),
        // Read-only here and not at the volume. Otherwise a claim that a worker has attached for writing couldn't be
        // attached again.
        volume_mounts: Some(vec![VolumeMount { sub_path, ..mount("logs", LOGS, true) }, mount("tmp", "/tmp", false)]),
        ..Container::default()
    }
}

fn arguments() -> Vec<String> {
    [
        "--logdir".to_owned(),
        format!("{LOGS}/tensorboard"),
        "--bind_all".to_owned(),
        "--port".to_owned(),
        PORT.to_string(),
    ]
    .into()
}

fn logs(board: &BoardPlan) -> Volume {
    let volume = match &board.volume {
        BoardVolume::Claim(claim) => Volume {
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claim.claim.clone(),
                read_only: None,
            }),
            ..Volume::default()
        },
        BoardVolume::Nfs { server, path } => Volume {
            nfs: Some(NFSVolumeSource { server: server.clone(), path: path.clone(), read_only: None }),
            ..Volume::default()
        },
    };
    Volume { name: "logs".to_owned(), ..volume }
}

/// On the node that has the worker, so that the worker's volume is never attached elsewhere.
fn beside_the_worker(plan: &Plan) -> Affinity {
    Affinity {
        pod_affinity: Some(PodAffinity {
            required_during_scheduling_ignored_during_execution: Some(vec![PodAffinityTerm {
                topology_key: "kubernetes.io/hostname".to_owned(),
                label_selector: Some(LabelSelector {
                    match_labels: Some(labels::worker_selector(plan)),
                    match_expressions: None,
                }),
                ..PodAffinityTerm::default()
            }]),
            ..PodAffinity::default()
        }),
        ..Affinity::default()
    }
}
