//! The index: everything remembered of each TrainingJob, by its namespace and UID.

use super::owner::{controller, is_training_job, is_upkeep, owner};
use super::{BoardPart, Cell, ChildKey, Children, ObservedChild, ObservedPod, SlimJob, SlimPod, SlimWorkload};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt, runtime::watcher::Event};
use objects::labels;
use parking_lot::{Mutex, MutexGuard};
use std::any::TypeId;
use std::collections::{HashMap, HashSet};

/// Identifies a TrainingJob. The namespace is part of it, because a label can be copied into another one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobKey {
    /// Its namespace.
    pub namespace: String,
    /// Its UID.
    pub uid: String,
}

impl JobKey {
    /// The key of a TrainingJob, whether it could be read or not.
    #[must_use]
    pub fn from_meta(meta: &ObjectMeta) -> Self {
        Self { namespace: meta.namespace.clone().unwrap_or_default(), uid: meta.uid.clone().unwrap_or_default() }
    }

    /// The key of the TrainingJob that an object belongs to, by its owner or its label, since a person may have changed
    /// either. `None` if another owner controls it.
    fn of_child(meta: &ObjectMeta) -> Option<Self> {
        if controller(meta).is_some_and(|controller| !is_training_job(controller)) {
            return None;
        }
        let owner = owner(meta).map(|owner| owner.uid.clone());
        owner.map_or_else(|| Self::labelled(meta), |uid| Some(Self::within(meta, uid)))
    }

    /// The key of the TrainingJob that an object names in its label, which any client may have copied.
    fn labelled(meta: &ObjectMeta) -> Option<Self> {
        let uid = meta.labels.as_ref()?.get(labels::UID)?;
        Some(Self::within(meta, uid.clone()))
    }

    fn within(meta: &ObjectMeta, uid: String) -> Self {
        Self { namespace: meta.namespace.clone().unwrap_or_default(), uid }
    }
}

/// A claim for checkpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedClaim {
    /// Its deletion has begun.
    pub deleting: bool,
    /// UIDs of its owners. A claim that is to outlive its job has none.
    pub owners: Vec<String>,
}

impl ObservedClaim {
    /// Whether the job with this UID may use it. It may not if the claim is being deleted, or is owned by an earlier
    /// job.
    #[must_use]
    pub fn serves(&self, uid: &str) -> bool {
        !self.deleting && (self.owners.is_empty() || self.owners.iter().any(|owner| owner == uid))
    }
}

/// All that is remembered of all TrainingJobs, and the claims. Claims outlive them, and so are filed by namespace and
/// name.
#[derive(Default, Debug)]
pub struct Index {
    inner: Mutex<Inner>,
}

#[derive(Default, Debug)]
struct Inner {
    /// Boxed, because half of the places of a large map are free.
    cells: HashMap<JobKey, Box<Cell>>,
    claims: HashMap<(String, String), ObservedClaim>,
    /// By kind, the UIDs that a restarted watch has listed so far. Objects that it does not list are gone.
    listed: HashMap<TypeId, HashSet<String>>,
    /// Kinds that have been listed once.
    complete: HashSet<TypeId>,
}

impl Inner {
    /// Drops a cell with nothing left, once the last object of a forgotten TrainingJob is gone.
    fn drop_if_over(&mut self, key: &JobKey) {
        if self.cells.get(key).is_some_and(|cell| cell.is_over()) {
            self.cells.remove(key);
        }
    }

    /// Drops the cells that an object may have kept, whether it belongs to them or not.
    fn drop_cells_of(&mut self, meta: &ObjectMeta) {
        for key in [JobKey::of_child(meta), JobKey::labelled(meta)].into_iter().flatten() {
            self.drop_if_over(&key);
        }
    }

    fn children(&mut self, key: JobKey) -> &mut Children {
        &mut self.cells.entry(key).or_default().children
    }

    fn all_children(&mut self) -> impl Iterator<Item = &mut Children> {
        self.cells.values_mut().map(|cell| &mut cell.children)
    }
}

impl Index {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// What is known of the objects of a TrainingJob.
    #[must_use]
    pub fn children(&self, key: &JobKey) -> Children {
        let inner = self.lock();
        let children = inner.cells.get(key).map(|cell| cell.children.clone()).unwrap_or_default();
        Children { workloads_unlisted: !inner.complete.contains(&TypeId::of::<SlimWorkload>()), ..children }
    }

