//! The Helm chart renders the objects of `kubectl kustomize`, one by one, and its values are checked.

use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;
use testkit::root;

const CHART: &str = "charts/trainingjob-operator";
const OWN: &str = "trainingjob-system";

/// helm, and kubectl of the test clusters. None where they are missing, with a line that says so.
fn programs() -> Option<(String, String)> {
    let found = ["TRAININGJOB_TEST_HELM", "TRAININGJOB_TEST_TOOLS"].map(|name| (name, std::env::var(name).ok()));
    match found {
        [(_, Some(helm)), (_, Some(tools))] => Some((helm, format!("{tools}/kubectl"))),
        found => {
            let missing = found.iter().find(|(_, value)| value.is_none()).map_or("", |(name, _)| name);
            testkit::skipped(&format!("{missing} is not set: `tests/run files chart` gets helm and kubectl"));
            None
        }
    }
}

fn run(program: &str, args: &[&str]) -> Result<String, String> {
    let done = Command::new(program).args(args).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    if done.status.success() {
        Ok(String::from_utf8(done.stdout).unwrap())
    } else {
        Err(String::from_utf8_lossy(&done.stderr).into_owned())
    }
}

/// The output of `helm template` in a namespace with these values.
fn template(helm: &str, namespace: &str, values: &[&str]) -> Result<String, String> {
    let chart = root(CHART);
    let mut args = vec!["template", "any-name", &chart, "--namespace", namespace];
    args.extend(values.iter().flat_map(|value| ["--set", value]));
    run(helm, &args)
}

/// The objects by kind, namespace and name.
fn objects(text: &str) -> BTreeMap<String, Value> {
    let all: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
    let all: Vec<_> = all.into_iter().filter(|object| !object.is_null()).collect();
    let count = all.len();
    let key = |object: &Value| {
        let data = &object["metadata"];
        let namespace = data["namespace"].as_str().unwrap_or_default();
        format!("{} {namespace}/{}", object["kind"].as_str().unwrap(), data["name"].as_str().unwrap())
    };
    let found: BTreeMap<_, _> = all.into_iter().map(|object| (key(&object), object)).collect();
    assert_eq!(found.len(), count, "an object is there twice");
    found
}

fn equal(chart: &BTreeMap<String, Value>, kustomize: &BTreeMap<String, Value>) {
    assert_eq!(chart.keys().collect::<Vec<_>>(), kustomize.keys().collect::<Vec<_>>());
    for (name, object) in chart {
        assert_eq!(difference(object, &kustomize[name]), None, "{name}");
    }
}

/// Where two values first differ, and how. A CRD has thousands of lines.
fn difference(one: &Value, other: &Value) -> Option<String> {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            let keys: BTreeSet<_> = one.keys().chain(other.keys()).collect();
            let null = Value::Null;
            let differ = |key: &&String| difference(one.get(*key).unwrap_or(&null), other.get(*key).unwrap_or(&null));
            keys.iter().find_map(|key| Some(format!("{key}.{}", differ(key)?)))
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            one.iter().zip(other).enumerate().find_map(|(i, (a, b))| Some(format!("{i}.{}", difference(a, b)?)))
        }
        // kustomize writes 604800 for 604800.0.
        (Value::Number(a), Value::Number(b)) if a.as_f64() == b.as_f64() => None,
        _ => (one != other).then(|| format!(" {one} is not {other}")),
    }
}

