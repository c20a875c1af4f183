//! A job's life: each state is reported when it is true, requests are few, and the end leaves what it should.

use crate::world::{BY_HAND, DURATION, Request, Space, attempt, plane, uids};
use api::State::{Completed, Failed, Initializing, Pending, Running, Suspended};
use api::{TrainingJob, TrainingJobStatus};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Service};
use kube::ResourceExt;
use serde_json::{Value, json};
use std::time::Duration;
use testkit::wait::{SOON, eventually};

fn by_hand() -> Value {
    json!({ "podTemplate": { "metadata": { "annotations": { BY_HAND: "" } } } })
}

/// The status of a pod's container `training`, as its kubelet would report it.
fn container(state: Value) -> Value {
    let started = state.get("running").is_some();
    json!([{
        "name": "training", "image": "none", "imageID": "", "ready": started, "started": started, "restartCount": 0,
        "state": state,
    }])
}

async fn runs(space: &Space, pod: &Pod) {
    let status = container(json!({ "running": { "startedAt": Timestamp::now() } }));
    space.set_pod(pod, json!({ "phase": "Running", "containerStatuses": status })).await;
}

async fn ends(space: &Space, pod: &Pod, exit_code: i32) {
    // An end that a deletion caused is later than the deletion, and times are whole seconds.
    let later = if exit_code == 143 { 2 } else { 0 };
    let at = Timestamp::now() + SignedDuration::from_secs(later);
    let end = json!({ "exitCode": exit_code, "reason": "x", "finishedAt": at });
    let phase = if exit_code == 0 { "Succeeded" } else { "Failed" };
    space.set_pod(pod, json!({ "phase": phase, "containerStatuses": container(json!({ "terminated": end })) })).await;
}

/// The test leads the pods step by step. After each step the status says what is true then, and never said more before.
#[tokio::test]
async fn each_state_is_reported_only_when_true() {
    let space = plane().space("states", json!({})).await;
    let operator = space.operator().await;
    let mut spec = by_hand();
    spec["scheduling"] = json!({ "nodeSelector": { "free": space.name } });
    let job = space.submit("x", spec).await;
    let counts = |s: &TrainingJobStatus| s.workers.map(|w| [w.pending, w.active, w.succeeded, w.failed]);

    job.condition("Scheduled", "False", "Unschedulable").await;
    assert_eq!((job.states(), counts(&job.status())), (vec![Pending], Some([2, 0, 0, 0])));

    let nodes: kube::Api<k8s_openapi::api::core::v1::Node> = kube::Api::all(space.client.clone());
    let free = kube::api::Patch::Merge(json!({ "metadata": { "labels": { "free": space.name } } }));
    nodes.patch("sim-0", &Default::default(), &free).await.unwrap();
    let pods = space.placed("x", 2).await;
    job.condition("Scheduled", "True", "Scheduled").await;
    job.condition("Running", "False", "Starting").await;
    assert_eq!((job.states(), counts(&job.status())), (vec![Pending, Initializing], Some([2, 0, 0, 0])));
    assert_eq!(job.status().resources.unwrap().allocated_nodes, 1);
    assert_eq!(job.status().start_time, None);

    runs(&space, &pods[0]).await;
    let status = job.until("one active", |s| counts(s) == Some([1, 1, 0, 0])).await;
    assert_eq!(status.state, Some(Initializing), "one of two runs");
    assert!(status.start_time.is_some());
    runs(&space, &pods[1]).await;
    let status = job.state(Running).await;
    assert_eq!(counts(&status), Some([0, 2, 0, 0]));

    ends(&space, &pods[0], 0).await;
    let status = job.until("one succeeded", |s| counts(s) == Some([0, 1, 1, 0])).await;
    assert_eq!(status.state, Some(Running), "one of two has ended well");
    ends(&space, &pods[1], 0).await;
    let status = job.state(Completed).await;
    assert_eq!(counts(&status), Some([0, 0, 2, 0]));
    assert!(status.completion_time.is_some() && status.duration.is_some());
    assert_eq!(status.resources.unwrap().allocated_nodes, 0);

    job.went_through(&[Pending, Initializing, Running, Completed], &[Suspended, Failed]);
    for (before, after) in job.statuses().iter().zip(&job.statuses()[1..]) {
        assert_eq!(before.start_time.as_ref().or(after.start_time.as_ref()), after.start_time.as_ref(), "starts once");
        assert_ne!(before, after, "a status was written that says nothing new");
    }
    let shown = |type_: &str| status.conditions.iter().find(|c| c.type_ == type_).map(|c| c.status.as_str());
    assert_eq!(
        ["Accepted", "Scheduled", "Running", "Succeeded", "Failed"].map(shown),
        [Some("True"), Some("True"), Some("False"), Some("True"), None]
    );
    space.end(operator).await;
}

