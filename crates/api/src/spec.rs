//! The TrainingJob and its spec.

use super::{
    Checkpoint, Elastic, FailurePolicy, Framework, Hyperparameters, Monitoring, Networking, ProcsPerWorker, Resources,
    RoleSpec, RuntimeRef, Scheduling, SuccessPolicy, TrainingJobStatus, schema,
};
use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, LocalObjectReference, Volume, VolumeMount};
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};
use std::num::NonZeroU16;

/// One distributed training: a gang of workers that starts, fails and restarts together.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "ml.example.com",
    version = "v1",
    kind = "TrainingJob",
    plural = "trainingjobs",
    shortname = "tj",
    shortname = "tjob",
    category = "all",
    namespaced,
    status = "TrainingJobStatus",
    scale(
        spec_replicas_path = ".spec.numWorkers",
        status_replicas_path = ".status.workers.active",
        label_selector_path = ".status.elastic.selector"
    ),
    derive = "PartialEq",
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "Progress", type_ = "string", json_path = ".status.progress"),
    printcolumn(name = "Epoch", type_ = "integer", json_path = ".status.currentEpoch"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".spec.numWorkers", priority = 1),
    printcolumn(name = "Workers", type_ = "integer", json_path = ".status.workers.active", priority = 1),
    printcolumn(name = "Restarts", type_ = "integer", json_path = ".status.restartCount", priority = 1),
    printcolumn(name = "Loss", type_ = "number", json_path = ".status.metrics.loss", priority = 1),
    printcolumn(name = "GPUs", type_ = "integer", json_path = ".status.resources.allocatedGPUs", priority = 1),
    printcolumn(name = "Duration", type_ = "string", json_path = ".status.duration", priority = 1),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.failureReason", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::duplicated_attributes, reason = "each printcolumn has its own priority")]
pub struct TrainingJobSpec {
    /// Name of the model, handed to the program as `MODEL`; or `pvc://CLAIM/PATH`, mounted read-only at `/models`.
    #[schemars(length(min = 1, max = 1024))]
    pub model: String,

    /// Name of the dataset, handed to the program as `DATASET`; or `pvc://CLAIM/PATH`, mounted read-only at `/data`.
    #[schemars(length(min = 1, max = 1024))]
    pub dataset: String,

    /// A template: the job begins with what stands there when it is created, and what it writes itself goes before that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_ref: Option<RuntimeRef>,

    /// Number of workers (pods) in the gang. Required, unless the job's template has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4096))]
    pub num_workers: Option<NonZeroU16>,

    /// The number of workers may change while the job runs. Without it `numWorkers` is as it was at the job's creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elastic: Option<Elastic>,

    /// Pods of other kinds besides the workers, such as a chief and parameter servers of tensorflow, or any with framework none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 7), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub roles: Vec<RoleSpec>,

    /// GPUs of each worker, requested as `nvidia.com/gpu` unless `resources` names GPUs itself; both must agree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 16))]
    pub gpus_per_worker: Option<u16>,

    /// Processes per worker: a number, `auto` (pytorch, paddle and mpi: the GPUs if there are any, else 1; the others: 1), `gpu`, or `cpu` (the CPU limit, which must then be set).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub procs_per_worker: Option<ProcsPerWorker>,

    /// Framework of the program: decides its environment variables and its launcher.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Framework")]
    pub framework: Option<Framework>,

    /// Container image of the workers. Default by framework: pytorch/pytorch, tensorflow/tensorflow or nvcr.io/nvidia/jax; the others have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub image: Option<String>,

    /// Command of the workers. Default by framework: `torchrun` (pytorch), `python3 -m paddle.distributed.launch` (paddle), `mpirun -np $(WORLD_SIZE)` (mpi) or `python3`. `$(NAME)` expands as in a container.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    pub command: Vec<String>,

    /// Arguments of the command. With neither command nor args, the launcher runs `train.py` in the working directory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    pub args: Vec<String>,

    /// Environment variables, `valueFrom` included. Those that the gang needs (such as MASTER_ADDR, RANK, WORLD_SIZE, PET_*) are refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Vec<EnvVar>,

    /// ConfigMaps and Secrets whose keys become environment variables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub env_from: Vec<EnvFromSource>,

    /// Requests and limits of each worker.
    #[serde(default, skip_serializing_if = "Resources::is_empty")]
    pub resources: Resources,

    /// Working directory of the command. Default: the image's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub working_dir: Option<String>,

    /// Volumes of each worker.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub volumes: Vec<Volume>,

    /// Where the volumes are mounted in the container `training`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["mountPath"]))]
    pub volume_mounts: Vec<VolumeMount>,

    /// Secrets with which the images are pulled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub image_pull_secrets: Vec<LocalObjectReference>,

    /// Service account of the workers. Default: the namespace's `default`, and then without a token of the API server's, unless
    /// `podTemplate.spec.automountServiceAccountToken` is true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub service_account_name: Option<String>,

    /// A pod template (metadata and spec) laid over the workers' own for all that has no field here: strategic merge, the workers' container is called `training`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::pod_template")]
    pub pod_template: Option<serde_json::Value>,

    /// Where results go: `pvc://CLAIM/PATH`, mounted read-write at `/out`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub output: Option<String>,

    /// Hyperparameters: environment variables `HYPERPARAM_*` and `hyperparameters.json` in the ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hyperparameters: Option<Hyperparameters>,

    /// Where the program keeps its checkpoints.
    #[serde(default, skip_serializing_if = "is_unwritten")]
    pub checkpoint: Checkpoint,

    /// Where and when the workers run.
    #[serde(default)]
    pub scheduling: Scheduling,

    /// How the job is watched, and where its program records what it does.
    #[serde(default, skip_serializing_if = "is_unwritten")]
    pub monitoring: Monitoring,

    /// How the workers talk to each other.
    #[serde(default, skip_serializing_if = "is_unwritten")]
    pub networking: Networking,

    /// What happens when a worker fails.
    #[serde(default, skip_serializing_if = "is_unwritten")]
    pub failure_policy: FailurePolicy,

    /// When the job is good enough: it is then stopped, and Completed. It may change while the job runs; a metric that it did not name when the attempt began is watched from the next attempt on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success_policy: Option<SuccessPolicy>,

    /// Stops the workers (with their grace period) and keeps the job; setting it back to false starts them again.
    #[serde(default)]
    pub suspend: bool,

    /// Seconds after its end at which the finished TrainingJob is deleted. Default: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub ttl_seconds_after_finished: Option<u32>,
}

/// Whether nothing is written in an object whose fields are all optional.
fn is_unwritten<T: Default + PartialEq>(object: &T) -> bool {
    *object == T::default()
}
