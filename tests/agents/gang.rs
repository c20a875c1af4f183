//! Gangs of real agents, each a PID 1 of its own, that restart their programs in place.

use gang::Timing;
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use protocol::agent_status::AgentStatus;
use protocol::attempt::AttemptEnd;
use protocol::gang::{GangPhase, GangStatus};
use protocol::reason::Reason;
use protocol::report::Report;
use serde_json::{Value, json};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use testkit::init::{as_init, init_of};
use testkit::room::Room;
use testkit::wait::{SOON, until};
use testkit::{ask, binary, free_port, free_ports, skipped};

/// Logs its begin and its end in the order in which they happen, because each append to a file writes whole lines.
const SCRIPT: &str = r#"
me=$NODE_RANK.$ATTEMPT
echo "begin $me $MASTER_PORT" >> log
trap 'code=$?; echo "end $me" >> log; exit $code' EXIT
trap 'exit 143' TERM
wait_for() { until [ -e "$1" ]; do sleep 0.1; done; }
wait_at_peers() { for i in $(seq 0 $((SIZE - 1))); do until grep -q "begin $i.$ATTEMPT " log; do sleep 0.1; done; done; }
"#;

/// A gang of one machine.
struct Gang {
    room: Room,
    size: u32,
    metrics: u16,
    /// Port where the ranks meet in the first attempt. The second attempt uses the next port.
    master: u16,
    /// The agent's binary.
    agent: PathBuf,
    command: Vec<String>,
    /// Seconds from SIGTERM to SIGKILL where a program may save.
    grace: u32,
    /// Further options of each agent.
    options: Vec<String>,
    /// Shell command that runs before the shell becomes an agent.
    before: Option<&'static str>,
    /// Variables of each agent.
    variables: Vec<(&'static str, String)>,
    /// The first attempt of its pods, and the history before them.
    begins: (u32, Option<Value>),
    /// Role, and index in it, of the first seats where not all are workers.
    seats: Vec<(&'static str, u32)>,
    /// Number of pods so far.
    pods: Cell<u32>,
}

/// One agent.
struct Agent {
    unshared: Child,
    index: u32,
}

impl Gang {
    /// None where no process can be made PID 1.
    fn new(test: &str, size: u32, setup: Value, script: &str) -> Option<Self> {
        if as_init().is_none() {
            skipped("gangs: no PID namespace can be made here, that takes root");
            return None;
        }
        let (room, master) = (Room::new(test), free_ports(2));
        let mut all = json!({
            "uid": "uid-1", "workers": size, "leader": "127.0.0.1", "port": free_port(), "masterPort": master,
            "restarts": "OnFailure", "backoffLimit": 3,
        });
        all.as_object_mut().unwrap().extend(setup.as_object().unwrap().clone());
        fs::write(room.path("gang.json"), all.to_string()).unwrap();
        fs::write(room.path("key"), "0123456789abcdef0123456789abcdef\n").unwrap();
        fs::write(room.path("log"), "").unwrap();
        let command = ["sh", "-c", &format!("{SCRIPT}\n{script}")].map(str::to_owned).to_vec();
        Some(Self {
            room,
            size,
            metrics: free_port(),
            master,
            agent: binary("agent").into(),
            command,
            grace: 5,
            options: Vec::new(),
            before: None,
            variables: Vec::new(),
            begins: (1, None),
            seats: Vec::new(),
            pods: Cell::new(0),
        })
    }

    fn with_command(self, command: &[&str]) -> Self {
        Self { command: command.iter().map(|&word| word.to_owned()).collect(), ..self }
    }

    /// Runs until the second attempt has succeeded. Returns the leader's line on the end of the first one.
    fn first_cause(&self) -> String {
        let agents = self.start();
        self.until_all_began(2);
        self.all_exit(agents, 0);
        let said = self.output();
        let line = said[0].lines().find(|line| line.contains("attempt 1 has ended: "));
        line.unwrap_or_else(|| panic!("{said:?}")).to_owned()
    }

    fn start(&self) -> Vec<Agent> {
        (0..self.size).map(|index| self.pod(index)).collect()
    }

    /// A new pod for this worker.
    fn pod(&self, index: u32) -> Agent {
        self.pods.set(self.pods.get() + 1);
        let pod = self.pods.get();
        fs::create_dir_all(self.room.path(&format!("pod-{pod}"))).unwrap();
        self.container(index, pod)
    }

    /// A container in a pod.
    fn container(&self, index: u32, pod: u32) -> Agent {
        let path = |name: &str| self.room.path(name).display().to_string();
        let mut command = as_init().unwrap();
        if let Some(before) = self.before {
            command.args(["sh", "-c", &format!("{before} && exec \"$0\" \"$@\"")]);
        }
        command.arg(&self.agent).arg("run").args([
            format!("--grace-seconds={}", self.grace),
            format!("--attempt={}", self.begins.0),
            format!("--termination-log={}", path(&format!("message-{index}"))),
            format!("--gang={}", path("gang.json")),
            format!("--gang-key={}", path("key")),
            format!("--gang-state={}", path(&format!("pod-{pod}"))),
        ]);
        command.args(self.begins.1.iter().map(|past| format!("--gang-past={past}")));
        if index == 0 {
            command.arg(format!("--metrics-port={}", self.metrics));
        }
        let (role, rank) = self.seats.get(index as usize).copied().unwrap_or(("worker", index));
        command.args((role != "worker").then(|| format!("--role={role}")));
        command.args(&self.options).arg("--").args(&self.command);
        command.env("ROLE", role).env("NODE_RANK", rank.to_string()).env("POD_UID", format!("pod-{pod}"));
        command.env("SIZE", self.size.to_string()).current_dir(&self.room.0);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        let output = fs::File::options().create(true).append(true).open(path(&format!("output-{index}"))).unwrap();
        command.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
        Agent { unshared: command.spawn().unwrap(), index }
    }

    fn log(&self) -> Vec<String> {
        fs::read_to_string(self.room.path("log")).unwrap().lines().map(str::to_owned).collect()
    }

    fn until_all_began(&self, attempt: u32) {
        until(&format!("attempt {attempt} everywhere, {:?}", self.output()), SOON, || {
            let log = self.log();
            let began = |index| log.iter().any(|line| line.starts_with(&format!("begin {index}.{attempt} ")));
            (0..self.size).all(began).then_some(())
        });
    }

    /// The output of all agents.
    fn output(&self) -> Vec<String> {
        let output = |index| fs::read_to_string(self.room.path(&format!("output-{index}"))).unwrap_or_default();
        (0..self.size).map(output).collect()
    }

    /// Replaces the setup atomically, as a node does.
    fn change(&self, change: impl FnOnce(&mut Value)) {
        let (file, new) = (self.room.path("gang.json"), self.room.path("gang.new"));
        let mut setup: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        change(&mut setup);
        fs::write(&new, setup.to_string()).unwrap();
        fs::rename(new, file).unwrap();
    }

    fn allow(&self, name: &str) {
        fs::write(self.room.path(name), "").unwrap();
    }

    fn status(&self) -> Option<GangStatus> {
        serde_json::from_str::<AgentStatus>(&ask(self.metrics, "GET", "/status", "")?).ok()?.gang
    }

    fn ended(&self) -> Vec<AttemptEnd> {
        until("the leader tells", SOON, || self.status()).ended
    }

    /// The final report of an agent that has exited.
    fn report(&self, index: u32) -> Report {
        self.written(index).unwrap()
    }

    /// The report that an agent has written so far, which may be incomplete.
    fn written(&self, index: u32) -> Option<Report> {
        Report::parse(&fs::read_to_string(self.room.path(&format!("message-{index}"))).ok()?)
    }

    fn exit_code(&self, agent: &mut Agent) -> Option<i32> {
        let what = format!("worker {} to exit, {:?}", agent.index, self.output());
        until(&what, SOON, || agent.unshared.try_wait().unwrap()).code()
    }

    /// All agents exit with this code, and only one attempt ran at a time.
    fn all_exit(&self, agents: Vec<Agent>, code: i32) {
        for mut agent in agents {
            let index = agent.index;
            assert_eq!(self.exit_code(&mut agent), Some(code), "worker {index}: {}", self.output()[index as usize]);
        }
        self.assert_one_attempt_at_a_time();
    }

    /// No program of one attempt begins while a program of another one runs anywhere. A killed program logs no end.
    fn assert_one_attempt_at_a_time(&self) {
        let mut last = 0;
        let mut ports = BTreeMap::new();
        for line in self.log() {
            let words: Vec<_> = line.split(' ').collect();
            let attempt: u32 = words[1].split_once('.').unwrap().1.parse().unwrap();
            match words[0] {
                "begin" => {
                    assert!(attempt >= last, "{:?}", self.log());
                    last = attempt;
                    assert_eq!(ports.entry(attempt).or_insert(words[2].to_owned()), words[2], "one port for all");
                }
                _ => assert_eq!(attempt, last, "ended after a later one had begun: {:?}", self.log()),
            }
        }
        let master = self.master.to_string();
        assert!(ports.get(&1).is_none_or(|port| *port == master), "the first attempt has masterPort itself");
        let in_turn = |two: &[&String]| two[0] != two[1];
        assert!(ports.values().collect::<Vec<_>>().windows(2).all(in_turn), "no straggler meets the next attempt");
    }
}

impl Agent {
    /// The agent's PID, outside its namespace.
    fn pid(&self) -> Pid {
        Pid::from_raw(until("the agent", SOON, || init_of(self.unshared.id())))
    }

    fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.unshared.kill();
        let _ = self.unshared.wait();
    }
}

#[test]
fn failed_program_is_restarted_on_all_workers() {
    let script = r#"
        echo "step 7 of 9"
        if [ $ATTEMPT = 1 ] && [ $NODE_RANK = 1 ]; then wait_at_peers; echo "ValueError: boom" >&2; exit 3; fi
        [ $ATTEMPT = 1 ] && wait_for never
        wait_for go"#;
    let Some(gang) = Gang::new("gang-fails", 3, json!({}), script) else { return };
    let agents = gang.start();
    gang.until_all_began(2);
    let ended = gang.ended();
    assert_eq!(ended.len(), 1);
    assert_eq!(
        (ended[0].attempt, ended[0].worker, ended[0].exit_code, ended[0].disruption),
        (1, Some(1), Some(3), false)
    );
    assert!(ended[0].to_string().starts_with("worker 1: ") && ended[0].to_string().contains("boom"), "{ended:?}");
    let reported = gang.status().unwrap();
    assert_eq!((reported.attempt, reported.restarts.failures, reported.restarts.disruptions), (2, 1, 0));
    gang.allow("go");
    gang.all_exit(agents, 0);
    assert_eq!(gang.report(2).attempt, 2);
    assert_eq!(gang.report(2).gang.unwrap().restarts.failures, 1);
    let reported = gang.report(0).gang.unwrap().ended;
    assert_eq!((reported.len(), reported[0].attempt, reported[0].worker), (1, 1, ended[0].worker), "{reported:?}");
}

/// As with two `hostNetwork` jobs whose first workers are on one node.
#[test]
fn taken_gang_port_error_names_its_field() {
    let taken = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let Some(gang) = Gang::new("gang-port", 2, json!({ "port": port }), "exit 0") else { return };
    assert_ne!(gang.exit_code(&mut gang.pod(0)), Some(0));
    let error = gang.report(0).error.unwrap().message;
    assert!(error.contains(&format!("port {port} ")) && error.contains("networking.masterPort"), "{error}");
}

/// The kill includes a program that ignores SIGTERM, and its child in a session of its own.
#[test]
fn stubborn_program_is_killed_before_the_next_attempt() {
    let script = r#"
        if [ $NODE_RANK.$ATTEMPT = 1.1 ]; then
            trap '' TERM
            setsid sh -c 'trap "" TERM; while :; do echo "end 1.1" >> log; sleep 0.1; done' &
            while :; do sleep 1; done
        fi
        [ $NODE_RANK.$ATTEMPT = 0.1 ] && wait_at_peers && exit 1
        exit 0"#;
    let Some(gang) = Gang::new("gang-stubborn", 2, json!({}), script) else { return };
    let agents = gang.start();
    gang.all_exit(agents, 0);
}

/// A process that SIGKILL does not end, like one that waits in the kernel for a device. This thread traces it and does
/// not wait for it, so that it stays a child of its parent after the kill.
struct Unkillable(Pid);

impl Unkillable {
    /// Takes the process `sleep` of this many seconds, a number that no other process has.
    fn sleep(seconds: u32) -> Self {
        let wanted = format!("sleep\0{seconds}\0");
        let pid: i32 = until("the process", SOON, || {
            let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
            let is_it = |process: &fs::DirEntry| {
                fs::read(process.path().join("cmdline")).is_ok_and(|line| line == wanted.as_bytes())
            };
            processes.filter(is_it).find_map(|process| process.file_name().to_str()?.parse().ok())
        });
        let nothing = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: it takes numbers, and no pointer that is not null.
        assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, nothing, nothing) }, 0);
        Self(Pid::from_raw(pid))
    }

    /// Lets the process end.
    fn let_end(self) {
        nix::sys::wait::waitpid(self.0, None).unwrap();
    }
}

