//! The documentation: its links lead somewhere, its tables are those of the CRD, and it says what the code does. The
//! examples say what they need, and the repository holds no compiled file.

use api::{Framework, RESERVED_ENV, Reason, crd};
use kubectl_trainingjob::advice::ADVICE;
use serde_json::Value;
use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Folders with pages that are not ours.
const NOT_OURS: [&str; 4] = ["target", "dist", "shared", "node_modules"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every Markdown file of the repository.
fn pages() -> Vec<PathBuf> {
    let (mut pages, mut folders) = (Vec::new(), vec![root().to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap_or_default();
            if entry.file_type().unwrap().is_dir() {
                if !name.starts_with('.') && !NOT_OURS.contains(&name.as_str()) {
                    folders.push(entry.path());
                }
            } else if name.ends_with(".md") {
                pages.push(entry.path());
            }
        }
    }
    pages
}

/// The targets of a page's links, `[text](target)`, outside of code.
fn links(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in lines_of_prose(page) {
        let mut rest = line.as_str();
        while let Some(start) = rest.find("](") {
            rest = &rest[start + 2..];
            let Some(end) = rest.find(')') else { break };
            found.push(rest[..end].to_owned());
        }
    }
    found
}

/// The lines of a page without its blocks of code.
fn outside_code(page: &str) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    page.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    })
}

/// The same without the text between backticks.
fn lines_of_prose(page: &str) -> Vec<String> {
    outside_code(page).map(|line| line.split('`').step_by(2).collect()).collect()
}

/// The anchors of a page's headings, made as GitHub makes them.
fn anchors(page: &str) -> Vec<String> {
    let mut in_code = false;
    page.lines()
        .filter(|line| {
            in_code ^= line.trim_start().starts_with("```");
            !in_code && line.starts_with('#')
        })
        .map(|line| {
            let heading = line.trim_start_matches('#').trim().to_lowercase();
            heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect::<String>().replace(' ', "-")
        })
        .collect()
}

#[test]
fn links_in_the_docs_resolve() {
    let mut broken = Vec::new();
    for path in pages() {
        let page = read(&path);
        for link in links(&page) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            let there = target.exists() && (anchor.is_empty() || anchors(&read(&target)).iter().any(|a| a == anchor));
            if !there {
                broken.push(format!("{}: {link}", path.strip_prefix(root()).unwrap().display()));
            }
        }
    }
    assert!(broken.is_empty(), "these links lead nowhere:\n{}", broken.join("\n"));
}

#[test]
fn table_rows_have_as_many_cells_as_the_header() {
    let mut wrong = Vec::new();
    for path in pages() {
        let page = read(&path);
        let mut head = None;
        for line in outside_code(&page) {
            if !line.starts_with('|') {
                head = None;
                continue;
            }
            // An escaped bar belongs to its cell, within backticks too.
            let bars = line.replace(r"\|", "").matches('|').count();
            if *head.get_or_insert(bars) != bars {
                wrong.push(format!("{}: {line}", path.strip_prefix(root()).unwrap().display()));
            }
        }
    }
    assert!(wrong.is_empty(), "rows with more or fewer cells than the heads of their tables:\n{}", wrong.join("\n"));
}

/// The README says what the project is. Tables of fields and the like are in docs/.
#[test]
fn the_readme_is_short() {
    let lines = read("README.md").lines().count();
    assert!(lines < 200, "README.md has {lines} lines");
}

/// The checks of a change are in `.ci/run`, wherever it runs.
#[test]
fn ci_workflow_runs_only_the_shared_script() {
    let workflow: Value = serde_saphyr::from_str(&read(".github/workflows/ci.yaml")).unwrap();
    let steps = workflow["jobs"]["test"]["steps"].as_array().unwrap();
    let runs: Vec<_> = steps.iter().filter_map(|step| step["run"].as_str()).collect();
    assert!(runs.contains(&".ci/run"), "{runs:?}");
    let prepares = |run: &&str| ["apt-get ", "rustup "].iter().any(|tool| run.starts_with(tool));
    assert!(runs.iter().all(|run| *run == ".ci/run" || prepares(run)), "{runs:?}");
    for form in ["fault", "wish"] {
        let form: Value = serde_saphyr::from_str(&read(format!(".github/ISSUE_TEMPLATE/{form}.yaml"))).unwrap();
        assert!(form["body"].as_array().is_some_and(|body| !body.is_empty()));
    }
}

#[test]
fn variables_and_images_are_documented() {
    let page = read("docs/jobs.md");
    let images = [Framework::Pytorch, Framework::Tensorflow, Framework::Jax].map(api::defaults::image);
    let missing: Vec<&str> =
        images.into_iter().chain(RESERVED_ENV).filter(|name| !page.contains(&format!("`{name}"))).collect();
    assert!(missing.is_empty(), "docs/jobs.md does not tell of {missing:?}");
}

