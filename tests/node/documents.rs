//! Manifests of other kinds in the project's first documents (`examples/documents/others`), converted and run. Numbers,
//! roles, policies and variables are as converted. The program and the image are those of these tests, because the
//! documents show none that could be had here.

use super::checkpoints::logs;
use super::fine_tuning::Hub;
use super::stores::{Bucket, host_address};
use super::world::{DEMO_IMAGE, Space, merged, world};
use api::State::Completed;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret};
use kube::ResourceExt;
use kubectl_trainingjob::convert::{Answers, convert};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use testkit::room::Room;
use testkit::root;
use testkit::servers::{KEY, Proxy, SECRET};

/// The manifests of other kinds, each with the name of its file.
fn manifests() -> Vec<(String, String)> {
    let folder = fs::read_dir(root("examples/documents/others")).unwrap();
    let mut files: Vec<_> = folder.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    let name = |path: &Path| path.file_stem().unwrap().to_string_lossy().into_owned();
    files.iter().map(|path| (name(path), fs::read_to_string(path).unwrap())).collect()
}

#[tokio::test]
#[ignore = "soak: they train; proved in make test by api::converted_manifests_are_admitted_strictly and the tests of cli::convert"]
async fn documented_manifests_are_converted_and_run() {
    let Some(world) = world() else { return };
    let space = world.space("documents", json!({})).await;
    for size in ["small", "large"] {
        if let Ok(archive) = std::env::var(format!("TRAININGJOB_TEST_{}_FRAMEWORKS_IMAGE", size.to_uppercase())) {
            world.cluster.devcluster(&["import", &archive]);
        }
    }
    let programs = ["xgboost", "mxnet", "tensorflow-ps"].map(|example| {
        let program = fs::read_to_string(root(&format!("examples/frameworks/{example}/train.py"))).unwrap();
        (format!("train-{example}.py"), program)
    });
    let programs = serde_json::Map::from_iter(programs.map(|(name, text)| (name, json!(text))));
    space.create::<ConfigMap>(json!({ "metadata": { "name": "examples" }, "data": programs })).await;
    for (file, manifest) in manifests() {
        let converted = convert(&manifest, &Answers::default()).unwrap();
        for job in serde_saphyr::from_multiple::<Value>(&converted.text).unwrap() {
            run(&space, &file, job).await;
        }
    }
    space.end().await;
}

/// Trials of a search. The documents show more, which would take minutes.
const TRIALS: u64 = 2;

async fn run(space: &Space, file: &str, mut job: Value) {
    let name = job["metadata"]["name"].as_str().unwrap().to_owned();
    let framework = job["spec"]["framework"].as_str().unwrap_or("pytorch").to_owned();
    let storage = json!({ "enabled": true, "storage": { "type": "pvc", "size": "1Gi" } });
    let (image, command, fields) = match framework.as_str() {
        "xgboost" => ("small", "xgboost", json!({ "hyperparameters": { "additionalParams": { "rounds": "20" } } })),
        "mxnet" => ("small", "mxnet", json!({ "hyperparameters": { "epochs": 2 } })),
        "tensorflow" => ("large", "tensorflow-ps", json!({ "hyperparameters": { "epochs": 3 } })),
        _ => ("", "", json!({ "networking": { "backend": "gloo" } })),
    };
    if !image.is_empty()
        && std::env::var_os(format!("TRAININGJOB_TEST_{}_FRAMEWORKS_IMAGE", image.to_uppercase())).is_none()
    {
        return testkit::skipped(&format!("{name} of {file}: its image is made by `make soak`"));
    }
    let spec = job["spec"].as_object_mut().unwrap();
    // GPUs, the program and its volumes are not available here. Eight workers are many for this machine.
    for field in ["resources", "suspend", "args", "volumes", "volumeMounts", "image", "command"] {
        spec.remove(field);
    }
    spec["numWorkers"] = json!(spec["numWorkers"].as_i64().unwrap().min(4));
    spec["gpusPerWorker"] = json!(0);
    let mount = json!([
        { "name": "programs", "mountPath": "/programs" },
        { "name": "examples", "mountPath": "/examples" },
    ]);
    let volumes = json!([
        { "name": "programs", "configMap": { "name": "programs" } },
        { "name": "examples", "configMap": { "name": "examples" } },
    ]);
    let (image, command, checkpoint) = match command {
        "" => ("localhost/trainingjob-demo:cpu".into(), json!(["python3", "/programs/reduces.py"]), json!({})),
        example => (
            format!("localhost/trainingjob-frameworks:{image}"),
            json!(["python3", format!("/examples/train-{example}.py")]),
            json!({ "checkpoint": storage }),
        ),
    };
    let workers = job["spec"]["numWorkers"].as_i64().unwrap() as u32;
    let roles = job["spec"]["roles"].as_array().into_iter().flatten();
    let roles = roles.map(|role| (role["name"].as_str().unwrap().to_owned(), role["replicas"].as_i64().unwrap_or(1)));
    let roles: Vec<_> = roles.collect();
    let spec = merged(job["spec"].take(), &fields);
    let mut spec = merged(spec, &checkpoint);
    let search = spec.get_mut("hyperParameterTuningConfig");
    let searches = search.map(|search| search["maxTrials"] = json!(TRIALS)).is_some();
    let spec = merged(spec, &json!({ "image": image, "command": command, "volumes": volumes, "volumeMounts": mount }));
    let job = space.apply(json!({ "metadata": { "name": name }, "spec": spec })).await;
    let status = job.state(Completed).await;
    assert_eq!(status.restarts, [], "{name}");
    if searches {
        let found = status.objective.as_ref().map(|metric| (metric.count, metric.best.as_ref().map(|best| best.value)));
        assert_eq!(found, Some((TRIALS, Some(1.0))), "{name}: trials that succeeded and the best reading: {status:?}");
    } else {
        assert!(status.metrics.is_some(), "{name}: its progress is seen: {status:?}");
        let desired = status.workers.as_ref().map(|workers| workers.desired);
        assert_eq!(desired, Some(workers), "{name}: {:?}", status.workers);
    }
    // Each role has as many pods as the manifest has replicas of it.
    for (role, replicas) in roles {
        let pods = job.pods().into_iter().filter(|pod| pod.labels().get("component") == Some(&role)).count();
        assert_eq!(pods as i64, replicas, "{name}: pods of {role}");
    }
    println!("{file}: {name} ({framework}): Completed, workers {:?}, duration {:?}", status.workers, status.duration);
    job.delete().await;
    space.no_pod_is_left().await;
}

