use super::*;
use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use protocol::failure_rules::RuleAction;
use serde_json::{Value, json};
use std::collections::BTreeMap;

mod roles;

fn runtime() -> OperatorInfo {
    OperatorInfo { agent_image: "operator:1".to_owned(), ..OperatorInfo::default() }
}

fn accepted(job: &TrainingJob) -> Result<Plan, Refusals> {
    let planned = resolve(job, &runtime());
    planned.accepted().cloned().map_err(Clone::clone)
}

/// A job that can run, with `fields` set in its spec.
fn job(fields: &Value) -> TrainingJob {
    named("x", fields)
}

fn named(name: &str, fields: &Value) -> TrainingJob {
    let mut spec = json!({ "model": "resnet", "dataset": "imagenet", "numWorkers": 2, "gpusPerWorker": 0 });
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let mut job = TrainingJob::new(name, serde_json::from_value(spec).unwrap());
    job.metadata.namespace = Some("ml".to_owned());
    job.metadata.uid = Some("00000000-0000-0000-0000-000000000001".to_owned());
    job
}

fn plan(fields: &Value) -> Plan {
    accepted(&job(fields)).unwrap_or_else(|refusals| panic!("{fields}: {refusals}"))
}

fn refusals(fields: &Value) -> Vec<String> {
    refusals_of(&job(fields))
}

fn refusals_of(job: &TrainingJob) -> Vec<String> {
    accepted(job).unwrap_err().0.iter().map(ToString::to_string).collect()
}

/// The job must be rejected for exactly this reason.
#[track_caller]
fn refused(fields: &Value, reason: &str) {
    assert_eq!(refusals(fields), [reason], "{fields}");
}

/// The podTemplate must be rejected for exactly this reason; `reason` begins with the path within it.
#[track_caller]
fn template_refused(template: &Value, reason: &str) {
    refused(&json!({ "podTemplate": template }), &format!("spec.podTemplate.{reason}"));
}

/// The spec with the current defaults set in it.
fn filled(spec: &TrainingJobSpec) -> Value {
    let mut filled = serde_json::to_value(spec).unwrap();
    api::fill(&mut filled, &api::defaults_of(spec));
    filled
}

fn quantities(list: Option<&BTreeMap<String, Quantity>>) -> BTreeMap<&str, &str> {
    list.into_iter().flatten().map(|(name, quantity)| (name.as_str(), quantity.0.as_str())).collect()
}

#[test]
fn minimal_job_uses_all_defaults() {
    let plan = plan(&json!({}));
    assert_eq!((plan.gang.size(), plan.gang.workers().gpus, plan.gang.workers().procs), (2, 0, 1));
    assert_eq!(plan.gang.workers().pod.image, "pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime");
    assert_eq!(plan.gang.workers().pod.command, ["torchrun", "train.py"]);
    assert_eq!(input(&plan, "model").source, Source::Name("resnet".to_owned()));
    let checkpoint = plan.storage.checkpoint.unwrap();
    assert_eq!(
        (checkpoint.frequency, checkpoint.policy.retention, checkpoint.volume),
        (5, 3, CheckpointVolume::EmptyDir)
    );
    assert_eq!(
        checkpoint.policy,
        CheckpointPolicy {
            uid: plan.identity.uid,
            job: plan.identity.name,
            workers: 2,
            port: 8080,
            retention: 3,
            ..CheckpointPolicy::default()
        }
    );
    assert_eq!(plan.gang.workers().pod.grace_seconds, 60);
    assert_eq!(plan.identity.owner.controller, Some(true));
    assert_eq!(plan.identity.owner.api_version, "ml.example.com/v1");
    assert_eq!(plan.identity.owner.kind, "TrainingJob");
}

#[test]
fn all_refusals_are_collected() {
    let fields = json!({
        "model": "ftp://bucket/model",
        "procsPerWorker": "cpu",
        "resources": { "requests": { "memory": "lots" } },
        "env": [{ "name": "RANK", "value": "0" }],
        "podTemplate": { "spec": { "hostname": "x" } },
    });
    let fields: Vec<String> = accepted(&job(&fields)).unwrap_err().0.into_iter().map(|r| r.field).collect();
    assert_eq!(
        fields,
        [
            "spec.model",
            "spec.resources.requests.memory",
            "spec.resources.limits.cpu",
            "spec.env[0].name",
            "spec.podTemplate.spec.hostname",
        ]
    );
}

#[test]
fn job_name_must_fit_into_hostnames() {
    assert!(accepted(&named(&"x".repeat(52), &json!({}))).is_ok());
    assert_eq!(
        refusals_of(&named(&"x".repeat(52), &json!({ "numWorkers": 11 }))),
        ["metadata.name: has 52 characters; with 11 workers at most 51 fit into their hostnames"]
    );
    for name in ["x.y", "1x", "x-", "X"] {
        assert_eq!(
            refusals_of(&named(name, &json!({}))),
            [format!(
                "metadata.name: {name:?} can't name a Service: use lower-case letters, digits and -, beginning with a letter"
            )]
        );
    }
}

#[test]
fn object_never_stored_by_api_server_is_refused() {
    let mut job = job(&json!({}));
    job.metadata.uid = None;
    assert_eq!(
        refusals_of(&job),
        ["metadata.uid: is missing: only an object that the API server has stored can be run"]
    );
}

#[test]
fn job_without_model_and_dataset_is_accepted() {
    let without = plan(&json!({ "model": null, "dataset": null, "volumes": [{ "name": "mine", "emptyDir": {} }],
        "volumeMounts": [{ "name": "mine", "mountPath": "/models" }] }));
    assert_eq!((without.storage.inputs, without.storage.fetching), (vec![], None));
}

#[test]
fn sources_are_names_or_claim_folders() {
    let plan =
        plan(&json!({ "model": "pvc://models/llama/8b/", "dataset": "pvc://data", "output": "pvc://out//runs/./1" }));
    let folder = |claim: &str, path: Option<&str>| ClaimPath { claim: claim.to_owned(), path: path.map(str::to_owned) };
    assert_eq!(input(&plan, "model").source, Source::Claim(folder("models", Some("llama/8b"))));
    assert_eq!(input(&plan, "dataset").source, Source::Claim(folder("data", None)));
    assert_eq!(plan.storage.output, Some(Output::Claim(folder("out", Some("runs/1")))));

    refused(
        &json!({ "dataset": "pvc://My_Claim/x" }),
        "spec.dataset: \"My_Claim\" is not the name of a PersistentVolumeClaim; write pvc://CLAIM/PATH",
    );
    refused(&json!({ "model": "pvc://c/../etc" }), "spec.model: leaves the volume: write a path without ..");
    refused(&json!({ "output": "/out" }), "spec.output: \"/out\" is not of the form pvc://CLAIM/PATH");
}