/// docs/operate.md explains the words that the code exposes, so that a reader at night finds them.
#[test]
fn every_metric_is_documented() {
    let (code, page) = (read("src/telemetry/metrics.rs"), read("docs/operate.md"));
    let metrics: Vec<&str> = code.split('"').filter(|text| is_metric(text)).collect();
    assert!(!metrics.is_empty());
    let missing: Vec<_> = metrics.iter().filter(|name| !page.contains(&format!("`{name}"))).collect();
    assert!(missing.is_empty(), "docs/operate.md does not tell of {missing:?}");
}

fn is_metric(text: &str) -> bool {
    text.starts_with("trainingjob_") && text.chars().all(|c| c.is_ascii_lowercase() || c == '_')
}

/// A condition's status, and kinds.
const NOT_REASONS: [&str; 3] = ["True", "PersistentVolumeClaim", "Jobs"];

#[test]
fn every_reason_is_documented() {
    let page = read("docs/operate.md");
    let files = ["crates/lifecycle/src/waiting.rs", "crates/observe/src/events.rs", "crates/gang/src/policy.rs"];
    let files = files.into_iter().chain(["src/controller/apply.rs", "src/controller/status.rs"]);
    let code: Vec<String> = files.map(read).collect();
    let causes = ["failure/src/disruption", "failure/src/ending", "failure/src/evidence", "failure/src/gang"];
    let phases = ["failure/src/memory", "lifecycle/src/gang", "lifecycle/src/start", "lifecycle/src/status"];
    let of = |file| read(format!("crates/{file}.rs"));
    let named: Vec<String> = causes.into_iter().chain(phases).map(of).collect();
    let is_cause = |reason: &&Reason| named.iter().any(|code| code.contains(&format!("Reason::{reason:?}")));
    let reasons = code.iter().flat_map(|code| reasons(code));
    let reasons: Vec<&str> = reasons.chain(Reason::ALL.iter().filter(is_cause).map(Reason::as_str)).collect();
    assert!(reasons.contains(&"OOMKilled"), "{reasons:?}");
    let missing: Vec<_> = reasons.iter().filter(|reason| !page.contains(&format!("`{reason}`"))).collect();
    assert!(missing.is_empty(), "docs/operate.md does not tell of {missing:?}");
}

/// Words of Kubernetes and of other programs that the documentation names and the code does not.
const NOT_IN_THE_CODE: [&str; 2] = ["ReadOnlyMany", "RestartJob"];

#[test]
fn every_documented_reason_exists() {
    let code = code();
    let known: HashSet<&str> = code.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    let mut wrong = Vec::new();
    for path in pages() {
        for word in camel_case(&read(&path)) {
            // `NanLoss` may be a name within the code, but people look for `NaNLoss`.
            let meant = ADVICE.iter().map(|(reason, _)| *reason).find(|reason| reason.eq_ignore_ascii_case(&word));
            let exists = known.contains(word.as_str()) || NOT_IN_THE_CODE.contains(&word.as_str());
            if meant.map_or(!exists, |reason| reason != word) {
                wrong.push(format!("{}: {word}", path.strip_prefix(root()).unwrap().display()));
            }
        }
    }
    assert!(wrong.is_empty(), "nothing in the code has these names:\n{}", wrong.join("\n"));
}

#[test]
fn camel_case_names_are_found_between_backticks() {
    let page = "`NanLoss` and NoLoss, `spec.numWorkers`, `nan`, `NCCL`, `A b`, a `Job`\n```\n`InCode`\n```\n`Last`";
    assert_eq!(camel_case(page), ["NanLoss", "Job", "Last"]);
}

/// The single CamelCase words that stand between backticks in the prose of a page.
fn camel_case(page: &str) -> Vec<String> {
    let mut in_code = false;
    let prose = page.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    });
    let quoted = prose.flat_map(|line| line.split('`').skip(1).step_by(2));
    quoted.filter(|word| is_camel_case(word)).map(str::to_owned).collect()
}

fn is_camel_case(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_uppercase())
        && word.chars().all(|c| c.is_ascii_alphabetic())
        && word.contains(|c: char| c.is_ascii_lowercase())
}

/// The code that is compiled, and the files that are applied.
fn code() -> String {
    let (mut code, mut folders) =
        (String::new(), ["src", "crates", "crds", "deploy"].map(|folder| root().join(folder)).to_vec());
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs" || end == "yaml") {
                code += &read(&path);
            }
        }
    }
    code
}

