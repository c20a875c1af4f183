//! The health script for Argo CD, in the version of Lua that Argo CD has.

use api::{State, TuningState};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

const KINDS: [&str; 2] = ["TrainingJob", "TuningJob"];

/// The script for a kind.
fn script(kind: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/gitops/argocd-cm.yaml");
    let patch: BTreeMap<String, BTreeMap<String, String>> =
        serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    patch["data"][&format!("resource.customizations.health.ml.example.com_{kind}")].clone()
}

fn lua(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let fields: Vec<String> = fields.iter().map(|(key, value)| format!("[{key:?}] = {}", lua(value))).collect();
            format!("{{ {} }}", fields.join(", "))
        }
        Value::Array(all) => format!("{{ {} }}", all.iter().map(lua).collect::<Vec<_>>().join(", ")),
        Value::Null => "nil".to_owned(),
        other => other.to_string(),
    }
}

/// What Argo CD shows of an object of this kind.
fn health(kind: &str, object: &Value) -> (String, String) {
    let program = format!(
        "obj = {}\nlocal function health()\n{}\nend\nlocal hs = health()\nio.write(hs.status, \"\\n\", hs.message)",
        lua(object),
        script(kind)
    );
    let output = Command::new("lua5.1").args(["-e", &program]).output().expect("devcluster/cluster packages --tests");
    assert!(output.status.success(), "{program}\n{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let (status, message) = text.split_once('\n').unwrap();
    (status.to_owned(), message.to_owned())
}

fn in_state(state: &str) -> Value {
    json!({ "metadata": { "generation": 2 }, "status": { "state": state, "observedGeneration": 2 } })
}

#[test]
fn argo_cd_health_covers_each_state() {
    let expected = [
        ("Pending", "Progressing"),
        ("Initializing", "Progressing"),
        ("Running", "Progressing"),
        ("Completed", "Healthy"),
        ("Suspended", "Suspended"),
        ("Failed", "Degraded"),
        ("Later", "Unknown"),
    ];
    for kind in KINDS {
        for (state, status) in expected {
            assert_eq!(health(kind, &in_state(state)), (status.to_owned(), state.to_owned()), "{kind}");
        }
    }
    for state in
        [State::Pending, State::Initializing, State::Running, State::Completed, State::Failed, State::Suspended]
    {
        assert!(expected.iter().any(|(known, _)| *known == state.as_str()), "{state:?}");
    }
    for state in [
        TuningState::Pending,
        TuningState::Running,
        TuningState::Suspended,
        TuningState::Completed,
        TuningState::Failed,
    ] {
        assert!(expected.iter().any(|(known, _)| *known == state.as_str()), "{state:?}");
    }
}

#[test]
fn argo_cd_health_shows_the_reason() {
    let condition = |type_: &str, status: &str, reason: &str| json!({ "type": type_, "status": status, "reason": reason, "message": "why" });
    for (state, of_state, expected) in [
        ("Failed", condition("Failed", "True", "OOMKilled"), "Failed: OOMKilled: why"),
        ("Completed", condition("Succeeded", "True", "Completed"), "Completed: Completed: why"),
        ("Pending", condition("Scheduled", "False", "Unschedulable"), "Pending: Unschedulable: why"),
        ("Running", condition("Scheduled", "True", "Scheduled"), "Running"),
    ] {
        let mut object = in_state(state);
        object["status"]["conditions"] = json!([condition("Accepted", "True", "Valid"), of_state]);
        assert_eq!(health("TrainingJob", &object).1, expected);
    }
    let new = json!({ "metadata": { "generation": 1 } });
    assert_eq!(health("TrainingJob", &new).0, "Progressing");
    let mut changed = in_state("Completed");
    changed["metadata"]["generation"] = json!(3);
    assert_eq!(health("TrainingJob", &changed).0, "Progressing");
}
