//! Object stores for real: servers that speak S3, Google's and Azure's protocols. A proxy between cuts, refuses, lies
//! and is silent.
//!
//! The servers are built once from their pinned Go modules and are kept in the cache. Google's store is S3's server
//! behind a translator. `testkit::servers` says what it proves and what it does not.

use checkpoint::files::Member;
use checkpoint::found::{Depth, Format, FoundCheckpoint, Verdict};
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use store::{Access, Checksum, Destination, ErrorKind, Layout, Manifest, NetworkTimeouts, Store, StoreError};
use testkit::room::Room;
use testkit::servers::{ACCOUNT, ACCOUNT_KEY, Asked, BUCKET, Fault, KEY, Proxy, SECRET, Server};
use testkit::wait::{SOON, until};

const MIB: u64 = 1024 * 1024;
/// The size of one request's data. Longer files are sent in parts of it.
const PART: u64 = 16 * MIB;
/// Long enough to be sent in three parts, the last of them short.
const LARGE: u64 = 2 * PART + MIB;
/// Long enough to be fetched by two requests, the second of which brings no more than that.
const SECOND: u64 = MIB;
const FETCHED_IN_TWO: u64 = 64 * MIB + SECOND;

// ---- what the tests are made of

/// Runs the work as the agent does.
fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// Reproducible bytes that look like no others.
fn bytes(seed: u64, length: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length as usize + 8);
    while (bytes.len() as u64) < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length as usize);
    bytes
}

fn write(root: &Path, path: &str, content: &[u8]) {
    let file = root.join(path);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, content).unwrap();
}

fn walk(folder: &Path, below: &str, files: &mut BTreeMap<String, PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().into_string().unwrap();
        let path = if below.is_empty() { name } else { format!("{below}/{name}") };
        if path == ".trainingjob" {
            continue;
        }
        if entry.file_type().unwrap().is_dir() {
            walk(&entry.path(), &path, files);
        } else {
            files.insert(path, entry.path());
        }
    }
}

/// All files below a folder with their content, except the operator's.
fn content(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    walk(folder, "", &mut files);
    files.into_iter().map(|(path, file)| (path, fs::read(file).unwrap())).collect()
}

/// A checkpoint as the inventory finds it, of the files that `is_one` selects.
fn found_of(root: &Path, path: &str, format: Format, step: u64, is_one: impl Fn(&str) -> bool) -> FoundCheckpoint {
    let at = root.join(path);
    let base = if at.is_dir() { at } else { at.parent().unwrap().to_owned() };
    let mut files = BTreeMap::new();
    walk(&base, "", &mut files);
    let member = |(path, file): (String, PathBuf)| {
        let data = fs::metadata(file).unwrap();
        Member { path, size: data.len(), modified: data.mtime() * 1_000_000_000 + data.mtime_nsec() }
    };
    let members: Vec<Member> = files.into_iter().filter(|(path, _)| is_one(path)).map(member).collect();
    FoundCheckpoint {
        path: path.to_owned(),
        folder: root.join(path).is_dir() && format != Format::Tensorflow,
        format,
        step: Some(step),
        epoch: Some(0.5),
        metrics: BTreeMap::from([("eval_loss".to_owned(), 0.25), ("broken".to_owned(), f64::NAN)]),
        bytes: members.iter().map(|member| member.size).sum(),
        modified: Timestamp::from_nanosecond(i128::from(members.iter().map(|member| member.modified).max().unwrap()))
            .unwrap(),
        order: step,
        earliest: step,
        verdict: Verdict::Valid,
        depth: Depth::Content,
        members,
        needs: Vec::new(),
    }
}

fn found(root: &Path, path: &str, step: u64) -> FoundCheckpoint {
    found_of(root, path, Format::HuggingFace, step, |_| true)
}

