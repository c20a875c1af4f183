//! A server of tests, on loopback, and a hub that behaves as the real one does to a client that publishes.

use crate::record::hex;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use serde_json::{Value, json};
use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// A request with its body.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub method: String,
    pub path: String,
    pub query: String,
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Request {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    pub fn line(&self) -> String {
        format!("{} {}", self.method, self.path)
    }
}

/// What is answered.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// The connection is closed without an answer.
    pub is_lost: bool,
    /// Nothing is answered until the client closes the connection.
    pub is_silent: bool,
}

impl Reply {
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, headers: Vec::new(), body: body.into(), is_lost: false, is_silent: false }
    }

    pub fn json(value: &Value) -> Self {
        Self::new(200, value.to_string()).with("content-type", "application/json")
    }

    pub fn with(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        self.headers.push((name.to_owned(), value.to_string()));
        self
    }

    pub fn lost(self) -> Self {
        Self { is_lost: true, ..self }
    }

    pub fn silent() -> Self {
        Self { is_silent: true, ..Self::new(200, "") }
    }
}

type Handler = dyn Fn(&Request) -> Reply + Send + Sync;

/// A server. It is off once it is dropped.
pub(crate) struct Server {
    pub address: SocketAddr,
    asked: Arc<Mutex<Vec<Request>>>,
    is_over: Arc<AtomicBool>,
}

impl Server {
    pub fn new(handler: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self { address: listener.local_addr().unwrap(), asked: Arc::default(), is_over: Arc::default() };
        let (asked, is_over) = (Arc::clone(&server.asked), Arc::clone(&server.is_over));
        let handler: Arc<Handler> = Arc::new(handler);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                let (asked, handler) = (Arc::clone(&asked), Arc::clone(&handler));
                thread::spawn(move || drop(serve(stream, &asked, &*handler)));
            }
        });
        server
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
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
fn serve(mut stream: TcpStream, asked: &Mutex<Vec<Request>>, handler: &Handler) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next().unwrap_or_default().to_owned(), words.next().unwrap_or_default().to_owned());
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let mut headers = BTreeMap::new();
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    if headers.contains_key("expect") {
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    let mut body = Vec::new();
    match headers.get("content-length").and_then(|length| length.parse().ok()) {
        Some(length) => {
            body.resize(length, 0);
            reader.read_exact(&mut body)?;
        }
        None if headers.get("transfer-encoding").is_some_and(|encoding| encoding == "chunked") => {
            read_chunks(&mut reader, &mut body)?;
        }
        None => {}
    }
    let request = Request { method, path: path.to_owned(), query: query.to_owned(), headers, body };
    asked.lock().push(request.clone());
    let reply = handler(&request);
    if reply.is_silent {
        let _ = reader.read(&mut [0]);
        return Ok(());
    }
    if reply.is_lost {
        return Ok(());
    }
    let mut head =
        format!("HTTP/1.1 {} Status\r\nconnection: close\r\ncontent-length: {}\r\n", reply.status, reply.body.len());
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    if request.method != "HEAD" {
        stream.write_all(&reply.body)?;
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    // Until the client has all of it: a reset would take it away.
    let _ = reader.read(&mut [0]);
    Ok(())
}

fn read_chunks(reader: &mut impl BufRead, body: &mut Vec<u8>) -> std::io::Result<()> {
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let length = usize::from_str_radix(line.trim(), 16).map_err(std::io::Error::other)?;
        let start = body.len();
        body.resize(start + length, 0);
        reader.read_exact(&mut body[start..])?;
        reader.read_line(&mut line)?;
        if length == 0 {
            return Ok(());
        }
    }
}

pub(crate) const TOKEN: &str = "hf_right";
/// Files of this length and more go to the file storage, in bytes. The real hub decides by content and `.gitattributes`.
pub(crate) const LARGE: u64 = 10_000;
/// Objects of more bytes are sent in parts of this length.
pub(crate) const CHUNK: usize = 1 << 20;

/// A hub with one repository, which is not there at first.
#[derive(Default)]
pub(crate) struct Hub {
    pub name: String,
    pub is_private: bool,
    /// By branch: the commit.
    pub branches: BTreeMap<String, String>,
    /// By commit: path and content.
    pub commits: HashMap<String, BTreeMap<String, Vec<u8>>>,
    /// The file storage, by SHA-256.
    pub objects: HashMap<String, Vec<u8>>,
    parts: HashMap<(String, usize), Vec<u8>>,
    pub url: String,
}

