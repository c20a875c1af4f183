//! `agent fetch`: fetches models and data sets into a cache, for a user or for a job before its workers start.

use clap::{Args, ValueEnum};
use fetch::{
    Address, ContentKind, FetchError, FetchErrorKind, Fetched, Options, Progress, Reading, Stage, fetch, link,
};
use serde::Serialize;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::sleep;

/// Interval between lines of progress.
const BETWEEN_LINES: Duration = Duration::from_secs(5);
/// Highest number of bytes that a kubelet reads of a termination message.
const LONGEST_MESSAGE: usize = 4096;
/// Highest number of characters of an error in it.
const LONGEST_ERROR: usize = 1500;
/// How long a fetch that is stopped waits for its last writes. A kubelet waits for 30 s by default.
pub(crate) const LAST_WRITES: Duration = Duration::from_secs(10);
/// The exit code after the end of the pipe that another program holds open as stdin.
const PIPE_ENDED: u8 = 1;

/// What is fetched, and how.
#[derive(Args)]
pub struct FetchArgs {
    /// The cache's folder, which must exist. It may be on a network file system and be shared by many fetchers
    #[arg(long, value_name = "CACHE")]
    into: PathBuf,
    /// A folder with a file for each credential, as a Secret is mounted: HF_TOKEN, AWS_ACCESS_KEY_ID, ca.crt
    #[arg(long, value_name = "DIR")]
    credentials: Option<PathBuf>,
    /// The URL of the hub or of the object store. The hub's default is HF_ENDPOINT, of the
    /// credentials or else of the environment, or else https://huggingface.co
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,
    /// A file with CA certificates (PEM) that are trusted besides the system's
    #[arg(long, value_name = "FILE")]
    ca_bundle: Option<PathBuf>,
    /// What hf://NAMESPACE/NAME names
    #[arg(long, value_enum, default_value = "model")]
    kind: ContentArg,
    /// The revision that an earlier fetch of URI resolved. If it is in the cache, the network is not used
    #[arg(long, value_name = "REVISION")]
    revision: Option<String>,
    /// Also fetch pickled weights of the hub's models, which can run code when they are loaded
    ///
    /// Without it, files that end in .bin, .pt, .pth, .ckpt, .pkl, .pickle, .h5, .hdf5, .keras or .joblib are left out
    /// where there are .safetensors. A model that has only such files is refused.
    #[arg(long)]
    any_weights: bool,
    /// Compare the SHA-256 of all files that are in the cache, and not only their sizes
    #[arg(long)]
    verify: bool,
    /// Make PATH a symbolic link to the fetched files. Once for each URI, in their order
    #[arg(long, value_name = "PATH")]
    link: Vec<PathBuf>,
    /// Seconds without a byte, or with less than 256 KiB, after which a server is asked again
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    stall_limit: u64,
    /// Print progress and errors as JSON, too
    #[arg(long)]
    json: bool,
    /// Also write the results, or the error, to FILE: JSON of at most 4096 bytes
    #[arg(long, value_name = "FILE")]
    termination_log: Option<PathBuf>,
    /// Where the models and data sets are
    #[arg(required = true, value_name = "URI")]
    uris: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum ContentArg {
    /// A repository of a model
    Model,
    /// A repository of a data set
    Dataset,
}

/// A failure, as JSON for programs.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Failure {
    uri: String,
    error: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    /// Whether a retry fails in the same way.
    is_final: bool,
}

/// The message in the termination log.
#[derive(Serialize)]
struct Message<'a> {
    fetched: &'a [Fetched],
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    failure: Option<Failure>,
}

/// Why not everything was fetched.
enum FetchStop {
    Failed {
        uri: String,
        error: FetchError,
    },
    /// Stopped by a signal or by the end of stdin. The exit code says which.
    Stopped {
        uri: String,
        by: &'static str,
        code: u8,
    },
}

impl FetchStop {
    fn failed(uri: impl Into<String>, error: impl Into<FetchError>) -> Self {
        Self::Failed { uri: uri.into(), error: error.into() }
    }

    fn code(&self) -> u8 {
        match self {
            Self::Failed { error, .. } if error.is_final() => 2,
            Self::Failed { .. } => 1,
            Self::Stopped { code, .. } => *code,
        }
    }

    fn failure(self) -> Failure {
        match self {
            Self::Failed { uri, error } => {
                let (status, is_final) = (error.status, error.is_final());
                Failure { uri, error: error.to_string(), status, is_final }
            }
            Self::Stopped { uri, by, .. } => {
                let error = format!("{uri}: stopped by {by}; fetch it again to resume, its parts are in the cache");
                Failure { uri, error, status: None, is_final: false }
            }
        }
    }
}

