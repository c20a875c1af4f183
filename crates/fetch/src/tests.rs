//! Whole fetches against stand-ins.

use crate::stand_in::{Reply, Repository, Request, Server, bytes, file, s3, sha256};
use crate::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const MIB: usize = 1024 * 1024;
/// The limit of stalls in the tests that wait for it.
const STALL: Duration = Duration::from_secs(1);

/// Does something to an entry of the cache.
type Damage<'a> = Box<dyn Fn() + 'a>;
/// Writes an answer.
type Answer = fn(&mut TcpStream) -> std::io::Result<()>;

/// Writes an answer that depends on the test.
type Body = Box<dyn Fn(&mut TcpStream) -> std::io::Result<()> + Send>;

/// A cache and what a fetch is given.
struct Room {
    folder: tempfile::TempDir,
    options: Options,
}

impl Room {
    fn new(endpoint: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("cache")).unwrap();
        let mut options = Options::new(folder.path().join("cache"));
        options.endpoint = Some(endpoint.to_owned());
        options.patience =
            NetworkTimeouts { back_off: Duration::from_millis(5), least_data: 1000, ..NetworkTimeouts::default() };
        options.lease = LeaseTimes { beat: Duration::from_millis(100), silence: Duration::from_secs(2) };
        Self { folder, options }
    }

    fn secret(&mut self, files: &[(&str, &str)]) {
        let folder = self.folder.path().join("secret");
        drop(fs::create_dir(&folder));
        files.iter().for_each(|(name, value)| fs::write(folder.join(name), value).unwrap());
        self.options.credentials = Some(folder);
    }

    fn impatient(mut self) -> Self {
        self.options.patience.silence = STALL;
        self
    }

    fn fetch(&self, uri: &str) -> Result<Fetched, FetchError> {
        run(fetch(&address(uri), &self.options, &Progress::default()))
    }

    fn error(&self, uri: &str) -> FetchError {
        self.fetch(uri).expect_err("an error")
    }

    fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.options.cache.join(folder)).into_iter().flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// That no lease and nothing half done is left.
    fn is_tidy(&self) {
        assert_eq!(self.names(".fetching"), [""; 0]);
    }
}

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

fn address(uri: &str) -> Address {
    Address::parse(uri, ContentKind::Model).unwrap()
}

fn content(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(at) = folders.pop() {
        for entry in fs::read_dir(&at).unwrap().map(Result::unwrap) {
            match entry.file_type().unwrap().is_dir() {
                true => folders.push(entry.path()),
                false => {
                    let path = entry.path().strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
                    found.insert(path, fs::read(entry.path()).unwrap());
                }
            }
        }
    }
    found
}

fn repository() -> Repository {
    Repository::new(&[
        ("config.json", b"{}".to_vec()),
        ("empty", Vec::new()),
        ("folder/a b.txt", bytes(1, 100)),
        ("folder/deep/large", bytes(2, 50_000)),
        ("model.safetensors", bytes(3, 3 * MIB + 17)),
        ("pytorch_model.bin", bytes(4, 20_000)),
    ])
}

fn hub(repository: Repository) -> Server {
    Server::new(move |request| repository.answer(request))
}

fn count(asked: &[Request], part: &str) -> usize {
    asked.iter().filter(|request| request.path.contains(part)).count()
}

/// Waits for a condition.
fn until(what: &str, look: impl FnMut() -> bool) {
    until_within(Duration::from_secs(120), what, look);
}

