//! The CRD, its examples and its tables: offline, and as a real API server sees them.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test panics where anything is not as expected")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::needless_pass_by_value,
    clippy::too_many_lines,
    reason = "numbers of tests are small, their tables are long"
)]

use api::{
    self, AppliedRuntime, RESERVED_ENV, RULES, Rule, RuntimeKind, SCHEMA_REFUSALS, TrainingJob, TrainingJobStatus,
};
use k8s_openapi::{
    api::batch::v1::Job, api::core::v1::Namespace,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
    core::cel::{CompiledSchema, apply_defaults, compile_schema, validate_compiled},
    runtime::wait::{await_condition, conditions},
};
use kubectl_trainingjob::convert::{Answers, convert};
use plan::{self, Incarnation, OperatorInfo};
use protocol::gang::GangPast;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
    time::Duration,
};
use testkit::cluster::Cluster;
use testkit::wait::{SOON, until};
use tokio::sync::OnceCell;

#[path = "api/tuning.rs"]
mod tuning;

// ---- files that are made from the types

#[test]
fn the_crd_is_current() {
    assert_eq!(made(&[]), read("crds/trainingjobs.yaml"), "run `cargo run --bin crdgen > crds/trainingjobs.yaml`");
    let tuning = made(&["--tuning"]);
    assert_eq!(tuning, read("crds/tuningjobs.yaml"), "run `cargo run --bin crdgen -- --tuning > crds/tuningjobs.yaml`");
    for kind in api::RuntimeKind::ALL {
        let file = format!("crds/{}.yaml", kind.plural());
        let runs = format!("run `cargo run --bin crdgen -- --runtime {} > {file}`", kind.as_str());
        assert_eq!(made(&["--runtime", kind.as_str()]), read(&file), "{runs}");
    }
}

#[test]
fn generated_doc_tables_are_current() {
    assert_eq!(
        made(&["--fields"]),
        read("docs/fields.md"),
        "run `cargo run --bin crdgen -- --fields > docs/fields.md`"
    );
    assert_eq!(
        made(&["--refusals"]),
        read("docs/refusals.md"),
        "run `cargo run --bin crdgen -- --refusals > docs/refusals.md`"
    );
}

/// One line of `crdgen --shape`.
struct Field<'a> {
    kind: &'a str,
    is_required: bool,
    least: Option<f64>,
    most: Option<f64>,
    values: BTreeSet<&'a str>,
}

fn shape(text: &str) -> BTreeMap<&str, Field<'_>> {
    let field = |line| {
        let [path, kind, required, least, most, values] = std::array::from_fn({
            let mut cells = str::split(line, '\t');
            move |_| cells.next().unwrap_or_default()
        });
        let values = values.split(',').filter(|value| !value.is_empty()).collect();
        let (least, most) = (least.parse().ok(), most.parse().ok());
        (path, Field { kind, is_required: required == "required", least, most, values })
    };
    text.lines().skip(1).map(field).collect()
}

/// What in `now` an object of `before` could not have, or a client of `before` could not read.
fn broken(before: &str, now: &str) -> Vec<String> {
    let (before, now) = (shape(before), shape(now));
    let mut broken = Vec::new();
    for (path, old) in &before {
        let Some(new) = now.get(path) else {
            broken.push(format!("{path} is gone"));
            continue;
        };
        if new.kind != old.kind {
            broken.push(format!("{path} was of type {} and is of type {}", old.kind, new.kind));
        }
        if new.is_required && !old.is_required {
            broken.push(format!("{path} has become required"));
        }
        let narrower = new.least.is_some_and(|new| old.least.is_none_or(|old| new > old))
            || new.most.is_some_and(|new| old.most.is_none_or(|old| new < old));
        if narrower {
            broken.push(format!("{path} has a narrower range"));
        }
        let gone: Vec<_> = old.values.difference(&new.values).collect();
        if !gone.is_empty() || (old.values.is_empty() && !new.values.is_empty()) {
            broken.push(format!("{path} takes fewer values: {gone:?}"));
        }
    }
    let parent = |path: &str| path.rfind(['.', '[', '{']).map(|end| path[..end].to_owned()).unwrap_or_default();
    let is_new = |path: &&str| !before.contains_key(*path) && before.contains_key(parent(path).as_str());
    broken.extend(
        now.iter()
            .filter(|(path, field)| field.is_required && is_new(path))
            .map(|(path, _)| format!("{path} is new and required")),
    );
    broken
}

/// docs/api.md, A10. Each version's shape is kept when it is tagged.
#[test]
fn api_fields_stay_compatible_with_released_versions() {
    let now = made(&["--shape"]);
    let mut versions = 0;
    for file in std::fs::read_dir(root().join("tests/fixtures/api")).unwrap() {
        let file = file.unwrap().path();
        let before = std::fs::read_to_string(&file).unwrap();
        assert!(shape(&before).len() > 200, "{}", file.display());
        assert_eq!(broken(&before, &now), Vec::<String>::new(), "since {}", file.display());
        versions += 1;
    }
    assert!(versions > 0);
}

#[test]
fn breaking_schema_changes_are_detected() {
    let before = "\nspec\tobject\t\t\t\t\nspec.a\tinteger\t\t1\t9\t\nspec.b\tstring\t\t\t\tx,y\nspec.c\tstring\t\t\t\t";
    let cases = [
        ("spec.a\tinteger\t\t1\t9\t", "", "spec.a is gone"),
        ("spec.a\tinteger", "spec.a\tstring", "spec.a was of type integer and is of type string"),
        ("spec.a\tinteger\t\t1\t9", "spec.a\tinteger\t\t2\t9", "spec.a has a narrower range"),
        ("spec.a\tinteger\t\t1\t9", "spec.a\tinteger\t\t1\t8", "spec.a has a narrower range"),
        ("spec.c\tstring\t\t\t\t", "spec.c\tstring\trequired\t\t\t", "spec.c has become required"),
        ("x,y", "x,z", "spec.b takes fewer values: [\"y\"]"),
        ("spec.c\tstring\t\t\t\t", "spec.c\tstring\t\t\t\tx", "spec.c takes fewer values: []"),
        ("spec\tobject\t\t\t\t", "spec\tobject\t\t\t\t\nspec.d\tstring\trequired\t\t\t", "spec.d is new and required"),
    ];
    for (was, is, words) in cases {
        assert_eq!(broken(before, &before.replacen(was, is, 1)), [words], "{is}");
    }
    let more = before.replace("1\t9", "0\t").replace("x,y", "x,y,z")
        + "\nspec.d\tstring\t\t\t\t\nspec.d.e\tstring\trequired\t\t\t";
    assert_eq!(broken(before, &more), Vec::<String>::new());
}

/// `kubectl apply` keeps the whole CRD in an annotation of at most 262,144 bytes. A quarter of them is reserved for
/// later.
#[test]
fn crd_fits_into_the_kubectl_apply_annotation() {
    for crd in [api::crd(), api::tuning_crd()] {
        let size = serde_json::to_string(&crd).unwrap().len();
        assert!(size < 196_608, "{} has {size} bytes", crd.metadata.name.unwrap());
    }
}

#[test]
fn every_refusal_has_an_example_with_its_message() {
    let found: BTreeMap<String, String> = bad_examples().map(|bad| (bad.name, bad.refused)).collect();
    let examples: BTreeSet<&str> =
        RULES.iter().map(|rule| rule.example).chain(SCHEMA_REFUSALS.iter().map(|refusal| refusal.example)).collect();
    assert_eq!(found.keys().map(String::as_str).collect::<BTreeSet<_>>(), examples);
    assert_eq!(examples.len(), RULES.len() + SCHEMA_REFUSALS.len(), "two refusals share an example");
    for rule in RULES {
        let (said, [before, after]) = (&found[rule.example], around_the_entry(rule));
        assert!(said.starts_with(&before) && said.ends_with(&after), "{}: {said}", rule.example);
    }
    for refusal in SCHEMA_REFUSALS {
        assert_eq!(found[refusal.example], refusal.says);
    }
}

/// `kubectl explain` shows descriptions alone.
#[test]
fn every_default_is_described_but_few_are_in_the_schema() {
    let crd = serde_json::to_value(api::crd()).unwrap();
    let spec = &schema(&crd)["properties"]["spec"];
    for (path, default) in api::defaults::all() {
        let field = path.split('.').fold(spec, |schema, step| &schema["properties"][step]);
        let description = field["description"].as_str().unwrap_or_else(|| panic!("{path} has no description"));
        let reported = format!(" Default: {default}.").replace('"', "");
        assert!(description.ends_with(&reported), "{path}: {description}");
        assert_eq!(description.matches("Default").count(), 1, "{path}: {description}");
    }
    let mut found = Vec::new();
    defaults_of(spec, "", &mut found);
    // A template has no say in the first, and the others are set together.
    assert_eq!(found, ["successPolicy.earlyStopping.minDelta", "successPolicy.earlyStopping.mode", "suspend"]);
}

/// The fields below `path` that have a default in the schema.
fn defaults_of(schema: &Value, path: &str, found: &mut Vec<String>) {
    if schema.get("default").is_some() {
        found.push(path.to_owned());
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        defaults_of(field, format!("{path}.{name}").trim_start_matches('.'), found);
    }
}

/// No user counts the entries of a list of forty.
#[test]
fn rule_message_names_the_list_entry() {
    for rule in RULES {
        let speaks_of_entries =
            rule.at.ends_with([']', '}']) || [".all(", ".filter("].iter().any(|all| rule.rule.contains(all));
        assert_eq!(rule.message_expression().is_some(), speaks_of_entries, "{}", rule.example);
    }
    for (spec, words) in wrong_entries() {
        let said = offline(&job("x", spec), None);
        assert!(said.len() == 1 && said[0].contains(words), "{words}: {said:#?}");
    }
}

/// The text of a refusal before and after the entry that it names. If it names none, all of the text and nothing.
fn around_the_entry(rule: &Rule) -> [String; 2] {
    match rule.wrong.split_once('{') {
        Some((before, rest)) => {
            let (_, after) = rest.split_once('}').unwrap();
            [before.to_owned(), format!("{after}: {}", rule.remedy)]
        }
        None => [rule.message(), String::new()],
    }
}

// ---- rules, offline

#[test]
fn examples_satisfy_the_rules() {
    for (name, example) in good_examples() {
        assert_eq!(offline(&example, None), Vec::<String>::new(), "{name}");
    }
}

