//! The environment of a program in its pod, and the end of a program that ignores SIGTERM, in the pods that the
//! operator builds.

use super::pods::Pods;
use nix::sys::signal::Signal;
use protocol::report::Phase;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};
use testkit::wait::{SOON, until};

/// Writes its environment, and exits once all others have written theirs, because the end of one may be the end of all.
const TELLS: &str = r"
me=$(hostname)
env -0 > .$me && mv .$me env-$me
until [ $(ls | grep -c ^env-) = $MEMBERS ]; do sleep 0.1; done
";

/// The environment of each member's program, by the pod's host name.
type Environments = BTreeMap<String, BTreeMap<String, String>>;

/// Runs a job of this framework in which this many members run the program. None where gangs can't be run.
fn environments(framework: &str, members: usize, more: Value) -> Option<(Pods, Environments)> {
    let mut fields = json!({
        "framework": framework, "numWorkers": 2, "command": ["sh", "-c", TELLS],
        "env": [{ "name": "MEMBERS", "value": members.to_string() }],
    });
    fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let pods = Pods::new(&format!("env-{framework}-{members}"), None, &fields)?;
    pods.all_exit(pods.start(), 0);
    let files = fs::read_dir(&pods.room.0).unwrap().map(|entry| entry.unwrap());
    let of_file = |file: fs::DirEntry| {
        let host = file.file_name().to_str()?.strip_prefix("env-")?.to_owned();
        let text = String::from_utf8(fs::read(file.path()).unwrap()).unwrap();
        let variables = text.split_terminator('\0').filter_map(|line| line.split_once('='));
        Some((host, variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()))
    };
    let found: Environments = files.filter_map(of_file).collect();
    assert_eq!(found.len(), members, "{:?}", found.keys());
    Some((pods, found))
}

/// Each member has these variables. `{rank}` is the member's index, `{port}` the port where they meet.
fn assert_all(pods: &Pods, found: &Environments, expected: &[(&str, &str)]) {
    for (host, variables) in found {
        let rank = host.rsplit('-').next().unwrap();
        for (name, value) in expected {
            let value = value.replace("{rank}", rank).replace("{port}", &pods.master.to_string());
            assert_eq!(variables.get(*name), Some(&value), "{name} of {host}");
        }
    }
}

const FIRST: &str = "x-training-0.x-headless";

#[test]
fn common_environment_is_set() {
    let fields = json!({ "hyperparameters": { "learningRate": 0.1 } });
    let Some((pods, found)) = environments("none", 2, fields) else { return };
    assert_all(
        &pods,
        &found,
        &[
            ("TRAINING_JOB_NAME", "x"),
            ("POD_NAMESPACE", "ml"),
            ("NODE_NAME", "node-1"),
            ("NODE_RANK", "{rank}"),
            ("RANK", "{rank}"),
            ("WORLD_SIZE", "2"),
            ("NNODES", "2"),
            ("NUM_WORKERS", "2"),
            ("NPROC_PER_NODE", "1"),
            ("MASTER_ADDR", FIRST),
            ("MASTER_PORT", "{port}"),
            ("ATTEMPT", "1"),
            ("RESUME_FROM_CHECKPOINT", ""),
            ("MODEL", "m"),
            ("DATASET", "d"),
            ("HYPERPARAM_LEARNING_RATE", "0.1"),
            ("PYTHONUNBUFFERED", "1"),
        ],
    );
    for (host, variables) in &found {
        assert_eq!(variables["POD_NAME"], format!("{host}-abcde"));
        assert!(variables["POD_UID"].starts_with("pod-") && !variables.contains_key("TRAININGJOB_ROLE"));
    }
}

/// These members have none of the variables that make a process one of a group, because no program of theirs reads
/// them.
fn assert_no_group(found: &Environments) {
    for (host, variables) in found {
        for name in ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "PET_MASTER_PORT"] {
            assert_eq!(variables.get(name), None, "{name} of {host}");
        }
    }
}

