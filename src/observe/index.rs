//! The index: everything seen of each TrainingJob, filed under its UID.

use super::{JobSeen, PodSeen, SlimJob, SlimPod};
use crate::api::{GROUP, TrainingJob, TrainingJobStatus};
use crate::build::labels;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Resource, ResourceExt, runtime::watcher::Event};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A Service or ConfigMap: who it is and what it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildSeen {
    /// UID of the object.
    pub uid: String,
    /// Digest of what we own in it: another one means that somebody changed it.
    pub digest: u64,
    /// Its deletion has begun.
    pub deleting: bool,
}

/// Kinds of children, in the order in which they are named to people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChildKind {
    /// The headless Service.
    Service,
    /// The ConfigMap.
    ConfigMap,
    /// The claim for checkpoints.
    PersistentVolumeClaim,
    /// The Job.
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
            Self::Job => "Job",
        }
    }
}

/// Why a child could not be made: kept until it could.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// `NameTaken`, `OldObject`, `QuotaExceeded`, `Forbidden`, `Invalid`.
    pub reason: String,
    /// What stands in the way and what would mend it.
    pub message: String,
}

impl Blocked {
    /// The object is still there, but on its way out: the watch tells when it is gone.
    #[must_use]
    pub fn deleting(name: &str) -> Self {
        let message = format!("{name} is being deleted; it is made again when it is gone");
        Self { reason: "OldObject".into(), message }
    }
}

/// What an Event of the Job or of a pod said, for it stands nowhere else.
#[derive(Clone, Debug, PartialEq)]
pub struct Note {
    /// UID of the object.
    pub about: String,
    /// `PodSecurity`, `QuotaExceeded`, `PodsRefused`, `Storage`, `Starting`.
    pub reason: String,
    /// In Kubernetes' words.
    pub message: String,
}

/// Everything seen of one TrainingJob, and what the operator remembers of its own writes to it.
#[derive(Clone, Debug, Default)]
pub struct Family {
    /// The headless Service.
    pub service: Option<ChildSeen>,
    /// The ConfigMap.
    pub config: Option<ChildSeen>,
    /// The Job; never more than one.
    pub job: Option<JobSeen>,
    /// Pods by UID, those included that are gone.
    pub pods: BTreeMap<String, PodSeen>,
    /// Children that could not be made.
    pub blocked: BTreeMap<ChildKind, Blocked>,
    /// The newest version seen of a child, its deletion included: the answer to a write of ours may come after the
    /// watch has told of what followed.
    pub versions: BTreeMap<ChildKind, u64>,
    /// Digests of children as the API server keeps them after our write, where admission changes what we write.
    pub settled: BTreeMap<ChildKind, u64>,
    /// What Events said, and when they were read.
    pub note: Option<Note>,
    /// When Events were last read.
    pub looked: Option<Timestamp>,
    /// Version and content of the status that we wrote last: the watch may not have shown it yet.
    pub written: Option<(u64, TrainingJobStatus)>,
    /// Generation of a spec that can't be read, and why, once the TrainingJob says so.
    pub unreadable: Option<(Option<i64>, String)>,
    /// Reconciles that failed in a row.
    pub failures: u32,
    /// Since when counters alone differ from what is written.
    pub counters_since: Option<std::time::Instant>,
    /// When what the program reports was last written.
    pub progress_written: Option<std::time::Instant>,
    /// The TrainingJob exists no more; some of its objects still may.
    pub forgotten: bool,
}

impl Family {
    fn is_over(&self) -> bool {
        let has_child = self.service.is_some() || self.config.is_some() || self.job.is_some();
        self.forgotten && !has_child && self.pods.values().all(|pod| pod.gone)
    }

    /// Whether an object is news: nothing newer was seen of this child.
    pub fn is_news(&mut self, kind: ChildKind, meta: &ObjectMeta) -> bool {
        let (version, newest) = (version(meta), self.versions.entry(kind).or_default());
        let is_news = version >= *newest;
        *newest = version.max(*newest);
        is_news
    }

