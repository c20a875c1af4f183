//! A bucket and a prefix in it, or a folder.

use crate::{AddressError, key};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// What kind of store it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scheme {
    /// Amazon S3 and whatever speaks its protocol.
    S3,
    /// Google Cloud Storage.
    Gcs,
    /// Azure Blob Storage.
    Azure,
    /// A folder: another volume.
    File,
}

/// A bucket and the prefix in it below which everything is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Destination {
    /// What kind of store it is.
    pub scheme: Scheme,
    /// The bucket or container; empty for a folder.
    pub bucket: String,
    /// Keys begin with it and a `/`, unless it is empty. For a folder: its absolute path without the first `/`.
    pub prefix: String,
    /// The storage account, where the URI tells it (`abfss://`).
    pub account: Option<String>,
}

impl Destination {
    /// Reads `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://CONTAINER/PREFIX`,
    /// `abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX` or `file:///FOLDER`. Nothing is percent-decoded.
    ///
    /// # Errors
    /// What is wrong, and how it is written.
    pub fn parse(uri: &str) -> Result<Self, AddressError> {
        let shown = without_secrets(uri);
        let wrong = |why: &str| Err(AddressError(format!("{shown}: {why}")));
        let Some((scheme, rest)) = uri.split_once("://") else {
            return wrong(
                "not a URI: write s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///FOLDER",
            );
        };
        if rest.contains(['?', '#']) {
            return wrong("? and # can't be part of it: credentials belong into a Secret, and keys must not have them");
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (scheme, bucket, account) = match scheme {
            "s3" => (Scheme::S3, authority, None),
            "gs" => (Scheme::Gcs, authority, None),
            "az" => (Scheme::Azure, authority, None),
            "abfss" => {
                let Some((container, host)) = authority.split_once('@').filter(|(name, _)| !name.contains(':')) else {
                    return wrong("write abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX");
                };
                let Some(account) = host.strip_suffix(".dfs.core.windows.net") else {
                    return wrong("the host after @ must be ACCOUNT.dfs.core.windows.net");
                };
                (Scheme::Azure, container, Some(account.to_owned()))
            }
            "file" if authority.is_empty() => (Scheme::File, "", None),
            "file" => return wrong("a folder is written file:///FOLDER, with three slashes"),
            "gcs" => return wrong("Google Cloud Storage is written gs://BUCKET/PREFIX"),
            "s3a" | "s3n" => return wrong("S3 is written s3://BUCKET/PREFIX"),
            "azure" | "abfs" | "wasb" | "wasbs" => return wrong("Azure is written az://CONTAINER/PREFIX"),
            _ => return wrong("unknown scheme: s3, gs, az, abfss and file are known"),
        };
        if bucket.contains('@') {
            return wrong("credentials can't be part of it: they belong into a Secret");
        }
        if scheme != Scheme::File && !is_bucket(bucket) {
            return wrong(
                "the bucket's name must have 3 to 63 letters, digits, dots, dashes or underscores, and no port",
            );
        }
        if account.as_deref().is_some_and(|account| !is_bucket(account)) {
            return wrong("this can't be the name of a storage account");
        }
        let prefix = path.strip_suffix('/').unwrap_or(path);
        if !prefix.is_empty()
            && let Err(why) = key::check(prefix)
        {
            return wrong(&format!("the prefix {why}"));
        }
        if prefix.is_empty() && scheme == Scheme::File {
            return wrong("the root of a file system can't be a store: name a folder");
        }
        if prefix.split('/').any(|segment| segment == key::OURS) {
            return wrong("a prefix can't go through .trainingjob, where the manifests are");
        }
        Ok(Self { scheme, bucket: bucket.to_owned(), prefix: prefix.to_owned(), account })
    }

    /// Of what is relative to the prefix the whole key.
    #[must_use]
    pub fn key(&self, relative: &str) -> String {
        match (self.scheme, self.prefix.as_str(), relative) {
            (Scheme::File, _, _) | (_, "", _) => relative.to_owned(),
            (_, prefix, "") => prefix.to_owned(),
            (_, prefix, _) => format!("{prefix}/{relative}"),
        }
    }

    /// How a person would write what is at `relative` below the prefix.
    #[must_use]
    pub fn uri(&self, relative: &str) -> String {
        if relative.is_empty() {
            self.to_string()
        } else {
            format!("{}/{relative}", self.to_string().trim_end_matches('/'))
        }
    }

    /// The folder, if it is one.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        PathBuf::from(format!("/{}", self.prefix))
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.scheme, &self.account) {
            (Scheme::S3, _) => write!(f, "s3://{}", self.bucket)?,
            (Scheme::Gcs, _) => write!(f, "gs://{}", self.bucket)?,
            (Scheme::Azure, None) => write!(f, "az://{}", self.bucket)?,
            (Scheme::Azure, Some(account)) => write!(f, "abfss://{}@{account}.dfs.core.windows.net", self.bucket)?,
            (Scheme::File, _) => f.write_str("file://")?,
        }
        if self.prefix.is_empty() { Ok(()) } else { write!(f, "/{}", self.prefix) }
    }
}

