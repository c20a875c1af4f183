//! A gang that restarts in its pods: what its leader reports, the key of its members, and how the operator reacts.

use crate::world::{BY_HAND, Space, Watched, attempt, is_oldest, plane, uids};
use api::State::{Completed, Failed, Initializing, Pending, Running};
use api::{Condition, TrainingJob, TrainingJobStatus};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, ResourceQuota, Secret};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use observe::JOB_TRACKING;
use protocol::proof::{AnswerKey, KEY_FILE, Nonce, PROOF_HEADER};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use testkit::job::index;
use testkit::wait::{SOON, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// An agent of the job `x` whose answers the test sets.
pub struct Agent {
    pub port: u16,
    answer: Arc<Mutex<Value>>,
}

impl Agent {
    /// Starts an agent that proves its answers with the key that its pod would have.
    pub async fn start(space: &Space) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, answer) = (listener.local_addr().unwrap().port(), Arc::new(Mutex::new(json!({}))));
        let (reported, secrets) = (answer.clone(), space.api::<Secret>());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (body, secrets) = (reported.lock().unwrap().to_string(), secrets.clone());
                tokio::spawn(async move {
                    let mut question = vec![0; 4096];
                    let length = stream.read(&mut question).await.unwrap_or(0);
                    let question = String::from_utf8_lossy(&question[..length]).into_owned();
                    let query = question.split(' ').nth(1).and_then(|path| path.split_once('?'));
                    let nonce = query.and_then(|(_, query)| Nonce::in_query(query)).expect("a question with a nonce");
                    let proof = answer_key(&secrets).await.prove(nonce, body.as_bytes());
                    let head = format!(
                        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n{PROOF_HEADER}: {proof}\r\nConnection: close\r\n\r\n",
                        body.len()
                    );
                    let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
                });
            }
        });
        Self { port, answer }
    }

    /// Makes the leader in this pod report this gang from now on.
    fn reports(&self, pod: &Pod, gang: Value) {
        let report = json!({ "version": 1, "attempt": gang["attempt"] });
        self.answers(json!({ "trainingJob": "x", "worker": 0, "podUid": pod.uid(), "report": report, "gang": gang }));
    }

    /// Sets the answer from now on.
    pub fn answers(&self, answer: Value) {
        *self.answer.lock().unwrap() = answer;
    }
}

/// The key by which the agents of the job `x` prove their answers.
async fn answer_key(secrets: &Api<Secret>) -> AnswerKey {
    let of_job = ListParams::default().labels("training-job=x");
    let found = secrets.list(&of_job).await.unwrap().items;
    let text = found.iter().find_map(|secret| secret.data.as_ref()?.get(KEY_FILE)).expect("a Secret with the key");
    AnswerKey::parse(&text.0).expect("a key of the right form")
}

/// Sets the state of a pod's container `training`, as its kubelet would.
async fn set_container(space: &Space, pod: &Pod, phase: &str, restarts: u32, state: Value, last: Value) {
    let runs = state.get("running").is_some();
    let container = json!({
        "name": "training", "image": "none", "imageID": "", "ready": runs, "started": runs, "restartCount": restarts,
        "state": state, "lastState": last,
    });
    let at_home = json!([{ "ip": "127.0.0.1" }]);
    let status = json!({
        "phase": phase, "containerStatuses": [container], "podIP": "127.0.0.1", "podIPs": at_home,
    });
    space.set_pod(pod, status).await;
}

pub async fn runs(space: &Space, pod: &Pod, restarts: u32) {
    set_container(space, pod, "Running", restarts, json!({ "running": { "startedAt": Timestamp::now() } }), json!({}))
        .await;
}

fn args(pod: &Pod) -> Vec<String> {
    pod.spec.as_ref().unwrap().containers[0].args.clone().unwrap()
}

async fn restarted(job: &Watched, attempt: u32) {
    job.until(&format!("attempt {attempt} runs"), |s| s.attempt == Some(attempt) && s.state == Some(Running)).await;
}