#[test]
fn unkillable_process_costs_the_pod_but_not_the_gang() {
    for stuck in [1, 0] {
        let script = format!(
            r#"if [ $NODE_RANK.$ATTEMPT = {stuck}.1 ]; then
                wait_at_peers; sleep {} & wait_for fail; echo "ValueError: boom" >&2; exit 3
            fi
            wait_for go"#,
            73_001 + stuck
        );
        let Some(gang) = Gang::new(&format!("gang-unkillable-{stuck}"), 2, json!({}), &script) else { return };
        let gang = Gang { options: vec!["--unkillable-after=1".to_owned()], ..gang };
        let mut agents = gang.start();
        let process = Unkillable::sleep(73_001 + stuck);
        gang.allow("fail");
        let ended = until("the leader tells", SOON, || {
            gang.status().map(|reported| reported.ended).filter(|ended| !ended.is_empty())
        });
        let [end] = &ended[..] else { panic!("{ended:?}") };
        assert_eq!((end.attempt, end.reason.as_str(), end.worker), (1, "Unkillable", Some(stuck)), "{end:?}");
        assert!(end.disruption && end.message.contains("(sleep, state ") && end.message.contains("SIGKILL"), "{end:?}");
        let left = gang.report(stuck).unkillable.unwrap();
        assert!(left.text.contains("(sleep, "), "{left:?}");
        let stuck = stuck as usize;
        // The kernel does not let the container end before the process.
        process.let_end();
        assert_eq!(gang.exit_code(&mut agents[stuck]), Some(3));
        agents[stuck] = gang.pod(stuck.try_into().unwrap());
        gang.until_all_began(2);
        gang.allow("go");
        gang.all_exit(agents, 0);
    }
}

