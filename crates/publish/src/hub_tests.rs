//! Publications into a hub that stands in for the real one.

use crate::record;
use crate::stand_in::{CHUNK, Hub, LARGE, Reply, Request, Server, TOKEN};
use crate::tests::{bytes, folder, run};
use crate::{NetworkTimeouts, Options, Progress, PublishError, PublishErrorKind, Published, RECORD_NAME, ResultRecord};
use parking_lot::Mutex;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

struct Room {
    server: Server,
    hub: Arc<Mutex<Hub>>,
    credentials: TempDir,
}

impl Room {
    fn new() -> Self {
        Self::with(|_, _| None)
    }

    /// A hub, in which `fault` may answer instead.
    fn with(fault: impl Fn(&mut Hub, &Request) -> Option<Reply> + Send + Sync + 'static) -> Self {
        let hub: Arc<Mutex<Hub>> = Arc::default();
        let inner = Arc::clone(&hub);
        let server = Server::new(move |request| {
            let mut hub = inner.lock();
            let fault = fault(&mut hub, request);
            fault.unwrap_or_else(|| hub.answer(request))
        });
        hub.lock().url = server.url();
        let credentials = folder(&[("HF_TOKEN", TOKEN.into())]);
        Self { server, hub, credentials }
    }

    fn options(&self, from: &Path) -> Options {
        let mut options = Options::new(from, "digits-5f0e");
        options.endpoint = Some(self.server.url());
        options.credentials = Some(self.credentials.path().to_owned());
        options.patience = NetworkTimeouts { back_off: Duration::from_millis(1), ..NetworkTimeouts::default() };
        options
    }

    fn publish(&self, uri: &str, from: &Path) -> Result<Published, PublishError> {
        Self::publish_with(uri, &self.options(from))
    }

    fn publish_with(uri: &str, options: &Options) -> Result<Published, PublishError> {
        run(crate::publish(&address::Address::parse_result(uri)?, options, &Progress::default()))
    }

    /// How many requests since the last look had this in their line.
    fn count(&self, part: &str) -> usize {
        self.server.take().iter().filter(|request| request.line().contains(part)).count()
    }
}

fn content() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("model.safetensors", bytes(1, 3 * CHUNK + 5)),
        ("copy/model.safetensors", bytes(1, 3 * CHUNK + 5)),
        ("tokenizer.bin", bytes(2, LARGE as usize)),
        ("config.json", b"{}".to_vec()),
        ("empty", Vec::new()),
        ("lr=0.1/Gr\u{f6}\u{df}e 2\"", bytes(3, 9_999)),
    ]
}

#[test]
fn private_repository_gets_one_commit_with_record() {
    let room = Room::new();
    let from = folder(&content());
    let published = room.publish("hf://team/digits", from.path()).unwrap();
    let hub = room.hub.lock();
    assert!(hub.is_private);
    let files = hub.files("main");
    for (path, content) in content() {
        assert!(files[path] == content, "{path}");
    }
    assert!(files.contains_key(".gitattributes") && files.len() == 8);
    let record = record::parse("x", &files[RECORD_NAME]).unwrap();
    assert_eq!(record.revision, None);
    assert_eq!(published.record.revision.as_ref(), Some(&hub.branches["main"]));
    assert_eq!(ResultRecord { revision: None, ..published.record.clone() }, record);
    assert_eq!((record.uri.as_str(), record.file_count), ("hf://team/digits@main", 6));
    // One of the two that are the same, and what goes to the file storage.
    assert_eq!(published.sent, (3 * CHUNK + 5) as u64 + LARGE);
    drop(hub);
    room.server.take();

    let again = room.publish("hf://team/digits@main", from.path()).unwrap();
    assert_eq!((again.record, again.was_published, again.sent), (published.record, true, 0));
    assert!(room.server.take().iter().all(|request| request.method == "GET"));

    fs::write(from.path().join("config.json"), "{ }").unwrap();
    let error = room.publish("hf://team/digits", from.path()).unwrap_err();
    assert!(error.is_final() && error.to_string().contains("another result of the same name"), "{error}");
    let mut changed = room.hub.lock().files("main").clone();
    changed.insert("model.safetensors".to_owned(), b"other".to_vec());
    room.hub.lock().add("main", changed);
    fs::write(from.path().join("config.json"), "{}").unwrap();
    let error = room.publish("hf://team/digits", from.path()).unwrap_err();
    assert!(error.to_string().contains("the file model.safetensors was changed"), "{error}");
}

