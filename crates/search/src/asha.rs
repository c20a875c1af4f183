//! Early stopping by asynchronous successive halving (ASHA), in the form that stops instead of pausing.
//!
//! Rungs are the steps `minStep`, `minStep * factor`, `minStep * factor²` and so on. A trial that reaches a rung continues
//! if its value is among the best `1/factor` of all values that were recorded there until then. The rule and its
//! asynchronous form are those of Li et al. 2020 (arXiv 1810.05934) as Ray implements them.

use crate::history::Goal;
use serde::{Deserialize, Serialize};

/// Settings of the early stopping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Asha {
    /// Step of the first rung, at least 1. No trial is stopped before it.
    pub min_step: u64,
    /// One of this number of trials continues at each rung, at least 2.
    pub factor: u64,
}

/// A reading of the metric.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Reading {
    /// Step of the trial.
    pub step: u64,
    /// Value of the metric.
    #[serde(with = "protocol::number")]
    pub value: f64,
}

/// What was recorded at the rungs. Decisions depend on nothing else.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rungs(Vec<Vec<Entry>>);

/// Value of one trial at one rung.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Entry {
    /// Number of the trial.
    pub trial: usize,
    /// The trial's first reading at the rung's step or later.
    #[serde(with = "protocol::number")]
    pub value: f64,
}

/// Why a trial is stopped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stop {
    /// Step of the rung.
    pub step: u64,
    /// Rank of the trial's value among those recorded until then, from 1.
    pub rank: usize,
    /// Number of values recorded until then.
    pub of: usize,
}

impl Asha {
    /// # Errors
    /// The field that is too small, and what to do.
    pub fn check(&self) -> Result<(), crate::Problem> {
        let problem = |field: &str, message: &str| {
            Err(crate::Problem { field: format!("earlyStopping.{field}"), message: message.to_owned() })
        };
        match self {
            Self { min_step: 0, .. } => problem("minStep", "0 is below the first step; set 1 or more"),
            Self { factor: 0 | 1, .. } => problem("factor", "no trial would be stopped; set 2 or more"),
            _ => Ok(()),
        }
    }

    /// Step of a rung, counted from 0; `None` if it is above 2^64.
    pub fn step(&self, rung: usize) -> Option<u64> {
        self.factor.checked_pow(u32::try_from(rung).ok()?)?.checked_mul(self.min_step)
    }

    /// Records the rungs that a trial has reached by its readings, which are in the order of their steps. What is
    /// recorded already stays, so that readings may be passed again, or may be lost later.
    pub fn record(&self, rungs: &mut Rungs, trial: usize, readings: &[Reading]) {
        for rung in 0.. {
            let Some(step) = self.step(rung) else { return };
            let Some(reading) = readings.iter().find(|reading| reading.step >= step) else { return };
            if rungs.0.len() == rung {
                rungs.0.push(Vec::new());
            }
            let entries = &mut rungs.0[rung];
            if entries.iter().all(|entry| entry.trial != trial) {
                entries.push(Entry { trial, value: reading.value });
            }
        }
    }

    /// Whether a trial is stopped, at the first rung where its value is not good enough. The decision about recorded
    /// values never changes: later entries are not considered.
    ///
    /// With fewer values than `factor` no trial is stopped. Equal values rank the same. NaN and infinities rank last.
    pub fn decide(&self, goal: Goal, rungs: &Rungs, trial: usize) -> Option<Stop> {
        rungs.0.iter().enumerate().find_map(|(rung, entries)| {
            let own = entries.iter().position(|entry| entry.trial == trial)?;
            let loss = goal.loss(entries[own].value);
            let of = own + 1;
            let kept = of / usize::try_from(self.factor).unwrap_or(usize::MAX);
            let rank = 1 + entries[..own].iter().filter(|entry| goal.loss(entry.value) < loss).count();
            let is_stopped = kept > 0 && (rank > kept || loss.is_infinite());
            let step = self.step(rung)?;
            is_stopped.then_some(Stop { step, rank, of })
        })
    }
}
