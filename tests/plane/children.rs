//! Children that another client deletes or changes.

use crate::world::{DURATION, Request, attempt, plane, uids};
use api::State::{Completed, Failed, Initializing, Pending, Running};
use api::TrainingJob;
use futures::future;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, PostParams, PropagationPolicy};
use objects::labels;
use serde_json::{Value, json};
use std::time::Duration;
use testkit::wait::{SOON, eventually};

#[tokio::test]
async fn deleted_service_or_config_map_is_recreated() {
    let space = plane().space("deleted", json!({})).await;
    let operator = space.operator().await;
    let job = space.submit("x", json!({})).await;
    job.state(Running).await;
    let (pods, training) = (uids(&space.pods("x").await), job.job().await);
    let (service, config) = (space.has::<Service>("x-headless").await, space.has::<ConfigMap>("x-config").await);

    space.delete::<Service>("x-headless").await;
    space.delete::<ConfigMap>("x-config").await;
    let again = space.until::<Service>("x-headless", "another one", |s| s.uid() != service.uid()).await;
    assert_eq!((&again.spec, ours(&again.metadata)), (&service.spec, ours(&service.metadata)));
    let again = space.until::<ConfigMap>("x-config", "another one", |c| c.uid() != config.uid()).await;
    assert_eq!((&again.data, ours(&again.metadata)), (&config.data, ours(&config.metadata)));

    assert_eq!(uids(&space.pods("x").await), pods, "the workers never noticed");
    assert_eq!(job.job().await.uid(), training.uid());
    assert_eq!(job.states().last(), Some(&Running));
    space.end(operator).await;
}

/// A pod gets a token of the API server only on request: by the name of another account, or by the pod template.
#[tokio::test]
async fn pod_has_a_token_only_on_request() {
    let space = plane().space("token", json!({})).await;
    let operator = space.operator().await;
    let asks = json!({ "podTemplate": { "spec": { "automountServiceAccountToken": true } } });
    for (name, fields, has_one) in
        [("plain", json!({}), false), ("named", json!({ "serviceAccountName": "default" }), true), ("asks", asks, true)]
    {
        let job = space.submit(name, fields).await;
        job.state(Running).await;
        for pod in space.pods(name).await {
            let volumes = pod.spec.unwrap().volumes.unwrap_or_default();
            assert_eq!(volumes.iter().any(|volume| volume.name.starts_with("kube-api-access")), has_one, "{name}");
        }
    }
    space.end(operator).await;
}

/// The network plugin decides which connections get through. This test checks the object.
#[tokio::test]
async fn network_policy_isolates_the_pods_of_a_job() {
    let space = plane().space("isolation", json!({})).await;
    let operator = space.operator().await;
    let open = json!({ "networking": { "isolate": false } });
    let host = json!({ "podTemplate": { "spec": { "hostNetwork": true } } });
    let jobs = [("open", open), ("host", host), ("alone", json!({ "numWorkers": 1 })), ("x", json!({}))]
        .map(|(name, fields)| space.submit(name, fields));
    for job in future::join_all(jobs).await {
        job.state(Running).await;
    }
    let mut policies = space.api::<NetworkPolicy>().list(&ListParams::default()).await.unwrap().items;
    policies.sort_by_key(|policy| policy.labels()[labels::TRAINING_JOB].clone());
    let names: Vec<_> = policies.iter().map(|policy| policy.labels()[labels::TRAINING_JOB].as_str()).collect();
    assert_eq!(names, ["alone", "x"]);
    let (policy, owner) = (&policies[1], space.has::<TrainingJob>("x").await.metadata.uid.unwrap());
    assert_eq!(policy.name_any(), format!("x-isolation-{}", &owner[..8]));
    let owners: Vec<_> = policy.owner_references().iter().map(|owner| (owner.uid.clone(), owner.controller)).collect();
    assert_eq!(owners, [(owner, Some(true))]);
    let spec = policy.spec.clone().unwrap();
    let selector = spec.pod_selector.clone().unwrap().match_labels.unwrap();
    let selected = space.api::<Pod>().list(&ListParams::default().labels(&labels::text(&selector))).await.unwrap();
    assert_eq!(uids(&selected.items), uids(&space.pods("x").await));
    let rules = spec.ingress.unwrap();
    assert_eq!(rules[0].from.as_ref().unwrap()[0].pod_selector, spec.pod_selector);
    assert_eq!((rules.len(), rules[1].from.as_ref(), rules[1].ports.as_ref().unwrap().len()), (2, None, 1));

    space.delete::<TrainingJob>("x").await;
    eventually("it to go with its job", SOON, async || {
        space.get::<NetworkPolicy>(&policy.name_any()).await.is_none().then_some(())
    })
    .await;
    space.end(operator).await;
}

