//! What `tune`, `best` and `why` print of searches made by hand.

use super::super::cluster::Cluster;
use super::*;
use std::sync::{Arc, Mutex};
use unicode_width::UnicodeWidthStr;

const NOW: i64 = 1_800_000_000;

fn at(seconds: i64) -> String {
    time(seconds).to_string()
}

fn time(seconds: i64) -> Timestamp {
    Timestamp::from_second(NOW + seconds).unwrap()
}

fn condition_json(type_: &str, is: bool, reason: &str, message: &str) -> Value {
    let status = if is { "True" } else { "False" };
    json!({ "type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": at(-3600) })
}

/// A search of 24 trials, 2 at a time, of which these are recorded.
#[expect(clippy::needless_pass_by_value, reason = "takes what its callers need no more")]
fn search(status: Value) -> TuningJob {
    let job = json!({
        "apiVersion": "ml.example.com/v1", "kind": "TuningJob",
        "metadata": { "name": "bert", "namespace": "team", "uid": "1" },
        "spec": {
            "maxTrials": 24, "parallelTrials": 2, "gpuHours": 40, "warmStartFrom": ["old"],
            "metric": { "name": "eval_loss", "goal": "minimize" },
            "parameters": {
                "learning_rate": { "type": "double", "min": 0.00001, "max": 0.1, "scale": "log" },
                "layers": { "type": "int", "values": [2, 4, 8] },
                "opt": { "type": "categorical", "choices": ["sgd", "adam, fused"] },
                "momentum": { "type": "double", "min": 0, "max": 1, "when": { "parameter": "opt", "values": ["sgd"] } },
            },
            "template": {
                "metadata": { "labels": { "team": "nlp" } },
                "spec": { "numWorkers": 2, "gpusPerWorker": 4, "image": "train:1", "hyperparameters": { "epochs": 3 } },
            },
        },
        "status": status,
    });
    serde_json::from_value(job).unwrap()
}

/// Trial `number` with its values, in the order layers, learning_rate, opt, momentum.
#[expect(clippy::needless_pass_by_value, reason = "takes what its callers need no more")]
fn trial(number: u32, state: &str, values: Value, more: Value) -> Value {
    let mut trial = json!({ "trial": number, "state": state, "values": values, "after": 0, "startTime": at(-4000) });
    trial.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    trial
}

fn running() -> Value {
    json!({
        "state": "Running", "reason": "Running", "running": 2, "succeeded": 3, "stopped": 1, "failed": 1, "gpuHours": 12.5,
        "seed": 1, "parameters": ["layers", "learning_rate", "opt", "momentum"],
        "conditions": [
            condition_json("Accepted", true, "Valid", ""),
            condition_json("Running", true, "Running", "trials run or start"),
        ],
        "best": { "trial": 3, "name": "bert-3", "value": 0.31, "step": 900, "parameters": {} },
        "failures": [{ "reason": "CudaOutOfMemory", "trials": 1, "example": 2, "message": "rank 3: CUDA out of memory" }],
        "earlier": [{ "name": "old-1", "values": [4, 0.001, 1, null], "value": 0.5 }],
        "trials": [
            trial(1, "Succeeded", json!([2, 0.01, 0, 0.9]),
                json!({ "end": 1, "value": 0.52, "step": 1000, "gpuHours": 3.2, "endTime": at(-2560) })),
            trial(2, "Failed", json!([8, 0.02, 1, null]),
                json!({ "end": 2, "reason": "CudaOutOfMemory", "retries": 1, "gpuHours": 0.1, "endTime": at(-3900) })),
            trial(3, "Succeeded", json!([4, 0.0012, 1, null]),
                json!({ "end": 4, "value": 0.31, "step": 900, "gpuHours": 3.2, "endTime": at(-2000) })),
            trial(4, "Stopped", json!([2, 0.08, 0, 0.5]),
                json!({ "end": 3, "value": 1.4, "step": 100, "reason": "EarlyStopped", "gpuHours": 0.4, "endTime": at(-3800) })),
            trial(5, "Succeeded", json!([4, 0.09, 1, null]),
                json!({ "end": 5, "value": "NaN", "reason": "NaNLoss", "gpuHours": 3, "endTime": at(-1900) })),
            trial(6, "Running", json!([4, 0.0009, 1, null]), json!({ "value": 0.4, "step": 300, "gpuHours": 2.6 })),
            { "trial": 7, "state": "Suggested", "values": [8, 0.0011, 1, null], "after": 5 },
        ],
    })
}