/// Prints what there is to read, and leaves a result if one is requested.
const READS: &str = r#"
for folder in "$MODEL" "$DATASET"; do [ ! -d "$folder" ] || find -L "$folder" -type f; done
echo "format $DATASET_FORMAT"
[ -z "$OUTPUT_DIR" ] || echo tuned > "$OUTPUT_DIR/weights"
"#;

/// What OME's documentation shows, with its runtimes and models in the file. Nothing is lost. Each job reads its model
/// and data and publishes its result, with the stand-ins of the hub and of Oracle's S3-compatible endpoint.
#[tokio::test]
#[ignore = "soak: five jobs; proved in make test by node::data, node::results and the tests of cli::convert"]
async fn ome_manifests_read_models_and_publish_results() {
    let Some(world) = world() else { return };
    let space = world.space("ome", json!({})).await;
    let (room, bucket) = (Room::new("ome"), Bucket::open(&space).await);
    let model = room.folder("model");
    fs::write(model.join("model.safetensors"), "weights").unwrap();
    let hub = Hub::start(&room, "team/base", &model);
    let hub = Proxy::before_port(hub.port(), host_address(&space).await);
    let of_bucket = |name: &str| bucket.server.room.folder(&format!("store/{name}"));
    fs::create_dir_all(of_bucket("sets").join("instructions")).unwrap();
    fs::write(of_bucket("sets").join("instructions/a.jsonl"), "{}").unwrap();
    let results = of_bucket("results");
    let secret = json!({
        "metadata": { "name": "hub-token" },
        "stringData": {
            "HF_TOKEN": "hf_right", "HF_ENDPOINT": hub.url(), "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": bucket.url(),
        },
    });
    space.create::<Secret>(secret).await;
    for claim in ["cache", "sets", "results"] {
        let spec = json!({ "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } });
        space.create::<PersistentVolumeClaim>(json!({ "metadata": { "name": claim }, "spec": spec })).await;
    }
    let manifest = fs::read_to_string(root("tests/fixtures/convert/ome-blocks.yaml")).unwrap();
    let answers = Answers { oci_namespace: Some("mytenancy".to_owned()), ..Answers::default() };
    let converted = convert(&manifest, &answers).unwrap();
    assert!(!converted.lost, "{}", converted.text);
    for mut job in serde_saphyr::from_multiple::<Value>(&converted.text).unwrap() {
        let spec = job["spec"].as_object_mut().unwrap();
        // GPUs, images and programs are not available here.
        for field in ["resources", "args", "procsPerWorker"] {
            spec.remove(field);
        }
        let more = json!({
            "image": DEMO_IMAGE, "command": ["sh", "-c", READS], "gpusPerWorker": 0, "credentialsSecret": "hub-token",
        });
        let mut spec = merged(job["spec"].take(), &more);
        if spec["framework"] == "pytorch" {
            spec["networking"] = json!({ "backend": "gloo" });
        }
        let name = job["metadata"]["name"].as_str().unwrap().to_owned();
        let job = space.apply(json!({ "metadata": { "name": name }, "spec": spec })).await;
        let status = job.state(Completed).await;
        let log = logs(&space, &job).await.concat();
        println!("{name}: {:?}, data {:?}, result {:?}", status.state, status.data.len(), status.result);
        match name.as_str() {
            "whole" => {
                assert!(log.contains("/models/model.safetensors") && log.contains("/data/a.jsonl"), "{log}");
                assert!(log.contains("format jsonl"), "{log}");
                let record = status.result.unwrap().record;
                let weights = results.join("models/tuned").join(&record.name).join("weights");
                assert_eq!(fs::read_to_string(weights).unwrap(), "tuned\n");
            }
            "ranks" => assert!(log.contains("/data/a.jsonl"), "{log}"),
            _ => {}
        }
        job.delete().await;
        space.no_pod_is_left().await;
    }
    space.end().await;
}
