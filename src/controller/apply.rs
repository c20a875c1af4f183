//! Children: made where missing, put right where changed, left alone where somebody else's.

use super::error::{Error, call, refusal};
use super::{Context, Resolved};
use crate::api::TrainingJob;
use crate::build::{self, labels};
use crate::observe::{Blocked, ChildKind, ChildSeen, Family, JobSeen, SlimJob, digest};
use crate::plan::{CheckpointVolume, Plan};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Service};
use kube::api::{DeleteParams, PostParams, Preconditions, PropagationPolicy};
use kube::{Resource, ResourceExt};
use serde::{Serialize, de::DeserializeOwned};
use std::fmt::Debug;
use tracing::{debug, info, warn};

/// What became of a create.
enum Created<K> {
    /// It is there and ours: made now, or found.
    Ours(Box<K>),
    /// A predecessor's or one on its way out: the watch tells when it is gone.
    Wait,
    /// It can't be made.
    Blocked(Blocked),
}

impl Context {
    /// Makes what is missing and puts right what was changed; what is as it should be costs no request.
    pub(super) async fn ensure(
        &self,
        job: &TrainingJob,
        plan: &Plan,
        should: &Resolved,
        uid: &str,
        family: &Family,
        confirmed: &mut bool,
    ) -> Result<(), Error> {
        let as_should = |child: &Option<ChildSeen>, digest| child.as_ref().is_some_and(|c| c.digest == digest);
        let claimed = || match plan.checkpoint.as_ref().map(|checkpoint| &checkpoint.volume) {
            Some(CheckpointVolume::New { .. }) => {
                self.index.claim(&plan.namespace, &build::names::claim_name(&plan.name)).is_some()
            }
            _ => true,
        };
        if as_should(&family.service, should.service) && as_should(&family.config, should.config) && claimed() {
            return Ok(());
        }
        if family.service.is_none() || family.config.is_none() || !claimed() {
            self.confirm(job, confirmed).await?;
        }
        let build::Objects { service, config, claim, job: _ } = build::objects(plan, 1);
        let claims = async {
            match claim {
                Some(claim) if self.index.claim(&plan.namespace, &claim.name_any()).is_none() => {
                    self.ensure_claim(plan, uid, claim).await
                }
                _ => Ok(()),
            }
        };
        let services =
            self.ensure_one(plan, uid, family.service.as_ref(), service, digest::service, ChildKind::Service);
        let configs = self.ensure_one(plan, uid, family.config.as_ref(), config, digest::config, ChildKind::ConfigMap);
        let (services, configs, claims) = futures::join!(services, configs, claims);
        services.and(configs).and(claims)
    }

    async fn ensure_one<K>(
        &self,
        plan: &Plan,
        uid: &str,
        seen: Option<&ChildSeen>,
        wanted: K,
        digest: fn(&K) -> u64,
        kind: ChildKind,
    ) -> Result<(), Error>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Serialize + DeserializeOwned + Clone + Debug,
    {
        let should = digest(&wanted);
        let present = match seen {
            Some(child) if child.deleting || child.digest == should => return Ok(()),
            Some(child) => child.clone(),
            None => match self.create(plan, uid, &wanted).await? {
                Created::Ours(object) => {
                    ChildSeen { uid: object.uid().unwrap_or_default(), digest: digest(&object), deleting: false }
                }
                Created::Wait => return Ok(()),
                Created::Blocked(blocked) => return self.block(plan, uid, kind, Some(blocked)),
            },
        };
        self.block(plan, uid, kind, None)?;
        if present.digest != should {
            info!(kind = kind.as_str(), name = wanted.name_any(), "put right after a change by somebody else");
            let mut wanted = wanted;
            // With the UID the update can't make a new object, should this one be gone by now.
            wanted.meta_mut().uid = Some(present.uid.clone());
            let name = wanted.name_any();
            call("update child", self.api::<K>(&plan.namespace).replace(&name, &PostParams::default(), &wanted))
                .await?;
        }
        let child = ChildSeen { digest: should, ..present };
        self.index.update(uid, |family| match kind {
            ChildKind::Service => family.service = Some(child),
            ChildKind::ConfigMap => family.config = Some(child),
            ChildKind::PersistentVolumeClaim | ChildKind::Job => {}
        });
        Ok(())
    }

    async fn ensure_claim(&self, plan: &Plan, uid: &str, wanted: PersistentVolumeClaim) -> Result<(), Error> {
        let kind = ChildKind::PersistentVolumeClaim;
        match self.create(plan, uid, &wanted).await? {
            Created::Ours(_) | Created::Wait => self.block(plan, uid, kind, None),
            Created::Blocked(blocked) => self.block(plan, uid, kind, Some(blocked)),
        }
    }

