//! Labels and annotations of a TrainingJob's objects, and their purposes.

use super::{Incarnation, Plan};
use api::{RESERVED_KEY_PREFIXES, RESERVED_KEYS};
use protocol::role::RoleName;
use std::collections::BTreeMap;

/// Manager of the object. It is set on all objects and pods of the operator, so that its watches can select them.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY`].
pub const OPERATOR: &str = "trainingjob-operator";
/// Selects every object with [`MANAGED_BY`].
pub const SELECTOR: &str = "app.kubernetes.io/managed-by=trainingjob-operator";
/// Name of the TrainingJob, for selection by users: `kubectl logs -l training-job=x`.
pub const TRAINING_JOB: &str = "training-job";
/// UID of the TrainingJob, which distinguishes its objects from those of an earlier job of the same name.
pub const UID: &str = "ml.example.com/training-job-uid";
/// Name of the TrainingJob under a prefix that no other program uses. It is set on each object that has [`TRAINING_JOB`].
pub const JOB_NAME: &str = "ml.example.com/training-job";
/// Role in the gang, on its Jobs and pods: `worker`, or the name of another role.
pub const ROLE: &str = "ml.example.com/role";
/// Number of the incarnation: a label of Job and pods, and an annotation of the Job. Use [`incarnation`] to read it.
pub const INCARNATION: &str = "ml.example.com/incarnation";
/// Name of [`INCARNATION`] before 0.2.0. Jobs that run through the upgrade keep it, because a Job's pod template is
/// immutable.
const INCARNATION_BEFORE: &str = "ml.example.com/attempt";
/// Annotation of the Job: the first attempt in its pods. Further attempts may follow in them.
pub const FIRST_ATTEMPT: &str = "ml.example.com/first-attempt";
/// Annotation: the [`Identity::intent`](super::Identity::intent) from which the object was created.
pub const INTENT: &str = "ml.example.com/intent";
/// Annotation of the TrainingJob: setting it to a new value requests another attempt.
pub const RESTART_REQUESTED: &str = "ml.example.com/restart-requested";
/// Annotation of the TrainingJob: `REQUEST PATH`. The next attempt resumes from the checkpoint at PATH, once for each REQUEST.
pub const RESTART_FROM: &str = "ml.example.com/restart-from";
/// Annotation of a TrainingJob from a backup: how it had ended, as JSON ([`RestoredEnd`](super::RestoredEnd)).
pub const ENDED: &str = "ml.example.com/ended";
/// Label (and, before Kubernetes 1.28, annotation) with the index of a pod in an Indexed Job.
pub const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// Annotation of a pod without a meaning of its own. A change to it makes the pod's node refresh the mounted ConfigMap.
pub const LOOK_AGAIN: &str = "ml.example.com/look-again";
/// Annotation of worker 0's pod in an elastic gang: the last announced size. A change to it has the same effect as
/// [`LOOK_AGAIN`].
pub const GANG_SIZE: &str = "ml.example.com/gang-size";
/// Kueue LocalQueue, on the Job.
pub const QUEUE: &str = "kueue.x-k8s.io/queue-name";
/// Volcano PodGroup, as an annotation of a pod.
pub const VOLCANO_GROUP: &str = "scheduling.k8s.io/group-name";
/// Kind of the pod within Volcano's PodGroup, as an annotation of a pod.
pub const VOLCANO_TASK: &str = "volcano.sh/task-spec";
/// PodGroup of the coscheduling plugin, as a label of a pod.
pub const COSCHEDULING_GROUP: &str = "scheduling.x-k8s.io/pod-group";

/// Purpose of an object: `worker` for a worker's pod, [`TENSORBOARD`] for a TensorBoard's objects.
pub const COMPONENT: &str = "component";
/// Value of [`COMPONENT`] for a TensorBoard.
pub const TENSORBOARD: &str = "tensorboard";
/// Value of [`COMPONENT`] for the Job that manages checkpoints while no worker runs.
pub const UPKEEP: &str = "upkeep";
/// Task of the Job that manages checkpoints.
pub const TASK: &str = "ml.example.com/task";

/// Value of [`COMPONENT`] for checkpoint commands run by a user.
pub const CHECKPOINTS: &str = "checkpoints";

/// Whether a value of [`COMPONENT`] is not a role of a gang.
#[must_use]
pub fn is_other_component(value: &str) -> bool {
    [TENSORBOARD, UPKEEP, CHECKPOINTS].contains(&value)
}

