//! Results of trainings, published under a URI with their record.
//!
//! [`publish`] sends the files of a folder to an object store or to a repository of the hub. Files are sent first. The
//! record ([`ResultRecord`]), which is the manifest of the result, is written last, so a result without it is
//! incomplete. In the hub one commit has all files and the record.
//!
//! A journal on the local disk has what was sent, and an interrupted publication resumes from it. A publication that is
//! complete is compared with the folder, and nothing is sent.
//!
//! [`register`] makes a published result a version in MLflow's model registry.
//!
//! Memory: at most 64 MiB of payloads at a time, and about 500 bytes for each file.
#![allow(
    clippy::cast_possible_truncation,
    reason = "sizes of payloads fit into usize, which has 64 bits (asserted below)"
)]

const _: () = assert!(usize::BITS == 64);

mod content;
mod error;
mod hub;
mod ledger;
mod mlflow;
mod network;
mod objects;
mod progress;
mod read;
mod record;

#[cfg(test)]
mod hub_tests;
#[cfg(test)]
mod mlflow_tests;
#[cfg(test)]
mod stand_in;
#[cfg(test)]
mod tests;

pub use address::{Address, ContentKind};
pub use error::{PublishError, PublishErrorKind};
pub use mlflow::{Registration, Registry, register};
pub use network::NetworkTimeouts;
pub use progress::{Progress, Reading, Stage};
pub use protocol::result::{BaseModel, Origin, RECORD_NAME, RecordFile, ResultRecord};

use address::{HubAddress, ObjectsAddress};
use content::Content;
use http::HeaderValue;
use hub::Hub;
use ledger::Ledger;
use network::Network;
use objects::Objects;
use reqwest::Url;
use std::path::{Path, PathBuf};
use store::{Access, Store};

/// The hub, unless another one is named.
const ENDPOINT: &str = "https://huggingface.co";

/// What is published, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder with the files of the result.
    pub from: PathBuf,
    /// The name of the publication, which identifies the run of the job: at most 200 letters, digits, dots, dashes and
    /// underscores.
    pub name: String,
    /// What the operator knows of the job.
    pub origin: Origin,
    /// A folder with a file for each credential, as a Secret is mounted: `HF_TOKEN`, `AWS_*`, `AZURE_*`, a key file of
    /// Google, `ca.crt`. Without it object stores are accessed with the pod's identity.
    pub credentials: Option<PathBuf>,
    /// The URL of the hub or of the object store. Without it the hub is at `HF_ENDPOINT`, of the
    /// credentials or else of the environment, or at `https://huggingface.co`.
    pub endpoint: Option<String>,
    /// A file with CA certificates (PEM) that are trusted besides the system's.
    pub ca_bundle: Option<PathBuf>,
    /// The folder with the journal of what was sent. Default `.trainingjob/publish` below `from`.
    pub journal: Option<PathBuf>,
    /// How long to wait for the hub.
    pub patience: NetworkTimeouts,
}

impl Options {
    /// The defaults for a folder and a name.
    #[must_use]
    pub fn new(from: impl Into<PathBuf>, name: &str) -> Self {
        Self {
            from: from.into(),
            name: name.to_owned(),
            origin: Origin::default(),
            credentials: None,
            endpoint: None,
            ca_bundle: None,
            journal: None,
            patience: NetworkTimeouts::default(),
        }
    }

    /// The CA certificates (PEM) that are trusted besides the system's.
    fn certificates(&self) -> Result<Option<Vec<u8>>, PublishError> {
        match &self.ca_bundle {
            Some(file) => std::fs::read(file).map(Some).map_err(|error| unreadable(file, &error)),
            None => Ok(secret(self.credentials.as_deref(), "ca.crt")?.map(String::into_bytes)),
        }
    }

    /// The folder, its journal, and the certificates.
    async fn open(&self, uri: &str) -> Result<(Content, Ledger, Option<Vec<u8>>), PublishError> {
        let (options, uri) = (self.clone(), uri.to_owned());
        blocking(move || Ok((Content::open(&options.from)?, options.ledger(&uri)?, options.certificates()?))).await
    }

    fn ledger(&self, uri: &str) -> Result<Ledger, PublishError> {
        let default = || self.from.join(address::key::OURS).join("publish");
        Ledger::open(&self.journal.clone().unwrap_or_else(default), uri)
    }
}

/// A result that is published.
#[derive(Clone, Debug, PartialEq)]
pub struct Published {
    /// Its record, with the revision of the result.
    pub record: ResultRecord,
    /// Bytes that this call sent over the network.
    pub sent: u64,
    /// Whether an earlier call has published it.
    pub was_published: bool,
}

/// Publishes the files of a folder, unless they are published. `progress` shows how far it is.
///
/// The future may be dropped at any await. The next call resumes.
///
/// # Errors
/// With the file or URI, what happened, and the remedy. [`PublishError::is_final`] tells whether another try is in vain.
pub async fn publish(address: &Address, options: &Options, progress: &Progress) -> Result<Published, PublishError> {
    check_name(&options.name)?;
    match address {
        Address::Objects(address) => to_objects(address, options, progress).await,
        Address::Hub(address) => to_hub(address, options, progress).await,
        Address::Web(_) | Address::Image(_) => {
            Err(PublishError::refused(format!("{address}: nothing can be published there; write s3:// or hf://")))
        }
    }
}

