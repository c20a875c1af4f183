//! The walls between the crates, as ARCHITECTURE.md has them.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// In layers: each crate may depend on those before it.
const ORDER: [&str; 22] = [
    "text",
    "address",
    "protocol",
    "failure",
    "gang",
    "checkpoint",
    "store",
    "fetch",
    "publish",
    "search",
    "tuning",
    "exposition",
    "agent",
    "api",
    "crdgen",
    "plan",
    "objects",
    "observe",
    "lifecycle",
    "trials",
    "kubectl-trainingjob",
    "trainingjob-operator",
];
/// The platform of the graph. Dependencies of other platforms may be missing.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";
/// Crates that only tests use.
const FOR_TESTS: [&str; 3] = ["testkit", "fuzz", "trainingjob-fuzz"];
const KUBERNETES: [&str; 4] = ["kube", "kube-core", "kube-client", "k8s-openapi"];
const LINUX: [&str; 4] = ["nix", "procfs", "py-spy", "remoteprocess"];

/// Package -> its dependencies, apart from those that only its tests need.
struct Graph {
    normal: BTreeMap<String, BTreeSet<String>>,
    ours: BTreeSet<String>,
}

impl Graph {
    fn new() -> Self {
        let mut cargo = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));
        cargo.args(["metadata", "--format-version", "1", "--locked", "--offline", "--filter-platform", PLATFORM]);
        let output = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
        let list = |value: &Value| value.as_array().unwrap().clone();
        let packages = list(&metadata["packages"]);
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let names: BTreeMap<String, String> = packages.iter().map(|p| (text(&p["id"]), text(&p["name"]))).collect();
        let is_normal = |dep: &Value| list(&dep["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
        let normal = list(&metadata["resolve"]["nodes"]).into_iter().map(|node| {
            let deps = list(&node["deps"]).into_iter().filter(is_normal);
            (names[&text(&node["id"])].clone(), deps.map(|dep| names[&text(&dep["pkg"])].clone()).collect())
        });
        let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        normal.for_each(|(name, deps): (String, BTreeSet<String>)| all.entry(name).or_default().extend(deps));
        let ours = list(&metadata["workspace_members"]).iter().map(|id| names[&text(id)].clone()).collect();
        Self { normal: all, ours }
    }

    /// All dependencies of a package.
    fn below(&self, package: &str) -> BTreeSet<String> {
        let (mut found, mut open) = (BTreeSet::new(), vec![package.to_owned()]);
        while let Some(name) = open.pop() {
            let deps = self.normal.get(&name).into_iter().flatten();
            open.extend(deps.filter(|dep| found.insert((*dep).clone())).cloned());
        }
        found
    }
}

/// Those of `words` on which a package depends.
fn dependencies_among<'w>(graph: &Graph, package: &str, words: &[&'w str]) -> Vec<&'w str> {
    let below = graph.below(package);
    assert!(below.contains("serde_json"), "{package} is a package: {below:?}");
    words.iter().filter(|word| below.contains(**word)).copied().collect()
}

#[test]
fn crate_dependencies_point_one_way() {
    let graph = Graph::new();
    let known: BTreeSet<String> = ORDER.iter().chain(&FOR_TESTS).map(|name| (*name).to_owned()).collect();
    assert_eq!(graph.ours, known, "a new crate needs its place in this test and in ARCHITECTURE.md");
    for (at, package) in ORDER.iter().enumerate() {
        let wrong: Vec<_> = graph.normal[*package]
            .iter()
            .filter(|dep| graph.ours.contains(*dep) && !ORDER[..at].contains(&dep.as_str()))
            .collect();
        assert!(wrong.is_empty(), "{package} stands on {wrong:?}, which is above it, or for tests alone");
    }
}

#[test]
fn agent_crates_do_not_depend_on_kubernetes() {
    let graph = Graph::new();
    let agent = ORDER.iter().position(|package| *package == "agent").unwrap();
    for package in &ORDER[..=agent] {
        assert_eq!(dependencies_among(&graph, package, &KUBERNETES), [""; 0], "{package}");
    }
    assert_eq!(dependencies_among(&graph, "trainingjob-operator", &KUBERNETES), KUBERNETES);
}

#[test]
fn plugin_does_not_depend_on_linux_crates() {
    let graph = Graph::new();
    assert_eq!(dependencies_among(&graph, "kubectl-trainingjob", &LINUX), [""; 0]);
    assert!(dependencies_among(&graph, "agent", &LINUX).contains(&"py-spy"));
}

#[test]
fn architecture_table_lists_every_crate() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/ARCHITECTURE.md")).unwrap();
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/crates")).unwrap() {
        let name = format!("`crates/{}`", entry.unwrap().file_name().display());
        assert!(page.lines().any(|line| line.starts_with('|') && line.contains(&name)), "{name} is in no table");
    }
}
