//! The TrainingJob and its spec.

use super::{
    Cache, Checkpoint, Code, Data, Elastic, FailurePolicy, Framework, Hyperparameters, Monitoring, Networking,
    ProcsPerWorker, Resources, RoleSpec, RuntimeRef, Scheduling, SuccessPolicy, TrainingJobStatus, Tuning, schema,
};
use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, LocalObjectReference, Volume, VolumeMount};
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::num::NonZeroU16;

/// Desired state of one distributed training: a gang of workers that starts, fails and restarts together.
/// After creation, only `suspend`, `ttlSecondsAfterFinished`, `successPolicy` and a few other fields of a TrainingJob may change.
/// These are `failurePolicy.activeDeadlineSeconds`, `failurePolicy.rules`, `checkpoint.retention`, `checkpoint.ifNoneUsable`
/// and `code.digest`.
/// With `elastic`, `numWorkers` may change as well.
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
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.ready"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.reason"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".spec.numWorkers", priority = 1),
    printcolumn(name = "Workers", type_ = "integer", json_path = ".status.workers.active", priority = 1),
    printcolumn(name = "Restarts", type_ = "integer", json_path = ".status.restartCount", priority = 1),
    printcolumn(name = "Loss", type_ = "number", json_path = ".status.metrics.loss", priority = 1),
    printcolumn(name = "GPUs", type_ = "integer", json_path = ".status.resources.allocatedGPUs", priority = 1),
    printcolumn(name = "Duration", type_ = "string", json_path = ".status.duration", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::duplicated_attributes, reason = "each printcolumn has its own priority")]
pub struct TrainingJobSpec {
    /// Name of the model, passed to the program as `MODEL`. Without it the variable is not set.
    /// Alternatively an address, whose content is mounted read-only at `/models`.
    /// `pvc://CLAIM/PATH` is a folder of a claim, `oci://HOST/REPOSITORY:TAG` an image.
    /// Content at other addresses is fetched before the workers start, see `cache`.
    /// These are `hf://NAMESPACE/NAME@REVISION`, `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://CONTAINER/PREFIX`,
    /// `https://HOST/FILE#sha256=HASH` and `oci://n/NAMESPACE/b/BUCKET/o/PREFIX` (Oracle Object Storage).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub model: Option<String>,

    /// Name of the dataset, passed to the program as `DATASET`. Without it the variable is not set.
    /// Alternatively an address as in `model`, whose content is mounted read-only at `/data`.
    /// `hf://NAMESPACE/NAME` is then a data set of the hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub dataset: Option<String>,

    /// Further content that the workers read, at most 8 entries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub data: Vec<Data>,

    /// Folder where fetched content is kept. Required if more than one pod reads fetched content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<Cache>,

    /// Secret of this namespace with the credentials for the addresses of `model`, `dataset` and `data`, mounted as files.
    /// Its keys have the names that the clients of the stores use.
    /// These are HF_TOKEN, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL and HF_ENDPOINT.
    /// Azure's are AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, Google's is credentials.json.
    /// A server with a certificate of its own also needs the key ca.crt. Without the Secret the pod's identity is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub credentials_secret: Option<String>,

    /// Whether pickled weights of the hub's models are left out, because loading them can run code.
    /// A model that has only such weights is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "bool")]
    pub safetensors_only: Option<bool>,

    /// Template to inherit from. The operator copies it when the job is created. Fields set in the job take precedence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_ref: Option<RuntimeRef>,

    /// Number of workers (pods) in the gang, 1 to 4096. Required unless the job's template sets it.
    /// May be changed while the job runs only with `elastic`, within its bounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4096))]
    pub num_workers: Option<NonZeroU16>,

    /// Bounds for changing `numWorkers` while the job runs. Without it, `numWorkers` can't be changed after creation.
    /// Requires `checkpoint.storage` of type pvc or nfs, or `checkpoint.enabled: false`.
    /// Not supported together with `roles`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elastic: Option<Elastic>,

    /// Pods of other kinds besides the workers, at most 7 roles.
    /// Examples are a chief and parameter servers of tensorflow, or any role with framework none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 7), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub roles: Vec<RoleSpec>,

    /// GPUs of each worker, 0 to 16. They are requested as `nvidia.com/gpu` unless `resources` names GPUs.
    /// If `resources` names GPUs, both numbers must agree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 16))]
    pub gpus_per_worker: Option<u16>,

    /// Processes per worker: a number from 1 to 1024, `auto`, `gpu` or `cpu`.
    /// `auto` is one process per GPU (at least 1) with pytorch, paddle and mpi, and 1 otherwise.
    /// `gpu` is the number of GPUs. `cpu` is the CPU limit, which must then be set.
    /// More than 1 is allowed with pytorch, paddle, mpi and none only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub procs_per_worker: Option<ProcsPerWorker>,

    /// Framework of the program, which determines its environment variables and its launcher.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Framework")]
    pub framework: Option<Framework>,

    /// Container image of the workers. Default by framework: pytorch/pytorch, tensorflow/tensorflow or nvcr.io/nvidia/jax.
    /// The other frameworks have no default and require an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub image: Option<String>,

