//! Stalls without a failure: a stopped rank, a hang before the first step, a process that nothing ends, a volume that
//! does not answer. They use real pods, and torchrun with gloo.
//!
//! The printed table is in docs/failures.md.

use crate::behind;
use crate::world::{Job, SOON, Space, merged, world};
use api::TrainingJobStatus;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use testkit::process::{Process, Signal};
use testkit::root;
use testkit::wait::eventually;

/// The least that the API allows.
const IDLE_SECONDS: u32 = 30;
/// How long a volume does not answer.
const AWAY: Duration = Duration::from_secs(60);

#[tokio::test]
#[ignore = "soak: time-outs of half a minute and more; proved in make test by \
            agents::gang::idle_gang_is_restarted"]
async fn stalled_programs_are_found_and_restarted() {
    let Some(world) = world() else { return };
    let space = world.space("stalls", json!({})).await;
    let rows = tokio::join!(stopped(&space), absent(&space), unkillable(&space), waits(&space), restarts(&space));
    let rows = [rows.0, rows.1, rows.2, rows.3, rows.4].join("\n");
    let head = "| what | in the status after | all ranks meet after | reason: message |\n|---|---|---|---|";
    let _ = writeln!(std::io::stderr(), "{head}\n{rows}");
    space.end().await;
}

async fn stopped(space: &Space) -> String {
    let (job, at) = begin(space, "silent", None, json!({ "idleTimeoutSeconds": IDLE_SECONDS })).await;
    rank_1(&job).send_signal(Signal::STOP);
    let row = detected(&job, at, "a rank stops (SIGSTOP) in a program of an unknown format", &["Hang"]).await;
    assert!(row.contains("worker 1 ") && row.contains("rank 1"), "{row}");
    row
}

async fn absent(space: &Space) -> String {
    let fields = fields("absent", None, json!({ "idleTimeoutSeconds": IDLE_SECONDS }));
    let job = space.submit("absent", fields).await;
    job.says(1, 1, "rank 1 is away").await;
    let row = detected(&job, Instant::now(), "a rank never enters the first collective", &["Hang"]).await;
    assert!(row.contains("worker 1 ") && row.contains("rank 1"), "{row}");
    row
}

/// Its pod is replaced, on a node on which the process remains.
async fn unkillable(space: &Space) -> String {
    let mut volume = Volume::serve(space, "stuck").await;
    let hang = json!({ "idleTimeoutSeconds": IDLE_SECONDS });
    let (job, at) = begin(space, "stuck", Some("stuck"), hang).await;
    volume.say("hold stuck");
    let row =
        detected(&job, at, "a rank waits in the kernel for a file, and SIGKILL does not end it", &["Unkillable"]).await;
    volume.say("go");
    assert!(row.contains("worker 1 ") && row.contains("SIGKILL"), "{row}");
    row
}

/// Nothing asks for another attempt. All ranks wait until the volume answers.
async fn waits(space: &Space) -> String {
    let mut volume = Volume::serve(space, "waits").await;
    let (job, _) = begin(space, "volume", Some("waits"), json!({})).await;
    let saved = volume.saved(10).await;
    volume.say("hold");
    let at = Instant::now();
    tokio::time::sleep(AWAY).await;
    volume.say("go");
    let last = saved.last().unwrap() + 10;
    volume.saved(last).await;
    let status = job.status();
    assert_eq!((status.attempt, status.restart_count), (Some(1), Some(0)), "{:?}", status.restarts);
    assert!(saved.is_subset(&volume.steps()), "{saved:?} {:?}", volume.steps());
    let seconds = at.elapsed().as_secs_f64();
    format!(
        "| a volume does not answer for 60 s, with the default time-outs | - | saves again before {seconds:.1} s, in the same attempt | none: it waits |"
    )
}

/// The hang is found meanwhile. The processes that wait for the volume end when it answers.
async fn restarts(space: &Space) -> String {
    let mut volume = Volume::serve(space, "restarts").await;
    let hang = json!({ "timeoutSeconds": IDLE_SECONDS });
    let (job, _) = begin(space, "volume", Some("restarts"), hang).await;
    let saved = volume.saved(10).await;
    volume.say("hold");
    let at = Instant::now();
    let answers = async {
        tokio::time::sleep(AWAY).await;
        volume.say("go");
    };
    let what = "the same, with `hang.timeoutSeconds: 30`";
    let (row, ()) = tokio::join!(detected(&job, at, what, &["Hang"]), answers);
    assert!(saved.is_subset(&volume.steps()), "{saved:?} {:?}", volume.steps());
    let resumed = job.status().checkpoint.and_then(|checkpoint| checkpoint.resumed_from);
    assert!(resumed.is_some(), "{row}");
    row
}