fn until_within(limit: Duration, what: &str, mut look: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !look() {
        assert!(begin.elapsed() < limit, "waited for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

// ---- the hub

#[test]
fn hub_model_is_fetched_once_per_revision() {
    let first = repository();
    let server = hub(first.clone());
    let mut room = Room::new(&server.url());
    let fetched = room.fetch("hf://a/b").unwrap();
    let mut expected = first.files.clone();
    expected.remove("pytorch_model.bin");
    assert!(content(&fetched.path) == expected, "other files: {:?}", content(&fetched.path).keys());
    assert_eq!((&fetched.revision, fetched.files), (&first.commit, 5));
    let size: usize = expected.values().map(Vec::len).sum();
    assert_eq!((fetched.bytes, fetched.from_network), (size as u64, size as u64));
    let asked = server.take();
    assert_eq!(count(&asked, "/revision/"), 1);
    assert_eq!(count(&asked, "/tree/"), 4, "three pages of 7 entries in twos");
    room.is_tidy();
    assert_eq!(room.names(&fetched.key), ["data", "entry.json", "files.jsonl"]);

    let again = room.fetch("hf://a/b").unwrap();
    assert_eq!(again, Fetched { from_network: 0, ..fetched.clone() });
    assert_eq!(server.take().len(), 1, "the revision");

    // The name moves. A pinned revision does not.
    let second = Repository::new(&[("config.json", b"{\"x\": 1}".to_vec())]);
    let answers = [first.clone(), second.clone()];
    server.set(move |request| {
        let old = request.path.contains(&answers[0].commit);
        answers[usize::from(!old)].answer(request)
    });
    let moved = room.fetch("hf://a/b@main").unwrap();
    assert_eq!((&moved.revision, moved.files), (&second.commit, 1));
    assert_ne!(moved.key, fetched.key);
    drop(server);
    room.options.revision = Some(first.commit.clone());
    assert_eq!(room.fetch("hf://a/b").unwrap(), again, "with the server off");
    room.options.revision = None;
    let by_commit = room.fetch(&format!("hf://a/b@{}", first.commit)).unwrap();
    assert_eq!((&by_commit.key, by_commit.from_network), (&again.key, 0));
    let error = room.impatient().error("hf://a/b");
    assert!(!error.is_final(), "a server that is off may come back: {error}");
}

#[test]
fn hub_subpaths_and_weight_formats_are_respected() {
    let server = hub(repository());
    let mut room = Room::new(&server.url());
    let folder = room.fetch("hf://a/b/folder").unwrap();
    assert_eq!(content(&folder.path).keys().collect::<Vec<_>>(), ["a b.txt", "deep/large"]);
    let file = room.fetch("hf://a/b/folder/deep/large").unwrap();
    assert!(file.path.ends_with("data/large"));
    assert_eq!(fs::read(&file.path).unwrap(), bytes(2, 50_000));
    let error = room.error("hf://a/b/nothing");
    assert!(error.kind == FetchErrorKind::NotFound && error.to_string().contains("check the name"), "{error}");
    let error = room.error("hf://a/b/pytorch_model.bin");
    assert!(error.to_string().contains("safetensorsOnly: false"), "{error}");
    room.options.safetensors_only = false;
    assert_eq!(room.fetch("hf://a/b").unwrap().files, 6);
    room.is_tidy();
}

#[test]
fn tokens_stay_with_their_host_and_gated_errors_name_the_page() {
    let cdn = hub(repository());
    let server = hub(Repository { cdn: cdn.url(), is_gated: true, ..repository() });
    let mut room = Room::new(&server.url());
    let error = room.error("hf://a/b");
    let text = error.to_string();
    assert_eq!((error.kind, error.status), (FetchErrorKind::Denied, Some(403)));
    assert!(text.contains(&format!("accept it at {}/a/b", server.url())) && text.contains("HF_TOKEN"), "{text}");
    room.is_tidy();
    room.secret(&[("HF_TOKEN", "hunter2\n")]);
    room.fetch("hf://a/b").unwrap();
    assert!(server.take().iter().any(|request| request.header("authorization") == Some("Bearer hunter2")));
    let asked = cdn.take();
    assert!(!asked.is_empty() && asked.iter().all(|request| request.header("authorization").is_none()));
    // A token that is not allowed.
    server.set(|_| Reply::new(403, "").with("x-error-code", "GatedRepo"));
    let text = room.error("hf://a/b").to_string();
    assert!(text.contains("the account of HF_TOKEN may not read it") && !text.contains("hunter2"), "{text}");
}

#[test]
fn http_statuses_are_final_or_retried() {
    let repository = repository();
    let server = hub(repository.clone());
    let room = Room::new(&server.url());
    for (status, code, kind, part) in [
        (401, "RepoNotFound", FetchErrorKind::Denied, "does not exist, is private or is gated"),
        (404, "RepoNotFound", FetchErrorKind::NotFound, "the hub has no"),
        (404, "RevisionNotFound", FetchErrorKind::NotFound, "it has no revision main"),
        (404, "EntryNotFound", FetchErrorKind::NotFound, "not in this revision"),
        (400, "", FetchErrorKind::Refused, "does not accept"),
    ] {
        server.take();
        server.set(move |_| Reply::new(status, "").with("x-error-code", code));
        let error = room.error("hf://a/b");
        assert_eq!((error.kind, error.status, error.is_final()), (kind, Some(status), true));
        assert!(error.to_string().contains(part) && error.to_string().contains("hf://a/b@main"), "{error}");
        assert_eq!(server.take().len(), 1, "it is not asked again");
    }
    // The first of all requests of a path is refused.
    for (status, after) in [(429, "1"), (500, "0"), (503, "0"), (429, "0")] {
        let room = Room::new(&server.url());
        let (seen, repository) = (parking_lot::Mutex::new(Vec::new()), repository.clone());
        server.set(move |request| {
            let mut seen = seen.lock();
            if seen.contains(&request.path) {
                return repository.answer(request);
            }
            seen.push(request.path.clone());
            Reply::new(status, "").with("retry-after", after)
        });
        let begin = Instant::now();
        room.fetch("hf://a/b").unwrap();
        assert!(begin.elapsed() >= Duration::from_secs(after.parse().unwrap()), "the server's pause is kept");
    }
    server.set(|_| Reply::new(503, "").with("retry-after", 0));
    server.take();
    let error = room.error("hf://a/b");
    assert_eq!((error.kind, error.status, server.take().len()), (FetchErrorKind::Unavailable, Some(503), 8));
}

#[test]
fn corrupted_hub_files_are_detected() {
    for path in ["config.json", "model.safetensors"] {
        let repository = repository();
        let mut other = repository.clone();
        other.files.get_mut(path).unwrap()[1] ^= 1;
        let bad = other.files[path].clone();
        let server = Server::new(move |request| {
            let sha = sha256(&repository.files["model.safetensors"]);
            match request.path.ends_with(path) || (path.starts_with("model") && request.path.ends_with(&sha)) {
                true => file(request, &bad, "\"x\""),
                false => repository.answer(request),
            }
        });
        let room = Room::new(&server.url());
        let error = room.error("hf://a/b");
        assert_eq!(error.kind, FetchErrorKind::Corrupted);
        assert!(error.to_string().contains(path), "{error}");
        room.is_tidy();
        assert_eq!(room.names(""), [".fetching"]);
    }
}

/// Serves hubs to another client, which tests/fetch/clients_test.py or node::fine_tuning runs: an open one and a gated
/// one, whose URLs it writes to the file that the variable names. It ends once that file is removed.
#[test]
fn hubs_for_another_client() {
    let Some(file) = std::env::var_os("FETCH_TEST_HUBS") else { return };
    let (file, cdn) = (Path::new(&file), hub(repository()));
    let repository = Repository { cdn: cdn.url(), ..repository() };
    let (open, gated) = match std::env::var_os("FETCH_TEST_MODEL") {
        // All files are at the hub itself, for clients that reach only one address.
        Some(folder) => {
            let name = std::env::var("FETCH_TEST_NAME").unwrap();
            let model = Repository { name, page: 100, ..Repository::new(&files_below(Path::new(&folder))) };
            (hub(model.clone()), hub(Repository { is_gated: true, ..model }))
        }
        None => (hub(repository.clone()), hub(Repository { is_gated: true, ..repository.clone() })),
    };
    for (path, content) in &repository.files {
        let at = file.with_extension("files").join(path);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        fs::write(at, content).unwrap();
    }
    let part = file.with_extension("part");
    fs::write(&part, format!("{}\n{}", open.url(), gated.url())).unwrap();
    fs::rename(part, file).unwrap();
    // It may be a cluster that starts first.
    until_within(Duration::from_secs(1200), "the client", || !file.exists());
}

/// Path and content of all files below a folder.
fn files_below(folder: &Path) -> Vec<(&'static str, Vec<u8>)> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files = entries.flat_map(|path| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        match path.is_dir() {
            true => {
                files_below(&path).into_iter().map(|(inner, body)| (&*format!("{name}/{inner}").leak(), body)).collect()
            }
            false => vec![(&*name.leak(), fs::read(&path).unwrap())],
        }
    });
    files.collect()
}

