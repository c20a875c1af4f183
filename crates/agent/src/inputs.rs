//! `agent inputs`: fetches a job's models and data sets before its workers start.

use crate::container::read_answer_key;
use crate::fetch::{LAST_WRITES, Stops, Watch, watched};
use crate::serve::ports::listen;
use crate::serve::{serve_transfer, status};
use clap::Args;
use fetch::{Address, ContentKind, FetchError, FetchErrorKind, Fetched, Limit, Options, Stage, link};
use jiff::Timestamp;
use parking_lot::Mutex;
use protocol::agent_status::AgentStatus;
use protocol::inputs::{
    CacheLimit, CacheUses, DATA, FetchItem, FetchProgress, FetchRequest, FetchStage, FetchedContent,
};
use protocol::report::{LaunchError, LaunchErrorKind, Phase, Report, VERSION};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::runtime::{Builder, Runtime};

/// Highest number of characters of an error in the last words, of which a kubelet reads 4096 bytes.
const LONGEST_ERROR: usize = 1500;

/// What is fetched, and where its result is left.
#[derive(Args)]
pub struct InputsArgs {
    /// What is fetched, as JSON: cache, credentials, safetensorsOnly, links, and items with name, uri and revision
    #[arg(long, value_name = "JSON", value_parser = parse)]
    request: FetchRequest,
    /// Where the last words are left
    #[arg(long, value_name = "FILE", default_value = "/dev/termination-log")]
    termination_log: PathBuf,
    /// Serve the progress on this port, at /status. 0 serves nothing
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    metrics_port: u16,
    /// File with the key by which the operator knows that an answer is of this job
    #[arg(long, value_name = "FILE")]
    answer_key: Option<PathBuf>,
}

fn parse(text: &str) -> Result<FetchRequest, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// Fetches everything, up to the first failure or a signal. Returns the exit code, which is 2 if a retry fails in the
/// same way.
pub fn run(args: &InputsArgs) -> u8 {
    let mut fetched = Vec::new();
    let error = match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => {
            let board = Arc::<InputBoard>::default();
            let shown = Arc::clone(&board);
            serve(args.metrics_port, args.answer_key.as_deref(), &runtime, move || {
                status::of_transfer(shown.progress(), None)
            });
            let error = fetch_all(&args.request, &runtime, &board, &mut fetched).err();
            runtime.shutdown_timeout(LAST_WRITES);
            error
        }
        Err(error) => Some(FetchError::new(FetchErrorKind::Local, error.to_string())),
    };
    let code = error.as_ref().map_or(0, |error| if error.is_final() { 2 } else { 1 });
    if let Some(error) = &error {
        eprintln!("agent: {error}");
    }
    if let Err(error) = fs::write(&args.termination_log, last_words(fetched, error)) {
        eprintln!("agent: {}: {error}", args.termination_log.display());
    }
    code
}

/// Serves the progress while the agent moves data. If that fails, the transfer continues.
pub(crate) fn serve(
    port: u16,
    answer_key: Option<&Path>,
    runtime: &Runtime,
    status: impl Fn() -> AgentStatus + Send + Sync + 'static,
) {
    if port == 0 {
        return;
    }
    let key = answer_key.map(read_answer_key).transpose();
    let started = key.and_then(|key| {
        let listener = listen(port).map_err(|error| format!("port {port}: {error}"))?;
        let _in_runtime = runtime.enter();
        serve_transfer(listener, status, key);
        Ok(())
    });
    if let Err(error) = started {
        eprintln!("agent: can't serve the progress: {error}");
    }
}

/// The contents that are fetched, with their progress.
#[derive(Default)]
pub(crate) struct InputBoard(Mutex<Vec<InputProgress>>);

/// A content on the board.
struct InputProgress {
    name: String,
    watch: Arc<Watch>,
    /// Files and bytes, once it is complete.
    complete: Option<(u64, u64)>,
}

impl InputBoard {
    fn begin(&self, name: &str) -> Arc<Watch> {
        let watch = Arc::<Watch>::default();
        self.0.lock().push(InputProgress { name: name.to_owned(), watch: Arc::clone(&watch), complete: None });
        watch
    }