fn input<'a>(plan: &'a Plan, name: &str) -> &'a Input {
    plan.storage.inputs.iter().find(|input| input.name == name).unwrap()
}

#[test]
fn content_at_address_is_fetched_and_mounted() {
    let cache = json!({ "pvcName": "cache", "path": "team/a", "limit": "1Ti" });
    let data = json!([
        { "name": "tokens", "uri": "s3://bucket/tokens/", "mountPath": "/tokens/", "env": "TOKENS" },
        { "name": "pile", "uri": "gs://bucket/pile", "access": "Stream", "env": "PILE" },
        { "name": "scratch", "uri": "pvc://claim/x", "mountPath": "/scratch" },
        { "name": "image", "uri": "oci://registry.test/weights:1", "mountPath": "/weights" },
    ]);
    let plan = plan(&json!({ "model": "hf://org/model", "dataset": "hf://org/set@v1", "cache": cache, "data": data }));
    let fetch = |uri: &str| Source::Fetch { uri: uri.to_owned(), fetched: None };
    let found: Vec<_> = plan.storage.inputs.iter().map(|i| (i.source.clone(), i.value(), i.env.as_deref())).collect();
    let claim = ClaimPath { claim: "claim".to_owned(), path: Some("x".to_owned()) };
    let expected = [
        (fetch("hf://org/model@main"), "/models", Some("MODEL")),
        (fetch("hf://datasets/org/set@v1"), "/data", Some("DATASET")),
        (fetch("s3://bucket/tokens"), "/tokens", Some("TOKENS")),
        (Source::Stream("gs://bucket/pile".to_owned()), "gs://bucket/pile", Some("PILE")),
        (Source::Claim(claim), "/scratch", None),
        (Source::Image("registry.test/weights:1".to_owned()), "/weights", None),
    ];
    assert_eq!(found, expected.map(|(source, value, env)| (source, value.to_owned(), env)));
    let fetching = plan.storage.fetching.unwrap();
    let cache = ClaimPath { claim: "cache".to_owned(), path: Some("team/a".to_owned()) };
    assert_eq!((fetching.cache, fetching.limit), (CacheVolume::Claim(cache), Some(1 << 40)));
    assert!(fetching.safetensors_only);
}

#[test]
fn only_multi_worker_jobs_need_a_cache_claim() {
    let one = plan(&json!({ "model": "hf://org/model", "numWorkers": 1, "safetensorsOnly": false }));
    let fetching = one.storage.fetching.unwrap();
    assert_eq!((fetching.cache, fetching.limit), (CacheVolume::EmptyDir { limit: 100 << 30 }, None));
    assert!(!fetching.safetensors_only);
    refused(
        &json!({ "model": "hf://org/model", "numWorkers": 2 }),
        "spec.cache.pvcName: is needed, because both pods of the job read model: name a claim that all of them can mount",
    );
}

#[test]
fn invalid_content_addresses_are_refused() {
    let entry = |entry: serde_json::Value| json!({ "cache": { "pvcName": "cache" }, "data": [entry] });
    for (fields, expected) in [
        (json!({ "model": "hf://llama" }), "spec.model: hf://llama: the namespace is missing; write "),
        (
            json!({ "dataset": "oci://bucket/set" }),
            "spec.dataset: oci://bucket/set: it can mean Oracle Object Storage (",
        ),
        (json!({ "model": "s3://k:secret@b/x" }), "spec.model: s3://***@b/x: credentials can't be part of it"),
        (
            entry(json!({ "name": "a", "uri": "s3://bucket/a", "mountPath": "/checkpoints" })),
            "spec.data: entry a: /checkpoints is mounted already: choose another mountPath",
        ),
        (
            entry(json!({ "name": "a", "uri": "pvc://claim", "access": "Stream", "env": "A" })),
            "spec.data[0].uri: is a claim, which is always mounted: leave out access",
        ),
        (
            json!({ "cache": { "limit": "much" }, "model": "hf://a/b", "numWorkers": 1 }),
            "spec.cache.limit: \"much\" is not",
        ),
    ] {
        let found = refusals_of(&job(&fields));
        assert!(found.iter().any(|why| why.starts_with(expected)), "{fields}: {found:?}");
    }
}

#[test]
fn command_depends_on_framework() {
    for (fields, expected) in [
        (json!({ "args": ["--x"] }), vec!["torchrun", "--x"]),
        (json!({ "framework": "jax" }), vec!["python3", "train.py"]),
        (json!({ "framework": "tensorflow", "args": ["a.py"] }), vec!["python3", "a.py"]),
        (json!({ "command": ["bash", "-c"], "args": ["exec torchrun"] }), vec!["bash", "-c", "exec torchrun"]),
        (json!({ "command": ["./run"] }), vec!["./run"]),
    ] {
        assert_eq!(plan(&fields).gang.roles[0].pod.command, expected, "{fields}");
    }
}

#[test]
fn gpus_are_requested_once_and_must_agree() {
    let requirements = plan(&json!({ "gpusPerWorker": 2, "resources": { "limits": { "cpu": "4" } } })).gang.roles[0]
        .pod
        .resources
        .clone();
    assert_eq!(quantities(requirements.limits.as_ref()), BTreeMap::from([("cpu", "4"), ("nvidia.com/gpu", "2")]));
    assert_eq!(quantities(requirements.requests.as_ref()), BTreeMap::from([("nvidia.com/gpu", "2")]));

    for name in ["nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "nvidia.com/mig-1g.5gb", "habana.ai/gaudi"] {
        let requirements = plan(&json!({ "gpusPerWorker": 2, "resources": { "requests": { name: "2" } } })).gang.roles
            [0]
        .pod
        .resources
        .clone();
        assert_eq!(quantities(requirements.limits.as_ref()), BTreeMap::from([(name, "2")]), "the limit of {name}");
    }
    refused(
        &json!({ "gpusPerWorker": 1, "resources": { "limits": { "amd.com/gpu": "2" } } }),
        "spec.gpusPerWorker: is 1 and spec.resources asks for 2 of amd.com/gpu: write the same number in both",
    );
    refused(
        &json!({ "gpusPerWorker": 0, "resources": { "requests": { "nvidia.com/gpu": "1" } } }),
        "spec.gpusPerWorker: is 0 and spec.resources asks for 1 of nvidia.com/gpu: write the same number in both",
    );
    assert_eq!(plan(&json!({})).gang.roles[0].pod.resources, ResourceRequirements::default());
}