/// A failure is reported as soon as it is seen, with the first cause. The next attempt starts when the last pod has
/// gone.
#[tokio::test]
async fn failed_worker_is_named_at_once() {
    let space = plane().space("failing", json!({})).await;
    let operator = space.operator().await;
    let mut spec = by_hand();
    spec["failurePolicy"] = json!({ "backoffLimit": 1 });
    let job = space.submit("x", spec).await;
    for n in 1..=2 {
        let pods = eventually(&format!("the pods of attempt {n}"), SOON, async || {
            let pods = space.placed("x", 2).await;
            pods.iter().all(|pod| attempt(pod) == n).then_some(pods)
        })
        .await;
        for pod in &pods {
            runs(&space, pod).await;
        }
        job.until("to run", |s| s.attempt == Some(n) && s.state == Some(Running)).await;
        ends(&space, &pods[1], 3).await;
        let message = format!(
            "worker 1 (pod {}, node {}): exit code 3",
            pods[1].name_any(),
            pods[1].spec.as_ref().unwrap().node_name.as_ref().unwrap()
        );
        let named = |s: &TrainingJobStatus| s.restarts.last().is_some_and(|r| r.to_string() == message);
        let status = job.until("the failure to be named", named).await;
        assert_eq!(status.attempt, Some(n), "worker 0 still runs");
        let state = if n == 1 { Initializing } else { Running };
        assert_eq!(status.state, Some(state), "after the last attempt nothing is initialized");
        // The Job controller has asked worker 0 to stop. Here only the test removes pods.
        let stopping = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
        space.until::<Pod>(&pods[0].name_any(), "to be stopping", stopping).await;
        ends(&space, &pods[0], 143).await;
        for pod in &pods {
            gone(&space, &pod.name_any()).await;
        }
    }
    let status = job.state(Failed).await;
    assert_eq!(status.failure_reason, Some("ExitCode".into()));
    let message = status.failure_message.unwrap();
    let why = "exit code 3 (after 1 restart; failurePolicy.backoffLimit is 1)";
    assert!(message.starts_with("worker 1 (pod x-training-1-") && message.ends_with(why), "{message}");
    assert_eq!(status.restart_count, Some(1));
    assert!(job.described().contains(&message));
    space.end(operator).await;
}

/// Removes a pod as its kubelet does when the last container has ended.
async fn gone(space: &Space, pod: &str) {
    let params = kube::api::DeleteParams { grace_period_seconds: Some(0), ..Default::default() };
    match space.api::<Pod>().delete(pod, &params).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.is_not_found() => {}
        Err(error) => panic!("{pod}: {error}"),
    }
}

