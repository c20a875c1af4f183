//! Labels and annotations of a TrainingJob's objects, and what they are for.

use super::{Incarnation, Plan};
use protocol::role::RoleName;
use std::collections::BTreeMap;

/// Who manages the object; on every object and pod of ours, so that the operator's watches can select by it.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY`].
pub const OPERATOR: &str = "trainingjob-operator";
/// Selects every object with [`MANAGED_BY`].
pub const SELECTOR: &str = "app.kubernetes.io/managed-by=trainingjob-operator";
/// Name of the TrainingJob, as people select by it: `kubectl logs -l training-job=x`.
pub const TRAINING_JOB: &str = "training-job";
/// UID of the TrainingJob, which tells its objects from those of a predecessor of the same name.
pub const UID: &str = "ml.example.com/training-job-uid";
/// Name of the TrainingJob, under a prefix that no other program uses; on each object that has [`TRAINING_JOB`].
pub const JOB_NAME: &str = "ml.example.com/training-job";
/// Role in the gang, on its Jobs and pods: `worker`, or the name of another role.
pub const ROLE: &str = "ml.example.com/role";
/// Number of the incarnation: label of Job and pods, annotation of the Job. Read it by [`incarnation`].
pub const INCARNATION: &str = "ml.example.com/incarnation";
/// What [`INCARNATION`] was called before 0.2.0. A Job's pod template is immutable, so Jobs that run through the upgrade keep it.
const INCARNATION_BEFORE: &str = "ml.example.com/attempt";
/// Annotation of the Job: the first attempt of its pods. Further ones may follow in them.
pub const FIRST_ATTEMPT: &str = "ml.example.com/first-attempt";
/// Annotation: [`Plan::intent`] of which the object was made.
pub const INTENT: &str = "ml.example.com/intent";
/// Annotation of the TrainingJob: whoever changes it to a value of their own asks for another attempt.
pub const RESTART_REQUESTED: &str = "ml.example.com/restart-requested";
/// Label (and, before Kubernetes 1.28, annotation) by which a pod of an Indexed Job knows its index.
pub const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// Annotation of a pod that means nothing: when it changes the pod's node brings what has changed of its ConfigMap.
pub const LOOK_AGAIN: &str = "ml.example.com/look-again";
/// Annotation of worker 0's pod of an elastic gang: the size of which its node was told last, for the same end.
pub const GANG_SIZE: &str = "ml.example.com/gang-size";
/// Kueue's LocalQueue, on the Job.
pub const QUEUE: &str = "kueue.x-k8s.io/queue-name";
/// Volcano's PodGroup, as an annotation of a pod.
pub const VOLCANO_GROUP: &str = "scheduling.k8s.io/group-name";
/// What kind of pod it is in Volcano's PodGroup, as an annotation of a pod.
pub const VOLCANO_TASK: &str = "volcano.sh/task-spec";
/// The coscheduling plugin's PodGroup, as a label of a pod.
pub const COSCHEDULING_GROUP: &str = "scheduling.x-k8s.io/pod-group";

/// What an object is for: of a worker's pod `worker`, of what belongs to a TensorBoard [`TENSORBOARD`].
pub const COMPONENT: &str = "component";
/// Value of [`COMPONENT`].
pub const TENSORBOARD: &str = "tensorboard";
/// Value of [`COMPONENT`] for what looks after the checkpoints while no worker runs.
pub const UPKEEP: &str = "upkeep";
/// What the Job that looks after the checkpoints is for.
pub const TASK: &str = "ml.example.com/task";

/// Value of [`COMPONENT`] of what a person wants of the checkpoints.
pub const CHECKPOINTS: &str = "checkpoints";

/// Whether a value of [`COMPONENT`] is no role of a gang.
#[must_use]
pub fn is_other_component(value: &str) -> bool {
    [TENSORBOARD, UPKEEP, CHECKPOINTS].contains(&value)
}

const APP: &str = "app";
const K8S_NAME: &str = "app.kubernetes.io/name";
/// By which Argo CD and others tell which application an object belongs to.
pub const K8S_INSTANCE: &str = "app.kubernetes.io/instance";
const K8S_COMPONENT: &str = "app.kubernetes.io/component";
const KIND: &str = "training-job";