    /// Whether a child says what it should, as far as the API server lets it.
    #[must_use]
    pub fn is_right(&self, kind: ChildKind, digest: u64, should: u64) -> bool {
        digest == should || self.settled.get(&kind) == Some(&digest)
    }
}

/// Resource versions are numbers that grow, as Kubernetes guarantees since 1.35.
#[must_use]
pub fn version(meta: &ObjectMeta) -> u64 {
    meta.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(0)
}

/// A claim for checkpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimSeen {
    /// Its deletion has begun.
    pub deleting: bool,
    /// UIDs of its owners; one that is to outlive its job has none.
    pub owners: Vec<String>,
}

impl ClaimSeen {
    /// Whether the job with this UID may use it: not if it goes, by itself or with an earlier job of the same name.
    #[must_use]
    pub fn serves(&self, uid: &str) -> bool {
        !self.deleting && (self.owners.is_empty() || self.owners.iter().any(|owner| owner == uid))
    }
}

/// All families, and the claims, which outlive them and so are filed by namespace and name.
#[derive(Default, Debug)]
pub struct Index {
    inner: Mutex<Inner>,
}

#[derive(Default, Debug)]
struct Inner {
    families: HashMap<String, Family>,
    claims: HashMap<(String, String), ClaimSeen>,
    /// What a watch that starts again has listed so far; what it does not list is gone.
    listed: HashMap<ChildKind, HashSet<String>>,
    pods_listed: HashSet<String>,
}

impl Inner {
    /// The last object of a forgotten TrainingJob has gone.
    fn bury(&mut self, uid: &str) {
        if self.families.get(uid).is_some_and(Family::is_over) {
            self.families.remove(uid);
        }
    }
}

impl Index {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic while the lock was held leaves at worst one half-filed event; the next event of it mends that.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of the TrainingJob with this UID.
    #[must_use]
    pub fn family(&self, uid: &str) -> Family {
        self.lock().families.get(uid).cloned().unwrap_or_default()
    }

    /// Reads one family without copying it.
    pub fn read<T>(&self, uid: &str, read: impl FnOnce(&Family) -> T) -> Option<T> {
        self.lock().families.get(uid).map(read)
    }

    /// Changes one family.
    pub fn update<T>(&self, uid: &str, change: impl FnOnce(&mut Family) -> T) -> T {
        change(self.lock().families.entry(uid.to_owned()).or_default())
    }

    /// Changes one family, unless it has been forgotten.
    pub fn update_known(&self, uid: &str, change: impl FnOnce(&mut Family)) {
        if let Some(family) = self.lock().families.get_mut(uid) {
            change(family);
        }
    }

    /// Forgets a TrainingJob that exists no more.
    pub fn forget(&self, uid: &str) {
        let mut inner = self.lock();
        inner.families.entry(uid.to_owned()).or_default().forgotten = true;
        inner.bury(uid);
    }

    /// Forgets all TrainingJobs but these.
    pub fn forget_all_but(&self, there: &HashSet<String>) {
        let mut inner = self.lock();
        for (_, family) in inner.families.iter_mut().filter(|(uid, _)| !there.contains(*uid)) {
            family.forgotten = true;
        }
        inner.families.retain(|_, family| !family.is_over());
    }

