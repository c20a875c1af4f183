//! Object stores that are real programs, and a proxy that breaks the traffic.
//!
//! No emulator that could be installed has Google's XML API, by which our client writes. The existing ones accept
//! uploads by the JSON API alone. But the XML API is S3's dialect with other headers. So the S3 server behind a
//! translator, [`to_s3`], stands in for Google's store. The translator signs for S3 what has an empty token, and gives
//! `x-goog-hash` to the server as S3's checksum. The requests are those that Google would get, and their effect is
//! tested. The answers are S3's, so that Google's tokens, limits, error codes and oddities are not tested.

use http::header::{HeaderName, HeaderValue};
use object_store::aws::{AwsAuthorizer, AwsCredential};
use object_store::client::HttpRequestBody;
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use super::room::Room;
use super::wait::{SOON, until};
use super::{cache, free_port, root};

pub const KEY: &str = "test-key";
pub const SECRET: &str = "test-secret";
pub const BUCKET: &str = "bucket";
pub const ACCOUNT: &str = "devstoreaccount1";
pub const ACCOUNT_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// The path of a program for tests, built once per machine from its pinned Go module.
fn program(name: &'static str) -> PathBuf {
    static BUILT: OnceLock<Mutex<BTreeMap<&str, PathBuf>>> = OnceLock::new();
    let mut built = BUILT.get_or_init(Mutex::default).lock().unwrap();
    let path = built.entry(name).or_insert_with(|| {
        let cluster = root("devcluster/cluster");
        let made =
            Command::new(cluster).args(["tools", name]).stdin(Stdio::null()).output().expect("devcluster/cluster runs");
        assert!(made.status.success(), "no {name}: {}", String::from_utf8_lossy(&made.stderr));
        Path::new(String::from_utf8_lossy(&made.stdout).trim()).join(name)
    });
    path.clone()
}

/// Azurite, installed once per machine from npm.
fn azurite() -> PathBuf {
    static INSTALLED: OnceLock<PathBuf> = OnceLock::new();
    let install = || {
        let folder = cache().join("azurite-3.35.0");
        let program = folder.join("node_modules/azurite/dist/src/blob/main.js");
        if !program.exists() {
            let mut npm = Command::new("npm");
            npm.args(["install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"]).arg(&folder);
            let done = npm.arg("azurite@3.35.0").stdin(Stdio::null()).output().expect("npm runs");
            assert!(done.status.success(), "no azurite: {}", String::from_utf8_lossy(&done.stderr));
        }
        program
    };
    INSTALLED.get_or_init(install).clone()
}

