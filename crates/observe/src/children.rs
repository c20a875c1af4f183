//! The objects of one TrainingJob, as the watches show them.

use super::{ObservedJob, ObservedPod, ObservedWorkload};
use api::Reason;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use objects::labels;
use protocol::report::Report;
use protocol::role::RoleName;
use std::collections::BTreeMap;

/// A Service or ConfigMap: its identity, and a digest of its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedChild {
    /// UID of the object.
    pub uid: String,
    /// Digest of the content that we own. A different one means that another client changed it.
    pub digest: u64,
    /// Its deletion has begun.
    pub deleting: bool,
}

/// Kinds of children, in the order in which they are named to users.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChildKind {
    /// The headless Service.
    Service,
    /// The ConfigMap.
    ConfigMap,
    /// The claim for checkpoints.
    PersistentVolumeClaim,
    /// The Secret with the job's keys.
    Secret,
    /// The NetworkPolicy of the job's pods.
    NetworkPolicy,
    /// The PodGroup by which the workers are placed together.
    PodGroup,
    /// The Workload by which Kueue admits all roles together.
    Workload,
    /// The Job of a role.
    Job,
}

impl ChildKind {
    /// As Kubernetes writes it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Service => "Service",
            Self::ConfigMap => "ConfigMap",
            Self::PersistentVolumeClaim => "PersistentVolumeClaim",
            Self::Secret => "Secret",
            Self::NetworkPolicy => "NetworkPolicy",
            Self::PodGroup => "PodGroup",
            Self::Workload => "Workload",
            Self::Job => "Job",
        }
    }

    /// Whether it exists as long as the TrainingJob does, and no Job is created without it.
    #[must_use]
    pub fn precedes_jobs(self) -> bool {
        matches!(self, Self::Service | Self::ConfigMap | Self::PersistentVolumeClaim)
    }
}

/// A child: its kind, and for a Job also the role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChildKey {
    /// Its kind.
    pub kind: ChildKind,
    /// Its role, where each role has one.
    pub role: Option<RoleName>,
}

impl ChildKey {
    /// The headless Service.
    pub const SERVICE: Self = Self { kind: ChildKind::Service, role: None };
    /// The ConfigMap.
    pub const CONFIG: Self = Self { kind: ChildKind::ConfigMap, role: None };
    /// The claim for checkpoints.
    pub const CLAIM: Self = Self { kind: ChildKind::PersistentVolumeClaim, role: None };
    /// The Secret with the job's keys.
    pub const KEYS: Self = Self { kind: ChildKind::Secret, role: None };
    /// The NetworkPolicy of the job's pods.
    pub const NETWORK_POLICY: Self = Self { kind: ChildKind::NetworkPolicy, role: None };
    /// The PodGroup.
    pub const POD_GROUP: Self = Self { kind: ChildKind::PodGroup, role: None };
    /// The Workload of all roles.
    pub const WORKLOAD: Self = Self { kind: ChildKind::Workload, role: None };

    /// The Job that looks after the checkpoints.
    pub const UPKEEP: Self = Self { kind: ChildKind::Job, role: Some(RoleName::literal(labels::UPKEEP)) };

    /// The Job of a role.
    #[must_use]
    pub const fn job(role: RoleName) -> Self {
        Self { kind: ChildKind::Job, role: Some(role) }
    }
}

/// Why a child could not be created. This is kept until the creation succeeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// In one word.
    pub reason: Reason,
    /// What blocks the child, and what would fix that.
    pub message: String,
}

impl Blocked {
    /// Whether the creation was denied or got no answer, either of which may change later.
    #[must_use]
    pub fn is_denial(&self) -> bool {
        matches!(self.reason, Reason::Denied | Reason::WebhookFailed | Reason::ApiTimeout)
    }

    /// The object still exists, but is being deleted. The watch reports when it is gone.
    #[must_use]
    pub fn deleting(name: &str) -> Self {
        let message = format!("{name} is being deleted; it is made again when it is gone");
        Self { reason: Reason::OldObject, message }
    }
}

/// The Job that looks after the checkpoints while no worker runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedUpkeep {
    /// UID of the Job: the precondition of its deletion.
    pub uid: String,
    /// Name of the Job.
    pub name: String,
    /// Its task, as the agent gets it.
    pub task: String,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// Its deletion has begun.
    pub deleting: bool,
    /// It has ended: `Some(true)` if it succeeded.
    pub ended: Option<bool>,
}