fn plain() -> DisplayOptions {
    DisplayOptions { width: Some(110), height: None, colour: false, terminal: false }
}

fn on_screen(job: &TuningJob) -> String {
    render(&Search::from_job(job, time(0)), plain())
}

fn why(job: &TuningJob) -> String {
    super::super::why::render(&Search::from_job(job, time(0)).diagnosis(), plain())
}

#[test]
fn tune_shows_running_search() {
    insta::assert_snapshot!(on_screen(&search(running())));
}

#[test]
fn a_long_search_shows_curve_and_importance() {
    let mut status = running();
    let value = |number: u32| f64::from(number * 37 % 40);
    let trials: Vec<Value> = (1..=24_u32)
        .map(|number| {
            let layers = [2, 4, 8][number as usize % 3];
            let rate = 1e-5 * 10_f64.powf(value(number) / 10.0);
            let more = json!({ "end": number, "value": value(number) / 40.0, "step": 10, "endTime": at(-3000) });
            trial(number, "Succeeded", json!([layers, rate, 1, null]), more)
        })
        .collect();
    status["trials"] = json!(trials);
    (status["succeeded"], status["running"], status["stopped"], status["failed"]) =
        (json!(24), json!(0), json!(0), json!(0));
    (status["failures"], status["state"]) = (json!([]), json!("Completed"));
    status["best"] = json!({ "trial": 13, "name": "bert-13", "value": 0.025, "step": 10, "parameters": {} });
    status["conditions"] = json!([condition_json("Succeeded", true, "Completed", "all trials have ended: 24 trials")]);
    let job = search(status);
    let mut found = Search::from_job(&job, time(0));
    assert_eq!(found.importance.first().map(|one| one.parameter.as_str()), Some("learning_rate"));
    found.sort(TrialOrder::Value);
    found.trials.truncate(4);
    insta::assert_snapshot!(render(&found, plain()));
}

#[test]
fn trials_sort_by_value_with_nan_last() {
    let mut found = Search::from_job(&search(running()), time(0));
    found.sort(TrialOrder::Value);
    let order = |found: &Search| found.trials.iter().map(|row| row.trial).collect::<Vec<_>>();
    assert_eq!(order(&found), [3, 6, 1, 4, 2, 5, 7], "those without a value, or with NaN, are last");
    found.goal = TuningGoal::Maximize;
    found.sort(TrialOrder::Value);
    assert_eq!(order(&found)[..4], [4, 1, 6, 3]);
}

#[test]
fn csv_has_a_row_for_each_trial() {
    insta::assert_snapshot!(csv(&Search::from_job(&search(running()), time(0))));
}

#[test]
fn csv_prefixes_hyperparameter_that_clashes_with_column() {
    let mut found = Search::from_job(&search(running()), time(0));
    found.parameters = vec!["step".to_owned()];
    assert!(csv(&found).starts_with("trial,job,state,value,step,parameters.step,gpuHours,"));
}

#[test]
fn json_contains_trials_failures_and_curve() {
    let document = serde_json::to_value(Search::from_job(&search(running()), time(0))).unwrap();
    assert_eq!(document["trials"][4]["value"], "NaN");
    assert_eq!(document["trials"][2]["parameters"]["opt"], "adam, fused");
    assert_eq!(document["trials"][1]["job"], "bert-2-r1");
    assert_eq!(document["failures"][0]["job"], "bert-2-r1");
    assert_eq!(document["best"], 3);
    assert_eq!(document["remaining"], 17);
    let curve = document["curve"].as_array().unwrap().iter().map(|point| point["best"].as_f64().unwrap());
    assert_eq!(curve.collect::<Vec<_>>(), [0.52, 0.52, 0.52, 0.31, 0.31]);
}

