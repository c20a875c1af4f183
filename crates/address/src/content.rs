//! The addresses of models and data sets: what people write, and its canonical form.

use crate::key::{check, is_hex};
use crate::{AddressError, Destination, Scheme};
use std::fmt;
use text::one_line;
use url::Url;

/// What the content is used as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ContentKind {
    /// A model: the default of `hf://NAMESPACE/NAME`.
    #[default]
    Model,
    /// A data set.
    Dataset,
}

/// A repository of the Hugging Face hub, at a revision.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HubAddress {
    /// Whether it is a repository of a model or of a data set.
    pub kind: ContentKind,
    /// `NAMESPACE/NAME`.
    pub repository: String,
    /// A branch, tag, commit, or `refs/pr/N`. Default `main`.
    pub revision: String,
    /// A file or folder in the repository. Empty for all of it.
    pub path: String,
}

/// Objects below a prefix, or one object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectsAddress {
    /// The bucket and the prefix.
    pub destination: Destination,
    /// The namespace of Oracle Object Storage, which is reached through its S3-compatible endpoint.
    pub oracle_namespace: Option<String>,
    /// The digest of the result that is published there: 64 lower-case hexadecimal digits.
    pub digest: Option<String>,
}

/// One file, which is known by its hash.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WebAddress {
    /// The URL without a fragment.
    pub url: Url,
    /// The file's SHA-256: 64 lower-case hexadecimal digits.
    pub sha256: String,
}

/// Where a model or a data set is. [`fmt::Display`] writes its canonical form, which parses to the same address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// `hf://[models/|datasets/]NAMESPACE/NAME[@REVISION][/PATH]`.
    Hub(HubAddress),
    /// `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://CONTAINER/PREFIX`, or Oracle's
    /// `oci://n/NAMESPACE/b/BUCKET/o/PREFIX`; each with `#sha256=DIGEST` for a published result.
    Objects(ObjectsAddress),
    /// `https://HOST/PATH#sha256=HASH`.
    Web(WebAddress),
    /// `oci://HOST/REPOSITORY:TAG` or `oci://HOST/REPOSITORY@DIGEST`: an image in a registry, which is mounted and not
    /// fetched. The reference without the scheme.
    Image(String),
}

const HUB_FORM: &str = "write hf://[datasets/]NAMESPACE/NAME[@REVISION][/PATH]";

type Result<T> = std::result::Result<T, AddressError>;

impl Address {
    /// Reads an address. `kind` decides what `hf://NAMESPACE/NAME` names without `models/` or `datasets/`.
    ///
    /// # Errors
    /// What is wrong, and how it is written. Credentials are not repeated.
    pub fn parse(uri: &str, kind: ContentKind) -> Result<Self> {
        let wrong = |why: &str| AddressError(format!("{}: {why}", redacted(uri)));
        if uri.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(wrong("it has a blank or a control character; remove it, or write %20"));
        }
        let Some((scheme, rest)) = uri.split_once("://") else {
            return Err(wrong("not a URI; write hf://, s3://, gs://, az://, oci:// or https:// before it"));
        };
        let (without_digest, digest) = match scheme {
            "s3" | "gs" | "az" | "abfss" | "oci" => digest_of(uri).map_err(wrong)?,
            _ => (uri, None),
        };
        match scheme {
            "hf" => hub(rest, kind).map(Self::Hub).map_err(|why| wrong(&why)),
            "s3" | "gs" | "az" | "abfss" => {
                let destination = Destination::parse(without_digest)?;
                Ok(Self::Objects(ObjectsAddress { destination, oracle_namespace: None, digest }))
            }
            "https" | "http" => web(uri, rest).map(Self::Web).map_err(|why| wrong(&why)),
            "oci" if is_registry(rest) => image(rest).map(Self::Image).map_err(|why| wrong(&why)),
            "oci" => {
                let rest = &rest[..without_digest.len() - "oci://".len()];
                oracle(rest).map(|it| Self::Objects(ObjectsAddress { digest, ..it })).map_err(|why| wrong(&why))
            }
            "pvc" => Err(wrong("a claim is mounted, and nothing is fetched from it; name it in the job's volumes")),
            "file" => Err(wrong("a folder of the node can't be fetched; put it into a claim or an object store")),
            "git" | "ssh" | "git+https" | "git+ssh" => {
                Err(wrong("git is not supported; name the hub's repository as hf://NAMESPACE/NAME"))
            }
            _ if matches!(scheme.to_ascii_lowercase().as_str(), "hf" | "s3" | "gs" | "az" | "oci" | "https") => {
                Err(wrong("the scheme has capital letters; write it in lower case"))
            }
            "gcs" => Err(wrong("unknown scheme; Google Cloud Storage is written gs://BUCKET/PREFIX")),
            "s3a" | "s3n" => Err(wrong("unknown scheme; S3 is written s3://BUCKET/PREFIX")),
            _ => Err(wrong("unknown scheme; use hf, s3, gs, az, abfss, oci or https")),
        }
    }

    /// Reads the address of a result that is published.
    ///
    /// # Errors
    /// What is wrong, and how it is written. A single file, a commit and what nothing can be written to are refused.
    pub fn parse_result(uri: &str) -> Result<Self> {
        let address = Self::parse(uri, ContentKind::Model)?;
        let refused = |why: &str| Err(AddressError(format!("{address}: {why}")));
        match &address {
            Self::Web(_) => refused("nothing can be published by HTTPS; write s3://, gs://, az://, oci:// or hf://"),
            Self::Image(_) => refused("no image is pushed to a registry; write s3://, gs://, az://, oci://n/ or hf://"),
            Self::Hub(hub) if !hub.path.is_empty() => {
                refused("a result is a whole branch; write hf://NAMESPACE/NAME[@BRANCH] without a path")
            }
            Self::Hub(hub) if is_hex(&hub.revision, 40) || hub.revision.starts_with("refs/") => {
                refused("a commit or reference can't be written to; write a branch as hf://NAMESPACE/NAME@BRANCH")
            }
            Self::Objects(objects) if objects.digest.is_some() => {
                refused("the digest of a result is known when it is published; leave #sha256= out")
            }
            Self::Hub(_) | Self::Objects(_) => Ok(address),
        }
    }

    /// What the content is identified by, together with its revision: the address without one.
    #[must_use]
    pub fn without_revision(&self) -> String {
        match self {
            Self::Hub(hub) => hub.with_revision(""),
            other => other.to_string(),
        }
    }
}

