//! Another attempt that a person requests by an annotation: of a job that runs, or of one that has failed.

use super::view::View;
use api::{AskedRestart, TrainingJobStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

impl View<'_> {
    /// A restart that is requested, and that is not on record yet.
    pub(super) fn requested_restart(&self) -> Option<String> {
        let asked = self.input.plan.policy.restart_requested.as_ref()?;
        let heeded = self.record.asked_restart.as_ref().map(|heeded| &heeded.request);
        (heeded != Some(asked)).then(|| asked.clone())
    }
}

/// That a request is met; `attempt` is the first one that follows from it.
pub(super) fn heeded(view: &View<'_>, request: String, attempt: u32) -> AskedRestart {
    AskedRestart { request, time: Time(view.now()), attempt }
}

/// Of a job that has not ended. The agent of worker 0 finds the request in the ConfigMap, and the gang starts again in its
/// pods; whatever else comes next is another attempt anyway.
pub(super) fn accepted(view: &View<'_>, record: TrainingJobStatus) -> TrainingJobStatus {
    let Some(request) = view.requested_restart() else { return record };
    let current = view.current.attempt;
    let attempt = match view.gang_job().filter(|_| !view.is_settled()) {
        // Whether another attempt follows is not yet decided.
        Some(job) if job.deleting || job.failed.is_some() => return record,
        Some(_) if view.pods.iter().any(|pod| pod.runs()) => current.saturating_add(1),
        None if !view.is_settled() && view.has_lost_job() => return record,
        _ => current,
    };
    TrainingJobStatus { asked_restart: Some(heeded(view, request, attempt)), ..record }
}