// ---- cuts

#[test]
fn two_hundred_interruptions_cost_few_extra_bytes() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let large = bytes(5, 5 * MIB);
    let cuts = Arc::new(AtomicUsize::new(200));
    let random = Mutex::new(StdRng::seed_from_u64(seed));
    let (content_too, left) = (large.clone(), Arc::clone(&cuts));
    let server = Server::new(move |request| {
        let reply = file(request, &content_too, "\"one\"");
        if request.header("range") == Some("bytes=0-0") || reply.body.len() < 2 {
            return reply;
        }
        let is_cut = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
        // All cuts together come before the end.
        let after = random.lock().random_range(0..reply.body.len().min(25_000));
        if is_cut { reply.cut_after(after) } else { reply }
    });
    let mut room = Room::new(&server.url());
    room.options.patience =
        NetworkTimeouts { least_data: 1, back_off: Duration::from_millis(1), ..room.options.patience };
    let uri = format!("{}/large#sha256={}", server.url(), sha256(&large));
    let fetched = room.fetch(&uri).unwrap();
    assert!(fs::read(&fetched.path).unwrap() == large, "seed {seed}");
    let sent = server.sent.load(Ordering::Relaxed);
    assert!(sent <= large.len() as u64 + 200 * 1024, "seed {seed}: {sent} bytes were sent for {}", large.len());
    assert!(cuts.load(Ordering::Relaxed) == 0, "seed {seed}: there were cuts left");
    assert!(server.take().iter().skip(3).any(|request| request.header("if-range") == Some("\"one\"")));
}

#[test]
fn download_restarts_if_the_server_lacks_ranges() {
    let large = bytes(6, 2 * MIB);
    let tries = AtomicUsize::new(0);
    let content_too = large.clone();
    let server = Server::new(move |_| {
        let reply = Reply::new(200, content_too.as_slice());
        match tries.fetch_add(1, Ordering::Relaxed) {
            1 => reply.cut_after(MIB),
            2 => reply.cut_after(MIB + 500_000),
            _ => reply,
        }
    });
    let room = Room::new(&server.url());
    let uri = format!("{}/x/large.tar#sha256={}", server.url(), sha256(&large));
    let fetched = room.fetch(&uri).unwrap();
    assert!(fetched.path.ends_with("data/large.tar"));
    assert!(fs::read(&fetched.path).unwrap() == large);
    drop(server);
    assert_eq!(room.fetch(&uri).unwrap().from_network, 0, "with the server off");
}

#[test]
fn file_replaced_between_ranges_is_rejected() {
    let (old, new) = (bytes(7, MIB), bytes(8, MIB));
    let uri = |server: &Server| format!("{}/f#sha256={}", server.url(), sha256(&old));
    // By If-Range, and by a server that ignores it.
    for ignores in [false, true] {
        let tries = AtomicUsize::new(0);
        let (old_too, new_too) = (old.clone(), new.clone());
        let server = Server::new(move |request| match tries.fetch_add(1, Ordering::Relaxed) {
            0 => file(request, &old_too, "\"old\""),
            1 => file(request, &old_too, "\"old\"").cut_after(MIB / 2),
            _ if ignores => {
                let mut request = request.clone();
                request.headers.remove("if-range");
                file(&request, &new_too, "\"new\"")
            }
            _ => file(request, &new_too, "\"new\""),
        });
        let room = Room::new(&server.url());
        let error = room.error(&uri(&server));
        assert_eq!(error.kind, FetchErrorKind::Changed, "{error}");
        let error = room.error(&uri(&server));
        assert_eq!((error.kind, error.is_final()), (FetchErrorKind::Corrupted, true), "{error}");
        assert!(error.to_string().contains("/f#sha256="), "{error}");
        assert_eq!(room.names(""), [".fetching"]);
        room.is_tidy();
    }
}

// ---- the cache

#[test]
fn damaged_cache_entries_are_set_aside_and_refetched() {
    let repository = repository();
    let server = hub(repository.clone());
    let mut room = Room::new(&server.url());
    let fetched = room.fetch("hf://a/b").unwrap();
    let entry = room.options.cache.join(&fetched.key);
    let config = fetched.path.join("config.json");
    let damages: [(&str, bool, Damage); 6] = [
        ("config.json has 1 bytes", false, Box::new(|| fs::write(&config, "{").unwrap())),
        ("config.json has another SHA-256", true, Box::new(|| fs::write(&config, "[]").unwrap())),
        ("config.json is missing", false, Box::new(|| fs::remove_file(&config).unwrap())),
        ("entry.json is missing", false, Box::new(|| fs::remove_file(entry.join("entry.json")).unwrap())),
        ("entry.json can't be read", false, Box::new(|| fs::write(entry.join("entry.json"), "{").unwrap())),
        (
            "files.jsonl is not the list",
            false,
            Box::new(|| {
                let list = fs::read_to_string(entry.join("files.jsonl")).unwrap();
                let short: Vec<&str> = list.lines().skip(1).collect();
                fs::write(entry.join("files.jsonl"), short.join("\n") + "\n").unwrap();
            }),
        ),
    ];
    for (count, (why, needs_verify, damage)) in damages.iter().enumerate() {
        damage();
        if *needs_verify {
            assert_eq!(room.fetch("hf://a/b").unwrap().from_network, 0, "sizes alone do not show it");
            room.options.verify = true;
        }
        let again = room.fetch("hf://a/b").unwrap();
        room.options.verify = false;
        assert!(again.from_network > 0);
        let aside = again.set_aside.unwrap();
        assert!(aside.contains(why) && aside.contains(".damaged"), "{aside}");
        assert_eq!(fs::read(&config).unwrap(), b"{}");
        assert_eq!(room.names(".damaged").len(), count + 1);
        room.is_tidy();
    }
    room.options.verify = true;
    assert_eq!(room.fetch("hf://a/b").unwrap().from_network, 0);
}