impl Hub {
    pub fn files(&self, branch: &str) -> &BTreeMap<String, Vec<u8>> {
        &self.commits[&self.branches[branch]]
    }

    pub fn add(&mut self, branch: &str, files: BTreeMap<String, Vec<u8>>) -> String {
        let count = self.commits.len().to_string();
        let commit = hex(&Sha256::digest(&count)[..20]);
        self.commits.insert(commit.clone(), files);
        self.branches.insert(branch.to_owned(), commit.clone());
        commit
    }

    pub fn make(&mut self) {
        "team/digits".clone_into(&mut self.name);
        self.add("main", BTreeMap::from([(".gitattributes".to_owned(), b"*.safetensors filter=lfs".to_vec())]));
    }

    /// As the hub's API answers.
    #[allow(clippy::too_many_lines, reason = "a table of routes")]
    pub fn answer(&mut self, request: &Request) -> Reply {
        let fail = |status, code: &str, text: &str| {
            Reply::new(status, json!({"error": text}).to_string())
                .with("x-error-code", code)
                .with("x-error-message", text)
        };
        let parts: Vec<String> = request.path.trim_start_matches('/').split('/').map(decode).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        // What the file storage is sent has a signature instead of a token.
        if let ["storage", oid, number] = parts[..] {
            assert!(!request.headers.contains_key("authorization"), "the token went to the file storage");
            assert_eq!(request.query, "signature=secret");
            if number == "0" {
                return match hex(&Sha256::digest(&request.body)) == oid {
                    true => {
                        self.objects.insert(oid.to_owned(), request.body.clone());
                        Reply::new(200, "").with("etag", "\"whole\"")
                    }
                    false => Reply::new(400, "BadDigest"),
                };
            }
            self.parts.insert((oid.to_owned(), number.parse().unwrap()), request.body.clone());
            return Reply::new(200, "").with("etag", format!("\"part-{number}\""));
        }
        if let ["storage", oid] = parts[..] {
            return self.complete(oid, request);
        }
        if let ["stored", oid] = parts[..] {
            assert!(!request.headers.contains_key("authorization"), "the token went to the file storage");
            return Reply::new(200, self.objects[oid].clone());
        }
        match request.headers.get("authorization").map(String::as_str) {
            Some(token) if token == format!("Bearer {TOKEN}") => {}
            Some("Bearer hf_read") if matches!(request.method.as_str(), "GET" | "HEAD") => {}
            Some("Bearer hf_read") => return fail(403, "", "you must have write access"),
            _ => return fail(401, "", "Invalid credentials in Authorization header"),
        }
        if parts == ["api", "repos", "create"] {
            let body = request.json();
            let name = format!("{}/{}", body["organization"].as_str().unwrap(), body["name"].as_str().unwrap());
            if body["organization"] != "team" {
                return fail(403, "", "You don't have the rights to create a model under this namespace");
            }
            if self.name == name {
                let body =
                    json!({"error": "You already created this model repo", "url": format!("{}/{name}", self.url)});
                return Reply::new(409, body.to_string());
            }
            self.make();
            self.is_private = body["private"] == true;
            return Reply::json(&json!({"url": format!("{}/{name}", self.url), "name": name}));
        }
        let (kind, rest) = match parts[..] {
            ["api", "models", ref rest @ ..] => ("api", rest),
            ref rest => ("", rest),
        };
        let [namespace, name, rest @ ..] = rest else { return fail(404, "", "no such page") };
        if format!("{namespace}/{}", name.trim_end_matches(".git")) != self.name {
            return fail(404, "RepoNotFound", "Repository not found");
        }
        let commit = |hub: &Self, revision: &str| {
            if hub.commits.contains_key(revision) {
                Some(revision.to_owned())
            } else {
                hub.branches.get(revision).cloned()
            }
        };
        let no_revision = |revision: &str| fail(404, "RevisionNotFound", &format!("Invalid rev id: {revision}"));
        match (kind, request.method.as_str(), rest) {
            ("api", "GET", ["revision", revision]) => match commit(self, revision) {
                Some(sha) => {
                    let siblings: Vec<Value> =
                        self.commits[&sha].keys().map(|path| json!({"rfilename": path})).collect();
                    Reply::json(&json!({"id": self.name, "sha": sha, "private": self.is_private, "siblings": siblings}))
                }
                None => no_revision(revision),
            },
            ("api", "POST", ["branch", branch]) => {
                if self.branches.contains_key(*branch) {
                    return fail(409, "", "Reference already exists");
                }
                let start = request.json()["startingPoint"].as_str().unwrap_or("main").to_owned();
                let Some(start) = commit(self, &start) else { return no_revision(&start) };
                self.branches.insert((*branch).to_owned(), start);
                Reply::new(200, "{}")
            }
            ("api", "GET", ["tree", revision]) => {
                let Some(sha) = commit(self, revision) else { return no_revision(revision) };
                let entries: Vec<Value> =
                    self.commits[&sha].iter().map(|(path, content)| entry(path, content)).collect();
                let from: usize =
                    request.query.split('&').find_map(|part| part.strip_prefix("cursor=")?.parse().ok()).unwrap_or(0);
                let page: Vec<Value> = entries.iter().skip(from).take(3).cloned().collect();
                let reply = Reply::json(&page.into());
                let next = format!("<{}{}?recursive=true&cursor={}>; rel=\"next\"", self.url, request.path, from + 3);
                if from + 3 < entries.len() { reply.with("link", next) } else { reply }
            }
            ("", "GET" | "HEAD", ["resolve", revision, path @ ..]) => {
                let Some(sha) = commit(self, revision) else { return no_revision(revision) };
                match self.commits[&sha].get(&path.join("/")) {
                    // As the hub does it today.
                    Some(_) if !request.query.contains("cache") => {
                        Reply::new(307, "").with("location", format!("{}?cache", request.path))
                    }
                    Some(content) if content.len() as u64 >= LARGE => {
                        // The file storage is at another host than the hub.
                        let (oid, host) = (hex(&Sha256::digest(content)), self.url.replace("127.0.0.1", "localhost"));
                        Reply::new(302, "redirected")
                            .with("location", format!("{host}/stored/{oid}?signature=secret"))
                            .with("x-repo-commit", sha)
                            .with("x-linked-etag", format!("\"{oid}\""))
                            .with("x-linked-size", content.len())
                    }
                    Some(content) => Reply::new(200, content.clone())
                        .with("x-repo-commit", sha)
                        .with("etag", format!("\"{}\"", git_sha1(content))),
                    None => fail(404, "EntryNotFound", "Entry not found"),
                }
            }
            ("api", "POST", ["preupload", revision]) => {
                if commit(self, revision).is_none() {
                    return no_revision(revision);
                }
                let body = request.json();
                let files = body["files"].as_array().unwrap().iter().map(|file| {
                    let size = file["size"].as_u64().unwrap();
                    let sample = STANDARD.decode(file["sample"].as_str().unwrap()).unwrap();
                    assert_eq!(sample.len() as u64, size.min(512));
                    let mode = if size >= LARGE { "lfs" } else { "regular" };
                    json!({"path": file["path"], "uploadMode": mode, "shouldIgnore": false, "oid": null})
                });
                Reply::json(&json!({"files": files.collect::<Vec<_>>()}))
            }
            ("", "POST", ["info", "lfs", "objects", "batch"]) => {
                assert_eq!(request.headers["content-type"], "application/vnd.git-lfs+json");
                let body = request.json();
                assert_eq!(body["operation"], "upload");
                let objects = body["objects"].as_array().unwrap().iter().map(|object| self.upload(object));
                Reply::json(&json!({"transfer": "multipart", "objects": objects.collect::<Vec<_>>()}))
            }
            ("", "POST", ["verify"]) => {
                let body = request.json();
                let found = self.objects.get(body["oid"].as_str().unwrap());
                match found.is_some_and(|found| body["size"] == found.len()) {
                    true => Reply::new(200, "{}"),
                    false => fail(404, "", "no such object"),
                }
            }
            ("api", "POST", ["commit", branch]) => self.commit(request, branch, &fail),
            _ => fail(404, "", &format!("{} {} is not known", request.method, request.path)),
        }
    }

