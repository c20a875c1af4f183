//! Values of parameters.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Parameters of one trial, by name. Those whose condition is not met are absent.
pub type Parameters = BTreeMap<String, Value>;

/// One value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// A choice of a categorical parameter.
    Bool(bool),
    /// A value of an `int`, or a choice.
    Int(i64),
    /// A value of a `double`, or a choice.
    Double(f64),
    /// A choice of a categorical parameter.
    Text(String),
}

impl Value {
    /// The number, if it is one.
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Int(number) => Some(*number as f64),
            Self::Double(number) => Some(*number),
            Self::Bool(_) | Self::Text(_) => None,
        }
    }

    /// Whether both are the same, where `1` and `1.0` are.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self.number(), other.number()) {
            (Some(one), Some(other)) => one == other,
            (None, None) => self == other,
            _ => false,
        }
    }
}

/// As in JSON, but text without quotes.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => value.fmt(f),
            Self::Int(value) => value.fmt(f),
            Self::Double(value) => value.fmt(f),
            Self::Text(value) => value.fmt(f),
        }
    }
}