#[test]
fn branch_is_created_and_its_older_result_replaced() {
    let room = Room::new();
    room.hub.lock().make();
    let from = folder(&[("a", b"1".to_vec()), ("b/c", b"2".to_vec())]);
    let first = room.publish("hf://team/digits@runs%2F1", from.path()).unwrap();
    assert_eq!(first.record.uri, "hf://team/digits@runs%2F1");
    assert_eq!(room.hub.lock().files("main").len(), 1, "main has no commit");
    assert_eq!(room.hub.lock().branches["runs/1"], first.record.revision.unwrap());
    let newer = folder(&[("a", b"3".to_vec())]);
    let options = Options { name: "digits-77".to_owned(), ..room.options(newer.path()) };
    Room::publish_with("hf://team/digits@runs%2F1", &options).unwrap();
    let hub = room.hub.lock();
    let paths: Vec<_> = hub.files("runs/1").keys().map(String::as_str).collect();
    assert_eq!(paths, [".gitattributes", "a", RECORD_NAME]);
    assert_eq!(hub.files("runs/1")["a"], b"3");
}

#[test]
fn interrupted_publication_resumes_by_file() {
    let broken = Arc::new(AtomicUsize::new(1));
    let is_broken = Arc::clone(&broken);
    let room = Room::with(move |_, request| {
        let is_commit = request.path.contains("/commit/") && is_broken.load(Ordering::Relaxed) == 1;
        is_commit.then(|| Reply::new(400, r#"{"error":"not now"}"#))
    });
    let from = folder(&content());
    let error = room.publish("hf://team/digits", from.path()).unwrap_err();
    assert!(error.is_final() && error.to_string().contains("HTTP 400: not now"), "{error}");
    assert_eq!(room.count("PUT /storage"), 5);
    assert!(!room.hub.lock().files("main").contains_key(RECORD_NAME));
    broken.store(0, Ordering::Relaxed);
    let published = room.publish("hf://team/digits", from.path()).unwrap();
    assert_eq!((published.sent, room.count("PUT /storage")), (0, 0));
}

#[test]
fn transient_failures_are_retried_as_server_asks() {
    let count = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&count);
    let room = Room::with(move |hub, request| {
        // Every kind of request fails once, in another way each.
        let first = |number: usize| seen.fetch_or(1 << number, Ordering::Relaxed) & (1 << number) == 0;
        let kinds = ["GET /api", "/create", "/preupload/", "/batch", "PUT /storage", "POST /storage", "/verify"];
        let line = request.line();
        let number = kinds.iter().position(|kind| line.contains(kind))?;
        match first(number).then_some(number % 4)? {
            0 => Some(Reply::new(429, "").with("retry-after", 1)),
            1 => Some(Reply::new(503, "busy")),
            2 => Some(Reply::new(200, "").lost()),
            // It is done, and the answer is lost.
            _ => Some(hub.answer(request).lost()),
        }
    });
    let from = folder(&content());
    let begin = Instant::now();
    room.publish("hf://team/digits", from.path()).unwrap();
    assert!(begin.elapsed() >= Duration::from_secs(2), "two of them asked for a second");
    assert_eq!(count.load(Ordering::Relaxed), 0b111_1111);
}

#[test]
fn concurrent_commit_or_lost_answer_is_retried() {
    let count = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&count);
    let room = Room::with(move |hub, request| {
        if !request.path.contains("/commit/") {
            return None;
        }
        match seen.fetch_add(1, Ordering::Relaxed) {
            0 => {
                let mut files = hub.files("main").clone();
                files.insert("README.md".to_owned(), b"# by hand".to_vec());
                hub.add("main", files);
                None
            }
            1 => Some(hub.answer(request).lost()),
            _ => None,
        }
    });
    let from = folder(&content());
    let published = room.publish("hf://team/digits", from.path()).unwrap();
    let hub = room.hub.lock();
    assert!(published.was_published, "the second commit was made");
    assert_eq!(published.record.revision.as_ref(), Some(&hub.branches["main"]));
    assert_eq!((hub.files("main").len(), hub.commits.len()), (9, 3));
}

#[test]
fn hub_refusals_are_final_and_name_the_remedy() {
    let room = Room::new();
    let from = folder(&content());
    let token = |token: &str| fs::write(room.credentials.path().join("HF_TOKEN"), token).unwrap();
    for (value, uri, kind, status, remedy) in [
        ("hf_wrong", "hf://team/digits", PublishErrorKind::Denied, Some(401), "HF_TOKEN is not valid"),
        ("hf_read", "hf://team/digits", PublishErrorKind::Denied, Some(403), "permission to write"),
        (TOKEN, "hf://others/digits", PublishErrorKind::Denied, Some(403), "repositories of others"),
        ("", "hf://team/digits", PublishErrorKind::Refused, None, "there is no HF_TOKEN"),
        ("a\nb", "hf://team/digits", PublishErrorKind::Refused, None, "one line"),
    ] {
        token(value);
        let error = room.publish(uri, from.path()).unwrap_err();
        assert_eq!((error.kind, error.status, error.is_final()), (kind, status, true), "{error}");
        assert!(error.to_string().contains(remedy) && !error.to_string().contains("hf_"), "{error}");
    }
}