/// Ended trials lasted 1168 s on average, and took 1.98 GPU hours each.
#[test]
fn remaining_time_is_estimated_from_ended_trials() {
    let mut status = running();
    let left = |status: &Value, change: fn(&mut TuningJob)| {
        let mut job = search(status.clone());
        change(&mut job);
        Search::from_job(&job, time(0)).estimated_seconds_remaining
    };
    // 13.9 trials follow within the GPU hours, and trial 7 has yet to start; trial 6 is overdue.
    assert_eq!(left(&status, |_| {}), Some((14 + 1) * 1168 / 2));
    assert_eq!(left(&status, |job| job.spec.tuning.gpu_hours = None), Some((17 + 1) * 1168 / 2));
    assert_eq!(left(&status, |job| job.spec.tuning.gpu_hours = Some(1.0)), Some(1168));
    assert_eq!(left(&status, |job| job.spec.suspend = true), None);
    status["state"] = json!("Completed");
    assert_eq!(left(&status, |_| {}), None);
    assert_eq!(left(&json!({}), |_| {}), None);
}

#[test]
fn tune_and_best_fit_terminal_width() {
    for width in [40, 60, 80] {
        let look = DisplayOptions { width: Some(width), ..plain() };
        let job = search(running());
        let texts = [
            render(&Search::from_job(&job, time(0)), look),
            Best::from_search(&Search::from_job(&job, time(0))).unwrap().render(look),
        ];
        for line in texts.iter().flat_map(|text| text.lines()) {
            assert!(line.width() <= width, "{width}: {line}");
        }
    }
}

#[test]
fn best_shows_best_trial() {
    insta::assert_snapshot!(Best::from_search(&Search::from_job(&search(running()), time(0))).unwrap().render(plain()));
}

#[test]
fn best_trial_becomes_a_valid_manifest() {
    let text = manifest(&search(running()), time(0)).unwrap();
    insta::assert_snapshot!(text);
    let jobs = super::super::plan::jobs(&text, None).unwrap();
    assert_eq!((jobs.len(), jobs[0].name_any()), (1, "bert-best".to_owned()));
    let explanation = super::super::plan::explain(&jobs[0], true);
    assert_eq!(explanation.refusals, Vec::<String>::new());
}

#[test]
fn a_search_without_results_has_no_best_trial() {
    let why = Best::from_search(&Search::from_job(&search(json!({})), time(0))).unwrap_err().to_string();
    let command = "kubectl trainingjob tune bert -n team";
    assert_eq!(
        why,
        format!("bert has no best trial: 0 of 24 trials have ended, 0 of them with a result; to see them: {command}")
    );
    assert!(manifest(&search(json!({})), time(0)).is_err());
}

#[test]
fn why_explains_each_search_state() {
    let stands = |state: &str, type_: &str, is: bool, reason: &str, message: &str| {
        let mut status = running();
        status["state"] = json!(state);
        status["conditions"] = json!([condition_json(type_, is, reason, message)]);
        search(status)
    };
    let mut refused = stands("Pending", "Accepted", false, "InvalidSpec", "parameters.x.max: it is missing; set it");
    let status = refused.status.as_mut().unwrap();
    (status.trials, status.failures, status.best) = (Vec::new(), Vec::new(), None);
    let mut suspended =
        stands("Suspended", "Suspended", true, "Suspended", "suspend is true; set it to false to continue");
    let by_owner = suspended.clone();
    suspended.spec.suspend = true;
    let failed = "3 trials failed, and maxFailedTrials is 3; correct the cause and raise maxFailedTrials to continue";
    let blocked = "trial bert-7 can't be created: exceeded quota: gpus";
    let used = "40.1 GPU hours were used, and gpuHours is 40; raise gpuHours to continue";
    let all = [
        ("unnoticed", why(&search(json!({})))),
        ("refused", why(&refused)),
        ("running", why(&search(running()))),
        ("blocked", why(&stands("Running", "Running", true, "QuotaExceeded", blocked))),
        ("suspended", why(&suspended)),
        ("suspended by its owner", why(&by_owner)),
        ("failed", why(&stands("Failed", "Failed", true, "TrialsFailed", failed))),
        ("completed", why(&stands("Completed", "Succeeded", true, "GpuHoursUsed", used))),
    ];
    let text: Vec<String> = all.iter().map(|(name, why)| format!("=== {name}\n{why}")).collect();
    insta::assert_snapshot!(text.join("\n"));
}