/// A checkpoint as users have them: a large file, small ones, an empty one, folders, odd names.
fn checkpoint(root: &Path, path: &str, step: u64) -> FoundCheckpoint {
    write(root, &format!("{path}/model.safetensors"), &bytes(step, LARGE));
    write(root, &format!("{path}/trainer_state.json"), format!(r#"{{"global_step": {step}}}"#).as_bytes());
    write(root, &format!("{path}/empty"), b"");
    write(root, &format!("{path}/a/b/Größe & [1]+~%23 #1.bin"), &bytes(step + 1, 1000));
    write(root, &format!("{path}/just-one-part"), &bytes(step + 2, PART));
    found(root, path, step)
}

/// A small checkpoint.
fn small(root: &Path, path: &str, step: u64) -> FoundCheckpoint {
    for file in 0..3 {
        write(root, &format!("{path}/{file}"), &bytes(step * 10 + file, 1000 + step));
    }
    found(root, path, step)
}

fn impatient() -> NetworkTimeouts {
    NetworkTimeouts {
        connect: Duration::from_secs(10),
        silence: Duration::from_secs(20),
        retries: 3,
        retry_for: Duration::from_millis(100),
        ..NetworkTimeouts::default()
    }
}

/// A Secret, as it is mounted.
fn secret(room: &Room, url: &str, key: &str) -> PathBuf {
    let folder = room.folder(&format!("secret-{key}"));
    for (name, value) in [("AWS_ACCESS_KEY_ID", KEY), ("AWS_SECRET_ACCESS_KEY", key), ("AWS_ENDPOINT_URL", url)] {
        fs::write(folder.join(name), format!("{value}\n")).unwrap();
    }
    let google = serde_json::json!({
        "gcs_base_url": url, "disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": "",
    });
    fs::write(folder.join("key.json"), google.to_string()).unwrap();
    folder
}

fn access(server: &Server, url: &str) -> Access {
    let credentials = Some(secret(&server.room, url, SECRET));
    // One Secret's folder serves for both URLs.
    Access { endpoint: Some(url.to_owned()), credentials, patience: impatient(), ..Access::default() }
}

fn place(server: &Server, prefix: &str) -> Destination {
    Destination::parse(&format!("{}://{BUCKET}/{prefix}", server.scheme)).unwrap()
}

fn store(server: &Server, url: &str, prefix: &str) -> Store {
    Store::open(&place(server, prefix), &access(server, url), "worker 0").unwrap()
}

async fn paths(store: &Store) -> Vec<String> {
    store.list().await.unwrap().manifests.into_iter().map(|manifest| manifest.path).collect()
}

/// A manifest as a listing has it.
fn head(manifest: &Manifest) -> Manifest {
    Manifest { files: Vec::new(), ..manifest.clone() }
}

/// Restores into a new root and returns it.
async fn restored(store: &Store, manifest: &Manifest, room: &Room) -> Result<PathBuf, StoreError> {
    let root = room.folder(&format!("restored-{}", fs::read_dir(&room.0).unwrap().count()));
    let path = store.restore(manifest, &root).await?;
    assert_eq!(path, root.join(&manifest.path));
    Ok(root)
}

fn trouble(result: Result<impl Sized, StoreError>) -> (ErrorKind, String) {
    let error = result.err().expect("an error");
    (error.trouble, error.to_string())
}

/// The same with each server to which uploads are sent in the same steps.
macro_rules! in_each_store {
    ($($case:ident,)+) => {
        mod s3 {
            $(#[test] fn $case() { super::$case(super::Server::s3) })+
        }
        mod google {
            $(#[test] fn $case() { super::$case(super::Server::google) })+
        }
    };
}

in_each_store! {
    uploaded_checkpoint_is_restored_byte_for_byte_from_a_readable_path,
    single_file_and_prefix_checkpoints_are_restored,
    existing_objects_are_not_uploaded_again,
    dropped_upload_does_not_resend_finished_parts,
    upload_of_a_killed_process_is_continued_by_the_next,
    listed_checkpoint_can_be_restored_after_any_interruption,
    overwritten_checkpoint_exists_until_the_new_one_is_complete,
    checkpoint_changed_during_upload_is_retried_without_an_error,
    interrupted_restore_continues_and_exposes_nothing_before,
    store_rejects_data_damaged_in_transit,
    damaged_or_missing_objects_are_not_restored,
    missing_bucket_or_checkpoint_is_named_with_its_remedy,
    temporary_store_errors_are_retried_and_permanent_ones_reported,
    silent_store_times_out_with_an_error,
    forged_manifest_is_ignored_and_hides_no_checkpoint,
    sharded_checkpoint_exists_once_all_workers_have_uploaded,
    interrupted_removal_hides_the_checkpoint_and_is_completed_later,
    abandoned_upload_leaves_nothing_behind,
    parts_removed_by_a_lifecycle_rule_are_uploaded_again,
    foreign_objects_are_restored_completely_or_not_at_all,
    writers_never_replace_checkpoints_of_others,
    all_workers_of_a_job_share_one_prefix,
    leftovers_of_a_lost_pod_are_removed_after_a_day,
    hostile_journal_cannot_delete_other_objects,
    uploaded_files_are_not_resent_in_the_next_round,
    manifest_records_the_order_of_writing,
    files_beside_a_checkpoint_are_restored_with_it,
}

// ---- there and back

fn uploaded_checkpoint_is_restored_byte_for_byte_from_a_readable_path(start: fn() -> Server) {
    let server = start();
    for checksum in [Checksum::Sha256, Checksum::Crc64Nvme, Checksum::None] {
        let (room, prefix) = (Room::new("store"), format!("runs/{checksum:?}"));
        let access = Access { checksum, ..access(&server, &server.url()) };
        let store = Store::open(&place(&server, &prefix), &access, "worker 0").unwrap();
        let root = room.folder("root");
        let found = checkpoint(&root, "out/checkpoint-500", 500);
        run(async {
            store.check().await.unwrap();
            let manifest = store.upload(&root, &found).await.unwrap();
            assert_eq!(manifest.found().members, found.members);
            assert_eq!((manifest.step, manifest.layout, manifest.generation), (Some(500), Layout::Folder, 0));
            assert_eq!(manifest.metrics, BTreeMap::from([("eval_loss".to_owned(), 0.25)]));
            assert_eq!(store.list().await.unwrap().manifests, [head(&manifest)]);
            let back = restored(&store, &manifest, &room).await.unwrap();
            assert!(content(&back) == content(&root), "what came back differs");
            assert!(!back.join(".trainingjob/restore").join("x").exists());
            store.verify(&manifest).await.unwrap();
        });
        let natural = server.object(&format!("{prefix}/out/checkpoint-500/a/b/Größe & [1]+~%23 #1.bin"));
        assert_eq!(fs::read(natural).unwrap(), bytes(501, 1000));
        assert!(server.object(&format!("{prefix}/.trainingjob/out=2Fcheckpoint-500.json")).exists());
        assert_eq!(fs::read_dir(root.join(".trainingjob/uploads")).unwrap().count(), 0, "a journal is left");
    }
}

fn single_file_and_prefix_checkpoints_are_restored(start: fn() -> Server) {
    let (server, room) = (start(), Room::new("store"));
    let store = store(&server, &server.url(), "runs");
    let root = room.folder("root");
    write(&root, "lightning/last.ckpt", &bytes(1, 20 * MIB));
    write(&root, "lightning/other.ckpt", &bytes(2, 10));
    write(&root, "tf/model-7.index", &bytes(3, 10));
    write(&root, "tf/model-7.data-00000-of-00001", &bytes(4, 100));
    write(&root, "tf/model-8.index", &bytes(5, 10));
    let file = found_of(&root, "lightning/last.ckpt", Format::Lightning, 3, |path| path == "last.ckpt");
    let prefix = found_of(&root, "tf/model-7", Format::Tensorflow, 7, |path| path.starts_with("model-7."));
    run(async {
        let file = store.upload(&root, &file).await.unwrap();
        let prefix = store.upload(&root, &prefix).await.unwrap();
        assert_eq!((file.layout, prefix.layout), (Layout::Beside, Layout::Beside));
        assert_eq!(fs::read(server.object("runs/lightning/last.ckpt")).unwrap(), bytes(1, 20 * MIB));
        assert_eq!(paths(&store).await, ["tf/model-7", "lightning/last.ckpt"]);
        let back = room.folder("back");
        assert_eq!(store.restore(&file, &back).await.unwrap(), back.join("lightning/last.ckpt"));
        assert_eq!(store.restore(&prefix, &back).await.unwrap(), back.join("tf/model-7"));
        let names: Vec<String> = content(&back).into_keys().collect();
        assert_eq!(names, ["lightning/last.ckpt", "tf/model-7.data-00000-of-00001", "tf/model-7.index"]);
        assert_eq!(content(&back)["lightning/last.ckpt"], bytes(1, 20 * MIB));
    });
}

fn existing_objects_are_not_uploaded_again(start: fn() -> Server) {
    let (server, room) = (start(), Room::new("store"));
    let proxy = Proxy::before(&server);
    let store = store(&server, &proxy.url(), "runs");
    let root = room.folder("root");
    let found = small(&root, "checkpoint-1", 1);
    run(async {
        let first = store.upload(&root, &found).await.unwrap();
        proxy.take();
        assert_eq!(store.upload(&root, &found).await.unwrap(), first);
        assert!(proxy.take().iter().all(|asked| asked.method == "GET"));
    });
}

// ---- cuts

/// A request that carries data of a checkpoint.
fn is_data(asked: &Asked) -> bool {
    asked.method == "PUT" && !asked.target.contains(".trainingjob")
}

fn data(asked: &[Asked]) -> u64 {
    asked.iter().filter(|asked| is_data(asked)).map(|asked| asked.length).sum()
}

fn dropped_upload_does_not_resend_finished_parts(start: fn() -> Server) {
    let (server, room) = (start(), Room::new("store"));
    let proxy = Proxy::before(&server);
    let store = store(&server, &proxy.url(), "runs");
    let root = room.folder("root");
    let found = checkpoint(&root, "checkpoint-1", 1);
    let total = found.bytes;
    // The last part of the large file never gets through.
    proxy.set(|asked| if asked.target.contains("partNumber=3") { Fault::Silence } else { Fault::Pass });
    run(async {
        let journal = || {
            let uploads = fs::read_dir(root.join(".trainingjob/uploads")).ok()?.flatten().next()?;
            fs::read_to_string(uploads.path()).ok()
        };
        // Two parts and four whole files are in the store, and noted.
        let done = async {
            while journal()
                .is_none_or(|text| text.matches("\"part\",\"id\"").count() + text.matches("\"stored\"").count() < 6)
            {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            result = store.upload(&root, &found) => panic!("it can't end: {result:?}"),
            () = done => {}
        }
        assert!(paths(&store).await.is_empty(), "it is not there before its manifest");
        proxy.set(|_| Fault::Pass);
        proxy.take();
        let manifest = store.upload(&root, &found).await.unwrap();
        let again = data(&proxy.take());
        assert_eq!(again, LARGE - 2 * PART, "only the last part was missing");
        let now = store.progress().now();
        assert_eq!((now.bytes, now.skipped, now.total, now.files), (again, total - again, total, 5));
        let back = restored(&store, &manifest, &room).await.unwrap();
        assert!(content(&back) == content(&root));
    });
}

fn upload_of_a_killed_process_is_continued_by_the_next(start: fn() -> Server) {
    const HELPER: &str = "STORE_TEST_HELPER";
    // The process that is killed, and that `store/bench.py` measures.
    if let Ok(arguments) = std::env::var(HELPER) {
        let [uri, url, secret, root] = arguments.split('\n').collect::<Vec<_>>()[..] else { panic!("{arguments}") };
        let destination = Destination::parse(uri).unwrap();
        let access = Access { endpoint: Some(url.to_owned()), credentials: Some(secret.into()), ..Access::default() };
        let store = Store::open(&destination, &access, "worker 0").unwrap();
        let manifest = run(store.upload(Path::new(root), &found(Path::new(root), "checkpoint-1", 1))).unwrap();
        println!("{} files, {} bytes", manifest.files.len(), manifest.bytes);
        return;
    }
    let (server, room) = (start(), Room::new("store"));
    let proxy = Proxy::before(&server);
    let root = room.folder("root");
    let found = checkpoint(&root, "checkpoint-1", 1);
    proxy.set(|asked| if asked.target.contains("partNumber=2") { Fault::Silence } else { Fault::Pass });
    let store = store(&server, &proxy.url(), "runs");
    let secret = server.room.0.join(format!("secret-{SECRET}"));
    let arguments =
        [place(&server, "runs").to_string(), proxy.url(), secret.display().to_string(), root.display().to_string()];
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "store::s3::upload_of_a_killed_process_is_continued_by_the_next"])
        .env(HELPER, arguments.join("\n"))
        .spawn()
        .unwrap();
    let uploads = root.join(".trainingjob/uploads");
    until("two parts and four files to be noted", SOON, || {
        let journal = fs::read_dir(&uploads).ok()?.flatten().next()?;
        let text = fs::read_to_string(journal.path()).ok()?;
        (text.matches("\"part\",\"id\"").count() + text.matches("\"stored\"").count() >= 6).then_some(())
    });
    child.kill().unwrap();
    child.wait().unwrap();
    proxy.set(|_| Fault::Pass);
    proxy.take();
    run(async {
        assert!(paths(&store).await.is_empty());
        let manifest = store.upload(&root, &found).await.unwrap();
        assert_eq!(data(&proxy.take()), PART, "only the second part was missing");
        let back = restored(&store, &manifest, &room).await.unwrap();
        assert!(content(&back) == content(&root));
    });
}

/// Any request fails, whether or not the store has done what it was asked.
fn listed_checkpoint_can_be_restored_after_any_interruption(start: fn() -> Server) {
    let (server, room) = (start(), Room::new("store"));
    let proxy = Proxy::before(&server);
    let direct = store(&server, &server.url(), "runs");
    let mut through = access(&server, &proxy.url());
    through.patience.retries = 0;
    let cut = Store::open(&place(&server, "runs"), &through, "worker 0").unwrap();
    let root = room.folder("root");
    run(async {
        let mut version = 0;
        for fault in [Fault::Cut, Fault::CutAnswer] {
            let mut at = 0;
            loop {
                direct.sweep().await.unwrap();
                let before = match direct.manifest("last").await.unwrap() {
                    Some(manifest) => Some(content(&restored(&direct, &manifest, &room).await.unwrap())),
                    None => None,
                };
                // New content at the same path, while the upload before may be half done.
                version += 1;
                let found = small(&root, "last", version);
                let count = Arc::new(AtomicUsize::new(0));
                let seen = Arc::clone(&count);
                proxy.set(move |_| if seen.fetch_add(1, Ordering::SeqCst) == at { fault } else { Fault::Pass });
                let result = cut.upload(&root, &found).await;
                let listing = direct.list().await.unwrap();
                assert!(listing.unreadable.is_empty(), "{:?}", listing.unreadable);
                match (&before, &listing.manifests[..]) {
                    (None, []) => {}
                    (_, [manifest]) => {
                        let now = content(&restored(&direct, manifest, &room).await.unwrap());
                        let is_new = now == content(&root);
                        assert!(Some(&now) == before.as_ref() || is_new, "{fault:?} {at}: neither old nor new");
                        assert!(is_new || result.is_err(), "{fault:?} {at}: it was told that it is there");
                    }
                    other => panic!("{fault:?} {at}: {other:?}"),
                }
                if at % 2 == 1 {
                    // The same content once more: the upload is resumed.
                    direct.upload(&root, &found).await.unwrap();
                }
                if count.load(Ordering::SeqCst) <= at {
                    result.unwrap();
                    break;
                }
                at += 1;
            }
            assert!(at > 9, "{at} requests are too few to be all");
        }
        let found = small(&root, "last", version + 1);
        // Everything that was left over goes.
        proxy.set(|_| Fault::Pass);
        let manifest = direct.upload(&root, &found).await.unwrap();
        direct.sweep().await.unwrap();
        let mut keys = BTreeMap::new();
        walk(&server.object("runs"), "", &mut keys);
        let mut expected: Vec<String> = manifest.files.iter().map(|file| file.key.clone()).collect();
        expected.sort();
        assert_eq!(keys.into_keys().collect::<Vec<_>>(), expected);
    });
}

fn overwritten_checkpoint_exists_until_the_new_one_is_complete(start: fn() -> Server) {
    let (server, room) = (start(), Room::new("store"));
    let store = store(&server, &server.url(), "runs");
    let root = room.folder("root");
    run(async {
        for (step, key) in [(1, "last/0"), (2, "last~1/0"), (3, "last~2/0")] {
            let found = small(&root, "last", step);
            let manifest = store.upload(&root, &found).await.unwrap();
            assert_eq!(manifest.files[0].key, key);
            let mut keys = BTreeMap::new();
            walk(&server.object("runs"), "", &mut keys);
            assert_eq!(keys.len(), 3, "the old is gone: {keys:?}");
            assert_eq!(store.list().await.unwrap().manifests, [head(&manifest)]);
        }
    });
}

fn checkpoint_changed_during_upload_is_retried_without_an_error(start: fn() -> Server) {
    let (server, room) = (start(), Room::new("store"));
    let proxy = Proxy::before(&server);
    let store = store(&server, &proxy.url(), "runs");
    let root = room.folder("root");
    let found_before = small(&root, "last", 1);
    let file = root.join("last/1");
    let touched = file.clone();
    // The program writes while the upload is under way.
    proxy.set(move |asked| {
        if asked.target.ends_with("/last/2") {
            fs::write(&touched, b"other").unwrap();
        }
        Fault::Pass
    });
    run(async {
        let (kind, message) = trouble(store.upload(&root, &found_before).await);
        assert_eq!(kind, ErrorKind::Changed, "{message}");
        assert!(paths(&store).await.is_empty());
        proxy.set(|_| Fault::Pass);
        fs::remove_file(&file).unwrap();
        assert_eq!(trouble(store.upload(&root, &found_before).await).0, ErrorKind::Changed);
        let manifest = store.upload(&root, &found(&root, "last", 2)).await.unwrap();
        let back = restored(&store, &manifest, &room).await.unwrap();
        assert!(content(&back) == content(&root));
        let keys: Vec<String> = content(&server.object("runs")).into_keys().collect();
        assert_eq!(keys, ["last/0", "last/2"], "nothing is left of the first try");
    });
}

fn interrupted_restore_continues_and_exposes_nothing_before(start: fn() -> Server) {
    let (server, room) = (start(), Room::new("store"));
    let proxy = Proxy::before(&server);
    let store = store(&server, &proxy.url(), "runs");
    let (root, back) = (room.folder("root"), room.folder("back"));
    write(&root, "checkpoint-1/model", &bytes(1, FETCHED_IN_TWO));
    write(&root, "checkpoint-1/small", &bytes(2, 100));
    write(&back, "checkpoint-1/old", b"what was there before");
    let found = found(&root, "checkpoint-1", 1);
    run(async {
        let manifest = store.upload(&root, &found).await.unwrap();
        // Connections end in the middle, again and again. After some of them no more are answered.
        let count = AtomicUsize::new(0);
        proxy.set(move |asked| {
            let is_data = asked.method == "GET" && asked.target.ends_with("/model");
            match count.fetch_add(usize::from(is_data), Ordering::SeqCst) {
                _ if !is_data => Fault::Pass,
                number if number < 4 => Fault::CutAfter(20 * MIB),
                _ => Fault::Answer(503),
            }
        });
        let (kind, message) = trouble(store.restore(&manifest, &back).await);
        assert_eq!(kind, ErrorKind::Unavailable, "{message}");
        assert_eq!(
            content(&back),
            BTreeMap::from([("checkpoint-1/old".to_owned(), b"what was there before".to_vec())])
        );
        proxy.set(|_| Fault::Pass);
        store.restore(&manifest, &back).await.unwrap();
        let now = store.progress().now();
        assert!(
            now.skipped >= SECOND && now.skipped + now.bytes == now.total,
            "whole ranges are not fetched again: {now:?}"
        );
        assert!(content(&back) == content(&root), "what was there before is replaced");
        assert!(
            !back.join(".trainingjob/restore").exists()
                || fs::read_dir(back.join(".trainingjob/restore")).unwrap().count() == 0
        );
    });
}

// ---- trouble

fn store_rejects_data_damaged_in_transit(start: fn() -> Server) {
    let (server, room) = (start(), Room::new("store"));
    let proxy = Proxy::before(&server);
    let store = store(&server, &proxy.url(), "runs");
    let root = room.folder("root");
    let found = small(&root, "checkpoint-1", 1);
    write(&root, "checkpoint-2/model", &bytes(2, LARGE));
    let large = self::found(&root, "checkpoint-2", 2);
    run(async {
        for (found, target) in [(&found, "/checkpoint-1/1"), (&large, "partNumber=2")] {
            proxy.set(move |asked| if asked.target.contains(target) { Fault::Flip } else { Fault::Pass });
            let (kind, message) = trouble(store.upload(&root, found).await);
            assert_eq!(kind, ErrorKind::Unavailable, "{message}");
            assert!(message.contains("damaged on its way"), "{message}");
            assert!(paths(&store).await.is_empty());
        }
        assert!(!server.object("runs/checkpoint-1/1").exists());
        proxy.set(|_| Fault::Pass);
        let manifest = store.upload(&root, &large).await.unwrap();
        store.verify(&manifest).await.unwrap();
    });
}

fn damaged_or_missing_objects_are_not_restored(start: fn() -> Server) {
    let (server, room) = (start(), Room::new("store"));
    let store = store(&server, &server.url(), "runs");
    let (root, back) = (room.folder("root"), room.folder("back"));
    let found = small(&root, "checkpoint-1", 1);
    run(async {
        let manifest = store.upload(&root, &found).await.unwrap();
        let object = server.object("runs/checkpoint-1/1");
        let good = fs::read(&object).unwrap();
        for bad in [Some([&good[..500], b"x", &good[501..]].concat()), Some(good[..900].to_vec()), None] {
            match &bad {
                Some(bad) => fs::write(&object, bad).unwrap(),
                None => fs::remove_file(&object).unwrap(),
            }
            for result in [store.restore(&manifest, &back).await.map(drop), store.verify(&manifest).await] {
                let (kind, message) = trouble(result);
                assert_eq!(kind, ErrorKind::Corrupted, "{message}");
                assert!(message.contains("://bucket/runs/checkpoint-1/1"), "{message}");
            }
            assert!(content(&back).is_empty());
        }
    });
}

#[test]
fn wrong_store_key_error_names_the_secret() {
    let (server, room) = (Server::s3(), Room::new("store"));
    let root = room.folder("root");
    let found = small(&root, "checkpoint-1", 1);
    let open = |uri: &str, access: &Access| Store::open(&Destination::parse(uri).unwrap(), access, "w").unwrap();
    let good = access(&server, &server.url());
    run(async {
        let wrong = Access { credentials: Some(secret(&room, &server.url(), "wrong")), ..good.clone() };
        let store = open("s3://bucket/runs", &wrong);
        let (kind, message) = trouble(store.upload(&root, &found).await);
        assert_eq!(kind, ErrorKind::Denied, "{message}");
        assert!(
            message.contains("403") && message.contains("Secret") && message.contains("s3://bucket/runs"),
            "{message}"
        );
        assert_eq!(trouble(store.check().await).0, ErrorKind::Denied);
    });
}

fn missing_bucket_or_checkpoint_is_named_with_its_remedy(start: fn() -> Server) {
    let (server, room) = (start(), Room::new("store"));
    let root = room.folder("root");
    let found = small(&root, "checkpoint-1", 1);
    let open = |bucket: &str, access: &Access| {
        let destination = Destination::parse(&format!("{}://{bucket}/runs", server.scheme)).unwrap();
        Store::open(&destination, access, "w").unwrap()
    };
    let good = access(&server, &server.url());
    run(async {
        let store = open("no-such-bucket", &good);
        for (kind, message) in [trouble(store.check().await), trouble(store.upload(&root, &found).await)] {
            assert_eq!(kind, ErrorKind::NotFound, "{message}");
            let uri = format!("{}://no-such-bucket/runs", server.scheme);
            assert!(message.contains(&uri) && message.contains("Create the bucket"), "{message}");
        }

        let gone = Access { endpoint: Some("http://127.0.0.1:1".to_owned()), ..good.clone() };
        let (kind, message) = trouble(open(BUCKET, &gone).check().await);
        assert_eq!(kind, ErrorKind::Unavailable, "{message}");
        assert!(message.contains("can be reached"), "{message}");

        let tls = Access { endpoint: Some(server.url().replace("http:", "https:")), ..good.clone() };
        assert_eq!(trouble(open(BUCKET, &tls).check().await).0, ErrorKind::Unavailable);
    });
}

#[test]
fn store_credentials_are_reread_on_each_open() {
    let (server, room) = (Server::s3(), Room::new("store"));
    let folder = secret(&room, &server.url(), "rotated");
    let access = Access { credentials: Some(folder.clone()), patience: impatient(), ..Access::default() };
    let destination = Destination::parse("s3://bucket/runs").unwrap();
    run(async {
        assert_eq!(trouble(Store::open(&destination, &access, "w").unwrap().check().await).0, ErrorKind::Denied);
        fs::write(folder.join("AWS_SECRET_ACCESS_KEY"), SECRET).unwrap();
        Store::open(&destination, &access, "w").unwrap().check().await.unwrap();
    });
}

fn temporary_store_errors_are_retried_and_permanent_ones_reported(start: fn() -> Server) {
    let (server, room) = (start(), Room::new("store"));
    let proxy = Proxy::before(&server);
    let root = room.folder("root");
    let found = small(&root, "checkpoint-1", 1);
    let mut access = access(&server, &proxy.url());
    access.patience.retry_for = Duration::from_secs(60);
    let store = Store::open(&place(&server, "runs"), &access, "w").unwrap();
    let faults = [Fault::Answer(500), Fault::Answer(503), Fault::Cut, Fault::Answer(429), Fault::CutAnswer];
    let count = AtomicUsize::new(0);
    // Every second request fails, each time in another way.
    proxy.set(move |_| match count.fetch_add(1, Ordering::SeqCst) {
        number if number % 2 == 0 => faults[number / 2 % faults.len()],
        _ => Fault::Pass,
    });
    run(async {
        let manifest = store.upload(&root, &found).await.unwrap();
        let back = restored(&store, &manifest, &room).await.unwrap();
        assert!(content(&back) == content(&root));
        proxy.set(|_| Fault::Answer(500));
        let before = proxy.asked();
        let (kind, message) = trouble(store.check().await);
        assert_eq!(kind, ErrorKind::Unavailable, "{message}");
        assert!(message.contains("HTTP 500"), "{message}");
        assert_eq!(proxy.asked() - before, 4, "once, and three times again");
    });
}

fn silent_store_times_out_with_an_error(start: fn() -> Server) {
    let (server, room) = (start(), Room::new("store"));
    let proxy = Proxy::before(&server);
    let mut access = access(&server, &proxy.url());
    access.patience = NetworkTimeouts { silence: Duration::from_millis(300), retries: 1, ..impatient() };
    let store = Store::open(&place(&server, "runs"), &access, "w").unwrap();
    proxy.set(|_| Fault::Silence);
    let root = room.folder("root");
    let found = small(&root, "checkpoint-1", 1);
    run(async {
        for (kind, message) in [trouble(store.check().await), trouble(store.upload(&root, &found).await)] {
            assert_eq!(kind, ErrorKind::Unavailable, "{message}");
            assert!(message.contains("no byte for 0.3 s"), "{message}");
        }
    });
}

fn forged_manifest_is_ignored_and_hides_no_checkpoint(start: fn() -> Server) {
    let (server, room) = (start(), Room::new("store"));
    let store = store(&server, &server.url(), "runs");
    let root = room.folder("root");
    run(async {
        let manifest = store.upload(&root, &small(&root, "checkpoint-1", 1)).await.unwrap();
        let mut hostile = serde_json::to_value(&manifest).unwrap();
        hostile["path"] = "evil".into();
        hostile["files"][0]["path"] = "../../../../tmp/evil".into();
        server.put("runs/.trainingjob/evil.json", hostile.to_string().as_bytes());
        server.put("runs/.trainingjob/broken.json", b"{");
        server.put("runs/.trainingjob/other.json", &serde_json::to_vec(&manifest).unwrap());
        let listing = store.list().await.unwrap();
        assert_eq!(listing.manifests, [head(&manifest)]);
        assert_eq!(listing.unreadable.len(), 3, "{:?}", listing.unreadable);
        assert_eq!(trouble(store.manifest("evil").await).0, ErrorKind::Corrupted);
    });
}

#[test]
fn restore_does_not_follow_links() {
    let (server, room) = (Server::s3(), Room::new("store"));
    let store = store(&server, &server.url(), "runs");
    let (root, back, outside) = (room.folder("root"), room.folder("back"), room.folder("outside"));
    run(async {
        let manifest = store.upload(&root, &small(&root, "a/checkpoint-1", 1)).await.unwrap();
        std::os::unix::fs::symlink(&outside, back.join("a")).unwrap();
        let (kind, message) = trouble(store.restore(&manifest, &back).await);
        assert_eq!(kind, ErrorKind::Local, "{message}");
        assert!(content(&outside).is_empty());
        // The place to which it is fetched before it is whole.
        let there = room.folder("there");
        write(&outside, "theirs/file", b"x");
        fs::create_dir(there.join(".trainingjob")).unwrap();
        std::os::unix::fs::symlink(&outside, there.join(".trainingjob/restore")).unwrap();
        let (kind, message) = trouble(store.restore(&manifest, &there).await);
        assert!(kind == ErrorKind::Local && message.contains("link"), "{message}");
        assert_eq!(content(&outside).len(), 1);
        // The place for what a URI names.
        let named = room.folder("named");
        fs::create_dir(named.join("resumed-from")).unwrap();
        std::os::unix::fs::symlink(&outside, named.join("resumed-from/uid-1")).unwrap();
        let uri = self::store(&server, &server.url(), "runs/a/checkpoint-1");
        let (kind, message) = trouble(uri.restore_prefix(&named, "resumed-from/uid-1").await);
        assert!(kind == ErrorKind::Local && message.contains("link"), "{message}");
        assert_eq!(content(&outside).len(), 1);
        // A place among the files that are being fetched.
        let (cut, within) = (Proxy::before(&server), room.folder("within"));
        let manifest = store.upload(&root, &checkpoint(&root, "deep", 1)).await.unwrap();
        cut.set(|asked| if asked.target.contains("1.bin") { Fault::Answer(403) } else { Fault::Pass });
        let through = self::store(&server, &cut.url(), "runs");
        assert_eq!(trouble(through.restore(&manifest, &within).await).0, ErrorKind::Denied);
        let places = within.join(".trainingjob/restore");
        let place = fs::read_dir(&places).unwrap().flatten().next().unwrap().path();
        let begun =
            fs::read_dir(place).unwrap().flatten().map(|entry| entry.path()).find(|path| path.is_dir()).unwrap();
        fs::remove_dir_all(begun.join("a")).unwrap();
        std::os::unix::fs::symlink(&outside, begun.join("a")).unwrap();
        cut.set(|_| Fault::Pass);
        let (kind, message) = trouble(through.restore(&manifest, &within).await);
        assert!(kind == ErrorKind::Local && message.contains("link"), "{message}");
        assert_eq!(content(&outside).len(), 1);
    });
}

/// The files have the same names, lengths and times as those that were found.
#[test]
fn folder_replaced_by_a_link_is_not_uploaded() {
    let (server, room) = (Server::s3(), Room::new("store"));
    let store = store(&server, &server.url(), "runs");
    let (root, outside) = (room.folder("root"), room.folder("outside"));
    run(async {
        for swapped in ["a", "a/checkpoint-1", "a/checkpoint-1/inner"] {
            drop(fs::remove_dir_all(root.join("a")));
            write(&root, "a/checkpoint-1/inner/weights", b"weights");
            let found = found(&root, "a/checkpoint-1", 1);
            let away = outside.join(swapped.replace('/', "-"));
            fs::rename(root.join(swapped), &away).unwrap();
            std::os::unix::fs::symlink(&away, root.join(swapped)).unwrap();
            let (kind, message) = trouble(store.upload(&root, &found).await);
            assert_eq!(kind, ErrorKind::Changed, "{swapped}: {message}");
            assert!(paths(&store).await.is_empty(), "{swapped}");
            fs::remove_file(root.join(swapped)).unwrap();
        }
        assert!(!server.object("runs/a").exists(), "something was sent");
    });
}

// ---- hostile stores

/// A server for S3's clients that answers each request as the test wants.
fn hostile(answer: impl Fn(&str, &mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static) -> (Store, Room) {
    hostile_within(Duration::from_secs(120), answer)
}

/// The same, for clients that wait no longer than this.
fn hostile_within(
    time: Duration,
    answer: impl Fn(&str, &mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static,
) -> (Store, Room) {
    let (listener, room, answer) = (TcpListener::bind("127.0.0.1:0").unwrap(), Room::new("hostile"), Arc::new(answer));
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = Arc::clone(&answer);
            std::thread::spawn(move || answer_all(stream, &*answer));
        }
    });
    let patience = NetworkTimeouts { answer: time, retries: 0, ..impatient() };
    let access = Access {
        endpoint: Some(url.clone()),
        credentials: Some(secret(&room, &url, SECRET)),
        patience,
        ..Access::default()
    };
    (Store::open(&Destination::parse("s3://bucket/runs").unwrap(), &access, "w").unwrap(), room)
}

fn answer_all(
    mut stream: TcpStream,
    answer: &dyn Fn(&str, &mut TcpStream) -> std::io::Result<()>,
) -> std::io::Result<()> {
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        answer(&String::from_utf8_lossy(&head), &mut stream)?;
    }
}

/// A page of a list without any keys, and with a next one.
fn empty_page(stream: &mut TcpStream) -> std::io::Result<()> {
    let token = "<IsTruncated>true</IsTruncated><NextContinuationToken>next</NextContinuationToken>";
    let page = format!("<ListBucketResult>{token}</ListBucketResult>");
    stream.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{page}", page.len()).as_bytes())
}

#[test]
fn endless_response_is_refused() {
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    let (store, _room) = hostile(move |_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
        loop {
            stream.write_all(&[b"10000\r\n", &*b" ".repeat(0x10000), b"\r\n"].concat())?;
            count.fetch_add(0x10000, Ordering::SeqCst);
        }
    });
    run(async {
        for (kind, message) in [trouble(store.check().await), trouble(store.look().await)] {
            assert!(message.contains("more than 32 MiB") && message.contains("endpoint"), "{message}");
            assert_eq!(kind, ErrorKind::Refused, "{message}");
        }
        // Bytes in the sockets' buffers were sent and not read.
        let sent = sent.load(Ordering::SeqCst) as u64;
        assert!(sent < 2 * 64 * MIB, "{sent} bytes were taken");
    });
}

