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
    /// Whether the program counts it as a percentage, which `value` has as a share.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_percentage: bool,
}

impl NumberedReading {
    /// Whether it is `target` or more. What is above 1 is a percentage, if the program counts in percentages.
    #[must_use]
    pub fn reaches(&self, target: f64) -> bool {
        let is_percentage = self.is_percentage && target > 1.0;
        self.value >= if is_percentage { target / 100.0 } else { target }
    }
}

impl MetricHistory {
    /// Files a reading under the next number; of more than a hundred the oldest goes.
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
    fn a_target_is_a_share_or_a_percentage_as_the_program_counts() {
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
