//! `agent publish`: publishes the result of a job under a URI, and registers it in MLflow.

use clap::Args;
use publish::{
    Kind, Options, Origin, Progress, PublishError, Published, Reading, Registration, Registry, ResultRecord, Stage,
    parse_address, publish, register,
};
use serde::Serialize;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// Between two lines of progress.
const BETWEEN_LINES: Duration = Duration::from_secs(5);
/// What a kubelet reads of a termination message, in bytes.
const LONGEST_MESSAGE: usize = 4096;
/// A longer error is cut in it, in bytes of JSON.
const LONGEST_ERROR: usize = 1500;

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
    /// The URL of the hub or of the object store. The hub's default is HF_ENDPOINT, or else https://huggingface.co
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
    /// Also write the record without its files, or the error, to FILE: JSON of at most 4096 bytes
    #[arg(long, value_name = "FILE")]
    termination_log: Option<PathBuf>,
}

/// A failure, for a program.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Failure {
    error: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    /// Whether another try fails in the same way.
    is_final: bool,
}

/// What is printed, and left in the termination log.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Message {
    #[serde(skip_serializing_if = "Option::is_none")]
    record: Option<ResultRecord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    registered: Option<Registration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<Failure>,
}

/// Publishes the result: the exit code.
pub fn run(args: &PublishArgs) -> u8 {
    let mut message = Message::default();
    let failed = publish_and_register(args, &mut message).err();
    let code = failed.as_ref().map_or(0, |error| if error.is_final() { 2 } else { 1 });
    message.failure =
        failed.map(|error| Failure { error: error.to_string(), status: error.status, is_final: error.is_final() });
    if let Some(failure) = &message.failure {
        match serde_json::to_string(failure) {
            Ok(line) if args.json => eprintln!("{line}"),
            _ => eprintln!("agent: {}", failure.error),
        }
    }
    if let Some(file) = &args.termination_log
        && let Err(error) = fs::write(file, shortened(message))
    {
        eprintln!("agent: {}: {error}", file.display());
    }
    code
}

fn publish_and_register(args: &PublishArgs, message: &mut Message) -> Result<(), PublishError> {
    let address = parse_address(&args.to)?;
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
    // What can't be registered is not published either.
    let registry = args.mlflow.as_ref().zip(args.registered_model.as_ref()).map(|(uri, model)| {
        Registry::open(uri, model, args.credentials.as_deref(), args.ca_bundle.as_deref(), options.patience)
    });
    let registry = registry.transpose()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| PublishError::new(Kind::Local, error.to_string()))?;
    let uri = address.to_string();
    let progress = Progress::default();
    let work = publish(&address, &options, &progress);
    let published = runtime.block_on(watched(&uri, work, &progress, args.json))?;
    let Published { record, sent, was_published } = published;
    let record = record.without_files();
    message.record = Some(record.clone());
    let line = serde_json::json!({"record": record, "sent": sent, "wasPublished": was_published});
    println!("{line}");
    if let Some(registry) = &registry {
        let registration = runtime.block_on(register(registry, &record))?;
        if let Ok(line) = serde_json::to_string(&registration) {
            println!("{{\"registered\":{line}}}");
        }
        message.registered = Some(registration);
    }
    Ok(())
}

