//! `agent outputs`: publishes the result of a job, after its programs have ended.

use crate::inputs::{failed_transfer, serve};
use crate::publish::{Watch, runtime, watched};
use crate::serve::status;
use clap::Args;
use protocol::report::{Phase, Report, VERSION};
use protocol::result::{
    Origin, Publication, PublishProgress, PublishRequest, PublishStage, RegisterRequest, ResultRecord,
};
use publish::{Address, Options, PublishError, Registry, Stage, register};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What is published, and where its record is left.
#[derive(Args)]
pub struct OutputsArgs {
    /// What is published, as JSON: from, uri, name, credentials, register and origin
    #[arg(long, value_name = "JSON", value_parser = parse)]
    request: PublishRequest,
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

fn parse(text: &str) -> Result<PublishRequest, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// Publishes the result and registers it. Returns the exit code, which is 2 if a retry fails in the same way.
pub fn run(args: &OutputsArgs) -> u8 {
    let published = publish_and_register(args);
    let code = published.as_ref().err().map_or(0, |error| if error.is_final() { 2 } else { 1 });
    if let Err(error) = &published {
        eprintln!("agent: {error}");
    }
    if let Err(error) = fs::write(&args.termination_log, last_words(published)) {
        eprintln!("agent: {}: {error}", args.termination_log.display());
    }
    code
}

fn publish_and_register(args: &OutputsArgs) -> Result<Publication, PublishError> {
    let request = &args.request;
    let address = Address::parse_result(&request.uri)?;
    let mut options = Options::new(&request.from, &request.name);
    options.credentials = request.credentials.as_ref().map(PathBuf::from);
    options.origin.clone_from(&request.origin);
    // A result that can't be registered is not published either.
    let open = |wanted: &RegisterRequest| {
        let credentials = wanted.credentials.as_deref().map(Path::new);
        Registry::open(&wanted.mlflow, &wanted.model, credentials, None, options.patience)
    };
    let registry = request.register.as_ref().map(open).transpose()?;
    let (runtime, watch) = (runtime()?, Arc::<Watch>::default());
    let shown = Arc::clone(&watch);
    serve(args.metrics_port, args.answer_key.as_deref(), &runtime, move || {
        status::of_transfer(Vec::new(), Some(progress(&shown)))
    });
    let record = runtime.block_on(watched(&address, &options, false, &watch))?.record.without_files();
    eprintln!("agent: {}: published, {} files, digest {}", record.uri, record.file_count, record.digest);
    let registered = registry.map(|registry| runtime.block_on(register(&registry, &record))).transpose()?;
    if let Some(version) = &registered {
        eprintln!("agent: version {} of the registered model {}", version.version, version.model);
    }
    let record = ResultRecord { origin: Origin::default(), ..record };
    Ok(Publication { record, registered_version: registered.map(|version| version.version) })
}

fn progress(watch: &Watch) -> PublishProgress {
    let reading = watch.progress.now();
    PublishProgress {
        stage: match reading.stage {
            Stage::Listing => PublishStage::Listing,
            Stage::Hashing => PublishStage::Hashing,
            Stage::Sending => PublishStage::Sending,
            Stage::Verifying => PublishStage::Verifying,
            Stage::Recording => PublishStage::Recording,
        },
        bytes: reading.bytes,
        total_bytes: reading.total,
        files: reading.files,
        total_files: reading.all_files,
        bytes_per_second: watch.rate.load(Ordering::Relaxed),
    }
}

/// The report, of at most 3 kB.
fn last_words(published: Result<Publication, PublishError>) -> String {
    let (phase, published, error) = match published {
        Ok(published) => (Phase::Exited, Some(published), None),
        Err(error) => (Phase::default(), None, Some(failed_transfer(&error.to_string(), error.is_final()))),
    };
    let report = Report { version: VERSION, phase, published, error, ..Report::default() };
    serde_json::to_string(&report).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::report::LaunchErrorKind;
    use publish::PublishErrorKind;

    #[test]
    fn publish_report_fits_the_termination_message() {
        let record = ResultRecord {
            version: 1,
            uri: format!("s3://b/{}", "u".repeat(1200)),
            name: "n".repeat(200),
            revision: Some("0".repeat(64)),
            digest: "0".repeat(64),
            file_count: u64::MAX,
            bytes: u64::MAX,
            ..ResultRecord::default()
        };
        let text = last_words(Ok(Publication { record: record.clone(), registered_version: Some("12".to_owned()) }));
        assert!(text.len() <= 4096, "what a kubelet reads: {text}");
        assert_eq!(Report::parse(&text).unwrap().published.unwrap().record, record);
        let report =
            Report::parse(&last_words(Err(PublishError::new(PublishErrorKind::Unavailable, "ä".repeat(5000)))))
                .unwrap();
        assert_eq!((report.published, report.error.unwrap().kind), (None, LaunchErrorKind::ContentUnavailable));
    }
}