#[test]
fn oversized_manifest_is_refused() {
    let (store, _room) = hostile(|_, stream| {
        let modified = "Last-Modified: Wed, 25 Nov 2026 10:00:00 GMT\r\nETag: \"x\"";
        stream.write_all(format!("HTTP/1.1 200 OK\r\n{modified}\r\nContent-Length: {}\r\n\r\n", 1 << 30).as_bytes())?;
        loop {
            stream.write_all(&b" ".repeat(0x10000))?;
        }
    });
    let (kind, message) = run(async { trouble(store.manifest("checkpoint-1").await) });
    assert!(kind == ErrorKind::Corrupted && message.contains("1073741824 bytes, more than"), "{message}");
}

#[test]
fn endless_listing_is_refused() {
    let (store, _room) = hostile(|_, stream| empty_page(stream));
    run(async {
        for (kind, message) in [trouble(store.check().await), trouble(store.look().await)] {
            assert!(message.contains("no end after 4000 pages") && message.contains("endpoint"), "{message}");
            assert!(kind == ErrorKind::Refused && message.starts_with("s3://bucket/runs"), "{message}");
        }
    });
}

/// Each page arrives soon enough, but the list never ends.
#[test]
fn listing_has_a_time_limit() {
    let (store, _room) = hostile_within(Duration::from_millis(300), |_, stream| {
        std::thread::sleep(Duration::from_millis(10));
        empty_page(stream)
    });
    let (kind, message) = run(async { trouble(store.list().await) });
    assert!(kind == ErrorKind::Unavailable && message.contains("no whole answer within 0.3 s"), "{message}");
}

