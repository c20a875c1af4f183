//! Models and data sets by address. They are fetched before the workers start, once for all jobs that share a cache.

use super::stores::Bucket;
use super::world::{merged, world};
use super::{behind, checkpoints::logs, worker};
use api::State::{Completed, Failed};
use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Secret};
use kube::ResourceExt;
use serde_json::{Value, json};
use std::net::TcpListener;
use testkit::servers::{BUCKET, KEY, SECRET};

const READS: &str = "echo $MODEL; cat $MODEL/config.json $MODEL/weights/a.safetensors";

/// Two workers read what one Job has fetched. A second job fetches nothing, and its revision stays the same when the
/// bucket changes.
#[tokio::test]
async fn model_is_fetched_once_before_workers_are_created() {
    let Some(world) = world() else { return };
    let space = world.space("data", json!({})).await;
    let bucket = Bucket::open(&space).await;
    bucket.server.put("models/base/config.json", b"{\"layers\": 2}\n");
    bucket.server.put("models/base/weights/a.safetensors", b"weights of base\n");
    bucket.server.put("models/base-2/config.json", b"another model\n");
    let claim = json!({
        "metadata": { "name": "cache" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    });
    space.create::<PersistentVolumeClaim>(claim).await;
    space.create::<Secret>(bucket.data_keys("data-keys", SECRET)).await;
    let fields = |more: Value| {
        let all = json!({
            "model": format!("s3://{BUCKET}/models/base"), "credentialsSecret": "data-keys",
            "cache": { "pvcName": "cache", "path": "shared/models" }, "command": ["sh", "-c", READS],
        });
        merged(all, &more)
    };

    let first = space.submit("first", fields(json!({}))).await;
    let (waited, _) = first.condition("Scheduled", "False", "Fetching").await;
    assert!(waited.message.contains("s3://"), "{}", waited.message);
    assert!(space.api::<BatchJob>().get_opt("first-training").await.unwrap().is_none(), "no worker holds a node");
    let status = first.state(Completed).await;
    assert_eq!(logs(&space, &first).await, ["/models\n{\"layers\": 2}\nweights of base\n"; 2]);
    let [model] = status.data.as_slice() else { panic!("{:?}", status.data) };
    assert_eq!((model.name.as_str(), model.files, model.bytes, model.fetched_bytes), ("model", 2, 30, 30));
    assert!(behind(&space, "cache").await.join(format!("shared/models/{}/entry.json", model.key)).exists());
    // No pod in which a program runs has the credentials.
    let pods = space.pods().await;
    let of_gang = pods.iter().filter(|pod| pod.labels().get("training-job").is_some_and(|job| job == "first"));
    let of_gang: Vec<&Pod> =
        of_gang.filter(|pod| pod.spec.as_ref().unwrap().containers[0].name == "training").collect();
    assert_eq!(of_gang.len(), 2);
    for pod in of_gang {
        assert!(!serde_json::to_string(pod).unwrap().contains("data-keys"), "worker {}", worker(pod));
    }

    let second = space.submit("second", fields(json!({}))).await;
    let status = second.state(Completed).await;
    assert_eq!((&status.data[0].key, status.data[0].fetched_bytes), (&model.key, 0));
    assert_eq!(logs(&space, &second).await.len(), 2);

    // A missing model ends the job at once, with the remedy.
    let missing = json!({ "model": format!("s3://{BUCKET}/models/bass") });
    let missing = space.submit("missing", fields(missing)).await;
    let status = missing.state(Failed).await;
    assert_eq!(status.failure_reason.as_ref().map(ToString::to_string).as_deref(), Some("FetchFailed"));
    let why = status.failure_message.unwrap();
    assert!(why.contains("models/bass"), "{why}");

    // The model is larger than the cache may be.
    let large = json!({ "model": format!("s3://{BUCKET}/models/base-2"), "cache": { "pvcName": "cache", "path": "shared/models", "limit": "10" } });
    let large = space.submit("large", fields(large)).await;
    let why = large.state(Failed).await.failure_message.unwrap();
    assert!(why.contains("cache.limit is 10 B"), "{why}");

    // While a store is silent, the status has the answer of the agent that waits for it.
    let url = bucket.url();
    let host = url.trim_start_matches("http://").rsplit_once(':').unwrap().0;
    let silent = TcpListener::bind((host, 0)).unwrap();
    let secret = json!({
        "metadata": { "name": "silent-keys" },
        "stringData": {
            "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": format!("http://{}", silent.local_addr().unwrap()),
        },
    });
    space.create::<Secret>(secret).await;
    let slow = json!({ "model": format!("s3://{BUCKET}/models/slow"), "credentialsSecret": "silent-keys" });
    let slow = space.submit("slow", fields(slow)).await;
    let data = slow.find("the answer of its agent", |seen| {
        let status = seen.status()?;
        let waits = status.conditions.iter().find(|condition| condition.reason == "Fetching")?;
        waits.message.starts_with("listing the files of s3://").then(|| status.data.clone())
    });
    let data = data.await;
    assert!(data.len() == 1 && data[0].progress.is_some() && !data[0].is_resolved(), "{data:?}");
    // It would hold a core of the node.
    slow.delete().await;

    // One worker needs no cache, and finds the content at the same place.
    let mut alone = fields(json!({ "numWorkers": 1 }));
    alone.as_object_mut().unwrap().remove("cache");
    let alone = space.submit("alone", alone).await;
    let status = alone.state(Completed).await;
    assert_eq!(logs(&space, &alone).await, ["/models\n{\"layers\": 2}\nweights of base\n"]);
    assert_eq!((&status.data[0].key, &status.data[0].revision), (&model.key, &model.revision));

    // A program that reads by itself gets the address, and the credentials.
    let data =
        json!([{ "name": "set", "uri": format!("s3://{BUCKET}/models/base"), "access": "Stream", "env": "SET" }]);
    let command = json!(["sh", "-c", "echo $SET $AWS_ACCESS_KEY_ID $AWS_REGION"]);
    let stream = json!({ "model": "none", "data": data, "command": command });
    let stream = space.submit("stream", fields(stream)).await;
    let status = stream.state(Completed).await;
    assert_eq!(logs(&space, &stream).await, vec![format!("s3://{BUCKET}/models/base {KEY} us-east-1\n"); 2]);
    assert!(status.data.is_empty());
}