#[test]
fn resource_quantities_are_valid_and_agree() {
    refused(
        &json!({ "resources": { "limits": { "memory": "16 GB" } } }),
        "spec.resources.limits.memory: \"16 GB\" is not a quantity; write for example 500m, 4 or 16Gi",
    );
    refused(&json!({ "resources": { "requests": { "cpu": "-1" } } }), "spec.resources.requests.cpu: -1 is below zero");
    refused(
        &json!({ "resources": { "requests": { "memory": "2G" }, "limits": { "memory": "1Gi" } } }),
        "spec.resources.requests.memory: 2G is more than the limit 1Gi: lower the request or raise spec.resources.limits.memory",
    );
    refused(
        &json!({ "resources": { "limits": { "vendor.com/fpga": "500m" } } }),
        "spec.resources.limits.vendor.com/fpga: 500m is not a whole number of devices",
    );
    refused(
        &json!({ "resources": { "requests": { "vendor.com/fpga": "1" }, "limits": { "vendor.com/fpga": "2" } } }),
        "spec.resources.requests.vendor.com/fpga: differs from its limit: a device is given whole, write the same number in both",
    );
    refused(
        &json!({ "resources": { "limits": { "gpu": "2" } } }),
        "spec.resources.limits.gpu: is not a resource: write cpu, memory, ephemeral-storage, hugepages-SIZE, or a device with its vendor, such as nvidia.com/gpu",
    );
    plan(&json!({ "resources": { "requests": { "cpu": "1000m" }, "limits": { "cpu": "1" } } }));
}

#[test]
fn processes_per_worker_resolve_to_a_number() {
    for (fields, expected) in [
        (json!({ "gpusPerWorker": 4 }), 4),
        (json!({ "gpusPerWorker": 4, "procsPerWorker": "gpu" }), 4),
        (json!({ "gpusPerWorker": 4, "procsPerWorker": 2 }), 2),
        (json!({ "gpusPerWorker": 4, "framework": "jax" }), 1),
        (json!({ "procsPerWorker": "cpu", "resources": { "limits": { "cpu": "3500m" } } }), 3),
        (json!({ "procsPerWorker": "cpu", "resources": { "limits": { "cpu": "200m" } } }), 1),
    ] {
        assert_eq!(plan(&fields).gang.roles[0].procs, expected, "{fields}");
    }
    assert_eq!(plan(&json!({ "procsPerWorker": 8, "numWorkers": 4096 })).gang.workers().world_size(), 32768);

    refused(
        &json!({ "procsPerWorker": "cpu" }),
        "spec.resources.limits.cpu: is needed with procsPerWorker: cpu, which takes its number from it",
    );
    refused(
        &json!({ "procsPerWorker": "cpu", "resources": { "limits": { "cpu": "1M" } } }),
        "spec.procsPerWorker: is cpu and the CPU limit more than 1024: write a number",
    );
    refused(
        &json!({ "procsPerWorker": "gpu" }),
        "spec.procsPerWorker: is gpu and spec.gpusPerWorker is 0: give the workers GPUs, or write auto or a number",
    );
    for framework in ["jax", "tensorflow"] {
        refused(
            &json!({ "procsPerWorker": 2, "framework": framework }),
            &format!(
                "spec.procsPerWorker: makes 2 processes, and a {framework} worker is one process that drives all its \
                 GPUs: leave it out, or raise spec.numWorkers"
            ),
        );
    }
}

#[test]
fn monitoring_is_on_by_default() {
    let monitoring = plan(&json!({})).monitoring;
    assert_eq!(monitoring.metrics_port, Some(8080));
    assert_eq!((monitoring.watched.len(), monitoring.tensorboard), (0, None));
    let mlflow = plan(&json!({ "monitoring": { "mlflowTrackingUri": "http://m" } })).monitoring.mlflow.unwrap();
    assert_eq!((mlflow.uri.as_str(), mlflow.experiment.as_str()), ("http://m", "x"));
}

#[test]
fn failure_rules_are_validated_before_job_runs() {
    let rule = |message: &str| {
        let rule = json!({ "exitCodes": [42], "reasons": ["OOMKilled"], "message": message, "action": "Ignore" });
        json!({ "failurePolicy": { "rules": [{ "reasons": ["Signal"], "action": "Fail" }, rule] } })
    };
    let rules = plan(&rule(r"xid \d+")).policy.failure.restart.rules;
    assert_eq!(
        (rules[1].exit_codes.as_slice(), rules[1].reasons.as_slice()),
        (&[42][..], &["OOMKilled".to_owned()][..])
    );
    assert_eq!((rules[1].message.as_deref(), rules[1].action), (Some(r"xid \d+"), RuleAction::Ignore));
    for (wrong, words) in
        [("(xid", "is no regular expression"), (r"\w{900}", "is too large"), ("a(?!b)", "look-around")]
    {
        let refusals = refusals(&rule(wrong));
        assert_eq!(refusals.len(), 1, "{refusals:?}");
        assert!(refusals[0].starts_with("spec.failurePolicy.rules[1].message: "), "{refusals:?}");
        assert!(refusals[0].contains(words), "{refusals:?}");
    }
}

#[test]
fn progress_patterns_are_validated_before_job_runs() {
    let pattern = |pattern: &str| json!({ "monitoring": { "progress": { "patterns": ["(?P<loss>.)", pattern] } } });
    plan(&pattern(r"it (?P<step>\d+)"));
    for (wrong, words) in
        [("(?P<loss>[)", "unclosed character class"), ("(?P<loss>.)(?=x)", "look-around"), ("x", "no named group")]
    {
        let refusals = refusals(&pattern(wrong));
        assert_eq!(refusals.len(), 1);
        assert!(refusals[0].starts_with("spec.monitoring.progress.patterns[1]: "), "{refusals:?}");
        assert!(refusals[0].contains(words) && !refusals[0].contains('\n'), "{refusals:?}");
    }
}