fn check_name(name: &str) -> Result<(), PublishError> {
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_short = (1..=200).contains(&name.len());
    if is_short && name.bytes().all(is_known) && name.as_bytes()[0].is_ascii_alphanumeric() {
        return Ok(());
    }
    Err(PublishError::refused(format!(
        "the name {} must have 1 to 200 letters, digits, dots, dashes and underscores, a letter or digit first; correct \
         --name",
        text::one_line(name)
    )))
}

async fn to_objects(
    address: &ObjectsAddress,
    options: &Options,
    progress: &Progress,
) -> Result<Published, PublishError> {
    let mut below = address.clone();
    below.destination.prefix = match below.destination.prefix.as_str() {
        "" => options.name.clone(),
        prefix => format!("{prefix}/{}", options.name),
    };
    let uri = Address::Objects(below.clone()).to_string();
    let mut access = Access {
        endpoint: options.endpoint.clone(),
        ca_bundle: options.ca_bundle.clone(),
        credentials: options.credentials.clone(),
        ..Access::default()
    };
    if let Some(namespace) = &address.oracle_namespace {
        oracle_access(&mut access, namespace, &uri)?;
    }
    let (content, ledger, _) = options.open(&uri).await?;
    let objects = Objects {
        store: Store::open(&below.destination, &access, "publish")?,
        uri,
        name: &options.name,
        origin: &options.origin,
        content,
        ledger,
        progress,
        room: store::PayloadMemory::default(),
    };
    objects.publish().await
}

async fn to_hub(address: &HubAddress, options: &Options, progress: &Progress) -> Result<Published, PublishError> {
    let uri = Address::Hub(address.clone()).to_string();
    let of_secret = secret(options.credentials.as_deref(), "HF_ENDPOINT")?;
    let of_environment = || std::env::var("HF_ENDPOINT").ok().filter(|url| !url.is_empty());
    let endpoint = options.endpoint.clone().or(of_secret).or_else(of_environment);
    let endpoint = endpoint.as_deref().unwrap_or(ENDPOINT);
    let endpoint =
        Url::parse(endpoint).ok().filter(|url| matches!(url.scheme(), "http" | "https")).ok_or_else(|| {
            let shown = text::one_line(&address::redacted(endpoint));
            PublishError::refused(format!("the hub's URL {shown} can't be used; write https://HOST"))
        })?;
    let Some(token) = secret(options.credentials.as_deref(), "HF_TOKEN")? else {
        return Err(PublishError::refused(format!(
            "{uri}: there is no HF_TOKEN; put a token with the permission to write into the credentials Secret"
        )));
    };
    let mut token = HeaderValue::try_from(format!("Bearer {token}"))
        .map_err(|_| PublishError::refused("HF_TOKEN in the credentials is no token; put one line into it"))?;
    token.set_sensitive(true);
    let (content, ledger, certificates) = options.open(&uri).await?;
    let hub = Hub {
        network: Network::new(&endpoint, certificates.as_deref(), options.patience)?,
        endpoint,
        token,
        address: address.clone(),
        uri,
        name: &options.name,
        origin: &options.origin,
        content,
        ledger,
        progress,
    };
    hub.publish().await
}

/// Oracle's S3-compatible endpoint, unless another one is named.
fn oracle_access(access: &mut Access, namespace: &str, uri: &str) -> Result<(), PublishError> {
    let credentials = access.credentials.as_deref();
    if access.endpoint.is_some() || secret(credentials, "AWS_ENDPOINT_URL")?.is_some() {
        return Ok(());
    }
    let region = match secret(credentials, "AWS_REGION")? {
        Some(region) => Some(region),
        None => std::env::var("AWS_REGION").ok(),
    };
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let Some(region) = region.filter(|region| !region.is_empty() && region.bytes().all(is_known)) else {
        return Err(PublishError::refused(format!(
            "{uri}: the region is not known; put AWS_REGION into the credentials Secret"
        )));
    };
    access.endpoint = Some(format!("https://{namespace}.compat.objectstorage.{region}.oraclecloud.com"));
    access.region = Some(region);
    Ok(())
}

/// What a file of the mounted Secret holds. `None` if it has no such file, or an empty one.
fn secret(folder: Option<&Path>, name: &str) -> Result<Option<String>, PublishError> {
    /// A longer file of a Secret is not read, in bytes.
    const LONGEST: u64 = 1024 * 1024;
    let Some(file) = folder.map(|folder| folder.join(name)) else { return Ok(None) };
    let read = std::fs::File::open(&file).and_then(|open| std::io::read_to_string(std::io::Read::take(open, LONGEST)));
    match read {
        Ok(value) => Ok(Some(value.trim().to_owned()).filter(|value| !value.is_empty())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(&file, &error)),
    }
}

fn unreadable(file: &Path, error: &std::io::Error) -> PublishError {
    PublishError::refused(format!("{}: {error}; mount a file that can be read", file.display()))
}

/// Runs work that may wait for a disk on a thread that may.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PublishError> + Send + 'static,
) -> Result<T, PublishError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| {
        Err(PublishError::new(PublishErrorKind::Local, format!("{error}; report this as a bug")))
    })
}
