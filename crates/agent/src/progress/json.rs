//! Progress in JSON: the Kubeflow Trainer's message, objects like it, and a checkpoint's `trainer_state.json`.

use protocol::progress::{LOSS, Update};
use regex::Regex;
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;

/// Parses a message of the Kubeflow Trainer's protocol, or its content without the wrapper:
/// `{"trainerStatus": {"progressPercentage": 42, "estimatedRemainingSeconds": 9, "metrics": [{"name": "loss", "value":
/// "0.1"}]}}` is the same as `{"percent": 42, "eta": 9, "loss": 0.1}`.
///
/// # Errors
/// What is wrong with the text.
pub fn parse(text: &str) -> Result<Update, String> {
    let value: Value = lenient(text).map_err(|error| error.to_string())?;
    let Value::Object(object) = value else { return Err("it is no JSON object".to_owned()) };
    let update = update(match object.get("trainerStatus") {
        Some(Value::Object(status)) => status,
        _ => &object,
    });
    if update.is_empty() {
        return Err("nothing in it is a number under a name, such as {\"step\": 10, \"loss\": 0.5}".to_owned());
    }
    Ok(update)
}

/// Reads a line of output that is one JSON object with progress. It has an epoch, a percentage, a loss, or a step
/// together with a metric of `named`, the metrics that the job names.
pub fn parse_line(line: &str, named: &[String]) -> Option<Update> {
    let mut update = parse(line).ok()?;
    let has_named = || update.step.is_some() && named.iter().any(|name| update.metrics.contains_key(name));
    let is_report =
        update.epoch.is_some() || update.percent.is_some() || update.metrics.contains_key(LOSS) || has_named();
    // Fields that structured logs have beside the message.
    #[expect(clippy::items_after_statements, reason = "beside its only use")]
    const OF_LOGS: [&str; 10] =
        ["ts", "time", "timestamp", "created", "elapsed", "level", "pid", "rank", "line", "lineno"];
    update.metrics.retain(|name, _| !OF_LOGS.contains(&name.as_str()));
    is_report.then_some(update)
}

fn update(object: &Map<String, Value>) -> Update {
    let mut update = Update::default();
    for (name, value) in object {
        match value {
            Value::Array(list) if name == "metrics" => {
                for metric in list {
                    let name = metric.get("name").and_then(Value::as_str);
                    if let (Some(name), Some(value)) = (name, metric.get("value").and_then(number)) {
                        update.set(name, value);
                    }
                }
            }
            Value::Object(map) if name == "metrics" => {
                map.iter().for_each(|(name, value)| _ = number(value).map(|value| update.set(name, value)));
            }
            value => _ = number(value).map(|value| update.set(name, value)),
        }
    }
    update
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

/// JSON as Python writes it, with bare NaN and Infinity.
fn lenient<T: DeserializeOwned>(text: &str) -> serde_json::Result<T> {
    serde_json::from_str(text).or_else(|error| match quoted(text) {
        Cow::Borrowed(_) => Err(error),
        Cow::Owned(text) => serde_json::from_str(&text),
    })
}

fn quoted(text: &str) -> Cow<'_, str> {
    static BARE: LazyLock<Regex> = LazyLock::new(|| text::constant(r"([:\[,]\s*)(NaN|-?Infinity)(\s*[,}\]])"));
    BARE.replace_all(text, "$1\"$2\"$3")
}

/// The fields of the Hugging Face Trainer's `trainer_state.json` that have progress.
#[derive(Deserialize)]
struct TrainerState {
    epoch: Option<f64>,
    global_step: f64,
    max_steps: Option<f64>,
    num_train_epochs: Option<f64>,
    #[serde(default, deserialize_with = "last_values")]
    log_history: BTreeMap<String, f64>,
}

/// The progress in a `trainer_state.json`. `None` if the text is none, or is incomplete.
pub fn trainer_state(text: &str) -> Option<Update> {
    let state: TrainerState = lenient(text).ok()?;
    let mut update = Update::default();
    for (name, value) in &state.log_history {
        // The history is older than the state's own fields.
        if !matches!(name.as_str(), "step" | "epoch") {
            update.set(name, *value);
        }
    }
    let fields = [("epoch", state.epoch), ("step", Some(state.global_step))];
    let totals = [("max_steps", state.max_steps), ("num_train_epochs", state.num_train_epochs)];
    for (name, value) in fields.into_iter().chain(totals) {
        _ = value.map(|value| update.set(name, value));
    }
    Some(update)
}

