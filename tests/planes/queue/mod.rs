//! Kueue for real: gangs that wait for quota, are admitted, preempted by more important ones, and resumed.
//!
//! etcd, API server, controller manager, scheduler and Kueue with its webhooks are real, the kubelets simulated. The
//! operator is the program itself. A queue stops a gang by suspending its Job, which is no failure. Neither that nor
//! the time in the queue is counted.

mod world;

use api::State::{Completed, Failed, Pending, Running, Suspended};
use jiff::Timestamp;
use serde_json::json;
use std::fs::OpenOptions;
use std::io::Write;
use testkit::free_port;
use testkit::order::assert_in_order;
use testkit::wait::{SOON, eventually};
use world::Space;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gang_is_queued_admitted_preempted_and_resumed() {
    let space = Space::new("life", 0).await;
    let gang = space.submit("gang", 16, json!({ "failurePolicy": { "backoffLimit": 0 } })).await;
    gang.is_queued().await;

    space.quota(16);
    gang.runs(0).await;

    space.urgent_job(8).await;
    gang.is_queued().await;

    space.end_urgent_job().await;
    gang.runs(0).await;
    let status = gang.complete().await;
    assert_in_order(&gang.states(), &[Pending, Running, Pending, Running, Completed], &[Failed, Suspended]);
    assert_eq!(status.workers.unwrap().succeeded, 16);
    println!("{}", space.story());
    space.end().await;
}

/// One Workload covers all roles. They wait, start, are preempted, resume and end together, on the nodes that they were
/// given.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gang_of_several_roles_is_admitted_as_one() {
    let space = Space::new("roles", 12).await;
    let roles = json!([{ "name": "actor", "replicas": 6, "gpusPerReplica": 1, "command": ["act"] }]);
    let fields = json!({ "framework": "none", "failurePolicy": { "backoffLimit": 0 }, "roles": roles });
    let gang = space.submit("gang", 10, fields).await;
    gang.is_queued().await;
    // The quota would suffice for the workers alone, or for the actors alone.
    let asked = eventually("the gang's Workload", SOON, async || {
        let workloads = space.workloads();
        let sets = workloads.iter().filter_map(|workload| workload["spec"]["podSets"].as_array().cloned()).flatten();
        let asked: Vec<_> = sets.map(|set| (set["name"].clone(), set["count"].clone())).collect();
        (!asked.is_empty()).then_some(asked)
    })
    .await;
    assert_eq!(asked, [(json!("worker"), json!(10)), (json!("actor"), json!(6))]);

    space.quota(16);
    gang.runs(0).await;
    assert_eq!(gang.nodes_wanted(), vec![json!({ "type": "simulated" }); 16]);
    let runs = async || space.condition_of_workload("PodsReady");
    eventually("Kueue to know that they run", SOON, async || (runs().await == "True").then_some(())).await;

    space.urgent_job(8).await;
    gang.is_queued().await;
    assert_eq!(space.condition_of_workload("Evicted"), "True");

    space.end_urgent_job().await;
    gang.runs(0).await;
    let status = gang.complete().await;
    assert_in_order(&gang.states(), &[Pending, Running, Pending, Running, Completed], &[Failed, Suspended]);
    assert_eq!(status.workers.unwrap().succeeded, 10);
    eventually("Kueue to know of the end", SOON, async || {
        (space.condition_of_workload("Finished") == "True").then_some(())
    })
    .await;
    println!("{}", space.story());
    space.end().await;
}

/// A suspended job leaves its queue, and returns to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn suspended_gang_of_several_roles_leaves_the_queue() {
    let mut space = Space::new("left", 4).await;
    {
        let roles = json!([{ "name": "actor", "replicas": 2, "gpusPerReplica": 1 }]);
        let gang = space.submit("gang", 2, json!({ "framework": "none", "roles": roles })).await;
        gang.runs(0).await;
        gang.set(json!({ "suspend": true })).await;
        gang.state(Suspended).await;
        eventually("the Workload to be gone", SOON, async || space.workloads().is_empty().then_some(())).await;
        space.urgent_job(1).await;
        gang.set(json!({ "suspend": false })).await;
        gang.is_queued().await;
    }
    // The next operator knows only what it reads.
    space.replace_operator().await;
    let gang = space.known("gang", 2);
    gang.is_queued().await;
    space.end_urgent_job().await;
    gang.runs(0).await;
    space.end().await;
}

/// The Job controller makes pods for seconds before it reports that the Job is no longer suspended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_worker_of_a_large_gang_is_counted_after_a_resume() {
    let space = Space::new("large", 64).await;
    let gang = space.submit("gang", 64, json!({ "failurePolicy": { "startDeadlineSeconds": 60 } })).await;
    gang.runs(0).await;
    space.urgent_job(1).await;
    gang.is_queued().await;
    space.end_urgent_job().await;
    gang.runs(0).await;
    gang.complete().await;
    println!("{}", space.story());
    space.end().await;
}

