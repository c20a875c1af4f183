//! The template that a job names. It is read once, checked by the API server's rules, and then kept in the job's
//! status.

use super::error::{Error, call, refusal};
use super::pass::Pass;
use super::refused;
use super::status::newest;
use api::{
    AppliedRuntime, ConditionType, Guarded, Inherited, Reason, RuntimeKind, RuntimeRef, State, TrainingJob,
    TrainingJobStatus,
};
use jiff::Timestamp;
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::ObjectMeta;
use lifecycle::{Event, condition_is, set_condition, whole_second};
use serde_json::json;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;
use text::start_of;

/// A job that waits for its template retries after a sixth of the time that it has waited, within these bounds. Each
/// retry costs a request or two, and thousands of jobs may wait.
const LOOK_AGAIN: RangeInclusive<u64> = 10..=60;

/// Why a job does not start yet.
pub(super) struct StartBlocker {
    reason: Reason,
    message: String,
}

impl StartBlocker {
    /// The reason, and the message.
    pub(super) fn into_parts(self) -> (Reason, String) {
        (self.reason, self.message)
    }

    fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

impl Pass<'_, TrainingJob> {
    /// What the job inherits from its template and the defaults, or why the template can't be used. `None` if it is
    /// recorded already.
    pub(super) async fn inherited(&self) -> Result<Option<Result<Inherited, StartBlocker>>, Error> {
        let job = self.owner;
        let status = job.status.as_ref();
        if status.is_some_and(|status| status.inherited.is_some() || status.state.is_some_and(State::is_finished)) {
            return Ok(None);
        }
        // Our own write may be ahead of the watch.
        let known = |status: Option<&TrainingJobStatus>| status.and_then(|status| status.inherited.clone());
        if let Some(known) = self.context.index.read(&self.key, |cell| known(newest(job, &cell.writes).0)).flatten() {
            return Ok(Some(Ok(known)));
        }
        let Some(named) = &job.spec.runtime_ref else {
            // An administrator's default does not apply to jobs that are older than the default or the record.
            let is_new = status.is_none_or(|status| status.state.is_none());
            return Ok(Some(self.record(None, is_new)));
        };
        let taken = match self.read(named).await? {
            Ok(taken) => taken,
            Err(waits) => return Ok(Some(Err(waits))),
        };
        let inherited = match self.record(Some(&taken), true) {
            Ok(inherited) => inherited,
            Err(waits) => return Ok(Some(Err(waits))),
        };
        Ok(Some(Box::pin(self.checked(&inherited)).await?.map_or(Ok(inherited), Err)))
    }

    fn record(&self, runtime: Option<&AppliedRuntime>, is_new: bool) -> Result<Inherited, StartBlocker> {
        let ttl = self.context.options.runtime.default_ttl_seconds.filter(|_| is_new);
        let mut inherited = plan::record(self.owner, runtime, ttl).map_err(|why| wrong(runtime, &why))?;
        if is_new {
            inherited.names = self.names(runtime)?;
        }
        Ok(inherited)
    }

    /// The addresses that the administrator keeps for the names of model and dataset.
    fn names(&self, runtime: Option<&AppliedRuntime>) -> Result<BTreeMap<String, String>, StartBlocker> {
        let merged = runtime.map(|taken| plan::merged(&self.owner.spec, taken)).transpose();
        let merged = merged.map_err(|why| wrong(runtime, &why))?;
        let spec = merged.as_ref().unwrap_or(&self.owner.spec);
        let mut names = BTreeMap::new();
        for name in [&spec.model, &spec.dataset].into_iter().flatten() {
            let address = self.context.options.content_names.address_of(name);
            let address = address.map_err(|why| StartBlocker::new(Reason::InvalidRuntime, why))?;
            names.extend(address.map(|address| (name.clone(), address)));
        }
        Ok(names)
    }

    async fn read(&self, named: &RuntimeRef) -> Result<Result<AppliedRuntime, StartBlocker>, Error> {
        let (kind, name) = (named.kind(), &named.name);
        let (client, resource) = (self.context.client.clone(), kind.resource());
        let api: Api<DynamicObject> = match kind {
            RuntimeKind::ClusterTrainingRuntime => Api::all_with(client, &resource),
            RuntimeKind::TrainingRuntime => Api::namespaced_with(client, &self.key.namespace, &resource),
        };
        let error = match call("get runtime", api.get(name)).await {
            Ok(found) => {
                let found = serde_json::to_value(found).unwrap_or_default();
                return Ok(Ok(AppliedRuntime::from_object(kind, &found)));
            }
            Err(error) => error,
        };
        if let Error::Api { source, .. } = &error
            && let kube::Error::SerdeError(why) = source.as_ref()
        {
            let (kind, why) = (kind.as_str(), start_of(&why.to_string(), 200).to_owned());
            let message = format!("{kind} {name} can't be read: {why}. Correct the template, and the job begins");
            return Ok(Err(StartBlocker::new(Reason::InvalidRuntime, message)));
        }
        let Some(status) = refusal(&error) else { return Err(error) };
        let (kind, plural) = (kind.as_str(), kind.plural());
        let message = match status.code {
            _ if refused::kind_is_unknown(status) => {
                format!("the API server has no kind {kind}: a cluster administrator applies crds/{plural}.yaml")
            }
            404 => {
                let place = match named.kind() {
                    RuntimeKind::ClusterTrainingRuntime => String::new(),
                    RuntimeKind::TrainingRuntime => format!(" in namespace {}", self.key.namespace),
                };
                format!(
                    "there is no {kind} {name}{place}: create it, and the job begins; or delete the job and create it \
                     with another runtimeRef"
                )
            }
            403 if self.context.options.namespace.is_some() => format!(
                "this operator works in one namespace and may not read a {kind}: create the job with a TrainingRuntime of \
                 this namespace, or have an administrator give the operator the right to get {plural} ({})",
                status.message
            ),
            403 => format!("the operator may not read it, which its ClusterRole should allow: {}", status.message),
            _ => return Err(error),
        };
        Ok(Err(StartBlocker::new(Reason::RuntimeNotFound, message)))
    }