#[test]
fn monitoring_must_not_conflict_with_gang() {
    for port in [29500, 29501] {
        refused(
            &json!({ "monitoring": { "metricsPort": port } }),
            &format!(
                "spec.monitoring.metricsPort: {port} is used by the rendezvous of one attempt or the next: choose another"
            ),
        );
    }
    plan(&json!({ "monitoring": { "metricsPort": 29500, "enabled": false } }));
    refused(
        &json!({ "monitoring": { "mlflowTrackingUri": "databricks" } }),
        "spec.monitoring.mlflowTrackingUri: \"databricks\" is not the address of a server; write for example http://mlflow.example.com:5000, and for a folder run mlflow server with it",
    );
    refused(
        &json!({ "monitoring": { "trackerSecret": "A_B" } }),
        "spec.monitoring.trackerSecret: \"A_B\" is not the name of a Secret",
    );
    refused(
        &json!({ "monitoring": { "enabled": false }, "successPolicy": { "targetLoss": 0.1 } }),
        "spec.successPolicy: can't be judged with monitoring.enabled: false, because the operator then does not see what the program reports: switch one of them",
    );
    refused(
        &json!({ "monitoring": { "enabled": false, "objective": { "metric": "loss" } } }),
        "spec.monitoring.objective: can't be read with monitoring.enabled: false, because the operator then does not see what the program reports: switch one of them",
    );
    let objective =
        |fields: Value| plan(&json!({ "monitoring": { "objective": fields } })).monitoring.objective.unwrap();
    let least = objective(json!({ "metric": "loss" }));
    assert_eq!((least.metric.as_str(), least.max, least.rungs), ("loss", false, None));
    let all = objective(json!({ "metric": "acc", "mode": "max", "rungs": { "minStep": 10, "factor": 3 } }));
    assert_eq!((all.max, all.rungs.map(|rungs| (rungs.min_step, rungs.factor))), (true, Some((10, 3))));
    let board = |name: &str| named(name, &json!({ "numWorkers": 1, "monitoring": { "tensorboardEnabled": true } }));
    assert!(accepted(&board(&"x".repeat(51))).is_ok());
    assert_eq!(
        refusals_of(&board(&"x".repeat(52))),
        ["metadata.name: has 52 characters; with a TensorBoard at most 51 fit into the name of its Service"]
    );
}

#[test]
fn tensorboard_needs_a_volume() {
    let board = |fields: Value| {
        let mut all = json!({ "monitoring": { "tensorboardEnabled": true } });
        all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        plan(&all).monitoring.tensorboard
    };
    assert_eq!(board(json!({})), Some(TensorBoard::NoStorage));
    let Some(TensorBoard::Beside(found)) = board(json!({ "checkpoint": { "storage": { "type": "pvc" } } })) else {
        panic!("it has a claim");
    };
    assert_eq!((found.log_dir().as_str(), found.one_node), ("/checkpoints/tensorboard", false));
    assert_eq!(found.image, "tensorflow/tensorflow:2.19.0");
}

#[test]
fn rdma_needs_its_resource() {
    let fields = json!({ "networking": { "rdmaEnabled": true, "rdmaResource": "rdma/hca" } });
    assert_eq!(
        quantities(plan(&fields).gang.roles[0].pod.resources.limits.as_ref()),
        BTreeMap::from([("rdma/hca", "1")])
    );
    let fields = json!({
        "networking": { "rdmaEnabled": true, "rdmaResource": "rdma/hca" },
        "resources": { "limits": { "rdma/hca": "4" } },
    });
    assert_eq!(
        quantities(plan(&fields).gang.roles[0].pod.resources.requests.as_ref()),
        BTreeMap::from([("rdma/hca", "4")])
    );
    refused(
        &json!({ "networking": { "rdmaEnabled": true } }),
        "spec.networking.rdmaResource: is needed with rdmaEnabled: name the resource of the RDMA devices, for example rdma/rdma_shared_device_a",
    );
    refused(
        &json!({ "networking": { "rdmaEnabled": true, "rdmaResource": "memory" } }),
        "spec.networking.rdmaResource: \"memory\" is not the name of an extended resource, for example rdma/rdma_shared_device_a",
    );
}

#[test]
fn reserved_gang_variables_are_refused() {
    refused(
        &json!({ "env": [{ "name": "A", "value": "1" }, { "name": "WORLD_SIZE", "value": "1" }] }),
        "spec.env[1].name: WORLD_SIZE is set by the operator for the whole gang: remove it, or copy it to a name of your own with $(...)",
    );
    refused(
        &json!({ "env": [{ "name": "PET_MAX_RESTARTS", "value": "3" }] }),
        "spec.env[0].name: PET_MAX_RESTARTS is set by the operator for the whole gang: give torchrun the option on its command line",
    );
    template_refused(
        &json!({ "spec": { "containers": [{ "name": "training", "env": [{ "name": "MASTER_PORT", "value": "1" }] }] } }),
        "spec.containers[0].env[0].name: MASTER_PORT is set by the operator for the whole gang: remove it, or copy it to a name of your own with $(...)",
    );
}

#[test]
fn tf_config_beyond_kernel_limit_is_refused() {
    plan(&json!({ "framework": "tensorflow", "numWorkers": 2000 }));
    refused(
        &json!({ "framework": "tensorflow", "numWorkers": 4096 }),
        "spec.numWorkers: makes a TF_CONFIG of 179193 bytes and Linux passes on at most 131072: use fewer workers or a shorter name",
    );
}

#[test]
fn hyperparameter_variables_must_be_unique() {
    let plan = plan(&json!({ "hyperparameters": {
        "learningRate": 0.000_05, "epochs": 3, "optimizer": "adamw", "mixedPrecision": true,
        "additionalParams": { "weight_decay": "0.01" },
    } }));
    let variables: Vec<(&str, String)> = plan.hyperparameters.iter().map(|h| (h.variable.as_str(), h.text())).collect();
    assert_eq!(
        variables,
        [
            ("HYPERPARAM_LEARNING_RATE", "0.00005".to_owned()),
            ("HYPERPARAM_EPOCHS", "3".to_owned()),
            ("HYPERPARAM_OPTIMIZER", "adamw".to_owned()),
            ("HYPERPARAM_MIXED_PRECISION", "true".to_owned()),
            ("HYPERPARAM_WEIGHT_DECAY", "0.01".to_owned()),
        ]
    );
    refused(
        &json!({ "hyperparameters": { "batchSize": 8, "additionalParams": { "batch_size": "16" } } }),
        "spec.hyperparameters.additionalParams.batch_size: would be HYPERPARAM_BATCH_SIZE, as \"batchSize\" is: give it another name",
    );
    refused(
        &json!({ "hyperparameters": { "additionalParams": { "-": "16" } } }),
        "spec.hyperparameters.additionalParams.-: needs a name with at least one letter or digit",
    );
}

