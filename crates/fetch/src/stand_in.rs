//! Servers of tests, on loopback: a hub, object stores, the web; and what they do wrong.

use crate::names::hex;
use parking_lot::Mutex;
use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// What was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub method: String,
    pub path: String,
    pub query: String,
    pub headers: BTreeMap<String, String>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// `Range: bytes=START-LAST`, as start and end.
    pub fn range(&self, size: usize) -> Option<(usize, usize)> {
        let (start, last) = self.header("range")?.strip_prefix("bytes=")?.split_once('-')?;
        let end = last.parse::<usize>().map_or(size, |last| last + 1);
        Some((start.parse().ok()?, end.min(size)))
    }
}

/// Writes whatever bytes.
type Raw = Box<dyn FnOnce(&mut TcpStream) + Send>;

/// What is answered.
pub(crate) struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// The connection is closed after as many bytes of the body.
    pub cut: Option<usize>,
    /// Instead of all that.
    pub raw: Option<Raw>,
}

impl Reply {
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, headers: Vec::new(), body: body.into(), cut: None, raw: None }
    }

    pub fn raw(write: impl FnOnce(&mut TcpStream) + Send + 'static) -> Self {
        Self { raw: Some(Box::new(write)), ..Self::new(0, "") }
    }

    pub fn with(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        self.headers.push((name.to_owned(), format!("{value}")));
        self
    }

    pub fn cut_after(self, bytes: usize) -> Self {
        Self { cut: Some(bytes), ..self }
    }
}

type Handler = Arc<dyn Fn(&Request) -> Reply + Send + Sync>;

/// A server. It is off once it is dropped.
pub(crate) struct Server {
    pub address: SocketAddr,
    asked: Arc<Mutex<Vec<Request>>>,
    /// Bytes of bodies.
    pub sent: Arc<AtomicU64>,
    handler: Arc<Mutex<Handler>>,
    is_over: Arc<AtomicBool>,
}

impl Server {
    pub fn new(handler: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self {
            address: listener.local_addr().unwrap(),
            asked: Arc::default(),
            sent: Arc::default(),
            handler: Arc::new(Mutex::new(Arc::new(handler))),
            is_over: Arc::default(),
        };
        let (asked, sent) = (Arc::clone(&server.asked), Arc::clone(&server.sent));
        let (handler, is_over) = (Arc::clone(&server.handler), Arc::clone(&server.is_over));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                let (asked, sent, handler) = (Arc::clone(&asked), Arc::clone(&sent), Arc::clone(&handler));
                thread::spawn(move || drop(serve(stream, &asked, &sent, &handler)));
            }
        });
        server
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn set(&self, handler: impl Fn(&Request) -> Reply + Send + Sync + 'static) {
        *self.handler.lock() = Arc::new(handler);
    }

    /// What was asked for since the last look.
    pub fn take(&self) -> Vec<Request> {
        std::mem::take(&mut self.asked.lock())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(self.address));
    }
}

/// Answers one request, and closes the connection.
fn serve(
    mut stream: TcpStream,
    asked: &Mutex<Vec<Request>>,
    sent: &AtomicU64,
    handler: &Mutex<Handler>,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut request =
        Request { method: method.to_owned(), path: path.to_owned(), query: query.to_owned(), headers: BTreeMap::new() };
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim().split_once(':') else { break };
        request.headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    asked.lock().push(request.clone());
    let handle = Arc::clone(&handler.lock());
    let reply = handle(&request);
    if let Some(raw) = reply.raw {
        raw(&mut stream);
        return Ok(());
    }
    let mut head = format!("HTTP/1.1 {} Status\r\nconnection: close\r\n", reply.status);
    if !reply.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-length")) {
        head.push_str(&format!("content-length: {}\r\n", reply.body.len()));
    }
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    if request.method != "HEAD" {
        for piece in reply.body[..reply.cut.unwrap_or(reply.body.len())].chunks(64 * 1024) {
            stream.write_all(piece)?;
            sent.fetch_add(piece.len() as u64, Ordering::Relaxed);
        }
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    // Until the client has all of it: a reset would take it away.
    let _ = reader.read(&mut [0]);
    Ok(())
}