    /// Command of the workers.
    /// Default: `torchrun` with pytorch, `python3 -m paddle.distributed.launch` with paddle, `mpirun -np $(WORLD_SIZE)` with mpi.
    /// The other frameworks run `python3`. `$(NAME)` expands as in a container.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    pub command: Vec<String>,

    /// Arguments of the command. Without `command` and `args`, the launcher runs `train.py` in the working directory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    pub args: Vec<String>,

    /// Environment variables, `valueFrom` included, at most 1024.
    /// Variables that the operator sets for the gang (such as MASTER_ADDR, RANK, WORLD_SIZE, PET_*) are rejected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Vec<EnvVar>,

    /// ConfigMaps and Secrets whose keys become environment variables, at most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub env_from: Vec<EnvFromSource>,

    /// Resource requests and limits of each worker.
    #[serde(default, skip_serializing_if = "Resources::is_empty")]
    pub resources: Resources,

    /// Working directory of the command. Default: the image's working directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub working_dir: Option<String>,

    /// Code of the program, which `kubectl trainingjob run --code DIR` writes together with its ConfigMaps.
    /// The agents unpack it in every pod, and it becomes the working directory of the command.
    /// Without `code` the program is in the image or in a volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,

    /// Volumes of each worker, at most 64. Names that begin with `trainingjob-` are reserved for the operator.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub volumes: Vec<Volume>,

    /// Mounts of the volumes in the container `training`, at most 64.
    /// Paths in `/trainingjob` and `/etc/training-config` are reserved for the operator.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["mountPath"]))]
    pub volume_mounts: Vec<VolumeMount>,

    /// Secrets used to pull the images, at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub image_pull_secrets: Vec<LocalObjectReference>,

    /// Service account of the workers. Default: the namespace's `default` account.
    /// That default is used without an API token, unless `podTemplate.spec.automountServiceAccountToken` is true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub service_account_name: Option<String>,

    /// Strategic merge patch (metadata and spec) for the worker pods, for settings without a dedicated field.
    /// The workers' container is named `training`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::pod_template")]
    pub pod_template: Option<serde_json::Value>,

    /// Labels of every object and pod that the operator creates for the job, and tags of its runs in experiment trackers.
    /// At most 32. The labels in `metadata` stay on the TrainingJob.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub labels: BTreeMap<String, String>,

    /// Annotations of every object and pod that the operator creates for the job, at most 32.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub annotations: BTreeMap<String, String>,

    /// Destination of the results, which the program writes to `OUTPUT_DIR` (`/out`).
    /// `pvc://CLAIM/PATH` is mounted there.
    /// Under `s3://`, `gs://`, `az://`, `oci://n/` or `hf://NAMESPACE/NAME` they are published once the programs have succeeded.
    /// Until then they are on the volume of `checkpoint.storage`, which must be of type pvc or nfs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub output: Option<String>,

    /// Hyperparameters, passed as environment variables `HYPERPARAM_*` and as `hyperparameters.json` in the ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hyperparameters: Option<Hyperparameters>,

    /// Search for hyperparameters. The job then starts no workers itself.
    /// It creates a TuningJob of its name, whose trials have the rest of this spec, and reports its state.
    /// The fields are those of a TuningJob: `kubectl explain tuningjob.spec`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hyper_parameter_tuning_config: Option<Tuning>,

    /// Storage, retention, verification and backup of the program's checkpoints.
    #[serde(default, skip_serializing_if = "is_unwritten")]
    pub checkpoint: Checkpoint,

    /// Placement, queueing and priority of the workers.
    #[serde(default)]
    pub scheduling: Scheduling,

    /// Progress metrics, TensorBoard and experiment trackers of the job.
    #[serde(default, skip_serializing_if = "is_unwritten")]
    pub monitoring: Monitoring,

    /// Network settings of the workers.
    #[serde(default, skip_serializing_if = "is_unwritten")]
    pub networking: Networking,

    /// Restarts, deadlines and detection of failures.
    #[serde(default, skip_serializing_if = "is_unwritten")]
    pub failure_policy: FailurePolicy,

    /// Goals that complete the job early. When one is met, the workers are stopped and the job is Completed.
    /// May be added, changed or removed while the job runs.
    /// Metrics that the policy did not name when the attempt began are observed from the next attempt on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success_policy: Option<SuccessPolicy>,

    /// Whether the job is suspended. True stops the workers (with their grace period) and keeps the job.
    /// False starts them again. May be changed at any time.
    #[serde(default)]
    pub suspend: bool,

    /// Seconds between the job's end and the deletion of the TrainingJob, from 0.
    /// The deletion waits for the backup of the last checkpoint. May be changed at any time.
    /// Default: the operator's `--default-ttl-seconds-after-finished` at creation, or never.
    /// The operator's default is not applied to jobs with `checkpoint.storage.deletePolicy: Delete`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub ttl_seconds_after_finished: Option<u32>,
}

fn is_unwritten<T: Default + PartialEq>(object: &T) -> bool {
    *object == T::default()
}