#[tokio::test]
async fn job_can_be_suspended_resumed_and_created_suspended() {
    let space = plane().space("suspend", json!({})).await;
    let operator = space.operator().await;
    let job = space.submit("x", json!({})).await;
    job.state(Running).await;
    let first = job.job().await;
    job.set(json!({ "suspend": true })).await;
    let status = job.state(Suspended).await;
    assert!(space.get::<Job>("x-training").await.is_none() && space.pods("x").await.is_empty(), "no pod runs");
    assert_eq!(status.workers.map(|w| (w.active, w.pending, w.failed)), Some((0, 0, 0)));
    job.condition("Suspended", "True", "Suspended").await;
    job.set(json!({ "suspend": false })).await;
    let status = job.until("to run again", |s| s.state == Some(Running) && s.attempt == Some(2)).await;
    assert_ne!(job.job().await.uid(), first.uid());
    assert_eq!(
        (status.restart_count, status.restarts.len()),
        (Some(0), 0),
        "what was asked for is neither failure nor restart"
    );
    job.went_through(&[Running, Suspended, Running], &[Failed, Completed]);

    let waits = space.submit("y", json!({ "suspend": true })).await;
    waits.state(Suspended).await;
    assert_eq!(waits.states(), [Suspended]);
    // Objects that are kept for a job that ran before. Its Job and its pods are gone.
    space.has::<Service>("y-headless").await;
    space.has::<ConfigMap>("y-config").await;
    assert!(space.get::<Job>("y-training").await.is_none() && space.pods("y").await.is_empty());
    waits.set(json!({ "suspend": false })).await;
    let status = waits.state(Running).await;
    assert_eq!(status.attempt, Some(1));
    space.end(operator).await;
}

#[tokio::test]
async fn deadline_fails_the_job_and_ttl_deletes_it() {
    let space = plane().space("deadline", json!({})).await;
    let operator = space.operator().await;
    let job = space
        .submit("x", json!({ "failurePolicy": { "activeDeadlineSeconds": 2 }, "ttlSecondsAfterFinished": 3 }))
        .await;
    let status = job.state(Failed).await;
    let message = status.failure_message.unwrap();
    assert!(message.ends_with("s; failurePolicy.activeDeadlineSeconds is 2"), "{message}");
    assert_eq!(status.failure_reason, Some("DeadlineExceeded".into()));
    let took = status.completion_time.as_ref().unwrap().0.duration_since(status.start_time.as_ref().unwrap().0);
    assert!(took.as_secs() >= 2, "{took}");
    eventually("the TrainingJob and all of its objects to be gone", SOON, async || {
        let gone = space.get::<TrainingJob>("x").await.is_none()
            && space.get::<Job>("x-training").await.is_none()
            && space.get::<Service>("x-headless").await.is_none()
            && space.get::<ConfigMap>("x-config").await.is_none()
            && space.pods("x").await.is_empty();
        gone.then_some(())
    })
    .await;
    assert!(Timestamp::now().duration_since(status.completion_time.unwrap().0).as_secs() >= 3);
    space.end(operator).await;
}

#[tokio::test]
async fn deleted_job_leaves_only_retained_checkpoints() {
    let space = plane().space("collected", json!({})).await;
    let operator = space.operator().await;
    let storage =
        |policy: &str| json!({ "checkpoint": { "storage": { "type": "pvc", "size": "1Gi", "deletePolicy": policy } } });
    let (keeps, drops) =
        (space.submit("keeps", storage("Retain")).await, space.submit("drops", storage("Delete")).await);
    for job in [&keeps, &drops] {
        job.state(Running).await;
        job.delete().await;
    }
    eventually("all but the claim that is kept to be collected", SOON, async || {
        for name in ["keeps", "drops"] {
            if space.get::<TrainingJob>(name).await.is_some()
                || space.get::<Job>(&format!("{name}-training")).await.is_some()
                || space.get::<Service>(&format!("{name}-headless")).await.is_some()
                || space.get::<ConfigMap>(&format!("{name}-config")).await.is_some()
                || !space.pods(name).await.is_empty()
            {
                return None;
            }
        }
        space.get::<PersistentVolumeClaim>("drops-checkpoints").await.is_none().then_some(())
    })
    .await;
    let kept = space.has::<PersistentVolumeClaim>("keeps-checkpoints").await;
    assert!(kept.metadata.deletion_timestamp.is_none());
    space.end(operator).await;
}

