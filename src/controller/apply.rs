//! Children: made where missing, put right where changed, left alone where somebody else's.

use super::error::{Error, call, refusal};
use super::{Context, Resolved};
use crate::api::TrainingJob;
use crate::build::{self, labels};
use crate::observe::{Blocked, ChildKind, ChildSeen, Family, SlimJob, digest, owner, version};
use crate::plan::{CheckpointVolume, Plan};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, PostParams, Preconditions, PropagationPolicy};
use kube::{Resource, ResourceExt};
use serde::{Serialize, de::DeserializeOwned};
use std::fmt::Debug;
use tracing::{debug, info, warn};

/// What became of a create.
pub(super) enum Created<K> {
    /// It is there now, as the API server keeps it.
    Made(Box<K>),
    /// It was there and is ours.
    Found(Box<K>),
    /// It can't be made, now or at all.
    Blocked(Blocked),
}

impl Context {
    /// Makes what is missing and puts right what was changed; what is as it should be costs no request.
    #[allow(clippy::too_many_arguments)] // all that a pass knows of the job
    pub(super) async fn ensure(
        &self,
        job: &TrainingJob,
        plan: &Plan,
        should: &Resolved,
        uid: &str,
        family: &Family,
        confirmed: &mut bool,
    ) -> Result<(), Error> {
        let claimed = match plan.checkpoint.as_ref().map(|checkpoint| &checkpoint.volume) {
            Some(CheckpointVolume::New { .. }) => {
                let claim = self.index.claim(&plan.namespace, &build::names::claim_name(&plan.name));
                claim.is_some_and(|claim| claim.serves(uid))
            }
            _ => true,
        };
        let is_right = |kind, child: &Option<ChildSeen>, should| {
            child.as_ref().is_some_and(|child| !child.deleting && family.is_right(kind, child.digest, should))
        };
        if is_right(ChildKind::Service, &family.service, should.service)
            && is_right(ChildKind::ConfigMap, &family.config, should.config)
            && claimed
            && family.blocked.keys().all(|kind| *kind == ChildKind::Job)
        {
            return Ok(());
        }
        if family.service.is_none() || family.config.is_none() || !claimed {
            self.confirm(job, confirmed).await?;
        }
        let build::Objects { service, config, claim, .. } = build::objects(plan, 1);
        let claim = claim.filter(|_| !claimed);
        let (services, configs, claims) = futures::join!(
            self.ensure_one(plan, uid, family, family.service.as_ref(), service, digest::service, ChildKind::Service),
            self.ensure_one(plan, uid, family, family.config.as_ref(), config, digest::config, ChildKind::ConfigMap),
            self.ensure_claim(plan, uid, claim),
        );
        let mut result = Ok(());
        for (kind, made) in [
            (ChildKind::Service, services),
            (ChildKind::ConfigMap, configs),
            (ChildKind::PersistentVolumeClaim, claims),
        ] {
            match made {
                Ok(blocked) => self.block(plan, uid, kind, blocked),
                Err(error) => result = Err(error),
            }
        }
        result
    }

    async fn ensure_claim(
        &self,
        plan: &Plan,
        uid: &str,
        wanted: Option<PersistentVolumeClaim>,
    ) -> Result<Option<Blocked>, Error> {
        let Some(wanted) = wanted else { return Ok(None) };
        Ok(match self.create(plan, uid, &wanted).await? {
            Created::Made(_) | Created::Found(_) => None,
            Created::Blocked(blocked) => Some(blocked),
        })
    }

    #[allow(clippy::too_many_arguments)] // what a kind of child is, said once for each
    async fn ensure_one<K>(
        &self,
        plan: &Plan,
        uid: &str,
        family: &Family,
        seen: Option<&ChildSeen>,
        wanted: K,
        digest: fn(&K) -> u64,
        kind: ChildKind,
    ) -> Result<Option<Blocked>, Error>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Serialize + DeserializeOwned + Clone + Debug,
    {
        let should = digest(&wanted);
        let (object, written) = match seen {
            Some(child) if child.deleting => return Ok(Some(Blocked::deleting(&wanted.name_any()))),
            Some(child) if family.is_right(kind, child.digest, should) => return Ok(None),
            Some(child) => (self.put_right(plan, &child.uid, wanted, kind).await?, true),
            None => match self.create(plan, uid, &wanted).await? {
                Created::Made(made) => (*made, true),
                Created::Found(found) if family.is_right(kind, digest(&found), should) => (*found, false),
                Created::Found(found) => {
                    (self.put_right(plan, &found.uid().unwrap_or_default(), wanted, kind).await?, true)
                }
                Created::Blocked(blocked) => return Ok(Some(blocked)),
            },
        };
        let present = ChildSeen { uid: object.uid().unwrap_or_default(), digest: digest(&object), deleting: false };
        self.index.update(uid, |family| {
            if written && present.digest != should {
                // Changed by admission, which would do it again.
                family.settled.insert(kind, present.digest);
            }
            if !family.is_news(kind, object.meta()) {
                return;
            }
            match kind {
                ChildKind::Service => family.service = Some(present),
                ChildKind::ConfigMap => family.config = Some(present),
                ChildKind::PersistentVolumeClaim | ChildKind::Job => {}
            }
        });
        Ok(None)
    }

