//! The claim for checkpoints.

use super::{labels, names};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use plan::{CheckpointVolume, Plan};
use std::collections::BTreeMap;

/// Has Argo CD keep an object that is not in git, whichever Application it assigns the object to.
const ARGO_CD: (&str, &str) = ("argocd.argoproj.io/sync-options", "Prune=false");

/// Prefixes of labels and annotations by which Argo CD and `kubectl apply --prune` recognize an object as theirs.
const PRUNED_BY: [&str; 2] = ["argocd.argoproj.io/", "kubectl.kubernetes.io/"];

/// The claim for checkpoints, if one is to be created. It may be left from an earlier job of this name.
#[must_use]
pub fn claim(plan: &Plan) -> Option<PersistentVolumeClaim> {
    let volume = &plan.storage.checkpoint.as_ref()?.volume;
    let CheckpointVolume::New { size, storage_class, delete_with_job } = volume else { return None };
    let mut labels = labels::common(plan);
    let mut annotations = super::annotations(plan, []);
    if !delete_with_job {
        // Argo CD deletes an object that has this label of an Application, no owner, and no place in git. An
        // Application named like the job would delete the job's checkpoints.
        labels.remove(labels::K8S_INSTANCE);
        // The user's labels may name such an Application, too.
        let is_harmless = |key: &str| !PRUNED_BY.iter().any(|prefix| key.starts_with(prefix));
        labels.retain(|key, _| is_harmless(key));
        annotations.retain(|key, _| is_harmless(key));
        annotations.insert(ARGO_CD.0.to_owned(), ARGO_CD.1.to_owned());
    }
    let mode = if plan.gang.most_workers() > 1 || plan.gang.has_roles() { "ReadWriteMany" } else { "ReadWriteOnce" };
    Some(PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(names::claim_name(&plan.identity.name)),
            namespace: Some(plan.identity.namespace.clone()),
            labels: Some(labels),
            annotations: (!annotations.is_empty()).then_some(annotations),
            // Without an owner it outlives the job. A user's work is only deleted on request.
            owner_references: delete_with_job.then(|| vec![plan.identity.owner.clone()]),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec![mode.to_owned()]),
            resources: Some(VolumeResourceRequirements {
                requests: Some(BTreeMap::from([("storage".to_owned(), size.clone())])),
                limits: None,
            }),
            storage_class_name: storage_class.clone(),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    })
}
