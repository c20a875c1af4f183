//! The agent's binary, run for real. Each test has a directory of its own, which is also the program's working
//! directory, and leaves no process behind.

use api::Reason;
use failure::{Container, WorkerFacts, first_cause};
use jiff::Timestamp;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use protocol::agent_status::AgentStatus;
use protocol::attempt::AttemptEnd;
use protocol::inputs::FetchStage;
use protocol::progress::{Progress, Source};
use protocol::proof::{AnswerKey, Nonce};
use protocol::report::{LastProgress, LaunchErrorKind, MAX_BYTES, Phase, Report};
use protocol::role::RoleName;
use protocol::stacks::{ProcessStacks, ProcessState, StackLocation, Stacks};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use testkit::room::Room;
use testkit::wait::until;
use testkit::{binary, free_port, skipped};
use text::error_pattern::ErrorPattern;

const DEADLINE: Duration = Duration::from_secs(60);

/// Operations of these tests on their rooms.
pub trait Runs {
    fn write(&self, name: &str, content: &[u8], mode: u32) -> PathBuf;

    /// The command `agent run OPTIONS -- PROGRAM` with all streams piped, not yet started.
    fn agent(&self, options: &[&str], program: &[&str]) -> Command;

    fn arguments(&self, command: &mut Command, options: &[&str], program: &[&str]);

    fn run(&self, options: &[&str], program: &[&str]) -> Output {
        self.agent(options, program).output().unwrap()
    }

    fn sh(&self, script: &str) -> Output {
        self.run(&["--grace-seconds", "1"], &["sh", "-c", script])
    }

    fn start(&self, options: &[&str], script: &str) -> Running {
        Running(self.agent(options, &["sh", "-c", script]).spawn().unwrap())
    }

    /// The final report of an agent that has exited.
    fn report(&self) -> Report;

    /// Waits for a report that satisfies `wanted`. A running agent may be writing the next one.
    fn report_with(&self, what: &str, wanted: impl Fn(&Report) -> bool) -> Report;

    /// The PID that the program wrote to the file `name`, once the file exists.
    fn pid(&self, name: &str) -> i32;
}

impl Runs for Room {
    fn write(&self, name: &str, content: &[u8], mode: u32) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn agent(&self, options: &[&str], program: &[&str]) -> Command {
        // A container starts with default signals, but a shell makes its background processes ignore SIGINT.
        let mut command = Command::new("/usr/bin/env");
        command.args(["--default-signal", binary("agent")]);
        self.arguments(&mut command, options, program);
        command
    }

    fn arguments(&self, command: &mut Command, options: &[&str], program: &[&str]) {
        command.args(["run", "--termination-log"]).arg(self.path("message")).args(options).arg("--").args(program);
        command.current_dir(&self.0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    }

    fn report(&self) -> Report {
        let message = fs::read_to_string(self.path("message")).unwrap();
        assert!(message.len() <= MAX_BYTES, "{} bytes", message.len());
        Report::parse(&message).unwrap_or_else(|| panic!("no report: {message}"))
    }

    fn report_with(&self, what: &str, wanted: impl Fn(&Report) -> bool) -> Report {
        until(what, DEADLINE, || Report::parse(&fs::read_to_string(self.path("message")).ok()?).filter(&wanted))
    }

    fn pid(&self, name: &str) -> i32 {
        until(name, DEADLINE, || fs::read_to_string(self.path(name)).ok()?.strip_suffix('\n')?.parse().ok())
    }
}

/// A started agent, which is killed if the test ends before it does.
pub struct Running(Child);

impl Running {
    fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }

    /// Waits until the program has printed `ready`.
    fn ready(&mut self) {
        assert_eq!(self.line(), "ready\n");
    }

    /// The next line that the program prints.
    fn line(&mut self) -> String {
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        line
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).unwrap();
    }

    fn exit_code(&mut self) -> Option<i32> {
        until("the agent's end", DEADLINE, || self.0.try_wait().unwrap()).code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn is_there(pid: i32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

/// Bytes that no text encoding allows, with every value among them.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 1u64;
    std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    })
    .take(length)
    .collect()
}

#[test]
fn agent_exits_with_the_programs_exit_code() {
    let room = Room::new("exit-codes");
    for code in [0, 1, 42, 255] {
        assert_eq!(room.sh(&format!("exit {code}")).status.code(), Some(code));
        let report = room.report();
        assert_eq!((report.phase, report.exit_code, report.signal), (Phase::Exited, Some(code), None));
        assert!(report.started_at.unwrap() <= report.finished_at.unwrap());
    }
    // 40 is a real-time signal, which libraries do not know.
    for signal in [6, 9, 11, 15, 40] {
        assert_eq!(room.sh(&format!("kill -{signal} $$")).status.code(), Some(128 + signal));
        let report = room.report();
        assert_eq!((report.exit_code, report.signal, report.stopped_by), (None, Some(signal), None));
    }
}

#[test]
fn signals_are_forwarded() {
    let room = Room::new("signals");
    for signal in ["HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "TERM", "CONT", "WINCH"] {
        let script = format!("trap 'exit 42' {signal}; echo ready; while :; do sleep 0.1; done");
        let mut agent = room.start(&[], &script);
        agent.ready();
        agent.signal(format!("SIG{signal}").parse().unwrap());
        assert_eq!(agent.exit_code(), Some(42), "{signal}");
    }
}

#[test]
fn exit_code_is_never_0_after_an_external_stop() {
    let room = Room::new("stopped");
    for (signal, own, code) in [(Signal::SIGTERM, 0, 143), (Signal::SIGINT, 0, 130), (Signal::SIGTERM, 5, 5)] {
        let name = signal.as_str().strip_prefix("SIG").unwrap();
        let mut agent = room.start(&[], &format!("trap 'exit {own}' {name}; echo ready; while :; do sleep 0.1; done"));
        agent.ready();
        agent.signal(signal);
        assert_eq!(agent.exit_code(), Some(code));
        let report = room.report();
        assert_eq!((report.exit_code, report.stopped_by), (Some(own), Some(signal as i32)));
    }
}

#[test]
fn a_program_may_signal_its_own_group() {
    let room = Room::new("kill-0");
    assert_eq!(room.sh("trap 'exit 0' TERM; kill 0; sleep 9").status.code(), Some(0));
    assert_eq!(room.report().stopped_by, None);
}

#[test]
fn process_ignoring_sigterm_is_killed_after_the_grace() {
    let room = Room::new("grace");
    let script = "trap '' TERM; setsid sh -c 'echo $$ > rank; exec sleep 1000' & echo ready; sleep 1000";
    let mut agent = room.start(&["--grace-seconds", "1"], script);
    agent.ready();
    let rank = room.pid("rank");
    let (asked, asked_at) = (Instant::now(), Timestamp::now().as_millisecond());
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.exit_code(), Some(137));
    assert!(asked.elapsed() >= Duration::from_secs(1), "{:?}", asked.elapsed());
    assert!(!is_there(rank));
    let report = room.report();
    assert_eq!((report.signal, report.stopped_by), (Some(9), Some(15)));
    let stopped_at = report.stopped_at.map(Timestamp::as_millisecond);
    let before_the_grace = asked_at..=Timestamp::now().as_millisecond() - 1000;
    assert!(stopped_at.is_some_and(|time| before_the_grace.contains(&time)), "{stopped_at:?} in {before_the_grace:?}");
}

#[test]
fn remaining_processes_get_sigterm_and_the_rest_of_the_grace() {
    let room = Room::new("saves");
    // The shell dies at once and forwards nothing to the program that it runs.
    let program = "trap 'sleep 0.1; echo saved > saved; exit 0' TERM; echo ready; while :; do sleep 0.1; done";
    room.write("train", program.as_bytes(), 0o755);
    let mut agent = room.start(&[], "sh ./train; true");
    agent.ready();
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.exit_code(), Some(143));
    assert_eq!(fs::read_to_string(room.path("saved")).unwrap(), "saved\n");
}

#[test]
fn no_process_is_left_behind() {
    let room = Room::new("leftovers");
    // One process has a session of its own, one is a daemon, and both ignore SIGTERM.
    let output = room.sh("trap '' TERM
         setsid sh -c 'echo $$ > rank; exec sleep 1000' &
         (setsid sh -c 'echo $$ > daemon; exec sleep 1000' &)
         until [ -s rank ] && [ -s daemon ]; do sleep 0.01; done
         exit 3");
    assert_eq!(output.status.code(), Some(3));
    assert!(!is_there(room.pid("rank")) && !is_there(room.pid("daemon")));
}

#[test]
fn endlessly_forking_processes_are_killed() {
    let room = Room::new("crowd");
    room.write("breed", b"trap '' TERM; while :; do setsid sleep 0.05 & sleep 0.01; done", 0o644);
    let script = "for n in 1 2 3; do (setsid sh breed & echo $! > breed$n); done; exit 0";
    let output = room.run(&["--grace-seconds", "0"], &["sh", "-c", script]);
    assert_eq!(output.status.code(), Some(0));
    for n in 1..=3 {
        assert!(!is_there(room.pid(&format!("breed{n}"))));
    }
}

#[test]
fn orphans_are_reaped_while_the_program_runs() {
    let room = Room::new("orphans");
    let mut agent = room.start(&[], "(sh -c 'echo $$ > orphan' &); echo ready; exec sleep 1000");
    agent.ready();
    let orphan = room.pid("orphan");
    until("the orphan to be reaped", DEADLINE, || (!is_there(orphan)).then_some(()));
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.exit_code(), Some(143));
}

#[test]
fn output_passes_byte_for_byte() {
    let room = Room::new("bytes");
    let data = noise(4 << 20);
    room.write("data", &data, 0o644);
    let output = room.sh("cat data & cat data >&2; wait");
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stdout == data, "stdout: {} bytes", output.stdout.len());
    assert!(output.stderr == data, "stderr: {} bytes", output.stderr.len());
    assert_ne!(room.report().stderr_tail, "");
}

