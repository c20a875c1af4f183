//! Prometheus' text format, as the operator and the agents write it.

pub mod usage;

use jiff::Timestamp;
use std::fmt::Write;

/// A page in progress.
#[derive(Default)]
pub struct Page {
    text: String,
    name: String,
    /// Header of the family, written before its first sample. A family without samples has none.
    head: String,
}

impl Page {
    /// Begins a family, a `gauge` or a `counter`. The samples that follow belong to it.
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        name.clone_into(&mut self.name);
        self.head = format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// Adds a sample. `labels` has the form that [`labels`] returns.
    pub fn sample(&mut self, labels: &str, value: f64) {
        self.text.push_str(&std::mem::take(&mut self.head));
        let value = match value {
            f64::INFINITY => "+Inf".to_owned(),
            f64::NEG_INFINITY => "-Inf".to_owned(),
            value => value.to_string(),
        };
        let _ = writeln!(self.text, "{}{{{labels}}} {value}", self.name);
    }

    /// Returns the whole page.
    #[must_use]
    pub fn text(self) -> String {
        self.text
    }
}

/// Formats names and values as they stand between the braces.
#[must_use]
pub fn labels(labels: &[(&str, &str)]) -> String {
    let label = |(name, value): &(&str, &str)| {
        format!("{name}=\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
    };
    labels.iter().map(label).collect::<Vec<_>>().join(",")
}

/// Seconds since 1970.
#[must_use]
pub fn seconds(time: Timestamp) -> f64 {
    time.as_millisecond() as f64 / 1000.0
}