impl HubAddress {
    fn with_revision(&self, revision: &str) -> String {
        let kind = if self.kind == ContentKind::Dataset { "datasets/" } else { "" };
        let slash = if self.path.is_empty() { "" } else { "/" };
        format!("hf://{kind}{}{revision}{slash}{}", self.repository, self.path)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hub(hub) => {
                let revision = match hub.revision.starts_with("refs/") {
                    true => hub.revision.clone(),
                    false => hub.revision.replace('/', "%2F"),
                };
                f.write_str(&hub.with_revision(&format!("@{revision}")))
            }
            Self::Objects(ObjectsAddress { destination, oracle_namespace, digest }) => {
                match oracle_namespace {
                    None => destination.fmt(f)?,
                    Some(namespace) => {
                        write!(f, "oci://n/{namespace}/b/{}/o/{}", destination.bucket, destination.prefix)?;
                    }
                }
                digest.as_ref().map_or(Ok(()), |digest| write!(f, "#sha256={digest}"))
            }
            Self::Web(web) => write!(f, "{}#sha256={}", web.url, web.sha256),
            Self::Image(reference) => write!(f, "oci://{reference}"),
        }
    }
}

fn hub(rest: &str, kind: ContentKind) -> std::result::Result<HubAddress, String> {
    if rest.contains('?') {
        return Err("a query (?) can't be part of it; put a token into the credentials Secret as HF_TOKEN".to_owned());
    }
    if rest.contains('#') {
        return Err("a fragment (#) can't be part of it; write a revision as @REVISION".to_owned());
    }
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let (kind, rest) = match rest.split_once('/') {
        Some(("models", rest)) => (ContentKind::Model, rest),
        Some(("datasets", rest)) => (ContentKind::Dataset, rest),
        Some(("spaces", _)) => return Err("a space is no model or data set; name a repository of these".to_owned()),
        _ => (kind, rest),
    };
    let (namespace, rest) = rest.split_once('/').unwrap_or((rest, ""));
    if rest.is_empty() && !namespace.contains(':') {
        return Err(format!("the namespace is missing; {HUB_FORM}"));
    }
    if namespace.contains(['@', ':']) {
        return Err("it has user information; put a token into the credentials Secret as HF_TOKEN".to_owned());
    }
    let (name, after) = match rest.find(['@', '/']) {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    if let Some((name, revision)) = name.split_once(':') {
        return Err(format!("a revision is written with @; write hf://{namespace}/{name}@{revision}"));
    }
    for (what, part) in [("namespace", namespace), ("name", name)] {
        check_repository(part).map_err(|why| format!("the {what} {why}; {HUB_FORM}"))?;
    }
    let (revision, path) = match after.strip_prefix('@') {
        Some(after) => {
            let (revision, path) = split_revision(after);
            (revision.replace("%2F", "/").replace("%2f", "/"), path)
        }
        None => ("main".to_owned(), after.strip_prefix('/')),
    };
    check_revision(&revision)?;
    if let Some(path) = path {
        check(path).map_err(|why| format!("the path {why}; name a file or folder of the repository"))?;
    }
    let path = path.unwrap_or_default().to_owned();
    Ok(HubAddress { kind, repository: format!("{namespace}/{name}"), revision, path })
}

/// Splits `REVISION/PATH`. Of the revisions with a slash only `refs/pr/N` and `refs/convert/NAME` are written with it.
fn split_revision(text: &str) -> (&str, Option<&str>) {
    let skipped = ["refs/pr/", "refs/convert/"].iter().find(|prefix| text.starts_with(**prefix)).map_or(0, |p| p.len());
    match text[skipped..].find('/') {
        Some(at) => (&text[..skipped + at], Some(&text[skipped + at + 1..])),
        None => (text, None),
    }
}

fn check_repository(name: &str) -> std::result::Result<(), &'static str> {
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.is_empty() {
        return Err("is empty");
    }
    if name.len() > 96 || !name.bytes().all(is_known) {
        return Err("must have at most 96 letters, digits, dots, dashes and underscores");
    }
    if name.starts_with(['.', '-']) || name.ends_with(['.', '-']) || name.contains("..") || name.contains("--") {
        return Err("can't begin or end with a dot or dash, or have two in a row");
    }
    if name.ends_with(".git") {
        return Err("can't end with .git");
    }
    Ok(())
}