// ---- sharded, removed, foreign

fn sharded_checkpoint_exists_once_all_workers_have_uploaded(start: fn() -> Server) {
    let (server, room) = (start(), Room::new("store"));
    let store = store(&server, &server.url(), "runs");
    let roots: Vec<PathBuf> = (0..3).map(|worker| room.folder(&format!("worker-{worker}"))).collect();
    for (worker, root) in roots.iter().enumerate() {
        write(root, &format!("step-5/__{worker}_0.distcp"), &bytes(worker as u64, 5000));
    }
    write(&roots[0], "step-5/.metadata", &bytes(9, 100));
    let whole = found_of(&roots[0], "step-5", Format::Dcp, 5, |_| true);
    run(async {
        for (worker, root) in roots.iter().enumerate() {
            let (kind, message) = trouble(store.finish(&whole, 3, "5-1", |_| None).await);
            assert_eq!(kind, ErrorKind::Incomplete, "{message}");
            assert!(message.ends_with('2') && paths(&store).await.is_empty(), "{message}");
            let found = found_of(root, "step-5", Format::Dcp, 5, |_| true);
            store.upload_part(root, &found, worker as u32, "5-1").await.unwrap();
        }
        assert_eq!(
            trouble(store.finish(&whole, 3, "5-2", |_| None).await).0,
            ErrorKind::Incomplete,
            "of another round"
        );
        let lacks = |files: &[Member]| (files.len() == 4).then(|| "a shard is missing".to_owned());
        let (kind, message) = trouble(store.finish(&whole, 3, "5-1", lacks).await);
        assert!(kind == ErrorKind::Changed && message.contains("step-5: a shard is missing"), "{message}");
        assert!(paths(&store).await.is_empty());
        let manifest = store.finish(&whole, 3, "5-1", |_| None).await.unwrap();
        assert_eq!(store.finish(&whole, 3, "5-1", |_| None).await.unwrap(), manifest);
        let back = restored(&store, &manifest, &room).await.unwrap();
        let files: Vec<String> = content(&back).into_keys().collect();
        assert_eq!(files, ["step-5/.metadata", "step-5/__0_0.distcp", "step-5/__1_0.distcp", "step-5/__2_0.distcp"]);
        assert_eq!(content(&back)["step-5/__2_0.distcp"], bytes(2, 5000));
        assert!(!server.object("runs/.trainingjob/parts/step-5/0.json").exists());
    });
}