#[test]
fn sparkline_fits_its_columns() {
    assert_eq!(sparkline(&[4.0, 3.0, 2.0, 1.0], 60), "█▆▃▁");
    assert_eq!(sparkline(&[4.0, 3.0, 2.0, 1.0], 2), "▆▁");
    assert_eq!(sparkline(&[1.0, 1.0], 60), "▁▁");
}

/// An API server with a TrainingJob `both`, a TuningJob `both` and a TuningJob `bert`, which are changed as asked.
fn cluster(status: &Value) -> (Cluster, Arc<Mutex<Vec<String>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (record, status) = (asked.clone(), status.clone());
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (record, status) = (record.clone(), status.clone());
        async move {
            let (path, method) = (request.uri().path().to_owned(), request.method().clone());
            let body = request.into_body().collect_bytes().await.unwrap();
            if method == http::Method::PATCH {
                let kind = path.rsplit('/').nth(1).unwrap_or_default();
                record.lock().unwrap().push(format!("{kind} {}", String::from_utf8_lossy(&body)));
            }
            let job = json!({
                "apiVersion": "ml.example.com/v1", "kind": "TrainingJob",
                "metadata": { "name": "both", "namespace": "team", "uid": "2" }, "spec": { "numWorkers": 1 },
                "status": { "state": "Running" },
            });
            let list = json!({ "metadata": {}, "items": [] });
            let (code, answer) = if path.ends_with("/trainingjobs/both") {
                (200, job)
            } else if path.ends_with("/tuningjobs/bert") || path.ends_with("/tuningjobs/both") {
                (200, serde_json::to_value(search(status)).unwrap())
            } else if path.ends_with('s') {
                (200, list)
            } else {
                (
                    404,
                    json!({ "kind": "Status", "code": 404, "reason": "NotFound", "message": "not found", "status": "Failure" }),
                )
            };
            let answer =
                http::Response::builder().status(code).body(kube::client::Body::from(answer.to_string().into_bytes()));
            Ok::<_, std::convert::Infallible>(answer.unwrap())
        }
    });
    (Cluster::with_client(kube::Client::new(service, "team"), "team"), asked)
}

#[tokio::test]
async fn stop_and_resume_accept_a_search() {
    use super::super::control::{resume, stop};
    let (cluster, asked) = cluster(&running());
    let said = stop(&cluster, "bert", None).await.unwrap();
    assert!(
        said.starts_with("TuningJob bert is stopping") && said.ends_with("resume tuningjob/bert -n team"),
        "{said}"
    );
    let said = stop(&cluster, "both", None).await.unwrap();
    assert!(said.starts_with("both is stopping"), "{said}");
    stop(&cluster, "tuningjob/both", None).await.unwrap();
    assert_eq!(
        *asked.lock().unwrap(),
        [
            r#"tuningjobs {"metadata":{"uid":"1"},"spec":{"suspend":true}}"#,
            r#"trainingjobs {"metadata":{"uid":"2"},"spec":{"suspend":true}}"#,
            r#"tuningjobs {"metadata":{"uid":"1"},"spec":{"suspend":true}}"#,
        ]
    );
    assert!(resume(&cluster, "bert").await.unwrap().contains("is not stopped"));
    let missing = stop(&cluster, "nothing", None).await.unwrap_err().to_string();
    assert!(missing.starts_with("there is no TrainingJob nothing in namespace team"), "{missing}");
    let missing = stop(&cluster, "tuningjob/nothing", None).await.unwrap_err().to_string();
    assert!(missing.starts_with("there is no TuningJob nothing in namespace team"), "{missing}");
}

#[tokio::test]
async fn ended_search_is_not_resumed() {
    use super::super::control::{resume, stop};
    let mut status = running();
    status["state"] = json!("Failed");
    status["conditions"] = json!([condition_json("Failed", true, "TrialsFailed", "3 trials failed")]);
    let (cluster, asked) = cluster(&status);
    let why = resume(&cluster, "bert").await.unwrap_err().to_string();
    assert!(why.starts_with("TuningJob bert is Failed: 3 trials failed. Raise"), "{why}");
    assert!(stop(&cluster, "bert", None).await.unwrap_err().to_string().contains("is already Failed"));
    assert!(asked.lock().unwrap().is_empty());
}