#[test]
fn parsed_output_passes_byte_for_byte() {
    let room = Room::new("parsed-bytes");
    let noise = noise(1 << 20);
    let parts: [&[u8]; 8] = [
        b"Epoch 1/3 loss: 0.5\n",
        b"\r 50%|\xe2\x96\x88     | 1/2 [00:01<00:01, loss=nan]",
        b"{\"step\": 1, \"loss\": NaN}\r\n",
        b"{'loss': '0.1', 'epoch': '0.5'}\n",
        b"\x1b[1m\0\x08\xff\xfe\n",
        b"NCCL error CUDA out of memory\n",
        &noise[..100_000],
        b"\n",
    ];
    // Every part follows every other one, and the pipe cuts them anywhere.
    let mut data = Vec::new();
    for (n, byte) in noise[..2000].iter().enumerate() {
        let part = parts[usize::from(*byte) % parts.len()];
        data.extend_from_slice(&part[..part.len().min(if n % 50 == 0 { usize::MAX } else { 200 })]);
    }
    // The agent reads the last line after all of that.
    data.extend_from_slice(b"\n{\"step\": 7, \"total_steps\": 8, \"loss\": 0.25}\n");
    room.write("data", &data, 0o644);
    let output = room.sh("cat data & cat data >&2; wait");
    assert!(output.stdout == data && output.stderr == data, "{} bytes", data.len());
    let reached = room.report().progress.unwrap();
    assert_eq!((reached.step, reached.steps, reached.loss), (Some(7.0), Some(8.0), Some(0.25)));
}

#[test]
fn flood_of_output_is_passed_on_and_parsed_to_its_end() {
    let room = Room::new("flood");
    let mut data: Vec<u8> = (1..400_000).flat_map(|n| format!("step {n}/400000 | loss: 0.25\n").into_bytes()).collect();
    data.extend_from_slice(b"step 400000/400000 | loss: 0.125\n");
    room.write("data", &data, 0o644);
    let output = room.sh("cat data");
    assert!(output.stdout == data, "{} of {} bytes", output.stdout.len(), data.len());
    let reached = room.report().progress.unwrap();
    assert_eq!((reached.step, reached.percent, reached.loss), (Some(400_000.0), Some(100.0), Some(0.125)));
}

#[test]
fn program_keeps_its_terminal() {
    let room = Room::new("terminal");
    let agent = binary("agent");
    let script = format!(
        "import pty, sys; sys.exit(pty.spawn(['{agent}', 'run', '--termination-log', 'message', '--', 'sh', '-c', \
         'test -t 1 && echo terminal; exit 3']) >> 8)"
    );
    let Some(output) = python(&room, &script, |python| python.output().unwrap()) else { return };
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stdout).trim()), (Some(3), "terminal"));
}

#[test]
fn slow_reader_loses_no_output() {
    let room = Room::new("blocked");
    // More than the pipe to the reader holds (64 KiB), so that the agent is blocked when the program ends. It is not so
    // much that the program is blocked, too.
    let mut agent = room.start(&[], "head -c 100000 /dev/zero >&2; echo last words >&2; exit 4");
    room.report_with("the program's end", |report| report.phase == Phase::Exited);
    assert!(agent.0.try_wait().unwrap().is_none(), "the agent must wait for its reader");
    let mut stderr = Vec::new();
    agent.0.stderr.take().unwrap().read_to_end(&mut stderr).unwrap();
    assert_eq!(stderr.len(), 100_011);
    assert!(stderr.ends_with(b"last words\n"));
    assert_eq!(agent.exit_code(), Some(4));
    assert!(room.report().stderr_tail.ends_with("last words\n"));
}

#[test]
fn blocked_reader_does_not_block_signals() {
    let room = Room::new("blocked-signal");
    let mut agent = room.start(&["--grace-seconds", "1"], "trap '' TERM; echo ready; cat /dev/zero >&2");
    agent.ready();
    agent.signal(Signal::SIGTERM);
    let report = room.report_with("the program's end", |report| report.phase == Phase::Exited);
    assert_eq!(report.stopped_by, Some(15));
    drop(agent.0.stderr.take());
    assert_eq!(agent.exit_code(), Some(137));
}

#[test]
fn foreign_process_holding_stderr_does_not_block_the_agent() {
    let room = Room::new("stranger");
    let mut agent = room.start(&[], "echo $$ > pid; echo ready; sleep 0.05; until [ -e go ]; do sleep 0.1; done");
    agent.ready();
    // This process holds the pipe open, and no agent may kill it.
    let stderr = fs::OpenOptions::new().write(true).open(format!("/proc/{}/fd/2", room.pid("pid"))).unwrap();
    room.write("go", b"", 0o644);
    assert_eq!(agent.exit_code(), Some(0));
    drop(stderr);
}

#[test]
fn program_continues_without_a_reader() {
    let room = Room::new("no-reader");
    let mut agent = room.start(&[], "until [ -e go ]; do sleep 0.1; done; head -c 300000 /dev/zero >&2; echo end >&2");
    drop(agent.0.stderr.take());
    room.write("go", b"", 0o644);
    assert_eq!(agent.exit_code(), Some(0));
    assert!(room.report().stderr_tail.ends_with("end\n"));
}

#[test]
fn launch_failure_names_its_cause() {
    use LaunchErrorKind::{CommandNotFound, InterpreterNotFound, PermissionDenied};
    let room = Room::new("launch");
    room.write("plain", b"echo hello", 0o644);
    room.write("script", b"#!/no/such/python3\n", 0o755);
    for (command, code, kind, words) in [
        ("no-such-command", 127, CommandNotFound, "PATH="),
        ("./no-such-file", 127, CommandNotFound, "working directory"),
        ("", 127, CommandNotFound, "spec.command"),
        ("./plain", 126, PermissionDenied, "chmod a+rx"),
        ("/etc", 126, PermissionDenied, "directory"),
        ("./script", 127, InterpreterNotFound, "interpreter"),
    ] {
        let output = room.run(&[], &[command]);
        assert_eq!(output.status.code(), Some(code), "{command}");
        let report = room.report();
        let error = report.error.clone().unwrap();
        assert_eq!((report.phase, error.kind, report.exit_code), (Phase::Exited, kind, None), "{command}");
        assert!(error.message.contains(words) && error.message.contains(command), "{}", error.message);
        assert!(String::from_utf8(output.stderr).unwrap().contains(&error.message));
        assert_eq!(report.summary(), Some(error.message));
    }
}

#[test]
fn commands_are_looked_up_as_execvp_does() {
    let room = Room::new("lookup");
    room.write("train", b"#!/bin/sh\necho train $1\n", 0o755);
    fs::create_dir_all(room.path("first/train")).unwrap();
    fs::create_dir_all(room.path("second")).unwrap();
    room.write("second/train", b"", 0o644);
    for path in ["first:second:", ".", "first:second::/nowhere"] {
        let output = room.agent(&[], &["train", "x"]).env("PATH", path).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "train x\n", "PATH={path}");
    }
    let output = room.agent(&[], &["train"]).env("PATH", "first:second").output().unwrap();
    assert_eq!(output.status.code(), Some(126), "found, but not executable");
    let output = room.agent(&[], &["sh", "-c", "exit 9"]).env_remove("PATH").output().unwrap();
    assert_eq!(output.status.code(), Some(9), "without PATH the default is looked through");
}

#[test]
fn attempt_variables_are_set_and_expanded() {
    let room = Room::new("expand");
    let script = "echo $ATTEMPT $MASTER_PORT $PET_MASTER_PORT \"<$RESUME_FROM_CHECKPOINT>\" $ADDRESS \"$@\"";
    let arguments = ["sh", "-c", script, "$(MASTER_PORT)", "--try=$(ATTEMPT)", "$$(MASTER_PORT)", "$(OTHER)", "$HOME"];
    let options = ["--attempt", "2", "--master-port", "29502", "--resume-from", "/checkpoints/7"];
    let run = |options: &[&str]| {
        let mut agent = room.agent(options, &arguments);
        agent.env("ADDRESS", "host:$(MASTER_PORT)").env_remove("MASTER_PORT").env_remove("PET_MASTER_PORT");
        String::from_utf8(agent.env("ATTEMPT", "old").output().unwrap().stdout).unwrap()
    };
    assert_eq!(run(&options), "2 29502 29502 </checkpoints/7> host:29502 --try=2 $(MASTER_PORT) $(OTHER) $HOME\n");
    assert_eq!(room.report().attempt, 2);
    assert_eq!(run(&[]), "old <> host:$(MASTER_PORT) --try=$(ATTEMPT) $$(MASTER_PORT) $(OTHER) $HOME\n");
}

/// `$(NAME)` expands to a withheld variable, but the program and a shell do not find it.
#[test]
fn withheld_variable_is_expanded_but_not_set() {
    let room = Room::new("withheld");
    let script = "echo \"${RANK-none} ${MASTER_PORT-none} ${PET_MASTER_PORT-none} ${NODE_RANK-none} $AT $*\"";
    let options = ["--master-port=29502", "--env=RANK=1", "--env=NODE_RANK=1", "--env=AT=x:$(MASTER_PORT)"];
    let withheld = ["--withhold=RANK,MASTER_PORT,PET_MASTER_PORT"];
    let run = |options: &[&str]| {
        let mut agent = room.agent(options, &["sh", "-c", script, "sh", "$(RANK)", "$(MASTER_PORT)"]);
        ["RANK", "MASTER_PORT", "PET_MASTER_PORT"].iter().for_each(|name| _ = agent.env_remove(name));
        String::from_utf8(agent.output().unwrap().stdout).unwrap()
    };
    assert_eq!(run(&[&options[..], &withheld].concat()), "none none none 1 x:29502 1 29502\n");
    assert_eq!(run(&options), "1 29502 29502 1 x:29502 1 29502\n");
}

