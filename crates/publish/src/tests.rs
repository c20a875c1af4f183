//! Publications into a real S3 server.

use crate::record::{self, hex};
use crate::{
    Address, BaseModel, Options, Origin, Progress, PublishError, PublishErrorKind, Published, RECORD_NAME, ResultRecord,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const NAME: &str = "digits-5f0e";
/// By which a test makes a process of its own that publishes, and can be killed.
const CHILD: &str = "PUBLISH_TEST_CHILD";

/// Waits for a condition.
pub(crate) fn until<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = check() {
            return found;
        }
        assert!(begin.elapsed() < Duration::from_secs(120), "waited for {what} in vain");
        thread::sleep(Duration::from_millis(2));
    }
}

/// An S3 server that ends with the test, and keeps objects as files.
struct S3 {
    room: TempDir,
    port: u16,
    child: Child,
    /// Of the access log that were read.
    lines: usize,
}

impl Drop for S3 {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl S3 {
    fn new() -> Self {
        static FOLDER: OnceLock<PathBuf> = OnceLock::new();
        let folder = FOLDER.get_or_init(|| {
            let cluster = concat!(env!("CARGO_MANIFEST_DIR"), "/../../devcluster/cluster");
            let made = Command::new(cluster).args(["tools", "versitygw"]).stdin(Stdio::null()).output().unwrap();
            assert!(made.status.success(), "no versitygw: {}", String::from_utf8_lossy(&made.stderr));
            PathBuf::from(String::from_utf8_lossy(&made.stdout).trim())
        });
        let room = tempfile::tempdir().unwrap();
        fs::create_dir_all(room.path().join("store/bucket")).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let log = fs::File::create(room.path().join("log")).unwrap();
        let mut command = Command::new(folder.join("versitygw"));
        command.args(["--access", "key", "--secret", "secret", "--region", "us-east-1", "--quiet", "--access-log"]);
        command.arg(room.path().join("access")).args(["--port", &format!("127.0.0.1:{port}"), "posix"]);
        command.arg(room.path().join("store")).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let child = command.spawn().unwrap();
        until("the server", || TcpStream::connect(("127.0.0.1", port)).ok());
        let server = Self { room, port, child, lines: 0 };
        server.credentials("secret");
        server
    }

    fn credentials(&self, secret: &str) -> PathBuf {
        let folder = self.room.path().join(format!("credentials-{secret}"));
        fs::create_dir_all(&folder).unwrap();
        let url = format!("http://127.0.0.1:{}", self.port);
        for (name, value) in [
            ("AWS_ACCESS_KEY_ID", "key"),
            ("AWS_SECRET_ACCESS_KEY", secret),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ENDPOINT_URL", &url),
        ] {
            fs::write(folder.join(name), value).unwrap();
        }
        folder
    }

    fn options(&self, from: &Path) -> Options {
        let mut options = Options::new(from, NAME);
        options.credentials = Some(self.credentials("secret"));
        options
    }

    /// Where an object is as a file.
    fn object(&self, key: &str) -> PathBuf {
        self.room.path().join("store/bucket").join(key)
    }

    fn record(&self) -> Option<ResultRecord> {
        let json = fs::read(self.object(&format!("out/{NAME}/{RECORD_NAME}"))).ok()?;
        // The server may show a file that it is still writing.
        record::parse("x", &json).ok()
    }

    /// The lines of the log about objects and parts that were written since the last look.
    fn writes(&mut self) -> String {
        let lines = fs::read_to_string(self.room.path().join("access")).unwrap_or_default();
        let new = lines.lines().skip(std::mem::replace(&mut self.lines, lines.lines().count()));
        new.filter(|line| line.contains(" s3_PutObject ") || line.contains(" s3_UploadPart "))
            .collect::<Vec<_>>()
            .join("\n")
    }
}

pub(crate) fn bytes(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(31) >> 3) as u8 ^ seed ^ (at >> 13) as u8).collect()
}

pub(crate) fn folder(files: &[(&str, Vec<u8>)]) -> TempDir {
    let room = tempfile::tempdir().unwrap();
    for (path, content) in files {
        let at = room.path().join(path);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        fs::write(at, content).unwrap();
    }
    room
}

pub(crate) fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

fn publish_to(uri: &str, options: &Options) -> Result<Published, PublishError> {
    let address = Address::parse_result(uri)?;
    run(crate::publish(&address, options, &Progress::default()))
}

fn publish(options: &Options) -> Result<Published, PublishError> {
    publish_to("s3://bucket/out", options)
}

/// A process of this program that publishes, so that it can be killed.
fn child(options: &Options) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "tests::a_process_that_publishes", "--nocapture"]);
    command.env(CHILD, &options.from).env("PUBLISH_TEST_CREDENTIALS", options.credentials.as_ref().unwrap());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap()
}

#[test]
fn a_process_that_publishes() {
    let Some(from) = std::env::var_os(CHILD) else { return };
    let mut options = Options::new(PathBuf::from(from), NAME);
    options.credentials = std::env::var_os("PUBLISH_TEST_CREDENTIALS").map(PathBuf::from);
    publish(&options).unwrap();
}

