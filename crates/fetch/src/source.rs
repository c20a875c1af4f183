//! The sources as one: a revision, a list of files, and ranges of them.

use crate::error::FetchError;
use crate::hub::{ENDPOINT, Hub, check_pages};
use crate::listing::{Item, Listing, ListingWriter};
use crate::network::Network;
use crate::objects::{ObjectList, Objects};
use crate::watch::Watch;
use crate::web::Web;
use crate::web_file::{RangeAnswer, Version};
use crate::{Options, blocking};
use address::{Address, ContentKind};
use http::HeaderValue;
use reqwest::Url;
use std::fs::{self, File};
use std::io::Read;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use store::{Access, Store};
use text::one_line;

/// A longer file of a Secret is not read, in bytes.
const LONGEST: u64 = 1024 * 1024;

/// Where content is from.
pub(crate) struct Source {
    kind: SourceKind,
    pub watch: Arc<Watch>,
}

enum SourceKind {
    Hub(Hub),
    Web(Web),
    Objects(Box<Objects>),
}

type Result<T> = std::result::Result<T, FetchError>;

impl Source {
    /// The source of an address. No request is sent yet.
    ///
    /// # Errors
    /// If the endpoint, the credentials or the CA bundle can't be used.
    pub fn open(address: &Address, options: &Options, watch: Arc<Watch>) -> Result<Self> {
        let kind = SourceKind::open(address, options, &watch)?;
        Ok(Self { kind, watch })
    }

    /// How people write where it is.
    pub fn uri(&self) -> &str {
        match &self.kind {
            SourceKind::Hub(hub) => &hub.uri,
            SourceKind::Web(web) => &web.uri,
            SourceKind::Objects(objects) => &objects.uri,
        }
    }

    /// The revision, where it is known without a list of the files. It is requested once.
    pub async fn revision(&self, pinned: Option<&str>) -> Result<Option<String>> {
        match &self.kind {
            SourceKind::Hub(hub) => hub.resolve().await.map(Some),
            SourceKind::Web(web) => match pinned {
                Some(pinned) if pinned != web.address.sha256 => Err(FetchError::refused(format!(
                    "{}: the revision {} is not its hash; leave the revision out",
                    web.uri,
                    one_line(pinned)
                ))),
                _ => Ok(Some(web.address.sha256.clone())),
            },
            SourceKind::Objects(objects) => match (&objects.address.digest, pinned) {
                (Some(digest), Some(pinned)) if pinned != digest => Err(FetchError::refused(format!(
                    "{}: the revision {} is not its digest; leave the revision out",
                    objects.uri,
                    one_line(pinned)
                ))),
                (Some(digest), _) => Ok(Some(digest.clone())),
                (None, pinned) => Ok(pinned.map(str::to_owned)),
            },
        }
    }

    /// The files at a revision, written to `spool`; and the revision, which the list of an object store decides.
    ///
    /// # Errors
    /// If there is none, or one that can't be written below a folder; and what the source answers.
    pub async fn list(&self, revision: Option<&str>, spool: File, safetensors_only: bool) -> Result<(Listing, String)> {
        let uri = self.uri().to_owned();
        let mut writer = ListingWriter::new(spool);
        let add = |writer: ListingWriter, items: Vec<Item>| {
            self.watch.listed(items.len());
            let uri = uri.clone();
            blocking(move || writer.add(&uri, &items))
        };
        let found = match &self.kind {
            SourceKind::Hub(hub) => {
                let commit = revision.unwrap_or_default();
                let mut next = Some(hub.first_page(commit)?);
                let (mut pages, mut files) = (0, 0);
                while let Some(url) = next {
                    check_pages(&uri, pages, files)?;
                    let (items, after) = hub.page(&url).await?;
                    (pages, files) = (pages + 1, files + items.len());
                    writer = add(writer, items).await?;
                    next = after;
                }
                commit.to_owned()
            }
            SourceKind::Web(web) => {
                writer = add(writer, vec![web.item().await?]).await?;
                web.address.sha256.clone()
            }
            SourceKind::Objects(objects) => match &objects.address.digest {
                Some(digest) => {
                    writer = add(writer, objects.result(digest).await?).await?;
                    digest.clone()
                }
                None => {
                    let mut list = ObjectList::new();
                    while let Some(items) = objects.page(&mut list).await? {
                        writer = add(writer, items).await?;
                    }
                    list.revision()
                }
            },
        };
        let filter =
            safetensors_only && matches!(&self.kind, SourceKind::Hub(hub) if hub.address.kind == ContentKind::Model);
        let listing = blocking(move || writer.finish(&uri, filter)).await?;
        Ok((listing, found))
    }

    /// A range of a file, if it still is of that version.
    pub async fn open_range(
        &self,
        revision: &str,
        item: &Item,
        range: Range<u64>,
        version: Option<Version>,
    ) -> Result<(RangeAnswer<'_>, Option<Version>)> {
        match &self.kind {
            SourceKind::Hub(hub) => hub.open(revision, item, range, version).await,
            SourceKind::Web(web) => web.open(item, range, version).await,
            SourceKind::Objects(objects) => Ok((objects.open(item, range).await?, None)),
        }
    }

    /// The name of the file, if the address is of one file and no folder.
    pub fn single_file(&self, listing: &Listing) -> Option<String> {
        if listing.lines != 1 {
            return None;
        }
        let (_, item) = listing.items().ok()?.next()?.ok()?;
        let is_single = match &self.kind {
            SourceKind::Hub(hub) => item.key == hub.address.path,
            SourceKind::Web(_) => true,
            SourceKind::Objects(_) => item.key.is_empty(),
        };
        is_single.then_some(item.path)
    }

