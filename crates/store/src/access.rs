//! Access to a store: an endpoint, and credentials from a mounted Secret or from the cloud.

use crate::backend::Backend;
use crate::error::StoreError;
use crate::folder::Folder;
use crate::transport::Connector;
use address::{Destination, Scheme};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::list::PaginatedListStore;
use object_store::multipart::MultipartStore;
use object_store::{ClientOptions, ObjectStore, RetryConfig};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of bytes read from a file of a Secret. No credential is longer.
const LONGEST: u64 = 1024 * 1024;

/// Checksum that is sent with each part, so that the store refuses data that was damaged on the way. Only S3 has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// Signing needs it in any case, so it costs nothing.
    #[default]
    Sha256,
    /// S3's own current checksum.
    Crc64Nvme,
    /// For servers that refuse both. The data is signed all the same.
    None,
}

/// Timeouts and retries for requests to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkTimeouts {
    /// Timeout for a connection.
    pub connect: Duration,
    /// Timeout for the next byte, in either direction.
    pub silence: Duration,
    /// How often a request is retried after a failure that may be temporary, with a back-off of 0.2 s doubling to 10 s.
    pub retries: usize,
    /// Time since its first try after which a request is not retried.
    pub retry_for: Duration,
    /// Timeout for a list with all its pages, or for any other complete answer that is not object data.
    pub answer: Duration,
}

impl Default for NetworkTimeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            silence: Duration::from_secs(60),
            retries: 6,
            retry_for: Duration::from_secs(120),
            answer: Duration::from_secs(600),
        }
    }
}

/// Access to a store: how it is reached, and with which identity.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// The URL of a store that is not the cloud's own, `https://minio.example.com:9000`. TLS is omitted only for
    /// `http://`. This URL takes precedence over the Secret's `AWS_ENDPOINT_URL`. Buckets are in its path, not in its
    /// host name.
    pub endpoint: Option<String>,
    /// S3's region. It takes precedence over the Secret's `AWS_REGION`.
    pub region: Option<String>,
    /// A file with CA certificates (PEM) that are trusted besides the system's. It takes precedence over the Secret's.
    pub ca_bundle: Option<PathBuf>,
    /// A folder with a file for each credential, as a Secret is mounted. Each [`Store::open`] reads it again. Without
    /// it the identity is the cloud's: IRSA, EKS Pod Identity, GKE's metadata server, Azure's federated token, or what
    /// those clouds' environment variables specify.
    ///
    /// [`Store::open`]: crate::Store::open
    pub credentials: Option<PathBuf>,
    /// Checksum that S3 gets.
    pub checksum: Checksum,
    /// Timeouts and retries.
    pub patience: NetworkTimeouts,
}

/// Content of a folder of credentials, by file name.
struct Secret {
    values: BTreeMap<String, String>,
}

