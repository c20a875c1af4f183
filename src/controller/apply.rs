//! A TrainingJob's children: created where missing, restored where changed, left alone where they are not this job's.

use super::error::{Error, call, refusal, unless_gone};
use super::pass::{Child, CreateOutcome, Pass, is_ours};
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
    Blocked, ChildKey, ChildKind, Children, JOB_TRACKING, ObservedChild, ObservedJob, ResolvedSpec, SlimJob, SlimPod,
    digest,
};
use plan::{CheckpointVolume, Delivery, GroupKind, Incarnation, OperatorInfo, Plan, Upkeep};
use protocol::gang::GangPast;
use tracing::{info, warn};

impl Pass<'_, TrainingJob> {
    /// Creates missing children and restores changed ones. A child that is as it should be costs no request.
    pub(super) async fn ensure(
        &mut self,
        plan: &Plan,
        wanted: &ResolvedSpec,
        children: &Children,
    ) -> Result<(), Error> {
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
        Box::pin(self.make_right(plan, children, claimed)).await
    }

    /// Creates and restores the children of a job that lacks one, or has a changed one.
    async fn make_right(&mut self, plan: &Plan, children: &Children, claimed: bool) -> Result<(), Error> {
        if children.service.is_none() || children.config.is_none() || !claimed {
            self.confirm().await?;
        }
        let (service, config) = (objects::service(plan), objects::config(plan));
        let claim = if claimed { None } else { objects::claim(plan) };
        // The Jobs follow, and their pods mount the job's keys.
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

    /// Whether the job's claim exists, if it needs one of its own.
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
            CreateOutcome::Made(_) | CreateOutcome::Found(_) => None,
            CreateOutcome::Blocked(blocked) => Some(blocked),
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
                CreateOutcome::Made(object) | CreateOutcome::Found(object) => (*object, true),
                CreateOutcome::Blocked(blocked) => return Ok(Some(blocked)),
            },
            None => match self.create(&wanted).await? {
                CreateOutcome::Made(made) => (*made, true),
                CreateOutcome::Found(found) if children.is_right(key, digest(&found), should) => (*found, false),
                CreateOutcome::Found(found) => match self.put_right(&found.uid().unwrap_or_default(), wanted).await? {
                    CreateOutcome::Made(object) | CreateOutcome::Found(object) => (*object, true),
                    CreateOutcome::Blocked(blocked) => return Ok(Some(blocked)),
                },
                CreateOutcome::Blocked(blocked) => return Ok(Some(blocked)),
            },
        };
        let present = ObservedChild { uid: object.uid().unwrap_or_default(), digest: digest(&object), deleting: false };
        self.context.index.update_known(&self.key, |cell| {
            let children = &mut cell.children;
            if written && present.digest != should {
                // Admission changed the object, and would change it again.
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

    /// Creates the Jobs of an incarnation, one for each role. Before that it makes sure of the keys that their pods
    /// mount, the NetworkPolicy that protects them, and the group in which they are placed. The workers' Job comes
    /// last: where it exists, all others do.
    pub(super) async fn create_jobs(
        &self,
        plan: &Plan,
        incarnation: Incarnation,
        past: &GangPast,
        delivery: Delivery,
    ) -> Result<(), Error> {
        let plan = &Plan { runtime: OperatorInfo { delivery, ..plan.runtime.clone() }, ..plan.clone() };
        if !self.has_unseen && !self.ensure_unseen(plan).await? {
            return Ok(());
        }
        if !self.ensure_group(plan).await? {
            return Ok(());
        }
        let jobs = objects::jobs(plan, incarnation, past);
        // The upkeep Job has nothing left to check, and may never have been created.
        self.block(ChildKey::UPKEEP, None);
        if plan.gang.has_roles() && self.is_denied(plan, &jobs).await? {
            return Ok(());
        }
        for (role, wanted) in plan.gang.roles.iter().zip(jobs).rev() {
            let key = ChildKey::job(role.name);
            let made = match objects::with_group(plan, &wanted) {
                Some(whole) => self.create_as::<_, SlimJob>(&whole).await?,
                None => self.create_as::<_, SlimJob>(&wanted).await?,
            };
            match made {
                CreateOutcome::Made(job) | CreateOutcome::Found(job) => {
                    let dropped = is_native(plan) && !job.spec.has_group;
                    if dropped {
                        let fact = Event { warning: true, reason: "PlacedOneByOne", note: group_dropped().message };
                        self.publish_events(Some(incarnation.attempt), vec![fact]);
                    }
                    self.block(key, dropped.then(group_dropped));
                    // The watch may be slower than the next reconcile, which would send the request again.
                    self.remember(Some(&*job));
                }
                CreateOutcome::Blocked(blocked) => {
                    self.block(key, Some(blocked));
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Whether a Job that was refused before is still refused. A dry run finds out, so that pods of other roles hold no
    /// nodes while they wait for it.
    async fn is_denied(&self, plan: &Plan, jobs: &[Job]) -> Result<bool, Error> {
        let known = self.context.index.children(&self.key);
        for (role, wanted) in plan.gang.roles.iter().zip(jobs) {
            let key = ChildKey::job(role.name);
            if known.job(role.name).is_none() && known.blocked.contains_key(&key) {
                let blocked = match objects::with_group(plan, wanted) {
                    Some(whole) => self.try_to_create(&whole).await?,
                    None => self.try_to_create(wanted).await?,
                };
                let is_blocked = blocked.is_some();
                self.block(key, blocked);
                if is_blocked {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Makes sure that the job's keys and its NetworkPolicy exist, which the operator may only create. Returns false if
    /// one is missing.
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

    /// Makes sure that the workers' group exists, and returns false if it does not. The operator doesn't watch groups,
    /// because most clusters don't know their kind.
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
            Ok(CreateOutcome::Made(_) | CreateOutcome::Found(_)) => Ok(None),
            Ok(CreateOutcome::Blocked(blocked)) => Ok(Some(blocked)),
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

    /// Deletes a PodGroup. The group stays if the operator lacks the right or the kind is gone, because the Job must be
    /// deleted all the same.
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

    /// Creates the Job that looks after the checkpoints.
    pub(super) async fn create_upkeep(&self, plan: &Plan, task: Upkeep) -> Result<(), Error> {
        let wanted = if task == Upkeep::Fetch {
            objects::fetch_job(plan, self.context.cache_uses(&plan.identity.namespace))
        } else {
            objects::upkeep(plan, task)
        };
        let Some(wanted) = wanted else { return Ok(()) };
        match self.create_as::<_, SlimJob>(&wanted).await? {
            CreateOutcome::Made(job) | CreateOutcome::Found(job) => {
                self.block(ChildKey::UPKEEP, None);
                self.remember(Some(&*job));
            }
            CreateOutcome::Blocked(blocked) => self.block(ChildKey::UPKEEP, Some(blocked)),
        }
        Ok(())
    }

    /// A fresh read that fails if an upkeep Job exists, which the watch may have yet to show. That Job would write to
    /// the volume beside the workers.
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

    /// A fresh read of the Jobs. It distinguishes a deleted Job from one that the watch has not shown yet.
    pub(super) async fn find_jobs(&self, plan: &Plan) -> Result<bool, Error> {
        let (api, mut is_there) = (self.api::<SlimJob>(), false);
        for role in &plan.gang.roles {
            let name = names::role_job_name(&self.owner.name_any(), role.name);
            let found = call("get Job", api.get_opt(&name)).await?;
            is_there |= self.remember(found.filter(|found| is_ours(found, &self.key.uid)).as_ref());
        }
        Ok(is_there)
    }

    /// A fresh read of a job's pods after one of its Jobs has failed. It distinguishes a pod that is gone with its
    /// final message from one that the watch has not shown yet. The watch knows more about the pods that are already
    /// known.
    pub(super) async fn find_pods(&self, failed: &ObservedJob) -> Result<(), Error> {
        let of_job = ListParams::default().labels(&format!("{}={}", labels::UID, self.key.uid));
        let pods = call("list pods", self.api::<SlimPod>().list(&of_job)).await?;
        self.context.index.update_known(&self.key, |cell| {
            cell.children.pods_read_of.insert(failed.role, failed.uid.clone());
            pods.items.iter().for_each(|pod| cell.find_pod(pod));
        });
        Ok(())
    }

    /// Stores a Job that was just created or read, unless the watch has reported a newer version. Returns whether any
    /// Job exists.
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

    /// Deletes a Job after its pods (foreground). The workers' group is deleted before their Job, because no later pass
    /// would delete it. Volcano counts what a group without pods requests as taken. The next Job has a new group.
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

    /// Deletes a Job unless it has ended. It is read afresh, because the watches may be behind the status in which the
    /// job is over.
    pub(super) async fn end_job(&self, plan: &Plan, name: &str, uid: &str) -> Result<(), Error> {
        let job = call("get Job", self.api::<SlimJob>().get_opt(name)).await?.and_then(|job| job.seen());
        let has_ended = |job: ObservedJob| job.complete || job.failed.is_some();
        if job.is_some_and(has_ended) { Ok(()) } else { self.delete_job(plan, name, uid).await }
    }

    /// Removes the Job controller's finalizer from a pod that has yet to end. `force` also deletes the pod, whatever
    /// its node reports. That must wait for the end of the lease by which the agents on that node have stopped their
    /// programs.
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

    /// Scales the Job of an elastic gang. Both numbers change at once, because an Indexed Job accepts no other change
    /// of them.
    pub(super) async fn scale_job(&self, name: &str, uid: &str, pods: u16) -> Result<(), Error> {
        info!(name, pods, "scaling Job");
        let spec = serde_json::json!({ "parallelism": pods, "completions": pods });
        let patch = Patch::Merge(serde_json::json!({ "metadata": { "uid": uid }, "spec": spec }));
        unless_gone(
            self.context.write("scale Job", self.api::<Job>().patch(name, &PatchParams::default(), &patch)).await,
        )
        .map(drop)
    }

    /// Changes an annotation of the pod. A node updates a mounted ConfigMap within two minutes, or when the pod
    /// changes.
    pub(super) async fn hasten_pod(&self, name: &str, uid: &str, size: u16) -> Result<(), Error> {
        let annotations = serde_json::json!({ labels::GANG_SIZE: size.to_string() });
        let patch = serde_json::json!({ "metadata": { "uid": uid, "annotations": annotations } });
        let (api, params) = (self.api::<Pod>(), PatchParams::default());
        unless_gone(self.context.write("hasten pod", api.patch_metadata(name, &params, &Patch::Merge(patch))).await)
            .map(drop)
    }

    /// Deletes the TrainingJob at the version that was judged. A change made meanwhile prevents the deletion.
    pub(super) async fn delete_owner(&self) -> Result<(), Error> {
        info!("ttlSecondsAfterFinished is over, deleting the TrainingJob");
        let version = Some(self.version.to_string());
        self.delete_at::<TrainingJob>(&self.owner.name_any(), &self.key.uid, version, DeleteParams::background()).await
    }

    /// Whether pods of an earlier TrainingJob of this name still run; they write to the same place. If so, the child
    /// that waits for them is marked as blocked.
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

/// How to switch on Kubernetes' own PodGroups in a cluster that lacks them.
const SWITCH_ON: &str = "start kube-apiserver with --feature-gates=GenericWorkload=true and \
                         --runtime-config=scheduling.k8s.io/v1alpha2=true, and kube-scheduler with \
                         --feature-gates=GenericWorkload=true,GangScheduling=true";

fn is_native(plan: &Plan) -> bool {
    plan.gang.group.as_ref().is_some_and(|group| group.kind == GroupKind::Native)
}

/// The Job exists and runs on, because its pods may still all be placed.
fn group_dropped() -> Blocked {
    let message = format!(
        "the API server has dropped schedulingGroup from the pods, so that they are placed one by one and not as \
         spec.scheduling.gang says: {SWITCH_ON}, then suspend the job and resume it"
    );
    Blocked { reason: Reason::GangSchedulerMissing, message }
}

const _: () = {
    // Every kind of child is created above. A new field of `Objects` that is not created does not compile.
    fn _exhaustive(objects: objects::Objects) -> (Service, ConfigMap, Option<PersistentVolumeClaim>, Vec<Job>) {
        let objects::Objects { service, config, claim, jobs } = objects;
        (service, config, claim, jobs)
    }
};
