//! What the models learn from: the trials of a history as points of the space.

use crate::history::{Goal, History, Outcome, Trial};
use crate::space::{Problem, Space};
use std::cmp::Ordering;

/// All trials, as the models see them.
pub(crate) struct Evidence {
    /// Trials with a result, in the order of suggestion.
    pub results: Vec<Observation>,
    /// Points of running trials.
    pub running: Vec<Vec<f64>>,
    /// Points of failed trials.
    pub failed: Vec<Vec<f64>>,
}

pub(crate) struct Observation {
    pub point: Vec<f64>,
    /// Lower is better; infinite for a result that is not finite.
    pub loss: f64,
    /// Last step of a trial that was stopped early.
    pub stopped: Option<u64>,
}

impl Evidence {
    pub fn new(space: &Space, goal: Goal, history: &History) -> Result<Self, Problem> {
        let mut evidence = Self { results: Vec::new(), running: Vec::new(), failed: Vec::new() };
        for (list, trials) in [("earlier", &history.earlier), ("trials", &history.trials)] {
            for (at, trial) in trials.iter().enumerate() {
                let point = space.encode(&trial.parameters).map_err(|problem| Problem {
                    field: format!("{list}[{at}].{}", problem.field),
                    message: problem.message,
                })?;
                evidence.add(goal, trial, point);
            }
        }
        Ok(evidence)
    }

    fn add(&mut self, goal: Goal, trial: &Trial, point: Vec<f64>) {
        let (loss, stopped) = match trial.outcome {
            Outcome::Running => return self.running.push(point),
            Outcome::Failed => return self.failed.push(point),
            Outcome::Finished { value } => (goal.loss(value), None),
            Outcome::Stopped { step, value } => (goal.loss(value), Some(step)),
        };
        self.results.push(Observation { point, loss, stopped });
    }

    /// Whether a trial at this point exists already.
    pub fn contains(&self, point: &[f64]) -> bool {
        let results = self.results.iter().map(|result| &result.point);
        results.chain(&self.running).chain(&self.failed).any(|tried| is_same_point(tried, point))
    }
}

impl Observation {
    /// Better results first: finished ones by their loss, then stopped ones by their last step, then by their loss.
    pub fn rank(&self, other: &Self) -> Ordering {
        match (self.stopped, other.stopped) {
            (None, Some(_)) => Ordering::Less,
            (Some(_), None) => Ordering::Greater,
            (step, other_step) => other_step.cmp(&step).then(self.loss.total_cmp(&other.loss)),
        }
    }
}

/// Where both have NaN, neither has the parameter.
pub(crate) fn is_same_point(one: &[f64], other: &[f64]) -> bool {
    one.iter().zip(other).all(|(a, b)| a == b || (a.is_nan() && b.is_nan()))
}