/// nvidia-smi is no process of the program, and its hang is no reason to give the pod up.
#[test]
fn hanging_nvidia_smi_does_not_delay_attempts() {
    let script = "[ $ATTEMPT = 1 ] && wait_for fail && exit 3; wait_for go";
    let Some(gang) = Gang::new("gang-nvidia-smi", 1, json!({}), script) else { return };
    fs::create_dir(gang.room.path("bin")).unwrap();
    let look = gang.room.path("bin/nvidia-smi");
    fs::write(&look, "#!/bin/sh\nexec sleep 73009\n").unwrap();
    fs::set_permissions(&look, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", gang.room.path("bin").display(), std::env::var("PATH").unwrap());
    let gang = Gang { variables: vec![("PATH", path)], ..gang };
    let agents = gang.start();
    let process = Unkillable::sleep(73_009);
    gang.until_all_began(1);
    gang.allow("fail");
    gang.until_all_began(2);
    gang.allow("go");
    process.let_end();
    gang.all_exit(agents, 0);
}

/// The waiting rank sleeps. It must not be reported as hanging while another rank works.
#[test]
fn idle_gang_is_restarted() {
    let script = r"
        [ $ATTEMPT = 1 ] || wait_for go
        [ $ATTEMPT = 1 ] || exit 0
        if [ $NODE_RANK = 1 ]; then until [ -e rest ]; do :; done; fi
        exec sleep 1000";
    let Some(gang) = Gang::new("gang-idle", 2, json!({}), script) else { return };
    let options = ["--hang-timeout=100", "--hang-idle-timeout=3", "--hang-policy=fail"].map(str::to_owned).to_vec();
    let gang = Gang { options, ..gang };
    let agents = gang.start();
    gang.until_all_began(1);
    gang.allow("rest");
    gang.until_all_began(2);
    let ended = gang.ended();
    assert_eq!((ended.len(), ended[0].reason.as_str(), ended[0].disruption), (1, "Hang", false), "{ended:?}");
    assert!(ended[0].message.contains("no sign of life for "), "{ended:?}");
    gang.allow("go");
    gang.all_exit(agents, 0);
}

/// Shared memory that a killed rank can't clear away would fill the container's memory, attempt after attempt.
#[test]
fn shared_memory_of_a_killed_attempt_is_cleared() {
    let script = r"
        ls /dev/shm | grep -v '^trainingjob-' >> found
        mkdir /dev/shm/plasma && echo x > /dev/shm/plasma/0 && echo x > /dev/shm/torch_$ATTEMPT
        [ $ATTEMPT = 3 ] || kill -9 $$
        wait_for go";
    let Some(gang) = Gang::new("gang-shm", 1, json!({}), script) else { return };
    let gang = Gang { before: Some("mount -t tmpfs tmpfs /dev/shm"), options: vec!["--clear-shm".to_owned()], ..gang };
    let agents = gang.start();
    gang.until_all_began(3);
    gang.allow("go");
    gang.all_exit(agents, 0);
    assert_eq!(fs::read_to_string(gang.room.path("found")).unwrap(), "");
}

#[test]
fn gang_restarts_after_a_killed_agent_returns() {
    let script = "echo \"step $ATTEMPT of 9\"; wait_for go-$ATTEMPT";
    for (test, killed) in [("gang-killed-0", 0_usize), ("gang-killed-1", 1)] {
        let Some(gang) = Gang::new(test, 3, json!({}), script) else { return };
        let mut agents = gang.start();
        gang.until_all_began(1);
        agents[killed].signal(Signal::SIGKILL);
        agents[killed].unshared.wait().unwrap();
        // Another container in the same pod, as the kubelet starts it.
        let pod = u32::try_from(killed).unwrap() + 1;
        agents[killed] = gang.container(pod - 1, pod);
        gang.until_all_began(2);
        let ended = gang.ended();
        assert_eq!((ended.len(), ended[0].worker, ended[0].disruption), (1, Some(pod - 1), false), "{ended:?}");
        assert!(ended[0].to_string().contains("SIGKILL"), "{ended:?}");
        gang.allow("go-2");
        gang.all_exit(agents, 0);
    }
}

#[test]
fn evicted_worker_is_awaited_in_a_new_pod() {
    let script = "wait_for go-$ATTEMPT";
    let Some(gang) = Gang::new("gang-evicted", 3, json!({}), script) else { return };
    let mut agents = gang.start();
    gang.until_all_began(1);
    agents[2].signal(Signal::SIGTERM);
    assert_eq!(gang.exit_code(&mut agents[2]), Some(143));
    let waits =
        until("the gang waits", SOON, || gang.status().filter(|reported| reported.waits_for.contains("worker 2")));
    assert_eq!(waits.attempt, 1, "{waits:?}");
    let [end] = &waits.ended[..] else { panic!("{waits:?}") };
    assert_eq!(
        (end.attempt, end.reason.as_str(), end.worker, end.disruption),
        (1, "Evicted", Some(2), true),
        "{end:?}"
    );
    agents[2] = gang.pod(2);
    gang.until_all_began(2);
    assert_eq!(gang.status().unwrap().restarts.disruptions, 1);
    gang.allow("go-2");
    gang.all_exit(agents, 0);
}

/// As in a suspension, the others have nothing to save and exit long before.
#[test]
fn slow_save_is_not_cut_short_by_departed_members() {
    let script = "[ $NODE_RANK = 0 ] && trap 'wait_for saved; exit 0' TERM; wait_for never";
    let Some(gang) = Gang::new("gang-saves", 3, json!({}), script) else { return };
    let gang = Gang { grace: 45, ..gang };
    let mut agents = gang.start();
    gang.until_all_began(1);
    agents.iter().for_each(|agent| agent.signal(Signal::SIGTERM));
    agents[1..].iter_mut().for_each(|agent| assert_eq!(gang.exit_code(agent), Some(143)));
    // The time that it would have if the members that left were treated as lost. This test is about that time.
    let Timing { reconnect, short_grace, margin, .. } = Timing::default();
    std::thread::sleep(reconnect + short_grace + margin);
    gang.allow("saved");
    assert_eq!(gang.exit_code(&mut agents[0]), Some(143));
    let report = gang.report(0);
    assert_eq!((report.stopped_by, report.signal), (Some(15), None), "it had 45 s");
}

#[test]
fn gang_fails_once_its_restart_budget_is_spent() {
    let script = "[ $NODE_RANK = 1 ] && wait_at_peers && { echo 'OSError: never' >&2; exit 4; }; wait_for never";
    let Some(gang) = Gang::new("gang-budget", 2, json!({ "backoffLimit": 1 }), script) else { return };
    let mut agents = gang.start();
    let codes: Vec<_> = agents.iter_mut().map(|agent| gang.exit_code(agent)).collect();
    assert!(codes.iter().all(|code| code.is_some_and(|code| code != 0)) && codes[1] == Some(4), "{codes:?}");
    gang.assert_one_attempt_at_a_time();
    for index in 0..2 {
        let report = gang.report(index);
        let end = report.gang.unwrap();
        assert_eq!((report.attempt, end.restarts.failures), (2, 1));
        assert_eq!(end.restarts.stopped.as_deref(), Some("after 1 restart; failurePolicy.backoffLimit is 1"));
    }
    // The pod of worker 1 may be gone before the operator sees how it ended.
    let ended = gang.report(0).gang.unwrap().ended;
    let reported: Vec<_> = ended.iter().map(|end| (end.attempt, end.worker, end.exit_code)).collect();
    assert_eq!(reported, [(1, Some(1), Some(4)), (2, Some(1), Some(4))]);
    let says = "attempt 2 has ended: ExitCode: worker 1: exit code 4: OSError: never";
    assert!(gang.output()[0].contains(says), "{:?}", gang.output());
    assert_eq!(gang.report(0).stopped_by, Some(15), "it was stopped, and has not failed");
}

/// The operator's record of earlier failures counts from the start. The budget, which a user may have changed since,
/// counts at the end.
#[test]
fn restart_budget_includes_earlier_failures_and_later_changes() {
    let script = "[ $ATTEMPT = 5 ] && exit 0; wait_for go; exit 1";
    for (test, limit, code) in [("gang-past", 3, 1), ("gang-raised", 4, 0)] {
        let setup = json!({ "backoffLimit": 3 });
        let Some(gang) = Gang::new(test, 1, setup, script) else { return };
        let gang = Gang { begins: (4, Some(json!({ "restarts": { "failures": 3 } }))), ..gang };
        let agents = gang.start();
        gang.until_all_began(4);
        gang.change(|setup| setup["backoffLimit"] = json!(limit));
        gang.allow("go");
        gang.all_exit(agents, code);
        let (report, failures) = (gang.report(0), if code == 0 { 4 } else { 3 });
        let end = report.gang.unwrap();
        assert_eq!((report.attempt, end.restarts.failures), (failures + 1, failures), "{:?}", gang.output());
        let stopped = (code != 0).then_some("after 3 restarts; failurePolicy.backoffLimit is 3");
        assert_eq!(end.restarts.stopped.as_deref(), stopped);
    }
}

/// A user's rule takes precedence over the default policy, by an exit code, a reason or a text.
#[test]
fn failure_policy_rules_decide_the_action() {
    let rules = json!([
        { "exitCodes": [42], "action": "Ignore" },
        { "reasons": ["CommandNotFound", "ImportError"], "action": "Restart" },
        { "message": "^exit code 4: .*quota", "action": "Fail" },
    ]);
    // The failure is not counted, and the message names the rule.
    let script =
        "[ $ATTEMPT = 1 ] && [ $NODE_RANK = 1 ] && wait_at_peers && exit 42; [ $ATTEMPT = 2 ] || wait_for never";
    let setup = json!({ "backoffLimit": 0, "rules": rules });
    let Some(gang) = Gang::new("gang-ignores", 2, setup, script) else { return };
    let agents = gang.start();
    gang.all_exit(agents, 0);
    let end = gang.report(0).gang.unwrap();
    assert_eq!((gang.report(0).attempt, end.restarts.failures, end.restarts.disruptions), (2, 0, 1));
    assert!(gang.output()[0].contains("(rule 1 of failurePolicy.rules: Ignore)"), "{:?}", gang.output());

    // Another attempt could not help by itself. It spends the budget.
    let setup = json!({ "backoffLimit": 1, "rules": rules });
    let Some(gang) = Gang::new("gang-rule-restarts", 1, setup, "").map(|gang| gang.with_command(&["no-such-command"]))
    else {
        return;
    };
    gang.all_exit(gang.start(), 127);
    let end = gang.report(0).gang.unwrap();
    assert_eq!((gang.report(0).attempt, end.restarts.failures), (2, 1));
    assert_eq!(end.restarts.stopped.as_deref(), Some("after 1 restart; failurePolicy.backoffLimit is 1"));
    assert_eq!(end.ended.len(), 1, "the rest of the report says how its own last attempt ended");
    assert!(gang.output()[0].contains("(rule 2 of failurePolicy.rules: Restart)"), "{:?}", gang.output());

    // The job fails at once, although it has a budget and retries everything.
    let script = "[ $NODE_RANK = 1 ] && wait_at_peers && { echo 'OSError: disk quota' >&2; exit 4; }; wait_for never";
    let setup = json!({ "restarts": "Always", "rules": rules });
    let Some(gang) = Gang::new("gang-rule-fails", 2, setup, script) else { return };
    let mut agents = gang.start();
    let codes: Vec<_> = agents.iter_mut().map(|agent| gang.exit_code(agent)).collect();
    assert!(codes.iter().all(|code| code.is_some_and(|code| code != 0)) && codes[1] == Some(4), "{codes:?}");
    assert_eq!(gang.report(0).attempt, 1);
    let stopped = gang.report(0).gang.unwrap().restarts.stopped;
    assert_eq!(stopped.as_deref(), Some(""), "the cause says it");
    let says = "exit code 4: OSError: disk quota (rule 3 of failurePolicy.rules: Fail)";
    assert!(gang.output()[0].contains(says), "{:?}", gang.output());
}

/// The operator writes the request into the file that the agents read. Each request restarts once and spends no budget.
#[test]
fn requested_restart_begins_a_new_attempt() {
    let setup = json!({ "backoffLimit": 0, "restartRequested": "before these pods" });
    let Some(gang) = Gang::new("gang-asked", 2, setup, "wait_for go-$ATTEMPT") else { return };
    let agents = gang.start();
    for (attempt, request) in [(1, "one"), (2, "two")] {
        gang.until_all_began(attempt);
        gang.change(|setup| setup["restartRequested"] = json!(request));
    }
    gang.until_all_began(3);
    let reported = gang.status().unwrap();
    assert_eq!((reported.attempt, reported.restarts.failures, reported.restarts.disruptions), (3, 0, 0));
    let reasons: Vec<_> = gang.ended().into_iter().map(|end| (end.attempt, end.reason)).collect();
    assert_eq!(reasons, [(1, Reason::Restarted), (2, Reason::Restarted)]);
    gang.allow("go-3");
    gang.all_exit(agents, 0);
}

/// The operator's file changes the size. Surplus workers wait, the programs learn the new number, and no failure is
/// counted.
#[test]
fn gang_is_resized_while_it_runs() {
    let script = r#"
        echo "sizes $me $NNODES $NUM_WORKERS $WORLD_SIZE of $1" >> sizes
        [ -z "$TF_CONFIG" ] || echo "$TF_CONFIG" >> tf
        wait_for go-$ATTEMPT"#;
    let Some(gang) = Gang::new("gang-elastic", 4, json!({ "workers": 2, "largest": 2 }), script) else { return };
    let mut gang = gang;
    gang.command.extend(["sh", "$(WORLD_SIZE)"].map(str::to_owned));
    gang.options = ["--env=NPROC_PER_NODE=2", "--env=TF_CONFIG=$(TRAININGJOB_ADDRESSES)"].map(str::to_owned).to_vec();
    let agents = gang.start();
    let resize = |workers: u32, largest: u32| {
        gang.change(|setup| (setup["workers"], setup["largest"]) = (json!(workers), json!(largest)));
    };
    let began = |attempt: u32, workers: u32| {
        until(&format!("attempt {attempt} of {workers}, {:?}", gang.output()), SOON, || {
            let sizes = fs::read_to_string(gang.room.path("sizes")).unwrap_or_default();
            let line = |i| format!("sizes {i}.{attempt} {workers} {workers} {0} of {0}\n", workers * 2);
            (0..workers).all(|i| sizes.contains(&line(i))).then_some(())
        });
        let reported =
            until("the leader tells", SOON, || gang.status().filter(|reported| reported.phase == GangPhase::Running));
        assert_eq!(
            (reported.attempt, reported.workers, reported.restarts.failures, reported.restarts.disruptions),
            (attempt, workers, 0, 0)
        );
    };
    began(1, 2);
    resize(4, 4);
    began(2, 4);
    // A worker that leaves for that reason is no failure.
    resize(1, 4);
    agents[3].signal(Signal::SIGTERM);
    began(3, 1);
    resize(3, 4);
    let mut agents = agents;
    assert_eq!(gang.exit_code(&mut agents[3]), Some(143));
    began(4, 3);
    let ended: Vec<_> = gang.ended().into_iter().map(|end| (end.attempt, end.reason, end.message)).collect();
    let resized = |attempt, words: &str| (attempt, Reason::Resized, format!("the gang goes on with {words}"));
    assert_eq!(
        ended,
        [
            resized(1, "4 workers instead of 2"),
            resized(2, "1 worker instead of 4"),
            resized(3, "3 workers instead of 1")
        ]
    );
    let two = format!(r#"["127.0.0.1:{0}","127.0.0.1:{0}"]"#, gang.master);
    assert!(fs::read_to_string(gang.room.path("tf")).unwrap().contains(&two));
    // No worker waits for a spare. One that the leader has seen exits with the rest.
    agents[3] = gang.pod(3);
    until("the spare says so", SOON, || gang.output()[3].contains("waits until it is of more than 3").then_some(()));
    resize(4, 4);
    began(5, 4);
    resize(3, 4);
    began(6, 3);
    gang.allow("go-6");
    gang.all_exit(agents, 0);
}

#[test]
fn command_not_found_stops_the_gang_at_once() {
    let Some(gang) = Gang::new("gang-typo", 2, json!({}), "").map(|gang| gang.with_command(&["no-such-command"]))
    else {
        return;
    };
    gang.all_exit(gang.start(), 127);
    let report = gang.report(0);
    assert_eq!((report.attempt, report.gang.unwrap().restarts.stopped.as_deref()), (1, Some("")));
    assert!(gang.output()[0].contains("no-such-command"), "{:?}", gang.output());
}

/// At exit code 137 a kubelet would start the container again, and the gang with it.
#[test]
fn killed_program_is_not_mistaken_for_a_killed_container() {
    let Some(gang) = Gang::new("gang-137", 1, json!({ "backoffLimit": 0 }), "kill -9 $$") else { return };
    gang.all_exit(gang.start(), 1);
    assert_eq!(gang.report(0).signal, Some(9));
}

#[test]
fn success_waits_for_all_workers() {
    let Some(gang) = Gang::new("gang-success", 2, json!({}), "[ $NODE_RANK = 0 ] || wait_for go") else { return };
    let mut agents = gang.start();
    until("the first has ended", SOON, || gang.log().iter().any(|line| line == "end 0.1").then_some(()));
    until("its last words say so", SOON, || gang.written(0).filter(|report| report.exit_code == Some(0)));
    assert!(agents[0].unshared.try_wait().unwrap().is_none(), "it stays while the other may still fail");
    gang.allow("go");
    gang.all_exit(agents, 0);
}

/// A failure of any role fails the gang. The deciding role's success is the gang's, and the agents then end the others
/// with 0.
#[test]
fn roles_start_together_and_the_chief_decides_the_outcome() {
    let script = r#"
        echo "$PADDLE_MASTER" > master-$ROLE-$NODE_RANK
        until [ $(grep -c "begin .*[.]$ATTEMPT " log) = $SIZE ]; do sleep 0.1; done
        if [ $ROLE.$ATTEMPT = ps.1 ]; then echo "KeyError: 'weights'" >&2; exit 5; fi
        if [ $ROLE.$ATTEMPT = chief.2 ]; then wait_for go; exit 0; fi
        wait_for never"#;
    let setup = json!({ "workers": 2, "roles": { "chief": 1, "ps": 1 }, "success": { "chief": 1 } });
    let Some(gang) = Gang::new("gang-roles", 4, setup, script) else { return };
    // The agent determines the address at which the first worker is reached.
    let options = ["--env=PADDLE_MASTER=$(MASTER_IP):$(MASTER_PORT)", "--env=POD_IP=127.0.0.1"];
    let seats = vec![("worker", 0), ("worker", 1), ("chief", 0), ("ps", 0)];
    let gang = Gang { seats, options: options.map(str::to_owned).to_vec(), ..gang };
    let agents = gang.start();
    let ended = until("the end of the first attempt", SOON, || Some(gang.ended()).filter(|ended| !ended.is_empty()));
    assert_eq!((ended[0].role.as_str(), ended[0].worker, ended[0].exit_code), ("ps", Some(0), Some(5)));
    assert!(ended[0].to_string().starts_with("ps 0: ") && ended[0].to_string().contains("weights"), "{ended:?}");
    gang.allow("go"); // not before the leader was asked: with the end it is gone
    gang.all_exit(agents, 0);
    for seat in 0..4 {
        let report = gang.report(seat);
        assert_eq!((report.attempt, report.stopped_by.is_some()), (2, seat != 2), "{seat}: {report:?}");
    }
    let addresses = ["worker-0", "worker-1", "chief-0", "ps-0"]
        .map(|name| fs::read_to_string(gang.room.path(&format!("master-{name}"))).unwrap());
    assert!(addresses.iter().all(|address| *address == format!("127.0.0.1:{}\n", gang.master + 1)), "{addresses:?}");
}

/// Data sent to the gang's port without its key neither stops nor delays anything.
#[test]
fn clients_without_the_key_are_ignored() {
    let Some(gang) = Gang::new("gang-strangers", 2, json!({}), "wait_for go-$ATTEMPT") else { return };
    let agents = gang.start();
    gang.until_all_began(1);
    let mut port = 0;
    gang.change(|setup| port = u16::try_from(setup["port"].as_u64().unwrap()).unwrap());
    let dial = || TcpStream::connect(("127.0.0.1", port)).unwrap();
    // More silent connections than the agent accepts at a time, which stay open.
    let silent: Vec<_> = (0..300).map(|_| dial()).collect();
    for garbage in
        [b"GET / HTTP/1.1\r\n\r\n".to_vec(), vec![0xff; 4], vec![0; 100_000], [&[0, 0, 0, 200][..], &[7; 200]].concat()]
    {
        let mut stream = dial();
        let _ = stream.write_all(&garbage);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.len() <= 36, "nobody is told more than a nonce");
    }
    // A killed agent's successor connects despite them.
    let mut agents = agents;
    agents[1].signal(Signal::SIGKILL);
    agents[1].unshared.wait().unwrap();
    agents[1] = gang.container(1, 2);
    gang.until_all_began(2);
    drop(silent);
    gang.allow("go-2");
    gang.all_exit(agents, 0);
}

#[test]
fn missing_gang_key_is_reported() {
    let Some(gang) = Gang::new("gang-no-key", 2, json!({}), "true") else { return };
    fs::remove_file(gang.room.path("key")).unwrap();
    let mut agent = gang.pod(0);
    assert_eq!(gang.exit_code(&mut agent), Some(1));
    let error = gang.report(0).error.unwrap();
    assert!(error.message.contains("--gang-key") && error.message.contains("key"), "{}", error.message);
}

/// Containers often start with a limit of 1,024 open files, and the leader has a connection to each member.
#[test]
fn leader_raises_only_its_own_open_file_limit() {
    let script = r#"
ulimit -Sn > program-$NODE_RANK
ulimit -Hn > hard
grep "Max open files" /proc/1/limits > agent-$NODE_RANK
wait_at_peers
"#;
    let Some(gang) = Gang::new("gang-files", 2, json!({}), script) else { return };
    let gang = Gang { before: Some("ulimit -Sn 256"), ..gang };
    let agents = gang.start();
    gang.all_exit(agents, 0);
    let read = |file: &str| fs::read_to_string(gang.room.path(file)).unwrap();
    let of_agent = |index: u32| read(&format!("agent-{index}")).split_whitespace().nth(3).unwrap().to_owned();
    let hard = read("hard").trim().to_owned();
    assert_ne!(hard, "256");
    assert_eq!([of_agent(0), of_agent(1)], [hard, "256".to_owned()]);
    assert_eq!(["program-0", "program-1"].map(|file| read(file).trim().to_owned()), ["256", "256"]);
}

#[test]
fn gang_of_one_needs_neither_key_nor_port() {
    let script = "[ $ATTEMPT = 2 ] || exit 1";
    let Some(gang) = Gang::new("gang-one", 1, json!({ "port": 0 }), script) else { return };
    fs::remove_file(gang.room.path("key")).unwrap();
    let agents = gang.start();
    gang.all_exit(agents, 0);
}

/// Both workers begin the first attempt; then worker `rank` runs this program in Python, and the other one this script.
fn python_beside(rank: u32, program: &str, other: &str) -> String {
    format!(
        "[ $ATTEMPT = 1 ] || exit 0\nwait_at_peers\n[ $NODE_RANK = {rank} ] && exec python3 -c '{program}'\n{other}"
    )
}

/// The other worker fails, and the gang stops before torchrun looks at its ranks.
#[test]
fn launcher_may_still_report_its_ranks_failure_during_a_stop() {
    let launcher = r#"
import os, signal, subprocess, time
signal.signal(signal.SIGTERM, lambda *_: os._exit(1))
rank = subprocess.Popen(["sh", "-c", "kill -9 $$"])
os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOWAIT)
open("killed", "w").close()
time.sleep(0.4)
print("rank 1 has ended by SIGKILL", file=__import__("sys").stderr, flush=True)
os._exit(3)
"#;
    let other = r#"
wait_for killed
echo "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:1" >&2
exit 1
"#;
    let script = python_beside(1, launcher, other);
    let Some(gang) = Gang::new("gang-notice", 2, json!({}), &script) else { return };
    let cause = gang.first_cause();
    assert!(cause.contains("worker 1: exit code 3: rank 1 has ended by SIGKILL"), "{cause}");
}

