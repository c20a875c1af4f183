//! Progress of fetched content, as reported by the agent that fetches it.

use super::view::View;
use api::{DataProgress, DataStatus, State, TrainingJobStatus};
use plan::Source;
use protocol::inputs::{FetchProgress, FetchStage};
use text::bytes;

/// Start of `status.progress` while content is fetched, and no program has run.
const FETCHING: &str = "fetching";

/// Records the progress of the fetches. Progress that no agent reports any more is removed.
pub(super) fn with_progress(view: &View<'_>, mut record: TrainingJobStatus) -> TrainingJobStatus {
    record.data.retain(DataStatus::is_resolved);
    record.data.iter_mut().for_each(|data| data.progress = None);
    record.progress.take_if(|progress| progress.starts_with(FETCHING));
    for fetch in view.fetches() {
        let Some(uri) = view.uri_of(&fetch.name) else { continue };
        let progress = DataProgress {
            files: count(fetch.files),
            bytes: count(fetch.bytes),
            bytes_per_second: count(fetch.bytes_per_second),
        };
        match record.data.iter_mut().find(|data| data.name == fetch.name && data.uri == uri) {
            Some(data) => data.progress = Some(progress),
            None => record.data.push(DataStatus {
                name: fetch.name.clone(),
                uri: uri.to_owned(),
                files: count(fetch.total_files),
                bytes: count(fetch.total_bytes),
                progress: Some(progress),
                ..DataStatus::default()
            }),
        }
    }
    record.data.sort_by(|a, b| a.name.cmp(&b.name));
    if record.start_time.is_none() && record.progress.is_none() {
        let last = view.fetches().last().filter(|fetch| fetch.total_bytes > 0);
        record.progress = last.map(|fetch| {
            let percent = u128::from(fetch.bytes.min(fetch.total_bytes)) * 100 / u128::from(fetch.total_bytes);
            format!("{FETCHING} {percent}%")
        });
    }
    record
}

fn count(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// What a job waits for while the Job `job` fetches, before its workers are made.
pub(super) fn message(view: &View<'_>, job: &str) -> String {
    const BEFORE: &str = " before the workers are made";
    view.words_on_fetch(BEFORE).unwrap_or_else(|| {
        let uris = view.input.plan.storage.inputs.iter().filter_map(|input| match &input.source {
            Source::Fetch { uri, .. } => Some(uri.as_str()),
            _ => None,
        });
        let uris = uris.collect::<Vec<_>>().join(" and ");
        format!("fetching {uris} into the cache{BEFORE} (kubectl logs job/{job} tells how far it is)")
    })
}

/// What the only worker waits for while its init container fetches.
pub(super) fn message_of_worker(view: &View<'_>) -> Option<String> {
    let pod = view.pods.iter().find(|pod| pod.fetches && pod.is_alive())?;
    Some(format!("{}: {}", pod.describe(), view.words_on_fetch("")?))
}

impl<'a> View<'a> {
    /// Contents that the agent has fetched so far, the current one last.
    fn fetches(&self) -> &'a [FetchProgress] {
        let is_over = self.record.state.is_some_and(State::is_finished);
        self.input.transfer.filter(|_| !is_over).map(|answer| answer.status.fetches.as_slice()).unwrap_or_default()
    }

    /// Address of a content that is fetched.
    fn uri_of(&self, name: &str) -> Option<&'a str> {
        let input = self.input.plan.storage.inputs.iter().find(|input| input.name == name)?;
        if let Source::Fetch { uri, .. } = &input.source { Some(uri) } else { None }
    }

    fn words_on_fetch(&self, before: &str) -> Option<String> {
        let fetch = self.fetches().last()?;
        let uri = self.uri_of(&fetch.name)?;
        let words = match fetch.stage {
            FetchStage::Fetching => format!(
                "fetching {uri} into the cache{before}: {} of {}, {} of {} files, {}/s",
                bytes(fetch.bytes),
                bytes(fetch.total_bytes),
                fetch.files,
                fetch.total_files,
                bytes(fetch.bytes_per_second)
            ),
            FetchStage::Waiting => format!("waiting for another job's fetch of {uri} into the same cache"),
            FetchStage::Listing => format!("listing the files of {uri}, which are fetched{before}"),
            FetchStage::Checking => format!("checking {uri} in the cache{before}"),
            FetchStage::Complete => format!("{uri} is complete in the cache"),
            FetchStage::Unknown => return None,
        };
        let inputs = &self.input.plan.storage.inputs;
        let all = inputs.iter().filter(|input| matches!(input.source, Source::Fetch { .. })).count();
        let done = self.fetches().iter().filter(|fetch| fetch.stage == FetchStage::Complete).count();
        Some(if all > 1 { format!("{words} ({done} of {all} contents are complete)") } else { words })
    }
}
