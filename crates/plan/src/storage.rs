//! Volumes: storage of checkpoints, and checks for conflicting mounts.

use super::labels::RESTART_FROM;
use super::policy::LONGEST_REQUEST;
use super::quantity::Amount;
use super::{Refusals, dns_subdomain};
use api::{
    self, DeletePolicy, IfNoneUsable, Mode, RestartFrom, Storage, StorageType, TrainingJob, TrainingJobSpec, Verify,
};
use k8s_openapi::api::core::v1::{PodTemplateSpec, VolumeMount};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use protocol::checkpoints::{BackupPolicy, BestBy, CheckpointPolicy, StorePlace};
use std::collections::BTreeSet;

/// Prefix of the operator's volume names in a worker's pod.
pub const VOLUME_PREFIX: &str = "trainingjob-";

/// Paths in the container `training`.
pub mod paths {
    pub const AGENT: &str = "/trainingjob";
    /// State that the agent keeps across its own restarts, in the volume that delivered it.
    pub const STATE: &str = "/trainingjob/state";
    pub const CONFIG: &str = "/etc/training-config";
    /// Archive of the program's code, in parts.
    pub const CODE: &str = "/etc/training-code";
    pub const CHECKPOINTS: &str = "/checkpoints";
    pub const MODEL: &str = "/models";
    pub const DATASET: &str = "/data";
    pub const OUTPUT: &str = "/out";
    /// Folder of the checkpoints' volume that has the results to be published, one folder for each job.
    pub const RESULTS: &str = ".trainingjob/results";
    pub const SHM: &str = "/dev/shm";
    /// Credentials of the store for checkpoints. [`BACKUP_CREDENTIALS`] has those of the backup.
    pub const STORE_CREDENTIALS: &str = "/etc/training-credentials/store";
    pub const BACKUP_CREDENTIALS: &str = "/etc/training-credentials/backup";
    /// Credentials for the addresses of model, dataset and data.
    pub const DATA_CREDENTIALS: &str = "/etc/training-credentials/data";
    /// Credentials of the MLflow server, in the pod that registers a result.
    pub const TRACKER_CREDENTIALS: &str = "/etc/training-credentials/tracker";
    /// Volume of the cache, in pods that fetch.
    pub const CACHE: &str = "/cache";
    /// Keys by which the gang's members authenticate each other and the agent proves its answers. The folder is hidden in
    /// the configuration volume, because some programs read every file there.
    pub const KEYS: &str = "/etc/training-config/.gang";
}

/// Checkpoints of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// Settings for the agents.
    pub policy: CheckpointPolicy,
    /// Epochs between two checkpoints.
    pub frequency: u32,
    /// Volume for the checkpoints.
    pub volume: CheckpointVolume,
    /// Arguments appended to the command when resuming.
    pub resume_args: Vec<String>,
    /// Secret of the object store for checkpoints. Its keys are mounted in [`StorePlace::credentials`].
    pub store_secret: Option<String>,
    /// Secret of the backup store, mounted in the same way.
    pub backup_secret: Option<String>,
}

impl Checkpoint {
    /// Message of the condition `CheckpointsDurable=False`.
    pub const IN_EMPTY_DIR: &str = "checkpoints are in an emptyDir: they are lost with the pod; set checkpoint.storage or \
        checkpoint.backup in the next job to keep them, or checkpoint.enabled to false if the program writes none";

    /// Whether no copy of a checkpoint outlives its pod.
    #[must_use]
    pub fn is_lost_with_pod(&self) -> bool {
        self.volume == CheckpointVolume::EmptyDir && self.policy.store.is_none() && self.policy.backup.is_none()
    }
}

/// Volume for checkpoints.
#[derive(Clone, Debug, PartialEq)]
pub enum CheckpointVolume {
    /// An emptyDir, which is deleted with its pod.
    EmptyDir,
    /// An existing claim.
    Claim(String),
    /// A claim created for the job.
    New {
        /// Size of the claim.
        size: Quantity,
        /// Storage class of the claim, unless it is the cluster's default.
        storage_class: Option<String>,
        /// Whether the claim is deleted with the job.
        delete_with_job: bool,
    },
    /// A path on an NFS server.
    Nfs {
        /// Host name or address of the server.
        server: String,
        /// Exported path.
        path: String,
    },
}

