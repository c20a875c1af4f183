//! A gang of several roles: one Job for each role, and one life.

use crate::world::{BY_HAND, Space, attempt, plane};
use api::State::{Completed, Pending, Running, Suspended};
use api::TrainingJobStatus;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, ResourceQuota, Service};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};
use testkit::wait::{SOON, eventually};

/// Two workers, two actors, and a chief that decides. The test sets the state of their pods.
fn spec() -> Value {
    json!({
        "framework": "none", "image": "none", "checkpoint": { "enabled": false },
        "roles": [{ "name": "actor", "replicas": 2, "command": ["act"] }, { "name": "chief", "leader": true }],
        "podTemplate": { "metadata": { "annotations": { BY_HAND: "" } } },
    })
}

const JOBS: [&str; 3] = ["x-actor", "x-chief", "x-training"];

async fn jobs(space: &Space) -> Vec<Job> {
    let mut jobs = space.api::<Job>().list(&ListParams::default()).await.unwrap().items;
    jobs.sort_by_key(ResourceExt::name_any);
    jobs
}

/// Waits until the only Jobs are those of this incarnation.
async fn jobs_of(space: &Space, incarnation: u32) -> Vec<Job> {
    eventually(&format!("the Jobs of incarnation {incarnation}"), SOON, async || {
        let jobs = jobs(space).await;
        let is_of = |job: &Job| job.labels()["ml.example.com/incarnation"] == incarnation.to_string();
        (jobs.iter().map(ResourceExt::name_any).eq(JOBS) && jobs.iter().all(is_of)).then_some(jobs)
    })
    .await
}

fn role(pod: &Pod) -> &str {
    &pod.labels()["component"]
}

fn of_role(pods: &[Pod], name: &str) -> Pod {
    pods.iter().find(|pod| role(pod) == name).unwrap().clone()
}

fn container(state: Value) -> Value {
    let runs = state.get("running").is_some();
    json!([{ "name": "training", "image": "none", "imageID": "", "ready": runs, "started": runs, "restartCount": 0, "state": state }])
}

async fn run(space: &Space, pods: &[Pod]) {
    for pod in pods {
        let status = container(json!({ "running": { "startedAt": Timestamp::now() } }));
        space.set_pod(pod, json!({ "phase": "Running", "containerStatuses": status })).await;
    }
}

async fn end(space: &Space, pod: &Pod, exit_code: i32) {
    let end = json!({ "exitCode": exit_code, "reason": "x", "finishedAt": Timestamp::now() });
    let phase = if exit_code == 0 { "Succeeded" } else { "Failed" };
    space.set_pod(pod, json!({ "phase": phase, "containerStatuses": container(json!({ "terminated": end })) })).await;
}

#[tokio::test]
async fn roles_run_together_and_one_role_decides_the_outcome() {
    let space = plane().space("roles", json!({})).await;
    let operator = space.operator().await;
    let job = space.submit("x", spec()).await;
    let pods = space.placed("x", 5).await;
    jobs_of(&space, 1).await;
    let written = space.writes("jobs");
    assert_eq!(written.iter().map(|write| write.name.as_str()).collect::<Vec<_>>().last(), Some(&"x-training"));
    let service: Service = space.has("x-headless").await;
    let selector = service.spec.unwrap().selector.unwrap();
    for pod in &pods {
        assert!(selector.iter().all(|(key, value)| pod.labels().get(key) == Some(value)), "{}", pod.name_any());
        assert_eq!(pod.spec.as_ref().unwrap().subdomain.as_deref(), Some("x-headless"));
    }

    let (others, rest): (Vec<Pod>, Vec<Pod>) = pods.iter().cloned().partition(|pod| role(pod) != "actor");
    run(&space, &others).await;
    let counts = |s: &TrainingJobStatus, name: &str| {
        s.roles.iter().find(|r| r.name == name).map(|r| (r.count.desired, r.count.active))
    };
    let waits = job.until("workers and chief are there", |s| counts(s, "chief") == Some((1, 1))).await;
    assert_ne!(waits.state, Some(Running), "the actors are not");
    run(&space, &rest).await;
    let status = job.state(Running).await;
    assert_eq!((status.workers.unwrap().active, counts(&status, "actor")), (2, Some((2, 2))));

    // The agents end the others with exit code 0.
    end(&space, &of_role(&pods, "chief"), 0).await;
    let status = job.state(Completed).await;
    let succeeded = status.conditions.iter().find(|c| c.type_ == "Succeeded").unwrap();
    assert_eq!(succeeded.message, "every chief exited with code 0");
    for pod in pods.iter().filter(|pod| role(pod) != "chief") {
        end(&space, pod, 0).await;
    }
    for name in JOBS {
        let is_complete = |job: &Job| job.status.as_ref().is_some_and(|status| status.completion_time.is_some());
        space.until::<Job>(name, "complete", is_complete).await;
    }
    assert_eq!(space.pods("x").await.len(), 5, "their logs stay");
    space.end(operator).await;
}