// ----

fn fields(fault: &str, claim: Option<&str>, hang: Value) -> Value {
    let storage = claim.map(|claim| json!({ "type": "pvc", "pvcName": claim }));
    json!({
        "command": ["torchrun", "/programs/stalls.py"],
        "env": [{ "name": "FAULT", "value": fault }],
        "failurePolicy": { "hang": merged(json!({ "action": "Restart" }), &hang) },
        "podTemplate": { "spec": { "terminationGracePeriodSeconds": 20 } },
        "checkpoint": storage.map_or(json!({ "enabled": false }), |storage| json!({ "storage": storage, "retention": 1000 })),
    })
}

/// A job whose ranks have met, and when that was seen.
async fn begin(space: &Space, fault: &str, claim: Option<&str>, hang: Value) -> (Job, Instant) {
    let job = space.submit(claim.unwrap_or(fault), fields(fault, claim, hang)).await;
    job.says(1, 0, "attempt 1: all ranks have met").await;
    (job, Instant::now())
}

fn rank_1(job: &Job) -> Process {
    let is = |process: &Process, name, value| process.variable(name) == Some(value);
    let mut processes = Process::with_variable("LOCAL_RANK").into_iter().filter(|process| {
        is(process, "POD_NAMESPACE", &job.space.name)
            && is(process, "TRAINING_JOB_NAME", &job.name)
            && is(process, "RANK", "1")
    });
    processes.next().expect("rank 1 runs")
}

/// Waits for the reported end and for the next attempt. Returns the row of the table.
async fn detected(job: &Job, at: Instant, what: &str, reasons: &[&str]) -> String {
    let is_reported = |status: &TrainingJobStatus| !status.restarts.is_empty();
    job.until("an end of an attempt", is_reported).await;
    let found = at.elapsed().as_secs_f64();
    job.says(1, 0, "attempt 2: all ranks have met").await;
    let met = at.elapsed().as_secs_f64();
    let status = job.status();
    let named: Vec<_> = status.restarts.iter().map(|restart| restart.reason.as_str()).collect();
    assert_eq!(named, reasons, "{:?}", status.restarts);
    let message = status.restarts[0].to_string();
    format!("| {what} | {found:.1} s | {met:.1} s | `{}`: `{message}` |", named.join(", "))
}

/// A folder behind a claim, served by tests/node/volume.py.
struct Volume {
    server: Child,
    answers: BufReader<ChildStdout>,
    source: PathBuf,
}

impl Volume {
    async fn serve(space: &Space, claim: &str) -> Self {
        let request = json!({ "accessModes": ["ReadWriteMany"], "resources": { "requests": { "storage": "1Gi" } } });
        space.create::<PersistentVolumeClaim>(json!({ "metadata": { "name": claim }, "spec": request })).await;
        let mount = behind(space, claim).await;
        let source = std::env::temp_dir().join(format!("{}-{claim}", space.name));
        fs::create_dir(&source).unwrap();
        fs::set_permissions(&source, fs::Permissions::from_mode(0o777)).unwrap();
        let mut command = Command::new("python3");
        command.arg("-B").arg(root("tests/node/volume.py")).args([&source, &mount]);
        let mut server = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let answers = BufReader::new(server.stdout.take().unwrap());
        let mut volume = Self { server, answers, source };
        volume.answer("ready");
        volume
    }

    fn say(&mut self, command: &str) {
        writeln!(self.server.stdin.as_mut().unwrap(), "{command}").unwrap();
        self.answer("done");
    }

    fn answer(&mut self, expected: &str) {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        assert_eq!(line.trim_end(), expected);
    }

    /// The steps that are saved, seen below the volume, once this one is among them.
    async fn saved(&self, step: u32) -> BTreeSet<u32> {
        let is_saved = async || Some(self.steps()).filter(|steps| steps.last() >= Some(&step));
        eventually(&format!("step {step} to be saved"), SOON, is_saved).await
    }

    fn steps(&self) -> BTreeSet<u32> {
        let names =
            fs::read_dir(&self.source).unwrap().filter_map(|entry| entry.unwrap().file_name().into_string().ok());
        names.filter_map(|name| name.strip_prefix("step-")?.strip_suffix(".pt")?.parse().ok()).collect()
    }
}

impl Drop for Volume {
    /// The server unmounts at the end of its input, whatever it holds.
    fn drop(&mut self) {
        drop(self.server.stdin.take());
        let _ = self.server.wait();
        let _ = fs::remove_dir_all(&self.source);
    }
}
