//! What the jobs of a namespace use of the caches that they share.

use super::Context;
use api::{Guarded, State};
use jiff::Timestamp;
use kube::{Resource, ResourceExt};
use protocol::inputs::CacheUses;
use std::collections::BTreeMap;

/// More entries are not listed: the list is an argument of the agent, and arguments have at most 128 KiB.
const MOST: usize = 500;

impl Context {
    /// Content that jobs of this namespace use. `None` if that is not known.
    pub(super) fn cache_uses(&self, namespace: &str) -> Option<CacheUses> {
        let jobs = self.jobs.get()?.state();
        let time = Timestamp::now();
        let of_namespace =
            jobs.iter().map(|job| &**job).filter(|job| job.meta().namespace.as_deref() == Some(namespace));
        in_use(of_namespace).map(|jobs| CacheUses { time, jobs })
    }
}

/// The keys of the content that these jobs use or will use, each with the name of a job.
///
/// The cache that a job names is not compared. Content of the same key in another cache may stay longer for it.
fn in_use<'a>(jobs: impl Iterator<Item = &'a Guarded>) -> Option<BTreeMap<String, String>> {
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    for job in jobs {
        // What a job uses that can't be read is not known.
        let job = job.0.as_ref().ok()?;
        let Some(status) = job.status.as_ref().filter(|status| !status.state.is_some_and(State::is_finished)) else {
            continue;
        };
        for data in status.data.iter().filter(|data| data.is_resolved()) {
            let name = found.entry(data.key.clone()).or_insert_with(|| job.name_any());
            // The same one each time, whatever the order.
            *name = job.name_any().min(std::mem::take(name));
        }
    }
    (found.len() <= MOST).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn job(name: &str, state: &str, keys: &[&str]) -> Value {
        let data = keys.iter().map(|key| json!({ "name": "model", "uri": "u", "revision": "r", "key": key }));
        json!({
            "apiVersion": "ml.example.com/v1", "kind": "TrainingJob",
            "metadata": { "name": name, "namespace": "ns", "uid": name },
            "spec": { "model": "m", "numWorkers": 1, "image": "i" },
            "status": { "state": state, "data": data.collect::<Vec<_>>() },
        })
    }

    fn uses(jobs: &[Value]) -> Option<Vec<(String, String)>> {
        let jobs: Vec<Guarded> = jobs.iter().map(|job| serde_json::from_value(job.clone()).unwrap()).collect();
        in_use(jobs.iter()).map(|found| found.into_iter().collect())
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(key, job)| ((*key).to_owned(), (*job).to_owned())).collect()
    }

    #[test]
    fn content_of_jobs_that_have_not_ended_is_in_use() {
        let jobs = [
            job("b", "Running", &["1", "2"]),
            job("a", "Suspended", &["1"]),
            job("c", "Pending", &["", "3"]),
            job("d", "Completed", &["4"]),
            job("e", "Failed", &["5"]),
            job("f", "OfANewerOperator", &["6"]),
        ];
        assert_eq!(uses(&jobs), Some(pairs(&[("1", "a"), ("2", "b"), ("3", "c"), ("6", "f")])));
        assert_eq!(uses(&[]), Some(pairs(&[])));
    }

    #[test]
    fn what_is_not_known_is_not_listed_in_part() {
        let mut unreadable = job("a", "Running", &["1"]);
        unreadable["spec"]["numWorkers"] = json!("many");
        assert_eq!(uses(&[job("b", "Running", &["2"]), unreadable]), None);
        let keys: Vec<String> = (0..=MOST).map(|n| format!("{n:032x}")).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        assert_eq!(uses(&[job("a", "Running", &keys)]), None, "a part of them would be worse than none");
        let list = CacheUses { time: Timestamp::now(), jobs: in_use_of(&keys[1..]) };
        assert!(serde_json::to_string(&list).unwrap().len() < 100_000);
    }

    /// The longest names of jobs.
    fn in_use_of(keys: &[&str]) -> BTreeMap<String, String> {
        keys.iter().map(|key| ((*key).to_owned(), "x".repeat(63))).collect()
    }
}
