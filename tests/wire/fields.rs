//! Drives every field of the spec through changes.
//!
//! The method is that of Acto ("Automatic End-to-End Testing for Operation Correctness of Cloud System Management",
//! SOSP 2023). Each field is set, changed and removed on a running job and on a suspended one. Either the API server
//! refuses that with the message that names the way out, and nothing happens. Or the job reaches the state of a new job
//! with that spec. A running job accepts changes to few fields, a suspended one to all of its program, its resources
//! and its placement. Either way the operator settles and logs no error.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, ServiceAccount};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::{Duration, Instant};
use testkit::support::operator::Operator;
use testkit::support::outcome::Outcome;
use testkit::support::wire::Instructions;
use testkit::support::witness::{Kind, Space};
use testkit::support::{DEADLINE, World, jobs_url, kubelet, runtime};
use testkit::wait::eventually;
use tracing::Level;

/// A field and the values that are tried.
struct Case {
    /// Path from the spec, as in `checkpoint.storage.size`.
    field: &'static str,
    /// Other fields that the spec needs for it.
    with: Value,
    /// Two values, the first of them not the default. A job with the first one can run here.
    values: [Value; 2],
}

/// One for each field of the spec.
fn cases() -> Vec<Case> {
    let case = |field, one, other| Case { field, with: json!({}), values: [one, other] };
    let with = |with, field, one, other| Case { field, with, values: [one, other] };
    let pvc = || json!({ "checkpoint": { "storage": { "type": "pvc" } } });
    let nfs = |more: Value| {
        let mut storage = json!({ "type": "nfs", "nfsServer": "nfs.test", "nfsPath": "/a" });
        merge(&mut storage, &more);
        json!({ "checkpoint": { "storage": storage } })
    };
    let backup = || json!({ "checkpoint": { "backup": { "destination": "s3://copies/a" } } });
    let s3 = || json!({ "checkpoint": { "storage": { "type": "s3", "s3Bucket": "bucket" } } });
    let azure = || json!({ "checkpoint": { "storage": { "type": "azure", "azureContainer": "container" } } });
    let elastic = || json!({ "numWorkers": 3, "checkpoint": { "enabled": false }, "elastic": { "maxWorkers": 4 } });
    let objective = || json!({ "monitoring": { "objective": { "metric": "a" } } });
    let search = |trials: u32| {
        let parameters = json!({ "lr": { "type": "double", "min": 0.001, "max": 1 } });
        json!({ "maxTrials": trials, "metric": { "name": "loss", "goal": "minimize" }, "parameters": parameters })
    };
    let volume = |name: &str| json!([{ "name": name, "emptyDir": {} }]);
    let mount = |path: &str| json!([{ "name": "v", "mountPath": path }]);
    let affinity = |weight: u32| {
        let term = json!({ "matchExpressions": [{ "key": "type", "operator": "Exists" }] });
        json!({ "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [{ "weight": weight, "preference": term }] } })
    };
    vec![
        case("annotations", json!({ "example.com/owner": "a" }), json!({ "example.com/owner": "b" })),
        case("args", json!(["a"]), json!(["b"])),
        with(backup(), "checkpoint.backup.azureAccount", json!("account"), json!("other")),
        with(backup(), "checkpoint.backup.credentialsSecret", json!("a"), json!("b")),
        case("checkpoint.backup.destination", json!("s3://copies/a"), json!("gs://copies/b")),
        with(backup(), "checkpoint.backup.endpoint", json!("http://a.test:9000"), json!("http://b.test:9000")),
        with(backup(), "checkpoint.backup.intervalSeconds", json!(60), json!(600)),
        with(backup(), "checkpoint.backup.region", json!("eu-west-1"), json!("eu-west-2")),
        with(json!({ "cache": { "pvcName": "claim" } }), "cache.limit", json!("1Gi"), json!("2Gi")),
        with(json!({ "cache": { "pvcName": "claim" } }), "cache.path", json!("a"), json!("b")),
        case("cache.pvcName", json!("claim"), json!("other")),
        case("checkpoint.enabled", json!(false), json!(true)),
        case("checkpoint.frequency", json!(2), json!(3)),
        case("checkpoint.keepBest.metric", json!("loss"), json!("eval_loss")),
        with(
            json!({ "checkpoint": { "keepBest": { "metric": "accuracy" } } }),
            "checkpoint.keepBest.mode",
            json!("max"),
            json!("min"),
        ),
        case("checkpoint.resumeArgs", json!(["--resume"]), json!(["--load"])),
        case("checkpoint.resumeFrom", json!("run-1"), json!("run-2")),
        case("checkpoint.ifNoneUsable", json!("Wait"), json!("StartOver")),
        case("checkpoint.retention", json!(5), json!(7)),
        case("checkpoint.verify", json!("Structure"), json!("Full")),
        with(azure(), "checkpoint.storage.azureAccount", json!("account"), json!("other")),
        with(
            json!({ "checkpoint": { "storage": { "type": "azure" } } }),
            "checkpoint.storage.azureContainer",
            json!("container"),
            json!("other"),
        ),
        with(s3(), "checkpoint.storage.credentialsSecret", json!("a"), json!("b")),
        with(s3(), "checkpoint.storage.endpoint", json!("http://a.test:9000"), json!("http://b.test:9000")),
        with(
            json!({ "checkpoint": { "storage": { "type": "gcs" } } }),
            "checkpoint.storage.gcsBucket",
            json!("bucket"),
            json!("other"),
        ),
        with(s3(), "checkpoint.storage.prefix", json!("team/run-1"), json!("team/run-2")),
        with(s3(), "checkpoint.storage.region", json!("eu-west-1"), json!("eu-west-2")),
        with(
            json!({ "checkpoint": { "storage": { "type": "s3" } } }),
            "checkpoint.storage.s3Bucket",
            json!("bucket"),
            json!("other"),
        ),
        with(pvc(), "checkpoint.storage.deletePolicy", json!("Delete"), json!("Retain")),
        with(nfs(json!({})), "checkpoint.storage.nfsPath", json!("/b"), json!("/c")),
        with(nfs(json!({})), "checkpoint.storage.nfsServer", json!("a.test"), json!("b.test")),
        with(pvc(), "checkpoint.storage.pvcName", json!("claim"), json!("other")),
        with(pvc(), "checkpoint.storage.size", json!("1Gi"), json!("2Gi")),
        with(pvc(), "checkpoint.storage.storageClassName", json!("standard"), json!("fast")),
        case("checkpoint.storage.type", json!("pvc"), json!("nfs")),
        case("code.digest", json!(format!("sha256:{}", "a".repeat(64))), json!(format!("sha256:{}", "b".repeat(64)))),
        case("command", json!(["a"]), json!(["a", "b"])),
        case("credentialsSecret", json!("a"), json!("b")),
        case(
            "data",
            json!([{ "name": "a", "uri": "pvc://claim", "mountPath": "/a" }]),
            json!([{ "name": "a", "uri": "s3://bucket/a", "access": "Stream", "env": "A" }]),
        ),
        case("dataset", json!("pvc://claim"), json!("other")),
        with(json!({ "checkpoint": { "enabled": false } }), "elastic.maxWorkers", json!(2), json!(3)),
        with(elastic(), "elastic.minWorkers", json!(2), json!(3)),
        with(elastic(), "elastic.waitSeconds", json!(90), json!(120)),
        case("env", json!([{ "name": "A", "value": "1" }]), json!([{ "name": "A", "value": "2" }])),
        case("envFrom", json!([{ "secretRef": { "name": "a" } }]), json!([{ "configMapRef": { "name": "a" } }])),
        case("failurePolicy.activeDeadlineSeconds", json!(3600), json!(3)),
        case("failurePolicy.backoffLimit", json!(1), json!(2)),
        case("failurePolicy.hang.action", json!("Restart"), json!("Report")),
        case("failurePolicy.hang.idleTimeoutSeconds", json!(60), json!(90)),
        case("failurePolicy.hang.timeoutSeconds", json!(60), json!(90)),
        case("failurePolicy.nanPolicy", json!("Fail"), json!("Report")),
        case("failurePolicy.nodeLostSeconds", json!(90), json!(120)),
        case("failurePolicy.restartPolicy", json!("Never"), json!("Always")),
        case(
            "failurePolicy.rules",
            json!([{ "reasons": ["OOMKilled"], "action": "Fail" }]),
            json!([{ "exitCodes": [42], "message": "xid", "action": "Ignore" }, { "reasons": ["Signal"], "action": "Restart" }]),
        ),
        case("failurePolicy.startDeadlineSeconds", json!(3600), json!(7200)),
        case("framework", json!("jax"), json!("tensorflow")),
        case("gpusPerWorker", json!(2), json!(3)),
        case("hyperparameters.additionalParams", json!({ "a": "1" }), json!({ "a": "2" })),
        case("hyperparameters.batchSize", json!(1), json!(2)),
        case("hyperparameters.epochs", json!(1), json!(2)),
        case("hyperparameters.gradientAccumulationSteps", json!(1), json!(2)),
        case("hyperparameters.learningRate", json!(0.1), json!(0.2)),
        case("hyperparameters.mixedPrecision", json!(true), json!(false)),
        case("hyperparameters.optimizer", json!("adam"), json!("sgd")),
        case("hyperparameters.warmupSteps", json!(1), json!(2)),
        case("image", json!("a.test/a:1"), json!("a.test/a:2")),
        case("imagePullSecrets", json!([{ "name": "a" }]), json!([{ "name": "b" }])),
        case("labels", json!({ "team": "a" }), json!({ "team": "b" })),
        case("model", json!("pvc://claim/a"), json!("other")),
        case("monitoring.enabled", json!(false), json!(true)),
        case("monitoring.metricsPort", json!(2000), json!(3000)),
        with(
            json!({ "monitoring": { "mlflowTrackingUri": "http://mlflow.test" } }),
            "monitoring.mlflowExperiment",
            json!("a"),
            json!("b"),
        ),
        with(
            json!({
                "output": "s3://results/x", "checkpoint": { "storage": { "type": "pvc" } },
                "monitoring": { "mlflowTrackingUri": "http://mlflow.test" },
            }),
            "monitoring.mlflowRegisteredModel",
            json!("a"),
            json!("b"),
        ),
        case("monitoring.mlflowTrackingUri", json!("http://a.test"), json!("http://b.test")),
        case("monitoring.minThroughput", json!(5), json!(7.5)),
        case("monitoring.plateauSeconds", json!(600), json!(3600)),
        case("monitoring.objective.metric", json!("a"), json!("b")),
        with(objective(), "monitoring.objective.mode", json!("max"), json!("min")),
        with(
            json!({ "monitoring": { "objective": { "metric": "a", "rungs": { "minStep": 10 } } } }),
            "monitoring.objective.rungs.factor",
            json!(2),
            json!(3),
        ),
        with(
            json!({ "monitoring": { "objective": { "metric": "a", "rungs": { "factor": 2 } } } }),
            "monitoring.objective.rungs.minStep",
            json!(10),
            json!(20),
        ),
        case("monitoring.progress.patterns", json!(["(?P<loss>a)"]), json!(["(?P<loss>b)"])),
        with(pvc(), "monitoring.tensorboardEnabled", json!(true), json!(false)),
        case("monitoring.tensorboardImage", json!("a.test/a:1"), json!("a.test/a:2")),
        case("monitoring.trackerSecret", json!("a"), json!("b")),
        case("monitoring.wandbProject", json!("a"), json!("b")),
        case("networking.backend", json!("gloo"), json!("mpi")),
        case("networking.hostNames", json!("FirstWorker"), json!("AllWorkers")),
        case("networking.interface", json!("eth0"), json!("eth1")),
        case("networking.isolate", json!(false), json!(true)),
        case("networking.masterPort", json!(2000), json!(3000)),
        with(
            json!({ "networking": { "rdmaResource": "rdma.test/hca" } }),
            "networking.rdmaEnabled",
            json!(true),
            json!(false),
        ),
        case("networking.rdmaResource", json!("rdma.test/hca"), json!("rdma.test/other")),
        case("numWorkers", json!(2), json!(3)),
        case("output", json!("pvc://claim/a"), json!("pvc://claim/b")),
        case("podTemplate.metadata", json!({ "labels": { "a": "1" } }), json!({ "labels": { "a": "2" } })),
        case(
            "podTemplate.spec",
            json!({ "terminationGracePeriodSeconds": 90 }),
            json!({ "terminationGracePeriodSeconds": 120 }),
        ),
        case("procsPerWorker", json!(2), json!(3)),
        case("resources.limits", json!({ "cpu": "1" }), json!({ "cpu": 2 })),
        case("resources.requests", json!({ "memory": "1Gi" }), json!({ "memory": "2Gi" })),
        with(
            json!({ "framework": "none", "checkpoint": { "enabled": false } }),
            "roles",
            json!([{ "name": "actor" }]),
            json!([{ "name": "actor", "replicas": 2 }]),
        ),
        case("safetensorsOnly", json!(false), json!(true)),
        case("scheduling.affinity", affinity(1), affinity(2)),
        // The gang's own scheduler does not run here.
        with(
            json!({ "scheduling": { "schedulerName": "default-scheduler" } }),
            "scheduling.gang",
            json!("coscheduling"),
            json!("volcano"),
        ),
        case("scheduling.nodeSelector", json!({ "type": "simulated" }), json!({ "type": "real" })),
        case("scheduling.priority", json!("high"), json!("low")),
        case("scheduling.queue", json!("a"), json!("b")),
        case("scheduling.schedulerName", json!("default-scheduler"), json!("other")),
        case(
            "scheduling.tolerations",
            json!([{ "key": "a", "operator": "Exists" }]),
            json!([{ "operator": "Exists" }]),
        ),
        case("scheduling.topologyKey", json!("rack"), json!("row")),
        case(
            "runtimeRef",
            json!({ "kind": "TrainingRuntime", "name": "a" }),
            json!({ "kind": "TrainingRuntime", "name": "b" }),
        ),
        case("hyperParameterTuningConfig", search(4), search(5)),
        case("serviceAccountName", json!("trainer"), json!("other")),
        case(
            "successPolicy",
            json!({
                "targetAccuracy": 0.9, "targetLoss": 0.1,
                "earlyStopping": { "metric": "a", "mode": "max", "patience": 2, "minDelta": 0.1 },
            }),
            json!({ "targetLoss": 0.2, "earlyStoppingPatience": 3 }),
        ),
        case("suspend", json!(true), json!(false)),
        case("ttlSecondsAfterFinished", json!(3600), json!(1)),
        with(json!({ "volumes": volume("v") }), "volumeMounts", mount("/a"), mount("/b")),
        case("volumes", volume("a"), volume("b")),
        case("workingDir", json!("/a"), json!("/b")),
    ]
}

/// Kubernetes' own types and maps are one field each. So is a policy whose parts may all change at any time, and a
/// search, whose fields are those of a TuningJob.
const WHOLE: [&str; 6] = [
    "hyperParameterTuningConfig",
    "scheduling.affinity",
    "podTemplate.metadata",
    "podTemplate.spec",
    "runtimeRef",
    "successPolicy",
];

#[test]
fn every_field_has_a_case() {
    let crd = serde_json::to_value(api::crd()).expect("JSON");
    let mut fields = BTreeSet::new();
    walk(&crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"], "", &mut fields);
    let tried: BTreeSet<String> = cases().iter().map(|case| case.field.to_owned()).collect();
    assert_eq!(fields, tried, "a field of the spec and its case go together");
}

fn walk(schema: &Value, path: &str, fields: &mut BTreeSet<String>) {
    match schema["properties"].as_object() {
        Some(properties) if !WHOLE.contains(&path) => {
            for (name, schema) in properties {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                walk(schema, &path, fields);
            }
        }
        _ => drop(fields.insert(path.to_owned())),
    }
}

/// A change of one field.
struct Change {
    what: String,
    field: &'static str,
    old: Value,
    new: Value,
}

/// Each field is set, changed and removed, on a running job and on a suspended one.
fn changes() -> Vec<Change> {
    let mut changes = Vec::new();
    for Case { field, with, values: [one, other] } in cases() {
        for state in ["running", "suspended"] {
            if field == "suspend" && state == "suspended" {
                continue;
            }
            let mut base = json!({
                "model": "m", "dataset": "d", "numWorkers": 1, "gpusPerWorker": 0, "image": "training.test/training:1",
            });
            if state == "suspended" {
                base["suspend"] = json!(true);
            }
            merge(&mut base, &with);
            let spec = |value: Option<&Value>| {
                let mut spec = base.clone();
                set(&mut spec, field, value);
                spec
            };
            let (without, one, other) = (spec(None), spec(Some(&one)), spec(Some(&other)));
            let mut push = |how: &str, old: &Value, new: &Value| {
                let what = format!("{field} {how}, {state}");
                changes.push(Change { what, field, old: old.clone(), new: new.clone() });
            };
            push("set", &without, &one);
            push("set otherwise", &without, &other);
            push("changed", &one, &other);
            push("removed", &one, &without);
        }
    }
    changes
}

#[test]
fn every_change_is_refused_or_matches_a_new_job() {
    testkit::support::run(all_changes());
}

async fn all_changes() {
    let started = Instant::now();
    let world = World::shared().await;
    prepare(&world).await;
    unknown_values(&world).await;
    let (refused, accepted) = refused(&world).await;
    println!("{refused} changes are refused with their message ({:.0} s)", started.elapsed().as_secs_f64());

    // A suspended job runs nothing. One change of each field shows that it reaches what follows.
    let is_shown = |change: &&Change| {
        change.what.ends_with(", running") || !api::is_changeable(change.field) || change.what.contains(" changed")
    };
    let tried = accepted.iter().filter(is_shown);
    let pairs = tried.enumerate().map(async |(index, change)| {
        let _place = world.place().await;
        converges(&world, index, change).await
    });
    let wrong: Vec<String> = futures::future::join_all(pairs).await.into_iter().filter_map(Result::err).collect();
    println!("{} changes are accepted ({:.0} s)", accepted.len(), started.elapsed().as_secs_f64());
    assert!(wrong.is_empty(), "{} of {} changes:\n{}", wrong.len(), accepted.len(), wrong.join("\n"));
    let (defaults, others): (Vec<&Change>, Vec<&Change>) = accepted.iter().partition(|change| says_the_default(change));
    let fields = |changes: Vec<&Change>| changes.into_iter().map(|change| change.field).collect::<BTreeSet<_>>();
    let with_default =
        |case: &Case| api::defaults::for_path(case.field).is_some_and(|value| case.values.contains(&value));
    let expected: BTreeSet<_> = cases().iter().filter(|case| with_default(case)).map(|case| case.field).collect();
    assert_eq!(fields(defaults), expected, "these may be written down as what they are anyway, or left out again");
    let (running, suspended): (Vec<&Change>, Vec<&Change>) =
        others.into_iter().partition(|change| change.what.ends_with(", running"));
    let always = [
        "checkpoint.ifNoneUsable",
        "checkpoint.retention",
        "code.digest",
        "failurePolicy.activeDeadlineSeconds",
        "failurePolicy.rules",
        "monitoring.minThroughput",
        "monitoring.plateauSeconds",
        "successPolicy",
        "suspend",
        "ttlSecondsAfterFinished",
    ];
    assert_eq!(fields(running).into_iter().collect::<Vec<_>>(), always);
    let while_suspended =
        cases().iter().map(|case| case.field).filter(|field| api::is_changeable(field)).collect::<Vec<_>>();
    let expected: BTreeSet<&str> =
        always.into_iter().filter(|field| *field != "suspend").chain(while_suspended).collect();
    assert_eq!(fields(suspended), expected);
}

/// Where the schema lists the values of a field, the API server refuses any other value and lists the valid ones.
async fn unknown_values(world: &World) {
    let crd = serde_json::to_value(api::crd()).expect("JSON");
    let mut tried = 0;
    for Case { field, with, .. } in cases() {
        let root = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        let schema = field.split('.').fold(root, |schema, step| &schema["properties"][step]);
        let Some(values) = schema["enum"].as_array() else { continue };
        let mut spec = json!({ "model": "m", "dataset": "d", "numWorkers": 1 });
        merge(&mut spec, &with);
        set(&mut spec, field, Some(&json!("Other")));
        let url = format!("{}?dryRun=All", jobs_url("default"));
        let refusal = world.send("POST", &url, &job("x", &spec)).await.expect_err(field);
        let values: Vec<_> = values.iter().map(Value::to_string).collect();
        let reported = format!("spec.{field}: Unsupported value: \"Other\": supported values: {}", values.join(", "));
        assert!(refusal.contains(&reported), "{field}: {refusal}");
        tried += 1;
    }
    assert!(tried > 9, "{tried} fields with a list of values");
}

/// Tries all changes on live jobs of one operator. Returns how many are refused as they should be, and the accepted
/// ones.
async fn refused(world: &World) -> (usize, Vec<Change>) {
    let namespace = "refused";
    furnish(world, namespace).await;
    let operator = Operator::start(world, namespace, Instructions::default());
    let mut changes = changes();

    // A refused change leaves its job as it was, so that one job for each spec is enough.
    let mut jobs: BTreeMap<String, Result<String, String>> = BTreeMap::new();
    for change in &changes {
        let name = format!("x{}", jobs.len());
        if let Entry::Vacant(entry) = jobs.entry(change.old.to_string()) {
            let made = world.send("POST", &jobs_url(namespace), &job(&name, &change.old)).await;
            entry.insert(made.map(|_| name));
        }
    }
    for (spec, name) in jobs.iter().filter_map(|(spec, name)| Some((spec, name.as_ref().ok()?))) {
        let spec: Value = serde_json::from_str(spec).expect("JSON");
        settled(world, namespace, name, &spec).await.unwrap_or_else(|wrong| panic!("{spec}: {wrong}"));
    }
    operator.idle().await.expect("the operator comes to rest");

    let (before, mut wrong, mut refused) = (operator.wire.sent().len(), String::new(), 0);
    let mut accepted = Vec::new();
    changes.retain(|change| jobs[&change.old.to_string()].is_ok());
    for change in changes {
        let name = jobs[&change.old.to_string()].as_ref().expect("those without a job were left out");
        match replace(world, namespace, name, &change.new, true).await {
            Ok(same) if same => {}
            Ok(_) => accepted.push(change),
            Err(message) if is_telling(&change, &message) && !says_the_default(&change) => {
                refused += 1;
                // The API server refuses the request itself, too, not only the dry run.
                assert!(replace(world, namespace, name, &change.new, false).await.is_err(), "{}", change.what);
            }
            Err(message) => drop(writeln!(wrong, "{}: {message}", change.what)),
        }
    }
    assert!(wrong.is_empty(), "refused without the way out:\n{wrong}");
    // A change that the operator has to see. By then it would have acted on the changes before it, too.
    let name = jobs.values().find_map(|name| name.as_ref().ok()).expect("some of them were made");
    let patch = json!({ "spec": { "ttlSecondsAfterFinished": 1234 } });
    let changed = world.send("PATCH", &format!("{}/{name}", jobs_url(namespace)), &patch).await.expect("it may change");
    let generation = &changed["metadata"]["generation"];
    let seen = |space: &Space| {
        let status = &space.get(Kind::TrainingJob, name)?["status"];
        (status["observedGeneration"] == *generation).then_some(())
    };
    world.witness.until(namespace, "the change to be seen", seen).await.expect("the operator sees it");
    operator.idle().await.expect("the operator comes to rest");
    let of_it = format!("/trainingjobs/{name}/status");
    // The trials of a search continue meanwhile.
    let is_others = |text: &str| !text.contains(&of_it) && !text.contains("/tuningjobs/");
    let others = operator.wire.sent().into_iter().skip(before).filter(|sent| is_others(&sent.text));
    let others: Vec<_> = others.collect();
    assert!(others.is_empty(), "refused changes are nothing to the operator, and it sent {others:?}");
    no_errors(world, namespace).expect("nothing went wrong");
    (refused, accepted)
}

/// Whether the change writes the field's default explicitly, or leaves it out.
fn says_the_default(change: &Change) -> bool {
    let Some(default) = api::defaults::for_path(change.field) else { return false };
    let meant = |spec: &Value| change.field.split('.').try_fold(spec, |object, step| object.get(step)).cloned();
    meant(&change.old).unwrap_or(default.clone()) == meant(&change.new).unwrap_or(default)
}

/// Whether the message names the field and the way out, or says that the field is required.
fn is_telling(change: &Change, message: &str) -> bool {
    let mut path = change.field.split('.');
    let field = match (path.next(), path.next()) {
        // Some parts of these may change.
        (Some(object @ ("failurePolicy" | "checkpoint" | "monitoring" | "scheduling")), Some(part)) => {
            &format!("{object}.{part}")
        }
        (field, _) => field.unwrap_or_default(),
    };
    message.contains(&api::immutable(field))
        || message.contains(&format!("spec.{}: Required value", change.field))
        || message.contains(&format!("{field} is missing:"))
}

/// The changed job and a new one with that spec reach the same state, now and when their programs have ended.
async fn converges(world: &World, index: usize, change: &Change) -> Result<(), String> {
    let [changed, new] = ["changed", "new"].map(|which| format!("{which}-{index}"));
    let mut operators = Vec::new();
    for namespace in [&changed, &new] {
        furnish(world, namespace).await;
        operators.push(Operator::start(world, namespace, Instructions::default()));
    }
    world.send("POST", &jobs_url(&changed), &job(NAME, &change.old)).await?;
    settled(world, &changed, NAME, &change.old).await?;
    replace(world, &changed, NAME, &change.new, false).await?;
    world.send("POST", &jobs_url(&new), &job(NAME, &change.new)).await?;
    same(world, change, &operators, [&changed, &new]).await?;
    if change.new["suspend"] != true && change.new["failurePolicy"]["activeDeadlineSeconds"] != 3 {
        for namespace in [&changed, &new] {
            let pod = |space: &Space| (1..=2).find_map(|attempt| kubelet::running(space, attempt, 0).cloned());
            let pod = world.witness.until(namespace, "the worker to run", pod).await?;
            kubelet::exit(&world.admin, &pod, 0).await;
            let ended = |space: &Space| {
                let state = space.get(Kind::TrainingJob, NAME).map(|job| job["status"]["state"].clone());
                state.is_none_or(|state| state == "Completed").then_some(())
            };
            world.witness.until(namespace, "the end", ended).await?;
        }
        same(world, change, &operators, [&changed, &new]).await?;
    }
    for (operator, namespace) in operators.iter().zip([&changed, &new]) {
        operator.kill();
        no_errors(world, namespace).map_err(|wrong| format!("{}: {wrong}", change.what))?;
        world.forget(namespace);
    }
    Ok(())
}

/// Waits until the objects in both namespaces are the same, and no controller has anything to do there.
async fn same(world: &World, change: &Change, operators: &[Operator], spaces: [&str; 2]) -> Result<(), String> {
    let [changed, new] = spaces;
    let settled = |namespace: &str| {
        let still = |space: &Space| {
            let stays = space.now.values().all(|object| object["metadata"]["deletionTimestamp"].is_null());
            let counted = space
                .of_kind(Kind::Pod)
                .all(|pod| pod["status"]["phase"] == "Running" || pod["metadata"]["finalizers"].is_null());
            stays && counted && space.of_kind(Kind::Job).all(is_done_with)
        };
        world.witness.read(namespace, still)
    };
    let idle = || operators.iter().all(Operator::is_idle);
    let outcome =
        |namespace: &str| world.witness.read(namespace, |space| without_history(Outcome::from_space(namespace, space)));
    let deadline = Instant::now() + DEADLINE;
    loop {
        if settled(changed) && settled(new) && idle() && outcome(new) == outcome(changed) {
            return Ok(());
        }
        if Instant::now() > deadline {
            let differences = outcome(new).differences(&outcome(changed));
            return Err(format!("{}: a new job with that spec differs:\n{differences}", change.what));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Whether the Job controller has nothing to do: all pods run and are counted, or the Job has ended, or is to have
/// none.
fn is_done_with(job: &Value) -> bool {
    let conditions = job["status"]["conditions"].as_array();
    let ended = conditions.is_some_and(|all| all.iter().any(|c| c["type"] == "Complete" || c["type"] == "Failed"));
    ended || job["spec"]["suspend"] == true || job["status"]["ready"] == job["spec"]["parallelism"]
}

/// A job that was suspended before it got its spec has a history that a new job lacks.
fn without_history(mut outcome: Outcome) -> Outcome {
    for (key, object) in &mut outcome.left {
        if key.starts_with("Job") {
            // The metrics that an attempt watches are decided when it begins.
            let args = object.pointer_mut("/spec/template/spec/containers/0/args").and_then(Value::as_array_mut);
            args.into_iter().for_each(|args| args.retain(|arg| !arg.to_string().starts_with("\"--watch-metric=")));
        }
        // The intent in such an object's annotation is that of the spec with which it was made.
        if ["Service", "ConfigMap", "NetworkPolicy"].iter().any(|kind| key.starts_with(kind))
            && let Some(annotations) = object["annotations"].as_object_mut()
        {
            annotations.remove("ml.example.com/intent");
        }
        if key.starts_with("TrainingJob") {
            let Some(status) = object["status"].as_object_mut() else { continue };
            for past in ["attempt", "incarnation", "observedGeneration", "startTime", "suspendedAt"] {
                status.remove(past);
            }
            if let Some(spec) = status.get_mut("attemptSpec") {
                spec["generation"] = Value::Null;
            }
            let Some(conditions) = status.get_mut("conditions").and_then(Value::as_array_mut) else { continue };
            // False conditions, and their reasons, depend on the history.
            conditions.retain(|condition| condition["status"] == "True");
            for condition in conditions {
                condition["observedGeneration"] = Value::Null;
            }
        }
    }
    outcome.ever.clear();
    outcome
}

// ---- how

const NAME: &str = "x";

/// Waits until a job is in the state that its spec leads to here.
async fn settled(world: &World, namespace: &str, name: &str, spec: &Value) -> Result<(), String> {
    let state = if spec["suspend"] == true { "Suspended" } else { "Running" };
    let is = |space: &Space| (space.get(Kind::TrainingJob, name)?["status"]["state"] == state).then_some(());
    world.witness.until(namespace, &format!("{name} to be {state}"), is).await
}

/// Does what `kubectl replace` does. True if that changed nothing.
async fn replace(world: &World, namespace: &str, name: &str, spec: &Value, dry_run: bool) -> Result<bool, String> {
    let url = format!("{}/{name}", jobs_url(namespace));
    let mut object = world.send("GET", &url, &Value::Null).await?;
    let old = std::mem::replace(&mut object["spec"], spec.clone());
    let dry_run = if dry_run { "&dryRun=All" } else { "" };
    let new = world.send("PUT", &format!("{url}?fieldValidation=Strict{dry_run}"), &object).await?;
    Ok(new["spec"] == old)
}

fn job(name: &str, spec: &Value) -> Value {
    json!({ "apiVersion": "ml.example.com/v1", "kind": "TrainingJob", "metadata": { "name": name }, "spec": spec })
}

fn no_errors(world: &World, namespace: &str) -> Result<(), String> {
    let lines = world.log.in_namespace(namespace).into_iter();
    let wrong: Vec<_> = lines.filter(|line| line.level <= Level::WARN).map(|line| line.text).collect();
    if wrong.is_empty() { Ok(()) } else { Err(format!("the operator logs {}", wrong.join("; "))) }
}

/// Creates the objects that the values of the cases name, once for the cluster.
async fn prepare(world: &World) {
    let class = json!({ "metadata": { "name": "high" }, "value": 1000 });
    create::<PriorityClass>(&Api::all(world.admin.clone()), class).await;
    let groups = testkit::cluster::pod_groups("scheduling.x-k8s.io", "v1alpha1");
    create::<CustomResourceDefinition>(&Api::all(world.admin.clone()), groups).await;
    let served = async || world.send("GET", "/apis/scheduling.x-k8s.io/v1alpha1/podgroups", &Value::Null).await.ok();
    eventually("PodGroups are served", DEADLINE, served).await;
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(world.admin.clone());
    for node in 0..4 {
        let more = json!({ "nvidia.com/gpu": "100", "rdma.test/hca": "100" });
        let patch = Patch::Merge(json!({ "status": { "capacity": more, "allocatable": more } }));
        let name = format!("sim-{node}");
        nodes.patch_status(&name, &PatchParams::default(), &patch).await.expect("a node with devices");
    }
}

/// Creates the objects that the values of the cases name, in a namespace.
async fn furnish(world: &World, namespace: &str) {
    world.namespace(namespace).await;
    let trainer = json!({ "metadata": { "name": "trainer" } });
    create::<ServiceAccount>(&Api::namespaced(world.admin.clone(), namespace), trainer).await;
    let claim = json!({ "metadata": { "name": "claim" }, "spec": {
        "accessModes": ["ReadWriteMany"], "resources": { "requests": { "storage": "1Gi" } },
    }});
    create::<PersistentVolumeClaim>(&Api::namespaced(world.admin.clone(), namespace), claim).await;
    for name in ["a", "b"] {
        runtime(world, namespace, name, &json!({ "env": [{ "name": "TEMPLATE", "value": name }] })).await;
    }
}

async fn create<K>(api: &Api<K>, object: Value)
where
    K: DeserializeOwned + serde::Serialize + Clone + std::fmt::Debug,
{
    let object = serde_json::from_value(object).expect("an object of its kind");
    api.create(&PostParams::default(), &object).await.expect("it can be made");
}

/// Sets or removes the field at a path.
fn set(spec: &mut Value, path: &str, value: Option<&Value>) {
    match (path.split_once('.'), value) {
        (Some((first, rest)), Some(_)) => {
            if spec[first].is_null() {
                spec[first] = json!({});
            }
            set(&mut spec[first], rest, value);
        }
        (Some((first, rest)), None) => {
            if let Some(inner) = spec.get_mut(first) {
                set(inner, rest, None);
            }
        }
        (None, Some(value)) => spec[path] = value.clone(),
        (None, None) => drop(spec.as_object_mut().map(|fields| fields.remove(path))),
    }
}

fn merge(object: &mut Value, more: &Value) {
    match (object.as_object_mut(), more.as_object()) {
        (Some(fields), Some(more)) => {
            for (key, value) in more {
                merge(fields.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        _ => *object = more.clone(),
    }
}
