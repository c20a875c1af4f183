//! Operators after each other, and TrainingJobs that this operator can't read.

use crate::world::{Request, plane, uids};
use api::State::{Pending, Running};
use api::TrainingJob;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use objects::labels;
use serde_json::json;
use std::time::Duration;
use testkit::wait::{SOON, eventually};
use trainingjob_operator::controller;

#[tokio::test]
async fn operator_version_change_restarts_nothing() {
    let space = plane().space("versions", json!({})).await;
    let operator = space.operator_of_version("registry.example/operator:1").await;
    let (runs, waits) = (
        space.submit("runs", json!({})).await,
        space.submit("waits", json!({ "scheduling": { "nodeSelector": { "there": "nowhere" } } })).await,
    );
    runs.state(Running).await;
    waits.condition("Scheduled", "False", "Unschedulable").await;
    operator.end().await;

    // An older version made another template, hash and pull policy, and the labels of before 0.2.0. Templates can't be
    // changed, so that the operator recreates the Job.
    let mut old = waits.job().await;
    space.delete::<Job>("waits-training").await;
    eventually("the Job and its pods to be gone", SOON, async || {
        (space.get::<Job>("waits-training").await.is_none() && space.pods("waits").await.is_empty()).then_some(())
    })
    .await;
    let spec = old.spec.as_mut().unwrap();
    (spec.selector, spec.template.metadata.as_mut().unwrap().annotations) = (None, None);
    let pod_labels = spec.template.metadata.as_mut().unwrap().labels.as_mut().unwrap();
    pod_labels.retain(|key, _| !key.contains("controller-uid") && !key.contains("job-name"));
    let template = spec.template.spec.as_mut().unwrap();
    (template.init_containers, template.node_selector) = (None, None);
    template.containers[0].image = Some("older".into());
    old.metadata.annotations.as_mut().unwrap().insert(labels::INTENT.into(), "of an older version".into());
    (old.metadata.uid, old.metadata.resource_version, old.status) = (None, None, None);
    let job_labels = old.metadata.labels.as_mut().unwrap();
    job_labels.retain(|key, _| !key.contains("controller-uid") && !key.contains("job-name"));
    let pod_labels = old.spec.as_mut().unwrap().template.metadata.as_mut().unwrap().labels.as_mut().unwrap();
    for found in [job_labels, pod_labels] {
        let incarnation = found.remove(labels::INCARNATION).unwrap();
        found.insert("ml.example.com/attempt".into(), incarnation);
        found.retain(|key, _| key != labels::JOB_NAME && key != labels::ROLE);
    }
    space.create::<Job>(serde_json::to_value(&old).unwrap()).await;
    space.placed("waits", 2).await;

    let jobs = [runs.job().await, waits.job().await];
    let pods = [space.pods("runs").await, space.pods("waits").await];
    let before = space.acts().len();
    let operator = space.operator_of_version("registry.example/operator:2").await;
    waits.state(Running).await;
    eventually("a look at both", SOON, async || {
        let all: f64 = operator
            .metric(&format!("trainingjob_reconciliation_total{{namespace=\"{}\",result=\"success\"}}", space.name));
        (all >= 2.0).then_some(())
    })
    .await;
    for ((job, then), pods) in [&runs, &waits].into_iter().zip(jobs).zip(pods) {
        let now = job.job().await;
        assert_eq!((now.uid(), now.metadata.generation), (then.uid(), then.metadata.generation), "{}", job.name);
        assert_eq!(uids(&space.pods(&job.name).await), uids(&pods), "{}", job.name);
        let status = job.status();
        assert_eq!((status.attempt, status.restart_count), (Some(1), Some(0)), "{}", job.name);
    }
    let writes: Vec<Request> = space.acts().split_off(before).into_iter().filter(|r| r.resource != "events").collect();
    let status_only = |r: &Request| r.resource == "trainingjobs/status" && r.name == "waits";
    assert!(writes.iter().all(status_only), "{writes:?}");
    let image = |pod: &Pod| pod.spec.as_ref().unwrap().init_containers.as_ref().unwrap()[0].image.clone();
    assert_eq!(image(&space.pods("runs").await[0]).as_deref(), Some("registry.example/operator:1"));
    space.end(operator).await;
}