#[test]
fn checkpoint_storage_maps_to_volume() {
    let volume =
        |storage: Value| plan(&json!({ "checkpoint": { "storage": storage } })).storage.checkpoint.unwrap().volume;
    assert_eq!(
        volume(json!({ "type": "pvc" })),
        CheckpointVolume::New { size: Quantity("10Gi".to_owned()), storage_class: None, delete_with_job: false }
    );
    assert_eq!(volume(json!({ "type": "pvc", "pvcName": "mine" })), CheckpointVolume::Claim("mine".to_owned()));
    assert_eq!(
        volume(json!({ "type": "nfs", "nfsServer": "10.0.0.1", "nfsPath": "/x" })),
        CheckpointVolume::Nfs { server: "10.0.0.1".to_owned(), path: "/x".to_owned() }
    );
    assert_eq!(plan(&json!({ "checkpoint": { "enabled": false } })).storage.checkpoint, None);

    let storage_refused = |storage: Value, reason: &str| {
        refused(&json!({ "checkpoint": { "storage": storage } }), &format!("spec.checkpoint.storage.{reason}"));
    };
    storage_refused(json!({ "type": "pvc", "size": "big" }), "size: \"big\" is not a size; write for example 50Gi");
    storage_refused(json!({ "type": "pvc", "size": "0" }), "size: \"0\" is not a size; write for example 50Gi");
    storage_refused(
        json!({ "type": "pvc", "pvcName": "Mine" }),
        "pvcName: \"Mine\" is not the name of a PersistentVolumeClaim",
    );
    storage_refused(
        json!({ "type": "nfs", "nfsPath": "/x" }),
        "nfsServer: is needed with type nfs: the server's name or address",
    );
    storage_refused(
        json!({ "type": "nfs", "nfsServer": "s", "nfsPath": "x" }),
        "nfsPath: \"x\" is not an absolute path; write for example /exports/x",
    );
}

#[test]
fn conflicting_mounts_are_refused() {
    let volumes = json!([{ "name": "mine", "emptyDir": {} }]);
    let mounted = |path: &str| json!({ "volumes": volumes, "volumeMounts": [{ "name": "mine", "mountPath": path }] });
    for path in ["/data", "/models", "/out", "/dev/shm", "/checkpoints/mine", "/"] {
        plan(&mounted(path));
    }
    refused(
        &mounted("/checkpoints/"),
        "spec.volumeMounts[0].mountPath: /checkpoints is where checkpoints go: name the volume in spec.checkpoint.storage, or set spec.checkpoint.enabled to false",
    );
    refused(
        &mounted("/trainingjob"),
        "spec.volumeMounts[0].mountPath: /trainingjob is where the agent is: mount it elsewhere",
    );
    refused(
        &mounted("/etc/training-config"),
        "spec.volumeMounts[0].mountPath: /etc/training-config is where the job's configuration is: mount it elsewhere",
    );
    for (field, path) in [("model", "/models"), ("dataset", "/data"), ("output", "/out")] {
        let mut fields = mounted(path);
        fields[field] = json!("pvc://claim");
        refused(
            &fields,
            &format!("spec.volumeMounts[0].mountPath: {path} is where spec.{field} is mounted: mount it elsewhere"),
        );
    }
    refused(
        &json!({ "volumeMounts": [{ "name": "absent", "mountPath": "/x" }] }),
        "spec.volumeMounts[0].name: there is no volume \"absent\": add it to spec.volumes",
    );
    refused(
        &json!({ "volumes": [{ "name": "trainingjob-shm", "emptyDir": {} }] }),
        "spec.volumes[0].name: \"trainingjob-shm\" begins like the operator's volumes (trainingjob-): give it another name",
    );
    template_refused(
        &json!({ "spec": { "volumes": [{ "name": "trainingjob-agent", "emptyDir": {} }] } }),
        "spec.volumes[0].name: \"trainingjob-agent\" begins like the operator's volumes (trainingjob-): give it another name",
    );
    template_refused(
        &json!({ "spec": { "containers": [{ "name": "training", "volumeMounts": [{ "name": "trainingjob-shm", "mountPath": "/checkpoints" }] }] } }),
        "spec.containers[0].volumeMounts[0].mountPath: /checkpoints is where checkpoints go: name the volume in spec.checkpoint.storage, or set spec.checkpoint.enabled to false",
    );
    plan(&json!({ "podTemplate": { "spec": { "initContainers": [{
        "name": "sidecar", "image": "busybox", "restartPolicy": "Always",
        "volumeMounts": [{ "name": "trainingjob-checkpoints", "mountPath": "/checkpoints" }],
    }] } } }));
}

#[test]
fn pod_template_may_set_fields_missing_from_spec() {
    let plan = plan(&json!({ "podTemplate": {
        "metadata": { "creationTimestamp": null, "annotations": { "a": "b" }, "labels": { "team": "vision" } },
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 120,
            "runtimeClassName": "nvidia",
            "securityContext": { "runAsNonRoot": true, "runAsUser": 1000 },
            "containers": [
                { "name": "training", "securityContext": { "allowPrivilegeEscalation": false }, "resources": { "claims": [{ "name": "gpu" }] } },
                { "name": "helper", "image": "busybox", "resources": { "limits": { "cpu": 1 } }, "ports": [{ "containerPort": 80 }] },
            ],
        },
    } }));
    assert_eq!(plan.gang.workers().pod.grace_seconds, 120);
    assert_eq!(plan.gang.workers().pod.program_grace_seconds, 90);
    assert_eq!(plan.gang.workers().pod.overlay.spec.as_ref().unwrap().runtime_class_name.as_deref(), Some("nvidia"));
}

