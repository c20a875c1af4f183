//! The agent's checkpoint handling: its real binary, over folders in which shell scripts write checkpoints.

use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, Uid, mkfifo};
use protocol::agent_status::AgentStatus;
use protocol::checkpoints::{Checkpoints, ProblemKind};
use protocol::report::{LaunchErrorKind, Report};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use testkit::room::{Room, all_bytes};
use testkit::servers::{BUCKET, Fault, KEY, Proxy, SECRET, Server};
use testkit::wait::until;
use testkit::{ask, binary, free_port};

/// A client of a store retries for a minute before it reports a failure. On a busy machine that takes longer.
const DEADLINE: Duration = Duration::from_secs(300);

/// Writes checkpoint N: a folder with random bytes, and the completion marker last. With `half`, it writes the marker
/// alone.
const SAVE: &str = r#"
save() {
    mkdir -p "$CHECKPOINT_DIR/step-$1"
    [ "$2" = half ] || head -c ${BYTES:-5000} /dev/urandom > "$CHECKPOINT_DIR/step-$1/weights"
    : > "$CHECKPOINT_DIR/step-$1/.complete"
}
"#;

struct World {
    room: Room,
    policy: Value,
    /// Port at which a started agent serves its status.
    metrics: u16,
}

impl World {
    fn new(test: &str, policy: Value) -> Self {
        let room = Room::new(test);
        fs::create_dir_all(room.path("checkpoints")).unwrap();
        let mut all = json!({ "uid": "uid-1", "job": "x", "workers": 1, "retention": 3, "lookSeconds": 1 });
        all.as_object_mut().unwrap().extend(policy.as_object().unwrap().clone());
        Self { room, policy: all, metrics: free_port() }
    }

    fn checkpoints(&self) -> PathBuf {
        self.room.path("checkpoints")
    }

    /// A prefix in the bucket behind the proxy, with its credentials.
    fn place(&self, proxy: &Proxy, prefix: &str) -> Value {
        let (uri, keys) = (format!("s3://{BUCKET}/{prefix}"), self.room.folder("keys"));
        fs::write(keys.join("AWS_ACCESS_KEY_ID"), KEY).unwrap();
        fs::write(keys.join("AWS_SECRET_ACCESS_KEY"), SECRET).unwrap();
        json!({ "uri": uri, "endpoint": proxy.url(), "region": "us-east-1", "credentials": keys })
    }

    /// The absolute path of a checkpoint, as a program receives it.
    fn path(&self, name: &str) -> String {
        self.checkpoints().join(name).display().to_string()
    }

    fn agent(&self, attempt: u32, more: &[&str], script: &str) -> Command {
        fs::write(self.room.path("policy"), self.policy.to_string()).unwrap();
        let mut command = Command::new("/usr/bin/env");
        command.arg("--default-signal").args(unprivileged());
        command.args([binary("agent"), "run", "--grace-seconds", "1", "--termination-log"]);
        command.arg(self.room.path("message")).arg(format!("--checkpoints={}", self.room.path("policy").display()));
        command.arg(format!("--attempt={attempt}")).args(more).args([
            "--",
            "sh",
            "-c",
            &format!("{SAVE}\n{script}"),
            "sh",
        ]);
        command.env("CHECKPOINT_DIR", self.checkpoints()).env("ROOM", &self.room.0).env_remove("NODE_RANK");
        command.current_dir(&self.room.0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// The agent of one worker in a gang of two, whose agents meet at `port`.
    fn worker(&self, attempt: u32, index: usize, port: u16, script: &str) -> Command {
        self.member(2, 1, attempt, index, port, script)
    }

    /// The agent of one worker in a gang of `of` workers, which is restarted in its pods up to `restarts` times.
    fn member(&self, of: u32, restarts: u32, attempt: u32, index: usize, port: u16, script: &str) -> Command {
        let gang = self.gang(of, restarts, port);
        let mut agent = self.agent(attempt, &[&gang[0], &gang[1]], script);
        agent.env("NODE_RANK", index.to_string()).env("MASTER_ADDR", "127.0.0.1");
        agent
    }

    /// Writes the files of such a gang and returns the arguments of its agents.
    fn gang(&self, of: u32, restarts: u32, port: u16) -> [String; 2] {
        let setup = json!({
            "uid": "uid-1", "workers": of, "leader": "127.0.0.1", "port": port, "masterPort": 29500,
            "restarts": "OnFailure", "backoffLimit": restarts,
        });
        let (setup_file, key) = (self.room.path("gang.json"), self.room.path("key"));
        // Replaces each file atomically, as a node does, because another worker of this gang may be reading it.
        for (file, content) in [(&setup_file, setup.to_string()), (&key, "0123456789abcdef0123456789abcdef".to_owned())]
        {
            let new = file.with_extension("new");
            fs::write(&new, content).unwrap();
            fs::rename(&new, file).unwrap();
        }
        [format!("--gang={}", setup_file.display()), format!("--gang-key={}", key.display())]
    }

    fn run(&self, attempt: u32, more: &[&str], script: &str) -> Output {
        self.agent(attempt, more, script).output().unwrap()
    }

    /// The final report of an agent that has exited.
    fn report(&self) -> Report {
        Report::parse(&fs::read_to_string(self.room.path("message")).unwrap()).unwrap()
    }

    /// Waits until the running agent reports checkpoints that satisfy `wanted`.
    fn reported(&self, what: &str, wanted: impl Fn(&Checkpoints) -> bool) -> Checkpoints {
        until(what, DEADLINE, || {
            let status: AgentStatus = serde_json::from_str(&ask(self.metrics, "GET", "/status", "")?).ok()?;
            status.checkpoints.filter(&wanted)
        })
    }

    /// Starts an agent that is killed when its test ends.
    fn start(&self, script: &str) -> Running {
        let error = File::create(self.room.path("words")).unwrap();
        let port = format!("--metrics-port={}", self.metrics);
        Running(self.agent(1, &[&port], script).stdout(Stdio::null()).stderr(error).spawn().unwrap())
    }

    /// The steps of the existing checkpoints.
    fn steps(&self) -> BTreeSet<u64> {
        let entries = fs::read_dir(self.checkpoints()).unwrap().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.strip_prefix("step-")?.parse().ok()).collect()
    }

    fn command(&self, args: &[&str]) -> Output {
        fs::write(self.room.path("policy"), self.policy.to_string()).unwrap();
        let mut command = Command::new("/usr/bin/env");
        command.args(unprivileged()).arg(binary("agent"));
        command.arg("checkpoints").arg(args[0]).arg("--policy").arg(self.room.path("policy"));
        command.arg("--root").arg(self.checkpoints()).args(&args[1..]).stdin(Stdio::null()).output().unwrap()
    }
}

/// The prefix that runs a command without root's ability to open any file.
fn unprivileged() -> &'static [&'static str] {
    if Uid::effective().is_root() { &["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--"] } else { &[] }
}

