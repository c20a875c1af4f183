//! Publishing into a repository of the Hugging Face hub: one commit with all files and the record.
//!
//! Large files go to the hub's file storage before the commit, by the protocol of git-lfs. What is there is known by its
//! SHA-256 and is not sent again, so that an interrupted publication is resumed by file. A commit names the commit that
//! it follows, and the hub refuses it if the branch has another one meanwhile.

use crate::content::{Content, Item};
use crate::error::{PublishError, PublishErrorKind};
use crate::ledger::Ledger;
use crate::network::{Answer, Ask, Network, Payload, Retries, refusal};
use crate::progress::{Progress, Stage};
use crate::read::{range, sha256};
use crate::record;
use crate::{Published, blocking};
use address::{ContentKind, HubAddress, key};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use http::Method;
use http::header::{ACCEPT, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, LINK};
use protocol::result::{LONGEST_RECORD, Origin, RECORD_NAME, RecordFile, ResultRecord};
use reqwest::Url;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, HashSet};
use text::one_line;

/// The longest answer of the API, in bytes.
const LONGEST_ANSWER: usize = 16 * 1024 * 1024;
/// The most pages of the list of files.
const PAGES: usize = 10_000;
/// Files that the hub is asked about at a time.
const BATCH: usize = 256;
/// Files at a time.
const FILES: usize = 4;
/// Parts of one file at a time.
const PARTS: usize = 4;
/// The beginning of a file by which the hub judges whether it is text, in bytes.
const SAMPLE: u64 = 512;
/// How often a commit is tried on a branch that others change.
const ROUNDS: usize = 3;
/// The media type of git-lfs.
const LFS: HeaderValue = HeaderValue::from_static("application/vnd.git-lfs+json");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// A branch of a repository in which a result is published.
pub(crate) struct Hub<'a> {
    pub network: Network,
    pub endpoint: Url,
    /// `Bearer TOKEN`.
    pub token: HeaderValue,
    pub address: HubAddress,
    /// How people write it.
    pub uri: String,
    pub name: &'a str,
    pub origin: &'a Origin,
    pub content: Content,
    pub ledger: Ledger,
    pub progress: &'a Progress,
}

#[derive(Deserialize)]
struct Revision {
    sha: String,
}

/// A file of the branch: its length, and the SHA-256 of a large one.
struct BranchFile {
    size: u64,
    sha256: Option<String>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    lfs: Option<Pointer>,
}

#[derive(Deserialize)]
struct Pointer {
    oid: String,
    size: u64,
}

#[derive(Deserialize)]
struct Preupload {
    files: Vec<Mode>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mode {
    path: String,
    upload_mode: String,
}

#[derive(Deserialize)]
struct Batch {
    objects: Vec<Object>,
}

#[derive(Deserialize)]
struct Object {
    oid: String,
    actions: Option<Actions>,
    error: Option<ObjectError>,
}

#[derive(Deserialize)]
struct ObjectError {
    #[serde(default)]
    message: String,
}

#[derive(Deserialize)]
struct Actions {
    upload: Option<Action>,
    verify: Option<Action>,
}

#[derive(Deserialize)]
struct Action {
    href: String,
    #[serde(default)]
    header: Option<BTreeMap<String, Value>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Commit {
    commit_oid: String,
}

/// A piece of the commit's body.
enum BodyPiece {
    Text(Bytes),
    /// A file's content as base64.
    Content(Box<Item>),
}

type Result<T> = std::result::Result<T, PublishError>;

impl Hub<'_> {
    /// Sends what is not there yet, and commits all.
    pub async fn publish(&self) -> Result<Published> {
        let mut round = 1;
        loop {
            match self.publish_once().await {
                Err(error) if error.kind == PublishErrorKind::Changed && round < ROUNDS => round += 1,
                other => {
                    if other.is_ok() {
                        self.ledger.remove();
                    }
                    return other;
                }
            }
        }
    }

