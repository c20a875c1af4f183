//! Searches for hyperparameters, whose trials are real programs on a real node.

use super::wait::eventually;
use super::world::{DEMO_IMAGE, SOON, Space, merged, world};
use api::{State, TrainingJob, TrialState, TuningJob, TuningJobStatus, TuningState};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use trials::Study;

/// The result is best near a learning rate of 0.01, and one activation always fails. The last evaluation is the best
/// one, just before the exit.
const PROGRAM: &str = r#"
import json, math, os, sys
if os.environ["HYPERPARAM_ACT"] == "broken":
    sys.exit("ValueError: no such activation: broken")
distance = (math.log10(float(os.environ["HYPERPARAM_LEARNING_RATE"])) + 2) ** 2
for step in range(1, 9):
    print(json.dumps({"step": step, "val_loss": distance + 1 / step}), flush=True)
"#;

fn search(tuning: &Value, command: &Value) -> Value {
    let spec = json!({
        "method": "bayes", "maxTrials": 8, "parallelTrials": 3, "seed": 3,
        "metric": { "name": "val_loss", "goal": "minimize" },
        "parameters": {
            "learning_rate": { "type": "double", "min": 0.0001, "max": 0.1, "scale": "log" },
            "act": { "type": "categorical", "choices": ["relu", "tanh", "broken"] },
        },
        "template": { "spec": {
            "numWorkers": 1, "gpusPerWorker": 0, "image": DEMO_IMAGE, "networking": { "backend": "gloo" },
            "checkpoint": { "enabled": false }, "command": command, "failurePolicy": { "backoffLimit": 0 },
        }},
    });
    merged(spec, tuning)
}

/// The status once it is as wanted.
async fn until(space: &Space, name: &str, what: &str, wanted: impl Fn(&TuningJobStatus) -> bool) -> TuningJobStatus {
    let api = space.api::<TuningJob>();
    let look = async || {
        let status = api.get(name).await.unwrap().status.unwrap_or_default();
        wanted(&status).then_some(status)
    };
    if let Ok(status) = tokio::time::timeout(SOON, eventually(what, SOON + SOON, look)).await {
        return status;
    }
    panic!("no {what}: {:#?}", api.get(name).await.unwrap().status)
}

/// Kills the operator's pods, which others replace.
async fn kill_operator(space: &Space) {
    let pods: kube::Api<Pod> = kube::Api::namespaced(space.client.clone(), "trainingjob-system");
    for pod in pods.list(&ListParams::default()).await.unwrap().items {
        pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await.unwrap();
    }
}

/// Each suggestion follows from the ends of trials that it knew.
fn replay(job: &TuningJob) {
    let status = job.status.as_ref().unwrap();
    let study = Study::new(job).unwrap();
    for (at, row) in status.trials.iter().enumerate() {
        let again = study.suggestion(status, at).unwrap();
        assert_eq!(again, row.values, "trial {}", row.trial);
    }
}

#[tokio::test]
async fn search_finds_best_trial_despite_failures_and_killed_operator() {
    let Some(world) = world() else { return };
    let space = world.space("tuning", json!({})).await;
    let spec = search(&json!({}), &json!(["python3", "-c", PROGRAM]));
    space.create::<TuningJob>(json!({ "metadata": { "name": "digits" }, "spec": spec })).await;
    let watcher = space.clone();
    let watched = tokio::spawn(async move { watcher.plugin(&["tune", "digits", "--watch", "-o", "json"]).await });
    until(&space, "digits", "an ended trial", |status| status.succeeded + status.failed >= 2).await;
    kill_operator(&space).await;
    let status =
        until(&space, "digits", "the end of the search", |status| status.state.is_some_and(TuningState::is_finished))
            .await;
    assert_eq!(status.state, Some(TuningState::Completed), "{status:#?}");
    assert_eq!(status.succeeded + status.failed, 8);
    for row in &status.trials {
        let trial = space.api::<TrainingJob>().get(&format!("digits-{}", row.trial)).await.unwrap();
        let hyperparameters = trial.spec.hyperparameters.unwrap();
        let is_broken = hyperparameters.additional_params["act"] == "broken";
        assert_eq!(row.state == TrialState::Failed, is_broken, "{row:?}");
        if !is_broken {
            // The last of eight readings, which came just before the exit.
            let distance = (hyperparameters.learning_rate.unwrap().log10() + 2.0).powi(2);
            let value = row.value.unwrap();
            assert!((value - distance - 0.125).abs() < 1e-6, "{value} is not {distance} + 1/8");
            assert_eq!(row.step, Some(8));
        }
    }
    let failures = &status.failures;
    assert!(failures.is_empty() || failures[0].message.contains("no such activation"), "{failures:?}");
    let best = status.best.clone().unwrap();
    let least = status.trials.iter().filter_map(|row| row.value).fold(f64::INFINITY, f64::min);
    assert!((best.value - least).abs() < 1e-12);
    replay(&space.api::<TuningJob>().get("digits").await.unwrap());

    // What a user sees: each change until the end, and then the best one.
    let (is_well, text) = watched.await.unwrap();
    assert!(is_well, "{text}");
    let seen: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let states: Vec<&Value> = seen.iter().map(|search| &search["state"]).collect();
    assert!(states.contains(&&json!("Running")) && states.last() == Some(&&json!("Completed")), "{states:?}");
    let (is_well, text) = space.plugin(&["tune", "digits"]).await;
    assert!(is_well && text.contains(&best.name), "{text}");
    let (is_well, csv) = space.plugin(&["tune", "digits", "-o", "csv"]).await;
    assert!(is_well && csv.lines().count() == 9 && csv.lines().next().unwrap().contains("learning_rate"), "{csv}");

    // More trials continue the search.
    let more = json!({ "spec": { "maxTrials": 10 } });
    space.api::<TuningJob>().patch("digits", &PatchParams::default(), &Patch::Merge(more)).await.unwrap();
    let longer = until(&space, "digits", "ten ended trials", |status| {
        status.state == Some(TuningState::Completed) && status.trials.len() == 10
    })
    .await;
    assert_eq!(longer.trials[..8], status.trials[..]);
    // Deleting the search leaves nothing of its trials.
    space.api::<TuningJob>().delete("digits", &DeleteParams::default()).await.unwrap();
    eventually("the trials to be gone", SOON, async || {
        space.api::<TrainingJob>().list(&ListParams::default()).await.unwrap().items.is_empty().then_some(())
    })
    .await;
    space.end().await;
}