/// Waits for an agent to exit and returns its output. An agent that hangs is killed, and the test fails.
fn ended(mut agent: Child) -> Output {
    let begin = Instant::now();
    let has_ended = loop {
        let has_ended = agent.try_wait().unwrap().is_some();
        if has_ended || begin.elapsed() > DEADLINE {
            break has_ended;
        }
        thread::sleep(Duration::from_millis(50));
    };
    if !has_ended {
        agent.kill().unwrap();
    }
    let output = agent.wait_with_output().unwrap();
    assert!(has_ended, "it runs after {DEADLINE:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// A started agent, which is killed if the test ends before it does.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn run_resumes_from_the_newest_whole_checkpoint() {
    let world = World::new("checkpoints-newest", json!({}));
    let print_start = r#"echo "from=$RESUME_FROM_CHECKPOINT step=$RESUME_FROM_STEP args=$*""#;
    let more = ["--resume-arg=--load", "--resume-arg=$(RESUME_FROM_CHECKPOINT)"];
    let first = world.run(1, &more, &format!("{print_start}; save 1; save 2; save 3 half"));
    assert_eq!(stdout(&first), "from= step= args=\n", "from nothing");
    let stated = world.report().checkpoints.unwrap();
    assert_eq!((stated.complete, stated.incomplete, stated.latest.unwrap().path.as_str()), (2, 1, "step-2"));
    let path = world.checkpoints().join("step-2").display().to_string();
    let second = world.run(2, &more, print_start);
    assert_eq!(stdout(&second), format!("from={path} step=2 args=--load {path}\n"));
    assert_eq!(world.report().checkpoints.unwrap().resumed_from.unwrap().path, "step-2");

    // The agent detects the flipped bit before it resumes from step-4, because it read every byte when the program
    // ended.
    world.run(3, &[], "save 4");
    let weights = world.checkpoints().join("step-4/weights");
    let (mut bytes, times) = (fs::read(&weights).unwrap(), fs::metadata(&weights).unwrap().modified().unwrap());
    bytes[100] ^= 1;
    fs::write(&weights, bytes).unwrap();
    fs::File::options().write(true).open(&weights).unwrap().set_modified(times).unwrap();
    let fourth = world.run(4, &[], print_start);
    assert!(stdout(&fourth).starts_with(&format!("from={path} ")), "{}", stdout(&fourth));
    let words = String::from_utf8(fourth.stderr).unwrap();
    assert!(words.contains("does not resume from step-4: corrupted: weights"), "{words}");
    assert_eq!(world.report().checkpoints.unwrap().problems[0].kind, ProblemKind::Corrupted);
}

#[test]
fn resume_from_takes_precedence_and_must_be_usable() {
    let mut world = World::new("checkpoints-asked", json!({}));
    world.run(1, &[], "save 1; save 2; save 3 half");
    let print_start = r#"echo "$RESUME_FROM_CHECKPOINT""#;
    world.policy["resumeFrom"] = json!(world.path("step-1"));
    assert_eq!(stdout(&world.run(1, &[], print_start)).trim(), world.path("step-1"));
    assert_eq!(stdout(&world.run(2, &[], print_start)).trim(), world.path("step-1"), "nothing was saved since");
    assert_eq!(stdout(&world.run(2, &[], &format!("{print_start}; save 1"))).trim(), world.path("step-1"));
    assert_eq!(stdout(&world.run(3, &[], print_start)).trim(), world.path("step-1"), "what it saved, and not step-2");
    for (name, why) in [("step-3", "incomplete"), ("step-9", "no such file or folder")] {
        world.policy["resumeFrom"] = json!(world.path(name));
        let refused = world.run(1, &[], print_start);
        let error = world.report().error.unwrap();
        assert_eq!((refused.status.code(), stdout(&refused).as_str()), (Some(126), ""));
        assert_eq!(error.kind, LaunchErrorKind::CheckpointUnusable);
        assert!(error.message.contains(why), "{}", error.message);
    }
}

#[test]
fn retention_keeps_the_newest_and_foreign_checkpoints() {
    let mut world = World::new("checkpoints-retention", json!({}));
    fs::create_dir_all(world.checkpoints().join("step-0")).unwrap();
    fs::write(world.checkpoints().join("step-0/.complete"), "").unwrap();
    fs::write(world.checkpoints().join("step-0/weights"), "of another job").unwrap();
    world.run(1, &[], "for n in $(seq 1 20); do save $n; done");
    // The agent does not delete step-0, which another job wrote. It keeps the last three of this job.
    assert_eq!(world.steps(), BTreeSet::from([0, 18, 19, 20]));
    let stated = world.report().checkpoints.unwrap();
    assert_eq!((stated.deleted, stated.complete), (17, 4), "what is there now");
    // The agent keeps more as soon as the policy says so.
    world.policy["retention"] = json!(5);
    world.run(2, &[], "for n in $(seq 21 30); do save $n; done");
    let kept = BTreeSet::from([0, 20, 26, 27, 28, 29, 30]);
    assert_eq!(world.steps(), kept, "the run resumed from 20");
    let pruned = stdout(&world.command(&["prune"]));
    assert_eq!(world.steps(), kept, "{pruned}");
    assert!(pruned.contains("step-20: stays: the run resumed from it\n"), "{pruned}");
    world.run(3, &[], "save 31");
    assert_eq!(world.steps(), BTreeSet::from([0, 27, 28, 29, 30, 31]), "the run resumed from 30");
}

/// Writes a checkpoint as the Hugging Face Trainer does, with the metric that it measured.
const SAVE_MEASURED: &str = r#"
measured() {
    mkdir -p "$CHECKPOINT_DIR/checkpoint-$1"
    cp "$WEIGHTS" "$CHECKPOINT_DIR/checkpoint-$1/model.safetensors"
    echo "{\"epoch\": $1, \"global_step\": $1, \"max_steps\": 9, \"log_history\": [{\"eval_accuracy\": $2, \"step\": $1}]}" \
        > "$CHECKPOINT_DIR/checkpoint-$1/trainer_state.json"
}
"#;

/// The best has the greatest or the least value that the program measured. Later attempts keep it, too.
#[test]
fn best_checkpoint_is_kept_beside_the_newest() {
    for (mode, best, value, kept) in [("max", 2, 0.9, [2, 5, 6]), ("min", 1, 0.1, [1, 5, 6])] {
        let by = json!({ "metric": "accuracy", "max": mode == "max" });
        let world = World::new(&format!("checkpoints-best-{mode}"), json!({ "retention": 2, "keepBest": by }));
        let weights = testkit::root("tests/fixtures/checkpoints/safetensors/sharded/model-00002-of-00002.safetensors");
        let run = |attempt: u32, script: &str| {
            let mut agent = world.agent(attempt, &[], &format!("{SAVE_MEASURED}{script}"));
            let output = agent.env("WEIGHTS", &weights).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            world.report().checkpoints.unwrap()
        };
        let there = || {
            let names = names(&world.checkpoints()).into_iter();
            names.map(|name| name.strip_prefix("checkpoint-").unwrap().parse().unwrap()).collect::<BTreeSet<u64>>()
        };
        let saves = [0.1, 0.9, 0.3, 0.2, 0.4, 0.5].iter().zip(1..).map(|(value, n)| format!("measured {n} {value}; "));
        let stated = run(1, &saves.collect::<String>());
        assert_eq!(there(), BTreeSet::from(kept), "{mode}");
        let stated = stated.best.unwrap();
        assert_eq!((stated.path, stated.metric), (format!("checkpoint-{best}"), Some(value)), "{mode}");
        run(2, "measured 7 0.5; measured 8 0.6");
        assert_eq!(there(), BTreeSet::from([best, 6, 7, 8]), "{mode}: 6 was gone on from");
    }
}

/// The agent makes the link only on a volume and once a program has succeeded. No program ever finds the link.
#[test]
fn best_checkpoint_is_linked_after_success() {
    let by = json!({ "metric": "accuracy", "max": true });
    let mut world = World::new("checkpoints-best-link", json!({ "retention": 2, "keepBest": by, "shared": true }));
    let weights = testkit::root("tests/fixtures/checkpoints/safetensors/sharded/model-00002-of-00002.safetensors");
    let run = |world: &World, attempt: u32, script: &str| {
        let mut agent = world.agent(attempt, &[], &format!("{SAVE_MEASURED}{script}"));
        let output = agent.env("WEIGHTS", &weights).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let link = world.checkpoints().join("best");
    let target = || fs::read_link(&link).ok().map(|target| target.display().to_string());
    let saves = "measured 1 0.1; measured 2 0.9; measured 3 0.3; measured 4 0.2";
    let (_, said) = run(&world, 1, &format!("{saves}; exit 1"));
    assert_eq!(target(), None, "the next attempt may write to that path: {said}");
    let (is_well, said) = run(&world, 2, "[ -e $CHECKPOINT_DIR/best ] && exit 3; measured 5 0.4");
    assert!(is_well, "{said}");
    assert_eq!(target().as_deref(), Some("./checkpoint-2"), "{said}");
    assert!(link.join("model.safetensors").is_file());
    let (is_well, said) = run(&world, 3, "[ -L $CHECKPOINT_DIR/best ] && exit 3; mkdir $CHECKPOINT_DIR/best");
    assert!(is_well, "{said}");
    assert!(link.symlink_metadata().unwrap().is_dir(), "what the program has made stays");
    assert!(said.contains("has a best of another origin: no link to checkpoint-2 is made"), "{said}");
    fs::remove_dir(&link).unwrap();
    world.policy["shared"] = json!(false);
    let (is_well, said) = run(&world, 4, "measured 6 0.4");
    assert!(is_well && target().is_none(), "such a folder goes with its pod: {said}");
}

/// After a kill at any moment, the next run resumes from a whole checkpoint, and never from one older than the newest
/// whole one.
#[test]
fn fifty_kills_lose_no_whole_checkpoint() {
    let world = World::new("checkpoints-kills", json!({}));
    let script = r#"
        from=${RESUME_FROM_STEP:-0}
        echo "$from" > "$ROOM/from"
        n=$from
        while :; do n=$((n + 1)); save $n; echo $n > "$ROOM/saved.tmp" && mv "$ROOM/saved.tmp" "$ROOM/saved"; done
    "#;
    let number = |name: &str| -> Option<u64> { fs::read_to_string(world.room.path(name)).ok()?.trim().parse().ok() };
    let mut saved = 0;
    for attempt in 1..=50 {
        let _ = fs::remove_file(world.room.path("from"));
        let mut agent = world.agent(attempt, &[], script);
        let mut agent = agent.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let from = until("the program's start", DEADLINE, || number("from"));
        assert!(from >= saved, "attempt {attempt} goes on from {from}, and {saved} was whole");
        until("some steps", DEADLINE, || number("saved").filter(|saved| *saved > from + u64::from(attempt % 7)));
        // Kills the whole container at once, as the kernel does when it is out of memory. The program dies first, and
        // no agent is left to see that.
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", agent.id())).unwrap();
        kill(Pid::from_raw(agent.id().cast_signed()), Signal::SIGSTOP).unwrap();
        for child in children.split_whitespace() {
            let _ = kill(Pid::from_raw(-child.parse::<i32>().unwrap()), Signal::SIGKILL);
        }
        kill(Pid::from_raw(agent.id().cast_signed()), Signal::SIGKILL).unwrap();
        agent.wait().unwrap();
        saved = number("saved").unwrap();
    }
    // After all these attempts, exactly the checkpoints that the policy asks for are left.
    let last = world.run(51, &[], &script.replace("while :;", "for _ in 1 2 3 4;"));
    assert!(last.status.success(), "{}", String::from_utf8_lossy(&last.stderr));
    let (from, saved) = (number("from").unwrap(), number("saved").unwrap());
    assert_eq!(world.steps(), BTreeSet::from([from, saved - 2, saved - 1, saved]), "{from} was gone on from");
}

#[test]
fn checkpoint_is_skipped_after_repeated_failures() {
    let world = World::new("checkpoints-suspect", json!({}));
    world.run(1, &[], "save 1; save 2; exit 1");
    for attempt in 2..=3 {
        let failed = world.run(attempt, &[], r#"echo "$RESUME_FROM_STEP"; exit 1"#);
        assert_eq!(stdout(&failed), "2\n", "attempt {attempt}");
    }
    let third = world.run(4, &[], r#"echo "$RESUME_FROM_STEP"; exit 1"#);
    assert_eq!(stdout(&third), "1\n");
    let problem = world.report().checkpoints.unwrap().problems[0].clone();
    assert_eq!(problem.kind, ProblemKind::Suspect);
    assert!(problem.message.starts_with("step-2: 2 attempts"), "{}", problem.message);
}

#[test]
fn copies_are_uploaded_and_restored() {
    let mut world = World::new("checkpoints-copies", json!({}));
    let bucket = world.room.path("bucket");
    fs::create_dir_all(&bucket).unwrap();
    world.policy["retention"] = json!(2);
    world.policy["store"] = json!({ "uri": format!("file://{}", bucket.display()) });
    world.run(1, &[], "for n in 1 2 3; do save $n; done");
    let stated = world.report().checkpoints.unwrap();
    assert_eq!((stated.copied.unwrap().path.as_str(), stated.to_copy), ("step-3", None));
    // The pod is gone, and its folder with it.
    fs::remove_dir_all(world.checkpoints()).unwrap();
    fs::create_dir_all(world.checkpoints()).unwrap();
    let second =
        world.run(2, &[], r#"echo "$RESUME_FROM_STEP"; cat "$RESUME_FROM_CHECKPOINT/weights" | wc -c; save 4"#);
    assert_eq!(stdout(&second), "3\n5000\n", "{}", String::from_utf8_lossy(&second.stderr));
    let listed = stdout(&world.command(&["list"]));
    assert!(listed.contains("step-4") && listed.contains("file://"), "{listed}");
    let restored = world.command(&["restore", "--to", "back", "step-3"]);
    assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
    assert!(world.checkpoints().join("back/step-3/.complete").exists());
    let again = world.command(&["restore", "--to", "back"]);
    assert!(String::from_utf8(again.stderr).unwrap().starts_with("agent: "), "it is there already");
}

/// Where each worker has a folder of its own, a checkpoint is whole once the store has the files of all workers. A
/// checkpoint without the files of one worker never appears.
#[test]
fn shards_of_all_workers_form_one_copy() {
    shards_come_back("checkpoints-shards", &|store, _| json!({ "store": store }), &[true, false]);
}

/// Where only the backup outlives the pods, it also gets the last checkpoint, however long it is until the next copy.
#[test]
fn shards_of_all_workers_form_one_backup() {
    let policy = |_: &Value, backup: &Value| json!({ "backup": { "place": backup, "intervalSeconds": 3600 } });
    shards_come_back("checkpoints-shards-backup", &policy, &[false, true]);
}

#[test]
fn shards_of_all_workers_form_a_copy_and_a_backup() {
    let policy = |store: &Value, backup: &Value| json!({ "store": store, "backup": { "place": backup, "intervalSeconds": 3600 } });
    shards_come_back("checkpoints-shards-both", &policy, &[true, true]);
}

/// Two workers write half of a checkpoint each. It lies in the places of `lies_in`, and new workers resume from it.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn shards_come_back(test: &str, places: &dyn Fn(&Value, &Value) -> Value, lies_in: &[bool; 2]) {
    let stores = ["store", "backup"].map(|name| Room::new(&format!("{test}-{name}")));
    let [store, backup] = stores.each_ref().map(|room| json!({ "uri": format!("file://{}", room.0.display()) }));
    let mut policy = places(&store, &backup);
    (policy["workers"], policy["port"]) = (json!(2), json!(free_port()));
    let workers = [0, 1].map(|index| World::new(&format!("{test}-{index}"), policy.clone()));
    let fixture = testkit::root("tests/fixtures/checkpoints/dcp/ranks/step_9");
    let shard = |step: u64, names: &str| {
        let folder = format!("$CHECKPOINT_DIR/step_{step}");
        format!("mkdir -p {folder}; cd {fixture}; cp {names} {folder}; cd \"$ROOM\"; ")
    };
    let own = [shard(9, "__0_0.distcp __2_0.distcp .metadata"), shard(9, "__1_0.distcp")];
    let lacks = shard(10, "__0_0.distcp __2_0.distcp .metadata");
    let gang = free_port();
    let run = |attempt: u32, worker: usize, script: &str| {
        workers[worker].worker(attempt, worker, gang, script).spawn().unwrap()
    };
    let both = |attempt: u32, scripts: [&str; 2]| {
        let agents = [run(attempt, 0, scripts[0]), run(attempt, 1, scripts[1])];
        agents.map(ended)
    };
    both(1, [&format!("{}{lacks}", own[0]), &own[1]]);
    let stated = workers[0].report().checkpoints.unwrap();
    assert_eq!(stated.copied.map(|copied| copied.path).as_deref(), Some("step_9"));
    for (room, lies) in stores.iter().zip(lies_in) {
        let is_there = |step| room.path(&format!(".trainingjob/step_{step}.json")).exists();
        assert_eq!((is_there(9), is_there(10)), (*lies, false), "{}", room.0.display());
    }

    // New pods have empty folders.
    for world in &workers {
        fs::remove_dir_all(world.checkpoints()).unwrap();
        fs::create_dir_all(world.checkpoints()).unwrap();
    }
    let print_start = r#"echo "$RESUME_FROM_STEP"; ls -A "$RESUME_FROM_CHECKPOINT""#;
    for output in both(2, [print_start, print_start]) {
        let files = "9\n.metadata\n__0_0.distcp\n__1_0.distcp\n__2_0.distcp\n";
        assert_eq!(stdout(&output), files, "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// A worker is lost while the others wait for its files, so its part is missing. The next attempt saves and copies
/// nevertheless.
#[test]
fn next_attempt_does_not_wait_for_files_of_the_previous_one() {
    let store = Room::new("checkpoints-rounds-store");
    let mut policy = json!({ "store": { "uri": format!("file://{}", store.0.display()) } });
    (policy["workers"], policy["port"]) = (json!(2), json!(free_port()));
    let [first, mut lost, other] = [0, 1, 2].map(|n| World::new(&format!("checkpoints-rounds-{n}"), policy.clone()));
    // Its agent looks only once before it is killed.
    lost.policy["lookSeconds"] = json!(600);
    let fixture = testkit::root("tests/fixtures/checkpoints/dcp/ranks/step_9");
    let shard = |step: &str, names: &str| {
        let folder = format!("$CHECKPOINT_DIR/step_{step}");
        format!("mkdir -p {folder}; (cd {fixture}; cp {names} {folder})")
    };
    let stay = "while kill -0 $PPID; do sleep 0.1; done 2> /dev/null";
    let names = "__0_0.distcp __2_0.distcp .metadata";
    let [before, after] = [shard("9", names), shard("10", names)];
    let begins = format!(r#"if [ "$ATTEMPT" = 1 ]; then {before}; {stay}; fi; {after}"#);
    let gang = free_port();
    let mut agents = [first.worker(1, 0, gang, &begins), lost.worker(1, 1, gang, stay)].map(|mut a| a.spawn().unwrap());
    let part = store.path(".trainingjob/parts/step_9/0.json");
    until("the first worker's part", DEADLINE, || part.exists().then_some(()));
    agents[1].kill().unwrap();
    agents[1].wait().unwrap();
    let [leader, _] = agents;
    let second = other.worker(1, 1, gang, &shard("10", "__1_0.distcp")).spawn().unwrap();
    for mut agent in [second, leader] {
        until("the agent's end", DEADLINE, || agent.try_wait().unwrap());
    }
    let stated = first.report();
    let copied = stated.checkpoints.as_ref().and_then(|stated| stated.copied.clone()).map(|copied| copied.path);
    assert_eq!((stated.exit_code, copied.as_deref()), (Some(0), Some("step_10")), "{stated:?}");
}

#[test]
fn checkpoint_commands_explain_each_verdict() {
    let world = World::new("checkpoints-commands", json!({}));
    world.run(1, &[], "save 1; save 2; save 3 half");
    let why = stdout(&world.command(&["why"]));
    assert!(why.contains("step-3: passed over: it is incomplete") && why.contains("step-2: taken"), "{why}");
    assert!(world.command(&["verify"]).status.success());
    fs::write(world.checkpoints().join("step-2/weights"), "").unwrap();
    let dry = stdout(&world.command(&["prune", "--dry-run"]));
    assert!(dry.contains("step-1: stays"), "{dry}");
    assert_eq!(world.steps().len(), 3, "a dry run deletes nothing");
    let json: Value = serde_json::from_slice(&world.command(&["list", "--json"]).stdout).unwrap();
    assert_eq!(json[0]["checkpoints"]["checkpoints"].as_array().unwrap().len(), 3);
}

/// The other workers wait for the first worker's agent, which chooses for all. This also works in an image without
/// certificates.
#[test]
fn all_workers_resume_from_the_same_checkpoint() {
    let port = free_port();
    let policy = json!({ "uid": "uid-1", "job": "x", "workers": 2, "retention": 3, "shared": true, "port": port });
    let world = World::new("checkpoints-gang", policy);
    let print_start = r#"echo "$RESUME_FROM_CHECKPOINT""#;
    let gang = free_port();
    let worker = |attempt: u32, index: usize, script: &str| {
        let mut agent = world.worker(attempt, index, gang, script);
        agent.env("SSL_CERT_FILE", "/nowhere").env("SSL_CERT_DIR", "/nowhere");
        agent
    };
    for (attempt, expected) in [(1, String::new()), (2, world.path("step-1"))] {
        let second = worker(attempt, 1, print_start).spawn().unwrap();
        let first = worker(attempt, 0, &format!("{print_start}; save {attempt}")).spawn().unwrap();
        let second = ended(second);
        let first = ended(first);
        assert_eq!(stdout(&second).trim(), expected, "{}", String::from_utf8_lossy(&second.stderr));
        assert_eq!(stdout(&first).trim(), expected, "{}", String::from_utf8_lossy(&first.stderr));
    }
}

/// Even if a program saves faster than the agent looks, the folder always has the checkpoints to keep, and not many
/// more.
#[test]
fn rotation_keeps_up_with_continuous_saves() {
    let world = World::new("checkpoints-fast", json!({ "shared": true }));
    let mut agent = world.start(SAVES_ALL_THE_TIME);
    let mut seen = BTreeSet::new();
    until("the first ones to go", DEADLINE, || {
        let now = world.steps();
        seen.extend(&now);
        // Every deleted checkpoint has three newer ones.
        let newest = now.iter().rev().nth(2).copied();
        assert!(seen.difference(&now).all(|gone| newest.is_some_and(|third| *gone < third)), "of {seen:?} {now:?}");
        (!now.contains(&1) && !now.contains(&10) && now.len() > 3).then_some(())
    });
    fs::write(world.room.path("enough"), "").unwrap();
    assert!(until("the agent's end", DEADLINE, || agent.0.try_wait().unwrap()).success());
    let newest: BTreeSet<u64> = world.steps();
    assert_eq!(newest.len(), 3, "once all is done what is kept is what was asked for");
    assert_eq!(newest.last().unwrap() - newest.first().unwrap(), 2, "the newest: {newest:?}");
}

/// A look that waited for the large checkpoint to be read would return after a minute and a half.
#[test]
fn reading_a_large_checkpoint_does_not_delay_scans() {
    let world = World::new("checkpoints-large", json!({ "shared": true }));
    let script = r#"
        mkdir -p "$CHECKPOINT_DIR/step-1"
        truncate -s 3G "$CHECKPOINT_DIR/step-1/weights"
        : > "$CHECKPOINT_DIR/step-1/.complete"
        sleep 8; save 2; until [ -e "$ROOM/enough" ] || ! kill -0 $PPID; do sleep 0.2; done
    "#;
    let mut agent = world.start(script);
    let is_latest = |stated: &Checkpoints, path: &str| stated.latest.as_ref().is_some_and(|latest| latest.path == path);
    world.reported("the large one", |stated| is_latest(stated, "step-1"));
    let began = std::time::Instant::now();
    world.reported("the one after it", |stated| is_latest(stated, "step-2"));
    assert!(began.elapsed() < Duration::from_secs(40), "the look came after {:?}", began.elapsed());
    fs::write(world.room.path("enough"), "").unwrap();
    until("the agent's end", DEADLINE, || agent.0.try_wait().unwrap());
}

/// Files of torch.save that belong together, and files that no format claims, outlive the pod together.
#[test]
fn bucket_gets_all_files_of_a_save() {
    let mut world = World::new("checkpoints-beside", json!({}));
    let bucket = world.room.path("bucket");
    fs::create_dir_all(&bucket).unwrap();
    world.policy["retention"] = json!(1);
    world.policy["store"] = json!({ "uri": format!("file://{}", bucket.display()) });
    let fixture = testkit::root("tests/fixtures/checkpoints/torch");
    let model = fs::read_dir(fixture).unwrap().flatten().find_map(|entry| {
        let files = fs::read_dir(entry.path()).ok()?.flatten();
        files.map(|file| file.path()).find(|path| path.extension().is_some_and(|end| end == "pt"))
    });
    let model = model.unwrap().display().to_string();
    let script = format!(
        r#"mkdir -p "$CHECKPOINT_DIR/run"; cd "$CHECKPOINT_DIR/run"
        for n in 100 200; do
            for it in model generator optimizer scheduler; do cp {model} ${{it}}_$n.pt; done
            sleep 2
        done
        echo '{{}}' > config.json; cp {model} rng_state.pt; cd "$ROOM""#
    );
    world.run(1, &[], &script);
    fs::remove_dir_all(world.checkpoints()).unwrap();
    fs::create_dir_all(world.checkpoints()).unwrap();
    let second = world.run(2, &[], r#"ls "$(dirname "$RESUME_FROM_CHECKPOINT")""#);
    let back = stdout(&second);
    let words = String::from_utf8_lossy(&second.stderr);
    let save: Vec<&str> = back.lines().filter(|name| name.contains("_200")).collect();
    assert!(save.len() >= 3, "a model comes with its optimizer and scheduler: {back:?} {words}");
    for name in ["config.json", "rng_state.pt"] {
        assert!(back.lines().any(|line| line == name), "{name} is not in {back:?} {words}");
    }
    let listed = fs::read_dir(bucket.join(".trainingjob")).unwrap().flatten();
    let listed: BTreeSet<String> = listed.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    assert!(listed.contains("run=2Fgenerator_200.pt.json") && listed.contains("run=2Fmodel_200.pt.json"), "{listed:?}");
}

/// The second stage of a training starts its step numbers again. The agent does not treat its checkpoints as old.
#[test]
fn retention_keeps_the_newest_of_each_stage() {
    let world = World::new("checkpoints-stages", json!({ "shared": true, "retention": 2 }));
    let script = r#"
        stage() { for n in $2; do mkdir -p "$CHECKPOINT_DIR/$1"; (CHECKPOINT_DIR="$CHECKPOINT_DIR/$1"; save $n); sleep 1; done; }
        stage sft "8000 8500 9000"; stage dpo "100 200 300"
    "#;
    world.run(1, &[], script);
    let left = |stage: &str| names(&world.checkpoints().join(stage));
    assert_eq!(left("sft"), BTreeSet::from(["step-8500", "step-9000"].map(str::to_owned)));
    assert_eq!(left("dpo"), BTreeSet::from(["step-200", "step-300"].map(str::to_owned)));
}

fn has(stated: &Checkpoints, kind: ProblemKind, words: &str) -> bool {
    stated.problems.iter().any(|problem| problem.kind == kind && problem.message.contains(words))
}

const SAVES_ALL_THE_TIME: &str = r#"
    n=0
    until [ -e "$ROOM/enough" ] || ! kill -0 $PPID; do n=$((n + 1)); save $n; sleep 0.2; done
"#;

/// Whatever the store does, the training continues and saves. The agent reports what is wrong, and the copies catch up.
#[test]
fn failing_store_does_not_block_training() {
    let (server, mut world) = (Server::s3(), World::new("checkpoints-failing", json!({ "shared": true })));
    let proxy = Proxy::before(&server);
    world.policy["backup"] = json!({ "place": world.place(&proxy, "failing"), "intervalSeconds": 1 });
    let mut agent = world.start(SAVES_ALL_THE_TIME);
    let step = |stated: &Checkpoints| stated.latest.as_ref().and_then(|kept| kept.step);
    let copied = |stated: &Checkpoints| stated.copied.as_ref().and_then(|kept| kept.step);
    world.reported("a first copy", |stated| copied(stated).is_some());
    for (status, words) in [(500, "500"), (403, "403")] {
        proxy.set(move |_| Fault::Answer(status));
        let is_failing = |stated: &Checkpoints| has(stated, ProblemKind::CopyFailing, words);
        let bad = world.reported("the failure", is_failing);
        world.reported("saves meanwhile", |stated| {
            is_failing(stated) && step(stated) > step(&bad).map(|step| step + 10)
        });
        proxy.set(|_| Fault::Pass);
        world.reported("newer copies", |stated| copied(stated) > step(&bad) && !is_failing(stated));
    }
    fs::write(world.room.path("enough"), "").unwrap();
    assert!(until("the agent's end", DEADLINE, || agent.0.try_wait().unwrap()).success());
}

/// A copy that the end of the pod cuts off keeps no checkpoint on the volume. Neither does a backup that never gets it,
/// because it gets only the newest save.
#[test]
fn only_checkpoints_still_to_be_copied_outlast_the_retention() {
    let policy = json!({ "shared": true, "retention": 1 });
    let (server, mut world) = (Server::s3(), World::new("checkpoints-cut-off", policy));
    let proxy = Proxy::before(&server);
    world.policy["backup"] = json!({ "place": world.place(&proxy, "cut-off"), "intervalSeconds": 1 });
    let sent = world.room.path("sent");
    proxy.set(move |asked| {
        if asked.method != "PUT" || !asked.target.contains("step-1/weights") {
            return Fault::Pass;
        }
        fs::write(&sent, "").unwrap();
        Fault::Silence
    });
    let script = r#"
        save 1
        until [ -e "$ROOM/sent" ]; do sleep 0.05; done
        save 2
        save 3
    "#;
    let done = world.run(1, &[], script);
    assert!(done.status.success(), "{done:?}");
    assert_eq!(world.steps(), BTreeSet::from([3]), "{done:?}");
    assert_eq!(world.report().checkpoints.unwrap().problems, []);

    world.policy["retention"] = json!(9);
    world.run(2, &[], "save 4; save 5; save 6");
    world.policy["retention"] = json!(1);
    let pruned = stdout(&world.command(&["prune"]));
    assert_eq!(world.steps(), BTreeSet::from([3, 6]), "the run resumed from 3: {pruned}");
}

/// A file that is overwritten while its older content is being sent is sent again, although no look follows the last
/// one.
#[test]
fn file_overwritten_during_upload_is_sent_again() {
    let (server, mut world) = (Server::s3(), World::new("checkpoints-written-over", json!({})));
    let proxy = Proxy::before(&server);
    world.policy["store"] = world.place(&proxy, "written-over");
    let sent = world.room.path("sent");
    proxy.set(move |asked| {
        let is_first = asked.method == "PUT" && asked.target.contains("step-1/weights") && !sent.exists();
        if !is_first {
            return Fault::Pass;
        }
        fs::write(&sent, "").unwrap();
        Fault::Slow
    });
    let script = r#"
        save 1
        until [ -e "$ROOM/sent" ]; do sleep 0.05; done
        printf 'other weights' > "$CHECKPOINT_DIR/step-1/weights"
    "#;
    let done = world.run(1, &[], script);
    assert!(done.status.success(), "{done:?}");
    let stated = world.report().checkpoints.unwrap();
    assert_eq!(
        (stated.to_copy, stated.copied.map(|copied| copied.path)),
        (None, Some("step-1".to_owned())),
        "{done:?}"
    );
    let folder = server.object("written-over/step-1");
    let versions = fs::read_dir(folder.parent().unwrap()).unwrap().flatten();
    let copies: Vec<String> = versions.filter_map(|it| fs::read_to_string(it.path().join("weights")).ok()).collect();
    assert!(copies.iter().any(|copy| copy == "other weights"), "{copies:?}");
}

/// A running agent copies at once what would have waited for an hour. Without a running agent the command copies by
/// itself.
#[test]
fn backup_is_made_on_request() {
    let mut world = World::new("checkpoints-backup-now", json!({ "shared": true }));
    let backup = |world: &World, more: &[&str]| {
        let mut command = Command::new(binary("agent"));
        command.args(["checkpoints", "backup", "--policy"]).arg(world.room.path("policy"));
        command.arg("--root").arg(world.checkpoints()).args(more).current_dir(&world.room).output().unwrap()
    };
    world.run(1, &[], "true");
    let nowhere = backup(&world, &[]);
    let said = String::from_utf8_lossy(&nowhere.stderr).into_owned();
    assert!(!nowhere.status.success() && said.contains("create it with checkpoint.backup"), "{said}");

    let bucket = world.room.folder("bucket");
    world.room.folder("state");
    let uri = format!("file://{}", bucket.display());
    world.policy["backup"] = json!({ "place": { "uri": uri }, "intervalSeconds": 3600 });
    let script = r#"
        save 1
        until [ -e "$ROOM/second" ]; do sleep 0.1; done
        save 2
        until [ -e "$ROOM/third" ]; do sleep 0.1; done
        save 3
        until [ -e "$ROOM/enough" ]; do sleep 0.1; done
    "#;
    // The folder is relative because a socket's address has 107 bytes, and a checkout may be deep.
    let port = format!("--metrics-port={}", world.metrics);
    let mut agent = world.agent(1, &[&port, "--gang-state=state"], script);
    let mut agent = Running(agent.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    world.reported("the first copy", |stated| stated.copied.as_ref().and_then(|kept| kept.step) == Some(1));
    fs::write(world.room.path("second"), "").unwrap();
    world.reported("the second save", |stated| stated.to_copy.as_deref() == Some("step-2"));
    let done = backup(&world, &["--state=state"]);
    assert_eq!(stdout(&done), format!("the newest copy in {uri} is step-2\n"), "{done:?}");
    assert!(bucket.join("step-2/weights").is_file());
    // The command fails and names a place that accepts no copy.
    fs::rename(&bucket, world.room.path("away")).unwrap();
    fs::write(&bucket, "").unwrap();
    fs::write(world.room.path("third"), "").unwrap();
    world.reported("the third save", |stated| stated.to_copy.as_deref() == Some("step-3"));
    let failed = backup(&world, &["--state=state"]);
    assert!(!failed.status.success() && String::from_utf8_lossy(&failed.stderr).contains(&uri), "{failed:?}");
    fs::remove_file(&bucket).unwrap();
    fs::rename(world.room.path("away"), &bucket).unwrap();
    fs::write(world.room.path("enough"), "").unwrap();
    assert!(until("the agent's end", DEADLINE, || agent.0.try_wait().unwrap()).success());

    world.run(2, &[], "save 4");
    let done = backup(&world, &[]);
    assert_eq!(stdout(&done), format!("step-4 is copied to {uri}\n"), "{done:?}");
    assert!(bucket.join("step-4/weights").is_file());

    // An agent that still waits for its store has copied nothing, and the command fails.
    let away = json!({ "uri": "s3://bucket/x", "endpoint": "http://127.0.0.1:1", "region": "us-east-1" });
    (world.policy["store"], world.policy["patienceSeconds"]) = (away, json!(600));
    // With a volume that all workers share, the agent would choose a checkpoint there and exit.
    world.policy["shared"] = json!(false);
    let mut agent = world.agent(3, &["--gang-state=state"], "true");
    let _agent = Running(agent.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    // The agent's socket exists a moment before the agent answers.
    let failed = until("the agent's answer", DEADLINE, || {
        let answer = backup(&world, &["--state=state"]);
        let said = String::from_utf8_lossy(&answer.stderr).into_owned();
        said.contains("has not looked at the checkpoints yet").then_some(answer)
    });
    assert!(!failed.status.success(), "{failed:?}");
}

/// A newline, then escape sequences for reverse video and the window's title, then a carriage return.
const UGLY: &str = "ugly\n\u{1b}[7mFAKE\u{1b}[0m\u{1b}]0;owned\u{7}\r";

/// In a hostile folder, the training continues, and its own checkpoints are found, copied and rotated. The agent loads
/// nothing, reads and removes nothing outside, blocks on no FIFO and passes no raw name to a terminal. It names what it
/// could not look at.
#[test]
fn hostile_folder_does_not_disturb_training() {
    let mut world = World::new("checkpoints-hostile", json!({}));
    let (root, outside, bucket) = (world.checkpoints(), world.room.folder("outside"), world.room.folder("bucket"));
    let place = json!({ "uri": format!("file://{}", bucket.display()) });
    world.policy["backup"] = json!({ "place": place, "intervalSeconds": 1 });
    let script = r#"
        : > "$ROOM/runs"
        until [ -e "$ROOM/full" ]; do sleep 0.1; done
        n=10
        until [ -e "$ROOM/enough" ] || ! kill -0 $PPID; do
            if [ -e "$ROOM/pause" ]; then : > "$ROOM/paused"; else n=$((n + 1)); save $n; fi
            sleep 0.5
        done
        save 500; ln -s "$ROOM/outside/secret" "$CHECKPOINT_DIR/step-500/secret"
    "#;
    // More files than the agent looks at. They exist before it starts, because each look takes long while files are
    // being added.
    saved(&root.join("step-3"), "weights");
    for number in 0..=100_000 {
        File::create(root.join(format!("step-3/{number}"))).unwrap();
    }
    let mut agent = world.start(script);
    until("the program to run", DEADLINE, || world.room.path("runs").exists().then_some(()));
    fs::write(outside.join("secret"), "SECRET").unwrap();
    saved(&outside.join("step-90000"), "SECRET");
    fill(&root, &outside, &world.room.path("pwned"));
    let (before, hostile) = (names(&outside), names(&root));
    fs::write(world.room.path("full"), "").unwrap();

    // While the program runs, the agent names the damaged checkpoints and sees the program's newest ones.
    let stated = world.reported("what is damaged", |stated| has(stated, ProblemKind::Corrupted, "ugly"));
    stated.problems.iter().for_each(|problem| drop(plain(problem.message.as_bytes())));
    let step = |stated: &Checkpoints| stated.latest.as_ref().and_then(|kept| kept.step);
    world.reported("newer ones of its own", |now| step(now) > step(&stated));
    let listed = world.command(&["list"]);
    let listed = plain(&[listed.stdout, listed.stderr].concat());
    for words in [
        "ugly",
        "bomb.pt",
        "1 name is not UTF-8",
        "locked: not looked into: Permission denied",
        "more than 100000 entries",
    ] {
        assert!(listed.contains(words), "{words} is not in {listed}");
    }
    for words in ["step-9000", "passwd", "step-77"] {
        assert!(!listed.contains(words), "{words} is in {listed}");
    }
    let status = fs::read_to_string(format!("/proc/{}/status", agent.0.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse().ok());
    assert!(peak.is_some_and(|peak: u64| peak < 64 << 10), "{peak:?} kB of memory for what is in the folder");

    // The agent reports a folder that it can't read at all, and does not forget what is in it.
    fs::write(world.room.path("pause"), "").unwrap();
    until("the program to save nothing", DEADLINE, || world.room.path("paused").exists().then_some(()));
    fs::set_permissions(&root, Permissions::from_mode(0o000)).unwrap();
    let unreadable = |stated: &Checkpoints| has(stated, ProblemKind::Unreadable, "Permission denied");
    world.reported("that it is unreadable", unreadable);
    fs::set_permissions(&root, Permissions::from_mode(0o755)).unwrap();
    world
        .reported("that it is read again", |stated| !unreadable(stated) && has(stated, ProblemKind::Corrupted, "ugly"));

    fs::write(world.room.path("enough"), "").unwrap();
    assert!(until("the agent's end", DEADLINE, || agent.0.try_wait().unwrap()).success());
    let stated = world.report().checkpoints.unwrap();
    assert_eq!(step(&stated), Some(500));
    // What is left is the program's own checkpoints that the rules keep, and everything that is no checkpoint of a
    // series.
    let own =
        |name: &String| name.strip_prefix("step-").is_some_and(|n| n.parse().is_ok_and(|n: u64| n < 1000 && n != 3));
    let (own, others): (BTreeSet<_>, BTreeSet<_>) = names(&root).into_iter().partition(own);
    let why = || plain(&world.command(&["prune", "--dry-run"]).stdout);
    // A checkpoint that changed too shortly before the end to be read counts for none of the three.
    assert!((3..=4).contains(&own.len()) && own.contains("step-500"), "{own:?}: {}", why());
    let series = ["step-1", "step-2"].map(str::to_owned);
    assert_eq!(others, hostile.into_iter().filter(|name| !series.contains(name)).collect::<BTreeSet<_>>());
    assert_eq!(names(&outside), before);
    assert!(!world.room.path("pwned").exists(), "something was loaded");
    assert!(bucket.join("step-500/weights").exists(), "what would go with the pod is copied first");
    assert!(all_bytes(&bucket).windows(6).all(|six| six != b"SECRET"), "what lies outside was copied");
    plain(&fs::read(world.room.path("words")).unwrap());
}

/// Fills a folder of checkpoints with content that is meant to do harm.
fn fill(root: &Path, outside: &Path, pwned: &Path) {
    // Links out of the root: to folders, to a checkpoint, and within checkpoints.
    symlink("/etc", root.join("etc")).unwrap();
    symlink("/", root.join("all")).unwrap();
    symlink(outside.join("step-90000"), root.join("step-90001")).unwrap();
    symlink(outside.join("secret"), root.join("step-90002.pt")).unwrap();
    saved(&root.join("step-1"), "weights");
    symlink(outside.join("secret"), root.join("step-1/secret")).unwrap();
    symlink(outside, root.join("step-1/more")).unwrap();
    // Opening one of these FIFOs blocks for ever.
    mkfifo(&root.join("step-90003.pt"), Mode::S_IRWXU).unwrap();
    saved(&root.join("step-2"), "weights");
    mkfifo(&root.join("step-2/more"), Mode::S_IRWXU).unwrap();
    // Names that must never be printed as they are, and a name that is not UTF-8.
    saved(&root.join(UGLY), "weights");
    fs::write(root.join(format!("{UGLY}.pt")), [0_u8; 1000]).unwrap();
    fs::write(root.join(OsStr::from_bytes(b"\xff\xfe.pt")), "").unwrap();
    // A pickle that runs a command when Python loads it.
    fs::write(root.join("bomb.pt"), format!("cos\nsystem\n(S'touch {}'\ntR.", pwned.display())).unwrap();
    // A folder that may not be opened.
    saved(&root.join("locked/step-77"), "weights");
    fs::set_permissions(root.join("locked"), Permissions::from_mode(0o000)).unwrap();
}

fn saved(folder: &Path, weights: &str) {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("weights"), weights).unwrap();
    fs::write(folder.join(".complete"), "").unwrap();
}

/// The names in a folder, without the hidden ones.
fn names(folder: &Path) -> BTreeSet<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    names.filter(|name| !name.starts_with('.')).collect()
}

/// The bytes as text. Fails if a line has characters that a terminal would act on.
fn plain(bytes: &[u8]) -> String {
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    for line in text.lines() {
        assert!(!line.contains(char::is_control) && !line.starts_with("FAKE"), "{line:?} in {text}");
    }
    text
}

/// The path, below the folder, from which a program reports that it resumes.
fn resumes(world: &World, output: &Output) -> String {
    let stated = stdout(output).trim().to_owned();
    assert!(!stated.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    stated.strip_prefix(&world.path("")).unwrap_or(&stated).to_owned()
}

/// Flips a bit of a checkpoint without changing the file's length or modification time.
fn rot(world: &World, step: u64) {
    let weights = world.checkpoints().join(format!("step-{step}/weights"));
    let (mut bytes, time) = (fs::read(&weights).unwrap(), fs::metadata(&weights).unwrap().modified().unwrap());
    bytes[0] ^= 1;
    fs::write(&weights, bytes).unwrap();
    File::options().write(true).open(&weights).unwrap().set_modified(time).unwrap();
}

const TELL: &str = r#"echo "$RESUME_FROM_CHECKPOINT""#;

/// Finding 1: `resumeFrom` applies in any attempt until it was used. Afterwards the checkpoints that the job wrote
/// since count.
#[test]
fn resume_from_is_used_once_in_any_attempt() {
    let mut world = World::new("checkpoints-wish", json!({}));
    let base = world.room.folder("base");
    saved(&base.join("step-12000"), "weights");
    let wish = base.join("step-12000").display().to_string();
    world.policy["resumeFrom"] = json!(wish);
    // a. The first attempt ended before its agent chose a checkpoint. b. The attempt after it ended before its first
    // save.
    for attempt in [2, 3] {
        assert_eq!(resumes(&world, &world.run(attempt, &[], TELL)), wish, "attempt {attempt}");
    }
    // d. After a preemption by a queue, the attempt's number stays the same.
    world.run(1, &[], "save 12500");
    assert_eq!(resumes(&world, &world.run(1, &[], TELL)), "step-12500");
    let why = stdout(&world.command(&["why"]));
    assert!(why.ends_with("step-12500: taken: the newest\n"), "{why}");
    // Damage to step-12500 does not justify losing what was trained since `resumeFrom`.
    rot(&world, 12500);
    world.run(4, &[], TELL);
    assert_eq!(world.report().error.unwrap().kind, LaunchErrorKind::NoUsableCheckpoint);
}

/// Finding 1c: a job never resumes from a checkpoint of an earlier job that is newer than its `resumeFrom`.
#[test]
fn resume_from_rollback_is_not_undone() {
    let mut world = World::new("checkpoints-rollback", json!({ "retention": 9 }));
    world.run(1, &[], "for n in 5 6 7 8 9; do save $n; done");
    world.policy["uid"] = json!("uid-2");
    world.policy["resumeFrom"] = json!(world.path("step-7"));
    assert_eq!(resumes(&world, &world.run(1, &[], &format!("{TELL}; sleep 1; save 8"))), "step-7");
    assert_eq!(resumes(&world, &world.run(2, &[], TELL)), "step-8", "written anew, and not the diverged step-9");
    // The same holds when the `resumeFrom` of the same job changes.
    world.policy["resumeFrom"] = json!(world.path("step-5"));
    assert_eq!(resumes(&world, &world.run(3, &[], &format!("{TELL}; save 6"))), "step-5");
    assert_eq!(resumes(&world, &world.run(4, &[], TELL)), "step-6");
}

/// A restart from a named checkpoint is a request of its own. It is used once, and another request may name the same
/// checkpoint.
#[test]
fn requested_checkpoint_is_used_once_per_request() {
    let mut world = World::new("checkpoints-request", json!({ "retention": 9 }));
    world.run(1, &[], "for n in 5 6 7; do save $n; done");
    for request in ["one", "two"] {
        (world.policy["request"], world.policy["resumeFrom"]) = (json!(request), json!(world.path("step-5")));
        assert_eq!(resumes(&world, &world.run(2, &[], TELL)), "step-5", "{request}");
        assert_eq!(world.report().checkpoints.unwrap().request.as_deref(), Some(request));
        assert_eq!(resumes(&world, &world.run(3, &[], &format!("{TELL}; save 6"))), "step-5", "nothing was saved");
        assert_eq!(resumes(&world, &world.run(4, &[], TELL)), "step-6", "and not the step-7 of before");
    }
}

/// The bucket has what the job wrote before the request. New pods learn of the request only from the operator.
#[test]
fn requested_checkpoint_is_used_once_with_a_bucket() {
    let mut world = World::new("checkpoints-request-bucket", json!({ "retention": 9 }));
    let bucket = world.room.folder("bucket");
    world.policy["store"] = json!({ "uri": format!("file://{}", bucket.display()) });
    let base = world.room.folder("base");
    saved(&base.join("step-5"), "weights");
    let wish = base.join("step-5").display().to_string();
    let root = world.checkpoints();
    let new_pod = || {
        fs::remove_dir_all(&root).unwrap();
        fs::create_dir_all(&root).unwrap();
    };
    world.run(1, &[], "save 6; save 7");
    new_pod();
    (world.policy["request"], world.policy["resumeFrom"]) = (json!("one"), json!(wish));
    assert_eq!(resumes(&world, &world.run(2, &[], TELL)), wish);
    let used = world.report().checkpoints.unwrap().wish_used.unwrap();
    let [setup, key] = world.gang(1, 0, free_port());
    let past = format!("--gang-past={}", json!({ "wishUsed": used, "request": "one" }));
    let run = |attempt, script: &str| {
        let mut agent = world.agent(attempt, &[&setup, &key, &past], script);
        agent.env("NODE_RANK", "0").env("MASTER_ADDR", "127.0.0.1").output().unwrap()
    };
    new_pod();
    assert_eq!(resumes(&world, &run(3, &format!("{TELL}; sleep 1; save 6"))), wish, "nothing was saved");
    new_pod();
    assert_eq!(resumes(&world, &run(4, TELL)), "step-6", "and not the step-7 of before");
}

/// With a bucket, new pods know only what the store and the operator report.
#[test]
fn resume_from_is_used_once_with_a_bucket() {
    let mut world = World::new("checkpoints-wish-bucket", json!({}));
    let bucket = world.room.folder("bucket");
    let base = world.room.folder("base");
    saved(&base.join("step-12000"), "weights");
    let wish = base.join("step-12000").display().to_string();
    world.policy["resumeFrom"] = json!(wish);
    world.policy["store"] = json!({ "uri": format!("file://{}", bucket.display()) });
    let new_pod = || {
        fs::remove_dir_all(world.checkpoints()).unwrap();
        fs::create_dir_all(world.checkpoints()).unwrap();
    };
    assert_eq!(resumes(&world, &world.run(1, &[], TELL)), wish);
    assert!(world.report().checkpoints.unwrap().wish_used.is_some());
    new_pod();
    assert_eq!(resumes(&world, &world.run(2, &[], &format!("{TELL}; save 12100"))), wish, "nothing was saved");
    for attempt in [1, 3] {
        new_pod();
        assert_eq!(resumes(&world, &world.run(attempt, &[], TELL)), "step-12100");
    }
}

/// Finding 2: the agent does not treat a folder that can't be read as an empty one.
#[test]
fn unreadable_folder_is_not_treated_as_empty() {
    let world = World::new("checkpoints-unread", json!({ "patienceSeconds": 1 }));
    world.run(1, &[], "save 1; save 2");
    let locked = |path: &str, mode: u32| {
        fs::set_permissions(world.checkpoints().join(path), Permissions::from_mode(mode)).unwrap();
    };
    for path in ["", "step-2", "step-2/weights"] {
        locked(path, 0o000);
        let refused = world.run(2, &[], TELL);
        locked(path, 0o755);
        assert_eq!((refused.status.code(), stdout(&refused).as_str()), (Some(126), ""), "{path}");
        let error = world.report().error.unwrap();
        assert_eq!(error.kind, LaunchErrorKind::StorageUnavailable, "{path}: {}", error.message);
    }
    locked("step-1", 0o000);
    assert_eq!(resumes(&world, &world.run(3, &[], TELL)), "step-2", "an older one is not needed");
    locked("step-1", 0o755);
    fs::remove_dir_all(world.checkpoints()).unwrap();
    fs::write(world.checkpoints(), "a file").unwrap();
    world.run(4, &[], TELL);
    assert_eq!(world.report().error.unwrap().kind, LaunchErrorKind::StorageUnavailable);
}

/// Finding 13: neither an unreachable store nor an unreadable file of `resumeFrom` is a bad checkpoint.
#[test]
fn unreachable_store_is_not_a_bad_checkpoint() {
    let mut world = World::new("checkpoints-away", json!({ "patienceSeconds": 1 }));
    let away = json!({ "uri": "s3://bucket/x", "endpoint": "http://127.0.0.1:1", "region": "us-east-1" });
    let refused = |world: &World, attempt| {
        let refused = world.run(attempt, &[], TELL);
        assert_eq!((refused.status.code(), stdout(&refused).as_str()), (Some(126), ""));
        world.report().error.unwrap().kind
    };
    world.policy["store"] = away.clone();
    assert_eq!(refused(&world, 1), LaunchErrorKind::StorageUnavailable);
    world.policy.as_object_mut().unwrap().remove("store");
    world.policy["backup"] = json!({ "place": away, "intervalSeconds": 60 });
    assert_eq!(refused(&world, 1), LaunchErrorKind::StorageUnavailable);
    world.policy["shared"] = json!(true);
    saved(&world.checkpoints().join("step-1"), "weights");
    assert_eq!(resumes(&world, &world.run(1, &[], TELL)), "step-1", "a backup has nothing newer than the volume");
    world.policy["resumeFrom"] = json!(world.path("step-1"));
    fs::set_permissions(world.checkpoints().join("step-1/weights"), Permissions::from_mode(0o000)).unwrap();
    assert_eq!(refused(&world, 1), LaunchErrorKind::StorageUnavailable);
}

/// Finding 11: a listing whose every page arrives, but which never ends.
#[test]
fn endless_store_listing_fails_the_start() {
    let mut world = World::new("checkpoints-endless", json!({ "patienceSeconds": 1 }));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, keys) = (listener.local_addr().unwrap().port(), world.room.folder("keys"));
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || drop(one_more_page(stream)));
        }
    });
    fs::write(keys.join("AWS_ACCESS_KEY_ID"), KEY).unwrap();
    fs::write(keys.join("AWS_SECRET_ACCESS_KEY"), SECRET).unwrap();
    let endpoint = format!("http://127.0.0.1:{port}");
    world.policy["store"] =
        json!({ "uri": "s3://bucket/x", "endpoint": endpoint, "region": "us-east-1", "credentials": keys });
    let refused = ended(world.agent(1, &[], TELL).spawn().unwrap());
    assert_eq!((refused.status.code(), stdout(&refused).as_str()), (Some(126), ""));
    let error = world.report().error.unwrap();
    assert_eq!(error.kind, LaunchErrorKind::StorageUnavailable, "{}", error.message);
    assert!(error.message.contains("s3://bucket/x: it has answered for"), "{}", error.message);
}

/// Answers each request with the promise of another page, so slowly that a bound on the number of pages is far away.
fn one_more_page(mut stream: TcpStream) -> std::io::Result<()> {
    let token = "<IsTruncated>true</IsTruncated><NextContinuationToken>next</NextContinuationToken>";
    let page = format!("<ListBucketResult>{token}</ListBucketResult>");
    let page = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{page}", page.len());
    loop {
        read_head(&mut stream)?;
        thread::sleep(Duration::from_millis(100));
        stream.write_all(page.as_bytes())?;
    }
}

/// Reads a request up to its body.
fn read_head(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// Finding 9: a link may exist at the path to which the checkpoint of a URI is fetched.
#[test]
fn resume_from_is_not_fetched_through_a_link() {
    let mut world = World::new("checkpoints-wish-link", json!({ "patienceSeconds": 1 }));
    let (base, outside) = (world.room.folder("base"), world.room.folder("outside"));
    saved(&base.join("step-7"), "weights");
    saved(&outside.join(".trainingjob"), "theirs");
    let link = world.room.folder("checkpoints/resumed-from").join("uid-1");
    symlink(&outside, &link).unwrap();
    world.policy["resumeFrom"] = json!(format!("file://{}", base.join("step-7").display()));
    let refused = world.run(1, &[], TELL);
    let error = world.report().error.unwrap();
    assert_eq!((refused.status.code(), error.kind), (Some(126), LaunchErrorKind::StorageUnavailable));
    assert!(error.message.contains("link"), "{}", error.message);
    assert_eq!(names(&outside), BTreeSet::new());
    assert!(outside.join(".trainingjob/weights").exists(), "it was removed");
    fs::remove_file(&link).unwrap();
    assert_eq!(resumes(&world, &world.run(1, &[], TELL)), "resumed-from/uid-1/step-7");
}

/// The kinds of forged answers at the address of the first worker's agent.
const FORGED: [&str; 4] = ["plain", "badly signed", "endless", "elsewhere"];

/// A server that answers as no member of the gang could, in another way each time, and counts its answers.
struct Forger {
    port: u16,
    /// Number of answers of each kind.
    answered: Arc<Mutex<BTreeMap<&'static str, usize>>>,
    /// Bytes sent in the endless answers.
    endless: Arc<AtomicUsize>,
    /// Number of requests that followed the redirect.
    led_away: Arc<AtomicUsize>,
    /// Makes each later answer say that nothing more will come.
    is_done: Arc<AtomicBool>,
}

impl Forger {
    fn new(rounds: &Value) -> Self {
        let [listener, elsewhere] = [(), ()].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let forger = Self {
            port: listener.local_addr().unwrap().port(),
            answered: Arc::default(),
            endless: Arc::default(),
            led_away: Arc::default(),
            is_done: Arc::default(),
        };
        let led_away = Arc::clone(&forger.led_away);
        let away = format!("http://{}/rounds", elsewhere.local_addr().unwrap());
        thread::spawn(move || {
            for _ in elsewhere.incoming() {
                led_away.fetch_add(1, SeqCst);
            }
        });
        let (answered, endless, is_done) =
            (Arc::clone(&forger.answered), Arc::clone(&forger.endless), Arc::clone(&forger.is_done));
        let rounds = rounds.clone();
        thread::spawn(move || {
            for (mut stream, way) in listener.incoming().flatten().zip(FORGED.into_iter().cycle()) {
                let way = if is_done.load(SeqCst) { "done" } else { way };
                let mut rounds = rounds.clone();
                rounds["done"] = json!(way == "done");
                let _ = answer(&mut stream, way, &rounds.to_string(), &away, &endless);
                *answered.lock().unwrap().entry(way).or_default() += 1;
            }
        });
        forger
    }

    fn answered(&self, way: &str) -> usize {
        self.answered.lock().unwrap().get(way).copied().unwrap_or(0)
    }
}

fn answer(stream: &mut TcpStream, way: &str, json: &str, away: &str, endless: &AtomicUsize) -> std::io::Result<()> {
    read_head(stream)?;
    let mut ok = |body: &[u8]| {
        let head = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all(&[head.as_bytes(), body].concat())
    };
    match way {
        "plain" | "done" => ok(json.as_bytes()),
        "badly signed" => ok(&[&[7; 32], json.as_bytes()].concat()),
        "elsewhere" => stream.write_all(
            format!("HTTP/1.1 307 Elsewhere\r\nConnection: close\r\nLocation: {away}\r\nContent-Length: 0\r\n\r\n")
                .as_bytes(),
        ),
        _ => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")?;
            loop {
                stream.write_all(&b" ".repeat(0x10000))?;
                endless.fetch_add(0x10000, SeqCst);
            }
        }
    }
}

/// Finding 6: an agent believes the server at the first worker's address only if it has the gang's key.
#[test]
fn forged_rounds_are_rejected() {
    let store = Room::new("checkpoints-forged-store");
    let uri = format!("file://{}", store.0.display());
    let rounds: Vec<_> = (1..=4).map(|step| json!([format!("step-{step}"), format!("{uri} evil")])).collect();
    let forger = Forger::new(&json!({ "uid": "uid-1", "rounds": rounds }));
    // The first worker has no store, so that it does not wait for the files of others.
    let policy = json!({ "workers": 2, "retention": 1, "port": free_port() });
    let [first, mut second] = [0, 1].map(|n| World::new(&format!("checkpoints-forged-{n}"), policy.clone()));
    second.policy["store"] = json!({ "uri": uri });
    second.policy["port"] = json!(forger.port);
    let gang = free_port();
    let enough = first.room.path("enough");
    let stay = format!("until [ -e {} ] || ! kill -0 $PPID; do sleep 0.1; done", enough.display());
    let saves = format!("for n in 1 2 3 4; do save $n; done; {stay}");
    let leader = first.worker(1, 0, gang, &stay).spawn().unwrap();
    let follower = second.worker(1, 1, gang, &saves).spawn().unwrap();
    until("two answers of each kind", DEADLINE, || FORGED.iter().all(|way| forger.answered(way) >= 2).then_some(()));
    // The agent refuses a client that does not ask as a member does.
    let port = u16::try_from(first.policy["port"].as_u64().unwrap()).unwrap();
    let mut stranger = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stranger.write_all(b"GET /rounds HTTP/1.0\r\n\r\n").unwrap();
    let mut refusal = String::new();
    stranger.read_to_string(&mut refusal).unwrap();
    assert!(refusal.contains(" 400 ") && !refusal.contains("uid-1"), "{refusal}");
    forger.is_done.store(true, SeqCst);
    until("to be told that all is done", DEADLINE, || (forger.answered("done") >= 1).then_some(()));
    fs::write(&enough, "").unwrap();
    let words = String::from_utf8(ended(follower).stderr).unwrap();
    ended(leader);
    assert_eq!(words.matches("does not prove that it is worker 0").count(), 1, "{words}");
    assert!(forger.answered("done") >= 5, "it ended as it was told: {words}");
    assert_eq!(names(&store.0), BTreeSet::new());
    assert!(!store.path(".trainingjob/parts").exists(), "it has put its files there: {words}");
    assert_eq!(second.steps(), BTreeSet::from([1, 2, 3, 4]), "it has removed its files: {words}");
    assert_eq!(forger.led_away.load(SeqCst), 0, "it was led away");
    let (bytes, times) = (forger.endless.load(SeqCst), forger.answered("endless"));
    // Bytes in the sockets' buffers were sent but not read.
    assert!(bytes / times < 32 << 20, "{bytes} bytes in {times} answers");
}

/// For each start in this container: the bytes read of the checkpoint that it resumes from, and the size of that
/// checkpoint.
fn verified(words: &str) -> Vec<(u64, u64)> {
    let read = words.lines().filter_map(|line| line.split_once("; read ")?.1.split_once(" bytes to verify its "));
    read.map(|(read, all)| (read.parse().unwrap(), all.parse().unwrap())).collect()
}

/// Between the end of a program and the next start in the same container, a save is read at most once. It is not read
/// at all if this container has already read it.
#[test]
fn restart_reads_only_saves_not_yet_verified() {
    for (what, wait) in [
        ("unproven", "true"),
        (
            "proven while the program ran",
            r#"until grep -q '"depth":"Content"' "$CHECKPOINT_DIR/.trainingjob/ledger.json"; do sleep 0.1; done"#,
        ),
    ] {
        let world = World::new(&format!("checkpoints-proven-{}", what.len()), json!({}));
        let script = format!("[ $ATTEMPT -gt 1 ] || {{ BYTES=50000000; save 1; {wait}; }}; [ $ATTEMPT -eq 3 ]");
        let agent = world.member(1, 5, 1, 0, free_port(), &script).spawn().unwrap();
        let output = ended(agent);
        let words = String::from_utf8(output.stderr).unwrap();
        let read = verified(&words);
        assert_eq!(read.len(), 2, "{what}: {words}");
        let first = if what == "unproven" { 50_000_000 } else { 0 };
        assert_eq!(read, [(first, 50_000_000), (0, 50_000_000)], "{what}: {words}");
        let again = world.run(4, &[], "true");
        let words = String::from_utf8(again.stderr).unwrap();
        assert_eq!(verified(&words), [(50_000_000, 50_000_000)], "another container: {words}");
    }
}

#[test]
fn structure_only_verification_is_opt_in() {
    let mut world = World::new("checkpoints-structure", json!({ "structureOnly": true }));
    world.run(1, &[], "BYTES=50000; save 1; save 2; save 3 half");
    let resumes_from = |world: &World, attempt, step, bytes| {
        let output = world.run(attempt, &[], TELL);
        let words = String::from_utf8(output.stderr.clone()).unwrap();
        assert_eq!(stdout(&output).trim_end(), world.path(step), "{words}");
        assert_eq!(verified(&words).first(), Some(&bytes), "{words}");
    };
    resumes_from(&world, 2, "step-2", (0, 50_000));
    rot(&world, 2);
    resumes_from(&world, 3, "step-2", (0, 50_000));
    world.policy["structureOnly"] = json!(false);
    resumes_from(&world, 4, "step-1", (100_000, 50_000));
    world.policy["structureOnly"] = json!(true);
    // Damage that was found before stays known.
    resumes_from(&world, 5, "step-1", (0, 50_000));
}

/// Finding 5: a job whose own checkpoints are all unusable starts over only if its policy allows that.
#[test]
fn job_with_only_bad_checkpoints_starts_over_only_if_allowed() {
    let mut world = World::new("checkpoints-none", json!({}));
    world.run(1, &[], "save 1");
    rot(&world, 1);
    let refused = world.run(2, &[], TELL);
    let error = world.report().error.unwrap();
    assert_eq!((refused.status.code(), error.kind), (Some(126), LaunchErrorKind::NoUsableCheckpoint));
    assert!(
        error.message.contains("step-1: corrupted") && error.message.contains("checkpoint.ifNoneUsable"),
        "{}",
        error.message
    );
    world.policy["mayStartOver"] = json!(true);
    assert_eq!(stdout(&world.run(3, &[], TELL)), "\n");
}

/// Finding 5: a failure that is not the program's own, or that follows real work, does not count against a checkpoint.
#[test]
fn only_program_failures_make_a_checkpoint_suspect() {
    let world = World::new("checkpoints-own-failures", json!({}));
    world.run(1, &[], "save 1; save 2");
    let fails = [
        "kill -9 $$",
        "echo 'torch.distributed.DistBackendError: NCCL error: unhandled system error' >&2; exit 1",
        "save 3; sleep 2; rm -r \"$CHECKPOINT_DIR/step-3\"; exit 1",
    ];
    for (attempt, fail) in (2..).zip(fails.iter().flat_map(|fail| [fail, fail])) {
        assert_eq!(resumes(&world, &world.run(attempt, &[], &format!("{TELL}; {fail}"))), "step-2", "{fail}");
    }
    // Another job has another program.
    for attempt in 10..12 {
        assert_eq!(resumes(&world, &world.run(attempt, &[], &format!("{TELL}; exit 1"))), "step-2");
    }
    let mut world = world;
    world.policy["uid"] = json!("uid-2");
    assert_eq!(resumes(&world, &world.run(1, &[], TELL)), "step-2");
}

#[test]
fn job_with_only_suspect_checkpoints_does_not_start() {
    let world = World::new("checkpoints-all-suspect", json!({}));
    world.run(1, &[], "save 1; save 2; save 3");
    for (attempt, step) in (2..).zip([3, 3, 2, 2, 1, 1]) {
        assert_eq!(resumes(&world, &world.run(attempt, &[], &format!("{TELL}; exit 1"))), format!("step-{step}"));
    }
    world.run(8, &[], TELL);
    let error = world.report().error.unwrap();
    assert_eq!(error.kind, LaunchErrorKind::NoUsableCheckpoint);
    assert!(error.message.contains("step-3: it is suspect"), "{}", error.message);
}

/// Two jobs never write to one folder at once. The second job resumes from what the first one has left.
#[test]
fn second_job_is_refused_while_the_folder_is_in_use() {
    let first = World::new("checkpoints-turns", json!({}));
    // Has a report of its own: the first agent writes again at any time.
    let second = World::new("checkpoints-turns-second", json!({ "uid": "uid-0", "patienceSeconds": 1 }));
    let run_second = || second.agent(1, &[], TELL).env("CHECKPOINT_DIR", first.checkpoints()).output().unwrap();
    let script = r#"save 1; : > "$ROOM/saved"; until [ -e "$ROOM/enough" ] || ! kill -0 $PPID; do sleep 0.1; done"#;
    let mut running = first.start(script);
    until("the first save", DEADLINE, || first.room.path("saved").exists().then_some(()));
    run_second();
    let error = second.report().error.unwrap();
    assert_eq!(error.kind, LaunchErrorKind::FolderInUse);
    assert!(error.message.starts_with("job x writes to the same folder"), "{}", error.message);
    fs::write(first.room.path("enough"), "").unwrap();
    assert!(until("the agent's end", DEADLINE, || running.0.try_wait().unwrap()).success());
    assert_eq!(resumes(&first, &run_second()), "step-1");
}

/// The agent waits until the heartbeat of a job that was killed with its node is old. It then resumes from that job's
/// checkpoint.
#[test]
fn attempt_waits_for_predecessor_heartbeat_to_expire() {
    let mut world = World::new("checkpoints-predecessor", json!({ "patienceSeconds": 20 }));
    world.run(1, &[], "save 1");
    world.policy["uid"] = json!("uid-2");
    let beats = world.checkpoints().join(".trainingjob/jobs/uid-1.json");
    let beat = |age: i64| {
        let time = jiff::Timestamp::now() - jiff::SignedDuration::from_secs(age);
        fs::write(&beats, json!({ "name": "x", "time": time.to_string() }).to_string()).unwrap();
        File::options().write(true).open(&beats).unwrap().set_modified(time.into()).unwrap();
    };
    // The heartbeat becomes too old during the wait.
    beat(292);
    let waited = world.run(1, &[], TELL);
    assert_eq!(resumes(&world, &waited), "step-1");
    assert!(String::from_utf8_lossy(&waited.stderr).contains("the attempt waits: job x writes to the same folder"));
}
