//! Two consecutive runs of a program in one container: nothing of the first shows in the second, and no signal that
//! arrives between them is lost.
//!
//! It is a program of its own without the test harness. The agent must be the process's first thread, because the
//! kernel drops a SIGCHLD that another thread would ignore. The agent also reaps every child of its process.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test panics where anything is not as expected")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::needless_pass_by_value,
    clippy::too_many_lines,
    reason = "numbers of tests are small, their tables are long"
)]

use agent::attempt::Attempt;
use agent::container::Container;
use agent::context::{Leftovers, Options};
use nix::sys::signal::{Signal, raise};
use protocol::agent_status::AgentStatus;
use protocol::report::{Phase, Report};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;
use testkit::free_port;
use testkit::room::Room;
use testkit::wait::until;
use text::error_pattern::ErrorPattern;

const DEADLINE: Duration = Duration::from_secs(60);

/// The first run prints and does what could leak, and is ended for its loss. The second run prints little and waits
/// until the test has looked at it.
const SCRIPT: &str = r#"
cd "$ROOM"
dirname "$TRAININGJOB_PROGRESS_FILE" > folder-$ATTEMPT
echo "$TRAININGJOB_PROGRESS_URL" > url-$ATTEMPT
if [ $ATTEMPT = 1 ]; then
    echo "log of the first" >&2
    echo "torch.OutOfMemoryError: CUDA out of memory. Tried" >&2
    echo '{"type": "ValueError", "message": "of the first", "seconds": '$(date +%s)'}' >> "$TRAININGJOB_EXCEPTION_FILE"
    echo '{"step": 1, "acc": 0.1, "loss": 1}'
    echo '{"step": 2, "acc": 0.2, "loss": 1}'
    echo '{"step": 900, "total_steps": 1000, "loss": NaN}' >> "$TRAININGJOB_PROGRESS_FILE"
    exec sleep 1000
fi
[ $ATTEMPT = 2 ] && [ -e "$(cat folder-1)" ] && exit 9
echo "log of the second" >&2
echo '{"step": 3, "acc": 0.3, "loss": 1}'
until [ -e looked-at ]; do sleep 0.02; done
"#;

fn main() {
    let room = Room::new("runs");
    let port = free_port();
    let options = Options {
        withheld: Vec::new(),
        argv: ["env", &format!("ROOM={}", room.0.display()), "sh", "-c", SCRIPT].map(Into::into).to_vec(),
        grace: Duration::from_secs(1),
        unkillable_after: Duration::from_secs(120),
        leftovers: Leftovers::default(),
        termination_log: room.path("message"),
        metrics_port: Some(port),
        answer_key: None,
        progress_patterns: Vec::new(),
        fail_on_nan: true,
        hang: None,
        checkpoints: None,
        resume_args: Vec::new(),
        state: None,
        code: None,
        watch_metrics: vec!["acc".to_owned()],
        objective: None,
        gang: None,
    };
    let mut container = Container::open(options).unwrap();
    let attempt = |number| Attempt { number: Some(number), ..Attempt::default() };

    assert_eq!(container.run(&attempt(1)).unwrap(), 143);
    let first = report(&room, 1);
    assert_eq!((first.attempt, first.ended_for, first.signal), (1, Some(ErrorPattern::NanLoss), Some(15)));
    assert!(first.exception.is_some() && first.error_patterns.len() == 2, "{first:?}");
    assert_eq!(container.wait(Duration::from_millis(10)).unwrap(), None);

    let path = room.0.clone();
    let looks = std::thread::spawn(move || {
        let looked = std::panic::catch_unwind(|| look_at_the_second(&path, port));
        fs::write(path.join("looked-at"), "").unwrap();
        looked.is_ok()
    });
    assert_eq!(container.run(&attempt(2)).unwrap(), 0, "a loss that was lost before is none of this run's");
    assert!(looks.join().unwrap(), "what is said above");
    let second = report(&room, 2);
    assert_eq!((second.phase, second.attempt, second.exit_code), (Phase::Exited, 2, Some(0)));
    assert_eq!((second.ended_for, second.signal, second.stopped_by), (None, None, None));
    assert!(second.exception.is_none() && second.error_patterns.is_empty(), "{second:?}");
    assert_eq!(second.stderr_tail, "log of the second\n");
    assert!(first.finished_at <= second.started_at);
    let progress = second.progress.unwrap();
    assert_eq!((progress.step, progress.steps, progress.loss), (Some(7.0), None, Some(1.0)));

    raise(Signal::SIGTERM).unwrap();
    assert_eq!(container.wait(DEADLINE).unwrap(), Some(15));
    assert_eq!(container.run(&attempt(3)).unwrap(), 143, "what is told to stop starts nothing more");
    let third = report(&room, 3);
    assert_eq!((third.phase, third.attempt, third.stopped_by), (Phase::Exited, 3, Some(15)));
    assert!(third.exit_code.is_none() && !room.path("url-3").exists());
    println!("two runs in one container: ok");
}

/// The final report of a run, which a thread of its own writes soon.
fn report(room: &Room, attempt: u32) -> Report {
    until("the last log of a run", DEADLINE, || {
        let report = Report::parse(&fs::read_to_string(room.path("message")).ok()?)?;
        (report.attempt == attempt && report.phase == Phase::Exited).then_some(report)
    })
}

/// What a client sees of the second run, and what the program's straggler of the first can still do.
fn look_at_the_second(room: &Path, port: u16) {
    let status = until("a word of the second run", DEADLINE, || {
        let (_, body) = request(("127.0.0.1", port), "GET", "/status", "")?;
        let status = serde_json::from_str::<AgentStatus>(&body).ok()?;
        (status.report.attempt == 2 && status.histories["acc"].count > 0).then_some(status)
    });
    assert_eq!(status.report.phase, Phase::Running);
    let readings = &status.histories["acc"];
    assert_eq!((readings.count, readings.recent[0].n, readings.recent[0].value), (1, 1, 0.3));
    assert!(status.cause.is_none() && status.report.exception.is_none() && status.progress.steps.is_none());

    let url = |attempt: u8| {
        let url = fs::read_to_string(room.join(format!("url-{attempt}"))).unwrap();
        let (host, secret) = url.trim().strip_prefix("http://").unwrap().split_once('/').unwrap();
        (host.to_owned(), format!("/{secret}"))
    };
    let post = |attempt: u8, body: &str| request(&*url(attempt).0, "POST", &url(attempt).1, body).unwrap().0;
    assert_eq!(url(1).0, url(2).0, "the server is the container's");
    assert_eq!(post(1, r#"{"step": 901, "loss": "NaN"}"#), "HTTP/1.1 404 Not Found", "the secret is the run's");
    assert_eq!(post(2, r#"{"step": 7}"#), "HTTP/1.1 200 OK");
    let folder = |attempt: u8| fs::read_to_string(room.join(format!("folder-{attempt}"))).unwrap();
    assert_ne!(folder(1), folder(2));
}

/// The status line and the body of the answer.
fn request(to: impl std::net::ToSocketAddrs, method: &str, path: &str, body: &str) -> Option<(String, String)> {
    let mut stream = TcpStream::connect(to).ok()?;
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.lines().next()?.to_owned(), body.to_owned()))
}