fn interrupted_removal_hides_the_checkpoint_and_is_completed_later(start: fn() -> Server) {
    let (server, room) = (start(), Room::new("store"));
    let proxy = Proxy::before(&server);
    let store = store(&server, &proxy.url(), "runs");
    let root = room.folder("root");
    run(async {
        let first = store.upload(&root, &small(&root, "checkpoint-1", 1)).await.unwrap();
        let second = store.upload(&root, &small(&root, "checkpoint-2", 2)).await.unwrap();
        proxy.set(|asked| {
            if asked.method == "DELETE" && asked.target.contains("/checkpoint-1/") {
                Fault::Answer(403)
            } else {
                Fault::Pass
            }
        });
        assert_eq!(trouble(store.remove(&first).await).0, ErrorKind::Denied);
        assert_eq!(paths(&store).await, ["checkpoint-2"]);
        proxy.set(|_| Fault::Pass);
        // Written again before the removal is complete. Its data does not go with the old one's.
        let again = store.upload(&root, &small(&root, "checkpoint-1", 3)).await.unwrap();
        store.sweep().await.unwrap();
        assert_eq!(store.list().await.unwrap().manifests, [head(&again), head(&second)]);
        store.verify(&again).await.unwrap();
        assert!(!server.object("runs/checkpoint-1").exists());
        store.remove(&second).await.unwrap();
        store.remove(&second).await.unwrap();
        store.remove(&again).await.unwrap();
        assert!(content(&server.object("runs")).is_empty());
    });
}

