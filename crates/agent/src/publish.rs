//! `agent publish`: publishes the result of a job under a URI, and registers it in MLflow.

use clap::Args;
use publish::{
    Address, Options, Origin, Progress, PublishError, PublishErrorKind, Published, Reading, Registry, Stage, publish,
    register,
};
use serde::Serialize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::time::sleep;

/// Interval between lines of progress.
const BETWEEN_LINES: Duration = Duration::from_secs(5);

/// What is published, and how.
#[derive(Args)]
pub struct PublishArgs {
    /// The folder with the files of the result, which is the job's OUTPUT_DIR
    #[arg(long, value_name = "DIR")]
    from: PathBuf,
    /// Where the result is published
    #[arg(long, value_name = "URI")]
    to: String,
    /// The name of the publication, which identifies the run of the job. In an object store it is a folder below URI
    #[arg(long, value_name = "NAME")]
    name: String,
    /// A folder with a file for each credential, as a Secret is mounted: HF_TOKEN, AWS_ACCESS_KEY_ID, ca.crt,
    /// MLFLOW_TRACKING_TOKEN
    #[arg(long, value_name = "DIR")]
    credentials: Option<PathBuf>,
    /// The URL of the hub or of the object store. The hub's default is HF_ENDPOINT, of the
    /// credentials or of the environment, or else https://huggingface.co
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,
    /// A file with CA certificates (PEM) that are trusted besides the system's
    #[arg(long, value_name = "FILE")]
    ca_bundle: Option<PathBuf>,
    /// A JSON file with what the operator knows of the job, which is copied into the record
    ///
    /// Its fields are job, namespace, uid, image, specDigest, metrics, baseModels (each with uri and revision) and
    /// codeRevision. All are optional.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Where the journal of what was sent is kept, by which an interrupted publication is resumed. Default
    /// DIR/.trainingjob/publish of --from
    #[arg(long, value_name = "DIR")]
    journal: Option<PathBuf>,
    /// The tracking URI of an MLflow server, http:// or https://, in whose model registry the result becomes a version
    #[arg(long, value_name = "URI", requires = "registered_model")]
    mlflow: Option<String>,
    /// The name of the registered model in MLflow, which is made if it is missing
    #[arg(long, value_name = "NAME", requires = "mlflow")]
    registered_model: Option<String>,
    /// Print progress and errors as JSON, too
    #[arg(long)]
    json: bool,
}

/// A failure, as JSON for programs.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Failure {
    error: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    /// Whether a retry fails in the same way.
    is_final: bool,
}

/// Publishes the result. Returns the exit code, which is 2 if a retry fails in the same way.
pub fn run(args: &PublishArgs) -> u8 {
    let Err(error) = publish_and_register(args) else { return 0 };
    let failure = Failure { error: error.to_string(), status: error.status, is_final: error.is_final() };
    match serde_json::to_string(&failure) {
        Ok(line) if args.json => eprintln!("{line}"),
        _ => eprintln!("agent: {}", failure.error),
    }
    if failure.is_final { 2 } else { 1 }
}

fn publish_and_register(args: &PublishArgs) -> Result<(), PublishError> {
    let address = Address::parse_result(&args.to)?;
    let mut options = Options::new(&args.from, &args.name);
    options.credentials.clone_from(&args.credentials);
    options.endpoint.clone_from(&args.endpoint);
    options.ca_bundle.clone_from(&args.ca_bundle);
    options.journal.clone_from(&args.journal);
    if let Some(file) = &args.record {
        options.origin = crate::read_json::<Origin>(file).map_err(|error| {
            PublishError::refused(format!("{}: {error}; name a JSON file with fields of the record", file.display()))
        })?;
    }
    // A result that can't be registered is not published either.
    let registry = args.mlflow.as_ref().zip(args.registered_model.as_ref()).map(|(uri, model)| {
        Registry::open(uri, model, args.credentials.as_deref(), args.ca_bundle.as_deref(), options.patience)
    });
    let registry = registry.transpose()?;
    let runtime = runtime()?;
    let Published { record, sent, was_published } =
        runtime.block_on(watched(&address, &options, args.json, &Watch::default()))?;
    let record = record.without_files();
    let line = serde_json::json!({"record": record, "sent": sent, "wasPublished": was_published});
    println!("{line}");
    if let Some(registry) = &registry {
        let registration = runtime.block_on(register(registry, &record))?;
        if let Ok(line) = serde_json::to_string(&registration) {
            println!("{{\"registered\":{line}}}");
        }
    }
    Ok(())
}

/// A runtime for one publication.
pub(crate) fn runtime() -> Result<Runtime, PublishError> {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| PublishError::new(PublishErrorKind::Local, error.to_string()))
}

/// Progress of a publication, for concurrent readers.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    pub progress: Progress,
    /// Bytes that were sent per second between the last two lines of progress.
    pub rate: AtomicU64,
}

/// Publishes, and prints the progress.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate is no more than a counter")]
pub(crate) async fn watched(
    address: &Address,
    options: &Options,
    json: bool,
    watch: &Watch,
) -> Result<Published, PublishError> {
    let (uri, progress) = (address.to_string(), &watch.progress);
    let print = async {
        let mut last = (Instant::now(), progress.now());
        loop {
            sleep(BETWEEN_LINES).await;
            let now = (Instant::now(), progress.now());
            let seconds = (now.0 - last.0).as_secs_f64();
            let rate = ((now.1.sent - last.1.sent) as f64 / seconds.max(0.001)) as u64;
            watch.rate.store(rate, Ordering::Relaxed);
            eprintln!("{}", progress_line(&uri, &now.1, rate, json));
            last = now;
        }
    };
    tokio::select! {
        result = publish(address, options, progress) => result,
        () = print => Err(PublishError::new(PublishErrorKind::Local, "the progress has ended")),
    }
}

fn progress_line(uri: &str, reading: &Reading, rate: u64, json: bool) -> String {
    let Reading { stage, bytes, sent, total, files, all_files } = *reading;
    if json {
        let stage = format!("{stage:?}").to_lowercase();
        return serde_json::json!({
            "uri": uri, "stage": stage, "bytes": bytes, "bytesTotal": total, "sent": sent, "files": files,
            "filesTotal": all_files, "bytesPerSecond": rate,
        })
        .to_string();
    }
    let shown = checkpoint::wording::bytes;
    let done = || format!("{} of {}, {files} of {all_files} files", shown(bytes), shown(total));
    let text = match stage {
        Stage::Listing => "listing the files".to_owned(),
        Stage::Hashing => format!("computing hashes: {}", done()),
        Stage::Sending => format!("{}, {}/s", done(), shown(rate)),
        Stage::Verifying => "comparing what the server has with what was sent".to_owned(),
        Stage::Recording => "writing the record".to_owned(),
    };
    format!("agent: {uri}: {text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publish_progress_is_a_single_line() {
        let reading =
            Reading { stage: Stage::Sending, bytes: 1 << 20, sent: 5, total: 1 << 30, files: 1, all_files: 9 };
        assert_eq!(
            progress_line("s3://b/out", &reading, 2048, false),
            "agent: s3://b/out: 1.0 MiB of 1.0 GiB, 1 of 9 files, 2.0 KiB/s"
        );
        assert!(progress_line("s3://b/out", &reading, 2048, true).contains(r#""stage":"sending""#));
    }
}