/// The string literals of one CamelCase word in the code before its tests, without those of Kubernetes itself.
fn reasons(code: &str) -> Vec<&str> {
    let code = code.split("#[cfg(test)]").next().unwrap_or_default();
    let is_reason = |text: &&str| text.len() > 3 && is_camel_case(text);
    code.split('"').skip(1).step_by(2).filter(is_reason).filter(|text| !NOT_REASONS.contains(text)).collect()
}

#[test]
fn every_event_is_documented() {
    let (events, page) = (events_in_the_code(), read("docs/operate.md"));
    let (_, table) = page.split_once("\n## Events\n").expect("docs/operate.md has a section Events");
    let table = table.split("\n## ").next().unwrap();
    assert!(events.contains("RestartRequested") && events.contains("RuntimeTaken"), "{events:?}");
    let missing: Vec<_> = events.iter().filter(|event| !table.contains(&format!("`{event}`"))).collect();
    assert!(missing.is_empty(), "the table of events in docs/operate.md lacks {missing:?}");
}

/// The first quoted string wherever an event is made, in the code before its tests.
fn events_in_the_code() -> BTreeSet<String> {
    let folders = ["crates/lifecycle/src", "src/controller"].map(|folder| fs::read_dir(root().join(folder)).unwrap());
    let files = folders.into_iter().flatten().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|end| end == "rs") && !path.ends_with("tests.rs"));
    // All names in this file are those of Events.
    let of_jobs = read("crates/lifecycle/src/events.rs");
    let mut found: BTreeSet<String> = reasons(&of_jobs).into_iter().map(str::to_owned).collect();
    for code in files.map(read) {
        let code = code.split("#[cfg(test)]").next().unwrap_or_default();
        for mark in [".event(", "Event { warning: "] {
            for rest in code.split(mark).skip(1) {
                let statement = rest.split(';').next().unwrap_or_default();
                let name = statement.split('"').nth(1).filter(|name| is_camel_case(name));
                found.extend(name.map(str::to_owned));
            }
        }
    }
    found
}

/// Words in the lists of what is missing, and the fields and kinds of the API that would make them false.
const MISSING: [(&str, &str); 8] = [
    ("elastic", "elastic"),
    ("hang", "failurePolicy.hang"),
    ("hyperparameter", "TuningJob"),
    ("kinds of worker", "roles"),
    ("lost pod", "failurePolicy.nodeLostSeconds"),
    ("parameter server", "roles"),
    ("publishing results", "output"),
    ("tuning", "TuningJob"),
];

/// The README once denied six features that users could write into a job.
#[test]
fn existing_features_are_not_listed_as_missing() {
    let readme = read("README.md");
    let lists =
        readme.split("\nNot ").skip(1).filter(|text| text.starts_with("there yet:") || text.starts_with("planned:"));
    let lists: Vec<String> = lists.map(|text| text.split("\n\n").next().unwrap_or_default().to_lowercase()).collect();
    assert!(!lists.is_empty(), "README.md says what is missing");
    let missing = lists.join(" ").split_whitespace().collect::<Vec<_>>().join(" ");
    let crd = serde_json::to_value(crd()).unwrap();
    let spec = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let has_field = |path: &str| path.split('.').fold(spec, |schema, step| &schema["properties"][step]).is_object();
    let kinds: String = ["trainingjobs", "tuningjobs"].iter().map(|name| read(format!("crds/{name}.yaml"))).collect();
    let is_there = |name: &str| has_field(name) || kinds.contains(&format!("\n    kind: {name}\n"));
    assert!(is_there("failurePolicy.hang") && !is_there("failurePolicy.none"), "fields are found by their paths");
    assert!(is_there("TuningJob") && !is_there("Tuning"), "kinds are found by their names");
    let wrong: Vec<_> = MISSING.iter().filter(|(words, what)| missing.contains(words) && is_there(what)).collect();
    assert!(wrong.is_empty(), "README.md calls missing what is in the API: {wrong:?}");
}

#[test]
fn examples_state_their_prerequisites() {
    let files = fs::read_dir(root().join("examples")).unwrap().map(|entry| entry.unwrap().path());
    for path in files.filter(|path| path.extension().is_some_and(|end| end == "yaml")) {
        let text = read(&path);
        let top: Vec<&str> = text.lines().take_while(|line| line.starts_with('#')).collect();
        let says =
            ["# Runs as it is", "# Replace: "].map(|start| top.iter().filter(|line| line.starts_with(start)).count());
        let name = path.file_name().unwrap_or_default();
        assert_eq!(says.iter().sum::<usize>(), 1, "{name:?} does not say whether it runs as it is or what to replace");
        let has_no_image = text.lines().any(|line| line.trim_start().starts_with("image:") && line.contains("example"));
        assert!(!has_no_image || says == [0, 1], "{name:?} can't run: its image does not exist");
    }
}

