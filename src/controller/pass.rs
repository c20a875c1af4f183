//! One pass over one object of our own kinds, and the writes that it may make for it.
//!
//! For every kind, children are created only after the pass has proven that the owner is as it was seen. The status is
//! replaced only at the version that was read. Events are published beside the pass.

use super::error::{Error, call, refusal};
use super::{Context, refused};
use api::{Inherited, Reason};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderValue, Request};
use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::events::v1 as events;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, Client, Resource, ResourceExt};
use lifecycle::Event;
use objects::labels;
use observe::{Blocked, JobKey, owner, version};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use text::start_of;
use tracing::{debug, info};

/// Makes the API server answer with no more of an object than its metadata.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// One of our own kinds, whose objects own others.
pub(super) trait Owner:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Send + Sync
{
}

impl Owner for api::TrainingJob {}

/// A kind that an owner may have as a child.
pub(super) trait Child:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize + DeserializeOwned + Clone + Debug
{
}

impl<K> Child for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize + DeserializeOwned + Clone + Debug
{
}

/// Outcome of a create.
pub(super) enum CreateOutcome<K> {
    /// It exists now, as the API server stores it.
    Made(Box<K>),
    /// It existed already and is ours.
    Found(Box<K>),
    /// It can't be created, now or at all.
    Blocked(Blocked),
}

/// Answer to a POST.
enum Posted<A> {
    Made(A),
    /// An object of that name exists.
    Exists,
    Blocked(Blocked),
}

/// One pass over one object.
pub(super) struct Pass<'a, O> {
    pub context: &'a Context,
    pub owner: &'a O,
    pub key: JobKey,
    /// The owner's version that this pass knows: as it was seen, or as its own write of the status left it.
    pub version: u64,
    /// Whether the pass has proven that the owner has not changed since.
    confirmed: bool,
    /// Whether the job's keys and its NetworkPolicy exist, which the operator can't read.
    pub has_unseen: bool,
    /// What the job inherits, as found in this pass, until it is recorded.
    pub inherited: Option<Inherited>,
}

impl<'a, O: Owner> Pass<'a, O> {
    /// A pass over an object that was seen.
    pub(super) fn over(context: &'a Context, owner: &'a O) -> Result<Self, Error> {
        if owner.meta().uid.is_none() {
            return Err(Error::NoUid);
        }
        let (key, version) = (JobKey::from_meta(owner.meta()), version(owner.meta()));
        Ok(Self { context, owner, key, version, confirmed: false, has_unseen: false, inherited: None })
    }