/// A server that ends with the test.
pub struct Server {
    pub port: u16,
    pub room: Room,
    /// The scheme of its URIs.
    pub scheme: &'static str,
    /// The port of the program itself.
    behind: u16,
    child: Child,
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Server {
    /// A server that speaks S3, and keeps objects as files below `room/store/BUCKET`.
    pub fn s3() -> Self {
        let room = Room::new("s3");
        let store = room.folder("store");
        fs::create_dir_all(store.join(BUCKET)).unwrap();
        Self::start("s3", room, |port| {
            let mut command = Command::new(program("versitygw"));
            command.args(["--access", KEY, "--secret", SECRET, "--region", "us-east-1", "--quiet"]);
            command.args(["--port", &format!("127.0.0.1:{port}"), "posix"]).arg(&store);
            command
        })
    }

    /// A server that clients address as Google's store, by its XML API, and that keeps objects as [`Server::s3`] does.
    pub fn google() -> Self {
        let mut server = Self::s3();
        server.port = Proxy::new(Ipv4Addr::LOCALHOST.into(), server.behind, true).address.port();
        server.scheme = "gs";
        server
    }

    /// A server that speaks Google's protocol, and keeps objects in memory. It accepts them only by the JSON API.
    pub fn gcs() -> Self {
        let server = Self::start("gs", Room::new("gcs"), |port| {
            let mut command = Command::new(program("fake-gcs-server"));
            let url = format!("http://127.0.0.1:{port}");
            command.args(["-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-log-level", "error"]);
            command.args([
                "-port",
                &port.to_string(),
                "-external-url",
                &url,
                "-public-host",
                &format!("127.0.0.1:{port}"),
            ]);
            command
        });
        let bucket = server.http("POST", "/storage/v1/b?project=test", &format!(r#"{{"name":"{BUCKET}"}}"#));
        assert!(bucket.starts_with("HTTP/1.1 200"), "{bucket}");
        server
    }

    /// A server that speaks Azure's protocol. The account and its key are the emulator's own, which are public.
    pub fn azure() -> Self {
        let azurite = azurite();
        let room = Room::new("azure");
        let data = room.folder("azure");
        let server = Self::start("az", room, |port| {
            let mut command = Command::new("node");
            command.arg(&azurite).args([
                "--silent",
                "--skipApiVersionCheck",
                "--disableTelemetry",
                "--blobHost",
                "127.0.0.1",
            ]);
            command.args(["--blobPort", &port.to_string(), "--location"]).arg(data);
            command
        });
        let script = root("tests/store/container.mjs");
        let container = format!("{}/{ACCOUNT}/{BUCKET}", server.url());
        let made = Command::new("node").args([&script, &container, ACCOUNT, ACCOUNT_KEY]).output().expect("node runs");
        assert!(made.status.success(), "no container: {}", String::from_utf8_lossy(&made.stderr));
        server
    }

    fn start(scheme: &'static str, room: Room, command: impl FnOnce(u16) -> Command) -> Self {
        let port = free_port();
        let log = fs::File::create(room.path("log")).unwrap();
        let mut command = command(port);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let child = command.spawn().expect("the server can be started");
        let mut server = Self { port, room, scheme, behind: port, child };
        until("the server to listen", SOON, || {
            let ended = server.child.try_wait().expect("its end can be asked for");
            let said = || fs::read_to_string(server.room.path("log")).unwrap_or_default();
            assert!(ended.is_none(), "the server has ended: {}", said());
            TcpStream::connect(("127.0.0.1", port)).ok()
        });
        server
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The file of an object of the S3 server.
    pub fn object(&self, key: &str) -> PathBuf {
        self.room.0.join("store").join(BUCKET).join(key)
    }

    /// Puts an object into the S3 server, as another client would.
    pub fn put(&self, key: &str, content: &[u8]) {
        let signer = Proxy::new(Ipv4Addr::LOCALHOST.into(), self.behind, true);
        let answer = http(signer.address.port(), "PUT", &format!("/{BUCKET}/{}", encode(key)), content);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    /// Sends one plain request.
    pub fn http(&self, method: &str, path: &str, body: &str) -> String {
        http(self.port, method, path, body.as_bytes())
    }
}

fn http(port: u16, method: &str, path: &str, body: &[u8]) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close");
    let head = format!("{head}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
    let mut answer = String::new();
    drop(stream.read_to_string(&mut answer));
    answer
}

/// What the proxy does to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Pass,
    /// The proxy answers with this, and the server never sees the request.
    Answer(u16),
    /// The connection ends before any answer, and the server never sees the request.
    Cut,
    /// The server does what is asked, and the answer is lost.
    CutAnswer,
    /// The answer's body ends after this many bytes.
    CutAfter(u64),
    /// No answer ever comes.
    Silence,
    /// A bit of the body is flipped.
    Flip,
    /// The server gets the request a second later.
    Slow,
}

/// A request as the proxy sees it.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: String,
    /// Path and query, the path in readable form.
    pub target: String,
    /// Length of its body.
    pub length: u64,
}

type Rule = dyn Fn(&Asked) -> Fault + Send + Sync;

/// A proxy before a server.
pub struct Proxy {
    address: SocketAddr,
    rule: Arc<Mutex<Arc<Rule>>>,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Proxy {
    pub fn before(server: &Server) -> Self {
        Self::before_at(server, Ipv4Addr::LOCALHOST.into())
    }

    /// A proxy at this address, for clients that are not on this machine alone.
    pub fn before_at(server: &Server, ip: IpAddr) -> Self {
        Self::before_port(server.port, ip)
    }

    /// A proxy at this address, before the server at a port of this machine.
    pub fn before_port(port: u16, ip: IpAddr) -> Self {
        Self::new(ip, port, false)
    }

    /// A proxy before the server at `upstream`. Clients address it as Google's store, or as that server.
    fn new(ip: IpAddr, upstream: u16, is_google: bool) -> Self {
        let listener = TcpListener::bind((ip, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let rule: Arc<Mutex<Arc<Rule>>> = Arc::new(Mutex::new(Arc::new(|_| Fault::Pass)));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (rules, log) = (Arc::clone(&rule), Arc::clone(&asked));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (rules, log) = (Arc::clone(&rules), Arc::clone(&log));
                std::thread::spawn(move || drop(serve(stream, upstream, is_google, &rules, &log)));
            }
        });
        Self { address, rule, asked }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Sets what is done from now on.
    pub fn set(&self, rule: impl Fn(&Asked) -> Fault + Send + Sync + 'static) {
        *self.rule.lock().unwrap() = Arc::new(rule);
    }

    /// The requests since the last call, including those with faults.
    pub fn take(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }

    pub fn asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

fn serve(
    mut client: TcpStream,
    upstream: u16,
    is_google: bool,
    rules: &Mutex<Arc<Rule>>,
    log: &Mutex<Vec<Asked>>,
) -> std::io::Result<()> {
    let text = read_head(&mut client)?;
    let mut words = text.split(' ');
    let (method, target) = (words.next().unwrap_or("").to_owned(), words.next().unwrap_or("").to_owned());
    if target.is_empty() {
        return Ok(());
    }
    let is_head = method == "HEAD";
    let length = value(&text, "content-length").and_then(|value| value.parse().ok()).unwrap_or(0_u64);
    let asked = Asked { method, target: readable(&target), length };
    let rule = Arc::clone(&rules.lock().unwrap());
    let fault = rule(&asked);
    if fault == Fault::Slow {
        std::thread::sleep(Duration::from_secs(1));
    }
    let mut server = match fault {
        Fault::Cut => {
            log.lock().unwrap().push(asked);
            return Ok(());
        }
        Fault::Answer(_) | Fault::Silence => None,
        _ => Some(TcpStream::connect(("127.0.0.1", upstream))?),
    };
    if let Some(server) = &mut server {
        let text = if is_google { to_s3(&text, upstream) } else { text };
        let lines =
            text.lines().filter(|line| !line.to_ascii_lowercase().starts_with("connection:") && !line.is_empty());
        let head = lines.collect::<Vec<_>>().join("\r\n");
        server.write_all(format!("{head}\r\nConnection: close\r\n\r\n").as_bytes())?;
    }
    let mut left = length;
    let mut buffer = vec![0; 64 * 1024];
    let mut flip = fault == Fault::Flip;
    let mut takes = true;
    while left > 0 {
        let most = left.min(buffer.len() as u64) as usize;
        let read = client.read(&mut buffer[..most])?;
        if read == 0 {
            return Ok(());
        }
        if std::mem::take(&mut flip) {
            buffer[0] ^= 1;
        }
        // A server that refuses may answer before it has read all, and reads no more.
        if let Some(server) = &mut server {
            takes = takes && server.write_all(&buffer[..read]).is_ok();
        }
        left -= read as u64;
    }
    log.lock().unwrap().push(asked);
    let Some(mut server) = server else {
        if let Fault::Answer(status) = fault {
            let body = "<Error><Code>Test</Code><Message>as the test wants it</Message></Error>";
            let head = format!("HTTP/1.1 {status} Test\r\nConnection: close\r\nContent-Length: {}", body.len());
            client.write_all(format!("{head}\r\n\r\n{body}").as_bytes())?;
        } else {
            // Until the client gives up.
            client.set_read_timeout(Some(Duration::from_secs(600)))?;
            drop(client.read(&mut buffer));
        }
        return Ok(());
    };
    // Each connection carries one request. The head says so on both sides, and the proxy looks for the body's end.
    let head = read_head(&mut server)?;
    let lines = head.lines().filter(|line| !line.to_ascii_lowercase().starts_with("connection:") && !line.is_empty());
    let answer = format!("{}\r\nConnection: close\r\n\r\n", lines.collect::<Vec<_>>().join("\r\n"));
    let status = head.split(' ').nth(1).unwrap_or("");
    let length = value(&head, "content-length").and_then(|value| value.parse().ok());
    let mut left: u64 = if is_head || matches!(status, "204" | "304") { 0 } else { length.unwrap_or(u64::MAX) };
    let chunked = length.is_none() && value(&head, "transfer-encoding").is_some();
    let mut may_be_sent = match fault {
        Fault::CutAfter(bytes) => bytes,
        _ => u64::MAX,
    };
    if fault != Fault::CutAnswer {
        client.write_all(answer.as_bytes())?;
    }
    let mut tail = Vec::new();
    while left > 0 && !(chunked && tail.ends_with(b"0\r\n\r\n")) {
        let most = left.min(buffer.len() as u64) as usize;
        let read = server.read(&mut buffer[..most])?;
        if read == 0 {
            break;
        }
        left -= read as u64;
        tail.extend_from_slice(&buffer[..read]);
        tail.drain(..tail.len().saturating_sub(5));
        if fault != Fault::CutAnswer {
            let now = may_be_sent.min(read as u64);
            client.write_all(&buffer[..now as usize])?;
            may_be_sent -= now;
        }
        if may_be_sent == 0 {
            break;
        }
    }
    client.shutdown(Shutdown::Both)
}

fn read_head(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte)? > 0 {
        head.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

fn value(head: &str, name: &str) -> Option<String> {
    let found = head.lines().find(|line| line.to_ascii_lowercase().starts_with(&format!("{name}:")))?;
    found.split_once(':').map(|(_, value)| value.trim().to_owned())
}

fn readable(target: &str) -> String {
    let (path, query) = target.split_at(target.find('?').unwrap_or(target.len()));
    let mut bytes = path.bytes();
    let mut read = Vec::new();
    while let Some(byte) = bytes.next() {
        let digits = if byte == b'%' { [bytes.next(), bytes.next()].into_iter().flatten().collect() } else { vec![] };
        let code = std::str::from_utf8(&digits).ok().and_then(|digits| u8::from_str_radix(digits, 16).ok());
        read.push(code.unwrap_or(byte));
    }
    String::from_utf8_lossy(&read).into_owned() + query
}

fn encode(path: &str) -> String {
    let keep = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    path.bytes().map(|byte| if keep(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// The head of a request to Google's store, as S3's server takes it.
fn to_s3(text: &str, upstream: u16) -> String {
    const NOT: [&str; 3] = ["authorization", "host", "x-goog-hash"];
    let mut lines = text.lines();
    let mut words = lines.next().unwrap_or("").split(' ');
    let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let (_, query) = target.split_once('?').unwrap_or_default();
    // Google accepts a slash in a key as %2F, S3 doesn't.
    let path = encode(&readable(target.split('?').next().unwrap_or("")));
    let target = format!("{path}{}{query}", if query.is_empty() { "" } else { "?" });
    let uri = format!("http://127.0.0.1:{upstream}{target}");
    let mut request = http::Request::builder().method(method).uri(uri).body(HttpRequestBody::empty()).unwrap();
    let mut add = |name, value: &str| {
        request.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
    };
    if let Some(sum) = value(text, "x-goog-hash").as_deref().and_then(|hash| hash.strip_prefix("crc32c=")) {
        add("x-amz-checksum-crc32c", sum);
    }
    let credential = AwsCredential { key_id: KEY.to_owned(), secret_key: SECRET.to_owned(), token: None };
    let signer = AwsAuthorizer::new(&credential, "s3", "us-east-1").with_sign_payload(false);
    signer.try_authorize(&mut request, None).unwrap();
    let kept = lines.filter(|line| !NOT.contains(&line.split(':').next().unwrap_or("").to_ascii_lowercase().as_str()));
    let added = request.headers().iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()));
    let head = [format!("{method} {target} HTTP/1.1"), format!("Host: 127.0.0.1:{upstream}")];
    head.into_iter().chain(kept.map(str::to_owned)).chain(added).collect::<Vec<_>>().join("\r\n")
}
