//! The trials of a search.

use crate::value::Parameters;
use serde::{Deserialize, Serialize};

/// Trials in the order in which they were suggested.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct History {
    /// Finished trials of an earlier search over the same space and metric. The models learn from them. They are not
    /// counted: the first suggestion of the grid is its first point.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<Trial>,
    /// Trials of this search. The first one has number 1.
    #[serde(default)]
    pub trials: Vec<Trial>,
}

/// One trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// What the search suggested.
    pub parameters: Parameters,
    /// Its state.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// State of a trial, and its result.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state")]
pub enum Outcome {
    /// Suggested and without a result so far.
    Running,
    /// Ended with a value of the metric. NaN and infinities are results, as bad as the worst one.
    Finished {
        /// Value of the metric.
        #[serde(with = "protocol::number")]
        value: f64,
    },
    /// Ended by early stopping. It ranks after all finished trials, and trials stopped at a later step rank first.
    Stopped {
        /// Step of the last reading.
        step: u64,
        /// The last reading of the metric.
        #[serde(with = "protocol::number")]
        value: f64,
    },
    /// Ended without a value.
    Failed,
}

/// Whether lower or higher values of the metric are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Goal {
    /// Lower values are better.
    Minimize,
    /// Higher values are better.
    Maximize,
}

impl Goal {
    /// The value as a loss: lower is better, and what is not finite is infinitely bad.
    #[must_use]
    pub fn loss(self, value: f64) -> f64 {
        match self {
            _ if !value.is_finite() => f64::INFINITY,
            Self::Minimize => value,
            Self::Maximize => -value,
        }
    }

    /// Number (from 1) and value of the best finished trial; the first one of equal ones.
    pub fn best(self, trials: &[Trial]) -> Option<(usize, f64)> {
        let finished = trials.iter().enumerate().filter_map(|(at, trial)| match trial.outcome {
            Outcome::Finished { value } if value.is_finite() => Some((at + 1, value)),
            _ => None,
        });
        finished.min_by(|(_, one), (_, other)| self.loss(*one).total_cmp(&self.loss(*other)))
    }
}