/// Publishes, and prints how far it is.
async fn watched(
    uri: &str,
    work: impl Future<Output = Result<Published, PublishError>>,
    progress: &Progress,
    json: bool,
) -> Result<Published, PublishError> {
    let print = async {
        let mut last = (Instant::now(), progress.now());
        loop {
            sleep(BETWEEN_LINES).await;
            let now = (Instant::now(), progress.now());
            let seconds = (now.0 - last.0).as_secs_f64();
            let rate = (now.1.sent - last.1.sent) as f64 / seconds.max(0.001);
            eprintln!("{}", progress_line(uri, &now.1, rate, json));
            last = now;
        }
    };
    tokio::select! {
        result = work => result,
        () = print => Err(PublishError::new(Kind::Local, "the progress has ended")),
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate is no more than a counter")]
fn progress_line(uri: &str, reading: &Reading, rate: f64, json: bool) -> String {
    let Reading { stage, bytes, sent, total, files, all_files } = *reading;
    if json {
        let stage = format!("{stage:?}").to_lowercase();
        return serde_json::json!({
            "uri": uri, "stage": stage, "bytes": bytes, "bytesTotal": total, "sent": sent, "files": files,
            "filesTotal": all_files, "bytesPerSecond": rate as u64,
        })
        .to_string();
    }
    let shown = checkpoint::wording::bytes;
    let done = || format!("{} of {}, {files} of {all_files} files", shown(bytes), shown(total));
    let text = match stage {
        Stage::Listing => "listing the files".to_owned(),
        Stage::Hashing => format!("computing hashes: {}", done()),
        Stage::Sending => format!("{}, {}/s", done(), shown(rate as u64)),
        Stage::Verifying => "comparing what the server has with what was sent".to_owned(),
        Stage::Recording => "writing the record".to_owned(),
    };
    format!("agent: {uri}: {text}")
}

/// The message as it fits into a termination log. What is longest and least needed goes first.
fn shortened(mut message: Message) -> String {
    if let Some(failure) = &mut message.failure {
        failure.error = text::start_of(&failure.error, LONGEST_ERROR).to_owned();
    }
    let mut step = 0;
    loop {
        let text = serde_json::to_string(&message).unwrap_or_default();
        if text.len() <= LONGEST_MESSAGE {
            return text;
        }
        if let Some(record) = &mut message.record {
            match step {
                0 => record.origin.metrics.clear(),
                1 => record.origin.base_models.clear(),
                // Whatever else the operator wrote into the record, it knows.
                2 => record.origin = Origin::default(),
                _ => message.record = None,
            }
        }
        step += 1;
        if step > 4 {
            return text;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use publish::BaseModel;

    fn record() -> ResultRecord {
        serde_json::from_value(serde_json::json!({
            "version": 1, "uri": "s3://b/out/n", "name": "n", "digest": "0".repeat(64), "fileCount": 2, "bytes": 5,
            "published": "2026-11-26T20:00:00Z", "job": "digits",
        }))
        .unwrap()
    }

    #[test]
    fn messages_fit_into_a_termination_log() {
        let message = |record, failure| Message { record: Some(record), registered: None, failure };
        assert_eq!(
            shortened(message(record(), None)),
            format!(
                concat!(
                    r#"{{"record":{{"version":1,"uri":"s3://b/out/n","name":"n","digest":"{}","fileCount":2,"bytes":5,"#,
                    r#""published":"2026-11-26T20:00:00Z","job":"digits"}}}}"#
                ),
                "0".repeat(64)
            )
        );
        let mut long = record();
        long.origin.metrics = (0..500).map(|n| (format!("metric {n}"), 0.1)).collect();
        long.origin.base_models = vec![BaseModel { uri: "hf://a/b".to_owned(), revision: None }];
        let failure = || Failure { error: "\u{1}".repeat(5000), status: Some(403), is_final: true };
        let text = shortened(message(long.clone(), Some(failure())));
        assert!(text.len() <= LONGEST_MESSAGE && text.contains("hf://a/b") && text.contains(r#""isFinal":true"#));
        long.origin.image = Some("x".repeat(5000));
        let text = shortened(message(long, Some(failure())));
        assert!(text.len() <= LONGEST_MESSAGE && text.contains(r#""uri":"s3://b/out/n""#), "{text}");
    }

    #[test]
    fn progress_is_one_line() {
        let reading =
            Reading { stage: Stage::Sending, bytes: 1 << 20, sent: 5, total: 1 << 30, files: 1, all_files: 9 };
        assert_eq!(
            progress_line("s3://b/out", &reading, 2048.0, false),
            "agent: s3://b/out: 1.0 MiB of 1.0 GiB, 1 of 9 files, 2.0 KiB/s"
        );
        assert!(progress_line("s3://b/out", &reading, 2048.0, true).contains(r#""stage":"sending""#));
    }
}