#[test]
fn links_in_the_cache_are_not_followed() {
    let server = hub(repository());
    let room = Room::new(&server.url());
    let fetched = room.fetch("hf://a/b").unwrap();
    let outside = room.folder.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("canary"), "canary").unwrap();
    // A file that is a link, though with the right size, is none of ours.
    fs::write(outside.join("config"), "{}").unwrap();
    fs::remove_file(fetched.path.join("config.json")).unwrap();
    std::os::unix::fs::symlink(outside.join("config"), fetched.path.join("config.json")).unwrap();
    assert!(room.fetch("hf://a/b").unwrap().set_aside.unwrap().contains("config.json is missing"));
    let target = room.folder.path().join("model");
    link(&fetched.path, &target).unwrap();
    link(&fetched.path, &target).unwrap();
    assert!(fs::read_link(&target).unwrap().is_relative(), "its volume may be mounted elsewhere");
    // Also below a folder that is a link to one elsewhere.
    let (deep, short) = (room.folder.path().join("x/y/z"), room.folder.path().join("short"));
    fs::create_dir_all(&deep).unwrap();
    std::os::unix::fs::symlink(&deep, &short).unwrap();
    link(&fetched.path, &short.join("model")).unwrap();
    assert_eq!(fs::read(deep.join("model/config.json")).unwrap(), b"{}");
    assert_eq!(fs::read(target.join("config.json")).unwrap(), b"{}");
    assert!(link(&fetched.path, &outside).unwrap_err().to_string().contains("no link; remove it"));
    assert_eq!(fs::read(outside.join("canary")).unwrap(), b"canary");
}

#[test]
fn too_small_volume_is_reported_before_the_download() {
    let server = Server::new(|request| {
        if request.path.contains("/tree/") {
            let entry = r#"[{"type": "file", "path": "x", "oid": "0", "size": 1152921504606846976}]"#;
            return Reply::new(200, entry);
        }
        Reply::new(500, "")
    });
    let room = Room::new(&server.url());
    let error = room.error(&format!("hf://a/b@{}", "0".repeat(40)));
    assert_eq!((error.kind, error.is_final()), (FetchErrorKind::Local, false));
    assert!(error.to_string().contains("1.0 EiB are missing") && error.to_string().contains("enlarge"), "{error}");
    assert_eq!(count(&server.take(), "/resolve/"), 0);
    let mut room = Room::new(&server.url());
    room.options.cache = room.folder.path().join("nothing");
    assert!(room.error("hf://a/b").to_string().contains("create it"));
}

#[test]
fn concurrent_fetchers_download_only_once() {
    let server = hub(repository());
    let room = Room::new(&server.url());
    let (first, second) = std::thread::scope(|scope| {
        let other = scope.spawn(|| room.fetch("hf://a/b").unwrap());
        (room.fetch("hf://a/b").unwrap(), other.join().unwrap())
    });
    assert_eq!(first.from_network.min(second.from_network), 0);
    assert_eq!(first.from_network.max(second.from_network), first.bytes);
    assert_eq!((first.key, first.path), (second.key, second.path));
    room.is_tidy();
}

#[test]
fn fetcher_takes_over_from_a_dead_one() {
    let (large, small) = (bytes(9, 40 * MIB), bytes(10, 50_000));
    let repository = Repository::new(&[("large.safetensors", large.clone()), ("small", small)]);
    let (is_held, held) = (Arc::new(AtomicUsize::new(1)), repository.clone());
    let (holding, sha) = (Arc::clone(&is_held), sha256(&large));
    let server = Server::new(move |request| {
        let reply = held.answer(request);
        if !request.path.ends_with(&sha) || holding.load(Ordering::Relaxed) == 0 {
            return reply;
        }
        // Two parts and a half, and then silence.
        Reply::raw(move |stream| {
            let mut head = "HTTP/1.1 200 OK\r\n".to_owned();
            head.push_str(&format!("content-length: {}\r\n\r\n", reply.body.len()));
            let sent = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&reply.body[..40 * MIB - 100]));
            drop(sent);
            drop(stream.read(&mut [0]));
        })
    });
    let room = Room::new(&server.url());
    let (kill, killed) = tokio::sync::oneshot::channel::<()>();
    let options = room.options.clone();
    let first = std::thread::spawn(move || {
        run(async {
            let (address, progress) = (address("hf://a/b"), Progress::default());
            let mut work = Box::pin(fetch(&address, &options, &progress));
            tokio::select! {
                result = &mut work => panic!("it can't end: {result:?}"),
                _ = killed => {}
            }
            // A process that is killed gives nothing back.
            std::mem::forget(work);
        });
    });
    let journal = || {
        let work = room.names(".fetching").into_iter().find(|name| name.contains(".work."))?;
        fs::read_to_string(room.options.cache.join(".fetching").join(work).join("journal.jsonl")).ok()
    };
    until("two parts and a file", || {
        journal().is_some_and(|text| text.matches("part").count() >= 2 && text.contains("done"))
    });
    // A second fetcher waits meanwhile.
    let (progress, options) = (Arc::new(Progress::default()), room.options.clone());
    let watched = Arc::clone(&progress);
    let second = std::thread::spawn(move || run(fetch(&address("hf://a/b"), &options, &progress)));
    until("the second fetcher to wait", || watched.now().stage == Stage::Waiting);
    is_held.store(0, Ordering::Relaxed);
    server.take();
    kill.send(()).unwrap();
    first.join().unwrap();
    let begin = Instant::now();
    let fetched = second.join().unwrap().unwrap();
    assert!(begin.elapsed() >= room.options.lease.silence / 2, "the lease is waited for");
    assert!(content(&fetched.path) == repository.files);
    assert_eq!(fetched.from_network, 8 * MIB as u64, "only the last part of the large file was missing");
    assert_eq!(count(&server.take(), "small"), 0);
    room.is_tidy();
}