fn abandoned_upload_leaves_nothing_behind(start: fn() -> Server) {
    let (server, room) = (start(), Room::new("store"));
    let proxy = Proxy::before(&server);
    let store = store(&server, &proxy.url(), "runs");
    let root = room.folder("root");
    let found = checkpoint(&root, "checkpoint-1", 1);
    proxy.set(|asked| if asked.target.contains("partNumber=3") { Fault::Answer(403) } else { Fault::Pass });
    run(async {
        assert_eq!(trouble(store.upload(&root, &found).await).0, ErrorKind::Denied);
        proxy.take();
        store.abandon(&root, "checkpoint-1").await.unwrap();
        let asked = proxy.take();
        assert!(asked.iter().any(|asked| asked.method == "DELETE" && asked.target.contains("uploadId=")), "{asked:?}");
        assert!(content(&server.object("runs")).is_empty());
        store.abandon(&root, "checkpoint-1").await.unwrap();
    });
}

fn parts_removed_by_a_lifecycle_rule_are_uploaded_again(start: fn() -> Server) {
    let (server, room) = (start(), Room::new("store"));
    let proxy = Proxy::before(&server);
    let store = store(&server, &proxy.url(), "runs");
    let root = room.folder("root");
    let found = checkpoint(&root, "checkpoint-1", 1);
    proxy.set(|asked| if asked.target.contains("partNumber=3") { Fault::Answer(403) } else { Fault::Pass });
    run(async {
        assert_eq!(trouble(store.upload(&root, &found).await).0, ErrorKind::Denied);
        // The folder where the server keeps the parts.
        fs::remove_dir_all(server.object(".sgwtmp")).unwrap();
        proxy.set(|_| Fault::Pass);
        let manifest = store.upload(&root, &found).await.unwrap();
        let back = restored(&store, &manifest, &room).await.unwrap();
        assert!(content(&back) == content(&root));
    });
}

fn foreign_objects_are_restored_completely_or_not_at_all(start: fn() -> Server) {
    let (server, room) = (start(), Room::new("store"));
    let proxy = Proxy::before(&server);
    for (key, size) in
        [("resnet/epoch-50/model.pt", FETCHED_IN_TWO), ("resnet/epoch-50/sub/state", 10), ("resnet/epoch-500/x", 3)]
    {
        server.put(key, &bytes(size, size));
    }
    let to = room.folder("to");
    run(async {
        let theirs = store(&server, &proxy.url(), "resnet/epoch-50");
        proxy.set(|asked| {
            if asked.target.ends_with("/state") && asked.method == "GET" { Fault::Answer(403) } else { Fault::Pass }
        });
        theirs.restore_prefix(&to, "").await.unwrap_err();
        assert!(content(&to).is_empty());
        proxy.set(|_| Fault::Pass);
        assert_eq!(theirs.restore_prefix(&to, "").await.unwrap(), to.join("epoch-50"));
        let files = content(&to);
        assert_eq!(files.keys().collect::<Vec<_>>(), ["epoch-50/model.pt", "epoch-50/sub/state"]);
        assert_eq!(files["epoch-50/model.pt"], bytes(FETCHED_IN_TWO, FETCHED_IN_TWO));

        let file = store(&server, &proxy.url(), "resnet/epoch-50/model.pt");
        assert_eq!(fs::read(file.restore_prefix(&to, "").await.unwrap()).unwrap().len() as u64, FETCHED_IN_TWO);
        let (kind, message) = trouble(store(&server, &proxy.url(), "resnet/epoch-5").restore_prefix(&to, "").await);
        assert_eq!(kind, ErrorKind::NotFound, "{message}");
        assert!(message.contains("://bucket/resnet/epoch-5"), "{message}");

        // A checkpoint of ours is known by its manifest, wherever its content lies.
        let (ours, root) = (store(&server, &proxy.url(), "runs"), room.folder("root"));
        for step in [1, 2] {
            ours.upload(&root, &small(&root, "out/last", step)).await.unwrap();
        }
        let fetched = store(&server, &proxy.url(), "runs/out/last").restore_prefix(&to, "").await.unwrap();
        assert_eq!(fetched, to.join("last"));
        assert!(content(&fetched) == content(&root.join("out/last")));
    });
}

// ---- other stores

#[test]
fn google_delete_404_and_expired_token_are_handled() {
    let (server, room) = (Server::google(), Room::new("store"));
    let proxy = Proxy::before(&server);
    let store = store(&server, &proxy.url(), "runs");
    let root = room.folder("root");
    let found = small(&root, "checkpoint-1", 1);
    run(async {
        let manifest = store.upload(&root, &found).await.unwrap();
        proxy.set(|asked| if asked.method == "DELETE" { Fault::Answer(404) } else { Fault::Pass });
        store.remove(&manifest).await.unwrap();
        proxy.set(|_| Fault::Answer(401));
        let (kind, message) = trouble(store.check().await);
        assert_eq!(kind, ErrorKind::Denied, "{message}");
        assert!(message.contains("401") && message.contains("Secret"), "{message}");
    });
}