    /// Reads one cell without copying it.
    pub fn read<T>(&self, key: &JobKey, read: impl FnOnce(&Cell) -> T) -> Option<T> {
        self.lock().cells.get(key).map(|cell| read(cell))
    }

    /// Changes one cell.
    pub fn update<T>(&self, key: &JobKey, change: impl FnOnce(&mut Cell) -> T) -> T {
        change(self.lock().cells.entry(key.clone()).or_default())
    }

    /// Changes one cell, unless it has been dropped. An action for a job that is gone by now thus leaves nothing
    /// behind.
    pub fn update_known<T>(&self, key: &JobKey, change: impl FnOnce(&mut Cell) -> T) -> Option<T> {
        self.lock().cells.get_mut(key).map(|cell| change(cell))
    }

    /// Name of a pod of an earlier TrainingJob of the same name that may still run. Both would write to one place.
    #[must_use]
    pub fn pod_of_predecessor(&self, key: &JobKey, name: &str) -> Option<String> {
        let inner = self.lock();
        let is_earlier = |other: &JobKey, cell: &Cell| {
            let is_gone = cell.forgotten || !cell.known;
            other.namespace == key.namespace && other.uid != key.uid && is_gone && cell.pods_of == name
        };
        let earlier = inner.cells.iter().filter(|(other, cell)| is_earlier(other, cell));
        earlier.filter_map(|(_, cell)| cell.living_pod().map(str::to_owned)).min()
    }

    /// Forgets a TrainingJob that no longer exists.
    pub fn forget(&self, key: &JobKey) {
        let mut inner = self.lock();
        if let Some(cell) = inner.cells.get_mut(key) {
            cell.forgotten = true;
        }
        inner.drop_if_over(key);
    }

    /// Forgets all TrainingJobs but these.
    pub fn forget_all_but(&self, there: &HashSet<JobKey>) {
        let mut inner = self.lock();
        for (key, cell) in &mut inner.cells {
            cell.forgotten |= !there.contains(key);
        }
        inner.cells.retain(|_, cell| !cell.is_over());
    }

    /// The claim of this name, if it carries our label.
    #[must_use]
    pub fn claim(&self, namespace: &str, name: &str) -> Option<ObservedClaim> {
        self.lock().claims.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// Whether all objects of this kind have been listed once.
    #[must_use]
    pub fn has_listed<K: 'static>(&self) -> bool {
        self.lock().complete.contains(&TypeId::of::<K>())
    }