/// Succeeded workers are not started again. No process may wait for them, even if it has forgotten them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gang_resumes_without_its_ended_workers() {
    let mut space = Space::new("ended", 16).await;
    {
        let gang = space.submit("gang", 16, json!({})).await;
        gang.runs(0).await;
        for worker in [0, 3, 7, 15] {
            gang.end_worker(worker).await;
        }
        gang.runs(4).await;
        space.urgent_job(8).await;
        gang.is_queued().await;
        for worker in [3, 15] {
            gang.collect_worker(worker).await;
        }
    }
    space.replace_operator().await;
    let gang = space.known("gang", 16);
    gang.is_queued().await;
    space.end_urgent_job().await;
    gang.runs(4).await;
    let status = gang.complete().await;
    assert_eq!(status.workers.unwrap().succeeded, 16);
    space.end().await;
}

/// `activeDeadlineSeconds` counts the time in which the job may run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queue_time_does_not_count_toward_the_deadline() {
    let space = Space::new("deadline", 16).await;
    let gang = space.submit("gang", 16, json!({})).await;
    let start = gang.runs(0).await.start_time.unwrap().0;
    let since_start = || Timestamp::now().duration_since(start).as_secs();
    space.urgent_job(8).await;
    gang.is_queued().await;
    let preempted = since_start();

    // The deadline passes while the gang waits.
    let deadline = since_start() + 5;
    gang.set(json!({ "failurePolicy": { "activeDeadlineSeconds": deadline } })).await;
    eventually("the deadline to be long past", SOON, async || (since_start() > deadline + 15).then_some(())).await;
    // After any change, the operator has decided again.
    let status = gang.set(json!({ "ttlSecondsAfterFinished": 3600 })).await;
    if status.state != Some(Pending) {
        gang.explain("it waits in the queue, for as long as that takes");
    }

    gang.set(json!({ "failurePolicy": { "activeDeadlineSeconds": 3600 } })).await;
    space.end_urgent_job().await;
    gang.runs(0).await;
    // This deadline may take as long again as all the time in the queue.
    let queued = since_start() - preempted;
    assert!(queued > 20);
    let status = gang.set(json!({ "failurePolicy": { "activeDeadlineSeconds": since_start() - 2 } })).await;
    if status.state != Some(Running) {
        gang.explain("the time in the queue is counted after it");
    }
    gang.set(json!({ "failurePolicy": { "activeDeadlineSeconds": 3600 } })).await;
    gang.complete().await;
    space.end().await;
}

/// The agent of the resumed program starts its count of evaluations again, in the same attempt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn early_stopping_count_survives_a_resume() {
    let space = Space::new("early", 16).await;
    let file = space.file("evaluations");
    let evaluation = |step: u32, loss: f64| {
        let mut file = OpenOptions::new().create(true).append(true).open(&file).unwrap();
        writeln!(file, "{}", json!({ "step": step, "eval_loss": loss })).unwrap();
    };
    evaluation(10, 0.3);
    evaluation(20, 0.4);
    let gang = space
        .submit(
            "gang",
            16,
            json!({
                // Each start of the program continues where the file ends, as from a checkpoint.
                "command": ["sh", "-c", format!("exec tail -n +$(cat {file}.next || echo 1) -f {file} >> $TRAININGJOB_PROGRESS_FILE")],
                "successPolicy": { "earlyStopping": { "patience": 3 } },
                "monitoring": { "metricsPort": free_port() },
                "podTemplate": { "metadata": { "annotations": { "simulated/ip": "127.0.0.1" } } },
            }),
        )
        .await;
    gang.runs(0).await;
    let program = gang.start_program().await;
    gang.until("the first evaluations", |status| {
        status.early_stopping.as_ref().is_some_and(|stands| (stands.best, stands.evaluations_since_best) == (0.3, 1))
    })
    .await;
    space.urgent_job(8).await;
    gang.is_queued().await;
    drop(program);
    std::fs::write(format!("{file}.next"), "3").unwrap();
    space.end_urgent_job().await;
    gang.runs(0).await;

    let _program = gang.start_program().await;
    evaluation(30, 0.5);
    gang.until("an evaluation after the resume", |status| {
        status.early_stopping.as_ref().is_some_and(|stands| (stands.best, stands.evaluations_since_best) == (0.3, 2))
    })
    .await;
    evaluation(40, 0.6);
    let status = gang.state(Completed).await;
    let succeeded = status.conditions.iter().find(|condition| condition.type_ == "Succeeded").unwrap();
    assert_eq!(succeeded.reason, "EarlyStopped", "{}", succeeded.message);
    gang.has_not_failed();
    space.end().await;
}
