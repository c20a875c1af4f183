//! The API server's rules for TuningJobs, and for the short form in a TrainingJob.

use super::{Value, created_by, json, parse, read, root, server, yaml_files};
use api::{TUNING_JOB_RULES, TUNING_RULES};
use std::collections::BTreeSet;

fn search(tuning: Value) -> Value {
    let mut spec = json!({
        "maxTrials": 10, "metric": { "name": "loss", "goal": "minimize" },
        "parameters": { "lr": { "type": "double", "min": 0.001, "max": 0.1 } },
        "template": { "spec": { "numWorkers": 1, "image": "train" } },
    });
    for (field, value) in tuning.as_object().unwrap() {
        spec[field] = value.clone();
    }
    json!({ "apiVersion": "ml.example.com/v1", "kind": "TuningJob", "metadata": { "name": "search" }, "spec": spec })
}

#[test]
fn every_search_rule_has_an_example() {
    let rules = TUNING_RULES.iter().chain(TUNING_JOB_RULES);
    let rules: Vec<&str> = rules.map(|rule| rule.example).collect();
    let files = yaml_files("examples/tuning/bad");
    let examples: Vec<_> = files.iter().map(|path| path.file_stem().unwrap().to_str().unwrap()).collect();
    assert_eq!(examples.iter().collect::<BTreeSet<_>>(), rules.iter().collect::<BTreeSet<_>>());
    assert_eq!(examples.len(), rules.len(), "two rules share an example");
}

#[tokio::test]
async fn bad_searches_are_refused_with_their_message() {
    let client = server().await;
    let mut wrong = Vec::new();
    let rules = TUNING_RULES.iter().map(|rule| (rule, true)).chain(TUNING_JOB_RULES.iter().map(|rule| (rule, false)));
    for (rule, is_shared) in rules {
        let path = format!("examples/tuning/bad/{}.yaml", rule.example);
        let refused = read(&path).lines().next().unwrap().trim_start_matches("# refused: ").to_owned();
        let bad = parse(&root().join(&path));
        let mut cases = vec![("tuningjobs", bad.clone())];
        if is_shared {
            let mut config = bad["spec"].clone();
            config.as_object_mut().unwrap().remove("template");
            let spec = json!({ "numWorkers": 1, "image": "train", "hyperParameterTuningConfig": config });
            let metadata = json!({ "name": "short" });
            let job =
                json!({ "apiVersion": "ml.example.com/v1", "kind": "TrainingJob", "metadata": metadata, "spec": spec });
            cases.push(("trainingjobs", job));
        }
        for (plural, object) in cases {
            match created_by(&client, plural, &object).await {
                Ok(_) => wrong.push(format!("{plural} {} was admitted", rule.example)),
                Err(message) if message.contains(&refused) => {}
                Err(message) => wrong.push(format!("{plural} {}: {message}\nnot {refused}", rule.example)),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn good_searches_are_admitted() {
    let client = server().await;
    for path in yaml_files("examples/tuning") {
        let admitted = created_by(&client, "tuningjobs", &parse(&path)).await;
        assert!(admitted.is_ok(), "{}: {admitted:?}", path.display());
    }
    let conditional = json!({
        "optimizer": { "type": "categorical", "choices": ["sgd", "adam"] },
        "momentum": { "type": "double", "min": 0, "max": 0.99, "when": { "parameter": "optimizer", "values": ["sgd"] } },
        "layers": { "type": "int", "min": 1, "max": 4 },
        "width": { "type": "int", "values": [16, 32] },
        "depth": { "type": "int", "min": 1, "max": 9, "when": { "parameter": "width", "values": [16] } },
    });
    let largest: serde_json::Map<String, Value> = (0..20)
        .map(|at| (format!("p{at:0>62}"), json!({ "type": "double", "min": 0.001, "max": 0.1, "scale": "log" })))
        .collect();
    for tuning in [
        json!({ "parameters": conditional, "method": "random" }),
        json!({ "parameters": largest, "maxTrials": 1000, "parallelTrials": 100, "seed": 0 }),
        json!({ "method": "grid", "parameters": { "lr": { "type": "double", "min": 0, "max": 1, "step": 0.25 } } }),
        json!({ "warmStartFrom": ["other"], "gpuHours": 0.5, "maxFailedTrials": 1, "suspend": true }),
    ] {
        let admitted = created_by(&client, "tuningjobs", &search(tuning.clone())).await;
        assert!(admitted.is_ok(), "{tuning}: {admitted:?}");
    }
}

/// The blocks of document 002, in a TrainingJob.
#[tokio::test]
async fn documented_searches_are_admitted_or_name_missing_fields() {
    let client = server().await;
    let block = |name: &str| {
        let file = parse(&root().join("examples/documents/others").join(name).with_extension("yaml"));
        file["spec"]["hyperParameterTuningConfig"].clone()
    };
    let job = |config: Value| {
        let spec = json!({ "model": "llama", "numWorkers": 4, "image": "train", "hyperParameterTuningConfig": config });
        json!({ "apiVersion": "ml.example.com/v1", "kind": "TrainingJob", "metadata": { "name": "llama" }, "spec": spec })
    };
    let long = json!({
        "method": "random", "maxTrials": 20, "metric": { "name": "val_accuracy", "goal": "maximize" },
        "parameters": {
            "learning_rate": { "type": "double", "min": 0.0001, "max": 0.01, "scale": "log" },
            "dropout_rate": { "type": "double", "values": [0.1, 0.2, 0.3, 0.4, 0.5] },
            "batch_size": { "type": "int", "min": 8, "max": 64, "step": 8 },
        },
    });
    for config in [block("ome-llama-finetune"), long] {
        let stored = created_by(&client, "trainingjobs", &job(config.clone())).await.unwrap();
        assert_eq!(stored["spec"]["hyperParameterTuningConfig"], config, "as it was written");
    }
    let refused = created_by(&client, "trainingjobs", &job(block("ome-large-model-training"))).await.unwrap_err();
    assert!(refused.contains("parameters declares no hyperparameter to search: add at least one"), "{refused}");
}
