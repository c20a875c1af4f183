//! Events: read of Jobs and pods where they alone know the cause; and changes of the status, counted.

use super::error::{Error, call};
use super::pass::Pass;
use crate::api::{Reason, State, TrainingJob, TrainingJobStatus};
use crate::lifecycle::whole_second;
use crate::observe::events::telling;
use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use kube::api::ListParams;

impl Pass<'_, TrainingJob> {
    /// Reads the Events of objects that wait; true if they told something new.
    pub(super) async fn read_events(&self, of: &[String]) -> Result<bool, Error> {
        let api = self.api::<core::Event>();
        let mut found = None;
        for uid in of {
            let params = ListParams::default().fields(&format!("involvedObject.uid={uid}")).limit(100);
            let list = call("list events", api.list(&params)).await?;
            found = found.or(telling(&list.items));
        }
        let learnt = self.context.index.update_known(&self.key, |cell| {
            let children = &mut cell.children;
            children.events_read_at = Some(whole_second(Timestamp::now()));
            let learnt = children.event != found;
            children.event = found;
            children.events_read_in_vain = if learnt { 0 } else { children.events_read_in_vain.saturating_add(1) };
            learnt
        });
        Ok(learnt.unwrap_or(false))
    }

    /// Counts what the change of status means.
    pub(super) fn count(&self, old: &TrainingJobStatus, new: &TrainingJobStatus) {
        let (namespace, metrics) = (&self.key.namespace, &self.context.metrics);
        metrics.changed(self.owner, old, new);
        if old.state.is_none() && new.state.is_some() {
            metrics.created(namespace);
        }
        let restarts = new.restart_count.unwrap_or(0) - old.restart_count.unwrap_or(0);
        let ended = new.restarts.iter().rev().filter(|restart| Some(restart.attempt) < new.attempt);
        for restart in ended.take(usize::try_from(restarts).unwrap_or(0)) {
            metrics.restarted(namespace, restart.reason.as_str());
        }
        if old.state != new.state {
            match new.state {
                Some(State::Completed) => metrics.completed(namespace),
                Some(State::Failed) => {
                    metrics.failed(namespace, new.failure_reason.as_ref().map_or("", Reason::as_str));
                }
                _ => {}
            }
        }
    }
}