/// The other worker gives up waiting for it. Only the time of the stop, which its agent reports, tells its exception from
/// one that made the other wait.
#[test]
fn exception_raised_because_of_a_stop_is_not_the_cause() {
    let program = r#"
import signal, time
class Preempted(Exception): pass
def stop(*_): raise Preempted("asked to stop")
signal.signal(signal.SIGTERM, stop)
open("ready", "w").close()
while True:
    time.sleep(0.1)
"#;
    let other = r#"
wait_for ready
echo "RuntimeError: [gloo/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation" >&2
exit 1
"#;
    let script = python_beside(0, program, other);
    let Some(mut gang) = Gang::new("gang-raises", 2, json!({}), &script) else { return };
    gang.agent = gang.room.installed();
    let cause = gang.first_cause();
    assert!(gang.output()[0].contains("Preempted: asked to stop"), "it raised: {:?}", gang.output());
    assert!(cause.contains("worker 1: ") && cause.contains("Timed out waiting 1800000ms"), "{cause}");
}

/// A program that never reaps a killed child of its own is stopped all the same.
#[test]
fn unreaped_failed_child_does_not_prevent_a_stop() {
    let program = r#"
import os, signal, subprocess, time
child = subprocess.Popen(["sh", "-c", "kill -9 $$"])
os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
open("killed", "w").close()
signal.signal(signal.SIGTERM, lambda *_: (open("told", "w").close(), os._exit(0)))
while True:
    time.sleep(0.1)
"#;
    let other = r#"
wait_for killed
echo "ValueError: boom" >&2
exit 5
"#;
    let script = python_beside(1, program, other);
    let Some(gang) = Gang::new("gang-child", 2, json!({}), &script) else { return };
    let cause = gang.first_cause();
    assert!(gang.room.path("told").exists(), "it got SIGTERM");
    assert!(cause.contains("worker 0: exit code 5: ValueError: boom"), "{cause}");
}