/// The agent's variables take precedence over the container's, in the command too. A shell in the container finds the
/// same ones.
#[test]
fn agent_variables_override_the_container_and_reach_shells() {
    let room = Room::new("given");
    let setup =
        r#"{"uid": "u", "workers": 1, "leader": "127.0.0.1", "port": 1, "masterPort": 29500, "restarts": "Never"}"#;
    room.write("gang.json", setup.as_bytes(), 0o644);
    fs::create_dir(room.path("state")).unwrap();
    let shown = r#"echo "$RANK|$MODEL|$URL|$TEXT|$ATTEMPT""#;
    let script = format!("{shown}; echo \"$OWN $*\"; env -i sh -euc '. ./state/env; {shown}; echo ${{OWN-none}}'");
    let options = [
        "--attempt=1",
        "--gang=gang.json",
        "--gang-state=state",
        "--env=RANK=0",
        "--env=MODEL=it's $5 = a 'model'",
        "--env=URL=host:$(MASTER_PORT)",
        "--env=TEXT=$(RANK)",
        "--env=ATTEMPT=7",
    ];
    let program = ["sh", "-c", &script, "sh", "$(RANK)", "$(URL)", "$$(RANK)", "$(MODEL", "$(OTHER)"];
    let mut agent = room.agent(&options, &program);
    let output = agent.env("RANK", "9").env("MODEL", "of the image").env("OWN", "own=$(RANK)").output().unwrap();
    let (stdout, stderr) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    let port = if stdout.contains("host:29501") { 29501 } else { 29500 };
    let variables = format!("0|it's $5 = a 'model'|host:{port}|$(RANK)|1");
    let expected = format!("{variables}\nown=0 0 host:{port} $(RANK) $(MODEL $(OTHER)\n{variables}\nnone\n");
    assert_eq!(stdout, expected, "{stderr}");

    let output = room.run(&["--env=RANK"], &["true"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && stderr.contains("NAME=VALUE"), "{stderr}");
}

#[test]
fn termination_message_survives_a_killed_agent() {
    let room = Room::new("killed");
    let script = "echo $$ > pid; dirname $TRAININGJOB_PROGRESS_FILE > folder
        echo step 1 >&2; until [ -e go ]; do sleep 0.1; done; echo step 2 >&2; exec sleep 1000";
    let mut agent = room.start(&["--attempt", "3"], script);
    let program = room.pid("pid");
    room.report_with("step 1", |report| report.stderr_tail == "step 1\n");
    room.write("go", b"", 0o644);
    room.report_with("step 2", |report| report.stderr_tail == "step 1\nstep 2\n");
    agent.signal(Signal::SIGKILL);
    assert_eq!(agent.0.wait().unwrap().signal(), Some(9));
    kill(Pid::from_raw(program), Signal::SIGKILL).unwrap();
    // A killed agent can't remove this folder. In a pod, the folder goes with the pod.
    fs::remove_dir_all(fs::read_to_string(room.path("folder")).unwrap().trim()).unwrap();
    let report = room.report();
    assert_eq!((report.phase, report.attempt, report.exit_code), (Phase::Running, 3, None));
    assert_eq!(report.stderr_tail, "step 1\nstep 2\n");
}

#[test]
fn termination_message_is_written_in_place_and_truncated() {
    let room = Room::new("in-place");
    for before in [0, 4000, 9000] {
        room.write("message", &noise(before), 0o644);
        let mut opened = fs::File::open(room.path("message")).unwrap();
        room.sh("echo boom >&2; exit 1");
        let mut message = String::new();
        opened.read_to_string(&mut message).unwrap();
        assert!(message.ends_with('}'), "{message}");
        assert_eq!(Report::parse(&message).unwrap().summary().as_deref(), Some("boom"));
    }
}

/// Behaves like a disk that does not answer: opening a FIFO for writing blocks until a reader opens it.
#[test]
fn blocked_termination_log_does_not_stop_the_program() {
    let room = Room::new("message-blocks");
    nix::unistd::mkfifo(&room.path("message"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut agent = room.start(&[], "echo ready; exit 3");
    agent.ready();
    assert_eq!(agent.exit_code(), Some(3));
}

#[test]
fn unwritable_termination_log_does_not_stop_the_program() {
    let room = Room::new("no-message");
    let mut agent = Command::new(binary("agent"));
    agent.args(["run", "--termination-log", "/no/such/place", "--", "sh", "-c", "echo own words >&2; exit 6"]);
    let output = agent.current_dir(&room.0).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(6));
    assert!(stderr.contains("/no/such/place") && stderr.ends_with("own words\n"), "{stderr}");
}

#[test]
fn stderr_tail_handles_huge_lines_and_progress_bars() {
    let room = Room::new("huge");
    let output = room.sh("head -c 5000000 /dev/zero | tr '\\0' '\"' >&2");
    assert_eq!(output.stderr.len(), 5_000_000);
    assert!(room.report().stderr_tail.ends_with("\"\"\"\""));
    let bar = "i=0; while [ $i -le 2000 ]; do printf '\\r%d/2000' $i >&2; i=$((i+1)); done; echo >&2; echo done >&2";
    room.sh(&format!("echo start >&2; {bar}"));
    assert_eq!(room.report().stderr_tail, "start\n2000/2000\ndone\n");
}

#[test]
fn install_copies_the_running_executable() {
    let room = Room::new("install");
    let agent = binary("agent");
    let to = room.path("agent");
    for _ in 0..2 {
        let script = format!("umask 077; exec {agent} install --to {}", to.display());
        assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success());
        assert_eq!(fs::metadata(&to).unwrap().permissions().mode() & 0o7777, 0o755);
        assert!(fs::read(&to).unwrap() == fs::read(binary("agent")).unwrap());
        let hook = room.path("python/sitecustomize.py");
        assert_eq!(fs::metadata(&hook).unwrap().permissions().mode() & 0o7777, 0o644);
        assert_eq!(fs::metadata(room.path("python")).unwrap().permissions().mode() & 0o7777, 0o755);
        assert_eq!(fs::read_dir(&room.0).unwrap().count(), 3, "the file, what goes with it, and nothing else");
    }
    assert!(Command::new(&to).arg("--version").output().unwrap().status.success());
    for bad in [room.path("no/such/agent"), PathBuf::from("/")] {
        let output = Command::new(binary("agent")).arg("install").arg("--to").arg(&bad).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr.contains(bad.to_str().unwrap()) && stderr.contains("--to"), "{stderr}");
    }
}

/// Passes `run` a python3 that executes `script`. None if there is no python3.
fn python<T>(room: &Room, script: &str, run: impl FnOnce(&mut Command) -> T) -> Option<T> {
    if Command::new("python3").arg("--version").output().is_err() {
        skipped("there is no python3");
        return None;
    }
    let mut command = Command::new("python3");
    command.args(["-c", script]).current_dir(&room.0).stdin(Stdio::null());
    Some(run(command.stdout(Stdio::piped()).stderr(Stdio::piped())))
}