    /// The claim of this name, if it carries our label.
    #[must_use]
    pub fn claim(&self, namespace: &str, name: &str) -> Option<ClaimSeen> {
        self.lock().claims.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// Files an event of the watch of pods.
    pub fn pod(&self, event: &Event<SlimPod>) {
        let mut inner = self.lock();
        match event {
            Event::Init => inner.pods_listed.clear(),
            Event::InitDone => {
                let listed = std::mem::take(&mut inner.pods_listed);
                for family in inner.families.values_mut() {
                    for pod in family.pods.values_mut().filter(|p| !listed.contains(&p.uid)) {
                        pod.gone = true;
                    }
                }
            }
            Event::InitApply(pod) | Event::Apply(pod) | Event::Delete(pod) => {
                let gone = matches!(event, Event::Delete(_));
                let (Some(family), Some(seen)) = (family_uid(pod), pod.seen(gone)) else { return };
                if matches!(event, Event::InitApply(_)) {
                    inner.pods_listed.insert(seen.uid.clone());
                }
                inner.families.entry(family.clone()).or_default().pods.insert(seen.uid.clone(), seen);
                inner.bury(&family);
            }
        }
    }

    /// Files an event of the watch of Jobs.
    pub fn job(&self, event: &Event<SlimJob>) {
        let mut inner = self.lock();
        match event {
            Event::Init => drop(inner.listed.insert(ChildKind::Job, HashSet::new())),
            Event::InitDone => {
                let listed = inner.listed.remove(&ChildKind::Job).unwrap_or_default();
                for family in inner.families.values_mut() {
                    family.job.take_if(|job| !listed.contains(&job.uid));
                }
            }
            Event::InitApply(job) | Event::Apply(job) => {
                let (Some(family), Some(seen)) = (family_uid(job), job.seen()) else { return };
                if let Some(listed) = inner.listed.get_mut(&ChildKind::Job) {
                    listed.insert(seen.uid.clone());
                }
                let family = inner.families.entry(family).or_default();
                if !family.is_news(ChildKind::Job, &job.metadata) {
                    return;
                }
                // The pods of earlier attempts have had their say once a newer Job is there.
                family.pods.retain(|_, pod| pod.attempt >= seen.attempt || !pod.gone);
                family.job = Some(seen);
            }
            Event::Delete(job) => {
                let Some(uid) = family_uid(job) else { return };
                if let Some(family) = inner.families.get_mut(&uid) {
                    family.is_news(ChildKind::Job, &job.metadata);
                    family.job.take_if(|seen| Some(&seen.uid) == job.metadata.uid.as_ref());
                }
                inner.bury(&uid);
            }
        }
    }

    /// Files an event of the watch of Services.
    pub fn service(&self, event: &Event<Service>) {
        self.child(event, ChildKind::Service, super::digest::service, |family| &mut family.service);
    }

    /// Files an event of the watch of ConfigMaps.
    pub fn config(&self, event: &Event<ConfigMap>) {
        self.child(event, ChildKind::ConfigMap, super::digest::config, |family| &mut family.config);
    }

    fn child<K: Resource<DynamicType = ()>>(
        &self,
        event: &Event<K>,
        kind: ChildKind,
        digest: impl Fn(&K) -> u64,
        slot: impl Fn(&mut Family) -> &mut Option<ChildSeen>,
    ) {
        let mut inner = self.lock();
        match event {
            Event::Init => drop(inner.listed.insert(kind, HashSet::new())),
            Event::InitDone => {
                let listed = inner.listed.remove(&kind).unwrap_or_default();
                for family in inner.families.values_mut() {
                    slot(family).take_if(|child| !listed.contains(&child.uid));
                }
            }
            Event::InitApply(object) | Event::Apply(object) => {
                let (Some(family), Some(uid)) = (family_uid(object), object.uid()) else {
                    // Somebody took all that ties it to its job: to us it is gone.
                    for family in inner.families.values_mut() {
                        slot(family).take_if(|child| Some(&child.uid) == object.meta().uid.as_ref());
                    }
                    return;
                };
                if let Some(listed) = inner.listed.get_mut(&kind) {
                    listed.insert(uid.clone());
                }
                let deleting = object.meta().deletion_timestamp.is_some();
                let family = inner.families.entry(family).or_default();
                if family.is_news(kind, object.meta()) {
                    *slot(family) = Some(ChildSeen { uid, digest: digest(object), deleting });
                }
            }
            Event::Delete(object) => {
                let Some(uid) = family_uid(object) else { return };
                if let Some(family) = inner.families.get_mut(&uid) {
                    family.is_news(kind, object.meta());
                    slot(family).take_if(|child| Some(&child.uid) == object.meta().uid.as_ref());
                }
                inner.bury(&uid);
            }
        }
    }

    /// Files an event of the watch of claims.
    pub fn claim_event(&self, event: &Event<PersistentVolumeClaim>) {
        let key = |claim: &PersistentVolumeClaim| (claim.namespace().unwrap_or_default(), claim.name_any());
        let mut inner = self.lock();
        match event {
            Event::Init => inner.claims.clear(),
            Event::InitDone => {}
            Event::InitApply(claim) | Event::Apply(claim) => {
                let deleting = claim.metadata.deletion_timestamp.is_some();
                let owners = claim.owner_references().iter().map(|owner| owner.uid.clone()).collect();
                inner.claims.insert(key(claim), ClaimSeen { deleting, owners });
            }
            Event::Delete(claim) => drop(inner.claims.remove(&key(claim))),
        }
    }
}

/// By its owner, or by its label: a person may have changed either.
fn family_uid<K: Resource>(object: &K) -> Option<String> {
    let meta = object.meta();
    owner(meta).map(|owner| owner.uid.clone()).or_else(|| meta.labels.as_ref()?.get(labels::UID).cloned())
}

/// The TrainingJob that owns an object.
#[must_use]
pub fn owner(meta: &ObjectMeta) -> Option<&OwnerReference> {
    let group = format!("{GROUP}/");
    let is_job =
        |owner: &&OwnerReference| owner.kind == TrainingJob::kind(&()) && owner.api_version.starts_with(&group);
    meta.owner_references.iter().flatten().find(is_job)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::labels;

    fn pod(uid: &str) -> SlimPod {
        let text = |s: &str| s.to_owned();
        let labels = [(labels::UID, "job"), (labels::ATTEMPT, "1"), ("batch.kubernetes.io/job-completion-index", "0")];
        SlimPod {
            metadata: ObjectMeta {
                name: Some(text("x")),
                uid: Some(text(uid)),
                labels: Some(labels.map(|(key, value)| (text(key), text(value))).into()),
                ..ObjectMeta::default()
            },
            ..SlimPod::default()
        }
    }

    /// The pods of a deleted TrainingJob go after it.
    #[test]
    fn nothing_is_kept_of_a_job_that_is_gone() {
        let index = Index::default();
        index.pod(&Event::Apply(pod("a")));
        index.forget("job");
        assert_eq!(index.family("job").pods.len(), 1, "it still runs");
        index.pod(&Event::Delete(pod("a")));
        assert!(index.lock().families.is_empty());

        index.pod(&Event::Apply(pod("b")));
        index.forget_all_but(&HashSet::new());
        index.pod(&Event::Delete(pod("b")));
        assert!(index.lock().families.is_empty());
    }

    /// The watch may tell that an object is gone before the answer to its creation has come.
    #[test]
    fn an_answer_that_comes_late_is_no_news() {
        let index = Index::default();
        let config = |version: &str| ConfigMap {
            metadata: ObjectMeta {
                uid: Some("c".into()),
                resource_version: Some(version.into()),
                labels: Some([(labels::UID.to_owned(), "job".to_owned())].into()),
                ..ObjectMeta::default()
            },
            ..ConfigMap::default()
        };
        index.config(&Event::Apply(config("7")));
        index.config(&Event::Delete(config("9")));
        assert!(!index.update("job", |family| family.is_news(ChildKind::ConfigMap, &config("7").metadata)));
        index.config(&Event::Apply(config("8")));
        assert_eq!(index.family("job").config, None);
        index.config(&Event::Apply(config("10")));
        assert!(index.family("job").config.is_some());
    }

    #[test]
    fn the_last_words_of_a_living_jobs_pods_stay() {
        let index = Index::default();
        index.pod(&Event::Apply(pod("a")));
        index.forget_all_but(&HashSet::from(["job".to_owned()]));
        index.pod(&Event::Delete(pod("a")));
        assert_eq!(index.family("job").pods.len(), 1);
    }
}