    /// Files an event of a watch. `put` files one object, and `gone` removes one. `missing` removes all whose UID a
    /// list has not named.
    fn file<K: Resource + 'static>(
        &self,
        event: &Event<K>,
        put: impl Fn(&mut Inner, &K),
        gone: impl Fn(&mut Inner, &K),
        missing: impl Fn(&mut Inner, &HashSet<String>),
    ) {
        let (mut inner, kind) = (self.lock(), TypeId::of::<K>());
        match event {
            Event::Init => drop(inner.listed.insert(kind, HashSet::new())),
            Event::InitDone => {
                let listed = inner.listed.remove(&kind).unwrap_or_default();
                missing(&mut inner, &listed);
                inner.complete.insert(kind);
                inner.cells.retain(|_, cell| !cell.is_over());
            }
            Event::InitApply(object) | Event::Apply(object) => {
                if let (Some(listed), Some(uid)) = (inner.listed.get_mut(&kind), object.uid()) {
                    listed.insert(uid);
                }
                put(&mut inner, object);
                inner.drop_cells_of(object.meta());
            }
            Event::Delete(object) => {
                gone(&mut inner, object);
                inner.drop_cells_of(object.meta());
            }
        }
    }

    /// Files an event of the watch of pods.
    pub fn pod(&self, event: &Event<SlimPod>) {
        let put = |gone: bool| {
            move |inner: &mut Inner, pod: &SlimPod| {
                let Some(key) = JobKey::labelled(&pod.metadata) else { return };
                if is_upkeep(&pod.metadata) {
                    let cell = inner.cells.entry(key).or_default();
                    cell.note_name(&pod.metadata);
                    return cell.put_upkeep_pod(pod, gone);
                }
                let Some(seen) = pod.seen(gone) else { return };
                let cell = inner.cells.entry(key).or_default();
                cell.note_name(&pod.metadata);
                cell.put_pod(Box::new(seen), &pod.metadata);
            }
        };
        self.file(event, put(false), put(true), |inner, listed| {
            inner.cells.values_mut().for_each(|cell| cell.keep_pods(listed));
        });
    }

    /// Whether a pod, as it was filed, takes a usual step of a start while others of its gang have yet to take theirs.
    /// Nothing follows from it alone. In an elastic gang the size follows from each of them.
    #[must_use]
    pub fn is_starting(&self, pod: &SlimPod) -> bool {
        let Some((key, uid)) = JobKey::labelled(&pod.metadata).zip(pod.metadata.uid.as_ref()) else { return false };
        let inner = self.lock();
        let cell = inner.cells.get(&key).filter(|cell| cell.filed_pod(uid).is_some_and(ObservedPod::is_starting));
        cell.is_some_and(|cell| {
            let gang = cell.wanted.as_ref().map(|wanted| &wanted.planned.plan.gang);
            let run = cell.children.pods.values().filter(|pod| pod.runs()).count();
            gang.is_some_and(|gang| gang.elastic.is_none() && run < usize::from(gang.size()))
        })
    }

    /// Whether the Service and the ConfigMap of an object's job, as far as they are known, are as they should be. If
    /// so, nothing follows from news of either.
    #[must_use]
    pub fn has_right_objects(&self, meta: &ObjectMeta) -> bool {
        let Some(key) = JobKey::of_child(meta) else { return false };
        let inner = self.lock();
        inner.cells.get(&key).is_some_and(|cell| {
            let is_right = |key, child: &Option<ObservedChild>, should| {
                child.as_ref().is_none_or(|child| cell.children.is_kept_right(key, child, should))
            };
            cell.wanted.as_ref().is_some_and(|wanted| {
                is_right(ChildKey::SERVICE, &cell.children.service, wanted.service)
                    && is_right(ChildKey::CONFIG, &cell.children.config, wanted.config)
            })
        })
    }

    /// Files an event of the watch of Jobs.
    pub fn job(&self, event: &Event<SlimJob>) {
        let put = |inner: &mut Inner, job: &SlimJob| {
            let Some(key) = JobKey::of_child(&job.metadata) else { return };
            inner.cells.entry(key).or_default().put_job(job);
        };
        let gone = |inner: &mut Inner, job: &SlimJob| {
            let Some(cell) = JobKey::of_child(&job.metadata).and_then(|key| inner.cells.get_mut(&key)) else { return };
            cell.drop_job(job);
        };
        self.file(event, put, gone, |inner, listed| {
            inner.cells.values_mut().for_each(|cell| cell.keep_jobs(listed));
        });
    }

    /// Files an event of the watch of Services: of a job's own, or of its TensorBoard's.
    pub fn service(&self, event: &Event<Service>) {
        let is_board =
            |service: &Service| service.labels().get(labels::COMPONENT).is_some_and(|v| v == labels::TENSORBOARD);
        let put = |inner: &mut Inner, service: &Service| {
            if is_board(service) {
                put_board(inner, service, None, |board| &mut board.service);
            } else {
                put_child(inner, service, ChildKey::SERVICE, super::digest::service(service), |c| &mut c.service);
            }
        };
        let gone = |inner: &mut Inner, service: &Service| {
            if is_board(service) {
                drop_board(inner, service, |board| &mut board.service);
            } else {
                drop_child(inner, service, ChildKey::SERVICE, |children| &mut children.service);
            }
        };
        self.file(event, put, gone, |inner, listed| {
            for cell in inner.cells.values_mut() {
                cell.children.service.take_if(|child| !listed.contains(&child.uid));
                cell.board.service.take_if(|part| !listed.contains(&part.uid));
            }
        });
    }

    /// Files an event of the watch of ConfigMaps.
    pub fn config(&self, event: &Event<ConfigMap>) {
        let put = |inner: &mut Inner, config: &ConfigMap| {
            put_child(inner, config, ChildKey::CONFIG, super::digest::config(config), |children| &mut children.config);
        };
        let gone = |inner: &mut Inner, config: &ConfigMap| {
            drop_child(inner, config, ChildKey::CONFIG, |children| &mut children.config);
        };
        self.file(event, put, gone, |inner, listed| {
            for children in inner.all_children() {
                children.config.take_if(|child| !listed.contains(&child.uid));
            }
        });
    }

    /// Files an event of the watch of Deployments. Only TensorBoards have one.
    pub fn deployment(&self, event: &Event<Deployment>) {
        let put = |inner: &mut Inner, deployment: &Deployment| {
            let replicas = deployment.spec.as_ref().and_then(|spec| spec.replicas);
            put_board(inner, deployment, replicas, |board| &mut board.deployment);
        };
        let gone = |inner: &mut Inner, deployment: &Deployment| {
            drop_board(inner, deployment, |board| &mut board.deployment);
        };
        self.file(event, put, gone, |inner, listed| {
            for cell in inner.cells.values_mut() {
                cell.board.deployment.take_if(|part| !listed.contains(&part.uid));
            }
        });
    }

    /// Files an event of the watch of Workloads. Only gangs of several roles have one, in a queue.
    pub fn workload(&self, event: &Event<SlimWorkload>) {
        let put = |inner: &mut Inner, workload: &SlimWorkload| {
            let (Some(job), Some(seen)) = (JobKey::of_child(&workload.metadata), workload.seen()) else { return };
            let children = inner.children(job);
            if children.is_news(ChildKey::WORKLOAD, &workload.metadata) {
                children.workload = Some(seen);
            }
        };
        let gone = |inner: &mut Inner, workload: &SlimWorkload| {
            let job = JobKey::of_child(&workload.metadata);
            let Some(cell) = job.and_then(|key| inner.cells.get_mut(&key)) else { return };
            cell.children.is_news(ChildKey::WORKLOAD, &workload.metadata);
            cell.children.workload.take_if(|known| Some(&known.uid) == workload.metadata.uid.as_ref());
        };
        self.file(event, put, gone, |inner, listed| {
            for children in inner.all_children() {
                children.workload.take_if(|known| !listed.contains(&known.uid));
            }
        });
    }

    /// Files an event of the watch of claims.
    pub fn claim_event(&self, event: &Event<PersistentVolumeClaim>) {
        let key = |claim: &PersistentVolumeClaim| (claim.namespace().unwrap_or_default(), claim.name_any());
        let put = |inner: &mut Inner, claim: &PersistentVolumeClaim| {
            let deleting = claim.metadata.deletion_timestamp.is_some();
            let owners = claim.owner_references().iter().map(|owner| owner.uid.clone()).collect();
            inner.claims.insert(key(claim), ObservedClaim { deleting, owners });
        };
        if matches!(event, Event::Init) {
            self.lock().claims.clear();
        }
        self.file(event, put, |inner, claim| drop(inner.claims.remove(&key(claim))), |_, _| ());
    }
}

