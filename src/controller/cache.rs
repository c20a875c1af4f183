//! The contents of shared caches that the jobs of a namespace use.

use super::Context;
use api::{Guarded, State};
use jiff::Timestamp;
use kube::{Resource, ResourceExt};
use observe::{Cell, JobKey};
use protocol::inputs::CacheUses;
use std::collections::BTreeMap;

/// Most entries of the list that is passed on. It is an argument of the agent, and arguments have at most 128 KiB.
const MOST: usize = 500;

impl Context {
    /// Content that jobs of this namespace use, or `None` if that is not known.
    pub(super) fn cache_uses(&self, namespace: &str) -> Option<CacheUses> {
        let jobs = self.jobs.get()?.state();
        let time = Timestamp::now();
        let of_namespace =
            jobs.iter().map(|job| &**job).filter(|job| job.meta().namespace.as_deref() == Some(namespace));
        // Content that a Job has fetched may not be in the status yet, for example after the operator was away.
        let reported = |job: &Guarded| {
            let words = |cell: &Cell| {
                let words = cell.children.upkeep_words.as_ref();
                words.map(|(_, words)| words.fetched.iter().map(|content| content.key.clone()).collect())
            };
            self.index.read(&JobKey::from_meta(job.meta()), words).flatten().unwrap_or_default()
        };
        in_use(of_namespace.map(|job| (job, reported(job)))).map(|jobs| CacheUses { time, jobs })
    }
}

/// The keys of the content that these jobs use or will use, each with the name of a job.
///
/// The cache that a job names is not compared. Content of the same key in another cache may stay longer for it.
fn in_use<'a>(jobs: impl Iterator<Item = (&'a Guarded, Vec<String>)>) -> Option<BTreeMap<String, String>> {
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    for (job, reported) in jobs {
        // The content that an unreadable job uses is not known.
        let job = job.0.as_ref().ok()?;
        let status = job.status.as_ref();
        if status.is_some_and(|status| status.state.is_some_and(State::is_finished)) {
            continue;
        }
        let recorded = status.iter().flat_map(|status| &status.data).filter(|data| data.is_resolved());
        for key in recorded.map(|data| data.key.clone()).chain(reported) {
            let name = found.entry(key).or_insert_with(|| job.name_any());
            // The choice does not depend on the order of the jobs.
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
        in_use(jobs.iter().map(|job| (job, Vec::new()))).map(|found| found.into_iter().collect())
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(key, job)| ((*key).to_owned(), (*job).to_owned())).collect()
    }

    #[test]
    fn content_of_unfinished_jobs_is_in_use() {
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
    fn incomplete_list_of_content_in_use_is_not_returned() {
        let mut unreadable = job("a", "Running", &["1"]);
        unreadable["spec"]["numWorkers"] = json!("many");
        assert_eq!(uses(&[job("b", "Running", &["2"]), unreadable]), None);
        let keys: Vec<String> = (0..=MOST).map(|n| format!("{n:032x}")).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        assert_eq!(uses(&[job("a", "Running", &keys)]), None, "a part of them would be worse than none");
        let list = CacheUses { time: Timestamp::now(), jobs: in_use_of(&keys[1..]) };
        assert!(serde_json::to_string(&list).unwrap().len() < 100_000);
    }

    #[test]
    fn fetched_content_is_in_use_before_status_shows_it() {
        let jobs = ["Pending", "Completed"].map(|state| serde_json::from_value(job(state, state, &[])).unwrap());
        let reported: Vec<(&Guarded, Vec<String>)> =
            jobs.iter().zip(["1", "2"]).map(|(job, key)| (job, vec![key.to_owned()])).collect();
        assert_eq!(in_use(reported.into_iter()).unwrap(), BTreeMap::from([("1".to_owned(), "Pending".to_owned())]));
    }

    /// The longest names of jobs.
    fn in_use_of(keys: &[&str]) -> BTreeMap<String, String> {
        keys.iter().map(|key| ((*key).to_owned(), "x".repeat(63))).collect()
    }
}
