//! The effective spec: the job's fields take precedence over its template, and the template over the defaults. Template and
//! defaults are those recorded when the job was created.

use super::{Refusals, template_merge};
use api::{AppliedRuntime, DeletePolicy, Inherited, Storage, TrainingJob, TrainingJobSpec};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;

/// A spec with every default applied.
pub(super) struct Effective {
    pub spec: TrainingJobSpec,
    /// The job's spec merged with its template.
    written: Value,
    /// Partial spec that applies to fields not set in `written`.
    defaults: Value,
}

/// Returns the effective spec of a job. A job without a record gets the spec that would be recorded now.
///
/// # Errors
/// If the template can't be applied or has not been copied yet, or if the recorded values are no valid part of a spec.
pub fn effective(job: &TrainingJob) -> Result<TrainingJobSpec, String> {
    let mut errors = Refusals::default();
    let effective = resolve(job, &mut errors);
    match errors.0.into_iter().next() {
        None => Ok(effective.spec),
        Some(refusal) => Err(refusal.message),
    }
}

/// Returns the values to record when a job is created, with its template. `default_ttl_seconds` is the administrator's
/// default for jobs without a TTL. It is not applied to jobs that delete their checkpoints with them.
///
/// # Errors
/// If the template can't be applied to the job.
pub fn record(
    job: &TrainingJob,
    runtime: Option<&AppliedRuntime>,
    default_ttl_seconds: Option<u32>,
) -> Result<Inherited, String> {
    let merged = runtime.map(|taken| template_merge::merged(&job.spec, taken)).transpose()?;
    let written = merged.as_ref().unwrap_or(&job.spec);
    let mut defaults = api::defaults_of(written);
    let is_deleted = |storage: &Storage| storage.delete_policy() == DeletePolicy::Delete;
    let goes_with_job = written.checkpoint.storage.as_ref().is_some_and(is_deleted);
    if let Some(seconds) = default_ttl_seconds.filter(|_| !goes_with_job) {
        defaults["ttlSecondsAfterFinished"] = seconds.into();
    }
    Ok(Inherited { runtime: runtime.cloned(), defaults: (&defaults).into(), ..Inherited::default() })
}

#[expect(clippy::expect_used, reason = "plain data of ours, which always has this form")]
pub(super) fn resolve(job: &TrainingJob, errors: &mut Refusals) -> Effective {
    let whole = template_merge::with_runtime(job);
    if let Err(why) = &whole {
        errors.push("spec.runtimeRef", why);
    }
    let spec = &whole.as_deref().unwrap_or(job).spec;
    let recorded = job.status.as_ref().and_then(|status| status.inherited.as_ref());
    let today = api::defaults_of(spec);
    let mut defaults = recorded.map_or_else(|| today.clone(), |inherited| inherited.defaults.value());
    let written = serde_json::to_value(spec).expect("a spec is plain data");
    let mut filled = written.clone();
    api::fill(&mut filled, &defaults);
    // These fields are newer than the record.
    api::fill(&mut filled, &today);
    // As the merge with a template decodes: each further decoder of a spec is long to compile.
    match serde_path_to_error::deserialize(filled) {
        Ok(mut spec) => {
            with_addresses(&mut spec, recorded);
            api::fill(&mut defaults, &today);
            Effective { spec, written, defaults }
        }
        Err(error) => {
            errors.push(
                "status.inherited",
                format!(
                    "has what is no part of a spec: spec.{}: {}; delete the job and create it again",
                    error.path(),
                    error.inner()
                ),
            );
            Effective { spec: spec.clone(), written, defaults: today }
        }
    }
}

/// Replaces the names for which the operator knew addresses when the job was created.
fn with_addresses(spec: &mut TrainingJobSpec, recorded: Option<&Inherited>) {
    for text in [&mut spec.model, &mut spec.dataset].into_iter().flatten() {
        if let Some(address) = recorded.and_then(|inherited| inherited.names.get(text)) {
            text.clone_from(address);
        }
    }
}

/// Mutable fields of a TrainingJob that do not shape its objects.
const NOT_INTENT: [&str; 4] = ["suspend", "ttlSecondsAfterFinished", "failurePolicy", "successPolicy"];
/// The same fields within objects.
const NOT_INTENT_WITHIN: [(&str, &[&str]); 2] =
    [("checkpoint", &["retention", "ifNoneUsable"]), ("monitoring", &["minThroughput", "plateauSeconds"])];