#[test]
fn folder_on_another_volume_works_as_a_store() {
    let room = Room::new("store");
    let (root, volume, back) = (room.folder("root"), room.folder("volume"), room.folder("back"));
    let destination = Destination::parse(&format!("file://{}/backup", volume.display())).unwrap();
    let store = Store::open(&destination, &Access::default(), "worker 0").unwrap();
    let found = checkpoint(&root, "out/checkpoint-1", 1);
    run(async {
        let (kind, message) = trouble(store.check().await);
        assert_eq!(kind, ErrorKind::NotFound, "what is not mounted is not filled: {message}");
        fs::create_dir(volume.join("backup")).unwrap();
        let manifest = store.upload(&root, &found).await.unwrap();
        assert_eq!(store.list().await.unwrap().manifests, [head(&manifest)]);
        assert!(content(&volume.join("backup")) == content(&root));
        store.restore(&manifest, &back).await.unwrap();
        assert!(content(&back) == content(&root));
        let second = store.upload(&root, &small(&root, "out/checkpoint-1", 2)).await.unwrap();
        assert_eq!(second.files.len(), 8);
        store.verify(&second).await.unwrap();
        let to = room.folder("to");
        let uri = format!("file://{}/backup/out/checkpoint-1", volume.display());
        let one = Store::open(&Destination::parse(&uri).unwrap(), &Access::default(), "w").unwrap();
        assert!(content(&one.restore_prefix(&to, "").await.unwrap()) == content(&root.join("out/checkpoint-1")));
        store.remove(&second).await.unwrap();
        assert!(content(&volume.join("backup")).is_empty());
    });
}

#[test]
fn azure_store_keeps_checkpoints() {
    let (server, room) = (Server::azure(), Room::new("store"));
    let proxy = Proxy::before(&server);
    let (root, secret, to) = (room.folder("root"), room.folder("secret"), room.folder("to"));
    fs::write(secret.join("AZURE_STORAGE_ACCOUNT_NAME"), ACCOUNT).unwrap();
    fs::write(secret.join("AZURE_STORAGE_ACCOUNT_KEY"), ACCOUNT_KEY).unwrap();
    let endpoint = Some(format!("{}/{ACCOUNT}", proxy.url()));
    let access = Access { endpoint, credentials: Some(secret.clone()), patience: impatient(), ..Access::default() };
    let open = |uri: &str| Store::open(&Destination::parse(uri).unwrap(), &access, "worker 0").unwrap();
    let store = open("az://bucket/runs");
    let found = checkpoint(&root, "out/checkpoint-1", 1);
    run(async {
        store.check().await.unwrap();
        proxy.set(|asked| {
            if asked.target.contains("comp=blocklist") && asked.method == "PUT" {
                Fault::Answer(403)
            } else {
                Fault::Pass
            }
        });
        assert_eq!(trouble(store.upload(&root, &found).await).0, ErrorKind::Denied);
        proxy.set(|_| Fault::Pass);
        proxy.take();
        let manifest = store.upload(&root, &found).await.unwrap();
        assert!(data(&proxy.take()) < MIB, "no block is sent again");
        assert_eq!(store.list().await.unwrap().manifests, [head(&manifest)]);
        let back = restored(&store, &manifest, &room).await.unwrap();
        assert!(content(&back) == content(&root));
        let fetched = open("az://bucket/runs/out/checkpoint-1").restore_prefix(&to, "").await.unwrap();
        assert!(content(&fetched) == content(&root.join("out/checkpoint-1")));
        store.remove(&manifest).await.unwrap();
        assert!(paths(&store).await.is_empty());
        let (kind, message) = trouble(open("az://no-such-container/x").check().await);
        assert_eq!(kind, ErrorKind::NotFound, "{message}");
        assert!(message.contains("az://no-such-container/x"), "{message}");
        fs::write(secret.join("AZURE_STORAGE_ACCOUNT_KEY"), "d3Jvbmc=").unwrap();
        assert_eq!(trouble(open("az://bucket/runs").check().await).0, ErrorKind::Denied);
    });
}

/// The emulator takes objects only by Google's other protocol, so the test itself puts them there.
#[test]
fn foreign_odd_keys_are_ignored_or_named_in_the_error() {
    let (server, room) = (Server::gcs(), Room::new("store"));
    let (root, volume, back, to) = (room.folder("root"), room.folder("volume"), room.folder("back"), room.folder("to"));
    let folder = Destination::parse(&format!("file://{}", volume.display())).unwrap();
    let folder = Store::open(&folder, &Access::default(), "worker 0").unwrap();
    let put = |key: &str, content: &str| {
        let key: String = key.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let answer =
            server.http("POST", &format!("/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={key}"), content);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    };
    for key in
        ["runs//x", "runs/checkpoint-1/../y", "theirs/a//b", "plain/last/model", "plain/last/sub/x", "plain/last-2/x"]
    {
        put(key, "content");
    }
    for file in ["a", "b/c"] {
        write(&root, &format!("checkpoint-1/{file}"), file.as_bytes());
    }
    run(async {
        let manifest = folder.upload(&root, &found(&root, "checkpoint-1", 1)).await.unwrap();
        put("runs/.trainingjob/checkpoint-1.json", &serde_json::to_string(&manifest).unwrap());
        for file in &manifest.files {
            put(&format!("runs/{}", file.key), &file.path);
        }
        let google = store(&server, &server.url(), "runs");
        google.check().await.unwrap();
        assert_eq!(google.list().await.unwrap().manifests, [head(&manifest)]);
        google.restore(&manifest, &back).await.unwrap();
        google.verify(&manifest).await.unwrap();
        assert!(content(&back) == content(&root));
        let (kind, message) = trouble(store(&server, &server.url(), "theirs").restore_prefix(&to, "").await);
        assert_eq!(kind, ErrorKind::Invalid, "{message}");
        assert!(message.contains("theirs/a//b") && message.contains("remove it"), "{message}");
        assert!(content(&to).is_empty());
        assert_eq!(store(&server, &server.url(), "plain/last").restore_prefix(&to, "").await.unwrap(), to.join("last"));
        assert_eq!(content(&to).keys().collect::<Vec<_>>(), ["last/model", "last/sub/x"]);
    });
}

// ---- the rules U of docs/checkpoints.md

fn of_writer(server: &Server, writer: &str) -> Store {
    Store::open(&place(server, "runs"), &access(server, &server.url()), writer).unwrap()
}

fn writers_never_replace_checkpoints_of_others(start: fn() -> Server) {
    let (server, room) = (start(), Room::new("store"));
    let stores = ["uid-1", "uid-2"].map(|writer| of_writer(&server, writer));
    let roots = ["a", "b"].map(|name| room.folder(name));
    let found = [small(&roots[0], "run/step-1", 1), small(&roots[1], "run/step-1", 2)];
    run(async {
        let one = stores[0].upload(&roots[0], &found[0]).await.unwrap();
        let two = stores[1].upload(&roots[1], &found[1]).await.unwrap();
        assert_eq!(stores[0].upload(&roots[0], &found[0]).await.unwrap(), one, "it is there already");
        assert_eq!(stores[1].upload(&roots[1], &found[1]).await.unwrap(), two, "it is there already");
        assert_eq!(stores[0].list().await.unwrap().manifests.len(), 2);
        for (manifest, root) in [(&one, &roots[0]), (&two, &roots[1])] {
            stores[1].verify(manifest).await.unwrap();
            let back = restored(&stores[1], manifest, &room).await.unwrap();
            assert!(content(&back) == content(root));
        }
        // By the place that a user sees.
        let space = two.space.clone().unwrap();
        let uri = Destination::parse(&format!("{}://{BUCKET}/runs/run/step-1~{space}", server.scheme)).unwrap();
        let named = Store::open(&uri, &access(&server, &server.url()), "").unwrap();
        let back = room.folder("named");
        assert_eq!(named.restore_prefix(&back, "").await.unwrap(), back.join("step-1"));
        assert!(content(&back.join("step-1")) == content(&roots[1].join("run/step-1")));
        // A writer removes only what is its own.
        stores[1].remove(&two).await.unwrap();
        stores[1].sweep().await.unwrap();
        stores[0].verify(&one).await.unwrap();
        assert_eq!(stores[0].list().await.unwrap().manifests, [head(&one)]);
        // At the same instant, and below a prefix that is still empty.
        let later = ["uid-3", "uid-4"]
            .map(|writer| Store::open(&place(&server, "new"), &access(&server, &server.url()), writer).unwrap());
        let both = tokio::join!(later[0].upload(&roots[0], &found[0]), later[1].upload(&roots[1], &found[1]));
        for manifest in [both.0.unwrap(), both.1.unwrap()] {
            later[0].verify(&manifest).await.unwrap();
        }
    });
}

