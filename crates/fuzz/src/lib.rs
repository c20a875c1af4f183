//! Every parser of bytes that come from outside, behind one interface. The tests pass damaged fixtures to them, and
//! `tests/fuzz` passes bytes that a fuzzer has grown by coverage. None of them may panic, whatever the bytes' source.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test panics where anything is not as expected")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::needless_pass_by_value,
    clippy::too_many_lines,
    reason = "numbers of tests are small, their tables are long"
)]

use agent::output::lines::Lines;
use agent::progress::{json, text::Text};
use checkpoint::budget::Budget;
use checkpoint::inventory::Inventory;
use gang::frame::{Channel, NONCE, Payload, Secret};
use gang::message::{MemberId, Message, Time};
use gang::remote::Packet;
use jiff::Timestamp;
use protocol::report::Report;
use protocol::stacks::{ProcessStacks, Stacks};
use std::cell::LazyCell;
use std::fs;
use std::path::{Path, PathBuf};
use store::manifest::Manifest;
use text::error_pattern;
use text::exception::HookLine;
use text::printable;
use text::stderr;

/// A parser.
pub struct Target {
    /// The name by which it is called.
    pub name: &'static str,
    /// Reads any bytes, and panics where a promise is broken.
    pub read: fn(&[u8]),
    /// Examples of its real input.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All parsers.
pub const TARGETS: [Target; 11] = [
    // Any client in the cluster may dial the gang's port.
    Target { name: "gang-connection", read: gang_connection, seeds: hellos },
    // A client with the secret may be of another version.
    Target { name: "gang-message", read: gang_message, seeds: || vec![br#"{"up":{"status":[{"at":1},{}]}}"#.to_vec()] },
    // The content of a container's termination message, which the kubelet may have cut.
    Target { name: "termination-message", read: termination_message, seeds: reports },
    // The answer of any pod that has an agent's address.
    Target { name: "agent-answer", read: agent_answer, seeds: answers },
    // The output of the program.
    Target { name: "output", read: output, seeds: outputs },
    // The content of the files and pipes by which a program reports about itself.
    Target { name: "told", read: self_reports, seeds: || vec![br#"{"step":3,"steps":10,"loss":0.5}"#.to_vec()] },
    // The content of a store.
    Target { name: "manifest", read: manifest, seeds: manifests },
    // The content of a folder of checkpoints. The first byte selects the file that is replaced.
    Target { name: "checkpoint", read: |bytes| ROOM.with(|room| checkpoint(room, bytes)), seeds: checkpoints },
    // A user's spec, past the schema, because operators of other versions may have admitted it.
    Target { name: "trainingjob", read: training_job, seeds: examples },
    // A user's manifests for another operator.
    Target { name: "convert", read: convert, seeds: manifests_of_others },
    // What a stack of a program is called.
    Target { name: "stacks", read: stacks, seeds: || vec![br#"{"processes":[{"pid":1}]}"#.to_vec()] },
];

const NOW: Time = Time(1000);

fn channels() -> (Channel, Channel, Vec<u8>) {
    let secret = || Secret::new(b"0123456789abcdef0123456789abcdef").expect("it is long enough");
    let mut leader = Channel::accept(secret(), "job".to_owned(), [1; NONCE], NOW);
    let member = MemberId::new("worker", 3);
    let dialled = Channel::dial(secret(), "job".to_owned(), [2; NONCE], &member, "pod", NOW);
    let (follower, hello) = dialled.expect("short names");
    let mut first = vec![];
    let _ = leader.receive(&hello, NOW, &mut first);
    (leader, follower, first)
}

fn hellos() -> Vec<Vec<u8>> {
    let (mut leader, mut follower, first) = channels();
    let (mut hello, mut proof) = (vec![], vec![]);
    let _ = follower.receive(&first, NOW, &mut hello);
    let _ = leader.receive(&hello, NOW, &mut proof);
    vec![first, hello, proof]
}

/// Without the secret, neither side accepts anything, before and after the proof. With one byte less than a whole
/// hello, neither side does.
fn gang_connection(bytes: &[u8]) {
    let (mut leader, mut follower, first) = channels();
    let genuine = hellos();
    for (channel, expected) in [(&mut leader, &genuine[1]), (&mut follower, &genuine[0])] {
        let events = channel.receive(bytes, NOW, &mut vec![]).unwrap_or_default();
        assert!(events.is_empty() || bytes.starts_with(expected), "{events:?}");
    }
    let (mut leader, mut follower, _) = channels();
    let (mut hello, mut proof) = (vec![], vec![]);
    let _ = follower.receive(&first, NOW, &mut hello);
    let _ = leader.receive(&hello, NOW, &mut proof);
    let _ = follower.receive(&proof, NOW, &mut vec![]);
    for channel in [&mut leader, &mut follower] {
        assert!(channel.receive(bytes, NOW, &mut vec![]).unwrap_or_default().is_empty());
    }
}

fn gang_message(bytes: &[u8]) {
    if let Ok(message) = serde_json::from_slice::<Message>(bytes) {
        let _ = message.check();
    }
    if let Ok(packet) = Packet::from_bytes(bytes) {
        assert_eq!(packet.to_bytes().as_deref(), Ok(bytes));
    }
}

fn reports() -> Vec<Vec<u8>> {
    let mut report = Report { version: 1, exit_code: Some(1), ..Report::default() };
    let tail = "Traceback (most recent call last):\n  File \"a.py\", line 3\nValueError: no\n";
    report.read_stderr(tail.to_owned(), |_| Some(Timestamp::UNIX_EPOCH));
    vec![report.to_message().into_bytes(), br#"{"version":1,"hang":{"text":"x"}}"#.to_vec()]
}

/// What was read is written again, and fits.
fn termination_message(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Some(report) = Report::parse(&text) {
        let _ = (report.summary(), report.line(), report.last_words(), report.last_traceback(), report.own_signal());
        let message = report.to_message();
        assert!(message.len() <= 4096, "{} bytes", message.len());
        assert!(Report::parse(&message).is_some(), "{message}");
    }
    let mut report = Report { version: 1, ..Report::default() };
    report.read_stderr(text.into_owned(), |line| Timestamp::from_second(line.len() as i64).ok());
    let _ = (report.summary(), report.to_message());
}

fn answers() -> Vec<Vec<u8>> {
    let status = protocol::agent_status::AgentStatus::default();
    vec![serde_json::to_vec(&status).unwrap_or_default()]
}

fn agent_answer(bytes: &[u8]) {
    if let Ok(status) = trainingjob_operator::controller::decode(bytes) {
        let _ = status.gpu_utilization();
    }
    let _ = serde_json::from_slice::<agent::checkpoints::choice::Rounds>(bytes);
}

fn outputs() -> Vec<Vec<u8>> {
    files(Path::new("tests/fixtures/progress")).into_iter().filter_map(|file| fs::read(file).ok()).collect()
}

fn output(bytes: &[u8]) {
    let (mut lines, mut text) = (Lines::default(), Text::new(None));
    let mut on_line = |line: &[u8]| {
        let _ = (error_pattern::of_line(line), text.line(line), HookLine::parse(line));
    };
    for piece in bytes.chunks(97) {
        lines.push(piece, &mut on_line);
        lines.drawn_bar().map(&mut on_line);
    }
    if let Some(line) = lines.end() {
        on_line(&line);
    }
    let all = printable(bytes);
    if let Some(line) = stderr::cause_line(&all) {
        let _ = (stderr::exception(&line), stderr::is_usage_error(&all, &line));
    }
    let _ =
        (stderr::first_rank(&all), stderr::code_of_paddle(&all), stderr::last_line(&all), stderr::has_traceback(&all));
}

fn self_reports(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let _ = (json::parse(&text), json::parse_line(&text, &["a".to_owned()]), json::trainer_state(&text));
    if let Some(HookLine::Raised { exception, .. }) = HookLine::parse(bytes) {
        let _ = (exception.summary(), exception.text(), exception.origin());
    }
}

fn manifests() -> Vec<Vec<u8>> {
    vec![
        br#"{"version":1,"path":"step-1","layout":"folder","generation":"00000000","format":"marked","step":1,"metrics":{},"modified":"2026-01-01T00:00:00Z","bytes":3,"stored":"2026-01-01T00:00:00Z","writer":"u","identity":"i","files":[{"path":"weights","size":3,"crc32c":"00000000","key":"step-1/weights"}]}"#
            .to_vec(),
    ]
}

fn manifest(bytes: &[u8]) {
    for read in [Manifest::read, Manifest::read_part] {
        if let Ok(manifest) = read("s3://bucket/x", bytes) {
            let found = manifest.found();
            let below = |path: &str| !path.starts_with('/') && path.split('/').all(|part| part != "..");
            assert!(below(&found.path) && manifest.files.iter().all(|file| below(&file.path)), "{manifest:?}");
            assert!(Manifest::read_part("s3://bucket/x", &manifest.to_json()).is_ok());
        }
    }
}

/// A folder with a copy of every fixture.
struct Checkpoints {
    root: PathBuf,
    files: Vec<PathBuf>,
}

thread_local! {
    static ROOM: LazyCell<Checkpoints> = const { LazyCell::new(Checkpoints::new) };
}

impl Checkpoints {
    fn new() -> Self {
        let name = format!("trainingjob-fuzz-{}-{:?}", std::process::id(), std::thread::current().id());
        let (root, from) = (std::env::temp_dir().join(name), fixtures());
        let _ = fs::remove_dir_all(&root);
        let mut copies = Vec::new();
        for file in files(&from) {
            let to = root.join(file.strip_prefix(&from).expect("it lies there"));
            fs::create_dir_all(to.parent().expect("a folder"))
                .and_then(|()| fs::copy(&file, &to))
                .expect("room in /tmp");
            copies.push(to);
        }
        Self { root, files: copies }
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

fn fixtures() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/fixtures/checkpoints")
}

fn checkpoints() -> Vec<Vec<u8>> {
    let content = |(at, file): (usize, &PathBuf)| Some([&[at as u8][..], &fs::read(file).ok()?].concat());
    let all = files(&fixtures());
    all.iter().enumerate().filter_map(content).filter(|seed| seed.len() < 64 * 1024).collect()
}

fn checkpoint(room: &Checkpoints, bytes: &[u8]) {
    let Some((first, bytes)) = bytes.split_first() else { return };
    let file = &room.files[usize::from(*first) % room.files.len()];
    let genuine = fs::read(file).expect("a copy of a fixture");
    fs::write(file, bytes).expect("room in /tmp");
    let format = file.strip_prefix(&room.root).expect("it lies there").components().next().expect("a folder");
    let scan = Inventory::new(&room.root.join(format), "", "").read(Timestamp::now(), &Budget::default());
    assert!(scan.found.len() < 100);
    fs::write(file, genuine).expect("room in /tmp");
}

fn examples() -> Vec<Vec<u8>> {
    let spec = br#"{"apiVersion":"ml.example.com/v1","kind":"TrainingJob","metadata":{"name":"x","namespace":"y","uid":"u"},"spec":{"image":"i","command":["torchrun","train.py"],"numWorkers":2,"model":"m","dataset":"d","gpusPerWorker":1,"resources":{"requests":{"cpu":"500m","memory":"1Gi"}},"checkpoint":{"storage":{"type":"s3","s3Bucket":"b"}},"failurePolicy":{"rules":[{"action":"Fail","exitCodes":[3]}]}}}"#;
    vec![spec.to_vec()]
}

fn training_job(bytes: &[u8]) {
    use plan::{Incarnation, OperatorInfo, resolve};
    let Ok(job) = serde_json::from_slice(bytes) else { return };
    let planned = resolve(&job, &OperatorInfo::default());
    if let Ok(plan) = planned.accepted() {
        let _ = objects::objects(plan, Incarnation::FIRST, &protocol::gang::GangPast::default());
    }
}

fn manifests_of_others() -> Vec<Vec<u8>> {
    files(Path::new("tests/fixtures/convert")).into_iter().filter_map(|file| fs::read(file).ok()).collect()
}

/// Written manifests are read back as they were made, and ours are decoded.
fn convert(bytes: &[u8]) {
    use kubectl_trainingjob::convert::{Answers, convert};
    let Ok(converted) = convert(&String::from_utf8_lossy(bytes), &Answers::default()) else { return };
    let read: Vec<serde_json::Value> = serde_saphyr::from_multiple(&converted.text).expect("YAML");
    let made: Vec<serde_json::Value> = converted.jobs.into_iter().map(|(job, _)| job).collect();
    assert_eq!(read, made, "{}", converted.text);
    for job in made {
        serde_json::from_value::<api::TrainingJob>(job).expect("a TrainingJob");
    }
}

fn stacks(bytes: &[u8]) {
    if let Ok(stacks) = serde_json::from_slice::<Stacks>(bytes) {
        let stacks = stacks.bounded();
        let _ = (stacks.lines(), stacks.blamed().map(ProcessStacks::location));
        assert!(stacks.summary(200).len() <= 200 + 4);
    }
}

/// All files below a folder of the checkout, in one order.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    /// Flips, cuts, repeats and mixes, as disks and people do. The long form is `make soak`.
    #[test]
    fn parsers_survive_damaged_bytes() {
        for target in &TARGETS {
            let seeds = (target.seeds)();
            assert!(seeds.iter().any(|seed| !seed.is_empty()), "{} has seeds", target.name);
            seeds.iter().for_each(|seed| (target.read)(seed));
            let mut random = StdRng::seed_from_u64(7);
            for _ in 0..300 {
                let mut bytes = seeds[random.random_range(0..seeds.len())].clone();
                for _ in 0..random.random_range(1..5) {
                    let other = &seeds[random.random_range(0..seeds.len())];
                    damage(&mut bytes, other, &mut random);
                }
                (target.read)(&bytes);
            }
        }
    }

    fn damage(bytes: &mut Vec<u8>, other: &[u8], random: &mut StdRng) {
        let at = random.random_range(0..=bytes.len());
        match random.random_range(0..6) {
            0 => bytes.truncate(at),
            1 if at < bytes.len() => bytes[at] ^= 1 << random.random_range(0..8),
            2 if at < bytes.len() => bytes[at] = random.random(),
            3 => bytes.insert(at, random.random()),
            4 => bytes.extend_from_slice(&other[random.random_range(0..=other.len())..]),
            _ => drop(bytes.drain(at..random.random_range(at..=bytes.len()))),
        }
    }
}