/// The chart's CRDs have one more annotation, which keeps them when the release is uninstalled.
#[test]
fn chart_renders_the_same_objects_as_kustomize() {
    let Some((helm, kubectl)) = programs() else { return };
    let kustomize = |folder: &str| objects(&run(&kubectl, &["kustomize", &root(folder)]).unwrap());
    let chart = |namespace: &str, values: &[&str]| objects(&template(&helm, namespace, values).unwrap());

    let mut cluster = chart(OWN, &[]);
    let mut kept = 0;
    for object in cluster.values_mut().filter(|object| object["kind"] == "CustomResourceDefinition") {
        let data = object["metadata"].as_object_mut().unwrap();
        assert_eq!(data.remove("annotations"), Some(json!({ "helm.sh/resource-policy": "keep" })));
        kept += 1;
    }
    let is_crd = |file: &fs::DirEntry| file.file_name() != "kustomization.yaml";
    assert_eq!(kept, fs::read_dir(root("crds")).unwrap().filter(|file| is_crd(file.as_ref().unwrap())).count());
    equal(&cluster, &kustomize("deploy"));
    equal(&chart(OWN, &["crds.keep=false"]), &cluster);

    let of_one = ["scope=namespace", "watchNamespace=ml-training", "crds.install=false", "userRoles.install=false"];
    equal(&chart("ml-training-operator", &of_one), &kustomize("deploy/namespaced"));
    let admin = kustomize("deploy/admin");
    assert!(!admin.is_empty() && admin.keys().all(|name| cluster.contains_key(name)));

    let dev = ["image.repository=localhost/trainingjob-operator", "image.tag=dev", "image.pullPolicy=Never"];
    equal(&chart(OWN, &[&dev[..], &["crds.keep=false"]].concat()), &kustomize("deploy/dev"));

    let mut more = chart(OWN, &["monitoring.enabled=true", "crds.keep=false"]);
    more.retain(|name, _| !cluster.contains_key(name));
    equal(&more, &kustomize("deploy/monitoring"));
}

/// docs/install.md, "Quick starts": a reference to a repository, here the one of this checkout.
#[test]
fn remote_kustomize_reference_needs_no_checkout() {
    let Some((_, kubectl)) = programs() else { return };
    let commit = run("git", &["-C", &root(""), "rev-parse", "HEAD"]).unwrap();
    let folder = testkit::scratch().join("remote-reference");
    fs::create_dir_all(&folder).unwrap();
    let page = fs::read_to_string(root("docs/install.md")).unwrap();
    let (_, shown) = page.split_once("# kustomization.yaml\nresources:\n").expect("docs/install.md shows an overlay");
    let shown = format!("resources:\n{}", shown.split("```").next().unwrap());
    let line = shown.lines().find(|line| line.contains("?ref=")).unwrap();
    let local = format!("  - file://{}//deploy?ref={}", root("").trim_end_matches('/'), commit.trim());
    fs::write(folder.join("kustomization.yaml"), shown.replace(line, &local)).unwrap();
    let found = objects(&run(&kubectl, &["kustomize", folder.to_str().unwrap()]).unwrap());
    let deployment = &found[&format!("Deployment {OWN}/trainingjob-operator")];
    let image = &deployment["spec"]["template"]["spec"]["containers"][0]["image"];
    assert_eq!(image, &json!("registry.example.com/ml/trainingjob-operator/operator:0.2.0"));
    assert!(found.keys().any(|name| name.starts_with("CustomResourceDefinition")));
}

#[test]
fn chart_values_reach_the_objects() {
    let Some((helm, _)) = programs() else { return };
    let digest = format!("sha256:{}", "0a".repeat(32));
    let image = format!("image.digest={digest}");
    let values = [
        "image.repository=registry.example.com/ml/operator",
        &image,
        "imagePullSecrets[0].name=pull",
        "replicas=1",
        "extraArgs[0]=--concurrency=8",
        "extraEnv[0].name=LOG_FORMAT",
        "extraEnv[0].value=json",
        "resources.limits.memory=1Gi",
        "nodeSelector.pool=system",
        "tolerations[0].operator=Exists",
        "priorityClassName=system-cluster-critical",
        "podAnnotations.a=b",
        "podLabels.c=d",
        "affinity.nodeAffinity.x=y",
        "networkPolicy.apiServerPorts={8443}",
        "podDisruptionBudget.enabled=false",
        "flowControl.enabled=false",
        "crds.install=false",
        "userRoles.install=false",
    ];
    let found = objects(&template(&helm, OWN, &values).unwrap());
    let deployment = &found[&format!("Deployment {OWN}/trainingjob-operator")];
    assert_eq!(deployment["spec"]["replicas"], 1);
    let pod = &deployment["spec"]["template"];
    assert_eq!(pod["metadata"]["annotations"]["a"], "b");
    assert_eq!(pod["metadata"]["labels"]["c"], "d");
    let (spec, container) = (&pod["spec"], &pod["spec"]["containers"][0]);
    assert_eq!(container["image"], format!("registry.example.com/ml/operator@{digest}"));
    assert_eq!(spec["imagePullSecrets"], json!([{ "name": "pull" }]));
    assert_eq!(container["args"], json!(["--concurrency=8"]));
    assert!(container["env"].as_array().unwrap().contains(&json!({ "name": "LOG_FORMAT", "value": "json" })));
    let resources = json!({ "requests": { "cpu": "100m", "memory": "192Mi" }, "limits": { "memory": "1Gi" } });
    assert_eq!(container["resources"], resources);
    assert_eq!(spec["nodeSelector"], json!({ "pool": "system" }));
    assert_eq!(spec["tolerations"], json!([{ "operator": "Exists" }]));
    assert_eq!(spec["priorityClassName"], "system-cluster-critical");
    assert_eq!(spec["affinity"], json!({ "nodeAffinity": { "x": "y" } }));
    let policy = &found[&format!("NetworkPolicy {OWN}/trainingjob-operator")]["spec"];
    assert_eq!(policy["egress"][0]["ports"], json!([{ "protocol": "TCP", "port": 8443 }]));
    let left = [
        "CustomResourceDefinition",
        "PodDisruptionBudget",
        "ClusterRole /trainingjobs-edit",
        "FlowSchema",
        "PriorityLevel",
    ];
    assert!(!found.keys().any(|name| left.iter().any(|left| name.starts_with(left))), "{:?}", found.keys());
}

