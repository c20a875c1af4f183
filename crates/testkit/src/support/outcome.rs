//! The objects that are left in a namespace, without what differs from run to run, and the invariants of everything
//! that existed.

use super::witness::{Kind, Seen, Space};
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

/// The objects that are left, by kind and name, and how many of each kind have ever existed.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub left: BTreeMap<String, Value>,
    pub ever: BTreeMap<Kind, usize>,
}

impl Outcome {
    pub fn from_space(namespace: &str, space: &Space) -> Self {
        let names = Names::from_space(namespace, space);
        let mut left = BTreeMap::new();
        for ((kind, name), object) in &space.now {
            if name == "kube-root-ca.crt" {
                continue;
            }
            let key = format!("{kind:?} {}", names.plain(name));
            // Two pods of one index would have one key.
            let doubles = left.keys().filter(|k: &&String| k.starts_with(&key)).count();
            let key = if doubles == 0 { key } else { format!("{key} #{doubles}") };
            left.insert(key, names.of_value(&comparable(*kind, object)));
        }
        let kinds =
            [Kind::TrainingJob, Kind::Job, Kind::Pod, Kind::Service, Kind::PersistentVolumeClaim, Kind::NetworkPolicy];
        Self { left, ever: kinds.map(|kind| (kind, space.ever(kind))).into() }
    }

    /// The differences between two outcomes, one line each.
    pub fn differences(&self, other: &Self) -> String {
        let mut lines = String::new();
        for key in self.left.keys().chain(other.left.keys().filter(|key| !self.left.contains_key(*key))) {
            differ(&mut lines, key, self.left.get(key), other.left.get(key));
        }
        for (kind, count) in &self.ever {
            if other.ever[kind] != *count {
                let _ = writeln!(lines, "  {kind:?}s made: {count}, here {}", other.ever[kind]);
            }
        }
        lines
    }
}

fn differ(lines: &mut String, path: &str, one: Option<&Value>, other: Option<&Value>) {
    match (one, other) {
        (one, other) if one == other => {}
        (Some(Value::Object(one)), Some(Value::Object(other))) => {
            for key in one.keys().chain(other.keys().filter(|key| !one.contains_key(*key))) {
                differ(lines, &format!("{path}.{key}"), one.get(key), other.get(key));
            }
        }
        (Some(Value::Array(one)), Some(Value::Array(other))) => {
            for index in 0..one.len().max(other.len()) {
                differ(lines, &format!("{path}[{index}]"), one.get(index), other.get(index));
            }
        }
        _ => {
            let show = |value: Option<&Value>| value.map_or_else(|| "nothing".to_owned(), Value::to_string);
            let _ = writeln!(lines, "  {path}: {}, here {}", show(one), show(other));
        }
    }
}

/// The parts of an object that show the operator's work.
fn comparable(kind: Kind, object: &Value) -> Value {
    let metadata = &object["metadata"];
    let mut comparable = json!({
        "labels": metadata["labels"],
        "annotations": metadata["annotations"],
        "owners": metadata["ownerReferences"],
        "finalizers": metadata["finalizers"],
        "deleting": !metadata["deletionTimestamp"].is_null(),
    });
    match kind {
        Kind::Pod => {
            comparable["phase"] = object["status"]["phase"].clone();
        }
        Kind::PersistentVolumeClaim => {
            comparable["annotations"] = Value::Null;
            comparable["access"] = object["spec"]["accessModes"].clone();
        }
        Kind::Job | Kind::TrainingJob | Kind::TuningJob => {
            comparable["spec"] = object["spec"].clone();
            comparable["status"] = object["status"].clone();
        }
        Kind::Service | Kind::NetworkPolicy => comparable["spec"] = object["spec"].clone(),
        Kind::ConfigMap => comparable["data"] = object["data"].clone(),
    }
    if kind == Kind::TrainingJob {
        // The annotations show what was applied. The operator writes none.
        let status = &mut comparable["status"];
        for field in ["duration", "suspendedSeconds", "runningSeconds", "lostSeconds", "goodput"] {
            status.as_object_mut().map(|status| status.remove(field));
        }
        for restart in status["restarts"].as_array_mut().into_iter().flatten() {
            restart["ranSeconds"] = Value::Null;
            // The scheduler decides where a pod runs.
            if restart["node"].is_string() {
                restart["node"] = json!("N");
            }
        }
        // A list by type, in the order in which the types were first set.
        if let Some(conditions) = status["conditions"].as_array_mut() {
            conditions.sort_by_key(|condition| condition["type"].to_string());
        }
    }
    comparable
}

