//! Progress and metrics of a program, merged from all sources. There is no I/O.
//!
//! An [`Update`] is one message from one source; [`Progress`] merges updates field by field.

use super::number;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of metrics. It exceeds what programs have, and protects the scraper.
const MAX_METRICS: usize = 100;
/// Maximum bytes of a metric's name.
const MAX_NAME: usize = 100;

/// Source of a value, in order of precedence for each field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Source {
    /// Posted to the agent in the Kubeflow Trainer's protocol.
    Post,
    /// Written to the file named by `TRAININGJOB_PROGRESS_FILE`.
    File,
    /// Parsed from stdout or stderr.
    Output,
    /// `trainer_state.json` of the newest checkpoint.
    Checkpoint,
    /// The requested epochs in `HYPERPARAM_EPOCHS`, known before the program prints anything.
    Environment,
    /// A source named by a newer agent.
    #[serde(other)]
    Other,
}

/// A value with its source and time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// The value. NaN and infinities are the strings `"NaN"`, `"+Inf"` and `"-Inf"` in JSON.
    #[serde(with = "number")]
    pub value: f64,
    pub time: Timestamp,
    pub source: Source,
}

/// The known progress of a program. Values that were never reported are absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Progress {
    /// Epoch as the program counts; the Hugging Face Trainer reports fractions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<Reading>,
    /// Total number of epochs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epochs: Option<Reading>,
    /// Step of the whole run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<Reading>,
    /// Total number of steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<Reading>,
    /// The percentage as reported. Use [`Progress::percent`] for display.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reported_percent: Option<Reading>,
    /// Remaining seconds, as reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eta_seconds: Option<Reading>,
    /// Metrics by name: [`LOSS`], [`ACCURACY`], [`LEARNING_RATE`], [`THROUGHPUT`], and others by the program's names.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, Reading>,
}

pub const LOSS: &str = "loss";
pub const ACCURACY: &str = "accuracy";
pub const LEARNING_RATE: &str = "learningRate";
pub const THROUGHPUT: &str = "throughput";

impl Progress {
    /// Merges an update from one source. Returns whether anything changed.
    pub fn merge(&mut self, update: &Update, source: Source, time: Timestamp) -> bool {
        let mut changed = false;
        let fields = [
            (&mut self.epoch, update.epoch),
            (&mut self.epochs, update.epochs),
            (&mut self.step, update.step),
            (&mut self.steps, update.steps),
            (&mut self.reported_percent, update.percent),
            (&mut self.eta_seconds, update.eta_seconds),
        ];
        for (field, value) in fields {
            let said = value.map(|value| Reading { value, time, source });
            if let Some(said) = said.filter(|_| field.is_none_or(|known| source <= known.source)) {
                *field = Some(said);
                changed = true;
            }
        }
        for (name, &value) in &update.metrics {
            let is_believed = match self.metrics.get(name) {
                Some(known) => source <= known.source,
                None => self.metrics.len() < MAX_METRICS,
            };
            if is_believed {
                self.metrics.insert(name.clone(), Reading { value, time, source });
                changed = true;
            }
        }
        changed
    }

    /// Percentage of steps if their total is known, else of epochs, else as reported, from 0 to 100. It is never estimated.
    ///
    /// A later percentage from the same source takes precedence over its steps. The Hugging Face Trainer's last message
    /// contains only 100.
    pub fn percent(&self) -> Option<f64> {
        let reported = self.reported_percent.map(|reading| reading.value);
        if let (Some(percent), Some(step)) = (self.reported_percent, self.step)
            && percent.source == step.source
            && percent.time > step.time
        {
            return reported.map(|percent| percent.clamp(0.0, 100.0));
        }
        let ratio = |part: Option<Reading>, whole: Option<Reading>| {
            let (part, whole) = (part?.value, whole?.value);
            (whole > 0.0).then_some(part / whole * 100.0)
        };
        ratio(self.step, self.steps)
            .or_else(|| ratio(self.epoch, self.epochs))
            .or(reported)
            .filter(|percent| percent.is_finite())
            .map(|percent| percent.clamp(0.0, 100.0))
    }