/// Trials that run until they are stopped: the worse ones by early stopping, the others by their search's suspension.
#[tokio::test]
async fn bad_trials_stop_early_and_a_suspended_search_has_no_pods() {
    let Some(world) = world() else { return };
    let space = world.space("asha", json!({})).await;
    // The better ones come first, because all of them could continue if they came last.
    let program = r#"
import json, os, time
rank = float(os.environ["HYPERPARAM_RANK"])
time.sleep(3 * rank)
for step in range(1, 5):
    print(json.dumps({"step": step, "val_loss": rank + 1 / step}), flush=True)
while True:
    time.sleep(1)
"#;
    let tuning = json!({
        "method": "grid", "maxTrials": 4, "parallelTrials": 4, "earlyStopping": { "minStep": 2, "factor": 2 },
        "parameters": { "rank": { "type": "int", "min": 1, "max": 4 } },
    });
    let spec = search(&tuning, &json!(["python3", "-c", program]));
    space.create::<TuningJob>(json!({ "metadata": { "name": "ranks" }, "spec": spec })).await;
    let status = until(&space, "ranks", "a stopped trial", |status| status.stopped >= 1).await;
    for row in status.trials.iter().filter(|row| row.state == TrialState::Stopped) {
        let trial = space.api::<TrainingJob>().get(&format!("ranks-{}", row.trial)).await.unwrap();
        let status = trial.status.unwrap();
        assert_eq!(status.state, Some(State::Completed));
        let succeeded = status.conditions.iter().find(|condition| condition.type_ == "Succeeded").unwrap();
        assert_eq!(succeeded.reason, "StoppedBySearch");
        assert!(succeeded.message.contains("(earlyStopping of TuningJob ranks)"), "{}", succeeded.message);
        assert!(!trial.spec.suspend);
    }
    let suspend = |suspend: bool| Patch::Merge(json!({ "spec": { "suspend": suspend } }));
    space.api::<TuningJob>().patch("ranks", &PatchParams::default(), &suspend(true)).await.unwrap();
    let is_left = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
    eventually("no pod to run", SOON, async || (!space.pods().await.iter().any(is_left)).then_some(())).await;
    let status = until(&space, "ranks", "the suspension", |status| status.state == Some(TuningState::Suspended)).await;
    let running = status.trials.iter().find(|row| !row.state.is_ended()).unwrap();
    let name = format!("ranks-{}", running.trial);
    let held = eventually("the trial to say why it is suspended", SOON, async || {
        let status = space.api::<TrainingJob>().get(&name).await.unwrap().status.unwrap();
        status.conditions.into_iter().find(|condition| condition.type_ == "Suspended" && condition.status == "True")
    })
    .await;
    assert!(held.message.contains("TuningJob ranks"), "{}", held.message);
    space.api::<TuningJob>().patch("ranks", &PatchParams::default(), &suspend(false)).await.unwrap();
    eventually("a pod to run again", SOON, async || space.pods().await.iter().any(is_left).then_some(())).await;
    space.end().await;
}

