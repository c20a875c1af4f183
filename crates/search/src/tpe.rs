//! The tree-structured Parzen estimator.
//!
//! One density is made of the best trials and one of all others. Of candidates that are drawn from the first, the one with
//! the highest ratio of both is suggested. The density is joint: a kernel of one trial spans all axes. The rules for
//! weights and widths, and their constants, are those of Optuna 5.0 (`optuna/samplers/_tpe`).

use crate::draw::{Draw, Purpose};
use crate::evidence::Evidence;
use crate::failures::Failures;
use crate::normal;
use crate::space::Space;
use libm::{exp, log};
use std::f64::consts::PI;

/// Share of the results that are called good, and the most of them.
const GOOD_SHARE: f64 = 0.1;
const MOST_GOOD: usize = 25;
/// The newest kernels that have full weight; older ones have less.
const FULL_WEIGHT: usize = 25;
/// Candidates of one suggestion.
const CANDIDATES: usize = 24;
/// A kernel is at least this share of the axis wide, or 1/(kernels + 1) with fewer kernels.
const NARROWEST: f64 = 0.01;
/// Draws from a normal distribution until one is in the axis; 2 of 3 are out at the worst.
const MOST_DRAWS: usize = 200;

/// Candidates, the best one first. Running trials count as bad ones, so that other points are tried first.
pub(crate) fn candidates(space: &Space, evidence: &Evidence, seed: u64, trial: usize) -> Vec<Vec<f64>> {
    let mut order: Vec<usize> = (0..evidence.results.len()).collect();
    order.sort_by(|one, other| evidence.results[*one].rank(&evidence.results[*other]));
    let count = (libm::ceil(GOOD_SHARE * order.len() as f64) as usize).clamp(1, MOST_GOOD);
    let (mut good, mut bad) = (order[..count.min(order.len())].to_vec(), order[count.min(order.len())..].to_vec());
    good.sort_unstable();
    bad.sort_unstable();
    let points = |list: Vec<usize>| list.into_iter().map(|at| evidence.results[at].point.as_slice());
    let good = Density::new(space, &points(good).collect::<Vec<_>>());
    let running = evidence.running.iter().map(Vec::as_slice);
    let bad = Density::new(space, &points(bad).chain(running).collect::<Vec<_>>());
    let failures = Failures::new(space, evidence);
    let mut draw = Draw::new(seed, Purpose::Tpe, trial);
    let mut found: Vec<(f64, Vec<f64>)> = (0..CANDIDATES)
        .map(|_| {
            let point = good.sample(&mut draw);
            (good.log_density(&point) - bad.log_density(&point) + failures.log_success(&point, &[]).0, point)
        })
        .collect();
    found.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    found.into_iter().map(|(_, point)| point).collect()
}

/// A mixture of kernels. The last kernel is the prior, which covers the whole space.
struct Density<'s> {
    space: &'s Space,
    weights: Vec<f64>,
    log_weights: Vec<f64>,
    /// By axis, then by kernel.
    kernels: Vec<Vec<Kernel>>,
}

#[derive(Clone, Copy)]
enum Kernel {
    /// A normal distribution within 0..1. `log_scale` is the logarithm of its width times its mass within.
    Number { mean: f64, width: f64, mass: f64, log_scale: f64 },
    /// `log_chosen` for the choice of the trial, `log_other` for each other one.
    Choice { chosen: f64, log_chosen: f64, log_other: f64 },
}

impl Kernel {
    fn number(mean: f64, width: f64) -> Self {
        let mass = normal::between(-mean / width, (1.0 - mean) / width);
        Self::Number { mean, width, mass, log_scale: log(width * mass) + 0.5 * log(2.0 * PI) }
    }
}

impl<'s> Density<'s> {
    fn new(space: &'s Space, points: &[&[f64]]) -> Self {
        let mut weights = trial_weights(points.len());
        weights.push(1.0);
        let total: f64 = weights.iter().sum();
        weights.iter_mut().for_each(|weight| *weight /= total);
        let kernels = space.axes.iter().enumerate().map(|(at, axis)| {
            let coordinates: Vec<f64> = points.iter().map(|point| point[at]).collect();
            match axis.domain.count().filter(|_| axis.domain.is_categorical()) {
                Some(count) => choices(&coordinates, count),
                None => numbers(&coordinates),
            }
        });
        let kernels = kernels.collect();
        let log_weights = weights.iter().map(|weight| log(*weight)).collect();
        Self { space, weights, log_weights, kernels }
    }

