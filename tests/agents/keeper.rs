//! How an agent takes care of checkpoints: its binary, run for real, over folders in which shell scripts write them.

use harness::binary;
use harness::room::Room;
use harness::wait::until;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use trainingjob_operator::protocol::checkpoints::ProblemKind;
use trainingjob_operator::protocol::report::{LaunchErrorKind, Report};

const DEADLINE: Duration = Duration::from_secs(120);

/// Writes checkpoint N: a folder with some bytes, and the mark that it is whole at last; or the mark alone.
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
}

impl World {
    fn new(test: &str, policy: Value) -> Self {
        let room = Room::new(test);
        fs::create_dir_all(room.path("checkpoints")).unwrap();
        let mut all = json!({ "uid": "uid-1", "job": "x", "workers": 1, "retention": 3, "lookSeconds": 1 });
        all.as_object_mut().unwrap().extend(policy.as_object().unwrap().clone());
        Self { room, policy: all }
    }

    fn checkpoints(&self) -> PathBuf {
        self.room.path("checkpoints")
    }

    fn agent(&self, attempt: u32, more: &[&str], script: &str) -> Command {
        fs::write(self.room.path("policy"), self.policy.to_string()).unwrap();
        let mut command = Command::new("/usr/bin/env");
        command.args(["--default-signal", binary("agent"), "run", "--grace-seconds", "1", "--termination-log"]);
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

    /// One of two workers that form a gang, whose agents meet at `port`.
    fn worker(&self, attempt: u32, index: usize, port: u16, script: &str) -> Command {
        let setup = json!({
            "uid": "uid-1", "workers": 2, "leader": "127.0.0.1", "port": port, "masterPort": 29500,
            "restarts": "OnFailure", "backoffLimit": 1,
        });
        let (setup_file, key) = (self.room.path("gang.json"), self.room.path("key"));
        // As a node does: at once, and never half, for another worker of this gang may be reading.
        for (file, content) in [(&setup_file, setup.to_string()), (&key, "0123456789abcdef0123456789abcdef".to_owned())]
        {
            let new = file.with_extension("new");
            fs::write(&new, content).unwrap();
            fs::rename(&new, file).unwrap();
        }
        let gang = [format!("--gang={}", setup_file.display()), format!("--gang-key={}", key.display())];
        let mut agent = self.agent(attempt, &[&gang[0], &gang[1]], script);
        agent.env("NODE_RANK", index.to_string()).env("MASTER_ADDR", "127.0.0.1");
        agent
    }

    fn run(&self, attempt: u32, more: &[&str], script: &str) -> Output {
        self.agent(attempt, more, script).output().unwrap()
    }

    fn report(&self) -> Report {
        Report::parse(&fs::read_to_string(self.room.path("message")).unwrap()).unwrap()
    }

    /// The checkpoints that are there, by step.
    fn steps(&self) -> BTreeSet<u64> {
        let entries = fs::read_dir(self.checkpoints()).unwrap().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.strip_prefix("step-")?.parse().ok()).collect()
    }