    /// What blocks the effective spec, which is the job merged with its template.
    async fn checked(&self, inherited: &Inherited) -> Result<Option<StartBlocker>, Error> {
        let wrong = |why: &str| wrong(inherited.runtime.as_ref(), why);
        let mut job = self.owner.clone();
        job.status.get_or_insert_default().inherited = Some(inherited.clone());
        // The template stays in the job's status, so the operator must still be able to read the whole job.
        let text = serde_json::to_string(&job).unwrap_or_default();
        if let Ok(Guarded(Err(unreadable))) = serde_json::from_str::<Guarded>(&text) {
            return Ok(Some(wrong(&unreadable.error)));
        }
        let merged = match plan::with_runtime(&job) {
            Ok(merged) => merged,
            Err(why) => return Ok(Some(wrong(&why))),
        };
        // The API server checks the rules of the CRD.
        let ObjectMeta { name, namespace, .. } = job.metadata.clone();
        let whole = TrainingJob {
            metadata: ObjectMeta { name, namespace, ..ObjectMeta::default() },
            spec: merged.spec.clone(),
            status: None,
        };
        let params = PostParams { dry_run: true, ..PostParams::default() };
        match self.context.write("check job", self.api::<TrainingJob>().create(&params, &whole)).await {
            Ok(_) => {}
            Err(error) => match refusal(&error) {
                Some(status) if status.is_invalid() => {
                    return Ok(Some(wrong(words(&status.message))));
                }
                // The job exists, so the rules have been checked by then. Or this API server allows no dry run.
                Some(_) => {}
                None => return Err(error),
            },
        }
        let planned = plan::resolve(&job, &self.context.options.runtime);
        Ok(planned.accepted().err().map(|refusals| wrong(&refusals.to_string())))
    }

    /// When to look again for what the job waits for.
    pub(super) fn look_again(&self) -> Duration {
        let status = self.owner.status.as_ref();
        let since = status.and_then(|status| condition_is(&status.conditions, ConditionType::Accepted, false));
        look_again(since.map(|condition| condition.last_transition_time.0), Timestamp::now())
    }

    /// Reports on the job what it waits for.
    pub(super) async fn report_blocker(&self, waits: &StartBlocker) -> Result<(), Error> {
        let (job, now) = (self.owner, whole_second(Timestamp::now()));
        let status = job.status.clone().unwrap_or_default();
        let (mut conditions, generation) = (status.conditions.clone(), job.metadata.generation);
        let StartBlocker { reason, message } = waits;
        set_condition(&mut conditions, ConditionType::Accepted, false, reason, message, generation, now);
        let state = status.state.unwrap_or(State::Pending);
        if conditions == status.conditions && status.state.is_some() && status.observed_generation == generation {
            return Ok(());
        }
        let patch = json!({
            "metadata": { "uid": self.key.uid, "resourceVersion": job.metadata.resource_version },
            "status": { "observedGeneration": generation, "conditions": conditions, "state": state },
        });
        let name = job.metadata.name.as_deref().unwrap_or_default();
        let api = self.api::<TrainingJob>();
        self.context
            .write("write status", api.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)))
            .await?;
        let what = if *reason == Reason::RuntimeNotFound { "RuntimeNotFound" } else { "InvalidRuntime" };
        self.publish_events(None, vec![Event { warning: true, reason: what, note: message.clone() }]);
        Ok(())
    }
}

/// The message that a job can't run with its template.
fn wrong(taken: Option<&AppliedRuntime>, why: &str) -> StartBlocker {
    let called = taken.map(|taken| format!(" with {} (generation {})", taken.called(), taken.generation));
    let called = called.unwrap_or_default();
    let message = format!(
        "the effective spec{called} can't run: {why}. Correct the template, and the job starts; or delete the job and create \
         it with a correct spec"
    );
    StartBlocker::new(Reason::InvalidRuntime, message)
}

fn look_again(since: Option<Timestamp>, now: Timestamp) -> Duration {
    let waited = since.and_then(|since| u64::try_from(now.duration_since(since).as_secs()).ok()).unwrap_or(0);
    Duration::from_secs((waited / 6).clamp(*LOOK_AGAIN.start(), *LOOK_AGAIN.end()))
}

/// The API server's message without the name of the object, which is stated before.
fn words(message: &str) -> &str {
    message.split_once(" is invalid: ").map_or(message, |(_, words)| words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_waiting_job_checks_its_runtime_less_often() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let after = |waited: i64| look_again(Some(at(1000)), at(1000 + waited)).as_secs();
        assert_eq!([-5, 0, 10, 60, 120, 360, 100_000].map(after), [10, 10, 10, 10, 20, 60, 60]);
        assert_eq!(look_again(None, at(0)).as_secs(), 10);
    }
}
