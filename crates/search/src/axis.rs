//! One axis of a space. Samplers see coordinates, users see values.
//!
//! The coordinate of a number is in 0..=1. A range with steps is widened by half a step at both ends, so that each value has
//! a cell of its own: `n` values on a linear scale have cells of `1/n`. The coordinate of a choice is its index.

use crate::space::Space;
use crate::value::Value;
use libm::{exp, floor, log};

#[derive(Clone, Debug)]
pub(crate) struct Axis {
    pub name: String,
    pub domain: Domain,
    /// The axis on which this one depends, and the positions on it with which this one exists.
    pub condition: Option<(usize, Vec<f64>)>,
}

#[derive(Clone, Debug)]
pub(crate) enum Domain {
    Continuous {
        min: f64,
        max: f64,
        is_log: bool,
    },
    /// `last` is the position of the highest value.
    Stepped {
        min: f64,
        max: f64,
        step: f64,
        last: f64,
        is_log: bool,
        is_int: bool,
    },
    Listed {
        values: Vec<f64>,
        is_int: bool,
    },
    Categorical {
        choices: Vec<Value>,
    },
}

impl Axis {
    /// Whether the axis exists at a point whose earlier axes are set.
    pub fn is_active(&self, space: &Space, point: &[f64]) -> bool {
        self.condition.as_ref().is_none_or(|(parent, active)| {
            let at = point[*parent];
            !at.is_nan() && active.contains(&space.axes[*parent].domain.position_at(at))
        })
    }
}

impl Domain {
    /// How many values there are; `None` if the range is continuous.
    pub fn count(&self) -> Option<f64> {
        match self {
            Self::Continuous { .. } => None,
            Self::Stepped { last, .. } => Some(last + 1.0),
            Self::Listed { values, .. } => Some(values.len() as f64),
            Self::Categorical { choices } => Some(choices.len() as f64),
        }
    }

    pub fn is_categorical(&self) -> bool {
        matches!(self, Self::Categorical { .. })
    }

    /// The position of a value among all, from 0. It is a whole number; `None` if there is no such value.
    pub fn position(&self, value: &Value) -> Option<f64> {
        match self {
            Self::Continuous { .. } => None,
            Self::Categorical { choices } => {
                choices.iter().position(|choice| choice.is_same(value)).map(|at| at as f64)
            }
            Self::Listed { values, .. } => {
                let number = value.number()?;
                values.iter().position(|listed| *listed == number).map(|at| at as f64)
            }
            Self::Stepped { min, step, last, .. } => {
                let number = value.number()?;
                let at = libm::round((number - min) / step);
                let is_there = (0.0..=*last).contains(&at) && self.value_at(at).number() == Some(number);
                is_there.then_some(at)
            }
        }
    }

    /// The coordinate of a value; `None` if there is no such value.
    pub fn encode(&self, value: &Value) -> Option<f64> {
        match self {
            Self::Continuous { min, max, .. } => {
                let number = value.number()?;
                (*min..=*max).contains(&number).then(|| self.scaled(number))
            }
            _ => Some(self.coordinate(self.position(value)?)),
        }
    }

    /// The value whose coordinate is nearest. Doubles have at most ten significant digits.
    pub fn decode(&self, at: f64) -> Value {
        match self {
            Self::Continuous { min, max, is_log } => {
                let (low, high) = self.bounds();
                let scaled = low + at * (high - low);
                let number = if *is_log { exp(scaled) } else { scaled };
                Value::Double(rounded(number).clamp(*min, *max))
            }
            _ => self.value_at(self.position_at(at)),
        }
    }

    /// The coordinate of the nearest value.
    pub fn snap(&self, at: f64) -> f64 {
        match self {
            Self::Continuous { .. } => at.clamp(0.0, 1.0),
            _ => self.coordinate(self.position_at(at)),
        }
    }

    /// The position whose cell contains a coordinate. Continuous ranges have none.
    pub fn position_at(&self, at: f64) -> f64 {
        let last = self.count().map_or(0.0, |count| count - 1.0);
        let position = match self {
            Self::Continuous { .. } => 0.0,
            Self::Categorical { .. } => at,
            Self::Stepped { min, is_log: true, .. } => {
                let (low, high) = self.bounds();
                libm::round(exp(low + at * (high - low)) - min)
            }
            Self::Stepped { .. } | Self::Listed { .. } => floor(at * (last + 1.0)),
        };
        position.clamp(0.0, last)
    }

    /// The coordinate of a position.
    pub fn coordinate(&self, position: f64) -> f64 {
        match self {
            Self::Categorical { .. } | Self::Continuous { .. } => position,
            Self::Stepped { min, is_log: true, .. } => self.scaled(min + position),
            Self::Stepped { .. } | Self::Listed { .. } => (position + 0.5) / self.count().unwrap_or(1.0),
        }
    }

    /// The coordinates between which a value is the nearest one; `None` for a continuous range.
    pub fn cell(&self, at: f64) -> Option<(f64, f64)> {
        let position = self.position_at(at);
        match self {
            Self::Continuous { .. } | Self::Categorical { .. } => None,
            Self::Stepped { min, is_log: true, .. } => {
                let value = min + position;
                Some((self.scaled(value - 0.5).max(0.0), self.scaled(value + 0.5).min(1.0)))
            }
            Self::Stepped { .. } | Self::Listed { .. } => {
                let count = self.count().unwrap_or(1.0);
                Some((position / count, (position + 1.0) / count))
            }
        }
    }

    /// The widened bounds, as logarithms on a log scale.
    fn bounds(&self) -> (f64, f64) {
        match self {
            Self::Continuous { min, max, is_log: true } => (log(*min), log(*max)),
            Self::Continuous { min, max, .. } => (*min, *max),
            Self::Stepped { min, last, is_log: true, .. } => (log(min - 0.5), log(min + last + 0.5)),
            _ => (0.0, 1.0),
        }
    }

    fn scaled(&self, number: f64) -> f64 {
        let (low, high) = self.bounds();
        let is_log = matches!(self, Self::Continuous { is_log: true, .. } | Self::Stepped { is_log: true, .. });
        ((if is_log { log(number) } else { number }) - low) / (high - low)
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole numbers up to 2^53")]
    pub fn value_at(&self, position: f64) -> Value {
        let number = |number: f64, is_int: bool| match is_int {
            true => Value::Int(number as i64),
            false => Value::Double(number),
        };
        match self {
            Self::Continuous { .. } => self.decode(position),
            Self::Categorical { choices } => choices[position as usize].clone(),
            Self::Listed { values, is_int } => number(values[position as usize], *is_int),
            Self::Stepped { min, step, is_int: true, .. } => number(min + position * step, true),
            Self::Stepped { min, max, step, .. } => number(rounded(min + position * step).clamp(*min, *max), false),
        }
    }
}

/// To ten significant digits: shorter to read and to store, and below what any search can tell apart.
fn rounded(number: f64) -> f64 {
    format!("{number:.9e}").parse().unwrap_or(number)
}