/// Runs `file` in the room by python3, alone and under an installed agent. Both must look the same. Returns the report.
fn python_looks_the_same(room: &Room, file: &str, variables: &[(&str, &str)]) -> Option<Report> {
    let alone = python(room, "", |python| {
        let mut alone = Command::new(python.get_program());
        alone.arg(file).current_dir(&room.0).envs(variables.iter().copied()).output().unwrap()
    })?;
    let mut agent = Command::new(room.installed());
    room.arguments(&mut agent, &[], &["python3", file]);
    let under = agent.envs(variables.iter().copied()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(text(&under.stderr), text(&alone.stderr));
    assert_eq!(text(&under.stdout), text(&alone.stdout));
    assert_eq!(under.status.code(), alone.status.code());
    Some(room.report())
}

#[test]
fn python_exception_is_reported_and_output_is_unchanged() {
    let room = Room::new("exception");
    let script = "import json, sys\nprint(sys.path[1:], [m for m in sys.modules if 'trainingjob' in m])\n\
                  def load(text):\n    return json.loads(text)\n\nload('{')\n";
    room.write("train.py", script.as_bytes(), 0o644);
    let Some(report) = python_looks_the_same(&room, "train.py", &[("RANK", "3"), ("LOCAL_RANK", "1")]) else { return };
    let exception = report.exception.clone().unwrap();
    assert_eq!(
        (exception.class.as_str(), exception.line, exception.rank),
        ("json.decoder.JSONDecodeError", Some(4), Some(3))
    );
    assert!(exception.file.unwrap().ends_with("train.py") && exception.thread.is_none());
    assert!(report.started_at.unwrap() <= exception.time && exception.time <= report.finished_at.unwrap());
    let summary = report.summary().unwrap();
    assert!(summary.starts_with("[rank3]: json.decoder.JSONDecodeError: Expecting property name"), "{summary}");
}

/// As with MXNet, whose exit waits for workers that wait for it.
#[test]
fn program_stuck_after_an_exception_is_ended() {
    let room = Room::new("exception-that-waits");
    let waits = "import atexit, sys, time\ndef wait():\n    while True: time.sleep(0.05)\natexit.register(wait)\n";
    let Some(()) = python(&room, "", |_| ()) else { return };
    let run = |options: &[&str], end: &str| {
        room.write("train.py", format!("{waits}{end}\n").as_bytes(), 0o644);
        let mut agent = Command::new(room.installed());
        room.arguments(&mut agent, options, &["python3", "train.py"]);
        agent.output().unwrap();
        room.report()
    };
    let report = run(&["--grace-seconds", "1"], "raise ValueError('label 11')");
    assert_eq!((report.signal, report.stopped_by), (Some(15), None));
    let exception = report.exception.clone().unwrap();
    let took = report.finished_at.unwrap().duration_since(exception.time).as_millis();
    assert!(took >= 1000, "after its grace, which is 1 s: {took} ms");
    let cause = cause(report);
    assert_eq!(cause.reason.to_string(), "PythonException");
    assert!(cause.to_string().contains("ValueError: label 11"), "{}", cause.message);

    // A program that still prints continues as long as it prints. A program whose exception is a thread's is still at
    // work.
    let says = "import threading\ndef work():\n    raise ValueError('in a thread')\n\
                threading.Thread(target=work).start()\ntime.sleep(2.5)\nimport os; os._exit(4)";
    assert_eq!(run(&["--grace-seconds", "1"], says).exit_code, Some(4));
    let late = "def say():\n    for n in range(40):\n        print(n, flush=True); time.sleep(0.1)\n    import os; os._exit(5)\n\
                atexit.register(say)\nraise ValueError('label 11')";
    assert_eq!(run(&["--grace-seconds", "3"], late).exit_code, Some(5));
}

#[test]
fn thread_and_compile_errors_are_reported() {
    let room = Room::new("exception-kinds");
    let thread = "import threading\ndef work():\n    raise ValueError('in a thread')\n\
                  t = threading.Thread(target=work, name='loader')\nt.start()\nt.join()\n";
    room.write("thread.py", thread.as_bytes(), 0o644);
    let Some(report) = python_looks_the_same(&room, "thread.py", &[]) else { return };
    let exception = report.exception.unwrap();
    assert_eq!(report.exit_code, Some(0));
    assert_eq!((exception.message.as_str(), exception.thread.as_deref()), ("in a thread", Some("loader")));
    for (program, class, line) in [
        ("print('x')\nx x\n", "SyntaxError", Some(2)),
        ("\nimport no_such_module\n", "ModuleNotFoundError", Some(2)),
        ("class Stop(Exception): pass\nraise Stop", "__main__.Stop", Some(2)),
    ] {
        room.write("train.py", program.as_bytes(), 0o644);
        let report = python_looks_the_same(&room, "train.py", &[]).unwrap();
        let exception = report.exception.unwrap();
        assert_eq!((exception.class.as_str(), exception.line), (class, line));
    }
    for program in ["import sys; sys.exit(4)", "import os; os._exit(5)", "print('well')"] {
        room.write("train.py", program.as_bytes(), 0o644);
        assert_eq!(python_looks_the_same(&room, "train.py", &[]).unwrap().exception, None, "{program}");
    }
}

#[test]
fn sitecustomize_and_hook_of_the_image_are_kept() {
    let room = Room::new("sitecustomize");
    fs::create_dir_all(room.path("own")).unwrap();
    let own = "import sys\nsys.path.append('/of/the/image')\nvalue = 42\n\
               hook = sys.excepthook\ndef mine(*a):\n    print('hooked')\n    hook(*a)\nsys.excepthook = mine\n";
    let train = "import sys, sitecustomize\nprint(sitecustomize.value, sitecustomize.__file__, sys.path[1:])\n\
                 raise RuntimeError('boom')\n";
    room.write("own/sitecustomize.py", own.as_bytes(), 0o644);
    room.write("train.py", train.as_bytes(), 0o644);
    let path = room.path("own").display().to_string();
    let environment = [("PYTHONPATH", path.as_str()), ("PYTHONDONTWRITEBYTECODE", "1")];
    let Some(report) = python_looks_the_same(&room, "train.py", &environment) else { return };
    assert_eq!(report.exception.unwrap().message, "boom");
    room.write("own/sitecustomize.py", b"raise KeyError('broken')\n", 0o644);
    room.write("train.py", b"raise RuntimeError('boom')\n", 0o644);
    let report = python_looks_the_same(&room, "train.py", &environment).unwrap();
    assert_eq!(report.exception.unwrap().message, "boom");
}

/// The cause that the operator would derive from the last report if this worker were the only one.
pub fn cause(report: Report) -> AttemptEnd {
    let exit_code = report.exit_code.or(report.signal.map(|signal| 128 + signal)).unwrap_or(1);
    let training = Container::Terminated {
        started: None,
        finished: report.finished_at,
        exit_code,
        reason: "Error".to_owned(),
        report: Some(Box::new(report)),
        message: None,
    };
    first_cause([WorkerFacts {
        role: RoleName::WORKER,
        index: 0,
        pod: "x-training-0-abcde",
        node: None,
        attempt: 1,
        created: None,
        deletion: None,
        gone: false,
        ended: Some(false),
        pod_reason: None,
        disruption: None,
        failed_init: None,
        training: &training,
    }])
    .unwrap()
}

#[test]
fn caught_python_exception_is_not_the_cause() {
    let room = Room::new("caught");
    let caught = "import ctypes, logging, os, sys\ntry:\n    import no_such_module\nexcept ImportError:\n    logging.exception('going on without')\n";
    let Some(()) = python(&room, "", |_| ()) else { return };
    let end = |options: &[&str], end: &str| {
        room.write("train.py", format!("{caught}{end}\n").as_bytes(), 0o644);
        let mut agent = Command::new(room.installed());
        room.arguments(&mut agent, &[], &[&["python3"], options, &["train.py"]].concat());
        agent.output().unwrap();
        let report = room.report();
        (report.python_tells, report.exception.clone(), cause(report))
    };
    for (options, hook_loads) in [(&[][..], true), (&["-I"][..], false)] {
        let (python_tells, exception, cause) = end(options, "os.kill(os.getpid(), 11)");
        assert_eq!((python_tells, exception), (hook_loads, None));
        assert_eq!((cause.reason, cause.permanent), (Reason::Signal, false), "{}", cause.message);
    }
    let (.., cause) = end(&[], "sys.exit(1)");
    assert!(!cause.permanent, "{}", cause.message);
    let (_, exception, cause) = end(&[], "import another_module");
    assert_eq!((exception.unwrap().by_program, cause.permanent), (Some(true), true), "{}", cause.message);
    let (.., cause) = end(&["-I"], "sys.exit(1)");
    assert_eq!((cause.reason, cause.permanent), (Reason::ImportError, true), "there is no better word");
}

#[test]
fn custom_excepthook_does_not_hide_the_exception() {
    let room = Room::new("own-hook");
    let hook = "import sys\nsys.excepthook = lambda kind, value, traceback: print('framed', value, file=sys.stderr)\n";
    room.write("train.py", format!("{hook}\nraise ValueError('bad')\n").as_bytes(), 0o644);
    let Some(report) = python_looks_the_same(&room, "train.py", &[]) else { return };
    let exception = report.exception.unwrap();
    assert_eq!((exception.class.as_str(), exception.line, exception.by_program), ("ValueError", Some(4), Some(true)));
    // A hook that calls the agent's hook leads to one report, and at once.
    let chained = "import sys\nold = sys.excepthook\nsys.excepthook = lambda *a: old(*a)\n\nraise ValueError('bad')\n";
    room.write("train.py", chained.as_bytes(), 0o644);
    assert_eq!(python_looks_the_same(&room, "train.py", &[]).unwrap().exception.unwrap().line, Some(5));
    for program in ["import sys; sys.exit(4)", "print('well')"] {
        room.write("train.py", format!("{hook}{program}\n").as_bytes(), 0o644);
        assert_eq!(python_looks_the_same(&room, "train.py", &[]).unwrap().exception, None, "{program}");
    }
}

/// Event loops of graphical programs, servers and trackers print caught exceptions this way.
#[test]
fn calling_excepthook_to_print_does_not_end_the_program() {
    let room = Room::new("prints-by-hook");
    let Some(()) = python(&room, "", |_| ()) else { return };
    let train = "import sys, time\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    sys.excepthook(*sys.exc_info())\ntime.sleep(4)\n";
    room.write("train.py", train.as_bytes(), 0o644);
    room.write("again.py", b"import train\n", 0o644);
    for program in [&["python3", "train.py"][..], &["python3", "-m", "train"], &["python3", "again.py"]] {
        let mut agent = Command::new(room.installed());
        room.arguments(&mut agent, &["--grace-seconds", "1"], program);
        let output = agent.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{program:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(room.report().exception.unwrap().by_program, Some(false));
    }
}

#[test]
fn gpu_out_of_memory_report_includes_memory_in_use() {
    let room = Room::new("gpu-memory");
    let smi = "#!/bin/sh\necho '0, GPU-1, 97, 80000, 81559, 612, 61'\nexec >&-\nsleep 1\necho > seen\n";
    room.write("nvidia-smi", smi.as_bytes(), 0o755);
    let path = format!("{}:{}", room.0.display(), std::env::var("PATH").unwrap());
    let train = "while [ ! -e seen ]; do sleep 0.1; done; echo 'CUDA error: out of memory' >&2; exit 1";
    let reported = until("how full it was", DEADLINE, || {
        let _ = fs::remove_file(room.path("seen"));
        let options = ["--hang-timeout", "60", "--hang-policy", "report", "--grace-seconds", "1"];
        let output = room.agent(&options, &["sh", "-c", train]).env("PATH", &path).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
        room.report().gpu_memory.map(|gpu| (gpu.index, gpu.used / gpu.total, cause(room.report())))
    });
    assert!(reported.0 == 0 && (0.97..0.99).contains(&reported.1), "{reported:?}");
    assert_eq!(reported.2.reason, Reason::CudaOutOfMemory);
    assert!(
        reported.2.message.contains("CUDA error: out of memory (GPU 0: 78.1 of 79.6 GiB in use "),
        "{}",
        reported.2.message
    );
}

#[test]
fn shell_exit_code_is_reported_as_its_signal() {
    let room = Room::new("shells-code");
    room.sh("sh -c 'kill -SEGV $$'; exit $?");
    let cause = cause(room.report());
    assert_eq!((&cause.reason, cause.exit_code), (&Reason::Signal, Some(139)));
    assert!(cause.to_string().contains("ended by SIGSEGV (exit code 139)"), "{}", cause.message);
}

#[test]
fn exception_of_a_child_is_not_attributed_to_the_program() {
    let room = Room::new("whose");
    let Some(()) = python(&room, "", |_| ()) else { return };
    room.write("helper.py", b"raise KeyError('helper')\n", 0o644);
    let run = |program: &[&str]| {
        let mut agent = Command::new(room.installed());
        room.arguments(&mut agent, &[], program);
        agent.output().unwrap();
        let report = room.report();
        (report.exception.clone().map(|exception| (exception.message, exception.by_program)), cause(report).reason)
    };
    let reported = |message: &str, by_program| Some((message.to_owned(), Some(by_program)));
    assert_eq!(run(&["python3", "helper.py"]), (reported("'helper'", true), Reason::PythonException));
    assert_eq!(run(&["sh", "-c", "python3 helper.py; exit 1"]), (reported("'helper'", false), Reason::PythonException));
    assert_eq!(run(&["sh", "-c", "python3 helper.py; kill -11 $$"]), (reported("'helper'", false), Reason::Signal));
    // A launcher that reports only that its script failed.
    let launcher = "import subprocess, sys\nsubprocess.run([sys.executable, 'helper.py'], check=True)\n";
    room.write("launcher.py", launcher.as_bytes(), 0o644);
    assert_eq!(run(&["python3", "launcher.py"]), (reported("'helper'", false), Reason::PythonException));
}

#[test]
fn exception_of_another_process_keeps_its_location() {
    let room = Room::new("handed-on");
    // As torch/_utils.py and torch/multiprocessing/spawn.py do it, with a message whose end comes late.
    let script = "import traceback\n\
        def get(index):\n    raise RuntimeError('CUDA error: out of memory')\n\
        def deep(n):\n    deep(n - 1) if n else get(7)\n\
        try:\n    deep(60)\n\
        except RuntimeError:\n    inner = 'Caught RuntimeError in DataLoader worker process 0.\\nOriginal ' + traceback.format_exc()\n\
        inner = inner.replace('[Previous', ('  File \"/x/site-packages/a.py\", line 9, in f\\n' * 300) + '[Previous')\n\
        raise RuntimeError('\\n\\n-- Process 1 terminated with the following error:\\n' + inner)\n";
    room.write("train.py", script.as_bytes(), 0o644);
    let Some(report) = python_looks_the_same(&room, "train.py", &[]) else { return };
    let exception = report.exception.clone().unwrap();
    assert_eq!((exception.message.as_str(), exception.line), ("CUDA error: out of memory", Some(3)));
    assert_eq!(exception.within.as_deref(), Some("DataLoader worker process 0 of spawned process 1"));
    assert_eq!(cause(report).reason, Reason::CudaOutOfMemory);
}

#[test]
fn first_failing_rank_is_reported() {
    let room = Room::new("ranks");
    let rank = "import os, time\nif os.environ['RANK'] != '2':\n    while not os.path.exists('failed'): time.sleep(0.01)\n    time.sleep(0.02)\n\
                try:\n    raise RuntimeError('rank ' + os.environ['RANK'])\nfinally:\n    os.environ['RANK'] == '2' and open('failed.tmp', 'w')\n";
    room.write("rank.py", rank.as_bytes(), 0o644);
    // The file exists only after the hook has run. An exit handler would run too late for that.
    let script = "for r in 0 1 2 3; do (RANK=$r python3 rank.py; [ $r = 2 ] && touch failed) & done; wait; exit 1";
    let mut agent = Command::new(room.installed());
    room.arguments(&mut agent, &[], &["sh", "-c", script]);
    if python(&room, "", |_| ()).is_none() {
        return;
    }
    assert_eq!(agent.output().unwrap().status.code(), Some(1));
    let exception = room.report().exception.unwrap();
    assert_eq!((exception.rank, exception.message.as_str()), (Some(2), "rank 2"));
}

/// Posts what a client of the Kubeflow Trainer's protocol posts, as the Hugging Face Trainer does.
const POST: &str = r#"
import json, os, sys, urllib.request, urllib.error
token = open(os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"]).read().strip()
def post(body, url=os.environ["KUBEFLOW_TRAINER_SERVER_URL"]):
    headers = {"Authorization": "Bearer " + token, "Content-Type": "application/json"}
    request = urllib.request.Request(url, data=body, headers=headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
status = {"progressPercentage": 40, "estimatedRemainingSeconds": 12, "lastUpdatedTime": "2026-01-01T00:00:00+00:00",
          "metrics": [{"name": "loss", "value": "0.25"}, {"name": "current_step", "value": "4"}, {"name": "total_steps", "value": "10"}]}
print(token != "", post(json.dumps({"trainerStatus": status}).encode()))
print(post(b"{"), post(b'{"a": "b"}'), post(b"x" * 300000))
print(post(b'{"loss": 9}', os.environ["TRAININGJOB_PROGRESS_URL"].rsplit("/", 1)[0] + "/progress"))
"#;

#[test]
fn progress_is_accepted_by_http_post() {
    let room = Room::new("post");
    room.write("train.py", POST.as_bytes(), 0o644);
    if python(&room, "", |_| ()).is_none() {
        return;
    }
    let output = room.agent(&[], &["python3", "train.py"]).env("HTTP_PROXY", "http://127.0.0.1:9").output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "True 200\n400 400 413\n404\n");
    let reached = room.report().progress.unwrap();
    assert_eq!(
        (reached.step, reached.steps, reached.percent, reached.loss),
        (Some(4.0), Some(10.0), Some(40.0), Some(0.25))
    );
}

#[test]
fn progress_file_takes_precedence_over_output_and_checkpoints() {
    let room = Room::new("file");
    fs::create_dir_all(room.path("checkpoint-900")).unwrap();
    room.write("checkpoint-900/trainer_state.json", br#"{"global_step": 900, "epoch": 9}"#, 0o644);
    let script = "mkdir checkpoint-500
        echo '{\"global_step\": 500, \"max_steps\": 1000, \"epoch\": 1.5}' > checkpoint-500/trainer_state.json
        echo step 7/9 loss=0.5 lr=0.1
        echo '{\"step\": 600, \"loss\": 0.25}' >> \"$TRAININGJOB_PROGRESS_FILE\"
        echo 'no JSON' >> \"$TRAININGJOB_PROGRESS_FILE\"
        echo done > done; until [ -e go ]; do sleep 0.1; done";
    let mut agent = room.agent(&[], &["sh", "-c", script]);
    let mut agent = Running(agent.env("CHECKPOINT_DIR", &room.0).env_remove("NODE_RANK").spawn().unwrap());
    let wanted = |reached: &LastProgress| {
        (reached.step, reached.steps, reached.loss, reached.epoch) == (Some(600.0), Some(9.0), Some(0.25), Some(1.5))
    };
    room.report_with("all sources", |report| report.progress.as_ref().is_some_and(wanted));
    room.write("go", b"", 0o644);
    assert_eq!(agent.exit_code(), Some(0));
}

#[test]
fn progress_is_parsed_by_user_patterns() {
    let room = Room::new("patterns");
    let options =
        ["--progress-pattern", r"it (?P<step>\d+) of (?P<steps>\d+)", "--progress-pattern", r"L=(?P<loss>\S+)"];
    room.run(&options, &["sh", "-c", "echo Epoch 1/2 loss: 9; echo it 3 of 4; echo L=0.5 >&2"]);
    let reached = room.report().progress.unwrap();
    assert_eq!((reached.step, reached.steps, reached.epoch, reached.loss), (Some(3.0), Some(4.0), None, Some(0.5)));
    for (pattern, words) in [("(?P<loss>", "no regular expression"), ("loss=(.*)", "no named group")] {
        let output = room.run(&["--progress-pattern", pattern], &["sh", "-c", "echo started"]);
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(126), &b""[..]));
        let error = room.report().error.unwrap();
        assert_eq!(error.kind, LaunchErrorKind::InvalidOption);
        assert!(error.message.contains(words) && error.message.contains("--progress-pattern"), "{}", error.message);
        assert!(String::from_utf8_lossy(&output.stderr).contains(&error.message));
    }
}

#[test]
fn error_patterns_are_kept_with_their_lines() {
    let room = Room::new("signs");
    room.sh("echo 'torch.OutOfMemoryError: CUDA out of memory. Tried' >&2; echo 'Epoch 2/9 loss: nan'; echo 'Epoch 3/9 loss: nan'");
    let report = room.report();
    let sign =
        |kind| report.error_patterns.iter().find(|sign| sign.kind == kind).map(|sign| (sign.text.as_str(), sign.count));
    assert_eq!(sign(ErrorPattern::CudaOutOfMemory), Some(("torch.OutOfMemoryError: CUDA out of memory. Tried", 1)));
    assert_eq!(sign(ErrorPattern::NanLoss), Some(("Epoch 2/9 loss: nan", 2)));
    assert!(report.progress.unwrap().loss.unwrap().is_nan());
}

const LOST: &str = "echo Epoch 2/9 loss: nan";
const FAIL: [&str; 4] = ["--nan-policy", "fail", "--grace-seconds", "1"];

/// Runs `script` under a policy by which a NaN loss is a failure. Returns the exit code and the report.
fn lost(room: &Room, script: &str) -> (Option<i32>, Report) {
    let code = room.run(&FAIL, &["sh", "-c", script]).status.code();
    (code, room.report())
}

#[test]
fn nan_loss_ends_the_program() {
    let room = Room::new("nan");
    let wait = "while :; do sleep 0.1; done";
    for (script, code, own, signal) in [
        (format!("trap 'exit 0' TERM; {LOST}; {wait}"), 1, Some(0), None),
        (format!("trap 'exit 9' TERM; {LOST}; {wait}"), 9, Some(9), None),
        (format!("{LOST} >&2; exec sleep 1000"), 143, None, Some(15)),
        (format!("trap '' TERM; {LOST}; {wait}"), 137, None, Some(9)),
        // The program may exit before the agent reads its output.
        (LOST.to_owned(), 1, Some(0), None),
    ] {
        let (exit_code, report) = lost(&room, &script);
        assert_eq!((exit_code, report.exit_code, report.signal), (Some(code), own, signal), "{script}");
        assert_eq!((report.ended_for, report.stopped_by), (Some(ErrorPattern::NanLoss), None), "{script}");
        assert_eq!(report.summary().as_deref(), Some("Epoch 2/9 loss: nan"));
    }
    let ended_by_itself = lost(&room, &format!("{LOST}; exit 3"));
    assert_eq!(ended_by_itself.0, Some(3));
    let words = room.run(&FAIL, &["sh", "-c", LOST]).stderr;
    assert_eq!(
        String::from_utf8(words).unwrap(),
        "agent: the loss is NaN or infinite, and failurePolicy.nanPolicy is Fail\n"
    );
}

#[test]
fn nan_loss_is_only_reported_by_default() {
    let room = Room::new("nan-told");
    let output = room.sh(LOST);
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
    let report = room.report();
    assert_eq!((report.ended_for, report.error_patterns[0].kind), (None, ErrorPattern::NanLoss));
    let output = room.run(&["--nan-policy", "never"], &["true"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("report, fail"));
}

#[test]
fn only_the_loss_of_the_trusted_source_counts() {
    let room = Room::new("nan-believed");
    let script =
        format!("echo '{{\"loss\": 0.5}}' >> $TRAININGJOB_PROGRESS_FILE; until [ -e go ]; do sleep 0.1; done; {LOST}");
    let mut agent = room.start(&FAIL, &script);
    room.report_with("the loss in the file", |report| report.progress.is_some_and(|reached| reached.loss == Some(0.5)));
    room.write("go", b"", 0o644);
    assert_eq!(agent.exit_code(), Some(0));
    // A loss that a checkpoint records is from the past.
    let script = "mkdir checkpoint-5
        echo '{\"global_step\": 5, \"log_history\": [{\"loss\": NaN, \"step\": 5}]}' > checkpoint-5/trainer_state.json
        until [ -e gone ]; do sleep 0.1; done";
    let mut agent = room.agent(&FAIL, &["sh", "-c", script]);
    let mut agent = Running(agent.env("CHECKPOINT_DIR", &room.0).env_remove("NODE_RANK").spawn().unwrap());
    room.report_with("the checkpoint", |report| report.progress.is_some_and(|reached| reached.step == Some(5.0)));
    room.write("gone", b"", 0o644);
    assert_eq!(agent.exit_code(), Some(0));
    assert!(room.report().error_patterns.is_empty());
}

#[test]
fn external_stop_takes_precedence_over_nan_loss() {
    let room = Room::new("nan-stopped");
    let script = format!("trap '{LOST}; exit 0' TERM; echo ready; while :; do sleep 0.1; done");
    let mut agent = room.start(&FAIL, &script);
    agent.ready();
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.exit_code(), Some(143));
    let report = room.report();
    assert_eq!((report.ended_for, report.stopped_by), (None, Some(15)));
}

/// Sends GET `path` from this machine. Returns the status line and the body.
fn get(port: u16, path: &str) -> Option<(String, String)> {
    let (head, body) = whole_answer(port, path)?;
    Some((head.lines().next()?.to_owned(), body))
}

/// The head and the body of an answer.
fn whole_answer(port: u16, path: &str) -> Option<(String, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.to_owned(), body.to_owned()))
}