/// By git's rules for the names of references.
fn check_revision(revision: &str) -> std::result::Result<(), String> {
    let is_odd = |c: char| c.is_control() || " ~^:?*[\\%@{}\"'<>|".contains(c);
    let is_odd_part = |part: &str| part.is_empty() || part.starts_with('.') || part.ends_with('.');
    let odd = revision.is_empty() || revision.len() > 255 || revision.contains("..") || revision.contains(is_odd);
    if odd || revision.split('/').any(is_odd_part) {
        return Err("the revision is no branch, tag or commit; write one after @, with %2F for a slash".to_owned());
    }
    Ok(())
}

fn web(uri: &str, rest: &str) -> std::result::Result<WebAddress, String> {
    let form = "end the URI with #sha256= and the file's SHA-256 (sha256sum FILE)";
    let before_fragment = rest.split('#').next().unwrap_or_default();
    if before_fragment.contains('?') {
        let remedy = "name a URL without it, or use s3://, gs:// or az:// with a credentials Secret";
        return Err(format!("a query (?) can't be part of it, because it may hold credentials; {remedy}"));
    }
    let authority = before_fragment.split('/').next().unwrap_or_default();
    if authority.contains('@') {
        return Err("it has user information; name a URL without it, or use an object store with a Secret".to_owned());
    }
    if authority.is_empty() {
        return Err("the host is missing; write https://HOST/PATH".to_owned());
    }
    let Some((address, fragment)) = uri.split_once('#') else {
        return Err(format!("the hash is missing; {form}"));
    };
    let Some(sha256) = fragment.strip_prefix("sha256=") else {
        return Err(format!("the fragment is no sha256=HASH; {form}"));
    };
    if !is_hex(sha256, 64) {
        return Err(match is_hex(&sha256.to_ascii_lowercase(), 64) {
            true => "the hash has capital letters; write it in lower case".to_owned(),
            false => format!("the hash must have 64 hexadecimal digits (it has {}); {form}", sha256.len()),
        });
    }
    let url = Url::parse(address).map_err(|error| format!("not a URL ({error}); write https://HOST/PATH"))?;
    let path = before_fragment.split_once('/').map_or("", |(_, path)| path);
    let plain = path.to_ascii_lowercase().replace("%2e", ".");
    check(&plain).map_err(|why| format!("the path {why}; write https://HOST/PATH/FILE"))?;
    Ok(WebAddress { url, sha256: sha256.to_owned() })
}

/// Splits off the digest of a published result.
fn digest_of(uri: &str) -> std::result::Result<(&str, Option<String>), &'static str> {
    match uri.split_once("#sha256=") {
        Some((uri, digest)) if is_hex(digest, 64) => Ok((uri, Some(digest.to_owned()))),
        Some(_) => {
            Err("the digest after #sha256= must have 64 lower-case hexadecimal digits; status.result of the job \
                        that published the result has it")
        }
        None => Ok((uri, None)),
    }
}

/// Whether the first part is a registry's host, by the rule of image references: it has a dot or a port, or is localhost.
fn is_registry(rest: &str) -> bool {
    let host = rest.split('/').next().unwrap_or_default();
    host.contains(['.', ':']) || host == "localhost"
}