    fn end(&self, one: &Fetched) {
        if let Some(last) = self.0.lock().last_mut() {
            last.complete = Some((one.files, one.bytes));
        }
    }

    /// Progress of each content.
    pub(crate) fn progress(&self) -> Vec<FetchProgress> {
        self.0.lock().iter().map(InputProgress::progress).collect()
    }
}

impl InputProgress {
    fn progress(&self) -> FetchProgress {
        let (name, reading) = (self.name.clone(), self.watch.progress.now());
        if let Some((files, bytes)) = self.complete {
            let stage = FetchStage::Complete;
            let done = FetchProgress { name, stage, bytes, files, ..FetchProgress::default() };
            return FetchProgress { total_bytes: bytes, total_files: files, ..done };
        }
        FetchProgress {
            name,
            stage: match reading.stage {
                Stage::Listing => FetchStage::Listing,
                Stage::Waiting => FetchStage::Waiting,
                Stage::Fetching => FetchStage::Fetching,
                Stage::Checking => FetchStage::Checking,
            },
            bytes: reading.bytes,
            total_bytes: reading.total,
            files: reading.files,
            total_files: reading.all_files,
            bytes_per_second: self.watch.rate.load(Ordering::Relaxed),
        }
    }
}

fn fetch_all(
    request: &FetchRequest,
    runtime: &Runtime,
    board: &InputBoard,
    fetched: &mut Vec<FetchedContent>,
) -> Result<(), FetchError> {
    let cache = Path::new(&request.cache);
    make_folder(cache)?;
    let local = |error: io::Error| FetchError::new(FetchErrorKind::Local, error.to_string());
    let mut stops = runtime.block_on(async { Stops::catch() }).map_err(local)?;
    for item in &request.items {
        // An address is in its canonical form, which includes its kind.
        let address = Address::parse(&item.uri, ContentKind::Model)?;
        let (options, watch) = (options(request, item), board.begin(&item.name));
        let one = runtime.block_on(async {
            tokio::select! {
                result = watched(&address, &options, false, &watch) => result,
                (by, _) = stops.next() => Err(FetchError::new(FetchErrorKind::Unavailable, format!("{address}: stopped by {by}"))),
            }
        })?;
        if let Some(why) = &one.set_aside {
            eprintln!("agent: {address}: the entry in the cache was damaged and was fetched again: {why}");
        }
        if !one.removed.is_empty() {
            eprintln!("agent: {address}: removed {} from the cache to make room", one.removed.join(", "));
        }
        if let Some(links) = &request.links {
            make_folder(Path::new(links))?;
            link(&cache.join(&one.key).join(DATA), &Path::new(links).join(&item.name))?;
        }
        eprintln!("agent: {address}: complete, revision {}, {} files", one.revision, one.files);
        board.end(&one);
        fetched.push(content(item, &one));
    }
    Ok(())
}

fn options(request: &FetchRequest, item: &FetchItem) -> Options {
    let mut options = Options::new(&request.cache);
    options.credentials = request.credentials.as_ref().map(PathBuf::from);
    options.revision.clone_from(&item.revision);
    options.safetensors_only = request.safetensors_only;
    options.limit = request.limit.as_ref().map(limit);
    options
}

fn limit(limit: &CacheLimit) -> Limit {
    // The clocks of the two nodes may differ, by less than the hour for which each entry stays.
    let age = |uses: &CacheUses| Timestamp::now().duration_since(uses.time).try_into().unwrap_or_default();
    let uses = limit.uses.as_ref();
    Limit { bytes: limit.bytes, used: uses.map(|uses| uses.jobs.clone()), age: uses.map(age).unwrap_or_default() }
}

fn make_folder(path: &Path) -> Result<(), FetchError> {
    let remedy = "make the volume writable for the user of the pod (podTemplate.spec.securityContext)";
    fs::create_dir_all(path)
        .map_err(|error| FetchError::new(FetchErrorKind::Local, format!("{}: {error}; {remedy}", path.display())))
}

