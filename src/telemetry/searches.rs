//! The series of the existing TuningJobs, made from the cache at each scrape. They disappear with their TuningJob.

use api::{Guarded, TuningJob, TuningJobStatus, TuningState};
use exposition::{Page, labels};
use kube::ResourceExt;
use kube::runtime::reflector::Store;

const STATES: [TuningState; 5] =
    [TuningState::Pending, TuningState::Running, TuningState::Suspended, TuningState::Completed, TuningState::Failed];

type Family = (&'static str, &'static str, fn(&Search, &mut Page));

const FAMILIES: [Family; 6] = [
    ("trainingjob_tuning_state", "1 for the state that the search is in, 0 for the others.", |search, page| {
        let now = search.status.state.unwrap_or(TuningState::Pending);
        for state in STATES {
            page.sample(&search.with("state", state.as_str()), f64::from(u8::from(state == now)));
        }
    }),
    ("trainingjob_tuning_trials", "Trials of the search, by state.", |search, page| {
        let status = &search.status;
        let counts = [
            ("Running", status.running),
            ("Succeeded", status.succeeded),
            ("Stopped", status.stopped),
            ("Failed", status.failed),
        ];
        for (state, count) in counts {
            page.sample(&search.with("state", state), f64::from(count));
        }
    }),
    ("trainingjob_tuning_max_trials", "Most trials that the search will have.", |search, page| {
        page.sample(&search.labels, search.job.spec.tuning.max_trials.into());
    }),
    ("trainingjob_tuning_best_value", "Best value of the metric of the search so far.", |search, page| {
        if let Some(best) = &search.status.best {
            page.sample(&search.with("metric", &search.job.spec.tuning.metric.name), best.value);
        }
    }),
    ("trainingjob_tuning_gpu_hours", "GPU hours of all trials of the search.", |search, page| {
        page.sample(&search.labels, search.status.gpu_hours);
    }),
    ("trainingjob_tuning_gpu_hours_limit", "Limit for the GPU hours of the search.", |search, page| {
        if let Some(limit) = search.job.spec.tuning.gpu_hours {
            page.sample(&search.labels, limit);
        }
    }),
];

/// The series of all searches.
pub(super) fn render(store: &Store<Guarded<TuningJob>>) -> String {
    let (objects, none) = (store.state(), TuningJobStatus::default());
    let readable = objects.iter().filter_map(|object| object.0.as_ref().ok());
    let searches: Vec<Search<'_>> = readable.map(|job| Search::new(job, &none)).collect();
    let mut page = Page::default();
    for (name, help, sample) in FAMILIES {
        page.family(name, "gauge", help);
        searches.iter().for_each(|search| sample(search, &mut page));
    }
    page.text()
}

/// A TuningJob at the time of the scrape.
struct Search<'a> {
    labels: String,
    job: &'a TuningJob,
    status: &'a TuningJobStatus,
}

impl<'a> Search<'a> {
    fn new(job: &'a TuningJob, none: &'a TuningJobStatus) -> Self {
        let namespace = job.namespace().unwrap_or_default();
        let labels = labels(&[("namespace", &namespace), ("tuning_job", &job.name_any())]);
        Self { labels, job, status: job.status.as_ref().unwrap_or(none) }
    }

    fn with(&self, label: &str, value: &str) -> String {
        format!("{},{}", self.labels, labels(&[(label, value)]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::runtime::reflector;
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    fn search(name: &str, status: &Value) -> Guarded<TuningJob> {
        let job = json!({
            "apiVersion": "ml.example.com/v1", "kind": "TuningJob", "metadata": { "name": name, "namespace": "ns", "uid": name },
            "spec": {
                "maxTrials": 24, "gpuHours": 40, "metric": { "name": "loss", "goal": "minimize" },
                "parameters": { "x": { "type": "double", "min": 0, "max": 1 } }, "template": { "spec": { "image": "i" } },
            },
            "status": status,
        });
        serde_json::from_value(job).unwrap()
    }

    #[test]
    fn search_series_disappear_with_the_search() {
        let (store, mut writer) = reflector::store();
        let best = json!({ "trial": 2, "name": "a-2", "value": 0.25, "parameters": {} });
        let status =
            json!({ "state": "Running", "running": 3, "succeeded": 2, "failed": 1, "gpuHours": 12.5, "best": best });
        for object in [search("a", &status), search("new", &json!({}))] {
            writer.apply_watcher_event(&Event::Apply(object));
        }
        let text = render(&store);
        let of_a: Vec<&str> = text.lines().filter(|line| line.contains("tuning_job=\"a\"")).collect();
        for line in [
            r#"trainingjob_tuning_state{namespace="ns",tuning_job="a",state="Running"} 1"#,
            r#"trainingjob_tuning_state{namespace="ns",tuning_job="a",state="Failed"} 0"#,
            r#"trainingjob_tuning_trials{namespace="ns",tuning_job="a",state="Running"} 3"#,
            r#"trainingjob_tuning_trials{namespace="ns",tuning_job="a",state="Succeeded"} 2"#,
            r#"trainingjob_tuning_trials{namespace="ns",tuning_job="a",state="Stopped"} 0"#,
            r#"trainingjob_tuning_trials{namespace="ns",tuning_job="a",state="Failed"} 1"#,
            r#"trainingjob_tuning_max_trials{namespace="ns",tuning_job="a"} 24"#,
            r#"trainingjob_tuning_best_value{namespace="ns",tuning_job="a",metric="loss"} 0.25"#,
            r#"trainingjob_tuning_gpu_hours{namespace="ns",tuning_job="a"} 12.5"#,
            r#"trainingjob_tuning_gpu_hours_limit{namespace="ns",tuning_job="a"} 40"#,
        ] {
            assert!(of_a.contains(&line), "{line}: {text}");
        }
        // As many as there are states, whatever the number of trials.
        assert_eq!(of_a.len(), 5 + 4 + 4);
        assert!(!text.contains(r#"best_value{namespace="ns",tuning_job="new""#), "{text}");
        writer.apply_watcher_event(&Event::Delete(search("a", &json!({}))));
        assert!(!render(&store).contains("tuning_job=\"a\""));
    }
}