/// The grace period elapses while the hook sleeps; SIGTERM follows after it.
#[test]
fn pre_stop_hook_must_leave_program_time_to_stop() {
    let template = |grace: Value, container: &str, hook: Value| {
        let helper = json!({ "name": "helper", "image": "busybox" });
        let hooked = json!({ "name": container, "image": "busybox", "lifecycle": { "preStop": hook } });
        json!({ "spec": { "terminationGracePeriodSeconds": grace, "containers": [helper, hooked] } })
    };
    let sleep = |seconds: i64| json!({ "sleep": { "seconds": seconds } });
    let field = "spec.containers[1].lifecycle.preStop.sleep.seconds: is";
    let remedy = "and the program would be killed without a SIGTERM: write less, or raise \
                  spec.podTemplate.spec.terminationGracePeriodSeconds";
    for (grace, seconds, of) in [(json!(null), 60, 60), (json!(30), 30, 30), (json!(30), 900, 30), (json!(0), 1, 0)] {
        let reason = format!("{field} {seconds} of the {of} s that the pod has to stop, {remedy}");
        template_refused(&template(grace, "training", sleep(seconds)), &reason);
    }
    for (grace, container, hook, program) in [
        (json!(null), "training", sleep(59), 1),
        (json!(100), "training", sleep(60), 30),
        (json!(0), "training", sleep(0), 1),
        // Another container's hook runs beside the program. The duration of these hooks is unknown in advance.
        (json!(null), "sidecar", sleep(60), 45),
        (json!(null), "training", json!({ "exec": { "command": ["sleep", "60"] } }), 45),
        (json!(null), "training", json!({ "httpGet": { "port": 80, "path": "/drain" } }), 45),
    ] {
        let template = template(grace, container, hook);
        let plan = plan(&json!({ "podTemplate": template }));
        assert_eq!(plan.gang.workers().pod.program_grace_seconds, program, "{template}");
    }
    let started = json!({ "name": "training", "lifecycle": { "postStart": sleep(90) } });
    let plan = plan(&json!({ "podTemplate": { "spec": { "containers": [started] } } }));
    assert_eq!(plan.gang.workers().pod.program_grace_seconds, 45);
}

/// Versions with defaults in the schema stored them, and users may write them.
#[test]
fn explicit_defaults_change_nothing() {
    for fields in [
        json!({}),
        json!({ "gpusPerWorker": 1 }),
        json!({ "checkpoint": { "storage": { "type": "pvc" } }, "networking": { "interface": "eth0" } }),
        json!({ "checkpoint": { "keepBest": { "metric": "m" }, "backup": { "destination": "s3://b/p" } } }),
        json!({ "framework": "jax", "monitoring": { "enabled": false }, "failurePolicy": { "backoffLimit": 0 } }),
        json!({ "monitoring": { "objective": { "metric": "m" } } }),
        json!({ "elastic": { "maxWorkers": 4 }, "checkpoint": { "enabled": false } }),
    ] {
        let mut job = job(&fields);
        let written = plan(&fields);
        let stored = filled(&job.spec);
        for path in api::defaults::all().map(|(path, _)| path) {
            let there = path.split('.').try_fold(&stored, |object, step| object.get(step)).is_some();
            // Fields of an object that is there or not as a whole.
            let parent = path.rsplit_once('.').map_or("", |(parent, _)| parent);
            let is_absent = api::defaults::THERE_OR_NOT.contains(&parent)
                && fields.pointer(&format!("/{}", parent.replace('.', "/"))).is_none();
            assert!(there || is_absent, "{path}: {stored}");
        }
        job.spec = serde_json::from_value(stored).unwrap();
        assert_eq!(accepted(&job), Ok(written), "{fields}");
    }
}

/// The API server sees neither the template nor the merged spec.
#[test]
fn size_outside_template_bounds_is_refused() {
    let refused = |workers: u32, template: Value| {
        let mut job = job(&json!({ "numWorkers": workers, "runtimeRef": { "name": "gpu" } }));
        let taken = json!({
            "kind": "ClusterTrainingRuntime", "name": "gpu", "uid": "t", "generation": 1, "spec": template,
        });
        let taken = serde_json::from_value(taken).unwrap();
        job.status.get_or_insert_default().inherited = Some(record(&job, Some(&taken), None).unwrap());
        accepted(&job).err().map(|refusals| refusals.to_string())
    };
    let elastic = |min: Option<i32>| json!({ "elastic": { "minWorkers": min, "maxWorkers": 4 }, "checkpoint": { "enabled": false } });
    for workers in [1, 3, 4] {
        assert_eq!(refused(workers, elastic(None)), None);
    }
    for (workers, min, bounds) in [(5, None, "1 to 4"), (100, Some(2), "2 to 4"), (1, Some(2), "2 to 4")] {
        let why = refused(workers, elastic(min)).unwrap();
        assert!(why.contains(&format!("spec.numWorkers: is {workers},")) && why.contains(bounds), "{why}");
    }
    assert_eq!(refused(100, json!({})), None, "it is not elastic");
}

/// The accessors must agree with the table from which descriptions and rules are generated.
#[test]
fn unset_fields_take_their_defaults() {
    let plan = plan(&json!({ "gpusPerWorker": null }));
    let worker = plan.gang.workers();
    assert_eq!((worker.gpus, worker.procs, plan.gang.rendezvous.master_port), (1, 1, 29500));
    assert_eq!(
        (plan.gang.rendezvous.framework, plan.gang.rendezvous.backend),
        (Framework::Pytorch, api::Backend::Nccl)
    );
    assert_eq!((plan.gang.rendezvous.rdma, plan.monitoring.metrics_port), (false, Some(8080)));
    assert_eq!(plan.monitoring.tensorboard, None);
    let restart = &plan.policy.failure.restart;
    assert_eq!((restart.restarts, restart.backoff_limit), (protocol::gang::Restarts::OnFailure, 3));
    assert!(!plan.policy.failure.nan_fails);
}