    async fn put_right<K>(&self, plan: &Plan, uid: &str, mut wanted: K, kind: ChildKind) -> Result<K, Error>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Serialize + DeserializeOwned + Clone + Debug,
    {
        let (api, name) = (self.api::<K>(&plan.namespace), wanted.name_any());
        info!(kind = kind.as_str(), name, "putting right what somebody else changed");
        let found = call("get child", api.get_opt(&name)).await?.filter(|found| found.uid().as_deref() == Some(uid));
        keep_others(found.ok_or(Error::Outdated)?.meta(), wanted.meta_mut());
        call("update child", api.replace(&name, &PostParams::default(), &wanted)).await
    }

    pub(super) async fn create_job(&self, plan: &Plan, uid: &str, attempt: i32) -> Result<(), Error> {
        let wanted = build::objects(plan, attempt).job;
        match self.create(plan, uid, &wanted).await? {
            Created::Made(job) | Created::Found(job) => {
                self.block(plan, uid, ChildKind::Job, None);
                // The watch may be slower than the next reconcile, which would ask again.
                let seen = serde_json::to_value(&*job).ok().and_then(|v| serde_json::from_value::<SlimJob>(v).ok());
                self.index.update(uid, |family| remember(family, seen.as_ref()));
            }
            Created::Blocked(blocked) => self.block(plan, uid, ChildKind::Job, Some(blocked)),
        }
        Ok(())
    }

    /// A fresh read of the Job, which tells a deleted one from one that the watch has not shown yet.
    pub(super) async fn find_job(&self, job: &TrainingJob, uid: &str) -> Result<bool, Error> {
        let api = self.api::<SlimJob>(&job.namespace().unwrap_or_default());
        let found = call("get Job", api.get_opt(&build::names::job_name(&job.name_any()))).await?;
        let found = found.filter(|found| is_ours(found, uid));
        Ok(self.index.update(uid, |family| remember(family, found.as_ref())))
    }

    /// Makes an object, or finds out whose the one of that name is.
    pub(super) async fn create<K>(&self, plan: &Plan, uid: &str, wanted: &K) -> Result<Created<K>, Error>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Serialize + DeserializeOwned + Clone + Debug,
    {
        let api = self.api::<K>(&plan.namespace);
        let name = wanted.name_any();
        let error = match call("create child", api.create(&PostParams::default(), wanted)).await {
            Ok(object) => {
                debug!(kind = %K::kind(&()), name, "created");
                return Ok(Created::Made(Box::new(object)));
            }
            Err(error) => error,
        };
        let Some(status) = refusal(&error) else { return Err(error) };
        let blocked = |reason: &str, message: String| Ok(Created::Blocked(Blocked { reason: reason.into(), message }));
        if status.is_already_exists() {
            let Some(object) = call("get child", api.get_opt(&name)).await? else { return Err(Error::Outdated) };
            if object.meta().deletion_timestamp.is_some() {
                return Ok(Created::Blocked(Blocked::deleting(&name)));
            }
            if is_ours(&object, uid) {
                return Ok(Created::Found(Box::new(object)));
            }
            if owner(object.meta()).is_some() {
                let why = "belongs to an earlier TrainingJob of this name; Kubernetes is about to delete it";
                return blocked("OldObject", format!("{name} {why}"));
            }
            let why = if object.labels().get(labels::TRAINING_JOB) == Some(&plan.name) && is_managed(&object) {
                "is left over from an earlier TrainingJob of this name; delete it"
            } else {
                "exists and is not this TrainingJob's; delete it, or create the TrainingJob under another name"
            };
            return blocked("NameTaken", format!("{name} {why}"));
        }
        if status.is_forbidden() {
            let reason = if status.message.contains("exceeded quota") { "QuotaExceeded" } else { "Forbidden" };
            return blocked(reason, status.message.clone());
        }
        if status.is_invalid() {
            return blocked("Invalid", status.message.clone());
        }
        Err(error)
    }

    fn block(&self, plan: &Plan, uid: &str, kind: ChildKind, blocked: Option<Blocked>) {
        let news = self.index.update(uid, |family| {
            let news = blocked.as_ref() != family.blocked.get(&kind);
            match blocked.clone() {
                Some(blocked) => drop(family.blocked.insert(kind, blocked)),
                None => drop(family.blocked.remove(&kind)),
            }
            news
        });
        if let Some(blocked) = blocked.filter(|_| news) {
            warn!(job = plan.name, kind = kind.as_str(), reason = blocked.reason, "{}", blocked.message);
        }
    }

