//! Histories of metrics for decisions that must not miss a reading between two polls.

use super::number;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Number of readings kept for each metric.
const KEPT: usize = 100;

/// Readings of one metric.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MetricHistory {
    /// Number of readings since the agent's start.
    pub count: u64,
    /// The last readings, the oldest first.
    pub recent: VecDeque<NumberedReading>,
}

/// One reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NumberedReading {
    /// Number of the reading, from 1.
    pub n: u64,
    /// Value of the reading; NaN and infinities are allowed.
    #[serde(with = "number")]
    pub value: f64,
    /// Step of the program at that time, if known.
    #[serde(with = "number::option", skip_serializing_if = "Option::is_none")]
    pub step: Option<f64>,
    /// Whether the program reports a percentage; `value` is then converted to a share.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_percentage: bool,
}

impl NumberedReading {
    /// Whether the value is at least `target`. A target above 1 is taken as a percentage if the program reports
    /// percentages.
    #[must_use]
    pub fn reaches(&self, target: f64) -> bool {
        let is_percentage = self.is_percentage && target > 1.0;
        self.value >= if is_percentage { target / 100.0 } else { target }
    }
}

impl MetricHistory {
    /// Adds a reading under the next number. Beyond a hundred readings the oldest is dropped.
    pub fn add(&mut self, value: f64, step: Option<f64>, is_percentage: bool) {
        self.count += 1;
        if self.recent.len() == KEPT {
            self.recent.pop_front();
        }
        self.recent.push_back(NumberedReading { n: self.count, value, step, is_percentage });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_accepts_share_or_percentage() {
        let reaches = |value: f64, is_percentage, target| {
            NumberedReading { value, is_percentage, ..NumberedReading::default() }.reaches(target)
        };
        // Printed as 57%.
        let share = 57.0 / 100.0;
        assert!(reaches(share, true, 57.0) && reaches(share, true, 0.57));
        assert!(!reaches(share, true, 57.1) && !reaches(share, true, 0.571));
        // Printed as 0.57, or as 57 without a sign.
        assert!(reaches(0.57, false, 0.57) && !reaches(0.57, false, 57.0));
        assert!(reaches(57.0, false, 57.0) && !reaches(0.97, false, 57.0));
        assert!(reaches(1.0, true, 100.0) && reaches(1.0, true, 1.0) && !reaches(0.01, true, 1.0));
        assert!(!reaches(f64::NAN, true, 95.0));
    }
}
