//! docs/failures.md: each failure in its tables is provoked here, and the tables say what the status said.
//!
//! With UPDATE=1 the tables are written again.

use crate::report;
use crate::world::{DEMO_IMAGE, Job, SOON, training, world};
use api::State::{Completed, Failed, Running};
use api::TrainingJobStatus;
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use kube::ResourceExt;
use kube::api::{DeleteParams, EvictParams};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use regex::Regex;
use serde_json::{Value, json};
use std::fs;
use testkit::root;
use testkit::wait::eventually;

const PAGE: &str = "docs/failures.md";

/// How a failure is reported, and where.
#[derive(Clone, Copy)]
enum Detail {
    /// By a job that has failed for good, though another attempt was allowed.
    AtOnce,
    /// By a job that has failed for good after its last attempt.
    Failed,
    /// About the first attempt, by a job that may try again once, and completes then.
    Restarted,
    /// The same by a job that may not try again, about a disruption, which is not counted.
    Disrupted,
    /// By a job that waits, in this condition, in a message that contains this.
    Waiting(&'static str, &'static str),
}

/// A failure: what is done, the job's name, its cause, and how it is reported.
struct Case(&'static str, &'static str, Value, Detail);

fn cases(marker: &str) -> Vec<Case> {
    let python = |arguments: &[&str]| {
        let program = ["python3", "/programs/failures.py"].iter().chain(arguments).collect::<Vec<_>>();
        json!({ "command": program, "numWorkers": 1 })
    };
    let with = |mut fields: Value, more: Value| {
        fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        fields
    };
    let broken = ["sh", "-c", "echo 'import os sys' > /tmp/train.py; exec python3 /tmp/train.py"];
    let key =
        json!([{ "name": "TOKEN", "valueFrom": { "secretKeyRef": { "name": "nobodys-secret", "key": "token" } } }]);
    let fetch = json!({ "name": "fetch", "image": DEMO_IMAGE, "command": ["sh", "-c", "echo no such bucket > /dev/termination-log; exit 3"] });
    let init = json!({ "podTemplate": { "spec": { "initContainers": [fetch] } } });
    let volumes = json!([{ "name": "programs", "configMap": { "name": "nobodys-map" } }]);
    let selector = json!({ "nodeSelector": { "gpu": "h200" }, "tolerations": [{ "operator": "Exists" }] });
    let stays = |fields| {
        with(
            json!({ "command": ["python3", "/programs/leaves.py"], "numWorkers": 1, "env": [{ "name": "WAIT_ON", "value": "1" }] }),
            fields,
        )
    };
    vec![
        Case(
            "rank 1 of 2 raises an exception, in a script that knows nothing of the operator; rank 0 loses its peer",
            "raises",
            json!({ "command": ["torchrun", "/programs/fails.py"], "env": [{ "name": "FAIL_ON", "value": "1" }] }),
            Detail::Restarted,
        ),
        Case(
            "a worker eats memory past its limit",
            "memory",
            json!({ "command": ["python3", "/programs/memory.py"], "numWorkers": 1, "resources": { "limits": { "memory": "64Mi" } } }),
            Detail::Failed,
        ),
        Case(
            "every process of a worker, the agent included, gets SIGKILL, as from the kernel's OOM killer; no record names the sender",
            "killed",
            python(&["wait", marker]),
            Detail::Failed,
        ),
        Case(
            "a GPU has too little memory in worker 1, which then can't end; worker 0 waits for it, times out and ends first",
            "cuda",
            with(python(&["cuda_out_of_memory"]), json!({ "numWorkers": 2 })),
            Detail::Failed,
        ),
        Case("NCCL fails", "nccl-error", python(&["nccl_error"]), Detail::Failed),
        Case(
            "a collective of NCCL times out, and its watchdog aborts the program",
            "nccl-timeout",
            python(&["nccl_timeout"]),
            Detail::Failed,
        ),
        Case(
            "the loss turns NaN, with `nanPolicy: Fail`",
            "nan",
            with(python(&["nan"]), json!({ "failurePolicy": { "nanPolicy": "Fail" } })),
            Detail::Failed,
        ),
        Case("a crash in native code", "crash", python(&["crash"]), Detail::Failed),
        Case(
            "the same in one of two ranks that torchrun runs",
            "rank-crash",
            json!({ "command": ["torchrun", "/programs/failures.py", "crash"], "numWorkers": 1, "procsPerWorker": 2 }),
            Detail::Failed,
        ),
        Case(
            "an exception that is caught and logged, and then a crash in native code",
            "caught",
            python(&["caught"]),
            Detail::Failed,
        ),
        Case(
            "a GPU has too little memory in a worker of PyTorch's DataLoader",
            "loader",
            python(&["loader_out_of_memory"]),
            Detail::Failed,
        ),
        Case(
            "an exception, in a program with a hook for them of its own (as of Rich or Typer)",
            "own-hook",
            python(&["own_hook"]),
            Detail::Failed,
        ),
        Case("an init container fails", "init", with(python(&["wait"]), init), Detail::Failed),
        Case("an exit code of the program's own", "exit-code", python(&["exit_code"]), Detail::Failed),
        Case(
            "a typo in the command",
            "typo",
            json!({ "command": ["pyhton3", "/programs/failures.py"], "numWorkers": 1 }),
            Detail::AtOnce,
        ),
        Case("a typo in an argument", "argument", python(&["wait", "--learning-rte=0.1"]), Detail::AtOnce),
        Case("a typo in the script", "syntax", json!({ "command": broken, "numWorkers": 1 }), Detail::AtOnce),
        Case("a module that is not in the image", "module", python(&["missing_module"]), Detail::AtOnce),
        Case("a worker is evicted, as by a drain", "evicted", stays(json!({})), Detail::Disrupted),
        Case("another client deletes a worker's pod", "deleted", stays(json!({})), Detail::Restarted),
        Case("`failurePolicy.activeDeadlineSeconds` is over", "deadline", stays(json!({})), Detail::AtOnce),
        Case(
            "an image that is not there",
            "image",
            with(python(&["wait"]), json!({ "image": "localhost:1/nowhere:1" })),
            Detail::Waiting("Running", "Back-off"),
        ),
        Case(
            "a node with what is asked for does not exist",
            "node",
            with(python(&["wait"]), json!({ "scheduling": selector.clone() })),
            Detail::Waiting("Scheduled", "selector"),
        ),
        Case(
            "a node with what is asked for does not exist, and `startDeadlineSeconds` is over",
            "late",
            with(python(&["wait"]), json!({ "scheduling": selector })),
            Detail::AtOnce,
        ),
        Case(
            "a claim that does not exist",
            "claim",
            with(python(&["wait"]), json!({ "model": "pvc://nobodys-claim" })),
            Detail::Waiting("Scheduled", "nobodys-claim"),
        ),
        Case(
            "a volume that does not mount: its ConfigMap does not exist",
            "volume",
            with(python(&["wait"]), json!({ "volumes": volumes })),
            Detail::Waiting("Running", "nobodys-map"),
        ),
        Case(
            "a Secret that does not exist",
            "secret",
            with(python(&["wait"]), json!({ "env": key })),
            Detail::Waiting("Running", "nobodys-secret"),
        ),
        Case("a quota that is used up", "quota", python(&["wait"]), Detail::Waiting("Scheduled", "exceeded quota")),
    ]
}

