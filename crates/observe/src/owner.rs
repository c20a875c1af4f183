//! Ownership of objects.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;

use api::{GROUP, TrainingJob};
use objects::labels;
use protocol::role::RoleName;

/// The TrainingJob that owns an object.
#[must_use]
pub fn owner(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.iter().flatten().find(|owner| is_training_job(owner))
}

/// The controlling owner of an object, which has one at most.
pub(super) fn controller(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// Whether an owner is a TrainingJob, of any version.
pub(super) fn is_training_job(owner: &OwnerReference) -> bool {
    let group = owner.api_version.split_once('/').map(|(group, _)| group);
    owner.kind == TrainingJob::kind(&()) && group == Some(GROUP)
}

/// Whether a Job or pod looks after the checkpoints.
#[must_use]
pub fn is_upkeep(meta: &ObjectMeta) -> bool {
    meta.labels.as_ref().and_then(|labels| labels.get(labels::COMPONENT)).is_some_and(|value| value == labels::UPKEEP)
}

/// The role of a Job or pod; `None` if it is not ours. Jobs of older operators lack the label, and are the workers'.
#[must_use]
pub fn role(meta: &ObjectMeta) -> Option<RoleName> {
    match meta.labels.as_ref()?.get(labels::COMPONENT).map(String::as_str) {
        None => Some(RoleName::WORKER),
        Some(name) => RoleName::parse(name).filter(|_| !labels::is_other_component(name)),
    }
}