#[tokio::test]
async fn deleted_claim_is_recreated() {
    let space = plane().space("claim", json!({})).await;
    let operator = space.operator().await;
    // Without a node for its pods nothing uses the claim, and Kubernetes removes it.
    let nowhere = json!({ "nodeSelector": { "there": "nowhere" } });
    let storage = json!({ "storage": { "type": "pvc", "size": "1Gi" } });
    let job = space.submit("x", json!({ "checkpoint": storage, "scheduling": nowhere })).await;
    job.condition("Scheduled", "False", "Unschedulable").await;
    let claim = space.has::<PersistentVolumeClaim>("x-checkpoints").await;
    space.delete::<PersistentVolumeClaim>("x-checkpoints").await;
    let again = space.until::<PersistentVolumeClaim>("x-checkpoints", "another one", |c| c.uid() != claim.uid()).await;
    assert_eq!(ours(&again.metadata), ours(&claim.metadata));
    space.end(operator).await;
}

#[tokio::test]
async fn deleted_objects_of_ended_jobs_are_not_recreated() {
    let space = plane().space("ended", json!({})).await;
    let operator = space.operator().await;
    let ends = json!({ "podTemplate": { "metadata": { "annotations": { DURATION: "0s" } } } });
    let (good, bad) = (space.submit("good", ends).await, space.submit("bad", json!({})).await);
    good.state(Completed).await;
    bad.state(Running).await;
    bad.set(json!({ "failurePolicy": { "activeDeadlineSeconds": 1 } })).await;
    bad.state(Failed).await;
    eventually("the Job of the failed one to be gone", SOON, async || {
        space.get::<Job>("bad-training").await.is_none().then_some(())
    })
    .await;

    space.delete::<Job>("good-training").await;
    for name in ["good", "bad"] {
        space.delete::<Service>(&format!("{name}-headless")).await;
        space.delete::<ConfigMap>(&format!("{name}-config")).await;
    }
    // An operator that has just started looks at every job with a fresh view, once.
    operator.end().await;
    let operator = space.operator_that_looked_at(2).await;
    for name in ["good", "bad"] {
        assert!(space.get::<Service>(&format!("{name}-headless")).await.is_none(), "{name}");
        assert!(space.get::<ConfigMap>(&format!("{name}-config")).await.is_none(), "{name}");
        assert!(space.get::<Job>(&format!("{name}-training")).await.is_none(), "{name}");
    }
    assert_eq!(good.states().last(), Some(&Completed));
    space.end(operator).await;
}

/// A Job's pods end with it. Its replacement is another attempt, which waits for the last pod of this one.
#[tokio::test]
async fn deleted_job_is_recreated_as_a_new_attempt() {
    let space = plane().space("jobless", json!({})).await;
    let operator = space.operator().await;
    let spec = json!({ "failurePolicy": { "backoffLimit": 0 } });
    for (name, cascade) in [("back", PropagationPolicy::Background), ("fore", PropagationPolicy::Foreground)] {
        let job = space.submit(name, spec.clone()).await;
        job.state(Running).await;
        let before = uids(&space.pods(name).await);
        let params = DeleteParams { propagation_policy: Some(cascade), ..DeleteParams::default() };
        space.delete_with::<Job>(&format!("{name}-training"), params).await;

        let running = |s: &api::TrainingJobStatus| s.attempt == Some(2) && s.state == Some(Running);
        let status = job.until("attempt 2 to run", running).await;
        let pods = space.pods(name).await;
        assert!(uids(&pods).is_disjoint(&before) && pods.iter().all(|pod| attempt(pod) == 2), "{name}");
        let gone = &status.restarts[0];
        assert_eq!((gone.reason.as_str(), gone.attempt, gone.disruption), ("JobDeleted", 1, true), "{name}");
        assert_eq!((status.restart_count, status.disruption_count), (Some(1), Some(1)), "{name}: nobody's failure");
        job.went_through(&[Running, Initializing, Running], &[Failed, Completed]);
    }
    space.end(operator).await;
}