/// What an Event of the API says about a Job or a pod, because no other object says it.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectEvent {
    /// UID of the object.
    pub about: String,
    /// In one word.
    pub reason: Reason,
    /// In Kubernetes' words.
    pub message: String,
}

/// The objects of one TrainingJob.
#[derive(Clone, Debug, Default)]
pub struct Children {
    /// The headless Service.
    pub service: Option<ObservedChild>,
    /// The ConfigMap.
    pub config: Option<ObservedChild>,
    /// The Jobs by role; never more than one for each.
    pub jobs: BTreeMap<RoleName, Box<ObservedJob>>,
    /// Pods by UID, including those that are gone.
    pub pods: BTreeMap<String, Box<ObservedPod>>,
    /// The Job that looks after the checkpoints while no worker runs.
    pub upkeep: Option<ObservedUpkeep>,
    /// Its Workload in a queue of Kueue, if it has several roles.
    pub workload: Option<ObservedWorkload>,
    /// Workloads have not been listed yet, so one that is not known may exist.
    pub workloads_unlisted: bool,
    /// Final report of its pods, with the UID of the Job.
    pub upkeep_words: Option<(String, Report)>,
    /// Children that could not be created.
    pub blocked: BTreeMap<ChildKey, Blocked>,
    /// The newest version seen of a child, its deletion included. The answer to a write of ours may come after the
    /// watch has reported later changes.
    pub versions: BTreeMap<ChildKey, u64>,
    /// Digests of children as the API server stores them after our write, where admission changes what we write.
    pub settled: BTreeMap<ChildKey, u64>,
    /// When the PodGroup was last confirmed to exist, because no watch covers it.
    pub group_looked_at: Option<Timestamp>,
    /// For each role, the UID of the failed Job whose pods were read besides the watch.
    pub pods_read_of: BTreeMap<RoleName, String>,
    /// What the Events said that were read last.
    pub event: Option<ObjectEvent>,
    /// When Events were last read.
    pub events_read_at: Option<Timestamp>,
    /// How often in a row Events brought nothing new, with no news of the Job and the pods in between.
    pub events_read_in_vain: u32,
}

impl Children {
    /// The Job of a role.
    #[must_use]
    pub fn job(&self, role: RoleName) -> Option<&ObservedJob> {
        self.jobs.get(&role).map(|job| &**job)
    }

    /// How long after the last time Events are worth reading again, because the API server searches all of the
    /// namespace's. 15 s, doubling to four minutes while they bring nothing new.
    #[must_use]
    pub fn read_events_after(&self) -> SignedDuration {
        SignedDuration::from_secs(15 << self.events_read_in_vain.saturating_sub(1).min(4))
    }

    /// Whether any of the objects still exists.
    pub(super) fn exist(&self) -> bool {
        let has_object =
            self.service.is_some() || self.config.is_some() || !self.jobs.is_empty() || self.upkeep.is_some();
        has_object || self.pods.values().any(|pod| !pod.gone)
    }

    /// Whether an object is news: nothing newer was seen of this child.
    pub fn is_news(&mut self, key: ChildKey, meta: &ObjectMeta) -> bool {
        let (version, newest) = (version(meta), self.versions.entry(key).or_default());
        let is_news = version >= *newest;
        *newest = version.max(*newest);
        is_news
    }

    /// Whether a child is not being deleted, and has the content that it should.
    #[must_use]
    pub fn is_kept_right(&self, key: ChildKey, child: &ObservedChild, should: u64) -> bool {
        !child.deleting && self.is_right(key, child.digest, should)
    }

    /// Whether a child has the content that it should, as far as the API server allows.
    #[must_use]
    pub fn is_right(&self, key: ChildKey, digest: u64, should: u64) -> bool {
        digest == should || self.settled.get(&key) == Some(&digest)
    }
}

/// Resource versions are increasing numbers, as Kubernetes guarantees since 1.35.
#[must_use]
pub fn version(meta: &ObjectMeta) -> u64 {
    meta.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_reads_back_off_while_nothing_is_new() {
        let after = |events_read_in_vain| Children { events_read_in_vain, ..Children::default() }.read_events_after();
        let seconds = [0, 1, 2, 3, 4, 5, 6, u32::MAX].map(|times| after(times).as_secs());
        assert_eq!(seconds, [15, 15, 30, 60, 120, 240, 240, 240]);
    }
}
