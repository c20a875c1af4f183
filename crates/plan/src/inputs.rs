//! Models, data sets and results: where they are, and how the workers get them.

use super::quantity::Amount;
use super::storage::paths;
use super::{Refusals, dns_subdomain};
use address::{Address, ContentKind};
use api::{Access, Data, DataStatus, TrainingJobSpec, TrainingJobStatus};

const SCHEME: &str = "pvc://";
/// Folder below which all credentials are mounted.
const CREDENTIALS: &str = "/etc/training-credentials";

/// A folder on a PersistentVolumeClaim: `pvc://CLAIM/PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimPath {
    /// Name of the claim.
    pub claim: String,
    /// Folder within the volume; `None` for the whole volume.
    pub path: Option<String>,
}

/// Content that the workers read: the model, the dataset, or an entry of `data`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// model, dataset, or the name of the entry.
    pub name: String,
    /// Where the content comes from.
    pub source: Source,
    /// Path in the workers where a folder is mounted.
    pub mount_path: String,
    /// Variable that names the content to the program.
    pub env: Option<String>,
}

/// Origin of an [`Input`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A name that the program understands.
    Name(String),
    /// A folder that is mounted.
    Claim(ClaimPath),
    /// Reference of an image that is mounted.
    Image(String),
    /// Content that is fetched before the workers start: the canonical address, and the result of the fetch.
    Fetch {
        /// Canonical address.
        uri: String,
        /// The content in the cache, once it was fetched.
        fetched: Option<DataStatus>,
    },
    /// An address from which the program reads.
    Stream(String),
}

impl Fetching {
    /// Whether a Job fetches, before the workers are made.
    #[must_use]
    pub fn has_job(&self) -> bool {
        matches!(self.cache, CacheVolume::Claim(_))
    }
}

impl Input {
    /// Value of the program's variable: the name, the address, or the path at which the content is mounted.
    #[must_use]
    pub fn value(&self) -> String {
        match &self.source {
            Source::Name(text) | Source::Stream(text) => text.clone(),
            Source::Claim(_) | Source::Image(_) | Source::Fetch { .. } => self.mount_path.clone(),
        }
    }

    /// Whether something is mounted at its path.
    #[must_use]
    pub fn is_mounted(&self) -> bool {
        matches!(self.source, Source::Claim(_) | Source::Image(_) | Source::Fetch { .. })
    }
}

/// Settings for all content that is fetched.
#[derive(Clone, Debug, PartialEq)]
pub struct Fetching {
    /// Where the content is kept.
    pub cache: CacheVolume,
    /// Bytes that the contents in the folder of a claim may have, if there is a limit.
    pub limit: Option<u64>,
    /// Whether pickled weights of the hub's models are left out.
    pub safetensors_only: bool,
}

/// Volume of the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheVolume {
    /// A claim, or a folder of it, that jobs share. It is filled before the workers are made.
    Claim(ClaimPath),
    /// An emptyDir of the only worker, which an init container fills.
    EmptyDir {
        /// Maximum bytes.
        limit: u64,
    },
}

/// Limit of an emptyDir without one, in bytes.
const EMPTY_DIR_LIMIT: u64 = 100 << 30;

/// Resolves the content that the workers read. `pods` is the maximum number of pods that read it.
pub(super) fn resolve(
    spec: &TrainingJobSpec,
    status: Option<&TrainingJobStatus>,
    pods: u32,
    errors: &mut Refusals,
) -> (Vec<Input>, Option<Fetching>) {
    let known = status.map(resolved).unwrap_or_default();
    let known = known.as_slice();
    let mut inputs = Vec::new();
    let named = [
        ("model", &spec.model, paths::MODEL, ContentKind::Model),
        ("dataset", &spec.dataset, paths::DATASET, ContentKind::Dataset),
    ];
    for (name, text, path, kind) in named {
        let Some(text) = text else { continue };
        let field = format!("spec.{name}");
        let source = source(&field, text, kind, Access::Fetch, name, known, errors);
        let (name, env) = (name.to_owned(), Some(name.to_uppercase()));
        inputs.push(Input { name, source, mount_path: path.to_owned(), env });
    }
    for (index, data) in spec.data.iter().enumerate() {
        inputs.push(entry(&format!("spec.data[{index}]"), data, known, errors));
    }
    check_paths(&inputs, spec, errors);
    let is_fetched = |input: &&Input| matches!(input.source, Source::Fetch { .. });
    let Some(first) = inputs.iter().find(is_fetched) else { return (inputs, None) };
    let fetching = fetching(spec, first, pods, errors);
    (inputs, Some(fetching))
}