/// Names that differ from run to run, and their names in an outcome.
struct Names(Vec<(String, String)>);

impl Names {
    fn from_space(namespace: &str, space: &Space) -> Self {
        let mut names = vec![(namespace.to_owned(), "NAMESPACE".to_owned())];
        let mut counts: HashMap<(Kind, String), usize> = HashMap::new();
        for Seen { kind, uid, object, .. } in &space.history {
            if names.iter().any(|(name, _)| name == uid) {
                continue;
            }
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let plain = match (kind, name.rsplit_once('-')) {
                (Kind::Pod, Some((plain, _))) => plain.to_owned(),
                _ => name.to_owned(),
            };
            // The first or the second object of its name. This distinguishes an owner that is gone from the one that
            // exists.
            let count = counts.entry((*kind, plain.clone())).or_default();
            *count += 1;
            names.push((uid.clone(), format!("UID-OF-{kind:?}-{plain}-{count}")));
            if *kind == Kind::TrainingJob {
                // The names of the job's Secret of keys and of its NetworkPolicy contain the beginning of its UID.
                let of_uid = |what: &str| (format!("-{what}-{}", &uid[..8]), format!("-{what}-UID-{count}"));
                names.extend(["keys", "isolation"].map(of_uid));
            }
            if *kind == Kind::Pod {
                names.push((name.to_owned(), format!("{plain}-X")));
            }
        }
        names.extend((0..4).map(|node| (format!("node sim-{node}"), "node N".to_owned())));
        // The longest first, because one name may be the beginning of another.
        names.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        Self(names)
    }

    fn plain(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (name, plain)| text.replace(name, plain))
    }

    fn of_value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) if text.parse::<Timestamp>().is_ok() => json!("TIME"),
            Value::String(text) => json!(without_seconds(&self.plain(text))),
            Value::Array(items) => items.iter().map(|item| self.of_value(item)).collect(),
            Value::Object(fields) => {
                let fields = fields.iter().filter(|(_, value)| !value.is_null());
                Value::Object(fields.map(|(key, value)| (key.clone(), self.of_value(value))).collect::<Map<_, _>>())
            }
            other => other.clone(),
        }
    }
}

/// A deadline's message says for how long the job ran.
fn without_seconds(text: &str) -> String {
    match text.strip_prefix("ran for ").and_then(|rest| rest.split_once(' ')) {
        Some((_, rest)) => format!("ran for N {rest}"),
        None => text.to_owned(),
    }
}