/// The signals that stop a fetch, with their names and exit codes.
pub(crate) struct Stops(Vec<(Signal, &'static str, u8)>);

impl Stops {
    /// Catches these signals from now on. Otherwise they would not end the first process of a container.
    pub(crate) fn catch() -> std::io::Result<Self> {
        let kinds = [
            (SignalKind::terminate(), "SIGTERM", 143),
            (SignalKind::interrupt(), "SIGINT", 130),
            (SignalKind::hangup(), "SIGHUP", 129),
        ];
        let caught = kinds.into_iter().map(|(kind, name, code)| Ok((signal(kind)?, name, code)));
        Ok(Self(caught.collect::<std::io::Result<_>>()?))
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) -> (&'static str, u8) {
        std::future::poll_fn(|context| {
            for (signal, name, code) in &mut self.0 {
                if signal.poll_recv(context).is_ready() {
                    return std::task::Poll::Ready((*name, *code));
                }
            }
            std::task::Poll::Pending
        })
        .await
    }
}

/// Waits for the end of stdin, if it is a pipe.
async fn end_of(stdin: &mut oneshot::Receiver<()>) {
    if stdin.await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Fetches everything, up to the first failure, a signal, or `stdin_ended`. Returns the exit code.
pub fn run(args: &FetchArgs, stdin_ended: oneshot::Receiver<()>) -> u8 {
    let mut fetched = Vec::new();
    let ended = match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => {
            let ended = fetch_all(args, &runtime, stdin_ended, &mut fetched).err();
            // The lease is released with the last write. The agent does not wait for a silent file server.
            runtime.shutdown_timeout(LAST_WRITES);
            ended
        }
        Err(error) => Some(FetchStop::failed("", FetchError::new(FetchErrorKind::Local, error.to_string()))),
    };
    let code = ended.as_ref().map_or(0, FetchStop::code);
    let failure = ended.map(FetchStop::failure);
    if let Some(failure) = &failure {
        match serde_json::to_string(failure) {
            Ok(line) if args.json => eprintln!("{line}"),
            _ => eprintln!("agent: {}", failure.error),
        }
    }
    if let Some(file) = &args.termination_log
        && let Err(error) = fs::write(file, message(&fetched, failure))
    {
        eprintln!("agent: {}: {error}", file.display());
    }
    code
}

fn fetch_all(
    args: &FetchArgs,
    runtime: &Runtime,
    mut stdin_ended: oneshot::Receiver<()>,
    fetched: &mut Vec<Fetched>,
) -> Result<(), FetchStop> {
    let kind = if args.kind == ContentArg::Dataset { ContentKind::Dataset } else { ContentKind::Model };
    let parse = |uri: &String| Address::parse(uri, kind).map_err(|error| FetchStop::failed("", error));
    let addresses: Vec<Address> = args.uris.iter().map(parse).collect::<Result<_, _>>()?;
    let refused = |why: &str| Err(FetchStop::failed("", FetchError::refused(why)));
    if args.revision.is_some() && addresses.len() > 1 {
        return refused("--revision is of one URI; fetch each URI by itself");
    }
    if !args.link.is_empty() && args.link.len() != addresses.len() {
        return refused("--link is needed for each URI; write as many as there are URIs");
    }
    let mut options = Options::new(&args.into);
    options.credentials.clone_from(&args.credentials);
    options.endpoint.clone_from(&args.endpoint);
    options.ca_bundle.clone_from(&args.ca_bundle);
    options.revision.clone_from(&args.revision);
    options.safetensors_only = !args.any_weights;
    options.verify = args.verify;
    options.patience.silence = Duration::from_secs(args.stall_limit);
    options.patience.connect = options.patience.connect.min(options.patience.silence);
    let local =
        |error: std::io::Error| FetchStop::failed("", FetchError::new(FetchErrorKind::Local, error.to_string()));
    let mut stops = runtime.block_on(async { Stops::catch() }).map_err(local)?;
    for (index, address) in addresses.iter().enumerate() {
        let failed = |error| FetchStop::failed(address.to_string(), error);
        let watch = Watch::default();
        let stopped = |(by, code)| FetchStop::Stopped { uri: address.to_string(), by, code };
        let one = runtime.block_on(async {
            tokio::select! {
                result = watched(address, &options, args.json, &watch) => result.map_err(failed),
                stop = stops.next() => Err(stopped(stop)),
                () = end_of(&mut stdin_ended) => Err(stopped(("the end of stdin", PIPE_ENDED))),
            }
        })?;
        if let Some(path) = args.link.get(index) {
            link(&one.path, path).map_err(failed)?;
        }
        if let Some(why) = &one.set_aside {
            eprintln!("agent: {address}: the entry in the cache was damaged and was fetched again: {why}");
        }
        if let Ok(line) = serde_json::to_string(&one) {
            println!("{line}");
        }
        fetched.push(one);
    }
    Ok(())
}

/// Progress of a fetch, for concurrent readers.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    pub progress: Progress,
    /// Bytes that arrived per second between the last two lines of progress.
    pub rate: AtomicU64,
}

/// Fetches one content, and prints the progress.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate is no more than a counter")]
pub(crate) async fn watched(
    address: &Address,
    options: &Options,
    json: bool,
    watch: &Watch,
) -> Result<Fetched, FetchError> {
    let progress = &watch.progress;
    let print = async {
        let mut last = (Instant::now(), progress.now());
        loop {
            sleep(BETWEEN_LINES).await;
            let now = (Instant::now(), progress.now());
            let seconds = (now.0 - last.0).as_secs_f64();
            let rate = ((now.1.network - last.1.network) as f64 / seconds.max(0.001)) as u64;
            watch.rate.store(rate, Ordering::Relaxed);
            eprintln!("{}", progress_line(address, &now.1, rate, json));
            last = now;
        }
    };
    tokio::select! {
        result = fetch(address, options, progress) => result,
        () = print => Err(FetchError::new(FetchErrorKind::Local, "the progress has ended")),
    }
}

fn progress_line(address: &Address, reading: &Reading, rate: u64, json: bool) -> String {
    let Reading { stage, bytes, network, total, files, all_files } = *reading;
    if json {
        let (uri, stage) = (address.to_string(), format!("{stage:?}").to_lowercase());
        return serde_json::json!({
            "uri": uri, "stage": stage, "bytes": bytes, "bytesTotal": total, "fromNetwork": network, "files": files,
            "filesTotal": all_files, "bytesPerSecond": rate,
        })
        .to_string();
    }
    let shown = checkpoint::wording::bytes;
    let done = match stage {
        Stage::Listing => "listing the files".to_owned(),
        Stage::Waiting => "waiting for another fetcher of the same content".to_owned(),
        Stage::Checking => "checking the cache".to_owned(),
        Stage::Fetching => {
            format!("{} of {}, {files} of {all_files} files, {}/s", shown(bytes), shown(total), shown(rate))
        }
    };
    format!("agent: {address}: {done}")
}

/// The results as a termination message. If they are too long, the first ones are omitted.
fn message(fetched: &[Fetched], mut failure: Option<Failure>) -> String {
    if let Some(failure) = &mut failure
        && let Some((end, _)) = failure.error.char_indices().nth(LONGEST_ERROR)
    {
        failure.error.truncate(end);
    }
    let mut message = Message { fetched, failure };
    loop {
        let text = serde_json::to_string(&message).unwrap_or_default();
        match message.fetched.split_first() {
            Some((_, rest)) if text.len() > LONGEST_MESSAGE => message.fetched = rest,
            _ => return text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(uri: &str) -> Fetched {
        let (key, revision) = ("0".repeat(32), "1".repeat(40));
        let path = "/cache/data".into();
        Fetched {
            uri: uri.to_owned(),
            key,
            revision,
            path,
            bytes: 5,
            files: 2,
            from_network: 5,
            set_aside: None,
            removed: Vec::new(),
        }
    }

    #[test]
    fn fetch_message_fits_the_termination_log() {
        assert_eq!(
            message(&[one("hf://a/b@main")], None),
            format!(
                concat!(
                    r#"{{"fetched":[{{"uri":"hf://a/b@main","key":"{}","revision":"{}","#,
                    r#""path":"/cache/data","bytes":5,"files":2,"fromNetwork":5}}]}}"#
                ),
                "0".repeat(32),
                "1".repeat(40)
            )
        );
        let many: Vec<Fetched> = (0..100).map(|n| one(&format!("hf://a/{n}@main"))).collect();
        let failure =
            Failure { uri: "hf://a/b".to_owned(), error: "ä".repeat(5000), status: Some(403), is_final: true };
        let text = message(&many, Some(failure));
        assert!(text.len() <= LONGEST_MESSAGE && text.contains(r#""isFinal":true"#), "{text}");
    }

    #[test]
    fn fetch_progress_is_a_single_line() {
        let address = Address::parse("hf://a/b", ContentKind::Model).unwrap();
        let reading =
            Reading { stage: Stage::Fetching, bytes: 1 << 20, network: 5, total: 1 << 30, files: 1, all_files: 9 };
        assert_eq!(
            progress_line(&address, &reading, 2048, false),
            "agent: hf://a/b@main: 1.0 MiB of 1.0 GiB, 1 of 9 files, 2.0 KiB/s"
        );
        assert!(progress_line(&address, &reading, 2048, true).contains(r#""stage":"fetching""#));
    }
}