#[test]
fn status_and_metrics_are_served_over_http() {
    let room = Room::new("serve");
    let port = free_port();
    let options = ["--attempt", "2", "--metrics-port", &port.to_string()];
    let script = "echo secret words >&2; echo 'Epoch 3/4 loss: 0.5'; until [ -e go ]; do sleep 0.1; done; exit 7";
    let mut agent = room.agent(&options, &["sh", "-c", script]);
    agent.env("TRAINING_JOB_NAME", "mnist").env("NODE_RANK", "1").env_remove("CHECKPOINT_DIR");
    let mut agent = Running(agent.spawn().unwrap());
    let status = until("the status with progress", DEADLINE, || {
        let (head, body) = get(port, "/status")?;
        assert_eq!(head, "HTTP/1.1 200 OK");
        serde_json::from_str::<AgentStatus>(&body).ok().filter(|status| status.percent.is_some())
    });
    assert_eq!((status.training_job.as_deref(), status.worker), (Some("mnist"), Some(1)));
    assert_eq!((status.report.phase, status.report.attempt, status.percent), (Phase::Running, 2, Some(75.0)));
    assert_eq!(status.progress.epoch.map(|epoch| (epoch.value, epoch.source)), Some((3.0, Source::Output)));
    assert_eq!((status.cause, status.unparsed_lines), (None, 0));
    assert!(status.usage.resident_bytes > 0 && status.agent_usage.resident_bytes > 0);
    let (_, page) = get(port, "/metrics").unwrap();
    assert!(page.contains("trainingjob_worker_progress_percent{training_job=\"mnist\",worker=\"1\"} 75\n"), "{page}");
    assert!(
        page.contains("trainingjob_worker_metric{training_job=\"mnist\",worker=\"1\",name=\"loss\"} 0.5\n"),
        "{page}"
    );
    assert_eq!(get(port, "/healthz").unwrap().1, "ok\n");
    for path in ["/", "/progress", "/status/x"] {
        assert_eq!(get(port, path).unwrap().0, "HTTP/1.1 404 Not Found", "{path}");
    }
    assert!(!get(port, "/status").unwrap().1.contains("secret words"));
    room.write("go", b"", 0o644);
    assert_eq!(agent.exit_code(), Some(7));
    assert!(get(port, "/healthz").is_none());
}