/// A pod in the operator's namespace could use the operator's service account.
#[test]
fn job_in_operator_namespace_is_refused() {
    let refusals = |own: Option<&str>| {
        let runtime = OperatorInfo { own_namespace: own.map(str::to_owned), ..runtime() };
        resolve(&job(&json!({})), &runtime).refusals.0.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(
        refusals(Some("ml")),
        ["metadata.namespace: is the operator's own: create the job in another namespace"]
    );
    assert!(refusals(Some("trainingjob-system")).is_empty() && refusals(None).is_empty());
}

/// The worst decodable case: every value is a separate error.
#[test]
fn refusals_are_bounded_for_any_template() {
    let keys: serde_json::Map<_, _> = (0..10_000).map(|n| (format!("k{n}"), json!(1))).collect();
    for spec in [
        json!({ "containers": vec![1; 19_000] }),
        json!({ "containers": vec![json!({}); 19_000] }),
        Value::Object(keys),
        json!({ "k".repeat(200_000): 1 }),
        json!({ "containers": [{ "name": "training", "env": vec![json!({ "name": "RANK" }); 9_000] }] }),
    ] {
        let mut job = job(&json!({}));
        job.spec.pod_template = Some(json!({ "spec": spec }));
        let planned = resolve(&job, &OperatorInfo::default());
        let refusals = &planned.refusals.0;
        assert!((1..=100).contains(&refusals.len()), "{}", refusals.len());
        let bytes: usize = refusals.iter().map(|refusal| refusal.field.len() + refusal.message.len()).sum();
        assert!(bytes < 64 * 1024, "{bytes} bytes are kept");
    }
}

#[test]
fn wrong_types_are_named_with_their_path() {
    assert_eq!(
        refusals(&json!({ "podTemplate": {
            "metadata": { "annotations": { "a": 1 } },
            "spec": { "hostNetwork": "yes", "containers": [
                { "name": "training" },
                { "name": "helper", "image": ["busybox"], "ports": { "containerPort": 80 } },
            ] },
        } })),
        [
            "spec.podTemplate.metadata.annotations.a: invalid type: integer `1`, expected a string",
            "spec.podTemplate.spec.containers[1].image: invalid type: sequence, expected a string",
            "spec.podTemplate.spec.containers[1].ports: invalid type: map, expected a sequence",
            "spec.podTemplate.spec.hostNetwork: invalid type: string \"yes\", expected a boolean",
        ]
    );
}

#[test]
fn unknown_and_missing_fields_are_named_with_their_path() {
    assert_eq!(
        refusals(&json!({ "podTemplate": {
            "kind": "Pod",
            "spec": {
                "containers": [{ "image": "busybox" }, { "name": "training", "imagee": "x", "$patch": "delete" }],
                "volumes": [{ "name": "v", "persistentVolumeClaim": { "claim": "c" } }],
                "tolerations": null,
            },
        } })),
        [
            "spec.podTemplate.kind: unknown field: check its name and its indentation",
            "spec.podTemplate.spec.containers[0].name: is missing and has no default",
            "spec.podTemplate.spec.containers[1].$patch: unknown field: check its name and its indentation",
            "spec.podTemplate.spec.containers[1].imagee: unknown field: check its name and its indentation",
            "spec.podTemplate.spec.volumes[0].persistentVolumeClaim.claim: unknown field: check its name and its indentation",
            "spec.podTemplate.spec.volumes[0].persistentVolumeClaim.claimName: is missing and has no default",
        ]
    );
}

#[test]
fn pod_template_that_breaks_gang_is_refused() {
    let training =
        |field: &str, value: Value| json!({ "spec": { "containers": [{ "name": "training", field: value }] } });
    let pod = |field: &str, value: Value| json!({ "spec": { field: value } });
    let helper = json!({ "name": "helper", "image": "busybox" });
    for (template, reason) in [
        (
            pod("restartPolicy", json!("OnFailure")),
            "spec.restartPolicy: must be Never, since a worker that comes back alone can't join its gang: use spec.failurePolicy",
        ),
        (pod("hostname", json!("h")), "spec.hostname: is how the workers find each other: remove it"),
        (pod("hostnameOverride", json!("h")), "spec.hostnameOverride: is how the workers find each other: remove it"),
        (pod("subdomain", json!("s")), "spec.subdomain: is how the workers find each other: remove it"),
        (
            pod("activeDeadlineSeconds", json!(60)),
            "spec.activeDeadlineSeconds: would end single workers: use spec.failurePolicy.activeDeadlineSeconds",
        ),
        (pod("ephemeralContainers", json!([])), "spec.ephemeralContainers: can't be in a template: use kubectl debug"),
        (
            pod("resources", json!({})),
            "spec.resources: can't be set for the whole pod: use spec.resources, from which GPUs and processes are counted",
        ),
        (pod("os", json!({ "name": "windows" })), "spec.os: must be linux: the agent runs nowhere else"),
        (
            training("command", json!(["sh"])),
            "spec.containers[0].command: would start the program without its agent: use spec.command",
        ),
        (
            training("args", json!([])),
            "spec.containers[0].args: would start the program without its agent: use spec.args",
        ),
        (
            training("resources", json!({ "limits": { "cpu": 1 } })),
            "spec.containers[0].resources: use spec.resources, from which GPUs and processes are counted",
        ),
        (
            training("restartPolicy", json!("Always")),
            "spec.containers[0].restartPolicy: is how an agent that was killed comes back to its gang: use spec.failurePolicy",
        ),
        (
            training("restartPolicyRules", json!([])),
            "spec.containers[0].restartPolicyRules: is how an agent that was killed comes back to its gang: use spec.failurePolicy",
        ),
        (
            training("terminationMessagePath", json!("/x")),
            "spec.containers[0].terminationMessagePath: is how the agent tells why a worker ended: remove it",
        ),
        (
            training("terminationMessagePolicy", json!("File")),
            "spec.containers[0].terminationMessagePolicy: is how the agent tells why a worker ended: remove it",
        ),
        (
            pod("initContainers", json!([{ "name": "agent", "image": "i" }])),
            "spec.initContainers[0].name: \"agent\" is the operator's own: give it another name",
        ),
        (
            pod("initContainers", json!([{ "name": "fetch" }])),
            "spec.initContainers[0].image: is missing and has no default",
        ),
        (pod("containers", json!([{ "name": "helper" }])), "spec.containers[0].image: is missing and has no default"),
        (
            pod("containers", json!([helper, helper])),
            "spec.containers[1].name: \"helper\" stands here twice: write it as one container",
        ),
        (
            json!({ "metadata": { "labels": { "training-job": "y" } } }),
            "metadata.labels.training-job: is set by the operator: remove it",
        ),
        (
            json!({ "metadata": { "labels": { "ml.example.com/incarnation": "9" } } }),
            "metadata.labels.ml.example.com/incarnation: is set by the operator: remove it",
        ),
        (
            json!({ "metadata": { "annotations": { "batch.kubernetes.io/job-completion-index": "0" } } }),
            "metadata.annotations.batch.kubernetes.io/job-completion-index: is set by the operator: remove it",
        ),
        (
            json!({ "metadata": { "name": "pod" } }),
            "metadata.name: can't be set for workers: only labels and annotations can",
        ),
    ] {
        template_refused(&template, reason);
    }
}

#[test]
fn gang_port_differs_from_all_other_ports() {
    let port = |master: u16, metrics: u16, enabled: bool| {
        let spec = json!({
            "networking": { "masterPort": master },
            "monitoring": { "metricsPort": metrics, "enabled": enabled },
        });
        let plan = plan(&spec);
        let (port, agent) = (plan.gang.rendezvous.gang_port, plan.monitoring.agent_port);
        let mpi = Rendezvous::mpi_port(master, port, agent);
        assert!(![master, master + 1, port, metrics, agent].contains(&mpi), "{spec}: {mpi}");
        assert!(![master, master + 1, metrics, agent].contains(&port), "{spec}: {port}");
        port
    };
    assert_eq!(port(29500, 8080, true), 29502);
    assert_eq!(port(29500, 29502, true), 29503);
    assert_eq!(port(29500, 29501, false), 29502);
    assert_eq!(port(65534, 8080, true), 65532);
    assert_eq!(port(65534, 65532, true), 65531);
    assert_eq!(port(65533, 65535, true), 65531);
    for metrics in 65526..=65535 {
        port(65534, metrics, metrics < 65534);
    }
}

#[test]
fn restart_rules_need_server_1_34() {
    for (major, minor, has) in
        [("1", "33", false), ("1", "34", true), ("1", "36+", true), ("2", "0", true), ("", "", false)]
    {
        assert_eq!(OperatorInfo::has_restart_rules(major, minor), has, "{major}.{minor}");
    }
}

#[test]
fn intent_ignores_explicit_defaults_and_mutable_fields() {
    let intent = |fields: &Value| plan(fields).identity.intent;
    let base = intent(&json!({}));
    assert_eq!(base.len(), 16);
    // Defaults written out, and what may change in a created job.
    for fields in [
        json!({ "framework": "pytorch", "networking": { "masterPort": 29500 }, "checkpoint": { "frequency": 5 } }),
        json!({ "suspend": true, "ttlSecondsAfterFinished": 5, "failurePolicy": { "activeDeadlineSeconds": 9 } }),
        json!({ "monitoring": { "metricsPort": 8080, "minThroughput": 5, "plateauSeconds": 60 }, "successPolicy": { "targetLoss": 0.5 } }),
        json!({ "scheduling": { "gang": "none" } }),
    ] {
        assert_eq!(intent(&fields), base, "{fields}");
    }
    for fields in [
        json!({ "numWorkers": 3 }),
        json!({ "networking": { "masterPort": 29501 } }),
        json!({ "args": ["x"] }),
        json!({ "monitoring": { "metricsPort": 8081 } }),
        json!({ "podTemplate": { "spec": { "hostNetwork": true } } }),
    ] {
        assert_ne!(intent(&fields), base, "{fields}");
    }
    let other = OperatorInfo {
        agent_image: "operator:2".to_owned(),
        agent_image_pull_policy: Some("Always".to_owned()),
        ..OperatorInfo::default()
    };
    assert_eq!(resolve(&job(&json!({})), &other).plan.identity.intent, base);
    // Fixed here, since a later version must compute the same value.
    assert_eq!(base, "f7ad24a438425ed2");
}

#[test]
fn queue_is_used_by_volcano_or_by_kueue() {
    let of = |gang: &str| {
        let plan = plan(&json!({ "scheduling": { "gang": gang, "queue": "research" } }));
        (plan.gang.group.clone().map(|group| group.kind), plan.gang.workers().pod.scheduling.queue.clone())
    };
    let queue = Some("research".to_owned());
    assert_eq!(of("volcano"), (Some(GroupKind::Volcano { queue: queue.clone() }), None));
    assert_eq!(of("coscheduling"), (Some(GroupKind::Coscheduling), queue.clone()));
    assert_eq!(of("native"), (Some(GroupKind::Native), queue.clone()));
    assert_eq!(of("none"), (None, queue));
    assert_eq!(plan(&json!({})).gang.group, None);
}

/// The name is also the value of a label of the coscheduling plugin.
#[test]
fn pod_group_name_fits_into_a_label() {
    let longest = "a".repeat(52);
    let name = names::pod_group_name(&longest, "00AB0000-0000-0000-0000-000000000001");
    assert!(accepted(&named(&longest, &json!({}))).is_ok() && accepted(&named(&"a".repeat(53), &json!({}))).is_err());
    assert_eq!((name.len(), name.ends_with("-00ab0000")), (61, true));
}

#[test]
fn pod_template_must_not_name_another_pod_group() {
    let with = |gang: &str, metadata: &Value| json!({ "scheduling": { "gang": gang }, "podTemplate": { "metadata": metadata } });
    let volcano = json!({ "annotations": { "scheduling.k8s.io/group-name": "mine" } });
    let coscheduling = json!({ "labels": { "scheduling.x-k8s.io/pod-group": "mine" } });
    let why = "is set by the operator for spec.scheduling.gang: remove it, or gang";
    refused(
        &with("volcano", &volcano),
        &format!("spec.podTemplate.metadata.annotations.scheduling.k8s.io/group-name: {why}"),
    );
    refused(
        &with("coscheduling", &coscheduling),
        &format!("spec.podTemplate.metadata.labels.scheduling.x-k8s.io/pod-group: {why}"),
    );
    // A user may make a group by hand.
    for metadata in [&volcano, &coscheduling] {
        plan(&with("none", metadata));
    }
}

/// It goes before the field of the spec. The record counts where the annotation is lost, and another form is ignored.
#[test]
fn restart_annotation_overrides_resume_from() {
    let mut job = job(&json!({ "checkpoint": { "resumeFrom": "a" } }));
    let planned = |job: &TrainingJob| {
        let policy = accepted(job).unwrap().storage.checkpoint.unwrap().policy;
        (policy.wish().unwrap().to_owned(), policy.resume_from.unwrap())
    };
    let own = ("/checkpoints/a".to_owned(), "/checkpoints/a".to_owned());
    let annotated = |job: &TrainingJob, value: &str| {
        let mut job = job.clone();
        job.metadata.annotations = Some([(labels::RESTART_FROM.to_owned(), value.to_owned())].into());
        job
    };
    assert_eq!(planned(&job), own);
    for (value, path) in [("r1 step 5", "/checkpoints/step 5"), ("r1 s3://b/step-5", "s3://b/step-5")] {
        assert_eq!(planned(&annotated(&job, value)), ("r1".into(), path.into()), "{value}");
    }
    for value in ["", "r1", "r1 ", "r1 a/../b", "r1 http://a/b", "r1 a\nb"] {
        assert_eq!(planned(&annotated(&job, value)), own, "{value}");
    }
    let restart = api::RestartFrom { path: "/checkpoints/b".into(), request: "r0".into(), used: None };
    let checkpoint = api::CheckpointStatus { restart_from: Some(restart), ..Default::default() };
    job.status = Some(api::TrainingJobStatus { checkpoint: Some(checkpoint), ..Default::default() });
    assert_eq!(planned(&job), ("r0".into(), "/checkpoints/b".into()));
    assert_eq!(planned(&annotated(&job, "r1 c")), ("r1".into(), "/checkpoints/c".into()));
}
