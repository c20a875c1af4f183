//! Results that are published under an address before their job is completed.

use super::checkpoints::logs;
use super::stores::Bucket;
use super::wait::eventually;
use super::world::{SOON, condition, merged, training, worker, world};
use api::State::{Completed, Failed, Running};
use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Secret};
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use protocol::result::{RECORD_NAME, ResultRecord};
use serde_json::json;
use std::fs;
use testkit::servers::{BUCKET, Fault, SECRET};

/// The program of both workers. One of them writes.
const WRITES: &str = r#"
[ "$JOB_COMPLETION_INDEX" = 0 ] || exit 0
echo '{"step": 5, "loss": 0.25}'
mkdir -p "$OUTPUT_DIR/weights"
echo '{"layers": 2}' > "$OUTPUT_DIR/config.json"
echo tuned > "$OUTPUT_DIR/weights/a.safetensors"
"#;

/// Whether a pod requests GPUs. None does while data moves.
fn has_gpu(pod: &Pod) -> bool {
    serde_json::to_string(&pod.spec).unwrap().contains("nvidia.com/gpu")
}

#[tokio::test]
async fn published_result_is_read_by_another_job() {
    let Some(world) = world() else { return };
    let space = world.space("results", json!({})).await;
    let bucket = Bucket::open(&space).await;
    // The key is wrong at first.
    space.create::<Secret>(bucket.data_keys("data-keys", "wrong")).await;
    let fields = json!({
        "credentialsSecret": "data-keys", "output": format!("s3://{BUCKET}/results"), "command": ["sh", "-c", WRITES],
        "checkpoint": { "storage": { "type": "pvc", "size": "1Gi" } },
    });
    let tuned = space.submit("tuned", fields).await;
    let status = tuned.state(Failed).await;
    assert_eq!(status.failure_reason.as_ref().map(ToString::to_string).as_deref(), Some("PublishFailed"));
    let why = status.failure_message.unwrap();
    assert!(why.contains(BUCKET) && !why.contains("wrong"), "{why}");
    let pods = space.pods().await;
    let of_gang: Vec<&Pod> = pods.iter().filter(|pod| training(pod).is_some()).collect();
    assert_eq!(of_gang.len(), 2, "the pods of the programs stay for their logs");
    for pod in of_gang {
        assert!(!serde_json::to_string(pod).unwrap().contains("data-keys"), "worker {}", worker(pod));
    }

    // The Secret is corrected, and the result is published without another run of the program.
    let patch = Patch::Merge(bucket.data_keys("data-keys", SECRET));
    space.api::<Secret>().patch("data-keys", &PatchParams::default(), &patch).await.unwrap();
    let (done, said) = space.plugin(&["restart", "tuned"]).await;
    assert!(done, "{said}");
    let status = tuned.until("the result to be published", |status| status.state == Some(Completed)).await;
    assert_eq!((status.attempt, status.restart_count), (Some(1), Some(0)), "the program has run once");
    let result = status.result.clone().unwrap().record;
    assert_eq!((result.file_count, result.bytes), (2, 20));
    assert_eq!(condition(&status, "ResultPublished").reason, "Published");
    assert!(condition(&status, "ResultPublished").message.contains(&result.digest));
    assert_eq!(result.origin.metrics.get("loss"), Some(&0.25));
    let folder = bucket.server.object(&format!("results/{}", result.name));
    assert_eq!(fs::read_to_string(folder.join("weights/a.safetensors")).unwrap(), "tuned\n");
    let beside: ResultRecord = serde_json::from_slice(&fs::read(folder.join(RECORD_NAME)).unwrap()).unwrap();
    assert_eq!(beside.without_files(), result, "the record beside the result is that of the status");
    assert_eq!(beside.origin.job.as_deref(), Some("tuned"));
    // Nothing that would run is left of it.
    eventually("the Job that published to go", SOON, async || {
        space.api::<BatchJob>().get_opt("tuned-upkeep").await.unwrap().is_none().then_some(())
    })
    .await;

    // Another job reads it by its address, and no pod that moves data requests a GPU.
    let claim = json!({
        "metadata": { "name": "cache" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    });
    space.create::<PersistentVolumeClaim>(claim).await;
    let reads = json!({
        "model": format!("{}#sha256={}", result.uri, result.digest), "credentialsSecret": "data-keys", "cache": { "pvcName": "cache" },
        "command": ["sh", "-c", "cat $MODEL/weights/a.safetensors"],
    });
    let reader = space.submit("reader", merged(reads, &json!({ "numWorkers": 1 }))).await;
    let status = reader.state(Completed).await;
    assert_eq!(logs(&space, &reader).await, ["tuned\n"]);
    assert_eq!((status.data[0].files, &status.data[0].revision), (2, &result.digest));
    assert!(space.pods().await.iter().filter(|pod| pod.name_any().contains("-upkeep-")).all(|pod| !has_gpu(pod)));
}

/// A training that has succeeded does not run again, even if its Job is deleted.
#[tokio::test]
async fn unreachable_store_keeps_a_result_waiting() {
    let Some(world) = world() else { return };
    let space = world.space("waits", json!({})).await;
    let bucket = Bucket::open(&space).await;
    space.create::<Secret>(bucket.data_keys("data-keys", SECRET)).await;
    let fields = json!({
        "credentialsSecret": "data-keys", "output": format!("s3://{BUCKET}/results"), "command": ["sh", "-c", WRITES],
        "checkpoint": { "storage": { "type": "pvc", "size": "1Gi" } },
    });
    bucket.proxy.set(|_| Fault::Answer(503));
    let job = space.submit("late", fields).await;
    let (waits, status) = job.condition("ResultPublished", "False", "Publishing").await;
    assert!(waits.message.contains("s3://"), "{}", waits.message);
    assert_eq!(status.state, Some(Running));
    let publication = job.find("the answer of the agent that publishes", |seen| seen.status()?.publication).await;
    assert!(publication.bytes <= publication.total_bytes, "{publication:?}");
    space.api::<BatchJob>().delete("late-training", &DeleteParams::background()).await.unwrap();
    eventually("the pods of the gang to go", SOON, async || {
        space.pods().await.iter().all(|pod| training(pod).is_none()).then_some(())
    })
    .await;
    bucket.proxy.set(|_| Fault::Pass);
    let status = job.state(Completed).await;
    assert_eq!((status.attempt, status.result.is_some(), status.publication), (Some(1), true, None));
}