#[tokio::test]
async fn failures_are_reported_as_documented() {
    let Some(world) = world() else { return };
    let space = world.space("failures", json!({})).await;
    let full = world.space("failures-quota", json!({})).await;
    full.create::<ResourceQuota>(json!({ "metadata": { "name": "quota" }, "spec": { "hard": { "pods": "0" } } })).await;

    let marker = format!("--marker={}", space.name);
    let mut jobs = Vec::new();
    for Case(what, name, fields, reported) in cases(&marker) {
        let space = if name == "quota" { &full } else { &space };
        jobs.push((what, space.submit(name, limited(fields, reported)).await, reported));
    }
    let evicted = evict(named(&jobs, "evicted")).await;
    delete(named(&jobs, "deleted")).await;
    pass_deadline(named(&jobs, "deadline")).await;
    pass_start_deadline(named(&jobs, "late")).await;
    end_all(&marker).await;
    let (mut failures, mut waits) = (Vec::new(), Vec::new());
    for (what, job, reported) in &jobs {
        match reported {
            Detail::AtOnce | Detail::Failed | Detail::Restarted | Detail::Disrupted => {
                failures.push(row(&failed(what, job, *reported).await));
            }
            Detail::Waiting(condition, words) => waits.push(row(&waiting(what, job, condition, words).await)),
        }
    }
    a_rank_has_raised(named(&jobs, "raises")).await;
    a_worker_was_evicted(named(&jobs, "evicted"), &evicted).await;
    a_deadline_was_passed(named(&jobs, "deadline")).await;
    compare(&[("failures", failures), ("waits", waits)]);
    tokio::join!(space.end(), full.end());
}

