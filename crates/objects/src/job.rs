//! The Indexed Job: the pods of one role in one incarnation.

use super::{labels, metadata, names, pod};
use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use plan::{Incarnation, Plan, Role};
use protocol::gang::GangPast;

pub(super) fn job(plan: &Plan, role: &Role, incarnation: Incarnation, past: &GangPast) -> Job {
    Job {
        metadata: job_metadata(plan, role, incarnation),
        spec: Some(JobSpec {
            completion_mode: Some("Indexed".to_owned()),
            completions: Some(role.replicas.into()),
            parallelism: Some(role.replicas.into()),
            // Suspended until the Workload of all roles is admitted.
            suspend: plan.gang.queue.as_ref().map(|_| true),
            // One failed worker is a failed gang. The operator decides whether and when to start another, and handles
            // deadline and TTL. There is no pod failure policy: its rules also apply to pods that the operator has
            // taken from the Job (`lifecycle/lost.rs`), and would fail the Job for a replaced pod.
            backoff_limit: Some(0),
            // Never two pods with one hostname.
            pod_replacement_policy: Some("Failed".to_owned()),
            template: pod::template(plan, role, incarnation, past),
            ..JobSpec::default()
        }),
        status: None,
    }
}

fn job_metadata(plan: &Plan, role: &Role, incarnation: Incarnation) -> ObjectMeta {
    let mut metadata = metadata(plan, names::role_job_name(&plan.identity.name, role.name));
    let number = (labels::INCARNATION.to_owned(), incarnation.number.to_string());
    let first = (labels::FIRST_ATTEMPT.to_owned(), incarnation.attempt.to_string());
    metadata.annotations.get_or_insert_default().extend([number.clone(), first]);
    let labels = metadata.labels.get_or_insert_default();
    labels.extend([number, (labels::ROLE.to_owned(), role.name.to_string())]);
    if !role.name.is_worker() {
        labels.extend([(labels::COMPONENT.to_owned(), role.name.to_string())]);
    }
    labels.extend(role.pod.scheduling.queue.clone().map(|queue| (labels::QUEUE.to_owned(), queue)));
    metadata
}
