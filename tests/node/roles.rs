//! Gangs of several roles on a real node: plain programs that use the environment of TensorFlow and other frameworks.

use super::wait::eventually;
use super::world::{Job, SOON, Space, merged, training, world};
use super::{behind, environment};
use api::State::{Completed, Running};
use k8s_openapi::api::batch::v1::Job as KubernetesJob;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

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

/// A parameter server fails, and all start again in their pods. The chief ends, and the rest is ended.
#[tokio::test]
async fn failed_parameter_server_restarts_all_and_chief_ends_all() {
    let Some(world) = world() else { return };
    let space = world.space("roles", json!({})).await;
    let fields = json!({
        "framework": "tensorflow", "command": ["python3", "/programs/roles.py"],
        "env": [{ "name": "FAILS", "value": "ps 1" }],
        "roles": [{ "name": "chief" }, { "name": "ps", "replicas": 2 }, { "name": "evaluator" }],
    });
    let job = space.submit("x", fields).await;
    let status = job.state(Completed).await;
    let pods = by_place(&job);
    let places = ["chief 0", "evaluator 0", "ps 0", "ps 1", "worker 0", "worker 1"];
    assert_eq!(pods.keys().map(String::as_str).collect::<Vec<_>>(), places, "the pods stayed");

    let [restart] = &status.restarts[..] else { panic!("one restart: {:?}", status.restarts) };
    assert_eq!((restart.role.as_str(), restart.worker, restart.reason.as_str()), ("ps", Some(1), "PythonException"));
    assert!(restart.to_string().starts_with("ps 1 (pod x-ps-1-"), "{}", restart.message);
    assert!(restart.to_string().contains("ValueError: the parameters are gone"), "{}", restart.message);
    assert_eq!((status.attempt, status.incarnation, status.restart_count), (Some(2), Some(1), Some(1)));

    // The chief's output is the job's progress, though worker 0 leads.
    assert_eq!((status.current_epoch, status.total_epochs), (Some(10), Some(10)));
    let reported = status.conditions.iter().find(|condition| condition.type_ == "Succeeded").unwrap();
    assert_eq!(reported.message, "every chief exited with code 0");

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

/// What the frameworks' sources read where real pods are needed: an address instead of a name, and roles that the
/// operator adds. The rest is tested with agents alone (tests/agents).
#[tokio::test]
async fn framework_environment_is_set_in_real_pods() {
    let Some(world) = world() else { return };
    let space = world.space("frameworks", json!({})).await;
    let with = |framework: &str, more: Value| {
        merged(json!({ "framework": framework, "command": ["python3", "/programs/environment.py"] }), &more)
    };
    let paddle = space.submit("paddle", with("paddle", json!({}))).await;
    // Scheduler and servers end as soon as the workers have ended, so that all stay until each has printed.
    let stays = json!({
        "roles": [{ "name": "server", "replicas": 2 }], "env": [{ "name": "STAYS", "value": "1" }],
        "checkpoint": { "storage": { "type": "pvc", "size": "1Gi" } },
    });
    let mxnet = space.submit("mxnet", with("mxnet", stays)).await;

    paddle.state(Completed).await;
    let pods = by_place(&paddle);
    let address = pods["worker 0"].status.as_ref().unwrap().pod_ip.clone().unwrap();
    let mut masters = BTreeSet::new();
    for pod in pods.values() {
        masters.insert(environment(&space, pod).await["env"]["PADDLE_MASTER"].as_str().unwrap().to_owned());
    }
    assert_eq!(masters.len(), 1, "all mean the same: {masters:?}");
    assert!(masters.first().unwrap().starts_with(&format!("{address}:")), "{masters:?} by number, which is {address}");
    assert_eq!(environment(&space, &pods["worker 0"]).await["env"]["POD_IP"], address);

    mxnet.state(Running).await;
    let pods = by_place(&mxnet);
    let places = ["scheduler 0", "server 0", "server 1", "worker 0", "worker 1"];
    assert_eq!(pods.keys().map(String::as_str).collect::<Vec<_>>(), places);
    let mut root = BTreeSet::new();
    for (place, pod) in &pods {
        let env = environment(&space, pod).await["env"].take();
        assert!(place.starts_with(env["DMLC_ROLE"].as_str().unwrap()), "{place}: {env}");
        assert_eq!((&env["DMLC_NUM_SERVER"], &env["DMLC_NUM_WORKER"]), (&json!("2"), &json!("2")));
        root.insert(format!("{}:{}", env["DMLC_PS_ROOT_URI"], env["DMLC_PS_ROOT_PORT"]));
    }
    assert_eq!(root.len(), 1, "{root:?}");
    fs::write(behind(&space, "mxnet-checkpoints").await.join("enough"), "").unwrap();
    mxnet.state(Completed).await;
    space.end().await;
}