    async fn publish_once(&self) -> Result<Published> {
        self.progress.enter(Stage::Listing);
        let content = self.content.clone();
        let items = blocking(move || content.list()).await?;
        let head = self.head().await?;
        let old = self.old_record(&head).await?;
        let found = self.tree(&head).await?;
        let files = self.hash(&items).await?;
        let mut record = record::new(self.uri.clone(), self.name, self.origin, files);
        if let Some(old) = old.as_ref().filter(|old| old.name == self.name) {
            if old.digest != record.digest {
                let digest = one_line(&old.digest);
                return Err(PublishError::refused(format!(
                    "{}: it has another result of the same name since {} (digest {digest}); publish under another \
                     name, or on another branch",
                    self.uri, old.published
                )));
            }
            self.verify(old, &found)?;
            let record = ResultRecord { revision: Some(head), ..old.clone() };
            return Ok(Published { record, sent: 0, was_published: true });
        }
        let large = self.large(&items).await?;
        self.progress.begin(Stage::Sending, items.iter().map(|item| item.stamp.size).sum(), items.len() as u64);
        self.send_large(&items, &record.files, &large).await?;
        self.progress.enter(Stage::Recording);
        // Files of an older result that this one does not replace.
        let own: HashSet<&str> = record.files.iter().map(|file| file.path.as_str()).collect();
        let deleted: Vec<&str> = old
            .iter()
            .flat_map(|old| old.files.iter().map(|file| file.path.as_str()))
            .filter(|path| found.contains_key(*path) && !own.contains(path))
            .collect();
        let pieces = self.pieces(&head, &record, &items, &large, &deleted)?;
        let content = self.content.clone();
        if blocking(move || content.list()).await? != items {
            return Err(PublishError::new(
                PublishErrorKind::Changed,
                format!("{}: the files changed while they were sent; stop the program that writes them", self.uri),
            ));
        }
        let commit = self.commit(pieces).await?;
        record.revision = Some(commit);
        Ok(Published { record, sent: self.progress.now().sent, was_published: false })
    }

    fn kind(&self) -> &'static str {
        if self.address.kind == ContentKind::Dataset { "datasets" } else { "models" }
    }

    fn repository(&self) -> (&str, &str) {
        self.address.repository.split_once('/').unwrap_or((&self.address.repository, ""))
    }

    /// The endpoint's URL of `parts`, each of which is one part of the path, whatever is in it.
    fn url(&self, parts: &[&str]) -> Result<Url> {
        let mut url = self.endpoint.clone();
        match url.path_segments_mut() {
            Ok(mut segments) => drop(segments.pop_if_empty().extend(parts)),
            Err(()) => {
                return Err(PublishError::refused(format!(
                    "{}: the endpoint is no https:// URL; correct it",
                    self.uri
                )));
            }
        }
        Ok(url)
    }

    fn api(&self, parts: &[&str]) -> Result<Url> {
        let (namespace, name) = self.repository();
        self.url(&[&["api", self.kind(), namespace, name], parts].concat())
    }