    fn command(&self, args: &[&str]) -> Output {
        fs::write(self.room.path("policy"), self.policy.to_string()).unwrap();
        let mut command = Command::new(binary("agent"));
        command.arg("checkpoints").arg(args[0]).arg("--policy").arg(self.room.path("policy"));
        command.arg("--root").arg(self.checkpoints()).args(&args[1..]).stdin(Stdio::null()).output().unwrap()
    }
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn a_run_goes_on_from_the_newest_that_is_whole() {
    let world = World::new("keeper-newest", json!({}));
    let tell = r#"echo "from=$RESUME_FROM_CHECKPOINT step=$RESUME_FROM_STEP args=$*""#;
    let more = ["--resume-arg=--load", "--resume-arg=$(RESUME_FROM_CHECKPOINT)"];
    let first = world.run(1, &more, &format!("{tell}; save 1; save 2; save 3 half"));
    assert_eq!(stdout(&first), "from= step= args=\n", "from nothing");
    let told = world.report().checkpoints.unwrap();
    assert_eq!((told.complete, told.incomplete, told.latest.unwrap().path.as_str()), (2, 1, "step-2"));
    let path = world.checkpoints().join("step-2").display().to_string();
    let second = world.run(2, &more, tell);
    assert_eq!(stdout(&second), format!("from={path} step=2 args=--load {path}\n"));
    assert_eq!(world.report().checkpoints.unwrap().resumed_from.unwrap().path, "step-2");

    // A bit that nobody has written is seen before it is gone on from.
    world.run(
        3,
        &[],
        "save 4; until grep -q step-4 .gone 2>/dev/null; do [ -e checkpoints/.trainingjob ] && break; done; sleep 7",
    );
    let weights = world.checkpoints().join("step-4/weights");
    let (mut bytes, times) = (fs::read(&weights).unwrap(), fs::metadata(&weights).unwrap().modified().unwrap());
    bytes[100] ^= 1;
    fs::write(&weights, bytes).unwrap();
    fs::File::options().write(true).open(&weights).unwrap().set_modified(times).unwrap();
    let fourth = world.run(4, &[], tell);
    assert!(stdout(&fourth).starts_with(&format!("from={path} ")), "{}", stdout(&fourth));
    let words = String::from_utf8(fourth.stderr).unwrap();
    assert!(words.contains("does not go on from step-4: corrupted: weights"), "{words}");
    assert_eq!(world.report().checkpoints.unwrap().problems[0].kind, ProblemKind::Corrupted);
}

#[test]
fn what_was_asked_for_is_taken_first_and_has_to_be_good() {
    let world = World::new("keeper-asked", json!({}));
    world.run(1, &[], "save 1; save 2; save 3 half");
    let from = |name: &str| world.checkpoints().join(name).display().to_string();
    let tell = r#"echo "$RESUME_FROM_CHECKPOINT""#;
    let asked = World { policy: json!({ "uid": "uid-1", "resumeFrom": from("step-1"), "retention": 3 }), ..world };
    assert_eq!(stdout(&asked.run(1, &[], tell)).trim(), from_of(&asked, "step-1"));
    assert_eq!(stdout(&asked.run(2, &[], tell)).trim(), from_of(&asked, "step-2"), "only the first attempt");
    for (name, why) in [("step-3", "incomplete"), ("step-9", "no such file or folder")] {
        let bad = json!({ "uid": "uid-1", "resumeFrom": from_of(&asked, name), "retention": 3 });
        let bad = World { policy: bad, room: Room(asked.room.0.clone()) };
        let refused = bad.run(1, &[], tell);
        let error = bad.report().error.unwrap();
        assert_eq!((refused.status.code(), stdout(&refused).as_str()), (Some(126), ""));
        assert_eq!(error.kind, LaunchErrorKind::CheckpointUnusable);
        assert!(error.message.contains(why), "{}", error.message);
        std::mem::forget(bad); // the room is the other one's
    }
}

fn from_of(world: &World, name: &str) -> String {
    world.checkpoints().join(name).display().to_string()
}

#[test]
fn the_newest_are_kept_and_the_best_and_what_others_wrote() {
    let world = World::new("keeper-retention", json!({}));
    fs::create_dir_all(world.checkpoints().join("step-0")).unwrap();
    fs::write(world.checkpoints().join("step-0/.complete"), "").unwrap();
    fs::write(world.checkpoints().join("step-0/weights"), "of another job").unwrap();
    world.run(1, &[], "for n in $(seq 1 20); do save $n; done");
    // What was there before is nobody's to delete; the last three are the job's.
    assert_eq!(world.steps(), BTreeSet::from([0, 18, 19, 20]));
    let told = world.report().checkpoints.unwrap();
    assert_eq!((told.deleted, told.complete), (17, 4), "what is there now");
    // More are kept as soon as the policy says so.
    let more = json!({ "uid": "uid-1", "job": "x", "workers": 1, "retention": 5 });
    let world = World { policy: more, ..world };
    world.run(2, &[], "for n in $(seq 21 30); do save $n; done");
    assert_eq!(world.steps(), BTreeSet::from([0, 20, 26, 27, 28, 29, 30]), "20 was gone on from");
}

/// Whatever is killed, and whenever: the next run goes on from a whole checkpoint, and never from further back than the
/// newest whole one.
#[test]
fn fifty_kills_lose_nothing() {
    let world = World::new("keeper-kills", json!({}));
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
        // The whole container at once, as the kernel does it that is out of memory: the program first, which no agent is left to see.
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", agent.id())).unwrap();
        kill(Pid::from_raw(agent.id().cast_signed()), Signal::SIGSTOP).unwrap();
        for child in children.split_whitespace() {
            let _ = kill(Pid::from_raw(-child.parse::<i32>().unwrap()), Signal::SIGKILL);
        }
        kill(Pid::from_raw(agent.id().cast_signed()), Signal::SIGKILL).unwrap();
        agent.wait().unwrap();
        saved = number("saved").unwrap();
    }
    assert!(world.steps().len() < 1000, "rotation kept up: {}", world.steps().len());
}