#[test]
fn dropped_fetch_releases_its_lease_and_keeps_its_data() {
    let large = bytes(16, 40 * MIB);
    let repository = Repository::new(&[("large.safetensors", large.clone())]);
    let (held, sha, cdn) = (repository.clone(), sha256(&large), AtomicUsize::new(0));
    let server = Server::new(move |request| {
        let reply = held.answer(request);
        if !request.path.ends_with(&sha) || cdn.fetch_add(1, Ordering::Relaxed) > 0 {
            return reply;
        }
        Reply::raw(move |stream| {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", reply.body.len());
            drop(stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&reply.body[..39 * MIB])));
            drop(stream.read(&mut [0]));
        })
    });
    let mut room = Room::new(&server.url());
    room.options.lease = LeaseTimes { beat: Duration::from_secs(60), silence: Duration::from_secs(600) };
    run(async {
        let (address, progress) = (address("hf://a/b"), Progress::default());
        tokio::select! {
            result = fetch(&address, &room.options, &progress) => panic!("it can't end: {result:?}"),
            () = async { while progress.now().network < 39 * MIB as u64 { tokio::task::yield_now().await } } => {}
        }
    });
    let left = room.names(".fetching");
    assert!(left.len() == 1 && left[0].contains(".work."), "{left:?}");
    let begin = Instant::now();
    let fetched = room.fetch("hf://a/b").unwrap();
    assert!(begin.elapsed() < Duration::from_secs(60), "the lease was waited for");
    assert_eq!(fetched.from_network, 8 * MIB as u64, "the first two parts were kept");
    assert!(content(&fetched.path) == repository.files);
    room.is_tidy();
}

#[test]
fn hub_endpoint_option_overrides_secret_and_default() {
    let (hub_of_secret, hub_of_option) = (hub(repository()), hub(repository()));
    let mut room = Room::new("");
    room.options.endpoint = None;
    room.secret(&[("HF_ENDPOINT", &format!("{}\n", hub_of_secret.url()))]);
    let from_secret = room.fetch("hf://a/b").unwrap();
    assert!(!hub_of_secret.take().is_empty());
    room.options.endpoint = Some(hub_of_option.url());
    let from_option = room.fetch("hf://a/b").unwrap();
    assert!(hub_of_secret.take().is_empty() && from_option.key != from_secret.key, "the content of another hub");
    room.options.endpoint = None;
    room.secret(&[("HF_ENDPOINT", "https://user:hunter2@hub.test")]);
    let text = room.error("hf://a/b").to_string();
    assert!(text.contains("HF_ENDPOINT") && !text.contains("hunter2"), "{text}");
}

#[test]
fn paused_lease_holder_is_superseded_and_publishes_nothing() {
    let room = Room::new("http://127.0.0.1:1");
    // A beat is written to the disk, which may take a while on a busy machine.
    let times = LeaseTimes { beat: Duration::from_millis(20), silence: Duration::from_secs(2) };
    let cache = Cache::open(&room.options.cache, times).unwrap();
    let key = "0123456789abcdef0123456789abcdef";
    let paused = run(cache.acquire(key, None)).unwrap().unwrap();
    let folder = cache.fetching.make(&paused.work_name()).unwrap();
    folder.make("data").unwrap().writable("x").unwrap().write_all(b"x").unwrap();
    // It does not count. Another fetcher takes over what it has.
    let next = run(cache.acquire(key, None)).unwrap().unwrap();
    let adopted = cache.fetching.folder(&next.work_name()).unwrap();
    assert!(adopted.file("data/x").is_ok());
    assert_eq!(paused.check().unwrap_err().kind, FetchErrorKind::Superseded);
    assert_eq!(run(Arc::new(paused).keep()).kind, FetchErrorKind::Superseded);
    next.check().unwrap();
    // A holder that counts is waited for, and its end is noticed.
    let next = Arc::new(next);
    run(async {
        let keeping = Arc::clone(&next);
        let kept = tokio::spawn(async move { keeping.keep().await });
        let waiting = tokio::spawn({
            let cache = cache.clone();
            async move { cache.acquire(key, None).await }
        });
        tokio::time::sleep(times.silence * 2).await;
        assert!(!waiting.is_finished(), "it counts");
        let lease = Arc::clone(&next);
        blocking(move || lease.release(true)).await.unwrap();
        assert!(waiting.await.unwrap().unwrap().is_none(), "there may be an entry now");
        assert_eq!(kept.await.unwrap().kind, FetchErrorKind::Superseded, "it has ended");
    });
    room.is_tidy();
    // A later holder has the same number, but is another one.
    let later = run(cache.acquire(key, None)).unwrap().unwrap();
    assert_eq!(next.check().unwrap_err().kind, FetchErrorKind::Superseded);
    assert!(next.release(true).is_err());
    later.check().unwrap();
}

// ---- hostile servers

/// What a busy machine may take besides.
const BUSY: Duration = Duration::from_secs(30);

/// A fetch that must fail within three stall limits: after two stalls at most, and one request that was answered.
fn fails_soon(room: &Room, server: &Server, uri: &str) -> FetchError {
    server.take();
    let begin = Instant::now();
    let error = room.error(uri);
    assert!(begin.elapsed() < STALL * 3 + BUSY, "{:?}: {error}", begin.elapsed());
    let asked = server.take().len();
    assert!(asked <= if error.stalled { 3 } else { 8 }, "{asked} requests: {error}");
    assert_eq!(room.names(""), [".fetching"], "{error}");
    error
}

fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

#[test]
fn endless_headers_and_bodies_are_cut_off() {
    let write = |write: Answer| {
        move |stream: &mut TcpStream| {
            stream.set_write_timeout(Some(Duration::from_secs(30))).unwrap();
            drop(write(stream));
        }
    };
    let cases: [(&str, Answer); 7] = [
        ("a million headers", |stream| {
            stream.write_all(b"HTTP/1.1 200 OK\r\n")?;
            (0..1000).try_for_each(|_| stream.write_all("x-some: y\r\n".repeat(1000).as_bytes()))?;
            stream.write_all(b"content-length: 0\r\n\r\n")
        }),
        ("a header of 10 MiB", |stream| {
            stream.write_all(b"HTTP/1.1 200 OK\r\nx: ")?;
            stream.write_all(&vec![b'x'; 10 * MIB])?;
            stream.write_all(b"\r\n\r\n")
        }),
        ("a header without end", |stream| {
            stream.write_all(b"HTTP/1.1 200 OK\r\nx: ")?;
            loop {
                stream.write_all(b"x")?;
                std::thread::sleep(Duration::from_millis(20));
            }
        }),
        ("nothing", |stream| stream.read(&mut [0]).map(drop)),
        ("an answer without end", |stream| {
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
            loop {
                stream.write_all(&[b' '; 8192])?;
            }
        }),
        ("an answer of a few bytes now and then", |stream| {
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
            loop {
                stream.write_all(b" ")?;
                std::thread::sleep(Duration::from_millis(20));
            }
        }),
        ("no HTTP", |stream| stream.write_all(&vec![0xff; 100_000])),
    ];
    let before = resident();
    for (what, case) in cases {
        let server = Server::new(move |_| Reply::raw(write(case)));
        let room = Room::new(&server.url()).impatient();
        let error = fails_soon(&room, &server, "hf://a/b");
        println!("{what}: {error}");
        assert!(matches!(error.kind, FetchErrorKind::Unavailable | FetchErrorKind::Refused), "{what}: {error}");
        let uri = format!("{}/f#sha256={}", server.url(), sha256(b"x"));
        fails_soon(&room, &server, &uri);
        fails_soon(&store_room(&server).impatient(), &server, "s3://bucket/m");
    }
    let more = resident().saturating_sub(before);
    assert!(more < 256 * MIB, "{more} bytes more");
}

