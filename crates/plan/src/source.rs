//! Locations of models, datasets and results.

use super::{Refusals, dns_subdomain};

const SCHEME: &str = "pvc://";

/// A folder on a PersistentVolumeClaim: `pvc://CLAIM/PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimPath {
    /// Name of the claim.
    pub claim: String,
    /// Folder within the volume; `None` for the whole volume.
    pub path: Option<String>,
}

/// A model or a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A name that the program understands.
    Name(String),
    /// A folder that is mounted.
    Claim(ClaimPath),
}

impl Source {
    pub(super) fn resolve(field: &str, text: &str, no: &mut Refusals) -> Self {
        if text.starts_with(SCHEME) {
            return match ClaimPath::resolve(field, text, no) {
                Some(claim) => Self::Claim(claim),
                None => Self::Name(text.to_owned()),
            };
        }
        if let Some((scheme, _)) = text.split_once("://") {
            no.push(
                field,
                format!("can't fetch {scheme}://: write pvc://CLAIM/PATH, or a name that the program itself loads"),
            );
        }
        Self::Name(text.to_owned())
    }

    /// The folder, if the source is one.
    #[must_use]
    pub fn claim(&self) -> Option<&ClaimPath> {
        match self {
            Self::Name(_) => None,
            Self::Claim(claim) => Some(claim),
        }
    }

    /// Value of the program's variable: the name, or the path at which the folder is mounted.
    #[must_use]
    pub fn value<'a>(&'a self, mounted_at: &'a str) -> &'a str {
        match self {
            Self::Name(name) => name,
            Self::Claim(_) => mounted_at,
        }
    }
}

impl ClaimPath {
    pub(super) fn resolve(field: &str, uri: &str, no: &mut Refusals) -> Option<Self> {
        let Some(rest) = uri.strip_prefix(SCHEME) else {
            no.push(field, format!("{uri:?} is not of the form pvc://CLAIM/PATH"));
            return None;
        };
        let (claim, path) = rest.split_once('/').unwrap_or((rest, ""));
        if !dns_subdomain(claim) {
            no.push(field, format!("{claim:?} is not the name of a PersistentVolumeClaim; write pvc://CLAIM/PATH"));
            return None;
        }
        let path: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
        if path.contains(&"..") {
            no.push(field, "leaves the volume: write a path without ..");
            return None;
        }
        let path = (!path.is_empty()).then(|| path.join("/"));
        Some(Self { claim: claim.to_owned(), path })
    }
}
