//! The parameters of a search: what users declare, and the axes that this results in.

use crate::axis::{Axis, Domain};
use crate::value::{Parameters, Value};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The most parameters of a space.
pub const MAX_PARAMETERS: usize = 100;
/// The most entries of `values` or `choices`.
pub const MAX_LISTED: usize = 1000;
/// Whole numbers above it are not exact as a double.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// Declaration of one parameter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Parameter {
    /// Type of the values.
    #[serde(rename = "type")]
    pub kind: ParameterType,
    /// Lowest value, included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    /// Highest value, included. With `step`, the highest value is the last step that does not exceed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
    /// Distance between neighbouring values, counted from `min`. The default is 1 for `int` and none for `double`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<f64>,
    /// Scale on which values between `min` and `max` are equally likely at first. The default is `linear`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<Scale>,
    /// All values of an `int` or a `double`, instead of `min` and `max`. They are searched in ascending order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<Vec<f64>>,
    /// All values of a `categorical`. They have no order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choices: Option<Vec<Value>>,
    /// Condition under which the parameter exists. Other trials do not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<Condition>,
}

/// Type of a parameter's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ParameterType {
    /// Whole numbers.
    Int,
    /// Numbers.
    Double,
    /// A list without an order.
    Categorical,
}

/// Scale of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Scale {
    /// Equal differences weigh the same.
    Linear,
    /// Equal ratios weigh the same.
    Log,
}

/// Condition on another parameter of the same space.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Condition {
    /// Name of the other parameter. It is not a continuous `double`.
    pub parameter: String,
    /// Values of the other parameter with which this one exists.
    pub values: Vec<Value>,
}

/// One reason for which a space is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct Problem {
    /// Path of the field, for example `parameters.lr.max`.
    pub field: String,
    /// What is wrong, and what to do.
    pub message: String,
}

/// A valid space. Its axes are in the alphabetical order of their names, but each one follows the axis of its condition.
#[derive(Clone, Debug)]
pub struct Space {
    pub(crate) axes: Vec<Axis>,
}

impl Space {
    /// # Errors
    /// All reasons for which the declarations are refused.
    pub fn new(parameters: &BTreeMap<String, Parameter>) -> Result<Self, Vec<Problem>> {
        let mut problems = Problems::default();
        if parameters.is_empty() {
            problems.add("parameters", "the space is empty; declare at least one parameter");
        }
        if parameters.len() > MAX_PARAMETERS {
            let count = parameters.len();
            problems.add("parameters", format!("{count} parameters are declared; declare at most {MAX_PARAMETERS}"));
        }
        let domains: BTreeMap<&String, Option<Domain>> = parameters
            .iter()
            .map(|(name, parameter)| (name, domain(&format!("parameters.{name}"), parameter, &mut problems)))
            .collect();
        for (name, parameter) in parameters {
            if let Some(condition) = &parameter.when {
                check_condition(name, condition, &domains, &mut problems);
            }
        }
        let order = parents_first(parameters, &mut problems);
        if !problems.0.is_empty() {
            return Err(problems.0);
        }
        let place = |name: &String| order.iter().position(|other| *other == name);
        let axes = order.iter().filter_map(|name| {
            let domain = domains.get(*name)?.clone()?;
            let when = parameters[*name].when.as_ref();
            let condition = when.and_then(|when| {
                let parent = domains.get(&when.parameter)?.as_ref()?;
                let active = when.values.iter().filter_map(|value| parent.position(value)).collect();
                Some((place(&when.parameter)?, active))
            });
            Some(Axis { name: (*name).clone(), domain, condition })
        });
        Ok(Self { axes: axes.collect() })
    }