#[test]
fn folder_is_published_with_record_and_repeat_writes_nothing() {
    let mut server = S3::new();
    let large = bytes(1, (40 << 20) + 5);
    let from = folder(&[
        ("model.safetensors", large.clone()),
        ("config.json", b"{}".to_vec()),
        ("empty", Vec::new()),
        ("lr=0.1/Größe 2", b"x".to_vec()),
        (".trainingjob/x", b"x".to_vec()),
    ]);
    let mut options = server.options(from.path());
    options.origin = Origin {
        job: Some("digits".to_owned()),
        metrics: BTreeMap::from([("loss".to_owned(), 0.5)]),
        base_models: vec![BaseModel { uri: "hf://a/b@main".to_owned(), revision: None }],
        ..Origin::default()
    };
    let published = publish(&options).unwrap();
    let record = published.record.clone();
    assert!(!published.was_published);
    assert_eq!(published.sent, large.len() as u64 + 3);
    assert_eq!((record.uri.as_str(), record.file_count), ("s3://bucket/out/digits-5f0e", 4));
    assert_eq!(record.revision.as_ref(), Some(&record.digest));
    let paths: Vec<_> = record.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(paths, ["config.json", "empty", "lr=0.1/Größe 2", "model.safetensors"]);
    assert_eq!(record.files[3].sha256, hex(&Sha256::digest(&large)));
    assert_eq!(fs::read(server.object("out/digits-5f0e/model.safetensors")).unwrap(), large);
    assert_eq!(server.record().unwrap(), record);
    assert_eq!(fs::read_dir(from.path().join(".trainingjob/publish")).unwrap().count(), 0, "the journal is removed");
    assert!(server.writes().lines().count() >= 6);

    options.origin.job = Some("later".to_owned());
    let again = publish(&options).unwrap();
    assert_eq!((again.record, again.sent, again.was_published), (record, 0, true));
    assert_eq!(server.writes(), "");

    fs::remove_file(server.object("out/digits-5f0e/config.json")).unwrap();
    let error = publish(&options).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("config.json: 2 bytes were sent, and the store has no object; publish under"), "{text}");
    assert!(error.is_final());
    fs::write(from.path().join("config.json"), "{ }").unwrap();
    let error = publish(&options).unwrap_err();
    assert!(error.is_final() && error.to_string().contains("another result"), "{error}");
}

#[test]
fn killed_publisher_resumes_without_resending_files() {
    let mut server = S3::new();
    let small: Vec<(String, Vec<u8>)> = (0..40).map(|n| (format!("a/{n}"), bytes(n, 200_000))).collect();
    let mut files: Vec<(&str, Vec<u8>)> =
        small.iter().map(|(path, content)| (path.as_str(), content.clone())).collect();
    files.push(("z", bytes(7, 200 << 20)));
    let from = folder(&files);
    let options = server.options(from.path());
    let mut publisher = child(&options);
    let journals = from.path().join(".trainingjob/publish");
    let journal = || {
        let entry = fs::read_dir(&journals).ok()?.next()?.ok()?;
        fs::read_to_string(entry.path()).ok()
    };
    let lines =
        until("parts in the journal", || journal().filter(|text| text.matches("\"did\":\"part\"").count() >= 2));
    kill(Pid::from_raw(publisher.id().cast_signed()), Signal::SIGKILL).unwrap();
    assert!(!publisher.wait().unwrap().success());
    assert!(server.record().is_none(), "it was killed before its end: {lines}");
    let lines = journal().unwrap();
    let sent = |n: &u8| lines.contains(&format!("{{\"did\":\"sent\",\"path\":\"a/{n}\""));
    let sent: Vec<u8> = (0..40).filter(sent).collect();
    let parts = lines.matches("\"did\":\"part\"").count();
    server.writes();
    // As a kubelet does that mounts a volume with fsGroup.
    for entry in fs::read_dir(from.path().join("a")).unwrap() {
        fs::set_permissions(entry.unwrap().path(), fs::Permissions::from_mode(0o660)).unwrap();
    }

    let published = publish(&options).unwrap();
    let total = (200 << 20) + 40 * 200_000;
    assert_eq!(published.sent, (total - sent.len() * 200_000 - parts * (16 << 20)) as u64);
    let writes = server.writes();
    for n in sent {
        assert!(!writes.contains(&format!(" /bucket/out/{NAME}/a/{n} ")), "{n} is sent again: {writes}");
    }
    assert_eq!(published.record.file_count, 41);
    let whole = published.record.files.iter().find(|file| file.path == "z").unwrap();
    assert_eq!(whole.sha256, hex(&Sha256::digest(bytes(7, 200 << 20))));
    assert_eq!(fs::read(server.object("out/digits-5f0e/z")).unwrap(), bytes(7, 200 << 20));
}

