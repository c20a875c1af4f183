//! A TrainingJob's children: made where missing, put right where changed, left alone where somebody else's.

use super::error::{Error, call, refusal};
use super::pass::{Child, Created, Pass, is_ours};
use crate::api::TrainingJob;
use crate::build::{self, names};
use crate::observe::{Blocked, ChildKey, ChildKind, Children, JOB_TRACKING, ObservedChild, SlimJob, Wanted, digest};
use crate::plan::{CheckpointVolume, Incarnation, Plan, Upkeep};
use crate::protocol::gang::GangPast;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Service};
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use tracing::{info, warn};

impl Pass<'_, TrainingJob> {
    /// Makes what is missing and puts right what was changed; what is as it should be costs no request.
    pub(super) async fn ensure(&mut self, plan: &Plan, wanted: &Wanted, children: &Children) -> Result<(), Error> {
        let claimed = self.has_claim(plan);
        let is_right = |key, child: &Option<ObservedChild>, should| {
            child.as_ref().is_some_and(|child| !child.deleting && children.is_right(key, child.digest, should))
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
        let build::Objects { service, config, claim, .. } =
            build::objects(plan, Incarnation::FIRST, GangPast::default());
        let claim = claim.filter(|_| !claimed);
        let (services, configs, claims) = futures::join!(
            self.ensure_one(ChildKey::SERVICE, children, children.service.as_ref(), service, digest::service),
            self.ensure_one(ChildKey::CONFIG, children, children.config.as_ref(), config, digest::config),
            self.ensure_claim(claim),
        );
        let mut result = Ok(());
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
                ChildKind::PersistentVolumeClaim | ChildKind::Secret | ChildKind::Job => {}
            }
        });
        Ok(None)
    }

    /// Makes the Jobs of an incarnation, one for each role, once the key is there that their pods mount.
    pub(super) async fn create_jobs(&self, plan: &Plan, incarnation: Incarnation, past: GangPast) -> Result<(), Error> {
        if let Some(key) = build::gang_key(plan, &rand::random()) {
            let blocked = self.create_unseen(&key).await?;
            let is_blocked = blocked.is_some();
            self.block(ChildKey::GANG_KEY, blocked);
            if is_blocked {
                return Ok(());
            }
        }
        for (role, wanted) in plan.gang.roles.iter().zip(build::objects(plan, incarnation, past).jobs) {
            let key = ChildKey::job(role.name);
            match self.create(&wanted).await? {
                Created::Made(job) | Created::Found(job) => {
                    self.block(key, None);
                    // The watch may be slower than the next reconcile, which would ask again.
                    let job = serde_json::to_value(&*job).ok().and_then(|job| serde_json::from_value(job).ok());
                    self.remember(job.as_ref());
                }
                Created::Blocked(blocked) => self.block(key, Some(blocked)),
            }
        }
        Ok(())
    }

    /// Makes the Job that looks after the checkpoints.
    pub(super) async fn create_upkeep(&self, plan: &Plan, task: Upkeep) -> Result<(), Error> {
        let Some(wanted) = build::upkeep(plan, task) else { return Ok(()) };
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

    /// A fresh read of the Job, which tells a deleted one from one that the watch has not shown yet.
    pub(super) async fn find_job(&self) -> Result<bool, Error> {
        let api = self.api::<SlimJob>();
        let found = call("get Job", api.get_opt(&names::job_name(&self.owner.name_any()))).await?;
        Ok(self.remember(found.filter(|found| is_ours(found, &self.key.uid)).as_ref()))
    }

    /// Files a Job that was just made or read, unless the watch has told more of it already; true if there is one.
    fn remember(&self, job: Option<&SlimJob>) -> bool {
        let there = self.context.index.update_known(&self.key, |cell| {
            job.into_iter().for_each(|job| cell.put_job(job));
            !cell.children.jobs.is_empty()
        });
        there.unwrap_or(false)
    }

    fn block(&self, key: ChildKey, blocked: Option<Blocked>) {
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
    pub(super) async fn delete_job(&self, name: &str, uid: &str) -> Result<(), Error> {
        info!(name, "deleting Job");
        self.delete::<Job>(name, uid, DeleteParams::foreground()).await
    }

    /// Takes the Job controller's finalizer off a pod, which has yet to end. By force the pod is deleted, whatever its node
    /// says: nobody may do that before the lease is over by which the agents there have stopped their programs.
    pub(super) async fn release_pod(&self, name: &str, uid: &str, force: bool) -> Result<(), Error> {
        info!(name, force, "taking a pod from its Job, which is to make another one");
        let patch = serde_json::json!({
            "metadata": { "uid": uid, "$deleteFromPrimitiveList/finalizers": [JOB_TRACKING] },
        });
        let (api, params, patch) = (self.api::<Pod>(), PatchParams::default(), Patch::Strategic(patch));
        match call("release pod", api.patch_metadata(name, &params, &patch)).await {
            // 404: gone; 409: the name is another's by now.
            Err(error) if refusal(&error).is_some_and(|s| s.is_not_found() || s.is_conflict()) => return Ok(()),
            result => drop(result?),
        }
        if force {
            self.delete::<Pod>(name, uid, DeleteParams::default().grace_period(0)).await?;
        }
        Ok(())
    }

    pub(super) async fn delete_owner(&self) -> Result<(), Error> {
        info!("ttlSecondsAfterFinished is over, deleting the TrainingJob");
        self.delete::<TrainingJob>(&self.owner.name_any(), &self.key.uid, DeleteParams::background()).await
    }
}

const _: () = {
    // Every kind of child has its place above; a new field of `Objects` that nobody makes does not compile.
    fn _exhaustive(objects: build::Objects) -> (Service, ConfigMap, Option<PersistentVolumeClaim>, Vec<Job>) {
        let build::Objects { service, config, claim, jobs } = objects;
        (service, config, claim, jobs)
    }
};