fn put_child<K: Resource<DynamicType = ()>>(
    inner: &mut Inner,
    object: &K,
    key: ChildKey,
    digest: u64,
    slot: impl Fn(&mut Children) -> &mut Option<ObservedChild>,
) {
    let (Some(job), Some(uid)) = (JobKey::of_child(object.meta()), object.uid()) else {
        // All that ties the object to its job was removed, so it counts as gone.
        for children in inner.all_children() {
            slot(children).take_if(|child| Some(&child.uid) == object.meta().uid.as_ref());
        }
        return;
    };
    let children = inner.children(job);
    if children.is_news(key, object.meta()) {
        let deleting = object.meta().deletion_timestamp.is_some();
        *slot(children) = Some(ObservedChild { uid, digest, deleting });
    }
}

fn drop_child<K: Resource<DynamicType = ()>>(
    inner: &mut Inner,
    object: &K,
    key: ChildKey,
    slot: impl Fn(&mut Children) -> &mut Option<ObservedChild>,
) {
    let Some(cell) = JobKey::of_child(object.meta()).and_then(|job| inner.cells.get_mut(&job)) else { return };
    cell.children.is_news(key, object.meta());
    slot(&mut cell.children).take_if(|child| Some(&child.uid) == object.meta().uid.as_ref());
}

fn put_board<K: Resource<DynamicType = ()>>(
    inner: &mut Inner,
    object: &K,
    replicas: Option<i32>,
    slot: impl Fn(&mut super::ObservedTensorBoard) -> &mut Option<BoardPart>,
) {
    // Only the owner counts: an object that a person has detached from its job is created again.
    let (Some(_), Some(job)) = (owner(object.meta()), JobKey::of_child(object.meta())) else { return };
    let part = BoardPart { uid: object.uid().unwrap_or_default(), replicas };
    *slot(&mut inner.cells.entry(job).or_default().board) = Some(part);
}