fn content(item: &FetchItem, one: &Fetched) -> FetchedContent {
    FetchedContent {
        name: item.name.clone(),
        key: one.key.clone(),
        revision: one.revision.clone(),
        files: one.files,
        bytes: one.bytes,
        fetched_bytes: one.from_network,
    }
}

/// The report. It has 3 kB for ten entries.
fn last_words(fetched: Vec<FetchedContent>, error: Option<FetchError>) -> String {
    let error = error.map(|error| failed_transfer(&error.to_string(), error.is_final()));
    let phase = if error.is_some() { Phase::default() } else { Phase::Exited };
    // If a fetch failed, only the error counts.
    let fetched = if error.is_some() { Vec::new() } else { fetched };
    let report = Report { version: VERSION, phase, fetched, error, ..Report::default() };
    serde_json::to_string(&report).unwrap_or_default()
}

/// The error of a fetch or a publication. `is_final` says whether a retry fails in the same way.
pub(crate) fn failed_transfer(error: &str, is_final: bool) -> LaunchError {
    let kind = if is_final { LaunchErrorKind::ContentRefused } else { LaunchErrorKind::ContentUnavailable };
    LaunchError { kind, message: error.chars().take(LONGEST_ERROR).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_use_list_carries_its_age() {
        let time = Timestamp::now() - jiff::SignedDuration::from_hours(2);
        let uses = CacheUses { time, jobs: [("key".to_owned(), "x".to_owned())].into() };
        let known = limit(&CacheLimit { bytes: 5, uses: Some(uses.clone()) });
        assert_eq!((known.bytes, known.used, known.age.as_secs() / 60), (5, Some(uses.jobs.clone()), 120));
        // The clock of the node is behind that of the operator.
        let ahead = CacheUses { time: Timestamp::now() + jiff::SignedDuration::from_hours(2), ..uses };
        assert!(limit(&CacheLimit { bytes: 5, uses: Some(ahead) }).age.is_zero());
        assert_eq!(limit(&CacheLimit { bytes: 5, uses: None }).used, None);
    }

    #[test]
    fn completed_input_reports_its_full_size() {
        let board = InputBoard::default();
        let first = board.begin("model");
        first.rate.store(5, Ordering::Relaxed);
        let at = |at: usize| board.progress().remove(at);
        assert_eq!((at(0).stage, at(0).bytes_per_second), (FetchStage::Listing, 5));
        // It was in the cache.
        let (uri, key, revision) = ("hf://a/b@main".to_owned(), "key".to_owned(), "1".to_owned());
        board.end(&Fetched {
            uri,
            key,
            revision,
            path: "/c".into(),
            bytes: 9,
            files: 2,
            from_network: 0,
            set_aside: None,
            removed: Vec::new(),
        });
        board.begin("dataset");
        let FetchProgress { stage, bytes, total_bytes, files, total_files, bytes_per_second, .. } = at(0);
        assert_eq!((stage, bytes, total_bytes, files, total_files), (FetchStage::Complete, 9, 9, 2, 2));
        assert_eq!((bytes_per_second, at(1).stage, board.progress().len()), (0, FetchStage::Listing, 2));
    }

    #[test]
    fn input_report_fits_the_termination_message() {
        let one = |n: usize| FetchedContent {
            name: format!("{n:040}"),
            key: "0".repeat(32),
            revision: "1".repeat(64),
            files: u64::MAX,
            bytes: u64::MAX,
            fetched_bytes: u64::MAX,
        };
        let text = last_words((0..10).map(one).collect(), None);
        assert!(text.len() <= 4096, "what a kubelet reads: {text}");
        assert_eq!(Report::parse(&text).unwrap().fetched.len(), 10, "{text}");
        let error = FetchError::new(FetchErrorKind::Unavailable, "ä".repeat(5000));
        let report = Report::parse(&last_words(vec![one(1)], Some(error))).unwrap();
        assert_eq!((report.fetched.len(), report.error.unwrap().kind), (0, LaunchErrorKind::ContentUnavailable));
    }
}