/// Labels of every object.
#[must_use]
pub fn of(plan: &Plan) -> BTreeMap<String, String> {
    owned([
        (MANAGED_BY, OPERATOR),
        (APP, KIND),
        (TRAINING_JOB, &plan.identity.name),
        (JOB_NAME, &plan.identity.name),
        (K8S_NAME, KIND),
        (K8S_INSTANCE, &plan.identity.name),
        (UID, &plan.identity.uid),
    ])
}

/// Whether [`of`] sets the label: others may add what they like.
#[must_use]
pub fn is_common(key: &str) -> bool {
    [MANAGED_BY, APP, TRAINING_JOB, JOB_NAME, K8S_NAME, K8S_INSTANCE, UID].contains(&key)
}

/// Labels of a role's pods of an incarnation: those by which the operator, `deploy/` and people select them. There are thousands of
/// pods, so that each has no others.
#[must_use]
pub fn of_pod(plan: &Plan, role: RoleName, incarnation: Incarnation) -> BTreeMap<String, String> {
    owned([
        (MANAGED_BY, OPERATOR),
        (APP, KIND),
        (TRAINING_JOB, &plan.identity.name),
        (JOB_NAME, &plan.identity.name),
        (UID, &plan.identity.uid),
        (COMPONENT, role.as_str()),
        (ROLE, role.as_str()),
        (INCARNATION, &incarnation.number.to_string()),
    ])
}

/// Number of the incarnation of a Job or pod, by its labels. Until 0.3.0 also of those made before 0.2.0.
#[must_use]
pub fn incarnation(labels: &BTreeMap<String, String>) -> Option<u32> {
    labels.get(INCARNATION).or_else(|| labels.get(INCARNATION_BEFORE))?.parse().ok()
}

/// A selector as text.
#[must_use]
pub fn text(selector: &BTreeMap<String, String>) -> String {
    selector.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

/// Selects the workers, of any incarnation. By [`COMPONENT`] until 0.3.0: pods made before 0.2.0 have no [`ROLE`]. The UID keeps
/// everything else out.
#[must_use]
pub fn worker_selector(plan: &Plan) -> BTreeMap<String, String> {
    owned([(COMPONENT, RoleName::WORKER.as_str()), (UID, &plan.identity.uid)])
}

/// Selects all pods of the gang, of any incarnation and operator, and the upkeep pod that takes their place while none of them
/// runs. Not a TensorBoard's, nor those that the plugin makes.
#[must_use]
pub fn gang_selector(plan: &Plan) -> BTreeMap<String, String> {
    owned([(MANAGED_BY, OPERATOR), (UID, &plan.identity.uid)])
}

/// Labels of the Job that looks after the checkpoints, and of its pod.
#[must_use]
pub fn of_upkeep(plan: &Plan, task: super::Upkeep) -> BTreeMap<String, String> {
    let mut labels = of(plan);
    labels.append(&mut owned([(COMPONENT, UPKEEP), (K8S_COMPONENT, UPKEEP), (TASK, task.as_str())]));
    labels
}

/// Labels of a TensorBoard's Deployment and Service.
#[must_use]
pub fn of_board(plan: &Plan) -> BTreeMap<String, String> {
    let mut labels = of(plan);
    labels.append(&mut owned([(COMPONENT, TENSORBOARD), (K8S_COMPONENT, TENSORBOARD)]));
    labels
}

/// Labels of a TensorBoard's pod, which also select it. Not those by which people and watches find the workers.
#[must_use]
pub fn of_board_pod(plan: &Plan) -> BTreeMap<String, String> {
    owned([
        (COMPONENT, TENSORBOARD),
        (K8S_NAME, TENSORBOARD),
        (K8S_INSTANCE, &plan.identity.name),
        (K8S_COMPONENT, TENSORBOARD),
        (UID, &plan.identity.uid),
    ])
}

/// Whether a label or annotation belongs to the operator or to the Job controller.
pub fn is_reserved(key: &str) -> bool {
    let ours = [MANAGED_BY, APP, COMPONENT, TRAINING_JOB, K8S_NAME, K8S_INSTANCE, K8S_COMPONENT];
    let job_controller = ["job-name", "controller-uid"];
    ours.contains(&key)
        || job_controller.contains(&key)
        || key.starts_with("ml.example.com/")
        || key.starts_with("batch.kubernetes.io/")
}

fn owned<const N: usize>(labels: [(&str, &str); N]) -> BTreeMap<String, String> {
    labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}