/// `kubectl delete job --cascade=orphan` leaves the pods. Two gangs with the same hostnames would be worse than none.
#[tokio::test]
async fn new_attempt_waits_for_orphaned_pods() {
    let space = plane().space("orphans", json!({})).await;
    let operator = space.operator().await;
    let job = space.submit("x", json!({})).await;
    job.state(Running).await;
    let orphans = space.pods("x").await;
    let orphan = DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..DeleteParams::default() };
    space.delete_with::<Job>("x-training", orphan).await;

    let why = job.condition("Scheduled", "False", "OldPods").await;
    let name = orphans[0].name_any();
    assert_eq!(
        why.message,
        format!(
            "pod {name} of attempt 1 runs on without its Job; delete it, since attempt 2 starts when no pod is left"
        )
    );
    assert!(space.get::<Job>("x-training").await.is_none());
    for pod in &orphans {
        assert!(space.get::<Pod>(&pod.name_any()).await.is_some_and(|p| p.metadata.deletion_timestamp.is_none()));
        space.delete::<Pod>(&pod.name_any()).await;
    }
    job.until("attempt 2 to run", |s| s.attempt == Some(2) && s.state == Some(Running)).await;
    space.end(operator).await;
}

#[tokio::test]
async fn changed_service_or_config_map_is_reverted() {
    let space = plane().space("changed", json!({})).await;
    let operator = space.operator().await;
    let job = space.submit("x", json!({})).await;
    job.state(Running).await;
    let pods = uids(&space.pods("x").await);
    let none = Value::Null;
    let of_both = [
        json!({ "metadata": { "labels": { "app": "theirs" } } }),
        json!({ "metadata": { "labels": { "training-job": none } } }),
        json!({ "metadata": { "labels": { labels::UID: none } } }),
        json!({ "metadata": { "labels": { labels::UID: "another" } } }),
        json!({ "metadata": { "labels": { labels::MANAGED_BY: none } } }),
        json!({ "metadata": { "labels": none } }),
        json!({ "metadata": { "ownerReferences": none } }),
    ];
    let of_services = [
        json!({ "spec": { "selector": { "app": "theirs" } } }),
        json!({ "spec": { "selector": none } }),
        json!({ "spec": { "ports": [{ "name": "master", "port": 1 }] } }),
        json!({ "spec": { "publishNotReadyAddresses": false } }),
    ];
    let of_configs = [
        json!({ "data": { "model": "theirs" } }),
        json!({ "data": { "dataset": none } }),
        json!({ "data": { "more": "theirs" } }),
        json!({ "binaryData": { "more": "AA==" } }),
    ];
    let service = space.has::<Service>("x-headless").await;
    for change in of_both.iter().chain(&of_services) {
        let right = |s: &Service| (&s.spec, ours(&s.metadata)) == (&service.spec, ours(&service.metadata));
        let changed = space.patch::<Service>("x-headless", change.clone()).await;
        assert!(!right(&changed), "{change}");
        let wanted = format!("as it was before {change}");
        let again = space.until::<Service>("x-headless", &wanted, right).await;
        assert_eq!(again.uid(), service.uid());
    }
    let config = space.has::<ConfigMap>("x-config").await;
    for change in of_both.iter().chain(&of_configs) {
        let right = |c: &ConfigMap| {
            (&c.data, &c.binary_data, ours(&c.metadata)) == (&config.data, &config.binary_data, ours(&config.metadata))
        };
        let changed = space.patch::<ConfigMap>("x-config", change.clone()).await;
        assert!(!right(&changed), "{change}");
        let wanted = format!("as it was before {change}");
        let again = space.until::<ConfigMap>("x-config", &wanted, right).await;
        assert_eq!(again.uid(), config.uid());
    }
    operator.idle(Duration::from_secs(1)).await;
    // One update for each change, the first create, and a create that finds the object where a watch lost sight of it.
    for (kind, changes) in [("services", of_both.len() + of_services.len()), ("configmaps", 7 + of_configs.len())] {
        let updates = space.writes(kind).iter().filter(|r| r.verb == "update").count();
        // One more update where the first found that it was out of date.
        assert!((changes..=2 * changes).contains(&updates), "{kind}: {changes} changes, {:?}", space.writes(kind));
    }
    assert_eq!(uids(&space.pods("x").await), pods);
    assert_eq!(job.states().last(), Some(&Running));
    space.end(operator).await;
}

