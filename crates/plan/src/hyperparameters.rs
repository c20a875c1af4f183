//! Hyperparameters, with the names under which a program receives them.

use super::Refusals;
use api::Hyperparameters;
use serde_json::Value;

/// One hyperparameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Hyperparameter {
    /// Name in the spec, and key in `hyperparameters.json`.
    pub name: String,
    /// Environment variable, such as `HYPERPARAM_LEARNING_RATE`.
    pub variable: String,
    /// Value, with the type it has in the spec.
    pub value: Value,
}

impl Hyperparameter {
    /// The value as text, without quotes or an exponent.
    #[must_use]
    pub fn text(&self) -> String {
        match &self.value {
            Value::String(text) => text.clone(),
            // Rust writes 0.00005 where JSON would have 5e-5: every shell and parser can read the former.
            Value::Number(number) if number.is_f64() => number.as_f64().unwrap_or_default().to_string(),
            other => other.to_string(),
        }
    }
}

pub(super) fn resolve(hyperparameters: Option<&Hyperparameters>, errors: &mut Refusals) -> Vec<Hyperparameter> {
    const FIELD: &str = "spec.hyperparameters";
    let Some(h) = hyperparameters else { return Vec::new() };
    let named = [
        ("learningRate", h.learning_rate.map(Value::from)),
        ("batchSize", h.batch_size.map(Value::from)),
        ("epochs", h.epochs.map(Value::from)),
        ("optimizer", h.optimizer.clone().map(Value::from)),
        ("warmupSteps", h.warmup_steps.map(Value::from)),
        ("gradientAccumulationSteps", h.gradient_accumulation_steps.map(Value::from)),
        ("mixedPrecision", h.mixed_precision.map(Value::from)),
    ];
    let named = named.into_iter().filter_map(|(name, value)| Some((FIELD.to_owned(), name.to_owned(), value?)));
    let additional = h
        .additional_params
        .iter()
        .map(|(name, value)| (format!("{FIELD}.additionalParams.{name}"), name.clone(), Value::from(value.clone())));

    let mut all: Vec<Hyperparameter> = Vec::new();
    for (field, name, value) in named.chain(additional) {
        let Some(variable) = variable(&name) else {
            errors.push(field, "needs a name with at least one letter or digit");
            continue;
        };
        if let Some(other) = all.iter().find(|other| other.variable == variable) {
            errors.push(field, format!("would be {variable}, as {:?} is: give it another name", other.name));
            continue;
        }
        all.push(Hyperparameter { name, variable, value });
    }
    all
}

/// Converts `learningRate`, `learning-rate` and `learning_rate` to `HYPERPARAM_LEARNING_RATE`.
fn variable(name: &str) -> Option<String> {
    let mut upper = String::new();
    let mut after_lower = false;
    for c in name.chars() {
        if after_lower && c.is_ascii_uppercase() {
            upper.push('_');
        }
        after_lower = c.is_ascii_lowercase() || c.is_ascii_digit();
        upper.push(if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' });
    }
    name.contains(|c: char| c.is_ascii_alphanumeric()).then(|| format!("HYPERPARAM_{upper}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hyperparameter_variable_is_upper_snake_case() {
        for (name, expected) in [
            ("learningRate", "HYPERPARAM_LEARNING_RATE"),
            ("weight_decay", "HYPERPARAM_WEIGHT_DECAY"),
            ("label-smoothing", "HYPERPARAM_LABEL_SMOOTHING"),
            ("adam.beta1", "HYPERPARAM_ADAM_BETA1"),
            ("LR", "HYPERPARAM_LR"),
            ("beta2Value", "HYPERPARAM_BETA2_VALUE"),
        ] {
            assert_eq!(variable(name).as_deref(), Some(expected));
        }
        assert_eq!(variable("_-."), None);
        assert_eq!(variable(""), None);
    }

    #[test]
    fn learning_rate_keeps_its_decimal_notation() {
        let rate = Hyperparameter { name: String::new(), variable: String::new(), value: Value::from(0.000_05) };
        assert_eq!(rate.text(), "0.00005");
    }
}