    pub(super) async fn create_job(&self, plan: &Plan, uid: &str, attempt: i32) -> Result<(), Error> {
        let wanted = build::objects(plan, attempt).job;
        match self.create(plan, uid, &wanted).await? {
            Created::Ours(job) => {
                self.block(plan, uid, ChildKind::Job, None)?;
                // The watch may be slower than the next reconcile, which would ask again.
                let seen = serde_json::to_value(&*job).ok().and_then(|v| serde_json::from_value::<SlimJob>(v).ok());
                if let Some(seen) = seen.as_ref().and_then(SlimJob::seen) {
                    self.index.update(uid, |family| remember(family, seen));
                }
                Ok(())
            }
            Created::Wait => Ok(()),
            Created::Blocked(blocked) => self.block(plan, uid, ChildKind::Job, Some(blocked)),
        }
    }

    /// A fresh read of the Job, which tells a deleted one from one that the watch has not shown yet.
    pub(super) async fn find_job(&self, job: &TrainingJob, uid: &str) -> Result<bool, Error> {
        let api = self.api::<SlimJob>(&job.namespace().unwrap_or_default());
        let found = call("get Job", api.get_opt(&build::names::job_name(&job.name_any()))).await?;
        let seen = found.filter(|found| is_ours(found, uid)).as_ref().and_then(SlimJob::seen);
        let is_there = seen.is_some();
        if let Some(seen) = seen {
            self.index.update(uid, |family| remember(family, seen));
        }
        Ok(is_there)
    }

    /// Makes an object, or finds out whose the one of that name is.
    async fn create<K>(&self, plan: &Plan, uid: &str, wanted: &K) -> Result<Created<K>, Error>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Serialize + DeserializeOwned + Clone + Debug,
    {
        let api = self.api::<K>(&plan.namespace);
        let name = wanted.name_any();
        let error = match call("create child", api.create(&PostParams::default(), wanted)).await {
            Ok(object) => {
                debug!(kind = %K::kind(&()), name, "created");
                return Ok(Created::Ours(Box::new(object)));
            }
            Err(error) => error,
        };
        let Some(status) = refusal(&error) else { return Err(error) };
        let blocked = |reason: &str, message: String| Ok(Created::Blocked(Blocked { reason: reason.into(), message }));
        if status.is_already_exists() {
            let Some(object) = call("get child", api.get_opt(&name)).await? else { return Err(Error::Outdated) };
            if object.meta().deletion_timestamp.is_some() || is_predecessors(&object, uid) {
                return Ok(Created::Wait);
            }
            if is_ours(&object, uid) {
                return Ok(Created::Ours(Box::new(object)));
            }
            return blocked(
                "NameTaken",
                format!(
                    "{name} exists and belongs to somebody else; delete or rename it, or give the TrainingJob another name"
                ),
            );
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

    #[allow(clippy::unnecessary_wraps)] // reads as the other ends of its callers do
    fn block(&self, plan: &Plan, uid: &str, kind: ChildKind, blocked: Option<Blocked>) -> Result<(), Error> {
        if let Some(blocked) = &blocked {
            warn!(job = plan.name, kind = kind.as_str(), reason = blocked.reason, "{}", blocked.message);
        }
        self.index.update(uid, |family| match blocked {
            Some(blocked) => drop(family.blocked.insert(kind, blocked)),
            None => drop(family.blocked.remove(&kind)),
        });
        Ok(())
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
        let version =
            self.index.read(&job.uid().unwrap_or_default(), |f| f.written.as_ref().map(|(v, _)| *v)).flatten();
        let fresh = call("get TrainingJob", api.get_metadata_opt(&job.name_any())).await?;
        let seen = super::status::version(&job.metadata).max(version.unwrap_or(0));
        match fresh {
            Some(fresh)
                if fresh.metadata.uid == job.metadata.uid
                    && fresh.metadata.generation == job.metadata.generation
                    && fresh.metadata.deletion_timestamp.is_none()
                    && super::status::version(&fresh.metadata) <= seen =>
            {
                *confirmed = true;
                Ok(())
            }
            _ => Err(Error::Outdated),
        }
    }
}

/// Files a Job that was just created, unless the watch has told more of it already.
fn remember(family: &mut Family, seen: JobSeen) {
    if family.job.as_ref().is_none_or(|job| job.uid != seen.uid) {
        family.job = Some(seen);
    }
}

/// Owned by this TrainingJob; a claim that is to outlive its job has no owner and is ours by label.
fn is_ours<K: Resource<DynamicType = ()>>(object: &K, uid: &str) -> bool {
    let managed = object.labels().get(labels::MANAGED_BY).is_some_and(|v| v == labels::OPERATOR);
    object.owner_references().iter().any(|owner| owner.uid == uid)
        || (K::kind(&()) == "PersistentVolumeClaim" && managed && object.owner_references().is_empty())
}

/// Owned by another TrainingJob: the one of this name before, whose objects are being collected.
fn is_predecessors<K: Resource<DynamicType = ()>>(object: &K, uid: &str) -> bool {
    let kind = TrainingJob::kind(&());
    object
        .owner_references()
        .iter()
        .any(|owner| owner.kind == kind && owner.uid != uid && owner.controller == Some(true))
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