/// Labels, annotations and finalizers of other clients stay, also where something else has to be corrected.
#[tokio::test]
async fn metadata_added_by_others_is_kept() {
    let space = plane().space("added", json!({})).await;
    let operator = space.operator().await;
    space.submit("x", json!({})).await.state(Running).await;
    let before = space.acts().len();
    let theirs = json!({ "metadata": {
        "labels": { "team": "vision", "app.kubernetes.io/part-of": "vision", "app.kubernetes.io/version": "7" },
        "annotations": { "theirs.example.com/note": "kept" },
    } });
    space.patch::<Service>("x-headless", theirs.clone()).await;
    space.patch::<ConfigMap>("x-config", theirs.clone()).await;
    // A further change of both shows that the operator has seen what came before.
    space.patch::<Service>("x-headless", json!({ "metadata": { "labels": { "app": "theirs" } } })).await;
    space.patch::<ConfigMap>("x-config", json!({ "data": { "model": "theirs" } })).await;
    let service = space.until::<Service>("x-headless", "put right", |s| s.labels()["app"] == "training-job").await;
    let config =
        space.until::<ConfigMap>("x-config", "put right", |c| c.data.as_ref().unwrap()["model"] == "none").await;
    for meta in [&service.metadata, &config.metadata] {
        let meta = serde_json::to_value(meta).unwrap();
        for kind in ["labels", "annotations"] {
            for (key, value) in theirs["metadata"][kind].as_object().unwrap() {
                assert_eq!(&meta[kind][key], value, "{key}");
            }
        }
    }
    let since = space.acts().split_off(before);
    // Only requests for the children, because the log may be late with the status that said Running.
    let of_children = |r: &&Request| ["services", "configmaps"].contains(&r.resource.as_str());
    let updates = since.iter().filter(of_children).filter(|r| r.verb != "get").count();
    assert!((2..=4).contains(&updates), "one each, or one more where the first was out of date: {since:?}");
    space.end(operator).await;
}

/// The operator accepts what an admission plugin makes of its writes, and does not repeat them endlessly.
#[tokio::test]
async fn changes_by_admission_plugins_are_accepted() {
    let plane = plane();
    let space = plane.space("rewritten", json!({ "rewritten": "true" })).await;
    // The API server loads a new policy some time after its creation.
    let (api, dry_run) = (space.api::<ConfigMap>(), PostParams { dry_run: true, ..PostParams::default() });
    let any: ConfigMap = serde_json::from_value(json!({ "metadata": { "name": "any" } })).unwrap();
    let is_at_work = async || {
        let made = api.create(&dry_run, &any).await.unwrap();
        made.labels().contains_key("app").then_some(())
    };
    eventually("the policy to be at work", SOON, is_at_work).await;
    let operator = space.operator().await;
    let job = space.submit("x", json!({})).await;
    job.state(Running).await;
    let service = space.has::<Service>("x-headless").await;
    assert_eq!(service.labels()["app"], "rewritten", "the policy is at work");
    space.delete::<ConfigMap>("x-config").await;
    space.has::<ConfigMap>("x-config").await;
    // The operator reverts another client's change as far as the policy allows.
    space.patch::<Service>("x-headless", json!({ "spec": { "selector": { "app": "theirs" } } })).await;
    let right = |s: &Service| s.spec.as_ref().unwrap().selector == service.spec.as_ref().unwrap().selector;
    space.until::<Service>("x-headless", "put right", right).await;
    job.set(json!({ "suspend": true })).await;
    job.state(api::State::Suspended).await;
    // Correcting what the policy changes would never end.
    operator.idle(Duration::from_secs(5)).await;
    let writes = space.writes("services");
    let count = |verb: &str| writes.iter().filter(|write| write.verb == verb && write.code < 300).count();
    assert_eq!((count("create"), count("delete")), (1, 0), "{writes:?}");
    assert!((1..=2).contains(&count("update")), "{writes:?}");
    space.end(operator).await;
}

