//! Manifests of each kind, and what comes out.

use super::*;
use api::TrainingJob;
use k8s_openapi::api::core::v1::Container;
use serde_json::json;
use std::fs;
use std::path::PathBuf;

fn fixtures() -> Vec<(String, String)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/convert");
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let name = |path: &PathBuf| path.file_stem().unwrap().to_string_lossy().into_owned();
    files.iter().map(|path| (name(path), fs::read_to_string(path).unwrap())).collect()
}

fn converted(text: &str) -> Converted {
    convert(text, &Answers::default()).unwrap()
}

/// A PyTorchJob whose only role has this container.
#[expect(clippy::needless_pass_by_value, reason = "takes what its callers need no more")]
fn pytorch(container: Value, more: Value) -> Value {
    let mut spec = json!({ "pytorchReplicaSpecs": { "Worker": {
        "replicas": 2, "template": { "spec": { "containers": [container] } } } } });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({ "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": { "name": "x" }, "spec": spec })
}

fn spec_of(object: &Value) -> (Value, Notes) {
    let mut all = converted(&object.to_string());
    let (job, notes) = all.jobs.remove(0);
    (job["spec"].clone(), notes)
}

#[test]
fn every_kind_is_converted() {
    for (name, text) in fixtures() {
        insta::assert_snapshot!(name, converted(&text).text);
    }
}

/// The text has exactly the converted values, including their types: `"2"` stays text.
#[test]
fn written_yaml_equals_converted_values() {
    for (name, text) in fixtures() {
        let converted = converted(&text);
        let read = documents(&converted.text).unwrap();
        assert_eq!(read, converted.jobs.iter().map(|(job, _)| job.clone()).collect::<Vec<_>>(), "{name}");
        assert_eq!(converted.lost, converted.text.contains("\n# LOST  "), "{name}");
        for (job, _) in converted.jobs {
            serde_json::from_value::<TrainingJob>(job).unwrap();
        }
    }
}