fn named<'j>(jobs: &'j [(&'static str, Job, Detail)], name: &str) -> &'j Job {
    &jobs.iter().find(|(_, job, _)| job.name == name).unwrap().1
}

/// All ranks started again in their pods, and the attempt counts.
async fn a_rank_has_raised(job: &Job) {
    let status = job.state(Completed).await;
    let [restart] = &status.restarts[..] else { panic!("{:?}", status.restarts) };
    assert_eq!((restart.worker, restart.disruption, restart.permanent), (Some(1), false, false));
    // torchrun ends a while after its rank. It may get SIGTERM before that, because the other rank has ended as well.
    assert!(matches!(restart.exit_code, Some(1 | 143)), "{restart:?}");
    assert_eq!((status.attempt, status.restart_count, status.disruption_count.unwrap_or(0)), (Some(2), Some(1), 0));
    job.says(1, 0, "rank 0 is done").await;
}

/// The program had its grace, and its attempt does not count.
async fn a_worker_was_evicted(job: &Job, pod: &str) {
    let status = job.state(Completed).await;
    let evicted = job.pods().into_iter().find(|seen| seen.name_any() == pod).unwrap();
    let ended = training(&evicted).unwrap().state.unwrap().terminated.unwrap();
    assert_eq!((ended.exit_code, report(&ended.message).exit_code), (143, Some(0)), "of the pod, of the program");
    let [restart] = &status.restarts[..] else { panic!("{:?}", status.restarts) };
    assert_eq!((restart.worker, restart.attempt, restart.disruption), (Some(0), 1, true));
    assert!(restart.to_string().contains(pod), "{}", restart.message);
    assert_eq!((status.attempt, status.restart_count, status.disruption_count), (Some(2), Some(1), Some(1)));
    job.went_through(&[Running, Completed], &[Failed]);
}

/// Its program was ended by SIGTERM, and its pods are gone.
async fn a_deadline_was_passed(job: &Job) {
    let is_stopped = |pod: &Pod| {
        let ended = training(pod).and_then(|container| container.state?.terminated);
        ended.is_some_and(|end| end.exit_code == 143 && report(&end.message).stopped_by == Some(15))
    };
    job.pod(1, 0, "to be ended by SIGTERM", is_stopped).await;
    let space = &job.space;
    eventually("the pods past their deadline to be gone", SOON, async || {
        let pods = space.pods().await;
        (!pods.iter().any(|pod| pod.labels().get("training-job") == Some(&job.name))).then_some(())
    })
    .await;
}

/// One attempt, unless the operator itself has to see that more are of no use.
fn limited(mut fields: Value, reported: Detail) -> Value {
    if !matches!(reported, Detail::AtOnce) {
        let policy = fields.as_object_mut().unwrap().entry("failurePolicy").or_insert(json!({}));
        policy["backoffLimit"] = json!(u8::from(matches!(reported, Detail::Restarted)));
    }
    fields
}

async fn failed(what: &str, job: &Job, reported: Detail) -> [String; 4] {
    let (reason, message, again) = match reported {
        Detail::Restarted | Detail::Disrupted => {
            let status = job.state(Completed).await;
            let restart = status.restarts[0].clone();
            (restart.reason.clone(), restart.to_string(), if restart.disruption { "yes, not counted" } else { "yes" })
        }
        _ => {
            let status = job.state(Failed).await;
            let TrainingJobStatus { failure_reason, failure_message, restart_count, .. } = status;
            assert_eq!(restart_count, Some(0), "{}", job.name);
            (
                failure_reason.unwrap(),
                failure_message.unwrap(),
                if matches!(reported, Detail::AtOnce) { "no" } else { "yes" },
            )
        }
    };
    [what.to_owned(), format!("`{reason}`"), again.to_owned(), code(&message)]
}

async fn waiting(what: &str, job: &Job, condition: &str, words: &str) -> [String; 4] {
    let is_reported = |status: &TrainingJobStatus| {
        status
            .conditions
            .iter()
            .find(|c| c.type_ == condition && c.status == "False" && c.message.contains(words))
            .cloned()
    };
    let status = job.until(words, |status| is_reported(status).is_some()).await;
    let reported = is_reported(&status).unwrap();
    assert!(!job.states().contains(&Running), "{}", job.name);
    let state = status.state.unwrap().as_str();
    [what.to_owned(), format!("`{state}`"), format!("`{condition}`: `{}`", reported.reason), code(&reported.message)]
}

// ---- what is done from outside

/// The pod of a job's one worker whose program waits to be ended.
async fn waiting_pod(job: &Job) -> String {
    job.says(1, 0, "attempt 1 on ").await;
    job.pod(1, 0, "to be there", |_| true).await.name_any()
}

async fn evict(job: &Job) -> String {
    let pod = waiting_pod(job).await;
    // The status follows a usual start within seconds, and the test reads its history.
    job.state(Running).await;
    job.space.api::<Pod>().evict(&pod, &EvictParams::default()).await.unwrap();
    pod
}

async fn delete(job: &Job) {
    let pod = waiting_pod(job).await;
    job.space.api::<Pod>().delete(&pod, &DeleteParams::default()).await.unwrap();
}

/// The deadline may change at any time.
async fn pass_deadline(job: &Job) {
    waiting_pod(job).await;
    job.patch(json!({ "failurePolicy": { "activeDeadlineSeconds": 1 } })).await;
}

/// The scheduler judges the pod first, however busy the machine is.
async fn pass_start_deadline(job: &Job) {
    waiting("a pod without a node", job, "Scheduled", "selector").await;
    job.patch(json!({ "failurePolicy": { "startDeadlineSeconds": 5 } })).await;
}

/// Ends the agent. All other processes go with the first process of a container.
async fn end_all(marker: &str) {
    let agent = eventually("an agent with its program", SOON, async || {
        let command =
            |pid: i32| fs::read(format!("/proc/{pid}/cmdline")).map(|text| String::from_utf8_lossy(&text).into_owned());
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let marked =
            pids.filter_map(|pid: i32| Some((pid, command(pid).ok()?))).filter(|(_, command)| command.contains(marker));
        let (agents, programs): (Vec<_>, Vec<_>) =
            marked.partition(|(_, command)| command.starts_with("/trainingjob/agent"));
        agents.first().filter(|_| !programs.is_empty()).map(|(pid, _)| *pid)
    })
    .await;
    kill(Pid::from_raw(agent), Signal::SIGKILL).unwrap();
}

// ---- the page

fn row(cells: &[String; 4]) -> String {
    format!("| {} |", cells.join(" | "))
}

/// `message` without what differs from run to run, as code in a cell of a table. The words of kubelet, scheduler and
/// containerd are kept, because devcluster pins their versions, except for a containerd of Debian's.
fn code(message: &str) -> String {
    let steady = [
        (r"(-training-\d+)-[a-z0-9]{5}\b", "$1-xxxxx"),
        (r", node [^)]+\)", ", node node0)"),
        (r" \(failurePolicy\.backoffLimit is 0\)$", ""),
        (r"ran within \d+ s", "ran within 5 s"),
        (r"ran for \d+ s", "ran for 1 s"),
        (r"0/\d+ nodes", "0/1 nodes"),
        (r"\d+ node\(s\)", "1 node(s)"),
        (r"\d+ Preemption", "1 Preemption"),
        (r"dial tcp \S+:1:", "dial tcp 127.0.0.1:1:"),
        // An older containerd does not try TLS at localhost.
        (r#"Head "http:"#, r#"Head "https:"#),
    ];
    let message = steady.iter().fold(message.to_owned(), |message, (differs, stays)| {
        Regex::new(differs).unwrap().replace_all(&message, *stays).into_owned()
    });
    format!("`{}`", message.replace('|', r"\|"))
}

fn compare(tables: &[(&str, Vec<String>)]) {
    let path = root(PAGE);
    let page = fs::read_to_string(&path).unwrap();
    let current = tables.iter().fold(page.clone(), |page, (mark, rows)| {
        let (begin, end) = (format!("<!-- {mark} -->\n"), format!("<!-- /{mark} -->"));
        let (before, rest) = page.split_once(&begin).unwrap_or_else(|| panic!("{PAGE} has no {begin}"));
        let (old, after) = rest.split_once(&end).unwrap_or_else(|| panic!("{PAGE} has no {end}"));
        let head: Vec<&str> = old.lines().take(2).collect();
        format!("{before}{begin}{}\n{}\n{end}{after}", head.join("\n"), rows.join("\n"))
    });
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, current).unwrap();
    } else if page != current {
        let differing: Vec<&str> = current.lines().filter(|line| !page.contains(line)).collect();
        panic!("the status says otherwise than {PAGE} (UPDATE=1 writes it anew):\n{}", differing.join("\n"));
    }
}