    /// The Job goes after its pods (foreground), and only if it is the one that was judged (UID).
    pub(super) async fn delete_job(&self, job: &TrainingJob, name: &str, uid: &str) -> Result<(), Error> {
        let api = self.api::<Job>(&job.namespace().unwrap_or_default());
        info!(name, "deleting Job");
        let params = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Foreground),
            preconditions: Some(Preconditions { uid: Some(uid.to_owned()), resource_version: None }),
            ..DeleteParams::default()
        };
        gone_is_fine(call("delete Job", api.delete(name, &params)).await.map(drop))
    }

    pub(super) async fn delete_training_job(&self, job: &TrainingJob, uid: &str) -> Result<(), Error> {
        let api = self.api::<TrainingJob>(&job.namespace().unwrap_or_default());
        info!("ttlSecondsAfterFinished is over, deleting the TrainingJob");
        let params = DeleteParams {
            preconditions: Some(Preconditions { uid: Some(uid.to_owned()), resource_version: None }),
            ..DeleteParams::background()
        };
        gone_is_fine(call("delete TrainingJob", api.delete(&job.name_any(), &params)).await.map(drop))
    }

    /// A fresh read, once in a pass: the TrainingJob is as it was seen, or the watch will soon tell.
    pub(super) async fn confirm(&self, job: &TrainingJob, confirmed: &mut bool) -> Result<(), Error> {
        if *confirmed {
            return Ok(());
        }
        let api = self.api::<TrainingJob>(&job.namespace().unwrap_or_default());
        let written =
            self.index.read(&job.uid().unwrap_or_default(), |f| f.written.as_ref().map(|(v, _)| *v)).flatten();
        let fresh = call("get TrainingJob", api.get_metadata_opt(&job.name_any())).await?;
        let seen = version(&job.metadata).max(written.unwrap_or(0));
        match fresh {
            Some(fresh)
                if fresh.metadata.uid == job.metadata.uid
                    && fresh.metadata.generation == job.metadata.generation
                    && fresh.metadata.deletion_timestamp.is_none()
                    && version(&fresh.metadata) <= seen =>
            {
                *confirmed = true;
                Ok(())
            }
            _ => Err(Error::Outdated),
        }
    }
}

/// Files a Job that was just made or read, unless the watch has told more of it already. True if there is one.
fn remember(family: &mut Family, job: Option<&SlimJob>) -> bool {
    if let Some((job, seen)) = job.and_then(|job| Some((job, job.seen()?)))
        && family.is_news(ChildKind::Job, &job.metadata)
    {
        family.job = Some(seen);
    }
    family.job.is_some()
}

/// Owned by this TrainingJob; a claim that is to outlive its job has no owner and is ours by label.
fn is_ours<K: Resource<DynamicType = ()>>(object: &K, uid: &str) -> bool {
    object.owner_references().iter().any(|owner| owner.uid == uid)
        || (K::kind(&()) == "PersistentVolumeClaim" && is_managed(object) && object.owner_references().is_empty())
}

fn is_managed<K: Resource>(object: &K) -> bool {
    object.labels().get(labels::MANAGED_BY).is_some_and(|v| v == labels::OPERATOR)
}

/// Labels, annotations and finalizers of others stay.
fn keep_others(found: &ObjectMeta, wanted: &mut ObjectMeta) {
    // Of exactly what was found: the update makes no new object, and undoes no change that came in between.
    wanted.uid.clone_from(&found.uid);
    wanted.resource_version.clone_from(&found.resource_version);
    wanted.finalizers.clone_from(&found.finalizers);
    for (found, wanted) in [(&found.labels, &mut wanted.labels), (&found.annotations, &mut wanted.annotations)] {
        for (key, value) in found.iter().flatten() {
            wanted.get_or_insert_default().entry(key.clone()).or_insert_with(|| value.clone());
        }
    }
}

fn gone_is_fine(result: Result<(), Error>) -> Result<(), Error> {
    match &result {
        // 404: gone; 409: the UID is another's by now.
        Err(error) if refusal(error).is_some_and(|s| s.is_not_found() || s.is_conflict()) => Ok(()),
        _ => result,
    }
}

const _: () = {
    // Every kind of child has its place above; a new field of `Objects` that nobody makes does not compile.
    fn _exhaustive(objects: build::Objects) -> (Service, ConfigMap, Option<PersistentVolumeClaim>, Job) {
        let build::Objects { service, config, claim, job } = objects;
        (service, config, claim, job)
    }
};