#[tokio::test]
async fn gang_restarts_in_its_pods() {
    if is_oldest() {
        return; // it drops restart rules, so no killed container starts again in its pod
    }
    let space = plane().space("gang", json!({})).await;
    let (operator, agent) = (space.operator_that_asks().await, Agent::start(&space).await);
    let by_hand = json!({ "metadata": { "annotations": { BY_HAND: "" } } });
    let spec = json!({ "podTemplate": by_hand, "monitoring": { "metricsPort": agent.port } });
    let job = space.submit("x", spec).await;
    let pods = space.placed("x", 2).await;
    let mut volumes = pods[0].spec.as_ref().unwrap().volumes.iter().flatten();
    let keys = volumes.find_map(|volume| volume.projected.as_ref()?.sources.as_ref()).unwrap();
    let keys = keys.iter().find_map(|source| source.secret.as_ref()).unwrap();
    let secret: Secret = space.has(&keys.name).await;
    let items = keys.items.as_ref().unwrap();
    assert_eq!(items.len(), 2, "the gang's, and that of the answers");
    assert!(items.iter().all(|item| secret.data.as_ref().unwrap()[&item.key].0.len() == 64));
    assert_eq!(secret.immutable, Some(true));
    let training = &pods[0].spec.as_ref().unwrap().containers[0];
    assert!(training.restart_policy_rules.is_some(), "the API server keeps them");

    // The pods run, but the gang does not yet.
    agent.reports(&pods[0], json!({ "attempt": 0, "phase": "Gathering", "waitsFor": "waiting for worker 1" }));
    for pod in &pods {
        runs(&space, pod, 0).await;
    }
    let waits = |s: &TrainingJobStatus| {
        let says = |c: &Condition| (&*c.type_, &*c.status, &*c.message) == ("Running", "False", "waiting for worker 1");
        s.state == Some(Initializing) && s.conditions.iter().any(says)
    };
    job.until("what the leader waits for", waits).await;
    agent.reports(&pods[0], json!({ "attempt": 1, "phase": "Running" }));
    restarted(&job, 1).await;

    // A program fails and is started again in place.
    let ended = json!([{
        "attempt": 1, "reason": "PythonException", "message": "ValueError: bad", "worker": 1, "exitCode": 1,
        "time": Timestamp::now(), "ranSeconds": 3,
    }]);
    agent.reports(&pods[0], json!({ "attempt": 1, "phase": "Gathering", "ended": ended }));
    let cause = job.condition("Restarting", "True", "PythonException").await.message;
    let reported = format!(
        "worker 1 (pod {}, node {})",
        pods[1].name_any(),
        pods[1].spec.as_ref().unwrap().node_name.as_ref().unwrap()
    );
    assert_eq!(cause, format!("{reported}: ValueError: bad"));
    agent.reports(&pods[0], json!({ "attempt": 2, "phase": "Running", "ended": ended }));
    restarted(&job, 2).await;
    assert_eq!((job.status().restart_count, job.status().incarnation), (Some(1), Some(1)));
    let events = space.api::<Event>();
    eventually("the event Restarting", SOON, async || {
        let events = events.list(&ListParams::default()).await.unwrap().items;
        let reported = format!("attempt 1 failed, attempt 2 follows: {cause}");
        events.iter().any(|event| event.note.as_ref() == Some(&reported)).then_some(())
    })
    .await;

    // A container is killed, and its node starts it again.
    let killed = json!({ "terminated": { "exitCode": 137, "reason": "OOMKilled", "finishedAt": Timestamp::now() } });
    set_container(&space, &pods[1], "Running", 0, killed.clone(), json!({})).await;
    job.condition("Running", "False", "OOMKilled").await;
    let back_off = json!({ "waiting": { "reason": "CrashLoopBackOff", "message": "back-off 10s" } });
    set_container(&space, &pods[1], "Running", 1, back_off, killed).await;
    let words = format!("{reported}: its container was killed (OOMKilled) and is started again: back-off 10s");
    job.until("the back-off", |s| s.conditions.iter().any(|c| c.message == words)).await;
    runs(&space, &pods[1], 1).await;
    restarted(&job, 2).await;
    assert_eq!(uids(&space.pods("x").await), uids(&pods), "all of it in the same pods");

    // New pods replace those that end, and know the earlier history.
    for pod in &pods {
        let end = json!({ "exitCode": 1, "reason": "Error", "finishedAt": Timestamp::now() });
        set_container(&space, pod, "Failed", 0, json!({ "terminated": end }), json!({})).await;
    }
    let next = eventually("the next incarnation", SOON, async || {
        space.remove_stopping("x").await;
        let pods = space.pods("x").await;
        pods.into_iter().find(|pod| attempt(pod) == 2)
    })
    .await;
    let past = r#"--gang-past={"restarts":{"judged":2,"failures":2,"disruptions":0,"failuresInARow":2,"disruptionsInARow":0}}"#.to_owned();
    assert!(args(&next).contains(&"--attempt=3".to_owned()) && args(&next).contains(&past), "{:?}", args(&next));
    let status = job.status();
    assert_eq!((status.attempt, status.restart_count, status.incarnation), (Some(3), Some(2), Some(2)));
    assert_eq!(status.restarts.iter().map(|entry| entry.attempt).collect::<Vec<_>>(), [1, 2]);
    for resource in ["secrets", "networkpolicies"] {
        let asked: Vec<_> = space.acts().into_iter().filter(|request| request.resource == resource).collect();
        assert!(asked.iter().all(|request| request.verb == "create"), "{asked:?}");
        let answers: Vec<_> = asked.iter().map(|request| request.code).collect();
        assert_eq!(answers, [201, 409], "one of {resource} for all incarnations");
    }
    space.end(operator).await;
}