/// What must hold at every moment, whatever happens to the operator. A led gang restarts without the operator, which
/// may learn of several attempts at once. The error names what did not hold.
///
/// # Errors
/// Which of them was broken.
pub fn invariants(space: &Space, is_led: bool) -> Result<(), String> {
    let mut wrong = String::new();
    // Jobs that look after the data have no number. The gang's Jobs are made when they are gone.
    let is_of_gang = |job: &&Seen| job.object["metadata"]["labels"]["component"] != "upkeep";
    for job in births(space, Kind::Job).filter(is_of_gang) {
        let attempt = number(&job.object["metadata"]["labels"]["ml.example.com/incarnation"]);
        let owner = job.object["metadata"]["ownerReferences"][0]["uid"].as_str().unwrap_or_default();
        let mut says = |what: &str| wrong.push_str(&format!("  the Job of attempt {attempt} was made {what}\n"));
        match at(space, owner, job.version) {
            None => says("before its TrainingJob"),
            Some(parent) if parent.gone => says("after its TrainingJob had gone"),
            Some(parent) => {
                if parent.object["spec"]["suspend"] == true {
                    says("while spec.suspend was true");
                }
                if ["Completed", "Failed"].iter().any(|state| parent.object["status"]["state"] == *state) {
                    says("after the end");
                }
                if !parent.object["metadata"]["deletionTimestamp"].is_null() {
                    says("while its TrainingJob was being deleted");
                }
                if number(&parent.object["status"]["incarnation"]) != attempt {
                    says("before its number stood in the status");
                }
            }
        }
        for pod in births(space, Kind::Pod) {
            let before = number(&pod.object["metadata"]["labels"]["ml.example.com/incarnation"]) < attempt;
            let theirs = pod.object["metadata"]["labels"]["ml.example.com/training-job-uid"] == owner;
            if before && theirs && at(space, &pod.uid, job.version).is_some_and(|pod| !pod.gone) {
                says("while a pod of an earlier attempt was there");
            }
        }
        // Trials of a search run side by side.
        let of_job = |job: &Seen| job.object["metadata"]["ownerReferences"][0]["name"].clone();
        let role = |job: &Seen| job.object["spec"]["template"]["metadata"]["labels"]["component"].clone();
        for other in
            births(space, Kind::Job).filter(|other| other.version < job.version && of_job(other) == of_job(job))
        {
            let of_gang = number(&other.object["metadata"]["labels"]["ml.example.com/incarnation"]) == attempt;
            let is_fellow = of_gang && role(other) != role(job);
            if !is_fellow && at(space, &other.uid, job.version).is_some_and(|other| !other.gone) {
                says("while another Job was there");
            }
            if is_fellow {
                if role(other) == "worker" {
                    says("after that of the workers");
                }
                continue;
            }
            let theirs = other.object["metadata"]["ownerReferences"][0]["uid"] == owner;
            if theirs && number(&other.object["metadata"]["labels"]["ml.example.com/incarnation"]) >= attempt {
                says("although that attempt had its Job");
            }
        }
    }
    for job in births(space, Kind::TrainingJob) {
        let versions = space.history.iter().filter(|seen| seen.uid == job.uid).map(|seen| &seen.object["status"]);
        let versions: Vec<&Value> = versions.collect();
        for (old, new) in versions.iter().zip(versions.iter().skip(1)) {
            for count in ["attempt", "incarnation", "restartCount", "disruptionCount", "observedGeneration"] {
                if number(&new[count]) < number(&old[count]) {
                    let _ = writeln!(wrong, "  {count} went from {} to {}", old[count], new[count]);
                }
            }
            for count in ["attempt", "restartCount"] {
                if !is_led && number(&new[count]) > number(&old[count]) + 1 {
                    let _ = writeln!(wrong, "  {count} went from {} to {}", old[count], new[count]);
                }
            }
            if number(&new["incarnation"]) > number(&old["incarnation"]) + 1 {
                let _ = writeln!(wrong, "  incarnation went from {} to {}", old["incarnation"], new["incarnation"]);
            }
            let ended = old["state"] == "Completed" || old["state"] == "Failed";
            if ended && new["state"] != old["state"] {
                let _ = writeln!(wrong, "  state went from {} to {}", old["state"], new["state"]);
            }
        }
    }
    for search in births(space, Kind::TuningJob) {
        let versions: Vec<_> = space.history.iter().filter(|seen| seen.uid == search.uid).collect();
        let rows = |seen: &Seen| seen.object["status"]["trials"].as_array().cloned().unwrap_or_default();
        for (old, new) in versions.iter().zip(versions.iter().skip(1)) {
            let (old, new) = (rows(old), rows(new));
            for (at, row) in old.iter().enumerate() {
                let is_fixed =
                    |field: &str| row[field].is_null() || new.get(at).is_some_and(|new| new[field] == row[field]);
                if !["trial", "values", "after", "end", "endTime"].into_iter().all(is_fixed) {
                    let _ = writeln!(wrong, "  a recorded trial changed: {row}, then {:?}", new.get(at));
                }
            }
        }
        for trial in births(space, Kind::TrainingJob) {
            let object = &trial.object;
            if object["metadata"]["ownerReferences"][0]["uid"] != search.uid.as_str() {
                continue;
            }
            let number = number(&object["metadata"]["labels"]["ml.example.com/trial"]);
            let before = at(space, &search.uid, trial.version).map(rows).unwrap_or_default();
            if !before.iter().any(|row| self::number(&row["trial"]) == number) {
                let _ = writeln!(wrong, "  trial {number} was created before it was recorded");
            }
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}

/// The first version of every object of a kind.
fn births(space: &Space, kind: Kind) -> impl Iterator<Item = &Seen> {
    let mut known = Vec::new();
    space.history.iter().filter(move |seen| {
        let new = seen.kind == kind && !known.contains(&&seen.uid);
        if new {
            known.push(&seen.uid);
        }
        new
    })
}

/// An object as it was at a version.
fn at<'a>(space: &'a Space, uid: &str, version: u64) -> Option<&'a Seen> {
    space.history.iter().rfind(|seen| seen.uid == uid && seen.version < version)
}

fn number(value: &Value) -> i64 {
    value.as_i64().or_else(|| value.as_str()?.parse().ok()).unwrap_or(0)
}
