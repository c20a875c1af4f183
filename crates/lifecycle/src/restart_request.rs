//! Another attempt that a person requests by an annotation, for a running or a failed job.

use super::view::View;
use api::{HandledRestart, TrainingJobStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

impl View<'_> {
    /// A requested restart that is not recorded yet.
    pub(super) fn requested_restart(&self) -> Option<String> {
        let asked = self.input.plan.policy.restart_requested.as_ref()?;
        let handled = self.record.asked_restart.as_ref().map(|handled| &handled.request);
        (handled != Some(asked)).then(|| asked.clone())
    }
}

/// The record of an accepted request. `attempt` is the first one that follows from it.
pub(super) fn handled_restart(view: &View<'_>, request: String, attempt: u32) -> HandledRestart {
    HandledRestart { request, time: Time(view.now()), attempt }
}

/// Accepts a request for a job that has not ended. The agent of worker 0 finds the request in the ConfigMap, and the
/// gang starts again in its pods. In all other cases another attempt follows anyway.
pub(super) fn accepted(view: &View<'_>, record: TrainingJobStatus) -> TrainingJobStatus {
    let Some(request) = view.requested_restart() else { return record };
    let current = view.current.attempt;
    let attempt = match view.gang_job().filter(|_| !view.is_settled()) {
        // It is not decided yet whether another attempt follows.
        Some(job) if job.deleting || job.failed.is_some() => return record,
        Some(_) if view.pods.iter().any(|pod| pod.runs()) => current.saturating_add(1),
        None if !view.is_settled() && view.has_lost_job() => return record,
        _ => current,
    };
    TrainingJobStatus { asked_restart: Some(handled_restart(view, request, attempt)), ..record }
}
