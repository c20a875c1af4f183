//! A Job as the operator keeps it.

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use objects::labels;
use protocol::role::RoleName;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The part of a Job that the watch decodes.
#[derive(kube::Resource, Serialize, Deserialize, Clone, Debug, Default)]
#[resource(inherit = Job)]
pub struct SlimJob {
    /// Name, UID, labels, deletion.
    #[serde(deserialize_with = "super::slim::metadata")]
    pub metadata: ObjectMeta,
    /// Whether it is suspended, and its parallelism.
    #[serde(default)]
    pub spec: SlimJobSpec,
    /// Its status.
    #[serde(default)]
    pub status: SlimJobStatus,
}

/// The part of a Job's spec that the watch decodes.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase")]
pub struct SlimJobSpec {
    /// Set by a queue manager.
    #[serde(default)]
    pub suspend: bool,
    /// Concurrent pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallelism: Option<i32>,
    /// Whether its pods name a group of Kubernetes. An API server that doesn't know the field drops it.
    #[serde(default, rename = "template", skip_serializing, deserialize_with = "super::slim::has_group")]
    pub has_group: bool,
}

/// The part of a Job's status that the watch decodes.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase")]
pub struct SlimJobStatus {
    /// Complete, Failed, FailureTarget, Suspended.
    #[serde(default)]
    pub conditions: Vec<JobCondition>,
    /// When the Job controller first processed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// Indexes that succeeded, as in `0,3-5`. They stay when their pods are gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_indexes: Option<String>,
}

/// What the index keeps of a Job.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
pub struct ObservedJob {
    /// UID of the Job: the precondition of its deletion.
    pub uid: String,
    /// Name of the Job.
    pub name: String,
    /// The role whose pods it has.
    pub role: RoleName,
    /// Number of its incarnation.
    pub incarnation: u32,
    /// The attempt with which its pods begin.
    pub first_attempt: u32,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// When the Job controller first processed it. Before that it has created no pod, and has not reported why.
    pub taken_up: Option<Timestamp>,
    /// Its deletion has begun.
    pub deleting: bool,
    /// A queue manager suspends it, or did when the Job controller last looked.
    pub suspended_by_queue: bool,
    /// Whether its spec is suspended.
    pub suspend: bool,
    /// Concurrent pods. A Job is created with one for each worker.
    pub parallelism: Option<i32>,
    /// When a queue manager last resumed it. Pods from before then were stopped by the queue manager.
    pub resumed: Option<Timestamp>,
    /// Indexes that succeeded. Their pods may be gone, and are not recreated.
    pub completed: BTreeSet<u32>,
    /// Every index succeeded.
    pub complete: bool,
    /// It failed, or is about to once its pods have ended: the Job controller's reason and message.
    pub failed: Option<(String, String)>,
}

impl SlimJob {
    /// The role whose pods it has; `None` if it is not ours.
    #[must_use]
    pub fn role(&self) -> Option<RoleName> {
        super::role(&self.metadata)
    }

    /// Whether its pods are starting, and nothing else has happened.
    #[must_use]
    pub fn is_starting(&self) -> bool {
        self.seen().is_some_and(|job| {
            let is_over = job.complete || job.failed.is_some() || !job.completed.is_empty();
            !is_over && !job.deleting && !job.suspended_by_queue && job.resumed.is_none()
        })
    }

    /// Extracts the part of a Job that is kept. `None` if it is not ours.
    #[must_use]
    pub fn seen(&self) -> Option<ObservedJob> {
        let meta = &self.metadata;
        let is = |type_: &str, status| self.status.conditions.iter().find(|c| c.type_ == type_ && c.status == status);
        let true_ = |type_: &str| is(type_, "True");
        let incarnation = labels::incarnation(meta.labels.as_ref()?)?;
        let first_attempt = meta.annotations.as_ref().and_then(|all| all.get(labels::FIRST_ATTEMPT)?.parse().ok());
        Some(ObservedJob {
            uid: meta.uid.clone()?,
            name: meta.name.clone()?,
            role: self.role()?,
            incarnation,
            // A Job of an older operator has one number for both.
            first_attempt: first_attempt.unwrap_or(incarnation),
            created: meta.creation_timestamp.as_ref().map(|t| t.0),
            taken_up: self.status.start_time.as_ref().map(|t| t.0),
            deleting: meta.deletion_timestamp.is_some(),
            // Until the Job controller has noticed either change, there may be pods that it is about to delete.
            suspended_by_queue: self.spec.suspend || true_("Suspended").is_some(),
            suspend: self.spec.suspend,
            parallelism: self.spec.parallelism,
            resumed: is("Suspended", "False").and_then(|c| c.last_transition_time.as_ref()).map(|t| t.0),
            completed: self.status.completed_indexes.as_deref().map(indexes).unwrap_or_default(),
            complete: true_("Complete").is_some(),
            failed: true_("Failed")
                .or_else(|| true_("FailureTarget"))
                .map(|c| (c.reason.clone().unwrap_or_default(), c.message.clone().unwrap_or_default())),
        })
    }
}

impl SlimJob {
    /// Extracts the part of the upkeep Job that is kept.
    pub(super) fn upkeep(&self) -> Option<super::ObservedUpkeep> {
        let meta = &self.metadata;
        let is = |type_: &str| self.status.conditions.iter().any(|c| c.type_ == type_ && c.status == "True");
        Some(super::ObservedUpkeep {
            uid: meta.uid.clone()?,
            name: meta.name.clone()?,
            task: meta.labels.as_ref()?.get(labels::TASK).cloned().unwrap_or_default(),
            created: meta.creation_timestamp.as_ref().map(|t| t.0),
            deleting: meta.deletion_timestamp.is_some(),
            ended: if is("Complete") { Some(true) } else { is("Failed").then_some(false) },
        })
    }
}

/// Reads `0,3-5` as the Job controller writes it.
fn indexes(text: &str) -> BTreeSet<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<u32>().ok()?..=last.trim().parse::<u32>().ok()?)
    };
    text.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completed_indexes_are_parsed() {
        assert_eq!(indexes("0,3-5,9"), BTreeSet::from([0, 3, 4, 5, 9]));
        for nothing in ["", "x", "1-", ","] {
            assert_eq!(indexes(nothing), BTreeSet::new(), "{nothing}");
        }
    }
}