#[test]
fn a_checkpoint_with_which_runs_fail_is_set_aside() {
    let world = World::new("keeper-suspect", json!({}));
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
fn copies_are_made_and_come_back() {
    let world = World::new("keeper-copies", json!({}));
    let bucket = world.room.path("bucket");
    fs::create_dir_all(&bucket).unwrap();
    let place = json!({ "uri": format!("file://{}", bucket.display()) });
    let policy = json!({ "uid": "uid-1", "job": "x", "workers": 1, "retention": 2, "lookSeconds": 1, "store": place });
    let world = World { policy, ..world };
    world.run(1, &[], "for n in 1 2 3; do save $n; done");
    let told = world.report().checkpoints.unwrap();
    assert_eq!((told.copied.unwrap().path.as_str(), told.to_copy), ("step-3", None));
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

/// Where each worker has a folder of its own, a checkpoint is whole when the files of all are in the store; one of which a worker
/// has none is never there.
#[test]
fn shards_of_all_workers_make_one_copy() {
    shards_come_back("keeper-shards", &|store, _| json!({ "store": store }), &[true, false]);
}

/// Where the backup is all that outlives the pods, it gets the last one too, and however long it is until the next copy.
#[test]
fn shards_of_all_workers_make_one_backup() {
    let policy = |_: &Value, backup: &Value| json!({ "backup": { "place": backup, "intervalSeconds": 3600 } });
    shards_come_back("keeper-shards-backup", &policy, &[false, true]);
}

#[test]
fn shards_of_all_workers_make_a_copy_and_a_backup() {
    let policy = |store: &Value, backup: &Value| json!({ "store": store, "backup": { "place": backup, "intervalSeconds": 3600 } });
    shards_come_back("keeper-shards-both", &policy, &[true, true]);
}

/// What two workers wrote by halves lies in these places, and new ones go on from it.
fn shards_come_back(test: &str, places: &dyn Fn(&Value, &Value) -> Value, lies_in: &[bool; 2]) {
    let stores = ["store", "backup"].map(|name| Room::new(&format!("{test}-{name}")));
    let [store, backup] = stores.each_ref().map(|room| json!({ "uri": format!("file://{}", room.0.display()) }));
    let mut policy = places(&store, &backup);
    (policy["workers"], policy["port"]) = (json!(2), json!(harness::free_port()));
    let workers = [0, 1].map(|index| World::new(&format!("{test}-{index}"), policy.clone()));
    let fixture = harness::root("tests/fixtures/checkpoints/dcp/ranks/step_9");
    let shard = |step: u64, names: &str| {
        let folder = format!("$CHECKPOINT_DIR/step_{step}");
        format!("mkdir -p {folder}; cd {fixture}; cp {names} {folder}; cd \"$ROOM\"; ")
    };
    let own = [shard(9, "__0_0.distcp __2_0.distcp .metadata"), shard(9, "__1_0.distcp")];
    let lacks = shard(10, "__0_0.distcp __2_0.distcp .metadata");
    let gang = harness::free_port();
    let run = |attempt: u32, worker: usize, script: &str| {
        workers[worker].worker(attempt, worker, gang, script).spawn().unwrap()
    };
    let both = |attempt: u32, scripts: [&str; 2]| {
        let agents = [run(attempt, 0, scripts[0]), run(attempt, 1, scripts[1])];
        agents.map(|agent| agent.wait_with_output().unwrap())
    };
    both(1, [&format!("{}{lacks}", own[0]), &own[1]]);
    let told = workers[0].report().checkpoints.unwrap();
    assert_eq!(told.copied.map(|copied| copied.path).as_deref(), Some("step_9"));
    for (room, lies) in stores.iter().zip(lies_in) {
        let is_there = |step| room.path(&format!(".trainingjob/step_{step}.json")).exists();
        assert_eq!((is_there(9), is_there(10)), (*lies, false), "{}", room.0.display());
    }

    // New pods have empty folders.
    for world in &workers {
        fs::remove_dir_all(world.checkpoints()).unwrap();
        fs::create_dir_all(world.checkpoints()).unwrap();
    }
    let tell = r#"echo "$RESUME_FROM_STEP"; ls -A "$RESUME_FROM_CHECKPOINT""#;
    for output in both(2, [tell, tell]) {
        let files = "9\n.metadata\n__0_0.distcp\n__1_0.distcp\n__2_0.distcp\n";
        assert_eq!(stdout(&output), files, "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// A worker that is lost while its files are waited for leaves its part undone; the next attempt saves and copies all the same.
#[test]
fn another_attempt_does_not_wait_for_the_files_of_the_one_before() {
    let store = Room::new("keeper-rounds-store");
    let mut policy = json!({ "store": { "uri": format!("file://{}", store.0.display()) } });
    (policy["workers"], policy["port"]) = (json!(2), json!(harness::free_port()));
    let [first, mut lost, other] = [0, 1, 2].map(|n| World::new(&format!("keeper-rounds-{n}"), policy.clone()));
    // It looks but once before it goes.
    lost.policy["lookSeconds"] = json!(600);
    let fixture = harness::root("tests/fixtures/checkpoints/dcp/ranks/step_9");
    let shard = |step: &str, names: &str| {
        let folder = format!("$CHECKPOINT_DIR/step_{step}");
        format!("mkdir -p {folder}; (cd {fixture}; cp {names} {folder})")
    };
    let stay = "while kill -0 $PPID; do sleep 0.1; done 2> /dev/null";
    let names = "__0_0.distcp __2_0.distcp .metadata";
    let [before, after] = [shard("9", names), shard("10", names)];
    let begins = format!(r#"if [ "$ATTEMPT" = 1 ]; then {before}; {stay}; fi; {after}"#);
    let gang = harness::free_port();
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
    let told = first.report();
    let copied = told.checkpoints.as_ref().and_then(|told| told.copied.clone()).map(|copied| copied.path);
    assert_eq!((told.exit_code, copied.as_deref()), (Some(0), Some("step_10")), "{told:?}");
}

#[test]
fn people_are_told_what_there_is_and_why() {
    let world = World::new("keeper-commands", json!({}));
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

/// The others wait for the first worker's agent, which chooses for all; also where the image has no certificates.
#[test]
fn all_workers_go_on_from_the_same() {
    let port = harness::free_port();
    let policy = json!({ "uid": "uid-1", "job": "x", "workers": 2, "retention": 3, "shared": true, "port": port });
    let world = World::new("keeper-gang", policy);
    let tell = r#"echo "$RESUME_FROM_CHECKPOINT""#;
    let gang = harness::free_port();
    let worker = |attempt: u32, index: usize, script: &str| {
        let mut agent = world.worker(attempt, index, gang, script);
        agent.env("SSL_CERT_FILE", "/nowhere").env("SSL_CERT_DIR", "/nowhere");
        agent
    };
    for (attempt, expected) in [(1, String::new()), (2, from_of(&world, "step-1"))] {
        let second = worker(attempt, 1, tell).spawn().unwrap();
        let first = worker(attempt, 0, &format!("{tell}; save {attempt}")).spawn().unwrap();
        let second = second.wait_with_output().unwrap();
        let first = first.wait_with_output().unwrap();
        assert_eq!(stdout(&second).trim(), expected, "{}", String::from_utf8_lossy(&second.stderr));
        assert_eq!(stdout(&first).trim(), expected, "{}", String::from_utf8_lossy(&first.stderr));
    }
}

/// Also where it saves faster than anybody looks.
#[test]
fn rotation_keeps_up_with_a_program_that_saves_all_the_time() {
    let world = World::new("keeper-fast", json!({ "shared": true }));
    let script = r#"
        n=0
        until [ -e "$ROOM/enough" ]; do n=$((n + 1)); save $n; sleep 0.2; done
    "#;
    let mut agent = world.agent(1, &[], script);
    let mut agent = agent.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("the first one to go", DEADLINE, || (!world.steps().contains(&1) && world.steps().len() > 3).then_some(()));
    fs::write(world.room.path("enough"), "").unwrap();
    assert!(agent.wait().unwrap().success());
    assert_eq!(world.steps().len(), 3, "once all is done what is kept is what was asked for");
}