impl Secret {
    fn read(folder: &Path) -> Result<Self, StoreError> {
        let unreadable = |file: &Path, error: std::io::Error| {
            StoreError::invalid(format!("the credentials in {} can't be read: {error}", file.display()))
        };
        let mut values = BTreeMap::new();
        for entry in fs::read_dir(folder).map_err(|error| unreadable(folder, error))? {
            let entry = entry.map_err(|error| unreadable(folder, error))?;
            // Kubernetes keeps the files in `..data` and makes links to them.
            let Some(name) = entry.file_name().to_str().filter(|name| !name.starts_with("..")).map(str::to_owned)
            else {
                continue;
            };
            let path = entry.path();
            if !path.is_file() {
                continue;
            }
            let mut value = String::new();
            let file = File::open(&path).map_err(|error| unreadable(&path, error))?;
            file.take(LONGEST).read_to_string(&mut value).map_err(|error| unreadable(&path, error))?;
            values.insert(name, value.trim().to_owned());
        }
        Ok(Self { values })
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// The names, for an error about a missing one. Never the values.
    fn names(&self) -> String {
        if self.values.is_empty() {
            return "it is empty".to_owned();
        }
        format!("it has {}", self.values.keys().take(12).cloned().collect::<Vec<_>>().join(", "))
    }

    fn certificates(&self) -> Option<Vec<u8>> {
        ["ca.crt", "AWS_CA_BUNDLE"]
            .iter()
            .filter_map(|name| self.get(name))
            .find(|value| value.contains("-----BEGIN CERTIFICATE"))
            .map(|value| value.as_bytes().to_vec())
    }

    /// Google's key, by whatever name it has.
    fn google_key(&self) -> Option<(&str, &str)> {
        self.values
            .iter()
            .filter(|(name, _)| name.ends_with(".json") || *name == "GOOGLE_APPLICATION_CREDENTIALS")
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .find(|(_, value)| value.starts_with('{'))
    }
}

impl Access {
    pub(crate) fn open(&self, destination: &Destination) -> Result<Backend, StoreError> {
        if destination.scheme == Scheme::File {
            return Ok(Backend::Folder(Folder { root: destination.folder() }));
        }
        let secret = self.credentials.as_deref().map(Secret::read).transpose()?;
        let endpoint = self.endpoint.clone().or_else(|| {
            let names: &[&str] = match destination.scheme {
                Scheme::S3 => &["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"],
                Scheme::Azure => &["AZURE_STORAGE_ENDPOINT"],
                _ => &["STORAGE_EMULATOR_HOST"],
            };
            let from_secret = names.iter().find_map(|name| secret.as_ref()?.get(name).map(str::to_owned));
            // Environment variables apply only to an ambient identity.
            from_secret.or_else(|| names.iter().find_map(|name| std::env::var(name).ok().filter(|_| secret.is_none())))
        });
        if let Some(endpoint) = &endpoint {
            check_endpoint(endpoint)?;
        }
        let plain = endpoint.as_deref().is_some_and(|endpoint| endpoint.starts_with("http://"));
        let connector = Connector {
            connect: self.patience.connect,
            silence: self.patience.silence,
            ca_bundle: self.certificates(secret.as_ref())?,
            plain,
            google_hash: destination.scheme == Scheme::Gcs,
            longest_pause: if self.patience.retries == 0 { Duration::ZERO } else { self.patience.retry_for },
        };
        let options = ClientOptions::new().with_allow_http(plain);
        let mut retry = RetryConfig {
            max_retries: self.patience.retries,
            retry_timeout: self.patience.retry_for,
            ..RetryConfig::default()
        };
        retry.backoff.init_backoff = Duration::from_millis(200).min(self.patience.retry_for);
        retry.backoff.max_backoff = Duration::from_secs(10).min(self.patience.retry_for);
        let failed = |error: object_store::Error| StoreError::of_store(&destination.to_string(), &error);
        match destination.scheme {
            Scheme::S3 => {
                let builder = self.s3(destination, secret.as_ref(), endpoint)?;
                let builder = builder.with_http_connector(connector).with_client_options(options).with_retry(retry);
                Ok(self.cloud(builder.build().map_err(failed)?))
            }
            Scheme::Gcs => {
                let builder = self.gcs(destination, secret.as_ref(), endpoint)?;
                let builder = builder.with_http_connector(connector).with_client_options(options).with_retry(retry);
                Ok(self.cloud(builder.build().map_err(failed)?))
            }
            Scheme::Azure => {
                let builder = azure(destination, secret.as_ref(), endpoint)?;
                let builder = builder.with_http_connector(connector).with_client_options(options).with_retry(retry);
                Ok(self.cloud(builder.build().map_err(failed)?))
            }
            Scheme::File => Err(StoreError::invalid(format!("{destination}: not a store in a cloud"))),
        }
    }

    fn cloud(&self, store: impl ObjectStore + MultipartStore + PaginatedListStore) -> Backend {
        let store = Arc::new(store);
        let (objects, pages) = (Arc::clone(&store) as _, Arc::clone(&store) as _);
        Backend::Cloud { objects, pages, parts: store, answer: self.patience.answer }
    }

    fn certificates(&self, secret: Option<&Secret>) -> Result<Option<Vec<u8>>, StoreError> {
        let from_environment = || std::env::var_os("AWS_CA_BUNDLE").map(PathBuf::from).filter(|file| file.is_file());
        let pem = match (&self.ca_bundle, secret.and_then(Secret::certificates)) {
            (None, Some(pem)) => Some(pem),
            (None, None) => match from_environment() {
                Some(file) => Some(fs::read(&file).map_err(|error| StoreError::local(&file, &error))?),
                None => None,
            },
            (Some(file), _) => Some(fs::read(file).map_err(|error| StoreError::local(file, &error))?),
        };
        if let Some(pem) = &pem
            && !pem.windows(27).any(|window| window == b"-----BEGIN CERTIFICATE-----")
        {
            return Err(StoreError::invalid("the CA bundle has no certificate in PEM form (BEGIN CERTIFICATE)"));
        }
        Ok(pem)
    }