/// The first worker reports its steps and waits for the second one. The second one is stopped and can't report
/// anything.
#[test]
fn stopped_member_is_named_and_the_gang_restarts() {
    let script = r#"
[ $ATTEMPT = 1 ] || exit 0
wait_at_peers
[ $NODE_RANK = 0 ] && echo '{"step": 41, "loss": 0.5}'
[ $NODE_RANK = 1 ] && kill -STOP $$
until [ -e never ]; do sleep 0.3; done
"#;
    let Some(mut gang) = Gang::new("gang-hang", 3, json!({}), script) else { return };
    gang.options = ["--hang-timeout=4", "--hang-policy=fail"].map(str::to_owned).to_vec();
    let agents = gang.start();
    gang.until_all_began(2);
    gang.all_exit(agents, 0);
    let said = gang.output();
    assert!(
        said[0].contains("agent: the program hangs, and is ended for it: no step for 4 s after step 41"),
        "{said:?}"
    );
    let judged = said[0].lines().find(|line| line.contains("attempt 1 has ended: Hang: worker 1"));
    assert!(judged.is_some_and(|line| line.contains(" is stopped (SIGSTOP)")), "{said:?}");
    assert!(said[1].contains("agent: the gang stops, and this worker was waiting: process "), "{said:?}");
}