#[test]
fn lone_worker_environment_has_no_group() {
    let fields = json!({ "numWorkers": 1 });
    let Some((pods, found)) = environments("none", 1, fields) else { return };
    assert_no_group(&found);
    assert_all(&pods, &found, &[("NODE_RANK", "0"), ("NNODES", "1"), ("ATTEMPT", "1"), ("MODEL", "m")]);
}

#[test]
fn torchrun_environment_is_set() {
    let Some((pods, found)) = environments("pytorch", 2, json!({ "procsPerWorker": 2 })) else { return };
    let expected = [
        ("PET_NNODES", "2"),
        ("PET_NPROC_PER_NODE", "2"),
        ("PET_NODE_RANK", "{rank}"),
        ("PET_MASTER_ADDR", FIRST),
        ("PET_MASTER_PORT", "{port}"),
        ("PET_RDZV_BACKEND", "static"),
        ("PET_MAX_RESTARTS", "0"),
        ("WORLD_SIZE", "4"),
    ];
    assert_all(&pods, &found, &expected);
}

#[test]
fn jax_environment_is_set() {
    let Some((pods, found)) = environments("jax", 2, json!({})) else { return };
    assert_no_group(&found);
    let coordinator = format!("{FIRST}:{{port}}");
    let expected =
        [("JAX_COORDINATOR_ADDRESS", &*coordinator), ("JAX_NUM_PROCESSES", "2"), ("JAX_PROCESS_ID", "{rank}")];
    assert_all(&pods, &found, &expected);
}

/// An evaluator knows only itself, and the others do not know it.
#[test]
fn tensorflow_environment_is_set() {
    let roles = json!([{ "name": "chief" }, { "name": "ps", "replicas": 2 }, { "name": "evaluator" }]);
    let Some((pods, found)) = environments("tensorflow", 6, json!({ "roles": roles })) else { return };
    assert_no_group(&found);
    let at = |host: &str| format!("{host}.x-headless:{}", pods.master);
    let cluster = json!({
        "chief": [at("x-chief-0")], "ps": [at("x-ps-0"), at("x-ps-1")],
        "worker": [at("x-training-0"), at("x-training-1")],
    });
    for (host, variables) in &found {
        let (role, index) = host.strip_prefix("x-").unwrap().rsplit_once('-').unwrap();
        let role = if role == "training" { "worker" } else { role };
        let cluster = if role == "evaluator" { json!({ "evaluator": [at(host)] }) } else { cluster.clone() };
        let config: Value = serde_json::from_str(&variables["TF_CONFIG"]).unwrap();
        let task = json!({ "type": role, "index": index.parse::<u32>().unwrap() });
        assert_eq!(config, json!({ "cluster": cluster, "task": task }), "{host}");
        assert_eq!(variables["TRAININGJOB_ROLE"], role);
    }
}

/// The master's address is numeric. The agent determines it.
#[test]
fn paddle_environment_is_set() {
    let Some((pods, found)) = environments("paddle", 2, json!({ "procsPerWorker": 2 })) else { return };
    assert_no_group(&found);
    let expected = [
        ("PADDLE_MASTER", "127.0.0.1:{port}"),
        ("PADDLE_NNODES", "2"),
        ("PADDLE_NPROC_PER_NODE", "2"),
        ("PADDLE_RANK", "{rank}"),
        ("PADDLE_JOB_ID", "x"),
    ];
    assert_all(&pods, &found, &expected);
    assert_eq!(found["x-training-1"]["POD_IP"], "127.0.0.2");
}

/// The scheduler where they meet needs no entry in `roles`.
#[test]
fn mxnet_environment_is_set() {
    let roles = json!([{ "name": "server", "replicas": 2 }]);
    let Some((pods, found)) = environments("mxnet", 5, json!({ "roles": roles })) else { return };
    assert_no_group(&found);
    let expected = [
        ("DMLC_PS_ROOT_URI", "x-scheduler-0.x-headless"),
        ("DMLC_PS_ROOT_PORT", "{port}"),
        ("DMLC_NUM_SERVER", "2"),
        ("DMLC_NUM_WORKER", "2"),
        ("DMLC_USE_KUBERNETES", "1"),
    ];
    assert_all(&pods, &found, &expected);
    let roles: BTreeSet<_> =
        found.iter().map(|(host, variables)| (&host[..host.len() - 2], &*variables["DMLC_ROLE"])).collect();
    assert_eq!(roles, BTreeSet::from([("x-scheduler", "scheduler"), ("x-server", "server"), ("x-training", "worker")]));
}