/// kustomize leaves this reference alone, so nothing else makes it follow the release.
#[test]
fn flow_schema_of_the_chart_names_the_account_of_the_release() {
    let Some((helm, _)) = programs() else { return };
    let found = objects(&template(&helm, "elsewhere", &[]).unwrap());
    let binding = &found["ClusterRoleBinding /trainingjob-operator"]["subjects"][0];
    let subject = &found["FlowSchema /trainingjob-operator"]["spec"]["rules"][0]["subjects"][0];
    let account = json!({ "name": "trainingjob-operator", "namespace": "elsewhere" });
    assert_eq!(subject["serviceAccount"], account);
    assert_eq!((&binding["name"], &binding["namespace"]), (&account["name"], &account["namespace"]));
}

/// Helm refuses values that the schema does not have, and contradictory ones.
#[test]
fn invalid_chart_values_are_refused() {
    let Some((helm, _)) = programs() else { return };
    for (value, said) in [
        ("replica=3", "replica"),
        ("image.digest=latest", "digest"),
        ("scope=all", "scope"),
        ("replicas=two", "replicas"),
        ("networkPolicy.apiServerPorts={70000}", "apiServerPorts"),
        ("scope=namespace", "set watchNamespace to the namespace of the jobs"),
        ("watchNamespace=team-a", "set scope=namespace"),
    ] {
        let refused = template(&helm, OWN, &[value]).expect_err(value);
        assert!(refused.contains(said), "{value}: {refused}");
    }
    let own = format!("watchNamespace={OWN}");
    let refused = template(&helm, OWN, &["scope=namespace", &own]).expect_err("its own namespace");
    assert!(refused.contains("must not be the operator's own namespace"), "{refused}");
    let linted = run(&helm, &["lint", "--strict", &root(CHART)]);
    assert!(linted.is_ok(), "{linted:?}");
}

#[test]
fn chart_matches_the_release_version_and_values_schema() {
    let read = |path: &str| fs::read_to_string(root(path)).unwrap();
    let chart: Value = serde_saphyr::from_str(&read(&format!("{CHART}/Chart.yaml"))).unwrap();
    assert_eq!(chart["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
    assert!(read("deploy/base/kustomization.yaml").contains(&format!("newTag: {}\n", env!("CARGO_PKG_VERSION"))));
    let values: Value = serde_saphyr::from_str(&read(&format!("{CHART}/values.yaml"))).unwrap();
    let schema: Value = serde_json::from_str(&read(&format!("{CHART}/values.schema.json"))).unwrap();
    let names = |object: &Value| object.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let mut known = names(&schema["properties"]);
    known.retain(|name| name != "global"); // Helm's own
    let mut given = names(&values);
    known.sort();
    given.sort();
    assert_eq!(given, known);
    let promised = "Kubernetes 1.34 or newer";
    assert!(read("docs/install.md").contains(promised) && chart["kubeVersion"] == ">=1.34.0-0");
}