/// A reference as container runtimes read it: HOST/REPOSITORY, and a tag or a digest.
fn image(rest: &str) -> std::result::Result<String, String> {
    let form = "write oci://HOST/REPOSITORY:TAG or oci://HOST/REPOSITORY@sha256:DIGEST";
    if rest.contains(['?', '#']) {
        return Err(format!("? and # can't be part of it; {form}"));
    }
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    if host.contains('@') {
        return Err(format!("@ can't be part of the host; credentials belong into imagePullSecrets; {form}"));
    }
    let (name, digest) = path.split_once('@').map_or((path, None), |(name, digest)| (name, Some(digest)));
    let (name, tag) = name.split_once(':').map_or((name, None), |(name, tag)| (name, Some(tag)));
    if tag.is_none() && digest.is_none() {
        return Err(format!("a tag or a digest is missing; {form}"));
    }
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-:".contains(&byte);
    let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte);
    let is_part = |part: &str| part.starts_with(|c: char| c.is_ascii_alphanumeric()) && part.bytes().all(is_name);
    let is_tag = |tag: &str| {
        let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        !tag.is_empty() && tag.len() <= 128 && tag.bytes().all(is_known) && !tag.starts_with(['.', '-'])
    };
    let is_digest = |digest: &str| digest.strip_prefix("sha256:").is_some_and(|hash| is_hex(hash, 64));
    let is_good = host.bytes().all(is_host) && name.len() <= 255 && name.split('/').all(is_part);
    if !is_good || !tag.is_none_or(is_tag) || !digest.is_none_or(is_digest) {
        return Err(format!("this is no reference of an image; {form}"));
    }
    Ok(rest.to_owned())
}

fn oracle(rest: &str) -> std::result::Result<ObjectsAddress, String> {
    let form = "oci://n/NAMESPACE/b/BUCKET/o/PREFIX";
    if rest.contains(['?', '#']) {
        return Err(format!("? and # can't be part of it; credentials belong into a Secret; write {form}"));
    }
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    if host.contains('@') {
        return Err(format!("@ can't be part of it; credentials belong into a Secret; write {form}"));
    }
    let parts: Vec<&str> = rest.splitn(6, '/').collect();
    let (namespace, bucket, prefix) = match parts[..] {
        ["n", namespace, "b", bucket, "o", prefix] => (namespace, bucket, prefix),
        ["n", namespace, "b", bucket] | ["n", namespace, "b", bucket, "o"] => (namespace, bucket, ""),
        _ => {
            let (bucket, prefix) = path.split_once('/').unwrap_or((path, "PREFIX"));
            return Err(format!(
                "it can mean Oracle Object Storage (oci://n/{host}/b/{bucket}/o/{prefix}, or with {host} as the bucket \
                 oci://n/NAMESPACE/b/{host}/o/{path}) or an image in a registry (oci://HOST/{rest}:TAG); write the one \
                 that is meant"
            ));
        }
    };
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    if namespace.is_empty() || !namespace.bytes().all(is_known) {
        return Err(format!("the namespace must have letters, digits, dashes and underscores; write {form}"));
    }
    let destination = Destination::parse(&format!("s3://{bucket}/{prefix}")).map_err(|error| {
        let text = error.to_string();
        format!("{}; write {form}", text.split_once(": ").map_or(text.as_str(), |(_, why)| why))
    })?;
    debug_assert_eq!(destination.scheme, Scheme::S3);
    Ok(ObjectsAddress { destination, oracle_namespace: Some(namespace.to_owned()), digest: None })
}

/// A URI as an error may show it: without a query, a fragment that is no hash, and user information.
#[must_use]
pub fn redacted(uri: &str) -> String {
    let uri = uri.split('?').next().unwrap_or_default();
    let (uri, fragment) = uri.split_once('#').map_or((uri, None), |(uri, fragment)| (uri, Some(fragment)));
    let Some((scheme, rest)) = uri.split_once("://") else {
        return one_line(uri.rsplit('@').next().unwrap_or_default());
    };
    let rest = match rest.rsplit_once('@') {
        // In the hub's addresses @ begins a revision, unless what is before it can't be a repository.
        Some((before, _)) if scheme == "hf" && before.contains('/') && !before.contains([':', '@']) => rest.to_owned(),
        Some((before, _)) if scheme == "abfss" && !before.contains([':', '/', '@']) => rest.to_owned(),
        Some((_, after)) => format!("***@{after}"),
        None => rest.to_owned(),
    };
    let hash = fragment.filter(|text| text.starts_with("sha256=") && text.len() <= 80);
    one_line(&match hash {
        Some(hash) => format!("{scheme}://{rest}#{hash}"),
        None => format!("{scheme}://{rest}"),
    })
}

#[cfg(test)]
mod tests;