/// Contents with a known revision. The plan depends on nothing else of the status.
#[must_use]
pub fn resolved(status: &TrainingJobStatus) -> Vec<DataStatus> {
    let resolved = status.data.iter().filter(|data| data.is_resolved());
    resolved.map(|data| DataStatus { progress: None, ..data.clone() }).collect()
}

fn entry(field: &str, data: &Data, known: &[DataStatus], errors: &mut Refusals) -> Input {
    let (name, access) = (data.name.as_str(), data.access());
    if ["model", "dataset"].contains(&name) {
        errors.push(
            format!("{field}.name"),
            format!("is taken: write the address in spec.{name}, or choose another name"),
        );
    }
    if !data.uri.contains("://") {
        errors
            .push(format!("{field}.uri"), "is no address; write for example s3://BUCKET/PREFIX, or use env for a name");
    }
    let source = source(&format!("{field}.uri"), &data.uri, ContentKind::Model, access, name, known, errors);
    let is_stream = matches!(source, Source::Stream(_));
    match &data.mount_path {
        None if !is_stream => {
            errors.push(format!("{field}.mountPath"), "is missing: write where the content is mounted");
        }
        Some(_) if is_stream => errors.push(format!("{field}.mountPath"), "has no use with access Stream: remove it"),
        Some(path) if !is_mountable(path) => {
            errors.push(format!("{field}.mountPath"), format!("{path:?} can't be mounted at: write an absolute path"));
        }
        _ => {}
    }
    match &data.env {
        None if is_stream => errors.push(format!("{field}.env"), "is missing: name the variable that gets the address"),
        Some(env) if !is_variable(env) || super::is_reserved(env) => {
            errors.push(format!("{field}.env"), format!("{env:?} can't be set here: choose another name"));
        }
        _ => {}
    }
    let mount_path = data.mount_path.as_deref().unwrap_or_default();
    let mount_path = mount_path.trim_end_matches('/').to_owned();
    Input { name: data.name.clone(), source, mount_path, env: data.env.clone() }
}

fn source(
    field: &str,
    text: &str,
    kind: ContentKind,
    access: Access,
    name: &str,
    known: &[DataStatus],
    errors: &mut Refusals,
) -> Source {
    if text.starts_with(SCHEME) {
        if access == Access::Stream {
            errors.push(field, "is a claim, which is always mounted: leave out access");
        }
        return match ClaimPath::resolve(field, text, errors) {
            Some(claim) => Source::Claim(claim),
            None => Source::Name(text.to_owned()),
        };
    }
    if !text.contains("://") {
        return Source::Name(text.to_owned());
    }
    match (Address::parse(text, kind), access) {
        (Err(error), _) => {
            errors.push(field, error.to_string());
            Source::Name(text.to_owned())
        }
        (Ok(Address::Image(_)), Access::Stream) => {
            errors.push(field, "is an image, which is always mounted: leave out access");
            Source::Name(text.to_owned())
        }
        (Ok(Address::Image(reference)), Access::Fetch) => Source::Image(reference),
        (Ok(_), Access::Stream) => Source::Stream(text.to_owned()),
        (Ok(address), Access::Fetch) => {
            let uri = address.to_string();
            let fetched = known.iter().find(|known| known.name == name && known.uri == uri).cloned();
            Source::Fetch { uri, fetched }
        }
    }
}