fn drop_board<K: Resource<DynamicType = ()>>(
    inner: &mut Inner,
    object: &K,
    slot: impl Fn(&mut super::ObservedTensorBoard) -> &mut Option<BoardPart>,
) {
    let Some(cell) = JobKey::of_child(object.meta()).and_then(|job| inner.cells.get_mut(&job)) else { return };
    slot(&mut cell.board).take_if(|part| Some(&part.uid) == object.meta().uid.as_ref());
    cell.board.wait = None;
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
    use protocol::agent_status::AgentStatus;
    use serde_json::json;
    use std::sync::Arc;

    fn key() -> JobKey {
        JobKey { namespace: "ns".into(), uid: "job".into() }
    }

    /// An index that has seen the TrainingJob.
    fn index() -> Index {
        let index = Index::default();
        index.update(&key(), |cell| cell.meet("x"));
        index
    }

    #[expect(clippy::unnecessary_wraps, reason = "fits where it is used")]
    fn controlled_by(api_version: &str, kind: &str, name: &str, uid: &str) -> Option<Vec<OwnerReference>> {
        Some(vec![OwnerReference {
            api_version: api_version.into(),
            kind: kind.into(),
            name: name.into(),
            uid: uid.into(),
            controller: Some(true),
            ..OwnerReference::default()
        }])
    }

    fn labelled(uid: &str, labels: &[(&str, &str)]) -> ObjectMeta {
        let ours = [(labels::UID, "job"), (labels::TRAINING_JOB, "x"), (labels::INCARNATION, "1")];
        let labels = ours.iter().chain(labels).map(|&(key, value)| (key.to_owned(), value.to_owned()));
        ObjectMeta {
            name: Some(uid.into()),
            uid: Some(uid.into()),
            namespace: Some("ns".into()),
            labels: Some(labels.collect()),
            ..ObjectMeta::default()
        }
    }

    fn pod(uid: &str) -> SlimPod {
        let metadata = ObjectMeta {
            owner_references: controlled_by("batch/v1", "Job", "x-training", "j1"),
            ..labelled(uid, &[("batch.kubernetes.io/job-completion-index", "0")])
        };
        SlimPod { metadata, ..SlimPod::default() }
    }

    fn job(uid: &str) -> SlimJob {
        let metadata = ObjectMeta {
            owner_references: controlled_by("ml.example.com/v1", "TrainingJob", "x", "job"),
            name: Some("x-training".into()),
            ..labelled(uid, &[])
        };
        SlimJob { metadata, ..SlimJob::default() }
    }

    /// News of a gang that starts are only the last pod that runs, and anything unusual.
    #[test]
    fn pod_start_events_are_routine_until_last_pod_runs() {
        let index = index();
        let spec = json!({ "model": "m", "dataset": "d", "framework": "pytorch", "numWorkers": 2 });
        let job = api::TrainingJob::new("x", serde_json::from_value(spec).unwrap());
        let planned = plan::resolve(&job, &plan::OperatorInfo::default());
        let wanted = crate::ResolvedSpec {
            generation: None,
            basis: crate::Basis::default(),
            planned,
            refused: None,
            service: 0,
            config: 0,
        };
        index.update(&key(), |cell| cell.wanted = Some(Arc::new(wanted)));
        index.job(&Event::Apply(self::job("j1")));
        let of_job = self::job("j1").metadata;
        assert!(index.has_right_objects(&of_job), "they are about to be made");
        for (digest, deleting, is_right) in [(0, false, true), (1, false, false), (0, true, false)] {
            let service = Some(ObservedChild { uid: "s".into(), digest, deleting });
            index.update(&key(), |cell| cell.children.service = service);
            assert_eq!(index.has_right_objects(&of_job), is_right, "{digest} {deleting}");
        }
        let worker = |uid: &str, status: serde_json::Value| {
            let status = serde_json::from_value(status).unwrap();
            SlimPod { status, ..pod(uid) }
        };
        let is_routine = |pod: SlimPod| {
            index.pod(&Event::Apply(pod.clone()));
            index.is_starting(&pod)
        };
        let runs = json!({ "phase": "Running", "containerStatuses": [
            { "name": "training", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": { "running": {} } },
        ] });
        let pulls = |reason: &str| {
            json!({ "phase": "Pending", "containerStatuses": [
                { "name": "training", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                  "state": { "waiting": { "reason": reason } } },
            ] })
        };
        let no_node = json!({ "phase": "Pending", "conditions": [
            { "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node" },
        ] });
        let evicted = json!({ "phase": "Running", "conditions": [
            { "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI" },
        ] });
        assert!(is_routine(worker("p1", json!({ "phase": "Pending" }))));
        assert!(is_routine(worker("p1", pulls("ContainerCreating"))));
        for (what, status) in [
            ("an image that can't be pulled", pulls("ErrImagePull")),
            ("no node", no_node),
            ("an eviction", evicted),
            ("an end", json!({ "phase": "Failed" })),
        ] {
            assert!(!is_routine(worker("p1", status)), "{what}");
        }
        assert!(is_routine(worker("p1", runs.clone())), "the first of two");
        assert!(!is_routine(worker("p2", runs)), "the last of two");
    }

    /// A client that may create Jobs can copy labels. Which owner controls a Job is the API server's to say.
    #[test]
    fn job_with_copied_labels_is_ignored() {
        let index = index();
        let there = || index.children(&key()).jobs.values().map(|job| job.uid.clone()).collect::<Vec<_>>();
        let mut copied = job("copied");
        for owners in [
            None,
            controlled_by("ml.example.com/v1", "TrainingJob", "x", "another"),
            controlled_by("example.com/v1", "TrainingJob", "x", "job"),
            controlled_by("ml.example.com/v1", "Workflow", "x", "job"),
            controlled_by("batch/v1", "CronJob", "x", "job"),
        ] {
            copied.metadata.owner_references = owners;
            index.job(&Event::Apply(copied.clone()));
            assert!(there().is_empty(), "{:?}", copied.metadata.owner_references);
        }
        let mut renamed = job("renamed");
        renamed.metadata.name = Some("x-training-copy".into());
        index.job(&Event::Apply(renamed));
        assert!(there().is_empty());
        let mut elsewhere = job("elsewhere");
        elsewhere.metadata.namespace = Some("another".into());
        index.job(&Event::Apply(elsewhere));
        index.job(&Event::Apply(job("j1")));
        assert_eq!(there(), ["j1"]);
        copied.metadata.resource_version = Some("99".into());
        index.job(&Event::Apply(copied.clone()));
        index.job(&Event::Delete(copied));
        assert_eq!(there(), ["j1"]);
        // A person may remove the owner of a known Job. It is still the same Job.
        let mut without = job("j1");
        without.metadata.owner_references = None;
        index.job(&Event::Apply(without));
        assert_eq!(there(), ["j1"]);
        index.job(&Event::Delete(job("j1")));
        assert!(there().is_empty());
    }

    #[test]
    fn pod_with_copied_labels_is_ignored() {
        let index = index();
        let there = || index.children(&key()).pods.keys().cloned().collect::<Vec<_>>();
        let of = |uid: &str, owners: Option<Vec<OwnerReference>>| {
            let mut pod = pod(uid);
            pod.metadata.owner_references = owners;
            Event::Apply(pod)
        };
        index.pod(&of("cron", controlled_by("batch/v1", "Job", "another", "j9")));
        index.pod(&of("set", controlled_by("apps/v1", "ReplicaSet", "x-training", "j1")));
        assert!(there().is_empty(), "the Job is not known yet, but its name is");
        index.pod(&of("p", controlled_by("batch/v1", "Job", "x-training", "j1")));
        index.pod(&of("guess", controlled_by("batch/v1", "Job", "x-training", "j2")));
        assert_eq!(there(), ["guess", "p"]);
        index.job(&Event::Apply(job("j1")));
        assert_eq!(there(), ["p"], "by its UID, once that is known");
        index.pod(&of("bare", None));
        assert_eq!(there(), ["p"]);
        // The pods' final reports come when their Job is gone, and a client that orphans pods removes their owner.
        index.job(&Event::Delete(job("j1")));
        index.pod(&of("p", None));
        index.pod(&of("q", controlled_by("batch/v1", "Job", "x-training", "j1")));
        index.pod(&of("again", controlled_by("batch/v1", "Job", "x-training", "j2")));
        assert_eq!(there(), ["bare", "p", "q"], "what runs without a Job holds up the next one");
        index.job(&Event::Apply(job("j2")));
        assert_eq!(there(), ["again", "guess", "p", "q"], "the Job came after its pods");
        index.pod(&Event::Init);
        index.pod(&of("p", None));
        index.pod(&Event::InitDone);
        assert_eq!(index.children(&key()).pods.values().filter(|pod| !pod.gone).count(), 1);
    }

    #[test]
    fn workloads_are_unlisted_until_first_list_ends() {
        let index = index();
        for event in [None, Some(Event::Init)] {
            event.iter().for_each(|event| index.workload(event));
            assert!(index.children(&key()).workloads_unlisted);
        }
        index.workload(&Event::InitDone);
        index.workload(&Event::Init);
        assert!(!index.children(&key()).workloads_unlisted, "a list that begins again hides nothing");
    }

    /// An operator that starts may find orphaned pods. The next gang waits for them.
    #[test]
    fn orphaned_pod_of_unknown_job_is_tracked() {
        let index = index();
        let mut bare = pod("bare");
        bare.metadata.owner_references = None;
        index.pod(&Event::Apply(bare));
        assert_eq!(index.children(&key()).pods.len(), 1);
    }

    #[test]
    fn config_map_of_another_controller_is_ignored() {
        let index = index();
        let config = |uid: &str, owners| {
            let metadata = ObjectMeta { owner_references: owners, ..labelled(uid, &[]) };
            Event::Apply(ConfigMap { metadata, ..ConfigMap::default() })
        };
        let there = || index.children(&key()).config.map(|config| config.uid);
        index.config(&config("theirs", controlled_by("apps/v1", "Deployment", "x", "job")));
        assert_eq!(there(), None);
        index.config(&config("changed", None));
        assert_eq!(there().as_deref(), Some("changed"), "a person took its owner: it is put right");
    }

    /// A job that is deleted and recreated under its name waits for the pods of its predecessor.
    #[test]
    fn predecessor_pods_are_found_by_job_name() {
        let index = index();
        let of = |name: &str, component: &[(&str, &str)], phase: &str| {
            let mut pod = pod("a");
            let labels = pod.metadata.labels.as_mut().unwrap();
            labels.insert(labels::TRAINING_JOB.to_owned(), name.to_owned());
            labels.extend(component.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
            pod.metadata.name = Some("x-pod".to_owned());
            pod.status.phase = Some(phase.to_owned());
            pod
        };
        let new = JobKey { uid: "new".to_owned(), ..key() };
        let left = |name: &str| index.pod_of_predecessor(&new, name);
        index.update(&key(), |cell| cell.known = true);
        index.pod(&Event::Apply(of("x", &[], "Running")));
        assert_eq!(left("x"), None, "its job is there");
        index.forget(&key());
        assert_eq!(left("x").as_deref(), Some("x-pod"));
        assert_eq!(left("y"), None);
        assert_eq!(index.pod_of_predecessor(&key(), "x"), None, "they are its own");
        index.pod(&Event::Delete(of("x", &[], "Running")));
        assert_eq!(left("x"), None);
        let upkeep = [(labels::COMPONENT, labels::UPKEEP)];
        index.pod(&Event::Apply(of("x", &upkeep, "Running")));
        assert_eq!(left("x").as_deref(), Some("x-pod"), "one that an operator finds at its start");
        index.pod(&Event::Apply(of("x", &upkeep, "Succeeded")));
        assert_eq!(left("x"), None);
        assert!(index.lock().cells.is_empty());
    }

    /// The agent of a fetch is asked while its Job and its container run, and its answer is used for as long.
    #[test]
    fn fetch_pod_is_known_only_while_it_runs() {
        let index = index();
        let upkeep_job = |uid: &str, conditions: serde_json::Value| -> SlimJob {
            serde_json::from_value(json!({
                "metadata": {
                    "name": "x-upkeep", "uid": uid, "resourceVersion": "1",
                    "namespace": key().namespace,
                    "labels": { labels::UID: key().uid, labels::COMPONENT: labels::UPKEEP, labels::TASK: "fetch" },
                    "ownerReferences": [{ "apiVersion": "ml.example.com/v1", "kind": "TrainingJob", "name": "x",
                        "uid": key().uid, "controller": true }],
                },
                "spec": {}, "status": { "conditions": conditions },
            }))
            .unwrap()
        };
        let upkeep_pod = |phase: &str, job: &str| -> SlimPod {
            let mut pod = pod("fetch-1");
            let meta = &mut pod.metadata;
            meta.labels.as_mut().unwrap().insert(labels::COMPONENT.to_owned(), labels::UPKEEP.to_owned());
            meta.owner_references = serde_json::from_value(json!([{ "apiVersion": "batch/v1", "kind": "Job",
                "name": "x-upkeep", "uid": job, "controller": true }]))
            .unwrap();
            pod.status = serde_json::from_value(json!({ "phase": phase, "podIP": "10.0.0.7" })).unwrap();
            pod
        };
        let fetching = || index.read(&key(), Cell::transfer_pod).flatten().map(|pod| pod.ip.unwrap());
        index.job(&Event::Apply(upkeep_job("job-1", json!([]))));
        assert_eq!(fetching(), None, "no pod yet");
        index.pod(&Event::Apply(upkeep_pod("Pending", "job-1")));
        assert_eq!(fetching(), None, "its container does not run yet");
        index.pod(&Event::Apply(upkeep_pod("Running", "job-1")));
        assert_eq!(fetching().as_deref(), Some("10.0.0.7"));
        let uid = index.read(&key(), |cell| cell.transfer_pod().unwrap().uid).unwrap();
        let answers = |uid: &str| {
            let status = AgentStatus { pod_uid: Some(uid.to_owned()), ..AgentStatus::default() };
            index.update(&key(), |cell| {
                cell.transfer.answered(status);
                cell.transfer_answer().is_some()
            })
        };
        assert!(answers(&uid) && !answers("another"), "only that of the pod that fetches now");
        index.pod(&Event::Apply(upkeep_pod("Running", "job-0")));
        assert_eq!(fetching(), None, "a pod of an earlier Job");
        index.pod(&Event::Apply(upkeep_pod("Running", "job-1")));
        index.job(&Event::Apply(upkeep_job("job-1", json!([{ "type": "Complete", "status": "True" }]))));
        assert_eq!(fetching(), None, "it has ended");
        assert!(!answers(&uid));
    }

    /// The pods of a deleted TrainingJob disappear after it.
    #[test]
    fn deleted_job_leaves_nothing_in_index() {
        let index = index();
        index.pod(&Event::Apply(pod("a")));
        index.forget(&key());
        assert_eq!(index.children(&key()).pods.len(), 1, "it still runs");
        index.pod(&Event::Delete(pod("a")));
        assert!(index.lock().cells.is_empty());

        index.update(&key(), |cell| cell.known = true);
        index.pod(&Event::Apply(pod("b")));
        index.forget_all_but(&HashSet::new());
        index.pod(&Event::Delete(pod("b")));
        assert!(index.lock().cells.is_empty());
    }

    /// The watch may report that an object is gone before the answer to its creation has come.
    #[test]
    fn object_older_than_its_deletion_is_ignored() {
        let index = index();
        let config = |version: &str| ConfigMap {
            metadata: ObjectMeta {
                uid: Some("c".into()),
                namespace: Some("ns".into()),
                resource_version: Some(version.into()),
                labels: Some([(labels::UID.to_owned(), "job".to_owned())].into()),
                ..ObjectMeta::default()
            },
            ..ConfigMap::default()
        };
        index.config(&Event::Apply(config("7")));
        index.config(&Event::Delete(config("9")));
        assert!(!index.update(&key(), |cell| cell.children.is_news(ChildKey::CONFIG, &config("7").metadata)));
        index.config(&Event::Apply(config("8")));
        assert_eq!(index.children(&key()).config, None);
        index.config(&Event::Apply(config("10")));
        assert!(index.children(&key()).config.is_some());
    }

    #[test]
    fn deleted_pods_of_existing_job_are_kept() {
        let index = index();
        index.pod(&Event::Apply(pod("a")));
        index.forget_all_but(&HashSet::from([key()]));
        index.pod(&Event::Delete(pod("a")));
        assert_eq!(index.children(&key()).pods.len(), 1);
    }

    #[test]
    fn headless_service_is_not_taken_for_tensorboard_service() {
        let index = index();
        let service = |component: &str, name: &str| Service {
            metadata: ObjectMeta {
                name: Some(name.into()),
                namespace: Some("ns".into()),
                uid: Some(name.into()),
                labels: Some([(labels::COMPONENT.to_owned(), component.to_owned())].into()),
                owner_references: Some(vec![OwnerReference {
                    api_version: "ml.example.com/v1".into(),
                    kind: "TrainingJob".into(),
                    name: "x".into(),
                    uid: "job".into(),
                    ..OwnerReference::default()
                }]),
                ..ObjectMeta::default()
            },
            ..Service::default()
        };
        assert!(!index.has_listed::<Deployment>());
        index.deployment(&Event::Init);
        index.deployment(&Event::InitDone);
        assert!(index.has_listed::<Deployment>(), "before that nothing is missing");
        let seen =
            || index.read(&key(), |cell| (cell.children.service.is_some(), cell.board.service.is_some())).unwrap();
        index.service(&Event::Init);
        index.service(&Event::InitApply(service("", "x-headless")));
        assert_eq!(seen(), (true, false));
        index.service(&Event::InitApply(service("tensorboard", "x-tensorboard")));
        index.service(&Event::InitDone);
        assert_eq!(seen(), (true, true));
        index.service(&Event::Delete(service("tensorboard", "x-tensorboard")));
        assert_eq!(seen(), (true, false));
    }
}