    /// Puts the parts of an object together. It is asked for at a URL with a signature, too.
    fn complete(&mut self, oid: &str, request: &Request) -> Reply {
        assert!(!request.headers.contains_key("authorization"), "the token is not needed");
        assert_eq!((request.method.as_str(), request.query.as_str()), ("POST", "signature=secret"));
        let body = request.json();
        let mut whole = Vec::new();
        for (index, part) in body["parts"].as_array().unwrap().iter().enumerate() {
            assert_eq!(part["partNumber"], index + 1);
            assert_eq!(part["etag"], format!("\"part-{}\"", index + 1));
            whole.extend_from_slice(&self.parts[&(oid.to_owned(), index + 1)]);
        }
        if hex(&Sha256::digest(&whole)) != oid {
            return Reply::new(400, "the hash does not match");
        }
        self.objects.insert(oid.to_owned(), whole);
        Reply::new(200, "{}")
    }

    fn upload(&self, object: &Value) -> Value {
        let (oid, size) = (object["oid"].as_str().unwrap(), object["size"].as_u64().unwrap() as usize);
        if self.objects.contains_key(oid) {
            return json!({"oid": oid, "size": size});
        }
        let (url, name) = (&self.url, &self.name);
        let signed = |number: usize| format!("{url}/storage/{oid}/{number}?signature=secret");
        let verify = json!({"href": format!("{url}/{name}.git/verify")});
        if size <= CHUNK {
            return json!({"oid": oid, "size": size, "actions": {"upload": {"href": signed(0)}, "verify": verify}});
        }
        let mut header = json!({"chunk_size": CHUNK.to_string()});
        for number in 1..=size.div_ceil(CHUNK) {
            header[format!("{number:05}")] = signed(number).into();
        }
        let complete = format!("{url}/storage/{oid}?signature=secret");
        json!({"oid": oid, "size": size, "actions": {"upload": {"href": complete, "header": header}, "verify": verify}})
    }