#[test]
fn watched_metrics_report_every_reading() {
    let room = Room::new("watched");
    let port = free_port();
    let options = [
        "--metrics-port",
        &port.to_string(),
        "--watch-metric",
        "accuracy",
        "--watch-metric",
        "eval_loss",
        "--watch-metric",
        "mIoU",
    ];
    let script = r#"echo '{"step": 1, "loss": 0.5, "acc": 0.1}'; echo '{"step": 2, "loss": 0.4, "acc": 0.2}'
        echo '{"step": 3, "eval_loss": "NaN", "loss": 1}'; until [ -e go ]; do sleep 0.1; done"#;
    let mut agent = room.start(&options, script);
    let status = until("all readings", DEADLINE, || {
        let status: AgentStatus = serde_json::from_str(&get(port, "/status")?.1).ok()?;
        (status.histories.get("eval_loss")?.count == 1).then_some(status)
    });
    let readings = |name: &str| {
        let watched = &status.histories[name];
        let recent = watched.recent.iter().map(|reading| (reading.n, reading.value.to_string(), reading.step));
        (watched.count, recent.collect::<Vec<_>>())
    };
    let reading = |n, value: &str, step| (n, value.to_owned(), Some(step));
    assert_eq!(readings("accuracy"), (2, vec![reading(1, "0.1", 1.0), reading(2, "0.2", 2.0)]));
    assert_eq!(readings("eval_loss"), (1, vec![reading(1, "NaN", 3.0)]));
    assert_eq!(readings("mIoU"), (0, vec![]));
    assert_eq!(status.histories.len(), 3);
    room.write("go", b"", 0o644);
    assert_eq!(agent.exit_code(), Some(0));
}

#[test]
fn held_connections_do_not_delay_the_exit() {
    let room = Room::new("held");
    let port = free_port();
    let mut agent = room.start(&["--metrics-port", &port.to_string()], "until [ -e go ]; do sleep 0.1; done; exit 7");
    until("the port", DEADLINE, || get(port, "/healthz"));
    // More connections than the agent serves, none of which sends anything.
    let held: Vec<_> = (0..100).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
    room.write("go", b"", 0o644);
    assert_eq!(agent.exit_code(), Some(7));
    drop(held);
}

#[test]
fn agent_listens_only_on_the_given_address() {
    let room = Room::new("address");
    let port = free_port();
    let wait = ["sh", "-c", "until [ -e go ]; do sleep 0.1; done; exit 7"];
    let mut agent = room.agent(&["--metrics-port", &port.to_string()], &wait);
    agent.env("TRAININGJOB_LISTEN_ADDRESS", "127.0.0.2");
    let mut agent = Running(agent.spawn().unwrap());
    until("the port", DEADLINE, || TcpStream::connect(("127.0.0.2", port)).ok());
    let refused = TcpStream::connect(("127.0.0.1", port)).map_err(|error| error.kind());
    assert_eq!(refused.err(), Some(std::io::ErrorKind::ConnectionRefused));
    room.write("go", b"", 0o644);
    assert_eq!(agent.exit_code(), Some(7));
}

#[test]
fn taken_metrics_port_does_not_stop_the_program() {
    let room = Room::new("taken");
    let taken = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = room.run(&["--metrics-port", &port], &["sh", "-c", "echo own words >&2; exit 6"]);
    assert_eq!(output.status.code(), Some(6));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains(&format!("--metrics-port {port}")) && stderr.ends_with("own words\n"), "{stderr}");
}

#[test]
fn progress_folder_is_removed_at_exit() {
    let room = Room::new("files");
    let output = room.sh("dirname \"$TRAININGJOB_PROGRESS_FILE\"");
    let folder = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim());
    assert!(folder.is_absolute() && !folder.exists(), "{}", folder.display());
}

#[test]
fn oom_kill_is_counted() {
    let room = Room::new("oom");
    let Some(group) = MemoryGroup::new(32 << 20) else {
        skipped("no memory cgroup can be made here (it takes root and a writable cgroup file system)");
        return;
    };
    // The shell enters the group before it becomes the agent. tail keeps the last line, which is endless here.
    let enter = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", group.0.display());
    let mut command = Command::new("sh");
    command.args(["-c", &enter, "enter", binary("agent")]);
    room.arguments(&mut command, &[], &["sh", "-c", "tail /dev/zero; exit 8"]);
    assert_eq!(command.output().unwrap().status.code(), Some(8));
    let report = room.report();
    assert_eq!(report.oom_kills, 1);
    let memory = report.memory.unwrap();
    assert_eq!(memory.limit, Some(32 << 20));
    // Kernels before 5.19 do not report the peak of a v2 cgroup.
    assert!(memory.peak.is_none_or(|peak| peak > 16 << 20 && peak <= 32 << 20), "{memory:?}");
    let reported = cause(report);
    assert_eq!(reported.reason, Reason::OomKilled);
    assert!(reported.message.contains("(the limit is 32Mi"), "{}", reported.message);
    room.sh("exit 8");
    assert_eq!(room.report().oom_kills, 0);
}

/// A memory cgroup, v1 or v2, below that of this process. It is removed when dropped.
struct MemoryGroup(PathBuf);

