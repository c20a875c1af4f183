use super::*;
use serde_json::{Value, json};
use std::fs;

const SPACE: &str = r#"{"metric": {"name": "loss", "goal": "minimize"}, "method": "bayes",
    "parameters": {"x": {"type": "double", "min": 0, "max": 1}, "kind": {"type": "categorical", "choices": ["a", "b"]}}}"#;

fn arguments(folder: &tempfile::TempDir, space: &str, script: &str) -> Arguments {
    let file = folder.path().join("space.json");
    fs::write(&file, space).unwrap();
    let command = ["sh", "-c", script].map(str::to_owned).to_vec();
    Arguments { space: file, trials: Some(6), parallel: Some(2), seed: Some(1), command }
}

fn lines(space: &str, script: &str) -> anyhow::Result<Vec<Value>> {
    let folder = tempfile::tempdir().unwrap();
    let mut out = Vec::new();
    run(&arguments(&folder, space, script), &mut out)?;
    Ok(String::from_utf8(out).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

#[test]
fn prints_one_line_per_trial() {
    let lines = lines(SPACE, "cat > /dev/null; echo epoch; echo 0.5").unwrap();
    let mut numbers: Vec<u64> = lines.iter().map(|line| line["trial"].as_u64().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6]);
    for line in lines {
        assert_eq!(line["value"], json!(0.5));
        assert!((0.0..=1.0).contains(&line["parameters"]["x"].as_f64().unwrap()), "{line}");
        assert_eq!(line.get("failed"), None);
    }
}

#[test]
fn program_reads_its_parameters() {
    let printed = lines(SPACE, r#"grep -q '"kind":"a"' && echo 1 || echo 2"#).unwrap();
    for line in printed {
        assert_eq!(line["value"], json!(if line["parameters"]["kind"] == "a" { 1 } else { 2 }));
    }
}

#[test]
fn failed_trials_have_a_reason_and_the_run_continues() {
    let reasons = [
        ("exit 3", "exit code 3"),
        ("kill -9 $$", "signal 9"),
        (":", "printed no number"),
        ("echo loss is low", "the last line is not a number: loss is low"),
    ];
    for (script, reason) in reasons {
        let lines = lines(SPACE, script).unwrap();
        assert_eq!(lines.len(), 6);
        assert!(lines.iter().all(|line| line["value"].is_null() && line["failed"] == reason), "{lines:?}");
    }
}

#[test]
fn non_finite_values_are_printed_as_text() {
    for (printed, value) in [("nan", "NaN"), ("inf", "+Inf"), ("-inf", "-Inf")] {
        assert!(lines(SPACE, &format!("echo {printed}")).unwrap().iter().all(|line| line["value"] == value));
    }
}

#[test]
fn grid_ends_with_its_last_point() {
    let space = SPACE.replace("bayes", "grid").replace(r#""min": 0, "max": 1"#, r#""values": [0.1, 0.2]"#);
    assert_eq!(lines(&space, "echo 1").unwrap().len(), 4);
}

#[test]
fn invalid_files_are_refused_by_field() {
    let cases = [
        (SPACE.replace("bayes", "guess"), "method: unknown variant `guess`"),
        (SPACE.replace("\"max\"", "\"most\""), "parameters.x.most: unknown field `most`"),
        (SPACE.replace("\"max\": 1", "\"max\": -1"), "parameters.x.max: max -1 is not above min 0"),
        (SPACE.replace("bayes", "grid"), "parameters.x.step: a grid needs finitely many values"),
    ];
    for (space, message) in cases {
        let error = format!("{:#}", lines(&space, "echo 1").unwrap_err());
        assert!(error.contains("space.json: ") && error.contains(message), "{error}");
    }
}

#[test]
fn program_that_cannot_start_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = Arguments { command: vec!["/nowhere/train".to_owned()], ..arguments(&folder, SPACE, "") };
    let error = format!("{:#}", run(&arguments, &mut Vec::new()).unwrap_err());
    assert!(error.starts_with("COMMAND: /nowhere/train cannot be started (No such file"), "{error}");
}

#[test]
fn dropped_program_ends_with_its_descendants() {
    let (sender, endings) = std::sync::mpsc::channel();
    // The descendant holds stdout: the report is made only when both are gone.
    let command = ["sh", "-c", "sleep 1000 & wait"].map(str::to_owned);
    let child = Child::start(&command, String::new(), move |ending| sender.send(ending).unwrap()).unwrap();
    drop(child);
    assert_eq!(endings.recv().unwrap(), ProgramEnd::Failed("signal 9".to_owned()));
}