const APP: &str = "app";
const K8S_NAME: &str = "app.kubernetes.io/name";
/// Label by which Argo CD and others determine the application of an object.
pub const K8S_INSTANCE: &str = "app.kubernetes.io/instance";
const K8S_COMPONENT: &str = "app.kubernetes.io/component";
const KIND: &str = "training-job";

/// Labels of every object, with those of `spec.labels`.
#[must_use]
pub fn common(plan: &Plan) -> BTreeMap<String, String> {
    with_own(plan, [(K8S_NAME, KIND), (K8S_INSTANCE, &plan.identity.name)])
}

/// Whether [`common`] sets the label. Other clients may add any other label.
#[must_use]
pub fn is_common(key: &str) -> bool {
    [MANAGED_BY, APP, TRAINING_JOB, JOB_NAME, K8S_NAME, K8S_INSTANCE, UID].contains(&key)
}

/// Labels of a role's pods in an incarnation: those that the operator, `deploy/` and users select by. Each of the thousands
/// of pods has only these, and those of `spec.labels`.
#[must_use]
pub fn of_pod(plan: &Plan, role: RoleName, incarnation: Incarnation) -> BTreeMap<String, String> {
    let number = incarnation.number.to_string();
    with_own(plan, [(COMPONENT, role.as_str()), (ROLE, role.as_str()), (INCARNATION, &number)])
}

/// Number of the incarnation of a Job or pod, from its labels. Until 0.3.0 it also reads labels from before 0.2.0.
#[must_use]
pub fn incarnation(labels: &BTreeMap<String, String>) -> Option<u32> {
    labels.get(INCARNATION).or_else(|| labels.get(INCARNATION_BEFORE))?.parse().ok()
}

/// A selector as text.
#[must_use]
pub fn text(selector: &BTreeMap<String, String>) -> String {
    selector.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

/// Selects the workers of any incarnation. It uses [`COMPONENT`] until 0.3.0, because pods created before 0.2.0 lack
/// [`ROLE`]. The UID excludes all other pods.
#[must_use]
pub fn worker_selector(plan: &Plan) -> BTreeMap<String, String> {
    owned([(COMPONENT, RoleName::WORKER.as_str()), (UID, &plan.identity.uid)])
}

/// Selects all pods of the gang, of any incarnation and operator version. It includes the upkeep pod that replaces them
/// while none runs. It excludes pods of a TensorBoard and of the plugin.
#[must_use]
pub fn gang_selector(plan: &Plan) -> BTreeMap<String, String> {
    owned([(MANAGED_BY, OPERATOR), (UID, &plan.identity.uid)])
}

/// Labels of the Job that manages checkpoints, and of its pod.
#[must_use]
pub fn of_upkeep(plan: &Plan, task: super::Upkeep) -> BTreeMap<String, String> {
    let mut labels = common(plan);
    labels.append(&mut owned([(COMPONENT, UPKEEP), (K8S_COMPONENT, UPKEEP), (TASK, task.as_str())]));
    labels
}

/// Labels of a TensorBoard's Deployment and Service.
#[must_use]
pub fn of_board(plan: &Plan) -> BTreeMap<String, String> {
    let mut labels = common(plan);
    labels.append(&mut owned([(COMPONENT, TENSORBOARD), (K8S_COMPONENT, TENSORBOARD)]));
    labels
}

/// Labels of a TensorBoard's pod, which also select it. They exclude the labels by which users and watches find the
/// workers.
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
#[must_use]
pub fn is_reserved(key: &str) -> bool {
    RESERVED_KEYS.contains(&key) || RESERVED_KEY_PREFIXES.iter().any(|prefix| key.starts_with(prefix))
}

/// Whether `spec.labels` and `spec.annotations` refuse the key, as the rules of the CRD do.
#[must_use]
pub fn is_refused(key: &str) -> bool {
    is_reserved(key) || key.starts_with("kueue.x-k8s.io/")
}

/// The labels that every object of a job has, and these, with those of `spec.labels`. The operator's take precedence,
/// whatever a refused spec says.
fn with_own<const N: usize>(plan: &Plan, labels: [(&str, &str); N]) -> BTreeMap<String, String> {
    let (job, uid) = (&*plan.identity.name, &*plan.identity.uid);
    let common = [(MANAGED_BY, OPERATOR), (APP, KIND), (TRAINING_JOB, job), (JOB_NAME, job), (UID, uid)];
    plan.identity.labels.clone().into_iter().chain(owned(common)).chain(owned(labels)).collect()
}

fn owned<const N: usize>(labels: [(&str, &str); N]) -> BTreeMap<String, String> {
    labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}