#[test]
fn xgboost_environment_is_set() {
    let Some((pods, found)) = environments("xgboost", 2, json!({})) else { return };
    let expected = [
        ("DMLC_TRACKER_URI", FIRST),
        ("DMLC_TRACKER_PORT", "{port}"),
        ("DMLC_TASK_ID", "{rank}"),
        ("DMLC_NUM_WORKER", "2"),
    ];
    assert_all(&pods, &found, &expected);
    assert_eq!(found["x-training-0"]["POD_IP"], "127.0.0.1");
}

/// Only the launcher runs the program. It finds what it needs to start the others.
#[test]
fn mpirun_environment_is_set() {
    let fields = json!({ "procsPerWorker": 2, "roles": [{ "name": "launcher" }] });
    let Some((pods, found)) = environments("mpi", 1, fields) else { return };
    let variables = &found["x-launcher-0"];
    assert_eq!((variables["WORLD_SIZE"].as_str(), variables["NNODES"].as_str()), ("4", "2"));
    assert!(!variables.contains_key("RANK"), "mpirun gives each process its own");
    let rsh = &variables["HYDRA_LAUNCHER_EXEC"];
    for same in ["OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent", "I_MPI_HYDRA_BOOTSTRAP_EXEC"] {
        assert_eq!(&variables[same], rsh, "{same}");
    }
    let read = |name: &str| fs::read_to_string(&variables[name]).unwrap();
    let hosts = |port: &str| format!("x-training-0.x-headless{port}2\nx-training-1.x-headless{port}2\n");
    assert_eq!(read("HYDRA_HOST_FILE"), hosts(":"));
    assert_eq!(read("PRTE_MCA_prte_default_hostfile"), hosts(" slots="));
    assert!(fs::metadata(rsh).is_ok() && pods.setup()["mpi"]["slots"] == 2);
}

/// A program that ignores SIGTERM is killed in time. If the kubelet did it, the agent would go too, and the cause would
/// be lost. A hook that sleeps before SIGTERM leaves less time.
#[test]
fn stubborn_program_is_killed_before_the_kubelet_kills_the_agent() {
    // Each rank has a session of its own, as with torchrun.
    let script = r#"
        trap "" TERM
        for rank in 0 1; do setsid sh -c 'trap "" TERM; : > $0; while :; do sleep 1; done' rank-$rank & done
        while :; do sleep 1; done
    "#;
    let hook = json!({ "preStop": { "sleep": { "seconds": 2 } } });
    let pod = json!({ "terminationGracePeriodSeconds": 18, "containers": [{ "name": "training", "lifecycle": hook }] });
    let fields = json!({
        "framework": "none", "numWorkers": 1, "command": ["sh", "-c", script], "podTemplate": { "spec": pod },
    });
    let Some(pods) = Pods::new("deaf", None, &fields) else { return };
    let seat = &pods.seats[0];
    let sleep = seat.container.lifecycle.as_ref().unwrap().pre_stop.as_ref().unwrap().sleep.as_ref().unwrap().seconds;
    assert_eq!((sleep, seat.grace), (2, 18));
    let mut agents = pods.start();
    for rank in ["rank-0", "rank-1"] {
        until(rank, SOON, || pods.room.path(rank).exists().then_some(()));
    }
    // The kubelet started to count with the hook.
    agents[0].signal(Signal::SIGTERM);
    let (reported, left) = (Instant::now(), Duration::from_secs((seat.grace - sleep).cast_unsigned()));
    let ended = until("the agent's end", left, || agents[0].unshared.try_wait().unwrap());
    // The program gets three quarters of the time that the hook has left.
    assert!(reported.elapsed() >= left * 3 / 4, "{:?} of {left:?}", reported.elapsed());
    let report = pods.report(0);
    assert_eq!(
        (ended.code(), report.phase, report.stopped_by, report.signal),
        (Some(143), Phase::Exited, Some(15), Some(9))
    );
}