    /// Names of the parameters, in the order of the grid: the last one changes fastest.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.axes.iter().map(|axis| axis.name.as_str())
    }

    /// Whether every parameter has finitely many values.
    pub fn is_finite(&self) -> bool {
        self.axes.iter().all(|axis| axis.domain.count().is_some())
    }

    /// # Errors
    /// The first parameter that is missing, unknown, or has a value that the space does not contain.
    pub fn check(&self, parameters: &Parameters) -> Result<(), Problem> {
        self.encode(parameters).map(|_| ())
    }

    /// Coordinates of a trial: the position on each axis, and NaN where the parameter does not exist.
    pub(crate) fn encode(&self, parameters: &Parameters) -> Result<Vec<f64>, Problem> {
        let mut point = vec![f64::NAN; self.axes.len()];
        for (at, axis) in self.axes.iter().enumerate() {
            let problem = |message: String| Problem { field: format!("parameters.{}", axis.name), message };
            match parameters.get(&axis.name) {
                Some(_) if !axis.is_active(self, &point) => {
                    return Err(problem("its condition is not met; leave it out".to_owned()));
                }
                Some(value) => {
                    point[at] = axis.domain.encode(value).ok_or_else(|| {
                        problem(format!("the space does not contain {value}; use a value that it declares"))
                    })?;
                }
                None if axis.is_active(self, &point) => return Err(problem("it is missing; set it".to_owned())),
                None => {}
            }
        }
        match parameters.keys().find(|name| self.axes.iter().all(|axis| axis.name != **name)) {
            Some(name) => {
                let message = "the space does not declare it; leave it out".to_owned();
                Err(Problem { field: format!("parameters.{name}"), message })
            }
            None => Ok(point),
        }
    }

    /// The parameters at a point. Axes whose condition is not met are left out, whatever their coordinate.
    pub(crate) fn decode(&self, point: &[f64]) -> Parameters {
        let kept = self.without_inactive(point);
        let values = self.axes.iter().zip(&kept).filter(|(_, at)| !at.is_nan());
        values.map(|(axis, at)| (axis.name.clone(), axis.domain.decode(*at))).collect()
    }

    /// The point with NaN on each axis whose condition is not met.
    pub(crate) fn without_inactive(&self, point: &[f64]) -> Vec<f64> {
        let mut kept = point.to_vec();
        for (at, axis) in self.axes.iter().enumerate() {
            if !axis.is_active(self, &kept) {
                kept[at] = f64::NAN;
            }
        }
        kept
    }
}

#[derive(Default)]
struct Problems(Vec<Problem>);

impl Problems {
    fn add(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.0.push(Problem { field: field.into(), message: message.into() });
    }
}

fn domain(path: &str, parameter: &Parameter, problems: &mut Problems) -> Option<Domain> {
    let before = problems.0.len();
    let domain = match parameter.kind {
        ParameterType::Categorical => Some(categorical(path, parameter, problems)),
        ParameterType::Int | ParameterType::Double => numeric(path, parameter, problems),
    };
    domain.filter(|_| problems.0.len() == before)
}

fn categorical(path: &str, parameter: &Parameter, problems: &mut Problems) -> Domain {
    let numeric = [
        ("min", parameter.min.is_some()),
        ("max", parameter.max.is_some()),
        ("step", parameter.step.is_some()),
        ("scale", parameter.scale.is_some()),
        ("values", parameter.values.is_some()),
    ];
    for (field, _) in numeric.iter().filter(|(_, is_set)| *is_set) {
        problems.add(format!("{path}.{field}"), "a categorical parameter has no order; list its values in choices");
    }
    let choices = parameter.choices.clone().unwrap_or_default();
    let field = format!("{path}.choices");
    if choices.is_empty() {
        problems.add(&field, "a categorical parameter needs choices; list at least one");
    }
    if choices.len() > MAX_LISTED {
        problems.add(&field, format!("{} choices are listed; list at most {MAX_LISTED}", choices.len()));
    }
    for (at, choice) in choices.iter().enumerate() {
        if choices[..at].iter().any(|other| other.is_same(choice)) {
            problems.add(&field, format!("{choice} is listed twice; remove one"));
        }
        if matches!(choice, Value::Double(number) if !number.is_finite()) {
            problems.add(&field, format!("{choice} is not finite; remove it"));
        }
    }
    Domain::Categorical { choices }
}