/// The last value of each name in a list of objects. The list is never held in memory as a whole.
fn last_values<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, f64>, D::Error> {
    struct Entries;
    impl<'de> Visitor<'de> for Entries {
        type Value = BTreeMap<String, f64>;

        fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
            f.write_str("a list of objects")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut last = BTreeMap::new();
            while let Some(entry) = list.next_element::<Map<String, Value>>()? {
                last.extend(entry.iter().filter_map(|(name, value)| Some((name.clone(), number(value)?))));
            }
            Ok(last)
        }
    }
    deserializer.deserialize_seq(Entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;
    use proptest::prelude::*;
    use protocol::progress::{LEARNING_RATE, Progress, Source};

    const POSTS: &str = include_str!("../../../../tests/fixtures/progress/transformers-5.23-posts.jsonl");
    const STATE: &str = include_str!("../../../../tests/fixtures/progress/transformers-4.57-trainer_state.json");

    #[test]
    fn hugging_face_trainer_posts_are_parsed() {
        let mut progress = Progress::default();
        for line in POSTS.lines() {
            assert!(progress.merge(&parse(line).unwrap(), Source::Post, Timestamp::UNIX_EPOCH));
        }
        let value = |reading: Option<protocol::progress::Reading>| reading.unwrap().value;
        assert_eq!((value(progress.step), value(progress.steps)), (1114.0, 3000.0));
        assert_eq!((value(progress.epoch), value(progress.eta_seconds)), (1.11, 42.0));
        assert_eq!(progress.metric(LOSS), Some(0.6928330993652344));
        assert_eq!(progress.metric(LEARNING_RATE), Some(3.1683333333333335e-05));
        assert_eq!(progress.metric("eval_accuracy"), Some(0.4));
        assert!((progress.percent().unwrap() - 37.13).abs() < 0.01);
    }

    #[test]
    fn trainer_state_of_a_checkpoint_is_parsed() {
        let update = trainer_state(STATE).unwrap();
        assert_eq!(
            (update.step, update.steps, update.epoch, update.epochs),
            (Some(30.0), Some(30.0), Some(3.0), Some(3.0))
        );
        assert!(update.metrics.contains_key(LOSS) && update.metrics.contains_key("eval_loss"));
        let nan =
            r#"{"global_step": 4, "epoch": 0.5, "log_history": [{"loss": 1.0, "step": 2}, {"loss": NaN, "step": 4}]}"#;
        let update = trainer_state(nan).unwrap();
        assert!(update.lost().unwrap().is_nan());
        assert_eq!((update.step, update.steps), (Some(4.0), None));
        assert_eq!(trainer_state(&STATE[..STATE.len() / 2]), None);
        assert_eq!(trainer_state("{}"), None);
    }

    #[test]
    fn flat_objects_and_python_numbers_are_parsed() {
        let update =
            parse(r#"{"step": 10, "total_steps": "100", "loss": NaN, "metrics": {"acc": 0.5}, "phase": "train"}"#)
                .unwrap();
        assert_eq!((update.step, update.steps), (Some(10.0), Some(100.0)));
        assert!(update.metrics[LOSS].is_nan());
        assert_eq!(update.metrics["accuracy"], 0.5);
        assert_eq!(parse(r#"{"loss": -Infinity}"#).unwrap().lost(), Some(f64::NEG_INFINITY));
        assert!(parse(r#"{"message": "x: NaN, y"}"#).is_err());
    }

    #[test]
    fn invalid_progress_json_is_explained() {
        assert!(parse("loss=1").unwrap_err().contains("line 1"));
        assert!(parse("[1]").unwrap_err().contains("no JSON object"));
        assert!(parse("{}").unwrap_err().contains("such as"));
    }

    #[test]
    fn lines_with_a_named_metric_are_parsed() {
        let named = ["val_loss".to_owned(), "accuracy".to_owned()];
        let update = parse_line(r#"{"step": 3, "val_loss": 0.5, "level": 2}"#, &named).unwrap();
        assert_eq!((update.step, update.metrics), (Some(3.0), [("val_loss".to_owned(), 0.5)].into()));
        assert_eq!(parse_line(r#"{"step": 3, "acc": 0.5}"#, &named).unwrap().metrics["accuracy"], 0.5);
        for line in [
            r#"{"accuracy": 0.95, "optimizer": "adam"}"#,
            r#"{"step": 3, "msg": "val_loss"}"#,
            r#"{"step": 3, "accuracy": "n/a"}"#,
            r#"{"step": 3, "target": {"accuracy": 0.95}}"#,
            r#"{"step": 3, "f1": 0.95}"#,
            r#"{"step": "warm-up", "accuracy": 0.95}"#,
        ] {
            assert_eq!(parse_line(line, &named), None, "{line}");
        }
    }

    #[test]
    fn structured_log_lines_are_parsed() {
        let line = r#"{"ts": 1763730000.5, "level": "info", "pid": 7, "epoch": 3, "loss": 0.25, "lr": 1e-4}"#;
        let update = parse_line(line, &[]).unwrap();
        assert_eq!((update.epoch, update.metrics.len()), (Some(3.0), 2));
        assert_eq!(parse_line(r#"{"level": "info", "step": 3, "msg": "loading"}"#, &[]), None);
    }

    proptest! {
        #[test]
        fn json_parsers_survive_any_text(text: String) {
            let _ = (parse(&text), parse_line(&text, &[]), trainer_state(&text));
        }
    }
}