#[test]
fn changed_file_is_sent_again() {
    let server = S3::new();
    let from = folder(&[("log", bytes(1, 200 << 20)), ("config.json", b"{}".to_vec()), ("gone", b"x".to_vec())]);
    let options = server.options(from.path());
    let mut publisher = child(&options);
    let signal = |signal| kill(Pid::from_raw(publisher.id().cast_signed()), signal).unwrap();
    until("the small files", || server.object("out/digits-5f0e/gone").exists().then_some(()));
    signal(Signal::SIGSTOP);
    assert!(server.record().is_none(), "the large file takes longer");
    fs::write(from.path().join("log"), bytes(2, 20 << 20)).unwrap();
    fs::remove_file(from.path().join("gone")).unwrap();
    fs::write(from.path().join("new"), "new").unwrap();
    signal(Signal::SIGCONT);
    assert!(publisher.wait().unwrap().success());
    let record = server.record().unwrap();
    let paths: Vec<_> = record.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(paths, ["config.json", "log", "new"]);
    assert_eq!(record.files[1].sha256, hex(&Sha256::digest(bytes(2, 20 << 20))));
    assert_eq!(fs::read(server.object("out/digits-5f0e/log")).unwrap(), bytes(2, 20 << 20));
    assert!(!server.object("out/digits-5f0e/gone").exists());
}

#[test]
fn record_appears_only_after_all_files() {
    let server = S3::new();
    let files: Vec<(String, Vec<u8>)> =
        (0..300_u16).map(|n| (format!("d{}/{n}", n % 7), bytes(n as u8, 100))).collect();
    let files: Vec<(&str, Vec<u8>)> = files.iter().map(|(path, content)| (path.as_str(), content.clone())).collect();
    let from = folder(&files);
    let (is_over, looks) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                looks.store(true, Ordering::Relaxed);
                let Some(record) = server.record() else { continue };
                for file in &record.files {
                    let found = fs::metadata(server.object(&format!("out/{NAME}/{}", file.path)));
                    assert_eq!(found.unwrap().len(), file.size, "{}", file.path);
                }
            }
        });
        until("the reader", || looks.load(Ordering::Relaxed).then_some(()));
        let published = publish(&server.options(from.path()));
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(published.unwrap().record.file_count, 300);
    });
}

#[test]
fn different_content_under_same_name_is_refused() {
    let server = S3::new();
    let from = folder(&[("a", b"1".to_vec())]);
    fs::create_dir_all(server.object("out/digits-5f0e/x")).unwrap();
    let other = server.options(folder(&[("x/other", b"2".to_vec())]).path());
    assert!(publish(&other).unwrap_err().is_final(), "its folder is gone");
    let other = folder(&[("x/other", b"2".to_vec())]);
    publish(&server.options(other.path())).unwrap();
    let error = publish(&server.options(from.path())).unwrap_err();
    assert!(error.is_final() && error.to_string().contains("another result since"), "{error}");
    fs::remove_file(server.object(&format!("out/digits-5f0e/{RECORD_NAME}"))).unwrap();
    let error = publish(&server.options(from.path())).unwrap_err();
    assert!(error.is_final() && error.to_string().contains("such as x/other; remove them"), "{error}");
    fs::write(server.object(&format!("out/digits-5f0e/{RECORD_NAME}")), "{").unwrap();
    let error = publish(&server.options(from.path())).unwrap_err();
    assert!(error.is_final() && error.to_string().contains("not the record of a result"), "{error}");
}

#[test]
fn invalid_store_names_are_refused_before_sending() {
    let mut server = S3::new();
    let long = vec!["x".repeat(250); 4].join("/");
    let from = folder(&[("a", b"1".to_vec()), (&long, b"2".to_vec())]);
    let mut options = server.options(from.path());
    let error = publish_to(&format!("s3://bucket/{}", "y".repeat(60)), &options).unwrap_err();
    assert!(error.is_final() && error.to_string().contains("the key has"), "{error}");
    assert_eq!(server.writes(), "");
    for name in ["", "a/b", "..", ".a", "a b", "ä"] {
        name.clone_into(&mut options.name);
        assert!(publish(&options).unwrap_err().to_string().contains("--name"), "{name}");
    }
}

#[test]
fn empty_folder_and_wrong_credentials_are_final_errors() {
    let server = S3::new();
    let empty = folder(&[]);
    let error = publish(&server.options(empty.path())).unwrap_err();
    assert!(error.is_final() && error.to_string().contains("nothing is in OUTPUT_DIR"), "{error}");
    let from = folder(&[("a", b"1".to_vec())]);
    let mut options = server.options(from.path());
    options.credentials = Some(server.credentials("wrong"));
    let error = publish(&options).unwrap_err();
    assert_eq!((error.kind, error.status, error.is_final()), (PublishErrorKind::Denied, Some(403), true), "{error}");
    let error = publish_to("s3://nobucket/out", &server.options(from.path())).unwrap_err();
    assert_eq!((error.kind, error.status, error.is_final()), (PublishErrorKind::NotFound, Some(404), true), "{error}");
    options.credentials = Some(from.path().join("missing"));
    assert!(publish(&options).unwrap_err().is_final());
}
