//! Probability that a trial at a point has a result instead of a failure.
//!
//! Two explanations are compared. Either one trial in four fails by chance, or trials like this one always fail. Trials are
//! alike if they are near: a failure among them speaks for the second explanation, a result against it. Trials are also
//! alike if they share the value of an axis that has few values, as long as no trial with that value had a result.

use crate::evidence::Evidence;
use crate::space::Space;
use libm::{exp, log1p};

/// Odds of the second explanation before there is a trial.
const PRIOR_ODDS: f64 = 0.1;
/// What a failure among similar trials adds to the logarithm of the odds, and a result takes from it: ln 4.
const BY_TRIAL: f64 = 2.0 * std::f64::consts::LN_2;
/// Highest logarithm of the odds, so that its exponential is finite and a slope is left.
const HIGHEST: f64 = 100.0;
/// Distance on one axis at which trials are near.
const NEAR: f64 = 0.1;
/// An axis with more values has no value that is compared on its own.
const MOST_VALUES: f64 = 16.0;

pub(crate) struct Failures {
    /// Points with their weight in the logarithm of the odds. Empty if no trial has failed.
    weighted: Vec<(Vec<f64>, f64)>,
    is_categorical: Vec<bool>,
    /// By axis: the logarithm of the odds of each value that never had a result; empty for an axis with many values.
    by_value: Vec<Vec<(f64, f64)>>,
}

impl Failures {
    pub fn new(space: &Space, evidence: &Evidence) -> Self {
        let is_categorical = space.axes.iter().map(|axis| axis.domain.is_categorical()).collect();
        if evidence.failed.is_empty() {
            return Self { weighted: Vec::new(), is_categorical, by_value: Vec::new() };
        }
        let results = evidence.results.iter().map(|result| (result.point.clone(), -BY_TRIAL));
        let weighted: Vec<(Vec<f64>, f64)> =
            evidence.failed.iter().map(|point| (point.clone(), BY_TRIAL)).chain(results).collect();
        let by_value = space.axes.iter().enumerate().map(|(at, axis)| {
            let mut odds: Vec<(f64, f64)> = Vec::new();
            if axis.domain.count().is_none_or(|count| count > MOST_VALUES) {
                return odds;
            }
            let has_result = |at_value: f64| evidence.results.iter().any(|result| result.point[at] == at_value);
            for (point, weight) in weighted.iter().filter(|(point, _)| !has_result(point[at])) {
                match odds.iter_mut().find(|(value, _)| *value == point[at]) {
                    Some((_, sum)) => *sum += weight,
                    None if point[at].is_nan() => {}
                    None => odds.push((point[at], *weight)),
                }
            }
            odds
        });
        Self { by_value: by_value.collect(), weighted, is_categorical }
    }

    /// Whether no trial has failed.
    pub fn is_empty(&self) -> bool {
        self.weighted.is_empty()
    }

    /// Logarithm of the probability of a result, and its slopes on the given axes, which are numeric.
    pub fn log_success(&self, point: &[f64], axes: &[usize]) -> (f64, Vec<f64>) {
        let mut slopes = vec![0.0; axes.len()];
        if self.is_empty() {
            return (0.0, slopes);
        }
        let reach = NEAR * NEAR * point.len() as f64;
        let mut log_odds = 0.0;
        for (other, weight) in &self.weighted {
            let near = weight * exp(-0.5 * self.distance(point, other) / reach);
            log_odds += near;
            for (slope, axis) in slopes.iter_mut().zip(axes).filter(|(_, axis)| !other[**axis].is_nan()) {
                *slope -= near * (point[*axis] - other[*axis]) / reach;
            }
        }
        let known = self
            .by_value
            .iter()
            .zip(point)
            .filter_map(|(odds, at)| odds.iter().find(|(value, _)| value == at).map(|(_, log_odds)| *log_odds));
        let nearby = PRIOR_ODDS * exp(log_odds.min(HIGHEST));
        let odds = nearby + known.map(|log_odds| PRIOR_ODDS * exp(log_odds.min(HIGHEST))).sum::<f64>();
        slopes.iter_mut().for_each(|slope| *slope *= -nearby / (1.0 + odds));
        (-log1p(odds), slopes)
    }

    /// Squared. Where one of both lacks the parameter, as far as two choices.
    fn distance(&self, one: &[f64], other: &[f64]) -> f64 {
        let axes = one.iter().zip(other).zip(&self.is_categorical);
        axes.map(|((x, y), is_categorical)| match (x.is_nan(), y.is_nan()) {
            (true, true) => 0.0,
            (false, false) if !is_categorical => (x - y) * (x - y),
            (false, false) if x == y => 0.0,
            _ => 1.0,
        })
        .sum()
    }
}
