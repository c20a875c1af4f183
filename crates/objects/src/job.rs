//! The Indexed Job: the pods of one role in one incarnation.

use super::{labels, metadata, names, pod};
use k8s_openapi::api::batch::v1::{
    Job, JobSpec, PodFailurePolicy, PodFailurePolicyOnPodConditionsPattern, PodFailurePolicyRule,
};
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
            // Until the Workload of all roles is admitted.
            suspend: plan.gang.queue.as_ref().map(|_| true),
            // One failed worker is a failed gang: whether and when to start another is the operator's to decide, and
            // so are deadline and TTL.
            backoff_limit: Some(0),
            pod_failure_policy: Some(tell_disruptions()),
            // Never two pods of one hostname.
            pod_replacement_policy: Some("Failed".to_owned()),
            template: pod::template(plan, role, incarnation, past),
            ..JobSpec::default()
        }),
        status: None,
    }
}

/// Fails the Job as any failed pod does, but with a condition that says that it was a disruption: an evicted pod may be
/// gone before an operator that comes back has seen it. (To ignore disruptions instead would have the Job controller replace
/// pods after a back-off of up to ten minutes, and where no gang is left to take them in. `lifecycle/lost.rs` has what
/// replaces one at once.)
fn tell_disruptions() -> PodFailurePolicy {
    PodFailurePolicy {
        rules: vec![PodFailurePolicyRule {
            action: "FailJob".to_owned(),
            on_exit_codes: None,
            on_pod_conditions: Some(vec![PodFailurePolicyOnPodConditionsPattern {
                type_: "DisruptionTarget".to_owned(),
                status: "True".to_owned(),
            }]),
        }],
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
