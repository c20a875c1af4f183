//! Resolves a checkpoint by the name that `checkpoints` lists.

use serde::Deserialize;

/// Checkpoints of one place, as the agent lists them.
#[derive(Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The folder, or the address of a store.
    place: String,
    #[serde(default)]
    checkpoints: Option<Lines>,
    /// Why a store could not be listed.
    #[serde(default)]
    error: Option<String>,
}

#[derive(Deserialize, Clone, Debug, Default, PartialEq, Eq)]
struct Lines {
    checkpoints: Vec<ListedCheckpoint>,
}

#[derive(Deserialize, Clone, Debug, PartialEq, Eq)]
struct ListedCheckpoint {
    path: String,
    verdict: Verdict,
}

/// As the agent writes it.
#[derive(Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(tag = "is")]
enum Verdict {
    Valid,
    Complete {},
    Incomplete { why: String },
    Corrupted { file: String, why: String },
}

impl Verdict {
    fn fault(&self) -> Option<String> {
        match self {
            Self::Valid | Self::Complete {} => None,
            Self::Incomplete { why } => Some(format!("is incomplete: {why}")),
            Self::Corrupted { file, why } if file.is_empty() => Some(format!("is corrupted: {why}")),
            Self::Corrupted { file, why } => Some(format!("is corrupted: {file}: {why}")),
        }
    }
}

/// How many names an error lists.
const SHOWN: usize = 20;

/// Finds the path or the address of the checkpoint with this name. Where each worker has its own folder, a copy in a
/// store takes precedence, because all workers can fetch it.
///
/// # Errors
/// If there is no such checkpoint, or it can't be used. The error lists the usable ones.
pub fn resolve(name: &str, all: &[Listing], shared: bool) -> Result<String, String> {
    let addressed =
        |listing: &Listing, line: &ListedCheckpoint| format!("{}/{}", listing.place.trim_end_matches('/'), line.path);
    let wanted = name.trim_end_matches('/');
    let every = || {
        all.iter()
            .flat_map(|at| at.checkpoints.iter().flat_map(move |it| it.checkpoints.iter().map(move |line| (at, line))))
    };
    let named: Vec<_> = every().filter(|(at, line)| line.path == wanted || addressed(at, line) == wanted).collect();
    let is_store = |at: &Listing| at.place.contains("://");
    let good = || named.iter().filter(|(_, line)| line.verdict.fault().is_none());
    if let Some((at, line)) = good().find(|(at, _)| is_store(at) != shared).or_else(|| good().next()) {
        return Ok(addressed(at, line));
    }
    let mut usable: Vec<&str> = Vec::new();
    for (_, line) in every().filter(|(_, line)| line.verdict.fault().is_none()) {
        if !usable.contains(&line.path.as_str()) {
            usable.push(&line.path);
        }
    }
    let more = usable.len().saturating_sub(SHOWN);
    let names = usable.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    let there = match (usable.is_empty(), more) {
        (true, _) => "it has no usable checkpoint".to_owned(),
        (false, 0) => format!("it has {names}"),
        (false, more) => format!("it has {names} and {more} more"),
    };
    let unread =
        all.iter().filter_map(|at| Some(format!("; {} could not be listed: {}", at.place, at.error.as_ref()?)));
    let unread: String = unread.collect();
    Err(match named.iter().find_map(|(_, line)| line.verdict.fault()) {
        Some(fault) => format!("checkpoint {name} {fault}; {there}{unread}"),
        None => format!("the job has no checkpoint {name}; {there}{unread}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed() -> Vec<Listing> {
        // As the agent prints it.
        let text = r#"[{"place":"/checkpoints","checkpoints":{"checkpoints":[
            {"path":"step-9","step":9,"bytes":1,"verdict":{"is":"Valid"}},
            {"path":"run/step-8","bytes":1,"verdict":{"is":"Complete","why":"no checksum"}},
            {"path":"step-7","bytes":1,"verdict":{"is":"Corrupted","file":"a.pt","why":"is cut short"}},
            {"path":"step-6","bytes":1,"verdict":{"is":"Incomplete","why":"a.pt is missing"}}]}},
            {"place":"s3://b/p","checkpoints":{"checkpoints":[{"path":"step-7","bytes":1,"verdict":{"is":"Valid"}},
            {"path":"step-9","bytes":1,"verdict":{"is":"Valid"}}]}},
            {"place":"s3://away/p","error":"no answer"}]"#;
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn checkpoint_name_resolves_to_listed_path() {
        for (name, shared, expected) in [
            ("step-9", true, "/checkpoints/step-9"),
            ("/checkpoints/step-9", true, "/checkpoints/step-9"),
            ("run/step-8/", true, "/checkpoints/run/step-8"),
            ("step-9", false, "s3://b/p/step-9"),
            ("step-7", true, "s3://b/p/step-7"),
            ("s3://b/p/step-9", true, "s3://b/p/step-9"),
        ] {
            assert_eq!(resolve(name, &listed(), shared).as_deref(), Ok(expected), "{name}");
        }
    }

    #[test]
    fn unusable_checkpoint_name_is_refused_with_available_ones() {
        let away = "s3://away/p could not be listed: no answer";
        for (name, expected) in [
            ("step-5", format!("the job has no checkpoint step-5; it has step-9, run/step-8, step-7; {away}")),
            (
                "step-6",
                format!("checkpoint step-6 is incomplete: a.pt is missing; it has step-9, run/step-8, step-7; {away}"),
            ),
        ] {
            assert_eq!(resolve(name, &listed(), true), Err(expected));
        }
        let none = resolve("a", &[], true).unwrap_err();
        assert_eq!(none, "the job has no checkpoint a; it has no usable checkpoint");
    }
}