impl Effective {
    /// A short hash of the settings that differ from the defaults, so that new fields of a later version do not change it.
    pub fn intent(&self) -> String {
        let mut wish = self.written.clone();
        if let Value::Object(fields) = &mut wish {
            fields.retain(|key, _| !NOT_INTENT.contains(&key.as_str()));
            if self.spec.elastic.is_some() {
                fields.remove("numWorkers");
            }
            // The pods mount the archive, whatever its content.
            if let Some(code) = fields.get_mut("code") {
                *code = Value::Bool(true);
            }
            for (object, mutable) in NOT_INTENT_WITHIN {
                if let Some(Value::Object(parts)) = fields.get_mut(object) {
                    parts.retain(|key, _| !mutable.contains(&key.as_str()));
                }
            }
        }
        without_defaults(&mut wish, &self.defaults);
        short_hash(&wish)
    }
}

impl Effective {
    /// A short hash of the settings that can't change while the job runs, apart from defaults. If it has changed, the
    /// running pods were created from another spec. Two hashes are compared only if the generation has changed. A
    /// version of the operator that computes it in another way therefore restarts no job.
    pub fn fixed(&self) -> String {
        let mut wish = self.written.clone();
        if let Value::Object(fields) = &mut wish {
            fields.retain(|key, _| !api::MUTABLE.contains(&key.as_str()));
            if self.spec.elastic.is_some() {
                fields.remove("numWorkers");
            }
            for (object, mutable) in api::MUTABLE_WITHIN {
                match fields.get_mut(object) {
                    Some(there) if object == "code" => *there = Value::Bool(true),
                    Some(Value::Object(parts)) => parts.retain(|key, _| !mutable.contains(&key.as_str())),
                    _ => {}
                }
            }
        }
        without_defaults(&mut wish, &self.defaults);
        short_hash(&wish)
    }
}