/// From the creation to the end. Counters that change alone are gathered for a second.
#[tokio::test]
async fn job_lifetime_takes_few_requests() {
    let space = plane().space("requests", json!({})).await;
    let operator = space.operator().await;
    let job = space
        .submit("x", json!({ "numWorkers": 8, "podTemplate": { "metadata": { "annotations": { DURATION: "2s" } } } }))
        .await;
    job.state(Completed).await;
    // The last Event is sent beside the reconcile.
    eventually("the Events of every state", SOON, async || {
        (space.acts().iter().filter(|r| r.resource == "events").count() >= 3).then_some(())
    })
    .await;
    let acts = space.acts();
    let statuses = job.statuses();
    let significant = |s: &TrainingJobStatus| {
        (s.state, s.conditions.iter().map(|c| (c.type_.clone(), c.status.clone())).collect::<Vec<_>>())
    };
    let gathered = statuses.windows(2).filter(|pair| significant(&pair[0]) == significant(&pair[1])).count();
    let written = acts.iter().filter(|r| r.resource == "trainingjobs/status").count();
    let took = acts.last().unwrap().at - acts[0].at;
    println!(
        "a job of 8 workers: {} requests in {took:.1} s, {written} of them statuses, {gathered} of those for counters alone",
        acts.len()
    );
    for act in &acts {
        println!("{:>6.2} {} {} {} {}", act.at - acts[0].at, act.verb, act.resource, act.name, act.code);
    }
    // One more request of each kind where the first was out of date.
    assert!(acts.len() <= 2 * 12 + gathered, "{acts:#?}");
    assert!(statuses.windows(2).all(|pair| pair[0] != pair[1]), "a status was written that says nothing new");
    assert!(gathered as f64 <= took + 1.0, "counters are gathered for a second: {gathered} in {took} s");
    space.end(operator).await;
}

/// With nothing to do, the operator sends only its watches. It reports itself that it has nothing to do. A job whose
/// deadline passes shows that it was alive meanwhile.
#[tokio::test]
async fn idle_operator_sends_nothing_but_watches() {
    let space = plane().space("idle", json!({})).await;
    let operator = space.operator().await;
    let jobs = [
        space.submit("a", json!({})).await,
        space.submit("b", json!({ "numWorkers": 4 })).await,
        space.submit("c", json!({ "suspend": true })).await,
        space.submit("d", json!({ "podTemplate": { "metadata": { "annotations": { DURATION: "0s" } } } })).await,
    ];
    for (job, state) in jobs.iter().zip([Running, Running, Suspended, Completed]) {
        job.state(state).await;
    }
    operator.idle(Duration::from_secs(60)).await;
    // From here on, everything that it sends concerns this job.
    let clock = json!({ "failurePolicy": { "activeDeadlineSeconds": 8 } });
    let begin = Timestamp::now().as_millisecond() as f64 / 1000.0;
    space.submit("clock", clock).await.state(Failed).await;
    let later: Vec<_> = space.acts().into_iter().filter(|request| request.at > begin).collect();
    let of_others = |request: &&Request| !request.name.starts_with("clock");
    let of_others: Vec<_> = later.iter().filter(of_others).collect();
    assert!(later.len() > 5 && of_others.is_empty(), "it is busy with jobs that do not change: {of_others:#?}");
    space.end(operator).await;
}