/// A file by the rules of HTTP: Range, If-Range and If-Match.
pub(crate) fn file(request: &Request, content: &[u8], tag: &str) -> Reply {
    if request.header("if-match").is_some_and(|wanted| wanted != tag) {
        return Reply::new(412, "");
    }
    let is_same = request.header("if-range").is_none_or(|wanted| wanted == tag);
    let range = request.range(content.len()).filter(|_| is_same);
    let reply = match range {
        Some((start, end)) if start < end => Reply::new(206, &content[start..end])
            .with("content-range", format!("bytes {start}-{}/{}", end - 1, content.len())),
        Some(_) => Reply::new(416, "").with("content-range", format!("bytes */{}", content.len())),
        None => Reply::new(200, content),
    };
    reply.with("etag", tag).with("accept-ranges", "bytes").with("last-modified", "Wed, 21 Oct 2026 07:28:00 GMT")
}

/// Bytes that look like no others and are always the same.
pub(crate) fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

pub(crate) fn sha256(content: &[u8]) -> String {
    hex(&Sha256::digest(content))
}

fn git_sha1(content: &[u8]) -> String {
    hex(&Sha1::new().chain_update(format!("blob {}\0", content.len())).chain_update(content).finalize())
}

/// One repository of a hub. Files of this length and more are in LFS, and are redirected to.
pub(crate) const LFS: usize = 10_000;

#[derive(Clone)]
pub(crate) struct Repository {
    /// `a/b`.
    pub name: String,
    pub commit: String,
    pub files: BTreeMap<String, Vec<u8>>,
    /// Where large files are: at the hub itself without it.
    pub cdn: String,
    /// Files of a page.
    pub page: usize,
    pub is_gated: bool,
}

impl Repository {
    pub fn new(files: &[(&str, Vec<u8>)]) -> Self {
        let files: BTreeMap<String, Vec<u8>> =
            files.iter().map(|(path, content)| ((*path).to_owned(), content.clone())).collect();
        let mut hash = Sha1::new();
        files.iter().for_each(|(path, content)| {
            hash.update(path.as_bytes().iter().chain(content).copied().collect::<Vec<_>>());
        });
        let commit = hex(&hash.finalize());
        Self { name: "a/b".to_owned(), commit, files, cdn: String::new(), page: 2, is_gated: false }
    }

    /// As the hub's API and its files answer.
    pub fn answer(&self, request: &Request) -> Reply {
        let json =
            |value: serde_json::Value| Reply::new(200, value.to_string()).with("content-type", "application/json");
        let path = request.path.as_str();
        let missing = |code: &str| Reply::new(404, "{}").with("x-error-code", code);
        if let Some(sha) = path.strip_prefix("/cdn/") {
            let content = self.files.values().find(|content| sha256(content) == sha);
            return content.map_or_else(|| Reply::new(404, ""), |content| file(request, content, "\"cdn\""));
        }
        let may_read = !self.is_gated || request.header("authorization").is_some();
        let gated = || {
            let reply = Reply::new(403, "{}").with("x-error-code", "GatedRepo");
            reply.with("x-error-message", "Access to model a/b is restricted.")
        };
        if let Some(rest) = path.strip_prefix(&format!("/api/models/{}", self.name)) {
            if rest == "/revision/main" || rest == format!("/revision/{}", self.commit) || rest.is_empty() {
                let siblings: Vec<_> = self.files.keys().map(|path| serde_json::json!({"rfilename": path})).collect();
                return json(serde_json::json!({
                    "_id": "1", "id": self.name, "modelId": self.name, "sha": self.commit, "siblings": siblings,
                    "private": false, "disabled": false, "gated": self.is_gated,
                    "downloads": 0, "likes": 0, "tags": [], "usedStorage": 0,
                }));
            }
            if rest.starts_with("/revision/") {
                return missing("RevisionNotFound");
            }
            if rest == format!("/tree/{}", self.commit) || rest == "/tree/main" {
                if !may_read {
                    return gated();
                }
                let from: usize =
                    request.query.split('&').find_map(|part| part.strip_prefix("cursor=")?.parse().ok()).unwrap_or(0);
                let mut entries: Vec<_> = self.files.iter().map(|(path, content)| Self::entry(path, content)).collect();
                entries.insert(0, serde_json::json!({"type": "directory", "oid": "0", "size": 0, "path": "folder"}));
                let reply = json(entries.iter().skip(from).take(self.page).cloned().collect());
                let (next, host) = (from + self.page, request.header("host").unwrap_or_default());
                return match next < entries.len() {
                    true => {
                        reply.with("link", format!("<http://{host}{path}?recursive=true&cursor={next}>; rel=\"next\""))
                    }
                    false => reply,
                };
            }
            return missing("RepoNotFound");
        }
        for revision in ["main", &self.commit] {
            if let Some(name) = path.strip_prefix(&format!("/{}/resolve/{revision}/", self.name)) {
                if !may_read {
                    return gated();
                }
                return self.resolve(request, name);
            }
        }
        match path.starts_with(&format!("/{}/resolve/", self.name)) {
            true => missing("RevisionNotFound"),
            false => Reply::new(401, "{}").with("x-error-code", "RepoNotFound"),
        }
    }