fn short_hash(wish: &Value) -> String {
    let hash = Sha256::digest(wish.to_string());
    hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Keeps only the parts of `value` that differ from `default`, and removes empty objects.
fn without_defaults(value: &mut Value, default: &Value) {
    let Value::Object(fields) = value else { return };
    let keys: BTreeSet<String> = fields.keys().cloned().collect();
    for key in keys {
        let (field, default) = (&mut fields[&key], &default[&key]);
        without_defaults(field, default);
        if field == default || field.as_object().is_some_and(serde_json::Map::is_empty) {
            fields.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CheckpointVolume, OperatorInfo, Plan, resolve};
    use serde_json::json;

    fn job(spec: Value) -> TrainingJob {
        let mut job = TrainingJob::new("x", serde_json::from_value(spec).unwrap());
        job.metadata.namespace = Some("ml".to_owned());
        job.metadata.uid = Some("u".to_owned());
        job
    }

    /// A job with values recorded by an operator of another version.
    fn recorded(spec: Value, inherited: Value) -> TrainingJob {
        let mut job = job(spec);
        job.status.get_or_insert_default().inherited = Some(serde_json::from_value(inherited).unwrap());
        job
    }

    fn plan(job: &TrainingJob) -> Plan {
        resolve(job, &OperatorInfo { agent_image: "agent:1".to_owned(), ..OperatorInfo::default() })
            .accepted()
            .unwrap()
            .clone()
    }

    fn before() -> Value {
        json!({
            "image": "theirs:1", "command": ["run"], "args": ["it.py"], "gpusPerWorker": 2, "ttlSecondsAfterFinished": 60,
            "checkpoint": { "retention": 9, "storage": { "size": "3Gi", "deletePolicy": "Delete" } },
            "networking": { "masterPort": 1234, "isolate": false, "hostNames": "AllWorkers" },
            "monitoring": { "metricsPort": 999, "tensorboardEnabled": true, "tensorboardImage": "board:1" },
            "failurePolicy": { "backoffLimit": 7, "hang": { "timeoutSeconds": 77 } },
        })
    }

    #[test]
    fn new_operator_defaults_apply_only_to_later_jobs() {
        let spec =
            json!({ "model": "m", "dataset": "d", "numWorkers": 2, "checkpoint": { "storage": { "type": "pvc" } } });
        let plan = plan(&recorded(spec.clone(), json!({ "defaults": before() })));
        let workers = plan.gang.workers();
        assert_eq!((workers.pod.image.as_str(), workers.gpus), ("theirs:1", 2));
        assert_eq!(workers.pod.command, ["run", "it.py"]);
        let rendezvous = &plan.gang.rendezvous;
        assert_eq!((rendezvous.master_port, rendezvous.host_names), (1234, api::HostNames::AllWorkers));
        assert!(!plan.gang.isolated);
        assert_eq!((plan.policy.failure.restart.backoff_limit, plan.policy.failure.hang_timeout_seconds), (7, 77));
        assert_eq!(plan.policy.ttl_seconds, Some(60));
        let checkpoint = plan.storage.checkpoint.unwrap();
        assert_eq!(checkpoint.policy.retention, 9);
        assert!(
            matches!(checkpoint.volume, CheckpointVolume::New { size, delete_with_job: true, .. } if size.0 == "3Gi")
        );
        assert_eq!(plan.monitoring.metrics_port, Some(999));
        // A field that is newer than the record.
        assert_eq!(plan.policy.failure.node_lost_seconds, api::defaults::NODE_LOST_SECONDS);
        // Values that are recorded now equal the current defaults.
        let mut now = job(spec);
        now.spec.gpus_per_worker = Some(0);
        let planned = self::plan(&now);
        now.status.get_or_insert_default().inherited = Some(record(&now, None, None).unwrap());
        assert_eq!(self::plan(&now), planned);
    }

    #[test]
    fn job_overrides_template_and_template_overrides_defaults() {
        let runtime = json!({
            "kind": "ClusterTrainingRuntime", "name": "gpu", "uid": "t", "generation": 1,
            "spec": { "command": ["template"], "gpusPerWorker": 4, "networking": { "masterPort": 2345 } },
        });
        let spec = json!({
            "model": "m", "dataset": "d", "numWorkers": 2, "runtimeRef": { "name": "gpu" }, "checkpoint": { "enabled": false },
            "networking": { "masterPort": 3456 },
        });
        let plan = plan(&recorded(spec, json!({ "runtime": runtime, "defaults": before() })));
        assert_eq!((plan.gang.rendezvous.master_port, plan.gang.workers().gpus), (3456, 4));
        assert_eq!(
            plan.gang.workers().pod.command,
            ["template"],
            "the default arguments are those of the default command"
        );
        assert_eq!(plan.gang.workers().pod.image, "theirs:1");
        assert_eq!(plan.storage.checkpoint, None);
    }

    #[test]
    fn invalid_inherited_record_is_refused() {
        let job = recorded(
            json!({ "model": "m", "dataset": "d", "numWorkers": 1 }),
            json!({ "defaults": { "failurePolicy": { "backoffLimit": "many" } } }),
        );
        let refusals = resolve(&job, &OperatorInfo::default()).refusals.to_string();
        assert!(refusals.contains("status.inherited: has what is no part of a spec:"), "{refusals}");
        assert!(effective(&job).is_err());
    }

    /// The administrator's default applies to jobs created afterwards only, and deletes no checkpoint.
    #[test]
    fn content_name_address_is_fixed_at_job_creation() {
        let spec = json!({ "model": "llama", "dataset": "digits", "numWorkers": 1 });
        let inherited = json!({ "defaults": {}, "names": { "llama": "hf://org/llama@v1", "other": "s3://a/b" } });
        let (with, without) = (recorded(spec.clone(), inherited), recorded(spec, json!({ "defaults": {} })));
        let found = effective(&with).unwrap();
        assert_eq!((found.model.as_deref(), found.dataset.as_deref()), (Some("hf://org/llama@v1"), Some("digits")));
        let intent = |job: &TrainingJob| super::resolve(job, &mut Refusals::default()).intent();
        assert_eq!(intent(&with), intent(&without), "the wish is the same");
    }

    #[test]
    fn default_ttl_is_fixed_at_job_creation() {
        let ttl = |own: Option<u32>, storage: Value, default: Option<u32>| {
            let storage = json!({ "type": "pvc", "deletePolicy": storage });
            let mut job = job(json!({
                "model": "m", "dataset": "d", "numWorkers": 1, "ttlSecondsAfterFinished": own, "checkpoint": { "storage": storage },
            }));
            job.status.get_or_insert_default().inherited = Some(record(&job, None, default).unwrap());
            plan(&job).policy.ttl_seconds
        };
        for (own, storage, default, is) in [
            (None, json!(null), Some(30), Some(30)),
            (None, json!("Retain"), Some(30), Some(30)),
            (None, json!("Delete"), Some(30), None),
            (Some(3600), json!("Delete"), Some(30), Some(3600)),
            (Some(3600), json!(null), Some(30), Some(3600)),
            (None, json!(null), None, None),
        ] {
            assert_eq!(ttl(own, storage.clone(), default), is, "{own:?} {storage} {default:?}");
        }
    }
}