/// Document 002's form of a search.
#[tokio::test]
async fn job_with_a_tuning_config_runs_as_a_search() {
    let Some(world) = world() else { return };
    let space = world.space("short-search", json!({})).await;
    let mut spec = search(&json!({}), &json!(["python3", "-c", PROGRAM]));
    let mut job = spec["template"]["spec"].take();
    spec.as_object_mut().unwrap().remove("template");
    job["hyperParameterTuningConfig"] = merged(
        spec,
        &json!({
            "method": "random", "maxTrials": 2, "parallelTrials": 2,
            "parameters": {
                "learning_rate": { "type": "double", "min": 0.0001, "max": 0.01 },
                "act": { "type": "categorical", "choices": ["relu"] },
                "batch_size": { "type": "int", "values": [8, 16, 32] },
            },
        }),
    );
    job["model"] = json!("none");
    let job = space.apply(json!({ "metadata": { "name": "llama" }, "spec": job })).await;
    let status = job.state(State::Completed).await;
    assert_eq!(status.progress.as_deref(), Some("100%"));
    let search = space.api::<TuningJob>().get("llama").await.unwrap();
    let best = search.status.unwrap().best.unwrap();
    assert_eq!(status.objective.and_then(|objective| objective.best).map(|best| best.value), Some(best.value));
    let trial = space.api::<TrainingJob>().get(&best.name).await.unwrap();
    assert!([Some(8), Some(16), Some(32)].contains(&trial.spec.hyperparameters.unwrap().batch_size));
    assert!(
        space
            .pods()
            .await
            .iter()
            .all(|pod| pod.name_any().starts_with("llama-1") || pod.name_any().starts_with("llama-2"))
    );
    space.end().await;
}

/// 24 trials, 4 at a time: the operator is killed twice, a node is lost, and one value always fails.
#[tokio::test]
#[ignore = "soak: a node is lost under a search; proved in make test by trials::tests and by \
            node tuning::search_finds_best_trial_despite_failures_and_killed_operator"]
async fn large_search_survives_a_lost_node_and_killed_operators() {
    let Some((world, _turn)) = super::lost::world().await else { return };
    let space = world.space("large-search", json!({})).await;
    for node in ["3", "4"] {
        world.cluster.devcluster(&["node", "add", node]);
    }
    // Long enough that trials are under way whenever something happens.
    let slow = format!("{PROGRAM}\nimport time\ntime.sleep(10)\n");
    let mut spec = search(&json!({ "maxTrials": 24, "parallelTrials": 4 }), &json!(["python3", "-c", slow]));
    spec["template"]["spec"]["failurePolicy"]["nodeLostSeconds"] = json!(30);
    // Not on node0, where the operator is.
    let elsewhere =
        json!({ "matchExpressions": [{ "key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["node0"] }] });
    spec["template"]["spec"]["scheduling"] = json!({ "affinity": { "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [elsewhere] },
    }}});
    space.create::<TuningJob>(json!({ "metadata": { "name": "large" }, "spec": spec })).await;
    let ended = |most: usize| {
        move |status: &TuningJobStatus| status.trials.iter().filter(|row| row.state.is_ended()).count() >= most
    };
    until(&space, "large", "five ended trials", ended(5)).await;
    kill_operator(&space).await;
    until(&space, "large", "nine ended trials", ended(9)).await;
    world.cluster.devcluster(&["node", "lose", "3"]);
    // A job of one worker waits for its node until the node is confirmed to be gone.
    world.cluster.kubectl(&["delete", "node", "node3"]);
    until(&space, "large", "fourteen ended trials", ended(14)).await;
    kill_operator(&space).await;
    let status =
        until(&space, "large", "the end of the search", |status| status.state.is_some_and(TuningState::is_finished))
            .await;
    println!("trial  state      value     learning rate, act  after  end  retries");
    let job = space.api::<TuningJob>().get("large").await.unwrap();
    let study = Study::new(&job).unwrap();
    for row in &status.trials {
        let values: Vec<_> = study.texts(&row.values).into_values().collect();
        let (value, retries) = (row.value.unwrap_or(f64::NAN), row.retries.unwrap_or_default());
        let end = row.end.unwrap_or_default();
        println!(
            "{:5}  {:9}  {value:.6}  {}  {:5}  {end:3}  {retries}",
            row.trial,
            row.state.as_str(),
            values.join(", "),
            row.after
        );
    }
    assert_eq!((status.state, status.trials.len()), (Some(TuningState::Completed), 24));
    for row in &status.trials {
        let is_broken = study.texts(&row.values)["act"] == "broken";
        assert_eq!(row.state == TrialState::Failed, is_broken, "{row:?}");
    }
    replay(&job);
    // The best one, as a job of its own.
    let (is_well, best) = space.plugin(&["best", "large", "-o", "yaml"]).await;
    assert!(is_well, "{best}");
    let args = ["apply", "-n", &space.name, "-f", "-"];
    world.cluster.kubectl_with(&args, &best);
    let api = space.api::<TrainingJob>();
    eventually("the best trial's job to be completed", SOON, async || {
        let status = api.get("large-best").await.unwrap().status.unwrap_or_default();
        (status.state == Some(State::Completed)).then_some(())
    })
    .await;
    let again = api.get("large-best").await.unwrap();
    let best = status.best.unwrap();
    let rate = again.spec.hyperparameters.unwrap().learning_rate.unwrap().to_string();
    assert_eq!(rate, best.parameters["learning_rate"]);
    space.end().await;
}