impl FromStr for Destination {
    type Err = AddressError;

    fn from_str(uri: &str) -> Result<Self, AddressError> {
        Self::parse(uri)
    }
}

fn is_bucket(name: &str) -> bool {
    // Google's names of domains may be longer than S3's 63.
    (3..=222).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && !name.contains("..")
}

/// For an error's text: what may be a password or a token is left out, and it is not longer than a line or two.
fn without_secrets(uri: &str) -> String {
    let uri = uri.split(['?', '#']).next().unwrap_or_default();
    let mut text = match uri.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, path) = rest.split_once('/').map_or((rest, ""), |(authority, path)| (authority, path));
            let host = match authority.rsplit_once('@') {
                Some((user, host)) if user.contains(':') || scheme != "abfss" => format!("***@{host}"),
                _ => authority.to_owned(),
            };
            if path.is_empty() { format!("{scheme}://{host}") } else { format!("{scheme}://{host}/{path}") }
        }
        None => uri.to_owned(),
    };
    if let Some((end, _)) = text.char_indices().nth(200) {
        text.truncate(end);
        text.push_str("...");
    }
    text.escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destination_round_trips_through_parse_and_display() {
        for uri in [
            "s3://bucket",
            "s3://bucket/a/b",
            "gs://my_bucket.example.com/runs/7",
            "az://container/x",
            "abfss://container@account.dfs.core.windows.net/x/y",
            "file:///mnt/backup",
            "s3://bucket/lr=0.1/Größe",
        ] {
            assert_eq!(Destination::parse(uri).unwrap().to_string(), uri);
        }
        assert_eq!(Destination::parse("s3://bucket/a/").unwrap().to_string(), "s3://bucket/a");
    }

    #[test]
    fn invalid_destination_is_rejected_with_a_remedy() {
        for (uri, part) in [
            ("bucket/prefix", "not a URI"),
            ("ftp://host/x", "unknown scheme"),
            ("gcs://bucket/x", "gs://"),
            ("s3a://bucket/x", "s3://"),
            ("s3://", "bucket's name"),
            ("s3:///x", "bucket's name"),
            ("s3://localhost:9000/x", "no port"),
            ("s3://bucket/a//b", "empty"),
            ("s3://bucket/../b", ".."),
            ("s3://bucket/a?token=x", "Secret"),
            ("file://host/x", "three slashes"),
            ("file:///", "name a folder"),
            ("s3://bucket/x/.trainingjob", "manifests"),
            ("s3://bucket/a\nb", "control"),
            ("abfss://container/x", "abfss://CONTAINER@ACCOUNT"),
        ] {
            let error = Destination::parse(uri).unwrap_err();
            assert!(error.to_string().contains(part), "{uri}: {error}");
        }
    }

    #[test]
    fn credentials_in_a_destination_are_rejected_and_not_echoed() {
        for uri in
            ["s3://AKIAKEY:hunter2@bucket/x", "az://c/x?sig=hunter2", "abfss://c:hunter2@a.dfs.core.windows.net/x"]
        {
            let error = Destination::parse(uri).unwrap_err().to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