#[test]
fn silent_server_is_abandoned_after_time_limit() {
    let room = Room::with(|_, request| (request.method == "PUT").then(Reply::silent));
    let from = folder(&content());
    let mut options = room.options(from.path());
    options.patience.silence = Duration::from_millis(100);
    options.patience.answer = Duration::from_millis(200);
    let error = Room::publish_with("hf://team/digits", &options).unwrap_err();
    assert!(!error.is_final() && error.to_string().contains("no byte for 0.1 s"), "{error}");
    assert!(!error.to_string().contains("secret"), "{error}");
}

#[test]
fn answers_of_hostile_hub_are_refused() {
    let from = folder(&content());
    let refused = |part: &'static str, body: &'static str| {
        let room = Room::with(move |_, request| request.line().contains(part).then(|| Reply::new(200, body)));
        let error = room.publish("hf://team/digits", from.path()).unwrap_err();
        assert!(error.is_final(), "{error}");
        error.to_string()
    };
    assert!(refused("/revision/", r#"{"sha":"../../x"}"#).contains("which is none"));
    assert!(refused("/revision/", "<html>").contains("not what its API gives"));
    assert!(refused("/preupload/", r#"{"files":[]}"#).contains("does not say how the file"));
    let of = |oid: &str, action: &str| format!(r#"{{"objects":[{{"oid":"{oid}","size":1,{action}}}]}}"#);
    let oid = crate::record::hex(&<sha2::Sha256 as sha2::Digest>::digest(bytes(2, LARGE as usize)));
    let leak = |text: String| -> &'static str { Box::leak(text.into_boxed_str()) };
    let href = leak(of(&oid, r#""actions":{"upload":{"href":"file:///etc/passwd"}}"#));
    assert!(refused("/batch", href).contains("not by HTTP"));
    let header = leak(of(&oid, r#""actions":{"upload":{"href":"/x","header":{"chunk_size":1,"1":"/y"}}}"#));
    assert!(refused("/batch", header).contains("the hub names 1 parts"));
    let error = leak(of(&oid, r#""error":{"code":422,"message":"too\n\u001b[31mlarge"}"#));
    let text = refused("/batch", error);
    assert!(text.contains("does not take the file: too") && !text.contains(['\n', '\x1b']), "{text}");
}

/// The place of an upload is named by the hub, and may not be a metadata service.
#[test]
fn upload_to_metadata_service_is_refused() {
    for host in ["169.254.169.254", "[fd00:ec2::254]"] {
        let room = Room::with(move |hub, request| {
            let is_batch = request.path.ends_with("/info/lfs/objects/batch");
            let mut reply = is_batch.then(|| hub.answer(request))?;
            let text = String::from_utf8(reply.body).unwrap();
            reply.body = text.replace(hub.url.trim_start_matches("http://"), host).into_bytes();
            Some(reply)
        });
        let from = folder(&[("model.safetensors", bytes(1, 2 * LARGE as usize))]);
        let error = room.publish("hf://team/digits", from.path()).unwrap_err();
        assert!(error.is_final() && error.to_string().contains("such as a metadata service's"), "{error}");
    }
}

#[test]
fn hub_endpoint_comes_from_secret() {
    let room = Room::new();
    let from = folder(&[("a", b"1".to_vec())]);
    fs::write(room.credentials.path().join("HF_ENDPOINT"), format!("{}\n", room.server.url())).unwrap();
    let options = Options { endpoint: None, ..room.options(from.path()) };
    Room::publish_with("hf://team/digits", &options).unwrap();
}

/// Serves the hub to another client, which tests/fetch/clients_test.py runs: it writes the hub's URL to the file that
/// the variable names, until the file is removed. Then the files of the branch main are in the folder beside it.
#[test]
fn a_hub_for_another_client() {
    let Some(file) = std::env::var_os("PUBLISH_TEST_HUB") else { return };
    let file = Path::new(&file);
    let room = Room::new();
    fs::write(file, room.server.url()).unwrap();
    crate::tests::until("the client", || (!file.exists()).then_some(()));
    let out = file.with_extension("files");
    for (path, content) in room.hub.lock().files("main") {
        let at = out.join(path);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        fs::write(at, content).unwrap();
    }
    let lines: Vec<String> = room.server.take().iter().map(Request::line).collect();
    fs::write(file.with_extension("log"), lines.join("\n")).unwrap();
}
