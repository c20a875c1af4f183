//! Placement of a gang's pods, separately or together.

use super::{Group, GroupKind, Refusals, Role, labels, names};
use api::{GangScheduler, Scheduling};
use k8s_openapi::api::core::v1::PodTemplateSpec;

/// The requested PodGroup.
pub(super) fn group(scheduling: &Scheduling, name: &str, uid: &str) -> Option<Group> {
    let kind = match scheduling.gang() {
        GangScheduler::None => return None,
        GangScheduler::Volcano => GroupKind::Volcano { queue: scheduling.queue.clone() },
        GangScheduler::Coscheduling => GroupKind::Coscheduling,
        GangScheduler::Native => GroupKind::Native,
    };
    Some(Group { name: names::pod_group_name(name, uid), kind })
}

/// The pods' scheduling settings that their PodGroup does not cover. A queue belongs either to Volcano or to Kueue.
pub(super) fn of_pods(scheduling: &Scheduling) -> Scheduling {
    let queue = scheduling.queue.clone().filter(|_| scheduling.gang() != GangScheduler::Volcano);
    Scheduling { queue, gang: None, ..scheduling.clone() }
}

/// The queue of a gang with several roles, which Kueue admits as one. None of its Jobs then names a queue.
pub(super) fn shared_queue(roles: &mut [Role]) -> Option<String> {
    roles.iter_mut().filter_map(|role| role.pod.scheduling.queue.take()).reduce(|queue, _| queue)
}

/// Rejects a template that names another group, because it would remove the pods from the gang's own group. `field` is the
/// path of the template.
pub(super) fn check(scheduling: &Scheduling, field: &str, overlay: &PodTemplateSpec, errors: &mut Refusals) {
    let Some(metadata) = overlay.metadata.as_ref() else { return };
    let (list, keys, key) = match scheduling.gang() {
        GangScheduler::Volcano => ("annotations", &metadata.annotations, labels::VOLCANO_GROUP),
        GangScheduler::Coscheduling => ("labels", &metadata.labels, labels::COSCHEDULING_GROUP),
        GangScheduler::None | GangScheduler::Native => return,
    };
    if keys.as_ref().is_some_and(|keys| keys.contains_key(key)) {
        let field = format!("{field}.metadata.{list}.{key}");
        errors.push(field, "is set by the operator for spec.scheduling.gang: remove it, or gang");
    }
}
