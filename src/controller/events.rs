//! Events: told on the TrainingJob, and read of Jobs and pods where they alone know the cause.

use super::Context;
use super::error::{Error, call};
use crate::api::{State, TrainingJob, TrainingJobStatus};
use crate::lifecycle::{self, Look, whole_second};
use crate::observe::events::note;
use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::events::v1 as events;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{ListParams, PostParams};
use kube::{Resource, ResourceExt};
use std::hash::{DefaultHasher, Hash, Hasher};
use tracing::debug;

impl Context {
    /// Publishes events beside the reconcile: a training never waits for its chronicle.
    ///
    /// A fact of an attempt has one name, so that it is told once, also after a restart of the operator.
    pub(super) fn tell(&self, job: &TrainingJob, attempt: Option<i32>, facts: Vec<lifecycle::Event>) {
        if facts.is_empty() {
            return;
        }
        let api = self.api::<events::Event>(&job.namespace().unwrap_or_default());
        let regarding = job.object_ref(&());
        let facts: Vec<_> = facts.into_iter().map(|fact| self.event(job, attempt, &regarding, fact)).collect();
        tokio::spawn(async move {
            for fact in facts {
                if let Err(error) = call("publish event", api.create(&PostParams::default(), &fact)).await {
                    debug!(%error, "event not published");
                }
            }
        });
    }

    fn event(
        &self,
        job: &TrainingJob,
        attempt: Option<i32>,
        regarding: &core::ObjectReference,
        fact: lifecycle::Event,
    ) -> events::Event {
        let mut hasher = DefaultHasher::new();
        (&job.metadata.uid, attempt, fact.reason, &fact.note).hash(&mut hasher);
        events::Event {
            metadata: ObjectMeta {
                name: Some(format!("{}.{:016x}", job.name_any(), hasher.finish())),
                namespace: job.namespace(),
                ..ObjectMeta::default()
            },
            action: Some(fact.reason.to_owned()),
            event_time: Some(MicroTime(Timestamp::now())),
            // The API takes 1,024 bytes; characters are at most four of them.
            note: Some(
                fact.note
                    .chars()
                    .take(1000)
                    .scan(0, |bytes, c| {
                        *bytes += c.len_utf8();
                        (*bytes <= 1000).then_some(c)
                    })
                    .collect(),
            ),
            reason: Some(fact.reason.to_owned()),
            regarding: Some(regarding.clone()),
            reporting_controller: Some(crate::build::labels::OPERATOR.to_owned()),
            reporting_instance: Some(self.options.identity.chars().take(128).collect()),
            type_: Some(if fact.warning { "Warning" } else { "Normal" }.to_owned()),
            ..events::Event::default()
        }
    }

    /// Reads the Events of objects that wait; true if they told something new.
    pub(super) async fn look(&self, job: &TrainingJob, uid: &str, look: &[Look]) -> Result<bool, Error> {
        let api = self.api::<core::Event>(&job.namespace().unwrap_or_default());
        let mut found = None;
        for Look { uid } in look {
            let params = ListParams::default().fields(&format!("involvedObject.uid={uid}")).limit(100);
            let list = call("list events", api.list(&params)).await?;
            found = found.or(note(&list.items));
        }
        Ok(self.index.update(uid, |family| {
            family.looked = Some(whole_second(Timestamp::now()));
            let learnt = family.note != found;
            family.note = found;
            learnt
        }))
    }

    /// Counts what the change of status means.
    pub(super) fn count(&self, job: &TrainingJob, old: &TrainingJobStatus, new: &TrainingJobStatus) {
        let namespace = job.namespace().unwrap_or_default();
        self.metrics.changed(job, old, new);
        if old.state.is_none() && new.state.is_some() {
            self.metrics.created(&namespace);
        }
        let restarts = new.restart_count.unwrap_or(0) - old.restart_count.unwrap_or(0);
        if restarts > 0 {
            self.metrics.restarted(&namespace, new.restarts.last().map_or("", |r| r.reason.as_str()));
        }
        if old.state != new.state {
            match new.state {
                Some(State::Completed) => self.metrics.completed(&namespace),
                Some(State::Failed) => self.metrics.failed(&namespace, new.failure_reason.as_deref().unwrap_or("")),
                _ => {}
            }
        }
    }
}