/// A compiled file is out of date as soon as its source changes.
#[test]
fn git_tracks_no_compiled_file() {
    let list = Command::new("git").args(["-c", "safe.directory=*", "ls-files", "-z"]).current_dir(root()).output();
    let list = list.expect("git can be run");
    assert!(list.status.success(), "{}", String::from_utf8_lossy(&list.stderr));
    let list = String::from_utf8(list.stdout).unwrap();
    let files: Vec<&str> = list.split_terminator('\0').collect();
    assert!(files.contains(&"tests/files/docs.rs"), "{} files", files.len());
    let by_name = |file: &str| {
        let ends = [".pyc", ".pyo", ".o", ".a", ".so", ".rlib", ".class", ".exe"];
        file.contains("__pycache__/") || ends.iter().any(|end| file.ends_with(end))
    };
    let is_program = |file: &str| fs::read(root().join(file)).is_ok_and(|content| content.starts_with(b"\x7fELF"));
    let compiled: Vec<_> = files.into_iter().filter(|file| by_name(file) || is_program(file)).collect();
    assert!(compiled.is_empty(), "git tracks {compiled:?}");
}

/// A rule that no test checks is a wish.
#[test]
fn every_checkpoint_rule_names_its_tests() {
    let ids = rules_with_tests("docs/checkpoints.md");
    assert!(ids.len() >= 21, "{ids:?}");
    let keep = read("crates/checkpoint/src/keep.rs");
    let used: BTreeSet<&str> = keep.split('"').skip(1).step_by(2).filter(|text| is_rule_of_keeping(text)).collect();
    let missing: Vec<_> = used.iter().filter(|id| !ids.iter().any(|known| known == *id)).collect();
    assert!(missing.is_empty(), "keep.rs decides by rules that docs/checkpoints.md has not: {missing:?}");
}

#[test]
fn every_api_promise_names_its_tests() {
    let ids = rules_with_tests("docs/api.md");
    assert!(ids.len() >= 8, "{ids:?}");
}

/// The ids of the rows of a page that say `tests: `. Each named test exists.
fn rules_with_tests(page: &str) -> Vec<String> {
    let page = read(page);
    let rules = page.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        let id = cells.next()?;
        let is_id = id.len() > 1 && id.starts_with(char::is_uppercase) && id[1..].bytes().all(|b| b.is_ascii_digit());
        is_id.then(|| (id.to_owned(), line.to_owned()))
    });
    let code = all_rust();
    let mut ids = Vec::new();
    for (id, line) in rules {
        let tests = line.split_once("tests: ").unwrap_or_else(|| panic!("rule {id} names no tests")).1;
        for test in tests.trim_end_matches([' ', '|']).split(", ") {
            let name = test.rsplit("::").next().unwrap_or(test);
            assert!(code.contains(&format!("fn {name}(")), "rule {id} names the test {test}, which is not there");
        }
        ids.push(id);
    }
    ids
}

/// The installer of a version finds its image, its manifests and its changes.
#[test]
fn same_version_is_used_everywhere() {
    let version = env!("CARGO_PKG_VERSION");
    let log = read("CHANGELOG.md");
    let released = |line: &str| line.strip_prefix("## [")?.split_once(']').map(|(version, _)| version.to_owned());
    let newest = log.lines().filter_map(released).find(|version| version != "Unreleased");
    assert_eq!(newest.as_deref(), Some(version), "the newest version of CHANGELOG.md");
    let tag = |line: &str| {
        let (_, tag) = line.split_once("newTag: ").or_else(|| line.split_once("trainingjob-operator:"))?;
        let tag = tag.split(|c: char| !c.is_ascii_digit() && c != '.').next()?;
        (tag.split('.').count() == 3).then(|| tag.to_owned())
    };
    for page in ["deploy/base/kustomization.yaml", "docs/install.md"] {
        let tags: Vec<_> = read(page).lines().filter_map(tag).collect();
        assert!(!tags.is_empty() && tags.iter().all(|tag| tag == version), "{page}: {tags:?}");
    }
    assert!(read("README.md").contains(&format!("version {version},")), "README.md");
}

fn is_rule_of_keeping(text: &str) -> bool {
    text.strip_prefix('K').is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
}

/// All Rust sources of the repository.
fn all_rust() -> String {
    let (mut code, mut folders) =
        (String::new(), ["crates", "src", "tests"].map(|folder| root().join(folder)).to_vec());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                code += &read(&path);
            }
        }
    }
    code
}
