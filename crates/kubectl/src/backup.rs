//! `backup`: TrainingJobs as a file that creates them again. A finished job is marked, so that it does not run again.

use super::cluster::Cluster;
use super::convert;
use api::{ConditionType, GROUP, State, TrainingJob, VERSION};
use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::ListParams;
use plan::RestoredEnd;
use plan::labels::{ENDED, RESTART_FROM, RESTART_REQUESTED};
use serde_json::{Value, json};

/// Annotations that do not apply to a restored job.
const DROPPED: [&str; 3] = ["kubectl.kubernetes.io/last-applied-configuration", RESTART_REQUESTED, RESTART_FROM];

/// The content of a backup.
#[derive(Debug, Default, PartialEq)]
pub struct Backup {
    /// The jobs.
    pub jobs: Vec<Value>,
    /// Notes about them for the user.
    pub notes: Vec<String>,
}

/// Reads the named jobs, or all of the namespace.
///
/// # Errors
/// If they can't be read.
pub async fn backup(cluster: &Cluster, names: &[String]) -> anyhow::Result<Backup> {
    let mut jobs = Vec::new();
    let mut notes = Vec::new();
    for name in names {
        jobs.push(cluster.find(name).await?);
    }
    if names.is_empty() {
        for job in cluster.jobs(&ListParams::default()).await? {
            let name = job.name_any();
            match job.0 {
                Ok(job) => jobs.push(job),
                Err(invalid) => notes.push(format!("{name} is left out: it can't be read by this version ({invalid})")),
            }
        }
    }
    let mut all = Backup { notes, ..Backup::default() };
    jobs.iter().for_each(|job| all.add(job));
    Ok(all)
}

impl Backup {
    fn add(&mut self, job: &TrainingJob) {
        let name = job.name_any();
        if let Some(owner) = job.owner_references().iter().find(|owner| owner.controller == Some(true)) {
            self.notes.push(format!("{name} is left out: it belongs to {} {}", owner.kind, owner.name));
            return;
        }
        if job.spec.code.is_some() {
            let namespace = job.namespace().unwrap_or_default();
            self.notes.push(format!(
                "{name}: its code is not in the file; send it to the restored job: kubectl trainingjob restart {name} -n \
                 {namespace} --code ."
            ));
        }
        self.jobs.push(manifest(job));
    }

    /// Renders the file for `kubectl apply -f -`.
    #[must_use]
    pub fn render(&self) -> String {
        self.jobs.iter().map(convert::yaml).collect::<Vec<_>>().join("---\n")
    }
}

/// Returns the manifest that creates this job again.
fn manifest(job: &TrainingJob) -> Value {
    let kept = |(key, _): &(&String, &String)| !DROPPED.contains(&key.as_str());
    let mut annotations: serde_json::Map<String, Value> =
        job.annotations().iter().filter(kept).map(|(key, value)| (key.clone(), value.as_str().into())).collect();
    if let Some(ended) = ended(job) {
        annotations.insert(ENDED.to_owned(), json!(ended).to_string().into());
    }
    let mut spec = json!(job.spec);
    // If the job has saved a checkpoint since, this would lose its progress.
    let checkpoint = job.status.as_ref().and_then(|status| status.checkpoint.as_ref());
    if checkpoint.is_some_and(|it| it.latest_path.is_some() && it.resume_from_used.is_some())
        && let Some(checkpoint) = spec["checkpoint"].as_object_mut()
    {
        checkpoint.remove("resumeFrom");
    }
    json!({
        "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "TrainingJob",
        "metadata": {
            "name": job.name_any(), "namespace": job.namespace(), "labels": job.labels(), "annotations": annotations,
        },
        "spec": spec,
    })
}

/// Returns how a job has ended, if it has.
fn ended(job: &TrainingJob) -> Option<RestoredEnd> {
    let status = job.status.as_ref()?;
    let state = status.state.filter(|state| state.is_finished())?;
    let type_ = if state == State::Failed { ConditionType::Failed } else { ConditionType::Succeeded };
    let condition = lifecycle::condition_is(&status.conditions, type_, true);
    let reason = status.failure_reason.clone().filter(|_| state == State::Failed);
    let reason = reason.or_else(|| Some(condition?.reason.as_str().into()));
    Some(RestoredEnd {
        state,
        reason: reason.unwrap_or_else(|| state.as_str().into()),
        message: condition.map(|condition| condition.message.clone()).unwrap_or_default(),
        time: status.completion_time.as_ref().map_or_else(Timestamp::now, |time| time.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(status: Value) -> TrainingJob {
        let mut job: TrainingJob = serde_json::from_value(json!({
            "apiVersion": "ml.example.com/v1", "kind": "TrainingJob",
            "metadata": {
                "name": "bert", "namespace": "team", "uid": "u-1", "resourceVersion": "7", "labels": { "a": "b" },
                "annotations": { RESTART_REQUESTED: "one", "note": "x" },
            },
            "spec": { "numWorkers": 2, "checkpoint": { "resumeFrom": "base" } },
        }))
        .unwrap();
        job.status = serde_json::from_value(status).unwrap();
        job
    }

    #[test]
    fn backup_marks_ended_job() {
        let failed = json!({
            "state": "Failed", "failureReason": "ExitCode", "completionTime": "2027-01-15T08:00:00Z",
            "conditions": [{
                "type": "Failed", "status": "True", "reason": "ExitCode", "message": "exit code 1",
                "lastTransitionTime": "2027-01-15T08:00:00Z",
            }],
        });
        let made = manifest(&job(failed));
        let restored: TrainingJob = serde_json::from_value(made.clone()).unwrap();
        let expected = RestoredEnd {
            state: State::Failed,
            reason: "ExitCode".into(),
            message: "exit code 1".into(),
            time: "2027-01-15T08:00:00Z".parse().unwrap(),
        };
        assert_eq!(plan::ended(&restored), Some(expected));
        assert_eq!(made["metadata"]["annotations"].as_object().unwrap().len(), 2);
        assert!(made["metadata"].get("uid").is_none() && made.get("status").is_none());
    }

    #[test]
    fn backup_keeps_resume_from_until_job_has_saved() {
        let made = manifest(&job(json!({ "state": "Running" })));
        assert_eq!(made["metadata"]["annotations"], json!({ "note": "x" }));
        assert_eq!(made["spec"]["checkpoint"]["resumeFrom"], "base", "it has not saved yet");
        let checkpoint = json!({ "latestPath": "step-9", "resumeFromUsed": "2027-01-15T08:00:00Z" });
        let made = manifest(&job(json!({ "state": "Running", "checkpoint": checkpoint })));
        assert_eq!(made["spec"]["checkpoint"].get("resumeFrom"), None);
    }

    #[test]
    fn backup_skips_trials() {
        let mut trial = job(json!({}));
        trial.metadata.owner_references = serde_json::from_value(json!([{
            "apiVersion": "ml.example.com/v1", "kind": "TuningJob", "name": "sweep", "uid": "u-2", "controller": true,
        }]))
        .unwrap();
        let mut all = Backup::default();
        all.add(&trial);
        assert_eq!(all, Backup { jobs: vec![], notes: vec!["bert is left out: it belongs to TuningJob sweep".into()] });
    }
}