fn numeric(path: &str, parameter: &Parameter, problems: &mut Problems) -> Option<Domain> {
    let is_int = parameter.kind == ParameterType::Int;
    if parameter.choices.is_some() {
        problems.add(format!("{path}.choices"), "choices are for categorical parameters; use values, or min and max");
    }
    let listed = parameter.values.iter().flatten().map(|value| ("values", *value));
    let single = [("min", parameter.min), ("max", parameter.max), ("step", parameter.step)];
    let numbers = single.into_iter().filter_map(|(field, value)| Some((field, value?))).chain(listed);
    for (field, number) in numbers {
        if !number.is_finite() || number.abs() > 1e300 {
            problems.add(format!("{path}.{field}"), format!("{number} is not finite; use numbers up to 1e300"));
        } else if is_int && (number.fract() != 0.0 || number.abs() > EXACT) {
            problems.add(format!("{path}.{field}"), format!("{number} is not a whole number up to 2^53; correct it"));
        }
    }
    if let Some(values) = &parameter.values {
        return Some(list(path, parameter, values, problems));
    }
    let (Some(min), Some(max)) = (parameter.min, parameter.max) else {
        let missing = if parameter.min.is_none() { "min" } else { "max" };
        problems.add(format!("{path}.{missing}"), "the range is not complete; set min and max, or values");
        return None;
    };
    if min > max || (min == max && !is_int) {
        problems.add(format!("{path}.max"), format!("max {max} is not above min {min}; raise max or lower min"));
        return None;
    }
    let is_log = parameter.scale == Some(Scale::Log);
    if is_log && min <= 0.0 {
        problems.add(format!("{path}.min"), format!("{min} has no logarithm; raise min above 0, or remove scale"));
    }
    if is_log && parameter.step.is_some() {
        problems.add(format!("{path}.step"), "steps on a log scale are not supported; remove step, or list values");
    }
    let step = parameter.step.or(is_int.then_some(1.0));
    let Some(step) = step else { return Some(Domain::Continuous { min, max, is_log }) };
    if step <= 0.0 {
        problems.add(format!("{path}.step"), format!("{step} is not above 0; raise it"));
        return None;
    }
    // The last step may miss `max` by rounding errors only, as 0.3 of steps of 0.1.
    let last = libm::floor((max - min) / step + 1e-9);
    if last > EXACT {
        problems.add(format!("{path}.step"), format!("the range has more than 2^53 steps of {step}; raise step"));
        return None;
    }
    Some(Domain::Stepped { min, max, step, last, is_log, is_int })
}

fn list(path: &str, parameter: &Parameter, values: &[f64], problems: &mut Problems) -> Domain {
    let ranges = [
        ("min", parameter.min.is_some()),
        ("max", parameter.max.is_some()),
        ("step", parameter.step.is_some()),
        ("scale", parameter.scale.is_some()),
    ];
    for (field, _) in ranges.iter().filter(|(_, is_set)| *is_set) {
        problems.add(format!("{path}.{field}"), "values has all values already; remove one of both");
    }
    if values.is_empty() {
        problems.add(format!("{path}.values"), "the list is empty; list at least one value");
    }
    if values.len() > MAX_LISTED {
        problems.add(format!("{path}.values"), format!("{} are listed; list at most {MAX_LISTED}", values.len()));
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    for pair in sorted.windows(2).filter(|pair| pair[0] == pair[1]) {
        problems.add(format!("{path}.values"), format!("{} is listed twice; remove one", pair[0]));
    }
    Domain::Listed { values: sorted, is_int: parameter.kind == ParameterType::Int }
}

fn check_condition(
    name: &str,
    condition: &Condition,
    domains: &BTreeMap<&String, Option<Domain>>,
    problems: &mut Problems,
) {
    let path = format!("parameters.{name}.when");
    let parent = &condition.parameter;
    let Some(domain) = domains.get(parent) else {
        problems.add(format!("{path}.parameter"), format!("{parent} is not declared; name another parameter"));
        return;
    };
    if condition.values.is_empty() {
        problems.add(format!("{path}.values"), format!("the list is empty; list values of {parent}"));
    }
    let Some(domain) = domain else { return };
    if domain.count().is_none() {
        let message = format!("{parent} is continuous; name a parameter with a step, values or choices");
        problems.add(format!("{path}.parameter"), message);
        return;
    }
    for value in condition.values.iter().filter(|value| domain.position(value).is_none()) {
        problems.add(format!("{path}.values"), format!("{parent} is never {value}; list values that it can have"));
    }
}

/// The names in alphabetical order, but each one after the parameter of its condition.
fn parents_first<'p>(parameters: &'p BTreeMap<String, Parameter>, problems: &mut Problems) -> Vec<&'p String> {
    let mut order: Vec<&String> = Vec::new();
    let mut open: Vec<&String> = parameters.keys().collect();
    while !open.is_empty() {
        let is_ready = |name: &&String| {
            let when = parameters[*name].when.as_ref();
            when.is_none_or(|when| order.contains(&&when.parameter) || !parameters.contains_key(&when.parameter))
        };
        let Some(at) = open.iter().position(is_ready) else {
            for name in open {
                let message = "the conditions form a circle; remove one of them";
                problems.add(format!("parameters.{name}.when.parameter"), message);
            }
            return order;
        };
        order.push(open.remove(at));
    }
    order
}