    /// `kind` of the path of a repository that is no API.
    fn prefix(&self) -> &'static [&'static str] {
        if self.address.kind == ContentKind::Dataset { &["datasets"] } else { &[] }
    }

    /// Sends a request to the API, and retries after temporary failures.
    async fn ask(&self, method: Method, url: &Url, body: Option<&Value>, media: &HeaderValue) -> Result<Answer> {
        let mut tries = Retries::new(self.network.patience);
        loop {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, media.clone());
            headers.insert(CONTENT_TYPE, media.clone());
            let payload = body.map_or(Payload::Empty, |body| Payload::Whole(body.to_string().into()));
            let token = Some(&self.token);
            let (limit, is_slow) = (LONGEST_ANSWER, false);
            let ask = Ask { method: method.clone(), url, headers, token, payload, is_slow, limit };
            let failure = match self.network.send(ask).await {
                Ok(answer) if is_temporary(answer.status) => self.refused(&self.uri, &answer),
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            tries.wait(failure).await?;
        }
    }

    async fn get(&self, url: &Url, limit: usize) -> Result<Answer> {
        let mut tries = Retries::new(self.network.patience);
        loop {
            let failure = match self.network.get(url, Some(&self.token), limit).await {
                Ok(answer) if is_temporary(answer.status) => self.refused(&self.uri, &answer),
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            tries.wait(failure).await?;
        }
    }

    fn parse<T: DeserializeOwned>(&self, answer: &Answer) -> Result<T> {
        if !(200..300).contains(&answer.status) {
            return Err(self.refused(&self.uri, answer));
        }
        serde_json::from_slice(&answer.body).map_err(|error| {
            let uri = &self.uri;
            PublishError::refused(format!(
                "{uri}: the hub's answer is not what its API gives ({error}); check HF_ENDPOINT"
            ))
        })
    }

    /// What a status means.
    fn refused(&self, what: &str, answer: &Answer) -> PublishError {
        let header = |name: &str| answer.headers.get(name).and_then(|value| value.to_str().ok());
        let body = serde_json::from_slice::<Value>(&answer.body).ok();
        let said = body.as_ref().and_then(|body| body.get("error").or_else(|| body.get("message"))?.as_str());
        let detail = header("x-error-message").or(said).unwrap_or_default();
        let (namespace, _) = self.repository();
        let remedy = match answer.status {
            401 => {
                "HF_TOKEN is not valid; put a token with the permission to write into the credentials Secret".to_owned()
            }
            403 => format!(
                "the account of HF_TOKEN may not write there; use a token with the permission to write to the \
                 repositories of {namespace}"
            ),
            _ => format!("check that {namespace} exists, and that the account of HF_TOKEN is in it"),
        };
        refusal(what, answer, detail, &remedy)
    }

    /// The commit that the branch has. The repository and the branch are made if they are missing.
    async fn head(&self) -> Result<String> {
        let branch = self.address.revision.as_str();
        let mut answer = self.get(&self.api(&["revision", branch])?, LONGEST_ANSWER).await?;
        if answer.status == 404 && !is_code(&answer, "RevisionNotFound") {
            self.make_repository().await?;
            answer = self.get(&self.api(&["revision", branch])?, LONGEST_ANSWER).await?;
        }
        if answer.status == 404 && is_code(&answer, "RevisionNotFound") {
            let made = self.ask(Method::POST, &self.api(&["branch", branch])?, Some(&json!({})), &JSON).await?;
            // Another client made it meanwhile.
            if made.status != 409 && !(200..300).contains(&made.status) {
                return Err(self.refused(&self.uri, &made));
            }
            answer = self.get(&self.api(&["revision", branch])?, LONGEST_ANSWER).await?;
        }
        let Revision { sha } = self.parse(&answer)?;
        if key::is_hex(&sha, 40) {
            return Ok(sha);
        }
        let sha = one_line(&sha);
        Err(PublishError::refused(format!(
            "{}: the hub names the commit {sha}, which is none; check HF_ENDPOINT",
            self.uri
        )))
    }

    async fn make_repository(&self) -> Result<()> {
        let (namespace, name) = self.repository();
        let kind = if self.address.kind == ContentKind::Dataset { "dataset" } else { "model" };
        let body = json!({"name": name, "organization": namespace, "type": kind, "private": true});
        let made = self.ask(Method::POST, &self.url(&["api", "repos", "create"])?, Some(&body), &JSON).await?;
        match made.status {
            // Another client made it meanwhile.
            200..=299 | 409 => Ok(()),
            _ => Err(self.refused(&self.uri, &made)),
        }
    }

    /// The record that the branch has.
    async fn old_record(&self, head: &str) -> Result<Option<ResultRecord>> {
        let (namespace, name) = self.repository();
        let url = self.url(&[self.prefix(), &[namespace, name, "resolve", head, RECORD_NAME]].concat())?;
        let answer = self.get(&url, LONGEST_RECORD as usize).await?;
        match answer.status {
            200 => record::parse(&format!("{}/{RECORD_NAME}", self.uri), &answer.body).map(Some),
            404 => Ok(None),
            _ => Err(self.refused(&self.uri, &answer)),
        }
    }

    /// The files of a commit, by path.
    async fn tree(&self, head: &str) -> Result<HashMap<String, BranchFile>> {
        let mut url = self.api(&["tree", head])?;
        url.set_query(Some("recursive=true"));
        let mut found = HashMap::new();
        for _ in 0..PAGES {
            let answer = self.get(&url, LONGEST_ANSWER).await?;
            // A branch without a file.
            if answer.status == 404 && is_code(&answer, "EntryNotFound") {
                return Ok(found);
            }
            let entries: Vec<Entry> = self.parse(&answer)?;
            for entry in entries.into_iter().filter(|entry| entry.kind == "file") {
                let file = match entry.lfs {
                    Some(lfs) => BranchFile { size: lfs.size, sha256: Some(lfs.oid) },
                    None => BranchFile { size: entry.size, sha256: None },
                };
                found.insert(entry.path, file);
            }
            let Some(next) = next_page(&answer.headers).and_then(|link| url.join(&link).ok()) else { return Ok(found) };
            if next.origin() != url.origin() {
                let uri = &self.uri;
                return Err(PublishError::refused(format!(
                    "{uri}: the list goes on at another host; check HF_ENDPOINT"
                )));
            }
            url = next;
        }
        Err(PublishError::refused(format!("{}: the list has no end after {PAGES} pages; check HF_ENDPOINT", self.uri)))
    }

    /// Whether the branch still has the files of a record.
    fn verify(&self, record: &ResultRecord, found: &HashMap<String, BranchFile>) -> Result<()> {
        self.progress.enter(Stage::Verifying);
        for file in &record.files {
            let is_same = |found: &BranchFile| {
                found.size == file.size && found.sha256.as_ref().is_none_or(|sha256| *sha256 == file.sha256)
            };
            if !found.get(&file.path).is_some_and(is_same) {
                let path = one_line(&file.path);
                return Err(PublishError::refused(format!(
                    "{}: the file {path} was changed since the result was published; publish on another branch",
                    self.uri
                )));
            }
        }
        Ok(())
    }

    async fn hash(&self, items: &[Item]) -> Result<Vec<RecordFile>> {
        self.progress.begin(Stage::Hashing, items.iter().map(|item| item.stamp.size).sum(), items.len() as u64);
        stream::iter(items)
            .map(|item| async move {
                let sha256 = match self.ledger.hash(item) {
                    Some(sha256) => {
                        self.progress.kept(item.stamp.size);
                        sha256
                    }
                    None => {
                        let sha256 = sha256(&self.content, item, self.progress).await?;
                        self.ledger.note_hash(item, &sha256)?;
                        sha256
                    }
                };
                self.progress.file();
                Ok(RecordFile { path: item.path.clone(), size: item.stamp.size, sha256 })
            })
            .buffered(FILES)
            .try_collect()
            .await
    }

    /// Which files the hub wants in its file storage, by their number.
    async fn large(&self, items: &[Item]) -> Result<Vec<bool>> {
        let url = self.api(&["preupload", &self.address.revision])?;
        let mut large = Vec::with_capacity(items.len());
        for items in items.chunks(BATCH) {
            let samples = stream::iter(items).map(|item| async move {
                let end = item.stamp.size.min(SAMPLE);
                let sample: Vec<Bytes> = range(self.content.clone(), item.clone(), 0..end).try_collect().await?;
                let sample = STANDARD.encode(sample.concat());
                Ok::<_, PublishError>(json!({"path": item.path, "sample": sample, "size": item.stamp.size}))
            });
            let files: Vec<Value> = samples.buffered(FILES).try_collect().await?;
            // An ignore file of the repository applies to its authors, and not to results.
            let body = json!({"files": files, "gitIgnore": ""});
            let modes: Preupload = self.parse(&self.ask(Method::POST, &url, Some(&body), &JSON).await?)?;
            let modes: HashMap<&str, &str> =
                modes.files.iter().map(|mode| (mode.path.as_str(), mode.upload_mode.as_str())).collect();
            for item in items {
                // The file storage has no empty files.
                large.push(match modes.get(item.path.as_str()) {
                    _ if item.stamp.size == 0 => false,
                    Some(&"lfs") => true,
                    Some(&"regular") => false,
                    _ => {
                        let path = one_line(&item.path);
                        return Err(PublishError::refused(format!(
                            "{}: the hub does not say how the file {path} is sent; check HF_ENDPOINT",
                            self.uri
                        )));
                    }
                });
            }
        }
        Ok(large)
    }

    /// Sends the large files that the hub does not have.
    async fn send_large(&self, items: &[Item], files: &[RecordFile], large: &[bool]) -> Result<()> {
        let all = || items.iter().zip(files).zip(large);
        for ((item, _), _) in all().filter(|(_, large)| !**large) {
            self.progress.kept(item.stamp.size);
            self.progress.file();
        }
        let wanted: Vec<(&Item, &RecordFile)> = all().filter(|(_, large)| **large).map(|(both, _)| both).collect();
        let (namespace, name) = self.repository();
        let repository = format!("{name}.git");
        let parts = [self.prefix(), &[namespace, &repository, "info", "lfs", "objects", "batch"]].concat();
        let url = self.url(&parts)?;
        for wanted in wanted.chunks(BATCH) {
            let objects: Vec<Value> =
                wanted.iter().map(|(_, file)| json!({"oid": file.sha256, "size": file.size})).collect();
            let body = json!({
                "operation": "upload", "transfers": ["basic", "multipart"], "objects": objects, "hash_algo": "sha256",
                "ref": {"name": self.address.revision},
            });
            let batch: Batch = self.parse(&self.ask(Method::POST, &url, Some(&body), &LFS).await?)?;
            let mut by_oid: HashMap<String, Object> =
                batch.objects.into_iter().map(|object| (object.oid.clone(), object)).collect();
            // Files of the same content are one object, which is sent once.
            let work: Vec<(&Item, &RecordFile, Option<Object>)> =
                wanted.iter().map(|(item, file)| (*item, *file, by_oid.remove(&file.sha256))).collect();
            stream::iter(work)
                .map(|(item, file, object)| self.send_object(item, file, object))
                .buffer_unordered(FILES)
                .try_collect::<()>()
                .await?;
        }
        Ok(())
    }

    async fn send_object(&self, item: &Item, file: &RecordFile, object: Option<Object>) -> Result<()> {
        let what = format!("{} ({})", self.uri, one_line(&item.path));
        if let Some(error) = object.as_ref().and_then(|object| object.error.as_ref()) {
            let why = one_line(&error.message);
            return Err(PublishError::refused(format!("{what}: the hub does not take the file: {why}; correct it")));
        }
        let actions = object.and_then(|object| object.actions);
        let Some(Actions { upload: Some(upload), verify }) = actions else {
            // The hub has it.
            self.progress.kept(item.stamp.size);
            self.progress.file();
            return Ok(());
        };
        let href = self.href(&upload.href)?;
        let header = upload.header.unwrap_or_default();
        let chunk = header.get("chunk_size").and_then(|size| size.as_u64().or_else(|| size.as_str()?.parse().ok()));
        match chunk {
            Some(chunk) if chunk > 0 => self.send_chunks(&what, item, file, &href, &header, chunk).await?,
            _ => drop(self.put(&what, item, &href, 0..item.stamp.size).await?),
        }
        if let Some(verify) = verify {
            let url = self.href(&verify.href)?;
            let body = json!({"oid": file.sha256, "size": file.size});
            let token = (url.origin() == self.endpoint.origin()).then_some(&self.token);
            self.post(&what, &url, token, &body, &JSON).await?;
        }
        self.progress.file();
        Ok(())
    }

    /// A URL that the hub names, which may be of another host.
    fn href(&self, href: &str) -> Result<Url> {
        let url = self.endpoint.join(href).map_err(|_| {
            PublishError::refused(format!("{}: the hub names no URL for a file; check HF_ENDPOINT", self.uri))
        })?;
        self.network.check_target(&self.endpoint, &url)?;
        Ok(url)
    }

    async fn send_chunks(
        &self,
        what: &str,
        item: &Item,
        file: &RecordFile,
        complete: &Url,
        header: &BTreeMap<String, Value>,
        chunk: u64,
    ) -> Result<()> {
        let number = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit()).then(|| name.parse::<u64>().ok())?;
        let mut urls = BTreeMap::new();
        for (name, href) in header {
            if let (Some(number), Some(href)) = (number(name), href.as_str()) {
                urls.insert(number, self.href(href)?);
            }
        }
        if urls.len() as u64 != item.stamp.size.div_ceil(chunk) {
            return Err(PublishError::refused(format!(
                "{what}: the hub names {} parts; check HF_ENDPOINT",
                urls.len()
            )));
        }
        let sent = stream::iter(urls.values().enumerate()).map(|(index, url)| async move {
            let start = index as u64 * chunk;
            let answer = self.put(what, item, url, start..(start + chunk).min(item.stamp.size)).await?;
            let tag = answer.headers.get(ETAG).and_then(|tag| tag.to_str().ok()).unwrap_or_default();
            if tag.is_empty() {
                return Err(PublishError::refused(format!(
                    "{what}: a part was stored without an ETag; check HF_ENDPOINT"
                )));
            }
            Ok(json!({"partNumber": index + 1, "etag": tag}))
        });
        let parts: Vec<Value> = sent.buffered(PARTS).try_collect().await?;
        // Its URL has a signature, as those of the parts.
        self.post(what, complete, None, &json!({"oid": file.sha256, "parts": parts}), &LFS).await
    }

    /// Sends a range of a file, and retries after temporary failures.
    async fn put(&self, what: &str, item: &Item, url: &Url, bytes: std::ops::Range<u64>) -> Result<Answer> {
        let mut tries = Retries::new(self.network.patience);
        let size = bytes.end - bytes.start;
        loop {
            let payload = Payload::Stream(size, range(self.content.clone(), item.clone(), bytes.clone()));
            let (limit, is_slow) = (LONGEST_ANSWER, false);
            let ask = Ask { method: Method::PUT, url, headers: HeaderMap::new(), token: None, payload, is_slow, limit };
            let failure = match self.network.send(ask).await {
                Ok(answer) if (200..300).contains(&answer.status) => {
                    self.progress.sent(size);
                    return Ok(answer);
                }
                // The URL is valid for some time only: the next try asks for another.
                Ok(answer) if answer.status == 403 => PublishError::unavailable(format!(
                    "{what}: HTTP 403: the file storage refuses the URL that the hub gave; try again"
                )),
                Ok(answer) => refusal(what, &answer, "", "try again later"),
                Err(error) => error,
            };
            tries.wait(failure).await?;
        }
    }

    async fn post(
        &self,
        what: &str,
        url: &Url,
        token: Option<&HeaderValue>,
        body: &Value,
        media: &HeaderValue,
    ) -> Result<()> {
        let mut tries = Retries::new(self.network.patience);
        loop {
            let headers = HeaderMap::from_iter([(ACCEPT, media.clone()), (CONTENT_TYPE, media.clone())]);
            let payload = Payload::Whole(body.to_string().into());
            let (limit, is_slow) = (LONGEST_ANSWER, true);
            let ask = Ask { method: Method::POST, url, headers, token, payload, is_slow, limit };
            let failure = match self.network.send(ask).await {
                Ok(answer) if (200..300).contains(&answer.status) => return Ok(()),
                Ok(answer) => self.refused(what, &answer),
                Err(error) => error,
            };
            tries.wait(failure).await?;
        }
    }

    /// The lines of the commit.
    fn pieces(
        &self,
        head: &str,
        record: &ResultRecord,
        items: &[Item],
        large: &[bool],
        deleted: &[&str],
    ) -> Result<Vec<BodyPiece>> {
        let line = |value: Value| BodyPiece::Text(format!("{value}\n").into());
        let summary = format!("Publish {}", self.name);
        let description = format!("{} files, {} bytes, digest {}", record.file_count, record.bytes, record.digest);
        let header = json!({"summary": summary, "description": description, "parentCommit": head});
        let mut pieces = vec![line(json!({"key": "header", "value": header}))];
        let mut file = |path: &str, content: BodyPiece| {
            pieces.push(BodyPiece::Text(Bytes::from_static(br#"{"key":"file","value":{"content":""#)));
            pieces.push(content);
            let rest = format!(r#"","path":{},"encoding":"base64"}}}}"#, Value::from(path));
            pieces.push(BodyPiece::Text(format!("{rest}\n").into()));
        };
        for (item, _) in items.iter().zip(large).filter(|(_, large)| !**large) {
            file(&item.path, BodyPiece::Content(Box::new(item.clone())));
        }
        // No commit contains its own hash.
        let json = ResultRecord { revision: None, ..record.clone() }.to_json();
        if json.len() as u64 > LONGEST_RECORD {
            let files = record.file_count;
            return Err(PublishError::refused(format!(
                "{}: its {files} files are too many for a record of {LONGEST_RECORD} bytes; pack them into archives",
                self.uri
            )));
        }
        file(RECORD_NAME, BodyPiece::Text(STANDARD.encode(json).into()));
        for ((item, file), _) in items.iter().zip(&record.files).zip(large).filter(|(_, large)| **large) {
            let value = json!({"path": item.path, "algo": "sha256", "oid": file.sha256, "size": file.size});
            pieces.push(line(json!({"key": "lfsFile", "value": value})));
        }
        pieces.extend(deleted.iter().map(|path| line(json!({"key": "deletedFile", "value": {"path": path}}))));
        Ok(pieces)
    }

    /// Commits, and returns the commit.
    async fn commit(&self, pieces: Vec<BodyPiece>) -> Result<String> {
        let url = self.api(&["commit", &self.address.revision])?;
        let length = pieces.iter().map(|piece| match piece {
            BodyPiece::Text(text) => text.len() as u64,
            BodyPiece::Content(item) => item.stamp.size.div_ceil(3) * 4,
        });
        let length = length.sum();
        let content = self.content.clone();
        let body: BoxStream<'static, Result<Bytes>> = stream::iter(pieces)
            .flat_map(move |piece| match piece {
                BodyPiece::Text(text) => stream::iter([Ok(text)]).boxed(),
                BodyPiece::Content(item) => {
                    let size = item.stamp.size;
                    let bytes = range(content.clone(), *item, 0..size);
                    bytes.map_ok(|bytes| Bytes::from(STANDARD.encode(bytes))).boxed()
                }
            })
            .boxed();
        let ndjson = HeaderValue::from_static("application/x-ndjson");
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, ndjson)]);
        let (token, payload) = (Some(&self.token), Payload::Stream(length, body));
        let (limit, is_slow) = (LONGEST_ANSWER, true);
        let ask = Ask { method: Method::POST, url: &url, headers, token, payload, is_slow, limit };
        let answer = match self.network.send(ask).await {
            // The commit may have been made, and its answer lost. The next round finds out.
            Ok(answer) if is_temporary(answer.status) => Err(self.refused(&self.uri, &answer)),
            Err(error) if error.kind == PublishErrorKind::Unavailable => Err(error),
            other => Ok(other),
        };
        let answer = match answer {
            Ok(answer) => answer?,
            Err(error) => {
                let pause = error.retry_after.unwrap_or(self.network.patience.back_off);
                tokio::time::sleep(pause.min(self.network.patience.longest_pause)).await;
                return Err(PublishError { kind: PublishErrorKind::Changed, ..error });
            }
        };
        let commit: Commit = self.parse(&answer)?;
        if key::is_hex(&commit.commit_oid, 40) {
            return Ok(commit.commit_oid);
        }
        let oid = one_line(&commit.commit_oid);
        Err(PublishError::refused(format!(
            "{}: the hub made the commit {oid}, which is none; check HF_ENDPOINT",
            self.uri
        )))
    }
}

fn is_temporary(status: u16) -> bool {
    matches!(status, 408 | 425 | 429 | 500 | 502..=504 | 520..=530)
}

fn is_code(answer: &Answer, code: &str) -> bool {
    answer.headers.get("x-error-code").is_some_and(|found| found == code)
}

/// The URL of `Link: <URL>; rel="next"`.
fn next_page(headers: &HeaderMap) -> Option<String> {
    let texts = headers.get_all(LINK).iter().filter_map(|value| value.to_str().ok());
    texts.flat_map(|text| text.split(", ")).find_map(|link| {
        let (url, parameters) = link.trim().strip_prefix('<')?.split_once('>')?;
        parameters.contains("rel=\"next\"").then(|| url.to_owned())
    })
}