    fn s3(
        &self,
        destination: &Destination,
        secret: Option<&Secret>,
        endpoint: Option<String>,
    ) -> Result<AmazonS3Builder, StoreError> {
        let mut builder = match secret {
            Some(secret) => {
                let mut builder = AmazonS3Builder::new();
                for (name, value) in &secret.values {
                    if let Ok(key) = name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>()
                        && name.starts_with("AWS_")
                        && !matches!(key, AmazonS3ConfigKey::Client(_) | AmazonS3ConfigKey::Endpoint)
                    {
                        builder = builder.with_config(key, value.clone());
                    }
                }
                let has = |name| secret.get(name).is_some();
                if has("AWS_ACCESS_KEY_ID") != has("AWS_SECRET_ACCESS_KEY") {
                    return Err(StoreError::invalid(format!(
                        "{destination}: the Secret must have both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; {}",
                        secret.names()
                    )));
                }
                let role = has("AWS_ROLE_ARN") && has("AWS_WEB_IDENTITY_TOKEN_FILE");
                if !has("AWS_ACCESS_KEY_ID") && !role && !has("AWS_SKIP_SIGNATURE") {
                    // A Secret with only an endpoint is used with the identity of the service account.
                    if secret.get("AWS_ENDPOINT_URL").is_none() && secret.get("AWS_REGION").is_none() {
                        return Err(StoreError::invalid(format!(
                            "{destination}: the Secret has no AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; {}",
                            secret.names()
                        )));
                    }
                    builder = AmazonS3Builder::from_env();
                    if let Some(region) = secret.get("AWS_REGION") {
                        builder = builder.with_region(region);
                    }
                }
                builder
            }
            None => AmazonS3Builder::from_env(),
        };
        if let Some(endpoint) = endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        if let Some(region) = &self.region {
            builder = builder.with_region(region);
        }
        builder = match self.checksum {
            Checksum::Sha256 => builder.with_checksum_algorithm(object_store::aws::Checksum::SHA256),
            Checksum::Crc64Nvme => builder.with_checksum_algorithm(object_store::aws::Checksum::CRC64NVME),
            Checksum::None => builder,
        };
        // Objects are deleted one by one. Not all servers know a bulk deletion, and its answer would have to be
        // trusted.
        Ok(builder.with_bucket_name(&destination.bucket).with_disable_bulk_delete(true))
    }