#[test]
fn response_of_wrong_length_is_cut_or_rejected() {
    let small = bytes(11, 5000);
    let (content_too, sha) = (small.clone(), sha256(&small));
    let serve = move |request: &Request, write: Body| match request.header("range") {
        Some("bytes=0-0") => file(request, &content_too, "\"x\""),
        _ => Reply::raw(move |stream| drop(write(stream))),
    };
    // More than was promised, without end: what was promised is right, so the rest does not matter.
    let content_too = small.clone();
    let serve_too = serve.clone();
    let server = Server::new(move |request| {
        let content = content_too.clone();
        serve_too(
            request,
            Box::new(move |stream| {
                stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
                stream.write_all(&content)?;
                loop {
                    stream.write_all(&[0; 8192])?;
                }
            }),
        )
    });
    let room = Room::new(&server.url()).impatient();
    let fetched = room.fetch(&format!("{}/f#sha256={sha}", server.url())).unwrap();
    assert_eq!((fs::read(fetched.path).unwrap(), fetched.from_network), (small.clone(), 5000));
    // Other lengths in the header, and less than promised.
    for (head, rest) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 6000\r\n\r\n", 6000),
        ("HTTP/1.1 200 OK\r\ncontent-length: 18446744073709551615\r\n\r\n", 10),
        ("HTTP/1.1 200 OK\r\n\r\n", 10),
        ("HTTP/1.1 206 OK\r\ncontent-range: bytes 7-9/5000\r\n\r\n", 10),
        ("HTTP/1.1 206 OK\r\n\r\n", 5000),
        ("HTTP/1.1 304 OK\r\n\r\n", 0),
        ("HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n", 10),
    ] {
        let serve = serve.clone();
        let server = Server::new(move |request| {
            serve(
                request,
                Box::new(move |stream| {
                    stream.write_all(head.as_bytes())?;
                    stream.write_all(&vec![0; rest])
                }),
            )
        });
        let room = Room::new(&server.url()).impatient();
        fails_soon(&room, &server, &format!("{}/f#sha256={sha}", server.url()));
    }
}