/// A queue manager owns the Job's suspend and parallelism, and puts labels and annotations on it.
#[tokio::test]
async fn changes_by_a_queue_manager_to_the_job_are_kept() {
    let space = plane().space("queued", json!({})).await;
    let operator = space.operator().await;
    let job = space.submit("x", json!({ "failurePolicy": { "backoffLimit": 0 } })).await;
    job.state(Running).await;
    let first = job.job().await;
    let theirs = json!({ "labels": { "queue": "theirs", "app": "theirs" }, "annotations": { "theirs": "1" } });
    space.patch::<Job>("x-training", json!({ "metadata": theirs })).await;

    // A queue preempts the Job: it is suspended, and its pods go. Later the queue admits it again.
    space.patch::<Job>("x-training", json!({ "spec": { "suspend": true } })).await;
    job.condition("Scheduled", "False", "Queued").await;
    eventually("no pod", SOON, async || space.pods("x").await.is_empty().then_some(())).await;
    job.until("no worker to run", |s| {
        s.state == Some(Pending) && s.workers.is_some_and(|w| (w.active, w.pending, w.failed) == (0, 2, 0))
    })
    .await;
    space.patch::<Job>("x-training", json!({ "spec": { "suspend": false } })).await;
    let status = job.state(Running).await;
    assert_eq!((status.attempt, status.restart_count, status.restarts.len()), (Some(1), Some(0), 0));

    let now = job.job().await;
    assert_eq!(now.uid(), first.uid());
    assert_eq!((now.labels()["app"].as_str(), now.labels()["queue"].as_str()), ("theirs", "theirs"));
    operator.idle(Duration::from_secs(1)).await;
    let writes = space.writes("jobs");
    assert!(writes.iter().all(|write| write.verb == "create"), "a Job was written after it was made: {writes:?}");
    space.end(operator).await;
}

/// Another client wants fewer pods than workers. The Job stays so, and the status says that workers are missing.
#[tokio::test]
async fn reduced_parallelism_is_kept_and_reported() {
    let space = plane().space("partial", json!({})).await;
    let operator = space.operator().await;
    let nowhere = json!({ "scheduling": { "nodeSelector": { "there": "nowhere" } } });
    let job = space.submit("x", nowhere).await;
    job.condition("Scheduled", "False", "Unschedulable").await;
    space.patch::<Job>("x-training", json!({ "spec": { "parallelism": 1 } })).await;
    eventually("one pod", SOON, async || (space.pods("x").await.len() == 1).then_some(())).await;
    let why = job.condition("Scheduled", "False", "Parallelism").await;
    let words = "another client changed the Job's parallelism to 1; this job needs 2 workers. Set it back, or delete the \
                 Job, which is then recreated";
    assert_eq!((why.message.as_str(), job.status().state), (words, Some(Pending)));
    assert_eq!(job.job().await.spec.unwrap().parallelism, Some(1));
    operator.idle(Duration::ZERO).await;
    let writes = space.writes("jobs");
    assert!(writes.iter().all(|write| write.verb == "create"), "{writes:?}");
    space.end(operator).await;
}

/// The part of an object's metadata that the operator owns.
fn ours(meta: &ObjectMeta) -> Value {
    let ours = |key: &&String| {
        *key == "app" || *key == "training-job" || key.starts_with("ml.example.com/") || *key == labels::MANAGED_BY
    };
    let labels: Vec<_> = meta.labels.iter().flatten().filter(|(key, _)| ours(key)).collect();
    json!([labels, meta.owner_references])
}