#[test]
fn each_rule_alone_refuses_its_example() {
    let bad: BTreeMap<String, Bad> = bad_examples().map(|bad| (bad.name.clone(), bad)).collect();
    for rule in RULES {
        let bad = &bad[rule.example];
        assert_eq!(offline(&bad.object, None), [bad.refused.as_str()], "{}", rule.example);
    }
}

#[test]
fn rules_accept_valid_specs_and_refuse_reserved_env() {
    for (name, spec) in accepted() {
        assert_eq!(offline(&job(&name, spec.clone()), None), Vec::<String>::new(), "{name}: {spec}");
    }
    for name in RESERVED_ENV.into_iter().chain(["PET_NNODES", "TRAININGJOB_SECRET"]) {
        let refused = offline(&job("x", json!({ "env": [{ "name": name, "value": "1" }] })), None);
        assert!(refused.iter().any(|message| message.contains("set by the operator")), "{name}: {refused:?}");
    }
}

#[test]
fn only_some_fields_may_change() {
    for Change { what, old, new, refused } in changes() {
        for (state, may_change) in situations() {
            let with = |object: &Value| {
                let mut object = object.clone();
                object["status"] = state.clone();
                if state["state"] == "Suspended" {
                    object["spec"]["suspend"] = json!(true);
                }
                object
            };
            let said: BTreeSet<String> = offline(&with(&new), Some(&with(&old))).into_iter().collect();
            assert_eq!(said, refusals(refused.as_deref(), &state, may_change), "{what}, {state}");
        }
    }
    // A suspended job may be running again by now, because its status is late.
    let resumed = |image: &str, suspend: bool| {
        let mut object = job("x", json!({ "image": image, "suspend": suspend }));
        object["status"] = json!({ "state": "Suspended", "startTime": "2027-01-01T00:00:00Z" });
        object
    };
    assert_ne!(offline(&resumed("b", false), Some(&resumed("a", false))), Vec::<String>::new());
    assert_eq!(offline(&resumed("b", false), Some(&resumed("a", true))), Vec::<String>::new());
}

/// Statuses, and whether no program can run in them.
fn situations() -> Vec<(Value, bool)> {
    let started = |state: &str| json!({ "state": state, "startTime": "2027-01-01T00:00:00Z" });
    vec![
        (started("Running"), false),
        (started("Pending"), false),
        (started("Initializing"), false),
        (started("Completed"), false),
        (json!({ "state": "Completed" }), false),
        (started("Failed"), true),
        (started("Suspended"), true),
        (json!({ "state": "Initializing" }), true),
        (json!({}), true),
    ]
}

/// The refusals of changes to these fields.
fn refusals(fields: Option<&str>, status: &Value, may_change: bool) -> BTreeSet<String> {
    let fields = fields.into_iter().flat_map(|fields| fields.split(' '));
    let (changeable, fixed): (Vec<&str>, Vec<&str>) = fields.partition(|field| api::is_changeable(field));
    let reported = |fields: &[&str]| fields.iter().copied().map(api::immutable).collect::<String>();
    let of_state = if status["state"] == "Completed" { api::completed_message } else { api::running_message };
    let mut all = BTreeSet::new();
    if !fixed.is_empty() {
        all.insert(api::immutable_message(&reported(&fixed)));
    }
    if !changeable.is_empty() && !may_change {
        all.insert(of_state(&reported(&changeable)));
    }
    all
}

#[test]
fn every_spec_field_has_a_change_case() {
    let crd = serde_json::to_value(api::crd()).unwrap();
    let spec = &schema(&crd)["properties"]["spec"]["properties"];
    let fields: BTreeSet<&str> = spec.as_object().unwrap().keys().map(String::as_str).collect();
    let tried = values();
    assert_eq!(fields, tried.iter().map(|(name, ..)| *name).collect());
}

// ---- against a real API server

#[tokio::test]
async fn examples_are_admitted_strictly() {
    let client = server().await;
    for (name, example) in good_examples() {
        let admitted = create(&client, &example, true).await;
        assert!(admitted.is_ok(), "{name}: {}", admitted.unwrap_err());
    }
    for (name, spec) in accepted() {
        let admitted = create(&client, &job(&name, spec), true).await;
        assert!(admitted.is_ok(), "{name}: {}", admitted.unwrap_err());
    }
}

#[tokio::test]
async fn template_parameters_are_checked() {
    let client = server().await;
    for (parameters, expected) in [
        (
            json!([{ "name": "team" }, { "name": "gpu-type", "description": "d", "default": "a", "enum": ["a", "b"] }]),
            None,
        ),
        (json!([{ "name": "a b" }]), Some("the name of a parameter has another character")),
        (json!([{ "name": "a>" }]), Some("the name of a parameter has another character")),
        (
            json!([{ "name": "a", "default": "c", "enum": ["a", "b"] }]),
            Some("the default of a parameter is not in its enum"),
        ),
        (json!([{ "name": "a" }, { "name": "a" }]), Some("Duplicate value")),
        (json!([{ "name": "a", "defualt": "c" }]), Some("unknown field")),
    ] {
        for kind in RuntimeKind::ALL {
            let spec = json!({ "parameters": parameters, "image": "$<params.team>/a:1", "labels": { "team": "$<params.team>" },
                               "resources": { "limits": { "cpu": "$<params.cpu>" } } });
            let template = json!({ "apiVersion": "ml.example.com/v1", "kind": kind.as_str(), "metadata": { "name": "x" }, "spec": spec });
            let place = if kind == RuntimeKind::TrainingRuntime { "/namespaces/default" } else { "" };
            let url = format!("/apis/ml.example.com/v1{place}/{}?fieldValidation=Strict&dryRun=All", kind.plural());
            let answer = send(&client, "POST", &url, &template).await;
            match expected {
                None => assert!(answer.is_ok(), "{parameters}: {}", answer.unwrap_err()),
                Some(words) => {
                    let error = answer.unwrap_err();
                    assert!(error.contains(words), "{parameters}: {error}");
                }
            }
        }
    }
}

/// The installation's templates are admitted. With an image, a command and checkpoints elsewhere, jobs can run with
/// each.
#[tokio::test]
async fn jobs_can_run_with_each_installed_template() {
    let client = server().await;
    let files = yaml_files("deploy/runtimes").into_iter().filter(|path| !path.ends_with("kustomization.yaml"));
    for file in files {
        let template = parse(&file);
        let name = file.display();
        let url = format!("/apis/ml.example.com/v1/{}", RuntimeKind::ClusterTrainingRuntime.plural());
        let strictly = format!("{url}?fieldValidation=Strict&dryRun=All");
        let admitted = send(&client, "POST", &strictly, &template).await;
        assert!(admitted.is_ok(), "{name}: {}", admitted.unwrap_err());
        let own = json!({
            "model": "m", "dataset": "d", "image": "a.test/x:1", "command": ["train"], "runtimeRef": { "name": template["metadata"]["name"] },
        });
        let named = json!({ "apiVersion": "ml.example.com/v1", "kind": "TrainingJob", "metadata": { "name": "x" }, "spec": own });
        let admitted = create(&client, &named, true).await;
        assert!(admitted.is_ok(), "{name}: {}", admitted.unwrap_err());
        let taken = AppliedRuntime::from_object(RuntimeKind::ClusterTrainingRuntime, &template);
        let mut typed: TrainingJob = serde_json::from_value(named.clone()).unwrap();
        let whole = plan::merged(&typed.spec, &taken).unwrap();
        let mut whole_job = named;
        whole_job["spec"] = serde_json::to_value(whole).unwrap();
        let admitted = create(&client, &whole_job, true).await;
        assert!(admitted.is_ok(), "{name}: {}", admitted.unwrap_err());
        typed.metadata.uid = Some("u".into());
        let inherited = plan::record(&typed, Some(&taken), None).unwrap();
        typed.status = Some(TrainingJobStatus { inherited: Some(inherited), ..TrainingJobStatus::default() });
        let planned = plan::resolve(&typed, &OperatorInfo::default());
        assert!(planned.accepted().is_ok(), "{name}: {}", planned.refusals);
    }
}

/// Manifests of other kinds: those that show what `convert` has to know, and those of the project's first documents.
#[tokio::test]
async fn converted_manifests_are_admitted_strictly() {
    let client = server().await;
    for path in yaml_files("tests/fixtures/convert").into_iter().chain(yaml_files("examples/documents/others")) {
        let (name, text) = (path.display(), fs::read_to_string(&path).unwrap());
        let converted = convert(&text, &Answers::default()).unwrap_or_else(|wrong| panic!("{name}: {wrong}\n{text}"));
        let written: Vec<Value> = serde_saphyr::from_multiple(&converted.text).unwrap();
        for mut job in written {
            job["metadata"]["namespace"] = json!("api");
            let admitted = create(&client, &job, true).await;
            assert!(admitted.is_ok(), "{name}: {}\n{}", admitted.unwrap_err(), converted.text);
        }
    }
}