    fn gcs(
        &self,
        destination: &Destination,
        secret: Option<&Secret>,
        endpoint: Option<String>,
    ) -> Result<GoogleCloudStorageBuilder, StoreError> {
        let mut builder = match secret {
            Some(secret) => {
                let Some((name, key)) = secret.google_key() else {
                    return Err(StoreError::invalid(format!(
                        "{destination}: the Secret has no key file of Google (a name that ends in .json); {}",
                        secret.names()
                    )));
                };
                let kind = serde_json::from_str::<serde_json::Value>(key)
                    .map_err(|_| StoreError::invalid(format!("{destination}: {name} in the Secret is no JSON")))?;
                let builder = GoogleCloudStorageBuilder::new();
                match kind.get("type").and_then(serde_json::Value::as_str) {
                    Some("authorized_user") => {
                        let folder = self.credentials.as_deref().unwrap_or_else(|| Path::new(""));
                        builder.with_application_credentials(folder.join(name).to_string_lossy())
                    }
                    Some("external_account") => {
                        return Err(StoreError::invalid(format!(
                            "{destination}: {name} is of the type external_account, which is not supported: use the key \
                             of a service account, or Workload Identity without a Secret"
                        )));
                    }
                    _ => builder.with_service_account_key(key),
                }
            }
            None => GoogleCloudStorageBuilder::from_env(),
        };
        if let Some(endpoint) = endpoint {
            builder = builder.with_base_url(endpoint.trim_end_matches('/'));
        }
        Ok(builder.with_bucket_name(&destination.bucket))
    }
}

fn azure(
    destination: &Destination,
    secret: Option<&Secret>,
    endpoint: Option<String>,
) -> Result<MicrosoftAzureBuilder, StoreError> {
    let mut builder = match secret {
        Some(secret) => {
            let mut builder = MicrosoftAzureBuilder::new();
            for (name, value) in secret.values.iter().filter(|(name, _)| name.starts_with("AZURE_")) {
                let name = match name.as_str() {
                    "AZURE_STORAGE_ACCOUNT" => "AZURE_STORAGE_ACCOUNT_NAME",
                    "AZURE_STORAGE_KEY" | "AZURE_STORAGE_ACCESS_KEY" => "AZURE_STORAGE_ACCOUNT_KEY",
                    "AZURE_STORAGE_SAS" | "AZURE_STORAGE_SAS_TOKEN" => "AZURE_STORAGE_SAS_KEY",
                    other => other,
                };
                if let Ok(key) = name.to_ascii_lowercase().parse::<AzureConfigKey>()
                    && !matches!(key, AzureConfigKey::Client(_) | AzureConfigKey::Endpoint)
                {
                    builder = builder.with_config(key, value.trim_start_matches('?'));
                }
            }
            builder
        }
        None => MicrosoftAzureBuilder::from_env(),
    };
    if let Some(account) = &destination.account {
        builder = builder.with_account(account);
    }
    if builder.get_config_value(&AzureConfigKey::AccountName).is_none() {
        return Err(StoreError::invalid(format!(
            "{destination}: no storage account: put AZURE_STORAGE_ACCOUNT_NAME into the Secret, or write \
             abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX"
        )));
    }
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    Ok(builder.with_container_name(&destination.bucket))
}

fn check_endpoint(endpoint: &str) -> Result<(), StoreError> {
    let host = endpoint.strip_prefix("https://").or_else(|| endpoint.strip_prefix("http://"));
    match host {
        Some(host) if host.contains('@') => {
            Err(StoreError::invalid("the endpoint must not have credentials in it: they belong into a Secret"))
        }
        Some(host) if !host.is_empty() && !host.contains(['?', '#', ' ']) && reqwest::Url::parse(endpoint).is_ok() => {
            Ok(())
        }
        _ => Err(StoreError::invalid(format!(
            "the endpoint {} is no URL: write https://HOST:PORT, or http://HOST:PORT for a server without TLS",
            endpoint.escape_debug()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(access: &Access, uri: &str) -> String {
        access.open(&Destination::parse(uri).unwrap()).err().expect("an error").to_string()
    }

    fn secret(test: &str, files: &[(&str, &str)]) -> Access {
        let folder = std::env::temp_dir().join(format!("store-access-{test}-{}", std::process::id()));
        drop(fs::remove_dir_all(&folder));
        fs::create_dir_all(&folder).unwrap();
        for (name, value) in files {
            fs::write(folder.join(name), value).unwrap();
        }
        Access { credentials: Some(folder), ..Access::default() }
    }

    #[test]
    fn missing_secret_keys_are_named_without_values() {
        let half = secret("half", &[("AWS_ACCESS_KEY_ID", "hunter2\n")]);
        let reported = error(&half, "s3://bucket/x");
        assert!(
            reported.contains("both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY") && !reported.contains("hunter2"),
            "{reported}"
        );
        let other = secret("other", &[("password", "hunter2")]);
        let reported = error(&other, "s3://bucket/x");
        assert!(reported.contains("it has password") && !reported.contains("hunter2"), "{reported}");
        assert!(error(&other, "gs://bucket/x").contains("ends in .json"));
        assert!(error(&other, "az://container/x").contains("AZURE_STORAGE_ACCOUNT_NAME"));
        let federated = secret("federated", &[("key.json", r#"{"type": "external_account"}"#)]);
        assert!(error(&federated, "gs://bucket/x").contains("not supported"));
        let gone = Access { credentials: Some("/no/such/folder".into()), ..Access::default() };
        assert!(error(&gone, "s3://bucket/x").contains("/no/such/folder"));
    }

    #[test]
    fn invalid_endpoint_is_named() {
        for endpoint in ["minio:9000", "ftp://x", "https://", "https://user:hunter2@host", "https://host?x"] {
            let reported = error(&Access { endpoint: Some(endpoint.to_owned()), ..Access::default() }, "s3://bucket/x");
            assert!(reported.contains("endpoint") && !reported.contains("hunter2"), "{reported}");
        }
    }
}
