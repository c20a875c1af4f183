//! What `deploy/` gives the operator: no more than it needs, and the same in both modes.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use trainingjob_operator::controller;

#[derive(Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
struct Role {
    kind: String,
    rules: Vec<Rule>,
}

#[derive(Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Rule {
    api_groups: Vec<String>,
    resources: Vec<String>,
    #[serde(default)]
    resource_names: Vec<String>,
    verbs: Vec<String>,
}

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The first object of a file, which is its role.
fn role(path: &str) -> Role {
    let text = read(path);
    let first = text.split("\n---\n").next().unwrap();
    serde_saphyr::from_str(first).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn namespaced_role_equals_cluster_role_without_cluster_scoped_rights() {
    let (cluster, namespace) = (role("deploy/cluster/rights.yaml"), role("deploy/namespaced/team/rights.yaml"));
    assert_eq!((cluster.kind.as_str(), namespace.kind.as_str()), ("ClusterRole", "Role"));
    #[expect(clippy::items_after_statements, reason = "beside its only use")]
    const OF_NO_NAMESPACE: [(&str, &str); 4] =
        [("nodes", "list"), ("clustertrainingruntimes", "get"), ("resourceflavors", "get"), ("priorityclasses", "get")];
    let is_wide = |rule: &Rule| rule.resources.iter().any(|is| OF_NO_NAMESPACE.iter().any(|(name, _)| is == name));
    let (wide, others): (Vec<_>, Vec<_>) = cluster.rules.into_iter().partition(is_wide);
    assert_eq!(others, namespace.rules);
    // None of them may be changed.
    let wide: Vec<_> = wide.iter().map(|rule| (rule.resources.concat(), rule.verbs.concat())).collect();
    assert_eq!(wide, OF_NO_NAMESPACE.map(|(resource, verb)| (resource.to_owned(), verb.to_owned())));
}

fn namespace_of(kustomization: &str) -> String {
    let file: Value = serde_saphyr::from_str(&read(kustomization)).unwrap();
    file["namespace"].as_str().unwrap().to_owned()
}

/// A user with edit rights in the operator's namespace has the operator's account.
#[test]
fn docs_and_examples_keep_jobs_out_of_operator_namespace() {
    let own =
        ["deploy/cluster", "deploy/namespaced/operator"].map(|of| namespace_of(&format!("{of}/kustomization.yaml")));
    assert_eq!(own, ["trainingjob-system", "ml-training-operator"]);
    let schema = read("deploy/flowcontrol/flowcontrol.yaml");
    assert!(schema.contains(&format!("            namespace: {}\n", own[0])), "{schema}");
    let watched = namespace_of("deploy/namespaced/team/kustomization.yaml");
    assert!(!own.contains(&watched));
    assert!(read("deploy/namespaced/operator/kustomization.yaml").contains(&format!("value: {watched}\n")));
    let binding = read("deploy/namespaced/team/rights.yaml");
    assert!(binding.ends_with(&format!("    name: trainingjob-operator\n    namespace: {}\n", own[1])), "{binding}");
    for path in files("examples") {
        let text = fs::read_to_string(&path).unwrap();
        assert!(own.iter().all(|own| !text.contains(own.as_str())), "{}", path.display());
    }
    // Commands about jobs name another namespace.
    for page in ["README.md", "docs/install.md", "docs/operate.md", "docs/monitoring.md", "docs/jobs.md", "demo/run"] {
        let text = read(page);
        let of_jobs =
            |line: &&str| line.contains("trainingjob-system") && (line.contains(" tj") || line.contains("examples/"));
        assert_eq!(text.lines().find(of_jobs), None, "{page}");
    }
    assert!(read("src/main.rs").contains(&format!("default_value = \"{}\"", own[0])));
}

/// `kubectl delete -k` deletes what `kubectl apply -k` made, and with a namespace everything in it.
#[test]
fn uninstall_keeps_checkpoints() {
    let mut kinds = BTreeSet::new();
    for path in files("deploy") {
        let text = fs::read_to_string(&path).unwrap();
        for object in text.split("\n---\n") {
            let object: Kind = serde_saphyr::from_str(object).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            let kind = object.kind.unwrap_or_default();
            let takes = ["Namespace", "PersistentVolumeClaim", "PersistentVolume"].contains(&kind.as_str());
            assert!(!takes, "{} takes checkpoints with it: it has a {kind}", path.display());
            kinds.insert(kind);
        }
    }
    assert!(kinds.contains("Deployment") && kinds.contains("ClusterRole"), "{kinds:?}");
}

#[derive(Deserialize)]
struct Kind {
    /// A kustomization needs none.
    kind: Option<String>,
}

/// The YAML below a folder.
fn files(folder: &str) -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)]);
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "yaml") {
                files.push(path);
            }
        }
    }
    files
}

