//! Changes of the spec after Jobs or pods were made from it. Another attempt follows, with the new spec.
//!
//! The API server accepts them only while no program runs ([`api::CHANGEABLE`]). A program may start in the same
//! moment. Its attempt then ends as by a suspension, and costs nothing of the budget.

use super::phase::Phase;
use super::view::View;
use api::{AttemptSpec, State, TrainingJobStatus};

impl<'a> View<'a> {
    /// The present spec.
    fn spec_now(&self) -> Option<AttemptSpec> {
        let plan = self.input.plan;
        let (digest, code) = (plan.identity.fixed.clone(), plan.storage.code.clone());
        Some(AttemptSpec { generation: self.input.generation?, digest, code })
    }

    /// Whether the spec differs from that of the last attempt. The same generation means the same spec, even if another
    /// version computed its digest differently.
    fn is_changed(&self, differs: fn(&AttemptSpec, &AttemptSpec) -> bool) -> bool {
        let known = self.record.attempt_spec.as_ref();
        known.zip(self.spec_now()).is_some_and(|(known, now)| known.generation < now.generation && differs(known, &now))
    }

    /// The request by which a failed job whose spec has changed starts again.
    pub(super) fn request_by_change(&self) -> Option<String> {
        let is_changed = self.is_changed(|known, now| (&known.digest, &known.code) != (&now.digest, &now.code));
        let asked = self.input.plan.policy.restart_requested.clone();
        is_changed.then(|| asked.unwrap_or_else(|| format!("generation {}", self.input.generation.unwrap_or(0))))
    }

    /// Jobs of this incarnation, or pods without them, were made from another spec.
    pub(super) fn changed(&self) -> Option<Phase<'a>> {
        let is_made = !self.jobs.is_empty() || self.has_begun();
        let is_changed = is_made && !self.has_succeeded() && self.is_changed(|known, now| known.digest != now.digest);
        is_changed.then_some(Phase::Changed)
    }

    /// The record of the spec in a status of this job. In a failed job it stays as long as it differs, because it
    /// reveals the change. A Completed job needs none.
    pub(super) fn with_spec(&self, status: &TrainingJobStatus, is_over: bool) -> Option<AttemptSpec> {
        let known = status.attempt_spec.clone();
        match status.state {
            Some(State::Completed) => None,
            _ if is_over && (known.is_none() || self.request_by_change().is_some()) => known,
            _ => self.spec_now().or(known),
        }
    }
}
