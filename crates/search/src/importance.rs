//! How much each parameter decides about the result: PED-ANOVA (arXiv 2304.10255).
//!
//! For each parameter, the density of its values among the best tenth of the results is compared with that among all results, by
//! the Pearson divergence. Where the best results have the same values as all others, the parameter does not matter. A few
//! results differ from all by chance, too. What random choices of as many results show is therefore subtracted: the mean and one
//! standard deviation. A parameter that only some trials have counts in proportion to them.

use crate::draw::{Draw, Purpose};
use crate::evidence::{Evidence, Observation};
use crate::history::{Goal, History};
use crate::normal;
use crate::space::{Problem, Space};
use libm::{ceil, floor, pow, sqrt};

/// Minimum number of results of a parameter for which a share is computed.
pub const LEAST_RESULTS: usize = 20;
/// Share of the results that are called good, and the fewest of them.
const GOOD_SHARE: f64 = 0.1;
const LEAST_GOOD: usize = 2;
/// Cells of a numeric axis.
const CELLS: usize = 50;
/// Narrowest kernel, in cells: 90 % of it is in its own cell.
const NARROWEST: f64 = 0.5 / 1.64;
/// Random choices of results whose divergence is what chance does.
const CHANCES: usize = 20;

/// Share of each parameter in the differences between results, the largest first. The shares add up to 1. Parameters that fewer
/// than [`LEAST_RESULTS`] results have, or that make no difference, have none.
///
/// # Errors
/// A trial of the history is not in the space.
pub fn importance(space: &Space, goal: Goal, history: &History) -> Result<Vec<(String, f64)>, Problem> {
    let evidence = Evidence::new(space, goal, history)?;
    let mut ranked: Vec<&Observation> = evidence.results.iter().collect();
    ranked.sort_by(|one, other| one.rank(other));
    let mut shares: Vec<(String, f64)> = Vec::new();
    for (at, axis) in space.axes.iter().enumerate() {
        let values: Vec<f64> = ranked.iter().map(|result| result.point[at]).filter(|at| !at.is_nan()).collect();
        let scale = Scale { cells: axis.domain.count(), is_categorical: axis.domain.is_categorical() };
        // A parameter with one value decides nothing.
        if values.len() >= LEAST_RESULTS && scale.count() > 1 {
            let share = scale.divergence(values.iter().map(|value| scale.cell(*value)).collect());
            shares.push((axis.name.clone(), share * values.len() as f64 / ranked.len() as f64));
        }
    }
    shares.retain(|(_, share)| *share > 0.0);
    let total: f64 = shares.iter().map(|(_, share)| share).sum();
    shares.iter_mut().for_each(|(_, share)| *share /= total);
    shares.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    Ok(shares)
}

/// An axis in cells.
struct Scale {
    /// Values of the axis; `None` if it is continuous.
    cells: Option<f64>,
    is_categorical: bool,
}

impl Scale {
    fn count(&self) -> usize {
        match self.cells {
            Some(count) if self.is_categorical => count as usize,
            Some(count) => (count as usize).min(CELLS),
            None => CELLS,
        }
    }

    fn cell(&self, at: f64) -> usize {
        let last = self.count() - 1;
        let cell = if self.is_categorical { at } else { floor(at * self.count() as f64) };
        (cell.max(0.0) as usize).min(last)
    }

    /// How much the best of these cells, which are in the order of their results, differ from all, less what chance does.
    fn divergence(&self, mut cells: Vec<usize>) -> f64 {
        let good = (ceil(GOOD_SHARE * cells.len() as f64) as usize).max(LEAST_GOOD);
        let all = self.density(&cells);
        let of = |some: &[usize]| pearson(&self.density(some), &all);
        let found = of(&cells[..good]);
        let chances: Vec<f64> = (0..CHANCES)
            .map(|number| {
                let mut draw = Draw::new(0, Purpose::Importance, number);
                for at in 0..good {
                    let other = at + draw.below((cells.len() - at) as f64) as usize;
                    cells.swap(at, other);
                }
                of(&cells[..good])
            })
            .collect();
        let mean = chances.iter().sum::<f64>() / CHANCES as f64;
        let squares: f64 = chances.iter().map(|chance| (chance - mean) * (chance - mean)).sum();
        (found - mean - sqrt(squares / (CHANCES - 1) as f64)).max(0.0)
    }

    /// A kernel for each result, and one that covers all cells.
    fn density(&self, cells: &[usize]) -> Vec<f64> {
        let count = self.count();
        let mut times = vec![0.0; count];
        cells.iter().for_each(|cell| times[*cell] += 1.0);
        let mut density = vec![1.0 / count as f64; count];
        if self.is_categorical {
            density.iter_mut().zip(&times).for_each(|(sum, times)| *sum += times);
        } else {
            let width = width(cells);
            for (mean, times) in times.iter().enumerate().filter(|(_, times)| **times > 0.0) {
                let within = |low: f64, high: f64| normal::between(low / width, high / width);
                let from_mean = |cell: usize| cell as f64 - mean as f64 - 0.5;
                let mass = within(from_mean(0), from_mean(count));
                for (cell, sum) in density.iter_mut().enumerate() {
                    *sum += times * within(from_mean(cell), from_mean(cell + 1)) / mass;
                }
            }
        }
        let total = cells.len() as f64 + 1.0;
        density.iter_mut().for_each(|sum| *sum /= total);
        density
    }
}

