//! The Hugging Face hub: revisions, lists of files, and the files.

use crate::error::FetchError;
use crate::listing::{Check, Item};
use crate::network::{Network, Retries, refusal};
use crate::web_file::{RangeAnswer, RangeRequest, Version, open};
use address::{ContentKind, HubAddress};
use http::header::{HeaderMap, HeaderValue, LINK};
use reqwest::Url;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::ops::Range;
use text::one_line;

/// The endpoint without `HF_ENDPOINT`.
pub(crate) const ENDPOINT: &str = "https://huggingface.co";
/// The longest answer of the API, in bytes: a page has a thousand files.
const LONGEST: usize = 8 * 1024 * 1024;
/// Maximum number of files in a list.
const MOST_FILES: usize = 3_000_000;
/// Pages that may have any number of files, or none.
const SMALL_PAGES: usize = 1000;
/// Files that each further page has at least, on average.
const FILES_OF_PAGE: usize = 50;

/// A repository of a hub.
pub(crate) struct Hub {
    pub network: Network,
    pub endpoint: Url,
    /// `Bearer TOKEN`.
    pub token: Option<HeaderValue>,
    pub address: HubAddress,
    /// How people write it.
    pub uri: String,
}

#[derive(Deserialize)]
struct Revision {
    sha: String,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    oid: String,
    #[serde(default)]
    size: u64,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

type Result<T> = std::result::Result<T, FetchError>;

impl Hub {
    fn kind(&self) -> &'static str {
        if self.address.kind == ContentKind::Dataset { "datasets" } else { "models" }
    }

    /// The endpoint's URL of `parts`, each of which is one part of the path, whatever is in it.
    fn url(&self, parts: &[&str]) -> Result<Url> {
        let mut url = self.endpoint.clone();
        match url.path_segments_mut() {
            Ok(mut segments) => drop(segments.pop_if_empty().extend(parts)),
            Err(()) => {
                return Err(FetchError::refused(format!("{}: the endpoint is no https:// URL; correct it", self.uri)));
            }
        }
        Ok(url)
    }

    fn api(&self, parts: &[&str]) -> Result<Url> {
        let (namespace, name) = self.repository();
        self.url(&[&["api", self.kind(), namespace, name], parts].concat())
    }

    fn repository(&self) -> (&str, &str) {
        self.address.repository.split_once('/').unwrap_or((&self.address.repository, ""))
    }

    /// The commit that the address's revision names now: 40 hexadecimal digits. A commit is itself, without a request.
    pub async fn resolve(&self) -> Result<String> {
        let revision = &self.address.revision;
        if is_commit(revision) {
            return Ok(revision.clone());
        }
        let url = self.api(&["revision", revision])?;
        let (found, _): (Revision, _) = self.ask(&url, &self.uri).await?;
        if !is_commit(&found.sha) {
            let sha = one_line(&found.sha);
            return Err(FetchError::refused(format!(
                "{}: the hub names the commit {sha}, which is none; check HF_ENDPOINT",
                self.uri
            )));
        }
        Ok(found.sha)
    }

    /// The first page of the list at a commit.
    pub fn first_page(&self, commit: &str) -> Result<Url> {
        let mut url = self.api(&["tree", commit])?;
        url.set_query(Some("recursive=true"));
        Ok(url)
    }

    /// One page of the list: the files that are wanted of it, and the next page's URL.
    pub async fn page(&self, url: &Url) -> Result<(Vec<Item>, Option<Url>)> {
        let (entries, next): (Vec<Entry>, _) = self.ask(url, &self.uri).await?;
        let mut items = Vec::with_capacity(entries.len());
        for entry in entries.into_iter().filter(|entry| entry.kind == "file") {
            let Some(path) = self.below(&entry.path) else { continue };
            let (check, size) = match entry.lfs {
                Some(lfs) => (Check::Sha256(lfs.oid), lfs.size),
                None => (Check::GitBlob(entry.oid), entry.size),
            };
            items.push(Item { path, key: entry.path, size, check });
        }
        Ok((items, next))
    }

    /// Where a file of the repository goes. `None` if the address names another file or folder.
    fn below(&self, path: &str) -> Option<String> {
        let wanted = self.address.path.as_str();
        if wanted.is_empty() {
            return Some(path.to_owned());
        }
        if path == wanted {
            return path.rsplit('/').next().map(str::to_owned);
        }
        path.strip_prefix(wanted)?.strip_prefix('/').map(str::to_owned)
    }

    /// Sends a request to the API, and retries after temporary failures.
    async fn ask<T: DeserializeOwned>(&self, url: &Url, name: &str) -> Result<(T, Option<Url>)> {
        let mut tries = Retries::new(self.network.patience);
        loop {
            match self.ask_once(url, name).await {
                Ok(answer) => return Ok(answer),
                Err(error) => tries.wait(error, false).await?,
            }
        }
    }