/// Resolves the checkpoint settings. `policy` identifies the job. `restart` takes precedence over `resumeFrom`. `home` is the job's prefix in a bucket, unless the spec
/// sets one: NAMESPACE/JOB.
pub(super) fn resolve(
    checkpoint: &api::Checkpoint,
    policy: CheckpointPolicy,
    restart: Option<RestartFrom>,
    home: &str,
    errors: &mut Refusals,
) -> Option<Checkpoint> {
    let (request, restart_path) = restart.map(|restart| (restart.request, restart.path)).unzip();
    let volume = match &checkpoint.storage {
        None => CheckpointVolume::EmptyDir,
        Some(storage) => match storage.type_ {
            StorageType::Pvc => claim(storage, errors),
            StorageType::Nfs => nfs(storage, errors),
            StorageType::S3 | StorageType::Gcs | StorageType::Azure => CheckpointVolume::EmptyDir,
        },
    };
    let policy = CheckpointPolicy {
        shared: volume != CheckpointVolume::EmptyDir,
        retention: checkpoint.retention().get(),
        keep_best: checkpoint
            .keep_best
            .as_ref()
            .map(|best| BestBy { metric: best.metric.clone(), max: best.mode() == Mode::Max }),
        resume_from: restart_path.as_ref().or(checkpoint.resume_from.as_ref()).map(|from| resume_from(from)),
        request,
        may_start_over: checkpoint.if_none_usable == Some(IfNoneUsable::StartOver),
        structure_only: checkpoint.verify == Some(Verify::Structure),
        store: checkpoint.storage.as_ref().and_then(|storage| store(storage, home, errors)),
        backup: checkpoint.backup.as_ref().map(backup),
        ..policy
    };
    checkpoint.enabled().then(|| Checkpoint {
        policy,
        frequency: checkpoint.frequency(),
        volume,
        resume_args: checkpoint.resume_args.clone(),
        store_secret: checkpoint.storage.as_ref().and_then(|storage| storage.credentials_secret.clone()),
        backup_secret: checkpoint.backup.as_ref().and_then(|backup| backup.credentials_secret.clone()),
    })
}

/// Returns the checkpoint from which a restart was requested, and the request. They come from the annotation, or from
/// the status if the annotation was lost. An annotation of another form is ignored.
#[must_use]
pub fn restart_from(job: &TrainingJob) -> Option<RestartFrom> {
    let annotation = job.metadata.annotations.as_ref().and_then(|all| all.get(RESTART_FROM));
    let requested = annotation.and_then(|value| {
        let (request, path) = value.trim().split_once(' ')?;
        let is_place = path.split_once("://").is_none_or(|(scheme, _)| ["s3", "gs", "az"].contains(&scheme));
        let is_plain = !path.is_empty() && !path.contains(char::is_control) && path.split('/').all(|part| part != "..");
        let is_short = request.len() <= LONGEST_REQUEST && path.len() <= LONGEST_PATH;
        let requested = || RestartFrom { request: request.to_owned(), path: path.to_owned(), used: None };
        (is_place && is_plain && is_short).then(requested)
    });
    let recorded = || job.status.as_ref()?.checkpoint.as_ref()?.restart_from.clone();
    requested.or_else(recorded)
}

/// Maximum bytes of a path in a request, as in `resumeFrom`.
const LONGEST_PATH: usize = 2048;

/// Resolves a relative path against the folder of checkpoints.
fn resume_from(text: &str) -> String {
    let text = text.trim_end_matches('/');
    if text.contains("://") || text.starts_with('/') {
        text.to_owned()
    } else {
        format!("{}/{text}", paths::CHECKPOINTS)
    }
}

fn store(storage: &Storage, home: &str, errors: &mut Refusals) -> Option<StorePlace> {
    let (field, scheme, bucket) = match storage.type_ {
        StorageType::S3 => ("s3Bucket", "s3", &storage.s3_bucket),
        StorageType::Gcs => ("gcsBucket", "gs", &storage.gcs_bucket),
        StorageType::Azure => ("azureContainer", "az", &storage.azure_container),
        StorageType::Pvc | StorageType::Nfs => return None,
    };
    let Some(bucket) = bucket else {
        errors.push(format!("spec.checkpoint.storage.{field}"), "is needed with this type: the name of the bucket");
        return None;
    };
    let prefix = storage.prefix.as_deref().unwrap_or(home).trim_matches('/');
    Some(StorePlace {
        uri: format!("{scheme}://{bucket}/{prefix}"),
        endpoint: storage.endpoint.clone(),
        region: storage.region.clone(),
        azure_account: storage.azure_account.clone(),
        credentials: storage.credentials_secret.as_ref().map(|_| paths::STORE_CREDENTIALS.to_owned()),
    })
}

fn backup(backup: &api::Backup) -> BackupPolicy {
    BackupPolicy {
        place: StorePlace {
            uri: backup.destination.trim_end_matches('/').to_owned(),
            endpoint: backup.endpoint.clone(),
            region: backup.region.clone(),
            azure_account: backup.azure_account.clone(),
            credentials: backup.credentials_secret.as_ref().map(|_| paths::BACKUP_CREDENTIALS.to_owned()),
        },
        interval_seconds: backup.interval_seconds().into(),
    }
}

fn claim(storage: &Storage, errors: &mut Refusals) -> CheckpointVolume {
    if let Some(name) = &storage.pvc_name {
        if !dns_subdomain(name) {
            errors.push(
                "spec.checkpoint.storage.pvcName",
                format!("{name:?} is not the name of a PersistentVolumeClaim"),
            );
        }
        return CheckpointVolume::Claim(name.clone());
    }
    let size = storage.size.clone().unwrap_or_default();
    if Amount::parse(&size.0).is_none_or(|amount| amount <= Amount::whole(0)) {
        errors.push("spec.checkpoint.storage.size", format!("{:?} is not a size; write for example 50Gi", size.0));
    }
    CheckpointVolume::New {
        size,
        storage_class: storage.storage_class_name.clone(),
        delete_with_job: storage.delete_policy() == DeletePolicy::Delete,
    }
}

