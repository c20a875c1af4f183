//! Shared parts of the test programs: clusters, waiting, ports, folders, and the real programs under test.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test panics where anything is not as expected")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::needless_pass_by_value,
    clippy::too_many_lines,
    reason = "numbers of tests are small, their tables are long"
)]
#![allow(clippy::missing_panics_doc, reason = "a test panics where anything is not as expected")]

pub mod cluster;
pub mod evidence;
pub mod init;
pub mod job;
pub mod mlflow;
pub mod order;
pub mod packages;
pub mod pod;
pub mod ports;
pub mod process;
pub mod prometheus;
pub mod room;
pub mod servers;
pub mod support;
pub mod training;
pub mod wait;

pub use ports::{free_port, free_ports};

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// A path of the checkout.
pub fn root(path: &str) -> String {
    format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"))
}

/// One of the programs under test: `operator`, `agent`, `kubectl-trainingjob` or `crdgen`.
///
/// The runner of the tests names their folder in `TRAININGJOB_TEST_BINARIES`. Otherwise they are where `cargo build
/// --bins` has put them.
pub fn binary(name: &str) -> &'static str {
    static KNOWN: Mutex<BTreeMap<String, &'static str>> = Mutex::new(BTreeMap::new());
    let find = || match std::env::var("TRAININGJOB_TEST_BINARIES") {
        Ok(folder) => format!("{folder}/{name}"),
        Err(_) => {
            let triples = std::fs::read_dir(root("target")).into_iter().flatten().flatten();
            let mut built = triples.map(|triple| triple.path().join("debug").join(name)).filter(|file| file.is_file());
            let file =
                built.next().unwrap_or_else(|| panic!("{name} is not built: `cargo build --bins`, or tests/run"));
            file.to_str().expect("a path in UTF-8").to_owned()
        }
    };
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.entry(name.to_owned()).or_insert_with(|| find().leak())
}

/// Reports that a test is skipped because something is missing. Where `TRAININGJOB_TEST_ALL` is set, as `make test`
/// sets it, nothing may be missing, and the test fails.
pub fn skipped(why: &str) {
    let all = std::env::var_os("TRAININGJOB_TEST_ALL").is_some_and(|value| !value.is_empty());
    assert!(!all, "{why} (TRAININGJOB_TEST_ALL is set: no test may be skipped)");
    let thread = std::thread::current();
    // This bypasses libtest, which hides the output of a passing test.
    let _ = writeln!(std::io::stderr(), "SKIPPED {}: {why}", thread.name().unwrap_or("test"));
}

/// A folder of this process, for files that all of its tests use.
pub fn scratch() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let all = PathBuf::from(root("target/tmp"));
        let path = all.join(format!("process-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder below target");
        // A process that has left nothing leaves only its empty folder, which can be removed. Others can't.
        for other in std::fs::read_dir(&all).into_iter().flatten().flatten() {
            let name = other.file_name();
            let process = name.to_str().and_then(|name| name.strip_prefix("process-"));
            if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
                let _ = std::fs::remove_dir(other.path());
            }
        }
        path.canonicalize().expect("it is there")
    })
}

/// The folder of files that are fetched or built once per machine.
pub fn cache() -> PathBuf {
    let home = || std::env::home_dir().expect("a home").join(".cache/trainingjob");
    std::env::var_os("TRAININGJOB_CACHE").map_or_else(home, PathBuf::from)
}

/// Sends a request to a server of this machine. Returns the body if it answers with 200.
pub fn ask(port: u16, method: &str, path: &str, body: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    // With HTTP 1.0, the answer comes whole and ends with the connection.
    let head = format!("{method} {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json");
    let request = format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    (head.split(' ').nth(1) == Some("200")).then(|| body.to_owned())
}