    /// The last reading, with its time and source.
    pub fn last(&self) -> Option<Reading> {
        let fields = [self.epoch, self.epochs, self.step, self.steps, self.reported_percent, self.eta_seconds];
        let said = fields.into_iter().flatten().chain(self.metrics.values().copied());
        said.filter(|reading| reading.source != Source::Environment).max_by_key(|reading| reading.time)
    }

    pub fn metric(&self, name: &str) -> Option<f64> {
        self.metrics.get(name).map(|reading| reading.value)
    }
}

/// One message from one source.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Update {
    pub epoch: Option<f64>,
    pub epochs: Option<f64>,
    pub step: Option<f64>,
    pub steps: Option<f64>,
    pub percent: Option<f64>,
    pub eta_seconds: Option<f64>,
    pub metrics: BTreeMap<String, f64>,
    /// Metrics that the program reports as percentages; their values here are shares.
    pub percentages: BTreeSet<String>,
    /// Whether the meaning of the values is certain even without an epoch or a step.
    pub is_certain: bool,
}

impl Update {
    /// Stores `value` under a program's name for it, which may be an alias of a field. Counts below 0 are ignored, because
    /// many programs use them for "unknown". NaN counts are ignored too.
    pub fn set(&mut self, name: &str, value: f64) {
        let count = (value.is_finite() && value >= 0.0).then_some(value);
        match field(name) {
            Field::Epoch => self.epoch = count.or(self.epoch),
            Field::Epochs => self.epochs = count.or(self.epochs),
            Field::Step => self.step = count.or(self.step),
            Field::Steps => self.steps = count.filter(|&steps| steps > 0.0).or(self.steps),
            Field::Percent => self.percent = count.or(self.percent),
            Field::Eta => self.eta_seconds = count.or(self.eta_seconds),
            // The mean over all steps, which the Hugging Face Trainer adds at its end, is not the loss beside it.
            Field::Alias(name) => _ = self.metrics.entry(name.to_owned()).or_insert(value),
            Field::Metric(name) => {
                let end = (0..=name.len().min(MAX_NAME)).rev().find(|&end| name.is_char_boundary(end)).unwrap_or(0);
                if end > 0 && !name.contains(char::is_control) {
                    self.metrics.insert(name[..end].to_owned(), value);
                }
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the values are reliable enough for decisions. A printed value may be a target, the best so far, or
    /// unrelated. With an epoch or a step it belongs to the training.
    pub fn is_sure(&self, source: Source) -> bool {
        source != Source::Output || self.is_certain || self.epoch.is_some() || self.step.is_some()
    }

    /// The loss if it is NaN or infinite.
    pub fn lost(&self) -> Option<f64> {
        self.metrics.get(LOSS).copied().filter(|loss| !loss.is_finite())
    }
}

enum Field<'n> {
    Epoch,
    Epochs,
    Step,
    Steps,
    Percent,
    Eta,
    Metric(&'n str),
    /// Alias of a metric, used unless the same message also contains the metric's own name.
    Alias(&'static str),
}

/// The metric that `name` stands for.
pub fn field_metric(name: &str) -> &str {
    match field(name) {
        Field::Metric(metric) | Field::Alias(metric) => metric,
        _ => name,
    }
}

/// The field that programs mean by `name`.
fn field(name: &str) -> Field<'_> {
    let name = name.trim();
    let plain: String =
        name.chars().filter(|c| !matches!(c, '_' | '-' | ' ')).map(|c| c.to_ascii_lowercase()).collect();
    match plain.as_str() {
        "epoch" | "currentepoch" => Field::Epoch,
        "epochs" | "totalepochs" | "numepochs" | "numtrainepochs" | "maxepochs" => Field::Epochs,
        "step" | "currentstep" | "globalstep" | "iteration" | "iter" => Field::Step,
        "steps" | "totalsteps" | "numsteps" | "maxsteps" | "totaliterations" => Field::Steps,
        "percent" | "progress" | "progresspercent" | "progresspercentage" => Field::Percent,
        "eta" | "etaseconds" | "estimatedremainingseconds" => Field::Eta,
        "loss" => Field::Metric(LOSS),
        "trainloss" | "trainingloss" | "train/loss" | "losstrain" | "lmloss" | "totalloss" | "steploss"
        | "reducedtrainloss" => Field::Alias(LOSS),
        "accuracy" | "acc" => Field::Metric(ACCURACY),
        "trainacc" | "trainaccuracy" | "acctrain" | "train/accuracy" | "train/acc" => Field::Alias(ACCURACY),
        "learningrate" | "lr" | "train/learningrate" | "train/lr" => Field::Metric(LEARNING_RATE),
        "throughput" => Field::Metric(THROUGHPUT),
        "samplespersec"
        | "samplespersecond"
        | "trainsamplespersecond"
        | "samples/s"
        | "samples/sec"
        | "images/s"
        | "images/sec"
        | "tokenspersec"
        | "tokenspersecond"
        | "tokenspersecondpergpu"
        | "tokens/s"
        | "tokens/sec"
        | "tok/s"
        | "tok/sec"
        | "tps" => Field::Alias(THROUGHPUT),
        _ => Field::Metric(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn update(values: &[(&str, f64)]) -> Update {
        let mut update = Update::default();
        values.iter().for_each(|&(name, value)| update.set(name, value));
        update
    }

    #[test]
    fn highest_priority_source_wins_per_field() {
        let mut progress = Progress::default();
        assert!(progress.merge(&update(&[("step", 500.0), ("max_steps", 1000.0)]), Source::Checkpoint, at(1)));
        assert!(progress.merge(&update(&[("step", 7.0), ("loss", 0.5)]), Source::Output, at(2)));
        assert!(!progress.merge(&update(&[("step", 600.0)]), Source::Checkpoint, at(3)));
        assert!(progress.merge(&update(&[("loss", 0.4)]), Source::Post, at(4)));
        assert!(progress.merge(&update(&[("loss", 0.3), ("lr", 0.1)]), Source::File, at(5)));
        let said = |reading: Option<Reading>| reading.map(|r| (r.value, r.time.as_second(), r.source));
        assert_eq!(said(progress.step), Some((7.0, 2, Source::Output)));
        assert_eq!(said(progress.steps), Some((1000.0, 1, Source::Checkpoint)));
        assert_eq!(said(progress.metrics.get(LOSS).copied()), Some((0.4, 4, Source::Post)));
        assert_eq!(said(progress.metrics.get(LEARNING_RATE).copied()), Some((0.1, 5, Source::File)));
        assert_eq!(said(progress.last()), Some((0.1, 5, Source::File)));
        assert_eq!(progress.epoch, None);
    }

    #[test]
    fn percent_prefers_steps_then_epochs_then_reported() {
        let percent = |values: &[(&str, f64)]| {
            let mut progress = Progress::default();
            progress.merge(&update(values), Source::Post, at(0));
            progress.percent()
        };
        let all = [("progress", 90.0), ("epoch", 3.0), ("epochs", 10.0), ("step", 1.0), ("steps", 4.0)];
        assert_eq!(percent(&all), Some(25.0));
        assert_eq!(percent(&all[..4]), Some(30.0));
        assert_eq!(percent(&all[..2]), Some(90.0));
        assert_eq!(percent(&all[1..2]), None);
        assert_eq!(percent(&[("step", 9.0), ("steps", 0.0)]), None);
        assert_eq!(percent(&[("step", 9.0), ("steps", 8.0)]), Some(100.0));
        assert_eq!(percent(&[("step", 9.0), ("steps", -1.0), ("progress", f64::NAN)]), None);
    }

    #[test]
    fn latest_update_of_a_source_decides_percent() {
        let mut progress = Progress::default();
        progress.merge(&update(&[("step", 9.0), ("steps", 10.0), ("progress", 89.0)]), Source::Post, at(1));
        assert_eq!(progress.percent(), Some(90.0));
        progress.merge(&update(&[("progress", 100.0)]), Source::Post, at(2));
        assert_eq!(progress.percent(), Some(100.0));
        progress.merge(&update(&[("step", 10.0), ("progress", 100.0)]), Source::Post, at(3));
        assert_eq!(progress.percent(), Some(100.0));
    }

    #[test]
    fn configured_epochs_do_not_count_as_report() {
        let mut progress = Progress::default();
        progress.merge(&update(&[("epochs", 4.0)]), Source::Environment, at(1));
        assert_eq!((progress.last(), progress.percent()), (None, None));
        progress.merge(&update(&[("epoch", 1.0)]), Source::Output, at(2));
        assert_eq!(progress.percent(), Some(25.0));
        progress.merge(&update(&[("epochs", 2.0)]), Source::Checkpoint, at(3));
        assert_eq!(progress.percent(), Some(50.0));
    }

    #[test]
    fn metric_names_are_normalized() {
        let update = update(&[
            ("lm loss", 1.0),
            ("val_loss", 2.0),
            ("Acc", 0.5),
            ("grad norm", f64::NAN),
            ("\n", 1.0),
            ("", 1.0),
        ]);
        let names: Vec<_> = update.metrics.keys().map(String::as_str).collect();
        assert_eq!(names, ["accuracy", "grad norm", "loss", "val_loss"]);
    }

    #[test]
    fn library_names_map_to_loss_and_throughput() {
        for name in ["train_loss", "total_loss", "step_loss", "reduced_train_loss", "lm loss"] {
            assert_eq!(field_metric(name), LOSS, "{name}");
        }
        for name in ["tok/sec", "tokens/s", "tps", "tokens_per_second_per_gpu", "samples/sec", "images/s"] {
            assert_eq!(field_metric(name), THROUGHPUT, "{name}");
        }
        for name in ["train_loss_step", "aux_loss", "tps_max", "steps/s", "loss_scale"] {
            assert_eq!(field_metric(name), name);
        }
        assert_eq!(update(&[("total_loss", 2.0), ("loss", 1.0)]).metrics[LOSS], 1.0);
    }

    #[test]
    fn metric_names_are_bounded() {
        let mut progress = Progress::default();
        for n in 0..200 {
            progress.merge(&update(&[(&format!("{n}{}", "ü".repeat(200)), 1.0)]), Source::Post, at(0));
        }
        assert_eq!(progress.metrics.len(), MAX_METRICS);
        assert!(progress.metrics.keys().all(|name| name.len() <= MAX_NAME));
    }

    #[test]
    fn non_finite_values_are_written_as_in_prometheus() {
        let mut progress = Progress::default();
        let values = [("loss", f64::NAN), ("a", f64::INFINITY), ("b", f64::NEG_INFINITY), ("c", 1e300), ("step", 30.0)];
        progress.merge(&update(&values), Source::Output, at(0));
        let json = serde_json::to_value(&progress).unwrap();
        assert_eq!(json["step"], serde_json::json!({"value": 30, "time": "1970-01-01T00:00:00Z", "source": "Output"}));
        let texts = ["loss", "a", "b"].map(|name| json["metrics"][name]["value"].as_str().unwrap().to_owned());
        assert_eq!(texts, ["NaN", "+Inf", "-Inf"]);
        let again: Progress = serde_json::from_value(json).unwrap();
        assert!(again.metric(LOSS).unwrap().is_nan());
        assert_eq!((again.metric("a"), again.metric("c")), (Some(f64::INFINITY), Some(1e300)));
        assert_eq!(serde_json::from_str::<Progress>("{}").unwrap(), Progress::default());
    }
}
