//! What the documents that the project began with show of other kinds (`examples/documents/others`), converted and run: numbers,
//! roles, policies and variables as converted, with a program and an image of these tests, for the documents show none that could be
//! had here.

use super::world::{Space, merged, world};
use api::State::Completed;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kubectl_trainingjob::convert::{Answers, convert};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use testkit::root;

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
#[ignore = "soak: they train; proved in make test by api::what_is_converted_is_admitted_strictly and the tests of cli::convert"]
async fn what_the_documents_show_is_converted_and_runs() {
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
    // What is not here: GPUs, their program, and its volumes. And eight workers are many for this machine.
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
    let spec = merged(spec, &checkpoint);
    let spec = merged(spec, &json!({ "image": image, "command": command, "volumes": volumes, "volumeMounts": mount }));
    let job = space.apply(json!({ "metadata": { "name": name }, "spec": spec })).await;
    let status = job.state(Completed).await;
    assert_eq!(status.restarts, [], "{name}");
    assert!(status.metrics.is_some(), "{name}: its progress is seen: {status:?}");
    assert_eq!(status.workers.as_ref().map(|workers| workers.desired), Some(workers), "{name}: {:?}", status.workers);
    // Each role has as many pods as the manifest has replicas of it.
    for (role, replicas) in roles {
        let pods = job.pods().into_iter().filter(|pod| pod.labels().get("component") == Some(&role)).count();
        assert_eq!(pods as i64, replicas, "{name}: pods of {role}");
    }
    println!("{file}: {name} ({framework}): Completed, workers {:?}, duration {:?}", status.workers, status.duration);
    job.delete().await;
    space.no_pod_is_left().await;
}