    fn entry(path: &str, content: &[u8]) -> serde_json::Value {
        let size = content.len();
        match size >= LFS {
            true => serde_json::json!({"type": "file", "oid": git_sha1(b"pointer"), "size": size, "path": path,
                "lfs": {"oid": sha256(content), "size": size, "pointerSize": 134}}),
            false => serde_json::json!({"type": "file", "oid": git_sha1(content), "size": size, "path": path}),
        }
    }

    fn resolve(&self, request: &Request, name: &str) -> Reply {
        let name = name.replace("%20", " ");
        let Some(content) = self.files.get(&name) else {
            return Reply::new(404, "").with("x-error-code", "EntryNotFound");
        };
        let commit = |reply: Reply| reply.with("x-repo-commit", &self.commit);
        if content.len() < LFS {
            return commit(file(request, content, &format!("\"{}\"", git_sha1(content))));
        }
        let sha = sha256(content);
        // The hub's own clients take a redirect to a path for a renamed repository.
        let host = request.header("host").unwrap_or_default();
        let cdn = if self.cdn.is_empty() { format!("http://{host}") } else { self.cdn.clone() };
        commit(Reply::new(302, "redirected"))
            .with("location", format!("{cdn}/cdn/{sha}?signature=secret"))
            .with("x-linked-etag", format!("\"{sha}\""))
            .with("x-linked-size", content.len())
            .with("etag", format!("\"{sha}\""))
    }
}

/// A bucket `bucket` of S3, by path.
pub(crate) fn s3(request: &Request, objects: &BTreeMap<String, Vec<u8>>, page: usize) -> Reply {
    let decode = |text: &str| text.replace("%2F", "/").replace("%20", " ").replace("%3D", "=");
    let parameters: BTreeMap<&str, String> = request
        .query
        .split('&')
        .filter_map(|part| part.split_once('='))
        .map(|(name, value)| (name, decode(value)))
        .collect();
    let key = request.path.strip_prefix("/bucket").unwrap_or_default().trim_start_matches('/');
    if key.is_empty() && parameters.contains_key("list-type") {
        let prefix = parameters.get("prefix").map_or("", String::as_str);
        let after = parameters.get("continuation-token").map_or("", String::as_str);
        let mut found = objects.iter().filter(|(key, _)| key.starts_with(prefix) && key.as_str() > after);
        let mut listed = String::new();
        let mut last = None;
        for (key, content) in found.by_ref().take(page) {
            let (size, tag) = (content.len(), tag(content));
            listed.push_str(&format!(
                "<Contents><Key>{key}</Key><Size>{size}</Size><ETag>&quot;{tag}&quot;</ETag>\
                 <LastModified>2026-10-21T07:28:00.000Z</LastModified></Contents>"
            ));
            last = Some(key);
        }
        let next = match found.next().and(last) {
            Some(key) => format!("<NextContinuationToken>{key}</NextContinuationToken><IsTruncated>true</IsTruncated>"),
            None => "<IsTruncated>false</IsTruncated>".to_owned(),
        };
        return Reply::new(200, format!("<ListBucketResult>{listed}{next}</ListBucketResult>"));
    }
    match objects.get(&decode(key)) {
        Some(content) => file(request, content, &format!("\"{}\"", tag(content))),
        None => Reply::new(404, "<Error><Code>NoSuchKey</Code></Error>"),
    }
}

fn tag(content: &[u8]) -> String {
    sha256(content)[..16].to_owned()
}
