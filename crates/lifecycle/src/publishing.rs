//! The result of a job whose programs have succeeded. It is published before the job is completed.

use super::conditions::condition_is;
use super::phase::{Phase, Preparation, Publication};
use super::upkeep::AGAIN;
use super::view::View;
use super::waiting::WaitReason;
use api::{Condition, ConditionType, PublicationProgress, Reason, ResultStatus, State, TrainingJobStatus};
use jiff::Timestamp;
use observe::ChildKey;
use plan::{Output, Publishing, Upkeep, names};
use protocol::result::{PublishProgress, PublishStage, ResultRecord};
use text::bytes;

/// Start of the part of `status.progress` for the publication, after the progress of the program.
const PUBLISHING: &str = "publishing ";

/// Whether the programs have succeeded, and their result has yet to be published.
#[must_use]
pub fn publishes(status: &TrainingJobStatus) -> bool {
    unpublished(status).is_some()
}

fn unpublished(status: &TrainingJobStatus) -> Option<&Condition> {
    condition_is(&status.conditions, ConditionType::ResultPublished, false)
}

/// Removes the progress of a publication, so that no old one is shown.
pub(super) fn without_progress(_: &View<'_>, mut record: TrainingJobStatus) -> TrainingJobStatus {
    record.publication = None;
    if let Some(progress) = &mut record.progress
        && let Some(at) = progress.find(PUBLISHING)
    {
        progress.truncate(at);
        progress.truncate(progress.trim_end_matches(", ").len());
    }
    record.progress.take_if(|progress| progress.is_empty());
    record
}

/// Records the progress of the publication, as the agent reports it.
pub(super) fn with_progress(view: &View<'_>, mut record: TrainingJobStatus) -> TrainingJobStatus {
    let Some(publish) = view.publication() else { return record };
    let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    record.publication = Some(PublicationProgress {
        files: count(publish.files),
        total_files: count(publish.total_files),
        bytes: count(publish.bytes),
        total_bytes: count(publish.total_bytes),
        bytes_per_second: count(publish.bytes_per_second),
    });
    if publish.stage == PublishStage::Sending && publish.total_bytes > 0 {
        let percent = u128::from(publish.bytes.min(publish.total_bytes)) * 100 / u128::from(publish.total_bytes);
        let of_program = record.progress.take().map(|progress| format!("{progress}, ")).unwrap_or_default();
        record.progress = Some(format!("{of_program}{PUBLISHING}{percent}%"));
    }
    record
}

impl<'a> View<'a> {
    /// The progress of the publication, if an agent reports it.
    fn publication(&self) -> Option<&'a PublishProgress> {
        let is_over = self.record.state.is_some_and(State::is_finished);
        self.unpublished_since().filter(|_| !is_over)?;
        self.input.transfer?.status.publishes.as_ref()
    }

    /// The activity of the agent that publishes under an address.
    fn words_on_progress(&self, uri: &str) -> Option<String> {
        let publish = self.publication()?;
        let done = || {
            let (done, total) = (bytes(publish.bytes), bytes(publish.total_bytes));
            format!("{done} of {total}, {} of {} files", publish.files, publish.total_files)
        };
        Some(match publish.stage {
            PublishStage::Listing => format!("listing the files of the result, which is published under {uri}"),
            PublishStage::Hashing => format!("hashing the result, which is published under {uri}: {}", done()),
            PublishStage::Sending => {
                format!("publishing the result under {uri}: {}, {}/s", done(), bytes(publish.bytes_per_second))
            }
            PublishStage::Verifying => format!("comparing {uri} with the files of the result"),
            PublishStage::Recording => format!("writing the record of the result under {uri}"),
            PublishStage::Unknown => return None,
        })
    }

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
        let is_reported = self.unpublished_since().is_some();
        if !is_reported && (self.publishing().is_none() || self.record.result.is_some()) {
            return Phase::Completed { reason, message, published: None };
        }
        // The next reconciliation has the last metrics in its status. Besides, the volume may be one that only one node
        // can mount.
        let lives = self.input.children.pods.values().any(|pod| pod.is_alive());
        if !is_reported || lives || self.input.refused.is_some() {
            return Phase::Publishing { work: Publication::NotBegun };
        }
        match self.work_of_upkeep(Upkeep::Publish) {
            Ok(Preparation::Published(published)) => Phase::Completed { reason, message, published: Some(published) },
            Ok(work) => Phase::Publishing { work: Publication::Job(work) },
            Err(WaitReason { reason, message }) => {
                let until = Some(Box::new(Phase::Publishing { work: Publication::Job(Preparation::Bad) }));
                Phase::Failed { until, reason, message, judged: None }
            }
        }
    }

    /// What the publication of the result waits for. `None` if the present message stays.
    pub(super) fn words_on_publication(&self, work: &Publication<'_>) -> Option<WaitReason> {
        let uri = self.publishing().map_or("spec.output", |publishing| &publishing.uri);
        let job = names::upkeep_name(&self.input.plan.identity.name);
        let under_way = |message: String| Some(WaitReason { reason: Reason::Publishing, message });
        match work {
            Publication::NotBegun => match self.input.refused {
                Some(why) => under_way(format!("the result is published when the spec is corrected: {why}")),
                None => under_way(format!("the programs have succeeded; their result is published under {uri} next")),
            },
            Publication::Job(Preparation::TriedAgain(_, why)) => {
                let message = format!("{}; it is tried again within {} minutes", why.message, AGAIN / 60);
                Some(WaitReason { reason: why.reason.clone(), message })
            }
            Publication::Job(Preparation::Bad | Preparation::AfterOther(_)) => None,
            Publication::Job(_) => match self.input.children.blocked.get(&ChildKey::UPKEEP) {
                Some(blocked) => {
                    let message = format!("Job {job}, which publishes the result, can't be made: {}", blocked.message);
                    Some(WaitReason { reason: blocked.reason.clone(), message })
                }
                None => under_way(self.words_on_progress(uri).unwrap_or_else(|| {
                    format!(
                        "publishing the result under {uri}; no GPU is held meanwhile (kubectl logs job/{job} tells how far \
                         it is)"
                    )
                })),
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

/// Message about a published result.
pub(super) fn words_on_result(result: &ResultStatus) -> String {
    let ResultRecord { uri, digest, file_count, bytes, .. } = &result.record;
    let files = super::view::number_of(u32::try_from(*file_count).unwrap_or(u32::MAX), "file");
    let version = result.registered_version.as_ref();
    let version = version.map(|version| format!(", version {version} of the registered model")).unwrap_or_default();
    format!("{uri} has the result: {files}, {bytes} bytes, digest {digest}{version}")
}