/// Width of the kernels by Scott's rule, in cells.
fn width(cells: &[usize]) -> f64 {
    let count = cells.len() as f64;
    let mean = cells.iter().sum::<usize>() as f64 / count;
    let squares: f64 = cells.iter().map(|cell| (*cell as f64 - mean) * (*cell as f64 - mean)).sum();
    let deviation = sqrt(squares / (count - 1.0).max(1.0));
    let mut sorted = cells.to_vec();
    sorted.sort_unstable();
    let quartile = |share: f64| sorted[(share * (count - 1.0)) as usize] as f64;
    let range = (quartile(0.75) - quartile(0.25)) / 1.34;
    (1.059 * range.min(deviation) * pow(count, -0.2)).max(NARROWEST)
}

fn pearson(some: &[f64], all: &[f64]) -> f64 {
    some.iter().zip(all).map(|(some, all)| all * (some / all - 1.0) * (some / all - 1.0)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Algorithm, Method, Outcome, Parameters, Settings, Trial, Value, suggest};
    use serde_json::json;

    fn space() -> Space {
        let declared = json!({
            "lr": {"type": "double", "min": 1e-5, "max": 0.1, "scale": "log"},
            "batch": {"type": "int", "values": [8, 16, 32, 64]},
            "dropout": {"type": "double", "min": 0, "max": 0.5},
            "opt": {"type": "categorical", "choices": ["sgd", "adam", "lamb"]},
            "momentum": {"type": "double", "min": 0, "max": 1, "when": {"parameter": "opt", "values": ["sgd"]}},
        });
        Space::new(&serde_json::from_value(declared).unwrap()).unwrap()
    }

    fn searched(method: Method, count: usize, seed: u64, value: fn(&Parameters) -> f64) -> History {
        let settings = Settings { method, algorithm: Algorithm::Tpe, goal: Goal::Minimize, seed };
        let mut history = History::default();
        for _ in 0..count {
            let parameters = suggest(&space(), &settings, &history).unwrap().unwrap();
            let outcome = Outcome::Finished { value: value(&parameters) };
            history.trials.push(Trial { parameters, outcome });
        }
        history
    }

    fn shares(goal: Goal, history: &History) -> Vec<(String, f64)> {
        importance(&space(), goal, history).unwrap()
    }

    fn share(shares: &[(String, f64)], name: &str) -> f64 {
        shares.iter().find(|(known, _)| known == name).map_or(0.0, |(_, share)| *share)
    }

    fn by_lr(parameters: &Parameters) -> f64 {
        (libm::log10(parameters["lr"].number().unwrap()) + 3.0).abs()
    }

    fn by_opt(parameters: &Parameters) -> f64 {
        let penalty = if parameters["opt"] == Value::Text("adam".into()) { 0.0 } else { 1.0 };
        // Equal results would be ranked by their number.
        penalty + 0.001 * libm::cos(1e6 * parameters["dropout"].number().unwrap())
    }

    #[test]
    fn only_relevant_parameter_has_nearly_all_importance() {
        for (name, value) in [("lr", by_lr as fn(&Parameters) -> f64), ("opt", by_opt)] {
            for seed in 0..5 {
                let history = searched(Method::Random, 200, seed, value);
                let found = shares(Goal::Minimize, &history);
                assert!(share(&found, name) > 0.8, "{name}, seed {seed}: {found:?}");
                assert_eq!(found[0].0, name);
                assert!((found.iter().map(|(_, share)| share).sum::<f64>() - 1.0).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn importance_is_also_found_in_bayesian_search() {
        for seed in 0..5 {
            let history = searched(Method::Bayes, 60, seed, by_lr);
            let found = shares(Goal::Minimize, &history);
            assert_eq!(found[0].0, "lr", "seed {seed}: {found:?}");
        }
    }

    #[test]
    fn importance_respects_the_goal() {
        let mut history = searched(Method::Random, 100, 1, by_lr);
        let minimized = shares(Goal::Minimize, &history);
        for trial in &mut history.trials {
            let Outcome::Finished { value } = &mut trial.outcome else { panic!() };
            *value = -*value;
        }
        assert_eq!(shares(Goal::Maximize, &history), minimized);
    }

    #[test]
    fn importance_needs_enough_successful_results() {
        let mut history = searched(Method::Random, 24, 1, by_lr);
        assert!(!shares(Goal::Minimize, &history).is_empty());
        history.trials[..5].iter_mut().for_each(|trial| trial.outcome = Outcome::Failed);
        assert_eq!(shares(Goal::Minimize, &history), []);
    }

    #[test]
    fn rarely_set_parameter_has_no_importance() {
        let history = searched(Method::Random, 40, 1, by_lr);
        let with = history.trials.iter().filter(|trial| trial.parameters.contains_key("momentum")).count();
        assert!(with < LEAST_RESULTS);
        assert_eq!(share(&shares(Goal::Minimize, &history), "momentum"), 0.0);
    }
}