    fn commit(&mut self, request: &Request, branch: &str, fail: &dyn Fn(u16, &str, &str) -> Reply) -> Reply {
        assert_eq!(request.headers["content-type"], "application/x-ndjson");
        let Some(head) = self.branches.get(branch).cloned() else {
            return fail(404, "RevisionNotFound", "Invalid rev id");
        };
        let mut files = self.commits[&head].clone();
        for line in request.body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let line: Value = serde_json::from_slice(line).unwrap();
            let value = &line["value"];
            let path = || value["path"].as_str().unwrap().to_owned();
            match line["key"].as_str().unwrap() {
                "header" => {
                    assert!(value["summary"].as_str().is_some_and(|summary| !summary.is_empty()));
                    if value.get("parentCommit").is_some_and(|parent| *parent != head) {
                        return fail(412, "", "A commit has happened since. Please refresh and try again.");
                    }
                }
                "file" => {
                    assert_eq!(value["encoding"], "base64");
                    let content = STANDARD.decode(value["content"].as_str().unwrap()).unwrap();
                    files.insert(path(), content);
                }
                "lfsFile" => {
                    let Some(content) = self.objects.get(value["oid"].as_str().unwrap()) else {
                        return fail(400, "", "an LFS pointer points to a file that does not exist");
                    };
                    assert_eq!(value["size"], content.len());
                    files.insert(path(), content.clone());
                }
                "deletedFile" => {
                    if files.remove(&path()).is_none() {
                        return fail(400, "", "a file to be deleted does not exist");
                    }
                }
                other => return fail(400, "", other),
            }
        }
        let commit = self.add(branch, files);
        let url = format!("{}/{}/commit/{commit}", self.url, self.name);
        Reply::json(&json!({"success": true, "commitUrl": url, "commitOid": commit, "hookOutput": ""}))
    }
}

fn entry(path: &str, content: &[u8]) -> Value {
    let size = content.len();
    match size as u64 >= LARGE {
        true => json!({"type": "file", "oid": "0", "size": size, "path": path,
            "lfs": {"oid": hex(&Sha256::digest(content)), "size": size, "pointerSize": 134}}),
        false => json!({"type": "file", "oid": git_sha1(content), "size": size, "path": path}),
    }
}

fn git_sha1(content: &[u8]) -> String {
    let head = format!("blob {}\0", content.len());
    hex(&Sha1::new().chain_update(head).chain_update(content).finalize())
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first == b'%' {
            bytes.push(u8::from_str_radix(std::str::from_utf8(&after[..2]).unwrap(), 16).unwrap());
            rest = &after[2..];
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).unwrap()
}
