//! Gangs of several roles on a real node: plain programs that speak as TensorFlow's and others' do.

use super::wait::eventually;
use super::world::{Job, SOON, Space, training, world};
use k8s_openapi::api::batch::v1::Job as KubernetesJob;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use trainingjob_operator::api::State::Completed;

fn place(pod: &Pod) -> String {
    format!("{} {}", pod.labels()["component"], super::worker(pod))
}

fn by_place(job: &Job) -> BTreeMap<String, Pod> {
    job.pods().into_iter().map(|pod| (place(&pod), pod)).collect()
}

fn log(space: &Space, pod: &Pod) -> String {
    String::from_utf8(space.logs(&pod.name_any())).unwrap()
}

fn exit_code(pod: &Pod) -> Option<i32> {
    Some(training(pod)?.state?.terminated?.exit_code)
}

/// A parameter server fails, all start again in their pods, the chief comes to its end, and the rest is ended.
#[tokio::test]
async fn a_chief_with_parameter_servers_and_an_evaluator() {
    let Some(world) = world() else { return };
    let space = world.space("roles", json!({})).await;
    let fields = json!({
        "framework": "tensorflow", "command": ["python3", "/programs/roles.py"],
        "env": [{ "name": "FAILS", "value": "ps 1" }],
        "roles": [{ "name": "chief" }, { "name": "ps", "replicas": 2 }, { "name": "evaluator" }],
    });
    let mut job = space.submit("x", fields).await;
    let status = job.state(Completed).await;
    let pods = by_place(&job);
    let places = ["chief 0", "evaluator 0", "ps 0", "ps 1", "worker 0", "worker 1"];
    assert_eq!(pods.keys().map(String::as_str).collect::<Vec<_>>(), places, "the pods stayed");

    let [restart] = &status.restarts[..] else { panic!("one restart: {:?}", status.restarts) };
    assert_eq!(
        (restart.role.as_deref(), restart.worker, restart.reason.as_str()),
        (Some("ps"), Some(1), "PythonException")
    );
    assert!(restart.message.starts_with("ps 1 (pod x-ps-1-"), "{}", restart.message);
    assert!(restart.message.contains("ValueError: the parameters are gone"), "{}", restart.message);
    assert_eq!((status.attempt, status.incarnation, status.restart_count), (Some(2), Some(1), Some(1)));

    // The chief's words are the job's progress, though worker 0 leads.
    assert_eq!((status.current_epoch, status.total_epochs), (Some(10), Some(10)));
    let told = status.conditions.iter().find(|condition| condition.type_ == "Succeeded").unwrap();
    assert_eq!(told.message, "every chief exited with code 0");

    let pods = eventually("every pod to have ended with 0", SOON, async || {
        let pods = by_place(&job);
        pods.values().all(|pod| exit_code(pod) == Some(0)).then_some(pods)
    })
    .await;
    for name in ["x-chief", "x-evaluator", "x-ps", "x-training"] {
        let is_complete = |job: &KubernetesJob| job.status.as_ref().is_some_and(|s| s.completion_time.is_some());
        eventually(&format!("Job {name} to be complete"), SOON, async || {
            space.api::<KubernetesJob>().get_opt(name).await.unwrap().filter(is_complete)
        })
        .await;
    }
    let known = |place: &str| log(&space, &pods[place]).lines().next().unwrap_or_default().to_owned();
    assert_eq!(known("ps 0"), "ps 0 knows of ['chief', 'ps', 'worker']");
    assert_eq!(known("evaluator 0"), "evaluator 0 knows of ['evaluator']");
    assert!(log(&space, &pods["evaluator 0"]).contains("the last evaluation"), "it had time to end");
    space.end().await;
}

/// Roles of somebody's own, one of which says that it leads.
#[tokio::test]
async fn any_roles_of_which_one_leads() {
    let Some(world) = world() else { return };
    let space = world.space("any-roles", json!({})).await;
    let fields = json!({
        "framework": "none", "command": ["python3", "/programs/roles.py"], "numWorkers": 1,
        "roles": [{ "name": "ps" }, { "name": "chief", "leader": true }],
    });
    let mut job = space.submit("x", fields).await;
    let status = job.state(Completed).await;
    assert_eq!(status.restarts, []);
    let pods = by_place(&job);
    for (place, pod) in &pods {
        let words = log(&space, pod);
        assert!(words.contains(&format!("{place} knows of ['chief', 'ps', 'worker']")), "{place}: {words}");
    }
    space.end().await;
}

fn environment(space: &Space, pod: &Pod) -> Value {
    let log = log(space, pod);
    serde_json::from_str(log.lines().next().unwrap_or_default()).unwrap_or_else(|error| panic!("{log}: {error}"))
}

/// What the frameworks' sources read, in every pod.
#[tokio::test]
async fn the_environment_of_other_frameworks() {
    let Some(world) = world() else { return };
    let space = world.space("frameworks", json!({})).await;
    let of = |framework: &str, more: Value| {
        let mut fields = json!({ "framework": framework, "command": ["python3", "/programs/environment.py"] });
        fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        fields
    };
    let mut paddle = space.submit("paddle", of("paddle", json!({}))).await;
    let mut mxnet = space.submit("mxnet", of("mxnet", json!({ "roles": [{ "name": "server", "replicas": 2 }] }))).await;
    let mut xgboost = space.submit("xgboost", of("xgboost", json!({}))).await;

    paddle.state(Completed).await;
    let pods = by_place(&paddle);
    let address = pods["worker 0"].status.as_ref().unwrap().pod_ip.clone().unwrap();
    let masters: BTreeSet<String> = pods
        .values()
        .map(|pod| environment(&space, pod)["env"]["PADDLE_MASTER"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(masters.len(), 1, "all mean the same: {masters:?}");
    assert!(masters.first().unwrap().starts_with(&format!("{address}:")), "{masters:?} by number, which is {address}");
    assert_eq!(environment(&space, &pods["worker 0"])["env"]["POD_IP"], address);

    mxnet.state(Completed).await;
    let pods = by_place(&mxnet);
    assert_eq!(
        pods.keys().map(String::as_str).collect::<Vec<_>>(),
        ["scheduler 0", "server 0", "server 1", "worker 0", "worker 1"]
    );
    let mut root = BTreeSet::new();
    for (place, pod) in &pods {
        let env = environment(&space, pod)["env"].clone();
        assert!(place.starts_with(env["DMLC_ROLE"].as_str().unwrap()), "{place}: {env}");
        assert_eq!((&env["DMLC_NUM_SERVER"], &env["DMLC_NUM_WORKER"]), (&json!("2"), &json!("2")));
        root.insert(format!("{}:{}", env["DMLC_PS_ROOT_URI"], env["DMLC_PS_ROOT_PORT"]));
    }
    assert_eq!(root.len(), 1, "{root:?}");

    xgboost.state(Completed).await;
    for (place, pod) in by_place(&xgboost) {
        let env = environment(&space, &pod)["env"].clone();
        assert_eq!((&env["DMLC_TASK_ID"], &env["DMLC_NUM_WORKER"]), (&json!(place[7..].to_owned()), &json!("2")));
        assert_eq!(env["DMLC_TRACKER_PORT"], env["MASTER_PORT"]);
    }
    space.end().await;
}