impl MemoryGroup {
    fn new(limit: u64) -> Option<Self> {
        let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
        let path = |wanted: &str| groups.lines().find_map(|line| line.split_once(':')?.1.strip_prefix(wanted));
        let (root, file) = match (path("memory:/"), path(":/")) {
            (Some(path), _) => (Path::new("/sys/fs/cgroup/memory").join(path), "memory.limit_in_bytes"),
            (None, Some(path)) => (Path::new("/sys/fs/cgroup").join(path), "memory.max"),
            _ => return None,
        };
        let group = Self(root.join(format!("agent-test-{}", std::process::id())));
        fs::create_dir(&group.0).ok()?;
        fs::write(group.0.join(file), limit.to_string()).ok()?;
        Some(group)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn agent_as_pid_1_stops_its_children_but_not_guests() {
    let room = Room::new("pid-1");
    let Some(mut command) = as_init() else { return };
    let script = "trap 'exit 0' TERM
        setsid sh -c 'trap \"\" TERM; echo started > rank; exec sleep 1000' &
        (sh -c 'echo $$ > orphan' &)
        until [ -s rank ] && [ -s orphan ] && [ ! -e /proc/$(cat orphan) ]; do sleep 0.01; done
        echo ready
        while :; do sleep 0.1; done";
    room.arguments(command.arg(binary("agent")), &["--grace-seconds", "1"], &["sh", "-c", script]);
    let mut unshared = Running(command.spawn().unwrap());
    unshared.ready();
    let agent = init_of(&unshared);

    // Like `kubectl exec`: a process in the namespace that is a descendant of no process in it.
    let guest = "trap 'echo hit > hit' TERM; echo $$ > guest; while :; do sleep 0.1; done";
    let target = agent.to_string();
    let nsenter = Command::new("nsenter")
        .args(["--target", &target, "--pid", "--mount", "--wd=."])
        .args(["sh", "-c", guest])
        .current_dir(&room.0)
        .spawn();
    let mut guest = Running(nsenter.unwrap());
    assert_ne!(room.pid("guest"), 0);

    kill(Pid::from_raw(agent), Signal::SIGTERM).unwrap();
    assert_eq!(unshared.exit_code(), Some(143));
    let report = room.report();
    assert_eq!((report.exit_code, report.stopped_by), (Some(0), Some(15)));
    until("the guest to end with its namespace", DEADLINE, || guest.0.try_wait().unwrap());
    assert!(!room.path("hit").exists(), "a process that came by exec must not be signalled");
}

/// A command that makes its program PID 1, if this machine allows that.
fn as_init() -> Option<Command> {
    let init = testkit::init::as_init();
    if init.is_none() {
        skipped("unshare may not make a PID namespace here (it takes root)");
    }
    init
}

/// The PID, outside the namespace, of the process that `unshare` made PID 1.
fn init_of(unshared: &Running) -> i32 {
    testkit::init::init_of(unshared.0.id()).unwrap()
}

fn signal_by_number(pid: i32, signal: i32) {
    // SAFETY: it takes two numbers. nix's own names no real-time signals.
    assert_eq!(unsafe { nix::libc::kill(pid, signal) }, 0);
}

#[test]
fn any_signal_from_outside_the_container_is_a_stop() {
    let room = Room::new("stop-signal");
    // 37 is SIGRTMIN+3, which stops images that run systemd. SIGWINCH stops those of httpd.
    for signal in [Signal::SIGQUIT as i32, Signal::SIGUSR1 as i32, Signal::SIGWINCH as i32, 37] {
        let Some(mut command) = as_init() else { return };
        let script = format!("trap '' {signal}; echo ready; while :; do sleep 0.1; done");
        room.arguments(command.arg(binary("agent")), &["--grace-seconds", "1"], &["sh", "-c", &script]);
        let mut unshared = Running(command.spawn().unwrap());
        unshared.ready();
        signal_by_number(init_of(&unshared), signal);
        assert_eq!(unshared.exit_code(), Some(137), "{signal}");
        assert_eq!(room.report().stopped_by, Some(signal));
    }
}

#[test]
fn non_term_signal_from_inside_the_container_is_not_a_stop() {
    let room = Room::new("own-signal");
    for (signal, code) in [("QUIT", 0), ("HUP", 0), ("USR1", 0), ("ALRM", 0), ("37", 0), ("TERM", 143)] {
        let Some(mut command) = as_init() else { return };
        let script = format!("trap 'exit 0' {signal}; kill -{signal} 1; while :; do sleep 0.1; done");
        room.arguments(command.arg(binary("agent")), &["--grace-seconds", "1"], &["sh", "-c", &script]);
        assert_eq!(Running(command.spawn().unwrap()).exit_code(), Some(code), "{signal}");
        assert_eq!(room.report().stopped_by, (code != 0).then_some(15));
    }
    // A SIGCONT undoes a SIGSTOP, whichever process sends it.
    let Some(mut command) = as_init() else { return };
    let script = "trap 'exit 0' CONT; echo ready; while :; do sleep 0.1; done";
    room.arguments(command.arg(binary("agent")), &[], &["sh", "-c", script]);
    let mut unshared = Running(command.spawn().unwrap());
    unshared.ready();
    signal_by_number(init_of(&unshared), Signal::SIGCONT as i32);
    assert_eq!(unshared.exit_code(), Some(0));
    assert_eq!(room.report().stopped_by, None);
}

#[test]
fn partial_line_is_not_a_reading() {
    let room = Room::new("half");
    let port = free_port();
    let script = "printf 'loss: 0.0'; printf '\\rEpoch 3/4:  50%%|#####     | 5/10 [00:01<00:01,  1.00it/s]' >&2
        until [ -e go ]; do sleep 0.1; done; echo 423; until [ -e end ]; do sleep 0.1; done";
    let mut agent = room.start(&["--metrics-port", &port.to_string()], script);
    let progress = || serde_json::from_str::<AgentStatus>(&get(port, "/status")?.1).ok().map(|status| status.progress);
    let bar = |progress: &Progress| progress.epoch.map(|epoch| epoch.value) == Some(3.0);
    let early = until("the bar, which nothing has ended yet", DEADLINE, || progress().filter(bar));
    assert_eq!(early.metric("loss"), None, "what has begun is looked at once, the bar and the line");
    room.write("go", b"", 0o644);
    let loss = until("the whole line", DEADLINE, || progress()?.metric("loss"));
    assert!((loss - 0.0423).abs() < 1e-9, "{loss}");
    room.write("end", b"", 0o644);
    assert_eq!(agent.exit_code(), Some(0));
}

#[test]
fn status_includes_the_pod_uid() {
    let room = Room::new("pod-uid");
    let port = free_port();
    let options = ["--metrics-port", &port.to_string()];
    let mut agent = room.agent(&options, &["sh", "-c", "until [ -e go ]; do sleep 0.1; done"]);
    let mut agent = Running(agent.env("POD_UID", "0c1f-uid").spawn().unwrap());
    let (_, body) = until("the status", DEADLINE, || get(port, "/status"));
    let status: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(status["podUid"], "0c1f-uid");
    room.write("go", b"", 0o644);
    assert_eq!(agent.exit_code(), Some(0));
}

#[test]
fn answer_to_a_nonce_carries_a_proof() {
    let room = Room::new("proof");
    let (port, text) = (free_port(), "3c".repeat(32));
    let file = room.write("answers", format!("{text}\n").as_bytes(), 0o644);
    let options = ["--metrics-port", &port.to_string(), "--answer-key", file.to_str().unwrap()];
    let mut agent = room.agent(&options, &["sh", "-c", "until [ -e go ]; do sleep 0.1; done"]);
    let mut agent = Running(agent.env("POD_UID", "0c1f-uid").spawn().unwrap());
    let answer = |path: &str| until("an answer", DEADLINE, || whole_answer(port, path));
    let nonce = Nonce::new([7; 16]);
    let (head, body) = answer(&format!("/status?{}", nonce.to_query()));
    let proof = head
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("x-trainingjob-proof: ").map(str::to_owned));
    let proof = proof.unwrap_or_else(|| panic!("no proof: {head}"));
    assert!(AnswerKey::parse(text.as_bytes()).unwrap().is_proof(proof.as_bytes(), nonce, body.as_bytes()), "{head}");
    assert!(body.contains("0c1f-uid"));
    for path in ["/status", "/status?nonce=7", "/status?pretty"] {
        let (head, body) = answer(path);
        assert!(head.starts_with("HTTP/1.1 200") && !head.to_ascii_lowercase().contains("proof"), "{path}: {head}");
        assert!(body.contains("0c1f-uid"));
    }
    room.write("go", b"", 0o644);
    assert_eq!(agent.exit_code(), Some(0));

    let wrong = room.write("wrong", b"0123", 0o644);
    for (file, words) in
        [("there-is-none", "can't read --answer-key"), (wrong.to_str().unwrap(), "64 hexadecimal digits")]
    {
        let output = room.run(&["--answer-key", file], &["true"]);
        assert_eq!(output.status.code(), Some(1));
        let error = room.report().error.unwrap();
        assert!(error.kind == LaunchErrorKind::LaunchFailed && error.message.contains(words), "{error:?}");
    }
}

/// The pod that fetches reports its progress itself, because the operator can't read its log.
#[test]
fn fetch_agent_reports_its_progress() {
    let room = Room::new("fetch-answers");
    let (port, text) = (free_port(), "3c".repeat(32));
    let key = room.write("answers", text.as_bytes(), 0o644);
    // A store that accepts connections and never answers.
    let store = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", store.local_addr().unwrap());
    fs::create_dir(room.0.join("keys")).unwrap();
    for (name, value) in
        [("AWS_ENDPOINT_URL", url.as_str()), ("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b")]
    {
        room.write(&format!("keys/{name}"), value.as_bytes(), 0o644);
    }
    let request = serde_json::json!({
        "cache": room.0.join("cache"), "credentials": room.0.join("keys"), "safetensorsOnly": true,
        "items": [{ "name": "model", "uri": "s3://bucket/model" }],
    });
    let mut agent = Command::new("/usr/bin/env");
    agent.args(["--default-signal", binary("agent"), "inputs", "--request", &request.to_string()]);
    agent.arg("--termination-log").arg(room.0.join("words"));
    agent.args(["--metrics-port", &port.to_string(), "--answer-key", key.to_str().unwrap()]);
    let mut agent = Running(agent.env("POD_UID", "0c1f-uid").env("TRAINING_JOB_NAME", "x").spawn().unwrap());
    let nonce = Nonce::new([7; 16]);
    let (head, body) = until("an answer", DEADLINE, || whole_answer(port, &format!("/status?{}", nonce.to_query())));
    let proof = head
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("x-trainingjob-proof: ").map(str::to_owned));
    let proof = proof.unwrap_or_else(|| panic!("no proof: {head}"));
    assert!(AnswerKey::parse(text.as_bytes()).unwrap().is_proof(proof.as_bytes(), nonce, body.as_bytes()), "{head}");
    let status: AgentStatus = serde_json::from_str(&body).unwrap();
    assert_eq!((status.pod_uid.as_deref(), status.training_job.as_deref()), (Some("0c1f-uid"), Some("x")));
    let [fetch] = status.fetches.as_slice() else { panic!("{body}") };
    assert_eq!((fetch.name.as_str(), fetch.stage, fetch.bytes), ("model", FetchStage::Listing, 0));
    kill(Pid::from_raw(agent.0.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    assert_eq!(agent.exit_code(), Some(1), "another try may succeed");
}

#[test]
fn full_stderr_does_not_block_the_agent() {
    let room = Room::new("full-stderr");
    let (mut reader, writer) = std::io::pipe().unwrap();
    let filled = {
        use nix::fcntl::{FcntlArg, OFlag, fcntl};
        fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        let filled = std::iter::repeat_with(|| (&writer).write(&[b'x'; 1024])).map_while(Result::ok).sum::<usize>();
        fcntl(&writer, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
        filled
    };
    let mut agent = Command::new("/usr/bin/env");
    agent.args(["--default-signal", binary("agent"), "run", "--termination-log", "/no/such/place", "--"]);
    agent.args(["sh", "-c", "trap 'exit 3' TERM; echo $$ > pid; while :; do sleep 0.1; done"]);
    agent.current_dir(&room.0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(writer);
    let mut agent = { Running(agent.spawn().unwrap()) };
    room.pid("pid");
    agent.signal(Signal::SIGTERM);
    let mut words = vec![0; filled];
    reader.read_exact(&mut words).unwrap();
    assert_eq!(agent.exit_code(), Some(3));
    let mut words = vec![0; 1024];
    let count = reader.read(&mut words).unwrap();
    assert!(String::from_utf8_lossy(&words[..count]).contains("/no/such/place"), "what could not be said at once is");
}

#[test]
fn last_progress_file_line_needs_no_newline() {
    let room = Room::new("last-line");
    room.sh("printf '{\"step\": 3, \"loss\": 0.5}\\n{\"step\": 4, \"loss\": 0.25}' > $TRAININGJOB_PROGRESS_FILE");
    let reached = room.report().progress.unwrap();
    assert_eq!((reached.step, reached.loss), (Some(4.0), Some(0.25)));
}

#[test]
fn held_connections_do_not_block_healthz() {
    let room = Room::new("blind");
    let port = free_port();
    let mut agent = room.start(&["--metrics-port", &port.to_string()], "until [ -e go ]; do sleep 0.1; done");
    until("the port", DEADLINE, || get(port, "/healthz"));
    let held: Vec<_> = (0..100).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
    assert_eq!(get(port, "/healthz").map(|(_, body)| body).as_deref(), Some("ok\n"));
    drop(held);
    room.write("go", b"", 0o644);
    assert_eq!(agent.exit_code(), Some(0));
}

/// Two ranks below a launcher, as torchrun starts them. One is stopped, and the other waits for it in a collective.
const RANKS: &str = r#"
import os, signal, subprocess, sys, time
def launch():
    ranks = []
    for local in range(2):
        env = dict(os.environ, RANK=str(4 + local), LOCAL_RANK=str(local))
        ranks.append(subprocess.Popen([sys.executable, __file__], env=env))
    signal.signal(signal.SIGTERM, lambda *_: [rank.terminate() for rank in ranks])
    while any(rank.poll() is None for rank in ranks):
        time.sleep(0.05)  # a signal that comes just before rank.wait() would be handled after it
    sys.exit(max(abs(rank.returncode) for rank in ranks))
def step():
    if os.environ["RANK"] == "5":
        os.kill(os.getpid(), signal.SIGSTOP)
    sys.path.insert(0, os.getcwd())
    import torch.distributed.fake
    torch.distributed.fake.all_reduce()
if "LOCAL_RANK" not in os.environ:
    launch()
if os.environ["RANK"] == "4":
    for number in range(1, 4):
        print('{"step": %d, "loss": 0.5}' % number, flush=True)
step()
"#;

#[test]
fn stopped_rank_is_found_and_the_program_ended() {
    let room = Room::new("hang-stopped");
    if python(&room, "", |_| ()).is_none() {
        return;
    }
    fs::create_dir_all(room.path("torch/distributed")).unwrap();
    room.write("torch/__init__.py", b"", 0o644);
    room.write("torch/distributed/__init__.py", b"", 0o644);
    room.write("torch/distributed/fake.py", b"import time\ndef all_reduce():\n    time.sleep(1000)\n", 0o644);
    room.write("ranks.py", RANKS.as_bytes(), 0o644);
    let options = ["--hang-timeout", "3", "--hang-policy", "fail", "--grace-seconds", "20"];
    let mut agent = room.agent(&options, &["python3", "ranks.py"]);
    let output = agent.env("NODE_RANK", "2").env("RANK", "2").env_remove("CHECKPOINT_DIR").output().unwrap();
    let (said, report) = (String::from_utf8_lossy(&output.stderr), room.report());
    assert!(report.signal != Some(9) && output.status.code() == Some(15), "it heard SIGTERM: {report:?}\n{said}");
    assert_eq!(report.ended_for, Some(ErrorPattern::Hang), "{report:?}");
    let hang = report.hang.clone().unwrap();
    assert_eq!((hang.place, hang.rank), (StackLocation::Stopped, Some(5)), "{hang:?}");
    for words in ["no step for 3 s after step 3, process ", " is stopped (SIGSTOP)", "ranks.py:14)", "fake.py:3)"] {
        assert!(hang.text.contains(words), "{words}: {}", hang.text);
    }
    for words in [
        "agent: the program hangs, and is ended for it: no step for",
        "agent: stack: rank 4, process ",
        "agent: stack:     all_reduce (",
        "agent: stack: rank 5, process ",
        ", stopped (SIGSTOP)",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let cause = cause(report);
    assert_eq!((&cause.reason, cause.rank, cause.permanent), (&Reason::Hang, Some(5), false));
    assert!(cause.to_string().contains(", rank 5: no step for 3 s after step 3, process"), "{}", cause.message);
}

#[test]
fn hung_program_is_only_reported_by_default() {
    let room = Room::new("hang-report");
    let port = free_port();
    let script = r#"echo '{"step": 7, "loss": 0.5}'; until [ -e go ]; do sleep 0.3; done; n=8
        until [ -e end ]; do echo "{\"step\": $n, \"loss\": 0.4}"; n=$((n + 1)); sleep 0.3; done"#;
    let options = ["--hang-timeout", "2", "--metrics-port", &port.to_string()];
    let mut agent = room.agent(&options, &["sh", "-c", script]);
    let mut agent = Running(agent.env("RANK", "0").env_remove("CHECKPOINT_DIR").spawn().unwrap());
    let status = |what: &str, wanted: &dyn Fn(&AgentStatus) -> bool| {
        until(what, DEADLINE, || serde_json::from_str::<AgentStatus>(&get(port, "/status")?.1).ok().filter(wanted))
    };
    let reported = status("two signs", &|status| status.stall.as_ref().is_some_and(|stall| stall.hangs)).stall.unwrap();
    assert!(reported.message.starts_with("no step for 2 s after step 7, no output for as long"), "{reported:?}");
    let (_, page) = get(port, "/metrics").unwrap();
    let is_reported = |line: &str| line.starts_with("trainingjob_worker_hang_suspected") && line.ends_with(" 1");
    assert!(page.lines().any(is_reported), "{page}");
    room.write("go", b"", 0o644);
    status("a step", &|status| status.stall.is_none());
    room.write("end", b"", 0o644);
    assert_eq!(agent.exit_code(), Some(0));
    let mut said = String::new();
    agent.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(
        said.contains("agent: the program may hang: no step for 2 s") && said.contains("agent: the program goes on\n")
    );
    assert_eq!((room.report().ended_for, room.report().hang), (None, None));
}

/// As at a rendezvous that some ranks never reach, before the first step or in a program with unknown output.
#[test]
fn idle_program_is_ended_as_hung() {
    let room = Room::new("hang-idle");
    let options = ["--hang-timeout", "100", "--hang-idle-timeout", "2", "--hang-policy", "fail"];
    let mut agent = room.agent(&options, &["sh", "-c", "echo 'loading'; exec sleep 1000"]);
    let output = agent.env("RANK", "0").env_remove("CHECKPOINT_DIR").output().unwrap();
    let (said, report) = (String::from_utf8_lossy(&output.stderr), room.report());
    assert_eq!((output.status.code(), report.ended_for), (Some(143), Some(ErrorPattern::Hang)), "{report:?}\n{said}");
    let hang = report.hang.unwrap();
    assert!(hang.text.starts_with("no sign of life for 2 s (no step, no output, "), "{hang:?}");
}

/// The output of `agent stacks`, or its error.
fn ask_for_stacks(room: &Room) -> Result<String, String> {
    // The folder is relative because a socket's address has 107 bytes, and a checkout may be deep.
    let output = Command::new(binary("agent")).args(["stacks", "--state=state"]).current_dir(room).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

#[test]
fn stack_request_without_an_agent_fails() {
    let room = Room::new("no-stacks");
    let said = ask_for_stacks(&room).unwrap_err();
    assert!(
        said.starts_with("agent: can't ask the agent at ") && said.contains("state/agent.sock: No such file"),
        "{said}"
    );
}

/// The stacks of a running program that was never asked to report about itself.
#[test]
fn stacks_cover_every_python_process() {
    let room = Room::new("stacks");
    if python(&room, "", |_| ()).is_none() {
        return;
    }
    let script = "import subprocess, threading, time\ndef inner(seconds):\n    time.sleep(seconds)\n\
                  def outer():\n    inner(1000)\n\
                  threading.Thread(target=inner, args=(1000,), name='loader', daemon=True).start()\n\
                  child = subprocess.Popen(['sleep', '1000'])\nprint('ready', flush=True)\nouter()\n";
    room.write("train.py", script.as_bytes(), 0o644);
    let port = free_port();
    fs::create_dir(room.path("state")).unwrap();
    let options = ["--metrics-port", &port.to_string(), "--grace-seconds", "1", "--gang-state=state"];
    let mut agent = room.agent(&options, &["python3", "train.py"]);
    let mut agent = Running(agent.env("NODE_RANK", "3").env("POD_UID", "uid-3").spawn().unwrap());
    agent.ready();
    let stacks: Stacks = until("the stack of what it sleeps in", DEADLINE, || {
        let stacks: Stacks = serde_json::from_str(&ask_for_stacks(&room).ok()?).unwrap();
        let sleeps = |process: &ProcessStacks| process.main().is_some_and(|main| main.frames[0].function == "inner");
        stacks.processes.iter().any(sleeps).then_some(stacks)
    });
    assert_eq!((stacks.worker, stacks.pod_uid.as_deref(), stacks.left_out), (Some(3), Some("uid-3"), 0));
    let [python, sleep] = stacks.processes.as_slice() else { panic!("{stacks:?}") };
    assert_eq!((python.rank, python.state, python.problem.as_str()), (Some(3), ProcessState::Asleep, ""));
    assert!(python.python.starts_with('3') && python.command.ends_with("train.py"), "{python:?}");
    let calls = |at: usize| python.threads[at].frames.iter().map(|f| (f.function.as_str(), f.line)).collect::<Vec<_>>();
    assert_eq!(calls(0), [("inner", 3), ("outer", 5), ("<module>", 9)]);
    assert!(python.threads[0].is_main && calls(1).contains(&("inner", 3)), "{python:?}");
    assert_eq!((sleep.rank, sleep.command.as_str(), sleep.threads.len()), (None, "sleep 1000", 0));
    // Many concurrent requests share one look.
    std::thread::scope(|scope| {
        let asking: Vec<_> = (0..20).map(|_| scope.spawn(|| ask_for_stacks(&room).unwrap())).collect();
        assert!(asking.into_iter().all(|asks| !asks.join().unwrap().is_empty()));
    });
    // No port serves the stacks, and the socket refuses other users.
    assert_eq!(get(port, "/stacks").unwrap().0, "HTTP/1.1 404 Not Found");
    let socket = room.path("state/agent.sock");
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.exit_code(), Some(143));
}
