//! The next trial of a search.

use crate::draw::{Draw, Purpose};
use crate::evidence::Evidence;
use crate::history::{Goal, History};
use crate::space::{Problem, Space};
use crate::value::Parameters;
use crate::{gp, grid, tpe};
use serde::{Deserialize, Serialize};

/// Trials at evenly spread points before the models are used.
const START: usize = 10;
/// `auto` takes the Gaussian process up to these numbers of parameters and of results.
const GP_PARAMETERS: usize = 20;
const GP_RESULTS: usize = 200;
/// Random points that are tried to replace one that exists already.
const REPLACEMENTS: usize = 200;

/// How trials are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Method {
    /// All combinations, in the order of [`Space::names`].
    Grid,
    /// Independent random points.
    Random,
    /// Points at which a model of the results expects an improvement.
    Bayes,
}

/// Model of the method `bayes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Algorithm {
    /// The Gaussian process up to 20 parameters and 200 results, otherwise the Parzen estimator.
    #[default]
    Auto,
    /// Tree-structured Parzen estimator.
    Tpe,
    /// Gaussian process.
    Gp,
}

/// Settings of a search, besides its space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Settings {
    /// How trials are chosen.
    pub method: Method,
    /// Model of the method `bayes`; other methods ignore it.
    #[serde(default)]
    pub algorithm: Algorithm,
    /// Whether lower or higher values of the metric are better.
    pub goal: Goal,
    /// Seed of all random numbers.
    #[serde(default)]
    pub seed: u64,
}

/// Parameters of the trial with the number `history.trials.len() + 1`; `None` if the grid has no more points.
///
/// Running trials are taken into account: other points are suggested meanwhile. A point is suggested twice only if the
/// space has few values, and nearly all were tried.
///
/// # Errors
/// A trial of the history has parameters that the space does not contain, or `grid` is used with a continuous parameter.
pub fn suggest(space: &Space, settings: &Settings, history: &History) -> Result<Option<Parameters>, Problem> {
    let trial = history.trials.len();
    if settings.method == Method::Grid {
        check_grid(space)?;
        return Ok(grid::point(space, trial).map(|point| space.decode(&point)));
    }
    let evidence = Evidence::new(space, settings.goal, history)?;
    let candidates = match settings.method {
        Method::Bayes if has_results(&evidence, trial) => match takes_gp(space, settings, &evidence) {
            true => gp::candidates(space, &evidence, settings.seed, trial),
            false => tpe::candidates(space, &evidence, settings.seed, trial),
        },
        Method::Bayes => vec![start_point(space, settings.seed, trial)],
        Method::Random | Method::Grid => {
            vec![random_point(space, &mut Draw::new(settings.seed, Purpose::Random, trial))]
        }
    };
    let mut replacement = Draw::new(settings.seed, Purpose::Replacement, trial);
    let replacements = (0..REPLACEMENTS).map(|_| random_point(space, &mut replacement));
    let first = candidates.first().map(|point| space.decode(point));
    for point in candidates.into_iter().chain(replacements) {
        let parameters = space.decode(&point);
        if !evidence.contains(&space.encode(&parameters)?) {
            return Ok(Some(parameters));
        }
    }
    Ok(first)
}

/// The number of points of the grid, counted up to `limit`.
///
/// # Errors
/// A parameter is continuous.
pub fn grid_size(space: &Space, limit: usize) -> Result<usize, Problem> {
    check_grid(space)?;
    Ok(grid::size(space, limit).unwrap_or(limit))
}

fn check_grid(space: &Space) -> Result<(), Problem> {
    match space.axes.iter().find(|axis| axis.domain.count().is_none()) {
        Some(axis) => Err(Problem {
            field: format!("parameters.{}.step", axis.name),
            message: "a grid needs finitely many values; set step or values, or use random or bayes".to_owned(),
        }),
        None => Ok(()),
    }
}

/// Models need two different results at least.
fn has_results(evidence: &Evidence, trial: usize) -> bool {
    let finite = evidence.results.iter().filter(|result| result.loss.is_finite()).count();
    let known = trial.max(evidence.results.len());
    known >= START && finite >= 2
}

fn takes_gp(space: &Space, settings: &Settings, evidence: &Evidence) -> bool {
    match settings.algorithm {
        Algorithm::Gp => true,
        Algorithm::Tpe => false,
        Algorithm::Auto => space.axes.len() <= GP_PARAMETERS && evidence.results.len() <= GP_RESULTS,
    }
}

fn start_point(space: &Space, seed: u64, trial: usize) -> Vec<f64> {
    // One sequence for all trials.
    let sobol = Draw::new(seed, Purpose::Start, 0).sobol();
    point(space, |axis| sobol.coordinate(trial, axis))
}

pub(crate) fn random_point(space: &Space, draw: &mut Draw) -> Vec<f64> {
    point(space, |_| draw.uniform())
}

/// The point with these coordinates, each one in 0..1 and uniform over the values of its axis.
pub(crate) fn point(space: &Space, mut uniform: impl FnMut(usize) -> f64) -> Vec<f64> {
    let axes = space.axes.iter().enumerate().map(|(at, axis)| {
        let uniform = uniform(at);
        match axis.domain.count().filter(|_| axis.domain.is_categorical()) {
            Some(count) => libm::floor(uniform * count).min(count - 1.0),
            None => axis.domain.snap(uniform),
        }
    });
    space.without_inactive(&axes.collect::<Vec<_>>())
}