/// An annotation restarts a running job in its pods, and a failed job with new pods.
#[tokio::test]
async fn annotation_requests_a_restart() {
    let space = plane().space("asked", json!({})).await;
    let operator = space.operator().await;
    let by_hand = json!({ "metadata": { "annotations": { BY_HAND: "" } } });
    let spec = json!({ "podTemplate": by_hand, "failurePolicy": { "backoffLimit": 0 }, "checkpoint": {} });
    let job = space.submit("x", spec).await;
    let pods = space.placed("x", 2).await;
    for pod in &pods {
        runs(&space, pod, 0).await;
    }
    job.state(Running).await;
    let ask = async |value: &str| {
        let annotations = json!({ "ml.example.com/restart-requested": value });
        space.patch::<TrainingJob>("x", json!({ "metadata": { "annotations": annotations } })).await;
        job.until("it to be heeded", |s| s.asked_restart.as_ref().is_some_and(|asked| asked.request == value)).await
    };
    // The request and its checkpoint reach the workers at once.
    let from = json!({ "metadata": { "annotations": { "ml.example.com/restart-from": "one step-5" } } });
    space.patch::<TrainingJob>("x", from).await;
    assert_eq!(ask("one").await.incarnation, Some(1));
    let recorded = job.status().checkpoint.unwrap().restart_from.unwrap();
    assert_eq!((recorded.request.as_str(), recorded.path.as_str()), ("one", "/checkpoints/step-5"));
    let names = |config: &ConfigMap| {
        let policy = &config.data.as_ref().unwrap()["checkpoints.json"];
        policy.contains(r#""resumeFrom":"/checkpoints/step-5","request":"one""#)
    };
    space.until("x-config", "to name the checkpoint", names).await;
    let reports =
        |config: &ConfigMap| config.data.as_ref().unwrap()["gang.json"].contains(r#""restartRequested":"one""#);
    space.until("x-config", "to tell the workers", reports).await;
    assert_eq!(uids(&space.pods("x").await), uids(&pods), "in the same pods");

    for pod in &pods {
        let end = json!({ "exitCode": 1, "reason": "Error", "finishedAt": Timestamp::now() });
        set_container(&space, pod, "Failed", 0, json!({ "terminated": end }), json!({})).await;
    }
    let failed = job.state(Failed).await;
    let status = ask("two").await;
    assert_eq!((status.incarnation, status.restart_count, status.failure_reason), (Some(2), Some(0), None));
    assert_eq!(status.restarts.last().unwrap().reason, failed.failure_reason.unwrap());
    let next = eventually("the pods of the next attempt", SOON, async || {
        space.remove_stopping("x").await;
        let pods = space.pods("x").await;
        (pods.len() == 2 && pods.iter().all(|pod| attempt(pod) == 2)).then_some(pods)
    })
    .await;
    for pod in &next {
        runs(&space, pod, 0).await;
    }
    restarted(&job, 2).await;
    space.end(operator).await;
}

#[tokio::test]
async fn gang_key_refused_by_quota_is_reported() {
    let space = plane().space("gang-key", json!({})).await;
    let operator = space.operator().await;
    let quota = json!({ "metadata": { "name": "small" }, "spec": { "hard": { "count/secrets": "0" } } });
    space.create::<ResourceQuota>(quota).await;
    let counted = |quota: &ResourceQuota| quota.status.as_ref().is_some_and(|status| status.used.is_some());
    space.until("small", "to be counted", counted).await;
    let job = space.submit("x", json!({})).await;
    let message = job.condition("Scheduled", "False", "QuotaExceeded").await.message;
    assert!(message.starts_with("Secret: secrets \"x-") && message.contains("exceeded quota: small"), "{message}");
    assert_eq!((job.status().state, space.pods("x").await.len()), (Some(Pending), 0));
    // A job that needs none is not held up.
    let unasked = json!({ "numWorkers": 1, "monitoring": { "enabled": false } });
    space.submit("alone", unasked).await.state(Running).await;
    space.delete::<ResourceQuota>("small").await;
    job.state(Running).await;
    space.end(operator).await;
}

/// A worker that is evicted while its gang stays is replaced alone and at once, and its Job does not fail by it. The
/// same holds for a worker whose node is lost.
#[tokio::test]
async fn lost_worker_is_replaced_alone() {
    let space = plane().space("replaced", json!({})).await;
    let (operator, agent) = (space.operator_that_asks().await, Agent::start(&space).await);
    let by_hand = json!({ "metadata": { "annotations": { BY_HAND: "" } } });
    let spec = json!({
        "podTemplate": by_hand, "monitoring": { "metricsPort": agent.port },
        "failurePolicy": { "nodeLostSeconds": 30 },
    });
    let job = space.submit("x", spec).await;
    let mut pods = space.placed("x", 2).await;
    agent.reports(&pods[0], json!({ "attempt": 1, "phase": "Running" }));
    for pod in &pods {
        runs(&space, pod, 0).await;
    }
    restarted(&job, 1).await;
    // Kubernetes reports whole seconds, and a member that joined before a loss must be older than it.
    let created = pods[0].creation_timestamp().unwrap().0.as_second();
    eventually("the next second", SOON, async || (Timestamp::now().as_second() > created).then_some(())).await;

    for (attempt, reason) in [(1, "Evicted"), (2, "NodeLost")] {
        let old = pods[1].clone();
        let api = space.api::<Pod>();
        if reason == "Evicted" {
            api.evict(&old.name_any(), &EvictParams::default()).await.unwrap();
        } else {
            let at = Timestamp::now();
            let silent = [("Ready", "False"), ("ContainersReady", "True")]
                .map(|(type_, status)| json!({ "type": type_, "status": status, "lastTransitionTime": at }));
            agent.reports(&pods[0], json!({ "attempt": attempt, "phase": "Gathering", "ended": [lost(attempt)] }));
            space.set_pod(&old, json!({ "conditions": silent })).await;
        }
        job.condition("Restarting", "True", reason).await;
        if reason == "Evicted" {
            let tracked = |pod: &Pod| pod.finalizers().iter().any(|name| name == JOB_TRACKING);
            eventually("the pod to be taken from its Job", SOON, async || {
                api.get_opt(&old.name_any()).await.unwrap().is_none_or(|pod| !tracked(&pod)).then_some(())
            })
            .await;
            agent.reports(&pods[0], json!({ "attempt": attempt, "phase": "Gathering", "ended": [lost(attempt)] }));
            // As its kubelet reports: the agent has ended on request, and the pod goes.
            let end = json!({ "exitCode": 143, "reason": "Error", "finishedAt": Timestamp::now() });
            set_container(&space, &old, "Failed", 0, json!({ "terminated": end }), json!({})).await;
            // The kubelet may take its time to remove the pod. Until then the Job controller sees a failed pod of its
            // Job.
            eventually("another pod beside the one that has ended", SOON, async || {
                let other = |pod: &Pod| index(pod) == index(&old) && pod.uid() != old.uid();
                space.pods("x").await.iter().any(other).then_some(())
            })
            .await;
            let now = DeleteParams::default().grace_period(0);
            api.delete(&old.name_any(), &now).await.unwrap();
        }
        let next = eventually("another pod in its place", SOON * 2, async || {
            let pods = space.pods("x").await;
            let is_whole = pods.len() == 2 && pods.iter().all(|pod| pod.spec.as_ref().unwrap().node_name.is_some());
            (is_whole && pods[1].uid() != old.uid()).then_some(pods)
        })
        .await;
        assert_eq!(next[0].uid(), pods[0].uid(), "nobody else's");
        pods = next;
        runs(&space, &pods[1], 0).await;
        let again =
            json!({ "attempt": attempt + 1, "disruptions": attempt, "phase": "Running", "ended": [lost(attempt)] });
        agent.reports(&pods[0], again);
        restarted(&job, attempt + 1).await;
    }
    let status = job.status();
    assert_eq!((status.incarnation, status.restart_count, status.disruption_count), (Some(1), Some(2), Some(2)));
    let reported: Vec<_> = status.restarts.iter().map(|entry| (entry.reason.as_str(), entry.disruption)).collect();
    assert_eq!(reported, [("Evicted", true), ("NodeLost", true)]);
    assert!(job.job().await.status.unwrap().failed.unwrap_or(0) == 0, "its Job has counted nothing");
    space.end(operator).await;
}

/// A leader's report on a lost member.
fn lost(attempt: u32) -> Value {
    json!({
        "attempt": attempt, "reason": "NodeLost", "message": "its node is lost (its agent has fallen silent)",
        "worker": 1, "disruption": true, "time": Timestamp::now(), "ranSeconds": 3,
    })
}

/// The Job follows `numWorkers`, through the scale subresource too, and the gang follows the available room. Surplus
/// workers go when the leader does without them, which is no failure.
#[tokio::test]
async fn job_parallelism_follows_the_gang_size() {
    let space = plane().space("elastic", json!({})).await;
    let (operator, agent) = (space.operator_that_asks().await, Agent::start(&space).await);
    let spec = json!({
        "podTemplate": { "metadata": { "annotations": { BY_HAND: "" } } },
        "monitoring": { "metricsPort": agent.port }, "checkpoint": { "enabled": false },
        "numWorkers": 2, "elastic": { "maxWorkers": 4, "waitSeconds": 3 },
    });
    let job = space.submit("x", spec).await;
    let first = space.placed("x", 2).await;
    let resized = |attempt: u32| {
        let (time, message) = (Timestamp::now(), "the gang goes on with others");
        json!({ "attempt": attempt, "reason": "Resized", "message": message, "disruption": true, "time": time, "ranSeconds": 3 })
    };
    let reports = |attempt: u32, workers: u32| {
        let ended: Vec<_> = (1..attempt).map(resized).collect();
        agent.reports(&first[0], json!({ "attempt": attempt, "workers": workers, "phase": "Running", "ended": ended }));
    };
    let size = async |workers: u16| {
        let is = |s: &TrainingJobStatus| s.elastic.as_ref().is_some_and(|elastic| elastic.workers == workers);
        job.until(&format!("a gang of {workers}"), is).await;
        let setup = format!(r#""workers":{workers},"largest":"#);
        let reports = |config: &ConfigMap| config.data.as_ref().unwrap()["gang.json"].contains(&setup);
        space.until("x-config", "to tell the agents", reports).await;
    };
    reports(1, 2);
    for pod in &first {
        runs(&space, pod, 0).await;
    }
    restarted(&job, 1).await;

    // All workers arrive before the attempt is disturbed.
    let scale = Patch::Merge(json!({ "spec": { "replicas": 4 } }));
    space.api::<TrainingJob>().patch_scale("x", &PatchParams::default(), &scale).await.unwrap();
    let four = space.placed("x", 4).await;
    assert_eq!(job.status().elastic.unwrap().workers, 2);
    runs(&space, &four[2], 0).await;
    runs(&space, &four[3], 0).await;
    size(4).await;
    space
        .until(&first[0].name_any(), "to be touched, so that its node looks", |pod: &Pod| {
            pod.annotations().get("ml.example.com/gang-size").is_some_and(|size| size == "4")
        })
        .await;
    reports(2, 4);
    restarted(&job, 2).await;

    // No worker goes as long as the attempt needs it.
    job.set(json!({ "numWorkers": 1 })).await;
    size(1).await;
    let parallelism = |job: &BatchJob| (job.spec.as_ref().unwrap().parallelism, job.spec.as_ref().unwrap().completions);
    assert_eq!(parallelism(&job.job().await), (Some(4), Some(4)));
    reports(3, 1);
    space.until("x-training", "to have one pod", |job: &BatchJob| parallelism(job) == (Some(1), Some(1))).await;
    for pod in &four[1..] {
        let api = space.api::<Pod>();
        let is_going = |pod: Pod| pod.metadata.deletion_timestamp.is_some();
        eventually("the Job controller to delete it", SOON, async || {
            api.get_opt(&pod.name_any()).await.unwrap().is_none_or(is_going).then_some(())
        })
        .await;
        let end = json!({ "exitCode": 143, "reason": "Error", "finishedAt": Timestamp::now() });
        set_container(&space, pod, "Failed", 0, json!({ "terminated": end }), json!({})).await;
        let _ = api.delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await;
    }
    restarted(&job, 3).await;
    eventually("one pod to be left", SOON, async || (space.pods("x").await.len() == 1).then_some(())).await;
    let status = job.status();
    assert_eq!((status.incarnation, status.restart_count, status.disruption_count), (Some(1), Some(0), None));
    let end = json!({ "exitCode": 0, "reason": "Completed", "finishedAt": Timestamp::now() });
    set_container(&space, &first[0], "Succeeded", 0, json!({ "terminated": end }), json!({})).await;
    job.state(Completed).await;
    space.until("x-training", "to be complete", |job: &BatchJob| is_complete(job)).await;
    space.end(operator).await;
}

fn is_complete(job: &BatchJob) -> bool {
    let conditions = job.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Complete" && c.status == "True"))
}
