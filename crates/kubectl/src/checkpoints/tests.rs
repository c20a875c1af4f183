//! Where the agent runs, the Job that is created for it, and the messages meanwhile.

use super::command_job::{self, waits_for};
use super::worker::exit_code;
use super::*;
use crate::cluster::Cluster;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

fn parsed<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// The plan of a job with these fields of `checkpoint`.
fn plan_of(name: &str, checkpoint: &Value) -> Plan {
    let spec = json!({
        "model": "m", "dataset": "d", "numWorkers": 2, "gpusPerWorker": 8, "checkpoint": checkpoint,
        "scheduling": { "queue": "q", "nodeSelector": { "zone": "a" } }, "serviceAccountName": "trainer",
    });
    plan_of_spec(name, spec)
}

fn plan_of_spec(name: &str, spec: Value) -> Plan {
    let mut job = TrainingJob::new(name, parsed(spec));
    job.metadata.namespace = Some("team".to_owned());
    job.metadata.uid = Some("u-1".to_owned());
    let runtime = OperatorInfo { agent_image: "registry.example/operator:1".to_owned(), ..OperatorInfo::default() };
    plan::resolve(&job, &runtime).accepted().unwrap().clone()
}

fn claim() -> Value {
    json!({ "storage": { "type": "pvc" }, "backup": { "destination": "s3://copies/x" } })
}

fn restore() -> Verb {
    Verb::Restore { to: "/checkpoints/again".into(), checkpoint: Some("step-$5".into()) }
}

#[test]
fn verb_becomes_agent_arguments() {
    let policy = ["--policy", "/etc/training-config/checkpoints.json"];
    let args = |verb: &Verb, json: bool| {
        let args = verb.args(json);
        assert_eq!((args[0].as_str(), &args[2..4]), ("checkpoints", &policy.map(str::to_owned)[..]));
        [&args[1..2], &args[4..]].concat().join(" ")
    };
    assert_eq!(args(&Verb::List, false), "list");
    assert_eq!(args(&Verb::List, true), "list --json");
    assert_eq!(args(&Verb::Verify, false), "verify");
    assert_eq!(args(&Verb::Why, false), "why");
    assert_eq!(args(&Verb::Backup, false), "backup");
    assert_eq!(args(&Verb::Prune { dry_run: false }, false), "prune");
    assert_eq!(args(&Verb::Prune { dry_run: true }, true), "prune --json --dry-run");
    assert_eq!(args(&restore(), false), "restore --to=/checkpoints/again step-$5");
}

#[test]
fn agent_job_has_expected_manifest() {
    let job = objects::command_job(&plan_of("x", &claim()), errand_name("x", "bcdfg"), &restore().args(false)).unwrap();
    insta::assert_json_snapshot!(job);
    assert_eq!(objects::command_job(&plan_of("x", &json!({ "enabled": false })), "n".into(), &[]), None);
}

