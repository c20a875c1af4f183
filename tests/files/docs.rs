//! The documentation: its links lead somewhere, and its tables are those of the CRD.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use trainingjob_operator::api::{RESERVED_ENV, Reason};
use trainingjob_operator::cli::advice::ADVICE;

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

/// The lines of a page without its blocks of code, and without what stands between backticks in them.
fn lines_of_prose(page: &str) -> Vec<String> {
    let mut in_code = false;
    page.lines()
        .filter(|line| {
            let fence = line.trim_start().starts_with("```");
            in_code ^= fence;
            !in_code && !fence
        })
        .map(|line| line.split('`').step_by(2).collect())
        .collect()
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
fn links_lead_somewhere() {
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

/// The rows of the first table in `text`.
fn table(text: &str) -> Vec<&str> {
    text.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|')).collect()
}

#[test]
fn the_readme_has_every_field() {
    const MARKS: [&str; 2] = ["<!-- fields -->\n", "<!-- /fields -->\n"];
    let (readme, fields) = (read("README.md"), read("docs/fields.md"));
    let (before, rest) = readme.split_once(MARKS[0]).expect("README.md has the mark <!-- fields -->");
    let (_, after) = rest.split_once(MARKS[1]).expect("README.md has the mark <!-- /fields -->");
    let current = format!("{before}{}{}\n{}{after}", MARKS[0], table(&fields).join("\n"), MARKS[1]);
    if std::env::var_os("UPDATE").is_some() {
        fs::write(root().join("README.md"), current).unwrap();
    } else {
        assert!(readme == current, "README.md lacks fields of docs/fields.md: run `UPDATE=1 cargo test --test docs`");
    }
}

#[test]
fn variables_and_images_are_told() {
    let (code, page) = (read("src/plan/mod.rs"), read("docs/jobs.md"));
    let (_, images) = code.split_once("fn default_image").unwrap();
    let images = images.split("\n}\n").next().unwrap().split('"').skip(1).step_by(2);
    let missing: Vec<&str> = images.chain(RESERVED_ENV).filter(|name| !page.contains(&format!("`{name}"))).collect();
    assert!(missing.is_empty(), "docs/jobs.md does not tell of {missing:?}");
}

/// The words that the code gives to the world are told in docs/operate.md, so that who reads one at night finds it.
#[test]
fn every_metric_is_told() {
    let (code, page) = (read("src/telemetry/metrics.rs"), read("docs/operate.md"));
    let metrics: Vec<&str> = code.split('"').filter(|text| is_metric(text)).collect();
    assert!(!metrics.is_empty());
    let missing: Vec<_> = metrics.iter().filter(|name| !page.contains(&format!("`{name}"))).collect();
    assert!(missing.is_empty(), "docs/operate.md does not tell of {missing:?}");
}

fn is_metric(text: &str) -> bool {
    text.starts_with("trainingjob_") && text.chars().all(|c| c.is_ascii_lowercase() || c == '_')
}

/// A condition's status, and a kind.
const NOT_REASONS: [&str; 2] = ["True", "PersistentVolumeClaim"];

#[test]
fn every_reason_is_told() {
    let page = read("docs/operate.md");
    let files = ["lifecycle/checkpoints.rs", "lifecycle/decide.rs", "lifecycle/waiting.rs", "observe/events.rs"];
    let files = files.into_iter().chain(["controller/apply.rs", "controller/status.rs"]);
    let code: Vec<String> = files.map(|file| read(format!("src/{file}"))).collect();
    let causes =
        ["disruption", "ending", "evidence", "gang", "memory"].map(|file| read(format!("src/cause/{file}.rs")));
    let is_cause = |reason: &&Reason| causes.iter().any(|code| code.contains(&format!("Reason::{reason:?}")));
    let reasons = code.iter().flat_map(|code| reasons(code));
    let reasons: Vec<&str> = reasons.chain(Reason::ALL.iter().filter(is_cause).map(Reason::as_str)).collect();
    assert!(reasons.contains(&"OOMKilled"), "{reasons:?}");
    let missing: Vec<_> = reasons.iter().filter(|reason| !page.contains(&format!("`{reason}`"))).collect();
    assert!(missing.is_empty(), "docs/operate.md does not tell of {missing:?}");
}

/// Words of Kubernetes and of other programs that the documentation names and the code does not.
const NOT_IN_THE_CODE: [&str; 2] = ["ReadOnlyMany", "RestartJob"];

#[test]
fn every_reason_that_is_told_exists() {
    let code = code();
    let known: HashSet<&str> = code.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    let mut wrong = Vec::new();
    for path in pages() {
        for word in camel_case(&read(&path)) {
            // `NanLoss` may well be a name within the code, but people look for `NaNLoss`.
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
fn words_between_backticks() {
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
    let is_camel_case = |word: &&str| {
        word.starts_with(|c: char| c.is_ascii_uppercase())
            && word.chars().all(|c| c.is_ascii_alphabetic())
            && word.contains(|c: char| c.is_ascii_lowercase())
    };
    quoted.filter(is_camel_case).map(str::to_owned).collect()
}

/// What is compiled, and what is applied.
fn code() -> String {
    let (mut code, mut folders) = (String::new(), ["src", "crds", "deploy"].map(|folder| root().join(folder)).to_vec());
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

/// The string literals of the code before its tests that are one CamelCase word, but for those of Kubernetes itself.
fn reasons(code: &str) -> Vec<&str> {
    let code = code.split("#[cfg(test)]").next().unwrap_or_default();
    let is_reason = |text: &&str| {
        text.len() > 3
            && text.starts_with(|c: char| c.is_ascii_uppercase())
            && text.chars().all(|c| c.is_ascii_alphabetic())
            && text.contains(|c: char| c.is_ascii_lowercase())
    };
    code.split('"').skip(1).step_by(2).filter(is_reason).filter(|text| !NOT_REASONS.contains(text)).collect()
}