/// Otherwise the first worker would wait for a part that lies elsewhere, and the end of the pods with it.
fn all_workers_of_a_job_share_one_prefix(start: fn() -> Server) {
    let server = start();
    let part = |prefix: &str, index: u32| {
        let store = Store::open(&place(&server, prefix), &access(&server, &server.url()), "uid-1").unwrap();
        async move {
            tokio::time::sleep(Duration::from_millis(u64::from(index % 4))).await;
            store.upload_part(Path::new("/nowhere"), &FoundCheckpoint::nothing_at("step-1"), index, "1").await
        }
    };
    run(async {
        for prefix in (0..8).map(|n| format!("runs-{n}")) {
            futures::future::try_join_all((0..8).map(|index| part(&prefix, index))).await.unwrap();
            let parts = content(&server.object(&format!("{prefix}/.trainingjob/parts")));
            let parts: BTreeSet<String> = parts.into_keys().collect();
            assert_eq!(parts, (0..8).map(|index| format!("step-1/{index}.json")).collect(), "{prefix}");
        }
        // The place is known before anything is put there, whatever other writers have arrived by now.
        let other = Store::open(&place(&server, "runs-0"), &access(&server, &server.url()), "uid-2").unwrap();
        other.upload_part(Path::new("/nowhere"), &FoundCheckpoint::nothing_at("step-1"), 0, "1").await.unwrap();
        part("runs-0", 8).await.unwrap();
        assert!(server.object("runs-0/.trainingjob/parts/step-1/8.json").exists());
    });
}

fn leftovers_of_a_lost_pod_are_removed_after_a_day(start: fn() -> Server) {
    let (server, room) = (start(), Room::new("store"));
    let proxy = Proxy::before(&server);
    let store = store(&server, &proxy.url(), "runs");
    let (lost, root) = (room.folder("lost"), room.folder("root"));
    let found = checkpoint(&lost, "checkpoint-1", 1);
    proxy.set(|asked| if asked.target.contains("partNumber=3") { Fault::Answer(403) } else { Fault::Pass });
    run(async {
        store.upload_part(&lost, &small(&lost, "checkpoint-3", 3), 1, "3-1").await.unwrap();
        assert_eq!(trouble(store.upload(&lost, &found).await).0, ErrorKind::Denied);
        fs::remove_dir_all(&lost).unwrap();
        proxy.set(|_| Fault::Pass);
        let other = store.upload(&root, &small(&root, "checkpoint-2", 2)).await.unwrap();
        let later = |hours: i64| Timestamp::now() + jiff::SignedDuration::from_hours(hours);
        store.sweep_as_of(later(23)).await.unwrap();
        assert!(server.object("runs/checkpoint-1").exists(), "somebody may still be sending");
        proxy.take();
        store.sweep_as_of(later(25)).await.unwrap();
        let asked = proxy.take();
        assert!(asked.iter().any(|asked| asked.method == "DELETE" && asked.target.contains("uploadId=")), "{asked:?}");
        for gone in ["runs/checkpoint-1", "runs/checkpoint-3"] {
            assert!(content(&server.object(gone)).is_empty(), "{gone}");
        }
        store.verify(&other).await.unwrap();
        proxy.take();
        store.sweep_as_of(later(25)).await.unwrap();
        assert!(proxy.take().iter().all(|asked| asked.method == "GET"), "there is nothing more to do");
    });
}

fn hostile_journal_cannot_delete_other_objects(start: fn() -> Server) {
    let (server, room) = (start(), Room::new("store"));
    let proxy = Proxy::before(&server);
    let store = store(&server, &proxy.url(), "runs");
    let root = room.folder("root");
    run(async {
        let first = store.upload(&root, &small(&root, "checkpoint-1", 1)).await.unwrap();
        let found = small(&root, "checkpoint-2", 2);
        proxy.set(|asked| if is_data(asked) { Fault::Answer(403) } else { Fault::Pass });
        store.upload(&root, &found).await.unwrap_err();
        let journal = fs::read_dir(root.join(".trainingjob/uploads")).unwrap().flatten().next().unwrap().path();
        let mut lines = r#"{"did":"begin","version":1,"identity":"x","generation":0}"#.to_owned() + "\n";
        for key in [".trainingjob/checkpoint-1.json", "checkpoint-1/0", "checkpoint-2/../checkpoint-1/1"] {
            lines += &format!("{{\"did\":\"sending\",\"key\":\"{key}\"}}\n");
            lines += &format!("{{\"did\":\"stored\",\"file\":\"{key}\",\"key\":\"{key}\",\"crc32c\":1}}\n");
        }
        fs::write(&journal, &lines).unwrap();
        proxy.set(|_| Fault::Pass);
        store.upload(&root, &found).await.unwrap();
        store.verify(&first).await.unwrap();
        // The folder of journals itself leads elsewhere.
        let outside = room.folder("outside");
        fs::remove_dir_all(root.join(".trainingjob/uploads")).unwrap();
        std::os::unix::fs::symlink(&outside, root.join(".trainingjob/uploads")).unwrap();
        let (kind, message) = trouble(store.upload(&root, &small(&root, "checkpoint-3", 3)).await);
        assert!(kind == ErrorKind::Local && message.contains("link"), "{message}");
        assert!(content(&outside).is_empty());
    });
}

fn uploaded_files_are_not_resent_in_the_next_round(start: fn() -> Server) {
    let (server, room) = (start(), Room::new("store"));
    let proxy = Proxy::before(&server);
    let store = store(&server, &proxy.url(), "runs");
    let root = room.folder("root");
    let found = checkpoint(&root, "step-5", 5);
    run(async {
        // The first round is cut in the middle.
        proxy.set(|asked| if asked.target.contains("partNumber=3") { Fault::Answer(403) } else { Fault::Pass });
        store.upload_part(&root, &found, 0, "5-1").await.unwrap_err();
        proxy.set(|_| Fault::Pass);
        proxy.take();
        store.upload_part(&root, &found, 0, "5-2").await.unwrap();
        let rest = data(&proxy.take());
        assert!(rest < PART, "{rest} bytes were sent again");
        assert_eq!(store.signs("step-5", 2, "5-2").await.unwrap().len(), 1);
        store.upload_part(&root, &found, 0, "5-3").await.unwrap();
        assert_eq!(data(&proxy.take()), 0);
        assert!(store.signs("step-5", 2, "5-2").await.unwrap().is_empty());
        let manifest = store.finish(&found, 1, "5-3", |_| None).await.unwrap();
        let back = restored(&store, &manifest, &room).await.unwrap();
        assert!(content(&back) == content(&root));
    });
}

fn manifest_records_the_order_of_writing(start: fn() -> Server) {
    let (server, room) = (start(), Room::new("store"));
    let store = store(&server, &server.url(), "runs");
    let root = room.folder("root");
    run(async {
        // The steps have started again.
        for (step, order) in [(9, 1), (1, 3), (2, 2)] {
            let found = small(&root, &format!("step-{step}"), step);
            let found = FoundCheckpoint { order, earliest: order, needs: vec!["step-9".to_owned()], ..found };
            let manifest = store.upload(&root, &found).await.unwrap();
            assert_eq!((manifest.found().order, manifest.found().needs), (order, found.needs));
        }
        assert_eq!(paths(&store).await, ["step-1", "step-2", "step-9"]);
    });
}

fn files_beside_a_checkpoint_are_restored_with_it(start: fn() -> Server) {
    let (server, room) = (start(), Room::new("store"));
    let store = store(&server, &server.url(), "runs");
    let (root, back) = (room.folder("root"), room.folder("back"));
    write(&root, "run/config.json", b"{}");
    write(&root, "run/vocab.txt", b"a b");
    let beside = || found_of(&root, "run/config.json", Format::Marked, 1, |path| !path.contains('/')).members;
    run(async {
        store.upload_beside(&root, "run", &beside()).await.unwrap();
        assert!(paths(&store).await.is_empty(), "it is no checkpoint");
        write(&root, "run/config.json", b"{\"new\": 1}");
        store.upload_beside(&root, "run", &beside()).await.unwrap();
        store.sweep().await.unwrap();
        write(&back, "run/vocab.txt", b"mine");
        assert_eq!(store.restore_beside("run", &back).await.unwrap(), ["config.json"]);
        assert_eq!(store.restore_beside("elsewhere", &back).await.unwrap(), [""; 0]);
        let files = content(&back);
        assert_eq!((&files["run/config.json"][..], &files["run/vocab.txt"][..]), (&b"{\"new\": 1}"[..], &b"mine"[..]));
    });
}