/// Another user could not read the program's files. In some namespaces pods must not have more rights than the program.
#[test]
fn agent_job_uses_security_context_of_program() {
    let contexts = |template: Value| {
        let spec = json!({ "model": "m", "dataset": "d", "numWorkers": 1, "podTemplate": { "spec": template },
            "checkpoint": { "storage": { "type": "pvc" } } });
        let pod = objects::command_job(&plan_of_spec("x", spec), "n".into(), &[])
            .unwrap()
            .spec
            .unwrap()
            .template
            .spec
            .unwrap();
        (json!(pod.security_context), json!(pod.containers[0].security_context))
    };
    let locked = json!({
        "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "seccompProfile": { "type": "RuntimeDefault" },
        "capabilities": { "add": ["DAC_OVERRIDE", "FOWNER"], "drop": ["ALL"] },
    });
    assert_eq!(contexts(json!({ "containers": [] })), (json!({ "runAsUser": 0 }), locked));
    let restricted = json!({
        "securityContext": { "runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": { "type": "RuntimeDefault" } },
        "containers": [{ "name": "training", "securityContext": {
            "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } } }],
    });
    let (of_pod, of_container) = contexts(restricted.clone());
    assert_eq!(of_pod, restricted["securityContext"]);
    assert_eq!(of_container["capabilities"], json!({ "drop": ["ALL"] }));
    let user =
        json!({ "containers": [{ "name": "training", "securityContext": { "runAsUser": 7, "privileged": true } }] });
    let (of_pod, of_container) = contexts(user);
    assert_eq!(of_pod, Value::Null, "the container says it");
    assert_eq!((&of_container["runAsUser"], &of_container["privileged"]), (&json!(7), &Value::Null));
}

#[test]
fn agent_job_name_fits_length_limit() {
    assert_eq!(errand_name("bert", "bcdfg"), "bert-checkpoints-bcdfg");
    let long = errand_name(&format!("{}-{}", "a".repeat(44), "b".repeat(7)), "bcdfg");
    assert_eq!(long, format!("{}-checkpoints-bcdfg", "a".repeat(44)));
    assert!(errand_name(&"a".repeat(52), "bcdfg").len() <= 63);
}

// ---- where

fn worker(args: &[&str]) -> Pod {
    parsed(json!({ "metadata": { "name": "x-training-0-abcde" }, "spec": { "containers": [
        { "name": "proxy", "args": ["--checkpoints=of-its-own"] }, { "name": "training", "args": args } ] } }))
}

fn chosen(checkpoint: &Value, first: Option<&Pod>, state: State, verb: &Verb) -> Result<Executor, String> {
    let plan = plan_of("x", checkpoint);
    place(&plan, plan.storage.checkpoint.as_ref().unwrap(), first, Some(state), verb)
}

#[test]
fn first_worker_is_used_if_its_agent_supports_it() {
    let pod = worker(&["run", "--checkpoints=/etc/training-config/checkpoints.json", "--", "train"]);
    let there = Ok(Executor::Worker("x-training-0-abcde".into()));
    assert_eq!(chosen(&json!({}), Some(&pod), State::Running, &Verb::List), there);
    assert_eq!(chosen(&claim(), Some(&pod), State::Running, &restore()), there);
    // Its agent is from an older operator.
    let old = worker(&["run", "--attempt=1", "--", "train"]);
    assert_eq!(chosen(&claim(), Some(&old), State::Running, &Verb::List), Ok(Executor::OwnJob));
    let why = chosen(&json!({}), Some(&old), State::Running, &Verb::List).unwrap_err();
    assert!(why.starts_with("pod x-training-0-abcde has the agent of an older operator"), "{why}");
}

#[test]
fn own_job_runs_when_storage_outlives_pods() {
    let nfs = json!({ "storage": { "type": "nfs", "nfsServer": "s", "nfsPath": "/p" } });
    for checkpoint in [claim(), nfs] {
        for verb in [Verb::List, Verb::Prune { dry_run: false }, restore()] {
            assert_eq!(chosen(&checkpoint, None, State::Failed, &verb), Ok(Executor::OwnJob));
        }
    }
    let bucket = json!({ "storage": { "type": "s3", "s3Bucket": "b" } });
    let backup = json!({ "backup": { "destination": "s3://copies/x" } });
    for checkpoint in [bucket, backup] {
        assert_eq!(chosen(&checkpoint, None, State::Completed, &Verb::Verify), Ok(Executor::OwnJob));
        let why = chosen(&checkpoint, None, State::Completed, &restore()).unwrap_err();
        assert!(why.contains("an emptyDir, which would end with") && why.contains("checkpoint.resumeFrom"), "{why}");
    }
}

/// The image comes from the status. No field that others may write replaces it.
#[test]
fn agent_job_requires_image_from_status() {
    for checkpoint in [claim(), json!({ "backup": { "destination": "s3://copies/x" } })] {
        let mut plan = plan_of("x", &checkpoint);
        plan.runtime.agent_image.clear();
        let checkpoint = plan.storage.checkpoint.as_ref().unwrap();
        let why = place(&plan, checkpoint, None, Some(State::Completed), &Verb::List).unwrap_err();
        assert!(why.contains("agentImage") && why.contains("upgrade the operator"), "{why}");
    }
}

#[test]
fn command_without_executor_is_refused_with_reason() {
    let why = chosen(&json!({}), None, State::Completed, &Verb::List).unwrap_err();
    assert!(why.starts_with("x is Completed, and its checkpoints are gone with its pods"), "{why}");
    assert!(why.contains("checkpoint.storage"), "{why}");
    let why = chosen(&json!({}), None, State::Pending, &Verb::List).unwrap_err();
    assert!(why.ends_with("kubectl trainingjob why x -n team"), "{why}");
}

#[test]
fn first_worker_skips_ended_and_stopping_pods() {
    use observe::Container;
    let pod = |name: &str, index: u32, incarnation: u32| ObservedPod {
        name: name.into(),
        index,
        incarnation,
        training: Container::Running { since: None },
        ..ObservedPod::default()
    };
    let ended = ObservedPod { ended: Some(true), ..pod("ended", 0, 3) };
    let waits = ObservedPod { training: Container::Waiting, ..pod("waits", 0, 3) };
    let stopping = ObservedPod { deletion: Some(jiff::Timestamp::UNIX_EPOCH), ..pod("stopping", 0, 3) };
    let pods = [pod("other", 1, 2), pod("old", 0, 1), pod("now", 0, 2), ended, waits, stopping];
    assert_eq!(first_worker(&pods).as_deref(), Some("now"));
    assert_eq!(first_worker(&pods[3..]), None);
}

#[test]
fn checkpoint_policy_is_read_or_refused_with_reason() {
    let config = |data: Value| -> ConfigMap {
        parsed(json!({ "metadata": { "name": "x-config", "labels": { "ml.example.com/training-job-uid": "u" } },
            "data": data }))
    };
    let read = |config: Option<&ConfigMap>| read_policy("x", "team", Some("u"), config);
    let good = config(json!({ "checkpoints.json": r#"{"workers":2,"shared":true,"later":1}"# }));
    let policy = read(Some(&good)).unwrap();
    assert_eq!((policy.workers, policy.shared), (2, true));
    let of_another = read_policy("x", "team", Some("later"), Some(&good)).unwrap_err();
    for why in [read(None).unwrap_err(), of_another] {
        assert!(why.starts_with("ConfigMap x-config is missing") && why.contains("why x -n team"), "{why}");
    }
    let why = read(Some(&config(json!({ "model": "m" })))).unwrap_err();
    assert!(why.contains("Upgrade the operator"), "{why}");
    let why = read(Some(&config(json!({ "checkpoints.json": r#"{"workers":"two"}"# })))).unwrap_err();
    assert!(why.contains("of this plugin") && why.ends_with("upgrade it"), "{why}");
}

// ---- how it ends

#[test]
fn exec_status_gives_exit_code() {
    let code = |status: Value| exit_code(&parsed::<Status>(status));
    assert_eq!(code(json!({ "status": "Success" })), Ok(0));
    let failed = |message: &str| {
        json!({ "status": "Failure", "reason": "NonZeroExitCode", "message": "command terminated",
            "details": { "causes": [{ "reason": "ExitCode", "message": message }] } })
    };
    assert_eq!(code(failed("1")), Ok(1));
    assert_eq!(code(failed("137")), Ok(137));
    assert_eq!(code(failed("70000")), Ok(1));
    let gone = json!({ "status": "Failure", "reason": "InternalError", "message": "container not found" });
    assert_eq!(code(gone), Err("container not found".into()));
}

// ---- what a Job waits for

#[expect(clippy::needless_pass_by_value, reason = "takes what its callers need no more")]
fn a_job(spec: Value) -> Job {
    parsed(json!({ "metadata": { "name": "j", "labels": { "kueue.x-k8s.io/queue-name": "q" } }, "spec": spec }))
}

#[expect(clippy::needless_pass_by_value, reason = "takes what its callers need no more")]
fn a_pod(status: Value) -> Pod {
    parsed(json!({ "metadata": { "name": "j-1", "namespace": "team", "uid": "p" },
        "spec": { "nodeName": "n", "containers": [] }, "status": status }))
}

fn an_event(type_: &str, reason: &str, message: &str, second: u32) -> Event {
    parsed(json!({ "metadata": {}, "involvedObject": {}, "type": type_, "reason": reason, "message": message,
        "lastTimestamp": format!("2026-01-01T00:00:{second:02}Z") }))
}

#[test]
fn wait_reason_covers_quota_node_image_and_volume() {
    let plain = a_job(json!({ "template": {} }));
    let waits = |pod: Option<Value>, events: &[Event]| waits_for(&plain, pod.map(a_pod).as_ref(), events);
    let queued = a_job(json!({ "suspend": true, "template": {} }));
    assert_eq!(waits_for(&queued, None, &[]), "for quota in the queue q: kubectl get workloads");
    assert_eq!(waits(None, &[]), "for its pod to be made");
    let refused = [an_event("Warning", "FailedCreate", "exceeded quota: gpus", 1)];
    assert_eq!(waits(None, &refused), "for its pod to be made: FailedCreate: exceeded quota: gpus");
    let unplaced = json!({ "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "0/4 nodes are available" }] });
    assert_eq!(waits(Some(unplaced), &[]), "for a node: Unschedulable: 0/4 nodes are available");
    let container = |reason: &str, message: &str| {
        json!({ "containerStatuses": [{ "name": "upkeep", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "waiting": { "reason": reason, "message": message } } }] })
    };
    let pull = Some(container("ImagePullBackOff", "Back-off pulling image \"i\""));
    assert_eq!(waits(pull, &[]), "for its container: ImagePullBackOff: Back-off pulling image \"i\"");
    let creating = || Some(container("ContainerCreating", ""));
    assert_eq!(waits(creating(), &[]), "for its volume and its image");
    let pulling = [an_event("Normal", "Pulling", "Pulling image \"i\"", 1)];
    assert_eq!(waits(creating(), &pulling), "for its image, which is being pulled");
    let volume = [
        an_event("Warning", "FailedScheduling", "0/4 nodes are available", 1),
        an_event("Warning", "FailedAttachVolume", "Multi-Attach error for volume \"v\"", 9),
    ];
    let reported = "for its volume: FailedAttachVolume: Multi-Attach error for volume \"v\"";
    assert_eq!(waits(creating(), &volume), reported);
}

// ---- the life of a Job

/// The requests to the API server, and the pod as it was listed the n-th time.
struct Output {
    asked: Mutex<Vec<String>>,
    pods: Vec<Value>,
    log: Option<&'static str>,
}

#[expect(clippy::unused_async, reason = "called as others are")]
async fn answer(
    request: http::Request<kube::client::Body>,
    reported: Arc<Output>,
) -> Result<http::Response<kube::client::Body>, std::convert::Infallible> {
    let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
    let line = format!("{method} {path}");
    let before = {
        let mut asked = reported.asked.lock().unwrap();
        asked.push(line.clone());
        asked.iter().filter(|other| **other == line).count() - 1
    };
    let job = json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": "j", "namespace": "team", "uid": "u" } });
    let mut code = 200;
    let body = if path.ends_with("/log") {
        match reported.log {
            Some(log) => log.to_owned(),
            None => {
                code = 403;
                json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no", "code": 403, "reason": "Forbidden" })
                    .to_string()
            }
        }
    } else if path.ends_with("/pods") {
        let items: Vec<Value> =
            reported.pods.get(before.min(reported.pods.len().wrapping_sub(1))).cloned().into_iter().collect();
        json!({ "metadata": {}, "items": items }).to_string()
    } else if path.ends_with("/events") {
        json!({ "metadata": {}, "items": [] }).to_string()
    } else {
        job.to_string()
    };
    let response = http::Response::builder().status(code).body(kube::client::Body::from(body.into_bytes()));
    Ok(response.unwrap())
}

#[expect(clippy::needless_pass_by_value, reason = "takes what its callers need no more")]
fn with_agent(state: Value) -> Value {
    let status = json!({ "containerStatuses": [{ "name": "upkeep", "image": "", "imageID": "", "ready": true,
        "restartCount": 0, "state": state }] });
    serde_json::to_value(a_pod(status)).unwrap()
}

/// Runs the Job. Returns its result, its output, the remarks, and the requests.
async fn errand(
    pods: Vec<Value>,
    log: Option<&'static str>,
    patience: Duration,
) -> (anyhow::Result<u8>, String, String, Vec<String>) {
    let reported = Arc::new(Output { asked: Mutex::new(Vec::new()), pods, log });
    let asked = reported.clone();
    let service = tower::service_fn(move |request| answer(request, reported.clone()));
    let cluster = Cluster::with_client(kube::Client::new(service, "team"), "team");
    let mut job = a_job(json!({ "template": {} }));
    job.metadata.namespace = Some("team".into());
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut streams = Streams { out: &mut out, err: &mut err };
    let done = command_job::run(&cluster, &job, patience, &mut streams);
    let done = tokio::time::timeout(Duration::from_secs(60), done).await;
    let asked = asked.asked.lock().unwrap().clone();
    let done = done.unwrap_or_else(|_| panic!("it does not end; it asked for {asked:#?}"));
    (done, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap(), asked)
}

const LOG: &str = "2026-01-01T00:00:01Z STEP  VERDICT\n2026-01-01T00:00:01Z 100   corrupted\n\
                   2026-01-01T00:00:02Z agent: 1 of 1 is corrupted\n";

#[tokio::test]
async fn agent_job_is_created_followed_and_deleted() {
    let ended = with_agent(json!({ "terminated": { "exitCode": 1, "reason": "Error" } }));
    let pods = vec![
        with_agent(json!({ "waiting": { "reason": "ContainerCreating" } })),
        with_agent(json!({ "running": {} })),
        ended,
    ];
    let (done, out, err, asked) = errand(pods, Some(LOG), Duration::from_secs(50)).await;
    assert_eq!(done.unwrap(), 1);
    assert_eq!(out, "STEP  VERDICT\n100   corrupted\n");
    assert!(err.contains("the agent runs in Job j") && err.ends_with("agent: 1 of 1 is corrupted\n"), "{err}");
    assert_eq!(asked.first().unwrap(), "POST /apis/batch/v1/namespaces/team/jobs");
    assert_eq!(asked.last().unwrap(), "DELETE /apis/batch/v1/namespaces/team/jobs/j");
}

#[tokio::test]
async fn agent_job_that_does_not_start_is_deleted() {
    let waits = with_agent(json!({ "waiting": { "reason": "ErrImagePull", "message": "no such image" } }));
    let (done, out, err, asked) = errand(vec![waits], None, Duration::ZERO).await;
    let why = done.unwrap_err().to_string();
    assert!(why.contains("within 0s") && why.contains("ErrImagePull: no such image"), "{why}");
    assert!(why.ends_with("--timeout gives it longer"), "{why}");
    assert_eq!(out, "", "{err}");
    assert_eq!(asked.last().unwrap(), "DELETE /apis/batch/v1/namespaces/team/jobs/j");
}

#[tokio::test]
async fn unreadable_log_fails_command_and_deletes_job() {
    let (done, _, _, asked) = errand(vec![with_agent(json!({ "running": {} }))], None, Duration::from_secs(50)).await;
    let why = done.unwrap_err().to_string();
    assert!(why.starts_with("you may not read the log of pod j-1: no. Ask for the role `view`"), "{why}");
    assert_eq!(asked.last().unwrap(), "DELETE /apis/batch/v1/namespaces/team/jobs/j");
}

#[tokio::test]
async fn rejected_pod_fails_command_and_deletes_job() {
    let refused = a_pod(json!({ "phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no device" }));
    let pods = vec![serde_json::to_value(refused).unwrap()];
    let (done, _, _, asked) = errand(pods, Some(LOG), Duration::from_secs(50)).await;
    let why = done.unwrap_err().to_string();
    assert_eq!(why, "Job j has failed before its agent ran: UnexpectedAdmissionError: no device");
    assert_eq!(asked.last().unwrap(), "DELETE /apis/batch/v1/namespaces/team/jobs/j");
}
