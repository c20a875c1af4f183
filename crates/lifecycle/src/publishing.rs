//! The result of a job whose programs have succeeded: it is published before the job is completed.

use super::conditions::condition_is;
use super::phase::{Phase, Preparation, Publication};
use super::upkeep::AGAIN;
use super::view::View;
use super::waiting::Why;
use api::{Condition, ConditionType, Reason, ResultStatus, TrainingJobStatus};
use jiff::Timestamp;
use observe::ChildKey;
use plan::{Output, Publishing, Upkeep, names};
use protocol::result::ResultRecord;

/// Whether the programs have succeeded, and their result has yet to be published.
#[must_use]
pub fn publishes(status: &TrainingJobStatus) -> bool {
    unpublished(status).is_some()
}

fn unpublished(status: &TrainingJobStatus) -> Option<&Condition> {
    condition_is(&status.conditions, ConditionType::ResultPublished, false)
}

impl<'a> View<'a> {
    /// How the result is published, if it is.
    fn publishing(&self) -> Option<&'a Publishing> {
        self.input.plan.storage.output.as_ref().and_then(Output::publishing)
    }

    /// Since when the programs have succeeded and the result waits to be published.
    pub(super) fn unpublished_since(&self) -> Option<Timestamp> {
        Some(unpublished(&self.record)?.last_transition_time.0)
    }

    /// The phase of a job whose programs have succeeded.
    pub(super) fn done(&self, reason: Reason, message: String) -> Phase<'a> {
        let is_told = self.unpublished_since().is_some();
        if !is_told && (self.publishing().is_none() || self.record.result.is_some()) {
            return Phase::Completed { reason, message, published: None };
        }
        // The next look has the last metrics in its status; and the volume may be one that only one node can mount.
        let lives = self.input.children.pods.values().any(|pod| pod.is_alive());
        if !is_told || lives || self.input.refused.is_some() {
            return Phase::Publishing { work: Publication::NotBegun };
        }
        match self.work_of_upkeep(Upkeep::Publish) {
            Ok(Preparation::Published(published)) => Phase::Completed { reason, message, published: Some(published) },
            Ok(work) => Phase::Publishing { work: Publication::Job(work) },
            Err(Why { reason, message }) => {
                let until = Some(Box::new(Phase::Publishing { work: Publication::Job(Preparation::Bad) }));
                Phase::Failed { until, reason, message, judged: None }
            }
        }
    }

    /// What the publication of the result waits for. `None` if what is said of it stands.
    pub(super) fn words_on_publication(&self, work: &Publication<'_>) -> Option<Why> {
        let uri = self.publishing().map_or("spec.output", |publishing| &publishing.uri);
        let job = names::upkeep_name(&self.input.plan.identity.name);
        let under_way = |message: String| Some(Why { reason: Reason::Publishing, message });
        match work {
            Publication::NotBegun => match self.input.refused {
                Some(why) => under_way(format!("the result is published when the spec is corrected: {why}")),
                None => under_way(format!("the programs have succeeded; their result is published under {uri} next")),
            },
            Publication::Job(Preparation::TriedAgain(_, why)) => {
                let message = format!("{}; it is tried again within {} minutes", why.message, AGAIN / 60);
                Some(Why { reason: why.reason.clone(), message })
            }
            Publication::Job(Preparation::Bad | Preparation::AfterOther(_)) => None,
            Publication::Job(_) => match self.input.children.blocked.get(&ChildKey::UPKEEP) {
                Some(blocked) => {
                    let message = format!("Job {job}, which publishes the result, can't be made: {}", blocked.message);
                    Some(Why { reason: blocked.reason.clone(), message })
                }
                None => under_way(format!(
                    "publishing the result under {uri}; no GPU is held meanwhile (kubectl logs job/{job} tells how far it \
                     is)"
                )),
            },
        }
    }

    /// The record of a result in the status.
    pub(super) fn result(&self, published: &protocol::result::Publication) -> ResultStatus {
        let origin = self.publishing().map(|publishing| publishing.origin.clone()).unwrap_or_default();
        ResultStatus {
            record: ResultRecord { origin, ..published.record.clone() },
            registered_version: published.registered_version.clone(),
        }
    }
}

/// What is said of a result that is published.
pub(super) fn words_on_result(result: &ResultStatus) -> String {
    let ResultRecord { uri, digest, file_count, bytes, .. } = &result.record;
    let files = super::view::number_of(u32::try_from(*file_count).unwrap_or(u32::MAX), "file");
    let version = result.registered_version.as_ref();
    let version = version.map(|version| format!(", version {version} of the registered model")).unwrap_or_default();
    format!("{uri} has the result: {files}, {bytes} bytes, digest {digest}{version}")
}