fn nfs(storage: &Storage, errors: &mut Refusals) -> CheckpointVolume {
    let server = storage.nfs_server.clone().unwrap_or_default();
    let path = storage.nfs_path.clone().unwrap_or_default();
    if server.is_empty() {
        errors.push("spec.checkpoint.storage.nfsServer", "is needed with type nfs: the server's name or address");
    }
    if !path.starts_with('/') || path.split('/').any(|part| part == "..") {
        errors.push(
            "spec.checkpoint.storage.nfsPath",
            format!("{path:?} is not an absolute path; write for example /exports/x"),
        );
    }
    CheckpointVolume::Nfs { server, path }
}

/// The reason for which a user's mount at `path` is rejected, with the remedy.
fn taken(storage: &super::Storage, path: &str) -> Option<&'static str> {
    let is_mounted = |path: &str| storage.inputs.iter().any(|input| input.is_mounted() && input.mount_path == path);
    match path {
        paths::AGENT => Some("is where the agent is: mount it elsewhere"),
        paths::STORE_CREDENTIALS | paths::BACKUP_CREDENTIALS => {
            Some("is where the credentials of the checkpoints' store are: mount it elsewhere")
        }
        paths::DATA_CREDENTIALS => Some("is where the credentials of spec.credentialsSecret are: mount it elsewhere"),
        paths::CODE if storage.code.is_some() => Some("is where the archive of the job's code is: mount it elsewhere"),
        paths::CONFIG => Some("is where the job's configuration is: mount it elsewhere"),
        paths::CHECKPOINTS if storage.checkpoint.is_some() => Some(
            "is where checkpoints go: name the volume in spec.checkpoint.storage, or set spec.checkpoint.enabled to false",
        ),
        paths::MODEL if is_mounted(path) => Some("is where spec.model is mounted: mount it elsewhere"),
        paths::DATASET if is_mounted(path) => Some("is where spec.dataset is mounted: mount it elsewhere"),
        _ if is_mounted(path) => Some("is where an entry of spec.data is mounted: mount it elsewhere"),
        paths::OUTPUT if storage.output.is_some() => Some("is where spec.output is mounted: mount it elsewhere"),
        _ => None,
    }
}

/// Checks volumes and mounts. `field` is the path of the template.
pub(super) fn check_volumes(
    spec: &TrainingJobSpec,
    field: &str,
    overlay: &PodTemplateSpec,
    mounts: &super::Storage,
    errors: &mut Refusals,
) {
    let empty = Vec::new();
    let pod = overlay.spec.as_ref();
    let more_volumes = pod.and_then(|pod| pod.volumes.as_ref()).unwrap_or(&empty);
    let of_template = format!("{field}.spec.volumes");
    for (path, volumes) in [("spec.volumes", &spec.volumes), (&of_template, more_volumes)] {
        for (index, volume) in volumes.iter().enumerate() {
            if volume.name.starts_with(VOLUME_PREFIX) {
                let name = &volume.name;
                errors.push(
                    format!("{path}[{index}].name"),
                    format!("{name:?} begins like the operator's volumes ({VOLUME_PREFIX}): give it another name"),
                );
            }
        }
    }

    let volumes: BTreeSet<&str> = spec.volumes.iter().chain(more_volumes).map(|volume| volume.name.as_str()).collect();
    check_mounts("spec.volumeMounts", &spec.volume_mounts, &volumes, Some(mounts), errors);
    let Some(pod) = pod else { return };
    let init = pod.init_containers.as_deref().unwrap_or_default();
    for (list, containers) in [("containers", pod.containers.as_slice()), ("initContainers", init)] {
        for (index, container) in containers.iter().enumerate() {
            let path = format!("{field}.spec.{list}[{index}].volumeMounts");
            let training = (list == "containers" && container.name == "training").then_some(mounts);
            check_mounts(&path, container.volume_mounts.as_deref().unwrap_or_default(), &volumes, training, errors);
        }
    }
}

/// Checks the mounts of one container. `ours` are the operator's own mounts, if the container has them.
fn check_mounts(
    path: &str,
    mounts: &[VolumeMount],
    volumes: &BTreeSet<&str>,
    ours: Option<&super::Storage>,
    errors: &mut Refusals,
) {
    for (index, mount) in mounts.iter().enumerate() {
        let normal = match mount.mount_path.trim_end_matches('/') {
            "" => "/",
            path => path,
        };
        if let Some(why) = ours.and_then(|ours| taken(ours, normal)) {
            errors.push(format!("{path}[{index}].mountPath"), format!("{normal} {why}"));
        }
        // Other containers may look into the operator's volumes (a side-car that reads checkpoints).
        let known = volumes.contains(mount.name.as_str()) || mount.name.starts_with(VOLUME_PREFIX);
        if !known && !mount.name.is_empty() {
            errors.push(
                format!("{path}[{index}].name"),
                format!("there is no volume {:?}: add it to spec.volumes", mount.name),
            );
        }
    }
}