/// Two folders can't be mounted at one path, and the second one must not hide the first.
fn check_paths(inputs: &[Input], spec: &TrainingJobSpec, errors: &mut Refusals) {
    let taken = |path: &str| {
        let users = spec.volume_mounts.iter().map(|mount| mount.mount_path.trim_end_matches('/'));
        let ours = [paths::AGENT, paths::CONFIG, paths::CHECKPOINTS, paths::OUTPUT, paths::SHM, CREDENTIALS];
        users.chain(ours).any(|other| other == path)
    };
    for (index, input) in inputs.iter().enumerate().filter(|(_, input)| input.is_mounted()) {
        let is_entry = !["model", "dataset"].contains(&input.name.as_str());
        let others = inputs.iter().take(index).filter(|other| other.is_mounted());
        let is_double = others.into_iter().any(|other| other.mount_path == input.mount_path);
        if is_double || (is_entry && taken(&input.mount_path)) {
            let path = &input.mount_path;
            errors.push(
                "spec.data",
                format!("entry {}: {path} is mounted already: choose another mountPath", input.name),
            );
        }
    }
}

fn fetching(spec: &TrainingJobSpec, first: &Input, pods: u32, errors: &mut Refusals) -> Fetching {
    let cache = spec.cache.as_ref();
    let limit = cache.and_then(|cache| cache.limit.as_ref()).and_then(|limit| {
        let bytes = Amount::parse(&limit.0).map(Amount::floor).and_then(|bytes| u64::try_from(bytes).ok());
        if bytes.is_none_or(|bytes| bytes == 0) {
            errors.push("spec.cache.limit", format!("{:?} is not a size; write for example 500Gi", limit.0));
        }
        bytes
    });
    let claim = cache.and_then(|cache| {
        let claim = cache.pvc_name.as_ref()?;
        let path = cache.path.as_deref().map(|path| format!("/{path}")).unwrap_or_default();
        ClaimPath::resolve("spec.cache", &format!("{SCHEME}{claim}{path}"), errors)
    });
    if cache.is_some_and(|cache| cache.pvc_name.is_none() && cache.path.is_some()) {
        errors.push("spec.cache.path", "is a folder of the claim that cache.pvcName names: name one, or remove it");
    }
    if claim.is_none() && pods > 1 {
        let (name, what) = (&first.name, if pods == 2 { "both pods" } else { "all pods" });
        errors.push(
            "spec.cache.pvcName",
            format!("is needed, because {what} of the job read {name}: name a claim that all of them can mount"),
        );
    }
    let (cache, limit) = match claim {
        Some(claim) => (CacheVolume::Claim(claim), limit),
        None => (CacheVolume::EmptyDir { limit: limit.unwrap_or(EMPTY_DIR_LIMIT) }, None),
    };
    Fetching { cache, limit, safetensors_only: spec.safetensors_only() }
}

fn is_mountable(path: &str) -> bool {
    path.starts_with('/') && path.len() > 1 && !path.contains(':') && !path.split('/').any(|part| part == "..")
}

fn is_variable(name: &str) -> bool {
    let is_known = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !name.starts_with(|c: char| c.is_ascii_digit()) && name.chars().all(is_known)
}

impl ClaimPath {
    pub(super) fn resolve(field: &str, uri: &str, errors: &mut Refusals) -> Option<Self> {
        let Some(rest) = uri.strip_prefix(SCHEME) else {
            errors.push(field, format!("{uri:?} is not of the form pvc://CLAIM/PATH"));
            return None;
        };
        let (claim, path) = rest.split_once('/').unwrap_or((rest, ""));
        if !dns_subdomain(claim) {
            errors.push(field, format!("{claim:?} is not the name of a PersistentVolumeClaim; write pvc://CLAIM/PATH"));
            return None;
        }
        let path: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
        if path.contains(&"..") {
            errors.push(field, "leaves the volume: write a path without ..");
            return None;
        }
        let path = (!path.is_empty()).then(|| path.join("/"));
        Some(Self { claim: claim.to_owned(), path })
    }
}