#[tokio::test]
async fn failed_role_restarts_all_roles() {
    let space = plane().space("roles-fail", json!({})).await;
    let operator = space.operator().await;
    let job = space.submit("x", spec()).await;
    let pods = space.placed("x", 5).await;
    run(&space, &pods).await;
    job.state(Running).await;
    let actor = of_role(&pods, "actor");
    end(&space, &actor, 3).await;
    let status = job.until("the cause is filed", |s| !s.restarts.is_empty()).await;
    let entry = &status.restarts[0];
    assert_eq!((entry.role.as_str(), entry.worker, entry.pod.clone()), ("actor", Some(0), Some(actor.name_any())));
    assert!(entry.to_string().starts_with("actor 0 (pod x-actor-0-"), "{}", entry.message);
    // Nothing answers for the others' agents, which would wait for the actors. They are stopped.
    let again = eventually("the pods of the second incarnation", SOON, async || {
        space.remove_stopping("x").await;
        let pods = space.pods("x").await;
        (pods.len() == 5 && pods.iter().all(|pod| attempt(pod) == 2)).then_some(pods)
    })
    .await;
    jobs_of(&space, 2).await;
    eventually("all have a node", SOON, async || {
        let placed = space.placed("x", 5).await;
        (placed.len() == again.len()).then_some(())
    })
    .await;
    run(&space, &space.pods("x").await).await;
    let status = job.state(Running).await;
    assert_eq!((status.attempt, status.restart_count), (Some(2), Some(1)));

    // A deleted Job of one role is no failure.
    let before = jobs_of(&space, 2).await;
    space.delete_with::<Job>("x-chief", DeleteParams::foreground()).await;
    let status = eventually("a third incarnation", SOON, async || {
        space.remove_stopping("x").await;
        Some(job.status()).filter(|status| status.incarnation == Some(3))
    })
    .await;
    let entry = status.restarts.last().unwrap();
    assert_eq!((entry.reason.as_str(), entry.disruption), ("JobDeleted", true));
    assert_ne!(before.len(), 0);
    space.end(operator).await;
}

/// The Job of the workers is created last. The other roles' Jobs wait for it, and go with it.
#[tokio::test]
async fn incomplete_set_of_role_jobs_is_reported_and_completed_later() {
    let space = plane().space("roles-quota", json!({})).await;
    let quota = json!({ "metadata": { "name": "few" }, "spec": { "hard": { "count/jobs.batch": "2" } } });
    space.create::<ResourceQuota>(quota).await;
    space
        .until::<ResourceQuota>("few", "counts", |quota| quota.status.as_ref().is_some_and(|s| s.used.is_some()))
        .await;
    let operator = space.operator().await;
    let mut simulated = spec();
    simulated.as_object_mut().unwrap().remove("podTemplate");
    let job = space.submit("x", simulated).await;
    let blocked = job.condition("Scheduled", "False", "QuotaExceeded").await;
    assert!(blocked.message.starts_with("Job: "), "{}", blocked.message);
    assert_eq!(jobs(&space).await.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["x-actor", "x-chief"]);
    assert_eq!(job.status().state, Some(Pending));

    job.set(json!({ "suspend": true })).await;
    job.state(Suspended).await;
    eventually("no Job", SOON, async || jobs(&space).await.is_empty().then_some(())).await;
    space.patch::<ResourceQuota>("few", json!({ "spec": { "hard": { "count/jobs.batch": "3" } } })).await;
    job.set(json!({ "suspend": false })).await;
    let jobs = eventually("all Jobs", SOON, async || Some(jobs(&space).await).filter(|jobs| jobs.len() == 3)).await;
    assert!(jobs.iter().map(ResourceExt::name_any).eq(JOBS));
    space.end(operator).await;
}