/// The documented series follow the jobs and disappear with them.
#[tokio::test]
async fn metrics_follow_the_jobs() {
    let space = plane().space("metrics", json!({})).await;
    let operator = space.operator().await;
    let ns = &space.name;
    let runs = space.submit("runs", json!({ "numWorkers": 3, "gpusPerWorker": 1 })).await;
    let ends =
        space.submit("ends", json!({ "podTemplate": { "metadata": { "annotations": { DURATION: "0s" } } } })).await;
    let fails = space.submit("fails", json!({ "podTemplate": { "spec": { "nodeName": 1 } } })).await;
    runs.state(Running).await;
    ends.state(Completed).await;
    fails.state(Failed).await;
    let pods = uids(&space.pods("runs").await);
    let expected = [
        (format!("trainingjob_total{{namespace=\"{ns}\",state=\"Running\"}}"), 1.0),
        (format!("trainingjob_total{{namespace=\"{ns}\",state=\"Completed\"}}"), 1.0),
        (format!("trainingjob_total{{namespace=\"{ns}\",state=\"Failed\"}}"), 1.0),
        (format!("trainingjob_created_total{{framework=\"pytorch\",namespace=\"{ns}\"}}"), 3.0),
        (format!("trainingjob_completed_total{{framework=\"pytorch\",namespace=\"{ns}\",result=\"succeeded\"}}"), 1.0),
        (format!("trainingjob_completed_total{{framework=\"pytorch\",namespace=\"{ns}\",result=\"failed\"}}"), 1.0),
        (format!("trainingjob_failed_total{{framework=\"pytorch\",namespace=\"{ns}\",reason=\"InvalidSpec\"}}"), 1.0),
        (format!("trainingjob_allocated_gpus{{namespace=\"{ns}\",training_job=\"runs\"}}"), 3.0),
        (format!("trainingjob_allocated_workers{{namespace=\"{ns}\",training_job=\"runs\"}}"), 3.0),
        (format!("trainingjob_allocated_workers{{namespace=\"{ns}\",training_job=\"ends\"}}"), 0.0),
        ("trainingjob_leader".into(), 1.0),
    ];
    // The series of jobs are derived from the watch, which is a moment behind the writes.
    eventually("the series to be as the jobs are", SOON, async || {
        let series = prometheus(&operator.metrics.render());
        expected.iter().all(|(name, value)| series.get(name) == Some(value)).then_some(())
    })
    .await;
    let duration =
        format!("trainingjob_duration_seconds{{namespace=\"{ns}\",training_job=\"runs\",state=\"Running\"}}");
    let series = prometheus(&operator.metrics.render());
    let then = series.iter().find(|(name, _)| same(name, &duration)).map(|(_, value)| *value).unwrap();
    eventually("the duration of what runs to grow", SOON, async || {
        let series = prometheus(&operator.metrics.render());
        series.iter().any(|(name, value)| same(name, &duration) && *value > then).then_some(())
    })
    .await;
    runs.delete().await;
    eventually("the series of a deleted job to be gone", SOON, async || {
        (!operator.metrics.render().contains("training_job=\"runs\"")).then_some(())
    })
    .await;
    assert_eq!(pods.len(), 3);
    space.end(operator).await;
}

/// Prometheus' text format: every line is a comment with HELP or TYPE, or a series with its value.
pub fn prometheus(text: &str) -> std::collections::BTreeMap<String, f64> {
    let mut typed = std::collections::BTreeSet::new();
    let mut series = std::collections::BTreeMap::new();
    for line in text.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.split(' ');
            let (kind, name) = (words.next().unwrap(), words.next().unwrap());
            assert!(kind == "HELP" || kind == "TYPE", "{line}");
            if kind == "TYPE" {
                assert!(typed.insert(name.to_owned()), "{name} is described twice");
            }
            continue;
        }
        let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line:?} has no value"));
        let family = name.split('{').next().unwrap();
        let of_histogram = ["_bucket", "_sum", "_count"].iter().find_map(|end| family.strip_suffix(end));
        assert!(
            typed.contains(family) || of_histogram.is_some_and(|name| typed.contains(name)),
            "{family} comes without its type"
        );
        let value = value.parse().unwrap_or_else(|error| panic!("{line:?}: {error}"));
        assert!(series.insert(name.to_owned(), value).is_none(), "{name} is there twice");
    }
    series
}

/// Whether both are the same series, whatever the order of their labels.
fn same(one: &str, other: &str) -> bool {
    let labels = |name: &str| {
        let mut labels: Vec<_> = name.trim_end_matches('}').split(['{', ',']).map(str::to_owned).collect();
        labels.sort();
        labels
    };
    labels(one) == labels(other)
}
