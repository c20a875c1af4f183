//! Metrics whose every reading counts: whoever decides by them must miss none between two looks.

use super::number;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Readings kept of each metric.
const KEPT: usize = 100;

/// The readings of one metric.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MetricHistory {
    /// How many there were since the agent's start.
    pub count: u64,
    /// The last of them, oldest first.
    pub recent: VecDeque<NumberedReading>,
}

/// One reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NumberedReading {
    /// Its number, from 1.
    pub n: u64,
    /// NaN and the infinities are values too.
    #[serde(with = "number")]
    pub value: f64,
    /// The step that the program was at, as far as it has told.
    #[serde(with = "number::option", skip_serializing_if = "Option::is_none")]
    pub step: Option<f64>,
}

impl MetricHistory {
    /// Files a reading under the next number; of more than a hundred the oldest goes.
    pub fn add(&mut self, value: f64, step: Option<f64>) {
        self.count += 1;
        if self.recent.len() == KEPT {
            self.recent.pop_front();
        }
        self.recent.push_back(NumberedReading { n: self.count, value, step });
    }
}