#[tokio::test]
async fn bad_examples_are_refused_with_their_message() {
    let client = server().await;
    let mut wrong = Vec::new();
    for bad in bad_examples() {
        match create(&client, &bad.object, true).await {
            Ok(_) => wrong.push(format!("{} was admitted", bad.name)),
            Err(message) if !message.contains(&bad.refused) => wrong.push(format!("{}: {message}", bad.name)),
            Err(_) => {}
        }
    }
    for rule in RULES {
        let bad = parse(&root().join("examples/bad").join(rule.example).with_extension("yaml"));
        let field = rule.path().replace("[]", "[0]");
        let field = field.split("{}").next().unwrap_or_default();
        if let Err(message) = create(&client, &bad, true).await
            && !message.contains(field)
        {
            wrong.push(format!("{}: {field} is not in {message}", rule.example));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn api_server_refusal_names_the_list_entry() {
    let client = server().await;
    let mut wrong = Vec::new();
    let line_break = json!({ "env": [{ "name": "A\nB" }] });
    // A message has no line break, so that it says less.
    let less = ("a variable of env holds a character", line_break);
    // The path of a map's entry has the key, too.
    let key = ("spec.resources.limits[x/y]", json!({ "resources": { "limits": { "x/y": "-1" } } }));
    let cases = wrong_entries().into_iter().map(|(spec, words)| (words, spec)).chain([less, key]);
    for (words, spec) in cases {
        match create(&client, &job("x", spec), true).await {
            Err(message) if message.contains(words) => {}
            other => wrong.push(format!("{words}: {other:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A default that the API server wrote into the job could not be distinguished from a user's value.
#[tokio::test]
async fn job_is_stored_without_added_defaults() {
    let client = server().await;
    let stored = create(&client, &job("defaults", json!({})), true).await.unwrap();
    let bare = json!({ "model": "resnet50", "dataset": "cifar10", "numWorkers": 2, "suspend": false });
    assert_eq!(stored["spec"], bare);
    // A null field counts as not written, and early stopping is set as a whole.
    let partly = json!({
        "image": null, "networking": null, "framework": null, "failurePolicy": { "backoffLimit": null },
        "checkpoint": { "frequency": 2, "storage": { "type": "pvc" } }, "monitoring": {},
        "successPolicy": { "earlyStopping": { "patience": 3 } },
    });
    let stored = create(&client, &job("partly", partly), true).await.unwrap();
    let mut expected = bare.clone();
    expected["checkpoint"] = json!({ "frequency": 2, "storage": { "type": "pvc" } });
    (expected["monitoring"], expected["failurePolicy"]) = (json!({}), json!({}));
    expected["successPolicy"] = json!({ "earlyStopping": { "mode": "min", "patience": 3, "minDelta": 0 } });
    assert_eq!(stored["spec"], expected);
    // The types write no more than that either.
    let typed: TrainingJob = serde_json::from_value(job("typed", json!({ "monitoring": {} }))).unwrap();
    let mut written = serde_json::to_value(typed.spec).unwrap();
    assert_eq!(written.as_object_mut().unwrap().remove("scheduling"), Some(json!({})));
    assert_eq!(written, bare);
}

/// The namespace of the jobs that existed before the CRD had its present form.
const UPGRADED: &str = "upgraded";

/// Jobs that the previous CRD accepted.
fn old_jobs() -> Vec<Value> {
    // A field that did not exist then could not be stored.
    let is_old = |job: &Value| {
        let checkpoint = &job["spec"]["checkpoint"];
        let new = ["retention", "keepBest", "resumeFrom", "resumeArgs", "backup"];
        let in_bucket = ["s3", "gcs", "azure"].iter().any(|bucket| checkpoint["storage"]["type"] == *bucket);
        let is_elastic =
            ["elastic", "labels", "roles", "runtimeRef"].iter().any(|field| job["spec"].get(field).is_some());
        let framework = job["spec"]["framework"].as_str().unwrap_or("pytorch");
        let is_known = ["pytorch", "tensorflow", "jax"].contains(&framework);
        let monitoring = &job["spec"]["monitoring"];
        let has_new =
            ["objective", "minThroughput", "plateauSeconds"].iter().any(|field| monitoring.get(field).is_some());
        let has_both = ["model", "dataset"].iter().all(|field| job["spec"].get(field).is_some());
        has_both
            && !in_bucket
            && !is_elastic
            && is_known
            && !has_new
            && new.iter().all(|field| checkpoint.get(field).is_none())
    };
    let mut jobs: Vec<Value> = good_examples().map(|(_, example)| example).collect();
    jobs.extend(accepted().into_iter().map(|(name, spec)| job(&name, spec)));
    jobs.retain(is_old);
    for (index, job) in jobs.iter_mut().enumerate() {
        job["metadata"]["namespace"] = json!(UPGRADED);
        if index > 0 {
            let name = format!("{}-{index}", job["metadata"]["name"].as_str().unwrap());
            job["metadata"]["name"] = json!(if name.len() > 51 { format!("x-{index}") } else { name });
        }
    }
    jobs
}

fn list(jobs: &[Value]) -> String {
    json!({ "apiVersion": "v1", "kind": "List", "items": jobs }).to_string()
}

/// Stores jobs under the previous CRD, and then gives the API server the present one.
async fn upgrade(cluster: &Cluster, client: &Client) {
    cluster.apply_crd(&old_crd());
    until("TrainingJobs are served", SOON, || cluster.try_kubectl(&["get", "trainingjobs", "-A"], "").ok());
    let jobs = old_jobs();
    cluster.kubectl_with(&["apply", "-f", "-"], &list(&jobs));
    let url = format!("{}/{}", url(UPGRADED), jobs[0]["metadata"]["name"].as_str().unwrap());
    let stored = send(client, "GET", &url, &Value::Null).await.unwrap();
    assert_eq!(stored["spec"]["networking"]["masterPort"], 29500, "the old API server writes defaults down: {stored}");

    cluster.apply_crd(&parse(&root().join("crds/trainingjobs.yaml")));
    let probe = job("probe", json!({})).to_string();
    until("the new CRD is served", SOON, || {
        let framework = ["-n", UPGRADED, "--dry-run=server", "-o", "jsonpath={.spec.framework}"];
        cluster.try_kubectl(&[&["create", "-f", "-"], &framework[..]].concat(), &probe).ok()?.is_empty().then_some(())
    });
}

/// Their owners apply the same files after an upgrade, by whatever way.
#[tokio::test]
async fn reapplied_jobs_with_stored_defaults_match_their_files() {
    let (client, cluster, jobs) = (server().await, cluster(), old_jobs());
    cluster.kubectl_with(&["apply", "-f", "-"], &list(&jobs));
    cluster.kubectl_with(&["apply", "--server-side", "--force-conflicts", "-f", "-"], &list(&jobs));
    cluster.kubectl_with(&["replace", "-f", "-"], &list(&jobs));
    for job in &jobs {
        let url = format!("{}/{}", url(UPGRADED), job["metadata"]["name"].as_str().unwrap());
        let stored = send(&client, "GET", &url, &Value::Null).await.unwrap();
        assert_eq!(
            stored["spec"].get("framework"),
            job["spec"].get("framework"),
            "replaced by what stands in the file"
        );
    }
}

/// Jobs that were stored with every default written down keep their meaning, to the last name and hash.
#[test]
fn jobs_with_stored_defaults_keep_their_plan() {
    let old = old_crd();
    let specs =
        values().into_iter().flat_map(|(field, one, other, _)| [one, other].map(|v| job("x", json!({ field: v }))));
    let jobs =
        good_examples().map(|(_, example)| example).chain(accepted().into_iter().map(|(name, spec)| job(&name, spec)));
    for written in jobs.chain(specs) {
        let stored = apply_defaults(schema(&old), &written);
        assert!(stored["spec"]["networking"]["masterPort"].is_number(), "{stored}");
        let planned = |job: &Value| {
            let mut job: TrainingJob = serde_json::from_value(job.clone()).unwrap();
            job.metadata.uid = Some("00000000-0000-4000-8000-000000000001".into());
            plan::resolve(&job, &OperatorInfo { agent_image: "operator:1".into(), ..OperatorInfo::default() })
        };
        assert_eq!(planned(&stored), planned(&written), "{written}");
    }
}

#[tokio::test]
async fn api_server_accepts_only_allowed_changes() {
    let client = server().await;
    let mut wrong = Vec::new();
    for (index, Change { what, old, new, refused }) in changes().into_iter().enumerate() {
        let name = format!("change-{index}");
        let url = format!("{}/{name}", url("api"));
        let named = |mut object: Value| {
            object["metadata"]["name"] = json!(name);
            object
        };
        let made = create(&client, &named(old), false).await.unwrap_or_else(|message| panic!("{what}: {message}"));
        let made = run(&client, &url, made).await;
        let mut new = named(new);
        new["metadata"]["resourceVersion"] = made["metadata"]["resourceVersion"].clone();
        match (send(&client, "PUT", &format!("{url}?fieldValidation=Strict"), &new).await, refused) {
            (Ok(_), None) => {}
            (Ok(_), Some(_)) => wrong.push(format!("{what} was accepted")),
            (Err(message), None) => wrong.push(format!("{what} was refused: {message}")),
            (Err(message), Some(fields)) => {
                let expected = refusals(Some(&fields), &made["status"], false);
                if !expected.iter().all(|reported| message.contains(reported)) {
                    wrong.push(format!("{what}: {message}"));
                }
            }
        }
        send(&client, "DELETE", &url, &Value::Null).await.unwrap();
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The job as the operator would write it once its programs run.
async fn run(client: &Client, url: &str, mut made: Value) -> Value {
    made["status"] = json!({ "state": "Running", "startTime": "2027-01-01T00:00:00Z" });
    send(client, "PUT", &format!("{url}/status"), &made).await.unwrap()
}

/// A program, its resources and its placement may change until it starts, while it is suspended, and once it has
/// failed.
#[tokio::test]
async fn program_fields_may_change_while_no_program_runs() {
    let client = server().await;
    let url = format!("{}/stopped", url("api"));
    let mut made = create(&client, &job("stopped", json!({ "image": "a" })), false).await.unwrap();
    for (status, may_change) in situations() {
        made["spec"]["suspend"] = json!(status["state"] == "Suspended");
        made = send(&client, "PUT", &url, &made).await.unwrap();
        made["status"] = status.clone();
        made = send(&client, "PUT", &format!("{url}/status"), &made).await.unwrap();
        for (field, value) in [
            ("image", json!(format!("{}b", made["spec"]["image"].as_str().unwrap()))),
            ("args", json!([format!("{status}")])),
            ("failurePolicy", json!({ "backoffLimit": made["metadata"]["generation"] })),
            ("checkpoint", json!({ "frequency": made["metadata"]["generation"] })),
        ] {
            let mut changed = made.clone();
            changed["spec"][field] = value;
            match send(&client, "PUT", &url, &changed).await {
                Ok(changed) if may_change => made = changed,
                Err(message) if !may_change => {
                    let way = if status["state"] == "Completed" {
                        "kubectl trainingjob resubmit"
                    } else {
                        "kubectl trainingjob stop"
                    };
                    assert!(message.contains(way), "{field}, {status}: {message}");
                }
                answer => panic!("{field}, {status}: {answer:?}"),
            }
            let mut fixed = made.clone();
            fixed["spec"]["framework"] = json!("jax");
            let refused = send(&client, "PUT", &url, &fixed).await.unwrap_err();
            assert!(refused.contains("can't change after creation: framework;"), "{refused}");
        }
    }
    send(&client, "DELETE", &url, &Value::Null).await.unwrap();
}

/// A list in which each entry has a name of its own has no order.
#[tokio::test]
async fn reordered_env_is_not_a_change() {
    let client = server().await;
    let order = |names: [&str; 2]| job("order", json!({ "env": names.map(|name| json!({ "name": name })) }));
    let made = create(&client, &order(["A", "B"]), false).await.unwrap();
    let url = format!("{}/order", url("api"));
    let mut made = run(&client, &url, made).await;
    made["spec"]["env"] = order(["B", "A"])["spec"]["env"].clone();
    let mut made = send(&client, "PUT", &url, &made).await.unwrap();
    made["spec"]["env"] = order(["B", "C"])["spec"]["env"].clone();
    let refused = send(&client, "PUT", &url, &made).await.unwrap_err();
    assert!(refused.contains(&api::running_message(&api::immutable("env"))), "{refused}");
    send(&client, "DELETE", &url, &Value::Null).await.unwrap();
}

/// The API server stops rules that take too long. A job with all that the schema allows must not reach that limit.
#[tokio::test]
async fn largest_job_stays_within_the_rule_cost_budget() {
    let client = server().await;
    let list = |length: usize, item: &dyn Fn(usize) -> Value| (0..length).map(item).collect::<Vec<_>>();
    let name = |index: usize, length: usize| format!("{:a>length$}", format!("a{index}"));
    let map = |length: usize, prefix: &str, value: &str| -> BTreeMap<String, String> {
        (0..length).map(|index| (format!("{prefix}{}", name(index, 63)), value.to_owned())).collect()
    };
    let devices = map(64, &format!("{}/", "a".repeat(253)), "1000m");
    let fields = json!({
        "numWorkers": 4096, "gpusPerWorker": 0,
        "model": format!("pvc://c/{}", "a/".repeat(507) + "a"), "dataset": format!("pvc://c/{}", "a/".repeat(507) + "a"),
        "output": format!("s3://{}/{}", "b".repeat(60), "p/".repeat(450) + "p"),
        "env": list(1024, &|index| json!({ "name": name(index, 253), "value": "v".repeat(256) })),
        "args": list(1024, &|index| json!(name(index, 256))),
        "resources": { "requests": devices, "limits": devices },
        "volumes": list(64, &|index| json!({ "name": name(index, 63), "hostPath": { "path": name(index, 1024) } })),
        "volumeMounts": list(64, &|index| json!({ "name": name(index, 63), "mountPath": format!("/{}", name(index, 1023)) })),
        "imagePullSecrets": list(16, &|index| json!({ "name": name(index, 253) })),
        "hyperparameters": { "additionalParams": map(128, &"b".repeat(65), &"v".repeat(512)) },
        "scheduling": { "nodeSelector": map(64, &format!("{}/", "a".repeat(253)), &"v".repeat(63)) },
        "labels": map(32, &format!("{}/", "a".repeat(253)), &"v".repeat(63)),
        "annotations": map(32, &format!("{}/", "a".repeat(253)), &"v".repeat(2048)),
        "checkpoint": {
            "storage": { "type": "nfs", "nfsServer": "s".repeat(253), "nfsPath": "/p".repeat(2048) },
            "keepBest": { "metric": "m".repeat(253) },
            "resumeFrom": format!("s3://{}/{}", "b".repeat(60), "p/".repeat(990) + "p"),
            "resumeArgs": list(64, &|index| json!(name(index, 4096))),
            "backup": {
                "destination": format!("s3://{}/{}", "b".repeat(60), "p/".repeat(990) + "p"),
                "endpoint": format!("https://{}", "e".repeat(2040)), "region": "r".repeat(63),
                "credentialsSecret": "s".repeat(253), "azureAccount": "a".repeat(24),
            },
        },
        "monitoring": {
            "progress": { "patterns": list(16, &|index| json!(format!("(?P<a>){}", name(index, 1017)))) },
            "mlflowTrackingUri": format!("http://{}", "a".repeat(2041)), "mlflowExperiment": "e".repeat(500),
            "mlflowRegisteredModel": "m".repeat(256), "wandbProject": "w".repeat(128), "trackerSecret": "t".repeat(253), "tensorboardImage": "i".repeat(1024), "minThroughput": 1e9, "plateauSeconds": u32::MAX,
            "objective": { "metric": "m".repeat(100), "rungs": { "minStep": i64::MAX, "factor": i64::MAX } },
        },
    });
    let largest = create(&client, &job(&"a".repeat(49), fields), false).await.expect("the largest job is admitted");
    let url = format!("{}/{}", url("api"), "a".repeat(49));
    let mut updated = largest.clone();
    updated["spec"]["suspend"] = json!(true);
    let updated = send(&client, "PUT", &url, &updated).await;
    assert!(updated.is_ok(), "{}", updated.unwrap_err());
    send(&client, "DELETE", &url, &Value::Null).await.unwrap();
}

/// As `kubectl scale` and an autoscaler do it.
#[tokio::test]
async fn elastic_job_scales_only_within_its_bounds() {
    let client = server().await;
    let elastic = json!({ "elastic": { "minWorkers": 2, "maxWorkers": 4 }, "checkpoint": { "enabled": false } });
    let template = json!({ "runtimeRef": { "name": "gpu" } });
    let mut both = elastic.clone();
    both["runtimeRef"] = template["runtimeRef"].clone();
    for (name, fields, to, refused) in [
        ("scaled", elastic.clone(), 4, None),
        ("scaled-too-far", elastic.clone(), 5, Some("numWorkers is not between elastic.minWorkers")),
        ("scaled-too-little", elastic, 1, Some("numWorkers is not between elastic.minWorkers")),
        ("not-elastic", json!({}), 3, Some("can't change while the job runs: numWorkers (without elastic); stop")),
        ("template", template.clone(), 3, Some("can't change while the job runs: numWorkers (without elastic); stop")),
        ("template-too-far", both, 5, Some("numWorkers is not between elastic.minWorkers")),
    ] {
        let made = create(&client, &job(name, fields), false).await.unwrap();
        run(&client, &format!("{}/{name}", url("api")), made).await;
        let jobs: Api<TrainingJob> = Api::namespaced(client.clone(), "api");
        let patch = Patch::Merge(json!({ "spec": { "replicas": to } }));
        let scaled = jobs.patch_scale(name, &PatchParams::default(), &patch).await;
        match refused {
            None => {
                assert_eq!(scaled.unwrap().spec.unwrap().replicas, Some(to));
                let status = json!({ "status": {
                    "workers": { "desired": 4, "active": 3, "succeeded": 0, "failed": 0, "pending": 1 },
                    "elastic": { "workers": 3, "largest": 3, "selector": "component=worker" },
                } });
                jobs.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
                let status = jobs.get_scale(name).await.unwrap().status.unwrap();
                assert_eq!((status.replicas, status.selector.as_deref()), (3, Some("component=worker")));
            }
            Some(words) => {
                let message = scaled.unwrap_err().to_string();
                assert!(message.contains(words), "{message}");
            }
        }
        jobs.delete(name, &Default::default()).await.unwrap();
    }
}

/// The API server sees the template's values in the job's status alone.
#[tokio::test]
async fn job_with_an_elastic_template_can_be_scaled() {
    let client = server().await;
    let name = "elastic-by-template";
    create(&client, &job(name, json!({ "runtimeRef": { "name": "gpu" } })), false).await.unwrap();
    let jobs: Api<TrainingJob> = Api::namespaced(client.clone(), "api");
    let status = json!({ "status": { "elastic": { "workers": 2, "largest": 2, "selector": "component=worker" } } });
    jobs.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    let patch = Patch::Merge(json!({ "spec": { "replicas": 3 } }));
    let scaled = jobs.patch_scale(name, &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(scaled.spec.unwrap().replicas, Some(3));
    jobs.delete(name, &Default::default()).await.unwrap();
}

/// The controller manager adds the roles of deploy/admin to Kubernetes' own, which give users their rights.
#[tokio::test]
async fn users_with_the_edit_role_can_scale_jobs() {
    let client = server().await;
    let cluster = cluster();
    cluster.kubectl(&["apply", "-f", root().join("deploy/admin/users.yaml").to_str().unwrap()]);
    for role in ["edit", "view"] {
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": { "name": format!("may-{role}"), "namespace": "api" },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": format!("may-{role}") }],
        });
        cluster.kubectl_with(&["apply", "-f", "-"], &binding.to_string());
    }
    let fields = json!({ "elastic": { "minWorkers": 2, "maxWorkers": 4 }, "checkpoint": { "enabled": false } });
    create(&client, &job("scaled-by-people", fields), false).await.unwrap();
    let scale = |user: &str, to: u32| {
        let (user, to) = (format!("--as={user}"), format!("--replicas={to}"));
        cluster.try_kubectl(&["scale", "tj", "scaled-by-people", "--namespace=api", &user, &to], "")
    };
    until("the role edit to let people scale", SOON, || scale("may-edit", 4).ok());
    let denied = scale("may-view", 3).unwrap_err();
    assert!(denied.contains("cannot patch resource \"trainingjobs/scale\""), "{denied}");
    let jobs: Api<TrainingJob> = Api::namespaced(client.clone(), "api");
    assert_eq!(jobs.get("scaled-by-people").await.unwrap().spec.num_workers(), 4);
    jobs.delete("scaled-by-people", &Default::default()).await.unwrap();
}

/// Both numbers of an unfinished Indexed Job may change at once, as the Job of an elastic gang needs it.
#[tokio::test]
async fn parallelism_and_completions_can_change_together() {
    let client = server().await;
    let elastic = json!({ "elastic": { "maxWorkers": 4 }, "checkpoint": { "enabled": false } });
    let mut owner: TrainingJob = serde_json::from_value(job("pods", elastic)).unwrap();
    owner.metadata.namespace = Some("api".into());
    owner.metadata.uid = Some("00000000-0000-4000-8000-000000000001".into());
    let runtime = OperatorInfo { agent_image: "operator:1".into(), ..OperatorInfo::default() };
    let mut objects = objects::objects(&plan::resolve(&owner, &runtime).plan, Incarnation::FIRST, &GangPast::default());
    // Its owner does not exist here, so that it would be collected.
    objects.jobs[0].metadata.owner_references = None;
    let jobs: Api<Job> = Api::namespaced(client.clone(), "api");
    let made = jobs.create(&PostParams::default(), &objects.jobs[0]).await.unwrap();
    let numbers = |job: Job| job.spec.map(|spec| (spec.parallelism, spec.completions)).unwrap();
    assert_eq!(numbers(made.clone()), (Some(2), Some(2)));
    for pods in [4, 1] {
        let spec = json!({ "parallelism": pods, "completions": pods });
        let patch = |uid: &str| Patch::Merge(json!({ "metadata": { "uid": uid }, "spec": spec }));
        let name = made.name_any();
        let other = jobs.patch(&name, &PatchParams::default(), &patch("another")).await.unwrap_err();
        let kube::Error::Api(other) = other else { panic!("{other}") };
        assert!(other.details.unwrap().causes.iter().any(|cause| cause.field == "metadata.uid"), "{}", other.message);
        let changed = jobs.patch(&name, &PatchParams::default(), &patch(&made.uid().unwrap())).await.unwrap();
        assert_eq!(numbers(changed), (Some(pods), Some(pods)));
    }
    jobs.delete(&made.name_any(), &Default::default()).await.unwrap();
}

/// Every field of the status survives. None is pruned for want of a schema.
#[tokio::test]
async fn status_round_trips_unchanged() {
    let client = server().await;
    let made = create(&client, &job("status", json!({})), false).await.unwrap();
    let time = "2030-01-02T03:04:05Z";
    let status = json!({
        "observedGeneration": 1, "state": "Running", "inherited": { "defaults": { "ttlSecondsAfterFinished": 3600 } }, "attempt": 2, "restartCount": 1, "disruptionCount": 0,
        "conditions": [{ "type": "Running", "status": "True", "reason": "AllWorkersRun", "message": "2 of 2 run",
                         "lastTransitionTime": time, "observedGeneration": 1 }],
        "workers": { "desired": 2, "active": 2, "succeeded": 0, "failed": 0, "pending": 0 },
        "restarts": [{ "attempt": 1, "time": time, "reason": "ExitCode", "message": "worker 1 exited 1", "worker": 1,
                       "exitCode": 1, "step": 41, "resumedFrom": "step-40", "disruption": false, "permanent": false,
                       "ranSeconds": 7 }],
        "restartHistory": { "judged": 1, "failures": 1, "disruptions": 0, "failuresInARow": 1, "disruptionsInARow": 0,
                            "step": 41, "repeated": { "reason": "ExitCode", "step": 41, "times": 1 } },
        "elastic": { "workers": 2, "largest": 4, "changed": time, "since": time, "selector": "a=b" },
        "resources": { "allocatedGPUs": 2, "allocatedNodes": 1 },
        "progress": "45%", "currentEpoch": 2, "totalEpochs": 10, "currentStep": 450, "totalSteps": 1000,
        "estimatedSecondsRemaining": 60, "lastProgressTime": time,
        "metrics": { "loss": 0.5, "accuracy": 0.9, "learningRate": 0.001, "throughput": 12.5, "gpuUtilization": 80.0,
                     "customMetrics": { "eval_loss": 0.7 } },
        "earlyStopping": { "metric": "eval_loss", "best": 0.7, "evaluationsSinceBest": 2, "attempt": 2,
                           "evaluations": 3, "step": 400 },
        "bestLoss": { "value": 0.5, "time": time, "step": 400, "attempt": 2 },
        "objective": { "metric": "eval_loss", "count": 3, "last": { "value": "NaN", "step": 400 },
                       "best": { "value": 0.30000000000000004, "step": 100 },
                       "rungs": [{ "step": 100, "value": 0.7 }, { "step": 200, "value": "+Inf" }, { "step": 400, "value": 1 }],
                       "reported": ["loss"], "agents": [{ "since": 1_893_456_000_123_i64, "attempt": 2, "count": 3 }] },
        "startTime": time, "completionTime": time, "duration": "1s", "suspendedAt": time, "suspendedSeconds": 3,
        "failureReason": "ExitCode", "failureMessage": "worker 1 exited 1",
    });
    let mut new = made.clone();
    new["status"] = status.clone();
    let jobs: Api<TrainingJob> = Api::namespaced(client.clone(), "api");
    let written = serde_json::from_value(new).unwrap();
    jobs.replace_status("status", &PostParams::default(), &written).await.unwrap();
    let stored = jobs.get("status").await.unwrap();
    assert_eq!(serde_json::to_value(stored.status).unwrap(), status);
    jobs.delete("status", &Default::default()).await.unwrap();
}

// ---- what is tried

/// Specs with one entry that is wrong, and words of the refusal, which names it.
fn wrong_entries() -> Vec<(Value, &'static str)> {
    let forty = |bad: Value, good: fn(usize) -> Value| -> Value {
        (0..40).map(|index| if index == 27 { bad.clone() } else { good(index) }).collect()
    };
    let volume = |index: usize| json!({ "name": format!("v{index}"), "emptyDir": {} });
    let mount = |index: usize| json!({ "name": "v0", "mountPath": format!("/mnt/{index}") });
    let variable = |index: usize| json!({ "name": format!("V{index}"), "value": "1" });
    let volumes = json!([volume(0)]);
    let limits =
        |key: &str, value: Value| json!({ "resources": { "limits": { "cpu": 1, key: value, "memory": "1Gi" } } });
    let roles = |of: &str, role: Value| json!({ "framework": of, "image": "i", "checkpoint": { "enabled": false }, "roles": [{ "name": "chief" }, role] });
    vec![
        (roles("none", json!({ "name": "upkeep" })), "the role upkeep has a name"),
        (roles("tensorflow", json!({ "name": "actor" })), "the role actor means nothing to the framework"),
        (roles("mpi", json!({ "name": "launcher" })), "the role chief means nothing to the framework"),
        (roles("pytorch", json!({ "name": "launcher" })), "means nothing to the framework"),
        (
            json!({ "framework": "mpi", "image": "i", "checkpoint": { "enabled": false },
                    "roles": [{ "name": "launcher", "replicas": 2 }] }),
            "chief, evaluator, scheduler and launcher are one pod each",
        ),
        (
            roles("none", json!({ "name": "actor", "env": [{ "name": "RANK" }] })),
            "the variable RANK of a role's env is set",
        ),
        (json!({ "env": forty(json!({ "name": "RANK", "value": "1" }), variable) }), "the variable RANK of env is set"),
        (
            json!({ "env": forty(json!({ "name": "TRAININGJOB_X" }), variable) }),
            "the variable TRAININGJOB_X of env is set by the operator",
        ),
        (json!({ "env": forty(json!({ "name": "A=B" }), variable) }), "the name \"A=B\" of a variable of env holds"),
        (
            json!({ "env": forty(json!({ "name": "KEY", "value": "1", "valueFrom": {} }), variable) }),
            "the variable KEY of env has both value and valueFrom",
        ),
        (
            json!({ "envFrom": [{ "secretRef": { "name": "s" }, "configMapRef": { "name": "c" } }] }),
            "one source, and one names the ConfigMap c and the Secret s: ",
        ),
        (json!({ "envFrom": [{ "prefix": "P_" }] }), "one source, and the one with the prefix P_ names none: "),
        (json!({ "envFrom": [{}] }), "one source, and one names none: "),
        (limits("gpu", json!(1)), "resources.limits names gpu, which is no resource of containers"),
        (limits("x/y", json!("-1")), "the value -1 of resources.limits is not a quantity"),
        (limits("x/y", json!(-3)), "the value -3 of resources.limits is not a quantity"),
        (
            json!({ "resources": { "requests": { "cpu": 1, "memory": "2Gi" }, "limits": { "cpu": 2, "memory": "1Gi" } } }),
            "resources.requests asks for more memory than resources.limits allows",
        ),
        (
            json!({ "resources": { "requests": { "rdma/hca": 2, "x/y": 1 }, "limits": { "rdma/hca": 4, "x/y": 1 } } }),
            "rdma/hca in resources.requests is a device that can't be shared",
        ),
        (
            json!({ "gpusPerWorker": 2, "resources": { "limits": { "cpu": 2, "nvidia.com/gpu": 1 } } }),
            "gpusPerWorker (1 if it is not written) and nvidia.com/gpu in resources.limits differ",
        ),
        (
            json!({ "resources": { "limits": { "amd.com/gpu": 1, "nvidia.com/gpu": 1 } } }),
            "resources.limits names amd.com/gpu and GPUs of another vendor: keep one",
        ),
        (
            json!({ "volumes": forty(json!({ "name": "Big_One" }), volume) }),
            "the name \"Big_One\" of a volume must be a DNS label",
        ),
        (
            json!({ "volumes": forty(json!({ "name": "trainingjob-x" }), volume) }),
            "the name trainingjob-x of a volume is",
        ),
        (
            json!({ "volumes": volumes, "volumeMounts": forty(json!({ "name": "v0", "mountPath": "data" }), mount) }),
            "the mountPath \"data\" of volumeMounts is not an absolute path",
        ),
        (
            json!({ "volumes": volumes, "volumeMounts": forty(json!({ "name": "v0", "mountPath": "/trainingjob/x" }), mount) }),
            "the mountPath /trainingjob/x of volumeMounts is the operator's",
        ),
        (
            json!({ "volumes": volumes, "volumeMounts": forty(json!({ "name": "v0", "mountPath": "/checkpoints/" }), mount) }),
            "volumeMounts takes /checkpoints/, a path that the job mounts itself",
        ),
        (
            json!({ "volumes": volumes, "volumeMounts": forty(json!({ "name": "sctratch", "mountPath": "/s" }), mount) }),
            "volumeMounts names sctratch, a volume that is not in volumes",
        ),
        (
            json!({ "imagePullSecrets": [{ "name": "ok" }, { "name": "Bad" }] }),
            "imagePullSecrets holds \"Bad\", which can't",
        ),
        (
            json!({ "hyperparameters": { "additionalParams": { "a": "1", "b c": "2" } } }),
            "the key \"b c\" of additionalParams can't become",
        ),
        (
            json!({ "hyperparameters": { "additionalParams": { "a": "1", "n".repeat(129): "2" } } }),
            "nnn\" of additionalParams can't become",
        ),
        (
            json!({ "hyperparameters": { "additionalParams": { "a": "1", "batch_size": "2" } } }),
            "the key batch_size of additionalParams has a field of its own",
        ),
        (
            json!({ "scheduling": { "nodeSelector": { "a": "b", "zone": "a b" } } }),
            "the entry zone of nodeSelector can't be a node label",
        ),
        (json!({ "labels": { "a": "b", "team": "a b" } }), "the entry team of labels can't be a label"),
        (
            json!({ "labels": { "a": "b", "kueue.x-k8s.io/queue-name": "q" } }),
            "the key kueue.x-k8s.io/queue-name of labels is",
        ),
        (json!({ "annotations": { "a": "b", "a b": "c" } }), "the key a b of annotations can't be the key"),
        (json!({ "annotations": { "a": "b", "training-job": "c" } }), "the key training-job of annotations is set by"),
        (
            json!({ "monitoring": { "progress": { "patterns": ["(?P<loss>x)", "loss=(.*)"] } } }),
            "the pattern \"loss=(.*)\" of monitoring.progress names nothing",
        ),
    ]
}

/// Specs close to a rule that must pass, under names that do.
fn accepted() -> Vec<(String, Value)> {
    let scratch = |path: &str| {
        json!({ "volumes": [{ "name": "scratch", "emptyDir": {} }],
                "volumeMounts": [{ "name": "scratch", "mountPath": path }] })
    };
    let with = |mut spec: Value, field: &str, value: Value| {
        spec[field] = value;
        spec
    };
    let specs = [
        ("a".repeat(52), json!({ "numWorkers": 10 })),
        ("a".repeat(49), json!({ "numWorkers": 4096 })),
        (
            "a".repeat(45),
            json!({ "framework": "none", "image": "i", "checkpoint": { "enabled": false }, "roles": [
                { "name": "a23456789012345", "replicas": 10, "leader": true, "gpusPerReplica": 1,
                  "env": [{ "name": "ROLE", "value": "a" }], "resources": { "limits": { "cpu": 1 } } },
                { "name": "chief", "replicas": 2 }, { "name": "b", "podTemplate": { "spec": { "anything": 1 } } },
            ] }),
        ),
        (
            "roles-of-tensorflow".into(),
            json!({ "framework": "tensorflow", "checkpoint": { "storage": { "type": "pvc" } },
                    "scheduling": { "queue": "q", "gang": "volcano" },
                    "roles": [{ "name": "chief" }, { "name": "ps", "replicas": 3 }, { "name": "evaluator", "replicas": 1 }] }),
        ),
        (
            "roles-of-mpi".into(),
            json!({ "framework": "mpi", "image": "i", "checkpoint": { "enabled": false }, "procsPerWorker": 4,
                    "roles": [{ "name": "launcher", "replicas": 1 }] }),
        ),
        ("no-roles".into(), json!({ "roles": [], "elastic": { "maxWorkers": 4 }, "checkpoint": { "enabled": false } })),
        ("uri".into(), json!({ "model": "pvc://c", "dataset": "pvc://c.d/a..b/.c/wiki text", "output": "pvc://0/x" })),
        ("words".into(), json!({ "model": "org/model:v1", "dataset": "../wiki text" })),
        ("procs-number".into(), json!({ "procsPerWorker": 8 })),
        ("procs-most".into(), json!({ "procsPerWorker": 1024 })),
        ("procs-cpu".into(), json!({ "procsPerWorker": "cpu", "resources": { "limits": { "cpu": 4 } } })),
        (
            "env".into(),
            json!({ "env": [{ "name": "NCCL_DEBUG", "value": "INFO" }, { "name": "NCCL_IB_DISABLE", "value": "1" },
                                       { "name": "MASTER", "value": "me" }, { "name": "WORLD_SIZE_MAX" },
                                       { "name": "K", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }],
                               "envFrom": [{ "secretRef": { "name": "s" } }, { "configMapRef": { "name": "c" } }] }),
        ),
        (
            "quantities".into(),
            json!({ "resources": { "requests": { "cpu": "0.5", "memory": "1024Mi", "rdma/hca": 1 },
                                                     "limits": { "cpu": "500m", "memory": "1Gi", "rdma/hca": "1" } } }),
        ),
        (
            "gpus".into(),
            json!({ "gpusPerWorker": 4, "resources": { "requests": { "amd.com/gpu": 4 }, "limits": { "amd.com/gpu": "4" } } }),
        ),
        ("gpus-limit".into(), json!({ "resources": { "limits": { "nvidia.com/gpu": "1" } } })),
        ("mig".into(), json!({ "gpusPerWorker": 0, "resources": { "limits": { "nvidia.com/mig-1g.5gb": 1 } } })),
        ("mount-data".into(), scratch("/data")),
        ("mount-shm".into(), scratch("/dev/shm")),
        ("mount-below".into(), with(scratch("/data/cache"), "dataset", json!("pvc://datasets"))),
        ("mount-checkpoints".into(), with(scratch("/checkpoints"), "checkpoint", json!({ "enabled": false }))),
        (
            "mount-of-template".into(),
            json!({ "podTemplate": { "spec": { "volumes": [{ "name": "v", "emptyDir": {} }] } },
                                             "volumeMounts": [{ "name": "v", "mountPath": "/v" }] }),
        ),
        (
            "claim".into(),
            json!({ "checkpoint": { "storage": { "type": "pvc", "size": "50Gi", "storageClassName": "fast", "deletePolicy": "Delete" } } }),
        ),
        (
            "claim-named".into(),
            json!({ "checkpoint": { "storage": { "type": "pvc", "pvcName": "c.d", "deletePolicy": "Retain" } } }),
        ),
        (
            "nfs".into(),
            json!({ "checkpoint": { "storage": { "type": "nfs", "nfsServer": "fd00::1", "nfsPath": "/" } } }),
        ),
        (
            "bucket".into(),
            json!({ "checkpoint": {
                "storage": { "type": "s3", "s3Bucket": "a.b-c_d", "prefix": "..a/b c/", "endpoint": "http://[fd00::1]:9000/",
                             "region": "eu-central-2", "credentialsSecret": "keys.of-team" },
                "backup": { "destination": "az://container/a b/", "azureAccount": "account", "intervalSeconds": 10 },
                "retention": 1, "keepBest": { "metric": "val/loss" }, "resumeArgs": ["--load", "$(RESUME_FROM_CHECKPOINT)"],
                "resumeFrom": "gs://other/checkpoint-10/",
            } }),
        ),
        ("resumed".into(), json!({ "checkpoint": { "resumeFrom": "/data/epoch=3-step=9.ckpt" } })),
        (
            "of-document-003".into(),
            json!({ "checkpoint": {
                "enabled": true, "frequency": 2, "resumeFrom": "s3://checkpoints/gpt-training/checkpoint-epoch-10",
                "storage": { "type": "s3", "s3Bucket": "ml-checkpoints" },
            } }),
        ),
        (
            "rdma".into(),
            json!({ "networking": { "rdmaEnabled": true, "rdmaResource": "vpc.amazonaws.com/efa", "interface": "^lo,docker0" } }),
        ),
        (
            "placed".into(),
            json!({ "scheduling": { "priority": "p-1", "queue": "q", "schedulerName": "volcano", "topologyKey": "rack",
                                                  "nodeSelector": { "a.b/c_d": "", "e": "F.g" } } }),
        ),
        (
            "labelled".into(),
            json!({ "labels": { "team": "vision", "kueue.x-k8s.io.example/a": "", "apps": "b" },
                    "annotations": { "example.com/owner": "A. N. Other, \"room\" 7", "kubectl.kubernetes.io/default-container": "x" } }),
        ),
        (
            "params".into(),
            json!({ "hyperparameters": { "learningRate": 1e-5, "additionalParams": { "adam.beta1": "0.9", "weightDecay": "", "k-fold": "5" } } }),
        ),
        (
            "a".repeat(51),
            json!({ "monitoring": { "tensorboardEnabled": true, "tensorboardImage": "registry.example/board:1" } }),
        ),
        (
            "watched".into(),
            json!({ "monitoring": {
                "metricsPort": 29502, "mlflowTrackingUri": "https://mlflow.example.com/ml/", "mlflowExperiment": "a b/c",
                "wandbProject": "a.b_c-d e", "trackerSecret": "keys.of-team",
                "progress": { "patterns": ["(?P<step>\\d+)/(?P<steps>\\d+)", "loss=(?<loss>\\S+)"] },
            } }),
        ),
        (
            "compared".into(),
            json!({ "monitoring": { "minThroughput": 0.5, "plateauSeconds": 0, "objective": { "metric": "val/acc", "mode": "max", "rungs": { "minStep": 1, "factor": 2 } } } }),
        ),
        ("unwatched".into(), json!({ "monitoring": { "enabled": false, "metricsPort": 29500 } })),
        (
            "good-enough".into(),
            json!({ "successPolicy": { "targetAccuracy": 95, "targetLoss": -1.5,
                                       "earlyStopping": { "metric": "val/acc", "mode": "max", "patience": 1, "minDelta": 0 } } }),
        ),
        ("patient".into(), json!({ "successPolicy": { "earlyStoppingPatience": 5 } })),
        (
            "template-patch".into(),
            json!({ "podTemplate": { "metadata": { "labels": { "a": "b" } },
                                                           "spec": { "containers": [{ "name": "training", "$patch": "merge", "newField": [1] }] } } }),
        ),
    ];
    specs.into()
}

/// For each field of the spec: a value, another one, and whether it may change.
fn values() -> Vec<(&'static str, Value, Value, bool)> {
    let code = |digit: &str| json!({ "digest": format!("sha256:{}", digit.repeat(64)) });
    let env = |value: &str| json!([{ "name": "A", "value": value }, { "name": "B", "value": value }]);
    let volumes = |path: &str| json!([{ "name": "v", "hostPath": { "path": path } }]);
    let template = |user: u32| json!({ "spec": { "securityContext": { "runAsUser": user } } });
    let search = |trials: u32| {
        let parameters = json!({ "lr": { "type": "double", "min": 0.1, "max": 1 } });
        json!({ "maxTrials": trials, "metric": { "name": "loss", "goal": "minimize" }, "parameters": parameters })
    };
    vec![
        ("annotations", json!({ "a": "b" }), json!({ "a": "c" }), false),
        ("args", json!(["a"]), json!(["b"]), false),
        ("cache", json!({ "pvcName": "a" }), json!({ "pvcName": "b" }), false),
        ("checkpoint", json!({ "frequency": 1 }), json!({ "frequency": 2 }), false),
        ("code", code("a"), code("b"), true),
        ("command", json!(["a"]), json!(["a", "b"]), false),
        ("credentialsSecret", json!("a"), json!("b"), false),
        (
            "data",
            json!([{ "name": "a", "uri": "pvc://a", "mountPath": "/a" }]),
            json!([{ "name": "a", "uri": "pvc://b", "mountPath": "/a" }]),
            false,
        ),
        ("dataset", json!("a"), json!("b"), false),
        ("elastic", json!({ "maxWorkers": 4 }), json!({ "maxWorkers": 8 }), false),
        ("env", env("1"), env("2"), false),
        ("envFrom", json!([{ "secretRef": { "name": "a" } }]), json!([{ "secretRef": { "name": "b" } }]), false),
        ("failurePolicy", json!({ "backoffLimit": 1 }), json!({ "backoffLimit": 2 }), false),
        ("framework", json!("jax"), json!("tensorflow"), false),
        ("gpusPerWorker", json!(0), json!(1), false),
        ("hyperParameterTuningConfig", search(3), search(4), false),
        ("hyperparameters", json!({ "epochs": 1 }), json!({ "epochs": 1, "batchSize": 1 }), false),
        ("image", json!("a"), json!("b"), false),
        ("imagePullSecrets", json!([{ "name": "a" }]), json!([{ "name": "b" }]), false),
        ("labels", json!({ "a": "b" }), json!({ "a": "c" }), false),
        ("model", json!("a"), json!("b"), false),
        ("monitoring", json!({ "metricsPort": 8081 }), json!({ "metricsPort": 8082 }), false),
        ("networking", json!({ "backend": "gloo" }), json!({ "backend": "mpi" }), false),
        ("numWorkers", json!(1), json!(2), false),
        ("output", json!("pvc://a"), json!("pvc://b"), false),
        ("podTemplate", template(1), template(2), false),
        ("procsPerWorker", json!(1), json!("auto"), false),
        ("resources", json!({ "limits": { "cpu": "1" } }), json!({ "limits": { "cpu": "2" } }), false),
        ("roles", json!([{ "name": "a" }]), json!([{ "name": "a", "replicas": 2 }]), false),
        ("runtimeRef", json!({ "name": "a" }), json!({ "name": "b" }), false),
        ("safetensorsOnly", json!(false), json!(true), false),
        ("scheduling", json!({ "queue": "a", "gang": "volcano" }), json!({ "queue": "a", "gang": "native" }), false),
        ("serviceAccountName", json!("a"), json!("b"), false),
        ("successPolicy", json!({ "targetLoss": 0.1 }), json!({ "earlyStoppingPatience": 3 }), true),
        ("suspend", json!(true), json!(false), true),
        ("ttlSecondsAfterFinished", json!(1), json!(2), true),
        (
            "volumeMounts",
            json!([{ "name": "v", "mountPath": "/a" }]),
            json!([{ "name": "v", "mountPath": "/b" }]),
            false,
        ),
        ("volumes", volumes("/a"), volumes("/b"), false),
        ("workingDir", json!("/a"), json!("/b"), false),
    ]
}

struct Change {
    what: String,
    old: Value,
    new: Value,
    /// The fields that are reported as immutable, with blanks between.
    refused: Option<String>,
}

/// Every field changed, added and removed.
fn changes() -> Vec<Change> {
    let mut changes = Vec::new();
    let mut push = |what: String, old: Value, new: Value, refused: Option<&str>| {
        changes.push(Change { what, old, new, refused: refused.map(str::to_owned) });
    };
    for (field, one, other, mutable) in values() {
        // Mounts need their volume.
        let base = |spec: Value| {
            let mut object = job("x", spec);
            if field == "volumeMounts" {
                object["spec"]["volumes"] = json!([{ "name": "v", "emptyDir": {} }]);
            }
            if field == "roles" {
                object["spec"]["framework"] = json!("none");
                object["spec"]["image"] = json!("a");
                object["spec"]["checkpoint"] = json!({ "enabled": false });
            }
            if field == "elastic" {
                object["spec"]["checkpoint"] = json!({ "enabled": false });
            }
            object
        };
        let [old, new] = [one, other].map(|value| base(json!({ field: value })));
        // Some fields of these may change.
        let refused = (!mutable).then_some(match field {
            "failurePolicy" => "failurePolicy.backoffLimit",
            "checkpoint" => "checkpoint.frequency",
            "scheduling" => "scheduling.gang",
            "monitoring" => "monitoring.metricsPort",
            _ => field,
        });
        push(format!("{field}: changed"), old.clone(), new, refused);
        // Required fields are in the base. Writing the default's value is no change.
        if base(json!({}))["spec"].get(field).is_none() {
            let refused = match field {
                "scheduling" => Some("scheduling.gang scheduling.queue"),
                "code" => Some("code"),
                _ => refused,
            };
            push(format!("{field}: removed"), old.clone(), base(json!({})), refused);
            push(format!("{field}: added"), base(json!({})), old, refused);
        }
    }
    let policy = |seconds: u32| job("x", json!({ "failurePolicy": { "activeDeadlineSeconds": seconds } }));
    push("activeDeadlineSeconds: changed".into(), policy(1), policy(2), None);
    push("activeDeadlineSeconds: removed".into(), policy(1), job("x", json!({})), None);
    push("activeDeadlineSeconds: added".into(), job("x", json!({})), policy(1), None);
    let watched = |fields: Value| job("x", json!({ "monitoring": fields }));
    let (slow, fast) = (json!({ "minThroughput": 1 }), json!({ "minThroughput": 2, "plateauSeconds": 60 }));
    push("minThroughput: changed".into(), watched(slow.clone()), watched(fast), None);
    push("minThroughput: removed".into(), watched(slow.clone()), job("x", json!({})), None);
    push("minThroughput: added".into(), job("x", json!({})), watched(slow), None);
    let rules =
        |action: &str| job("x", json!({ "failurePolicy": { "rules": [{ "exitCodes": [42], "action": action }] } }));
    push("failurePolicy.rules: changed".into(), rules("Fail"), rules("Ignore"), None);
    push("failurePolicy.rules: removed".into(), rules("Fail"), job("x", json!({})), None);
    push("failurePolicy.rules: added".into(), job("x", json!({})), rules("Fail"), None);
    let policy = |kind: &str| job("x", json!({ "failurePolicy": { "restartPolicy": kind } }));
    push("restartPolicy: changed".into(), policy("Never"), policy("Always"), Some("failurePolicy.restartPolicy"));
    let hang = |seconds: u32| job("x", json!({ "failurePolicy": { "hang": { "timeoutSeconds": seconds } } }));
    push("hang: changed".into(), hang(60), hang(90), Some("failurePolicy.hang"));
    push("hang: written down".into(), hang(1800), job("x", json!({})), None);
    let policy = |kind: &str| job("x", json!({ "failurePolicy": { "nanPolicy": kind } }));
    push("nanPolicy: changed".into(), policy("Report"), policy("Fail"), Some("failurePolicy.nanPolicy"));
    push(
        "failurePolicy: emptied".into(),
        policy("Fail"),
        job("x", json!({ "failurePolicy": {} })),
        Some("failurePolicy.nanPolicy"),
    );
    let elastic = |workers: u32| {
        let fields = json!({ "numWorkers": workers, "elastic": { "minWorkers": 2, "maxWorkers": 4 } });
        let mut object = job("x", fields);
        object["spec"]["checkpoint"] = json!({ "enabled": false });
        object
    };
    push("numWorkers: changed, elastic".into(), elastic(2), elastic(4), None);
    // Writing a default down, and leaving it out again, changes nothing.
    let retention = |count: u32| job("x", json!({ "checkpoint": { "frequency": 1, "retention": count } }));
    push("retention: changed".into(), retention(3), retention(9), None);
    push("retention: removed".into(), retention(9), job("x", json!({ "checkpoint": { "frequency": 1 } })), None);
    let base = || {
        json!({
            "checkpoint": {
                "storage": { "type": "pvc" }, "keepBest": { "metric": "m" }, "backup": { "destination": "s3://copies/x" },
            },
            "monitoring": { "objective": { "metric": "m" } },
            "resources": { "limits": { "cpu": 1 } },
        })
    };
    let mut all = base();
    for (path, default) in api::defaults::all() {
        let mut bare = base();
        // Objects that are present or not.
        let apart = [("elastic", json!({ "maxWorkers": 4 })), ("runtimeRef", json!({ "name": "a" }))];
        let apart = apart.into_iter().find(|(object, _)| path.split('.').next() == Some(object));
        let is_apart = apart.is_some();
        if let Some((object, value)) = apart {
            bare[object] = value;
        }
        let mut written = bare.clone();
        let all = (!is_apart).then_some(&mut all);
        for spec in [Some(&mut written), all].into_iter().flatten() {
            *path.split('.').fold(spec, |object, step| &mut object[step]) = default.clone();
        }
        let (bare, written) = (job("x", bare), job("x", written));
        push(format!("{path}: default written down"), bare.clone(), written.clone(), None);
        push(format!("{path}: default left out"), written, bare, None);
    }
    push("all defaults written down".into(), job("x", base()), job("x", all.clone()), None);
    push("all defaults left out".into(), job("x", all.clone()), job("x", base()), None);
    let empty = json!({ "networking": {}, "monitoring": {}, "failurePolicy": {}, "checkpoint": {} });
    push("empty objects".into(), job("x", empty.clone()), job("x", json!({})), None);
    push("empty objects left out".into(), job("x", json!({})), job("x", empty), None);
    let mut other = all.clone();
    other["networking"]["interface"] = json!("eth0");
    push("a field beside defaults".into(), job("x", base()), job("x", other.clone()), Some("networking"));
    push("a field beside defaults left out".into(), job("x", other), job("x", base()), Some("networking"));
    all["checkpoint"].as_object_mut().unwrap().remove("storage");
    push("storage left out".into(), job("x", base()), job("x", all), Some("checkpoint.storage"));
    let both = |image: &str| {
        job("x", json!({ "image": image, "checkpoint": { "frequency": image.len() }, "suspend": image == "a" }))
    };
    push("two fields changed".into(), both("a"), both("bc"), Some("checkpoint.frequency image"));
    let mut labelled = job("x", json!({}));
    labelled["metadata"]["labels"] = json!({ "team": "a" });
    labelled["metadata"]["annotations"] = json!({ "note": "b" });
    push("labels: added".into(), job("x", json!({})), labelled, None);
    let template = |metadata: Value| job("x", json!({ "podTemplate": { "metadata": metadata } }));
    let (old, new) = (template(json!({ "labels": { "a": "b" } })), template(json!({ "labels": { "a": "c" } })));
    push("podTemplate.metadata: changed".into(), old, new, Some("podTemplate"));
    changes
}

/// A job with the minimal spec and these fields.
fn job(name: &str, fields: Value) -> Value {
    let mut spec = json!({ "model": "resnet50", "dataset": "cifar10", "numWorkers": 2 });
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    json!({ "apiVersion": "ml.example.com/v1", "kind": "TrainingJob", "metadata": { "name": name }, "spec": spec })
}

// ---- rights

/// A group with a resource, the name that it is limited to, and a verb.
type Right = (String, String, String);

/// The rights in the tables of docs/install.md. The first are those in all namespaces where the operator works, the
/// second are those of them that the install for one namespace lacks, and the third are those in its own namespace.
fn documented() -> [BTreeSet<Right>; 3] {
    let page = read("docs/install.md");
    let (_, section) = page.split_once("**What the operator may do**").unwrap();
    let (section, _) = section.split_once("\n- **").unwrap();
    let mut rights: [BTreeSet<Right>; 3] = Default::default();
    let (mut group, mut is_own) = (String::new(), false);
    for line in section.lines().map(str::trim) {
        is_own |= line.starts_with("In its own namespace");
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, groups, resources, verbs, ..] = cells[..] else { continue };
        if groups == "group" || groups.starts_with("---") {
            continue;
        }
        if !groups.is_empty() {
            group = groups.replace('`', "");
        }
        let (resources, name) = resources.split_once(" of the name ").unwrap_or((resources, ""));
        let is_wide = resources.ends_with('¹');
        for resource in resources.trim_end_matches(" ¹").split(", ").map(|resource| resource.trim_matches('`')) {
            for group in group.split(", ") {
                // As `kubectl auth can-i` names it.
                let (base, sub) =
                    resource.split_once('/').map_or((resource, String::new()), |(base, sub)| (base, format!("/{sub}")));
                let dot = if group == "core" { String::new() } else { format!(".{group}") };
                for verb in verbs.split(", ") {
                    let right = (format!("{base}{dot}{sub}"), name.trim_matches('`').to_owned(), verb.to_owned());
                    if is_wide {
                        rights[1].insert(right.clone());
                    }
                    rights[if is_own { 2 } else { 0 }].insert(right);
                }
            }
        }
    }
    assert!(rights.iter().all(|rights| !rights.is_empty()), "{rights:?}");
    rights
}

/// The rights of a service account in a namespace, beyond those of every service account.
fn rights_of(account: &str, namespace: &str) -> BTreeSet<Right> {
    let user = format!("--as=system:serviceaccount:{account}");
    let listed = cluster().kubectl(&["auth", "can-i", "--list", "--no-headers", &user, "--namespace", namespace]);
    let mut rights = BTreeSet::new();
    for line in listed.lines().filter(|line| !line.starts_with(' ')) {
        let cells: Vec<&str> = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        let [resource, _, names, verbs] = cells[..] else { panic!("{line:?} of\n{listed}") };
        let words = |cell: &str| cell.trim_matches(['[', ']']).split(' ').map(str::to_owned).collect::<Vec<_>>();
        for (name, verb) in
            words(names).into_iter().flat_map(|name| words(verbs).into_iter().map(move |verb| (name.clone(), verb)))
        {
            rights.insert((resource.to_owned(), name, verb));
        }
    }
    rights
}

/// By the API server's answer, the accounts of both installs may do what the tables say, and nothing else.
#[tokio::test]
async fn accounts_have_exactly_the_documented_rights() {
    server().await;
    let cluster = cluster();
    for namespace in ["trainingjob-system", "ml-training-operator", "ml-training"] {
        let _ = cluster.try_kubectl(&["create", "namespace", namespace], "");
    }
    for install in ["deploy/cluster", "deploy/namespaced"] {
        let all = cluster.kubectl(&["kustomize", root().join(install).to_str().unwrap()]);
        let of_rights = ["Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding", "ServiceAccount"];
        let is_right =
            |object: &&str| of_rights.iter().any(|kind| object.lines().any(|line| line == format!("kind: {kind}")));
        let rights: Vec<&str> = all.split("\n---\n").filter(is_right).collect();
        cluster.kubectl_with(&["apply", "-f", "-"], &rights.join("\n---\n"));
    }
    let [everywhere, wide, own] = documented();
    let all = |parts: &[&BTreeSet<Right>]| parts.iter().flat_map(|part| (*part).clone()).collect::<BTreeSet<Right>>();
    let team = everywhere.difference(&wide).cloned().collect();
    for (account, namespace, documented) in [
        ("trainingjob-system:trainingjob-operator", "trainingjob-system", all(&[&everywhere, &own])),
        ("trainingjob-system:trainingjob-operator", "ml-training", everywhere.clone()),
        ("trainingjob-system:trainingjob-operator", "kube-system", everywhere),
        ("ml-training-operator:trainingjob-operator", "ml-training-operator", own),
        ("ml-training-operator:trainingjob-operator", "ml-training", team),
        ("ml-training-operator:trainingjob-operator", "kube-system", BTreeSet::new()),
        // The account of workers, TensorBoard and upkeep, where the spec names none.
        ("ml-training:default", "ml-training", BTreeSet::new()),
    ] {
        let mut more = BTreeSet::new();
        until("the API server to know all roles", SOON, || {
            let rights = rights_of(account, namespace);
            let lacks: Vec<_> = documented.difference(&rights).collect();
            more = rights.difference(&documented).cloned().collect();
            lacks.is_empty().then_some(())
        });
        let of_everybody = rights_of("default:nobody", namespace);
        let more: Vec<_> = more.difference(&of_everybody).collect();
        assert!(more.is_empty(), "{account} in {namespace} may also: {more:?}");
    }
}

// ---- how

/// Messages of the CEL rules that refuse the object, after its defaults are applied.
fn offline(object: &Value, old: Option<&Value>) -> Vec<String> {
    static SCHEMA: OnceLock<(Value, CompiledSchema)> = OnceLock::new();
    let (schema, rules) = SCHEMA.get_or_init(|| {
        let crd = serde_json::to_value(api::crd()).unwrap();
        (schema(&crd).clone(), compile_schema(schema(&crd)))
    });
    let old = old.map(|old| apply_defaults(schema, old));
    let refused = validate_compiled(rules, &apply_defaults(schema, object), old.as_ref());
    refused.err().map(|errors| errors.iter().map(|error| error.message.clone()).collect()).unwrap_or_default()
}

/// The CRD from the time when all defaults stood in it.
fn old_crd() -> Value {
    parse(&root().join("tests/fixtures/crd-with-defaults.yaml"))
}

fn schema(crd: &Value) -> &Value {
    &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
}

fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| Cluster::control("api"))
}

/// The API server of these tests, with the CRD as checked in, the namespaces of the examples, and jobs from before.
async fn server() -> Client {
    static READY: OnceCell<()> = OnceCell::const_new();
    let client = cluster().client().await;
    READY
        .get_or_init(|| async {
            cluster().kubectl(&["create", "namespace", UPGRADED]);
            upgrade(cluster(), &client).await;
            let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
            for file in ["trainingjobs", "clustertrainingruntimes", "trainingruntimes", "tuningjobs"] {
                let crd = parse(&root().join(format!("crds/{file}.yaml")));
                let name = crd["metadata"]["name"].as_str().unwrap();
                crds.patch(name, &PatchParams::apply("test").force(), &Patch::Apply(&crd)).await.unwrap();
                let established = await_condition(crds.clone(), name, conditions::is_crd_established());
                tokio::time::timeout(SOON, established).await.unwrap().unwrap();
            }
            for name in ["api", "ml-training"] {
                let namespace = Namespace {
                    metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
                    ..Namespace::default()
                };
                let made = Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await;
                assert!(made.as_ref().map_or_else(|error| error.to_string().contains("exists"), |_| true), "{made:?}");
            }
            // A new kind is served a moment after it is established.
            let served = async {
                while create(&client, &job("probe", json!({})), true).await.is_err() {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                let url = format!("/apis/ml.example.com/v1/{}", RuntimeKind::ClusterTrainingRuntime.plural());
                while send(&client, "GET", &url, &Value::Null).await.is_err() {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            };
            tokio::time::timeout(SOON, served).await.expect("TrainingJobs are served");
        })
        .await;
    client
}

fn url(namespace: &str) -> String {
    format!("/apis/ml.example.com/v1/namespaces/{namespace}/trainingjobs")
}

/// Creates as `kubectl create --validate=strict` does. The error is what kubectl prints.
async fn create(client: &Client, object: &Value, dry_run: bool) -> Result<Value, String> {
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or("api");
    let dry_run = if dry_run { "&dryRun=All" } else { "" };
    send(client, "POST", &format!("{}?fieldValidation=Strict{dry_run}", url(namespace)), object).await
}

/// Makes the API server try the creation of an object of this kind.
async fn created_by(client: &Client, plural: &str, object: &Value) -> Result<Value, String> {
    let url = url("api").replace("/trainingjobs", &format!("/{plural}"));
    send(client, "POST", &format!("{url}?fieldValidation=Strict&dryRun=All"), object).await
}

async fn send(client: &Client, method: &str, url: &str, object: &Value) -> Result<Value, String> {
    let body = if object.is_null() { Vec::new() } else { serde_json::to_vec(object).unwrap() };
    let request = http::Request::builder().method(method).uri(url).header("content-type", "application/json");
    match client.request(request.body(body).unwrap()).await {
        Ok(answer) => Ok(answer),
        Err(kube::Error::Api(status)) => Err(status.message.clone()),
        Err(other) => panic!("{method} {url}: {other}"),
    }
}

struct Bad {
    name: String,
    /// What its first line says.
    refused: String,
    object: Value,
}

fn bad_examples() -> impl Iterator<Item = Bad> {
    yaml_files("examples/bad").into_iter().map(|path| {
        let text = fs::read_to_string(&path).unwrap();
        let refused = text.lines().next().and_then(|line| line.strip_prefix("# refused: "));
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let refused = refused.unwrap_or_else(|| panic!("{name}: the first line is not `# refused: ...`")).to_owned();
        Bad { name, refused, object: parse(&path) }
    })
}

fn good_examples() -> impl Iterator<Item = (String, Value)> {
    let frameworks = fs::read_dir(root().join("examples/frameworks")).unwrap();
    let folders = frameworks.map(|folder| folder.unwrap().path()).chain([root().join("examples/hello")]);
    let frameworks = folders.map(|folder| folder.join("job.yaml"));
    let files = yaml_files("examples").into_iter().chain(yaml_files("examples/documents")).chain(frameworks);
    files.map(|path| (path.display().to_string(), parse(&path)))
}

fn yaml_files(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|end| end == "yaml")).collect();
    files.sort();
    assert!(!files.is_empty(), "{folder} holds no YAML");
    files
}

fn parse(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap();
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn made(flags: &[&str]) -> String {
    let made = Command::new(testkit::binary("crdgen")).args(flags).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    String::from_utf8(made.stdout).unwrap()
}