    async fn ask_once<T: DeserializeOwned>(&self, url: &Url, name: &str) -> Result<(T, Option<Url>)> {
        let answer = self.network.get(url, &HeaderMap::new(), self.token.as_ref()).await?;
        let headers = answer.response.headers();
        let status = answer.response.status().as_u16();
        if status != 200 {
            return Err(self.refused(name, status, headers));
        }
        // Another host would be sent what only this one may ask for.
        let next = next_page(headers).and_then(|link| url.join(&link).ok());
        if next.as_ref().is_some_and(|next| next.origin() != url.origin()) {
            return Err(FetchError::refused(format!("{name}: the list goes on at another host; check HF_ENDPOINT")));
        }
        let bytes = self.network.read(answer, LONGEST).await?;
        let parsed = serde_json::from_slice(&bytes).map_err(|error| {
            FetchError::refused(format!(
                "{name}: the hub's answer is not what its API gives ({error}); check HF_ENDPOINT"
            ))
        })?;
        Ok((parsed, next))
    }

    /// A range of a file at a commit.
    pub async fn open(
        &self,
        commit: &str,
        item: &Item,
        range: Range<u64>,
        version: Option<Version>,
    ) -> Result<(RangeAnswer<'static>, Option<Version>)> {
        let (namespace, repository) = self.repository();
        let kind: &[&str] = if self.address.kind == ContentKind::Dataset { &["datasets"] } else { &[] };
        let path: Vec<&str> = item.key.split('/').collect();
        let url = self.url(&[kind, &[namespace, repository, "resolve", commit], &path].concat())?;
        let name = format!("{} ({})", self.uri, one_line(&item.key));
        let refused = |status, headers: &HeaderMap| self.refused(&name, status, headers);
        let token = self.token.as_ref();
        let asked = RangeRequest { name: &name, url: &url, token, size: item.size, range, version, refused: &refused };
        open(&self.network, asked).await
    }

    /// The failure that a status means. The hub gives the cause in a header.
    fn refused(&self, name: &str, status: u16, headers: &HeaderMap) -> FetchError {
        let code = headers.get("x-error-code").and_then(|code| code.to_str().ok()).unwrap_or_default();
        let (namespace, repository) = self.repository();
        let kind = if self.address.kind == ContentKind::Dataset { "datasets/" } else { "" };
        let page = format!("{}/{kind}{namespace}/{repository}", self.endpoint.as_str().trim_end_matches('/'));
        let remedy = match (status, code, self.token.is_some()) {
            (_, "RevisionNotFound", _) => {
                let revision = one_line(&self.address.revision);
                format!("it has no revision {revision}; check the branch, tag or commit")
            }
            (_, "EntryNotFound", _) => "the file is not in this revision; check the path".to_owned(),
            (401 | 403, "GatedRepo", false) => format!(
                "its licence has to be accepted; accept it at {page}, and put a token of that account into the \
                 credentials Secret as HF_TOKEN"
            ),
            (401 | 403, _, true) => {
                format!("the account of HF_TOKEN may not read it; accept the licence at {page}, or use another token")
            }
            (401 | 403, _, false) => format!(
                "it does not exist, is private or is gated, and there is no HF_TOKEN; check {page}, and put a token \
                 into the credentials Secret as HF_TOKEN"
            ),
            (404, _, _) => format!("the hub has no {page}, or hides it; check the name, the revision and HF_TOKEN"),
            _ => String::new(),
        };
        refusal(name, status, headers, &remedy)
    }
}

/// Whether a revision is a commit, which never moves.
pub(crate) fn is_commit(revision: &str) -> bool {
    crate::names::from_hex::<20>(revision).is_some()
}

/// The URL of `Link: <URL>; rel="next"`.
fn next_page(headers: &HeaderMap) -> Option<String> {
    headers.get_all(LINK).iter().filter_map(|value| value.to_str().ok()).flat_map(|text| text.split(", ")).find_map(
        |link| {
            let (url, parameters) = link.trim().strip_prefix('<')?.split_once('>')?;
            let is_next = parameters.split(';').any(|part| matches!(part.trim(), "rel=\"next\"" | "rel=next"));
            is_next.then(|| url.to_owned())
        },
    )
}

/// Bounds a list: its files and its pages, which are of many files unless the server makes them up.
pub(crate) fn check_pages(uri: &str, pages: usize, files: usize) -> Result<()> {
    if files > MOST_FILES {
        return Err(FetchError::refused(format!(
            "{uri}: the list has more than {MOST_FILES} files; name a prefix or path with fewer, or pack them into archives"
        )));
    }
    if pages < SMALL_PAGES + files / FILES_OF_PAGE {
        return Ok(());
    }
    Err(FetchError::refused(format!(
        "{uri}: the list has no end after {pages} pages with {files} files; check the endpoint"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endless_file_lists_are_rejected() {
        assert!(check_pages("x", 999, 0).is_ok());
        assert!(check_pages("x", 1000, 0).unwrap_err().to_string().contains("no end after 1000 pages with 0 files"));
        assert!(check_pages("x", 20_999, 1_000_000).is_ok());
        let error = check_pages("x", 4001, 3_000_001).unwrap_err();
        assert!(error.is_final() && error.to_string().contains("more than 3000000 files"), "{error}");
    }

    #[test]
    fn next_page_is_read_from_the_link_header() {
        let next = |value: &'static str| next_page(&HeaderMap::from_iter([(LINK, HeaderValue::from_static(value))]));
        assert_eq!(next("<https://h/api?cursor=a%3D,b>; rel=\"next\"").unwrap(), "https://h/api?cursor=a%3D,b");
        assert_eq!(next("</a>; rel=\"prev\", </b>; rel=\"next\"").unwrap(), "/b");
        assert_eq!(next("</a>; rel=\"prev\""), None);
        assert_eq!(next("nothing"), None);
    }
}
