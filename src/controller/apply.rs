//! A TrainingJob's children: made where missing, put right where changed, left alone where somebody else's.

use super::error::{Error, call, refusal, unless_gone};
use super::pass::{Child, Created, Pass, is_ours};
use super::refused;
use api::{Reason, TrainingJob};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Service};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use lifecycle::{self, Event};
use objects::{self, CoschedulingPodGroup, NativePodGroup, PodGroup, VolcanoPodGroup, labels, names};
use observe::{
    Blocked, ChildKey, ChildKind, Children, JOB_TRACKING, ObservedChild, ObservedJob, SlimJob, SlimPod, Wanted, digest,
};
use plan::{CheckpointVolume, Delivery, GroupKind, Incarnation, Plan, Runtime, Upkeep};
use protocol::gang::GangPast;
use tracing::{info, warn};

impl Pass<'_, TrainingJob> {
    /// Makes what is missing and puts right what was changed; what is as it should be costs no request.
    pub(super) async fn ensure(&mut self, plan: &Plan, wanted: &Wanted, children: &Children) -> Result<(), Error> {
        let claimed = self.has_claim(plan);
        let is_right = |key, child: &Option<ObservedChild>, should| {
            child.as_ref().is_some_and(|child| children.is_kept_right(key, child, should))
        };
        if is_right(ChildKey::SERVICE, &children.service, wanted.service)
            && is_right(ChildKey::CONFIG, &children.config, wanted.config)
            && claimed
            && !children.blocked.keys().any(|key| key.kind.precedes_jobs())
        {
            return Ok(());
        }
        if children.service.is_none() || children.config.is_none() || !claimed {
            self.confirm().await?;
        }
        let objects::Objects { service, config, claim, .. } =
            objects::objects(plan, Incarnation::FIRST, &GangPast::default());
        let claim = claim.filter(|_| !claimed);
        // The Jobs will follow, and their pods mount it.
        let is_first = children.service.is_none() && children.jobs.is_empty();
        let (services, configs, claims, unseen) = futures::join!(
            self.ensure_one(ChildKey::SERVICE, children, children.service.as_ref(), service, digest::service),
            self.ensure_one(ChildKey::CONFIG, children, children.config.as_ref(), config, digest::config),
            self.ensure_claim(claim),
            async { if is_first { self.ensure_unseen(plan).await } else { Ok(false) } },
        );
        let mut result = unseen.map(|are_there| self.has_unseen = are_there);
        for (key, made) in [(ChildKey::SERVICE, services), (ChildKey::CONFIG, configs), (ChildKey::CLAIM, claims)] {
            match made {
                Ok(blocked) => self.block(key, blocked),
                Err(error) => result = Err(error),
            }
        }
        result
    }

    /// Whether the claim is there that the job needs, if it needs one that is made for it.
    fn has_claim(&self, plan: &Plan) -> bool {
        match plan.storage.checkpoint.as_ref().map(|checkpoint| &checkpoint.volume) {
            Some(CheckpointVolume::New { .. }) => {
                let name = names::claim_name(&plan.identity.name);
                let claim = self.context.index.claim(&self.key.namespace, &name);
                claim.is_some_and(|claim| claim.serves(&self.key.uid))
            }
            _ => true,
        }
    }

    async fn ensure_claim(&self, wanted: Option<PersistentVolumeClaim>) -> Result<Option<Blocked>, Error> {
        let Some(wanted) = wanted else { return Ok(None) };
        Ok(match self.create(&wanted).await? {
            Created::Made(_) | Created::Found(_) => None,
            Created::Blocked(blocked) => Some(blocked),
        })
    }

    async fn ensure_one<K: Child>(
        &self,
        key: ChildKey,
        children: &Children,
        seen: Option<&ObservedChild>,
        wanted: K,
        digest: fn(&K) -> u64,
    ) -> Result<Option<Blocked>, Error> {
        let should = digest(&wanted);
        let (object, written) = match seen {
            Some(child) if child.deleting => return Ok(Some(Blocked::deleting(&wanted.name_any()))),
            Some(child) if children.is_right(key, child.digest, should) => return Ok(None),
            Some(child) => match self.put_right(&child.uid, wanted).await? {
                Created::Made(object) | Created::Found(object) => (*object, true),
                Created::Blocked(blocked) => return Ok(Some(blocked)),
            },
            None => match self.create(&wanted).await? {
                Created::Made(made) => (*made, true),
                Created::Found(found) if children.is_right(key, digest(&found), should) => (*found, false),
                Created::Found(found) => match self.put_right(&found.uid().unwrap_or_default(), wanted).await? {
                    Created::Made(object) | Created::Found(object) => (*object, true),
                    Created::Blocked(blocked) => return Ok(Some(blocked)),
                },
                Created::Blocked(blocked) => return Ok(Some(blocked)),
            },
        };
        let present = ObservedChild { uid: object.uid().unwrap_or_default(), digest: digest(&object), deleting: false };
        self.context.index.update_known(&self.key, |cell| {
            let children = &mut cell.children;
            if written && present.digest != should {
                // Changed by admission, which would do it again.
                children.settled.insert(key, present.digest);
            }
            if !children.is_news(key, object.meta()) {
                return;
            }
            match key.kind {
                ChildKind::Service => children.service = Some(present),
                ChildKind::ConfigMap => children.config = Some(present),
                ChildKind::PersistentVolumeClaim
                | ChildKind::Secret
                | ChildKind::NetworkPolicy
                | ChildKind::PodGroup
                | ChildKind::Workload
                | ChildKind::Job => {}
            }
        });
        Ok(None)
    }

    /// Makes the Jobs of an incarnation, one for each role, once the keys are there that their pods mount, the NetworkPolicy
    /// that protects them, and the group in which they are placed. That of the workers is the last: where it is, all are.
    pub(super) async fn create_jobs(
        &self,
        plan: &Plan,
        incarnation: Incarnation,
        past: &GangPast,
        delivery: Delivery,
    ) -> Result<(), Error> {
        let plan = &Plan { runtime: Runtime { delivery, ..plan.runtime.clone() }, ..plan.clone() };
        if !self.has_unseen && !self.ensure_unseen(plan).await? {
            return Ok(());
        }
        if !self.ensure_group(plan).await? {
            return Ok(());
        }
        let jobs = objects::objects(plan, incarnation, past).jobs;
        // It checks nothing any more, and may never have been made.
        self.block(ChildKey::UPKEEP, None);
        if plan.gang.has_roles() && self.is_denied(plan, &jobs).await? {
            return Ok(());
        }
        for (role, wanted) in plan.gang.roles.iter().zip(jobs).rev() {
            let key = ChildKey::job(role.name);
            match self.create(&objects::posted(plan, &wanted)).await? {
                Created::Made(job) | Created::Found(job) => {
                    let dropped = is_native(plan) && !job.has_group();
                    if dropped {
                        let fact = Event { warning: true, reason: "PlacedOneByOne", note: group_dropped().message };
                        self.tell(Some(incarnation.attempt), vec![fact]);
                    }
                    self.block(key, dropped.then(group_dropped));
                    // The watch may be slower than the next reconcile, which would ask again.
                    let job = serde_json::to_value(&*job).ok().and_then(|job| serde_json::from_value(job).ok());
                    self.remember(job.as_ref());
                }
                Created::Blocked(blocked) => {
                    self.block(key, Some(blocked));
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Whether a Job that was refused before still is: it is only tried, so that pods of other roles don't hold nodes while they
    /// wait for it.
    async fn is_denied(&self, plan: &Plan, jobs: &[Job]) -> Result<bool, Error> {
        let known = self.context.index.children(&self.key);
        for (role, wanted) in plan.gang.roles.iter().zip(jobs) {
            let key = ChildKey::job(role.name);
            if known.job(role.name).is_none() && known.blocked.contains_key(&key) {
                let blocked = self.try_to_create(&objects::posted(plan, wanted)).await?;
                let is_blocked = blocked.is_some();
                self.block(key, blocked);
                if is_blocked {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Makes sure that the job's keys and its NetworkPolicy are there, which the operator only creates; false if one is not.
    async fn ensure_unseen(&self, plan: &Plan) -> Result<bool, Error> {
        let answers = self.context.options.operator_key.job_key(&plan.identity.uid);
        let (keys, policy) = (objects::keys(plan, &rand::random(), &answers), objects::network_policy(plan));
        let (keys, policy) = futures::join!(
            self.ensure_one_unseen(ChildKey::KEYS, keys.as_ref()),
            self.ensure_one_unseen(ChildKey::NETWORK_POLICY, policy.as_ref()),
        );
        Ok(keys? && policy?)
    }

    async fn ensure_one_unseen<K: Child>(&self, key: ChildKey, wanted: Option<&K>) -> Result<bool, Error> {
        let blocked = match wanted {
            Some(wanted) => self.create_unseen(wanted).await?,
            None => None,
        };
        let are_there = blocked.is_none();
        self.block(key, blocked);
        Ok(are_there)
    }

    /// Makes sure that the group is there in which the workers are placed; false if it is not. Nobody watches it, for most
    /// clusters don't know its kind.
    pub(super) async fn ensure_group(&self, plan: &Plan) -> Result<bool, Error> {
        let blocked = match objects::pod_group(plan) {
            None => return Ok(true),
            Some(PodGroup::Volcano(group)) => self.create_group(&group, "install Volcano with its CRDs").await?,
            Some(PodGroup::Coscheduling(group)) => {
                self.create_group(&group, "install the coscheduling plugin of scheduler-plugins with its CRD").await?
            }
            Some(PodGroup::Native(group)) => self.create_group(&group, SWITCH_ON).await?,
        };
        let (is_there, now) = (blocked.is_none(), lifecycle::whole_second(Timestamp::now()));
        self.context.index.update_known(&self.key, |cell| cell.children.group_looked_at = Some(now));
        self.block(ChildKey::POD_GROUP, blocked);
        Ok(is_there)
    }

    async fn create_group<K: Child>(&self, group: &K, remedy: &str) -> Result<Option<Blocked>, Error> {
        match self.create(group).await {
            Ok(Created::Made(_) | Created::Found(_)) => Ok(None),
            Ok(Created::Blocked(blocked)) => Ok(Some(blocked)),
            Err(error) if refusal(&error).is_some_and(refused::kind_is_unknown) => {
                let message = format!(
                    "the API server has no PodGroup of {}, which spec.scheduling.gang needs: {remedy}, or make the job \
                     again without gang",
                    K::api_version(&())
                );
                Ok(Some(Blocked { reason: Reason::GangSchedulerMissing, message }))
            }
            Err(error) => Err(error),
        }
    }

    /// Where the operator has no right to it, or nobody knows its kind any more, it stays: the Job must go all the same.
    async fn delete_group<K: Child>(&self, name: &str) -> Result<(), Error> {
        let deleted = match call("get PodGroup", self.api::<K>().get_opt(name)).await {
            Ok(found) => match found.filter(|found| is_ours(found, &self.key.uid)).and_then(|found| found.uid()) {
                Some(uid) => self.delete::<K>(name, &uid, DeleteParams::background()).await,
                None => Ok(()),
            },
            Err(error) => Err(error),
        };
        match deleted {
            Err(error) if refusal(&error).is_some() => {
                warn!(name, %error, "the PodGroup stays");
                Ok(())
            }
            deleted => deleted,
        }
    }

    /// Makes the Job that looks after the checkpoints.
    pub(super) async fn create_upkeep(&self, plan: &Plan, task: Upkeep) -> Result<(), Error> {
        let wanted = if task == Upkeep::Fetch {
            objects::fetch_job(plan, self.context.cache_uses(&plan.identity.namespace))
        } else {
            objects::upkeep(plan, task)
        };
        let Some(wanted) = wanted else { return Ok(()) };
        match self.create(&wanted).await? {
            Created::Made(job) | Created::Found(job) => {
                self.block(ChildKey::UPKEEP, None);
                let job = serde_json::to_value(&*job).ok().and_then(|job| serde_json::from_value(job).ok());
                self.remember(job.as_ref());
            }
            Created::Blocked(blocked) => self.block(ChildKey::UPKEEP, Some(blocked)),
        }
        Ok(())
    }

    /// A fresh read: no upkeep Job is there that the watch has yet to show. It would write to the volume beside the workers.
    pub(super) async fn confirm_no_upkeep(&self, plan: &Plan) -> Result<(), Error> {
        if !plan.storage.has_upkeep() {
            return Ok(());
        }
        let name = names::upkeep_name(&plan.identity.name);
        let found = call("get Job", self.api::<SlimJob>().get_opt(&name)).await?;
        let found = found.filter(|found| is_ours(found, &self.key.uid));
        self.remember(found.as_ref());
        if found.is_some() { Err(Error::Outdated) } else { Ok(()) }
    }

    /// A fresh read of the Jobs, which tells a deleted one from one that the watch has not shown yet.
    pub(super) async fn find_jobs(&self, plan: &Plan) -> Result<bool, Error> {
        let (api, mut is_there) = (self.api::<SlimJob>(), false);
        for role in &plan.gang.roles {
            let name = names::role_job_name(&self.owner.name_any(), role.name);
            let found = call("get Job", api.get_opt(&name)).await?;
            is_there |= self.remember(found.filter(|found| is_ours(found, &self.key.uid)).as_ref());
        }
        Ok(is_there)
    }

    /// A fresh read of the pods of a job of which a Job has failed, which tells one that is gone with its last words from one
    /// that the watch has not shown yet. Of those that are known the watch knows more.
    pub(super) async fn find_pods(&self, failed: &ObservedJob) -> Result<(), Error> {
        let of_job = ListParams::default().labels(&format!("{}={}", labels::UID, self.key.uid));
        let pods = call("list pods", self.api::<SlimPod>().list(&of_job)).await?;
        self.context.index.update_known(&self.key, |cell| {
            cell.children.pods_read_of.insert(failed.role, failed.uid.clone());
            pods.items.iter().for_each(|pod| cell.find_pod(pod));
        });
        Ok(())
    }

    /// Files a Job that was just made or read, unless the watch has told more of it already; true if there is one.
    fn remember(&self, job: Option<&SlimJob>) -> bool {
        let there = self.context.index.update_known(&self.key, |cell| {
            job.into_iter().for_each(|job| cell.put_job(job));
            !cell.children.jobs.is_empty()
        });
        there.unwrap_or(false)
    }

    pub(super) fn block(&self, key: ChildKey, blocked: Option<Blocked>) {
        let news = self.context.index.update_known(&self.key, |cell| {
            let known = &mut cell.children.blocked;
            let news = blocked.as_ref() != known.get(&key);
            match blocked.clone() {
                Some(blocked) => drop(known.insert(key, blocked)),
                None => drop(known.remove(&key)),
            }
            news
        });
        if let Some(blocked) = blocked.filter(|_| news == Some(true)) {
            let (job, kind, reason) = (self.owner.name_any(), key.kind.as_str(), blocked.reason);
            warn!(job, kind, reason = reason.as_str(), "{}", blocked.message);
        }
    }

    /// The Job goes after its pods (foreground).
    /// The group of the workers goes with their Job, and before it, or nobody would come back to it: Volcano counts what a
    /// group without pods asks for as taken. The next Job has a new one.
    pub(super) async fn delete_job(&self, plan: &Plan, name: &str, uid: &str) -> Result<(), Error> {
        if name == names::job_name(&self.owner.name_any()) {
            match plan.gang.group.as_ref().map(|group| (&group.name, &group.kind)) {
                None => {}
                Some((group, GroupKind::Volcano { .. })) => self.delete_group::<VolcanoPodGroup>(group).await?,
                Some((group, GroupKind::Coscheduling)) => self.delete_group::<CoschedulingPodGroup>(group).await?,
                Some((group, GroupKind::Native)) => self.delete_group::<NativePodGroup>(group).await?,
            }
        }
        info!(name, "deleting Job");
        self.delete::<Job>(name, uid, DeleteParams::foreground()).await
    }

    /// What the watches tell may be older than the status that says that the job is over.
    pub(super) async fn end_job(&self, plan: &Plan, name: &str, uid: &str) -> Result<(), Error> {
        let job = call("get Job", self.api::<SlimJob>().get_opt(name)).await?.and_then(|job| job.seen());
        let has_ended = |job: ObservedJob| job.complete || job.failed.is_some();
        if job.is_some_and(has_ended) { Ok(()) } else { self.delete_job(plan, name, uid).await }
    }

    /// Takes the Job controller's finalizer off a pod, which has yet to end. By force the pod is deleted, whatever its node
    /// says: nobody may do that before the lease is over by which the agents there have stopped their programs.
    pub(super) async fn release_pod(&self, name: &str, uid: &str, force: bool) -> Result<(), Error> {
        info!(name, force, "taking a pod from its Job, which is to make another one");
        let patch = serde_json::json!({
            "metadata": { "uid": uid, "$deleteFromPrimitiveList/finalizers": [JOB_TRACKING] },
        });
        let (api, params, patch) = (self.api::<Pod>(), PatchParams::default(), Patch::Strategic(patch));
        let released = unless_gone(self.context.write("release pod", api.patch_metadata(name, &params, &patch)).await)?;
        if force && released.is_some() {
            self.delete::<Pod>(name, uid, DeleteParams::default().grace_period(0)).await?;
        }
        Ok(())
    }

    /// Of an elastic gang the Job follows: both numbers at once, for an Indexed Job takes no other change of them.
    pub(super) async fn scale_job(&self, name: &str, uid: &str, pods: u16) -> Result<(), Error> {
        info!(name, pods, "scaling Job");
        let spec = serde_json::json!({ "parallelism": pods, "completions": pods });
        let patch = Patch::Merge(serde_json::json!({ "metadata": { "uid": uid }, "spec": spec }));
        unless_gone(
            self.context.write("scale Job", self.api::<Job>().patch(name, &PatchParams::default(), &patch)).await,
        )
        .map(drop)
    }

    /// A node brings what has changed of a ConfigMap within two minutes, or when the pod has changed.
    pub(super) async fn hasten_pod(&self, name: &str, uid: &str, size: u16) -> Result<(), Error> {
        let annotations = serde_json::json!({ labels::GANG_SIZE: size.to_string() });
        let patch = serde_json::json!({ "metadata": { "uid": uid, "annotations": annotations } });
        let (api, params) = (self.api::<Pod>(), PatchParams::default());
        unless_gone(self.context.write("hasten pod", api.patch_metadata(name, &params, &Patch::Merge(patch))).await)
            .map(drop)
    }

    /// Deletes the TrainingJob at the version that was judged: whoever changes it meanwhile keeps it.
    pub(super) async fn delete_owner(&self) -> Result<(), Error> {
        info!("ttlSecondsAfterFinished is over, deleting the TrainingJob");
        let version = Some(self.version.to_string());
        self.delete_at::<TrainingJob>(&self.owner.name_any(), &self.key.uid, version, DeleteParams::background()).await
    }

    /// Whether pods of an earlier TrainingJob of this name still run, which write to the same place. Says so at the child
    /// that waits for them.
    pub(super) fn awaits_predecessor(&self, key: ChildKey) -> bool {
        let name = self.owner.name_any();
        let waits = self.context.index.pod_of_predecessor(&self.key, &name).map(|pod| {
            let (namespace, job) = (&self.key.namespace, names::job_name(&name));
            let message = format!(
                "pod {pod} of an earlier job named {name} has not ended and writes to the same checkpoints; if its Job was left \
                 over: kubectl delete job {job} -n {namespace}; if its node is lost: kubectl delete pod {pod} -n {namespace} \
                 --force"
            );
            Blocked { reason: Reason::OldPods, message }
        });
        let is_waiting = waits.is_some();
        let was_waiting = self.context.index.read(&self.key, |cell| {
            cell.children.blocked.get(&key).is_some_and(|blocked| blocked.reason == Reason::OldPods)
        });
        if is_waiting || was_waiting == Some(true) {
            self.block(key, waits);
        }
        is_waiting
    }
}

/// What a cluster lacks that knows no PodGroups of its own.
const SWITCH_ON: &str = "start kube-apiserver with --feature-gates=GenericWorkload=true and \
                         --runtime-config=scheduling.k8s.io/v1alpha2=true, and kube-scheduler with \
                         --feature-gates=GenericWorkload=true,GangScheduling=true";

fn is_native(plan: &Plan) -> bool {
    plan.gang.group.as_ref().is_some_and(|group| group.kind == GroupKind::Native)
}

/// The Job is there and goes on: its pods may all find a place.
fn group_dropped() -> Blocked {
    let message = format!(
        "the API server has dropped schedulingGroup from the pods, so that they are placed one by one and not as \
         spec.scheduling.gang says: {SWITCH_ON}, then suspend the job and resume it"
    );
    Blocked { reason: Reason::GangSchedulerMissing, message }
}

const _: () = {
    // Every kind of child has its place above; a new field of `Objects` that nobody makes does not compile.
    fn _exhaustive(objects: objects::Objects) -> (Service, ConfigMap, Option<PersistentVolumeClaim>, Vec<Job>) {
        let objects::Objects { service, config, claim, jobs } = objects;
        (service, config, claim, jobs)
    }
};