#[test]
fn slow_responses_add_up_across_requests() {
    // Each redirect, page and file alone is faster than the limit.
    let pause = STALL.mul_f32(0.8);
    let answers = |path: &str| match path {
        _ if path.contains("/revision/") => Reply::new(200, format!(r#"{{"sha": "{}"}}"#, "0".repeat(40))),
        _ => {
            let path = format!("{}", rand::random::<u64>());
            let entry = format!(r#"[{{"type": "file", "path": "{path}", "oid": "0", "size": 1}}]"#);
            Reply::new(200, entry).with("link", "</next/tree/>; rel=\"next\"")
        }
    };
    let pages = Server::new(move |request| {
        std::thread::sleep(pause);
        answers(&request.path)
    });
    let redirects = Server::new(move |request| {
        std::thread::sleep(pause);
        Reply::new(302, "").with("location", format!("{}x", request.path))
    });
    for server in [pages, redirects] {
        let room = Room::new(&server.url()).impatient();
        let begin = Instant::now();
        let error = room.error("hf://a/b");
        assert!(error.stalled && begin.elapsed() < STALL * 3 + BUSY, "{error}");
        let asked = server.take().len();
        assert!(asked <= 4, "{asked} requests: {error}");
    }
}

#[test]
fn redirects_to_internal_addresses_are_rejected() {
    // The hub lies in the internet as far as the client knows; the listeners are what it must not reach.
    let untouched = TcpListener::bind("127.0.0.1:0").unwrap();
    untouched.set_nonblocking(true).unwrap();
    let inner = untouched.local_addr().unwrap();
    let target = Arc::new(Mutex::new(String::new()));
    let leads_to = Arc::clone(&target);
    let server = Server::new(move |_| Reply::new(302, "").with("location", leads_to.lock().clone()));
    let mut room = Room::new(&format!("http://hub.test:{}", server.address.port())).impatient();
    room.secret(&[("HF_TOKEN", "hunter2")]);
    room.options.hosts = vec![
        ("hub.test".to_owned(), server.address, reach::Reach::Public),
        ("metadata.test".to_owned(), inner, reach::Reach::Loopback),
        ("169.254.169.254.nip.test".to_owned(), inner, reach::Reach::Link),
    ];
    for to in [
        format!("http://{inner}/latest/meta-data"),
        format!("http://localhost.:{}/", inner.port()),
        format!("http://metadata.test:{}/", inner.port()),
        format!("http://169.254.169.254.nip.test:{}/", inner.port()),
        "http://169.254.169.254/latest/meta-data".to_owned(),
        "http://[::ffff:169.254.169.254]/".to_owned(),
        "http://[fd00:ec2::254]/".to_owned(),
        "http://user:pw@hub.test/".to_owned(),
        "file:///etc/passwd".to_owned(),
        "gopher://x/".to_owned(),
        "http://[bad".to_owned(),
        "/again".to_owned(),
    ] {
        target.lock().clone_from(&to);
        let error = fails_soon(&room, &server, "hf://a/b");
        let is_unknown_name = to.contains("localhost");
        assert!(error.kind == FetchErrorKind::Refused || is_unknown_name, "{to}: {error}");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
    assert!(untouched.accept().is_err(), "a listener was reached");
    // Loopback may lead to loopback, but not to the metadata server.
    let room = Room::new(&server.url()).impatient();
    target.lock().replace_range(.., "http://169.254.169.254/latest/meta-data");
    assert_eq!(fails_soon(&room, &server, "hf://a/b").kind, FetchErrorKind::Refused);
}

#[test]
fn unsafe_paths_from_the_hub_are_rejected() {
    for path in ["../canary", "/etc/canary", "a/../../canary", "a//b", "a\\u0000b", ".", "a/./b"] {
        let server = Server::new(move |request| match request.path.contains("/tree/") {
            true => Reply::new(
                200,
                format!(r#"[{{"type": "file", "path": "{path}", "oid": "{}", "size": 1}}]"#, "0".repeat(40)),
            ),
            false => Reply::new(200, "x"),
        });
        let room = Room::new(&server.url());
        fs::write(room.options.cache.join("canary"), "canary").unwrap();
        let error = room.error(&format!("hf://a/b@{}", "0".repeat(40)));
        assert_eq!(error.kind, FetchErrorKind::Refused);
        assert!(error.to_string().contains("the path"), "{error}");
        assert_eq!(room.names(""), [".fetching", "canary"]);
        room.is_tidy();
    }
    // Lists without end, and at another host.
    let server = Server::new(|_| Reply::new(200, "[]").with("link", "<http://other.test/x>; rel=\"next\""));
    let room = Room::new(&server.url());
    let error = room.error(&format!("hf://a/b@{}", "0".repeat(40)));
    assert!(error.to_string().contains("another host"), "{error}");
}

// ---- object stores

fn bucket(objects: &[(&str, Vec<u8>)]) -> BTreeMap<String, Vec<u8>> {
    objects.iter().map(|(key, content)| ((*key).to_owned(), content.clone())).collect()
}

fn store_room(server: &Server) -> Room {
    let mut room = Room::new(&server.url());
    room.secret(&[("AWS_SKIP_SIGNATURE", "true"), ("AWS_REGION", "us-east-1"), ("AWS_ENDPOINT_URL", &server.url())]);
    room
}

#[test]
fn only_objects_below_the_prefix_are_fetched() {
    let objects = bucket(&[
        ("a/model/", Vec::new()),
        ("a/model/config.json", b"{}".to_vec()),
        ("a/model/empty", Vec::new()),
        ("a/model/sub/", Vec::new()),
        ("a/model/sub/large", bytes(12, 2 * MIB)),
        ("a/model/sub/x..y", bytes(13, 10)),
        ("a/model-v2/config.json", b"[]".to_vec()),
        ("a/model2", b"x".to_vec()),
        ("a/one", b"one".to_vec()),
        ("bad/../x", b"x".to_vec()),
        ("both", b"x".to_vec()),
        ("both/x", b"x".to_vec()),
        ("twice//x", b"x".to_vec()),
    ]);
    let served = Arc::new(Mutex::new(objects.clone()));
    let serving = Arc::clone(&served);
    let server = Server::new(move |request| s3(request, &serving.lock(), 2));
    let mut room = store_room(&server);
    let fetched = room.fetch("s3://bucket/a/model").unwrap();
    let found = content(&fetched.path);
    assert_eq!(found.keys().collect::<Vec<_>>(), ["config.json", "empty", "sub/large", "sub/x..y"]);
    assert!(found.iter().all(|(path, content)| objects[&format!("a/model/{path}")] == *content));
    let list = fs::read_to_string(room.options.cache.join(&fetched.key).join("files.jsonl")).unwrap();
    assert!(list.contains(&sha256(&found["sub/large"])), "hashes are recorded");
    assert!(server.take().iter().any(|request| request.header("if-match").is_some()));
    assert_eq!(room.fetch("s3://bucket/a/model/").unwrap().from_network, 0, "only listed");
    let one = room.fetch("s3://bucket/a/one").unwrap();
    assert!(one.path.ends_with("data/one") && fs::read(&one.path).unwrap() == b"one");
    assert_eq!(room.fetch("oci://n/space/b/bucket/o/a/one").unwrap().files, 1);
    for (prefix, kind, part) in [
        ("none", FetchErrorKind::NotFound, "there is no file"),
        ("bad", FetchErrorKind::Refused, "bad/../x"),
        ("twice", FetchErrorKind::Refused, "twice//x"),
    ] {
        let error = room.error(&format!("s3://bucket/{prefix}"));
        assert_eq!(error.kind, kind, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
    let error = room.error("oci://n/space/b/bucket/o/none");
    assert!(error.to_string().contains("oci://n/space/b/bucket/o/none"), "{error}");
    // What was resolved once stays, also with the server off; other content is not taken for it.
    room.options.revision = Some(fetched.revision.clone());
    served.lock().insert("a/model/config.json".to_owned(), b"()".to_vec());
    assert_eq!(room.fetch("s3://bucket/a/model").unwrap().key, fetched.key);
    fs::remove_dir_all(room.options.cache.join(&fetched.key)).unwrap();
    let error = room.error("s3://bucket/a/model");
    assert!(error.is_final() && error.to_string().contains("no longer that of revision"), "{error}");
    room.options.revision = None;
    let changed = room.fetch("s3://bucket/a/model").unwrap();
    assert_ne!(changed.revision, fetched.revision);
    room.is_tidy();
}

#[test]
fn limited_cache_evicts_entries_no_job_uses() {
    let objects = bucket(&[
        ("a/x", bytes(20, MIB)),
        ("b/x", bytes(21, MIB)),
        ("c/x", bytes(22, MIB)),
        ("d/x", bytes(23, 3 * MIB)),
    ]);
    let server = Server::new(move |request| s3(request, &objects, 2));
    let mut room = store_room(&server);
    let limit = |used: &[(&str, &str)]| {
        let used = used.iter().map(|(key, job)| ((*key).to_owned(), (*job).to_owned())).collect();
        Some(Limit { bytes: 2 * MIB as u64 + 10, used: Some(used), age: Duration::ZERO })
    };
    room.options.limit = limit(&[]);
    let [a, b] = ["a", "b"].map(|name| room.fetch(&format!("s3://bucket/{name}")).unwrap());
    room.is_tidy();
    let error = room.error("s3://bucket/c");
    let text = error.to_string();
    assert!(
        !error.is_final() && text.contains("cache.limit (2.0 MiB)") && text.contains("it was used recently"),
        "{text}"
    );
    room.is_tidy();

    // The one that was used first is the one that a job uses.
    for (fetched, hours) in [(&a, 3), (&b, 2)] {
        let marker = room.options.cache.join(&fetched.key).join("entry.json");
        let then = std::time::SystemTime::now() - Duration::from_secs(hours * 3600);
        fs::File::options().write(true).open(marker).unwrap().set_modified(then).unwrap();
    }
    room.options.limit = limit(&[(&a.key, "first")]);
    let c = room.fetch("s3://bucket/c").unwrap();
    assert_eq!(c.removed, [b.key.as_str()]);
    assert!(!room.options.cache.join(&b.key).exists() && content(&a.path).len() == 1);
    room.is_tidy();

    // A use without a byte from the network is a use.
    room.options.limit = limit(&[]);
    assert_eq!(room.fetch("s3://bucket/a").unwrap().from_network, 0);
    assert!(!room.error("s3://bucket/b").is_final());
    let error = room.error("s3://bucket/d");
    assert!(error.is_final() && error.to_string().contains("larger cache.limit"), "{error}");
    room.is_tidy();
}

/// Each counts what the other has yet to fetch.
#[test]
fn concurrent_fetchers_count_each_others_pending_size() {
    let objects = bucket(&[("a/x", bytes(24, MIB)), ("b/x", bytes(25, MIB))]);
    let server = Server::new(move |request| s3(request, &objects, 2));
    let mut room = store_room(&server);
    room.options.limit = Some(Limit { bytes: 2 * MIB as u64 - 1, used: Some(BTreeMap::new()), age: Duration::ZERO });
    let results = std::thread::scope(|scope| {
        let fetches = ["s3://bucket/a", "s3://bucket/b"].map(|uri| scope.spawn(|| room.fetch(uri)));
        fetches.map(|fetch| fetch.join().unwrap())
    });
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "{results:?}");
    room.is_tidy();
}

#[test]
fn objects_replaced_during_a_fetch_are_refetched_next_time() {
    let (old, new) = (bytes(14, MIB), bytes(15, MIB));
    let (gets, new_too) = (AtomicU64::new(0), new.clone());
    let server = Server::new(move |request| {
        let is_list = request.query.contains("list-type");
        let replaced = gets.fetch_add(u64::from(!is_list), Ordering::Relaxed) >= u64::from(!is_list);
        let is_old =
            if is_list { gets.load(Ordering::Relaxed) == 0 } else { !replaced || gets.load(Ordering::Relaxed) == 1 };
        let content = if is_old { &old } else { &new_too };
        let reply = s3(request, &bucket(&[("m/x", content.clone())]), 10);
        if !is_list && is_old { reply.cut_after(MIB / 2) } else { reply }
    });
    let room = store_room(&server);
    let error = room.error("s3://bucket/m");
    assert_eq!((error.kind, error.is_final()), (FetchErrorKind::Changed, false), "{error}");
    let fetched = room.fetch("s3://bucket/m").unwrap();
    assert!(fs::read(fetched.path.join("x")).unwrap() == new);
}

#[test]
fn retry_after_of_a_busy_store_is_respected() {
    let objects = bucket(&[("m/x", bytes(17, 1000))]);
    for (status, headers, pause) in [
        (503, [("retry-after", "1")], Duration::from_secs(1)),
        (429, [("retry-after", "1")], Duration::from_secs(1)),
        (503, [("x-none", "1")], Duration::ZERO),
    ] {
        // The first of all requests of a path is refused, and with it the list and the object.
        let (seen, objects) = (Mutex::new(Vec::new()), objects.clone());
        let server = Server::new(move |request| {
            let mut seen = seen.lock();
            if seen.contains(&request.path) {
                return s3(request, &objects, 10);
            }
            seen.push(request.path.clone());
            let reply = Reply::new(status, "<Error><Code>SlowDown</Code><Message>later</Message></Error>");
            headers.iter().fold(reply, |reply, (name, value)| reply.with(name, value))
        });
        let room = store_room(&server);
        let begin = Instant::now();
        room.fetch("s3://bucket/m").unwrap();
        assert!(begin.elapsed() >= pause * 2, "{status}: the server's pause is kept");
        let times = server.take().len();
        assert_eq!(times, 4, "each is asked twice");
    }
    let server = Server::new(|_| Reply::new(503, "<Error><Code>SlowDown</Code></Error>").with("retry-after", 0));
    let error = store_room(&server).error("s3://bucket/m");
    assert_eq!((error.kind, error.status, server.take().len()), (FetchErrorKind::Unavailable, Some(503), 8));
    assert!(error.to_string().contains("HTTP 503 SlowDown"), "{error}");
}

#[test]
fn changed_objects_are_detected_without_store_preconditions() {
    let listed = bucket(&[("m/x", bytes(18, 1000))]);
    for (other, part) in [(bytes(19, 1000), "changed meanwhile"), (bytes(18, 1001), "1001 bytes, and 1000 in the list")]
    {
        let (listed, changed) = (listed.clone(), bucket(&[("m/x", other.clone())]));
        let has_tag = other.len() == 1000;
        let server = Server::new(move |request| {
            if request.query.contains("list-type") {
                return s3(request, &listed, 10);
            }
            let mut request = request.clone();
            request.headers.remove("if-match");
            let mut reply = s3(&request, &changed, 10);
            reply.headers.retain(|(name, _)| has_tag || name != "etag");
            reply
        });
        let error = store_room(&server).error("s3://bucket/m");
        assert_eq!(error.kind, FetchErrorKind::Changed, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn access_denied_by_a_store_is_reported_with_a_remedy() {
    let server = Server::new(|_| Reply::new(403, "<Error><Code>AccessDenied</Code></Error>"));
    let room = store_room(&server);
    let error = room.error("s3://bucket/m");
    assert_eq!((error.kind, error.status), (FetchErrorKind::Denied, Some(403)));
    assert!(error.to_string().contains("s3://bucket/m") && error.to_string().contains("Secret"), "{error}");
    let mut room = Room::new("");
    room.options.endpoint = None;
    room.secret(&[("x", "y")]);
    let error = room.error("oci://n/space/b/bucket/o/x");
    assert!(error.to_string().contains("https://space.compat.objectstorage.REGION.oraclecloud.com"), "{error}");
}