#[tokio::test]
async fn unreadable_job_does_not_affect_others() {
    let space = plane().space("unreadable", json!({})).await;
    let operator = space.operator().await;
    // The CRD of this control plane takes a number here, as one of another version might.
    let bad = space.submit("bad", json!({ "workingDir": 7 })).await;
    let good = space.submit("good", json!({})).await;
    good.state(Running).await;
    let reported = |object: &kube::api::DynamicObject| {
        let all = object.data["status"]["conditions"].as_array()?;
        all.iter().find(|c| c["type"] == "Accepted").cloned()
    };
    let resource = kube::api::ApiResource::erase::<TrainingJob>(&());
    let api = kube::Api::<kube::api::DynamicObject>::namespaced_with(space.client.clone(), &space.name, &resource);
    let condition =
        eventually("the unreadable job to say so", SOON, async || reported(&api.get("bad").await.unwrap())).await;
    assert_eq!((condition["status"].as_str(), condition["reason"].as_str()), (Some("False"), Some("Unreadable")));
    let message = condition["message"].as_str().unwrap();
    assert_eq!(
        message,
        "this version of the operator can't read spec.workingDir: invalid type: integer `7`, expected a string; upgrade \
         the operator, or delete the TrainingJob and create it with a value that this version knows"
    );
    assert!(bad.described().contains(message));
    assert_eq!(api.get("bad").await.unwrap().data["status"]["state"], json!("Pending"));

    // The operator reports it once, and serves other jobs all the while.
    good.set(json!({ "ttlSecondsAfterFinished": 1000 })).await;
    good.until("the new generation", |s| s.observed_generation == Some(2)).await;
    space.patch::<k8s_openapi::api::core::v1::Service>("good-headless", json!({ "spec": { "selector": null } })).await;
    space
        .until::<k8s_openapi::api::core::v1::Service>("good-headless", "put right", |s| {
            s.spec.as_ref().unwrap().selector.is_some()
        })
        .await;
    // One write for each version, and one more where the first was refused because the job had just changed.
    operator.idle(Duration::ZERO).await;
    let of_bad = |r: &&Request| r.name == "bad" && r.verb != "get";
    assert!((1..=2).contains(&space.acts().iter().filter(of_bad).count()), "{:?}", space.acts());
    assert_eq!(good.states().first(), Some(&Pending));
    space.delete::<TrainingJob>("good").await;
    api.delete("bad", &kube::api::DeleteParams::default()).await.unwrap();
    space.end(operator).await;
}

/// The state after a downgrade. The job may be over, or wait for something that only a newer operator knows.
#[tokio::test]
async fn job_in_a_newer_operators_state_is_left_alone() {
    let space = plane().space("newer", json!({})).await;
    let operator = space.operator().await;
    let newer = space.submit("newer", json!({})).await;
    newer.state(Running).await;
    operator.end().await;
    let (job, pods) = (newer.job().await, space.pods("newer").await);
    let resource = kube::api::ApiResource::erase::<TrainingJob>(&());
    let api = kube::Api::<kube::api::DynamicObject>::namespaced_with(space.client.clone(), &space.name, &resource);
    let set = async |state: &str| {
        let patch = kube::api::Patch::Merge(json!({ "status": { "state": state } }));
        api.patch_status("newer", &kube::api::PatchParams::default(), &patch).await.unwrap();
    };
    set("Archived").await; // no enum in the CRD refuses it
    let operator = space.operator().await;
    let ready = newer.condition("Accepted", "False", "Unreadable").await;
    let reported =
        "this version of the operator can't read status.state: a value of a newer operator; upgrade the operator";
    assert!(ready.message.starts_with(reported), "{}", ready.message);
    let good = space.submit("good", json!({})).await;
    good.state(Running).await;
    operator.idle(Duration::ZERO).await;
    assert_eq!(api.get("newer").await.unwrap().data["status"]["state"], "Archived");
    assert_eq!((newer.job().await.uid(), uids(&space.pods("newer").await)), (job.uid(), uids(&pods)));
    set("Running").await;
    newer.condition("Accepted", "True", "Valid").await;
    assert_eq!((newer.job().await.uid(), newer.status().restart_count), (job.uid(), Some(0)));
    space.end(operator).await;
}