/// Jobs of OME's documentation lose nothing if the user gives the namespace of Oracle's buckets.
#[test]
fn ome_jobs_convert_without_loss_given_oci_namespace() {
    let (_, text) = fixtures().into_iter().find(|(name, _)| name == "ome-blocks").unwrap();
    let answers = Answers { oci_namespace: Some("mytenancy".into()), ..Answers::default() };
    let converted = convert(&text, &answers).unwrap();
    assert!(!converted.lost, "{}", converted.text);
    let spec = |index: usize| &converted.jobs[index].0["spec"];
    assert_eq!(spec(0)["model"], "hf://team/base");
    assert_eq!(spec(0)["dataset"], "oci://n/mytenancy/b/sets/o/instructions", "with the namespace first");
    assert_eq!(spec(0)["output"], "oci://n/mytenancy/b/results/o/models/tuned", "and without");
    assert_eq!(spec(0)["credentialsSecret"], "hub-token");
    let env =
        json!([{ "name": "DATASET_FORMAT", "value": "jsonl" }, { "name": "DATASET_COMPRESSION", "value": "gzip" }]);
    let names = |env: &Value| {
        env.as_array().unwrap().iter().map(ToString::to_string).collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(names(&spec(0)["env"]), names(&env));
    assert_eq!((&spec(1)["model"], &spec(1)["output"]), (&json!("named"), &json!("pvc://results/reference")));
    assert_eq!((&spec(3)["framework"], &spec(3)["procsPerWorker"]), (&json!("mpi"), &json!(4)));
}

/// Each block of OME's documentation by itself, with a runtime beside it.
#[test]
fn ome_documentation_blocks_convert_without_loss() {
    let (_, text) = fixtures().into_iter().find(|(name, _)| name == "ome-blocks").unwrap();
    let mut runtimes = documents(&text).unwrap();
    runtimes.retain(|document| document["kind"] == "ClusterTrainingRuntime");
    // Its `auto` counts processors where there are no GPUs.
    runtimes[0]["spec"]["mlPolicy"]["torch"]["numProcPerNode"] = json!(1);
    let named = |runtime: &Value, name: &str| {
        let mut runtime = runtime.clone();
        runtime["metadata"]["name"] = json!(name);
        runtime.to_string()
    };
    let beside = ["pytorch-runtime", "pytorch-distributed-runtime"].map(|name| named(&runtimes[0], name));
    let beside = format!("{}\n---\n{}\n---\n{}\n---\n", beside[0], beside[1], named(&runtimes[1], "mpi-runtime"));
    let blocks = [
        json!({ "runtimeRef": { "name": "pytorch-runtime", "kind": "ClusterTrainingRuntime", "apiGroup": "ome.io" } }),
        json!({ "trainer": {
            "image": "pytorch/pytorch:latest", "command": ["python"], "args": ["-m", "torch.distributed.launch"],
            "env": [{ "name": "NCCL_DEBUG", "value": "INFO" }], "numNodes": 2, "numProcPerNode": "4",
            "resourcesPerNode": { "limits": { "nvidia.com/gpu": 4 }, "requests": { "memory": "16Gi" } },
        } }),
        json!({ "modelConfig": { "inputModel": "base", "outputModel": {
            "storageUri": "oci://bucket/models/tuned", "parameters": { "region": "us-phoenix-1" } } } }),
        json!({ "datasets": {
            "storageUri": "oci://bucket/sets", "storageKey": "a-secret",
            "parameters": { "format": "jsonl", "compression": "gzip" } } }),
        json!({ "hyperParameterTuningConfig": {
            "method": "random", "maxTrials": 20, "metric": { "name": "accuracy", "goal": "maximize" },
            "parameters": { "dropout": { "type": "double", "values": [0.1, 0.2] } } } }),
        json!({ "trainer": { "numProcPerNode": "gpu", "command": ["python"], "args": ["train.py"] } }),
        json!({
            "runtimeRef": { "name": "mpi-runtime" },
            "trainer": { "numProcPerNode": 4, "command": ["mpirun"], "args": ["python", "train.py"] } }),
        json!({ "trainer": { "numNodes": 4, "numProcPerNode": "2" } }),
        json!({ "trainer": {
            "numNodes": 2, "numProcPerNode": "4", "env": [{ "name": "MODEL_PARALLEL_SIZE", "value": "8" }] } }),
    ];
    let whole = |spec: Value| {
        let mut job = json!({ "apiVersion": "ome.io/v1beta1", "kind": "TrainingJob", "metadata": { "name": "block" } });
        job["spec"] = json!({ "runtimeRef": { "name": "pytorch-runtime" } });
        job["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        job
    };
    let documents_folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/documents/others");
    let manifests = ["ome-llama-finetune", "ome-simple-finetune", "ome-large-model-training"];
    let manifests = manifests.map(|name| fs::read_to_string(documents_folder.join(format!("{name}.yaml"))).unwrap());
    let with_status = {
        let mut job = whole(json!({}));
        job["status"] = json!({ "jobsStatus": [{ "name": "block-job-0", "ready": 1, "succeeded": 0 }] });
        job
    };
    let blocks =
        blocks.map(|spec| whole(spec).to_string()).into_iter().chain([with_status.to_string()]).chain(manifests);
    let answers = Answers { oci_namespace: Some("mytenancy".into()), ..Answers::default() };
    for block in blocks {
        let converted =
            convert(&format!("{beside}{block}"), &answers).unwrap_or_else(|wrong| panic!("{wrong}: {block}"));
        assert!(!converted.lost && converted.jobs.len() == 1, "{block}\n{}", converted.text);
    }
}

/// Jobs that keep their behaviour are distinguished from jobs that do not.
#[test]
fn supported_jobs_convert_without_loss() {
    for name in [
        "pytorch-two",
        "tensorflow-workers",
        "tensorflow-roles",
        "jax",
        "xgboost",
        "paddle",
        "mxnet",
        "job-single",
        "job-stored",
        "jobset-leader",
    ] {
        let text = fixtures().into_iter().find(|(is, _)| is == name).unwrap().1;
        let lost: Vec<Note> = converted(&text).jobs[0].1.0.iter().filter(|note| note.lost).cloned().collect();
        assert_eq!(lost, [], "{name}");
    }
}

/// Nothing is dropped silently. Another field anywhere changes the result, unless it is within a part that is reported
/// as left out.
#[test]
fn unknown_field_is_reported_at_any_depth() {
    /// Parts that have a note of their own, or that are read only in part.
    const LEFT_OUT: [&str; 14] = [
        ".env[",
        ".volumeMounts[",
        ".volumes[",
        "mpiReplicaSpecs.Launcher.template",
        // The whole template is reported to differ from the Master's.
        "Traps.1: spec.pytorchReplicaSpecs.Worker.template",
        "tune: runtime.metadata",
        "tune: runtime.",
        "script: ",
        // Fields that describe a model for others than its program.
        "base: metadata",
        "base: spec.modelFormat",
        // A search without parameters.
        "llama: spec.hyperParameterTuningConfig",
        // Fields that an API server has added.
        "stored: metadata.managedFields",
        "stored: spec.selector",
        "stored: status",
    ];
    let mut unsaid = Vec::new();
    for (_, text) in fixtures() {
        let documents = documents(&text).unwrap();
        let before = converted(&text);
        for (index, document) in documents.iter().enumerate() {
            let mut objects = Vec::new();
            each_object(document, "", "", &mut objects);
            let job = document["metadata"]["name"].as_str().unwrap();
            let root = if ["torch", "torch-mpi"].contains(&job) { "runtime." } else { "" };
            for (pointer, path) in objects {
                let path = format!("{root}{path}");
                let said = |note: &Note| note.lost && path.starts_with(&note.field);
                let named = format!("{}: {path}", if root.is_empty() { job } else { "tune" });
                if job == "base" && path.is_empty() {
                    continue;
                }
                let is_left_out = |part: &&str| named.contains(*part) && (!part.ends_with("runtime.") || path == root);
                if before.jobs.iter().any(|(_, notes)| notes.0.iter().any(said)) || LEFT_OUT.iter().any(is_left_out) {
                    continue;
                }
                let mut changed = documents.clone();
                changed[index].pointer_mut(&pointer).unwrap()["zzz"] = json!("zzz");
                let text: Vec<String> = changed.iter().map(Value::to_string).collect();
                let after = convert(&text.join("\n---\n"), &Answers::default());
                if after.is_ok_and(|after| after.text == before.text) {
                    unsaid.push(named);
                }
            }
        }
    }
    assert_eq!(unsaid, Vec::<String>::new());
}

/// Every object below, with its pointer and its path.
fn each_object(value: &Value, pointer: &str, path: &str, found: &mut Vec<(String, String)>) {
    match value {
        Value::Object(map) => {
            found.push((pointer.to_owned(), path.to_owned()));
            for (key, value) in map {
                let step = key.replace('~', "~0").replace('/', "~1");
                each_object(
                    value,
                    &format!("{pointer}/{step}"),
                    format!("{path}.{key}").trim_start_matches('.'),
                    found,
                );
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                each_object(item, &format!("{pointer}/{index}"), &format!("{path}[{index}]"), found);
            }
        }
        _ => {}
    }
}

/// A role keeps its values, whatever the workers have. The plan of both shows that.
#[test]
fn converted_role_keeps_its_values() {
    let text = fixtures().into_iter().find(|(is, _)| is == "tensorflow-roles").unwrap().1;
    let mut job: TrainingJob = serde_json::from_value(converted(&text).jobs.remove(0).0).unwrap();
    job.metadata.uid = Some("00000000-0000-0000-0000-000000000000".into());
    let resolved = plan::resolve(&job, &plan::OperatorInfo::default());
    assert_eq!(resolved.refusals.0, []);
    let plan = &resolved.plan;
    let objects = objects::objects(plan, plan::Incarnation::FIRST, &Default::default());
    let made = |name: &str| {
        let (role, job) =
            plan.gang.roles.iter().zip(&objects.jobs).find(|(role, _)| role.name.as_str() == name).unwrap();
        let pod = job.spec.clone().unwrap().template.spec.unwrap();
        let training = pod.containers.iter().find(|container| container.name == "training").unwrap().clone();
        (role.clone(), pod, training)
    };
    let requests = |of: &Container| of.resources.clone().unwrap_or_default().requests.unwrap_or_default();
    let mounts = |of: &Container, path: &str| of.volume_mounts.iter().flatten().any(|mount| mount.mount_path == path);
    let (worker, pod, training) = made("worker");
    assert_eq!((worker.replicas, worker.gpus), (2, 1));
    assert_eq!(pod.node_selector.unwrap()["pool"], "gpu");
    assert!(mounts(&training, "/data") && !mounts(&training, "/board"));
    let (chief, pod, training) = made("chief");
    assert_eq!((chief.replicas, chief.gpus, chief.pod.command), (1, 1, worker.pod.command.clone()));
    assert_eq!(pod.node_selector.unwrap()["pool"], "gpu");
    assert!(mounts(&training, "/data"));
    let (ps, pod, training) = made("ps");
    assert_eq!((ps.replicas, ps.gpus, &*ps.pod.image), (2, 0, "tensorflow/tensorflow:2.19.0"));
    assert_eq!((pod.node_selector, requests(&training)["memory"].0.as_str()), (None, "32Gi"));
    assert!(!mounts(&training, "/data"));
    let (evaluator, pod, training) = made("evaluator");
    assert_eq!(evaluator.pod.command, ["python", "/app/train.py", "--evaluate"]);
    assert_eq!((pod.node_selector, requests(&training)["cpu"].0.as_str()), (None, "0"));
    assert!(mounts(&training, "/board") && !mounts(&training, "/data"));
    let env = |role: &plan::Role| role.pod.env.iter().map(|v| v.name.clone()).collect::<Vec<_>>();
    assert_eq!((env(&worker), env(&evaluator)), (vec!["A".to_owned()], vec!["A".to_owned(), "B".to_owned()]));
}

/// Which of several Jobs becomes the workers, how the others are named, and which one decides.
#[test]
fn a_jobset_becomes_one_gang() {
    let set = |jobs: &[(&str, i64)], more: Value| {
        let job = |(name, pods): &(&str, i64)| {
            let container = json!({ "name": "c", "image": "i", "command": [name] });
            let spec = json!({ "parallelism": pods, "completionMode": "Indexed", "template": { "spec": { "containers": [container] } } });
            json!({ "name": name, "template": { "spec": spec } })
        };
        let mut spec = json!({ "replicatedJobs": jobs.iter().map(job).collect::<Vec<_>>() });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let set = json!({ "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": { "name": "x" }, "spec": spec });
        spec_of(&set)
    };
    let of = |jobs: &[(&str, i64)], more: Value| {
        let (spec, notes) = set(jobs, more);
        let roles = spec["roles"].as_array().unwrap().iter();
        let roles: Vec<String> = roles.map(|role| role["name"].as_str().unwrap().to_owned()).collect();
        let leaders = spec["roles"].as_array().unwrap().iter().filter(|role| role["leader"] == true);
        let leaders: Vec<String> = leaders.map(|role| role["name"].as_str().unwrap().to_owned()).collect();
        (spec["command"][0].as_str().unwrap().to_owned(), roles, leaders, notes.any_lost())
    };
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let target = |jobs: &[&str]| json!({ "successPolicy": { "operator": "All", "targetReplicatedJobs": jobs } });
    let driven = [("driver", 1), ("workers", 1)];
    assert_eq!(of(&driven, target(&["driver"])), ("workers".into(), owned(&["driver"]), owned(&["driver"]), false));
    assert_eq!(of(&driven, target(&["workers"])), ("workers".into(), owned(&["driver"]), owned(&[]), false));
    // In the original all have to complete.
    assert_eq!(of(&driven, json!({})), ("workers".into(), owned(&["driver"]), owned(&[]), true));
    let any = json!({ "successPolicy": { "operator": "Any", "targetReplicatedJobs": ["driver"] } });
    assert_eq!(of(&driven, any), ("workers".into(), owned(&["driver"]), owned(&["driver"]), false));
    let any = json!({ "successPolicy": { "operator": "Any", "targetReplicatedJobs": ["a", "b"] } });
    assert!(of(&[("a", 1), ("b", 1), ("workers", 2)], any).3);
    // Without a known name the deciding Job becomes the workers, else the one with the most pods.
    assert_eq!(of(&[("a", 3), ("b", 1)], target(&["b"])), ("b".into(), owned(&["a"]), owned(&[]), false));
    let several =
        [("leader", 1), ("pods", 3), ("upkeep", 1), ("a-b", 1), ("ab", 1), ("1", 1), ("a-very-long-name-of-a-job", 1)];
    let (workers, roles, ..) = of(&several, json!({}));
    assert_eq!(
        (workers.as_str(), roles),
        ("pods", owned(&["leader", "upkeep2", "ab", "ab2", "role", "averylongnameof"]))
    );
    // The order of start has no equivalent.
    let (spec, notes) = set(&driven, json!({ "startupPolicy": { "startupPolicyOrder": "InOrder" } }));
    assert!(notes.0.iter().any(|note| note.field == "spec.startupPolicy" && note.lost) && spec["suspend"].is_null());
}

/// The role has one pod, whatever number is written.
#[test]
fn unsupported_role_replicas_are_reported() {
    let template = json!({ "spec": { "containers": [{ "name": "tensorflow", "image": "i", "command": ["c"] }] } });
    let role = |replicas: i64| json!({ "replicas": replicas, "template": template });
    let job = |labels: Value, roles: Value| {
        let metadata = json!({ "name": "x", "labels": labels });
        spec_of(
            &json!({ "apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": metadata, "spec": { "tfReplicaSpecs": roles } }),
        )
    };
    let (spec, notes) = job(json!({}), json!({ "Chief": role(3), "Worker": role(2) }));
    assert_eq!((&spec["roles"], notes.any_lost()), (&json!([{ "name": "chief" }]), true));
    let queue = json!({ "kueue.x-k8s.io/queue-name": "team" });
    let (spec, notes) = job(queue, json!({ "Chief": role(1), "Worker": role(2) }));
    assert_eq!((&spec["scheduling"]["queue"], notes.any_lost()), (&json!("team"), false));
}

/// WORLD_SIZE counted a program without a launcher once.
#[test]
fn procs_per_worker_matches_original_job() {
    let gpus = |command: Value| json!({ "name": "pytorch", "image": "i", "command": command, "resources": { "limits": { "nvidia.com/gpu": 8 } } });
    let procs = |command: Value, more: Value| spec_of(&pytorch(gpus(command), more)).0["procsPerWorker"].clone();
    assert_eq!(procs(json!(["python", "t.py"]), json!({})), 1);
    assert_eq!(procs(json!(["python", "t.py"]), json!({ "nprocPerNode": "auto" })), 1);
    assert_eq!(procs(json!(["python", "t.py"]), json!({ "nprocPerNode": "8" })), 8);
    assert_eq!(procs(json!(["torchrun", "t.py"]), json!({})), "auto");
    assert_eq!(procs(json!(["torchrun", "t.py"]), json!({ "nprocPerNode": "gpu" })), "gpu");
    assert_eq!(procs(json!(["torchrun", "--nproc_per_node=4", "t.py"]), json!({ "nprocPerNode": "gpu" })), 4);
    assert_eq!(procs(json!(["sh", "-c", "torchrun t.py"]), json!({})), "auto");
}

/// The Trainer's number applies to torchrun, and sets no WORLD_SIZE.
#[test]
fn num_proc_per_node_applies_only_to_torchrun() {
    let procs = |command: Value| {
        let trainer = json!({ "image": "i", "command": command, "numNodes": 2, "numProcPerNode": "4" });
        let spec = json!({ "runtimeRef": { "name": "x" }, "trainer": trainer });
        let job =
            json!({ "apiVersion": "ome.io/v1beta1", "kind": "TrainingJob", "metadata": { "name": "x" }, "spec": spec });
        spec_of(&job).0["procsPerWorker"].clone()
    };
    assert_eq!(procs(json!(["torchrun", "t.py"])), 4);
    assert_eq!(procs(json!(["python", "t.py"])), 1);
}

/// A host name of another job, or a part of one, is not a host name of this job.
#[test]
fn only_own_old_host_names_are_reported() {
    let reported = |arg: &str| {
        let container = json!({ "name": "pytorch", "image": "i", "command": ["python", "t.py", arg] });
        spec_of(&pytorch(container, json!({}))).1.any_lost()
    };
    for own in ["x-master-0", "tcp://x-worker-12:23456", "--head=x-master-0.ns.svc"] {
        assert!(reported(own), "{own}");
    }
    for other in ["max-master-0", "my-x-master-0", "x-master", "x-master-0a", "x-mastered-0", "X-master-0"] {
        assert!(!reported(other), "{other}");
    }
}

#[test]
fn user_answers_are_written_to_spec() {
    let answers = Answers { model: Some("bert".into()), dataset: Some("pvc://d/x".into()), ..Answers::default() };
    let job = pytorch(json!({ "name": "pytorch", "image": "i", "command": ["torchrun", "t.py"] }), json!({}));
    let converted = convert(&job.to_string(), &answers).unwrap();
    let spec = &converted.jobs[0].0["spec"];
    assert_eq!((&spec["model"], &spec["dataset"]), (&json!("bert"), &json!("pvc://d/x")));
}

#[test]
fn generate_name_is_kept() {
    let of = |begin: &str| {
        let mut job = pytorch(json!({ "name": "pytorch", "image": "i", "command": ["torchrun", "t.py"] }), json!({}));
        job["metadata"] = json!({ "generateName": begin, "namespace": "team" });
        let mut all = converted(&job.to_string());
        let (job, notes) = all.jobs.remove(0);
        (job["metadata"].clone(), notes)
    };
    let (metadata, notes) = of("train-");
    assert_eq!(metadata, json!({ "generateName": "train-", "namespace": "team" }));
    let note = notes.0.iter().find(|note| note.field == "metadata.generateName").unwrap();
    assert!(!note.lost && note.says.contains("kubectl create -f"), "{note:?}");
    for (begin, expected) in [("train", "train"), ("train.", "train-"), ("My_Run-", "my-run-"), ("7-", "job-7-")] {
        assert_eq!(of(begin).0["generateName"], expected, "{begin}");
    }
    let long = of(&format!("{}-", "a".repeat(60))).0["generateName"].as_str().unwrap().to_owned();
    assert_eq!(long.len() + 5, 52, "with the letters it fits into the pods' host names");
    // A plan needs a name.
    let text =
        "apiVersion: ml.example.com/v1\nkind: TrainingJob\nmetadata: {generateName: train-}\nspec: {numWorkers: 1}\n";
    let job = crate::plan::jobs(text, None).unwrap().remove(0);
    assert_eq!(job.metadata.name.as_deref(), Some("train-xxxxx"));
}

#[test]
fn host_names_in_spec_require_a_fixed_name() {
    let role = json!({ "replicas": 2, "template": { "spec": { "containers": [{ "name": "xgboost", "image": "i", "command": ["t"] }] } } });
    let job = json!({ "apiVersion": "kubeflow.org/v1", "kind": "XGBoostJob", "metadata": { "generateName": "x-" },
                      "spec": { "xgbReplicaSpecs": { "Worker": role } } });
    let all = converted(&job.to_string());
    assert_eq!((all.jobs[0].0["metadata"].clone(), all.lost), (json!({ "name": "x" }), true));
    assert!(all.text.contains("LOST  metadata.generateName: is no name, and the spec has host names"), "{}", all.text);
}

#[test]
fn list_items_are_converted_separately() {
    let job = pytorch(json!({ "name": "pytorch", "image": "i", "command": ["torchrun", "t.py"] }), json!({}));
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": [job, job] });
    assert_eq!(converted(&list.to_string()).jobs.len(), 2);
}

#[test]
fn unreadable_input_is_refused_with_reason() {
    let bad = |text: &str| convert(text, &Answers::default()).unwrap_err().to_string();
    assert!(bad("a: [").contains("no YAML"));
    assert!(bad("apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n").contains("no job in it"));
    assert!(bad("").contains("no job in it"));
    assert!(bad("- 1").contains("must be an object, and is a list"));
    let mut job = pytorch(json!({ "name": "pytorch", "env": "A=1" }), json!({}));
    let path = "spec.pytorchReplicaSpecs.Worker.template.spec.containers[0].env must be a list, and is text";
    assert!(bad(&job.to_string()).ends_with(path));
    job = pytorch(json!({ "name": "pytorch", "command": "python t.py" }), json!({}));
    assert!(bad(&job.to_string()).contains("spec.command"), "{}", bad(&job.to_string()));
    let nameless = json!({ "apiVersion": "batch/v1", "kind": "Job", "spec": {} });
    assert!(bad(&nameless.to_string()).contains("without metadata.name"));
}