    /// What distinguishes contents besides address and revision.
    pub fn variant(&self, safetensors_only: bool) -> String {
        match &self.kind {
            SourceKind::Hub(hub) => {
                let endpoint = hub.endpoint.as_str().trim_end_matches('/');
                let endpoint = if endpoint == ENDPOINT { "" } else { endpoint };
                let any = hub.address.kind == ContentKind::Model && !safetensors_only;
                format!("{endpoint} {}", if any { "any-weights" } else { "" }).trim().to_owned()
            }
            _ => String::new(),
        }
    }
}

impl SourceKind {
    fn open(address: &Address, options: &Options, watch: &Arc<Watch>) -> Result<Self> {
        let uri = address.to_string();
        let credentials = options.credentials.as_deref();
        let certificates = || match &options.ca_bundle {
            Some(file) => fs::read(file).map(Some).map_err(|error| unreadable(file, &error)),
            None => Ok(secret(credentials, "ca.crt")?.map(String::into_bytes)),
        };
        let network = |endpoint: &Url| {
            Network::new(
                endpoint,
                certificates()?.as_deref(),
                options.patience,
                Arc::clone(watch),
                options.hosts.clone(),
            )
        };
        match address {
            Address::Hub(address) => {
                let endpoint = hub_endpoint(options)?;
                let token = match secret(credentials, "HF_TOKEN")? {
                    Some(token) => {
                        let header = HeaderValue::try_from(format!("Bearer {token}"));
                        let mut header = header.map_err(|_| {
                            FetchError::refused("HF_TOKEN in the credentials is no token; put one line into it")
                        })?;
                        header.set_sensitive(true);
                        Some(header)
                    }
                    None => None,
                };
                let mut address = address.clone();
                if let Some(revision) = &options.revision {
                    address.revision.clone_from(revision);
                }
                Ok(Self::Hub(Hub { network: network(&endpoint)?, endpoint, token, address, uri }))
            }
            Address::Web(address) => {
                Ok(Self::Web(Web { network: network(&address.url)?, address: address.clone(), uri }))
            }
            Address::Image(reference) => Err(FetchError::refused(format!(
                "oci://{reference}: an image is mounted by the cluster and not fetched; name it as model, dataset or in data"
            ))),
            Address::Objects(address) => {
                let mut access = Access {
                    endpoint: options.endpoint.clone(),
                    ca_bundle: options.ca_bundle.clone(),
                    credentials: options.credentials.clone(),
                    ..Access::default()
                };
                access.patience.connect = options.patience.connect;
                access.patience.silence = options.patience.silence;
                // One page of a list at a time. What fails is tried again here, so that the limits multiply nowhere.
                access.patience.answer = options.patience.silence;
                access.patience.retries = 0;
                if let Some(namespace) = &address.oracle_namespace {
                    oracle_access(&mut access, namespace, &uri)?;
                }
                let store = Store::open(&address.destination, &access, "fetch")?;
                Ok(Self::Objects(Box::new(Objects {
                    store,
                    address: address.clone(),
                    uri,
                    patience: options.patience,
                    watch: Arc::clone(watch),
                })))
            }
        }
    }
}

fn hub_endpoint(options: &Options) -> Result<Url> {
    let from_secret = secret(options.credentials.as_deref(), "HF_ENDPOINT")?;
    let from_environment = || std::env::var("HF_ENDPOINT").ok().filter(|value| !value.is_empty());
    let endpoint = options.endpoint.clone().or(from_secret).or_else(from_environment);
    let endpoint = endpoint.unwrap_or_else(|| ENDPOINT.to_owned());
    let url = Url::parse(&endpoint).ok().filter(|url| {
        matches!(url.scheme(), "https" | "http")
            && url.host_str().is_some()
            && url.username().is_empty()
            && url.password().is_none()
            && url.query().is_none()
            && url.fragment().is_none()
    });
    url.ok_or_else(|| {
        FetchError::refused("the hub's endpoint (HF_ENDPOINT) is no URL, or has credentials; write https://HOST")
    })
}

/// Oracle's S3-compatible endpoint is of the namespace and the region.
fn oracle_access(access: &mut Access, namespace: &str, uri: &str) -> Result<()> {
    let credentials = access.credentials.as_deref();
    let in_secret = access.endpoint.is_none() && secret(credentials, "AWS_ENDPOINT_URL")?.is_some();
    let region = match secret(credentials, "AWS_REGION")? {
        Some(region) => Some(region),
        None => std::env::var("AWS_REGION").ok().filter(|region| !region.is_empty()),
    };
    if access.endpoint.is_some() || in_secret {
        return Ok(());
    }
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let Some(region) = region.filter(|region| region.bytes().all(is_known)) else {
        return Err(FetchError::refused(format!(
            "{uri}: the region is not known; put AWS_REGION into the credentials Secret, or set the endpoint \
             https://{namespace}.compat.objectstorage.REGION.oraclecloud.com"
        )));
    };
    access.endpoint = Some(format!("https://{namespace}.compat.objectstorage.{region}.oraclecloud.com"));
    access.region = Some(region);
    Ok(())
}

/// What a file of the mounted Secret holds. `None` if it has no such file, or an empty one.
fn secret(folder: Option<&Path>, name: &str) -> Result<Option<String>> {
    let Some(file) = folder.map(|folder| folder.join(name)) else { return Ok(None) };
    let mut value = String::new();
    match File::open(&file).and_then(|open| open.take(LONGEST).read_to_string(&mut value)) {
        Ok(_) => Ok(Some(value.trim().to_owned()).filter(|value| !value.is_empty())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(&file, &error)),
    }
}

fn unreadable(file: &Path, error: &std::io::Error) -> FetchError {
    FetchError::refused(format!("{}: {error}; mount a file that can be read", file.display()))
}