/// The API server admits 10,000 levels, and a list of such jobs is more than `serde_json` reads as a whole.
#[tokio::test]
async fn deeply_nested_job_does_not_stall_others_after_a_restart() {
    let space = plane().space("deep", json!({})).await;
    // A Kubernetes client would not read the answer either.
    let submit = async |name: &str, template: &str| {
        let body = format!(
            r#"{{"apiVersion":"ml.example.com/v1","kind":"TrainingJob","metadata":{{"name":"{name}"}},
                "spec":{{"model":"m","dataset":"d","numWorkers":1,"podTemplate":{template}}}}}"#
        );
        let url = format!("/apis/ml.example.com/v1/namespaces/{}/trainingjobs", space.name);
        let request = http::Request::post(url).header("content-type", "application/json").body(body.into_bytes());
        space.client.request_text(request.unwrap()).await.unwrap();
    };
    let nested = |depth: usize| format!("{}1{}", r#"{"spec":"#.repeat(depth), "}".repeat(depth));
    submit("deep", &nested(200)).await;
    submit("deepest", &nested(5000)).await;
    submit("ones", &format!(r#"{{"spec":{{"containers":[{}1]}}}}"#, "1,".repeat(600_000))).await;
    let good = space.submit("good", json!({})).await;
    let operator = space.operator().await;
    good.state(Running).await;
    // The jobs get the reason, whether they existed before the operator or were created while it watched.
    submit("later", &nested(200)).await;
    let accepted = async |name: &str| {
        let url = format!("/apis/ml.example.com/v1/namespaces/{}/trainingjobs/{name}", space.name);
        let text = space.client.request_text(http::Request::get(url).body(Vec::new()).unwrap()).await.unwrap();
        let (_, status) = text.split_once(r#""status":{"conditions":["#)?;
        Some(status.to_owned())
    };
    for (name, words) in [
        ("deep", "spec is nested 201 levels"),
        ("deepest", "spec is nested 5001"),
        ("ones", "spec is 1171 KiB of JSON"),
        ("later", "201"),
    ] {
        let status = eventually("it to be said", SOON, async || accepted(name).await).await;
        assert!(
            status.contains("Unreadable") && status.contains(words),
            "{name}: {}",
            &status[..300.min(status.len())]
        );
    }
    operator.end().await;
    let operator = space.operator().await;
    let another = space.submit("another", json!({})).await;
    another.state(Running).await;
    space.end(operator).await;
}

/// The operator has no access to the passwords and keys in a namespace.
#[tokio::test]
async fn operator_cannot_read_secrets_of_others() {
    let space = plane().space("secrets", json!({})).await;
    let client = space.restricted().await;
    // The operator may create and read the Secret that it keeps itself.
    let own_key = async || controller::operator_key(&client, &space.name).await.unwrap().job_key("uid");
    assert_eq!(own_key().await, own_key().await);
    let secrets = kube::Api::<k8s_openapi::api::core::v1::Secret>::namespaced(client.clone(), &space.name);
    let refused = [
        secrets.list(&Default::default()).await.map(drop),
        secrets.get("x").await.map(drop),
        secrets.watch(&Default::default(), "0").await.map(drop),
    ];
    for answer in refused {
        assert!(matches!(&answer, Err(kube::Error::Api(status)) if status.is_forbidden()), "{answer:?}");
    }
    space.close(&["secrets"]).await;
}