    pub(super) fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        self.context.api(&self.key.namespace)
    }

    /// Proves by a fresh read, once in a pass, that the owner is as it was seen. If not, the watch will soon bring the
    /// change.
    pub(super) async fn confirm(&mut self) -> Result<(), Error> {
        if self.confirmed {
            return Ok(());
        }
        let (api, meta) = (self.api::<O>(), self.owner.meta());
        let fresh = call("get owner", api.get_metadata_opt(&self.owner.name_any())).await?;
        let is_as_seen = fresh.is_some_and(|fresh| {
            fresh.metadata.uid == meta.uid
                && fresh.metadata.generation == meta.generation
                && fresh.metadata.deletion_timestamp.is_none()
                && version(&fresh.metadata) <= self.version
        });
        self.confirmed = is_as_seen;
        if is_as_seen { Ok(()) } else { Err(Error::Outdated) }
    }

    /// Creates an object, or finds out which owner the existing one of that name has.
    pub(super) async fn create<K: Child>(&self, wanted: &K) -> Result<CreateOutcome<K>, Error> {
        self.create_as(wanted).await
    }

    /// The same, and reads of the object only what `A` has.
    pub(super) async fn create_as<K: Child, A: Child>(&self, wanted: &K) -> Result<CreateOutcome<A>, Error> {
        let answer = self.context.write("create child", post(&self.context.client, &self.key.namespace, wanted)).await;
        match self.posted(wanted, answer)? {
            Posted::Made(object) => {
                debug!(kind = %K::kind(&()), name = wanted.name_any(), "created");
                Ok(CreateOutcome::Made(Box::new(object)))
            }
            Posted::Exists => self.who_has(&wanted.name_any()).await,
            Posted::Blocked(blocked) => Ok(CreateOutcome::Blocked(blocked)),
        }
    }

    /// Creates an object of a kind that the operator may not read. An existing one of that name must be ours. Returns
    /// what blocks the creation.
    pub(super) async fn create_unseen<K: Child>(&self, wanted: &K) -> Result<Option<Blocked>, Error> {
        match self.post_unread(wanted, false).await? {
            Posted::Made(()) | Posted::Exists => Ok(None),
            Posted::Blocked(blocked) => Ok(Some(blocked)),
        }
    }

    /// Has the API server dry-run a creation, and returns what blocks it. An answer about the dry run alone, for
    /// example of a webhook that supports none, is ignored.
    pub(super) async fn try_to_create<K: Child>(&self, wanted: &K) -> Result<Option<Blocked>, Error> {
        match self.post_unread(wanted, true).await {
            Ok(Posted::Blocked(blocked)) => Ok(Some(blocked)),
            Ok(Posted::Made(()) | Posted::Exists) => Ok(None),
            Err(error) if refusal(&error).is_some() => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn post_unread<K: Child>(&self, wanted: &K, dry_run: bool) -> Result<Posted<()>, Error> {
        let post = post_unread(&self.context.client, &self.key.namespace, wanted, dry_run);
        let answer = self.context.write("create child", post).await;
        self.posted(wanted, answer)
    }

    /// What the answer to a POST of this object means.
    fn posted<K: Child, A>(&self, wanted: &K, answer: Result<A, Error>) -> Result<Posted<A>, Error> {
        if let Some(blocked) = self.timed_out(&K::kind(&()), &wanted.name_any(), &answer) {
            return Ok(Posted::Blocked(blocked));
        }
        let error = match answer {
            Ok(object) => return Ok(Posted::Made(object)),
            Err(error) => error,
        };
        if refusal(&error).is_some_and(kube::core::Status::is_already_exists) {
            return Ok(Posted::Exists);
        }
        refusal(&error).and_then(refused::blocked).map(Posted::Blocked).ok_or(error)
    }

    /// What blocks a write, if no answer to it came in time twice in a row. After the first time the write is repeated
    /// soon.
    fn timed_out<K>(&self, kind: &str, name: &str, answer: &Result<K, Error>) -> Option<Blocked> {
        let (is_timeout, child) = (answer.as_ref().is_err_and(Error::is_timeout), format!("{kind} {name}"));
        let is_repeated = self.context.index.update_known(&self.key, |cell| {
            let was_known = cell.timed_out.contains(&child);
            if is_timeout {
                cell.timed_out.insert(child.clone())
            } else {
                cell.timed_out.remove(&child)
            };
            is_timeout && was_known
        });
        let message = format!(
            "the API server has not answered the request to write {child} within {} s, at least twice; look for slow admission \
             webhooks (kubectl get mutatingwebhookconfigurations,validatingwebhookconfigurations)",
            self.context.patience.as_secs()
        );
        (is_repeated == Some(true)).then_some(Blocked { reason: Reason::ApiTimeout, message })
    }

    async fn who_has<K: Child>(&self, name: &str) -> Result<CreateOutcome<K>, Error> {
        let Some(object) = call("get child", self.api::<K>().get_opt(name)).await? else {
            return Err(Error::Outdated);
        };
        if object.meta().deletion_timestamp.is_some() {
            return Ok(CreateOutcome::Blocked(Blocked::deleting(name)));
        }
        if is_ours(&object, &self.key.uid) {
            return Ok(CreateOutcome::Found(Box::new(object)));
        }
        let blocked = |reason, why| Ok(CreateOutcome::Blocked(Blocked { reason, message: format!("{name} {why}") }));
        if owner(object.meta()).is_some() {
            let why = "belongs to an earlier TrainingJob of this name; Kubernetes is about to delete it";
            return blocked(Reason::OldObject, why);
        }
        if object.labels().get(labels::TRAINING_JOB) == Some(&self.owner.name_any()) && is_managed(&object) {
            return blocked(Reason::NameTaken, "is left over from an earlier TrainingJob of this name; delete it");
        }
        let why = "exists and is not this TrainingJob's; delete it, or create the TrainingJob under another name";
        blocked(Reason::NameTaken, why)
    }

    /// Restores an object of ours that another client changed, unless that is denied.
    pub(super) async fn put_right<K: Child>(&self, uid: &str, mut wanted: K) -> Result<CreateOutcome<K>, Error> {
        let (api, name) = (self.api::<K>(), wanted.name_any());
        info!(kind = %K::kind(&()), name, "restoring an object that another client changed");
        let found = call("get child", api.get_opt(&name)).await?.filter(|found| found.uid().as_deref() == Some(uid));
        keep_others(found.ok_or(Error::Outdated)?.meta(), wanted.meta_mut());
        let answer = self.context.write("update child", api.replace(&name, &PostParams::default(), &wanted)).await;
        if let Some(blocked) = self.timed_out(&K::kind(&()), &name, &answer) {
            return Ok(CreateOutcome::Blocked(blocked));
        }
        match answer {
            Ok(object) => Ok(CreateOutcome::Made(Box::new(object))),
            Err(error) => {
                let blocked = refusal(&error).and_then(refused::blocked).filter(Blocked::is_denial);
                blocked.map(CreateOutcome::Blocked).ok_or(error)
            }
        }
    }

    /// Replaces the status of exactly the version that this pass knows, which proves the pass. The API server takes
    /// only the status from the body.
    pub(super) async fn replace_status<S: Serialize>(&mut self, status: &S) -> Result<(), Error> {
        /// The answer repeats the status that we sent, so only its version is read.
        #[derive(Deserialize)]
        struct Written {
            metadata: WrittenMeta,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct WrittenMeta {
            resource_version: Option<String>,
        }
        #[derive(Serialize)]
        struct Body<'a, S> {
            #[serde(flatten)]
            object: Value,
            status: &'a S,
        }
        let (namespace, name) = (self.key.namespace.as_str(), self.owner.name_any());
        let object = json!({
            "apiVersion": O::api_version(&()),
            "kind": O::kind(&()),
            "metadata": {
                "name": name, "namespace": namespace, "uid": self.key.uid, "resourceVersion": self.version.to_string(),
            },
        });
        let put = async {
            let body = serde_json::to_vec(&Body { object, status }).map_err(kube::Error::SerdeError)?;
            let request = Request::put(format!("{}/{name}/status", O::url_path(&(), Some(namespace))))
                .header(CONTENT_TYPE, "application/json")
                .header(ACCEPT, METADATA)
                .body(body)
                .map_err(kube::Error::HttpError)?;
            self.context.client.request::<Written>(request).await
        };
        let written = self.context.write("write status", put).await;
        match written {
            Ok(written) => {
                let resource_version = written.metadata.resource_version;
                self.version = version(&ObjectMeta { resource_version, ..ObjectMeta::default() });
                self.confirmed = true;
                Ok(())
            }
            Err(error) if refusal(&error).is_some_and(kube::core::Status::is_not_found) => Err(Error::Outdated),
            Err(error) => Err(error),
        }
    }

    /// Deletes an object if it is the one that was judged (UID).
    pub(super) async fn delete<K: Child>(&self, name: &str, uid: &str, params: DeleteParams) -> Result<(), Error> {
        self.delete_at::<K>(name, uid, None, params).await
    }

    /// Deletes an object if it is the one that was judged, at that version if one is given.
    pub(super) async fn delete_at<K: Child>(
        &self,
        name: &str,
        uid: &str,
        resource_version: Option<String>,
        params: DeleteParams,
    ) -> Result<(), Error> {
        let params = DeleteParams {
            preconditions: Some(Preconditions { uid: Some(uid.to_owned()), resource_version }),
            ..params
        };
        match self.context.write("delete", self.api::<K>().delete(name, &params)).await {
            // 404: the object is gone. 409: it has been replaced or changed since.
            Err(error) if refusal(&error).is_some_and(|s| s.is_not_found() || s.is_conflict()) => Ok(()),
            result => result.map(drop),
        }
    }

    /// Publishes events beside the pass, so that training never waits for them.
    ///
    /// A fact of an attempt always has the same name, so that it is published once, also after a restart of the
    /// operator.
    pub(super) fn publish_events(&self, attempt: Option<u32>, facts: Vec<Event>) {
        let regarding = self.owner.object_ref(&());
        let admit = |fact: &Event, hash| {
            let now = std::time::Instant::now();
            let index = &self.context.index;
            index.update_known(&self.key, |cell| cell.publications.admit(fact.reason, hash, now)).unwrap_or(true)
        };
        let facts: Vec<_> = facts
            .into_iter()
            .filter_map(|fact| {
                let mut hasher = DefaultHasher::new();
                (&self.owner.meta().uid, attempt, fact.reason, &fact.note).hash(&mut hasher);
                let hash = hasher.finish();
                admit(&fact, hash).then(|| self.event(hash, &regarding, fact))
            })
            .collect();
        if !facts.is_empty() {
            self.context.publisher.publish(&self.context.client, &self.key.namespace, facts);
        }
    }

    #[expect(clippy::needless_pass_by_value, reason = "takes what its callers need no more")]
    fn event(&self, hash: u64, regarding: &core::ObjectReference, fact: Event) -> events::Event {
        events::Event {
            metadata: ObjectMeta {
                name: Some(format!("{}.{hash:016x}", self.owner.name_any())),
                namespace: self.owner.namespace(),
                ..ObjectMeta::default()
            },
            action: Some(fact.reason.to_owned()),
            event_time: Some(MicroTime(Timestamp::now())),
            // The API takes 1,024 bytes.
            note: Some(start_of(&fact.note, 1000).to_owned()),
            reason: Some(fact.reason.to_owned()),
            regarding: Some(regarding.clone()),
            reporting_controller: Some(labels::OPERATOR.to_owned()),
            reporting_instance: Some(self.context.options.identity.chars().take(128).collect()),
            type_: Some(if fact.warning { "Warning" } else { "Normal" }.to_owned()),
            ..events::Event::default()
        }
    }
}

/// Creates an object, and reads of it only what `A` has.
async fn post<K: Child, A: DeserializeOwned>(client: &Client, namespace: &str, wanted: &K) -> Result<A, kube::Error> {
    client.request(creation(namespace, wanted, &PostParams::default())?).await
}

/// Creates an object, and reads nothing of it.
pub(super) async fn post_unread<K: Child>(
    client: &Client,
    namespace: &str,
    wanted: &K,
    dry_run: bool,
) -> Result<(), kube::Error> {
    let mut request = creation(namespace, wanted, &PostParams { dry_run, ..PostParams::default() })?;
    request.headers_mut().insert(ACCEPT, HeaderValue::from_static(METADATA));
    client.request::<IgnoredAny>(request).await.map(drop)
}

fn creation<K: Child>(namespace: &str, wanted: &K, params: &PostParams) -> Result<Request<Vec<u8>>, kube::Error> {
    let body = serde_json::to_vec(wanted).map_err(kube::Error::SerdeError)?;
    let url = K::url_path(&(), Some(namespace));
    kube::core::Request::new(url).create(params, body).map_err(kube::Error::BuildRequest)
}

/// Whether this owner owns the object and no other owner controls it. A claim that is to outlive its job has no owner,
/// and is recognized by its label.
pub(super) fn is_ours<K: Resource<DynamicType = ()>>(object: &K, uid: &str) -> bool {
    let owners = object.owner_references();
    let is_anothers = owners.iter().any(|owner| owner.controller == Some(true) && owner.uid != uid);
    (owners.iter().any(|owner| owner.uid == uid) && !is_anothers)
        || (K::kind(&()) == "PersistentVolumeClaim" && is_managed(object) && object.owner_references().is_empty())
}

fn is_managed<K: Resource>(object: &K) -> bool {
    object.labels().get(labels::MANAGED_BY).is_some_and(|v| v == labels::OPERATOR)
}

/// Keeps the labels, annotations and finalizers that others have set.
fn keep_others(found: &ObjectMeta, wanted: &mut ObjectMeta) {
    // The update applies to exactly the found version: it creates no new object, and undoes no change made in between.
    wanted.uid.clone_from(&found.uid);
    wanted.resource_version.clone_from(&found.resource_version);
    wanted.finalizers.clone_from(&found.finalizers);
    for (found, wanted) in [(&found.labels, &mut wanted.labels), (&found.annotations, &mut wanted.annotations)] {
        for (key, value) in found.iter().flatten() {
            wanted.get_or_insert_default().entry(key.clone()).or_insert_with(|| value.clone());
        }
    }
}