    fn sample(&self, draw: &mut Draw) -> Vec<f64> {
        let kernel = draw.weighted(&self.weights);
        let mut point = vec![f64::NAN; self.space.axes.len()];
        for (at, axis) in self.space.axes.iter().enumerate() {
            if !axis.is_active(self.space, &point) {
                continue;
            }
            point[at] = match self.kernels[at][kernel] {
                Kernel::Number { mean, width, .. } => axis.domain.snap(truncated_normal(draw, mean, width)),
                Kernel::Choice { chosen, log_chosen, log_other } => {
                    let count = axis.domain.count().unwrap_or(1.0);
                    let extra = (exp(log_chosen) - exp(log_other)).max(0.0);
                    if draw.uniform() < extra { chosen } else { draw.below(count) }
                }
            };
        }
        point
    }

    fn log_density(&self, point: &[f64]) -> f64 {
        let mut logs = self.log_weights.clone();
        for ((axis, kernels), at) in self.space.axes.iter().zip(&self.kernels).zip(point) {
            if at.is_nan() {
                continue;
            }
            let cell = axis.domain.cell(*at);
            for (sum, kernel) in logs.iter_mut().zip(kernels) {
                *sum += kernel.log_density(*at, cell);
            }
        }
        let highest = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        highest + log(logs.iter().map(|one| exp(one - highest)).sum())
    }
}

impl Kernel {
    fn log_density(&self, at: f64, cell: Option<(f64, f64)>) -> f64 {
        match (*self, cell) {
            (Self::Choice { chosen, log_chosen, .. }, _) if chosen == at => log_chosen,
            (Self::Choice { log_other, .. }, _) => log_other,
            (Self::Number { mean, width, mass, .. }, Some((low, high))) => {
                log((normal::between((low - mean) / width, (high - mean) / width) / mass).max(1e-300))
            }
            (Self::Number { mean, width, log_scale, .. }, None) => {
                let z = (at - mean) / width;
                -0.5 * z * z - log_scale
            }
        }
    }
}

/// Older trials weigh less: linearly from 1/n, and the newest ones fully.
fn trial_weights(count: usize) -> Vec<f64> {
    let older = count.saturating_sub(FULL_WEIGHT);
    let least = 1.0 / count as f64;
    let ramp = (0..older).map(|at| match older {
        1 => least,
        _ => least + (1.0 - least) * at as f64 / (older - 1) as f64,
    });
    ramp.chain(std::iter::repeat_n(1.0, count - older)).collect()
}

/// Kernels of a numeric axis. Trials without the parameter have the prior's.
fn numbers(coordinates: &[f64]) -> Vec<Kernel> {
    let prior = Kernel::number(0.5, 1.0);
    let mut sorted: Vec<(f64, usize)> =
        coordinates.iter().enumerate().filter(|(_, mean)| !mean.is_nan()).map(|(at, mean)| (*mean, at)).collect();
    sorted.push((0.5, coordinates.len()));
    sorted.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
    let narrowest = NARROWEST.max(1.0 / (sorted.len() + 1) as f64);
    let mut kernels = vec![prior; coordinates.len() + 1];
    for (place, (mean, at)) in sorted.iter().enumerate() {
        let below = place.checked_sub(1).map(|place| mean - sorted[place].0);
        let above = sorted.get(place + 1).map(|(next, _)| next - mean);
        // An outermost kernel looks inwards only, so that it does not reach into the empty border.
        let gap = match (below, above) {
            (Some(below), Some(above)) => below.max(above),
            (Some(gap), None) | (None, Some(gap)) => gap,
            (None, None) => 1.0,
        };
        if *at < coordinates.len() {
            kernels[*at] = Kernel::number(*mean, gap.clamp(narrowest, 1.0));
        }
    }
    kernels
}

fn choices(coordinates: &[f64], count: f64) -> Vec<Kernel> {
    let uniform = -log(count);
    let prior = Kernel::Choice { chosen: f64::NAN, log_chosen: uniform, log_other: uniform };
    let base = 1.0 / (coordinates.len() + 1) as f64;
    let total = 1.0 + base * count;
    let kernel = |chosen: &f64| match chosen.is_nan() {
        true => prior,
        false => {
            Kernel::Choice { chosen: *chosen, log_chosen: log((1.0 + base) / total), log_other: log(base / total) }
        }
    };
    coordinates.iter().map(kernel).chain([prior]).collect()
}

fn truncated_normal(draw: &mut Draw, mean: f64, width: f64) -> f64 {
    let mut draws = (0..MOST_DRAWS).map(|_| mean + width * draw.normal());
    draws.find(|at| (0.0..=1.0).contains(at)).unwrap_or(mean)
}