#[test]
fn roles_grant_only_minimal_rights() {
    for path in ["deploy/cluster/rights.yaml", "deploy/base/own-namespace.yaml", "deploy/admin/users.yaml"] {
        for rule in role(path).rules {
            let all = [&rule.api_groups, &rule.resources, &rule.verbs];
            assert!(all.iter().all(|list| !list.iter().any(|item| item.contains('*'))), "{path}: {rule:?}");
            let secrets = rule.resources.iter().any(|resource| resource.starts_with("secrets"));
            let only_makes_them = path != "deploy/admin/users.yaml" && rule.verbs == ["create"];
            let reads_its_own = path == "deploy/base/own-namespace.yaml"
                && rule.verbs == ["get"]
                && rule.resource_names == [controller::OPERATOR_KEY_SECRET];
            assert!(!secrets || only_makes_them || reads_its_own, "{path}: {rule:?}");
            let claims = rule.resources.iter().any(|resource| resource == "persistentvolumeclaims");
            assert!(!(claims && rule.verbs.iter().any(|verb| verb == "delete")), "{path} may delete checkpoints");
        }
    }
}

/// `kubectl scale tj` requests the subresource, which the right to change the job does not include.
#[test]
fn edit_role_includes_the_scale_subresource() {
    let verbs = |people: &str| {
        let label = format!("rbac.authorization.k8s.io/aggregate-to-{people}");
        let roles: Vec<Value> = serde_saphyr::from_multiple(&read("deploy/admin/users.yaml")).unwrap();
        let theirs = roles.into_iter().filter(|role| role["metadata"]["labels"][&label] == "true");
        let rules = theirs.flat_map(|role| serde_json::from_value::<Role>(role).unwrap().rules);
        let scale = rules.filter(|rule| rule.resources.iter().any(|resource| resource == "trainingjobs/scale"));
        scale.flat_map(|rule| rule.verbs).collect::<BTreeSet<_>>()
    };
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(verbs("view"), words(&["get"]));
    assert_eq!(verbs("edit"), words(&["get", "patch", "update"]));
    assert_eq!(verbs("admin"), words(&["get", "patch", "update"]));
}

/// The sizes that docs/install.md promises are enough for the loads that docs/benchmarks.md has measured.
#[test]
fn operator_limits_cover_every_measured_load() {
    let (page, figures) = (read("docs/install.md"), read("docs/benchmarks.md"));
    let (_, section) = page.split_once("\n## Size\n").expect("docs/install.md has a section Size");
    let rows = section.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let cells: Vec<Vec<&str>> = rows.map(|row| row.split('|').map(str::trim).collect()).collect();
    let column = cells[0].iter().position(|title| *title == "memory, MiB").expect("a column of memory");
    let used: Vec<&str> = cells.iter().skip(2).map(|row| row[column]).collect();
    assert!(!used.is_empty());
    for figure in &used {
        let is_measured = figures.split(|c: char| !c.is_ascii_digit() && c != '.').any(|number| number == *figure);
        assert!(is_measured, "docs/benchmarks.md has no figure {figure}");
    }
    let most = used.iter().map(|figure| figure.parse::<f64>().unwrap()).fold(0.0, f64::max);

    let deployment: Value = serde_saphyr::from_str(&read("deploy/base/deployment.yaml")).unwrap();
    let resources = &deployment["spec"]["template"]["spec"]["containers"][0]["resources"];
    for (kind, name) in [("requests", "memory"), ("requests", "cpu"), ("limits", "memory")] {
        let quantity = resources[kind][name].as_str().unwrap();
        assert!(
            section.contains(&format!("`{quantity}`")),
            "docs/install.md does not say {kind} of {name}: {quantity}"
        );
        let mebibytes = quantity.strip_suffix("Mi").and_then(|number| number.parse::<f64>().ok());
        assert!(
            name == "cpu" || mebibytes.is_some_and(|size| size >= most),
            "{kind} {quantity}, and {most} MiB are used"
        );
    }
}

/// The labels are those by which the operator itself selects (`labels::gang_selector`). Pods from before an upgrade
/// have them, too.
#[test]
fn agents_are_selected_by_prefixed_labels() {
    let selector = |path: &str, pointer: &str| -> Value {
        let file: Value = serde_saphyr::from_str(&read(path)).unwrap();
        file.pointer(pointer).unwrap_or_else(|| panic!("{path} has no {pointer}")).clone()
    };
    let wanted = serde_json::json!({
        "matchLabels": { objects::labels::MANAGED_BY: objects::labels::OPERATOR },
        "matchExpressions": [{ "key": objects::labels::UID, "operator": "Exists" }],
    });
    assert_eq!(selector("deploy/monitoring/podmonitor.yaml", "/spec/selector"), wanted);
    assert_eq!(selector("deploy/base/networkpolicy.yaml", "/spec/egress/2/to/0/podSelector"), wanted);
}
